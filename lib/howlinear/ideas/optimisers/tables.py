"""Notebook 07's tables: the forecast of every block, the race on one, who falls short where; a row a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import NULL, AffineMap, ceiling, r2
from howlinear.core.moments import Moments
from howlinear.ideas.optimisers.baseline import BASELINES, baseline
from howlinear.ideas.optimisers.gradient_descent import Descent, descent
from howlinear.ideas.optimisers.problem import SCALINGS, Coordinates, Problem
from howlinear.ideas.optimisers.training import OPTIMISERS, Path, shortfall, tuned
from howlinear.instrument.capture import BlockCapture

NEAR = 0.01  # of the output's variance: how near to the closed form `forecasts` counts the steps to

Blocks = Mapping[int, BlockCapture]  # block → what was captured of it


def valley(
    inputs: Float[Tensor, "n 2"],
    outputs: Float[Tensor, "n 1"],
    steps: Sequence[int],
    scalings: Sequence[str] = ("raw", "standardised"),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The loss of a problem of two weights as a map, and where full-batch gradient descent stands on it.

    Args:
        inputs: two inputs, the loud one first.
        outputs: what they are to explain.
        steps: of the descent to show, at the rate 1/λ₁.
        scalings: of the inputs, of `problem.SCALINGS`.

    Returns:
        The map, a row a point: `scaling`, `first` and `second` (the weights), `unlearned` (the share of the output's
        variance that the best line explains and this one does not); and the walk, a row a step: `scaling`, `step`,
        `first`, `second`.
    """
    surfaces = []
    walks = []
    raw = Moments(2, 1).update(inputs, outputs)
    for scaling in scalings:
        moments = Moments(2, 1).update(Coordinates.of(raw, scaling).rows(inputs), outputs)
        path = descent(moments)
        walk = pd.DataFrame([path.after(step).weight[:, 0].tolist() for step in steps], columns=["first", "second"])
        walks.append(walk.assign(scaling=scaling, step=steps))

        # with the best bias, (w − w*)ᵀ Sxx (w − w*) / Σ (y − ȳ)²
        target = path.target[:-1, 0].tolist()
        across, up = np.meshgrid(_around(target[1]), _around(target[0]))
        error = np.stack([up.ravel(), across.ravel()], 1) - target
        unlearned = ((error @ moments.sxx.numpy()) * error).sum(1) / float(moments.syy.sum())
        surface = pd.DataFrame({"first": up.ravel(), "second": across.ravel(), "unlearned": unlearned})
        surfaces.append(surface.assign(scaling=scaling))
    return pd.concat(surfaces, ignore_index=True), pd.concat(walks, ignore_index=True)


def _around(target: float, points: int = 81) -> np.ndarray:
    """Values of a weight from below 0, where the descent starts, to beyond its target; 2 more at either end."""
    return np.linspace(min(0.0, target) - 2, max(0.0, target) + 2, points)


def forecasts(models: Mapping[str, Blocks], steps: int) -> pd.DataFrame:
    """The closed form of every block on its sampled rows, and where full-batch gradient descent would be by then.

    Args:
        models: model → its captured blocks, with samples.
        steps: of the descent, at the rate 1/λ₁.

    Returns:
        A row a block: `model`, `block`, `condition` of the inputs; `exact`, the closed form's held-out R², with its
        interval `low`, `high`; `GD`, the descent's, and `GD gap`, how much less that is; `asleep`, the directions of
        which less than half is learned, and `asleep share`, the share of the output's variance that the exact map
        explains through them; `steps to 0.01`, until no more than that share is left to learn.
    """
    table = []
    for model, blocks in models.items():
        for block, kept in blocks.items():
            problem = Problem.of(kept)
            exact = ceiling(problem.folds, problem.test)
            path = descent(problem.moments)
            reached = r2(path.after(steps), problem.held_out)
            asleep = path.left(steps) > 0.5
            table.append(
                {
                    "model": model,
                    "block": block,
                    "condition": exact.condition,
                    "exact": exact.r2,
                    "low": exact.r2_low,
                    "high": exact.r2_high,
                    "GD": reached,
                    "GD gap": exact.r2 - reached,
                    "asleep": float(asleep.sum()),
                    "asleep share": float(path.shares[asleep].sum()),
                    f"steps to {NEAR}": float(path.steps_to(NEAR)),
                }
            )
    return pd.DataFrame(table)


def baselines(models: Mapping[str, Blocks], blocks: Sequence[int], steps: int = 3_000, seed: int = 0) -> pd.DataFrame:
    """The paper's trained linear baseline, untuned, on some blocks of each model, as far as it has them.

    Returns:
        A row a baseline on a block, as of `baseline_rows`, behind `model` and `block`.
    """
    table = []
    for model, captured in models.items():
        for block in blocks:
            if block in captured:
                for row in baseline_rows(Problem.of(captured[block]), steps, seed):
                    table.append({"model": model, "block": block} | row)
    return pd.DataFrame(table)


def baseline_rows(problem: Problem, steps: int = 3_000, seed: int = 0) -> list[dict[str, float | str]]:
    """Each of `BASELINES` on one problem.

    Returns:
        Per baseline: `way`, `condition` of the inputs, `exact` (the closed form's held-out R² on the same rows), `r2`,
        `gap` = exact − r2 with its interval `gap low`, `gap high`.
    """
    exact = ceiling(problem.folds, problem.test)
    rows = []
    for way in BASELINES:
        found = shortfall(problem, baseline(problem, way, steps, seed))
        row = {"way": way, "condition": exact.condition, "exact": exact.r2, "r2": found.r2}
        rows.append(row | {"gap": found.gap.value, "gap low": found.gap.low, "gap high": found.gap.high})
    return rows


def race(problem: Problem, steps: int, batch: int, at: Sequence[int], seed: int = 0) -> dict[tuple[str, str], Path]:
    """Every optimiser in every scaling of one block's inputs, each at its best rate: (scaling, optimiser) → path."""
    paths = {}
    for scaling in SCALINGS:
        for optimiser in OPTIMISERS:
            paths[scaling, optimiser] = tuned(problem, optimiser, scaling, steps=steps, batch=batch, at=at, seed=seed)
    return paths


def scores(paths: Mapping[tuple[str, str], Path]) -> pd.DataFrame:
    """What a race scored.

    Args:
        paths: as from `race`.

    Returns:
        A row a score: `scaling`, `optimiser`, `rate`, `step`, `r2` (held out).
    """
    table = []
    for (scaling, optimiser), path in paths.items():
        for step, score in zip(path.steps, path.r2, strict=True):
            row = {"scaling": scaling, "optimiser": optimiser, "rate": path.rate, "step": step, "r2": score}
            table.append(row)
    return pd.DataFrame(table)


def finals(scores: pd.DataFrame, column: str = "r2") -> pd.DataFrame:
    """The last score of each optimiser (or another column of its last row), a row an optimiser, a column a scaling."""
    last = scores.pivot_table(index="optimiser", columns="scaling", values=column, aggfunc="last")
    return last.loc[scores.optimiser.unique(), scores.scaling.unique()]


def trained(
    models: Mapping[str, Blocks], rates: Mapping[str, Sequence[float]], steps: int, batch: int, seed: int = 0
) -> pd.DataFrame:
    """Every block's shortfall on raw inputs.

    Args:
        models: model → its captured blocks, with samples.
        rates: optimiser → the rates it tries.
        steps: of each run.
        batch: rows a step.
        seed: of the order of rows.

    Returns:
        A row an optimiser on a block: `model`, `block`, `way` (the optimiser), held-out `r2`; `gap` to the closed form
        with its interval `gap low`, `gap high`.
    """
    table = []
    for model, blocks in models.items():
        for block, kept in blocks.items():
            problem = Problem.of(kept)
            for optimiser, tried in rates.items():
                path = tuned(problem, optimiser, "raw", tried, steps=steps, batch=batch, seed=seed)
                found = shortfall(problem, path.map)
                row = {"model": model, "block": block, "way": optimiser, "r2": found.r2, "gap": found.gap.value}
                table.append(row | {"gap low": found.gap.low, "gap high": found.gap.high})
    return pd.DataFrame(table)


def profiles(forecasts: pd.DataFrame, trained: pd.DataFrame) -> pd.DataFrame:
    """The exact profile beside each that training would have reported.

    Args:
        forecasts: as from `forecasts`; gradient descent is the first way of training.
        trained: as from `trained`; the other ways.

    Returns:
        A row a way on a block: `model`, `block`, `way`, `r2`, `gap`; and of the closed form `exact`, `low`, `high`,
        `condition`.
    """
    foretold = forecasts.rename(columns={"GD": "r2", "GD gap": "gap"}).assign(way="GD")
    measured = ["model", "block", "way", "r2", "gap"]
    ways = pd.concat([foretold[measured], trained[measured]], ignore_index=True)
    exact = forecasts[["model", "block", "exact", "low", "high", "condition"]]
    return ways.merge(exact, on=["model", "block"], how="left")


def verdicts(profiles: pd.DataFrame) -> pd.DataFrame:
    """What would have been concluded of each model from each way of training.

    Args:
        profiles: as from `profiles`, blocks in order.

    Returns:
        A row a way on a model: `model`, `way`; `spearman`, the rank correlation with the exact profile; `outside`, the
        blocks outside the exact interval; `flipped`, the steps from one block to the next that change their sign;
        `worst`, the largest shortfall.
    """
    table = []
    for (model, way), group in profiles.groupby(["model", "way"], sort=False):
        outside = (group.r2 < group.low) | (group.r2 > group.high)
        flipped = np.sign(np.diff(group.exact)) != np.sign(np.diff(group.r2))
        table.append(
            {
                "model": model,
                "way": way,
                "spearman": group.r2.corr(group.exact, method="spearman"),
                "outside": float(outside.sum()),
                "flipped": float(flipped.sum()),
                "worst": (group.exact - group.r2).max(),
            }
        )
    return pd.DataFrame(table)


def turned(profiles: pd.DataFrame) -> tuple[dict[str, float], int]:
    """How often training turns round which of two models is the more linear at one depth.

    Args:
        profiles: as from `profiles`.

    Returns:
        Way → comparisons turned round, and the number of comparisons: pairs of models, at each block both have.
    """
    counts = {}
    compared = 0
    for way, group in profiles.groupby("way", sort=False):
        exact = group.pivot_table(index="block", columns="model", values="exact")
        reached = group.pivot_table(index="block", columns="model", values="r2")
        counts[way] = 0.0
        compared = 0
        for a, b in combinations(group.model.unique(), 2):
            truth = (exact[a] - exact[b]).dropna()
            reported = (reached[a] - reached[b]).dropna()
            counts[way] += float((truth * reported < 0).sum())
            compared += len(truth)
    return counts, compared


def directions(theory: Descent, maps: Mapping[str, AffineMap]) -> pd.DataFrame:
    """How much of each direction of a block's inputs some trained maps have learned; null directions are left out.

    Args:
        theory: the block's descent.
        maps: way → the map it reached.

    Returns:
        A row a direction in a way: `way`, `loudness` (λ over λ₁), `share` of the output's variance that the exact map
        explains through it, `learned` (0 at the start, 1 at the exact map).
    """
    loudness = theory.values / theory.values[-1]
    seen = loudness > NULL
    table = []
    for way, affine in maps.items():
        learned = theory.learned(affine)
        columns = {"loudness": loudness[seen], "share": theory.shares[seen], "learned": learned[seen]}
        table.append(pd.DataFrame({"way": way} | {name: column.numpy() for name, column in columns.items()}))
    return pd.concat(table, ignore_index=True)
