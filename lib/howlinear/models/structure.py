"""Find the FFNs of an architecture that is in no table, and the attention of any, from their modules alone.

In every block, the FFN is the one module outside attention that holds the block's widest weights, maps the hidden size
to itself, holds no norm of the residual stream, and acts on each token by itself, unlike the modules next to it. The
last is tested, not guessed: a token's output must not depend on its neighbours, with weights drawn at random if the
model's own are not in memory. Or it is a pair of layers, named as in
BERT or in BART, whose layers add the residual behind the second. Anything less clear is refused.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from howlinear.models.calls import FAILURES, perceives, stream_of, suited_to
from howlinear.models.checks import evaluating, lacks_weights

_PATTERNS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""Patterns found so far, by model: once a block is swapped, its structure no longer shows where the FFN was."""

_PAIRS = ("intermediate.dense,output.dense", "fc1,fc2")  # of BERT and BART, and of the families that come from them


class Unclear(Exception):  # noqa: N818
    """The reason why the FFNs cannot be found.

    Attributes:
        pair: the pattern of two layers that may be the first and the last of an FFN; None if there are none.
    """

    def __init__(self, reason: str, pair: str | None = None):
        super().__init__(reason if pair is None else f'{reason} (perhaps it is the pair sites="{pair}")')
        self.pair = pair


def find(base: nn.Module, width: int, anew: bool = False) -> str:
    """Find the pattern of the FFNs of a model's body, such as `layers.*.mlp`: the one found before, unless `anew`."""
    if base in _PATTERNS and not anew:
        return _PATTERNS[base]
    lists = stacks(base)
    if not lists:
        raise Unclear("it has no list of blocks")
    patterns: list[str] = []
    unclear: dict[str, Unclear] = {}
    for name, stack in lists.items():
        try:
            paths: dict[int, str] = {}
            path_in: dict[str, str] = {}  # structure of a block, or its number → path: without weights, once is enough
            for number, block in enumerate(stack):
                key = repr(block) if lacks_weights(block) else str(number)
                if key not in path_in:
                    path_in[key] = _in_block(f"{name}.{number}", block, width)
                paths[number] = path_in[key]
            if len(set(paths.values())) > 1:
                listed = ", ".join(f"{number}.{path}" for number, path in paths.items())
                raise Unclear(f"the blocks of {name} differ: {listed}")
            patterns.append(starred(name, paths[0]))
        except Unclear as reason:
            unclear[name] = reason
    # pairs in a tower that reads images or sound do not count beside other blocks
    patterns = [each for each in patterns if "," not in each or not perceives(each)] or patterns
    of_text = [reason for name, reason in unclear.items() if not perceives(name)]
    if all(map(perceives, patterns)) and (of_text or not patterns):  # a tower does not stand for a text's blocks
        raise Unclear("; ".join(map(str, of_text or unclear.values())))
    # pairs of a text's FFNs count as much as an image tower of the same width
    fitting = [*patterns, *(reason.pair for reason in unclear.values() if reason.pair and not perceives(reason.pair))]
    if len(fitting) > 1:
        raise Unclear(f"{' and '.join(fitting)} all fit")
    _PATTERNS[base] = patterns[0]
    return patterns[0]


def stacks(base: nn.Module) -> dict[str, nn.Module]:
    """Find the outermost lists whose members each hold several weight matrices in submodules: path → list."""
    lists: dict[str, nn.Module] = {}
    for name, module in base.named_modules():
        inside_another = any(name.startswith(f"{outer}.") for outer in lists)
        is_list = isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 0
        if is_list and not inside_another:
            owners = [_widths(member) for member in module]
            if all(len(of_member) > 1 and "" not in of_member for of_member in owners):
                lists[name] = module
    return lists


def find_attention(base: nn.Module, stack: str, width: int) -> str:
    """Find the path of attention below each layer of a list, such as `self_attn`; a pair if it takes two modules.

    Attention is the outermost module that mixes tokens and holds no norm of the residual stream; in a decoder that
    reads an encoder, it is self-attention. If a layer keeps attention's output matrix in a module of its own, as BERT
    keeps `attention.output.dense` next to `attention.self`, the two are a pair. Layers without attention are skipped.
    """
    paths = set()
    for number, layer in base.get_submodule(stack).named_children():
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


def starred(stack: str, paths: str) -> str:
    """Write the pattern of one module of every layer of a list, or of a pair, such as `layers.*.fc1,layers.*.fc2`."""
    return ",".join(f"{stack}.*.{path}" for path in paths.split(","))


def _widths(block: nn.Module, skip: tuple[str, ...] = ()) -> dict[str, int]:
    """Map the path of each module that itself holds weights of two or more dimensions to their widest side.

    Paths that begin with one of `skip`, which end in a dot, are left out.
    """
    widths: dict[str, int] = {}
    for name, parameter in block.named_parameters():
        owner = name.rpartition(".")[0]
        if parameter.ndim > 1 and not f"{owner}.".startswith(skip):
            rows, columns = parameter.shape[-2:]
            widths[owner] = max(widths.get(owner, 0), rows, columns)
    return widths


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
        pair = _pair(block, widest, width)
        if pair in _PAIRS and len(widths) == 2:  # nothing else acts beside the two, as X-MOD's adapters do
            return pair
        raise Unclear(f"no module of {name} holds the FFN alone", pair and starred(name.rpartition(".")[0], pair))

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
    """Yield the block's children, or a list's members in its place, except for the one that `path` lies in."""
    for name, child in block.named_children():
        members = child.named_children() if isinstance(child, nn.ModuleList) else [("", child)]
        for number, member in members:
            part = f"{name}.{number}".rstrip(".")
            if path != part and not path.startswith(f"{part}."):
                yield part, member


def _mixes_tokens(path: str, module: nn.Module) -> bool:
    """Whether a module holds weights and is, by its name or class, attention or a substitute for it."""
    name = path.rpartition(".")[2]
    named_so = re.search(r"attn|attention|mamba|shortconv", f"{name} {type(module).__name__}", re.IGNORECASE)
    return bool(named_so) and bool(_widths(module))


def _norms_the_stream(module: nn.Module, width: int) -> bool:
    """Whether a module holds a norm of the residual stream, so that its input is not x or its output not y."""
    for path, part in module.named_modules():
        of_queries = re.match(r"q|k", path.rpartition(".")[2])  # a norm of queries or keys, of all heads together
        is_norm = "norm" in type(part).__name__.lower() and not of_queries
        if is_norm and any(p.shape == (width,) for p in part.parameters(recurse=False)):
            return True
    return False


@torch.no_grad()
def _tokenwise(module: nn.Module, width: int) -> Tensor | None:
    """Return the module's output for two tokens, shape (1, 2, width), if each depends on its own input alone.

    If there are several outputs, it is the first: a mixture of experts may also return its router's scores.
    """
    if lacks_weights(module):
        module = _with_drawn_weights(module)
    x = suited_to(module, torch.randn(1, 2, width, generator=torch.Generator().manual_seed(0), device="cpu"))
    try:
        with evaluating(module):
            both = stream_of(module(x.clone()))
            second = stream_of(module(x[:, 1:].clone()))
    except FAILURES:
        return None  # it takes other arguments, or another width
    if not isinstance(both, Tensor) or both.numel() != x.numel():
        return None
    both, second = both.reshape(x.shape), second.reshape(1, 1, width)  # some mixtures flatten their tokens
    tolerance = torch.finfo(x.dtype).eps ** 0.5
    largest = float(both.nan_to_num().abs().max())
    alike = torch.allclose(both[:, 1:], second, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    return both if alike else None


def _with_drawn_weights(module: nn.Module) -> nn.Module:
    """Copy a module, with weights at random in the place of those that are not in memory, and buffers of zeros."""
    drawn = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    for part in drawn.modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                values = 0.02 * torch.randn(weight.shape, generator=generator, device="cpu")
                part._parameters[name] = nn.Parameter(values.to(weight.dtype), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = torch.zeros_like(buffer, device="cpu")
    return drawn


def _pair(block: nn.Module, widest: list[str], width: int) -> str | None:
    """The paths of two Linears that look like an FFN's first and last layer, if the widest weights are these."""
    layers = [block.get_submodule(owner) for owner in widest]
    if len(layers) != 2 or not all(isinstance(layer, nn.Linear) for layer in layers):
        return None
    first, last = layers
    return ",".join(widest) if first.in_features == width and last.out_features == width else None
