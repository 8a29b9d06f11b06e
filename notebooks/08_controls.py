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
# **Question.** Every model has a profile of $R^2_{\mathrm{lin}}$ over its blocks. Who made it: the architecture, the
# trained weights, the inputs those weights are fed, the training text, or chance?
#
# **Answer in one line.** Change one at a time, share out what moves by an analysis of variance, read the last table.
#
# **You need** notebook 02; eigenvectors, analysis of variance. **Time** ten minutes to read, two to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded, offline), or paper (from the Hub)
seeds = 5  # random initialisations per model
thorough: bool | None = None  # True: intervals for all controls, all blocks three-way; None: so up to width 256

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import howlinear as hl
from howlinear import nanos, notebooks, style
from howlinear.capture import describe
from howlinear.controls import chance_floor, effective_support, permuted, random_profiles, recovered, redrawn, respond
from howlinear.hermite import predicted
from howlinear.hidden import hidden
from howlinear.transplants import Colour, gaussian, recoloured, standardised, transplants
from howlinear.variance import anova

run = notebooks.start("08_controls", profile)
names, first = list(run.models), next(iter(run.models))
captures = {name: run.capture(name) for name in names}
depth, width = len(captures[first].blocks), captures[first].blocks[0].sample.x.shape[1]
thorough = width <= 256 if thorough is None else thorough
print("models:", ", ".join(names), "· text:", run.corpora[0], "· width", width, "·", run.sample, "rows per block")

# %% [markdown]
# ## Predict first
#
# 1. Keep a trained block's weights, but shuffle the entries of each matrix. More linear than before, or less?
# 2. Feed a trained block normal noise with the mean and the covariance of its real inputs. More linear, or less?
# 3. Train the same architecture twice on the same text, from two seeds. Then once more on another text. Then another
#    architecture. Order the three changes by how far they move the profile.

# %% [markdown]
# ## Idea
#
# A profile has two parents: a block's **weights** and the **inputs** they meet. Inputs have two sides: a *colour* (mean
# and covariance, all that least squares sees of $x$) and a *shape* (all else). So keep the weights, change the inputs:
#
# - *normal*: rows drawn with the right colour and no shape at all;
# - *turned*: the block's own rows, whitened, turned at random and coloured again: no direction means what it meant;
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
# | whiten | $z = (x - \mu_A)\, D V \Lambda^{-1/2}$, with $D$ = 1 / spread, correlation $V \Lambda V^\top$ | `Colour` |
# | recolour | $x' = \mu_B + z\, Q\, \Lambda_B^{1/2} V_B^\top D_B^{-1}$ | `recoloured` |
# | disorder | $W \to$ entries permuted; $U S V^\top \to U' S V'^\top$ with random $U', V'$ | `permuted`, `redrawn` |
# | closed form | slope $W^* = \mathrm E[\partial y / \partial x]$; variance: Hermite | `hermite.predicted` |
# | shares | sums of squares of a balanced design, in each block, added over blocks | `anova` |
#
# Covariances leave the turn $Q$ open; we take the one nearest to none. Two models trained apart share no directions,
# so a transplant is also a turn, and *turned* is its control. On normal inputs the best map is the *mean slope*
# (Stein's lemma), and Hermite's expansion gives the outputs' variance: $R^2_{\mathrm{lin}}$ needs no rows there.
# All fits use the stored sample, held out by document; it is smaller than notebook 02's rows, so compare numbers
# within this notebook.


# %%
def controls_of(kept, ffn, fresh):
    train, x, own = sum(kept.train), kept.sample.x, Colour.of(sum(kept.train))
    cases = {"own": (x, ffn), "normal": (gaussian(own, len(x)), ffn)}
    cases |= {"turned": (recoloured(x, own, own, turn=0), ffn), "standardised": (standardised(x, train), ffn)}
    cases |= {"permuted": (x, permuted(ffn)), "redrawn": (x, redrawn(ffn)), "fresh": (x, fresh)}
    answers = {name: (x, respond(ffn, x), kept.sample) for name, (x, ffn) in cases.items()}
    return {name: recovered(*rows, thorough or name == "own") for name, rows in answers.items()}


# %% [markdown]
# ## Run
#
# First each model by itself: its own rows and weights, six controls, and the whole model at random initialisations
# (there the random blocks also feed one another).

# %%
ffns, fresh, rows_of, forms = {}, {}, [], {}
for name in names:
    model = run.model(name)
    ffns[name], newborn = ([site.output for site in hl.sites(each)] for each in (model, hl.untrained(model)))
    fresh[name] = random_profiles(model, captures[name].rows, seeds, run.rows // run.sample)  # about as many rows
    for block, ffn in enumerate(ffns[name]):
        kept = captures[name].blocks[block]
        for control, found in controls_of(kept, ffn, newborn[block]).items():
            rows_of.append((name, block, control, found.r2, found.r2_low, found.r2_high, found.rank, found.rows_train))
        forms[name, block] = float(predicted(hidden(model, block), sum(kept.train), 1)[0])
columns = ["model", "block", "control", "r2", "low", "high", "rank", "train"]
scores = pd.DataFrame(rows_of, columns=columns).set_index(["model", "block", "control"])
table = scores.r2.unstack("control")[scores.index.unique("control")]
table.groupby("model", sort=False).mean().round(2)

# %% [markdown]
# Does the closed form agree with the fit on normal rows? A fit on $n$ rows of rank $r$ pays for its weights with a
# held-out residual about $1 + r/(n - r - 2)$ times too large; *priced* takes that into account.

# %% tags=["nbval-check-output"]
normal = scores.xs("normal", level="control")
exact = np.array([forms[key] for key in normal.index])
price = 1 + normal["rank"] / (normal.train - normal["rank"] - 2)
gap, priced = (float((normal.r2 - found).abs().max()) for found in (exact, 1 - (1 - exact) * price))
print(f"{len(forms)} blocks; largest gap of fit and closed form: {gap:.2f}, priced {priced:.2f}")

# %% [markdown]
# **The chance floor.** Deal the outputs to the inputs at random and there is nothing to explain. In sample, least
# squares explains $r / (n - 1)$ all the same. That is why an in-sample figure misleads, and most of all at large width.

# %% tags=["nbval-check-output"]
sample = captures[first].blocks[depth // 2].sample
sizes = sorted({min(factor * width, int((~sample.test).sum())) for factor in (2, 4, 16, 64)})
floors = [chance_floor(sample, rows) for rows in sizes]
print(pd.DataFrame(floors).round(2).to_string(index=False))

# %% [markdown]
# **What a referee asked for.** What goes into each block: rank and condition number of the inputs, effective rank (how
# many directions carry the variance), dynamic range (loudest feature over the median one), and *effective support*:
# the share of rows that carry the variance, 1 if all rows lie equally far out, near 0 if a few rows do alone.

# %%
inputs = {}
for name, block in product(names, range(depth)):
    kept = captures[name].blocks[block]
    support = {"support_in": effective_support(kept.sample.x), "support_out": effective_support(kept.sample.y)}
    inputs[name, block] = vars(describe(kept)) | support
inputs = pd.DataFrame(inputs).T.rename_axis(["model", "block"]).drop(columns=["null", "second"])
inputs["r2"] = table["own"]
rho = inputs.groupby("model", sort=False).corr("spearman")["r2"].unstack()[inputs.columns[:-1]].reindex(names)
print("Spearman ρ with R²_lin over blocks:")
print(rho.fillna(0).round(1).to_string())
inputs.round(2)

# %% [markdown]
# **Transplants.** For every ordered pair: rows of one model (*shape*), in the mean and covariance of another
# (*colour*), through the weights of a third (*weights*). That referee's experiment is where colour and weights are of
# one model; with all three free we can ask for the colour's share too. Whose profile is it then? We print how far, for
# two different models, the curve lies from that of the weights' owner, from that of the inputs' owner, and from the
# same weights on *normal* rows or on their own rows *turned*.

# %%
free, mixed = range(0, depth, 1 if thorough else 3), []
for block in range(depth):
    kept = [captures[name].blocks[block] for name in names]
    mixed.append(transplants(kept, [ffns[name][block] for name in names], block in free))
mixed = np.array(mixed)  # (block, shape, colour, weights)
pairs = np.einsum("bijj->bij", mixed)  # (block, rows of, colour and weights of)

# %% tags=["nbval-check-output"]
foreign = [(a, b) for a, b in product(range(len(names)), repeat=2) if a != b]
aims = {"weights' owner": ("own", 1), "inputs' owner": ("own", 0), "normal": ("normal", 1), "turned": ("turned", 1)}
nearness = {
    aim: float(np.mean([np.abs(pairs[:, *pair] - table[kind][names[pair[end]]]) for pair in foreign]))
    for aim, (kind, end) in aims.items()
}
two_way, three_way = anova(pairs, ("inputs", "weights")), anova(mixed[free], ("shape", "colour", "weights"))
print("mean |gap| from a transplant to …", {key: round(gap, 2) for key, gap in nearness.items()})
print("two-way:  ", {key: round(effect.share, 2) for key, effect in two_way.items()})
print("three-way:", {key: round(effect.share, 2) for key, effect in three_way.items()})

# %% [markdown]
# ## Figure: trained against random
#
# **How to read it.** One panel a model. Heavy line: the trained model with its 95 % interval. Band: the whole model at
# random initialisations, from the lowest to the highest seed. Thin lines: the trained model's own inputs through
# permuted, redrawn or fresh weights. Where a thin line lies on the heavy one, that much disorder does not matter. Below
# 0 there is nothing linear to find, and the fit pays for its weights: the chance floor.

# %%
figure, axes = plt.subplots(1, len(names), figsize=(style.PAGE, 2.5), sharey=True, squeeze=False)
thin, blocks = {"permuted": ("x", "-"), "redrawn": ("+", "--"), "fresh": ("", ":")}, np.arange(depth)
for axis, letter, name in zip(axes[0], "abcdef", names, strict=False):
    own = scores.loc[name].xs("own", level="control")
    axis.fill_between(blocks, fresh[name].min(0), fresh[name].max(0), color=style.ACCENT, lw=2, label="random models")
    for control, (marker, line) in thin.items():
        axis.plot(blocks, table[control][name], marker=marker, ls=line, color=style.GREY, lw=0.8, label=control)
    bars = {"yerr": [own.r2 - own.low, own.high - own.r2], "capsize": 1.5, "elinewidth": 0.7}
    axis.errorbar(blocks, own.r2, **bars, **style.look(name) | {"label": "trained", "lw": 1.8})
    axis.set(xlabel="block", xticks=blocks[::2])
    axis.set_title(f"({letter}) {name}", loc="left")
axes[0, 0].set(ylabel="$R^2_{\\mathrm{lin}}$, held out")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
run.figure(figure, "random")
plt.show()

# %% [markdown]
# ## Figure: whose profile is it?
#
# **How to read it.** One panel for each owner of weights. Coloured: that block fed with each model's rows, all in the
# owner's mean and covariance; its own rows are the heavy line. Black: normal rows (circles: the closed form). Grey: its
# own rows, turned. Last panel: what tells all combinations apart, with 95 % intervals. An interaction (×) is what
# neither of the two does alone: whether they *fit together*.

# %%
figure, axes = plt.subplots(2, len(names) // 2 + 1, figsize=(style.PAGE, 4.4), squeeze=False)
for owner, (axis, name) in enumerate(zip(axes.flat, names, strict=False)):
    for giver, other in enumerate(names):
        look = style.look(other) | {"label": f"rows of {other}", "lw": 2 if giver == owner else 0.9}
        axis.plot(blocks, pairs[:, giver, owner], **look)
    axis.plot(blocks, table["normal"][name], color="black", ls=":", label="normal rows")
    axis.plot(blocks, table["turned"][name], color=style.GREY, ls="--", marker="x", label="own rows, turned")
    axis.plot(blocks, [forms[name, block] for block in blocks], "o", mfc="none", color="black", label="closed form")
    axis.set(xlabel="block", xticks=blocks[::2], ylabel="$R^2_{\\mathrm{lin}}$, held out")
    axis.set_title(f"({'abcdef'[owner]}) weights of {name}", loc="left")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
axis, bars = axes.flat[len(names)], {"fmt": "o", "capsize": 1.5, "lw": 0.8}
found = list(three_way.values())[::-1]
axis.errorbar(
    [e.share for e in found], list(three_way)[::-1], xerr=np.transpose([e.reach for e in found]), color="black", **bars
)
axis.set(xlabel="share of the variance between combinations", xlim=(-0.02, 1))
axis.yaxis.tick_right()
axis.set_title(f"({'abcdefg'[len(names)]}) sources", loc="left")
run.figure(figure, "transplant")
plt.show()

# %% [markdown]
# ## Figure: twins that differ in one thing only
#
# Eight small models: two architectures × two training texts × two seeds, all measured on the same rows. A seed is a
# mere label, so all it takes part in counts as *seed*: the run. *Shape only*: each profile less its mean over blocks.
# **How to read it.** (a) Colour is the architecture (*family*), full or dotted the text; two lines alike differ in the
# seed. (b) Shares of what tells the eight apart, on each text, as measured (filled) and in shape only (open). The
# interval draws blocks with replacement; neighbours are alike, so it is on the narrow side.

# %% tags=["nbval-check-output"]
twins, main, factors = nanos.load_twins(), nanos.TEXTS[0], ("family", "text", "seed")
eight, variance, gaps = {}, {}, {}
for text in nanos.TEXTS:
    eight[text] = np.array([twins[twin]["profiles"][text]["r2"] for twin in nanos.TWINS]).T.reshape(-1, 2, 2, 2)
    variance[f"{text}, as measured"] = anova(eight[text], factors, within="seed")
    variance[f"{text}, shape only"] = anova(eight[text] - eight[text].mean(0), factors, within="seed")
    gaps[text] = {name: float(np.abs(np.diff(eight[text], axis=i)).mean()) for i, name in enumerate(factors, 1)}
    print(f"on {text}, mean |gap| of two that differ in:", {name: round(gap, 3) for name, gap in gaps[text].items()})
said = {v: {n: f"{e.share:.2f} ({e.low:.2f}–{e.high:.2f})" for n, e in found.items()} for v, found in variance.items()}
print("shares of what tells the eight apart:", pd.DataFrame(said).to_string(), sep="\n")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.8), width_ratios=[1.2, 1])
for twin, curve in zip(nanos.TWINS, eight[main].reshape(len(eight[main]), -1).T, strict=True):
    label = f"{twin.family}, trained on {twin.text}" if twin.seed == nanos.SEEDS[0] else None
    left.plot(curve, **style.look(twin.family) | {"linestyle": "-" if twin.text == main else ":", "label": label})
left.set(xlabel="block", ylabel="$R^2_{\\mathrm{lin}}$, held out", xticks=range(0, len(eight[main]), 2))
left.set_title(f"(a) eight twins, measured on {main}", loc="left")
left.legend()
for shift, (view, found) in zip((0.24, 0.08, -0.08, -0.24), variance.items(), strict=True):
    look = {"mfc": "white" if "shape" in view else None, "color": "black" if view.startswith(main) else style.ACCENT}
    share, spread = [e.share for e in found.values()], np.transpose([e.reach for e in found.values()])
    right.errorbar(share, np.arange(4)[::-1] + shift, xerr=spread, **bars, **look, label=view)
right.set(xlabel="share of the variance between twins", xlim=(-0.02, 1), yticks=range(4), yticklabels=list(found)[::-1])
right.set_title("(b) what moves the profile", loc="left")
right.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))
_ = run.figure(figure, "twins")

# %%
own = scores.xs("own", level="control").unstack("model")
beyond = {name: (own.low[name] > fresh[name].max(0)) | (own.high[name] < fresh[name].min(0)) for name in names}
outside = {name: int(found.sum()) for name, found in beyond.items()}
numbers = {control: {name: table[control][name].tolist() for name in names} for control in table}
numbers |= {"fresh": fresh, "outside_fresh": outside, "closed": [gap, priced], "pairs": pairs, "nearness": nearness}
numbers |= {f"own_{end}": own[end].to_dict("list") for end in ("low", "high")}
numbers |= {"floors": [vars(floor) for floor in floors], "inputs": inputs.to_dict("list"), "twin_gaps": gaps}
numbers |= {"twins": {twin.name: found["profiles"] for twin, found in twins.items()}}
shares = {"two_way": two_way, "three_way": three_way} | variance
run.save(numbers | {key: {k: vars(e) for k, e in found.items()} for key, found in shares.items()}, {"inputs": 0.02})

# %% [markdown]
# ## What we learned


# %%
def ranked(effects):
    return "; ".join(f"{key} {e.share:.0%}" for key, e in sorted(effects.items(), key=lambda item: -item[1].share))


claims = [
    ("training makes it", "argued from two models", f"blocks (of {depth}) outside all random models: {outside}"),
    ("weights, not inputs", "not tested", "two-way: " + ranked(two_way)),
    ("… colour set free", "not tested", "three-way: " + ranked(three_way)),
    *(("not architecture", "argued", f"twins on {text}: " + ranked(variance[f"{text}, as measured"])) for text in gaps),
    ("falls if two trainings match", "no such pair", f"two texts, read on {main}: mean |gap| {gaps[main]['text']:.3f}"),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - Your first two predictions: the table of means under **Run**. The two disorders need not push the same way: what
#   counts is how far apart a unit's pre-activations lie, and which units act together.
# - Where the × terms lead, neither parent has the profile alone: it lies in how weights and inputs fit together.
# - Your third: the shares. Two that differ in text are two runs as well, so noise alone gives the seed four of seven
#   parts. Eight small models are few, and the shares are theirs.
#
# ## Exercises
#
# Solutions are in `solutions/08_controls.py`; try first.
#
# **1 (warm-up).** How many rows give shuffled pairs, at the rank behind `floors[0]`, an in-sample $R^2$ of 0.01?

# %%
enough = None  # hint: expected_in_sample is rank / (rows − 1)

if enough is not None:
    rank = round(floors[0].expected_in_sample * (floors[0].rows - 1))
    assert np.isclose(rank / (enough - 1), 0.01), "one row goes to the mean"

# %% [markdown]
# **2 (medium).** Quieten the inputs of the first model's first block: a tenth of the spread, the same mean. What is
# $R^2_{\mathrm{lin}}$ on normal rows by the closed form, and where does it go in the limit?

# %%
quiet = None  # hint: copy the moments, change sxx, call predicted

if quiet is not None:
    assert forms[first, 0] < quiet < 1, "spread enters a covariance squared"

# %% [markdown]
# **3 (harder).** Turn the rows of the first model's middle block with five seeds. Does any come near its own rows?

# %%
turns = None  # a list of five R²

if turns is not None:
    assert len(set(turns)) == 5, "a seed each"
    print("own", round(table["own"][first, depth // 2], 2), "turned", np.round(turns, 2))
