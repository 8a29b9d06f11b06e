import dataclasses

import pytest
import torch

from conftest import BLOCKS, logits, tiny
from helpers.families import CAUSAL, DEPTH, reads, small
from helpers.families import WIDTH as NARROW
from helpers.reference import random_map
from howlinear.errors import InputError
from howlinear.instrument.measure import measure
from howlinear.instrument.perplexity import change, held_out, losses
from howlinear.instrument.swap_costs import each_alone, swap_costs, swap_losses
from howlinear.models.ffn_sites import KINDS, sites
from howlinear.models.layerwise import InseparableError, Layerwise
from howlinear.models.load import load_model
from howlinear.models.replace import replace
from howlinear.models.swap import swap


def assert_one_at_a_time(model, ids, maps):
    """The costs of all maps are those of a pass of its own for each."""
    base, found = losses(model, ids), swap_costs(model, maps, ids)
    for block, replacement in maps.items():
        with swap(model, {block: replacement}):
            assert found[block] == change(base, losses(model, ids))


def test_the_model_is_left_as_it_was_even_by_an_exception(model, ids):
    expected = logits(model, ids)

    def stop(_):
        raise RuntimeError("stopped")

    with pytest.raises(InputError, match="stopped"):
        swap_costs(model, {0: torch.negative, BLOCKS - 1: stop}, ids)
    assert torch.equal(logits(model, ids), expected)
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_layer_that_writes_into_its_input_changes_no_other_swap(gpt2, ids):
    layer = gpt2.transformer.h[1]
    own = layer.forward
    layer.forward = lambda x, *args, **named: own(x.mul_(2), *args, **named)
    assert_one_at_a_time(gpt2, ids, {0: torch.negative, 1: torch.zeros_like})


# --- layers that cannot be called one by one


def reads_aside(first, last):
    """Let one attention read what another leaves aside, as layers do that share keys and values."""
    aside, keep, read = [], first.forward, last.forward
    first.forward = lambda x, *args, **named: aside.append(x) or keep(x, *args, **named)
    last.forward = lambda x, *args, **named: read(x + aside.pop(), *args, **named)


@pytest.mark.parametrize("call", ["swap", "replace", "swap_costs"])
def test_the_profile_of_another_model_is_refused_and_its_maps_are_not(gpt2, ids, call):
    """Of the same width, so that its maps fit."""
    own = measure(gpt2, ids, rows=ids.numel())
    other = dataclasses.replace(own, model="elsewhere/other")

    def put(maps):
        if call == "swap":
            with swap(gpt2, maps):
                return
        replace(gpt2, maps) if call == "replace" else swap_costs(gpt2, maps, ids)

    put(own)
    put({block: other[block].map for block in other})
    with pytest.raises(InputError, match="elsewhere/other"):
        put(other)


def test_a_profile_is_of_one_folder_even_if_another_has_its_name(ids, tmp_path):
    for run in ("one", "other"):
        tiny("mini-gpt2", seed=len(run)).save_pretrained(tmp_path / run / "checkpoint-500")
    one, other = (load_model(tmp_path / run / "checkpoint-500") for run in ("one", "other"))
    profile = measure(one, ids, rows=ids.numel())
    assert swap_costs(one, profile, ids).keys() == profile.keys()
    with pytest.raises(InputError, match="a profile of"):
        swap_costs(other, profile, ids)


def test_nothing_swapped_costs_nothing(gpt2, ids):
    assert swap_costs(gpt2, {}, ids) == {}


# --- every family


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CAUSAL)
def test_every_familys_swaps_are_those_one_at_a_time_to_the_last_bit(name, kind):
    model, ids = small(name), reads(name, n=4)["input_ids"]
    maps = {block: random_map(NARROW, seed=2 * block) for block in range(DEPTH)}
    base = losses(model, ids, 3)
    whole, swapped = swap_losses(model, each_alone(maps), held_out(ids), 3, site=kind)
    assert torch.equal(whole, base)
    for block, found in swapped.items():
        with swap(model, {block: maps[block]}, kind):
            assert torch.equal(found, losses(model, ids, 3))
        assert not torch.equal(found, base)
    assert torch.equal(losses(model, ids, 3), base)


@pytest.mark.parametrize("name", CAUSAL)
def test_of_every_family_nothing_before_a_swapped_layer_is_computed_for_the_swap(name):
    model, ids = small(name), reads(name)["input_ids"]

    def runs(*blocks):
        """How often the first block ran."""
        ran, maps = [], dict.fromkeys(blocks, torch.zeros_like)
        with sites(model)[0].output.register_forward_hook(lambda *_: ran.append(1)):
            swap_losses(model, each_alone(maps), held_out(ids))
        return len(ran)

    assert runs(DEPTH - 1) == runs() > 0


def test_what_has_no_cost_is_refused(gpt2, ids):
    """No such block, and a swap or a model that overflows."""
    with pytest.raises(InputError, match="no block"):
        swap_losses(gpt2, {"first": (BLOCKS, torch.negative)}, held_out(ids))
    with pytest.raises(InputError, match="the loss of sequence 0 is not finite"):
        swap_costs(gpt2, {1: lambda x: x * float("inf")}, ids)
    with torch.no_grad():
        gpt2.lm_head.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="the loss of sequence 0 is not finite"):
        swap_losses(gpt2, {}, held_out(ids))


def test_where_a_layer_reads_what_another_leaves_aside_every_swap_is_a_pass_of_its_own(gpt2, ids):
    """One that is called by itself finds what another sequence left there, or nothing."""
    reads_aside(gpt2.transformer.h[1].attn, gpt2.transformer.h[2].attn)
    assert_one_at_a_time(gpt2, ids, {0: torch.negative, 1: torch.negative})


def test_a_pass_is_of_as_many_sequences_as_asked_for(gpt2, ids):
    seen = set()
    gpt2.lm_head.register_forward_hook(lambda _, inputs, __: seen.add(len(inputs[0])))
    swap_costs(gpt2, {1: torch.negative}, ids, batch_size=7)
    assert seen == {7, 3, 1}  # 24 in sevens, and the one that is tried first


def test_a_layer_that_gets_a_copy_is_a_pass_of_its_own(gpt2, ids):
    """A hook that hands over another tensor than the stream: layers cannot be called one by one."""

    def add_nothing(_, args):
        return (args[0] + 0, *args[1:])

    gpt2.transformer.h[1].register_forward_pre_hook(add_nothing)
    with pytest.raises(InseparableError):
        Layerwise(gpt2, [ids])
    assert_one_at_a_time(gpt2, ids, {0: torch.negative, 2: torch.negative})
