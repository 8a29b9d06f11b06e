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
# # 02 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import numpy as np
import torch

import howlinear as hl
from howlinear.core.ceilings import fit, r2
from howlinear.notebook.run import start

run = start("02_ceilings", profile)
first = next(iter(run.models))
blocks = run.capture(first).blocks
kept = blocks[len(blocks) // 2]
sample = kept.sample

# %% [markdown]
# **1.** Fit and score on the same moments. The difference is what the map learned of its own train rows by heart; it
# shrinks as rows are added, slowly where a few large rows carry most of the variance.

# %%
train = sum(kept.train)
in_sample = hl.ceiling(train, train).r2
print("optimism:", round(in_sample - hl.ceiling(kept.train, kept.test).r2, 4))
line, _ = fit(train)
assert np.isclose(in_sample, r2(line, train))

# %% [markdown]
# **2.** The map to the train mean explains nothing, and pays for the distance between the two means:
# $R^2 = -n \lVert \bar y_{train} - \bar y_{test} \rVert^2 / \sum \lVert y - \bar y_{test} \rVert^2$.

# %%
held = sum(kept.test)
ablated = r2(hl.AffineMap.constant(train), held)
between_means = (train.mean_y - held.mean_y).square().sum()
off = held.n * between_means / held.syy.sum()
assert np.isclose(ablated, -float(off))

# %% [markdown]
# **3.** Any affine map of $x$ is an affine map of $xA$, as long as $A$ can be undone: the two problems have the same
# best prediction. (With float32 rows and the rule for null directions, up to rounding.)

# %%
d_in, d_out = sample.x.shape[1], sample.y.shape[1]
generator = torch.Generator().manual_seed(0)
mix = torch.randn(d_in, d_in, generator=generator, dtype=torch.float64)
plain, mixed = [], []
for side in (~sample.test, sample.test):  # train, then held out
    x, y = sample.x[side].double(), sample.y[side]
    plain.append(hl.Moments(d_in, d_out).update(x, y))
    mixed.append(hl.Moments(d_in, d_out).update(x @ mix, y))
as_they_are = plain[1]
assert abs(hl.ceiling(*mixed).r2 - hl.ceiling(*plain).r2) < 1e-6

# %% [markdown]
# **4.** A line has one free number for each input, and one more: on about so many rows it goes through all of them,
# whatever they say. That it has learned nothing shows on other rows, where it does worse than the mean; and there she
# did not look. So score on held-out rows, which tells that the rows were too few, and then take more.


# %%
def repaired(x, y, test):
    train = hl.Moments(x.shape[1], y.shape[1]).update(x[~test], y[~test])
    held_out = hl.Moments(x.shape[1], y.shape[1]).update(x[test], y[test])
    line, _ = fit(train)
    return r2(line, held_out)


as_before = hl.ceiling(*plain).r2
assert abs(repaired(sample.x, sample.y, sample.test) - as_before) < 1e-6
