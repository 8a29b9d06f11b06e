"""A rival compressor: a span of layers becomes one linear map, merged into the layer before (ReplaceMe).

Shopkhoev et al. 2025, "ReplaceMe: network simplification via depth pruning and transformer block linearization", arXiv
2505.02819. Of all spans of n layers, the one across which the stream turns least, by cosine, is dropped. Let M be the
output of the FFN before the span, Y the stream that it is added to, and L the stream behind the span. Then
L ≈ Y + M T, with T the least-squares solution, min ‖M T − (L − Y)‖², and T is merged with the FFN's last layer, so that
the span costs no parameters. The authors also train T for the best cosine of Y + M T and L; that is not done here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.compressors.drop import stream_of_layers
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.forward import trunk
from howlinear.models.layers import drop_layers, layers_of, parameters, streams_hooked
from howlinear.models.replace import copy_of
from howlinear.models.units import readout, unit_count, with_units


def least_squares(calibration: Calibration, share: float) -> PreTrainedModel:
    """Copy the model without its most dispensable span, whose effect is merged into the FFN before it."""
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
    copied.set_submodule(site.name, with_units(copied, site, every, merged))
    drop_layers(copied, gone)
    return copied


def span(calibration: Calibration, share: float) -> range:
    """Choose the layers to drop: as few in a row as make the model small enough, with the least cosine distance."""
    layers = layers_of(calibration.model)
    too_many = parameters(calibration.model) - calibration.allowed(share)
    count = -(-too_many // parameters(layers[0]))
    if count >= len(layers):
        raise InputError(f"{count} of {len(layers)} layers are to go: one must be left before them")
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
