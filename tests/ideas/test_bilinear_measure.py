import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import pearsonr

from helpers.families import small
from helpers.planted_products import OUT, kept_of, line, products, skewed
from helpers.planted_sinks import captured, teacher
from helpers.reference import normal
from howlinear.core.ceilings import AffineMap
from howlinear.files import tables
from howlinear.files.tables import with_ends
from howlinear.ideas.bilinear import measure
from howlinear.ideas.bilinear.layers import LineAndProducts, conjunction, control, cosine, rmse
from howlinear.ideas.bilinear.probe import Branch, hidden_teacher, power, probe
from howlinear.ideas.bilinear.recipe import end_to_end, papers_gain, recipe
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.instrument.resample import rows_of_blocks
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.swap import swap
from howlinear.text.paper_rows import PaperRows
from howlinear.text.rows import TokenRows

RANK = 2


def recorded(table, name):
    """The table as it will be on disk: its columns are in the data dictionary, and its keys tell rows apart."""
    return tables.as_recorded(table, "03_bilinear", name)


def keys(table, *names):
    return list(table[["model", "block", *names]].itertuples(index=False, name=None))


@pytest.fixture(scope="module")
def models():
    """Two models: one of blocks that bend ever more, one of a single straight block."""
    x = skewed(800)
    noise = 5 * normal(800, OUT, seed=3)
    strengths = {0: 5, 3: 20, 7: 60}
    bent = {block: kept_of(x, line(x) + strength * products(x) + noise) for block, strength in strengths.items()}
    return {"bent": bent, "straight": {0: kept_of(x, line(x) + noise)}}


@pytest.fixture(scope="module")
def probes(models):
    return measure.probe_blocks(models, RANK, seeds=2, steps=30)


@pytest.fixture(scope="module")
def blocks(probes):
    return measure.block_table(probes)


def test_blocks_are_the_probes_of_every_block(models, blocks):
    assert keys(recorded(blocks, "blocks")) == [("bent", 0), ("bent", 3), ("bent", 7), ("straight", 0)]
    found = probe(models["bent"][3], RANK, seeds=2, steps=30)
    numbers = (found.r2_lin, found.r2_poly, found.gain.value, found.gain.low, found.gain.high, found.recovered)
    assert blocks.iloc[1, 2:].tolist() == pytest.approx(numbers)
    gain = blocks["gain"]
    assert gain[2] > gain[1] > gain[0] > gain[3] - 0.01  # as much as was planted


def test_power_is_of_some_blocks(models):
    table = measure.power_table(models, 2, RANK, seeds=1, steps=20)
    assert keys(recorded(table, "power")) == [("bent", 0), ("bent", 7), ("straight", 0)]
    expected = power(models["bent"][7], RANK, seeds=1, steps=20)
    assert table.iloc[1][list(expected)].tolist() == pytest.approx(list(expected.values()))


def test_a_teacher_is_hidden_in_the_middle_block_alone(models):
    table = measure.rank_table(models, [1, 2], count=3, steps=20)
    of_bent = [("bent", block, rank) for block in (0, 3, 7) for rank in (1, 2)]
    assert keys(recorded(table, "ranks"), "rank") == [*of_bent, ("straight", 0, 1), ("straight", 0, 2)]
    bent, straight = (table[table["model"] == model].set_index(["block", "rank"]) for model in models)
    assert bent["hidden"].dropna().to_dict() == pytest.approx(
        {(3, rank): hidden_teacher(models["bent"][3], rank, steps=20) for rank in (1, 2)}
    )
    assert straight["hidden"].notna().all()  # a single block is its own middle
    assert bent["recovered"][3, 2] == pytest.approx(probe(models["bent"][3], 2, seeds=1, steps=20).recovered)


def test_gates_are_trained_at_every_rate(models):
    table = measure.gate_table({"straight": models["straight"]}, [1e-3, 1e-2], RANK, steps=20)
    assert keys(recorded(table, "gates"), "rate") == [("straight", 0, 1e-3), ("straight", 0, 1e-2)]
    expected = end_to_end(models["straight"][0], RANK, 1e-2, 20)
    assert table.iloc[1][list(expected)].tolist() == pytest.approx(list(expected.values()))


def test_a_rate_has_the_median_gate_and_the_summed_gain_over_the_probes():
    """Of the same blocks: block 2, which has no gate, does not count."""
    gates = pd.DataFrame({"model": "a", "block": [0, 1] * 2, "rate": [0.001] * 2 + [0.01] * 2})
    gates = gates.assign(gain=[0.0, 0.0, 0.1, 0.2], gate=[1.0, 0.8, 0.4, 0.2], share=0.0)
    blocks = pd.DataFrame({"model": "a", "block": [0, 1, 2], "gain": [0.2, 0.4, 9.0]})
    table = recorded(measure.rate_table(gates, blocks), "rates")
    assert table.to_dict("list") == {"rate": [0.001, 0.01], "gate": [0.9, 0.3], "gain_over_probe": [0.0, 0.5]}


def over_blocks(left, gain, model="one"):
    return pd.DataFrame({"model": model, "r2": 1 - np.asarray(left), "gain": gain})


def correlated(table, seed=0):
    return recorded(measure.correlation_table({"gain": table}, seed), "correlations")


def test_a_correlation_is_pearsons_with_a_p_value_by_shuffles():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = x + rng.normal(size=60)  # r = √½
    (found,) = correlated(over_blocks(x, y)).itertuples()
    assert found.r == pytest.approx(pearsonr(x, y).statistic, abs=0.005)
    assert found.r_low < 0.5**0.5 < found.r_high
    assert found.lowest <= found.r <= found.highest
    assert found.p == pytest.approx(2e-4, abs=2e-4)  # none of 9999 shuffles is as strong
    (none,) = correlated(over_blocks(x, rng.normal(size=60))).itertuples()
    assert none.p > 0.05
    assert none.r_low < 0 < none.r_high


def test_a_correlation_repeats_itself():
    table = over_blocks(normal(12).numpy(), normal(12, seed=1).numpy())
    same, again, other = (correlated(table, seed) for seed in (3, 3, 4))
    assert same.equals(again)
    assert same["r"][0] == other["r"][0]


@pytest.mark.parametrize("table", [over_blocks(np.arange(9.0), np.ones(9)), over_blocks([0.1, 0.2], [0.3, 0.4])])
def test_what_has_no_correlation_says_nothing(table):
    found = correlated(table)
    assert found["of"].tolist() == ["gain"]
    assert found.drop(columns=["model", "of"]).isna().all(axis=None)


def test_every_model_and_every_view_is_correlated_by_itself():
    """Two models on two levels: together a line, each by itself a cloud."""
    cloud = over_blocks([0.1, 0.2, 0.3, 0.1, 0.2, 0.3], [0.1, 0.3, 0.1, 0.3, 0.1, 0.3])
    both = pd.concat([cloud, over_blocks(6 - cloud["r2"], cloud["gain"] + 5, "other")])
    views = {"gain": both, "recovered": both.assign(recovered=both["gain"]), "gain of ordinary rows": cloud}
    table = recorded(measure.correlation_table(views, 0), "correlations")
    assert table["model"].tolist() == ["one", "other", "one", "other", "one"]
    assert table["of"].unique().tolist() == list(views)
    assert table["r"].abs().max() < 0.5


def test_the_recipe_and_its_changes_add_up_to_our_probe(models, blocks):
    compared = measure.recipe_table(models, blocks, RANK, steps=200, seed=0)
    on_record = recorded(compared, "recipe")
    assert keys(on_record) == keys(blocks)
    summed = on_record[["gain", *measure.CHANGES]].sum(axis=1)
    np.testing.assert_allclose(summed, on_record["ours"], atol=1e-12)
    np.testing.assert_allclose(compared["ours"], blocks["gain"], atol=6e-4)
    found = recipe(models["straight"], RANK, steps=200).loc[0]
    row = compared[compared["model"] == "straight"].iloc[0]
    assert row["gain"] == pytest.approx(found["published"], abs=6e-4)
    assert row["gain_all"] == pytest.approx(found["scored_all"], abs=6e-4)
    assert row["optimiser"] == pytest.approx(blocks["gain"].iloc[-1] - found["apart_all"], abs=2e-3)
    assert (compared["selection"] <= 1e-3).all()
    assert row[["rows_few", "rows_all"]].tolist() == found[["rows_few", "rows_all"]].tolist()


def test_controls_are_of_spaced_blocks(models):
    table = measure.control_table(models, 2, RANK, steps=200)
    of_bent = [("bent", block, kind) for kind in ("dense2x", "poly2x") for block in (0, 7)]
    of_straight = [("straight", 0, kind) for kind in ("dense2x", "poly2x")]
    assert keys(recorded(table, "controls"), "control") == of_bent + of_straight
    found = control({block: models["bent"][block] for block in (0, 7)}, "dense2x", RANK, steps=200).loc[7]
    assert table.iloc[1][found.index].tolist() == pytest.approx(found.tolist(), abs=1e-4)


def test_measures_are_of_the_held_out_rows_and_conjunction_of_the_controls_blocks(models, probes):
    layers = measure.build_layers(models, probes)
    both = layers["bent"][3]
    assert both.branch is probes["bent"][3].branch
    table = recorded(measure.measure_table(models, layers, 2), "layers")
    assert table["conjunction_poly"].notna().tolist() == [True, False, True, True]
    sample = models["bent"][3].sample
    x, y = sample.x[sample.test].double(), sample.y[sample.test]
    row = table.iloc[1]
    for suffix, layer in (("", both.line), ("_poly", both)):
        expected = (cosine(y, layer(x)), rmse(y, layer(x)))
        assert row[[f"cosine{suffix}", f"rmse{suffix}"]].tolist() == pytest.approx(expected, rel=1e-3)
    last = layers["bent"][7]
    sample = models["bent"][7].sample
    x = sample.x[sample.test].double()
    assert table["conjunction"][2] == pytest.approx(0, abs=1e-6)
    assert table["conjunction_poly"][2] == pytest.approx(conjunction(last, x), abs=0.006)


def test_what_layers_cost_is_measured_block_by_block(gpt2, rows):
    kept = {"tiny": capture(gpt2, rows, [0, 2], sample=512)}
    layers = measure.build_layers(kept, measure.probe_blocks(kept, rank=1, seeds=1, steps=5))
    ids = rows.ids[rows.test]
    table = measure.swap_table({"tiny": gpt2}, layers, {"tiny": ids})
    assert keys(recorded(table, "layers")) == [("tiny", 0), ("tiny", 2)]
    by_line = swap_costs(gpt2, {block: both.line for block, both in layers["tiny"].items()}, ids)
    by_both = swap_costs(gpt2, layers["tiny"], ids)
    assert table["dppl"].tolist() == [by_line[0].delta, by_line[2].delta]
    assert table["dppl_poly_low"].tolist() == [by_both[0].low, by_both[2].low]


def constant_layer(d, by_line, by_products):
    """A line and products that are the same for every input; the products' share is added to the line's."""
    none = torch.zeros(d, 1)
    branch = Branch(none, none, none, torch.zeros(1), none.T, by_products)
    return LineAndProducts(
        AffineMap(torch.zeros(d, d), by_line), branch, torch.zeros(d).double(), torch.eye(d).double()
    )


def test_the_share_of_a_cost_that_products_save_is_paired_over_folds(gpt2):
    """Each sequence repeats a token, which tied embeddings predict; a shift in block 1 spoils that, block 2 is 0."""
    gpt2.transformer.wte.weight.data.mul_(4)
    gpt2.transformer.h[2].mlp.c_proj.weight.data.zero_()
    ids = torch.arange(24)[:, None].expand(24, 32)
    d = gpt2.config.n_embd
    shift = normal(d)
    shifted = constant_layer(d, 2 * shift, -shift)
    layers = {1: shifted, 2: constant_layer(d, 0 * shift, 0 * shift)}
    table = measure.swap_table({"tiny": gpt2}, {"tiny": layers}, {"tiny": ids})
    found, nothing = table[with_ends("saved")].to_numpy()

    means = [losses(gpt2, ids)]
    for replacement in (shifted.line, shifted):
        with swap(gpt2, {1: replacement}):
            means.append(losses(gpt2, ids))

    def share(used):
        before, line, both = (np.exp(of_all[used].numpy().mean()) for of_all in means)
        return 1 - (both - before) / (line - before)

    without = [share(np.arange(24) != place) for place in range(24)]
    half = 2.068657610 * np.sqrt(23 * np.var(without))  # Student's t, 23 degrees of freedom
    value = share(np.arange(24) >= 0)
    assert found == pytest.approx([value, value - half, value + half])
    assert 0.01 < half < value < 1
    assert np.isnan(nothing).all(), "no share of a cost that may be 0"


def test_an_encoder_has_no_swaps(models, probes):
    layers = measure.build_layers(models, probes)
    table = measure.swap_table({"bent": small("bert"), "straight": small("bert")}, layers, {})
    assert table.empty
    measured = measure.measure_table(models, layers, 2).merge(table, how="left", on=["model", "block"])
    assert recorded(measured, "layers")[[*with_ends("dppl_poly"), *with_ends("saved")]].isna().all(axis=None)


# --- massive rows


@pytest.fixture(scope="module")
def sinks():
    """A model of one block whose sinks decide, and one without any; every row is in the sample."""
    return {"sunk": {4: captured(*teacher())}, "clean": {4: captured(*teacher(sink=0.0))}}


def test_massive_rows_are_counted_in_the_sample_and_blocks_without_any_are_left_out(sinks):
    (row,) = measure.massive_table(sinks).itertuples()
    sample = sinks["sunk"][4].rows()
    assert (row.model, row.block) == ("sunk", 4)
    assert (row.massive_rows, row.sampled) == (256, 256)
    assert row.held_out == int(((sample.position == 0) & sample.test).sum())
    assert row.share > 0.9


def test_without_massive_rows_the_probe_sees_the_others_alone(sinks):
    massive = measure.massive_table(sinks)
    everything = measure.block_table(measure.probe_blocks(sinks, RANK, seeds=2, steps=5)).set_index("model")
    ordinary = measure.ordinary_table(sinks, massive, RANK, seeds=2, steps=5)
    assert keys(recorded(massive.merge(ordinary, on=["model", "block"]), "ordinary")) == [("sunk", 4)]
    assert everything["r2"]["sunk"] > 0.95
    assert ordinary["r2"][0] == pytest.approx(everything["r2"]["clean"], abs=0.02)  # as if no sink had ever come

    mixed = measure.replace_massive_blocks(everything.reset_index(), ordinary).set_index("model")
    assert mixed.index.tolist() == ["sunk", "clean"]
    assert mixed["r2"].tolist() == [ordinary["r2"][0], everything["r2"]["clean"]]


def test_where_no_row_is_massive_nothing_is_fitted_again(sinks):
    clean = {"clean": sinks["clean"]}
    massive = measure.massive_table(clean)
    ordinary = measure.ordinary_table(clean, massive, RANK, 1, 5)
    assert recorded(massive.merge(ordinary, on=["model", "block"]), "ordinary").empty


def test_the_papers_recipe_is_run_on_all_blocks_of_each_of_its_models(gpt2, ids):
    rows = PaperRows(ids, cut=613)
    table = measure.papers_recipe_table([("gpt2", gpt2, rows)], rank=RANK, steps=200, seed=0)
    x, y = rows_of_blocks(gpt2, TokenRows.from_ids(ids))[1]
    assert keys(table) == [("gpt2", block) for block in range(len(table))]
    assert table["gain"][1] == papers_gain(x, y, 613, rank=RANK, steps=200)
    assert list(measure.papers_recipe_table([], RANK, 200, 0).columns) == ["model", "block", "gain"]
