"""Stand-ins for the paper's models: their shapes and files with random weights, nothing to download.

`python -m howlinear.training.stand_ins` writes build/rehearsal/models, so that the whole `paper` profile can run at
d = 768 without a network. The configurations are the config.json files of openai-community/gpt2,
EleutherAI/pythia-160m and JackFram/llama-160m; vocabulary and special ids follow the local tokenizer. A rehearsal is
about the width, and blocks repeat: `make rehearse` takes four of the twelve, `make rehearse BLOCKS=12` all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from howlinear.errors import SourceError, ending_in_one_line
from howlinear.files import atomic, paths

FOLDER = paths.BUILD / "rehearsal" / "models"
TOKENIZER = paths.MODELS / "mini-gpt2"

PUBLISHED = {
    "gpt2": {  # n_inner is not given: 4 · n_embd
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
    },
    "pythia-160m": {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
    },
    "llama-160m": {
        "_name_or_path": "JackFram/llama-160m", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 12,
        "num_hidden_layers": 12, "num_key_value_heads": 12, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
        "torch_dtype": "float32", "transformers_version": "4.30.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
}  # fmt: skip


LEGACY = {
    "gpt2": ("transformer.", "", "h.{}.attn.bias", torch.float32),
    "gpt_neox": ("lm_head.", "embed_out.", "gpt_neox.layers.{}.attention.bias", torch.bool),
}
"""What differs in the Hub's older files, by model_type: a part of the weights' names today and there, and the name and
precision of a causal mask per block."""


def make(name: str, folder: Path, changes: Mapping[str, object]) -> Path:
    """Make a stand-in unless it exists with this configuration; an interrupted run leaves nothing under its name.

    Its folder holds config.json, model.safetensors and the embedded models' tokenizer, as on the Hub. `changes` are
    entries of the configuration to replace, for smaller models.
    """
    if not (TOKENIZER / "tokenizer.json").is_file():
        raise SourceError(f"no tokenizer in {TOKENIZER}: the embedded models bring it, run make minis first")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER)

    config = PUBLISHED[name] | {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "vocab_size": len(tokenizer),
        **changes,
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    target = folder / name
    written = target / "config.json"
    if written.is_file() and written.read_text(encoding="utf-8") == text:
        return target
    with atomic.folder_aside(target) as aside:
        (aside / "config.json").write_text(text, encoding="utf-8")
        save_file(_weights(config), aside / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(aside)
    return target


def _weights(config: dict) -> dict[str, torch.Tensor]:
    """Draw random weights, the same each time, with the names and the precision of the Hub's file."""
    torch.manual_seed(0)
    family = config["model_type"]
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family].from_dict(config))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}  # tied ones once
    if family not in LEGACY:
        return weights
    today, on_the_hub, mask, dtype = LEGACY[family]
    weights = {name.replace(today, on_the_hub): weight for name, weight in weights.items()}
    length = model.config.max_position_embeddings
    for block in range(model.config.num_hidden_layers):
        weights[mask.format(block)] = torch.ones(1, 1, length, length, dtype=dtype).tril()
    return weights


def resized(name: str, blocks: int = 12, width: int = 768) -> dict[str, int]:
    """Return the configuration entries of another size; heads keep their width, 64 or less."""
    heads = max(1, width // 64)
    if PUBLISHED[name]["model_type"] == "gpt2":
        return {"n_layer": blocks, "n_embd": width, "n_head": heads}
    sizes = {"num_hidden_layers": blocks, "hidden_size": width, "intermediate_size": 4 * width}
    sizes["num_attention_heads"] = heads
    if "num_key_value_heads" in PUBLISHED[name]:
        sizes["num_key_value_heads"] = heads
    return sizes


def main(
    blocks: Annotated[int, typer.Option(min=1, max=12, help="number of blocks of each model")] = 12,
) -> None:
    """Make those of the three stand-ins that are missing."""
    with ending_in_one_line():
        for name in PUBLISHED:
            print(make(name, FOLDER, resized(name, blocks)))


if __name__ == "__main__":
    typer.run(main)
