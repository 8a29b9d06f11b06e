"""Put maps in the place of feed-forward blocks for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.sites import Site, put, put_back, sites, width_of


@contextmanager
def swap(model: PreTrainedModel, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> Iterator[PreTrainedModel]:
    """Put maps in the place of FFN blocks, and put the blocks back whatever happens.

    Args:
        model: the model to change while the context lasts.
        maps: block → an `AffineMap`, a module, or any function of rows (…, d_in) to rows (…, d_out).

    Yields:
        The model.

    Raises:
        InputError: a block that the model does not have.
    """
    with ExitStack() as restore:
        for site in sites(model, list(maps)) if maps else []:
            restore.callback(put_back, model, site)
            put(model, site, _as_module(maps[site.block], model, site))
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


def _as_module(replacement: Callable[[Tensor], Tensor], model: PreTrainedModel, site: Site) -> nn.Module:
    if isinstance(replacement, nn.Module):
        return replacement
    if not (hasattr(replacement, "weight") and hasattr(replacement, "bias")):
        return Mapped(replacement)
    width = width_of(model)
    if replacement.weight.shape != (width, width):
        raise InputError(
            f"a map of shape {tuple(replacement.weight.shape)} for blocks of width {width}: fit it on this model"
        )
    linear = skip_init(nn.Linear, *replacement.weight.shape, device=device_of(site.input), dtype=model.dtype)
    with torch.no_grad():
        linear.weight.copy_(replacement.weight.T)
        linear.bias.copy_(replacement.bias)
    return linear.requires_grad_(False)


def device_of(module: nn.Module) -> torch.device | int | str:
    """Where a module computes: in a model over several devices each its own, even if its weights rest on disk."""
    for part in module.modules():
        device = getattr(getattr(part, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return device
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
