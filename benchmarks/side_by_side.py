"""Compare our method with others on the same rows, in one process, with the same threads: `make bench`.

Time is the median over interleaved rounds, so that other load on the machine affects all alike; peak memory is measured
in a separate process per method. No time is asserted. With `--keep`, results go to `figures/bench` and
`results/bench/bench.json`, which the book shows; `--parts memory` keeps the recorded times and needs no idle machine.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here

import argparse
import subprocess
import sys
from statistics import median

import numpy as np
import torch
from matplotlib import pyplot as plt
from methods import HELD_OUT, METHODS
from threadpoolctl import threadpool_limits
from workload import SHAPES, TIDY, forget_peak, forward, interleaved, machine, new_model, new_rows, peak_memory, ratio

from howlinear.core.ceilings import ceiling, fit, r2
from howlinear.core.moments import Moments
from howlinear.files import figures, numbers, paths
from howlinear.instrument.capture import capture, hooked
from howlinear.instrument.perplexity import losses
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.ffn_sites import sites
from howlinear.plots import style
from howlinear.text.rows import TokenRows

GOALS = {  # quantity: (goal, whether more is better)
    "capture, × the bare forward": (1.15, False),
    "scipy lstsq, × our time": (5, True),
    "scikit-learn, × our time": (5, True),
    "SVD score, × our time": (3, True),
    "scipy lstsq, × our memory": (10, True),
    "scikit-learn, × our memory": (10, True),
    "SVD score, × our memory": (10, True),
    "all swaps, plain evaluations": (7.5, False),
}
PARTS = ("time", "memory")
OURS = {name: "howlinear" if name in HELD_OUT else "howlinear, in sample" for name in METHODS}


def stored(model, rows, batch_size):
    """All float32 rows of all blocks, the train rows first: block → (x, y)."""
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
    """Print this process's peak memory for a method `way`, or for the forward pass alone if it is `bare`."""
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
        METHODS[way](*stored(model, rows, shape.batch_size)[0], train)  # the other blocks need no more memory
    print(peak_memory())


def in_sample(model, rows, batch_size):
    """In-sample R² of every block, from one set of moments per block."""
    found = sites(model)
    width = model.config.hidden_size
    moments = {site.block: Moments(width, width) for site in found}
    with hooked(found, lambda site, x, y: moments[site.block].update(x.flatten(0, 1), y.flatten(0, 1))):
        forward(model, rows.ids, batch_size)
    return {block: r2(fit(of_block)[0], of_block) for block, of_block in moments.items()}


def peaks(name, threads, tokens):
    """Peak megabytes of each method beyond the bare forward pass, and as a multiple of ours."""
    found, tidy = {}, os.environ | TIDY
    for way in ("bare", *METHODS):
        command = [sys.executable, __file__, "--shape", name, "--threads", str(threads), "--peak", way]
        command += ["--tokens", str(tokens)]
        found[way] = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=tidy).stdout)
        print(f"{way}, {tokens} tokens: {found[way] / 1e6:.0f} MB", file=sys.stderr)
    beyond = {way: (found[way] - found["bare"]) / 1e6 for way in METHODS}
    return {way: {"megabytes": beyond[way], "times_ours": beyond[way] / beyond[OURS[way]]} for way in METHODS}


def times(shape, threads):
    """Times of all works, and how exact each method is."""
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
    works = {
        way: lambda method=method: [method(x, y, train) for x, y in kept.values()] for way, method in METHODS.items()
    }
    beyond, scores = interleaved(works, shape.compared_rounds)
    seconds = whole | plain | beyond
    reference = {way: "scipy lstsq" if way in HELD_OUT else "howlinear, in sample" for way in METHODS}
    return {
        "machine": machine(threads),
        "tokens": {"compared": shape.compared, "judged": shape.judged},
        "seconds": {what: median(values) for what, values in (whole | plain).items()},
        "ratios": {
            "capture, × the bare forward": ratio(seconds, "capture", "bare forward"),
            "all swaps, plain evaluations": ratio(seconds, "all swaps", "plain evaluation"),
        },
        "ways": {
            way: {
                "seconds": median(seconds[way]),
                "times_ours": ratio(seconds, way, OURS[way]),
                "error": float(np.abs(np.subtract(scores[way], scores[reference[way]])).max()),
            }
            for way in METHODS
        },
    }


def goals(found, compared):
    """Goal and measured value of everything that was measured."""
    reached = dict(found.get("ratios", {}))
    for way in ("scipy lstsq", "scikit-learn", "SVD score"):
        if "ways" in found:
            reached[f"{way}, × our time"] = found["ways"][way]["times_ours"]
        if "memory" in found:
            reached[f"{way}, × our memory"] = found["memory"][str(compared)][way]["times_ours"]
    return {
        what: {"goal": goal, "measured": reached[what], "met": (reached[what] >= goal) == more}
        for what, (goal, more) in GOALS.items()
        if what in reached
    }


def draw(found, compared):
    """Draw time and memory of the methods, as multiples of ours."""
    style.use()
    figure, axes = plt.subplots(1, 2, figsize=(style.PAGE, 1.8), sharey=True)
    ways = [way for way in METHODS if OURS[way] != way]
    both = {"time": found["ways"], "memory": found["memory"][str(compared)]}
    for axis, (what, measured) in zip(axes, both.items(), strict=True):
        values = [measured[way]["times_ours"] for way in ways]
        edge = 1.2 * max(*values, 10)
        axis.barh(ways[::-1], values[::-1], color=style.GREY, height=0.6)
        for place, (way, value) in enumerate(zip(ways[::-1], values[::-1], strict=True)):
            goal = GOALS[f"{way}, × our {what}"][0]
            axis.plot([goal, goal], [place - 0.4, place + 0.4], color=style.ACCENT, label="goal" if not place else None)
            clear = value if value < 0.8 * goal else max(value, goal)  # to the right of the goal's mark if near it
            axis.text(clear + edge / 50, place, f"{value:.1f} ×", va="center", fontsize=7)
        axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axis.set(xlabel=f"{what}, times ours", xlim=(0, edge))
        axis.grid(axis="y", visible=False)
    axes[0].legend(loc="lower right")
    figures.save(figure, paths.figures("bench"), "side_by_side")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, help="number of tokens for --peak")
    parser.add_argument("--peak", choices=["bare", *METHODS], help="print peak memory of one method, in bytes")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--keep", action="store_true", help="write results/bench and figures/bench, for the book")
    options = parser.parse_args()
    shape, kept = SHAPES[options.shape], paths.results("bench") / "bench.json"
    torch.set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        if options.peak:
            peak(shape, options.peak, options.tokens)
            return
        found = numbers.load(kept) if options.keep and kept.exists() and len(options.parts) < len(PARTS) else {}
        if "time" in options.parts:
            found |= times(shape, options.threads)
        if "memory" in options.parts:
            lengths = (shape.compared, shape.many)
            found["memory"] = {str(n): peaks(options.shape, options.threads, n) for n in lengths}
    found["goals"] = goals(found, shape.compared)
    found["versions"] = numbers.versions()
    if options.keep:
        numbers.save(kept, found, digits={"error": 1})  # about 1e-12: only its order of magnitude matters
        if {"ways", "memory"} <= found.keys():
            draw(found, shape.compared)
    for what, line in found["goals"].items():
        print(f"{what:32} {line['measured']:6.2f}   goal {line['goal']:5.2f}   {'met' if line['met'] else 'not met'}")


if __name__ == "__main__":
    main()
