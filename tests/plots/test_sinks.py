import numpy as np
import pandas as pd
import pytest

from helpers.drawn import every, legend, texts, titles, with_ends
from howlinear.plots import sinks, style

KINDS = {"a": "map of all rows", "b": "the same, massive rows kept", "e": "a constant at position 0"}


def blocks(*models, count=4):
    """R² of 0.5 and rising, with intervals; block 1 rests on massive rows and its map is of no use elsewhere."""
    table = every(model=models, block=range(count))
    r2 = 0.5 + 0.001 * table["block"]
    table = table.assign(heaviest=4.0, massive_rows=0, r2=r2, r2_ordinary=r2, of_all=r2)
    columns = ["heaviest", "massive_rows", "r2", "r2_ordinary", "of_all"]
    table.loc[table["block"] == 1, columns] = [800.0, 5, 0.97, 0.56, -116.0]
    return with_ends(with_ends(table, 0.01, 0.02, "r2"), 0.03, 0.01, "r2_ordinary")


def flow(*models):
    table = every(model=models, block=(1, 3))
    return table.assign(cosine=table["block"].map({1: 1.0, 3: -0.98}))


def labelled(ax, label):
    handles, labels = ax.get_legend_handles_labels()
    handle = handles[labels.index(label)]
    return handle[0] if isinstance(handle, tuple) else handle


def heights(container):
    return np.asarray(container.lines[0].get_ydata(), dtype=float)


def test_massive_draws_sizes_on_a_log_scale_with_the_cut_and_cosines_beside():
    table = blocks("mini-gpt2", "mini-llama")
    figure = sinks.massive(table, flow("mini-gpt2"), multiple=10.0)
    size, direction = figure.axes
    np.testing.assert_allclose(labelled(size, "mini-gpt2").get_ydata(), [4, 800, 4, 4])
    assert labelled(size, "mini-llama").get_color() == style.look("mini-llama")["color"]
    cut = [line for line in size.get_lines() if line.get_linestyle() == ":"]
    np.testing.assert_allclose(cut[0].get_ydata(), [10, 10])
    np.testing.assert_allclose(labelled(direction, "mini-gpt2").get_xydata(), [[1, 1.0], [3, -0.98]])
    assert len(labelled(direction, "mini-llama").get_xdata()) == 0
    assert legend(figure) == ["mini-gpt2", "mini-llama"]


@pytest.mark.parametrize("writers", [0, 1])
def test_massive_has_one_panel_where_no_two_cosines_are(writers):
    figure = sinks.massive(blocks("mini-gpt2").assign(heaviest=4.0), flow("mini-gpt2").head(writers))
    assert titles(figure) == ["size"]
    figure.canvas.draw()


def test_with_and_without_draws_a_panel_a_model_with_intervals_and_arrows():
    table = blocks("mini-gpt2", "mini-llama", "mini-pythia", "smol")
    figure = sinks.with_and_without(table)
    shown = [ax for ax in figure.axes if ax.axison]
    for ax, model in zip(shown, ("mini-gpt2", "mini-llama", "mini-pythia", "smol"), strict=True):
        filled, hollow = ax.containers
        np.testing.assert_allclose(heights(filled), [0.5, 0.97, 0.502, 0.503])
        np.testing.assert_allclose(heights(hollow), [0.5, 0.56, 0.502, 0.503])
        assert hollow.lines[0].get_markerfacecolor() == "white"
        assert filled.lines[0].get_color() == style.look(model)["color"]
        within = labelled(ax, "map of all rows on ordinary ones")
        np.testing.assert_allclose(within.get_xydata(), [[0, 0.5], [2, 0.502], [3, 0.503]])
        (arrow,) = [line for line in ax.get_lines() if "arrow" in str(line.get_marker())]
        assert arrow.get_xdata().tolist() == [1]
        assert ax.get_ylim()[0] < arrow.get_ydata()[0] < 0


def test_models_without_massive_rows_have_no_panel_where_others_have_some():
    plain = blocks("mini-llama").assign(massive_rows=0)
    assert titles(sinks.with_and_without(pd.concat([blocks("smol"), plain]))) == ["smol"]
    assert titles(sinks.with_and_without(plain)) == ["mini-llama"]


def curves(*models, count=3):
    tables = []
    for kind, counts in (("heaviest rows", [0, 1, 512]), ("loudest features", [0, 4])):
        table = every(kind=[kind], model=models, block=range(count), left_out=counts)
        tables.append(table.assign(r2=0.9 - 0.1 * table["left_out"].map(counts.index) - 0.01 * table["block"]))
    return pd.concat(tables, ignore_index=True)


def test_left_out_draws_a_line_a_block_the_mean_and_names_those_that_rest_on_tokens():
    resting = pd.DataFrame({"model": ["mini-gpt2"], "block": [2]})
    figure = sinks.left_out(curves("mini-gpt2", "mini-llama"), resting)
    rows, _ = figure.axes
    lines = rows.get_lines()
    assert len(lines) == 2 * (3 + 1)
    np.testing.assert_allclose(lines[0].get_ydata(), [0.9, 0.8, 0.7])
    np.testing.assert_allclose(lines[3].get_ydata(), [0.89, 0.79, 0.69])
    assert lines[2].get_linewidth() > lines[1].get_linewidth()  # block 2 rests on tokens
    assert texts(rows.texts) == ["2"]
    near = pd.DataFrame({"model": "mini-gpt2", "block": range(3)})  # of curves that end at one height
    assert texts(sinks.left_out(curves("mini-gpt2"), near).axes[0].texts) == ["0, 1, 2"]
    np.testing.assert_allclose(lines[0].get_xdata(), [0, 1, 512])
    assert legend(figure) == ["mini-gpt2", "mini-llama"]


def test_a_curve_ends_where_its_heavy_rows_do():
    table = curves("mini-gpt2")
    longer = pd.DataFrame([{"model": "mini-gpt2", "block": 1, "kind": "heaviest rows", "left_out": 900, "r2": 0.2}])
    rows, _ = sinks.left_out(pd.concat([table, longer]), table[:0]).axes
    first, second, *_, mean = rows.get_lines()
    assert first.get_xdata()[-1] == mean.get_xdata()[-1] == 512
    assert second.get_xdata()[-1] == 900


def cuts(*models, count=3):
    table = every(model=models, block=range(count), cut=(5.0, 10.0, 50.0))
    return table.assign(r2=0.5 + table["cut"] / 100)


def test_cuts_draws_a_line_a_cut_and_the_share_below():
    models = ("mini-gpt2", "mini-llama")
    table = blocks(*models, count=3).assign(r2_without_first=0.4, carrying_share=0.01)
    figure = sinks.cuts(cuts(*models), table)
    first, _, share, _ = figure.axes
    assert legend(figure) == [*(f"≤ {cut} medians" for cut in (5, 10, 50)), "all rows", "without position 0"]
    np.testing.assert_allclose(labelled(first, "≤ 10 medians").get_ydata(), [0.6] * 3)
    np.testing.assert_allclose(labelled(first, "all rows").get_ydata(), [0.5, 0.97, 0.502])
    np.testing.assert_allclose(labelled(first, "without position 0").get_ydata(), [0.4] * 3)
    np.testing.assert_allclose(share.get_lines()[0].get_ydata(), [0.01] * 3)


def effects(*models, arms=("none", "zero", "noise"), count=4):
    table = every(model=models, intervention=arms, block=range(2, 2 + count))
    table = table.assign(r2=0.5, r2_ordinary=0.5, change_ordinary=0.01 * table["block"])
    table.loc[(table["block"] == 4) & (table["intervention"] != "zero"), "r2"] = 0.9
    return with_ends(table, 0.01, 0.02, "r2", "r2_ordinary", "change_ordinary")


def test_interventions_draws_what_is_behind_the_writer_and_the_block_that_rests_most_on_massive_rows():
    figure = sinks.interventions(effects("mini-gpt2", "smol"), {"zero": "to zero", "noise": "elsewhere"})
    over_depth, ordinary, of_block, *_ = figure.axes
    assert titles(figure)[::3] == ["(a) mini-gpt2", "(d) smol"]
    np.testing.assert_allclose(labelled(over_depth, "as it is").get_xydata(), [[3, 0.5], [4, 0.9], [5, 0.5]])
    np.testing.assert_allclose(labelled(over_depth, "to zero").get_ydata(), [0.5] * 3)
    np.testing.assert_allclose(heights(ordinary.containers[0]), [0.03, 0.04, 0.05])
    assert texts(of_block.get_xticklabels()) == ["none", "zero", "noise"]
    np.testing.assert_allclose(heights(of_block.containers[0]), [0.9, 0.5, 0.9])
    without_control = effects("smol", arms=("none", "zero"))
    assert legend(sinks.interventions(without_control, {"zero": "to zero", "noise": "elsewhere"}))[1:] == ["to zero"]


def test_interventions_says_where_no_block_is_behind_a_writer():
    for table in (effects("smol", count=1), effects("smol").iloc[:0]):
        figure = sinks.interventions(table, {"zero": "to zero"})
        assert len(figure.texts) == 1


def costs():
    rows = []
    for block, massive_rows, nats in ((11, 129, {"a": 1.9, "b": 1.8, "e": 0.03}), (4, 0, {"a": 0.05, "e": -0.02})):
        for kind, cost in nats.items():
            rows.append({"model": "smol", "block": block, "kind": kind, "massive_rows": massive_rows, "nats": cost})
    return pd.DataFrame(rows)


def test_costs_draws_each_block_over_the_ways_that_it_has():
    figure = sinks.costs(costs(), KINDS)
    (ax,) = figure.axes
    drawn = {tuple(line.get_ydata()): line for line in ax.get_lines() if len(line.get_xdata()) in (2, 3)}
    sunk = drawn[1.9, 1.8, 0.03]
    plain = drawn[0.05, -0.02]
    assert list(sunk.get_xdata()) == [0, 1, 2]
    assert list(plain.get_xdata()) == [0, 2]
    assert plain.get_markerfacecolor() == "white"
    assert sunk.get_markerfacecolor() != "white"
    assert sorted(texts(ax.texts)) == ["11", "11", "4", "4"]  # where lines begin, and where they end
    assert legend(figure) == ["smol", "with massive rows", "without"]


def test_costs_of_one_size_are_drawn_on_a_plain_scale_and_numbered_apart():
    """On a log scale two costs within a quarter of each other have no round number between them."""
    (ax,) = sinks.costs(costs().assign(nats=[0.25, 0.25, 0.25, 0.2, 0.2]), KINDS).axes
    assert ax.get_yscale() == "linear"
    assert sorted(texts(ax.texts)) == ["11", "11", "4", "4"]
    (ax,) = sinks.costs(costs().assign(nats=[2.5, 2.5, 2.5, 0.2, 0.2]), KINDS).axes
    assert ax.get_yscale() == "log"


def test_costs_of_no_model_say_so():
    figure = sinks.costs(costs().iloc[:0], KINDS)
    assert texts(figure.axes[0].texts) == ["no model predicts a next token"]
    figure.canvas.draw()


@pytest.mark.parametrize("count", [1, 30])
def test_figures_take_any_number_of_blocks(count):
    names = ("mini-gpt2", "mini-llama")
    described = blocks(*names, count=count).assign(r2_without_first=0.0, carrying_share=0.1)
    for figure in (
        sinks.massive(blocks(*names, count=count), flow()),
        sinks.with_and_without(blocks(*names, count=count)),
        sinks.left_out(curves(*names, count=count), curves(*names)[:0]),
        sinks.cuts(cuts(*names, count=count), described),
        sinks.interventions(effects(*names, count=count), {"zero": "to zero", "noise": "elsewhere"}),
    ):
        figure.canvas.draw()
    uneven = pd.concat([blocks("mini-gpt2", count=12), blocks("smol", count=count)])
    sinks.with_and_without(uneven).canvas.draw()
