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
middle = len(blocks) // 2
block = list(blocks)[middle]
kept = {}
for corpus in run.corpora:
    of_corpus = run.capture(first, corpus)
    kept[corpus] = of_corpus.blocks[block]

# %% [markdown]
# If a run profile has only one corpus, its two halves stand in for two corpora: only the draw of documents differs.

# %%
if len(kept) == 1:
    whole = blocks[block]
    kept = {
        "even": BlockCapture(whole.train[0::2], whole.test[0::2], whole.outputs, None),
        "odd": BlockCapture(whole.train[1::2], whole.test[1::2], whole.outputs, None),
    }
main, *_, last = kept
train = {}
test = {}
maps = {}
own = {}
for corpus, captured in kept.items():
    train[corpus] = sum(captured.train)
    test[corpus] = sum(captured.test)
    maps[corpus], _ = fit(train[corpus])
    own[corpus] = r2(maps[corpus], test[corpus])

# %% [markdown]
# **1.** With plenty of rows, one map for all texts does better on each than another text's map and worse than its own:
# it has to serve inputs that bend the block in different ways. Two halves of one text do not differ in this; there the
# common map just has more rows to learn from.

# %%
all_texts = sum(train.values())
common, _ = fit(all_texts)
one_for_all = {}
for corpus in kept:
    one_for_all[corpus] = r2(common, test[corpus])
    strangers = r2(maps[main], test[corpus])
    print(f"{corpus}: its own {own[corpus]:.3f}")
    print(f"  the common one {one_for_all[corpus]:.3f}")
    print(f"  that of {main} {strangers:.3f}")
    if corpus != main:
        assert one_for_all[corpus] > strangers

# %% [markdown]
# **2.** For given slopes the best bias maps the mean input to the mean output. It repairs the part of the drop that
# comes from a shift of the means; the rest comes from the slopes.

# %%
slopes = maps[main].weight
foreign = train[last]
bias = foreign.mean_y - foreign.mean_x @ slopes
moved = hl.AffineMap(slopes, bias)
before = r2(maps[main], test[last])
moved_r2 = r2(moved, test[last])
drop = own[last] - before
left = own[last] - moved_r2
print(f"a drop of {drop:.3f} becomes {left:.3f}")
assert r2(moved, foreign) > r2(maps[main], foreign)
mean_output = moved(foreign.mean_x)
assert np.allclose(mean_output, foreign.mean_y)

# %% [markdown]
# **3.** Half the rows mean about twice the noise, so the halves are less alike than two draws of the whole corpus would
# be, and the yardstick is for the latter.

# %%
folds = kept[main].train
even, _ = fit(sum(folds[0::2]))
odd, _ = fit(sum(folds[1::2]))
half_and_half = likeness(even, odd, test[main])
found = {first: {block: transfer(kept)}}
yardstick = found[first][block].expected[main, main]
noise_of_halves = 1 / half_and_half - 1
noise_of_draws = 1 / yardstick - 1
print(f"half and half {half_and_half:.3f}, yardstick {yardstick:.3f}")
print(f"{noise_of_halves / noise_of_draws:.1f} times the noise")
assert 0 < half_and_half < yardstick < 1
