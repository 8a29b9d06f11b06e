"""The offline texts: documents from installed packages.

Three clearly different domains are read from packages that are installed anyway, at pinned versions: `docs`
(docstrings: English prose, parameter lists, examples), `code` (Python functions without those docstrings) and `cpp`
(C++ headers). The package list is fixed, so other installed packages change nothing. Named texts that must be
downloaded are in `text.library`, your own files in `text.plain`.

Each document knows its file, and all documents of a folder form one group, which is never split. Grouping by file would
not be enough: neighbouring files copy from one another, so phrases of a held-out document would occur in train
documents too. Whole packages would share less, but there are only eight of them, too few for eight folds on each side.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

PACKAGES = ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch")
MIN_CHARS = 200  # shorter pieces say little
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_SKIPPED = re.compile(r"/(tests?|testing|ATen/ops)/")  # test suites; thousands of generated headers


@dataclass(frozen=True)
class Document:
    """A piece of text that is read as a unit.

    Attributes:
        text: its content.
        file: path of the file that it was cut from, starting at its package; None if it is not part of a file.
    """

    text: str
    file: str | None = None

    @property
    def group(self) -> str:
        """Key of the group that is never split: the folder of its file, or without a file the document's own text."""
        if self.file is None:
            return self.text
        return PurePosixPath(self.file).parent.as_posix()


def seeded_hash(seed: int, text: str) -> bytes:
    """Compute a sort key that shuffles texts the same way on every machine."""
    return hashlib.sha256(f"{seed}\n{text}".encode()).digest()


def offline_documents(name: str, seed: int = 0) -> Iterator[Document]:
    """Yield the documents of an offline corpus, file by file in an order that the seed decides, reading lazily."""
    suffix, _ = OFFLINE[name]
    files = _files(tuple(Path(find_spec(package).origin).parent for package in PACKAGES), suffix)
    for name_in_package in sorted(files, key=lambda file: seeded_hash(seed, file)):
        for text in _texts_of(files[name_in_package], name):
            yield Document(text, name_in_package)


@cache  # folders are listed once per process
def _files(roots: tuple[Path, ...], suffix: str) -> dict[str, Path]:
    """Find the packages' files, by their paths from the package on, which are the same on every machine."""
    files = {}
    for root in roots:
        for path in root.rglob(f"*{suffix}"):
            name_in_package = path.relative_to(root.parent).as_posix()
            if not _SKIPPED.search(name_in_package):
                files[name_in_package] = path
    return files


@cache  # a file is parsed once per process, however often it is drawn; all of them take 100 MB
def _texts_of(path: Path, name: str) -> tuple[str, ...]:
    """Read the documents of one file of an offline corpus."""
    _, read = OFFLINE[name]
    return tuple(read(path.read_text(encoding="utf-8", errors="replace")))


def _docstrings(source: str) -> Iterator[str]:
    for node in _definitions(source):
        text = ast.get_docstring(node)
        if text and len(text) >= MIN_CHARS:
            yield text


def _functions(source: str) -> Iterator[str]:
    """Yield functions and methods without the docstrings that `docs` holds; docstrings of nested functions stay."""
    text_lines = source.rstrip("\n").count("\n") + 1
    if len(source.rstrip("\n").splitlines()) != text_lines:
        return  # form feeds and the like, with which `ast` and `splitlines` count lines differently
    docstring_lines: set[int] = set()
    functions = []
    for node in _definitions(source):
        if ast.get_docstring(node):
            docstring = node.body[0]
            docstring_lines.update(range(docstring.lineno, docstring.end_lineno + 1))
        if isinstance(node, _FUNCTION):
            functions.append(node)
    numbered = dict(enumerate(source.split("\n"), start=1))  # as `ast` counts
    for node in functions:
        numbers = range(node.lineno, node.end_lineno + 1)
        body = [numbered[number] for number in numbers if number not in docstring_lines]
        text = textwrap.dedent("\n".join(body)).strip()
        if len(text) >= MIN_CHARS:
            yield text


def _definitions(source: str) -> Iterator[ast.AST]:
    """Yield module, classes and functions, but none nested in a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes that later Pythons will refuse
        try:
            pending = [_parsed(source)]
        except SyntaxError:  # templates, and code for other Pythons
            return
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _FUNCTION):
            children = [child for child in node.body if isinstance(child, (ast.ClassDef, *_FUNCTION))]
            pending += reversed(children)  # the first is taken next, so that they come in the order of the file


def _parsed(source: str) -> ast.Module:
    """Parse a source text into its syntax tree.

    No garbage is collected meanwhile: the collector would scan the growing tree again and again, for half of the time.
    Python up to 3.11.7 has a single counter for the depth of all parsers: if something else is parsed meanwhile (a
    traceback that asyncio logs), parsing stops with a SystemError, python/cpython#106905. Nothing is wrong with the
    source then, and a second try succeeds.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


def _header_blocks(source: str) -> Iterator[str]:
    """Yield runs of whole paragraphs, each of 800 characters or a little more."""
    block = ""
    for paragraph in re.split(r"\n\s*\n", source.replace("\r\n", "\n")):
        block += paragraph + "\n\n"
        if len(block) >= 4 * MIN_CHARS:
            yield block.strip()
            block = ""


OFFLINE = {"docs": (".py", _docstrings), "code": (".py", _functions), "cpp": (".h", _header_blocks)}
