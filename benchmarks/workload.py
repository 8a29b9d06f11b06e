"""Shared by the benchmarks: models with random weights, random token ids, timing in turns, peak memory."""

import os
import platform
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from howlinear.text.rows import TokenRows

TIDY = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # glibc: freed memory is returned, so a peak is memory in use


@dataclass(frozen=True)
class Shape:
    """A model and how many tokens to put through it."""

    model: dict
    tokens: int
    many: int
    rounds: int
    compared: int = 16_384  # for side_by_side.py
    compared_rounds: int = 3
    judged: int = 4_096  # tokens whose loss is measured for every swap
    seq_len: int = 128
    batch_size: int = 16


SHAPES = {
    "gpt2": Shape(model={}, tokens=8_192, many=65_536, rounds=5),  # GPT2Config's defaults: 124M
    "tiny": Shape(  # to check that everything runs, in seconds
        model={"n_layer": 3, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 32},
        tokens=2_048,
        many=4_096,
        rounds=3,
        compared=2_048,
        judged=1_024,
        seq_len=32,
    ),
}


def new_model(shape: Shape) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**shape.model)).eval()


def new_rows(shape: Shape, tokens: int, folds: int, vocabulary: int | None = None) -> TokenRows:
    vocabulary = vocabulary or GPT2Config(**shape.model).vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (tokens // shape.seq_len, shape.seq_len), generator=generator)
    return TokenRows.from_ids(ids, folds)


@torch.inference_mode()
def forward(model, ids, batch_size):
    """A bare pass without the head, as transformers runs it."""
    for batch in ids.split(batch_size):
        model.base_model(input_ids=batch, use_cache=False)


def timed(work, clock=time.perf_counter):
    """Seconds by a clock, and what the work returned."""
    start = clock()
    result = work()
    return clock() - start, result


def interleaved(works, rounds, clock=time.perf_counter):
    """Seconds of each work in each round, which runs all of them one after the other, and what they returned."""
    seconds, results = {name: [] for name in works}, {}
    for _ in range(rounds):
        for name, work in works.items():
            results.pop(name, None)  # captures are large
            taken, results[name] = timed(work, clock)
            seconds[name].append(taken)
            print(f"{name}: {taken:.2f} s", file=sys.stderr)
    return seconds, results


def ratio(seconds, one, other):
    """Median over rounds of one's time over the other's in the same round."""
    return median(np.divide(seconds[one], seconds[other]))


def machine(threads: int) -> dict:
    """The machine that the times are measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": (named or [platform.processor()])[0],
        "cores": os.cpu_count(),
        "threads": threads,
        "load": load,
    }


def peak_memory() -> int:
    """Peak resident bytes of this process since it started its program.

    Linux carries `ru_maxrss` over from the parent through exec, and the parent is the larger one here; `VmHWM`
    belongs to the program alone.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    """Reset the peak to what is resident now, if the system can: building a model takes more than it keeps."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
