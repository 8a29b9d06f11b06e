"""What the commands print: results as tables, and notes on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from howlinear.app.encoding import plain_console
from howlinear.app.measurement import Measurement
from howlinear.core import profile_statistics
from howlinear.core.ceilings import Ceiling
from howlinear.core.intervals import Estimate
from howlinear.ideas.compression.compress import Compressed
from howlinear.ideas.compression.greedy import Plan
from howlinear.ideas.corpora.agreement import Agreement
from howlinear.ideas.corpora.comparison import Comparison
from howlinear.instrument.baseline import APART, Baseline
from howlinear.instrument.profile import Profile
from howlinear.models.packaged import PACKAGED

BAR = 10  # characters that stand for R²_lin = 1
NO_COSTS = "--swap does not apply: this model has no perplexity, so a swap costs none"
UNTRAINED_HEADING = "before\ntraining"


@dataclass(frozen=True)
class Column:
    """A table column whose numbers are never truncated; its heading has one or two lines.

    If the terminal is too narrow, the columns of least worth are left out. `justify` is `right` or `left`.
    """

    heading: str
    cells: list[str]
    worth: int
    justify: str = "right"


def fit_table(columns: Iterable[Column], width: int, title: str, caption: str = "") -> Table:
    """Build a table of the columns that fit into `width` characters; the caption names those left out."""
    shown = list(columns)
    left_out: list[Column] = []
    console = plain_console(width=10_000)  # to measure a table's full width
    table = _table(shown, title, caption)
    while len(shown) > 1 and console.measure(table).maximum > width:
        least = min(shown, key=lambda column: column.worth)
        shown.remove(least)
        left_out.insert(0, least)
        names = ", ".join(" ".join(column.heading.split()) for column in left_out if column.heading)
        more = f"{caption}\nwith more room: {names}" if names else caption
        table = _table(shown, title, more)
    return table


def _table(columns: Iterable[Column], title: str | None = None, caption: str | None = None) -> Table:
    columns = list(columns)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, title=title, caption=caption)
    for column in columns:
        table.add_column(column.heading, justify=column.justify, no_wrap=True)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def profile_table(measurement: Measurement, width: int) -> Table:
    """Build the table of a profile, a row per block and at most `width` characters wide."""
    caption = "held-out documents; jackknife over document folds; median over features"
    if measurement.profile.costs is not None:
        caption += "; ΔPPL: of the block alone replaced by its map"
    if measurement.profile.tokens is not None:
        caption += "; token share: of the output's variance; R² between token means, and within tokens"
    if measurement.profile.stop is not None:
        caption += f"\n{measurement.profile.stop}"
    return fit_table(profile_columns(measurement), width, headline(measurement), caption)


def headline(measurement: Measurement) -> str:
    """Say in one line what was measured."""
    profile = measurement.profile
    predicts = "no perplexity" if profile.perplexity is None else f"perplexity {profile.perplexity:.2f}"
    model = replace(profile, model=measurement.model).title
    return f"{model} on {profile.rows.corpus}, {profile.rows_used:,} rows: {predicts}"


def profile_columns(measurement: Measurement) -> list[Column]:
    """Build the columns of a profile's table."""
    profile, costs = measurement.profile, measurement.profile.costs
    rows = list(profile.to_frame().itertuples())
    columns = [
        Column("block", [str(row.block) for row in rows], worth=100),
        Column("R²_lin", [_cell(row.r2) for row in rows], worth=99),
        Column("", ["█" * round(BAR * max(0.0, row.r2)) for row in rows], worth=30, justify="left"),
    ]
    if measurement.untrained is not None:
        columns.append(Column(UNTRAINED_HEADING, _untrained_cells(measurement.untrained), worth=94))
    if any(row.massive_rows for row in rows):
        columns += [
            Column("massive\nrows", [f"{row.massive_rows:,}" if row.massive_rows else "" for row in rows], worth=90),
            Column("R² of\nothers", [_cell(row.r2_ordinary) if row.massive_rows else "" for row in rows], worth=91),
        ]
    if all(block.interval is not None for block in profile.defined.values()):
        columns.append(Column("95 % interval", [_interval_cell(block) for block in profile.values()], worth=98))
    if costs is not None:
        changes = [costs[row.block] for row in rows]
        columns += [
            Column("ΔPPL\nof swap", [f"{change.delta:+.2f}" for change in changes], worth=97),
            Column("\n95 % interval", [f"{change.low:+.2f} to {change.high:+.2f}" for change in changes], worth=96),
        ]
    if profile.tokens is not None:
        columns += [
            Column("token\nshare", [_cell(row.token_share) for row in rows], worth=95),
            Column("R²\nbetween", [_cell(row.r2_between) for row in rows], worth=93),
            Column("R²\nwithin", [_cell(row.r2_within) for row in rows], worth=92),
        ]
    columns += [
        Column("median\nR²", [_cell(row.r2_median) for row in rows], worth=60),
        Column("eff.\nrank", [_cell(row.effective_rank, 1) for row in rows], worth=50),
        Column("cond.\nnumber", [_condition(row.condition) for row in rows], worth=40),
        Column("in\nsample", [_cell(row.r2_train) for row in rows], worth=20),
    ]
    limits = [block.limit for block in profile.values()]
    if any(limit is not None for limit in limits):
        cells = ["" if limit is None else f"{limit.value:.3f}" for limit in limits]
        columns.append(Column("more\nrows", cells, worth=10))
    return columns


def _cell(value: float, places: int = 3) -> str:
    """Format a number to `places` decimals, or a dash if it is NaN."""
    return "–" if np.isnan(value) else f"{value:.{places}f}"


def _interval_cell(block: Ceiling) -> str:
    """Format the interval of R²_lin, or a dash if there is none."""
    return "–" if block.interval is None else f"{block.r2_low:.3f} – {block.r2_high:.3f}"


def _untrained_cells(untrained: Baseline) -> list[str]:
    """R²_lin before training: one number where held-out and in-sample R² have met, else both."""
    ends = zip(untrained.held_out, untrained.in_sample, strict=True)
    return [f"{(low + high) / 2:.3f}" if high - low <= APART else f"{low:.2f} – {high:.2f}" for low, high in ends]


def _condition(number: float) -> str:
    return f"{number:.0f}" if number < 1e6 else f"{number:.1e}"


def profile_notes(measurement: Measurement) -> list[str]:
    """Return the sentences below a profile's table."""
    profile, asked = measurement.profile, measurement.rows_asked
    sentences = []
    length = profile.rows.seq_len
    if asked is not None and profile.stop is None and profile.rows_used == round(asked / length) * length < asked:
        sentences.append(f"{profile.rows_used:,} rows of the {asked:,} asked for: whole sequences of {length} tokens")
    sentences.append(profile.outlook)
    if profile.warning is not None:
        sentences.append(profile.warning)
    if profile.rows.note:
        sentences.append(f"text: {profile.rows.note}")
    if measurement.model in PACKAGED and not Path(measurement.model).is_dir():
        sentences.append(f"{measurement.model}: {PACKAGED[measurement.model].about}")
    if measurement.untrained is not None:
        sentences += _untrained_notes(profile, measurement.untrained)
    if measurement.swap and profile.perplexity is None:
        sentences.append(NO_COSTS)
    return sentences


def _untrained_notes(profile: Profile, untrained: Baseline) -> list[str]:
    """Return the sentences on R²_lin before training."""
    r2 = np.array([block.r2 for block in profile.values()])
    lower = (r2 < untrained.held_out).sum()
    higher = (r2 > untrained.in_sample).sum()
    sentences = [
        f"before training, the same architecture with fresh weights on {untrained.rows:,} rows: R²_lin between "
        f"{untrained.held_out.min():.2f} and {untrained.in_sample.max():.2f}; trained, {lower} of {len(profile)} "
        f"blocks lie below what they were and {higher} above"
    ]
    if untrained.apart > APART:
        sentences.append(
            "before training these rows are too few for one number a block: on held-out and on fitted rows R² lies up "
            f"to {untrained.apart:.2f} apart, and the truth between"
        )
    return sentences


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.1f} %"


def spelt(text: str | None) -> str:
    """Make the white space in a token's text visible; a token with only part of a character has an empty text."""
    if not text:
        return "⟨part of a character⟩" if text == "" else "⟨id⟩"
    return text.replace("\n", "↵").replace("\r", "␍").replace("\t", "⇥").replace(" ", "␣")


def comparison_table(compared: Comparison, names: tuple[str, str], width: int) -> Table:
    """Build a table of two profiles block by block, with differences and their intervals if their depths agree."""
    caption = "A − B: held-out documents; jackknife over document folds"
    if compared.first.costs is not None or compared.second.costs is not None:
        caption += "; ΔPPL: of the block alone replaced by its map"
    if compared.agreement is not None:
        caption += "\n* the interval leaves 0 out; one in twenty does by chance"
    return fit_table(comparison_columns(compared), width, f"A: {names[0]}\nB: {names[1]}", caption)


def comparison_columns(compared: Comparison) -> list[Column]:
    """Build the columns of the table of two profiles."""
    blocks = sorted({*compared.first, *compared.second})
    columns = [Column("block", [str(block) for block in blocks], worth=100)]
    for letter, profile, worth in (("A", compared.first, 99), ("B", compared.second, 98)):
        there = [profile.get(block) for block in blocks]
        values = ["" if found is None else _cell(found.r2) for found in there]
        intervals = ["" if found is None else _interval_cell(found) for found in there]
        columns.append(Column(f"R²_lin\n{letter}", values, worth))
        columns.append(Column(f"95 % interval\n{letter}", intervals, worth - 40))
        if profile.costs is not None:
            costs = [f"{profile.costs[block].delta:+.2f}" if block in profile.costs else "" for block in blocks]
            columns.append(Column(f"ΔPPL\n{letter}", costs, worth - 5))
    if compared.agreement is not None:
        found = [compared.agreement.difference.get(block) for block in blocks]  # None for a constant block
        intervals = [f"{each.low:+.3f} to {each.high:+.3f}" if each else "–" for each in found]
        columns += [
            Column("\nA − B", [f"{each.value:+.3f}" if each else "–" for each in found], worth=97),
            Column("95 % interval\nA − B", intervals, worth=96),
            Column("\nsure", ["*" if each and each.excludes(0.0) else "" for each in found], worth=95),
        ]
    return columns


def comparison_notes(compared: Comparison, swap: bool = False) -> list[str]:
    """Return the sentences below a comparison's table; `swap` says whether costs of swaps were asked for."""
    said = []
    if compared.agreement is None:
        said.append(
            f"models of {len(compared.first)} and {len(compared.second)} blocks: no block of the one is that of the "
            "other, so nothing is subtracted"
        )
    else:
        apart = mean_distance(compared.agreement)
        r = compared.agreement.correlation
        over_blocks = "" if r is None else f", correlation over the blocks {r}"
        sure = ", ".join(str(block) for block in compared.agreement.differ)
        said.append(f"mean distance of the two profiles {apart}{over_blocks}")
        said.append(f"A and B differ beyond the interval in {f'blocks {sure}' if sure else 'no block'}")
        said.append(
            "paired: both read the same rows, and each document fold is left out of both at once"
            if compared.paired
            else "not paired: the rows differ, so the two are taken as drawn independently and their variances add"
        )
    for letter, profile in (("A", compared.first), ("B", compared.second)):
        no_costs = NO_COSTS if swap and profile.perplexity is None else None
        said += [f"{letter}: {line}" for line in (profile.outlook, profile.warning, no_costs) if line is not None]
    return said


def mean_distance(agreement: Agreement) -> Estimate:
    """Return the mean distance of two profiles over blocks, in R², its interval from those of the differences."""
    differences = list(agreement.difference.values())
    half = [(each.high - each.low) / 2 for each in differences]
    return profile_statistics.mean_distance(np.array([each.value for each in differences]), np.array(half))


def outcome_table(outcome: Plan | Compressed) -> Table:
    """Build the table of a compression: its steps in order, or how many hidden units each block keeps."""
    if isinstance(outcome, Plan):
        columns = {
            "replaced": [str(count + 1) for count in range(len(outcome.steps))],
            "block": [str(step["block"]) for step in outcome.steps],
            "ΔPPL on text to fit on": [f"{step['dppl']:+.2f}" for step in outcome.steps],
        }
    else:
        columns = {
            "block": [str(block) for block in outcome.units],
            "hidden units": [f"{count:,}" for count in outcome.units.values()],
        }
    return _table([Column(heading, cells, worth=0) for heading, cells in columns.items()])
