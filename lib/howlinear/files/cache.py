"""What was converted or unpacked, in the user's cache: made once, whole or not at all, by one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pooch
from filelock import FileLock

from howlinear.errors import SourceError
from howlinear.files import atomic


def made_once(below: Path | str, make: Callable[[Path], None]) -> Path:
    """The folder `below` in the cache, filled by `make` if it is not there yet; what fails leaves nothing behind."""
    target = Path(pooch.os_cache("howlinear")) / below
    if not target.is_dir():
        with _locked(target.parent):
            if not target.is_dir():  # nobody else made it while we waited for the lock
                with atomic.folder_aside(target) as new:
                    make(new)
    return target


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """While it lasts, no other process is here with the same folder; the kernel drops a dead one's lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        lock.acquire()
    except OSError as error:
        raise SourceError(
            f"cannot write {folder}, where unpacked and converted files are kept: {error.strerror}; make it writable"
        ) from error
    try:
        yield
    finally:
        lock.release()
