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
# # 16 · Does a block's line tell tokens apart, or their contexts?
#
# **Question.** A block's rows are tokens in context. Does its line explain how tokens differ from one another, as an
# interpolation over a vocabulary, or how one token differs from context to context?
#
# **You need** notebooks 02 and 05; analysis of variance (refresher in 08). **You learn** to split a variance into what
# a token decides and what its context does, without the bias of a token's own mean.
# **Time** 20 minutes to read, 2 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
blocks: list or str or None = None  # which blocks of each model: numbers, or a rule as in spaced 4; None: all
fit_rows: int or None = None  # token rows of each text, a quarter of them held out; None: all
texts: int or None = None  # how many of the run's texts, the main one first; None: all
counted_rows = 200_000  # token rows of the main text in which tokens are counted, for lines over the vocabulary
at_once = 12  # blocks whose sums are held at once; fewer need less memory and more passes

# %%
from howlinear.notebook.run import start

run = start("16_tokens", profile, model, corpus)
main, *others = run.corpora[:texts]
first = next(iter(run.models))
print("models:", ", ".join(run.models), "· texts:", ", ".join([main, *others]))

# %% [markdown]
# ## Predict first
#
# 1. What share of the variance of a block's output does the token alone decide, whatever stands around it: in the
#    first block, and in the middle of the model?
# 2. A line explains some of the differences between tokens, and some of those between occurrences of one token. Which
#    of the two does it explain better?
# 3. A *table* predicts the output from the token alone, with one entry per token, and does not look at $x$ at all. In
#    which blocks does it explain more of held-out text than the line does?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# Sort a block's rows by token. Outputs then differ for two reasons: tokens differ, and occurrences of one token differ
# by what stands before them. So the output's variance is the sum of a part *between* tokens $t$, each with $n_t$ rows
# and mean $\bar y_t$, and a part *within* them, and so is that of the residual $e$ of a line:
#
# $$ \sum \lVert y - \bar y \rVert^2 = \sum_t n_t \lVert \bar y_t - \bar y \rVert^2 + \sum \lVert y - \bar y_t \rVert^2,
#    \qquad \sum \lVert e \rVert^2 = \sum_t n_t \lVert \bar e_t \rVert^2 + \sum \lVert e - \bar e_t \rVert^2 . $$
#
# Let $s$, the **token share**, be the first part's share of the variance, and $v$ its share of the residual. Then one
# $R^2$ becomes two, whose weighted mean is exactly the old one:
#
# $$ R^2_{\mathrm{lin}} = s\,R^2_{\text{between}} + (1 - s)\,R^2_{\text{within}}, \qquad
#    R^2_{\text{between}} = 1 - \frac{v}{s}\,(1 - R^2_{\mathrm{lin}}). $$
#
# **Counting is biased.** The mean of $n_t$ rows follows these rows: it absorbs one $n_t$-th of the variance within, and
# a token that occurs once seems to have no variance within at all. So we take pairs. Two *different* occurrences share
# their token and nothing else, so the mean of $\langle z_i, z_j \rangle$ over pairs, with $z$ the centred output or
# $e$, is free of that bias. But occurrences in one document also share its topic, so pairs are from different document
# folds. Rows without such a partner are assumed to split as the others do. And outputs are centred on $\bar y$, a mean
# of the same rows, which takes the variance of $\bar y$ from every pair; it is estimated from the folds and given back.

# %% [markdown]
# ## Method
#
# Everything follows from sums that one pass collects: for each token in each document fold the number of rows, $\sum x$
# and $\sum y$; and moments of all rows. Memory is linear in the size of the vocabulary.
#
# | what | equation | function |
# |---|---|---|
# | sums | $n_{tf},\ S_{tf} = \sum z$ over the rows of token $t$ in fold $f$ | `core.token_split.TokenSums` |
# | pairs | $(\lVert S_t \rVert^2 - \sum_f \lVert S_{tf} \rVert^2)\,/\,(n_t^2 - \sum_f n_{tf}^2)$ | `between_share` |
# | variance of $\bar y$ | $\sum_f \lVert \sum_t S_{tf} \rVert^2\,/\,(n^2 - \sum_f n_f^2)$ | `variance_of_mean` |
# | split | $s$, $v$, and both $R^2$ | `split`, `token_split` |
# | a table | $\hat y = \bar y + \frac{n_t}{n_t + \lambda}(\bar y_t - \bar y)$ | `ideas.tokens.table.table_alone` |
# | table and line | ridge on the table, none on the line; $\lambda$ = variance within over between | `table_and_line` |
#
# By hand: one token has outputs 1 and 3 in one document and 1 in another; a second token has −2 and −3, one in each.
# The outputs' mean is 0 and $\sum y^2 = 24$. Pairs across documents: $(1 \cdot 1 + 3 \cdot 1)/2 = 2$ for the first
# token and $(-2)(-3) = 6$ for the second. The two documents have sums of 2 and −2, so the variance of $\bar y$ is
# estimated as $(2^2 + 2^2)/(5^2 - 3^2 - 2^2) = 0.67$, and every pair and every row gets it back:
# $s = (3 \cdot 2.67 + 2 \cdot 6.67)/(24 + 5 \cdot 0.67) = 0.78$. Each token's own mean would give
# $(3 \cdot (5/3)^2 + 2 \cdot 2.5^2)/24 = 0.87$.
#
# With inputs 1, 2, 1, −2 and −3, a line that predicts half of each leaves 0.5, 2, 0.5, −1 and −1.5, so
# $\sum e^2 = 7.75$ and $R^2 = 1 - 7.75/24 = 0.677$. Of this error a share
# $v = (3 \cdot 0.625 + 2 \cdot 1.5)/7.75 = 0.629$ lies between tokens, less than $s$: the line is better between
# tokens, $1 - (0.629/0.7805) \cdot 0.323 = 0.74$, than within them, $1 - (0.371/0.2195) \cdot 0.323 = 0.45$.

# %% tags=["nbval-check-output"]
import torch

from howlinear.core.ceilings import AffineMap
from howlinear.core.token_split import TokenSums, split

token = torch.tensor([0, 0, 0, 1, 1])
document = torch.tensor([0, 0, 1, 0, 1])
x = torch.tensor([[1.0], [2.0], [1.0], [-2.0], [-3.0]])
y = torch.tensor([[1.0], [3.0], [1.0], [-2.0], [-3.0]])
five = TokenSums.empty(token, document, d_in=1, d_out=1)
for fold in (0, 1):
    inside = document == fold
    five.update(fold, token[inside], x[inside], y[inside])
half = AffineMap(torch.tensor([[0.5]]).double(), torch.zeros(1).double())  # a line that predicts half of each
for label, counted in (("by pairs", False), ("by own means", True)):
    found = split(half, five, counted)
    print(f"{label}: token share {found.token_share:.2f}, R² {found.r2:.2f}", end=", ")
    print(f"between tokens {found.r2_between:.2f}, within {found.r2_within:.2f}")

# %% [markdown]
# Next, planted rows for which the answer is known: a block that is a table and no line, one that is a line, and one
# that is both.

# %% tags=["nbval-check-output"]
from howlinear.ideas.tokens.planted import planted_table

planted = run.record("planted", planted_table(run.seed))
print(planted.set_index(["case", "quantity"]).round(2).to_string())

# %% [markdown]
# ## Run
#
# We measure every block on every text; then the same architecture with fresh weights, on the main text. Token shares of
# inputs are computed in the same way, with $x$ in place of $y$. Lines are fitted to the train side, and everything is
# scored on held-out documents.

# %%
import howlinear as hl
from howlinear.ideas.tokens import measure
from howlinear.ideas.tokens.vocabulary import vocabulary_table
from howlinear.instrument.selection import choose_blocks

surveys, vocabularies = [], []
for name in run.models:
    trained_model = run.model(name)
    chosen = choose_blocks(blocks, run.capture(name).blocks)
    rows = {}
    for text in [main, *others]:
        rows[text] = run.corpus(text, trained_model).rows(run.rows, run.seq_len, run.seed).thinned(fit_rows)
    much = run.corpus(main, trained_model).rows(max(counted_rows, run.rows), run.seq_len, run.seed)
    for weights, loaded in (("trained", trained_model), ("fresh", hl.untrained(trained_model, run.seed))):
        read = rows if weights == "trained" else {main: rows[main]}
        surveys.append(measure.survey(name, weights, loaded, read, chosen, at_once))
        over = vocabulary_table(loaded, rows[main], much, chosen)
        vocabularies.append(over.assign(model=name, weights=weights))

# %%
import pandas as pd

tables = {name: pd.concat([each[name] for each in surveys], ignore_index=True) for name in surveys[0]}
found = run.record("blocks", tables["blocks"])
beside = run.record("tables", tables["tables"])
kinds = run.record("kinds", tables["kinds"])
transfer = run.record("transfer", tables["transfer"])
vocabulary = run.record("vocabulary", pd.concat(vocabularies, ignore_index=True))

# %% tags=["nbval-check-output"]
parts = tables["blocks"]
off = parts["token_share"] * parts["r2_between"] + (1 - parts["token_share"]) * parts["r2_within"] - parts["r2"]
print("the parts add up to R²_lin within 1e-9:", bool(off.abs().max() < 1e-9))
trained = found[(found["weights"] == "trained") & (found["corpus"] == main)]
columns = ["token_share", "r2_between", "r2_within", "r2"]
print(trained.groupby("model", sort=False)[columns].mean().round(2).to_string())

# %% [markdown]
# The same block by block on the main text, with the token share of the inputs (`input_share`) and the $R^2$ of a table,
# of table and line together, and of the line with a table of the *previous* token. NaN stands within tokens where the
# token may decide everything (the interval of its share reaches 1), and between tokens where it may decide nothing.

# %%
run.folded("every block, text and interval", found.set_index(["model", "weights", "corpus", "block"]).round(2))
shown = [*columns, "input_share", "r2_table", "r2_both", "r2_previous"]
trained = trained.merge(beside, on=["model", "weights", "block"])
trained.set_index(["model", "block"])[shown].round(2)

# %% [markdown]
# Rows of rare and of frequent tokens, half of the held-out rows each, scored about their own means; the table shows
# means over blocks. (Where the token share is small, $R^2$ between tokens rests on little and may even exceed 1.)

# %%
kinds.groupby(["model", "weights", "kind"], sort=False)[columns].mean().round(2)

# %% [markdown]
# **More rows, or more tokens?** If rows of one token hardly differ, many of them are worth one. How closely the line
# follows its own rows says how many independent rows they are worth: `effective_rows`, the rank of the inputs over the
# *optimism* of notebook 11 (`core.limits`). The table also has the number of rows that the line is fitted to, and of
# different tokens among them. A value above `rows_train` means that the optimism is too small to be measured here.

# %%
trained.set_index(["model", "block"])[["rows_train", "types", "effective_rows"]].round(0)

# %% [markdown]
# **Another text.** On another text, the main text's line loses some $R^2$ against that text's own line. Of this loss,
# `loss_between` lies between token means: the text has other words, or the same words in other proportions. With a
# single text the table is empty.

# %%
transfer.set_index(["model", "corpus", "block"]).round(2)

# %% [markdown]
# ## Figure: two lines in one
#
# **How to read it.** One panel for each model, its blocks from left to right. Bars: the share of the output's variance
# that the token decides. Filled marks: $R^2$ of the line on token means; open marks: on what varies within tokens, both
# with 95 % intervals. The black line is $R^2_{\mathrm{lin}}$, which lies between the two: the taller the bar, the
# closer to the filled marks.

# %%
import matplotlib.pyplot as plt

from howlinear.plots import tokens as plots

run.figure(plots.parts(trained), "split")
plt.show()

# %% [markdown]
# ## Figure: a table beside the line
#
# **How to read it.** Held-out $R^2$ of the line (black), of a table of tokens (crosses), of both together (filled) and
# of the line with a table of the previous token (open). Where the filled marks lie above the black line, the block
# treats tokens one by one in a way that no line in $x$ does.

# %%
run.figure(plots.tables(trained), "tables")
plt.show()

# %% [markdown]
# ## Figure: before training, a line over the vocabulary
#
# **How to read it.** All weights are fresh. The band reaches from the held-out $R^2$ of the text's line to its $R^2$ on
# train rows; the limit with ever more rows lies in it. Diamonds: $R^2$ of a line fitted over the vocabulary, every
# token once and by itself, weighted by its frequency in the text. If the token alone determines the row, the diamond is
# that limit, without more rows. Crosses: $R^2$ of this line on the text's held-out rows; those below −0.5 are outside
# the panel.

# %%
run.figure(plots.vocabulary(vocabulary[vocabulary["weights"] == "fresh"]), "vocabulary")
plt.show()

# %%
run.save(settings={"counted_rows": counted_rows, "texts": [main, *others]})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - One line, two $R^2$. Between tokens a line is an interpolation over a vocabulary. Within tokens its $R^2$ says how
#   linear the block's response to context is.
# - Limits. A token's context is not drawn at random: words stand among similar words, and what accompanies a token
#   everywhere is attributed to the token. The rows without a partner in another fold are those of the rarest tokens.
#   For an unseen token, a table predicts the mean.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/16_tokens.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** In a block the token decides 90 % of the variance. The line explains 80 % of the differences between
# tokens and does worse than the mean within them, $R^2 = -0.2$. What is $R^2_{\mathrm{lin}}$?
#
# <details><summary>Hint</summary>
#
# Step 1: the two $R^2$ are weighted, each by its part's share of the variance.
#
# Step 2: $0.9 \cdot 0.8$, and what is left of the variance times $-0.2$.
#
# </details>

# %%
joined = None  # a number

if joined is not None:
    assert abs(joined - 0.8) > 1e-6, "what varies within tokens counts as well"
    assert abs(joined - (0.9 * 0.8 - 0.1 * 0.2)) < 1e-6, "s times the one and 1 − s times the other"
    print(f"right: {joined:.2f}, so near to the first that one hardly sees how bad the second is")

# %% [markdown]
# **2 (medium).** Write the function that estimates $\lVert \mathrm E z \rVert^2$ of *one* token from its rows $z$ and
# the document fold of each, without bias: the mean of $\langle z_i, z_j \rangle$ over pairs of different folds.
#
# <details><summary>Hint</summary>
#
# Step 1: the sum over *all* pairs, including each row with itself, is $\lVert \sum z \rVert^2$. For the pairs within a
# fold, take the same of the fold's rows.
#
# Step 2: count pairs in the same way: $n^2$ minus the squares of the folds' counts.
#
# </details>

# %%
square_of_mean = None  # a function of z, shape (n, d), and fold, shape (n,) → a number

if square_of_mean is not None:
    generator = torch.Generator().manual_seed(0)
    z, fold = torch.randn(7, 3, generator=generator) + 1, torch.tensor([0, 0, 0, 1, 1, 2, 2])
    pairs = [(z[i] @ z[j]).item() for i in range(7) for j in range(7) if fold[i] != fold[j]]
    given = float(square_of_mean(z, fold))
    own_mean = float(z.mean(0).square().sum())
    assert abs(given - own_mean) > 1e-3, "that is the square of the rows' own mean, which is biased"
    assert abs(given - sum(pairs) / len(pairs)) < 1e-4, "the mean over pairs whose folds differ, and no others"
    few, two = torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1])
    assert abs(float(square_of_mean(few, two)) - 8) < 1e-5, "of 2 and 4 it is 2 · 4"
    print(f"right: {given:.2f} by pairs, {own_mean:.2f} by the own mean")

# %% [markdown]
# **3 (harder).** Is the block's one line also the best for what varies within tokens? Write the function that computes,
# from a `TokenSums`, the `Moments` of its rows, each minus the mean of its token: `sxx`, `sxy` and `syy`. The cell fits
# a line to your moments of the first model's last block.
#
# <details><summary>Hint</summary>
#
# Step 1: under *Idea* the sum of squares splits into a part between tokens and one within, and so do sums of products.
# `hl.Moments.total(side.rows.values())` is a copy of the moments of all rows: subtract the part between.
#
# Step 2: sums are kept for each token in each fold. `types, kind = side.types` gives the token of each sum, and
# `torch.zeros(len(types)).double().index_add_(0, kind, side.count)` counts the rows of each token.
#
# Step 3: the part between is $\sum_t n_t (\bar x_t - \bar x)(\bar x_t - \bar x)^\top$, and likewise with $y$. Add up
# `side.sum_x` and `side.sum_y` like `side.count` for the means of tokens; `mean_x` of all rows is $\bar x$.
#
# </details>

# %%
from howlinear.core.ceilings import fit
from howlinear.instrument.token_split import Grouping, token_sums

first_model = run.model(first)
last = list(run.capture(first).blocks)[-1]
text = run.corpus(main, first_model).rows(run.rows, run.seq_len, run.seed).thinned(fit_rows)
sides = [Grouping.by_token(text, held_out) for held_out in (False, True)]
train, held_out = token_sums(first_model, text, sides, [last])[last]

# %%
within = None  # a function of a TokenSums → Moments of its rows, each less the mean of its token

if within is not None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 60, 3, generator=generator, dtype=torch.float64)
    token, fold = torch.randint(9, (60,), generator=generator), torch.randint(2, (60,), generator=generator)
    sixty = TokenSums.empty(token, fold, d_in=3, d_out=3)
    for number in (0, 1):
        sixty.update(number, token[fold == number], x[fold == number], y[fold == number])
    for number in token.unique():
        x[token == number] -= x[token == number].mean(0)
        y[token == number] -= y[token == number].mean(0)
    given = within(sixty)
    assert torch.allclose(given.sxx, x.T @ x), "a token's mean is of its rows in all folds, and counts for each"
    assert torch.allclose(given.sxy, x.T @ y), "products of x and y, less those of their token means"
    assert torch.allclose(given.syy, y.square().sum(0)), "squares of each output, less those of its token means"

    one_line, _ = fit(hl.Moments.total(train.rows.values()))
    your_line, _ = fit(within(train))
    by_one, by_yours = split(one_line, held_out), split(your_line, held_out)
    better = by_yours.r2_within > by_one.r2_within + 0.01
    print("right: no, another line is better there." if better else "right: yes, up to a hundredth.", end=" ")
    print(f"R² within tokens is {by_one.r2_within:.2f} by the one line and {by_yours.r2_within:.2f} by yours;", end=" ")
    print(f"between tokens it is {by_one.r2_between:.2f} and {by_yours.r2_between:.2f}")

# %% [markdown]
# **4 (find the bug).** A friend says that a table explains much more of the last block than the figure above shows.
# What is wrong with her number? Fill in `repaired`.
#
# <details><summary>Hint</summary>
#
# Step 1: how much would a table explain of these rows if every token occurred once?
#
# Step 2: a `Table` is scored by `table.r2(rows)`. Which rows may these be?
#
# </details>

# %%
from howlinear.ideas.tokens.table import table_alone


def friends_r2(train, held_out):
    table = table_alone(train)
    return table.r2(train)


print(f"your friend's table: R² = {friends_r2(train, held_out):.2f}")

# %%
repaired = None  # a function of train and held_out → R²

if repaired is not None:
    expected = table_alone(train).r2(held_out)
    given = repaired(train, held_out)
    assert given < friends_r2(train, held_out), "a table follows the rows that it was made of"
    assert abs(given - expected) < 1e-4, "made of the train rows, scored on the held-out ones"
    print(f"right: {given:.2f}")
