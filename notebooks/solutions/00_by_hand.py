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
# # 00 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %% [markdown]
# The rows, lines and numbers of the notebook, by the same steps.

# %%
import torch

import howlinear as hl
from howlinear.notebook.run import start

run = start("00_by_hand", profile)
name = next(iter(run.models))
model = run.model(name)
corpus = run.corpus(run.corpora[0], model)
row_count = min(run.rows, 20_000)
text = corpus.rows(row_count, run.seq_len, run.seed)
held_out = text.test.repeat_interleave(run.seq_len)
ffns = [module for name, module in model.named_modules() if name.endswith("mlp")]
seen = {block: [] for block in range(len(ffns))}


def listen(block):
    def hook(module, inputs, output):
        x = inputs[0].flatten(0, 1)
        y = output.flatten(0, 1)
        seen[block].append((x, y))

    return hook


def fit(x, y):
    ones = torch.ones(len(x), 1)
    with_ones = torch.cat([x, ones], 1)
    return torch.linalg.lstsq(with_ones, y).solution


def r_squared(line, x, y):
    weight = line[:-1]
    bias = line[-1]
    residual = y - x @ weight - bias
    about_the_mean = y - y.mean(0)
    unexplained = residual.square().sum()
    all_there_is = about_the_mean.square().sum()
    return float(1 - unexplained / all_there_is)


hooks = []
for block, ffn in enumerate(ffns):
    hook = ffn.register_forward_hook(listen(block))
    hooks.append(hook)
with torch.no_grad():
    for batch in text.ids.split(16):
        model(batch)
for hook in hooks:
    hook.remove()

blocks = {}
lines = {}
r2 = {}
for block, pairs in seen.items():
    inputs, outputs = zip(*pairs, strict=True)
    x = torch.cat(inputs).double()
    y = torch.cat(outputs).double()
    blocks[block] = (x, y)
    lines[block] = fit(x[~held_out], y[~held_out])
    r2[block] = r_squared(lines[block], x[held_out], y[held_out])
straight = max(r2, key=r2.get)
bent = min(r2, key=r2.get)

# %% [markdown]
# **1.** Take the first column of the line, the residual and the outputs; the sums run over held-out rows. The $R^2$ of
# one feature can lie well above or below that of all, which weighs features by their variance.

# %%
x, y = blocks[bent]
line = lines[bent]
weight = line[:-1, 0]
bias = line[-1, 0]
first_feature = y[held_out, 0]
residual = first_feature - x[held_out] @ weight - bias
about_the_mean = first_feature - first_feature.mean()
unexplained = residual.square().sum()
all_there_is = about_the_mean.square().sum()
of_one_feature = float(1 - unexplained / all_there_is)
measured = hl.measure(model, text, blocks=[bent])[bent]
assert abs(of_one_feature - measured.r2_per_feature[0]) < 1e-3

# %% [markdown]
# **2.** The method stays as it is: a weighted sum of squares of $x$ is still linear in the weights. The squares help,
# but not enough: a neuron bends a *sum* of inputs, and the square of a sum holds products as well as squares.

# %%
wider = torch.cat([x, x.square()], 1)
with_more_inputs = fit(wider[~held_out], y[~held_out])
with_squares = r_squared(with_more_inputs, wider[held_out], y[held_out])
assert r2[bent] < with_squares < 1

# %% [markdown]
# **3.** The loss rises even for the straightest block, whose line explains most, and may rise by more than for the
# least straight one. How much of a block's variance a line explains does not say how much the rest of the model needs
# what the line leaves. Notebooks 02 and 06 are about this.


# %%
def in_its_place(block):
    def hook(module, inputs, output):
        line = lines[block].float()
        return inputs[0] @ line[:-1] + line[-1]

    return hook


ids = text.ids
test = text.test
few = ids[test][:8]
losses = {}
with torch.no_grad():
    without = model(few, labels=few).loss
    for block in (straight, bent):
        handle = ffns[block].register_forward_hook(in_its_place(block))
        with_line = model(few, labels=few).loss
        handle.remove()
        losses[block] = float(with_line - without)
        print(f"block {block}: {losses[block]:.3f}")
loss_added = losses[straight]
assert loss_added > 0
line = lines[straight]
affine = hl.AffineMap(line[:-1], line[-1])
with hl.swap(model, {straight: affine}):
    with_affine = hl.losses(model, few).mean()
by_package = float(with_affine - without)
assert abs(by_package - loss_added) < 1e-3

# %% [markdown]
# **4.** `y.mean()` is one number, the mean over all features. Features have means of their own, and the spread of these
# means then counts as explained variance, though a constant explains it. Each feature must be compared with its own
# mean, `y.mean(0)`.


# %%
def repaired(line, x, y):
    residual = y - x @ line[:-1] - line[-1]
    about_the_mean = y - y.mean(0)
    unexplained = residual.square().sum()
    all_there_is = about_the_mean.square().sum()
    return float(1 - unexplained / all_there_is)


x, y = blocks[bent]
by_repaired = repaired(lines[bent], x[held_out], y[held_out])
assert abs(by_repaired - r2[bent]) < 1e-9
