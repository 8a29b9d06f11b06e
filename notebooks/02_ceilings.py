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
# # 02 · How much of a feed-forward block is a straight line?
#
# **Question.** Take the cloud of pairs $(x, y)$ from notebook 01. What share of the output's variance does the
# least-squares affine map explain, on text it has not seen?
#
# **You need** notebook 01. **You learn** to read a *profile*, $R^2_{\mathrm{lin}}$ against depth, with its intervals,
# and to distinguish how linear a block is from what its line costs. **Time** 35 minutes to read, 1 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
most_rows: int or None = None  # token rows for a model before training; None: up to four times the profile's
cost_rows: int or None = None  # held-out token rows that costs of swaps are measured on; None: all
beside_paper = False  # also draw models that are not the paper's, next to its first one

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import howlinear as hl
from howlinear.notebook.run import start
from howlinear.plots import ceilings as plots

run = start("02_ceilings", profile, model, corpus)
first = next(iter(run.models))
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. GELU bends every hidden unit. Before any training, with random weights: is the block more, or less, linear than
#    after training?
# 2. Will $R^2_{\mathrm{lin}}$ rise or fall smoothly with depth?
# 3. You replace the *most* linear block by its best straight line. Does perplexity barely move?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about. A rank
# correlation compares two orders: +1 if they are the same, −1 if one is the other reversed, about 0 if they have
# nothing to do with each other.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# Draw the best straight line through the cloud, then, on *other* documents, add up the outputs' squared distances from
# it, and those from their own mean. One minus the ratio of the two is the share explained: 1 for a block that is affine
# on real text, 0 for a line that is no better than the mean, and below 0 for a line that is worse.
#
# Two things make the number trustworthy. The line is the *exact* least-squares solution, so no optimiser can be blamed.
# And it is scored on held-out documents, so a wide layer cannot fit its way to 1. The block's *ceiling* is the most
# that any line could explain if it were fitted on endless text. On average the measured number approaches the ceiling
# from below as rows are added; with few rows, or with a few very large ones among them, it can fall below 0.

# %% [markdown]
# ## Method
#
# $$ (W, b) = \arg\min \lVert Y - XW - \mathbf 1 b^\top \rVert_F^2 \quad\text{on train rows} $$
#
# $$ R^2_{\mathrm{lin}} = 1 - \frac{\lVert Y' - X'W - \mathbf 1 b^\top \rVert_F^2}
#    {\lVert Y' - \mathbf 1 \bar y'^\top \rVert_F^2} \quad\text{on held-out rows, pooled over features} $$
#
# A row of $X$ ($n \times d$) is $x^\top$ of one token, a row of $Y$ is $y^\top$, $\mathbf 1$ is a column of $n$ ones,
# and primes mark held-out rows. `ceilings.fit` computes the first equation, `ceilings.r2` the second. Both need only
# the *moments* of notebook 01. $W$ solves $S_{xx} W = S_{xy}$ on the train side, and with $\langle A, B\rangle =
# \sum_{ij} A_{ij} B_{ij}$ the held-out residual is
#
# $$ \textstyle\sum \lVert y'-\bar y' \rVert^2 - 2\langle W, S'_{xy}\rangle + \langle W, S'_{xx} W\rangle
#    + n' \lVert \bar y' - W^\top \bar x' - b \rVert^2 . $$
#
# In plain torch the two definitions take ten lines, for stored rows and inputs without null directions:


# %%
def fit_rows(x, y):
    x_centred = x - x.mean(0)
    y_centred = y - y.mean(0)
    weight = torch.linalg.solve(x_centred.T @ x_centred, x_centred.T @ y_centred)  # S_xx W = S_xy
    return weight, y.mean(0) - x.mean(0) @ weight  # through the two means


def r2_of_rows(weight, bias, x, y):
    residual = y - x @ weight - bias
    about_the_mean = y - y.mean(0)
    return 1 - residual.square().sum() / about_the_mean.square().sum()


# %% [markdown]
# On a case small enough to follow by hand, with one input, one output and four train rows, this is the straight line of
# a first course in statistics: slope $S_{xy}/S_{xx}$, through the two means. The package finds the same line from
# moments alone.

# %%
from howlinear.core.ceilings import NULL, fit, r2

x_train = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
y_train = torch.tensor([[1.0], [2.0], [4.0], [5.0]])
x_test = torch.tensor([[0.0], [2.0], [4.0]])
y_test = torch.tensor([[1.0], [3.0], [7.0]])
train_moments = hl.Moments(1, 1).update(x_train, y_train)
test_moments = hl.Moments(1, 1).update(x_test, y_test)
line, _ = fit(train_moments)
weight, bias = fit_rows(x_train, y_train)
by_rows = r2_of_rows(weight, bias, x_test, y_test)
print(f"by rows:    y ≈ {weight.item():.2f} x + {bias.item():.2f}, held out {by_rows:.4f}")
print(f"by moments: y ≈ {line.weight.item():.2f} x + {line.bias.item():.2f}, held out {r2(line, test_moments):.4f}")

# %% [markdown]
# The documents on each side of the split are dealt into groups, the *folds*. The interval is a *jackknife*: leave out
# one fold, do everything again, and see how far the answer moves. We do this once for the train folds and once for the
# held-out folds, and add the two variances (`Estimate.jackknife`).
#
# <details><summary>Refresher: the jackknife</summary>
#
# How far would a number move if other documents had been drawn? We have only one draw, so we perturb it: leave out each
# of its $n$ folds in turn and compute the number again. That gives $n$ values $t_1, \dots, t_n$ with mean $\bar t$.
# They lie much closer together than $n$ new draws would, since any two of them share nearly all of their documents; a
# factor corrects for this: the variance is $\frac{n-1}{n} \sum_i (t_i - \bar t)^2$. For a plain mean this is the
# textbook's $s^2 / n$, but no formula for the number itself is needed, so it works for $R^2$ as well. The interval
# extends to either side by the square root of the variance times Student's factor for $n - 1$ degrees of freedom.
#
# </details>
#
# **Which solver?** "Solve $S_{xx}W = S_{xy}$" hides a trap. Here is a planted block whose inputs exaggerate what makes
# real activations hard to fit: a spectrum that falls like a power law, one constant offset, one feature with rare
# spikes.

# %%
generator = torch.Generator().manual_seed(0)
double = {"generator": generator, "dtype": torch.float64}
d, n = 192, 6_000
basis = torch.linalg.qr(torch.randn(d, d, **double)).Q
spectrum = torch.arange(1, d + 1) ** -2.0  # a power law
x = torch.randn(n, d, **double) * spectrum @ basis
x[:, 0] += 40  # one constant offset
x[:, 1] += 1000 * (torch.rand(n, generator=generator) < 0.002)  # one feature with rare spikes
hidden = torch.nn.functional.gelu(x @ torch.randn(d, 2 * d, **double))
y = hidden @ torch.randn(2 * d, d, **double)
x, y = x.float(), y.float()
train = torch.arange(n) < 4_500

# %% [markdown]
# The reference is the slow and safe way: a singular value decomposition of all stored rows, centred and column-scaled,
# in float64. Its rival is the textbook's formula, which appends a column of ones and solves the normal equations.


# %%
def by_svd(x, y, dtype=torch.float64):
    x = x.to(dtype)
    y = y.to(dtype)
    scale = x.std(0)
    centred = (x - x.mean(0)) / scale
    weight = torch.linalg.lstsq(centred, y - y.mean(0), rcond=1e-6, driver="gelsd").solution
    weight = weight / scale[:, None]
    bias = y.mean(0) - x.mean(0) @ weight
    return hl.AffineMap(weight.double(), bias.double())


def by_normal_equations(x, y, dtype):
    ones = torch.ones(len(x), 1)
    x = torch.cat([x, ones], 1).to(dtype)
    solution = torch.linalg.solve(x.T @ x, x.T @ y.to(dtype)).double()
    return hl.AffineMap(solution[:-1], solution[-1])


# %% [markdown]
# We score every solver with the same float64 formula, so that only the *map* can be at fault. The digits of a rounding
# error depend on the processor, so we keep only its order of magnitude.

# %%
from howlinear.ideas import ceilings

x_train = x[train]
y_train = y[train]
held_out = hl.Moments(d, d).update(x[~train], y[~train])
reference = r2(by_svd(x_train, y_train), held_out)
solvers = {
    "ours": fit(hl.Moments(d, d).update(x_train, y_train))[0],
    "float64, no centring": by_normal_equations(x_train, y_train, torch.float64),
    "float32 SVD": by_svd(x_train, y_train, torch.float32),
    "float32 normal eq.": by_normal_equations(x_train, y_train, torch.float32),
}
errors = {name: abs(r2(solution, held_out) - reference) for name, solution in solvers.items()}
magnitudes = ceilings.order_of_magnitude(errors, least=1e-10, most=1e-2)
near = 1e-9
agrees = errors["ours"] < near
print(f"held-out R² by SVD of the rows: {reference:.4f}; ours within {near} of it: {agrees}")

# %% [markdown]
# **Why there is a rule for null directions.** Notebook 01 found a direction in which a LayerNorm output does not vary,
# except for rounding noise. Divide by that variance and the noise becomes a huge weight. On the train rows nothing
# looks wrong. Our rule leaves such a direction out: it counts as *null* if its variance, an eigenvalue of the inputs'
# correlation matrix, lies below a fixed share of the largest eigenvalue, the threshold (`NULL`). To see why, we score
# the fitted map on the same held-out rows twice, as they are and rounded to bfloat16 (float32 with two thirds of its
# digits cut off), while the threshold varies.

# %%
captures = {name: run.capture(name, every=True) for name in run.models}
blocks = captures[first].blocks
kept = blocks[list(blocks)[len(blocks) // 2]]
sample = kept.sample
xs = sample.x[sample.test]
ys = sample.y[sample.test]
d_in = xs.shape[1]
d_out = ys.shape[1]
as_they_are = hl.Moments(d_in, d_out).update(xs, ys)
in_bfloat16 = hl.Moments(d_in, d_out).update(xs.bfloat16(), ys)

# %%
thresholds = [0.0, *(10.0**power for power in range(-18, -1))]
rule = ceilings.null_rule(sum(kept.train), {"r2": as_they_are, "r2_rounded": in_bfloat16}, thresholds)
print(rule.iloc[[0, 4, 6, 7, 10, 14, 17]].to_string(index=False, float_format=lambda value: f"{value:.3g}"))

# %% [markdown]
# ## Figure: the solver and the rule
#
# **How to read it.** (a) Error in held-out $R^2$ against the reference, on the planted block, to the nearest power of
# ten; left is better, and the axis is logarithmic. Errors beyond either end of the axis are drawn at that end. (b) One
# real block: $R^2$ on rows as they are (filled) and rounded (open), against the threshold under which an eigenvalue
# counts as null. Points drawn at −0.5 lie far below it (see the table). The dotted line is our threshold: it must lie
# on the flat part.

# %%
rule_shown = rule[["r2", "r2_rounded"]].round(3).assign(threshold=thresholds)
figure = plots.solvers(magnitudes, rule_shown, NULL)
run.figure(figure, "solvers")
plt.show()

# %% [markdown]
# ## Run
#
# We measure R²_lin of every block, with its interval, and of the same architecture with freshly drawn weights, on the
# same text. The difference is due to training: through the block's own weights, or through what the rest of the model
# feeds it. This notebook cannot tell these two apart.
#
# A block far from straight needs more rows: fitted on too few, its map does worse than the mean on held-out rows and
# too well on its own. So we double the rows of a fresh model until held-out and in-sample $R^2$ (scored on the train
# rows) agree within 0.02, or `most_rows` is reached, and keep both: on average the truth lies between them. A held-out
# value below 0 says that the rows were too few for the fit, and nothing about how linear the block is.

# %%
from howlinear.instrument.baseline import baseline
from howlinear.instrument.profile import profile_of

most = most_rows or 4 * run.rows
profiles, fresh = {}, {}
for name, stored in captures.items():
    profiles[name] = profile_of(stored.blocks, name, stored.rows, stored.about["perplexity"])
    model = run.model(name)
    text = run.corpus(run.corpora[0], model).rows(most, run.seq_len, run.seed)
    fresh[name] = baseline(model, text, first=run.rows, blocks=list(run.capture(name).blocks))
for name, measured in profiles.items():
    if measured.perplexity is None:
        print(name, "predicts no next token")
    else:
        print(name, f"perplexity {measured.perplexity:.1f}")
    if measured.warning is not None:
        print(f"  {measured.warning}")
for name, found in fresh.items():
    held_out_mean, in_sample_mean = found.held_out.mean(), found.in_sample.mean()
    print(f"{name} fresh, mean R²: [{held_out_mean:.2f} held out, {in_sample_mean:.2f} in sample] at {found.rows} rows")
r2_of = {name: pd.Series(measured.curves["r2"], list(measured)) for name, measured in profiles.items()}
pd.DataFrame(r2_of).rename_axis("block").round(2)

# %% [markdown]
# ## Figure: rows and the line
#
# Before the numbers are drawn block by block, here are the rows behind three of them: the most linear block of the
# first model, the one in the middle by $R^2$, and the least linear one.
#
# **How to read it.** A coloured point is one held-out row. The horizontal axis is the fitted map's prediction, the
# vertical axis the block's output, both along the one direction in which the block's outputs vary most. On the line the
# two are equal, and the scatter about it is what the map leaves unexplained in this direction; the $R^2$ in the titles
# covers all directions together. Black points are means of a tenth of the rows, from left to right. If a few points lie
# far out and all others in one heap, the few are *massive rows*: tokens for which the block writes an output many times
# larger than for the others (notebook 12).


# %%
from howlinear.ideas.by_hand import cloud
from howlinear.ideas.rank.scores import directions


def seen_along_its_loudest_direction(number):
    sample = captures[first].blocks[number].rows()
    loudest = directions(sample.y[~sample.test])[:, [0]]
    loudest = loudest * loudest.sum().sign()  # its sign is arbitrary
    said = profiles[first][number].map(sample.x[sample.test].double()) @ loudest
    put_out = sample.y[sample.test].double() @ loudest
    return cloud(said, put_out, said, most=400)


of_first = r2_of[first].sort_values()
clouds = {}
for place in (-1, len(of_first) // 2, 0):  # the most linear, the middle and the least linear block
    number = of_first.index[place]
    title = f"block {number}, $R^2$ {of_first[number]:.2f}"
    clouds[title] = seen_along_its_loudest_direction(number).round(2)
figure = plots.clouds(clouds, first)
run.figure(figure, "clouds")
plt.show()

# %% [markdown]
# Then the practical test. Replace *one* block at a time by its map, leave the rest of the model alone, and measure the
# perplexity ($e$ to the mean loss per token) on held-out text. The interval is paired (the same text before and after)
# and leaves out one document fold at a time, because neighbouring sequences often come from one document. It treats the
# map as fixed. An encoder predicts no next token, so it has no perplexity and no such cost, and is left out here.

# %%
costs, held_out = {}, {}
for name, stored in captures.items():
    if profiles[name].perplexity is None:
        continue
    maps = {block: profiles[name][block].map for block in run.capture(name).blocks}
    held_out[name] = stored.rows.with_fewer_held_out(cost_rows)
    costs[name] = hl.swap_costs(run.model(name), maps, held_out[name])
run.record_held_out({name: {run.corpora[0]: rows} for name, rows in held_out.items()})
stored_blocks = {name: stored.blocks for name, stored in captures.items()}
measured_blocks = run.record("blocks", ceilings.measure_blocks(profiles, stored_blocks, fresh, costs))
measured_blocks.pivot(index="block", columns="model", values="dppl")[list(profiles)].round(2)

# %% [markdown]
# ## Figure: R²_lin of every block, and what swaps cost (the paper's figure 2)
#
# **How to read it.** Top: $R^2_{\mathrm{lin}}$ per block; 1 is a straight line. Dotted lines are the same architecture
# before training, on held-out rows (lower) and train rows (upper), with the range between them shaded; where the two
# agree within 0.01, only one is drawn. Where the band leaves the panel, the rows are too few to say anything about
# these blocks. An open point, if any, is a block without its few massive rows, where these decide its $R^2$ (notebook
# 12). Bottom: the cost of swapping that one block for its map, in perplexity (linear up to 2, logarithmic beyond). Bars
# are 95 % intervals. If linearity decided the cost, the bottom would be the top turned upside down. If a model is the
# paper's own, the paper's values are drawn behind, thin and grey.

# %%
from howlinear.files import published

papers = published.of_models(run.models)
figure = plots.profile_and_swaps(measured_blocks, None if papers.empty else papers)
run.figure(figure, "profile")
plt.show()

# %% [markdown]
# If the run profile asks for it, models that are not the paper's are drawn next to the paper's first model: one panel
# each, the highest and the lowest block labelled with their numbers, open points as above.

# %%
if beside_paper:
    first_papers = published.load_published().query("model == model.iloc[0]")
    run.figure(plots.beside(measured_blocks, first_papers), "beside")
    plt.show()

# %% [markdown]
# How far is this run from the paper's values for its models? Only like can be compared with like: the paper's $R^2$ is
# about one scalar mean, on the first 117 windows of its text, and its perplexities are on the text's test split. So its
# models are measured once more by its own protocol (`paper_protocol.paper_blocks`), and the cells below hold three
# numbers: the paper's, ours by its protocol, and ours.

# %%
from howlinear.notebook import paper

columns = {"r2_lin": ("r2_scalar", "r2"), "dppl_linear": ("dppl", "dppl")}
cells = published.beside(paper.measure(run, perplexities=True), measured_blocks, columns)
if len(cells):
    run.folded("cell by cell", run.record("paper", cells).round(3))
run.shown(published.compare_with_paper(cells).round(3), paper.NONE)

# %% [markdown]
# The paper's tables of two blocks use twice the rows and, for the perplexities, 200 windows.

# %%
two_blocks = published.load_quoted("tables")["block"].unique()
in_tables = paper.measure(run, layout="tables", perplexities=True, blocks=two_blocks)
run.shown(published.beside_quoted(in_tables, "tables").round(3), paper.NONE)

# %% [markdown]
# Which claims do these curves bear out? We let the run answer, in two tables. The first has a row for each model:
#
# - a profile *rises and falls* if some later block lies above an earlier one, and some below, with intervals that do
#   not touch;
# - *trained − fresh* is the mean change made by training, from the midpoint of held-out and in-sample $R^2$ before it;
# - *fresh spread* is the highest of those midpoints minus the lowest;
# - *fresh ±* is half the distance from held-out to in-sample $R^2$ before training, in the block where it is widest;
# - *largest step* is the largest change of $R^2$ from one block to the next.
#
# The second compares each pair of profiles: their correlation, the same without first and last block (*inner*), and
# their largest gap.

# %% tags=["nbval-check-output"]
models = run.record("models", ceilings.describe_models(profiles, fresh, measured_blocks))
summary = ceilings.summarise(measured_blocks, models)
print(summary.round(2).to_string())
print("held-out documents that R²_lin rests on:", models.set_index("model")["documents"].to_dict())

# %% tags=["nbval-check-output"]
likeness = run.record("likeness", ceilings.compare_profiles(measured_blocks))
print(likeness.to_string(index=False))
spearman = models.set_index("model")["spearman"].dropna()
print("Spearman ρ of R²_lin with ΔPPL (−1: more linear is cheaper):", spearman.round(2).to_dict())

# %% [markdown]
# How much does $R^2_{\mathrm{lin}}$ vary over the text? The paper gives the standard deviation over five folds of
# consecutive text. We have eight folds of whole documents: the map is fitted on seven of the train folds and scored on
# the eighth, in turn (`fold_maps.fold_spread`). This deviation says how far single stretches of text differ. The
# interval says how well the $R^2$ of the whole text is known.

# %% tags=["nbval-check-output"]
spread = measured_blocks.groupby("model", sort=False)["r2_sd"].agg(["mean", "max"])
print("standard deviation over folds, of the mean block and of the largest:")
print(spread.round(3).to_string())

# %%
from howlinear.core.intervals import CONFIDENCE
from howlinear.text.rows import FOLDS

run.record("solver", pd.DataFrame([{"r2_by_svd": reference, "within": near, "agrees": agrees}]))
run.save(settings={"confidence": CONFIDENCE, "null": NULL, "folds": FOLDS})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %%
with_cost = measured_blocks.dropna(subset="dppl")
spreads = [f"{name} {row.lowest:.2f} to {row.highest:.2f}" for name, row in summary.iterrows()]
turning = f"{summary['rises and falls'].sum()} of {len(summary)} models"
pairs = [f"{row.model} ~ {row.other}: r = {row.pearson:.2f}, inner {row.inner:.2f}" for row in likeness.itertuples()]
first_swaps = with_cost.groupby("model", sort=False).first()
least = with_cost.loc[with_cost.groupby("model", sort=False)["dppl"].idxmin()]
cheapest = [f"{row.model} block {row.block}: {row.dppl:+.2f}" for row in least.itertuples()]
prices = []
for row in first_swaps.itertuples():
    order = f"ρ {spearman[row.Index]:+.2f}" if row.Index in spearman.index else "no ρ of one block"
    prices.append(f"{row.Index} block {row.block} {row.dppl:+.2f}, {order}")

# %%
claims = [
    ("blocks of one model differ", "GPT-2: 0.996 in block 2, 0.22 in block 8", "; ".join(spreads)),
    ("not monotone in depth", "all three models", turning),
    ("two models differ", "GPT-2 and Pythia: r = −0.22, mean distance 0.36", "; ".join(pairs)),
    ("R² and ΔPPL come apart", "llama 0: 0.96 and +76; GPT-2 0: 0.79 and +2.6; ρ −0.38 to +0.71", "; ".join(prices)),
    ("some block swaps cheaply", "GPT-2 block 1: +0.77 on 64.25", "; ".join(cheapest)),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - Of the four solvers only the normal equations in float32 fail visibly (figure, a). The rule for null directions is
#   indispensable: without it, if inputs have such a direction, a map may look right on the rows as they are and do far
#   worse than the mean on the same rows rounded.
# - Why untrained blocks differ by architecture: with small random weights, hidden values are small, and
#   $\mathrm{GELU}(h) \approx h/2 + 0.4h^2$ is nearly straight, while SwiGLU multiplies two projections,
#   $\mathrm{silu}(g)\,u \approx g\,u/2$. Such a product has no straight part if inputs are symmetric about 0; real
#   inputs are off centre and skewed, and a line finds the straight part that results. So the architecture sets where a
#   block starts (dotted lines), and training where it goes (*trained − fresh*).
# - Why linear blocks may be costly to replace: $R^2_{\mathrm{lin}}$ is a share of variance; it does not know what the
#   rest of the model does with that variance. The paper also finds that linearity and cost disagree (§5.6).

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/02_ceilings.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** In-sample $R^2$ is optimistic on average. Compute the in-sample value of one block from `kept.train`
# alone and compare it with the held-out one. (`kept.train` lists the moments of the train rows fold by fold; `sum` adds
# them up.)
#
# <details><summary>Hint</summary>
#
# Step 1: `hl.ceiling` takes two `Moments`: those of the train rows, and those of the rows to score on. `.r2` of its
# result is the value.
#
# Step 2: in sample means that the line is scored on the very rows that it was fitted on. Which moments go in which
# place?
#
# </details>

# %%
in_sample = None  # the R² of `kept` on its own train rows

if in_sample is not None:
    assert np.isclose(in_sample, r2(fit(sum(kept.train))[0], sum(kept.train))), "fit and score on the same moments"
    print("right: optimism of", round(in_sample - hl.ceiling(kept.train, kept.test).r2, 4))

# %% [markdown]
# **2 (medium).** Mean ablation replaces a block by its mean output. What is its $R^2$ on held-out rows, and why is it
# not exactly zero? `hl.AffineMap.constant(moments)` makes the map that always gives the moments' mean output, and `r2`
# scores a map on moments.
#
# <details><summary>Hint</summary>
#
# Step 1: `sum(kept.train)` are the moments of the train rows, `sum(kept.test)` those of the held-out rows. Which of
# them may the map know, and which is it scored on?
#
# Step 2: $R^2$ compares with the mean of the rows that are scored. Is that the mean that the map gives?
#
# </details>

# %%
ablated = None  # the held-out R² of mean ablation for `kept`

if ablated is not None:
    held = sum(kept.test)
    off = held.n * (sum(kept.train).mean_y - held.mean_y).square().sum() / held.syy.sum()
    assert np.isclose(ablated, -float(off)), "which mean does the map give, and which does R² compare with?"
    print(f"right: {ablated:.4f}, by the distance of the two means and nothing else")

# %% [markdown]
# **3 (harder).** Show that $R^2_{\mathrm{lin}}$ does not change when the inputs are mixed by an invertible matrix (not
# too ill-conditioned). Make new moments from `sample.x.double() @ A`, for the sampled train rows and for the held-out
# rows, and compare.
#
# <details><summary>Hint</summary>
#
# Step 1: `sample.test` says which rows are held out; `torch.randn(d_in, d_in)` is invertible, almost surely.
#
# Step 2: a line in the mixed inputs must be a line in the original ones, so both sides need the same matrix.
#
# </details>

# %%
mixed = None  # a pair of Moments after mixing: of the sample's train rows and of its held-out rows

if mixed is not None:
    unmixed = hl.Moments(d_in, d_out).update(sample.x[~sample.test], sample.y[~sample.test])
    expected = hl.ceiling(unmixed, as_they_are).r2
    assert [side.n for side in mixed] == [unmixed.n, as_they_are.n], "first the train rows, then those held out"
    assert not torch.allclose(mixed[0].sxx, unmixed.sxx, rtol=0.01), "these inputs are not mixed yet"
    assert abs(hl.ceiling(*mixed).r2 - expected) < 1e-6, "mix train and test rows with the same invertible matrix"
    print(f"right: {expected:.4f} before and after")

# %% [markdown]
# **4 (find the bug).** A friend is in a hurry, and fits on only a few rows more than the block has inputs. She finds an
# $R^2$ near 1 for every block, and reports that feed-forward blocks are straight lines. She would have found the same
# for noise, as you see below. Two things are wrong, and each hides the other. Fill in `repaired`. (The bug is real:
# wherever a probe has about as many inputs as rows, its fit looks perfect.)
#
# <details><summary>Hint</summary>
#
# Step 1: for every output, her line for the noise has 64 slopes and an offset. How many rows does she fit it to, and
# which rows does she score it on?
#
# Step 2: repair the second first: score her line on the held-out rows. What $R^2$ has noise now, and why is it so low?
#
# Step 3: which rows does she leave out that a fit may use? `hl.Moments(…).update` takes any number of them.
#
# </details>


# %%
def friends_r2(x, y, test):
    few = x.shape[1] + 8
    rows = hl.Moments(x.shape[1], y.shape[1]).update(x[~test][:few], y[~test][:few])
    line, _ = fit(rows)
    return r2(line, rows)


noise = torch.randn(600, 96, generator=torch.Generator().manual_seed(0))
noise_x = noise[:, :64]
noise_y = noise[:, 64:]  # outputs that do not depend on the inputs
noise_test = torch.arange(600) >= 400
repaired = None  # a function (x, y, test) → R², with `test` true for the rows that are held out

print(f"your friend, of noise: {friends_r2(noise_x, noise_y, noise_test):.2f}")
if repaired is not None:
    worth = repaired(noise_x, noise_y, noise_test)
    assert worth < 0.05, f"noise has an R² of {worth:.2f}: on which rows is the line judged?"
    assert worth > -0.5, f"noise has an R² of {worth:.1f}, far below the mean: on how many rows is the line fitted?"
    train_rows = hl.Moments(d_in, d_out).update(sample.x[~sample.test], sample.y[~sample.test])
    difference = repaired(sample.x, sample.y, sample.test) - r2(fit(train_rows)[0], as_they_are)
    assert abs(difference) < 1e-6, "fit on all train rows, score on all held-out rows"
    found = repaired(sample.x, sample.y, sample.test)
    hers = friends_r2(sample.x, sample.y, sample.test)
    print(f"right: noise has {worth:.2f}, and this block {found:.2f}, where she has {hers:.2f}")
