"""Put smaller modules in the place of feed-forward blocks for good, in a model that is an ordinary one otherwise.

They are linear layers, or the blocks themselves with fewer hidden units (`units.with_units`). The config of such a
model carries `"howlinear": {"replaced": {block: rank}, "units": {block: count}}`, from which `load.load_model` builds
the same modules again; a rank of null is one full layer. A model whose blocks all have equally many units needs no such
entry: its config has another number of hidden units, and everything that reads models reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.checks import check_in_memory, check_weights, is_written_over, unwrapped
from howlinear.models.ffn_sites import FAMILIES, KINDS, Site, note, pattern_of, sites, stands_alone, width_at
from howlinear.models.swap import maps_and_site, swap
from howlinear.models.units import LAYERS, WIDTHS, narrow, unit_count


def replace(model: Any, maps: Any) -> PreTrainedModel:
    """A copy of a model with maps in the place of FFN blocks, for good; `swap` is the same for a while.

    The copy is an ordinary `transformers` model: it generates, trains and saves, and shares no memory with the
    original. Blocks replaced before stay as they are unless they are given again.

    Args:
        model: the model; left as it was.
        maps: block → an `AffineMap`, a `Linear(d, d)`, a pair `Sequential(Linear(d, r, bias=False), Linear(r, d))`, or
            an object whose `module()` is one of these; or the block with fewer hidden units, see `units.with_units`.

    Returns:
        The copy, its replaced blocks noted in `config.howlinear`.

    Raises:
        InputError: no maps, an unknown block, the profile of another model, a map that is none of these or not of its
            width, maps of something else than FFNs, or a model over devices.
    """
    model = unwrapped(model)
    check_weights(model)
    maps, site = maps_and_site(model, maps)
    if site != "ffn":
        raise InputError(f"maps of {KINDS[site]} take its place for a while alone (swap): replace is for FFN blocks")
    replaced_sites = sites(model, list(maps))
    for site in replaced_sites:
        if not stands_alone(model, site):
            raise InputError(
                f"{site.name} returns something beside y, or reads something beside x, which no linear layer does: a "
                "map takes its place for a while alone (swap)"
            )
    blocks = [site.block for site in replaced_sites]
    given = {block: maps[block].module() if hasattr(maps[block], "module") else maps[block] for block in blocks}
    modules = {block: copy.deepcopy(module) for block, module in given.items()}  # one map for two blocks becomes two

    # copy the model while the maps stand in it, so that the FFNs that go are not copied
    ranks = replaced(model.config)
    counts = units_left(model.config)
    layers = LAYERS.get(model.config.model_type, ())
    with swap(model, modules):
        for site in sites(model, blocks):
            for of_all in (ranks, counts):
                of_all.pop(site.block, None)
            if layers and all(hasattr(site.output, name) for name in layers):  # as its family's blocks have them
                counts[site.block] = unit_count(model, site)
            else:
                ranks[site.block] = _rank(site, width_at(model, site))
        copied = copy_of(model)
    for site in sites(copied, blocks):
        site.output.to(model.device, model.dtype).requires_grad_(True)
    _note(copied, ranks, counts)
    return copied


def with_fewer_units(model: PreTrainedModel, counts: Mapping[int, int]) -> PreTrainedModel:
    """A model without weights as its config tells it once blocks keep so many hidden units, block → how many."""
    copied = copy_of(model)
    narrow(copied, counts)
    _note(copied, replaced(model.config), units_left(model.config) | counts)
    return copied


def _note(model: PreTrainedModel, ranks: Mapping[int, int | None], counts: Mapping[int, int]) -> None:
    """Note in a model's config what stands in its blocks, ranks of linear layers and numbers of hidden units.

    If all have equally many units, that is said by the config's own name for it, and else by an entry.
    """
    family = model.config.model_type
    alike = not ranks and len(set(counts.values())) == 1 and len(counts) == len(sites(model))
    if alike and family in WIDTHS:
        setattr(model.config, WIDTHS[family], next(iter(counts.values())))
        if hasattr(model.config, "howlinear"):
            del model.config.howlinear
        return
    entry = {"replaced": {str(block): ranks[block] for block in sorted(ranks)}}
    if counts:
        entry["units"] = {str(block): counts[block] for block in sorted(counts)}
    model.config.howlinear = entry


def copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """An independent copy that knows where its FFNs are, whatever is put there: a replaced block no longer shows it."""
    for path, part in model.named_modules():  # a forward that was written over would run its own parts in the copy
        if is_written_over(part) and getattr(vars(part)["forward"], "__self__", None) is not part:
            raise InputError(
                f"{path or 'the model'} has a forward of its own, which a copy would share: give it to the module's "
                "class, or take it away"
            )
    check_in_memory(model, "to replace its blocks")
    # What a forward pass left on a module, such as a pruned weight, has a graph and cannot be copied with it.
    left = [value for part in model.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    detached = {id(value): value.detach().clone() for value in left if value.grad_fn is not None}
    copied = copy.deepcopy(model, detached)
    pattern = pattern_of(model)
    if pattern != FAMILIES.get(model.config.model_type):
        note(copied, pattern)
    return copied


def replaced(config: PreTrainedConfig) -> dict[int, int | None]:
    """Blocks whose FFN is a linear layer for good (`replace.replace`), each with its rank; None is full rank."""
    return _noted(config, "replaced", "ranks", lambda rank: rank is None or _is_count(rank))


def units_left(config: PreTrainedConfig) -> dict[int, int]:
    """Blocks that have fewer hidden units than the config says for all (`replace.replace`), each with its number."""
    return _noted(config, "units", "numbers of hidden units", _is_count)


def _noted(config: PreTrainedConfig, key: str, of: str, fits: Callable[[Any], bool]) -> dict[int, Any]:
    """Block → what a config's entry notes of it under a key."""
    entry = getattr(config, "howlinear", {"replaced": {}})
    try:
        noted = {int(block): number for block, number in ({"units": {}} | entry)[key].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{_ENTRY} holds {entry!r}") from error
    damaged = {block: number for block, number in noted.items() if not fits(number)}
    if damaged:
        raise InputError(f"{_ENTRY} gives {of} {damaged}")
    return noted


def _is_count(number: object) -> bool:
    """Whether a config's entry is a positive whole number; True is none."""
    return type(number) is int and number >= 1


_ENTRY = 'the config\'s "howlinear" names replaced blocks and their ranks, as in {"replaced": {"3": null}}, but'


def linear_layers(width: int, rank: int | None) -> nn.Module:
    """What stands for a replaced FFN: one linear layer, or two through `rank` dimensions."""
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))


def _rank(site: Site, width: int) -> int | None:
    """The rank to note for the linear layer, or the pair of them, that stands at a site."""
    module = site.ffn
    is_pair = isinstance(module, nn.Sequential) and len(module) > 0
    rank = getattr(module[0], "out_features", None) if is_pair else None  # dimensions between the two
    with torch.device("meta"):
        expected = linear_layers(width, rank)
    if _structure(module) != _structure(expected):
        raise InputError(
            f"block {site.block}: this {type(module).__name__} cannot be kept in a model folder; give an affine map, "
            f"Linear({width}, {width}) or Sequential(Linear({width}, r, bias=False), Linear(r, {width}))"
        )
    return rank


def _structure(module: nn.Module) -> tuple[list[type], dict[str, torch.Size]]:
    """What a module is made of: the types of its parts, and the shapes of its parameters by name."""
    types = [type(part) for part in module.modules()]
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    return types, shapes
