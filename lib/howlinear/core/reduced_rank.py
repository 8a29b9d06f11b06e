"""Reduced-rank regression: the best affine map of every rank, from one factorisation (Izenman 1975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howlinear.core.ceilings import AffineMap, fit, refits
from howlinear.core.ceilings import r2 as r2_of
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.moments import Moments
from howlinear.errors import InputError


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
        """Number of parameters of the map: r (d_in + d_out) + d_out."""
        return self.down.numel() + self.up.numel() + self.bias.numel()

    def module(self) -> nn.Sequential:
        """Build the map as two float32 `Linear` layers."""
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
        directions: V, orthonormal output directions, (d_out, d_out), by descending variance that W explains in them.
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
        """Return the best map of a given rank, W V_r V_rᵀ.

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

    @property
    def about_train_mean(self) -> Float[Tensor, " ranks"]:
        """Held-out R² by rank about the train mean, as in arXiv 2606.19379, where rank 0 explains nothing."""
        # R²(0) = −n ‖ȳ' − ȳ‖² / Σ (y' − ȳ')², and about ȳ instead of ȳ' the denominator grows by that share
        return (self.r2 - self.r2[0]) / (1 - self.r2[0])

    def rank_reaching(self, share: float, about_train_mean: bool = False) -> int | None:
        """Find the least rank whose map reaches a share of the full map's R² (arXiv 2606.19379, "effective rank").

        min {k : R²(k) ≥ share · R²(full)}, both held out; None if the full map explains nothing, R²(full) ≤ 0.

        Args:
            share: share of the full R², above 0 and at most 1; the paper uses 0.90 and 0.95.
            about_train_mean: take both R² about the train mean, as the paper does, not about the held-out rows' mean.

        Raises:
            InputError: a share of 0 or below, or above 1.
        """
        if not 0 < share <= 1:
            raise InputError(f"a share of the full R² lies above 0 and is at most 1, got {share}")
        by_rank = self.about_train_mean if about_train_mean else self.r2
        full = by_rank[-1]
        if full <= 0:
            return None
        reaches = by_rank >= share * full
        return int(reaches.nonzero()[0])


def reduced_rank(train: Moments | Sequence[Moments], test: Moments | Sequence[Moments]) -> RankCurve:
    """Fit reduced-rank regressions of every rank from moments; one per document fold on both sides gives intervals.

    With W the least-squares map and V the eigenvectors of Wᵀ Sxx W in descending order, W V_r V_rᵀ has the least
    squared output error of all maps of rank r (Izenman 1975); truncating W itself ignores the inputs and does not. V is
    orthonormal, so each direction adds its own share of R², held out too, and one factorisation gives the whole curve.

    Raises:
        InputError: too few rows, constant inputs, or held-out outputs that are constant.
    """
    trains = [train] if isinstance(train, Moments) else list(train)
    tests = [test] if isinstance(test, Moments) else list(test)
    train = Moments.total(trains)
    test = Moments.total(tests)
    affine, inputs = fit(train)
    directions = _directions(affine, train)
    r2_of(affine, test)  # refuses outputs that are constant
    curve = _scores(affine, directions, train, test)
    low, high = None, None
    if len(trains) > 1 and len(tests) > 1:
        # refitted without each train fold, scored without each held-out fold
        refitted = []
        for refit, fewer in refits(trains, inputs):
            refitted.append(_scores(refit, _directions(refit, fewer), fewer, test))
        rescored = [_scores(affine, directions, train, fewer) for fewer in left_out(tests)]
        estimates = []
        for rank, value in enumerate(curve):
            without_train = [float(scores[rank]) for scores in refitted]
            without_test = [float(scores[rank]) for scores in rescored]
            estimates.append(Estimate.jackknife(float(value), without_train, without_test))
        low, high = torch.tensor([(each.low, each.high) for each in estimates], dtype=torch.float64).T
    return RankCurve(affine, directions, curve, low, high, (train.mean_x, train.mean_y))


def _directions(affine: AffineMap, train: Moments) -> Tensor:
    """Compute the output directions of a least-squares map, by descending variance explained in them."""
    # V: eigenvectors of Wᵀ Sxx W; `eigh` returns them ascending
    explained = affine.weight.T @ train.sxx @ affine.weight
    return torch.linalg.eigh(explained).eigenvectors.flip(1)


def _scores(affine: AffineMap, directions: Tensor, train: Moments, test: Moments) -> Tensor:
    """Compute R² on `test` by rank, shape (ranks,).

    Every map of the curve passes through the train means. About these, with W V = (w₁ w₂ …), rank r leaves the squared
    error Σ‖y − ȳ‖² − Σ_{k ≤ r} (2 w_kᵀ Sxy v_k − w_kᵀ Sxx w_k): each direction adds its own share.
    """
    # second moments of the held-out rows about the train means
    dx = test.mean_x - train.mean_x
    dy = test.mean_y - train.mean_y
    sxx = torch.addr(test.sxx, dx, dx, alpha=test.n)
    sxy = torch.addr(test.sxy, dx, dy, alpha=test.n)
    # W V, a column per direction
    into = affine.weight @ directions
    # w_kᵀ Sxy v_k and w_kᵀ Sxx w_k
    cross = ((sxy @ directions) * into).sum(0)
    explained = ((sxx @ into) * into).sum(0)
    gains = 2 * cross - explained
    # rank 0, the train mean, misses the held-out mean by dy in every row
    mean = -test.n * dy.square().sum()
    by_rank = torch.cat([mean[None], gains]).cumsum(0)
    ranks = min(affine.weight.shape) + 1
    return by_rank[:ranks] / test.syy.sum()
