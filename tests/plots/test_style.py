import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.drawn import bars, every, legend, titles
from howlinear.plots import style


def test_a_family_looks_the_same_at_every_size_and_unlike_others():
    assert style.look("mini-gpt2") == style.look("gpt2") | {"label": "mini-gpt2"}
    assert style.look("mini-pythia")["color"] == style.look("pythia-160m")["color"]
    looks = [style.look(name) for name in ("gpt2", "pythia", "llama", "other")]
    for key in ("color", "marker", "linestyle"):
        assert len({look[key] for look in looks}) == len(looks)


def test_any_two_models_are_told_apart_by_colour_and_by_marker():
    names = ["gpt2", "gpt2-medium", "mine", "yours", "pythia-70m", "pythia-160m", "llama", "gpt2-xl"]
    looks = style.looks(names)
    assert list(looks) == names
    for key in ("color", "marker"):
        assert len({str(look[key]) for look in looks.values()}) == len(names)
    assert {name: looks[name] for name in ("gpt2", "llama", "mine")} == {
        name: style.look(name) for name in ("gpt2", "llama", "mine")
    }
    assert style.looks(["a", "a"]) == {"a": style.look("a")}


@pytest.mark.parametrize("name", ["_private", r"$\frac$", "$1", "plain"])
def test_a_name_is_in_the_legend_whatever_it_means_to_matplotlib(name):
    figure, axis = plt.subplots()
    for look in (style.look(name), style.looks([name])[name]):
        axis.plot([0], [0], **look)
    axis.legend()
    figure.canvas.draw()  # fails where a formula cannot be read
    shown = [text.get_text().replace("$\\_$", "_").replace(r"\$", "$") for text in axis.get_legend().get_texts()]
    assert shown == [name, name]


def test_the_models_of_a_run_keep_their_looks_in_every_figure():
    style.use(["gpt2", "gpt2-medium"])
    medium = style.look("gpt2-medium")
    assert medium["color"] != style.look("gpt2")["color"] == style.look("mini-gpt2")["color"]
    assert style.looks(["gpt2-medium"]) == {"gpt2-medium": medium}  # alone too
    style.use()
    assert style.look("gpt2-medium")["color"] == style.look("gpt2")["color"]


def test_error_bars_reach_from_the_value_to_both_ends():
    table = pd.DataFrame({"r2": [1, 2], "r2_low": [0.5, 1.75], "r2_high": [3.0, 2.0]})
    np.testing.assert_array_equal(style.error_bars(table, "r2"), [[0.5, 0.25], [2.0, 0.0]])
    axis = plt.figure().add_subplot()
    style.draw_intervals(axis, [7, 8], table, "r2")
    (drawn,) = axis.containers
    assert drawn[0].get_xydata().tolist() == [[7, 1], [8, 2]]
    assert bars(drawn).tolist() == [[0.5, 3], [1.75, 2]]


def test_the_papers_points_lie_behind_thin_and_grey_in_the_marker_of_their_model():
    axis = plt.figure().add_subplot()
    table = every(model=("gpt2", "llama-160m"), block=range(2)).assign(r2_lin=[0.1, 0.2, 0.3, 0.4])
    style.draw_published(axis, table, "block", "r2_lin")
    style.draw_published(axis, None, "block", "r2_lin")
    (ours,) = axis.plot([0, 1])
    *papers, _ = axis.lines
    assert [line.get_label() for line in papers] == ["gpt2, the paper", "llama-160m, the paper"]
    assert [line.get_ydata().tolist() for line in papers] == [[0.1, 0.2], [0.3, 0.4]]
    for line, model in zip(papers, ("gpt2", "llama"), strict=True):
        assert line.get_color() == style.GREY
        assert line.get_marker() == style.look(model)["marker"]
        assert line.get_linewidth() < ours.get_linewidth()
        assert line.get_zorder() < ours.get_zorder()


def test_rows_of_panels_are_as_even_as_can_be():
    assert [style.abreast(count) for count in range(1, 8)] == [1, 2, 3, 2, 3, 3, 3]
    assert [style.abreast(count, most=2) for count in (1, 2, 3, 4)] == [1, 2, 2, 2]


def test_a_grid_has_a_titled_panel_for_each_name_and_nothing_in_the_rest():
    figure, panels = style.panel_grid(["a", "b", "c"], 2.0, "up", most=2)
    assert titles(figure) == ["(a) a", "(b) b", "(c) c"]
    assert [axis.axison for axis in figure.axes] == [True, True, True, False]
    assert [panel.get_ylabel() for panel in panels.values()] == ["up", "", "up"]


def test_a_legend_names_what_several_panels_show_once():
    figure, (left, right) = plt.subplots(1, 2)
    for panel, names in ((left, "ab"), (right, "bc")):
        for name in names:
            panel.plot([0, 1], label=name)
    style.legend(left, right)
    assert legend(figure) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("blocks", "few", "ticks"), [(2, 2, [0, 1]), (4, 4, [0, 1, 2, 3]), (5, 4, [0, 2, 4]), (18, 2, [0, 5, 10, 15])]
)
def test_of_more_blocks_fewer_are_marked(blocks, few, ticks):
    axis = plt.figure().add_subplot()
    style.mark_blocks(axis, pd.Series(range(blocks)), few)
    assert axis.get_xticks().tolist() == ticks


@pytest.mark.parametrize("blocks", [1, 2, 48])
def test_blocks_have_a_few_whole_numbers(blocks):
    figure, axis = plt.subplots()
    axis.plot(range(blocks), range(blocks))
    style.number_blocks(axis)
    figure.canvas.draw()
    ticks = axis.get_xticks()
    assert 1 <= len(ticks) <= 10
    assert all(float(tick).is_integer() for tick in ticks)


def test_models_stand_side_by_side_about_their_place():
    assert style.side_by_side(["a", "b", "a", "c"], 0.5) == {"a": -0.5, "b": 0.0, "c": 0.5}
    assert style.side_by_side(["a"], 0.5) == {"a": 0.0}
