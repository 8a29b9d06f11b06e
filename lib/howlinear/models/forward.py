"""A model's forward pass, its linear layers at the processor's full speed.

torch multiplies float32 matrices by MKL, which keeps its AVX-512 code to Intel's processors: on others that have these
instructions a product takes twice as long as it need. oneDNN, which torch brings as well, uses them on all; on Intel's
it is a tenth slower than MKL. So on others with AVX-512, `trunk` and `logits` give a model's linear layers to oneDNN
while they run. The model stays as it is, what comes out differs by float32 rounding, as between two processors, and
gradients flow as ever.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from howlinear.models.ffn_sites import device_of

Inputs = Int64[Tensor, "n seq_len"] | Mapping[str, Any]
"""Token ids, or a model's keywords (`text.rows.batch_of`)."""


def trunk(model: PreTrainedModel, inputs: Inputs) -> None:
    """Run a model on a batch up to its head: for whoever listens at its modules.

    Args:
        model: the model.
        inputs: token ids, shape (n, seq_len), or keywords.
    """
    with linear_layers():
        model.base_model(**_keywords(model, inputs))


def logits(model: PreTrainedModel, inputs: Inputs) -> Float[Tensor, "n seq_len vocabulary"]:
    """A model's predictions of each next token.

    Args:
        model: a model with a head.
        inputs: token ids, shape (n, seq_len), or keywords.
    """
    with linear_layers():
        return model(**_keywords(model, inputs)).logits


def _keywords(model: PreTrainedModel, inputs: Inputs) -> Mapping[str, Any]:
    if not isinstance(inputs, Tensor):
        return inputs
    return {"input_ids": inputs.to(device_of(model)), "use_cache": False}


def linear_layers() -> AbstractContextManager:
    """While it lasts, linear layers in float32 run by oneDNN on a CPU where that helps; elsewhere nothing changes."""
    return _ByOneDNN() if _HELPS else nullcontext()


def helps(capability: str, processor: str) -> bool:
    """Whether oneDNN is faster than MKL on a processor.

    Args:
        capability: the widest instructions that torch uses, as `torch.backends.cpu.get_cpu_capability` says.
        processor: what the system says of the processor.
    """
    return capability == "AVX512" and "GenuineIntel" not in processor


def _processor() -> str:
    """What the system says of the processor, its maker's name in it."""
    linux = Path("/proc/cpuinfo")
    return linux.read_text() if linux.is_file() else platform.processor()


_HELPS = torch.backends.mkldnn.is_available() and helps(torch.backends.cpu.get_cpu_capability(), _processor())


class _ByOneDNN(TorchFunctionMode):
    """Turns calls of `linear`, which `nn.Linear` makes, and `addmm`, which GPT-2's layers make, to oneDNN."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if kwargs is None:
            kwargs = {}
        if function is torch.nn.functional.linear and not kwargs:
            x, weight, *bias = args
            if _suitable(x, weight):
                return _linear(x, weight, *bias)
        elif function is torch.addmm and not kwargs:
            bias, x, weight = args
            if bias.ndim == 1 and _suitable(x, weight):
                return _linear(x, weight.T, bias)
        return function(*args, **kwargs)


def _suitable(x: Tensor, weight: Tensor) -> bool:
    plain = all(matrix.device.type == "cpu" and matrix.dtype == torch.float32 for matrix in (x, weight))
    return plain and x.numel() > 0 and not torch.is_autocast_enabled("cpu")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _product(x, weight, bias)


def _product(x: Float[Tensor, "*n d_in"], weight: Float[Tensor, "d_out d_in"], bias: Tensor | None = None) -> Tensor:
    """X Wᵀ + b: the operator that torch's own compiler turns linear layers into."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """Y = X Wᵀ + b with its gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_x, of_weight, of_bias = ctx.needs_input_grad
        # ∂L/∂X = G W, ∂L/∂W = Gᵀ X, ∂L/∂b = Gᵀ 1
        return (
            _product(gradient, weight.T) if of_x else None,
            _product(rows.T, x.flatten(0, -2).T) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
