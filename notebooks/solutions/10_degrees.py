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
# # 10 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import gelu

from howlinear.core.ceilings import AffineMap
from howlinear.core.gaussian import hermite, predict_spectrum
from howlinear.ideas.degrees.spectrum import degrees
from howlinear.instrument.capture import Sample
from howlinear.models.units import take_apart
from howlinear.notebook.run import start

run = start("10_degrees", profile)
first = next(iter(run.models))
model, stored = run.model(first), {first: run.capture(first)}
middle = {first: len(stored[first].blocks) // 2}
parts = take_apart(model, middle[first])
degree = 4

# %% [markdown]
# **1.** $z\,\Phi(z) = z/2 + z(\Phi(z) - \tfrac12)$, and the second part is a product of two odd functions, so even. All
# odd degrees but the first are missing. Real pre-activations have means other than 0, and about another point the even
# part is no longer even; also, real inputs are not Gaussian.

# %%
absent = {3, 5}
nodes, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
coefficients = torch.stack(hermite(nodes, 5)) @ (weights * gelu(nodes))
assert absent == {k for k in range(1, 6) if abs(coefficients[k]) < 1e-9}
moments = sum(stored[first].blocks[middle[first]].train)
print("median mean of a pre-activation:", round(float(parts.spread(moments)[0].median()), 2))

# %% [markdown]
# **2.** A bias moves the mean of its pre-activation and nothing else. About mean 0 GELU has no cubic part, as exercise
# 1 shows, so no sum of such neurons has one; in SwiGLU the product of two pre-activations may keep one.

# %%
means, _ = parts.spread(moments)
shifted = AffineMap(parts.gate.weight, parts.gate.bias - means)
without_means = predict_spectrum(replace(parts, gate=shifted), moments, 3)
with_means = predict_spectrum(parts, moments, 3)
cubic = without_means[2] - without_means[1]
assert cubic < 1e-6 or parts.up is not None
print("without means", np.round(without_means, 2), "with them", np.round(with_means, 2))

# %% [markdown]
# **3.** Draw $x = \bar x + \Sigma^{1/2}\xi$, and compute the outputs from `parts`. Now the prediction holds, up to what
# least squares on these rows costs: so it was the inputs' shape, not the algebra, that made it miss.

# %%
n = 20_000
values, vectors = torch.linalg.eigh(moments.sxx / moments.n)
noise = torch.randn(n, len(values), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
x = moments.mean_x + noise @ (vectors * values.clamp_min(0).sqrt()).T
row = torch.arange(n)
drawn = Sample(x.float(), parts(x).float(), row, row, row % 4 == 3, row // 4 % 8)
captured = replace(stored[first].blocks[middle[first]], sample=drawn)
gaussian_r2 = degrees(captured, parts, degree)["r2"].to_numpy()
wanted = predict_spectrum(parts, moments, degree)
print(np.round(gaussian_r2, 2), "predicted:", np.round(wanted, 2))
assert np.abs(gaussian_r2 - wanted).max() < 0.03
