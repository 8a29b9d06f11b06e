"""Run a notebook unattended: text → notebook → executed notebook, with parameters checked beforehand.

`howlinear notebook` and the pipeline (`python -m howlinear.notebook.execute STEM PROFILE`) both call `execute`; by
default only the pipeline records its runs (`settings.RECORD`).

papermill only warns of an unknown parameter and takes any value; here an unknown parameter and a wrong type are errors
before anything runs. A parameter has the type of its default (`rank = 16`) or one of the types in its annotation
(`steps: int or None = None`; a bar instead of *or* would hide it from papermill, which reads annotations itself).
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jupytext
import papermill
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from papermill.translators import PythonTranslator

from howlinear.errors import InputError, SourceError, ending_in_one_line
from howlinear.files import atomic, paths
from howlinear.notebook import provenance, settings

OWN = ("model", "corpus")
"""Parameters of every notebook that replace the run profile's models or texts with the user's own."""

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def execute(
    stem: str, parameters: Mapping[str, Any] | None = None, record: bool = False, progress: bool = False
) -> Path:
    """Execute a notebook and return the path of the executed copy.

    That is `notebooks/<stem>.ipynb` below `build/<profile>`, or below `build/scratch/<profile>` if the run is not
    recorded. With `record`, results and figures become the project's, `results/<profile>` and `figures/<profile>`; this
    is refused on a profile that is not the project's. Unknown parameters and wrong types are refused as well, and a
    failing cell raises `InputError`.
    """
    notebook = _read(stem)
    notebook.metadata["kernelspec"] = KERNEL
    given = checked(stem, parameters or {}, notebook)
    own = [given.get(name) for name in OWN]
    profile = settings.with_own(given.get("profile", "minis"), *own)  # a bad one is refused before anything runs
    if record and profile.own:
        raise InputError(f"profile {profile.name} is one of your own: what is on record needs a file in profiles/")
    parameters = checked(stem, profile.parameters.get(stem, {}) | dict(parameters or {}), notebook)
    if profile.own:  # the notebook runs in another folder
        parameters = {name: value for name, value in parameters.items() if name not in OWN}
        parameters["profile"] = str(profile.path)

    folder = (paths.build(profile.name) if record else paths.scratch(profile.name)) / "notebooks"
    text = folder / "source" / f"{stem}.ipynb"
    target = folder / f"{stem}.ipynb"
    failed = folder / f"{stem}.failed.ipynb"  # left by a failing cell, for inspection
    with atomic.written_aside(text) as aside:
        jupytext.write(notebook, aside)
    failed.unlink(missing_ok=True)
    began = datetime.now(UTC)
    with atomic.written_aside(target) as aside, _recording(record):
        try:
            papermill.execute_notebook(
                str(text),
                str(aside),
                parameters,
                cwd=str(paths.NOTEBOOKS),
                progress_bar=progress,
                log_output=False,
                extra_arguments=["--log-level=ERROR"],  # for the kernel, which would warn of its own transport
            )
        except PapermillExecutionError as error:
            aside.replace(failed)
            raise InputError(
                f"notebook {stem} failed in cell {error.cell_index}: {error.ename}: {error.evalue}; see {failed}"
            ) from error
    if record:
        provenance.record(stem, profile.name, began, datetime.now(UTC))
    return target


def _read(stem: str) -> NotebookNode:
    source = paths.inside(paths.NOTEBOOKS, f"{stem}.py")
    if not os.path.isfile(source):
        raise SourceError(f"no notebook {stem!r}: {', '.join(stems())}")
    return jupytext.read(source)


@contextmanager
def _recording(record: bool) -> Iterator[None]:
    """Tell kernels started meanwhile whether to record, through the environment that they inherit."""
    before = os.environ.get(settings.RECORD)
    os.environ[settings.RECORD] = str(int(record))
    try:
        yield
    finally:
        del os.environ[settings.RECORD]
        if before is not None:
            os.environ[settings.RECORD] = before


# --- list of notebooks


@dataclass(frozen=True)
class Listed:
    """Entry of a list of notebooks; the title is the question that the notebook asks, the first parameter `profile`."""

    stem: str
    title: str
    parameters: dict[str, Parameter]


def stems() -> list[str]:
    """Return the stems of all notebooks, in order."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("[0-9]*.py"))


def listed(stem: str) -> Listed:
    """Read a notebook's title and parameters without running it; an unknown stem is refused."""
    notebook = _read(stem)
    heading = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    title = heading.partition("\n")[0].lstrip("# ")
    return Listed(stem, title, declared(notebook))


# --- parameters


@dataclass(frozen=True)
class Parameter:
    """A parameter of a notebook: its default, its allowed types, and the notebook's comment on it."""

    default: Any
    types: tuple[type, ...]
    comment: str = ""


_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "dict": dict, "None": type(None)}


def parsed(value: str) -> Any:
    """Parse a parameter from the command line: as a Python literal if possible, else as the text itself."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def declared(notebook: NotebookNode) -> dict[str, Parameter]:
    """Read the parameters that a notebook declares, by name, without running it."""
    parameters: dict[str, Parameter] = {}
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            for found in PythonTranslator.inspect(cell):
                default = ast.literal_eval(found.default)
                types = tuple(_TYPES[name] for name in found.inferred_type_name.split(" or "))
                if found.inferred_type_name == "None":  # there is no annotation
                    types = (type(default),)
                parameters[found.name] = Parameter(default, types, found.help)
    return parameters


def checked(stem: str, given: Mapping[str, Any], notebook: NotebookNode) -> dict[str, Any]:
    """Return the given parameters ready for papermill; an unknown parameter or a wrong type is refused."""
    known = declared(notebook)
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise InputError(f"notebook {stem} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    return {name: _fitting(f"notebook {stem}: {name}", value, known[name]) for name, value in given.items()}


def _fitting(where: str, value: Any, parameter: Parameter) -> Any:
    """Convert a value to one of a parameter's types, and each item of a list to a type of the default's items.

    If the default has no items, integers and strings are allowed. Any other type is refused.
    """
    if isinstance(value, tuple) and list in parameter.types:
        value = list(value)  # papermill would write a tuple as text
    if type(value) is int and float in parameter.types:
        value = float(value)
    if type(value) not in parameter.types:
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in parameter.types)
        raise InputError(
            f"{where} is {value!r}, a {type(value).__name__}: give {wanted}, as its default {parameter.default!r} is"
        )
    if isinstance(value, list):
        default = parameter.default if isinstance(parameter.default, list) else []
        item_types = {type(item) for item in default} or {int, str}
        item = Parameter(parameter.default, tuple(item_types))
        return [_fitting(f"{where}[{i}]", entry, item) for i, entry in enumerate(value)]
    return value


# --- the pipeline's step


@ending_in_one_line()
def main(stem: str, profile: str) -> None:
    """Execute a notebook on a run profile, recorded if the profile is the project's."""
    execute(stem, {"profile": profile}, record=not settings.read(profile).own)


if __name__ == "__main__":
    main(*sys.argv[1:])
