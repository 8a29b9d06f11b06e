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
# **Question.** Which claims do the numbers of notebooks 02 to 12 support on the models of this run, and which do they
# leave open? The claims are the paper's findings, section by section, what would falsify its main finding, one claim of
# the press, and some of our own.
#
# **You need** notebook 02; the numbers come from the others. **You learn** to turn a sentence into a statistic, an
# interval and a threshold, and to judge it by them. **Time** 15 minutes to read, 1 to run.

# %% tags=["parameters"]
profile = "minis"  # whose results to judge: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
other_texts: str or None = None  # a run profile of the same models on other texts, for claims about texts
factors = [0.5, 0.75, 1.0, 1.5, 2.0]  # multiples of every threshold at which the verdicts are taken again

# %%
from howlinear.ideas.claims import claim, ledger, numbers
from howlinear.notebook.run import start

run = start("13_claims", profile, model, corpus)
stated = claim.load_claims()
print(len(stated), "claims, of notebooks:", ", ".join(sorted({each.notebook for each in stated})))
print("the ledger's fingerprint:", claim.fingerprint()[:12])

# %% [markdown]
# ## Predict first
#
# These are the claims. Before you read on: which of them will come out as *holds here* (write ✓), *does not hold here*
# (✗) or *mixed* (~) on the first model of this run? Fill in as many as you like; the run will count your hits.

# %%
import textwrap

for each in stated:
    print(textwrap.fill(f"{each.section} {each.id}: {each.sentence}", 110, subsequent_indent="    "))

# %%
guesses = {}  # for example {"heterogeneous": "✓", "compression": "~"}

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# "It holds" is easily typed. So nobody types it here. A claim becomes a question whose answer is a number (*how far
# apart are the highest and the lowest block?*) with a 95 % interval, and every claim has a threshold with a reason. For
# each model there are then exactly five cases:
#
# - the whole interval lies beyond the threshold on the claim's side: **holds here** (✓);
# - the whole interval lies on the other side: **does not hold here** (✗);
# - the interval contains the threshold: **mixed** (~); the data cannot decide, which is not the same as *no*;
# - by a stated rule, the results say nothing about the claim: **not testable here** (–);
# - a search finds little, but also misses what is planted in the same model: **no power here** (?).
#
# The word *here* matters: other models can neither reproduce nor refute what is said of GPT-2. Over several models, the
# verdict is mixed unless all agree; a claim that something *can* be the case holds if it holds in one model.
#
# "$r \approx 0$" needs care. An interval that contains 0 shows nothing if it is wide. To show *no relation*, the whole
# interval must fit inside a band around 0: a test of equivalence, with the burden of proof where it belongs.
#
# The threshold is where judgement enters: "widely", "little", "about the same" are words. Two things keep it honest.
# First, the paper must pass its own ledger: with **the same statistic on the paper's own numbers**, and the same rule
# for several models, every finding that these numbers test must hold; if one does not, we have misread the paper, and a
# test rejects the row. Second, the file of claims was fixed before any but the embedded models were run: its
# fingerprint is stored with the results, so any change of the file shows.
#
# The last rows are claims of our own, about massive rows (notebook 12). They were stated after the embedded models and
# all public ones but mpnet-base had been measured, so a ✓ on these does not test them. A verdict on mpnet-base does,
# and one on the paper's models will.

# %% [markdown]
# ## Method
#
# | step | rule | function |
# |---|---|---|
# | a claim as data | sentence, statistic, threshold, direction, reason; a verdict is refused | `claim.parse` |
# | its number | from one notebook's recorded results, with its interval | `numbers.STATISTICS` |
# | the paper's own | the same from what the paper publishes | `ledger.as_results`, `own_verdict` |
# | one verdict | above: ✓ if low > t, ✗ if high < t; below: the reverse; within: ✓ inside ± t | `claim.verdict` |
# | the largest of $m$ | every interval at $1 - 0.05/m$ first (Bonferroni) | `contrasts.extreme` |
# | the ledger | all claims on a folder of results, a row for each claim and model | `ledger.evaluate` |
#
# Where a result has one interval per block, a contrast of two blocks takes the worst case of both: $r_j - r_i$ runs
# from $\mathrm{low}_j - \mathrm{high}_i$ to $\mathrm{high}_j - \mathrm{low}_i$. This is wider than necessary, which
# makes up for picking the largest of many contrasts. Two profiles are compared by their **mean distance**
# $\tfrac1B \sum_b |r_b - r'_b|$, one measure with one threshold for both *the same* and *sharply different*: no two
# curves can be both. On average, noise only adds to a distance.
#
# A claim is untestable if a file is missing, if the run did not take the measure, or if the model has no block of the
# kind that the claim is about. A file that lacks what every run has is an error instead: a ledger that silently drops
# rows would be worse than no ledger.

# %%
examples = {"clear": (0.31, 0.42), "the other side": (0.05, 0.12), "in doubt": (0.19, 0.33)}
for name, (low, high) in examples.items():
    print(f"{name}: [{low}, {high}] above 0.25 → {claim.verdict(low, high, 0.25, 'above')}")
print(f"a wide interval round 0: [-0.6, 0.6] within ± 0.4 → {claim.verdict(-0.6, 0.6, 0.4, 'within')}")

# %% [markdown]
# Now one claim from end to end, on a made-up model of three blocks. Its statistic is *highest block − lowest block*:
# here block 0 minus block 1, with an interval from 0.80 − 0.45 to 0.90 − 0.35.

# %%
import pandas as pd

from howlinear.files.tables import Results

blocks = {"model": "made up", "r2": [0.85, 0.40, 0.60], "r2_low": [0.80, 0.35, 0.55], "r2_high": [0.90, 0.45, 0.65]}
made_up = Results("02_ceilings", {"blocks": pd.DataFrame(blocks)}, {"settings": {"models": ["made up"]}})
(heterogeneous,) = [each for each in stated if each.id == "heterogeneous"]
reading = numbers.STATISTICS[heterogeneous.statistic](made_up)["made up"]
print(heterogeneous.question, heterogeneous.show(reading.estimate), "→", heterogeneous.verdict(reading.estimate))

# %% [markdown]
# First we judge the paper by its own ledger, in which none of its findings may fail.

# %% tags=["nbval-check-output"]
paper = run.record("paper", ledger.paper_numbers(stated))
print(paper[paper.claim == "heterogeneous"].to_string(index=False))
own = {each.id: ledger.own_verdict(each) for each in stated if each.kind == "finding"}
print("findings that the paper's own numbers pass:", sum(each is claim.Verdict.HOLDS for each in own.values()))
print("that it publishes no number for:", [name for name, each in own.items() if each is claim.Verdict.UNTESTABLE])

# %% [markdown]
# ## Run
#
# One call judges every claim on the recorded results of this run profile: one row for each claim and model, with the
# number, its interval, the block it belongs to and the verdict. Where the number can also be computed without the first
# and the last block, that value is given as `inner`; it does not affect the verdict.

# %%
found = ledger.evaluate(run.results, stated)
verdicts = run.record("verdicts", found)
on_others = run.record("other_texts", ledger.evaluate_other_texts(run.results, stated, other_texts))
verdicts[["claim", "model", "verdict", "value", "value_low", "value_high"]].head(8)

# %% [markdown]
# The same as a table, with a row for each claim and a column for each model; *together* is for claims about two models
# or the twins, and for claims that cannot be tested on any model here.

# %%
pd.set_option("display.max_colwidth", None)
board = ledger.board(verdicts, paper, stated)
board

# %% [markdown]
# ## Figure: the board
#
# **How to read it.** Each strip is a claim, with its threshold in the middle. The claim holds on the right, whether
# that means above or below the threshold: an interval wholly on the right is ✓ (blue), wholly on the left ✗ (orange),
# across the middle ~ (olive). Each shape is a model. At an open mark the verdict would be another without the two end
# blocks or without massive rows (the legend says which occur); a pale one rests on a search without power. Rings are
# the paper's own numbers; where it says that something *can* be the case, one ring on the right is enough. Each strip
# has its own scale, set by its outermost mark, so compare lengths only within a strip. The labels on the right are the
# question and the paper's section; in the rows that would *falsify*, the paper hopes for the left.

# %%
import matplotlib.pyplot as plt

from howlinear.plots import claims as plots

figure = plots.board(ledger.show(verdicts, stated), ledger.show(paper, stated))
run.figure(figure, "board")
plt.show()

# %% [markdown]
# ## Which verdicts hang on a threshold?
#
# Here every threshold is multiplied by a factor while the numbers stay as they are; each mark is a model, in the order
# of the board. A row that is ✓ or ✗ under every factor does not depend on its threshold; a row that is ~ throughout
# stays undecided. A row that changes near 1 depends on how the wording of the claim is read. In two cases the outcome
# is forced: a threshold of 0 does not move, and a threshold that a factor takes beyond ±1, for an $r$, an $R^2$ or a
# share, decides the row by itself.

# %% tags=["nbval-check-output"]
thresholds = run.record("thresholds", ledger.move_thresholds(found, stated, factors))
marks = thresholds.assign(mark=[claim.Verdict(each).symbol for each in thresholds.verdict])
print(marks.groupby(["claim", "factor"], sort=False).mark.agg("".join).unstack().to_string())

# %%
claims = run.record("claims", ledger.summarise(stated, found, thresholds))
print("the same under all of them:", ", ".join(claims[claims.steady.fillna(False)].claim))

run.folded("Every threshold, and why", pd.DataFrame([(each.id, each.asked, each.why) for each in stated]))

# %%
run.save(settings=ledger.settings_of_ledger(factors))

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %%
model = next(iter(run.models))
mine = ledger.show(verdicts[verdicts.model == model], stated).set_index("claim").mark
hits = [name for name, guess in guesses.items() if mine.get(name, "–") == guess]
print(f"your guesses for {model}: {len(hits)} of {len(guesses)} right")

# %% [markdown]
# - A verdict is about *these* models. A claim about GPT-2 that small models do not support is not refuted: with run
#   profile `paper`, the same rules judge the paper's own models.
# - *ill-conditioned*: the reason given for its threshold is wrong, but stays as it was fixed. Gradient descent needs
#   about as many steps as the *square* of the condition number (notebook 07), so the rule leaves out blocks that it
#   should count.
# - The paper itself finds that $R^2_{\mathrm{lin}}$ and the cost of a swap come apart (*dissociation*,
#   *linear-and-dear*), and that a nearly linear block may be costly. We only check whether the same pattern appears
#   here.
# - *gain-not-residual* is judged as the paper judges it, over all blocks. The results also have $r$ without the two end
#   blocks: where the two differ, one or two blocks make the correlation, both here and in the paper's own GPT-2.
# - Verdicts of ✓ need not be independent. *heterogeneous*, *adjacent*, *non-monotone* and *text-same-shape* can all be
#   read off one fact, that the first and the last block differ from the others. Where this is so, the answer above says
#   it, and gives the verdict of the same rule without these two blocks.
# - *text-same-shape* and *text-small-shift* are about the texts that were tried. The answer above names them and, where
#   the same models also read other texts (the embedded ones read prose), gives the verdicts on those.
# - The falsifiers are judged like all other claims. *falsifier-twins* compares models that share all but their training
#   text, relative to twins that share all but the seed.
# - The interval of a correlation treats the blocks of a model as independent. Neighbouring blocks are alike, and a
#   first block may lie far out, so it is too narrow: the book's page on intervals says by how much.
# - With so many 95 % intervals, not *all* will contain the truth. Exercise 2 asks which verdicts remain if all must.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/13_claims.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** What threshold would `products-small` need to hold in every model? Give the smallest, in $R^2$ and to
# two decimals.
#
# <details><summary>Hint</summary>
#
# Step 1: `small` has a row for each model, with `value`, `value_low` and `value_high`. The claim is that a number lies
# *below* a threshold, and it holds where the whole interval does. Which end decides?
#
# Step 2: the claim must hold in every model. Which model decides?
#
# Step 3: that end must still be cleared after rounding to two decimals. `holds_at(…)` checks whether it is, and whether
# 0.01 less would do as well.
#
# </details>

# %%
generous = None  # a threshold, to two decimals

small = verdicts[verdicts.claim == "products-small"].dropna(subset=["value"])


def holds_at(threshold):
    ends = zip(small.value_low, small.value_high, strict=True)
    return all(claim.verdict(low, high, threshold, "below") is claim.Verdict.HOLDS for low, high in ends)


if generous is not None:
    assert generous == round(generous, 2), "a threshold to two decimals"
    assert holds_at(generous), "not enough: some interval still reaches beyond it"
    assert not holds_at(generous - 0.01), "a smaller threshold would do"
    print(f"right: {generous}: the highest upper end decides")

# %% [markdown]
# **2 (medium).** With $m$ verdicts, intervals at $1 - 0.05/m$ contain *all* true values with 95 % (Bonferroni). Assume
# normal errors and stretch every interval accordingly: by which factor? Which verdicts, in which models, turn mixed?
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
import numpy as np
from scipy.stats import norm

stretch = None  # how many times as long every interval becomes

readings = verdicts[verdicts.verdict != "no power here"].dropna(subset=["value"])
readings = readings.merge(claims[["claim", "threshold", "direction"]], on="claim")
count = len(readings)
if stretch is not None:
    beyond = norm.cdf(-stretch * norm.ppf(0.975))
    assert np.isclose(beyond, 0.025 / count), "two sides, and as many intervals as there are readings"
    print(f"right: {stretch:.2f} times as long, for {count} intervals")

# %%
turned = None  # a set of pairs, as in {("heterogeneous", "mini-gpt2")}

if turned is not None:
    wider = norm.ppf(1 - 0.025 / count) / norm.ppf(0.975)
    expected = set()
    for row in readings.itertuples():
        low, high = (row.value + wider * (end - row.value) for end in (row.value_low, row.value_high))
        if claim.verdict(low, high, row.threshold, row.direction) != row.verdict:
            expected.add((row.claim, row.model))
    assert turned <= expected, f"still what they were: {sorted(turned - expected)}"
    assert turned == expected, f"{len(expected - turned)} of those that turn are missing"
    print(f"right: {len(turned)} of {count} verdicts turn mixed; a wider interval reverses none")

# %% [markdown]
# **3 (harder).** State a claim of your own in TOML, on an existing statistic, that *does not hold here* in any model.
# Then try to make it hold by adding `verdict = "holds here"`.
#
# <details><summary>Hint</summary>
#
# Step 1: copy one `[[claim]]` table of `paper/claims.toml` into a text between triple quotes, and change its `id` and
# its `sentence`. `claim.parse` reads such a text.
#
# Step 2: `statistic` is one of the names in `numbers.STATISTICS`, and `notebook` is the one whose results it reads.
# With which `threshold` and `direction` do the intervals of all models lie on the wrong side?
#
# Step 3: `ledger.evaluate(run.results, claim.parse(mine))` judges it. Then add the line `verdict = "holds here"` and
# read what `claim.parse` says.
#
# </details>

# %%
mine = None  # a text in TOML, with one claim

if mine is not None:
    own, *more = claim.parse(mine)
    assert not more, "one claim is enough: take the others out"
    assert own.id not in {each.id for each in stated}, "give it an id of its own"
    judged = ledger.evaluate(run.results, [own]).verdict.unique().tolist()
    assert judged == [claim.Verdict.NOT], f"the verdicts are {judged}: no model is to bear it out"
    print("right:", own.sentence, judged[0])
