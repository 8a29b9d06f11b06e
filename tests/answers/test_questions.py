"""The questions at the end of every notebook: five each, with answers that rest on the results and move with them."""

import math
import re
from copy import deepcopy

import numpy as np
import pytest
from test_recorded import RECORDED, STEMS, computed, leaves, load, minis, module, named, numbers, only, profile

from howlinear.files import paths

TEXTS = "05_corpora"
SINGLE = "This run profile has a single text, so it cannot tell."
PROSE = [paths.ROOT / "results" / "prose" / f"{TEXTS}.json"]


def asked(stem, results):
    return module(stem).questions(results)


def answers(stem, results):
    return [answer for _, answer in asked(stem, results)]


# --- what holds of all of them


@pytest.mark.parametrize("path", [*RECORDED, *PROSE], ids=named)
def test_five_questions_have_whole_sentences_for_answers(path):
    results = load(path)
    pairs = asked(path.stem, results)
    assert len({question for question, _ in pairs}) == len(pairs) == 5
    for question, answer in pairs:
        assert question.endswith("?"), question
        assert not re.search(r"[<>&*`$]", question), question  # plain text: it stands in HTML
        assert answer.endswith("."), answer
        assert 1 <= len(re.findall(r"[.?](?: |$)", answer)) <= 3, answer
        assert re.search(r"\d", answer), answer
        assert not re.search(r"\b(nan|inf|None)\b|  |\.\.|\[\]|\(\)| ,| -\d", answer), answer


def follows(stem, results):
    """What follows from the results beyond what sentences say, computed here in another way."""
    models = results.get("models", {})
    if stem == "01_capture":
        yield max(row["first_position_out"] for row in results["inputs"]) ** 2
    if stem == "02_ceilings":
        for model in models.values():
            yield np.max(profile(model, "r2_train") - profile(model))
            yield np.mean(profile(model))
            yield np.add(model["untrained"], model["untrained_in_sample"]).mean() / 2
    if stem == "03_bilinear":
        for model in models.values():
            yield np.subtract(model["recipe"]["ours"], model["recipe"]["gain"]).mean()
            yield from (np.mean(model["recipe"][part]) for part in ("selection", "rows", "optimiser"))
            yield from np.subtract(model["dppl"]["linear"], model["dppl"]["poly"])
            at = np.isin(profile(model, "block"), model["dense2x"]["blocks"])
            yield from model["dense2x"]["r2"] - profile(model, "r2_lin")[at]
            yield from np.subtract(model["poly2x"]["r2"], model["dense2x"]["r2"])
    if stem == TEXTS:
        for model in models.values():
            yield len(model["blocks"]) * len(model["agreement"])
    if stem == "07_optimisers":
        for model in models.values():
            yield from np.subtract(model["exact"], model["GD"])
    if stem == "08_controls":
        yield from (np.mean(values) for values in results["redrawn"].values())
        for seeds in results["fresh"].values():
            yield from np.mean(seeds, axis=1)
    if stem == "09_dynamics":
        steps = [np.median(np.concatenate(list(results[key].values()))) for key in ("leaves", "settles")]
        yield from steps
        yield math.log(steps[1]) / math.log(2) - math.log(steps[0]) / math.log(2)
    if stem == "12_sinks":
        yield max(row["heaviest"] for row in results["planted"]) ** 2
    if stem == "13_claims":
        yield sum(len(claim["cells"]) for claim in results["claims"].values())


@pytest.mark.parametrize("path", [*RECORDED, *PROSE], ids=named)
def test_every_number_of_an_answer_is_in_the_results_or_follows_from_them(path):
    results = load(path)
    there = np.array([*leaves(results), *computed(path.stem, results), *follows(path.stem, results)], dtype=float)
    there = np.abs(there)
    for answer in answers(path.stem, results):
        for value, places in numbers(answer, results):
            nearest = there[np.abs(there - abs(value)).argmin()]
            zeros = 0 if places else len(re.search("0*$", f"{abs(value):.0f}")[0])
            step = 10.0 ** (zeros - places)
            assert abs(nearest - abs(value)) <= 0.5 * step * (1 + 1e-6) + 1e-9, (value, nearest, answer)


@pytest.mark.parametrize("stem", [stem for stem in STEMS if "models" in minis(stem)])
def test_one_model_alone_is_asked_about_as_well(stem):
    results = minis(stem)
    one, *others = results["models"]
    text = "\n".join(answers(stem, only(results, set(others))))
    assert one in text
    assert not any(other in text for other in others)


def test_one_text_alone_cannot_tell():
    results = minis(TEXTS) | {"corpora": ["docs"]}
    assert [question for question, _ in asked(TEXTS, results)] == [
        question for question, _ in asked(TEXTS, minis(TEXTS))
    ]
    assert answers(TEXTS, results) == [SINGLE] * 5


@pytest.mark.parametrize("stem", ["15_gate"])
def test_encoders_alone_have_been_gated_by_nobody(stem):
    results = minis(stem) | {"models": {"a": {"without": "a loss"}}}
    nothing = "a predicts no next token, so no swap of a block has a cost in perplexity."
    assert answers(stem, results) == [nothing] * 5
    assert module(stem).sentences(results) == [nothing]


# --- against the results by another way


def test_the_longest_row_counts_for_its_square():
    results = load(paths.ROOT / "results" / "public" / "01_capture.json")
    assert "so that one such row counts as about 300,000 others" in answers("01_capture", results)[4]
    assert max(row["first_position_out"] for row in results["inputs"]) ** 2 == pytest.approx(303_601)


def test_the_line_of_another_text_falls_behind_by_the_mean_drop():
    """The drop says which way the matrix of means is read."""
    results = minis(TEXTS)
    means = {}
    for name, model in results["models"].items():
        for pair, drop in model["drop"].items():
            means[name, pair] = np.mean(drop["value"])
    (name, pair), most = max(means.items(), key=lambda item: item[1])
    fitted, scored = pair.split(" → ")
    own = np.mean(results["models"][name]["profile"][scored]["value"])
    answer = answers(TEXTS, results)[3]
    assert f"In {name} the lines of {fitted} have a mean R² of {own - most:.2f} on {scored}" in answer
    assert f"and the lines of {scored} one of {own:.2f}." in answer


def test_steps_are_sure_where_neither_block_lies_in_the_others_interval():
    results = minis("02_ceilings")
    low, high = (profile(results["models"]["mini-gpt2"], key) for key in ("r2_low", "r2_high"))
    apart = np.maximum(low[1:], low[:-1]) > np.minimum(high[1:], high[:-1])
    assert f"do not touch at {apart.sum()} of 11 steps in mini-gpt2" in answers("02_ceilings", results)[1]


def test_the_way_of_counting_is_counted_over_cuts_and_shares():
    results = minis("09_dynamics")
    signs = [
        np.sign(found["low"]) + np.sign(found["high"]) for by in results["votes"].values() for found in by.values()
    ]
    answer = answers("09_dynamics", results)[4]
    assert f"by {signs.count(2)} of {len(signs)} ways" in answer
    assert f"by {signs.count(0)} it cannot tell" in answer
    found = [each for by in results["votes"].values() for each in by.values()]
    agree = sum(each["p"] < 0.05 for each, sign in zip(found, signs, strict=True) if sign != 0)
    assert 0 < agree < len(signs) - signs.count(0)  # else this test would not tell them apart
    assert f"in {agree} of those that the interval decides" in answer


def test_verdicts_are_steady_that_no_factor_moves():
    results = minis("13_claims")
    steady = 0
    for by_factor in results["thresholds_moved"].values():
        steady += len({tuple(sorted(verdicts.items())) for verdicts in by_factor.values()}) == 1
    assert f"{steady} of {len(results['thresholds_moved'])} claims" in answers("13_claims", results)[3]


# --- and they move with them

IN_CURVES = ("mini-pythia", 1, 16, "documents")
BREAKS = {  # for each question a number, or a word, that it rests on
    "00_by_hand": [
        ("hasty", "r2"),
        ("nonsense",),
        ("parabola", "away", "left"),
        ("toys", -1, "r2"),
        ("drawn", "block 7"),
    ],
    "01_capture": [
        ("inputs", 2, "condition"),
        ("inputs", 0, "dynamic_range"),
        ("inputs", 3, "effective_rank"),
        ("inputs", 1, "second"),
        ("inputs", 2, "first_position_out"),
    ],
    "02_ceilings": [
        ("models", "mini-llama", "blocks", 4, "r2_train"),
        ("models", "mini-gpt2", "blocks", 6, "r2_low"),
        ("models", "mini-gpt2", "swap", 11, "delta"),
        ("models", "mini-llama", "untrained", 3),
        ("solver", "reference"),
    ],
    "03_bilinear": [
        ("power", "mini-gpt2", 0, "shuffled"),
        ("correlation", "recovered", "mini-llama", "low"),
        ("models", "mini-gpt2", "recipe", "ours", 3),
        ("models", "mini-gpt2", "dppl", "linear", 0),
        ("models", "mini-gpt2", "dense2x", "r2", 1),
    ],
    "04_rank": [
        ("models", "mini-llama", "blocks", 11, "median", "value"),
        ("models", "mini-pythia", "rank_90", 11),
        ("models", "mini-gpt2", "blocks", 4, "directions", 1),
        ("models", "mini-gpt2", "blocks", 4, "predictions", "effective_rank"),
        ("models", "mini-gpt2", "blocks", 4, "heavy_error", "value"),
    ],
    "05_corpora": [
        ("models", "mini-gpt2", "carried", "likeness"),
        ("models", "mini-pythia", "agreement", "code ~ cpp", "inner"),
        ("models", "mini-llama", "carried", "with bend"),
        ("models", "mini-llama", "mean_r2", 1, 2),
        ("models", "mini-gpt2", "agreement", "code ~ cpp", "differ"),
    ],
    "06_compression": [
        ("models", "mini-gpt2", "blocks", 6, "nats"),
        ("agreements", "one block", "price", "rho"),
        ("models", "mini-gpt2", "frontier", 4, "delta"),
        ("models", "mini-gpt2", "healing", "line", "value"),
        ("agreements", "several", "price", "rho"),
    ],
    "07_optimisers": [
        ("models", "mini-gpt2", "asleep", 2),
        ("race", "SGD, raw"),
        ("verdicts", "mini-gpt2", "GD", "flipped"),
        ("models", "mini-gpt2", "GD", 2),
        ("planted", "AdamW", "r2"),
    ],
    "08_controls": [
        ("floors", 0, "shuffled_in_sample"),
        ("normal", "mini-gpt2", 3),
        ("closed", 0),
        ("redrawn", "mini-gpt2", 3),
        ("fresh", "mini-gpt2", 2, 4),
    ],
    "09_dynamics": [
        ("live", "loss", 0),
        ("settings", "patience"),
        ("leaves", "mini-gpt2"),
        ("alike", "leaves, twins", 0),
        ("votes", "from the peak", "0.9", "low"),
    ],
    "10_degrees": [
        ("planted", 3, 2),
        ("models", "mini-gpt2", "checks", "0", "degree 2", -1, "r2"),
        ("models", "mini-gpt2", "checks", "6", "probe", "64"),
        ("models", "mini-gpt2", "fresh", 0),
        ("models", "mini-gpt2", "blocks", 3, "spread"),
    ],
    "11_protocol": [
        ("effects", 2, "largest"),
        ("curves", IN_CURVES, "limit"),
        ("side_by_side", 5, "verdict"),
        ("lowest_blocks", 0, "share"),
        ("agreement", 1, "limit_error"),
    ],
    "12_sinks": [
        ("planted", 1, "heaviest"),
        ("planted", 1, "effective_rank_ordinary"),
        ("models", "mini-gpt2", "blocks", 2, "heaviest"),
        ("planted_costs", 4, "nats"),
        ("predictions", 0, "falls"),
    ],
    "13_claims": [
        ("claims", "adjacent", "cells", "mini-gpt2", "verdict"),
        ("claims", "ill-conditioned", "verdict"),
        ("claims", "not-activation", "paper", "together"),
        ("thresholds_moved", "dissociation", "0.5", "mini-gpt2"),
        ("claims", "gain-not-residual", "cells", "mini-llama", "high"),
    ],
    "15_gate": [  # the first row of costs is that of block 0's gate, the second of curves that of half of the tokens
        ("models", "mini-gpt2", "costs", 0, "rise"),
        ("models", "mini-gpt2", "curves", 1, "rise"),
        ("models", "mini-gpt2", "together", "rise"),
        ("models", "mini-gpt2", "dear", "oracle", "share"),
        ("planted", 0, "right"),
    ],
}


def put(results, keys, change):
    """Replace what stands at a path by what `change` makes of it."""
    *way, last = keys
    for key in way:
        if isinstance(key, tuple):  # a row of the curves, by what it is of
            (results,) = [row for row in results if (row["model"], row["block"], row["factor"], row["split"]) == key]
        else:
            results = results[key]
    results[last] = change(results[last])


def other(value):
    if isinstance(value, str):
        return "holds here" if value == "mixed" else "mixed"
    if isinstance(value, list):
        return [other(item) for item in value]
    return type(value)(value * 3 + 1)


@pytest.mark.parametrize(
    ("stem", "number", "keys"),
    [(stem, number, keys) for stem, places in BREAKS.items() for number, keys in enumerate(places)],
)
def test_a_broken_number_changes_the_answer(stem, number, keys):
    results = minis(stem)
    broken = deepcopy(results)
    put(broken, keys, other)
    assert answers(stem, broken)[number] != answers(stem, results)[number]


def test_every_question_rests_on_something():
    assert BREAKS.keys() == set(STEMS)
    assert {len(places) for places in BREAKS.values()} == {5}


# --- and turn round where the results do


def setting(*keys, to):
    """An edit of results: one value."""
    return lambda results: put(results, keys, lambda _: to)


def in_each_model(*keys, to):
    """An edit: one value, or what a function makes of it, in every model."""

    def edit(results):
        for name in results["models"]:
            put(results, ("models", name, *keys), to if callable(to) else lambda _: to)

    return edit


def in_each_block(key, to):
    """An edit: what a function makes of a block, under a key of it."""

    def edit(results):
        for model in results["models"].values():
            for block in model["blocks"]:
                block[key] = to(block)

    return edit


def without_missing_directions(results):
    for row in results["inputs"]:
        row["rank"] = row["width"]


def lasting(results):
    for by_share in results["votes"].values():
        for found in by_share.values():
            found["low"] = 0.1


def none_lacking(results):
    for claim in results["claims"].values():
        claim["verdict"] = "holds here"


def of_its_own(results):
    claims = results["claims"]
    claims["products-small"]["cells"]["gpt2"] = claims["products-small"]["cells"].pop("mini-gpt2")
    results["claims"] = {name: claims[name] for name in ("products-small", "gain-not-residual")}


def every_cost(**values):
    """An edit: the same numbers for every block and kind of notebook 15."""

    def edit(results):
        for model in results["models"].values():
            for row in model["costs"]:
                row |= values

    return edit


def every_curve(kind, rise):
    """An edit: what every share of tokens costs by one kind."""

    def edit(results):
        for model in results["models"].values():
            for row in model["curves"]:
                if row["kind"] == kind:
                    row["rise"] = rise

    return edit


def no_probes(results):
    for model in results["models"].values():
        for check in model["checks"].values():
            check["probe"] = {}


def one_product_does(results):
    for model in results["models"].values():
        for check in model["checks"].values():
            check["probe"]["1"] = 0.9


def no_costs(results):
    for model in results["models"].values():
        model["dppl"] = {key: [] for key in model["dppl"]}


def products_harm(results):
    for model in results["models"].values():
        model["dppl"]["poly"] = [cost + 1 for cost in model["dppl"]["linear"]]


def two_layers(dense, poly):
    """An edit: by how much two layers exceed the line, without products and with them."""

    def edit(results):
        for model in results["models"].values():
            lines = {block["block"]: block["r2_lin"] for block in model["blocks"]}
            for control, more in (("dense2x", dense), ("poly2x", poly)):
                model[control]["r2"] = [lines[block] + more for block in model[control]["blocks"]]

    return edit


def flipped(count):
    def edit(results):
        for of_model in results["verdicts"].values():
            for verdict in of_model.values():
                verdict["flipped"] = count

    return edit


def far_apart(results):
    results["redrawn"] = {name: [0.0 for _ in values] for name, values in results["redrawn"].items()}


def every_share(to):
    def edit(results):
        for row in results["lowest_blocks"]:
            row["share"] = to

    return edit


def by_r2_cheapest(results):
    for model in results["models"].values():
        for row in model["frontier"]:
            row["delta"] = {"order of R²": 0.5}.get(row["way"], 2.0)


def no_ranks_alike(results):
    for place, row in enumerate(results["inputs"]):
        row["effective_rank"] = 1.1**place


TURNED = [
    ("00_by_hand", 0, setting("hasty", "r2", to=0.95), "Because it might learn some"),
    ("00_by_hand", 1, setting("nonsense", to=0.4), "It has 0.40, so something is wrong"),
    ("00_by_hand", 3, setting("toys", -1, "r2", to=0.5), "It goes from 0.734 to 0.500"),
    ("01_capture", 0, no_ranks_alike, "No two inputs of this run have the same effective rank for their width."),
    ("01_capture", 0, setting("inputs", 2, "condition", to=500.0), "500 and 18 of 128 in block 2 of mini-gpt2"),
    ("01_capture", 3, without_missing_directions, "no direction is missing in this run."),
    (
        "01_capture",
        4,
        lambda results: [row.update(first_position_out=1.1) for row in results["inputs"]],
        "at most 1.10",
    ),
    ("02_ceilings", 0, in_each_block("r2_train", lambda block: block["r2"] - 0.01), "a line might look better"),
    ("02_ceilings", 2, setting("models", "mini-gpt2", "swap", 7, "delta", to=99.0), "block 7 (which is the dearest)"),
    ("02_ceilings", 3, setting("models", "mini-llama", "untrained", to=[2.0] * 12), "It did in every model"),
    ("02_ceilings", 3, in_each_model("untrained", to=[-2.0] * 12), "It did not here"),
    ("02_ceilings", 4, setting("solver", "ours_within_1e-9", to=False), "It was here"),
    (
        "03_bilinear",
        0,
        setting("power", "mini-gpt2", 0, "shuffled", to=0.3),
        "it finds too much to be trusted, at most 0.30",
    ),
    ("03_bilinear", 3, no_costs, "mini-gpt2, mini-llama and mini-pythia predict no next token"),
    ("03_bilinear", 3, products_harm, "0 of 12 blocks of mini-gpt2 (nothing is saved)"),
    ("03_bilinear", 4, two_layers(0.02, 0.2), "Yes, as far as these controls tell"),
    ("03_bilinear", 4, two_layers(0.005, 0.012), "These controls cannot tell"),
    ("03_bilinear", 4, two_layers(0.2, 0.35), "These controls cannot tell"),
    ("04_rank", 1, in_each_model("rank_90", to=[None] * 12), "no map has a held-out R² above 0."),
    (
        "04_rank",
        1,
        setting("models", "mini-pythia", "rank_90", 11, to=None),
        "Their ratio is furthest from 1 in block 11 of mini-gpt2",
    ),
    ("04_rank", 3, in_each_block("predictions", lambda _: {"effective_rank": 99.0}), "Mostly they do:"),
    ("04_rank", 4, in_each_block("heavy_error", lambda _: {"value": 0.001}), "Mostly they do not:"),
    ("05_corpora", 0, in_each_model("carried", "likeness", to=0.999), "It may be"),
    ("05_corpora", 0, setting("models", "mini-gpt2", "carried", "likeness", to=0.999), "Not everywhere"),
    ("05_corpora", 2, in_each_model("carried", "with bend", to=-0.9), "No model shows it"),
    ("05_corpora", 2, setting("models", "mini-llama", "carried", "with bend", to=0.1), "Not all models show it"),
    (
        "06_compression",
        1,
        setting("agreements", "one block", "price", "rho", to=-0.9),
        "in this run that does not help",
    ),
    ("06_compression", 2, by_r2_cheapest, "It was in this run: with five blocks"),
    ("06_compression", 3, in_each_model("healing", "behind", "low", to=-1.0), "stays behind in no model."),
    (
        "07_optimisers",
        1,
        setting("race", "SGD, whitened", to=0.1),
        "in this run that does not help: R² goes from 0.561",
    ),
    ("07_optimisers", 2, flipped(0.0), "No: of 33 steps"),
    ("07_optimisers", 2, flipped(5.0), "Yes: of 33 steps"),
    ("07_optimisers", 3, setting("models", "mini-gpt2", "GD", 1, to=0.1), "Here it is: block 1 of mini-gpt2"),
    (
        "07_optimisers",
        4,
        lambda results: [found.update(r2=0.94) for found in results["planted"].values()],
        "It may well be",
    ),
    ("08_controls", 3, far_apart, "It does: "),
    ("09_dynamics", 0, setting("unigram", to=9.0), "More than how often"),
    ("09_dynamics", 3, setting("alike", "settles, twins", 0, to=0.82), "About as much in the one as in the other"),
    ("09_dynamics", 4, lasting, "No: by 9 of 9 ways"),
    ("10_degrees", 0, setting("planted", 3, 2, to=0.01), "so these inputs are nearly Gaussian"),
    ("10_degrees", 2, one_product_does, "So it is here"),
    (
        "10_degrees",
        2,
        setting("models", "mini-gpt2", "checks", "0", "probe", to={"4": 0.2}),
        "20 % to 24 % with four products and 20 % to 24 % with 4 in mini-gpt2",
    ),
    ("10_degrees", 2, no_probes, "this run has no probe to tell"),
    ("10_degrees", 3, in_each_model("fresh", to=[0.5, 0.6, 1.0, 1.0]), "Not all of them of 1 or 2"),
    (
        "10_degrees",
        4,
        in_each_block("r2", lambda block: [1 - block["spread"], *block["r2"][1:]]),
        "Lower than where it is narrowest",
    ),
    ("10_degrees", 4, in_each_block("r2", lambda block: [block["spread"], *block["r2"][1:]]), "No: R²_lin is"),
    ("11_protocol", 3, every_share(1.0), "It does not: "),
    ("11_protocol", 4, setting("agreement", 1, "limit_error", to=0.5), "no nearer to it than"),
    ("12_sinks", 1, setting("planted", 1, "effective_rank_ordinary", to=1.1), "It seems so here"),
    ("12_sinks", 2, setting("models", "mini-gpt2", "massive", to=[{"at_first": 1.0}]), "They are in this run: "),
    ("12_sinks", 2, setting("models", "mini-gpt2", "massive", to=[{"at_first": 0.5}]), "No: from block to block, 50 %"),
    ("12_sinks", 3, setting("planted_costs", 4, "nats", to=0.4), "Not in the planted block"),
    (
        "12_sinks",
        4,
        setting("compared", to=[{"right": True}, {"right": False}]),
        "of 2 that have been run 1 came out right",
    ),
    ("13_claims", 1, none_lacking, "here all 38 claims could be tested"),
    ("13_claims", 2, none_lacking, "None of the 38 claims fails here"),
    ("13_claims", 2, of_its_own, "Not by one protocol alone, though gpt2 is its own"),
    (
        "13_claims",
        4,
        setting("claims", "gain-not-residual", "threshold", to=0.8),
        "[−0.26, 0.78] of mini-llama fits into it",
    ),
    ("13_claims", 3, setting("thresholds_moved", to={}), "here none of 38 claims has a number"),
    ("13_claims", 4, setting("claims", "gain-not-residual", "cells", to={}), "none of 38 claims asks it"),
    ("15_gate", 0, every_cost(rise=0.05, rise_low=0.04), "Not surely: "),
    ("15_gate", 0, every_cost(rise=0.005, rise_low=0.001), "above 1 % in 0 of 12 blocks"),
    ("15_gate", 0, every_cost(rise_low=-0.01), "and no interval lies wholly above it"),
    ("15_gate", 1, every_curve("gate", 9.0), "It is here: with "),
    ("15_gate", 1, every_curve("gate, first line", 9.0), "No: with "),
    ("15_gate", 2, in_each_model("together", "rise_low", to=9.0), "More than their sum"),
    ("15_gate", 2, in_each_model("together", "rise_low", to=-1.0), "Not surely more than their sum"),
]


@pytest.mark.parametrize(("stem", "number", "edit", "said"), TURNED)
def test_results_that_turn_round_turn_the_answer_round(stem, number, edit, said):
    results = minis(stem)
    turned = deepcopy(results)
    edit(turned)
    assert said in answers(stem, turned)[number]


def test_profiles_that_do_not_fall_without_their_ends_are_said_to():
    results = minis(TEXTS)
    for model in results["models"].values():
        for found in model["agreement"].values():
            found["inner"] = found["r"] + 0.01
    assert "Without them it falls nowhere, and rises least for" in answers(TEXTS, results)[1]
