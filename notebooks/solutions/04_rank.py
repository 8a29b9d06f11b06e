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
# # 04 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import torch

import howlinear as hl
from howlinear.core.fold_maps import fit_folds
from howlinear.ideas.rank import measure, scores
from howlinear.ideas.rank import rows as token_rows
from howlinear.notebook.run import start

run = start("04_rank", profile)
first = next(iter(run.models))
blocks = run.capture(first).blocks
middle_block = blocks[list(blocks)[len(blocks) // 2]]

# %% [markdown]
# **1.** $(a + m)^2 = 2\,(a^2 + m)$ with $m = d - 1$ is a quadratic in $a$; the larger root is $a = m + \sqrt{2m^2 -
# 2m}$, about $2.4\,d$: one feature must be far louder than all others together for the effective rank to be 2.


# %%
def variance(d):
    others = d - 1
    return others + (2 * others**2 - 2 * others) ** 0.5


for d in (3, 100):
    variances = torch.ones(d, dtype=torch.float64)
    variances[0] = variance(d)
    assert abs(hl.effective_rank(variances.diag()) - 2) < 1e-9
print("d = 100:", round(variance(100)))

# %% [markdown]
# **2.** The pooled $R^2$ does not depend on the axes; the median does. Each feature is a mixture of loud and quiet
# directions, so the loud ones count in every feature; along directions each counts once, and most directions are quiet.

# %%
maps = fit_folds(middle_block.train, refit=False)
sample = middle_block.rows()
test_rows = sample.select(sample.test)
basis = scores.directions(sample.y[~sample.test])
along_features = scores.score_rows(maps, test_rows).whole
along_directions = scores.score_rows(maps, test_rows, basis).whole
turned_median = along_directions.median()
print(f"pooled R²: {along_features.r2():.2f} along features, {along_directions.r2():.2f} along directions")
print(f"median R²: {along_features.median():.2f} along features, {turned_median:.2f} along directions")
assert abs(along_features.r2() - along_directions.r2()) < 1e-9

# The same, step by step.
x = test_rows.x.double()
y = test_rows.y.double()
missed = (y - maps.whole(x)) @ basis
centred = (y - y.mean(0)) @ basis
r2_of_each = 1 - missed.square().sum(0) / centred.square().sum(0)
assert abs(turned_median - float(r2_of_each.quantile(0.5))) < 1e-6

# %% [markdown]
# **3.** Twelve loud straight features among 28 bent ones: the pooled $R^2$ is high, the median feature is bent, and the
# outputs use a dozen directions. The rank is not low, so the two signs disagree and `regime` says so: a low rank is one
# way of being concentrated, not the only one. Figure 4 shows this block by its distance from the diagonal, not by its
# size.


# %%
def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


x = normal(8_000, 40, seed=0)
one = x @ normal(40, 40, seed=1)
other = x @ normal(40, 40, seed=2)
bent = one * other / 40
loud_straight = 10 * x[:, :12]
crowd = token_rows.planted_block(x, torch.cat([loud_straight, bent[:, 12:]], 1))
counts = [0, 12]
high, few, gap = 0.9, 2.0, 0.25
seen = measure.measure_block(crowd, crowd.sample.token, counts)
assert seen.r2.value > 0.9
assert seen.median.value < 0.1
assert seen.rank.value > 8
assert seen.regime(high, few, gap) == "mixed"
assert seen.features[1].value < 0.1

# %% [markdown]
# **4.** `correlated(x, y)` sees all rows, including the held-out ones. Of 300 inputs that have nothing to do with the
# output, it picks the ten that happen to correlate with it on these very rows, and the score rewards that luck. The
# split comes too late: whatever is chosen by looking at outputs, be it inputs, a rank or when to stop, must be chosen
# without the rows that are scored. (By the same rule this notebook ranks loudness by train variance.)


# %%
def correlated(x, y, count=10):
    output_and_inputs = torch.cat([y[:, None], x], 1)
    with_output = torch.corrcoef(output_and_inputs.T)[0, 1:]
    return with_output.abs().topk(count).indices


def held_out_r2(x, y, test):
    inputs = x.shape[1]
    train = hl.Moments(inputs, 1).update(x[~test], y[~test, None])
    held_out = hl.Moments(inputs, 1).update(x[test], y[test, None])
    return hl.ceiling(train, held_out).r2


def by_all_rows(x, y, test):
    chosen = correlated(x, y)
    return held_out_r2(x[:, chosen], y, test)


def repaired(x, y, test):
    chosen = correlated(x[~test], y[~test])
    return held_out_r2(x[:, chosen], y, test)


held = torch.arange(100) >= 60
honest, friends = [], []
for seed in range(10):
    columns = normal(100, 301, seed=seed)
    inputs, output = columns[:, :300], columns[:, 300]
    honest.append(repaired(inputs, output, held))
    friends.append(by_all_rows(inputs, output, held))
print(f"noise, on the mean: {sum(friends) / 10:.2f} chosen by all rows, {sum(honest) / 10:.2f} by those to fit on")
assert sum(honest) <= 0 < sum(friends)
