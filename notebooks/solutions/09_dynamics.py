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
# # 09 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

import howlinear as hl
from howlinear import nanos, notebooks, paths
from howlinear.corpora import load_corpus, model_documents
from howlinear.dynamics import settling
from howlinear.minis import FACTORY, new_model
from howlinear.models import tokenizer_of
from howlinear.training import train
from howlinear.trajectories import Trajectory

run = notebooks.start("09_dynamics", profile)
curves = {name: Trajectory.read(paths.MODELS / name / "trajectory.json") for name in FACTORY}

# %% [markdown]
# **1.** The measured step after the last at which the correlation is 0.9 or less. Beside it, when the median block
# settles: that a profile can be recognised does not mean that it is finished.

# %%
recognised, settled = [], []
for one in curves.values():
    unlike = [np.corrcoef(now, one.r2[-1])[0, 1] <= 0.9 for now in one.r2]
    recognised.append(int(one.steps[np.flatnonzero(unlike)[-1] + 1]))
    settled.append(float(np.median(settling(one.steps, one.r2).step)))
    like = np.array([np.corrcoef(now, one.r2[-1])[0, 1] > 0.9 for now in one.r2])
    assert like[one.steps >= recognised[-1]].all()
    assert not like[one.steps < recognised[-1]][-1]
print("recognised:", dict(zip(curves, recognised, strict=True)))
print("median block settled:", {name: round(step) for name, step in zip(curves, settled, strict=True)})

# %% [markdown]
# **2.** Within the warm-up the learning rate does not depend on how many steps are to come, so a short run sees the
# first steps of a long one. Both models start from the same weights and read the same text; in one, no FFN ever learns.
# Whatever happens to the $R^2_{\mathrm{lin}}$ of its blocks was done to their inputs.

# %%
tokenizer = tokenizer_of(hl.load_model("mini-gpt2"))
texts = list(islice(model_documents("docs"), 300))
stream = torch.tensor([token for ids in tokenizer(texts)["input_ids"] for token in [*ids, tokenizer.eos_token_id]])
rows = load_corpus("docs", tokenizer).rows(4_096)
recipe = replace(nanos.RECIPE, steps=32, warm_up=60, seed=run.seed)
ends = {}
for frozen in (True, False):
    model = new_model("mini-gpt2", run.seed, 4, 64)
    before = [parameter.clone() for site in hl.sites(model) for parameter in site.output.parameters()]
    for site in hl.sites(model):
        site.output.requires_grad_(not frozen)
    ends[frozen] = Trajectory.of("nano", train(model, {"docs": stream}, rows, recipe))
    after = [parameter for site in hl.sites(model) for parameter in site.output.parameters()]
    assert all(map(torch.equal, before, after)) == frozen
frozen_r2 = ends[True].r2[-1]
assert not np.allclose(frozen_r2, ends[False].r2[-1])
assert ends[True].loss[-1] < ends[True].loss[0], "the rest of the model learns"
print("start ", np.round(ends[True].r2[0], 3))
print("frozen", np.round(frozen_r2, 3), "loss", round(float(ends[True].loss[-1]), 2))
print("free  ", np.round(ends[False].r2[-1], 3), "loss", round(float(ends[False].loss[-1]), 2))
