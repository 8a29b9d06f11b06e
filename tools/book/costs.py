"""What a measurement costs at other sizes: memory from formulas, time from measured rates.

`benchmarks/scale.py` times the three parts of a measurement over tokens, width and blocks and writes `book/scale.json`;
the book's page "What it costs" is made from that file and the formulas here. They assume blocks with d inputs and
d outputs and about 12 d² weights, and 8-byte floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howlinear.instrument.layerwise import moments_bytes
from howlinear.text.rows import FOLDS
from tools.book.tables import markdown

PARTS = {
    "forward": "tokens · blocks · d²",
    "moments": "tokens · blocks · d²",
    "ceilings": "blocks · d³",
}
"""Timed part → what its time is proportional to."""

AXES = ("width", "blocks", "tokens")

LARGE = {
    "7B": {"width": 4_096, "blocks": 32, "tokens": 65_536},
    "70B": {"width": 8_192, "blocks": 80, "tokens": 131_072},
}
"""Sixteen rows for each input; with fewer, the map is fitted to noise."""


@dataclass(frozen=True)
class Weights:
    """Sizes of a model's weight matrices.

    Attributes:
        width: width d of the residual stream.
        blocks: number of blocks.
        in_block: weights of one block, attention and FFN.
        vocabulary: number of tokens that the head predicts.
    """

    width: int
    blocks: int
    in_block: int
    vocabulary: int


TIMED = {
    "gpt2": Weights(768, 12, 12 * 768**2, 50_257),
    # attention has 9 query heads of width 64 and 3 key-value heads; the FFN has a gate
    "smollm2-135m": Weights(576, 30, 2 * 576 * (576 + 192) + 3 * 576 * 1536, 49_152),
}
"""The models of `benchmarks/ratios.py`."""

HELD_OUT = 0.25  # share of all rows
FLOAT64 = 2  # times the time of float32
FITS = FOLDS + 1  # per block: one on all rows, and one without each fold


def counted(model: Weights, rows: int) -> dict[str, float]:
    """The ratios of `benchmarks/ratios.py` if only matrix products take time.

    Counts two operations per weight and row. Attention's products between rows are left out, and so are fits without
    massive rows.
    """
    block = 2 * model.in_block  # operations per row
    head = 2 * model.vocabulary * model.width
    trunk = model.blocks * block

    # Sxy, half of the symmetric Sxx, and half of Syy where rows are held out
    moments = FLOAT64 * model.blocks * (2 + 1 + HELD_OUT) * model.width**2
    # a Cholesky factor, a solution, and half of the symmetric W Wᵀ
    fit = FLOAT64 * (1 / 3 + 2 + 1) * model.width**3
    ceilings = model.blocks * FITS * fit / rows
    # the blocks before a swapped block are computed once, and the map in its place costs nothing
    swap = head + (model.blocks - 1) / 2 * block

    measure = 1 + (moments + ceilings + HELD_OUT * head) / trunk
    return {
        "measure": measure,
        "measure, own": measure,  # the same operations
        "capture": 1 + moments / trunk,
        "ceilings": ceilings / trunk,
        "all swaps": 1 + model.blocks * swap / (trunk + head),
    }


def work(run: Mapping[str, Any]) -> dict[str, int]:
    """The amount of each part in a run with a width, blocks and tokens, in the units of `PARTS`."""
    width, blocks, tokens = (run[axis] for axis in AXES)
    rows = tokens * blocks * width**2
    return {"forward": rows, "moments": rows, "ceilings": blocks * width**3}


def rates(measured: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per unit of each part at the widest shape that was timed, where fixed costs matter least."""
    widest = max(measured["runs"], key=lambda run: (run["width"], run["tokens"]))
    return {part: widest[part] / count for part, count in work(widest).items()}


def tables(measured: Mapping[str, Any]) -> dict[str, str]:
    """The tables of the book's page, by name, in Markdown, from what `benchmarks/scale.py` wrote."""
    return {"timed": _timed(measured), "bytes": _bytes(), "extrapolated": _extrapolated(measured)}


def _timed(measured: Mapping[str, Any]) -> str:
    head = f"Measured: {measured['machine']}, median of {measured['rounds']}."
    rows = [
        {
            "width d": f"{run['width']:,}",
            "blocks": f"{run['blocks']}",
            "tokens": f"{run['tokens']:,}",
            "forward": f"{run['forward']:.2f} s",
            "moments": f"{run['moments']:.2f} s",
            "share": f"{run['moments'] / run['forward']:.0%}",
            "ceilings, a block": f"{run['ceilings'] / run['blocks']:.2f} s",
        }
        for run in measured["runs"]
    ]
    return "\n".join([head, "", markdown(rows), "", *_growth(measured["runs"])])


def _growth(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The factor by which each part grows along each axis of the sweep, with its formula's factor in brackets."""
    base = runs[0]
    lines = []
    for axis in AXES:
        others = [other for other in AXES if other != axis]
        swept = [run for run in runs if all(run[other] == base[other] for other in others)]
        last = max(swept, key=lambda run: run[axis])
        expected = {part: count / work(base)[part] for part, count in work(last).items()}
        factors = [f"{part} × {last[part] / base[part]:.1f} ({expected[part]:.0f})" for part in PARTS]
        lines.append(f"- {axis} {base[axis]:,} → {last[axis]:,}: {', '.join(factors)}")
    return lines


def _bytes() -> str:
    rows = []
    for name, shape in LARGE.items():
        width, blocks = shape["width"], shape["blocks"]
        block = moments_bytes(width)
        of_block = f"8 · {width:,}² · {4 * FOLDS + 1} = {_size(block)}"
        of_all = f"· {blocks} = {_size(blocks * block)}"
        rows.append({"model": name, "moments of a block": of_block, "of all blocks": of_all})
    return markdown(rows)


def _extrapolated(measured: Mapping[str, Any]) -> str:
    seconds = rates(measured)
    rows = []
    for part, unit in PARTS.items():
        row = {"part": part, "grows with": unit, "seconds for one": f"{seconds[part]:.2e}"}
        for name, shape in LARGE.items():
            count = work(shape)[part]
            row[f"{name}, {shape['tokens']:,} tokens"] = f"· {count:.2e} = {_time(seconds[part] * count)}"
        rows.append(row)
    return markdown(rows)


def layer_by_layer(found: Mapping[str, Any]) -> str:
    """The results of `benchmarks/layerwise.py`, in Markdown."""
    rows = []
    for name, run in found.items():
        small, whole = run["layer by layer"], run.get("whole")
        rows.append(
            {
                "model": f"{name}, {run['layers']} layers",
                "rows": f"{run['rows']:,}",
                "peak memory": f"{small['bytes'] / 1e9:.2f} GB",
                "goal": f"{run['goal'] / 1e9:.1f} GB" if "goal" in run else "–",
                "time of a core": f"{small['seconds'] / 60:.1f} min",
                "peak, as a whole": f"{whole['bytes'] / 1e9:.2f} GB" if whole else "does not fit",
                "times as long": f"{run['times']:.2f}" if whole else "–",
                "numbers apart": f"{run['apart']:.1g}" if whole else "–",
                "load": f"{run['machine']['load']:.1f}",
            }
        )
    processors = " and ".join(dict.fromkeys(run["machine"]["processor"] for run in found.values()))
    return (
        f"Measured on one thread of {processors} (at a load above 1 other work ran beside it); the weights of LLaMA's "
        f"shape are random, and a few of its layers have nearly the peak of all.\n\n{markdown(rows)}"
    )


def on_a_gpu(found: Mapping[str, Any]) -> str:
    """The results of `benchmarks/gpu.sh`, in Markdown."""
    about, steps = found["about"], found["steps"]
    speeds = {name: run for name, run in steps["speed"].items() if isinstance(run, Mapping)}
    speeds = dict(sorted(speeds.items(), key=lambda each: each[1]["bare"]))
    goal = next(iter(speeds.values()))["goal"]
    rows = [
        {
            "SmolLM2, sequences in a batch": name.removesuffix(" sequences"),
            "bare forward, tokens / s": f"{run['bare']:,.0f}",
            "with all moments": f"{run['with_moments']:,.0f}",
            f"ratio (goal {goal})": f"{run['ratio']:.2f}",
        }
        for name, run in speeds.items()
    ]
    agreed = {name: run for name, run in steps["agreement"].items() if isinstance(run, Mapping)}
    most = max(steps["million"].values(), key=lambda run: run.get("rows", 0) if isinstance(run, Mapping) else 0)
    large, streams = steps["large"], steps["streams"]
    last = {name: looks[-1] for name, looks in steps["fresh"].items() if isinstance(looks, list)}
    brackets = [
        {
            "before training": name.replace(" tokens", " in the vocabulary"),
            "rows": f"{look['rows']:,}",
            "R²_lin, lowest": f"{min(look['held_out']):.3f}",
            "highest": f"{max(look['in_sample']):.3f}",
            "widest bracket": f"{look['apart']:.3f}",
        }
        for name, look in last.items()
    ]
    apart = {name: max(run[f"{name}_apart"] for run in agreed.values()) for name in ("r2", "perplexity")}
    lines = [
        f"Measured on one {about['device']}, torch {about['versions']['torch']}. In {len(agreed)} models GPU and CPU",
        f"agree to {apart['r2']:.0e} in R²_lin and to {apart['perplexity']:.0e} of perplexity.",
        "",
        markdown(rows),
        "",
        f"{most['rows']:,} rows of all of SmolLM2's blocks take {most['seconds']:.0f} s, solved with intervals,",
        f"and {_size(most['device_bytes'])} of the GPU. Layer by layer SmolLM2 takes {streams['times']:.2f} times",
        f"as long as whole, and {_size(streams['layer by layer']['device_bytes'])} in the place of",
        f"{_size(streams['whole']['device_bytes'])}. {large['layers']} layers of LLaMA-3.1-8B's shape, random weights,",
        f"take {large['seconds_a_layer']:.1f} s each, {_size(large['layer by layer']['device_bytes'])} of the GPU",
        f"and {_size(large['layer by layer']['bytes'])} of main memory. Three of these blocks were measured in the",
        f"whole model too: R²_lin lies {large['apart']:.1g} apart.",
        "",
        "Before training, on random weights and the same text; rows were doubled until held-out and in-sample",
        "R² met within 0.02 in every block, or the text or the time ended:",
        "",
        markdown(brackets),
    ]
    return "\n".join(lines)


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 1e12 else f"{count / 1e12:,.2f} TB"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
