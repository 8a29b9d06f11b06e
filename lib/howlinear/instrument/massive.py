"""Rows of massive outputs, found while rows stream by: the few tokens for which a block writes far more than otherwise.

Trained transformers put outputs hundreds of times the usual size on a few tokens, the first of a sequence above all
(Sun et al. 2024, "Massive activations in large language models"), where heads put attention that they need nowhere else
(Xiao et al. 2024, "Efficient streaming language models with attention sinks"). R²_lin weighs squares, so a hundred such
rows can decide it alone, and the least-squares map with it. A row is massive if its output norm is beyond `MULTIPLE`
times the median norm.

To show how R²_lin depends on that multiple, all rows beyond `KEPT` times the median are kept, and the heaviest below.
One pass is enough: while rows stream by, those beyond half of the cut that the first batch suggests are kept, and in
the end those beyond the final cut. (If the first batch has more than twice the median of all rows, half of its median
is used.) With several parts of the work (processes, or looks of growing size), the largest median holds for all: every
row beyond that cut was kept by the part that saw it, since its own cut was no higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from howlinear.core.moments import Moments, on_cpu
from howlinear.errors import InputError

MULTIPLE = 10.0
"""Output norms beyond this many medians are massive. The multiple is our choice: in every block of the embedded models
and most of SmolLM2-135M's, the heaviest row is below it, and the first tokens of sequences, for which that model writes
massive outputs, are beyond. Notebook 12 gives each block's heaviest row, and the answer at 5 to 50 medians."""

KEPT = 5.0
"""All rows beyond this many medians are kept: the lowest cut at which R²_lin without massive rows can be computed."""

HEAVIEST = 512
"""Rows of each block that are kept in addition, heaviest first, so that some are always not massive."""

SHARE = 4  # at most one in so many rows of a batch is kept: more would no longer be a few rows
LOOK = 16  # batches that are looked through together on a device


@dataclass(frozen=True, eq=False)
class HeavyRows:
    """The rows of a block with the heaviest outputs, in descending order of their output norm.

    Attributes:
        x: FFN inputs, shape (rows, d_in), float32.
        y: FFN outputs, shape (rows, d_out), float32.
        norm: ‖y‖, shape (rows,), float32.
        sequence: index of the sequence among all, shape (rows,).
        position: place in the sequence, shape (rows,).
        test: which rows are held out, shape (rows,).
        fold: the document fold of each row within its side, shape (rows,).
        median: median of the output norms, see the module.
    """

    x: Float[Tensor, "rows d_in"]
    y: Float[Tensor, "rows d_out"]
    norm: Float[Tensor, " rows"]
    sequence: Int64[Tensor, " rows"]
    position: Int64[Tensor, " rows"]
    test: Bool[Tensor, " rows"]
    fold: Int64[Tensor, " rows"]
    median: float

    def __len__(self) -> int:
        return len(self.norm)

    def beyond(self, multiple: float = MULTIPLE) -> HeavyRows:
        """Return all rows whose output norm is beyond `multiple` times the median."""
        if multiple < KEPT:
            raise InputError(
                f"rows beyond {multiple:g} medians: all rows are kept beyond {KEPT:g} only; use heaviest(count)"
            )
        return self._rows(slice(self._count_beyond(multiple)))

    def heaviest(self, count: int) -> HeavyRows:
        """The `count` heaviest rows."""
        if not 0 <= count <= len(self):
            raise InputError(f"the {count} heaviest rows: {len(self)} were kept")
        return self._rows(slice(count))

    def moments(self, test: bool, fold: int) -> Moments:
        """Moments of the rows in one document fold of one side."""
        inside = (self.test == test) & (self.fold == fold)
        return Moments(self.x.shape[1], self.y.shape[1], self.x.device).update(self.x[inside], self.y[inside])

    def outputs(self) -> Moments:
        """Moments of the held-out outputs alone."""
        return Moments(self.y.shape[1], 0, self.y.device).update(self.y[self.test])

    def to(self, device: torch.device | str) -> HeavyRows:
        """The same rows on a device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self._by_row().items()})

    @classmethod
    def merged(cls, parts: Sequence[HeavyRows]) -> HeavyRows:
        """Merge the heavy rows of all parts of a block: beyond the largest median's cut, and the heaviest below."""
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0]._by_row()}
        return cls(**tensors, median=max(part.median for part in parts))._pruned()

    def _count_beyond(self, multiple: float) -> int:
        return int((self.norm > multiple * self.median).sum())

    def _pruned(self) -> HeavyRows:
        """Sort the rows in descending order, without those neither beyond the cut nor among the heaviest below it."""
        order = self.norm.argsort(descending=True, stable=True)
        return self._rows(order[: self.most])

    @property
    def most(self) -> int:
        """How many rows are kept at most: those beyond the cut, and `HEAVIEST` below it."""
        return self._count_beyond(KEPT) + HEAVIEST

    def tensors(self) -> dict[str, Tensor]:
        """Named tensors to save; `from_tensors` is the way back."""
        return self._by_row() | {"median": torch.tensor([self.median], dtype=torch.float64, device="cpu")}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> HeavyRows:
        """Rebuild what `tensors` named."""
        return cls(**tensors | {"median": float(tensors["median"])})

    def _by_row(self) -> dict[str, Tensor]:
        """The tensors that have one entry per row, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "median"}

    def _rows(self, chosen: Int64[Tensor, " some"] | slice) -> HeavyRows:
        return HeavyRows(**{name: tensor[chosen] for name, tensor in self._by_row().items()}, median=self.median)


class HeavyRowsKeeper:
    """A collector of the heavy rows of one block while batches stream by.

    Candidate rows are copied, and wait until there are enough to be searched at once. On a device other than the CPU,
    every look at a number would wait for the device: there the heaviest quarter of each batch is copied, and waits on
    the device for `LOOK` batches.
    """

    def __init__(self) -> None:
        self._least_median: Float[Tensor, ""] | None = None
        self._norms: list[Float[Tensor, " n"]] = []
        self._waiting: list[HeavyRows] = []
        self._kept: HeavyRows | None = None

    def update(
        self,
        x: Float[Tensor, "n d_in"],
        y: Float[Tensor, "n d_out"],
        sequence: Int64[Tensor, " n"],
        position: Int64[Tensor, " n"],
        test: bool,
        fold: int,
    ) -> None:
        """Add a batch of rows of one document fold, of which at most the heaviest quarter is kept.

        `sequence` and `position`, shape (n,) in main memory, locate each row; `test` and `fold` hold for all rows.
        """
        norm = torch.linalg.vector_norm(y.detach().float(), dim=1)
        self._norms.append(norm)
        if self._least_median is None:
            self._least_median = norm.median() / 2
        heaviest, place = norm.topk(-(-len(norm) // SHARE))
        if on_cpu(y):
            count = int((heaviest > self._least()).sum())  # in descending order
            heaviest, place = heaviest[:count], place[:count]
        self._waiting.append(
            HeavyRows(
                x=x[place].detach(),
                y=y[place].detach(),
                norm=heaviest,
                sequence=sequence.to(place.device, non_blocking=True)[place],
                position=position.to(place.device, non_blocking=True)[place],
                test=torch.full_like(place, test, dtype=torch.bool),
                fold=torch.full_like(place, fold),
                median=0.0,  # set by `_look`: reading it here would wait for a device
            )
        )
        rows = sum(map(len, self._waiting))
        enough = rows >= HEAVIEST if on_cpu(y) else len(self._waiting) == LOOK
        if enough:
            self._look()

    def finish(self) -> HeavyRows:
        """Return the heavy rows of all batches."""
        self._look()
        median = float(torch.cat(self._norms).median())
        return replace(self._kept, median=max(median, self._kept.median))._pruned()

    def _least(self) -> float:
        """Return the norm up to which rows are no longer kept: enough rows above it are already."""
        if self._kept is None or len(self._kept) < self._kept.most:
            return -torch.inf
        return float(self._kept.norm[-1])

    def _look(self) -> None:
        """Keep the heavy rows of the waiting batches."""
        if not self._waiting:
            return
        median = float(self._least_median)  # an estimate: rows kept in excess are dropped in the end
        heavy = HeavyRows.merged([replace(rows, median=median) for rows in self._waiting])
        self._waiting = []
        # Only rows that may stay leave a device
        may_stay = int((heavy.norm > self._least()).sum())
        heavy = heavy.heaviest(may_stay).to("cpu")
        heavy = replace(heavy, x=heavy.x.float(), y=heavy.y.float())
        self._kept = heavy if self._kept is None else HeavyRows.merged([self._kept, heavy])
