"""Put maps in the place of feed-forward blocks, attention or whole layers, temporarily."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, Ceiling
from howlinear.errors import InputError
from howlinear.models.calls import input_of
from howlinear.models.checks import alone, evaluating, is_hooked, name_of, unwrapped
from howlinear.models.ffn_sites import Site, device_of, placed, sites, stands_alone, width_at


@contextmanager
def swap(model: Any, maps: Any, site: str | None = None) -> Iterator[PreTrainedModel]:
    """Put maps in the place of FFN blocks, and put the blocks back whatever happens.

    At attention or a whole layer, the model's own modules still run and their output is overwritten, because they also
    return what others need, such as keys, values or a position bias. The same is done at FFNs that return more than y,
    or read more than x, as some mixtures of experts do.

    Args:
        model: the model to change while the context lasts.
        maps: block → an `AffineMap`, a module, or any function of rows (…, d_in) to rows (…, d_out); or a profile, or
            ceilings, which hold such maps.
        site: what the maps replace, `ffn`, `attention` or `layer` (a layer's map gives what the layer adds to the
            residual stream); by default what the profile was measured on, or else `ffn`.

    Yields:
        The model.

    Raises:
        InputError: a block that the model does not have, an object that is no map, the profile of another model, an
            object that is no `transformers` model, or a model that another thread is using.
    """
    inside = unwrapped(model)
    maps, site = maps_and_site(inside, maps, site)
    with alone(inside), ExitStack() as restore:
        swapped_sites = sites(inside, list(maps), site) if maps else []
        for each in swapped_sites:
            module = _as_module(maps[each.block], inside, each)
            restore.enter_context(module.register_forward_hook(_check_output, with_kwargs=True))
            if not inside.training:  # a module that is passed in does not follow the model's mode
                restore.enter_context(evaluating(module))
            if each.kind == "ffn" and is_hooked(each.input, before=True):
                raise InputError(
                    f"block {each.block}: a hook stands before {each.input_name}, and a map in the block's place would "
                    "not get what it hands on: remove the hook first"
                )
            if each.kind == "ffn" and stands_alone(inside, each):
                for path, part in placed(each, module).items():
                    restore.enter_context(_in_place(inside, path, part))
            else:
                restore.enter_context(_written_over(each, module))
        yield model


_STANDING: WeakKeyDictionary[nn.Module, dict[str, list[nn.Module]]] = WeakKeyDictionary()
"""Parent of swapped modules → name → what stands there, one swap over another; the first is the model's own."""


@contextmanager
def _in_place(model: PreTrainedModel, path: str, module: nn.Module) -> Iterator[None]:
    """Put a module in a place; afterwards the latest swap that lasts stands there, or the model's own module."""
    above, _, name = path.rpartition(".")
    parent = model.get_submodule(above)
    standing = _STANDING.setdefault(parent, {}).setdefault(name, [parent.get_submodule(name)])
    training = model.training
    standing.append(module)
    parent.set_submodule(name, module)
    try:
        yield
    finally:
        standing.remove(module)
        parent.set_submodule(name, standing[-1])
        if model.training != training:  # set while the module was out of its reach
            standing[-1].train(model.training)
        if len(standing) == 1:
            del _STANDING[parent][name]


@contextmanager
def _written_over(site: Site, module: nn.Module) -> Iterator[None]:
    """Overwrite a site's output with a module's output for the same input; other return values stay as they are."""
    read: list[Tensor] = []

    def note(called: nn.Module, args: tuple, named: dict) -> None:
        read[:] = [input_of(called, args, named).clone()]  # the module may write over it

    def write(_: nn.Module, __: tuple, output: Tensor | tuple) -> Tensor | tuple:
        x = read.pop()
        y = x + module(x) if site.kind == "layer" else module(x)
        return y if isinstance(output, Tensor) else type(output)((y, *output[1:]))

    with site.input.register_forward_pre_hook(note, with_kwargs=True), site.output.register_forward_hook(write):
        yield


def maps_and_site(model: PreTrainedModel, maps: Any, site: str | None = None) -> tuple[dict[int, Any], str]:
    """Return block → map, from maps, a profile or its ceilings, and the site that the maps replace.

    The site is the one given, or else that of the profile or of its maps, or else `ffn`. The profile of another model
    is refused; maps without a profile may come from anywhere, as long as they fit.
    """
    of = getattr(maps, "model", None)
    if isinstance(of, str) and not _same_source(of, name_of(model)):
        raise InputError(
            f"a profile of {of}, and the model is {name_of(model)}: measure this one, or give the maps alone, "
            "{block: profile[block].map}"
        )
    if not isinstance(maps, Mapping):
        kind = type(maps).__name__
        raise InputError(f"maps are given as block → map, as in {{3: profile[3].map}}, and not as a {kind}")
    found = {}
    for block, given in maps.items():  # numpy's and torch's whole numbers are blocks too
        number = operator.index(block) if hasattr(block, "__index__") else block
        found[number] = given.map if isinstance(given, Ceiling) else given
    for block, map_ in found.items():
        if map_ is None:
            raise InputError(f"block {block} has no map: its profile was read from a file of numbers alone")
        if not callable(map_) and not hasattr(map_, "module"):
            kind = type(map_).__name__
            raise InputError(f"the map of block {block!r} is a {kind}: give a function of rows, or a module")
    measured = {getattr(maps, "site", None), *(map_.site for map_ in found.values() if isinstance(map_, AffineMap))}
    measured -= {None}
    if len(measured) > 1:
        raise InputError(f"maps of {' and '.join(sorted(measured))} together: swap one kind at a time")
    if site is not None and measured and site not in measured:
        raise InputError(f"site {site!r} with maps of {measured.pop()!r}: leave it out, or measure with site={site!r}")
    return found, site or (measured.pop() if measured else "ffn")


def _same_source(one: str, other: str) -> bool:
    """Whether two names may be of one model: the same folder, or the same last part if one of them is no folder."""
    if os.path.isdir(one) and os.path.isdir(other):
        return os.path.samefile(one, other)
    return Path(one).name == Path(other).name


class Mapped(nn.Module):
    """A function of rows as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(x)


def _check_output(module: nn.Module, args: tuple, named: dict, y: Any) -> None:
    check_mapped(input_of(module, args, named), y)


def check_mapped(x: Tensor, y: Any) -> None:
    """Refuse what a map gives if it has another shape than its rows: torch would stretch it to fit the stream."""
    if not isinstance(y, Tensor) or y.shape != x.shape:
        gives = f"{tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise InputError(f"a map gives {gives} for rows of shape {tuple(x.shape)}: it returns as many, as wide")


def _as_module(map_: Callable[[Tensor], Tensor], model: PreTrainedModel, site: Site) -> nn.Module:
    """Convert a map to a module; an affine one becomes a `Linear` on the site's device in the model's precision."""
    width = width_at(model, site)
    of_numbers = not isinstance(map_, nn.Module) and hasattr(map_, "weight") and hasattr(map_, "bias")
    affine = of_numbers or isinstance(map_, nn.Linear)
    if affine and map_.weight.shape != (width, width):
        raise InputError(f"a map of shape {tuple(map_.weight.shape)} for blocks of width {width}: fit it on this model")
    if isinstance(map_, nn.Module):
        return map_
    if not affine:
        return Mapped(map_)
    linear = skip_init(nn.Linear, width, width, device=device_of(site.input), dtype=model.dtype)
    with torch.no_grad():
        linear.weight.copy_(map_.weight.T)  # y = x W + b, and a Linear keeps Wᵀ
        linear.bias.copy_(map_.bias)
    return linear.requires_grad_(False)
