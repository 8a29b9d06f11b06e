"""Padded sequences as packed ones: every token stays on its side and in its fold, and no padding is among them."""

import pytest
import torch

from howlinear.errors import InputError
from howlinear.text.rows import ModelInputs, TokenRows
from howlinear.text.unpad import without_padding


def padded(lengths, width=6):
    """Sequences whose tokens count on from 1, and padding by 0, which is a token elsewhere."""
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids[mask] = torch.arange(1, sum(lengths) + 1)
    return ModelInputs.of({"input_ids": ids, "attention_mask": mask.long()}, folds=2)


def test_by_hand():
    """Sequences 3 and 7 are held out; folds to fit on are 0, 2, 5 and 1, 4, 6. The shortest has three tokens."""
    rows = padded([2, 3, 6, 3, 1, 5, 4, 4])
    packed = without_padding(rows)
    fitted_on = packed.ids[~packed.test]
    # 1, 2 of the first, 6 to 11 of the third, 16 to 20 of the sixth: thirteen tokens, four sequences of three
    assert fitted_on[:4].tolist() == [[1, 2, 6], [7, 8, 9], [10, 11, 16], [17, 18, 19]]
    assert packed.ids[packed.test].tolist() == [[12, 13, 14], [25, 26, 27]]
    assert packed.fold.tolist() == [0, 0, 0, 0, 1, 1, 0, 1]
    assert not (packed.ids == 0).any()


def test_rows_without_padding_stay_as_they_are():
    rows = TokenRows.from_ids(torch.arange(48).view(8, 6))
    assert without_padding(rows) is rows
    full = without_padding(padded([6] * 8))
    assert torch.equal(full.ids, padded([6] * 8).ids)


def test_what_is_no_text_is_refused():
    with pytest.raises(InputError, match="no token ids but pixel_values"):
        without_padding(ModelInputs.of({"pixel_values": torch.zeros(8, 3)}))
    with pytest.raises(InputError, match="fewer than two tokens"):
        without_padding(padded([1] * 8))
