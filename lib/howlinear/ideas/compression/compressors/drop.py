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

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.rivals import cosine_distance
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.forward import trunk
from howlinear.models.layers import (
    drop_attention,
    drop_ffn,
    drop_layers,
    is_parallel,
    layers_of,
    parameters,
    stream_of,
    sub_layer_sizes,
)
from howlinear.models.replace import copy_of


def layers(calibration: Calibration, share: float) -> PreTrainedModel:
    """Drop the layers of the lowest block influence (ShortGPT).

    Args:
        calibration: the model and the text.
        share: of all parameters, what the copy may hold at most.

    Raises:
        InputError: the copy would have no layer, or the parts of the model's layers are not known.
    """
    influence = stream_of_layers(calibration).span_distances(1).tolist()
    sizes = {number: parameters(layer) for number, layer in enumerate(layers_of(calibration.model))}
    dropped = _lowest(calibration, share, dict(enumerate(influence)), sizes)
    copied = copy_of(calibration.model)
    drop_layers(copied, dropped)
    return copied


def ffns(calibration: Calibration, share: float) -> PreTrainedModel:
    """Drop the FFNs that turn the stream least (LLM-Drop).

    Args:
        calibration: the model and the text.
        share: of all parameters, what the copy may hold at most.

    Raises:
        InputError: the FFNs do not hold enough, or the parts of the model's layers are not known.
    """
    return _without_sub_layers(calibration, share, with_attention=False)


def sub_layers(calibration: Calibration, share: float) -> PreTrainedModel:
    """Drop the FFNs and the attentions that turn the stream least (LLM-Drop, joint); see `ffns`."""
    return _without_sub_layers(calibration, share, with_attention=True)


def _without_sub_layers(calibration: Calibration, share: float, with_attention: bool) -> PreTrainedModel:
    scores, sizes = {}, {}
    for number in range(len(layers_of(calibration.model))):
        attention_size, ffn_size = sub_layer_sizes(calibration.model, number)
        scores["ffn", number] = float(stream_of_layers(calibration).ffn[number])
        sizes["ffn", number] = ffn_size
        if with_attention:
            scores["attention", number] = float(stream_of_layers(calibration).attention[number])
            sizes["attention", number] = attention_size
    dropped = _lowest(calibration, share, scores, sizes)
    copied = copy_of(calibration.model)
    for kind, number in dropped:
        if kind == "ffn":
            drop_ffn(copied, number)
        else:
            drop_attention(copied, number)
            copied.config.use_cache = False  # a cache of keys and values counts tokens by what attention puts there
    return copied


def _lowest(calibration: Calibration, share: float, scores: dict, sizes: dict) -> list:
    """What scores lowest, as few as make the model small enough.

    Raises:
        InputError: all of it is not enough.
    """
    held = parameters(calibration.model)
    allowed = calibration.allowed(share)
    dropped = []
    for name in sorted(scores, key=scores.__getitem__):
        if held <= allowed:
            break
        dropped.append(name)
        held -= sizes[name]
    if held > allowed:
        raise InputError(f"with all of them dropped {held} parameters are left, {allowed} are allowed")
    return dropped


# --- How far layers turn the stream


@once
def stream_of_layers(calibration: Calibration) -> Stream:
    """Cosines of the residual stream on the text to fit on."""
    return observe_stream(calibration.model, calibration.ids)


@dataclass(frozen=True)
class Stream:
    """How far the layers of a model turn its residual stream; means over all rows.

    Attributes:
        layers: cosine of the stream before layer i with that before layer j, shape (layers + 1, layers + 1); the last
            is the stream behind all layers, before the norm.
        attention: 1 − cosine of the stream that attention's norm reads with the same once attention has written to it,
            shape (layers,).
        ffn: the same of the FFN, shape (layers,).
    """

    layers: Float[Tensor, "states states"]
    attention: Float[Tensor, " layers"]
    ffn: Float[Tensor, " layers"]

    def span_distances(self, count: int) -> Float[Tensor, " starts"]:
        """1 − cosine of the stream before `count` layers in a row with that behind them, by the first of them."""
        return 1 - self.layers.diagonal(count)


@torch.no_grad()
def observe_stream(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int = 8) -> Stream:
    """Look at the residual stream before and behind every layer and sub-layer, in one pass.

    Args:
        model: a model whose norms come before attention and FFN; left as it was.
        ids: token ids, shape (n, seq_len).
        batch_size: sequences in a forward pass.
    """
    layers = layers_of(model)
    states: list[Tensor] = []  # of a batch, before each layer and behind the last
    written: dict[int, Tensor] = {}  # block → what its FFN wrote

    def note_state(_: nn.Module, args: tuple, named: dict) -> None:
        states.append(args[0] if args else named["hidden_states"])

    def note_last(_: nn.Module, __: tuple, output: Tensor | tuple) -> None:
        states.append(stream_of(output))

    def note_ffn(site: Site, _: Tensor, y: Tensor) -> None:
        written[site.block] = y.clone()

    cosines = torch.zeros(len(layers) + 1, len(layers) + 1, dtype=torch.float64)
    attention = torch.zeros(len(layers), dtype=torch.float64)
    ffn = torch.zeros(len(layers), dtype=torch.float64)
    with ExitStack() as hooks:
        hooks.enter_context(hooked(sites(model), note_ffn))
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(note_state, with_kwargs=True).remove)
        hooks.callback(layers[-1].register_forward_hook(note_last).remove)
        for batch in ids.split(batch_size):
            states.clear()
            trunk(model, batch)
            directions = torch.stack([normalize(state.double(), dim=-1).flatten() for state in states]).cpu()
            cosines += directions @ directions.T
            for number in range(len(layers)):
                before, behind, y = states[number], states[number + 1], written[number]
                between = behind - y  # the stream without what the FFN wrote
                attention[number] += cosine_distance(before, between).sum().cpu()
                read = before if is_parallel(model) else between
                ffn[number] += cosine_distance(read, read + y).sum().cpu()
    return Stream(cosines / ids.numel(), attention / ids.numel(), ffn / ids.numel())
