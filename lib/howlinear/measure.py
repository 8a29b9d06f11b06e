"""R²_lin of every block of a model on a corpus: the whole instrument in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.capture import BlockCapture, capture
from howlinear.ceilings import Ceiling, ceiling
from howlinear.corpora import Corpus, TokenRows
from howlinear.errors import InputError
from howlinear.moments import effective_rank
from howlinear.perplexity import perplexity


@dataclass(frozen=True)
class Profile(Mapping):
    """The ceilings of a model's blocks on one corpus; `profile[3]` is block 3's `Ceiling`.

    Attributes:
        model: where the model came from.
        rows: the token rows it was measured on.
        ceilings: block → `Ceiling`.
        effective_ranks: block → participation ratio of the held-out outputs' covariance.
        perplexity: of the model on the held-out rows.
    """

    model: str
    rows: TokenRows
    ceilings: dict[int, Ceiling]
    effective_ranks: dict[int, float]
    perplexity: float

    def __getitem__(self, block: int) -> Ceiling:
        """The `Ceiling` of a block."""
        return self.ceilings[block]

    def __iter__(self) -> Iterator[int]:
        """Blocks in order of depth."""
        return iter(self.ceilings)

    def __len__(self) -> int:
        """How many blocks were measured."""
        return len(self.ceilings)

    @property
    def rises_and_falls(self) -> bool:
        """Whether some later block surely lies above an earlier one, and some below: intervals that do not touch."""
        low, high = (np.array(self.curves[end]) for end in ("r2_low", "r2_high"))
        above = low[None, :] > high[:, None]  # column surely above row
        return bool(np.triu(above).any() and np.tril(above).any())

    @property
    def curves(self) -> dict[str, list[float]]:
        """R²_lin over depth and its interval's ends, `r2`, `r2_low` and `r2_high`, as trajectories keep them."""
        return {end: [getattr(found, end) for found in self.values()] for end in ("r2", "r2_low", "r2_high")}

    def to_frame(self) -> pd.DataFrame:
        """A row per block, with the columns of `howlinear measure --json`.

        `condition` and `rank` describe the inputs of the fit, `effective_rank` the held-out outputs.
        """
        return pd.DataFrame(
            {
                "block": block,
                "r2": found.r2,
                "r2_low": found.r2_low,
                "r2_high": found.r2_high,
                "r2_median": found.r2_median,
                "effective_rank": self.effective_ranks[block],
                "condition": found.condition,
                "rank": found.rank,
                "rows_train": found.rows_train,
                "rows_test": found.rows_test,
            }
            for block, found in self.items()
        )

    def to_dict(self) -> dict:
        """The profile as `howlinear measure --json` writes it."""
        return {
            "model": self.model,
            "corpus": self.rows.corpus,
            "sha256": self.rows.sha256,
            "rows": self.rows.ids.numel(),
            "seq_len": self.rows.ids.shape[1],
            "perplexity": self.perplexity,
            "blocks": self.to_frame().to_dict("records"),
        }


def measure(
    model: PreTrainedModel,
    corpus: Corpus | TokenRows | Int64[Tensor, "n_sequences seq_len"],
    rows: int = 20_000,
    seq_len: int = 128,
    seed: int = 0,
    blocks: list[int] | None = None,
    batch_size: int = 16,
    progress: bool = False,
) -> Profile:
    """Measure R²_lin of every block.

    Args:
        model: a causal language model, see `load_model`.
        corpus: a corpus, packed rows, or token ids of shape (n_sequences, seq_len), each row its own document.
        rows: tokens in all, a quarter of them held out; ids and packed rows are used whole.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn.
        blocks: which blocks; all by default.
        batch_size: sequences in a forward pass.
        progress: show a bar.

    Raises:
        InputError: too little text, unknown block, activations that are not finite.
    """
    if isinstance(corpus, Corpus):
        corpus = corpus.rows(rows, seq_len, seed)
    elif isinstance(corpus, Tensor):
        corpus = TokenRows.from_ids(corpus)
    captured = capture(model, corpus, blocks, batch_size=batch_size, progress=progress)
    return profile_of(captured, model.name_or_path or type(model).__name__, corpus, perplexity(model, corpus))


def profile_of(captured: Mapping[int, BlockCapture], model: str, rows: TokenRows, perplexity: float) -> Profile:
    """The profile that a capture implies.

    Raises:
        InputError: a block cannot be fitted; names it.
    """
    ceilings, ranks = {}, {}
    for block, kept in captured.items():
        try:
            ceilings[block] = ceiling(kept.train, kept.test)
        except InputError as error:
            raise InputError(f"block {block}: {error}") from error
        ranks[block] = effective_rank(kept.outputs.sxx)
    return Profile(model, rows, ceilings, ranks, perplexity)
