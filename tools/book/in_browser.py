"""The book's page to try things out: moments of three blocks for a script to compute with, and the expected numbers.

`collect` reads a capture; the pipeline keeps the result in `build/<profile>/in_browser.json`. `script` makes from it
the file that `book/try.md` loads, and `filled` puts the numbers into its text, all computed by `howlinear` or on
record. The page itself computes in JavaScript (`book/_static/moments.js`), so the two check each other.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.files import numbers as on_disk
from howlinear.files import paths, tables
from howlinear.instrument.capture import BlockCapture
from howlinear.notebook import run as notebooks

RIDGES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)  # as in task 3 of the page
SAME = 5e-4
"""Largest difference allowed from the recorded R²_lin: three digits are shown."""


def collect(run: notebooks.Run) -> dict[str, Any]:
    """The most linear, the middle and the least linear block of the first model on the main text.

    Returns:
        `blocks`, for `script`, and `numbers`, for `filled`.

    Raises:
        SourceError: notebook 02 has not run on this profile.
        InputError: a block cannot be fitted, or the record comes from another capture.
    """
    model = next(iter(run.models))
    recorded = tables.results(run.profile, "02_ceilings")["blocks"].query("model == @model").to_dict("records")
    chosen = choose(recorded)
    captured = run.capture(model).blocks
    blocks = {name: captured[row["block"]] for name, row in chosen.items()}
    return {
        "blocks": pack(blocks, {name: row["block"] for name, row in chosen.items()}),
        "numbers": {"model": model, "corpus": run.corpora[0], "count": str(len(recorded))} | numbers(blocks, chosen),
    }


def choose(recorded: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The rows of the most linear, the middle and the least linear block, by the names that the page gives them."""
    falling = sorted(recorded, key=lambda row: -row["r2"])
    return {"mostLinear": falling[0], "middle": falling[(len(falling) - 1) // 2], "leastLinear": falling[-1]}


def pack(blocks: Mapping[str, BlockCapture], places: Mapping[str, int]) -> dict[str, Any]:
    """Moments as text, by the page's name of a block: one per train fold, and one of all held-out rows together."""
    some = next(iter(blocks.values())).train[0]
    parts = {
        name: {
            "number": places[name],
            "train": [packed(fold) for fold in kept.train],
            "test": packed(Moments.total(kept.test)),
        }
        for name, kept in blocks.items()
    }
    return {"d_in": some.d_in, "d_out": some.d_out, "parts": parts}


def packed(moments: Moments) -> str:
    """n, means, Sxx up to its diagonal row by row, Sxy, Syy: little-endian float32 in base64, as `moments.js` reads it.

    This is half of the symmetric matrix and half of the digits. R² is the same to 1e-6, as the page leaves out inputs
    that the others predict to that precision.
    """
    lower = torch.tril_indices(moments.d_in, moments.d_in)
    parts = [
        torch.tensor([float(moments.n)]),
        moments.mean_x,
        moments.mean_y,
        moments.sxx[lower[0], lower[1]],
        moments.sxy.flatten(),
        moments.syy,
    ]
    flat = np.concatenate([part.numpy() for part in parts]).astype("<f4")
    return base64.b64encode(flat.tobytes()).decode("ascii")


def numbers(blocks: Mapping[str, BlockCapture], recorded: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The numbers in the page's text, formatted as the page shows them; R²_lin must match the record of notebook 02."""
    train = {name: Moments.total(kept.train) for name, kept in blocks.items()}
    test = {name: Moments.total(kept.test) for name, kept in blocks.items()}
    lines = {name: fit(rows) for name, rows in train.items()}
    for name, row in recorded.items():
        here = r2(lines[name][0], test[name])
        if abs(here - row["r2"]) > SAME:
            raise InputError(
                f"block {row['block']}: R²_lin is {here:.4f} by the capture and {row['r2']:.4f} in the record of "
                "notebook 02; run make figures, which makes both anew"
            )

    # the middle block, on one fold and with the mean alone
    folds, held_out = blocks["middle"].train, test["middle"]
    few, _ = fit(folds[0])
    mean = AffineMap.constant(train["middle"])
    ridges = {ridge: r2(_ridge(folds[0], ridge), held_out) for ridge in RIDGES}
    best = max(ridges, key=ridges.get)
    gained, lost = ridges[best] - ridges[0.0], r2(lines["middle"][0], held_out) - ridges[0.0]
    made_up = f"{100 * gained / lost:.0f} %" if gained > 0 else "nothing"

    # the least linear block by the line of the most linear one
    foreign = r2(lines["mostLinear"][0], test["leastLinear"])
    verdict = "so the two blocks have something in common"
    if foreign < 0:
        verdict = "which is worse than the mean output: the two blocks do not do the same"
    most_varied, least_varied = (float(test[name].syy.sum()) / test[name].n for name in ("mostLinear", "leastLinear"))

    found = {
        "r2_most": recorded["mostLinear"]["r2"],
        "r2_middle": recorded["middle"]["r2"],
        "r2_least": recorded["leastLinear"]["r2"],
        "r2_train_middle": recorded["middle"]["r2_train"],
        "one_fold_in_sample": r2(few, folds[0]),
        "one_fold_held_out": ridges[0.0],
        "ridge_best_r2": ridges[best],
        "ridge_strong_r2": ridges[RIDGES[-1]],
        "mean_in_sample": r2(mean, train["middle"]),
        "mean_held_out": r2(mean, held_out),
        "other_held_out": foreign,
    }
    return {name: shown(value) for name, value in found.items()} | {
        "most": str(recorded["mostLinear"]["block"]),
        "middle": str(recorded["middle"]["block"]),
        "least": str(recorded["leastLinear"]["block"]),
        "folds": str(len(folds)),
        "d_in": str(held_out.d_in),
        "d_out": str(held_out.d_out),
        "rank": str(lines["middle"][1].rank),
        "rows_train": f"{train['middle'].n:,}",
        "rows_test": f"{held_out.n:,}",
        "fold_rows": f"{folds[0].n:,}",
        "ridge_best": f"{best:g}",
        "ridge_verdict": f"It makes up for {made_up} of what the missing text costs.",
        "times": f"{most_varied / least_varied:.2g}",
        "other_verdict": verdict,
    }


def shown(value: float) -> str:
    """A share to three decimals, with a proper minus sign; without one if it rounds to zero."""
    text = f"{value:.3f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def _ridge(moments: Moments, ridge: float) -> AffineMap:
    """The ridge map: least squares as if every input's variance were larger by this share of itself."""
    widened = moments.copy()
    widened.sxx += ridge * torch.diag(moments.sxx.diagonal())
    return fit(widened)[0]


def script(blocks: Mapping[str, Any]) -> str:
    """The file that the page loads: the result of `pack` under the name that the page's script expects."""
    return f"window.storedBlocks = {json.dumps(blocks, separators=(',', ':'))};\n"


def filled(words: str, told: Mapping[str, str]) -> str:
    """The page's text with a number in place of every mark like `%rank%`."""
    marks = set(re.findall(r"%(\w+)%", words))
    if marks != told.keys():
        raise InputError(f"book/try.md and its numbers differ: {', '.join(sorted(marks ^ told.keys()))}")
    return re.sub(r"%(\w+)%", lambda mark: told[mark[1]], words)


def main(profile: str = "minis") -> None:
    """Write the result of `collect` to `build/<profile>/in_browser.json`, as a step of the pipeline."""
    torch.set_num_threads(1)
    on_disk.save(paths.build(profile) / "in_browser.json", collect(notebooks.start("in_browser", profile)))


if __name__ == "__main__":
    main(*sys.argv[1:])
