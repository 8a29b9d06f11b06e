"""Analysis of variance of profiles: which factors tell them apart, and what share each of them has.

For a balanced set of profiles that differ in known factors: rows, colour and weights of a transplant; architecture,
training text and seed of the twins. The arithmetic is Fisher's (1925, "Statistical methods for research workers").

If every combination was made more than once, as the twins were from two seeds each, the repetitions are the yardstick:
`beside_seeds` compares how much a factor moves a profile with what a new seed does. If nothing is repeated, as with
transplants, `anova` shares out the variance there is and can only resample blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import ncfdtrinc

from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError

DRAWS = 2_000  # bootstrap samples of blocks

SEED = "seed"
"""The factor whose levels are repetitions of one combination."""

Profiles = Float[np.ndarray, "blocks ..."]  # R²: an axis of blocks, then one per factor with a place per level


def anova(table: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """Analyse the variance of a balanced set of profiles in each block, summed over blocks; table `effects`."""
    profiles = _as_array(table, factors)
    squares, freedom = _sums_of_squares(profiles, factors)
    by_block = np.stack(list(squares.values()))  # (effects, blocks)
    # What all profiles share is left out. The interval is from a bootstrap over blocks; neighbouring blocks are alike,
    # so it is on the narrow side. An effect's degrees of freedom over those of all are the share of pure noise.
    shares = by_block.sum(1) / by_block.sum()
    low, high = _bootstrap_shares(by_block)
    return pd.DataFrame(
        {
            "effect": list(squares),
            "share": shares,
            "share_low": low,
            "share_high": high,
            "freedom": list(freedom.values()),
            "size": np.sqrt(by_block.sum(1) / profiles.size),
        }
    )


def beside_seeds(table: pd.DataFrame, factors: Sequence[str], effects: Sequence[str]) -> dict[str, float]:
    """Compare how much one effect, or several together, move a profile with what a new seed does.

    The seeds of one combination are the only repetitions, so their spread is the error (Fisher 1925). The interval is
    that of the noncentral F distribution (Steiger 2004, "Beyond the F test"). Blocks of a profile do not err
    independently: degrees of freedom are those of one block, times the number of independent blocks that the seeds'
    differences suggest (Greenhouse & Geisser 1959). With few seeds that number comes out too low, and the interval too
    wide rather than too narrow.

    Returns:
        Cells of table `beside_seeds`. With the effect's variance θ² and that of the seeds σ², share is θ² / (θ² + σ²),
        ½ if both move a profile alike; and ratio √(1 + θ² / σ²), 1 if the effect does nothing.
    """
    profiles = _as_array(table, factors)
    squares, freedom = _sums_of_squares(profiles, factors, SEED)
    error = float(squares[SEED].sum()) / freedom[SEED]  # the mean square of the seeds

    # F = MS / MS_seeds; its mean is about 1 + n θ² / σ², with n profiles behind every mean that is compared
    degrees = sum(freedom[name] for name in effects)
    mean_square = sum(float(squares[name].sum()) for name in effects) / degrees
    f = mean_square / error
    taking_part = " × ".join(effects).split(" × ")
    behind_a_mean = 1
    for factor, levels in zip(factors, profiles.shape[1:], strict=True):
        if factor not in taking_part:
            behind_a_mean *= levels

    # λ = degrees · n θ² / σ², the noncentrality under which F would be this high, or this low, in 1 of 40
    # independent blocks: (tr S)² / tr S², with S the covariance over blocks of the differences between seeds
    seeds = list(factors).index(SEED) + 1
    differences = (profiles - profiles.mean(axis=seeds, keepdims=True)).reshape(len(profiles), -1)
    covariance = differences @ differences.T
    blocks = float(np.trace(covariance) ** 2 / np.square(covariance).sum())
    of_effect = blocks * degrees
    of_seeds = blocks * freedom[SEED]
    tail = (1 - CONFIDENCE) / 2
    low = _noncentrality(f, of_effect, of_seeds, 1 - tail) / (of_effect * behind_a_mean)
    high = _noncentrality(f, of_effect, of_seeds, tail) / (of_effect * behind_a_mean)
    value = min(max(f - 1, 0) / behind_a_mean, high)  # θ² / σ²
    share = Estimate(value / (1 + value), low / (1 + low), high / (1 + high))
    ratio = Estimate((1 + value) ** 0.5, (1 + low) ** 0.5, (1 + high) ** 0.5)
    return {
        "f": f,
        "freedom": degrees,
        "error_freedom": freedom[SEED],
        "independent_blocks": blocks,
        **share.columns("share"),
        **ratio.columns("ratio"),
    }


def _as_array(table: pd.DataFrame, factors: Sequence[str]) -> Profiles:
    """Turn a tidy table of profiles into an array: an axis of blocks, then one per factor; levels in table order."""
    keys = ["block", *factors]
    levels = [table[key].unique() for key in keys]
    every = pd.MultiIndex.from_product(levels, names=keys)
    values = table.set_index(keys)["r2"]
    if len(values) != len(every) or not values.index.is_unique:
        raise InputError(f"{len(values)} values for {len(every)} combinations of {', '.join(keys)}: give each one")
    return values.reindex(every).to_numpy().reshape([len(level) for level in levels])


def _sums_of_squares(
    profiles: Profiles, factors: Sequence[str], labels: str | None = None
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return every effect's sum of squares in each block, shape (blocks,), and its degrees of freedom there."""
    squares: dict[str, np.ndarray] = {}
    freedom: dict[str, int] = {}
    for axes, effect in _effects(profiles).items():
        # the levels of `labels` are mere labels (the second seed of one cell has nothing to do with that of another),
        # so all effects that involve it are added up under its name
        names = [factors[axis - 1] for axis in axes]
        name = labels if labels in names else " × ".join(names)
        cells = np.broadcast_to(effect, profiles.shape).reshape(len(profiles), -1)
        squares[name] = squares.get(name, 0) + np.square(cells).sum(1)
        # (levels − 1) of every factor that takes part
        degrees = int(np.prod([profiles.shape[axis] - 1 for axis in axes]))
        freedom[name] = freedom.get(name, 0) + degrees
    return squares, freedom


def _effects(profiles: Profiles) -> dict[tuple[int, ...], np.ndarray]:
    """Return axes → joint effect of these factors in each block: their means minus all effects of fewer of them."""
    axes = range(1, profiles.ndim)
    effects = {(): profiles.mean(axis=tuple(axes), keepdims=True)}  # what all share
    for size in axes:
        for subset in combinations(axes, size):
            others = tuple(axis for axis in axes if axis not in subset)
            effect = profiles.mean(axis=others, keepdims=True)
            for smaller, of_fewer in effects.items():
                if set(smaller) < set(subset):
                    effect = effect - of_fewer
            effects[subset] = effect
    del effects[()]
    return effects


def _bootstrap_shares(by_block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of each effect's share, from sums of squares (effects, blocks) of resampled blocks."""
    blocks = by_block.shape[1]
    drawn = np.random.default_rng(0).integers(blocks, size=(DRAWS, blocks))
    sums = by_block[:, drawn].sum(2)  # (effects, draws)
    shares = sums / sums.sum(0).clip(np.finfo(float).tiny)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(shares, [tail, 1 - tail], axis=1)
    return low, high


def _noncentrality(f: float, degrees: float, error_degrees: float, probability: float) -> float:
    """Return the noncentrality λ at which `f` is not exceeded with this probability; 0 if there is none."""
    most = 500.0  # scipy's inverse ends at λ = 10⁴; far out, λ is proportional to F
    if f > most:
        return f / most * _noncentrality(most, degrees, error_degrees, probability)
    return float(ncfdtrinc(degrees, error_degrees, probability, f))
