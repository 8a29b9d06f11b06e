import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import howlinear as hl
from conftest import BLOCKS, WIDTH
from helpers.made_up import ceiling_of, made_up_profile, within
from helpers.nearly import assert_same_profile
from helpers.reference import least_squares, pooled_r2, r2_by_feature
from howlinear.app import page
from howlinear.app.console import headline, profile_columns
from howlinear.app.measurement import Measurement
from howlinear.core.token_split import split
from howlinear.errors import InputError, LossError
from tests.core.test_token_split import sums_of

COLUMNS = [
    "block", "r2", "r2_low", "r2_high", "r2_train", "r2_limit", "r2_limit_low", "r2_limit_high", "r2_median",
    "effective_rank", "condition", "inputs", "rank", "rows_train", "rows_test",
    "massive_rows", "r2_ordinary", "r2_ordinary_low", "r2_ordinary_high", "effective_rank_ordinary",
]  # fmt: skip


@pytest.fixture
def toy(tokenizer):
    """A corpus of short documents."""
    return hl.Corpus("toy", tokenizer, lambda seed: [f"{seed} document {i} " * (1 + i % 5) for i in range(2_000)])


def test_every_block_equals_least_squares_on_its_rows(model, rows):
    profile = hl.measure(model, rows)
    assert list(profile) == list(range(BLOCKS))
    assert len(profile) == BLOCKS
    for block, found in hl.capture(model, rows, sample=rows.ids.numel()).items():
        kept = found.sample
        train, test = ((kept.x[side], kept.y[side]) for side in (~kept.test, kept.test))
        weight, bias, rank = least_squares(*train)
        assert profile[block].rank == rank
        assert profile[block].r2 == pytest.approx(pooled_r2(*test, weight, bias), abs=1e-9)
        by_feature = r2_by_feature(*test, weight, bias)
        np.testing.assert_allclose(profile[block].r2_per_feature, by_feature, rtol=0, atol=1e-8)
        values = np.linalg.eigvalsh(np.cov(test[1].double(), rowvar=False))
        expected = values.sum() ** 2 / np.square(values).sum()
        assert profile.effective_ranks[block] == pytest.approx(expected, rel=1e-9)
        assert (profile[block].rows_train, profile[block].rows_test) == (18 * 32, 6 * 32)
        assert profile[block].r2_low < profile[block].r2 < profile[block].r2_high
    assert profile.perplexity == pytest.approx(hl.perplexity(model, rows), rel=1e-6)  # batches of other sizes


def test_a_corpus_is_packed_by_rows_length_and_seed(gpt2, toy):
    gpt2.resize_token_embeddings(300)
    profile = hl.measure(gpt2, toy, rows=1_024, seq_len=32, seed=5)
    assert_same_profile(profile, hl.measure(gpt2, toy.rows(1_024, 32, 5)))
    assert profile.to_dict()["sha256"] != hl.measure(gpt2, toy, rows=1_024, seq_len=32, seed=6).to_dict()["sha256"]


def test_frame_and_json_hold_the_same_finite_numbers(gpt2, rows):
    profile = hl.measure(gpt2, rows)
    frame, content = profile.to_frame(), json.loads(json.dumps(profile.to_dict(), allow_nan=False))
    assert list(frame.columns) == ["model", "corpus", "site", *COLUMNS]
    assert content["blocks"] == frame[COLUMNS].to_dict("records")
    assert (content["rows"], content["seq_len"], content["model"]) == (24 * 32, 32, "GPT2LMHeadModel")
    assert content["perplexity"] == profile.perplexity
    assert content["sha256"] == rows.sha256
    for row, (block, found) in zip(content["blocks"], profile.items(), strict=True):
        assert row["block"] == block
        assert row["r2"] == found.r2
        assert row["effective_rank"] == profile.effective_ranks[block]
        assert all(math.isfinite(value) for value in row.values())


def test_a_bar_is_shown_to_who_asks_for_it(gpt2, rows, capsys):
    hl.measure(gpt2, rows)
    assert capsys.readouterr().err == ""
    hl.measure(gpt2, rows, progress=True)
    assert "capture: 100%" in capsys.readouterr().err


def test_too_few_rows_name_the_block(gpt2, ids):
    with pytest.raises(InputError, match=r"block 0: .* train rows for 32 inputs"):
        hl.measure(gpt2, ids[:8, :4])


def test_a_block_that_writes_a_constant_leaves_the_others_measured(gpt2, rows, tmp_path):
    def constant(x):
        return torch.full_like(x, 0.1)

    with hl.swap(gpt2, {2: constant}):
        profile = hl.measure(gpt2, rows, swap=True, tokens=True)
        whole = [profile, hl.measure(gpt2, rows, layerwise=True), hl.measure(gpt2, rows, tolerance=0.9)]
    for found in whole:
        assert [block for block in found if math.isnan(found[block].r2)] == [2]
        assert "block 2 is constant" in found.outlook
        assert found[0].r2 == pytest.approx(hl.measure(gpt2, rows)[0].r2, abs=1e-9)
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(profile[2].map(x), constant(x))  # the map is what the block writes
    for file in ("profile.json", "profile.safetensors"):
        profile.save(tmp_path / file)
        read = hl.load_profile(tmp_path / file)
        assert [block for block in read if math.isnan(read[block].r2)] == [2]
        pd.testing.assert_frame_equal(read.to_frame(), profile.to_frame())
    table = hl.compare(profile, replace(profile, solved={**profile.solved, 0: profile.solved[1]}))
    assert table["difference"].isna().tolist() == table["differs"].isna().tolist() == [False, False, True]
    assert table[table["differs"]]["block"].tolist() == [0]
    measured = Measurement("gpt2", profile, swap=True)
    cells = " ".join(cell for column in profile_columns(measured) for cell in column.cells)
    pages = (profile.to_markdown(), profile._repr_html_(), cells, page.render(measured).partition("<table")[2])
    assert all("–" in text and "nan" not in text for text in pages)
    assert "nan" not in repr(profile)
    profile.plot()
    with (
        hl.swap(gpt2, {2: constant}),
        pytest.raises(InputError, match="block 2: the outputs are constant over 192 rows"),
    ):
        hl.measure(gpt2, rows, blocks=[2])


@pytest.mark.parametrize(
    ("r2s", "answer"), [([0.5, 0.9, 0.5], True), ([0.9, 0.7, 0.5], False), ([0.5, 0.51, 0.5], False), ([0.5], False)]
)
def test_a_profile_rises_and_falls_only_beyond_its_intervals(r2s, answer):
    profile = made_up_profile([ceiling_of(r2, 0.05) for r2 in r2s])
    assert profile.rises_and_falls is answer
    assert profile.curves == {"r2": r2s, "r2_low": [r2 - 0.05 for r2 in r2s], "r2_high": [r2 + 0.05 for r2 in r2s]}


# --- how far more rows would move it


def with_limits(*blocks):
    """A profile of blocks of these (r2, half of its interval, limit); 320 train rows for 32 inputs."""
    ceilings = []
    for r2, half, limit in blocks:
        tends = None if limit is None else within(limit, 0.01)
        ceilings.append(ceiling_of(r2, half, r2_train=r2 + 0.1, limit=tends, inputs=WIDTH, rows_train=320))
    return made_up_profile(ceilings, perplexity=None)


@pytest.mark.parametrize(
    ("blocks", "too_few"),
    [
        ([(0.5, 0.05, 0.52), (0.7, 0.05, 0.71)], None),
        ([(0.5, 0.05, 0.52), (0.7, 0.05, 0.80), (0.6, 0.01, 0.65)], "blocks 1, 2"),  # the interval ends below the limit
        ([(0.5, 0.0005, 0.504)], None),  # what two decimals do not show
        ([(0.5, 0.0005, 0.506)], "block 0"),
        ([(0.5, 0.05, 0.52), (-0.9, 0.5, None)], "block 1"),
        ([(0.5, 0.05, None)], "any block"),
    ],
)
def test_a_profile_says_where_rows_are_too_few_and_what_r2_tends_to(blocks, too_few):
    said = with_limits(*blocks).outlook
    assert said.startswith("10 train rows")
    named = re.search(r"too few .* (any block|blocks? [\d, ]*\d)", said.partition(";")[0])
    assert (named and named.group(1)) == too_few
    known = {block: limit for block, (_, _, limit) in enumerate(blocks) if limit}
    if known:
        farthest = max(known, key=lambda block: known[block] - blocks[block][0])
        limit = known[farthest]
        assert f"{limit:.3f} [{limit - 0.01:.3f}, {limit + 0.01:.3f}] in block {farthest}" in said


def test_a_missing_limit_is_null_in_json_and_keeps_the_others():
    profile = with_limits((0.5, 0.05, 0.52), (-0.9, 0.5, None))
    first, second = json.loads(json.dumps(profile.to_dict(), allow_nan=False))["blocks"]
    assert first["r2_limit"] == 0.52
    assert [second[key] for key in ("r2_limit", "r2_limit_low", "r2_limit_high")] == [None] * 3
    assert second["r2_train"] == pytest.approx(-0.8)


def test_without_document_folds_nothing_is_said_of_more_rows(gpt2, ids):
    two_folds = hl.TokenRows.from_ids(ids, folds=1)
    profile = hl.measure(gpt2, two_folds)
    assert "without document folds there is no telling" in profile.outlook
    assert "None" not in profile._repr_html_()
    with_folds = hl.measure(gpt2, ids)
    for table, usual in (
        (profile.to_frame(), with_folds.to_frame()),
        (hl.compare(profile, with_folds), hl.compare(with_folds, with_folds)),
    ):
        assert table.dtypes.to_dict() == usual.dtypes.to_dict()


def test_a_profile_shows_itself_in_a_short_line_and_as_a_table_without_tensors(gpt2, rows):
    profile = replace(hl.measure(gpt2, rows), model="<b>mine</b>")
    block = hl.capture(gpt2, rows, blocks=[0])[0]
    for it in (profile, profile[0], profile[0].map, profile.rows, rows, hl.sites(gpt2)[0], block):
        shown = repr(it)
        assert "tensor" not in shown
        assert len(shown.splitlines()) == 1
        assert len(shown) < 200
    assert f"{profile[0].r2:.3f} [{profile[0].r2_low:.3f}, {profile[0].r2_high:.3f}]" in repr(profile[0])
    html = profile._repr_html_()
    assert html.count("<tr") == 1 + len(profile)
    assert "<b>" not in html


def test_a_split_by_token_adds_up_and_is_kept_in_files(model, rows, tmp_path):
    profile = hl.measure(model, rows, tokens=True)
    frame = profile.to_frame()
    assert_same_profile(replace(profile, tokens=None), hl.measure(model, rows))
    # the first block of a model with parallel attention and without position embeddings reads the token alone
    rest = 1 - frame["token_share"]
    decided = rest.abs() < 1e-9
    np.testing.assert_allclose(frame["r2_between"][decided], frame["r2"][decided], atol=1e-9)
    assert (frame["token_share_high"] >= 1).equals(frame["r2_within"].isna())
    assert (frame["token_share_low"] <= 0).equals(frame["r2_between"].isna())
    parts = frame["token_share"] * frame["r2_between"] + rest * frame["r2_within"]
    known = parts.notna()
    assert known.any()
    np.testing.assert_allclose(parts[known], frame["r2"][known], atol=1e-9)
    for block, of_block in hl.capture(model, rows, sample=rows.count).items():
        kept = of_block.rows()
        side = kept.test
        sums = sums_of(kept.token[side], kept.fold[side], kept.x[side], kept.y[side])
        expected = split(profile[block].map, sums)
        found = profile.tokens[block]
        assert found.token_share.value == pytest.approx(expected.token_share, abs=1e-9)
        for name in ("r2_between", "r2_within"):
            estimate = getattr(found, name)
            if not math.isnan(estimate.value):
                assert estimate.value == pytest.approx(getattr(expected, name), abs=1e-6)
                assert estimate.low < estimate.value < estimate.high
    names = [f"{name}{end}" for name in ("token_share", "r2_between", "r2_within") for end in ("", "_low", "_high")]
    for suffix in (".json", ".safetensors"):
        profile.save(tmp_path / f"profile{suffix}")
        read = hl.load_profile(tmp_path / f"profile{suffix}").to_frame()
        np.testing.assert_allclose(read[names], frame[names])
    assert "token_share" not in hl.measure(model, rows).to_frame()


def test_rows_without_token_ids_have_no_split(gpt2, rows):
    embedded = gpt2.get_input_embeddings()(rows.ids).detach()
    inputs = hl.ModelInputs({"inputs_embeds": embedded}, rows.test, rows.fold)
    with pytest.raises(InputError, match="no token ids"):
        hl.measure(gpt2, inputs, tokens=True)


def test_padding_is_no_token_of_a_split(gpt2, ids):
    padded = torch.cat([ids, torch.zeros(24, 3, dtype=torch.long)], 1)
    mask = torch.ones_like(padded)
    mask[:, -3:] = 0
    with_padding = hl.measure(gpt2, {"input_ids": padded, "attention_mask": mask}, tokens=True)
    without = hl.measure(gpt2, {"input_ids": ids}, tokens=True)
    for block, found in without.tokens.items():
        assert with_padding.tokens[block].token_share.value == pytest.approx(found.token_share.value, abs=1e-5)


def test_costs_of_no_block_have_their_columns_too(gpt2, ids):
    """As of an encoder, which has no perplexity to lose: notebooks show the same tables of it."""
    frame = replace(hl.measure(gpt2, ids), costs={}).to_frame()
    assert frame[["dppl", "dppl_low", "dppl_high"]].isna().all(axis=None)


@pytest.mark.parametrize("layerwise", [False, True])
def test_losses_that_are_not_finite_cost_no_profile_its_r2(gpt2, rows, layerwise):
    """A head of NaN, and one whose perplexity overflows: R² needs no head."""
    expected = hl.measure(gpt2, rows)
    head = gpt2.lm_head.weight.detach().clone()
    for scale in (math.nan, 1e6):
        gpt2.lm_head.weight = torch.nn.Parameter(head * scale)
        with pytest.warns(UserWarning, match="R²_lin is measured without perplexity: ") as warned:
            found = hl.measure(gpt2, rows, swap=True, layerwise=layerwise)
        assert len(warned) == 1
        assert (found.perplexity, found.costs) == (None, None)
        assert [found[block].r2 for block in found] == [expected[block].r2 for block in expected]
        assert "no perplexity" in headline(Measurement("gpt2", found))


def test_swaps_that_overflow_leave_a_profile_its_perplexity(gpt2, rows, monkeypatch):
    expected = hl.measure(gpt2, rows)

    def overflow(*_, **__):
        raise LossError("the loss of sequence 0 is not finite")

    monkeypatch.setattr("howlinear.instrument.measure.swap_costs", overflow)
    with pytest.warns(UserWarning, match="R²_lin is measured without costs of swaps: the loss of sequence 0"):
        found = hl.measure(gpt2, rows, swap=True)
    assert (found.perplexity, found.costs) == (expected.perplexity, None)
