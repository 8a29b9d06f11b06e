"""The report, `paper/main.typ` to `paper/main.pdf`, and a course's slides: offline, and the same bytes on every run.

Typst reads results/, figures/ and paper/ by itself and stops at a missing key. This module keeps the output independent
of the machine: the fonts are Typst's own and the one that matplotlib ships for the figures, the root is the project,
and no date is written. `python -m tools.report` is what `make paper` runs.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import typst

from howlinear.errors import SourceError
from howlinear.files import atomic, paths
from howlinear.notebook.prose import TIE

MAIN = Path("paper") / "main.typ"
SLIDES = Path("paper") / "slides.typ"


def compiler(root: Path | str = paths.ROOT, source: Path = MAIN, notes: bool = False) -> typst.Compiler:
    """A Typst compiler for a source of the project, or of a folder with the same layout, without system fonts.

    With `notes` it typesets the speaker's notes as a handout in place of the slides.
    """
    path = Path(root) / source
    if not path.is_file():
        raise SourceError(f"no report at {path}: give the project's root, or a copy of it")
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    tables = sorted(f"{table.parent.name}/{table.stem}" for table in Path(root).glob("results/public/*/*.csv"))
    inputs = {"recorded": ",".join(tables), "tie": str(TIE)} | ({"notes": "yes"} if notes else {})
    return typst.Compiler(path, root=root, font_paths=[fonts], ignore_system_fonts=True, sys_inputs=inputs)


def build(root: Path | str = paths.ROOT, source: Path = MAIN, notes: bool = False) -> bytes:
    """The report, or the slides, as PDF; a warning from Typst, such as a missing font, is also an error."""
    try:
        pdf, warnings = compiler(root, source, notes).compile_with_warnings(format="pdf")
    except typst.TypstError as error:
        raise SourceError(
            f"cannot build {source}: {error.diagnostic.strip()}\nrun make figures, then try again"
        ) from error
    if warnings:
        raise SourceError(
            f"{source}: Typst warns: {'; '.join(warning.message for warning in warnings)}; mend the source"
        )
    return pdf


def write_slides(folder: Path) -> None:
    """Write a course's slides and the speaker's notes as `slides.pdf` and `notes.pdf`."""
    for name, notes in (("slides", False), ("notes", True)):
        pdf = build(source=SLIDES, notes=notes)
        with atomic.written_aside(folder / f"{name}.pdf") as aside:
            aside.write_bytes(pdf)


if __name__ == "__main__":
    with atomic.written_aside(paths.ROOT / MAIN.with_suffix(".pdf")) as aside:
        aside.write_bytes(build())
