"""The book's interactive page, its drawing: one Vega-Lite specification and the library that draws it, in one piece.

`charts` lays the rows of `explorer.collect` out with Altair (VanderPlas et al. 2018): a statistic against depth, and
for one chosen block its per-feature R² and its reduced-rank curve. `fragment` writes them, with the whole library
inlined, into the frame `book/explorer.html`, so that the page asks no network. Needs the `dev` extra.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from howlinear.errors import InputError
from howlinear.plots import style

STATISTICS = {
    "r2": "R²_lin, with its 95 % interval",
    "median": "R² of the median feature",
    "rank": "effective rank of the outputs",
    "condition": "condition number of the inputs, log₁₀",
    "delta": "cost of swapping the block for its line, ΔPPL",
}
SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
POWERS = [0, *(2**k for k in range(13))]  # where a logarithmic axis of ranks has its ticks
HERE = "datum.model == model && datum.block == block"


def charts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The page's drawing as a Vega-Lite specification.

    Its signals `corpus`, `statistic`, `model` and `block` say what is shown; each has a control of its own, so that
    nothing hangs on a mouse, and a click on a point sets the last two.

    Raises:
        InputError: no rows.
    """
    if not rows:
        raise InputError("nothing to explore: the profile has no models or no corpora")
    models, corpora, blocks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "corpus", "block"))
    data = alt.Data(values=list(rows))
    panels = [_depth(data, models, corpora[0]), _features(data), _ranks(data)]
    return (
        alt.vconcat(*panels, spacing=24)
        .add_params(*_controls(models, corpora, blocks))
        .configure(background="white", font="system-ui, sans-serif")
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", gridColor="#e8e8e8")
        .configure_title(fontSize=14, anchor="start", offset=8)
        .configure_view(stroke=None)
        .to_dict()
    )


def _controls(models: list[str], corpora: list[str], blocks: list[int]) -> Iterator[alt.Parameter]:
    def choose(name: str, options: list, labels: list[str], value: Any, label: str) -> alt.Parameter:
        bind = alt.binding_select(options=options, labels=labels, name=label)
        return alt.param(name=name, value=value, bind=bind)

    yield choose("corpus", corpora, corpora, corpora[0], "text ")
    yield choose("statistic", list(STATISTICS), list(STATISTICS.values()), "r2", "statistic ")
    yield choose("model", models, models, models[0], "model ")
    yield choose("block", blocks, [str(block) for block in blocks], blocks[len(blocks) // 2], "block ")


def _depth(data: alt.Data, models: list[str], main: str) -> alt.LayerChart:
    """The chosen statistic against depth; a line per model, the chosen block ringed."""
    looks = [style.look(name) for name in models]
    key = alt.Legend(orient="top", title=None, labelFontSize=12, symbolSize=90)
    colour = alt.Color("model:N", scale=alt.Scale(domain=models, range=[look["color"] for look in looks]), legend=key)
    shape = alt.Shape("model:N", scale=alt.Scale(domain=models, range=[SHAPES[look["marker"]] for look in looks]))
    base = (
        alt.Chart(data)
        .transform_filter("datum.corpus == corpus")
        .transform_calculate(value="datum[statistic]")
        .transform_filter("isValid(datum.value)")
        .encode(
            x=alt.X("block:Q", title="block", axis=alt.Axis(tickMinStep=1, format="d", grid=False)),
            y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False, nice=True)),
            color=colour,
        )
    )
    shown = [("model:N", "model", ""), ("block:Q", "block", ""), ("r2:Q", "R²_lin", ".3f"), ("low:Q", "from", ".3f")]
    shown += [("high:Q", "to", ".3f"), ("median:Q", "median feature", ".3f"), ("rank:Q", "effective rank", ".1f")]
    shown += [("condition:Q", "log₁₀ condition", ".1f"), ("delta:Q", "ΔPPL of a swap", "+.2f")]
    hover = [alt.Tooltip(field, title=title, format=form) for field, title, form in shown]
    bars = base.transform_filter("statistic == 'r2'").mark_rule(opacity=0.6).encode(y="low:Q", y2="high:Q")
    points = base.mark_point(filled=True, size=90, opacity=1, cursor="pointer")
    ring = (
        base.transform_filter(HERE)
        .mark_point(size=320, strokeWidth=2.5, shape="circle")
        .encode(color=alt.value("black"))
    )
    elsewhere = f"statistic == 'delta' && corpus != '{main}' ? ': measured on {main} only' : ''"
    title = f"({json.dumps(STATISTICS, ensure_ascii=False)})[statistic] + ({elsewhere})"
    return alt.layer(
        bars,
        base.mark_line(strokeWidth=1.5),
        ring,
        points.encode(shape=shape, tooltip=hover),
        title=alt.TitleParams(alt.ExprRef(title)),
        height=300,
    )


def _panel(data: alt.Data, title: str) -> tuple[alt.Chart, alt.Chart]:
    """What a chart of the chosen block is made of, and the dashed line of its R²_lin."""
    chosen = alt.ExprRef(f"'{title}: ' + model + ', block ' + block")
    named = alt.TitleParams(chosen, subtitle="dashed: R²_lin", subtitleFontSize=12)
    base = alt.Chart(data, height=220, title=named).transform_filter(f"datum.corpus == corpus && {HERE}")
    return base, base.mark_rule(strokeDash=[4, 3], color=style.ACCENT, strokeWidth=2).encode(y="r2:Q")


def _features(data: alt.Data) -> alt.LayerChart:
    """Per-feature R² of the chosen block, falling."""
    base, pooled = _panel(data, "Per-feature R²")
    placed = base.transform_flatten(["features"]).transform_window(place="row_number()")
    placed = placed.transform_joinaggregate(count="count()").transform_calculate(
        share="datum.count > 1 ? 100 * (datum.place - 1) / (datum.count - 1) : 0"
    )
    line = placed.mark_line(strokeWidth=2.5, color=style.GREY).encode(
        x=alt.X("share:Q", title="output features, best first (%)"),
        y=alt.Y("features:Q", title="R² of a feature", scale=alt.Scale(zero=False)),
        tooltip=[alt.Tooltip("share:Q", format=".0f"), alt.Tooltip("features:Q", title="R²", format=".3f")],
    )
    return alt.layer(line, pooled)


def _ranks(data: alt.Data) -> alt.LayerChart:
    """Held-out R² of the best map of every rank."""
    base, full = _panel(data, "Reduced-rank curve")
    line = (
        base.transform_flatten(["ranks", "curve"])
        .mark_line(strokeWidth=2.5, color=style.GREY)
        .encode(
            x=alt.X("ranks:Q", title="rank of the map", scale=alt.Scale(type="symlog"), axis=alt.Axis(values=POWERS)),
            y=alt.Y("curve:Q", title="held-out R²"),
            tooltip=[alt.Tooltip("ranks:Q", title="rank"), alt.Tooltip("curve:Q", title="R²", format=".3f")],
        )
    )
    return alt.layer(line, full)


def fragment(rows: Sequence[Mapping[str, Any]], frame: str) -> str:
    """The page's piece of HTML: the frame with the library and the drawing put in.

    Args:
        rows: of `collect`.
        frame: HTML with the marks `%LIBRARY%` and `%DRAWING%`, each once.

    Raises:
        InputError: a mark is missing, or there are no rows.
    """
    for mark in ("%LIBRARY%", "%DRAWING%"):
        if frame.count(mark) != 1:
            raise InputError(f"the explorer's frame holds {mark} {frame.count(mark)} times: once is needed")
    drawing = json.dumps(charts(rows), separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    library = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    return frame.replace("%LIBRARY%", library).replace("%DRAWING%", drawing)
