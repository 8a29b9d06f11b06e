"""Which modules of the package a file can reach by its imports, so that the pipeline knows what a notebook depends on.

The Snakefile asks this for every notebook: a change in any of these modules makes the notebook run again. The source is
parsed, not imported, which takes milliseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1] / "lib"


def reached(source: Path, library: Path = LIBRARY) -> list[Path]:
    """The library's files that `source` imports, directly or through one another, imports within functions included."""
    found: set[Path] = set()
    pending = [source]
    while pending:
        for path in _imported(pending.pop(), library):
            if path not in found:
                found.add(path)
                pending.append(path)
    return sorted(found - {source})


@cache
def _imported(source: Path, library: Path) -> list[Path]:
    """The library's files that one file imports."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return [path for name in (*_names(tree), *_lazy_names(tree, library)) for path in _files(name, library)]


def _names(tree: ast.Module) -> Iterator[str]:
    """Dotted names of the modules that a file imports, and of imported names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # `from package import name`: the name may be a module of its own
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _lazy_names(tree: ast.Module, library: Path) -> Iterator[str]:
    """Modules behind the attributes that a file uses of a package whose stub `__init__.pyi` says where each name lives.

    `import howlinear as hl` imports next to nothing; `hl.ceiling` is what imports `howlinear.core.ceilings`.
    """
    packages = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            package = packages[node.value.id]
            stub = library / package / "__init__.pyi"
            if stub.is_file():
                yield from _homes(stub, package, node.attr)


def _homes(stub: Path, package: str, name: str) -> Iterator[str]:
    """The module, by its dotted name, from which a package's stub imports a name."""
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            yield f"{package}.{node.module or name}"


def _files(name: str, library: Path) -> Iterator[Path]:
    """The files that importing a dotted name runs: the packages around it, and the module itself."""
    place = library
    for part in name.split("."):
        place /= part
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path
