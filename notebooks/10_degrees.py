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
# **You need** notebooks 02 and 03, and its results; Hermite polynomials are introduced here. **Time** twenty minutes to
# read, two to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
degree = 4  # the highest degree of the spectrum
held = 64_000_000  # inputs held in memory at a time, rows × width × blocks: more means fewer passes
kernel_rows = [750, 1500, 3000]  # train rows of the kernels; time grows with the cube of the last, memory its square
counts = [0, 16, 32, 64, 128, 256]  # neurons that weigh their squares anew, the loudest first; all are added
directions = [0, 8, 16, 32, 48]  # leading directions all of whose products are taken

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import howlinear as hl
from howlinear import notebooks, paths, record, style
from howlinear.capture import capture
from howlinear.degrees import degrees, hermite, hidden, loudest
from howlinear.hermite import predicted
from howlinear.kernels import gaussian, learning_curve, polynomial, products

run = notebooks.start("10_degrees", profile)
first = next(iter(run.models))
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. The line explains a share $R^2_1$ of the variance. Let the model square things, then cube them. By which degree is
#    nine tenths of the *rest* explained?
# 2. A rank-16 probe has sixteen products. What share of all that is quadratic will it reach: most, half, little?
# 3. From a block's weights and the covariance of its inputs you can compute the whole spectrum, *if* the inputs are
#    Gaussian. Will the real block be more linear than that, or less?

# %% [markdown]
# ## Idea
#
# "Higher-order or distributed" is the open end of the paper. The two are different questions, *what degree?* and *how
# many products?*, and we can ask them one at a time.
#
# Degree first. A block bends nothing but its own pre-activations $z = Ax + c$. In each neuron, swap the activation for
# the polynomial of degree $k$ that lies nearest to it on real text. What comes out is a polynomial of degree $k$ in
# $x$, so the share it explains is a *lower bound* on what any polynomial of that degree could. SwiGLU multiplies, and
# counts the same way: $u \cdot g^{k-1}$ has degree $k$.
#
# It can be slack: a polynomial may use products that no neuron makes. So we check it against *all* products, and
# against a kernel that bounds no degree. And Hermite's expansion predicts the spectrum without seeing a row.

# %% [markdown]
# ## Method
#
# $$ a(z) \approx q_k(z) = \sum_{j \le k} c_j\, \mathrm{He}_j(\hat z), \qquad
#    R^2_k = R^2 \text{ of least squares on } x,\; V^\top(q_2 - q_1),\; \dots,\; V^\top(q_k - q_{k-1}) $$
#
# | what | function |
# |---|---|
# | the block taken apart, $y = V^\top a(Ax + c) + b$ | `degrees.hidden` |
# | the nearest $q_k$ of each neuron, on train rows | `degrees.features` |
# | $R^2_1 \dots R^2_4$, held out, with jackknife intervals | `degrees.degrees` |
# | the squares of the $r$ loudest neurons, each weighed anew | `degrees.loudest` |
# | all products of $k$ leading directions | `kernels.products` |
# | all products of all inputs, $(1 + x \cdot x')^2$; degree 3; Gaussian | `kernels.learning_curve` |
# | $E[a\,\mathrm{He}_k]$ and $\rho^k$: the spectrum under Gaussian inputs | `hermite.predicted` |
#
# Features come in nested sets, so one Cholesky factor serves every degree (`nested.nested`). On train rows a degree can
# only add; held out, a step down means overfitting, and we print how many there are. Now the method must tell degrees
# apart where we know them: we keep a block's inputs and weights, and plant *pure* teachers, all neurons He$_D$.


# %%
def rows_of(model, rows, blocks):
    size = max(1, held // (rows.ids.numel() * model.config.hidden_size))
    for start in range(0, len(blocks), size):
        yield from capture(model, rows, blocks[start : start + size], sample=rows.ids.numel()).items()


def planted(kept, block, power):
    mean, spread = block.spread(sum(kept.train))
    teacher = replace(block, activation=lambda z: hermite((z - mean.to(z)) / spread.to(z), power)[power], up=None)
    return replace(kept, sample=replace(kept.sample, y=teacher(kept.sample.x.double()).float())), teacher


stored = {name: run.capture(name) for name in run.models}
depth = {name: len(stored[name].blocks) for name in run.models}
chosen = {name: sorted({0, depth[name] // 2, depth[name] - 1}) for name in run.models}
middle = {name: depth[name] // 2 for name in run.models}
model = run.model(first)
_, kept = next(rows_of(model, stored[first].rows, [middle[first]]))
teachers = [planted(kept, hidden(model, middle[first]), power) for power in range(1, degree + 1)]
placed = np.array([degrees(taught, teacher, degree).r2 for taught, teacher in teachers])
columns = [f"R²_{k}" for k in range(1, degree + 1)]

# %% tags=["nbval-check-output"]
exact = all(placed[d, k] > 0.999 for d in range(degree) for k in range(d, degree))
print("teacher of degree D (row) explained up to degree k:")
print(pd.DataFrame(placed, range(1, degree + 1), columns).round(2).to_string())
print("from its own degree on, every teacher is wholly explained:", exact)

# %% [markdown]
# Left of its own degree a teacher would score 0 if inputs were Gaussian. What stands there says how far they are not.
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
        found |= {"degree 3": learning_curve(kept, polynomial(3), kernel_rows)}
        found |= {"Gaussian": learning_curve(kept, gaussian, kernel_rows), "products": products(kept, directions)}
    return found


spectra, fresh, checks = {}, {}, {}
for name in run.models:
    model, rows = run.model(name), stored[name].rows
    for block, kept in rows_of(model, rows, list(range(depth[name]))):
        spectra[name, block] = described(kept, hidden(model, block))
        if block in chosen[name]:
            checks[name, block] = checked(kept, hidden(model, block), block == middle[name])
    model = hl.untrained(model)
    for block, kept in rows_of(model, rows, chosen[name]):
        fresh[name, block] = described(kept, hidden(model, block))

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
# expansion predicts for Gaussian inputs of the same covariance.

# %%
figure, axes = plt.subplots(1, len(run.models), figsize=(style.PAGE, 2.6), sharey=True, squeeze=False)
for axis, name in zip(axes[0], run.models, strict=True):
    mine = [spectra[name, block] for block in range(depth[name])]
    r2, low, high, hers = (np.array([found[key] for found in mine]) for key in ("r2", "low", "high", "hermite"))
    for k in range(degree):
        drawn = {"color": plt.get_cmap("viridis")(0.9 * k / max(degree - 1, 1)), "marker": "osD^v<"[k % 6]}
        bars = np.array([r2[:, k] - low[:, k], high[:, k] - r2[:, k]])
        axis.errorbar(range(depth[name]), r2[:, k], bars, lw=1, elinewidth=0.7, label=f"degree {k + 1}", **drawn)
        axis.plot(range(depth[name]), hers[:, k], ls=(0, (3, 1.5)), lw=0.8, color=drawn["color"])
    axis.set(xlabel="block", xticks=range(0, depth[name], 2))
    axis.set_title(f"({'abcdefgh'[list(run.models).index(name)]}) {name}", loc="left")
axes[0, 0].set(ylabel="held-out $R^2$", ylim=(max(-1, min(-0.02, table.min().min() - 0.02)), 1.02))
axes[0, 0].plot([], [], ls=(0, (3, 1.5)), lw=0.8, color=style.GREY, label="Hermite, Gaussian inputs")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=degree + 1, columnspacing=1.2)
run.figure(figure, "spectrum")
plt.show()

# %% [markdown]
# ## Figure: how tight is the lower bound?
#
# **How to read it.** The middle block of each model. Curves: line and kernel together, against the train rows that the
# kernel had; they can only grow towards their ceilings, and one that still climbs at its right end has not reached it.
# Horizontal: the neurons' degree-2 bound, pooled (dashed) and with every neuron's square weighed anew (dotted), both
# from all train rows. A curve above them shows products that no neuron makes.

# %%
figure, axes = plt.subplots(1, len(run.models), figsize=(style.PAGE, 2.5), sharey=True, squeeze=False)
shapes = {"degree 2": ("o-", "#0072B2"), "degree 3": ("s--", "#D55E00"), "Gaussian": ("^:", "#009E73")}
for axis, name in zip(axes[0], run.models, strict=True):
    found, mine = checks[name, middle[name]], spectra[name, middle[name]]["r2"]
    for kernel, (shape, colour) in shapes.items():
        values, size = [one.r2 for one in found[kernel]], [one.rows for one in found[kernel]]
        bars = np.array([[one.r2 - one.low, one.high - one.r2] for one in found[kernel]]).T
        axis.errorbar(size, values, bars, fmt=shape, color=colour, elinewidth=0.7, label=f"{kernel} kernel")
    axis.axhline(mine[1], color=style.GREY, ls="--", lw=0.9, label="neurons, degree 2")
    axis.axhline(found["loudest"].r2[-1], color="k", ls=":", lw=1, label="neurons' squares, each free")
    axis.set(xlabel="train rows", xscale="log", xticks=kernel_rows, xticklabels=kernel_rows)
    axis.minorticks_off()
    axis.set_title(f"({'abcdefgh'[list(run.models).index(name)]}) {name}, block {middle[name]}", loc="left")
axes[0, 0].set_ylabel("held-out $R^2$")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, columnspacing=1.0)
run.figure(figure, "full")
plt.show()

# %% tags=["nbval-check-output"]
close = table.loc[list(checks), ["R²_2"]].rename(columns={"R²_2": "pooled"})
close["each free"] = [found["loudest"].r2[-1] for found in checks.values()]
close["all products"] = [found["degree 2"][-1].r2 for found in checks.values()]
close["last step"] = close["all products"] - [found["degree 2"][-2].r2 for found in checks.values()]
close["saturated"] = close["last step"] < 0.01
print(close.round(2).to_string())
leading = {name: checks[name, middle[name]]["products"].r2.round(2).tolist() for name in run.models}
print(f"middle block, all products of {directions} leading directions:", leading)

# %% [markdown]
# ## Figure: how many products?
#
# Now the second question. The $r$ loudest neurons' squares are $r$ products of two inputs, which a probe of rank $r$
# could find, so its best fit reaches at least as far.
#
# **How to read it.** Middle blocks. Up: share of the neurons' quadratic step that $r$ products reach. The star is the
# probe of notebook 03, free to find better products. Steep at first means low rank; climbing to the end, distributed.

# %%
bilinear = record.load(paths.results(profile) / "03_bilinear.json")["models"]
gains = {(name, row["block"]): row["gain"] for name in run.models for row in bilinear[name]}
figure, axis = plt.subplots(figsize=(style.COLUMN, 2.4))
reach, reached = {}, {}
for name, block in checks:
    r2, lengths = checks[name, block]["loudest"].r2, checks[name, block]["loudest"].sizes
    used, share = np.array(lengths) - lengths[0], (r2 - r2[0]) / (r2[-1] - r2[0])
    reach[name, block] = int(used[np.argmax(share >= 0.9)])
    reached[name, block] = gains[name, block] / (r2[-1] - r2[0])
    if block == middle[name]:
        look = style.look(name)
        axis.plot(used[1:], share[1:], **look)
        axis.plot(16, reached[name, block], marker="*", ms=9, color=look["color"], mec="k", mew=0.5, ls="none")
axis.plot([], [], marker="*", ms=9, color="w", mec="k", mew=0.5, ls="none", label="rank-16 probe")
axis.set(xscale="log", xlabel="products", xticks=used[1:], xticklabels=used[1:])
axis.set(ylabel="share of the quadratic step", ylim=(0, 1.05))
axis.minorticks_off()
axis.legend()
run.figure(figure, "rank")
plt.show()

# %% [markdown]
# ## What we learned
#
# And training? The same architecture with fresh weights, on the same tokens. *Spread* is the median standard deviation
# of a pre-activation: GELU and SiLU bend on a scale of about one, so a small spread sees only the curve's start.

# %%
before = pd.DataFrame([found["r2"] for found in fresh.values()], pd.MultiIndex.from_tuples(fresh), columns)
after = table.loc[list(fresh)]
moved = before.add_suffix(", fresh").assign(spread=[found["spread"] for found in fresh.values()])
moved["spread, trained"] = [spectra[key]["spread"] for key in fresh]
moved["rest by degree 2"] = (before["R²_2"] - before["R²_1"]) / (1 - before["R²_1"])
moved["rest by degree 2, trained"] = (after["R²_2"] - after["R²_1"]) / (1 - after["R²_1"])
print(moved.round(2).to_string())

# %%
rest = (table.sub(table["R²_1"], axis=0)).div(1 - table["R²_1"], axis=0).groupby("model", sort=False).mean()
learned = pd.DataFrame({"the paper": "not asked"}, [f"rest by degree {k}" for k in range(2, degree + 1)])
learned.loc["rank 16, of degree 2"] = "a few points of R²"
learned.loc["products for 90 % of it"] = "not asked"
for name in run.models:
    found = [", ".join(f"{one[name, block]:.3g}" for block in chosen[name]) for one in (reached, reach)]
    learned[name] = [*rest.loc[name].iloc[1:].round(2), *found]
print("lists are blocks", chosen)
learned

# %%
results = {name: {"blocks": [], "checks": {}, "fresh": {}} for name in run.models}
for (name, block), found in spectra.items():
    results[name]["blocks"].append({"block": block} | {key: found[key] for key in found if key != "sizes"})
for (name, block), found in checks.items():
    curves = {kernel: [vars(one) for one in found[kernel]] for kernel in shapes if kernel in found}
    sets = {key: {"r2": found[key].r2, "sizes": found[key].sizes} for key in ("loudest", "products") if key in found}
    results[name]["checks"][block] = curves | sets | {"reach": reach[name, block], "probe": reached[name, block]}
    results[name]["fresh"][block] = {key: fresh[name, block][key] for key in ("r2", "hermite", "spread")}
tolerance = {"low": 0.01, "high": 0.01, "degree 2": 0.02, "degree 3": 0.02, "Gaussian": 0.02, "probe": 0.1, "reach": 2}
run.save({"models": results, "planted": placed, "steps_down": falls}, tolerance)

# %% [markdown]
# - *What degree?* Read "rest by degree 2" and "by degree 3": the share of what the line leaves that is explained once
#   squares, then cubes, are let in. Both are lower bounds. Where *all products* or *each free* lies above *pooled*, the
#   true degree-2 share is larger still, and where *saturated* says False, we have not seen its end.
# - *How many products?* Read "products for 90 % of it" beside the rank of the probe. A gain of a few points is then a
#   statement about rank, not about degree. (90 % of what the neurons' squares reach, on our grid of numbers; a search
#   for better products, as the star shows, needs fewer.)
# - *Is the block what Hermite says?* Only if its inputs are Gaussian. The misses printed above have a sign: positive
#   where the real block is straighter than its weights and covariance alone would make it.
# - The spectrum's intervals leave out document folds on both sides; the kernels' only held-out ones.

# %% [markdown]
# ## Exercises
#
# **1 (warm-up).** GELU is $z\,\Phi(z)$, and $\Phi(z) - \tfrac12$ is odd. Which of the degrees 1 to 5 are missing from
# its Hermite expansion when $z$ has mean 0? Then why do the real blocks have a cubic part?

# %%
absent = None  # a set of degrees, as in {2, 4}

if absent is not None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    bends = torch.nn.functional.gelu(torch.tensor(nodes)).numpy() * weights
    terms = hermite(torch.tensor(nodes), 5)
    assert absent == {k for k in range(1, 6) if abs(terms[k].numpy() @ bends) < 1e-9}, "split GELU into odd and even"
    print("right")

# %% [markdown]
# **2 (medium).** Shuffle the rows of a block's outputs. What must $R^2_4$ be, and what is it? (`model`, `block` and
# `kept` still hold the last that we looked at; `replace(kept.sample, y=…)` gives it other outputs.)

# %%
shuffled_r2 = None  # R² of the highest degree on shuffled outputs

if shuffled_r2 is not None:
    assert shuffled_r2 < 0.02, "nothing can be explained: are the rows really in another order?"
    print("right:", round(shuffled_r2, 3))

# %% [markdown]
# **3 (harder).** Feed the block Gaussian inputs of the same mean and covariance, 20,000 of them, and measure its
# spectrum. Does Hermite's prediction hold now?

# %%
gaussian_r2 = None  # R²_1 … R²_4 of `hidden(model, block)` on Gaussian inputs

if gaussian_r2 is not None:
    wanted = predicted(hidden(model, block), sum(kept.train), degree)
    assert np.abs(np.array(gaussian_r2) - wanted).max() < 0.03, "draw x with the mean and covariance of sum(kept.train)"
    print("right:", np.round(gaussian_r2, 2), "predicted:", np.round(wanted, 2))
