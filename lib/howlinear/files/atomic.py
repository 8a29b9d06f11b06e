"""Atomic writes of files and folders: first under a temporary name, then renamed.

A writer holds a lock on its temporary file or folder. The kernel releases the lock when the writer ends, however that
happens, so the next writer can tell the leftovers of dead processes and removes them. The lock is on the file or folder
itself, since a `filelock.FileLock` would need a file of its own and leave it behind.
"""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor
from safetensors import SafetensorError

from howlinear.errors import HowlinearError, SourceError


@contextmanager
def written_aside(target: Path | str) -> Iterator[Path]:
    """Yield a temporary file next to `target` and rename it when done, so that no half-written file is ever seen.

    The temporary file has the suffix of `target`, whose folder is created if absent; leftovers of killed writers next
    to it are removed. A failed write raises `SourceError`.
    """
    target = Path(target)
    if os.path.isdir(target):  # False for a name that no file can have
        raise SourceError(f"cannot write {target}: it is a folder; name a file")
    with _neighbour(target, is_folder=False) as aside:
        yield aside
        mask = os.umask(0)  # it can only be read by setting it
        os.umask(mask)
        aside.chmod(0o666 & ~mask)
        aside.replace(target)


def check_writable(target: Path) -> None:
    """Refuse a file that cannot be written; only trying shows whether it can."""
    with _neighbour(target, is_folder=False):
        pass


def write_text(target: Path | str, text: str) -> None:
    """Write a text in UTF-8, atomically as in `written_aside`."""
    with written_aside(target) as aside:
        aside.write_text(text, encoding="utf-8")


@contextmanager
def folder_aside(target: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` when done; if that fails, the previous content stays."""
    with _neighbour(target, is_folder=True) as work:
        new = work / "new"
        old = work / "old"
        new.mkdir()
        yield new
        try:
            if target.exists():
                target.rename(old)
            new.rename(target)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            raise


def unwritten(target: Path, error: Exception) -> SourceError:
    """Build the error for a failed write of `target`."""
    return SourceError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}; is the disk full?")


@contextmanager
def _neighbour(target: Path, is_folder: bool) -> Iterator[Path]:
    """Yield a new file or folder next to `target`, locked while it is written and removed afterwards."""
    stem, suffix = (target.name, "") if is_folder else (target.stem, target.suffix)
    prefix = f".{stem}.aside-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent, prefix, suffix)
        aside, lock = _new_and_locked(target.parent, prefix, suffix, is_folder)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"cannot write {target}: {reason}; choose a folder you may write to") from error
    try:
        yield aside
    except HowlinearError:
        raise
    except (OSError, SafetensorError) as error:
        raise unwritten(target, error) from error
    finally:
        _remove(aside)
        os.close(lock)


def _remove_leftovers(folder: Path, prefix: str, suffix: str) -> None:
    """Remove the leftovers of killed writers; files that a running writer has locked stay."""
    for leftover in folder.glob(f"{glob.escape(prefix)}{'?' * 8}{glob.escape(suffix)}"):
        with suppress(OSError):  # gone meanwhile, or not ours to remove
            lock = os.open(leftover, os.O_RDONLY)
            try:
                if lock_descriptor(lock, blocking=False):
                    _remove(leftover)
            finally:
                os.close(lock)


def _new_and_locked(folder: Path, prefix: str, suffix: str, is_folder: bool) -> tuple[Path, int]:
    """Create a file or folder with a unique name; return it and the handle that holds its lock."""
    while True:
        if is_folder:
            path = Path(tempfile.mkdtemp(suffix, prefix, folder))
        else:
            handle, name = tempfile.mkstemp(suffix, prefix, folder)
            os.close(handle)
            path = Path(name)
        with suppress(FileNotFoundError):  # another writer took it for a leftover before it was locked: try again
            lock = os.open(path, os.O_RDONLY)
            lock_descriptor(lock)
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
