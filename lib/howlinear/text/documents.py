"""Where documents come from: installed packages, public data sets, your own file.

Offline there are three clearly different domains, read from packages that are installed anyway, at pinned
versions: `docs` (docstrings: English prose, parameter lists, examples), `code` (Python functions without those
docstrings) and `cpp` (C++ headers). The package list is fixed, so what else is installed changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from howlinear.errors import InputError, SourceError
from howlinear.models.sources import hub

PACKAGES = ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch")
MIN_CHARS = 200  # shorter pieces say little
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_SKIPPED = re.compile(r"/(tests?|testing|ATen/ops)/")  # test suites; thousands of generated headers


def seeded_hash(seed: int, text: str) -> bytes:
    """A sort key that shuffles texts the same way on every machine."""
    return hashlib.sha256(f"{seed}\n{text}".encode()).digest()


def offline_documents(name: str, seed: int = 0) -> Iterator[str]:
    """Documents of an offline corpus, file by file in an order that the seed decides."""
    suffix, read = OFFLINE[name]
    files: dict[str, Path] = {}  # by their names from the package on, which are the same on every machine
    for package in PACKAGES:
        root = Path(find_spec(package).origin).parent
        for path in root.rglob(f"*{suffix}"):
            name_in_package = path.relative_to(root.parent).as_posix()
            if not _SKIPPED.search(name_in_package):
                files[name_in_package] = path
    for name_in_package in sorted(files, key=lambda file: seeded_hash(seed, file)):
        yield from read(files[name_in_package].read_text(encoding="utf-8", errors="replace"))


def _docstrings(source: str) -> Iterator[str]:
    for node in _definitions(source):
        text = ast.get_docstring(node)
        if text and len(text) >= MIN_CHARS:
            yield text


def _functions(source: str) -> Iterator[str]:
    """Functions and methods without the docstrings that `docs` holds; ones inside a function stay with it."""
    text_lines = source.rstrip("\n").count("\n") + 1
    if len(source.rstrip("\n").splitlines()) != text_lines:
        return  # form feeds and the like, by which `ast` and Python count lines apart
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
    """Module, classes and functions, none from inside a function."""
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
            pending += reversed(children)  # the first is taken next, so that they come as they stand in the file


def _parsed(source: str) -> ast.Module:
    """The syntax tree of a source text.

    Python up to 3.11.7 counts the depth of its parser once for all: if garbage is collected meanwhile, and that parses
    something too (a traceback that asyncio logs), it stops with a SystemError, python/cpython#106905. Nothing is wrong
    with the source then, and the second try finds no garbage.
    """
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)


def _header_blocks(source: str) -> Iterator[str]:
    """Runs of whole paragraphs of 800 characters or a little more."""
    block = ""
    for paragraph in re.split(r"\n\s*\n", source.replace("\r\n", "\n")):
        block += paragraph + "\n\n"
        if len(block) >= 4 * MIN_CHARS:
            yield block.strip()
            block = ""


OFFLINE = {"docs": (".py", _docstrings), "code": (".py", _functions), "cpp": (".h", _header_blocks)}

# Data sets as files, none of which needs a script: repository, configuration, split, column
HUB = {
    "wikitext": ("Salesforce/wikitext", "wikitext-2-raw-v1", "train", "text"),
    "ag_news": ("fancyzhx/ag_news", None, "train", "text"),
    "codeparrot": ("codeparrot/codeparrot-clean-valid", None, "train", "content"),
}


def hub_documents(name: str) -> list[str]:
    """Documents of a public data set, from the Hub or its local cache.

    Raises:
        SourceError: neither the Hub nor a cached copy could be read.
    """
    from datasets import load_dataset  # slow to import, and needless for the offline corpora

    repository, configuration, split, column = HUB[name]
    try:
        with hub():
            texts = list(load_dataset(repository, configuration, split=split)[column])
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(
            f"cannot load {name} ({repository}) from the Hub or its cache: {reason}; "
            f"without a network use {', '.join(OFFLINE)} or a .txt file"
        ) from error
    if name == "wikitext":
        texts = _articles(texts)
    return [text for text in texts if text.strip()]


def _articles(lines: Iterable[str]) -> list[str]:
    """WikiText comes line by line; an article begins at ` = Title = `."""
    articles: list[list[str]] = []
    for line in lines:
        if not articles or re.fullmatch(r"\s*= [^=](.*[^=])? =\s*", line):
            articles.append([])
        articles[-1].append(line)
    return ["".join(article).strip() for article in articles]


def file_documents(path: Path) -> list[str]:
    """Documents of a UTF-8 text file, separated by blank lines.

    Raises:
        SourceError: the file cannot be read, or is not text.
        InputError: it is empty.
    """
    if os.path.exists(path) and not path.is_file():
        raise SourceError(f"cannot read corpus file {path}: it is no regular file; give the path of a .txt file")
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SourceError(f"cannot read corpus file {path}: {error.strerror}; give the path of a .txt file") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from error
    if "\0" in text:
        raise SourceError(f"{path} holds NUL bytes: it looks binary; give a UTF-8 text file")
    pieces = [piece.strip() for piece in re.split(r"\n\s*\n", text)]
    documents = [piece for piece in pieces if piece]
    if not documents:
        raise InputError(f"{path} is empty: a corpus file holds text, with blank lines between documents")
    return documents
