"""What README, the findings, the letter, the slides and the course say without a number is so, notebook by notebook."""

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.ideas.claims.claim import Verdict, load_claims


def public(stem):
    return tables.results("public", stem)


def embedded(stem):
    return tables.results("minis", stem)


def of_both(stem, table):
    return pd.concat([embedded(stem)[table], public(stem)[table]])


def test_02_profiles_rise_and_fall_and_the_most_linear_block_is_the_dearest():
    models = of_both("02_ceilings", "models")
    assert models[models.perplexity.notna()].rises_and_falls.tolist() == [True] * 4
    assert len(embedded("02_ceilings")["models"]) == 3  # "each of the three small models"
    for _, blocks in of_both("02_ceilings", "blocks").dropna(subset="dppl").groupby("model"):
        assert blocks.r2.idxmax() == blocks.dppl.idxmax()


def test_02_gelu_models_start_straight_and_training_bends_them():
    for name, blocks in embedded("02_ceilings")["blocks"].groupby("model"):
        if name == "mini-llama":
            assert blocks.r2_untrained.min() < 0.9
            assert blocks.r2.sum() > blocks.r2_untrained_in_sample.sum()
        else:
            assert blocks.r2_untrained.min() > 0.9
            assert blocks.r2.sum() < blocks.r2_untrained.sum()


def test_02_and_12_blocks_of_a_public_model_differ_widely_and_a_few_rows_decide_some():
    assert not embedded("02_ceilings")["blocks"].massive_rows.any()  # "there are none"
    blocks = public("02_ceilings")["blocks"]
    assert blocks.massive_rows.any()
    ranges = blocks.groupby("model").r2.agg(["min", "max"])
    assert (ranges["max"] - ranges["min"]).max() > 0.5
    massive = public("12_sinks")["blocks"].query("carried_by in ['tokens', 'both']")
    assert massive.fall.max() > 0.2
    assert (massive.massive_rows / massive["rows"])[massive.fall.idxmax()] < 0.05  # "a few"
    assert set(embedded("12_sinks")["blocks"].query("massive_rows > 0").model) == {"mini-sink"}  # "made to grow"


def test_03_products_of_inputs_add_little():
    medians = public("03_bilinear")["recipe"].groupby("model").gain.median()
    assert medians.max() < next(claim.threshold for claim in load_claims() if claim.id == "products-small-recipe")
    found = embedded("03_bilinear")
    assert (found["controls"]["step"] < found.settings["control_steps"]).sum() == 1  # "one control was done"


def test_05_a_profile_is_the_models_and_a_line_the_texts():
    for results, drop in ((public("05_corpora"), 0.02), (embedded("05_corpora"), 0.1)):
        assert results["agreement"].r.min() > 0.9
        assert results["transfer"].groupby("model")["drop"].mean().min() > drop
    assert public("05_corpora")["agreement"].r_low.min() > 0.9


def test_06_r2_does_not_tell_what_a_swap_costs_and_other_signals_do():
    signals, own = (
        results("06_compression")["agreements"].query("costs == 'one block'").set_index("signal")
        for results in (public, embedded)
    )
    assert not signals.rho_low["1 − R²"] > 0
    assert signals.rho_low[["ablation", "price"]].min() > 0
    assert own.rho_high["1 − R²"] < 0 < 0.5 < own.rho_low["price"]


def test_07_and_11_maps_fall_far_short_and_no_choice_moves_a_block_far():
    planted = embedded("07_optimisers")["planted"]
    assert (planted.exact - planted.reached > 0.5).all()
    loudest = embedded("11_protocol")["effects"].set_index("level").largest["rows out"]
    assert abs(loudest) < 0.06  # "moves no block by more"


def test_08_twelve_twins_differ_by_more_than_seeds():
    results = embedded("08_controls")
    assert len(results["twins"][["family", "text", "seed"]].drop_duplicates()) == 12
    assert results["beside_seeds"].query("measured_on == 'all'").ratio_low.min() > 1


def test_09_in_every_training_blocks_get_straighter_first_and_when_they_settle_is_a_matter_of_counting():
    training = embedded("09_dynamics")
    runs, votes = training["runs"], training["votes"].query("share == @training.settings['share']")
    assert (runs.peak > runs[["start", "end"]].max(axis=1) + 0.01).all()
    assert (votes.lag_low > 0).nunique() == 2


def test_08_where_random_bands_are_narrow_most_blocks_of_public_models_lie_outside():
    controls = public("08_controls")
    widest = controls["random"].assign(width=lambda table: table.r2_in_sample - table.r2).groupby("model").width.max()
    blocks = public("02_ceilings")["blocks"].groupby("model").size()
    outside = controls["by_model"].set_index("model").outside / blocks
    assert (outside[widest.index[widest < 0.1]] > 0.5).all()
    assert (outside[widest.index[widest > 0.5]] < 0.5).all()


@pytest.mark.parametrize("of", ["public", "minis"])
def test_10_what_is_left_is_quadratic_and_of_many_products(of):
    degrees = tables.results(of, "10_degrees")
    r2 = degrees["spectra"].pivot_table(index=["model", "block"], columns="degree", values="r2")
    assert ((r2[2] - r2[1]) / (1 - r2[1])).min() > 0.5
    assert (degrees["probes"].query("rank == 16").share < 0.6).all()


def test_07_a_shortfall_in_a_public_model_is_not_largest_at_the_largest_condition_number():
    found = public("07_optimisers")
    beside = found["ways"].merge(found["blocks"], on=["model", "block"])
    worst = beside.loc[(beside.r2 - beside.reached).idxmax()]
    assert worst.condition < beside.condition.max()


def test_13_of_the_papers_texts_the_ledger_has_no_tick_and_between_the_end_blocks_r_falls():
    on_prose = embedded("13_claims")["other_texts"]
    assert set(on_prose.claim) == {"text-same-shape", "text-small-shift"}
    assert not (on_prose.verdict == Verdict.HOLDS).any()
    agreement = tables.results("prose", "05_corpora")["agreement"]
    beside_docs = agreement[(agreement.corpus == "docs") | (agreement.other == "docs")]
    assert beside_docs.groupby("model").inner.min().max() < 0.9


def test_14_own_units_cost_less_than_lines_in_every_model():
    races = [race for results in (public, embedded) for _, race in results("14_compress")["race"].groupby("model")]
    assert len(races) == 5  # of mini-sink too
    for race in races:
        on_main_text = race[race["corpus"] == race["corpus"].iloc[0]]
        ratio = on_main_text.pivot_table(index="share", columns="method", values="ratio")
        assert (ratio["own units"] < ratio["lines by price"]).all()
