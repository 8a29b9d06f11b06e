"""The tables of notebook 02, by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS, tiny
from helpers.captures import moments_of
from helpers.reference import normal
from howlinear.core.ceilings import fit, r2, r2_about_scalar
from howlinear.core.fold_maps import fold_spread
from howlinear.ideas.ceilings import (
    compare_profiles,
    describe_models,
    measure_blocks,
    null_rule,
    order_of_magnitude,
    summarise,
)
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import Change
from howlinear.instrument.profile import profile_of


def test_a_threshold_above_a_planted_eigenvalue_takes_its_direction_out():
    x = normal(200, 3)
    x[:, 2] = x[:, 1] + 1e-3 * x[:, 2]  # one direction with a millionth of the others' variance
    y = normal(200, 2, seed=1) + x @ normal(3, 2, seed=2)
    train, test = moments_of(x[:150], y[:150]), moments_of(x[150:], y[150:])
    table = null_rule(train, {"r2": test, "in sample": train}, [0.0, 1e-3])
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
    "llama": Baseline(np.array([-0.2, 0.1, 0.2]), np.array([0.5, 0.4, 0.3]), 20_000, [0, 1, 2]),
    "gpt2": Baseline(np.array([0.7, 0.8, 0.9]), np.array([0.71, 0.81, 0.91]), 80_000, [0, 1, 2]),
}


@pytest.fixture
def captures(rows):
    return {name: capture(tiny(f"mini-{name}"), rows) for name in ("llama", "gpt2")}


@pytest.fixture
def profiles(captures, rows):
    perplexity = {"llama": None, "gpt2": 12.5}
    return {name: profile_of(kept, name, rows, perplexity[name]) for name, kept in captures.items()}


@pytest.fixture
def blocks(profiles, captures):
    costs = {block: Change(3.0 - block, 1.0, 4.0) for block in range(BLOCKS)}
    return measure_blocks(profiles, captures, FRESH, {"gpt2": costs})


def test_the_table_of_blocks_is_the_profiles_one_below_the_other(blocks, profiles, captures):
    assert blocks["model"].tolist() == ["llama"] * BLOCKS + ["gpt2"] * BLOCKS
    for name, own in blocks.groupby("model"):
        expected = profiles[name].to_frame().drop(columns=["model", "corpus", "site", "inputs"])
        pd.testing.assert_frame_equal(own[list(expected.columns)].reset_index(drop=True), expected)
        assert own["r2_untrained"].tolist() == FRESH[name].held_out.tolist()
        assert own["r2_untrained_in_sample"].tolist() == FRESH[name].in_sample.tolist()
        held_out = [sum(kept.test) for kept in captures[name].values()]
        about_scalar = [r2_about_scalar(profiles[name][block].map, rows) for block, rows in enumerate(held_out)]
        assert own["r2_scalar"].tolist() == about_scalar
        assert own["r2_sd"].tolist() == [fold_spread(kept.train) for kept in captures[name].values()]
    assert blocks["dppl"].tolist()[BLOCKS:] == [3.0, 2.0, 1.0]
    assert blocks["dppl_low"].tolist()[BLOCKS:] == [1.0] * BLOCKS
    assert blocks["dppl"][:BLOCKS].isna().all()  # it has no loss


def test_a_block_that_was_not_measured_has_no_row_and_the_others_keep_their_untrained_numbers(captures, rows):
    some = {1: captures["gpt2"][1]}
    own = measure_blocks({"gpt2": profile_of(some, "gpt2", rows, None)}, {"gpt2": some}, FRESH, {})
    assert own[["block", "r2_untrained", "r2_untrained_in_sample"]].to_numpy().tolist() == [[1, 0.8, 0.81]]


def test_models_by_hand(profiles, blocks):
    blocks = blocks.assign(r2=[0.5, 0.9, 0.6, 0.1, 0.3, 0.2])
    rows = profiles["gpt2"].rows
    two_each = torch.tensor([[place, place + 1] for place in range(len(rows.ids))])  # documents of a sequence
    profiles["gpt2"] = replace(profiles["gpt2"], rows=replace(rows, spans=two_each))
    llama, gpt2 = describe_models(profiles, FRESH, blocks).to_dict("records")
    assert np.isnan(llama["perplexity"])
    assert np.isnan(llama["spearman"])
    assert gpt2["spearman"] == pytest.approx(-0.5)  # of 0.1, 0.3, 0.2 with 3, 2, 1
    assert gpt2["perplexity"] == 12.5
    assert gpt2["untrained_rows"] == 80_000
    assert gpt2["rows"] == profiles["gpt2"].rows_used
    assert gpt2["documents"] == len(two_each[rows.test].unique()) > 0
    assert np.isnan(llama["documents"])
    assert gpt2["rows_sha256"] == profiles["gpt2"].rows.sha256


def test_the_summary_by_hand(profiles, blocks):
    of_gpt2 = blocks["model"] == "gpt2"
    blocks.loc[of_gpt2, "r2"] = [0.5, 0.9, 0.6]
    blocks.loc[of_gpt2, "r2_untrained"] = [0.1, 0.3, 0.6]
    blocks.loc[of_gpt2, "r2_untrained_in_sample"] = [0.3, 0.3, 0.6]
    row = summarise(blocks, pd.DataFrame({"model": ["gpt2", "llama"], "rises_and_falls": [True, False]})).loc["gpt2"]
    assert (row["lowest"], row["highest"], row["rises and falls"]) == (0.5, 0.9, True)
    assert row["largest step"] == pytest.approx(0.4)
    assert row["trained − fresh"] == pytest.approx(0.9 / 3)
    assert row["fresh spread"] == pytest.approx(0.4)
    assert row["fresh ±"] == pytest.approx(0.1)


def curves(**r2):
    """A table of blocks for some profiles."""
    return pd.DataFrame(
        {"model": name, "block": block, "r2": value}
        for name, values in r2.items()
        for block, value in enumerate(values)
    )


def test_likeness_by_hand():
    table = compare_profiles(curves(a=[0.9, 0.2, 0.3, 0.4, 0.8], b=[0.8, 0.4, 0.3, 0.2, 0.9], c=[0.5, 0.5, 0.6]))
    (row,) = table.to_dict("records")  # c has another depth
    assert (row["model"], row["other"]) == ("a", "b")
    assert row["largest_gap"] == pytest.approx(0.2)
    assert row["inner"] == pytest.approx(-1)
    assert row["pearson"] == pytest.approx(0.338 / 0.388)  # of deviations from 0.52
    assert compare_profiles(curves(a=[0.9, 0.2, 0.3])).empty
    assert np.isnan(compare_profiles(curves(a=[0.9, 0.2], b=[0.8, 0.3])).inner[0])
