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
# # 09 · When does training make the profile?
#
# **Question.** At the first step the blocks of a GPT-2 or a Pythia have nearly the same $R^2_{\mathrm{lin}}$; at the
# last they do not. When does each leave its initial $R^2_{\mathrm{lin}}$, in which order, and does it settle before the
# loss?
#
# **You need** notebook 02. **You learn** in which order training makes a profile, and how to check that this is not
# noise. **Time** 30 minutes to read, 2 to run: a small model is trained while you watch.

# %% tags=["parameters"]
profile = "minis"  # which models: minis (embedded, offline), or paper, which adds a Pythia's public revisions
model: str or None = None  # your own model instead of the profile's: a folder, a Hub id or a name
corpus: str or None = None  # your own text instead of the profile's: a path or a name
steps = 200  # training steps of the live model; a fifth of a second each on one core
blocks = 6  # blocks of the live model
width = 64  # width of its residual stream
documents = 2000  # documents that the live model trains on; none of them is measured
patience = 2  # measured steps in a row outside the first interval that count as a departure
shares = [0.8, 0.9, 0.95]  # share of its range that a curve has covered once it is settled; the middle one is drawn
every = 1  # measure every n-th of a Pythia's twenty revisions: half a gigabyte to fetch and a minute each

# %%
from howlinear.notebook.run import start

run = start("09_dynamics", profile, model, corpus)
share = shares[len(shares) // 2]

# %% [markdown]
# ## Predict first
#
# 1. In notebook 02, GELU blocks start nearly straight and end less so. Does their $R^2_{\mathrm{lin}}$ only fall?
# 2. Which block leaves its initial value first: the one next to the text, or the one next to the loss?
# 3. Which settles first, the profile or the loss?

# %% [markdown]
# ## The answer
#
# These are the recorded results of this run profile, numbers first; the sections below show how they come about.

# %%
run.answer()

# %% [markdown]
# ## Idea
#
# A trained profile is the last frame of a film: we call a training run a *film* if every block was measured along the
# way. While the embedded models and the twins of notebook 08 were trained, every block was measured at steps 0, 1, 2,
# 3, 4, 6, 8, 11, …, two frames per doubling, always on the same rows. Here every question is about *when*, and time is
# read on a logarithmic scale.
#
# Two traps. Noise is not a departure: a block has left only when its interval is clear of its first one, at two
# measured steps in a row. And a curve may end where it began, so the distance covered does not show when it is done. We
# say *settled* as engineers do of a swinging pointer: from then on it stays in a narrow band around its last value.

# %% [markdown]
# ## Method
#
# Let $I_t$ be the 95 % interval of a block at step $t$, $v_T$ the last of the values $v_t$, and $1 - q$ the share of a
# curve's range by which it may still differ from $v_T$ ($q = 0.9$, say). Then
#
# $$ t_{\text{leaves}} = \min\{t : I_s \cap I_0 = \varnothing,\ \text{same side, at two steps in a row } s \ge t\} $$
# $$ t_{\text{settles}} = \min\{t : |v_s - v_T| \le (1 - q)\,(\max v - \min v)\ \text{for all } s \ge t\} $$
#
# | what | function |
# |---|---|
# | $t_{\text{leaves}}$ | `timing.departures` |
# | $t_{\text{settles}}$ at the share $q$, of $R^2_{\mathrm{lin}}$ or of the loss | `timing.settling` |
# | doublings of the step from the loss's $t_{\text{settles}}$ to the block's | `timing.lag` |
# | one vote per run, since its blocks are not independent | `timing.vote` |
# | mean Spearman correlation of several runs' orders, and its p-value | `timing.agreement` |
# | Pythia's public weights, one revision in memory at a time | `trajectory.revisions` |
#
# "Settled" is relative to where a recording ends, and no training here ran to convergence. This is fair between two
# curves of one run, but says nothing about longer runs. So we also ask with each run cut at half its length, and with
# each run starting at its straightest step (`measure.cuts`).
#
# First, curves whose answers we know. Blocks that each hold their value until a planted step and then fall must leave
# in the planted order; noise that stays within its intervals must not depart at all.

# %% tags=["nbval-check-output"]
import numpy as np

from howlinear.ideas.dynamics.timing import departures, settling
from howlinear.ideas.dynamics.trajectory import Trajectory
from howlinear.training.loop import log_spaced

at = np.array(log_spaced(2_000))
begins = np.array([700, 11, 150, 40, 2])
time = np.log1p(at)  # τ = log(1 + t)
since = time[:, None] - np.log1p(begins)  # shape (steps, blocks)
ramps = 0.95 - 0.1 * np.maximum(0, since)
generator = np.random.default_rng(run.seed)
noise = 0.95 + generator.uniform(-0.01, 0.01, ramps.shape)
loss = np.linspace(8, 4, len(at))


def with_intervals(r2):
    low = r2 - 0.01
    high = r2 + 0.01
    return Trajectory("planted", at, loss, r2, low, high)


leaving = departures(with_intervals(ramps), patience)
found_order = np.argsort(leaving.first.step)
planted_order = np.argsort(begins)
print("leave in the planted order:", np.array_equal(found_order, planted_order))
of_noise = departures(with_intervals(noise), patience)
print("noise departs:", bool(of_noise.first_side.any()))

# %% [markdown]
# A logistic curve $v = 1 / (1 + e^{3(\tau - 5)})$ in $\tau = \log(1 + t)$ settles where its formula enters the band:
# at $\tau = 5 - \tfrac13 \log\frac{\epsilon}{1 - \epsilon}$, with $\epsilon$ the band's edge. Between the measured
# steps we interpolate.

# %% tags=["nbval-check-output"]
logistic = 1 / (1 + np.exp(3 * (time - 5)))  # it falls, from 1 to 0
band = (1 - share) * np.ptp(logistic)
edge = logistic[-1] + band
tau = 5 - np.log(edge / (1 - edge)) / 3
closed = np.expm1(tau)
settled = settling(at, logistic[:, None], share)
print(f"settles at {settled.step[0]:.0f}, by its formula at {closed:.0f};", end=" ")
print(f"measured at {settled.after[0]:.0f} and {settled.by[0]:.0f}")

# %% [markdown]
# ## Run
#
# Which films are there? The project's own, always; one stored next to a model's weights, if there is one; and public
# revisions, which only Pythia has among the paper's models. As a yardstick for losses we take the *unigram* loss, the
# loss of a model that knows only how often each token occurs; tokens are counted in text that no film was measured on.

# %%
import howlinear as hl
from howlinear.files import paths
from howlinear.ideas.dynamics.trajectory import DOUBLINGS, films, has_revisions, revisions
from howlinear.training.minis import FACTORY
from howlinear.training.twins import RECIPE, load_twins

embedded = [paths.MODELS / name for name in FACTORY]
of_this_run = [paths.ROOT / source for source in run.models.values()]
curves = films(embedded + of_this_run)
for name, source in run.models.items():
    if not has_revisions(source):
        continue
    wanted = {0, *DOUBLINGS[::-every]}
    try:
        snapshots = list(revisions(source, run.capture(name).rows, wanted))
        curves[name] = Trajectory.of(name, snapshots)
    except hl.SourceError as error:
        print(f"no revisions of {name}: {error}")
twins = {}
for twin, measured in load_twins().items():
    twins[twin.name] = Trajectory.of(twin.name, measured["steps"])
all_films = curves | twins
absent = [name for name in run.models if name not in curves]
print(f"films: {', '.join(curves)}, {len(twins)} twins", end=" · ")
print("neither recorded nor published:", ", ".join(absent) or "none")

# %%
from itertools import islice

import torch

from howlinear.files import numbers
from howlinear.ideas.dynamics.trajectory import unigram
from howlinear.models.load import tokenizer_of
from howlinear.text.corpus import load_corpus, model_documents

tokenizer = tokenizer_of(hl.load_model("mini-gpt2"))
texts = list(islice(model_documents("docs"), documents))
tokens = []
for document in tokenizer(texts)["input_ids"]:
    tokens += document
    tokens.append(tokenizer.eos_token_id)
stream = torch.tensor(tokens)
corpus = load_corpus("docs", tokenizer)
rows = corpus.rows(8_192)  # the live model is measured on these
plateau = unigram(stream, rows.ids[rows.test], len(tokenizer))
filmed = set()
for name in FACTORY:
    recording = numbers.load(paths.MODELS / name / "trajectory.json")
    filmed.add(recording["sha256"])
same = filmed == {corpus.rows().sha256}
print(f"{len(stream):,} training tokens · unigram loss {plateau:.2f} nats · on the rows of the films: {same}")

# %%
import pandas as pd

from howlinear.ideas.dynamics import measure

timed = measure.passages(all_films, share, patience)  # not rounded, since it decides orders
passages = run.record("passages", timed)
runs = run.record("runs", measure.runs(all_films, timed, share, patience))
unigram_loss = run.record("unigram", pd.DataFrame({"loss": [plateau]}))["loss"].item()

# %% tags=["nbval-check-output"]
too_few_rows = [(film.r2[0] < 0).sum() for film in all_films.values()]
shown = ["start", "peak", "end", "peak_step", "peak_loss", "fall", "spread_start", "spread_end", "up", "below"]
table = runs.set_index("run")[shown].assign(**{"too few rows": too_few_rows})
print(table.round(2).to_string(formatters={"peak_step": "{:.0f}".format}))

# %% [markdown]
# *spread*: standard deviation over blocks; *peak*: the highest mean $R^2_{\mathrm{lin}}$ on the way; *fall*: the share
# of the loss's whole fall that is over by then; *up*: how many blocks first leave upwards; *below*: how many end lower.
#
# *too few rows*: how many blocks have an $R^2_{\mathrm{lin}}$ below 0 at step 0. That says nothing about how linear
# they are, only that the rows were too few for blocks so bent. The films were recorded in training, on fewer rows;
# notebook 02 has the bracket that more rows give. So for such a model *start* is too low, *spread_start* too large, and
# the size of its first rise unknown.
#
# The films' rows were also split differently: documents one by one, so that pieces of a file could be on both sides,
# while everything else in the project is split by folder. The cell that counts tokens ends by reporting whether today's
# rows are those of the films.

# %% tags=["nbval-check-output"]
flat = runs["spread_start"] < runs["spread_end"] / 10
not_flat = ", ".join(runs["run"][~flat]) or "none"
detours = (runs["peak"] > runs[["start", "end"]].max(axis=1) + 0.01).sum()
leaves = runs["leaves_with_depth"]
earlier = (runs["lag"] < 0).sum()
of_runs = f"of {len(runs)} runs"
print("Expected → found:")
print(f"- all start flat → {flat.sum()} {of_runs} do; not: {not_flat}")
print(f"- blocks bend steadily → {detours} {of_runs} get straighter first than at their start and their end")
print(f"- the block next to the text leaves first, ρ > 0 → ρ with depth {leaves.min():+.2f} to {leaves.max():+.2f}")
print(f"- R² settles before the loss → in {earlier} {of_runs} (median block)")

# %% [markdown]
# *ρ with depth* is the rank correlation of a block's number with the step at which it leaves: if it is positive, the
# first blocks leave first; if negative, the last ones do.
#
# **Now watch it happen.** The same loop trains a small GPT-2 from scratch and prints a line at each measured step: the
# step, the $R^2$ of the blocks from first to last, and the loss. It also records the outputs' *effective rank*, the
# number of directions that carry their variance, and their *token share*: the part of the variance that the token alone
# decides, whatever precedes it. With it come the line's $R^2$ between tokens and within them, of which
# $R^2_{\mathrm{lin}}$ is the weighted mean (notebook 16 derives them). The weights are drawn and kept in float64, so
# that every processor trains the same model: in float32 rounding differs, and training amplifies it step after step.

# %%
from dataclasses import replace

from howlinear.files.tables import with_ends
from howlinear.training.loop import train
from howlinear.training.minis import new_model

measured_steps = iter(log_spaced(steps))  # at which `train` calls `watch`
by_token = []  # the token split of every block, one table per step


def watch(model):
    step = next(measured_steps)
    profile = hl.measure(model, rows, tokens=True)
    by_token.append(profile.to_frame().assign(step=step))
    r2 = " ".join(f"{block.r2:.3f}" for block in profile.values())
    loss = np.log(profile.perplexity)
    print(f"step {step:4}  R² {r2}  loss {loss:.2f}", flush=True)
    ranks = profile.effective_ranks.values()
    return {"rank": list(ranks)}


nano = new_model("mini-gpt2", run.seed, blocks, width, dtype=torch.float64)
warm_up = min(60, steps // 3)
recipe = replace(RECIPE, steps=steps, warm_up=warm_up, seed=run.seed, dtype="float64")
snapshots = train(nano, {"docs": stream}, rows, recipe, beside=watch)
live = Trajectory.of("live", snapshots)
mean_rank = np.array([snapshot["rank"] for snapshot in snapshots]).mean(1)
live_blocks = run.record("live_blocks", live.to_frame().drop(columns="run"))
course = run.record("live", pd.DataFrame({"step": live.steps, "loss": live.loss, "rank": mean_rank / width}))
parts = [*with_ends("token_share"), *with_ends("r2_between"), *with_ends("r2_within")]
live_tokens = run.record("live_tokens", pd.concat(by_token)[["step", "block", *parts]])

# %% [markdown]
# ## Figure: the live model
#
# **How to read it.** (a) Each curve is a block, dark next to the text, light next to the loss, with its 95 % interval.
# (b) Held-out loss (black, left axis), the unigram loss dotted, and the mean effective rank of the outputs (orange,
# right axis). Near rank 1 a block writes little beyond one direction, and along one direction a line fits easily.

# %%
from howlinear.plots import dynamics as plots

figure = plots.live(live_blocks, course.assign(rank=course["rank"] * width), unigram_loss)
_ = run.figure(figure, "live")

# %% [markdown]
# ## Figure: the live model, by the token
#
# **How to read it.** (a) The share of each block's output variance that the token alone decides, with its 95 %
# interval; shades as above. (b) What the line leaves of the differences between tokens (filled) and within tokens
# (open): $1 - R^2$, mean over blocks, on a logarithmic axis; lower is straighter.

# %%
_ = run.figure(plots.live_tokens(live_tokens), "tokens")

# %% [markdown]
# ## Figure: the recorded films
#
# **How to read it.** Top: as (a) above; the grey line marks the step at which the mean $R^2_{\mathrm{lin}}$ is highest.
# Bottom: standard deviation of $R^2_{\mathrm{lin}}$ over blocks, with a band for how far errors could move it
# (`timing.spread`); dotted, right axis: the held-out loss.

# %%
frames = pd.concat([curve.to_frame() for curve in curves.values()]).round(4)
figure = plots.films(frames, measure.spreads(curves).round(4), runs)
_ = run.figure(figure, "profiles")

# %% [markdown]
# ## Figure: who goes first, and who last?
#
# **How to read it.** (a) When each block first leaves its initial value; the lower, the earlier. (b) When it settles;
# the horizontal line of the same colour is when that run's loss settles (two may coincide). Bars span the two measured
# steps between which it happened. (c) The distance between a block's mark and that line, in doublings of the step: a
# dot for each block, a diamond for the run's median. Right of 0 the loss settles first.

# %%
figure = plots.settling(passages, runs, list(curves))
_ = run.figure(figure, "settling")

# %% [markdown]
# Do all runs have the same order? Below: how the orders of every two runs correlate, and how the blocks' times
# correlate with depth. The p-value tests only whether orders are random; neighbouring blocks are alike, so it is on the
# small side. Then the mean lag over runs, at every share and every cut: if it is positive, $R^2_{\mathrm{lin}}$ settles
# later than the loss (p: a sign test of runs). Its interval takes runs as independent and is a little too narrow, since
# twins that share their text are not.

# %% tags=["nbval-check-output"]
orders = run.record("orders", measure.orders(timed, {"recorded": list(FACTORY), "twins": list(twins)}))
for order in orders.itertuples():
    print(f"{order.event}: {order.group}, mean ρ of two runs {order.rho:+.2f}, p {order.p:.1g}")
print("ρ with depth:")
print(runs.set_index("run")[["leaves_with_depth", "settles_with_depth"]].round(2).to_string())

# %% tags=["nbval-check-output"]
votes = run.record("votes", measure.votes(all_films, shares, patience))
for vote in votes.itertuples():
    lag = f"lag {vote.lag:+.2f} ({vote.lag_low:+.2f} to {vote.lag_high:+.2f})"
    counts = f"{vote.above} runs later, {vote.below} earlier, p {vote.p:.2g}"
    print(f"{vote.cut}, {vote.share}: {lag}, {counts}")

# %% [markdown]
# ## Figure: a block looks linear because a sink is born
#
# Notebook 12 asks which tokens make a block look linear: a few *massive* rows, with outputs beyond ten median norms,
# may be enough. In `mini-sink`, a small LLaMA trained at a high learning rate on sequences that all begin with the same
# token, we can watch such rows appear.
#
# **How to read it.** (a) $R^2_{\mathrm{lin}}$ of the block that rests most on its massive rows: filled on all rows,
# open on the ordinary ones; the other blocks, on ordinary rows, are grey. Where filled points lie above open ones, the
# block looks more linear than its ordinary rows are. (b) Its largest output, in median norms; above the dotted line a
# row is massive. Right axis: the mean attention that the heads of a layer give to position 0, in the layer where it is
# highest.

# %%
from howlinear.instrument.massive import MULTIPLE

filmed_sink = numbers.load(paths.MODELS / "mini-sink" / "trajectory.json")
sink = run.record("sink", measure.sink(filmed_sink["steps"]))
births = run.record("births", measure.births(sink))
figure = plots.sink(sink, births["block"][0], MULTIPLE)
_ = run.figure(figure, "sink")

# %%
births

# %%
live_model = {"steps": steps, "blocks": blocks, "width": width}
run.save(settings={"patience": patience, "share": share, "live": live_model})

# %% [markdown]
# ## What we learned

# %%
run.conclusion()

# %% [markdown]
# - The paper shows no training run. Our own guess was that blocks bend steadily and that $R^2$ settles before the loss.
# - A profile near 1 need not mean that blocks compute something linear; it may mean that they write hardly more than
#   one direction, as in a model that has learned only how often words occur. The paper's "two regimes" may be stages of
#   one training.
# - What one block adds is part of the next one's input, so later blocks see the sum of all changes. Exercise 3 asks
#   whether that alone moves $R^2_{\mathrm{lin}}$, with no change to a block's own weights.
# - *From the peak* is the strictest way of counting: it leaves out the loss's early, easy fall. And votes are about
#   trainings like these, not about all.

# %% [markdown]
# ## Test yourself
#
# Answer each question for yourself, with a guess at the number, before you unfold it.

# %%
run.questions()

# %% [markdown]
# ## Exercises
#
# Solutions are in `solutions/09_dynamics.py`; try first. Each cell checks your answer when you fill it in.
#
# **1 (warm-up).** From which measured step on does the profile keep a Pearson $r$ above 0.9 with the last one?
#
# <details><summary>Hint</summary>
#
# Step 1: `np.corrcoef(r2, curve.r2[-1])[0, 1]` for every `r2` of `curve.r2` says how close each profile is to the last.
#
# Step 2: look for the *last* profile that is not similar, and take the step after it. The first one that is similar
# need not stay so.
#
# </details>

# %%
recognised = None  # a list: a step for each run in `curves`, in order

if recognised is not None:
    assert len(recognised) == len(curves), f"one step for each of {', '.join(curves)}"
    for step, curve in zip(recognised, curves.values(), strict=True):
        last = curve.r2[-1]
        correlation = np.array([np.corrcoef(r2, last)[0, 1] for r2 in curve.r2])
        alike_last = correlation > 0.9
        assert step in curve.steps, "a step that was measured"
        assert alike_last[curve.steps >= step].all(), "it must stay so to the end"
        before = alike_last[curve.steps < step]
        assert step == 0 or not before[-1], "there is an earlier one"
    print("right:", dict(zip(curves, recognised, strict=True)))

# %% [markdown]
# **2 (medium).** Which settles first, counted in nats rather than doublings? For each run in `curves`: when its median
# block settles, what share of the loss's whole fall is still to come? (As above, `share` defines settled.)
#
# <details><summary>Hint</summary>
#
# Step 1: `settling(curve.steps, curve.r2, share).step` is when each block settles. The median of these lies between
# two measured steps.
#
# Step 2: `np.interp` reads the loss between measured steps. Give it `np.log1p` of the steps, since here everything is
# linear in the logarithm of 1 + step.
#
# Step 3: the whole fall goes from the first loss to the last. How much of it comes after the loss of step 2?
#
# </details>

# %%
still_to_come = None  # a list: a share for each run in `curves`, in order

if still_to_come is not None:
    assert len(still_to_come) == len(curves), f"one share for each of {', '.join(curves)}"
    loss_first = 0
    for given, curve in zip(still_to_come, curves.values(), strict=True):
        settles = np.median(settling(curve.steps, curve.r2, share).step)
        at_that_step = np.interp(np.log1p(settles), np.log1p(curve.steps), curve.loss)
        expected = (at_that_step - curve.loss[-1]) / (curve.loss[0] - curve.loss[-1])
        assert abs(given - expected) < 1e-4, "the loss where the median block settles, in log(1 + step), less the last"
        loss_first += given < 1 - share
    print(f"right: the loss is finished first in {loss_first} of {len(curves)} runs,", end=" ")
    print(f"as it counts as settled once less than {1 - share:.0%} of its fall is to come:", end=" ")
    print(", ".join(f"{given:.1%} in {name}" for name, given in zip(curves, still_to_come, strict=True)))

# %% [markdown]
# **3 (harder).** Freeze every FFN of a fresh live model and train the rest up to the live model's straightest step. Do
# blocks whose weights never change get straighter too? The cell below measures your model and prints the answer.
#
# <details><summary>Hint</summary>
#
# Step 1: initialise the live model once more, from the same seed, and call `site.output.requires_grad_(False)` for each
# of `hl.sites(model)`.
#
# Step 2: `train` it as the live model was, but without `beside`, and with `replace(recipe, steps=…)`. Within the
# warm-up the learning rate does not depend on how many steps follow, so a short run repeats a long one's first steps.
#
# </details>

# %%
frozen = None  # the trained model

if frozen is not None:
    fresh = new_model("mini-gpt2", run.seed, blocks, width, dtype=frozen.dtype).state_dict()
    moved = set()
    for name, weight in frozen.state_dict().items():
        if not torch.equal(weight, fresh[name]):
            moved.add(name)
    of_ffns = {name for name in fresh if ".mlp." in name}
    assert not moved & of_ffns, "an FFN has other weights than the live model at its start"
    assert moved == fresh.keys() - of_ffns, "all but the FFNs is to learn"

    live_means = live.r2.mean(1)
    peak = live_means.argmax()
    found = hl.measure(frozen, rows)
    found_loss = np.log(found.perplexity)
    fallen = live.loss[0] - live.loss[peak]
    assert abs(found_loss - live.loss[peak]) < fallen / 4, f"train for {live.steps[peak]} steps"
    found_mean = np.mean([block.r2 for block in found.values()])
    print(f"right: mean R² at the start {live_means[0]:.3f}, frozen {found_mean:.3f}, free {live_means[peak]:.3f}")
