"""A smaller model in closed form: it keeps its budget, loads as it was saved, and says what it cost."""

import json
import subprocess
import sys

import pytest
import torch

from conftest import BLOCKS, tiny
from helpers.families import FAMILIES
from helpers.nearly import assert_same_outputs
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError, SourceError
from howlinear.ideas.compression import prune
from howlinear.ideas.compression.divergence import divergences
from howlinear.ideas.compression.folder import save, unit_card, vacant
from howlinear.ideas.compression.prune import NOTHING, compress, eliminations_of, fewer_units, measured, thinned
from howlinear.ideas.compression.units import Elimination, stakes
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model, untrained
from howlinear.models.replace import replace, replaced, units_left
from howlinear.models.units import unit_count
from howlinear.text.rows import TokenRows


@pytest.fixture
def rows():
    """Random token ids, shape (40, 32), in two sides of three folds."""
    ids = torch.randint(80, (40, 32), generator=torch.Generator().manual_seed(1))
    return TokenRows.from_ids(ids, folds=3)


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


def counts(model):
    return {site.block: unit_count(model, site) for site in sites(model)}


def with_planted_units(name, block, needed):
    """A tiny model of which one block reads `needed` of its units alone."""
    model = tiny(name)
    ffn = sites(model)[block].output
    with torch.no_grad():
        if hasattr(ffn, "c_proj"):
            ffn.c_proj.weight[needed:] = 0
        else:
            last = ffn.down_proj if hasattr(ffn, "down_proj") else ffn.dense_4h_to_h
            last.weight[:, needed:] = 0
    return model


@pytest.mark.parametrize("share", [0.95, 0.7])
@pytest.mark.parametrize("alike", [False, True])
def test_a_budget_is_kept_and_nearly_used(model, rows, share, alike):
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    found = compress(model, rows, share, alike)
    left = found.model.num_parameters() / model.num_parameters()
    assert share - 0.02 < left <= share
    assert counts(found.model) == found.units
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert type(found.model) is type(model)
    assert not found.model.training
    if alike:
        assert len(set(found.units.values())) == 1


def test_what_it_says_it_costs_is_what_it_costs(model, rows):
    found = compress(model, rows, 0.75)
    test = rows.ids[rows.test]
    assert found.base == pytest.approx(float(losses(model, test).mean().exp()), rel=1e-6)
    assert found.perplexity == pytest.approx(float(losses(found.model, test).mean().exp()), rel=1e-6)
    assert found.delta.delta == pytest.approx(found.perplexity - found.base, rel=1e-6)
    assert found.delta.low <= found.delta.delta <= found.delta.high
    assert 0 < found.price < found.next_price
    assert f"{found.next_price - found.price:.3f}" in found.outlook


@pytest.mark.parametrize("name", ["mini-gpt2", "mini-pythia", "mini-llama"])
def test_units_that_nobody_reads_go_first_and_cost_nothing(name, rows):
    """Planted: block 1 reads 8 of its units. What it has besides is more than the budget asks for."""
    model = with_planted_units(name, 1, 8)
    whole = counts(model)
    found = compress(model, rows, 0.9)
    assert found.units[0] == whole[0]
    assert found.units[2] == whole[2]
    assert 8 <= found.units[1] < whole[1]
    # in a model without such a block, the same budget costs more, and changes what it says
    other = tiny(name)
    changed = compress(other, rows, 0.9)
    assert found.price < 0.1 * changed.price
    test = rows.ids[rows.test]
    moved = (logits(found.model, test) - logits(model, test)).square().mean()
    assert moved < 0.1 * (logits(changed.model, test) - logits(other, test)).square().mean()


def test_elimination_with_refit_beats_units_taken_at_random(model, rows):
    train = rows.ids[~rows.test]
    eliminations, moments = eliminations_of(model, train, stakes(model, train, list(range(BLOCKS))))
    kept = {block: found.order.numel() // 2 for block, found in eliminations.items()}
    chosen = fewer_units(model, eliminations, moments, kept)
    shuffled = {
        block: Elimination(found.order[torch.randperm(len(found.order))], found.price)
        for block, found in eliminations.items()
    }
    at_random = fewer_units(model, shuffled, moments, kept)
    whole = logits(model, train)
    assert (logits(chosen, train) - whole).square().mean() < 0.7 * (logits(at_random, train) - whole).square().mean()


def test_a_price_is_what_one_swap_measures_where_a_quarter_is_gone(model, rows):
    train = rows.ids[~rows.test]
    eliminations, moments = eliminations_of(model, train, stakes(model, train, [0, 2]))
    for site in sites(model, [0, 2]):
        found = eliminations[site.block]
        quarter = len(found.order) // 4
        module = thinned(model, site, found.kept(len(found.order) - quarter), moments[site.block])
        moved = divergences(model, {site.block: module}, train)[site.block]
        if moved > NOTHING:
            assert float(found.price[quarter]) == pytest.approx(moved, rel=1e-3)
        else:  # it goes for nothing, which tells no factor: what is measured is rounding, and may be below 0
            assert 0 <= float(found.price[quarter]) < 10 * NOTHING
        assert (found.price.diff() >= 0).all()


def test_once_ridges_are_chosen_the_moments_are_no_longer_kept_in_halves(model, rows):
    train = rows.ids[~rows.test]
    _, moments = eliminations_of(model, train, stakes(model, train, [0, 2]))
    assert [len(of_block.halves) for of_block in moments.values()] == [1, 1]


def test_a_cost_that_is_no_more_than_rounding_scales_no_price():
    """Planted: a block whose first quarter of units costs 0.002 nats by its price, and what one swap says of it."""
    model = tiny("mini-gpt2")
    ids = torch.randint(80, (4, 16), generator=torch.Generator().manual_seed(0))
    eliminations, moments = eliminations_of(model, ids, stakes(model, ids, [1]))
    units = len(eliminations[1].order)
    told = Elimination(eliminations[1].order, torch.linspace(0, 0.008, units + 1).double())

    def scaled(cost):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prune, "divergences", lambda *_: {1: cost})
            return measured(model, ids, {1: told}, moments)[1].price

    assert torch.equal(scaled(NOTHING / 2), told.price)
    assert torch.equal(scaled(-NOTHING), told.price)
    torch.testing.assert_close(scaled(0.004), 2 * told.price)


# --- folders


@pytest.mark.parametrize("alike", [False, True])
def test_saved_and_loaded_it_is_the_same_to_the_bit(model, rows, tmp_path, alike, tokenizer):
    found = compress(model, rows, 0.8, alike)
    folder = save(found.model, tmp_path / "small", unit_card("mini", model, found, rows, 0.8), tokenizer)
    loaded = load_model(folder)
    assert all(
        torch.equal(one, other) for one, other in zip(loaded.parameters(), found.model.parameters(), strict=True)
    )
    assert_same_outputs(logits(loaded, rows.ids), logits(found.model, rows.ids))
    assert counts(loaded) == found.units
    noted = json.loads((folder / "config.json").read_text())
    assert ("howlinear" in noted) != alike
    assert (folder / "tokenizer.json").is_file()
    card = (folder / "README.md").read_text()
    assert f"{found.perplexity:.2f}" in card
    assert f"{found.model.num_parameters():,}" in card
    assert found.outlook in card
    assert ("hl.load_model" in card) != alike
    # a second compression starts from it, and --force may replace it
    again = compress(loaded, rows, 0.9)
    assert again.model.num_parameters() <= 0.9 * loaded.num_parameters()
    assert vacant(folder, force=True) == folder
    with pytest.raises(SourceError, match="exists: choose another folder"):
        vacant(folder)


@pytest.mark.long
def test_blocks_alike_load_in_transformers_alone(model, rows, tmp_path):
    found = compress(model, rows, 0.8, alike=True)
    save(found.model, tmp_path / "small")
    torch.save(logits(found.model, rows.ids[:2]), tmp_path / "logits.pt")
    script = (
        "import sys, torch\n"
        "from transformers import AutoModelForCausalLM\n"
        "model, report = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)\n"
        "assert not any(report.values()), report\n"
        "assert 'howlinear' not in sys.modules\n"
        "ids = torch.tensor([[int(i) for i in line.split(',')] for line in sys.argv[3:]])\n"
        "expected = torch.load(sys.argv[2])\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(model.eval()(ids).logits, expected, rtol=1e-5, atol=1e-5)\n"
    )
    ids = [",".join(map(str, line)) for line in rows.ids[:2].tolist()]
    subprocess.run([sys.executable, "-c", script, tmp_path / "small", tmp_path / "logits.pt", *ids], check=True)


def test_an_untrained_twin_has_as_many_units(model, rows):
    found = compress(model, rows, 0.8)
    twin = untrained(found.model)
    assert counts(twin) == found.units
    assert [p.shape for p in twin.parameters()] == [p.shape for p in found.model.parameters()]


def test_units_and_maps_stand_beside_one_another(model, rows, tmp_path):
    line = AffineMap(torch.eye(32).double(), torch.zeros(32).double())
    found = compress(model, rows, 0.8)
    both = replace(found.model, {1: line})
    assert replaced(both.config) == {1: None}
    assert units_left(both.config) == {block: count for block, count in found.units.items() if block != 1}
    loaded = load_model(save(both, tmp_path / "small"))
    assert_same_outputs(logits(loaded, rows.ids), logits(both, rows.ids))


@pytest.mark.parametrize("entry", [3, {"replaced": {}, "units": {"1": 0}}, {"replaced": {}, "units": {"1": None}}])
def test_a_config_that_does_not_fit_is_refused(gpt2, rows, tmp_path, entry):
    folder = save(compress(gpt2, rows, 0.8).model, tmp_path / "small")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"howlinear": entry}))
    with pytest.raises(SourceError, match=r"but holds 3|gives numbers of hidden units"):
        load_model(folder)


# --- what is refused


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -0.1, float("nan")])
def test_a_share_that_is_none_is_refused(gpt2, rows, share):
    with pytest.raises(InputError, match="give one between 0 and 1"):
        compress(gpt2, rows, share)


def test_a_share_that_cannot_be_met_is_refused_and_the_least_is_named(model, rows):
    with pytest.raises(InputError, match=r"0.1 of all parameters cannot be met: .*; give at least 0\.\d{3}") as refused:
        compress(model, rows, 0.1)
    least = float(str(refused.value).rpartition(" ")[2])
    found = compress(model, rows, least)
    assert set(found.units.values()) == {1}
    assert found.next_price is None
    assert found.outlook == "Its blocks cannot give another hundredth of all parameters."
    with pytest.raises(InputError, match="cannot be met"):
        compress(model, rows, least - 0.002)


def test_a_text_too_short_is_refused(gpt2, rows):
    with pytest.raises(InputError, match="too few to choose among 128 hidden units by: give 512 rows"):
        compress(gpt2, rows.subset(torch.arange(12)), 0.9)


def test_a_model_without_a_head_is_refused(gpt2, rows):
    with pytest.raises(InputError, match="predicts no next token"):
        compress(gpt2.transformer, rows, 0.9)


def test_a_family_whose_units_cannot_be_reached_is_refused(rows):
    kind, config = FAMILIES["opt"][:2]
    with pytest.raises(InputError, match="the hidden units of OPTForCausalLM, a 'opt' model, cannot be reached"):
        compress(kind(config).eval(), rows, 0.9)
