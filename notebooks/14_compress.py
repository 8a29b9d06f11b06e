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
# # 14 · How small can the feed-forward blocks get without training?
#
# **Question.** The paper suggests replacing whole blocks by lines. Other methods drop layers or hidden units. If a
# model must lose a tenth or a fifth of its parameters, and nothing may be trained, which method costs least?
#
# **You need** notebook 06; least squares. **You learn** to compare ways to make a model smaller at the same budget, and
# to tell which part of a gain is due to the choice and which to the fit. **Time** 30 minutes to read, 4 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
shares = [0.9, 0.8]  # shares of all parameters that a smaller model may keep
methods = [
    "own units",
    "lines by price",
    "ShortGPT",
    "LLM-Drop, FFN",
    "magnitude",
    "Wanda",
    "FLAP",
    "GRAIL on Wanda",
    "LLM Surgeon",
]  # compressors that race; `howlinear.ideas.compression.race` lists them all
shown: list or None = None  # which of them the figure shows; None: all
fit_rows = 12_288  # token rows of the main text; everything is fitted on three quarters of them
limit_rows = [6144]  # other numbers of token rows to fit own units on, fewer than `fit_rows` or more
priced = 48  # sequences for the backward pass that prices lines
texts = 1  # how many of the profile's texts perplexity is measured on, the main one first
cost_rows: int or None = 2048  # held-out token rows of the main text; None: all
other_rows: int or None = 1024  # held-out token rows of each other text
draws = 1  # of the text to fit on, each with its own seed, for the methods that are healed, at the smallest budget
lengths: list = []  # other numbers of tokens in a sequence to fit on, for the same methods and budget
healed = ["own units", "GRAIL on Wanda"]  # methods whose smaller models are trained a little, at the smallest budget
heal_steps = 60  # steps of Adam, on four sequences each
exchanged: list or None = None  # parts of own units that are exchanged, see `compression.race`; None: all of them

# %%
import pandas as pd
import torch
from IPython.display import display

from howlinear.ideas.compression.race import (
    ABLATIONS,
    COMPRESSORS,
    check_known,
    check_shares,
    choose_shares,
    limits,
    race,
    racers,
    ratios,
    whole_perplexities,
)
from howlinear.models.layers import parameters
from howlinear.notebook.run import start
from howlinear.plots import compress as plots

check_shares(shares)
check_known([*methods, *healed, *(shown or [])], COMPRESSORS, "compressor")
check_known(exchanged or [], ABLATIONS, "part of own units")
run = start("14_compress", profile, model, corpus)
models = {name: run.model(name) for name in run.models}
without = {}  # model → why it has no part in the race
shares_of = {}  # model → shares of all parameters that it can keep
for name, model in models.items():
    try:
        shares_of[name] = choose_shares(model, shares)
    except ValueError as error:
        without[name] = str(error)
models = {name: model for name, model in models.items() if name not in without}
print("models:", ", ".join(models) or "none", "· fitted on", run.corpora[0], "·", fit_rows, "token rows")
for name, reason in without.items():
    print(f"{name} has no part in the race: {reason}")
for name, possible in shares_of.items():
    if possible != shares:
        asked, left = (", ".join(f"{share:.1%}" for share in some) for some in (shares, possible))
        print(f"{name} cannot be made as small as all of {asked} of its parameters: it keeps {left}")

# %% [markdown]
# ## Predict first
#
# 1. A tenth of all parameters must go. Which costs more: dropping a tenth of the layers, or dropping a tenth of the
#    parameters as hidden units, some in every block? By what factor?
# 2. Half of the hidden units of a block have large weights, and half have small ones. Should the latter be dropped?
# 3. Which matters more: *which* units are dropped, or refitting the readout of the others?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# A feed-forward block is $y = V^\top h + b$: $m$ hidden units $h$, read out by $V$ ($m \times d$). To make it smaller,
# you can
#
# - replace the whole block by one **line** (the paper). It has $d^2 + d$ parameters, whatever the size of the block;
# - **drop** whole layers or blocks that hardly turn the residual stream, without a replacement (ShortGPT, LLM-Drop) or
#   with one linear map for a span of layers, merged into the block before (ReplaceMe);
# - drop **hidden units**. They are scored by their weights (*magnitude*), by the norm of their values (*Wanda*), by how
#   much they fluctuate (*FLAP*), or by what is really lost once the others stand in for them (*own units*, ours).
#   *GRAIL* takes any of these scores and refits the readout of the units that stay by ridge regression: least squares
#   with a small penalty on large weights. It goes from the first block to the last, and fits each on the output of the
#   narrowed blocks before it.
#
# The first two give up a whole block or layer at a time. With hidden units, every block gives up the units that it
# needs least, and since units are correlated, the others can stand in for part of what is dropped.

# %% [markdown]
# ## Method
#
# First by hand: four hidden units on four tokens, all read out with weight 1, of which two must go:
#
# - *a* = 1, 3, 1, 3, and *c* is twice *a*;
# - *b* is always 4: loud, but without information;
# - *d* = 0, 0, 1, 1: of small norm, and uncorrelated with the others.
#
# Dropping *a* and *b* loses nothing: a bias of 4 replaces *b*, and *c* read out with weight 1.5 replaces *a*.

# %% tags=["nbval-check-output"]
from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.ideas.compression.compressors import width
from howlinear.ideas.compression.units import eliminate, gram

names = ["a", "b", "c", "d"]
hidden = torch.tensor([[1.0, 4, 2, 0], [3, 4, 6, 0], [1, 4, 2, 1], [3, 4, 6, 1]])
own = AffineMap(torch.ones(4, 1).double(), torch.zeros(1).double())
output = own(hidden.double())
moments = Moments(4).update(hidden)
loud = gram(moments).diagonal().sqrt()
fluctuates = moments.sxx.diagonal() / (moments.n - 1)
scores = pd.DataFrame({"‖h‖, Wanda's score": loud, "Var(h), FLAP's score": fluctuates}, index=names)
print(scores.T.round(1).to_string())


def left(kept, readout):
    return float((readout(hidden[:, kept].double()) - output).square().sum())


wanda, flap = torch.tensor([1, 2]), torch.tensor([0, 2])
print(f"Wanda keeps b, c; error {left(wanda, AffineMap(own.weight[wanda], own.bias)):.0f}")
print(f"the same, readout fitted anew by ridge (GRAIL); error {left(wanda, width.ridge(own, moments, wanda)):.1f}")
print(f"FLAP keeps a, c, with a bias; error {left(flap, width.with_means(own, moments, flap)):.0f}")

# %% [markdown]
# (The error here is a sum over the four tokens.) No score of single units finds the right two: *a* can go only because
# *c* stays. So our method drops one unit at a time and refits the readout of the others each time (exact backward
# elimination).

# %% tags=["nbval-check-output"]
eliminated = eliminate(moments.sxx / moments.n + 1e-9 * torch.eye(4).double(), own.weight)
print("own units go in the order", ", ".join(names[unit] for unit in eliminated.order))
print("mean square error so far:", [round(float(error), 2) for error in eliminated.price[1:]])
stay = eliminated.kept(2)
design = torch.cat([hidden[:, stay].double(), torch.ones(4, 1).double()], dim=1)
anew = torch.linalg.lstsq(design, output).solution
print(f"c and d are read out with {anew[0, 0]:.1f} and {anew[1, 0]:.1f}, and a bias of {anew[2, 0]:.1f}")
print(f"own units keep {', '.join(names[unit] for unit in stay)}; error {left(stay, AffineMap(anew[:2], anew[2])):.0f}")

# %% [markdown]
# In a real model four things are added. Errors are weighted by their cost in the loss, through its gradient's second
# moments (notebook 06), so that what is lost has a *price* in nats per token. The budget is allocated among the blocks
# so that their prices have the least sum. Each readout is fitted with a ridge, chosen by cross-validation between two
# halves of the text. The fourth is an *anchor*. So far every block is fitted as if all others were whole, which in the
# smaller model they are not. So, from the first layer to the last, with $s$ the whole model's residual stream behind
# the layer, $\hat s$ the smaller model's, $h$ the units that stay, and $w$ the cost of an error at the token,
#
# $$ (B, c) = \arg\min \; \mathbb E\, w \lVert (s - \hat s) - B^\top h - c \rVert^2
#    + \lambda \sum_k \operatorname{Var}(h_k) \lVert B_k \rVert^2 $$
#
# is added to the block's readout. A block thus makes up for its own losses, as far as its units can on the inputs that
# they actually get, and for some of the losses of the blocks before it. $B$ is fitted on one half of the text and
# $\lambda$ chosen on the other; where no $B$ helps there, the block stays as it is.
#
# | method | what goes | paper | function of `howlinear.ideas.compression`; rivals in `compressors` |
# |---|---|---|---|
# | own units | units, by what is lost without them | | `own_units.own_units` |
# | lines by R², by price | whole blocks; lines in their place | 2606.19379 | `lines.by_r2`, `by_price` |
# | lines, mended | by price, fitted without massive rows (notebook 12) | | the same, `ordinary=True` |
# | ShortGPT | layers | Men et al. 2024 | `drop.layers` |
# | LLM-Drop | FFNs, or FFNs and attention | He et al. 2024 | `drop.sub_layers` |
# | ReplaceMe | a span of layers; a linear map | Shopkhoev et al. 2025 | `drop.replace_me` |
# | magnitude | units of small weights | | `width.magnitude` |
# | Wanda | units of small norm | Sun et al. 2023 | `width.wanda` |
# | FLAP | units that fluctuate little; a bias | An et al. 2023 | `width.flap` |
# | GRAIL on Wanda, on FLAP | units by that score; ridge | Tang et al. 2026 | `width.wanda_ridge`, `flap_ridge` |
# | LLM Surgeon | units by the loss's curvature, in one shot | van der Ouderaa et al. 2023 | `width.surgeon` |
#
# *Own units, alike* keeps the same number of units in every block, *LLM-Drop, joint* drops attention layers as well,
# and *LS* stands for least squares. (ReplaceMe's authors also train a map for the least angle to the true stream.)
#
# Each is implemented as its paper describes it, without any training. We know of no published numbers for these methods
# on the models raced here, so ours cannot be compared with any. All see the same rows of one text, and all budgets
# count *all* parameters. A method that drops whole blocks or layers cannot fill a budget exactly and ends below it: the
# figure shows the true sizes.
#
# GRAIL is a *closed loop*, as in its authors' code: the moments to which a block is fitted are collected in the model
# whose earlier blocks are already narrowed and refitted. Wanda's scores are collected there too, block after block;
# FLAP's, which compare the units of all blocks, are collected beforehand in the whole model. All other rivals are
# scored and fitted in the whole model.
#
# Our versions have three limits: FLAP prunes attention heads as well, ours only hidden units; ReplaceMe's authors fit
# it on many more rows; and Wanda's authors score each block behind pruned ones, as here only GRAIL on Wanda does.

# %% [markdown]
# ## Run

# %%
from howlinear.ideas.compression.calibration import Calibration

main_text = run.corpora[0]
calibrations = {}  # model → the rows that everything is fitted on, and what compressors ask of them
otherwise = {}  # model → other rows, that own units are fitted on as well
held_out = {}  # model → text → rows whose held-out side counts
for name, model in models.items():
    corpora = {corpus: run.corpus(corpus, model) for corpus in run.corpora[: max(1, texts)]}
    packed = {corpus: text.rows(run.rows, run.seq_len, run.seed) for corpus, text in corpora.items()}
    fit_on = packed[main_text].thinned(fit_rows)
    calibrations[name] = (fit_on, Calibration(model, fit_on, priced))
    otherwise[name] = [packed[main_text].thinned(count) for count in limit_rows]
    held_out[name] = {corpus: rows.with_fewer_held_out(other_rows) for corpus, rows in packed.items()}
    held_out[name][main_text] = packed[main_text].with_fewer_held_out(cost_rows)
run.record_held_out(held_out)


def of_every_model(measure):
    """What a function of a model's name measures, as one table of all models."""
    tables = {name: measure(name) for name in models}
    return pd.concat(tables, names=["model"]).reset_index("model").reset_index(drop=True)


def race_model(name):
    compressors = racers(calibrations[name][1], methods)
    return race(models[name], compressors, shares_of[name], held_out[name])


main = pd.DataFrame(columns=["model", "ratio"])
if models:
    raced = run.record("race", of_every_model(race_model))
    run.record("texts", of_every_model(lambda name: whole_perplexities(models[name], held_out[name])))
    main = raced[raced["corpus"] == main_text]
    smallest = raced[raced["share"] == raced.groupby("model")["share"].transform("min")]

# %% [markdown]
# Held-out perplexity over that of the whole model, on the main text, by the share of all parameters that may be kept.
# (`mini-sink`, where the run has it, was trained to have the massive rows of notebook 12.)

# %% tags=["nbval-check-output"]
if models:
    print(ratios(main[main["method"].isin(shown or methods)]).round(2).to_string())
    run.folded("all methods", ratios(main).round(2))
else:
    print("None of these models has a part in the race.")

# %% [markdown]
# Are own units, the first method, really ahead? Two intervals may overlap although the difference is sure, since both
# models read the same documents. So here is the perplexity of each method over that of the first, paired over
# documents, with its 95 % interval: where the interval lies above 1, the first is ahead.

# %%
over_first = ["over_first", "over_first_low", "over_first_high"]
if models and len(methods) > 1:
    others = main[main["method"] != methods[0]].dropna(subset=over_first)
    run.folded("every budget", others.set_index(["model", "share", "method"])[over_first].round(2))
    display(others.groupby(["model", "method"], sort=False)[over_first].last().round(2))

# %% [markdown]
# Methods that cannot reach a budget, and why:

# %%
for row in main.dropna(subset="why").itertuples() if models else []:
    print(f"{row.model}, {row.method}, {row.share:.0%}: {row.why}")

# %% [markdown]
# At the smallest budget, on the main text and, if the run has any, on other texts, on which nothing was fitted:

# %%
if models:
    display(smallest.pivot_table(index="method", columns=["model", "corpus"], values="ratio", sort=False).round(2))

# %% [markdown]
# Everything was fitted on one draw of the text, in sequences of one length. How much depends on that? Here are the same
# held-out rows, at the smallest budget, after fitting on other draws and on longer or shorter sequences:


# %%
def fit_anew(name):
    """The methods that are healed, fitted on other rows and judged on the same held-out ones."""
    others = [(run.seed + draw, run.seq_len) for draw in range(1, draws)] + [(run.seed, length) for length in lengths]
    found = []
    for seed, seq_len in others:
        rows = run.corpus(main_text, models[name]).rows(run.rows, seq_len, seed).thinned(fit_rows)
        compressors = racers(Calibration(models[name], rows, priced), healed)
        again = race(models[name], compressors, [min(shares_of[name])], {main_text: held_out[name][main_text]})
        found.append(again.assign(draw=seed, fit_length=seq_len))
    first = main[(main["model"] == name) & main["method"].isin(healed) & (main["share"] == min(shares_of[name]))]
    return pd.concat([first.drop(columns="model").assign(draw=run.seed, fit_length=run.seq_len), *found])


if models and (draws > 1 or lengths):
    anew = run.record("draws", of_every_model(fit_anew).drop(columns=["corpus", "why"]))
    display(anew.set_index(["model", "method", "draw", "fit_length"])[["ratio", *over_first]].round(2))
else:
    print("This run has one draw, and one length.")

# %% [markdown]
# ## Figure: what a smaller model costs
#
# **How to read it.** One panel for each model. From left to right the model gets smaller; the vertical axis is
# perplexity over that of the whole model, on a logarithmic scale, with 95 % intervals paired over documents. Lower is
# better, and so is further right at the same height. Each line has its name near its end; a name with a number belongs
# to a line that leaves the panel at this value.

# %%
_ = run.figure(plots.pareto(main, shown or methods), "pareto")

# %% [markdown]
# ## What would make it cost less?
#
# Three things could: a better allocation among blocks, more text to fit on, or other units and readouts. Some numbers
# for the smallest model, each a perplexity over that of the whole model, tell them apart:
#
# - *by the blocks' prices*: e to the power of their sum, before the anchor. If the model costs no more than that, the
#   blocks' costs add up, and a better allocation has nothing to gain;
# - *on the text fitted on*: a readout costs least on the rows that it has seen, so the cost with ever more text lies
#   between this number and the next;
# - *held out*: what the model costs;
# - *held out, fitted on … rows*: the same, with units chosen and readouts fitted on fewer rows, or on more. Once more
#   rows do not lower it, the rest is the cost of the missing units.


# %% tags=["nbval-check-output"]
def limits_of(name):
    fit_on, calibration = calibrations[name]
    ours = main[(main["model"] == name) & (main["method"] == "own units")]
    return limits(
        models[name], fit_on, calibration, [min(shares_of[name])], held_out[name][main_text], ours, otherwise[name]
    )


if models:
    limit = run.record("limit", of_every_model(limits_of))
    print(limit.pivot_table(index=["model", "share"], columns="what", values="ratio", sort=False).round(2).to_string())

# %% [markdown]
# ## What does each part of own units buy?
#
# Own units combine several choices. Each is exchanged for an alternative, one at a time, at the smallest budget.
# Fitting the anchor takes long, so the other choices are exchanged in models without it:
#
# - *as many in every block*: the budget is not allocated by prices. Such a model loads in plain `transformers`;
# - *by scores of single units*: the units with the largest variance times squared readout stay, whatever the others
#   could take over. That is FLAP's score, in the metric of the loss;
# - *by plain squares*: an error counts the same in every direction of the output and at every position. This is
#   structured Optimal Brain Surgeon (OBS), as in SlimGPT;
# - *without a ridge*: plain least squares;
# - *anchored on the stream*: fitted once more, on the inputs that a block actually gets, to the whole model's residual
#   stream. This is the method *own units* of the figure.
#
# The numbers are perplexity over that of own units before the anchor, paired over documents, with 95 % intervals. Above
# 1 the exchange costs something, so the original part is worth having; below 1 the exchange is better.


# %% tags=["nbval-check-output"]
own, *variants = ABLATIONS


def exchange_parts(name):
    compressors = racers(calibrations[name][1], [own, *(variants if exchanged is None else exchanged)], ABLATIONS)
    return race(models[name], compressors, [min(shares_of[name])], {main_text: held_out[name][main_text]})


if models:
    exchanges = run.record("exchanges", of_every_model(exchange_parts))
    print(exchanges.pivot_table(index="method", columns="model", values="over_first", sort=False).round(2).to_string())

# %%
if models:
    display(exchanges[exchanges["method"] != own].set_index(["model", "method"])[over_first].round(3))

# %% [markdown]
# ## A little training, compared with the original
#
# So far nothing was trained. Now only the feed-forward blocks of smaller models are trained, for a few steps on the
# text used for fitting. The whole model gets the same steps, since they may teach it the text too. *healed* is
# perplexity over that of the original whole model, *behind* over that of the whole model trained in the same way.


# %%
from howlinear.ideas.compression.healing import healed_beside


def heal(name):
    _, calibration = calibrations[name]
    copies = {"whole": models[name]}
    share = min(shares_of[name])
    for method, compress in racers(calibration, healed).items():
        try:
            copies[method] = compress(share)
        except ValueError as error:
            print(f"{name}, {method}, {share:.0%}: {error}")
    calibration.forget()  # its moments take more memory than the training
    beside_whole = healed_beside(copies, calibration.ids, held_out[name][main_text], heal_steps, seed=run.seed)
    beside_whole["share"] = [1.0, *[share] * (len(copies) - 1)]
    return beside_whole.rename(columns={"name": "method"})


if models and heal_steps and healed:
    healing = run.record("healing", of_every_model(heal))
    display(healing.set_index(["model", "method"]).round(2))
else:
    print("Nothing was trained.")

# %%
settings = {"shares": shares, "fit_rows": fit_rows, "priced": priced, "texts": texts, "cost_rows": cost_rows}
settings |= {
    "draws": draws,
    "lengths": lengths,
    "limit_rows": limit_rows,
    "other_rows": other_rows,
    "heal_steps": heal_steps,
    "without": without,
}
run.save(settings=settings)

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - Replacing a block by a line is one way to spend $d^2 + d$ parameters on it. Where *lines by price* costs far more
#   than *own units*, about as many parameters are better spent on the block's own units.
# - Where other choices of units cost as much as exact elimination, any score in the same metric would have done: what
#   counts is that errors are weighted by the loss, and that the readout of the units that stay is refitted.
# - After some training, what counts is the distance to the whole model trained in the same way (*behind*): a smaller
#   model that ends below the original whole model has learned the text, as the whole model would have too.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/14_compress.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** With a line in the place of *every* block, what share of the first model's parameters is left?
#
# <details><summary>Hint</summary>
#
# Step 1: `howlinear.models.layers.parameters` counts a module's parameters, and
# `howlinear.models.ffn_sites.sites(model)` finds the blocks; `site.parameters()` are the parameters that go.
#
# Step 2: they are replaced by $d^2 + d$ parameters in each block, a matrix and a bias.
#
# </details>

# %%
least = None  # a number between 0 and 1

first_model = next(iter(models.values()), None)
if least is not None:
    from howlinear.models.ffn_sites import sites, width_of

    own = [sum(parameter.numel() for parameter in site.parameters()) for site in sites(first_model)]
    d = width_of(first_model)
    expected = 1 - (sum(own) - len(own) * (d**2 + d)) / parameters(first_model)
    assert abs(least - expected) < 1e-6, "all blocks' own parameters go, and a matrix and a bias come for each"
    print(f"right: {least:.3f} are embeddings, attention, norms and {len(own)} lines")

# %% [markdown]
# **2 (medium).** Does it matter at all which units go, if the readout of the others is refitted? Write a function that
# draws the units to keep in every block at random, as many as the budget allows. The cell fits the readout by ridge
# regression, as GRAIL does, and lets your model race at 80 %.
#
# <details><summary>Hint</summary>
#
# Step 1: `width.evenly(calibration, share, scores)` keeps the units with the highest scores, the same number in every
# block, and returns block → units. It needs block → a score for each unit.
#
# Step 2: `torch.rand` with a generator of its own makes scores that do not depend on the units.
# `howlinear.models.units.unit_count(model, site)` says how many there are in a block.
#
# </details>

# %%
# the first model's own rows, to fit on and to judge by
if first_model is not None:
    rows = run.corpus(run.corpora[0], first_model).rows(run.rows, run.seq_len, run.seed)
    calibration = Calibration(first_model, rows.thinned(fit_rows), priced)

# %%
drawn = None  # a function of the share to keep → block → units to keep

if drawn is not None:
    kept = drawn(0.8)
    loudest = width.evenly(calibration, 0.8, width.loudness(calibration))
    for block, units in loudest.items():
        assert len(kept[block]) == len(kept[block].unique()) == len(units), "as many as fit, and each unit once"
    chance = sum(len(units) for units in kept.values()) / sum(
        moments.d_in for moments in width.moments_of(calibration).values()
    )
    common = sum(torch.isin(kept[block], units).sum() for block, units in loudest.items())
    share = float(common) / sum(len(units) for units in kept.values())
    assert abs(share - chance) < 0.03, (
        f"a random draw keeps {chance:.0%} of the units of any choice, yours {share:.0%} of Wanda's"
    )
    compressors = racers(calibration, ["magnitude", "GRAIL on Wanda"])
    compressors["drawn"] = lambda _: width.compensated(calibration, lambda site, _: kept[site.block])
    judged = {run.corpora[0]: rows.with_fewer_held_out(cost_rows)}
    raced = race(first_model, compressors, [0.8], judged).set_index("method")["ratio"]
    matters = raced["drawn"] > 1.02 * raced["GRAIL on Wanda"]
    print("right: yes, it matters" if matters else "right: no, by less than two in a hundred", end=". ")
    print("Perplexity over the whole model's:", raced.round(2).to_dict())

# %% [markdown]
# **3 (harder).** Own units drop the cheapest unit, then the cheapest of those left. Is what stays always the best
# choice? Plant hidden values of three units, all read out with weight 1, such that own units, which keep one of them,
# lose more than ten times as much as the best one would.
#
# <details><summary>Hint</summary>
#
# Step 1: the best single unit is the one that follows the output most closely. It must be the first to go, so the two
# others together must be able to replace it.
#
# Step 2: let it be a mix of the two others with a little noise. A unit is cheap if the part of it that the others
# cannot replace is small: should the mix be larger than its parts, or smaller?
#
# </details>

# %%
misleading = None  # hidden values of three units, shape (tokens, 3)

if misleading is not None:
    values = misleading.double()
    assert values.shape[1:] == (3,), "a row for each token, a column for each of three units"
    together = values.sum(1, keepdim=True)
    lost = []  # mean square error with one unit alone, read out anew with a bias
    for unit in range(3):
        design = torch.cat([values[:, [unit]], torch.ones(len(values), 1).double()], dim=1)
        anew = torch.linalg.lstsq(design, together).solution
        lost.append(float((design @ anew - together).square().mean()))
    planted = Moments(3).update(values)
    second = planted.sxx / planted.n + 1e-9 * torch.eye(3).double()
    stays = int(eliminate(second, torch.ones(3, 1).double()).kept(1))
    best = lost.index(min(lost))
    variance = float(together.var(correction=0))
    assert variance > 0, "the output, which is their sum, has to vary from token to token"
    shares = [one / variance for one in lost]
    assert shares[stays] > 0.01, f"own units keep unit {stays}, and lose hardly any of the variance"
    assert shares[stays] > 10 * shares[best], f"own units keep unit {stays}, and unit {best} is not ten times as good"
    print(f"right: no, not always. Own units keep unit {stays} and lose {shares[stays]:.1%} of the variance,", end=" ")
    print(f"where unit {best} alone would lose {shares[best]:.1%}")
