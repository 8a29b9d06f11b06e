"""Notebook 10's tables: what stands in which row, against the same asked of one block at a time."""

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS
from helpers import planted_sinks
from helpers.planted_neurons import block_of, captured
from helpers.reference import normal
from howlinear.core import limits
from howlinear.core.ceilings import ceiling, fit, r2
from howlinear.core.gaussian import predict_spectrum
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.files import tables
from howlinear.ideas.degrees import measure
from howlinear.ideas.degrees.products import learning_curve, polynomial, products
from howlinear.ideas.degrees.spectrum import degrees, loudest
from howlinear.instrument.capture import capture
from howlinear.models.units import take_apart
from howlinear.text.rows import TokenRows

ENDS = ["r2", "r2_low", "r2_high"]


def recorded(table, name):
    """The table as it will be on disk: its columns are in the data dictionary, and its keys tell rows apart."""
    return tables.as_recorded(table, "10_degrees", name)


@pytest.fixture(scope="module")
def long_rows():
    """Random token ids, enough for features in four folds of each side."""
    ids = torch.randint(80, (64, 32), generator=torch.Generator().manual_seed(2))
    return TokenRows.from_ids(ids, folds=4)


def test_a_survey_is_what_each_block_says_alone(gpt2, long_rows):
    survey = measure.survey_blocks(
        *("tiny", gpt2, long_rows, [0, 1, 2], [0, 1, 2]),
        degree=3,
        kernel_rows=[100, 200, 300],
        counts=[5, 10_000],
        directions=[0, 2, 4, 10_000],
    )
    assert set(survey) == {"spectra", "blocks", "neurons", "kernels", "directions"}
    for name, table in survey.items():
        assert recorded(table, name)["model"].unique().tolist() == ["tiny"]
    assert survey["spectra"]["block"].tolist() == [block for block in range(BLOCKS) for _ in range(3)]
    assert survey["neurons"]["block"].unique().tolist() == [0, 1, 2]
    block = capture(gpt2, long_rows, [1], sample=long_rows.count)[1]
    parts = take_apart(gpt2, 1)

    spectrum = survey["spectra"].query("block == 1")
    np.testing.assert_allclose(spectrum[ENDS], degrees(block, parts, 3), atol=1e-9)
    np.testing.assert_allclose(spectrum["hermite"], predict_spectrum(parts, sum(block.train), 3), atol=1e-9)

    _, deviation = parts.spread(sum(block.train))
    spread = survey["blocks"].query("block == 1").iloc[0]
    assert spread["spread"] == float(deviation.median())
    assert spread[["spread_lower", "spread_upper"]].tolist() == pytest.approx(np.quantile(deviation, [0.25, 0.75]))

    neurons = survey["neurons"].query("block == 1")
    assert neurons["neurons"].tolist() == [0, 5, parts.neurons]  # those that there are, none and all
    r2 = loudest(block, parts, [0, 5, parts.neurons]).r2
    np.testing.assert_allclose(neurons["r2"], r2, atol=1e-9)
    np.testing.assert_allclose(neurons["share"], [0, (r2[1] - r2[0]) / (r2[2] - r2[0]), 1], atol=1e-9)

    kernels = survey["kernels"].query("block == 1")
    assert kernels.groupby("kernel")["rows"].max().to_dict() == {"degree 2": 300, "degree 3": 200, "Gaussian": 200}
    curve = learning_curve(block, polynomial(3), [100, 200])
    cubic = kernels[kernels["kernel"] == "degree 3"]
    np.testing.assert_allclose(cubic[ENDS], [astuple(point.r2) for point in curve], atol=1e-9)
    assert survey["kernels"].query("block == 0")["kernel"].unique().tolist() == ["degree 2"]

    leading = survey["directions"]
    assert leading[["block", "directions"]].to_numpy().tolist() == [[1, 0], [1, 2], [1, 4]]
    np.testing.assert_allclose(leading["r2"], products(block, [0, 2, 4]).r2, atol=1e-9)


def test_a_model_of_two_blocks_has_a_middle_one(gpt2, long_rows):
    found = measure.survey_blocks("tiny", gpt2, long_rows, [0, 1], [0, 1], 2, [100, 200], [5], [0, 2])
    assert found["directions"]["block"].unique().tolist() == [1]
    assert found["neurons"]["block"].unique().tolist() == [0, 1]


@pytest.mark.parametrize(("held", "passes"), [(1, 3), (2 * 2_048 * 32, 2), (10**9, 1)])
def test_blocks_come_in_order_as_many_a_pass_as_fit(gpt2, long_rows, monkeypatch, held, passes):
    asked = []

    def counted(*args, **settings):
        asked.append(args[2])
        return capture(*args, **settings)

    monkeypatch.setattr(measure, "capture", counted)
    found = list(measure.captured_blocks(gpt2, long_rows, range(3), held))
    assert [block for block, _ in found] == [0, 1, 2]
    assert len(asked) == passes
    assert all(len(block.rows().x) == long_rows.count for _, block in found)


def test_teachers_stand_in_rows_of_their_own():
    x, parts = normal(1_000, 5), block_of(torch.relu)
    table = recorded(measure.teacher_table(captured(x, parts(x)), parts, 3), "teachers")
    found = table.pivot_table(index="teacher", columns="degree", values="r2")
    assert found.index.tolist() == found.columns.tolist() == [1, 2, 3]
    assert (np.diag(found) > 0.99).all()
    assert found.loc[3, 2] < 0.2


def fold_moments(x, y):
    """Moments per document fold of each side: every fourth row held out, folds in turn."""
    block = captured(x, y)
    return block.train, block.test


def test_an_excess_is_the_limit_less_the_prediction_and_its_interval_leaves_folds_out_of_both():
    """Skewed inputs; the same by fitting each time anew."""
    x, parts = normal(1_200, 5).exp().clamp(max=6), block_of(torch.relu)
    train, test = fold_moments(x, parts(x))
    (found,) = measure.excess_table(train, test, parts).to_dict("records")
    known = ceiling(train, test).limit
    assert [found[f"r2_limit{end}"] for end in ("", "_low", "_high")] == pytest.approx(astuple(known), abs=1e-9)

    def excess(fitted, scored):
        fitted, scored = Moments.total(fitted), Moments.total(scored)
        affine, _ = fit(fitted)
        return limits.limit(r2(affine, fitted), r2(affine, scored)) - predict_spectrum(parts, fitted, 1)[0]

    def without_each(folds):
        return [[fold for fold in folds if fold is not left] for left in folds]

    value = excess(train, test)
    expected = Estimate.jackknife(
        value,
        [excess(some, test) for some in without_each(train)],
        [excess(train, some) for some in without_each(test)],
    )
    assert [found[f"excess{end}"] for end in ("", "_low", "_high")] == pytest.approx(astuple(expected), abs=1e-9)
    assert found["r2_gaussian"] == pytest.approx(known.value - value, abs=1e-9)
    assert found["r2_gaussian_low"] < found["r2_gaussian"] < found["r2_gaussian_high"]


@pytest.mark.parametrize("gated", [False, True])
def test_gaussian_inputs_leave_no_excess_and_others_do(gated):
    parts = block_of(torch.relu, gated=gated)
    x = normal(8_000, 5) @ normal(5, 5, seed=1) / 2 + 0.3
    (drawn,) = measure.excess_table(*fold_moments(x, parts(x)), parts).to_dict("records")
    assert drawn["excess_low"] < 0 < drawn["excess_high"]
    assert abs(drawn["excess"]) < 0.02
    two = torch.where(normal(8_000, 1, seed=2) > 1.6, x + 40, x)  # a few rows far out: a line goes through two clouds
    (clouds,) = measure.excess_table(*fold_moments(two, parts(two)), parts).to_dict("records")
    assert clouds["excess_low"] > 0.05


def test_too_few_rows_have_a_prediction_and_no_excess():
    x, parts = normal(56, 28), block_of(torch.square, d=28)
    (found,) = measure.excess_table(*fold_moments(x, parts(x)), parts).to_dict("records")
    assert 0 <= found["r2_gaussian"] < 1
    assert np.isnan([found["r2_limit"], found["r2_limit_low"], found["excess"], found["excess_high"]]).all()


def test_ordinary_rows_have_an_excess_of_their_own(gpt2, monkeypatch):
    x, y, *places = planted_sinks.teacher()
    block, parts = planted_sinks.captured(x, y, *places), block_of(torch.relu, d=12, out=12)
    massive, few = block.massive(), planted_sinks.captured(*planted_sinks.teacher(sink=0.0))
    assert len(massive)
    assert not len(few.massive())
    monkeypatch.setattr(measure, "take_apart", lambda model, number: parts)
    table = recorded(measure.gaussian_table("tiny", gpt2, {2: block, 5: few}), "gaussian")
    assert table[["block", "counted"]].to_numpy().tolist() == [[b, c] for b in (2, 5) for c in ("all", "ordinary")]

    others = block.ordinary()
    columns = ["r2_limit", "r2_gaussian", "excess", "excess_low"]
    expected = pd.concat([measure.excess_table(part.train, part.test, parts) for part in (block, others, few, few)])
    np.testing.assert_allclose(table[columns], expected[columns], atol=1e-3)
    keep = torch.linalg.vector_norm(y, dim=1) <= 10 * massive.median
    squares = [(rows - rows.mean(0)).square().sum().item() for rows in (y.double(), y[keep].double())]
    np.testing.assert_allclose(table["massive_share"], [1 - squares[1] / squares[0], 0, 0, 0], atol=1e-3)


def test_how_well_it_is_predicted_by_hand():
    """Excesses 0.1, −0.2 and 0.3: as the massive rows' shares go up, so do their sizes."""
    table = pd.DataFrame({"model": "a", "block": range(4), "counted": "all", "massive_share": [0.0, 0.5, 0.9, 0.7]})
    table["r2_limit"], table["r2_gaussian"] = [0.6, 0.5, 0.9, np.nan], [0.5, 0.7, 0.6, 0.1]
    table["excess"] = [0.1, -0.2, 0.3, np.nan]
    (found,) = recorded(measure.predicted_table(table), "predicted").to_dict("records")
    assert found.pop("correlation") == round(np.corrcoef([0.6, 0.5, 0.9], [0.5, 0.7, 0.6])[0, 1], 2)
    assert found == {"model": "a", "counted": "all", "blocks": 3, "error": 0.2, "within": 1, "follows_massive": 1.0}
    assert recorded(measure.predicted_table(table.assign(r2_limit=np.nan)), "predicted").empty


def test_streamed_products_of_a_model_are_a_curve(gpt2, long_rows):
    table = measure.with_keys(measure.streamed_table(gpt2, long_rows, 1, [400, 900]), "tiny", 1)
    keys = recorded(table, "streamed")[["model", "block", "rows"]].to_numpy().tolist()
    assert keys == [["tiny", 1, 400], ["tiny", 1, 900]]


def test_a_probes_share_is_of_the_step_from_the_line_to_all_squares_by_hand():
    """The line explains 0.6, all squares 0.8: half of the 0.4 that the line leaves is all of the step."""
    neurons = pd.DataFrame({"model": "a", "block": 3, "neurons": [0, 16, 32], "r2": [0.6, 0.75, 0.8]})
    ranks = pd.DataFrame({"model": "a", "block": [3, 3, 4], "rank": [1, 4, 1], "recovered": [0.1, 0.5, 0.3]})
    table = recorded(measure.probe_table(neurons, ranks), "probes")
    assert table.to_dict("list") == {"model": ["a"] * 2, "block": [3, 3], "rank": [1, 4], "share": [0.2, 1.0]}
    elsewhere = recorded(measure.probe_table(neurons, ranks.assign(model="b")), "probes")
    assert elsewhere.empty


def test_training_is_read_at_the_middle_block_of_models_that_recorded_it():
    step = {"step": 8, "degrees": {"0": {"r2": [0.1, 0.2], "spread": 3.0}, "4": {"r2": [0.5, 0.7], "spread": 1.5}}}
    watched = {"family": "gpt2", "blocks": 8, "steps": [step, step | {"step": 16}]}
    unwatched = {"family": "pythia", "blocks": 8, "steps": [{"step": 8}]}
    found = measure.training_table([unwatched, watched])
    assert found["family"].unique().tolist() == ["gpt2"]
    assert found["step"].tolist() == [8, 8, 16, 16]
    assert found["r2"].tolist() == [0.5, 0.7] * 2
    assert found["spread"].tolist() == [1.5] * 4
