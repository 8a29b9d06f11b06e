import numpy as np
import pytest

from helpers.drawn import every, texts, with_ends
from howlinear.plots import style, tokens


def table(*models, blocks=3):
    found = every(model=models, block=range(blocks))
    found = found.assign(token_share=0.9 - 0.1 * found["block"], r2_train=0.95, r2_vocabulary=0.92)
    numbers = {"r2": 0.8, "r2_between": 0.9, "r2_within": 0.3 - found["block"], "r2_table": 0.7}
    numbers |= {"r2_both": 0.85, "r2_previous": 0.82}
    return with_ends(found.assign(r2_carried=0.6 - found["block"], **numbers), 0.02, 0.03, *numbers)


@pytest.mark.parametrize(
    ("draw", "columns"),
    [(tokens.parts, ["r2_between", "r2_within"]), (tokens.tables, ["r2_table", "r2_both", "r2_previous"])],
)
def test_each_model_has_a_panel_with_its_columns_and_intervals(draw, columns):
    own = table("mini-gpt2", "mini-llama")
    figure = draw(own)
    for axis, (_, of_model) in zip(figure.axes, own.groupby("model"), strict=True):
        drawn = [curve.lines[0].get_ydata() for curve in axis.containers if hasattr(curve, "has_yerr")]
        np.testing.assert_allclose(np.array(drawn, float), of_model[columns].T)
        low, high = axis.get_ylim()
        assert low >= -0.5  # however far below 0 a block lies
        assert high > 1


def test_bars_are_token_shares_and_the_line_is_black():
    own = table("mini-gpt2")
    (axis,) = tokens.parts(own).axes
    np.testing.assert_allclose([bar.get_height() for bar in axis.patches], own["token_share"])
    black = [line for line in axis.lines if line.get_color() == "black"]
    np.testing.assert_allclose(black[0].get_ydata(), own["r2"])


def test_the_bracket_is_a_band_and_the_vocabulary_in_the_models_colour():
    own = table("mini-gpt2")
    (axis,) = tokens.vocabulary(own).axes
    (band,) = axis.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.8, 0.95))
    marks = {line.get_color(): line.get_ydata() for line in axis.lines}
    np.testing.assert_allclose(marks[style.look("mini-gpt2")["color"]], own["r2_vocabulary"])
    np.testing.assert_allclose(marks[style.GREY], own["r2_carried"])


@pytest.mark.parametrize(("blocks", "models"), [(2, 1), (40, 1), (12, 4)])
def test_any_depth_and_any_number_of_models_is_drawn(blocks, models):
    own = table(*(f"model {number}" for number in range(models)), blocks=blocks)
    for draw in (tokens.parts, tokens.tables, tokens.vocabulary):
        figure = draw(own)
        figure.canvas.draw()
        named = texts(figure.axes[0].get_xticklabels())
        assert named[0] == "0"
        assert len(named) <= 20
