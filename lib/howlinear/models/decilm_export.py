"""Export a LLaMA with blocks of unequal widths, or with affine maps, to the format of `models.decilm`.

Widths are padded to the multiples that readers use, by units that compute 0 and write nothing. Gated units can hold an
affine map y = x W + b with a gate that is always open: its bias is 32, and SiLU(32) is 32 in float32 and below. Their
values are 32 x W, and a readout of 1/32 gives y; a power of two changes no digit. A pair of rank r takes r units.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.decilm import MULTIPLE, DeciLMConfig, DeciLMForCausalLM, width
from howlinear.models.disk_copy import copy_on_disk
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.load import check_recorded, model_of, without_weights
from howlinear.models.replace import replaced
from howlinear.models.shards import ShardWriter, is_on_disk, read
from howlinear.models.units import check_plain

_PLAIN = "give a LlamaForCausalLM as transformers makes it"
OPEN = 32.0  # SiLU(32) = 32 (1 − 1.3e-14)


def check_llama(model: PreTrainedModel) -> None:
    """Refuse a model that DeciLM's format cannot express."""
    config = model.config
    if config.model_type != "llama":
        raise InputError(f"DeciLM's form is of LLaMA's family alone: this is a {config.model_type!r} model")
    if config.hidden_act != "silu" or config.head_dim * config.num_attention_heads != config.hidden_size:
        raise InputError(
            f"DeciLM's form knows SiLU and heads that add up to the width: here are {config.hidden_act!r} and "
            f"{config.num_attention_heads} heads of {config.head_dim} in {config.hidden_size}"
        )


@torch.no_grad()
def to_decilm(model: Any) -> DeciLMForCausalLM:
    """Copy a LLaMA into DeciLM's format, which vLLM and llama.cpp read; the outputs are the same. Save it by `hl.save`.

    Of this form llama.cpp's converter drops linear scaling and YaRN of RoPE, and takes vocabularies of LLaMA 2 and 3
    alone, LLaMA 2's without the scores that decide how a text is split.

    Args:
        model: a LLaMA or its folder; its blocks may have unequal widths or be affine maps (`compress`, `replace`).

    Returns:
        The copy, each block padded to a multiple of 256 units. If the model's weights stay on disk, the copy's do too,
        in a temporary folder that lives as long as the copy: `save` it.

    Raises:
        InputError: see `check_llama`, `check_recorded` and `check_plain`; or a weight that the format has no place for.
    """
    model = model_of(model, on_disk=True)
    check_llama(model)
    on_disk = is_on_disk(model)
    if not on_disk:
        check_recorded(model)
    config = model.config
    maps = replaced(config)
    every = sites(model)
    check_plain(model, [site for site in every if site.block not in maps])
    if len(every) != config.num_hidden_layers:
        raise InputError(f"{len(every)} of {config.num_hidden_layers} layers have a plain feed-forward block: {_PLAIN}")
    blocks = []
    group = config.num_attention_heads // config.num_key_value_heads
    own = {"no_op": False, "replace_with_linear": False}
    for site in every:
        padded = -(-len(_gated(site, maps)["up_proj.weight"]) // MULTIPLE) * MULTIPLE
        ffn = {"ffn_mult": 1.5 * padded / config.hidden_size, **own}
        blocks.append({"attention": {"n_heads_in_group": group, **own}, "ffn": ffn})

    values = config.to_dict() | {"block_configs": blocks, "mlp_bias": config.mlp_bias or bool(maps)}
    values["intermediate_size"] = max(width(block["ffn"]["ffn_mult"], config.hidden_size) for block in blocks)
    for name in ("architectures", "howlinear", "howlinear_sites", "model_type"):
        values.pop(name, None)
    form = DeciLMConfig(**values)
    if on_disk:
        copied = without_weights(DeciLMForCausalLM, form, model.dtype)
    else:
        with model.device:  # built in its precision, not converted to it, which would round RoPE's frequencies too
            copied = DeciLMForCausalLM._from_config(form, dtype=model.dtype)
    outside = {name: value for name, value in model.state_dict().items() if ".mlp." not in name}
    unread = sorted(outside.keys() - copied.state_dict().keys())
    if unread:
        raise InputError(f"DeciLM's form has no place for {unread[0]}: {_PLAIN}")
    copied.generation_config = model.generation_config

    def write(files: ShardWriter) -> PreTrainedModel:
        for site in every:
            module = deepcopy(copied.model.layers[site.block].mlp).to_empty(device=files.shards.device)
            with read(model, [f"{site.name}.{name}" for name, _ in site.output.named_parameters()]):
                _fill(module, _gated(site, maps))
            files.write(f"model.layers.{site.block}", {site.name: module})
        return copied

    if on_disk:
        return copy_on_disk(model, write)
    copied.load_state_dict(outside, strict=False)
    for site in every:
        _fill(copied.model.layers[site.block].mlp, _gated(site, maps))
    copied.name_or_path = model.name_or_path  # where the tokenizer lies
    copied.howlinear_revision = getattr(model, "howlinear_revision", "main")
    copied.howlinear_home = getattr(model, "howlinear_home", "")
    return copied.eval()


def _fill(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the leading entries of larger ones, and set all others to 0."""
    for parameter in module.parameters():
        parameter.zero_()
    for name, value in weights.items():
        module.get_parameter(name)[tuple(slice(size) for size in value.shape)] = value


def _gated(site: Site, maps: Mapping[int, int | None]) -> dict[str, Tensor]:
    """Return the weights of a block's gated units, or of units that compute the same as its linear layer or pair."""
    if site.block not in maps:
        return dict(site.output.named_parameters())
    first, *second = [site.output] if isinstance(site.output, nn.Linear) else site.output
    bias = (second[0] if second else first).bias
    readout = second[0].weight if second else torch.eye(len(bias), dtype=bias.dtype, device=bias.device)
    return {
        "gate_proj.bias": torch.full_like(first.weight[:, 0], OPEN),
        "up_proj.weight": first.weight,
        "down_proj.weight": readout / OPEN,
        "down_proj.bias": bias,
    }
