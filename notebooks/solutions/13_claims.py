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
from dataclasses import replace

import numpy as np
from scipy.stats import norm

from howlinear.errors import InputError
from howlinear.ideas.claims import ledger as claims
from howlinear.ideas.claims.claim import Verdict, load_claims, parse, verdict
from howlinear.notebook.run import start

# %% [markdown]
# A ledger needs the results of the other notebooks. The embedded models' are kept with the project; the small profile
# for tests keeps none, so under it we judge theirs.

# %%
run = start("13_claims", "minis" if profile == "smoke" else profile)
stated = load_claims()
ledger = claims.evaluate(run.results, stated)
rows = {row.claim.id: row for row in ledger}

# %% [markdown]
# **1.** For *below*, the upper end decides; for all models, the highest of them; and it must be cleared.

# %%
small = rows["products-small"]
highest = max(reading.estimate.high for reading in small.readings.values())
generous = round(np.floor(100 * highest) / 100 + 0.01, 2)


def verdict_at(threshold):
    claim = replace(small.claim, threshold=threshold)
    return replace(small, claim=claim).verdict


assert verdict_at(generous) is Verdict.HOLDS
assert verdict_at(generous - 0.01) is not Verdict.HOLDS
print("little would be", generous)

# %% [markdown]
# **2.** A 95 % interval reaches 1.96 standard errors; one of $1 - 0.05/m$ reaches $\Phi^{-1}(1 - 0.025/m)$ of them. A
# wider interval can make a verdict mixed and can never turn it round. (Our contrasts of blocks are on the wide side
# already, so this is strict.)

# %%
count = sum(len(row.readings) for row in ledger)
stretch = norm.ppf(1 - 0.025 / count) / norm.ppf(0.975)


def stretched(claim, estimate):
    low = estimate.value - stretch * (estimate.value - estimate.low)
    high = estimate.value + stretch * (estimate.high - estimate.value)
    return verdict(low, high, claim.threshold, claim.direction)


turned = set()
for name, row in rows.items():
    for model, reading in row.readings.items():
        strict = stretched(row.claim, reading.estimate)
        if strict is not row.verdicts[model]:
            assert strict is Verdict.MIXED
            turned.add((name, model))
print(f"{count} cells, stretched by {stretch:.2f}; now mixed: {sorted(turned)}")

# %% [markdown]
# **3.** Ask more of a number than it has. A verdict in the text is refused, whatever it says.

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
(own,) = claims.evaluate(run.results, parse(mine))
assert own.verdict is Verdict.NOT
try:
    parse(mine + 'verdict = "holds here"\n')
except InputError as error:
    print("refused:", error)
else:
    raise AssertionError("a verdict was taken from the text")
