"""What carries R²_lin: planted sinks are tokens, a planted loud column is a feature, heavy tails are neither."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import tiny
from helpers.captures import seen_at_sites
from helpers.families import VOCABULARY, small
from helpers.planted_sinks import SEQ_LEN, captured, teacher, token_ids
from helpers.reference import held_out_r2, least_squares, pooled_r2
from howlinear.errors import InputError
from howlinear.ideas.sinks import measure, tokens
from howlinear.instrument.massive import HeavyRows
from howlinear.text.rows import TokenRows

COUNTS = [0, 1, 64, 256, 300]
FEATURES = [0, 1, 4]


def seen(**plant):
    return measure.look(captured(*teacher(**plant)), COUNTS, FEATURES)


def curve(found, kind):
    """Number left out → R²_lin."""
    return {point["left_out"]: point["r2"] for point in found.curves if point["kind"] == kind}


def sides(x, y, test, kept):
    """Train and held-out rows of those that are kept."""
    return (x[kept & ~test], y[kept & ~test]), (x[kept & test], y[kept & test])


def test_what_is_left_without_the_heaviest_is_a_fit_of_all_other_rows():
    x, y, test, *_ = rows = teacher()
    block = captured(*rows)
    found = measure.look(block, COUNTS, FEATURES)
    heaviest = y.norm(dim=1).argsort(descending=True)
    of_all = least_squares(x[~test], y[~test])[:2]
    for count, r2 in curve(found, "heaviest rows").items():
        kept = torch.ones(len(x), dtype=torch.bool)
        kept[heaviest[:count]] = False
        train, held_out = sides(x, y, test, kept)
        assert r2 == pytest.approx(held_out_r2(train, held_out), abs=1e-6)
        by_all = measure.rest(block, count, found.solved.ceiling.map).of_all
        assert by_all == pytest.approx(pooled_r2(*held_out, *of_all), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("plant", "massive", "carried_by"),
    [
        ({}, True, "tokens"),
        ({"sink": 0.0, "loud_feature": 100.0}, False, "features"),
        ({"sink": 0.0, "heavy_tails": True}, True, "neither"),
    ],
    ids=["sinks", "a loud feature", "heavy tails"],
)
def test_tokens_or_features_carry_r2_or_neither_does(plant, massive, carried_by):
    found = seen(**plant)
    assert (found.solved.massive_rows > 0) == massive
    assert found.carried_by == carried_by
    assert found.loud.r2 == curve(found, "loudest features")[1]  # of twelve features the loudest one


def test_a_sink_in_a_single_feature_is_a_token_all_the_same():
    x, y, test, fold, sequence, position = teacher(sink=0.0)
    first = position == 0
    x[first, 0] += 60.0
    y[first, 3] = 800 * y.norm(dim=1).median()
    found = measure.look(captured(x, y, test, fold, sequence, position), COUNTS, FEATURES)
    assert found.loud.r2 < 0.8  # without that feature nothing is left of the sink
    assert found.carried_by == "tokens"


def test_what_shows_both_signs_is_both():
    loud = seen(sink=0.0, loud_feature=100.0)
    assert dataclasses.replace(loud, solved=seen().solved).carried_by == "both"


def test_rows_far_out_are_those_of_the_largest_leverage():
    x, y, test, *_ = rows = teacher(sequences=64)
    found = measure.look(captured(*rows), [0, 40], FEATURES)
    far_out = curve(found, "rows far out")
    design = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    gram = design[~test].T @ design[~test]
    leverage = (design @ torch.linalg.inv(gram) * design).sum(1)
    kept = torch.ones(len(x), dtype=torch.bool)
    kept[leverage.argsort(descending=True)[:40]] = False
    assert far_out[0] == pytest.approx(found.solved.ceiling.r2, abs=1e-9)  # all rows are sampled
    assert far_out[40] == pytest.approx(held_out_r2(*sides(x, y, test, kept)), abs=1e-6)


def test_features_are_left_out_by_their_loudness_on_train_rows():
    x, y, test, *_ = rows = teacher(sink=0.0)
    y[test, 5] *= 50  # loud where it is held out: that has no say
    block = captured(*rows)
    affine = measure.look(block, [0], [0]).solved.ceiling.map
    loudest = int(y[~test].var(0).argmax())
    others = [feature for feature in range(12) if feature != loudest]
    expected = pooled_r2(x[test], y[test][:, others], affine.weight[:, others].numpy(), affine.bias[others].numpy())
    assert loudest != 5
    assert measure.r2_without_loudest(affine, block, 1) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match="cannot leave out 12 of 12 output features"):
        measure.r2_without_loudest(affine, block, 12)


def test_what_was_not_kept_is_refused():
    block = captured(*teacher())
    with pytest.raises(InputError, match="none were sampled"):
        measure.look(dataclasses.replace(block, sample=None), [0], [0])
    with pytest.raises(InputError, match="heaviest rows: 768 were kept"):
        measure.look(block, [769], [0])


@pytest.fixture(scope="module")
def looks():
    """A writer, a block that takes away a part of what it wrote, one with sinks elsewhere, and blocks without any."""
    x, y, test, fold, sequence, position = teacher()
    taking = y.clone()
    first = position == 0
    taking[first] = -y[first] / 20
    other = teacher(sink=0.0)[1]
    last = position == SEQ_LEN - 1
    aside = torch.zeros(12)
    written = y[first].mean(0)
    aside[0], aside[1] = written[1], -written[0]  # at right angles to what the first writes
    other[last] = 100 * other.norm(dim=1).median() * torch.nn.functional.normalize(aside, dim=0)
    blocks = {
        ("sunk", 0): captured(x, y, test, fold, sequence, position),
        ("sunk", 1): captured(x, other, test, fold, sequence, position),
        ("sunk", 2): captured(x, taking, test, fold, sequence, position),
        ("plain", 0): captured(*teacher(sink=0.0)),
        ("plain", 1): captured(*teacher(sink=0.0, seed=1)),
    }
    return {place: measure.look(block, COUNTS, FEATURES) for place, block in blocks.items()}


def test_massive_rows_are_described(looks):
    table = tokens.massive_table(looks).set_index(["model", "block"])
    assert list(table.index) == [("sunk", 0), ("sunk", 1), ("sunk", 2)]
    assert (table["massive_rows"] == 256).all()
    assert table["share"].tolist() == pytest.approx([1 / SEQ_LEN] * 3)
    assert table["at_first"].tolist() == [1, 0, 1]
    assert (table["one_direction"] > 0.999).all()
    size = table.loc[("sunk", 0)]
    assert size["size"] == pytest.approx(800, rel=0.2)  # in medians of a first batch that holds the sinks too
    assert size["smallest"] < size["size"] < size["largest"]


def test_one_direction_counts_energy_along_both_of_its_ends():
    outputs = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert tokens.one_direction(outputs) == pytest.approx(0.9)


def test_tokens_are_named_where_they_stand(looks):
    ids = {"sunk": token_ids(), "plain": token_ids()}
    decode = {"sunk": "<{}>".format, "plain": str}
    table = tokens.token_table(looks, ids, decode)
    first = table.query("block == 0")
    assert first["token"].tolist() == ["'<1>'"]
    assert first["place"].tolist() == ["position 0"]
    assert first["rank"].tolist() == [1]
    assert first["count"].tolist() == [256]
    assert first["share"].tolist() == [1.0]
    elsewhere = table.query("block == 1")
    assert set(elsewhere["place"]) == {"elsewhere"}
    assert elsewhere["rank"].tolist() == [1, 2, 3, 4, 5]
    last = token_ids()[:, -1].tolist()
    most_frequent = max(set(last), key=last.count)
    assert elsewhere["count"].iloc[0] == last.count(most_frequent)


def test_the_writer_and_who_takes_away_are_told_apart(looks):
    table = tokens.flow_table(looks).set_index("block")
    assert (table["model"] == "sunk").all()
    assert table["writer"].tolist() == [pd.NA, 0, 0]
    assert table["role"].to_dict() == {0: "writes most", 1: "elsewhere", 2: "takes away"}
    assert table["cosine"].to_dict() == pytest.approx({0: np.nan, 1: 0.0, 2: -1.0}, abs=1e-5, nan_ok=True)
    assert table["same_rows"].to_dict() == pytest.approx({0: np.nan, 1: 0.0, 2: 1.0}, nan_ok=True)
    pairs = tokens.cosine_table(looks).pivot_table(index="block", columns="other", values="cosine").to_numpy()
    np.testing.assert_allclose(np.diag(pairs), 1, atol=1e-6)
    np.testing.assert_allclose(pairs, pairs.T, atol=1e-6)
    assert pairs[0, 2] == pytest.approx(-1.0, abs=1e-6)


def test_massive_rows_begin_where_most_of_them_were_none_before():
    steps = {
        "chain": [
            (0, None, np.nan, "writes first"),
            (5, 0, 0.06, "elsewhere"),
            (6, 5, 0.99, "adds"),
            (8, 6, 0.78, "writes most"),
            (9, 8, 1.0, "adds"),
        ],
        "alone": [(1, None, np.nan, "writes most"), (2, 1, 1.0, "adds")],
        "anew": [(1, None, np.nan, "writes first"), (3, 1, 0.5, "writes most")],
    }
    columns = ["model", "block", "writer", "same_rows", "role"]
    rows = [(model, *step) for model, of_model in steps.items() for step in of_model]
    assert tokens.earlier_writers(pd.DataFrame(rows, columns=columns)) == {"chain": 5}
    assert tokens.earlier_writers(pd.DataFrame([], columns=columns)) == {}


def test_nobody_takes_away_what_is_only_written_later():
    """Two writers along one direction, each with a block behind it that takes away, the first more than was written."""
    x, y, test, fold, sequence, position = teacher()
    sinks = position == 0
    direction = torch.zeros(y.shape[1], dtype=y.dtype)
    direction[0] = float(y[sinks].norm(dim=1).mean())
    looks = {}
    for block, size in enumerate((1.0, -1.2, 30.0, -29.0)):
        outputs = teacher(sink=0.0)[1].clone()
        outputs[sinks] = size * direction
        looks["two", block] = measure.look(captured(x, outputs, test, fold, sequence, position), COUNTS, FEATURES)
    table = tokens.flow_table(dict(reversed(looks.items()))).set_index("block")  # in whatever order they come
    assert table["writer"].tolist() == [pd.NA, 0, 0, 2]
    assert table["role"].tolist() == ["writes first", "takes away", "writes most", "takes away"]
    assert table["cosine"].tolist() == pytest.approx([np.nan, -1, 1, -1], abs=1e-5, nan_ok=True)


def test_every_cut_leaves_out_the_rows_beyond_it(looks):
    table = measure.cut_table(looks)
    sink = table.query("model == 'sunk' and block == 2")  # of some 40 medians
    assert sink["cut"].tolist() == list(measure.CUTS)
    heavy = looks["sunk", 2].heavy
    assert sink["left_out"].tolist() == [int((heavy.norm > cut * heavy.median).sum()) for cut in measure.CUTS]
    assert (sink["left_out"].iloc[0], sink["left_out"].iloc[-1]) == (256, 0)
    assert sink["at_first"].iloc[0] == 1
    assert np.isnan(sink["at_first"].iloc[-1])
    assert sink["r2"].iloc[0] < 0.8 < 0.9 < sink["r2"].iloc[-1]
    plain = table.query("model == 'plain' and block == 0")
    assert plain["left_out"].iloc[1:].tolist() == [0] * (len(measure.CUTS) - 1)
    deciding = measure.block_table(looks).set_index(["model", "block"])["cuts_deciding"]
    assert deciding["sunk", 0] == len(measure.CUTS)
    assert 0 < deciding["sunk", 2] < len(measure.CUTS)
    assert deciding["plain", 0] == 0


def test_heaviest_rows_are_left_out_beyond_the_last_massive_one():
    heavy = captured(*teacher()).heavy_rows()
    counts = measure.heavy_counts(heavy)
    assert counts[:5] == [0, 1, 2, 4, 8]
    assert 256 in counts
    assert counts[-1] == len(heavy) > 256


def test_the_share_that_carries_is_that_of_a_count_of_all_rows():
    x, y, *places = teacher()
    square = (y.double() - y.double().mean(0)).square().sum(1)
    expected = float(square.sum() ** 2 / (len(y) * square.square().sum()))
    block = captured(x, y, *places)
    assert measure.carrying_share(block) == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(1 / SEQ_LEN, rel=0.1)  # one row in so many has nearly all
    thinned = block.sample.position % 2 == 0  # a sample of half the rows: the heavy ones are known all the same
    sampled = dataclasses.replace(block, sample=block.sample.select(thinned))
    assert measure.carrying_share(sampled) == pytest.approx(expected, rel=1e-3)


def test_without_position_0_are_all_other_rows_exactly():
    x, y, test, fold, sequence, position = rows = teacher()
    block = captured(*rows)
    at_first = position == 0
    rounded = 1 + 1e-6 * torch.randn(256, 1, generator=torch.Generator().manual_seed(0))  # as another pass rounds
    order = sequence[at_first]
    first = HeavyRows(
        *(x[at_first], rounded * y[at_first], y[at_first].norm(dim=1), order, torch.zeros_like(order)),
        *(test[at_first], fold[at_first], float("nan")),
    )
    found = measure.look(block, [0], [0], first)
    expected = held_out_r2(*sides(x, y, test, ~at_first))
    assert found.r2_without_first == pytest.approx(expected, abs=1e-6)
    assert np.isnan(measure.look(block, [0], [0]).r2_without_first)


@pytest.mark.parametrize("family", ["mini-gpt2", "bert"])
def test_first_rows_are_what_a_whole_pass_has_at_position_0(family):
    model = (tiny(family) if family == "mini-gpt2" else small(family)).eval()
    rows = TokenRows.from_ids(torch.randint(VOCABULARY, (40, 8), generator=torch.Generator().manual_seed(0)), folds=2)
    seen = seen_at_sites(model, {"input_ids": rows.ids})
    found = measure.first_rows(model, rows)
    assert found.keys() == seen.keys()
    for block, (x, y) in seen.items():
        torch.testing.assert_close(found[block].x, x[::8], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[block].y, y[::8], rtol=1e-4, atol=1e-4)
        assert torch.equal(found[block].test, rows.test)


def test_tables_hold_every_number_once(looks):
    blocks = measure.block_table(looks)
    writer = blocks.query("model == 'sunk' and block == 0").iloc[0]
    expected = looks["sunk", 0]
    assert (writer["r2"], writer["r2_low"]) == (expected.solved.ceiling.r2, expected.solved.ceiling.r2_low)
    assert writer["r2_ordinary_high"] == expected.solved.ordinary.r2_high
    assert writer["fall"] == pytest.approx(writer["r2"] - writer["r2_ordinary"])
    assert writer["of_all"] == expected.ordinary.of_all
    assert writer["rows"] == 256 * SEQ_LEN
    assert writer["heaviest"] > 800
    without_loudest = writer["r2_without_loudest"], writer["r2_ordinary_without_loudest"]
    assert without_loudest == (expected.loud.r2, expected.loud.ordinary)
    plain = blocks.query("model == 'plain' and block == 0").iloc[0]
    assert (plain["fall"], plain["massive_rows"]) == (0, 0)
    assert plain["of_all"] == pytest.approx(plain["r2"])
    curves = measure.left_out_table(looks)
    assert len(curves) == 5 * (2 * len(COUNTS) + 2 * len(FEATURES))
    chosen = curves.query("model == 'sunk' and block == 0 and kind == 'heaviest rows' and left_out == 64")
    assert chosen["r2"].tolist() == [curve(expected, "heaviest rows")[64]]
    kinds = {"heaviest rows", "rows far out", "loudest features", "loudest features, ordinary rows"}
    assert set(curves["kind"]) == kinds


def test_what_is_left_over_depth_follows_from_the_blocks():
    table = pd.DataFrame({"model": list("mmmn"), "block": [2, 0, 1, 0], "massive_rows": [9, 0, 8, 0]})
    table = table.assign(r2=[0.30, 0.50, 0.97, 0.5], r2_ordinary=[0.35, 0.50, 0.60, 0.5])
    table = table.assign(rank_one=table["r2"] > 0.9, rank_one_ordinary=False)
    expected = {"spread": 0.67, "step": 0.67, "rank_one": 1, "massive": 2, "resting": 1}
    expected |= {"spread_ordinary": 0.25, "step_ordinary": 0.25, "rank_one_ordinary": 0}
    assert measure.depth_table(table).loc["m"].to_dict() == pytest.approx(expected)


def test_without_massive_rows_every_table_reads_sensibly(looks):
    plain = {place: found for place, found in looks.items() if place[0] == "plain"}
    of_plain = [make(plain) for make in (tokens.massive_table, tokens.flow_table, tokens.cosine_table)]
    for table in (*of_plain, tokens.token_table(plain, {}, {})):
        assert table.empty
        assert {"model", "block"} <= set(table.columns)
    assert (measure.depth_table(measure.block_table(plain))[["massive", "resting"]] == 0).all(axis=None)
