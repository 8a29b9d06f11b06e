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
from howlinear import notebooks
from howlinear.ceilings import fit, r2

run = notebooks.start("02_ceilings", profile)
first = next(iter(run.models))
blocks = run.capture(first).blocks
kept = blocks[len(blocks) // 2]
sample = kept.sample

# %% [markdown]
# **1.** Fit and score on the same moments. The difference is what the map learned of its own train rows by heart; it
# shrinks as rows are added, slowly where a few large rows carry most of the variance.

# %%
in_sample = hl.ceiling(sum(kept.train), sum(kept.train)).r2
print("optimism:", round(in_sample - hl.ceiling(kept.train, kept.test).r2, 4))
assert np.isclose(in_sample, r2(fit(sum(kept.train))[0], sum(kept.train)))

# %% [markdown]
# **2.** The map to the train mean explains nothing, and pays for the distance between the two means:
# $R^2 = -n \lVert \bar y_{train} - \bar y_{test} \rVert^2 / \sum \lVert y - \bar y_{test} \rVert^2$.

# %%
held = sum(kept.test)
ablated = r2(hl.AffineMap.constant(sum(kept.train)), held)
off = held.n * (sum(kept.train).mean_y - held.mean_y).square().sum() / held.syy.sum()
assert np.isclose(ablated, -float(off))

# %% [markdown]
# **3.** Any affine map of $x$ is an affine map of $xA$, as long as $A$ can be undone: the two problems have the same
# best prediction. (With float32 rows and the rule for null directions, up to rounding.)

# %%
width = sample.x.shape[1], sample.y.shape[1]
mix = torch.randn(width[0], width[0], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
sides = {test: sample.x[sample.test == test].double() for test in (False, True)}
outputs = {test: sample.y[sample.test == test] for test in (False, True)}
plain = [hl.Moments(*width).update(sides[test], outputs[test]) for test in (False, True)]
mixed = [hl.Moments(*width).update(sides[test] @ mix, outputs[test]) for test in (False, True)]
mixed_r2 = hl.ceiling(*mixed).r2
assert abs(mixed_r2 - hl.ceiling(*plain).r2) < 1e-6
