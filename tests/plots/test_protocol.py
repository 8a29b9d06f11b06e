from itertools import product

import numpy as np
import pandas as pd

from helpers.drawn import points
from howlinear.plots import protocol, style

MODELS = ("mini-gpt2", "mini-llama")
LEVELS = {
    "denominator": ("scalar", "feature"),
    "split": ("tail", "documents"),
    "rows": ("8", "limit"),
    "seq_len": (32,),
    "position_0": ("in",),
    "loud": ("in", "rows out"),
    "null": ("1e-15", "1e-12"),
}


def curves():
    rows = [(m, b, f) for m in MODELS for b in range(3) for f in (8, 16, 100)]
    table = pd.DataFrame(rows, columns=["model", "block", "factor"])
    left = 0.2 + 0.1 * table.block
    table["r2_train"] = 1 - left * (1 - 2 / table.factor)
    table["r2"] = 1 - left * (1 + 3 / table.factor)
    return table.assign(r2_limit=1 - left, r2_limit_low=0.97 - left, r2_limit_high=1.02 - left)


def test_rows_needed_shows_both_sides_and_the_limit_of_the_blocks_asked_for():
    table = curves()
    figure = protocol.rows_needed(table, {"mini-gpt2": [2], "mini-llama": [0, 1]})
    first, second = figure.axes
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["(a) mini-gpt2", "(b) mini-llama"]
    mine = table[(table.model == "mini-gpt2") & (table.block == 2)]
    for label, column in (("rows of the fit", "r2_train"), ("held-out rows", "r2"), ("limit", "r2_limit")):
        np.testing.assert_allclose(points(first, label), mine[["factor", column]])
    ends = first.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([end[:, 1] for end in ends], mine[["r2_limit_low", "r2_limit_high"]])
    assert [text.get_text() for text in second.texts] == ["block 0", "block 1"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["rows of the fit", "held-out rows", "limit"]


def universes():
    rows = [dict(zip(LEVELS, levels, strict=True)) for levels in product(*LEVELS.values())]
    table = pd.concat([pd.DataFrame(rows).assign(model=model) for model in MODELS], ignore_index=True)
    spread = 0.3 + 0.2 * (table.denominator == "feature") + 0.05 * (table.rows == "8")
    return table.assign(spread=spread + 0.01 * (table.model == "mini-llama"))


def test_a_multiverse_is_in_order_and_says_what_was_chosen():
    named = {"ours": {choice: levels[-1] for choice, levels in LEVELS.items()}}
    figure = protocol.multiverse(universes(), "spread", 0.25, "spread", named)
    top, bottom = figure.axes
    count = int(np.prod([len(levels) for levels in LEVELS.values()]))
    for model in MODELS:
        across, up = points(top, model).T
        assert across.tolist() == list(range(count))
        assert (np.diff(up) >= -1e-12).all()
    labels = [text.get_text() for text in bottom.get_yticklabels()]
    shown = ["scalar", "feature", "tail", "documents", "8", "limit", "32", "in", "in", "rows out", "1e-15", "1e-12"]
    assert labels == shown
    # the scalar denominator gives the lower half, the feature's the upper
    scalar, feature = ([int(stroke[0, 0]) for stroke in strokes.get_segments()] for strokes in bottom.collections[:2])
    assert scalar == list(range(count // 2))
    assert feature == list(range(count // 2, count))
    assert [text.get_text() for text in top.texts] == ["ours"]


def test_neighbours_are_named_on_either_side():
    named = {name: {choice: levels[0] for choice, levels in LEVELS.items()} for name in ("ours", "paper")}
    named["paper"] |= {"null": "1e-12"}
    names = protocol.multiverse(universes(), "spread", 0.25, "spread", named).axes[0].texts
    left, right = sorted(names, key=lambda text: text.xy[0])
    assert (left.get_ha(), right.get_ha()) == ("right", "left")


def test_a_protocol_that_was_not_measured_is_not_marked():
    named = {"theirs": {"rows": "most"}}
    assert not protocol.multiverse(universes(), "spread", 0.25, "spread", named).axes[0].texts


def test_profiles_have_a_panel_a_model_and_a_line_a_protocol():
    rows = [(m, p, b) for m in MODELS for p in ("paper", "ours") for b in range(4)]
    table = pd.DataFrame(rows, columns=["model", "protocol", "block"])
    r2 = 0.5 + 0.1 * table.block
    figure = protocol.profiles(table.assign(r2=r2, r2_low=r2 - 0.02, r2_high=r2 + 0.03))
    assert len(figure.axes) == 2
    for axis, model in zip(figure.axes, MODELS, strict=True):
        assert axis.get_legend_handles_labels()[1] == ["paper", "ours"]
        ours = points(axis, "ours")
        np.testing.assert_allclose(ours[:, 1], [0.5, 0.6, 0.7, 0.8])
        assert np.abs(ours[:, 0] - np.arange(4)).max() < 0.2  # beside the other's, not upon it
        assert axis.lines[0].get_color() == style.look(model)["color"]


def test_models_of_unlike_depth_have_each_their_own_axis():
    table = pd.DataFrame([("smollm2", "ours", b) for b in range(30)] + [("minilm", "ours", b) for b in range(6)])
    table.columns = ["model", "protocol", "block"]
    deep, shallow = protocol.profiles(table.assign(r2=0.5, r2_low=0.4, r2_high=0.6)).axes
    assert deep.get_xlim()[1] > 29
    assert shallow.get_xlim()[1] < 6
