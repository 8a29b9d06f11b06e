"""Restore the recorded files where another machine's run agrees with them, so that the run leaves the checkout clean.

Processors round differently, and a search or a training amplifies this: its numbers and figures differ within their
stated tolerance. After the notebooks of a run profile have run, those whose numbers agree with the commit's get the
committed files back: results, figures and record of the run. The figures of this run stay in its executed notebooks,
below `build/`. Nothing is restored

- where a number moved beyond its tolerance, appeared or disappeared;
- if everything that differs was recorded on this machine, where any changed byte has another cause;
- where tracked files differ from the commit, since the recorded files may have been made by other code.

`make figures` ends with `python -m tools.on_record PROFILE`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from howlinear.files import numbers, paths, tables
from howlinear.files.git import git
from howlinear.notebook import provenance, settings
from howlinear.notebook.execute import stems

REPORT = "paper/main.pdf"  # made from what `minis` has on record
MACHINE = ("processor", "family", "model", "instructions", "system", "threads")  # what numbers depend on


def given_back(profile: str) -> dict[str, list[str]]:
    """Restore a run profile's recorded files for every notebook whose numbers agree with them.

    Returns:
        Notebook → its changed files that were restored; and under `REPORT` the report, if it had changed and nothing
        else differs any more.
    """
    if provenance.commit()["modified"] is not False:
        return {}
    back = {}
    changed = _changed(profile)
    # a notebook may also differ because it reads what another one, recorded elsewhere, has found here
    elsewhere = any(_made_elsewhere(stem, profile) for stem in changed)
    for stem, files in changed.items():
        if elsewhere and _agrees(stem, profile):
            _restore(files)
            back[stem] = files
    if back and profile == "minis" and not _changed(profile) and _differing([REPORT]):
        _restore([REPORT])
        back[REPORT] = [REPORT]
    return back


def _changed(profile: str) -> dict[str, list[str]]:
    """Notebook → its recorded files that now differ from the commit."""
    folders = [settings.from_root(folder(profile)) for folder in (paths.results, paths.figures)]
    changed: dict[str, list[str]] = {}
    for name in _differing(folders):
        # figures are named after their notebook and what they show, as in `00_by_hand_cloud`
        parts = Path(name).parts
        owner = next((stem for stem in stems() if any(part.startswith(stem) for part in parts)), None)
        if owner is not None:
            changed.setdefault(owner, []).append(name)
    return changed


def _differing(names: Iterable[str]) -> list[str]:
    """Committed files, among these or below these folders, that differ from the commit."""
    told = git(paths.ROOT, "diff", "--name-only", "--no-renames", "HEAD", "--", *names)
    return told.splitlines() if told else []


def _made_elsewhere(stem: str, profile: str) -> bool:
    """Whether the latest run used another machine or other versions than the recorded one."""
    on_record = _committed(provenance.path_of(stem, profile))
    latest = paths.build(profile) / "runs" / f"{stem}.json"
    if on_record is None or not latest.is_file():
        return False
    return _setting(on_record) != _setting(numbers.load(latest))


def _setting(run: dict[str, Any]) -> tuple[Any, ...]:
    return (*(run["machine"].get(key) for key in MACHINE), run["versions"])


def _agrees(stem: str, profile: str) -> bool:
    """Whether every number of a notebook is the committed one within its stated tolerance."""
    folder = paths.results(profile) / stem
    committed = _committed_tables(folder)
    return committed is not None and folder.is_dir() and not tables.differences(committed, tables.read(folder))


def _committed_tables(folder: Path) -> tables.Results | None:
    """A notebook's committed results; None if there are none."""
    listed = git(paths.ROOT, "ls-tree", "--name-only", "HEAD", f"{settings.from_root(folder)}/")
    run = _committed(folder / tables.RUN)
    if not listed or run is None:
        return None
    names = [name for name in listed.splitlines() if name.endswith(".csv")]
    texts = {Path(name).stem: git(paths.ROOT, "show", f"HEAD:{name}") for name in names}
    return tables.from_texts(folder.name, texts, run)


def _committed(path: Path) -> dict[str, Any] | None:
    """The committed content of a JSON file; None if it was not committed."""
    text = git(paths.ROOT, "show", f"HEAD:{settings.from_root(path)}")
    return None if text is None else json.loads(text)


def _restore(names: list[str]) -> None:
    """Restore the committed content of files but keep their times, so that nothing made from them is made again."""
    times = {path: path.stat().st_mtime_ns for name in names if (path := paths.ROOT / name).is_file()}
    git(paths.ROOT, "checkout", "--quiet", "HEAD", "--", *names)
    for path, time in times.items():
        os.utime(path, ns=(time, time))


def main(profile: str) -> None:
    """Restore files and print one line that names them; a run profile of the user's own has nothing on record."""
    chosen = settings.read(profile)
    back = {} if chosen.own else given_back(chosen.name)
    if back:
        count = sum(len(files) for files in back.values())
        print(f"as on record, since all numbers agree with it: {', '.join(back)} ({count} files made elsewhere)")


if __name__ == "__main__":
    main(*sys.argv[1:])
