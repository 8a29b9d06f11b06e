"""One measurement by several processes; in a single one, every function here returns what it is given.

`torchrun --nproc-per-node N -m howlinear measure …` starts N equal processes. All pack the same text, and each runs its
share of the batches. Moments add up, and blocks are dealt out in turn: all processes send their moments of a block to
one of them, which solves it. Messages count processes from 1; the code counts them from 0, as torch does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.moments import Folds, Moments
from howlinear.errors import HowlinearError, InputError, ProcessError, first_line
from howlinear.instrument.capture import NO_FLOAT64, BlockCapture, capture_batches
from howlinear.instrument.massive import HeavyRows
from howlinear.instrument.torchrun import is_distributed
from howlinear.text.rows import Rows, folds_of

TIMEOUT = timedelta(hours=2)  # others wait this long for one that solves a wide block; a killed one is noticed at once
Item = TypeVar("Item", bound=Sized)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Group:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
        device: where this process computes: `cuda:…` or `cpu`.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1


ALONE = Group()
_GROUP: ContextVar[Group] = ContextVar("group", default=ALONE)


def current_group() -> Group:
    """The processes of this run, seen from this one."""
    return _GROUP.get()


def own_share(items: Sequence[Item]) -> list[Item]:
    """Return this process's share of the items: neighbours, so of few folds, and about as much as others have."""
    group = current_group()
    lengths = [len(item) for item in items]
    starts = accumulate(lengths[:-1], initial=0)
    total = sum(lengths)
    # Item i goes to the process in whose N-th part of the total it begins; the first always to process 0.
    return [item for item, start in zip(items, starts, strict=False) if start * group.size // total == group.rank]


def gather(mine: Any, to: int | None = None) -> list:
    """Gather what every process has, in order of rank: in every process, or only in process `to`; others get Nones.

    Raises:
        ProcessError: another process is gone.
    """
    group = current_group()
    if group.alone:
        return [mine]
    everyone = [None] * group.size
    try:
        if to is None:
            dist.all_gather_object(everyone, mine)
        else:
            dist.gather_object(mine, everyone if group.rank == to else None, dst=to)
    except RuntimeError as error:
        raise ProcessError(
            f"lost another of the {group.size} processes ({first_line(error)}): nothing is written; see what ended it, "
            "and start again"
        ) from error
    return everyone


def gather_blocks(mine: Mapping[int, Found]) -> dict[int, Found]:
    """Gather block → what the process that has it found, in order of depth, in every process."""
    return dict(sorted((block, found) for of_process in gather(mine) for block, found in of_process.items()))


def capture_together(
    model: PreTrainedModel, rows: Rows, batches: list[Tensor], **options: Any
) -> dict[int, BlockCapture]:
    """Run `capture_batches` on this process's share; each process gets its own blocks, as in `join_captures`."""
    share = own_share(batches)
    captured = capture_batches(model, rows, share, **options) if share else {}
    return join_captures(captured, rows, batches)


def join_captures(
    captured: dict[int, BlockCapture], rows: Rows, batches: Sequence[Tensor], turn: int = 0
) -> dict[int, BlockCapture]:
    """Join the captures of all processes, each of its share of the batches; each process gets its own blocks.

    `captured` is emptied on the way, so that nothing is held twice. Moments in files stay there, in a folder that all
    processes see, and are added up when they are read. The first block goes to process `turn`, modulo their number, the
    next to the next process, and so on.

    Raises:
        ProcessError: another process is gone.
    """
    group = current_group()
    if group.alone:
        return captured
    folds_here, folds = folds_of(rows, own_share(batches)), folds_of(rows, batches)
    blocks = gather(list(captured))[0]  # the first process has the first batch, so it has seen every block
    own: dict[int, BlockCapture] = {}
    for place, block in enumerate(blocks, turn):
        to = place % group.size
        parts = gather((folds_here, captured.pop(block).to("cpu") if block in captured else None), to)
        if group.rank == to:
            own[block] = _joined_block(parts, folds)
    return own


def _joined_block(
    parts: Sequence[tuple[Sequence[tuple[bool, int]], BlockCapture | None]], folds: Sequence[tuple[bool, int]]
) -> BlockCapture:
    """Join one block's capture from each process's folds and capture, which is None if the process has run no batch."""
    seen = [(folds_there, part) for folds_there, part in parts if part is not None]

    def of_process(folds_there: Sequence[tuple[bool, int]], part: BlockCapture, fold: tuple[bool, int]) -> Moments:
        held_out, _ = fold
        place = [each for each in folds_there if each[0] == held_out].index(fold)
        return part.test[place] if held_out else part.train[place]

    def total(fold: tuple[bool, int]) -> Moments:
        return Moments.total(of_process(there, part, fold) for there, part in seen if fold in there)

    in_files = isinstance(seen[0][1].train, Folds)
    sides: list[Sequence[Moments]] = []
    for side in (False, True):
        totals = [partial(total, fold) for fold in folds if fold[0] == side]
        sides.append(Folds(totals) if in_files else [total() for total in totals])
    outputs = Moments.total([part.outputs for _, part in seen])
    return BlockCapture(*sides, outputs, None, HeavyRows.merged([part.heavy_rows() for _, part in seen]))


# --- How they start


def place(device: str) -> str:
    """Return where this process computes, `cpu`, `cuda` or `cuda:1`; with several GPUs, each process takes its own."""
    kind, _, index = device.partition(":")
    if kind == "mps":
        raise InputError(NO_FLOAT64)
    unknown = kind not in ("cpu", "cuda")
    wrong_index = index and (kind == "cpu" or not index.isdecimal())
    if unknown or wrong_index:
        raise InputError(f"no device {device!r}: use cpu, cuda, or one GPU as in cuda:1")
    if kind == "cpu":
        return device
    available = torch.cuda.device_count()
    wanted = int(index or os.environ.get("LOCAL_RANK", 0))
    if wanted >= available:
        raise InputError(
            f"no device cuda:{wanted}, this machine has {available}: start one process for each, or use cpu"
        )
    return f"cuda:{wanted}"


@contextmanager
def joined(device: str = "cpu") -> Iterator[Group]:
    """Join the processes that torchrun started, which share every `measure` within; without it, this one is alone.

    Raises:
        HowlinearError: what was raised within; its message names the process.
    """
    if not is_distributed():
        yield Group(device=place(device))
        return
    try:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    except (ValueError, RuntimeError) as error:
        reason, _, _ = str(error).partition("\n")
        world = os.environ["WORLD_SIZE"]
        raise ProcessError(
            f"WORLD_SIZE is {world!r}, but no other process is met ({reason}): use torchrun, or unset it"
        ) from error
    rank, size = dist.get_rank(), dist.get_world_size()
    token = _GROUP.set(Group(rank, size))
    try:
        group = Group(rank, size, place(device))
        if group.device != "cpu":
            torch.cuda.set_device(group.device)
        yield group
        gather(None)  # nobody leaves while another may still fail
    except HowlinearError as error:
        raise type(error)(f"process {rank + 1} of {size}: {error}") from error
    finally:
        _GROUP.reset(token)
    dist.destroy_process_group()


def check_one_process(command: str) -> None:
    """Refuse a command that each of several processes would carry out as a whole, in a race."""
    if is_distributed():
        world = os.environ["WORLD_SIZE"]
        raise InputError(
            f"{command} is the work of one process, and WORLD_SIZE is {world!r}: torchrun is for measure, leave it out"
        )
