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
# straight, or only the few outputs that vary most?
#
# **You need** notebook 02 and eigenvalues. **You learn** which outputs decide a pooled $R^2$, and to check the median
# feature and the effective rank before you believe a high one. **Time** 30 minutes to read, 1 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
counts = [0, 1, 2, 4, 8, 16, 32]  # how many of the loudest features, or directions, to leave out
bands = 4  # bands of token frequency, each with the same share of the text
heavy = 0.01  # share of held-out rows that counts as heaviest, by leverage
high = 0.9  # a near-linear block has at least this R²
few = 2.0  # the outputs of a concentrated block have at most this effective rank
gap = 0.25  # the median feature of a concentrated block lies at least this far below the pooled R²

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch

import howlinear as hl
from howlinear.notebook.run import start
from howlinear.plots import rank as plots

run = start("04_rank", profile, model, corpus)
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. Two blocks have $R^2_{\mathrm{lin}} = 0.99$. In one of them the *median* feature has an $R^2$ of 0. How?
# 2. You leave out the 32 loudest output features of a trained block. Does $R^2$ rise, fall, or stay?
# 3. On which tokens is a block straighter: on frequent or on rare ones?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about. A
# block is *near-linear* if its $R^2_{\mathrm{lin}}$ is at least `high`, above; an output feature is *loud* if it varies
# much; the *effective rank* counts the directions that share the outputs' variance.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# $R^2_{\mathrm{lin}}$ pools squared errors over features, so each feature votes with its variance. The more it varies,
# the *louder* we call it. If one feature has a hundred times the variance of the others together, it alone decides.
# Large language models are known to have such features, at a few tokens, often the first (Sun et al. 2024, "Massive
# activations in large language models").
#
# So we ask four times *who votes*. How many directions do the outputs use? What is the $R^2$ of the median feature,
# where each has one vote? What is left without the loudest? And do a few rows, rather than features, carry it all?

# %% [markdown]
# ## Method
#
# Let $\lambda$ be the eigenvalues of the covariance of the held-out outputs, and $p = \lambda / \sum \lambda$.
#
# | quantity | equation | function of `howlinear.ideas.rank` |
# |---|---|---|
# | effective rank | $(\sum\lambda)^2 / \sum\lambda^2$ | `spread.output_rank`, `hl.effective_rank` |
# | entropy rank (Roy & Vetterli) | $\exp(-\sum p \log p)$ | `spread.spread().entropy_rank` |
# | first share | $\max p$ | `spread.spread().first` |
# | effective rank of the predictions | covariance $W^\top S'_{xx} W$ | `spread.prediction_rank` |
# | the paper's rank | $\min\{k : R^2(k) \ge 0.9\, R^2_{\mathrm{lin}}\}$ | `core.reduced_rank`, `rank_reaching` |
# | median | of $1 - e_j / s_j$ over features $j$ | `scores.Score.median` |
# | without the $k$ loudest | $1 - \sum_{j>k} e_j / \sum_{j>k} s_j$ | `scores.without_loudest` |
# | leverage | $(x-\bar x)^\top S_{xx}^{+} (x-\bar x) + 1/n$, with the pseudo-inverse | `core.ceilings.leverage` |
# | all of these for a block | | `measure.measure_block` |
#
# Here $e_j$ is the held-out squared error of feature $j$ and $s_j = \sum (y'_j - \bar y'_j)^2$, with the features
# sorted from loud to quiet, and $R^2(k)$ is the $R^2$ of the best map of rank $k$.
#
# <details><summary>Refresher: effective rank</summary>
#
# Over how many directions does a cloud spread? Turn the axes until no two features are correlated: the variances along
# the new axes are the eigenvalues $\lambda$ of the covariance. If $m$ of them are equal and the others 0, then
# $(\sum\lambda)^2 / \sum\lambda^2 = (m\lambda)^2 / (m\lambda^2) = m$, so this ratio counts them. If they are unequal,
# the quieter ones count for less than one each: variances of 3 and 1 make $(3 + 1)^2 / (3^2 + 1^2) = 1.6$ directions.
#
# </details>
#
# <details><summary>Refresher: leverage</summary>
#
# Not every row pulls equally at a line. Raise the output of one row by 1 and fit again: by how much does the line's
# prediction at this row rise? That is its leverage, $(x-\bar x)^\top S_{xx}^{+} (x-\bar x) + 1/n$. It says how far out
# the row's *input* lies, measured by the cloud's own spread in that direction, and does not depend on its output.
# $S_{xx}^{+}$ is the inverse of $S_{xx}$, except that it leaves out the directions without any variance. Over the $n$
# train rows, leverages add up to the rank of the inputs plus 1.
#
# </details>
#
# Three features are enough to follow by hand: the first has nine times the variance of each of the others, and the line
# explains nothing of the other two.

# %%
from howlinear.ideas.rank import measure, scores

score = scores.Score(
    n=10,
    mean=torch.zeros(3, dtype=torch.float64),
    squares=torch.tensor([36.0, 4.0, 4.0], dtype=torch.float64),  # s_j
    residual=torch.tensor([0.0, 4.0, 4.0], dtype=torch.float64),  # e_j
)
loudest = torch.tensor([0])
print(f"pooled R² = 1 − 8/44 = {score.r2():.2f}; median R² = {score.median():.2f}")
print(f"R² without the loudest feature = 1 − 8/8 = {score.r2(without=loudest):.2f}")
print(f"effective rank = 44² / (36² + 4² + 4²) = {hl.effective_rank(score.squares.diag()):.2f}")

# %% [markdown]
# Loudness is ranked by *train* variance, so the held-out rows have no say in what is left out; *directions* are the
# eigenvectors of the covariance of sampled train outputs. Intervals are jackknives over document folds of both sides,
# with two exceptions: the outputs' rank leaves out folds of the sample's held-out rows only, and the maps that are
# refitted without position 0 are not refitted once more for each fold. The paper distinguishes two regimes of
# near-linear blocks. We call a block *concentrated* if it shows both signs of one loud direction (an effective rank of
# at most `few`, and a median feature at least `gap` below the pooled $R^2$); *broad* if it shows neither; and *mixed*
# if it shows only one. The three thresholds are ours, since the paper names none.
#
# Do these tools find what they should? We plant three blocks, all nearly linear by $R^2$. One is straight throughout;
# one has a single loud straight feature among bent ones; the third is the second with its outputs rotated.


# %%
from howlinear.ideas.rank import rows as token_rows


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


x = normal(8_000, 40, seed=0)
bent = (x @ normal(40, 40, seed=1)) * (x @ normal(40, 40, seed=2)) / 40
straight = x @ normal(40, 40, seed=4)
loud = torch.cat([60 * x[:, :1], bent[:, 1:]], 1)
rotation = torch.linalg.qr(normal(40, 40, seed=3)).Q
planted = {
    "straight throughout": token_rows.planted_block(x, straight + 0.6 * bent),
    "one loud feature": token_rows.planted_block(x, loud),
    "one loud direction": token_rows.planted_block(x, loud @ rotation),
}

# %% tags=["nbval-check-output"]
planted_views = {}
for name, block in planted.items():
    train_tokens = block.sample.token[~block.sample.test]
    seen = measure.measure_block(block, train_tokens, counts)
    planted_views[name, 0] = seen
    print(f"{name}: R² {seen.r2.value:.2f}, median {seen.median.value:.2f}, rank {seen.rank.value:.1f}")
    print(f"  regime: {seen.regime(high, few, gap)}")
    print(f"  R² without the loudest feature {seen.features[1].value:.2f}, direction {seen.directions[1].value:.2f}")

# %% [markdown]
# The second block is the paper's *outlier-concentrated* regime, and every tool sees it. The third is the same block
# with its outputs rotated, so that each feature contains a little of the loud direction: the median is fooled, the rank
# is not, and leaving out *directions* shows what is left. Keep this in mind for the figure: per-feature numbers depend
# on the axes, ranks and directions do not.
#
# ## Run
#
# We measure every block of every model, from the captures of notebook 01. (`mini-sink`, if the run has it, was trained
# to have the massive rows of notebook 12.) Tokens are cut into bands by how often they occur in the train text; each
# band's $R^2$ is relative to *its own* variance about its own mean, so a band gets no credit for having another mean.
# For position 0 we score the same map with and without it, and also refit: two maps on sampled train rows, with and
# without position 0, compared on the rows that are not at position 0.


# %%
views = {}
for name in run.models:
    stored = run.capture(name)
    train_ids = stored.rows.ids[~stored.rows.test]
    for number, block in stored.blocks.items():
        views[name, number] = measure.measure_block(block, train_ids, counts, bands, heavy)

# %% [markdown]
# Three tables hold all that follows, with a row for each block, for each number of loudest features or directions left
# out, and for each band of token frequency.

# %%
bands_and_ends = measure.band_table(views)
within_bands = run.record("bands", bands_and_ends.drop(columns=["r2_low", "r2_high"]))
rest = run.record("without_loudest", measure.loudest_table(views, counts))
seen_blocks = measure.block_table(views, high, few, gap)
blocks = run.record("blocks", measure.with_band_shapes(seen_blocks, within_bands))

# %%
values = [column for column in blocks if not column.endswith(("_low", "_high"))]
run.folded("every block", blocks[values].round(2))
blocks.groupby("model", sort=False)[["r2", "median_r2", "effective_rank"]].agg(["min", "max"]).round(2)

# %% [markdown]
# ## Figure: pooled and median R² by rank (the paper's figure 4)
#
# **How to read it.** One point per block, with intervals: pooled $R^2$ across, the median feature's $R^2$ up; the area
# grows with the effective rank of the outputs. On the diagonal the median feature is as straight as all together.
# Outlier-concentrated blocks are small points at the lower right, where our planted one lies. Open diamonds are planted
# blocks (the other two lie at the upper right); the shaded strip counts as near-linear. If a model is the paper's own,
# the paper's values are drawn behind, thin and grey.


# %%
from howlinear.files import published

planted_blocks = measure.block_table(planted_views, high, few, gap)
papers = published.of_models(run.models)
beside = None if papers.empty else papers
figure = plots.median(blocks, planted_blocks, high, beside)
run.figure(figure, "median")
plt.show()

# %% [markdown]
# How far is this run from the paper's values for its models? The paper's median is the lower of the two middle values
# and its rank is about the train mean (`median_r2_lower` and `rank_90_train_mean` of the table `blocks`, on our rows);
# here both are measured on the paper's rows as well.

# %%
from howlinear.notebook import paper

columns = {"r2_perfeature_median": ("median_r2_lower", "median_r2"), "rrr_rank90": ("rank_90_train_mean", "rank_90")}
cells = published.beside(paper.measure(run), blocks, columns)
if len(cells):
    run.folded("cell by cell", run.record("paper", cells).round(3))
run.shown(published.compare_with_paper(cells).round(3), paper.NONE)

# %% [markdown]
# ## Figure: one block, along two sets of axes
#
# In a real block, too, the median depends on the axes. Here is the last block of the first model, output by output.
#
# **How to read it.** A point is one output of the block: across, its share of the outputs' variance (logarithmic); up,
# its own held-out $R^2$, on the sampled rows. (a) The outputs are the features as the model has them: each is a mixture
# of loud and quiet directions, so shares and $R^2$ lie close together. (b) The same outputs along the eigenvectors of
# their covariance: a few loud directions and many quiet ones. Compare how well the line explains the two kinds. The
# pooled $R^2$ (black line) is the same in both; the median (dashed) is not.

# %%
first = next(iter(run.models))
last = blocks.query("model == @first")["block"].max()
outputs = measure.single_outputs(run.capture(first).blocks[last])
errors = (1 - outputs["r2"]) * outputs["share"]
of_sample = 1 - errors[outputs["axis"] == "features"].sum()
figure = plots.axes(outputs, of_sample, first, last)
run.figure(figure, "axes")
plt.show()

# %% [markdown]
# The first of these directions can also be looked at row by row. Table `points` keeps some held-out rows of every
# block: the block's output along that direction, the line's prediction, and how far out the row lies, in median norms.
# The book's page *Explore* draws them; here is how far out each model's farthest row lies.

# %%
from howlinear.ideas.rank.rows import points_along_first

points = {}
for name in run.models:
    for number, block in run.capture(name).blocks.items():
        points[name, number] = points_along_first(block)
every_point = pd.concat(points, names=["model", "block"]).reset_index(["model", "block"])
run.record("points", every_point).groupby("model", sort=False)["medians"].max()

# %% [markdown]
# ## Figure: how many directions does the map need?
#
# The paper calls another number *effective rank*: the least $k$ for which the best map of rank $k$ (reduced-rank
# regression) reaches 90 or 95 % of the full map's held-out $R^2$. It is a whole number that describes the *map*; the
# participation ratio above describes the *outputs*, including their bent part, and weighs directions rather than
# counting them.
#
# **How to read it.** A point per block, filled for 90 %, open for 95 %, on a logarithmic scale. (a) If a high $R^2$
# were always of one kind, the points would follow one curve. (b) If the two measures of rank agreed, the points would
# rise together. Thin and grey in (a): the paper's values for its own models.

# %%
figure = plots.reduced(blocks, beside)
run.figure(figure, "reduced")
plt.show()

# %% [markdown]
# In numbers, as medians over the blocks of a model: the least rank for 90 and for 95 % of $R^2$, and the effective rank
# of the predictions and of the outputs; then the lowest and the highest rank for 90 %, and that rank's correlation,
# over blocks, with $R^2$ (Spearman's ρ).

# %% tags=["nbval-check-output"]
print(measure.reduced_table(blocks).round(1).to_string())

# %% [markdown]
# ## Figure: what carries it
#
# **How to read it.** Thin lines are blocks, thick ones their mean by model. (a) $R^2$ of what is left when the $k$
# loudest output features are left out; dotted grey: the planted block with one loud feature. (b) The same with the $k$
# loudest directions; dotted: the planted block with one loud direction. (c) $R^2$ within each band of token frequency,
# about the band's own mean. (d) By how much $R^2$ rises when the rows of highest leverage (filled) or position 0 (open)
# are left out, with intervals for the first; a few such rows make them wide.

# %%
planted_rest = measure.loudest_table(planted_views, counts)
planted_curves = pd.concat(
    [
        planted_rest.query("axis == 'features' and model == 'one loud feature'"),
        planted_rest.query("axis == 'directions' and model == 'one loud direction'"),
    ]
)
figure = plots.carried(rest, within_bands, blocks, planted_curves, heavy)
run.figure(figure, "carried")
plt.show()

# %% [markdown]
# ## Verdicts, model by model
#
# The first table says how many blocks are near-linear, and of which kind, and gives the lowest effective rank of a
# block's outputs. ρ is the rank correlation, over blocks, of the outputs' effective rank with the gap between pooled
# and median $R^2$: the paper's picture (low rank, far below the diagonal) makes it negative. The line below says how
# large |ρ| may be by chance with so few blocks. The second table holds means over blocks.

# %% tags=["nbval-check-output"]
from howlinear.core.correlation import fisher

verdicts = run.record("verdicts", measure.verdict_table(blocks, within_bands)).set_index("model")
by_model = blocks.groupby("model", sort=False)
print(
    pd.DataFrame(
        {
            "near_linear": by_model["regime"].agg(lambda regimes: (regimes != "below").sum()),
            "verdict": verdicts["verdict"],
            "lowest_rank": by_model["effective_rank"].min().round(1),
            "rho": verdicts["rho"].round(1),
        }
    ).to_string()
)
chance = {model: round(fisher(0.0, n, order=True).high, 2) for model, n in by_model.size().items() if n > 3}
print("|ρ| that chance alone may give, at most:", chance or "any, with three blocks or fewer")

# %% tags=["nbval-check-output"]
carriers = measure.carrier_table(blocks, rest, within_bands)
print((carriers.round(2) + 0.0).T.to_string())

# %% [markdown]
# Is the difference between frequent and rare tokens real, block by block? We count the blocks whose two intervals do
# not touch, and those whose predictions surely spread over fewer directions than their outputs.

# %% tags=["nbval-check-output"]
certain = measure.certainty_table(blocks, bands_and_ends)
print(certain.to_string())

# %%
run.save(settings={"high": high, "few": few, "gap": gap, "counts": counts, "bands": bands, "heavy": heavy})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# Our results next to the paper's:

# %%
needed = measure.reduced_table(blocks).iterrows()
claims = [
    (
        "a high R² hides two regimes",
        "outlier-concentrated (rank ≈ 1) and broad",
        "; ".join(f"{model}: {word}" for model, word in verdicts["verdict"].items()),
    ),
    (
        "the lower the rank, the further below the diagonal",
        "figure 4",
        "; ".join(f"{model}: ρ {rho:+.2f}" for model, rho in verdicts["rho"].items()),
    ),
    (
        "least rank for 90 % of R²",
        "GPT-2 block 2: 1; Pythia block 0: 376 (of 768)",
        "; ".join(f"{model}: {row['lowest for 90 %']:.0f} to {row['highest for 90 %']:.0f}" for model, row in needed),
    ),
    (
        "straighter on frequent tokens",
        "not reported",
        f"surely in {certain['frequent above rare'].sum()} of {len(blocks)} blocks",
    ),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - The planted block with one loud feature shows how a high $R^2$ can be the work of one feature. If no block of a
#   model is near-linear, the claim of two regimes cannot be tested, and one or two such blocks say little.
# - Features are not directions. A feature may hold a little of every direction; leaving out directions takes away what
#   the block does most, and shows how straight the quiet rest is.
# - Each band of token frequency has the same share of the train rows, so the fit does not favour any band.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/04_rank.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** Of $d$ uncorrelated features, $d - 1$ have variance 1. What variance must the last one have for the
# effective rank to be 2?
#
# <details><summary>Hint</summary>
#
# Step 1: the variances of uncorrelated features are the eigenvalues $\lambda$. Call the last one $a$, and write down
# $(\sum\lambda)^2 / \sum\lambda^2$.
#
# Step 2: set it to 2. With $m = d - 1$ that is a quadratic equation in $a$. It has two solutions: can both be a
# variance?
#
# </details>

# %%
variance = None  # a function of d: the larger of the two solutions

if variance is not None:
    for d in (10, 100):
        diagonal = torch.tensor([variance(d), *[1.0] * (d - 1)], dtype=torch.float64).diag()
        assert variance(d) > d, "of two solutions the larger: one loud feature among quiet ones"
        assert abs(hl.effective_rank(diagonal) - 2) < 1e-9, "solve (a + d − 1)² = 2 (a² + d − 1) for a"
    print(f"right: among {d} features, {variance(d):.0f} times the others' variance, each")

# %% [markdown]
# **2 (medium).** The figure with two sets of axes shows the last block. Take the middle block of the first model: what
# is its median $R^2$ along the directions of its sampled train outputs, on the sampled held-out rows, with the map
# fitted on all train rows?
#
# <details><summary>Hint</summary>
#
# Step 1: `sample = middle_block.rows()`, and `maps = fit_folds(middle_block.train, refit=False)` from
# `howlinear.core.fold_maps`. `scores.directions(sample.y[~sample.test])` has the directions as columns: the `basis`.
#
# Step 2: `scores.score_rows(maps, rows, basis).whole.median()` scores it, with `sample.select(sample.test)` for the
# rows.
#
# </details>

# %%
first = next(iter(run.models))
all_blocks = run.capture(first).blocks
middle_block = all_blocks[list(all_blocks)[len(all_blocks) // 2]]
turned_median = None  # a number

if turned_median is not None:
    sample = middle_block.rows()
    held_x, held_y = sample.x[sample.test].double(), sample.y[sample.test].double()
    left = held_y - hl.ceiling(middle_block.train, middle_block.test).map(held_x)

    def median_along(basis):
        squares = ((held_y - held_y.mean(0)) @ basis).square().sum(0)
        return float((1 - (left @ basis).square().sum(0) / squares).quantile(0.5))

    along_features = median_along(torch.eye(held_y.shape[1]).double())
    expected = median_along(scores.directions(sample.y[~sample.test]))
    assert abs(turned_median - expected) < 1e-6, "the map of all train folds, the train rows' directions, held-out rows"
    print(f"right: {turned_median:.2f} along directions, {along_features:.2f} along features")

# %% [markdown]
# **3 (harder).** Must a block whose median feature is bent have rank 1? Plant such a block ($x$ and $y$ of 40 features,
# as above) with pooled $R^2$ above 0.9, median under 0.1, and an effective rank above 8. What does `regime` call it,
# and why?
#
# <details><summary>Hint</summary>
#
# Step 1: the planted block `loud` above has one loud straight feature among bent ones. A high pooled $R^2$ needs
# straight loud features, and a low median needs most features to be bent. How many of 40 may be straight?
#
# Step 2: the effective rank of $k$ features, equally loud and uncorrelated, among quiet ones is about $k$. Columns of
# `normal(8_000, 40, seed=0)` are uncorrelated; how many of them have to be loud, and how loud?
#
# Step 3: `token_rows.planted_block` and `measure.measure_block` do the rest. Compare `seen.rank` with `few`, and the
# distance of `seen.median` from `seen.r2` with `gap`: which of the two signs does your block show?
#
# </details>

# %%
crowd = None  # token_rows.planted_block(x, …)

if crowd is not None:
    seen = measure.measure_block(crowd, crowd.sample.token, counts)
    assert seen.r2.value > 0.9, "what is loud must be straight"
    assert seen.median.value < 0.1, "most features must be bent"
    assert seen.rank.value > 8, "share the loudness among more features"
    print("right:", seen.regime(high, few, gap))

# %% [markdown]
# **4 (find the bug).** Which inputs carry an output? A friend has more inputs than rows, so she keeps the ten that
# correlate most with the output, fits the line on train rows, and scores it on held-out rows. She finds something
# everywhere, even if outputs are noise. What is wrong? Fill in `repaired`. (The bug is real: the paper's recipe in
# notebook 03 scores the held-out rows every 200 steps, and reports the best score.)
#
# <details><summary>Hint</summary>
#
# Step 1: `held_out_r2` fits on one side and scores on the other, as it should. What happens before it is called, and on
# which rows?
#
# Step 2: of 300 inputs that are noise, some correlate with the output on these hundred rows by chance. On which rows
# must such luck not help an input into the ten?
#
# </details>


# %%
def correlated(x, y, count=10):
    """The inputs that correlate most with the output, shape (count,)."""
    return torch.corrcoef(torch.cat([y[:, None], x], 1).T)[0, 1:].abs().topk(count).indices


def held_out_r2(x, y, test):
    return hl.ceiling(*(hl.Moments(x.shape[1], 1).update(x[side], y[side, None]) for side in (~test, test))).r2


def friends_r2(x, y, test):
    return held_out_r2(x[:, correlated(x, y)], y, test)


def noise(seed, straight=0.0):
    """Rows of 300 inputs, an output that owes `straight` to the first of them, and which rows are held out."""
    rows = torch.randn(100, 301, generator=torch.Generator().manual_seed(seed))
    return rows[:, :300], rows[:, 300] + straight * rows[:, 0], torch.arange(100) >= 60


repaired = None  # a function (x, y, test) → R²

print("your friend, of outputs that are noise:", [round(friends_r2(*noise(seed)), 2) for seed in range(5)])
if repaired is not None:
    worth = sum(repaired(*noise(seed)) for seed in range(10)) / 10
    assert worth < 0.02, f"noise has an R² of {worth:.2f} on the mean: did the rows that are scored have a say?"
    x_first, y_first, test = noise(0, straight=3.0)
    expected = held_out_r2(x_first[:, correlated(x_first[~test], y_first[~test])], y_first, test)
    assert abs(repaired(x_first, y_first, test) - expected) < 1e-6, "choose and fit on the one side, score on the other"
    print(f"right: noise is worth {worth:.2f} on the mean; an output that owes most to one input has {expected:.2f}")
