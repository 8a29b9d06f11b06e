"""Put maps in the place of feed-forward blocks for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from howlinear.core.ceilings import Ceiling
from howlinear.errors import InputError
from howlinear.models.checks import unwrapped
from howlinear.models.ffn_sites import Site, device_of, put, put_back, sites, width_of


@contextmanager
def swap(model: Any, maps: Any) -> Iterator[PreTrainedModel]:
    """Put maps in the place of FFN blocks, and put the blocks back whatever happens.

    Args:
        model: the model to change while the context lasts.
        maps: block → an `AffineMap`, a module, or any function of rows (…, d_in) to rows (…, d_out); or a profile, or
            ceilings, which hold such maps.

    Yields:
        The model.

    Raises:
        InputError: a block that the model does not have, what is no map, or what is no `transformers` model.
    """
    inside = unwrapped(model)
    maps = maps_of(maps)
    swapped_sites = sites(inside, list(maps)) if maps else []
    with ExitStack() as restore:
        for site in swapped_sites:
            restore.callback(put_back, inside, site)
            put(inside, site, _as_module(maps[site.block], inside, site))
        yield model


def maps_of(maps: Any) -> dict[int, Any]:
    """Block → map, of maps or of what holds them: a profile, or its ceilings.

    Raises:
        InputError: no mapping from blocks, or something in it that is no map.
    """
    if not isinstance(maps, Mapping):
        kind = type(maps).__name__
        raise InputError(f"maps are given as block → map, as in {{3: profile[3].map}}, and not as a {kind}")
    found = {block: given.map if isinstance(given, Ceiling) else given for block, given in maps.items()}
    for block, map_ in found.items():
        if map_ is None:
            raise InputError(f"block {block} has no map: its profile was read from a file of numbers alone")
        if not callable(map_) and not hasattr(map_, "module"):
            kind = type(map_).__name__
            raise InputError(f"the map of block {block!r} is a {kind}: give a function of rows, or a module")
    return found


class Mapped(nn.Module):
    """A function of rows as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        """Hold `function`."""
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


def _as_module(map_: Callable[[Tensor], Tensor], model: PreTrainedModel, site: Site) -> nn.Module:
    """A map as a module on the site's device; an affine one as a `Linear` in the model's precision."""
    width = width_of(model)
    of_numbers = not isinstance(map_, nn.Module) and hasattr(map_, "weight") and hasattr(map_, "bias")
    affine = of_numbers or isinstance(map_, nn.Linear)
    if affine and map_.weight.shape != (width, width):
        raise InputError(f"a map of shape {tuple(map_.weight.shape)} for blocks of width {width}: fit it on this model")
    if isinstance(map_, nn.Module):
        return map_
    if not affine:
        return Mapped(map_)
    linear = skip_init(nn.Linear, width, width, device=device_of(site.input), dtype=model.dtype)
    with torch.no_grad():
        linear.weight.copy_(map_.weight.T)  # y = x W + b, and a Linear keeps Wᵀ
        linear.bias.copy_(map_.bias)
    return linear.requires_grad_(False)
