"""Files and folders that are written whole or not at all: aside first, then renamed.

A writer holds a lock on what it writes aside. The kernel drops the lock when the writer ends, however that happens, so
the next writer knows which leftovers belong to the dead and removes them. The lock is on the file or folder itself:
a `filelock.FileLock` would need a file of its own, and leave it behind.
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
    """Write to a neighbour of `target` and rename it when done, so no half file is ever seen.

    The neighbour has the suffix of `target`, whose folder is made if absent; what writers that were killed have left
    beside it is removed. What cannot be written is a `SourceError`.
    """
    target = Path(target)
    if os.path.isdir(target):  # which is False of a name that no file can have
        raise SourceError(f"cannot write {target}: it is a folder; name a file")
    with _neighbour(target, is_folder=False) as aside:
        yield aside
        aside.chmod(0o666 & ~_umask())
        aside.replace(target)


def write_text(target: Path | str, text: str) -> None:
    """Write a text, in UTF-8, as `written_aside` writes."""
    with written_aside(target) as aside:
        aside.write_text(text, encoding="utf-8")


@contextmanager
def folder_aside(target: Path) -> Iterator[Path]:
    """Write a whole folder, empty when given, as `written_aside` writes a file; if that fails, what was there stays."""
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
    """What to say when writing `target` failed."""
    return SourceError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}; is the disk full?")


@contextmanager
def _neighbour(target: Path, is_folder: bool) -> Iterator[Path]:
    """A new file or folder beside `target`, locked while it is written, and gone afterwards."""
    stem, suffix = (target.name, "") if is_folder else (target.stem, target.suffix)
    prefix = f".{stem}.aside-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent, prefix, suffix)
        aside, lock = _new_and_locked(target.parent, prefix, suffix, is_folder)
    except (OSError, ValueError) as error:  # the latter of a name that no file can have
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
    """Remove what writers that were killed have left; what one at work holds stays."""
    for leftover in folder.glob(f"{glob.escape(prefix)}{'?' * 8}{glob.escape(suffix)}"):
        with suppress(OSError):  # gone meanwhile, or not ours to remove
            lock = os.open(leftover, os.O_RDONLY)
            try:
                if lock_descriptor(lock, blocking=False):
                    _remove(leftover)
            finally:
                os.close(lock)


def _new_and_locked(folder: Path, prefix: str, suffix: str, is_folder: bool) -> tuple[Path, int]:
    """A new file or folder of a name that no other has, and the handle that holds its lock."""
    while True:
        if is_folder:
            path = Path(tempfile.mkdtemp(suffix, prefix, folder))
        else:
            handle, name = tempfile.mkstemp(suffix, prefix, folder)
            os.close(handle)
            path = Path(name)
        with suppress(FileNotFoundError):  # another writer took it for a leftover before it was locked: once more
            lock = os.open(path, os.O_RDONLY)
            lock_descriptor(lock)
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _remove(path: Path) -> None:
    """Remove a file or a folder that may be gone already."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    """The permissions that new files are not to have; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
