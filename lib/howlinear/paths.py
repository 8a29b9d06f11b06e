"""Where things are: one place that knows the layout of the project."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from howlinear.errors import HowlinearError, SourceError

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
NOTEBOOKS = ROOT / "notebooks"
PROFILES = ROOT / "profiles"
BUILD = ROOT / "build"


def results(profile: str) -> Path:
    """Folder of the JSON numbers of a profile."""
    return ROOT / "results" / profile


def figures(profile: str) -> Path:
    """Folder of the figures of a profile."""
    return ROOT / "figures" / profile


def build(profile: str) -> Path:
    """Folder of what can be made again: captures and executed notebooks."""
    return BUILD / profile


@contextmanager
def written_aside(target: Path | str) -> Iterator[Path]:
    """Write to a neighbour of `target` and rename it when done, so no half file is ever seen.

    Args:
        target: the file to create or replace; its folder is made if absent.

    Yields:
        The path to write to, with `target`'s suffix.

    Raises:
        SourceError: the folder or the file cannot be written.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=target.suffix, prefix=f".{target.stem}.", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise SourceError(f"cannot write {target}: {error.strerror}; choose a folder you may write to") from error
    aside = Path(name)
    try:
        yield aside
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o666 & ~mask)
        aside.replace(target)
    except HowlinearError:
        raise
    except OSError as error:
        raise SourceError(f"cannot write {target}: {error.strerror or error}; is the disk full?") from error
    finally:
        aside.unlink(missing_ok=True)
