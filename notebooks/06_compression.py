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
# # 06 · Which blocks can be replaced, and how would you know?
#
# **Question.** A straight line takes the place of a feed-forward block, many times its size. Which blocks allow it,
# can the cost be told beforehand, how thin may the line be, and how many blocks go at once?
#
# **Answer in one line.** Not by $R^2_{\mathrm{lin}}$: by how much of the error the loss *feels*, or nearly as well by
# the error's size; the tables below say which signal told the costs best in this run.
#
# **You need** notebook 02; a little calculus (a second-order expansion). **Time** ten minutes to read, three to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
deep = 5  # how many blocks to replace together, at most
candidates = 2  # blocks that the greedy search tries at each step
sets = 8  # random sets of two to four blocks, to test predictions of joint costs
felt_sequences = 96  # sequences for the backward pass

# %%
import timeit
from functools import partial
from itertools import islice, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import howlinear as hl
from howlinear import notebooks, style
from howlinear.compression import greedy
from howlinear.felt import compare, feel
from howlinear.perplexity import change, losses, swap_losses
from howlinear.reduced import ffn_parameters, recovered, reduced_rank

run = notebooks.start("06_compression", profile)
models = {name: run.model(name) for name in run.models}
captures = {name: run.capture(name) for name in run.models}
held = {name: stored.rows.ids[stored.rows.test] for name, stored in captures.items()}
fitted = {name: stored.rows.ids[~stored.rows.test] for name, stored in captures.items()}
deep = min(deep, *(len(stored.blocks) for stored in captures.values()))
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. You must give up one block. Do you take the one with the highest $R^2_{\mathrm{lin}}$?
# 2. A map of half the rank: does it lose half of what the full map explains?
# 3. Several blocks go at once. Is the loss about the sum of the single losses, or more?

# %% [markdown]
# ## Idea
#
# $R^2_{\mathrm{lin}}$ treats all variance alike. The loss does not: an error in a direction that no later layer reads
# is free, and an error of one part in a hundred in a block that everything rests on is dear. So ask the loss. Its
# gradient at the block's output says, token by token, which way it hurts to push. Collect the second moment of these
# gradients, and measure the map's error with that ruler. One backward pass prices every block.
#
# A low price alone is no praise: a block that does nothing is cheap to replace by a constant. So each swap stands
# beside its *mean ablation*.

# %% [markdown]
# ## Method
#
# With $r = y - (xW + b)$ and $g = \partial(\text{loss of the sequence}) / \partial y$, a swap adds $-r$ everywhere, and
#
# $$ \Delta\,\text{loss per token} \;\approx\; -\mathbb E[g \cdot r] + \tfrac12 \mathbb E[(g \cdot r)^2]
#    \;\approx\; \tfrac12 \operatorname{tr}\big(\mathbb E[g g^\top]\, \mathbb E[r r^\top]\big) $$
#
# in nats (`felt.feel`): squared gradients for the curvature (Fisher information), errors of different tokens
# independent, and the first term left out (below we print how often it is positive). *Paired* keeps $g$ and $r$ of one
# token together. Rivals: $1 - R^2_{\mathrm{lin}}$, the residual variance, the same over that of the residual stream,
# the cost of mean ablation (one run of the model per block), and that cost times $1 - R^2_{\mathrm{lin}}$.
#
# The best map of rank $k$ keeps the $k$ leading eigenvectors of $W^\top S_{xx} W$: $W_k = W V_k V_k^\top$, the whole
# curve from one factorisation (`reduced.reduced_rank`). Loss recovered is
# $1 - (L_\text{swap} - L)/(L_\text{ablated} - L)$ (`reduced.recovered`). Several blocks: `compression.greedy`.


# %%
def loss_with(name, maps):
    with hl.swap(models[name], maps):
        return losses(models[name], held[name])


def price(name, maps):
    after = loss_with(name, maps)
    return {"nats": float((after - base[name]).mean())} | vars(change(base[name], after))


def bars(points):
    return np.stack([points.delta - points.low, points.high - points.delta])


def wide(column):
    return column.unstack("model")[list(run.models)]


# %% [markdown]
# ## Run
#
# First each block alone: fitted on one side of the documents, its cost measured on the other. *Recovered* is the share
# of what a mean would lose that the line does not; NaN where mean ablation costs nothing that these sequences can show.

# %%
base, curves, felt, costs = {}, {}, {}, []
for name, stored in captures.items():
    means = {block: hl.AffineMap.constant(sum(kept.train)) for block, kept in stored.blocks.items()}
    curves[name] = {block: reduced_rank(sum(kept.train), sum(kept.test)) for block, kept in stored.blocks.items()}
    maps = {block: curve.map for block, curve in curves[name].items()}
    base[name], swapped = swap_losses(models[name], maps, held[name])
    _, ablated = swap_losses(models[name], means, held[name])
    for block, curve in curves[name].items():
        share, nats = recovered(base[name], swapped[block], ablated[block]), (swapped[block] - base[name]).mean()
        row = {"model": name, "block": block, "r2": float(curve.r2[-1]), "nats": float(nats)}
        row["ablation"] = float((ablated[block] - base[name]).mean())
        row |= {"recovered": share and share.share, "width": share and share.high - share.low}
        costs.append(row | vars(change(base[name], swapped[block])))
    felt[name] = feel(models[name], maps, fitted[name][:felt_sequences])
costs = pd.DataFrame(costs).set_index(["model", "block"]).astype(float)
wide(costs["delta"]).round(2)

# %% tags=["nbval-check-output"]
worth = pd.concat({"recovered": wide(costs["recovered"].round(1)), "ablation": wide(costs["ablation"])}, axis=1)
print("loss recovered, and what mean ablation costs in nats per token\n" + worth.round(2).to_string())
print("median width of the intervals:", costs["width"].groupby("model", sort=False).median().round(1).to_dict())

# %% [markdown]
# Now the signals; smaller should mean cheaper. We judge them twice: on single blocks, and on random sets of two to four
# blocks, where we predict the sum over the set.

# %%
every = pd.DataFrame([vars(found) for name in run.models for found in felt[name].values()], index=costs.index)
residual, unexplained = every.error.map(lambda error: float(error.trace())), 1 - costs["r2"]
signals = {"1 − R²": unexplained, "residual": residual, "residual / stream": residual / every["stream"]}
signals |= {"ablation": costs["ablation"], "ablation × (1 − R²)": costs["ablation"] * unexplained}
signals["felt"] = [found.cost for name in run.models for found in felt[name].values()]
signals = pd.DataFrame(signals | {"felt, paired": every["paired"]})
in_nats = ["ablation × (1 − R²)", "felt", "felt, paired"]
print("blocks with a positive first-order term:", (every["slope"] > 0).sum(), "of", len(every))
draw, joint = np.random.default_rng(run.seed), []
for name in np.repeat(list(run.models), sets):
    chosen = sorted(draw.choice(list(curves[name]), draw.integers(2, 5), replace=False).tolist())
    cost = price(name, {block: curves[name][block].map for block in chosen})["nats"]
    joint.append({"model": name, "cost": cost} | signals.loc[name].loc[chosen].sum().to_dict())
joint = pd.DataFrame(joint).set_index("model")
ranking = {"one block": compare(signals, costs["nats"], run.seed), "several": compare(joint, joint["cost"], run.seed)}
ranking = pd.concat({kind: found.loc[list(signals)] for kind, found in ranking.items()}, axis=1)
for kind in ("one block", "several"):
    ranking.loc[~ranking.index.isin(in_nats), (kind, "factor")] = np.nan  # in no nats to miss
best, single = ranking.xs("rho", axis=1, level=1).mean(axis=1).idxmax(), ranking["one block"]
rivals = [s for s in signals if s != best and single.high[s] >= single.low[best]]
spearman = {name: float(costs.loc[name].r2.corr(costs.loc[name].delta, method="spearman")) for name in run.models}
print(f"best mean ρ: {best}; its interval for one block also reaches: {', '.join(rivals) or 'none'}")
print("ρ of R²_lin with ΔPPL, by model (−1: more linear is cheaper):", {k: round(v, 2) for k, v in spearman.items()})

# %% [markdown]
# *rho* is Spearman's ρ, within each model and averaged; 1 ranks perfectly. The interval redraws the blocks (or sets).
# *factor*: by how much a signal in nats typically misses the cost. Sums grow with the set, so there every signal gains.

# %% tags=["nbval-check-output"]
print(ranking.round(1).to_string())

# %% [markdown]
# ## Figure: what was said, and what it cost
#
# **How to read it.** A point is a block: what the signal said (across) and what the swap cost on held-out text (up),
# both logarithmic. A good signal is a rising line; on the grey diagonal the felt price is exact. Costs too low to show
# lie at $10^{-3}$.

# %%
figure, axes = plt.subplots(1, 2, figsize=(style.PAGE, 2.7), sharey=True)
shown = {"1 − R²": r"$1 - R^2_{\mathrm{lin}}$", "felt": "felt price, nats / token"}
floor = max(1e-3, costs.nats.max() / 1e4)
for axis, (signal, unit), letter in zip(axes, shown.items(), "ab", strict=True):
    for name in run.models:
        points = signals.loc[name][signal].clip(lower=floor / 10), costs.loc[name].nats.clip(lower=floor)
        axis.plot(*points, **style.look(name) | {"linestyle": "none"}, alpha=0.85)
    if signal in in_nats:
        axis.plot([floor, costs.nats.max()], [floor, costs.nats.max()], color=style.GREY, lw=0.8, zorder=0)
    axis.set(xscale="log", yscale="log", xlabel=unit)
    axis.set_title(f"({letter}) ρ = {single.rho[signal]:+.2f}", loc="left")
    axis.xaxis.set_minor_formatter("")
axes[0].set_ylabel("measured cost, nats / token")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
_ = run.figure(figure, "signal")

# %% [markdown]
# ## Figure: how thin may the line be?
#
# For the first, the middle and the last block: the best map of every rank. A rank-$r$ map holds
# $r(d_{in} + d_{out}) + d_{out}$ numbers, so past half the width it would hold more than the full map.
#
# **How to read it.** Across: numbers held, as a share of the block's own. The line ends at half the width; the
# last marker is the full map, at its share (dotted: an eighth and a twelfth). Top: held-out $R^2$, bands are 95 %
# intervals. Bottom: what the swap costs.

# %%
thin = []
for name, stored in captures.items():
    d, own = models[name].config.hidden_size, ffn_parameters(models[name]) / len(stored.blocks)
    for block in (0, len(stored.blocks) // 2, len(stored.blocks) - 1):
        kept = stored.blocks[block]
        curves[name][block] = curve = reduced_rank(kept.train, kept.test)
        for rank in (d // 16, d // 8, d // 4, d // 2, d):
            found, numbers = (curve.at(rank), rank * 2 * d + d) if rank < d else (curve.map, d * d + d)
            row = {"model": name, "block": block, "rank": rank, "share": numbers / own, "r2": float(curve.r2[rank])}
            thin.append(row | price(name, {block: found}))
thin = pd.DataFrame(thin).set_index(["model", "block"])
thinly = {"elinewidth": 0.7, "capsize": 1.5}
figure, axes = plt.subplots(2, 3, figsize=(style.PAGE, 3.9), sharex=True, sharey="row")
for (name, block), points in thin.groupby(level=[0, 1], sort=False):
    column = list(dict.fromkeys(thin.loc[name].index)).index(block)
    top, bottom, look, curve = *axes[:, column], style.look(name), curves[name][block]
    d, full = len(curve.map.bias), points.share.iloc[-1]
    ranks, line = np.arange(1, d // 2 + 1), {key: look[key] for key in ("color", "linestyle")}
    across = (2 * d * ranks + d) * full / (d * d + d)
    top.plot(across, curve.r2[ranks], **line)
    top.fill_between(across, curve.r2_low[ranks], curve.r2_high[ranks], color=look["color"], alpha=0.2, lw=0)
    top.plot(full, points.r2.iloc[-1], **look)
    bottom.errorbar(points.share, points.delta, bars(points), **look, **thinly)
    top.set_title(("(a) first block", "(b) middle block", "(c) last block")[column], loc="left")
for axis in axes.flat:
    axis.vlines((1 / 8, 1 / 12), 0, 1, transform=axis.get_xaxis_transform(), color=style.GREY, ls=":", lw=0.7)
axes[0, 0].set(xscale="log", ylabel="held-out $R^2$", xticks=[0.01, 0.1], xticklabels=["1 %", "10 %"])
axes[1, 0].set(yscale="log", ylabel=r"$\Delta$ perplexity", ylim=(thin.delta.abs().min() / 3, None))
axes[1, 1].set_xlabel("numbers held, share of the block's own")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
_ = run.figure(figure, "reduced_rank")

# %% [markdown]
# ## Figure: several blocks at once
#
# Three ways to pick, with the same maps to start from: *greedy* tries the next few blocks in the order of the felt
# price, takes the one that costs least on text to fit on, and refits every map on the inputs it now gets; *felt order*
# takes blocks in that order and measures nothing; *order of R²* takes the most linear first.
#
# **How to read it.** From right (one block replaced) to left (`deep` of them); lower is better. The vertical axis is
# what perplexity rises by on held-out text, logarithmic (what is not above 0 falls off), with 95 % intervals.

# %%
frontier, last = [], {}
for name in run.models:
    maps, whole = {block: curve.map for block, curve in curves[name].items()}, ffn_parameters(models[name])
    by_felt = sorted(maps, key=lambda block: felt[name][block].cost)
    by_r2 = sorted(maps, key=lambda block: -costs.r2[name, block])
    steps = islice(greedy(models[name], fitted[name], maps, by_felt, candidates), deep)
    plans = {"greedy, refitted": [step.maps for step in steps]}
    for way, order in (("felt order", by_felt), ("order of R²", by_r2)):
        plans[way] = [{block: maps[block] for block in order[:count]} for count in range(1, deep + 1)]
    for way, plan in ((way, plan) for way, chosen in plans.items() for plan in chosen):
        row = {"model": name, "way": way, "count": len(plan), "share": ffn_parameters(models[name], plan) / whole}
        frontier.append(row | price(name, plan))
    last[name] = plans["greedy, refitted"][-1]
frontier = pd.DataFrame(frontier).set_index(["model", "way", "count"])
figure, axes = plt.subplots(1, len(models), figsize=(style.PAGE, 2.5), sharey=True, squeeze=False)
ways = {"greedy, refitted": ("o", "-"), "felt order": ("s", "--"), "order of R²": ("^", ":")}
for axis, name, letter in zip(axes[0], models, "abcdefgh", strict=False):
    for (way, (marker, dash)), colour in zip(ways.items(), ("0.1", style.ACCENT, style.GREY), strict=True):
        points = frontier.loc[name].loc[way]
        look = {"color": colour, "marker": marker, "ls": dash, "label": way}
        axis.errorbar(100 * points.share, points.delta, bars(points), **look, **thinly)
    axis.set(yscale="log", xlabel="FFN parameters left, %")
    axis.set_title(f"({letter}) {name}", loc="left")
axes[0, 0].set(ylabel=r"$\Delta$ perplexity", ylim=(frontier.delta.abs().min() / 3, None))
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
_ = run.figure(figure, "frontier")

# %% tags=["nbval-check-output"]
at_once = wide(frontier.delta.xs(deep, level="count"))
print(f"ΔPPL with {deep} blocks replaced, held out\n" + at_once.round(1).to_string())

# %%
ways_in = {"naive": {n: {b: curves[n][b].map for b in last[n]} for n in run.models}, "refitted": last}
together = {f"together, {way}": {n: price(n, maps[n])["nats"] for n in maps} for way, maps in ways_in.items()}
together["sum of single costs"] = {name: float(costs.nats[name][list(last[name])].sum()) for name in run.models}
print("the greedy set, nats per token:\n" + pd.DataFrame(together).round(3).to_string())
for name in run.models:  # the clock: it belongs to this machine, so it is printed and not recorded
    both = [timeit.repeat(partial(loss_with, name, maps), number=1, repeat=2) for maps in ({}, last[name])]
    before, after = held[name].numel() / np.min(both, axis=1)
    print(f"{name}: {before:,.0f} → {after:,.0f} tokens per second, {len(last[name])} blocks replaced")

# %%
tables = {"blocks": costs, "signals": signals, "reduced_rank": thin, "frontier": frontier}
tables = {key: table.astype(object).where(table.notna(), None).reset_index() for key, table in tables.items()}
record = {name: {"spearman_r2_delta": spearman[name]} for name in run.models}
for name, (key, table) in product(run.models, tables.items()):
    record[name][key] = table[table.model == name].drop(columns="model").to_dict("records")
agreements = {kind: ranking[kind].drop(columns="factor").T.to_dict() for kind in ("one block", "several")}
tolerance = {"blocks": 0.02, "signals": 0.02, "reduced_rank": 0.02, "agreements": 0.1, "spearman_r2_delta": 0.1}
tolerance |= {"together": 0.1, "frontier": 0.5}  # the greedy search may decide a near-tie either way
run.save({"models": record, "agreements": agreements, "together": together}, tolerance)

# %% [markdown]
# ## What we learned

# %%
lowest, place = costs.r2.groupby("model", sort=False).idxmin(), costs.delta.groupby("model").rank()
dear = [f"{at[0]} block {at[1]} {costs.delta[at]:+.2f}, place {place[at]:.0f} from the cheapest" for at in lowest]
rows = [
    ("an early block swaps cheaply", "GPT-2: +0.77", [f"{n} block 0 {costs.delta[n, 0]:+.2f}" for n in run.models]),
    ("the block of lowest R²_lin does not", "ΔPPL large", dear),
    ("R²_lin ranks the costs", "implied", [f"ρ of {s} {single.rho[s]:+.2f}" for s in ("1 − R²", best)]),
    (f"{deep} blocks at once, mean", "not tried", [f"{way} {mean:+.1f}" for way, mean in at_once.mean(axis=1).items()]),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame([(*row, "; ".join(found)) for *row, found in rows], columns=["claim", "the paper", "this run"])

# %% [markdown]
# - Your first prediction: compare ρ of $1 - R^2$ with the others; below 0 its order is worse than drawing lots.
# - The felt price and *ablation × (1 − R²)* aim at one thing: a block's worth, times the share that the line misses.
#   The first takes one backward pass and prices any map; `howlinear compress` goes by it, then measures.
# - Second and third: read the ends of the curves in the second figure, and *sum of single costs* beside *together*.
#
# ## Exercises
#
# Solutions are in `solutions/06_compression.py`; try first.
#
# **1 (medium).** How much of the first model's last block does a map of rank $d/4$ keep, in loss recovered?

# %%
first, final = next(iter(run.models)), max(curves[next(iter(run.models))])
thin_share = None  # a number
if thin_share is not None:
    assert thin_share < costs.recovered[first, final] + 0.05, "ablate with the train mean; use held[first]"
    print("right:", round(thin_share, 3), "of the full map's", round(costs.recovered[first, final], 3))

# %% [markdown]
# **2 (harder).** Reduced-rank regression weighs all outputs alike. Weigh them by what the loss feels instead: find
# the best rank-$d/8$ map for $\operatorname{tr}(M\,\mathbb E[r r^\top])$ with $M$ = `felt[first][final].metric`.
# Hint: regress $y M^{1/2}$, then undo $M^{1/2}$.

# %%
weighed = None  # a hl.AffineMap
if weighed is not None:
    moments, metric = sum(captures[first].blocks[final].train), felt[first][final].metric
    plain = curves[first][final].at(len(metric) // 8)
    weights = [weighed.weight, plain.down @ plain.up]
    gains = [(metric * (2 * w.T @ moments.sxy - w.T @ moments.sxx @ w)).sum() for w in weights]
    assert gains[0] > gains[1], "the weighed map must gain more in the loss's metric"
    print("right: felt gain", round(float(gains[0] / gains[1]), 3), "times that of the plain one")
