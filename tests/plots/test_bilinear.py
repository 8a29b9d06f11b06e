import numpy as np
import pandas as pd
import pytest

from helpers.drawn import bars, every, legend, texts, with_ends, xy
from howlinear.plots import bilinear, style

ENDS = ["gain_low", "gain_high"]
LOOKS = {"a-gpt2": "#0072B2", "b-llama": "#009E73"}


def gains(blocks=3):
    """Two models, numbers that are all different."""
    table = every(model=LOOKS, block=range(blocks))
    number = np.arange(len(table))
    table["r2"] = 0.8 - 0.05 * number
    table["gain"] = 0.1 + 0.01 * number
    table["gain_low"] = table.gain - 0.02
    table["gain_high"] = table.gain + 0.03 + 0.001 * number
    table["recovered"] = table.gain / (1 - table.r2)
    return table


def of(lines, colour):
    return [line for line in lines if line.get_color() == colour]


def test_gains_are_drawn_against_what_is_left_with_their_intervals():
    table = gains()
    figure = bilinear.gain(table, rank=7)
    cloud, depth = figure.axes
    assert set(legend(figure)) == {*LOOKS, "all of it"}
    for container, (model, colour) in zip(cloud.containers, LOOKS.items(), strict=True):
        group = table[table.model == model]
        np.testing.assert_allclose(xy(container), np.stack([1 - group.r2, group.gain], 1))
        np.testing.assert_allclose(bars(container), group[ENDS])
        assert container[0].get_color() == colour
        assert container[0].get_linestyle() == "None"
    for container, model in zip(depth.containers, LOOKS, strict=True):
        group = table[table.model == model]
        np.testing.assert_allclose(xy(container)[:, 1], group.recovered)
        np.testing.assert_allclose(xy(container)[:, 0], group.block, atol=0.1)
        ends = group[ENDS].to_numpy() / (1 - group.r2.to_numpy()[:, None])
        np.testing.assert_allclose(bars(container), ends)


def test_a_share_whose_bar_is_wider_than_the_whole_does_not_set_the_scale():
    table = gains()
    table.loc[1, ENDS] = [table.gain[1] - 0.15, table.gain[1] + 0.15]  # of 0.25 that are left
    cloud, depth = bilinear.gain(table).axes
    low, high = depth.get_ylim()
    narrow = table.drop(index=1)
    assert low == 0
    assert (narrow.gain_high / (1 - narrow.r2)).max() < high < table.gain_high[1] / (1 - table.r2[1])
    assert cloud.get_ylim()[0] < table.gain_low.min()  # a gain is in sight with its bar, however wide


@pytest.mark.parametrize("bar", [0.15, 1.0])
def test_the_papers_points_are_in_sight_where_a_wide_bar_is_not(bar):
    table = gains()
    table.loc[1, ENDS] = [table.gain[1] - bar, table.gain[1] + bar]
    papers = published("a-gpt2")
    papers["bilinear_gain_r16"] = [0.36, 0.3, 0.36]  # 0.9 of what is left in the last block
    cloud, depth = bilinear.gain(table, published=papers).axes
    assert depth.get_ylim()[1] > 0.9
    assert cloud.get_ylim()[1] > 0.36


def published(*models):
    """A gain of 0.1 in each of three blocks, where the line leaves 0.8, 0.5 and 0.4; ΔPPL is 1, 2 and 3."""
    table = every(model=models, block=range(3)).assign(bilinear_gain_r16=0.1)
    table["r2_lin"] = [0.2, 0.5, 0.6] * len(models)
    return table.assign(dppl_linear=table.block + 1.0, dppl_poly=table.block + 0.5)


def test_the_papers_gains_are_drawn_too():
    figure = bilinear.gain(gains(), published=published("gpt2", "llama-160m"))
    cloud, depth = figure.axes
    wanted = ([[0.8, 0.1], [0.5, 0.1], [0.4, 0.1]], [[0, 0.125], [1, 0.2], [2, 0.25]])
    for axis, points_of_the_paper in zip((cloud, depth), wanted, strict=True):
        (line,) = [line for line in axis.lines if line.get_label() == "gpt2, the paper"]
        np.testing.assert_allclose(xy(line), points_of_the_paper)
    assert {"gpt2, the paper", "llama-160m, the paper"} < set(legend(figure))
    assert cloud.get_xlim()[1] > 0.8  # its points are in sight


def sweep():
    table = every(model=LOOKS, block=(0, 4, 9), rank=(1, 8))
    return table.assign(recovered=np.linspace(0.1, 0.9, len(table)) ** 2)


def powers():
    table = every(model=LOOKS, block=(0, 4))
    return table.assign(planted=[0.9, 0.8, 0.7, 0.6], shuffled=[0.0, 0.01, 0.02, 0.03])


def test_ranks_are_drawn_block_by_block_with_their_median():
    table = sweep()
    figure = bilinear.rank(table, powers(), gains(), probe_rank=8)
    growth, _ = figure.axes
    assert legend(figure) == list(LOOKS)
    for model, colour in LOOKS.items():
        blocks = table[table.model == model]
        *thin, median = of(growth.lines, colour)
        assert len(thin) == 3
        for line, block in zip(thin, (0, 4, 9), strict=True):
            np.testing.assert_allclose(line.get_xydata(), blocks[blocks.block == block][["rank", "recovered"]])
        middle = [blocks[blocks["rank"] == rank].recovered.median() for rank in (1, 8)]
        np.testing.assert_allclose(median.get_ydata(), middle)
    (dotted,) = of(growth.lines, style.GREY)
    np.testing.assert_allclose(dotted.get_xdata(), 8)


def test_power_has_a_row_for_each_teacher_below_the_real_residuals():
    found, known = gains(), powers()
    _, sight = bilinear.rank(sweep(), known, found).axes
    rows = ["real", "planted", "shuffled"]
    assert texts(sight.get_yticklabels()) == rows
    np.testing.assert_allclose(sight.get_yticks(), [0, -1, -2])
    for model, colour in LOOKS.items():
        expected = [found[found.model == model].recovered, *(known[known.model == model][name] for name in rows[1:])]
        for i, (line, values) in enumerate(zip(of(sight.lines, colour), expected, strict=True)):
            np.testing.assert_allclose(line.get_xdata(), values)
            np.testing.assert_allclose(line.get_ydata(), -i, atol=0.25)


def test_gates_are_filled_at_the_highest_rate_only():
    table = every(rate=(0.001, 0.01), model=LOOKS, block=range(3))
    number = np.arange(len(table))
    table = table.assign(gate=1 - 0.05 * number, share=0.01 * number)
    blocks = gains()
    figure = bilinear.gate(table, blocks)
    assert legend(figure) == [f"{model}, rate {rate}" for rate in (0.001, 0.01) for model in LOOKS]
    groups = table.groupby(["rate", "model"], sort=False)
    for axis, column in zip(figure.axes, ("gate", "share"), strict=True):
        points = [line for line in axis.lines if line.get_color() != style.GREY]
        for line, ((rate, model), group) in zip(points, groups, strict=True):
            left = 1 - blocks[blocks.model == model].r2
            np.testing.assert_allclose(line.get_xydata(), np.stack([left, group[column]], 1))
            assert (line.get_markerfacecolor() == "white") == (rate == 0.001)
    (one,) = of(figure.axes[0].lines, style.GREY)
    np.testing.assert_allclose(one.get_ydata(), 1)


def recipes():
    table = every(model=LOOKS, block=(0, 4)).assign(gain=[0.1, 0.2, 0.3, 0.4], ours=[0.2, 0.3, 0.4, 0.5])
    return table.assign(selection=-0.01, rows=[0.02, 0.04, 0.02, 0.04], optimiser=0.05)


def test_both_probes_are_drawn_and_a_bar_is_the_mean_of_a_models_blocks():
    table = recipes()
    figure = bilinear.recipe(table)
    depth, parts = figure.axes
    for model, colour in LOOKS.items():
        ours, theirs = of(depth.lines, colour)
        group = table[table.model == model]
        np.testing.assert_allclose(ours.get_xydata(), group[["block", "ours"]])
        np.testing.assert_allclose(theirs.get_xydata(), group[["block", "gain"]])
        assert theirs.get_markerfacecolor() == "white"
    heights = [bar.get_height() for bar in parts.patches]
    np.testing.assert_allclose(heights, [-0.01, 0.03, 0.05] * 2)


def layers(model, costs, poly):
    table = pd.DataFrame({"model": model, "block": range(len(costs)), "dppl": costs, "dppl_poly": poly})
    return with_ends(table, 0.2, 0.4, "dppl", "dppl_poly")


def controls(model, blocks, r2=0.5):
    table = every(control=("dense2x", "poly2x"), block=blocks).assign(model=model)
    return table.assign(r2=r2 + 0.01 * np.arange(len(table)))


def test_layers_of_a_model_whose_name_begins_with_an_underscore_are_in_the_legend():
    measured = layers("_mine", [3.0, 1.0, 2.0], [1.0, 0.5, 0.7])
    of_it = gains().assign(r2_poly=0.9, model="_mine").drop_duplicates("block")
    drawn = legend(bilinear.layers(of_it, controls("_mine", (0, 2)), measured))
    assert drawn == [style.look("_mine")["label"], "line", "line and products"]


def test_layers_are_joined_by_block_and_products_are_open():
    blocks = gains().assign(r2_poly=0.9)
    costs = {"a-gpt2": ([3.0, 1.0, 2.0], [1.0, 0.5, 0.7]), "b-llama": ([np.nan] * 3, [np.nan] * 3)}  # an encoder
    measured = pd.concat([layers(model, *both) for model, both in costs.items()])
    figure = bilinear.layers(blocks, pd.concat([controls(model, (0, 2)) for model in LOOKS]), measured)
    depth, cost = figure.axes
    assert legend(figure) == [*LOOKS, "line", "line and products"]
    for model, colour in LOOKS.items():
        first, _ = of(depth.lines, colour)
        r2 = blocks[blocks.model == model].r2.iloc[0]
        np.testing.assert_allclose(np.asarray(first.get_ydata(), float), [r2, 0.9, 0.5, 0.52])
        numbers = [text for text in depth.texts if text.get_color() == colour]
        assert texts(numbers) == ["0", "2"]
        assert numbers[0].xy == (3, 0.52)  # where its line ends
        filled, hollow = of(cost.lines, colour)
        np.testing.assert_allclose(np.asarray(filled.get_ydata(), float), costs[model][0])
        np.testing.assert_allclose(np.asarray(hollow.get_ydata(), float), costs[model][1])
        assert hollow.get_markerfacecolor() == "white"


def test_the_papers_swaps_lie_behind_ours():
    blocks = pd.DataFrame({"model": "gpt2", "block": [0, 1], "r2": 0.5, "r2_poly": 0.6})
    figure = bilinear.layers(blocks, controls("gpt2", [0]), layers("gpt2", [1.0, 1.0], [0.8, 0.8]), published("gpt2"))
    _, cost = figure.axes
    filled, hollow = cost.lines[:2]
    np.testing.assert_allclose(xy(filled), [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_allclose(xy(hollow), [[0, 0.5], [1, 1.5], [2, 2.5]])
    assert hollow.get_markerfacecolor() == "white"
    assert legend(figure)[-1] == "the paper"


def test_a_bar_beyond_all_that_is_left_does_not_set_the_scale():
    table = gains()
    table.loc[1, ENDS] = [-3.0, 3.0]
    cloud, depth = bilinear.gain(table).axes
    assert table.gain.max() < cloud.get_ylim()[1] < 0.5
    assert cloud.get_ylim()[0] < table.gain.min()
    assert table.recovered.max() < depth.get_ylim()[1] < 2
