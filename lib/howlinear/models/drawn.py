"""Weights that are drawn when a part of the model runs: for an untrained model that is larger than memory.

`load.untrained` builds such a model, with all its parameters on the meta device. Each weight is drawn by the model's
own initialisation rule, in a twin of the model whose other parameters are all on the meta device, where drawing does
nothing. Each has its own stream of random numbers, so it is the same whenever it is read. A model in memory draws all
its weights from one stream: the distribution is the same, the numbers differ.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.errors import InputError

PART = 32
"""Rows of an embedding or a head that are drawn together: a text reads few of them. No initialisation rule of a
language model depends on how many rows these matrices have."""


class Draws:
    """The weights of an untrained model, to be read like `shards.Shards`, but without files."""

    files: tuple[Path, ...] = ()

    def __init__(self, model: PreTrainedModel, seed: int, device: str = "cpu"):
        """Draw nothing yet, for a model all of whose parameters are on the meta device."""
        # The model itself may have some weights in memory, which a rule would draw anew.
        self.twin = copy.deepcopy(model)
        self.seed = seed
        self.device = device
        self._tied = getattr(self.twin, "all_tied_weights_keys", {})
        ends = (self.twin.get_input_embeddings(), self.twin.get_output_embeddings())
        self._in_parts = {f"{name}.weight" for name, part in self.twin.named_modules() if part in ends}

    def read(self, name: str, like: Tensor) -> Tensor:
        """Draw a weight, given by its name in the model, in the precision of `like`."""
        if not isinstance(like, nn.Parameter):
            return like  # a buffer, which the model has made
        if name in self._in_parts:
            return self.read_rows(name, range(len(like)), like)
        return self._draw(name, like.shape).to(self.device, like.dtype)

    def read_rows(self, name: str, rows: Sequence[int], like: Tensor) -> Tensor:
        """Draw rows of an embedding or a head, given by ascending numbers, in the precision of `like`."""
        numbers = torch.as_tensor(rows, device="cpu")
        parts, counts = (numbers // PART).unique_consecutive(return_counts=True)
        drawn = torch.empty(len(numbers), *like.shape[1:], dtype=like.dtype, device=self.device)
        counts = counts.tolist()
        for part, some, target in zip(parts.tolist(), numbers.split(counts), drawn.split(counts), strict=True):
            first = part * PART
            shape = (min(PART, len(like) - first), *like.shape[1:])
            target.copy_(self._draw(name, shape, first)[some - first])
        return drawn

    @torch.no_grad()
    def _draw(self, name: str, shape: Sequence[int], first: int = 0) -> Tensor:
        """Draw a weight of the given shape, or rows of it from `first` on, on the CPU in float32."""
        name = self._tied.get(name, name)
        path, _, leaf = name.rpartition(".")
        owner = self.twin.get_submodule(path)
        rests, padding = getattr(owner, leaf), getattr(owner, "padding_idx", None)
        drawn = nn.Parameter(torch.full(shape, torch.nan, dtype=torch.float32, device="cpu"), requires_grad=False)
        key = hashlib.sha256(f"{self.seed} {name} {first}".encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(key[:8]))
            try:
                setattr(owner, leaf, drawn)
                if name in self._in_parts and padding is not None:
                    owner.padding_idx = padding - first if first <= padding < first + len(drawn) else None
                for initialise in self._rules(path):
                    initialise()
            finally:
                setattr(owner, leaf, rests)
                if padding is not None:
                    owner.padding_idx = padding
        if drawn.sum().isnan():
            raise InputError(f"{type(self.twin).__name__} has no rule to draw {name}: measure the whole model")
        return drawn.data

    def _rules(self, path: str) -> Iterator[Callable[[], None]]:
        """Yield the rules that draw a module's weights: its own, then those of the modules around it, innermost first.

        As in `PreTrainedModel.initialize_weights`, each rule is that of the innermost model around the module.
        """
        rules = []
        part = model = self.twin
        for name in f".{path}".split("."):
            part = part.get_submodule(name)
            model = part if isinstance(part, PreTrainedModel) else model
            rules.append(partial(model._init_weights, part))
        return reversed(rules)
