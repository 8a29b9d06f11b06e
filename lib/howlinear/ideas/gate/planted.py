"""Blocks that are a line on half of the tokens: what a gate should find is then known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from howlinear.core.ceilings import AffineMap

Straight = Callable[[Float[Tensor, "*batch d"]], Bool[Tensor, "*batch"]]
"""From inputs to the rows that are on the line."""


def half_straight(
    line: AffineMap, size: float, straight: Straight
) -> Callable[[Float[Tensor, "*batch d"], Float[Tensor, "*batch d"]], Float[Tensor, "*batch d"]]:
    """A change of a block's output: the line itself on some rows, and on all others an error of one size.

    The error keeps the direction that the block's own has, so that the model still has some use for it.

    Args:
        line: what the straight rows are.
        size: of every other row's error, a norm.
        straight: tells which rows are on the line.

    Returns:
        A function of x and y, as `ideas.sinks.planted.planted` takes it.
    """

    def change(x: Tensor, y: Tensor) -> Tensor:
        on_line = line(x)
        bent = on_line + size * normalize(y - on_line, dim=-1)
        return torch.where(straight(x)[..., None], on_line, bent)

    return change
