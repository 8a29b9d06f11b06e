"""What the token decides: planted blocks, tables beside dummies, lines over a vocabulary, and a tiny model's tables."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from helpers.captures import moments_of, seen_at_sites
from helpers.families import small
from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.fold_maps import fit_folds
from howlinear.core.moments import Moments
from howlinear.core.token_split import split, token_split
from howlinear.ideas.tokens import measure, planted, vocabulary
from howlinear.ideas.tokens.table import of_inputs, penalty, table_alone, table_and_line
from howlinear.instrument.capture import capture
from howlinear.instrument.token_split import Grouping, token_sums
from howlinear.models.load import untrained
from howlinear.text.rows import TokenRows
from tests.core.test_token_split import rows_of, sums_of

# --- planted


@pytest.mark.parametrize("name", planted.CASES)
def test_planted_parts_are_found_within_their_intervals(name):
    """Six draws, each quantity with a 95 % interval; a map of 4,000 rows is a little off."""
    case = planted.CASES[name]
    missed = dict.fromkeys(case.truth, 0)
    for seed in range(6):
        train, held_out = planted.plant(case, seed)
        maps = fit_folds(list(train.rows.values()))
        found = token_split(maps.whole, maps.refits, held_out)
        for quantity, truth in case.truth.items():
            estimate = getattr(found, quantity)
            missed[quantity] += estimate.low - 0.01 > truth or estimate.high + 0.01 < truth
    assert max(missed.values()) <= 1, missed


def test_the_planted_table_has_every_case_and_what_was_found():
    table = planted.planted_table()
    assert list(table["case"].unique()) == list(planted.CASES)
    assert (table["found"] - table["planted"]).abs().max() < 0.1
    assert (table["found_low"] < table["found_high"]).all()


@pytest.mark.parametrize(
    ("name", "fitted", "r2", "within"),
    [
        ("a table, no line", table_alone, 0.9, 0.02),
        ("a line, no table", table_alone, 0.4, 0.05),  # x's own part
        ("a line, no table", table_and_line, 0.8, 0.02),
        ("both", table_and_line, 0.8, 0.03),
    ],
)
def test_a_table_explains_the_planted_table_and_a_line_the_planted_line(name, fitted, r2, within):
    train, held_out = planted.plant(planted.CASES[name], types=100)
    assert fitted(train).r2(held_out) == pytest.approx(r2, abs=within)


# --- tables


def with_dummies(x, token, kinds):
    return np.hstack([x.numpy(), (token[:, None] == kinds).double().numpy()])


@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_table_and_line_are_the_ridge_on_dummies(offset):
    """Each dummy scaled by 1/√λ beside inputs whose penalty is next to none; a new token has no dummy."""
    token, fold, x, y = rows_of(500, offset=offset)
    x = x + offset
    train, test = fold < 4, fold >= 4
    sums = [sums_of(token[side], fold[side], x[side], y[side]) for side in (train, test)]
    found = table_and_line(sums[0])
    line, _ = fit(sums[0].total())
    weight = penalty(split(line, sums[0]).error_share)
    kinds = token[train].unique()
    scale = np.concatenate([np.full(3, 1e5), np.full(len(kinds), 1 / math.sqrt(weight))])
    ridge = Ridge(alpha=1.0, solver="svd").fit(with_dummies(x, token, kinds)[train] * scale, y[train].numpy())
    guess = ridge.predict(with_dummies(x, token, kinds)[test] * scale)
    expected = 1 - ((y[test].numpy() - guess) ** 2).sum() / ((y[test] - y[test].mean(0)) ** 2).sum()
    assert found.r2(sums[1]) == pytest.approx(float(expected), abs=1e-6)


def test_a_table_alone_shrinks_each_mean_by_how_often_it_was_seen():
    token, fold, x, y = rows_of(300)
    sums = sums_of(token, fold, x, y)
    table = table_alone(sums)
    share = split(table.line, sums).token_share
    for place, kind in enumerate(table.token.tolist()):
        rows = y[token == kind]
        expected = len(rows) / (len(rows) + (1 - share) / share) * (rows.mean(0) - y.mean(0))
        torch.testing.assert_close(table.entry[place], expected)


def test_a_token_without_an_entry_has_the_line_alone():
    token, fold, x, y = rows_of(300)
    table = table_and_line(sums_of(token, fold, x, y))
    other = sums_of(token + 1_000, fold, x, y)
    assert table.r2(other) == pytest.approx(r2(table.line, other.total()), abs=1e-9)


def test_where_tokens_decide_nothing_there_is_no_table():
    assert penalty(-0.1) == penalty(math.nan) == math.inf
    assert penalty(0.25) == pytest.approx(3)
    token, fold, x, _ = rows_of(300)
    y = x @ torch.ones(3, 2, dtype=torch.float64)
    table = table_and_line(sums_of(token, fold, x, y))
    assert table.r2(sums_of(token, fold, x, y)) == pytest.approx(1, abs=1e-9)


def test_inputs_are_split_as_outputs_are():
    token, fold, x, y = rows_of(300)
    found, direct = of_inputs(sums_of(token, fold, x, y)), sums_of(token, fold, x, x)
    no_line = AffineMap.constant(Moments(3, 3).update(x, x))
    assert tuple(split(no_line, found)) == pytest.approx(tuple(split(no_line, direct)), abs=1e-9)
    assert table_alone(found).r2(found) == pytest.approx(table_alone(direct).r2(direct), abs=1e-9)


# --- a line over the vocabulary


def test_weights_are_repetitions():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 3, generator=generator), torch.randn(20, 2, generator=generator)
    times = torch.arange(20)
    found = vocabulary.weighted_moments(x, y, times)
    expected = Moments(3, 2).update(x.repeat_interleave(times, 0), y.repeat_interleave(times, 0))
    assert found.n == expected.n
    for name, tensor in expected.tensors().items():
        torch.testing.assert_close(found.tensors()[name], tensor)


def test_the_vocabulary_is_every_token_by_itself(gpt2, rows):
    token, count = rows.ids.unique(return_counts=True)
    found = vocabulary.vocabulary_moments(gpt2, token, count, [1])[1]
    alone = seen_at_sites(gpt2, {"input_ids": token[:, None]})[1]
    expected = moments_of(*(side.repeat_interleave(count, 0) for side in alone))
    torch.testing.assert_close(found.sxy, expected.sxy, rtol=1e-4, atol=1e-4)


def test_a_vocabulary_table_has_both_lines(gpt2, rows):
    table = vocabulary.vocabulary_table(gpt2, rows, rows, [0, 2])
    assert list(table["block"]) == [0, 2]
    captured = capture(gpt2, rows, [2])[2]
    line, _ = fit(sum(captured.train))
    row = table.set_index("block").loc[2]
    assert row["r2"] == pytest.approx(r2(line, sum(captured.test)), abs=1e-9)
    assert row["r2_train"] == pytest.approx(r2(line, sum(captured.train)), abs=1e-9)
    assert (table["r2_vocabulary"] <= 1).all()


# --- of a model


def test_every_table_of_a_survey(gpt2, rows):
    texts = {"one": rows, "two": rows}
    tables = measure.survey("tiny", "trained", gpt2, texts, [0, 2], at_once=1)
    blocks = tables["blocks"]
    assert list(blocks["block"]) == [0, 0, 2, 2]
    for share, between, within in (
        ("token_share", "r2_between", "r2_within"),
        ("token_share_counted", "r2_between_counted", "r2_within_counted"),
    ):
        sums = blocks[share] * blocks[between] + (1 - blocks[share]) * blocks[within]
        np.testing.assert_allclose(sums, blocks["r2"], atol=1e-9)
    # one text's line on the same text loses nothing
    np.testing.assert_allclose(tables["transfer"]["loss"], 0, atol=1e-12)
    np.testing.assert_allclose(tables["transfer"]["loss_between"], 0, atol=1e-12)
    assert tables["kinds"].groupby("block")["rows"].sum().eq(int(rows.test.sum()) * rows.seq_len).all()
    again = measure.survey("tiny", "trained", gpt2, texts, [0, 2], at_once=2)
    np.testing.assert_allclose(again["tables"]["r2_both"], tables["tables"]["r2_both"], atol=1e-12)
    assert list(tables["tables"]["block"]) == [0, 2]


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_an_encoder_is_split_as_any_model(family, ids):
    model = small(family)
    text = TokenRows.from_ids(3 + ids % 50, folds=3)  # no padding, no beginning or end
    for weights, loaded in (("trained", model), ("fresh", untrained(model))):
        tables = measure.survey(family, weights, loaded, {"one": text}, [0, 1])
        assert tables["tables"].empty == (weights == "fresh")
        assert tables["tables"].notna().all(axis=None)
        assert tables["transfer"].empty
        assert list(tables["transfer"].columns) == measure.TRANSFER
    assert vocabulary.vocabulary_table(model, text, text, [0, 1])["r2_vocabulary"].between(0, 1).all()


def test_what_transfer_loses_between_and_within_is_what_it_loses(gpt2, rows):
    other = rows.subset(torch.arange(len(rows.test)))
    other = type(rows)((other.ids * 7 + 3) % (int(rows.ids.max()) + 1), rows.test, rows.fold)
    table = measure.survey("tiny", "trained", gpt2, {"one": rows, "two": other}, [1])["transfer"].iloc[0]
    assert table["loss"] == pytest.approx(table["r2_own"] - table["r2_transferred"], abs=1e-12)
    assert table["loss_low"] < table["loss"] < table["loss_high"]


def test_previous_tokens_are_those_before(gpt2, rows):
    train, rare, frequent, before, before_held_out = measure.groupings(rows, previous=True)
    assert (before.label[:, 0] == measure.FIRST).all()
    assert torch.equal(before.label[:, 1:], rows.ids[:, :-1])
    assert torch.equal(rare.included | frequent.included, before_held_out.included)
    assert not (rare.included & frequent.included).any()
    counts = {int(kind): int((rows.ids[~rows.test] == kind).sum()) for kind in rows.ids.unique()}
    of_rare = [counts[int(kind)] for kind in rows.ids[rare.included]]
    of_frequent = [counts[int(kind)] for kind in rows.ids[frequent.included]]
    assert max(of_rare, default=0) < min(of_frequent)
    assert torch.equal(train.included, before.included)


def test_sums_of_a_model_are_those_of_its_rows(gpt2, rows):
    (sums,) = token_sums(gpt2, rows, [Grouping.by_token(rows, held_out=True)], [1])[1]
    kept = capture(gpt2, rows, [1], sample=rows.count)[1].rows()
    for fold, token in itertools.islice(zip(sums.fold.tolist(), sums.token.tolist(), strict=True), 0, None, 17):
        mine = kept.test & (kept.fold == fold) & (kept.token == token)
        place = (sums.fold == fold) & (sums.token == token)
        assert float(sums.count[place]) == int(mine.sum())
        torch.testing.assert_close(sums.sum_y[place][0], kept.y[mine].double().sum(0), rtol=1e-6, atol=1e-6)
