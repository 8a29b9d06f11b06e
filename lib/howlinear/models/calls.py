"""The arguments and return values of a model and of the modules of its layers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from howlinear.errors import InputError, in_one_line
from howlinear.models.checks import evaluating, lacks_weights

FAILURES = (
    *(RuntimeError, ValueError, LookupError, TypeError, ArithmeticError),
    *(AttributeError, AssertionError),  # a replacement lacks the parts that the model reads
)
"""Exceptions of a forward pass with inputs, a config or replaced modules that do not fit."""

PERCEIVED = ("pixel_attention_mask", "pixel_mask", "feature_attention_mask", "input_features_mask", "padding_mask")
"""Keywords of masks for images and sound, in addition to `attention_mask` for text."""


def perceives(path: str) -> bool:
    """Whether a module lies in the part of a model that reads images or sound, by the usual names of such a part."""
    part = r"(vision|visual|image|audio|speech)(_(model|tower|encoder|transformer))?"
    return any(re.fullmatch(part, name) for name in path.split("."))


def input_of(module: nn.Module, args: tuple, named: dict) -> Tensor:
    """Find the rows that a module was called with: its first argument, `hidden_states`, or its first keyword."""
    if args or "hidden_states" in named:
        return args[0] if args else named["hidden_states"]
    by_keyword = [name for name in inspect.signature(module.forward).parameters if name in named]
    return named[by_keyword[0] if by_keyword else next(iter(named))]


def stream_of(output: Any) -> Any:
    """Return what a module adds to the residual stream or leaves there: its output, or the first of several."""
    return output[0] if isinstance(output, tuple | list) and len(output) > 0 else output


def suited_to(module: nn.Module, x: Tensor) -> Tensor:
    """Move rows to the precision and device of a module's weights; to float32 if the weights are quantised."""
    parameter = next(module.parameters(), torch.empty(0, device="cpu"))
    x = x.to(parameter.dtype if parameter.is_floating_point() else torch.float32)
    return x if parameter.is_meta else x.to(parameter.device)  # offloaded weights bring their own device


@torch.no_grad()
def maps_alone(module: nn.Module, width: int) -> bool:
    """Whether a module maps x to y, with no other input or output; tried on one token.

    A mixture of experts may also return its router's scores, or read those of the layer before. Without weights (on the
    meta device), only shapes are tried.

    Raises:
        InputError: the module fails, and not because an input other than x is missing.
    """
    x = suited_to(module, torch.zeros(1, 1, width, device="cpu"))
    by_shapes = lacks_weights(module)
    try:
        with evaluating(module), _experts_take_shapes(module) if by_shapes else nullcontext():
            output = module(x.to("meta") if by_shapes else x)
    except (TypeError, LookupError, AttributeError):  # an argument is missing, or None
        return False
    except FAILURES as error:
        raise InputError(f"a {type(module).__name__} does not run on one token: {in_one_line(error)}") from error
    return isinstance(output, Tensor)


@contextmanager
def _experts_take_shapes(module: nn.Module) -> Iterator[None]:
    """Run a mixture's experts by the one implementation of `transformers` that needs only shapes, not numbers."""
    configs = [part.config for part in module.modules() if isinstance(getattr(part, "config", None), PreTrainedConfig)]
    ways = [config._experts_implementation for config in configs]
    try:
        for config in configs:
            config._experts_implementation = "batched_mm"
        yield
    finally:
        for config, way in zip(configs, ways, strict=True):
            config._experts_implementation = way


class FirstOutput(nn.Module):
    """A wrapper that returns y alone, for a module that returns more."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return y of x, shape (…, d); a module that needs more than x is refused."""
        try:
            return stream_of(self.module(x))
        except (TypeError, LookupError, AttributeError) as error:
            kind = type(self.module).__name__
            raise InputError(f"a {kind} makes no y of x alone: {in_one_line(error)}") from error
