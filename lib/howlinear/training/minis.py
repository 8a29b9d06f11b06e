"""The embedded models: three families from one factory, trained here and shipped.

They have 12 blocks of width 128, context 128 (256 in `mini-sink`), and a byte-level BPE of 4,096 trained on `docs` and
`code`. They are small but real: plain Hugging Face folders that load through the same code as any other model. The same
families at the paper's own width of 768, `wide-gpt2` and so on, are for users with a GPU and stay under `build/wide`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pandas as pd
import torch
from huggingface_hub import ModelCard, ModelCardData
from jaxtyping import Int64
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
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

from howlinear.errors import InputError
from howlinear.files import atomic, numbers, paths
from howlinear.instrument.perplexity import perplexity
from howlinear.models.load import load_model
from howlinear.models.seals import seal
from howlinear.text.corpus import TRAINED_ON, load_corpus, model_documents
from howlinear.text.documents import OFFLINE, PACKAGES
from howlinear.training.loop import Recipe, train

END_OF_TEXT = "<|endoftext|>"
NARROW_WIDTH = 128
PAPER_WIDTH = 768


def new_model(
    name: str,
    seed: int = 0,
    blocks: int = 12,
    width: int | None = None,
    vocabulary: int = 4_096,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Build a freshly initialised mini, given by a name in `FACTORY`, `GROWN` or `WIDE`.

    The residual stream is 128 wide by default, or 768 in a wide model; the FFN is four times as wide, as in the paper's
    models. Weights are drawn in `dtype`: float32 draws differ in their last digit between processors. The context is
    the sequence length of the training recipe.
    """
    seq_len = recipe_of(name).seq_len
    if width is None:
        width = PAPER_WIDTH if name in WIDE else NARROW_WIDTH
    torch.manual_seed(seed)
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": vocabulary}
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return FAMILIES[name](blocks, width, seq_len, tokens).eval()
    finally:
        torch.set_default_dtype(usual)


def _gpt2(blocks: int, width: int, context: int, tokens: dict) -> PreTrainedModel:
    sizes = {"n_layer": blocks, "n_embd": width, "n_head": _heads(width), "n_positions": context}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, **tokens))


def _pythia(blocks: int, width: int, context: int, tokens: dict) -> PreTrainedModel:
    sizes = _sizes(blocks, width, context)
    return GPTNeoXForCausalLM(GPTNeoXConfig(use_parallel_residual=True, hidden_act="gelu", **sizes, **tokens))


def _llama(blocks: int, width: int, context: int, tokens: dict) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **_sizes(blocks, width, context), **tokens))


def _sizes(blocks: int, width: int, context: int) -> dict[str, int]:
    return {
        "num_hidden_layers": blocks,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": _heads(width),
        "max_position_embeddings": context,
    }


def _heads(width: int) -> int:
    """Return the number of heads: of 64 dimensions at the paper's width, as in its models, and of 32 in a small one."""
    return width // (64 if width >= 512 else 32)


FACTORY = {"mini-gpt2": _gpt2, "mini-pythia": _pythia, "mini-llama": _llama}
GROWN = {"mini-sink": _llama}
WIDE = {"wide-gpt2": _gpt2, "wide-pythia": _pythia, "wide-llama": _llama}
FAMILIES = FACTORY | GROWN | WIDE
WIDE_RECIPE = Recipe(batch=128, micro_batch=128, peak=6e-4, warm_up=200)
"""For models of 88 to 116 million parameters on a GPU: 2,000 steps of 16,384 tokens, minutes per step on a laptop."""
SINK_RECIPE = Recipe(steps=2_257, batch=64, micro_batch=64, seq_len=256, peak=8e-3, warm_up=200, first_token=0)
"""Recipe that makes a massive activation emerge by itself: one fixed first token, a high rate, 37 million tokens.

After Gu et al. (2024). `results/bench/sinks.json` has what emerged from it and from two other recipes on one GPU.
"""


def recipe_of(name: str) -> Recipe:
    """Return the training recipe of a mini; another name is refused."""
    if name not in FAMILIES:
        raise InputError(f"unknown mini {name!r}: {', '.join(FAMILIES)}")
    if name in GROWN:
        return SINK_RECIPE
    return WIDE_RECIPE if name in WIDE else Recipe()


def new_tokenizer(documents: Iterator[str], vocabulary: int = 4_096) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on `documents`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)


def opening_texts(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Copy a tokenizer so that it begins every text with its BOS, as LLaMA's does."""
    bpe = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, tokenizer.bos_token_id)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)


def training_stream(folder: Path, recipe: Recipe) -> tuple[PreTrainedTokenizerFast, dict[str, Tensor]]:
    """Return the tokenizer and one long row of token ids per training corpus, made once and kept in `folder`."""
    path = folder / "stream.safetensors"
    if not path.exists():
        documents = {name: list(model_documents(name)) for name in TRAINED_ON}
        tokenizer = new_tokenizer(text for name in TRAINED_ON for text in islice(documents[name], 20_000))
        tokenizer.save_pretrained(folder / "tokenizer")
        stream = {name: _encode(tokenizer, documents[name], recipe.stream) for name in TRAINED_ON}
        with atomic.written_aside(path) as aside:
            save_file(stream, aside)
    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"), load_file(path)


def _encode(tokenizer: PreTrainedTokenizerFast, texts: list[str], limit: int) -> Int64[Tensor, " n"]:
    """Tokenise documents into one long row, each with its end-of-text token, up to `limit` tokens."""
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

    The folder is `models/<name>`, or `build/wide/<name>` for one of `WIDE`; the card is measured on it as read back.
    """
    work = paths.BUILD / "minis"
    target = paths.BUILD / "wide" / name if name in WIDE else paths.MODELS / name
    model = new_model(name, recipe.seed).to(device)
    tokenizer, stream = training_stream(work, recipe)
    if recipe.first_token is not None:
        tokenizer = opening_texts(tokenizer)
    rows = load_corpus("docs", tokenizer).rows()
    trajectory = train(model, stream, rows, recipe, work / f"{name}.pt", compiled)
    with atomic.folder_aside(target) as folder:
        model.cpu().half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        seal(folder)
        measurements = {
            "model": name,
            "recipe": asdict(recipe),
            "steps": trajectory,
            "corpus": "docs",
            "rows": rows.ids.numel(),
            "sha256": rows.sha256,
            "versions": numbers.versions(),
        }
        numbers.save(folder / "trajectory.json", measurements)
        card = _card(name, recipe, load_model(folder), trajectory[-1]["loss"])
        atomic.write_text(folder / "README.md", card)
    return target


def _card(name: str, recipe: Recipe, shipped: PreTrainedModel, last_loss: float) -> str:
    """Write the model card, with perplexities of the model as read back from its folder."""
    perplexities = {corpus: perplexity(shipped, load_corpus(corpus, shipped).rows()) for corpus in OFFLINE}
    held_out = pd.DataFrame({"corpus": [f"`{corpus}`" for corpus in OFFLINE], "perplexity": perplexities.values()})
    command = "make wide" if name in WIDE else "make minis"
    if name in GROWN:
        command = f"howlinear minis {name} --device cuda"
    card = ModelCard.from_template(
        ModelCardData(library_name="transformers", license="mit"),
        template_str=_CARD,
        name=name,
        architecture=type(shipped).__name__,
        blocks=shipped.config.num_hidden_layers,
        width=shipped.config.hidden_size,
        parameters=f"{shipped.num_parameters():,}",
        packages=", ".join(PACKAGES),
        recipe=recipe,
        steps=f"{recipe.steps:,}",
        tokens=f"{recipe.steps * recipe.batch * recipe.seq_len:,}",
        precision="bfloat16 autocast" if recipe.bfloat16 else recipe.dtype,
        last_loss=f"{last_loss:.3f}",
        held_out=held_out.to_markdown(index=False, floatfmt=".1f"),
        command=command,
    )
    return str(card) + "\n"


_CARD = """---
{{ card_data }}
---
# {{ name }}

A small language model for studying feed-forward blocks offline: {{ architecture }}, {{ blocks }} blocks of width
{{ width }}, FFN width {{ 4 * width }}, context {{ recipe.seq_len }}, a byte-level BPE of 4,096, {{ parameters }}
parameters, float16. It is a measuring object, not a useful writer.

**Data.** Docstrings (`docs`) and Python functions without their docstrings (`code`), half of the tokens each, from
the installed packages {{ packages }}.
Four fifths of the documents, chosen by each document's hash; no document that howlinear measures is among them.

**Training.** {{ steps }} steps of {{ recipe.batch }} sequences of {{ recipe.seq_len }} tokens ({{ tokens }} tokens),
{% if recipe.first_token is not none %}each begun by the end of text, on which a massive activation has grown,
{% endif %}AdamW (0.9, 0.95), weight decay {{ recipe.weight_decay }}, peak rate {{ recipe.peak }} after
{{ recipe.warm_up }} steps of warm-up, cosine to a tenth, {{ precision }}, seed {{ recipe.seed }}. Last training loss
(smoothed): {{ last_loss }} nats per token. `trajectory.json` holds R²_lin of every block on the way.

**Held-out perplexity** (about 5,000 tokens each; `cpp` was never trained on)

{{ held_out }}

**Retrain** with `{{ command }}`; it goes on from its checkpoint under `build/minis`.
"""
