"""Notebook 10: from a nested record a model to tables of spectra, neurons, kernels, products and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from howlinear.notebook import settings

SPREADS = ("spread", "spread_lower", "spread_upper")
KERNELS = ("degree 2", "degree 3", "Gaussian")


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 10, models in the order of the run profile."""
    models = {name: results["models"][name] for name in settings.read(results["profile"]).models_by_name}
    checks = [
        ({"model": name, "block": int(block)}, model["checks"][block])
        for name, model in models.items()
        for block in sorted(model["checks"], key=int)
    ]
    streamed = {
        (name, block): rows for name, model in models.items() for block, rows in model.get("streamed", {}).items()
    }
    planted = enumerate(results["planted"], start=1)
    return {
        "teachers": pd.DataFrame(
            {"teacher": teacher, "degree": degree, "r2": r2}
            for teacher, of_teacher in planted
            for degree, r2 in enumerate(of_teacher, start=1)
        ),
        "spectra": pd.DataFrame(_spectra(models)),
        "blocks": _blocks(models),
        "fresh": pd.DataFrame(
            {"model": name, "degree": degree, "r2": r2}
            for name, model in models.items()
            for degree, r2 in enumerate(model["fresh"], start=1)
        ),
        "neurons": pd.DataFrame(row for keys, check in checks for row in _neurons(keys, check["loudest"])),
        "kernels": pd.DataFrame(
            keys | {"kernel": kernel} | _point(point)
            for keys, check in checks
            for kernel in KERNELS
            for point in check.get(kernel, ())
        ),
        "directions": pd.DataFrame(
            row for keys, check in checks if "products" in check for row in _directions(keys, check["products"])
        ),
        "streamed": pd.DataFrame(
            [
                {"model": name, "block": int(block)} | _point(row)
                for (name, block), rows in streamed.items()
                for row in rows
            ],
            columns=["model", "block", "rows", "r2", "r2_low", "r2_high"],
        ),
        "probes": pd.DataFrame(
            keys | {"rank": int(rank), "share": check["probe"][rank]}
            for keys, check in checks
            for rank in sorted(check["probe"], key=int)
        ),
    }


def _spectra(models: Mapping[str, Any]) -> Iterator[dict]:
    for name, model in models.items():
        for block in model["blocks"]:
            curves = zip(block["r2"], block["low"], block["high"], block["hermite"], strict=True)
            for degree, (r2, low, high, hermite) in enumerate(curves, start=1):
                row = {"model": name, "block": block["block"], "degree": degree}
                yield row | {"r2": r2, "r2_low": low, "r2_high": high, "hermite": hermite}


def _blocks(models: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for name, model in models.items():
        for block in model["blocks"]:
            check = model["checks"].get(str(block["block"]), {"reach": None})
            row = {"model": name, "block": block["block"], **{spread: block[spread] for spread in SPREADS}}
            rows.append(row | {"reach": check["reach"]})
    return pd.DataFrame(rows).astype({"reach": "Int64"})


def _neurons(keys: Mapping[str, Any], loudest: Mapping[str, Any]) -> Iterator[dict]:
    """Sizes are of the line and the neurons together; the first is the line's."""
    (line, *_), (first, *_, last) = loudest["sizes"], loudest["r2"]
    for size, r2 in zip(loudest["sizes"], loudest["r2"], strict=True):
        yield {**keys, "neurons": size - line, "r2": r2, "share": (r2 - first) / (last - first)}


def _directions(keys: Mapping[str, Any], products: Mapping[str, Any]) -> Iterator[dict]:
    """Of k directions there are k (k + 1) / 2 products, beside the line."""
    line = products["sizes"][0]
    for size, r2 in zip(products["sizes"], products["r2"], strict=True):
        count = int((2 * (size - line)) ** 0.5)  # k² ≤ k (k + 1) < (k + 1)²
        yield {**keys, "directions": count, "r2": r2}


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": point["rows"], "r2": point["r2"], "r2_low": point["low"], "r2_high": point["high"]}
