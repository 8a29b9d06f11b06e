"""Token rows under either split, with nested sets of train rows of growing size.

The documents split draws from all documents that were read, and no folder of files is on both sides; the tail split
keeps the text's own order, in which a file, its folder and one document may lie across the border. Held-out rows stay
the same while train rows are added, so that a curve over rows is about the fit alone. Every step adds to each of eight
folds: folds of documents or, with the tail split, runs of neighbouring sequences.

A third split shows the effect of not keeping documents whole: runs of a few neighbouring sequences, every fourth run
held out, so that parts of one document lie on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear.errors import InputError
from howlinear.ideas.protocol.choices import RUNS, sequences_per_fold
from howlinear.text.corpus import Corpus
from howlinear.text.documents import seeded_hash
from howlinear.text.rows import FOLDS, TRAIN_SHARE, TokenRows, split_in_turn

TAIL = 0.2  # of a text in its own order, held out as the paper does
SURE = 0.95  # share of the rows packed in one order of documents that a short text gives in any order
MORE = 1.03
FEWEST_SEQUENCES = 4 * FOLDS  # that `Corpus.rows` packs
RUN = 8  # neighbouring sequences that go to one side; fewer if few sequences are requested


@dataclass(frozen=True)
class Layout:
    """Token rows whose train side grows in steps."""

    rows: TokenRows  # the sequences, with their side and fold
    step: Int64[Tensor, " n_sequences"]  # at which a sequence joins the train rows, 0 … steps − 1; 0 if held out
    factors: list[int]  # requested train rows over width at every step


def first_documents(corpus: Corpus, most: int, seed: int = 0) -> Corpus:
    """Cut a corpus to its first documents, in the text's own order, read once and kept in memory."""
    documents = list(islice(corpus.in_order(seed), most))
    return replace(corpus, documents=lambda _: iter(documents))


def available_train_rows(corpus: Corpus, rows: int, seq_len: int, seed: int = 0) -> int:
    """Count the train rows available when `rows` are requested from a corpus, which may have fewer."""
    found = corpus.rows(rows, seq_len, seed).count
    if rows - found < seq_len:
        return int(TRAIN_SHARE * rows)
    # a short text: even folds of documents in another order hold a little less, and each takes whole sequences
    return int(SURE * TRAIN_SHARE * found) - 2 * FOLDS * seq_len


def lay_out(corpus: Corpus, split: str, seq_len: int, width: int, factors: Sequence[int], seed: int = 0) -> Layout:
    """Lay out rows of a corpus in its own order, with `factors` train rows per input, one factor per step.

    The split is one of `SPLITS`, or `RUNS` with the last factor alone.
    """
    per_fold = [sequences_per_fold(factor, width, seq_len) for factor in factors]
    if any(more <= fewer for fewer, more in pairwise(per_fold)):
        raise InputError(
            f"{list(factors)} rows an input, of width {width}, in sequences of {seq_len}: each step must add "
            f"a sequence to each of {FOLDS} folds; take steps farther apart, or shorter sequences"
        )
    if split == "documents":
        rows, step = _by_documents(corpus, seq_len, per_fold, seed)
    elif split == RUNS:
        rows, step = _by_runs(corpus, seq_len, per_fold[-1], seed)
        factors = factors[-1:]
    else:
        rows, step = _by_tail(corpus, seq_len, per_fold, seed)
    return Layout(rows, step, list(factors))


def _by_documents(corpus: Corpus, seq_len: int, per_fold: list[int], seed: int) -> tuple[TokenRows, Tensor]:
    """Split shuffled documents as `Corpus.rows` does; by step k, `per_fold[k]` sequences of each train fold are in."""
    drawn = sorted(corpus.in_order(seed), key=lambda document: seeded_hash(seed, document.text))
    shuffled = replace(corpus, documents=lambda _: iter(drawn))
    needed = round(FOLDS * per_fold[-1] / TRAIN_SHARE) + 1
    sequences = max(needed, FEWEST_SEQUENCES)
    # even folds of a short text may be a sequence short, and then a few more rows are requested
    for asked in (sequences, round(MORE * sequences)):
        rows = shuffled.rows(asked * seq_len, seq_len, seed)
        train_folds = rows.folds(test=False)
        if min(len(members) for members in train_folds) >= per_fold[-1]:
            break
    else:
        raise InputError(f"corpus {corpus.name} is too short: {rows.note}; ask for fewer rows or bring more text")

    step = torch.zeros(len(rows.ids), dtype=torch.long)
    for members in train_folds:
        # step k has the places below per_fold[k] of every fold; sequences beyond the last step are left out
        place = torch.arange(len(members))
        step[members] = torch.bucketize(place, torch.tensor(per_fold), right=True)
    used = (step < len(per_fold)).nonzero()[:, 0]
    return rows.subset(used), step[used]


def _by_tail(corpus: Corpus, seq_len: int, per_fold: list[int], seed: int) -> tuple[TokenRows, Tensor]:
    """Split the text in its own order; each step adds the sequences right before the tail and the earlier steps."""
    train = FOLDS * per_fold[-1]
    sequences = max(round(train / (1 - TAIL)), round(FOLDS / TAIL))  # even a short tail gives each fold a sequence
    rows = corpus.contiguous(sequences * seq_len, seq_len, TAIL, seed)

    # those next to the tail come first, and those beyond the last step are left out
    train_at = (~rows.test).nonzero()[:, 0].flip(0)
    step = torch.full((len(rows.ids),), len(per_fold))
    step[rows.test] = 0
    fold = rows.fold.clone()
    start = 0
    for number, size in enumerate(per_fold):
        stop = FOLDS * size
        added = train_at[start:stop]
        step[added] = number
        # eight runs of neighbours
        fold[added] = torch.arange(len(added)) * FOLDS // len(added)
        start = stop
    used = (step < len(per_fold)).nonzero()[:, 0]
    return replace(rows, fold=fold).subset(used), step[used]


def _by_runs(corpus: Corpus, seq_len: int, per_fold: int, seed: int) -> tuple[TokenRows, Tensor]:
    """Split the text in its own order into runs of neighbouring sequences: every fourth held out, folds in turn."""
    sequences = max(round(FOLDS * per_fold / TRAIN_SHARE), FEWEST_SEQUENCES)
    rows = corpus.contiguous(sequences * seq_len, seq_len, 1 - TRAIN_SHARE, seed)
    run = torch.arange(len(rows.ids)) // min(RUN, len(rows.ids) // FEWEST_SEQUENCES)
    test, fold = split_in_turn(int(run[-1]) + 1, FOLDS)
    return replace(rows, test=test[run], fold=fold[run]), torch.zeros_like(run)
