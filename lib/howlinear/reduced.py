"""What one map keeps of a block: at every rank, and of the block's worth to the loss.

Reduced-rank regression (Izenman 1975) gives the best map of every rank from one factorisation. A rank-r map holds
r (d_in + d_out) numbers, fewer than the full map's d_in · d_out below half the width. The paper (arXiv 2606.19379)
stops at the full map, 8 times smaller than a GELU block; the curve says what lies beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.ceilings import AffineMap, fit, jackknife, left_out
from howlinear.ceilings import r2 as r2_of
from howlinear.errors import InputError
from howlinear.models import sites
from howlinear.moments import Moments


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
        first, second = nn.Linear(*self.down.shape, bias=False), nn.Linear(*self.up.shape)
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
        kept = self.directions[:, :rank]
        down = self.map.weight @ kept
        return Reduced(down, kept.T.contiguous(), mean_y - mean_x @ down @ kept.T)


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
    trains, tests = ([side] if isinstance(side, Moments) else list(side) for side in (train, test))
    train, test = sum(trains), sum(tests)
    found = _directions(train)
    r2_of(found[0], test)  # refuses outputs that are constant
    r2, low, high = _scores(*found, train, test), None, None
    if len(trains) > 1 and len(tests) > 1:
        refitted = np.stack([_scores(*_directions(moments), moments, test) for moments in left_out(trains)])
        rescored = np.stack([_scores(*found, train, moments) for moments in left_out(tests)])
        ends = [jackknife(float(r2[rank]), refitted[:, rank], rescored[:, rank]) for rank in range(len(r2))]
        low, high = torch.tensor(ends, dtype=torch.float64).T
    return RankCurve(*found, r2, low, high, (train.mean_x, train.mean_y))


def _directions(train: Moments) -> tuple[AffineMap, Tensor]:
    """The least-squares map, and its output directions by the variance explained in them, falling."""
    affine, _ = fit(train)
    return affine, torch.linalg.eigh(affine.weight.T @ train.sxx @ affine.weight).eigenvectors.flip(1)


def _scores(affine: AffineMap, directions: Tensor, train: Moments, test: Moments) -> Tensor:
    """R² on `test` by rank, from second moments about the train means: what every map of the curve passes through."""
    dx, dy = test.mean_x - train.mean_x, test.mean_y - train.mean_y
    sxx, sxy = torch.addr(test.sxx, dx, dx, alpha=test.n), torch.addr(test.sxy, dx, dy, alpha=test.n)
    into = affine.weight @ directions
    gains = 2 * ((sxy @ directions) * into).sum(0) - ((sxx @ into) * into).sum(0)
    gains = torch.cat([-test.n * dy.square().sum()[None], gains]).cumsum(0)
    return gains[: min(affine.weight.shape) + 1] / test.syy.sum()


@dataclass(frozen=True)
class Recovered:
    """Share of a block's worth that its map keeps, with a 95 % interval: 1 is lossless, 0 a mean's."""

    share: float
    low: float
    high: float


def recovered(
    base: Float[Tensor, " n"], swapped: Float[Tensor, " n"], ablated: Float[Tensor, " n"]
) -> Recovered | None:
    """Loss recovered: 1 − (L_swapped − L) / (L_ablated − L), in nats.

    Tells a block that is cheap to replace from one that does little: both have a small ΔPPL, only the first recovers.

    Args:
        base: loss of each sequence before, shape (n,), see `perplexity.losses`.
        swapped: the same with the map in the block's place.
        ablated: the same with its mean output in the block's place.

    Returns:
        The share with a delete-one-sequence jackknife; None where ablating costs nothing that the sequences can show
        (its interval reaches 0), as a share of nothing is undefined.

    Raises:
        InputError: fewer than two sequences, or different numbers of them.
    """
    if len(base) < 2 or not len(base) == len(swapped) == len(ablated):
        raise InputError(
            f"a paired interval needs the same sequences three times, at least two sequences: got {len(base)}, "
            f"{len(swapped)} and {len(ablated)}"
        )
    cost, worth = (swapped - base).numpy(), (ablated - base).numpy()
    n = len(base)
    without = [(side.sum() - side) / (n - 1) for side in (cost, worth)]
    if jackknife(worth.mean(), without[1])[0] <= 0:
        return None
    share = 1 - cost.mean() / worth.mean()
    return Recovered(float(share), *jackknife(share, 1 - without[0] / without[1]))


def ffn_parameters(model: PreTrainedModel, maps: Mapping[int, AffineMap | Reduced] | None = None) -> int:
    """How many numbers all feed-forward blocks hold together.

    Args:
        model: the model, whole.
        maps: block → the map in its place, if any.
    """
    maps = maps or {}
    held = {site.block: sum(p.numel() for p in site.parameters()) for site in sites(model)}
    for block, found in maps.items():
        affine = isinstance(found, AffineMap)
        held[block] = found.weight.numel() + found.bias.numel() if affine else found.parameters
    return sum(held.values())
