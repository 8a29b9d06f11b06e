"""What one map keeps of a block: at every rank, and of the block's worth to the loss.

Reduced-rank regression (Izenman 1975) gives the best map of every rank from one factorisation. A rank-r map holds
r (d_in + d_out) numbers, fewer than the full map's d_in · d_out below half the width. The paper (arXiv 2606.19379)
stops at the full map, 8 times smaller than a GELU block; the curve says what lies beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit
from howlinear.core.ceilings import r2 as r2_of
from howlinear.core.estimates import Estimate, fold_means, jackknife, left_out
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.costs import swap_cost
from howlinear.instrument.perplexity import held_out_folds, losses
from howlinear.models.sites import sites
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Reduced:
    """x ↦ (x D) U + b, a map through a bottleneck of r features.

    Attributes:
        down: D, shape (d_in, r), float64.
        up: U, shape (r, d_out), float64.
        bias: b, shape (d_out,), float64.
    """

    down: Float[Tensor, "d_in r"]
    up: Float[Tensor, "r d_out"]
    bias: Float[Tensor, " d_out"]

    def __call__(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Apply the map in the dtype of `x`."""
        return x @ self.down.to(x) @ self.up.to(x) + self.bias.to(x)

    @property
    def parameters(self) -> int:
        """How many numbers the map holds: r (d_in + d_out) + d_out."""
        return self.down.numel() + self.up.numel() + self.bias.numel()

    def module(self) -> nn.Sequential:
        """The map as two Linears, float32."""
        first = nn.Linear(*self.down.shape, bias=False)
        second = nn.Linear(*self.up.shape)
        with torch.no_grad():
            first.weight.copy_(self.down.T)
            second.weight.copy_(self.up.T)
            second.bias.copy_(self.bias)
        return nn.Sequential(first, second).requires_grad_(False)


@dataclass(frozen=True)
class RankCurve:
    """The best map of every rank, from one factorisation.

    Attributes:
        map: the least-squares map W, the curve's end.
        directions: V, orthonormal output directions by the variance that W explains in them, falling; (d_out, d_out).
        r2: held-out R² by rank, shape (min(d_in, d_out) + 1,), float64; rank 0 is the train mean.
        r2_low: lower ends of the 95 % jackknife intervals; None without document folds.
        r2_high: upper ends.
    """

    map: AffineMap
    directions: Float[Tensor, "d_out d_out"]
    r2: Float[Tensor, " ranks"]
    r2_low: Float[Tensor, " ranks"] | None
    r2_high: Float[Tensor, " ranks"] | None
    _means: tuple[Tensor, Tensor] = field(repr=False)

    def at(self, rank: int) -> Reduced:
        """The best map of one rank: W V_r V_rᵀ.

        Raises:
            InputError: a rank below 1 or above the block's width.
        """
        if not 1 <= rank < len(self.r2):
            raise InputError(f"rank {rank} of a map of width {len(self.r2) - 1}: use 1 to {len(self.r2) - 1}")
        mean_x, mean_y = self._means
        leading = self.directions[:, :rank]  # V_r
        down = self.map.weight @ leading  # W V_r
        up = leading.T.contiguous()  # V_rᵀ
        return Reduced(down, up, mean_y - mean_x @ down @ up)


def reduced_rank(train: Moments | Sequence[Moments], test: Moments | Sequence[Moments]) -> RankCurve:
    """Reduced-rank regression of every rank.

    With W the least-squares map and V the eigenvectors of Wᵀ Sxx W, falling, W V_r V_rᵀ has the least squared output
    error of all maps of rank r (Izenman 1975); truncating W itself does not, as it knows nothing of the inputs. V is
    orthonormal, so each direction adds its own share of R², held out too, and one factorisation gives the whole curve.

    Args:
        train: moments of the rows to fit on, or one per document fold.
        test: moments of the held-out rows, or one per document fold; folds on both sides give the interval.

    Raises:
        InputError: too few rows, constant inputs, or held-out outputs that are constant.
    """
    trains = [train] if isinstance(train, Moments) else list(train)
    tests = [test] if isinstance(test, Moments) else list(test)
    train, test = sum(trains), sum(tests)
    affine, directions = _directions(train)
    r2_of(affine, test)  # refuses outputs that are constant
    curve = _scores(affine, directions, train, test)
    low, high = None, None
    if len(trains) > 1 and len(tests) > 1:
        low, high = _jackknifed(curve, trains, tests)
    return RankCurve(affine, directions, curve, low, high, (train.mean_x, train.mean_y))


def _directions(train: Moments) -> tuple[AffineMap, Tensor]:
    """The least-squares map, and its output directions by the variance explained in them, falling."""
    affine, _ = fit(train)
    # V: eigenvectors of Wᵀ Sxx W; `eigh` has them rising
    explained = affine.weight.T @ train.sxx @ affine.weight
    return affine, torch.linalg.eigh(explained).eigenvectors.flip(1)


def _scores(affine: AffineMap, directions: Tensor, train: Moments, test: Moments) -> Tensor:
    """R² on `test` by rank, shape (ranks,).

    Every map of the curve passes through the train means. About these, with W V = (w₁ w₂ …), rank r leaves the squared
    error Σ‖y − ȳ‖² − Σ_{k ≤ r} (2 w_kᵀ Sxy v_k − w_kᵀ Sxx w_k): each direction adds its own share.
    """
    # second moments of the held-out rows about the train means
    dx = test.mean_x - train.mean_x
    dy = test.mean_y - train.mean_y
    sxx = torch.addr(test.sxx, dx, dx, alpha=test.n)
    sxy = torch.addr(test.sxy, dx, dy, alpha=test.n)
    into = affine.weight @ directions  # W V, a column per direction
    gains = 2 * ((sxy @ directions) * into).sum(0) - ((sxx @ into) * into).sum(0)
    # rank 0, the train mean, misses the held-out mean by dy in every row
    mean = -test.n * dy.square().sum()
    explained = torch.cat([mean[None], gains]).cumsum(0)
    ranks = min(affine.weight.shape) + 1
    return explained[:ranks] / test.syy.sum()


def _jackknifed(curve: Tensor, trains: Sequence[Moments], tests: Sequence[Moments]) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of each rank's interval: refitted without each train fold, scored without each test fold."""
    train, test = sum(trains), sum(tests)
    refitted = [_scores(*_directions(fewer), fewer, test) for fewer in left_out(trains)]
    whole = _directions(train)
    rescored = [_scores(*whole, train, fewer) for fewer in left_out(tests)]
    ends = []
    for rank, value in enumerate(curve):
        without_train = [float(scores[rank]) for scores in refitted]
        without_test = [float(scores[rank]) for scores in rescored]
        ends.append(jackknife(float(value), without_train, without_test))
    low, high = torch.tensor(ends, dtype=torch.float64).T
    return low, high


def recovered(
    base: Float[Tensor, " n"],
    swapped: Float[Tensor, " n"],
    ablated: Float[Tensor, " n"],
    fold: Int64[Tensor, " n"] | None = None,
) -> Estimate | None:
    """Loss recovered: 1 − (L_swapped − L) / (L_ablated − L), in nats; 1 is lossless, 0 no better than a mean.

    Tells a block that is cheap to replace from one that does little: both have a small ΔPPL, only the first recovers.

    Args:
        base: loss of each sequence before, shape (n,), see `perplexity.losses`.
        swapped: the same with the map in the block's place.
        ablated: the same with its mean output in the block's place.
        fold: the document fold of each sequence, shape (n,); by default each is a document of its own.

    Returns:
        The share, with a jackknife over document folds; None where ablating costs nothing that the text can show
        (its interval reaches 0), as a share of nothing is undefined.

    Raises:
        InputError: fewer than two folds, or different numbers of sequences.
    """
    n = len(base)
    if n < 2 or not n == len(swapped) == len(ablated):
        raise InputError(
            f"a paired interval needs the same sequences three times, at least two sequences: got {n}, "
            f"{len(swapped)} and {len(ablated)}"
        )
    cost = (swapped - base).numpy()
    worth = (ablated - base).numpy()
    # the means without each fold in turn
    places = np.arange(n) if fold is None else fold.numpy()
    cost_without = fold_means(cost, places)
    worth_without = fold_means(worth, places)
    if Estimate.jackknife(float(worth.mean()), worth_without).low <= 0:
        return None
    share = 1 - float(cost.mean() / worth.mean())
    return Estimate.jackknife(share, 1 - cost_without / worth_without)


def ffn_parameters(model: PreTrainedModel, maps: Mapping[int, AffineMap | Reduced] | None = None) -> int:
    """How many numbers all feed-forward blocks hold together.

    Args:
        model: the model, whole.
        maps: block → the map in its place, if any.
    """
    held = {site.block: sum(parameter.numel() for parameter in site.parameters()) for site in sites(model)}
    for block, replacement in (maps or {}).items():
        if isinstance(replacement, AffineMap):
            held[block] = replacement.weight.numel() + replacement.bias.numel()
        else:
            held[block] = replacement.parameters
    return sum(held.values())


def share_of_block(curve: RankCurve, rank: int, own: float) -> float:
    """How many numbers a map of one rank holds, as a share of the block's own.

    Args:
        curve: of the block.
        rank: of the map; at the curve's end it is the full map, one matrix instead of two.
        own: numbers that the block holds.
    """
    d_in, d_out = curve.map.weight.shape
    matrices = d_in * d_out if rank == len(curve.r2) - 1 else rank * (d_in + d_out)
    return (matrices + d_out) / own


def first_middle_last(count: int) -> dict[int, str]:
    """The blocks whose thin maps are looked at, of `count` blocks, and how a figure names their places."""
    return {0: "first block", count // 2: "middle block", count - 1: "last block"}


def rank_curves(model: PreTrainedModel, curves: Mapping[int, RankCurve]) -> pd.DataFrame:
    """Held-out R² by rank, as far as a pair of thin matrices is smaller than the full one: up to half the width.

    Args:
        model: the model.
        curves: block → its curve, with intervals, of `first_middle_last` blocks.

    Returns:
        A row per block and rank: `block`, its `place`, `rank`, `share` of the block's numbers, `r2`, and its interval's
        ends `low` and `high`.
    """
    own, places = _own(model)
    rows = []
    for block, curve in curves.items():
        width = len(curve.r2) - 1
        for rank in range(1, width // 2 + 1):
            row = {"block": block, "place": places[block], "rank": rank, "share": share_of_block(curve, rank, own)}
            row |= {"r2": float(curve.r2[rank]), "low": float(curve.r2_low[rank]), "high": float(curve.r2_high[rank])}
            rows.append(row)
    return pd.DataFrame(rows)


def rank_costs(
    model: PreTrainedModel,
    curves: Mapping[int, RankCurve],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    parts: Iterable[int] = (16, 8, 4, 2, 1),
) -> pd.DataFrame:
    """What it costs to replace a block by the best map of some ranks.

    Args:
        model: the model; left as it was.
        curves: block → its curve, of `first_middle_last` blocks.
        text: rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.
        parts: which ranks: the width divided by each of these, at least 1.

    Returns:
        A row per block and rank: `block`, its `place`, `rank`, `share` of the block's numbers, `r2`, and what it
        costs, see `costs.cost`.
    """
    ids, _ = held_out_folds(text)
    base = losses(model, ids)
    own, places = _own(model)
    rows = []
    for block, curve in curves.items():
        width = len(curve.r2) - 1
        for rank in sorted({max(1, width // part) for part in parts}):
            replacement = curve.map if rank == width else curve.at(rank)
            row = {"block": block, "place": places[block], "rank": rank, "share": share_of_block(curve, rank, own)}
            row["r2"] = float(curve.r2[rank])
            rows.append(row | swap_cost(model, {block: replacement}, text, base))
    return pd.DataFrame(rows)


def _own(model: PreTrainedModel) -> tuple[float, dict[int, str]]:
    """How many numbers a block of the model holds, on the mean, and the places of its blocks."""
    count = len(sites(model))
    return ffn_parameters(model) / count, first_middle_last(count)
