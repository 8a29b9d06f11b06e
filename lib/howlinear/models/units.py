"""A feed-forward block's hidden units: where it keeps them, and the same block with fewer of them.

The hidden units h are the input of the block's last layer, which reads them out: y = V h + b. Unit j owns a row of each
layer before it and a column of V, so a block with fewer units is the same module with narrower layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import permutations, product

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from howlinear.core.ceilings import AffineMap
from howlinear.core.gaussian import Hidden
from howlinear.errors import InputError
from howlinear.models.calls import FAILURES, suited_to
from howlinear.models.checks import check_in_memory, is_written_over
from howlinear.models.ffn_sites import LayerPair, Site, put, sites, width_at
from howlinear.models.pairs import activation_between
from howlinear.models.shards import is_on_disk

_PLAIN = ("torch.nn.modules.", "transformers.models.", "transformers.pytorch_utils")
"""Modules with linear layers that compute x W + b."""

TRIED = 6
"""Hidden units of the small copy of a block on which `_reads_out` is tried."""


def unit_layers(model: PreTrainedModel, site: Site) -> list[nn.Module]:
    """List the layers of a block's FFN: one or two from x to the hidden units, and the last, from these to y.

    One layer may hold gate and up-projection, one behind the other (Phi-3).
    """
    return list(named_unit_layers(model, site).values())


def named_unit_layers(model: PreTrainedModel, site: Site) -> dict[str, nn.Module]:
    """Find these layers by their shapes: path below the FFN → layer; whether they compute y is for `check_plain`."""
    ffn, width = _ffn_of(site), width_at(model, site)
    if site.linear:
        raise InputError(
            f"block {site.block} has no hidden units: {site.name}, a {type(ffn).__name__}, is linear; name blocks that "
            "have them, as in blocks=[1, 2] (--blocks 1,2)"
        )
    # activations may have learned scalars
    owners = dict.fromkeys(name.rpartition(".")[0] for name, value in ffn.named_parameters() if value.numel() > 1)
    layers = {name: ffn.get_submodule(name) for name in owners}
    odd = [name for name, layer in layers.items() if not _is_plain(layer)]
    for last in () if odd else reversed(layers):
        first = [_weight(layer).shape for name, layer in layers.items() if name != last]
        count, outside = _weight(layers[last]).shape
        shapes = [(width, count)], [(width, count)] * 2, [(width, 2 * count)]
        if outside == width and first in shapes:
            return {name: layer for name, layer in layers.items() if name != last} | {last: layers[last]}
    path = ".".join(filter(None, (site.name, *odd[:1])))
    what = "no plain linear layer" if odd else "not one or two linear layers from x and one to y"
    raise InputError(
        f"block {site.block}: its hidden units cannot be reached, since {path}, a "
        f"{type(layers[odd[0]] if odd else ffn).__name__}, is {what}: merge adapters into the weights first, load the "
        "model without quantised layers, and leave out blocks of experts, as in blocks=[1, 2] (--blocks 1,2)"
    )


def _ffn_of(site: Site) -> nn.Module:
    return LayerPair(site.input, site.output) if site.ffn is None else site.ffn


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer computes x W + b: a subclass of somebody's own may add an adapter, or round."""
    return isinstance(layer, nn.Linear | Conv1D) and type(layer).forward.__module__.startswith(_PLAIN)


def first_maps(model: PreTrainedModel, site: Site) -> list[AffineMap]:
    """Return the one or two maps from x to the hidden units, or to their gates and factors, in float64."""
    *first, last = unit_layers(model, site)
    count = len(_weight(last))
    maps = []
    for each in map(affine_of, first):
        parts = zip(each.weight.split(count, 1), each.bias.split(count), strict=True)
        maps += [AffineMap(weight, bias) for weight, bias in parts]
    return maps


def take_apart(model: PreTrainedModel, block: int) -> Hidden:
    """Take a block of a model apart into gate, up-projection, activation and readout, with weights in float64."""
    site = sites(model, [block])[0]
    if site.ffn is None:  # a pair of layers
        activation = activation_between(model, site)
        return Hidden(gate=affine_of(site.input), up=None, activation=activation, out=affine_of(site.output))
    ffn, maps, out = site.ffn, first_maps(model, site), readout(model, site)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, len(maps[0].weight), dtype=torch.float64, generator=generator, device="cpu")
    with torch.no_grad():
        y = ffn(suited_to(ffn, x)).double().cpu()
        # which is the gate, and which part the activation, shows in what they compute
        for part, order in product(ffn.children(), permutations(maps)):
            if any(parameter.ndim > 1 for parameter in part.parameters()):
                continue
            gate, up = order if len(order) == 2 else (*order, None)
            hidden = Hidden(gate=gate, up=up, activation=part, out=out)
            if _close(hidden(x), y, torch.finfo(model.dtype).eps ** 0.5) and _reads_out(model, site):
                return hidden
    raise InputError(f"block {block}: {site.name}, a {type(ffn).__name__}, is no activation between linear layers")


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two tensors are the same but for a share of the largest number."""
    return float((one - other).abs().max()) <= tolerance * float(other.abs().max())


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
        if not _reads_out(model, site):
            raise InputError(
                f"block {site.block}: its hidden units cannot be taken out, since {site.name}, a "
                f"{type(site.output).__name__}, does more than read them out one by one"
            )


@torch.no_grad()
def _reads_out(model: PreTrainedModel, site: Site) -> bool:
    """Whether y = h V + b with units that each depend on their own weights: tried on a small copy, drawn at random."""
    generator = torch.Generator().manual_seed(0)
    small = _narrowed(model, site, TRIED)
    if site.ffn is None:
        small.between = copy.deepcopy(activation_between(model, site))
    for part in small.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            hooks.clear()
        for name, value in part.named_parameters(recurse=False):  # whose own may be on disk, or in half precision
            setattr(part, name, nn.Parameter(torch.randn(value.shape, generator=generator, device="cpu")))
    small = small.float().cpu().eval()
    tried = replace(site, input=small, output=small)
    own, kept = readout(model, tried), torch.tensor([0, 2, 3], device="cpu")
    thin = with_units(model, tried, kept, AffineMap(own.weight[kept], own.bias))
    x = torch.randn(2, 3, width_at(model, site), generator=generator, device="cpu")
    seen: list[Tensor] = []
    try:
        with units_hooked(model, [tried], lambda _, h: seen.append(h.double())):
            y, less = small(x.clone()), thin(x.clone())
        h = seen[0]
        return _close(own(h), y, 1e-4) and _close(h[..., kept] @ own.weight[kept] + own.bias, less, 1e-4)
    except FAILURES:
        return False


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
    layers, count = named_unit_layers(model, site), unit_count(model, site)
    last, _ = layers.popitem()
    with torch.no_grad():
        for name, layer in layers.items():
            narrower, (_, outside) = thin.get_submodule(name), _weight(layer).shape
            own = torch.cat([kept + start for start in range(0, outside, count)])  # of gate and up-projection
            _weight(narrower).copy_(_weight(layer)[:, own])
            if layer.bias is not None:
                narrower.bias.copy_(layer.bias[own])
    write(thin.get_submodule(last), new)
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
        put(model, site, _narrowed(model, site, counts[site.block]))


def _narrowed(model: PreTrainedModel, site: Site, count: int) -> nn.Module:
    """Copy a block's FFN with layers for another number of hidden units, with weights still to be set."""
    layers, whole = named_unit_layers(model, site), unit_count(model, site)
    thin = copy.deepcopy(_ffn_of(site), {id(layer): layer for layer in layers.values()})  # without copies of these
    *_, last = layers
    for name, layer in layers.items():
        inside, outside = _weight(layer).shape
        if name == last:
            inside = count
        else:
            outside = outside // whole * count
        with layer.weight.device:
            of_conv = isinstance(layer, Conv1D)
            new = Conv1D(outside, inside) if of_conv else nn.Linear(inside, outside, bias=layer.bias is not None)
        thin.set_submodule(name, new.to(layer.weight.dtype))
    return thin
