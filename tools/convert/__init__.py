"""Results on record, from JSON of a notebook's own shape to tidy tables: one module a notebook, run once.

`python -m tools.convert 05_corpora` writes `results/<run profile>/05_corpora/` for every run profile that has
`05_corpora.json`, and removes that file and `runs/05_corpora.json`. What was known of the run stays word for word in
the new `run.json`, hashes included; under `conversion` stands what the numbers were read from.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from howlinear.files import paths, tables
from howlinear.notebook import settings

ABOUT = ("rows", "seq_len", "seed")


def convert(stem: str, folder: Path) -> None:
    """Convert a notebook's results on one run profile.

    Args:
        stem: of the notebook; `tools/convert/<its topic>.py` has `to_tables(results)`, which gives its tables by name,
            and may have `to_settings(results)`, the notebook's own settings, by default `results["settings"]`.
        folder: `results/<run profile>`.
    """
    old = folder / f"{stem}.json"
    if not old.is_file():
        return
    results = json.loads(old.read_text(encoding="utf-8"))
    module = importlib.import_module(f"tools.convert.{stem[3:]}")
    own = module.to_settings(results) if hasattr(module, "to_settings") else results.get("settings", {})
    recorded = {name: tables.as_recorded(table, stem, name) for name, table in module.to_tables(results).items()}
    tables.write(folder / stem, recorded, _profile(folder.name) | own)
    origin = folder / "runs" / f"{stem}.json"
    run = json.loads(origin.read_text(encoding="utf-8")) if origin.is_file() else {}
    conversion = {
        "by": f"tools/convert/{stem[3:]}.py",
        "from": old.relative_to(paths.ROOT).as_posix(),
        "sha256": hashlib.sha256(old.read_bytes()).hexdigest(),
    }
    tables.write_run(folder / stem, tables.read_run(folder / stem) | run | {"conversion": conversion})
    old.unlink()
    origin.unlink(missing_ok=True)


def _profile(name: str) -> Mapping[str, Any]:
    """What a run says of its profile."""
    profile = settings.read(name)
    sizes = {key: getattr(profile, key) for key in ABOUT}
    return {"profile": name, "models": list(profile.models_by_name), "corpora": list(profile.corpora_by_name), **sizes}


def main(*stems: str) -> None:
    """Convert notebooks on every run profile that has them on record."""
    for stem in stems:
        for folder in sorted(path for path in (paths.ROOT / "results").iterdir() if path.is_dir()):
            convert(stem, folder)
