"""A smaller model in closed form: it keeps its budget, loads as it was saved, and says what it cost."""

import json
from functools import cache
from itertools import product

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

from conftest import logits, tiny
from helpers.every_family import tiny_of
from helpers.families import GROUPED, reads
from helpers.nearly import assert_same_outputs
from helpers.unit_rows import short_rows
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.ideas.compression import own_units
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compress import compress
from howlinear.ideas.compression.folder import compressed_card, save
from howlinear.ideas.compression.output_folder import check_output_folder
from howlinear.instrument.perplexity import losses, perplexity
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model, untrained
from howlinear.models.replace import replace, replaced, units_left
from howlinear.models.units import affine_of, readout, unit_count, unit_layers, write
from howlinear.text.rows import ModelInputs
from howlinear.text.unpad import without_padding


@pytest.fixture(params=["mini-gpt2", "mini-llama", pytest.param("mini-pythia", marks=pytest.mark.long)])
def name(request):
    return request.param


@cache
def whole(name):
    """A tiny model, which no test may change."""
    return tiny(name)


@cache
def compressed(name, share, alike=False):
    """What `compress` makes of it on the short rows, which no test may change either."""
    return compress(whole(name), short_rows(), share, alike=alike)


def counts(model):
    return {site.block: unit_count(model, site) for site in sites(model)}


def with_planted_units(name, block, needed):
    """A tiny model of which one block reads `needed` of its units alone."""
    model = tiny(name)
    layer = unit_layers(model, sites(model)[block])[-1]
    own = affine_of(layer)
    own.weight[needed:] = 0
    write(layer, own)
    return model


@pytest.mark.parametrize(("share", "alike"), [(0.9, False), (0.7, False), (0.7, True)])
def test_a_budget_is_kept_and_nearly_used(name, share, alike):
    model, found = whole(name), compressed(name, share, alike)
    left = found.model.num_parameters() / model.num_parameters()
    assert share - 0.02 < left <= share
    assert counts(found.model) == found.units
    assert all(map(torch.equal, model.parameters(), tiny(name).parameters()))
    assert type(found.model) is type(model)
    assert not found.model.training
    if alike:
        assert len(set(found.units.values())) == 1


def test_blocks_of_unequal_widths_can_be_made_alike(name, more_rows):
    uneven = compressed(name, 0.9).model
    assert len(set(counts(uneven).values())) > 1
    found = compress(uneven, more_rows, 0.8, alike=True)
    (count,) = set(counts(found.model).values())
    assert count <= min(counts(uneven).values())
    assert found.model.num_parameters() <= 0.8 * uneven.num_parameters()


def test_what_it_says_it_costs_is_what_it_costs(name, more_rows):
    found = compressed(name, 0.7)
    test = more_rows.ids[more_rows.test]
    assert found.base == pytest.approx(float(losses(whole(name), test).mean().exp()), rel=1e-6)
    assert found.perplexity == pytest.approx(float(losses(found.model, test).mean().exp()), rel=1e-6)
    assert found.delta.delta == pytest.approx(found.perplexity - found.base, rel=1e-6)
    assert found.delta.low <= found.delta.delta <= found.delta.high
    assert 0 < found.price < found.next_price
    assert f"{found.next_price - found.price:.3f}" in found.outlook


def test_units_that_nobody_reads_go_first_and_cost_nothing(name, more_rows):
    """Planted: block 1 reads 8 of its units. What it has besides is more than the budget asks for."""
    model = with_planted_units(name, 1, 8)
    units = counts(model)
    found = compress(model, more_rows, 0.9)
    assert found.units[0] == units[0]
    assert found.units[2] == units[2]
    assert 8 <= found.units[1] < units[1]
    # in a model without such a block, the same budget costs more, and changes what it says
    other, changed = whole(name), compressed(name, 0.9)
    assert found.price < 0.1 * changed.price
    test = more_rows.ids[more_rows.test]
    moved = (logits(found.model, test) - logits(model, test)).square().mean()
    assert moved < 0.1 * (logits(changed.model, test) - logits(other, test)).square().mean()


# --- folders


@pytest.mark.parametrize("alike", [False, True])
def test_saved_and_loaded_it_is_the_same_to_the_bit(name, more_rows, tmp_path, alike, tokenizer):
    found = compressed(name, 0.7, alike)
    card = compressed_card("mini", whole(name), found.model, more_rows, found, max_parameters=0.7)
    folder = save(found.model, tmp_path / "small", card, tokenizer)
    loaded = load_model(folder)
    assert all(map(torch.equal, loaded.parameters(), found.model.parameters()))
    assert_same_outputs(logits(loaded, more_rows.ids), logits(found.model, more_rows.ids))
    assert counts(loaded) == found.units
    noted = json.loads((folder / "config.json").read_text())
    assert ("howlinear" in noted) != alike
    assert (folder / "tokenizer.json").is_file()
    card = (folder / "README.md").read_text()
    assert f"{found.perplexity:.2f}" in card
    assert f"{found.model.num_parameters():,}" in card
    assert found.outlook in card
    # --force may replace it
    assert check_output_folder(folder, force=True) == folder
    if alike:  # transformers alone loads it
        loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), report
        assert type(loaded) is type(found.model)
        assert_same_outputs(logits(loaded.eval(), more_rows.ids), logits(found.model, more_rows.ids))


def test_an_untrained_twin_has_as_many_units(name):
    found = compressed(name, 0.7)
    twin = untrained(found.model)
    assert counts(twin) == found.units
    assert [p.shape for p in twin.parameters()] == [p.shape for p in found.model.parameters()]


def test_units_and_maps_stand_beside_one_another(name, more_rows, tmp_path):
    line = AffineMap(torch.eye(32).double(), torch.zeros(32).double())
    found = compressed(name, 0.7)
    both = replace(found.model, {1: line})
    assert replaced(both.config) == {1: None}
    assert units_left(both.config) == {block: count for block, count in found.units.items() if block != 1}
    loaded = load_model(save(both, tmp_path / "small"))
    assert_same_outputs(logits(loaded, more_rows.ids), logits(both, more_rows.ids))


# --- what is refused


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({}, "give one budget"),
        ({"max_parameters": 0.9, "max_dppl": 1.0}, "give one budget"),
        *(({"max_parameters": share}, "give one between 0 and 1") for share in (0.0, 1.0, 1.5, -0.1)),
        *(({"max_dppl": rise}, "give by how much perplexity may rise") for rise in (0.0, -1.0)),
        *(({"max_dppl": odd}, "give a finite number") for odd in (float("inf"), float("nan"))),
        ({"max_parameters": float("nan")}, "give a finite number"),
    ],
)
def test_a_budget_that_is_none_is_refused(gpt2, more_rows, budgets, message):
    with pytest.raises(InputError, match=message):
        compress(gpt2, more_rows, **budgets)


def test_a_share_that_cannot_be_met_is_refused_and_the_least_is_named(name, more_rows):
    model = whole(name)
    with pytest.raises(InputError, match=r"0.1 of all parameters cannot be met: .*; give at least 0\.\d{3}") as refused:
        compress(model, more_rows, 0.1)
    least = float(str(refused.value).rpartition(" ")[2])
    found = compress(model, more_rows, least)
    assert set(found.units.values()) == {1}
    assert found.next_price is None
    with pytest.raises(InputError, match="cannot be met"):
        compress(model, more_rows, least - 0.002)


def test_padding_is_neither_fitted_on_nor_measured(gpt2):
    """The same documents with padding behind them, of whatever token, compress to the same model."""
    ids = short_rows().ids
    short = torch.arange(len(ids)) % 3 == 0  # a third of the sequences is half as long
    mask = torch.ones_like(ids)
    mask[short, 16:] = 0
    compressed = []
    for padding in (0, 7):
        inputs = {"input_ids": torch.where(mask.bool(), ids, padding), "attention_mask": mask}
        compressed.append(compress(gpt2, ModelInputs.of(inputs, folds=3), 0.8))
    one, other = compressed
    assert one.units == other.units
    assert (one.base, one.perplexity) == (other.base, other.perplexity)
    packed = without_padding(ModelInputs.of(inputs, folds=3))
    assert one.base == pytest.approx(perplexity(gpt2, packed), rel=1e-6)


def test_a_text_too_short_is_refused(gpt2, more_rows):
    with pytest.raises(InputError, match="too few to choose among 128 hidden units by: give 512 rows"):
        compress(gpt2, more_rows.subset(torch.arange(12)), 0.9)


def test_own_units_are_anchored_once_and_come_again_as_they_were(gpt2, more_rows, monkeypatch):
    """Planted: an anchor that adds one to every readout, and counts; it changes nothing but the copies."""
    anchors = []

    def add_one(_, blocks, *__, **___):
        anchors.append(blocks)
        for block in blocks.values():
            block.c_proj.weight.data += 1

    monkeypatch.setattr(own_units, "anchor", add_one)
    calibration = Calibration(gpt2, more_rows)
    asked = [(0.7, False), (0.7, False), (0.7, True), (0.8, False), (0.7, True)]
    for (share, alike), so_far in zip(asked, [1, 1, 2, 3, 3], strict=True):
        anchored = own_units.own_units(calibration, share, alike)
        assert len(anchors) == so_far
        plain = own_units.before_anchor(calibration, share, alike)
        for one, other in zip(sites(anchored), sites(plain), strict=True):
            torch.testing.assert_close(readout(anchored, one).weight, readout(plain, other).weight + 1)


# --- families that stand in no table


def few_rows():
    """Sequences that tiny models of any family read, ids below 60."""
    return reads("llama", n=80, length=16)["input_ids"]


@pytest.mark.parametrize(
    ("family", "alike"),
    [*product(["apertus", "gemma", "glm", "olmo", "opt", "phi3"], [True, False]), ("bloom", False)],
)
def test_a_family_found_by_structure_is_made_smaller_and_loads_as_it_was_saved(family, alike, tmp_path):
    model, rows = tiny_of(family), few_rows()
    found = compress(model, rows, 0.9, alike=alike)
    assert found.model.num_parameters() <= 0.9 * model.num_parameters()
    folder = save(found.model, tmp_path / "smaller")
    loaded = load_model(folder)
    assert counts(loaded) == found.units
    assert_same_outputs(logits(loaded, rows), logits(found.model, rows))
    if alike:
        plain = AutoModelForCausalLM.from_pretrained(folder)
        assert_same_outputs(logits(plain.eval(), rows), logits(found.model, rows))


def test_a_layer_that_scales_what_it_adds_gets_the_smaller_block_that_it_would_get_without():
    """The same model twice: with a factor of a quarter, as Granite has it, and with that in its weights."""
    rows, found = few_rows(), []
    for folded in (False, True):
        torch.manual_seed(1)
        model = GraniteForCausalLM(GraniteConfig(**GROUPED, residual_multiplier=0.25, initializer_range=0.3)).eval()
        if folded:
            model = GraniteForCausalLM._from_config(model.config.__class__(**GROUPED)).eval()
            model.load_state_dict(found[0][0].state_dict())
            with torch.no_grad():
                for layer in model.model.layers:
                    for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                        part.weight.mul_(0.25)
        found.append((model, compress(model, rows, 0.85)))
    (one, with_factor), (other, without) = found
    assert_same_outputs(logits(one, rows), logits(other, rows))
    assert with_factor.units == without.units
    torch.testing.assert_close(logits(with_factor.model, rows), logits(without.model, rows), rtol=1e-2, atol=1e-2)
