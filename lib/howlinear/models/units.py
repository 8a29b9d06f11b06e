"""A feed-forward block's hidden units: where a family keeps them, and the same block with fewer of them.

The hidden units h are the input of the block's last layer, which reads them out: y = V h + b. Unit j owns a row of each
layer before it and a column of V, so a block with fewer units is the same module with narrower layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from howlinear.core.ceilings import AffineMap
from howlinear.core.gaussian import Hidden
from howlinear.errors import InputError
from howlinear.models.checks import check_in_memory, is_written_over
from howlinear.models.ffn_sites import Site, activation_beside, sites
from howlinear.models.shards import is_on_disk

ACTIVATIONS = ("act", "act_fn")  # names of the activation in FFN modules
_GATED = ("gate_proj", "up_proj", "down_proj")
LAYERS = {  # model_type: layers of its FFN module, the last one reads the hidden units out
    **dict.fromkeys(("gpt2", "gpt_neo"), ("c_fc", "c_proj")),
    **dict.fromkeys(("falcon", "gpt_neox"), ("dense_h_to_4h", "dense_4h_to_h")),
    **dict.fromkeys(("gemma2", "gemma3_text", "llama", "mistral", "olmo2", "qwen2", "qwen3", "stablelm"), _GATED),
    "gptj": ("fc_in", "fc_out"),
}
_PLAIN = ("torch.nn.modules.", "transformers.models.", "transformers.pytorch_utils")
"""Modules with linear layers that compute x W + b."""

WIDTHS = {  # model_type: the config's name for the number of hidden units, if all blocks have the same
    **dict.fromkeys(("gpt2", "gptj"), "n_inner"),
    **dict.fromkeys(("gemma2", "gemma3_text", "gpt_neo", "gpt_neox", "llama", "mistral"), "intermediate_size"),
    **dict.fromkeys(("olmo2", "qwen2", "qwen3", "stablelm"), "intermediate_size"),
    "falcon": "ffn_hidden_size",
}


def unit_layers(model: PreTrainedModel, site: Site) -> list[nn.Module]:
    """List the layers of a block's FFN: one or two from x to the hidden units, and the last, from these to y."""
    family = model.config.model_type
    if family not in LAYERS:
        raise InputError(
            f"the hidden units of {type(model).__name__}, a {family!r} model, cannot be reached: known are those of "
            f"{', '.join(sorted(LAYERS))}"
        )
    ffn = site.output
    missing = [name for name in LAYERS[family] if name not in ffn._modules]  # its own: a wrapper passes names on
    if missing:
        raise InputError(
            f"block {site.block} has no hidden units: {site.name}, a {type(ffn).__name__}, lacks {', '.join(missing)}; "
            "name blocks that have them, as in blocks=[1, 2] (--blocks 1,2)"
        )
    layers = {name: getattr(ffn, name) for name in LAYERS[family]}
    for name, layer in layers.items():
        written_in = type(layer).forward.__module__  # a subclass of somebody's own may add an adapter, or round
        if not isinstance(layer, nn.Linear | Conv1D) or not written_in.startswith(_PLAIN):
            raise InputError(
                f"block {site.block}: {site.name}.{name}, a {type(layer).__name__}, is no plain linear layer: merge "
                "adapters into the weights first, and load the model without quantised layers"
            )
    return list(layers.values())


def take_apart(model: PreTrainedModel, block: int) -> Hidden:
    """Take a block of a model apart into gate, up-projection, activation and readout, with weights in float64."""
    site = sites(model, [block])[0]
    between = None if site.ffn is not None else activation_beside(model, site)
    if between is not None:  # a pair of layers, as in BERT
        return Hidden(gate=affine_of(site.input), up=None, activation=between, out=affine_of(site.output))
    gate, *beside, out = [affine_of(layer) for layer in unit_layers(model, site)]
    (activation,) = [getattr(site.output, name) for name in ACTIVATIONS if hasattr(site.output, name)]
    return Hidden(gate=gate, up=beside[0] if beside else None, activation=activation, out=out)


def check_plain(model: PreTrainedModel, chosen: list[Site]) -> None:
    """Refuse blocks whose layers compute anything but x W + b with float weights of their own."""
    check_in_memory(model, "to make it smaller")
    on_disk = is_on_disk(model)  # then its weights are as they were saved, and share no memory
    block_of: dict[int, int] = {}  # address of a weight → block
    for site in chosen:
        if is_written_over(site.output):
            raise InputError(
                f"block {site.block}: {site.name} has a forward of its own, which may read its hidden units otherwise: "
                "give that to its class, or take it away"
            )
        for layer in unit_layers(model, site):
            weight = layer._parameters.get("weight")  # None if `layer.weight` is computed from others
            if weight is None:
                odd = "its weights are computed from others: make pruning and parametrisations permanent first"
            elif not weight.is_floating_point() or type(weight.data) is not Tensor or (weight.is_meta and not on_disk):
                odd = "its weights are quantised, or not in memory: load the model in float32 or bfloat16"
            elif layer._forward_pre_hooks or layer._forward_hooks or "forward" in vars(layer):
                odd = "hooks change what it computes: remove them first"
            elif not on_disk and block_of.setdefault(weight.data_ptr(), site.block) != site.block:
                odd = f"it is block {block_of[weight.data_ptr()]}'s as well: give each its own, weight.clone()"
            else:
                continue
            raise InputError(f"block {site.block}: a layer of {site.name} is not as its weights say: {odd}")


def unit_count(model: PreTrainedModel, site: Site) -> int:
    """How many hidden units a block has."""
    return len(_weight(unit_layers(model, site)[-1]))


def readout(model: PreTrainedModel, site: Site) -> AffineMap:
    """Return the block's last layer, y = h V + b, in float64; b is 0 if the layer has none."""
    return affine_of(unit_layers(model, site)[-1])


def affine_of(layer: nn.Linear | Conv1D) -> AffineMap:
    """Return a layer's map in float64, whichever way the layer orients its weight."""
    weight = _weight(layer).detach().double().cpu()
    bias = torch.zeros(weight.shape[1], device="cpu") if layer.bias is None else layer.bias.detach()
    return AffineMap(weight, bias.double().cpu())


def _weight(layer: nn.Linear | Conv1D) -> Tensor:
    """A layer's own weight as (in, out): `nn.Linear` keeps it as (out, in), GPT-2's Conv1D as (in, out)."""
    return layer.weight if isinstance(layer, Conv1D) else layer.weight.T


@contextmanager
def units_hooked(model: PreTrainedModel, listened: list[Site], keep: Callable[[Site, Tensor], None]) -> Iterator[None]:
    """Call `keep(site, h)` in every pass with the hidden units h of each site, shape (batch, seq_len, m)."""

    def pass_on(site: Site, _: nn.Module, args: tuple) -> None:
        keep(site, args[0])

    with ExitStack() as stack:
        for site in listened:
            layer = unit_layers(model, site)[-1]
            stack.enter_context(layer.register_forward_pre_hook(partial(pass_on, site)))
        yield


def with_units(model: PreTrainedModel, site: Site, kept: Int64[Tensor, " k"], new: AffineMap) -> nn.Module:
    """Copy a block's FFN with only the hidden units `kept`, and `new` as their readout.

    The bias of `new` is left out if the block's own readout has none.
    """
    thin = _narrowed(model, site, len(kept))
    *names, last = LAYERS[model.config.model_type]
    with torch.no_grad():
        for name in names:
            layer, narrower = getattr(site.output, name), getattr(thin, name)
            _weight(narrower).copy_(_weight(layer)[:, kept])
            if layer.bias is not None:
                narrower.bias.copy_(layer.bias[kept])
    write(getattr(thin, last), new)
    return thin


def write(layer: nn.Module, new: AffineMap) -> None:
    """Write a map of the same shape into a layer; the map's bias is left out if the layer has none."""
    with torch.no_grad():
        _weight(layer).copy_(new.weight)
        if layer.bias is not None:
            layer.bias.copy_(new.bias)


def narrow(model: PreTrainedModel, counts: Mapping[int, int]) -> None:
    """Give blocks of a model fewer hidden units, block → number, with weights still to be loaded."""
    for site in sites(model, list(counts)) if counts else []:
        model.set_submodule(site.name, _narrowed(model, site, counts[site.block]))


def _narrowed(model: PreTrainedModel, site: Site, count: int) -> nn.Module:
    """Copy a block's FFN with layers for another number of hidden units, with weights still to be set."""
    layers = unit_layers(model, site)
    thin = copy.deepcopy(site.output, {id(layer): layer for layer in layers})  # without copies of these
    for name, layer in zip(LAYERS[model.config.model_type], layers, strict=True):
        inside, outside = _weight(layer).shape
        if layer is layers[-1]:
            inside = count
        else:
            outside = count
        with layer.weight.device:
            of_conv = isinstance(layer, Conv1D)
            new = Conv1D(outside, inside) if of_conv else nn.Linear(inside, outside, bias=layer.bias is not None)
        setattr(thin, name, new.to(layer.weight.dtype))
    return thin
