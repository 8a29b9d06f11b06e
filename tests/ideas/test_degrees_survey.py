"""Notebook 10's tables: what stands in which row, against the same asked of one block at a time."""

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS
from helpers.reference import normal
from howlinear.ideas.degrees import survey
from howlinear.ideas.degrees.hermite import predict_spectrum
from howlinear.ideas.degrees.neurons import take_apart
from howlinear.ideas.degrees.products import learning_curve, polynomial, products
from howlinear.ideas.degrees.spectrum import degrees, loudest
from howlinear.instrument.capture import BlockCapture, capture
from howlinear.text.rows import TokenRows
from tests.ideas.test_degrees import block_of, captured


@pytest.fixture(scope="module")
def long_rows():
    """Random token ids, enough for features in four folds of each side."""
    ids = torch.randint(80, (64, 32), generator=torch.Generator().manual_seed(2))
    return TokenRows.from_ids(ids, folds=4)


def test_a_survey_is_what_each_block_says_alone(gpt2, long_rows):
    found = survey.survey(gpt2, long_rows, 3, [100, 200, 300], [0, 5, 10_000], [0, 2, 4])
    assert found["spectra"].block.tolist() == [block for block in range(BLOCKS) for _ in range(3)]
    assert found["neurons"].block.unique().tolist() == survey.checked_blocks(BLOCKS)
    assert found["products"].block.unique().tolist() == [1]
    block = capture(gpt2, long_rows, [1], sample=long_rows.count)[1]
    parts = take_apart(gpt2, 1)

    spectrum = found["spectra"][found["spectra"].block == 1]
    spreads = ["spread", "spread_lower", "spread_upper"]
    assert list(spectrum) == ["block", "degree", "r2", "low", "high", "hermite", *spreads]
    np.testing.assert_allclose(spectrum.r2, degrees(block, parts, 3).r2, atol=1e-9)
    np.testing.assert_allclose(spectrum.hermite, predict_spectrum(parts, sum(block.train), 3), atol=1e-9)
    _, deviation = parts.spread(sum(block.train))
    assert spectrum.spread.tolist() == [float(deviation.median())] * 3
    assert spectrum.spread_lower.tolist() == [pytest.approx(np.quantile(deviation, 0.25))] * 3
    assert spectrum.spread_upper.tolist() == [pytest.approx(np.quantile(deviation, 0.75))] * 3

    neurons = found["neurons"][found["neurons"].block == 1]
    assert neurons.neurons.tolist() == [0, 5, parts.neurons]  # those that there are, and all
    np.testing.assert_allclose(neurons.r2, loudest(block, parts, [0, 5, parts.neurons]).r2, atol=1e-9)

    kernels = found["kernels"][found["kernels"].block == 1]
    assert kernels.groupby("kernel").rows.max().to_dict() == {"degree 2": 300, "degree 3": 200, "Gaussian": 200}
    curve = learning_curve(block, polynomial(3), [100, 200])
    cubic = kernels[kernels.kernel == "degree 3"]
    np.testing.assert_allclose(cubic.r2, [point.r2.value for point in curve], atol=1e-9)
    assert found["kernels"][found["kernels"].block == 0].kernel.unique().tolist() == ["degree 2"]

    leading = found["products"]
    assert leading.directions.tolist() == [0, 2, 4]
    np.testing.assert_allclose(leading.r2, products(block, [0, 2, 4]).r2, atol=1e-9)


@pytest.mark.parametrize(("held", "passes"), [(1, 3), (2 * 2_048 * 32, 2), (10**9, 1)])
def test_blocks_come_in_order_as_many_a_pass_as_fit(gpt2, long_rows, monkeypatch, held, passes):
    asked = []

    def counted(*args, **settings):
        asked.append(args[2])
        return capture(*args, **settings)

    monkeypatch.setattr("howlinear.ideas.degrees.survey.capture", counted)
    found = list(survey.captured_blocks(gpt2, long_rows, range(3), held))
    assert [block for block, _ in found] == [0, 1, 2]
    assert len(asked) == passes
    assert all(len(block.rows().x) == long_rows.count for _, block in found)


def test_teachers_stand_in_rows_of_their_own():
    x, parts = normal(1_000, 5), block_of(torch.relu)
    table = survey.teacher_table(captured(x, parts(x)), parts, 3)
    found = table.pivot_table(index="teacher", columns="degree", values="r2")
    assert found.index.tolist() == found.columns.tolist() == [1, 2, 3]
    assert (np.diag(found) > 0.99).all()
    assert found.loc[3, 2] < 0.2


def test_streamed_products_of_a_model_are_a_curve(gpt2, long_rows):
    found = survey.streamed_table(gpt2, long_rows, 1, [400, 900])
    assert list(found) == ["rows", "r2", "low", "high", "ridge"]
    assert found.rows.tolist() == [400, 900]


@pytest.fixture
def neurons():
    """The line explains 0.6, all squares 0.8."""
    return pd.DataFrame({"neurons": [0, 16, 32], "size": [4, 20, 36], "r2": [0.6, 0.75, 0.8]})


def test_shares_are_of_the_step_from_the_line_to_all_squares(neurons):
    found = survey.share_table(neurons, {1: 0.1, 4: 0.5})
    assert found.source.tolist() == ["neurons"] * 3 + ["probe"] * 2
    assert found.products.tolist() == [0, 16, 32, 1, 4]
    # half of the 0.4 that the line leaves is 0.2: all of the step
    np.testing.assert_allclose(found.share, [0, 0.75, 1, 0.2, 1])
    assert survey.reach(found, "neurons", 0.9) == 32
    assert survey.reach(found, "neurons", 0.7) == 16
    assert survey.reach(found, "probe", 0.9) == 4
    assert survey.reach(found, "probe", 1.1) is None


def test_training_is_read_at_the_middle_block_of_models_that_recorded_it():
    step = {"step": 8, "degrees": {"0": {"r2": [0.1, 0.2], "spread": 3.0}, "4": {"r2": [0.5, 0.7], "spread": 1.5}}}
    watched = {"family": "gpt2", "blocks": 8, "steps": [step, step | {"step": 16}]}
    unwatched = {"family": "pythia", "blocks": 8, "steps": [{"step": 8}]}
    found = survey.training_table([unwatched, watched])
    assert found.family.unique().tolist() == ["gpt2"]
    assert found.step.tolist() == [8, 8, 16, 16]
    assert found.r2.tolist() == [0.5, 0.7] * 2
    assert found.spread.tolist() == [1.5] * 4


def test_results_keep_every_number_where_readers_look_for_it(neurons):
    spectra = pd.DataFrame({"block": [0, 0, 1, 1], "degree": [1, 2] * 2, "r2": [0.1, 0.2, 0.3, 0.4]})
    spectra = spectra.assign(low=spectra.r2 - 0.0625, high=spectra.r2 + 1, hermite=spectra.r2 / 2)
    spectra = spectra.assign(spread=0.7, spread_lower=0.1, spread_upper=0.9)
    curve = pd.DataFrame({"rows": [10, 20], "r2": [0.5, 0.6], "low": [0.4, 0.5], "high": [0.6, 0.7], "ridge": 0.1})
    leading = pd.DataFrame({"directions": [0, 2], "size": [4, 7], "r2": [0.6, 0.7]})
    tables = {
        "spectra": spectra,
        "fresh": spectra[spectra.block == 1],
        "neurons": neurons.assign(block=1),
        "kernels": curve.assign(block=1, kernel="degree 2"),
        "products": leading.assign(block=1),
        "shares": survey.share_table(neurons, {1: 0.1, 4: 0.5}).assign(block=1),
        "streamed": curve.assign(block=1),
    }
    tables = {kind: table.assign(model="tiny") for kind, table in tables.items()}
    found = survey.results(tables, 0.9)["tiny"]
    point = {"rows": 10, "r2": 0.5, "low": 0.4, "high": 0.6, "ridge": 0.1}
    block = found["blocks"][1]
    assert set(block) == {"block", "spread", "spread_lower", "spread_upper", "r2", "low", "high", "hermite"}
    assert (block["block"], block["spread"], block["r2"]) == (1, 0.7, [0.3, 0.4])
    assert (block["spread_lower"], block["spread_upper"]) == (0.1, 0.9)
    assert block["low"] == pytest.approx([0.2375, 0.3375])
    assert block["high"] == pytest.approx([1.3, 1.4])
    assert block["hermite"] == pytest.approx([0.15, 0.2])
    assert found["fresh"] == [0.3, 0.4]
    assert found["streamed"][1][0] == point
    (checks,) = found["checks"].values()
    assert checks["degree 2"][0] == point
    assert checks["loudest"] == {"r2": [0.6, 0.75, 0.8], "sizes": [4, 20, 36]}
    assert checks["products"] == {"r2": [0.6, 0.7], "sizes": [4, 7]}
    assert checks["probe"] == pytest.approx({1: 0.2, 4: 1.0})
    assert checks["reach"] == 32
    tables["streamed"] = tables["streamed"].iloc[:0]
    assert "streamed" not in survey.results(tables, 0.9)["tiny"]


def test_models_are_stacked_kind_by_kind():
    one, other = ({"spectra": pd.DataFrame({"r2": [r2]}), "products": pd.DataFrame({"size": [1]})} for r2 in (0.1, 0.2))
    found = survey.stack_models({"one": one, "other": other})
    assert found["spectra"].to_dict("list") == {"model": ["one", "other"], "r2": [0.1, 0.2]}
    assert list(found) == ["spectra", "products"]


def test_checked_blocks_are_surveyed_whatever_is_asked_for():
    assert survey.surveyed_blocks(30, [0, 3, 28]) == [0, 3, 15, 28, 29]
    assert survey.surveyed_blocks(30) == list(range(30))
    assert survey.surveyed_blocks(6, range(6)) == list(range(6))


def test_some_blocks_of_a_model_say_what_they_say_among_all(gpt2, long_rows):
    arguments = (gpt2, long_rows, 2, [100, 200], [0, 5], [0, 2])
    some, every = survey.survey(*arguments, blocks=[0, 2]), survey.survey(*arguments)
    for kind, table in every.items():
        pd.testing.assert_frame_equal(some[kind], table)  # of three blocks all three are checked


def test_a_summary_is_of_the_checked_blocks_and_says_what_was_not_probed(neurons):
    blocks, ends = [0, 3, 15, 29], [0.5, 0.6, 0.7, 0.8]
    rows = [
        (block, degree, r2 + 0.1 * (degree - 1)) for block, r2 in zip(blocks, ends, strict=True) for degree in (1, 2)
    ]
    spectra = pd.DataFrame(rows, columns=["block", "degree", "r2"]).assign(model="deep")
    spectra["spread"] = spectra.block / 10
    spectra = spectra.assign(spread_lower=0.125, spread_upper=2.0)
    probed = {0: {16: 0.4}, 15: {}, 29: {16: 0.5}}
    shares = pd.concat([survey.share_table(neurons, gains).assign(block=block) for block, gains in probed.items()])
    fresh = pd.DataFrame(
        {"model": "deep", "r2": [0.1, 0.2], "spread": 0.25, "spread_lower": 0.125, "spread_upper": 0.5}
    )
    found = survey.summary({"spectra": spectra, "shares": shares.assign(model="deep"), "fresh": fresh}, 0.9)["deep"]
    assert found["rank 16, of degree 2"] == "0.80, not probed, 1.00"
    assert found["rank for 90% of it"] == "> 16, not probed, 16"
    assert found["spread, quartiles"] == "0.12, 0.25, 0.50 → 0.12, 1.50, 2.00"  # of block 15, the middle one of thirty


def test_shares_of_all_blocks_use_the_ranks_that_were_probed(neurons):
    both = pd.concat([neurons.assign(model="tiny", block=block) for block in (0, 5)])
    swept = {"tiny": {"5": {"1": 0.1, "3": 0.2, "16": 0.4}}}
    found = survey.all_shares(both, swept)
    alone = survey.share_table(neurons, {1: 0.1, 16: 0.4})  # rank 3 is none that is compared
    of_block = found[found.block == 5].drop(columns=["model", "block"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(of_block, alone)
    assert survey.not_probed(found) == [("tiny", 0)]


SPECTRA = pd.DataFrame(
    {
        "model": ["b", "b", "a", "a", "a", "a"],
        "block": [0, 0, 0, 0, 1, 1],
        "degree": [1, 2, 1, 2, 1, 2],
        "r2": [0.5, 0.9, 0.1, 0.2, 0.3, 0.4],
        "hermite": [0.5, 0.8, 0.2, 0.2, 0.1, 0.45],
    }
)


def test_degrees_stand_side_by_side_and_the_largest_miss_keeps_its_sign():
    table = survey.by_degree(SPECTRA, "r2", ["b", "a"])
    assert list(table) == ["R²_1", "R²_2"]
    assert table.index.tolist() == [("b", 0), ("a", 0), ("a", 1)]
    miss = survey.largest_miss(table, survey.by_degree(SPECTRA, "hermite", ["b", "a"]))
    np.testing.assert_allclose(miss.loc["a"], [0.2, -0.05])
    np.testing.assert_allclose(miss.loc["b"], [0, 0.1])


def test_bounds_of_neurons_and_what_all_products_reach_by_hand():
    neurons = pd.DataFrame({"model": "a", "block": 1, "neurons": [0, 8], "r2": [0.3, 0.45]})
    bounds = survey.neuron_bounds({"spectra": SPECTRA, "neurons": neurons})
    assert bounds.to_dict("list") == {"model": ["a"], "block": [1], "pooled": [0.4], "free": [0.45]}
    kernels = pd.DataFrame({"model": "a", "block": 1, "kernel": ["degree 2"] * 3 + ["Gaussian"]})
    kernels["r2"] = [0.2, 0.5, 0.6, 0.9]
    (close,) = survey.close_table(bounds, kernels).to_dict("records")
    assert close == pytest.approx({"pooled": 0.4, "each free": 0.45, "all products": 0.6, "last step": 0.1})


def test_of_each_table_the_rows_of_the_wanted_blocks():
    found = survey.of_blocks({"spectra": SPECTRA, "fresh": SPECTRA.drop(columns="block")}, {"a": 1, "b": 0})
    assert list(found) == ["spectra"]
    assert found["spectra"].r2.tolist() == [0.5, 0.9, 0.3, 0.4]


def test_streamed_curves_are_stacked_and_none_are_a_table_all_the_same():
    curve = pd.DataFrame({"rows": [10, 20], "r2": [0.1, 0.2], "low": 0.0, "high": 1.0, "ridge": 1e-3})
    found = survey.stack_curves({("a", 6): curve})
    assert found.to_dict("list")["model"] == ["a", "a"]
    assert found.block.tolist() == [6, 6]
    assert list(survey.stack_curves({})) == list(found)
    assert survey.stack_curves({}).empty


def test_a_sentence_names_the_blocks_with_massive_rows(gpt2, long_rows, monkeypatch):
    blocks = capture(gpt2, long_rows)
    few = "few massive rows weigh most (notebook 12) in"
    assert survey.blocks_sentence(blocks, [0, 2]) == f"2 of 3 blocks; {few}: none"
    monkeypatch.setattr(BlockCapture, "massive", lambda kept: [0] * (kept is not blocks[2]))
    assert survey.blocks_sentence(blocks, [0, 1, 2]) == f"3 of 3 blocks; {few}: 0, 1"
