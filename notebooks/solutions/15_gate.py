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
# # 15 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import torch

import howlinear as hl
from howlinear.core.ceilings import fit
from howlinear.ideas.gate import measure
from howlinear.ideas.gate.fit import GATE, ORACLE, split_in_three
from howlinear.instrument.selection import choose_blocks
from howlinear.notebook.run import start

run = start("15_gate", profile)
first = next(iter(run.models))
first_model = run.model(first)
text = run.corpus(run.corpora[0], first_model).rows(run.rows, run.seq_len, run.seed)
asked = choose_blocks("depth 0.9", run.capture(first).blocks)
(gate,), (rows,) = [each.values() for each in measure.fit_gates(first_model, split_in_three(text), asked, run.seed)]

# %% [markdown]
# **1.** Half of the $F$ multiplications per token are left, and $d^2/2 + d$ are added: $\frac12 - (\frac12 d^2 + d)/F$.
# In a block of $8 d^2$ the line costs an eighth, and the score next to nothing.

# %%
block = hl.sites(first_model)[0].ffn
d = first_model.config.get_text_config().hidden_size
multiplications = sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 2)
saving = 0.5 - (0.5 * d * d + d) / multiplications
assert saving < 0.5
print(f"{saving:.3f}")

# %% [markdown]
# **2.** A random half would contain half of the oracle's half. The gate has more in common with the oracle, since the
# score orders rows nearly as the error does; and any function that keeps the order gives the same gate.


# %%
def common(scores, errors):
    gates_half = scores <= scores.median()
    oracles_half = errors <= errors.median()
    return float(oracles_half[gates_half].float().mean())


shared = common(gate.ranks[GATE](rows.x), gate.ranks[ORACLE](rows.x))
assert 0.55 < shared < 1
print(f"{shared:.2f}")

# %% [markdown]
# **3.** The rows near the middle of a projection lie between the others, so no plane separates them. An affine function
# is higher on one side and lower on the other, and on average it is the same for both kinds of rows.

# %%
direction = torch.randn(rows.x.shape[1], generator=torch.Generator().manual_seed(3))
middle = (rows.x @ direction).median()
typical = (rows.x @ direction - middle).abs().median()


def straight(x):
    return (x @ direction - middle).abs() < typical


assert abs(float(straight(rows.x).float().mean()) - 0.5) < 0.01

# %% [markdown]
# **4.** Rows with a *low* score take the line, but she has fitted it to the rows that keep the block. Because of one
# wrong comparison, her line serves the tokens that never take it.


# %%
def friends_line(gate, share):
    takes = gate.ranked[GATE] > gate.threshold(GATE, share)
    line, _ = fit(gate.rows.moments(takes))
    return line


def repaired(gate, share):
    of_low_score = gate.ranked[GATE] <= gate.threshold(GATE, share)
    line, _ = fit(gate.rows.moments(gate.ordinary & of_low_score))
    return line


def error_of(line, share=0.5):
    takes = gate.ranks[GATE](rows.x) <= gate.threshold(GATE, share)
    missed = rows.y[takes] - line(rows.x[takes])
    return float(missed.square().sum(1).mean())


mended = error_of(repaired(gate, 0.5))
assert mended < error_of(gate.line) < error_of(friends_line(gate, 0.5))
print(f"{mended:.3g}")
