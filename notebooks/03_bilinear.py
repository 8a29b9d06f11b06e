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
# **Answer in one line.** More than a few points, if the probe can be believed: read the table *power*, then the gains.
#
# **You need** notebook 02, and the chain rule. **Time** ten minutes to read, about three to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
rank = 16  # products of two inputs in the branch; the paper's
seeds = 3  # fits per block, each from another start and stopped by another train fold
steps = 100  # most L-BFGS iterations per fit
ranks = [1, 4, 16, 64]  # the sweep
swept = 3  # blocks per model in the sweep and the power check, evenly spaced
rates = [1e-3, 1e-2]  # learning rates of the version trained end to end
batches = 300  # its steps

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.stats import BootstrapMethod, ConstantInputWarning, PermutationMethod, pearsonr, spearmanr

from howlinear import notebooks, style
from howlinear.bilinear import branch, probe, residual_rows, scores
from howlinear.gated import end_to_end
from howlinear.planted import hidden_teacher, power

warnings.simplefilter("ignore", ConstantInputWarning)  # `correlate`, below, says what it then does
run = notebooks.start("03_bilinear", profile)
captures = {name: run.capture(name) for name in run.models}
first = next(iter(run.models))
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.sample, "sampled rows, a quarter held out")

# %% [markdown]
# ## Predict first
#
# 1. A branch of sixteen products, beside a map of hundreds of inputs: does it recover a tenth of what the line leaves,
#    a third, most of it?
# 2. Plot the gain against what the line leaves, a point per block. The paper sees a cloud without a slope (Pearson
#    $r \approx 0$). Do you?
# 3. Put a gate $g$ in front of the branch, train everything, and find that $g$ has gone from 1 to 0.2. Has the model
#    switched the branch off?

# %% [markdown]
# ## Idea
#
# After the line, the next plainest thing is a *product*: $(a \cdot x)(b \cdot x)$ is a plane that is bent once. Sixteen
# such products, mixed into the outputs, make a bilinear branch of rank 16. If the residual is bent in few directions,
# the branch takes most of it; if it is bent a little in every direction, or as no product is, it takes little.
#
# A small gain by itself says nothing: perhaps there was nothing to find, perhaps we looked badly. So we look twice. The
# same probe, on the same rows, must find a branch that *we* planted, and must not find one in shuffled rows.

# %% [markdown]
# ## Method
#
# $$ \hat y = xW + b + [(xA) \odot (xB)]\,U + c, \qquad A, B, U^\top \in \mathbb R^{d \times 16} $$
#
# with $W, b$ at the closed form of notebook 02. Three decisions, all ours, since the paper is silent:
#
# - **Search only for what needs a search.** For given $A, B$, finding $U$ and $c$ is plain least squares. So the loss
#   is a function of $A$ and $B$ alone (*variable projection*), and its gradient is as if $U$ stood still. L-BFGS does
#   the rest: `bilinear.branch`.
# - **Let $W$ make room.** Where inputs are skewed, a product has a straight part, and $W$ has explained what is
#   straight already. So each product's regression on $x$ is taken off it first, as if $W$ were solved anew.
# - **Stop by rows not fitted.** One train fold decides which iteration, if any, is kept; twenty without gain end it.
#
# The gain is $R^2_{\mathrm{poly}} - R^2_{\mathrm{lin}}$, both on *the same* held-out rows of the sample, which is why
# `r2_lin` differs a little from notebook 02's, scored on all held-out rows. Its interval adds two variances: a
# jackknife over held-out folds, and one over fits, each without another train fold (`bilinear.probe`).
#
# By construction the gain cannot exceed $1 - R^2_{\mathrm{lin}}$: the cloud of points lies under a diagonal, which
# alone can give it a slope. So we also report the *share recovered*, gain $/\,(1 - R^2_{\mathrm{lin}})$.

# %% [markdown]
# ## Run
#
# First: would the probe see a branch if there was one? On each block's own inputs we plant a teacher of the same rank
# (*planted*), hide it in the block's residual with rows shuffled so that it makes up a quarter of the variance
# (*hidden*), plant a teacher that multiplies three inputs (*cubic*), and shuffled rows alone (*shuffled*). Numbers are
# shares of the planted variance recovered on held-out rows. Then come the blocks themselves.


# %%
def spaced(blocks):
    return [list(blocks)[i] for i in np.linspace(0, len(blocks) - 1, swept).round().astype(int)]


spots = [(name, block) for name, stored in captures.items() for block in spaced(stored.blocks)]
checked = {spot: vars(power(captures[spot[0]].blocks[spot[1]], rank, seeds, steps=steps)) for spot in spots}
powers = pd.DataFrame(checked).T.rename_axis(["model", "block"]).rename(columns={"in_noise": "hidden"})
powers.round(3)

# %% tags=["nbval-check-output"]
print("the probe finds what is planted (≥ 0.95 everywhere):", bool((powers.planted >= 0.95).all()))
print("it finds nothing in shuffled rows (≤ 0.005 everywhere):", bool((powers.shuffled <= 0.005).all()))
print("it takes no cubic for a product (≤ 0.5 everywhere):", bool((powers.cubic <= 0.5).all()))
print("of a hidden teacher it finds more than a quarter (everywhere):", bool((powers.hidden > 0.25).all()))

# %%
places = [(name, block) for name, stored in captures.items() for block in stored.blocks]
found = {place: probe(captures[place[0]].blocks[place[1]], rank, seeds, steps) for place in places}
frame = pd.DataFrame({place: vars(one) for place, one in found.items()}).T.drop(columns="by_seed").astype(float)
frame = frame.rename_axis(["model", "block"]).assign(left=1 - frame.r2_lin)
frame["recovered"] = frame.gain / frame.left
frame["gain"].unstack("model")[list(run.models)].round(3)

# %% [markdown]
# Does the gain follow what is left? Pearson's $r$ over blocks, with a bootstrap interval (blocks drawn with
# replacement) and a permutation p-value: how often a shuffled pairing correlates as strongly. Where nothing varies, $r$
# is undefined; we then write $r = 0$, from −1 to 1, with $p = 1$.


# %%
def correlate(x, y):
    rng = np.random.default_rng(run.seed)
    test = pearsonr(x, y, method=PermutationMethod(n_resamples=9_999, rng=rng))
    ends = test.confidence_interval(method=BootstrapMethod(n_resamples=9_999, method="percentile", rng=rng))
    values = {"r": (test.statistic, 0), "low": (ends.low, -1), "high": (ends.high, 1), "p": (test.pvalue, 1)}
    return {key: float(value if np.isfinite(value) else other) for key, (value, other) in values.items()}


groups = {name: frame.loc[name] for name in run.models} | {"all": frame}
with_gain = pd.DataFrame({name: correlate(group.left, group.gain) for name, group in groups.items()}).T
with_share = pd.DataFrame({name: correlate(group.left, group.recovered) for name, group in groups.items()}).T
pd.concat({"gain": with_gain, "share recovered": with_share}).round(3)

# %% tags=["nbval-check-output"]
verdict = np.where(with_gain.low * with_gain.high > 0, "excludes 0", "holds 0")
for (name, group), r, says in zip(groups.items(), with_gain.r, verdict, strict=True):
    print(f"{name}: largest gain {group.gain.max():.1f}; r {'>' if r > 0 else '≤'} 0, its interval {says}")

# %% [markdown]
# ## Figure: the paper's figure 3
#
# **How to read it.** (a) A point per block: what the line leaves, and what sixteen products win back of it. The grey
# line is all of it. A cloud without a slope would be the paper's $r \approx 0$. (b) The share recovered, against depth.
# Bars are 95 % intervals; those of (b) take what is left as given.

# %%
figure, (cloud, depth) = plt.subplots(1, 2, figsize=(style.PAGE, 2.5))
for i, name in enumerate(run.models):
    group, look = frame.loc[name], style.look(name)
    spread = np.array([group.gain - group.low, group.high - group.gain])
    cloud.errorbar(group.left, group.gain, spread, elinewidth=0.7, capsize=1.5, **look | {"linestyle": ""})
    shift = 0.12 * (i - (len(run.models) - 1) / 2)
    relative = spread / group.left.to_numpy()
    depth.errorbar(group.index + shift, group.recovered, relative, elinewidth=0.7, capsize=1.5, **look)
edge = 1.08 * frame.left.max()
cloud.plot([0, edge], [0, edge], color=style.GREY, lw=0.8, ls="--", label="all of it")
cloud.set(xlabel="left by the line, $1 - R^2_{\\mathrm{lin}}$", ylabel=f"gain of rank {rank}", xlim=(0, edge))
cloud.set_ylim(min(-0.01, 1.1 * frame.low.min()), max(1.2 * frame.high.max(), 0.02))
depth.set(xlabel="block", ylabel="share recovered", xticks=frame.loc[first].index[::2])
depth.set_ylim(bottom=min(0, depth.get_ylim()[0]))
for panel, title in ((cloud, "(a) gain"), (depth, "(b) of what is left")):
    panel.set_title(title, loc="left")
figure.legend(*cloud.get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=2.8)
run.figure(figure, "gain")
plt.show()

# %% [markdown]
# **Is sixteen the right rank?** For a few blocks per model we let the rank grow, with one fit each. How far can we
# trust it? In the middle one of these blocks we hide a teacher *of that rank*: a quarter of the variance, over ever
# more products. Where it is lost, a gain that stops growing tells of our rows, not of the block.

# %%
sweep, sight = {}, {}
for name, block in spots:
    kept = captures[name].blocks[block]
    for r in ranks:
        sweep[name, block, r] = probe(kept, r, seeds=1, steps=steps).recovered
        if block == spaced(captures[name].blocks)[swept // 2]:
            sight[name, r] = hidden_teacher(kept, r, steps=steps)
by_rank = pd.Series(sweep).rename_axis(["model", "block", "rank"]).unstack("rank")
hidden = pd.Series(sight).rename_axis(["model", "rank"]).unstack("rank")
pd.concat({"recovered (median)": by_rank.groupby("model", sort=False).median(), "hidden teacher": hidden}).round(2)

# %% [markdown]
# ## Figure: rank, and power
#
# **How to read it.** (a) Share of the residual recovered against rank, one thin line per block, the median thick; the
# dotted line is the paper's rank. (b) What the probe recovers of four targets whose answer we know, beside the real
# residuals: *planted* must be at 1, *shuffled* at 0.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.5))
for i, name in enumerate(run.models):
    look, lines = style.look(name), by_rank.loc[name]
    left.plot(ranks, lines.T, color=look["color"], lw=0.5, alpha=0.6)
    left.plot(ranks, lines.median(), **look)
    points = {"real": frame.recovered[name]} | {column: powers[column][name] for column in powers}
    for row, values in enumerate(points.values()):
        height = np.full(len(values), -row + 0.18 * (1 - i))
        right.plot(values, height, color=look["color"], marker=look["marker"], ls="", alpha=0.7)
left.axvline(rank, color=style.GREY, ls=":")
left.set(xscale="log", xlabel="rank of the branch", ylabel="share recovered", xticks=ranks, xticklabels=ranks)
left.minorticks_off()
right.set(xlabel="share recovered", yticks=range(0, -len(points), -1), yticklabels=list(points))
for panel, title in ((left, "(a) rank"), (right, f"(b) power at rank {rank}")):
    panel.set_title(title, loc="left")
figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=2.8)
run.figure(figure, "rank")
plt.show()

# %% [markdown]
# **The gate.** The paper trains the branch end to end behind a scalar gate, and sees it close on near-linear targets.
# We train all of $W, b, A, B, U, g$ by AdamW, from the closed form with $g = 1$ and $U = 0$ (`gated.end_to_end`), at
# several learning rates. Beside the gate we keep what it stands for: the share of the output's variance that passes it.

# %%
trained = {
    (rate, name, block): vars(end_to_end(captures[name].blocks[block], rank, rate, batches))
    for rate in rates
    for name, block in places
}
gates = pd.DataFrame(trained).T.rename_axis(["rate", "model", "block"])
ordered = {}
for rate, group in gates.groupby("rate"):
    rho = {f"ρ of {column}": spearmanr(1 - group.r2_lin, group[column]).statistic for column in ("gate", "share")}
    more = {"median gate": group.gate.median(), "gain ÷ probe's": group.gain.sum() / max(frame.gain.sum(), 1e-9)}
    ordered[rate] = {key: float(np.nan_to_num(value)) for key, value in (rho | more).items()}
ordered = pd.DataFrame(ordered).rename_axis(columns="rate")

# %%
print("ρ: Spearman, over all blocks, with what the line leaves; gates start at 1")
print(ordered.round(2).to_string())

# %% [markdown]
# ## Figure: the gate, and what it lets through
#
# **How to read it.** A point per block, near-linear ones to the left; filled at the higher learning rate, open at the
# lower. (a) The gate where training stopped; below the dotted line it has begun to close. (b) What the branch adds to
# the output. If a closed gate meant an idle branch, the points of (b) would lie low wherever those of (a) do.

# %%
figure, panels = plt.subplots(1, 2, figsize=(style.PAGE, 2.7))
for panel, column, title in zip(panels, ("gate", "share"), ("(a) the gate", "(b) what passes it"), strict=True):
    for rate, name in [(rate, name) for rate in rates for name in run.models]:
        group, look = gates.loc[rate].loc[name], style.look(name)
        look |= {"linestyle": "", "label": f"{name}, rate {rate:g}", "mfc": None if rate == rates[-1] else "white"}
        panel.plot(1 - group.r2_lin, group[column], **look)
    panel.set(xlabel="left by the line, $1 - R^2_{\\mathrm{lin}}$", xlim=0)
    panel.set_title(title, loc="left")
panels[0].axhline(1, color=style.GREY, ls=":")
panels[0].set(ylabel="gate $g$", ylim=0)
panels[1].set_ylabel("branch's share of variance")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(rates), handletextpad=0.2)
run.figure(figure, "gate")
plt.show()

# %%
numbers = {
    "models": {name: frame.loc[name].drop(columns="left").reset_index().to_dict("records") for name in run.models},
    "correlation": {"gain": with_gain.T.to_dict(), "recovered": with_share.T.to_dict()},
    "power": {name: powers.loc[name].reset_index().to_dict("records") for name in run.models},
    "ranks": {name: by_rank.loc[name].T.to_dict() for name in run.models} | {"hidden": hidden.T.to_dict()},
    "gate": {name: gates.xs(name, level="model").reset_index().to_dict("records") for name in run.models},
    "gate_order": ordered.to_dict(),
}
run.save(numbers, {"models": 0.02, "correlation": 0.1, "power": 0.1, "ranks": 0.1, "gate": 0.1, "gate_order": 0.1})

# %% [markdown]
# ## What we learned

# %%
pd.set_option("display.max_colwidth", None)
gains = "; ".join(f"{name} {frame.gain[name].min():.3f} to {frame.gain[name].max():.3f}" for name in run.models)
slopes = "; ".join(f"{name} {r.r:+.2f} [{r.low:+.2f}, {r.high:+.2f}], p {r.p:.2g}" for name, r in with_gain.iterrows())
least, most = (getattr(frame.recovered.groupby("model", sort=False), end)() for end in ("min", "max"))
shares = "; ".join(f"{name} {least[name]:.2f} to {most[name]:.2f}" for name in run.models)
rhos = [(rate, column["ρ of gate"], column["ρ of share"]) for rate, column in ordered.items()]
closing = "; ".join(f"rate {rate:g}: gate {gate:+.2f}, share {share:+.2f}" for rate, gate, share in rhos)
claims = [
    ("the gain is small", "a few points of R²", gains),
    ("it does not follow what is left", "Pearson r ≈ 0", slopes),
    ("share of the residual recovered", "not given", shares),
    ("the gate closes on near-linear targets", "it de-recruits", "ρ with what is left, " + closing),
]
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - Read the power table before the gain. A probe that misses what is planted cannot say that a gain is small.
# - Your first two predictions: read *share recovered* and the sign and interval of $r$. The gain is at most what is
#   left, so a slope may mean no more than that every block yields a like share; $r$ with the *share* asks past that.
# - Your third: $g$, $U$, $A$ and $B$ enter only as a product, so a gate can close while the others grow. Compare
#   *median gate* at the two rates with the gain they reach. If gates differ and gains do not, the gate told of the
#   optimiser. Whether a branch is idle shows in what it adds: trust the share, not the gate.
#
# ## Exercises
#
# Solutions are in `solutions/03_bilinear.py`; try first. All use this block, and a branch fitted to it:

# %%
rows = residual_rows(captures[first].blocks[len(captures[first].blocks) // 2])
fitted = branch(rows, rank, seed=0, steps=steps)

# %% [markdown]
# **1 (warm-up).** What does the branch cost? Count the numbers in $A$, $B$, $U$, and divide by those in $W$.

# %%
relative_size = None  # for this block: rows.z has as many columns as A has rows, rows.e as many as U

if relative_size is not None:
    counted = fitted.left.numel() + fitted.right.numel() + fitted.readout.numel()
    assert np.isclose(relative_size, counted / (rows.z.shape[1] * rows.e.shape[1])), "A and B: d × r each; U: r × d_out"
    print("right:", round(relative_size, 2))

# %% [markdown]
# **2 (medium).** Close the gate without changing the function: make a branch with $A$ ten times larger and a readout
# ten times smaller. `dataclasses.replace(fitted, …)` makes it; `slope` and `level`, each product's line, change too.

# %%
disguised = None  # a Branch

if disguised is not None:
    assert torch.allclose(disguised.left, 10 * fitted.left), "A is to be ten times larger"
    assert torch.allclose(disguised(rows.z), fitted(rows.z), atol=1e-3 * float(rows.e.std())), "not the same function"
    print("right")

# %% [markdown]
# **3 (harder).** How much of its train rows does the branch know by heart? Compute the share of $\sum \lVert e
# \rVert^2$, with $e$ what the line leaves (`rows.e`), that it recovers on the rows it may have seen (`~rows.test`),
# and on held-out rows.

# %%
seen, unseen = None, None

if seen is not None:
    line, poly = scores(rows, fitted(rows.z))
    assert np.isclose(unseen, (poly[0] - line[0]) / (1 - line[0]), atol=1e-5), "held-out rows only, and no centring"
    error, target = ((part[~rows.test]).square().sum() for part in (rows.e - fitted(rows.z), rows.e))
    assert np.isclose(seen, 1 - float(error / target), atol=1e-5), "train rows only"
    print("right: optimism of", round(seen - unseen, 3))
