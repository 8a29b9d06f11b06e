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
import numpy as np

import howlinear as hl
from howlinear.core.gaussian import predict_spectrum
from howlinear.ideas.controls import measure
from howlinear.ideas.controls.inputs import Colour, recolour
from howlinear.ideas.controls.weights import respond, sample_ceiling
from howlinear.models.pairs import ffn_module
from howlinear.models.units import take_apart
from howlinear.notebook.run import start

run = start("08_controls", profile)
first = next(iter(run.models))
language_models = {first: run.model(first)}
captures = {first: run.capture(first)}
blocks = {first: captures[first].blocks}
ffns = {first: {site.block: ffn_module(language_models[first], site) for site in hl.sites(language_models[first])}}
numbers = list(blocks[first])
middle = numbers[len(numbers) // 2]
captured, ffn = blocks[first][middle], ffns[first][middle]

# %% [markdown]
# **1.** On average shuffled pairs have an in-sample $R^2$ of $r / (n - 1)$, so $n = 100 r + 1$ rows are enough: a
# hundred for each direction of the inputs, and one for the mean.

# %%
floors = measure.floors(captured.rows())
rank = hl.ceiling(captured.train, captured.test).rank
enough = 100 * rank + 1
assert rank / (enough - 1) <= 0.01 < rank / (enough - 2)
assert np.allclose(floors.expected_in_sample * (floors.rows - 1), rank)
print(enough, "rows; at", floors.rows[0], "chance explains", round(floors.shuffled_in_sample[0], 2), "in sample")

# %% [markdown]
# **2.** Every smooth function looks straight from close by: as the spread shrinks, the mean slope tends to the slope at
# the mean, and $R^2_{\mathrm{lin}} \to 1$.

# %%
moments = sum(blocks[first][numbers[0]].train)
taken = take_apart(language_models[first], numbers[0])
found = [predict_spectrum(taken, moments, 1)[0]]
for spread in (0.1, 0.01):
    quieter = moments.copy()
    quieter.sxx *= spread**2
    found.append(predict_spectrum(taken, quieter, 1)[0])
quiet = found[1]
assert found[0] < quiet < found[2] < 1
print("spread 1, 0.1, 0.01:", np.round(found, 6))

# %% [markdown]
# **3.** A turn keeps the mean, the covariance and how far out each row lies. It destroys the directions that the rows
# prefer, and those are the ones that the weights were trained for.

# %%
sample, colour = captured.rows(), Colour.of(sum(captured.train))
turned = [recolour(sample.x, colour, colour, turn=seed) for seed in range(5)]
turns = [sample_ceiling(x, respond(ffn, x), sample, intervals=False).r2 for x in turned]
untouched = sample_ceiling(sample.x, sample.y, sample, intervals=False).r2
assert len(set(turns)) == 5
assert np.ptp(turns) < abs(untouched - np.mean(turns)), "the draws differ less than turning does"
print("own", round(untouched, 2), "turned", np.round(turns, 2))
