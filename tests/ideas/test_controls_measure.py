"""Notebook 08's tables: what stands in which row, against the same asked of one block at a time."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS, tiny
from helpers.families import small
from helpers.planted_neurons import sample_of
from helpers.reference import normal
from howlinear.core.moments import Moments
from howlinear.ideas.controls import measure
from howlinear.ideas.controls.inputs import Colour, gaussian, recolour
from howlinear.ideas.controls.weights import chance_floor, redraw, respond, sample_ceiling
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import capture, describe
from howlinear.models.ffn_sites import sites
from howlinear.models.load import untrained
from howlinear.models.pairs import ffn_module
from howlinear.text.rows import TokenRows


def ffns_of(model):
    return {site.block: site.output for site in sites(model)}


def test_every_control_has_a_row_and_says_what_it_changed(gpt2, rows):
    blocks = capture(gpt2, rows, sample=500)
    ffns, fresh = ffns_of(gpt2), ffns_of(untrained(gpt2))
    found = measure.controls("tiny", blocks, ffns, fresh)
    assert found.block.tolist() == [block for block in range(BLOCKS) for _ in measure.CONTROLS]
    assert found.control.tolist() == list(measure.CONTROLS) * BLOCKS
    assert (found.r2_low.notna() == (found.control == "own")).all()
    sample, moments = blocks[1].rows(), sum(blocks[1].train)
    mine = found[(found.model == "tiny") & (found.block == 1)].set_index("control")
    own = sample_ceiling(sample.x, respond(ffns[1], sample.x), sample)
    assert mine.loc["own", ["r2", "r2_low", "r2_high"]].tolist() == pytest.approx([own.r2, own.r2_low, own.r2_high])
    assert mine.loc["own", ["rank", "rows_train"]].tolist() == [own.rank, own.rows_train]
    drawn = gaussian(Colour.of(moments), len(sample.x))
    by_hand = {
        "normal": (drawn, respond(ffns[1], drawn)),
        "redrawn": (sample.x, respond(redraw(ffns[1]), sample.x)),
        "fresh": (sample.x, respond(fresh[1], sample.x)),
    }
    for control, (x, y) in by_hand.items():
        expected = sample_ceiling(x, y, sample, intervals=False).r2
        assert mine.loc[control, "r2"] == pytest.approx(expected, abs=1e-9), control
    assert mine.r2.nunique() == len(measure.CONTROLS)


def test_the_whole_ffn_of_an_encoder_answers_its_own_rows(rows):
    model = small("bert")
    kept = capture(model, TokenRows.from_ids(rows.ids % 20 + 3, folds=2), sample=100)
    for site in sites(model):
        sample = kept[site.block].rows()
        torch.testing.assert_close(respond(ffn_module(model, site), sample.x), sample.y, atol=1e-4, rtol=1e-4)
    assert site.output.in_features != sample.x.shape[1]  # its last layer alone could not read them


def test_a_closed_form_is_priced_by_rank_and_rows():
    controls = pd.DataFrame(
        {"model": "tiny", "block": [0, 0], "control": ["own", "normal"], "r2": [0.9, 0.7], "rank": 10, "rows_train": 52}
    )
    found = measure.closed_form(controls, {("tiny", 0): 0.75})
    assert measure.cost_of_fit(controls).tolist() == [11 / 40] * 2
    assert found.fitted.tolist() == [0.7]
    assert found.closed.tolist() == [0.75]
    assert found.priced.tolist() == pytest.approx([1 - 0.25 * (1 + 11 / 40)])
    unknown = measure.closed_form(controls, {})
    assert unknown.fitted.tolist() == [0.7]
    assert unknown[["closed", "priced"]].isna().all(axis=None)


# models at random, chance, inputs


def random_model(*held_out, apart=0.05, rows=4_096):
    held_out = np.array(held_out)
    return Baseline(held_out, held_out + apart, rows, list(range(len(held_out))))


def test_random_profiles_keep_model_seed_and_block():
    found = measure.random_models(
        {"one": [random_model(0.1, 0.2, 0.3), random_model(0.4, 0.5, 0.6)], "other": [random_model(0.7)]}
    )
    assert len(found) == 7
    (row,) = found[(found.model == "one") & (found.seed == 1) & (found.block == 2)].to_dict("records")
    assert (row["r2"], row["r2_in_sample"]) == (0.6, pytest.approx(0.65))
    assert found[found.model == "other"].seed.unique().tolist() == [0]


@pytest.mark.parametrize(("higher", "apart", "outside"), [(0.5, 0.1, 2), (0.4, 0.5, 1)])  # wide: up to 0.9
def test_a_block_is_outside_if_its_interval_is_above_or_below_all_seeds(higher, apart, outside):
    own = pd.DataFrame({"model": "tiny", "block": range(4), "control": "own", "r2": [0.9, 0.5, 0.1, 0.62]})
    own = own.assign(r2_low=own.r2 - 0.05, r2_high=own.r2 + 0.05)
    controls = pd.concat([own.assign(control="fresh", r2_low=0.99, r2_high=0.99), own])
    seeds = {"tiny": [random_model(*[0.4] * 4), random_model(*[higher] * 4, apart=apart, rows=9_000)]}
    found = measure.by_model(controls, measure.random_models(seeds), seeds)
    assert found.to_dict("records") == [{"model": "tiny", "outside": outside, "random_rows": 9_000}]


def test_floors_are_at_factors_of_the_width_and_at_all_rows_there_are():
    sample = sample_of(normal(400, 4), normal(400, 2, seed=1))
    found = measure.floors(sample)
    assert found.rows.tolist() == [8, 16, 64, 256]
    assert chance_floor(sample, 64) == found.iloc[2].to_dict()
    few = sample_of(normal(100, 4), normal(100, 2, seed=1))
    assert measure.floors(few).rows.tolist() == [8, 16, 64, 75]


def test_inputs_are_described_block_by_block(gpt2, rows):
    blocks = capture(gpt2, rows, sample=500)
    found = measure.inputs("tiny", blocks)
    assert found.block.tolist() == list(range(BLOCKS))
    known = describe(blocks[2])
    for column in ("rank", "condition", "effective_rank", "dynamic_range", "first_position_out"):
        assert found[column][2] == known[column]
    assert found.support_in.between(0, 1).all()


# transplants


@pytest.fixture
def captures(gpt2, rows):
    models = {"one": gpt2, "other": tiny("mini-pythia")}
    return (
        {name: capture(model, rows, sample=500) for name, model in models.items()},
        {name: ffns_of(model) for name, model in models.items()},
    )


def test_transplants_are_of_the_shape_colour_and_weights_that_they_name(captures):
    """They equal the same by hand; own rows, colour and weights give the block's own ceiling."""
    blocks, ffns = captures
    found = measure.transplants(blocks, ffns, three_way_every=2)
    assert found.groupby("block").size().tolist() == [8, 4, 8]
    at = found.set_index(["block", "shape", "colour", "weights"]).r2
    for name, captured in blocks.items():
        own = sample_ceiling(captured[0].sample.x, captured[0].sample.y, captured[0].sample)
        assert at[0, name, name, name] == pytest.approx(own.r2, abs=1e-5)
    sample = blocks["other"][0].sample
    x = recolour(sample.x, *(Colour.of(sum(blocks[name][0].train)) for name in ("other", "one")))
    by_hand = sample_ceiling(x, respond(ffns["other"][0], x), sample).r2
    assert at[0, "other", "one", "other"] == pytest.approx(by_hand, abs=1e-9)

    pairs = measure.pairs(found)
    assert list(pairs) == ["block", "inputs", "weights", "r2"]
    assert pairs.groupby("block").size().tolist() == [4, 4, 4]
    assert pairs.set_index(["block", "inputs", "weights"]).r2[0, "other", "one"] == at[0, "other", "one", "one"]

    effects = measure.effects(found)
    assert effects.groupby("design").share.sum().to_dict() == pytest.approx({"two-way": 1, "three-way": 1})
    three_way = effects[effects.design == "three-way"]
    assert three_way.effect.tolist()[:3] == ["shape", "colour", "weights"]
    first_and_last = found[found.block.isin([0, 2])].set_index(["block", "weights"]).r2
    spread = first_and_last.groupby(["block", "weights"]).mean().groupby("block").std(ddof=0)
    (size,) = three_way[three_way.effect == "weights"]["size"]
    assert size == pytest.approx(float(np.sqrt(np.square(spread).mean())))


def test_only_models_of_one_width_and_of_the_same_blocks_are_alike(captures):
    blocks, ffns = captures
    assert measure.alike(blocks) == ["one", "other"]
    shorter = {0: blocks["other"][0], 1: blocks["other"][1]}
    assert measure.alike({"one": blocks["one"], "other": shorter}) == []
    behind = {block: blocks["other"][block] for block in (1, 2)}  # the first of three is left out
    assert measure.alike({"one": shorter, "other": behind}) == []
    assert measure.alike({"one": behind, "other": behind}) == ["one", "other"]
    narrow = {block: replace(kept, train=[Moments(5, 5)]) for block, kept in blocks["other"].items()}
    assert measure.alike({"one": blocks["one"], "other": narrow}) == []
    assert measure.alike({"one": blocks["one"], "narrow": narrow, "other": blocks["other"]}) == ["one", "other"]

    nothing = measure.transplants({"one": blocks["one"]}, ffns)
    controls = pd.DataFrame({"model": "one", "block": [0], "control": "own", "r2": 0.5})
    pairs = measure.pairs(nothing)
    for table in (nothing, pairs, measure.effects(nothing), measure.nearness(pairs, controls)):
        assert len(table) == 0 < len(table.columns)


def test_nearness_is_to_the_curve_that_transplants_follow():
    """Two blocks, two models; transplanted rows give the owner's profile on normal rows, raised by 0.01."""
    own, normal_rows = {"a": [0.1, 0.2], "b": [0.7, 0.8]}, {"a": [0.4, 0.5], "b": [0.9, 0.6]}
    controls, pairs = [], []
    for model in ("a", "b"):
        for block in (0, 1):
            for control, profiles in (("own", own), ("normal", normal_rows), ("turned", own)):
                controls.append({"model": model, "block": block, "control": control, "r2": profiles[model][block]})
            for giver in ("a", "b"):
                r2 = own[model][block] if giver == model else normal_rows[model][block] + 0.01
                pairs.append({"block": block, "inputs": giver, "weights": model, "r2": r2})
    found = measure.nearness(pd.DataFrame(pairs), pd.DataFrame(controls)).set_index("curve").gap
    assert found["normal"] == pytest.approx(0.01)
    # to the owner's own rows: a 0.31, 0.31; b 0.21, −0.19
    assert found["weights' owner"] == found["turned"] == pytest.approx((0.31 + 0.31 + 0.21 + 0.19) / 4)
    # to the giver's: rows of a in b 0.91 − 0.1, 0.61 − 0.2; rows of b in a 0.41 − 0.7, 0.51 − 0.8
    assert found["inputs' owner"] == pytest.approx((0.81 + 0.41 + 0.29 + 0.29) / 4)


# twins


def curves(r2):
    return {"r2": list(r2), "r2_low": [value - 0.1 for value in r2], "r2_high": [value + 0.1 for value in r2]}


def test_twins_are_a_table_and_their_gaps_go_by_one_factor_at_a_time():
    places = product(("gpt2", "pythia", "llama"), ("docs", "code"), (0, 1))
    measured = [
        {"family": family, "text": text, "seed": seed}
        | {"profiles": {"docs": curves([0.1 * place, 0.2]), "code": curves([0.0, 0.5])}}
        for place, (family, text, seed) in enumerate(places)
    ]
    found = measure.twins(measured)
    assert len(found) == 12 * 2 * 2
    third = found[(found.family == "gpt2") & (found.text == "code") & (found.seed == 1) & (found.measured_on == "docs")]
    assert third.r2.tolist() == pytest.approx([0.3, 0.2])
    assert third.r2_low.tolist() == pytest.approx([0.2, 0.1])
    gaps = measure.twin_gaps(found).set_index(["measured_on", "factor"]).gap
    # over two blocks, one of them 0; of three families their pairs count
    of_families = (0.4 + 0.8 + 0.4) / 3
    assert gaps["docs"].to_dict() == pytest.approx({"family": of_families / 2, "text": 0.2 / 2, "seed": 0.1 / 2})
    assert (gaps["code"] == 0).all()


@pytest.mark.parametrize("families", [("gpt2", "pythia"), ("gpt2", "pythia", "llama")])
def test_the_families_that_are_there_are_measured_beside_their_seeds(families):
    random = np.random.default_rng(0)
    measured = []
    for number, family in enumerate(families):
        for text in ("docs", "code"):
            for seed in (0, 1):
                profiles = {on: curves(0.3 * number + 0.01 * random.normal(size=8)) for on in ("docs", "code")}
                measured.append({"family": family, "text": text, "seed": seed, "profiles": profiles})
    found = measure.twins_beside_seeds(measure.twins(measured)).set_index(["measured_on", "view", "effect"])
    assert len(found) == 2 * (1 + 2 * 2)
    assert found.share_low["all", "as measured", "family"] > 0.9  # planted
    assert found.ratio_low["all", "as measured", "text"] == 1  # and not
    assert found.share_low["docs", "shape only", "family"] < 0.9  # it was in the level alone
    assert (found.freedom.xs("family", level="effect") == len(families) - 1).all()
