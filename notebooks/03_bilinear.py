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
# # 03 · What does a product of inputs add to the straight line?
#
# **Question.** The line leaves a share $1 - R^2_{\mathrm{lin}}$ unexplained. Add a small branch that multiplies its
# inputs in pairs. How much of that share does it win back, and does it win more where the line leaves more?
#
# **You need** notebook 02, and the chain rule. **You learn** what a product of inputs can do that a line cannot, and to
# ask of every gain whether the search would have found a planted one. **Time** 40 minutes to read, 4 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
sample_rows: int or None = None  # token rows that the probe is fitted and scored on; None: the run profile's sample
rank = 16  # products of two inputs in the branch, as in the paper
seeds = 3  # fits per block, each from another start and stopped by another train fold
steps = 100  # L-BFGS iterations per fit, at most
power_seeds: int or None = None  # fits per planted teacher; None: as many as per block
ranks = [1, 4, 16, 64]  # the sweep, as far as the sampled rows allow
swept = 3  # blocks per model in the sweep and the power check, evenly spaced
blocks: list or str or dict or None = None  # for gate, recipe and layers: numbers, or a rule like spaced 3; None: all
rates = [1e-3, 1e-2]  # learning rates of the version trained end to end
batches = 300  # steps of that version
recipe_steps = 4_000  # steps of the paper's own probe, as in the paper
control_steps = 2_000  # steps of the two-layer controls; a quarter of the paper's, to save time
swap_rows: int or None = None  # held-out token rows that the costs of swaps are measured on; None: all

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from howlinear.ideas.bilinear.probe import ranks_within
from howlinear.instrument.resample import resampled
from howlinear.instrument.selection import choose_blocks, selected
from howlinear.notebook.run import start
from howlinear.plots import bilinear as plots

run = start("03_bilinear", profile, model, corpus)
captures = {name: run.capture(name) for name in run.models}
language_models = {name: run.model(name) for name in run.models}
models = {}  # model → block → sampled rows
for name, stored in captures.items():
    models[name] = resampled(stored, language_models[name], sample_rows)
first = next(iter(models))

first_blocks = []  # one of each model: all its blocks have the same tokens
for of_model in models.values():
    first_blocks.append(next(iter(of_model.values())))
ranks = ranks_within(ranks, first_blocks)
sampled = len(first_blocks[0].rows().x)
some = selected(models, blocks)
print("models:", ", ".join(models), "· text:", run.corpora[0], "·", sampled, "sampled rows, a quarter held out")
for name, of_model in some.items():
    print(f"{name}: gains of {len(models[name])} blocks; gate, recipe and layers of blocks", *of_model)

# %% [markdown]
# ## Predict first
#
# 1. A branch of sixteen products, next to a map of hundreds of inputs: does it recover a tenth of what the line leaves,
#    a third, most of it?
# 2. Plot the gain against what the line leaves, a point per block. The paper sees a cloud without a slope (Pearson
#    $r \approx 0$). Do you?
# 3. Put a gate $g$ in front of the branch, train everything, and find that $g$ has gone from 1 to 0.2. Has the model
#    switched the branch off?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# After the line, the next simplest function is a *product*: $(a \cdot x)(b \cdot x)$ is a saddle, bent up along one
# direction and down along another, or only up if $a$ and $b$ are parallel. Sixteen such products, mixed into the
# outputs, make a bilinear branch of rank 16. If the residual is bent in few directions, the branch recovers most of it;
# if it is bent a little in every direction, or in a way that no product bends, the branch recovers little.
#
# A small gain by itself says nothing: perhaps there was nothing to find, perhaps we searched badly. So we also test the
# search: the same probe on the same rows must find a branch that *we* planted, and none in shuffled rows.

# %% [markdown]
# ## Method
#
# $$ \hat y = xW + b + [(zA) \odot (zB) - \ell(z)]\,U + c, \qquad A, B, U^\top \in \mathbb R^{d \times 16} $$
#
# with $W, b$ from the closed form of notebook 02. $z$ is $x$ centred and whitened: turned and scaled so that its
# features are uncorrelated and have variance 1; directions in which $x$ does not vary are left out. $\ell$ are lines,
# see below. Three decisions are ours; the paper's own recipe is run for comparison further down:
#
# - **Search only for what needs a search.** For given $A, B$, finding $U$ and $c$ is plain least squares. So the loss
#   is a function of $A$ and $B$ alone (*variable projection*), and its gradient is the one with $U$ held fixed. L-BFGS
#   does the rest: `probe.branch`.
# - **Let $W$ make room.** If inputs are skewed, a product has a straight part, which $W$ has already explained. So each
#   product's own regression on $z$, the line $\ell(z)$, is subtracted from it first. This amounts to solving for $W$
#   anew together with $U$.
# - **Stop on rows not fitted.** A train fold decides which iteration, if any, is kept; twenty without gain end the
#   search.
#
# <details><summary>Refresher: variable projection</summary>
#
# Some unknowns need no search once the others are given. Hold $A$ and $B$ fixed: the products minus their lines, $H =
# (ZA) \odot (ZB) - \ell(Z)$, are then columns of numbers, and the best $U$ and $c$ on them are a least-squares fit. So
# substitute these, and search for the minimum of $L(A, B) = \min_{U, c} \lVert E - HU - \mathbf 1 c^\top \rVert_F^2$
# alone, where $E$ is the residual of the line. By the chain rule the derivative of $L$ with respect to $A$ is $\partial
# L / \partial A$, with $U$ held fixed, plus $\partial L / \partial U$ times the derivative of $U$. But at the best $U$,
# $\partial L / \partial U$ is 0, so the second part vanishes, and we need not know how $U$ depends on $A$ (Golub &
# Pereyra 1973).
#
# </details>
#
# The gain is $R^2_{\mathrm{poly}} - R^2_{\mathrm{lin}}$, both on *the same* held-out rows of the sample, which is why
# `r2` differs a little from notebook 02's, scored on all held-out rows. The gain's interval adds two variances: a
# jackknife over held-out folds, and one over fits that each leave out a different train fold (`probe.probe`).
#
# By construction the gain cannot exceed $1 - R^2_{\mathrm{lin}}$: the cloud of points lies under a diagonal, which
# alone can give it a slope. So we also report the *share recovered*, gain $/\,(1 - R^2_{\mathrm{lin}})$.
#
# An example on four rows: the corners of a square, and $y = x_1 x_2$ (exclusive or). No line explains any of $y$. For
# three choices of $a$ and $b$ we subtract the product's line, solve for $u$, and see what share of $y$ is recovered.

# %%
corners = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
ones = np.column_stack([np.ones(4), corners])


def off_the_line(values):
    """What the best line through the four corners leaves."""
    return values - ones @ np.linalg.lstsq(ones, values)[0]


product = corners[:, 0] * corners[:, 1]
e = off_the_line(product)
directions = [
    ([1, 0], [1, 0]),  # a square
    ([1, 0], [0, 1]),  # the product itself
    ([1, 1], [1, 1]),  # (x₁ + x₂)²
]
for a, b in directions:
    feature = off_the_line((corners @ a) * (corners @ b))
    u = feature @ e / max(feature @ feature, 1e-12)  # least squares: the readout needs no search
    missed = np.square(e - feature * u).sum()
    recovered = 1 - missed / np.square(e).sum()
    print(f"a = {a}, b = {b}: u = {u:.1f}, recovers {recovered:.0%}")

# %% [markdown]
# The first product is the same number at every corner, so nothing of it is left to fit with. The other two differ only
# by a constant and a factor, which $c$ and $u$ undo. When a good pair has to be *found*, the search minimises the share
# left, over all of $A$ and $B$ at once.

# %% [markdown]
# ## Run
#
# First: would the probe see a branch if there were one? On each block's own inputs we try four targets: a teacher of
# the same rank (*planted*); the same teacher as a quarter of the variance, added to the block's residual with its rows
# shuffled (*hidden*); a teacher that multiplies three inputs (*cubic*); and the shuffled residual alone (*shuffled*).
# Numbers are shares of variance recovered on held-out rows: of the teacher's, or for *shuffled* of the residual's. The
# limits printed below the table are our choice. Then come the blocks themselves.

# %%
from howlinear.ideas.bilinear import measure

power = run.record("power", measure.power_table(models, swept, rank, power_seeds or seeds, steps))
power.set_index(["model", "block"])

# %% tags=["nbval-check-output"]
print("the probe finds what is planted (≥ 0.9 everywhere):", bool((power.planted >= 0.9).all()))
print("it finds nothing in shuffled rows (≤ 0.005 everywhere):", bool((power.shuffled <= 0.005).all()))
print("it takes no cubic for a product (≤ 0.5 everywhere):", bool((power.cubic <= 0.5).all()))
print("of a hidden teacher it finds 0.4 or more (everywhere):", bool((power.hidden >= 0.4).all()))

# %%
probes = measure.probe_blocks(models, rank, seeds, steps)
unrounded = measure.block_table(probes)
probed = run.record("blocks", unrounded)
probed.pivot(index="block", columns="model", values="gain")[list(models)]

# %% [markdown]
# **Massive rows.** For a few tokens, above all the first of a sequence, some blocks write outputs far larger than all
# others (notebook 12). There a single row of each sequence carries most of the variance, so $R^2$ and the gain are
# about that row. Sampling does not help: rows are drawn evenly, so massive rows have the same share in the sample as in
# the text. So we list the blocks that have any, and run the probe once more without these rows, in the line, the fit
# and the score.

# %%
from howlinear.instrument.massive import MULTIPLE

massive = measure.massive_table(models)
unrounded_ordinary = measure.ordinary_table(models, massive, rank, seeds, steps)
ordinary = run.record("ordinary", massive.merge(unrounded_ordinary, on=["model", "block"]))
print(f"massive: an output norm beyond {MULTIPLE:g} medians; sampled in the share in which the text has them")
of_all = probed[["model", "block", "r2", "gain", "recovered"]]
both = ordinary.merge(of_all, on=["model", "block"], suffixes=("", "_of_all"))
run.shown(both.set_index(["model", "block"]).round(2), "No block of this run's models has a massive row.")

# %% [markdown]
# Does the gain grow with what is left? The table has Pearson's $r$ over the blocks of each model, with Fisher's
# interval and a permutation p-value: how often a shuffled pairing correlates as strongly. Blocks of several models are
# not pooled, since models differ in level. Twelve blocks are few, and a single outlier can decide $r$: *inner* leaves
# out the first and the last block, *lowest* and *highest* are the extremes of $r$ when any one block is left out. If
# nothing varies, or there are fewer than six blocks, no $r$ is given.

# %%
views = {"gain": unrounded, "recovered": unrounded}
if len(ordinary):  # blocks with massive rows enter by their ordinary rows
    views["gain of ordinary rows"] = measure.replace_massive_blocks(unrounded, unrounded_ordinary)
correlations = run.record("correlations", measure.correlation_table(views, run.seed))
correlations.set_index(["of", "model"]).round(2)

# %% tags=["nbval-check-output"]
of_gain = correlations[correlations["of"] == "gain"]
for name in of_gain.model[of_gain.r.isna()]:
    print(f"{name}: no r, since blocks are fewer than six, or nothing varies over them")
for row in of_gain.dropna(subset="r").itertuples():
    largest = probed[probed.model == row.model].gain.max()
    sign = ">" if row.r > 0 else "≤"
    inner = ">" if row.inner > 0 else "≤"
    verdict = "excludes 0" if row.r_low * row.r_high > 0 else "holds 0"
    print(f"{row.model}: largest gain {largest:.1f}; r {sign} 0, its interval {verdict}; inner blocks r {inner} 0")

# %% [markdown]
# How many of these digits are reliable? The search builds every step from differences of nearby gradients, so rounding
# differences between processors grow along the way, up to the third digit of an interval's end, which rests on a few
# fits (more precise arithmetic does not help, see `ideas/bilinear/probe.py`). So read two digits of a gain.

# %% [markdown]
# ## Figure: what products win back (the paper's figure 3)
#
# **How to read it.** (a) A point per block: the share that the line leaves, and how much of it sixteen products win
# back. On the grey line they win back all of it. A cloud without a slope would be the paper's $r \approx 0$. (b) The
# share recovered, against depth. Bars are 95 % intervals; those of (b) treat what is left as fixed. If a model is the
# paper's own, the paper's values are drawn behind, thin and grey. If a bar reaches beyond all that could be won back,
# only points set the scale, and the bar leaves the panel; so does a bar of (b) that is wider than 1.

# %%
from howlinear.files import published

papers = published.of_models(run.models)
beside = None if papers.empty else papers
figure = plots.gain(probed, rank, beside)
run.figure(figure, "gain")
plt.show()

# %% [markdown]
# How far is this run from the paper's values for its models? The paper's probe and rows are not ours, so its own recipe
# (see below) is run on its own 11,981 train rows, and scored by its $R^2$ (`recipe.papers_gain`).

# %%
from howlinear.notebook import paper

by_recipe = measure.papers_recipe_table(paper.lay_out(run), rank, recipe_steps, run.seed)
cells = published.beside(by_recipe, probed, {"bilinear_gain_r16": ("gain", "gain")})
if len(cells):
    run.folded("cell by cell", run.record("paper", cells).round(4))
run.shown(published.compare_with_paper(cells).round(3), paper.NONE)

# %% [markdown]
# **Is sixteen the right rank?** For a few blocks per model we increase the rank, with one fit each. Can we trust the
# result? In the middle one of these blocks we hide a teacher *of that rank*: a quarter of the variance, spread over
# ever more products. If the probe misses it, the rows are too few for a probe of that rank: it may find part of what
# the block has, and we do not know what it misses. So if the share still grows beyond sixteen, sixteen products are not
# enough; if it stops growing and the teacher is missed too, nothing follows about the block.

# %%
swept_ranks = run.record("ranks", measure.rank_table(models, ranks, swept, steps))
by_rank = swept_ranks.groupby(["model", "rank"], sort=False)[["recovered", "hidden"]].median()
by_rank.rename(columns={"recovered": "recovered (median)", "hidden": "hidden teacher"}).unstack("rank").round(2)

# %% [markdown]
# ## Figure: rank, and power
#
# **How to read it.** (a) Share of the residual recovered against rank, one thin line per block, the median thick; the
# dotted line is the paper's rank. (b) What the probe recovers of four targets whose answer we know, next to the real
# residuals: *planted* must be at 1, *shuffled* at 0.

# %%
figure = plots.rank(swept_ranks, power, probed, rank)
run.figure(figure, "rank")
plt.show()

# %% [markdown]
# **The gate.** The paper trains the branch end to end behind a scalar gate, and sees it close on near-linear targets.
# We train all of $W, b, A, B, U, g$ by AdamW, from the closed form with $g = 1$ and $U = 0$ (`recipe.end_to_end`), at
# several learning rates. Besides the gate we record what it stands for: the share of the output's variance that passes
# it.

# %%
gates = run.record("gates", measure.gate_table(some, rates, rank, batches))
by_rate = run.record("rates", measure.rate_table(gates, probed))
print("gates start at 1; where they end, and the gain behind them:")
print(by_rate.set_index("rate").T.round(2).to_string())

# %% [markdown]
# Do gates and shares grow with what the line leaves? Spearman's $\rho$ with $1 - R^2_{\mathrm{lin}}$, over the blocks
# of each model:

# %%
left = gates.merge(probed[["model", "block", "r2"]], on=["model", "block"])
left["left"] = 1 - left["r2"]
of_gates = left.groupby(["model", "rate"], sort=False)[["left", "gate", "share"]]
follows = of_gates.corr("spearman")["left"].unstack()[["gate", "share"]]
follows.round(2)

# %% [markdown]
# ## Figure: the gate, and what it lets through
#
# **How to read it.** A point per block, near-linear ones to the left; filled at the higher learning rate, open at the
# lower. (a) The gate where training stopped; below the dotted line it has begun to close. (b) What the branch adds to
# the output. If a closed gate meant an idle branch, the points of (b) would lie low wherever those of (a) do. Compare
# blocks of one model: models differ in level.

# %%
figure = plots.gate(gates, probed)
run.figure(figure, "gate")
plt.show()

# %% [markdown]
# **The paper's recipe.** The paper's probe differs from ours in three ways: it trains the products by Adam, on inputs
# as they come, for at most 4,000 steps of 256 rows, with a separate gate on each output; it has 15.6 train rows per
# input; and every 200 steps it scores the held-out rows, and reports the best of these scores. We run that recipe on
# the same blocks and held-out rows (`recipe.recipe`), then change one thing at a time until it is our probe:
#
# $$ \text{ours} - \text{recipe} = \underbrace{\text{a fold kept apart chooses}}_{\text{selection}}
#    + \underbrace{\text{all sampled rows}}_{\text{rows}}
#    + \underbrace{\text{variable projection}}_{\text{optimiser}} . $$
#
# Each term is a difference of two gains, so the terms add up. In another order, the three changes would get somewhat
# different shares. Seed and start are the same throughout; our own gain is the mean over its fits, and both are scored
# by our $R^2$.

# %%
recipe = run.record("recipe", measure.recipe_table(some, unrounded, rank, recipe_steps, run.seed))
parts = recipe.groupby("model", sort=False)[["gain", *measure.CHANGES, "ours"]].mean()
parts.map("{:+.3f}".format).T

# %% tags=["nbval-check-output"]
summed = recipe[["gain", *measure.CHANGES]].sum(axis=1)
print("recipe and changes add up to our probe in every block:", bool(np.allclose(summed, recipe.ours, atol=1e-9)))
print("our probe gains more than the recipe on the mean:", (parts.ours > parts.gain).to_dict())

# %% [markdown]
# ## Figure: two probes on the same rows
#
# **How to read it.** (a) Gain per block: filled our probe, open the paper's recipe. (b) What each change adds to $R^2$:
# a bar is the mean over a model's blocks, a point is one block. Selection can only cost: choosing on the scored rows
# gives the best score there.

# %%
figure = plots.recipe(recipe)
run.figure(figure, "recipe")
plt.show()

# %% [markdown]
# **Depth, or products?** The paper's controls: *dense 2×* is Linear → GELU → Linear with $2d^2$ numbers, *poly 2×* the
# same with rank-16 products in both layers. Both are trained by AdamW on the first, the middle and the last of the
# blocks, here for a quarter of the paper's 8,000 steps; the step is chosen on a train fold set aside
# (`layers.control`). Two linear layers without the GELU would be one line, so what dense 2× adds to the line is a
# hidden layer with GELU. Comparing poly 2× with dense 2× shows what products add to that. It cannot show that a block
# needs no products: GELU(h) is about $h/2 + 0.4\,h^2$ near 0 (notebook 02), so the hidden layer has squares of its own.

# %%
controls = run.record("controls", measure.control_table(some, swept, rank, control_steps))
controls.pivot_table(index=["model", "block"], columns="control", values="r2", sort=False)

# %% [markdown]
# Besides $R^2$ the paper gives the mean *cosine* of outputs and predictions, the *root mean squared error*, and a
# *conjunction index*. Let $r(x)$ be the mean of a map's outputs and $A, B$ here the two halves of its inputs:
#
# $$ \text{index} = \mathbb E\,\Big[\operatorname{clip}\Big(\frac{\Delta_A + \Delta_B - \Delta_{AB}}{|\Delta_{AB}|},
#    0, 1\Big)\Big], \qquad \Delta_S = r(x) - r(x \text{ with } S \text{ at } 0) . $$
#
# For a line the halves' contributions add up, so it is 0. A product of a sum over $A$ and a sum over $B$ needs both
# halves: 1 on rows where it is positive and, by the clipping, 0 where it is negative. On positive inputs:

# %% tags=["nbval-check-output"]
import torch

from howlinear.ideas.bilinear.layers import conjunction

halves = torch.from_numpy(corners) + 3
planted = {
    "line": lambda x: x @ torch.tensor([[2.0], [-1.0]]).double() + 5,
    "product of the halves": lambda x: x[:, :1] * x[:, 1:],
    "square of one half": lambda x: x[:, :1].square(),
    "line and product": lambda x: 3 * x[:, :1] + x[:, :1] * x[:, 1:],
}
for name, map_ in planted.items():
    print(f"{name}: {conjunction(map_, halves):.2f}")

# %%
built = measure.build_layers(some, probes)
measures = measure.measure_table(some, built, swept)
measures.groupby("model", sort=False).mean().drop(columns="block").round(2)

# %% [markdown]
# Does the language model notice the products? We replace each block by its line, then by the line with the products of
# one fit of our probe, and let the model read the held-out text. (For its perplexities the paper trains the whole
# layer, including the line, for 12,000 steps; ours is the closed form and a probe fitted on some thousand rows.) The
# column `saved` is the share of the line's cost that products save; it is empty where the interval of this cost
# reaches 0. An encoder predicts no next token, so it has no perplexity and no points in panel (b).

# %%
texts = {}  # model → rows whose held-out side is scored
costed = {}  # the same by text, for models that have a perplexity
for name, stored in captures.items():
    texts[name] = stored.rows.with_fewer_held_out(swap_rows)
    if stored.about["perplexity"] is None:
        print(f"{name} predicts no next token: no swap of it has a cost in perplexity")
    else:
        costed[name] = {run.corpora[0]: texts[name]}
run.record_held_out(costed)
swaps = measure.swap_table(language_models, built, texts)
layers = run.record("layers", measures.merge(swaps, how="left", on=["model", "block"]))
layers.pivot(index="block", columns="model", values=["dppl", "dppl_poly", "saved"])

# %% [markdown]
# ## Figure: depth and products
#
# **How to read it.** (a) A line per block, with the block's number at its right end: $R^2$ of the straight line, of the
# line with sixteen products, and of the two controls, which differ only in products. (b) What the swap costs in
# perplexity (linear up to 1, logarithmic beyond), filled for the line, open with products. Bars are 95 % intervals. The
# paper's values for its own models are thin and grey, for orientation only: they are from another part of the text, and
# its line and products are trained together. (Notebook 02 has the line's cost by the paper's protocol.)

# %%
figure = plots.layers(probed, controls, layers, beside)
run.figure(figure, "layers")
plt.show()

# %%
settings = {"rank": rank, "seeds": seeds, "steps": steps, "ranks": ranks, "rates": rates, "batches": batches}
run.save(settings=settings | {"recipe_steps": recipe_steps, "control_steps": control_steps, "sampled": sampled})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()


# %%
def per_model(table, entry):
    """`entry` filled with each row of a table that has a row a model."""
    return "; ".join(entry.format(model=name, **row) for name, row in table.iterrows())


spans = probed.groupby("model", sort=False)[["gain", "recovered"]].agg(["min", "max"])
gain_spans = per_model(spans["gain"], "{model} {min:.2f} to {max:.2f}")
share_spans = per_model(spans["recovered"], "{model} {min:.2f} to {max:.2f}")

slopes = {}
for view, found in correlations.dropna(subset="r").set_index("model").groupby("of"):
    slopes[view] = per_model(found, "{model} {r:+.2f} [{r_low:+.2f}, {r_high:+.2f}], inner {inner:+.2f}")

by_gate = follows.reset_index("rate")
closing = per_model(by_gate, "{model} at rate {rate:g}: gate {gate:+.2f}, share {share:+.2f}")

# %%
recipe_means = per_model(parts, "{model} {gain:.3f} against {ours:.3f}")
each_change = ", ".join(f"{change} {{{change}:+.3f}}" for change in measure.CHANGES)
shares = per_model(parts, f"{{model}}: {each_change}")

both = controls.pivot_table(index=["model", "block"], columns="control", values="r2", sort=False)
apart = (both["poly2x"] - both["dense2x"]).abs()

saved = layers.dropna(subset="saved")
most = saved.loc[saved.groupby("model", sort=False)["saved"].idxmax()]
spared = per_model(most.set_index("model"), "{model} at most {saved:.0%} (block {block:.0f})")

# %%
pd.set_option("display.max_colwidth", None)
claims = [
    ("the gain is small", "almost everywhere: median below 0.01, largest 0.126", gain_spans),
    (
        "it does not follow what is left",
        "r +0.004 over 36 blocks; by model +0.05, +0.46, −0.01",
        slopes.get("gain", "no r"),
    ),
    ("… without massive rows", "not asked", slopes.get("gain of ordinary rows", "no block has any")),
    ("share of the residual recovered", "not given", share_spans),
    ("gain by the paper's own recipe, mean", "median below 0.01", recipe_means),
    ("what parts the two probes", "not asked", shares),
    ("depth, not products", "poly 2× within 0.002 of dense 2×", f"largest distance {apart.max():.3f}"),
    ("products spare perplexity in critical early blocks", "+76 → +43, about 0 later", spared),
    ("the gate closes on near-linear targets", "it de-recruits", "ρ with what is left, " + closing),
]
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - A probe that misses what is planted cannot show that a gain is small: that is why its power is measured first.
# - $g$, $U$, $A$ and $B$ enter only as a product, so a gate can close while the others grow, and its final value
#   depends on the optimiser. What a branch adds shows whether it is idle: trust the share, not the gate.
# - The recipe's gain and ours differ for reasons that have nothing to do with the block: a short training, few rows,
#   and a choice made on the rows that are scored. The three terms say how much each contributes.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/03_bilinear.py`; try first. Each cell checks your answer when you fill it in. All use this
# block, and a branch fitted to it:

# %%
from howlinear.ideas.bilinear.probe import branch, residual_rows, scores

(middle,) = choose_blocks("depth 0.5", models[first])
rows = residual_rows(models[first][middle])
fitted = branch(rows, rank, seed=0, steps=steps)

# %% [markdown]
# **1 (warm-up).** What does the branch cost? Count the numbers in $A$, $B$, $U$, and divide by those of a linear map
# from $z$ to $y$.
#
# <details><summary>Hint</summary>
#
# Step 1: `fitted.left` is $A$, `fitted.right` is $B$ and `fitted.readout` is $U$; `.shape` says how large a table is,
# and `.numel()` how many numbers it holds.
#
# Step 2: a map from $z$ to $y$ has as many rows as `rows.z` has columns, and as many columns as `rows.e`, which is $y$
# minus the line.
#
# </details>

# %%
relative_size = None  # for this block: rows.z has as many columns as A has rows, rows.e as many as U

if relative_size is not None:
    counted = fitted.left.numel() + fitted.right.numel() + fitted.readout.numel()
    assert np.isclose(relative_size, counted / (rows.z.shape[1] * rows.e.shape[1])), "A and B: d × r each; U: r × d_out"
    print("right:", round(relative_size, 2))

# %% [markdown]
# **2 (medium).** Shrink the readout, as a closing gate would, without changing the function: make a branch with $A$ ten
# times larger and $U$ ten times smaller. `dataclasses.replace(fitted, …)` makes it; `slope` and `level`, each product's
# line, change too.
#
# <details><summary>Hint</summary>
#
# Step 1: the branch computes $((zA) \odot (zB) - \text{level} - z\,\text{slope})\,U$ plus a constant. By which factor
# does $(zA) \odot (zB)$ grow if $A$ grows tenfold?
#
# Step 2: what is subtracted from the products must grow as they do, and $U$ must undo the growth. Which of `left`,
# `right`, `slope`, `level`, `readout` and `intercept` stay as they are?
#
# </details>

# %%
disguised = None  # a Branch

if disguised is not None:
    assert torch.allclose(disguised.left, 10 * fitted.left), "A is to be ten times larger"
    assert torch.allclose(disguised.readout, fitted.readout / 10), "the readout is to be ten times smaller"
    moved = float((disguised(rows.z) - fitted(rows.z)).abs().max() / rows.e.std())
    assert moved < 1e-3, "not the same function: what does a product's line become if the product grows tenfold?"
    print(f"right: a readout of a tenth, and no output moves by more than {moved:.0e} standard deviations")

# %% [markdown]
# **3 (harder).** How much of its train rows has the branch learned by heart? With $e$ the residual of the line
# (`rows.e`), compute the share of $\sum \lVert e \rVert^2$ that it recovers on the rows it may have seen
# (`~rows.test`), and on held-out rows.
#
# <details><summary>Hint</summary>
#
# Step 1: `fitted(rows.z)` is the branch's prediction for every row; what it leaves is `rows.e` minus that.
#
# Step 2: the share is one minus a ratio of two sums, each over the rows of one side and all features.
#
# </details>

# %%
by_heart = None  # a pair: the share recovered on rows it may have seen, the share on held-out rows

if by_heart is not None:
    seen, unseen = by_heart
    line, poly = scores(rows, fitted(rows.z))
    assert np.isclose(unseen, (poly[0] - line[0]) / (1 - line[0]), atol=1e-5), "second, held-out rows, and no centring"
    error = (rows.e - fitted(rows.z))[~rows.test].square().sum()
    total = rows.e[~rows.test].square().sum()
    assert np.isclose(seen, 1 - float(error / total), atol=1e-5), "first, train rows only, and no centring"
    print("right: optimism of", round(seen - unseen, 3))
