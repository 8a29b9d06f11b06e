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
# # 05 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import numpy as np

import howlinear as hl
from howlinear import notebooks
from howlinear.capture import BlockCapture
from howlinear.ceilings import fit, r2
from howlinear.transfer import likeness, transfer

run = notebooks.start("05_corpora", profile)
first = next(iter(run.models))
blocks = run.capture(first).blocks
block = list(blocks)[len(blocks) // 2]
kept = {corpus: run.capture(first, corpus).blocks[block] for corpus in run.corpora}

# %% [markdown]
# Where a profile has one corpus only, two halves of it stand in for two: then only the draw of documents differs.

# %%
if len(kept) == 1:
    whole = blocks[block]
    halves = {"even": slice(0, None, 2), "odd": slice(1, None, 2)}
    kept = {name: BlockCapture(whole.train[i], whole.test[i], whole.outputs, None) for name, i in halves.items()}
main, last = next(iter(kept)), list(kept)[-1]
train, test = ({corpus: sum(getattr(each, side)) for corpus, each in kept.items()} for side in ("train", "test"))
own = {corpus: r2(fit(train[corpus])[0], test[corpus]) for corpus in kept}

# %% [markdown]
# **1.** With plenty of rows, one map for all texts does better on each than a stranger's and worse than its own: it has
# to serve inputs that bend the block in different ways. Two halves of one text do not disagree; there the common map
# has more rows to learn from, and that is all.

# %%
common = fit(sum(train.values()))[0]
one_for_all = {corpus: r2(common, test[corpus]) for corpus in kept}
print({corpus: f"{own[corpus]:.3f} → {one_for_all[corpus]:.3f}" for corpus in kept})
assert all(one_for_all[corpus] > r2(fit(train[main])[0], test[corpus]) for corpus in kept if corpus != main)

# %% [markdown]
# **2.** For given slopes the best bias maps the mean input to the mean output. What it repairs is the part of the drop
# that a shift of the means makes; what is left, the slopes make.

# %%
slopes = fit(train[main])[0].weight
moved = hl.AffineMap(slopes, train[last].mean_y - train[last].mean_x @ slopes)
moved_r2, before = r2(moved, test[last]), r2(fit(train[main])[0], test[last])
print(f"a drop of {own[last] - before:.3f} becomes {own[last] - moved_r2:.3f}")
assert r2(moved, train[last]) > r2(fit(train[main])[0], train[last])
assert np.isclose(float((moved(train[last].mean_x) - train[last].mean_y).abs().max()), 0)

# %% [markdown]
# **3.** Half the rows make about twice the noise, and so the halves are less alike than two draws of the whole corpus
# would be; the yardstick stands for the latter.

# %%
even, odd = (fit(sum(kept[main].train[i::2]))[0] for i in (0, 1))
half_and_half = likeness(even, odd, test[main])
yardstick = transfer(kept).expected[0, 0]
print(f"half and half {half_and_half:.3f}, yardstick {yardstick:.3f}")
print(f"{(1 / half_and_half - 1) / (1 / yardstick - 1):.1f} times the noise")
assert 0 < half_and_half < yardstick < 1
