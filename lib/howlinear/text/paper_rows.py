"""Rows as the code of arXiv 2606.19379 lays them out: the beginning of a text in windows, split at a row.

The tokenizer reads the text in one piece: there is no end-of-text token between documents, and the token that opens a
text (`<s>` in Llama's) occurs once, before the first window. The ids are cut into windows that do not overlap, and the
last fifth of the rows is held out. So the train/test border lies inside a window and inside a document: the two sides
are neighbours, and there are no document folds for error bars. Our own layout is `Corpus.rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear.errors import InputError
from howlinear.text.corpus import Corpus

LAYOUTS = {"survey": (15_000, 15_000), "tables": (30_000, 25_600)}
"""Most rows of each block, and most rows of the test part for perplexities: the survey's, in 117 windows of 128 tokens,
and those of the two-block tables, in 234 windows, with perplexities of 50 batches of four windows."""
SURVEY, _ = LAYOUTS["survey"]
HELD_OUT = 0.2

LONG_TOKEN = 16  # most characters per token on average, so that a text need not be read to its end


@dataclass(frozen=True)
class PaperRows:
    """Windows of a text in its own order.

    Attributes:
        ids: token ids, shape (windows, seq_len).
        cut: first held-out row, counted over all windows; the rows before it are the train rows.
    """

    ids: Int64[Tensor, "windows seq_len"]
    cut: int


def paper_rows(corpus: Corpus, most: int = SURVEY, seq_len: int = 128, seed: int = 0) -> PaperRows:
    """Take the first whole windows of a text, at most `most` rows; a shorter text gives what it has.

    Documents that embedded models trained on are left out, and `seed` decides where a built-in text begins.
    """
    text = corpus.beginning(LONG_TOKEN * most, seed)
    ids = torch.tensor(corpus.tokenizer(text, verbose=False)["input_ids"], dtype=torch.long)
    windows = min(most, len(ids)) // seq_len
    if windows < 2:
        raise InputError(f"corpus {corpus.name} has {len(ids)} tokens: bring two windows of {seq_len} or more")
    rows = windows * seq_len
    return PaperRows(ids[:rows].view(windows, seq_len), cut=rows - round(HELD_OUT * rows))
