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
# # 15 · How many tokens can take the line?
#
# **Question.** A line that replaces a whole block serves all tokens alike. What if only the tokens that it serves well
# take the line, and the others keep the block? How many tokens are these, and can we tell beforehand which?
#
# **You need** notebooks 02 and 12; least squares. **You learn** which tokens can take a line, what that saves, and how
# to compare a choice with a random one and an oracle. **Time** 20 minutes to read, 3 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
limit = 0.01  # relative rise of perplexity that is allowed
blocks: list or str or None = None  # which blocks of each model: numbers, or a rule as in spaced 4; None: all
fit_rows: int or None = None  # token rows of the main text, a quarter of them held out; None: all
choose_rows: int or None = 2048  # token rows that thresholds are chosen on; None: all of their documents
cost_rows: int or None = 4096  # held-out token rows that costs are measured on; None: all
curve_shares = [0.25, 0.5, 0.75, 1.0]  # shares of the tokens whose cost is measured in the costliest block
planted_model: str or None = None  # in which model tokens are made straight; None: the run's first with a loss
planted_in: list or str = "depth 0.9"  # in which of its blocks: a rule, or a list with one number
planted_text: str or None = None  # on which text; None: the run's main text
planted_rows = 8192  # token rows of it

# %%
import torch

import howlinear as hl
from howlinear.models.load import is_causal
from howlinear.notebook.run import start
from howlinear.plots import gate as plots

run = start("15_gate", profile, model, corpus)
models = {name: run.model(name) for name in run.models}
for name in list(models):
    if not is_causal(models[name]):
        del models[name]
        print(f"{name} predicts no next token: it has no loss that could tell how many of its tokens take a line.")
first = next(iter(models), next(iter(run.models)))
print("models:", ", ".join(models) or "none", "· text:", run.corpora[0])

# %% [markdown]
# ## Predict first
#
# 1. In the costliest block of each model a line for *all* tokens raises perplexity by far more than 1 %. If it may rise
#    by 1 %, what share of the tokens can take the line: a tenth, a half, nearly all?
# 2. The same share of the tokens takes the line, but they are drawn at random. How many times as much does that cost?
# 3. The error of a line on a token is the block's output minus the line's. How much of the logarithm of its squared
#    norm can an affine function of the input explain, in $R^2$: nothing, half, nearly all?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# A *gate* looks at a token's input $x$ and decides: the line, or the block. The block stays, so no parameter is saved;
# what is saved is arithmetic, the block's multiplications for every token that takes the line. arXiv 2603.03459 trains
# such a gate, with $d + 1$ parameters per block, and reports for blocks of GPT-2 that 25 to 56 % of the tokens can take
# the line while perplexity rises by 1 % at most.
#
# Our gate has as many parameters and is not trained: it comes from three least-squares problems.
#
# 1. *Massive* rows (notebook 12) are left to the block, and no line is fitted to them. The **first line** is the
#    least-squares line of all other rows.
# 2. The **score** is the affine function of $x$ that comes nearest to the logarithm of the first line's squared error,
#    $\log \lVert y - xW - b \rVert^2$. We take the logarithm because errors span decades and only their order counts.
#    The score is fitted to all rows, including massive ones, since it must send massive rows to the block.
# 3. Tokens with low scores take the line, which is **fitted anew to them** alone: it need not serve the others.
#
# How low must a score be? The text has three parts with no document in common. Lines and scores are fitted on the
# first. The threshold is chosen on the second, by bisection: the largest share of tokens at which perplexity rises by
# no more than is allowed. Share and rise are measured on the third, which is held out.

# %% [markdown]
# ## Method
#
# First by hand, with one input $x$ and twelve tokens. Where $x$ is above 0 the block is the line $y = x$; below, it
# jumps between 4 and −4.

# %% tags=["nbval-check-output"]
from howlinear.ideas.gate.fit import GATE, ORACLE, RANDOM, BlockRows, fit_gate, split_in_three

x = torch.tensor([-6.0, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6])[:, None]
jumps = 4 * (-1) ** x  # between 4 and −4
y = torch.where(x > 0, x, jumps)
twelve = BlockRows(x, y, torch.zeros(12, dtype=torch.long))
toy = fit_gate(torch.nn.Identity(), twelve, twelve)
print(f"first line: y = {toy.line.weight.item():.2f} x + {toy.line.bias.item():.2f}")
score = toy.ranks[GATE](x)
takes = score <= toy.threshold(GATE, 0.5)
print("half of the tokens, those of lowest score, have x =", x[takes, 0].int().tolist())
anew = toy.refitted(GATE, toy.threshold(GATE, 0.5))
print(f"the line, fitted anew to these: y = {anew.weight.item():.2f} x + {abs(anew.bias.item()):.2f}")

# %% [markdown]
# | what | function of `howlinear.ideas.gate` |
# |---|---|
# | a text in three parts | `rows.split_in_three` |
# | line, score, oracle and random rank of a block | `fit.fit_gate` |
# | the module in the block's place | `fit.BlockGate.gated` |
# | the largest share within the limit | `fit.choose_shares` |
# | shares and costs, held out | `measure.cost_table` |
# | multiplications saved | `measure.saved` |
# | all gates at once | `measure.together_table` |
#
# The gate is compared with an *oracle*, which knows the true error of every token (it computes the block for that, so
# it saves nothing), and with a *random* rank, which knows nothing. Both get a line and a threshold in the same way.
#
# We test the gate on a block where the answer is known. In a block of a trained model, half of the tokens are made
# straight: on them the block becomes its own least-squares line, and on the other half an error of fixed size is added
# to that line. In the case *plane* the straight tokens lie on one side of a plane through the inputs, which an affine
# score can detect; in the case *random* they are drawn at random, which no score can detect. The limit is a tenth of
# the cost of a line on all tokens.

# %% tags=["nbval-check-output"]
from howlinear.ideas.gate.planted import planted_table
from howlinear.instrument.selection import choose_blocks

if planted_model or models:
    model = hl.load_model(planted_model) if planted_model else models[first]
    candidates = [site.block for site in hl.sites(model)] if planted_model else run.capture(first).blocks
    planted_block, *_ = choose_blocks(planted_in, candidates)
    corpus_planted = run.corpus(planted_text or run.corpora[0], model)
    text = corpus_planted.rows(min(planted_rows, run.rows), run.seq_len, run.seed)
    table = planted_table(model, planted_block, split_in_three(text, choose_rows), run.seed)
    table.insert(0, "model", planted_model or first)
    planted = run.record("planted", table)
    print(planted.set_index(["case", "kind"])[["score_r2", "share", "right"]].round(2).to_string())
else:
    print("No model of this run has a loss, so there is none to plant straight tokens in.")

# %% [markdown]
# The column `score_r2` is the held-out $R^2$ of the score as a prediction of the log error; `right` is the share of
# straight tokens in the half that gate, oracle or random rank puts first; `share` is the share of tokens that take the
# line within the limit. In the case *plane* the gate finds the right half nearly as well as the oracle. In the case
# *random* its half has about as many straight tokens as one drawn at random.

# %% [markdown]
# ## Run
#
# Every cost is measured with only that block changed.

# %%
from howlinear.ideas.gate import measure

surveys, parts = {}, {}
for name, model in models.items():
    text = run.corpus(run.corpora[0], model).rows(run.rows, run.seq_len, run.seed).thinned(fit_rows)
    chosen = choose_blocks(blocks, run.capture(name).blocks)
    parts[name] = split_in_three(text, choose_rows, cost_rows)
    surveys[name] = measure.survey(model, parts[name], chosen, limit, curve_shares, run.seed)
run.record_held_out({name: {run.corpora[0]: three.judging} for name, three in parts.items()})
tables = {name: run.record(name, measure.stack(name, surveys)) for name in measure.COLUMNS}

# %% [markdown]
# The percentage of held-out tokens that take the line, and the percentage by which perplexity rises: with the gate,
# with an oracle, at random within the same limit, at random with as many tokens as the gate, and with all tokens on the
# line. Thresholds were chosen on the second part of the text, so on held-out text shares and rises differ a little.

# %%
measure.side_by_side(tables["costs"]).round(1)

# %% [markdown]
# Means over all blocks, and over the costly ones (`dear`), where all tokens on the line would cost more than is allowed
# on the second part of the text. Then the gates of all blocks at once:

# %% tags=["nbval-check-output"]
means = tables["means"].set_index(["model", "blocks", "kind"])[["share"]]
of_choices = means[means.index.isin([GATE, ORACLE, RANDOM], level="kind")]
print((100 * of_choices).round(0).to_string())
together = tables["together"].set_index("model")[["share", "rise", "saved"]]
print((100 * together).round(1).to_string())

# %% [markdown]
# Means over blocks: the held-out $R^2$ of the score as a prediction of the log error (`score_r2`), the number of
# massive held-out rows, and how many of these the gate leaves to the block (`massive_kept`):

# %%
every = tables["blocks"].set_index(["model", "block"])
run.folded("every block", every.round(2))
every.groupby("model", sort=False)[["score_r2", "massive_rows", "massive_kept"]].mean().round(2)

# %% [markdown]
# ## Figure: how many tokens take the line
#
# **How to read it.** One panel for each model, its blocks from left to right; the vertical axis is the share of
# held-out tokens that take the line, with 95 % intervals over documents. Filled: the gate. Open: the oracle. Crosses:
# at random. Each has its own threshold, chosen for the same rise of perplexity; at the top all tokens take the line.
# The oracle knows the line's error on each token, but not what that error costs in the loss, so in some blocks its
# share is lower than the gate's. The band is what arXiv 2603.03459 reports for blocks of GPT-2.

# %%
figure = plots.shares(tables["costs"], measure.PUBLISHED)
_ = run.figure(figure, "shares")

# %% [markdown]
# ## Figure: what a share of the tokens costs
#
# **How to read it.** The costliest block of each model. The horizontal axis is the share of tokens that take the line,
# the vertical axis the rise of perplexity on held-out text, linear from −1 to 1 % and logarithmic beyond. Pluses: the
# gate's tokens on the first line, not fitted anew. All curves meet at the right end, where all tokens take the same
# line. The dash-dotted line is the allowed rise.

# %%
figure = plots.curves(tables["curves"], limit)
_ = run.figure(figure, "curves")

# %%
low, high = measure.PUBLISHED
about = {"limit": limit, "beside": "arXiv 2603.03459", "published_low": low, "published_high": high}
run.save(settings=about | {"choose_rows": choose_rows, "cost_rows": cost_rows})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - An affine function of the input can partly predict how large a line's error will be. This takes no training: the
#   score is one more least-squares problem.
# - Limits. Gates are fitted and judged on documents of one text. Each is fitted to inputs that no other gate has
#   changed. A gate decides token by token, so arithmetic is saved only where the hardware can gather the tokens that
#   keep the block. And the published shares are for blocks of GPT-2, other and larger models: ours do not reproduce
#   them.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/15_gate.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** Half of the tokens of a block take the line. What share of the block's multiplications is saved in
# the first model, if those of the line and of the score are counted? ($d$ is its `config.hidden_size`.)
#
# <details><summary>Hint</summary>
#
# Step 1: a matrix of $m \times n$ numbers takes $mn$ multiplications per token. `howlinear.sites(model)[0].ffn` is the
# block, and its parameters with two axes are its matrices; call their total size $F$.
#
# Step 2: a token on the line takes $d^2$ multiplications instead of $F$, and every token takes $d$ for the score.
#
# </details>

# %%
saving = None  # a number between 0 and 1

if saving is not None:
    first_model = run.model(first)
    d = first_model.config.get_text_config().hidden_size
    block = hl.sites(first_model)[0].ffn
    assert saving < 0.5, "half of the tokens cannot save more than half, and the line is not for nothing"
    assert abs(saving - measure.saved(0.5, block, d)) < 1e-5, "the line for half of the tokens, the score for all"
    print(f"right: {saving:.1%} of the multiplications, and no parameter")

# %% [markdown]
# **2 (medium).** The gate and the oracle each take half of a block's tokens. What share of these would they have in
# common if the gate knew nothing, and what share do they have? Write the function that computes it from scores and true
# errors.
#
# <details><summary>Hint</summary>
#
# Step 1: each takes the half with the lowest numbers: `scores <= scores.median()`.
#
# Step 2: compute the share of the gate's tokens that the oracle takes too.
#
# </details>

# %%
first_model = run.model(first)
text = run.corpus(run.corpora[0], first_model).rows(run.rows, run.seq_len, run.seed).thinned(fit_rows)
asked = choose_blocks("depth 0.9", run.capture(first).blocks)
gates, judged = measure.fit_gates(first_model, split_in_three(text), asked, run.seed)
(gate,) = gates.values()
(rows,) = judged.values()

# %%
common = None  # a function of scores and errors, both of shape (n,) → a number

if common is not None:
    scores, errors = gate.ranks[GATE](rows.x), gate.ranks[ORACLE](rows.x)
    few = torch.arange(8.0)
    assert common(few, few) == 1, "who knows all has all in common with the oracle"
    assert common(few, -few) == 0, "low numbers take the line, of both"
    by_gate, by_oracle = scores <= scores.median(), errors <= errors.median()
    expected = float(by_oracle[by_gate].float().mean())
    assert abs(common(scores, errors) - expected) < 1e-3, "half by each, and the share that both take"
    assert abs(common(3 * scores + 1, errors) - expected) < 1e-3, "only the order counts, not the numbers"
    print(f"right: {expected:.0%} in common, where a random half would have 50 %")

# %% [markdown]
# **3 (harder).** Make a gate fail. Write a function of inputs that says which rows are straight: about half of them, by
# a *smooth* rule (nothing random), which no affine score can detect. The cell measures the $R^2$ with which an affine
# function of $x$ predicts which rows are straight.
#
# <details><summary>Hint</summary>
#
# Step 1: an affine function grows in one direction. One kind of row must lie on both sides of the other.
#
# Step 2: project $x$ on a direction, as the planted block does, and take the rows near the middle: half of all rows are
# closer to the median than the median distance.
#
# </details>

# %%
straight = None  # a function of x, shape (n, d) → which rows are straight, shape (n,)

if straight is not None:
    kept = rows.x[: len(rows.x) // 2 * 2]
    chosen = straight(kept)
    assert 0.4 < chosen.float().mean() < 0.6, "about half of the rows"
    near = straight(kept + 1e-4 * kept.std())
    assert (near == chosen).float().mean() > 0.98, "a smooth rule: hardly a row changes sides for a small step"
    pretended = torch.where(chosen, 0.0, 1.0)[:, None]
    inputs = kept.shape[1]
    even = hl.Moments(inputs, 1).update(kept[0::2], pretended[0::2])
    odd = hl.Moments(inputs, 1).update(kept[1::2], pretended[1::2])
    r2 = hl.ceiling(even, odd).r2
    assert r2 < 0.1, f"an affine score tells {r2:.2f} of it: one kind of row must lie on both sides of the other"
    print(f"right: half of the rows are straight, and an affine score tells {max(r2, 0):.2f} of which")

# %% [markdown]
# **4 (find the bug).** A friend's gate has the right score and the right threshold, and yet its line is worse than the
# first line on the tokens that take it. One thing is wrong. Which? Fill in `repaired`.
#
# <details><summary>Hint</summary>
#
# Step 1: by step 3 under *Idea*, rows with which scores take the line? Compare `takes` in `friends_line` with `takes`
# in `error_of`.
#
# Step 2: where there are massive rows, keep them out too: `gate.ordinary` marks all others. `gate.rows.moments` takes a
# Boolean mask of the rows to fit to, and `&` combines two masks.
#
# </details>


# %%
from howlinear.core.ceilings import fit


def friends_line(gate, share):
    takes = gate.ranked[GATE] > gate.threshold(GATE, share)
    line, _ = fit(gate.rows.moments(takes))
    return line


repaired = None  # a function of a gate and a share → the line of the rows that take it


def error_of(line, share=0.5):
    takes = gate.ranks[GATE](rows.x) <= gate.threshold(GATE, share)
    missed = rows.y[takes] - line(rows.x[takes])
    return float(missed.square().sum(1).mean())


friends_error = error_of(friends_line(gate, 0.5))
print(f"mean squared error: first line {error_of(gate.line):.3g}, your friend's {friends_error:.3g}")
if repaired is not None:
    for share in (0.5, 0.75):
        right_line = gate.refitted(GATE, gate.threshold(GATE, share))
        expected = error_of(right_line, share)
        found = error_of(repaired(gate, share), share)
        assert found < error_of(gate.line, share), "no better than the first line: which rows is it fitted to?"
        assert abs(found / expected - 1) < 1e-3, "the least-squares line of the ordinary rows that take it, no others"
    print(f"right: {error_of(repaired(gate, 0.5)):.3g}, once it is fitted to the rows that take it")
