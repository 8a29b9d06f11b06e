import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.contour import QuadContourSet
from matplotlib.text import Annotation

from helpers.drawn import bars, every, legend, texts, xy
from howlinear.plots import optimisers, style

MODELS = {"a-gpt2": "#0072B2", "b-llama": "#009E73"}


def scores(scalings=("raw", "whitened"), names=("SGD", "Adam", "Muon")):
    table = every(scaling=scalings, optimiser=names, step=(1, 10, 100))
    return table.assign(reached=np.linspace(-0.5, 0.8, len(table)) ** 3)


@pytest.mark.parametrize("scalings", [("raw",), ("raw", "standardised", "whitened")])
def test_paths_have_a_panel_for_each_scaling_and_a_line_for_each_optimiser(scalings):
    table = scores(scalings)
    figure = optimisers.paths(table, exact=0.6, low=0.55, high=0.7, batch=32)
    assert legend(figure) == ["closed form", "SGD", "Adam", "Muon"]
    for axis, scaling in zip(figure.axes, scalings, strict=True):
        closed, *paths = axis.lines
        np.testing.assert_allclose(closed.get_ydata(), 0.6)
        for line, name in zip(paths, ("SGD", "Adam", "Muon"), strict=True):
            mine = table[(table.scaling == scaling) & (table.optimiser == name)]
            np.testing.assert_allclose(line.get_xydata(), mine[["step", "reached"]])
        assert len({line.get_marker() for line in paths}) == len({line.get_color() for line in paths}) == 3
        band = axis.patches[0].get_bbox()
        assert (band.y0, band.y1) == pytest.approx((0.55, 0.7))


def test_no_optimiser_has_a_colour_that_stands_for_a_model():
    names = [f"way {i}" for i in range(8)]
    (axis,) = optimisers.paths(scores(("raw",), names), 0.6, 0.55, 0.7, 32).axes
    colours = [np.array(to_rgba(line.get_color())) for line in axis.lines[1:]]
    assert len({tuple(colour) for colour in colours}) == 8
    for look in (*style._LOOKS.values(), style._OTHER):
        apart = [np.linalg.norm(colour - to_rgba(look["color"])) for colour in colours]
        assert min(apart) > 0.2


def profiles():
    table = every(model=MODELS, way=("GD", "momentum", "Adam"), block=range(4))
    number = np.arange(len(table))
    return table.assign(condition=10.0 + number, gap=0.001 * number)


def directions():
    table = every(way=("GD, run", "Adam"), loudness=(1e-4, 1e-2, 1.0))
    return table.assign(share=[0.1, 0.2, 0.3] * 2, learned=[0.1, 0.5, 1.0, -5.0, 0.7, 9.0])


def test_shortfalls_are_drawn_by_condition_and_ways_of_training_are_told_apart():
    table = profiles()
    figure = optimisers.shortfall(table, directions(), 50, "a-gpt2, block 3")
    blocks, _ = figure.axes
    assert legend(blocks) == [*MODELS, "GD", "momentum", "Adam"]
    points = [line for line in blocks.lines if len(line.get_xdata()) == 4]
    looks = set()
    for line, ((model, _), group) in zip(points, table.groupby(["model", "way"], sort=False), strict=True):
        np.testing.assert_allclose(line.get_xydata(), group[["condition", "gap"]])
        assert line.get_color() == MODELS[model]
        assert line.get_linestyle() == "None"
        looks.add((line.get_marker(), str(line.get_markerfacecolor()), line.get_markersize()))
    assert len(looks) == 6
    (zero,) = [line for line in blocks.lines if line.get_color() == style.GREY and len(line.get_xdata()) == 2]
    np.testing.assert_allclose(zero.get_ydata(), 0)


def test_directions_are_drawn_by_loudness_with_their_share_as_area_beside_theory():
    table = directions()
    _, modes = optimisers.shortfall(profiles(), table, 50, "").axes
    assert legend(modes) == ["GD, run", "Adam", "GD, theory"]
    for points, way in zip(modes.collections, ("GD, run", "Adam"), strict=True):
        group = table[table.way == way]
        learned = group.learned.clip(-0.2, 1.3)
        np.testing.assert_allclose(points.get_offsets(), np.column_stack([group.loudness, learned]))
        np.testing.assert_allclose(np.diff(points.get_sizes()), 60)  # 600 a unit of share
    colours = [tuple(points.get_edgecolor()[0]) for points in modes.collections]
    assert colours[1] == to_rgba(style.ACCENT)
    assert colours[0] != colours[1]
    (theory,) = [line for line in modes.lines if line.get_label() == "GD, theory"]
    loudness, learned = theory.get_xydata().T
    np.testing.assert_allclose(learned, 1 - (1 - loudness) ** 50, atol=1e-12)
    np.testing.assert_allclose(loudness[[0, -1]], [1e-4, 1])


def test_the_baseline_stands_beside_the_closed_form_block_by_block():
    rows = []
    for model, block, exact in (("planted", None, 0.95), ("mini-gpt2", 0, 0.9), ("mini-gpt2", 10, 0.6)):
        for way, gap in (("SGD", 0.8), ("AdamW", 0.1)):
            row = {"model": model, "block": block, "way": way, "exact": exact, "reached": exact - gap}
            rows.append(row | {"gap": gap, "gap_low": gap - 0.05, "gap_high": gap + 0.02})
    blocks = pd.Series([row["block"] for row in rows], dtype=object)  # None beside whole numbers
    figure = optimisers.baseline(pd.DataFrame(rows).assign(block=blocks))
    (axis,) = figure.axes
    assert texts(axis.get_xticklabels()) == ["planted", "mini-gpt2\n0", "mini-gpt2\n10"]
    assert set(legend(figure)) == {"closed form", "SGD, untuned", "AdamW, untuned"}
    sgd, adam = axis.containers
    np.testing.assert_allclose(xy(sgd)[:, 1], [0.15, 0.1, -0.2])
    np.testing.assert_allclose(xy(adam)[:, 1], [0.85, 0.8, 0.5])
    np.testing.assert_allclose(bars(adam), [[0.83, 0.9], [0.78, 0.85], [0.48, 0.55]])


def test_the_valley_has_contours_and_the_walk_with_its_steps():
    weights = np.linspace(-1, 3, 9)
    first, second = (grid.ravel() for grid in np.meshgrid(weights, weights, indexing="ij"))
    bowl = pd.DataFrame({"first": first, "second": second, "unlearned": (first - 1) ** 2 + (second - 2) ** 2})
    surfaces = pd.concat([bowl.assign(scaling=scaling) for scaling in ("raw", "standardised")])
    walk = pd.DataFrame({"step": [0, 1, 10], "first": [0.0, 1.0, 1.0], "second": [0.0, 2.0, 2.001]})
    walks = pd.concat([walk.assign(scaling=scaling) for scaling in ("raw", "standardised")])
    figure = optimisers.valley(surfaces, walks)
    for axis in figure.axes:
        (path,) = axis.lines
        np.testing.assert_allclose(path.get_xydata(), walk[["second", "first"]])
        steps = [text.get_text() for text in axis.texts if isinstance(text, Annotation)]
        assert steps == ["0", "1"]  # step 10 lies on step 1
        (contours,) = [drawn for drawn in axis.collections if isinstance(drawn, QuadContourSet)]
        half = contours.get_paths()[list(contours.levels).index(0.5)].vertices
        np.testing.assert_allclose(np.hypot(half[:, 0] - 2, half[:, 1] - 1), 0.5**0.5, atol=0.1)
