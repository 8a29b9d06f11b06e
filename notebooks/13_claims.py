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
# # 13 · What of the paper holds here?
#
# **Question.** The paper's findings, section by section, what would falsify its main one, a claim of the press, and
# four of our own. Which of them do the numbers of notebooks 02 to 12 bear out on the models of this run, and which do
# they leave open?
#
# **You need** notebook 02; the others are where the numbers come from. **Time** 15 minutes to read, seconds to run.

# %% tags=["parameters"]
profile = "minis"  # whose results to judge: minis (embedded), public (from packages), or paper (from the Hub)
factors = [0.5, 0.75, 1.0, 1.5, 2.0]  # multiples of every threshold under which the verdicts are taken once more

# %%
import textwrap
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm

from howlinear.answers.claims import questions, replies, sentences
from howlinear.files.published import load_published
from howlinear.ideas.claims import ledger as claims
from howlinear.ideas.claims.claim import Verdict, fingerprint, load_claims, parse, verdict
from howlinear.ideas.claims.contrasts import TOGETHER
from howlinear.ideas.claims.numbers import STATISTICS
from howlinear.ideas.claims.published import as_results, own_verdict
from howlinear.notebook.run import start
from howlinear.plots import claims as plots

run = start("13_claims", profile)
stated = load_claims()
print(len(stated), "claims, of notebooks:", ", ".join(sorted({claim.notebook for claim in stated})))
print("the ledger's fingerprint:", fingerprint()[:12])

# %% [markdown]
# ## Predict first
#
# Here is what is claimed. Before you look on: which of these will come out *holds here* (write ✓), *does not hold here*
# (✗) or *mixed* (~) on the first model of this run? Fill in as many as you like; the run will count your hits.

# %%
for claim in stated:
    print(textwrap.fill(f"{claim.section} {claim.id}: {claim.sentence}", 110, subsequent_indent="    "))

# %%
guesses = {}  # such as {"heterogeneous": "✓", "compression": "~"}

# %% [markdown]
# ## The answer
#
# Here is what the recorded results of this run profile say, the numbers first; how they come about is what follows.

# %%
run.answer(sentences)

# %% [markdown]
# ## Idea
#
# "It holds" is easily typed. So nobody types it here. A claim is turned into a question with a number for an answer
# (*how far apart are the highest and the lowest block?*), that number has a 95 % interval, and beside the claim stands
# a threshold with its reason. Then there are four cases and no fifth, model by model:
#
# - the whole interval lies beyond the threshold on the claim's side: **holds here** (✓);
# - the whole interval lies on the other side: **does not hold here** (✗);
# - it straddles: **mixed** (~); the data cannot tell, which is not the same as *no*;
# - the results cannot speak to it, by a stated rule: **not testable here** (–).
#
# *Here* is meant: other models can neither reproduce nor refute what is said of GPT-2. Over several models the verdict
# is theirs if all agree, else mixed; a claim that something *can* be so holds if it does in one model.
#
# "$r \approx 0$" needs care. An interval that contains 0 shows nothing if it is wide. To show *no relation*, the whole
# interval must fit inside a band around 0: a test of equivalence, with the burden of proof where it belongs.
#
# The threshold is where judgement enters: "widely", "little", "about the same" are words. Two things keep it honest.
# The paper must pass its own ledger: by **the same statistic on the paper's own numbers**, and the same rule for
# several models, every finding that they speak to holds, or the row is our misreading, and a test refuses it. And the
# file of claims was settled before any other model was run: its fingerprint goes into the results, and a change of the
# file makes them another ledger's.
#
# The last four rows are claims of our own, about massive rows (notebook 12). They were stated after the public and the
# embedded models had been measured, so a ✓ of these models is no test of them; one of the paper's models will be.

# %% [markdown]
# ## Method
#
# | step | rule | function |
# |---|---|---|
# | a claim as data | sentence, statistic, threshold, direction, reason; a verdict is refused | `claim.parse` |
# | its number | from one notebook's recorded results, with its interval | `numbers.STATISTICS` |
# | the paper's own | the same, of what the paper publishes | `published.as_results`, `own_verdict` |
# | one verdict | above: ✓ if low > t, ✗ if high < t; below: the reverse; within: ✓ inside ± t | `claim.verdict` |
# | the largest of $m$ | every interval at $1 - 0.05/m$ first (Bonferroni) | `contrasts.extreme` |
# | the ledger | all claims on a folder of results | `ledger.evaluate` |
# | the board | one verdict a cell, a column a model | `ledger.cells` |
#
# Where a result holds intervals block by block, a contrast of two blocks takes the worst of both: $r_j - r_i$ runs from
# $\mathrm{low}_j - \mathrm{high}_i$ to $\mathrm{high}_j - \mathrm{low}_i$. That is wider than need be, and pays for
# having picked the largest contrast of many. Two profiles are compared by their **mean distance**
# $\tfrac1B \sum_b |r_b - r'_b|$, one yardstick with one threshold for both *the same* and *sharply different*: no two
# curves can be both. Noise only ever adds to a distance.
#
# A missing file makes a claim untestable, and so does a measure that this run did not take, or a model without the kind
# of block that a claim is about. A file that lacks what every run has is an error instead: a ledger that drops rows in
# silence would be worse than none.

# %%
examples = {"clear": (0.31, 0.42), "the other side": (0.05, 0.12), "in doubt": (0.19, 0.33)}
for name, (low, high) in examples.items():
    print(f"{name}: [{low}, {high}] above 0.25 → {verdict(low, high, 0.25, 'above')}")
print(f"a wide interval round 0: [-0.6, 0.6] within ± 0.4 → {verdict(-0.6, 0.6, 0.4, 'within')}")

# %% [markdown]
# And one claim followed from end to end, on a made-up model of three blocks. Its statistic is *highest block − lowest
# block*; the largest step runs from block 1 to block 0, and its interval from 0.80 − 0.45 to 0.90 − 0.35.

# %%
made_up = pd.DataFrame(
    {"model": "made up", "r2": [0.85, 0.40, 0.60], "r2_low": [0.80, 0.35, 0.55], "r2_high": [0.90, 0.45, 0.65]}
)
(claim,) = [claim for claim in stated if claim.id == "heterogeneous"]
readings = STATISTICS[claim.statistic]({"blocks": made_up})
estimate = readings["made up"].estimate
print(claim.question, claim.show(estimate), "→", claim.verdict(estimate))

# %% [markdown]
# First the paper, by its own ledger: no finding of its own may fail there.

# %% tags=["nbval-check-output"]
theirs = STATISTICS["spread"](as_results("02_ceilings", load_published()))
print({name: round(reading.estimate.value, 2) for name, reading in theirs.items()})
own = {claim.id: own_verdict(claim) for claim in stated if claim.kind == "finding"}
print("findings that the paper's own numbers pass:", sum(each is Verdict.HOLDS for each in own.values()))
print("that it publishes no number for:", [name for name, each in own.items() if each is Verdict.UNTESTABLE])
print("that it fails:", [name for name, each in own.items() if each in (Verdict.NOT, Verdict.MIXED)])

# %% [markdown]
# ## Run

# %% tags=["nbval-check-output"]
ledger = claims.evaluate(run.results, stated)
for row in ledger:
    marks = [f"{name} {mark.symbol}" for name, mark in row.verdicts.items() if name != TOGETHER]
    pair = [mark.symbol for name, mark in row.verdicts.items() if name == TOGETHER]
    print(f"{row.claim.section:11s}{row.claim.id:26s}{'  '.join(marks + pair) or '– ' + row.reason[:60]}")
print()
print(claims.counted(ledger))
print(claims.in_one_line(ledger))

# %% [markdown]
# The numbers behind them: what was asked, and the answer with its interval. For claims about a pair of models or the
# twins, the column is *together*.

# %%
pd.set_option("display.max_colwidth", None)
claims.answers(ledger, list(run.models))

# %% [markdown]
# ## Figure: the board
#
# **How to read it.** A row is a claim, a column a model; *together* is for claims about a pair of models or the twins,
# and for those that no model here can speak to. Colour and symbol say the same: ✓ holds here, ✗ does not hold here,
# ~ mixed, – not testable here. The number is the statistic in the unit of its threshold, which stands at the right,
# with the paper's section. For the rows that would *falsify*, ✗ is what the paper hopes for.

# %%
figure = plots.board(claims.cells(ledger), [*run.models, TOGETHER])
run.figure(figure, "board")
plt.show()

# %% [markdown]
# ## Which verdicts hang on a threshold?
#
# Every threshold times a factor, the readings as they are; a mark a model, in the order of the board. A row that is ✓
# or ✗ under every factor does not depend on its threshold; one of ~ stays undecided. A row that changes near 1 is a
# matter of what the word in the claim is taken to mean. Two things are forced: a threshold of 0 does not move, and one
# that a factor takes beyond ±1, on an $r$, an $R^2$ or a share, decides the row by itself.

# %% tags=["nbval-check-output"]
moves = {row.claim.id: claims.changes(row, factors) for row in ledger if row.readings}
columns = [*run.models, TOGETHER]
symbols = {
    name: ["".join(marks[column].symbol for column in columns if column in marks) for marks in by_factor.values()]
    for name, by_factor in moves.items()
}
table = pd.DataFrame.from_dict(symbols, orient="index", columns=[f"× {factor}" for factor in factors])
print(table.to_string())
print("the same under all of them:", ", ".join(claims.steady(moves)))

# %%
run.save(claims.contents(ledger, moves), claims.TOLERANCE, claims.DIGITS)

# %% [markdown]
# ## What we learned

# %%
run.conclusion(sentences, replies)

# %%
model = next(iter(run.models))
marks = {row.claim.id: row.verdicts.get(model, Verdict.UNTESTABLE).symbol for row in ledger}
hits = [name for name, guess in guesses.items() if marks[name] == guess]
print(f"your guesses for {model}: {len(hits)} of {len(guesses)} right")
claims.beside_paper(ledger)

# %% [markdown]
# - A verdict is about *these* models. A claim about GPT-2 that small models do not bear out is not refuted: run the
#   profile `paper`, and the same rules judge the paper's own models.
# - *ill-conditioned*: the reason for its threshold is wrong, and stays as it was settled. Gradient descent needs about
#   as many steps as the *square* of the condition number (notebook 07), so the rule leaves out blocks that it should
#   ask.
# - That $R^2_{\mathrm{lin}}$ and the cost of a swap come apart is the paper's own finding (*dissociation*,
#   *linear-and-dear*), and so is that a nearly linear block may be dear. Only the shape of it is ours to check here.
# - *gain-not-residual* is judged as the paper judges it, over all blocks. Beside it stands $r$ without the two end
#   blocks: where the two differ, a block or two make the correlation, here and in the paper's own GPT-2.
# - Ticks need not be independent. *heterogeneous*, *adjacent*, *non-monotone* and *text-same-shape* can all be read off
#   one fact, that the first and the last block differ from the others. Where they are, the answer above says so, and
#   what the same rule gives without these two.
# - *text-same-shape* and *text-small-shift* speak of the texts that were tried. The answer above names them, and where
#   the same models read other texts as well (the embedded ones: prose) it says what came of that.
# - *not-activation*, read the other way round, is what referees named as falsifying: differently trained models with
#   matching profiles. It is one number, and stands once.
# - The falsifiers are judged like all else. *falsifier-twins* asks models that share all but the text that they were
#   trained on, and measures them against twins that share all but the seed.
# - The interval of a correlation takes the blocks of a model as independent. Neighbouring blocks are alike, and a first
#   block may lie far out, so it is too narrow: the book's page on intervals says how much.
# - Of so many intervals at 95 %, not *all* will hold the truth. Exercise 2 asks what is left when they must.

# %% [markdown]
# ## Test yourself
#
# Say each answer to yourself, with a guess at its number, before you unfold it.

# %%
run.questions(questions)

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/13_claims.py`; try first.
#
# **1 (warm-up).** How much would "little" have to be for `products-small` to hold in every model? Give a threshold, in
# R² and to two decimals, the smallest that does it.
#
# <details><summary>Hint</summary>
#
# Step 1: `small.readings` holds a reading for each model, and its `.estimate` has a `value`, a `low` and a `high`. The
# claim is that a number lies *below* a threshold, and it holds where the whole interval does. Which end decides?
#
# Step 2: it is to hold in every model. Which model has the last word?
#
# Step 3: that end must still be cleared after rounding to two decimals. `verdict_at(…)` tells whether it is, and
# whether 0.01 less would do as well.
#
# </details>

# %%
generous = None  # a threshold, to two decimals

(small,) = [row for row in ledger if row.claim.id == "products-small"]


def verdict_at(threshold):
    claim = replace(small.claim, threshold=threshold)
    return replace(small, claim=claim).verdict


if generous is not None:
    assert generous == round(generous, 2), "a threshold to two decimals"
    assert verdict_at(generous) is Verdict.HOLDS, "not enough: some interval still reaches beyond it"
    assert verdict_at(generous - 0.01) is not Verdict.HOLDS, "a smaller threshold would do"
    print(f"right: {generous}, where the claim has {small.claim.threshold}: the highest upper end decides")

# %% [markdown]
# **2 (medium).** With $m$ verdicts, intervals at $1 - 0.05/m$ hold *all* truths with 95 % (Bonferroni). As if errors
# were normal, stretch every interval accordingly: by which factor? Which verdicts, of which models, turn mixed?
#
# <details><summary>Hint</summary>
#
# Step 1: an interval at 95 % reaches `norm.ppf(0.975)` standard errors to either side. How many does one at
# $1 - 0.05/m$ reach?
#
# Step 2: the two sides of an interval may differ in length; each is stretched by the same factor. `verdict` judges the
# stretched ends, with the claim's own `threshold` and `direction`.
#
# </details>

# %%
stretch = None  # how many times as long every interval becomes

count = sum(len(row.readings) for row in ledger)
if stretch is not None:
    beyond = norm.cdf(-stretch * norm.ppf(0.975))
    assert np.isclose(beyond, 0.025 / count), "two sides, and as many intervals as there are readings"
    print(f"right: {stretch:.2f} times as long, for {count} intervals")

# %%
turned = None  # a set of pairs, as in {("heterogeneous", "mini-gpt2")}

if turned is not None:
    wider = norm.ppf(1 - 0.025 / count) / norm.ppf(0.975)
    expected = set()
    for row in ledger:
        for name, reading in row.readings.items():
            value, low, high = reading.estimate.value, reading.estimate.low, reading.estimate.high
            ends = value - wider * (value - low), value + wider * (high - value)
            if verdict(*ends, row.claim.threshold, row.claim.direction) is not row.verdicts[name]:
                expected.add((row.claim.id, name))
    assert turned <= expected, f"still what they were: {sorted(turned - expected)}"
    assert turned == expected, f"{len(expected - turned)} of those that turn are missing"
    print(f"right: {len(turned)} of {count} verdicts turn mixed; a wider interval turns none round")

# %% [markdown]
# **3 (harder).** State a claim of your own as TOML, on a statistic that is there, such that it *does not hold here* in
# any model. Then try to make it so by adding `verdict = "holds here"`.
#
# <details><summary>Hint</summary>
#
# Step 1: copy one `[[claim]]` table of `paper/claims.toml` into a text between triple quotes, and change its `id` and
# its `sentence`. `parse` reads such a text.
#
# Step 2: `statistic` is one of the names in `STATISTICS`, and `notebook` is the one whose results it reads. With which
# `threshold` and `direction` do the intervals of all models lie on the wrong side?
#
# Step 3: `claims.evaluate(run.results, parse(mine))` judges it. Then add the line `verdict = "holds here"` and read
# what `parse` says.
#
# </details>

# %%
mine = None  # a text in TOML, with one claim

if mine is not None:
    judged = claims.evaluate(run.results, parse(mine))
    assert len(judged) == 1, "one claim, please"
    assert judged[0].claim.id not in {claim.id for claim in stated}, "give it an id of its own"
    assert judged[0].verdict is Verdict.NOT, f"the verdict is {judged[0].verdict}: no model is to bear it out"
    print("right:", judged[0].claim.sentence, judged[0].verdict)
