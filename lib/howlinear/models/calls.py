"""What a module of a layer is called with, and what it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from howlinear.models.checks import evaluating


def input_of(args: tuple, named: dict) -> Tensor:
    """The rows that a module was called with: what comes first, or by the name that `transformers` gives them."""
    return args[0] if args else named.get("hidden_states", next(iter(named.values())))


def stream_of(output: Any) -> Any:
    """What a module adds to the residual stream, or leaves there: the first of what it returns, if that is several."""
    return output[0] if isinstance(output, tuple | list) and len(output) > 0 else output


@torch.no_grad()
def outputs_beside(module: nn.Module, width: int) -> int:
    """How many values a module returns beside y, as a mixture of experts its router's scores; tried on one token.

    Args:
        module: maps x to y, shapes (…, width).
        width: features of the residual stream.
    """
    parameter = next(module.parameters(), torch.empty(0))
    dtype = parameter.dtype if parameter.is_floating_point() else torch.float32
    with evaluating(module):
        output = module(torch.zeros(1, 1, width, dtype=dtype, device=parameter.device))
    return len(output) - 1 if isinstance(output, tuple | list) else 0


class FirstOutput(nn.Module):
    """A module that returns y alone, of one that returns something beside it."""

    def __init__(self, module: nn.Module):
        """Hold `module`, which returns several values, y first."""
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Y of x, shape (…, d)."""
        return stream_of(self.module(x))


class Beside(nn.Module):
    """A module that returns y and as many values beside it as a layer unpacks: None in the place of each."""

    def __init__(self, module: nn.Module, beside: int):
        """Hold `module`, which returns y alone."""
        super().__init__()
        self.module = module
        self.beside = beside

    def forward(self, x: Tensor) -> tuple[Tensor | None, ...]:
        """Y of x, shape (…, d), and the values beside it."""
        return (self.module(x), *[None] * self.beside)
