"""Where a model keeps its feed-forward blocks: a table per family, a pattern of your own, or the model's structure.

An FFN site is the pair (module whose input is x, module whose output is y): after the norm, without the residual.
A pattern names it for all blocks, a star in the place of the block's number: `layers.*.mlp` where one module maps x to
y, `layers.*.fc1,layers.*.fc2` where the first and last layer lie apart or the residual is added between y and the
module's end. Paths are below `model.base_model`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.structure import Unclear, find

_BERT = "encoder.layer.*.intermediate.dense,encoder.layer.*.output.dense"  # `output` adds the residual and a norm
FAMILIES = {  # model_type: pattern
    **dict.fromkeys(("falcon", "gpt2", "gpt_neo", "gptj"), "h.*.mlp"),
    **dict.fromkeys(("gemma2", "gemma3_text", "gpt_neox", "llama", "mistral", "mixtral"), "layers.*.mlp"),
    **dict.fromkeys(("olmo2", "phi3", "qwen2", "qwen3", "stablelm", "vit"), "layers.*.mlp"),
    "bert": _BERT,
    "bloom": "h.*.mlp.dense_h_to_4h,h.*.mlp.dense_4h_to_h",  # `mlp` adds the residual
    "distilbert": "transformer.layer.*.ffn",
    "gemma3": "language_model.layers.*.mlp",
    "opt": "decoder.layers.*.fc1,decoder.layers.*.fc2",
    "roberta": _BERT,
}


@dataclass(frozen=True)
class Site:
    """One feed-forward block.

    Attributes:
        block: its depth, from 0.
        name: dotted path of `output` below the model.
        input: the module whose first argument is x.
        output: the module that returns y; usually the same one.
        input_name: dotted path of `input` below the model.
    """

    block: int
    name: str
    input: nn.Module
    output: nn.Module
    input_name: str

    @property
    def ffn(self) -> nn.Module | None:
        """The one module that maps x to y; None where that takes the pair, with what lies between."""
        if isinstance(self.output, Recalled):
            return self.output.map
        return self.output if self.input is self.output else None

    @property
    def linear(self) -> bool:
        """Whether nothing but linear layers stands here, as after `compressed.replace`."""
        parts = self.ffn if isinstance(self.ffn, nn.Sequential) else [self.ffn]
        return all(isinstance(part, nn.Linear) for part in parts)

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of both modules."""
        return list(nn.ModuleList([self.input, self.output]).parameters())


def sites(model: PreTrainedModel, blocks: list[int] | None = None) -> list[Site]:
    """The FFN sites of a model, in order of depth.

    Args:
        model: any `transformers` model; `load_model(…, sites=…)` says where to look if that cannot be told.
        blocks: which blocks; all by default.

    Raises:
        InputError: it cannot be told where this architecture keeps its FFNs (says what was found and what to pass), or
            a block that the model does not have.
    """
    found = _resolved(model, pattern_of(model))
    blocks = [site.block for site in found] if blocks is None else list(blocks)
    depth = [site.block for site in found]
    missing = [block for block in blocks if block not in depth]
    if missing or not blocks:
        there = f"0 to {depth[-1]}" if depth == list(range(len(depth))) else f"which are {depth}"
        raise InputError(f"no block {missing or '(empty list)'} in a model of {len(depth)} blocks, {there}")
    return [site for site in found if site.block in blocks]


def pattern_of(model: PreTrainedModel) -> str:
    """The pattern of a model's sites: the one noted in its config, else the table's, else what its structure says.

    Raises:
        InputError: none fits; says what to pass.
    """
    noted, family = getattr(model.config, "howlinear_sites", None), model.config.model_type
    if noted is not None:
        return _fitting(model, noted)
    if family in FAMILIES and _resolved(model, FAMILIES[family]):
        return FAMILIES[family]
    try:
        return find(model.base_model, width_of(model))
    except Unclear as unclear:
        raise InputError(
            f"cannot tell where {type(model).__name__}, a {family!r} model, keeps its FFNs: {unclear}; {_SAY}"
        ) from unclear


_SAY = (
    'name the module of every block, as in load_model(…, sites="model.layers.*.mlp") or --sites "model.layers.*.mlp", '
    'or its first and last layer, as in "model.layers.*.fc1,model.layers.*.fc2"'
)


def note(model: PreTrainedModel, pattern: str) -> None:
    """Note in a model's config where its FFNs are, for every function to read, and for the folder it is saved to.

    Raises:
        InputError: no module fits.
    """
    model.config.howlinear_sites = _fitting(model, pattern)


def _fitting(model: PreTrainedModel, pattern: str) -> str:
    if isinstance(pattern, str) and _resolved(model, pattern):
        return pattern
    where = f"{type(model).__name__} ({model.config.model_type})"
    raise InputError(f"no module in the blocks of {where} fits sites={pattern!r}: {_SAY}")


def width_of(model: PreTrainedModel) -> int:
    """Features of the residual stream, so of x and y."""
    return model.config.get_text_config().hidden_size


def _resolved(model: PreTrainedModel, pattern: str) -> list[Site]:
    """The sites that a pattern names, in order of depth; none unless every block has both modules."""
    ends = [_matches(model, path.strip()) for path in pattern.split(",")]
    if len(ends) > 2 or ends[0].keys() != ends[-1].keys():
        return []
    first, last = ends[0], ends[-1]
    get = model.get_submodule
    return [Site(block, last[block], get(first[block]), get(last[block]), first[block]) for block in sorted(last)]


def _matches(model: PreTrainedModel, path: str) -> dict[int, str]:
    """Block → path below the model of the module that a starred path names."""
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    starred = re.escape(path.removeprefix(prefix)).replace(r"\*", r"(\d+)", 1)
    fits = (re.fullmatch(starred, name) for name, _ in base.named_modules(remove_duplicate=False))
    return {int(fit.group(1)): prefix + fit.group(0) for fit in fits if fit and fit.groups()}


def put(model: PreTrainedModel, site: Site, module: nn.Module) -> None:
    """Put a module that maps x to y in the place of an FFN.

    In the place of a pair, the first becomes a `Kept` and the last a `Recalled`; what lies between (an activation) runs
    on no features at all.
    """
    if site.input_name == site.name:
        model.set_submodule(site.name, module)
        return
    memory: list[Tensor] = []
    model.set_submodule(site.input_name, Kept(memory))
    model.set_submodule(site.name, Recalled(memory, module))


def put_back(model: PreTrainedModel, site: Site) -> None:
    """Undo `put`: the modules that the site holds return to their places."""
    model.set_submodule(site.input_name, site.input)
    model.set_submodule(site.name, site.output)


class Kept(nn.Module):
    """Keeps x for its `Recalled`, and passes nothing on."""

    def __init__(self, memory: list[Tensor]):
        """Share `memory` with the `Recalled`."""
        super().__init__()
        self.memory = memory

    def forward(self, x: Tensor) -> Tensor:
        """Keep x, shape (…, d_in); return shape (…, 0)."""
        self.memory[:] = [x]
        return x[..., :0]


class Recalled(nn.Module):
    """Maps the x that its `Kept` kept."""

    def __init__(self, memory: list[Tensor], map_: nn.Module):
        """Share `memory` with the `Kept`."""
        super().__init__()
        self.memory, self.map = memory, map_

    def forward(self, _: Tensor) -> Tensor:
        """The map of x, shape (…, d_out)."""
        return self.map(self.memory.pop())
