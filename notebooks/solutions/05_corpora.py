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
from howlinear.core.ceilings import fit, r2
from howlinear.ideas.corpora.transfer import likeness, transfer
from howlinear.instrument.capture import BlockCapture
from howlinear.notebook.run import start

run = start("05_corpora", profile)
first = next(iter(run.models))
blocks = run.capture(first).blocks
block = list(blocks)[len(blocks) // 2]
kept = {corpus: run.capture(first, corpus).blocks[block] for corpus in run.corpora}

# %% [markdown]
# Where a profile has one corpus only, two halves of it stand in for two: then only the draw of documents differs.

# %%
if len(kept) == 1:
    whole = blocks[block]
    kept = {
        "even": BlockCapture(whole.train[0::2], whole.test[0::2], whole.outputs, None),
        "odd": BlockCapture(whole.train[1::2], whole.test[1::2], whole.outputs, None),
    }
main = next(iter(kept))
last = list(kept)[-1]
train = {corpus: sum(captured.train) for corpus, captured in kept.items()}
test = {corpus: sum(captured.test) for corpus, captured in kept.items()}
maps = {corpus: fit(moments)[0] for corpus, moments in train.items()}
own = {corpus: r2(maps[corpus], test[corpus]) for corpus in kept}

# %% [markdown]
# **1.** With plenty of rows, one map for all texts does better on each than a stranger's and worse than its own: it has
# to serve inputs that bend the block in different ways. Two halves of one text do not disagree; there the common map
# has more rows to learn from, and that is all.

# %%
common = fit(sum(train.values()))[0]
one_for_all = {corpus: r2(common, test[corpus]) for corpus in kept}
for corpus in kept:
    strangers = r2(maps[main], test[corpus])
    print(f"{corpus}: own {own[corpus]:.3f}, common {one_for_all[corpus]:.3f}, of {main} {strangers:.3f}")
    assert corpus == main or one_for_all[corpus] > strangers

# %% [markdown]
# **2.** For given slopes the best bias maps the mean input to the mean output. What it repairs is the part of the drop
# that a shift of the means makes; what is left, the slopes make.

# %%
slopes = maps[main].weight
bias = train[last].mean_y - train[last].mean_x @ slopes
moved = hl.AffineMap(slopes, bias)
moved_r2 = r2(moved, test[last])
before = r2(maps[main], test[last])
print(f"a drop of {own[last] - before:.3f} becomes {own[last] - moved_r2:.3f}")
assert r2(moved, train[last]) > r2(maps[main], train[last])
mean_output = moved(train[last].mean_x)
assert np.allclose(mean_output, train[last].mean_y)

# %% [markdown]
# **3.** Half the rows make about twice the noise, and so the halves are less alike than two draws of the whole corpus
# would be; the yardstick stands for the latter.

# %%
even = fit(sum(kept[main].train[0::2]))[0]
odd = fit(sum(kept[main].train[1::2]))[0]
half_and_half = likeness(even, odd, test[main])
found = {first: {block: transfer(kept)}}
yardstick = found[first][block].expected[main, main]
noise_of_halves = 1 / half_and_half - 1
noise_of_draws = 1 / yardstick - 1
print(f"half and half {half_and_half:.3f}, yardstick {yardstick:.3f}")
print(f"{noise_of_halves / noise_of_draws:.1f} times the noise")
assert 0 < half_and_half < yardstick < 1
