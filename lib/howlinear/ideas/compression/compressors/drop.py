"""Rival compressors that drop what turns the residual stream least: layers, or attention and FFNs by themselves.

- ShortGPT (Men et al. 2024, arXiv 2403.03853): the layers of the lowest block influence, 1 − mean cosine of a layer's
  input and output.
- LLM-Drop (He et al. 2024, "What matters in transformers? Not all attention is needed", arXiv 2406.15786): the
  sub-layers, each with its norm, of the lowest 1 − cosine of the stream before and behind it; FFNs alone, or attention
  and FFNs in one order (the paper's *joint layer drop*). Attention alone, which that paper likes best, cannot fill the
  budgets of a race by parameters: it holds too few.

- ReplaceMe (Shopkhoev et al. 2025, "ReplaceMe: network simplification via depth pruning and transformer block
  linearization", arXiv 2505.02819): the span of n layers across which the stream turns least. Let M be the output of
  the FFN before the span, Y the stream that it is added to, and L the stream behind the span. Then L ≈ Y + M T, with T
  the least-squares solution, min ‖M T − (L − Y)‖², and T is merged with the FFN's last layer, so that the span costs no
  parameters. The authors also train T for the best cosine of Y + M T and L; that is not done here.

All are scored once, on the whole model, as in the papers. Nothing else takes the place of what is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.signals import Stream, stream
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, put, sites
from howlinear.models.forward import trunk
from howlinear.models.layers import (
    drop_layers,
    drop_sub_layer,
    layers_of,
    parameters,
    streams_hooked,
    sub_layer_size,
)
from howlinear.models.replace import copy_of
from howlinear.models.units import readout, unit_count, with_units


def layers(calibration: Calibration, share: float) -> PreTrainedModel:
    """Drop the layers of the lowest block influence (ShortGPT)."""
    influence = stream_of_layers(calibration).influence.tolist()
    sizes = {number: parameters(layer) for number, layer in enumerate(layers_of(calibration.model))}
    lowest_first = sorted(sizes, key=influence.__getitem__)
    dropped = calibration.take_enough(share, lowest_first, sizes, "all of them dropped")
    copied = copy_of(calibration.model)
    drop_layers(copied, dropped)
    return copied


def sub_layers(calibration: Calibration, share: float, kinds: Sequence[str]) -> PreTrainedModel:
    """Drop the sub-layers that turn the stream least, of the kinds "ffn" and "attention" (LLM-Drop)."""
    turned = stream_of_layers(calibration)
    numbers = range(len(layers_of(calibration.model)))
    scores = {(kind, number): float(getattr(turned, kind)[number]) for number in numbers for kind in kinds}
    sizes = {(kind, number): sub_layer_size(calibration.model, number, kind) for kind, number in scores}
    lowest_first = sorted(scores, key=scores.__getitem__)
    dropped = calibration.take_enough(share, lowest_first, sizes, "all of them dropped")
    copied = copy_of(calibration.model)
    for kind, number in dropped:
        drop_sub_layer(copied, number, kind)
        if kind == "attention":
            copied.config.use_cache = False  # the key-value cache counts tokens by what attention puts there
    return copied


@once
def stream_of_layers(calibration: Calibration) -> Stream:
    """Measure how far layers and sub-layers turn the residual stream on the training side."""
    return stream(calibration.model, calibration.ids)


def replace_me(calibration: Calibration, share: float) -> PreTrainedModel:
    """Drop the most dispensable span of layers, and merge its effect into the FFN before it (ReplaceMe)."""
    model = calibration.model
    gone = span(calibration, share)
    copied = copy_of(model)
    if not gone:
        return copied
    (site,) = sites(copied, [gone.start - 1])
    transform = least_squares_map(*around(calibration, gone))
    own = readout(copied, site)
    # (h V + b) T = h (V T) + b T
    merged = AffineMap(own.weight @ transform, own.bias @ transform)
    every = torch.arange(unit_count(copied, site))
    put(copied, site, with_units(copied, site, every, merged))
    drop_layers(copied, gone)
    return copied


def span(calibration: Calibration, share: float) -> range:
    """Choose the layers to drop: as few in a row as make the model small enough, with the least cosine distance."""
    every = layers_of(calibration.model)
    too_many = parameters(calibration.model) - calibration.allowed(share)
    count = -(-too_many // parameters(every[0]))
    if count >= len(every):
        raise InputError(f"{count} of {len(every)} layers are to go: one must be left before them")
    if count == 0:
        return range(0)
    distances = stream_of_layers(calibration).span_distances(count)[1:]  # the first layer has none before it
    first = int(distances.argmin()) + 1
    return range(first, first + count)


def least_squares_map(
    written: Float[Tensor, "n d"], read: Float[Tensor, "n d"], behind: Float[Tensor, "n d"]
) -> Float[Tensor, "d d"]:
    """Solve min ‖M T − (L − Y)‖² for T, float64."""
    m = written.double()
    return torch.linalg.lstsq(m, behind.double() - read, driver="gelsd").solution


@once
@torch.no_grad()
def around(
    calibration: Calibration, gone: range
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Collect the FFN output before a span of layers, the stream it is added to, and the stream behind the span."""
    model = calibration.model
    before, last = gone.start - 1, gone.stop - 1
    written: list[Tensor] = []
    streams: dict[int, list[Tensor]] = {before: [], last: []}

    def note_written(_: Site, __: Tensor, y: Tensor) -> None:
        written.append(y.flatten(0, -2).float().cpu().clone())  # Falcon adds attention to y in place

    def note_stream(site: Site, stream: Tensor) -> None:
        streams[site.block].append(stream.flatten(0, -2).float().cpu())

    around = sites(model, [before, last])
    with hooked(around[:1], note_written), streams_hooked(model, around, note_stream):
        for batch in calibration.ids.split(calibration.batch_size):
            trunk(model, batch, around[-1])
    m = torch.cat(written)
    return m, torch.cat(streams[before]) - m, torch.cat(streams[last])
