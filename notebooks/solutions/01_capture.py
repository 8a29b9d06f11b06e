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
from howlinear.notebook.run import start

run = start("01_capture", profile)
first = next(iter(run.models))
captures = {first: run.capture(first)}
block = len(captures[first].blocks) // 3
kept = captures[first].blocks[block]
sample = kept.sample

# %% [markdown]
# **1.** Moments hold $1 + 2d + 2d^2 + d$ numbers (the count, two means, two matrices, one vector of squares); rows hold
# $2nd$. They are equal at $n = d + 3/2 + 1/(2d)$: from little more than $d$ rows on, moments are smaller, and their
# size is fixed. In bytes, float64 doubles their size, and sixteen folds hold sixteen times as much.


# %%
def breakeven(d):
    return (1 + 3 * d + 2 * d**2) / (2 * d)


moments = kept.train[0]
width = moments.d_in
stored = sum(tensor.numel() for name, tensor in moments.tensors().items() if name != "eps")
assert np.isclose(breakeven(width), stored / (2 * width))

# %% [markdown]
# **2.** Two halves, added.

# %%
half = len(sample.x) // 2
d_in, d_out = sample.x.shape[1], sample.y.shape[1]
upper = hl.Moments(d_in, d_out).update(sample.x[:half], sample.y[:half])
lower = hl.Moments(d_in, d_out).update(sample.x[half:], sample.y[half:])
both = upper + lower
whole = hl.Moments(d_in, d_out).update(sample.x, sample.y)
assert both.n == whole.n
assert torch.allclose(both.sxy, whole.sxy, rtol=1e-10, atol=1e-8)

# %% [markdown]
# **3.** Each row obeys $\sum_i (x_i - \beta_i)/g_i = 0$, so $x \cdot (1/g)$ is the constant $\sum_i \beta_i/g_i$.

# %%
gain = run.model(first).transformer.h[block].ln_2.weight.detach().double()
v = 1 / gain
v = v / v.norm()
x = sample.x.double()
assert (x @ v).var() < 1e-9 * x.var(0).sum()
