"""R²_lin of every block of a model on a corpus: the whole instrument in one call."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import Pass
from howlinear.instrument.profile import Profile, name_of, profile_of, solve
from howlinear.instrument.stopping import measure_until
from howlinear.models.sources import running
from howlinear.text.corpus import Corpus, rows_of
from howlinear.text.rows import Rows

__all__ = ["Profile", "measure", "profile_of"]

ROWS = 20_000  # that are measured on by default


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
) -> Profile:
    """Measure R²_lin of every block.

    Args:
        model: see `load_model`; an encoder's profile has no perplexity.
        corpus: a corpus, packed rows, or token ids of shape (n_sequences, seq_len), each row its own document; or what
            a tokenizer or image processor returns, keyword → tensor (padding is left out, see `rows.ModelInputs`).
        rows: tokens in all, a quarter of them held out; 20,000 by default. With a tolerance, the most that may be
            used; 1,310,720 by default, or what the corpus has. What is no corpus is there to be used whole.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn.
        blocks: which blocks; all by default.
        batch_size: sequences in a forward pass.
        progress: show a bar.
        tolerance: stop as soon as the interval of every block is at most this much to either side, looking at
            20,480 rows or a little more and whenever they have doubled. The intervals are wide enough to hold
            in spite of the looking (`instrument.stopping`); `Profile.stop` says how it ended, `Profile.rows` what
            was used.

    Raises:
        InputError: too little text, unknown block, activations that are not finite, a tolerance out of (0, 1), a
            device without float64.
        SourceError: the model's own forward pass fails.
    """
    if tolerance is not None:
        return measure_until(model, corpus, tolerance, rows, seq_len, seed, blocks, batch_size, progress)
    name = name_of(model)
    packed = rows_of(corpus, ROWS if rows is None else rows, seq_len, seed)
    run = Pass(model, packed)
    with running(name):
        captured = capture(model, packed, blocks, batch_size=batch_size, progress=progress, run=run)
    solved = solve(captured, progress=progress)
    return Profile(name, packed, solved, run.perplexity())
