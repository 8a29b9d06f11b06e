"""Layers and sub-layers that turn the stream least are dropped: planted ones first, and nothing but these."""

import pytest
import torch

from conftest import BLOCKS
from helpers.unit_rows import hush
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import drop
from howlinear.ideas.compression.compressors.drop import Stream, stream_of_layers
from howlinear.instrument.perplexity import losses
from howlinear.models.layers import ZeroOutput, layers_of, parameters, parts_of, sub_layer_size

BOTH = ["ffn", "attention"]


def part(model, number, kind):
    name, _ = parts_of(model)[kind]
    return getattr(layers_of(model)[number], name)


def share_without(model, *sizes):
    return (parameters(model) - sum(sizes)) / parameters(model)


def same_losses(smaller, model, ids):
    torch.testing.assert_close(losses(smaller, ids), losses(model, ids), atol=1e-5, rtol=0)


def test_a_silent_layer_goes_and_costs_nothing(model, rows):
    for kind in ("attention", "ffn"):
        hush(part(model, 1, kind))
    calibration = Calibration(model, rows)
    share = share_without(model, parameters(layers_of(model)[1]))
    smaller = drop.layers(calibration, share)
    assert parameters(smaller) == calibration.allowed(share)
    same_losses(smaller, model, rows.ids)
    with pytest.raises(InputError, match="leave at least one"):
        drop.layers(calibration, share_without(model, *[parameters(layer) for layer in layers_of(model)]))
    assert len(layers_of(model)) == BLOCKS


def test_a_silent_ffn_goes_and_costs_nothing(model, rows):
    """Block influence sees whole layers only, and attention of the same layer is not silent."""
    hush(part(model, 1, "ffn"))
    calibration = Calibration(model, rows)
    size = sub_layer_size(model, 1, "ffn")
    share = share_without(model, size)
    smaller = drop.sub_layers(calibration, share, ["ffn"])
    assert parameters(smaller) == calibration.allowed(share)
    assert isinstance(part(smaller, 1, "ffn"), ZeroOutput)
    same_losses(smaller, model, rows.ids)
    assert not torch.allclose(losses(drop.layers(calibration, share), rows.ids), losses(model, rows.ids), atol=1e-3)


def test_a_silent_attention_goes_and_costs_nothing(model, rows):
    hush(part(model, 2, "attention"))
    calibration = Calibration(model, rows)
    size = sub_layer_size(model, 2, "attention")
    smaller = drop.sub_layers(calibration, share_without(model, size), BOTH)
    assert isinstance(part(smaller, 2, "attention"), ZeroOutput)
    assert not smaller.config.use_cache
    same_losses(smaller, model, rows.ids)
    assert not isinstance(part(model, 2, "attention"), ZeroOutput)


def test_what_is_dropped_is_in_the_order_of_the_scores(gpt2, rows):
    calibration = Calibration(gpt2, rows)
    lowest = int(stream_of_layers(calibration).ffn.argmin())
    smaller = drop.sub_layers(calibration, share_without(gpt2, 1), ["ffn"])
    assert [number for number in range(BLOCKS) if isinstance(part(smaller, number, "ffn"), ZeroOutput)] == [lowest]
    assert parameters(drop.sub_layers(calibration, 1.0, ["ffn"])) == parameters(gpt2)


def test_layers_and_sub_layers_by_hand(model, rows):
    """Three layers turn the stream by 0.5, 0.1, 0.3: of two the second and third go, whatever it turns over both.

    Of sub-layers, attention of the first (0.01) goes, then the second FFN (0.05), then attention of the third (0.08).
    """
    calibration = Calibration(model, rows)
    states = torch.eye(BLOCKS + 1, dtype=torch.float64)
    for number, cosine in enumerate((0.5, 0.9, 0.7)):
        states[number, number + 1] = cosine
    attention, ffn = torch.tensor([0.01, 0.3, 0.08]).double(), torch.tensor([0.2, 0.05, 0.1]).double()
    calibration.memory["stream_of_layers",] = Stream(states, attention, ffn)

    sizes = [parameters(layer) for layer in layers_of(model)]
    smaller = drop.layers(calibration, share_without(model, sizes[1], sizes[2]))
    (left,) = layers_of(smaller)
    assert torch.equal(next(left.parameters()), next(layers_of(model)[0].parameters()))

    sizes = {kind: [sub_layer_size(model, n, kind) for n in range(BLOCKS)] for kind in ("attention", "ffn")}
    third = sizes["attention"][2]
    smaller = drop.sub_layers(calibration, share_without(model, sizes["attention"][0], sizes["ffn"][1], third), BOTH)
    gone = [
        (kind, n)
        for n in range(BLOCKS)
        for kind in ("attention", "ffn")
        if isinstance(part(smaller, n, kind), ZeroOutput)
    ]
    assert gone == [("attention", 0), ("ffn", 1), ("attention", 2)]
    smaller = drop.sub_layers(calibration, share_without(model, *sizes["ffn"][1:]), ["ffn"])
    assert [isinstance(part(smaller, n, "ffn"), ZeroOutput) for n in range(BLOCKS)] == [False, True, True]


def test_ffns_alone_do_not_hold_everything(gpt2, rows):
    calibration = Calibration(gpt2, rows)
    ffns = [sub_layer_size(gpt2, number, "ffn") for number in range(BLOCKS)]
    share = share_without(gpt2, *ffns, 1)
    with pytest.raises(InputError, match="with all of them dropped"):
        drop.sub_layers(calibration, share, ["ffn"])
    assert parameters(drop.sub_layers(calibration, share, BOTH)) <= calibration.allowed(share)
