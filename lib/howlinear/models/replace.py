"""Put linear layers in the place of feed-forward blocks for good, in a model that is an ordinary one otherwise.

The config of such a model carries `"howlinear": {"replaced": {block: rank}}`, from which `load.load_model` builds the
same modules again; a rank of null is one full layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.ffn_sites import FAMILIES, Site, note, pattern_of, sites, width_of
from howlinear.models.swap import swap


def replace(model: PreTrainedModel, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> PreTrainedModel:
    """A copy of a model with maps in the place of FFN blocks, for good; `swap` is the same for a while.

    The copy is an ordinary `transformers` model: it generates, trains and saves, and shares no memory with the
    original. Blocks replaced before stay as they are unless they are given again.

    Args:
        model: the model; left as it was.
        maps: block → an `AffineMap`, a `Linear(d, d)`, a pair `Sequential(Linear(d, r, bias=False), Linear(r, d))`, or
            an object whose `module()` is one of these.

    Returns:
        The copy, its replaced blocks noted in `config.howlinear`.

    Raises:
        InputError: no maps, an unknown block, a map that is not linear or not of its width, or a model over devices.
    """
    blocks = [site.block for site in sites(model, list(maps))]  # before anything is copied
    width = width_of(model)
    modules = {}
    for block in blocks:
        module = maps[block].module() if hasattr(maps[block], "module") else maps[block]
        modules[block] = copy.deepcopy(module)  # so that one map given for two blocks becomes two

    # copy the model while the maps stand in it, so that the FFNs that go are not copied
    with swap(model, modules):
        ranks = {site.block: _rank(site, width) for site in sites(model, blocks)}
        copied = copy_of(model)
    for site in sites(copied, blocks):
        site.output.to(model.device, model.dtype).requires_grad_(True)

    all_ranks = replaced(model.config) | ranks
    copied.config.howlinear = {"replaced": {str(block): all_ranks[block] for block in sorted(all_ranks)}}
    return copied


def copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """An independent copy that knows where its FFNs are, whatever is put there: a replaced block no longer shows it.

    Raises:
        InputError: the model lies on several devices.
    """
    devices = set(getattr(model, "hf_device_map", {}).values())
    if len(devices) > 1:
        raise InputError(f"this model lies on {len(devices)} devices: load it without device_map to replace its blocks")
    copied = copy.deepcopy(model)
    pattern = pattern_of(model)
    if pattern != FAMILIES.get(model.config.model_type):
        note(copied, pattern)
    return copied


def replaced(config: PreTrainedConfig) -> dict[int, int | None]:
    """Blocks whose FFN is a linear layer for good (`replace.replace`), each with its rank; None is full rank.

    Raises:
        InputError: the config's entry is damaged.
    """
    entry = getattr(config, "howlinear", {"replaced": {}})
    try:
        ranks = {int(block): rank for block, rank in entry["replaced"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{_ENTRY} holds {entry!r}") from error
    damaged = {block: rank for block, rank in ranks.items() if not _is_rank(rank)}
    if damaged:
        raise InputError(f"{_ENTRY} gives ranks {damaged}")
    return ranks


_ENTRY = 'the config\'s "howlinear" names replaced blocks and their ranks, as in {"replaced": {"3": null}}, but'


def linear_layers(width: int, rank: int | None) -> nn.Module:
    """What stands for a replaced FFN: one linear layer, or two through `rank` dimensions."""
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))


def _is_rank(rank: object) -> bool:
    """Whether a config's entry is a rank: a positive whole number (True is none), or None for full rank."""
    return rank is None or (type(rank) is int and rank >= 1)


def _rank(site: Site, width: int) -> int | None:
    """The rank to note for the linear layer, or the pair of them, that stands at a site.

    Raises:
        InputError: it is neither, or of another width.
    """
    module = site.ffn
    rank = None
    if isinstance(module, nn.Sequential) and len(module) > 0:
        rank = getattr(module[0], "out_features", None)
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
