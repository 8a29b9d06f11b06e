"""Whether memory stays where it is when more tokens go by.

Each size runs in a process of its own. At GPT-2's shape the larger one takes two minutes or so on two cores.
"""

import subprocess
import sys
from pathlib import Path

GOAL = 0.05  # growth from the few tokens to the many
WORKLOAD = Path(__file__).with_name("workload.py")


def test_peak_memory(shape_name, shape, benchmark, result):
    def peak(tokens):
        command = [sys.executable, str(WORKLOAD), "--shape", shape_name, "--tokens", str(tokens)]
        return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    few = peak(shape.few)
    many = benchmark.pedantic(peak, args=(shape.many,), rounds=1)

    result(f"peak memory, {shape.few:,} tokens", few / 1e6, "{:.0f} MB")
    result(f"peak memory, {shape.many:,} tokens", many / 1e6, "{:.0f} MB")
    result("growth", many / few - 1, "{:.1%}", GOAL)
