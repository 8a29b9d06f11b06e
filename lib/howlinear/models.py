"""Load models, and those whose feed-forward blocks were replaced.

Models are ordinary `transformers` models throughout: causal language models, and encoders of text or of images.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from howlinear.errors import InputError, SourceError
from howlinear.sites import FAMILIES, Site, note, pattern_of, put, sites, width_of
from howlinear.sources import loading, located
from howlinear.swapping import swap

__all__ = [
    "Site", "check_causal", "copy_of", "is_causal", "linear_layers", "load_model", "replaced", "sites", "swap",
    "tokenizer_of", "untrained", "width_of",
]  # fmt: skip

_DTYPES = ("float32", "bfloat16", "float16")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")
_NOTED = 'the config\'s "howlinear" names replaced blocks and their ranks, as in {"replaced": {"3": null}}, but'


def load_model(
    name: str | Path | PreTrainedModel,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, int | str] | None = None,
    sites: str | None = None,
) -> PreTrainedModel:
    """Load a model, ready to evaluate: a causal language model, or an encoder of text or of images.

    Args:
        name: a folder, also a compressed one, an embedded model (`mini-gpt2`, …), a Hub id
            (`openai-community/gpt2`), or a model already in memory, which keeps its dtype and devices.
        revision: branch, tag or commit on the Hub; a folder has none.
        dtype: of the weights, `float32` (the default, whatever they were saved in), `bfloat16` or `float16`. The rows
            of a model in half precision are half-precision rows; their statistics are float64 all the same.
        device_map: as `transformers` reads it, to spread a model over devices: `"auto"`, or part → device. Needs
            accelerate.
        sites: where the FFNs are if that cannot be told, a star for the block's number, see `howlinear.sites`; noted
            in the model's config as `howlinear_sites`, so that every function finds them and a saved model keeps it.

    Returns:
        The `transformers` model, in evaluation mode.

    Raises:
        SourceError: nothing there, no network, no safetensors weights, or weights that do not load.
        InputError: a revision of what is no Hub id (`transformers` would read the folder and say nothing), an unknown
            dtype, no accelerate, or no module that `sites` names.
    """
    in_memory = isinstance(name, PreTrainedModel)
    source = "a model in memory" if in_memory else located(str(name))
    if revision is not None and (in_memory or Path(source).is_dir()):
        raise InputError(
            f"{source} has no revision {revision!r}, only the Hub keeps them: leave it out, or give a Hub id"
        )
    if in_memory and (dtype is not None or device_map is not None):
        raise InputError(f"{source} keeps its dtype and devices: leave dtype and device_map out, or use model.to(…)")
    options = {} if in_memory else {"dtype": _dtype(dtype)} | _spread(device_map)
    model = (name if in_memory else _loaded(source, revision, options)).eval()
    if sites is not None:
        note(model, sites)
    return model


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    name = str(dtype or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise InputError(f"weights in {name!r}: use {', '.join(_DTYPES)}")
    return getattr(torch, name)


def _spread(device_map: str | dict[str, int | str] | None) -> dict:
    if device_map is not None and find_spec("accelerate") is None:
        raise InputError('a device map needs accelerate: pip install accelerate, or "howlinear[devices]"')
    return {} if device_map is None else {"device_map": device_map}


def _loaded(source: str, revision: str | None, options: dict) -> PreTrainedModel:
    with loading(source, revision):
        revision = revision or "main"
        model, report = _loader(source, revision).from_pretrained(
            source,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    missing = sorted(report["missing_keys"])
    if missing and all("pooler" in key.split(".") for key in missing):
        model.base_model.pooler = None  # it was saved without one; nothing before it notices
    elif missing:
        raise SourceError(
            f"{source} lacks {len(missing)} of the model's weights ({missing[0]}, …), which would be drawn at random: "
            "use a complete copy, or one saved from the class of model that its config names"
        )
    model.howlinear_revision = revision  # for the tokenizer's
    return model


def untrained(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """A model of the same configuration with fresh weights, drawn as `transformers` does by default."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _built_as(type(model), replaced(model.config))(model.config).eval()


def copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """An independent copy that knows where its FFNs are, whatever is put there: a replaced block no longer shows it.

    Raises:
        InputError: the model lies on several devices.
    """
    devices = set(getattr(model, "hf_device_map", {}).values())
    if len(devices) > 1:
        raise InputError(f"this model lies on {len(devices)} devices: load it without device_map to replace its blocks")
    copied, pattern = copy.deepcopy(model), pattern_of(model)
    if pattern != FAMILIES.get(model.config.model_type):
        note(copied, pattern)
    return copied


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


def is_causal(model: PreTrainedModel) -> bool:
    """Whether a model predicts the next token, so that it has a perplexity: no encoder, and a head to predict with."""
    config = model.config
    return model.can_generate() and not (_encodes(config) or getattr(config, "is_encoder_decoder", False))


def check_causal(model: PreTrainedModel) -> None:
    """Refuse to ask a model for a perplexity that it does not have.

    Raises:
        InputError: it predicts no next token.
    """
    if not is_causal(model):
        raise InputError(f"{type(model).__name__} predicts no next token, so it has no perplexity to measure")


def _encodes(config: PreTrainedConfig) -> bool:
    """Whether a config is of a masked language model; some of these can be decoders if they are told to be."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)


def _loader(source: str, revision: str) -> type:
    config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    ranks = replaced(config)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not _encodes(config):
        return _built_as(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], ranks) if ranks else AutoModelForCausalLM
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0], None)  # what was saved, head and all
    if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.config_class is type(config):
        return _built_as(kind, ranks)
    return AutoModel


def _built_as(kind: type[PreTrainedModel], ranks: Mapping[int, int | None]) -> type[PreTrainedModel]:
    """`kind`, but built with linear layers for replaced FFNs before weights are drawn or loaded; then wholly `kind`."""
    if not ranks:
        return kind

    class Built(kind):
        def post_init(self) -> None:
            self.__class__ = kind
            for site in sites(self, list(ranks)):
                put(self, site, linear_layers(width_of(self), ranks[site.block]))
            self.post_init()

    return Built


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside a model's weights.

    Raises:
        SourceError: there is none; pass token ids instead of a corpus.
    """
    if model.main_input_name != "input_ids":
        raise SourceError(
            f"{type(model).__name__} reads {model.main_input_name}, no text: measure it from Python, as in "
            f'hl.measure(model, {{"{model.main_input_name}": …}})'
        )
    source = model.name_or_path
    if not source:
        raise SourceError("this model was not loaded from a folder or the Hub, so it has no tokenizer: pass token ids")
    if Path(source).is_dir() and not any(list(Path(source).glob(name)) for name in _TOKENIZER_FILES):
        wanted = ", ".join(_TOKENIZER_FILES)
        raise SourceError(f"cannot load a tokenizer: {source} holds none ({wanted}): save one there, or pass token ids")
    revision = getattr(model, "howlinear_revision", "main")  # the same as the weights'
    with loading(source, revision):
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
