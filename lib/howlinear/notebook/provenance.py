"""Provenance of a notebook's numbers and figures: commit, machine, versions, and hashes of all inputs and outputs.

It is kept next to the tables, in `results/<profile>/<stem>/run.json`, and rewritten only if a result or figure has
other bytes than before: a run that changes no number leaves the project as it was. The record of the latest run,
whether or not it changed anything, is `build/<profile>/runs/<stem>.json`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name
from safetensors import SafetensorError, safe_open

from howlinear.errors import SourceError
from howlinear.files import atomic, numbers, paths, tables
from howlinear.files.git import git
from howlinear.models.packaged import PACKAGED
from howlinear.models.seals import digest
from howlinear.models.sources import with_revision
from howlinear.notebook import settings

PACKAGES = ("howlinear", "numpy", "pandas", "scipy", "scikit-learn", "torch", "transformers", "datasets", "matplotlib")
# Files that runs write: changes to them do not make a checkout modified
MADE = ("results", "figures", "paper/main.pdf")


def record(stem: str, profile: str, began: datetime, ended: datetime) -> Path:
    """Record the run that has just made a notebook's results and figures; times must have a time zone.

    The returned path is the record of the run that made the current bytes, this run or an earlier one; if the notebook
    makes neither results nor figures, it is the record of this run under `build/`.
    """
    run = {
        "notebook": stem,
        "profile": profile,
        **commit(),
        "began": began.astimezone(UTC).isoformat(timespec="seconds"),
        "seconds": round((ended - began).total_seconds(), 1),
        "machine": machine(),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "inputs": inputs(stem, profile),
        "outputs": hashes(outputs(stem, profile)),
    }
    latest = paths.build(profile) / "runs" / f"{stem}.json"
    atomic.write_text(latest, numbers.to_json(run))
    if not run["outputs"]:
        return latest
    kept = path_of(stem, profile)
    recorded = numbers.load(kept) if kept.is_file() else {}
    if recorded.get("outputs") != run["outputs"]:
        settings_of_run = {"settings": recorded["settings"]} if "settings" in recorded else {}
        atomic.write_text(kept, numbers.to_json(settings_of_run | run))
    return kept


def path_of(stem: str, profile: str) -> Path:
    """Return the path of the record of the run that made a notebook's results, next to its tables."""
    return paths.results(profile) / stem / tables.RUN


def commit() -> dict[str, Any]:
    """Return the checked-out commit and whether tracked files differ from it; both are None outside a git checkout."""
    head = git(paths.ROOT, "rev-parse", "HEAD")
    if head is None:
        return {"commit": None, "modified": None}
    made = [f":!{path}" for path in MADE]
    changes = git(paths.ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", *made)
    return {"commit": head, "modified": bool(changes)}


def machine() -> dict[str, Any]:
    """Describe processor, cores, the threads a computation may take, the instructions torch's kernels use, and system.

    The processor has a name and numbers, since a virtual machine may give several generations the same name. Only Linux
    reports the numbers; elsewhere they are None.
    """
    import torch  # imported late: a run starts without it

    cpuinfo = Path("/proc/cpuinfo")  # Linux's
    first, _, _ = (cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else "").partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    described = {name.strip(): value.strip() for name, _, value in lines}
    return {
        "processor": described.get("model name") or platform.processor() or platform.machine(),
        "family": described.get("cpu family"),
        "model": described.get("model"),
        "cores": os.cpu_count(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def inputs(stem: str, profile: str) -> dict[str, str]:
    """Hash what a notebook reads, by path, package or name; a model on the Hub has its commit instead."""
    run_profile = settings.read(profile)
    files = [paths.NOTEBOOKS / f"{stem}.py", *run_profile.files]
    if "claims" in stem:
        files += [paths.ROOT / "paper" / name for name in ("claims.toml", "claims_ours.toml")]
    hashed = hashes(files)
    for source in run_profile.models:
        if source in PACKAGED:
            packaged = PACKAGED[source]  # whose files are pinned by their hashes
            whole = Path(packaged.weights).name
            hashed |= {f"{packaged.requirement}: {below or whole}": sha256 for below, sha256 in packaged.sha256.items()}
            continue
        weights = sorted(Path(source).glob("*.safetensors"))
        hashed |= hashes(weights) or {source: _hub_commit(source)}
    for capture in sorted((paths.build(profile) / "captures").glob("*/*.safetensors")):
        hashed[f"rows of {capture.stem} for {capture.parent.name}"] = _rows_hash(capture)
    return hashed


def outputs(stem: str, profile: str) -> list[Path]:
    """List the existing tables and figures of a notebook."""
    folder = paths.results(profile)
    figures = sorted(paths.figures(profile).glob(f"{stem}_*.*"))
    return [*sorted((folder / stem).glob("*.csv")), *figures]


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """Compute SHA-256 of those files that exist, by their paths from the project's root."""
    return {_name(file): digest(file) for file in files if file.is_file()}


def _name(file: Path) -> str:
    """Return a path from the project's root, or else the file's name alone: no record carries a machine's path."""
    return file.relative_to(paths.ROOT).as_posix() if file.is_relative_to(paths.ROOT) else file.name


def _hub_commit(source: str) -> str:
    """Return the commit of a Hub model in the cache."""
    name, revision = with_revision(source)
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    if revision is not None and (folder / "snapshots" / revision).is_dir():
        return revision
    ref = folder / "refs" / (revision or "main")
    return ref.read_text(encoding="utf-8").strip() if ref.is_file() else "not in the cache"


def _rows_hash(capture: Path) -> str:
    try:
        with safe_open(capture, "np") as stored:
            return json.loads(stored.metadata()["about"])["sha256"]["rows"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"cannot read what {capture} is about: {error}; delete it and run make figures") from error
