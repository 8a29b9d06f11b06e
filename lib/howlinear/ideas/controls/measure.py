"""What makes a profile, as tidy tables: controls, random models, inputs of blocks, transplants and twins.

A control is named by what it changes: `own` is the block as it is; `normal`, `turned` and `standardised` change its
inputs (see `inputs`); `permuted`, `redrawn` and `fresh` its weights (see `weights`). The columns of recorded tables are
explained in `files/columns.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from howlinear.core.intervals import Estimate
from howlinear.files.tables import with_ends
from howlinear.ideas.controls.anova import anova, beside_seeds
from howlinear.ideas.controls.inputs import Colour, gaussian, recolour, standardise
from howlinear.ideas.controls.weights import chance_floor, effective_support, permute, redraw, respond, sample_ceiling
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import BlockCapture, Sample, describe
from howlinear.instrument.selection import Blocks

CONTROLS = ("own", "normal", "turned", "standardised", "permuted", "redrawn", "fresh")

FACTORS = ("family", "text", "seed")
"""What twins may differ in."""

MOVED_BY = {"family": ["family"], "text": ["text", "family × text"]}
"""Question about the twins → the effects that answer it: the architecture; and the training text within a family."""

Ffns = Mapping[int, nn.Module]


def controls(model: str, blocks: Blocks, ffns: Ffns, fresh: Ffns) -> pd.DataFrame:
    """Measure R²_lin of every block on its own rows and weights, and under six controls; table `controls`."""
    rows = []
    for block, captured in blocks.items():
        cases = _cases(captured, ffns[block], fresh[block])
        for control, (x, ffn) in cases.items():
            y = respond(ffn, x)
            found = sample_ceiling(x, y, captured.rows(), intervals=control == "own")
            interval = found.interval or Estimate(found.r2, np.nan, np.nan)
            row = {"model": model, "block": block, "control": control} | interval.columns("r2")
            rows.append(row | {"rank": found.rank, "rows_train": found.rows_train})
    return pd.DataFrame(rows)


def _cases(captured: BlockCapture, ffn: nn.Module, fresh: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    """Return control → rows to feed, and the FFN to feed them to."""
    x = captured.rows().x
    moments = sum(captured.train)
    own = Colour.of(moments)
    return {
        "own": (x, ffn),
        "normal": (gaussian(own, len(x)), ffn),
        "turned": (recolour(x, own, own, turn=0), ffn),
        "standardised": (standardise(x, moments), ffn),
        "permuted": (x, permute(ffn)),
        "redrawn": (x, redraw(ffn)),
        "fresh": (x, fresh),
    }


def cost_of_fit(controls: pd.DataFrame) -> pd.Series:
    """Share by which the held-out residual of a fit on n rows of rank r is too large, (r + 1) / (n − r − 2)."""
    return (controls["rank"] + 1) / (controls["rows_train"] - controls["rank"] - 2)


def closed_form(controls: pd.DataFrame, closed: Mapping[tuple[str, int], float]) -> pd.DataFrame:
    """R²_lin `fitted` on normal rows, its `closed` form, NaN if none is known, and `priced`: less the cost of a fit."""
    normal = controls[controls["control"] == "normal"].reset_index(drop=True)
    table = normal[["model", "block", "r2"]].rename(columns={"r2": "fitted"})
    table["closed"] = [closed.get((row.model, row.block), np.nan) for row in table.itertuples()]
    # the residual 1 − R² of a fit is too large by this factor
    factor = 1 + cost_of_fit(normal)
    table["priced"] = 1 - (1 - table["closed"]) * factor
    return table


# Models at random, chance, inputs


def random_models(baselines: Mapping[str, Sequence[Baseline]]) -> pd.DataFrame:
    """Whole models with random weights, where random blocks also feed one another; table `random`."""
    tables = []
    for model, of_seeds in baselines.items():
        for seed, found in enumerate(of_seeds):
            bracket = {"block": found.blocks, "r2": found.held_out, "r2_in_sample": found.in_sample}
            tables.append(pd.DataFrame({"model": model, "seed": seed} | bracket))
    return pd.concat(tables, ignore_index=True)


def by_model(controls: pd.DataFrame, random: pd.DataFrame, baselines: Mapping[str, Sequence[Baseline]]) -> pd.DataFrame:
    """Count the trained blocks whose whole interval lies above or below all random ones; table `by_model`."""
    own = controls[controls["control"] == "own"]
    # a random model may lie anywhere from its held-out to its in-sample R²
    by_block = random.groupby(["model", "block"])
    bracket = by_block.agg(lowest=("r2", "min"), highest=("r2_in_sample", "max"))
    beside = own.join(bracket, on=["model", "block"])
    above = beside["r2_low"] > beside["highest"]
    below = beside["r2_high"] < beside["lowest"]

    rows = []
    for model, of_seeds in baselines.items():
        outside = (above | below)[beside["model"] == model]
        most = max(found.rows for found in of_seeds)
        rows.append({"model": model, "outside": outside.sum(), "random_rows": most})
    return pd.DataFrame(rows)


def floors(sample: Sample) -> pd.DataFrame:
    """`weights.chance_floor` on 2 to 64 times as many train rows as the width, or all there are; table `floors`."""
    width = sample.x.shape[1]
    all_train = int((~sample.test).sum())
    sizes = {min(factor * width, all_train) for factor in (2, 4, 16, 64)}
    return pd.DataFrame([chance_floor(sample, rows) for rows in sorted(sizes)])


def inputs(model: str, blocks: Blocks) -> pd.DataFrame:
    """Describe the inputs of each block of a model, as a referee asked: `capture.describe`, and table `support`."""
    rows = []
    for block, captured in blocks.items():
        sample = captured.rows()
        support = {"support_in": effective_support(sample.x), "support_out": effective_support(sample.y)}
        rows.append({"model": model, "block": block} | describe(captured) | support)
    return pd.DataFrame(rows).drop(columns=["null", "second"])


# Transplants


def alike(captures: Mapping[str, Blocks]) -> list[str]:
    """List the models with the first one's width and blocks, if there are two: rows can go from one to another."""
    shapes = {}
    for name, blocks in captures.items():
        width = next(iter(blocks.values())).train[0].d_in
        shapes[name] = (list(blocks), width)
    first = next(iter(shapes.values()))
    names = [name for name, shape in shapes.items() if shape == first]
    return names if len(names) > 1 else []


def transplants(captures: Mapping[str, Blocks], ffns: Mapping[str, Ffns], three_way_every: int = 1) -> pd.DataFrame:
    """Send rows of one model, in the mean and covariance of another, through the weights of a third, block by block."""
    names = alike(captures)
    found = []
    blocks = captures[names[0]] if names else ()
    for place, block in enumerate(blocks):
        all_free = place % three_way_every == 0
        samples = {}
        colours = {}
        for name in names:  # of each block only what is needed is kept: captures may lie on disk
            captured = captures[name][block]
            samples[name] = captured.rows()
            colours[name] = Colour.of(sum(captured.train))

        for shape, colour in product(names, repeat=2):
            sample = samples[shape]
            x = recolour(sample.x, colours[shape], colours[colour])
            for weights in names if all_free else [colour]:
                y = respond(ffns[weights][block], x)
                r2 = sample_ceiling(x, y, sample, intervals=False).r2
                found.append((block, shape, colour, weights, r2))
    return pd.DataFrame(found, columns=["block", "shape", "colour", "weights", "r2"])


def pairs(transplants: pd.DataFrame) -> pd.DataFrame:
    """Select the referee's experiment: transplants with colour and weights of one model; table `pairs`."""
    table = transplants[transplants["colour"] == transplants["weights"]].drop(columns="colour")
    return table.rename(columns={"shape": "inputs"}).reset_index(drop=True)


def effects(transplants: pd.DataFrame) -> pd.DataFrame:
    """What moves R²_lin among transplants: `anova.anova` of two designs, `two-way` and `three-way`; table `effects`."""
    if transplants.empty:
        columns = ["design", "effect", "share", "share_low", "share_high", "freedom", "size"]
        return pd.DataFrame(columns=columns)
    # blocks in which every combination of three models was made
    models = transplants["shape"].nunique()
    in_block = transplants.groupby("block")["r2"].transform("size")
    free = transplants[in_block == models**3]

    two_way = anova(pairs(transplants), ["inputs", "weights"])
    three_way = anova(free, ["shape", "colour", "weights"])
    designs = [two_way.assign(design="two-way"), three_way.assign(design="three-way")]
    return pd.concat(designs, ignore_index=True)


def nearness(pairs: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """Measure how far transplants between two models lie from four curves that they could follow; table `nearness`."""
    foreign = pairs[pairs["inputs"] != pairs["weights"]]
    curves = {
        "weights' owner": ("own", "weights"),
        "inputs' owner": ("own", "inputs"),
        "normal": ("normal", "weights"),
        "turned": ("turned", "weights"),
    }
    found = []
    for curve, (control, owner) in curves.items():
        profile = controls[controls["control"] == control].rename(columns={"model": owner, "r2": "followed"})
        both = foreign.merge(profile[[owner, "block", "followed"]], on=[owner, "block"])
        distance = (both["r2"] - both["followed"]).abs()
        found.append((curve, distance.mean()))
    table = pd.DataFrame(found, columns=["curve", "gap"])
    return table.dropna().reset_index(drop=True)


# Twins


def twins(measurements: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Collect the profiles of twins that `training.twins` measured; table `twins`."""
    tables = []
    for twin in measurements:
        for text, profile in twin["profiles"].items():
            of_twin = {factor: twin[factor] for factor in FACTORS} | {"measured_on": text}
            curves = {name: profile[name] for name in with_ends("r2")}
            tables.append(pd.DataFrame(of_twin | {"block": range(len(profile["r2"]))} | curves))
    return pd.concat(tables, ignore_index=True)


def twin_gaps(twins: pd.DataFrame) -> pd.DataFrame:
    """Mean |difference| in R²_lin of two twins that differ in one factor alone; table `twin_gaps`."""

    def mean_gap(r2: pd.Series) -> float:
        gaps = [abs(one - other) for one, other in combinations(r2, 2)]
        return float(np.mean(gaps))

    found = []
    for text, of_text in twins.groupby("measured_on", sort=False):
        for factor in FACTORS:
            shared = [other for other in FACTORS if other != factor]
            groups = of_text.groupby(["block", *shared])["r2"]
            found.append((text, factor, groups.agg(mean_gap).mean()))
    return pd.DataFrame(found, columns=["measured_on", "factor", "gap"])


def twins_beside_seeds(twins: pd.DataFrame) -> pd.DataFrame:
    """Compare how much architecture, training text and another seed move the twins' profiles; table `beside_seeds`."""
    # a block of one text and the same block of another are two places of one long profile
    long_block = twins["measured_on"] + " " + twins["block"].astype(str)
    views = {("all", "as measured"): twins.assign(block=long_block)}

    own_mean = twins.groupby([*FACTORS, "measured_on"])["r2"].transform("mean")
    shape = twins.assign(r2=twins["r2"] - own_mean)
    for text in twins["measured_on"].unique():
        on_text = twins["measured_on"] == text
        views[text, "as measured"] = twins[on_text]
        views[text, "shape only"] = shape[on_text]

    rows = []
    for (text, view), profiles in views.items():
        for effect, parts in MOVED_BY.items():
            row = {"measured_on": text, "view": view, "effect": effect}
            rows.append(row | beside_seeds(profiles, FACTORS, parts))
    return pd.DataFrame(rows)
