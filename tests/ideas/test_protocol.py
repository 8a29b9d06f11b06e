"""R² under every protocol: each choice by hand, the split and the groups, one pass against stored rows."""

from dataclasses import asdict, replace
from itertools import islice

import pandas as pd
import pytest
import torch

from conftest import BLOCKS, WIDTH, tiny
from howlinear.core import ceilings
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol import choices, layout, measure
from howlinear.ideas.protocol import groups as grouping
from howlinear.ideas.protocol.choices import CHOICES, LIMIT, MOST, RUNS, Protocol, named_protocol, one_away
from howlinear.instrument.capture import capture
from howlinear.text.corpus import Corpus
from howlinear.text.documents import Document
from howlinear.text.rows import TokenRows
from howlinear.training.minis import new_model

FACTORS = [8, 16]
PAPER, OURS = named_protocol("paper", 16), named_protocol("ours", 16)
KINDS = ["apple", "north", "seven", "green"]


@pytest.fixture
def corpus(tokenizer):
    """Documents of about 32 tokens, of four kinds that follow one another."""
    texts = [f"{KINDS[i // 300]} {i} " * (1 + i % 3) for i in range(1_200)]
    return Corpus("toy", tokenizer, lambda seed: iter(texts))


# --- Names and levels


def test_protocols_have_names_and_others_are_refused():
    assert (PAPER.denominator, PAPER.rows, PAPER.seq_len) == ("scalar", "16", 16)
    assert (OURS.split, OURS.rows) == ("documents", MOST)
    with pytest.raises(InputError, match="unknown protocol 'theirs'"):
        named_protocol("theirs")


def test_a_universe_is_found_and_one_that_was_not_measured_is_named():
    paper = asdict(PAPER)
    rows = [
        paper | {"r2": 0.1},
        paper | {"rows": "8", "r2": 0.2},
        paper | {"rows": "8", "split": "documents", "r2": 0.3},
    ]
    table = pd.DataFrame(rows)
    assert one_away(table, PAPER).r2.tolist() == [0.1]
    assert one_away(table, PAPER, "rows").r2.tolist() == [0.1, 0.2]
    assert one_away(table, PAPER, "split").r2.tolist() == [0.1]
    with pytest.raises(InputError, match="nothing was measured with rows = limit: there is 16, 8"):
        one_away(table, replace(PAPER, rows=LIMIT))


def test_factors_are_those_that_rows_allow():
    assert choices.factors_within([8, 16, 32, 100], 15_000, [128], 128) == [8, 16, 32, 100]
    assert choices.factors_within([100, 8, 16, 32], 3_072, [128, 64], 32) == [8, 16]
    # eight folds of sequences of 128: 1,024 rows more at every step, 16 for each input of the narrower model
    assert choices.factors_within([8, 16, 32, 100], 15_000, [64, 128], 128) == [8, 32, 100]
    assert choices.factors_within([8, 16, 32], 1_500, [128], 64) == [5, 11]
    with pytest.raises(InputError, match="500 train rows for 128 inputs"):
        choices.factors_within([8, 16, 32], 500, [128], 128)


def train_rows_of(laid, step):
    joined = ~laid.rows.test & (laid.step <= step)
    return int(joined.sum()) * laid.rows.ids.shape[1]


def test_a_short_text_has_fewer_train_rows_and_can_be_laid_out(corpus):
    assert layout.available_train_rows(corpus, 4_096, 16) == 3_072
    train_rows = layout.available_train_rows(corpus, 1_000_000, 16)
    (most,) = choices.factors_within([1], train_rows, [32], 16)[1:]
    for split in ("documents", "tail"):
        laid = layout.lay_out(corpus, split, 16, 32, [most // 2, most])
        assert train_rows_of(laid, 1) <= train_rows + 8 * 16


# --- One number, by hand


def test_the_scalar_denominator_is_that_of_all_outputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(4, 3, generator=generator, dtype=torch.float64) + torch.randn(60, 3, generator=generator)
    moments = Moments(4, 3).update(x, y)
    affine, _ = ceilings.fit(moments)
    left = (y - affine(x)).square().sum()
    assert measure.r2(affine, moments, "scalar") == pytest.approx(float(1 - left / (y - y.mean()).square().sum()))
    assert measure.r2(affine, moments, "feature") == pytest.approx(ceilings.r2(affine, moments), abs=1e-12)


def test_without_the_loudest_feature_the_others_are_scored():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0], 100 * torch.randn(80, generator=generator, dtype=torch.float64)], 1)
    moments = Moments(3, 2).update(x, y)
    kept = measure.without_loudest(moments)
    assert kept.tolist() == [True, False]
    affine, _ = ceilings.fit(moments)
    assert measure.r2(affine, moments, "feature", kept) == pytest.approx(1)
    assert measure.r2(affine, moments, "feature") < 0.3


def test_constant_outputs_are_refused():
    moments = Moments(1, 1).update(torch.randn(9, 1), torch.zeros(9, 1))
    with pytest.raises(InputError, match="constant over 9 rows"):
        measure.r2(ceilings.AffineMap.constant(moments), moments, "feature")


# --- The split


def test_a_tail_is_the_end_of_the_text_and_steps_grow_towards_it(corpus):
    laid = layout.lay_out(corpus, "tail", 16, 32, FACTORS)
    assert laid.rows.test.tolist() == sorted(laid.rows.test.tolist())
    assert int(laid.rows.test.sum()) == pytest.approx(0.2 * len(laid.rows.ids), abs=1)
    train = laid.step[~laid.rows.test]
    assert train.tolist() == sorted(train.tolist(), reverse=True)  # the first step lies next to the tail
    assert [train_rows_of(laid, step) for step in (0, 1)] == [8 * 32, 16 * 32]
    for step in (0, 1):
        runs = laid.rows.fold[~laid.rows.test][train == step]
        assert runs.unique().tolist() == list(range(8))
        assert (runs.diff() <= 0).all()  # neighbours lie in one fold


def test_few_train_rows_lie_before_a_tail_that_every_fold_has_a_sequence_of(corpus):
    laid = layout.lay_out(corpus, "tail", 16, 16, FACTORS)  # one and two train sequences in every fold
    assert [train_rows_of(laid, step) for step in (0, 1)] == [8 * 16, 16 * 16]
    assert laid.rows.fold[laid.rows.test].unique().tolist() == list(range(8))


def test_documents_are_drawn_over_the_whole_text_and_steps_add_to_every_fold(corpus):
    laid = layout.lay_out(layout.first_documents(corpus, 1_200), "documents", 16, 32, FACTORS)
    for step in (0, 1):
        joined = laid.rows.fold[~laid.rows.test & (laid.step <= step)]
        assert joined.bincount().tolist() == [2 * (step + 1)] * 8
    first_step = ~laid.rows.test & (laid.step == 0)
    text = corpus.tokenizer.decode(laid.rows.ids[first_step].flatten().tolist())
    assert sum(kind in text for kind in KINDS) >= 3  # not of those alone that come first


def test_only_the_first_documents_are_read_and_only_once(corpus):
    asked = []

    def documents(seed):
        asked.append(seed)
        return corpus.documents(seed)

    some = layout.first_documents(replace(corpus, documents=documents), 50, seed=3)
    first = [Document(text) for text in islice(corpus.documents(0), 50)]
    assert list(some.documents(0)) == list(some.documents(1)) == first
    assert asked == [3]


def test_a_text_that_has_an_order_is_read_in_it(corpus):
    """Its documents are drawn otherwise, and then its tail would be none."""
    book = replace(corpus, documents=[f"document {i}" for i in range(20)])
    assert [document.text for document in layout.first_documents(book, 5).documents(0)] == book.documents[:5]


def test_runs_of_neighbours_are_held_out_in_turn(corpus):
    laid = layout.lay_out(corpus, RUNS, 16, 32, [8, 256])
    assert laid.factors == [256]
    assert train_rows_of(laid, 0) == pytest.approx(256 * 32, abs=8 * 16)
    in_order = corpus.contiguous(laid.rows.count, 16)
    assert torch.equal(laid.rows.ids, in_order.ids)
    runs = laid.rows.test.split(8)
    assert [run.unique().tolist() for run in runs] == [[number % 4 == 3] for number in range(len(runs))]
    for test in (False, True):  # whole runs, of which the last may be cut
        assert sorted(len(members) % 8 for members in laid.rows.folds(test))[:7] == [0] * 7
    few = layout.lay_out(corpus, RUNS, 16, 16, [8])  # 32 sequences, each a run
    assert few.rows.test.nonzero()[:, 0].tolist() == list(range(3, 32, 4))


@pytest.mark.parametrize(
    ("split", "factors", "message"),
    [
        ("tail", [8, 8], "each step must add a sequence to each of 8 folds"),
        ("tail", [8, 5_000], "too short"),
        ("documents", [8, 5_000], "too short"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(corpus, split, factors, message):
    with pytest.raises(InputError, match=message):
        layout.lay_out(corpus, split, 16, 32, factors)


# --- The groups


@pytest.fixture
def laid(ids):
    """Rows as a layout of two steps: within each train fold the sequences join in turn."""
    rows = TokenRows.from_ids(torch.cat([ids, ids.roll(1, 1), ids.roll(2, 1)]), folds=8)
    step = torch.zeros(len(rows.ids), dtype=torch.long)
    for members in rows.folds(test=False):
        step[members] = torch.arange(len(members)) % 2
    return layout.Layout(rows, step, FACTORS)


def test_groups_are_the_rows_that_they_say(laid):
    model, rows = tiny("mini-gpt2"), laid.rows
    everything = capture(model, rows, sample=rows.ids.numel())
    for block, groups in grouping.stream_groups(model, laid):
        kept = everything[block].sample
        sequence = torch.arange(len(kept.x)) // rows.ids.shape[1]
        threshold = grouping.measure_loudness(model, laid, grouping.sites(model))[block]
        loud = kept.y.norm(dim=1) > threshold
        assert 0 < loud.float().mean() < 0.05
        for first, quiet_only in ((True, False), (False, False), (True, True), (False, True)):
            wanted = ~kept.test & (laid.step[sequence] == 0)
            wanted &= (kept.position > 0) | first
            wanted &= ~loud | (not quiet_only)
            found = sum(grouping.select(groups, False, 0, first, not quiet_only))
            expected = Moments(WIDTH, WIDTH).update(kept.x[wanted], kept.y[wanted])
            assert found.n == expected.n
            assert torch.allclose(found.sxy, expected.sxy, rtol=0, atol=1e-9 * float(expected.sxy.abs().max()))
        assert sum(grouping.select(groups, True, 0)).n == int(kept.test.sum())


def test_blocks_take_turns_when_memory_is_short(laid):
    model = tiny("mini-gpt2")
    at_once = dict(grouping.stream_groups(model, laid))
    in_turn = dict(grouping.stream_groups(model, laid, memory=1))
    assert list(at_once) == list(in_turn) == list(range(BLOCKS))
    for block, groups in at_once.items():
        assert groups.keys() == in_turn[block].keys()
        assert all(torch.equal(moments.sxx, in_turn[block][group].sxx) for group, moments in groups.items())
    assert list(dict(grouping.stream_groups(model, laid, blocks=[0, 2]))) == [0, 2]


def test_a_fold_without_rows_is_refused():
    with pytest.raises(InputError, match="a fold has no rows left"):
        grouping.select({}, False, 0)


# --- A block under every protocol


def planted(per_fold=40, d=4, seed=0):
    """Groups of a block whose R² is 0.5 in the limit: eight folds, two steps, and nothing else apart."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    groups = {}
    for test in (False, True):
        for fold in range(8):
            for step in (0,) if test else (0, 1):
                for first, loud in ((False, False), (True, False), (False, True)):
                    count = per_fold if not (first or loud) else 6
                    x = torch.randn(count, d, generator=generator, dtype=torch.float64) * (3 if loud else 1)
                    noise = torch.randn(count, d, generator=generator, dtype=torch.float64) * (0 if loud else 1)
                    moments = Moments(d, d).update(x, x @ weight + noise)
                    groups[grouping.Group(test, fold, step, first, loud)] = moments
    return groups


def test_every_combination_is_there_once_and_agrees_with_least_squares():
    groups = planted()
    table = pd.DataFrame(measure.universe_rows(groups, FACTORS))
    choices = [choice for choice in CHOICES if choice not in ("split", "seq_len")]
    assert len(table) == len(table[choices].drop_duplicates()) == 2 * 3 * 2 * 3 * 3
    assert set(table.rows) == {"8", MOST, LIMIT}

    def here(**levels):
        return table[(table[list(levels)] == pd.Series(levels)).all(axis=1)].r2.item()

    usual = {"position_0": "in", "loud": "in", "null": "1e-12", "denominator": "feature"}
    train, test = (sum(grouping.select(groups, side, 1)) for side in (False, True))
    assert here(rows=MOST, **usual) == pytest.approx(ceilings.r2(ceilings.fit(train)[0], test))
    few = sum(grouping.select(groups, False, 0))
    assert here(rows="8", **usual) == pytest.approx(ceilings.r2(ceilings.fit(few)[0], test))
    # the loudest rows are exactly linear here: without them half is noise
    assert here(rows=LIMIT, **usual) > 0.65
    assert here(rows=LIMIT, **(usual | {"loud": "rows out"})) == pytest.approx(0.5, abs=0.06)
    assert here(rows=MOST, **(usual | {"denominator": "scalar"})) >= here(rows=MOST, **usual) - 1e-12


def test_only_some_numbers_of_rows_may_be_combined():
    assert {row["rows"] for row in measure.universe_rows(planted(), [4, 8], compared=[])} == {MOST, LIMIT}


def test_a_limit_that_the_rows_are_too_few_to_tell_is_not_told():
    table = pd.DataFrame(measure.universe_rows(planted(per_fold=20, d=170), FACTORS, compared=[]))
    missing = table[table.r2.isna()]
    # 320 rows for 170 inputs without the first and the loudest, and 416 or more otherwise
    assert set(zip(missing.rows, missing.position_0, missing.loud, strict=True)) == {(LIMIT, "out", "rows out")}
    assert len(missing) == 3 * 2


def test_folds_give_the_interval_of_the_ceiling():
    groups = planted(seed=1)
    expected = ceilings.ceiling(*(grouping.select(groups, side, 1) for side in (False, True)))
    for rows, wanted in ((MOST, expected.interval), (LIMIT, expected.limit)):
        folds = pd.DataFrame(measure.fold_rows(groups, replace(OURS, rows=rows), FACTORS))
        found = measure.jackknife(folds.r2)
        assert list(asdict(found).values()) == pytest.approx(list(asdict(wanted).values()))


def test_folds_follow_the_protocol():
    groups = planted(seed=2)
    quiet = Protocol("feature", "documents", LIMIT, 128, "in", "rows out", "1e-12")
    estimate = measure.jackknife([row["r2"] for row in measure.fold_rows(groups, quiet, FACTORS)])
    assert estimate.value == pytest.approx(0.5, abs=0.06)
    assert not estimate.excludes(0.5)
    table = pd.DataFrame(measure.universe_rows(groups, FACTORS)).assign(split="documents", seq_len=128)
    for protocol in (quiet, replace(quiet, rows="8", denominator="scalar", loud="feature out", position_0="out")):
        first = next(measure.fold_rows(groups, protocol, FACTORS))
        assert first["r2"] == pytest.approx(one_away(table, protocol).r2.item())


# --- A model


@pytest.mark.long
def test_a_survey_holds_every_protocol_the_curves_and_those_with_names(corpus):
    model = new_model("mini-gpt2", 0, blocks=2, width=32, vocabulary=len(corpus.tokenizer))
    named = {"paper": PAPER, "ours": OURS}
    found = measure.survey(model, corpus, [16, 32], [16], [8, 16], named)
    universes, curves = found["universes"], found["curves"]
    assert len(universes) == 2 * len(universes[CHOICES].drop_duplicates()) == 2 * 2 * 2 * 3 * 2 * 3 * 3 * 2
    assert set(curves.split) == {"tail", "documents"}
    assert curves.factor.tolist() == [16, 32] * 4
    assert (curves.r2_limit_low < curves.r2_limit).all()
    profiles = measure.profile_table(found["folds"].assign(model="x")).set_index("protocol")
    assert list(profiles.index.unique()) == ["paper", "ours"]
    for name, protocol in named.items():
        recorded = one_away(universes, protocol).sort_values("block").r2
        assert profiles.r2[name].tolist() == pytest.approx(recorded.tolist(), abs=1e-12)
    some = measure.survey(model, corpus, [16], [16], [16], named, blocks=[1])
    assert all(set(table["block"]) == {1} for table in some.values())
    splits = found["splits"].set_index(["split", "block"])
    assert splits.index.tolist() == [(split, block) for split in ("tail", "documents", RUNS) for block in (0, 1)]
    assert splits.r2["documents"].tolist() == pytest.approx(profiles.r2["ours"].tolist())
    assert (splits.r2_low < splits.r2).all()
    last = curves[(curves.split == "documents") & (curves.factor == 32)]
    assert last.r2.tolist() == pytest.approx(profiles.r2["ours"].tolist())


# --- What few rows foretell


def curve(split, block, few, many):
    """Two rows of a curve: (in sample, held out, limit, half-width) at 16 and at 100 rows an input."""
    rows = []
    for factor, (r2_train, r2, limit, half) in ((16, few), (100, many)):
        about = {"model": "a", "split": split, "block": block, "factor": factor, "rows": 128 * factor}
        ends = {"r2_limit": limit, "r2_limit_low": limit - half, "r2_limit_high": limit + half}
        rows.append({**about, "r2_train": r2_train, "r2": r2, **ends})
    return rows


def test_agreement_counts_what_came_true():
    # u = 0.5 and v / n = 0.2 at 16 d, so 0.032 at 100 d: held out 1 − 0.5 / 0.968 there
    true = ((0.6, 0.375, 0.5, 0.02), (0.516, 1 - 0.5 / 0.968, 0.5, 0.01))
    missed = ((0.6, 0.375, 0.5, 0.02), (0.7, 0.68, 0.69, 0.01))
    untold = ((0.9, 0.1, float("nan"), 0), (0.7, 0.68, 0.69, 0.01))
    curves = curve("tail", 0, *true) + curve("tail", 1, *missed) + curve("tail", 2, *untold)
    row = measure.limit_agreement(pd.DataFrame(curves), 16, 100).iloc[0]
    assert (row.blocks, row.limit_agrees, row.value_agrees) == (2, 1, 1)
    assert row.raw_error == pytest.approx(((0.375 - 0.5) + (0.375 - 0.69)) / 2)
    assert row.limit_error == pytest.approx((0 + 0.5 - 0.69) / 2)
