"""Parameters of a notebook: what its parameters cell declares, and whether a value may take a declared one's place.

papermill warns of an unknown name and takes any value; here both are errors before anything runs. A parameter has the
type of its default (`rank = 16`) or the one it is annotated with (`steps: int | None = None`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from nbformat import NotebookNode

from howlinear.errors import InputError

_NAMED = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "None": type(None)}


def parsed(value: str) -> Any:
    """A parameter from the command line: a Python literal where it is one, else the text itself."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def declared(notebook: NotebookNode) -> dict[str, tuple[Any, tuple[type, ...]]]:
    """Each parameter's default and the types it may have, read without running anything."""
    found = {}
    for cell in notebook.cells:
        for node in ast.parse(cell.source).body if "parameters" in cell.metadata.get("tags", []) else ():
            if isinstance(node, ast.AnnAssign):
                kinds = tuple(_NAMED[name.strip()] for name in ast.unparse(node.annotation).split("|"))
                found[node.target.id] = (ast.literal_eval(node.value), kinds)
            elif isinstance(node, ast.Assign):
                names, default = node.targets[0], ast.literal_eval(node.value)
                pairs = zip(names.elts, default, strict=True) if isinstance(names, ast.Tuple) else [(names, default)]
                found |= {name.id: (value, (type(value),)) for name, value in pairs}
    return found


def checked(stem: str, given: Mapping[str, Any], notebook: NotebookNode) -> dict[str, Any]:
    """The given parameters, ready for papermill.

    Args:
        stem: name of the notebook, for messages.
        given: name → value.
        notebook: with a parameters cell.

    Raises:
        InputError: the notebook has no such parameter, or the value is of another type than its default.
    """
    known = declared(notebook)
    if unknown := given.keys() - known.keys():
        raise InputError(f"notebook {stem} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    return {name: _fitting(f"notebook {stem}: {name}", value, *known[name]) for name, value in given.items()}


def _fitting(where: str, value: Any, default: Any, kinds: tuple[type, ...]) -> Any:
    if isinstance(value, tuple) and list in kinds:
        value = list(value)  # papermill would write a tuple as text
    if type(value) is int and float in kinds:
        value = float(value)
    if type(value) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "None")
        raise InputError(
            f"{where} is {value!r}, a {type(value).__name__}: give {wanted}, as its default {default!r} is"
        )
    if isinstance(value, list):
        within = {type(item) for item in default or []} or {int}
        return [_fitting(f"{where}[{i}]", item, default, tuple(within)) for i, item in enumerate(value)]
    return value
