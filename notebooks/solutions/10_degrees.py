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

from howlinear.ideas.degrees.hermite import hermite, predict_spectrum
from howlinear.ideas.degrees.neurons import take_apart
from howlinear.ideas.degrees.spectrum import degrees
from howlinear.instrument.capture import Sample, capture
from howlinear.notebook.run import start

run = start("10_degrees", profile)
first = next(iter(run.models))
model, stored = run.model(first), run.capture(first)
block = len(stored.blocks) // 2
kept = capture(model, stored.rows, [block], sample=stored.rows.ids.numel())[block]

# %% [markdown]
# **1.** $z\,\Phi(z) = z/2 + z(\Phi(z) - \tfrac12)$, and the second part is a product of two odd functions, so even. All
# odd degrees but the first are missing. Real pre-activations have means other than 0, and around another point the even
# part is no longer even; and real inputs are not Gaussian.

# %%
absent = {3, 5}
nodes, weights = np.polynomial.hermite_e.hermegauss(60)
bends = torch.nn.functional.gelu(torch.tensor(nodes)).numpy() * weights
terms = hermite(torch.tensor(nodes), 5)
assert absent == {k for k in range(1, 6) if abs(terms[k].numpy() @ bends) < 1e-9}
taken = take_apart(model, block)
print("median mean of a pre-activation:", round(float(taken.spread(sum(kept.train))[0].median()), 2))

# %% [markdown]
# **2.** Draw $x = \bar x + \Sigma^{1/2}\xi$, and let the block taken apart answer. Now the prediction holds, up to what
# least squares on these rows costs: so it was the inputs' shape, not the algebra, that made it miss.

# %%
moments, n = sum(kept.train), 20_000
values, vectors = torch.linalg.eigh(moments.sxx / moments.n)
noise = torch.randn(n, len(values), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
x = moments.mean_x + noise @ (vectors * values.clamp_min(0).sqrt()).T
row = torch.arange(n)
drawn = Sample(x.float(), taken(x).float(), row, row, row % 4 == 3, row // 4 % 8)
gaussian_r2 = degrees(replace(kept, sample=drawn), taken).r2
wanted = predict_spectrum(taken, moments)
print(np.round(gaussian_r2, 2), "predicted:", np.round(wanted, 2))
assert np.abs(gaussian_r2 - wanted).max() < 0.03
