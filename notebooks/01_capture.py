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
# **Question.** A transformer block has two halves: attention, which mixes positions, and a feed-forward network
# (FFN), which does not. If we stand beside the FFN while the model reads, what do we see?
#
# **Answer in one line.** A cloud of points going in, a cloud coming out, one point per token: the FFN is a
# function from rows to rows, and everything this project measures is a property of that function *on that cloud*.
#
# **You need** linear regression, and to know what a transformer is. **Time** about ten minutes to read, one to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
block = 4  # the block we look at closely

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import howlinear as hl
from howlinear import notebooks, style
from howlinear.capture import describe, hooked

run = notebooks.start("01_capture", profile)
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
# ## Idea
#
# Freeze a trained model and let it read. At block $\ell$ the FFN receives a row $x \in \mathbb{R}^d$ for every token
# and returns a row $y \in \mathbb{R}^d$, which is added to the residual stream. Keep the pairs $(x, y)$ and the block
# is pinned down as a regression problem: how much of $y$ can a *straight line* through the cloud explain?
#
# The paper calls this "distillation as measurement", and its figure 1 is a diagram of it. Here is ours, drawn by code.
#
# **How to read it.** Left: one block of the frozen model, bottom to top; the grey line past the boxes is the residual
# stream (in Pythia the FFN reads beside attention, not after it). The two orange taps are all we touch. Right: what we
# do with the pairs.


# %%
def box(ax, x, y, text, face="white", width=1.5, height=0.5):
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.06", fc=face, ec="0.45", lw=0.7
    )
    ax.add_patch(patch)
    ax.text(x, y, text, ha="center", va="center", fontsize=8)


def arrow(ax, start, stop, color="0.2", **kwargs):
    ax.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=8, lw=1, color=color, **kwargs))


# %%
tap = style.ACCENT
figure, ax = plt.subplots(figsize=(style.PAGE, 2.9))
box(ax, 1.2, 0.4, "text, token rows")
box(ax, 1.2, 1.5, "attention", face="#f0f0f0")
box(ax, 1.2, 2.6, "norm", face="#f0f0f0")
box(ax, 1.2, 3.7, "FFN", face="#dbe9f6")
box(ax, 1.2, 4.8, "residual stream")
for low in (0.4, 1.5, 2.6, 3.7):
    arrow(ax, (1.2, low + 0.31), (1.2, low + 0.79))
for height, name in ((3.15, "$x$"), (4.25, "$y$")):
    ax.plot([1.2], [height], "o", color=tap, ms=6, zorder=5)
    arrow(ax, (1.35, height), (4.1, height), color=tap)
    ax.text(3.22, height + 0.1, f"{name}, one row per token", ha="center", color="0.15")
arrow(ax, (0.4, 0.6), (0.4, 4.6), color="0.6", connectionstyle="arc3,rad=-0.2")  # the skip connection
box(ax, 5.3, 3.7, "pairs $(x, y)$\nsplit by document", width=2.1, height=1.5, face="#fdf3df")
ax.text(6.5, 4.5, "train", color="0.3")
ax.text(6.5, 2.68, "held out", color="0.3")
arrow(ax, (6.45, 4.0), (7.35, 4.6))
arrow(ax, (6.45, 3.4), (7.35, 2.9))
box(ax, 8.7, 4.7, "train: exact least squares\n$y \\approx xW + b$", width=2.5, height=0.9)
box(ax, 8.7, 2.8, "held out: share explained\n$R^2_{\\mathrm{lin}}$", width=2.5, height=0.9)
arrow(ax, (8.7, 4.18), (8.7, 3.32))
box(ax, 8.7, 0.9, "swap the map in\n$\\Delta$ perplexity", width=2.5, height=0.9)
arrow(ax, (8.7, 2.28), (8.7, 1.42))
ax.plot([7.3, 2.2, 2.2], [0.9, 0.9, 3.7], "--", color="0.45", lw=1)
arrow(ax, (2.21, 3.7), (1.98, 3.7), color="0.45")
ax.text(4.9, 1.02, "the map takes the FFN's place", ha="center", color="0.3")
ax.set(xlim=(-0.25, 10.1), ylim=(0.0, 5.4))
ax.axis("off")
run.figure(figure, "diagram")
plt.show()

# %% [markdown]
# ## Method
#
# A *site* is a pair of modules: the one whose input is $x$, and the one whose output is $y$. `hl.sites` finds them,
# and `hl.capture` listens there while the model reads once. Nothing in the model changes; let us check that before we
# trust it. We run the same tokens with and without listeners and compare the model's outputs bit by bit.

# %%
model = run.model(first)
block = min(block, len(hl.sites(model)) - 1)
for site in hl.sites(model)[:3]:
    print(site.block, site.name, type(site.output).__name__)
rows = run.corpus(run.corpora[0], model).rows(run.rows, run.seq_len, run.seed)
print("sequences:", tuple(rows.ids.shape), "held out:", int(rows.test.sum()), "folds a side:", len(rows.fold.unique()))

# %% tags=["nbval-check-output"]
seen = {}
with torch.inference_mode():
    before = model(rows.ids[:4]).logits
    with hooked(hl.sites(model, [block]), lambda site, x, y: seen.update(x=x, y=y)):
        during = model(rows.ids[:4]).logits
    by_hand = hl.sites(model, [block])[0].output(seen["x"])
print("logits the same while we listen:", torch.equal(before, during))
print("y is what the FFN makes of x:   ", torch.equal(by_hand, seen["y"]), tuple(seen["x"].shape))

# %% [markdown]
# Stored rows grow with the text. For anything linear they are not needed: it is enough to keep the *moments*, which
# stay the same size for ever,
#
# $$ n,\quad \bar x,\quad \bar y,\quad S_{xx} = \sum (x-\bar x)(x-\bar x)^\top,\quad
#    S_{xy} = \sum (x-\bar x)(y-\bar y)^\top,\quad \textstyle\sum (y-\bar y)^2 . $$
#
# They add up: the moments of two piles of rows give the moments of both (`a + b`). So the documents are dealt into
# *folds*, eight on the side we fit on and eight on the side held out, and each fold keeps its own moments; later we
# leave out one fold at a time to get error bars. Beside the moments, a bounded random sample of rows is kept as it is.
#
# A *document* here is one docstring, one function or one piece of a header (in your own text file: what blank lines
# separate). Equal documents never fall on both sides, but pieces of one file may.

# %% [markdown]
# ## Run
#
# One forward pass per model (or a look at the stored one). We describe the inputs of every block by
#
# - **condition number**: how stretched the cloud is, the largest standard deviation along a direction over the
#   smallest (directions without any variance, see below, are left out);
# - **effective rank** (participation ratio): how many directions share the variance, $(\sum\lambda)^2 / \sum\lambda^2$
#   with $\lambda$ the eigenvalues of $S_{xx}$: 1 for a needle, $d$ for a ball;
# - **dynamic range**: standard deviation of the loudest feature over that of the median one;
# - **position 0**: mean norm of the rows at the first position over the mean norm elsewhere.

# %%
captures = {name: run.capture(name) for name in run.models}
statistics = {name: [describe(kept) for kept in captures[name].blocks.values()] for name in captures}
inputs = pd.concat({name: pd.DataFrame(found) for name, found in statistics.items()}, names=["model", "block"])
inputs.groupby("model", sort=False)[["condition", "effective_rank", "dynamic_range"]].agg(["min", "max"]).round(1)

# %% [markdown]
# ## Figure: what the inputs look like, block by block
#
# **How to read it.** Four views of the same clouds, against depth; one colour, marker and line per model. In the
# first three, up means *more stretched* (a), *more directions in use* (b), *one loud feature* (c). In (d), 1 says that
# the norm at position 0 is ordinary: for the input $x$ (strong lines) the normalisation all but forces that, so look at
# the output $y$ (faint lines). Sequences are cut from joined documents, so position 0 is rarely a document's beginning.

# %%
panels = {
    "condition": "(a) condition number",
    "effective_rank": "(b) effective rank",
    "dynamic_range": "(c) dynamic range",
    "first_position_in": "(d) norm at position 0",
}
figure, axes = plt.subplots(2, 2, figsize=(style.PAGE, 4.0), sharex=True)
for ax, (column, title) in zip(axes.flat, panels.items(), strict=True):
    for name in run.models:
        ax.plot(inputs.loc[name][column], **style.look(name))
    ax.set_title(title, loc="left")
axes.flat[0].set_yscale("log")
for name in run.models:
    axes.flat[3].plot(inputs.loc[name]["first_position_out"], **style.look(name) | {"label": None}, alpha=0.4)
strong, faint = (axes.flat[3].plot([], [], color=style.GREY, alpha=alpha)[0] for alpha in (1, 0.4))
axes.flat[3].legend([strong, faint], ["input $x$", "output $y$"])
axes.flat[3].axhline(1, color=style.GREY, lw=0.6)
axes.flat[3].set_ylabel("relative to other positions")
axes.flat[0].set_ylabel("ratio of singular values")
axes.flat[1].set_ylabel("directions")
axes.flat[2].set_ylabel("loudest / median spread")
for ax in axes[1]:
    ax.set_xlabel("block")
axes.flat[0].legend()
run.figure(figure, "inputs")
plt.show()

# %% [markdown]
# **The direction that is not there.** A LayerNorm subtracts the mean of its $d$ features, so after undoing its gain
# $g$ and bias $\beta$ they always sum to zero: $\sum_i (x_i - \beta_i)/g_i = 0$ for every row. One of the $d$
# directions has no variance at all, only float32 rounding noise. RMSNorm (Llama's) subtracts none, and has no such one.
# Here are the two smallest eigenvalues of the inputs' correlation matrix, divided by the largest: over the blocks, the
# largest of the one and the smallest of the other.

# %% tags=["nbval-check-output"]
width = captures[first].blocks[0].train[0].d_in
null = inputs.groupby("model", sort=False).agg(
    width=("rank", lambda _: width),
    rank=("rank", "max"),
    **{"smallest, at most": ("null", "max"), "next, at least": ("second", "min")},
)
print(null.to_string(float_format=lambda value: f"{value:.0e}"))

# %% [markdown]
# Where the first column lies many powers of ten below the second, it is no variance but float32 rounding. Notebook 02
# needs a *rule* for such null directions: a solver that trusts them fits rounding noise, and says nothing about it.

# %%
numbers = inputs.reset_index().to_dict("records")
wide = {"condition": 0.02, "null": 1.0, "second": 0.1, "first_position_in": 0.01, "first_position_out": 0.01}
run.save({"inputs": numbers, "sha256": {name: kept.rows.sha256 for name, kept in captures.items()}}, tolerance=wide)

# %%
summary = pd.DataFrame(
    {
        "largest condition number": inputs.groupby("model", sort=False)["condition"].max().round(0),
        "mean effective rank": inputs.groupby("model", sort=False)["effective_rank"].mean().round(1),
        "null directions": width - inputs.groupby("model", sort=False)["rank"].min(),
    }
)
summary

# %% [markdown]
# ## What we learned
#
# | | the paper | ours |
# |---|---|---|
# | set-up | FFN after its norm, no residual; a quarter of the rows held out | the same; split by document |
# | inputs | not reported (a public referee report asks for it) | condition number, effective rank and range per block |
# | position 0 | not reported | figure (d): read off whether a model treats it apart |
#
# - The FFN is a function from rows to rows; capturing it leaves the model as it was, bit for bit.
# - Normalised does not mean round: compare the effective ranks with the width.
# - LayerNorm takes one direction away, RMSNorm none. Remember it; it comes back in the next notebook.
#
# ## Exercises
#
# Solutions are in `solutions/01_capture.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** How many numbers do the moments of one block and one fold hold, for width $d$? Compare with storing
# rows of $x$ and $y$: from how many rows on are moments smaller? (Then in bytes: rows are float32, moments float64.)


# %%
def breakeven(d):
    return None  # the number of rows at which 2·rows·d numbers equal n, x̄, ȳ, Sxx, Sxy and Σ(y−ȳ)² together


if (answer := breakeven(width)) is not None:
    moments = captures[first].blocks[0].train[0]
    stored = sum(tensor.numel() for tensor in moments.tensors().values())
    assert np.isclose(answer, stored / (2 * width)), "count again: n, two means, two matrices, one vector"
    print("right")

# %% [markdown]
# **2 (medium).** Show that moments add up: split a block's sampled rows in two, make `hl.Moments` of each half, and add
# them. Fill in `both`.

# %%
sample = captures[first].blocks[block].sample
both = None  # your sum of two Moments

if both is not None:
    whole = hl.Moments(sample.x.shape[1], sample.y.shape[1]).update(sample.x, sample.y)
    assert both.n == whole.n
    assert torch.allclose(both.sxy, whole.sxy, rtol=1e-10, atol=1e-8)
    print("right")

# %% [markdown]
# **3 (harder).** Find the null direction of a LayerNorm from its gain alone, as a unit vector $v$ with
# $\operatorname{var}(x \cdot v) \approx 0$. (Works for models with a LayerNorm before the FFN: GPT-2, Pythia.)

# %%
v = None  # a tensor of shape (d,); the norm before the FFN of a GPT-2 is model.transformer.h[block].ln_2

if v is not None:
    projected = (sample.x.double() @ (v.double() / v.double().norm())).var()
    assert projected < 1e-9 * sample.x.double().var(0).sum(), "not null yet: think of 1/gain"
    print("right")
