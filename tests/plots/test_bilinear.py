import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from howlinear.plots import bilinear, style

LOOKS = {"a-gpt2": "#0072B2", "b-llama": "#009E73"}


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def gains(blocks=3):
    """Two models, numbers that are all different."""
    table = pd.DataFrame([{"model": model, "block": block} for model in LOOKS for block in range(blocks)])
    number = np.arange(len(table))
    table["left"] = 0.2 + 0.05 * number
    table["gain"] = 0.1 + 0.01 * number
    table["low"] = table.gain - 0.02
    table["high"] = table.gain + 0.03 + 0.001 * number
    table["recovered"] = table.gain / table.left
    return table


def of(lines, colour):
    return [line for line in lines if line.get_color() == colour]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def titles(figure):
    return [axis.get_title(loc="left") for axis in figure.axes]


def points(line):
    """A line's points as numbers; `errorbar` keeps objects."""
    return line.get_xydata().astype(float)


def bars_of(container):
    """Both ends of a container's error bars, shape (points, 2)."""
    return np.array([segment[:, 1] for segment in container[2][0].get_segments()])


def test_gains_are_drawn_against_what_is_left_with_their_intervals():
    table = gains()
    figure = bilinear.gain(table, rank=7)
    cloud, depth = figure.axes
    assert titles(figure) == ["(a) gain", "(b) of what is left"]
    assert cloud.get_ylabel() == "gain of rank 7"
    assert set(legend(figure)) == {*LOOKS, "all of it"}
    for container, (model, colour) in zip(cloud.containers, LOOKS.items(), strict=True):
        group = table[table.model == model]
        np.testing.assert_allclose(points(container[0]), group[["left", "gain"]])
        np.testing.assert_allclose(bars_of(container), group[["low", "high"]])
        assert container[0].get_color() == colour
        assert container[0].get_linestyle() == "None"
    for container, model in zip(depth.containers, LOOKS, strict=True):
        group = table[table.model == model]
        np.testing.assert_allclose(points(container[0])[:, 1], group.recovered)
        np.testing.assert_allclose(points(container[0])[:, 0], group.block, atol=0.1)
        ends = group[["low", "high"]].to_numpy() / group.left.to_numpy()[:, None]
        np.testing.assert_allclose(bars_of(container), ends)


def test_every_point_and_the_whole_diagonal_are_in_sight():
    table = gains()
    cloud, _ = bilinear.gain(table).axes
    (diagonal,) = [line for line in cloud.lines if line.get_label() == "all of it"]
    np.testing.assert_allclose(diagonal.get_xdata(), diagonal.get_ydata())
    assert cloud.get_xlim()[1] > table.left.max()
    assert cloud.get_ylim()[0] < min(0, table.low.min())
    assert cloud.get_ylim()[1] > table.high.max()


def test_a_gain_below_zero_is_in_sight():
    table = gains()
    table["low"] -= 0.3
    cloud, depth = bilinear.gain(table).axes
    assert cloud.get_ylim()[0] < table.low.min()
    assert depth.get_ylim()[0] < (table.low / table.left).min()


def test_one_model_of_two_blocks_is_drawn_too():
    table = gains(blocks=2)
    figure = bilinear.gain(table[table.model == "a-gpt2"])
    assert len(legend(figure)) == 2
    np.testing.assert_allclose(points(figure.axes[1].containers[0][0])[:, 0], [0, 1])  # not shifted


def sweep():
    rows = [(model, block, rank) for model in LOOKS for block in (0, 4, 9) for rank in (1, 8)]
    table = pd.DataFrame(rows, columns=["model", "block", "rank"])
    return table.assign(recovered=np.linspace(0.1, 0.9, len(table)) ** 2)


def powers():
    table = pd.DataFrame([{"model": model, "block": block} for model in LOOKS for block in (0, 4)])
    return table.assign(planted=[0.9, 0.8, 0.7, 0.6], shuffled=[0.0, 0.01, 0.02, 0.03])


def test_ranks_are_drawn_block_by_block_with_their_median():
    table = sweep()
    figure = bilinear.rank(table, powers(), gains(), probe_rank=8)
    growth, _ = figure.axes
    assert titles(figure) == ["(a) rank", "(b) power at rank 8"]
    assert legend(figure) == list(LOOKS)
    assert growth.get_xscale() == "log"
    assert [text.get_text() for text in growth.get_xticklabels()] == ["1", "8"]
    for model, colour in LOOKS.items():
        blocks = table[table.model == model]
        *thin, median = of(growth.lines, colour)
        assert len(thin) == 3
        for line, block in zip(thin, (0, 4, 9), strict=True):
            np.testing.assert_allclose(line.get_xydata(), blocks[blocks.block == block][["rank", "recovered"]])
        middle = [blocks[blocks["rank"] == rank].recovered.median() for rank in (1, 8)]
        np.testing.assert_allclose(median.get_ydata(), middle)
        assert median.get_linewidth() > thin[0].get_linewidth()
    (dotted,) = of(growth.lines, style.GREY)
    np.testing.assert_allclose(dotted.get_xdata(), 8)


def test_power_has_a_row_for_each_teacher_below_the_real_residuals():
    found, known = gains(), powers()
    _, sight = bilinear.rank(sweep(), known, found).axes
    rows = ["real", "planted", "shuffled"]
    assert [text.get_text() for text in sight.get_yticklabels()] == rows
    np.testing.assert_allclose(sight.get_yticks(), [0, -1, -2])
    for model, colour in LOOKS.items():
        expected = [found[found.model == model].recovered, *(known[known.model == model][name] for name in rows[1:])]
        for i, (line, values) in enumerate(zip(of(sight.lines, colour), expected, strict=True)):
            np.testing.assert_allclose(line.get_xdata(), values)
            np.testing.assert_allclose(line.get_ydata(), -i, atol=0.25)


def test_gates_are_filled_at_the_highest_rate_only():
    rows = [(rate, model, block) for rate in (0.001, 0.01) for model in LOOKS for block in range(3)]
    table = pd.DataFrame(rows, columns=["rate", "model", "block"])
    number = np.arange(len(table))
    table = table.assign(left=0.1 + 0.02 * number, gate=1 - 0.05 * number, share=0.01 * number)
    figure = bilinear.gate(table)
    assert titles(figure) == ["(a) the gate", "(b) what passes it"]
    assert legend(figure) == [f"{model}, rate {rate}" for rate in (0.001, 0.01) for model in LOOKS]
    groups = table.groupby(["rate", "model"], sort=False)
    for axis, column in zip(figure.axes, ("gate", "share"), strict=True):
        points = [line for line in axis.lines if line.get_color() != style.GREY]
        for line, ((rate, _), group) in zip(points, groups, strict=True):
            np.testing.assert_allclose(line.get_xydata(), group[["left", column]])
            assert (line.get_markerfacecolor() == "white") == (rate == 0.001)
    (one,) = of(figure.axes[0].lines, style.GREY)
    np.testing.assert_allclose(one.get_ydata(), 1)
