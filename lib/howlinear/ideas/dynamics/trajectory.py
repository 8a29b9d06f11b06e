"""Trajectories: R²_lin of every block and the held-out loss at log-spaced steps of one training run.

Trajectories of the embedded models and of the twins were recorded during training, and lie next to them as JSON.
Pythia's authors published the weights at 154 steps of each run (Biderman et al. 2023, arXiv 2304.01373), which
`revisions` measures one after another. GPT-2 and llama-160m have no public revisions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from howlinear.errors import InputError, SourceError
from howlinear.files import numbers
from howlinear.files.tables import with_ends
from howlinear.instrument.measure import measure
from howlinear.models.load import load_model
from howlinear.text.rows import TokenRows

PUBLIC = (0, *(2**i for i in range(10)), *range(1_000, 144_000, 1_000))
"""Pythia's 154 public revisions, step0 … step143000."""

DOUBLINGS = (0, *(2**i for i in range(10)), *(1_000 * 2**i for i in range(8)), 143_000)
"""Twenty of them, about one per doubling, as suits a logarithmic axis."""

MOVED = 8
"""By this step a warm-up has moved the weights of any run; before, a rate near 0 may leave them as they were."""


@dataclass(frozen=True)
class Trajectory:
    """What was measured of one training run."""

    name: str
    steps: Int[np.ndarray, " n"]  # measured steps, ascending
    loss: Float[np.ndarray, " n"]  # held-out negative log-likelihood per token, in nats
    r2: Float[np.ndarray, "n blocks"]  # R²_lin
    low: Float[np.ndarray, "n blocks"]  # lower ends of its 95 % intervals
    high: Float[np.ndarray, "n blocks"]  # and upper ones

    @classmethod
    def of(cls, name: str, snapshots: Sequence[Mapping]) -> Trajectory:
        """Build from the snapshots that `training.train` returns and trajectory.json holds."""
        try:
            steps = np.array([snapshot["step"] for snapshot in snapshots], dtype=int)
            loss, r2, low, high = (
                np.array([snapshot[name] for snapshot in snapshots], dtype=float)
                for name in ("perplexity", *with_ends("r2"))
            )
            loss = np.log(loss)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"trajectory of {name}: a snapshot is damaged ({error!r}); record it anew") from error
        if len(steps) < 2 or (np.diff(steps) <= 0).any():
            raise InputError(f"trajectory of {name}: needs two steps or more, ascending, got {steps.tolist()}")
        if not all(np.isfinite(values).all() for values in (loss, r2, low, high)):
            raise InputError(f"trajectory of {name}: a number is missing or not finite; record it anew")
        return cls(name, steps, loss, r2, low, high)

    @classmethod
    def read(cls, path: Path) -> Trajectory:
        """Read a file with `steps`; the run is named after its folder."""
        return cls.of(path.parent.name, numbers.load(path).get("steps", []))

    def part(self, inside: Bool[np.ndarray, " n"]) -> Trajectory:
        """Return the same run with only the measured steps that are `inside`."""
        measured = ("steps", "loss", "r2", "low", "high")
        return replace(self, **{name: getattr(self, name)[inside] for name in measured})

    def to_frame(self) -> pd.DataFrame:
        """Tabulate a row per measured step and block: run, step, block, and r2 with its ends."""
        n, blocks = self.r2.shape
        return pd.DataFrame(
            {
                "run": self.name,
                "step": np.repeat(self.steps, blocks),
                "block": np.tile(np.arange(blocks), n),
                "r2": self.r2.flatten(),
                "r2_low": self.low.flatten(),
                "r2_high": self.high.flatten(),
            }
        )


def films(folders: Iterable[Path]) -> dict[str, Trajectory]:
    """Read the trajectories in model folders, by the folders' names; a folder without one is skipped."""
    files = [folder / "trajectory.json" for folder in folders]
    return {file.parent.name: Trajectory.read(file) for file in files if file.is_file()}


def has_revisions(source: str) -> bool:
    """Whether a model's training run is public: a Hub id of a Pythia, not a folder of that name."""
    return source.startswith("EleutherAI/pythia-") and not Path(source).is_dir()


def revisions(source: str, rows: TokenRows, steps: Collection[int] = DOUBLINGS) -> Iterator[dict]:
    """Measure a model's public revisions, one in memory at a time; yield a snapshot of each for `Trajectory.of`."""
    strange = sorted(set(steps) - set(PUBLIC))
    if strange:
        raise InputError(f"no revision at step {strange}: 0, 1, 2, 4, … 512, then every 1000 to 143000 are public")
    measured: dict[tuple, int] = {}  # what was measured → the step at which it was first
    for step in sorted(set(steps)):
        profile = measure(load_model(source, revision=f"step{step}"), rows)  # the model is gone by now
        snapshot = {"step": step, "perplexity": profile.perplexity} | profile.curves
        twin = measured.setdefault((snapshot["perplexity"], *snapshot["r2"]), step)
        if twin < step and step >= MOVED:
            raise SourceError(
                f"{source}: step{step} measures to the last digit as step{twin}: one serves the other's file"
            )
        yield snapshot


def unigram(train: Int64[Tensor, " n"], held_out: Int64[Tensor, "m seq_len"], vocabulary: int) -> float:
    """Compute the loss per predicted token, in nats, of a model that knows only how often each token occurs."""
    predicted = held_out[:, 1:].flatten()
    # each frequency is counted with one added (Laplace)
    counts = torch.bincount(train, minlength=vocabulary).double() + 1
    log_frequency = (counts / counts.sum()).log()
    return float(-log_frequency[predicted].mean())
