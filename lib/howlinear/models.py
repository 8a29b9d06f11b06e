"""Load causal language models, find their feed-forward blocks, swap those blocks.

An FFN site is the pair (module whose input is x, module whose output is y): after the norm, without the
residual. One table names the sites per family; models are ordinary `transformers` models throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from howlinear.errors import InputError, SourceError
from howlinear.sources import loading, located

FAMILIES = {  # model_type: (list of blocks, FFN within a block), both below `model.base_model`
    "gpt2": ("h", "mlp"),
    "gpt_neox": ("layers", "mlp"),
    "llama": ("layers", "mlp"),
}

_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")
_NOTED = 'the config\'s "howlinear" names replaced blocks and their ranks, as in {"replaced": {"3": null}}, but'


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
        name: a folder, also a compressed one, an embedded model (`mini-gpt2`, …), a Hub id
            (`openai-community/gpt2`), or a model already in memory, which keeps its dtype.
        revision: branch, tag or commit on the Hub; a folder has none.

    Returns:
        The `transformers` model, in evaluation mode.

    Raises:
        SourceError: nothing there, no network, no safetensors weights, or weights that do not load.
        InputError: a revision of what is no Hub id; `transformers` would read the folder and say nothing.
    """
    in_memory = isinstance(name, PreTrainedModel)
    source = "a model in memory" if in_memory else located(str(name))
    if revision is not None and (in_memory or Path(source).is_dir()):
        raise InputError(
            f"{source} has no revision {revision!r}, only the Hub keeps them: leave it out, or give a Hub id"
        )
    if in_memory:
        return name.eval()
    with loading(source, revision):
        revision = revision or "main"
        model, report = _loader(source, revision).from_pretrained(
            source,
            revision=revision,
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
    model.howlinear_revision = revision  # for the tokenizer's
    return model.eval()


def untrained(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """A model of the same configuration with fresh weights, drawn as `transformers` does by default."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _built_as(type(model), replaced(model.config))(model.config).eval()


def replaced(config: PreTrainedConfig) -> dict[int, int | None]:
    """Blocks whose FFN is a linear layer for good (`compressed.replace`), each with its rank; None is full rank.

    Raises:
        InputError: the config's entry is damaged.
    """
    noted = getattr(config, "howlinear", {"replaced": {}})
    try:
        ranks = {int(block): rank for block, rank in noted["replaced"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{_NOTED} holds {noted!r}") from error
    odd = {block: rank for block, rank in ranks.items() if rank is not None and (type(rank) is not int or rank < 1)}
    if odd:
        raise InputError(f"{_NOTED} gives ranks {odd}")
    return ranks


def linear_layers(width: int, rank: int | None) -> nn.Module:
    """What stands for a replaced FFN: one linear layer, or two through `rank` dimensions."""
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))


def _loader(source: str, revision: str) -> type:
    config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    ranks = replaced(config)
    if not ranks or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    return _built_as(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], ranks)


def _built_as(kind: type[PreTrainedModel], ranks: Mapping[int, int | None]) -> type[PreTrainedModel]:
    """`kind`, but built with linear layers for replaced FFNs before weights are drawn or loaded; then wholly `kind`."""
    if not ranks:
        return kind

    class Built(kind):
        def post_init(self) -> None:
            self.__class__ = kind
            for site in sites(self, list(ranks)):
                self.set_submodule(site.name, linear_layers(self.config.hidden_size, ranks[site.block]))
            self.post_init()

    return Built


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
    revision = getattr(model, "howlinear_revision", "main")  # the same as the weights'
    with loading(source, revision):
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
