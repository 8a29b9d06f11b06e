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
# # 12 · Which tokens make a block look linear?
#
# **Question.** The paper finds blocks that are nearly linear and of rank 1, and leaves open why. Do a few features make
# them so, or a few *tokens*?
#
# **You need** notebooks 02 and 04. **You learn** to report an $R^2$ together with that of the ordinary rows, and why a
# few rows can decide the fit for all others. **Time** 45 minutes to read, 2 to run.

# %% tags=["parameters"]
profile = "minis"  # which models and texts: minis (embedded), public (from packages), or paper (from the Hub)
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
features = [0, 1, 2, 4, 8, 16, 32, 64]  # how many of the loudest output features to leave out
swapped = 8  # blocks with massive rows that are swapped in each model, those that rest most on these rows
others = 2  # blocks without massive rows that are swapped for comparison: the most and the least linear
cost_rows: int or None = None  # held-out token rows that costs are measured on; None: all
planted_model: str or None = None  # in which model a sink is planted; None: the run's first with a loss
planted_text: str or None = None  # on which text; None: the run's main text
planted_rows = 8192  # token rows of it
planted_in: list or str = "depth 0.4"  # in which block after the first: a rule, or a list with one number
lengths = [32, 128, 512, 2048]  # tokens in a sequence, as far as the model reads and the text fills them
intervened_rows: int or None = None  # token rows that interventions are tried on; None: all
planted_mark = 50.0  # norm of the mark in the block before the sink, in medians of that block
planted_size = 300.0  # norm of the sink, in medians of its block

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch

import howlinear as hl
from howlinear.notebook.run import start
from howlinear.plots import sinks as plots

run = start("12_sinks", profile, model, corpus)
print("models:", ", ".join(run.models), "· text:", run.corpora[0], "·", run.rows, "token rows")

# %% [markdown]
# ## Predict first
#
# 1. Of 20,000 rows, a hundred are 500 times as large as the others. What share of $\sum \lVert y - \bar y \rVert^2$ is
#    theirs?
# 2. The map of all rows explains 95 % of such a block's variance. How much does it explain for the rows that are *not*
#    massive: more than half, a little, or less than nothing?
# 3. The block is swapped for that map, and the model breaks. Now the block itself computes the hundred rows, and the
#    map only the others. Does the model work again?
# 4. While the model runs, the massive outputs of an early block are set to zero. A much later block is nearly linear.
#    Does it stay so?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about. A
# row is *massive* if its output is beyond ten times the median norm of its block's outputs; an arrow goes from
# $R^2_{\mathrm{lin}}$ of all rows to that of the others. Where no block of this run has such rows, the planted sink
# below shows what they do, and `figures/public/12_sinks_without.png` shows public models that have them.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# Trained transformers write outputs hundreds of times the usual size on a few tokens, above all on the first of a
# sequence. The usual explanation is that attention weights must add up to 1: a head that finds nothing to attend to
# puts them on one token, the attention *sink*, and the large outputs mark it (Sun et al. 2024, "Massive activations in
# large language models"; Xiao et al. 2024, "Efficient streaming language models with attention sinks"). We call a token
# row *massive* if its output is beyond ten times the median norm, and all others *ordinary*.
#
# $R^2_{\mathrm{lin}}$ weights rows by their squares. A row of three hundred medians counts as much as ninety thousand
# ordinary ones, and it asks little of the map: one direction, written wherever the input looks like the first token. A
# map that does this has an $R^2$ near 1 and rank 1, and explains nothing about any other token.

# %% [markdown]
# ## Method
#
# First by hand: eight ordinary rows on which a line explains nothing, with $x = \pm 1$ and $y = \pm 1$ uncorrelated,
# and one massive row with $y = 100$ at $x = 10$. Moments can be subtracted as well as added, so the moments without the
# massive row are exact, as if it had never been counted.

# %%
from howlinear.core.ceilings import r2

x = torch.tensor([[1.0], [1.0], [-1.0], [-1.0], [1.0], [1.0], [-1.0], [-1.0]])
y = torch.tensor([[1.0], [-1.0], [1.0], [-1.0], [1.0], [-1.0], [1.0], [-1.0]])
massive_row = hl.Moments(1, 1).update(torch.tensor([[10.0]]), torch.tensor([[100.0]]))
everything = hl.Moments(1, 1).update(x, y) + massive_row
ordinary_rows = everything - massive_row
of_all = hl.ceiling(everything, everything)
of_ordinary = hl.ceiling(ordinary_rows, ordinary_rows)
print(f"R² of all nine rows: {of_all.r2:.2f}; of the eight ordinary ones, with their own line: {of_ordinary.r2:.2f}")
print(f"R² on the eight of the line of all nine: {r2(of_all.map, ordinary_rows):.0f}")

# %% [markdown]
# | what | function of `howlinear.ideas.sinks` |
# |---|---|
# | everything about one block, with rows and features left out | `measure.look` |
# | $R^2_{\mathrm{lin}}$ without the $k$ heaviest rows, in both fit and score | `measure.rest` |
# | $R^2$ without the $k$ loudest output features | `measure.r2_without_loudest` |
# | tokens, positions, size and direction of massive rows | `tokens.massive_table`, `token_table` |
# | which blocks write massive outputs, and which take them away | `tokens.flow_table` |
# | $R^2_{\mathrm{lin}}$ without the rows beyond a cut, for every cut | `measure.cut_table` |
# | the rows at position 0 | `measure.first_rows` |
# | share of rows that carry $R^2$, $(\sum e)^2 / (n \sum e^2)$, $e = \lVert y - \bar y \rVert^2$ | `carrying_share` |
# | massive outputs changed while the model runs, and noise that costs as much | `interventions.intervene` |
# | what a map costs, five ways | `costs.cost_table` |
# | what the paper's values predict | `predictions.predictions` |
#
# Do these tools find a sink where there is one? We plant one in the first model, in two steps, as in trained models:
# one block marks position 0 in two features, and the next adds a large constant to three features there. On all other
# tokens both blocks are unchanged. First, in which blocks:

# %%
from howlinear.files.tables import stack
from howlinear.ideas.sinks import costs, interventions, measure, planted, predictions, tokens
from howlinear.ideas.sinks.measure import look, rest
from howlinear.instrument.capture import capture
from howlinear.instrument.selection import choose_blocks
from howlinear.models.load import is_causal, tokenizer_of

predicting = (name for name in run.models if is_causal(run.model(name)))
first = next(predicting, next(iter(run.models)))
model, seq_len = run.model(first), run.seq_len
numbers = list(run.capture(first).blocks)
if planted_model is None and len(numbers) < 2:
    print(f"a sink takes two blocks whose outputs vary, and {first} has one: it is planted in mini-gpt2")
    planted_model = "mini-gpt2"
if planted_model is not None:
    first, model, seq_len = planted_model, hl.load_model(planted_model), min(seq_len, 128)
    numbers = [site.block for site in hl.sites(model)]
planted_block, *_ = choose_blocks(planted_in, numbers[1:])
marking = numbers[numbers.index(planted_block) - 1]
print(f"{first}: block {marking} marks position 0, block {planted_block} writes the large constant there")

# %% [markdown]
# Then what they write at position 0, in medians of their own outputs:

# %%
planted_corpus = run.corpus(planted_text or run.corpora[0], model)
sunk_text = planted_corpus.rows(min(planted_rows, run.rows), seq_len, run.seed)
before = capture(model, sunk_text, [marking, planted_block], sample=run.sample, seed=run.seed)
clean = before[planted_block]
first_of_clean = measure.first_rows(model, sunk_text)

mark = torch.zeros(clean.outputs.d_in)
marked = torch.tensor([20, 70]) % len(mark)  # two features, of a narrow model too
mark[marked] = planted_mark * before[marking].heavy_rows().median * torch.tensor([0.8, 0.6])
vector = torch.zeros(clean.outputs.d_in)
written = torch.tensor([10, 60, 100]) % len(vector)
vector[written] = planted_size * clean.heavy_rows().median * torch.tensor([0.8, -0.5, 0.33])

# %% [markdown]
# The block is measured twice, *clean* as it is and *sunk* with what was planted:

# %% tags=["nbval-check-output"]
with planted.sunk(model, planted_block, mark, vector, marking):
    sunk = capture(model, sunk_text, [planted_block], sample=run.sample, seed=run.seed)[planted_block]
    first_of_sunk = measure.first_rows(model, sunk_text)
    planted_looks = {
        ("clean", planted_block): look(clean, [0], features, first_of_clean[planted_block]),
        ("sunk", planted_block): look(sunk, [0], features, first_of_sunk[planted_block]),
    }
    costs_of_sunk = costs.cost_table("sunk", model, planted_looks, sunk_text, [planted_block])

planted_blocks = measure.block_table(planted_looks).rename(columns={"model": "case"})
planted_blocks = run.record("planted", planted_blocks).set_index("case")
shown = ["massive_rows", "carrying_share", "r2", "median_r2", "effective_rank", "r2_ordinary", "r2_without_first"]
shown += ["effective_rank_ordinary", "of_all"]
print(planted_blocks[shown].astype(float).T.to_string(float_format="{:.2g}".format))
print(planted_blocks[["rank_one", "rank_one_ordinary", "carried_by"]].T.to_string())

# %% [markdown]
# The sunk block is in the paper's rank-1 regime: high pooled $R^2$, an effective rank of 1, a median feature far below.
# Without its massive rows, or without position 0, it is the clean block again, and the map of all its rows (`of_all`)
# is useless for the ordinary ones. The sink lies in three features, so it hardly changes the median feature, which is
# about as linear as the ordinary rows. `carried_by` says what $R^2_{\mathrm{lin}}$ rests on, by a rule given further
# down: on massive rows (*tokens*), on the loudest features, on both or on neither. `carrying_share` needs no rule for
# what is massive: if $k$ of $n$ rows shared all of the variance equally, it would be $k / n$; if all rows did, 1.
#
# What does it cost, in nats per token, to put a map in the block's place? We try five ways:
#
# - (a) least squares on all rows;
# - (b) the same map, but the block itself computes the massive rows;
# - (c) least squares on ordinary rows;
# - (d) the same map as in (c), but the block itself computes the massive rows;
# - (e) least squares on ordinary rows, and one constant at position 0.
#
# For (b) and (d) the block is computed for all rows, and the size of its output decides which rows it keeps. That saves
# nothing, and is done only to see where the cost comes from. (e) does not need the block, and could be used in
# practice. This model has never learned to rely on a sink, so (c), which takes the sink away, may even help it; a model
# trained with a sink relies on it. `mended` is the share of the cost of (a) that (d) saves.

# %% tags=["nbval-check-output"]
run.record("planted_costs", costs_of_sunk.drop(columns="model"))
print(costs.worth_table(costs_of_sunk).round(2).to_string())

# %% [markdown]
# Leaving rows out shows what carries a number. It does not show that one block's massive outputs are *why* a later
# block has some: for that, they must be changed while the model runs. So we plant a chain whose causes are known. The
# sunk block writes, as before. The next block answers: where its input looks like that of position 0 behind the sink,
# it writes a large constant of its own. The block after that writes such a constant at position 0 whatever its input.
# If the sunk block's massive outputs are set to zero, the answer must vanish and $R^2_{\mathrm{lin}}$ of the answering
# block return to its old value, while the third block must stay nearly as linear as it is. The same intervention on
# position 0 of the clean model must do nothing.

# %% tags=["nbval-check-output"]
behind = [block for block in numbers if block > planted_block]
planted_effects, planted_summary = interventions.tables([])
if len(behind) < 2:
    print("a chain takes two blocks behind the sunk one, and this model has fewer")
else:
    answering, aside = behind[:2]
    measured = {"writer": planted_block, "blocks": [answering, aside]}
    with planted.sunk(model, planted_block, mark, vector, marking):
        read = capture(model, sunk_text, [answering, aside], sample=run.sample, seed=run.seed)
        direction, threshold = planted.first_apart(read[answering].rows())
        answer, own = (-vector * read[block].heavy_rows().median / clean.heavy_rows().median for block in read)
        with (
            planted.planted(model, answering, planted.answer(direction, threshold, answer)),
            planted.planted(model, aside, planted.sink(own)),
        ):
            more = {"lengths": lengths, "bos": interventions.bos_of(model), "seed": run.seed}
            chain = [interventions.intervene("sunk", model, sunk_text, **measured, **more)]
    at_first = {"which": interventions.at_first, "only": [interventions.ZERO]}
    chain += [interventions.intervene("clean", model, sunk_text, **measured, **at_first)]
    planted_effects, planted_summary = interventions.tables(chain)
    run.record("planted_effects", planted_effects.rename(columns={"model": "case"}))
    run.record("planted_interventions", planted_summary.rename(columns={"model": "case"}))
    print(f"blocks: {planted_block} is sunk, {answering} answers, {aside} writes by itself; R² of all rows")
    side_by_side = planted_effects.pivot(index="intervention", columns=["model", "block"], values="r2")
    print(side_by_side.reindex(planted_effects["intervention"].unique()).round(2).to_string())

# %% [markdown]
# ## Run
#
# We measure every block of every model from the captures of notebook 01, and the rows at position 0 in a short pass.

# %%
looks = {}
ids = {}
decode = {}
for name in run.models:
    stored = run.capture(name)
    ids[name] = stored.rows.ids
    decode[name] = tokenizer_of(run.model(name)).decode
    first_of_block = measure.first_rows(run.model(name), stored.rows)
    for number, block in stored.blocks.items():
        looks[name, number] = look(block, measure.heavy_counts(block.heavy_rows()), features, first_of_block[number])

blocks = run.record("blocks", measure.block_table(looks))
values = ["massive_rows", "heaviest", "r2", "r2_ordinary", "of_all", "effective_rank", "effective_rank_ordinary"]
every = blocks.set_index(["model", "block"])[values].round(2)
run.folded("every block", every)
none_massive = "No block of this run's models has a massive row."
run.shown(every[every["massive_rows"] > 0], none_massive)

# %% [markdown]
# Which rows are massive? Their number, the share of them at position 0 (`at_first`), their size in medians, and the
# share of their energy that lies in one direction:

# %%
described = tokens.massive_table(looks)
run.record("massive", described.drop(columns="massive_rows"))
run.shown(described.round(3), none_massive)

# %% [markdown]
# Which tokens they are:

# %%
token_rows = run.record("tokens", tokens.token_table(looks, ids, decode))
run.shown(token_rows.round(3), none_massive)

# %% [markdown]
# Which block writes massive outputs, and which takes them away? A block can only take away what was written before it.
# So its `writer` is, among the earlier blocks that take nothing away, the one whose massive outputs have the largest
# sum. `cosine` compares the block's mean massive output with the writer's: near −1, the block takes away what was
# written. `same_rows` is the share of the block's massive rows that are massive in the writer too.

# %%
flow = run.record("flow", tokens.flow_table(looks))
run.record("cosines", tokens.cosine_table(looks))
run.shown(flow.round(2), none_massive)

# %% [markdown]
# ## Figure: size and direction
#
# **How to read it.** (a) The heaviest output of every block, in medians of that block; rows above the dotted line are
# massive. (b) The cosine of a block's mean massive output with its writer's, drawn if several blocks of the run have
# massive rows and a writer. At the top the block adds to what was written, at the bottom it takes it away, and near 0
# it writes in another direction. The first block with massive rows has no writer, so it has no point.

# %%
from howlinear.instrument.massive import MULTIPLE

figure = plots.massive(blocks, flow, MULTIPLE)
run.figure(figure, "massive")
plt.show()

# %% [markdown]
# ## Figure: R² with and without massive rows
#
# **How to read it.** One panel for each model with massive rows. Filled: $R^2_{\mathrm{lin}}$ of all rows. Open: that
# of the ordinary rows, with their own map. Crosses: the map of *all* rows, scored on the ordinary ones; an arrow where
# it is far below 0. Where no row is massive, the three coincide.

# %%
figure = plots.with_and_without(blocks)
run.figure(figure, "without")
plt.show()

# %% [markdown]
# ## Figure: every cut
#
# The cut at ten medians is a choice, so here is $R^2_{\mathrm{lin}}$ of every block for a range of cuts.
#
# **How to read it.** Upper panels: $R^2_{\mathrm{lin}}$ over depth, fitted and scored without the rows beyond a cut,
# one colour for each cut; black: all rows; diamonds: all rows except those at position 0. Where the lines coincide, the
# cut does not matter; where they fan out, $R^2_{\mathrm{lin}}$ depends on it. Lower panels: the effective share of rows
# that carry $R^2$ (`carrying_share`), which needs no cut.

# %%
cuts = run.record("cuts", measure.cut_table(looks))
figure = plots.cuts(cuts, blocks)
run.figure(figure, "cuts")
plt.show()

# %% [markdown]
# In numbers: in how many blocks $R^2_{\mathrm{lin}}$ changes by 0.1 or more at every cut, at some, or at none.

# %% tags=["nbval-check-output"]
at_cuts = blocks["cuts_deciding"].map(lambda count: {0: "none", len(measure.CUTS): "every"}.get(count, "some"))
print(pd.crosstab(blocks["model"], at_cuts.rename("cuts that decide")).to_string())

# %% [markdown]
# ## Figure: tokens or features?
#
# **How to read it.** Four ways to leave something out. Thin lines are blocks, and those that rest on massive rows are
# thicker and numbered at their right ends; lines with markers are the mean over a model's blocks. (a) The *heaviest
# rows* are left out of both fit and score, until after the last massive one. A curve falls only once nearly all massive
# rows of its block are gone, since the few that are left outweigh all others (exercise 3). (b) *Rows far out* are those
# whose inputs have the highest leverage. They are taken from the sampled rows, as the same share of them as the axis
# shows of all rows; the curves start lower, since they are fitted on the sample. (c) *Loudest features* are the output
# features of highest variance on train rows. (d) The same for ordinary rows alone. A block carried by tokens falls in
# (a) and not in (d); a block carried by features falls in (d) and not in (a).

# %%
curves = measure.left_out_table(looks)
resting = blocks[blocks["carried_by"].isin(["tokens", "both"])]
figure = plots.left_out(curves, resting)
run.figure(figure, "left_out")
plt.show()

# %% [markdown]
# What carries each block, in numbers: *tokens* if $R^2_{\mathrm{lin}}$ changes by 0.1 or more without the massive rows,
# *features* if $R^2$ of the ordinary rows falls by as much without the loudest features, *both*, or *neither*.

# %% tags=["nbval-check-output"]
carried = blocks.groupby("model", sort=False)["carried_by"].value_counts().unstack(fill_value=0)
print(carried.rename_axis(columns=None).to_string())

# %% [markdown]
# How much of the profile's shape is left without massive rows? The table has the spread over depth, the largest step
# between neighbours, and the number of blocks in the rank-1 regime (effective rank below 2, the median feature's $R^2$
# at least 0.25 below the pooled one), for all rows and for ordinary ones.

# %% tags=["nbval-check-output"]
depth = measure.depth_table(blocks)
print(depth.astype(float).round(2).T.to_string())

# %% [markdown]
# ## Figure: is the sink the cause?
#
# Now the massive outputs of the block that writes most are changed while the model runs: set to zero or to the mean of
# the ordinary ones, halved, doubled, or exchanged with the outputs half a sequence further on. A BOS in front of each
# sequence, and sequences of other lengths, change which token is the first. On the same rows, in the same document
# folds, we then measure $R^2_{\mathrm{lin}}$ of all rows, that of the rows that are ordinary both before and after, and
# the loss.
#
# Taking a sink away also damages the model, and damage alone may bend or straighten a block. The control is equal
# damage elsewhere: noise on the writer's *ordinary* outputs, of a size that raises the loss by as much. A change that
# comes with the zeros and not with the noise is due to the sink. Where the loss does not surely rise, as with a planted
# sink that no other block relies on, or where a model has no loss, there is no damage to match and no control.
#
# **How to read it.** One row of panels for each model, the planted chain first. Left: $R^2_{\mathrm{lin}}$ of the
# blocks behind the writer. Middle: the paired change of $R^2_{\mathrm{lin}}$ of the ordinary rows. Right: the block
# behind the writer that rests most on massive rows, under every intervention.

# %%
writers = flow[flow["role"] == "writes most"].set_index("model")["block"].to_dict()
unchanged = [name for name in run.models if name not in writers]
if unchanged:
    print(f"No block of {', '.join(unchanged)} writes massive outputs, so there is nothing to change there.")
tried = []
for name, writer in writers.items():
    stored = run.capture(name)
    text, behind = stored.rows.thinned(intervened_rows), [block for block in stored.blocks if block > writer]
    print(f"{name}: {text.held_out.count:,} held-out tokens of {text.held_out.documents} documents")
    tried_model = run.model(name)
    more = {"lengths": lengths, "bos": interventions.bos_of(tried_model), "seed": run.seed}
    tried.append(interventions.intervene(name, tried_model, text, writer, behind, **more))
effects, summary = interventions.tables(tried)
run.record("effects", effects)
run.record("interventions", summary)
shown_chain = planted_effects[planted_effects["model"] == "sunk"].assign(model=f"{first}, planted")
highlighted = {interventions.ZERO: "massive outputs set to zero", interventions.NOISE: "noise elsewhere, equal loss"}
figure = plots.interventions(pd.concat([shown_chain, effects]), highlighted)
run.figure(figure, "interventions")
plt.show()

# %% [markdown]
# In numbers, with the planted chain: `rise` is the rise of the loss in nats per token, `noise` the size of the noise in
# median norms, `change_ordinary` the mean change over later blocks; `straighter` and `more_bent` count the later blocks
# where the interval of that change lies above or below 0.

# %%
arms = ["loss", "rise", "noise", "later_blocks", "change_ordinary", "straighter", "more_bent"]
every_arm = pd.concat([planted_summary[planted_summary["model"] == "sunk"].assign(model=f"{first}, planted"), summary])
run.folded("every block", pd.concat([shown_chain, effects]).set_index(["model", "intervention", "block"]).round(3))
every_arm.set_index(["model", "writer", "intervention"])[arms].infer_objects().dropna(axis=1, how="all").round(3)

# %% [markdown]
# The block that writes most may only add to what an earlier block began; silencing it then leaves the massive rows of
# the stream in place. So where its massive rows are already massive in an earlier block, that block is silenced too,
# with noise of equal cost as the control, and the blocks behind it that rest on massive rows are measured.

# %%
begins = tokens.earlier_writers(flow)
silenced = {"only": [interventions.ZERO, interventions.NOISE], "seed": run.seed}
earlier = []
for name, writer in begins.items():
    resting = blocks[(blocks["model"] == name) & blocks["carried_by"].isin(["tokens", "both"])]
    behind = [block for block in resting["block"] if block > writer]
    text = run.capture(name).rows.thinned(intervened_rows)
    found, _ = interventions.intervene(name, run.model(name), text, writer, behind, **silenced)
    earlier.append(found.assign(writer=writer))
earlier_effects = run.record("earlier_effects", stack(earlier, [*interventions.EFFECTS, "writer"]))
shown_effects = ["massive_rows", "r2", "r2_low", "r2_high", "r2_ordinary"]
run.shown(
    earlier_effects.set_index(["model", "writer", "intervention", "block"])[shown_effects].round(3),
    "The massive rows of the block that writes most begin there, so no earlier block is silenced.",
)

# %% [markdown]
# ## Figure: what a map costs
#
# **How to read it.** Each line is a block, swapped alone, with its number at both ends; filled marks are blocks with
# massive rows, open ones a few blocks without, for comparison. The vertical axis is the rise of the loss per token on
# held-out text, on a logarithmic scale.
#
# The five ways (a) to (e) are those tried on the planted sink. Without massive rows, (b), (c) and (d) equal (a).

# %%
chosen = costs.chosen_blocks(blocks, swapped, others)
cost_tables, costed = [], {}
for name, numbers in chosen.items():
    text = run.capture(name).rows.with_fewer_held_out(cost_rows)
    costed[name] = {run.corpora[0]: text}
    cost_tables.append(costs.cost_table(name, run.model(name), looks, text, numbers))
swap_costs = run.record("costs", stack(cost_tables, costs.COLUMNS))
run.record_held_out({name: costed[name] for name in swap_costs["model"].unique()})
figure = plots.costs(swap_costs, costs.KINDS)
run.figure(figure, "costs")
plt.show()

# %% [markdown]
# In nats per token, with `mended` as above. Models that predict no next token have no cost, and are named first.

# %%
costless = [name for name in run.models if name not in set(swap_costs["model"])]
if costless:
    print(f"{', '.join(costless)}: no next token is predicted, so there is no perplexity, and swaps have no cost.")
costs.worth_table(swap_costs).dropna(axis=1, how="all").round(3)

# %% [markdown]
# Where does the cost arise: in what is predicted from position 0 (`nats_first`) or from any later position
# (`nats_later`)? `delta` is the cost in perplexity. The table shows medians over the blocks; the folded one has every
# map of every block with its 95 % interval.

# %%
arises = ["nats_first", "nats_later", "delta", "delta_low", "delta_high"]
run.folded("every map of every block", swap_costs.set_index(["model", "block", "kind"])[arises].round(3))
swap_costs.groupby("kind", sort=False)[arises[:3]].median().round(3)

# %% [markdown]
# ## Predictions for the paper's models
#
# Three numbers that the paper publishes for each of its 36 blocks would show a sink: pooled $R^2$ of 0.6 or more, a
# median feature lower by 0.15 or more, and a map of at most ten directions that reaches 90 % of the pooled $R^2$. Where
# all three agree we predict that $R^2_{\mathrm{lin}}$ of ordinary rows is lower than that of all rows by more than 0.1,
# and elsewhere that it is not. The rule was written down before any of the three models could be run here.

# %% tags=["nbval-check-output"]
predicted = predictions.predictions()
to_fall = predicted[predicted["falls"]].drop(columns="falls")
print(len(to_fall), "of", len(predicted), "blocks are predicted to fall:")
print(to_fall.round(2).to_string(index=False))

# %%
comparison = predictions.compared(predicted, blocks)
run.record("predictions", predictions.prediction_table(predicted, comparison))
print(predictions.sentence(comparison))
checked = comparison[["model", "block", "prediction", "r2", "r2_ordinary", "massive_rows", "right"]]
None if checked.empty else checked.round(2)

# %%
settings = {"features": features, "multiple": MULTIPLE, "swapped": swapped, "others": others, "lengths": lengths}
run.save(settings=settings | {"cuts": list(measure.CUTS), "deciding_fall": predictions.FALL})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# Our numbers next to the paper's:

# %%
from howlinear.files.published import load_published

published = load_published().groupby("model")["r2_lin"]
paper_spread = published.max() - published.min()
paper_step = published.apply(lambda profile: profile.diff().abs().max())
claims = [
    (
        "why near-linear blocks are of rank 1",
        "left open",
        "; ".join(f"{name}: {row['rank_one']:.0f} → {row['rank_one_ordinary']:.0f}" for name, row in depth.iterrows()),
    ),
    (
        "R² differs over depth: highest less lowest",
        f"{paper_spread.min():.2f} to {paper_spread.max():.2f}",
        "; ".join(f"{name}: {row['spread']:.2f} → {row['spread_ordinary']:.2f}" for name, row in depth.iterrows()),
    ),
    (
        "adjacent blocks jump: largest step",
        f"{paper_step.min():.2f} to {paper_step.max():.2f}",
        "; ".join(f"{name}: {row['step']:.2f} → {row['step_ordinary']:.2f}" for name, row in depth.iterrows()),
    ),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["claim", "the paper", "this run: all rows → ordinary rows"]).set_index("claim")

# %% [markdown]
# - The squares of a hundred rows of 500 medians add up to $100 \cdot 500^2$; the nearly $20{,}000$ others have about 1
#   each. So nearly all of the variance lies in the hundred rows, and the map is fitted to them.
# - A few rows spoil the *fit* for all others. Once they are left out of the fit, a constant can stand in for them.
# - What one block writes for a token can be the reason why a much later block looks linear. Leaving rows out shows that
#   they carry a number; only changing them while the model runs, with equal damage elsewhere as a control, shows that
#   they are its cause.
# - A high $R^2_{\mathrm{lin}}$ is a statement about squares. Report it together with that of the ordinary rows, and say
#   at which cuts the two differ.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/12_sinks.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** Sequences have $L$ tokens. The first is a sink, with the same output in every sequence, which the map
# predicts without error. The ordinary rows have mean 0 and norm 1, and the map explains none of their variance. How
# large must the norm of the sink be for $R^2_{\mathrm{lin}} = r$?
#
# <details><summary>Hint</summary>
#
# Step 1: the mean of all rows is $1/L$ of the sink. The sinks' own variance about it is $\frac1L (1 - \frac1L)\, s^2$
# per row.
#
# Step 2: the ordinary rows add $1 - \frac1L$ per row, of which the map explains nothing. Write $r$ as the sinks' share
# of the total, and solve for $s$.
#
# </details>

# %%
sink_size = None  # a function (length, r) → the sink's norm

if sink_size is not None:
    for length, r in ((128, 0.9), (128, 0.5), (1024, 0.97)):
        size = sink_size(length, r)
        assert size > 0, "a norm is above 0"
        # the sinks' own variance about the mean of all, for each row: (1/L) (1 − 1/L) size²
        explained = size**2 / length * (1 - 1 / length)
        unexplained = 1 - 1 / length
        assert abs(explained / (explained + unexplained) - r) < 1e-9, "the first of L rows, about the mean of all L"
    print(f"right: {sink_size(128, 0.9):.0f} norms for 0.9 of 128 tokens, {sink_size(1024, 0.9):.0f} of 1,024")

# %% [markdown]
# **2 (medium).** Write `elsewhere`: $R^2$ of the map of *all train* rows of a block on its *ordinary held-out* rows.
# Use moments alone.
#
# <details><summary>Hint</summary>
#
# Step 1: `sum(block.train)` gives the moments of all train rows, and `fit` of `howlinear.core.ceilings` turns them into
# a map.
#
# Step 2: `block.ordinary()` is the same block without its massive rows, and `r2(map, moments)` scores a map.
#
# </details>

# %%
elsewhere = None  # a function of a block → R²

if elsewhere is not None:
    for block, which in ((sunk, "sunk"), (clean, "clean")):
        expected = planted_looks[which, planted_block].ordinary.of_all
        off = abs(elsewhere(block) - expected)
        assert off < 1e-6 * (1 + abs(expected)), "fit on all train rows, score on the held-out rows that are left"
    print(f"right: {elsewhere(sunk):.0f} where there are sinks, {elsewhere(clean):.2f} where there are none")

# %% [markdown]
# **3 (medium).** At least how many of the heaviest rows of the sunk block must be left out until $R^2_{\mathrm{lin}}$
# is within 0.1 of that of its ordinary rows? Guess first: half of the sinks, or nearly all?
#
# <details><summary>Hint</summary>
#
# Step 1: `rest(sunk, count, of_all)` is the block without its `count` heaviest rows; `of_all`, the map of all rows, is
# `planted_looks["sunk", planted_block].solved.ceiling.map`.
#
# Step 2: its `.r2` must come within 0.1 of `planted_looks["sunk", planted_block].solved.ordinary.r2`. Increase the
# count from 0.
#
# </details>

# %%
enough = None  # a number of rows

if enough is not None:
    solved = planted_looks["sunk", planted_block].solved
    left = (rest(sunk, count, solved.ceiling.map) for count in range(solved.massive_rows + 1))
    least = next(others.left_out for others in left if abs(others.r2 - solved.ordinary.r2) < 0.1)
    assert enough == least, "fewer rows would do" if enough > least else "that many are too few"
    print(f"right: {enough} of {solved.massive_rows}, as a few sinks outweigh all ordinary rows")

# %% [markdown]
# **4 (harder).** Plant a loud *feature*: write a change of the block's output, the same on all tokens, after which it
# has no massive row, $R^2_{\mathrm{lin}}$ above 0.9, an effective rank below 2, and "features" as its `carried_by`.
#
# <details><summary>Hint</summary>
#
# Step 1: the feature must be linear in $x$, so take one input times a number. Write it into one feature of a copy of
# $y$, on every token, so that the median norm grows with the rows.
#
# Step 2: the number must be many times as large as the norm of an ordinary output, so that this feature has nearly all
# of the variance.
#
# </details>

# %%
change = None  # a function of x and y, of shape (batch, seq_len, d), that gives another y

if change is not None:
    few = sunk_text.thinned(2048)
    with planted.planted(model, planted_block, change):
        loud = capture(model, few, [planted_block], sample=run.sample, seed=run.seed)[planted_block]
    seen = look(loud, [0], [0])
    assert seen.solved.massive_rows == 0, "these are tokens: change all rows alike"
    assert seen.solved.ceiling.r2 > 0.9, "what is loud must follow from x along a line"
    assert seen.solved.effective_rank < 2, "one direction, and it must be louder"
    assert seen.carried_by == "features", "one feature, and the others as they were"
    print(f"right: R² {seen.solved.ceiling.r2:.2f}, and {seen.loud.r2:.2f} without the loudest features")

# %% [markdown]
# **5 (find the bug).** A friend wants a map for the ordinary tokens of the sunk block. Her fit leaves the massive rows
# out, as it should, and still the map is worse on ordinary tokens than their mean. One thing is wrong. Which? Fill in
# `repaired`. (It is a common slip: activations are often centred by their mean over *all* tokens.)
#
# <details><summary>Hint</summary>
#
# Step 1: a line can be wrong in its slope or in where it lies. `sum(sunk.ordinary().test)` has a `mean_x` and a
# `mean_y`: how far from the second does her map take the first?
#
# Step 2: a least-squares line runs through the two means of the rows that it was fitted to. Which rows do her slope and
# her means come from?
#
# Step 3: `fit` of `howlinear.core.ceilings` computes slope and offset from the same moments.
#
# </details>


# %%
def friends_map(block):
    everything, ordinary = sum(block.train), sum(block.ordinary().train)
    slope = hl.ceiling(ordinary, ordinary).map.weight
    return hl.AffineMap(slope, everything.mean_y - everything.mean_x @ slope)


repaired = None  # a function of a block → a map

ordinary_held_out = sum(sunk.ordinary().test)
print(f"your friend's map, on ordinary tokens: R² {r2(friends_map(sunk), ordinary_held_out):.1f}")
if repaired is not None:
    expected = planted_looks["sunk", planted_block].ordinary.r2
    found = r2(repaired(sunk), ordinary_held_out)
    assert found > 0.01, "no better than the mean of the ordinary tokens: what has the sinks in it?"
    assert abs(found - expected) < 1e-6, "the least-squares map of the ordinary train rows, and nothing else"
    print(f"right: {found:.2f}, once the slope and both means are of the same rows")
