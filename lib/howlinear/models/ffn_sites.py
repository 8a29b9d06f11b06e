"""Where a model keeps its feed-forward blocks: a table per family, a pattern of your own, or the model's structure.

An FFN site is the pair (module whose input is x, module whose output is y): after the norm, without the residual.
A pattern names it for all blocks, with a star for the block's number: `layers.*.mlp` if one module maps x to y,
`layers.*.fc1,layers.*.fc2` if the first and last layer lie apart or the residual is added between y and the end of the
module. Paths are below `model.base_model`.

Attention and whole layers can be measured too, as sites of the same list of layers, by name (`KINDS`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import maps_alone
from howlinear.models.checks import is_encoder_decoder, unwrapped
from howlinear.models.structure import Unclear, find, find_attention, stacks, starred

_BERT = "encoder.layer.*.intermediate.dense,encoder.layer.*.output.dense"  # `output` adds the residual and a norm
_BERTS = (
    *("bert", "bert-generation", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2"),
    *("electra", "ernie", "esm", "fnet", "layoutlm", "longformer", "megatron-bert", "mpnet", "mra", "nystromformer"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "tapas", "xlm-roberta", "xlm-roberta-xl"),
    "yoso",
)
_DECODERS = (  # the decoder of an encoder-decoder model, used alone
    *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "opt", "pegasus"),
    *("plbart", "trocr", "whisper"),
)
FAMILIES = {  # model_type: pattern
    **dict.fromkeys(("falcon", "gpt2", "gpt_neo", "gptj"), "h.*.mlp"),
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "gpt_neox", "llama", "mistral", "mixtral", "nemotron-nas"), "layers.*.mlp"
    ),
    **dict.fromkeys(("olmo2", "phi3", "qwen2", "qwen3", "stablelm", "vit"), "layers.*.mlp"),
    **dict.fromkeys(_BERTS, _BERT),
    **dict.fromkeys(_DECODERS, "decoder.layers.*.fc1,decoder.layers.*.fc2"),
    **dict.fromkeys(("biogpt", "xglm"), "layers.*.fc1,layers.*.fc2"),
    **dict.fromkeys(("flaubert", "xlm"), "ffns.*.lin1,ffns.*.lin2"),
    "bloom": "h.*.mlp.dense_h_to_4h,h.*.mlp.dense_4h_to_h",  # `mlp` adds the residual
    "distilbert": "transformer.layer.*.ffn",
    "gemma3": "language_model.layers.*.mlp",
    "mpt": "blocks.*.ffn.up_proj,blocks.*.ffn.down_proj",  # `ffn` adds the residual
}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NO_FFN = "it has no feed-forward blocks"
TIME_MAJOR = ("fsmt", "xlnet")
"""Families whose layers put positions before sequences, so that masks and documents would apply to the wrong rows."""

REFUSED = {  # model_type: why it cannot be measured block by block
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), _NO_FFN),
    **dict.fromkeys(TIME_MAJOR, "its layers read positions of sequences, not sequences of positions"),
    "albert": "all its layers share one feed-forward block, so that they cannot be told apart",
    "rwkv": "its feed-forward blocks read the token before as well, so they are no map of a token",
}


KINDS = {
    "ffn": "the feed-forward block",
    "attention": "attention",
    "layer": "the whole layer",
}
"""What can be measured of a layer, by name. `ffn`: x after the norm, y before the residual is added. `attention`: the
same for attention (self-attention, in a decoder that also reads an encoder). `layer`: x is the residual stream before
the layer and y what the layer adds to it, the stream after less the stream before: if a layer does nothing, y = 0,
while the stream after it, which carries the one before along, would be nearly linear in it."""
_ATTENTION = {"bloom": "self_attention,self_attention.dense"}  # model_type: path in its layer, which adds the residual


@dataclass(frozen=True)
class Site:
    """One feed-forward block, or another part of a layer that is measured.

    Attributes:
        block: its depth, from 0.
        name: dotted path of `output` below the model.
        input: the module whose first argument is x.
        output: the module that returns y; usually the same one.
        input_name: dotted path of `input` below the model.
        kind: one of `KINDS`; for a `layer`, y is what `output` returns minus x.
    """

    block: int
    name: str
    input: nn.Module = field(repr=False)
    output: nn.Module = field(repr=False)
    input_name: str
    kind: str = "ffn"

    @property
    def ffn(self) -> nn.Module | None:
        """The one module that maps x to y; None if that takes the pair and what lies between."""
        if isinstance(self.output, Replacement):
            return self.output.map
        return self.output if self.input is self.output else None

    @property
    def linear(self) -> bool:
        """Whether the site holds nothing but linear layers, as after `replace.replace`."""
        parts = self.ffn if isinstance(self.ffn, nn.Sequential) else [self.ffn]
        return all(isinstance(part, nn.Linear) for part in parts)

    @property
    def stack(self) -> str | None:
        """The path of the list of layers, such as `layers` for `layers.3.mlp`; None if there is no list."""
        stack, in_list, _ = f"{self.name}.".partition(f".{self.block}.")
        return stack if in_list else None

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of both modules."""
        return list(nn.ModuleList([self.input, self.output]).parameters())


def sites(model: Any, blocks: int | Iterable[int] | None = None, site: str = "ffn") -> list[Site]:
    """List the FFN sites of a model, or those of its attention or whole layers, in order of depth.

    Args:
        model: any `transformers` model; if its FFNs cannot be found, say where they are by `load_model(…, sites=…)`.
        blocks: numbers of blocks, or one number, from Python, numpy or torch; all by default.
        site: `ffn`, `attention` or `layer` (`KINDS`).

    Raises:
        InputError: the sites of this architecture cannot be found (the message says what was found and what to pass), a
            block that the model does not have, a convolution, or an unknown kind of site.
    """
    model = unwrapped(model)
    check_kind(site)
    all_sites = _resolved(model, pattern_of(model) if site == "ffn" else _pattern_beside(model, site), site)
    _check_apart(all_sites)
    _check_reached(model, all_sites)
    for each in all_sites:
        if isinstance(each.input, CONVOLUTIONS) or isinstance(each.output, CONVOLUTIONS):
            raise InputError(
                f"{each.name} is a convolution, whose rows have channels before places, and not behind them: name a "
                "module around it that has features last"
            )
    if blocks is None:
        return all_sites
    given = blocks.tolist() if hasattr(blocks, "tolist") else blocks  # of numpy or torch
    blocks = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if any(isinstance(block, bool) or not hasattr(block, "__index__") for block in blocks):
        raise InputError(f"blocks={given!r}: give block numbers, as in [0, 3]")
    blocks = [operator.index(block) for block in blocks]
    numbers = [site.block for site in all_sites]
    missing = [block for block in blocks if block not in numbers]
    if missing or not blocks:
        in_a_row = numbers == list(range(len(numbers)))
        there = f"0 to {numbers[-1]}" if in_a_row else f"which are {numbers}"
        raise InputError(f"no block {missing or '(empty list)'} in a model of {len(numbers)} blocks, {there}")
    return [site for site in all_sites if site.block in blocks]


def _check_apart(all_sites: list[Site]) -> None:
    """Refuse a module that several blocks share: what passes through it cannot be told apart."""
    block_of: dict[nn.Module, int] = {}
    for site in all_sites:
        for module in {site.input, site.output}:
            if module in block_of:
                raise InputError(
                    f"blocks {block_of[module]} and {site.block} share one feed-forward block, {site.name}, so that "
                    "they cannot be told apart: give each its own (copy.deepcopy), or leave one out"
                )
            block_of[module] = site.block


def _check_reached(model: PreTrainedModel, all_sites: list[Site]) -> None:
    """Refuse a list of layers of which some, but not all, are wrapped in custom modules."""
    blocks = {site.block for site in all_sites}
    for stack in {site.stack for site in all_sites} - {None}:
        below = all_sites[0].name.partition(f"{stack}.{all_sites[0].block}.")[2]
        for number, layer in model.get_submodule(stack).named_children():
            inside = [path for path, _ in layer.named_modules() if below and path.endswith(f".{below}")]
            if inside and int(number) not in blocks:
                raise InputError(
                    f"block {number} is wrapped, its {below} is {stack}.{number}.{min(inside, key=len)}, and other "
                    "blocks are not: unwrap it, or wrap all alike"
                )


def pattern_of(model: PreTrainedModel) -> str:
    """Find the pattern of a model's FFNs: the one noted in its config, else the table's, else from its structure."""
    noted = getattr(model.config, "howlinear_sites", None)
    family = model.config.model_type
    if noted is not None and family not in TIME_MAJOR:
        return _fitting(model, noted)
    if family in REFUSED:
        raise InputError(f"{type(model).__name__}, a {family!r} model, cannot be measured: {REFUSED[family]}")
    if family in FAMILIES and not is_encoder_decoder(model):  # else structure says which two there are
        for pattern in (FAMILIES[family], FAMILIES[family].replace("decoder.", "")):  # or a decoder alone
            if _resolved(model, pattern):
                return pattern
    try:
        pattern = find(model.base_model, width_of(model))
        # all layers may have been wrapped since it was found
        return pattern if _resolved(model, pattern) else find(model.base_model, width_of(model), anew=True)
    except Unclear as unclear:
        raise InputError(
            f"cannot tell where {type(model).__name__}, a {family!r} model, keeps its FFNs: {unclear}; {_SAY}"
        ) from unclear


_SAY = (
    'name the module of every block, as in load_model(…, sites="model.layers.*.mlp") or --sites "model.layers.*.mlp", '
    'or its first and last layer, as in "model.layers.*.fc1,model.layers.*.fc2"'
)


def check_kind(site: Any) -> None:
    """Refuse a site that is not one of `KINDS`."""
    if not isinstance(site, str) or site not in KINDS:
        raise InputError(f"site {site!r}: give {', '.join(KINDS)}")


def _pattern_beside(model: PreTrainedModel, site: str) -> str:
    """The pattern of a model's attention or of its layers."""
    family = model.config.model_type
    if family in ("albert", *TIME_MAJOR):
        raise InputError(f"{type(model).__name__}, a {family!r} model, cannot be measured: {REFUSED[family]}")
    try:
        stack = _stack_of(model)
        if site == "layer":
            return f"{stack}.*"
        attention = _ATTENTION.get(family) or find_attention(model.base_model, stack, width_of(model))
    except Unclear as unclear:
        raise InputError(
            f"cannot tell where {type(model).__name__}, a {family!r} model, keeps {KINDS[site]}: {unclear}"
        ) from unclear
    return starred(stack, attention)


def _stack_of(model: PreTrainedModel) -> str:
    """Find the list of layers below the base model: the one that holds the FFNs, or else the only one."""
    noted = getattr(model.config, "howlinear_sites", None)
    one_stack = not getattr(model.config, "is_encoder_decoder", False)
    pattern = noted or (FAMILIES.get(model.config.model_type) if one_stack else None)
    if pattern is not None:
        stack, in_list, _ = pattern.partition(".*.")
        if not in_list or stack == "ffns":
            raise Unclear("its layers are no modules of one list")
        return stack.removeprefix(prefix_of(model))
    lists = list(stacks(model.base_model))
    if len(lists) > 1:
        with suppress(Unclear):
            return find(model.base_model, width_of(model)).partition(".*.")[0]
    if len(lists) != 1:
        say = f", {' and '.join(lists)}; {_SAY}, or measure model.get_encoder()" if lists else ""
        raise Unclear(f"it has {len(lists)} lists of layers{say}")
    return lists[0]


def note(model: PreTrainedModel, pattern: str) -> None:
    """Note in a model's config where its FFNs are, for every function to read, and for the folder it is saved to."""
    fitting = _fitting(model, pattern)
    named = {site.output for site in _resolved(model, fitting)}
    for kind in ("attention", "layer") if model.config.model_type in FAMILIES else ():
        if named == _outputs_beside(model, kind):
            raise InputError(f"sites={pattern!r} names {KINDS[kind]}: leave it out, and measure with site={kind!r}")
    model.config.howlinear_sites = fitting


def _outputs_beside(model: PreTrainedModel, kind: str) -> set[nn.Module]:
    """Return the output modules of attention or of the layers; none if these cannot be found."""
    try:
        return {site.output for site in _resolved(model, _pattern_beside(model, kind), kind)}
    except InputError:
        return set()


def _fitting(model: PreTrainedModel, pattern: str) -> str:
    """Return the pattern if every block has the modules that it names; else refuse it."""
    if isinstance(pattern, str) and _resolved(model, pattern):
        return pattern
    where = f"{type(model).__name__} ({model.config.model_type})"
    raise InputError(f"no module in the blocks of {where} fits sites={pattern!r}: {_SAY}")


def width_of(model: PreTrainedModel) -> int:
    """Return the width of the residual stream, and so of x and y."""
    width = getattr(model.config.get_text_config(), "hidden_size", None)
    if not isinstance(width, int):
        kind = type(model).__name__
        raise InputError(f"{kind} has no one width of its blocks (hidden_size in its config), and cannot be measured")
    return width


def _resolved(model: PreTrainedModel, pattern: str, kind: str = "ffn") -> list[Site]:
    """The sites that a pattern names, in order of depth; none unless every block has both modules."""
    paths = pattern.split(",")  # of one module, or of the first and the last
    if len(paths) > 2:
        return []
    inputs = _matches(model, paths[0].strip())
    outputs = _matches(model, paths[-1].strip())
    if inputs.keys() != outputs.keys():
        return []
    return [
        Site(
            block=block,
            name=outputs[block],
            input=model.get_submodule(inputs[block]),
            output=model.get_submodule(outputs[block]),
            input_name=inputs[block],
            kind=kind,
        )
        for block in sorted(outputs)
    ]


def _matches(model: PreTrainedModel, path: str) -> dict[int, str]:
    """Block → path below the model of the module that a starred path names."""
    if "*" not in path:
        return {}
    # a path may be given below the base model or below the model
    prefix = prefix_of(model)
    number_for_star = re.escape(path.removeprefix(prefix)).replace(r"\*", r"(\d+)", 1)
    matches = {}
    for name, _ in model.base_model.named_modules(remove_duplicate=False):
        match = re.fullmatch(number_for_star, name)
        if match:
            matches[int(match.group(1))] = prefix + name
    return matches


def prefix_of(model: PreTrainedModel) -> str:
    """Return the prefix that makes a path below the base model one below the model."""
    return "" if model.base_model is model else f"{model.base_model_prefix}."


def stands_alone(model: PreTrainedModel, site: Site) -> bool:
    """Whether an FFN maps x to y with no other input or output, so that a map can take its place."""
    if site.ffn is None or site.linear or model.config.model_type in FAMILIES:
        return True
    return maps_alone(site.ffn, width_at(model, site))


def width_at(model: PreTrainedModel, site: Site) -> int:
    """Return the width of x at a site: if the user named the site, as for a vision tower, that of its first layer."""
    first = next((part for part in site.input.modules() if isinstance(part, nn.Linear)), None)
    named = getattr(model.config, "howlinear_sites", None) is not None
    return first.in_features if named and first is not None else width_of(model)


def put(model: PreTrainedModel, site: Site, module: nn.Module) -> None:
    """Put a module that maps x to y in the place of an FFN that stands alone."""
    for path, part in placed(site, module).items():
        model.set_submodule(path, part)


def placed(site: Site, module: nn.Module) -> dict[str, nn.Module]:
    """Return path → what is to stand there, so that a module that maps x to y stands for an FFN.

    In a pair, the first module becomes an `InputTap` and the last a `Replacement`; what lies between (an activation)
    runs on tensors of width 0. Another `LayerPair` is put there layer by layer.
    """
    if site.input_name == site.name:
        return {site.name: module}
    if isinstance(module, LayerPair):
        return {site.input_name: module.input, site.name: module.output}
    memory: list[Tensor] = []
    return {site.input_name: InputTap(memory), site.name: Replacement(memory, module)}


class LayerPair(nn.Module):
    """The two layers of an FFN that has no module of its own, as in BERT, OPT and BLOOM, and what lies between them."""

    def __init__(self, first: nn.Module, last: nn.Module, between: Callable[[Tensor], Tensor] | None = None):
        """Without `between`, the pair cannot be called, only put in the place of another."""
        super().__init__()
        self.input, self.output = first, last
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        """Compute y of x, shape (…, d)."""
        return self.output(self.between(self.input(x)))


class InputTap(nn.Module):
    """A module that keeps x for its `Replacement`, and passes nothing on."""

    def __init__(self, memory: list[Tensor]):
        super().__init__()
        self.memory = memory

    def forward(self, x: Tensor) -> Tensor:
        """Keep x, shape (…, d_in); return shape (…, 0)."""
        self.memory.clear()
        self.memory.append(x)
        return x[..., :0]


class Replacement(nn.Module):
    """A module that maps the x that its `InputTap` kept."""

    def __init__(self, memory: list[Tensor], map_: nn.Module):
        super().__init__()
        self.memory = memory
        self.map = map_

    def forward(self, _: Tensor) -> Tensor:
        """Return the map of x, shape (…, d_out)."""
        return self.map(self.memory.pop())


def device_of(module: nn.Module) -> torch.device | int | str:
    """Find the device on which a module computes, even in a model over several devices or with offloaded weights."""
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)  # accelerate's, which brings weights to where they are needed
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return device
    for parameter in module.parameters():
        if not parameter.is_meta:
            return parameter.device
    return torch.device("cpu")
