"""Run a model again from one of its blocks on: what lies before is recorded once and then recalled.

To change the FFN of block k changes nothing that was computed before it. A pass through all of a batch keeps what every
layer returned, and in the layers that will be changed what attention returned before the FFN began; a later pass of the
same batch has these modules return it at once. The model's own code runs throughout, so embeddings, masks, residual
stream, last norm and head are as ever, and the result is the same to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.models import sites


class Recording:
    """What the layers of a model returned for one batch.

    Memory: as many rows of the batch as there are layers and blocks to be changed together.
    """

    def __init__(self, model: PreTrainedModel, blocks: list[int]):
        """Prepare to resume at `blocks`.

        Raises:
            InputError: a block that the model does not have.
        """
        self.sites = sites(model, blocks)
        stack = re.match(r"(.*?)\.\d+\.", self.sites[0].name).group(1)
        self.layers = list(model.get_submodule(stack))
        self.returned: dict[nn.Module, Any] = {}
        self.before: dict[int, list[nn.Module]] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Keep what the next pass returns, in the place of what was kept before."""
        self.returned.clear()
        self.before = {site.block: [] for site in self.sites}
        begun: set[int] = set()

        def keep(module: nn.Module, _: Any, output: Any) -> None:
            self.returned[module] = _copied(output)

        def keep_before(block: int, module: nn.Module, output: Any) -> None:
            if block not in begun:
                self.before[block].append(module)
                self.returned[module] = _copied(output)

        with ExitStack() as hooks:
            for layer in self.layers:
                hooks.callback(layer.register_forward_hook(keep).remove)
            for site in self.sites:

                def begin(*_: Any, block: int = site.block) -> None:
                    begun.add(block)

                def part(module: nn.Module, _: Any, output: Any, block: int = site.block) -> None:
                    keep_before(block, module, output)

                hooks.callback(site.input.register_forward_pre_hook(begin).remove)
                for module in self.layers[site.block].children():
                    if any(parameter.ndim > 1 for parameter in module.parameters()):  # norms are cheap
                        hooks.callback(module.register_forward_hook(part).remove)
            yield

    @contextmanager
    def resumed(self, block: int) -> Iterator[None]:
        """While it lasts, a pass of the recorded batch computes nothing that comes before the FFN of `block`."""
        with ExitStack() as restore:
            for module in [*self.layers[:block], *self.before[block]]:
                own = {name: value for name, value in vars(module).items() if name == "forward"}
                restore.callback(_restore, module, own)
                module.forward = _Recall(self.returned[module])
            yield


class _Recall:
    """A forward that returns what is recorded, a copy: a model may write into what it gets."""

    def __init__(self, returned: Any):
        self.returned = returned

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _copied(self.returned)


def _restore(module: nn.Module, own: dict[str, Any]) -> None:
    del module.forward
    vars(module).update(own)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return type(value)(map(_copied, value)) if isinstance(value, tuple | list) else value


@torch.inference_mode()
def resumable(model: PreTrainedModel, blocks: list[int], batch: Int64[Tensor, "n seq_len"]) -> bool:
    """Whether layers need no more of those before them than what they return.

    It is tried at each of `blocks` with a few tokens of `batch`, nothing swapped. False for a model whose layers share
    keys and values, say.
    """
    few = batch[:1, :8]
    recording = Recording(model, blocks)
    with recording.record():
        whole = model(input_ids=few, use_cache=False).logits
    try:
        for block in blocks:
            with recording.resumed(block):
                if not torch.equal(model(input_ids=few, use_cache=False).logits, whole):
                    return False
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return False  # a recalled layer leaves nothing behind besides its output
    return True
