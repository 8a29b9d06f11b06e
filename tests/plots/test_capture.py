import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from howlinear.plots import style
from howlinear.plots.capture import INPUTS, diagram, inputs


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.parametrize(("names", "blocks"), [(("gpt2",), 2), (("llama", "gpt2", "pythia", "other"), 5)])
def test_every_column_of_every_model_is_drawn_over_depth(names, blocks):
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {"model": name, "block": block}
        | {column: generator.uniform(1, 9) for column in (*INPUTS, "first_position_out")}
        for name in names
        for block in range(blocks)
    )
    axes = inputs(table).axes
    assert [axis.get_title(loc="left") for axis in axes] == [
        "(a) condition number", "(b) effective rank", "(c) dynamic range", "(d) norm at position 0"
    ]  # fmt: skip
    for axis, column in zip(axes, INPUTS, strict=True):
        for name, line in zip(names, axis.get_lines(), strict=False):
            rows = table[table["model"] == name]
            np.testing.assert_array_equal(line.get_xdata(), rows["block"])
            np.testing.assert_array_equal(line.get_ydata(), rows[column])
            assert line.get_color() == style.look(name)["color"]
    faint = [line for line in axes[3].get_lines() if line.get_alpha() == 0.4]
    np.testing.assert_array_equal(np.concatenate([line.get_ydata() for line in faint]), table["first_position_out"])
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == list(names)
    assert [text.get_text() for text in axes[3].get_legend().get_texts()] == ["input $x$", "output $y$"]
    assert (axes[0].get_yscale(), axes[3].get_yscale()) == ("log", "linear")
    assert [axis.get_xlabel() for axis in axes] == ["", "", "block", "block"]
    assert all(axis.get_ylabel() for axis in axes)


def test_outputs_at_position_0_that_dwarf_the_others_have_a_logarithmic_axis():
    row = dict.fromkeys((*INPUTS, "first_position_out"), 1.0)
    table = pd.DataFrame([{"model": "gpt2", "block": 0} | row, {"model": "gpt2", "block": 1} | row])
    table.loc[1, "first_position_out"] = 500.0
    assert inputs(table).axes[3].get_yscale() == "log"


def test_the_diagram_shows_each_step_and_nothing_leaves_it():
    (axis,) = diagram().axes
    texts = " ".join(text.get_text() for text in axis.texts)
    for step in (
        "attention",
        "norm",
        "FFN",
        "residual stream",
        "split by document",
        "least squares",
        "swap",
        "held out",
    ):
        assert step in texts
    assert len([patch for patch in axis.patches if isinstance(patch, FancyBboxPatch)]) == 9
    assert len([patch for patch in axis.patches if isinstance(patch, FancyArrowPatch)]) == 12
    left, right = axis.get_xlim()
    assert all(left < text.get_position()[0] < right for text in axis.texts)
