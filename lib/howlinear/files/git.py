"""Queries to git about a checkout, if git and a checkout are there."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str | None:
    """Return what a git command prints in the checkout at `root`; None without git or a checkout, or if it fails."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 the arguments are our own words
    except FileNotFoundError:  # no git on this machine
        return None
    return done.stdout.strip() if done.returncode == 0 else None
