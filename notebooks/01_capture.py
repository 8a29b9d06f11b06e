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
# # 01 · What goes into a feed-forward block, and what comes out?
#
# **Question.** A transformer layer has two halves: attention, which mixes positions, and a feed-forward network (FFN),
# which does not. If we watch the FFN while the model reads, what do we see?
#
# **You need** notebook 00. **You learn** what goes into a block and what comes out, and to describe a cloud of inputs
# by how many directions it fills. **Time** 15 minutes to read, 1 to run: the embedded models on one core, here and in
# all notebooks that follow. (`seconds` in each `run.json` of `results/public` says how long the public models take.)

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
block: int or None = None  # the block we look at closely; None: a third of the way up

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import howlinear as hl
from howlinear.notebook.run import start
from howlinear.plots import capture as plots

run = start("01_capture", profile, model, corpus)
first = next(iter(run.models))
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# Write your guesses down before you scroll; being wrong is the fastest way to learn something here.
#
# 1. The input of an FFN has passed a normalisation layer. Do all its directions carry about the same variance?
# 2. Is the first token of a sequence like any other?
# 3. A LayerNorm output has $d$ features. How many of them can vary freely?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# Freeze a trained model and let it read. At block $\ell$ the FFN receives a row $x \in \mathbb{R}^d$ for every token
# and returns a row $y \in \mathbb{R}^d$, which is added to the residual stream. The pairs $(x, y)$ turn the block into
# a regression problem: how much of $y$ can a *straight line* through the cloud explain?
#
# The paper calls this "distillation as measurement", and its figure 1 is a diagram of it. Here is ours, drawn by code.
#
# **How to read it.** Left: one layer of the frozen model, bottom to top; the grey line past the boxes is the residual
# stream, and at each ⊕ the output of one half is added to it (in Pythia the FFN runs in parallel with attention, not
# after it). The two orange taps are all we touch. Right: what we do with the pairs.

# %%
figure = plots.diagram()
run.figure(figure, "diagram")
plt.show()

# %% [markdown]
# ## Method
#
# | step | what it does | function |
# |---|---|---|
# | find | the *sites*: pairs of modules, one whose input is $x$ and one whose output is $y$ | `hl.sites` |
# | read | sequences of one length, split by document into train and held out | `Corpus.rows` |
# | listen | a hook at each site, while the model reads once | `hl.capture` |
# | describe | condition number, effective rank, dynamic range, position 0 | `capture.describe` |
#
# Here are the first sites of one model, and the rows that it will read.

# %%
model = run.model(first)
measured = list(run.capture(first, every=True).blocks)  # all blocks whose outputs vary
block = measured[len(measured) // 3] if block is None else min(measured, key=lambda number: abs(number - block))
for site in hl.sites(model)[:3]:
    print(site.block, site.name, type(site.output).__name__)
rows = run.corpus(run.corpora[0], model).rows(run.rows, run.seq_len, run.seed)
print("sequences:", tuple(rows.ids.shape), "held out:", int(rows.test.sum()))

# %% [markdown]
# Listening must change nothing in the model; let us check that before we trust it. We run the same tokens with and
# without listeners and compare the model's outputs bit by bit. Then we pass the $x$ that we recorded to the FFN
# directly, and compare its output with the $y$ that we recorded.


# %%
def remember(site, x, y):
    seen["x"], seen["y"] = x, y.clone()  # a model may write over y later


# %% tags=["nbval-check-output"]
from howlinear.instrument.capture import hooked
from howlinear.models.pairs import ffn_module

seen = {}
few = rows.ids[:4]
(site,) = hl.sites(model, [block])
ffn = ffn_module(model, site)  # one module, or two layers with the activation between them
with torch.inference_mode():
    before = model(few)[0]  # logits; for an encoder, the residual stream after its last layer
    with hooked([site], remember):
        during = model(few)[0]
    by_hand = ffn(seen["x"])
print("outputs the same while we listen:", torch.equal(before, during))
print("y is what the FFN makes of x:   ", torch.equal(by_hand, seen["y"]), tuple(seen["x"].shape))

# %% [markdown]
# Stored rows grow with the text, but nothing linear needs them: it is enough to keep the *moments*, whose size is
# fixed. With $x$ and $y$ as columns, and the last sum taken feature by feature, they are
#
# $$ n,\quad \bar x,\quad \bar y,\quad S_{xx} = \sum (x-\bar x)(x-\bar x)^\top,\quad
#    S_{xy} = \sum (x-\bar x)(y-\bar y)^\top,\quad \textstyle\sum (y-\bar y)^2 . $$
#
# $S_{xx}$ and $S_{xy}$ are $d \times d$. Moments add up: those of two sets of rows sum to those of all the rows (`a +
# b`). So the documents are dealt into *folds*, eight on the train side and eight on the held-out side, and each fold
# keeps its own moments. Later we leave out one fold at a time to get error bars. In addition, a random sample of rows,
# of bounded size, is stored unchanged.
#
# For one block of this capture, that is:

# %%
captures = {name: run.capture(name, every=True) for name in run.models}
kept = captures[first].blocks[block]
print("train folds:", len(kept.train), "· held-out folds:", len(kept.test))
print("rows in each train fold:", [moments.n for moments in kept.train])
print("their sum holds n =", sum(kept.train).n, "rows, and Sxx of shape", tuple(sum(kept.train).sxx.shape))
print("rows kept as they are:", len(kept.sample.x), "of width", kept.sample.x.shape[1])

# %% [markdown]
# A *document* here is one docstring, one function or one piece of a header (in your own text file: what blank lines
# separate). Documents are drawn from all files, and all documents of one folder are on the same side of the split and
# in the same fold, because neighbouring files copy from one another. Duplicates are read once.

# %% [markdown]
# ## Run
#
# One forward pass per model (or its stored result). We describe the inputs of every block by
#
# - **condition number**: how stretched the cloud is, the largest standard deviation along a direction over the
#   smallest (directions without any variance, see below, are left out);
# - **effective rank** (participation ratio): how many directions share the variance, $(\sum\lambda)^2 / \sum\lambda^2$
#   with $\lambda$ the eigenvalues of $S_{xx}$: 1 for a needle, $d$ for a ball;
# - **dynamic range**: standard deviation of the *loudest* feature (the one that varies most) over that of the median
#   one;
# - **position 0**: mean norm of the rows at the first position over the mean norm elsewhere.

# %%
from howlinear.core.ceilings import NULL
from howlinear.ideas.inputs import describe_inputs, null_directions, summarise

described = describe_inputs({name: stored.blocks for name, stored in captures.items()})
# an eigenvalue below the threshold for null directions is rounding noise, see below
inputs = run.record("inputs", described.assign(null=described["null"].where(described["null"] > NULL, 0.0)))
by_model = inputs.groupby("model", sort=False)
by_model[["condition", "effective_rank", "dynamic_range"]].agg(["min", "max"]).round(1)

# %% [markdown]
# ## Figure: what the inputs look like, block by block
#
# **How to read it.** Four views of the same clouds, against depth; one colour, marker and line per model. In the first
# three, up means *more stretched* (a), *more directions in use* (b), *one loud feature* (c). In (d), 1 says that the
# norm at position 0 is ordinary: for the input $x$ (faint lines) the normalisation all but forces that, so look at the
# output $y$ (strong lines). Sequences are cut from joined documents, so position 0 is rarely a document's beginning.

# %%
figure = plots.inputs(inputs)
run.figure(figure, "inputs")
plt.show()

# %% [markdown]
# **The direction that is not there.** A LayerNorm subtracts the mean of its $d$ features, so after undoing its gain $g$
# and bias $\beta$ they always sum to zero: $\sum_i (x_i - \beta_i)/g_i = 0$ for every row. One of the $d$ directions
# has no variance at all, only float32 rounding noise. RMSNorm (Llama's) subtracts no mean, so no direction is lost. The
# table below shows eigenvalues of the inputs' correlation matrix, divided by the largest. `smallest, at most` is the
# largest of the blocks' smallest eigenvalues; `next, at least` is the smallest of their second-smallest ones.

# %% tags=["nbval-check-output"]
print(null_directions(described).to_string(float_format=lambda value: f"{value:.0e}"))

# %% [markdown]
# Where `smallest, at most` lies many powers of ten below `next, at least`, it is float32 rounding, not variance. The
# two may come from different blocks, so the first can exceed the second: then no direction is missing. Notebook 02
# needs a *rule* for such null directions: a solver that trusts them fits rounding noise without a warning.

# %%
sha256 = {name: stored.rows.sha256 for name, stored in captures.items()}
run.record("rows", pd.DataFrame(sha256.items(), columns=["model", "rows_sha256"]))
run.save()

# %%
summarise(inputs)

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# | | the paper | ours |
# |---|---|---|
# | set-up | FFN after its norm, no residual; a quarter of the rows held out | the same; split by document |
# | inputs | not reported (a public referee report asks for it) | condition number, effective rank and range per block |
# | position 0 | not reported | norms of inputs and outputs there, block by block |
#
# - The FFN is a function from rows to rows; capturing it leaves the model as it was, bit for bit.
# - Normalised does not mean round: a normalisation sets the length of each row, not how rows spread over directions.
# - LayerNorm takes one direction away, RMSNorm none. Remember it; it comes back in the next notebook.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/01_capture.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** How many numbers do the moments of one block and one fold hold, for width $d$? Compare with storing
# rows of $x$ and $y$: from how many rows on are moments smaller? (Then in bytes: rows are float32, moments float64.)
#
# <details><summary>Hint</summary>
#
# Step 1: go through the six moments under *Method*, with $x$ and $y$ both of width $d$. Which of them is one number,
# which are $d$ numbers, and which are $d \times d$?
#
# Step 2: a row of $x$ and $y$ holds $2d$ numbers. After how many rows does that come to your sum?
#
# </details>

# %%
breakeven = None  # a function of d: the number of rows at which 2·rows·d numbers equal n, x̄, ȳ, Sxx, Sxy, Σ(y−ȳ)²

if breakeven is not None:
    for d in (3, kept.train[0].d_in):
        held = sum(tensor.numel() for name, tensor in hl.Moments(d, d).tensors().items() if name != "eps")
        assert np.isclose(breakeven(d), held / (2 * d)), "count again: n, two means, two matrices, one vector"
    print(f"right: at width {d}, from {breakeven(d):.1f} rows on")

# %% [markdown]
# **2 (medium).** Show that moments add up: split a block's sampled rows in two, make `hl.Moments` of each half, and add
# them. Fill in `both`.
#
# <details><summary>Hint</summary>
#
# Step 1: `hl.Moments(d_in, d_out)` is empty, and `.update(x, y)` adds rows to it and returns it. The widths are those
# of `sample.x` and `sample.y`.
#
# Step 2: `[:half]` and `[half:]` split a table so that every row is in exactly one part. Split `sample.x` and
# `sample.y` at the same place, and add the two moments with `+`.
#
# </details>

# %%
sample = captures[first].blocks[block].sample
both = None  # your sum of two Moments

if both is not None:
    whole = hl.Moments(sample.x.shape[1], sample.y.shape[1]).update(sample.x, sample.y)
    assert both.n == whole.n, "every row of the sample must be in one half, and in one only"
    for name, tensor in both.tensors().items():
        assert torch.allclose(tensor, whole.tensors()[name], rtol=1e-9, atol=1e-7), f"{name}: are these all its rows?"
    print(f"right: {both.n} rows, and nothing depends on where they were split")

# %% [markdown]
# **3 (harder).** Find the null direction of a LayerNorm from its gain alone, as a unit vector $v$ with
# $\operatorname{var}(x \cdot v) \approx 0$. (Works for models with a LayerNorm before the FFN: GPT-2, Pythia.)
#
# <details><summary>Hint</summary>
#
# Step 1: a LayerNorm centres first, then multiplies by its gain: $x = g \odot z + \beta$ with $\sum_i z_i = 0$. Express
# $z_i$ in terms of $x_i$ and substitute it into that sum.
#
# Step 2: which weights does the sum give each $x_i$? $\beta$ only adds a constant.
#
# </details>

# %%
v = None  # a tensor of shape (d,); the norm before the FFN of a GPT-2 is model.transformer.h[block].ln_2

if v is not None:
    assert abs(float(v.norm()) - 1) < 1e-5, "a unit vector: divide by its norm"
    share = float((sample.x.double() @ v.double()).var() / sample.x.double().var(0).sum())
    assert share < 1e-9, f"not null yet, x · v has {share:.0e} of all variance: which weights undo the gain?"
    print(f"right: x · v has {share:.0e} of all variance, which is rounding")
