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
# # 08 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import math

import numpy as np

import howlinear as hl
from howlinear.ideas.controls.inputs import Colour, recolour
from howlinear.ideas.controls.weights import chance_floor, respond, sample_ceiling
from howlinear.ideas.degrees.hermite import predict_spectrum
from howlinear.ideas.degrees.neurons import take_apart
from howlinear.notebook.run import start

run = start("08_controls", profile)
first = next(iter(run.models))
blocks, sites = run.capture(first).blocks, hl.sites(run.model(first))
middle = len(blocks) // 2
captured, ffn = blocks[middle], sites[middle].output

# %% [markdown]
# **1.** On average shuffled pairs have an in-sample $R^2$ of $r / (n - 1)$, so $n = 100 r + 1$ rows do: a hundred for
# each direction of the inputs, and one.

# %%
rank = hl.ceiling(captured.train, captured.test).rank
enough = 100 * rank + 1
assert rank / (enough - 1) <= 0.01 < rank / (enough - 2)
floor = chance_floor(captured.sample, 2 * captured.sample.x.shape[1])
assert math.isclose(floor.expected_in_sample * (floor.rows - 1), rank)
print(enough, "rows; at", floor.rows, "rows chance explains", round(floor.shuffled_in_sample, 2), "in sample")

# %% [markdown]
# **2.** Every smooth function is straight when looked at from near by: as the spread shrinks, the mean slope is the
# slope at the mean, and $R^2_{\mathrm{lin}} \to 1$.

# %%
moments = sum(blocks[0].train)
taken = take_apart(run.model(first), 0)
found = [predict_spectrum(taken, moments, 1)[0]]
for spread in (0.1, 0.01):
    quieter = moments.copy()
    quieter.sxx *= spread**2
    found.append(predict_spectrum(taken, quieter, 1)[0])
quiet = found[1]
assert found[0] < quiet < found[2] < 1
print("spread 1, 0.1, 0.01:", np.round(found, 6))

# %% [markdown]
# **3.** A turn keeps the mean, the covariance and how far out each row lies. What it takes away is which directions the
# rows prefer, and those are the ones the weights were trained for.

# %%
sample, own = captured.sample, Colour.of(sum(captured.train))
turned = [recolour(sample.x, own, own, turn=seed) for seed in range(5)]
turns = [sample_ceiling(x, respond(ffn, x), sample, intervals=False).r2 for x in turned]
untouched = sample_ceiling(sample.x, sample.y, sample, intervals=False).r2
assert len(set(turns)) == 5
assert np.ptp(turns) < abs(untouched - np.mean(turns)), "the draws differ less than turning does"
print("own", round(untouched, 2), "turned", np.round(turns, 2))
