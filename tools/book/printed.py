"""The book as one PDF: Sphinx joins its pages into a single one, and a headless Chromium prints that. No network.

Pages that need a browser are left out, and so is the reference. Parts that are folded on the site are printed open.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from howlinear.errors import InputError
from howlinear.files import paths

LEFT_OUT = ("explore.md", "try.md", "api/*", "*.txt")
SECONDS = 600
"""Longer than any print takes."""

LINK = 'The book on paper: <a class="sd-btn sd-btn-primary" href="_static/book.pdf">book.pdf</a>\n'
WITHOUT = "The book on paper is made where there is a Chromium to print it; here there was none.\n"


def chromium() -> str | None:
    """The browser that prints, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def sentence() -> str:
    """The book's sentence about its PDF."""
    return LINK if chromium() else WITHOUT


def write(source: Path, pdf: Path) -> None:
    """Print the book that `tools.book.build.prepare` has gathered; does nothing without a Chromium."""
    browser = chromium()
    if browser is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page"
        without = f"exclude_patterns={','.join(LEFT_OUT)}"
        sphinx = [sys.executable, "-m", "sphinx", "-Q", "-b", "singlehtml", "-d", f"{folder}/doctrees", "-D", without]
        _run([*sphinx, str(source), str(page)])
        index = page / "index.html"
        index.write_text(unfolded(index.read_text(encoding="utf-8")), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser"]
        flags += ["--no-pdf-header-footer", "--virtual-time-budget=60000", "--host-resolver-rules=MAP * ~NOTFOUND"]
        _run([browser, *flags, f"--print-to-pdf={pdf}", index.as_uri()])


def unfolded(page: str) -> str:
    """The HTML with its folded parts open."""
    return re.sub(r"<details(?![^>]* open\b)", "<details open", page)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=SECONDS)  # noqa: S603
    if done.returncode:
        raise InputError(f"cannot print the book: {Path(command[0]).name} says {done.stderr.strip()[-500:]}")
