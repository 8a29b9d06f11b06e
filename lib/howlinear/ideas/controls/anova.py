"""Analysis of variance of profiles: which factor tells them apart, and how much of what does is its share.

For a balanced set of profiles that differ in known factors: rows, colour and weights of a transplant; architecture,
training text and seed of the twins. The arithmetic is Fisher's (1925, "Statistical methods for research workers").

Where every combination was made more than once, as the twins were from two seeds each, the repetitions are the
yardstick: `beside_seeds` says how much a factor moves a profile beside what a new seed does. Where nothing is repeated,
as with transplants, `anova` shares out what there is and can only draw blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import ncfdtrinc

from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError


@dataclass(frozen=True)
class Effect:
    """What one factor, or some factors together, do to profiles.

    Attributes:
        share: of the variance between profiles, pooled over blocks; its interval is from a bootstrap over blocks.
        freedom: degrees of freedom in each block; over those of all effects, the share that pure noise would have.
        size: root mean square of the effect over blocks and cells, in units of R².
    """

    share: Estimate
    freedom: int
    size: float


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
    squares, freedom = _sums_of_squares(r2, factors, within)
    table = np.stack(list(squares.values()))  # (effects, blocks)
    low, high = _bootstrap_shares(table, seed, draws)
    shares = table.sum(1) / table.sum()
    sizes = np.sqrt(table.sum(1) / r2.size)
    effects = {}
    for i, name in enumerate(squares):
        share = Estimate(float(shares[i]), float(low[i]), float(high[i]))
        effects[name] = Effect(share, freedom[name], float(sizes[i]))
    return effects


@dataclass(frozen=True)
class BesideSeeds:
    """How much something moves a profile, beside what a new seed does.

    Attributes:
        f: Fisher's F, the mean square of the effect over that of the seeds, both pooled over blocks.
        freedom: degrees of freedom of the effect in each block.
        error_freedom: of the seeds in each block.
        blocks: how many blocks that err each by itself would err as these do; from 1 to all.
        share: θ² / (θ² + σ²), of the effect's variance θ² and that of the seeds σ²: ½ if both move a profile alike.
        ratio: √(1 + θ² / σ²): how many times as far apart (root mean square) two profiles lie that differ in the effect
            and in the seed, as two that differ in the seed alone; 1 if the effect does nothing.
    """

    f: float
    freedom: int
    error_freedom: int
    blocks: float
    share: Estimate
    ratio: Estimate


def beside_seeds(
    r2: Float[np.ndarray, "blocks ..."], factors: Sequence[str], effects: Sequence[str], seed: str = "seed"
) -> BesideSeeds:
    """How much one effect, or several together, move a profile beside what a new seed does.

    The seeds of one combination are the only repetitions there are, so their spread is the error (Fisher 1925). The
    interval is that of the noncentral F distribution (Steiger 2004, "Beyond the F test"). Blocks of a profile do not
    err each by itself: degrees of freedom are those of one block, times how many blocks the seeds' differences look
    like (Greenhouse & Geisser 1959). From few seeds that number comes out too low, and the interval too wide rather
    than too narrow.

    Args:
        r2: as `anova` takes it.
        factors: the names of its axes, in their order.
        effects: names as `anova` gives them, `["family"]`; or `["text", "family × text"]`, the text within a family.
        seed: the factor that numbers the repetitions.

    Raises:
        InputError: as `anova`; an effect that is not there; or no seed differs from another.
    """
    squares, freedom = _sums_of_squares(r2, factors, seed)
    unknown = [name for name in effects if name not in squares or name == seed]
    if unknown or not effects:
        raise InputError(f"no effect {', '.join(unknown) or 'is named'}: there are {', '.join(set(squares) - {seed})}")
    error = float(squares[seed].sum()) / freedom[seed]
    if not error > 1e-20 * np.square(r2).sum():
        raise InputError("two seeds of one kind are the same to the last digit: there is nothing to measure against")
    degrees = sum(freedom[name] for name in effects)
    # F = MS / MS_seeds; its mean is about 1 + n θ² / σ², with n profiles behind every mean that is compared
    f = sum(float(squares[name].sum()) for name in effects) / degrees / error
    taking_part = {part for name in effects for part in name.split(" × ")}
    means = np.prod([levels for name, levels in zip(factors, r2.shape[1:], strict=True) if name in taking_part])
    behind_a_mean = int(np.prod(r2.shape[1:]) / means)
    # λ = degrees · n θ² / σ², the noncentrality under which F would be this high, or this low, in 1 of 40
    blocks = _independent_blocks(r2, list(factors).index(seed) + 1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (
        _noncentrality(f, blocks * degrees, blocks * freedom[seed], probability) / (blocks * degrees * behind_a_mean)
        for probability in (1 - tail, tail)
    )
    value = min(max(f - 1, 0) / behind_a_mean, high)
    return BesideSeeds(
        f=f,
        freedom=degrees,
        error_freedom=freedom[seed],
        blocks=blocks,
        share=Estimate(value / (1 + value), low / (1 + low), high / (1 + high)),
        ratio=Estimate((1 + value) ** 0.5, (1 + low) ** 0.5, (1 + high) ** 0.5),
    )


def _independent_blocks(r2: np.ndarray, axis: int) -> float:
    """(tr S)² / tr S², with S the covariance over blocks of what sets repetitions of one kind apart."""
    apart = (r2 - r2.mean(axis=axis, keepdims=True)).reshape(len(r2), -1)
    covariance = apart @ apart.T
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())


def _noncentrality(f: float, degrees: float, error_degrees: float, probability: float) -> float:
    """The noncentrality λ at which an F is not exceeded with this probability; 0 where none makes it so likely."""
    most = 500.0  # scipy's inverse ends at λ = 10⁴; far out, λ is proportional to F
    if f > most:
        return f / most * _noncentrality(most, degrees, error_degrees, probability)
    return float(ncfdtrinc(degrees, error_degrees, probability, f))


def profile_array(table: pd.DataFrame, factors: Sequence[str], value: str = "r2") -> Float[np.ndarray, "blocks ..."]:
    """A tidy table of profiles as `anova` takes them.

    Args:
        table: a row a `block` and combination of the factors' levels.
        factors: columns that hold the factors; levels stay in the order in which they appear.
        value: column that holds R².

    Raises:
        InputError: a combination is missing, or there twice.
    """
    keys = ["block", *factors]
    levels = [table[key].unique() for key in keys]
    combinations_of_levels = pd.MultiIndex.from_product(levels, names=keys)
    values = table.set_index(keys)[value]
    if len(values) != len(combinations_of_levels) or not values.index.is_unique:
        raise InputError(
            f"{len(values)} values for {len(combinations_of_levels)} combinations of {', '.join(keys)}: give each one"
        )
    return values.reindex(combinations_of_levels).to_numpy().reshape([len(level) for level in levels])


def effect_table(views: Mapping[str, Mapping[str, Effect]]) -> pd.DataFrame:
    """Several analyses as one table: a row a `view` and `effect`, with `share`, `low`, `high`, `freedom`, `size`."""
    rows = []
    for view, effects in views.items():
        for name, effect in effects.items():
            share = {"share": effect.share.value, "low": effect.share.low, "high": effect.share.high}
            rows.append({"view": view, "effect": name} | share | {"freedom": effect.freedom, "size": effect.size})
    return pd.DataFrame(rows, columns=["view", "effect", "share", "low", "high", "freedom", "size"])


def _check(r2: np.ndarray, factors: Sequence[str], within: str | None) -> None:
    levels = r2.shape[1:]
    fits = len(factors) == len(levels) == len(set(factors))
    if not fits or (within and within not in factors):
        raise InputError(f"profiles of shape {r2.shape} have {len(levels)} factors, not {list(factors)} (and {within})")
    single = [factor for factor, count in zip(factors, levels, strict=True) if count < 2]
    if single:
        raise InputError(
            f"nothing to share the variance among: {', '.join(single)} has one level, compare at least two"
        )
    if not levels or not len(r2):
        raise InputError(f"nothing to share the variance among: no profile in shape {r2.shape}")
    not_finite = int((~np.isfinite(r2)).sum())
    if not_finite:
        raise InputError(f"{not_finite} values of R² are not finite: measure those blocks again")


def _sums_of_squares(
    r2: np.ndarray, factors: Sequence[str], within: str | None
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Every effect's sum of squares in each block, shape (blocks,), and its degrees of freedom there.

    Raises:
        InputError: as `anova`.
    """
    _check(r2, factors, within)
    squares: dict[str, np.ndarray] = {}
    freedom: dict[str, int] = {}
    for axes, effect in _effects(r2).items():
        names = [factors[axis - 1] for axis in axes]
        name = within if within in names else " × ".join(names)
        cells = np.broadcast_to(effect, r2.shape).reshape(len(r2), -1)
        squares[name] = squares.get(name, 0) + np.square(cells).sum(1)
        # (levels − 1) of every factor that takes part
        freedom[name] = freedom.get(name, 0) + int(np.prod([r2.shape[axis] - 1 for axis in axes]))
    if not sum(square.sum() for square in squares.values()) > 1e-20 * np.square(r2).sum():
        count = int(np.prod(r2.shape[1:]))
        raise InputError(f"all {count} profiles are the same: there is no variance to share out")
    return squares, freedom


def _effects(r2: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Axes → the effect of these factors together, in each block: their means, less all effects of fewer of them."""
    axes = range(1, r2.ndim)
    common = r2.mean(axis=tuple(axes), keepdims=True)
    effects = {(): common}
    for size in axes:
        for subset in combinations(axes, size):
            others = tuple(axis for axis in axes if axis not in subset)
            mean = r2.mean(axis=others, keepdims=True)
            effects[subset] = mean - sum(part for smaller, part in effects.items() if set(smaller) < set(subset))
    del effects[()]
    return effects


def _bootstrap_shares(table: np.ndarray, seed: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of each effect's share, from sums of squares (effects, blocks) of blocks drawn with replacement."""
    blocks = table.shape[1]
    picked = np.random.default_rng(seed).integers(blocks, size=(draws, blocks))
    sums = table[:, picked].sum(2)  # (effects, draws)
    shares = sums / sums.sum(0).clip(np.finfo(float).tiny)
    low, high = np.quantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    return low, high
