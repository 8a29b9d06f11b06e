"""Find the FFNs of an architecture that no table knows, from its modules alone.

In every block, an FFN is the one module outside attention that holds the block's widest weights, maps the hidden size
to itself, holds no norm of the residual stream, and acts on each token by itself. The last is tried, not guessed:
a token's output must not depend on its neighbours. Whatever is not that clear is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_FOUND: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # a swapped block shows no longer what it was


class Unclear(Exception):  # noqa: N818
    """Why the FFNs cannot be found."""


def find(base: nn.Module, width: int) -> str:
    """The pattern of a model's FFNs, such as `layers.*.mlp`.

    Args:
        base: the model without its head, with its weights.
        width: features of the residual stream.

    Raises:
        Unclear: no module fits in every block, or several do.
    """
    if base not in _FOUND:
        _FOUND[base] = _find(base, width)
    return _FOUND[base]


def _find(base: nn.Module, width: int) -> str:
    stacks = dict(_stacks(base))
    if not stacks:
        raise Unclear("it has no list of blocks")
    found, reasons = {}, []
    for name, stack in stacks.items():
        try:
            found[name] = _in_stack(name, stack, width)
        except Unclear as reason:
            reasons.append(str(reason))
    if len(found) > 1:
        raise Unclear(f"{' and '.join(found.values())} all fit")
    if not found:
        raise Unclear("; ".join(reasons))
    return next(iter(found.values()))


def _stacks(base: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost lists whose members each hold several weight matrices, in modules of their own."""
    inside: tuple[str, ...] = ()
    for name, module in base.named_modules():
        listed = isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 0
        if listed and not name.startswith(inside) and all(_composed(member) for member in module):
            inside += (f"{name}.",)
            yield name, module


def _composed(module: nn.Module) -> bool:
    return len(_weights(module)) > 1 and "" not in _weights(module)


def _weights(block: nn.Module, skip: tuple[str, ...] = ()) -> dict[str, int]:
    """Module → its widest weight's wider side, for modules that hold weights of two dimensions or more."""
    widths: dict[str, int] = {}
    for name, parameter in block.named_parameters():
        owner = name.rpartition(".")[0]
        if parameter.ndim > 1 and not f"{owner}.".startswith(skip):
            widths[owner] = max(widths.get(owner, 0), *parameter.shape[-2:])
    return widths


def _in_stack(name: str, stack: nn.Module, width: int) -> str:
    found = {number: _in_block(f"{name}.{number}", block, width) for number, block in enumerate(stack)}
    if len(set(found.values())) > 1:
        raise Unclear(f"the blocks of {name} differ: {', '.join(f'{n}.{leaf}' for n, leaf in found.items())}")
    return f"{name}.*.{found[0]}"


def _in_block(name: str, block: nn.Module, width: int) -> str:
    """The path of the FFN below its block."""
    attention = tuple(f"{path}." for path, module in block.named_modules() if path and _attends(path, module))
    weights = _weights(block, attention)
    widest = [owner for owner, wide in weights.items() if wide == max(weights.values())]
    outputs: dict[str, Tensor] = {}
    for path, module in block.named_modules():
        holds = path and all(f"{owner}.".startswith(f"{path}.") for owner in widest)
        if widest and holds and not any(other.startswith(f"{path}.") for other in attention):
            output = None if _norms(module, width) else _tokenwise(module, width)
            if output is not None:
                outputs[path] = output
    if not outputs:
        raise Unclear(f"no module of {name} holds the FFN alone{_pair(name, block, widest, width)}")
    outermost, output = next(iter(outputs.items()))
    if not all(torch.allclose(output, other, equal_nan=True) for other in outputs.values()):
        raise Unclear(f"several modules of {name} could be the FFN: {', '.join(outputs)}")
    return outermost


def _attends(path: str, module: nn.Module) -> bool:
    words = f"{path.rpartition('.')[2]} {type(module).__name__}"
    return bool(re.search(r"attn|attention", words, re.IGNORECASE)) and bool(_weights(module))


def _norms(module: nn.Module, width: int) -> bool:
    """Whether a norm of the residual stream lies inside, so that its input is not yet x or its output no longer y."""
    norms = [part for part in module.modules() if "norm" in type(part).__name__.lower()]
    return any(parameter.shape == (width,) for norm in norms for parameter in norm.parameters())


@torch.no_grad()
def _tokenwise(module: nn.Module, width: int) -> Tensor | None:
    """The module's output for two tokens, shape (1, 2, width), if each depends on its own input alone."""
    first = next(module.parameters())
    x = torch.randn(1, 2, width, generator=torch.Generator().manual_seed(0)).to(first.dtype)
    x = x if first.is_meta else x.to(first.device)  # weights that rest elsewhere bring their own device
    try:
        with _evaluated(module):
            both, second = module(x.clone()), module(x[:, 1:].clone())
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None  # it takes other arguments, or another width
    if not isinstance(both, Tensor) or both.shape != x.shape or both.is_meta:
        return None  # without weights, nothing can be tried
    close = torch.finfo(x.dtype).eps ** 0.5
    alike = torch.allclose(both[:, 1:], second, rtol=close, atol=close * float(both.abs().max()), equal_nan=True)
    return both if alike else None


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """Without dropout while it lasts."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _pair(name: str, block: nn.Module, widest: list[str], width: int) -> str:
    """What to pass, if two Linears look like an FFN's first and last layer."""
    layers = [block.get_submodule(owner) for owner in widest]
    if len(layers) != 2 or not all(isinstance(layer, nn.Linear) for layer in layers):
        return ""
    if (layers[0].in_features, layers[1].out_features) != (width, width):
        return ""
    stack = name.rpartition(".")[0]
    return f' (perhaps it is the pair sites="{stack}.*.{widest[0]},{stack}.*.{widest[1]}")'
