"""What carries a block's R²_lin, by several measures at once; the paper's two regimes; tidy tables of many blocks.

The paper (arXiv 2606.19379, figure 4) divides blocks of high R²_lin by the effective rank of their outputs and by how
far the median feature's R² lies below the pooled one: "broad" blocks, and blocks concentrated in an outlier. What it
calls effective rank is the least rank whose map reaches 90 or 95 % of the full R²; we report it next to ours, the
participation ratio of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear.core.ceilings import leverage
from howlinear.core.fold_maps import fit_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.core.reduced_rank import reduced_rank
from howlinear.errors import InputError
from howlinear.ideas.rank import scores
from howlinear.ideas.rank.rows import frequency_bands
from howlinear.ideas.rank.scores import Score, Scored, directions, estimate, rise, score_moments, score_rows
from howlinear.ideas.rank.spread import output_rank, prediction_covariance, prediction_rank, spread
from howlinear.instrument.capture import BlockCapture, Sample


@dataclass(frozen=True)
class RankView:
    """What carries the R²_lin of a block; R² is always of the map fitted on all train rows unless said otherwise.

    Directions, bands and the rank's interval are of sampled rows.
    """

    r2: Estimate  # pooled over features
    median: Estimate  # of single features' R²
    rank: Estimate  # effective rank of the held-out outputs
    features: list[Estimate]  # R² without the k loudest output features, per k
    directions: list[Estimate]  # R² without the k loudest output directions, per k
    bands: list[Estimate]  # R² within each band of token frequency about the band's own mean, frequent first
    columns: dict[str, float | None]  # the block's cells in table `blocks`, but for its regime

    def regime(self, high: float = 0.9, few: float = 2.0, gap: float = 0.25) -> str:
        """Name the block's regime among the paper's two; the thresholds are our choice, since the paper gives none."""
        if self.r2.value < high:
            return "below"
        low_rank = self.rank.value <= few
        median_far_below = self.r2.value - self.median.value >= gap
        if low_rank and median_far_below:
            return "concentrated"
        if low_rank or median_far_below:
            return "mixed"  # the two signs disagree
        return "broad"


def measure_block(
    block: BlockCapture, ids: Int64[Tensor, "*shape"], counts: Sequence[int], bands: int = 4, heavy: float = 0.01
) -> RankView:
    """Measure what carries a block's R²_lin: features, directions, tokens, and rows."""
    if not 0 < heavy < 1:
        raise InputError(f"the heaviest rows are a share of all between 0 and 1, got {heavy}")
    sample = block.rows()
    train_rows = sample.select(~sample.test)
    test_rows = sample.select(sample.test)

    # One map for everything, and its refits without each train fold.
    maps = fit_folds(block.train)
    by_moments = score_moments(maps, block.test)
    curve = reduced_rank(sum(block.train), sum(block.test))
    by_rows = score_rows(maps, test_rows)

    # Directions: the eigenvectors of sampled train outputs.
    basis = directions(train_rows.y)
    loudest_directions = torch.arange(basis.shape[1])
    fewer = [count for count in sorted(counts) if count < len(basis)]  # of a narrow model

    # Tokens: R² within each band of frequency.
    band = frequency_bands(ids, test_rows.token, bands)
    in_bands = [score_rows(maps, test_rows.select(band == number)) for number in range(bands)]

    # Position 0: left out of the score, and left out of the fit.
    later_train = train_rows.select(train_rows.position > 0)
    later_test = test_rows.select(test_rows.position > 0)
    fitted_on_later = _score_by_own_map(later_train, later_test)
    fitted_on_all = _score_by_own_map(train_rows, later_test)

    # Rows of highest leverage.
    weight = leverage(sum(block.train), test_rows.x)
    is_heavy = weight >= weight.quantile(1 - heavy)
    heaviest = score_rows(maps, test_rows.select(is_heavy))
    lighter = score_rows(maps, test_rows.select(~is_heavy))

    r2 = estimate(Score.r2, by_moments)
    median = estimate(Score.median, by_moments)
    rank = output_rank(block.outputs, test_rows)
    outputs = spread(block.outputs.sxx)
    predictions = spread(prediction_covariance(maps.whole, sum(block.test)))
    return RankView(
        r2=r2,
        median=median,
        rank=rank,
        features=scores.without_loudest(by_moments, scores.loudest(block.train), fewer),
        directions=scores.without_loudest(score_rows(maps, test_rows, basis), loudest_directions, fewer),
        bands=[estimate(Score.r2, in_band) for in_band in in_bands],
        columns={
            **r2.columns("r2"),
            **median.columns("median_r2"),
            "median_r2_lower": float(by_moments.whole.per_feature.nanmedian()),  # of two middle values the lower
            **rank.columns("effective_rank"),
            **prediction_rank(maps, block.test).columns("predicted_rank"),
            "rank_90": curve.rank_reaching(0.90),
            "rank_95": curve.rank_reaching(0.95),
            "rank_90_train_mean": curve.rank_reaching(0.90, about_train_mean=True),
            "rank_95_train_mean": curve.rank_reaching(0.95, about_train_mean=True),
            "entropy_rank": outputs.entropy_rank,
            "predicted_entropy_rank": predictions.entropy_rank,
            "first_share": outputs.first,
            "predicted_first_share": predictions.first,
            **estimate(rise, lighter, by_rows).columns("rise_without_heaviest"),
            **estimate(rise, score_rows(maps, later_test), by_rows).columns("rise_without_first"),
            **estimate(rise, fitted_on_later, fitted_on_all).columns("rise_refitted_without_first"),
            **estimate(scores.share_of_variance, heaviest, by_rows).columns("heavy_variance"),
            **estimate(scores.share_of_error, heaviest, by_rows).columns("heavy_error"),
        },
    )


def _score_by_own_map(train: Sample, rows: Sample) -> Scored:
    """Score `rows` by the map of sampled train rows, taken as given, so that intervals cover held-out folds only."""
    moments = Moments(train.x.shape[1], train.y.shape[1]).update(train.x, train.y)
    return score_rows(fit_folds([moments], refit=False), rows)


Views = Mapping[tuple[str, int], RankView]
"""(model, block) → what was seen of the block."""


def block_table(views: Views, high: float = 0.9, few: float = 2.0, gap: float = 0.25) -> pd.DataFrame:
    """Make table `blocks` of the results without `band_shape`: a row per block, the regime by `regime`'s thresholds."""
    rows = []
    for (model, block), seen in views.items():
        rows.append({"model": model, "block": block, **seen.columns, "regime": seen.regime(high, few, gap)})
    ranks = ["rank_90", "rank_95", "rank_90_train_mean", "rank_95_train_mean"]
    return pd.DataFrame(rows).astype(dict.fromkeys(ranks, "Int64"))


def loudest_table(views: Views, counts: Sequence[int]) -> pd.DataFrame:
    """Tabulate R² without the loudest features, or directions, a row for each of `counts` left out."""
    rows = []
    for (model, block), seen in views.items():
        for axis in ("features", "directions"):
            for count, rest in zip(sorted(counts), getattr(seen, axis), strict=False):  # a narrow model has fewer
                rows.append({"model": model, "block": block, "axis": axis, "left_out": count, "r2": rest.value})
    return pd.DataFrame(rows)


def band_table(views: Views) -> pd.DataFrame:
    """R² within each band of token frequency, with its ends: columns model, block, band (1 the most frequent), r2."""
    rows = []
    for (model, block), seen in views.items():
        for number, within in enumerate(seen.bands, start=1):
            rows.append({"model": model, "block": block, "band": number, **within.columns("r2")})
    return pd.DataFrame(rows)


def band_shape(r2: Sequence[float]) -> str:
    """Describe how R² changes over the bands: "falls", "rises", one and "then" the other, or "goes up and down"."""
    turns = []
    for before, after in pairwise(r2):
        way = "rises" if after > before else "falls"
        if turns[-1:] != [way]:
            turns.append(way)
    return ", then ".join(turns) if len(turns) < 3 else "goes up and down"


def with_band_shapes(blocks: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Add column `band_shape`, how each block's R² changes over the bands."""
    shapes = bands.groupby(["model", "block"])["r2"].agg(lambda r2: band_shape(list(r2))).rename("band_shape")
    return blocks.join(shapes, on=["model", "block"])


def single_outputs(block: BlockCapture) -> pd.DataFrame:
    """Compute R² of every single output of a block and its `share` of their variance, on sampled held-out rows."""
    sample = block.rows()
    test_rows = sample.select(sample.test)
    maps = fit_folds(block.train, refit=False)
    # Directions are those of the sampled train outputs, so each is a mixture of features, and the pooled R² is the
    # same. Outputs that do not vary are left out.
    bases = {"features": None, "directions": directions(sample.y[~sample.test])}
    parts = []
    for axis, basis in bases.items():
        score = score_rows(maps, test_rows, basis).whole
        share = score.squares / score.squares.sum()
        r2 = 1 - score.residual / score.squares
        part = pd.DataFrame({"share": share, "r2": r2})
        parts.append(part[part["share"] > 0].assign(axis=axis))
    return pd.concat(parts, ignore_index=True)


def verdict_table(blocks: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Make table `verdicts`: what a model's blocks say about the paper's regimes, which would make `rho` negative."""
    rows = []
    for model, of_model in blocks.groupby("model", sort=False):
        near_linear = of_model[of_model["regime"] != "below"]
        gap = of_model["r2"] - of_model["median_r2"]
        means = bands[bands["model"] == model].groupby("band")["r2"].mean()
        rows.append(
            {
                "model": model,
                "verdict": _verdict(set(near_linear["regime"])),
                "rho": gap.corr(of_model["effective_rank"], method="spearman"),
                "band_shape": band_shape(list(means)),
            }
        )
    return pd.DataFrame(rows)


def _verdict(regimes: set[str]) -> str:
    """Say in words which regimes the near-linear blocks of a model are in."""
    if not regimes:
        return "no near-linear block"
    if "mixed" in regimes:
        return "signs disagree"
    if regimes == {"broad", "concentrated"}:
        return "both regimes"
    return f"only {regimes.pop()}"


def reduced_table(blocks: pd.DataFrame) -> pd.DataFrame:
    """Tabulate how many directions each model's maps need, by the paper's measure and by ours, a row per model."""
    by_model = blocks.astype({"rank_90": float, "rank_95": float}).groupby("model", sort=False)
    return pd.DataFrame(
        {
            "for 90 %": by_model["rank_90"].median(),
            "for 95 %": by_model["rank_95"].median(),
            "predicted": by_model["predicted_rank"].median(),
            "outputs": by_model["effective_rank"].median(),
            "lowest for 90 %": by_model["rank_90"].min(),
            "highest for 90 %": by_model["rank_90"].max(),
            "ρ with R²": by_model.apply(lambda own: own["rank_90"].corr(own["r2"], method="spearman")),
        }
    )


def carrier_table(blocks: pd.DataFrame, rest: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Average over blocks R² without the loudest outputs, on frequent and rare tokens, and its rise without rows."""
    most = rest["left_out"].max()
    fewest = rest[rest["left_out"] == most]
    without = {axis: fewest[fewest["axis"] == axis] for axis in ("features", "directions")}
    means = {
        "R²": (blocks, "r2"),
        f"R² without {most} features": (without["features"], "r2"),
        f"R² without {most} directions": (without["directions"], "r2"),
        "R² on frequent tokens": (bands[bands["band"] == 1], "r2"),
        "R² on rare tokens": (bands[bands["band"] == bands["band"].max()], "r2"),
        "rise without heaviest rows": (blocks, "rise_without_heaviest"),
        "rise without position 0": (blocks, "rise_without_first"),
    }
    return pd.DataFrame(
        {words: table.groupby("model", sort=False)[name].mean() for words, (table, name) in means.items()}
    )


def certainty_table(blocks: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Count, per model, the blocks in which two intervals lie apart; `bands` must have the ends of its intervals."""
    by_block = bands.set_index(["model", "block"])
    frequent, rare = (by_block[by_block["band"] == band] for band in (1, by_block["band"].max()))
    ranks = blocks.set_index(["model", "block"])
    sure = {
        "frequent above rare": frequent["r2_low"] > rare["r2_high"],
        "rare above frequent": rare["r2_low"] > frequent["r2_high"],
        "predictions narrower": ranks["predicted_rank_high"] < ranks["effective_rank_low"],
    }
    return pd.DataFrame(sure).groupby("model", sort=False).sum()
