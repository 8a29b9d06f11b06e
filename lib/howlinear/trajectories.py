"""Trajectories: R²_lin of every block and the held-out loss at log-spaced steps of one training run.

Those of the embedded models and of the twins were recorded while they were trained, and lie beside them as JSON.
Pythia's authors published the weights themselves, 154 times a run (Biderman et al. 2023, arXiv 2304.01373):
`revisions` measures them one after another. GPT-2 and llama-160m have no public revisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear import record
from howlinear.corpora import TokenRows
from howlinear.errors import InputError, SourceError
from howlinear.measure import measure
from howlinear.models import load_model

PUBLIC = (0, *(2**i for i in range(10)), *range(1_000, 144_000, 1_000))
"""Pythia's 154 public revisions, step0 … step143000."""

DOUBLINGS = (0, *(2**i for i in range(10)), *(1_000 * 2**i for i in range(8)), 143_000)
"""Twenty of them, one to a doubling: what is drawn on a logarithmic axis anyway."""

MOVED = 8
"""By this step a warm-up has moved the weights of any run; before, a rate near 0 may leave them as they were."""


@dataclass(frozen=True)
class Trajectory:
    """What was measured of one training run.

    Attributes:
        name: of the run.
        steps: measured steps, ascending, shape (n,).
        loss: held-out negative log-likelihood per token in nats, shape (n,).
        r2: R²_lin, shape (n, blocks).
        low: lower ends of its 95 % intervals, shape (n, blocks).
        high: upper ends.
    """

    name: str
    steps: Int[np.ndarray, " n"]
    loss: Float[np.ndarray, " n"]
    r2: Float[np.ndarray, "n blocks"]
    low: Float[np.ndarray, "n blocks"]
    high: Float[np.ndarray, "n blocks"]

    @classmethod
    def of(cls, name: str, snapshots: Sequence[Mapping]) -> Trajectory:
        """From the snapshots that `training.train` returns and trajectory.json holds.

        Raises:
            InputError: a snapshot lacks something, a number is not finite, steps do not ascend, or there are under two.
        """
        try:
            steps = np.array([one["step"] for one in snapshots], dtype=int)
            loss = np.log(np.array([one["perplexity"] for one in snapshots], dtype=float))
            curves = [np.array([one[key] for one in snapshots], dtype=float) for key in ("r2", "r2_low", "r2_high")]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"trajectory of {name}: a snapshot is damaged ({error!r}); record it anew") from error
        if len(steps) < 2 or (np.diff(steps) <= 0).any():
            raise InputError(f"trajectory of {name}: needs two steps or more, ascending, got {steps.tolist()}")
        if not all(np.isfinite(values).all() for values in (loss, *curves)):
            raise InputError(f"trajectory of {name}: a number is missing or not finite; record it anew")
        return cls(name, steps, loss, *curves)

    @classmethod
    def read(cls, path: Path | str, name: str = "") -> Trajectory:
        """From a file with `steps`; the name is that of its folder by default.

        Raises:
            SourceError: no such file, or not JSON.
            InputError: it holds no trajectory.
        """
        name = name or Path(path).resolve().parent.name
        return cls.of(name, record.load(path).get("steps", []))

    def part(self, first: int = 0, last: int | None = None) -> Trajectory:
        """The same run from step `first` to step `last`, both included, as if it had begun and stopped there.

        Raises:
            InputError: fewer than two measured steps lie between them.
        """
        kept = (self.steps >= first) & (self.steps <= (self.steps[-1] if last is None else last))
        if kept.sum() < 2:
            raise InputError(
                f"trajectory of {self.name}: {kept.sum()} measured steps from {first} to {last}, needs two"
            )
        return replace(self, **{key: getattr(self, key)[kept] for key in ("steps", "loss", "r2", "low", "high")})


def has_revisions(source: str) -> bool:
    """Whether a model's training run is public: a Hub id of a Pythia, not a folder of that name."""
    return source.startswith("EleutherAI/pythia-") and not Path(source).is_dir()


def revisions(
    source: str,
    rows: TokenRows,
    steps: Collection[int] = DOUBLINGS,
    load: Callable[..., PreTrainedModel] = load_model,
) -> Iterator[dict]:
    """Measure a model's public revisions, one in memory at a time.

    Args:
        source: Hub id of a Pythia.
        rows: the token rows, the same for every revision.
        steps: which of `PUBLIC`; each is a download of its own.
        load: called as `load(source, revision="step512")`.

    Yields:
        A snapshot per revision, as in trajectory.json but without a training loss; `Trajectory.of` takes a list.

    Raises:
        InputError: a model without public revisions, or a step that is not public.
        SourceError: neither the Hub nor its cache has a revision, or what is there under its name is another one's
            weights, as happened to larger Pythias (github.com/EleutherAI/pythia, issues 205 and 206).
    """
    if not has_revisions(source):
        raise InputError(f"{source} has no public revisions; EleutherAI's Pythias have, as EleutherAI/pythia-160m")
    strange = sorted(set(steps) - set(PUBLIC))
    if strange:
        raise InputError(f"no revision at step {strange}: 0, 1, 2, 4, … 512, then every 1000 to 143000 are public")
    seen: dict[tuple, int] = {}
    for step in sorted(set(steps)):
        profile = measure(load(source, revision=f"step{step}"), rows)  # the model is gone by now
        found = {"step": step, "perplexity": profile.perplexity} | profile.curves
        twin = seen.setdefault((found["perplexity"], *found["r2"]), step)
        if twin < step and step >= MOVED:
            raise SourceError(
                f"{source}: step{step} measures to the last digit as step{twin}: one serves the other's file"
            )
        yield found


def unigram(train: Int64[Tensor, " n"], held_out: Int64[Tensor, "m seq_len"], vocabulary: int) -> float:
    """Loss per predicted token, in nats, of a model that knows how often each token occurs and nothing else.

    Frequencies are counted in `train`, with one added to each (Laplace), and scored on what a language model predicts
    of `held_out`: all but the first token of a sequence.

    Raises:
        InputError: nothing to count or to predict, or a token outside the vocabulary.
    """
    predicted = held_out[:, 1:].flatten()
    if not len(train) or not len(predicted):
        raise InputError(f"{len(train)} tokens to count and {len(predicted)} to predict: both need some")
    if int(torch.cat([train, predicted]).max()) >= vocabulary:
        raise InputError(f"a token lies outside the vocabulary of {vocabulary}: was another tokenizer used?")
    counts = torch.bincount(train, minlength=vocabulary).double() + 1
    return float(-(counts / counts.sum()).log()[predicted].mean())
