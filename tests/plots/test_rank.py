import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from helpers.drawn import every, legend, texts, with_ends, xy
from howlinear.plots import rank, style


def blocks(*models, count=3, largest=30.0):
    """Blocks on the diagonal less 0.1, with intervals that reach 0.01 down and 0.02 up."""
    table = every(model=models, block=range(count)).assign(effective_rank=largest)
    r2 = 0.5 + 0.1 * table["model"].map(models.index) + 0.01 * table["block"]
    return with_ends(table.assign(r2=r2, median_r2=r2 - 0.1), 0.01, 0.02, "r2", "median_r2")


def planted():
    rows = [
        {"model": "one loud feature", "block": 0, "r2": 0.99, "median_r2": 0.0, "effective_rank": 1.0},
        {"model": "straight", "block": 0, "r2": 0.98, "median_r2": 0.97, "effective_rank": 20.0},
    ]
    return pd.DataFrame(rows)


def offsets(figure):
    """Where scatter points lie, collection by collection."""
    scatters = [found for found in figure.axes[0].collections if isinstance(found, PathCollection)]
    return [np.asarray(scatter.get_offsets(), float) for scatter in scatters]


def test_median_draws_each_block_where_it_lies_with_its_bars_in_its_models_colour():
    table = blocks("mini-gpt2", "mini-llama", count=5)
    figure = rank.median(table)
    across, up = figure.axes[0].containers[0].lines[2]
    np.testing.assert_allclose([line[:, 0] for line in across.get_segments()], table[["r2_low", "r2_high"]][:5])
    np.testing.assert_allclose(
        [line[:, 1] for line in up.get_segments()], table[["median_r2_low", "median_r2_high"]][:5]
    )
    drawn = offsets(figure)
    for points, (_, of_model) in zip(drawn, table.groupby("model", sort=False), strict=False):
        np.testing.assert_allclose(points, of_model[["r2", "median_r2"]])
    assert legend(figure) == ["mini-gpt2", "mini-llama", "rank 1", "rank 10", "rank 40"]
    colours = [c.get_facecolor()[0] for c in figure.axes[0].collections if c.get_label() in ("mini-gpt2", "mini-llama")]
    for colour, model in zip(colours, ("mini-gpt2", "mini-llama"), strict=True):
        np.testing.assert_allclose(colour[:3], plt.matplotlib.colors.to_rgb(style.look(model)["color"]))


def test_medians_area_grows_with_rank_and_its_legend_with_the_largest():
    small = rank.median(blocks("mini-gpt2", largest=2.0))
    large = rank.median(blocks("mini-gpt2", largest=200.0))
    areas = [figure.axes[0].collections[-4].get_sizes()[0] for figure in (small, large)]
    assert areas[1] > 20 * areas[0]
    assert legend(large)[-1] == "rank 100"
    for figure in (small, large):  # a model's point is as large in every legend
        assert figure.legends[0].legend_handles[0].get_sizes() == [rank.LEGEND_AREA]


def test_median_names_the_planted_block_that_lies_far_below_alone():
    figure = rank.median(blocks("mini-gpt2"), planted())
    ax = figure.axes[0]
    assert texts(ax.texts) == ["planted: one\nloud feature"]
    assert ax.texts[0].get_position()[1] == 0.0
    diamonds = [tuple(points[0]) for points in offsets(figure)[1:3]]
    assert diamonds == [(0.99, 0.0), (0.98, 0.97)]
    assert ax.get_ylim()[0] < 0


def published(*models):
    table = every(model=models, block=range(3)).assign(r2_perfeature_median=0.05, rrr_rank90=7)
    return table.assign(r2_lin=0.1 + 0.3 * table["block"])


@pytest.mark.parametrize("name", ["median", "reduced"])
def test_the_papers_points_are_in_sight(name):
    table = blocks("gpt2", "mini-llama").assign(rank_90=3, rank_95=5)
    figure = getattr(rank, name)(table, published=published("gpt2"))
    axis = figure.axes[0]
    (line,) = [line for line in axis.lines if line.get_label() == "gpt2, the paper"]
    height = {"median": 0.05, "reduced": 7}[name]
    np.testing.assert_allclose(xy(line), [[0.1, height], [0.4, height], [0.7, height]])
    assert axis.get_xlim()[0] < 0.1  # in sight
    assert "gpt2, the paper" in legend(figure)
    assert not any("the paper" in entry for entry in legend(getattr(rank, name)(table)))


def loudest(*models, count=2, counts=(0, 1, 4)):
    table = every(axis=("features", "directions"), model=models, block=range(count), left_out=counts)
    step = table["axis"].map({"features": 0.1, "directions": 0.2})
    return table.assign(r2=0.9 - 0.2 * table["block"] - step * table["left_out"].map(counts.index))


def bands(*models, count=2, number=3):
    table = every(model=models, block=range(count), band=range(1, number + 1))
    return table.assign(r2=0.8 - 0.1 * table["band"] - 0.2 * table["block"])


def rises(*models, count=2):
    table = every(model=models, block=range(count)).assign(rise_without_first=-0.01)
    table["rise_without_heaviest"] = 0.01 * (table["model"].map(models.index) + 1)
    return with_ends(table, 0.005, 0.01, "rise_without_heaviest")


def carried(*models, count=2, **options):
    return rank.carried(
        loudest(*models, count=count), bands(*models, count=count), rises(*models, count=count), **options
    )


def test_carried_draws_a_thin_line_per_block_and_the_mean_over_them():
    figure = carried("mini-gpt2", "mini-pythia")
    for ax, step in zip(figure.axes[:2], (0.1, 0.2), strict=True):
        lines = ax.get_lines()
        assert len(lines) == 2 * (2 + 1)
        np.testing.assert_allclose(lines[0].get_ydata(), [0.9, 0.9 - step, 0.9 - 2 * step])
        np.testing.assert_allclose(lines[1].get_ydata(), [0.7, 0.7 - step, 0.7 - 2 * step])
        np.testing.assert_allclose(lines[2].get_ydata(), [0.8, 0.8 - step, 0.8 - 2 * step])
        assert texts(ax.get_xticklabels()) == ["0", "1", "4"]
    tokens = figure.axes[2]
    np.testing.assert_allclose(tokens.get_lines()[0].get_ydata(), [0.7, 0.6, 0.5])
    assert texts(tokens.get_xticklabels()) == ["frequent", "2", "rare"]


def test_carrieds_rows_lie_side_by_side_with_their_intervals():
    figure = carried("mini-gpt2", "mini-pythia", "mini-llama", count=4)
    ax = figure.axes[3]
    assert len(ax.containers) == 3
    for i, container in enumerate(ax.containers):
        across, up = xy(container).T
        np.testing.assert_allclose(across, np.arange(4) + rank.SIDE_BY_SIDE * (i - 1))
        np.testing.assert_allclose(up, 0.01 * (i + 1))
    first = [line for line in ax.get_lines() if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert len(first) == 3
    np.testing.assert_allclose(first[0].get_ydata(), -0.01)


def test_carried_shows_one_planted_curve_for_each_kind():
    curve = pd.DataFrame(
        {"axis": ["features"] * 3 + ["directions"] * 3, "left_out": [0, 1, 4] * 2, "r2": [0.9, 0, 0, 0.8, 0.1, 0]}
    )
    figure = carried("mini-gpt2", planted=curve)
    for ax, values in zip(figure.axes[:2], ([0.9, 0, 0], [0.8, 0.1, 0]), strict=True):
        np.testing.assert_allclose(ax.get_lines()[-1].get_ydata(), values)
    assert legend(figure) == ["mini-gpt2", "planted"]


def needed(*models):
    table = blocks(*models)
    return table.assign(effective_rank=[3.0, 4.0, 5.0] * len(models), rank_90=[1, 8, None] * len(models), rank_95=9)


def test_reduced_draws_both_ranks_of_every_block_that_has_them():
    table = needed("mini-gpt2", "mini-pythia")
    figure = rank.reduced(table)
    for ax, across in zip(figure.axes, ("r2", "effective_rank"), strict=True):
        filled, hollow = ax.get_lines()[:2]
        np.testing.assert_allclose(filled.get_xdata(), table[across][:2])
        np.testing.assert_allclose(filled.get_ydata(), [1, 8])
        np.testing.assert_allclose(hollow.get_ydata(), [9, 9])
        assert hollow.get_markerfacecolor() == "white"
    assert legend(figure) == ["mini-gpt2", "mini-pythia", "for 90 %", "for 95 %"]


def test_axes_draws_every_output_with_the_pooled_line_and_the_median():
    outputs = pd.DataFrame(
        {
            "axis": ["features"] * 3 + ["directions"] * 3,
            "share": [0.3, 0.3, 0.4, 0.9, 0.09, 0.01],
            "r2": [0.7, 0.8, 0.9, 0.9, 0.1, -3.0],
        }
    )
    figure = rank.axes(outputs, r2=0.8, model="mini-gpt2", block=11)
    for axis, (_, mine), median in zip(figure.axes, outputs.groupby("axis", sort=False), (0.8, 0.1), strict=True):
        (points,) = axis.collections
        np.testing.assert_allclose(points.get_offsets(), np.c_[mine["share"], mine["r2"].clip(lower=-0.2)])
        pooled, middle = axis.get_lines()
        assert pooled.get_ydata()[0] == 0.8
        assert middle.get_ydata()[0] == median
