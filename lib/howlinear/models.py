"""Load causal language models, find their feed-forward blocks, swap those blocks.

An FFN site is the pair (module whose input is x, module whose output is y): after the norm, without the
residual. One table names the sites per family; models are ordinary `transformers` models throughout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from howlinear import paths
from howlinear.errors import InputError, SourceError
from howlinear.hub import hub, reachable

FAMILIES = {  # model_type: (list of blocks, FFN within a block), both below `model.base_model`
    "gpt2": ("h", "mlp"),
    "gpt_neox": ("layers", "mlp"),
    "llama": ("layers", "mlp"),
}


_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")


@dataclass(frozen=True)
class Site:
    """One feed-forward block.

    Attributes:
        block: its depth, from 0.
        name: its dotted path below the model.
        input: the module whose first argument is x.
        output: the module that returns y; usually the same one.
    """

    block: int
    name: str
    input: nn.Module
    output: nn.Module


def load_model(name: str | Path | PreTrainedModel, revision: str | None = None) -> PreTrainedModel:
    """Load a causal language model, ready to evaluate, its weights in float32.

    Args:
        name: a folder, one of the embedded models (`mini-gpt2`, …), a Hub id (`openai-community/gpt2`), or a
            model already in memory, which keeps its dtype.
        revision: branch, tag or commit on the Hub.

    Returns:
        The `transformers` model, in evaluation mode.

    Raises:
        SourceError: nothing there, no network, no safetensors weights, or weights that do not load.
    """
    if isinstance(name, PreTrainedModel):
        return name.eval()
    source = _source(str(name))
    with _loading(source):
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision or "main",
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise SourceError(
            f"{source} lacks {len(missing)} of the model's weights ({missing[0]}, …), which would be drawn at random: "
            "use a complete copy, or one saved from a causal language model"
        )
    return model.eval()


def untrained(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """A model of the same configuration with fresh weights, drawn as `transformers` does by default."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return type(model)(model.config).eval()


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside a model's weights.

    Raises:
        SourceError: there is none; pass token ids instead of a corpus.
    """
    source = model.name_or_path
    if not source:
        raise SourceError("this model was not loaded from a folder or the Hub, so it has no tokenizer: pass token ids")
    if Path(source).is_dir() and not any(list(Path(source).glob(name)) for name in _TOKENIZER_FILES):
        wanted = ", ".join(_TOKENIZER_FILES)
        raise SourceError(f"cannot load a tokenizer: {source} holds none ({wanted}): save one there, or pass token ids")
    revision = getattr(model.config, "_commit_hash", None) or "main"  # the same as the weights'
    with _loading(source):
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)


def sites(model: PreTrainedModel, blocks: list[int] | None = None) -> list[Site]:
    """The FFN sites of a model, in order of depth.

    Args:
        model: any model of a family in `FAMILIES`.
        blocks: which blocks; all by default.

    Raises:
        InputError: unknown family, or a block that the model does not have.
    """
    family = model.config.model_type
    if family not in FAMILIES:
        raise InputError(f"do not know where a {family!r} model keeps its FFNs; known: {', '.join(FAMILIES)}")
    stack, ffn = FAMILIES[family]
    depth = len(model.base_model.get_submodule(stack))
    blocks = list(range(depth)) if blocks is None else list(blocks)
    missing = [block for block in blocks if not 0 <= block < depth]
    if missing or not blocks:
        raise InputError(f"no block {missing or '(empty list)'} in a model of {depth} blocks, 0 to {depth - 1}")
    found = []
    for block in sorted(set(blocks)):
        name = f"{stack}.{block}.{ffn}"
        module = model.base_model.get_submodule(name)
        prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
        found.append(Site(block, prefix + name, module, module))
    return found


@contextmanager
def swap(model: PreTrainedModel, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> Iterator[PreTrainedModel]:
    """Put maps in the place of FFN blocks, and put the blocks back whatever happens.

    Args:
        model: the model to change while the context lasts.
        maps: block → an `AffineMap`, a module, or any function of rows (…, d_in) to rows (…, d_out).

    Yields:
        The model.

    Raises:
        InputError: a block that the model does not have.
    """
    with ExitStack() as restore:
        for site in sites(model, list(maps)) if maps else []:
            parent, _, leaf = site.name.rpartition(".")
            parent = model.get_submodule(parent)
            restore.callback(setattr, parent, leaf, site.output)
            setattr(parent, leaf, _as_module(maps[site.block], model))
        yield model


class Mapped(nn.Module):
    """A function of rows as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        """Hold `function`."""
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


def _as_module(replacement: Callable[[Tensor], Tensor], model: PreTrainedModel) -> nn.Module:
    if isinstance(replacement, nn.Module):
        return replacement
    if not (hasattr(replacement, "weight") and hasattr(replacement, "bias")):
        return Mapped(replacement)
    width = model.config.hidden_size
    if replacement.weight.shape != (width, width):
        raise InputError(
            f"a map of shape {tuple(replacement.weight.shape)} for blocks of width {width}: fit it on this model"
        )
    linear = skip_init(nn.Linear, *replacement.weight.shape, device=model.device, dtype=model.dtype)
    with torch.no_grad():
        linear.weight.copy_(replacement.weight.T)
        linear.bias.copy_(replacement.bias)
    return linear.requires_grad_(False)


def _source(name: str) -> str:
    for folder in (Path(name), paths.MODELS / name):
        if folder.is_dir():
            return _checked_folder(folder)
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
        raise SourceError(f"no model folder {name}; {_embedded()}")
    return name


def _checked_folder(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise SourceError(f"{folder} is no model folder: it has no config.json; {_embedded()}")
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
        found = f"only {', '.join(pickles)}, which can run code when opened" if pickles else "no weights"
        raise SourceError(f"{folder} holds {found}: save the model as safetensors (save_pretrained does) and use that")
    return str(folder)


def _embedded() -> str:
    found = sorted(path.parent.name for path in paths.MODELS.glob("*/config.json"))
    return f"offline there are {', '.join(found) or 'no embedded models (run make minis)'}, or any local folder"


@contextmanager
def _loading(source: str) -> Iterator[None]:
    try:
        with hub():
            yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        if Path(source).is_dir():
            where = f"folder {source}"
        elif not reachable():
            where = f"{source}: no such folder here, not in the local cache, and the Hub cannot be reached"
        else:
            where = f"{source}: no such folder here, and the Hub has nothing to load by that name"
        raise SourceError(f"cannot load {where} ({reason}); {_embedded()}") from error
