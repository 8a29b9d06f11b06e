"""Whether the claims were settled before the results that they judge: asked of the repository's own history.

`python -m tools.frozen`. Two things are held. Every `results/<profile>/13_claims/run.json` records the SHA-256 of the
claims that judged it, and that is the file as it is. And for every run profile but the embedded models', on whose
results the thresholds were tried, the last change of `paper/claims.toml` is part of the history of the first of its
results. The second needs that history: in a shallow clone, or without git, it is said not to be known, and the first
still holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from howlinear.files import paths
from howlinear.files.git import git
from howlinear.ideas.claims.ledger import another_ledger

CLAIMS = Path("paper") / "claims.toml"
TRIED_ON = ("minis", "bench")
"""Folders of results that were there when the claims were settled."""


def faults(root: Path = paths.ROOT) -> list[str]:
    """What is wrong, a line each: results judged by another ledger, or older than the claims."""
    judged = sorted(path.parent for path in root.glob("results/*/13_claims/run.json"))
    lines = [line for folder in judged if (line := another_ledger(folder, root / CLAIMS))]
    if not has_history(root):
        return lines
    settled = git(root, "log", "-1", "--format=%H", "--", str(CLAIMS)) or ""
    for folder in sorted(path for path in (root / "results").iterdir() if path.is_dir()):
        first = _first_commit(root, folder)
        if folder.name in TRIED_ON or not first:
            continue
        if not settled or not _is_ancestor(root, settled, first):
            lines.append(
                f"{CLAIMS} was last changed in {settled[:12] or 'no commit'}, which the first results of "
                f"{folder.name} ({first[:12]}) do not know: claims are settled before a new model is run"
            )
    return lines


def has_history(root: Path) -> bool:
    """Whether this is a git repository whose history goes all the way back."""
    return git(root, "rev-parse", "--is-shallow-repository") == "false" and git(root, "rev-parse", "HEAD") is not None


def _first_commit(root: Path, folder: Path) -> str | None:
    """The commit that brought the first file of a folder; None if none is committed."""
    commits = git(root, "log", "--diff-filter=A", "--format=%H", "--", str(folder.relative_to(root)))
    return commits.splitlines()[-1] if commits else None


def _is_ancestor(root: Path, older: str, newer: str) -> bool:
    """Whether a commit is part of the history of another one, or is it."""
    return git(root, "merge-base", "--is-ancestor", older, newer) is not None


def main(root: Path = paths.ROOT) -> int:
    """Print what is wrong; 1 if anything is."""
    lines = faults(root)
    if lines:
        print("\n".join(lines))
        return 1
    known = "" if has_history(root) else "; whether they are older than the results this clone's history cannot say"
    print(f"every verdict was given by the claims as they are{known}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
