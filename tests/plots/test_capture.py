import numpy as np
import pytest

from helpers.drawn import every, legend
from howlinear.plots import style
from howlinear.plots.capture import INPUTS, inputs


@pytest.mark.parametrize(("names", "blocks"), [(("gpt2",), 2), (("llama", "gpt2", "pythia", "other"), 5)])
def test_every_column_of_every_model_is_drawn_over_depth(names, blocks):
    generator = np.random.default_rng(0)
    table = every(model=names, block=range(blocks))
    for column in (*INPUTS, "first_position_out"):
        table[column] = generator.uniform(1, 9, len(table))
    figure = inputs(table)
    axes = figure.axes
    for axis, column in zip(axes, INPUTS, strict=True):
        for name, line in zip(names, axis.get_lines(), strict=False):
            rows = table[table["model"] == name]
            np.testing.assert_array_equal(line.get_xdata(), rows["block"])
            np.testing.assert_array_equal(line.get_ydata(), rows[column])
            assert line.get_color() == style.look(name)["color"]
    assert legend(figure) == list(names)
    assert (axes[0].get_yscale(), axes[3].get_yscale()) == ("log", "linear")


def test_outputs_at_position_0_that_dwarf_the_others_have_a_logarithmic_axis():
    row = dict.fromkeys((*INPUTS, "first_position_out"), 1.0)
    table = every(model=["gpt2"], block=range(2)).assign(**row)
    table.loc[1, "first_position_out"] = 500.0
    assert inputs(table).axes[3].get_yscale() == "log"
