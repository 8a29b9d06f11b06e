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
# # 03 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
from dataclasses import replace

import numpy as np
import torch

from howlinear.ideas.bilinear.probe import branch, residual_rows, scores
from howlinear.instrument.resample import resampled
from howlinear.notebook.run import start

rank = 4
run = start("03_bilinear", profile)
first = next(iter(run.models))
blocks = resampled(run.capture(first), run.model(first), 4_096)  # on fewer rows a branch may find nothing
rows = residual_rows(blocks[len(blocks) // 2])
fitted = branch(rows, rank)

# %% [markdown]
# **1.** $A$ and $B$ hold $d \times r$ numbers each, $U$ holds $r \times d_{out}$: about $3r/d$ of the map, a small
# addition while the rank is small. (Making room for the products' straight part adds no numbers to $W$.)

# %%
d, d_out = rows.z.shape[1], rows.e.shape[1]
relative_size = rank * (2 * d + d_out) / (d * d_out)
counted = fitted.left.numel() + fitted.right.numel() + fitted.readout.numel()
assert np.isclose(relative_size, counted / (d * d_out))

# %% [markdown]
# **2.** The products grow tenfold, and with them their straight and constant parts; the readout undoes it. Nothing
# measured at the output can tell the two branches apart, so one factor's size, such as a gate's, means nothing alone.

# %%
disguised = replace(
    fitted, left=10 * fitted.left, slope=10 * fitted.slope, level=10 * fitted.level, readout=fitted.readout / 10
)
assert torch.allclose(disguised.left, 10 * fitted.left)
assert torch.allclose(disguised(rows.z), fitted(rows.z), atol=1e-3 * float(rows.e.std()))

# %% [markdown]
# **3.** The difference is what the branch learned by heart: it grows with the rank and shrinks as rows are added. The
# fold that decides when to stop keeps it from doing harm, and scoring on held-out rows keeps it out of the gain.


# %%
def recovered(side):
    """Share of Σ‖e‖² that the branch recovers on some rows."""
    left = (rows.e - fitted(rows.z))[side].square().sum()
    return 1 - float(left / rows.e[side].square().sum())


by_heart = seen, unseen = recovered(~rows.test), recovered(rows.test)
line, poly = scores(rows, fitted(rows.z))
assert np.isclose(unseen, (poly[0] - line[0]) / (1 - line[0]), atol=1e-5)
print("optimism:", round(seen - unseen, 3))
assert 0 < unseen < seen
