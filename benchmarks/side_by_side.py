"""Ours and the others on the same rows, in one process, with the same threads: `make bench`.

Time is the median over interleaved rounds, so that what else the machine does meets all alike, in a process that keeps
the memory it freed: fresh pages can take a fifth of a pass. Peak memory is of a process of its own per way. Nothing
asserts a time. All numbers go to `build/bench.json`; with `--keep`, what the book shows goes to
`results/bench/bench.json` and `figures/bench`.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here

import argparse
import platform
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from matplotlib import pyplot as plt
from methods import HELD_OUT, METHODS
from threadpoolctl import threadpool_limits
from workload import SHAPES, forget_peak, new_model, new_rows, peak_memory

from howlinear import paths, record, style
from howlinear.capture import capture, hooked
from howlinear.ceilings import ceiling, fit, r2
from howlinear.corpora import TokenRows
from howlinear.models import sites
from howlinear.moments import Moments
from howlinear.perplexity import losses, swap_costs

GOALS = {  # what: (goal, whether more is better)
    "capture, × the bare forward": (1.15, False),
    "scipy lstsq, × our time": (5, True),
    "scikit-learn, × our time": (5, True),
    "SVD score, × our time": (3, True),
    "scipy lstsq, × our memory": (10, True),
    "scikit-learn, × our memory": (10, True),
    "SVD score, × our memory": (10, True),
    "all swaps, plain evaluations": (7.5, False),
}
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}  # glibc: freed memory is used again
TIDY = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # and here it is gone, so that a peak is what is in use
OURS = {name: "howlinear" if name in HELD_OUT else "howlinear, in sample" for name in METHODS}


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def interleaved(works, rounds):
    """Seconds of each work in each round, a round being all of them one after the other, and what they returned."""
    seconds, results = {name: [] for name in works}, {}
    for _ in range(rounds):
        for name, work in works.items():
            taken, results[name] = timed(work)
            seconds[name].append(taken)
            print(f"{name}: {taken:.2f} s", file=sys.stderr)
    return seconds, results


@torch.inference_mode()
def forward(model, ids, batch_size):
    for batch in ids.split(batch_size):
        model.base_model(input_ids=batch, use_cache=False)


def stored(model, rows, batch_size):
    """All rows of all blocks as they come, float32: the rows to fit on first. Block → (x, y)."""
    found = sites(model)
    shape = (rows.ids.numel(), model.config.hidden_size)
    kept = {site.block: (torch.empty(shape), torch.empty(shape)) for site in found}
    start = {site.block: 0 for site in found}

    def keep(site, x, y):
        for room, part in zip(kept[site.block], (x, y), strict=True):
            part = part.flatten(0, 1)
            room[start[site.block] :][: len(part)] = part
        start[site.block] += len(part)

    with hooked(found, keep):
        forward(model, torch.cat([rows.ids[~rows.test], rows.ids[rows.test]]), batch_size)
    return kept


def peak(shape, way, tokens):
    """Measure in this process; `way` is a method, or `bare` for the forward pass alone."""
    rows = new_rows(shape, tokens, 1)
    train = int((~rows.test).sum()) * shape.seq_len
    model = new_model(shape)
    forward(model, rows.ids[: shape.batch_size], shape.batch_size)
    forget_peak()
    if way == "bare":
        forward(model, rows.ids, shape.batch_size)
    elif way == "howlinear":
        kept = capture(model, rows, batch_size=shape.batch_size)[0]
        ceiling(kept.train, kept.test)
    elif way == "howlinear, in sample":
        in_sample(model, rows, shape.batch_size)
    else:
        METHODS[way](*stored(model, rows, shape.batch_size)[0], train)  # the other blocks need no more
    print(peak_memory())


def in_sample(model, rows, batch_size):
    """R² of every block on the rows that it is fitted on, from one set of moments a block."""
    found = sites(model)
    width = model.config.hidden_size
    several = dict(zip((site.block for site in found), Moments.several(len(found), width, width), strict=True))
    with hooked(found, lambda site, x, y: several[site.block].update(x.flatten(0, 1), y.flatten(0, 1))):
        forward(model, rows.ids, batch_size)
    return {block: r2(fit(moments)[0], moments) for block, moments in several.items()}


def peaks(name, threads, tokens):
    """Peak bytes of each way, beyond those of the bare forward."""
    found, environment = {}, {key: value for key, value in os.environ.items() if key not in KEEP} | TIDY
    for way in ("bare", *METHODS):
        command = [sys.executable, __file__, "--shape", name, "--threads", str(threads), "--peak", way]
        command += ["--tokens", str(tokens)]
        found[way] = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
        print(f"{way}, {tokens} tokens: {found[way] / 1e6:.0f} MB", file=sys.stderr)
    return {way: found[way] - found["bare"] for way in METHODS}


def every_block(method, kept, train):
    return [method(x, y, train) for x, y in kept.values()]


def compare(shape, name, threads):
    """Everything, as nested numbers."""
    model, rows = new_model(shape), new_rows(shape, shape.compared, 1)
    train = int((~rows.test).sum()) * shape.seq_len
    few = rows.ids[: shape.judged // shape.seq_len]
    capture(model, TokenRows.from_ids(few, 1), batch_size=shape.batch_size)  # a warm-up
    whole, found = interleaved(
        {
            "bare forward": lambda: forward(model, rows.ids, shape.batch_size),
            "capture": lambda: capture(model, rows, batch_size=shape.batch_size),
        },
        shape.rounds,
    )
    ceilings = {block: ceiling(kept.train, kept.test) for block, kept in found["capture"].items()}
    maps = {block: found.map for block, found in ceilings.items()}
    plain, _ = interleaved(
        {"plain evaluation": lambda: losses(model, few), "all swaps": lambda: swap_costs(model, maps, few)},
        shape.compared_rounds - 1,
    )
    kept = stored(model, rows, shape.batch_size)
    beyond, scores = interleaved(
        {way: partial(every_block, METHODS[way], kept, train) for way in METHODS}, shape.compared_rounds
    )
    direct = [ceilings[block].r2 for block in kept]
    return {
        "seconds": whole | plain | beyond,
        "r2": scores | {"capture": direct},
        "peak_bytes": {tokens: peaks(name, threads, tokens) for tokens in (shape.compared, shape.many)},
        "tokens": {"compared": shape.compared, "many": shape.many, "judged": shape.judged},
    }


def ratio(seconds, one, other):
    """Median over rounds of one's time over the other's in the same round."""
    return median(np.divide(seconds[one], seconds[other]))


def summary(raw, threads):
    """What the book shows."""
    seconds, (beyond, longer) = raw["seconds"], raw["peak_bytes"].values()
    reference = {way: "scipy lstsq" if way in HELD_OUT else "howlinear, in sample" for way in METHODS}
    ways = {
        way: {
            "seconds": median(seconds[way]),
            "times_ours": ratio(seconds, way, OURS[way]),
            "megabytes": beyond[way] / 1e6,
            "memory_times_ours": beyond[way] / beyond[OURS[way]],
            "many_megabytes": longer[way] / 1e6,
            "many_memory_times_ours": longer[way] / longer[OURS[way]],
            "error": float(np.abs(np.subtract(raw["r2"][way], raw["r2"][reference[way]])).max()),
        }
        for way in METHODS
    }
    reached = {
        "capture, × the bare forward": ratio(seconds, "capture", "bare forward"),
        "all swaps, plain evaluations": ratio(seconds, "all swaps", "plain evaluation"),
    }
    for way in ("scipy lstsq", "scikit-learn", "SVD score"):
        reached[f"{way}, × our time"] = ways[way]["times_ours"]
        reached[f"{way}, × our memory"] = ways[way]["memory_times_ours"]
    goals = {
        what: {"goal": goal, "measured": reached[what], "met": (reached[what] >= goal) == more}
        for what, (goal, more) in GOALS.items()
    }
    times = {way: median(values) for way, values in seconds.items() if way not in METHODS}
    return {"goals": goals, "machine": machine(threads), "seconds": times, "tokens": raw["tokens"], "ways": ways}


def machine(threads):
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


def draw(found):
    """Time and memory of the ways, as multiples of ours."""
    style.use()
    figure, axes = plt.subplots(1, 2, figsize=(style.PAGE, 1.8), sharey=True)
    ways = [way for way in METHODS if OURS[way] != way]
    for axis, key, what in zip(axes, ("times_ours", "memory_times_ours"), ("time", "memory"), strict=True):
        values = [found["ways"][way][key] for way in ways]
        edge = 1.2 * max(*values, 10)
        axis.barh(ways[::-1], values[::-1], color=style.GREY, height=0.6)
        for place, (way, value) in enumerate(zip(ways[::-1], values[::-1], strict=True)):
            goal = GOALS[f"{way}, × our {what}"][0]
            axis.plot([goal, goal], [place - 0.4, place + 0.4], color=style.ACCENT, label="goal" if not place else None)
            clear = value if value < 0.8 * goal else max(value, goal)  # of the goal's mark
            axis.text(clear + edge / 50, place, f"{value:.1f} ×", va="center", fontsize=7)
        axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axis.set(xlabel=f"{what}, times ours", xlim=(0, edge))
        axis.grid(axis="y", visible=False)
    axes[0].legend(loc="lower right")
    style.save(figure, "bench", "side_by_side")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, help="of --peak")
    parser.add_argument("--peak", choices=["bare", *METHODS], help="print peak memory of one way, in bytes")
    parser.add_argument("--keep", action="store_true", help="write results/bench and figures/bench, for the book")
    options = parser.parse_args()
    if not options.peak and not KEEP.items() <= os.environ.items():  # read as a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP)
    shape = SHAPES[options.shape]
    torch.set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        if options.peak:
            peak(shape, options.peak, options.tokens)
            return
        raw = compare(shape, options.shape, options.threads)
    found = summary(raw, options.threads)
    record.save(paths.BUILD / "bench.json", {"raw": raw, "summary": found})
    if options.keep:
        record.save(paths.results("bench") / "bench.json", found)
        draw(found)
    for what, line in found["goals"].items():
        print(f"{what:32} {line['measured']:6.2f}   goal {line['goal']:5.2f}   {'met' if line['met'] else 'not met'}")


if __name__ == "__main__":
    main()
