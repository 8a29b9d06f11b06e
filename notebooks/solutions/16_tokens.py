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
# **2.** All pairs less those within a fold, over their number.


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
# **3.** She scores the table on the rows that it was made of. A token that occurs once is explained there by itself.


# %%
def friends_r2(train, held_out):
    return table_alone(train).r2(train)


def repaired(train, held_out):
    return table_alone(train).r2(held_out)


assert repaired(train, held_out) < friends_r2(train, held_out)
print(f"{repaired(train, held_out):.2f}")
