"""A text that moves through a model layer by layer has the streams of an ordinary pass."""

import torch

from howlinear.models.ffn_sites import sites
from howlinear.models.layers import layers_of, streams_hooked
from howlinear.models.layerwise import Layerwise


def test_a_layer_or_a_stream_that_changes_on_the_way_is_seen_by_the_next(model, ids):
    text = Layerwise(model, [ids])
    text.advance()
    second = model.get_submodule(sites(model)[1].name.rpartition(".")[0])
    with torch.no_grad():
        next(second.parameters()).mul_(2)
    text.streams[0] *= 0.5
    text.advance()

    def halve(_, stream):
        stream *= 0.5

    expected = []
    first, second_site, *_ = sites(model)
    listening = streams_hooked(model, [second_site], lambda _, stream: expected.append(stream.clone()))
    with torch.no_grad(), streams_hooked(model, [first], halve), listening:
        model(input_ids=ids, use_cache=False)
    torch.testing.assert_close(text.streams[0], expected[0], rtol=1e-4, atol=1e-5)


def test_nothing_is_left_behind_in_the_model(model, ids):
    first, second, *_ = layers_of(model)
    first.forward = own = first.forward
    Layerwise(model, [ids]).advance()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert vars(first)["forward"] is own
    assert "forward" not in vars(second)
