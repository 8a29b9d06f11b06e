"""The SHA-256 of a folder's files, kept next to them: safetensors alone would not notice a flipped bit."""

from __future__ import annotations

import hashlib
from pathlib import Path

from howlinear.errors import HowlinearError, SourceError
from howlinear.files import atomic

SEAL = "SHA256SUMS"


def digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, pattern: str = "*.safetensors") -> None:
    """Write the SHA-256 of a folder's files to `SHA256SUMS`, as `sha256sum` does.

    From then on the files are checked whenever the folder is loaded. By default only the weights are sealed, so that
    the model card can be edited.
    """
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.glob(pattern))]
    atomic.write_text(folder / SEAL, "".join(lines))


COPY_AGAIN = f"copy it again, or remove {SEAL} if you changed the weights yourself"


def check_seal(folder: Path, remedy: str = COPY_AGAIN) -> None:
    """Compare a folder's files with its seal, if it has one; if they differ, the error ends with the remedy."""
    if not (folder / SEAL).is_file():
        return
    try:
        for line in (folder / SEAL).read_text("utf-8").splitlines():
            sealed, name = line.split(maxsplit=1)
            if digest(folder / name) != sealed:
                raise SourceError(f"{folder / name} is damaged: its content is not what {SEAL} says; {remedy}")
    except HowlinearError:
        raise
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot check {folder} against its {SEAL}: {error}; {remedy}") from error
