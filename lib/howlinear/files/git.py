"""What git says about a checkout, where it can be asked."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str | None:
    """What a git command prints about the checkout at `root`; None without git or a checkout, and if it says no."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 the arguments are our own words
    except FileNotFoundError:  # no git on this machine
        return None
    return done.stdout.strip() if done.returncode == 0 else None
