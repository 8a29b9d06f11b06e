"""Layers and sub-layers taken out of tiny models, and passed one by one."""

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM, GraniteConfig, GraniteForCausalLM

from conftest import BLOCKS, VOCABULARY
from helpers.captures import streams_behind
from helpers.families import GROUPED, UNITS, reads, small
from howlinear.errors import InputError
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import (
    drop_layers,
    drop_sub_layer,
    layers_of,
    parameters,
    parts_of,
    share_written,
    streams_hooked,
    sub_layer_size,
)
from howlinear.models.layerwise import Layerwise


def states(model, ids):
    """The residual stream before every layer; of the last that transformers gives is normalised."""
    with torch.no_grad():
        return model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[:-1]


def test_a_dropped_layer_is_passed_by(model, ids):
    layers = list(layers_of(model))
    size = parameters(model)
    before = states(model, ids)
    drop_layers(model, [1])
    assert list(layers_of(model)) == [layers[0], layers[2]]
    assert parameters(model) == size - parameters(layers[1])
    torch.testing.assert_close(states(model, ids)[1], before[1])  # what the second layer of the copy reads
    assert len(sites(model)) == BLOCKS - 1
    assert model.config.num_hidden_layers == BLOCKS - 1


def test_a_model_without_a_layer_still_generates_with_its_cache(model, ids):
    """Layers find keys and values by their number, so those behind a dropped one move up."""
    drop_layers(model, [0])
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(ids[:2, :8], use_cache=True, **options)
    assert torch.equal(cached, model.generate(ids[:2, :8], use_cache=False, **options))


def test_a_layer_without_both_sub_layers_leaves_the_stream_as_it_was(model, ids):
    size = parameters(model)
    attention_size, ffn_size = (sub_layer_size(model, 1, kind) for kind in ("attention", "ffn"))
    drop_sub_layer(model, 1, "attention")
    assert parameters(model) == size - attention_size
    assert not torch.equal(states(model, ids)[2], states(model, ids)[1])
    drop_sub_layer(model, 1, "ffn")
    assert parameters(model) == size - attention_size - ffn_size
    assert torch.equal(states(model, ids)[2], states(model, ids)[1])
    assert len(sites(model)) == BLOCKS


def test_a_model_keeps_a_layer(gpt2):
    with pytest.raises(InputError, match="leave at least one"):
        drop_layers(gpt2, range(BLOCKS))


def test_other_families_are_refused():
    other = GPTJForCausalLM(GPTJConfig(n_embd=16, n_layer=1, n_head=2, rotary_dim=4, vocab_size=VOCABULARY))
    with pytest.raises(InputError, match="'gptj' layers are not known"):
        parts_of(other)


@pytest.mark.parametrize("name", UNITS)
def test_what_a_block_writes_reaches_the_stream_unless_the_family_norms_it(name):
    model, ids = small(name), reads(name)["input_ids"]
    found = share_written(sites(model)[0], lambda: streams_behind(model, ids, 0)[0])
    assert found == (None if name in ("gemma2", "gemma3_text", "olmo2") else 1.0)


@pytest.mark.parametrize("factor", [1.0, 0.22, -3.0])
def test_the_factor_of_what_a_block_writes_is_found(factor):
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**GROUPED, residual_multiplier=factor)).eval()
    ids = reads("llama")["input_ids"]
    assert share_written(sites(model)[1], lambda: streams_behind(model, ids, 1)[0]) == pytest.approx(factor, rel=1e-4)


def test_a_stream_that_half_precision_cannot_double_has_no_share():
    model, ids = small("gpt2").half(), reads("gpt2")["input_ids"]
    with torch.no_grad():
        embedded = model.transformer.wte.weight
        embedded *= 40_000 / embedded[ids].abs().max()  # float16 ends at 65,504
    assert share_written(sites(model)[0], lambda: streams_behind(model, ids, 0)[0]) is None


# --- a text that moves through a model layer by layer


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


def test_the_masks_of_equal_batches_are_kept_once():
    """Gemma 2's take more memory than the streams."""
    model, ids = small("gemma2"), reads("gemma2", n=6)["input_ids"]
    text = Layerwise(model, list(ids.split(2)))
    first, *others = text._extras
    assert all(extras is first for extras in others)
    mask = torch.ones_like(ids)
    mask[4:, -1] = 0
    halves = zip(ids.split(2), mask.split(2), strict=True)
    text = Layerwise(model, [{"input_ids": i, "attention_mask": m, "use_cache": False} for i, m in halves])
    first, second, padded = text._extras
    assert first is second
    assert padded is not first


def test_nothing_is_left_behind_in_the_model(model, ids):
    first, second, *_ = layers_of(model)
    first.forward = own = first.forward
    Layerwise(model, [ids]).advance()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert vars(first)["forward"] is own
    assert "forward" not in vars(second)
