"""Padded text and images as their tokenizers and processors return them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from helpers.families import PADDING, reads, small
from howlinear.errors import InputError
from howlinear.instrument import stopping
from howlinear.instrument.capture import capture
from howlinear.instrument.measure import measure
from howlinear.text.rows import ModelInputs, RowsOnRecord, TokenRows, batch_of, check, draw, tokens_of


@pytest.fixture
def padded():
    """Padded ids and their mask: 40 sequences of 5 to 12 tokens."""
    ids = reads("gpt2", n=40)["input_ids"]
    mask = torch.arange(12) < 5 + torch.arange(40)[:, None] % 8
    return BatchEncoding({"input_ids": ids.where(mask, PADDING), "attention_mask": mask.long()})


def test_equal_sequences_are_one_document_on_one_side():
    ids = torch.randint(0, 80, (24, 6), generator=torch.Generator().manual_seed(0))
    given = torch.cat([ids, ids.flip(0), ids[3:4]])
    first = TokenRows.from_ids(ids)
    for rows in (
        TokenRows.from_ids(given),
        ModelInputs.of({"input_ids": given, "position_ids": torch.zeros_like(given)}),
    ):
        for split in ("test", "fold"):
            alone = getattr(first, split)
            assert torch.equal(getattr(rows, split), torch.cat([alone, alone.flip(0), alone[3:4]]))
    # what differs in another input is another document
    other = ModelInputs.of({"input_ids": ids[:1].repeat(8, 1), "pixel_values": torch.arange(8).bfloat16()})
    assert other.test.tolist() == [False, False, False, True] * 2


def test_images_are_measured_patch_by_patch():
    model, images = small("vit"), reads("vit", n=40)
    profile = measure(model, images)
    assert profile.to_dict()["rows"] == 40 * (2 * 2 + 1)
    assert profile.to_dict()["seq_len"] is None
    assert profile.perplexity is None
    assert measure(small("vit").bfloat16(), images)[0].r2 == pytest.approx(profile[0].r2, abs=0.05)


def test_inputs_come_in_the_models_precision_and_masks_as_they_are(padded):
    images = batch_of(small("vit").bfloat16(), ModelInputs.of(reads("vit")), torch.tensor([3, 5]))
    assert images["pixel_values"].dtype is torch.bfloat16
    assert torch.equal(images["pixel_values"], reads("vit")["pixel_values"][[3, 5]].bfloat16())
    text = batch_of(small("gpt2").half(), ModelInputs.of(padded), torch.tensor([1]))
    assert {name: value.dtype for name, value in text.items() if name != "use_cache"} == dict.fromkeys(
        ("input_ids", "attention_mask"), torch.int64
    )


def test_the_hash_is_of_the_content(padded):
    first = ModelInputs.of(padded)
    assert first.sha256 == ModelInputs.of(dict(reversed(list(padded.items())))).sha256
    for other in ({**padded, "attention_mask": torch.ones(40, 12)}, {**padded, "token_type_ids": torch.zeros(40, 12)}):
        assert ModelInputs.of(other).sha256 != first.sha256
    assert ModelInputs.of(padded, folds=2).sha256 != first.sha256
    zeros = torch.zeros(4, 2, 6)  # of another shape or kind their bytes are the same
    assert len({ModelInputs.of({"x": x}).sha256 for x in (zeros, zeros.view(4, 3, 4), zeros.int())}) == 3


@pytest.mark.parametrize(
    ("gone", "message"),
    [(0, "sequence 7 has padding before a token.*padding_side"), (slice(None), "sequence 7 holds no token")],
)
def test_padding_on_the_left_or_alone_is_refused(padded, gone, message):
    mask = padded["attention_mask"].clone()
    mask[7, gone] = 0
    with pytest.raises(InputError, match=message):
        ModelInputs.of({**padded, "attention_mask": mask})


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"input_ids": torch.zeros(4, 3, dtype=torch.long), "attention_mask": torch.ones(3, 3)},
        {"input_ids": torch.zeros(4, 3, dtype=torch.long), "attention_mask": torch.ones(4, 2)},
        {"input_ids": torch.zeros(4, 3, dtype=torch.long), "attention_mask": torch.ones(4)},
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(odd, unchecked):
    with pytest.raises(InputError, match="of shape"):
        ModelInputs.of(odd)


def test_a_model_is_told_apart_by_what_it_reads(padded):
    with pytest.raises(InputError, match=r"ViTForImageClassification reads pixel_values, not input_ids"):
        measure(small("vit"), padded["input_ids"])
    with pytest.raises(InputError, match=r"GPT2LMHeadModel reads input_ids, not pixel_values"):
        measure(small("gpt2"), reads("vit"))


def test_a_sample_needs_token_ids():
    with pytest.raises(InputError, match="a sample of 5 rows keeps their token ids, and these inputs have none"):
        capture(small("vit"), ModelInputs.of(reads("vit")), sample=5)


def test_padded_text_and_images_can_be_measured_to_a_tolerance(padded, monkeypatch):
    monkeypatch.setattr(stopping, "FIRST", 64)
    monkeypatch.setattr(stopping, "ROWS_PER_INPUT", 1)
    profile = measure(small("gpt2"), ModelInputs.of(padded, folds=2), tolerance=0.99)
    assert profile.stop is not None
    assert profile.to_dict()["rows"] == profile.rows.count == int(profile.rows.mask.sum())
    assert profile.to_dict()["seq_len"] == 12
    images = ModelInputs.of(reads("vit", n=40), folds=2)
    assert images.count == 40
    assert measure(small("vit"), images, tolerance=0.99).to_dict()["rows"] == 5 * 40


@pytest.fixture
def packed():
    """64 sequences of 16 tokens, three folds a side."""
    ids = torch.randint(80, (64, 16), generator=torch.Generator().manual_seed(5))
    return TokenRows.from_ids(ids, folds=3)


def test_all_rows_stay_as_they_are_and_a_fold_keeps_a_sequence(packed):
    assert packed.thinned(None) is packed
    assert torch.equal(packed.thinned(10 * packed.count).ids, packed.ids)
    fewest = packed.thinned(1)
    assert [len(fold) for test in (False, True) for fold in fewest.folds(test)] == [1] * 6


def test_fewer_held_out_rows_are_of_every_fold_and_those_to_fit_on_stay():
    rows = TokenRows.from_ids(torch.arange(80 * 4).view(80, 4), folds=2)
    fewer = rows.with_fewer_held_out(24)
    assert [len(members) for members in fewer.folds(test=True)] == [3, 3]
    assert torch.equal(fewer.ids[~fewer.test], rows.ids[~rows.test])
    # ten sequences of each fold, three of them: the first, the fourth, the seventh
    some = [members[[0, 3, 6]] for members in rows.folds(test=True)]
    assert torch.equal(fewer.ids[fewer.test], rows.ids[torch.cat(some).sort().values])
    assert torch.equal(fewer.held_out.ids, fewer.ids[fewer.test])
    assert [len(members) for members in rows.with_fewer_held_out(1).folds(test=True)] == [1, 1]
    assert rows.with_fewer_held_out(None) is rows


@pytest.mark.parametrize(
    ("count", "places"),
    [(1, [0]), (2, [0, 8]), (3, [0, 4, 8]), (4, [0, 4, 8, 9]), (9, [0, 1, 2, 3, 4, 5, 6, 7, 8])],
)
def test_fewer_held_out_rows_are_of_as_many_documents_as_there_can_be(count, places):
    """A fold of ten sequences: eight begin in one document, the last two in another."""
    rows = TokenRows.from_ids(torch.arange(80 * 4).view(80, 4), folds=2)
    document = torch.zeros(80, dtype=torch.long)
    for fold, members in enumerate(rows.folds(test=True)):
        document[members] = 2 * fold + (torch.arange(10) > 7)
    rows = replace(rows, spans=torch.stack([document, document], 1))
    fewer = rows.with_fewer_held_out(2 * 4 * count)
    some = [members[places] for members in rows.folds(test=True)]
    assert torch.equal(fewer.ids[fewer.test], rows.ids[torch.cat(some).sort().values])
    assert len(fewer.held_out.spans.unique()) == min(2 * count, 4)


def test_thinned_rows_are_spread_over_every_fold_in_their_order():
    rows = TokenRows.from_ids(torch.arange(80 * 4).view(80, 4), folds=2)
    fewer = rows.thinned(160)  # half: every second sequence
    members = [fold[::2] for side in (False, True) for fold in rows.folds(side)]
    assert torch.equal(fewer.ids, rows.ids[torch.cat(members).sort().values])
    assert {len(fold) for fold in members} == {15, 5}


def test_what_is_drawn_is_in_order_and_no_padding():
    ids = torch.zeros(8, 12, dtype=torch.long)
    mask = torch.arange(12) < 5 + torch.arange(8)[:, None] % 8
    rows = ModelInputs.of({"input_ids": ids, "attention_mask": mask.long()})
    places, slot = draw(rows, 30, seed=0)
    assert places.tolist() == sorted(set(places.tolist()))
    assert len(places) == 30
    assert mask.flatten()[places].all()
    assert torch.equal(slot.flatten()[places], torch.arange(30))
    assert (slot >= 0).sum() == 30


def test_a_site_that_sees_other_rows_than_the_batch_is_refused():
    rows = TokenRows.from_ids(torch.arange(8)[:, None].repeat(1, 4))
    x = torch.zeros(7, 2)
    with pytest.raises(InputError, match=r"block 1 saw 7 rows, not the 8 of the batch"):
        tokens_of(rows, torch.tensor([0, 1]), "block 1", x, x)


@pytest.mark.parametrize(("name", "longest"), [("gpt2", 64), ("roberta", 64 - 2)])
def test_as_many_tokens_as_the_model_reads_are_not_too_many(name, longest):
    check(small(name), TokenRows.from_ids(torch.arange(8)[:, None].repeat(1, longest)))
    with pytest.raises(InputError, match=f"the model reads at most {longest}"):
        check(small(name), TokenRows.from_ids(torch.arange(8)[:, None].repeat(1, longest + 1)))


# --- rows of ids


def test_sequences_given_as_ids_are_dealt_by_hand():
    rows = TokenRows.from_ids(torch.arange(20).view(10, 2), folds=2)
    assert rows.test.tolist() == [False, False, False, True] * 2 + [False, False]
    assert rows.fold.tolist() == [0, 1, 0, 0, 1, 0, 1, 1, 0, 1]
    assert rows.corpus == "token ids"


def test_the_hash_of_rows_is_of_their_ids_sides_and_folds(rows):
    ids, test, fold = rows.ids.clone(), rows.test.clone(), rows.fold.clone()
    assert replace(rows, corpus="another").sha256 == TokenRows(ids, test, fold).sha256 == rows.sha256
    ids[5, 5] += 1
    test[0] = True
    fold[0] = 2
    assert len({rows.sha256, *(replace(rows, **c).sha256 for c in ({"ids": ids}, {"test": test}, {"fold": fold}))}) == 4


def test_rows_are_equal_by_their_content(rows, padded):
    same = replace(rows, ids=rows.ids.clone(), corpus="another")
    record = RowsOnRecord("mine", rows.sha256, rows.count, rows.seq_len)
    assert rows == same == record == rows
    assert len({rows, same, record}) == 1
    inputs = ModelInputs.of(padded)
    assert inputs == ModelInputs.of(padded) != rows
    assert rows not in [replace(rows, ids=rows.ids + 1), None]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch.zeros(4, 3), "whole numbers, and these are float32"),
        (torch.zeros(4, 3, dtype=torch.bool), "these are bool"),
        (torch.zeros(12, dtype=torch.long), r"shape \(12,\)"),
        ([[1, 2], [3]], "makes no tensor.*pad"),
        (np.array([["a"]]), "makes no tensor"),
    ],
)
def test_what_are_no_token_ids_is_refused(odd, message):
    with pytest.raises(InputError, match=message):
        TokenRows.from_ids(odd)
    with pytest.raises(InputError, match=message):
        ModelInputs.of({"input_ids": odd})
