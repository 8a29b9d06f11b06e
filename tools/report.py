"""The report: `paper/main.typ` to `paper/main.pdf`, offline, and the same bytes on every run.

Typst reads results/, figures/ and paper/ by itself and stops at a missing key. What is decided here is what it may not
take from the machine: fonts are Typst's own and the one that matplotlib brings for the figures, the root is the
project, and no date is written. `python -m tools.report` is `make paper`.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import typst

from howlinear.errors import SourceError
from howlinear.files import atomic, paths

MAIN = Path("paper") / "main.typ"


def compiler(root: Path | str = paths.ROOT) -> typst.Compiler:
    """Typst at the report's source, with no font of the system.

    Args:
        root: the project, or a folder laid out as it is.

    Raises:
        SourceError: no report there.
    """
    source = Path(root) / MAIN
    if not source.is_file():
        raise SourceError(f"no report at {source}: give the project's root, or a copy of it")
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    return typst.Compiler(source, root=root, font_paths=[fonts], ignore_system_fonts=True)


def build(root: Path | str = paths.ROOT) -> bytes:
    """The report as PDF.

    Args:
        root: the project, or a folder laid out as it is.

    Raises:
        SourceError: a result, figure or reference that the report reads is missing, or Typst warns (of a font that is
            not there, of a page that does not settle); says where.
    """
    try:
        pdf, warnings = compiler(root).compile_with_warnings(format="pdf")
    except typst.TypstError as error:
        raise SourceError(
            f"cannot build {MAIN}: {error.diagnostic.strip()}\nrun make figures, then try again"
        ) from error
    if warnings:
        raise SourceError(f"{MAIN}: Typst warns: {'; '.join(warning.message for warning in warnings)}; mend the source")
    return pdf


if __name__ == "__main__":
    with atomic.written_aside(paths.ROOT / MAIN.with_suffix(".pdf")) as aside:
        aside.write_bytes(build())
