"""One measurement by several processes: who reads what, how moments come together, what happens if one is lost.

`torchrun --nproc-per-node N -m howlinear measure …` starts N equal processes, the ranks. All of them pack the same
text. The batches of one process are dealt to them in N contiguous runs, whole, so every row comes out of the very
forward pass it would come out of alone, and most document folds lie on one rank. What lies on several is merged in
the order of ranks (Chan, Golub & LeVeque 1983). Each block's moments go to one rank, blocks in turn, and it solves
for them: moments, traffic and the solver's time are shared as well.

The first rank to fail says why, in one line, the others end without a word, and rank 0 writes its file only after all
have done their part. A process that is killed shows at once: its connections close, and torchrun ends the others.
`TIMEOUT` is only for one that lives and does nothing: shares are equal to within a batch, so no rank waits that long.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from howlinear.errors import HowlinearError, InputError, RankError
from howlinear.moments import Moments

TIMEOUT = timedelta(minutes=10)
NO_FLOAT64 = "device mps has no float64, which moments are kept in: use cpu"
Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
        device: where this process computes, and tensors travel from: `cuda:…` by nccl, `cpu` by gloo.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def deal(self, items: Sequence[Sized]) -> list[int]:
        """The rank of each item: contiguous runs of about the same total length; rank 0 has the first item."""
        before = accumulate(map(len, items), initial=0)
        total = sum(map(len, items))
        return [start * self.size // total for start, _ in zip(before, items, strict=False)]

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This rank's items."""
        return [item for item, rank in zip(items, self.deal(items), strict=True) if rank == self.rank]

    def gather(self, mine: Any) -> list:
        """What every rank has, in their order, on every rank.

        Raises:
            RankError: another rank is gone.
        """
        if self.size == 1:
            return [mine]
        everyone = [None] * self.size
        with _talking(self):
            dist.all_gather_object(everyone, mine)
        return everyone

    def alike(self, value: Any, what: str) -> None:
        """Make sure that all ranks have the same.

        Raises:
            InputError: they differ.
            RankError: another rank is gone.
        """
        if len(set(self.gather(value))) > 1:
            raise InputError(f"the ranks differ in {what}: give all machines the same files and packages")

    def merge(
        self, mine: dict, holders: Mapping[Any, Sequence[int]], to: int, like: Mapping[Any, tuple[int, int]]
    ) -> dict:
        """Bring moments together on one rank; every rank calls this, with the same `holders` and `to`.

        Args:
            mine: key → this rank's `Moments`; emptied on the way.
            holders: key → the ranks that have moments of this key, in their order.
            to: the rank that gets them.
            like: key → (d_in, d_out) of the moments.

        Returns:
            Key → the moments of all its holders on rank `to`; nothing elsewhere.

        Raises:
            RankError: another rank is gone.
        """
        merged = {}
        for key, ranks in holders.items():
            for rank in ranks:
                if self.rank == rank == to:
                    part = here(mine.pop(key))
                elif self.rank == rank:
                    self._send(mine.pop(key), to)
                    continue
                elif self.rank == to:
                    part = self._receive(rank, *like[key])
                else:
                    continue
                merged[key] = merged[key] + part if key in merged else part
        return merged

    def _send(self, moments: Moments, to: int) -> None:
        with _talking(self):
            for tensor in filter(Tensor.numel, moments.tensors().values()):
                dist.send(tensor.to(self.device).contiguous(), to)

    def _receive(self, rank: int, d_in: int, d_out: int) -> Moments:
        tensors = {name: tensor.to(self.device) for name, tensor in Moments(d_in, d_out).tensors().items()}
        with _talking(self):
            for tensor in filter(Tensor.numel, tensors.values()):
                dist.recv(tensor, rank)
        return Moments.from_tensors({name: tensor.cpu() for name, tensor in tensors.items()})


ALONE = Ranks()


def here(moments: Moments) -> Moments:
    """Moments in main memory, not copied if they are there."""
    return moments if moments.mean_x.device.type == "cpu" else moments.to("cpu")


def place(device: str) -> str:
    """Where this process computes: of several GPUs, each rank takes its own.

    Args:
        device: `cpu`, `cuda` or `cuda:1`.

    Raises:
        InputError: no such device, or one without float64.
    """
    kind, _, index = device.partition(":")
    if kind == "mps":
        raise InputError(NO_FLOAT64)
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()) or (kind == "cpu" and index):
        raise InputError(f"no device {device!r}: use cpu, cuda, or one GPU as in cuda:1")
    if kind == "cpu":
        return device
    there, wanted = torch.cuda.device_count(), int(index or os.environ.get("LOCAL_RANK", 0))
    if wanted >= there:
        raise InputError(f"no device cuda:{wanted}, this machine has {there}: start one rank for each, or use cpu")
    return f"cuda:{wanted}"


@contextmanager
def joined(device: str = "cpu") -> Iterator[Ranks]:
    """Join the processes that torchrun started; without it, this one is alone.

    Args:
        device: where to compute, see `place`.

    Yields:
        The `Ranks`.

    Raises:
        HowlinearError: what was raised within, if this is the first rank to fail; its message names the rank.
        SystemExit: this rank is not the first to fail; code 2.
    """
    if not _several():
        yield replace(ALONE, device=place(device))
        return
    store, rank, size = _met()
    usual = signal.signal(signal.SIGTERM, _ended)
    try:
        with _said_once(store, rank, size):
            ranks = Ranks(rank, size, place(device))
            if cuda := ranks.device != "cpu":
                torch.cuda.set_device(ranks.device)
            backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
            yield ranks
            ranks.gather(None)  # nobody leaves while another may still fail
    finally:
        signal.signal(signal.SIGTERM, usual)
    dist.destroy_process_group()


def alone(command: str) -> None:
    """Refuse a command that several processes would race to do, each the whole of it.

    Raises:
        InputError: torchrun started several, and this is the first to fail; else SystemExit, code 2.
    """
    if _several():
        with _said_once(*_met()):
            raise InputError(f"{command} is the work of one process: leave torchrun out, which is for measure")


def _several() -> bool:
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _met() -> tuple[dist.Store, int, int]:  # what the ranks talk through, this rank, how many there are
    try:
        return next(dist.rendezvous("env://", timeout=TIMEOUT))
    except (ValueError, RuntimeError) as error:
        why, _, _ = str(error).partition("\n")
        said = f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, but no other rank is met ({why})"
        raise RankError(f"{said}: use torchrun, or unset it") from error


@contextmanager
def _said_once(store: dist.Store, rank: int, size: int) -> Iterator[None]:
    try:
        yield
    except HowlinearError as error:
        if not _first_to_fail(store):
            raise SystemExit(2) from error
        raise type(error)(f"rank {rank} of {size}: {error}") from error


def _first_to_fail(store: dist.Store) -> bool:
    try:
        return store.add("howlinear/failed", 1) == 1
    except RuntimeError:  # its keeper is gone as well
        return True


def _ended(*_: object) -> None:
    raise RankError("told to end (SIGTERM): another rank has failed, or the job was cancelled; nothing is written")


@contextmanager
def _talking(ranks: Ranks) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what gloo and nccl raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RankError(
            f"lost another of the {ranks.size} ranks ({reason}): nothing is written; see what ended it, and start again"
        ) from error
