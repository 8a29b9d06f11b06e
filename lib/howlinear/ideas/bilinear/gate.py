"""The bilinear branch as the paper seems to train it: every part end to end, a scalar gate on the branch.

ŷ = W x + b + g · U[(A x) ⊙ (B x)], from W and b at the closed form, U = 0 and g = 1: the start is exactly the affine
map. The paper (arXiv 2606.19379) reports that the gate closes on near-linear targets. But g, U, A and B only ever
appear as a product, so a gate may close while the others grow; the branch's contribution to the output is unambiguous.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from howlinear.errors import InputError
from howlinear.ideas.bilinear.probe import residual_rows, scores, squares_about_mean
from howlinear.instrument.capture import BlockCapture

BATCH = 256
CHECKS = 10  # evaluations on the fold kept apart
DECAY = 0.01


def end_to_end(kept: BlockCapture, rank: int = 16, rate: float = 1e-2, steps: int = 600) -> dict[str, float]:
    """Train W, b, A, B, U and g by AdamW, on inputs scaled to unit variance; cells of table `gates`, held out."""
    rows = residual_rows(kept)
    moments = sum(kept.train)
    d = moments.d_in
    if not 1 <= rank <= d or not rate > 0 or steps < CHECKS:
        raise InputError(
            f"rank={rank}, rate={rate}, steps={steps}: take a rank of 1 to {d}, a positive rate, "
            f"at least {CHECKS} steps"
        )
    # Scale inputs to variance 1 each, outputs to mean variance 1; the target is what the line leaves
    variance = moments.sxx.diagonal() / moments.n
    deviation = variance.sqrt().clamp_min(1e-30)
    centred = rows.x - moments.mean_x
    x = (centred / deviation).float()
    mean_variance = moments.syy.mean() / moments.n
    unit = mean_variance.sqrt().float()
    target = rows.e / unit
    used, apart = rows.split_train(0)

    generator = torch.Generator().manual_seed(0)
    model = _Gated(d, moments.d_out, rank, generator)
    optimiser = AdamW(model.parameters(), lr=rate, weight_decay=DECAY, fused=True)
    schedule = CosineAnnealingLR(optimiser, steps)  # the rate falls to 0
    best = deepcopy(model)  # the line, if no check does better on the fold kept apart
    least = target[apart].square().mean()
    for step in range(1, steps + 1):
        batch = used[torch.randint(len(used), (BATCH,), generator=generator)]
        loss = model.loss(x[batch], target[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % (steps // CHECKS) == 0:
            with torch.no_grad():
                loss = model.loss(x[apart], target[apart])
            if loss < least:
                best = deepcopy(model)
                least = loss

    with torch.no_grad():
        straight, product = best(x)
    line, poly = scores(rows, unit * (straight + product))
    added = unit.double() * product[rows.test]
    share = squares_about_mean(added) / squares_about_mean(rows.y[rows.test])
    gain = poly[0] - line[0]
    return {"gain": float(gain), "gate": best.gate.item(), "share": float(share)}


class _Gated(nn.Module):
    """Additions to the closed form: a linear part, which starts at 0, and g · U[(A x) ⊙ (B x)]."""

    def __init__(self, d: int, d_out: int, rank: int, generator: torch.Generator):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.readout = nn.Parameter(torch.zeros(rank, d_out))
        self.left = nn.Parameter(torch.randn(d, rank, generator=generator) / d**0.5)
        self.right = nn.Parameter(torch.randn(d, rank, generator=generator) / d**0.5)
        self.gate = nn.Parameter(torch.ones(()))

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d_out"], Float[Tensor, "n d_out"]]:
        """Return the change of the linear part, and the branch."""
        straight = x @ self.weight + self.bias
        products = (x @ self.left) * (x @ self.right)
        return straight, self.gate * (products @ self.readout)

    def loss(self, x: Float[Tensor, "n d"], target: Float[Tensor, "n d_out"]) -> Float[Tensor, ""]:
        """Return the mean squared error of the linear part and the branch together."""
        straight, product = self(x)
        return (target - (straight + product)).square().mean()
