"""A text moved through a model layer by layer: all its rows are behind one layer before any enters the next.

A forward pass takes a batch through all layers. Whoever changes a layer by what all rows give there, and wants the next
one to see the change, needs it the other way round. So the residual stream of every batch is kept, and each layer is
called on one batch after the other with what a pass of such a batch gave it besides (masks, positions).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.models.ffn_sites import Site
from howlinear.models.forward import trunk
from howlinear.models.layers import stack_of, stream_of


class _EnoughError(Exception):
    """Ends a pass once the first layer's input is known."""


class Layerwise:
    """The residual streams of a text, between two layers of a model.

    Attributes:
        streams: of each batch, as they stand, shape (batch, seq_len, d). Whoever changes one changes what the next
            layer reads.
        passed: how many layers they are behind.
    """

    def __init__(self, model: PreTrainedModel, batches: Sequence[Int64[Tensor, "batch seq_len"]]):
        """Bring batches of token ids, all of one length, up to the first layer.

        Args:
            model: the model; it may be changed in the layers that are still to come.
            batches: token ids, each of shape (batch, seq_len).
        """
        self.layers: nn.ModuleList = model.get_submodule(stack_of(model))
        self.streams: list[Tensor] = []
        self.passed = 0
        self._sizes = [len(batch) for batch in batches]
        # size of a batch → of each layer, what it gets besides the stream
        self._besides: dict[int, dict[int, tuple[tuple, dict]]] = {}
        for batch in batches:
            self._enter(model, batch)

    @torch.no_grad()
    def advance(self) -> None:
        """Move all streams through the next layer."""
        layer = self.layers[self.passed]
        for place, size in enumerate(self._sizes):
            args, named = self._besides[size][self.passed]
            self.streams[place] = stream_of(layer(self.streams[place], *args, **named))
        self.passed += 1

    @torch.no_grad()
    def _enter(self, model: PreTrainedModel, batch: Int64[Tensor, "batch seq_len"]) -> None:
        """Note what enters the first layer; of the first batch of its size, what every layer gets besides."""
        known = len(batch) in self._besides
        besides = self._besides.setdefault(len(batch), {})

        def note(number: int, _: nn.Module, args: tuple, named: dict) -> None:
            stream, *others = args
            besides[number] = (tuple(others), named)
            if number == 0:
                self.streams.append(stream.clone())
                if known:
                    raise _EnoughError

        with ExitStack() as hooks:
            for number, layer in enumerate(self.layers):
                hooks.callback(layer.register_forward_pre_hook(partial(note, number), with_kwargs=True).remove)
            with suppress(_EnoughError):
                trunk(model, batch)


def layer_number(site: Site) -> int:
    """Which layer of its model a site lies in, from 0."""
    return int(site.name.rsplit(".", 2)[1])
