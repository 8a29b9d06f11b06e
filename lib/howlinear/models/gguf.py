"""GGUF files: each is converted once into an ordinary model folder, which is kept in the user's cache.

GGUF is the format of llama.cpp: one file that holds the weights, mostly rounded to a few bits, the sizes of the model
and its tokenizer. `transformers` reads it with the help of the package `gguf`: it multiplies every weight out to
float32 and undoes the order in which llama.cpp keeps the rows of some matrices. That takes half a minute or more for
100 million weights, hence the cache:

    <cache>/gguf/<version of transformers>/<SHA-256 of the file>/<its name>/

It is a sealed folder of safetensors (`models.seals`). Every content of the file, and every version of the reader, has a
folder of its own. GGUF has no checksum: a bit that was flipped in the file goes unnoticed, one in the cache does not.
"""

from __future__ import annotations

import math
from contextlib import nullcontext, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers.utils import logging

from howlinear.errors import SourceError, readable
from howlinear.files.cache import made_once
from howlinear.models.packaged import READERS
from howlinear.models.seals import digest, seal
from howlinear.models.sources import silent

if TYPE_CHECKING:  # the package is an extra
    from gguf import GGUFReader

MAGIC = b"GGUF"  # how such a file begins


def converted(file: Path) -> Path:
    """Convert a GGUF file into a model folder in the cache, unless that is done already, and return the folder.

    The folder is written completely or not at all; its seal is still to be checked. If `transformers` cannot read the
    file, its own errors are raised (`sources.UNLOADABLE`).
    """
    with readable(str(file), "give the path of a GGUF file"), file.open("rb") as stream:
        begin = stream.read(len(MAGIC))
    if begin != MAGIC:
        raise SourceError(f"{file} is no GGUF file: it begins with {begin!r}, not {MAGIC!r}; download it again")
    missing = [package for package in READERS if find_spec(package) is None]
    if missing:
        raise SourceError(f"GGUF files need {' and '.join(missing)}: pip install {' '.join(missing)}")
    below = Path("gguf", transformers.__version__, digest(file), file.stem)
    return made_once(below, lambda new: _convert(file, new))


def _convert(file: Path, new: Path) -> None:
    """Read a GGUF file and save what it holds to a folder, sealed."""
    reader = _opened(file)
    parts = reader.get_field("split.count")
    if parts is not None and int(parts.contents()) > 1:
        raise SourceError(
            f"{file} is one of {parts.contents()} parts of a model, and transformers reads whole files: join them "
            "first, as with llama-gguf-split --merge FIRST-PART whole.gguf, and give that"
        )
    scaling = [field.contents() for name, field in reader.fields.items() if name.endswith("rope.scaling.type")]
    if scaling not in ([], ["none"]):
        raise SourceError(
            f"{file} scales its positions (RoPE) by {scaling[0]!r}, which transformers {transformers.__version__} does "
            "not read from GGUF: load the model from safetensors instead"
        )
    # The conversion's bar ignores the setting of transformers: hide it if the other bars are hidden.
    bar = nullcontext() if logging.is_progress_bar_enabled() else redirect_stderr(StringIO())
    with bar, silent(), TemporaryDirectory() as empty:  # transformers would read other files next to this one
        options = {"pretrained_model_name_or_path": empty, "gguf_file": str(file.resolve())}
        model, report = AutoModelForCausalLM.from_pretrained(
            **options,
            trust_remote_code=False,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(**options, trust_remote_code=False)
    _check_all_weights(file, reader, model, sorted(report["missing_keys"]))
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    seal(new, "*")


def _opened(file: Path) -> GGUFReader:
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except (ValueError, LookupError, OverflowError) as error:
        raise SourceError(
            f"{file} is cut off, damaged or newer than this gguf package ({error}): download it again, or update gguf"
        ) from error


def _check_all_weights(file: Path, reader: GGUFReader, model: PreTrainedModel, missing: list[str]) -> None:
    """Check that the model has all weights of the file and no others: `transformers` does not report what it drops."""
    if missing:
        raise SourceError(f"{file} lacks {len(missing)} of the model's weights ({missing[0]}, …): download it again")
    in_file = sum(math.prod(tensor.shape.tolist()) for tensor in reader.tensors)
    storages = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}  # tied weights once
    in_model = sum(storages.values())
    if in_file != in_model:
        raise SourceError(
            f"{file} holds {in_file:,} weights, but transformers {transformers.__version__} makes a model of "
            f"{in_model:,} of it: load the model from safetensors instead"
        )
