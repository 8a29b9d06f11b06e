"""How far trained linear layers fall short, as tidy tables: a forecast for every block, and a race on one block.

The columns of recorded tables are described in `files/columns.yaml`.
"""

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
from howlinear.instrument.selection import Blocks, each_block

NEAR = 0.01  # share of the output's variance: the gap to the closed form down to which `forecasts` counts steps


def valley(
    inputs: Float[Tensor, "n 2"], outputs: Float[Tensor, "n 1"], steps: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Map the loss of a problem of two weights, raw and standardised, and gradient descent on it, a row per step."""
    surfaces = []
    walks = []
    raw = Moments(2, 1).update(inputs, outputs)
    for scaling in ("raw", "standardised"):
        moments = Moments(2, 1).update(Coordinates.of(raw, scaling).rows(inputs), outputs)
        path = descent(moments)
        weights = [path.after(step).weight[:, 0].tolist() for step in steps]
        walk = pd.DataFrame(weights, columns=["first", "second"])
        walks.append(walk.assign(scaling=scaling, step=steps))

        # with the best bias, (w − w*)ᵀ Sxx (w − w*) / Σ (y − ȳ)²
        target = path.target[:-1, 0].tolist()
        across, up = np.meshgrid(_around(target[1]), _around(target[0]))
        error = np.stack([up.ravel(), across.ravel()], 1) - target
        unlearned = ((error @ moments.sxx.numpy()) * error).sum(1) / float(moments.syy.sum())
        surface = pd.DataFrame({"first": up.ravel(), "second": across.ravel(), "unlearned": unlearned})
        surfaces.append(surface.assign(scaling=scaling))
    return pd.concat(surfaces, ignore_index=True), pd.concat(walks, ignore_index=True)


def _around(target: float) -> np.ndarray:
    """Space values of a weight from its start, 0, to its target, and 2 beyond at either end."""
    return np.linspace(min(0.0, target) - 2, max(0.0, target) + 2, 81)


def forecasts(models: Mapping[str, Blocks], steps: int) -> pd.DataFrame:
    """Make table `blocks`: the closed form on sampled rows, and full-batch descent of `steps` steps at rate 1/λ₁."""
    rows = []
    for model, block, kept in each_block(models):
        problem = Problem.of(kept)
        exact = ceiling(problem.folds, problem.test)
        path = descent(problem.moments)
        asleep = path.left(steps) > 0.5
        rows.append(
            {
                "model": model,
                "block": block,
                "condition": exact.condition,
                **exact.interval.columns("r2"),
                "reached": r2(path.after(steps), problem.held_out),
                "asleep": int(asleep.sum()),
                "asleep_share": float(path.shares[asleep].sum()),
                "steps_needed": path.steps_to(NEAR),
            }
        )
    table = pd.DataFrame(rows)
    table["raced"] = table.index == (table["r2"] - table["reached"]).idxmax()
    return table


def untuned(models: Mapping[str, Mapping[int | None, Problem]], steps: int, seed: int = 0) -> pd.DataFrame:
    """Train the paper's linear baselines, with nothing tuned, on some problems: a row per baseline and problem."""
    rows = []
    for model, problems in models.items():
        for block, problem in problems.items():
            exact = ceiling(problem.folds, problem.test)
            for way in BASELINES:
                fitted = baseline(problem, way, steps, seed)
                row = {"model": model, "block": block, "way": way, "condition": exact.condition, "exact": exact.r2}
                row["reached"] = r2(fitted, problem.held_out)
                rows.append(row | shortfall(problem, fitted).columns("gap"))
    return pd.DataFrame(rows)


def race(problem: Problem, steps: int, batch: int, at: Sequence[int], seed: int = 0) -> dict[tuple[str, str], Path]:
    """Run every optimiser in every scaling of a block's inputs, each at its best rate: (scaling, optimiser) → path."""
    paths = {}
    for scaling in SCALINGS:
        for optimiser, recipe in OPTIMISERS.items():
            path = tuned(problem, optimiser, scaling, recipe.rates, steps=steps, batch=batch, at=at, seed=seed)
            paths[scaling, optimiser] = path
    return paths


def scores(paths: Mapping[tuple[str, str], Path]) -> pd.DataFrame:
    """Tabulate the scores of a race, a row per score: `scaling`, `optimiser`, `rate`, `step`, `reached`."""
    rows = []
    for (scaling, optimiser), path in paths.items():
        for step, score in zip(path.steps, path.r2, strict=True):
            row = {"scaling": scaling, "optimiser": optimiser, "rate": path.rate}
            rows.append(row | {"step": step, "reached": score})
    return pd.DataFrame(rows)


def trained(
    models: Mapping[str, Blocks], rates: Mapping[str, Sequence[float]], steps: int, batch: int, seed: int = 0
) -> pd.DataFrame:
    """Run some optimisers on every block's raw inputs: R² `reached`, and its `gap` to the closed form."""
    rows = []
    for model, block, kept in each_block(models):
        problem = Problem.of(kept)
        for optimiser, tried in rates.items():
            path = tuned(problem, optimiser, "raw", tried, steps=steps, batch=batch, seed=seed)
            row = {"model": model, "block": block, "way": optimiser, "reached": path.r2[-1]}
            rows.append(row | shortfall(problem, path.map).columns("gap"))
    return pd.DataFrame(rows)


def ways(forecasts: pd.DataFrame, trained: pd.DataFrame) -> pd.DataFrame:
    """Stack what each way of training reaches, gradient descent first: `model`, `block`, `way`, `reached`."""
    columns = ["model", "block", "way", "reached"]
    return pd.concat([forecasts.assign(way="GD")[columns], trained[columns]], ignore_index=True)


def beside_exact(blocks: pd.DataFrame, ways: pd.DataFrame) -> pd.DataFrame:
    """Join each way on each block with that block's closed form, and add `gap`, how far the way falls below it."""
    both = ways.merge(blocks.drop(columns="reached", errors="ignore"), on=["model", "block"], how="left")
    return both.assign(gap=both["r2"] - both["reached"])


def verdicts(beside: pd.DataFrame) -> pd.DataFrame:
    """Tabulate what each way of training would have led one to conclude about each model; table `verdicts`."""
    rows = []
    for (model, way), group in beside.groupby(["model", "way"], sort=False):
        outside = (group.reached < group.r2_low) | (group.reached > group.r2_high)
        flipped = np.sign(np.diff(group.r2)) != np.sign(np.diff(group.reached))
        rows.append(
            {
                "model": model,
                "way": way,
                "spearman": _spearman(group.reached, group.r2),
                "outside": int(outside.sum()),
                "flipped": int(flipped.sum()),
                "worst": group.gap.max(),
            }
        )
    return pd.DataFrame(rows)


def by_way(beside: pd.DataFrame) -> pd.DataFrame:
    """Summarise each way of training over all models; table `by_way`."""
    rows = []
    for way, group in beside.groupby("way", sort=False):
        exact = group.pivot_table(index="block", columns="model", values="r2")
        reached = group.pivot_table(index="block", columns="model", values="reached")
        compared, turned = 0, 0
        for a, b in combinations(group.model.unique(), 2):
            truth = (exact[a] - exact[b]).dropna()
            reported = (reached[a] - reached[b]).dropna()
            turned += int((truth * reported < 0).sum())
            compared += len(truth)
        rho = _spearman(group.gap, group.condition)
        rows.append({"way": way, "rho_condition": rho, "compared": compared, "turned": turned})
    return pd.DataFrame(rows)


def _spearman(one: pd.Series, other: pd.Series) -> float:
    """Rank correlation; NaN where one of the two does not vary, as over a single block."""
    return one.corr(other, method="spearman") if min(one.nunique(), other.nunique()) > 1 else float("nan")


def directions(theory: Descent, maps: Mapping[str, AffineMap]) -> pd.DataFrame:
    """Tabulate what trained maps have `learned` of each direction of the inputs that is not null, and its `share`."""
    loudness = theory.values / theory.values[-1]
    seen = loudness > NULL
    table = []
    for way, affine in maps.items():
        learned = theory.learned(affine)
        columns = {"loudness": loudness[seen], "share": theory.shares[seen], "learned": learned[seen]}
        numbers = {name: column.numpy() for name, column in columns.items()}
        table.append(pd.DataFrame({"way": way} | numbers))
    return pd.concat(table, ignore_index=True)
