"""Run profiles: which models and texts a run is about and how many rows, read from `profiles/<name>.yaml` and checked.

One's own may lie in `build/profiles`; one that says `extends: lesson` states only what differs. A run profile names
folders and files to write to, so nothing in it may lead out of the project.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from howlinear.errors import InputError, SourceError
from howlinear.files import paths

RECORD = "HOWLINEAR_RECORD"
"""The variable of the environment that has a notebook's results and figures recorded, if it is 1."""

Name = Annotated[str, StringConstraints(pattern=r"[^/. ]")]  # more than dots and slashes


class Published(BaseModel):
    """What the paper says of a run on these models: its settings beside ours.

    Attributes:
        blocks: of each model.
        width: inputs of a block.
        rows: token rows per block.
        held_out: share of the rows that is scored on, one contiguous tail.
        seq_len: tokens in a sequence.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    blocks: int = Field(ge=1)
    width: int = Field(ge=1)
    rows: int = Field(ge=1)
    held_out: float = Field(gt=0, lt=1)
    seq_len: int = Field(ge=2)


class RunProfile(BaseModel):
    """What a run profile holds; other keys are the pipeline's own, and stay as they are.

    Attributes:
        models: folders (relative to the project), embedded models or Hub ids.
        corpora: names of corpora; the first is the main one.
        rows: token rows per corpus, a quarter of them held out.
        seq_len: tokens in a sequence.
        seed: decides which documents and rows are drawn, and every fit that starts at random.
        sample: rows per block kept as they are.
        texts: a folder (relative to the project, or anywhere) with the paper's texts, see `text.library`; None: the one
            that `HOWLINEAR_TEXTS` names, or they are fetched.
        published: the paper's own settings; None for models that it has not.
        notebooks: which notebooks the pipeline runs; None: all of them.
        parameters: notebook → parameters of its own that this profile gives it, where they are not given by hand.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    models: list[Name] = Field(min_length=1)
    corpora: list[Name] = Field(min_length=1)
    rows: int
    seq_len: int
    seed: int
    sample: int
    texts: Name | None = None
    published: Published | None = None
    notebooks: list[Name] | None = None
    parameters: dict[str, dict[str, Any]] = {}


def read(name: str) -> RunProfile:
    """Read a run profile and check it.

    Args:
        name: of a file under `profiles/`, without its suffix.

    Raises:
        SourceError: no such profile, or not YAML.
        InputError: a key is missing or of the wrong kind; two models share a short name.
    """
    content = _with_what_it_extends(name)
    try:
        profile = RunProfile.model_validate(content)
    except ValidationError as error:
        raise InputError(_first_fault(name, content, error)) from error
    names = [short(source) for source in profile.models]
    doubles = sorted({short_name for short_name in names if names.count(short_name) > 1})
    if doubles:
        raise InputError(f"profile {name} has two models called {', '.join(doubles)}: results go by that name")
    return profile


def short(source: str) -> str:
    """What a model is called in results and file names: the last part of its folder or Hub id."""
    return source.rstrip("/").split("/")[-1]


def located(source: str) -> str:
    """A folder of the project by its full path, wherever the notebook runs; anything else as it is.

    Raises:
        InputError: it begins in the project's folders and leads out of them.
    """
    top, _, rest = source.partition("/")
    if top in ("models", "build") and rest:
        return str(paths.inside(paths.ROOT / top, rest))
    return source


def _first_fault(name: str, content: dict[str, Any], error: ValidationError) -> str:
    """One line for a user: what is missing, or else the first key that cannot be used, what it is and what to give."""
    faults = error.errors()
    missing = sorted(".".join(map(str, fault["loc"])) for fault in faults if fault["type"] == "missing")
    if missing:
        return f"profile {name} lacks {', '.join(missing)}"
    value = content
    keys = [key for key in faults[0]["loc"] if isinstance(key, str)]  # without a place in a list
    for key in keys:
        value = value[key]
    wanted = {
        "int_type": "a whole number",
        "float_type": "a number",
        "list_type": "a list, as in [docs]",
        "model_type": "keys, as in profiles/paper.yaml",
        "extra_forbidden": "no such key",
        "greater_than": "more",
        "greater_than_equal": "more",
        "less_than": "less",
    }
    return f"profile {name}: {'.'.join(keys)} is {value!r}; give {wanted.get(faults[0]['type'], 'names, at least one')}"


def _with_what_it_extends(name: str) -> dict[str, Any]:
    """The keys of a file; one that says `extends: other` changes some of another's."""
    names = [name]
    content = _read_yaml(name)
    while "extends" in content:
        other = content.pop("extends")
        if other in names:
            raise InputError(f"profile {name} extends itself: {' → '.join((*names, other))}")
        names.append(other)
        content = _read_yaml(other) | content
    return content


def is_own(name: str) -> bool:
    """Whether a run profile is one of the user's own, under `build/profiles`, and none of the project's."""
    own = paths.inside(paths.OWN_PROFILES, f"{name}.yaml")
    return os.path.isfile(own) and not os.path.isfile(paths.inside(paths.PROFILES, f"{name}.yaml"))


def _read_yaml(name: str) -> dict[str, Any]:
    path = paths.inside(paths.OWN_PROFILES if is_own(name) else paths.PROFILES, f"{name}.yaml")
    if not os.path.isfile(path):
        known = ", ".join(sorted(file.stem for file in Path(paths.PROFILES).glob("*.yaml")))
        raise SourceError(f"no profile {name!r} under {paths.PROFILES}: {known}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SourceError(f"cannot read profile {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SourceError(f"profile {path} holds no keys: write it as profiles/minis.yaml is")
    return content
