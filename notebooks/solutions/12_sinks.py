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
# # 12 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import torch

import howlinear as hl
from howlinear.core.ceilings import fit, r2
from howlinear.ideas.sinks import planted
from howlinear.ideas.sinks.measure import look, rest
from howlinear.instrument.capture import capture
from howlinear.instrument.selection import choose_blocks
from howlinear.notebook.run import start

run = start("12_sinks", profile)
first = next(iter(run.models))
model = run.model(first)
planted_block, *_ = choose_blocks("depth 0.4", [site.block for site in hl.sites(model)][1:])
sunk_text = run.corpus(run.corpora[0], model).rows(min(8192, run.rows), run.seq_len, run.seed)
before = capture(model, sunk_text, [planted_block - 1, planted_block], sample=run.sample, seed=run.seed)
clean = before[planted_block]
mark = torch.zeros(clean.outputs.d_in)
marked = torch.tensor([20, 70]) % len(mark)
mark[marked] = 50 * before[planted_block - 1].heavy_rows().median * torch.tensor([0.8, 0.6])
vector = torch.zeros(clean.outputs.d_in)
written = torch.tensor([10, 60, 100]) % len(vector)
vector[written] = 300 * clean.heavy_rows().median * torch.tensor([0.8, -0.5, 0.33])
with planted.sunk(model, planted_block, mark, vector):
    sunk = capture(model, sunk_text, [planted_block], sample=run.sample, seed=run.seed)[planted_block]
planted_looks = {
    ("clean", planted_block): look(clean, [0], [0]),
    ("sunk", planted_block): look(sunk, [0], [0]),
}

# %% [markdown]
# **1.** One of $L$ rows is $s$ times as large as the others. About the mean of all rows, the map explains
# $\frac1L (1 - \frac1L)\, s^2$ per row, and $1 - \frac1L$ per row is left. The explained share is
# $r = s^2 / (s^2 + L)$, so $s = \sqrt{L\,r / (1 - r)}$: the square root of the sequence length, times three for
# $r = 0.9$.


# %%
def sink_size(length, r):
    return (length * r / (1 - r)) ** 0.5


# one direction, L rows: s at the first, and ±1 at right angles to it, which no line explains
length, r = 65, 0.9
size = sink_size(length, r)
outputs = torch.zeros(length, 2, dtype=torch.float64)
outputs[0, 0] = size
outputs[1::2, 1] = 1
outputs[2::2, 1] = -1
spread = (outputs - outputs.mean(0)).square().sum(0)
assert abs(float(spread[0] / spread.sum()) - r) < 1e-9
print(f"L = 128, r = 0.9: {sink_size(128, 0.9):.0f}")

# %% [markdown]
# **2.** Score the map of all train rows on the ordinary held-out rows. $R^2$ is far below 0: on an ordinary row the map
# still writes part of the sink, wherever the input looks a little like that of the first token.


# %%
def elsewhere(block):
    of_all, _ = fit(sum(block.train))
    return r2(of_all, sum(block.ordinary().test))


assert elsewhere(sunk) < -1
assert elsewhere(clean) > 0
print(f"{elsewhere(sunk):.0f} with sinks, {elsewhere(clean):.2f} without")

# %% [markdown]
# **3.** Nearly all: one sink of 300 medians has the variance of 90,000 ordinary rows, more than there are here.

# %%
seen = planted_looks["sunk", planted_block]
enough = 0
while abs(rest(sunk, enough, seen.solved.ceiling.map).r2 - seen.solved.ordinary.r2) >= 0.1:
    enough += 1
assert enough > 0.8 * seen.solved.massive_rows
print(f"{enough} of {seen.solved.massive_rows}")

# %% [markdown]
# **4.** One loud, linear feature: a multiple of one input, on every token. No row is massive, since all rows grow alike
# and the median norm grows with them.


# %%
def change(x, y):
    changed = y.clone()
    changed[..., 3] = 20 * y.norm(dim=-1).mean() * x[..., 0] / x[..., 0].std()
    return changed


with planted.planted(model, planted_block, change):
    loud = capture(model, sunk_text, [planted_block], sample=run.sample, seed=run.seed)[planted_block]
seen = look(loud, [0], [0])
assert seen.solved.massive_rows == 0
assert seen.solved.ceiling.r2 > 0.9
assert seen.solved.effective_rank < 2
assert seen.carried_by == "features"
print(f"R² {seen.solved.ceiling.r2:.2f}, and {seen.loud.r2:.2f} without the loudest features")

# %% [markdown]
# **5.** The slope comes from ordinary rows, but the map goes through the means of all rows, and one sink of 300 medians
# in 128 rows moves the mean of the outputs by more than two medians. So the map is off by a constant on every ordinary
# token. A least-squares map goes through the means of the rows that it was fitted on; `fit` ensures this.


# %%
def friends_map(block):
    everything, ordinary = sum(block.train), sum(block.ordinary().train)
    slope = hl.ceiling(ordinary, ordinary).map.weight
    return hl.AffineMap(slope, everything.mean_y - everything.mean_x @ slope)


def repaired(block):
    of_ordinary, _ = fit(sum(block.ordinary().train))
    return of_ordinary


ordinary_held_out = sum(sunk.ordinary().test)
friends, mended = (r2(affine(sunk), ordinary_held_out) for affine in (friends_map, repaired))
assert friends < 0 < mended
without_sinks = (r2(affine(clean), sum(clean.test)) for affine in (friends_map, repaired))
assert abs(next(without_sinks) - next(without_sinks)) < 1e-9, "no sink, no difference"
print(f"{friends:.1f}, repaired {mended:.2f}")
