"""Output on terminals and in logs that cannot show every character: LANG=C, ASCII, Latin-1, cp1252.

Characters that a stream's encoding lacks are written in ASCII: our own symbols as people type them (R2 for R², -> for
→), all others, such as letters in a file name, as reversible escapes.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from functools import partial
from typing import Any

from rich.console import Console

ERRORS = "howlinear.ascii"  # name of our error handler in `codecs`

TYPED = {
    "–": "-", "—": "-", "−": "-", "‑": "-", "·": "-", "→": "->", "←": "<-", "±": "+/-", "×": "x", "≈": "~", "≤": "<=",
    "≥": ">=", "√": "sqrt", "█": "#", "∞": "inf", "‖": "|", "“": '"', "”": '"', "‘": "'", "’": "'", "½": "1/2",
    "Δ": "d", "Σ": "sum", "β": "beta", "λ": "lambda", "ρ": "rho", "σ": "sigma",
}  # fmt: skip


LOST: list[OSError] = []
"""Errors of output that found no space; a command raises them once its files are written."""


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print; if no space is left for the output, go on without it: files may lie elsewhere."""
        try:
            super().print(*objects, **options)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.on_broken_pipe()
            LOST.append(error)

    def on_broken_pipe(self) -> None:
        """Go on without a reader, as after `| head`: files are still to be written."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


plain_console = partial(_Console, markup=False, emoji=False, highlight=False)
"""A console that shows names and tokens as they are; others read `[b]` as a style and `:books:` as a picture."""


def write_ascii_for_the_rest() -> None:
    """Make standard output and standard error write characters that their encoding lacks in ASCII."""
    codecs.register_error(ERRORS, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not in a notebook, nor if a caller captures it
            stream.reconfigure(errors=ERRORS)


def to_ascii(text: str) -> str:
    """Convert a text to ASCII: symbols as people type them, other characters as escapes."""
    plain = ""
    for character in text:
        stands_for = unicodedata.decomposition(character).startswith("<") and character not in TYPED
        plain += unicodedata.normalize("NFKD", character) if stands_for else character  # as ², ₀, ᵀ and …
    typed = "".join(TYPED.get(character, character) for character in plain)
    return typed.encode("ascii", "backslashreplace").decode()


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_ascii(error.object[error.start : error.end]), error.end
