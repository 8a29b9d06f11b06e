"""What the findings say in words is so; the numbers in them come from the tables, by templates (`tools.pages`)."""

import re

import pytest

from howlinear.core.ceilings import r2_intervals
from howlinear.core.correlation import correlation
from howlinear.files import numbers, paths, tables
from howlinear.ideas.corpora.agreement import Agreement
from howlinear.ideas.degrees.nested import Nested
from howlinear.ideas.degrees.products import Learned
from howlinear.ideas.dynamics.timing import Vote
from howlinear.ideas.optimisers.training import Shortfall
from howlinear.ideas.rank.spread import rank_estimate
from howlinear.ideas.sinks import measure, predictions
from howlinear.instrument.perplexity import change

SMOL = "smollm2-135m"


def of_smol(stem, table, *index):
    found = tables.results("public", stem)[table].query("model == @SMOL")
    return found.set_index([*index]) if index else found


def test_only_a_few_rows_decide_and_what_is_taken_away_was_written_before():
    costs = of_smol("12_sinks", "costs").pivot(index="block", columns="kind", values="nats")
    kept_apart = costs.d.fillna(costs.a)  # where no row is massive, (a)
    assert len(costs) == 9
    assert (kept_apart <= costs.a).all()
    assert (kept_apart < costs.a / 10)[[11, 28]].all()
    flow = of_smol("12_sinks", "flow", "block")
    roles = {2: (1, "adds"), 9: (2, "takes away"), 10: (2, "takes away"), 11: (2, "writes most")}
    roles |= {28: (11, "takes away"), 29: (11, "takes away")}
    assert {block: (flow.writer[block], flow.role[block]) for block in roles} == roles
    assert of_smol("12_sinks", "massive", "block").at_first[[11, 28]].min() > 0.9
    assert (tables.results("minis", "12_sinks")["blocks"]["massive_rows"] == 0).all()


def test_products_were_tried_in_so_many_blocks_and_their_search_is_blind_at_the_ends():
    found = tables.results("public", "03_bilinear")
    assert found["recipe"]["model"].value_counts().to_dict() == {SMOL: 9, "minilm-l6": 6}
    assert len(of_smol("03_bilinear", "blocks")) == 30
    assert of_smol("03_bilinear", "power").planted.gt(0).tolist() == [False, True, False]
    parts = tables.results("minis", "03_bilinear")["recipe"].groupby("model")[["optimiser", "rows"]].mean()
    assert parts.optimiser.min() > parts.rows.max()  # "mostly the optimiser, then the number of rows"


def test_the_cost_of_switching_off_ranks_best_in_smollm2_and_like_the_cosine_in_the_minis():
    public, minis = (
        tables.results(profile, "06_compression")["agreements"].query("costs == 'one block'").set_index("signal")
        for profile in ("public", "minis")
    )
    assert public.rho.idxmax() == (public.rho_high - public.rho_low).idxmin() == "ablation"
    assert round(minis.rho["ablation"], 2) == round(minis.rho["sub-layer cosine"], 2)
    assert of_smol("06_compression", "healing", "layer").delta_high["original, healed"] < 0
    first = of_smol("06_compression", "frontier").query("count == 1").set_index("way")
    assert first.block["order of R²"] == 11


def test_seven_blocks_of_smollm2_are_straighter_than_shuffled_ones():
    controls = of_smol("08_controls", "controls").pivot(index="block", columns="control", values="r2")
    fall = controls["own"] - controls["permuted"]
    assert fall.index[fall > 0.25].tolist() == [0, 1, 2, 9, 10, 11, 28]
    assert of_smol("10_degrees", "spectra").block.nunique() == 13


def test_the_protocol_turns_no_statement_of_smollm2_and_the_spread_of_minilm():
    found = tables.results("public", "11_protocol")
    flips = found["flips"].set_index(["model", "statement"])
    assert len(found["statements"]) == 4
    assert not flips.loc[SMOL].flips.any()
    assert flips.alone["minilm-l6", "spread"] == "position_0, loud"
    assert found.settings["factors"] == [16, 32]
    minis = tables.results("minis", "11_protocol")
    assert minis["orders"].share.tolist() == [1.0]
    assert set(minis["flips"].query("flips").statement) == {"neighbours"}
    assert abs(minis["effects"].set_index("level").largest["rows out"]) < 0.06


def test_the_race_has_the_rivals_that_are_named():
    found = tables.results("public", "14_compress")
    race = found["race"].query("corpus == 'wikitext'").pivot(index="method", columns="share", values="ratio")
    rivals = race[~race.index.str.startswith("own units")]
    assert rivals[0.9].idxmin() == "GRAIL on FLAP"
    assert race.loc["lines, mended"].tolist() == race.loc["lines by price"].tolist()
    assert found["limit"]["what"].tolist()[1:] == [
        "on the text fitted on",
        "held out",
        "held out, fitted on 15,360 rows",
    ]
    exchanges = found["exchanges"].set_index("method").over_first
    assert exchanges.idxmax() == "by plain squares"
    assert (
        min(exchanges["with lines, anchored on the stream"], exchanges["with lines beside units"])
        >= (exchanges["anchored on the stream"])
    )


def test_the_first_block_of_each_embedded_model_is_the_most_linear_the_dearest_and_worth_most():
    assert (tables.results("minis", "02_ceilings")["models"].spearman > 0).all()
    margins = {}
    for name, blocks in tables.results("minis", "02_ceilings")["blocks"].set_index("block").groupby("model"):
        assert blocks.r2.idxmax() == blocks.dppl.idxmax() == 0
        margins[name] = blocks.dppl_low[0] - blocks.dppl_high.drop(0).max()
    assert min(margins.values()) > 0  # "surely", though
    assert margins["mini-gpt2"] == min(margins.values()) < 0.1  # "only just in mini-gpt2"
    worth = tables.results("minis", "06_compression")["blocks"].pivot(index="model", columns="block", values="ablation")
    assert (worth.idxmax(axis=1) == 0).all()


def test_on_prose_every_block_is_straighter_and_moby_dick_is_furthest():
    corpora = tables.results("prose", "05_corpora")
    profiles = corpora["profiles"].pivot(index=["model", "block"], columns="corpus", values="r2")
    rise = profiles.drop(columns="docs").sub(profiles.docs, axis=0)
    assert (rise > 0).all(axis=None)
    assert (rise.groupby("model").mean().idxmax(axis=1) == "moby_dick").all()
    beside_docs = corpora["agreement"].query("corpus == 'docs'")
    assert beside_docs.model[beside_docs.inner.idxmin()] == "mini-llama"


def test_the_letter_speaks_of_one_control_that_was_done_and_of_maps_that_fall_far_short():
    found = tables.results("minis", "03_bilinear")
    assert (found["controls"]["step"] < found.settings["control_steps"]).sum() == 1
    planted = tables.results("minis", "07_optimisers")["planted"]
    assert (planted.exact - planted.reached > 0.5).all()


def test_a_notebook_of_the_public_models_takes_twenty_minutes_and_14_an_hour():
    """As notebook 01 and README say."""
    runs = {
        path.parent.name: tables.read_run(path.parent)["seconds"]
        for path in paths.results("public").glob(f"*/{tables.RUN}")
    }
    assert 50 * 60 < runs.pop("14_compress") < 70 * 60
    assert 15 * 60 < max(runs.values()) < 22 * 60


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
            Shortfall,
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
