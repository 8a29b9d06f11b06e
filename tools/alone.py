"""One run of the pipeline at a time: `python tools/alone.py COMMAND …`, which leaves no lock behind.

Snakemake's own lock is a file, which a killed run leaves behind, blocking the next one. The kernel's lock on a file is
released when the process that holds it ends, for whatever reason. `COMMAND` replaces this process, so that signals and
exit codes are its own. A `filelock.FileLock` would be released at `exec`, so `COMMAND` inherits a locked handle.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from filelock import lock_descriptor

LOCK = Path("build/.running")


def main(command: list[str]) -> None:
    """Become `command`, holding the lock; exit with code 2 if another process holds it."""
    try:
        LOCK.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        sys.exit(f"howlinear: cannot write {LOCK}: {error.strerror}; run in a folder you may write to")
    if not lock_descriptor(handle, blocking=False):
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        print(f"howlinear: process {holder} is making figures in this folder: wait for it to end", file=sys.stderr)
        sys.exit(2)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    os.set_inheritable(handle, True)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
