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
# **Question.** At its first step a model's blocks are alike; at its last they are not. When does each leave its initial
# $R^2_{\mathrm{lin}}$, in which order, and does $R^2_{\mathrm{lin}}$ settle before the loss does?
#
# **Answer in one line.** See *expected and found*: it is printed under **Run**, before the figures.
#
# **You need** notebook 02. **Time** ten minutes to read, two to run: a small model is trained while you watch.

# %% tags=["parameters"]
profile = "minis"  # which models: minis (embedded, offline), or paper, which adds a Pythia's public revisions
steps = 400  # of the live model; a tenth of a second each on one core
blocks, width = 6, 64  # of the live model
documents = 2000  # that the live model trains on, none of them measured
patience = 2  # measured steps in a row outside the first interval that make a departure
shares = [0.8, 0.9, 0.95]  # of its range that a curve has covered when it counts as settled; the middle one is drawn
every = 1  # of a Pythia's twenty revisions, measure each, every second, …: half a gigabyte to fetch, a minute each

# %%
from dataclasses import replace
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import howlinear as hl
from howlinear import nanos, notebooks, paths, record, style
from howlinear.corpora import load_corpus, model_documents
from howlinear.dynamics import agreement, departures, lag, settling, spread, summary, vote
from howlinear.minis import FACTORY, new_model
from howlinear.models import tokenizer_of
from howlinear.training import log_spaced, train
from howlinear.trajectories import DOUBLINGS, Trajectory, has_revisions, revisions, unigram

run = notebooks.start("09_dynamics", profile)
share = shares[len(shares) // 2]

# %% [markdown]
# ## Predict first
#
# 1. Notebook 02 saw GELU blocks start nearly straight, and end less so. Do they go straight down?
# 2. Which block leaves its initial value first: the one next to the text, or the one next to the loss?
# 3. Which is finished first, the profile or the loss?

# %% [markdown]
# ## Idea
#
# A trained profile is the last frame of a film. While the embedded models and the eight twins of notebook 08 were
# trained, every block was measured at steps 0, 1, 2, 3, 4, 6, 8, 11, …, two frames to a doubling, always on the same
# rows. Here we only look at the film, so every question is about *when*, and time is read on a logarithmic scale.
#
# Two traps. Noise is no departure: a block has left only when its interval and its first one do not touch, twice
# running. And of a curve that turns round, the net way may be nothing: so we say *settled* as engineers do of a
# swinging pointer, when it stays in a narrow band around where it ends.

# %% [markdown]
# ## Method
#
# With $I_t$ the 95 % interval of a block at step $t$, and $v_T$ the last of the values $v_t$,
#
# $$ t_{\text{leaves}} = \min\{t : I_s \cap I_0 = \varnothing,\ \text{same side, at two steps in a row } s \ge t\} $$
# $$ t_{\text{settles}} = \min\{t : |v_s - v_T| \le (1 - q)\,(\max v - \min v)\ \text{for all } s \ge t\} $$
#
# | what | function |
# |---|---|
# | $t_{\text{leaves}}$, for the first time and for good | `dynamics.departures` |
# | $t_{\text{settles}}$ at the share $q$, of $R^2_{\mathrm{lin}}$ or of the loss | `dynamics.settling` |
# | doublings of the step from the loss's $t_{\text{settles}}$ to the block's | `dynamics.lag` |
# | one vote a run, as its blocks are not independent · Spearman correlation of orders | `dynamics.vote`, `agreement` |
# | Pythia's public weights, one revision in memory at a time | `trajectories.revisions` |
#
# "Settled" is relative to where a recording ends, and no training here ran to its limit. That is fair between two
# curves of one run, but says nothing of longer ones; so we also ask with each run cut at half its length, and begun at
# its straightest step. First, curves whose answers we know: blocks that leave at planted steps, noise that stays within
# its intervals, and a logistic curve, which settles where its formula enters the band.

# %% tags=["nbval-check-output"]
at, begins = np.array(log_spaced(2_000)), [700, 11, 150, 40, 2]
ramps = 0.95 - 0.1 * np.maximum(0, np.log1p(at)[:, None] - np.log1p(begins))
noise = 0.95 + np.random.default_rng(run.seed).uniform(-0.01, 0.01, ramps.shape)
planted, quiet = (departures(Trajectory("", at, at / 1.0, c, c - 0.01, c + 0.01), patience) for c in (ramps, noise))
logistic = 1 / (1 + np.exp(3 * (np.log1p(at) - 5)))
edge = logistic[-1] + (1 - share) * np.ptp(logistic)
print("leave in the planted order:", np.array_equal(np.argsort(planted.first.step), np.argsort(begins)))
print("noise departs:", bool(quiet.first_side.any()))
closed = np.expm1(5 - np.log(edge / (1 - edge)) / 3)
print(f"settles at {settling(at, logistic[:, None], share).step[0]:.0f}, by its formula at {closed:.0f}")

# %% [markdown]
# ## Run
#
# Which films are there? The project's own, always; one beside a model's weights; and public revisions. Of the paper's
# models only Pythia has those. And what is a loss worth? A model that knows how often each token occurs, and nothing
# else, has the *unigram* loss; we count tokens in text that no film was measured on.

# %%
folders = [paths.MODELS / name for name in FACTORY] + [paths.ROOT / source for source in run.models.values()]
films = {folder.name: folder / "trajectory.json" for folder in folders if (folder / "trajectory.json").is_file()}
curves = {name: Trajectory.read(film) for name, film in films.items()}
public = {name: source for name, source in run.models.items() if has_revisions(source)}
for name, source in public.items():
    try:
        found = revisions(source, run.capture(name).rows, {0, *DOUBLINGS[::-every]})
        curves[name] = Trajectory.of(name, list(found))
    except hl.SourceError as error:
        print(f"no revisions of {name}: {error}")
twins = {twin.name: Trajectory.of(twin.name, found["steps"]) for twin, found in nanos.load_twins().items()}
runs = curves | twins
absent = ", ".join(name for name in run.models if name not in curves) or "none"
print(f"films: {', '.join(curves)}, {len(twins)} twins · neither recorded nor published: {absent}")

# %%
tokenizer = tokenizer_of(hl.load_model("mini-gpt2"))
texts = list(islice(model_documents("docs"), documents))
stream = torch.tensor([token for ids in tokenizer(texts)["input_ids"] for token in [*ids, tokenizer.eos_token_id]])
corpus = load_corpus("docs", tokenizer)
rows, glance = corpus.rows(), corpus.rows(4_096)
plateau = unigram(stream, rows.ids[rows.test], len(tokenizer))
same = all(record.load(paths.MODELS / name / "trajectory.json")["sha256"] == rows.sha256 for name in FACTORY)
print(f"{len(stream):,} training tokens · unigram loss {plateau:.2f} nats · on the rows of the films: {same}")

# %% tags=["nbval-check-output"]
table = pd.DataFrame({name: summary(one, patience) for name, one in runs.items()}).T
print(table.round(2).to_string(formatters=dict.fromkeys(["peak_step", "up", "below"], "{:.0f}".format)))

# %% [markdown]
# *spread*: standard deviation over blocks; *peak*: the highest mean $R^2_{\mathrm{lin}}$ on the way; *fall*: the share
# of its fall that the loss has behind it there; *up*: how many blocks first leave upwards; *below*: how many end below.

# %% tags=["nbval-check-output"]
away = (table["peak"] > table[["start", "end"]].max(axis=1) + 0.01).sum()
flat = table.index[table["spread_start"] < table["spread_end"] / 10].tolist()
depth = {name: np.arange(one.r2.shape[1], dtype=float) for name, one in runs.items()}
first = {name: departures(one, patience).first for name, one in runs.items()}
slope = {name: agreement(np.stack([depth[name], found.step]))[0] for name, found in first.items()}
lags = {name: lag(one, share) for name, one in runs.items()}
typical = {name: float(np.nanmedian(found.doublings)) for name, found in lags.items()}
expected = {
    "all start flat": f"{len(flat)} of {len(runs)} runs; not: {', '.join(table.index.difference(flat)) or 'none'}",
    "blocks bend steadily": f"{away} of {len(runs)} runs get straighter first, than at their start and their end",
    "the block next to the text leaves first": f"ρ with depth {min(slope.values()):+.2f} to {max(slope.values()):+.2f}",
    "R² settles before the loss": f"{sum(gap < 0 for gap in typical.values())} of {len(runs)} runs (median block)",
}
print("expected and found", *(f"{what:>40}: {found}" for what, found in expected.items()), sep="\n")

# %% [markdown]
# Positive ρ: the first blocks leave first; negative: the last. **Now watch it happen.** The same loop trains a small
# GPT-2 from nothing and prints each line as it is measured, the blocks from the text's side to the loss's. It notes
# the outputs' *effective rank* too: how many directions carry their variance.


# %%
def watch(model):
    seen = hl.measure(model, glance)
    print("R²", *(f"{found.r2:.3f}" for found in seen.values()), f" loss {np.log(seen.perplexity):.2f}", flush=True)
    return {"rank": list(seen.effective_ranks.values())}


nano = new_model("mini-gpt2", run.seed, blocks, width)
recipe = replace(nanos.RECIPE, steps=steps, warm_up=min(60, steps // 4), seed=run.seed)
snapshots = train(nano, {"docs": stream}, rows, recipe, beside=watch)
live, ranks = Trajectory.of("live", snapshots), np.array([one["rank"] for one in snapshots])

# %% [markdown]
# ## Figure: the live model
#
# **How to read it.** (a) Each curve is a block, dark next to the text, light next to the loss, with its 95 % interval.
# (b) Held-out loss (black, left axis), the unigram loss dotted, and the mean effective rank of the outputs (orange,
# right axis). Near rank 1 a block writes little but one direction, and one direction is easily straight.


# %%
def film(axis, one, letter):
    shade = plt.get_cmap("viridis")(np.linspace(0, 0.92, one.r2.shape[1]))
    for block, colour in enumerate(shade):
        axis.fill_between(one.steps, one.low[:, block], one.high[:, block], color=colour, alpha=0.2, lw=0)
        axis.plot(one.steps, one.r2[:, block], color=colour, lw=0.9)
    axis.set_xscale("symlog", linthresh=1)
    axis.set(xlim=(0, one.steps[-1]), ylabel="$R^2_{\\mathrm{lin}}$, held out")
    axis.set_title(f"({letter}) {one.name}", loc="left")


figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.3))
film(left, live, "a")
left.set_xlabel("step")
right.plot(live.steps, live.loss, "o-", color="black", label="held-out loss")
right.axhline(plateau, color=style.GREY, ls=":", label="unigram loss")
right.plot([], [], "s--", color=style.ACCENT, label="effective rank")
right.set_xscale("symlog", linthresh=1)
right.set(xlim=(0, steps), xlabel="step", ylabel="nats per token")
right.set_title("(b) what it learns meanwhile", loc="left")
right.legend(loc="lower left")
other = right.twinx()
other.plot(live.steps, ranks.mean(1), "s--", color=style.ACCENT)
other.set(ylabel="effective rank of the outputs", ylim=(0, None))
other.grid(visible=False)
run.figure(figure, "live")
plt.show()

# %% [markdown]
# ## Figure: the recorded films
#
# **How to read it.** Top: as (a) above; the grey line is the straightest step. Bottom: standard deviation over blocks,
# in a band as far as errors could move it (`dynamics.spread`); dotted, right axis: the held-out loss.

# %%
figure, axes = plt.subplots(2, len(curves), figsize=(style.PAGE, 3.6), sharex="col", squeeze=False)
for (top, bottom), (name, one), letter in zip(axes.T, curves.items(), "abcdefgh", strict=False):
    film(top, one, letter)
    sd, reach = spread(one)
    bottom.fill_between(one.steps, sd - reach, sd + reach, color=style.look(name)["color"], alpha=0.2, lw=0)
    bottom.plot(one.steps, sd, **style.look(name))
    bottom.set(xlabel="step", ylim=(0, 1.3 * sd.max()))
    top.axvline(table["peak_step"][name], color=style.GREY, lw=0.6)
    loss = bottom.twinx()
    loss.plot(one.steps, one.loss, color="black", ls=":", lw=1)
    loss.grid(visible=False)
loss.set_ylabel("loss, nats")
axes[1, 0].set_ylabel("spread over blocks")
bar = figure.colorbar(plt.cm.ScalarMappable(plt.Normalize(0, 1 / 0.92), "viridis"), ax=axes[0], ticks=[0, 1], aspect=14)
bar.ax.set(ylim=(0, 1), yticklabels=["first\nblock", "last"])
run.figure(figure, "profiles")
plt.show()

# %% [markdown]
# ## Figure: who goes first, and who last?
#
# **How to read it.** (a) When each block first leaves its initial value; the lower, the earlier. (b) When it settles;
# the horizontal line of the same colour is when that run's loss does (two may coincide). Bars span the two measured
# steps between which it happened. (c) The distance between a block's mark and that line, in doublings of the step: a
# dot for each block, a diamond for the run's median. Right of 0 the loss settles first.

# %%
settles = {name: settling(one.steps, one.r2, share) for name, one in runs.items()}
figure, axes = plt.subplots(1, 3, figsize=(style.PAGE, 2.6))
for name, one in curves.items():
    loss, look = settling(one.steps, one.loss[:, None], share).step[0], style.look(name)
    axes[1].axhline(loss, color=look["color"], ls=look["linestyle"], lw=1)
    for axis, found in zip(axes, (first[name], settles[name]), strict=False):
        bars = [found.step - found.after, found.by - found.step]
        axis.errorbar(depth[name], found.step, bars, elinewidth=0.6, capsize=1.5, **look)
        axis.set(xlabel="block", ylabel="step", yscale="log", xticks=depth[name][::2])
for name, found in reversed(lags.items()):
    colour = style.look(name)["color"]
    axes[2].plot(found.doublings, [name] * len(found.doublings), "o", color=colour, ms=2.5, alpha=0.6)
    axes[2].plot(typical[name], name, "D", color=colour, mec="black", ms=5)
axes[2].axvline(0, color=style.GREY, lw=0.8)
axes[2].set_xlabel("doublings after the loss")
for axis, title in zip(axes, ("(a) leaves", "(b) settles", "(c) lag"), strict=True):
    axis.set_title(title, loc="left")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
run.figure(figure, "settling")
plt.show()

# %% [markdown]
# Is it one order? Below: correlation of the blocks' times with depth, and of every two runs' orders with each other.
# The p-value asks only whether orders are random; neighbouring blocks are alike, so it is on the small side. Then the
# votes, at every share and every cut: positive, $R^2_{\mathrm{lin}}$ settles later than the loss (p: a sign test of
# runs).

# %% tags=["nbval-check-output"]
orders, alike, with_depth = {"leaves": first, "settles": settles}, {}, pd.DataFrame(index=list(runs))
for what, found in orders.items():
    with_depth[what] = [agreement(np.stack([depth[name], found[name].step]))[0] for name in runs]
    for group, names in {"recorded": FACTORY, "twins": twins}.items():
        alike[f"{what}, {group}"] = rho, p = agreement(np.stack([found[name].step for name in names]))
        print(f"{what}: {group}, mean ρ of two runs {rho:+.2f}, p {p:.1g}")
print("ρ with depth:", with_depth.round(2).to_string(), sep="\n")
cuts = {"whole run": runs, "first half": {n: one.part(last=one.steps[-1] // 2) for n, one in runs.items()}}
cuts["from the peak"] = {n: one.part(first=int(table["peak_step"][n])) for n, one in runs.items()}
votes = {}
for what, group in cuts.items():
    for q in shares:
        votes[what, q] = found = vote([float(np.nanmedian(lag(one, q).doublings)) for one in group.values()])
        span = f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
        print(f"{what}, {q}: lag {span}, {found.above} runs later, {found.below} earlier, p {found.p:.2g}")

# %%
numbers = {"summary": table.T.to_dict(), "alike": alike, "unigram": plateau, "typical": typical}
numbers["votes"] = {what: {str(q): vars(votes[what, q]) for q in shares} for what in cuts}
for what, found in orders.items():
    numbers[what] = {n: [s if np.isfinite(s) else None for s in one.step.tolist()] for n, one in found.items()}
numbers["live"] = {"r2": live.r2, "loss": live.loss, "rank": ranks.mean(1) / width}
run.save(numbers, {"live": 0.1})

# %% [markdown]
# ## What we learned

# %%
peaks = "; ".join(f"{n} {table.peak[n]:.3f} at loss {table.peak_loss[n]:.1f}" for n in curves)
later = "; ".join(f"{what} {votes[what, share].mean:+.2f}" for what in cuts)
claims = [
    (
        "blocks bend steadily",
        "not asked; our guess: yes",
        f"{away} of {len(runs)} detour: {peaks} (unigram: {plateau:.1f})",
    ),
    ("R² settles before the loss", "not asked; our guess: yes", f"mean lag in doublings, {later}"),
    ("one order of leaving", "not asked", "; ".join(f"{what} ρ {rho:+.2f}" for what, (rho, _) in alike.items())),
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["claim", "the paper", "this run"]).set_index("claim")

# %% [markdown]
# - Your first prediction: compare the loss at the peak with the unigram loss, and look at the live model's effective
#   rank there. A profile near 1 need not mean that blocks compute something linear; it may mean that they write hardly
#   more than one direction. The paper's "two regimes" may be stages of one training.
# - Your second: the sign of ρ. What one block adds is the next one's input, so later blocks see the sum of all changes.
#   Exercise 2 asks whether that alone moves $R^2_{\mathrm{lin}}$, with no change to a block's own weights.
# - Your third: the votes. *From the peak* is the strictest: it leaves out the loss's early, easy fall. Where an
#   interval holds 0, the answer depends on what is counted. And votes speak of trainings like these runs', not of all.
#
# ## Exercises (solutions: `solutions/09_dynamics.py`)
#
# **1 (warm-up).** From which measured step on does the profile stay like the last one, at a Pearson $r$ above 0.9?

# %%
recognised = None  # a step for each run in `curves`, in order

if recognised is not None:
    for step, one in zip(recognised, curves.values(), strict=True):
        like = np.array([np.corrcoef(now, one.r2[-1])[0, 1] for now in one.r2]) > 0.9
        assert like[one.steps >= step].all(), "it must stay so to the end"
        assert step == 0 or not like[one.steps < step][-1], "there is an earlier one"
    print("right:", dict(zip(curves, recognised, strict=True)))

# %% [markdown]
# **2 (harder).** Freeze every FFN of a fresh live model (`site.output.requires_grad_(False)` for `hl.sites(model)`) and
# train the rest up to the straightest step. Do blocks whose weights never change get straighter too?

# %%
frozen_r2 = None  # R² per block of the frozen FFNs at that step

if frozen_r2 is not None:
    peak = live.r2.mean(1).argmax()
    assert not np.allclose(frozen_r2, live.r2[peak]), "are the FFNs really frozen?"
    print("mean R²: start, frozen, free", np.round([live.r2[0].mean(), np.mean(frozen_r2), live.r2[peak].mean()], 3))
