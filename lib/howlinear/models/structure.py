"""Find the FFNs of an architecture that no table knows, and attention of any, from their modules alone.

In every block, an FFN is the one module outside attention that holds the block's widest weights, maps the hidden size
to itself, holds no norm of the residual stream, and acts on each token by itself, as nothing beside it does. The last
is tried, not guessed: a token's output must not depend on its neighbours. Whatever is not that clear is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from howlinear.models.calls import FAILURES, perceives, stream_of, suited_to
from howlinear.models.checks import evaluating

_PATTERNS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""What was found of each model before: once a block is swapped, its structure no longer shows where the FFN was."""


class Unclear(Exception):  # noqa: N818
    """Why the FFNs cannot be found.

    Attributes:
        pair: the pattern of two layers that may be the first and the last of an FFN; None if there are none.
    """

    def __init__(self, reason: str, pair: str | None = None):
        """Say why."""
        super().__init__(reason if pair is None else f'{reason} (perhaps it is the pair sites="{pair}")')
        self.pair = pair


def find(base: nn.Module, width: int, anew: bool = False) -> str:
    """The pattern of the FFNs of a model without its head, such as `layers.*.mlp`; the one found before, or anew."""
    if base in _PATTERNS and not anew:
        return _PATTERNS[base]
    lists = stacks(base)
    if not lists:
        raise Unclear("it has no list of blocks")
    patterns: list[str] = []
    unclear: list[Unclear] = []
    for name, stack in lists.items():
        try:
            patterns.append(_in_stack(name, stack, width))
        except Unclear as reason:
            unclear.append(reason)
    if not patterns:
        raise Unclear("; ".join(map(str, unclear)))
    # a text whose FFNs are pairs is as likely as a tower of its width that reads images; pairs of a tower are not
    fitting = [*patterns, *(reason.pair for reason in unclear if reason.pair and not perceives(reason.pair))]
    if len(fitting) > 1:
        raise Unclear(f"{' and '.join(fitting)} all fit")
    _PATTERNS[base] = patterns[0]
    return patterns[0]


def stacks(base: nn.Module) -> dict[str, nn.Module]:
    """The outermost lists whose members each hold several weight matrices, in modules of their own; by path."""
    lists: dict[str, nn.Module] = {}
    for name, module in base.named_modules():
        inside_another = any(name.startswith(f"{outer}.") for outer in lists)
        is_list = isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 0
        if is_list and not inside_another and all(_is_composed(member) for member in module):
            lists[name] = module
    return lists


def find_attention(base: nn.Module, stack: str, width: int) -> str:
    """The path of attention below each layer of a list, such as `self_attn`; a pair where it takes two modules.

    It is the outermost module that mixes tokens and holds no norm of the residual stream, of a decoder that reads an
    encoder the one that does not. Where a layer keeps attention's output matrix beside it, as BERT's
    `attention.output.dense` beside `attention.self`, the two are a pair. Layers without attention are left out.
    """
    paths = set()
    for number, layer in enumerate(base.get_submodule(stack)):
        fits: list[str] = []
        for path, module in layer.named_modules():
            inside_another = any(path.startswith(f"{outer}.") for outer in fits)
            reads_encoder = re.search(r"cross|enc_?dec|encoder_attn", path, re.IGNORECASE)
            own = path and _mixes_tokens(path, module) and not reads_encoder
            if own and not inside_another and not _norms_the_stream(module, width):
                fits.append(path)
        if len(fits) > 1:
            raise Unclear(f"several modules of {stack}.{number} could be it: {', '.join(fits)}")
        names = {path for path, _ in layer.named_modules()}
        for path in fits:
            beside = f"{path.rpartition('.')[0]}.output.dense"
            paths.add(f"{path},{beside}" if beside in names else path)
    if len(paths) != 1:
        found = f"the layers of {stack} differ: {', '.join(sorted(paths))}" if paths else f"no module of {stack}.* fits"
        raise Unclear(found)
    return paths.pop()


def _is_composed(module: nn.Module) -> bool:
    """Whether a module's weight matrices, more than one, all lie in modules below it."""
    owners = _widths(module)
    return len(owners) > 1 and "" not in owners


def _widths(block: nn.Module, skip: tuple[str, ...] = ()) -> dict[str, int]:
    """Path → widest side of its weights, of the modules that hold weights of two dimensions or more themselves.

    Paths that begin with one of `skip`, each with its dot, are left out.
    """
    widths: dict[str, int] = {}
    for name, parameter in block.named_parameters():
        owner = name.rpartition(".")[0]
        if parameter.ndim > 1 and not f"{owner}.".startswith(skip):
            rows, columns = parameter.shape[-2:]
            widths[owner] = max(widths.get(owner, 0), rows, columns)
    return widths


def _in_stack(name: str, stack: nn.Module, width: int) -> str:
    """The pattern of the FFNs of one list of blocks."""
    paths = {number: _in_block(f"{name}.{number}", block, width) for number, block in enumerate(stack)}
    if len(set(paths.values())) > 1:
        listed = ", ".join(f"{number}.{path}" for number, path in paths.items())
        raise Unclear(f"the blocks of {name} differ: {listed}")
    return f"{name}.*.{paths[0]}"


def _in_block(name: str, block: nn.Module, width: int) -> str:
    """The path of the FFN below its block."""
    attention = tuple(f"{path}." for path, module in block.named_modules() if path and _mixes_tokens(path, module))
    widths = _widths(block, attention)
    if not widths:
        raise Unclear(f"no module of {name} holds the FFN alone")
    widest = [owner for owner, widest_side in widths.items() if widest_side == max(widths.values())]

    # candidates hold all of the widest weights and no attention, outermost first; those that pass have an output
    outputs: dict[str, Tensor] = {}
    for path, module in block.named_modules():
        holds_widest = all(f"{owner}.".startswith(f"{path}.") for owner in widest)
        holds_attention = any(other.startswith(f"{path}.") for other in attention)
        if not path or not holds_widest or holds_attention or _norms_the_stream(module, width):
            continue
        output = _tokenwise(module, width)
        if output is not None:
            outputs[path] = output
    if not outputs:
        raise Unclear(f"no module of {name} holds the FFN alone", _pair(name, block, widest, width))

    # several may fit, one inside the other, if they compute the same
    outermost = next(iter(outputs))
    for output in outputs.values():
        if not torch.allclose(outputs[outermost], output, equal_nan=True):
            raise Unclear(f"several modules of {name} could be the FFN: {', '.join(outputs)}")

    # a shared expert may lie beside the mixture: then neither is the whole FFN
    for path, module in _beside(block, outermost):
        is_norm = "norm" in type(module).__name__.lower()  # some have matrices
        mixes_tokens = f"{path}.".startswith(attention)
        if not (is_norm or mixes_tokens) and _widths(module) and _tokenwise(module, width) is not None:
            raise Unclear(f"{outermost} and {path} of {name} both act on each token by itself, so neither is all of it")
    return outermost


def _beside(block: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The block's own parts but for the one that `path` lies in; of a list, its members."""
    for name, child in block.named_children():
        members = child.named_children() if isinstance(child, nn.ModuleList) else [("", child)]
        for number, member in members:
            part = f"{name}.{number}".rstrip(".")
            if path != part and not path.startswith(f"{part}."):
                yield part, member


def _mixes_tokens(path: str, module: nn.Module) -> bool:
    """Whether a module is attention or what stands in its place, by its name or its class, and holds weights."""
    name = path.rpartition(".")[2]
    named_so = re.search(r"attn|attention|mamba|shortconv", f"{name} {type(module).__name__}", re.IGNORECASE)
    return bool(named_so) and bool(_widths(module))


def _norms_the_stream(module: nn.Module, width: int) -> bool:
    """Whether a norm of the residual stream lies inside, so that its input is not yet x or its output no longer y."""
    for path, part in module.named_modules():
        of_queries = re.match(r"q|k", path.rpartition(".")[2])  # a norm of queries or keys, of all heads together
        is_norm = "norm" in type(part).__name__.lower() and not of_queries
        if is_norm and any(p.shape == (width,) for p in part.parameters()):
            return True
    return False


@torch.no_grad()
def _tokenwise(module: nn.Module, width: int) -> Tensor | None:
    """The module's output for two tokens, shape (1, 2, width), if each depends on its own input alone.

    Of several outputs it is the first: a mixture's router may give its scores as well.
    """
    x = suited_to(module, torch.randn(1, 2, width, generator=torch.Generator().manual_seed(0)))
    try:
        with evaluating(module):
            both = stream_of(module(x.clone()))
            second = stream_of(module(x[:, 1:].clone()))
    except FAILURES:
        return None  # it takes other arguments, or another width
    if not isinstance(both, Tensor) or both.shape != x.shape or both.is_meta:
        return None  # without weights, nothing can be tried
    tolerance = torch.finfo(x.dtype).eps ** 0.5
    largest = float(both.abs().max())
    alike = torch.allclose(both[:, 1:], second, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    return both if alike else None


def _pair(name: str, block: nn.Module, widest: list[str], width: int) -> str | None:
    """The pattern to pass, if two Linears look like an FFN's first and last layer."""
    layers = [block.get_submodule(owner) for owner in widest]
    if len(layers) != 2 or not all(isinstance(layer, nn.Linear) for layer in layers):
        return None
    first, last = layers
    if first.in_features != width or last.out_features != width:
        return None
    stack = name.rpartition(".")[0]
    return f"{stack}.*.{widest[0]},{stack}.*.{widest[1]}"
