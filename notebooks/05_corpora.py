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
# **You need** notebook 02. **You learn** to distinguish a profile, which is alike on two texts, from a line, which is
# not. **Time** 20 minutes to read, 2 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
probed = 3  # blocks, spread over the depth, for the slow parts: swaps and the bilinear probe
cost_rows: int or None = None  # held-out token rows of each text that costs are measured on; None: all

# %%
from howlinear.notebook.run import start

run = start("05_corpora", profile, model, corpus)
main = run.corpora[0]
print("models:", ", ".join(run.models), "· texts:", ", ".join(run.corpora), "·", run.rows, "token rows of each")

# %% [markdown]
# ## Predict first
#
# 1. One model reads three kinds of text. Will the profile keep its shape? Its height?
# 2. Fit a block's line on one corpus and score it on another. How much $R^2$ is lost, and in which blocks most?
# 3. The embedded models were trained on `docs` and `code` and never saw `cpp`. Will `cpp` be the odd one out?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# $R^2_{\mathrm{lin}}$ says how straight a block is *where the text goes*. It does not say which straight line. Here is
# the smallest block that shows the difference: a parabola, read by two "corpora" that visit its two flanks. Half of
# each corpus' rows are used for fitting, half are held out.
#
# ## Figure: one parabola, two lines
#
# **How to read it.** Points are held-out rows, of the left flank in (a) and of the right one in (b). Both panels show
# the same two lines: the one fitted on the panel's own flank (solid) and the one fitted on the other (dashed). Each
# explains most of its own flank. On the other flank it does far worse than the mean, so its $R^2$ there is far below 0.

# %%
import torch

import howlinear as hl
from howlinear.core.ceilings import fit, r2

generator = torch.Generator().manual_seed(0)
flanks = {}
parabola_lines = {}
for name, mean in (("left", -2), ("right", 2)):
    x = mean + torch.randn(4_000, 1, generator=generator)
    x_fit, flanks[name] = x.chunk(2)
    parabola_lines[name], _ = fit(hl.Moments(1, 1).update(x_fit, x_fit.square()))

scores = {}
for fitted, line in parabola_lines.items():
    for scored, x in flanks.items():
        scores[fitted, scored] = r2(line, hl.Moments(1, 1).update(x, x.square()))

# %%
import matplotlib.pyplot as plt
import pandas as pd

from howlinear.plots import corpora as plots

drawn = {name: pd.DataFrame({"x": x[::10, 0], "y": x[::10, 0].square()}) for name, x in flanks.items()}
ends = {name: (line.weight.item(), line.bias.item()) for name, line in parabola_lines.items()}
figure = plots.flanks(drawn, ends, scores)
run.figure(figure, "parabola")
plt.show()

# %% [markdown]
# So we ask, in this order, about every pair of corpora: are the blocks *as straight* on both; does the line of one
# *serve* the other; are the two lines *alike*? A truly affine block must pass all three, whatever the texts.

# %% [markdown]
# ## Method
#
# Write $(W_A, b_A)$ for the map fitted on the train documents of corpus $A$.
#
# - *As straight?* `agreement.agreement` correlates two profiles over the blocks and takes their difference block by
#   block. Its intervals leave out document folds of either corpus. The blocks are not resampled: they are all the
#   blocks of the model, not a sample.
# - *Does it serve?* $R^2_{AB} = 1 - \lVert Y_B' - X_B' W_A - \mathbf 1 b_A^\top \rVert_F^2 \,/\, \lVert Y_B' - \mathbf
#   1 \bar y_B'^\top \rVert_F^2$ on held-out documents of $B$. The cost of fitting elsewhere is the **drop** $R^2_{BB} -
#   R^2_{AB}$; both terms are scored on the same documents, so its interval is paired.
# - *Alike?* The cosine $\langle W_A, W_B\rangle / \lVert W_A\rVert\lVert W_B\rVert$ with $\langle V, W\rangle =
#   \operatorname{tr}(V^\top \Sigma W)$, where $\Sigma$ is the input covariance of both corpora's held-out rows. It is
#   the correlation of the maps' predictions: a direction that no text visits does not count (`transfer.likeness`).
#
# Two maps fitted on two draws of the *same* corpus are not quite alike either. How alike they would be follows from the
# spread of the maps with one of $n$ folds left out, $s_A = 1 - \tfrac{n-1}{n}\sum_i \lVert W_A^{(i)} - \bar W_A\rVert^2
# / \lVert W_A\rVert^2$: noise alone would bring the cosine down to $\sqrt{s_A s_B}$, our yardstick
# (`Transfer.expected`). All of this needs only the moments that notebook 01 kept; no text is read again.

# %% [markdown]
# ## Run
#
# One call per model scores every block's map on every corpus. Tidy tables hold the results: each text's own profile,
# what a map loses on another text, and how alike two maps are.

# %%
from howlinear.ideas.corpora import measure
from howlinear.ideas.corpora.transfer import transfers

captures = {}
found = {}
for name in run.models:
    captures[name] = {corpus: run.capture(name, corpus) for corpus in run.corpora}
    found[name] = transfers({corpus: stored.blocks for corpus, stored in captures[name].items()})

# %%
alike = measure.likeness(found)
profiles = run.record("profiles", measure.profiles(found))
transfer = run.record("transfer", measure.transfer(found))
likeness = run.record("likeness", alike.drop(columns="noise"))
by_model = run.record("by_model", measure.by_model(profiles, transfer, alike))
profiles.head()

# %% [markdown]
# ## Figure: profiles on the texts of the run (the paper's figure 5)
#
# **How to read it.** One panel per model, one curve per corpus: $R^2_{\mathrm{lin}}$ of the map fitted *and* scored on
# that corpus, with 95 % intervals. If the profile belongs to the model and not to the text, the curves coincide. If
# model and corpus are the paper's own, the paper's values are drawn behind, thin and grey.

# %%
from howlinear.files import published

papers = published.of_models(run.models)
figure = plots.profiles(profiles, None if papers.empty else papers)
run.figure(figure, "profiles")
plt.show()

# %% [markdown]
# How far is this run from the paper's values for its models on its texts? They are measured by the paper's protocol as
# well: the first 117 windows of a text, and $R^2$ about one scalar mean.

# %%
from howlinear.notebook import paper

parts = []
for corpus, column in plots.PUBLISHED.items():
    ours = profiles[profiles["corpus"] == corpus]
    parts.append(published.beside(paper.measure(run, corpus), ours, {column: ("r2_scalar", "r2")}))
cells = pd.concat(parts, ignore_index=True)
if len(cells):
    run.folded("cell by cell", run.record("paper", cells).round(3))
run.shown(published.compare_with_paper(cells).round(3), paper.NONE)

# %% [markdown]
# Eyes are lenient with curves; the table is not. It has a row for each pair of corpora:
#
# | column | what it is |
# |---|---|
# | `rho` | rank correlation ρ of the two profiles; 1: the blocks come in the same order |
# | `r`, `r_low`, `r_high` | their correlation over the blocks, and its 95 % interval |
# | `inner` | the same without the first and the last block, which alone can make a correlation high |
# | `gap`, `gap_block` | the largest difference of the two profiles, with its interval, and its block |
# | `differ` | how many blocks have a difference whose interval excludes 0; one in twenty would by chance |
#
# The largest of many differences is large because it was picked, so read the count. A model with fewer than three
# blocks has no row. The line below the table says how much of the variance of $R^2$ over blocks and corpora the block
# explains, whatever the corpus.

# %% tags=["nbval-check-output"]
agreement = run.record("agreement", measure.agreements(found))
print(agreement.round(2).to_string(index=False))
print(by_model.set_index("model")["by_block"].round(2).to_dict())

# %% [markdown]
# ## Figure: the transfer matrix
#
# **How to read it.** Top: mean over the blocks of $R^2_{AB}$, fitted on the row's corpus and scored on the column's;
# the diagonal is the mean of the profiles above. If the line were the block's own, each column would have one colour
# throughout. Bottom: block by block, the drop when the main corpus' map is used on another corpus (0 is no loss), with
# 95 % intervals.

# %%
figure = plots.transfer(profiles, transfer)
run.figure(figure, "transfer")
plt.show()

# %% [markdown]
# The same in numbers, one row per model:
#
# | column | what it is |
# |---|---|
# | `drop`, `largest` | mean and largest drop |
# | `surely` | share of the drops whose whole interval lies above 0 |
# | `likeness`, `lowest` | mean and smallest cosine of two maps |
# | `noise` | what noise alone would leave of a cosine of 1, on average |
# | `below` | share of the cosines whose whole interval lies below what noise would leave |
# | `bend` | correlation, over blocks, of the mean drop with $1 - R^2_{\mathrm{lin}}$ |
#
# Only a bent block can lose its line, so `bend` should be high. The second table asks: is a corpus that the model never
# saw the odd one out? (We know what the embedded models saw; for others it is *unknown*.) A single text has no drops.

# %% tags=["nbval-check-output"]
drops = transfer.assign(surely=transfer["drop_low"] > 0).groupby("model", sort=False)
cosines = alike.assign(below=alike["likeness_high"] < alike["noise"]).groupby("model", sort=False)
carried = drops.agg(drop=("drop", "mean"), largest=("drop", "max"), surely=("surely", "mean"))
carried = carried.join(cosines.agg(likeness=("likeness", "mean"), lowest=("likeness", "min"), below=("below", "mean")))
print(carried.join(by_model.set_index("model")[["noise", "bend"]]).astype(float).round(2).to_string())

# %% tags=["nbval-check-output"]
from pathlib import Path

from howlinear.text.corpus import TRAINED_ON

embedded = [name for name, source in run.models.items() if Path(source).is_dir()]
seen = run.record("drops_by_training", measure.drops_by_training(transfer, TRAINED_ON, embedded))
print("mean drop, fitted → scored:\n" + seen.round(2).to_string(index=False))

# %% [markdown]
# Three questions about a few blocks. What does it cost in perplexity, on each corpus, to swap in its *own* map? What
# does the main corpus' map cost *extra*, as if the model were compressed on one text and deployed on another? (Below 0,
# the line does better than what it replaces.) And is the gain of notebook 03's rank-16 *bilinear* branch the same
# everywhere? An encoder predicts no next token, so the first two questions do not apply to it; the third does.


# %%
from howlinear.ideas.bilinear.probe import probe
from howlinear.instrument.selection import spaced


def bilinear_gains(name, blocks):
    """Gain of the bilinear branch in R² on every corpus."""
    rows = []
    for corpus, stored in captures[name].items():
        for block in blocks:
            gain = probe(stored.blocks[block], seeds=1).gain
            rows.append({"model": name, "corpus": corpus, "block": block} | gain.columns("gain"))
    return pd.DataFrame(rows)


# %%
costs, costed = [], {}
for name in run.models:
    blocks = spaced(found[name], probed)
    texts = {corpus: stored.rows.with_fewer_held_out(cost_rows) for corpus, stored in captures[name].items()}
    swaps = measure.swap_costs(run.model(name), found[name], texts, blocks, main)
    costs.append(bilinear_gains(name, blocks).merge(swaps, how="left", on=["corpus", "block"]))
    if captures[name][main].about["perplexity"] is not None:
        costed[name] = texts
run.record_held_out(costed)
costs = run.record("costs", pd.concat(costs, ignore_index=True))

# %% tags=["nbval-check-output"]
for name in run.models:
    perplexities = {corpus: stored.about["perplexity"] for corpus, stored in captures[name].items()}
    if None in perplexities.values():
        print(f"{name} predicts no next token, so it has no perplexity and no swap of its blocks a cost")
    else:
        print(f"perplexity of {name}:", {corpus: round(value, 1) for corpus, value in perplexities.items()})
wide = costs.pivot(index=["model", "block"], columns="corpus", values=["own", "extra", "gain"])
print(wide.dropna(axis=1, how="all").round(2).to_string())

# %% [markdown]
# How often is the main corpus' map surely the costlier one on another text, and by how much does a block's gain differ
# from text to text?

# %% tags=["nbval-check-output"]
elsewhere = costs[costs["corpus"] != main].dropna(subset="extra")
gains = costs.groupby(["model", "block"])["gain"]
print(f"the map of {main} is surely costlier in {(elsewhere['extra_low'] > 0).sum()} of {len(elsewhere)} swaps")
print((gains.max() - gains.min()).groupby("model").max().round(2).to_dict())

# %%
run.save(settings={"probed": probed, "cost_rows": cost_rows})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - A correlation near 1 says that the shape is kept. Where the correlation without the two end blocks is much lower,
#   the texts agree that the end blocks differ from the inner ones, and agree less on the order of the inner ones.
#   Overlaid curves show the former and hide the latter.
# - Where a line surely loses $R^2$ on another text, "this much of the block is linear" is a statement about block *and*
#   text: on each corpus some line explains that much, but not the same line. A bent function behaves this way when
#   texts visit different parts of it, as the parabola did.
# - The weights are the same throughout, so what a line loses is due to the inputs alone. Intervals are over documents;
#   there are far too few kinds of text for an interval over these. In a block whose $R^2_{\mathrm{lin}}$ rests on a few
#   massive rows (notebook 12), all of this is about these rows: they may agree on all texts while the others do not.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/05_corpora.py`; try first. Each cell checks your answer when you fill it in. All use the
# middle block of the first model.

# %%
first = next(iter(run.models))
block = list(found[first])[len(found[first]) // 2]
kept = {corpus: captures[first][corpus].blocks[block] for corpus in run.corpora}
train = {corpus: sum(captured.train) for corpus, captured in kept.items()}
test = {corpus: sum(captured.test) for corpus, captured in kept.items()}
last = run.corpora[-1]

# %% [markdown]
# **1 (warm-up).** Moments add up. Fit *one* map on the train rows of all corpora and score it on each. What is lost?
#
# <details><summary>Hint</summary>
#
# Step 1: `train` holds the moments of each corpus' train rows, and `sum` adds up moments. `fit` makes a map from
# moments, and returns it with the rank of the inputs.
#
# Step 2: `r2` scores a map on moments. Score the one map on `test` of each corpus, and compare with the $R^2$ of the
# corpus' own map there.
#
# </details>

# %%
import numpy as np

one_for_all = None  # dict: corpus → R² of the common map on its held-out rows

if one_for_all is not None:
    common = fit(sum(train.values()))[0]
    assert one_for_all.keys() == kept.keys(), f"one value for each of {', '.join(kept)}"
    for corpus in kept:
        assert np.isclose(one_for_all[corpus], r2(common, test[corpus])), f"{corpus}: fit on all, score held out"
    for corpus in kept:
        print(f"on {corpus}, {r2(fit(train[corpus])[0], test[corpus]):.2f} → {one_for_all[corpus]:.2f}")
    print("right: these are what one map for all has")

# %% [markdown]
# **2 (medium).** Perhaps the foreign map has the right slopes and only the wrong offset. Keep $W$ of the main corpus,
# choose the best $b$ on the *train* rows of the last corpus, and score on its held-out rows. How much of the drop
# remains?
#
# <details><summary>Hint</summary>
#
# Step 1: with given slopes $W$, only a constant is left to fit to $y - xW$. Which constant has the least squared error?
#
# Step 2: moments hold the means as `mean_x` and `mean_y`. From which corpus, and from which side, are the means that
# you need? `fit(train[main])[0].weight` are the slopes.
#
# Step 3: `hl.AffineMap(weight, bias)` is a map, and `r2` scores it on the held-out moments of the last corpus.
#
# </details>

# %%
moved_r2 = None  # the R² of the moved map on the last corpus

if moved_r2 is not None:
    foreign, own = fit(train[main])[0], fit(train[last])[0]
    shift = train[last].mean_y - train[last].mean_x @ foreign.weight
    assert np.isclose(moved_r2, r2(hl.AffineMap(foreign.weight, shift), test[last])), "whose slopes, and whose means?"
    before, home = r2(foreign, test[last]), r2(own, test[last])
    print(f"right: a drop of {home - before:.3f} becomes {home - moved_r2:.3f}")

# %% [markdown]
# **3 (harder).** Check the yardstick by experiment: fit one map on the even train folds of the main corpus, one on the
# odd ones, and compute the cosine of the two on its held-out rows. Why should the result lie *below*
# `found[first][block].expected[main, main]`?
#
# <details><summary>Hint</summary>
#
# Step 1: `kept[main].train` is the list of train folds, and folds add up.
#
# Step 2: `howlinear.ideas.corpora.transfer.likeness` takes two maps, and the moments of the rows to compare them on.
#
# Step 3: the yardstick is for two draws as large as all train folds together. How many rows does each of your maps use?
#
# </details>

# %%
half_and_half = None  # the cosine of the two maps

if half_and_half is not None:
    from howlinear.ideas.corpora.transfer import likeness

    halves = [fit(sum(kept[main].train[start::2]))[0] for start in (0, 1)]
    assert np.isclose(half_and_half, likeness(*halves, test[main])), "the even folds are kept[main].train[::2]"
    yardstick = found[first][block].expected[main, main]
    print(f"right: with half the rows, {(1 / half_and_half - 1) / (1 / yardstick - 1):.1f} times the noise")
