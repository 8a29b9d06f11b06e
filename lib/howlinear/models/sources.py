"""Where a model comes from: a folder, an embedded model, a package, a GGUF file or the Hub; what to say if it fails."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from urllib.parse import urlparse
from urllib.request import getproxies

from httpx2 import HTTPError, TransportError
from huggingface_hub import constants, hf_hub_download, list_repo_files, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, StrictDataclassError
from safetensors import SafetensorError

from howlinear.errors import InputError, SourceError, first_line, readable
from howlinear.files import paths
from howlinear.models import packaged
from howlinear.models.seals import check_seal

UNLOADABLE = (
    *(OSError, ValueError, RuntimeError, ArithmeticError, LookupError, TypeError, AttributeError, ImportError),
    *(MemoryError, AssertionError, SafetensorError, StrictDataclassError, HTTPError, struct.error),
)
"""Exceptions that transformers lets through on a damaged folder or file, or a broken transfer."""
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
LONGEST_ID = 96  # characters, by the Hub's rule
GGUF = ".gguf"
POINTER = 1024  # bytes; a pointer of Git LFS is shorter
ADAPTER = "adapter_config.json"  # peft's
SETTINGS = RLock()
"""Held by a thread that changes settings of whole libraries, as loading does: two would undo each other's changes."""
MERGE = (
    ", which changes what its model computes and is read by peft alone: merge it first, as in AutoPeftModelForCausalLM."
    "from_pretrained(…).merge_and_unload().save_pretrained(folder), and give that folder"
)


def located(name: str) -> str:
    """Return the folder that `name` stands for, complete and undamaged, or `name` itself if it may be a Hub id."""
    source = unchecked(name)
    if source.endswith(GGUF):
        from howlinear.models import gguf  # imports torch and transformers, slow for a mistyped name

        with loading(source):
            folder = gguf.converted(Path(source))
        check_seal(folder, remedy=f"remove the folder {folder}, and the file will be converted again")
        return str(folder)
    if os.path.isdir(source):
        check_seal(Path(source))
    return source


def with_revision(name: str) -> tuple[str, str | None]:
    """Split a name into name and Hub revision, which follows an `@`; in a local path, `@` is part of the name."""
    if "@" not in name or os.path.exists(os.path.expanduser(name)):
        return name, None
    source, _, revision = name.partition("@")
    return source, revision


def unchecked(name: str) -> str:
    """Return the folder, GGUF file or Hub id that `name` stands for, without checking the seal of a folder."""
    name = os.path.expanduser(name)
    for folder in (Path(name), paths.MODELS / name):
        if os.path.isdir(folder):  # False, not an error, for a name that no file can have
            return _checked_folder(folder)
    if name in packaged.PACKAGED:
        weights = packaged.weights_of(name)
        return str(weights) if weights.suffix == GGUF else _checked_folder(weights)
    if name.endswith(GGUF):
        if not os.path.isfile(name):
            raise SourceError(f"cannot read {name}: No such file or directory; give the path of a GGUF file")
        return name
    if os.path.isfile(name):
        raise SourceError(f"no model folder {name}, but a file: give its folder, {os.path.dirname(name) or '.'}")
    if len(name) > LONGEST_ID or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
        raise SourceError(f"no model folder {name}; {embedded()}")
    return name


def check_there(name: str) -> None:
    """Refuse a wrong model name before any heavy import; for a model on the Hub, fetch its config into the cache."""
    name, revision = with_revision(name)
    source = unchecked(name)
    if not os.path.exists(source):
        with loading(source, revision):
            hf_hub_download(source, "config.json", revision=revision)


def check_bits(bits: int | None) -> None:
    """Refuse a number of bits that weights cannot be rounded to, or for which a package is missing."""
    if bits is not None and not (isinstance(bits, int) and bits in (4, 8)):
        raise InputError(f"bits={bits!r}: weights are rounded to 4 or 8")
    missing = [package for package in ("bitsandbytes", "accelerate") if bits and find_spec(package) is None]
    if missing:
        raise InputError(f"weights of {bits} bits need {' and '.join(missing)}: pip install {' '.join(missing)}")


def _checked_folder(folder: Path) -> str:
    folder = _body_of(folder)
    if (folder / ADAPTER).is_file():
        raise SourceError(f"{folder} holds an adapter ({ADAPTER}){MERGE}")
    if not (folder / "config.json").is_file():
        files = sorted(folder.glob(f"*{GGUF}"))
        if files:
            raise SourceError(f"{folder} is no model folder: give the path of the GGUF file in it, {files[0]}")
        raise SourceError(f"{folder} is no model folder: it has no config.json; {embedded()}")
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        content = f"only {', '.join(pickles)}, which can run code when opened" if pickles else "no weights"
        raise SourceError(
            f"{folder} holds {content}: save the model as safetensors (save_pretrained does) and use that"
        )
    read = ("model.safetensors", "model.safetensors.index.json")
    named = b"transformers_weights" in (folder / "config.json").read_bytes()
    if not named and not any((folder / name).exists() for name in read):
        there = ", ".join(sorted(path.name for path in folder.glob("*.safetensors*"))[:3])
        raise SourceError(f"{folder} holds {there}, neither {' nor '.join(read)}: rename the weights or their index")
    for file in folder.glob("*.safetensors"):
        if (
            file.is_file()
            and file.stat().st_size < POINTER
            and file.read_bytes().startswith(b"version https://git-lfs")
        ):
            raise SourceError(f"{file} is a pointer of Git LFS and holds no weights: run git lfs pull in its folder")
    return str(folder)


def _body_of(folder: Path) -> Path:
    """Find the transformer in a sentence-transformers folder (parts in `modules.json`); else return the folder."""
    listed = folder / "modules.json"
    if (folder / "config.json").is_file() or not listed.is_file():
        return folder
    with readable(f"{listed}, the parts of a sentence-transformers model", "copy it again"):
        parts = json.loads(listed.read_text("utf-8"))
        paths_of = [part["path"] for part in parts if part["type"].endswith(".Transformer")]
    return folder / paths_of[0] if paths_of else folder


def embedded() -> str:
    """List what can be loaded without a network, for error messages."""
    names = sorted(path.parent.name for path in paths.MODELS.glob("*/config.json"))
    listed = ", ".join(names) or "no embedded models (run make minis)"
    in_packages = ", ".join(sorted(packaged.PACKAGED))
    return f"offline there are {listed}, or any local folder or {GGUF} file; from packages {in_packages}"


@contextmanager
def loading(source: str, revision: str | None = None) -> Iterator[None]:
    """Turn any error in loading `source` into a `SourceError`; the Hub is asked only if it can be reached.

    One thread loads at a time (`hub`): while `from_pretrained` runs, torch's own functions are replaced.
    """
    with reading(source, revision), hub():
        yield


@contextmanager
def silent() -> Iterator[None]:
    """Keep transformers from printing its table of missing weights: what matters is reported in one line."""
    from transformers.utils import logging  # a wrong name should not wait for it

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def reading(source: str, revision: str | None = None) -> Iterator[None]:
    """Turn any error in reading `source` into a `SourceError` that says where it happened and what to do."""
    try:
        yield
    except SourceError:
        raise
    except UNLOADABLE as error:
        remedy = embedded()
        if Path(source).exists():
            remedy = "is it whole, and of a kind that this version of transformers knows?"
        if Path(source).is_dir():
            where = f"folder {source}"
        elif Path(source).is_file():
            where = f"file {source}"
        elif not reachable() and (pickles := _pickles(_cached(source, revision))):
            where = f"{source}: the local cache holds only {pickles} of it, {RUNS}"
        elif not reachable():
            where = f"{source}: no such folder here, not in the local cache, and the Hub cannot be reached"
        else:
            where = f"{source}: no such folder here, and {_refusal(source, revision, error)}"
        raise SourceError(f"cannot load {where} ({first_line(error)}); {remedy}") from error


def _refusal(source: str, revision: str | None, error: BaseException | None) -> str:
    """Say what failed at the Hub or on the way to it."""
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__

    def caused_by(kind: type) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    if caused_by(GatedRepoError):
        return f"on the Hub {source} is gated: ask for access on its page there, then run hf auth login"
    if caused_by(RevisionNotFoundError):
        return f"on the Hub it has no revision {revision!r}"
    if caused_by(RepositoryNotFoundError):
        return "the Hub has nothing to load by that name, or keeps it private: check the name, or run hf auth login"
    if caused_by(TransportError):
        return "the transfer from the Hub broke off: try again"
    with suppress(OSError, HTTPError):
        pickles = _pickles(list_repo_files(source, revision=revision))
        if pickles:
            return f"the Hub holds only {pickles} of it, {RUNS}"
    return "the Hub has nothing to load by that name"


RUNS = "which can run code when opened: convert it to safetensors"


def _pickles(names: list[str]) -> str:
    """Name the pickled weights among a model's files; empty if it has safetensors."""
    if any(name.endswith(".safetensors") for name in names):
        return ""
    return ", ".join(sorted(name for name in names if name.endswith(PICKLED)))


def _cached(source: str, revision: str | None) -> list[str]:
    """The files of a Hub model that lie in the local cache."""
    with suppress(ValueError):  # no id of the Hub
        config = try_to_load_from_cache(source, "config.json", revision=revision)
        if isinstance(config, str):
            return [file.name for file in Path(config).parent.iterdir()]
    return []


os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # else transformers has a service convert pickles


def reachable() -> bool:
    """Whether the Hub's name resolves, or a proxy would resolve it."""
    try:
        return bool(getproxies() or socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, None))
    except OSError:
        return False


@contextmanager
def hub() -> Iterator[None]:
    """Ask an unreachable Hub only once: within the context, whatever is not in the cache fails at once."""
    readers = [constants]
    if "datasets.config" in sys.modules:  # it has its own flag, and is too slow to import for this alone
        readers.append(sys.modules["datasets.config"])
    with SETTINGS:
        before = [reader.HF_HUB_OFFLINE for reader in readers]
        try:
            for reader in readers:
                reader.HF_HUB_OFFLINE = reader.HF_HUB_OFFLINE or not reachable()
            yield
        finally:
            for reader, flag in zip(readers, before, strict=True):
                reader.HF_HUB_OFFLINE = flag
