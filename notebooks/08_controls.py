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
# # 08 · Learned, or architectural?
#
# **Question.** Every model has a profile of $R^2_{\mathrm{lin}}$ over its blocks. What makes it: the architecture, the
# trained weights, the inputs those weights are fed, the training text, or chance?
#
# **You need** notebook 02; eigenvectors. **You learn** to name a control for "learned" and one for "architectural", and
# to take the difference between two seeds as the unit. **Time** 30 minutes to read, 2 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
sample_rows: int or None = None  # rows per block that controls are fitted and scored on; None: the stored sample
seeds = 5  # random initialisations per model
most_rows: int or None = None  # token rows for a random model; None: up to four times the run profile's
thorough: bool or None = None  # three-way transplants in all blocks, not in a third; None: only up to width 256
with_twins = True  # show the embedded twins as well, whatever models the run profile has

# %%
from howlinear.notebook.run import start

run = start("08_controls", profile, model, corpus)
first = next(iter(run.models))
print("models:", ", ".join(run.models), "· text:", run.corpora[0])

# %% [markdown]
# ## Predict first
#
# 1. Keep a trained block's weights, but shuffle the entries of each matrix. More linear than before, or less?
# 2. Feed a trained block normal noise with the mean and the covariance of its real inputs. More linear, or less?
# 3. Train the same architecture twice on the same text, from two seeds. Then once more on another text. Then another
#    architecture. Order the three changes by how far they move the profile.

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# A profile has two parents: a block's **weights** and the **inputs** they meet. Inputs have two sides: a *colour* (mean
# and covariance, all that least squares sees of $x$) and a *shape* (all else). So keep the weights, change the inputs:
#
# - *normal*: rows drawn with the right colour and no shape at all;
# - *turned*: the block's own rows, whitened, turned at random and coloured again: no direction keeps its meaning;
# - *transplanted*: another model's rows, whitened and given this model's colour;
# - *standardised*: every feature at mean 0 and variance 1.
#
# or keep the inputs and change the weights: *permuted* within each matrix, *redrawn* with the same singular values and
# random directions, or *fresh* from the initialiser. And we can build models that differ in one known thing only.

# %% [markdown]
# ## Method
#
# | step | equation | function |
# |---|---|---|
# | whiten | $z = (x - \mu_A)\, D V \Lambda^{-1/2}$, $D$ = diag(1 / std), correlation $V \Lambda V^\top$ | `Colour` |
# | recolour | $x' = \mu_B + z\, Q\, \Lambda_B^{1/2} V_B^\top D_B^{-1}$ | `recolour` |
# | disorder | $W \to$ entries permuted; $U S V^\top \to U' S V'^\top$ with random $U', V'$ | `permute`, `redraw` |
# | closed form | slope $W^* = \mathrm E[\partial y / \partial x]$; variance: Hermite | `predict_spectrum` |
# | shares | sums of squares of a balanced design, in each block, added over blocks | `anova` |
# | beside seeds | $F$ = mean square over that of the seeds; $\theta^2/\sigma^2 = (F - 1)/n$ | `beside_seeds` |
#
# <details><summary>Refresher: analysis of variance</summary>
#
# Why do the numbers $y_{ij}$ of a table differ: because of their row, their column, or the combination of the two?
# Subtract the mean of all from each. The mean of what is left in a row is the effect of that row, and likewise for the
# columns; what neither explains is their *interaction*. Squared and added up, these parts make up the whole,
#
# $$ \sum (y_{ij} - \bar y)^2 = \sum (\bar y_{i\cdot} - \bar y)^2 + \sum (\bar y_{\cdot j} - \bar y)^2
#    + \sum (y_{ij} - \bar y_{i\cdot} - \bar y_{\cdot j} + \bar y)^2 , $$
#
# where all sums are over all cells and a dot stands for a mean. A *share* is one of the three divided by the whole. A
# sum divided by its degrees of freedom (for the rows, one fewer than there are rows) is a *mean square*, and Fisher's
# $F$ is the mean square of an effect divided by that of repetitions, which differ by chance alone.
#
# </details>
#
# Covariances leave the rotation $Q$ open; we take the one nearest to the identity. Models trained separately share no
# directions, so a transplant is also a turn, and *turned* is its control. On normal inputs the best map is the *mean
# slope* (Stein's lemma), and Hermite's expansion gives the outputs' variance, so $R^2_{\mathrm{lin}}$ needs no rows
# there. All fits use the stored sample, split by document; it is smaller than notebook 02's rows, so compare numbers
# only within this notebook.
#
# Here are two of these on cases small enough to follow. **Recolour:** rows with two features, one of them skewed, get
# the mean and the covariance of other rows. The first feature stays skewed, a little less so, since the other is now
# mixed into it.

# %%
import torch

import howlinear as hl
from howlinear.ideas.controls.inputs import Colour, recolour

generator = torch.Generator().manual_seed(0)
noise = torch.randn(5_000, 2, generator=generator, dtype=torch.float64)
skewed = torch.stack([noise[:, 0].exp(), noise[:, 1]], 1)
mixing = torch.tensor([[3.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
other = torch.randn(5_000, 2, generator=generator, dtype=torch.float64) @ mixing + 7

own_colour = Colour.of(hl.Moments(2).update(skewed))
other_colour = Colour.of(hl.Moments(2).update(other))
dressed = recolour(skewed, own_colour, other_colour)
for label, rows in (("rows", skewed), ("in another colour", dressed), ("the other's", other)):
    centred = rows[:, 0] - rows[:, 0].mean()
    skewness = (centred**3).mean() / centred.std() ** 3
    print(f"{label}: mean {rows.mean(0).numpy().round(1)}, skewness of the first {skewness:.1f}")
    print(torch.cov(rows.T).numpy().round(1))

# %% [markdown]
# **Shares:** two sets of weights (rows of the table below) on two inputs (columns), in one block. The mean is 3.5. The
# weights move it by ∓2, the inputs by ∓1.5, and ±1 is left that neither causes alone. So the shares are in the ratio
# $4 : 2.25 : 1$. **Beside seeds:** if the columns were two seeds instead, the row means would be 1.5 and 5.5, a mean
# square of 16, and the seeds $1.5 \mp 0.5$ and $5.5 \mp 2.5$, a mean square of 6.5. So $F = 2.5$, and with $n = 2$
# profiles behind each mean the variance of the effect over that of the seeds is $\theta^2/\sigma^2 = 0.7$. Two profiles
# that differ in their weights are then $\sqrt{1 + 0.7} = 1.3$ times as far apart as two seeds: this is the *ratio*. Its
# interval goes from 1, which is no effect, to far more: two seeds of two kinds say little.

# %%
import pandas as pd

from howlinear.ideas.controls.anova import anova, beside_seeds

by_hand = pd.DataFrame({"block": 0, "weights": [0, 0, 1, 1], "inputs": [0, 1, 0, 1], "r2": [1.0, 2.0, 3.0, 8.0]})
with_seeds = by_hand.rename(columns={"inputs": "seed"})
of_seeds = beside_seeds(with_seeds, ["weights", "seed"], ["weights"])
print("beside seeds: F = {f:.1f}, ratio {ratio:.2f} [{ratio_low:.2f}, {ratio_high:.2f}]".format(**of_seeds))
anova(by_hand, ["weights", "inputs"])[["effect", "size", "share"]].round(2)

# %% [markdown]
# ## Run
#
# First each model by itself: its own rows and weights, six controls, and the whole model at random initialisations
# (there the random blocks also feed one another). A random SwiGLU block needs many rows: they double, as in notebook
# 02, until held-out and in-sample $R^2$ meet or `most_rows` are used up, and we keep both ends, as a bracket.

# %%
from howlinear.instrument.resample import resampled

captures = {name: run.capture(name) for name in run.models}
language_models = {name: run.model(name) for name in run.models}
blocks = {name: resampled(captures[name], language_models[name], sample_rows) for name in run.models}
numbers = list(blocks[first])
middle = numbers[len(numbers) // 2]
sampled, width = blocks[first][middle].rows().x.shape
if thorough is None:
    thorough = width <= 256
print("width", width, "·", sampled, "rows per block")

# %%
from howlinear.core.gaussian import predict_spectrum
from howlinear.errors import InputError
from howlinear.ideas.controls import measure
from howlinear.instrument.baseline import baseline
from howlinear.models.pairs import ffn_module
from howlinear.models.units import take_apart

ffns = {}
measured = []
baselines = {}
closed = {}
most = most_rows or 4 * run.rows
for name, model in language_models.items():
    fresh = hl.untrained(model)
    ffns[name] = {site.block: ffn_module(model, site) for site in hl.sites(model)}
    fresh_ffns = {site.block: ffn_module(fresh, site) for site in hl.sites(fresh)}
    measured.append(measure.controls(name, blocks[name], ffns[name], fresh_ffns))
    text = run.corpus(run.corpora[0], model).rows(most, run.seq_len, run.seed)
    how = {"first": min(run.rows, most), "blocks": list(captures[name].blocks)}
    baselines[name] = [baseline(model, text, seed, **how) for seed in range(seeds)]
    try:
        for block, captured in captures[name].blocks.items():
            closed[name, block] = predict_spectrum(take_apart(model, block), sum(captured.train), 1)[0]
    except InputError as error:  # as of a mixture of experts
        print(f"no closed form of {name}: {error}")

# %%
fits = pd.concat(measured, ignore_index=True)
controls = run.record("controls", fits.drop(columns=["rank", "rows_train"]))
random = run.record("random", measure.random_models(baselines))
by_model = run.record("by_model", measure.by_model(controls, random, baselines))

# %% tags=["nbval-check-output"]
brackets = random.assign(widest=random["r2_in_sample"] - random["r2"]).groupby("model", sort=False)
brackets = brackets.agg({"r2": "mean", "r2_in_sample": "mean", "widest": "max"})
print("whole models at random, means over seeds and blocks, and the widest bracket of a block")
print(brackets.join(by_model.set_index("model")["random_rows"]).round(2).to_string())

# %%
highest_cost = measure.cost_of_fit(fits).groupby(fits["model"], sort=False).max()
for name, share in highest_cost.items():
    print(f"{name}: a fit on so few rows leaves up to {share:.0%} more unexplained than the best line would")
means = controls.pivot_table(index="model", columns="control", values="r2", sort=False)
means[list(measure.CONTROLS)].round(2)

# %% [markdown]
# Does the closed form agree with the fit on normal rows? A fit on $n$ rows of rank $r$ has a held-out residual about
# $1 + (r + 1)/(n - r - 2)$ times that of the best line; *priced* takes this into account.

# %% tags=["nbval-check-output"]
normal = measure.closed_form(fits, closed).round(4)
differences = normal[["closed", "priced"]].sub(normal["fitted"], axis=0)
gaps = differences.abs().max()
run.record("closed_form", pd.DataFrame({"gap": [gaps["closed"]], "priced_gap": [gaps["priced"]]}))
known = normal["closed"].count()
print(f"{known} blocks; largest gap of fit and closed form: {gaps['closed']:.2f}, priced {gaps['priced']:.2f}")

# %% [markdown]
# **The chance floor.** If outputs are paired with inputs at random, there is nothing to explain. In sample, least
# squares still explains a share $r / (n - 1)$, with $r$ the rank of the inputs and $n$ the number of rows. This is why
# an in-sample $R^2$ misleads, most of all at large width.

# %% tags=["nbval-check-output"]
floors = run.record("floors", measure.floors(blocks[first][middle].rows()))
print(floors.round(2).to_string(index=False))

# %% [markdown]
# **What a referee asked for.** The inputs of each block: rank and condition number, effective rank (how many directions
# carry the variance), dynamic range (loudest feature over the median one), and *effective support*: the share of rows
# that carry the variance, 1 if all rows lie equally far out, near 0 if a few rows carry it all (of the inputs, and as
# `support_out` of the outputs). `first_position_in` and `_out` are the mean norm at a sequence's first position over
# that at all others. First comes the rank correlation of each statistic with $R^2_{\mathrm{lin}}$ (– if all blocks have
# the same value), then its smallest and largest value over the blocks of each model; the folded table has every block.

# %%
inputs = pd.concat([measure.inputs(name, blocks[name]) for name in run.models], ignore_index=True)
support = run.record("support", inputs[["model", "block", "support_in", "support_out"]])  # the rest is notebook 01's
own = controls.query("control == 'own'")
inputs = inputs.merge(own[["model", "block", "r2"]], on=["model", "block"])
statistics = inputs.drop(columns="block").groupby("model", sort=False)
with_r2 = statistics.corr("spearman")["r2"].unstack().drop(columns="r2")
rho = with_r2.reindex(list(run.models))
print("Spearman ρ with R²_lin over blocks:")
print(rho.round(1).to_string(na_rep="–"))
run.folded("every block", inputs.set_index(["model", "block"]).round(2))
ends = pd.concat({"min": statistics.min(), "max": statistics.max()}, names=["end"])
ends.swaplevel().sort_index().round(2)

# %% [markdown]
# **Transplants.** Rows of one model (*shape*) get the mean and covariance of another (*colour*) and go through the
# weights of a third (*weights*). Two-way: colour and weights are of one model, so *weights* stands for both and
# *inputs* for the shape alone. Three-way: colour varies on its own and has its own share. Whose profile comes out? We
# print how far, on average over pairs of two different models, it lies from that of the weights' owner, from that of
# the inputs' owner, and from the same weights on *normal* rows or on their own rows *turned*. Rows of one width do not
# fit weights of another, so models that differ in width or depth from all others are left out.

# %%
transplants = measure.transplants(blocks, ffns, three_way_every=1 if thorough else 3)
pairs = run.record("pairs", measure.pairs(transplants))
effects = run.record("effects", measure.effects(transplants))
nearness = run.record("nearness", measure.nearness(pairs, controls))
if transplants.empty:
    shapes = {}
    for name, of_model in blocks.items():
        shapes[name] = (len(of_model), next(iter(of_model.values())).rows().x.shape[1])
    print("no transplants: no two models are alike in their number of blocks and their width:", shapes)

# %% tags=["nbval-check-output"]
print("mean |gap| from a transplant to …", nearness.set_index("curve")["gap"].round(2).to_dict())
for design, of_design in effects.groupby("design", sort=False):
    print(f"{design}:", of_design.set_index("effect")["share"].round(2).to_dict())

# %% [markdown]
# **Twins.** Small models: every architecture × two training texts × two seeds, all measured on the same rows. Two seeds
# of one kind are the only repetitions, so the difference between *them* is the yardstick: how much does another
# architecture, or another text within one architecture, move a profile compared with another seed? *Share*: the
# effect's variance over its own and the seeds' together, ½ if both move a profile equally. *Ratio*: the distance
# between two twins that differ in the factor, over that between two seeds. *Shape only*: each profile minus its mean
# over blocks. Intervals come from inverting the F test; with so few seeds they are wide, and rightly so. The twins were
# measured during training, on documents that were split one by one, not yet by folder of source files.

# %% tags=["nbval-check-output"]
from howlinear.training.twins import TEXTS, load_twins

if with_twins:
    twins = run.record("twins", measure.twins(load_twins().values()))
    gaps = run.record("twin_gaps", measure.twin_gaps(twins))
    moving = run.record("beside_seeds", measure.twins_beside_seeds(twins))
    print("twins of", ", ".join(twins["family"].unique()))
    print("mean |gap| of two that differ in one factor alone:")
    print(gaps.pivot(index="measured_on", columns="factor", values="gap").round(3).to_string())
    shown = ["f", "share", "share_low", "share_high", "ratio", "ratio_low", "ratio_high"]
    print(moving.set_index(["measured_on", "view", "effect"])[shown].round(2).to_string())
else:
    print("left out: the twins are embedded models, and say nothing of this run's; run profile minis has them")

# %% [markdown]
# ## Figure: trained against random
#
# **How to read it.** One panel per model. Heavy line: the trained model with its 95 % interval. Band: the whole model
# at random initialisations, from the lowest held-out to the highest in-sample $R^2$ of any seed; the random models lie
# somewhere in it, and a wide band means that even these rows are too few. Thin lines: the trained model's own inputs
# through permuted, redrawn or fresh weights. Where a thin line lies on the heavy one, that disorder changes nothing. An
# $R^2$ below 0 would mean too few rows; it does not say how linear a block is.

# %%
import matplotlib.pyplot as plt

from howlinear.plots import controls as plots

run.figure(plots.trained_and_random(controls, random), "random")
plt.show()

# %% [markdown]
# ## Figure: whose profile is it?
#
# **How to read it.** One panel for each owner of weights. Coloured: its blocks fed with each model's rows, all given
# the owner's mean and covariance; its own rows are the heavy line. Black: normal rows (circles: the closed form). Grey:
# its own rows, turned. Last panel: the shares of the variance between combinations, with 95 % intervals. An interaction
# (×) is what none of its parts does alone: how they *fit together*. Where rows could not be transplanted, only the
# owner's rows are drawn, and there is no last panel.

# %%
figure = plots.transplants(pairs, controls, normal, effects[effects["design"] == "three-way"])
run.figure(figure, "transplant")
plt.show()

# %% [markdown]
# ## Figure: twins that differ in one thing only
#
# **How to read it.** (a) Colour is the architecture (*family*), line style the text; lines that look alike differ in
# the seed. (b) The *share* defined above, of another family and of another text, for profiles measured on each text: as
# measured (filled) and in shape only (open). Right of the grey line, a change moves the profile more than another seed.

# %%
if with_twins:
    by_text = moving[moving["measured_on"] != "all"]
    run.figure(plots.twins(twins, by_text, TEXTS[0]), "twins")
    plt.show()

# %%
run.save(settings={"seeds": seeds, "sampled": sampled})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - The paper argues from its two models that training makes the profile, not architecture. It does not test weights
#   against inputs, and has no two models that differ in their text alone.
# - Disordered weights and normal inputs need not move $R^2_{\mathrm{lin}}$ the same way: what counts is how far apart a
#   unit's pre-activations lie, and which units act together.
# - Where the × terms lead, neither parent makes the profile alone: it lies in how weights and inputs fit together.
# - Two twins that differ in text are two runs as well, so 1 is the least that a ratio can be. Few seeds give wide
#   intervals: an interval that contains 1 says that these twins cannot tell, not that there is no effect. Statements
#   about architectures hold for those trained as twins.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/08_controls.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** With how many rows do shuffled pairs have an in-sample $R^2$ of 0.01 on average? The first row of
# `floors` gives the rank of the inputs.
#
# <details><summary>Hint</summary>
#
# Step 1: `floors.expected_in_sample` is rank / (rows − 1). Which rank does the first row of the table give?
#
# Step 2: put 0.01 on the left and that rank on the right, and solve for the rows.
#
# </details>

# %%
enough = None  # a number of rows

if enough is not None:
    rank = round(floors.expected_in_sample[0] * (floors.rows[0] - 1))
    assert abs(0.01 * (enough - 1) - rank) < 1e-6, "rank / (rows − 1) is to be 0.01: one row goes to the mean"
    print(f"right: {enough:,} rows, a hundred for each of {rank} directions, and one for the mean")

# %% [markdown]
# **2 (medium).** Quieten the inputs of the first model's first block: a tenth of the spread, the same mean. What is
# $R^2_{\mathrm{lin}}$ on normal rows by the closed form, and what is its limit as the spread goes to 0?
#
# <details><summary>Hint</summary>
#
# Step 1: `moments = sum(captures[first].blocks[0].train)` is a copy that you may change. Which of its attributes hold
# the spread of the inputs, and to which power?
#
# Step 2: `predict_spectrum(take_apart(language_models[first], numbers[0]), moments, 1)[0]` is the closed form.
#
# </details>

# %%
quiet = None  # R² at a tenth of the spread

if quiet is not None:
    taken, moments = take_apart(language_models[first], numbers[0]), sum(blocks[first][numbers[0]].train)
    loud = predict_spectrum(taken, moments, 1)[0]
    moments.sxx *= 0.1**2
    expected = predict_spectrum(taken, moments, 1)[0]
    assert abs(quiet - expected) < 1e-6, "spread enters a covariance squared, and the mean stays where it is"
    print(f"right: {quiet:.4f}, where the full spread has {loud:.3f}: from near by every smooth block is straight")

# %% [markdown]
# **3 (harder).** Turn the rows of the first model's middle block with the seeds 0 to 4. Does any turn come near the
# $R^2$ of the block's own rows?
#
# <details><summary>Hint</summary>
#
# Step 1: with `captured = blocks[first][middle]`, `recolour(captured.rows().x, colour, colour, turn=seed)` turns
# its rows; `colour` is `Colour.of(sum(captured.train))`, and `ffns[first][middle]` is the block itself.
#
# Step 2: run the block on the turned rows, and take R² of these new pairs. `respond` and `sample_ceiling` of
# `howlinear.ideas.controls.weights` do both.
#
# </details>

# %%
turns = None  # a list of five R²

if turns is not None:
    import numpy as np

    from howlinear.ideas.controls.weights import respond, sample_ceiling

    captured, ffn = blocks[first][middle], ffns[first][middle]
    sample, colour = captured.rows(), Colour.of(sum(captured.train))
    turned = [recolour(sample.x, colour, colour, turn=seed) for seed in range(5)]
    expected = [sample_ceiling(x, respond(ffn, x), sample, intervals=False).r2 for x in turned]
    untouched = sample_ceiling(sample.x, sample.y, sample, intervals=False).r2
    assert np.shape(turns) == (5,), "one R² for each seed"
    assert np.allclose(turns, expected, atol=1e-3), "fit on the turned train rows, score on the turned held-out rows"
    print(f"right: turned {min(turns):.3f} to {max(turns):.3f}, untouched {untouched:.3f}")
