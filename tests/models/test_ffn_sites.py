"""Every family: x and y are those worked by hand, a swap of the same function changes nothing, padding is left out."""

import copy

import pytest
import torch

from helpers.captures import seen_at_sites
from helpers.families import CAUSAL, DEPTH, FAMILIES, PADDING, PAIRS, WIDTH, reads, small, weights, worked
from helpers.nearly import assert_same_outputs
from helpers.reference import random_map
from howlinear.errors import InputError
from howlinear.ideas.compression.reduced_rank import ffn_parameters
from howlinear.ideas.compression.signals import price
from howlinear.instrument.capture import capture, hooked
from howlinear.models.ffn_sites import FAMILIES as TABLE
from howlinear.models.ffn_sites import InputTap, Replacement, pattern_of, sites
from howlinear.models.load import is_causal, load_model
from howlinear.models.replace import replace
from howlinear.models.swap import swap
from howlinear.text.rows import ModelInputs


@pytest.fixture(params=FAMILIES)
def name(request):
    return request.param


def out(model, inputs):
    """Logits, or what an encoder returns."""
    with torch.no_grad():
        return model(**inputs).logits


def close(a, b, tolerance=2e-5):
    return (a - b).abs().max() <= tolerance * b.abs().max()


def random_maps():
    return {block: random_map(WIDTH, seed=2 * block, scale=0.25) for block in range(DEPTH)}


# --- what is captured


def test_x_and_y_are_those_worked_by_hand(name):
    model, inputs = small(name), reads(name)
    seen = seen_at_sites(model, inputs)
    assert len(seen) == DEPTH
    for (x, y), (hand_x, hand_y) in zip(seen.values(), worked(name, model, inputs), strict=True):
        assert torch.equal(x, hand_x)
        assert close(y, hand_y)


def test_swapping_in_the_same_function_changes_nothing(name):
    model, inputs = small(name), reads(name)
    before, ffn, own = out(model, inputs), FAMILIES[name][4], weights(name, model)
    by_hand = {block: lambda x, w=w: ffn(w, x) for block, w in enumerate(own)}
    with swap(model, by_hand):
        assert close(out(model, inputs), before)
    with swap(model, {block: lambda x, f=f: 0 * f(x) for block, f in by_hand.items()}):
        assert not close(out(model, inputs), before, 1e-2)
    assert torch.equal(out(model, inputs), before)
    assert list(model.state_dict()) == list(small(name).state_dict())


def test_a_single_module_goes_in_again_bit_for_bit(name):
    model, inputs = small(name), reads(name)
    before, ffns = out(model, inputs), {site.block: site.ffn for site in sites(model)}
    assert [ffn is None for ffn in ffns.values()] == [name.split(",")[0] in PAIRS] * DEPTH
    if None not in ffns.values():
        with swap(model, {block: lambda x, f=f: f(x) for block, f in ffns.items()}):
            assert torch.equal(out(model, inputs), before)


def test_a_swapped_block_is_seen_as_it_now_is(name):
    model, inputs, maps = small(name), reads(name), random_maps()
    with swap(model, maps):
        for block, (x, y) in seen_at_sites(model, inputs).items():
            assert close(y.double(), maps[block](x.double()))


def test_swaps_nest_in_every_family(name):
    model, inputs, maps = small(name), reads(name), random_maps()
    before = out(model, inputs)
    with swap(model, {0: maps[0]}):
        one = out(model, inputs)
        with swap(model, {0: maps[1], 1: maps[0]}):
            assert not close(out(model, inputs), one, 1e-3)
        assert torch.equal(out(model, inputs), one)
    assert torch.equal(out(model, inputs), before)


def test_padding_is_left_out(name):
    """Moments of a padded batch are those of each sequence alone, without padding."""
    if name == "vit":
        return  # images have none
    model, ids = small(name), reads(name)["input_ids"]
    length = 3 + torch.arange(len(ids)) % 10
    mask = torch.arange(ids.shape[1]) < length[:, None]
    padded = ModelInputs.of({"input_ids": ids.where(mask, PADDING), "attention_mask": mask.long()}, folds=2)
    found = capture(model, padded, sample=10_000)
    alone = [worked(name, model, {"input_ids": ids[i : i + 1, : length[i]]}) for i in range(len(ids))]
    for block in range(DEPTH):
        for side, moments in ((~padded.test, sum(found[block].train)), (padded.test, sum(found[block].test))):
            x, y = (torch.cat([alone[i][block][k] for i in side.nonzero()[:, 0]]).double() for k in (0, 1))
            assert moments.n == int(length[side].sum()) == len(x)
            assert close(moments.mean_x, x.mean(0), 1e-4)
            assert close(moments.sxx, (x - x.mean(0)).T @ (x - x.mean(0)), 1e-4)
            assert close(moments.sxy, (x - x.mean(0)).T @ (y - y.mean(0)), 1e-3)
        kept = found[block].sample
        assert torch.equal(kept.token, ids[mask])
        assert close(kept.x, torch.cat([each[block][0] for each in alone]), 1e-4)


# --- the families' own traps


def test_falcon_writes_over_y_and_no_reader_notices():
    model, ids = small("falcon"), reads("falcon")["input_ids"]
    assert model.config.parallel_attn
    held = []
    with torch.no_grad(), hooked(sites(model, [0]), lambda site, x, y: held.append((y, y.clone()))):
        model(input_ids=ids)
    assert not torch.equal(*held[0])  # the trap is there
    exact = {0: weights("falcon", model)[0]}
    found = price(model, {0: lambda x: FAMILIES["falcon"][4]({k: w.double() for k, w in exact[0].items()}, x)}, ids)
    assert found[0].residual < 1e-9


def test_chunks_of_a_sequence_change_nothing_or_are_refused():
    for name, served in (("distilbert", True), ("bert", False)):
        model, inputs = small(name), reads(name)
        kind, config = type(model), copy.deepcopy(model.config)
        config.chunk_size_feed_forward = 4
        chunked = kind(config).eval()
        chunked.load_state_dict(model.state_dict())
        with swap(model, random_maps()), swap(chunked, random_maps()):
            assert close(out(chunked, inputs), out(model, inputs))
        if served:
            one, other = (capture(each, ModelInputs.of(inputs, folds=2)) for each in (model, chunked))
            assert close(sum(other[1].train).sxy, sum(one[1].train).sxy, 1e-5)
        else:
            with pytest.raises(InputError, match=r"saw 64 rows, not the 192 of the batch.*chunk_size_feed_forward"):
                capture(chunked, ModelInputs.of(inputs, folds=1), batch_size=16)


# --- swaps and replacements of pairs


def test_a_pair_gives_way_to_two_modules_that_hold_the_map_alone():
    model = small("opt")
    whole, first = ffn_parameters(model), sites(model)[0]
    with swap(model, random_maps()):
        site = sites(model)[0]
        assert isinstance(site.input, InputTap)
        assert isinstance(site.output, Replacement)
        assert isinstance(site.ffn, torch.nn.Linear)
        assert site.linear
        assert ffn_parameters(model) == DEPTH * WIDTH * (WIDTH + 1)
        out(model, reads("opt"))
        assert site.input.memory == []  # nothing stays
    assert sites(model)[0] == first
    assert not first.linear
    assert whole == DEPTH * sum(p.numel() for layer in (first.input, first.output) for p in layer.parameters())


@pytest.mark.parametrize("name", ["opt", "falcon", "gemma3", "distilbert", "vit"])  # others: `test_saved`
def test_a_replaced_block_is_saved_and_read_back(name, tmp_path):
    model, inputs = small(name), reads(name)
    smaller = replace(model, {1: random_maps()[1]})
    with swap(model, {1: random_maps()[1]}):
        expected = out(model, inputs)
    assert_same_outputs(out(smaller, inputs), expected)
    smaller.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert type(loaded) is type(model)
    assert is_causal(loaded) == (name in CAUSAL)
    assert_same_outputs(out(loaded, inputs), expected)
    assert [site.linear for site in sites(loaded)] == [False, True]


# --- patterns


def test_a_pattern_of_ones_own_goes_before_the_table(tmp_path):
    model, inputs = small("llama"), reads("llama")
    assert load_model(model, sites="model.layers.*.mlp.gate_proj , model.layers.*.mlp.down_proj") is model
    assert [(site.input_name, site.name) for site in sites(model)] == [
        (f"model.layers.{i}.mlp.gate_proj", f"model.layers.{i}.mlp.down_proj") for i in range(DEPTH)
    ]
    seen = seen_at_sites(model, inputs).values()
    for (x, y), (hand_x, hand_y) in zip(seen, worked("llama", model, inputs), strict=True):
        assert torch.equal(x, hand_x)
        assert close(y, hand_y)
    model.save_pretrained(tmp_path)
    assert pattern_of(load_model(tmp_path)) == pattern_of(model)
    assert load_model(tmp_path, sites="layers.*.mlp").config.howlinear_sites == "layers.*.mlp"


@pytest.mark.parametrize(
    "pattern", ["model.layers.*.ffn", "", "model.layers.0.mlp", "*", "model.layers.*.mlp,model.*.mlp", "a.*,b.*,c.*", 3]
)
def test_a_pattern_that_fits_nothing_is_refused_and_not_noted(pattern, unchecked):
    model = small("llama")
    with pytest.raises(InputError, match=r"no module in the blocks of LlamaForCausalLM \(llama\) fits sites="):
        load_model(model, sites=pattern)
    assert not hasattr(model.config, "howlinear_sites")


def test_a_pattern_may_leave_blocks_out():
    model = small("llama")
    model.model.layers[0].mlp.odd, model.model.layers[0].mlp = None, torch.nn.Identity()
    del model.model.layers[0].mlp
    assert [site.block for site in sites(model)] == [1]
    with pytest.raises(InputError, match=r"no block \[0\] in a model of 1 blocks, which are \[1\]"):
        sites(model, [0])


def test_the_table_is_below_the_base_model_with_a_head_or_without(name):
    model = small(name)
    with_head, without = sites(model), sites(model.base_model)
    assert [site.output for site in with_head] == [site.output for site in without]
    for each, found in ((model, with_head), (model.base_model, without)):
        assert all(each.get_submodule(site.name) is site.output for site in found)
        assert all(each.get_submodule(site.input_name) is site.input for site in found)
    assert pattern_of(model) == TABLE[model.config.model_type]


def test_only_what_predicts_the_next_token_is_causal(name):
    assert is_causal(small(name)) == (name in CAUSAL)
    assert not is_causal(small(name).base_model)
