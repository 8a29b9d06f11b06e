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
# # 13 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import numpy as np
from scipy.stats import norm

from howlinear.errors import InputError
from howlinear.ideas.claims import claim, ledger
from howlinear.notebook.run import start

# %% [markdown]
# A ledger needs the results of the other notebooks. Those of the embedded models are kept with the project; the small
# profile for tests keeps none, so it judges those too.

# %%
run = start("13_claims", "minis" if profile == "smoke" else profile)
stated = claim.load_claims()
verdicts = ledger.evaluate(run.results, stated)
claims = ledger.summarise(stated, verdicts, ledger.move_thresholds(verdicts, stated, [1.0]))
readings = verdicts[verdicts.verdict != "no power here"].dropna(subset=["value"])
readings = readings.merge(claims[["claim", "threshold", "direction"]], on="claim")

# %% [markdown]
# **1.** For *below*, the upper end decides, and over all models the highest upper end; the threshold must lie above it.

# %%
small = readings[readings.claim == "products-small"]
highest = small.value_high.max()
generous = round(np.floor(100 * highest) / 100 + 0.01, 2)


def holds_at(threshold):
    ends = zip(small.value_low, small.value_high, strict=True)
    return all(claim.verdict(low, high, threshold, "below") is claim.Verdict.HOLDS for low, high in ends)


assert holds_at(generous)
assert not holds_at(generous - 0.01)
print("little would be", generous)

# %% [markdown]
# **2.** A 95 % interval reaches 1.96 standard errors to either side; one at $1 - 0.05/m$ reaches
# $\Phi^{-1}(1 - 0.025/m)$. A wider interval can make a verdict mixed but never reverse it. (Our contrasts of blocks are
# wide already, so this is strict.)

# %%
count = len(readings)
stretch = norm.ppf(1 - 0.025 / count) / norm.ppf(0.975)

turned = set()
for row in readings.itertuples():
    low, high = (row.value + stretch * (end - row.value) for end in (row.value_low, row.value_high))
    strict = claim.verdict(low, high, row.threshold, row.direction)
    if strict != row.verdict:
        assert strict is claim.Verdict.MIXED
        turned.add((row.claim, row.model))
print(f"{count} cells, stretched by {stretch:.2f}; now mixed: {sorted(turned)}")

# %% [markdown]
# **3.** Choose a threshold that no model reaches. A verdict in the text is refused, whatever it says.

# %%
mine = """
[[claim]]
id = "all-linear"
sentence = "Every block is a straight line."
section = "§0"
paper = "nothing of the kind"
notebook = "02_ceilings"
statistic = "lowest"
asks = "R²_lin of the least linear block"
threshold = 0.99
direction = "above"
unit = "R²"
why = "A straight line is a straight line."
"""
assert set(ledger.evaluate(run.results, claim.parse(mine)).verdict) == {claim.Verdict.NOT}
try:
    claim.parse(mine + 'verdict = "holds here"\n')
except InputError as error:
    print("refused:", error)
else:
    raise AssertionError("a verdict was taken from the text")
