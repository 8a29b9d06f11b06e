"""The bilinear branch as the paper seems to train it: every part end to end, a scalar gate on the branch.

ŷ = W x + b + g · U[(A x) ⊙ (B x)], from W and b at the closed form, U = 0 and g = 1: the start is exactly the affine
map. The paper (arXiv 2606.19379) reports that the gate closes on near-linear targets. But g, U, A and B only ever
appear as a product, so a gate may close while the others grow; what the branch adds to the output cannot hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from howlinear.bilinear import residual_rows, scores
from howlinear.capture import BlockCapture
from howlinear.errors import InputError

BATCH = 256
CHECKS = 10  # how often the fold kept apart is asked


@dataclass(frozen=True)
class EndToEnd:
    """A branch trained end to end, on the held-out rows of the sample.

    Attributes:
        gain: R² with the branch, minus that of the closed-form map.
        gate: g where training stopped; it starts at 1.
        share: variance of what the branch adds, over the variance of the output; it starts at 0.
        r2_lin: R²_lin on the same rows.
    """

    gain: float
    gate: float
    share: float
    r2_lin: float


def end_to_end(
    kept: BlockCapture, rank: int = 16, rate: float = 1e-2, steps: int = 600, decay: float = 0.01, seed: int = 0
) -> EndToEnd:
    """Train W, b, A, B, U and g by AdamW, on inputs scaled to unit variance, the rate falling to 0 as a cosine.

    Args:
        kept: a captured block with a sample.
        rank: number of products of two inputs.
        rate: the learning rate to start from, for outputs scaled to a mean variance of 1.
        steps: batches of `BATCH` rows.
        decay: AdamW's decay: of W and b towards the closed form, of the others towards 0.
        seed: of A, B, the batches, and the train fold that decides where to stop.

    Raises:
        InputError: no sample, or a rank, rate or number of steps that cannot be.
    """
    rows, moments = residual_rows(kept), sum(kept.train)
    d, d_out = moments.d_in, moments.d_out
    if not 1 <= rank <= d or not rate > 0 or steps < CHECKS:
        raise InputError(
            f"rank={rank}, rate={rate}, steps={steps}: take a rank of 1 to {d}, a positive rate, "
            f"at least {CHECKS} steps"
        )
    spread = (moments.sxx.diagonal() / moments.n).sqrt().clamp_min(1e-30)
    unit = (moments.syy.mean() / moments.n).sqrt().float()
    x, target = ((kept.sample.x - moments.mean_x) / spread).float(), rows.e / unit
    generator = torch.Generator().manual_seed(seed)
    folds = rows.fold[~rows.test].unique()
    apart = ~rows.test & (rows.fold == folds[seed % len(folds)])
    used = (~rows.test & ~apart).nonzero()[:, 0]
    factors = [torch.randn(d, rank, generator=generator) / d**0.5 for _ in "AB"]
    zeros = [torch.zeros(shape) for shape in ((d, d_out), (d_out,), (rank, d_out))]
    parts = [part.requires_grad_() for part in (*zeros, *factors, torch.ones(()))]
    optimiser = AdamW(parts, lr=rate, weight_decay=decay, fused=True)
    schedule = CosineAnnealingLR(optimiser, steps)
    best, least = [part.detach().clone() for part in parts], target[apart].square().mean()
    for step in range(1, steps + 1):
        batch = used[torch.randint(len(used), (BATCH,), generator=generator)]
        loss = (target[batch] - sum(_added(x[batch], *parts))).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % (steps // CHECKS) == 0:
            with torch.no_grad():
                loss = (target[apart] - sum(_added(x[apart], *parts))).square().mean()
            if loss < least:
                best, least = [part.detach().clone() for part in parts], loss
    straight, product = _added(x, *best)
    line, poly = scores(rows, unit * (straight + product))
    y, product = rows.y[rows.test].double(), unit.double() * product[rows.test]
    share = (product - product.mean(0)).square().sum() / (y - y.mean(0)).square().sum()
    return EndToEnd(float(poly[0] - line[0]), float(best[-1]), float(share), float(line[0]))


def _added(
    x: Float[Tensor, "n d"],
    weight: Float[Tensor, "d d_out"],
    bias: Float[Tensor, " d_out"],
    readout: Float[Tensor, "rank d_out"],
    left: Float[Tensor, "d rank"],
    right: Float[Tensor, "d rank"],
    gate: Float[Tensor, ""],
) -> tuple[Float[Tensor, "n d_out"], Float[Tensor, "n d_out"]]:
    """What has moved of the straight part, and the branch."""
    return x @ weight + bias, gate * (((x @ left) * (x @ right)) @ readout)
