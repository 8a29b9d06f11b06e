"""R²_lin of every block of a model on a corpus: the whole instrument in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear import sequential
from howlinear.capture import BlockCapture, batches
from howlinear.ceilings import CONFIDENCE, Ceiling, ceiling
from howlinear.corpora import Corpus, TokenRows
from howlinear.distributed import ALONE, NO_FLOAT64, Ranks
from howlinear.errors import InputError
from howlinear.inputs import ModelInputs, Rows
from howlinear.models import is_causal, width_of
from howlinear.moments import effective_rank
from howlinear.perplexity import perplexity
from howlinear.pooled import added, pooled
from howlinear.sequential import Stop
from howlinear.sources import running


@dataclass(frozen=True)
class Profile(Mapping):
    """The ceilings of a model's blocks on one corpus; `profile[3]` is block 3's `Ceiling`.

    Attributes:
        model: where the model came from.
        rows: what it was measured on.
        ceilings: block → `Ceiling`.
        effective_ranks: block → participation ratio of the held-out outputs' covariance.
        perplexity: of the model on the held-out rows; None if it predicts no next token.
        stop: why no more rows were used; None where no tolerance was asked for.
    """

    model: str
    rows: Rows
    ceilings: dict[int, Ceiling]
    effective_ranks: dict[int, float]
    perplexity: float | None
    stop: Stop | None = None

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
        """The profile as `howlinear measure --json` writes it; `rows` leaves padding out."""
        first = next(iter(self.values()))
        return {
            "model": self.model,
            "corpus": self.rows.corpus,
            "sha256": self.rows.sha256,
            "rows": first.rows_train + first.rows_test,
            "seq_len": None if self.rows.ids is None else self.rows.ids.shape[1],
            "perplexity": self.perplexity,
            "blocks": self.to_frame().to_dict("records"),
        } | ({} if self.stop is None else {"stop": asdict(self.stop)})


def measure(
    model: PreTrainedModel,
    corpus: Corpus | Rows | Int64[Tensor, "n_sequences seq_len"] | Mapping[str, Tensor],
    rows: int | None = None,
    seq_len: int = 128,
    seed: int = 0,
    blocks: list[int] | None = None,
    batch_size: int = 16,
    progress: bool = False,
    tolerance: float | None = None,
    ranks: Ranks = ALONE,
) -> Profile:
    """Measure R²_lin of every block.

    Args:
        model: see `load_model`; an encoder's profile has no perplexity.
        corpus: a corpus, packed rows, or token ids of shape (n_sequences, seq_len), each row its own document; or what
            a tokenizer or image processor returns, keyword → tensor (padding is left out, see `inputs.ModelInputs`).
        rows: tokens in all, a quarter of them held out; 20,000 by default. With a tolerance, the most that may be
            used; 1,310,720 by default, or what the corpus has. What is no corpus is there to be used whole.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn.
        blocks: which blocks; all by default.
        batch_size: sequences in a forward pass.
        progress: show a bar.
        tolerance: stop as soon as the interval of every block is at most this much to either side, looking at
            20,480 rows or a little more and whenever they have doubled. The intervals are wide enough to hold
            in spite of the looking (`sequential`); `Profile.stop` says how it ended, `Profile.rows` what was used.
        ranks: the processes that share the work, from `distributed.joined`; all of them call this alike.

    Raises:
        InputError: too little text, unknown block, activations that are not finite, a tolerance out of (0, 1), a
            device without float64.
        RankError: another rank is gone.
        SourceError: the model's own forward pass fails.
    """
    sequential.checked(tolerance)
    if model.device.type == "mps":
        raise InputError(NO_FLOAT64)
    if isinstance(corpus, Corpus):
        if tolerance is None:
            corpus = corpus.rows(20_000 if rows is None else rows, seq_len, seed)
        else:
            corpus = corpus.rows(sequential.MOST if rows is None else rows, seq_len, seed, at_most=True)
    elif isinstance(corpus, Tensor):
        corpus = TokenRows.from_ids(corpus)
    elif isinstance(corpus, Mapping):
        corpus = ModelInputs.of(corpus)
    ranks.alike(corpus.sha256, "the text that they read")
    plan = [torch.arange(len(corpus.test))]
    if tolerance is not None:
        plan = sequential.schedule(corpus, width_of(model))
    confidence = sequential.look_confidence(len(plan))
    kept: dict[int, BlockCapture] = {}
    name, stop = model.name_or_path or type(model).__name__, None
    for look, new in enumerate(plan, 1):
        only = [new[batch] for batch in batches(sequential.taken(corpus, new), batch_size)]
        with running(name):
            more = pooled(model, corpus, only, blocks, progress, ranks)
        kept = added(kept, more) if kept else more
        ceilings, effective = _solved(kept, confidence, ranks)
        if tolerance is not None:
            stop = sequential.judged(ceilings, tolerance, look, len(plan))
            if stop.reached:
                break
    used = sequential.taken(corpus, torch.cat(plan[:look]).sort().values)
    predicted = None
    if is_causal(model) and used.ids is not None:
        with running(name):
            predicted = perplexity(model, used, ranks=ranks)
    return Profile(name, used, ceilings, effective, predicted, stop)


def profile_of(captured: Mapping[int, BlockCapture], model: str, rows: Rows, perplexity: float | None) -> Profile:
    """The profile that a capture implies.

    Raises:
        InputError: a block cannot be fitted; names it.
    """
    return Profile(model, rows, *_solved(captured), perplexity)


def _solved(
    captured: Mapping[int, BlockCapture], confidence: float = CONFIDENCE, ranks: Ranks = ALONE
) -> tuple[dict[int, Ceiling], dict[int, float]]:
    """Ceilings and effective ranks of all ranks' blocks, on every rank."""
    solved = {}
    for block, kept in captured.items():
        try:
            solved[block] = ceiling(kept.train, kept.test, confidence), effective_rank(kept.outputs.sxx)
        except InputError as error:
            raise InputError(f"block {block}: {error}") from error
    everyone = {block: found for each in ranks.gather(solved) for block, found in each.items()}
    ceilings, effective = ({block: everyone[block][i] for block in sorted(everyone)} for i in (0, 1))
    return ceilings, effective
