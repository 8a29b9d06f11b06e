"""What the layers of a model are made of, for whoever takes whole layers or sub-layers out of a copy.

`ffn_sites` knows where an FFN lies and `units` what it holds. To take attention out, or a sub-layer with the norm
before it, one has to know these by name. What is done here is done in place: give a copy (`replace.copy_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import stream_of
from howlinear.models.ffn_sites import Site, sites


@dataclass(frozen=True)
class Parts:
    """How a family calls the parts of a layer.

    Attributes:
        attention: the module that returns attention's output, and something beside it.
        attention_norm: the norm before it.
        ffn: the module that maps x to y.
        ffn_norm: the norm before it.
    """

    attention: str
    attention_norm: str
    ffn: str
    ffn_norm: str


PARTS = {  # model_type: parts
    "gpt2": Parts("attn", "ln_1", "mlp", "ln_2"),
    "gpt_neox": Parts("attention", "input_layernorm", "mlp", "post_attention_layernorm"),
    **dict.fromkeys(
        ("llama", "mistral", "qwen2"), Parts("self_attn", "input_layernorm", "mlp", "post_attention_layernorm")
    ),
}


NORM_WHAT_IS_WRITTEN = ("gemma2", "gemma3_text", "olmo2")
"""Families with a norm between an FFN's output and the residual stream."""


def parts_of(model: PreTrainedModel) -> Parts:
    """The names of the parts of a model's layers.

    Raises:
        InputError: they are not known.
    """
    family = model.config.model_type
    if family not in PARTS:
        raise InputError(f"the parts of {family!r} layers are not known; known are those of {', '.join(PARTS)}")
    return PARTS[family]


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The layers of a model, first to last.

    Raises:
        InputError: the parts of its layers are not known.
    """
    parts_of(model)
    return model.get_submodule(stack_of(model))


def stack_of(model: PreTrainedModel, site: str = "ffn") -> str:
    """The path of the layers, as `model.layers` of a site `model.layers.3.mlp`."""
    return re.match(r"(.*?)\.\d+(\.|$)", sites(model, site=site)[0].name).group(1)


def writes_to_stream(model: PreTrainedModel) -> bool:
    """Whether an FFN's output is added to the residual stream as it is, with no norm between."""
    return model.config.model_type not in NORM_WHAT_IS_WRITTEN


@contextmanager
def streams_hooked(
    model: PreTrainedModel, listened: list[Site], keep: Callable[[Site, Tensor], None]
) -> Iterator[None]:
    """While the context lasts, call `keep(site, stream)` behind the layer of each site at every pass.

    Args:
        model: the model.
        listened: the sites behind whose layers to listen.
        keep: gets the site and the residual stream behind its layer, shape (batch, seq_len, d).
    """

    def pass_on(site: Site, _: nn.Module, __: tuple, output: Tensor | tuple) -> None:
        keep(site, stream_of(output))

    with ExitStack() as stack:
        for site in listened:
            layer = model.get_submodule(site.name.rpartition(".")[0])
            stack.callback(layer.register_forward_hook(partial(pass_on, site)).remove)
        yield


@contextmanager
def forwards_replaced(forwards: Mapping[nn.Module, Callable]) -> Iterator[None]:
    """While it lasts, modules compute something else.

    Args:
        forwards: module → what it is to compute.
    """
    with ExitStack() as stack:
        for module, forward in forwards.items():
            stack.callback(_restore_forward, module, vars(module).get("forward"))
            module.forward = forward
        yield


def _restore_forward(module: nn.Module, forward: Callable | None) -> None:
    """`forward` is what the module itself had instead of its class's, if anything."""
    del module.forward
    if forward is not None:
        module.forward = forward


def drop_layers(model: PreTrainedModel, numbers: Collection[int]) -> None:
    """Take whole layers out; those behind move up.

    Raises:
        InputError: no layer would be left.
    """
    layers = layers_of(model)
    left = [layer for number, layer in enumerate(layers) if number not in numbers]
    if not left:
        raise InputError(f"all {len(layers)} layers are to go: leave at least one")
    for number, layer in enumerate(left):
        getattr(layer, parts_of(model).attention).layer_idx = number  # where its keys and values lie in a cache
    model.set_submodule(stack_of(model), nn.ModuleList(left))
    model.config.num_hidden_layers = len(left)


class Silent(nn.Module):
    """A sub-layer that writes nothing to the residual stream."""

    def __init__(self, attends: bool):
        """Stand for attention, which returns something beside its output, or for an FFN."""
        super().__init__()
        self.attends = attends

    def forward(self, hidden_states: Tensor, *_, **__) -> Tensor | tuple[Tensor, None]:
        """Zeros of the shape that came in."""
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.attends else nothing


def drop_attention(model: PreTrainedModel, number: int) -> None:
    """Take attention out of a layer, with the norm before it; the residual stream passes by."""
    parts = parts_of(model)
    layer = layers_of(model)[number]
    setattr(layer, parts.attention, Silent(attends=True))
    setattr(layer, parts.attention_norm, nn.Identity())


def drop_ffn(model: PreTrainedModel, number: int) -> None:
    """Take the FFN out of a layer, with the norm before it; the residual stream passes by."""
    parts = parts_of(model)
    layer = layers_of(model)[number]
    setattr(layer, parts.ffn, Silent(attends=False))
    setattr(layer, parts.ffn_norm, nn.Identity())


def sub_layer_sizes(model: PreTrainedModel, number: int) -> tuple[int, int]:
    """How many parameters a layer's attention and its FFN hold, each with the norm before it."""
    parts = parts_of(model)
    layer = layers_of(model)[number]
    attention = parameters(getattr(layer, parts.attention)) + parameters(getattr(layer, parts.attention_norm))
    ffn = parameters(getattr(layer, parts.ffn)) + parameters(getattr(layer, parts.ffn_norm))
    return attention, ffn


def parameters(module: nn.Module) -> int:
    """How many numbers a module holds; what two of its parts share counts once."""
    return sum(parameter.numel() for parameter in module.parameters())
