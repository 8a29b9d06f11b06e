"""Rows as the code of arXiv 2606.19379 lays them out: the beginning of a text, as one, in windows, cut at a row.

The tokenizer reads the text in one piece: no end-of-text stands between documents, and what a tokenizer begins a text
with (`<s>`, of Llama's) stands once, before the first window. The ids are cut into windows that do not overlap, and the
last fifth of the rows is held out. So the border lies inside a window, and inside a document: the two sides are
neighbours, and no document fold gives an error bar. `Corpus.rows` is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear.errors import InputError
from howlinear.text.corpus import Corpus

LAYOUTS = {"survey": (15_000, 15_000), "tables": (30_000, 25_600)}
"""Rows at most of each block, and of the test part that perplexities are of: the survey's, in 117 windows of 128
tokens, and those of the two-block tables, in 234, whose perplexities are of 50 batches of four windows."""
SURVEY, _ = LAYOUTS["survey"]
HELD_OUT = 0.2

LONG_TOKEN = 16  # characters that tokens have on average at most, so that a text need not be read to its end


@dataclass(frozen=True)
class PaperRows:
    """Windows of a text in its own order.

    Attributes:
        ids: token ids, shape (windows, seq_len).
        cut: rows before it are to fit on, those from it on are held out; counted through all windows.
    """

    ids: Int64[Tensor, "windows seq_len"]
    cut: int


def paper_rows(corpus: Corpus, most: int = SURVEY, seq_len: int = 128, seed: int = 0) -> PaperRows:
    """The first whole windows of a text, `most` rows of it at most; a shorter text gives what it has.

    What embedded models trained on is left out, and `seed` decides where a built-in text begins.
    """
    text = corpus.beginning(LONG_TOKEN * most, seed)
    ids = torch.tensor(corpus.tokenizer(text, verbose=False)["input_ids"], dtype=torch.long)
    windows = min(most, len(ids)) // seq_len
    if windows < 2:
        raise InputError(f"corpus {corpus.name} has {len(ids)} tokens: bring two windows of {seq_len} or more")
    rows = windows * seq_len
    return PaperRows(ids[:rows].view(windows, seq_len), cut=rows - round(HELD_OUT * rows))
