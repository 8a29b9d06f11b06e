"""What is timed: a model of GPT-2's shape with random weights, and random token ids.

Run as a script, it captures once in a process of its own and prints that process's peak memory in bytes.
"""

import argparse
import os
import platform
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from howlinear.instrument.capture import capture
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Shape:
    """A model and how many tokens to put through it."""

    model: dict
    tokens: int
    few: int
    many: int
    rounds: int
    compared: int = 16_384  # side by side
    compared_rounds: int = 3
    judged: int = 4_096  # whose loss is taken for every swap
    seq_len: int = 128
    batch_size: int = 16


SHAPES = {
    "gpt2": Shape(model={}, tokens=8_192, few=4_096, many=65_536, rounds=5),  # GPT2Config's defaults: 124M
    "tiny": Shape(  # to see that everything runs, seconds in all
        model={"n_layer": 3, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 32},
        tokens=2_048,
        few=1_024,
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


def machine(threads: int) -> dict:
    """What the times are of."""
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
    """Let the peak start from what is resident now, where the system can: building a model takes more than it keeps."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    # two folds and batches of four: the same batches however many tokens there are, so that only tokens differ
    capture(new_model(shape), new_rows(shape, options.tokens, folds=2), batch_size=4)
    print(peak_memory())


if __name__ == "__main__":
    main()
