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
# # 10 · Of what degree is a feed-forward block?
#
# **Question.** Notebook 03 added a few products of inputs to the straight line, and much of the block stayed
# unexplained. Is the rest of a higher degree, or of degree 2 and spread over more products than a small probe has?
#
# **You need** notebook 03 and its results; Hermite's polynomials are introduced here. **You learn** to read a degree
# spectrum as shares of one variance, and why a degree says nothing about how many products it needs.
# **Time** 35 minutes to read, 3 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
token_rows: int or None = None  # rows that features are computed on, a quarter held out; None: the run profile's
blocks: list or str or dict or None = None  # which spectra, besides the checked blocks': numbers or a rule; None: all
degree = 4  # the highest degree of the spectrum, 3 or more
predicted_of: list or str or None = None  # which blocks' R²_lin is predicted from second moments; None: all
held = 16_000_000  # inputs held in memory at a time, rows × width × blocks: more means fewer passes
kernel_rows = [750, 1500, 3000, 6000]  # train rows of the kernels, the last for degree 2 alone: time grows as its cube
counts = [0, 16, 32, 64, 128, 256]  # how many of the loudest neurons get their squares reweighted; all of them too
directions = [0, 8, 16, 32, 48]  # numbers of leading directions whose products are all taken
streamed: list or str = []  # blocks per model (up to width 128) to stream products of; always the first model's middle
streamed_rows = [16_000, 32_000]  # train rows for these products: about a minute and a half and 3 GB per block
share_reached = 0.9  # share of the quadratic step to reach: how many products does it take?
with_twins = True  # show the embedded small models in training as well, whatever models the run profile has

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import howlinear as hl
from howlinear.ideas.degrees import measure
from howlinear.instrument.selection import choose_blocks, selected, spaced
from howlinear.notebook.run import start

run = start("10_degrees", profile, model, corpus)
first = next(iter(run.models))
stored = {name: run.capture(name) for name in run.models}
blocks_of = {name: found.blocks for name, found in stored.items()}
asked_for = selected(blocks_of, blocks)

used = {}  # model → its token rows
checked = {}  # an early, a middle and a late block
middle = {}
surveyed = {}
for name, found in stored.items():
    fewest = measure.fewest_rows(run.model(name), degree)
    used[name] = found.rows.thinned(token_rows and max(token_rows, fewest))
    checked[name] = spaced(found.blocks, 3)
    middle[name] = checked[name][len(checked[name]) // 2]
    surveyed[name] = sorted({*asked_for.get(name, ()), *checked[name]})

print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", used[first].count, "token rows")
for name, of_model in blocks_of.items():
    massive = [str(block) for block in surveyed[name] if len(of_model[block].massive())]
    print(f"{name}: {len(surveyed[name])} of {len(of_model)} blocks;", end=" ")
    print("few massive rows weigh most (notebook 12) in:", ", ".join(massive) or "none")

# %% [markdown]
# ## Predict first
#
# 1. The line explains a share $R^2_1$ of the variance. Now allow squares, then cubes. Which degree does it take to
#    explain nine tenths of the *rest*?
# 2. What share of the quadratic part will sixteen products, a rank-16 probe, reach: most, half, little?
# 3. Weights and the covariance of the inputs give the whole spectrum, *if* inputs are Gaussian. Is the real block more
#    linear than that, or less?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# The paper leaves open whether the rest is "higher-order or distributed". So: *what degree?* and *how many products?*
#
# Degree first. A block bends only the pre-activations $z = Ax + c$ of its $m$ neurons ($A$ is $m \times d$; here $A$
# and $z$ are not the probe's factors and whitened inputs of notebook 03). In each neuron, replace the activation by the
# polynomial of degree $k$ that is nearest to it on real text. The result is a polynomial of degree $k$ in $x$, so the
# share it explains is a *lower bound* on what any polynomial of that degree could explain. SwiGLU multiplies, and its
# degree is counted the same way: $u \cdot g^{k-1}$ has degree $k$.
#
# The bound can be slack: products that no neuron makes may help. So we check it against *all* products of two inputs,
# 8,256 for 128 inputs: with the kernel $(1 + x \cdot x')^2$ on few rows, and written out and streamed on many. A
# Gaussian kernel, which has no bound on the degree, is shown for comparison. Hermite's expansion predicts the spectrum
# from the weights, without any row.

# %% [markdown]
# ## Method
#
# $$ a(z) \approx q_k(z) = \sum_{j \le k} c_j\, \mathrm{He}_j(\hat z), \qquad
#    R^2_k = R^2 \text{ of least squares on } x,\; V^\top(q_2 - q_1),\; \dots,\; V^\top(q_k - q_{k-1}) $$
#
# Here $V$ ($m \times d$) are the output weights, $\mathrm{He}_j$ is Hermite's polynomial of degree $j$, and every
# neuron has its own coefficients $c_j$.
#
# | what | function |
# |---|---|
# | neurons, activation and readout of $y = V^\top a(z) + b$ | `take_apart` |
# | each neuron's nearest $q_k$ ($\hat z$: $z$ standardised), and $R^2_1 \dots R^2_4$ | `spectrum.features`, `degrees` |
# | the squares of the $r$ loudest neurons, each reweighted | `spectrum.loudest` |
# | all products, by the kernel $(1 + x \cdot x')^2$ on few rows; degree 3; Gaussian | `products.learning_curve` |
# | all products written down: of $k$ leading directions, or of all, streamed | `products.products`, `quadratic` |
# | $E[a\,\mathrm{He}_k]$, $\rho^k$ ($\rho$: correlation of two $z$): Gaussian inputs' spectrum | `predict_spectrum` |
#
# The neurons' bound of degree 2 comes in two kinds. *Pooled*: the squares of all neurons, summed with the block's own
# output weights, as in the formula. *Each free*: every neuron's square with fitted weights of its own.
#
# The features are nested, so one Cholesky factor serves every degree; a step down in held-out $R^2$ means overfitting.
#
# One neuron, by hand: it squares its input, and the input is normal with mean ½ and variance 1. Then
# $z = \tfrac12 + \hat z$ and $z^2 = \tfrac54 + \hat z + \sqrt2\,(\hat z^2 - 1)/\sqrt2$: the line has variance 1, the
# square has variance 2. So degree 1 explains a third, and degree 2 explains all.

# %%
from howlinear.core.ceilings import AffineMap
from howlinear.core.gaussian import Hidden, hermite, predict_spectrum

one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
identity = AffineMap(one, zero)
squares = Hidden(gate=identity, up=None, activation=torch.square, out=identity)

# 10,000 draws of mean 0 and variance 1 to the last digit
generator = torch.Generator().manual_seed(0)
draws = torch.randn(10_000, 1, generator=generator, dtype=torch.float64)
standardised = (draws - draws.mean()) / draws.std(correction=0)

shifted = hl.Moments(1).update(0.5 + standardised)
print("z² of normal z, mean ½:", predict_spectrum(squares, shifted, 3).round(2), "by degree")

# %% [markdown]
# The method must first recover degrees that we know. We keep the inputs and weights of a real block, and make He$_D$
# the activation of all its neurons: a *teacher* of degree $D$.

# %%
from howlinear.models.units import take_apart

model = run.model(first)
parts = take_apart(model, middle[first])
_, captured = next(measure.captured_blocks(model, used[first], [middle[first]], held))
teachers = run.record("teachers", measure.teacher_table(captured, parts, degree))
planted = teachers.pivot(index="teacher", columns="degree", values="r2")

# %% tags=["nbval-check-output"]
print("teacher of degree D (row) explained up to degree k:")
print(planted.add_prefix("R²_").rename_axis(index=None, columns=None).round(2).to_string())

# %% [markdown]
# From its own degree on, a teacher must score 1. Below its degree it must score 0 if inputs are Gaussian, so its score
# there shows how far these inputs are from Gaussian.
#
# ## Run
#
# First the spectrum of every block, with its prediction, and the checks for an early, a middle and a late block.

# %%
fitted = int(0.65 * used[first].count)  # of all rows: the train rows, less a fold of eight
kernel_rows = [rows for rows in kernel_rows if rows <= fitted]
if len(kernel_rows) < 2:
    kernel_rows = [fitted // 2, fitted]

surveys = []
for name in run.models:
    what = (surveyed[name], checked[name], degree, kernel_rows, counts, directions, held)
    surveys.append(measure.survey_blocks(name, run.model(name), used[name], *what))
tables = {}
for kind in surveys[0]:
    tables[kind] = pd.concat([found[kind] for found in surveys])

spectra = run.record("spectra", tables["spectra"])
neurons = run.record("neurons", tables["neurons"])
kernels = run.record("kernels", tables["kernels"])
leading = run.record("directions", tables["directions"])

# %% [markdown]
# How many neurons does it take to reach `share_reached` of the quadratic step?

# %%
enough = neurons[neurons.share >= share_reached]
reach = enough.groupby(["model", "block"])["neurons"].min()
reach = reach.rename("reach").astype("Int64")  # whole numbers, missing where no count of neurons gets so far
spreads = run.record("blocks", tables["blocks"].join(reach, on=["model", "block"]))

# %% [markdown]
# Then the middle blocks of untrained (*fresh*) models, on the same tokens.

# %%
fresh = []
for name in run.models:
    untrained = hl.untrained(run.model(name))
    _, captured = next(measure.captured_blocks(untrained, used[name], [middle[name]], held))
    parts_untrained = take_apart(untrained, middle[name])
    table = measure.spectrum_table(captured, parts_untrained, degree)
    spread = measure.spread_table(captured, parts_untrained)
    fresh.append(measure.with_keys(table.merge(spread, how="cross"), name, middle[name]))
fresh = pd.concat(fresh)
fresh_r2 = run.record("fresh", fresh[["model", "degree", "r2"]])

# %% [markdown]
# All products of a block's inputs, up to width 128, over more of the text.

# %%
from howlinear.files.tables import stack

curves = []
for name in run.models:
    asked = set(choose_blocks(streamed, stored[name].blocks))
    if name == first:
        asked.add(middle[name])
    if stored[name].blocks[middle[name]].outputs.d_in > 128:
        print(f"{name} is wider than 128: all products of its inputs are not streamed")
        continue
    model = run.model(name)
    rows = run.corpus(run.corpora[0], model).rows(int(1.6 * streamed_rows[-1]))  # 0.65 of them are fitted on
    train_rows = [count for count in streamed_rows if count <= 0.65 * rows.count]
    if not train_rows:
        print(f"{name}: the text has {rows.count} rows, too few to stream all products over more of it")
        continue
    for block in sorted(asked):
        table = measure.streamed_table(model, rows, block, train_rows)
        curves.append(measure.with_keys(table, name, block))
columns = ["model", "block", "rows", "r2", "r2_low", "r2_high"]
streamed_curves = run.record("streamed", stack(curves, columns))

# %% [markdown]
# We also need the probes of notebook 03: the share that they explain of what the line leaves, by rank.

# %%
swept = hl.results(run.results, "03_bilinear")["ranks"]
probes = run.record("probes", measure.probe_table(neurons, swept))
for name, numbers in checked.items():
    for block in numbers:
        if probes.query("model == @name and block == @block").empty:
            print(f"{name}, block {block}: notebook 03 has no probe of several ranks")

# %% [markdown]
# The spectrum of each model, as the mean over its blocks:

# %% tags=["nbval-check-output"]
by_degree = spectra.set_index(["model", "block", "degree"])
r2 = by_degree["r2"].unstack().reindex(run.models, level="model")
means = r2.groupby("model", sort=False).mean()
print(means.add_prefix("R²_").rename_axis(columns=None).round(2).to_string())

steps = r2.diff(axis=1).iloc[:, 1:]
falls = (steps < 0).to_numpy()
print("steps down from one degree to the next:", falls.sum(), "of", falls.size)

# %% [markdown]
# And how far Hermite's prediction lies from it, in the block where it misses most:

# %% tags=["nbval-check-output"]
predicted = by_degree["hermite"].unstack().reindex(r2.index)
gaps = r2 - predicted


def largest(gap):
    """The gap farthest from 0, with its sign."""
    return gap.loc[gap.abs().idxmax()]


miss = gaps.groupby("model", sort=False).agg(largest)
miss = miss.round(1) + 0.0  # no −0.0
print(miss.add_prefix("R²_").rename_axis(columns=None).to_string())

# %% [markdown]
# ## Figure: the degree spectrum
#
# **How to read it.** From dark to light: held-out $R^2$ with neurons of degree 1 (the line of notebook 02), 2, 3 and 4,
# with 95 % intervals. The space between two curves is what a degree adds. Dashed, in the same shade: what Hermite's
# expansion predicts for Gaussian inputs of the same covariance. (Intervals leave out folds on both sides of the split.)

# %%
from howlinear.plots import degrees as figures

run.figure(figures.spectrum(spectra), "spectrum")
plt.show()

# %% [markdown]
# ## $R^2_{\mathrm{lin}}$ from second moments alone
#
# The lowest dashed curve predicts $R^2_{\mathrm{lin}}$ itself, without any output. On Gaussian inputs of covariance
# $\Sigma$ the line replaces each neuron by its *mean slope* $\mathrm E[a'(z)]$ (Stein's lemma), and Hermite's expansion
# gives the variance of the whole output:
#
# $$ R^2_{\mathrm{lin}} = \frac{\mathrm{tr}(W^\top \Sigma\, W)}{\langle \mathrm{Cov}(a(z)),\, V V^\top \rangle},
#    \qquad W = A^\top \mathrm{diag}(\mathrm E[a'(z)])\, V . $$
#
# (SwiGLU's $u \odot a(g)$ has the mean slopes $\mathrm E[u\,a'(g)]$ in $g$ and $\mathrm E[a(g)]$ in $u$.)
#
# By hand: a neuron whose input is standard normal has a mean slope of ½, whether it is ReLU or GELU, so its line has a
# variance of $\tfrac14$. The whole variance is $\tfrac12 - \tfrac1{2\pi}$ for ReLU, and for GELU
# $\tfrac13 + \tfrac1{2\pi\sqrt3} - \tfrac1{4\pi}$.

# %%
standard = hl.Moments(1).update(standardised)
of_line = 1 / 4
in_all = {
    torch.relu: 1 / 2 - 1 / (2 * np.pi),
    torch.nn.functional.gelu: 1 / 3 + 1 / (12**0.5 * np.pi) - 1 / (4 * np.pi),
}
for activation, variance in in_all.items():
    neuron = Hidden(gate=identity, up=None, activation=activation, out=identity)
    (predicted_r2,) = predict_spectrum(neuron, standard, 1)
    print(f"{activation.__name__}: by hand {of_line / variance:.4f}, from moments {predicted_r2:.4f}")

# %% [markdown]
# Now for every block: the prediction is compared with the limit of $R^2_{\mathrm{lin}}$ with ever more rows, once for
# all rows and once without the massive rows of notebook 12. The difference, the *excess*, can only come from what real
# inputs have beyond mean and covariance.

# %%
of_models = []
for name, of_model in selected(blocks_of, predicted_of).items():
    of_models.append(measure.gaussian_table(name, run.model(name), of_model))
gaussian = run.record("gaussian", pd.concat(of_models))
agreement = run.record("predicted", measure.predicted_table(gaussian))
run.folded("every block", gaussian.set_index(["model", "block", "counted"]).round(3))

# %% tags=["nbval-check-output"]
print(f"R²_lin and its prediction over blocks; within: no farther apart than {measure.NEAR}")
print(agreement.drop(columns="follows_massive").round(2).to_string(index=False))

# %% [markdown]
# **How to read it.** Each point is a block: across, the $R^2_{\mathrm{lin}}$ predicted for Gaussian inputs of the same
# mean and covariance; up, the limit of $R^2_{\mathrm{lin}}$. On the diagonal the prediction is exact; above it the
# shape of real inputs makes the block more linear than predicted, below it less. Open: the same block without its
# massive rows, if it has any.

# %%
run.figure(figures.predicted(gaussian), "gaussian")
plt.show()

# %% [markdown]
# ## Figure: how tight is the lower bound?
#
# **How to read it.** The middle block of each model. Curves: $R^2$ of line and kernel together, against the kernel's
# train rows; they rise towards their ceilings, and a curve that still climbs at its right end has not reached its own.
# Stars: all products by plain least squares, streamed over more rows; without the kernel's penalty they need more rows
# for the same $R^2$. Horizontal: the neurons' degree-2 bound, pooled (dashed) and with every neuron's square reweighted
# (dotted), from all train rows. An $R^2$ above these lines needs products that no neuron makes. The intervals of the
# curves take the fit as given, and are a little too narrow where outputs have heavy tails.

# %%


def of_middle(table):
    """The rows of a table that are of a model's middle block."""
    return table[table.block == table.model.map(middle)]


figure = figures.kernel_curves(of_middle(kernels), of_middle(spectra), of_middle(neurons), of_middle(streamed_curves))
run.figure(figure, "full")
plt.show()

# %% [markdown]
# The neurons' bounds of degree 2, pooled and each free, beside all products by the kernel; *last step* is what the
# last increase of the kernel's rows added:

# %% tags=["nbval-check-output"]
of_block = ["model", "block"]
all_products = kernels[kernels.kernel == "degree 2"].groupby(of_block, sort=False)["r2"]
most_rows = all_products.last()
before_last = all_products.apply(lambda curve: curve.iloc[-2])
bounds = neurons.groupby(of_block, sort=False)["r2"].last().to_frame("each free")
bounds.insert(0, "pooled", r2[2])
bounds["all products"] = most_rows
bounds["last step"] = most_rows - before_last
print(bounds.round(2).to_string())

# %% [markdown]
# All products streamed over more rows, and all products of so many leading directions, in middle blocks:

# %% tags=["nbval-check-output"]
for (name, block), curve in streamed_curves.groupby(of_block):
    points = [f"{point.rows:,} rows: {point.r2:.3f}" for point in curve.itertuples()]
    print(f"{name}, block {block}, streamed, {', '.join(points)}")

by_directions = leading.pivot(index="model", columns="directions", values="r2").reindex(run.models)
print(by_directions.round(2).to_string())

# %% [markdown]
# ## Figure: how many products?
#
# Now the second question. A probe of rank $r$ could find the $r$ loudest neurons' squares, so the best probe reaches at
# least as far as they do. **How to read it.** Middle blocks. Across: the number of products $r$. Up: the share of the
# neurons' quadratic step that they reach. Stars are the probes of notebook 03, free to find better products. A curve
# that is steep at first means low rank; one that climbs to the end, distributed.

# %%
run.figure(figures.products_needed(of_middle(neurons), of_middle(probes)), "rank")
plt.show()

# %% [markdown]
# ## Figure: the spectrum in training
#
# **How to read it.** The middle block of notebook 08's small models, one of each architecture (by line style, legend in
# b). (a) $R^2_1 \dots R^2_4$ from dark to light. (b) The median spread of a pre-activation: the activation bends on a
# scale of one, and looks straight over a small spread. (A median may hide that some neurons hardly move and others move
# far: the last table has the quartiles.)

# %%
from howlinear.training import twins

if with_twins:
    run.figure(figures.training(measure.training_table(twins.load_twins().values())), "training")
    plt.show()
else:
    print("left out: of these models there are no steps of training; run profile minis has the small ones")

# %% [markdown]
# ## The numbers together
#
# What share of the rest that the line leaves does each degree explain? The mean over the blocks of each model:

# %%
rest = r2.drop(columns=1).sub(r2[1], axis=0).div(1 - r2[1], axis=0)
rest = rest.add_prefix("rest by degree ").rename_axis(columns=None)
rest.groupby("model", sort=False).mean().round(2)

# %% [markdown]
# The same for an early, a middle and a late block, with the share of the quadratic step that a probe of each rank
# reaches, and how many neurons it takes to reach `share_reached` of it:

# %%
by_rank = probes.pivot(index=of_block, columns="rank", values="share").add_prefix("rank ")
needed = reach.rename(f"neurons for {share_reached:.0%}")
of_checked = [(name, block) for name in checked for block in checked[name]]
rest.loc[of_checked].join(by_rank).join(needed).round(2)

# %% [markdown]
# The middle blocks, fresh and trained, on the same tokens: $R^2$ up to degrees 1 and 2, and the quartiles of the
# pre-activations' spread. (An $R^2$ below 0 says only that the rows are too few for such a fresh block;
# notebook 02 doubles them.)

# %%
trained = spectra.merge(spreads.drop(columns="reach"), on=of_block)
states = pd.concat([fresh.assign(state="fresh"), of_middle(trained).assign(state="trained")])
of_state = ["model", "state"]
quartiles = states.groupby(of_state)[["spread_lower", "spread", "spread_upper"]].first()
by_state = states.pivot(index=of_state, columns="degree", values="r2")[[1, 2]].add_prefix("R²_")
by_state.join(quartiles).reindex(run.models, level="model").round(2)

# %%
about = {"degree": degree, "share_reached": share_reached, "token_rows": used[first].count, "near": measure.NEAR}
run.save(settings=about)

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - *What degree?* The shares are lower bounds: where *all products* or *each free* lies above *pooled*, the true share
#   is larger still.
# - *How many products?* A probe of few products gains little where the quadratic part is spread over many: its small
#   gain is about the rank, not about the degree.
# - *Is the block what Hermite predicts?* Only if inputs are Gaussian. The difference is due to what weights and
#   covariance do not contain. How well second moments predict $R^2_{\mathrm{lin}}$ is a property of a model, not a law.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/10_degrees.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** GELU is $z\,\Phi(z)$, and $\Phi(z) - \tfrac12$ is odd. Which of the degrees 1 to 5 are missing from
# its Hermite expansion when $z$ has mean 0? Why, then, do the real blocks have a cubic part?
#
# <details><summary>Hint</summary>
#
# Step 1: write $z\,\Phi(z)$ as $z / 2$ plus a rest. Is the rest odd or even?
#
# Step 2: $\mathrm{He}_k$ is even for even $k$ and odd for odd $k$, and the mean of an odd function of $z$ is 0.
#
# </details>

# %%
absent = None  # a set of degrees, as in {2, 4}

if absent is not None:
    nodes, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
    coefficients = torch.stack(hermite(nodes, 5)) @ (weights * torch.nn.functional.gelu(nodes))
    assert absent == {k for k in range(1, 6) if abs(coefficients[k]) < 1e-9}, "split GELU into an odd and an even part"
    print("right: GELU is z / 2 and an even rest; about a mean other than 0, as real z have it, that rest is not even")

# %% [markdown]
# **2 (medium).** Is the cubic part of `parts`, the first model's middle block, due to the neurons' means alone?
# Subtract its mean from every pre-activation, leave everything else as it is, and predict $R^2_1$, $R^2_2$ and $R^2_3$.
# (In SwiGLU, $g$, which goes through the activation, loses its mean, and $u$ keeps its own.)
#
# <details><summary>Hint</summary>
#
# Step 1: `parts.spread(moments)` has the means of the pre-activations, and their spreads. `parts.gate` is the
# `AffineMap` from $x$ to them: which of its two parts moves their means and nothing else?
#
# Step 2: `dataclasses.replace(parts, gate=…)` is a block with another `gate`, and `predict_spectrum(…, moments, 3)`
# predicts its spectrum.
#
# </details>

# %%
without_means = None  # the predicted R² of degrees 1, 2 and 3
moments = sum(stored[first].blocks[middle[first]].train)

if without_means is not None:
    from dataclasses import replace

    means, _ = parts.spread(moments)
    shifted = AffineMap(parts.gate.weight, parts.gate.bias - means)
    expected = predict_spectrum(replace(parts, gate=shifted), moments, 3)
    assert np.shape(without_means) == (3,), "a number for each of the degrees 1, 2 and 3"
    assert np.allclose(without_means, expected, atol=1e-6), "the bias less the means; weights and inputs stay"
    with_means = predict_spectrum(parts, moments, 3)
    before, after = with_means[2] - with_means[1], expected[2] - expected[1]
    print("right: yes." if after < 1e-6 else "right: no, not alone.", end=" ")
    print(f"Degree 3 adds {before:.3f} with means and {after:.3f} without;", end=" ")
    print(f"the line explains {with_means[0]:.2f} with them and {expected[0]:.2f} without")

# %% [markdown]
# **3 (harder).** Feed the first model's middle block 20,000 Gaussian inputs of the same mean and covariance, and
# measure its spectrum. Does Hermite's prediction hold now?
#
# <details><summary>Hint</summary>
#
# Step 1: with normal $\xi$, rows $\mu + \xi\,\Lambda^{1/2} U^\top$ have mean $\mu$ and covariance $U \Lambda U^\top$.
# `moments.mean_x` and `moments.sxx / moments.n` are the two.
#
# Step 2: `parts(x)` is the block's output. Put both into a `Sample` of `howlinear.instrument.capture`, a quarter of the
# rows held out, and the sample into a copy of a capture:
# `dataclasses.replace(stored[first].blocks[middle[first]], sample=…)`.
#
# Step 3: `degrees` of `howlinear.ideas.degrees.spectrum` measures the spectrum; its `r2` is the answer.
#
# </details>

# %%
gaussian_r2 = None  # R² of degrees 1, 2, …, up to `degree`

if gaussian_r2 is not None:
    expected = predict_spectrum(parts, moments, degree)
    assert np.shape(gaussian_r2) == np.shape(expected), f"a number for each degree from 1 to {degree}"
    assert not np.allclose(gaussian_r2, expected, atol=1e-7), (
        "that is the prediction; measure it, on rows that you draw"
    )
    cost = moments.d_in / 10_000  # what least squares on this many rows may lose
    assert np.allclose(gaussian_r2, expected, atol=cost), "rows of the same mean and the same covariance, of this block"
    print("right: measured", np.round(gaussian_r2, 3), "and predicted", expected.round(3))
