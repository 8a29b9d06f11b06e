"""The parts of a model's layers, by name, for taking whole layers or sub-layers out of a copy.

`ffn_sites` knows where an FFN lies and `units` what it holds. To take out attention, or a sub-layer with the norm
before it, their names are needed too. Functions here change a model in place: pass a copy (`replace.copy_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import stream_of
from howlinear.models.ffn_sites import Site, sites

_LLAMA = {"attention": ("self_attn", "input_layernorm"), "ffn": ("mlp", "post_attention_layernorm")}
PARTS = {  # model_type: names of each sub-layer and of the norm before it in its layers
    "gpt2": {"attention": ("attn", "ln_1"), "ffn": ("mlp", "ln_2")},
    "gpt_neox": _LLAMA | {"attention": ("attention", "input_layernorm")},
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
}


def parts_of(model: PreTrainedModel) -> dict[str, tuple[str, str]]:
    """Return `attention` and `ffn` → the names of the module and of the norm before it in a model's layers."""
    family = model.config.model_type
    if family not in PARTS:
        raise InputError(f"the parts of {family!r} layers are not known; known are those of {', '.join(PARTS)}")
    return PARTS[family]


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The layers of a model, first to last."""
    parts_of(model)
    return model.get_submodule(stack_of(model))


def stack_of(model: PreTrainedModel, site: str = "ffn") -> str:
    """Find the path of a model's list of layers, by their sites."""
    first = sites(model, site=site)[0]
    if first.stack is None:
        raise InputError(f"{first.name} is in no list of layers, so layers cannot be called one by one")
    return first.stack


@torch.no_grad()
def share_written(site: Site, run: Callable[[], Tensor]) -> float | None:
    """What share of an FFN's output reaches the residual stream: 1, or its layer's factor; None if a norm is between.

    Tried by a constant that is added to the output; `run` returns the stream behind the layer.
    """
    before = run()
    width = before.shape[-1]
    more = torch.linspace(-1, 2, width, device="cpu").to(before) * before.abs().max()
    with site.output.register_forward_hook(lambda _, __, y: y + more):
        change = (run() - before).flatten(0, -2).double()
    more = more.double()
    share = float((change @ more).mean() / more.square().sum())
    error = (change - share * more).abs().max()
    even = error <= torch.finfo(before.dtype).eps ** 0.5 * change.abs().max()  # not if half precision overflows either
    if not even or share == 0:
        return None
    return 1.0 if abs(share - 1) < 1e-3 else share


@contextmanager
def streams_hooked(
    model: PreTrainedModel, listened: list[Site], keep: Callable[[Site, Tensor], None]
) -> Iterator[None]:
    """Call `keep(site, stream)` after the layer of each site in every pass, shape (batch, seq_len, d)."""

    def pass_on(site: Site, _: nn.Module, __: tuple, output: Tensor | tuple) -> None:
        keep(site, stream_of(output))

    stack = stack_of(model)
    with ExitStack() as hooks:
        for site in listened:
            layer = model.get_submodule(f"{stack}.{site.block}")
            hooks.enter_context(layer.register_forward_hook(partial(pass_on, site)))
        yield


@contextmanager
def forwards_replaced(forwards: Mapping[nn.Module, Callable]) -> Iterator[None]:
    """Replace the forwards of modules for the duration of the context: module → forward."""
    own = {module: vars(module).get("forward") for module in forwards}  # a forward set on the instance, if any
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, forward in own.items():
            del module.forward
            if forward is not None:
                module.forward = forward


def drop_layers(model: PreTrainedModel, numbers: Collection[int]) -> None:
    """Take whole layers out; later layers move up."""
    layers = layers_of(model)
    attention, _ = parts_of(model)["attention"]
    left = [layer for number, layer in enumerate(layers) if number not in numbers]
    if not left:
        raise InputError(f"all {len(layers)} layers are to go: leave at least one")
    for number, layer in enumerate(left):
        getattr(layer, attention).layer_idx = number  # where its keys and values lie in a cache
    model.set_submodule(stack_of(model), nn.ModuleList(left))
    model.config.num_hidden_layers = len(left)


class ZeroOutput(nn.Module):
    """A sub-layer that writes nothing to the residual stream."""

    def __init__(self, attends: bool):
        """Stand for attention, which returns a second value, or for an FFN."""
        super().__init__()
        self.attends = attends

    def forward(self, hidden_states: Tensor, *_, **__) -> Tensor | tuple[Tensor, None]:
        """Return zeros of the input's shape."""
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.attends else nothing


def drop_sub_layer(model: PreTrainedModel, number: int, kind: str) -> None:
    """Take out a layer's `attention` or `ffn` and the norm before it; the residual stream passes unchanged."""
    layer = layers_of(model)[number]
    module, norm = parts_of(model)[kind]
    setattr(layer, module, ZeroOutput(attends=kind == "attention"))
    setattr(layer, norm, nn.Identity())


def sub_layer_size(model: PreTrainedModel, number: int, kind: str) -> int:
    """Count the parameters of a layer's `attention` or `ffn` and of the norm before it."""
    layer = layers_of(model)[number]
    return sum(parameters(getattr(layer, name)) for name in parts_of(model)[kind])


def parameters(module: nn.Module) -> int:
    """Count the numbers that a module holds; a parameter that two of its parts share counts once."""
    return sum(parameter.numel() for parameter in module.parameters())
