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
middle = len(blocks) // 2
kept = blocks[middle]
sample = kept.sample

# %% [markdown]
# **1.** Fit and score on the same moments. The difference is what the map learned of its own train rows by heart; it
# shrinks as rows are added, slowly where a few large rows carry most of the variance.

# %%
train = sum(kept.train)
in_sample = hl.ceiling(train, train).r2
held_out = hl.ceiling(kept.train, kept.test).r2
optimism = in_sample - held_out
print(f"optimism: {optimism:.4f}")
line, _ = fit(train)
by_line = r2(line, train)
assert np.isclose(in_sample, by_line)

# %% [markdown]
# **2.** The map to the train mean explains nothing, and pays for the distance between the two means:
# $R^2 = -n \lVert \bar y_{train} - \bar y_{test} \rVert^2 / \sum \lVert y - \bar y_{test} \rVert^2$.

# %%
held = sum(kept.test)
mean_alone = hl.AffineMap.constant(train)
ablated = r2(mean_alone, held)
apart = train.mean_y - held.mean_y
between_means = held.n * apart.square().sum()
varies = held.syy.sum()
by_hand = -between_means / varies
assert np.isclose(ablated, by_hand)

# %% [markdown]
# **3.** Any affine map of $x$ is an affine map of $xA$, as long as $A$ is invertible: the two problems have the same
# best prediction. (With float32 rows and the rule for null directions, up to rounding.)

# %%
d_in = sample.x.shape[1]
d_out = sample.y.shape[1]
generator = torch.Generator().manual_seed(0)
mix = torch.randn(d_in, d_in, generator=generator, dtype=torch.float64)
plain = []
mixed = []
for side in (~sample.test, sample.test):  # train, then held out
    x = sample.x[side].double()
    y = sample.y[side]
    as_they_are = hl.Moments(d_in, d_out)
    plain.append(as_they_are.update(x, y))
    stirred = hl.Moments(d_in, d_out)
    mixed.append(stirred.update(x @ mix, y))
plain_r2 = hl.ceiling(*plain).r2
mixed_r2 = hl.ceiling(*mixed).r2
assert np.isclose(mixed_r2, plain_r2, rtol=0, atol=1e-6)

# %% [markdown]
# **4.** A line has one free number for each input, and one more: fitted on about that many rows, it passes through all
# of them, whatever the outputs are. That it has learned nothing shows only on other rows, where it does worse than the
# mean, and she did not check those. So score on held-out rows, see that the train rows were too few, and take more.


# %%
def repaired(x, y, test):
    d_in = x.shape[1]
    d_out = y.shape[1]
    train = hl.Moments(d_in, d_out)
    train.update(x[~test], y[~test])
    held_out = hl.Moments(d_in, d_out)
    held_out.update(x[test], y[test])
    line, _ = fit(train)
    return r2(line, held_out)


mended = repaired(sample.x, sample.y, sample.test)
assert np.isclose(mended, plain_r2, rtol=0, atol=1e-6)
