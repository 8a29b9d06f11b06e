"""One run of the pipeline at a time: `python lib/howlinear/alone.py COMMAND …`, which leaves no lock behind.

Snakemake's own lock is a file, which a killed run leaves in the way of the next one. The kernel's lock on a file goes
with the process that holds it, however that ends. It is run as a file, since the package takes seconds to import.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

LOCK = Path("build/.running")


def main(command: list[str]) -> None:
    """Become `command`, holding the lock; exit with code 2 if another process holds it."""
    try:
        LOCK.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        sys.exit(f"howlinear: cannot write {LOCK}: {error.strerror}; run in a folder you may write to")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        print(f"howlinear: process {holder} is making figures in this folder: wait for it to end", file=sys.stderr)
        sys.exit(2)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    os.set_inheritable(handle, True)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
