"""Where things are: one place that knows the layout of the project."""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from howlinear.errors import HowlinearError, InputError, SourceError

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
NOTEBOOKS = ROOT / "notebooks"
PROFILES = ROOT / "profiles"
BUILD = ROOT / "build"


def results(profile: str) -> Path:
    """Folder of the JSON numbers of a profile."""
    return inside(ROOT / "results", profile)


def figures(profile: str) -> Path:
    """Folder of the figures of a profile."""
    return inside(ROOT / "figures", profile)


def build(profile: str) -> Path:
    """Folder of what can be made again: captures and executed notebooks."""
    return inside(BUILD, profile)


def inside(folder: Path, name: str) -> Path:
    """What `name` means below `folder`.

    Raises:
        InputError: it leads out of the folder, or is the folder itself.
    """
    path = Path(os.path.normpath(folder / name))
    if Path(os.path.normpath(folder)) not in path.parents or "\0" in name:
        raise InputError(f"{name!r} leads out of {folder}: give a name, not a path")
    return path


@contextmanager
def written_aside(target: Path | str) -> Iterator[Path]:
    """Write to a neighbour of `target` and rename it when done, so no half file is ever seen.

    What writers that were killed have left beside `target` is removed.

    Args:
        target: the file to create or replace; its folder is made if absent.

    Yields:
        The path to write to, with `target`'s suffix.

    Raises:
        SourceError: the folder or the file cannot be written.
    """
    target = Path(target)
    try:
        aside, lock = _neighbour(target)
    except OSError as error:
        raise SourceError(f"cannot write {target}: {error.strerror}; choose a folder you may write to") from error
    try:
        yield aside
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o666 & ~mask)
        aside.replace(target)
    except HowlinearError:
        raise
    except (OSError, SafetensorError) as error:
        raise unwritten(target, error) from error
    finally:
        aside.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def folder_aside(target: Path) -> Iterator[Path]:
    """Write a folder whole or not at all: a neighbour first, which then takes `target`'s place.

    Args:
        target: the folder to create or replace.

    Yields:
        An empty folder to write to.

    Raises:
        SourceError: it cannot be written; what was there is still there.
    """
    try:
        work, lock = _neighbour(target, folder=True)
    except OSError as error:
        raise SourceError(f"cannot write {target}: {error.strerror}; choose a folder you may write to") from error
    new, old = work / "new", work / "old"
    try:
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
    except HowlinearError:
        raise
    except (OSError, SafetensorError) as error:
        raise unwritten(target, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def unwritten(target: Path, error: Exception) -> SourceError:
    """What to say when writing `target` failed."""
    return SourceError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}; is the disk full?")


def _neighbour(target: Path, folder: bool = False) -> tuple[Path, int]:
    """A new file or folder beside `target`, locked while its writer lives; without those that the dead have left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    stem, suffix = (target.name, "") if folder else (target.stem, target.suffix)
    for left in target.parent.glob(f".{glob.escape(stem)}.aside-{'?' * 8}{glob.escape(suffix)}"):
        with suppress(OSError):  # held by a writer at work, or gone
            os.close(_locked(left, fcntl.LOCK_NB))
            shutil.rmtree(left) if folder else left.unlink()
    make = tempfile.mkdtemp if folder else tempfile.mkstemp
    while True:
        made = make(suffix=suffix, prefix=f".{stem}.aside-", dir=target.parent)
        if not folder:
            os.close(made[0])
        aside = Path(made if folder else made[1])
        with suppress(FileNotFoundError):  # taken for a leftover before it was locked
            lock = _locked(aside)
            if os.fstat(lock).st_nlink:
                return aside, lock
            os.close(lock)


def _locked(path: Path, flags: int = 0) -> int:
    """A handle on `path` that no other process has locked; the lock goes with the process, however that ends."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        os.close(handle)
        raise
    return handle
