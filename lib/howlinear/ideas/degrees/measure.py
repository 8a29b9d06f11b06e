"""Degrees of the blocks of a model, and how tight those bounds are, as tidy tables.

Blocks are captured with all their rows, a few blocks at a time, since features are computed row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from howlinear.core import limits
from howlinear.core.ceilings import PooledR2, decompose, output_squares, refits, whitening
from howlinear.core.gaussian import Hidden, predict_spectrum
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.moments import Moments
from howlinear.ideas.degrees.products import Learned, gaussian, learning_curve, polynomial, products, quadratic
from howlinear.ideas.degrees.spectrum import degrees, loudest, plant_teacher
from howlinear.instrument.capture import BlockCapture, capture
from howlinear.models.ffn_sites import sites, width_of
from howlinear.models.units import take_apart
from howlinear.text.rows import TokenRows

HELD = 16_000_000  # inputs held in memory at a time, rows × width × blocks
KERNELS = {"degree 2": polynomial(2), "degree 3": polynomial(3), "Gaussian": gaussian}
KEYS = ["model", "block"]
NEAR = 0.1
"""R²_lin counts as predicted if it is at most this far from the prediction of second moments; our choice."""


def survey_blocks(
    name: str,
    model: PreTrainedModel,
    rows: TokenRows,
    blocks: Sequence[int],
    checked: Sequence[int],
    degree: int,
    kernel_rows: Sequence[int],
    counts: Sequence[int],
    directions: Sequence[int],
    held: int = HELD,
) -> dict[str, pd.DataFrame]:
    """Make tables `spectra` and `blocks`; for checked blocks `neurons`, `kernels`; for the middle one `directions`."""
    middle = checked[len(checked) // 2]
    found: dict[str, list[pd.DataFrame]] = {}
    for block, captured in captured_blocks(model, rows, blocks, held):
        parts = take_apart(model, block)
        is_middle = block == middle
        tables = {
            "spectra": spectrum_table(captured, parts, degree),
            "blocks": spread_table(captured, parts),
        }
        if block in checked:
            tables["neurons"] = neuron_table(captured, parts, counts)
            tables["kernels"] = kernel_table(captured, kernel_rows, all_kernels=is_middle)
        if is_middle:
            tables["directions"] = direction_table(captured, directions)
        for kind, table in tables.items():
            found.setdefault(kind, []).append(with_keys(table, name, block))
    return {kind: pd.concat(tables, ignore_index=True) for kind, tables in found.items()}


def with_keys(table: pd.DataFrame, model: str, block: int) -> pd.DataFrame:
    """The table with `model` and `block` as its first columns."""
    return table.assign(model=model, block=block)[[*KEYS, *table.columns]]


def captured_blocks(
    model: PreTrainedModel, rows: TokenRows, blocks: Sequence[int], held: int
) -> Iterator[tuple[int, BlockCapture]]:
    """Yield blocks with all their rows, in order; one pass of the model captures as many as fit in memory."""
    at_a_time = max(1, held // (rows.count * width_of(model)))
    for start in range(0, len(blocks), at_a_time):
        some = list(blocks[start : start + at_a_time])
        yield from capture(model, rows, some, sample=rows.count).items()


# --- the spectrum


def fewest_rows(model: PreTrainedModel, degree: int) -> int:
    """Count the rows needed for a block's largest fit, with all its neurons or the highest degree: two a feature."""
    width = width_of(model)
    neurons = max(take_apart(model, site.block).neurons for site in sites(model))
    # a quarter is held out and a document fold left out, so 1.3 rows per feature are left
    return 2 * max(width * degree, width + neurons)


def spectrum_table(captured: BlockCapture, parts: Hidden, degree: int) -> pd.DataFrame:
    """Tabulate held-out `r2` up to each degree, and in `hermite` the prediction for Gaussian inputs."""
    table = degrees(captured, parts, degree)
    table.insert(0, "degree", range(1, degree + 1))
    table["hermite"] = predict_spectrum(parts, sum(captured.train), degree)
    return table


def spread_table(captured: BlockCapture, parts: Hidden) -> pd.DataFrame:
    """Take quartiles over neurons of a pre-activation's standard deviation, in one row; a median may hide two humps."""
    _, deviation = parts.spread(sum(captured.train))
    quartiles = {
        "spread": deviation.median(),
        "spread_lower": deviation.quantile(0.25),
        "spread_upper": deviation.quantile(0.75),
    }
    return pd.DataFrame(quartiles, index=[0], dtype=float)


def teacher_table(captured: BlockCapture, parts: Hidden, degree: int) -> pd.DataFrame:
    """Table `teachers`: spectra of planted teachers, whose neurons are all He_D, for D up to the degree."""
    tables = []
    for power in range(1, degree + 1):
        taught, teacher = plant_teacher(captured, parts, power)
        r2 = degrees(taught, teacher, degree)["r2"]
        tables.append(pd.DataFrame({"teacher": power, "degree": range(1, degree + 1), "r2": r2}))
    return pd.concat(tables, ignore_index=True)


def training_table(measurements: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate the middle block's spectrum and median `spread` during training, for the twins that recorded them."""
    tables = []
    for measured in measurements:
        middle = str(measured["blocks"] // 2)
        for step in measured["steps"]:
            if "degrees" not in step:
                continue
            found = step["degrees"][middle]
            table = pd.DataFrame({"r2": found["r2"], "spread": found["spread"]})
            table["degree"] = range(1, len(table) + 1)
            tables.append(table.assign(family=measured["family"], step=step["step"]))
    return pd.concat(tables, ignore_index=True)


# --- R²_lin from second moments alone


def gaussian_table(name: str, model: PreTrainedModel, blocks: Mapping[int, BlockCapture]) -> pd.DataFrame:
    """Make table `gaussian`: `excess_table` of all rows and of ordinary ones, and massive rows' share of variance."""
    tables = []
    for block, captured in blocks.items():
        parts = take_apart(model, block)
        everything = excess_table(captured.train, captured.test, parts)
        ordinary, massive_share = everything, 0.0
        if len(captured.massive()):
            others = captured.ordinary()
            ordinary = excess_table(others.train, others.test, parts)
            squares = [float(output_squares(Moments.total([*each.train, *each.test]))) for each in (others, captured)]
            massive_share = 1 - squares[0] / squares[1]
        both = {"all": everything.assign(massive_share=massive_share), "ordinary": ordinary.assign(massive_share=0.0)}
        table = pd.concat(both, names=["counted"]).reset_index(level=0)
        tables.append(with_keys(table, name, block))
    return pd.concat(tables, ignore_index=True)


def excess_table(train: Sequence[Moments], test: Sequence[Moments], parts: Hidden) -> pd.DataFrame:
    """Compare the limit of R²_lin, NaN if rows are too few, with `r2_gaussian` of the train rows' moments, paired."""
    fitted, held_out = Moments.total(train), Moments.total(test)
    inputs = decompose(fitted)
    score = PooledR2(inputs.solution(fitted))
    r2_train, r2_test = score(fitted), score(held_out)
    limit = limits.limit_or_nan(r2_train, r2_test)
    every = [float(predict_spectrum(parts, moments, 1)[0]) for moments in (fitted, *left_out(train))]
    predicted, without_folds = every[0], every[1:]

    # Leaving out a train fold changes map and prediction; leaving out a held-out fold changes the score alone
    refitted = []
    for refit, others in refits(train, inputs):
        score_refit = PooledR2(refit)
        refitted.append(limits.limit(score_refit(others), score_refit(held_out)))
    rescored = [limits.limit(r2_train, score(others)) for others in left_out(test)]
    gaps = [of_map - of_moments for of_map, of_moments in zip(refitted, without_folds, strict=True)]
    row = {
        **Estimate.jackknife(limit, refitted, rescored).columns("r2_limit"),
        **Estimate.jackknife(predicted, without_folds).columns("r2_gaussian"),
        **Estimate.jackknife(limit - predicted, gaps, rescored).columns("excess"),
    }
    return pd.DataFrame([row])


def predicted_table(gaussian: pd.DataFrame) -> pd.DataFrame:
    """Make table `predicted`: how well second moments predict R²_lin, a row per model and kind of rows counted."""
    rows = []
    for (model, counted), of_model in gaussian.dropna(subset="r2_limit").groupby(["model", "counted"], sort=False):
        sizes = of_model.assign(excess=of_model["excess"].abs())
        row = {"model": model, "counted": counted, "blocks": len(sizes)}
        row["correlation"] = sizes[["r2_limit", "r2_gaussian"]].corr().iloc[0, 1]
        row["error"] = sizes["excess"].mean()
        row["within"] = int((sizes["excess"] <= NEAR).sum())
        row["follows_massive"] = sizes[["excess", "massive_share"]].corr("spearman").iloc[0, 1]
        rows.append(row)
    columns = ["model", "counted", "blocks", "correlation", "error", "within", "follows_massive"]
    return pd.DataFrame(rows, columns=columns)


# --- how tight the bound of degree 2 is, and how many products it takes


def neuron_table(captured: BlockCapture, parts: Hidden, counts: Sequence[int]) -> pd.DataFrame:
    """Fit the line and the squares of the loudest neurons, up to all; `share` is that of the step from none to all."""
    smaller = [count for count in counts if count < parts.neurons]
    numbers = sorted({0, *smaller, parts.neurons})
    r2 = loudest(captured, parts, numbers)["r2"].to_numpy()
    # (R² − R²_1) / (R²_all − R²_1)
    share = (r2 - r2[0]) / (r2[-1] - r2[0])
    return pd.DataFrame({"neurons": numbers, "r2": r2, "share": share})


def probe_table(neurons: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Make table `probes`: the share of that step reached by notebook 03's probes, in the blocks that both have."""
    ends = neurons.groupby(KEYS, sort=False)["r2"].agg(line="first", squares="last").reset_index()
    both = ends.merge(ranks, on=KEYS)
    # recovered · (1 − R²_1) / (R²_all − R²_1)
    gain = both["recovered"] * (1 - both["line"])
    step = both["squares"] - both["line"]
    return both[[*KEYS, "rank"]].assign(share=gain / step)


def kernel_table(captured: BlockCapture, rows: Sequence[int], all_kernels: bool) -> pd.DataFrame:
    """Compute learning curves of degree 2 or of all `KERNELS`; only degree 2 has the last number of rows."""
    curves = {"degree 2": _curve(learning_curve(captured, KERNELS["degree 2"], rows))}
    if all_kernels:
        for name in ("degree 3", "Gaussian"):
            curves[name] = _curve(learning_curve(captured, KERNELS[name], rows[:-1]))
    return pd.concat(curves, names=["kernel"]).reset_index(level=0).reset_index(drop=True)


def direction_table(captured: BlockCapture, directions: Sequence[int]) -> pd.DataFrame:
    """Fit all products of the leading directions of the inputs, for the numbers that the inputs have."""
    rank = whitening(sum(captured.train)).shape[1]
    numbers = [count for count in directions if count <= rank]
    return pd.DataFrame({"directions": numbers, "r2": products(captured, numbers)["r2"]})


def streamed_table(model: PreTrainedModel, rows: TokenRows, block: int, train_rows: Sequence[int]) -> pd.DataFrame:
    """Make table `streamed`: all products of a block's inputs, by the number of train rows that they are fitted on."""
    captured = capture(model, rows, [block], sample=rows.count)[block]
    return _curve(quadratic(captured, train_rows))


def _curve(curve: Sequence[Learned]) -> pd.DataFrame:
    return pd.DataFrame([{"rows": point.rows, **point.r2.columns("r2")} for point in curve])
