from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, spearmanr

from helpers.families import small
from helpers.planted_products import OUT, kept_of, line, products, skewed
from helpers.planted_sinks import captured, teacher
from helpers.reference import normal
from howlinear.ideas.bilinear import tables
from howlinear.ideas.bilinear.gate import end_to_end
from howlinear.ideas.bilinear.layers import conjunction, control, cosine, rmse
from howlinear.ideas.bilinear.power import hidden_teacher, power
from howlinear.ideas.bilinear.probe import probe
from howlinear.ideas.bilinear.recipe import recipe
from howlinear.instrument.capture import Sample, capture
from howlinear.instrument.swap_costs import swap_costs

RANK = 2


@pytest.fixture(scope="module")
def models():
    """Two models: one of blocks that bend ever more, one of a single straight block."""
    x = skewed(800)
    noise = 5 * normal(800, OUT, seed=3)
    bent = {
        block: kept_of(x, line(x) + strength * products(x) + noise) for block, strength in ((0, 5), (3, 20), (7, 60))
    }
    return {"bent": bent, "straight": {0: kept_of(x, line(x) + noise)}}


@pytest.fixture(scope="module")
def gained(models):
    return tables.gains(tables.probes(models, RANK, seeds=2, steps=30))


def test_gains_are_the_probes_of_every_block(models, gained):
    assert gained[["model", "block"]].to_numpy().tolist() == [["bent", 0], ["bent", 3], ["bent", 7], ["straight", 0]]
    found = probe(models["bent"][3], RANK, seeds=2, steps=30)
    row = gained.iloc[1]
    expected = (found.gain.value, found.gain.low, found.gain.high, found.r2_lin, found.r2_poly, found.recovered)
    assert row[["gain", "low", "high", "r2_lin", "r2_poly", "recovered"]].tolist() == pytest.approx(expected)
    np.testing.assert_allclose(gained.left, 1 - gained.r2_lin)
    assert gained.gain[2] > gained.gain[1] > gained.gain[0] > gained.gain[3] - 0.01  # as much as was planted


def test_powers_are_of_some_blocks_by_the_kind_of_teacher(models):
    table = tables.powers({"bent": models["bent"]}, 2, RANK, seeds=1, steps=20)
    assert table[["model", "block"]].to_numpy().tolist() == [["bent", 0], ["bent", 7]]
    found = power(models["bent"][7], RANK, seeds=1, steps=20)
    expected = (found.planted, found.in_noise, found.cubic, found.shuffled)
    assert table.loc[1, ["planted", "hidden", "cubic", "shuffled"]].tolist() == pytest.approx(expected)


def test_the_sweep_hides_a_teacher_in_the_middle_block_only(models):
    table = tables.rank_sweep({"bent": models["bent"]}, [1, 2], count=3, steps=20)
    assert table[["block", "rank"]].to_numpy().tolist() == [[0, 1], [0, 2], [3, 1], [3, 2], [7, 1], [7, 2]]
    middle = table[table.block == 3]
    assert table[table.block != 3].hidden.isna().all()
    assert middle.hidden.tolist() == pytest.approx([hidden_teacher(models["bent"][3], r, steps=20) for r in (1, 2)])
    assert middle.recovered.tolist() == pytest.approx(
        [probe(models["bent"][3], r, seeds=1, steps=20).recovered for r in (1, 2)]
    )


def test_gates_are_trained_at_every_rate(models):
    some = {"straight": models["straight"]}
    table = tables.gates(some, [1e-3, 1e-2], RANK, steps=20)
    assert table[["rate", "model", "block"]].to_numpy().tolist() == [[1e-3, "straight", 0], [1e-2, "straight", 0]]
    found = end_to_end(some["straight"][0], RANK, 1e-2, 20)
    assert table.loc[1, ["gain", "gate", "share", "r2_lin"]].tolist() == pytest.approx(list(vars(found).values()))
    np.testing.assert_allclose(table.left, 1 - table.r2_lin)


def test_gates_go_by_spearmans_rho_model_by_model_and_gains_are_summed():
    left = [0.1, 0.2, 0.3, 0.4]
    low = {"rate": 0.001, "left": left, "gate": [1.0, 0.9, 0.8, 0.5], "share": 0.0, "gain": 0.0}
    high = {
        "rate": 0.01,
        "left": left,
        "gate": [0.1, 0.4, 0.3, 0.2],
        "share": [1, 2, 4, 3],
        "gain": [0.0, 0.1, 0.2, 0.3],
    }
    of_one = pd.concat([pd.DataFrame(low), pd.DataFrame(high)]).assign(model="one")
    table = tables.gate_order(of_one, pd.DataFrame({"gain": [0.4, 0.8]}))
    assert table.rate.tolist() == [0.001, 0.01]
    assert table["median gate"].tolist() == pytest.approx([0.85, 0.25])
    assert table["gain ÷ probe's"].tolist() == pytest.approx([0, 0.5])

    # another model whose gates all lie higher, where the line leaves more: no concern of the first one's order
    other = of_one.assign(model="other", left=of_one.left + 1, gate=of_one.gate + 1, share=-of_one.share)
    table = tables.gate_correlations(pd.concat([of_one, other]))
    assert table[["model", "rate"]].to_numpy().tolist() == [
        ["one", 0.001],
        ["one", 0.01],
        ["other", 0.001],
        ["other", 0.01],
    ]
    expected = [-1, spearmanr(left, high["gate"]).statistic]
    assert table["ρ of gate"].tolist() == pytest.approx([*expected, *expected])
    assert table["ρ of share"].tolist() == pytest.approx([0, 0.8, 0, -0.8])  # a share that does not vary: 0


def over_blocks(left, gain):
    return pd.DataFrame({"model": "one", "left": left, "gain": gain})


def test_a_correlation_is_pearsons_with_a_p_value_by_shuffles():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = x + rng.normal(size=60)  # r = √½
    (found,) = tables.correlations(over_blocks(x, y), "gain").itertuples()
    assert found.r == pytest.approx(pearsonr(x, y).statistic)
    assert found.low < 0.5**0.5 < found.high
    assert found.lowest < found.r < found.highest
    assert found.p == pytest.approx(2e-4, abs=2e-4)  # none of 9999 shuffles is as strong
    (none,) = tables.correlations(over_blocks(x, rng.normal(size=60)), "gain").itertuples()
    assert none.p > 0.05
    assert none.low < 0 < none.high


def test_a_slope_that_one_block_makes_is_seen():
    """All but the last block: no slope. The last lies far out."""
    left, gain = [0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 2.0], [0.1, 0.2, 0.2, 0.3, 0.1, 0.1, 2.0]
    (found,) = tables.correlations(over_blocks(left, gain), "gain").itertuples()
    assert found.r > 0.95
    assert abs(found.inner) < 0.3
    assert found.lowest < 0.1


def test_a_correlation_repeats_itself():
    table = over_blocks(normal(12).numpy(), normal(12, seed=1).numpy())
    same, again, other = (tables.correlations(table, "gain", seed) for seed in (3, 3, 4))
    assert same.equals(again)
    assert same.r[0] == other.r[0]


@pytest.mark.parametrize("table", [over_blocks(np.arange(9.0), np.ones(9)), over_blocks([0.1, 0.2], [0.3, 0.4])])
def test_what_has_no_correlation_says_so_by_the_widest_interval(table):
    (found,) = tables.correlations(table, "gain").itertuples()
    assert (found.r, found.low, found.high, found.p) == (0, -1, 1, 1)
    assert (found.inner, found.lowest, found.highest) == (0, -1, 1)


def test_every_model_is_correlated_by_itself():
    """Two models on two levels: together a line, each by itself a cloud."""
    cloud = over_blocks([0.1, 0.2, 0.3, 0.1, 0.2, 0.3], [0.1, 0.3, 0.1, 0.3, 0.1, 0.3])
    higher = cloud.assign(model="other", left=cloud["left"] + 5, gain=cloud["gain"] + 5)
    table = tables.correlations(pd.concat([cloud, higher]), "gain")
    assert table.model.tolist() == ["one", "other"]
    assert table.r.abs().max() < 0.5


@pytest.fixture(scope="module")
def compared(models, gained):
    return tables.recipes(models, gained, RANK, steps=200)


def test_the_parts_add_up_to_the_gap_between_recipe_and_probe(models, gained, compared):
    np.testing.assert_allclose(compared[list(tables.CHANGES)].sum(axis=1), compared.gap, atol=1e-12)
    np.testing.assert_allclose(compared.ours, gained.gain, atol=6e-4)
    found = recipe({0: models["straight"][0]}, RANK, steps=200)
    row = compared[compared.model == "straight"].iloc[0]
    assert row.gain == pytest.approx(float(found.published[0]), abs=6e-4)
    assert row["same rows"] == pytest.approx(float(found.scored_all[0]), abs=6e-4)
    assert row.optimiser == pytest.approx(float(gained.gain.iloc[-1] - found.apart_all[0]), abs=2e-3)
    assert (compared.selection <= 1e-3).all()
    assert (row.few, row["all"]) == (found.few, found.all)


def test_changes_are_means_and_their_shares_of_the_gap():
    numbers = {"gain": [0.1, 0.3], "ours": [0.2, 0.6], "gap": [0.1, 0.3], "selection": [0.0, -0.02]}
    table = pd.DataFrame(numbers | {"model": "m", "rows": [0.05, 0.11], "optimiser": [0.05, 0.21]})
    (row,) = tables.changes(table).itertuples(index=False)
    assert tuple(row)[:6] == pytest.approx((0.2, 0.4, 0.2, -0.01, 0.08, 0.13))
    assert tuple(row)[6:] == pytest.approx((-0.05, 0.4, 0.65))
    none = tables.changes(table.assign(gap=0.0))
    assert none["share of rows"].isna().all()


@pytest.fixture(scope="module")
def controlled(models):
    return tables.controls({"bent": models["bent"]}, 2, RANK, steps=200)


def test_controls_are_of_spaced_blocks(models, controlled):
    assert controlled[["block", "control"]].to_numpy().tolist() == [
        [0, "dense2x"],
        [7, "dense2x"],
        [0, "poly2x"],
        [7, "poly2x"],
    ]
    few = {block: models["bent"][block] for block in (0, 7)}
    found = control(few, "dense2x", RANK, steps=200)[7]
    row = controlled.iloc[1]
    assert (row.r2, row.low, row.high) == pytest.approx((found.r2.value, found.r2.low, found.r2.high), abs=1e-4)
    assert row.step == found.step


def test_measures_are_of_the_held_out_rows(models):
    some = {"bent": {3: models["bent"][3]}}
    found = tables.probes(models, RANK, seeds=2, steps=20)
    fitted = tables.layers(some, found)
    assert {model: list(blocks) for model, blocks in fitted.items()} == {"bent": [3]}
    both = fitted["bent"][3]
    assert both.branch is found["bent"][3].branch
    row = tables.layer_measures(some, fitted).iloc[0]
    sample = some["bent"][3].sample
    x, y = sample.x[sample.test].double(), sample.y[sample.test]
    assert (row.cosine, row.rmse) == pytest.approx((cosine(y, both.line(x)), rmse(y, both.line(x))))
    assert (row.cosine_poly, row.rmse_poly) == pytest.approx((cosine(y, both(x)), rmse(y, both(x))))
    assert row.conjunction == pytest.approx(0, abs=1e-6)
    assert row.conjunction_poly == pytest.approx(conjunction(both, x))
    assert row.rmse_poly < row.rmse


def test_what_layers_cost_is_measured_block_by_block(gpt2, rows):
    kept = capture(gpt2, rows, [0, 2], sample=512)
    found = tables.probes({"tiny": kept}, rank=1, seeds=1, steps=5)
    fitted = tables.layers({"tiny": kept}, found)
    ids = rows.ids[rows.test]
    table = tables.swaps({"tiny": gpt2}, fitted, {"tiny": ids})
    assert table.block.tolist() == [0, 2]
    by_line = swap_costs(gpt2, {block: both.line for block, both in fitted["tiny"].items()}, ids)
    by_both = swap_costs(gpt2, fitted["tiny"], ids)
    assert table.linear.tolist() == [by_line[0].delta, by_line[2].delta]
    assert table.poly_low.tolist() == [by_both[0].low, by_both[2].low]


def test_the_record_holds_every_table_by_model(gained, compared, controlled):
    bent = gained[gained.model == "bent"].drop(columns="left")
    numbers = {"model": "bent", "block": [0, 3, 7], "cosine": 0.9, "rmse": 1.0, "conjunction": 0.0}
    measures = pd.DataFrame(numbers | {"cosine_poly": 0.95, "rmse_poly": 0.5, "conjunction_poly": [0.1, 0.2, 0.3]})
    ends = {"linear": 2.0, "linear_low": 1.0, "linear_high": 3.0, "poly": 1.0, "poly_low": 0.0, "poly_high": 2.0}
    swaps = pd.DataFrame({"model": "bent", "block": [0, 3, 7]} | ends)
    kept = tables.record(bent, measures, compared, controlled, swaps)["bent"]
    assert [block["block"] for block in kept["blocks"]] == [0, 3, 7]
    assert kept["blocks"][1]["gain"] == bent.gain.iloc[1]
    assert kept["blocks"][1]["rmse_poly"] == 0.5
    of_bent = compared[compared.model == "bent"]
    assert kept["recipe"]["optimiser"] == of_bent.optimiser.tolist()
    assert kept["recipe"]["same_rows"] == of_bent["same rows"].tolist()
    assert kept["poly2x"]["blocks"] == kept["conjunction"]["blocks"] == [0, 7]
    assert kept["poly2x"]["r2"] == controlled.r2.tolist()[2:]
    assert kept["conjunction"]["poly"] == [0.1, 0.3]
    assert kept["conjunction"]["dense2x"] == controlled.conjunction.tolist()[:2]
    assert kept["dppl"] == {"block": [0, 3, 7]} | {name: [value] * 3 for name, value in ends.items()}


def test_fits_hold_every_layer_of_the_controls_blocks(gained, controlled):
    table = tables.fits(gained, controlled)
    assert table.layer.tolist() == ["line", "+ products", "dense 2×", "poly 2×"] * 2
    assert table.block.tolist() == [0] * 4 + [7] * 4
    assert table.r2.iloc[0] == gained.r2_lin.iloc[0]
    assert table.r2.iloc[-1] == controlled.r2.iloc[-1]


@pytest.fixture(scope="module")
def sinks():
    """A model of one block whose sinks decide, and one without any; every row is in the sample."""
    found = {}
    for name, rows in (("sunk", teacher()), ("clean", teacher(sink=0.0))):
        x, y, test, fold, _, position = rows
        sample = Sample(x=x, y=y, position=position, token=position, test=test, fold=fold)
        found[name] = {4: replace(captured(*rows), sample=sample)}
    return found


def test_massive_rows_are_counted_in_the_sample_and_blocks_without_any_are_left_out(sinks):
    (row,) = tables.massive(sinks).itertuples()
    sample = sinks["sunk"][4].rows()
    assert (row.model, row.block) == ("sunk", 4)
    assert (row.rows, row.sampled) == (256, 256)
    assert row.of == row.of_sampled == len(sample.x)
    assert row.held_out == int(((sample.position == 0) & sample.test).sum())
    assert row.share > 0.9
    assert "block 4 (256 of" in tables.massive_sentence("sunk", tables.massive(sinks))
    assert tables.massive_sentence("clean", tables.massive(sinks)) == "clean: no block has massive rows"


def test_without_massive_rows_the_probe_sees_the_others_alone(sinks):
    massive = tables.massive(sinks)
    everything = tables.gains(tables.probes(sinks, RANK, seeds=2, steps=5))
    ordinary = tables.ordinary_gains(sinks, massive, RANK, seeds=2, steps=5)
    assert ordinary.model.tolist() == ["sunk"]
    (clean,) = everything[everything.model == "clean"].r2_lin
    (sunk,) = everything[everything.model == "sunk"].r2_lin
    assert sunk > 0.95
    assert ordinary.r2_lin[0] == pytest.approx(clean, abs=0.02)  # as if no sink had ever come

    mixed = tables.with_ordinary(everything, ordinary).set_index("model")
    assert mixed.r2_lin["sunk"] == ordinary.r2_lin[0]
    assert mixed.r2_lin["clean"] == clean
    beside = tables.beside_ordinary(everything, ordinary)
    assert beside[["r2_lin, ordinary", "r2_lin"]].to_numpy().tolist() == [[ordinary.r2_lin[0], sunk]]
    (kept,) = tables.massive_record(massive, ordinary)["sunk"]
    assert (kept["block"], kept["rows"], kept["r2_lin"]) == (4, 256, ordinary.r2_lin[0])


def test_where_no_row_is_massive_nothing_is_fitted_again(sinks):
    clean = {"clean": sinks["clean"]}
    massive = tables.massive(clean)
    ordinary = tables.ordinary_gains(clean, massive)
    assert massive.empty
    assert ordinary.empty
    everything = tables.gains(tables.probes(clean, RANK, seeds=2, steps=2))
    pd.testing.assert_frame_equal(tables.with_ordinary(everything, ordinary)[list(everything)], everything)
    assert tables.beside_ordinary(everything, ordinary).empty
    assert tables.massive_record(massive, ordinary) == {}


def test_gains_of_the_same_blocks_as_another_table():
    gains = pd.DataFrame({"model": ["a", "a", "b"], "block": [0, 1, 0], "gain": [0.1, 0.2, 0.3]})
    others = pd.DataFrame({"model": ["a", "b", "b"], "block": [1, 0, 0]})
    assert tables.same_blocks(gains, others).gain.tolist() == [0.2, 0.3]


def test_an_encoder_has_no_swaps(models, gpt2):
    straight = {"straight": models["straight"]}
    layers = tables.layers(straight, tables.probes(straight, RANK, seeds=1, steps=2))
    found = tables.swaps({"straight": small("bert")}, layers, {})
    assert found.empty
    assert list(found)[:3] == ["model", "block", "linear"]
