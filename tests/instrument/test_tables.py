import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS, WIDTH, tiny
from howlinear.core.ceilings import fit, r2
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import capture, describe
from howlinear.instrument.measure import measure
from howlinear.instrument.perplexity import Change
from howlinear.instrument.tables import (
    by_block,
    ceilings_record,
    ceilings_table,
    inputs_summary,
    inputs_table,
    likeness,
    linearity_and_cost,
    null_directions,
    null_rule_table,
    order_of_magnitude,
    profile_summary,
    swap_table,
)


@pytest.fixture
def captures(rows):
    models = {"gpt2": tiny("mini-gpt2"), "llama": tiny("mini-llama", seed=1)}
    return {name: capture(model, rows, sample=rows.ids.numel()) for name, model in models.items()}


def test_the_table_of_inputs_has_a_row_a_block_and_model(captures):
    table = inputs_table(captures)
    assert list(zip(table["model"], table["block"], strict=True)) == [
        (name, block) for name in ("gpt2", "llama") for block in range(BLOCKS)
    ]
    assert (table["width"] == WIDTH).all()
    row = table.iloc[BLOCKS + 1]
    found = describe(captures["llama"][1])
    assert row["condition"] == found.condition
    assert row["first_position_out"] == found.first_position_out


def test_inputs_without_sampled_rows_are_refused(rows):
    with pytest.raises(InputError, match="capture with sample"):
        inputs_table({"gpt2": capture(tiny("mini-gpt2"), rows)})


INPUTS = pd.DataFrame(
    {
        "model": ["b", "b", "a"],
        "block": [0, 1, 0],
        "width": [8, 8, 4],
        "rank": [7, 6, 4],
        "null": [1e-16, 3e-15, 0.2],
        "second": [1e-3, 1e-2, 0.3],
        "condition": [10.2, 20.6, 3.0],
        "effective_rank": [2.0, 3.1, 4.0],
    }
)


def test_null_directions_take_the_worst_block_of_each_model():
    table = null_directions(INPUTS)
    assert list(table.index) == ["b", "a"]  # the order of the table, not of the alphabet
    assert table.loc["b"].to_dict() == {
        "width": 8,
        "rank": 7,
        "smallest, at most": 3e-15,
        "next, at least": 1e-3,
    }


def test_the_summary_of_inputs_by_hand():
    assert inputs_summary(INPUTS).to_dict("index") == {
        "b": {"largest condition number": 20.6, "mean effective rank": 2.6, "null directions": 2},
        "a": {"largest condition number": 3.0, "mean effective rank": 4.0, "null directions": 0},
    }


def test_a_threshold_above_a_planted_eigenvalue_takes_its_direction_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    x[:, 2] = x[:, 1] + 1e-3 * x[:, 2]  # one direction with a millionth of the others' variance
    y = torch.randn(200, 2, generator=generator, dtype=torch.float64) + x @ torch.randn(
        3, 2, generator=generator, dtype=torch.float64
    )
    train = Moments(3, 2).update(x[:150], y[:150])
    test = Moments(3, 2).update(x[150:], y[150:])
    table = null_rule_table(train, {"r2": test, "in sample": train}, [0.0, 1e-3])
    assert table["threshold"].tolist() == [0.0, 1e-3]
    assert table["rank"].tolist() == [3, 2]
    for threshold, row in zip([0.0, 1e-3], table.itertuples(index=False), strict=True):
        affine, _ = fit(train, null=threshold)
        assert row.r2 == pytest.approx(r2(affine, test), rel=1e-12)
        assert row[-1] == pytest.approx(r2(affine, train), rel=1e-12)
        assert row[2] == pytest.approx(float(affine.weight.abs().max()), rel=1e-12)
    assert table["largest weight"][0] > 10 * table["largest weight"][1]


def test_errors_are_rounded_to_powers_of_ten_between_two_bounds():
    errors = order_of_magnitude({"none": 0.0, "small": 2e-6, "larger": 4e-6, "lost": 33.0}, least=1e-10, most=1e-2)
    assert list(errors.index) == ["none", "small", "larger", "lost"]
    np.testing.assert_allclose(errors, [1e-10, 1e-6, 1e-5, 1e-2], rtol=1e-12)


FRESH = {
    "llama": Baseline(np.array([-0.2, 0.1, 0.2]), np.array([0.5, 0.4, 0.3]), 20_000),
    "gpt2": Baseline(np.array([0.7, 0.8, 0.9]), np.array([0.71, 0.81, 0.91]), 80_000),
}


@pytest.fixture
def profiles(rows):
    return {name: measure(tiny(f"mini-{name}"), rows) for name in ("llama", "gpt2")}


def test_the_table_of_ceilings_is_the_profiles_one_below_the_other(profiles):
    table = ceilings_table(profiles, FRESH)
    assert table["model"].tolist() == ["llama"] * BLOCKS + ["gpt2"] * BLOCKS
    for name, blocks in table.groupby("model"):
        expected = profiles[name].to_frame()
        pd.testing.assert_frame_equal(blocks[list(expected.columns)].reset_index(drop=True), expected)
        assert blocks["r2_untrained"].tolist() == FRESH[name].held_out.tolist()
        assert blocks["r2_untrained_in_sample"].tolist() == FRESH[name].in_sample.tolist()
        assert set(blocks["untrained_rows"]) == {FRESH[name].rows}
    assert "r2_untrained" not in ceilings_table(profiles)


COSTS = {
    "b": {0: Change(Estimate(3.0, 2.0, 4.0)), 1: Change(Estimate(1.0, 0.5, 1.5))},
    "a": {0: Change(Estimate(0.1, 0.0, 0.2))},
}


def test_the_table_of_swaps_by_hand():
    assert swap_table(COSTS).to_dict("records") == [
        {"model": "b", "block": 0, "delta": 3.0, "low": 2.0, "high": 4.0},
        {"model": "b", "block": 1, "delta": 1.0, "low": 0.5, "high": 1.5},
        {"model": "a", "block": 0, "delta": 0.1, "low": 0.0, "high": 0.2},
    ]


def test_models_stand_side_by_side_in_the_tables_order():
    table = by_block(swap_table(COSTS), "delta")
    assert list(table.columns) == ["b", "a"]
    assert table["b"].tolist() == [3.0, 1.0]
    assert table["a"][0] == 0.1
    assert np.isnan(table["a"][1])  # a has one block alone


def curves(**r2):
    """A table of ceilings for some profiles."""
    return pd.DataFrame(
        {"model": name, "block": block, "r2": value}
        for name, values in r2.items()
        for block, value in enumerate(values)
    )


def test_likeness_by_hand():
    table = likeness(curves(a=[0.9, 0.2, 0.3, 0.4, 0.8], b=[0.8, 0.4, 0.3, 0.2, 0.9], c=[0.5, 0.5, 0.6]))
    assert list(table.index) == ["a ~ b"]  # c has another depth
    assert table["largest_gap"].iloc[0] == pytest.approx(0.2)
    assert table["inner"].iloc[0] == pytest.approx(-1)
    first, second = np.array([0.9, 0.2, 0.3, 0.4, 0.8]), np.array([0.8, 0.4, 0.3, 0.2, 0.9])
    centred = first - first.mean(), second - second.mean()
    expected = (centred[0] * centred[1]).sum() / np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    assert table["pearson"].iloc[0] == pytest.approx(expected)


def test_a_single_profile_is_like_no_other():
    assert likeness(curves(a=[0.9, 0.2, 0.3])).empty


def test_linearity_goes_with_cost_or_against_it():
    swaps = pd.concat([curves(a=[5.0, 2.0, 9.0]), curves(b=[1.0, 0.5, 3.0])]).rename(columns={"r2": "delta"})
    found = linearity_and_cost(curves(a=[0.5, 0.2, 0.9], b=[0.1, 0.9, 0.0]), swaps.sample(frac=1, random_state=0))
    assert found == {"a": pytest.approx(1), "b": pytest.approx(-1)}


def test_the_summary_of_profiles_by_hand(profiles):
    table = ceilings_table(profiles, FRESH)
    table.loc[table["model"] == "gpt2", "r2"] = [0.5, 0.9, 0.6]
    table.loc[table["model"] == "gpt2", "r2_untrained"] = [0.1, 0.3, 0.6]
    table.loc[table["model"] == "gpt2", "r2_untrained_in_sample"] = [0.3, 0.3, 0.6]
    row = profile_summary(profiles, table).loc["gpt2"]
    assert row["lowest"] == 0.5
    assert row["highest"] == 0.9
    assert row["largest step"] == pytest.approx(0.4)
    assert row["trained − fresh"] == pytest.approx(0.9 / 3)
    assert row["fresh spread"] == pytest.approx(0.4)
    assert row["fresh ±"] == pytest.approx(0.1)
    assert row["rises and falls"] == profiles["gpt2"].rises_and_falls


def test_the_record_holds_what_other_notebooks_and_the_report_read(profiles):
    ceilings = ceilings_table(profiles, FRESH)
    costs = {name: {block: Change(Estimate(-float(block), -1.0, 1.0)) for block in range(BLOCKS)} for name in profiles}
    swaps = swap_table(costs)
    record = ceilings_record(profiles, ceilings, swaps, {"llama": 0.25, "gpt2": -0.5})
    assert list(record) == ["llama", "gpt2"]
    kept = record["gpt2"]
    for key, value in profiles["gpt2"].to_dict().items():
        assert key == "model" or kept[key] == value
    assert kept["model"] == "gpt2"
    assert kept["untrained"] == FRESH["gpt2"].held_out.tolist()
    assert kept["untrained_in_sample"] == FRESH["gpt2"].in_sample.tolist()
    assert kept["untrained_rows"] == 80_000
    assert kept["swap"] == [{"block": block, "delta": -block, "low": -1.0, "high": 1.0} for block in range(BLOCKS)]
    assert kept["spearman_r2_delta"] == -0.5
    assert kept["rises_and_falls"] is profiles["gpt2"].rises_and_falls
