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
from howlinear import notebooks, rank
from howlinear.capture import BlockCapture, Sample
from howlinear.carried import view

run = notebooks.start("04_rank", profile)
first = next(iter(run.models))
blocks = run.capture(first).blocks
kept = blocks[max(blocks)]

# %% [markdown]
# **1.** $(a + m)^2 = 2\,(a^2 + m)$ with $m = d - 1$ is a quadratic in $a$; the larger root is
# $a = m + \sqrt{2m^2 - 2m}$, about $2.4\,d$: one feature must be louder than all others together, and by far, before
# the effective rank says 2.


# %%
def variance(d):
    return (d - 1) + (2 * (d - 1) ** 2 - 2 * (d - 1)) ** 0.5


for d in (3, 100):
    diagonal = torch.tensor([variance(d), *[1.0] * (d - 1)], dtype=torch.float64).diag()
    assert abs(rank.spread(diagonal).effective_rank - 2) < 1e-9
print("d = 100:", round(variance(100)))

# %% [markdown]
# **2.** The pooled $R^2$ does not know the axes; the median does. Each feature is a mixture of directions, loud and
# quiet, so the loud ones speak in every feature; along directions each speaks once, and most directions are quiet.

# %%
found, rows = rank.maps(kept.train, refit=False), rank.pick(kept.sample, lambda sample: sample.test)
turn = rank.directions(kept.sample.y[~kept.sample.test])
plain, turned = (rank.scored_rows(found, rows, basis).without() for basis in (None, turn))
turned_median = turned.median()
print(f"pooled {plain.r2():.2f} and {turned.r2():.2f}, median {plain.median():.2f} and {turned_median:.2f}")
assert abs(plain.r2() - turned.r2()) < 1e-9
left = ((rows.y.double() - found[0](rows.x.double())) @ turn).square().sum(0)
along = ((rows.y.double() - rows.y.double().mean(0)) @ turn).square().sum(0)
assert abs(turned_median - float((1 - left / along).quantile(0.5))) < 1e-6

# %% [markdown]
# **3.** Twelve loud straight features among 28 bent ones: the pooled $R^2$ is high, the median feature is bent, and the
# outputs use a dozen directions. The rank is not low, so the two signs disagree and `regime` says so: a low rank is
# one way of being concentrated, not the only one. Figure 4 catches this block by its distance from the diagonal, not by
# its size.


# %%
def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_block(x, y):
    i, (d_in, d_out) = torch.arange(len(x)), (x.shape[1], y.shape[1])
    sample = Sample(x.float(), y.float(), i % 16, i % 7, i // 16 % 4 == 3, i // 64 % 8)
    sides = [[sample.fold.eq(fold) & sample.test.eq(test) for fold in range(8)] for test in (False, True)]
    folds = [[hl.Moments(d_in, d_out).update(sample.x[part], sample.y[part]) for part in side] for side in sides]
    return BlockCapture(*folds, hl.Moments(d_out).update(sample.y[sample.test]), sample)


x = normal(8_000, 40, seed=0)
bent = (x @ normal(40, 40, seed=1)) * (x @ normal(40, 40, seed=2)) / 40
crowd = as_block(x, torch.cat([10 * x[:, :12], bent[:, 12:]], 1))
seen = view(crowd, crowd.sample.token, counts=[0, 12])
assert seen.r2.value > 0.9
assert seen.median.value < 0.1
assert seen.rank.value > 8
assert seen.regime() == "mixed"
assert seen.features[1].value < 0.1
