"""Feed-forward blocks whose two layers have no module of their own: what lies between them, and both as one module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import FAILURES, FirstOutput
from howlinear.models.checks import evaluating
from howlinear.models.ffn_sites import LayerPair, Site, stands_alone
from howlinear.models.forward import trunk
from howlinear.models.layerwise import Layerwise
from howlinear.models.shards import is_on_disk

_NAME_OF: WeakKeyDictionary[type[nn.Module], str] = WeakKeyDictionary()
"""Class of a module that holds the first layer of a pair → its own name for the activation."""


def ffn_module(model: PreTrainedModel, site: Site) -> nn.Module:
    """One module that maps x to y alone: the FFN itself, or a pair's two layers with the activation between them."""
    if site.ffn is None:
        return LayerPair(site.input, site.output, activation_between(model, site))
    return site.ffn if stands_alone(model, site) else FirstOutput(site.ffn)


def activation_between(model: PreTrainedModel, site: Site) -> Callable[[Tensor], Tensor]:
    """Find the activation between the two layers of a pair, beside the first.

    BERT and its like have one name for it. In other classes, the name is found in a pass of a few tokens.

    Raises:
        InputError: nothing beside the first layer turns its output into the input of the last.
    """
    beside = model.get_submodule(site.input_name.rpartition(".")[0])
    if hasattr(beside, "intermediate_act_fn"):
        return beside.intermediate_act_fn
    if type(beside) not in _NAME_OF:
        name = _name_between(model, site, beside)
        if name is None:
            raise InputError(f"cannot tell what lies between {site.input_name} and {site.name}: no activation is there")
        _NAME_OF[type(beside)] = name
    return getattr(beside, _NAME_OF[type(beside)])


@torch.no_grad()
def _name_between(model: PreTrainedModel, site: Site, beside: nn.Module) -> str | None:
    seen: list[Tensor] = []  # the output of the first layer, and the input of the last, in every pass
    first = site.input.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
    last = site.output.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    device = model.howlinear_shards.device if is_on_disk(model) else model.device
    inputs = {name: tensor.to(device) for name, tensor in model.dummy_inputs.items()}
    with first, last, evaluating(model), suppress(*FAILURES):
        if is_on_disk(model):
            text = Layerwise(model, [inputs])
            for _ in range(site.block + 1):
                text.advance()
        else:
            trunk(model, inputs, site)
    for name, each in [*beside.named_children(), *vars(beside).items()] if len(seen) > 1 else []:
        with suppress(*FAILURES):
            if torch.equal(each(seen[0].clone()), seen[1]):
                return name
    return None
