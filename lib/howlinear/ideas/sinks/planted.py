"""Sinks and other changes planted into a block of a model, so that the right findings are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.instrument.capture import Sample
from howlinear.models.calls import input_of
from howlinear.models.ffn_sites import sites

Change = Callable[[Tensor, Tensor], Tensor]
"""Takes x and y of a block, both of shape (batch, seq_len, d), and gives another y."""


@contextmanager
def planted(model: PreTrainedModel, block: int, change: Change) -> Iterator[PreTrainedModel]:
    """Change a block's output in the context, also if its FFN is spread over two modules."""
    (site,) = sites(model, [block])
    inputs: list[Tensor] = []

    def note_input(module: nn.Module, args: tuple, named: dict) -> None:
        inputs.append(input_of(module, args, named).clone())  # the block may write over it

    def change_output(_: nn.Module, __: tuple, y: Tensor) -> Tensor:
        return change(inputs.pop(), y)

    with ExitStack() as stack:
        stack.callback(site.input.register_forward_pre_hook(note_input, with_kwargs=True).remove)
        stack.callback(site.output.register_forward_hook(change_output).remove)
        yield model


@contextmanager
def sunk(
    model: PreTrainedModel,
    block: int,
    mark: Float[Tensor, " d"],
    vector: Float[Tensor, " d"],
    marking: int | None = None,
) -> Iterator[PreTrainedModel]:
    """Plant a sink in two steps, as in trained models: an earlier block marks the token, this one writes."""
    # without the mark no line could tell the token from others, and the block would be less linear instead of more
    marking = block - 1 if marking is None else marking
    with planted(model, marking, sink(mark)), planted(model, block, sink(vector)):
        yield model


def sink(vector: Float[Tensor, " d"]) -> Change:
    """Make a change that adds one vector to the output at position 0 of every sequence."""

    def add(_: Tensor, y: Tensor) -> Tensor:
        added = y.clone()
        added[:, 0] += vector.to(y)
        return added

    return add


def answer(direction: Float[Tensor, " d"], threshold: float, vector: Float[Tensor, " d"]) -> Change:
    """Make a change that adds one vector where inputs reach far along a direction, as those of an earlier sink do."""

    def add(x: Tensor, y: Tensor) -> Tensor:
        reached = x @ direction.to(x) > threshold
        return y + reached[..., None] * vector.to(y)

    return add


def first_apart(sample: Sample) -> tuple[Float[Tensor, " d"], float]:
    """Find the direction that separates inputs at position 0 from the others, and a threshold midway between them."""
    first = sample.position == 0
    direction = sample.x[first].mean(0) - sample.x[~first].mean(0)
    reach = sample.x @ direction
    return direction, float(reach[first].min() + reach[~first].max()) / 2
