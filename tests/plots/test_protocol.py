import numpy as np
import pandas as pd

from helpers.drawn import every, legend, points, texts, with_ends
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
    table = every(model=MODELS, block=range(3), factor=(8, 16, 100))
    left = 0.2 + 0.1 * table.block
    table["r2_train"] = 1 - left * (1 - 2 / table.factor)
    table["r2"] = 1 - left * (1 + 3 / table.factor)
    return with_ends(table.assign(r2_limit=1 - left), 0.03, 0.02, "r2_limit")


def test_rows_needed_shows_both_sides_and_the_limit_of_the_blocks_asked_for():
    table = curves()
    figure = protocol.rows_needed(table, {"mini-gpt2": [2], "mini-llama": [0, 1]})
    first, second = figure.axes
    mine = table[(table.model == "mini-gpt2") & (table.block == 2)]
    for label, column in (("rows of the fit", "r2_train"), ("held-out rows", "r2"), ("limit", "r2_limit")):
        np.testing.assert_allclose(points(first, label), mine[["factor", column]])
    assert texts(second.texts) == ["block 0", "block 1"]
    assert legend(figure) == ["rows of the fit", "held-out rows", "limit"]


def universes():
    table = every(model=MODELS, **LEVELS)
    spread = 0.3 + 0.2 * (table.denominator == "feature") + 0.05 * (table.rows == "8")
    return table.assign(spread=spread + 0.01 * (table.model == "mini-llama"))


def test_a_multiverse_is_in_order_and_says_what_was_chosen():
    named = {"ours": {choice: levels[-1] for choice, levels in LEVELS.items()}, "not measured": {"rows": "most"}}
    figure = protocol.multiverse(universes(), "spread", 0.25, "spread", named)
    top, bottom = figure.axes
    count = int(np.prod([len(levels) for levels in LEVELS.values()]))
    for model in MODELS:
        across, up = points(top, model).T
        assert across.tolist() == list(range(count))
        assert (np.diff(up) >= -1e-12).all()
    shown = ["scalar", "feature", "tail", "documents", "8", "limit", "in", "rows out", "1e-15", "1e-12"]  # real choices
    assert texts(bottom.get_yticklabels()) == shown
    # the scalar denominator gives the lower half, the feature's the upper
    scalar, feature = ([int(stroke[0, 0]) for stroke in strokes.get_segments()] for strokes in bottom.collections[:2])
    assert scalar == list(range(count // 2))
    assert feature == list(range(count // 2, count))
    assert texts(top.texts) == ["ours"]


def test_a_model_without_the_number_is_not_drawn_and_none_of_them_is_a_sentence():
    table = universes()
    lone = table.assign(spread=table["spread"].where(table["model"] == MODELS[0]))
    top, _ = protocol.multiverse(lone, "spread", 0.25, "spread", {}).axes
    assert [line.get_label() for line in top.lines if line.get_label() in MODELS] == [MODELS[0]]
    assert not protocol.multiverse(table.assign(spread=np.nan), "spread", 0.25, "spread", {}).axes


def test_neighbours_are_named_on_either_side():
    named = {name: {choice: levels[0] for choice, levels in LEVELS.items()} for name in ("ours", "paper")}
    named["paper"] |= {"null": "1e-12"}
    names = protocol.multiverse(universes(), "spread", 0.25, "spread", named).axes[0].texts
    left, right = sorted(names, key=lambda text: text.xy[0])
    assert (left.get_ha(), right.get_ha()) == ("right", "left")


def test_profiles_have_a_panel_a_model_and_a_line_a_protocol():
    table = every(model=MODELS, protocol=("paper", "ours"), block=range(4))
    figure = protocol.profiles(with_ends(table.assign(r2=0.5 + 0.1 * table.block), 0.02, 0.03, "r2"))
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
