"""Repacking of padded sequences, for computations that count tokens and must not count padding."""

from __future__ import annotations

import torch

from howlinear.errors import InputError
from howlinear.text.rows import Rows, TokenRows


def without_padding(rows: Rows) -> TokenRows:
    """Repack the tokens of each document fold into sequences of one length; the remainder of a fold is left out.

    Every token stays on its side and in its document fold. Rows without padding keep their sequences.
    """
    if rows.ids is None:
        raise InputError(f"these are no token ids but {', '.join(rows.inputs)}: what follows needs a text")
    if isinstance(rows, TokenRows):
        return rows
    if rows.mask is None or rows.mask.all():
        return TokenRows(rows.ids, rows.test, rows.fold, rows.corpus)

    # the tokens of every fold of either side, then sequences as long as the shortest fold allows
    tokens = {}
    for test in (False, True):
        for members in rows.folds(test):
            tokens[test, int(rows.fold[members[0]])] = rows.ids[members][rows.mask[members]]
    length = min(rows.ids.shape[1], *(len(of_fold) for of_fold in tokens.values()))
    if length < 2:
        raise InputError("a document fold has fewer than two tokens: give more text, or fewer folds")
    ids = {key: of_fold[: len(of_fold) // length * length].view(-1, length) for key, of_fold in tokens.items()}
    return TokenRows(
        ids=torch.cat(list(ids.values())),
        test=torch.cat([torch.full((len(of_fold),), test, device="cpu") for (test, _), of_fold in ids.items()]),
        fold=torch.cat([torch.full((len(of_fold),), fold, device="cpu") for (_, fold), of_fold in ids.items()]),
        corpus=rows.corpus,
    )
