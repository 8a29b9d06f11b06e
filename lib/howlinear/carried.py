"""One block seen from all sides of notebook 04: ranks, features, directions, tokens, positions, rows.

It only brings together what `rank` computes (paper, figure 4, and our additions), so that every block, trained or
planted, goes through the same tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear import rank
from howlinear.capture import BlockCapture, Sample
from howlinear.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.moments import Moments
from howlinear.rank import Estimate, Score, Scored, Spread, estimate, pick, scored_rows


@dataclass(frozen=True)
class View:
    """What carries the R²_lin of a block; R² is always of the map fitted on all train rows unless said otherwise.

    Attributes:
        r2: pooled over features.
        median: of single features' R².
        rank: effective rank of the held-out outputs; its interval is from the sampled rows.
        predicted: effective rank of the linear predictions.
        outputs: spread of the outputs' covariance.
        predictions: spread of the predictions' covariance.
        features: R² without the k loudest output features, per k.
        directions: R² without the k loudest output directions, per k, on sampled rows.
        bands: R² within each band of token frequency about the band's own mean, frequent first, on sampled rows.
        without_first: by how much R² rises when rows at position 0 are left out of the score.
        refitted: by how much R² elsewhere rises when they are left out of the fit (maps of sampled train rows).
        heavy_variance: share of the output variance on the rows of highest leverage.
        heavy_error: share of the unexplained variance on them.
        without_heavy: by how much R² rises when they are left out of the score.
    """

    r2: Estimate
    median: Estimate
    rank: Estimate
    predicted: Estimate
    outputs: Spread
    predictions: Spread
    features: list[Estimate]
    directions: list[Estimate]
    bands: list[Estimate]
    without_first: Estimate
    refitted: Estimate
    heavy_variance: Estimate
    heavy_error: Estimate
    without_heavy: Estimate

    def regime(self, high: float = 0.9, few: float = 2.0, gap: float = 0.25) -> str:
        """The word of `rank.regime` for this block."""
        return rank.regime(self.r2.value, self.median.value, self.rank.value, high, few, gap)

    def numbers(self) -> dict[str, Any]:
        """What a result keeps: intervals of single values, only the values of lists."""
        lists = {key: [one.value for one in found] for key, found in vars(self).items() if isinstance(found, list)}
        return {key: vars(found) for key, found in vars(self).items() if not isinstance(found, list)} | lists


def view(
    kept: BlockCapture, ids: Int64[Tensor, "*shape"], counts: Sequence[int], bands: int = 4, heavy: float = 0.01
) -> View:
    """Look at a block from all sides.

    Args:
        kept: its capture, with a sample.
        ids: train token ids, for the frequency of tokens.
        counts: how many of the loudest features, and of the loudest directions, to leave out.
        bands: bands of token frequency with equal shares of `ids`.
        heavy: share of the held-out rows that counts as heaviest by leverage.

    Raises:
        InputError: no sample, too few rows, a band without held-out rows, a count or share that leaves nothing.
    """
    if not 0 < heavy < 1:
        raise InputError(f"the heaviest rows are a share of all between 0 and 1, got {heavy}")
    rows, train = pick(kept.sample, lambda sample: sample.test), pick(kept.sample, lambda sample: ~sample.test)
    found, test = rank.maps(kept.train), sum(kept.test)
    scored, whole = rank.scored(found, kept.test), scored_rows(found, rows)
    later = _part(rows, rows.position > 0)
    weight = rank.leverage(sum(kept.train), rows.x)
    top = weight >= weight.quantile(1 - heavy)
    heaviest = scored_rows(found, _part(rows, top))
    basis = rank.directions(train.y)
    band = rank.frequency_bands(ids, rows.token, bands)
    return View(
        r2=estimate(Score.r2, scored),
        median=estimate(Score.median, scored),
        rank=rank.output_rank(kept.outputs, rows),
        predicted=rank.prediction_rank(found, kept.test),
        outputs=rank.spread(kept.outputs.sxx),
        predictions=rank.spread(rank.predicted(found[0], test)),
        features=rank.without_loudest(scored, rank.loudest(kept.train), counts),
        directions=rank.without_loudest(scored_rows(found, rows, basis), torch.arange(basis.shape[1]), counts),
        bands=[estimate(Score.r2, scored_rows(found, _part(rows, band == i))) for i in range(bands)],
        without_first=estimate(_rise, scored_rows(found, later), whole),
        refitted=estimate(_rise, _by_own(_part(train, train.position > 0), later), _by_own(train, later)),
        heavy_variance=estimate(rank.share_of_variance, heaviest, whole),
        heavy_error=estimate(rank.share_of_error, heaviest, whole),
        without_heavy=estimate(_rise, scored_rows(found, _part(rows, ~top)), whole),
    )


def _rise(one: Score, other: Score) -> float:
    """By how much the first R² lies above the second."""
    return one.r2() - other.r2()


def _part(rows: Sample, mask: Tensor) -> Sample:
    return pick(rows, lambda _: mask)


def _by_own(train: Sample, rows: Sample) -> Scored:
    """Scores of `rows` by the map of sampled train rows; it is taken as given, so intervals see held-out folds only."""
    moments = Moments(train.x.shape[1], train.y.shape[1]).update(train.x, train.y)
    own: list[AffineMap] = rank.maps([moments], refit=False)
    return scored_rows(own, rows)
