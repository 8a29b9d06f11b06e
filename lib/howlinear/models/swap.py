"""Put maps in the place of feed-forward blocks for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.checks import unwrapped
from howlinear.models.ffn_sites import Site, device_of, put, put_back, sites, width_of


@contextmanager
def swap(model: PreTrainedModel, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> Iterator[PreTrainedModel]:
    """Put maps in the place of FFN blocks, and put the blocks back whatever happens.

    Args:
        model: the model to change while the context lasts.
        maps: block → an `AffineMap`, a module, or any function of rows (…, d_in) to rows (…, d_out).

    Yields:
        The model.

    Raises:
        InputError: a block that the model does not have, or what is no `transformers` model.
    """
    inside = unwrapped(model)
    swapped_sites = sites(inside, list(maps)) if maps else []
    with ExitStack() as restore:
        for site in swapped_sites:
            restore.callback(put_back, inside, site)
            put(inside, site, _as_module(maps[site.block], inside, site))
        yield model


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
    if isinstance(map_, nn.Module):
        return map_
    affine = hasattr(map_, "weight") and hasattr(map_, "bias")
    if not affine:
        return Mapped(map_)
    width = width_of(model)
    if map_.weight.shape != (width, width):
        raise InputError(f"a map of shape {tuple(map_.weight.shape)} for blocks of width {width}: fit it on this model")
    linear = skip_init(nn.Linear, width, width, device=device_of(site.input), dtype=model.dtype)
    with torch.no_grad():
        linear.weight.copy_(map_.weight.T)  # y = x W + b, and a Linear keeps Wᵀ
        linear.bias.copy_(map_.bias)
    return linear.requires_grad_(False)
