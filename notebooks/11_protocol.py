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
# # 11 · Which findings depend on the protocol?
#
# **Question.** The same block has a different $R^2_{\mathrm{lin}}$ with different rows, a different split or a
# different denominator. Which findings depend on these choices, and which hold under all of them?
#
# **You need** notebook 02. **You learn** which choices move a number, and which claims move with it.
# **Time** 20 minutes to read, 2 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
factors = [8, 16, 32, 64, 100]  # train rows for each input of a block, as far as the run profile has rows
compared = [8, 16]  # factors that are combined with every other choice, in addition to the largest
few = 16  # train rows for each input from which the limit is estimated; it is checked with the largest factor
seq_lens: list or None = None  # tokens in a sequence, the last for the curves; None: a quarter of the run's, and all
protocols = ["paper", "ours"]  # the protocols to compare, by the names that `choices.named_protocol` knows
held = 1_000_000_000  # bytes of moments held at a time: a wider model takes more passes, more bytes fewer
documents = 6000  # read from the text, in its own order; only some of them are needed

# %%
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import pandas as pd
import torch

import howlinear as hl
from howlinear.ideas.protocol import measure, statements
from howlinear.ideas.protocol.choices import CHOICES, RUNS, factors_within, named_protocol
from howlinear.ideas.protocol.layout import available_train_rows, first_documents
from howlinear.models.ffn_sites import width_of
from howlinear.notebook.run import start
from howlinear.plots import protocol as plots

run = start("11_protocol", profile, model, corpus)
models = {name: run.model(name) for name in run.models}
text = first_documents(run.corpus(run.corpora[0], next(iter(models.values()))), documents, run.seed)
seq_lens = seq_lens or [run.seq_len // 4, run.seq_len]
widths = [width_of(model) for model in models.values()]
train_rows = available_train_rows(text, run.rows, run.seq_len, run.seed)
factors = factors_within(factors, train_rows, widths, max(seq_lens))
few = max((factor for factor in factors[:-1] if factor <= few), default=factors[0])
named = {name: named_protocol(name, seq_lens[-1]) for name in protocols}
for name, protocol in list(named.items()):
    if protocol.rows.isdecimal() and int(protocol.rows) not in factors:
        del named[name]
        print(f"The protocol {name} takes {protocol.rows} train rows for each input, which this run does not measure.")
ours = named_protocol("ours", seq_lens[-1])
print("models:", ", ".join(models), "· text:", run.corpora[0], "· train rows for each input:", factors)
shown = run.record("protocols", pd.DataFrame({"protocol": name} | asdict(one) for name, one in named.items()))
shown.set_index("protocol").T

# %% [markdown]
# The table shows the two protocols that are compared below. *Position 0* is the first token of every sequence. `loud`
# says what is left out as too loud: the 1 % of rows with the largest outputs, the one output feature of largest
# variance, or nothing. `null` is the threshold for null directions (notebook 02): directions of the inputs with less
# than this share of the largest variance are left out of the map.

# %% [markdown]
# ## Predict first
#
# 1. The paper's denominator has one mean of all outputs, ours each feature's own. Which always gives the larger $R^2$?
# 2. A map of 128 inputs is fitted on 1,024 rows, then on 12,800. How far will $R^2$ rise: by hundredths, or tenths?
# 3. Which of these four statements depend on the protocol: highest minus lowest block above 0.27; the profile rises and
#    falls; a step between neighbours above 0.20; some block below 0.90?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about. A
# profile rises and falls as far as the *smaller of largest rise and fall* says; a *step* is one between neighbouring
# blocks.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# Nobody reports "the" $R^2$: every reported number belongs to a protocol. Instead of arguing for ours, we compute $R^2$
# under all of them: a *multiverse*. A finding that holds in every universe is about the models. A finding that flips is
# about the protocol, and must be reported with it.
#
# One choice, the number of rows, is special because it has a right answer. A map of $d$ inputs, fitted on few rows,
# follows them too closely. It scores too high on its own rows and too low on held-out rows, by about the same amount.
# So the truth lies *between*, and together the two scores give the value at which they will meet.

# %% [markdown]
# ## Method
#
# $$ u_n \approx u\,(1 - v/n) \text{ in sample}, \qquad u'_n \approx u\,(1 + v/n) \text{ held out}
#    \qquad\Longrightarrow\qquad R^2_\infty = 1 - \sqrt{u_n u'_n} $$
#
# Here $u$ is the share left unexplained with infinitely many rows, and $n$ the number of rows in the fit.
#
# | what | function |
# |---|---|
# | unexplained shares $u_n$, $u'_n$ and the limit | `limits.limit` |
# | $v/n$, the optimism; above ½ the rows are too few, and no limit is given | `limits.optimism`, `enough` |
# | the limit's interval: document folds left out on both sides | `ceilings.ceiling(…).limit` |
# | moments of every group of rows (fold, step, position 0, loud), one pass | `groups.stream_groups` |
# | $R^2$ of a map under a denominator | `measure.r2` |
# | a block under every protocol | `measure.universe_rows` |
# | what the profile says, and which choices flip it | `statements.flip_table` |
#
# The constant $v$ is the width plus one for independent Gaussian rows, and larger for text, whose rows resemble their
# neighbours. The formula does not need it.
#
# A case with a known answer: ten inputs, outputs half signal, documents of four rows that share half of their variance.

# %%
from howlinear.core import limits
from howlinear.core.ceilings import ceiling

generator = torch.Generator().manual_seed(0)
weight = torch.linalg.qr(torch.randn(10, 6, generator=generator, dtype=torch.float64)).Q


def fold(count):
    """Moments of some planted documents: R² is 0.5 in the limit."""
    own, shared = torch.randn(2, count, 4, 16, generator=generator, dtype=torch.float64)
    x, noise = ((own + shared[:, :1]) / 2**0.5).flatten(0, 1).split([10, 6], dim=1)
    return hl.Moments(10, 6).update(x, x @ weight + noise)


for count in (5, 50):
    planted = ceiling([fold(count) for _ in range(8)], [fold(50) for _ in range(8)])
    print(f"{planted.rows_train:5} rows: {planted.r2_train:.2f} on its own rows, {planted.r2:.2f} on others, ", end="")
    print(f"so in the limit {planted.limit}; optimism {limits.optimism(planted.r2_train, planted.r2):.2f}")

# %% [markdown]
# ## Run
#
# For every model, split and length, one pass over the text collects moments in groups, and every combination follows.

# %%
from howlinear.models.load import tokenizer_of

found = {}
for name, model in models.items():
    corpus = replace(text, tokenizer=tokenizer_of(model))
    chosen = run.capture(name).blocks
    found[name] = measure.survey(model, corpus, factors, compared, seq_lens, named, run.seed, held, chosen)
universes, curves, folds, splits = (
    pd.concat({name: tables[kind] for name, tables in found.items()}, names=["model", "row"]).reset_index("model")
    for kind in ("universes", "curves", "folds", "splits")
)
numbers = statements.number_table(universes)
count = len(numbers[CHOICES].drop_duplicates())
print(count, "protocols,", len(universes), "values of R²")

# %% [markdown]
# ## Figure: how many rows?
#
# **How to read it.** The most and the least linear block of each model; split by documents, each feature about its own
# mean. As train rows are added, the light dotted curve (train rows) falls and the blue dashed curve (held-out rows)
# rises. Black, with 95 % intervals: where they will meet, estimated from that many rows; it should be flat.

# %%
by_documents = curves[curves["split"] == "documents"]
extremes = {}
for name, of_model in by_documents[by_documents["factor"] == factors[-1]].groupby("model", sort=False):
    r2 = of_model.set_index("block")["r2_limit"].fillna(of_model.set_index("block")["r2"])
    extremes[name] = [int(r2.idxmax()), int(r2.idxmin())]
run.figure(plots.rows_needed(by_documents, extremes), "rows")
plt.show()

# %% [markdown]
# Is a limit estimated from few rows right? We count the blocks whose limit from many rows lies in the interval of the
# limit from few rows (`limit_agrees`), and the blocks whose $R^2$ measured with many rows lies in the interval that the
# few rows predict for it (`value_agrees`).

# %% tags=["nbval-check-output"]
run.record("curves", curves[curves["factor"].isin([few, factors[-1]])])
agreement = run.record("agreement", measure.limit_agreement(curves, few, factors[-1]))
print(f"estimated from {few} train rows for each input, checked on {factors[-1]}:")
print(agreement.round(2).to_string(index=False))

# %% [markdown]
# ## Figure: the multiverse
#
# **How to read it.** Top: $R^2$ of the highest block minus that of the lowest, for each model. Each mark is a protocol,
# in order of the mean over models; the black line is the threshold. Bottom: a stroke shows which level of each choice a
# protocol has. A level whose strokes gather at one end moves the number; a level whose strokes are spread evenly does
# not matter. The orange lines are the paper's protocol and ours.

# %%
spread = statements.STATEMENTS["spread"]
figure = plots.multiverse(
    numbers, "spread", spread.threshold, spread.asks, {name: asdict(one) for name, one in named.items()}
)
run.figure(figure, "multiverse")
plt.show()

# %% tags=["nbval-check-output"]
effects = run.record("effects", statements.effect_table(universes, ours))
print("R² of a block with each level less that with ours in this choice, all other choices equal:")
print(effects.round(2).to_string(index=False))

# %% [markdown]
# ## Figure: the paper's protocol and ours
#
# **How to read it.** The profile of each model under the paper's protocol (dotted) and under ours, with 95 % intervals.

# %%
run.figure(plots.profiles(measure.profile_table(folds)), "profiles")
plt.show()

# %% [markdown]
# ## The paper's own rows
#
# The protocol *paper* makes the paper's choices on this run's rows: the last fifth of the text is held out, and the
# train rows lie before it. The paper itself measured different rows: the first 117 windows of a text that its code
# reads in one piece, 14,976 rows in all, split at row 11,981 inside a window (`text.paper_rows`). On rows laid out in
# this way, we measure each block by the paper's conventions (`paper_protocol.paper_blocks`): $R^2$ about one scalar
# mean and about each feature's own mean, the lower median, and ranks about the train mean. The distance of this $R^2$
# from that under each protocol is printed below. There are 16 train rows for each input of a block of width 768, and
# more in a narrower block.

# %%
from howlinear.instrument.paper_protocol import paper_blocks
from howlinear.text.paper_rows import paper_rows

by_model = {}
for name, model in models.items():
    rows = paper_rows(replace(text, tokenizer=tokenizer_of(model)), seed=run.seed)
    by_model[name] = paper_blocks(model, rows, blocks=list(run.capture(name).blocks))
by_paper = run.record("paper_rows", pd.concat(by_model, names=["model", "row"]).reset_index("model"))
run.folded("every block", by_paper.round(3))

# %% tags=["nbval-check-output"]
keys = ["model", "block"]
by_name = measure.profile_table(folds).pivot_table(index=keys, columns="protocol", values="r2", sort=False)
distance = by_name.sub(by_paper.set_index(keys)["r2_scalar"], axis=0).abs()
print("distance of a block's R² on the paper's own rows from that under a protocol:")
print(distance.groupby("model", sort=False).agg(["mean", "max"]).round(2).to_string())

# %% [markdown]
# ## What are whole documents worth?
#
# If every fourth run of eight neighbouring sequences is held out (shorter runs where there are few rows), parts of one
# document lie on both sides of the split. The map has then seen names and words of the held-out text, and $R^2$ may be
# higher than on a new document. Here is by how much, with the most rows and all other choices as ours:

# %% tags=["nbval-check-output"]
run.record("splits", splits)
by_split = splits.pivot_table(index=["model", "block"], columns="split", values="r2", sort=False)
gained = by_split[RUNS] - by_split["documents"]
print("R² with runs of sequences held out less that with documents held out:")
print(gained.groupby("model", sort=False).agg(["mean", "max"]).round(2).to_string())

# %% [markdown]
# ## Which verdicts flip?
#
# `smallest` and `largest` are the number's extremes over all protocols, `share` the share of protocols under which the
# statement holds, and `alone` the choices that flip it when changed alone from our protocol.

# %% tags=["nbval-check-output"]
run.record("statements", statements.statement_table())
flips = run.record("flips", statements.flip_table(numbers, ours))
print(flips.fillna({"alone": ""}).round(2).to_string(index=False))

# %% [markdown]
# The verdicts under the paper's protocol and ours: a statement *holds* if the whole interval lies on its side of the
# threshold, *fails* if all of it lies on the other side, and is *open* if the threshold lies inside. (Where several
# blocks are about equally extreme, these intervals are too narrow.)

# %%
verdicts = run.record("verdicts", statements.verdict_table(folds))
statements.verdicts_side_by_side(verdicts)

# %% [markdown]
# How are the models ordered by mean $R^2$, and which block is the least linear? `share` is the share of protocols under
# which a row is true.

# %%
orders = run.record("orders", statements.order_table(numbers))
lowest_blocks = run.record("lowest_blocks", statements.lowest_table(numbers))
print(orders.round(2).to_string(index=False))
print(lowest_blocks.round(2).to_string(index=False))

# %%
run.save(settings={"factors": factors, "seq_lens": seq_lens, "few": few, "many": factors[-1], "universes": count})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - *Denominator.* A scalar mean can only enlarge the denominator, so it can only raise $R^2$.
# - *Verdicts.* If a choice flips a verdict, the result must name its protocol.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/11_protocol.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** A map explains 0.80 of the variance of its train rows and 0.55 of that of held-out rows. What does
# $R^2$ tend to with more rows, and which share of that limit does the held-out score still miss?
#
# <details><summary>Hint</summary>
#
# Step 1: the equation under *Method* is about unexplained shares, $u_n$ on train rows and $u'_n$ on held-out rows. What
# are they here?
#
# Step 2: the equation turns them into $R^2_\infty$. What is missed is the distance from the held-out score to this
# limit, as a share of the limit.
#
# </details>

# %%
tends_to = None  # a number

if tends_to is not None:
    assert abs(tends_to - limits.limit(0.80, 0.55)) < 1e-9, "1 less a geometric mean, of what either side leaves over"
    print(f"right: {tends_to:.2f}, of which the held-out score misses {(tends_to - 0.55) / tends_to:.0%}")

# %% [markdown]
# **2 (medium).** Somebody makes two choices after seeing the results, and all others as we do. How high can this take
# the first model's mean $R^2_{\mathrm{lin}}$? Give the highest `mean` of its protocols in `numbers` that differ from
# `ours` in at most two choices.
#
# <details><summary>Hint</summary>
#
# Step 1: `numbers` has a row for each model and protocol, with a column for each of `CHOICES`. Take the rows of the
# first of `models`.
#
# Step 2: compare these columns with `pd.Series(asdict(ours))`, and count in each row how many differ.
#
# </details>

# %%
highest = None  # a number

if highest is not None:
    of_first = numbers[numbers["model"] == next(iter(models))]
    differing = sum((of_first[choice] != level).astype(int) for choice, level in asdict(ours).items())
    under_ours = of_first[differing == 0].iloc[0]
    raised = of_first.loc[of_first["mean"].where(differing <= 2).idxmax()]
    assert abs(highest - raised["mean"]) < 1e-6, "of the first model, with at most two choices unlike ours"
    levels = [f"{choice} = {raised[choice]}" for choice in CHOICES if raised[choice] != under_ours[choice]]
    turned = []
    for name, statement in statements.STATEMENTS.items():
        if statement.holds(raised[name]) != statement.holds(under_ours[name]):
            turned.append(name)
    print(f"right: to {highest:.2f}, from {under_ours['mean']:.2f} under ours,", end=" ")
    print(f"by {' and '.join(levels) or 'no choice'}; statements that this turns: {', '.join(turned) or 'none'}")

# %% [markdown]
# **3 (harder).** Independent Gaussian rows have an optimism of $p/n$, with $p$ the parameters of a map per output
# feature. The planted documents above have more. How many of their rows count as one? Estimate it from the mean
# optimism of 40 draws of 5 documents a fold.
#
# <details><summary>Hint</summary>
#
# Step 1: `ceiling(sum(fold(5) for _ in range(8)), sum(fold(20) for _ in range(8)))` is one draw, and `limits.optimism`
# of its `r2_train` and `r2` says how closely the map follows its own rows.
#
# Step 2: how large would the optimism of a map of 10 inputs and a constant be if the rows were independent? Divide the
# mean optimism by that.
#
# </details>

# %%
rows_that_count_as_one = None  # a number

if rows_that_count_as_one is not None:
    # inputs and noise share half of their variance within a document, so their products share a quarter
    by_sum = 1 + (4 - 1) / 4
    assert abs(rows_that_count_as_one - by_sum) < 0.35, "the mean optimism, over (10 + 1) / rows; draws differ by 0.1"
    print(f"right: {rows_that_count_as_one:.2f}, where a first-order sum predicts {by_sum:.2f}")
