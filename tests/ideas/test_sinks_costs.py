"""Swap costs in a tiny model with a planted sink: dear with the map that sinks bend, cheap where they are left out."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t as student_t

from helpers.captures import seen_at_sites
from helpers.families import small
from helpers.planted_sinks import sunk_model
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.files.tables import stack, with_ends
from howlinear.ideas.sinks import costs as module
from howlinear.ideas.sinks.costs import COLUMNS, KINDS, chosen_blocks, cost_table, keep_massive, worth_table
from howlinear.ideas.sinks.measure import block_table, first_rows, look
from howlinear.ideas.sinks.planted import planted
from howlinear.ideas.sinks.planted import sunk as planted_twice
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.swap import swap

BLOCK = 1


@pytest.fixture(scope="module")
def sunk():
    """A tiny model whose block 1 writes a huge constant at position 0, a text of its own, and what is seen of both."""
    with sunk_model(BLOCK) as (model, rows):
        blocks = capture(model, rows, sample=2_000)
        first = first_rows(model, rows)
        looks = {("tiny", number): look(block, [0], [0], first[number]) for number, block in blocks.items()}
        yield model, rows, looks


@pytest.fixture(scope="module")
def costs(sunk):
    model, rows, looks = sunk
    return cost_table("tiny", model, looks, rows, [0, BLOCK])


def test_a_map_of_ordinary_rows_with_sinks_left_alone_is_far_cheaper(sunk, costs):
    nats = costs.query("block == @BLOCK").set_index("kind")["nats"]
    assert list(nats.index) == list(KINDS)
    assert (costs.query("block == @BLOCK")["massive_rows"] == len(sunk[1].ids)).all()
    assert nats["a"] > 0.2
    assert nats["b"] > 0.2  # it is the fit of all other rows that is spoilt
    assert nats["c"] > 0.2  # that map knows nothing of sinks,
    ordinary = costs.query("block == @BLOCK and kind == 'c'").iloc[0]
    assert ordinary["nats_first"] > 10 * abs(ordinary["nats_later"])  # which are at position 0
    assert abs(nats["d"]) < 0.02
    assert abs(nats["e"]) < 0.02  # what was planted is a constant
    assert costs.query("block == 0")["kind"].tolist() == ["a", "e"]


def test_costs_are_those_of_the_instrument(sunk, costs):
    model, rows, looks = sunk
    affine = looks["tiny", BLOCK].solved.ceiling.map
    expected = swap_costs(model, {BLOCK: affine}, rows)[BLOCK]
    found = costs.query("block == @BLOCK and kind == 'a'").iloc[0]
    assert (found["delta"], found["delta_low"], found["delta_high"]) == pytest.approx(
        (expected.delta, expected.low, expected.high), rel=1e-6
    )
    with swap(model, {BLOCK: affine}):
        after = losses(model, rows.ids[rows.test])
    before = losses(model, rows.ids[rows.test])
    assert found["nats"] == pytest.approx(float((after - before).mean()), rel=1e-6)
    assert found["perplexity"] == pytest.approx(float(before.mean().exp()), rel=1e-6)
    predicted = rows.ids.shape[1] - 1
    pooled = (found["nats_first"] + (predicted - 1) * found["nats_later"]) / predicted
    assert pooled == pytest.approx(found["nats"], rel=1e-9)
    assert found["nats_low"] < found["nats"] < found["nats_high"]


def test_what_another_map_saves_is_paired_over_document_folds(sunk, costs):
    model, rows, looks = sunk
    maps = module.swaps(model, BLOCK, looks["tiny", BLOCK], torch.zeros(1), rows.ids.shape[1])
    fold = rows.fold[rows.test]
    before = losses(model, rows.ids[rows.test])
    rise = {}
    for kind in "ac":
        with swap(model, {BLOCK: maps[kind]}):
            rise[kind] = losses(model, rows.ids[rows.test]) - before
    shares = [float(1 - rise["c"][fold != left].mean() / rise["a"][fold != left].mean()) for left in fold.unique()]
    half = student_t.ppf(0.975, len(shares) - 1) * ((len(shares) - 1) * np.var(shares)) ** 0.5
    whole = float(1 - rise["c"].mean() / rise["a"].mean())
    found = costs.query("block == @BLOCK").set_index("kind")
    assert found.loc["c", with_ends("mended")].tolist() == pytest.approx([whole, whole - half, whole + half], abs=1e-5)
    assert (found.loc["a", with_ends("mended")] == 0).all()


def test_massive_rows_keep_the_ffn_and_others_get_the_map():
    affine = AffineMap(torch.zeros(2, 2).double(), torch.tensor([7.0, 8.0]).double())
    x = torch.tensor([[[1.0, 0.0], [100.0, 0.0]], [[0.0, 4.9], [0.0, 5.1]]])
    found = keep_massive(lambda x: 2 * x, affine, 10.0, x)
    expected = torch.tensor([[[7.0, 8.0], [200.0, 0.0]], [[7.0, 8.0], [0.0, 10.2]]])
    torch.testing.assert_close(found, expected)


def test_position_0_of_every_sequence_gets_the_constant():
    affine = AffineMap(torch.eye(2).double(), torch.zeros(2).double())
    x = torch.arange(12.0).view(2, 3, 2)
    expected = x.clone()
    expected[:, 0] = torch.tensor([-1.0, -2.0])
    constant = torch.tensor([-1.0, -2.0])
    assert torch.equal(module.put_constant_first(affine, constant, 3, x), expected)
    in_one_line = module.put_constant_first(affine, constant, 3, x.view(6, 2))  # as some models lay all rows
    assert torch.equal(in_one_line, expected.view(6, 2))
    assert torch.equal(x, torch.arange(12.0).view(2, 3, 2))


def test_a_change_is_planted_where_an_ffn_lies_in_two_modules_too(ids):
    model = small("bert")
    inputs = {"input_ids": ids[:2] % 40}
    x, y = seen_at_sites(model, inputs)[0]
    with planted(model, 0, lambda x, y: 2 * y + x):
        read, written = seen_at_sites(model, inputs)[0]
    assert torch.equal(read, x)
    torch.testing.assert_close(written, 2 * y + x)


def test_a_sink_is_planted_in_two_steps_at_position_0_alone(gpt2, ids):
    def outputs():
        seen = seen_at_sites(gpt2, {"input_ids": ids})
        return {block: y.unflatten(0, ids.shape) for block, (_, y) in seen.items()}

    mark = 3 * torch.eye(32)[4]
    before = outputs()
    with planted_twice(gpt2, 1, mark, 100 * mark):
        after = outputs()
    torch.testing.assert_close(after[0][:, 0] - before[0][:, 0], mark.expand(len(ids), -1), atol=1e-5, rtol=1e-5)
    assert torch.equal(after[0][:, 1:], before[0][:, 1:])
    assert (after[1][:, 0, 4] > 250).all()
    assert torch.equal(outputs()[1], before[1])
    with planted_twice(gpt2, 2, mark, mark, marking=0):
        after = outputs()
    torch.testing.assert_close(after[0][:, 0] - before[0][:, 0], mark.expand(len(ids), -1), atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="no block"), planted_twice(gpt2, 0, mark, mark):
        pass


def test_an_encoder_has_no_costs_and_the_table_says_so(sunk):
    _, rows, looks = sunk
    table = cost_table("tiny", small("bert"), looks, rows, [0])
    assert table.empty
    assert {"model", "block", "nats", "delta"} <= set(table.columns)
    assert stack([table, table], COLUMNS).empty
    assert worth_table(table).empty


def test_costs_stand_beside_one_another(costs):
    table = worth_table(costs)
    assert list(table.index) == [("tiny", 0), ("tiny", BLOCK)]
    sunk_block = table.loc[("tiny", BLOCK)]
    assert 0.9 < sunk_block["mended"] < 1.1
    assert sunk_block["mended"] == pytest.approx(1 - sunk_block["d"] / sunk_block["a"])
    assert table.loc[("tiny", 0), ["b", "c", "d", "mended"]].isna().all()
    nothing = costs.iloc[:0]
    both = stack([nothing, costs, nothing, costs.assign(model="other")], COLUMNS)
    pd.testing.assert_frame_equal(both[: len(costs)], costs)


def test_chosen_are_the_massive_ones_and_both_ends_of_the_others(sunk):
    _, _, looks = sunk
    assert chosen_blocks(block_table(looks), others=0) == {"tiny": [BLOCK]}
    falls = {0: 0.0, 1: 0.3, 2: 0.0, 3: -0.5, 4: 0.0, 5: 0.01, 6: 0.0}
    r2 = {0: 0.9, 1: 0.9, 2: 0.2, 3: 0.9, 4: 0.5, 5: 0.9, 6: 0.7}
    table = pd.DataFrame({"model": "m", "block": list(falls), "fall": falls.values(), "r2": r2.values()})
    table["massive_rows"] = np.where(table["fall"] == 0, 0, 5)
    assert chosen_blocks(table, most=2, others=0) == {"m": [1, 3]}
    assert chosen_blocks(table, most=0, others=2) == {"m": [0, 2]}
    assert chosen_blocks(table, most=0, others=3) == {"m": [0, 2, 6]}
    assert chosen_blocks(table) == {"m": [0, 1, 2, 3, 5]}
