# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import numpy as np
import torch

import howlinear as hl
from howlinear.core.reduced_rank import reduced_rank
from howlinear.ideas.compression.ranking import recovered
from howlinear.ideas.compression.signals import price
from howlinear.instrument.perplexity import losses
from howlinear.notebook.run import start

run = start("06_compression", profile)
first = next(iter(run.models))
model = run.model(first)
stored = run.capture(first)
held = stored.rows.ids[stored.rows.test]
fitted = stored.rows.ids[~stored.rows.test]
final = max(stored.blocks)
kept = stored.blocks[final]
train = sum(kept.train)
curve = reduced_rank(train, sum(kept.test))
d = len(curve.map.bias)
# under the notebook's names
models, captures, held_out, curves = {first: model}, {first: stored}, {first: held}, {first: {final: curve}}

# %% [markdown]
# **1.** Divide the cost of the line by the worth of the block, and subtract the quotient from one. A cost alone does
# not say whether a line is good: 0.3 nats are little for a block that is worth 1, and all for one that is worth 0.3.


# %%
def share_recovered(loss, swapped, ablated):
    return 1 - (swapped - loss) / (ablated - loss)


assert np.isclose(share_recovered(2.0, 2.3, 3.0), 0.7)
assert np.isclose(share_recovered(2.0, 3.4, 3.0), -0.4)

# %% [markdown]
# **2.** Three losses on the same sequences: without a swap, with the thin map, and with the train mean. The thin map
# recovers less than the full one, or about as much where the directions that it drops do not matter to the loss.


# %%
def loss_with(replacement):
    with hl.swap(model, {final: replacement}):
        return losses(model, held)


base = losses(model, held)
ablated = loss_with(hl.AffineMap.constant(train))
thin = recovered(base, loss_with(curve.at(d // 4)), ablated)
full = recovered(base, loss_with(curve.map), ablated)
if thin is None:
    print("ablating this block costs nothing that these sequences can show: the share is undefined")
else:
    print(f"kept: {thin.value:.3f} ({thin.low:.3f} to {thin.high:.3f}) of the full map's {full.value:.3f}")
    assert thin.low <= thin.value <= thin.high
    assert thin.value < 1
    thin_share = thin.value

# %% [markdown]
# **3.** With $M = A A$ and $A$ symmetric, $\operatorname{tr}(M\,\mathbb E[r r^\top]) = \mathbb E \lVert A r \rVert^2$:
# a plain regression of $Ay$. So multiply the outputs by $A$, find the best directions there, and undo $A$. As $W A$ is
# the map to $Ay$, its moments follow from those of $y$, without another pass over the rows. A direction in which errors
# cost nothing cannot be recovered; the pseudo-inverse leaves it out.

# %%
prices = {first: price(model, {final: curve.map}, fitted)}
metric = prices[first][final].metric
values, vectors = torch.linalg.eigh(metric)
root = vectors * values.clamp_min(0).sqrt() @ vectors.T
turned = curve.map.weight @ root
leading = torch.linalg.eigh(turned.T @ train.sxx @ turned).eigenvectors[:, -(d // 8) :]
weight = turned @ leading @ leading.T @ torch.linalg.pinv(root, rtol=1e-9, hermitian=True)
weighed = hl.AffineMap(weight, train.mean_y - train.mean_x @ weight)


def gain(weight):
    return float((metric * (2 * weight.T @ train.sxy - weight.T @ train.sxx @ weight)).sum())


plain = curve.at(d // 8)
print(
    "gain in the loss's metric, times that of the plain map:",
    round(gain(weighed.weight) / gain(plain.down @ plain.up), 3),
)
assert gain(weighed.weight) > gain(plain.down @ plain.up)
assert torch.linalg.matrix_rank(weighed.weight, rtol=1e-9) <= d // 8
