"""How often do intervals hold the truth? `make bench-coverage`, or `python benchmarks/coverage.py [OUT.json]`.

Every kind of interval is computed by the project's own functions on planted data, repeatedly, with new documents each
time. There are two truths. *These rows*: the estimate's mean at this number of rows. *Limit*: its value with ever more
rows. A 95 % interval should contain the first in 92 to 98 of 100 cases; it promises nothing about the second unless it
says so. Four cases: independent rows (`iid`), rows correlated within a document (`correlated`), and in addition outputs
with heavy tails (`heavy`) or one massive row in each document (`massive`).

Takes half an hour on an idle core; use `--replicates 60` for a quick look. `--only` keeps the record of other groups.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from howlinear.core.ceilings import ceiling
from howlinear.core.correlation import correlation
from howlinear.core.fold_maps import fit_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.files import numbers
from howlinear.ideas.bilinear.probe import probe
from howlinear.ideas.claims.contrasts import extreme
from howlinear.ideas.compression.ranking import agreement, recovered
from howlinear.ideas.corpora import agreement as profiles
from howlinear.ideas.corpora.transfer import transfer, transfers
from howlinear.ideas.degrees.nested import nested
from howlinear.ideas.degrees.products import learning_curve, polynomial
from howlinear.ideas.dynamics.timing import vote
from howlinear.ideas.optimisers.problem import Problem
from howlinear.ideas.optimisers.training import shortfall, train
from howlinear.ideas.rank.scores import Score, estimate, score_moments
from howlinear.ideas.rank.spread import output_rank
from howlinear.instrument.capture import BlockCapture, Sample
from howlinear.instrument.perplexity import change
from howlinear.instrument.stopping import judge, look_confidence

OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "coverage.json"
CASES = ("iid", "correlated", "heavy", "massive")
FOLDS = 8
WIDTH = 6
ROWS = 16  # per document
DOCUMENTS = {"train": 15, "test": 5}  # per fold, as many as the sequences in the embedded models' captures
TOGETHER = 0.4  # correlation of two rows, or two sequences, of one document
BLOCKS = 12

Found = dict[str, Estimate]


# --- What is planted


def document_noise(case: str, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal noise of shape (documents, rows, …): correlated within a document in all cases but iid."""
    own = generator.standard_normal(shape)
    if case == "iid":
        return own
    shared = generator.standard_normal((shape[0], 1, *shape[2:]))
    return TOGETHER**0.5 * shared + (1 - TOGETHER) ** 0.5 * own


def block_rows(case: str, generator: np.random.Generator, documents: int, bend: float = 0.5, turn: float = 0.0):
    """Inputs and outputs of a block that is a sum of a line, squares and noise: shapes (documents · rows, width).

    `bend` is the weight of the squares. `turn` changes the linear part, as another text would.
    """
    fixed = np.random.default_rng(99)  # the same block every time
    straight = fixed.standard_normal((WIDTH, WIDTH)) + turn * fixed.standard_normal((WIDTH, WIDTH))
    square = fixed.standard_normal((WIDTH, WIDTH))
    x = document_noise(case, generator, (documents, ROWS, WIDTH))
    noise = document_noise(case, generator, (documents, ROWS, WIDTH))
    if case == "heavy":
        noise = noise * np.exp(0.8 * generator.standard_normal((documents, ROWS, 1)))
    if case == "massive":
        # the first row of each document lies far out along one direction, about equally far every time
        x[:, 0, 0] = 20 + 2 * generator.standard_normal(documents)
    bent = np.square(np.clip(x, -4, 4)) - 1
    y = x @ straight + bend * bent @ square + noise
    return torch.from_numpy(x).flatten(0, 1), torch.from_numpy(y).flatten(0, 1)


def side(case: str, generator: np.random.Generator, name: str, more: int = 1, **block):
    """The rows of every document fold on one side of the split."""
    return [block_rows(case, generator, more * DOCUMENTS[name], **block) for _ in range(FOLDS)]


def moments_of(folds) -> list[Moments]:
    return [Moments(WIDTH, WIDTH).update(x, y) for x, y in folds]


def captured(case: str, generator: np.random.Generator, more: int = 1, **block) -> BlockCapture:
    """A block's capture as the instrument leaves it, with every row in the sample."""
    train, test = (side(case, generator, name, more, **block) for name in ("train", "test"))
    outputs = Moments(WIDTH)
    xs, ys, test_marks, folds = [], [], [], []
    for held_out, rows in ((False, train), (True, test)):
        for fold, (x, y) in enumerate(rows):
            xs.append(x.float())
            ys.append(y.float())
            test_marks.append(torch.full((len(x),), held_out))
            folds.append(torch.full((len(x),), fold))
            if held_out:
                outputs.update(y)
    marks = torch.cat(test_marks)
    nothing = torch.zeros(len(marks), dtype=torch.long)
    sample = Sample(torch.cat(xs), torch.cat(ys), nothing, nothing, marks, torch.cat(folds))
    return BlockCapture(moments_of(train), moments_of(test), outputs, sample)


# --- One measurement of every kind


def of_a_block(case: str, generator: np.random.Generator, more: int = 1) -> Found:
    """Estimates from the moments of one block."""
    kept = captured(case, generator, more)
    scored = score_moments(fit_folds(kept.train), kept.test)
    return {
        "R²_lin": ceiling(kept.train, kept.test).interval,
        "median R² of the features": estimate(Score.median, scored),
        "effective rank": output_rank(kept.outputs, kept.sample.select(kept.sample.test)),
    }


def of_two_texts(case: str, generator: np.random.Generator, more: int = 1) -> Found:
    """Estimates from one block on two texts."""
    found = transfer({"here": captured(case, generator, more), "there": captured(case, generator, more, turn=0.3)})
    pair = ("there", "here")
    return {
        "transfer: R²": found.r2[pair],
        "transfer: drop": found.drop[pair],
        "transfer: likeness": found.likeness[pair],
    }


def losses_of(case: str, generator: np.random.Generator) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Losses before, after a swap and after an ablation, for 8 folds of 5 sequences; and the fold of each sequence.

    A document fills up to four sequences, and the cost of a swap is correlated within it.
    """
    count = DOCUMENTS["test"]
    base, rises = [], []
    for _ in range(FOLDS):
        document = np.arange(count) // 4  # four sequences of one, then one of another, …
        noise = generator.standard_normal((3, count))
        if case != "iid":
            shared = generator.standard_normal((3, document.max() + 1))[:, document]
            noise = TOGETHER**0.5 * shared + (1 - TOGETHER) ** 0.5 * noise
        if case == "heavy":
            noise = (np.exp(0.8 * noise) - np.exp(0.32)) / 1.3  # lognormal, about its mean
        base.append(3 + 0.3 * noise[0])
        rises.append(np.stack([0.05 + 0.04 * noise[1], 0.20 + 0.10 * noise[2]]))
    before = torch.from_numpy(np.concatenate(base))
    swapped, ablated = torch.from_numpy(np.concatenate(rises, axis=1))
    return [before, before + swapped, before + ablated], torch.arange(FOLDS).repeat_interleave(count)


def of_losses(case: str, generator: np.random.Generator) -> Found:
    """The cost of a swap, and the same with an interval that takes sequences as independent."""
    (before, swapped, ablated), fold = losses_of(case, generator)
    found = {
        "ΔPPL": change(before, swapped, fold),
        "ΔPPL, leaving out single sequences": change(before, swapped),
    }
    share = recovered(before, swapped, ablated, fold)
    return found if share is None else found | {"loss recovered": share}


def of_blocks(case: str, generator: np.random.Generator, more: int = 1) -> Found:
    """Correlations over the blocks of models: true r 0.5; neighbouring blocks are correlated in all cases but iid."""

    def curves(blocks: int) -> np.ndarray:
        noise = generator.standard_normal((2, blocks))
        if case != "iid":
            for block in range(1, blocks):  # an autoregression of order one
                noise[:, block] = 0.6 * noise[:, block - 1] + 0.8 * noise[:, block]
        if case == "heavy":
            noise = np.sinh(noise)
        if case == "massive":
            noise[:, 0] += 4  # the first block stands out in both, as it does in our profiles
        return np.stack([noise[0], 0.5 * noise[0] + 0.75**0.5 * noise[1]])

    models = [curves(more * BLOCKS) for _ in range(3)]
    ranked = agreement([model[0] for model in models], [model[1] for model in models], draws=300)
    return {
        "r over 12 blocks": correlation(*models[0]).r,
        "ρ over 12 blocks": correlation(*models[0], order=True).r,
        "ρ within 3 models, bootstrap": ranked,
    }


def of_extremes(case: str, generator: np.random.Generator) -> Found:
    """The highest of twelve blocks that are all alike, read as by a claim about a largest value."""
    blocks = []
    for _ in range(BLOCKS):
        train, test = (moments_of(side(case, generator, name)) for name in ("train", "test"))
        blocks.append(ceiling(train, test).interval)
    rows = pd.DataFrame([block.columns("r2") for block in blocks]).rename_axis("block").reset_index()
    return {
        "highest of 12 blocks, its own interval": max(blocks, key=lambda it: it.value),
        "highest of 12 blocks, all 12 at once": extreme(rows, "r2", np.max).estimate,
    }


def of_stopping(case: str, generator: np.random.Generator) -> Found:
    """R²_lin at the first of three looks with a narrow enough interval, where each look doubles the rows."""
    looks = 3
    sides = {name: [Moments(WIDTH, WIDTH) for _ in range(FOLDS)] for name in DOCUMENTS}
    for look in range(1, looks + 1):
        for name, folds in sides.items():
            for fold in folds:
                documents = DOCUMENTS[name] * 2 ** max(look - 2, 0)
                fold.update(*block_rows(case, generator, documents))
        found = ceiling(*sides.values(), confidence=look_confidence(looks))
        if judge({0: found}, 0.04, look, looks).reached:
            break
    return {"R²_lin, stopped when narrow": found.interval}


def of_the_probe(case: str, generator: np.random.Generator) -> Found:
    """The gain of a bilinear branch of rank 2."""
    return {"probe: gain": probe(captured(case, generator), rank=2, seeds=3, steps=30).gain}


def of_profiles(case: str, generator: np.random.Generator) -> Found:
    """Two texts' profiles over four blocks, some of which are bent more on one text, some on the other."""
    bends = {"here": (0.2, 0.5, 1.0, 1.5), "there": (0.5, 0.2, 1.5, 1.0)}
    texts = {text: dict(enumerate(captured(case, generator, bend=bend) for bend in bends[text])) for text in bends}
    found = profiles.agreement(transfers(texts), "here", "there")
    return {"profiles of two texts: r": found.correlation, "profiles of two texts: difference": found.difference[0]}


def with_squares(x: torch.Tensor) -> torch.Tensor:
    """Inputs, then their squares."""
    return torch.cat([x, x.square()], dim=1)


def of_degrees(case: str, generator: np.random.Generator) -> Found:
    """R² of least squares on nested features, and of a kernel on some of the rows."""
    kept = captured(case, generator)
    on_features = nested(kept, with_squares, [WIDTH, 2 * WIDTH])
    (by_kernel,) = learning_curve(kept, polynomial(2), rows=[300], ridges=[1e-3, 1e-1])
    return {"nested features: R²": Estimate(*on_features.iloc[-1]), "kernel: R²": by_kernel.r2}


def of_training(case: str, generator: np.random.Generator) -> Found:
    """How far a map trained for a few steps falls short of the exact one."""
    problem = Problem.of(captured(case, generator))
    path = train(problem, "Adam", "raw", 0.03, steps=20)
    return {"trained map: shortfall": shortfall(problem, path.map)}


def of_runs(case: str, generator: np.random.Generator) -> Found:
    """One value per run, as in a vote of runs: fifteen runs, in pairs that share their text in all cases but iid."""
    runs = 15
    values = generator.standard_normal(runs)
    if case != "iid":
        shared = generator.standard_normal(runs // 2 + 1)[np.arange(runs) // 2]
        values = TOGETHER**0.5 * shared + (1 - TOGETHER) ** 0.5 * values
    if case == "heavy":
        values = np.sinh(values)
    *_, mean = vote(0.5 + values)
    return {"vote of 15 runs: mean": mean}


@dataclass(frozen=True)
class Kind:
    """Measurements that are simulated together.

    Attributes:
        measure: returns estimates by name, given a case, a generator and, if there is a limit, how many times the
            usual data.
        share: share of the requested replicates to run, as some measurements take longer.
        limit: whether to compare with the limit too.
    """

    measure: Callable[..., Found]
    share: float = 1.0
    limit: bool = True


KINDS = {
    "block": Kind(of_a_block),
    "texts": Kind(of_two_texts),
    "losses": Kind(of_losses, share=5, limit=False),
    "blocks": Kind(of_blocks, share=0.5, limit=False),
    "extremes": Kind(of_extremes, share=0.5, limit=False),
    "stopping": Kind(of_stopping, limit=False),
    "probe": Kind(of_the_probe, share=0.3, limit=False),
    "profiles": Kind(of_profiles, share=0.5, limit=False),
    "degrees": Kind(of_degrees, share=0.5, limit=False),
    "training": Kind(of_training, share=0.5, limit=False),
    "runs": Kind(of_runs, share=5, limit=False),
}
"""Group → what is measured together."""

LARGE = 40  # times the documents, for the limit


# --- How often the truth is held


def measurements(kind: Kind, case: str, replicates: int, seed: int = 0) -> dict[str, list[Estimate]]:
    """Name → one estimate per replicate."""
    found = defaultdict(list)
    for replicate in range(replicates):
        generator = np.random.default_rng([seed, replicate])
        for name, number in kind.measure(case, generator).items():
            found[name].append(number)
    return dict(found)


def truths(kind: Kind, case: str, estimates: dict[str, list[Estimate]]) -> Iterator[tuple[str, str, float]]:
    """Triples of a name, which truth it is, and its value."""
    if kind.measure is of_extremes:
        # all blocks are alike, so the highest true value is that of every block
        alike = measurements(Kind(of_a_block), case, 200, seed=1)["R²_lin"]
        truth = float(np.mean([number.value for number in alike]))
        for name in estimates:
            yield name, "these rows", truth
    elif kind.measure is of_blocks:
        long = measurements(Kind(partial(of_blocks, more=40)), case, 5, seed=1)
        for name in estimates:
            yield name, "limit", float(np.mean([number.value for number in long[name]]))
    else:
        for name, numbers in estimates.items():
            yield name, "these rows", float(np.mean([number.value for number in numbers]))
    if kind.limit:
        large = kind.measure(case, np.random.default_rng(3), LARGE)
        for name in estimates:
            yield name, "limit", large[name].value


def coverage(estimates: list[Estimate], truth: float) -> dict[str, float]:
    """How often intervals contain a truth, with the simulation's own standard error, and on which side they miss it."""
    low = np.array([number.low for number in estimates])
    high = np.array([number.high for number in estimates])
    held = float(((low <= truth) & (truth <= high)).mean())
    return {
        "coverage": held,
        "error": float((max(held * (1 - held), 0.01) / len(estimates)) ** 0.5),
        "all above": float((low > truth).mean()),
        "all below": float((high < truth).mean()),
        "half width": float((high - low).mean() / 2),
        "truth": truth,
        "replicates": len(estimates),
    }


def simulate(group: str, case: str, replicates: int) -> list[dict]:
    """A row per kind of interval and truth."""
    kind = KINDS[group]
    estimates = measurements(kind, case, max(2, round(kind.share * replicates)))
    rows = []
    for name, target, truth in truths(kind, case, estimates):
        rows.append({"interval": name, "case": case, "of": target} | coverage(estimates[name], truth))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--replicates", type=int, default=1_000)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    rows = []
    for group in options.only:
        start = time.perf_counter()
        for case in CASES:
            if group in ("losses", "runs") and case == "massive":
                continue  # neither a sequence's loss nor a run has a massive row
            for row in simulate(group, case, options.replicates):
                rows.append(row)
                held = (
                    f"{row['coverage']:.3f} ± {row['error']:.3f} (truth {row['truth']:.3f} ± {row['half width']:.3f})"
                )
                print(f"{row['interval']:45} {case:11} {row['of']:11} {held}", flush=True)
        print(f"{group}: {time.perf_counter() - start:.0f} s", flush=True)
    measured = {row["interval"] for row in rows}
    if len(options.only) < len(KINDS) and options.out.is_file():
        recorded = numbers.load(options.out)["rows"]
        rows = [row for row in recorded if row["interval"] not in measured] + rows
    settings = {"folds": FOLDS, "width": WIDTH, "rows": ROWS, "documents": DOCUMENTS, "together": TOGETHER}
    numbers.save(options.out, {"settings": settings, "rows": rows}, digits={"truth": 4})


if __name__ == "__main__":
    main()
