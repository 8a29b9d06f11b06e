import numpy as np
import pandas as pd

from helpers.drawn import bars, every, with_ends
from howlinear.plots import compress


def race(models=("m", "n"), methods=("ours", "rival"), far=2.0):
    table = every(model=models, method=methods, kept=(0.8, 0.95))
    number = table["method"].map(list(methods).index)
    return with_ends(table.assign(ratio=1 + (1 - table["kept"]) * (number + 1) * far), 0.01, 0.02, "ratio")


def names(axis):
    return {text.get_text(): text.get_position()[1] for text in axis.texts}


def test_a_panel_per_model_and_a_line_per_method():
    table = race()
    figure = compress.pareto(table, ["ours", "rival"])
    for axis in figure.axes:
        for container, method in zip(axis.containers, ["ours", "rival"], strict=True):
            rows = table[(table.model == "m") & (table.method == method)].iloc[::-1]  # the largest copy first
            np.testing.assert_allclose(container[0].get_xydata(), np.stack([100 * rows.kept, rows.ratio], 1))
            np.testing.assert_allclose(bars(container), rows[["ratio_low", "ratio_high"]])
        assert set(names(axis)) == {"ours", "rival"}
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines if len(line.get_xdata()) == 2}
    assert len(looks) >= 2


def test_only_what_is_asked_for_is_drawn_and_what_has_no_row_is_left_out():
    (axis,) = compress.pareto(race(["m"], ["a", "b", "c"], far=1.0), ["c", "none"]).axes
    assert set(names(axis)) == {"c"}


def test_without_any_smaller_model_there_is_a_sentence():
    figure = compress.pareto(pd.DataFrame({"model": ["encoder"], "ratio": [np.nan]}), ["own units"])
    assert figure.axes == []
    assert len(figure.texts) == 1


def test_a_line_that_leaves_the_panel_says_how_far_it_goes():
    (axis,) = compress.pareto(race(["m"], ["near", "far"], far=20.0), ["near", "far"], top=3.0).axes
    assert set(names(axis)) == {"near (5)", "far (9)"}
    assert axis.get_ylim()[1] == 3
    assert max(names(axis).values()) <= 3 + 1e-9


def test_names_lie_apart_and_as_near_as_they_can():
    np.testing.assert_allclose(compress.spread_labels([0.1, 0.5, 0.9], 0.1), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(compress.spread_labels([0.5, 0.5], 0.1), [0.45, 0.55])
    places = compress.spread_labels([0.97, 0.98, 1.0], 0.1)
    np.testing.assert_allclose(places, [0.8, 0.9, 1.0])


def test_a_point_beyond_the_panel_has_no_bar_in_it():
    table = race(["m"], ["far"], far=20.0)
    table["low"] = 1.0
    (axis,) = compress.pareto(table, ["far"], top=3.0).axes
    segments = axis.containers[0].lines[2][0].get_segments()
    assert [len(segment) > 0 for segment in segments] == [True, False]  # the smaller copy is not seen
