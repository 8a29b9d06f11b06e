"""What the loss feels of a block's error: a prediction of swap costs from one backward pass.

Put r = y − (xW + b) for the error of a map, and g = ∂(Σ loss)/∂y for the gradient of a sequence's summed loss at the
block's output. Swapping adds −r at every token, so to second order, with the Fisher information in the place of the
Hessian and errors taken as independent between tokens,

    Δ loss per token ≈ −E[g·r] + ½ E[(g·r)²] ≈ ½ tr(E[g gᵀ] E[r rᵀ]).

The first term has no sign to rely on in a trained model; the last form asks for second moments alone, so it prices any
other map too. Empirical Fisher: gradients at the labels of the text (Kunstner, Balles & Hennig 2019 on its limits).
Our choice: the paper ranks blocks by R²_lin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.capture import hooked
from howlinear.ceilings import CONFIDENCE
from howlinear.errors import InputError
from howlinear.models import check_causal
from howlinear.sites import sites, width_of


@dataclass(frozen=True)
class Felt:
    """What one backward pass says of a block and its map.

    Attributes:
        metric: E[g gᵀ], the second moment of the loss gradient at the output, shape (d_out, d_out); nats²
            per squared unit of y.
        error: E[r rᵀ], the second moment of the map's error, shape (d_out, d_out).
        paired: ½ E[(g·r)²], nats per token: as `cost`, with g and r of the same token.
        slope: −E[g·r], nats per token: the first-order term.
        stream: variance of the residual stream after the block, summed over features.
    """

    metric: Float[Tensor, "d_out d_out"]
    error: Float[Tensor, "d_out d_out"]
    paired: float
    slope: float
    stream: float

    @property
    def cost(self) -> float:
        """½ tr(E[g gᵀ] E[r rᵀ]): the predicted cost of the swap, nats per token."""
        return float((self.metric * self.error).sum() / 2)

    @property
    def residual(self) -> float:
        """E‖r‖²: the same error, every direction weighed alike."""
        return float(self.error.trace())


def feel(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 8,
) -> dict[int, Felt]:
    """Predict what swapping each block for its map would cost, without swapping any.

    Args:
        model: the model; left as it was.
        maps: block → an `AffineMap`, or any function of float64 rows.
        ids: token ids of the text to fit on, shape (n, seq_len); one forward and one backward pass over them.
        batch_size: sequences in a pass.

    Returns:
        Block → `Felt`.

    Raises:
        InputError: no map, nothing to predict, a model that predicts no next token, or gradients that are not finite.
    """
    if not maps or not len(ids) or ids.shape[1] < 2:
        raise InputError(
            f"{len(maps)} maps and ids of shape {tuple(ids.shape)}: the loss is felt with at least one map and "
            "sequences of two tokens"
        )
    check_causal(model)
    found, sums = sites(model, list(maps)), _Sums(maps, width_of(model))
    parents = [model.get_submodule(site.name.rpartition(".")[0]) for site in found]
    streams = [
        parent.register_forward_hook(lambda _, __, output, block=site.block: sums.stream(block, output))
        for parent, site in zip(parents, found, strict=True)
    ]
    try:
        with torch.enable_grad(), hooked(found, sums.keep):
            for batch in ids.split(batch_size):
                batch = batch.to(model.device)
                logits = model(input_ids=batch, use_cache=False).logits[:, :-1].float()
                loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
                sums.add(torch.autograd.grad(loss, [sums.seen[site.block][2] for site in found]))
    finally:
        for hook in streams:
            hook.remove()
    return {block: sums.finish(block, ids[:, 1:].numel()) for block in maps}


class _Sums:
    """Running sums per block, float64; `seen` holds the batch under way."""

    def __init__(self, maps: Mapping[int, Callable[[Tensor], Tensor]], width: int):
        self.maps = maps
        self.seen: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.metric = {block: torch.zeros(width, width).double() for block in maps}
        self.error = {block: torch.zeros_like(metric) for block, metric in self.metric.items()}
        self.pairs = {block: torch.zeros(2).double() for block in maps}
        self.hidden: dict[int, list[Tensor]] = {block: [] for block in maps}

    def keep(self, site, x: Tensor, y: Tensor) -> None:
        """Hold a block's rows until the gradient comes; a frozen model's outputs start a graph of their own."""
        y = y if y.requires_grad else y.requires_grad_()
        self.seen[site.block] = (x.detach(), y.detach().clone(), y)  # Falcon adds attention to y in place

    def stream(self, block: int, output: Tensor | tuple) -> None:
        hidden = (output if isinstance(output, Tensor) else output[0]).detach().flatten(0, -2).double()
        self.hidden[block].append(torch.stack([hidden.sum(0), hidden.square().sum(0), torch.ones_like(hidden[0])]))
        self.hidden[block][-1][2] *= len(hidden)

    @torch.no_grad()
    def add(self, gradients: Sequence[Tensor]) -> None:
        for (block, (x, y, _)), gradient in zip(sorted(self.seen.items()), gradients, strict=True):
            g = gradient.flatten(0, -2).double().cpu()
            if not g.isfinite().all():
                raise InputError(f"the loss gradient at block {block} is not finite: this model overflows on this text")
            r = (y.double() - self.maps[block](x.double())).flatten(0, -2).cpu()
            self.metric[block].addmm_(g.T, g)
            self.error[block].addmm_(r.T, r)
            along = (g * r).sum(1)
            self.pairs[block] += torch.stack([along.square().sum(), along.sum()])

    def finish(self, block: int, predicted: int) -> Felt:
        total, squares, rows = torch.stack(self.hidden[block]).sum(0)
        square, along = (self.pairs[block] / predicted).tolist()
        return Felt(
            metric=self.metric[block] / predicted,
            error=self.error[block] / rows[0].cpu(),
            paired=square / 2,
            slope=-along,
            stream=float((squares / rows - (total / rows).square()).sum()),
        )


@dataclass(frozen=True)
class Agreement:
    """How a signal ranks what it should predict.

    Attributes:
        rho: Spearman's ρ, averaged over groups.
        low: lower end of its 95 % bootstrap interval.
        high: upper end.
        factor: typical ratio by which the signal misses, e to the median |log(signal / truth)|; 1 is exact. Only
            where the signal is in the truth's own units does it say anything.
    """

    rho: float
    low: float
    high: float
    factor: float


def agreement(signal: Sequence, truth: Sequence, draws: int = 999, seed: int = 0) -> Agreement:
    """Compare a signal with measured costs, group by group (a group: the blocks of one model).

    Args:
        signal: per group, the predictions.
        truth: per group, the measured costs, in the same order.
        draws: bootstrap draws, with replacement within each group (Efron's percentile interval).
        seed: of those draws.

    Raises:
        InputError: a group of fewer than four, sides of different lengths, or a group without any spread.
    """
    groups = [np.stack([np.asarray(a, float), np.asarray(b, float)]) for a, b in _paired(signal, truth)]
    generator = np.random.default_rng(seed)
    drawn = np.mean([_rho(_redrawn(group, draws, generator)) for group in groups], 0)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    pooled = np.concatenate(groups, 1)
    positive = pooled[:, (pooled > 0).all(0)]
    factor = float(np.exp(np.median(np.abs(np.log(positive[0] / positive[1]))))) if positive.size else np.inf
    rho = np.mean([_rho(group[:, None])[0] for group in groups])
    return Agreement(float(rho), float(low), float(high), factor)


def compare(signals: pd.DataFrame, truth: pd.Series, seed: int = 0) -> pd.DataFrame:
    """The `Agreement` of every signal with the truth, a row per signal.

    Args:
        signals: a column per signal; the first level of the index says which group a row belongs to.
        truth: the measured costs, with the same index.
        seed: of the bootstrap draws.
    """
    names = signals.index.get_level_values(0)
    costs = [truth[names == name].to_numpy() for name in names.unique()]
    rows = {
        s: agreement([signals.loc[name, s].to_numpy() for name in names.unique()], costs, seed=seed) for s in signals
    }
    return pd.DataFrame(rows.values(), index=list(rows))


def _paired(signal: Sequence, truth: Sequence) -> list[tuple]:
    if not signal or len(signal) != len(truth):
        raise InputError(f"{len(signal)} groups of predictions for {len(truth)} of costs: give them in pairs")
    for i, (a, b) in enumerate(zip(signal, truth, strict=True)):
        if len(a) != len(b) or len(a) < 4:
            raise InputError(f"group {i}: {len(a)} predictions for {len(b)} costs; ranks need at least four pairs")
        if np.ptp(a) == 0 or np.ptp(b) == 0:
            raise InputError(f"group {i}: all values are the same, so there is no rank to compare")
    return list(zip(signal, truth, strict=True))


def _redrawn(group: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Columns drawn with replacement, shape (2, draws, n); a draw of one value alone has no rank and is drawn again."""
    n = group.shape[1]
    drawn = group[:, generator.integers(n, size=(draws, n))]
    while (flat := (np.ptp(drawn, axis=2) == 0).any(0)).any():
        drawn[:, flat] = group[:, generator.integers(n, size=(flat.sum(), n))]
    return drawn


def _rho(pairs: np.ndarray) -> np.ndarray:
    """Spearman's ρ of each draw, from shape (2, draws, n): Pearson's of the ranks."""
    ranks = rankdata(pairs, axis=2)
    ranks -= ranks.mean(2, keepdims=True)
    return (ranks[0] * ranks[1]).sum(1) / np.sqrt(np.square(ranks).sum(2).prod(0))
