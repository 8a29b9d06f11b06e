"""One measurement by several processes; of one alone, every function here returns what it is given.

`torchrun --nproc-per-node N -m howlinear measure …` starts N equal processes. All pack the same text, and each runs its
share of the batches. Moments about one agreed shift add up, so joining them is a sum over processes (`join_moments`).
Blocks are dealt in turn: the sums of a block go to one process, which solves for it.

The first process to fail says why, in one line, and the others end without a word. People count processes from 1, as
messages do; the code counts them from 0, as torch does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from howlinear.core.moments import Moments
from howlinear.errors import HowlinearError, InputError, ProcessError
from howlinear.instrument.capture import NO_FLOAT64, BlockCapture
from howlinear.instrument.massive import HeavyRows
from howlinear.instrument.torchrun import is_distributed
from howlinear.text.rows import Rows

TIMEOUT = timedelta(minutes=10)  # for a process that lives and does nothing; one that is killed shows at once
Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True)
class Group:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
        device: where this process computes: `cuda:…`, joined by nccl, or `cpu`, joined by gloo.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0


ALONE = Group()
_GROUP: ContextVar[Group] = ContextVar("group", default=ALONE)


def is_first() -> bool:
    """Whether this is the process that prints and writes."""
    return _GROUP.get().first


def own_share(items: Sequence[Item]) -> list[Item]:
    """This process's run of the items: neighbours, so of few folds, about as long in total as any other's."""
    group = _GROUP.get()
    lengths = [len(item) for item in items]
    starts = accumulate(lengths[:-1], initial=0)
    total = sum(lengths)
    # Item i goes to the process in whose N-th part of the total it begins; the first always to process 0.
    return [item for item, start in zip(items, starts, strict=False) if start * group.size // total == group.rank]


def gather(mine: Any) -> list:
    """What every process has, in their order, in every process.

    Raises:
        ProcessError: another process is gone.
    """
    size = _GROUP.get().size
    if size == 1:
        return [mine]
    everyone = [None] * size
    with _lost_is_one_line():
        dist.all_gather_object(everyone, mine)
    return everyone


def check_same_rows(rows: Rows) -> None:
    """Make sure that all processes have read the same text.

    Raises:
        InputError: they differ.
        ProcessError: another process is gone.
    """
    if _GROUP.get().size > 1 and len(set(gather(rows.sha256))) > 1:
        raise InputError(
            "the processes differ in the text that they read: give all machines the same files and packages"
        )


def join_moments(
    moments: Moments | None, shift_x: Float[Tensor, " d_in"], shift_y: Float[Tensor, " d_out"], to: int
) -> Moments:
    """The moments of the rows of all processes, in process `to`; elsewhere what is returned means nothing.

    Args:
        moments: those of this process, None if it saw no such rows.
        shift_x: the point that all take sums about, the same in every process and near the rows, shape (d_in,).
        shift_y: the same of outputs, shape (d_out,).
        to: the process that gets them.

    Raises:
        ProcessError: another process is gone.
    """
    group = _GROUP.get()
    mine = Moments(len(shift_x), len(shift_y)) if moments is None else moments
    # About the shift s instead of the own mean x̄, with δ = x̄ − s: Σ (x − s) = n δ and S_s = S + n δ δᵀ.
    delta_x = mine.mean_x - shift_x
    delta_y = mine.mean_y - shift_y
    sums = [
        torch.tensor([float(mine.n)], dtype=torch.float64),
        mine.n * delta_x,
        mine.n * delta_y,
        mine.sxx + mine.n * torch.outer(delta_x, delta_x),
        mine.sxy + mine.n * torch.outer(delta_x, delta_y),
        mine.syy + mine.n * delta_y.square(),
    ]
    # Such sums add up over processes.
    sums = [part.to(group.device) for part in sums]
    with _lost_is_one_line():
        for part in sums:
            if part.numel():
                dist.reduce(part, dst=to)
        eps = torch.tensor([mine.eps_x, mine.eps_y], dtype=torch.float64).to(group.device)
        dist.reduce(eps, dst=to, op=dist.ReduceOp.MAX)  # the coarsest rows of any process
    count, first_x, first_y, sxx, sxy, syy = (part.cpu() for part in sums)
    # The way back, about the mean of all rows.
    n = max(float(count), 1.0)
    delta_x, delta_y = first_x / n, first_y / n
    joined = {
        "n": count.long(),
        "mean_x": shift_x + delta_x,
        "mean_y": shift_y + delta_y,
        "sxx": sxx - n * torch.outer(delta_x, delta_x),
        "sxy": sxy - n * torch.outer(delta_x, delta_y),
        "syy": syy - n * delta_y.square(),
    }
    joined["eps"] = eps.cpu()
    return Moments.from_tensors(joined)


def join_captures(
    captured: dict[int, BlockCapture], folds_here: Sequence[tuple[bool, int]], folds: Sequence[tuple[bool, int]]
) -> dict[int, BlockCapture]:
    """The captures of all processes, as if one had run all batches; each process gets its own blocks.

    Args:
        captured: block → what this process has seen of it; emptied on the way, so that nothing is held twice.
        folds_here: the (held out?, fold) that this process has seen rows of, in order.
        folds: those of all processes, in order.

    Returns:
        Block → its capture, of heavy rows only the massive ones: of the first block in the first process, of the next
        in the next, and round again.

    Raises:
        ProcessError: another process is gone.
    """
    group = _GROUP.get()
    if group.size == 1:
        return captured
    massive = gather({block: part.massive() for block, part in captured.items()})  # few, so all get them
    # One agreed shift a block: what the first process, which has the first batch, found for the mean of its first fold.
    first_folds = {block: (part.train + part.test)[0] for block, part in captured.items()}
    shifts = gather({block: (moments.mean_x, moments.mean_y) for block, moments in first_folds.items()})[0]
    own: dict[int, BlockCapture] = {}
    for turn, (block, (shift_x, shift_y)) in enumerate(shifts.items()):
        to = turn % group.size
        part = captured.pop(block, None)
        here = dict(zip(folds_here, part.train + part.test, strict=True)) if part else {}
        sides: dict[bool, list[Moments]] = {False: [], True: []}
        for fold in folds:
            held_out, _ = fold
            sides[held_out].append(join_moments(here.pop(fold, None), shift_x, shift_y, to))
            if group.rank != to:
                sides[held_out].clear()
        outputs = join_moments(part.outputs if part else None, shift_y, shift_y[:0], to)
        if group.rank == to:
            heavy = HeavyRows.merged([theirs[block] for theirs in massive if block in theirs])
            own[block] = BlockCapture(sides[False], sides[True], outputs, None, heavy)
    return own


# --- How they start, and how they end


def place(device: str) -> str:
    """Where this process computes: of several GPUs, each process takes its own.

    Args:
        device: `cpu`, `cuda` or `cuda:1`.

    Raises:
        InputError: no such device, or one without float64.
    """
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

    Args:
        device: where to compute, see `place`.

    Yields:
        The `Group`.

    Raises:
        HowlinearError: what was raised within, if this is the first process to fail; its message names the process.
        SystemExit: this process is not the first to fail; code 2.
    """
    if not is_distributed():
        yield Group(device=place(device))
        return
    store, rank, size = _rendezvous()
    usual = signal.signal(signal.SIGTERM, _end)
    try:
        with _report_first_failure(store, rank, size):
            group = Group(rank, size, place(device))
            if group.device != "cpu":
                torch.cuda.set_device(group.device)
            backend = "gloo" if group.device == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
            token = _GROUP.set(group)
            try:
                yield group
                gather(None)  # nobody leaves while another may still fail
            finally:
                _GROUP.reset(token)
    finally:
        signal.signal(signal.SIGTERM, usual)
    dist.destroy_process_group()


def check_one_process(command: str) -> None:
    """Refuse a command that several processes would race to do, each the whole of it.

    Raises:
        InputError: torchrun started several, and this is the first to fail; else SystemExit, code 2.
    """
    if is_distributed():
        with _report_first_failure(*_rendezvous()):
            raise InputError(f"{command} is the work of one process: leave torchrun out, which is for measure")


def _rendezvous() -> tuple[dist.Store, int, int]:
    """What the processes talk through, which one this is, and how many there are."""
    try:
        return next(dist.rendezvous("env://", timeout=TIMEOUT))
    except (ValueError, RuntimeError) as error:
        reason, _, _ = str(error).partition("\n")
        world = os.environ["WORLD_SIZE"]
        raise ProcessError(
            f"WORLD_SIZE is {world!r}, but no other process is met ({reason}): use torchrun, or unset it"
        ) from error


@contextmanager
def _report_first_failure(store: dist.Store, rank: int, size: int) -> Iterator[None]:
    """Let the first process to fail say which it is, and all others end without a word."""
    try:
        yield
    except HowlinearError as error:
        try:
            first_to_fail = store.add("howlinear/failed", 1) == 1
        except RuntimeError:  # its keeper is gone as well
            first_to_fail = True
        if not first_to_fail:
            raise SystemExit(2) from error
        raise type(error)(f"process {rank + 1} of {size}: {error}") from error


def _end(*_: object) -> None:
    raise ProcessError(
        "told to end (SIGTERM): another process has failed, or the job was cancelled; nothing is written"
    )


@contextmanager
def _lost_is_one_line() -> Iterator[None]:
    """While it lasts, an error of gloo or nccl is a `ProcessError`."""
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ProcessError(
            f"lost another of the {_GROUP.get().size} processes ({reason}): nothing is written; "
            "see what ended it, and start again"
        ) from error
