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
import torch

import howlinear as hl
from howlinear import notebooks
from howlinear.felt import feel
from howlinear.perplexity import losses
from howlinear.reduced import recovered, reduced_rank

run = notebooks.start("06_compression", profile)
first = next(iter(run.models))
model, stored = run.model(first), run.capture(first)
final = max(stored.blocks)
kept = stored.blocks[final]
held, fitted = stored.rows.ids[stored.rows.test], stored.rows.ids[~stored.rows.test]
train = sum(kept.train)
curve = reduced_rank(train, sum(kept.test))
d = len(curve.map.bias)


def loss_with(found):
    with hl.swap(model, {final: found}):
        return losses(model, held)


# %% [markdown]
# **1.** Three losses of the same sequences: whole, with the thin map, and with the train mean. The thin map recovers
# less than the full one, or about as much where the directions that it drops do not matter to the loss.

# %%
base, ablated = losses(model, held), loss_with(hl.AffineMap.constant(train))
thin, full = (recovered(base, loss_with(found), ablated) for found in (curve.at(d // 4), curve.map))
if thin is None:
    print("ablating this block costs nothing that these sequences can show: the share is undefined")
else:
    print(f"kept: {thin.share:.3f} ({thin.low:.3f} to {thin.high:.3f}) of the full map's {full.share:.3f}")
    assert thin.low <= thin.share <= thin.high
    assert thin.share < 1

# %% [markdown]
# **2.** With $M = A A$ and $A$ symmetric, $\operatorname{tr}(M\,\mathbb E[r r^\top]) = \mathbb E \lVert A r \rVert^2$:
# a plain regression of $Ay$. So rotate the outputs by $A$, find the best directions there, and undo $A$. As $W A$ is
# the map to $Ay$, its moments follow from those of $y$: no row is looked at again. A direction that the loss does
# not feel at all cannot be undone; the pseudo-inverse leaves it out.

# %%
metric = feel(model, {final: curve.map}, fitted)[final].metric
values, vectors = torch.linalg.eigh(metric)
root = vectors * values.clamp_min(0).sqrt() @ vectors.T
turned = curve.map.weight @ root
leading = torch.linalg.eigh(turned.T @ train.sxx @ turned).eigenvectors[:, -(d // 8) :]
weight = turned @ leading @ leading.T @ torch.linalg.pinv(root, rtol=1e-9, hermitian=True)
weighed = hl.AffineMap(weight, train.mean_y - train.mean_x @ weight)


def gain(weight):
    return float((metric * (2 * weight.T @ train.sxy - weight.T @ train.sxx @ weight)).sum())


plain = curve.at(d // 8)
print("felt gain, times that of the plain map:", round(gain(weighed.weight) / gain(plain.down @ plain.up), 3))
assert gain(weighed.weight) > gain(plain.down @ plain.up)
assert torch.linalg.matrix_rank(weighed.weight, rtol=1e-9) <= d // 8
