"""A model's forward pass, up to its head and through it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.backends import mha
from torch.nn import Module
from transformers import PreTrainedModel

from howlinear.errors import HowlinearError, InputError, SourceError, in_one_line
from howlinear.models.calls import FAILURES, stream_of
from howlinear.models.checks import is_hooked, is_written_over, main_input
from howlinear.models.ffn_sites import Site, device_of

Inputs = Int64[Tensor, "n seq_len"] | Mapping[str, Any]
"""Token ids, or a model's keywords (`text.rows.batch_of`)."""


def trunk(model: PreTrainedModel, inputs: Inputs, last: Site | None = None) -> None:
    """Run a model on a batch up to its head, for the hooks on its modules.

    Layers after that of `last`, the deepest hooked site, do not run, except in the model's first pass, which shows
    whether layers run once, in turn: else all run. By default all layers run.
    """
    with one_pass(model), _ended_behind(model, last):
        body = body_of(model)
        body(**_keywords(model, body, inputs))


def body_of(model: PreTrainedModel) -> Module:
    """Return what runs all layers: the base model, or the model with its head if that may change the layers' inputs.

    A hook or a custom forward may change them, and some base models, such as DINOv3's encoder, read something else.
    """
    of_library = type(model).forward.__module__.startswith("transformers.")
    as_written = of_library and not is_written_over(model) and not is_hooked(model, before=True)
    reads = inspect.signature(model.base_model.forward).parameters
    return model.base_model if as_written and main_input(model) in reads else model


_RUNS_IN_TURN: WeakSet[Module] = WeakSet()
"""Models that have had a full pass, in which each layer ran once, in the order of the list."""


_PASSED: ContextVar[set[tuple[int, str]] | None] = ContextVar("passed", default=None)
"""(Listener, site) pairs that the current pass has reached; None between passes."""


class _StateOfTorch:
    """The random state of torch, seeded for each pass, and its switch of fused layers, which is off for all passes.

    Both are restored when no pass runs any more in any thread. A fused `nn.TransformerEncoderLayer` runs none of its
    parts, so that hooks and swaps would see nothing, and reads nested tensors where there is padding.
    """

    def __init__(self):
        self.lock, self.passes, self.before = Lock(), 0, ExitStack()

    @contextmanager
    def seeded(self) -> Iterator[None]:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with self.lock:
            if not self.passes:
                self.before.enter_context(torch.random.fork_rng(devices))
                self.before.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
                mha.set_fastpath_enabled(False)
            self.passes += 1
            torch.default_generator.manual_seed(0)
            if devices:
                torch.cuda.manual_seed_all(0)
        try:
            yield
        finally:
            with self.lock:
                self.passes -= 1
                if not self.passes:
                    self.before.close()


_STATE_OF_TORCH = _StateOfTorch()


@contextmanager
def one_pass(model: PreTrainedModel) -> Iterator[None]:
    """Run one pass of a model, uncompiled; in evaluation mode, what it draws is the same in every pass.

    ViTMAE draws masks even then. The caller's random state is not affected; in training mode, all is drawn anew.
    """
    token = _PASSED.set(set())
    # Compiled code bypasses hooks and swaps. If nothing is compiled, dynamo is not imported, which takes seconds.
    as_written = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    try:
        with as_written, nullcontext() if model.training else _STATE_OF_TORCH.seeded():
            yield
    finally:
        _PASSED.reset(token)


def check_passed_once(listener: int, site: Site) -> None:
    """Refuse a site that the same listener has already seen in this pass."""
    passed = _PASSED.get()
    if passed is None:
        return
    if (listener, site.name) in passed:
        raise InputError(
            f"{site.name} runs more than once in a pass, so its rows are of several depths: name other sites"
        )
    passed.add((listener, site.name))


class _Passed(Exception):  # noqa: N818
    """The signal that a pass has come as far as needed."""


@contextmanager
def _ended_behind(model: PreTrainedModel, last: Site | None) -> Iterator[None]:
    """End forward passes before the layer that follows `last`'s, once a full pass has shown that layers run in turn."""
    layers = {} if last is None or last.stack is None else dict(model.get_submodule(last.stack).named_children())
    following = layers.get(str(last.block + 1)) if layers else None
    if following is None:
        yield
        return

    def end(*_: Any) -> None:
        raise _Passed

    if model in _RUNS_IN_TURN:
        with following.register_forward_pre_hook(end), suppress(_Passed):
            yield
        return
    ran: list[Module] = []
    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(layer.register_forward_pre_hook(lambda layer, _: ran.append(layer)))
        yield
    if ran == list(layers.values()):
        _RUNS_IN_TURN.add(model)


def hidden_states(model: PreTrainedModel, inputs: Inputs) -> Float[Tensor, "n places d"]:
    """Compute what a model's body returns of each place, all layers run."""
    with one_pass(model):
        found = model.base_model(**_keywords(model, model.base_model, inputs))
    return found[0]


def logits(model: PreTrainedModel, inputs: Inputs) -> Float[Tensor, "n seq_len vocabulary"]:
    """Compute a model's logits of each next token."""
    with one_pass(model):
        found = model(**_keywords(model, model, inputs))
    of_name = found.get if isinstance(found, dict) else partial(getattr, found)
    return stream_of(of_name("logits", found))  # a custom head returns a tensor


def _keywords(model: PreTrainedModel, body: Module, inputs: Inputs) -> Mapping[str, Any]:
    """Return the keywords for a model or its body: no cache is kept, and a custom forward may have no such keyword.

    A mixture of experts does not compute its router's loss, since a map has no router.
    """
    if isinstance(inputs, Tensor):
        inputs = {"input_ids": inputs.to(device_of(model)), "use_cache": False}
    if body is not model.base_model and getattr(model.config.get_text_config(), "output_router_logits", False):
        inputs = {**inputs, "output_router_logits": False}
    reads = inspect.signature(body.forward).parameters
    if any(each.kind is each.VAR_KEYWORD for each in reads.values()):
        return inputs
    ours = {"use_cache", "output_router_logits"}
    return {name: given for name, given in inputs.items() if name in reads or name not in ours}


@contextmanager
def running(model: PreTrainedModel) -> Iterator[None]:
    """Turn a failing forward pass into an error of one line; even a config that fits the weights may be wrong.

    It is a `SourceError` if the model was loaded from somewhere and fails on a single token too.
    """
    try:
        yield
    except HowlinearError:
        raise
    except FAILURES as error:
        name, reason = model.name_or_path, in_one_line(error)
        if name and not _runs(model):
            raise SourceError(
                f"{name} loads but does not run: {reason}; look at its config.json, at every map or hook that was put "
                "into it, and whether all its parts are of one precision"
            ) from error
        raise InputError(f"{name or type(model).__name__} fails at these rows: {reason}") from error


@torch.no_grad()
def _runs(model: PreTrainedModel) -> bool:
    """Whether a model that reads tokens runs on a single one."""
    with suppress(*FAILURES):
        trunk(model, torch.zeros(1, 1, dtype=torch.long, device="cpu"))
        return True
    return False
