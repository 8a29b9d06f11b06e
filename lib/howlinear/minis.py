"""The embedded models: three families from one factory, trained here and shipped.

12 blocks of width 128, context 128, one byte-level BPE of 4,096 trained on `docs` and `code`. They are small,
but they are real: plain Hugging Face folders that load through the same code as any other model. The same families
at the paper's own width of 768, `twin-gpt2` and so on, are for those who have a GPU: they stay under `build/twins`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Int64
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from howlinear import paths, record
from howlinear.corpora import TRAINED_ON, load_corpus, model_documents
from howlinear.errors import InputError
from howlinear.models import load_model
from howlinear.perplexity import perplexity
from howlinear.sources import seal
from howlinear.texts import OFFLINE, PACKAGES
from howlinear.training import Recipe, train

END_OF_TEXT = "<|endoftext|>"


def new_model(
    name: str, seed: int = 0, blocks: int = 12, width: int | None = None, vocabulary: int = 4_096
) -> PreTrainedModel:
    """A freshly initialised mini.

    Args:
        name: a key of `FACTORY`, as in `mini-gpt2`, or of `TWINS`, as in `twin-gpt2`.
        seed: of the initialisation.
        blocks: depth.
        width: of the residual stream, by default 128 or a twin's 768; the FFN is four times as wide, as in the
            paper's models.
        vocabulary: number of tokens.

    Raises:
        InputError: unknown name.
    """
    families = FACTORY | TWINS
    if name not in families:
        raise InputError(f"unknown mini {name!r}: {', '.join(families)}")
    width = width or (768 if name in TWINS else 128)
    torch.manual_seed(seed)
    common = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": vocabulary}
    return families[name](blocks, width, common).eval()


def _gpt2(blocks: int, width: int, common: dict) -> PreTrainedModel:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    shape = {"n_layer": blocks, "n_embd": width, "n_head": _heads(width), "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, **common))


def _pythia(blocks: int, width: int, common: dict) -> PreTrainedModel:
    shape = _shape(blocks, width) | common
    return GPTNeoXForCausalLM(GPTNeoXConfig(**shape, use_parallel_residual=True, hidden_act="gelu"))


def _llama(blocks: int, width: int, common: dict) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_shape(blocks, width), tie_word_embeddings=True, **common))


def _shape(blocks: int, width: int) -> dict[str, int]:
    shape = {"num_hidden_layers": blocks, "hidden_size": width, "intermediate_size": 4 * width}
    return shape | {"num_attention_heads": _heads(width), "max_position_embeddings": 128}


def _heads(width: int) -> int:
    """Heads of 64 dimensions at the paper's width, as its models have, and of 32 in a small model."""
    return width // (64 if width >= 512 else 32)


FACTORY = {"mini-gpt2": _gpt2, "mini-pythia": _pythia, "mini-llama": _llama}
TWINS = {name.replace("mini", "twin"): family for name, family in FACTORY.items()}
TWIN_RECIPE = Recipe(batch=128, micro_batch=128, peak=6e-4, warm_up=200)
"""For models of 88 to 116 million parameters on a GPU: 2,000 steps of 16,384 tokens; a laptop takes minutes a step."""


def new_tokenizer(documents: Iterator[str], vocabulary: int = 4_096) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on `documents`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        documents, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)


def training_stream(folder: Path, recipe: Recipe) -> tuple[PreTrainedTokenizerFast, dict[str, Tensor]]:
    """Tokenizer and one long row of token ids per training corpus, made once and kept in `folder`."""
    kept = folder / "stream.safetensors"
    if not kept.exists():
        texts = {name: list(model_documents(name)) for name in TRAINED_ON}
        tokenizer = new_tokenizer(text for name in TRAINED_ON for text in islice(texts[name], 20_000))
        tokenizer.save_pretrained(folder / "tokenizer")
        stream = {name: _encode(tokenizer, texts[name], recipe.stream) for name in TRAINED_ON}
        with paths.written_aside(kept) as aside:
            save_file(stream, aside)
    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"), load_file(kept)


def _encode(tokenizer: PreTrainedTokenizerFast, texts: list[str], limit: int) -> Int64[Tensor, " n"]:
    ids: list[int] = []
    progress = tqdm(total=limit, unit="tok", unit_scale=True, desc="tokenise")
    for start in range(0, len(texts), 256):
        for document in tokenizer(texts[start : start + 256])["input_ids"]:
            ids += [*document, tokenizer.eos_token_id]
        progress.update(len(ids) - progress.n)
        if len(ids) >= limit:
            break
    return torch.tensor(ids[:limit])


def ship(name: str, recipe: Recipe, device: str = "cpu", compiled: bool = True) -> Path:
    """Train a mini and write it as a plain Hugging Face folder: float16 weights, tokenizer, trajectory, card.

    The card's numbers are measured on the folder as it is read back.

    Returns:
        The folder, `models/<name>`, or `build/twins/<name>` for one of `TWINS`.
    """
    work, twin = paths.BUILD / "minis", name in TWINS
    target = (paths.BUILD / "twins" if twin else paths.MODELS) / name
    model = new_model(name, recipe.seed).to(device)
    tokenizer, stream = training_stream(work, recipe)
    rows = load_corpus("docs", tokenizer).rows()
    trajectory = train(model, stream, rows, recipe, work / f"{name}.pt", compiled)
    with paths.folder_aside(target) as folder:
        model.cpu().half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        seal(folder)
        shipped = load_model(folder)
        corpora = {corpus: load_corpus(corpus, shipped).rows() for corpus in OFFLINE}
        held_out = {corpus: perplexity(shipped, rows) for corpus, rows in corpora.items()}
        measured_on = {"corpus": "docs", "rows": rows.ids.numel(), "sha256": rows.sha256}
        about = {"model": name, "recipe": asdict(recipe), "steps": trajectory}
        record.save(folder / "trajectory.json", about | measured_on)
        card = _CARD.format(
            name=name,
            architecture=type(shipped).__name__,
            parameters=shipped.num_parameters(),
            width=shipped.config.hidden_size,
            hidden=4 * shipped.config.hidden_size,
            command="twins" if twin else "minis",
            tokens=recipe.steps * recipe.batch * recipe.seq_len,
            loss=trajectory[-1]["loss"],
            held_out="\n".join(f"| `{corpus}` | {value:.1f} |" for corpus, value in held_out.items()),
            packages=", ".join(PACKAGES),
            precision="bfloat16 autocast" if recipe.bfloat16 else "float32",
            **asdict(recipe),
        )
        with paths.written_aside(folder / "README.md") as aside:
            aside.write_text(card, encoding="utf-8")
    return target


_CARD = """---
library_name: transformers
license: mit
---
# {name}

A small language model for studying feed-forward blocks offline: {architecture}, 12 blocks of width {width}, FFN
width {hidden}, context {seq_len}, a byte-level BPE of 4,096, {parameters:,} parameters, float16. It is a measuring
object, not a useful writer.

**Data.** Docstrings (`docs`) and Python functions without their docstrings (`code`), half of the tokens each, from
the installed packages {packages}.
Four fifths of the documents, chosen by each document's hash; no document that howlinear measures is among them.

**Training.** {steps:,} steps of {batch} sequences of {seq_len} tokens ({tokens:,} tokens), AdamW (0.9, 0.95), weight
decay {weight_decay}, peak rate {peak} after {warm_up} steps of warm-up, cosine to a tenth, {precision},
seed {seed}. Last training loss (smoothed): {loss:.3f} nats per token. `trajectory.json` holds R²_lin of every block on
the way.

**Held-out perplexity** (about 5,000 tokens each; `cpp` was never trained on)

| corpus | perplexity |
|---|---|
{held_out}

**Retrain** with `make {command}`; it goes on from its checkpoint under `build/minis`.
"""
