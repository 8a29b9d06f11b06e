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
# # 00 · Could a straight line do this block's work?
#
# **Question.** A language model is a stack of layers, and half of each layer is a small neural network with a bend in
# it, the feed-forward block. If we replaced that block by a straight line, how much of its work would the line do?
#
# **You need** to have seen a straight line fitted to points; only the exercises need Python. **You learn** to fit a
# line to a block's rows by hand, to say what $R^2$ is a share of, and why it is scored on rows that the line has not
# seen. **Time** 30 minutes to read, 1 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts; this notebook uses only the first model; its text assumes a GPT-2
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
most_rows = 20_000  # tokens that the model reads, or the profile's own number if that is smaller

# %%
from collections import defaultdict

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import HTML

import howlinear as hl
from howlinear.notebook.run import start
from howlinear.plots import by_hand as plots

run = start("00_by_hand", profile, model, corpus)
name = next(iter(run.models))
print("model:", name, "· text:", run.corpora[0])

# %% [markdown]
# ## Predict first
#
# Write your guesses down before you scroll. Each gets its answer at the end.
#
# 1. The model has a dozen blocks. Which one is most like a straight line: the first, one in the middle, or the last?
# 2. We fit the line on three quarters of the text and judge it on the rest. How much better does it look on the text
#    that it was fitted on?
# 3. Two people look at the same parabola, one at its left flank, one at its right. Each fits a line to what they see.
#    Does each find the parabola fairly straight? Can they use each other's line?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# A **[token](../book/reading.md#token)** is a word or a piece of one; the model reads a text as a sequence of tokens.
# Inside the model every token is a list of numbers that travels upwards, the **[residual
# stream](../book/reading.md#residual-stream)**: each layer reads it and adds something to it. One half of a layer,
# attention, lets tokens look at one another. The other half, the **[feed-forward block](../book/reading.md#block)**,
# takes each token by itself: a list of numbers $x$ goes in, a list of numbers $y$ comes out. "Block" always means
# this half.
#
# One token at one block, the pair $(x, y)$, is a **[row](../book/reading.md#row)**. Many rows make a cloud of points,
# and we can fit a straight line to it. With $d$ numbers going in and $d$ coming out, the line is $y \approx xW + b$, a
# table of $d \times d$ slopes $W$ and a list of $d$ offsets $b$; the rest works as it does for two numbers.
#
# What the line misses, $y - xW - b$, is the **[residual](../book/reading.md#residual)**. **[Least
# squares](../book/reading.md#the-line)** means: of all lines, take the one whose residuals, squared and added up, are
# smallest.
#
# The line must not be judged on the rows that it was fitted on. A **[document](../book/reading.md#document)** is one
# piece of text; in `docs` it is a docstring, which explains a Python function. Three quarters of the documents are used
# for fitting; the others are **[held out](../book/reading.md#held-out)**: the line sees none of their rows before it is
# judged on them. We split by document and not by token, since the tokens of one document resemble each other.
#
# <details><summary>Refresher: least squares</summary>
#
# For one number in and one out, the least-squares line $y \approx wx + b$ has the slope $w = \sum (x - \bar x)(y - \bar
# y) / \sum (x - \bar x)^2$ and runs through the point of the two means, so $b = \bar y - w \bar x$. For lists of
# numbers write the $n$ pairs below one another, as $X$ and $Y$ of shape $n \times d$, and append a column of ones to
# $X$: its slope is the offset $b$. The residuals' sum of squares is smallest where its derivative with respect to $W$
# is 0, which gives $X^\top X\, W = X^\top Y$. `torch.linalg.lstsq` solves this without ever forming $X^\top X$, which
# is more accurate.
#
# </details>
#
# <details><summary>Refresher: R²</summary>
#
# How far off is the line? Add up its squared residuals. Is that a lot? Compare with the laziest guess there is, always
# the mean: $R^2 = 1 - \sum (y - \text{line})^2 / \sum (y - \bar y)^2$. It is 1 if the line is never wrong, 0 if it is
# no better than the mean, and below 0 if it is worse, which can happen on rows that it was not fitted on. A block puts
# out many numbers, its *features*; both sums then run over all of them, and each feature has a mean of its own.
#
# </details>
#
# We call the sum of squared distances from the mean the output's variance. The share of it that the line explains is
# **[R²](../book/reading.md#linear-recoverability)**: 1 for a block that *is* a straight line on real text, 0 for a
# block about which the line says nothing.
#
# ## Method: thirty lines
#
# Only the model and the text come from this project: `ids` holds token numbers, one sequence per row, and `test` says
# which sequences are held out. The rest is torch.

# %% tags=["thirty-lines"]
model = run.model(name)  # as AutoModelForCausalLM.from_pretrained(…, dtype=torch.float32) loads it
text = run.corpus(run.corpora[0], model).rows(min(run.rows, most_rows), run.seq_len, run.seed)
ids, test = text.ids, text.test
print("sequences:", tuple(ids.shape), "of which held out:", int(test.sum()))

# %% tags=["thirty-lines"]
seen = defaultdict(list)  # block → pairs of inputs and outputs


def listen(block):
    def hook(module, inputs, output):
        seen[block].append((inputs[0].flatten(0, 1), output.flatten(0, 1)))  # one row per token

    return hook


ffns = [module for name, module in model.named_modules() if name.endswith("mlp")]  # its name in GPT-2, LLaMA and most
assert ffns, f"no part of {name} is called mlp: hl.measure finds its feed-forward blocks by what they do"
hooks = [ffn.register_forward_hook(listen(block)) for block, ffn in enumerate(ffns)]
with torch.no_grad():
    for batch in ids.split(16):
        model(batch)
for hook in hooks:
    hook.remove()
held_out = test.repeat_interleave(ids.shape[1])  # a token is held out with its sequence


def fit(x, y):
    ones = torch.ones(len(x), 1)
    return torch.linalg.lstsq(torch.cat([x, ones], 1), y).solution  # W, and b below it


def r_squared(line, x, y):
    residual = y - x @ line[:-1] - line[-1]
    about_the_mean = y - y.mean(0)  # each feature about its own mean
    return float(1 - residual.square().sum() / about_the_mean.square().sum())


blocks, lines, r2 = {}, {}, {}
for block, pairs in seen.items():
    inputs, outputs = zip(*pairs, strict=True)
    x = torch.cat(inputs).double()
    y = torch.cat(outputs).double()
    blocks[block] = (x, y)
    lines[block] = fit(x[~held_out], y[~held_out])
    r2[block] = r_squared(lines[block], x[held_out], y[held_out])

# %% [markdown]
# That is the method. Before we believe it, three checks: a cloud that *is* a straight line must give 1; outputs dealt
# to the wrong tokens must give about 0; and the package, which computes the same numbers differently (it updates sums
# while it reads instead of storing rows), must agree block by block.

# %% tags=["nbval-check-output"]
x, y = blocks[0]
generator = torch.Generator().manual_seed(0)
slopes = torch.randn(x.shape[1], 3, generator=generator, dtype=torch.float64)
straight_by_design = x @ slopes + 7
line = fit(x[~held_out], straight_by_design[~held_out])
planted = r_squared(line, x[held_out], straight_by_design[held_out])

dealt = y[torch.randperm(len(y), generator=generator)]
line = fit(x[~held_out], dealt[~held_out])
nonsense = r_squared(line, x[held_out], dealt[held_out])
print(f"a straight line: {planted:.3f} · outputs dealt to the wrong tokens: {nonsense:.2f}")

# %% tags=["nbval-check-output"]
measured = hl.measure(model, text)
by_package = {block: ceiling.r2 for block, ceiling in measured.items()}
beside = pd.DataFrame({"by hand": r2, "hl.measure": by_package})
largest = (beside["by hand"] - beside["hl.measure"]).abs().max()
print(beside.rename_axis("block").round(3).T.to_string())
print("the same to three digits:", largest < 0.0005)

# %% [markdown]
# They may differ in the fourth digit, for a reason. The list $x$ has been normalised: its numbers were shifted to add
# up to 0 before each was scaled. They satisfy one equation whatever the token, so along one direction $x$ does not vary
# at all: that direction is empty. The **[rank](../book/reading.md#rank)** of a cloud is the number of directions in
# which it varies at all. Along the empty one there is only rounding error; our thirty lines fit that too, while the
# package leaves it out (notebook 02 says how).

# %% tags=["nbval-check-output"]
rank = int(torch.linalg.matrix_rank(x - x.mean(0), rtol=1e-6))
print(f"block 0: {x.shape[1]} numbers go in, and they vary in {rank} directions")

# %% [markdown]
# Which block is the straightest, and which the least straight? These two are drawn next.

# %%
straight = max(r2, key=r2.get)
bent = min(r2, key=r2.get)
print("straightest: block", straight, "· least straight: block", bent)


# %% [markdown]
# ## Figure: the cloud, and what a bend looks like
#
# A block turns a list of numbers into a list of numbers, but a figure has room for only one of each. Which ones? Inside
# a block are hundreds of **[neurons](../book/reading.md#neuron)**: each adds up the inputs with weights of its own,
# bends the sum, and writes the result along a direction of its own. We take the neuron that carries most of the block's
# output. The horizontal axis is what goes into that neuron; the vertical axis is what the *whole block* puts out along
# the direction in which the neuron writes. If neurons bend the block, it should show here. We use the same rule for
# both blocks.
#
# **How to read it.** (a) The straightest block and (b) the least straight one, a thousand held-out rows each. Black
# points are means of a tenth of the rows: where they leave the line, the cloud is bent. The spread about them comes
# from the block's other inputs, for a block has no noise: the same $x$ always gives the same $y$. (c) is the neuron of
# (b) by itself, a curve without any spread, called GELU. (In a gated block such as LLaMA's, the neuron has a spread
# too, because it is multiplied by a second sum.) The orange line is fitted to the two numbers that are drawn; the line
# measured above uses all inputs and all outputs.


# %%
from howlinear.ideas import by_hand as ideas


def seen_from_a_neuron(block):
    """The loudest neuron of a block, what goes into it and comes out, and the block's output along its direction."""
    x, y = blocks[block]
    matrices = [module for module in ffns[block].modules() if hasattr(module, "weight")]
    first, last = matrices[0], matrices[-1]
    into_last = []
    hook = last.register_forward_pre_hook(lambda module, inputs: into_last.append(inputs[0]))
    with torch.no_grad():
        sums = first(x.float()).double()  # what goes into each neuron
        ffns[block](x.float())
    hook.remove()
    bent_sums = into_last[0].double()  # what comes out
    writes = last.weight.detach().double()  # for each neuron the direction that it writes along
    if writes.shape[0] == y.shape[1]:  # GPT-2 keeps a row for each neuron, all others a column
        writes = writes.T
    carried = bent_sums.var(0) * writes.square().sum(1)  # the variance that each neuron adds to the output
    neuron = int(carried.argmax())
    direction = writes[neuron] / writes[neuron].norm()
    return neuron, sums[:, [neuron]], bent_sums[:, [neuron]], (y @ direction)[:, None]


def with_its_line(across, up):
    """The share that a line fitted to two numbers explains, held out, and the points to draw."""
    line = fit(across[~held_out], up[~held_out])
    across = across[held_out]
    up = up[held_out]
    on_the_line = across @ line[:-1] + line[-1]
    return r_squared(line, across, up), ideas.cloud(across, up, on_the_line)


# %%
clouds, shares = {}, {}
for block in (straight, bent):
    neuron, goes_in, comes_out, whole = seen_from_a_neuron(block)
    shares[f"block {block}"], clouds[f"block {block}"] = with_its_line(goes_in, whole)
alone = f"neuron {neuron} of block {bent}"
shares[alone], clouds[alone] = with_its_line(goes_in, comes_out)
figure = plots.cloud(clouds)
run.figure(figure, "cloud")
plt.show()

# %% tags=["nbval-check-output"]
for panel, share in shares.items():
    print(f"{panel}: the line drawn explains {share:.2f}")
print(f"all inputs and outputs: block {straight} {r2[straight]:.2f}, block {bent} {r2[bent]:.2f}")

# %% [markdown]
# ## Figure: one parabola, two lines
#
# The line belongs to the block *and* to the text: it is fitted where the rows are. Here the block is the parabola $y =
# x^2$, and two texts visit its two flanks. Half of each text's rows are used for fitting, half are held out.
#
# **How to read it.** Points are rows, round for the left text and square for the right one. Each text has its own line,
# which runs close to its own points and far from the other's.

# %%
generator = torch.Generator().manual_seed(0)
flanks = {}
for side, mean in (("left", -2), ("right", 2)):
    x = mean + torch.randn(4_000, 1, generator=generator)
    x_fit, x_held_out = x.double().chunk(2)
    flanks[side] = {"fit": (x_fit, x_fit.square()), "held out": (x_held_out, x_held_out.square())}
flank_lines = {side: fit(*rows["fit"]) for side, rows in flanks.items()}

# %%
drawn = {}
ends = {}
for side, rows in flanks.items():
    x, y = rows["held out"]
    drawn[side] = pd.DataFrame({"x": x[::20, 0], "y": y[::20, 0]})
    ends[side] = tuple(flank_lines[side][:, 0].tolist())
figure = plots.parabola(drawn, ends)
run.figure(figure, "parabola")
plt.show()

# %% tags=["nbval-check-output"]
on_flanks = []
for side, other in (("left", "right"), ("right", "left")):
    at_home = r_squared(flank_lines[side], *flanks[side]["held out"])
    away = r_squared(flank_lines[side], *flanks[other]["held out"])
    on_flanks.append({"fitted": side, "scored": side, "r2": at_home})
    on_flanks.append({"fitted": side, "scored": other, "r2": away})
    slope, _ = ends[side]
    print(f"{side}: slope {slope:+.1f}, R² at home {at_home:.2f}, on the other flank {away:.1f}")

# %% [markdown]
# ## Figure: a neuron to play with
#
# Here is a neuron with one input, $y = x / (1 + e^{-\text{bend} \cdot x})$. With bend 0 it is the line $x/2$; with bend
# 1.7 it is nearly the GELU that GPT-2 uses. Move the sliders (with the mouse, or with Tab and the arrow keys) and watch
# $R^2$.
#
# - Make it as bent as you can, then make the inputs narrow. How straight is a very bent neuron that sees only a narrow
#   range?
# - Move the middle of the inputs to either side. A bend that no input reaches does not count.
# - Make the bend four times as large and the width a quarter, with the middle at 0. What happens to $R^2$?
#
# **How to read it.** Blue points are ninety-nine inputs, spread like a normal distribution, with the neuron's outputs;
# orange is their best line, and grey its residuals.

# %%
HTML(plots.slider(ideas.QUANTILES))

# %% [markdown]
# The same neuron without sliders, in four states. The first and the last answer the last of the three points above:
# they are the same picture in other units.

# %%
states = [(1.7, 1.0, 0.0), (1.7, 1.0, 2.0), (1.7, 0.25, 0.0), (6.8, 0.25, 0.0)]  # bend, width, middle
panels = {}
neurons = []
for bend, width, middle in states:
    toy = ideas.toy_neuron(bend, width, middle)
    title = f"bend {bend:g}, width {width:g},\nmiddle {middle:g}: $R^2$ = {toy.r2:.3f}"
    panels[title] = toy.points
    neurons.append({"bend": bend, "width": width, "middle": middle, "r2": toy.r2})
figure = plots.neurons(panels)
run.figure(figure, "neuron")
plt.show()

# %% [markdown]
# ## Own rows and held-out rows
#
# For your second prediction: how much better does a line look on its own rows than on held-out rows, when there are
# many rows, and when there are two for each input? The second reply under *What we learned* gives the numbers.

# %%
in_sample = {}
for block, (x, y) in blocks.items():
    in_sample[block] = r_squared(lines[block], x[~held_out], y[~held_out])
x, y = blocks[bent]
few_rows = (~held_out).nonzero()[: 2 * x.shape[1], 0]
hasty = fit(x[few_rows], y[few_rows])
hasty_in_sample = r_squared(hasty, x[few_rows], y[few_rows])
hasty_r2 = r_squared(hasty, x[held_out], y[held_out])

# %%
of_blocks = pd.DataFrame({"r2": r2, "r2_in_sample": in_sample}).rename_axis("block").reset_index()
of_blocks.insert(0, "model", name)
run.record("blocks", of_blocks)
few = {"model": name, "block": bent, "rows": len(few_rows), "r2": hasty_r2, "r2_in_sample": hasty_in_sample}
run.record("hasty", pd.DataFrame([few]))  # with so few rows, processors disagree in the third digit
checks = {"model": name, "rows_to_fit": int((~held_out).sum()), "agrees": largest < 0.0005}
checks |= {"planted": planted, "nonsense": nonsense, "rank": rank}
run.record("checks", pd.DataFrame([checks]))
run.record("drawn", pd.DataFrame(shares.items(), columns=["panel", "r2"]))
run.record("parabola", pd.DataFrame(on_flanks))
run.record("neurons", pd.DataFrame(neurons))
run.save()

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# | | the paper (arXiv 2606.19379, which this book reproduces) | ours |
# |---|---|---|
# | method | a hook, a least-squares line, $R^2$ on held-out rows | the same; split by document |
# | blocks of one model | differ widely | see above |
#
# - A feed-forward block is a function from rows to rows, and $R^2$ says what share of it a straight line explains on
#   text that the line has not seen.
# - A number near 1 belongs to the block and the text together: a bend that no row reaches does not count.
# - $R^2$ is a share of the output's variance. Whether the model needs what the line leaves unexplained is another
#   question: exercise 3 raises it, and notebooks 02 and 06 answer it.
# - Thirty lines are enough to measure it. The package adds what they lack: error bars, models of other families, memory
#   that does not grow with the text, a rule for empty directions.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/00_by_hand.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** The block puts out many numbers. What is $R^2$ of the first of them alone, feature 0 of block
# `bent`, on held-out rows? Use `blocks`, `lines` and `held_out`.
#
# <details><summary>Hint</summary>
#
# Step 1: `lines[bent]` has a row for each input, with the offset below them, and a column for each output. Which part
# of it makes feature 0?
#
# Step 2: `r_squared` takes any number of features, as long as tables stay tables: use `[:, [0]]`, since `[:, 0]` makes
# a list of the column. From `blocks[bent]` it needs only the rows of `held_out`.
#
# </details>

# %%
of_one_feature = None  # a number

if of_one_feature is not None:
    x, y = blocks[bent]
    expected = r_squared(lines[bent][:, [0]], x[held_out], y[held_out][:, [0]])
    assert abs(of_one_feature - expected) < 1e-6, "1 − squared residuals / squares about the mean, held-out rows only"
    print(f"right: {of_one_feature:.3f}, beside {r2[bent]:.3f} of all features")

# %% [markdown]
# **2 (medium).** Let the line bend a little: append the squares of the inputs to the inputs, fit again, and score on
# held-out rows. What is $R^2$ of block `bent` now? (Products of two different inputs are still missing; notebook 03 is
# about them.)
#
# <details><summary>Hint</summary>
#
# Step 1: `x, y = blocks[bent]`. `torch.cat` with 1 as its second argument puts two tables side by side, so that a row
# gets twice as many inputs.
#
# Step 2: the method stays as it is: a line in the wider inputs. `fit` sees the rows that are not `held_out`,
# `r_squared` those that are, and both see the same wider inputs.
#
# </details>

# %%
with_squares = None  # a number

if with_squares is not None:
    x, y = blocks[bent]
    wider = torch.cat([x, x.square()], 1)
    expected = r_squared(fit(wider[~held_out], y[~held_out]), wider[held_out], y[held_out])
    assert abs(with_squares - expected) < 1e-4, "fit on [x, x²] of the rows to fit on, score on [x, x²] of the others"
    print(f"right: {with_squares:.3f}, where the line alone has {r2[bent]:.3f}")

# %% [markdown]
# **3 (harder).** Does the model need what the line leaves unexplained? If a forward hook returns a value, it replaces
# the output. Replace block `straight` by its line and let the model read `few`: by how much does its mean loss per
# token rise? (`model(few, labels=few).loss` is that loss. Remove the hook afterwards.) Then try block `bent`.
#
# <details><summary>Hint</summary>
#
# Step 1: a hook is a function of `(module, inputs, output)`, like those that `listen` makes above, and `inputs[0]` is
# what goes into the block. What does the line predict for it? The model computes in float32 and the line in float64:
# `.float()` converts to float32.
#
# Step 2: `ffns[straight].register_forward_hook(…)` sets the hook and returns a handle, whose `.remove()` takes the hook
# away.
#
# Step 3: compute the loss twice, once with the hook and once without, both under `torch.no_grad()`. Which do you
# subtract from which?
#
# </details>

# %%
few = ids[test][:8]
loss_added = None  # loss with the line, minus the loss without it

if loss_added is not None:
    line = hl.AffineMap(lines[straight][:-1], lines[straight][-1])
    without = hl.losses(model, few).mean()
    with hl.swap(model, {straight: line}):
        expected = float(hl.losses(model, few).mean() - without)
    assert abs(loss_added - expected) < 1e-3, "the loss after less the loss before; is every hook removed?"
    print(f"right: {loss_added:+.3f} per token, for the straightest block of all")

# %% [markdown]
# **4 (find the bug).** A friend computes $R^2$ as below and gets higher numbers than you for every block. What is
# wrong? Fill in `repaired`. (The bug is real: the paper scores its survey like this, and notebook 11 says by how much
# that moves the numbers.)
#
# <details><summary>Hint</summary>
#
# Step 1: compare `friends_r_squared` with `r_squared` above, line by line. How many numbers does `y.mean()` hold, if
# $y$ has many features?
#
# Step 2: think of two features that hardly vary, one near −100 and the other near 100, and of a line that always
# predicts these two means. What does your friend's function divide by, and what share does it report for this line?
#
# </details>


# %%
def friends_r_squared(line, x, y):
    residual = y - x @ line[:-1] - line[-1]
    about_the_mean = y - y.mean()
    return float(1 - residual.square().sum() / about_the_mean.square().sum())


repaired = None  # a function (line, x, y) → a number

x, y = blocks[bent]
print(f"you: {r2[bent]:.3f} · your friend: {friends_r_squared(lines[bent], x[held_out], y[held_out]):.3f}")
if repaired is not None:
    means = torch.tensor([[-100.0, 100.0]]).double()  # of two features that are only noise about their means
    noise = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    says_means = torch.cat([torch.zeros(1, 2).double(), means])  # a line that predicts the means and nothing else
    worth = repaired(says_means, torch.zeros(200, 1).double(), means + noise)
    assert worth < 0.01, "a line that says the means and knows nothing else is worth nothing"
    difference = repaired(lines[bent], x[held_out], y[held_out]) - r2[bent]
    assert abs(difference) < 1e-9, "not yet what you found for this block"
    print("right: every feature about its own mean")
