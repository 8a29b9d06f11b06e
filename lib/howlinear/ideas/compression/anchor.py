"""Readouts fitted once more, block after block, so that a smaller model's residual stream stays near the whole one's.

Own units (`prune`) fits every block as if all others were whole. In the smaller model they are not: a block reads
another stream, and what the blocks before it have lost stays lost. So, from the first block to the last, with s the
whole model's stream behind a layer, ŝ the smaller model's as it is by now, at the same tokens, and h the units that
stay, ::

    r = s − ŝ,    B = argmin Σ w ‖r − h B‖² + ridge,

and B is added to the block's readout. A block gives back what it has lost itself, as far as its units can tell it on
the inputs that they really get, and what those before it have lost.

How strong a ridge keeps B near 0 is chosen block by block: B is fitted on one half of the text, and judged on the other
in the metric of the loss. Where no B costs less there than none, the block stays as it is.

The other target that suggests itself, each block's own output in the whole model, leaves lost what is lost: each
block strives for what it would have written to a stream that is no longer there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.ideas.compression.units import Stakes, UnitMoments, covariance_of, root_of, with_ridge
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.layers import writes_to_stream
from howlinear.models.layerwise import Layerwise, layer_number
from howlinear.models.units import affine_of, unit_layers, units_hooked, write

RIDGES = (1e-2, 0.3, 1.0, 3.0)
"""What may be added to the variance of every unit, as a share of it."""

BATCH = 8  # sequences at a time


class Regression:
    """Weighted second moments of a block's units [h, 1], and with what is missing, r, in two halves of the text.

    Attributes:
        units: of [h, 1], in halves.
        cross: Σ w [h, 1]ᵀ r of each half, shape (k + 1, d), float64.
    """

    def __init__(self, units: int, width: int):
        """Start from no rows."""
        self.units = UnitMoments(units, halves=2)
        self.cross = [torch.zeros(units + 1, width, dtype=torch.float64) for _ in range(2)]

    def update(self, h: Float[Tensor, "n k"], r: Float[Tensor, "n d"], weight: Float[Tensor, " n"], half: int) -> None:
        """Add rows to a half, each with its weight."""
        self.units.update(h, weight, half)
        weighted = weight[:, None] * r
        self.cross[half][:-1] += h.double().T @ weighted
        self.cross[half][-1] += weighted.sum(0)

    def fitted(self, metric: Float[Tensor, "d d"], centred: bool) -> Float[Tensor, "k_and_1 d"] | None:
        """What is to be added to the readout of [h, 1], shape (k + 1, d).

        None where the other half gains by no ridge, or where a half has no rows.

        Args:
            metric: M, what errors cost.
            centred: whether the readout has a constant; its row is 0 otherwise.
        """
        if not all(half[-1, -1] > 0 for half in self.units.halves):
            return None
        first, second = (
            (moments / moments[-1, -1], cross / moments[-1, -1])
            for moments, cross in zip(self.units.halves, self.cross, strict=True)
        )
        root = root_of(metric)
        costs = torch.zeros(len(RIDGES), dtype=torch.float64)
        for (moments, cross), (judged, missing) in ((first, second), (second, first)):
            for place, ridge in enumerate(RIDGES):
                added = ridge_regression(moments, cross @ root, ridge, centred)
                # E‖(r − [h, 1] B) root‖² − E‖r root‖²
                costs[place] += ((judged @ added - 2 * missing @ root) * added).sum()
        best = int(costs.argmin())
        if costs[best] >= 0:
            return None
        # all rows are twice as many as those of a half, and take half of its ridge
        of_all = self.units.second
        weights = of_all[-1, -1]
        return ridge_regression(of_all / weights, sum(self.cross) / weights, RIDGES[best] / 2, centred)


def ridge_regression(
    second: Float[Tensor, "k_and_1 k_and_1"], cross: Float[Tensor, "k_and_1 d"], ridge: float, centred: bool
) -> Float[Tensor, "k_and_1 d"]:
    """B of the least E‖r − [h, 1] B‖² plus a ridge on the rows of h.

    Args:
        second: E [h, 1] [h, 1]ᵀ, shape (k + 1, k + 1).
        cross: E [h, 1]ᵀ r, shape (k + 1, d).
        ridge: what is added to the variance of every unit, as a share of it.
        centred: whether there is a constant; its row of B is 0 otherwise.
    """
    mean, mean_missing = second[-1, :-1], cross[-1]
    towards = cross[:-1]
    if centred:
        towards = towards.addr(mean, mean_missing, alpha=-1)
    factor = torch.linalg.cholesky(with_ridge(covariance_of(second, centred), ridge))
    change = torch.cholesky_solve(towards, factor)
    constant = mean_missing - mean @ change if centred else torch.zeros_like(mean_missing)
    return torch.cat([change, constant[None]])


@torch.no_grad()
def anchor(
    model: PreTrainedModel,
    smaller: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    costs: Mapping[int, Stakes],
    own_outputs: bool = False,
    progress: bool = False,
) -> None:
    """Fit the readouts of a smaller model once more, block after block, each on what those before it now give.

    Both models move layer by layer through the text. Behind each layer all rows are there: its readout is fitted, and
    the smaller model's streams go on with what the new readout gives. A family that norms what its FFNs write
    (`layers.writes_to_stream`) stays as it is: what a readout adds there is not what the stream gets.

    Args:
        model: the whole model; left as it was.
        smaller: a copy with fewer hidden units; its readouts change.
        ids: token ids to fit on, shape (n, seq_len).
        costs: block → what errors cost there.
        own_outputs: towards each block's own output in the whole model, and not towards the stream.
        progress: show a bar.
    """
    if not writes_to_stream(model):
        return
    batches = [of_half.split(BATCH) if len(of_half) else () for of_half in ids.tensor_split(2)]
    half_of = [half for half, of_half in enumerate(batches) for _ in of_half]
    whole, small = (Layerwise(each, [*batches[0], *batches[1]]) for each in (model, smaller))
    site_of = {layer_number(site): site for site in sites(smaller)}
    for number in tqdm(range(len(small.layers)), disable=not progress, unit="block"):
        if number not in site_of:
            whole.advance()
            small.advance()
            continue
        hidden: list[Tensor] = []
        written: list[Tensor] = []
        targets: list[Tensor] = []
        site = site_of[number]
        with units_hooked(smaller, [site], _keep(hidden)), hooked([site], _keep(written)):
            small.advance()
        with hooked(sites(model, [site.block]), _keep(targets)):
            whole.advance()
        if not own_outputs:
            written, targets = small.streams, whole.streams

        layer = unit_layers(smaller, site)[-1]
        regression = Regression(hidden[0].shape[-1], targets[0].shape[-1])
        for h, target, now, half in zip(hidden, targets, written, half_of, strict=True):
            r = (target - now).flatten(0, -2).double().cpu()
            regression.update(h.flatten(0, -2).cpu(), r, costs[site.block].weight.repeat(len(h)), half)
        added = regression.fitted(costs[site.block].metric, centred=layer.bias is not None)
        if added is None:
            continue
        before = affine_of(layer)
        write(layer, AffineMap(before.weight + added[:-1], before.bias + added[-1]))
        for stream, h in zip(small.streams, hidden, strict=True):
            stream += h @ added[:-1].to(h) + added[-1].to(h)


def _keep(rows: list[Tensor]) -> Callable[..., None]:
    """A listener that appends the last of what it hears to a list."""

    def keep(*heard: Site | Tensor) -> None:
        rows.append(heard[-1].clone())

    return keep
