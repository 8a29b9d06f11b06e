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
# **Question.** Notebook 03 gave the straight line a few products of inputs, and much of the block stayed unexplained.
# Is the rest of a higher degree, or is it of degree 2 and spread over more products than a small probe has?
#
# **Answer in one line.** Compare, in the tables below, the step from $R^2_1$ to $R^2_2$ with the gain of that probe.
#
# **You need** notebook 03 and its results; Hermite's polynomials come in here. **Time** ten minutes, four to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
degree = 4  # the highest degree of the spectrum
held = 16_000_000  # inputs held in memory at a time, rows × width × blocks: more means fewer passes
kernel_rows = [750, 1500, 3000, 6000]  # train rows of the kernels, the last for degree 2 alone: time grows as its cube
counts = [0, 16, 32, 64, 128, 256]  # neurons that weigh their squares anew, the loudest first; all are added
directions = [0, 8, 16, 32, 48]  # leading directions all of whose products are taken
streamed = []  # blocks of every model whose products are streamed, up to width 128; always the first's middle block
streamed_rows = [16_000, 32_000]  # train rows for that: half a minute and 2 GB a block

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import gelu

import howlinear as hl
from howlinear import nanos, notebooks, paths, record, style
from howlinear.capture import capture
from howlinear.degrees import degrees, loudest
from howlinear.hermite import predicted, taught
from howlinear.hidden import hermite, hidden
from howlinear.kernels import gaussian, learning_curve, polynomial, products
from howlinear.quadratic import quadratic

run = notebooks.start("10_degrees", profile)
first = next(iter(run.models))
kernel_rows = [rows for rows in kernel_rows if rows <= 0.65 * run.rows]  # as many train, less a fold of 8
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. The line explains a share $R^2_1$ of the variance. Let the model square things, then cube them. By which degree is
#    nine tenths of the *rest* explained?
# 2. What share of all that is quadratic will sixteen products, a rank-16 probe, reach: most, half, little?
# 3. Weights and the covariance of the inputs give the whole spectrum, *if* inputs are Gaussian. Is the real block more
#    linear than that, or less?

# %% [markdown]
# ## Idea
#
# The paper's open end is "higher-order or distributed". Two questions: *what degree?* and *how many products?*
#
# Degree first. A block bends nothing but its own pre-activations $z = Ax + c$. In each neuron, swap the activation for
# the polynomial of degree $k$ that lies nearest to it on real text. What comes out is a polynomial of degree $k$ in
# $x$, so the share it explains is a *lower bound* on what any polynomial of that degree could. SwiGLU multiplies, and
# counts the same way: $u \cdot g^{k-1}$ has degree $k$.
#
# It can be slack: products that no neuron makes may help. So we check it against *all* of them, 8,256 of 128 inputs (by
# the kernel $(1 + x \cdot x')^2$), and against one that bounds no degree. Hermite's expansion predicts it, unseen.

# %% [markdown]
# ## Method
#
# $$ a(z) \approx q_k(z) = \sum_{j \le k} c_j\, \mathrm{He}_j(\hat z), \qquad
#    R^2_k = R^2 \text{ of least squares on } x,\; V^\top(q_2 - q_1),\; \dots,\; V^\top(q_k - q_{k-1}) $$
#
# | what | function |
# |---|---|
# | $y = V^\top a(z) + b$ taken apart; each neuron's nearest $q_k$ ($\hat z$: $z$ standardised) | `hidden`, `features` |
# | $R^2_1 \dots R^2_4$, held out, with jackknife intervals | `degrees.degrees` |
# | the squares of the $r$ loudest neurons, each weighed anew | `degrees.loudest` |
# | all products, by the kernel $(1 + x \cdot x')^2$; degree 3; Gaussian | `kernels.learning_curve` |
# | all products, of $k$ leading directions, or streamed over more rows | `kernels.products`, `quadratic.quadratic` |
# | $E[a\,\mathrm{He}_k]$ and $\rho^k$ ($\rho$: of two neurons' $z$): Gaussian inputs' spectrum | `hermite.predicted` |
#
# Features come in nested sets, so one Cholesky factor serves every degree; a step down, held out, means overfitting.
# First it must tell degrees where we know them: we keep inputs and weights, and plant teachers, all neurons He$_D$.


# %%
def rows_of(model, rows, blocks):
    size = max(1, held // (rows.ids.numel() * model.config.hidden_size))
    for start in range(0, len(blocks), size):
        yield from capture(model, rows, blocks[start : start + size], sample=rows.ids.numel()).items()


stored = {name: run.capture(name) for name in run.models}
depth = {name: len(stored[name].blocks) for name in run.models}
chosen = {name: sorted({0, depth[name] // 2, depth[name] - 1}) for name in run.models}
middle = {name: depth[name] // 2 for name in run.models}
model = run.model(first)
_, kept = next(rows_of(model, stored[first].rows, [middle[first]]))
teachers = [taught(kept, hidden(model, middle[first]), power) for power in range(1, degree + 1)]
placed = np.array([degrees(*teacher, degree).r2 for teacher in teachers])
columns = [f"R²_{k}" for k in range(1, degree + 1)]

# %% tags=["nbval-check-output"]
print("teacher of degree D (row) explained up to degree k:")
print(pd.DataFrame(placed, range(1, degree + 1), columns).round(2).to_string())

# %% [markdown]
# From its own degree on a teacher must score 1; before it 0, if inputs are Gaussian. How far are they not?
#
# ## Run
#
# The spectrum of every block, with its prediction; for an early, a middle and a late block, the checks.


# %%
def described(kept, block):
    moments = sum(kept.train)
    found, spread = degrees(kept, block, degree), block.spread(moments)[1]
    return vars(found) | {"hermite": predicted(block, moments, degree), "spread": float(spread.median())}


def checked(kept, block, deep):
    neurons = len(block.gate.bias)
    found = {"loudest": loudest(kept, block, sorted({c for c in counts if c < neurons} | {neurons}))}
    found["degree 2"] = learning_curve(kept, polynomial(2), kernel_rows)
    if deep:
        found |= {"degree 3": learning_curve(kept, polynomial(3), kernel_rows[:-1])}
        found |= {"Gaussian": learning_curve(kept, gaussian, kernel_rows[:-1]), "products": products(kept, directions)}
    return found


def stream(model, block):
    rows = hl.load_corpus(run.corpora[0], model).rows(int(1.6 * streamed_rows[-1]))  # 0.65 of them are fitted on
    return quadratic(capture(model, rows, [block], sample=rows.ids.numel())[block], streamed_rows)


spectra, fresh, checks = {}, {}, {}
for name in run.models:
    model, rows = run.model(name), stored[name].rows
    for block, kept in rows_of(model, rows, list(range(depth[name]))):
        spectra[name, block] = described(kept, hidden(model, block))
        if block in chosen[name]:
            checks[name, block] = checked(kept, hidden(model, block), block == middle[name])
    model = hl.untrained(model)
    for block, kept in rows_of(model, rows, [middle[name]]):
        fresh[name, block] = described(kept, hidden(model, block))
asked = {(first, middle[first]), *product(run.models, streamed)} if model.config.hidden_size <= 128 else set()
many = {(name, block): stream(run.model(name), block) for name, block in sorted(asked)}

# %% tags=["nbval-check-output"]
index = pd.MultiIndex.from_tuples(spectra, names=["model", "block"])
table = pd.DataFrame([found["r2"] for found in spectra.values()], index, columns)
guess = pd.DataFrame([found["hermite"] for found in spectra.values()], index, columns)
falls = int((table.diff(axis=1).iloc[:, 1:] < 0).to_numpy().sum())
print(table.groupby("model", sort=False).mean().round(2).to_string())
print("largest miss of Hermite's prediction, per degree and model:")
miss = (table - guess).groupby("model", sort=False).agg(lambda gap: gap.loc[gap.abs().idxmax()])
print((miss.round(1) + 0.0).to_string())
print("steps down from one degree to the next:", falls, "of", table.shape[0] * (degree - 1))

# %% [markdown]
# ## Figure: the degree spectrum
#
# **How to read it.** From dark to light: held-out $R^2$ with neurons of degree 1 (the line of notebook 02), 2, 3 and 4,
# with 95 % intervals. The space between two curves is what a degree adds. Dashed, in the same shade: what Hermite's
# expansion predicts for Gaussian inputs of the same covariance. (Intervals leave out document folds on both sides.)

# %%
figure, axes = plt.subplots(1, len(run.models), figsize=(style.PAGE, 2.6), sharey=True, squeeze=False)
for axis, name in zip(axes[0], run.models, strict=True):
    mine = [spectra[name, block] for block in range(depth[name])]
    r2, low, high, hers = (np.array([found[key] for found in mine]) for key in ("r2", "low", "high", "hermite"))
    for k in range(degree):
        drawn = {"color": plt.get_cmap("viridis")(0.9 * k / max(degree - 1, 1)), "marker": "osD^v<"[k % 6]}
        bars = np.array([r2[:, k] - low[:, k], high[:, k] - r2[:, k]])
        axis.errorbar(range(depth[name]), r2[:, k], bars, lw=1, elinewidth=0.7, label=f"degree {k + 1}", **drawn)
        label = None if k else "Hermite, Gaussian inputs"
        axis.plot(range(depth[name]), hers[:, k], ls=(0, (3, 1.5)), lw=0.8, color=drawn["color"], label=label)
    axis.set(xlabel="block", xticks=range(0, depth[name], 2))
    axis.set_title(f"({'abcdefgh'[list(run.models).index(name)]}) {name}", loc="left")
axes[0, 0].set(ylabel="held-out $R^2$", ylim=(max(-1, min(-0.02, table.min().min() - 0.02)), 1.02))
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=degree + 1, columnspacing=1.2)
run.figure(figure, "spectrum")
plt.show()

# %% [markdown]
# ## Figure: how tight is the lower bound?
#
# **How to read it.** The middle block of each model. Curves: line and kernel together, against the train rows that the
# kernel had; they can only grow towards their ceilings, and one that still climbs at its right end has not reached it.
# Stars: all products, streamed over more rows. Horizontal: the neurons' degree-2 bound, pooled (dashed) and with every
# neuron's square weighed anew (dotted), from all train rows. What lies above takes products that no neuron makes.

# %%
figure, axes = plt.subplots(1, len(run.models), figsize=(style.PAGE, 2.6), sharex=True, sharey=True, squeeze=False)
shapes = {"degree 2": ("o-", "#0072B2"), "degree 3": ("s--", "#D55E00"), "Gaussian": ("^:", "#009E73")}
for axis, name in zip(axes[0], run.models, strict=True):
    found, mine = checks[name, middle[name]], spectra[name, middle[name]]["r2"]
    for kernel, (shape, colour) in shapes.items():
        size, r2, low, high = np.array([(one.rows, one.r2, one.low, one.high) for one in found[kernel]]).T
        bars = {"yerr": [r2 - low, high - r2], "elinewidth": 0.7, "label": f"{kernel} kernel"}
        axis.errorbar(size, r2, **bars, fmt=shape, color=colour)
    axis.axhline(mine[1], color=style.GREY, ls="--", lw=0.9, label="neurons, degree 2")
    axis.axhline(found["loudest"].r2[-1], color="k", ls=":", lw=1, label="neurons' squares, each free")
    if (name, middle[name]) in many:
        curve = many[name, middle[name]]
        axis.plot([one.rows for one in curve], [one.r2 for one in curve], "k*-", label="degree 2, streamed")
    ticks = [kernel_rows[0], kernel_rows[-1], *streamed_rows[-1:] * bool(many)]
    axis.set(xlabel="train rows", xscale="log", xticks=ticks, xticklabels=[f"{rows:,}" for rows in ticks])
    axis.minorticks_off()
    axis.set_title(f"({'abcdefgh'[list(run.models).index(name)]}) {name}, block {middle[name]}", loc="left")
axes[0, 0].set_ylabel("held-out $R^2$")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, columnspacing=1.0)
run.figure(figure, "full")
plt.show()

# %% tags=["nbval-check-output"]
close = table.loc[list(checks), ["R²_2"]].rename(columns={"R²_2": "pooled"})
close["each free"] = [found["loudest"].r2[-1] for found in checks.values()]
close["all products"] = [found["degree 2"][-1].r2 for found in checks.values()]
close["last step"] = close["all products"] - [found["degree 2"][-2].r2 for found in checks.values()]
print(close.round(2).to_string())
for (name, block), curve in many.items():
    print(f"{name}, block {block}, streamed,", ", ".join(f"{one.rows:,} rows: {one.r2:.3f}" for one in curve))
leading = {name: checks[name, middle[name]]["products"].r2.round(2).tolist() for name in run.models}
print(f"middle block, all products of {directions} leading directions:", leading)

# %% [markdown]
# ## Figure: how many products?
#
# The second question. A probe of rank $r$ could find the $r$ loudest neurons' squares, so its best fit reaches as far.
# **How to read it.** Middle blocks. Up: share of the neurons' quadratic step that $r$ products reach. Stars are the
# probes of notebook 03, free to find better products. Steep at first means low rank; climbing to the end, distributed.

# %%
swept = record.load(paths.results(profile) / "03_bilinear.json")["ranks"]  # rank → share of what the line leaves
figure, axis = plt.subplots(figsize=(style.COLUMN, 2.4))
reach, probes = {}, {}
for name, block in checks:
    r2, sizes = checks[name, block]["loudest"].r2, checks[name, block]["loudest"].sizes
    used, share, left = np.array(sizes) - sizes[0], (r2 - r2[0]) / (r2[-1] - r2[0]), (1 - r2[0]) / (r2[-1] - r2[0])
    found = probes[name, block] = {rank: swept[name][str(block)][str(rank)] * left for rank in (1, 4, 16, 64)}
    reach[name, block] = int(used[np.argmax(share >= 0.9)]), next((str(r) for r in found if found[r] >= 0.9), "> 64")
    if block == middle[name]:
        look = style.look(name)
        axis.plot(used[1:], share[1:], **look)
        star = {"marker": "*", "ms": 8, "color": look["color"], "mec": "k", "mew": 0.5, "ls": ":", "lw": 0.8}
        axis.plot(list(found), list(found.values()), **star)
axis.plot([], [], **star | {"color": "w", "ls": "none"}, label="probes of notebook 03")
axis.set(xscale="log", xlabel="products", xticks=[1, 4, 16, 64, 256], xticklabels=[1, 4, 16, 64, 256])
axis.set(ylabel="share of the quadratic step", ylim=(0, 1.05))
axis.minorticks_off()
axis.legend()
run.figure(figure, "rank")
plt.show()

# %% [markdown]
# ## Figure: the spectrum in training
#
# **How to read it.** The middle block of two of notebook 08's small models. Left, $R^2_1 \dots R^2_4$ from dark to
# light. Right, the median spread of a pre-activation: GELU bends on a scale of one; a small spread sees it straight.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.4))
watched = [found for found in nanos.load_twins().values() if "degrees" in found["steps"][0]]
for found, line in zip(watched, ("-", "--"), strict=True):
    seen = pd.DataFrame([step["degrees"][str(found["blocks"] // 2)] for step in found["steps"]])
    steps, family = [step["step"] for step in found["steps"]], found["family"]
    for k, curve in enumerate(zip(*seen["r2"], strict=True)):
        left.plot(steps, curve, ls=line, color=plt.get_cmap("viridis")(0.3 * k), label=f"{family}, degree {k + 1}")
    right.plot(steps, seen["spread"], ls=line, color="k", label=family)
for axis in (left, right):
    axis.set(xscale="symlog", xlim=(0, None), xlabel="training step")
    axis.legend()
left.set(ylabel="held-out $R^2$")
right.set(ylabel="spread of pre-activations", ylim=(0, None))
run.figure(figure, "training")
plt.show()

# %% [markdown]
# ## What we learned
#
# And the models themselves, fresh from the initialiser, on the same tokens? The last two rows say it of middle blocks.

# %%
rest = (table.sub(table["R²_1"], axis=0)).div(1 - table["R²_1"], axis=0).groupby("model", sort=False).mean()
asks = ["rank 16, of degree 2", "neurons for 90 % of it", "rank for 90 % of it"]
asks = [f"rest by degree {k}" for k in range(2, degree + 1)] + asks + ["R² fresh, degree 1 and 2", "spread"]
learned = pd.DataFrame({"the paper": "not asked"}, asks)
for name in run.models:
    new, old = fresh[name, middle[name]], spectra[name, middle[name]]
    share = ", ".join(f"{probes[name, block][16]:.2f}" for block in chosen[name])
    found = [", ".join(str(reach[name, block][i]) for block in chosen[name]) for i in (0, 1)]
    moved = [f"{new['r2'][0]:.2f}, {new['r2'][1]:.2f}", f"{new['spread']:.2f} → {old['spread']:.2f}"]
    learned[name] = [*rest.loc[name].iloc[1:].round(2), share, *found, *moved]
learned  # lists are the blocks in `chosen`

# %%
results = {name: {"blocks": [], "checks": {}, "fresh": fresh[name, middle[name]]["r2"]} for name in run.models}
for (name, block), found in spectra.items():
    results[name]["blocks"].append({"block": block} | {key: found[key] for key in found if key != "sizes"})
for (name, block), found in checks.items():
    curves = {kernel: [vars(one) for one in found[kernel]] for kernel in shapes if kernel in found}
    sets = {key: {"r2": found[key].r2, "sizes": found[key].sizes} for key in ("loudest", "products") if key in found}
    results[name]["checks"][block] = curves | sets | {"reach": reach[name, block][0], "probe": probes[name, block]}
for (name, block), curve in many.items():
    results[name].setdefault("streamed", {})[block] = [vars(one) for one in curve]
tolerance = {"low": 0.01, "high": 0.01, "degree 2": 0.02, "degree 3": 0.02, "Gaussian": 0.02, "probe": 0.1, "reach": 2}
run.save({"models": results, "planted": placed, "steps_down": falls}, tolerance)

# %% [markdown]
# - *What degree?* Read "rest by degree 2" and "3": the share of what the line leaves, explained once squares, then
#   cubes, are let in. Where *all products* or *each free* lies above *pooled*, the true share is larger still.
# - *How many products?* Read "neurons" and "rank for 90 % of it": 90 % of what all neurons' squares reach, by the
#   loudest of them (the first count tried), and by the probes of notebook 03. Few points gained say something of rank.
# - *Is the block what Hermite says?* Only if inputs are Gaussian. The misses have a sign: positive where the real block
#   is straighter than its weights and covariance alone would make it.

# %% [markdown]
# ## Exercises
#
# **1 (warm-up).** GELU is $z\,\Phi(z)$, and $\Phi(z) - \tfrac12$ is odd. Which of the degrees 1 to 5 are missing from
# its Hermite expansion when $z$ has mean 0? Then why do the real blocks have a cubic part?

# %%
absent = None  # a set of degrees, as in {2, 4}

if absent is not None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    terms = torch.stack(hermite(torch.tensor(nodes), 5)) @ (torch.tensor(weights) * gelu(torch.tensor(nodes)))
    assert absent == {k for k in range(1, 6) if abs(terms[k]) < 1e-9}, "split GELU into an odd and an even part"

# %% [markdown]
# **2 (harder).** Feed the block Gaussian inputs of the same mean and covariance, 20,000 of them, and measure its
# spectrum. Does Hermite's prediction hold now?

# %%
gaussian_r2 = None  # of `hidden(model, block)`, x drawn with the mean and covariance of sum(kept.train)

if gaussian_r2 is not None:
    assert np.allclose(gaussian_r2, predicted(hidden(model, block), sum(kept.train), degree), atol=0.03), "whose rows?"
