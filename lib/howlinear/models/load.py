"""Load models, including those whose feed-forward blocks were replaced.

Models are ordinary `transformers` models throughout: causal language models, and encoders of text or of images.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import local_torch_dtype
from transformers.utils import GENERATION_CONFIG_NAME, cached_file, logging

from howlinear.errors import InputError, SourceError, in_one_line, readable
from howlinear.models.checks import (
    check_count,
    check_in_memory,
    check_weights,
    is_hooked,
    is_written_over,
    main_input,
    unwrapped,
)
from howlinear.models.decilm import DeciLMConfig, DeciLMForCausalLM
from howlinear.models.drawn import Draws
from howlinear.models.ffn_sites import note, prefix_of, put, sites, width_at
from howlinear.models.replace import linear_layers, replaced, units_left
from howlinear.models.shards import Shards, disjoint, is_on_disk
from howlinear.models.sources import ADAPTER, MERGE, SETTINGS, check_bits, loading, located, silent, with_revision
from howlinear.models.units import narrow

_DTYPES = ("float32", "bfloat16", "float16")
_IF_THERE = {  # of `cached_file`: errors of a source are reported when its config is read
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
    "_raise_exceptions_for_gated_repo": False,
}
AutoConfig.register(DeciLMConfig.model_type, DeciLMConfig)  # loads `to_decilm`'s output without remote code
AutoModelForCausalLM.register(DeciLMConfig, DeciLMForCausalLM)

_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "tokenizer_config.json")  # bytes: the last alone


@contextmanager
def _with_weights() -> Iterator[None]:
    """Build models on the CPU if torch's default device is meta, on which they would have no weights."""
    with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
        yield


@_with_weights()
def load_model(
    name: str | Path | PreTrainedModel,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, int | str] | None = None,
    sites: str | None = None,
    progress: bool = False,
    bits: int | None = None,
) -> PreTrainedModel:
    """Load a model, ready to evaluate: a causal language model, or an encoder of text or of images.

    Args:
        name: a folder (also of a compressed model), a GGUF file, an embedded model's name (`mini-gpt2`, …), that of one
            in a package (`smollm2-135m`, see `models.packaged`), a Hub id (`openai-community/gpt2`, or `…@` and a
            revision), or a model already in memory, which keeps its dtype and devices.
        revision: branch, tag or commit on the Hub; a folder has none.
        dtype: precision of the weights: `float32` (the default, whatever they were saved in), `bfloat16` or `float16`.
            The rows of a model in half precision are in half precision too; their statistics are float64 in any case.
        device_map: spread the model over devices: `"auto"`, or part → device, as in `transformers`. Needs accelerate.
        sites: pattern of the FFNs, a star for the block's number, if they cannot be found (see `models.ffn_sites`);
            kept in the config as `howlinear_sites`, where every function finds it, also in a saved model.
        progress: show bars of downloads and loading, on a terminal.
        bits: round the weights of linear layers to 4 or 8 bits on loading, by bitsandbytes.

    Returns:
        The `transformers` model, in evaluation mode.

    Raises:
        SourceError: no such model, no network, a missing package, no safetensors or GGUF weights, or weights that do
            not load.
        InputError: a revision for anything but a Hub id (`transformers` would ignore it silently), an unknown dtype, no
            accelerate or bitsandbytes, or no module that matches `sites`.
    """
    if not isinstance(name, str | Path):
        model = model_of(name, on_disk=True)
        if revision is not None:
            raise _no_revision("a model in memory", revision)
        if dtype is not None or device_map is not None or bits is not None:
            raise InputError(
                "a model in memory stays as it is: leave dtype, device_map and bits out, or use model.to(…)"
            )
    else:
        check_bits(bits)
        with bars(progress and sys.stderr.isatty()):
            source, revision = _on_hub(str(name), revision)
            if device_map is not None:
                _check_accelerate()
            model = _from_pretrained(source, revision, dtype_of(dtype), device_map, bits)
    model.eval()
    if sites is not None:
        note(model, sites)
    return model


def model_of(model: Any, on_disk: bool = False) -> PreTrainedModel:
    """Return the model that a name or path stands for, or that an object is or wraps; its mode is left as it is.

    With `on_disk`, a model whose weights stay in their files is accepted, see `load_on_disk`.
    """
    if isinstance(model, str | Path):
        return load_model(model)
    inside = unwrapped(model)
    check_weights(inside, on_disk)
    return inside


@contextmanager
def bars(shown: bool) -> Iterator[None]:
    """Let the libraries that load models show bars, or not; their setting is restored afterwards."""
    with SETTINGS:
        before = logging.is_progress_bar_enabled()
        if not shown:
            logging.disable_progress_bar()
        try:
            yield
        finally:
            if before:
                logging.enable_progress_bar()


def _on_hub(name: str, revision: str | None) -> tuple[str, str]:
    """Where a model lies, and which revision of it is meant, `main` by default."""
    name, named = with_revision(name)
    if named is not None and revision is not None:
        raise InputError(f"two revisions of {name}, {named!r} and {revision!r}: give one")
    revision = revision if named is None else named
    source = located(name)
    if revision is not None and Path(source).exists():
        raise _no_revision(source, revision)
    return source, revision or "main"


def _no_revision(source: str, revision: str) -> InputError:
    return InputError(f"{source} has no revision {revision!r}, only the Hub keeps them: leave it out, or give a Hub id")


def dtype_of(dtype: str | torch.dtype | None) -> torch.dtype:
    """Return the requested precision of weights, float32 by default."""
    name = "float32" if str(dtype) in ("None", "") else str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise InputError(f"dtype={name!r}: weights are loaded in {', '.join(_DTYPES)}")
    return getattr(torch, name)


def _check_accelerate() -> None:
    if find_spec("accelerate") is None:
        raise InputError('a device map needs accelerate: pip install accelerate, or "howlinear[devices]"')


class QuantisedError(InputError):
    """An error for weights that cannot stay in their files: they are quantised, with scales stored separately."""


@_with_weights()
def load_on_disk(
    name: str | Path, dtype: str | torch.dtype | None = None, sites: str | None = None, device: str = "cpu"
) -> PreTrainedModel:
    """Load a model whose weights stay in their files until a part of it runs on `device` (`models.shards`).

    Quantised weights, and weights under other names than the model's, are refused: only `transformers` reads them.
    """
    _check_accelerate()
    dtype = dtype_of(dtype)
    source, revision = _on_hub(str(name), None)
    with loading(source, revision), silent():
        config = _config_of(source, revision)
    # of the config, or of its text part
    if any(getattr(each, "quantization_config", None) for each in (config, config.get_text_config())):
        raise QuantisedError(
            f"{source} holds quantised weights (quantization_config), which only transformers can read: leave "
            "layerwise and work out, or save the model unquantised"
        )
    with loading(source, revision), silent():
        model = without_weights(_class_of(config), config, dtype)
    shards = Shards(source, revision, device)
    missing, unexpected = shards.locate(model)
    lacks = _lacks(model, missing)
    if lacks == "weights" or (lacks == "head" and unexpected):
        raise InputError(f"{source} may have {missing[0]} under another name, which transformers alone finds")
    model = _complete(model, source, revision, missing, unexpected)
    shards.locate(model)
    _take_weights_from(model, shards)
    generates = model.can_generate() and cached_file(source, GENERATION_CONFIG_NAME, revision=revision, **_IF_THERE)
    if generates:
        with loading(source, revision):
            model.generation_config = GenerationConfig.from_dict(json.loads(Path(generates).read_text("utf-8")))
    if sites is not None:
        note(model, sites)
    return model


def without_weights(kind: type, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Build a model of class `kind` with all parameters on the meta device."""
    from accelerate import init_empty_weights

    build = kind._from_config if issubclass(kind, PreTrainedModel) else kind.from_config
    with SETTINGS, init_empty_weights(include_buffers=False):
        model = build(config, dtype=dtype)
    model.tie_weights()  # tied weights came apart on the meta device
    return model


def _take_weights_from(model: PreTrainedModel, source: Shards | Draws) -> None:
    """Let a model's weights come from `source`, part by part; buffers are moved to its device at once."""
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_meta:
                raise InputError(f"{name} of a {type(part).__name__} is computed from weights as the model is built")
            setattr(part, name, buffer.to(source.device))
    model.howlinear_shards = source
    model.eval()


def _from_pretrained(
    source: str,
    revision: str,
    dtype: torch.dtype,
    device_map: str | dict[str, int | str] | None,
    bits: int | None,
) -> PreTrainedModel:
    rounding = {} if bits is None else {"quantization_config": BitsAndBytesConfig(**{f"load_in_{bits}bit": True})}
    with loading(source, revision), silent():
        config = _config_of(source, revision)
        model, report = _class_of(config).from_pretrained(
            source,
            revision=revision,
            dtype=dtype,
            device_map=device_map,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # and refused below, with their names
            **rounding,
        )
    for key, saved, expected in sorted(report["mismatched_keys"]):
        raise SourceError(
            f"{source} holds {key} of shape {tuple(saved)}, and its config says {tuple(expected)}: one of the two is "
            "of another model"
        )
    return _complete(model, source, revision, sorted(report["missing_keys"]), sorted(report["unexpected_keys"]))


def _config_of(source: str, revision: str) -> PreTrainedConfig:
    """Read the config of a model, which must be no adapter."""
    # transformers would apply an adapter only if peft is installed
    if cached_file(source, ADAPTER, revision=revision, **_IF_THERE):
        raise SourceError(f"{source} holds an adapter ({ADAPTER}){MERGE}")
    return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)


def _complete(
    model: PreTrainedModel, source: str, revision: str, missing: list[str], unexpected: list[str]
) -> PreTrainedModel:
    """Return the part of a model whose weights are complete; it has no place for the `unexpected` weights."""
    lacks = _lacks(model, missing)
    body = prefix_of(model)
    if lacks == "pooler":
        model.base_model.pooler = None  # saved without a pooler, which nothing else depends on
    elif lacks == "head":
        # Blocks need no head. It would be drawn at random, so the model is taken without it.
        warnings.warn(
            f"{source} lacks the head of a {type(model).__name__} ({missing[0]}): taken as a "
            f"{type(model.base_model).__name__}, which has no perplexity",
            stacklevel=5,
        )
        model = model.base_model
    elif lacks:
        raise SourceError(
            f"{source} lacks {len(missing)} of the model's weights ({missing[0]}, …), which would be drawn at random"
            + (f", and holds {len(unexpected)} others ({unexpected[0]}, …)" if unexpected else "")
            + ": use a complete copy, or one saved from the class of model that its config names"
        )
    # quantised layers without a bias are saved with a bias of zeros
    rounded = getattr(model.config, "quantization_config", None) is not None
    kinds = ("weight",) if rounded else ("weight", "bias")
    learned = [key for key in unexpected if key.endswith(kinds) and not _MASK.search(key)]
    unread = [key for key in learned if key.startswith(body)]
    if unread and not (replaced(model.config) or units_left(model.config)):
        warnings.warn(
            f"{source} holds {len(unread)} weights for which a {type(model).__name__} of its config has no place "
            f"({unread[0]}, …): it is taken without them",
            stacklevel=5,
        )
    model.howlinear_revision = revision  # for the tokenizer
    model.howlinear_home = os.getcwd()  # likewise, if the model's folder is relative to it
    return model


_MASK = re.compile(r"(attn|attention)\.(masked_)?bias$")
"""Attention masks, which older versions saved along with the weights."""


def _lacks(model: PreTrainedModel, missing: list[str]) -> str:
    """Name what a model lacks: its `pooler`, its `head`, other `weights`, or nothing."""
    if not missing:
        return ""
    if all("pooler" in key.split(".") for key in missing):
        return "pooler"
    body = prefix_of(model)
    return "head" if body and not any(key.startswith(body) for key in missing) else "weights"


@_with_weights()
def untrained(model: Any, seed: int = 0) -> PreTrainedModel:
    """Build a model of the same configuration with fresh weights, drawn as `transformers` does by default.

    If the model's weights stay on disk, the fresh ones are drawn when a part of the model runs (`models.drawn`): from
    the same distribution, but not the same numbers as in memory, where they are float32 whatever torch's default is.
    """
    model = model_of(model, on_disk=True)
    check_count("seed", seed, least=0)
    with SETTINGS, torch.random.fork_rng():
        torch.manual_seed(seed)
        config = _config_to_build(model)
        kind = _with_smaller_blocks(type(model), config)
        if not is_on_disk(model):
            try:
                with local_torch_dtype(torch.float32):
                    return kind(config).eval()
            except TypeError as error:
                raise InputError(
                    f"a {kind.__name__} is not built from its config alone: {in_one_line(error)}"
                ) from error
        fresh = without_weights(kind, config, model.dtype)
    _take_weights_from(fresh, Draws(fresh, seed, model.howlinear_shards.device))
    return fresh


def is_causal(model: PreTrainedModel) -> bool:
    """Whether a model predicts the next token, so that it has a perplexity: no encoder, and a head to predict with."""
    config = model.config
    decoder = config.get_text_config()
    reads_on = _encodes(config) or getattr(config, "is_encoder_decoder", False)
    # a decoder whose config says that it is not causal, or that its attention looks ahead
    told = getattr(decoder, "is_causal", True) is False
    told |= getattr(decoder, "use_bidirectional_attention", False) in (True, "all")
    told |= config.model_type == "bert-generation" and not config.is_decoder
    told |= config.model_type in ("cpmant", "xlnet")  # the prompt sees all tokens; a position predicts its own token
    return model.can_generate() and not (reads_on or told)


def check_causal(model: PreTrainedModel) -> None:
    """Refuse to ask a model for a perplexity that it does not have."""
    if not is_causal(model):
        raise InputError(f"{type(model).__name__} predicts no next token, so it has no perplexity to measure")


def _encodes(config: PreTrainedConfig) -> bool:
    """Whether a config is of a masked language model; some of these are decoders if `is_decoder` is set."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)


def _class_of(config: PreTrainedConfig) -> type:
    """Choose the class to load a model as: with the head that predicts the next token, or else as it was saved."""
    architecture = (config.architectures or ["AutoModel"])[0]  # what was saved, head and all
    scores = architecture.endswith(("Classification", "QuestionAnswering"))  # classifies texts or tokens
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not (_encodes(config) or scores):
        auto, kind = AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    else:
        auto, kind = AutoModel, MODEL_MAPPING.get(type(config), AutoModel)
        saved = getattr(transformers, architecture, None)
        if isinstance(saved, type) and issubclass(saved, PreTrainedModel) and saved.config_class is type(config):
            auto = kind = saved
    built = _with_smaller_blocks(kind, config)
    return auto if built is kind else built


def _with_smaller_blocks(kind: type[PreTrainedModel], config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return a class that builds a `kind` whose FFNs are replaced by linear layers, or have fewer hidden units.

    Three steps would be plainer: build the model, put in the modules, load the state dict. But `from_pretrained` builds
    and loads in one call, and what it does after building (shards, renamed weights, dtype, device maps, tied weights,
    the report of what is missing) is not public otherwise. The one place between the two is `post_init`, the last line
    of every constructor, which also draws the weights of a model that is not loaded.

    The class is `kind` itself if nothing is replaced; otherwise its instances turn into instances of `kind` when built.
    """
    ranks = replaced(config)
    counts = units_left(config)
    if not (ranks or counts):
        return kind

    class WithSmallerBlocks(kind):
        def post_init(self) -> None:
            self.__class__ = kind  # what is loaded, saved and named in the config is an ordinary `kind`
            for site in sites(self, list(ranks)) if ranks else []:
                put(self, site, linear_layers(width_at(self, site), ranks[site.block]))
            narrow(self, counts)
            self.post_init()  # that of `kind`: its weights are drawn or expected with the layers in their places

    return WithSmallerBlocks


def weights_to_save(model: PreTrainedModel) -> dict[str, Tensor]:
    """Collect the weights to save in a model's folder, by name, so that unsuited loaders refuse the folder.

    A loader that does not know of replaced blocks would build the original blocks, miss their weights and draw them at
    random. So for each replaced block, the folder also holds one weight of the original as a single zero: such a loader
    refuses it for its shape. A model that would not load back unchanged is refused: adapters, pruning, quantised
    layers, modules put in manually, and custom hooks, methods and activations.
    """
    kind = type(model)
    if not hasattr(model, "hf_device_map"):  # with one, transformers fetches the weights
        check_in_memory(model, "to save it")
    weights = disjoint(model.state_dict(), getattr(model, "all_tied_weights_keys", {}))  # tied: saved as one
    plain = _plain(model)
    expected = plain.state_dict()
    lacking = [name for name in expected if name not in weights and "pooler" not in name.split(".")]
    odd = [name for name in weights if name not in expected] or lacking
    odd += [name for name, tensor in weights.items() if name in expected and tensor.shape != expected[name].shape]
    if odd:
        raise InputError(
            f"this {kind.__name__} would not load again from a folder, for {odd[0]}, which its config does not tell: "
            "merge adapters, make pruning permanent, leave quantised layers out, and replace blocks by hl.replace"
        )
    check_recorded(model, plain)
    ranks = replaced(model.config)
    if not ranks:
        return weights
    plain = _config_to_build(model)
    del plain.howlinear
    with torch.device("meta"):
        original = kind(plain)
    for site in sites(original, list(ranks)):
        parts = {site.input_name: site.input, site.name: site.output}
        names = [f"{path}.{name}" for path, part in parts.items() for name, _ in part.named_parameters()]
        gone = [name for name in names if name not in weights]
        if not gone:  # a layer in the place of a layer: a loader finds the names and shapes that it asks for
            continue
        # Experts are renamed when they are saved.
        weights[min(gone, key=lambda name: "expert" in name)] = torch.zeros(1, dtype=model.dtype, device="cpu")
    return weights


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """Build the model, without weights, that another model's config describes."""
    with torch.device("meta"):
        return _with_smaller_blocks(_loaded_as(model), model.config)(_config_to_build(model))


def _config_to_build(model: PreTrainedModel) -> PreTrainedConfig:
    """Copy a model's config to build another from, its dtype in the form that layers take."""
    config = copy.deepcopy(model.config)
    if isinstance(config.dtype, str):  # as `save_pretrained` leaves it
        config.dtype = getattr(torch, config.dtype)
    return config


def _loaded_as(model: PreTrainedModel) -> type[PreTrainedModel]:
    """Return the class that a model's folder is loaded as: its own, or the one that a custom class derives from."""
    kind, config = type(model), type(model.config)
    family = model.config.model_type
    if kind.__module__.startswith("transformers.models.") and getattr(transformers, kind.__name__, None) is not kind:
        raise InputError(
            f"transformers loads no folder as a {kind.__name__}, a part of other models: replace blocks of the whole "
            'model, load_model(…, sites="model.encoder.layers.*.mlp"), and save that'
        )
    if family in CONFIG_MAPPING and issubclass(config, CONFIG_MAPPING[family]):
        if kind.__module__.startswith("transformers."):
            return kind
        for of_config in (MODEL_FOR_CAUSAL_LM_MAPPING.get(config, None), MODEL_MAPPING.get(config, None)):
            if isinstance(of_config, type) and issubclass(kind, of_config):
                return of_config
    auto = "AutoModelForCausalLM" if model.can_generate() else "AutoModel"
    raise InputError(
        f"transformers would not load a folder as this {kind.__name__}: give it a config class with a model_type of "
        f"its own, and register both, AutoConfig.register({family!r}, {config.__name__}) and {auto}.register("
        f"{config.__name__}, {kind.__name__}), here and where it is loaded"
    )


def check_recorded(model: PreTrainedModel, plain: PreTrainedModel | None = None) -> None:
    """Refuse a model with changes that its weights and config do not record; `plain` is what its config builds."""
    unrecorded = _unrecorded(model, _plain(model) if plain is None else plain)
    if unrecorded is not None:
        raise InputError(
            f"this {type(model).__name__} would not compute the same from a folder, which holds weights and config: "
            f"{unrecorded}"
        )


def _unrecorded(model: PreTrainedModel, plain: PreTrainedModel) -> str | None:
    """Describe what in a model neither weights nor config record, if anything; `plain` is as in `check_recorded`."""
    parts = dict(plain.named_modules())
    kind, of_library = type(model), "transformers."
    if type(model.config).__module__.startswith(of_library) and not kind.forward.__module__.startswith(of_library):
        return f"{kind.__name__} has a forward of its own"
    for path, part in model.named_modules():
        name = path or "the model"
        if is_hooked(part):
            return f"{name} has a hook; remove it first"
        if is_written_over(part):
            return f"{name} has a forward of its own"
        expected = parts.get(path)  # None: a module that the config does not build is not called
        if expected is None or isinstance(expected, nn.Dropout):
            continue
        if next(part.parameters(), None) is not None:
            if type(part).forward is not type(expected).forward:
                return f"{name} is a {type(part).__name__} in the place of a {type(expected).__name__}"
        elif repr(part) != repr(expected):
            return f"{name} is {part!r} in the place of {expected!r}"
    return None


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the tokenizer that is stored with a model's weights."""
    if main_input(model) != "input_ids":
        raise SourceError(
            f"{type(model).__name__} reads {main_input(model)}, no text: measure it from Python, as in "
            f'hl.measure(model, {{"{main_input(model)}": …}})'
        )
    source = model.name_or_path
    if not source:
        raise SourceError("this model was not loaded from a folder or the Hub, so it has no tokenizer: pass token ids")
    folder = Path(getattr(model, "howlinear_home", ""), source)
    source = str(folder) if folder.is_dir() else source
    if Path(source).is_dir() and not any([*Path(source).glob(pattern)] for pattern in _TOKENIZER_FILES):
        wanted = ", ".join(_TOKENIZER_FILES)
        raise SourceError(f"cannot load a tokenizer: {source} holds none ({wanted}): save one there, or pass token ids")
    for file in Path(source).glob("*token*.json"):
        with readable(f"the tokenizer's {file}", "copy it again"):
            json.loads(file.read_text("utf-8"))
    revision = getattr(model, "howlinear_revision", "main")  # the same as the weights'
    with loading(source, revision):
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
