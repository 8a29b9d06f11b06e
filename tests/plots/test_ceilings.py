from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure

import howlinear as hl
import howlinear.plots
from conftest import fingerprint
from helpers.drawn import bars, every, legend, texts, with_ends
from howlinear.errors import InputError
from howlinear.files import figures, paths, tables
from howlinear.plots import style
from howlinear.plots.ceilings import beside, clouds, profile, profile_and_swaps, solvers


def ceilings(**r2):
    rows = [(model, block, value) for model, values in r2.items() for block, value in enumerate(values)]
    table = with_ends(pd.DataFrame(rows, columns=["model", "block", "r2"]), 0.1, 0.05, "r2")
    return table.assign(r2_untrained=table.r2 / 2, r2_untrained_in_sample=table.r2 / 2 + 0.1)


def test_a_profile_is_drawn_block_by_block_with_its_interval():
    frame = ceilings(gpt2=[0.9, 0.4, 0.6])
    figure = profile(frame.drop(columns=["model", "r2_untrained"]))
    (axis,) = figure.axes
    (container,) = axis.containers
    np.testing.assert_array_equal(container[0].get_xdata(), [0, 1, 2])
    np.testing.assert_array_equal(container[0].get_ydata(), [0.9, 0.4, 0.6])
    np.testing.assert_allclose(bars(container), [[0.8, 0.95], [0.3, 0.45], [0.5, 0.65]])
    assert axis.get_legend() is None  # a single model without a name


def test_a_block_that_massive_rows_decide_has_an_open_point_without_them():
    frame = ceilings(gpt2=[0.9, 0.4, 0.6]).assign(massive_rows=[100, 3, 0], r2_ordinary=[0.5, 0.395, 0.6])
    (axis,) = profile(frame).axes
    (points,) = [line for line in axis.get_lines() if line.get_markerfacecolor() == "white"]
    assert points.get_xydata().tolist() == [[0, 0.5]]  # the second block moves by less than is seen
    assert points.get_color() == style.look("gpt2")["color"]


def test_the_axis_of_costs_begins_just_below_what_is_drawn():
    frame = ceilings(gpt2=[0.9, 0.4]).assign(dppl=[5.0, 300.0], dppl_low=[4.0, 250.0], dppl_high=400.0)
    assert profile_and_swaps(frame).axes[1].get_ylim()[0] == -0.5
    assert profile_and_swaps(frame.assign(dppl_low=-10.0)).axes[1].get_ylim()[0] == -12.0


@pytest.mark.parametrize("named", [True, False])
def test_a_table_with_costs_of_swaps_has_their_panel_too(named):
    frame = ceilings(gpt2=[0.9, 0.4]).assign(dppl=[5.0, np.nan], dppl_low=[4.0, np.nan], dppl_high=[6.0, np.nan])
    frame = frame if named else frame.drop(columns=["model", "r2_untrained"])
    top, bottom = profile(frame).axes
    assert top.containers[0][0].get_ydata().tolist() == [0.9, 0.4]
    assert bottom.containers[0][0].get_xydata().tolist() == [[0.0, 5.0]]  # the other block was not swapped
    given = plt.figure().add_subplot()
    assert profile(frame, given) is given  # Jupyter shows their figure, and would show it again if it were returned
    assert given.figure.axes == [given]  # where one panel is asked for


def test_the_committed_figure_is_what_the_committed_numbers_draw(tmp_path):
    """To the byte: the looks of the embedded models have not changed."""
    blocks = tables.results("minis", "02_ceilings")["blocks"].set_index("model")
    in_order = pd.concat([blocks.loc[[name]] for name in ("mini-gpt2", "mini-pythia", "mini-llama")]).reset_index()
    drawn = figures.save(profile_and_swaps(in_order), tmp_path, "again")
    committed = paths.figures("minis") / "02_ceilings_profile.svg"
    assert fingerprint(drawn.read_bytes()) == fingerprint(committed.read_bytes())


def test_several_models_have_a_line_each_in_their_own_look():
    frame = ceilings(llama=[0.9, 0.4], gpt2=[0.5, 0.6], pythia=[0.1, 0.2], other=[0.3, 0.3])
    (axis,) = profile(frame).axes
    assert [container.get_label() for container in axis.containers] == ["llama", "gpt2", "pythia", "other"]
    colours = [container[0].get_color() for container in axis.containers]
    assert colours == [style.look(name)["color"] for name in ("llama", "gpt2", "pythia", "other")]
    dotted = dotted_lines(axis)
    np.testing.assert_allclose(dotted[0].get_ydata(), [0.45, 0.2])
    np.testing.assert_allclose(dotted[1].get_ydata(), [0.55, 0.3])
    shaded = axis.collections[1].get_paths()[0].vertices  # the first is the first model's error bars
    assert set(np.round(shaded[shaded[:, 0] == 0][:, 1], 6)) == {0.45, 0.55}
    assert set(legend(axis)) == {"untrained, in sample above", "llama", "gpt2", "pythia", "other"}


def dotted_lines(axis):
    return [line for line in axis.get_lines() if line.get_linestyle() == ":" and len(line.get_xdata())]


def test_what_is_one_line_before_training_is_drawn_as_one_and_the_legend_says_so():
    """Two dotted lines less than their own width apart would look like one, and of which of them nobody could say."""
    wide, narrow = ceilings(llama=[0.9, 0.4]), ceilings(gpt2=[0.8, 0.6])
    narrow["r2_untrained_in_sample"] = narrow["r2_untrained"] + 0.009
    absent = wide.assign(r2_untrained=np.nan, r2_untrained_in_sample=np.nan)
    one, two = "untrained, both within 0.01", "untrained, in sample above"
    for frame, lines, entries in (
        (wide, 2, ["llama", two]),
        (narrow, 1, ["gpt2", one]),
        (pd.concat([narrow, wide]), 3, ["gpt2", "llama", two, one]),
        (pd.concat([narrow, absent]), 2, ["gpt2", "llama", one]),
    ):
        (axis,) = profile(frame).axes
        assert len(dotted_lines(axis)) == lines
        assert sorted(legend(axis)) == sorted(entries)
        assert not legend(axis)[0].startswith("untrained")
    (axis,) = profile(narrow).axes
    np.testing.assert_array_equal(dotted_lines(axis)[0].get_ydata(), narrow["r2_untrained"])  # held out, as the axis is


def test_a_profile_without_intervals_has_none_drawn():
    frame = ceilings(gpt2=[0.9, 0.4]).drop(columns=["model", "r2_untrained"])
    frame["r2_low"] = frame["r2_high"] = None
    (container,) = profile(frame).axes[0].containers
    assert container[2] == ()


def test_no_trained_block_lies_below_the_axis_and_a_wide_bracket_of_fresh_ones_does_not_squeeze_them():
    frame = ceilings(gpt2=[0.9, 0.05])  # its interval reaches to −0.05
    assert -0.4 < profile(frame).axes[0].get_ylim()[0] < -0.05
    frame["r2_untrained"] = -0.4
    assert -0.4 < profile(frame).axes[0].get_ylim()[0] < -0.05
    frame["r2_low"] = -0.5
    assert profile(frame).axes[0].get_ylim()[0] < -0.5
    assert profile(ceilings(gpt2=[0.9])).axes[0].get_ylim()[0] == pytest.approx(-0.02)


def with_costs(frame, **costs):
    """The same blocks with what their swaps cost; NaN of a model that is not named."""
    rows = [(model, block, cost) for model, values in costs.items() for block, cost in enumerate(values)]
    swaps = pd.DataFrame(rows, columns=["model", "block", "dppl"])
    return frame.merge(with_ends(swaps, 1, 2, "dppl"), how="left")


@pytest.mark.parametrize("names", [("gpt2",), ("gpt2", "pythia"), ("gpt2", "pythia", "llama", "other")])
def test_the_profile_stands_above_what_its_swaps_cost(names):
    costs = {name: [3.0 + i, -0.5, 0.0] for i, name in enumerate(names)}
    figure = profile_and_swaps(with_costs(ceilings(**{name: [0.9, 0.4, 0.6] for name in names}), **costs))
    top, bottom = figure.axes
    assert len(top.containers) == len(bottom.containers) == len(names)
    shifts = []
    for i, container in enumerate(bottom.containers):
        np.testing.assert_array_equal(container[0].get_ydata(), [3.0 + i, -0.5, 0.0])
        shifts.append(container[0].get_xdata()[0])
    assert sum(shifts) == pytest.approx(0)  # side by side about the block
    assert len(set(shifts)) == len(names)
    assert legend(figure) == [*names, "untrained, in sample above"]


def published(*models):
    table = every(model=models, block=range(3))
    return table.assign(r2_lin=0.1 * table.block + 0.2, dppl_linear=table.block - 1.0)


def test_the_papers_points_are_drawn_and_say_whose_they_are():
    table = published("gpt2", "llama-160m")
    names = ("gpt2", "mini-llama")
    frame = ceilings(**{name: [0.9, 0.4, 0.6] for name in names})
    figure = profile_and_swaps(with_costs(frame, **{name: [1.0, 2.0, 3.0] for name in names}), table)
    top, bottom = figure.axes
    for axis, column in ((top, "r2_lin"), (bottom, "dppl_linear")):
        lines = {line.get_label(): line for line in axis.get_lines() if "the paper" in str(line.get_label())}
        assert list(lines) == ["gpt2, the paper", "llama-160m, the paper"]
        for line in lines.values():
            np.testing.assert_allclose(line.get_ydata(), table[column][:3])
    assert "gpt2, the paper" in legend(figure)


def test_blocks_of_a_deep_model_are_numbered_apart_and_none_lies_below_the_axis():
    frame = ceilings(deep=np.linspace(0.3, -0.6, 40))
    costs = dict.fromkeys(("dppl", "dppl_low", "dppl_high"), 1.0)
    assert profile_and_swaps(frame.assign(**costs)).axes[1].get_xticks().tolist() == [*range(0, 40, 5)]
    *_, last = beside(frame, published("gpt2")).axes
    assert last.get_ylim()[0] < -0.6


def test_models_stand_beside_the_papers_a_panel_each_on_one_axis_from_0():
    frame = ceilings(a=[0.9, 0.4, 0.6], b=[0.5, 0.7]).assign(massive_rows=0, r2_ordinary=[0.9, 0.4, 0.6, 0.5, 0.7])
    frame.loc[2, ["massive_rows", "r2_ordinary"]] = [3, 0.2]
    paper, first, second = beside(frame, published("gpt2")).axes
    for axis in (paper, first, second):
        assert axis.get_ylim()[0] == 0
    np.testing.assert_allclose(paper.get_lines()[0].get_ydata(), published("gpt2")["r2_lin"])
    whole, without = first.get_lines()
    assert whole.get_ydata().tolist() == [0.9, 0.4, 0.6]
    assert (without.get_xdata().tolist(), without.get_ydata().tolist()) == ([2], [0.2])
    assert set(texts(first.texts)) == {"0.90", "0.40"}
    assert set(texts(second.texts)) == {"0.70", "0.50"}


def test_the_solvers_and_the_rule():
    errors = pd.Series({"ours": 1e-10, "float32": 1e-3})
    rule = pd.DataFrame(
        {"threshold": [0.0, 1e-16, 1e-12], "r2": [0.6, 0.61, 0.62], "r2_rounded": [-9.0, -2_000.0, 0.6]}
    )
    figure = solvers(errors, rule, null=1e-13)
    left, right = figure.axes
    assert left.get_lines()[0].get_xdata().tolist() == [1e-10, 1e-3]
    assert texts(left.get_yticklabels()) == ["ours", "float32"]
    as_they_are, rounded, line = right.get_lines()
    np.testing.assert_array_equal(as_they_are.get_xdata(), [1e-16, 1e-12])  # 0 has no place on a logarithmic axis
    np.testing.assert_array_equal(as_they_are.get_ydata(), [0.61, 0.62])
    np.testing.assert_array_equal(rounded.get_ydata(), [-0.5, 0.6])
    assert line.get_xdata()[0] == 1e-13


def test_clouds_are_in_their_models_colour_with_their_line_and_slices():
    across = np.arange(20.0)
    points = pd.DataFrame({"across": across, "up": across**2, "line": across})
    points = points.assign(middle=across // 10, mean=10 * (across // 10))
    figure = clouds({"block 0": points, "block 7": points, "block 9": points}, "mini-llama")
    for axis in figure.axes:
        rows, line, _ = axis.get_lines()
        assert rows.get_color() == style.look("mini-llama")["color"] != line.get_color()
        np.testing.assert_array_equal(rows.get_ydata(), across**2)
        np.testing.assert_array_equal(line.get_ydata(), line.get_xdata())  # what it says lies on the diagonal


def test_profiles_are_drawn_as_their_tables_are_a_line_each(gpt2, rows):
    ffn, attention = (hl.measure(gpt2, rows, site=site) for site in ("ffn", "attention"))

    def lines(figure):
        (axis,) = figure.axes
        drawn = {bars.get_label(): bars.lines[0].get_ydata().tolist() for bars in axis.containers}
        return drawn, axis.get_ylabel()

    (name,) = ffn.to_frame()["model"].unique()
    r2 = {each.site: [found.r2 for found in each.values()] for each in (ffn, attention)}
    assert lines(profile(ffn)) == lines(profile([ffn])) == lines(profile(ffn.to_frame()))
    assert lines(profile(ffn))[0] == {name: r2["ffn"]}
    both, label = lines(profile([ffn, attention, attention]))
    assert [*both.values()] == [r2["ffn"], r2["attention"], r2["attention"]]
    assert len(both) == 3
    assert "attention" not in label
    assert "of attention" in lines(profile(attention))[1]
    # a table of one model on two texts has a line each, as two profiles have; and columns may be left out
    other = replace(ffn, rows=replace(rows, corpus="another text"), solved=attention.solved)
    table = pd.concat([ffn.to_frame(), other.to_frame()]).drop(columns="massive_rows")
    assert lines(profile(table)) == lines(profile([ffn, other]))
    assert [*lines(profile(table))[0].values()] == [r2["ffn"], r2["attention"]]
    for wrong, kind in (([], "nothing"), (3, "int"), ([ffn, "gpt2"], "str"), ("gpt2", "str")):
        with pytest.raises(InputError, match=f"a profile, a list of them or a table.* {kind}"):
            profile(wrong)


@pytest.mark.parametrize("costs", [{}, {"dppl": 0.1, "dppl_low": 0.0, "dppl_high": 0.2}])
def test_jupyter_shows_a_figure_once(costs):
    """As the value of a cell's last line it is shown, and then it is not among the open ones that are shown too."""
    jupyter = DisplayFormatter()
    jupyter.formatters["image/png"].for_type(Figure, lambda figure: b"png")
    drawn = profile(pd.DataFrame({"block": [0, 1], "r2": 0.5, "model": "gpt2"} | costs))
    assert plt.fignum_exists(drawn.number)  # for plt.show()
    shown, _ = jupyter.format(drawn)
    assert "image/png" in shown
    assert not plt.fignum_exists(drawn.number)
