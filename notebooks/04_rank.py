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
# # 04 · What carries a high R²?
#
# **Question.** $R^2_{\mathrm{lin}}$ is one number for a cloud in many dimensions. When it is high, is the whole block
# straight, or only the little of it that is loud?
#
# **Answer in one line.** The number cannot tell; its median over features, the rank of the outputs, and what happens
# when loud features, directions, tokens or rows are left out can, and the tables below say so block by block.
#
# **You need** notebook 02, eigenvalues. **Time** ten minutes to read, one to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
counts = [0, 1, 2, 4, 8, 16, 32]  # how many of the loudest features, or directions, to leave out
bands = 4  # of token frequency, each with the same share of the text
heavy = 0.01  # share of held-out rows that counts as heaviest, by leverage
high, few, gap = 0.9, 2.0, 0.25  # near-linear from this R²; concentrated up to this rank; far below from this distance

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch

import howlinear as hl
from howlinear import notebooks, rank, style
from howlinear.capture import BlockCapture, Sample
from howlinear.carried import view

run = notebooks.start("04_rank", profile)
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. Two blocks have $R^2_{\mathrm{lin}} = 0.99$. In one of them the *median* feature has an $R^2$ of 0. How?
# 2. You leave out the 32 loudest output features of a trained block. Does $R^2$ rise, fall, or stay?
# 3. On which tokens is a block straighter: on frequent or on rare ones?

# %% [markdown]
# ## Idea
#
# $R^2_{\mathrm{lin}}$ pools squared errors over features, so each feature votes with its variance. If one feature is a
# hundred times louder than the others together, it alone decides. Large language models are known to have such
# features, at a few tokens, often the first (Sun et al. 2024, "Massive activations in large language models").
#
# So we ask four times *who votes*. How many directions do the outputs use? What does the median feature say, where
# each has one vote? What is left when the loudest leave the room? And is it a few rows, rather than features, that
# carry it all?

# %% [markdown]
# ## Method
#
# With eigenvalues $\lambda$ of the centred held-out outputs' covariance, and $p = \lambda / \sum \lambda$:
#
# | | | |
# |---|---|---|
# | effective rank | $(\sum\lambda)^2 / \sum\lambda^2$ | `rank.output_rank`, `spread().effective_rank` |
# | entropy rank (Roy & Vetterli) | $\exp(-\sum p \log p)$ | `spread().entropy_rank` |
# | first share | $\max p$ | `spread().first` |
# | the same of the predictions | covariance $W^\top S'_{xx} W$ | `rank.prediction_rank`, `predicted` |
# | median | of $1 - e_j / s_j$ over features $j$ | `Score.median` |
# | without the $k$ loudest | $1 - \sum_{j>k} e_j / \sum_{j>k} s_j$ | `rank.without_loudest` |
# | leverage | $(x-\bar x)^\top S_{xx}^{+} (x-\bar x) + 1/n$, with the pseudo-inverse | `rank.leverage` |
# | all of these for a block | | `carried.view` |
#
# Here $e_j$ is the held-out squared error of feature $j$ and $s_j = \sum (y'_j - \bar y'_j)^2$. Loudness is ranked by
# *train* variance, so the held-out rows have no say in who is left out; *directions* are the eigenvectors of sampled
# train outputs. Intervals are jackknives over document folds of both sides; that of the outputs' rank
# sees the sample's held-out folds only, and maps refitted without position 0 are taken as given. Thresholds for
# "concentrated" are ours, the paper names none.
#
# Do these tools find what they are for? Three planted blocks, all nearly linear by $R^2$: one is straight throughout;
# one has a single loud straight feature among bent ones; the third is the second with its outputs rotated.


# %%
def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_block(x, y):
    i, (d_in, d_out) = torch.arange(len(x)), (x.shape[1], y.shape[1])
    sample = Sample(x.float(), y.float(), i % 16, i % 7, i // 16 % 4 == 3, i // 64 % 8)
    sides = [[sample.fold.eq(fold) & sample.test.eq(test) for fold in range(8)] for test in (False, True)]
    folds = [[hl.Moments(d_in, d_out).update(sample.x[part], sample.y[part]) for part in side] for side in sides]
    return BlockCapture(*folds, hl.Moments(d_out).update(sample.y[sample.test]), sample)


# %%
x = normal(8_000, 40, seed=0)
bent = (x @ normal(40, 40, seed=1)) * (x @ normal(40, 40, seed=2)) / 40
loud = torch.cat([60 * x[:, :1], bent[:, 1:]], 1)
turn = torch.linalg.qr(normal(40, 40, seed=3)).Q
planted = {
    "straight throughout": as_block(x, x @ normal(40, 40, seed=4) + 0.6 * bent),
    "one loud feature": as_block(x, loud),
    "one loud direction": as_block(x, loud @ turn),
}


# %% tags=["nbval-check-output"]
tried = {name: view(kept, kept.sample.token[~kept.sample.test], counts) for name, kept in planted.items()}
for name, seen in tried.items():
    values = f"R² {seen.r2.value:.2f}, median {seen.median.value:.2f}, rank {seen.rank.value:.1f}"
    gone = f"feature {seen.features[1].value:.2f}, direction {seen.directions[1].value:.2f}"
    print(f"{name}: {values}: {seen.regime(high, few, gap)}; R² without the loudest {gone}")

# %% [markdown]
# The second block is the paper's *outlier-concentrated* regime, and every tool sees it. The third is the same block to
# whoever reads all its outputs, but each feature now contains a little of the loud direction: the median is fooled,
# the rank is not, and leaving out *directions* undoes it. Keep this in mind for the figure: per-feature numbers
# depend on the axes, ranks and directions do not.
#
# ## Run
#
# Every block of every model, from the captures of notebook 01. Tokens are cut into bands by how often they occur in
# the train text; each band's $R^2$ is relative to *its own* variance about its own mean, so a band gets no credit for
# lying apart from the others. For position 0 we score the same map with and without it, and also refit: two maps on
# sampled train rows, with and without position 0, compared on the rows that are not at position 0.


# %%
views = {}
for name in run.models:
    stored = run.capture(name)
    ids = stored.rows.ids[~stored.rows.test]
    views |= {(name, block): view(kept, ids, counts, bands, heavy) for block, kept in stored.blocks.items()}
frame = pd.DataFrame(
    {key: [getattr(seen, key).value for seen in views.values()] for key in ("r2", "median", "rank", "predicted")},
    pd.MultiIndex.from_tuples(views, names=["model", "block"]),
)
frame["gap"] = frame["r2"] - frame["median"]
for side in ("outputs", "predictions"):
    frame[f"entropy rank, {side}"] = [getattr(seen, side).entropy_rank for seen in views.values()]
    frame[f"first share, {side}"] = [getattr(seen, side).first for seen in views.values()]
frame["regime"] = [seen.regime(high, few, gap) for seen in views.values()]
frame.rename(columns={"r2": "R²", "predicted": "predicted rank"}).round(2)

# %% [markdown]
# ## Figure: the paper's figure 4
#
# **How to read it.** One point per block: pooled $R^2$ to the right, the median feature's $R^2$ upwards, with
# intervals; the area grows with the effective rank of the outputs. On the diagonal every feature tells the same story.
# Low and to the right, and small, is the outlier-concentrated corner: there lies our planted block. Open diamonds are
# planted (the other two lie at the upper right), the shaded strip is what counts as near-linear.


# %%
def area(size):
    return 3 + 1.5 * size


def reach(estimates):
    return [[one.value - one.low for one in estimates], [one.high - one.value for one in estimates]]


figure, ax = plt.subplots(figsize=(style.COLUMN, 3.6))
ax.axvspan(high, 1.02, color=style.GREY, alpha=0.12, lw=0)
low = min(frame["median"].min(), -0.01) - 0.06
ax.plot([low, 1.02], [low, 1.02], color=style.GREY, lw=0.8, zorder=1)
for name in run.models:
    mine, look = frame.loc[name], style.look(name)
    across, up = ([getattr(views[name, block], key) for block in mine.index] for key in ("r2", "median"))
    bars = {"fmt": "none", "ecolor": look["color"], "elinewidth": 0.5, "alpha": 0.5}
    ax.errorbar(mine.r2, mine["median"], reach(up), reach(across), **bars)
    points = {"color": look["color"], "marker": look["marker"], "lw": 0.4, "ec": "white", "alpha": 0.85, "label": name}
    ax.scatter(mine.r2, mine["median"], area(mine["rank"]), **points)
for seen in tried.values():
    ax.scatter(seen.r2.value, seen.median.value, area(seen.rank.value), color="white", marker="D", ec="black", lw=0.6)
ax.text(tried["one loud feature"].r2.value - 0.03, 0, "planted: one\nloud feature", ha="right", va="center")
for size in (1, 10, 40):
    ax.scatter([], [], area(size), color="none", ec="black", lw=0.5, label=f"rank {size}")
ax.set(xlim=(min(frame.r2.min() - 0.06, 0.3), 1.02), ylim=(low, 1.02))
ax.set(xlabel="pooled $R^2_{\\mathrm{lin}}$, held out", ylabel="median $R^2$ of single features")
figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, columnspacing=1.5)
run.figure(figure, "median")
plt.show()

# %% [markdown]
# ## Figure: what carries it
#
# **How to read it.** Thin lines are blocks, thick ones their mean by model. (a) $R^2$ of what is left when the $k$
# loudest output features are left out; dotted grey: the planted block with one loud feature. (b) The same with the $k$
# loudest directions; dotted: the planted block with one loud direction. (c) $R^2$ within each band of token frequency,
# about the band's own mean. (d) By how much $R^2$ rises when the heaviest rows (filled) or position 0 (open) are left
# out, with intervals for the first; a few heavy rows make them wide.

# %%
figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(style.PAGE, 4.6))
for i, name in enumerate(run.models):
    mine, look = [views[name, block] for block in frame.loc[name].index], style.look(name)
    for ax, key in ((a, "features"), (b, "directions"), (c, "bands")):
        lines = pd.DataFrame([[one.value for one in getattr(seen, key)] for seen in mine]).T
        ax.plot(lines, color=look["color"], lw=0.5, alpha=0.5)
        ax.plot(lines.mean(axis=1), **look)
    heaviest, where = [seen.without_heavy for seen in mine], frame.loc[name].index + 0.16 * (i - 1)
    dots = {"color": look["color"], "marker": look["marker"], "ls": "none"}
    d.errorbar(where, [one.value for one in heaviest], reach(heaviest), elinewidth=0.5, **dots)
    d.plot(where, [seen.without_first.value for seen in mine], mfc="white", **dots)
for ax, key, name in ((a, "features", "one loud feature"), (b, "directions", "one loud direction")):
    ax.plot([one.value for one in getattr(tried[name], key)], color=style.GREY, ls=":", label="planted")
    ax.set(xticks=range(len(counts)), xticklabels=counts, xlabel=f"loudest {key} left out", ylabel="$R^2$ of the rest")
c.set(xticks=range(bands), xticklabels=["frequent", *range(2, bands), "rare"], ylabel="$R^2$ within the band")
c.set_xlabel("band of token frequency")
d.axhline(0, color=style.GREY, lw=0.6)
for face, label in ((style.GREY, f"heaviest {heavy:.0%}"), ("white", "position 0")):
    d.plot([], [], "o", color=style.GREY, mfc=face, label=label)
d.set(xlabel="block", ylabel="rise of $R^2$ without them", xticks=sorted({block for _, block in views})[::2])
d.legend(loc="upper center")
for ax, title in ((a, "(a) features"), (b, "(b) directions"), (c, "(c) tokens"), (d, "(d) rows")):
    ax.set_title(title, loc="left")
figure.legend(*a.get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=2.8)
run.figure(figure, "carried")
plt.show()

# %% [markdown]
# ## What we learned
#
# First the run answers for each model: how many blocks are near-linear, and of which kind; then model means. ρ is the
# rank correlation, over blocks, of the outputs' effective rank with the gap between pooled and median $R^2$: the
# paper's picture (low rank, far below the diagonal) makes it negative. Of twelve blocks, |ρ| up to 0.59 may be chance.

# %% tags=["nbval-check-output"]
WORDS = {"broad concentrated": "both regimes", "broad": "only broad", "concentrated": "only concentrated"}
verdicts = {}
for name, mine in frame.groupby("model", sort=False):
    kinds, near = " ".join(sorted(set(mine.regime) - {"below"})), int((mine.regime != "below").sum())
    verdict = WORDS.get(kinds, "signs disagree") if near else "no near-linear block"
    rho = float(mine.gap.corr(mine["rank"], method="spearman"))
    verdicts[name] = {"near_linear": near, "verdict": verdict, "lowest_rank": mine["rank"].min(), "rho": rho}
    print(f"{name}: {near} near-linear block(s): {verdict}; lowest rank {mine['rank'].min():.1f}, ρ {rho:+.1f}")


# %% tags=["nbval-check-output"]
def carriers(seen):
    loud = {f"R² without {counts[-1]} {key}": getattr(seen, key)[-1].value for key in ("features", "directions")}
    tokens = {"R² on frequent tokens": seen.bands[0].value, "R² on rare tokens": seen.bands[-1].value}
    rises = {
        "rise without heaviest rows": seen.without_heavy.value,
        "rise without position 0": seen.without_first.value,
    }
    return {"R²": seen.r2.value} | loud | tokens | rises


means = pd.DataFrame(map(carriers, views.values()), frame.index).groupby("model", sort=False).mean()
print((means.round(2) + 0.0).T.to_string())

# %% [markdown]
# Is the difference between frequent and rare tokens real, block by block? We count the blocks whose two intervals do
# not touch, and those whose predictions surely spread over fewer directions than their outputs.

# %%
sure = pd.DataFrame(
    {
        "frequent above rare": [seen.bands[0].low > seen.bands[-1].high for seen in views.values()],
        "rare above frequent": [seen.bands[-1].low > seen.bands[0].high for seen in views.values()],
        "predictions narrower": [seen.predicted.high < seen.rank.low for seen in views.values()],
    },
    frame.index,
)
print(sure.groupby("model", sort=False).sum().to_string())

# %%
models = {name: found | {"blocks": []} for name, found in verdicts.items()}
for (name, block), seen in views.items():
    models[name]["blocks"].append(seen.numbers() | {"block": block, "regime": frame.regime[name, block]})
settings = {"high": high, "few": few, "gap": gap, "counts": counts, "bands": bands, "heavy": heavy}
ranks = dict.fromkeys(("rank", "predicted", "lowest_rank", "without_heavy", "heavy_error"), 0.01)
run.save({"models": models, "settings": settings}, ranks | {"rho": 0.1})

regimes = "; ".join(f"{name}: {found['verdict']}" for name, found in verdicts.items())
trend = "; ".join(f"{name}: ρ {found['rho']:+.2f}" for name, found in verdicts.items())
claims = [
    ("a high R² hides two regimes", "outlier-concentrated (rank ≈ 1) and broad", regimes),
    ("the lower the rank, the further below the diagonal", "figure 4", trend),
    ("straighter on frequent tokens", "not reported", f"{sure['frequent above rare'].sum()} of {len(views)} blocks"),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - Your first prediction: the planted block with one loud feature shows how. Whether a trained block does the same,
#   read off its *regime*; "no near-linear block" means that the claim cannot be tested there,
#   and one or two such blocks say little.
# - Your second: compare (a) with (b). A feature may hold a little of every direction; leaving out directions takes
#   away what the block does most, and shows how straight the quiet rest is.
# - Your third: read (c) and the counts. Each band has the same share of the train rows, so the map owes none of them
#   more than another.
#
# ## Exercises
#
# Solutions are in `solutions/04_rank.py`; try first.
#
# **1 (warm-up).** Of $d$ uncorrelated features, $d - 1$ have variance 1. What variance must the last one have for the
# effective rank to be 2?


# %%
def variance(d):
    return None  # a formula


if (answer := variance(100)) is not None:
    diagonal = torch.tensor([answer, *[1.0] * 99], dtype=torch.float64).diag()
    assert abs(rank.spread(diagonal).effective_rank - 2) < 1e-9, "solve (a + d − 1)² = 2 (a² + d − 1) for the larger a"
    print("right:", round(answer), "times the others' variance, each")

# %% [markdown]
# **2 (medium).** The median depends on the axes. Take the last block of the first model and look along the directions
# of its sampled train outputs: what is the median $R^2$ on the sampled held-out rows, with the map of all train rows?

# %%
first, last = list(views)[len(frame.loc[next(iter(run.models))]) - 1]
kept = run.capture(first).blocks[last]
turned_median = None  # hint: rank.directions, rank.scored_rows(…, basis).without(), .median()

if turned_median is not None:
    x, y = (part[kept.sample.test].double() for part in (kept.sample.x, kept.sample.y))
    turn = rank.directions(kept.sample.y[~kept.sample.test])
    left = ((y - hl.ceiling(kept.train, kept.test).map(x)) @ turn).square().sum(0)
    assert abs(turned_median - float((1 - left / ((y - y.mean(0)) @ turn).square().sum(0)).quantile(0.5))) < 1e-6
    print(f"right: {turned_median:.2f} along directions, {views[first, last].median.value:.2f} along features")

# %% [markdown]
# **3 (harder).** Must a block with few straight features have rank 1? Plant one ($x$ and $y$ of 40 features, as above)
# with pooled $R^2$ above 0.9, median under 0.1, and an effective rank above 8. What does `regime` call it, and why?

# %%
crowd = None  # as_block(x, …)

if crowd is not None:
    seen = view(crowd, crowd.sample.token, counts)
    assert seen.r2.value > 0.9, "what is loud must be straight"
    assert seen.median.value < 0.1, "most features must be bent"
    assert seen.rank.value > 8, "share the loudness among more features"
    print("right:", seen.regime(high, few, gap))
