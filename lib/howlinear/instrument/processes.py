"""One measurement by several processes: who reads what, how moments come together, what happens if one is lost.

`torchrun --nproc-per-node N -m howlinear measure …` starts N equal processes. All of them pack the same text. The
batches that one process would run are dealt to them in N contiguous runs, whole, so every row comes out of the very
forward pass it would come out of alone, and most document folds lie in one process. What lies in several is merged in
the order of the processes (Chan, Golub & LeVeque 1983). Each block's moments go to one process, blocks in turn, and it
solves for them: moments, traffic and the solver's time are shared as well.

`measure` is `instrument.measure` with these three steps shared: `capture_shared`, `solve_shared`, `perplexity_shared`.

The first process to fail says why, in one line, the others end without a word, and the first process writes its file
only after all have done their part. A process that is killed shows at once: its connections close, and torchrun ends
the others. `TIMEOUT` is only for one that lives and does nothing: shares are equal to within a batch, so none waits
that long. People count processes from 1, as messages do; the code counts them from 0, as torch does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.intervals import CONFIDENCE
from howlinear.core.moments import Moments
from howlinear.errors import HowlinearError, InputError, ProcessError
from howlinear.instrument.capture import NO_FLOAT64, BlockCapture, capture_batches
from howlinear.instrument.massive import HeavyRows
from howlinear.instrument.measure import ROWS
from howlinear.instrument.perplexity import Pass, pass_perplexity
from howlinear.instrument.profile import Profile, Solved, name_of, solve
from howlinear.instrument.stopping import MOST, Steps, check_tolerance, look_until
from howlinear.instrument.torchrun import several
from howlinear.models.sources import running
from howlinear.text.corpus import Corpus, rows_of
from howlinear.text.rows import Rows, batches, fold_of

TIMEOUT = timedelta(minutes=10)
OUTPUTS = "outputs"  # a key beside the folds: moments of the held-out outputs alone
Item = TypeVar("Item", bound=Sized)


# --- The processes


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    Attributes:
        index: this process, from 0.
        count: how many there are.
        device: where this process computes, and tensors travel from: `cuda:…` by nccl, `cpu` by gloo.
    """

    index: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.index == 0

    def deal(self, items: Sequence[Sized]) -> list[int]:
        """The process of each item: contiguous runs of about the same total length; the first item is process 0's."""
        lengths = [len(item) for item in items]
        total = sum(lengths)
        starts = accumulate(lengths[:-1], initial=0)
        return [start * self.count // total for start, _ in zip(starts, items, strict=False)]

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's items."""
        return [item for item, index in zip(items, self.deal(items), strict=True) if index == self.index]

    def gather(self, mine: Any) -> list:
        """What every process has, in their order, in every process.

        Raises:
            ProcessError: another process is gone.
        """
        if self.count == 1:
            return [mine]
        everyone = [None] * self.count
        with _talking(self):
            dist.all_gather_object(everyone, mine)
        return everyone

    def check_alike(self, value: Any, what: str) -> None:
        """Make sure that all processes have the same.

        Raises:
            InputError: they differ.
            ProcessError: another process is gone.
        """
        if len(set(self.gather(value))) > 1:
            raise InputError(f"the processes differ in {what}: give all machines the same files and packages")

    def merge(
        self, mine: dict, holders: Mapping[Any, Sequence[int]], to: int, like: Mapping[Any, tuple[int, int]]
    ) -> dict:
        """Bring moments together in one process; every process calls this, with the same `holders` and `to`.

        Args:
            mine: key → this process's `Moments`; emptied on the way.
            holders: key → the processes that have moments of this key, in their order.
            to: the process that gets them.
            like: key → (d_in, d_out) of the moments.

        Returns:
            Key → the moments of all its holders in process `to`; nothing elsewhere.

        Raises:
            ProcessError: another process is gone.
        """
        merged: dict[Any, Moments] = {}
        for key, having in holders.items():
            for holder in having:
                if self.index == holder == to:
                    part = mine.pop(key).cpu()
                elif self.index == holder:
                    self._send(mine.pop(key), to)
                    continue
                elif self.index == to:
                    d_in, d_out = like[key]
                    part = self._receive(holder, d_in, d_out)
                else:
                    continue
                merged[key] = merged[key] + part if key in merged else part
        return merged

    def _send(self, moments: Moments, to: int) -> None:
        with _talking(self):
            for tensor in moments.tensors().values():
                if tensor.numel():
                    dist.send(tensor.to(self.device).contiguous(), to)

    def _receive(self, holder: int, d_in: int, d_out: int) -> Moments:
        tensors = Moments(d_in, d_out, self.device).tensors()
        tensors = {name: tensor.to(self.device) for name, tensor in tensors.items()}  # the count is made on the CPU
        with _talking(self):
            for tensor in tensors.values():
                if tensor.numel():
                    dist.recv(tensor, holder)
        return Moments.from_tensors({name: tensor.cpu() for name, tensor in tensors.items()})


# --- A measurement


def measure(
    processes: Processes,
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
    """`instrument.measure.measure` by several processes; every process calls this with the same arguments.

    Args:
        processes: those that share the work, from `joined`.
        model: the model, the same in every process.
        corpus: as for `measure`, and so are all that follow.
        rows: tokens in all, or the most of them.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn.
        blocks: which blocks; all by default.
        batch_size: sequences in a forward pass.
        progress: show a bar, of the first process.
        tolerance: stop as soon as every interval is this narrow.

    Returns:
        The profile, in every process; equal to one process's to rounding in float64 (1e-12).

    Raises:
        ProcessError: another process is gone.
        InputError: the processes read different texts, or what `measure` raises.
        SourceError: the model's own forward pass fails.
    """
    if tolerance is None:
        packed = rows_of(corpus, ROWS if rows is None else rows, seq_len, seed)
    else:
        check_tolerance(tolerance)
        packed = rows_of(corpus, MOST if rows is None else rows, seq_len, seed)
    processes.check_alike(packed.sha256, "the text that they read")
    steps = Steps(
        capture=partial(capture_shared, processes),
        solve=partial(solve_shared, processes),
        perplexity=partial(perplexity_shared, processes),
    )
    if tolerance is not None:
        return look_until(model, packed, tolerance, blocks, batch_size, progress, steps)
    name = name_of(model)
    run = Pass(model, packed)
    with running(name):
        every = list(batches(packed, batch_size))
        captured = steps.capture(model, packed, every, blocks=blocks, progress=progress, run=run)
    solved = steps.solve(captured)
    return Profile(name, packed, solved, steps.perplexity(run))


def capture_shared(
    processes: Processes,
    model: PreTrainedModel,
    rows: Rows,
    indices: list[Tensor],
    blocks: list[int] | None = None,
    progress: bool = False,
    run: Pass | None = None,
) -> dict[int, BlockCapture]:
    """`capture_batches`, all processes together; every process calls this with the same arguments.

    Args:
        processes: those that share the work.
        model: the model, the same in every process.
        rows: packed sequences with their split and folds.
        indices: which batches of them.
        blocks: which blocks; all by default.
        progress: show a bar, of the first process.
        run: runs the model on this process's share; by default it runs without its head.

    Returns:
        Block → `BlockCapture` without a sample, equal to one process's to rounding in float64 (1e-12). Of several
        processes, each gets its own blocks: the first block the first, the next the next, and round again; of the
        heavy rows only the massive ones.

    Raises:
        InputError: see `capture`.
        ProcessError: another process is gone.
    """
    share = processes.share(indices)
    captured = {}
    if share:
        captured = capture_batches(model, rows, share, blocks, progress=progress and processes.first, run=run)
    if processes.count == 1:
        return captured

    massive = processes.gather({block: part.massive() for block, part in captured.items()})  # few, so all get them
    widths = processes.gather(_widths(captured))[0]  # the first process has the first batch, so all blocks
    holders = _holders(rows, indices, processes)
    folds = [key for key in holders if key != OUTPUTS]
    seen_here = [key for key in folds if processes.index in holders[key]]
    mine: dict[int, BlockCapture] = {}
    for turn, (block, (d_in, d_out)) in enumerate(widths.items()):
        parts: dict[Any, Moments] = {}
        part = captured.pop(block, None)  # nothing stays of what another process gets
        if part is not None:
            parts = dict(zip(seen_here, part.train + part.test, strict=True))
            parts[OUTPUTS] = part.outputs
        like = dict.fromkeys(folds, (d_in, d_out)) | {OUTPUTS: (d_out, 0)}
        merged = processes.merge(parts, holders, turn % processes.count, like)
        if merged:
            train = [merged[key] for key in folds if not key[0]]
            test = [merged[key] for key in folds if key[0]]
            heavy = HeavyRows.merged([part[block] for part in massive if block in part])
            mine[block] = BlockCapture(train, test, merged[OUTPUTS], None, heavy)
    return mine


def solve_shared(
    processes: Processes, captured: Mapping[int, BlockCapture], confidence: float = CONFIDENCE
) -> dict[int, Solved]:
    """`solve` of every process's own blocks, and the answers for all blocks in every process."""
    answers: dict[int, Solved] = {}
    for theirs in processes.gather(solve(captured, confidence)):
        answers |= theirs
    return dict(sorted(answers.items()))


def perplexity_shared(processes: Processes, run: Pass) -> float | None:
    """`Pass.perplexity` of what all processes have run."""
    if not run.predicts:
        return None
    return pass_perplexity(run.rows, [part for theirs in processes.gather(run.losses) for part in theirs])


def _widths(captured: Mapping[int, BlockCapture]) -> dict[int, tuple[int, int]]:
    """Block → its (d_in, d_out)."""
    widths = {}
    for block, part in captured.items():
        moments = (part.train or part.test)[0]
        widths[block] = (moments.d_in, moments.d_out)
    return widths


def _holders(rows: Rows, indices: list[Tensor], processes: Processes) -> dict:
    """Fold → the processes that see it, folds in order; and the processes that see held-out rows at all."""
    seeing: dict[tuple[bool, int], set[int]] = {}
    outputs: set[int] = set()
    for batch, index in zip(indices, processes.deal(indices), strict=True):
        fold = fold_of(rows, batch)
        seeing.setdefault(fold, set()).add(index)
        held_out_side, _ = fold
        if held_out_side:
            outputs.add(index)
    holders: dict = {fold: sorted(seeing[fold]) for fold in sorted(seeing)}
    holders[OUTPUTS] = sorted(outputs)
    return holders


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
def joined(device: str = "cpu") -> Iterator[Processes]:
    """Join the processes that torchrun started; without it, this one is alone.

    Args:
        device: where to compute, see `place`.

    Yields:
        The `Processes`.

    Raises:
        HowlinearError: what was raised within, if this is the first process to fail; its message names the process.
        SystemExit: this process is not the first to fail; code 2.
    """
    if not several():
        yield Processes(device=place(device))
        return
    store, index, count = _met()
    usual = signal.signal(signal.SIGTERM, _ended)
    try:
        with _said_once(store, index, count):
            processes = Processes(index, count, place(device))
            on_gpu = processes.device != "cpu"
            if on_gpu:
                torch.cuda.set_device(processes.device)
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=TIMEOUT)
            yield processes
            processes.gather(None)  # nobody leaves while another may still fail
    finally:
        signal.signal(signal.SIGTERM, usual)
    dist.destroy_process_group()


def alone(command: str) -> None:
    """Refuse a command that several processes would race to do, each the whole of it.

    Raises:
        InputError: torchrun started several, and this is the first to fail; else SystemExit, code 2.
    """
    if several():
        with _said_once(*_met()):
            raise InputError(f"{command} is the work of one process: leave torchrun out, which is for measure")


def _met() -> tuple[dist.Store, int, int]:
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
def _said_once(store: dist.Store, index: int, count: int) -> Iterator[None]:
    """Let the first process to fail say which it is, and all others end without a word."""
    try:
        yield
    except HowlinearError as error:
        if not _first_to_fail(store):
            raise SystemExit(2) from error
        raise type(error)(f"process {index + 1} of {count}: {error}") from error


def _first_to_fail(store: dist.Store) -> bool:
    try:
        return store.add("howlinear/failed", 1) == 1
    except RuntimeError:  # its keeper is gone as well
        return True


def _ended(*_: object) -> None:
    raise ProcessError(
        "told to end (SIGTERM): another process has failed, or the job was cancelled; nothing is written"
    )


@contextmanager
def _talking(processes: Processes) -> Iterator[None]:
    """While it lasts, an error of gloo or nccl is a `ProcessError`."""
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ProcessError(
            f"lost another of the {processes.count} processes ({reason}): nothing is written; "
            "see what ended it, and start again"
        ) from error
