"""What README, the findings and the letter say in words is so; their numbers come from the tables, by templates."""

import re

import pytest

from howlinear.core.ceilings import r2_intervals
from howlinear.core.correlation import correlation
from howlinear.files import numbers, paths, tables
from howlinear.ideas.claims.claim import load_claims
from howlinear.ideas.corpora.agreement import Agreement
from howlinear.ideas.degrees.nested import Nested
from howlinear.ideas.degrees.products import Learned
from howlinear.ideas.dynamics.timing import Vote
from howlinear.ideas.optimisers.training import shortfall
from howlinear.ideas.rank.spread import rank_estimate
from howlinear.ideas.sinks import measure, predictions
from howlinear.instrument.perplexity import change


def public(stem):
    return tables.results("public", stem)


def test_blocks_of_a_public_model_differ_widely_and_a_few_rows_decide_some():
    ranges = public("02_ceilings")["blocks"].groupby("model").r2.agg(["min", "max"])
    assert (ranges["max"] - ranges["min"]).max() > 0.5
    massive = public("12_sinks")["blocks"].query("carried_by in ['tokens', 'both']")
    assert massive.fall.max() > 0.2
    assert (massive.massive_rows / massive["rows"])[massive.fall.idxmax()] < 0.05  # "a few"
    embedded = tables.results("minis", "12_sinks")["blocks"].query("massive_rows > 0")
    assert set(embedded.model) == {"mini-sink"}  # "where a sink was made to grow"


def test_products_of_inputs_add_little_to_the_lines_of_public_models():
    medians = public("03_bilinear")["recipe"].groupby("model").gain.median()
    assert medians.max() < next(claim.threshold for claim in load_claims() if claim.id == "products-small-recipe")


def test_r2_does_not_tell_what_a_swap_costs_and_other_signals_do():
    signals = public("06_compression")["agreements"].query("costs == 'one block'").set_index("signal")
    assert not signals.rho_low["1 − R²"] > 0
    assert signals.rho_low[["ablation", "price"]].min() > 0


def test_a_profile_is_the_models_and_a_line_the_texts():
    texts = public("05_corpora")
    assert texts["agreement"].r_low.min() > 0.9
    assert texts["transfer"].groupby("model")["drop"].mean().min() > 0.02


def test_the_embedded_gelu_models_start_straight_and_the_twins_are_twelve():
    blocks = tables.results("minis", "02_ceilings")["blocks"].groupby("model").r2_untrained.min()
    assert blocks.index[blocks > 0.9].tolist() == ["mini-gpt2", "mini-pythia"]  # all but mini-llama
    twins = tables.results("minis", "08_controls")["twins"]
    assert len(twins[["family", "text", "seed"]].drop_duplicates()) == 12


def test_in_every_training_blocks_get_straighter_first_and_when_they_settle_is_a_matter_of_counting():
    training = tables.results("minis", "09_dynamics")
    runs, votes = training["runs"], training["votes"].query("share == @training.settings['share']")
    assert (runs.peak > runs[["start", "end"]].max(axis=1) + 0.01).all()
    assert (votes.lag_low > 0).nunique() == 2


def test_the_letter_speaks_of_one_control_that_was_done_and_of_maps_that_fall_far_short():
    found = tables.results("minis", "03_bilinear")
    assert (found["controls"]["step"] < found.settings["control_steps"]).sum() == 1
    planted = tables.results("minis", "07_optimisers")["planted"]
    assert (planted.exact - planted.reached > 0.5).all()
    loudest = tables.results("minis", "11_protocol")["effects"].set_index("level").largest["rows out"]
    assert abs(loudest) < 0.06  # "moves no block by more"


def test_notebook_12_names_the_thresholds_that_it_judges_by():
    named = set(re.findall(r"[\d.]*\d", (paths.NOTEBOOKS / "12_sinks.py").read_text(encoding="utf-8")))
    thresholds = (predictions.HIGH, predictions.LOWER, predictions.FALL, measure.FEW_ROWS_DECIDE)
    assert {f"{value:g}" for value in (*thresholds, measure.RANK_ONE, measure.FAR_BELOW)} <= named
    assert predictions.FEW == 10  # "ten"


def coverage(interval, of="these rows", but=()):
    """Percent of simulated measurements in which an interval holds the truth, by case."""
    rows = numbers.load(paths.results("bench") / "coverage.json")["rows"]
    found = {row["case"]: 100 * row["coverage"] for row in rows if (row["interval"], row["of"]) == (interval, of)}
    return {case: f"{share:.0f}" for case, share in found.items() if case not in but}


def ends(*tables):
    low, *_, high = sorted(share for table in tables for share in table.values())
    return [low, high]


@pytest.mark.parametrize(
    ("documented", "shares"),
    [
        (Nested, lambda: ends(coverage("nested features: R²"))),
        (Agreement, lambda: ends(coverage("profiles of two texts: r"), coverage("profiles of two texts: difference"))),
        (Learned, lambda: [*ends(coverage("kernel: R²", but=["heavy"])), coverage("kernel: R²")["heavy"]]),
        (
            shortfall,
            lambda: [
                *ends(coverage("trained map: shortfall", but=["massive"])),
                coverage("trained map: shortfall")["massive"],
            ],
        ),
        (Vote, lambda: [coverage("vote of 15 runs: mean")[case] for case in ("iid", "correlated")]),
        (
            change,
            lambda: [
                coverage("ΔPPL")["correlated"],
                coverage("ΔPPL, leaving out single sequences")["correlated"],
                coverage("ΔPPL")["heavy"],
            ],
        ),
        (r2_intervals, lambda: ends(coverage("R²_lin"))),
        (rank_estimate, lambda: ends(coverage("effective rank"))),
        (correlation, lambda: [*coverage("r over 12 blocks", "limit").values()]),
        (correlation, lambda: [*coverage("ρ over 12 blocks", "limit").values()]),
    ],
)
def test_a_docstring_has_the_shares_that_were_simulated_in_their_order(documented, shares):
    in_order = ".{1,160}?".join(rf"\b{share}\b" for share in shares())
    assert re.search(in_order, documented.__doc__, re.DOTALL)
