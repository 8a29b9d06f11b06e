"""Run profiles: the models and texts of a run and its number of rows, read from a YAML file and checked.

The project's profiles are in `profiles/`, the user's own in `build/profiles` or anywhere. A profile that extends
another, as in `extends: lesson` or with a file instead of the name, states only what differs. Notebooks, the pipeline
and the command line read profiles here, with full paths and a short name for every model and text in files and tables.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from howlinear.errors import InputError, SourceError, in_one_line
from howlinear.files import atomic, paths
from howlinear.models.sources import with_revision
from howlinear.text.library import BUILT_IN
from howlinear.text.plain import files_below

RECORD = "HOWLINEAR_RECORD"
"""Environment variable: a notebook's results and figures are recorded if it is 1."""

CAPTURE = "capture"
"""The step of the pipeline that makes the captures."""

LONGEST_NAME = 60

Name = Annotated[str, StringConstraints(pattern=r"[^/. ]")]  # more than dots and slashes


class RunProfile(BaseModel):
    """Content of a run profile.

    Attributes:
        models: folders, embedded models or Hub ids, with or without `@` and a revision.
        beside: additional model → the notebooks that measure it as well.
        corpora: names of corpora, or paths of texts; the first is the main one.
        rows: token rows per corpus, a quarter of them held out.
        seq_len: tokens in a sequence.
        seed: decides which documents and rows are drawn, and every fit that starts at random.
        sample: raw rows kept per block.
        blocks: which blocks of each model notebooks look into, by a rule as in `selection.choose_blocks`; R²_lin is
            measured of every block. None: all of them.
        texts: folder with the paper's texts, see `text.library`; None: the folder that `HOWLINEAR_TEXTS` names, or else
            they are downloaded.
        notebooks: which notebooks the pipeline runs; None: all of them.
        parameters: notebook → its parameters on this profile, unless they are given explicitly.
        memory: step of the pipeline → MB that its process takes, if several at once are too much for a laptop.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    _files: list[Path]

    models: list[Name] = Field(min_length=1)
    beside: dict[Name, list[Name]] = {}
    corpora: list[Name] = Field(min_length=1)
    rows: int
    seq_len: int
    seed: int
    sample: int
    blocks: str | None = None
    texts: Name | None = None
    notebooks: list[Name] | None = None
    parameters: dict[str, dict[str, Any]] = {}
    memory: dict[str, int] = {}

    @property
    def path(self) -> Path:
        """File that the profile was read from."""
        return self._files[0]

    @property
    def files(self) -> list[Path]:
        """The profile's own file, the file that it extends, and so on."""
        return self._files

    @property
    def name(self) -> str:
        """Name of the profile in results and figures: the file's stem, in characters that are safe in a path."""
        return _safe(self.path.stem)

    @property
    def own(self) -> bool:
        """Whether the profile is the user's own, whose runs are never recorded, and not the project's."""
        return self.path.parent != Path(paths.PROFILES)

    @property
    def models_by_name(self) -> dict[str, str]:
        """Short name → model (see `load_model`), for the models that every notebook measures."""
        return self.models_of("")

    def models_of(self, stem: str) -> dict[str, str]:
        """Return `models_by_name` with a notebook's additional models, or for `CAPTURE` with all additional models."""
        beside = [source for source, stems in self.beside.items() if stem == CAPTURE or stem in stems]
        named = ((source, with_revision(source)[0].rstrip("/")) for source in [*self.models, *beside])
        return _by_short_name((source, name.split("/")[-1]) for source, name in named)

    @property
    def corpora_by_name(self) -> dict[str, str]:
        """Short name → corpus (see `load_corpus`); a user's text never has the name of a built-in one."""
        named = ((source, source if source in BUILT_IN else Path(source).stem) for source in self.corpora)
        return _by_short_name(named, reserved=BUILT_IN)


def read(profile: str | Path) -> RunProfile:
    """Read a run profile, with the profiles it extends, and check it.

    It is given by path, or by the name, without suffix, of a file in `profiles/` or else in `build/profiles`. A missing
    profile or text, a missing or unknown key or one of the wrong kind, a profile that extends itself, and a user's
    profile with the name of one of the project's are refused.
    """
    path = _find(str(profile), Path.cwd())
    content, files = _with_what_it_extends(path)
    try:
        found = RunProfile.model_validate(content)
    except ValidationError as error:
        raise InputError(_first_fault(path.stem, content, error)) from error
    found._files = files
    if found.own and os.path.isfile(paths.PROFILES / f"{found.name}.yaml"):
        raise InputError(f"{path} is called as profiles/{found.name}.yaml is: rename it, since results go by that name")
    return found


def with_own(profile: str, model: str | None = None, corpus: str | None = None) -> RunProfile:
    """Derive a run profile with the user's model or text in place of its own, and keep it in `build/profiles`.

    A model is a folder or file, a Hub id, or a name; a text is a file, a folder of texts, or a name. Errors are those
    of `read`.
    """
    base = read(profile)
    own = {"models": [full_path(model)]} if model else {}
    own |= {"corpora": [corpus if corpus in BUILT_IN else full_path(corpus)]} if corpus else {}
    if not own:
        return base
    content = {"extends": str(base.path)} | own
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    names = "-".join([base.name, *(Path(source).stem for [source] in own.values())])
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]  # two folders may have the same name
    path = Path(paths.OWN_PROFILES) / f"{_safe(names)[: LONGEST_NAME - 7]}-{digest}.yaml"
    if not path.is_file():
        atomic.write_text(path, text)
    return read(path)


def full_path(source: str) -> str:
    """Return the full path of an existing file or folder; a name is returned as it is."""
    path = Path(os.path.expanduser(source))
    return str(path.absolute()) if path.exists() else source


def from_root(source: str) -> str:
    """Name a model or text for the project's files: a path in the project from its root, anything else as it is."""
    path = Path(source)
    return path.relative_to(paths.ROOT).as_posix() if path.is_relative_to(paths.ROOT) else source


def files_of(corpus: str) -> list[Path]:
    """List the files that a user's text is read from: itself, or all in its folder; none for a built-in corpus."""
    if corpus in BUILT_IN:
        return []
    path = Path(corpus)
    return sorted(files_below(path)) if path.is_dir() else [path]


# --- files


def _find(profile: str, folder: Path) -> Path:
    """Find the file of a run profile by name or by path; a relative path starts from `folder`."""
    if "/" in profile or profile.endswith((".yaml", ".yml")):
        path = _absolute(profile, folder)
        if not os.path.isfile(path):
            raise SourceError(f"no run profile {path}: give the path of a YAML file, or a name as in minis")
        return path
    for home in (paths.PROFILES, paths.OWN_PROFILES):
        path = Path(home) / f"{profile}.yaml"
        if os.path.isfile(path):
            return path
    known = ", ".join(sorted(file.stem for file in Path(paths.PROFILES).glob("*.yaml")))
    raise SourceError(f"no profile {profile!r} under {paths.PROFILES}: {known}; or give the path of a YAML file")


def _with_what_it_extends(path: Path) -> tuple[dict[str, Any], list[Path]]:
    """Merge a file's keys over those of the file it extends, and so on; return them and all these files."""
    chain = [path]
    content = _read_yaml(path)
    while "extends" in content:
        base = _find(str(content.pop("extends")), chain[-1].parent)
        if base in chain:
            raise InputError(f"profile {path.stem} extends itself: {' → '.join(file.stem for file in (*chain, base))}")
        chain.append(base)
        inherited = _read_yaml(base)
        if "models" in content:  # additional models belong to the models that are replaced
            inherited.pop("beside", None)
        content = _over(inherited, content)
    return content, chain


def _over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge changes into keys; in a nested key such as `parameters`, only the keys named are changed."""
    merged = base | changes
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _over(base[key], value)
    return merged


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SourceError(f"cannot read profile {path}: {in_one_line(error)}") from error
    if not isinstance(content, dict):
        raise SourceError(f"profile {path} holds no keys: write it as profiles/minis.yaml is")
    return content | _with_whole_paths(content, path)


# --- paths and names


def _with_whole_paths(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's models, corpora and folder of texts by full path, which holds wherever the file is extended.

    Invalid entries are left as they are, for the check of the whole profile to report; an absent text is refused.
    """
    whole = {}
    for key, located in (("models", _locate_model), ("corpora", _locate_corpus)):
        if isinstance(content.get(key), list):
            whole[key] = [located(source, path) if isinstance(source, str) else source for source in content[key]]
    if isinstance(content.get("beside"), dict):
        whole["beside"] = {_locate_model(str(source), path): stems for source, stems in content["beside"].items()}
    if isinstance(content.get("texts"), str):
        whole["texts"] = _existing(content["texts"], path) or str(_absolute(content["texts"], paths.ROOT))
    return whole


def _locate_model(source: str, profile: Path) -> str:
    """Return the full path of a folder or file; a name or Hub id is returned as it is."""
    there = _existing(source, profile)
    if there is None and source.startswith(("~/", "/", "./", "../")):
        return str(_absolute(source, profile.parent))
    if there is None and source.startswith(("models/", "build/")):  # not made yet
        return str(_absolute(source, paths.ROOT))
    return there or source


def _locate_corpus(source: str, profile: Path) -> str:
    """Return the full path of a text; a name is returned as it is."""
    if source in BUILT_IN:
        return source
    there = _existing(source, profile)
    if there is None and ("/" in source or "." in source):
        where = _absolute(source, profile.parent)
        raise SourceError(
            f"profile {profile.stem}: no text {source}, which would be {where}; give a path, or one of "
            f"{', '.join(BUILT_IN)}"
        )
    return there or source  # an unknown name is refused when it is loaded


def _existing(source: str, profile: Path) -> str | None:
    """Return the full path of what exists next to a profile, or else in the project."""
    if not source.strip("/. "):
        return None
    for folder in (profile.parent, paths.ROOT):
        path = _absolute(source, folder)
        if os.path.exists(path):
            return str(path)
    return None


def _absolute(path: str, folder: Path) -> Path:
    return Path(os.path.abspath(folder / os.path.expanduser(path)))


def _by_short_name(sources: Iterable[tuple[str, str]], reserved: Collection[str] = ()) -> dict[str, str]:
    """Map short names to sources, given pairs of a source and its preferred name.

    Sources that would share a name get a hash appended; a name in `reserved` is kept for the source of that name.
    """
    names = {source: _safe(name) for source, name in sources}
    times = Counter(name.casefold() for name in names.values())  # some file systems ignore case
    by_name = {}
    for source, name in names.items():
        if source not in reserved and (times[name.casefold()] > 1 or name.casefold() in reserved):
            name = f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:6]}"
        by_name[name] = source
    return by_name


def _safe(name: str) -> str:
    """Make a name safe for files: letters, digits and single marks, no mark at the beginning."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-+")[:LONGEST_NAME] or "unnamed"


# --- messages


def _first_fault(name: str, content: dict[str, Any], error: ValidationError) -> str:
    """Write one line for the user: the missing keys, or else the first invalid key, its value and what to give."""
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
        "list_type": "a list, as in [docs]",
        "dict_type": "keys, as in profiles/public.yaml",
        "extra_forbidden": "no such key",
    }
    return f"profile {name}: {'.'.join(keys)} is {value!r}; give {wanted.get(faults[0]['type'], 'names, at least one')}"
