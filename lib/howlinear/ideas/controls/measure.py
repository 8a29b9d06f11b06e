"""Who makes a profile, as tidy tables: controls, models at random, what blocks are fed, transplants and twins.

A control is named by what it changes: `own` is the block as it is; `normal`, `turned` and `standardised` change its
inputs (see `inputs`); `permuted`, `redrawn` and `fresh` its weights (`weights`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from howlinear.errors import InputError
from howlinear.ideas.controls.anova import anova, beside_seeds
from howlinear.ideas.controls.inputs import Colour, gaussian, recolour, standardise
from howlinear.ideas.controls.weights import chance_floor, effective_support, permute, redraw, respond, sample_ceiling
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import BlockCapture, Sample, describe

CONTROLS = ("own", "normal", "turned", "standardised", "permuted", "redrawn", "fresh")

FACTORS = ("family", "text", "seed")
"""What one twin may differ in from another."""

MOVED_BY = {"family": ["family"], "text": ["text", "family × text"]}
"""What is asked of the twins → the effects that answer: the architecture; and the training text within a family."""

Blocks = Mapping[int, BlockCapture]


def controls(model: str, blocks: Blocks, ffns: Sequence[nn.Module], fresh: Sequence[nn.Module]) -> pd.DataFrame:
    """R²_lin of every block of a model on its own rows and weights, and under six controls.

    Returns:
        model, block, control; r2, with its ends of `own`; rank and rows_train of the fit.
    """
    rows = []
    for block, captured in blocks.items():
        for control, (x, ffn) in _cases(captured, ffns[block], fresh[block]).items():
            found = sample_ceiling(x, respond(ffn, x), captured.rows(), intervals=control == "own")
            row = {"model": model, "block": block, "control": control}
            row |= {"r2": found.r2, "r2_low": found.r2_low, "r2_high": found.r2_high}
            rows.append(row | {"rank": found.rank, "rows_train": found.rows_train})
    return pd.DataFrame(rows).astype({"r2_low": float, "r2_high": float})


def _cases(captured: BlockCapture, ffn: nn.Module, fresh: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    """Control → the rows to feed, and the FFN to feed them to."""
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
    """By what share the held-out residual of a fit on n rows of rank r is too large, r / (n − r − 2): one a control."""
    return controls["rank"] / (controls["rows_train"] - controls["rank"] - 2)


def closed_form(controls: pd.DataFrame, closed: Mapping[tuple[str, int], float]) -> pd.DataFrame:
    """R²_lin on normal rows beside the closed form, which needs no rows.

    Args:
        controls: as `controls` gives it, of several models.
        closed: (model, block) → R²_lin on normal inputs by `degrees.hermite.predict_spectrum`.

    Returns:
        model, block, fitted, closed, and priced: the closed form less what a fit on these rows costs.
    """
    normal = controls[controls["control"] == "normal"].reset_index(drop=True)
    table = normal[["model", "block"]].assign(fitted=normal["r2"])
    table["closed"] = [closed[row.model, row.block] for row in table.itertuples()]
    table["priced"] = 1 - (1 - table["closed"]) * (1 + cost_of_fit(normal))
    return table


# Models at random, chance, inputs


def random_models(baselines: Mapping[str, Sequence[Baseline]]) -> pd.DataFrame:
    """Whole models at random, where random blocks also feed one another: model, seed, block, r2, r2_in_sample.

    Args:
        baselines: model → its `Baseline` at each seed. The R² of infinitely many rows lies between the two numbers.
    """
    tables = []
    for model, of_seeds in baselines.items():
        for seed, found in enumerate(of_seeds):
            keys = {"model": model, "seed": seed, "block": range(len(found.held_out))}
            tables.append(pd.DataFrame(keys | {"r2": found.held_out, "r2_in_sample": found.in_sample}))
    return pd.concat(tables, ignore_index=True)


def by_model(controls: pd.DataFrame, random: pd.DataFrame, baselines: Mapping[str, Sequence[Baseline]]) -> pd.DataFrame:
    """How many trained blocks lie, interval and all, above or below all models at random: model, outside, random_rows.

    Args:
        controls: as `controls` gives it, of several models.
        random: as `random_models` gives it.
        baselines: what it was made of; random_rows are the most rows of a block that any seed took.
    """
    own = controls[controls["control"] == "own"]
    # a model at random may lie anywhere from its held-out to its in-sample R²
    bracket = random.groupby(["model", "block"]).agg(lowest=("r2", "min"), highest=("r2_in_sample", "max"))
    beside = own.join(bracket, on=["model", "block"])
    outside = (beside["r2_low"] > beside["highest"]) | (beside["r2_high"] < beside["lowest"])
    table = outside.groupby(own["model"], sort=False).sum().rename("outside").reset_index()
    most = {model: max(found.rows for found in of_seeds) for model, of_seeds in baselines.items()}
    return table.assign(random_rows=table["model"].map(most))


def floors(sample: Sample, factors: Sequence[int] = (2, 4, 16, 64)) -> pd.DataFrame:
    """`weights.chance_floor` on train rows these factors times the width, or on all there are, a row each."""
    all_train = int((~sample.test).sum())
    sizes = {min(factor * sample.x.shape[1], all_train) for factor in factors}
    return pd.DataFrame([chance_floor(sample, rows) for rows in sorted(sizes)])


def inputs(model: str, blocks: Blocks) -> pd.DataFrame:
    """What goes into each block of a model, as a referee asked.

    Returns:
        model, block; rank, condition, effective_rank, dynamic_range, first_position_in and first_position_out of
        `capture.InputStatistics`; support_in and support_out, the shares of rows that carry the variance.
    """
    rows = []
    for block, captured in blocks.items():
        sample = captured.rows()
        support = {"support_in": effective_support(sample.x), "support_out": effective_support(sample.y)}
        rows.append({"model": model, "block": block} | vars(describe(captured)) | support)
    return pd.DataFrame(rows).drop(columns=["null", "second"])


# Transplants


def alike(captures: Mapping[str, Blocks]) -> list[str]:
    """The models of the first one's width and depth, if there are two: rows can be transplanted between these."""
    shapes = {name: (len(blocks), blocks[0].train[0].d_in) for name, blocks in captures.items()}
    first = next(iter(shapes.values()))
    names = [name for name, shape in shapes.items() if shape == first]
    return names if len(names) > 1 else []


def transplants(
    captures: Mapping[str, Blocks], ffns: Mapping[str, Sequence[nn.Module]], three_way_every: int = 1
) -> pd.DataFrame:
    """Rows of one model, in the mean and covariance of another, through the weights of a third, block by block.

    Args:
        captures: model → its captured blocks.
        ffns: model → its FFNs.
        three_way_every: all three are free in every so manieth block; in the others, colour and weights are of one
            model, which is what the referee asked for.

    Returns:
        block; the models that shape, colour and weights are of; r2. No row where no two models are `alike`.
    """
    names = alike(captures)
    found = []
    for place, block in enumerate(captures[names[0]] if names else ()):
        samples = {name: captures[name][block].rows() for name in names}
        colours = {name: Colour.of(sum(captures[name][block].train)) for name in names}
        for shape, colour in product(names, repeat=2):
            x = recolour(samples[shape].x, colours[shape], colours[colour])
            for weights in names if place % three_way_every == 0 else [colour]:
                r2 = sample_ceiling(x, respond(ffns[weights][block], x), samples[shape], intervals=False).r2
                found.append((block, shape, colour, weights, r2))
    return pd.DataFrame(found, columns=["block", "shape", "colour", "weights", "r2"])


def pairs(transplants: pd.DataFrame) -> pd.DataFrame:
    """The referee's experiment: those whose colour and weights are of one model. Columns block, inputs, weights, r2."""
    table = transplants[transplants["colour"] == transplants["weights"]].drop(columns="colour")
    return table.rename(columns={"shape": "inputs"}).reset_index(drop=True)


def effects(transplants: pd.DataFrame) -> pd.DataFrame:
    """What moves R²_lin among transplants: the columns of `anova.anova` for each design, `two-way` and `three-way`.

    Two-way is that of `pairs`; three-way that of the blocks in which all three are free. No row without transplants.
    """
    if transplants.empty:
        columns = ["design", "effect", "share", "share_low", "share_high", "freedom", "size"]
        return pd.DataFrame(columns=columns)
    in_block = transplants.groupby("block")["r2"].transform("size")
    free = transplants[in_block == transplants["shape"].nunique() ** 3]
    two_way = anova(pairs(transplants), ["inputs", "weights"]).assign(design="two-way")
    three_way = anova(free, ["shape", "colour", "weights"]).assign(design="three-way")
    return pd.concat([two_way, three_way], ignore_index=True)


def nearness(pairs: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """How far transplants between two models lie from four curves that they could follow.

    Returns:
        curve (the profile of the weights' owner, of the inputs' owner, or of the weights' owner on `normal` rows or on
        its own `turned`); gap, the mean |difference| over pairs of models and blocks. No row without transplants.
    """
    foreign = pairs[pairs["inputs"] != pairs["weights"]]
    curves = {
        "weights' owner": ("own", "weights"),
        "inputs' owner": ("own", "inputs"),
        "normal": ("normal", "weights"),
        "turned": ("turned", "weights"),
    }
    found = []
    for curve, (control, owner) in curves.items() if len(foreign) else ():
        profile = controls[controls["control"] == control]
        both = foreign.merge(profile, left_on=[owner, "block"], right_on=["model", "block"], suffixes=["", "_followed"])
        found.append((curve, (both["r2"] - both["r2_followed"]).abs().mean()))
    return pd.DataFrame(found, columns=["curve", "gap"])


# Twins


def twins(measurements: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Profiles of twins, as `training.twins` measured them: family, text, seed, measured_on, block, r2 with its ends.

    Raises:
        InputError: no twin is given.
    """
    tables = []
    for twin in measurements:
        for text, profile in twin["profiles"].items():
            keys = {factor: twin[factor] for factor in FACTORS}
            keys |= {"measured_on": text, "block": range(len(profile["r2"]))}
            tables.append(pd.DataFrame(keys | {name: profile[name] for name in ("r2", "r2_low", "r2_high")}))
    if not tables:
        raise InputError("no twins to compare: run make twins")
    return pd.concat(tables, ignore_index=True)


def twin_gaps(twins: pd.DataFrame) -> pd.DataFrame:
    """Mean |difference| in R²_lin of two twins that differ in one factor alone: measured_on, factor, gap."""

    def mean_gap(r2: pd.Series) -> float:
        return float(np.mean([abs(one - other) for one, other in combinations(r2, 2)]))

    found = []
    for text, of_text in twins.groupby("measured_on", sort=False):
        for factor in FACTORS:
            shared = [other for other in FACTORS if other != factor]
            gaps = of_text.groupby(["block", *shared])["r2"].agg(mean_gap)
            found.append((text, factor, gaps.mean()))
    return pd.DataFrame(found, columns=["measured_on", "factor", "gap"])


def twins_beside_seeds(twins: pd.DataFrame) -> pd.DataFrame:
    """How much architecture and training text move the twins' profiles beside what another seed does.

    Returns:
        measured_on (a text; or `all`, a twin's profiles on all texts one after the other, as one long profile); view,
        `as measured` or `shape only` (less the profile's mean over blocks); effect, of `MOVED_BY`; and the numbers of
        `anova.BesideSeeds`.
    """
    end_to_end = twins.assign(block=twins["measured_on"] + " " + twins["block"].astype(str))
    own_mean = twins.groupby([*FACTORS, "measured_on"])["r2"].transform("mean")
    shape = twins.assign(r2=twins["r2"] - own_mean)
    views = {("all", "as measured"): end_to_end}
    for text in twins["measured_on"].unique():
        views[text, "as measured"] = twins[twins["measured_on"] == text]
        views[text, "shape only"] = shape[shape["measured_on"] == text]

    rows = []
    for (text, view), profiles in views.items():
        for effect, parts in MOVED_BY.items():
            found = dict(vars(beside_seeds(profiles, FACTORS, parts)))
            ends = found.pop("share").columns("share") | found.pop("ratio").columns("ratio")
            rows.append({"measured_on": text, "view": view, "effect": effect} | found | ends)
    return pd.DataFrame(rows)
