"""R² under every protocol: each choice by hand, the split and the groups, one pass against stored rows."""

from dataclasses import asdict, replace
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS, WIDTH, tiny
from howlinear.core import ceilings
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol import groups as grouping
from howlinear.ideas.protocol import layout, multiverse
from howlinear.ideas.protocol.choices import (
    COLUMNS,
    LIMIT,
    MOST,
    PROTOCOLS,
    Protocol,
    factors_within,
    named,
    one_away,
    universe,
)
from howlinear.ideas.protocol.survey import survey
from howlinear.instrument.capture import capture
from howlinear.text.corpus import Corpus
from howlinear.text.documents import Document
from howlinear.text.rows import TokenRows
from howlinear.training.minis import new_model

FACTORS = [8, 16]
KINDS = ["apple", "north", "seven", "green"]


@pytest.fixture
def corpus(tokenizer):
    """Documents of about 32 tokens, of four kinds that follow one another."""
    texts = [f"{KINDS[i // 300]} {i} " * (1 + i % 3) for i in range(1_200)]
    return Corpus("toy", tokenizer, lambda seed: iter(texts))


# --- Names and levels


def test_protocols_have_names_and_others_are_refused():
    assert named("paper").denominator == "scalar"
    assert named("ours").split == "documents"
    with pytest.raises(InputError, match="unknown protocol 'theirs': use paper or ours"):
        named("theirs")


def table_of(**columns):
    """A row with the protocol of the paper but for some levels, and what else is given."""
    return asdict(PROTOCOLS["paper"]) | columns


def test_a_universe_is_found_and_one_that_was_not_measured_is_named():
    table = pd.DataFrame([table_of(r2=0.1), table_of(rows="8", r2=0.2), table_of(rows="8", split="documents", r2=0.3)])
    assert universe(table, PROTOCOLS["paper"]).r2.tolist() == [0.1]
    assert one_away(table, PROTOCOLS["paper"], "rows").r2.tolist() == [0.1, 0.2]
    assert one_away(table, PROTOCOLS["paper"], "split").r2.tolist() == [0.1]
    with pytest.raises(InputError, match="nothing was measured with rows = limit: there is 16, 8"):
        universe(table, replace(PROTOCOLS["paper"], rows=LIMIT))


def test_factors_are_those_that_rows_allow():
    assert factors_within([8, 16, 32, 100], 15_000, 128) == [8, 16, 32, 100]
    assert factors_within([100, 8, 16, 32], 3_072, 128) == [8, 16]
    with pytest.raises(InputError, match=r"1500 train rows for 128 inputs: a curve over rows needs \[8, 16\]"):
        factors_within([8, 16, 32], 1_500, 128)


# --- One number, by hand


def test_the_scalar_denominator_counts_differences_between_features():
    # two features, always 0 and about 10: about their own means they vary by 2, about the scalar mean of 5 by 102
    x = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    y = torch.tensor([[0.0, 9.0], [0.0, 11.0], [0.0, 11.0], [0.0, 9.0]])
    moments = Moments(1, 2).update(x, y)
    mean = ceilings.AffineMap.constant(moments)
    assert multiverse.total_squares(moments, "feature").tolist() == [0, 4]
    assert multiverse.total_squares(moments, "scalar").tolist() == [100, 104]
    assert multiverse.r2(mean, moments, "feature") == pytest.approx(0)
    assert multiverse.r2(mean, moments, "scalar") == pytest.approx(1 - 4 / 204)
    with pytest.raises(InputError, match="unknown denominator 'mean': use scalar or feature"):
        multiverse.total_squares(moments, "mean")


def test_the_scalar_denominator_is_that_of_all_outputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(4, 3, generator=generator, dtype=torch.float64) + torch.randn(60, 3, generator=generator)
    moments = Moments(4, 3).update(x, y)
    affine, _ = ceilings.fit(moments)
    left = (y - affine(x)).square().sum()
    assert multiverse.r2(affine, moments, "scalar") == pytest.approx(float(1 - left / (y - y.mean()).square().sum()))
    assert multiverse.r2(affine, moments, "feature") == pytest.approx(ceilings.r2(affine, moments), abs=1e-12)


def test_without_the_loudest_feature_the_others_are_scored():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0], 100 * torch.randn(80, generator=generator, dtype=torch.float64)], 1)
    moments = Moments(3, 2).update(x, y)
    kept = multiverse.without_loudest(moments)
    assert kept.tolist() == [True, False]
    affine, _ = ceilings.fit(moments)
    assert multiverse.r2(affine, moments, "feature", kept) == pytest.approx(1)
    assert multiverse.r2(affine, moments, "feature") < 0.3


def test_constant_outputs_are_refused():
    moments = Moments(1, 1).update(torch.randn(9, 1), torch.zeros(9, 1))
    with pytest.raises(InputError, match="constant over 9 rows"):
        multiverse.r2(ceilings.AffineMap.constant(moments), moments, "feature")


# --- The split


def test_a_tail_is_the_end_of_the_text_and_steps_grow_towards_it(corpus):
    laid = layout.lay_out(corpus, "tail", 16, 32, FACTORS)
    assert laid.rows.test.tolist() == sorted(laid.rows.test.tolist())
    assert int(laid.rows.test.sum()) == pytest.approx(0.2 * len(laid.rows.ids), abs=1)
    train = laid.step[~laid.rows.test]
    assert train.tolist() == sorted(train.tolist(), reverse=True)  # the first step lies next to the tail
    assert [laid.train_rows(step) for step in (0, 1)] == [8 * 32, 16 * 32]
    for step in (0, 1):
        runs = laid.rows.fold[~laid.rows.test][train == step]
        assert runs.unique().tolist() == list(range(8))
        assert (runs.diff() <= 0).all()  # neighbours lie in one fold


def test_documents_are_drawn_over_the_whole_text_and_steps_add_to_every_fold(corpus):
    laid = layout.lay_out(layout.read(corpus, 1_200), "documents", 16, 32, FACTORS)
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

    some = layout.read(replace(corpus, documents=documents), 50, seed=3)
    first = [Document(text) for text in islice(corpus.documents(0), 50)]
    assert list(some.documents(0)) == list(some.documents(1)) == first
    assert asked == [3]


def test_a_text_that_has_an_order_is_read_in_it(corpus):
    """Its documents are drawn otherwise, and then its tail would be none."""
    book = replace(corpus, documents=[f"document {i}" for i in range(20)])
    assert [document.text for document in layout.read(book, 5).documents(0)] == book.documents[:5]


@pytest.mark.parametrize(
    ("split", "factors", "message"),
    [
        ("halves", FACTORS, "unknown split 'halves'"),
        ("tail", [8, 8], "each step must add a sequence to each of 8 folds"),
        ("tail", [8, 5_000], "too short"),
        ("documents", [8, 5_000], "too short"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(corpus, split, factors, message):
    with pytest.raises(InputError, match=message):
        layout.lay_out(corpus, split, 16, 32, factors)


# --- The groups


def laid_of(rows, steps=2):
    """Rows as a layout: within each train fold the sequences join in turn."""
    step = torch.zeros(len(rows.ids), dtype=torch.long)
    for members in rows.folds(test=False):
        step[members] = torch.arange(len(members)) % steps
    return layout.Layout(rows, step, FACTORS)


def test_groups_are_the_rows_that_they_say(ids, monkeypatch):
    rows = TokenRows.from_ids(ids.repeat(3, 1), folds=8)
    model, laid = tiny("mini-gpt2"), laid_of(rows)
    everything = capture(model, rows, sample=rows.ids.numel())
    for block, groups in grouping.stream(model, laid):
        kept = everything[block].sample
        sequence = torch.arange(len(kept.x)) // rows.ids.shape[1]
        threshold = grouping.loudness(model, laid, grouping.sites(model))[block]
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


def test_blocks_take_turns_when_memory_is_short(ids):
    rows = TokenRows.from_ids(ids.repeat(3, 1), folds=8)
    model, laid = tiny("mini-gpt2"), laid_of(rows)
    at_once = dict(grouping.stream(model, laid))
    in_turn = dict(grouping.stream(model, laid, memory=1))
    assert list(at_once) == list(in_turn) == list(range(BLOCKS))
    for block, groups in at_once.items():
        assert groups.keys() == in_turn[block].keys()
        assert all(torch.equal(moments.sxx, in_turn[block][group].sxx) for group, moments in groups.items())


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
    table = multiverse.block_table(groups, FACTORS)
    choices = [choice for choice in COLUMNS if choice not in ("split", "seq_len")]
    assert len(table) == len(table[choices].drop_duplicates()) == 2 * 3 * 2 * 3 * 3
    assert set(table.rows) == {"8", MOST, LIMIT}

    def here(**levels):
        found = table
        for choice, level in levels.items():
            found = found[found[choice] == level]
        return found.r2.item()

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
    table = multiverse.block_table(planted(), [4, 8], compared=[])
    assert set(table.rows) == {MOST, LIMIT}


def test_a_limit_from_too_few_rows_is_refused():
    with pytest.raises(InputError, match="train rows are too few to say what R² tends to"):
        multiverse.block_table(planted(per_fold=2, d=150), FACTORS, compared=[])


def test_a_point_equals_the_ceiling_of_the_same_folds():
    groups = planted(seed=1)
    train, test = (grouping.select(groups, side, 1) for side in (False, True))
    measured, expected = multiverse.point(train, test), ceilings.ceiling(train, test)
    assert float(measured.in_sample.value) == pytest.approx(expected.r2_train)
    for found, wanted in ((measured.held_out, expected.interval), (measured.limit, expected.limit)):
        assert list(asdict(found.estimate()).values()) == pytest.approx(list(asdict(wanted).values()))


def test_scores_follow_the_protocol():
    groups = planted(seed=2)
    quiet = Protocol("feature", "documents", LIMIT, 128, "in", "rows out", "1e-12")
    assert float(multiverse.scores(groups, quiet, FACTORS).value) == pytest.approx(0.5, abs=0.06)
    assert not multiverse.scores(groups, quiet, FACTORS).estimate().excludes(0.5)
    table = multiverse.block_table(groups, FACTORS)
    for protocol in (quiet, replace(quiet, rows="8", denominator="scalar", loud="feature out", position_0="out")):
        levels = {key: level for key, level in asdict(protocol).items() if key in table}
        same = table[np.logical_and.reduce([table[key] == level for key, level in levels.items()])]
        assert float(multiverse.scores(groups, protocol, FACTORS).value) == pytest.approx(same.r2.item())
    with pytest.raises(InputError, match="no 32 train rows an input were measured: there are 8, 16"):
        multiverse.step_of("32", FACTORS)


# --- A model


def test_a_survey_holds_every_protocol_the_curves_and_those_with_names(corpus):
    model = new_model("mini-gpt2", 0, blocks=2, width=32, vocabulary=len(corpus.tokenizer))
    ours = replace(PROTOCOLS["ours"], seq_len=16)
    chosen = {"paper": replace(PROTOCOLS["paper"], seq_len=16), "ours": ours}
    found = survey(model, corpus, [16, 32], [16], [8, 16], chosen)
    assert len(found.blocks) == 2 * len(found.blocks[COLUMNS].drop_duplicates()) == 2 * 2 * 2 * 3 * 2 * 3 * 3 * 2
    assert set(found.curves.split) == {"tail", "documents"}
    assert found.curves.factor.tolist() == [16, 32] * 4
    assert (found.curves.low < found.curves.limit).all()
    for name, protocol in chosen.items():
        recorded = universe(found.blocks, protocol).sort_values("block").r2
        assert found.named[name].value == pytest.approx(recorded.to_numpy(), abs=1e-12)
    last = found.curves[(found.curves.split == "documents") & (found.curves.factor == 32)]
    assert last.held_out.to_numpy() == pytest.approx(found.named["ours"].value)
