"""Replace feed-forward blocks by smaller modules for good, in an otherwise ordinary model.

The modules are linear layers, or the blocks themselves with fewer hidden units (`units.with_units`). The config of such
a model carries `"howlinear": {"replaced": {block: rank}, "units": {block: count}}`, from which `load.load_model`
rebuilds the modules; a rank of null means one full layer. A model whose blocks all have the same number of units needs
no such entry: its config just has another number of hidden units, and any program that reads such models can read it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import FAILURES
from howlinear.models.checks import check_in_memory, check_weights, is_written_over, unwrapped
from howlinear.models.ffn_sites import FAMILIES, KINDS, Site, note, pattern_of, placed, sites, stands_alone, width_at
from howlinear.models.layers import stack_of
from howlinear.models.shards import ShardWriter, is_on_disk
from howlinear.models.swap import maps_and_site, swap
from howlinear.models.units import narrow, unit_count


def replace(model: Any, maps: Any) -> PreTrainedModel:
    """Copy a model with maps in the place of FFN blocks, for good; `swap` does the same temporarily.

    The copy is an ordinary `transformers` model: it generates, trains and saves, and shares no memory with the
    original. Blocks replaced before stay replaced, unless a new map is given for them.

    Args:
        model: the model; left as it was.
        maps: block → an `AffineMap`, a `Linear(d, d)`, a pair `Sequential(Linear(d, r, bias=False), Linear(r, d))`, or
            an object whose `module()` is one of these; or the block with fewer hidden units, see `units.with_units`.

    Returns:
        The copy, its replaced blocks noted in `config.howlinear`.

    Raises:
        InputError: no maps, an unknown block, the profile of another model, a map of another kind or width, maps of
            something other than FFNs, or a model spread over several devices.
    """
    model = unwrapped(model)
    check_weights(model, on_disk=True)
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

    # copy the model while the maps are in place, so that the replaced FFNs are not copied
    ranks = replaced(model.config)
    counts = units_left(model.config)
    modules_in_place = {}  # block → what is in its place, on a device
    families = {type(site.output) for site in sites(model) if not site.linear}  # of blocks that have hidden units
    with swap(model, modules):
        for site in sites(model, blocks):
            modules_in_place[site.block] = modules[site.block] if site.ffn is None else site.ffn
            for of_all in (ranks, counts):
                of_all.pop(site.block, None)
            if type(site.output) in families and not site.linear:
                counts[site.block] = unit_count(model, site)
            else:
                ranks[site.block] = _rank(site, width_at(model, site))
        copied = copy_of(model)
    for site in sites(copied, blocks):
        for part in (site.input, site.output):  # a pair of layers, or one module twice
            part.to(model.device, model.dtype).requires_grad_(True)
    _note(copied, ranks, counts)
    if not is_on_disk(model):
        return copied

    from howlinear.models.disk_copy import copy_on_disk  # which loads, and loading needs this module

    def write(files: ShardWriter) -> PreTrainedModel:
        for site in replaced_sites:
            module = modules_in_place[site.block].to(model.dtype)
            files.write(f"{stack_of(model)}.{site.block}", placed(site, module))
        return copied  # without weights, as the model is

    return copy_on_disk(model, write)


def with_fewer_units(model: PreTrainedModel, counts: Mapping[int, int]) -> PreTrainedModel:
    """Copy a model without weights, giving blocks fewer hidden units (block → number) and noting them in its config."""
    copied = copy_of(model)
    narrow(copied, counts)
    _note(copied, replaced(model.config), units_left(model.config) | counts)
    return copied


def _note(model: PreTrainedModel, ranks: Mapping[int, int | None], counts: Mapping[int, int]) -> None:
    """Note in a model's config the ranks of linear layers and the numbers of hidden units of its blocks.

    If all blocks have the same number of units, the config's own name for it is set; otherwise an entry is added.
    """
    if not ranks and len(set(counts.values())) == 1 and len(counts) == len(sites(model)):
        told = _config_of_width(model, next(iter(counts.values())))
        if told is not None:
            model.config = told
            return
    entry = {"replaced": {str(block): ranks[block] for block in sorted(ranks)}}
    if counts:
        entry["units"] = {str(block): counts[block] for block in sorted(counts)}
    model.config.howlinear = entry


def _config_of_width(model: PreTrainedModel, count: int) -> PreTrainedConfig | None:
    """Return a model's config with its own name for the number of hidden units set to it; None if it has no name."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name in model.config.get_text_config().to_dict():
        if not re.search("inter|inner|ff", name):  # intermediate_size, n_inner, ffn_dim, d_ff, …
            continue
        config = copy.deepcopy(model.config)
        config.dtype = model.dtype
        setattr(config.get_text_config(), name, count)
        if hasattr(config, "howlinear"):
            del config.howlinear
        with suppress(*FAILURES), torch.device("meta"):
            if {name: tensor.shape for name, tensor in type(model)(config).state_dict().items()} == shapes:
                return config
    return None


def copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model, noting where its FFNs are if no table tells: a replaced block no longer shows it."""
    for path, part in model.named_modules():  # an overwritten forward would run the original's parts in the copy
        if is_written_over(part) and getattr(vars(part)["forward"], "__self__", None) is not part:
            raise InputError(
                f"{path or 'the model'} has a forward of its own, which a copy would share: give it to the module's "
                "class, or take it away"
            )
    check_in_memory(model, "to replace its blocks")
    # A tensor that a forward pass left on a module, such as a pruned weight, has a graph and cannot be deep-copied.
    left = [value for part in model.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    detached = {id(value): value.detach().clone() for value in left if value.grad_fn is not None}
    copied = copy.deepcopy(model, detached)
    pattern = pattern_of(model)
    if pattern != FAMILIES.get(model.config.model_type):
        note(copied, pattern)
    return copied


def replaced(config: PreTrainedConfig) -> dict[int, int | None]:
    """Read from a config the blocks whose FFN is now a linear layer (`replace.replace`): block → rank (None: full)."""
    return _noted(config, "replaced", "ranks")


def units_left(config: PreTrainedConfig) -> dict[int, int]:
    """Read from a config the blocks with fewer hidden units than it says for all (`replace.replace`): block → count."""
    return _noted(config, "units", "numbers of hidden units")


def _noted(config: PreTrainedConfig, key: str, of: str) -> dict[int, Any]:
    """Read block → the positive whole number that a config's entry notes for it under a key; a rank may be None."""
    entry = getattr(config, "howlinear", {"replaced": {}})
    try:
        noted = {int(block): number for block, number in ({"units": {}} | entry)[key].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{_ENTRY} holds {entry!r}") from error
    damaged = {block: number for block, number in noted.items() if type(number) is not int or number < 1}
    if key == "replaced":
        damaged = {block: rank for block, rank in damaged.items() if rank is not None}
    if damaged:
        raise InputError(f"{_ENTRY} gives {of} {damaged}")
    return noted


_ENTRY = 'the config\'s "howlinear" names replaced blocks and their ranks, as in {"replaced": {"3": null}}, but'


def linear_layers(width: int, rank: int | None) -> nn.Module:
    """Build what replaces an FFN: one linear layer, or two through `rank` dimensions."""
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))


def _rank(site: Site, width: int) -> int | None:
    """Find the rank to note for the linear layer, or pair of layers, at a site."""
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
    types = [type(part) for part in module.modules()]
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    return types, shapes
