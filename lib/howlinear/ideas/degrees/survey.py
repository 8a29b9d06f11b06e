"""What notebook 10 asks of a model, as tidy tables: the spectrum of every block, and how tight that bound is.

Blocks are captured with all their rows, a few at a time, since features are made of single rows. Every table has a row
a measurement and says in its first columns of which model and block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from howlinear.ideas.degrees.hermite import plant_teacher, predict_spectrum
from howlinear.ideas.degrees.neurons import Hidden, take_apart
from howlinear.ideas.degrees.products import curve_frame, gaussian, learning_curve, polynomial, products, quadratic
from howlinear.ideas.degrees.spectrum import degrees, loudest
from howlinear.instrument.capture import BlockCapture, capture
from howlinear.text.rows import TokenRows

HELD = 16_000_000  # inputs held in memory at a time, rows × width × blocks
KERNELS = {"degree 2": polynomial(2), "degree 3": polynomial(3), "Gaussian": gaussian}


def survey(
    model: PreTrainedModel,
    rows: TokenRows,
    degree: int,
    kernel_rows: Sequence[int],
    counts: Sequence[int],
    directions: Sequence[int],
    held: int = HELD,
    blocks: Sequence[int] | None = None,
) -> dict[str, pd.DataFrame]:
    """The spectrum of every block of a model, or of some, and checks of an early, a middle and a late one.

    Args:
        model: the model.
        rows: token rows; all of them are used.
        degree: the highest of the spectrum.
        kernel_rows: train rows of the kernels, ascending; the last for degree 2 alone, since time grows as its cube.
        counts: numbers of neurons that weigh their squares anew; those that a block does not have are left out, and
            all of its neurons are added.
        directions: numbers of leading directions all of whose products are taken, in the middle block.
        held: inputs held in memory at a time, rows × width × blocks.
        blocks: which blocks, see `surveyed_blocks`; None: all.

    Returns:
        `spectra` of these blocks, see `spectrum_table`; of the checked blocks `neurons` and `kernels`, and of the
        middle block `products`, see the tables of these names. Each has `block` as its first column.
    """
    depth = model.config.num_hidden_layers
    middle = depth // 2
    checked = checked_blocks(depth)
    spectra = {}
    neurons = {}
    kernels = {}
    all_products = {}
    for block, captured in captured_blocks(model, rows, surveyed_blocks(depth, blocks), held):
        parts = take_apart(model, block)
        spectra[block] = spectrum_table(captured, parts, degree)
        if block in checked:
            neurons[block] = neuron_table(captured, parts, counts)
            kernels[block] = kernel_table(captured, kernel_rows, all_kernels=block == middle)
        if block == middle:
            all_products[block] = product_table(captured, directions)
    return {
        "spectra": stack(spectra, "block"),
        "neurons": stack(neurons, "block"),
        "kernels": stack(kernels, "block"),
        "products": stack(all_products, "block"),
    }


def checked_blocks(depth: int) -> list[int]:
    """An early, a middle and a late block."""
    return sorted({0, depth // 2, depth - 1})


def surveyed_blocks(depth: int, blocks: Iterable[int] | None = None) -> list[int]:
    """The blocks that were asked for and the checked ones, in order; every block for None.

    Args:
        depth: how many blocks the model has.
        blocks: those asked for.
    """
    if blocks is None:
        return list(range(depth))
    return sorted({*blocks, *checked_blocks(depth)})


def blocks_sentence(stored: Mapping[int, BlockCapture], numbers: Sequence[int]) -> str:
    """How many of a model's blocks are looked at, and in which of them a few massive rows weigh most.

    Args:
        stored: all blocks of the model.
        numbers: those that are looked at.
    """
    massive = [str(number) for number in numbers if len(stored[number].massive())]
    named = ", ".join(massive) or "none"
    return f"{len(numbers)} of {len(stored)} blocks; few massive rows weigh most (notebook 12) in: {named}"


def captured_blocks(
    model: PreTrainedModel, rows: TokenRows, blocks: Sequence[int], held: int = HELD
) -> Iterator[tuple[int, BlockCapture]]:
    """Blocks with all their rows, in order; the model runs once for as many as fit in memory together.

    Args:
        model: the model.
        rows: token rows.
        blocks: which blocks.
        held: inputs held in memory at a time, rows × width × blocks.
    """
    inputs_a_block = rows.count * model.config.hidden_size
    at_a_time = max(1, held // inputs_a_block)
    for start in range(0, len(blocks), at_a_time):
        some = list(blocks[start : start + at_a_time])
        yield from capture(model, rows, some, sample=rows.count).items()


def spectrum_table(captured: BlockCapture, parts: Hidden, degree: int) -> pd.DataFrame:
    """The degree spectrum of a block beside Hermite's prediction.

    Args:
        captured: the block, captured with all its rows.
        parts: the same block taken apart.
        degree: the highest.

    Returns:
        A row a degree: `degree`, held-out `r2` with `low` and `high`, `hermite` as predicted for Gaussian inputs; and,
        of the standard deviations of the block's pre-activations, the median `spread` with the quartiles about it,
        `spread_lower` and `spread_upper`, for a median alone hides two humps.
    """
    moments = sum(captured.train)
    _, deviation = parts.spread(moments)
    table = degrees(captured, parts, degree).to_frame().drop(columns="size")
    table.insert(0, "degree", range(1, degree + 1))
    table["hermite"] = predict_spectrum(parts, moments, degree)
    table["spread"] = float(deviation.median())
    table["spread_lower"] = float(deviation.quantile(0.25))
    table["spread_upper"] = float(deviation.quantile(0.75))
    return table


def teacher_table(captured: BlockCapture, parts: Hidden, degree: int) -> pd.DataFrame:
    """Spectra of planted teachers, whose neurons are all He_D: a row a `teacher` D and `degree`, with `r2`."""
    tables = {}
    for power in range(1, degree + 1):
        taught, teacher = plant_teacher(captured, parts, power)
        r2 = degrees(taught, teacher, degree).r2
        tables[power] = pd.DataFrame({"degree": range(1, degree + 1), "r2": r2})
    return stack(tables, "teacher")


def neuron_table(captured: BlockCapture, parts: Hidden, counts: Sequence[int]) -> pd.DataFrame:
    """The line with the squares of the loudest neurons: a row a number of `neurons`, with `size`, `r2`, `low`, `high`.

    Numbers that the block does not have are left out, and all of its neurons are added.
    """
    numbers = sorted({count for count in counts if count < parts.neurons} | {parts.neurons})
    table = loudest(captured, parts, numbers).to_frame()
    table.insert(0, "neurons", numbers)
    return table


def kernel_table(captured: BlockCapture, rows: Sequence[int], all_kernels: bool = True) -> pd.DataFrame:
    """Learning curves of kernels: a row a `kernel` and number of `rows`, with `r2`, `low`, `high`, `ridge`.

    Args:
        captured: the block, captured with all its rows.
        rows: train rows, ascending; the last for degree 2 alone.
        all_kernels: degree 3 and Gaussian beside degree 2.
    """
    tables = {"degree 2": curve_frame(learning_curve(captured, KERNELS["degree 2"], rows))}
    if all_kernels:
        for name in ("degree 3", "Gaussian"):
            tables[name] = curve_frame(learning_curve(captured, KERNELS[name], rows[:-1]))
    return stack(tables, "kernel")


def product_table(captured: BlockCapture, directions: Sequence[int]) -> pd.DataFrame:
    """All products of leading directions: a row a number of `directions`, with `size`, `r2`, `low`, `high`."""
    table = products(captured, directions).to_frame()
    table.insert(0, "directions", directions)
    return table


def streamed_table(model: PreTrainedModel, rows: TokenRows, block: int, train_rows: Sequence[int]) -> pd.DataFrame:
    """All products, streamed: a row a number of train `rows`, with `r2`, `low`, `high`, `ridge`."""
    captured = capture(model, rows, [block], sample=rows.count)[block]
    return curve_frame(quadratic(captured, train_rows))


def share_table(neurons: pd.DataFrame, probe_gains: Mapping[int, float]) -> pd.DataFrame:
    """What share of a block's quadratic step, from the line to all neurons' squares, some products reach.

    Args:
        neurons: of one block, as `neuron_table` gives it, from the line on.
        probe_gains: rank of a bilinear probe → the share that it explains of what the line leaves.

    Returns:
        A row a measurement: `source` (`neurons`, the loudest ones, or `probe`), number of `products`, `share`.
    """
    line = neurons.r2.iloc[0]
    all_squares = neurons.r2.iloc[-1]
    step = all_squares - line
    left = 1 - line
    # the loudest neurons: (R² − R²_1) / step
    by_neurons = pd.DataFrame()
    by_neurons["products"] = neurons.neurons
    by_neurons["share"] = (neurons.r2 - line) / step
    # a probe explains its share of what is left: share × left / step; types are given, since there may be none
    by_probe = pd.DataFrame()
    by_probe["products"] = pd.Series(list(probe_gains), dtype=int)
    by_probe["share"] = pd.Series(list(probe_gains.values()), dtype=float) * left / step
    return stack({"neurons": by_neurons, "probe": by_probe}, "source")


PROBED = (1, 4, 16, 64)  # ranks of notebook 03's probe that its products are compared at


def all_shares(neurons: pd.DataFrame, swept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> pd.DataFrame:
    """`share_table` of every checked block.

    Args:
        neurons: `neuron_table` of the blocks of several models, with columns `model` and `block`.
        swept: model → block → rank → what share a probe of notebook 03 explains of what the line leaves, as its results
            keep them; blocks that it has not probed have no rows of the source `probe`.

    Returns:
        The tables one below another, with columns `model` and `block`.
    """
    tables = []
    for (model, block), of_block in neurons.groupby(["model", "block"], sort=False):
        by_rank = swept[model].get(str(block), {})
        gains = {}
        for rank in PROBED:
            if str(rank) in by_rank:
                gains[rank] = by_rank[str(rank)]
        shares = share_table(of_block, gains)
        tables.append(shares.assign(model=model, block=block))
    return pd.concat(tables, ignore_index=True)


def not_probed(shares: pd.DataFrame) -> list[tuple[str, int]]:
    """The (model, block) that have no probe of notebook 03 to compare with."""
    missing = []
    for place, table in shares.groupby(["model", "block"], sort=False):
        if "probe" not in set(table.source):
            missing.append(place)
    return missing


def by_degree(spectra: pd.DataFrame, column: str, models: Iterable[str]) -> pd.DataFrame:
    """One column of `spectrum_table` with the degrees k side by side, as `R²_k`: a row a `model` and `block`."""
    table = spectra.pivot_table(index=["model", "block"], columns="degree", values=column)
    table = table.reindex(models, level="model")
    table = table.add_prefix("R²_")
    return table.rename_axis(columns=None)


def largest_miss(table: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """What was found less what was predicted, in the block where they lie farthest apart: a row a model.

    Args:
        table: as of `by_degree`.
        predicted: the same of a prediction.
    """

    def farthest(gap: pd.Series) -> float:
        block = gap.abs().idxmax()
        return gap.loc[block]

    gaps = table - predicted
    return gaps.groupby("model", sort=False).agg(farthest)


def neuron_bounds(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The neurons' bounds of degree 2: a row a checked `model` and `block`.

    Args:
        tables: `spectra` and `neurons` of several models.

    Returns:
        `pooled`, R² of the spectrum's degree 2, and `free`, with every neuron's square weighed anew.
    """
    neurons = tables["neurons"]
    free = neurons.groupby(["model", "block"], sort=False).r2.last()
    spectra = tables["spectra"]
    degree_2 = spectra[spectra.degree == 2]
    pooled = degree_2.set_index(["model", "block"]).r2
    bounds = pd.DataFrame({"pooled": pooled.reindex(free.index), "free": free})
    return bounds.reset_index()


def close_table(bounds: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """How close the neurons' bounds come to all products, by the kernel of degree 2: a row a checked block.

    Args:
        bounds: as of `neuron_bounds`.
        kernels: `kernel_table` of the same blocks.

    Returns:
        `pooled`, `each free`, `all products` (the kernel on its most rows), and `last step`, by how much its last rows
        still raised it.
    """
    of_degree_2 = kernels[kernels.kernel == "degree 2"]
    r2 = of_degree_2.groupby(["model", "block"], sort=False).r2
    table = bounds.set_index(["model", "block"]).rename(columns={"free": "each free"})
    table["all products"] = r2.last()
    table["last step"] = r2.last() - r2.nth(-2).to_numpy()
    return table


def of_blocks(tables: Mapping[str, pd.DataFrame], wanted: Mapping[str, int]) -> dict[str, pd.DataFrame]:
    """Of each table with columns `model` and `block`, the rows of one block a model; the other tables are left out."""
    found = {}
    for kind, table in tables.items():
        if "block" in table:
            found[kind] = table[table.block == table.model.map(wanted)]
    return found


def reach(shares: pd.DataFrame, source: str, threshold: float) -> int | None:
    """The fewest products of one source that reach a share of the quadratic step; None if none of them do.

    Args:
        shares: of one block, as `share_table` gives it.
        source: `neurons` or `probe`.
        threshold: the share to reach.
    """
    of_source = shares[shares.source == source]
    enough = of_source[of_source.share >= threshold]
    if enough.empty:
        return None
    return int(enough.products.min())


def summary(tables: Mapping[str, pd.DataFrame], threshold: float) -> pd.DataFrame:
    """What notebook 10 finds, in words a reader can compare: a row a question, a column a model.

    Args:
        tables: `spectra`, `shares` and `fresh` (the spectrum of the middle block of an untrained model), each with
            columns `model` and, but for `fresh`, `block` beside their own.
        threshold: the share of the quadratic step to reach.

    Returns:
        Texts; those of several numbers are of an early, a middle and a late block.
    """
    columns = {}
    for model, spectra in tables["spectra"].groupby("model", sort=False):
        shares = tables["shares"]
        checked = dict(list(shares[shares.model == model].groupby("block")))  # block → its shares
        answers = _rest_by_degree(spectra)
        answers["rank 16, of degree 2"] = ", ".join(_share_of_rank_16(table) for table in checked.values())
        for source, name in (("neurons", "neurons"), ("probe", "rank")):
            fewest = [_fewest(table, source, threshold) for table in checked.values()]
            answers[f"{name} for {threshold:.0%} of it"] = ", ".join(fewest)
        # the middle block, trained and untrained
        middle = sorted(checked)[len(checked) // 2]
        trained = spectra[spectra.block == middle]
        fresh = tables["fresh"]
        fresh = fresh[fresh.model == model]
        lowest = [f"{value:.2f}" for value in fresh.r2[:2]]
        answers["R² fresh, degree 1 and 2"] = ", ".join(lowest)
        answers["spread, quartiles"] = f"{_quartiles(fresh)} → {_quartiles(trained)}"
        columns[model] = answers
    return pd.DataFrame(columns)


def _quartiles(spectrum: pd.DataFrame) -> str:
    """The quartiles of a block's pre-activations' standard deviations, the median between them."""
    block = spectrum.iloc[0]
    return ", ".join(f"{value:.2f}" for value in (block.spread_lower, block.spread, block.spread_upper))


def _rest_by_degree(spectra: pd.DataFrame) -> dict[str, str]:
    """What share of the rest, which the line leaves, is explained up to each degree, on the mean over blocks."""
    r2 = spectra.pivot_table(index="block", columns="degree", values="r2")
    # (R²_k − R²_1) / (1 − R²_1)
    step = r2.sub(r2[1], axis=0)
    left = 1 - r2[1]
    shares = step.div(left, axis=0).mean()
    return {f"rest by degree {degree}": f"{share:.2f}" for degree, share in shares.items() if degree > 1}


def _share_of_rank_16(shares: pd.DataFrame) -> str:
    """What share of one block's quadratic step the rank-16 probe reaches."""
    of_probe = shares[shares.source == "probe"]
    sixteen = of_probe[of_probe.products == 16].share
    if sixteen.empty:
        return "not probed"
    return f"{sixteen.iloc[0]:.2f}"


def _fewest(shares: pd.DataFrame, source: str, threshold: float) -> str:
    """The fewest products of one block that reach the threshold, or that even the most that were tried do not."""
    tried = shares[shares.source == source].products
    if tried.empty:
        return "not probed"
    enough = reach(shares, source, threshold)
    return f"> {tried.max()}" if enough is None else str(enough)


def training_table(measurements: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The middle block's spectrum on the way through training, of models that recorded it.

    Args:
        measurements: of models, as `training.twins` writes them; those without spectra are left out.

    Returns:
        A row a `family`, `step` and `degree`, with `r2` and the median `spread` of a pre-activation.
    """
    parts = []
    for measured in measurements:
        if "degrees" not in measured["steps"][0]:
            continue
        middle = str(measured["blocks"] // 2)
        for step in measured["steps"]:
            found = step["degrees"][middle]
            table = pd.DataFrame({"degree": range(1, len(found["r2"]) + 1), "r2": found["r2"]})
            parts.append(table.assign(family=measured["family"], step=step["step"], spread=found["spread"]))
    return pd.concat(parts, ignore_index=True)[["family", "step", "degree", "r2", "spread"]]


def stack(tables: Mapping[Any, pd.DataFrame], name: str) -> pd.DataFrame:
    """Tables one below another, their key in a first column of this name."""
    stacked = pd.concat(tables, names=[name])
    with_key = stacked.reset_index(level=0)
    return with_key.reset_index(drop=True)


def stack_curves(curves: Mapping[tuple[str, int], pd.DataFrame]) -> pd.DataFrame:
    """The `streamed_table` of several (model, block) one below another; of none, a table with its columns alone."""
    tables = [curve.assign(model=model, block=block) for (model, block), curve in curves.items()]
    columns = ["model", "block", "rows", "r2", "low", "high", "ridge"]
    if not tables:
        return pd.DataFrame(columns=columns)
    return pd.concat(tables)[columns]


def stack_models(surveys: Mapping[str, Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """The tables of several models' surveys, each stacked with `model` as its first column."""
    first = next(iter(surveys.values()))
    stacked = {}
    for kind in first:
        by_model = {name: tables[kind] for name, tables in surveys.items()}
        stacked[kind] = stack(by_model, "model")
    return stacked


def results(tables: Mapping[str, pd.DataFrame], threshold: float) -> dict[str, Any]:
    """The numbers of notebook 10 as its results file keeps them, model by model and block by block.

    Args:
        tables: `spectra`, `neurons`, `kernels`, `products`, `shares`, `streamed` and `fresh` (the spectrum of an
            untrained model's middle block), each with columns `model` and, but for `fresh`, `block` beside their own.
        threshold: the share of the quadratic step that `reach` asks for.

    Returns:
        Model → `blocks`, `checks`, `fresh`, and `streamed` where there is any.
    """
    found = {}
    for model, spectra in tables["spectra"].groupby("model", sort=False):
        of_model = {kind: table[table.model == model] for kind, table in tables.items() if not table.empty}
        checks = {}
        for block in of_model["neurons"].block.unique():
            of_block = {kind: table[table.block == block] for kind, table in of_model.items() if "block" in table}
            checks[int(block)] = _check_results(of_block, threshold)
        found[model] = {
            "blocks": [_spectrum_results(int(block), table) for block, table in spectra.groupby("block")],
            "checks": checks,
            "fresh": of_model["fresh"].r2.tolist(),
        }
        if "streamed" in of_model and not of_model["streamed"].empty:
            by_block = of_model["streamed"].groupby("block")
            found[model]["streamed"] = {int(block): _curve(table) for block, table in by_block}
    return found


def _spectrum_results(block: int, table: pd.DataFrame) -> dict[str, Any]:
    """One block's spectrum: a list over degrees of each column."""
    spectrum: dict[str, Any] = {"block": block}
    for column in ("spread", "spread_lower", "spread_upper"):
        spectrum[column] = float(table[column].iloc[0])
    for column in ("r2", "low", "high", "hermite"):
        spectrum[column] = table[column].tolist()
    return spectrum


def _check_results(tables: Mapping[str, pd.DataFrame], threshold: float) -> dict[str, Any]:
    """One checked block's kernels, loudest neurons, products of directions, and shares of the quadratic step."""
    numbers: dict[str, Any] = {}
    for kernel, table in tables["kernels"].groupby("kernel"):
        numbers[kernel] = _curve(table)
    for key, kind in (("loudest", "neurons"), ("products", "products")):
        table = tables[kind]
        if not table.empty:
            numbers[key] = {"r2": table.r2.tolist(), "sizes": table["size"].tolist()}
    shares = tables["shares"]
    probe = shares[shares.source == "probe"]
    numbers["probe"] = dict(zip(probe.products.tolist(), probe.share.tolist(), strict=True))
    numbers["reach"] = reach(shares, "neurons", threshold)
    return numbers


def _curve(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A learning curve, a record a number of rows."""
    return table[["rows", "r2", "low", "high", "ridge"]].to_dict("records")
