import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from helpers.drawn import bars, every, legend, texts, titles, with_ends
from howlinear.plots import compression, style

# --- signals and costs


@pytest.fixture
def points():
    return pd.DataFrame(
        {
            "model": ["mini-gpt2"] * 3 + ["other"] * 2,
            "nats": [0.5, 0.0, 0.01, 2.0, -1.0],
            "said": [0.4, 0.02, 0.0, 1.5, 0.3],
            "else": [1.0, 2, 3, 4, 5],
        }
    )


SIGNALS = [
    {"column": "else", "label": "one", "title": "first"},
    {"column": "said", "label": "two", "title": "second", "exact": True},
]


def test_a_point_per_block_and_what_is_too_low_lies_at_the_floor(points):
    figure = compression.signal_against_cost(points, SIGNALS, floor=1e-3)
    left, right = figure.axes
    gpt2, other = left.lines
    np.testing.assert_allclose(gpt2.get_xydata(), [[1, 0.5], [2, 1e-3], [3, 0.01]])
    np.testing.assert_allclose(other.get_xydata(), [[4, 2], [5, 1e-3]])
    np.testing.assert_allclose(right.lines[0].get_xydata(), [[0.4, 0.5], [0.02, 1e-3], [1e-4, 0.01]])
    assert legend(figure) == ["mini-gpt2", "other"]


def test_only_a_signal_in_the_unit_of_the_costs_has_a_diagonal(points):
    left, right = compression.signal_against_cost(points, SIGNALS, floor=1e-3).axes
    assert len(left.lines) == 2
    assert len(right.lines) == 3
    np.testing.assert_allclose(right.lines[2].get_xydata(), [[1e-3, 1e-3], [2, 2]])
    _, right = compression.signal_against_cost(points[points["nats"] > 0.1], SIGNALS, floor=1e-3).axes
    np.testing.assert_allclose(right.lines[2].get_xydata(), [[0.5, 0.5], [2, 2]])  # as far as there are points


# --- thin maps


def thin(models=("mini-gpt2", "mini-llama"), blocks=(0, 5)):
    table = every(model=models, block=blocks, rank=(1, 2, 4))
    i, j = table.model.map(list(models).index), table.block.map(list(blocks).index)
    table = table.assign(share=0.01 * table["rank"], r2=0.1 * table["rank"] + 0.01 * i + 0.02 * j)
    points = with_ends(table.assign(delta=3 / table["rank"] - 0.01 * j), 0.1, 0.3, "delta")
    return with_ends(points[points.share < 0.03], 0.05, 0.05, "r2"), points


def test_curves_lie_above_and_costs_below():
    curves, points = thin()
    figure = compression.reduced_rank(curves, points)
    axes = np.array(figure.axes).reshape(2, 2)
    top, bottom = axes[:, 1]
    here = points[points.block == 5]
    for i, (model, rows) in enumerate(here.groupby("model", sort=False)):
        line, full = top.lines[2 * i : 2 * i + 2]
        drawn = curves[(curves.model == model) & (curves.block == 5)]
        np.testing.assert_array_equal(line.get_xydata(), drawn[["share", "r2"]])
        np.testing.assert_array_equal(full.get_xydata(), rows[["share", "r2"]].tail(1))
        band = top.collections[i].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == pytest.approx((drawn.r2_low.min(), drawn.r2_high.max()))
        data = bottom.containers[i][0]
        np.testing.assert_array_equal(data.get_xydata(), rows[["share", "delta"]])
        assert to_hex(data.get_color()) == style.look(model)["color"].lower()
    assert bottom.get_ylim()[0] == pytest.approx(points.delta.abs().min() / 3)
    assert legend(figure) == ["mini-gpt2", "mini-llama"]


@pytest.mark.parametrize(
    ("blocks", "places"), [([3], ["first"]), ([0, 1], ["first", "last"]), ([0, 6, 11], ["first", "middle", "last"])]
)
def test_there_is_a_column_for_every_place(blocks, places):
    figure = compression.reduced_rank(*thin(["mini-gpt2"], blocks))
    assert [title.split(") ")[-1] for title in titles(figure)] == [f"{place} block" for place in places]
    assert len(figure.axes) == 2 * len(places)


# --- several blocks at once


def at_once(models, ways):
    table = every(model=models, way=ways, count=(1, 2))
    i, j = table["model"].map(list(models).index), table["way"].map(list(ways).index)
    table = table.assign(share=1 - 0.1 * table["count"], delta=table["count"] + i - 0.2 * j)
    return with_ends(table, 0.5, 0.25, "delta")


@pytest.mark.parametrize(("models", "ways"), [(["m"], ["x"]), (["m", "n"], ["x", "y", "z"]), ([*"mnopq"], [*"uvwxyz"])])
def test_a_panel_per_model_and_a_line_per_way(models, ways):
    table = at_once(models, ways)
    figure = compression.frontier(table)
    assert legend(figure) == ways
    for axis, model in zip(figure.axes, models, strict=True):
        for container, way in zip(axis.containers, ways, strict=True):
            rows = table[(table.model == model) & (table.way == way)]
            np.testing.assert_allclose(container[0].get_xydata(), np.stack([100 * rows.share, rows.delta], 1))


# --- healing


def test_healing_draws_a_point_with_its_interval_for_every_layer_and_model():
    layers = ["line", "line, healed", "original, healed"]
    table = every(model=("mini-gpt2", "mini-llama"), layer=layers).assign(delta=[2.0, -1.0, -3.0, 3.0, 0.0, -2.0])
    figure = compression.healing(with_ends(table, 0.5, 1, "delta"))
    (axis,) = figure.axes
    assert texts(axis.get_yticklabels()) == layers
    assert legend(figure) == ["mini-gpt2", "mini-llama"]
    first, second = axis.containers
    np.testing.assert_allclose(np.asarray(first.lines[0].get_xdata(), float), [2, -1, -3])
    np.testing.assert_allclose(np.asarray(second.lines[0].get_xdata(), float), [3, 0, -2])
    np.testing.assert_allclose(np.diff(np.asarray(first.lines[0].get_ydata(), float)), -1)
    np.testing.assert_allclose(bars(first, across=True), [[1.5, 3], [-1.5, 0], [-3.5, -2]])


# --- nothing to draw


def test_where_a_table_is_empty_a_figure_says_so_in_a_sentence(points):
    curves, thin_points = thin()
    figures = [
        compression.signal_against_cost(points[:0], SIGNALS, floor=1e-3),
        compression.reduced_rank(curves[:0], thin_points[:0]),
        compression.frontier(at_once("m", "x")[:0]),
        compression.healing(points[:0]),
    ]
    for figure in figures:
        assert not figure.axes
        assert len(figure.texts) == 1
