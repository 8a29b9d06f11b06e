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
# # 16 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import torch

import howlinear as hl
from howlinear.core.ceilings import fit
from howlinear.core.token_split import TokenSums, split
from howlinear.ideas.tokens.table import table_alone
from howlinear.instrument.token_split import Grouping, token_sums
from howlinear.notebook.run import start

run = start("16_tokens", profile)
first_model = run.model(next(iter(run.models)))
last = hl.sites(first_model)[-1].block
text = run.corpus(run.corpora[0], first_model).rows(run.rows, run.seq_len, run.seed)
sides = [Grouping.by_token(text, held_out) for held_out in (False, True)]
train, held_out = token_sums(first_model, text, sides, [last])[last]

# %% [markdown]
# **1.** $0.9 \cdot 0.8 + 0.1 \cdot (-0.2) = 0.7$.

# %%
joined = 0.9 * 0.8 + 0.1 * -0.2
assert round(joined, 6) == 0.7

# %% [markdown]
# **2.** Take all pairs minus those within a fold, and divide by their number.


# %%
def square_of_mean(z, fold):
    products, pairs = z.sum(0).square().sum(), len(z) ** 2
    for number in fold.unique():
        inside = z[fold == number]
        products = products - inside.sum(0).square().sum()
        pairs -= len(inside) ** 2
    return float(products / pairs)


assert abs(square_of_mean(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1])) - 8) < 1e-5

# %% [markdown]
# **3.** Sums of squares and products within tokens are those of all rows minus those of the token means, each counted
# as often as its token occurs. A line fitted to these has the slope of a regression on $x$ and a free table.


# %%
def within(side: TokenSums) -> hl.Moments:
    moments = hl.Moments.total(side.rows.values())
    types, kind = side.types
    count, sum_x, sum_y = (
        sums.new_zeros(len(types), *sums.shape[1:]).index_add_(0, kind, sums)
        for sums in (side.count, side.sum_x, side.sum_y)
    )
    off_x, off_y = sum_x / count[:, None] - moments.mean_x, sum_y / count[:, None] - moments.mean_y
    moments.sxx -= off_x.T @ (count[:, None] * off_x)
    moments.sxy -= off_x.T @ (count[:, None] * off_y)
    moments.syy -= count @ off_y.square()
    return moments


lines = {"one line": hl.Moments.total(train.rows.values()), "a line within": within(train)}
r2_within = {name: split(fit(moments)[0], held_out).r2_within for name, moments in lines.items()}
assert r2_within["a line within"] > r2_within["one line"]
print({name: round(r2, 2) for name, r2 in r2_within.items()})

# %% [markdown]
# **4.** She scores the table on the rows that it was made from. There, a token that occurs once is explained by itself.


# %%
def friends_r2(train, held_out):
    return table_alone(train).r2(train)


def repaired(train, held_out):
    return table_alone(train).r2(held_out)


assert repaired(train, held_out) < friends_r2(train, held_out)
print(f"{repaired(train, held_out):.2f}")
