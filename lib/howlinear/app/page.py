"""A measurement as one page of HTML: figure, table, what to think of it, how it was measured. It loads nothing."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from jinja2 import Environment

from howlinear.app.console import Column, headline
from howlinear.app.fresh import columns_of, frame_of
from howlinear.core.correlation import correlation
from howlinear.errors import InputError
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.perplexity import Change
from howlinear.instrument.profile import Profile
from howlinear.plots import ceilings, style

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --bar: #cfe3f1; --line: #d0d0d0; --quiet: #5a5a5a; }
@media (prefers-color-scheme: dark) {
  :root { --bar: #1d4059; --line: #444; --quiet: #a8a8a8; }
  figure svg { filter: invert(1) hue-rotate(180deg); }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin-top: 2rem; }
figure { margin: 1.5rem 0; }
figure svg { width: 100%; max-width: 34rem; height: auto; }
figcaption, .quiet { color: var(--quiet); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .15rem .45rem; text-align: right; }
td { white-space: nowrap; }
th { vertical-align: bottom; border-bottom: 1px solid var(--line); }
td.r2 { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)); min-width: 5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .9rem; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>R²<sub>lin</sub> of a feed-forward block is the share of its output that the least-squares affine map of its input
explains on held-out text: 1 for a block that is a straight line there, 0 for one whose best guess is its mean.</p>
<figure role="img" aria-label="R²_lin of every block; the table below has the numbers">
{{ figure | safe }}
<figcaption>R²<sub>lin</sub> over depth{% if costs %}, and what it costs in perplexity to put each block's map in its
place, alone{% endif %}. Bars are 95 % intervals over document folds{% if massive %}; open points leave out a few rows
of massive outputs{% endif %}{% if fresh %}; dotted is the same architecture before training, on held-out rows (below)
and on the rows of the fit (above){% endif %}.</figcaption>
</figure>
<h2>What to think of it</h2>
<ul>
{% for note in notes %}<li>{{ note }}</li>
{% endfor %}</ul>
<h2>Block by block</h2>
<div class="wide" tabindex="0">
<table>
<thead><tr>{% for column in columns %}<th scope="col">{{ column.heading }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for cell in row %}<td\
{% if loop.index0 == 1 %} class="r2" style="--share: {{ cell | share }}%"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
</div>
<p class="quiet">Intervals: jackknife over document folds. Median: over output features. Effective rank: of the held-out
outputs. Condition number: of the inputs. In sample: R² of the rows that the map was fitted on. More rows: what
R²<sub>lin</sub> tends to with ever more of them.</p>
<h2>How it was measured</h2>
<dl>
{% for name, value in about.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}</dl>
</body>
</html>
"""


def render(
    profile: Profile,
    model: str,
    notes: Sequence[str],
    about: Mapping[str, str],
    costs: Mapping[int, Change] | None = None,
    fresh: Baseline | None = None,
) -> str:
    """The page.

    Args:
        profile: what was measured.
        model: what to call the model.
        notes: what else there is to say, a sentence each.
        about: how it was measured, by name.
        costs: block → what its swap costs in perplexity, where that was measured.
        fresh: R²_lin before training, where that was measured.

    Returns:
        HTML with figure and style in it; whatever it is given is shown as text.
    """
    columns = [column for column in columns_of(profile, costs, fresh) if column.heading]  # R²_lin has its bar behind it
    environment = Environment(autoescape=True)
    environment.filters["share"] = lambda cell: round(100 * min(1.0, max(0.0, float(cell))))
    return environment.from_string(TEMPLATE).render(
        title=headline(profile, model),
        figure=_drawn(profile, model, costs, fresh),
        notes=[*thoughts(profile, costs), *(note for note in notes if note != profile.warning)],
        columns=[_in_one_line(column) for column in columns],
        rows=list(zip(*(column.cells for column in columns), strict=True)),
        about=about,
        costs=costs,
        fresh=fresh,
        massive=profile.to_frame()["massive_rows"].any(),
    )


def thoughts(profile: Profile, costs: Mapping[int, Change] | None = None) -> list[str]:
    """What to think of a measurement, a sentence each: its span, its dearest block, and what R²_lin does not tell.

    Args:
        profile: what was measured.
        costs: block → what its swap costs in perplexity, where that was measured.
    """
    r2 = {block: found.r2 for block, found in profile.items()}
    least, most = min(r2, key=r2.__getitem__), max(r2, key=r2.__getitem__)
    said = []
    if len(r2) == 1:
        said.append(f"R²_lin of block {least} is {r2[least]:.3f}; no other block was measured.")
    else:
        said.append(f"R²_lin goes from {r2[least]:.3f} (block {least}) to {r2[most]:.3f} (block {most}).")
    if costs:
        dearest = max(costs, key=lambda block: costs[block].delta)
        cost = costs[dearest]
        more_linear = sum(value > r2[dearest] for value in r2.values())
        beside = f"; {more_linear} of {len(r2)} blocks have a higher one" if len(r2) > 1 else ""
        said.append(
            f"The dearest swap is that of block {dearest}: its map costs {cost.delta:+.2f} of perplexity in its place "
            f"(95 % interval {cost.low:+.2f} to {cost.high:+.2f}), with an R²_lin of {r2[dearest]:.3f}{beside}."
        )
    said.append(_of_massive_rows(profile))
    said.append(f"R²_lin alone does not rank blocks by what swapping them costs{_ranked(profile, costs)}.")
    return said


def _of_massive_rows(profile: Profile) -> str:
    """Which blocks' R²_lin rests on massive rows."""
    resting = profile.resting_on_massive_rows
    if resting:
        blocks = f"block{'s' * (len(resting) > 1)} {', '.join(map(str, resting))}"
        return f"Massive rows decide {blocks}: {profile.warning}."
    if not any(found.massive_rows for found in profile.solved.values()):
        return f"No block has a massive row, whose output is beyond {MULTIPLE:g} times the median norm."
    return "Some blocks have massive rows, but without them R²_lin would be nearly the same in each."


def _ranked(profile: Profile, costs: Mapping[int, Change] | None) -> str:
    """How R²_lin and the costs of swaps go together here, or how to find out."""
    if not costs:
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


def _in_one_line(column: Column) -> Column:
    return Column(" ".join(column.heading.split()), column.cells, column.worth)


def _drawn(profile: Profile, model: str, costs: Mapping[int, Change] | None, fresh: Baseline | None) -> str:
    """The figure as an SVG element, its letters as outlines: the same whatever fonts there are."""
    style.use()
    name = Path(model).name
    frame = frame_of(profile, fresh=fresh).assign(model=name)
    with mpl.rc_context({"svg.fonttype": "path"}):
        if costs is None:
            figure = ceilings.profile(frame)
        else:
            changes = [{"model": name, "block": block, **change.to_dict()} for block, change in costs.items()]
            figure = ceilings.profile_and_swaps(frame, pd.DataFrame(changes))
        drawing = io.StringIO()
        figure.savefig(
            drawing, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.03, metadata={"Date": None}
        )
    plt.close(figure)
    _, svg = drawing.getvalue().split("<svg", maxsplit=1)  # what comes before is for a file of its own
    return f"<svg{svg}"
