"""Where a notebook's numbers and figures come from: commit, machine, versions, and a hash of all that went in and out.

It is kept beside the tables, in `results/<profile>/<stem>/run.json`, and written anew only where a result or a
figure came out with other bytes: a run that changes no number leaves the project as it was. What the latest run was
like, whether or not it changed anything, stands in `build/<profile>/runs/<stem>.json`.
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
from howlinear.models.packaged import PACKAGED, Packaged
from howlinear.models.seals import digest
from howlinear.models.sources import with_revision
from howlinear.notebook import settings

PACKAGES = ("howlinear", "numpy", "pandas", "scipy", "scikit-learn", "torch", "transformers", "datasets", "matplotlib")
# What runs write: no change of what they run
MADE = ("results", "figures", "paper/main.pdf")


def record(stem: str, profile: str, began: datetime, ended: datetime) -> Path:
    """Write down the run that has just made a notebook's results and figures; times have their zone.

    The path is that of the record of the run that made the bytes that are there, this run or an earlier one; where a
    notebook makes neither results nor figures, of the record of this run under `build/`.
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
    """Where the record of the run that made a notebook's results is kept: beside its tables."""
    return paths.results(profile) / stem / tables.RUN


def commit() -> dict[str, Any]:
    """The commit that is checked out, and whether tracked files differ from it; None of both outside a git checkout."""
    head = git(paths.ROOT, "rev-parse", "HEAD")
    if head is None:
        return {"commit": None, "modified": None}
    made = [f":!{path}" for path in MADE]
    changes = git(paths.ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", *made)
    return {"commit": head, "modified": bool(changes)}


def machine() -> dict[str, Any]:
    """Processor, its cores, the threads a computation may take, what torch's kernels use of it, and the system.

    The processor is told by its name and by its numbers: a virtual machine may call several generations by one name.
    Only Linux says the numbers; elsewhere they are None.
    """
    import torch  # late: a run starts without

    described = _described()
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
    """Hash (or, of a model on the Hub, the commit) of what a notebook reads, by path, package or name."""
    run_profile = settings.read(profile)
    files = [paths.NOTEBOOKS / f"{stem}.py", *run_profile.files]
    if "claims" in stem:
        files += [paths.ROOT / "paper" / name for name in ("claims.toml", "claims_ours.toml")]
    hashed = hashes(files)
    for source in run_profile.models:
        if source in PACKAGED:
            hashed |= _in_package(PACKAGED[source])
            continue
        weights = sorted(Path(source).glob("*.safetensors"))
        hashed |= hashes(weights) or {source: _hub_commit(source)}
    for capture in sorted((paths.build(profile) / "captures").glob("*/*.safetensors")):
        hashed[f"rows of {capture.stem} for {capture.parent.name}"] = _rows_hash(capture)
    return hashed


def outputs(stem: str, profile: str) -> list[Path]:
    """The result and the figures of a notebook that are there."""
    folder = paths.results(profile)
    figures = sorted(paths.figures(profile).glob(f"{stem}_*.*"))
    return [*sorted((folder / stem).glob("*.csv")), *figures]


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files that are there, by their paths from the project's root."""
    return {_name(file): digest(file) for file in files if file.is_file()}


def _name(file: Path) -> str:
    """A path from the project's root, so that no record carries a path of a machine; of others the name alone."""
    return file.relative_to(paths.ROOT).as_posix() if file.is_relative_to(paths.ROOT) else file.name


def _described() -> dict[str, str]:
    """What Linux says of the first processor, by what it calls it; nothing elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return {}
    first, _, _ = cpuinfo.read_text(encoding="utf-8").partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _in_package(model: Packaged) -> dict[str, str]:
    """SHA-256 of the files of a model in a package, as they must be, by the package's requirement and their names."""
    weights = Path(model.weights).name
    return {f"{model.requirement}: {below or weights}": sha256 for below, sha256 in model.sha256.items()}


def _hub_commit(source: str) -> str:
    """The commit of a Hub model as it lies in the cache."""
    name, revision = with_revision(source)
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    if revision is not None and (folder / "snapshots" / revision).is_dir():
        return revision
    ref = folder / "refs" / (revision or "main")
    return ref.read_text(encoding="utf-8").strip() if ref.is_file() else "not in the cache"


def _rows_hash(capture: Path) -> str:
    """SHA-256 of the token rows of a capture, as its metadata says."""
    try:
        with safe_open(capture, "np") as stored:
            return json.loads(stored.metadata()["about"])["sha256"]["rows"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"cannot read what {capture} is about: {error}; delete it and run make figures") from error
