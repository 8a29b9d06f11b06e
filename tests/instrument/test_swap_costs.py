import pytest
import torch

from conftest import BLOCKS, logits
from helpers.families import CAUSAL, DEPTH, reads, small
from helpers.families import WIDTH as NARROW
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.instrument.perplexity import change, held_out, losses
from howlinear.instrument.swap_costs import Recording, resumable, swap_costs, swap_losses
from howlinear.models.ffn_sites import KINDS, sites
from howlinear.models.swap import swap


def recorded(model, ids, blocks=range(BLOCKS)):
    recording = Recording(model, list(blocks))
    with recording.record():
        logits(model, ids)
    return recording


def calls(model, run):
    """How often each module with weights of its own ran."""
    counts = {}

    def count(module, *_):
        counts[module] = counts.get(module, 0) + 1

    leaves = [module for module in model.modules() if any(p.ndim > 1 for p in module.parameters(recurse=False))]
    handles = [leaf.register_forward_hook(count) for leaf in leaves]
    run()
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize("block", range(BLOCKS))
def test_resumed_with_a_swap_is_the_swap_to_the_last_bit(model, ids, block):
    def double(x):
        return 2 * x

    with swap(model, {block: double}):
        expected = logits(model, ids)
    recording = recorded(model, ids)
    for _ in range(2):  # what is recalled is not used up
        with swap(model, {block: double}), recording.resumed(block):
            assert torch.equal(logits(model, ids), expected)


def test_a_new_batch_takes_the_place_of_the_old(model, ids):
    recording = recorded(model, ids[:10])
    with recording.record():
        logits(model, ids[10:])
    expected = logits(model, ids[10:])
    with recording.resumed(1):
        assert torch.equal(logits(model, ids[10:]), expected)


def test_the_model_is_left_as_it_was_even_by_an_exception(model, ids):
    expected = logits(model, ids)
    recording = recorded(model, ids)
    with pytest.raises(RuntimeError, match="stopped"), recording.resumed(BLOCKS - 1):
        raise RuntimeError("stopped")
    assert torch.equal(logits(model, ids), expected)
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_forward_of_its_own_comes_back(gpt2, ids):
    layer, ran = gpt2.transformer.h[0], []
    own = layer.forward

    def forward(*args, **named):
        ran.append(1)
        return own(*args, **named)

    layer.forward = forward
    recording = recorded(gpt2, ids)
    with recording.resumed(2):
        logits(gpt2, ids)
    assert len(ran) == 1
    assert layer.forward is forward


def test_what_is_recorded_is_safe_from_a_layer_that_writes_into_its_input(gpt2, ids):
    expected = logits(gpt2, ids)
    recording = recorded(gpt2, ids)
    layer = gpt2.transformer.h[1]

    def overwrite(_, args):
        args[0].zero_()

    handle = layer.register_forward_pre_hook(overwrite)
    with recording.resumed(1):
        logits(gpt2, ids)
    handle.remove()
    with recording.resumed(1):
        assert torch.equal(logits(gpt2, ids), expected)


def test_a_block_that_is_not_there_is_refused(gpt2):
    with pytest.raises(InputError, match="no block"):
        Recording(gpt2, [BLOCKS])


# --- resumable


def reads_aside(first, last, otherwise=None):
    """Let one attention read what another leaves aside, as layers do that share keys and values."""
    aside, keep, read = [], first.forward, last.forward
    first.forward = lambda x, *args, **named: aside.append(x) or keep(x, *args, **named)
    last.forward = lambda x, *args, **named: read(x + (aside.pop() if aside else otherwise), *args, **named)


def test_nothing_swapped_costs_nothing(gpt2, ids):
    assert swap_costs(gpt2, {}, ids) == {}


# --- every family


@pytest.mark.parametrize("name", CAUSAL)
def test_every_family_can_be_resumed(name):
    assert resumable(small(name), list(range(DEPTH)), reads(name)["input_ids"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CAUSAL)
def test_every_familys_swaps_are_those_one_at_a_time_to_the_last_bit(name, kind):
    model, ids, generator = small(name), reads(name, n=4)["input_ids"], torch.Generator().manual_seed(0)
    drawn = torch.randn(DEPTH, NARROW + 1, NARROW, generator=generator, dtype=torch.float64)
    maps = {block: AffineMap(rows[1:], rows[0]) for block, rows in enumerate(drawn)}
    base = losses(model, ids, 3)
    whole, swapped = swap_losses(model, maps, held_out(ids), 3, site=kind)
    assert torch.equal(whole, base)
    for block, found in swapped.items():
        with swap(model, {block: maps[block]}, kind):
            assert torch.equal(found, losses(model, ids, 3))
        assert not torch.equal(found, base)
    assert torch.equal(losses(model, ids, 3), base)


@pytest.mark.parametrize("name", CAUSAL)
def test_of_every_family_nothing_before_the_ffn_is_computed(name):
    model, ids = small(name), reads(name)["input_ids"]
    for block, site in enumerate(sites(model)):
        recording = recorded(model, ids, range(DEPTH))
        with recording.resumed(block):
            ran = calls(model, lambda: logits(model, ids)).keys()
        until = {part for layer in recording.layers[: block + 1] for part in layer.modules()}
        ffn = {*site.input.modules(), *site.output.modules()}
        assert not ran & (until - ffn)
        assert ran & ffn
        assert all(ran & {*layer.modules()} for layer in recording.layers[block + 1 :])


def test_a_swap_that_overflows_is_refused(gpt2, ids):
    with pytest.raises(InputError, match="the loss of sequence 0 is not finite"):
        swap_costs(gpt2, {1: lambda x: x * float("inf")}, ids)


def test_a_model_that_overflows_is_refused(gpt2, ids):
    with torch.no_grad():
        gpt2.lm_head.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="the loss of sequence 0 is not finite"):
        swap_losses(gpt2, {}, held_out(ids))


def test_a_model_that_predicts_no_next_token_is_refused(gpt2, ids):
    with pytest.raises(InputError, match="predicts no next token"):
        swap_costs(gpt2.transformer, {1: torch.negative}, ids)


def test_one_block_that_cannot_be_resumed_is_enough_for_a_model_to_be_evaluated_whole(gpt2, ids):
    """The last layer reads what the one before it leaves aside: block 0 can be resumed, block 1 cannot."""
    reads_aside(gpt2.transformer.h[1].attn, gpt2.transformer.h[2].attn)
    assert resumable(gpt2, [0], ids)
    assert not resumable(gpt2, [0, 1], ids)
    base, found = losses(gpt2, ids), swap_costs(gpt2, {0: torch.negative, 1: torch.negative}, ids)
    for block in (0, 1):
        with swap(gpt2, {block: torch.negative}):
            assert found[block] == change(base, losses(gpt2, ids))


def test_a_layer_that_goes_another_way_without_what_it_reads_is_noticed(gpt2, ids):
    reads_aside(gpt2.transformer.h[0].attn, gpt2.transformer.h[-1].attn, otherwise=0)
    assert not resumable(gpt2, [1], ids)


def test_a_pass_is_of_as_many_sequences_as_asked_for(gpt2, ids):
    seen = set()
    gpt2.lm_head.register_forward_hook(lambda _, inputs, __: seen.add(len(inputs[0])))
    swap_costs(gpt2, {1: torch.negative}, ids, batch_size=7)
    assert seen == {7, 3, 1}  # 24 in sevens, and the one that is tried first


def test_what_is_recorded_is_safe_from_what_is_written_into_it_in_the_same_pass(gpt2, ids):
    """A layer adds to its input in place, and so does what comes behind attention to what that returned."""

    def add(_, given, *returned):
        (returned[0] if returned else given)[0].add_(1)

    _, layer, _ = gpt2.transformer.h
    layer.register_forward_pre_hook(add)
    recording = Recording(gpt2, [1])
    with torch.no_grad(), recording.record():
        layer.attn.register_forward_hook(add)
        expected = gpt2(input_ids=ids, use_cache=False).logits
    with torch.no_grad(), recording.resumed(1):
        assert torch.equal(gpt2(input_ids=ids, use_cache=False).logits, expected)
