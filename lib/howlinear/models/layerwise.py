"""A text moved through a model layer by layer: all its rows are behind one layer before any enters the next.

A forward pass takes a batch through all layers. Whoever has room for one layer at a time, or changes a layer by what
all rows give there and wants the next one to see the change, needs it the other way round. So the residual stream of
every batch is kept, and each layer is called on one batch after the other.

No architecture is spelled out for that. In a pass in which every layer hands on the stream that it gets, the model's
own code says what each of them is called with besides (masks, positions), and in a pass in which every layer hands on
what stands behind the last one, it computes what follows. Whether layers can be called so is seen in the first of these
passes: each must run once, in turn, on the very tensor that the one before returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import stream_of
from howlinear.models.ffn_sites import prefix_of
from howlinear.models.forward import Inputs, logits, one_pass, trunk
from howlinear.models.layers import forwards_replaced, stack_of
from howlinear.models.shards import chunks, fills_memory, is_on_disk, read, read_rows
from howlinear.models.work import StreamFiles


class InseparableError(InputError):
    """Why the layers of a model cannot be called one by one."""


class Layerwise:
    """The residual streams of a text, between two layers of a model.

    Attributes:
        layers: the model's.
        streams: of each batch, as they stand, shape (batch, seq_len, d). Whoever changes one changes what the next
            layer reads.
        passed: how many layers they are behind.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, batches: Iterable[Inputs], site: str = "ffn"):
        """Bring batches up to the first layer.

        Args:
            model: the model; it may be changed in the layers that are still to come.
            batches: token ids or keywords, as of `forward.trunk`.
            site: by which kind of site the layers are found (`ffn_sites.KINDS`).
        """
        self.model = model
        self.stack = stack_of(model, site)
        self.layers: nn.ModuleList = model.get_submodule(self.stack)
        self.streams: list[Tensor] = []
        self.passed = 0
        self._besides: list[list[Besides]] = []  # of each batch, of each layer
        self._form: Callable[[Tensor], Any] | None = None  # a stream → what holds it when a layer returns it
        body = [name for name in self._names_beside() if name.startswith(prefix_of(model))]
        embedding = model.get_input_embeddings()
        looked_up = self._matrix_on_disk(embedding, nn.Embedding)
        others = {} if looked_up is None else {embedding: self._looked_up(looked_up, embedding)}
        with read(model, [*(name for name in body if name != looked_up), *self._names_of(0)]):
            for batch in batches:
                self._enter(batch, others)

    @torch.no_grad()
    def advance(self, begin: Callable[[int], None] = lambda _: None) -> None:
        """Move all streams through the next layer; `begin` is told the number of each batch before it passes."""
        with self.layer() as run:
            for place, stream in enumerate(self.streams):
                begin(place)
                self.streams[place] = run(place, stream)
        self.passed += 1

    def resume(self, passed: int, files: StreamFiles) -> None:
        """Put the streams behind so many layers, as they were kept there."""
        if self.streams:
            self.streams = files.load(passed, self.streams[0].device)
        self.passed = passed

    @contextmanager
    def layer(self) -> Iterator[Callable[[int, Tensor], Tensor]]:
        """While it lasts, the weights of the next layer are there: batch's number, stream before it → stream behind."""
        layer = self.layers[self.passed]

        def run(place: int, stream: Tensor) -> Tensor:
            args, named = self._besides[place][self.passed]
            with one_pass(self.model):
                return stream_of(layer(stream, *args, **named))

        with read(self.model, self._names_of(self.passed)):
            yield run

    @contextmanager
    def head(self) -> Iterator[Callable[[Inputs, Tensor], Tensor]]:
        """While it lasts, the last norm and the head are there: inputs, their stream behind the last layer → logits."""
        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        unread = [f"{self._path_of(embedding)}.weight"]
        in_parts = {}
        matrix = self._matrix_on_disk(head, nn.Linear)
        if matrix is not None and fills_memory(head.weight.nbytes):  # then its parts are read for every batch
            unread.append(matrix)
            in_parts[head] = self._multiplied(matrix, head.forward)

        def predict(inputs: Inputs, stream: Tensor) -> Tensor:
            forwards = in_parts | dict.fromkeys(self.layers, lambda *_, **__: self._form(stream))
            # An embedding is the largest of a model's parts, and nothing that it returns goes any farther.
            forwards[embedding] = lambda ids, *_, **__: stream.new_zeros(*ids.shape, embedding.weight.shape[-1])
            with forwards_replaced(forwards):
                return logits(self.model, inputs)

        with read(self.model, [name for name in self._names_beside() if name not in unread]):
            yield predict

    def _path_of(self, module: nn.Module) -> str:
        return next(name for name, part in self.model.named_modules() if part is module)

    def _matrix_on_disk(self, module: nn.Module | None, kind: type[nn.Module]) -> str | None:
        """The name of a module's matrix, if that is on disk and is all that the module has."""
        is_known = is_on_disk(self.model) and isinstance(module, kind)
        alone = is_known and [name for name, _ in module.named_parameters()] == ["weight"]
        return f"{self._path_of(module)}.weight" if alone and module.weight.is_meta else None

    def _looked_up(self, name: str, embedding: nn.Embedding) -> Callable:
        """An embedding's forward; of its rows there are only those of the tokens that are looked up."""
        forward, padding = embedding.forward, embedding.padding_idx

        def look_up(ids: Tensor, *args: Any, **named: Any) -> Tensor:
            used, places = ids.unique(return_inverse=True)
            embedding.padding_idx = None  # it numbers rows of the whole, and matters to gradients alone
            try:
                with read_rows(self.model, name, used.tolist()):
                    return forward(places, *args, **named)
            finally:
                embedding.padding_idx = padding

        return look_up

    def _multiplied(self, name: str, forward: Callable) -> Callable:
        """A head's forward, one part of the vocabulary after the other."""

        def multiply(hidden: Tensor) -> Tensor:
            parts = []
            for rows in chunks(self.model.get_parameter(name)):
                with read_rows(self.model, name, rows):
                    parts.append(forward(hidden))
            return torch.cat(parts, dim=-1)

        return multiply

    def _names_of(self, number: int) -> list[str]:
        """The names of a layer's weights on disk."""
        return [name for name in self._names_on_disk() if name.startswith(f"{self.stack}.{number}.")]

    def _names_beside(self) -> list[str]:
        """The names of the weights on disk that are outside of the layers."""
        return [name for name in self._names_on_disk() if not name.startswith(f"{self.stack}.")]

    def _names_on_disk(self) -> list[str]:
        return list(self.model.state_dict()) if is_on_disk(self.model) else []

    def _enter(self, batch: Inputs, others: Mapping[nn.Module, Callable]) -> None:
        """Note what enters the first layer, and what every layer gets besides, in a pass in which none computes.

        Modules outside of the layers compute what `others` says, if they are there.
        """
        besides: list[Besides] = []
        handed_on: list[Tensor] = []

        def hand_on(number: int, forward: Callable, *args: Any, **named: Any) -> Any:
            self._check_turn(number, args, named, handed_on)
            stream, *others = args
            if number == 0:
                self.streams.append(stream)
            if self._form is None:
                self._form = _form_of(forward(stream.clone(), *others, **named))
            handed_on.append(stream)
            besides.append((tuple(others), named))
            return self._form(stream)

        forwards = {layer: partial(hand_on, number, layer.forward) for number, layer in enumerate(self.layers)}
        with forwards_replaced(forwards | others):
            trunk(self.model, batch)
        if len(besides) != len(self.layers):
            raise InseparableError(f"a pass runs {len(besides)} of its {len(self.layers)} layers")
        # Batches mostly have masks and positions alike, which are kept once then.
        known = next((other for other in self._besides if _same(besides, other)), besides)
        self._besides.append(known)

    def _check_turn(self, number: int, args: tuple, named: dict, handed_on: list[Tensor]) -> None:
        """Refuse a layer that does not get what the one before returned, and nothing else that layers compute."""
        if number != len(handed_on):
            raise InseparableError(f"layer {number} does not run once and in its turn")
        if not args or not isinstance(args[0], Tensor):
            raise InseparableError(f"layer {number} does not get the stream as its first argument")
        if handed_on and args[0] is not handed_on[-1]:
            raise InseparableError(f"something is computed between layers {number - 1} and {number}")
        if any(other is args[0] for other in (*args[1:], *named.values())):
            raise InseparableError(f"layer {number} gets the stream more than once")


def predictions(model: PreTrainedModel, batches: Iterable[Inputs]) -> Iterator[Tensor]:
    """A model's logits of each batch; of one whose weights stay on disk all batches move through it together."""
    if not is_on_disk(model):
        yield from (logits(model, batch) for batch in batches)
        return
    batches = list(batches)
    text = Layerwise(model, batches)
    while text.passed < len(text.layers):
        text.advance()
    with text.head() as predict:
        yield from map(predict, batches, text.streams)


Besides = tuple[tuple, dict[str, Any]]
"""What a layer gets besides the stream: in its place, and by keyword."""


def _form_of(output: Tensor | tuple) -> Callable[[Tensor], Any]:
    """How a layer returns a stream: as it is, or as the first of several things."""
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
