"""Notebook 09's modules: trajectories, dynamics."""

import gc
import json
import weakref
from dataclasses import astuple
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, spearmanr, ttest_1samp

from conftest import BLOCKS, tiny
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.ideas.dynamics import measure as tables
from howlinear.ideas.dynamics import trajectory
from howlinear.ideas.dynamics.timing import agreement, correlation, departures, lag, settling, spread, vote
from howlinear.ideas.dynamics.trajectory import Trajectory, films, has_revisions, revisions, unigram
from howlinear.instrument.measure import measure
from howlinear.models.load import load_model
from howlinear.training.loop import log_spaced
from howlinear.training.minis import FACTORY

STEPS = np.array(log_spaced(1_024))


def run_of(r2, half=0.01, steps=STEPS, loss=None, name="planted"):
    """A run with known curves: `r2` of shape (n, blocks), every interval `half` to each side."""
    r2 = np.asarray(r2, dtype=float)
    loss = np.linspace(8, 3, len(steps)) if loss is None else loss
    return Trajectory(name, np.asarray(steps), np.asarray(loss, dtype=float), r2, r2 - half, r2 + half)


def ramps(starts, slope=-0.1, steps=STEPS):
    """Curves that hold 0.9 until a step of their own, then move by `slope` in each unit of log(1 + step)."""
    return 0.9 + slope * np.maximum(0, np.log1p(steps)[:, None] - np.log1p(np.asarray(starts, dtype=float)))


def snapshots(steps=(0, 1, 2), blocks=2):
    one = {"perplexity": 50.0, "r2": [0.9] * blocks, "r2_low": [0.8] * blocks, "r2_high": [1.0] * blocks}
    return [{"step": step, "loss": None} | one for step in steps]


# --- departures


def test_a_departure_by_hand():
    """The interval at 0 is 0.5 ± 0.1. Block 1 never leaves; block 2 leaves upwards, and for good downwards."""
    steps = [0, 1, 3, 7, 15]
    up, never, turned = [0.5, 0.5, 0.8, 0.8, 0.8], [0.5, 0.6, 0.5, 0.4, 0.5], [0.5, 0.9, 0.9, 0.2, 0.1]
    down = [1 - r2 for r2 in up]
    found = departures(run_of(np.array([up, never, turned, down]).T, half=0.1, steps=steps))
    assert found.first_side.tolist() == [1, 0, 1, -1]
    assert found.last_side.tolist() == [1, 0, -1, -1]
    assert found.first.after.tolist() == [1, np.inf, 0, 1]
    assert found.first.by.tolist() == [3, np.inf, 1, 3]
    # blocks 0 and 3 leave where the gap goes from −0.2 to 0.1: two thirds of the way from log 2 to log 4
    assert found.first.step[[0, 3]] == pytest.approx(2 ** (1 + 2 / 3) - 1)


@pytest.mark.parametrize("slope", [-0.1, 0.1])
def test_planted_departures_are_found_in_their_order(slope):
    starts = np.array([1, 300, 8, 40, 0, 120])
    found = departures(run_of(ramps(starts, slope), half=0.005))
    clear = np.expm1(np.log1p(starts) + 0.1)  # a slope of 0.1 is clear of two intervals of 0.005 after 0.1
    assert (found.first.after <= clear).all()
    assert (clear <= found.first.by).all()
    np.testing.assert_allclose(np.log1p(found.first.step), np.log1p(clear), atol=0.11)  # it bends between two steps
    assert np.argsort(found.first.step).tolist() == np.argsort(starts).tolist()
    assert (found.first_side == np.sign(slope)).all()
    assert (found.last_side == np.sign(slope)).all()


@given(seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_noise_within_its_intervals_never_departs(seed):
    noise = np.random.default_rng(seed).uniform(-0.01, 0.01, (len(STEPS), 4))
    found = departures(run_of(0.9 + noise, half=0.01))
    assert not found.first_side.any()
    assert np.isinf(found.first.step).all()
    assert not found.last_side.any()


def test_patience_is_what_tells_a_departure_from_an_outlier():
    r2 = np.full((len(STEPS), 2), 0.9)
    r2[5, 0] = 0.5  # alone
    r2[5:7, 1] = 0.5  # two running
    for patience, sides in ((1, [-1, -1]), (2, [0, -1]), (3, [0, 0])):
        found = departures(run_of(r2), patience)
        assert found.first_side.tolist() == sides
        assert found.last_side.tolist() == [0, 0]  # both came back
    swings = np.full((len(STEPS), 1), 0.9)
    swings[5], swings[6] = 0.5, 1.0  # two running, but not on one side
    assert departures(run_of(swings)).first_side.tolist() == [0]

    at_the_end = np.full((len(STEPS), 2), 0.9)
    at_the_end[-1, 0], at_the_end[-2:, 1] = 0.5, 0.5
    found = departures(run_of(at_the_end))
    assert found.first_side.tolist() == found.last_side.tolist() == [0, -1]
    assert found.first.by.tolist() == [np.inf, STEPS[-2]]
    with pytest.raises(InputError, match="at least one measured step, not 0"):
        departures(run_of(ramps([1])), 0)


# --- settling


def test_settling_by_hand():
    """Range 1, so the band is 0.1: the first curve, which turns round, is inside it for good from between 3 and 7."""
    values = np.array([[1.0, 0.0, 0.5, 0.0, 0.05], [2.0, 2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0, 1.0]]).T
    values[:, 0] = [1.0, 0.02, 0.45, 0.05, 0.0]
    found = settling(np.array([0, 1, 3, 7, 15]), values)
    assert found.after.tolist() == [3, 0, 7]
    assert found.by.tolist() == [7, 0, 15]
    assert found.step[0] == pytest.approx(2 ** (2 + 0.35 / 0.4) - 1)  # from 0.45 to 0.05, inside from 0.1
    assert found.step[1] == 0  # never moved
    assert found.step[2] == pytest.approx(2 ** (3 + 0.9) - 1)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(InputError, match="between 0 and 1"):
        settling(STEPS, ramps([1]), share)


# --- which settles first


def sigmoid(middle, steps=STEPS):
    return 1 / (1 + np.exp(-3 * (np.log1p(steps) - middle)))


def test_a_planted_lag_is_found():
    """Two blocks whose curves are the loss's own, one and two doublings later, and one a doubling earlier."""
    steps = np.unique(np.round(np.geomspace(1, 20_001, 900)).astype(int) - 1)
    middles = np.log(2) * np.array([7, 8, 5])
    r2 = np.stack([1 - sigmoid(middle, steps) for middle in middles], 1)
    planted = run_of(r2, steps=steps, loss=8 - 5 * sigmoid(np.log(2) * 6, steps))
    value, low, high = lag(planted)
    np.testing.assert_allclose(value, [1, 2, -1], atol=0.02)
    assert (low <= value).all()
    assert (value <= high).all()
    assert (high - low < 0.1).all()


def test_the_lags_resolution_is_that_of_the_measured_steps():
    run = run_of(ramps([50, 400]), loss=8 - sigmoid(3))
    _, low, high = lag(run)
    r2, loss = settling(STEPS, ramps([50, 400])), settling(STEPS, 8 - sigmoid(3)[:, None])
    np.testing.assert_allclose(low, np.log2((1 + r2.after) / (1 + loss.by)))
    np.testing.assert_allclose(high, np.log2((1 + r2.by) / (1 + loss.after)))
    assert low[1] > 0


def test_a_block_that_never_left_has_no_lag():
    r2 = np.concatenate([ramps([8]), np.full((len(STEPS), 1), 0.9)], 1)
    assert np.isfinite(lag(run_of(r2))).tolist() == [[True, False]] * 3
    assert np.isfinite(lag(run_of(r2), patience=len(STEPS))).sum() == 0


def test_a_vote_is_the_sign_test_and_students_interval():
    values = [0.5, 1.0, -0.2, 0.7, 0.0, 0.9]
    below, above, p, mean = vote(values)
    assert (below, above) == (1, 4)
    assert p == pytest.approx(binomtest(1, 5).pvalue)
    interval = ttest_1samp(values, 0).confidence_interval(0.95)
    assert astuple(mean) == pytest.approx((np.mean(values), interval.low, interval.high))
    assert vote([0.0, 0.0])[2] == 1
    assert astuple(vote([0.3, 0.3])[3]) == (0.3, 0.3, 0.3)


@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan], [np.inf, 0.0]])
def test_a_vote_of_too_few_or_of_none_is_refused(values):
    with pytest.raises(InputError, match="two runs or more, each with a finite value"):
        vote(values)


# --- spread and order


def test_spread_by_hand():
    sd, reach = spread(run_of([[0.5, 0.5], [0.4, 0.8]], half=np.array([0.1, 0.7]), steps=[0, 1]))
    np.testing.assert_allclose(sd, [0, 0.2])
    np.testing.assert_allclose(reach, 0.5)  # √((0.1² + 0.7²) / 2)


def test_agreement_is_the_mean_spearman_correlation_of_all_pairs():
    orders = np.random.default_rng(3).integers(0, 5, (4, 9)).astype(float)  # with ties
    orders[0, :2] = np.inf
    ranked = np.where(np.isinf(orders), 99, orders)
    pairs = [spearmanr(ranked[i], ranked[j]).statistic for i in range(4) for j in range(i)]
    assert agreement(orders, draws=10)[0] == pytest.approx(np.mean(pairs))
    assert correlation(orders) == pytest.approx(np.mean(pairs))


def test_two_runs_have_the_p_value_of_a_permutation_test():
    one, two = np.random.default_rng(5).normal(size=(2, 6)) + np.arange(6) * 0.5
    rho, p = agreement(np.stack([one, two]), draws=5_000)
    ranked = one.argsort().argsort(), two.argsort().argsort()
    exact = np.mean([np.corrcoef(ranked[0], order)[0, 1] >= rho - 1e-9 for order in permutations(ranked[1])])
    assert p == pytest.approx(exact, abs=0.02)


# --- tables


def two_runs():
    """Two runs with known orders: the first's blocks leave from the last to the first, the second's the other way."""
    return {"up": run_of(ramps([300, 40, 8, 1]), name="up"), "down": run_of(ramps([1, 8, 40, 300]), name="down")}


def test_a_run_in_numbers():
    r2 = [[0.5, 0.5], [0.9, 0.7], [0.9, 0.7], [0.2, 0.4], [0.2, 0.4]]
    run = run_of(r2, half=0.01, steps=[0, 1, 2, 3, 4], loss=[8, 7, 6, 5, 4])
    flat = run_of(r2, steps=[0, 1, 2, 3, 4], loss=[4, 5, 3, 4, 4])
    table = tables.runs({"a": run, "flat": flat}, tables.passages({"a": run, "flat": flat})).set_index("run")
    expected = {"start": 0.5, "peak": 0.8, "end": 0.3, "peak_step": 1, "peak_loss": 7, "fall": 0.25}
    expected |= {"spread_start": 0, "spread_end": 0.1, "up": 2, "below": 2}
    assert table.loc["a", list(expected)].to_dict() == pytest.approx(expected)
    assert table.fall["flat"] == 0  # its loss does not fall
    loss = settling(run.steps, run.loss[:, None])
    ends = table.loc["a", ["loss_settles", "loss_settles_low", "loss_settles_high"]].tolist()
    assert ends == [loss.step[0], loss.after[0], loss.by[0]]


def test_the_table_of_passages_holds_departures_settling_and_lags():
    runs = two_runs()
    runs["never"] = run_of(ramps([300, 40, 8, 1]), half=1.0, name="never")  # all within the first interval
    table = tables.passages(runs, share=0.8, patience=3)
    assert len(table) == 3 * 4
    for name, run in runs.items():
        rows = table[table.run == name]
        assert rows.block.tolist() == [0, 1, 2, 3]
        events = {"leaves": departures(run, 3).first, "settles": settling(run.steps, run.r2, 0.8)}
        for event, passage in events.items():
            expected = np.array(passage)
            found = rows[[event, f"{event}_low", f"{event}_high"]].T
            np.testing.assert_array_equal(found, np.where(np.isinf(expected), np.nan, expected))
        np.testing.assert_array_equal(rows[["lag", "lag_low", "lag_high"]].T, lag(run, 0.8, 3))
    assert table[table.run == "never"].leaves.isna().all()


def test_the_table_of_spreads_holds_every_step():
    runs = two_runs()
    for name, rows in tables.spreads(runs).groupby("run"):
        run = runs[name]
        np.testing.assert_array_equal(rows[["step", "loss", "spread", "reach"]].T, [run.steps, run.loss, *spread(run)])


def test_orders_planted_by_depth_are_found():
    runs = two_runs()
    runs["never"] = run_of(ramps([300, 40, 8, 1]), half=1.0, name="never")
    runs["deeper"] = run_of(ramps([300, 40, 8, 1, 0]), name="deeper")
    passages = tables.passages(runs)
    with_depth = tables.runs(runs, passages).set_index("run").leaves_with_depth
    assert with_depth.to_dict() == pytest.approx({"up": -1, "down": 1, "never": 0, "deeper": -1})
    groups = {"opposite": ["up", "down"], "same": ["up", "up", "up"], "none": ["up", "never"]}
    found = tables.orders(passages, groups).set_index(["event", "group"])
    assert found.rho["leaves"].to_dict() == pytest.approx({"opposite": -1, "same": 1, "none": 0})
    assert found.p["leaves", "same"] < 0.01 < found.p["leaves", "opposite"]


def test_runs_are_cut_at_half_their_length_and_at_their_peak():
    r2 = 0.9 + 0.05 * np.exp(-np.square(np.log1p(STEPS) - np.log1p(64)))[:, None]
    run = run_of(np.concatenate([r2, r2], 1))
    parts = tables.cuts({"a": run, "short": run.part(STEPS >= 512)})
    assert parts["whole run"]["a"] is run
    half = parts["first half"]["a"]
    assert half.steps.tolist() == [step for step in STEPS if step <= 512]
    assert half.name == run.name
    np.testing.assert_array_equal(half.r2, run.r2[: len(half.steps)])
    np.testing.assert_array_equal(half.loss, run.loss[: len(half.steps)])
    assert (parts["from the peak"]["a"].steps[0], parts["from the peak"]["a"].steps[-1]) == (64, 1_024)
    assert list(parts["first half"]) == ["a"]  # half of the other has one measured step


def test_every_cut_and_share_has_its_vote():
    """Runs that settle, each with its loss, at every cut; and one that never leaves, which has no vote."""
    runs = {f"run {i}": run_of(ramps([20 + i, 300]), loss=8 - 5 * sigmoid(3 + 0.1 * i)) for i in range(3)}
    never = run_of(ramps([20, 300]), half=1.0)
    table = tables.votes(runs | {"never": never}, [0.8, 0.9]).set_index(["cut", "share"])
    assert len(table) == 6
    halves = [np.nanmedian(lag(run.part(STEPS <= 512), 0.9)[0]) for run in runs.values()]
    *expected, mean = vote(halves)
    row = table.loc[("first half", 0.9)]
    assert [row.below, row.above, row.p] == expected
    assert (row.lag, row.lag_low, row.lag_high) == astuple(mean)


# --- trajectories


@pytest.mark.parametrize("name", FACTORY)
def test_the_embedded_models_carry_a_trajectory(name):
    found = Trajectory.read(paths.MODELS / name / "trajectory.json")
    kept = json.loads((paths.MODELS / name / "trajectory.json").read_text())["steps"][7]
    assert found.name == name
    assert found.steps.tolist() == log_spaced(2_000)
    assert found.r2.shape == (23, 12)
    for curves, key in ((found.r2, "r2"), (found.low, "r2_low"), (found.high, "r2_high")):
        assert curves[7].tolist() == kept[key]
    assert found.loss[7] == pytest.approx(np.log(kept["perplexity"]))


def test_a_frame_holds_every_step_and_block():
    run = run_of(ramps([3, 5]))
    table = run.to_frame()
    assert table.run.unique().tolist() == ["planted"]
    for column, expected in (("r2", run.r2), ("r2_low", run.low), ("r2_high", run.high)):
        wide = table.pivot_table(index="step", columns="block", values=column)
        assert wide.index.tolist() == STEPS.tolist()
        np.testing.assert_array_equal(wide.to_numpy(), expected)


def test_films_are_read_where_there_are_any(tmp_path):
    for name in ("first", "none", "second"):
        (tmp_path / name).mkdir()
        if name != "none":
            (tmp_path / name / "trajectory.json").write_text(json.dumps({"steps": snapshots()}))
    found = films([tmp_path / name for name in ("second", "none", "first", "missing")])
    assert list(found) == ["second", "first"]
    assert found["first"].name == "first"
    assert found["first"].r2.shape == (3, 2)


def damaged(i, key, value):
    found = snapshots()
    if value is None:
        del found[i][key]
    else:
        found[i][key] = value
    return found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "two steps or more"),
        (snapshots([0]), "two steps or more"),
        (snapshots([0, 2, 2]), r"ascending, got \[0, 2, 2\]"),
        (damaged(1, "r2", None), r"damaged \(KeyError\('r2'\)\)"),
        (damaged(1, "r2", [0.9]), "damaged"),
        (damaged(2, "perplexity", float("nan")), "not finite"),
        (damaged(1, "r2_low", [None, 0.3]), "not finite"),
    ],
)
def test_a_damaged_trajectory_is_refused(found, message):
    with pytest.raises(InputError, match="trajectory of odd.*" + message):
        Trajectory.of("odd", found)


# --- Pythia's revisions


def test_only_a_pythia_on_the_hub_has_revisions(tmp_path, monkeypatch):
    assert has_revisions("EleutherAI/pythia-160m")
    for source in ("openai-community/gpt2", "JackFram/llama-160m", "models/mini-pythia", "pythia-160m"):
        assert not has_revisions(source)
    (tmp_path / "EleutherAI" / "pythia-160m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not has_revisions("EleutherAI/pythia-160m")


def test_revisions_are_measured_as_any_model_and_one_at_a_time(tmp_path, rows, monkeypatch):
    """Three saved folders stand for the revisions; before the next is loaded, the last is gone."""
    alive, asked = [], []
    for i, step in enumerate((0, 8, 1_000)):
        tiny("mini-pythia", seed=i).save_pretrained(tmp_path / f"step{step}")

    def load(source, revision):
        gc.collect()
        assert [ref for ref in alive if ref() is not None] == []
        model = load_model(tmp_path / revision)
        asked.append((source, revision))
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(trajectory, "load_model", load)
    found = []
    for one in revisions("EleutherAI/pythia-160m", rows, (1_000, 8, 0)):
        gc.collect()
        assert alive[-1]() is None  # nor is it held while the caller works
        found.append(one)
    assert asked == [("EleutherAI/pythia-160m", f"step{step}") for step in (0, 8, 1_000)]
    run = Trajectory.of("pythia", found)
    assert run.r2.shape == (3, BLOCKS)
    for i, one in enumerate(found):
        straight = measure(load_model(tmp_path / f"step{one['step']}"), rows)
        assert one["r2"] == [block.r2 for block in straight.values()]
        assert one["r2_low"] == [block.r2_low for block in straight.values()]
        assert one["r2_high"] == [block.r2_high for block in straight.values()]
        assert run.loss[i] == pytest.approx(np.log(straight.perplexity))
    assert len({tuple(one["r2"]) for one in found}) == 3


def test_a_revision_that_serves_another_ones_weights_is_refused(rows, monkeypatch):
    def load(source, revision):
        return tiny("mini-pythia", seed={"step4": 0}.get(revision, 1))  # steps 0, 1 and 8 are alike

    monkeypatch.setattr(trajectory, "load_model", load)
    found = revisions("EleutherAI/pythia-160m", rows, (0, 1, 4, 8))
    assert [next(found)["step"] for _ in range(3)] == [0, 1, 4]  # a learning rate of 0 at the first step is no fault
    with pytest.raises(SourceError, match="step8 measures to the last digit as step0"):
        next(found)


def test_a_step_that_is_not_public_is_refused(rows):
    with pytest.raises(InputError, match=r"no revision at step \[3, 1500\]"):
        next(revisions("EleutherAI/pythia-160m", rows, (0, 3, 1_500)))


def test_a_revision_of_a_folder_is_refused(gpt2, tmp_path):
    gpt2.save_pretrained(tmp_path / "saved")
    with pytest.raises(InputError, match=r"saved has no revision 'step0', only the Hub keeps them"):
        load_model(tmp_path / "saved", revision="step0")
    with pytest.raises(InputError, match="a model in memory has no revision 'main'"):
        load_model(gpt2, revision="main")
    with pytest.raises(InputError, match="mini-gpt2 has no revision 'step0'"):
        load_model("mini-gpt2", revision="step0")


# --- a sink that grows


def snapshot(step, massive, r2, ordinary):
    values = {"r2": r2, "r2_ordinary": ordinary, "massive_rows": massive}
    return {"step": step} | values | {"written": [1.0, 20.0, 30.0], "attention": [0.1, 0.2, 0.3]}


def test_a_sink_is_born_at_the_step_from_which_rows_stay_massive():
    film = [
        snapshot(0, [0, 0, 0], [0.9, 0.9, 0.9], [0.9, 0.9, 0.9]),
        snapshot(1, [0, 5, 0], [0.8, 0.9, 0.9], [0.8, 0.7, 0.9]),  # block 1 has some, and loses them again
        snapshot(2, [3, 0, 5], [0.7, 0.6, 0.9], [0.6, 0.6, 0.7]),  # those of block 0 do not stay
        snapshot(4, [0, 5, 5], [0.7, 0.7, 0.9], [0.7, 0.4, 0.2]),
    ]
    table = tables.sink(film)
    assert table[["step", "block"]].drop_duplicates().shape == (12, 2)
    assert table.set_index(["step", "block"]).loc[(2, 2)].tolist() == [0.9, 0.7, 5, 30.0, 0.3]
    assert tables.births(table).to_dict("list") == {
        "block": [2, 1],  # what rests on its massive rows most comes first
        "born": [2, 4],
        "r2": [0.9, 0.7],
        "r2_ordinary": [0.2, 0.4],
    }


def test_where_no_row_is_massive_no_sink_is_born():
    film = [snapshot(step, [0, 0, 0], [0.9, 0.9, 0.9], [0.9, 0.9, 0.9]) for step in (0, 1)]
    assert tables.births(tables.sink(film)).empty


# --- what token frequencies are worth


def test_unigram_by_hand():
    train, held_out = torch.tensor([0, 0, 0, 1]), torch.tensor([[2, 0, 1], [0, 2, 0]])
    shares = np.array([4, 2, 1]) / 7  # one added to each count
    assert unigram(train, held_out, 3) == pytest.approx(-np.log(shares[[0, 1, 2, 0]]).mean())
