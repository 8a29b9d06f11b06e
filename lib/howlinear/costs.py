"""What a measurement costs at other sizes: bytes and operations by formula, time by rates that were measured.

`benchmarks/scale.py` times the three parts of a measurement over tokens, width and blocks and writes `book/scale.json`;
the book's page "What it costs" is made of that file and of the formulas here, which the tests hold against what is
allocated and sent. Everything is for blocks of width d in and out, of about 12 d² weights, and 8-byte floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howlinear.corpora import FOLDS, TRAIN_SHARE
from howlinear.distributed import Ranks

PARTS = {  # what is timed → what it grows with, and how a reader's own machine counts it
    "forward": "tokens · blocks · d²",
    "moments": "tokens · blocks · d²",
    "ceilings": "blocks · d³",
}


@dataclass(frozen=True)
class Shape:
    """A model's blocks and the rows to put through them."""

    name: str
    width: int
    blocks: int
    tokens: int

    @property
    def unit(self) -> dict[str, int]:
        """How much of each part there is, in the units of `PARTS`."""
        pass_ = self.tokens * self.blocks * self.width**2
        return {"forward": pass_, "moments": pass_, "ceilings": self.blocks * self.width**3}


LARGE = (Shape("7B", 4_096, 32, 65_536), Shape("70B", 8_192, 80, 131_072))  # sixteen rows for each input
RANKS = (8, 64)
SEQ_LEN = 128


def moments_bytes(width: int, folds: int = 2 * FOLDS) -> int:
    """Bytes of one block's moments: Sxx and Sxy of each fold and Σyy of the held-out outputs, d² numbers each.

    Vectors (means, Σy²) are left out: 3 / (2 d) of it.
    """
    return 8 * width**2 * (2 * folds + 1)


def rank_bytes(shape: Shape, ranks: int) -> int:
    """Bytes of moments on the fullest of `ranks` ranks while the model runs: the folds that it sees, of all blocks."""
    held = _held(shape, ranks)
    return max(shape.blocks * 8 * shape.width**2 * (2 * len(of) + any(test for test, _ in of)) for of in held)


def sent_bytes(shape: Shape, ranks: int) -> float:
    """Bytes that all ranks together send: every rank's part of every fold, but to a block's owner what it has itself.

    Owners take turns, so a rank keeps one part in `ranks` of what it holds.
    """
    parts = sum(2 * len(of) + any(test for test, _ in of) for of in _held(shape, ranks))
    return shape.blocks * 8 * shape.width**2 * parts * (ranks - 1) / ranks


def _held(shape: Shape, ranks: int) -> list[set[tuple[bool, int]]]:
    """The (held out?, fold) of the sequences that each rank is dealt."""
    sequences = shape.tokens // SEQ_LEN
    shares = ((False, TRAIN_SHARE), (True, 1 - TRAIN_SHARE))
    folds = [(test, f) for test, share in shares for f in range(FOLDS) for _ in range(round(share * sequences / FOLDS))]
    held: list[set] = [set() for _ in range(ranks)]
    for fold, rank in zip(folds, Ranks(0, ranks).deal([(fold,) for fold in folds]), strict=True):
        held[rank].add(fold)
    return held


def operations(shape: Shape) -> dict[str, float]:
    """Floating-point operations: of the forward pass in the model's precision, of the moments in float64.

    2 for each weight and token; Sxx by symmetry at 10/16 of its 2 d², Sxy 2 d², and Σyy of the held-out quarter as Sxx.
    """
    unit = shape.unit
    moments = 2 * 10 / 16 + 2 + (1 - TRAIN_SHARE) * 2 * 10 / 16
    return {"forward": 24.0 * unit["forward"], "moments": moments * unit["moments"]}


def rates(measured: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per unit of each part, at the widest shape that was timed, where fixed costs count least."""
    run = max(measured["runs"], key=lambda run: (run["width"], run["tokens"]))
    unit = Shape("", run["width"], run["blocks"], run["tokens"]).unit
    return {part: run[part] / unit[part] for part in PARTS}


def tables(measured: Mapping[str, Any]) -> dict[str, str]:
    """The tables of the book's page, in markdown, by name."""
    return {"timed": _timed(measured), "bytes": _bytes(), "extrapolated": _extrapolated(measured)}


def _timed(measured: Mapping[str, Any]) -> str:
    lines = [f"Measured: {measured['machine']}, median of {measured['rounds']}.", ""]
    lines += _head("width d", "blocks", "tokens", "forward", "moments", "share", "ceilings, a block")
    for run in measured["runs"]:
        sizes = f"{run['width']:,} | {run['blocks']} | {run['tokens']:,}"
        times = f"{run['forward']:.2f} s | {run['moments']:.2f} s | {run['moments'] / run['forward']:.0%}"
        lines.append(f"| {sizes} | {times} | {run['ceilings'] / run['blocks']:.2f} s |")
    return "\n".join([*lines, "", *(f"- {line}" for line in _growth(measured["runs"]))])


def _growth(runs: list[Mapping[str, Any]]) -> list[str]:
    """By what each part grows along each axis of the sweep, and in brackets by what its formula does."""
    lines, base, axes = [], runs[0], ("width", "blocks", "tokens")
    for axis in axes:
        swept = [run for run in runs if all(run[other] == base[other] for other in axes if other != axis)]
        last = max(swept, key=lambda run: run[axis])
        unit, first = (Shape("", *(run[of] for of in axes)).unit for run in (last, base))
        found = ", ".join(f"{part} × {last[part] / base[part]:.1f} ({unit[part] / first[part]:.0f})" for part in PARTS)
        lines.append(f"{axis} {base[axis]:,} → {last[axis]:,}: {found}")
    return lines


def _bytes() -> str:
    names = ["model", "moments of a block", "of all blocks"]
    names += [text.format(n) for n in RANKS for text in ("on the fullest of {} ranks", "sent by all {} together")]
    lines = _head(*names)
    for shape in LARGE:
        one = moments_bytes(shape.width)
        cells = [f"8 · {shape.width:,}² · 33 = {_size(one)}", f"· {shape.blocks} = {_size(shape.blocks * one)}"]
        cells += [_size(count(shape, n)) for n in RANKS for count in (rank_bytes, sent_bytes)]
        lines.append(f"| {shape.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _extrapolated(measured: Mapping[str, Any]) -> str:
    each = rates(measured)
    lines = _head(
        "part", "grows with", "seconds for one", *(f"{shape.name}, {shape.tokens:,} tokens" for shape in LARGE)
    )
    for part, unit in PARTS.items():
        cells = (f"· {shape.unit[part]:.2e} = {_time(each[part] * shape.unit[part])}" for shape in LARGE)
        lines.append(f"| {part} | {unit} | {each[part]:.2e} | {' | '.join(cells)} |")
    lines += ["", *_head("operations", *(shape.name for shape in LARGE))]
    for part, kind in (("forward", "in the model's precision"), ("moments", "in float64")):
        lines.append(f"| {part}, {kind} | {' | '.join(f'{operations(shape)[part]:.2e}' for shape in LARGE)} |")
    return "\n".join(lines)


def _head(*names: str) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _size(count: int | float) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 1e12 else f"{count / 1e12:,.2f} TB"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
