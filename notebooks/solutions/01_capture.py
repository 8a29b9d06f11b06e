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
# # 01 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import numpy as np
import torch

import howlinear as hl
from howlinear import notebooks

run = notebooks.start("01_capture", profile)
first = next(iter(run.models))
kept = run.capture(first).blocks[4]
sample = kept.sample

# %% [markdown]
# **1.** Moments hold $1 + 2d + 2d^2 + d$ numbers (the count, two means, two matrices, one vector of squares); rows hold
# $2nd$. They are equal at $n = d + 3/2 + 1/(2d)$: from little more than $d$ rows on, moments are smaller, and they stay
# the same size for ever. In bytes, float64 doubles it, and sixteen folds hold sixteen times as much.


# %%
def breakeven(d):
    return (1 + 3 * d + 2 * d**2) / (2 * d)


width = kept.train[0].d_in
assert np.isclose(breakeven(width), sum(t.numel() for t in kept.train[0].tensors().values()) / (2 * width))

# %% [markdown]
# **2.** Two halves, added.

# %%
half = len(sample.x) // 2
widths = sample.x.shape[1], sample.y.shape[1]
upper = hl.Moments(*widths).update(sample.x[:half], sample.y[:half])
lower = hl.Moments(*widths).update(sample.x[half:], sample.y[half:])
both = upper + lower
whole = hl.Moments(*widths).update(sample.x, sample.y)
assert both.n == whole.n
assert torch.allclose(both.sxy, whole.sxy, rtol=1e-10, atol=1e-8)

# %% [markdown]
# **3.** Each row obeys $\sum_i (x_i - \beta_i)/g_i = 0$, so $x \cdot (1/g)$ is the constant $\sum_i \beta_i/g_i$.

# %%
v = 1 / run.model(first).transformer.h[4].ln_2.weight.detach()
projected = (sample.x.double() @ (v.double() / v.double().norm())).var()
assert projected < 1e-9 * sample.x.double().var(0).sum()
