"""A model's forward pass, up to its head and through it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from howlinear.errors import HowlinearError, InputError, SourceError, in_one_line
from howlinear.models.calls import FAILURES, stream_of
from howlinear.models.checks import main_input
from howlinear.models.ffn_sites import Site, device_of

Inputs = Int64[Tensor, "n seq_len"] | Mapping[str, Any]
"""Token ids, or a model's keywords (`text.rows.batch_of`)."""


def trunk(model: PreTrainedModel, inputs: Inputs, last: Site | None = None) -> None:
    """Run a model on a batch up to its head: for whoever listens at its modules.

    Layers behind that of `last`, the deepest site that is listened at, do not run, except in the model's first pass,
    which shows whether any runs again. All run by default.
    """
    with one_pass(model), _ended_behind(model, last):
        # with its head where its base model, as DINOv3's encoder, reads something else
        reads = inspect.signature(model.base_model.forward).parameters
        body = model.base_model if main_input(model) in reads else model
        body(**_keywords(model, body, inputs))


_RUNS_ONCE: WeakSet[Module] = WeakSet()
"""Models of which a whole pass has come through each layer once."""


_PASSED: ContextVar[set[tuple[int, str]] | None] = ContextVar("passed", default=None)
"""Where the pass that runs has been seen, by whom; None between passes."""


@contextmanager
def one_pass(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts, a model as it was written runs once, and what it draws in evaluation is the same in each pass.

    ViTMAE draws masks even then. Nobody else's random numbers are any other for it; in training all are drawn anew.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    token = _PASSED.set(set())
    # Compiled code passes hooks and swaps by; where nothing is compiled, to import dynamo takes seconds for nothing.
    as_written = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    try:
        with as_written, torch.random.fork_rng(devices, enabled=not model.training):
            if not model.training:
                torch.default_generator.manual_seed(0)
            if not model.training and devices:
                torch.cuda.manual_seed_all(0)
            yield
    finally:
        _PASSED.reset(token)


def check_passed_once(listener: int, site: Site) -> None:
    """Refuse a site that somebody who listens there has seen in this pass before."""
    passed = _PASSED.get()
    if passed is None:
        return
    if (listener, site.name) in passed:
        raise InputError(
            f"{site.name} runs more than once in a pass, so its rows are of several depths: name other sites"
        )
    passed.add((listener, site.name))


class _Passed(Exception):  # noqa: N818
    """The pass has come as far as it has to."""


@contextmanager
def _ended_behind(model: PreTrainedModel, last: Site | None) -> Iterator[None]:
    """While it lasts, a forward pass ends where the layer behind that of a site would begin."""
    if last is not None and model not in _RUNS_ONCE:
        yield
        _RUNS_ONCE.add(model)
        return
    following = None
    if last is not None and last.stack is not None:
        following = dict(model.get_submodule(last.stack).named_children()).get(str(last.block + 1))
    if following is None:
        yield
        return

    def end(*_: Any) -> None:
        raise _Passed

    with following.register_forward_pre_hook(end), suppress(_Passed):
        yield


def logits(model: PreTrainedModel, inputs: Inputs) -> Float[Tensor, "n seq_len vocabulary"]:
    """A model's predictions of each next token.

    A mixture of experts adds no loss of its router's, which is not there where a map stands.
    """
    adds_loss = getattr(model.config.get_text_config(), "output_router_logits", False)
    with one_pass(model):
        found = model(**_keywords(model, model, inputs), **({"output_router_logits": False} if adds_loss else {}))
    return found.logits if hasattr(found, "logits") else stream_of(found)  # a head of somebody's own returns a tensor


def _keywords(model: PreTrainedModel, body: Module, inputs: Inputs) -> Mapping[str, Any]:
    """What a model, or its body, is called with: to keep no cache, unless its forward, of somebody's own, has none."""
    if isinstance(inputs, Tensor):
        inputs = {"input_ids": inputs.to(device_of(model)), "use_cache": False}
    reads = inspect.signature(body.forward).parameters
    if "use_cache" in reads or any(each.kind is each.VAR_KEYWORD for each in reads.values()):
        return inputs
    return {name: given for name, given in inputs.items() if name != "use_cache"}


@contextmanager
def running(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts, a forward pass that fails is one line; a config that fits the weights may make no sense.

    It is a `SourceError` if the model was loaded from somewhere and fails at a single token as well.
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
        trunk(model, torch.zeros(1, 1, dtype=torch.long))
        return True
    return False
