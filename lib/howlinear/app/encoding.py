"""Output on terminals and in logs that cannot show every character: LANG=C, ASCII, Latin-1, cp1252.

What a stream's encoding lacks is written in ASCII: marks of our own as people type them (R2 for R², -> for →), anything
else, such as letters in the name of a file, as an escape that can be turned back.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

ERRORS = "howlinear.ascii"  # the name of our handler among those of `codecs`

TYPED = {
    "–": "-", "—": "-", "−": "-", "‑": "-", "·": "-", "→": "->", "←": "<-", "±": "+/-", "×": "x", "≈": "~", "≤": "<=",
    "≥": ">=", "√": "sqrt", "█": "#", "∞": "inf", "‖": "|", "“": '"', "”": '"', "‘": "'", "’": "'", "½": "1/2",
    "Δ": "d", "Σ": "sum", "β": "beta", "λ": "lambda", "ρ": "rho", "σ": "sigma",
}  # fmt: skip


def write_ascii_for_the_rest() -> None:
    """Have standard output and standard error write in ASCII what their encoding lacks, and never fail for it."""
    codecs.register_error(ERRORS, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not the one of a notebook, or of a caller that collects
            stream.reconfigure(errors=ERRORS)


def to_ascii(text: str) -> str:
    """A text in ASCII; marks as they are typed, other letters as escapes."""
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
