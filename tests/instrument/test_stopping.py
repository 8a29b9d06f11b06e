"""Looking again and again: the intervals hold in spite of it, the rows stay where they were, and the end is honest."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t

import howlinear as hl
from conftest import WIDTH
from helpers.nearly import assert_same_tree
from howlinear.instrument import stopping
from howlinear.instrument.profile import Stop, profile_of
from howlinear.instrument.stopping import judge, look_confidence, schedule
from howlinear.text.rows import FOLDS, TokenRows

pytestmark = pytest.mark.long


@pytest.fixture
def many():
    """Random ids, 128 sequences of 32 in 2 × 3 folds."""
    ids = torch.randint(80, (128, 32), generator=torch.Generator().manual_seed(2))
    return TokenRows.from_ids(ids, folds=3)


@pytest.fixture
def soon(monkeypatch):
    """The first look at 1,024 rows: with `many`, looks at 1,024, 2,048 and 4,096."""
    monkeypatch.setattr(stopping, "FIRST", 1_024)


# --- the plan


@given(
    n=st.integers(4, 300), folds=st.integers(1, 8), first=st.integers(8, 400), width=st.integers(0, 30)
)  # fmt: skip
@settings(deadline=None)
def test_looks_are_growing_beginnings_of_every_fold(n, folds, first, width):
    rows = TokenRows.from_ids(torch.arange(n)[:, None].repeat(1, 8), folds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "FIRST", first)
        plan = schedule(rows, width)
    least = max(first, 16 * width)
    seen = torch.cat(plan)
    assert sorted(seen.tolist()) == list(range(n))
    assert all((new.diff() > 0).all() for new in plan)
    assert len(plan) == 1 or len(plan[0]) * 8 >= least
    groups = [((rows.test == side) & (rows.fold == fold)).nonzero()[:, 0] for side in (0, 1) for fold in range(folds)]
    for look in range(1, len(plan) + 1):
        so_far = set(torch.cat(plan[:look]).tolist())
        for members in filter(len, groups):
            mine = [i for i in members.tolist() if i in so_far]
            share = len(members) / 2 ** (len(plan) - look)
            assert mine == members[: len(mine)].tolist()
            assert share <= len(mine) < share + 1
        if look > 1:
            assert all(set(members.tolist()) & set(plan[look - 1].tolist()) for members in filter(len, groups))


def test_the_default_plan_has_seven_looks_that_double():
    rows = TokenRows.from_ids(torch.arange(stopping.MOST // 128)[:, None].repeat(1, 128))
    plan = schedule(rows, 768)
    so_far = np.cumsum([len(new) * 128 for new in plan])
    assert so_far.tolist() == [20_480 * 2**k for k in range(7)]
    assert len(schedule(rows, 8_192)) == 4  # wide blocks need more rows at the first look: 131,072
    assert len(schedule(TokenRows.from_ids(rows.ids.repeat(2, 1)))) == 8  # whoever has more text may look again


def test_the_widening_of_seven_looks_is_what_the_module_says():
    wide, usual = (student_t.ppf((1 + level) / 2, FOLDS - 1) for level in (look_confidence(7), 0.95))
    assert wide / usual == pytest.approx(1.6, abs=0.05)
    assert look_confidence(1) == pytest.approx(0.95)
    assert 1 - look_confidence(7) == pytest.approx(0.05 / 7)


# --- the intervals hold


def planted(generator, n, d=3):
    """Rows whose R²_lin is known: y = x + noise of variance 1/2, so 1 / (1 + 1/2)."""
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x, x + 0.5**0.5 * torch.randn(n, d, generator=generator, dtype=torch.float64)


@pytest.mark.usefixtures("unchecked")
def test_intervals_of_real_ceilings_hold_where_a_run_stops():
    """60 runs of four looks at planted R²_lin = 2/3: no more than 5 % miss; of 95 % at each look, 10 % would."""
    generator, looks, missed, at = torch.Generator().manual_seed(0), 4, 0, []
    for _ in range(60):
        sides = [[hl.Moments(3, 3) for _ in range(FOLDS)] for _ in range(2)]
        for look in range(1, looks + 1):
            for side, n in zip(sides, (60, 20), strict=True):
                for fold in side:
                    fold.update(*planted(generator, n * 2 ** max(look - 2, 0)))
            found = hl.ceiling(*sides, confidence=look_confidence(looks))
            stop = judge({0: found}, 0.03, look, looks)
            if stop.reached:
                break
        missed += not found.r2_low <= 2 / 3 <= found.r2_high
        at.append(stop.look)
    assert missed <= 60 * 0.05
    assert {2, 3} <= set(at)  # they end at different looks


# --- a measurement


def test_it_stops_at_the_first_look_where_all_are_narrow_enough(gpt2, many, soon):
    plan = schedule(many, 32)
    assert [len(new) for new in plan] == [33, 32, 63]
    confidence = look_confidence(3)
    halves = []
    for look in (1, 2, 3):
        rows = many.subset(torch.cat(plan[:look]).sort().values)
        found = {
            b: hl.ceiling(kept.train, kept.test, confidence=confidence) for b, kept in hl.capture(gpt2, rows).items()
        }
        halves.append(judge(found, 0.5, look, 3).half_width)
    assert halves[0] > halves[1] > halves[2]
    between = (halves[0] + halves[1]) / 2
    profile = hl.measure(gpt2, many, tolerance=between)
    rows = many.subset(torch.cat(plan[:2]).sort().values)
    assert profile.rows.sha256 == rows.sha256
    assert (profile.stop.reached, profile.stop.look, profile.stop.looks) == (True, 2, 3)
    assert profile.stop.confidence == confidence  # of all looks that could have come
    assert profile.stop.half_width == pytest.approx(halves[1], rel=1e-4)  # batches differ, so float32 rounds otherwise
    assert profile.perplexity == pytest.approx(hl.perplexity(gpt2, rows), rel=1e-6)
    once = profile_of(hl.capture(gpt2, rows), "", rows, 1.0)
    for block, found in profile.items():
        assert found.r2 == pytest.approx(once[block].r2, abs=1e-5)
        assert profile.effective_ranks[block] == pytest.approx(once.effective_ranks[block], rel=1e-4)
        assert found.r2_high - found.r2_low > 1.2 * (once[block].r2_high - once[block].r2_low)  # the widened one
        assert (found.rows_train, found.rows_test) == (once[block].rows_train, once[block].rows_test)


def test_no_row_is_run_twice(gpt2, many, soon, monkeypatch):
    run, forward = [], type(gpt2.base_model).forward

    def watched(self, input_ids, **other):
        run.append(input_ids)
        return forward(self, input_ids, **other)

    monkeypatch.setattr(type(gpt2.base_model), "forward", watched)
    hl.measure(gpt2, many, tolerance=1e-6)
    assert sorted(torch.cat(run).tolist()) == sorted(many.ids.tolist())


def test_rows_that_end_first_are_said_to_have_ended(gpt2, many, soon):
    profile = hl.measure(gpt2, many, tolerance=1e-6)
    assert (profile.stop.reached, profile.stop.look, profile.stop.looks) == (False, 3, 3)
    assert profile.rows.sha256 == many.sha256
    assert "no more rows, and the tolerance of 1e-06 is not reached: the widest interval, of block" in str(profile.stop)


def test_a_wide_block_is_first_looked_at_with_more_rows(gpt2, many, soon, monkeypatch):
    monkeypatch.setattr(stopping, "ROWS_PER_INPUT", 2_048 // WIDTH)
    assert hl.measure(gpt2, many, tolerance=1e-6).stop.looks == 2


def test_a_single_look_is_a_plain_measurement(gpt2, many):
    plain, looked = hl.measure(gpt2, many), hl.measure(gpt2, many, tolerance=0.9)
    assert_same_tree(looked.to_dict()["blocks"], plain.to_dict()["blocks"])
    assert looked.stop == Stop(0.9, True, looked.stop.half_width, looked.stop.block, 1, 1, look_confidence(1))
    assert "stop" not in plain.to_dict()
    assert plain.stop is None
    widest = max((found.r2_high - found.r2_low) / 2 for found in plain.values())
    assert looked.stop.half_width == widest
    assert judge(plain, widest, 1, 1).reached  # at most this much
    assert not judge(plain, math.nextafter(widest, 0), 1, 1).reached


def test_without_folds_there_is_no_interval_to_narrow(gpt2, ids):
    rows = TokenRows(ids, torch.arange(24) % 4 == 3, torch.zeros(24, dtype=torch.long))
    with pytest.raises(hl.InputError, match="a tolerance needs intervals, and they need two document folds or more"):
        hl.measure(gpt2, rows, tolerance=0.1)
    some = {**hl.measure(gpt2, TokenRows.from_ids(ids), blocks=[0]), **hl.measure(gpt2, rows, blocks=[1])}
    with pytest.raises(hl.InputError, match="a tolerance needs intervals"):
        judge(some, 0.1, 1, 1)


@pytest.mark.parametrize("tolerance", [0.0, -0.1, 1.0, float("nan")])
def test_a_tolerance_that_no_interval_can_have_is_refused_before_any_text_is_read(gpt2, tokenizer, tolerance):
    with pytest.raises(hl.InputError, match=rf"tolerance(=| of ){tolerance}: give"):
        hl.measure(gpt2, hl.Corpus("unread", tokenizer, lambda _: pytest.fail("read")), tolerance=tolerance)


# --- the command


@pytest.mark.parametrize(("tolerance", "code"), [(0.2, 0), (0.0001, 3)])
def test_the_command_says_how_it_ended(howlinear, project, soon, tolerance, code):
    out = project / "out.json"
    options = ["--corpus", project / "mine.txt", "--seq-len", 32, "--tolerance", tolerance, "--json", out]
    ended, _, complained = howlinear("measure", project / "model", *options)
    assert ended == code
    written = json.loads(out.read_text())
    assert written["stop"]["reached"] == (code == 0)
    block = written["blocks"][0]
    assert block["rows_train"] + block["rows_test"] == written["rows"]
    assert (written["stop"]["look"] < written["stop"]["looks"]) == (code == 0)
    assert len(complained.splitlines()) == (code == 3)  # else the tolerance is not reached
    assert ("0.0001" in complained) == (code == 3)
