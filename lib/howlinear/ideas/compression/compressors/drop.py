"""Rival compressors that drop what turns the residual stream least: whole layers, or attention and FFNs by themselves.

- ShortGPT (Men et al. 2024, arXiv 2403.03853): the layers of the lowest block influence, 1 − mean cosine of a layer's
  input and output.
- LLM-Drop (He et al. 2024, "What matters in transformers? Not all attention is needed", arXiv 2406.15786): the
  sub-layers, each with its norm, of the lowest 1 − cosine of the stream before and behind it; FFNs alone, or attention
  and FFNs in one order (the paper's *joint layer drop*). Attention alone, which that paper likes best, cannot fill the
  budgets of a race by parameters: it holds too few.

All are scored once, on the whole model, as in both papers. Nothing takes the place of what is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.signals import Stream, stream
from howlinear.models.layers import drop_layers, drop_sub_layer, layers_of, parameters, sub_layer_size
from howlinear.models.replace import copy_of


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
