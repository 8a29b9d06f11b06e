"""How far two corpora give the same profile of R²_lin over blocks (arXiv 2606.19379, figure 5), with intervals.

Two models are compared in the same way; if they read the same rows, their folds are left out together (`compare`).

The intervals say what other documents of the same corpora would change. The blocks are all that the model has, not a
sample, so they are not resampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from howlinear.core.fold_maps import Scores
from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.ideas.corpora.transfer import Transfer

Curve = Float[np.ndarray, " blocks"]

LARGEST_CORRELATION = 1 - 1e-12  # Fisher's z of a correlation of 1 is infinite


@dataclass(frozen=True)
class Agreement:
    """How far two corpora, or two models, give the same profile.

    The intervals are jackknifed over document folds, that of the correlation on Fisher's z. Both kinds hold the truth
    in 94 to 98 of 100 simulated measurements (`benchmarks/coverage.py`).
    """

    correlation: Estimate | None  # of R²_lin over the blocks; None for fewer than three, over which it says nothing
    difference: dict[int, Estimate]  # block → R²_lin of the first minus that of the second, by depth

    @property
    def differ(self) -> tuple[int, ...]:
        """Blocks whose difference has an interval that excludes 0; by chance, one in twenty does."""
        return tuple(block for block, difference in self.difference.items() if difference.excludes(0.0))


@dataclass(frozen=True)
class FoldProfiles:
    """Profile of R²_lin on a corpus, also without each document fold."""

    whole: Curve
    refitted: Float[np.ndarray, "train_folds blocks"]  # without each train fold
    rescored: Float[np.ndarray, "test_folds blocks"]  # without each held-out fold

    @classmethod
    def of(cls, scores: Iterable[Scores]) -> FoldProfiles:
        """Make profiles of the scores of single blocks, in their order."""
        scores = list(scores)
        return cls(
            whole=np.array([of_block.whole for of_block in scores]),
            refitted=np.stack([of_block.refitted for of_block in scores], axis=1),
            rescored=np.stack([of_block.rescored for of_block in scores], axis=1),
        )


def agreement(by_block: Mapping[int, Transfer], one: str, other: str) -> Agreement:
    """Compare the profiles of two corpora."""

    def profiles(corpus: str) -> FoldProfiles:
        return FoldProfiles.of(carried.scores[corpus, corpus] for carried in by_block.values())

    return compare(profiles(one), profiles(other), list(by_block), (one, other))


def compare(
    first: FoldProfiles,
    second: FoldProfiles,
    blocks: list[int],
    names: tuple[str, str],
    paired: bool = False,
) -> Agreement:
    """Compare two profiles of the same blocks."""
    # Pairs of profiles without a train or held-out fold: of both if paired, or of one if their folds are independent
    left_out = [(first.refitted, second.refitted), (first.rescored, second.rescored)]
    if not paired:
        left_out = [(without, second.whole) for without in (first.refitted, first.rescored)]
        left_out += [(first.whole, without) for without in (second.refitted, second.rescored)]
    values = first.whole - second.whole
    differences = [a - b for a, b in left_out]  # (folds, blocks) each
    difference = {}
    for place, block in enumerate(blocks):
        without_each = [group[:, place] for group in differences]
        difference[block] = Estimate.jackknife(float(values[place]), *without_each)
    if len(blocks) < 3:
        return Agreement(None, difference)

    # The correlation is jackknifed on Fisher's scale and transformed back.
    if np.ptp(first.whole) == 0 or np.ptp(second.whole) == 0:
        raise InputError(f"the profile of {' or '.join(names)} is the same in every block: correlations are undefined")
    left_out_z = []
    for pair in left_out:
        curves = zip(*np.broadcast_arrays(*pair), strict=True)
        left_out_z.append([fisher_z(a, b) for a, b in curves])
    z = Estimate.jackknife(fisher_z(first.whole, second.whole), *left_out_z)
    r, low, high = (float(np.tanh(end)) for end in (z.value, z.low, z.high))
    return Agreement(Estimate(r, low, high), difference)


def fisher_z(one: Curve, other: Curve) -> float:
    """Fisher's z of the correlation of two profiles."""
    correlation = np.corrcoef(one, other)[0, 1]
    return float(np.arctanh(np.clip(correlation, -LARGEST_CORRELATION, LARGEST_CORRELATION)))
