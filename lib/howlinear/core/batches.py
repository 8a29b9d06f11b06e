"""Shuffled mini-batches of rows or sequences for training loops."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor


def shuffled_batches(count: int, size: int, steps: int, seed: int) -> Iterator[Int64[Tensor, " size"]]:
    """Yield the row indices of each step: a fresh order every pass, without its last, incomplete batch.

    With `size` rows or fewer, every batch is all of them.
    """
    generator = torch.Generator().manual_seed(seed)
    size = min(size, count)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count, generator=generator)
        yield order[:size]
        order = order[size:]
