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
from howlinear.files import paths
from howlinear.ideas.dynamics.timing import settling
from howlinear.ideas.dynamics.trajectory import Trajectory
from howlinear.models.load import tokenizer_of
from howlinear.notebook.run import start
from howlinear.text.corpus import load_corpus, model_documents
from howlinear.training import twins
from howlinear.training.loop import train
from howlinear.training.minis import FACTORY, new_model

run = start("09_dynamics", profile)
curves = {name: Trajectory.read(paths.MODELS / name / "trajectory.json") for name in FACTORY}
share = 0.9

# %% [markdown]
# **1.** The measured step after the last at which the correlation is 0.9 or less. We also print when the median block
# settles: a profile that can be recognised need not be finished.

# %%
recognised = []
settled = []
for curve in curves.values():
    last = curve.r2[-1]
    correlation = np.array([np.corrcoef(r2, last)[0, 1] for r2 in curve.r2])
    last_unlike = np.flatnonzero(correlation <= 0.9)[-1]
    step = int(curve.steps[last_unlike + 1])
    recognised.append(step)
    assert (correlation[curve.steps >= step] > 0.9).all()
    assert correlation[last_unlike] <= 0.9
    of_blocks = settling(curve.steps, curve.r2)
    settled.append(round(np.median(of_blocks.step)))
print("recognised:", dict(zip(curves, recognised, strict=True)))
print("median block settled:", dict(zip(curves, settled, strict=True)))

# %% [markdown]
# **2.** The loss counts as settled once less than $1 - q$ of its fall is to come. If less than that is left when the
# median block settles, the loss settled first.

# %%
still_to_come = []
for curve in curves.values():
    settles = np.median(settling(curve.steps, curve.r2, share).step)
    at_that_step = np.interp(np.log1p(settles), np.log1p(curve.steps), curve.loss)
    fall = curve.loss[0] - curve.loss[-1]
    still_to_come.append((at_that_step - curve.loss[-1]) / fall)
assert all(0 < part < 1 for part in still_to_come)
print("still to come:", {name: f"{part:.1%}" for name, part in zip(curves, still_to_come, strict=True)})

# %% [markdown]
# **3.** Within the warm-up the learning rate does not depend on how many steps are to come, so a short run sees the
# first steps of a long one. Both models start from the same weights and read the same text; in one, no FFN ever learns.
# Any change in the $R^2_{\mathrm{lin}}$ of its blocks comes from their inputs.

# %%
tokenizer = tokenizer_of(hl.load_model("mini-gpt2"))
texts = list(islice(model_documents("docs"), 300))
tokens = []
for document in tokenizer(texts)["input_ids"]:
    tokens += document
    tokens.append(tokenizer.eos_token_id)
stream = torch.tensor(tokens)
rows = load_corpus("docs", tokenizer).rows(4_096)
recipe = replace(twins.RECIPE, steps=16, warm_up=60, seed=run.seed)
blocks = 4
width = 64
frozen = new_model("mini-gpt2", run.seed, blocks, width)
free = new_model("mini-gpt2", run.seed, blocks, width)
at_start = new_model("mini-gpt2", run.seed, blocks, width)
for site in hl.sites(frozen):
    site.output.requires_grad_(False)


def filmed(model):
    snapshots = train(model, {"docs": stream}, rows, recipe)
    return Trajectory.of("nano", snapshots)


def ffns_moved(model):
    pairs = zip(hl.sites(at_start), hl.sites(model), strict=True)
    for before, after in pairs:
        for old, new in zip(before.output.parameters(), after.output.parameters(), strict=True):
            if not torch.equal(old, new):
                return True
    return False


film = filmed(frozen)
live = filmed(free)
assert not ffns_moved(frozen)
assert ffns_moved(free)
assert not np.allclose(film.r2[-1], live.r2[-1])
assert film.loss[-1] < film.loss[0], "the rest of the model learns"
print("start ", np.round(film.r2[0], 3))
print("frozen", np.round(film.r2[-1], 3), f"loss {film.loss[-1]:.2f}")
print("free  ", np.round(live.r2[-1], 3), f"loss {live.loss[-1]:.2f}")
