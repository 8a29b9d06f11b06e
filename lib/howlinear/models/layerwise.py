"""Move a text through a model layer by layer: all its rows pass one layer before any enters the next.

A forward pass takes one batch through all layers. A caller that has memory for one layer at a time, or that changes a
layer using all rows and wants the next layer to see the change, needs the loops swapped. So the residual stream of
every batch is kept, and each layer is called on one batch after another.

This needs no knowledge of the architecture. In a pass in which every layer returns its input stream, the model's own
code shows which other arguments (masks, positions) each layer gets; in a pass in which every layer returns the stream
after the last layer, it computes what follows. The first kind of pass also shows whether layers can be called
separately: each must run once, in turn, on the very tensor that the previous layer returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import stream_of
from howlinear.models.ffn_sites import prefix_of
from howlinear.models.forward import Inputs, body_of, logits, one_pass, trunk
from howlinear.models.layers import forwards_replaced, stack_of
from howlinear.models.shards import chunks, fills_memory, is_on_disk, read, read_rows
from howlinear.models.work import StreamFiles


class InseparableError(InputError):
    """An error that says why the layers of a model cannot be called one by one."""


class Layerwise:
    """The residual streams of a text, between two layers of a model.

    Attributes:
        layers: the model's layers.
        streams: the current stream of each batch, shape (batch, seq_len, d); the next layer reads any change to it.
        passed: number of layers that the streams have passed.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, batches: Iterable[Inputs], site: str = "ffn"):
        """Bring batches up to the first layer; layers that the text has yet to pass may still be changed."""
        self.model = model
        self.stack = stack_of(model, site)
        self.layers: nn.ModuleList = model.get_submodule(self.stack)
        self.streams: list[Tensor] = []
        self.passed = 0
        self._extras: list[list[Extras]] = []  # batch → layer → its other arguments
        self._form: Callable[[Tensor], Any] | None = None  # a stream → a layer's return value with that stream
        before = "" if body_of(model) is model else prefix_of(model)
        embedding = model.get_input_embeddings()
        looked_up = self._matrix_on_disk(embedding, nn.Embedding)
        others = {} if looked_up is None else {embedding: self._looked_up(looked_up, embedding)}
        body = (name for name in self._names_beside(looked_up) if name.startswith(before))
        with read(model, chain(body, self._names_of(0))):
            for batch in batches:
                self._enter(batch, others)

    @torch.no_grad()
    def advance(self, begin: Callable[[int], None] = lambda _: None) -> None:
        """Move all streams through the next layer; `begin` is called with the number of each batch before it passes."""
        with self.layer() as run:
            for place, stream in enumerate(self.streams):
                begin(place)
                self.streams[place] = run(place, stream)
        self.passed += 1

    def resume(self, passed: int, files: StreamFiles) -> None:
        """Continue after `passed` layers, with the streams that were saved there."""
        if self.streams:
            self.streams = files.load(passed, self.streams[0].device)
        self.passed = passed

    @contextmanager
    def layer(self) -> Iterator[Callable[[int, Tensor], Tensor]]:
        """Load the next layer's weights and yield a function: batch number, stream before → stream after."""
        layer = self.layers[self.passed]

        def run(place: int, stream: Tensor) -> Tensor:
            args, named = self._extras[place][self.passed]
            with one_pass(self.model):
                return stream_of(layer(stream, *args, **named))

        with read(self.model, self._names_of(self.passed)):
            yield run

    @contextmanager
    def head(self) -> Iterator[Callable[[Inputs, Tensor], Tensor]]:
        """Load the last norm and the head and yield a function: inputs, stream after the last layer → logits."""
        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        unread = [f"{self._path_of(embedding)}.weight"]
        in_parts = {}
        matrix = self._matrix_on_disk(head, nn.Linear)
        if matrix is not None and fills_memory(head.weight.nbytes):  # then it is read in parts, anew for every batch
            unread.append(matrix)
            in_parts[head] = self._multiplied(matrix, head.forward)

        def predict(inputs: Inputs, stream: Tensor) -> Tensor:
            forwards = in_parts | dict.fromkeys(self.layers, lambda *_, **__: self._form(stream))
            # The embedding is a model's largest part, and its output is not used here: zeros take its place.
            forwards[embedding] = lambda ids, *_, **__: stream.new_zeros(*ids.shape, embedding.weight.shape[-1])
            with forwards_replaced(forwards):
                return logits(self.model, inputs)

        with read(self.model, self._names_beside(*unread)):
            yield predict

    def _path_of(self, module: nn.Module) -> str:
        return next(name for name, part in self.model.named_modules() if part is module)

    def _matrix_on_disk(self, module: nn.Module | None, kind: type[nn.Module]) -> str | None:
        """Return the name of a module's matrix if that is on disk and the module's only parameter."""
        is_known = is_on_disk(self.model) and isinstance(module, kind)
        alone = is_known and [name for name, _ in module.named_parameters()] == ["weight"]
        return f"{self._path_of(module)}.weight" if alone and module.weight.is_meta else None

    def _looked_up(self, name: str, embedding: nn.Embedding) -> Callable:
        """Make an embedding's forward that reads only the rows of the tokens that are looked up."""
        forward, padding = embedding.forward, embedding.padding_idx

        def look_up(ids: Tensor, *args: Any, **named: Any) -> Tensor:
            if ids.is_meta:  # as Llama 4 does
                raise InseparableError("it moves token ids to its embedding's weights, which stay in their files")
            used, places = ids.unique(return_inverse=True)
            embedding.padding_idx = None  # an index into the whole matrix, which only matters for gradients
            try:
                with read_rows(self.model, name, used.tolist()):
                    return forward(places, *args, **named)
            finally:
                embedding.padding_idx = padding

        return look_up

    def _multiplied(self, name: str, forward: Callable) -> Callable:
        """Make a head's forward that reads one part of the vocabulary after another."""

        def multiply(hidden: Tensor) -> Tensor:
            parts = []
            for rows in chunks(self.model.get_parameter(name)):
                with read_rows(self.model, name, rows):
                    parts.append(forward(hidden))
            return torch.cat(parts, dim=-1)

        return multiply

    def _names_of(self, number: int) -> Iterator[str]:
        yield from (name for name in self.model.state_dict() if name.startswith(f"{self.stack}.{number}."))

    def _names_beside(self, *unread: str | None) -> Iterator[str]:
        """Yield the names of the weights that are outside of the layers, but for those `unread`."""
        for name in self.model.state_dict():
            if not name.startswith(f"{self.stack}.") and name not in unread:
                yield name

    def _enter(self, batch: Inputs, others: Mapping[nn.Module, Callable]) -> None:
        """Record the first layer's input and every layer's other arguments, in a pass whose layers return their input.

        `others` maps modules outside the layers to the forwards that they have in this pass.
        """
        extras: list[Extras] = []
        handed_on: list[Tensor] = []

        def hand_on(number: int, forward: Callable, *args: Any, **named: Any) -> Any:
            self._check_turn(number, args, named, handed_on)
            stream, *others = args
            if number == 0:
                self.streams.append(stream)
            if self._form is None:
                self._form = _form_of(forward(stream.clone(), *others, **named))
            handed_on.append(stream)
            extras.append((tuple(others), named))
            return self._form(stream)

        forwards = {layer: partial(hand_on, number, layer.forward) for number, layer in enumerate(self.layers)}
        with forwards_replaced(forwards | others):
            trunk(self.model, batch)
        if len(extras) != len(self.layers):
            raise InseparableError(f"a pass runs {len(extras)} of its {len(self.layers)} layers")
        # Most batches have the same masks and positions, which are then kept once: Gemma 2's outweigh the streams.
        known = next((other for other in self._extras if _same(extras, other)), extras)
        self._extras.append(known)

    def _check_turn(self, number: int, args: tuple, named: dict, handed_on: list[Tensor]) -> None:
        """Refuse a layer unless it runs in turn, and reads the previous layer's output once, as its first argument."""
        if number != len(handed_on):
            raise InseparableError(f"layer {number} does not run once and in its turn")
        if not args or not isinstance(args[0], Tensor):
            raise InseparableError(f"layer {number} does not get the stream as its first argument")
        if handed_on and args[0] is not handed_on[-1]:
            raise InseparableError(f"something is computed between layers {number - 1} and {number}")
        if any(other is args[0] for other in (*args[1:], *named.values())):
            raise InseparableError(f"layer {number} gets the stream more than once")


def predictions(model: PreTrainedModel, batches: Iterable[Inputs]) -> Iterator[Tensor]:
    """Yield a model's logits of each batch; if its weights stay on disk, all batches move through it together."""
    if not is_on_disk(model):
        yield from (logits(model, batch) for batch in batches)
        return
    batches = list(batches)
    text = Layerwise(model, batches)
    while text.passed < len(text.layers):
        text.advance()
    with text.head() as predict:
        yield from map(predict, batches, text.streams)


Extras = tuple[tuple, dict[str, Any]]
"""A layer's arguments other than the stream: positional ones, and keywords."""


def _form_of(output: Tensor | tuple) -> Callable[[Tensor], Any]:
    """Make a function that returns a stream as a layer does: by itself, or as the first of several values."""
    if isinstance(output, Tensor):
        return lambda stream: stream
    return lambda stream: (stream, *output[1:])


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments are equal, tensors number by number."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return isinstance(one, str | int | float) and one == other
