"""Results of a command as a self-contained page: figure, table, notes, and how they were measured."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from jinja2 import Environment, FileSystemLoader
from matplotlib.figure import Figure

from howlinear.app.console import Column, headline, profile_columns, profile_notes
from howlinear.app.measurement import Measurement, to_plot
from howlinear.core.correlation import correlation
from howlinear.errors import InputError
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.profile import Profile, numbered
from howlinear.plots import ceilings, style


@dataclass(frozen=True)
class Section:
    """Section of a page on one measurement: notes, a table, and the settings.

    A note is a sentence; the second column of the table is a share, which gets a bar.
    """

    title: str
    notes: list[str]
    columns: list[Column]
    settings: Mapping[str, str]


def render(*measurements: Measurement) -> str:
    """Render the page of a measurement, or of several with one figure for all."""
    first, *_ = profiles = [measurement.profile for measurement in measurements]
    return render_page(
        "page.html.jinja",
        partial(ceilings.profile, to_plot(measurements)),
        *map(_section, measurements),
        costs=any(profile.costs for profile in profiles),
        site=first.site,
        untrained=any(measurement.untrained for measurement in measurements),
        massive=any(solved.massive_rows for profile in profiles for solved in profile.solved.values()),
    )


def _section(measurement: Measurement) -> Section:
    """Build the section on a measurement."""
    profile = measurement.profile
    notes = [note for note in profile_notes(measurement) if note != profile.warning]  # `thoughts` has it
    # R²_lin has its bar behind it, so the bar's own column is left out
    columns = [column for column in profile_columns(measurement) if column.heading]
    return Section(headline(measurement), [*thoughts(profile), *notes], columns, measurement.settings())


def render_page(template: str, draw: Callable[[], Figure], *sections: Section, **more: Any) -> str:
    """Render an HTML page with embedded figure and style; all text is escaped.

    `template`, a file next to this one, is or extends `page.html.jinja`; `more` are the variables it needs itself.
    """
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters["share"] = lambda cell: round(100 * min(1.0, max(0.0, float(cell.strip("–") or 0))))
    environment.filters["cells"] = lambda columns: zip(*(column.cells for column in columns), strict=True)
    return environment.get_template(template).render(figure=_svg_of(draw), sections=sections, **more)


def thoughts(profile: Profile) -> list[str]:
    """Return sentences on a measurement: its span, its costliest block, and what R²_lin does not tell."""
    r2 = {block: found.r2 for block, found in profile.defined.items()}
    least, most = min(r2, key=r2.__getitem__), max(r2, key=r2.__getitem__)
    sentences = []
    if len(r2) == 1:
        sentences.append(f"R²_lin of block {least} is {r2[least]:.3f}; no other block was measured.")
    else:
        sentences.append(f"R²_lin goes from {r2[least]:.3f} (block {least}) to {r2[most]:.3f} (block {most}).")
    costs = {block: cost for block, cost in (profile.costs or {}).items() if block in r2}
    if costs:
        costliest = max(costs, key=lambda block: costs[block].delta)
        cost = costs[costliest]
        more_linear = sum(value > r2[costliest] for value in r2.values())
        beside = f"; {more_linear} of {len(r2)} blocks have a higher one" if len(r2) > 1 else ""
        sentences.append(
            f"The costliest swap is that of block {costliest}: its map costs {cost.delta:+.2f} of perplexity in its "
            f"place (95 % interval {cost.low:+.2f} to {cost.high:+.2f}), with an R²_lin of {r2[costliest]:.3f}{beside}."
        )
    sentences.append(_massive_rows_sentence(profile))
    sentences.append(f"R²_lin alone does not rank blocks by what swapping them costs{_ranking_clause(profile)}.")
    return sentences


def _massive_rows_sentence(profile: Profile) -> str:
    """Say which blocks' R²_lin rests on massive rows."""
    resting = profile.resting_on_massive_rows
    if resting:
        return f"Massive rows decide {numbered(resting)}: {profile.warning}."
    if not any(found.massive_rows for found in profile.solved.values()):
        return f"No block has a massive row, whose output is beyond {MULTIPLE:g} times the median norm."
    return "Some blocks have massive rows, but without them R²_lin would be nearly the same in each."


def _ranking_clause(profile: Profile) -> str:
    """Say how R²_lin and the costs of swaps are related here, or how to find out."""
    costs = {block: cost for block, cost in (profile.costs or {}).items() if block in profile.defined}
    if not profile.costs:
        return "; --swap measures the costs" if profile.perplexity is not None else ""
    r2 = [profile[block].r2 for block in costs]
    try:
        rho = correlation(r2, [change.delta for change in costs.values()], order=True).r
    except InputError:  # too few blocks, or all alike
        return f", and over {len(costs)} block{'s' * (len(costs) > 1)} no correlation says how the two go together here"
    return (
        f": over these {len(costs)} blocks Spearman's ρ of the two is {rho.value:+.2f} (95 % interval "
        f"{rho.low:+.2f} to {rho.high:+.2f}), and it would be −1 if the more linear block were always the cheaper one"
    )


def _svg_of(draw: Callable[[], Figure]) -> str:
    """Draw a figure as an SVG element with its text as outlines, independent of the fonts installed."""
    style.use()
    with mpl.rc_context({"svg.fonttype": "path"}):
        figure = draw()
        drawing = io.StringIO()
        figure.savefig(
            drawing, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.03, metadata={"Date": None}
        )
    plt.close(figure)
    _, svg = drawing.getvalue().split("<svg", maxsplit=1)  # the prologue is for stand-alone files
    return f"<svg{svg}"
