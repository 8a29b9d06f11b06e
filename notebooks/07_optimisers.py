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
# # 07 · Would a trained linear layer have told the same story?
#
# **Question.** The straight line of notebook 02 was solved for. Most people would train one instead: a linear layer,
# an optimiser, some steps. How much lower would its $R^2_{\mathrm{lin}}$ come out, and what would we have concluded?
#
# **Answer in one line.** That hangs on how unevenly the inputs spread, on the optimiser, and on how they are scaled;
# for plain gradient descent the shortfall can be foretold exactly, and the tables below say what it is.
#
# **You need** notebook 02, and to have trained something once. **Time** ten minutes to read, two to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
steps: int | None = None  # gradient steps of every run; None: 500, or 150 where blocks are wider than 256, for time
batch = 256  # rows a step

# %%
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from howlinear import notebooks, style
from howlinear.ceilings import NULL, ceiling, r2
from howlinear.descent import descent
from howlinear.optimisers import OPTIMISERS, shortfall, train, tuned
from howlinear.problem import SCALINGS, Problem

run = notebooks.start("07_optimisers", profile)
captures = {name: run.capture(name) for name in run.models}
first = next(iter(run.models))
width = captures[first].blocks[0].sample.x.shape[1]
steps = steps or (500 if width <= 256 else 150)
print(f"{len(captures)} models of width {width} · {steps} steps of {batch} rows · text: {run.corpora[0]}")

# %% [markdown]
# ## Predict first
#
# 1. The problem is linear and convex: one valley, no bad minima. Given a well-tuned rate, do all optimisers end at the
#    same $R^2$? Which comes last?
# 2. Standardising features is standard practice. Is it enough?
# 3. Where will the trained number be most wrong: in the least linear blocks, or those with the most uneven inputs?

# %% [markdown]
# ## Idea
#
# Picture the loss as a long valley: steep across, nearly flat along. The rate must be small enough for the steep
# direction, or the ball bounces out. Then it creeps along the flat one. How long is the valley? As long as the ratio
# of the largest to the smallest variance among the directions of $x$: the squared *condition number*. If part of what
# a block computes hangs on a quiet direction of its input, a trained layer has not seen it yet when the steps run out,
# and we would call that part "nonlinear".
#
# A closed form does not walk, so it does not mind. Nor does a walker in the right coordinates: *whitened* inputs vary
# equally in all directions: a bowl. (Whitening takes the same factorisation as solving; it only shows the trouble.)

# %% [markdown]
# ## Method
#
# Everyone gets the same rows, $W = 0$ and $b = \bar y$ to start from ($R^2 \approx 0$), the loss
# $\lVert Y - XW - \mathbf 1 b^\top\rVert_F^2 / 2n$, the same number of row visits and, L-BFGS apart, a rate that falls
# to zero at the end (`optimisers.train`). The rate is the best of a small grid, chosen on a train document fold that
# is set aside (`optimisers.tuned`). Held-out moments judge, as in notebook 02. The closed form is fitted on the *very
# same rows*: a sample, fewer than notebook 02 had, so its values differ a little from there.
#
# Start, falling rate and grid are our choices, and kind ones; the paper does not give its own.
#
# For full-batch gradient descent at rate $\eta$ no run is needed. With $(\lambda_i, u_i)$ the eigenpairs of
# $H = \frac1n [X\,\mathbf 1]^\top [X\,\mathbf 1]$, and $W$ now holding $b$ as its last row,
#
# $$ W_t = W^* + \sum_i (1 - \eta\lambda_i)^t\, u_i u_i^\top (W_0 - W^*) , $$
#
# $$ R^2_{\mathrm{train}}(W^*) - R^2_{\mathrm{train}}(W_t) = \sum_i s_i\,(1 - \eta\lambda_i)^{2t}, \qquad
#    s_i = \frac{\lambda_i \lVert u_i^\top (W_0 - W^*) \rVert^2}{\text{variance of } y} . $$
#
# `descent.descent` returns the $\lambda_i$ and shares $s_i$; `.after(t)` is $W_t$, `.unlearned(t)` the second line and
# `.steps_to(gap)` turns it round. We take $\eta = 1/\lambda_1$, where no direction overshoots.

# %% [markdown]
# ## Run
#
# First the forecast, for every block, before any optimiser has moved. *Asleep* are the directions of which less than
# half is learned after our steps, and the share of the output's variance that the map explains through them.


# %%
def foretold(problem):
    exact, path = ceiling(problem.folds, problem.test), descent(problem.moments)
    asleep, reached = path.left(steps) > 0.5, r2(path.after(steps), problem.held_out)
    found = {"condition": exact.condition, "exact": exact.r2, "low": exact.r2_low, "high": exact.r2_high}
    found |= {"GD": reached, "GD gap": exact.r2 - reached}
    found |= {"asleep": float(asleep.sum()), "asleep share": float(path.shares[asleep].sum())}
    return found | {"steps to 0.01": float(path.steps_to(0.01))}


# %%
table = {}
for name, stored in captures.items():
    for block, kept in stored.blocks.items():
        table[name, block] = foretold(Problem.of(kept))
frame = pd.DataFrame.from_dict(table, orient="index")
frame.index = pd.MultiIndex.from_tuples(frame.index, names=["model", "block"])

# %% tags=["nbval-check-output"]
worst = frame.loc[frame.groupby("model", sort=False)["GD gap"].idxmax()]
print("the block of each model that gradient descent is foretold to fall furthest short on:")
shown = worst[["condition", "exact", "GD", "asleep", "asleep share", "steps to 0.01"]]
print(shown.map(lambda value: f"{value:.2g}").to_string())

# %% [markdown]
# Now the race, on the one block where the forecast is worst. Six optimisers as torch ships them: SGD, SGD with momentum
# 0.9, Adam, AdamW (decay 0.01), Muon (for the matrix; Adam for the bias; no decay) and L-BFGS, which takes all rows at
# once and gets as many row visits. Rates for SGD count in units of $1/\lambda_1$, so that even the grid is informed.

# %%
studied = frame["GD gap"].idxmax()
problem = Problem.of(captures[studied[0]].blocks[studied[1]])
at = np.unique(np.geomspace(1, steps, 16).astype(int)).tolist()
race = {
    (scaling, optimiser): tuned(problem, optimiser, scaling, steps=steps, batch=batch, at=at, seed=run.seed)
    for scaling in SCALINGS
    for optimiser in OPTIMISERS
}
finals = pd.Series({key: path.r2[-1] for key, path in race.items()}).unstack(0).loc[list(OPTIMISERS), list(SCALINGS)]
best = frame.exact[studied]
print(
    f"{studied[0]}, block {studied[1]}: closed form {best:.3f} ({frame.low[studied]:.3f} to {frame.high[studied]:.3f})"
)
print((best - finals).round(3).to_string())

# %% [markdown]
# The table shows shortfalls: closed form minus trained. (Below zero, stopping early helped: the exact fit learns some
# noise by heart.) Was the grid wide enough? If the best rate is at its upper end, a larger one might do
# better still, and the shortfall is an upper bound.

# %%
rates = pd.Series({key: path.rate for key, path in race.items()}).unstack(0).loc[list(OPTIMISERS), list(SCALINGS)]
grids = pd.Series({name: ", ".join(f"{rate:g}" for rate in recipe.rates) for name, recipe in OPTIMISERS.items()})
print(rates.assign(grid=grids).to_string())

# %% [markdown]
# ## Figure: the race
#
# **How to read it.** Held-out $R^2$ against steps, one panel for each choice of coordinates. The dashed line is the
# closed form on the same rows, the band its 95 % interval. Whoever ends below the band would have reported a wrong
# number. Values below zero are cut off. L-BFGS is drawn at the number of steps that would have seen as many rows.

# %%
figure, panels = plt.subplots(1, 3, figsize=(style.PAGE, 2.6), sharey=True)
looks = dict(zip(OPTIMISERS, zip(sns.color_palette("colorblind", 6), "osD^vP", strict=True), strict=True))
for panel, scaling, letter in zip(panels, SCALINGS, "abc", strict=True):
    panel.axhspan(frame.low[studied], frame.high[studied], color="0.9", lw=0)
    panel.axhline(best, color="0.1", ls="--", lw=1, label="closed form")
    for name, (color, marker) in looks.items():
        path = race[scaling, name]
        panel.plot(path.steps, path.r2, color=color, marker=marker, ms=3, lw=1, label=name)
    panel.set(xscale="log", xlabel=f"steps of {batch} rows", ylim=(-0.02, 1.1 * frame.high[studied]))
    panel.set_title(f"({letter}) {scaling} inputs", loc="left")
panels[0].set_ylabel("$R^2$, held out")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=7, columnspacing=1.2)
run.figure(figure, "paths")
plt.show()

# %% [markdown]
# Does the theory hold? Here is full-batch descent on the rows, by torch in float32, beside the moments' forecast.

# %% tags=["nbval-check-output"]
theory = descent(problem.moments)
plain = train(problem, "SGD", "raw", 1.0, steps, batch=None, at=at, decay=False)
forecast = [r2(theory.after(step), problem.held_out) for step in plain.steps]
agreement = float(np.abs(np.subtract(plain.r2, forecast)).max())
print(f"foretold and run differ by less than 1e-4 at all {len(plain.steps)} steps: {agreement < 1e-4}")

# %% [markdown]
# Then all blocks of all models on raw inputs, with the two optimisers people reach for: momentum and Adam. For time,
# each block tries two rates: the one that won above, and a third of it; its own validation fold decides.

# %%
near = {optimiser: (race["raw", optimiser].rate / 3, race["raw", optimiser].rate) for optimiser in ("momentum", "Adam")}
trained = {}
for name, block in frame.index:
    here = Problem.of(captures[name].blocks[block])
    for optimiser, pair in near.items():
        path = tuned(here, optimiser, "raw", pair, steps=steps, batch=batch, seed=run.seed)
        trained[name, block, optimiser] = vars(shortfall(here, path.map))
gaps = pd.DataFrame.from_dict(trained, orient="index")
gaps.index = pd.MultiIndex.from_tuples(gaps.index, names=["model", "block", "optimiser"])
for optimiser in near:
    frame[[optimiser, f"{optimiser} gap"]] = gaps[["r2", "gap"]].xs(optimiser, level="optimiser")

# %% [markdown]
# ## Figure: who falls short, and where
#
# **How to read it.** (a) Every block of every model: shortfall against the condition number of its inputs. Colour is
# the model; filled are forecasts for gradient descent, open markers Adam, and small dots momentum. (b) The block of the
# race, one point per direction of its inputs, loudest on the right: how much of it is learned in the end. The line is
# theory, and the area of a point is the share of variance it carries. What lies at the bottom left is not yet learned.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.7))
for name in run.models:
    look, mine = style.look(name), frame.loc[name]
    point = {"color": look["color"], "ls": ""}
    left.plot(mine.condition, mine["GD gap"], marker=look["marker"], label=name, **point)
    left.plot(mine.condition, mine["Adam gap"], marker=look["marker"], mfc="none", **point)
    left.plot(mine.condition, mine["momentum gap"], marker=".", ms=2.5, **point)
for label, kind in (("GD", {"marker": "o"}), ("Adam", {"marker": "o", "mfc": "none"}), ("momentum", {"marker": "."})):
    left.plot([], [], color=style.GREY, ls="", label=label, **kind)
left.axhline(0, color=style.GREY, lw=0.6)
left.set(xscale="log", xlabel="condition number of the inputs", ylabel="shortfall in held-out $R^2$")
left.set_title("(a) all blocks, raw inputs", loc="left")
left.legend(loc="upper left", handletextpad=0.2)
seen = (theory.values > NULL * theory.values[-1]).numpy()
loudness, area = (theory.values / theory.values[-1])[seen], 6 + 600 * theory.shares[seen]
dots = {"GD, run": (plain, "0.2"), "Adam": (race["raw", "Adam"], style.ACCENT)}
dots["Muon"] = race["raw", "Muon"], "#56B4E9"
for (label, (path, color)), marker in zip(dots.items(), "o^D", strict=True):
    part = theory.learned(path.map)[seen].clip(-0.2, 1.3)
    right.scatter(loudness, part, area, label=label, marker=marker, facecolor="none", edgecolor=color, lw=0.8)
curve = np.geomspace(float(loudness.min()), 1, 200)
right.plot(curve, 1 - (1 - curve) ** steps, color="0.2", lw=1, label="GD, theory")
right.set(xscale="log", xlabel="$\\lambda_i / \\lambda_1$", ylabel=f"part learned in {steps} steps")
right.set_title(f"(b) {studied[0]}, block {studied[1]}", loc="left")
right.legend(loc="lower right")
run.figure(figure, "shortfall")
plt.show()

# %% [markdown]
# What would we have concluded? For each model and each way of training: the rank correlation with the exact profile;
# how many blocks fall outside the exact interval; how many steps from one block to the next change their sign; the
# worst shortfall. Last, how often training turns round which of two models is the more linear at one depth.


# %%
def verdict(exact, reached):
    outside = (reached < exact.low) | (reached > exact.high)
    turned = np.sign(exact.exact.diff()) != np.sign(reached.diff())
    found = {"spearman": reached.corr(exact.exact, method="spearman"), "outside": float(outside.sum())}
    return found | {"flipped": float(turned[1:].sum()), "worst": float((exact.exact - reached).max())}


# %%
ways = ["GD", *near]
verdicts = {(name, way): verdict(frame.loc[name], frame.loc[name][way]) for name in run.models for way in ways}
verdicts = pd.DataFrame.from_dict(verdicts, orient="index")
print(verdicts.round(2).to_string(), f"\nof {len(frame.loc[first])} blocks each")
turned, compared = dict.fromkeys(ways, 0.0), 0
for a, b in combinations(run.models, 2):
    compared += len((frame.exact[a] - frame.exact[b]).dropna())
    for way in ways:
        both = (frame.exact[a] - frame.exact[b]) * (frame[way][a] - frame[way][b])
        turned[way] += float((both < 0).sum())
print(f"of {compared} comparisons of two models, turned round:", {way: int(count) for way, count in turned.items()})
ranks = {way: float(frame[f"{way} gap"].corr(frame.condition, method="spearman")) for way in ways}
print("Spearman ρ of shortfall and condition number:", {way: round(value, 2) for way, value in ranks.items()})

# %%
columns = ["condition", "exact", "low", "high", "asleep", "asleep share", "steps to 0.01", *ways]
record = {
    "models": {name: {column: frame.loc[name][column].tolist() for column in columns} for name in run.models},
    "verdicts": {name: {way: verdicts.loc[(name, way)].to_dict() for way in ways} for name in run.models},
    "race": {f"{optimiser}, {scaling}": path.r2[-1] for (scaling, optimiser), path in race.items()},
    "studied": {"model": studied[0], "block": int(studied[1]), "exact": best, "agree": agreement < 1e-4},
    "turned": turned,
    "compared": compared,
    "spearman_condition": ranks,
    "steps": steps,
}
amplified = {"condition": 0.02, "steps to 0.01": 0.05, "asleep": 2.0, "race": 0.02, "momentum": 0.02, "Adam": 0.02}
counts = {"verdicts": 0.1, "turned": 2.0, "spearman_condition": 0.1}
run.save(record, amplified | counts)

# %% [markdown]
# ## What we learned

# %%
pd.set_option("display.max_colwidth", None)
short = {scaling: (best - finals[scaling]) for scaling in SCALINGS}
reach = {
    scaling: f"{gap.min():+.3f} ({gap.idxmin()}) to {gap.max():+.3f} ({gap.idxmax()})" for scaling, gap in short.items()
}
sure = ", ".join(f"{way} {int((gaps.low.xs(way, level='optimiser') > 0).sum())}" for way in near)
rho = ", ".join(f"{way} {value:+.2f}" for way, value in ranks.items())
claims = [
    ("a trained linear baseline can badly under-converge", "yes, badly", "raw inputs, worst block: " + reach["raw"]),
    ("because inputs are ill-conditioned", "yes", f"ρ with condition: {rho}; whitened: {reach['whitened']}"),
    ("the closed form does not", "exact", f"surely below it, of {len(frame)} blocks: {sure}"),
]
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - Your first prediction: compare the rows of the table of shortfalls, column *raw*. A convex problem has one answer;
#   it does not follow that a given number of steps gets there.
# - Your second: column *standardised* beside *whitened*. Standardising mends unequal features, not correlated ones;
#   only whitening makes all directions alike.
# - Your third: figure (a) and the last line of the verdicts. The forecast needs two things, an uneven spectrum *and*
#   something to learn in its quiet directions (*asleep share*); a condition number alone knows only the first.
# - How bad is "badly"? Read *worst* and *outside* for these models and this many steps. Start, schedule and tuned rates
#   favour the trained layer here; a study with less care would see larger shortfalls.
#
# ## Exercises
#
# Solutions are in `solutions/07_optimisers.py`; try first.
#
# **1 (warm-up).** How many full-batch steps does gradient descent need on the block of the race, until less than a
# thousandth of the output's variance is left to learn? No run is needed.

# %%
needed = None  # hint: theory knows

if needed is not None:
    assert theory.unlearned(needed) <= 1e-3 < theory.unlearned(needed - 1), "the first step that is near enough"
    print("right:", needed)

# %% [markdown]
# **2 (medium).** Foretell the same descent on *standardised* inputs: take `Coordinates.of(problem.moments,
# "standardised")` from `howlinear.problem`, make the moments of its rows, and compute what our steps leave unlearned.

# %%
unlearned = None  # the unlearned share on standardised inputs

if unlearned is not None:
    run_there = train(problem, "SGD", "standardised", 1.0, steps, batch=None, decay=False)
    left_there = r2(theory.after(2**50), problem.moments) - r2(run_there.map, problem.moments)
    assert np.isclose(unlearned, left_there, atol=1e-4), "1/λ₁ of the new inputs, and moments of the new rows"
    print("right:", unlearned, "against", theory.unlearned(steps), "on raw inputs")

# %% [markdown]
# **3 (harder).** On *whitened* inputs one step suffices. Which rate? Show it with `descent(…, rate)`, then say what
# well-known method a gradient step in these coordinates is.

# %%
one_step = None  # the unlearned share after a single step on whitened inputs

if one_step is not None:
    assert one_step < 1e-12, "all λ are equal: choose the rate that leaves nothing of (1 − ηλ)"
    print("right")
