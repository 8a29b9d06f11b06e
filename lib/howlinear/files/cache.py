"""Converted and unpacked files in the user's cache: made once, atomically, by one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pooch
from filelock import FileLock

from howlinear.errors import SourceError
from howlinear.files import atomic


def made_once(below: Path | str, make: Callable[[Path], None]) -> Path:
    """Return the folder `below` in the cache, filled by `make` if it is absent; a failure leaves nothing behind."""
    target = Path(pooch.os_cache("howlinear")) / below
    if target.is_dir():
        return target
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock").acquire()  # the kernel releases the lock of a dead process
    except OSError as error:
        raise SourceError(
            f"cannot write {folder}, where unpacked and converted files are kept: {error.strerror}; make it writable"
        ) from error
    with lock:
        if not target.is_dir():  # nobody else made it while we waited for the lock
            with atomic.folder_aside(target) as new:
                make(new)
    return target
