"""Notebook 08's tables: what stands in which row, against the same asked of one block at a time."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS, tiny
from helpers.families import small
from helpers.reference import normal
from howlinear.core.ceilings import ceiling
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.controls import survey
from howlinear.ideas.controls.anova import Effect, anova, effect_table, profile_array
from howlinear.ideas.controls.inputs import Colour, gaussian, transplants
from howlinear.ideas.controls.weights import chance_floor, redraw, respond, sample_ceiling
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import capture, describe
from howlinear.models.ffn_sites import sites, whole
from howlinear.models.load import untrained
from howlinear.text.rows import TokenRows
from tests.ideas.test_controls import sample_of


def ffns_of(model):
    return [site.output for site in sites(model)]


def test_every_control_has_a_row_and_says_what_it_changed(gpt2, rows):
    blocks = capture(gpt2, rows, sample=500)
    ffns, fresh = ffns_of(gpt2), ffns_of(untrained(gpt2))
    found = survey.control_table(blocks, ffns, fresh, intervals=False)
    assert found.block.tolist() == [block for block in range(BLOCKS) for _ in survey.CONTROLS]
    assert found.control.tolist() == list(survey.CONTROLS) * BLOCKS
    assert (found.low.notna() == (found.control == "own")).all()
    sample, moments = blocks[1].rows(), sum(blocks[1].train)
    mine = found[found.block == 1].set_index("control")
    own = sample_ceiling(sample.x, respond(ffns[1], sample.x), sample)
    assert mine.loc["own", ["r2", "low", "high"]].tolist() == pytest.approx([own.r2, own.r2_low, own.r2_high])
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
    assert mine.r2.nunique() == len(survey.CONTROLS)
    whole = survey.control_table({1: blocks[1]}, ffns, fresh)
    assert (whole.low < whole.r2).all()
    assert (whole.r2 < whole.high).all()


def random_model(*held_out, apart=0.05):
    held_out = np.array(held_out)
    return Baseline(held_out, held_out + apart, 4_096)


def test_random_profiles_keep_model_seed_and_block():
    found = survey.random_table(
        {"one": [random_model(0.1, 0.2, 0.3), random_model(0.4, 0.5, 0.6)], "other": [random_model(0.7, 0.7, 0.7)]}
    )
    assert len(found) == 9
    (row,) = found[(found.model == "one") & (found.seed == 1) & (found.block == 2)].to_dict("records")
    assert (row["r2"], row["in_sample"], row["rows"]) == (0.6, pytest.approx(0.65), 4_096)
    assert found[found.model == "other"].seed.unique().tolist() == [0]


def test_the_brackets_of_random_models_by_hand():
    found = survey.bracket_table(
        survey.random_table({"one": [random_model(0.1, 0.3), random_model(0.3, 0.5, apart=0.2)]})
    )
    assert found.loc["one"].tolist() == pytest.approx([4_096, 0.3, 0.425, 0.2])


def test_a_closed_form_is_priced_by_rank_and_rows():
    controls = pd.DataFrame(
        {"model": "tiny", "block": [0, 0], "control": ["own", "normal"], "r2": [0.9, 0.7], "rank": 10, "rows_train": 52}
    )
    found = survey.closed_form_table(controls, {("tiny", 0): 0.75})
    assert found.fitted.tolist() == [0.7]
    assert found.closed.tolist() == [0.75]
    assert found.priced.tolist() == pytest.approx([1 - 0.25 * (1 + 10 / 40)])


def test_floors_are_at_factors_of_the_width_and_at_all_rows_there_are():
    sample = sample_of(normal(400, 4), normal(400, 2, seed=1))
    found = survey.floor_table(sample)
    assert found.rows.tolist() == [8, 16, 64, 256]
    assert vars(chance_floor(sample, 64)) == found.iloc[2].to_dict()
    assert survey.floor_table(sample, (64, 128, 512)).rows.tolist() == [256, 300]


def test_inputs_are_described_block_by_block(gpt2, rows):
    blocks = capture(gpt2, rows, sample=500)
    found = survey.input_table(blocks)
    assert found.block.tolist() == list(range(BLOCKS))
    known = vars(describe(blocks[2]))
    for column in ("rank", "condition", "effective_rank", "dynamic_range", "first_position_out"):
        assert found[column][2] == known[column]
    assert found.support_in.between(0, 1).all()
    assert not {"null", "second"} & set(found)


@pytest.fixture
def captures(gpt2, rows):
    models = {"one": gpt2, "other": tiny("mini-pythia")}
    return (
        {name: capture(model, rows, sample=500) for name, model in models.items()},
        {name: ffns_of(model) for name, model in models.items()},
    )


def test_transplants_name_whose_rows_colour_and_weights_they_took(captures):
    found = survey.transplant_table(*captures, three_way_every=2)
    assert found.groupby("block").size().tolist() == [8, 4, 8]
    blocks, ffns = captures
    known = transplants([blocks[name][0] for name in blocks], [ffns[name][0] for name in ffns])
    at = found.set_index(["block", "rows", "colour", "weights"]).r2
    assert at[0, "one", "other", "one"] == pytest.approx(known[0, 1, 0], abs=1e-9)
    assert at[0, "other", "one", "one"] == pytest.approx(known[1, 0, 0], abs=1e-9)
    pairs = survey.two_way(found)
    assert list(pairs) == ["block", "inputs", "weights", "r2"]
    assert pairs.groupby("block").size().tolist() == [4, 4, 4]
    same = pairs.set_index(["block", "inputs", "weights"]).r2
    assert same[0, "other", "one"] == at[0, "other", "one", "one"]
    free = survey.three_way(found)
    assert free.block.unique().tolist() == [0, 2]
    assert list(free) == ["block", "shape", "colour", "weights", "r2"]


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
    found = survey.nearness(pd.DataFrame(pairs), pd.DataFrame(controls))
    assert found["normal"] == pytest.approx(0.01)
    # to the owner's own rows: a 0.31, 0.31; b 0.21, −0.19
    assert found["weights' owner"] == found["turned"] == pytest.approx((0.31 + 0.31 + 0.21 + 0.19) / 4)
    # to the giver's: rows of a in b 0.91 − 0.1, 0.61 − 0.2; rows of b in a 0.41 − 0.7, 0.51 − 0.8
    assert found["inputs' owner"] == pytest.approx((0.81 + 0.41 + 0.29 + 0.29) / 4)


def test_a_block_is_outside_if_its_interval_is_above_or_below_all_seeds():
    controls = pd.DataFrame({"model": "tiny", "block": range(4), "control": "own", "r2": [0.9, 0.5, 0.1, 0.62]})
    controls = controls.assign(low=controls.r2 - 0.05, high=controls.r2 + 0.05)
    random = survey.random_table({"tiny": [random_model(*[0.4] * 4), random_model(*[0.5] * 4, apart=0.1)]})
    assert survey.outside_random(controls, random) == {"tiny": 2}
    wide = survey.random_table({"tiny": [random_model(*[0.4] * 4, apart=0.5)]})
    assert survey.outside_random(controls, wide) == {"tiny": 1}  # 0.9 may be where the random model is


def twins():
    for i, (family, text, seed) in enumerate(
        (f, t, s) for f in ("gpt2", "pythia") for t in ("docs", "code") for s in (0, 1)
    ):
        profile = {"r2": [0.1 * i, 0.2]}
        yield {"family": family, "text": text, "seed": seed, "profiles": {"docs": profile, "code": {"r2": [0.0, 0.5]}}}


def test_twins_are_a_table_and_their_gaps_go_by_one_factor_at_a_time():
    found = survey.twin_table(twins())
    assert len(found) == 8 * 2 * 2
    third = found[(found.family == "gpt2") & (found.text == "code") & (found.seed == 1) & (found.measured_on == "docs")]
    assert third.r2.tolist() == pytest.approx([0.3, 0.2])
    gaps = survey.twin_gaps(found[found.measured_on == "docs"])
    assert gaps == pytest.approx(
        {"family": 0.4 / 2, "text": 0.2 / 2, "seed": 0.1 / 2}
    )  # over two blocks, one of them 0
    with pytest.raises(InputError, match="no twins"):
        survey.twin_table([])


@pytest.mark.parametrize("families", [("gpt2", "pythia"), ("gpt2", "pythia", "llama")])
def test_the_families_that_are_there_are_measured_beside_their_seeds(families):
    random = np.random.default_rng(0)
    measured = []
    for number, family in enumerate(families):
        for text in ("docs", "code"):
            for seed in (0, 1):
                curves = {on: {"r2": (0.3 * number + 0.01 * random.normal(size=8)).tolist()} for on in ("docs", "code")}
                measured.append({"family": family, "text": text, "seed": seed, "profiles": curves})
    siblings = survey.twin_table(measured)
    table = survey.beside_seeds_table(siblings)
    assert set(table["view"]) == {
        "as measured",
        *(f"{t}, {v}" for t in ("docs", "code") for v in ("as measured", "shape only")),
    }
    record = survey.beside_seeds_record(siblings, table)
    assert (record["families"], record["texts"]) == (list(families), ["docs", "code"])
    assert record["family"]["share"]["low"] > 0.9  # planted
    assert record["text"]["ratio"]["low"] == 1  # and not
    assert record["family"]["share"]["value"] == table.share[0]
    assert record["by_view"]["docs, shape only"]["family"]["low"] < 0.9  # it was in the level alone


def test_gaps_of_three_families_are_of_their_pairs():
    three = pd.DataFrame({"block": 0, "family": ["a", "b", "c"], "r2": [0.1, 0.2, 0.4]})
    assert survey.twin_gaps(three, ["family"])["family"] == pytest.approx((0.1 + 0.3 + 0.2) / 3)


def test_profiles_of_a_column_are_kept_block_by_block():
    table = pd.DataFrame({"model": ["b", "b", "a"], "block": [1, 0, 0], "r2": [0.2, 0.1, 0.3]})
    assert survey.by_model(table, "r2") == {"b": [0.1, 0.2], "a": [0.3]}


def test_a_table_of_profiles_becomes_an_array_whatever_its_order():
    array = np.random.default_rng(0).normal(size=(3, 2, 2))
    rows = [{"block": b, "family": "xy"[i], "seed": j, "r2": array[b, i, j]} for b, i, j in np.ndindex(array.shape)]
    table = pd.DataFrame(rows)
    np.testing.assert_array_equal(profile_array(table, ["family", "seed"]), array)
    np.testing.assert_array_equal(profile_array(table, ["seed", "family"]), array.swapaxes(1, 2))
    with pytest.raises(InputError, match="11 values for 12 combinations of block, family, seed"):
        profile_array(table[:-1], ["family", "seed"])
    with pytest.raises(InputError, match="12 values for 12 combinations"):
        profile_array(pd.concat([table[:-1], table[:1]]), ["family", "seed"])


def test_effects_are_a_table():
    effects = anova(np.array([[[1.0, 2.0], [3.0, 8.0]]]), ("a", "b"))
    found = effect_table({"by hand": effects})
    assert isinstance(effects["a"], Effect)
    assert found["view"].unique().tolist() == ["by hand"]
    assert found["effect"].tolist() == ["a", "b", "a × b"]
    assert found.share.tolist() == pytest.approx([16 / 29, 9 / 29, 4 / 29])
    assert found["size"].tolist() == pytest.approx([2, 1.5, 1])
    assert found.freedom.tolist() == [1, 1, 1]


def test_the_own_row_is_the_ceiling_of_the_sampled_rows(gpt2, rows):
    """With all rows sampled, what a control is compared with is the block's own R²_lin."""
    blocks = capture(gpt2, rows, [0], sample=rows.count)
    own = survey.control_table(blocks, ffns_of(gpt2), ffns_of(gpt2), intervals=False).iloc[0]
    known = ceiling(blocks[0].train, blocks[0].test)
    assert own[["r2", "low", "high"]].tolist() == pytest.approx([known.r2, known.r2_low, known.r2_high], abs=1e-4)


def test_only_models_of_one_width_and_depth_are_alike(captures):
    blocks, _ = captures
    assert survey.alike(blocks) == ["one", "other"]
    shorter = {0: blocks["other"][0], 1: blocks["other"][1]}
    assert survey.alike({"one": blocks["one"], "other": shorter}) == []
    narrow = {block: replace(kept, train=[Moments(5, 5)]) for block, kept in blocks["other"].items()}
    assert survey.alike({"one": blocks["one"], "other": narrow}) == []
    assert survey.alike({"one": blocks["one"], "narrow": narrow, "other": blocks["other"]}) == ["one", "other"]


def test_where_nothing_is_transplanted_every_model_has_its_own_rows():
    controls = pd.DataFrame({"model": ["a", "a", "b"], "block": [0, 0, 0], "control": ["own", "fresh", "own"]})
    found = survey.own_pairs(controls.assign(r2=[0.1, 0.2, 0.3]))
    assert found.to_dict("list") == {"block": [0, 0], "inputs": ["a", "b"], "weights": ["a", "b"], "r2": [0.1, 0.3]}


def test_the_price_of_a_fit_by_hand():
    controls = pd.DataFrame({"model": ["a", "a", "b"], "control": ["own", "own", "own"]})
    found = survey.price(controls.assign(rank=[10, 20, 10], rows_train=[112, 122, 1_012]))
    assert found == pytest.approx({"a": 0.2, "b": 0.01})


def test_the_whole_ffn_of_an_encoder_answers_its_own_rows(rows):
    model = small("bert")
    kept = capture(model, TokenRows.from_ids(rows.ids % 20 + 3, folds=2), sample=100)
    for site in sites(model):
        sample = kept[site.block].rows()
        torch.testing.assert_close(respond(whole(model, site), sample.x), sample.y, atol=1e-4, rtol=1e-4)
    assert site.output.in_features != sample.x.shape[1]  # its last layer alone could not read them


def test_no_effects_are_a_table_without_rows():
    found = effect_table({"two_way": {}})
    assert found.empty
    assert {"view", "effect", "share", "low", "high"} <= set(found)


def test_a_transplant_of_all_models_is_what_its_parts_say(captures):
    blocks, ffns = captures
    curves = ("own", "normal", "turned")
    controls = pd.DataFrame(
        [(model, block, control, 0.1 * block) for model in blocks for block in range(BLOCKS) for control in curves],
        columns=["model", "block", "control", "r2"],
    )
    found = survey.transplant(blocks, ffns, controls, three_way_every=2)
    table = survey.transplant_table(blocks, ffns, three_way_every=2)
    assert found.models == ["one", "other"]
    pd.testing.assert_frame_equal(found.pairs, survey.two_way(table))
    assert found.nearness == survey.nearness(found.pairs, controls)
    shares = found.effects.groupby("view", sort=False).share
    assert shares.sum().to_dict() == pytest.approx({"two_way": 1, "three_way": 1})
    assert set(found.effects[found.effects["view"] == "three_way"].effect) > {"shape", "colour", "weights"}


def test_a_model_without_its_like_is_transplanted_nowhere(captures):
    blocks, ffns = captures
    controls = pd.DataFrame({"model": "one", "block": range(BLOCKS), "control": "own", "r2": 0.5})
    found = survey.transplant({"one": blocks["one"]}, ffns, controls)
    assert (found.models, found.nearness) == ([], {})
    assert found.effects.empty
    assert found.pairs.weights.tolist() == ["one"] * BLOCKS
    assert survey.ranked(found.effects, "two_way") == "no two models of one width and depth"


def test_effects_in_words_by_hand():
    effects = pd.DataFrame(
        {"view": ["two_way", "two_way", "three_way"], "effect": ["a", "b", "c"], "share": [0.1, 0.6, 0.9]}
    )
    assert survey.ranked(effects, "two_way") == "b 60%; a 10%"
    assert survey.effect_record(effects)["two_way"] == {"a": {"share": 0.1}, "b": {"share": 0.6}}
    moving = pd.DataFrame({"view": ["as measured", "docs"], "effect": "text", "ratio": [1.94, 7.0]})
    moving = moving.assign(ratio_low=1.25, ratio_high=2.5)
    assert survey.beside(moving, "text") == "apart by 1.9 times a seed's distance [1.2, 2.5]"


def test_records_of_controls_and_of_random_models_of_unlike_depth():
    controls = pd.DataFrame({"model": "a", "block": [1, 0, 0], "control": ["own", "own", "fresh"]})
    found = survey.control_record(controls.assign(r2=[0.2, 0.1, 0.3], low=[0.15, 0.05, np.nan], high=0.9))
    assert found["own"] == {"a": [0.1, 0.2]}
    assert found["fresh"] == {"a": [0.3]}
    assert found["own_low"] == {"a": [0.05, 0.15]}
    assert found["own_high"] == {"a": [0.9, 0.9]}
    seeds = {"deep": [random_model(0.1, 0.2), random_model(0.3, 0.4)], "flat": [random_model(0.5)]}
    record = survey.random_record(survey.random_table(seeds))
    assert record["fresh"]["deep"].tolist() == [[0.1, 0.2], [0.3, 0.4]]
    np.testing.assert_allclose(record["fresh_in_sample"]["flat"], [[0.55]])
    assert record["fresh_rows"] == {"deep": 4_096, "flat": 4_096}
