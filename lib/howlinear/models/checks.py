"""The checks that every function which runs a model makes first: of the model, its mode and its inputs.

`hl.measure`, `capture`, `perplexity`, `losses`, `swap_costs` and `swap` all begin here, so that the same mistake gets
the same message from each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks
from transformers import PreTrainedModel

from howlinear.core.moments import tensor_of
from howlinear.errors import InputError
from howlinear.files.paths import printable
from howlinear.models.shards import is_on_disk

PERCEIVES = ("pixel_values", "input_features", "input_values")
"""Keywords that models read images and sound by."""

LIBRARIES = {"torch", "transformers", "accelerate", "howlinear"}
"""Libraries whose hooks are restored with a model, or remove themselves."""


def name_of(model: PreTrainedModel) -> str:
    """Return a model's name for a profile: where it came from, or its class if it was made in memory."""
    return printable(str(model.name_or_path or "")) or type(model).__name__


def unwrapped(model: Any) -> PreTrainedModel:
    """Return the `transformers` model that an object is, or wraps without changing what it computes.

    The wrappers may be `torch.compile`, `DataParallel` and `DistributedDataParallel`, nested in any order.
    """
    inside = model
    while isinstance(inside, nn.Module) and not isinstance(inside, PreTrainedModel):
        parallel = isinstance(inside, nn.parallel.DataParallel | nn.parallel.DistributedDataParallel)
        part = dict(inside.named_children()).get("module" if parallel else "_orig_mod")  # the latter is torch.compile's
        if part is None:
            break
        inside = part
    kind = type(inside).__name__
    if isinstance(inside, PreTrainedModel):
        return inside
    if callable(getattr(inside, "merge_and_unload", None)):  # an adapter of peft: its part is not in the weights
        raise InputError(f"a {kind} is an adapter around a model: merge it first, model = model.merge_and_unload()")
    for path, part in inside.named_modules() if isinstance(inside, nn.Module) else ():
        if isinstance(part, PreTrainedModel):
            raise InputError(
                f"a {kind} is no transformers model but holds one, a {type(part).__name__}: give that, "
                f"model.get_submodule({path!r}), if nothing around it changes what it computes"
            )
    held = getattr(inside, "model", None)
    if isinstance(held, PreTrainedModel):  # as a pipeline or a Trainer does
        raise InputError(f"a {kind} is no transformers model but holds one, a {type(held).__name__}: give its .model")
    raise InputError(f"a {kind} is no transformers model: give a PreTrainedModel, or a name to hl.load_model")


def check_weights(model: PreTrainedModel, on_disk: bool = False) -> None:
    """Refuse a model without its weights, unless they are offloaded, or stay in their files and `on_disk` allows it."""
    if is_on_disk(model) and not on_disk:
        raise InputError(
            f"the weights of this {type(model).__name__} stay in their files, and this takes all of them at once: load "
            "it whole, model = hl.load_model(…), of a compressed one from the folder that hl.save wrote"
        )
    if not is_on_disk(model) and lacks_weights(model):
        kind = type(model).__name__
        raise InputError(f"this {kind} is on the meta device and has no weights: load them, as hl.load_model does")


def lacks_weights(module: nn.Module) -> bool:
    """Whether a module has shapes instead of weights (on the meta device), and no hook of accelerate brings these.

    Run on numbers, a layer without weights is no error of torch: it returns whatever its memory holds.
    """
    brought = any(hasattr(part, "_hf_hook") for part in module.modules())
    return not brought and any(parameter.is_meta for parameter in module.parameters())


def check_in_memory(model: PreTrainedModel, purpose: str) -> None:
    """Refuse a model with weights that accelerate has offloaded or spread over several devices."""
    devices = set(getattr(model, "hf_device_map", {}).values())
    offloaded = not is_on_disk(model) and any(parameter.is_meta for parameter in model.parameters())
    if len(devices) > 1 or offloaded:
        lies = f"lies on {len(devices)} devices" if len(devices) > 1 else "has weights that are offloaded"
        raise InputError(f"this model {lies}: load it without device_map {purpose}")


_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""Model → the lock of the thread that runs or changes it."""


@contextmanager
def alone(module: nn.Module) -> Iterator[None]:
    """Keep other threads from running or changing a module: hooks would see their passes, and measure their swaps.

    A thread that is using it is not waited for, as it may itself be waiting for this one.
    """
    lock = _LOCKS.setdefault(getattr(module, "base_model", module), RLock())  # with its head or without
    if not lock.acquire(blocking=False):
        raise InputError(
            f"another thread is using this {type(module).__name__}: use it in one after the other, or give each thread "
            "a copy, copy.deepcopy(model)"
        )
    try:
        yield
    finally:
        lock.release()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, without dropout; every part returns to its previous mode afterwards."""
    with alone(module):
        training = [part for part in module.modules() if part.training]
        module.eval()
        try:
            yield
        finally:
            for part in training:
                part.training = True


@contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Put a model in evaluation mode with gradients available; the CPU's random state is restored afterwards."""
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError("this model was made within torch.inference_mode and gives no gradients: make it outside")
    with evaluating(model), torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        yield


def is_hooked(module: nn.Module, before: bool = False) -> bool:
    """Whether a user, not a library, has hooked a module's calls; with `before`, its inputs alone, or those of all."""
    others = _global_forward_pre_hooks if before else module._forward_hooks
    hooks = [*module._forward_pre_hooks.values(), *others.values()]
    owners = {str(getattr(hook, "func", hook).__module__).partition(".")[0] for hook in hooks}
    return not owners <= LIBRARIES


def is_written_over(module: nn.Module) -> bool:
    """Whether a user, not a library such as accelerate or `torch.compile`, has overwritten a module's forward."""
    forward = vars(module).get("forward")
    return forward is not None and not (hasattr(forward, "_torchdynamo_orig_callable") or hasattr(module, "_hf_hook"))


def check_count(name: str, given: Any, least: int = 1) -> int:
    """Check a whole number, Python's or numpy's, and return it as Python's, which torch takes."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < least:
        raise InputError(f"{name}={given!r}: give a whole number, {least} or more")
    return int(given)


def check_flags(**given: Any) -> None:
    """Refuse a flag that is neither True nor False; None stands for the default."""
    for name, flag in given.items():
        if flag is not None and not isinstance(flag, bool | np.bool_):
            raise InputError(f"{name}={flag!r}: give True or False")


def check_number(name: str, given: Any, example: str) -> None:
    """Refuse anything but a finite number."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not np.isfinite(given):
        raise InputError(f"{name}={given!r}: give a finite number, as {example}")


def as_tensor(given: Any, name: str) -> Tensor:
    """Convert a tensor, an array or lists to a tensor on the CPU; whole numbers of any width become int64."""
    try:
        tensor = tensor_of(given)
        odd = tensor.is_nested or tensor.is_meta or tensor.is_quantized
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError):
        odd = True
    cells = given if isinstance(given, list | tuple) else [given]
    if odd and any(isinstance(cell, str) for cell in cells):
        raise InputError(f"{name} holds strings, which no model reads: leave it out")
    if odd:
        raise InputError(
            f"{name} is a {type(given).__name__} that makes no tensor: give numbers in rows of one length; shorter "
            "rows are padded on the right, with an attention_mask"
        )
    tensor = (tensor if tensor.layout == torch.strided else tensor.to_dense()).cpu()
    whole_numbers = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.long() if whole_numbers else tensor


def as_ids(given: Any) -> Int64[Tensor, "n_sequences seq_len"]:
    """Convert a tensor, an array or lists of whole numbers to token ids."""
    ids = as_tensor(given, "token ids")
    if ids.ndim > 2 and ids.is_floating_point():
        raise InputError(
            f"token ids of shape {tuple(ids.shape)} that are no whole numbers: images and sounds go in one tensor with "
            "the examples along its first axis, named as the model reads it, {'pixel_values': torch.stack(images)}"
        )
    if ids.ndim != 2 or ids.numel() == 0:
        raise InputError(f"token ids of shape {tuple(ids.shape)}: give (n_sequences, seq_len), neither of them 0")
    if ids.dtype != torch.long:
        raise InputError(f"token ids are whole numbers, and these are {str(ids.dtype).removeprefix('torch.')}")
    return ids


def check_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> None:
    """Refuse inputs that a model cannot read, and say what is wrong with them."""
    for name, tensor in inputs.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(f"{name} holds NaN or infinity")
        if name in PERCEIVES and not tensor.is_floating_point():
            raise InputError(
                f"{name} holds whole numbers, and {type(model).__name__} reads the real ones that its processor makes "
                "of them: give what that returns"
            )
    reads = main_input(model)
    if reads not in inputs:
        raise InputError(f"{type(model).__name__} reads {reads}, not {', '.join(inputs)}: give {{{reads!r}: …}}")
    if is_encoder_decoder(model) and not inputs.keys() & {"decoder_input_ids", "decoder_inputs_embeds"}:
        raise InputError(
            f"{type(model).__name__} is an encoder and a decoder, and both read: give decoder_input_ids by keyword as "
            "well, or measure model.get_encoder()"
        )
    for name in ("input_ids", "decoder_input_ids"):
        if name in inputs:
            check_ids(model, inputs[name])


def main_input(model: PreTrainedModel) -> str:
    """Return the keyword of a model's main input: as its class names it, or that of a tower whose class does not."""
    taken = inspect.signature(model.forward).parameters
    perceived = [name for name in PERCEIVES if name in taken]
    named = model.main_input_name in taken or not perceived
    return model.main_input_name if named else perceived[0]


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Whether a model has both parts; the config alone does not tell, as half a model has that of the whole."""
    base = model.base_model
    both = hasattr(base, "encoder") and hasattr(base, "decoder")
    return both and bool(getattr(model.config, "is_encoder_decoder", False))


def check_ids(model: PreTrainedModel, ids: Int64[Tensor, "n_sequences seq_len"]) -> None:
    """Make sure that a model has a position and an embedding for every token."""
    check_length(model, ids.shape[1])
    try:
        vocabulary = model.get_input_embeddings().weight.shape[0]
    except (NotImplementedError, AttributeError):  # as in CLIP, whose parts have their own; the pass reports bad ids
        return
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocabulary:
        raise InputError(f"token ids run from {lowest} to {highest}, the model knows 0 to {vocabulary - 1}")


def check_length(model: PreTrainedModel, seq_len: int) -> None:
    """Make sure that a model has a position for every token of a sequence."""
    longest = longest_sequence(model)
    if longest is not None and seq_len > longest:
        raise InputError(
            f"sequences of {seq_len} tokens, but the model reads at most {longest}: shorten them, those of a "
            f"text by seq_len={longest} (--seq-len {longest})"
        )


def longest_sequence(model: PreTrainedModel) -> int | None:
    """Return how many tokens a model reads at once, None if any number. RoBERTa's positions start after padding's."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return len(module.weight) - module.padding_idx - 1
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return longest if longest is None or longest > 0 else None  # XLNet says -1
