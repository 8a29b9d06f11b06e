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
# # 05 · Is the straight line the block's own, or the text's?
#
# **Question.** Notebook 02 measured every block on one corpus. Does another kind of text give the same profile? And
# if it does: is it the same *line*?
#
# **Answer in one line.** These are two questions, and a profile can stay while every line in it changes; the last table
# says how far either holds here.
#
# **You need** notebook 02. **Time** ten minutes to read, one or two to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
probed = 3  # blocks, spread over the depth, for what is slow: swaps and the bilinear probe

# %%
from itertools import combinations, permutations, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

import howlinear as hl
from howlinear import notebooks, style
from howlinear.bilinear import probe
from howlinear.ceilings import fit, r2
from howlinear.corpora import TRAINED_ON
from howlinear.perplexity import change, swap_losses
from howlinear.transfer import agreement, transfers

run = notebooks.start("05_corpora", profile)
main, others = run.corpora[0], run.corpora[1:]
print("models:", ", ".join(run.models), "· texts:", ", ".join(run.corpora), "·", run.rows, "token rows of each")

# %% [markdown]
# ## Predict first
#
# 1. One model reads three kinds of text. Will the profile keep its shape? Its height?
# 2. Fit a block's line on one corpus and score it on another. How much $R^2$ is lost, and in which blocks most?
# 3. The embedded models were trained on `docs` and `code` and never saw `cpp`. Will `cpp` be the odd one out?

# %% [markdown]
# ## Idea
#
# $R^2_{\mathrm{lin}}$ says how straight a block is *where the text goes*. It does not say which straight line. Here is
# the smallest block that shows the difference: a parabola, read by two "corpora" that visit its two flanks.

# %%
generator = torch.Generator().manual_seed(0)
flanks = {name: mean + torch.randn(4_000, 1, generator=generator) for name, mean in (("left", -2), ("right", 2))}
sides = {name: [hl.Moments(1, 1).update(x, x.square()) for x in rows.chunk(2)] for name, rows in flanks.items()}
for name, (train, test) in sides.items():
    elsewhere = sides["right" if name == "left" else "left"][1]
    print(f"{name}: R² at home {hl.ceiling(train, test).r2:.2f}, on the other flank {r2(fit(train)[0], elsewhere):.1f}")

# %% [markdown]
# So we ask three things of every pair of corpora, in this order: are the blocks *as straight*; does the line of one
# *serve* the other; are the two lines *alike*? A truly affine block must pass all three, whatever the texts.

# %% [markdown]
# ## Method
#
# Write $(W_A, b_A)$ for the map fitted on the train documents of corpus $A$.
#
# - *As straight?* `transfer.agreement` correlates two profiles over the blocks and takes their difference block by
#   block. Its intervals leave out document folds of either corpus. The blocks are not resampled: they are all that the
#   model has, no sample of anything.
# - *Does it serve?* $R^2_{AB} = 1 - \lVert Y_B' - X_B' W_A - \mathbf 1 b_A^\top \rVert_F^2 \,/\,
#   \lVert Y_B' - \mathbf 1 \bar y_B'^\top \rVert_F^2$ on held-out documents of $B$. What fitting elsewhere costs is the
#   **drop** $R^2_{BB} - R^2_{AB}$; both terms are scored on the same documents, so its interval is paired.
# - *Alike?* The cosine $\langle W_A, W_B\rangle / \lVert W_A\rVert\lVert W_B\rVert$ with $\langle V, W\rangle =
#   \operatorname{tr}(V^\top \Sigma W)$, where $\Sigma$ is the input covariance of both corpora's held-out rows. It is
#   the correlation of what the maps predict: a direction that no text visits does not count (`transfer.likeness`).
#
# Two maps fitted on two draws of the *same* corpus are not quite alike either. How alike they would be follows from
# the spread of the maps with one of $n$ folds left out, $s_A = 1 - \tfrac{n-1}{n}\sum_i \lVert W_A^{(i)} - \bar
# W_A\rVert^2 / \lVert W_A\rVert^2$: noise alone would bring the cosine down to $\sqrt{s_A s_B}$, our yardstick
# (`Transfer.expected`). All of it needs only the moments that notebook 01 kept; no text is read again.

# %% [markdown]
# ## Run

# %%
captures = {name: {corpus: run.capture(name, corpus) for corpus in run.corpora} for name in run.models}
found = {name: transfers({c: stored.blocks for c, stored in on.items()}) for name, on in captures.items()}
two = list(combinations(run.corpora, 2))


def stacked(name, what, end, where):
    return np.array([getattr(getattr(each, what), end)[where] for each in found[name].values()])


def series(name, what, a, b):
    at = run.corpora.index(a), run.corpora.index(b)
    return pd.DataFrame({end: stacked(name, what, end, at) for end in ("value", "low", "high")}, index=found[name])


profiles = {name: pd.DataFrame({c: series(name, "r2", c, c).value for c in run.corpora}) for name in run.models}

# %% [markdown]
# ## Figure: the paper's figure 5
#
# **How to read it.** One panel per model, one curve per corpus: $R^2_{\mathrm{lin}}$ of the map fitted *and* scored on
# that corpus, with 95 % intervals. If the profile belongs to the model and not to the text, the curves lie on each
# other.

# %%
LOOKS = {"color": ["0.1", style.ACCENT, style.GREY], "marker": ["o", "s", "^"], "linestyle": ["-", "--", ":"]}


def curve(panel, name, what, a, b):
    i, cells = run.corpora.index(b), series(name, what, a, b)
    look = {key: values[i % 3] for key, values in LOOKS.items()} | {"label": b, "capsize": 1.5, "elinewidth": 0.7}
    bars = [cells.value - cells.low, cells.high - cells.value]
    panel.errorbar(cells.index + 0.15 * (i - 1), cells.value, bars, **look)
    panel.set(xlabel="block", xticks=cells.index[::2])


figure, panels = plt.subplots(1, len(run.models), figsize=(style.PAGE, 2.3), sharey=True, squeeze=False)
for panel, name, letter in zip(panels[0], run.models, "abcdefgh", strict=False):
    for corpus in run.corpora:
        curve(panel, name, "r2", corpus, corpus)
    panel.set_title(f"({letter}) {name}", loc="left")
lowest = min(table.to_numpy().min() for table in profiles.values())
panels[0, 0].set(ylabel="$R^2_{\\mathrm{lin}}$, held out", ylim=(min(0, lowest - 0.05), 1.02))
figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=3)
run.figure(figure, "profiles")
plt.show()

# %% [markdown]
# Eyes are lenient with curves. The table is not. Per pair of corpora: the correlation with its interval; that of the
# *inner* blocks (of five or more), as a first and a last block far from the rest can make any correlation high; the
# rank correlation ρ (1: the same order of blocks); the largest difference, its interval and its block; and how many
# blocks *differ* by more than their interval. One in twenty would by chance, and the largest of many differences is
# large by choice: read the count. *By block* is the share of a panel's variance that goes by block, in every corpus.


# %%
def summary(name, a, b):
    whole, inner = (agreement(blocks[name], a, b) for blocks in (found, between))
    at = int(np.abs(whole.difference).argmax())
    row = {"model": name, "pair": f"{a} ~ {b}", "rho": spearmanr(*profiles[name][[a, b]].T.values)[0]}
    for key, each in (("r", whole), ("inner", inner)):
        row |= {key: each.pearson, f"{key}_low": each.pearson_low, f"{key}_high": each.pearson_high}
    gap = {"gap": whole.difference[at], "gap_low": whole.low[at], "gap_high": whole.high[at]}
    return row | gap | {"at": whole.blocks[at], "differ": len(whole.differ)}


# %% tags=["nbval-check-output"]
between = {name: dict(list(kept.items())[1:-1]) if len(kept) > 4 else kept for name, kept in found.items()}
agree = pd.DataFrame([summary(name, a, b) for name in run.models for a, b in two]).set_index(["model", "pair"])
by_block = {name: float(np.var(table.mean(axis=1)) / np.var(table.to_numpy())) for name, table in profiles.items()}
print(agree.round(2).to_string())
print("by block:", {name: round(share, 2) for name, share in by_block.items()})

# %% [markdown]
# ## Figure: the transfer matrix
#
# **How to read it.** Top: mean over the blocks of $R^2_{AB}$, fitted on the row's corpus and scored on the column's;
# the diagonal is the mean of figure 5. If the line were the block's own, a column would be of one colour. Bottom: block
# by block, the drop where the main corpus' map is used on another corpus (0 is no loss), with 95 % intervals.

# %%
size, ticks = (style.PAGE, 3.9), range(len(run.corpora))
figure, panels = plt.subplots(2, len(run.models), figsize=size, sharey="row", squeeze=False, height_ratios=(1.15, 1))
for (top, bottom), name, letter in zip(panels.T, run.models, "abcdefgh", strict=False):
    matrix = stacked(name, "r2", "value", ...).mean(axis=0)
    image = top.imshow(matrix, vmin=0, vmax=1, cmap="cividis")
    for (i, j), value in np.ndenumerate(matrix):
        top.text(j, i, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.5 else "white")
    top.set(xticks=ticks, yticks=ticks, xticklabels=run.corpora, yticklabels=run.corpora, xlabel="scored on")
    top.grid(visible=False)
    top.set_title(f"({letter}) {name}", loc="left")
    for corpus in others:
        curve(bottom, name, "drop", main, corpus)
    bottom.axhline(0, color=style.GREY, lw=0.6)
panels[0, 0].set(ylabel="fitted on")
panels[1, 0].set(ylabel=f"drop in $R^2$,\nmap of {main}")
figure.colorbar(image, ax=panels[0], label="mean $R^2$", shrink=0.8)
handles, labels = panels[1, 0].get_legend_handles_labels()
figure.legend(handles, [f"scored on {label}" for label in labels], loc="outside lower center", ncols=2, handlelength=3)
run.figure(figure, "transfer")
plt.show()

# %% [markdown]
# The same in numbers, with the likeness of the lines beside the yardstick. *Surely* counts drops whose interval lies
# above 0; *below*, pairs of maps whose likeness lies, interval and all, below what noise alone would leave. *With
# bend* is the correlation over blocks of the mean drop with $1 - R^2_{\mathrm{lin}}$: only a bent block can lose its
# line. Then: is a corpus that the model never saw the odd one out? (We know what the embedded models saw, not others.)


# %%
def carried(name):
    drop, low = (stacked(name, "drop", end, ~np.eye(len(run.corpora), dtype=bool)) for end in ("value", "low"))
    like, high = (stacked(name, "likeness", end, upper) for end in ("value", "high"))
    noise = np.array([each.expected[upper] for each in found[name].values()])
    row = {"drop": drop.mean(), "largest": drop.max(), "surely": f"{(low > 0).sum()} of {low.size}"}
    row |= {"likeness": like.mean(), "lowest": like.min(), "noise alone": noise.mean()}
    bend = np.corrcoef(drop.mean(axis=1), 1 - profiles[name].mean(axis=1))[0, 1]
    return row | {"below": f"{(high < noise).sum()} of {high.size}", "with bend": bend}


# %% tags=["nbval-check-output"]
upper = np.triu_indices(len(run.corpora), 1)
carry = pd.DataFrame({name: carried(name) for name in run.models}).T.infer_objects()
print(carry.round(2).to_string())
seen = {corpus: "seen" if corpus in TRAINED_ON else "unseen" for corpus in run.corpora}
odd = pd.DataFrame(
    {"model": name, "kind": f"{seen[a]} → {seen[b]}", "drop": series(name, "drop", a, b).value.mean()}
    for name, (a, b) in product(run.models, permutations(run.corpora, 2))
).pivot_table(index="model", columns="kind", values="drop", sort=False)
print("mean drop, fitted → scored:\n" + odd.round(2).to_string())

# %% [markdown]
# Two practical questions, for a few blocks. What does it cost in perplexity, on each corpus, to swap in its *own* map;
# and what *extra* to take the main corpus' map, as if compressed on one text and deployed on another? (Below 0, the
# line does better than what it replaces.) Is the gain of notebook 03's rank-16 *bilinear* branch the same everywhere?


# %%
def maps_of(name, corpus):
    blocks = sorted({round(place) for place in np.linspace(0, len(found[name]) - 1, probed)})
    return {block: found[name][block].maps[run.corpora.index(corpus)] for block in blocks}


costs = []
for name, corpus in product(run.models, run.corpora):
    stored, model = captures[name][corpus], run.model(name)
    ids = stored.rows.ids[stored.rows.test]
    base, mine = swap_losses(model, maps_of(name, corpus), ids)
    theirs = swap_losses(model, maps_of(name, main), ids)[1] if corpus != main else mine
    for block in mine:
        gain = probe(stored.blocks[block], seeds=1)
        row = {"model": name, "block": block, "corpus": corpus}
        added = {"delta": gain.gain, "low": gain.low, "high": gain.high}
        own, extra = change(base, mine[block]), change(mine[block], theirs[block])
        costs += [row | {"kind": "own"} | vars(own), row | {"kind": "extra"} | vars(extra)]
        costs += [row | {"kind": "bilinear"} | added]
costs = pd.DataFrame(costs)
wide = costs.pivot_table(index=["model", "block"], columns=["kind", "corpus"], values="delta", sort=False)
print("perplexity:", {name: {c: round(on[c].about["perplexity"], 1) for c in on} for name, on in captures.items()})
print(wide[["own", "extra", "bilinear"]].round(2).to_string())

# %%
record = {
    name: {
        "blocks": list(found[name]),
        "profile": {c: series(name, "r2", c, c).to_dict("list") for c in run.corpora},
        "agreement": agree.loc[name].astype(float).to_dict("index"),
        "by_block": by_block[name],
        "mean_r2": stacked(name, "r2", "value", ...).mean(axis=0),
        "drop": {f"{a} → {b}": series(name, "drop", a, b).to_dict("list") for a, b in permutations(run.corpora, 2)},
        "likeness": {f"{a} ~ {b}": series(name, "likeness", a, b).to_dict("list") for a, b in two},
        "carried": carry.loc[name].drop(["surely", "below"]).to_dict(),
        "mean_drop": odd.loc[name].to_dict(),
        "costs": costs[costs.model == name].drop(columns="model").to_dict("records"),
    }
    for name in run.models
}
run.save({"corpora": run.corpora, "models": record}, {"costs": 0.03, "rho": 0.1, "differ": 1, "at": 12, "inner": 0.01})

# %% [markdown]
# ## What we learned


# %%
def learned(name):
    each, c, cost = agree.loc[name], carry.loc[name], costs[costs.model == name].set_index("kind")
    far, gain = cost.loc["extra"].query("corpus != @main"), cost.loc["bilinear"].groupby("block").delta.agg(np.ptp)
    shape = f"r ≥ {each.r.min():.2f}, inner ≥ {each.inner.min():.2f}, ρ ≥ {each.rho.min():.2f}"
    gap = f"{each.gap.abs().max():.2f} in a range of {np.ptp(profiles[name].to_numpy()):.2f}"
    count = f"{each.differ.sum()} of {len(each) * len(profiles[name])}"
    line = f"drop {c['drop']:.2f}, likeness {c.likeness:.2f} (noise alone: {c['noise alone']:.2f})"
    return [shape, gap, count, line, f"{(far.low > 0).sum()} of {len(far)}", f"{gain.max():.2f}"]


paper = ["curves overlay", "not given", "no error bars", *["not asked"] * 3]
claims = ["one profile on all texts", "largest gap", "blocks that surely differ", "one line on all texts"]
claims += [f"map of {main} surely dearer", "bilinear gains differ by up to"]
pd.set_option("display.max_colwidth", None)
pd.DataFrame({"the paper": paper} | {name: learned(name) for name in run.models}, index=claims)

# %% [markdown]
# - Your first prediction: read the first three rows. A correlation near 1 says that the shape is kept. If *inner* or ρ
#   is much lower, what is kept is the shape of the two ends, less the order between them. Blocks that surely differ
#   say that the height is not quite kept. Overlaid curves show the first and hide the others.
# - Your second: read *one line*. Where the drop is surely above 0, "so much of the block is linear" is said of block
#   *and* text: on each corpus some line explains so much, and not the same line. So does a bent function when texts
#   visit different parts of it, as the parabola did. Your third: read the table of seen and unseen.
# - What this does not show: the weights are the same throughout, so a lost line is due to the inputs alone. And all
#   intervals are about documents; three domains are only three.
#
# ## Exercises
#
# Solutions are in `solutions/05_corpora.py`; try first. All use the middle block of the first model.

# %%
first = next(iter(run.models))
block = list(found[first])[len(found[first]) // 2]
kept = {corpus: captures[first][corpus].blocks[block] for corpus in run.corpora}
train, test = ({corpus: sum(getattr(each, side)) for corpus, each in kept.items()} for side in ("train", "test"))
last = run.corpora[-1]

# %% [markdown]
# **1 (warm-up).** Moments add up. Fit *one* map on the train rows of all corpora and score it on each. What is lost?

# %%
one_for_all = None  # dict: corpus → R² of the common map on its held-out rows

if one_for_all is not None:
    assert np.isclose(one_for_all[last], r2(fit(sum(train.values()))[0], test[last])), "fit on all, score held out"
    print("right:", {c: f"{r2(fit(train[c])[0], test[c]):.2f} → {one_for_all[c]:.2f}" for c in kept})

# %% [markdown]
# **2 (medium).** Perhaps the foreign map has the right slopes and only the wrong offset. Keep $W$ of the main corpus,
# choose the best $b$ on the *train* rows of the last corpus, and score there. How much of the drop is left?

# %%
moved_r2 = None  # hint: the best bias for given slopes is ȳ − x̄ W

if moved_r2 is not None:
    before, home = (r2(fit(train[corpus])[0], test[last]) for corpus in (main, last))
    shift = train[last].mean_y - train[last].mean_x @ fit(train[main])[0].weight
    assert np.isclose(moved_r2, r2(hl.AffineMap(fit(train[main])[0].weight, shift), test[last])), "whose means?"
    print(f"right: a drop of {home - before:.3f} becomes {home - moved_r2:.3f}")

# %% [markdown]
# **3 (harder).** Check the yardstick by experiment: fit one map on the even train folds of the main corpus, one on the
# odd ones, and liken them on its held-out rows. Why should the result lie *below* `expected[0, 0]`?

# %%
half_and_half = None  # hint: howlinear.transfer.likeness takes two maps and moments

if half_and_half is not None:
    yardstick = found[first][block].expected[0, 0]
    assert 0 < half_and_half < yardstick, "the even folds are kept[main].train[::2]"
    print(f"right: with half the rows, {(1 / half_and_half - 1) / (1 / yardstick - 1):.1f} times the noise")
