import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from helpers.drawn import every, legend, with_ends
from howlinear.plots import dynamics, style

STEPS = [0, 1, 10, 100]


def film_of(run, blocks=3):
    table = every(run=[run], step=STEPS, block=range(blocks))
    r2 = 0.9 - 0.1 * table.step.map(STEPS.index) + 0.01 * table.block
    return with_ends(table.assign(r2=r2), 0.02, 0.03, "r2")


def assert_film(axis, table):
    """Every block has its line and its band."""
    for block, rows in table.groupby("block"):
        np.testing.assert_array_equal(axis.lines[block].get_xydata(), rows[["step", "r2"]])
        band = axis.collections[block].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == pytest.approx((rows.r2_low.min(), rows.r2_high.max()))
    assert axis.get_xlim() == (0, 100)


@pytest.mark.parametrize("blocks", [1, 3, 24])
def test_a_film_has_a_line_and_a_band_for_every_block_from_dark_to_light(blocks):
    _, axis = plt.subplots()
    table = film_of("x", blocks)
    dynamics.film(axis, table)
    assert len(axis.lines) == blocks
    assert_film(axis, table)
    light = [np.dot([0.3, 0.6, 0.1], line.get_color()[:3]) for line in axis.lines]
    assert light == sorted(light)


def test_the_live_model_and_what_it_learns():
    course = pd.DataFrame({"step": STEPS, "loss": [8.0, 7, 6, 5], "rank": [30.0, 20, 2, 4]})
    figure = dynamics.live(film_of("live"), course, unigram=6.5)
    left, right, ranks = figure.axes
    assert_film(left, film_of("live"))
    np.testing.assert_array_equal(right.lines[0].get_xydata(), course[["step", "loss"]])
    assert set(right.lines[1].get_ydata()) == {6.5}
    np.testing.assert_array_equal(ranks.lines[0].get_xydata(), course[["step", "rank"]])


def test_the_live_model_by_the_token():
    table = film_of("live").rename(columns=lambda name: name.replace("r2", "token_share"))
    table = table.assign(r2_between=1 - 0.1 ** (1 + table["block"]), r2_within=0.5)
    left, right = dynamics.live_tokens(table).axes
    assert_film(left, film_of("live"))
    between, within = right.lines
    np.testing.assert_allclose(between.get_xydata(), [[step, (0.1 + 0.01 + 0.001) / 3] for step in STEPS])
    np.testing.assert_allclose(within.get_xydata(), [[step, 0.5] for step in STEPS])


@pytest.mark.parametrize("runs", [["mini-gpt2"], ["mini-gpt2", "other"]])
def test_a_column_for_every_film(runs):
    tables = pd.concat([film_of(run) for run in runs])
    spreads = pd.DataFrame(
        {
            "run": np.repeat(runs, 4),
            "step": STEPS * len(runs),
            "spread": np.linspace(0.1, 0.2, 4 * len(runs)),
            "reach": 0.01,
            "loss": np.linspace(8, 4, 4 * len(runs)),
        }
    )
    figure = dynamics.films(tables, spreads, pd.DataFrame({"run": runs, "peak_step": 10}))
    tops, bottoms = np.array(figure.axes[: 2 * len(runs)]).reshape(2, len(runs))
    losses = figure.axes[2 * len(runs) : 3 * len(runs)]
    for top, bottom, loss, run in zip(tops, bottoms, losses, runs, strict=True):
        assert_film(top, tables[tables.run == run])
        assert set(top.lines[-1].get_xdata()) == {10}
        rows = spreads[spreads.run == run]
        np.testing.assert_array_equal(bottom.lines[0].get_xydata(), rows[["step", "spread"]])
        band = bottom.collections[0].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == pytest.approx((rows.spread.min() - 0.01, rows.spread.max() + 0.01))
        np.testing.assert_array_equal(loss.lines[0].get_xydata(), rows[["step", "loss"]])
        assert bottom.lines[0].get_color() == style.look(run)["color"]
    # of the lower row, where no axis says what is dotted and what shaded
    spread, loss = figure.legends[0].get_lines()
    assert (spread.get_color(), spread.get_linestyle()) == (style.GREY, "-")
    assert (loss.get_color(), loss.get_linestyle()) == (losses[0].lines[0].get_color(), ":")


def passages_of(lags):
    """The last block of a run never leaves and never settles."""
    rows = []
    for i, (run, doublings) in enumerate(lags.items()):
        for block, lag in enumerate(doublings):
            step = 10.0 * (block + 1) + i if block < 3 else np.nan
            times = {"": step, "_low": step - 2, "_high": step + 5}
            events = {f"{event}{end}": time for event in ("leaves", "settles") for end, time in times.items()}
            rows.append({"run": run, "block": block, "lag": lag} | events)
    return pd.DataFrame(rows)


def test_times_with_the_measured_steps_around_them_and_what_never_happened_left_out():
    runs = ["mini-gpt2", "mini-llama"]
    lags = {"mini-gpt2": [1, 2, 9, np.nan], "mini-llama": [-1, 0, 1, np.nan], "gpt2-docs-0": [3, np.nan, 4, np.nan]}
    summary = pd.DataFrame({"run": list(lags), "loss_settles": [70.0, 80.0, 90.0]})
    figure = dynamics.settling(passages_of(lags), summary, runs)
    leaves, settles, lagging = figure.axes
    for axis in (leaves, settles):
        for i, container in enumerate(axis.containers):
            np.testing.assert_array_equal(container[0].get_xydata(), [[0, 10 + i], [1, 20 + i], [2, 30 + i]])
    across = [line for line in settles.lines if len(set(line.get_ydata())) == 1]
    assert [line.get_ydata()[0] for line in across] == [70, 80]
    assert legend(figure) == runs
    # from the bottom up: the last run first, its dots and its median
    dots, medians = lagging.lines[0:6:2], lagging.lines[1:6:2]
    assert [line.get_ydata()[0] for line in medians] == ["gpt2-docs-0", "mini-llama", "mini-gpt2"]
    assert [float(line.get_xdata()[0]) for line in medians] == [3.5, 0, 2]
    np.testing.assert_array_equal(dots[0].get_xdata(), [3, np.nan, 4, np.nan])
    assert to_hex(dots[0].get_color()) == style.look("gpt2")["color"].lower()


def test_a_sink_that_grows_is_drawn_with_what_makes_its_block_linear():
    table = every(step=STEPS, block=range(3))
    n = np.arange(len(table))
    table = table.assign(r2=0.9 - 0.01 * n, r2_ordinary=0.5 - 0.01 * n, heaviest=1.0 + n, attention=0.05 * n)
    left, right, attention = dynamics.sink(table, block=1, multiple=20).axes
    grown, other = table[table.block == 1], table[table.block == 2]
    drawn = {line.get_label(): line.get_xydata() for line in left.lines}
    np.testing.assert_array_equal(drawn["block 1, all rows"], grown[["step", "r2"]])
    np.testing.assert_array_equal(drawn["block 1, ordinary rows"], grown[["step", "r2_ordinary"]])
    np.testing.assert_array_equal(left.lines[1].get_xydata(), other[["step", "r2_ordinary"]])
    np.testing.assert_array_equal(right.lines[0].get_xydata(), grown[["step", "heaviest"]])
    assert set(right.lines[1].get_ydata()) == {20}
    np.testing.assert_array_equal(attention.lines[0].get_ydata(), table.groupby("step")["attention"].max())
