"""Analysis of variance of profiles: which factor tells them apart, and how much of what does is its share.

For a balanced set of profiles that differ in known factors: rows, colour and weights of a transplant; architecture,
training text and seed of the twins. The arithmetic is Fisher's (1925, "Statistical methods for research workers").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from howlinear.ceilings import CONFIDENCE
from howlinear.errors import InputError


@dataclass(frozen=True)
class Effect:
    """What one factor, or some factors together, do to profiles.

    Attributes:
        share: of the variance between profiles, pooled over blocks.
        low: lower end of its 95 % interval, from a bootstrap over blocks.
        high: upper end.
        freedom: degrees of freedom in each block; over those of all effects, the share that pure noise would have.
        size: root mean square of the effect over blocks and cells, in units of R².
    """

    share: float
    low: float
    high: float
    freedom: int
    size: float

    @property
    def reach(self) -> tuple[float, float]:
        """From the share to both ends, as error bars want it."""
        return max(0.0, self.share - self.low), max(0.0, self.high - self.share)


def anova(
    r2: Float[np.ndarray, "blocks ..."],
    factors: Sequence[str],
    within: str | None = None,
    seed: int = 0,
    draws: int = 2_000,
) -> dict[str, Effect]:
    """Analysis of variance of a balanced set of profiles, in each block, pooled over blocks.

    Each cell of `r2[block]` is one profile at that block. What all cells of a block share is left out: the shares are
    of what tells the profiles apart. The interval draws blocks with replacement; neighbouring blocks are alike, so it
    is on the narrow side.

    Args:
        r2: shape (blocks, levels of the first factor, levels of the second, …), one profile a cell.
        factors: their names.
        within: a factor whose levels are mere labels (the second seed of one cell has nothing to do with that of
            another): all its effects are added up under its name.
        seed: of the bootstrap.
        draws: of the bootstrap.

    Returns:
        Effect → `Effect`, main effects first; interactions are named `a × b`.

    Raises:
        InputError: names do not fit the axes, a factor has one level, a value is not finite, or all profiles are equal.
    """
    levels = r2.shape[1:]
    if len(factors) != len(levels) or len(set(factors)) != len(factors) or (within and within not in factors):
        raise InputError(f"profiles of shape {r2.shape} have {len(levels)} factors, not {list(factors)} (and {within})")
    single = [factor for factor, count in zip(factors, levels, strict=True) if count < 2]
    if single or not levels or not len(r2):
        what = (
            f"{', '.join(single)} has one level, compare at least two" if single else f"no profile in shape {r2.shape}"
        )
        raise InputError(f"nothing to share the variance among: {what}")
    if not np.isfinite(r2).all():
        raise InputError(f"{int((~np.isfinite(r2)).sum())} values of R² are not finite: measure those blocks again")
    axes, parts = range(1, r2.ndim), {(): r2.mean(axis=tuple(range(1, r2.ndim)), keepdims=True)}
    squares: dict[str, np.ndarray] = {}
    freedom: dict[str, int] = {}
    for subset in (subset for size in axes for subset in combinations(axes, size)):
        effect = r2.mean(axis=tuple(set(axes) - set(subset)), keepdims=True)
        effect = effect - sum(part for smaller, part in parts.items() if set(smaller) < set(subset))
        parts[subset] = effect
        names = [factors[axis - 1] for axis in subset]
        name = within if within in names else " × ".join(names)
        flat = np.broadcast_to(effect, r2.shape).reshape(len(r2), -1)
        squares[name] = squares.get(name, 0) + np.square(flat).sum(1)
        freedom[name] = freedom.get(name, 0) + int(np.prod([r2.shape[axis] - 1 for axis in subset]))
    table = np.stack(list(squares.values()))  # (effects, blocks)
    if not table.sum() > 1e-20 * np.square(r2).sum():
        raise InputError(f"all {int(np.prod(levels))} profiles are the same: there is no variance to share out")
    picked = np.random.default_rng(seed).integers(len(r2), size=(draws, len(r2)))
    sums = table[:, picked].sum(2)
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    low, high = np.quantile(sums / sums.sum(0).clip(np.finfo(float).tiny), tails, axis=1)
    shares, sizes = table.sum(1) / table.sum(), np.sqrt(table.sum(1) / r2.size)
    values = zip(shares, low, high, freedom.values(), sizes, strict=True)
    return {
        name: Effect(float(share), float(lo), float(hi), df, float(size))
        for name, (share, lo, hi, df, size) in zip(squares, values, strict=True)
    }
