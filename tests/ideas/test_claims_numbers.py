import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chi2, spearmanr
from scipy.stats import t as student_t

from howlinear.core.correlation import fisher
from howlinear.core.intervals import Estimate
from howlinear.files import tables
from howlinear.ideas.claims.contrasts import TOGETHER, UntestableError, distance, extreme
from howlinear.ideas.claims.numbers import STATISTICS
from howlinear.text.rows import TokenRows


def ceilings(halves=0.02, **profiles):
    """Results of notebook 02 for some profiles of R²; to swap block b costs b + 1."""
    blocks = []
    for name, r2 in profiles.items():
        block = np.arange(len(r2))
        ends = {"r2": r2, "r2_low": np.subtract(r2, halves), "r2_high": np.add(r2, halves)}
        costs = {"dppl": block + 1.0, "dppl_low": block + 0.5, "dppl_high": block + 2.0}
        blocks.append(pd.DataFrame({"model": name, "block": block, **ends, **costs}))
    models = pd.DataFrame({"model": list(profiles), "perplexity": 50.0})
    return results_of("02_ceilings", profiles, blocks=pd.concat(blocks, ignore_index=True), models=models)


def results_of(stem, of, settings=(), /, **named):
    """Tables of a notebook, of some models."""
    return tables.Results(stem, named, {"settings": {"models": list(of)} | dict(settings)})


def on_texts(corpora, models=("a",), **named):
    """Tables of notebook 05, on some texts."""
    return results_of("05_corpora", models, {"corpora": corpora}, **named)


def read(statistic, results):
    return STATISTICS[statistic](results)


def near(reading, value, low, high, note=""):
    close(reading.estimate, value, low, high)
    assert reading.note == note


def close(estimate, value, low, high):
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((value, low, high))


def test_contrasts_of_blocks_by_hand():
    results = ceilings(a=[0.9, 0.5, 0.4, 0.7])
    near(read("spread", results)["a"], 0.5, 0.46, 0.54)
    near(read("adjacent", results)["a"], 0.4, 0.36, 0.44)
    near(read("turn", results)["a"], 0.3, 0.26, 0.34)  # up 0.3, down 0.5
    near(read("later", results)["a"], -0.15, -0.19, -0.11)  # 0.55 less 0.7
    half = 0.02 * simultaneous(4)
    near(read("lowest", results)["a"], 0.4, 0.4 - half, 0.4 + half, "block 2")


def test_beside_the_contrasts_stands_what_is_left_of_them_without_the_two_ends():
    results = ceilings(a=[0.9, 0.5, 0.4, 0.5, 0.7], short=[0.9, 0.5, 0.4])
    inner = {"spread": 0.1, "adjacent": 0.1, "turn": 0.1}
    for name, value in inner.items():
        found = read(name, results)
        assert found["short"].inner is None  # a single block has no profile
        close(found["a"].inner, value, value - 0.04, value + 0.04)  # with its own interval, as that of the whole


def simultaneous(count, freedom=7):
    """By how much m intervals at 95 % are wider if all are to hold at once."""
    return student_t.ppf(1 - 0.025 / count, freedom) / student_t.ppf(0.975, freedom)


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")  # hundreds of small calls: to check shapes would take most of the time
def test_the_intervals_hold_the_truth_at_least_as_often_as_they_say():
    """Blocks that err together, or each by itself: the worst of both ends covers either."""
    generator, truth = np.random.default_rng(0), np.array([0.9, 0.6, 0.55, 0.5, 0.6, 0.7])
    other = truth - np.array([0.02, 0.1, 0.2, 0.15, 0.1, 0.05])
    covered = dict.fromkeys(("spread", "adjacent", "turn", "later", "lowest", "distance"), 0)
    aims = {"spread": 0.4, "adjacent": 0.3, "turn": 0.2, "later": 0.6 - 2.05 / 3, "lowest": 0.5}
    aims["distance"] = np.abs(truth - other).mean()
    for draw in range(200):
        errors = generator.normal(scale=0.02, size=(2, 1 if draw % 2 else 6))
        results = ceilings(halves=1.96 * 0.02, gpt2=truth + errors[0], pythia=other + errors[1])
        found = {name: read(name, results)["gpt2"].estimate for name in covered if name != "distance"}
        found["distance"] = read("gelu_distance", results)[TOGETHER].estimate
        for name, aim in aims.items():
            covered[name] += found[name].low <= aim <= found[name].high
    assert min(covered.values()) >= 184, covered  # of 200: 95 % less two standard errors


def curve(value, half):
    value = np.array(value)
    return pd.DataFrame({"r2": value, "r2_low": value - half, "r2_high": value + half})


def test_distance_by_hand():
    # halves of √(0.03² + 0.04²) = 0.05 in both blocks; no distance is below 0
    here, there = curve([0.9, 0.5], 0.03), curve([0.8, 0.5], 0.04)
    close(distance(here, there), 0.05, (0.1 - 0.05) / 2, 0.1)
    assert distance(there, here) == distance(here, there)
    assert (distance(here, here).value, distance(here, here).low) == (0, 0)


def test_models_are_compared_within_a_family():
    results = ceilings(gpt2=[0.9, 0.5, 0.4, 0.6, 0.5, 0.8], llama=[0.8] * 6, pythia=[0.4, 0.4, 0.5, 0.3, 0.4, 0.1])
    apart = read("gelu_distance", results)[TOGETHER]
    assert apart.estimate.value == pytest.approx((0.5 + 0.1 + 0.1 + 0.3 + 0.1 + 0.7) / 6)
    assert apart.note == "gpt2 ~ pythia"
    alike = read("gelu_correlation", results)[TOGETHER]
    assert alike.estimate.value == pytest.approx(np.corrcoef([9, 5, 4, 6, 5, 8], [4, 4, 5, 3, 4, 1])[0, 1])
    assert alike.note == "gpt2 ~ pythia"


def test_corpora_are_compared_with_the_main_one_and_the_worst_counts():
    curves = {"docs": (0.9, 0.5), "code": (0.8, 0.5), "cpp": (0.9, 0.1)}
    profiles = pd.DataFrame([("a", text, block, r2[block]) for block in (1, 0) for text, r2 in curves.items()])
    profiles.columns = ["model", "corpus", "block", "r2"]
    profiles = profiles.assign(r2_low=profiles.r2 - 0.03, r2_high=profiles.r2 + 0.03)
    pairs = [
        ("a", "docs", "code", 0.9, 0.85, 0.95),
        ("a", "cpp", "docs", 0.8, 0.7, 0.9),
        ("a", "cpp", "code", 0.1, 0.0, 0.2),  # neither is the main one
    ]
    agreement = pd.DataFrame(pairs, columns=["model", "corpus", "other", "r", "r_low", "r_high"])
    results = on_texts(["docs", "code", "cpp"], profiles=profiles, agreement=agreement)
    half, wider = 0.03 * 2**0.5, simultaneous(2)
    low, high = 0.2 - wider * (0.2 - (0.4 - half) / 2), 0.2 + wider * half
    near(read("corpora_shift", results)["a"], 0.2, low, high, "docs ~ cpp")
    near(read("corpora_correlation", results)["a"], 0.8, 0.8 - 0.1 * wider, 0.8 + 0.1 * wider, "cpp ~ docs")
    assert read("corpora_correlation", results)["a"].inner is None
    agreement[["inner", "inner_low", "inner_high"]] = [(0.2, 0.1, 0.25), (0.6, 0.5, 0.7), (0.0, 0.0, 0.0)]
    inner = read("corpora_correlation", results)["a"].inner  # its own worst pair
    close(inner, 0.2, 0.2 - 0.1 * wider, 0.2 + 0.05 * wider)


@pytest.mark.parametrize(
    ("own", "below", "above", "expected"),
    [
        # block 0: 0.35 from the mean; 0.9 − 0.65 at the least, 1 − 0.55 at the most. Block 1: 0.1; 0.9 is within
        ([0.6, 0.95], [[0.9, 0.9], [1.0, 0.8]], None, ((0.35 + 0.1) / 2, 0.25 / 2, (0.45 + 0.2) / 2)),
        # brackets, whose middles are 0.1: 0.55 − 0.5 at the least, 0.65 + 0.3 at the most
        ([0.6], [[-0.3], [-0.2]], [[0.5], [0.4]], (0.5, 0.05, 0.95)),
        # upwards as downwards
        ([0.6], [[0.9]], None, (0.3, 0.25, 0.35)),
        ([-0.6], [[-0.9]], None, (0.3, 0.25, 0.35)),
        # left as they are
        ([0.9, 0.9], [[0.9, 0.9], [0.91, 0.89]], None, (0.005, 0, (0.06 + 0.06) / 2)),
    ],
)
def test_training_is_measured_from_the_nearest_and_the_farthest_random_model(own, below, above, expected):
    r2 = np.array(own)
    trained = pd.DataFrame({"model": "a", "block": range(len(r2)), "control": "own", "r2": r2})
    trained = trained.assign(r2_low=r2 - 0.05, r2_high=r2 + 0.05)
    other = trained.assign(control="normal", r2=0.3, r2_low=np.nan, r2_high=np.nan)
    seeds = [
        pd.DataFrame({"model": "a", "seed": seed, "block": range(len(r2)), "r2": held_out, "r2_in_sample": in_sample})
        for seed, (held_out, in_sample) in enumerate(zip(below, above or below, strict=True))
    ]
    results = results_of("08_controls", ["a"], controls=pd.concat([trained, other]), random=pd.concat(seeds))
    near(read("moved", results)["a"], *expected)


@pytest.mark.parametrize("families", [["gpt2", "pythia"], ["gpt2", "pythia", "llama"]])
def test_twins_are_judged_beside_their_seeds_and_say_which_families_there_are(families):
    moving = pd.DataFrame({"measured_on": ["all", "all", "docs"], "effect": ["family", "text", "text"]})
    moving = moving.assign(share=[0.4, 0.2, 0], share_low=[0.1, 0, 0], share_high=[0.7, 0.3, 0])
    moving = moving.assign(ratio=[3, 1.7, 9], ratio_low=[2, 1.1, 9], ratio_high=[4, 2.5, 9])
    twins = pd.DataFrame([(f, on) for f in families for on in ("docs", "code")], columns=["family", "measured_on"])
    results = tables.Results("08_controls", {"beside_seeds": moving, "twins": twins})
    note = f"among {' and '.join(families)} twins, read on docs and code"
    near(read("architecture_beside_seeds", results)[TOGETHER], 0.4, 0.1, 0.7, note)
    near(read("text_beside_seeds", results)[TOGETHER], 1.7, 1.1, 2.5, note)


def probed(gains, left, **more):
    """Tables of notebook 03 for one model, the others of some of its blocks."""
    blocks = pd.DataFrame({"model": "a", "block": range(len(gains)), "r2": 1 - np.array(left), "gain": gains})
    blocks = blocks.assign(gain_low=blocks["gain"] - 0.01, gain_high=blocks["gain"] + 0.02)
    others = {name: pd.DataFrame({"model": "a"} | rows) for name, rows in more.items()}
    return results_of("03_bilinear", ["a"], blocks=blocks, **others)


GAINS, LEFT = [0.2, 0.1, 0.05, 0.1, 0.1, 0.3], [0.3, 0.2, 0.1, 0.2, 0.2, 0.5]


def test_gains_are_notebook_03s():
    wider = simultaneous(6)
    near(read("median_gain", probed(GAINS, LEFT))["a"], 0.1, 0.09, 0.12)
    near(read("largest_gain", probed(GAINS, LEFT))["a"], 0.3, 0.3 - 0.01 * wider, 0.3 + 0.02 * wider, "block 5")
    found = read("gain_correlation", probed(GAINS, LEFT))["a"]
    assert found.estimate.value == pytest.approx(np.corrcoef(GAINS, LEFT)[0, 1])
    assert found.inner.value == pytest.approx(np.corrcoef(GAINS[1:-1], LEFT[1:-1])[0, 1])
    assert found.inner == fisher(found.inner.value, len(GAINS) - 2)
    assert found.one_out[0] <= found.estimate.value <= found.one_out[1]


@pytest.mark.parametrize("statistic", ["median_gain", "largest_gain", "gain_correlation"])
@pytest.mark.parametrize(("planted", "misses"), [([0.0, 0.4, 0.9], True), ([0.0, 0.5, 0.6], False)])
def test_a_search_that_misses_what_is_planted_has_no_power(statistic, planted, misses):
    results = probed(GAINS, LEFT, power={"block": [0, 3, 5], "planted": planted})
    assert bool(read(statistic, results)["a"].no_power) == misses
    assert not read(statistic, probed(GAINS, LEFT))["a"].no_power, "where it was not asked"


def test_the_papers_recipe_has_no_interval():
    by_recipe = [0.1, 0.0, 0.0, 0.3, 0.0, 0.2]
    results = probed(GAINS, LEFT, recipe={"block": range(6), "gain": by_recipe})
    near(read("recipe_median_gain", results)["a"], 0.05, 0.05, 0.05)
    order, of_some = [6, 5, 0, 3, 2, 1], [0.4, 0.2, 0.1, 0.3, 0.0, 0.25]  # of some blocks, in any order
    longer = [*LEFT, 0.05, 0.9]
    some = probed([0.1] * 8, longer, recipe={"block": order, "gain": of_some})
    expected = np.corrcoef([longer[block] for block in order], of_some)[0, 1]
    assert read("recipe_correlation", some)["a"].estimate.value == pytest.approx(expected)
    found = read("recipe_correlation", results)["a"].estimate
    assert found.value == pytest.approx(np.corrcoef(by_recipe, LEFT)[0, 1])


def test_products_beside_depth_by_hand():
    controls = {"block": [0, 6, 0, 6], "control": ["dense2x"] * 2 + ["poly2x"] * 2, "r2": [0.9, 0.8, 0.901, 0.77]}
    controls |= {"r2_low": [0.88, 0.78, 0.891, 0.76], "r2_high": [0.92, 0.82, 0.911, 0.78]}
    results = probed([0.1] * 7, range(7), controls=controls)
    wider = simultaneous(2)
    near(read("products_at_depth", results)["a"], 0.03, 0.03 - 0.02 * wider, 0.03 + 0.02 * wider, "block 6")


def costs(line, saved):
    table = {"block": range(len(line))}
    for name, values in (("dppl", line), ("saved", saved)):
        ends = ((name, 0.0), (f"{name}_low", -0.1), (f"{name}_high", 0.1))
        table |= {column: np.add(values, shift) for column, shift in ends}
    return table


def test_products_save_on_critical_early_blocks_and_elsewhere_not():
    """Block 0 of six is critical, block 1 is not; from block 2 on they are later ones."""
    saved = [0.5, 0.75, 0.0, np.nan, 0.05, -0.05]
    results = probed([0.1] * 6, range(6), layers=costs([40, 2, 2, 0, 2, 2], saved))
    near(read("saved_early", results)["a"], 0.5, 0.4, 0.6, "block 0, of 1 that cost something")
    half = 0.1 * simultaneous(3)
    near(read("saved_later", results)["a"], 0.05, 0.05 - half, 0.05 + half, "block 4, of 3 that cost something")


def test_the_overlap_of_critical_blocks_reaches_as_far_as_their_costs_allow():
    """By trying every set of critical blocks that the intervals leave possible; a later block is never critical."""
    random = np.random.default_rng(0)
    kinds = {"surely": (9.0, 8.0, 10.0), "maybe": (4.0, 2.5, 5.5), "hardly": (2.5, 1.0, 4.0), "never": (1.0, 0.9, 1.1)}
    for _ in range(60):
        profiles, critical, possible = [], [], []
        for model in "ab":
            drawn = random.choice([*kinds], 3).tolist()  # of three early blocks; five of six later ones cost 1
            ends = [kinds[kind] for kind in [*drawn, "surely", *["never"] * 5]]
            critical.append({place for place, kind in enumerate(drawn) if kind in ("surely", "maybe")})
            profiles.append(pd.DataFrame(ends, columns=tables.with_ends("dppl")).assign(model=model, block=range(9)))
            choices = [{"surely": [True], "never": [False]}.get(kind, [True, False]) for kind in drawn]
            possible.append([set(np.flatnonzero(taken)) for taken in itertools.product(*choices)])
        pairs = [critical, *itertools.product(*possible)]
        value, *overlaps = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]
        results = results_of("02_ceilings", ["a", "b"], blocks=pd.concat(profiles))
        found = read("critical_overlap", results)["together"].estimate
        assert (found.value, found.low, found.high) == pytest.approx((value, min(overlaps), max(overlaps)))


def ranks(*blocks):
    table = pd.DataFrame(blocks, columns=["r2", "median_r2", "rank_90"]).assign(model="a", block=range(len(blocks)))
    table = table.assign(median_r2_low=table["median_r2"] - 0.02, median_r2_high=table["median_r2"] + 0.03)
    return results_of("04_rank", ["a"], blocks=table.astype({"rank_90": "Int64"}))


OF_TWO = ", of 2 with R² ≥ 0.9"


def test_two_regimes_are_asked_of_near_linear_blocks_alone():
    results = ranks((0.95, 0.2, 1), (0.2, 0.0, 1), (0.92, 0.9, 60), (0.89, 0.1, 90), (0.1, 0.1, 3), (0.3, 0.2, 5))
    wider = simultaneous(2)
    near(read("lowest_median", results)["a"], 0.2, 0.2 - 0.02 * wider, 0.2 + 0.03 * wider, f"block 0{OF_TWO}")
    near(read("highest_median", results)["a"], 0.9, 0.9 - 0.02 * wider, 0.9 + 0.03 * wider, f"block 2{OF_TWO}")
    near(read("lowest_rank", results)["a"], 1, 1, 1, f"block 0{OF_TWO}")
    near(read("highest_rank", results)["a"], 60, 60, 60, f"block 2{OF_TWO}")
    found = read("rank_correlation", results)["a"].estimate
    assert found.value == pytest.approx(spearmanr([0.95, 0.2, 0.92, 0.89, 0.1, 0.3], [1, 1, 60, 90, 3, 5]).statistic)


def test_swaps_of_near_linear_blocks_by_hand():
    """Blocks cost 1, 2, … 6 of 50; blocks 1 and 4 are near-linear, so 2 and 5 count; the median is 3.5."""
    results = ceilings(a=[0.5, 0.9, 0.4, 0.3, 0.95, 0.6])
    wider = simultaneous(2)
    near(read("cheapest_near_linear", results)["a"], 0.04, 0.04 - 0.01 * wider, 0.04 + 0.02 * wider, f"block 1{OF_TWO}")
    near(
        read("dearest_near_linear", results)["a"],
        *(5 / 3.5, (5 - 0.5 * wider) / 3.5, (5 + wider) / 3.5, f"block 4{OF_TWO}"),
    )
    known = spearmanr([0.5, 0.9, 0.4, 0.3, 0.95, 0.6], range(6)).statistic
    assert read("cost_correlation", results)["a"].estimate.value == pytest.approx(known)


def test_a_spread_over_folds_is_known_to_a_factor():
    blocks = pd.DataFrame({"model": "a", "block": range(3), "r2_sd": [0.01, 0.05, 0.03]})
    results = results_of("02_ceilings", ["a"], blocks=blocks)
    assert len(TokenRows.from_ids(torch.arange(128).view(64, 2)).fold.unique()) == 8  # as rows come
    low, high = ((7 / chi2.ppf(tail, 7)) ** 0.5 for tail in (0.975, 0.025))
    near(read("fold_spread", results)["a"], 0.03, 0.03 * low, 0.03 * high, "over 8 folds")
    low, high = ((7 / chi2.ppf(tail, 7)) ** 0.5 for tail in (1 - 0.025 / 3, 0.025 / 3))
    near(read("largest_fold_spread", results)["a"], 0.05, 0.05 * low, 0.05 * high, "block 1, over 8 folds")


def test_the_scale_probe_is_of_tinyllama_alone():
    results = ceilings(**{"TinyLlama_v1.1": [0.04, 0.07], "gpt2": [0.9, 0.8]})
    assert list(read("scale_probe", results)) == ["TinyLlama_v1.1"]
    assert read("scale_probe", results)["TinyLlama_v1.1"].estimate.value == pytest.approx(0.07)


def test_healing_is_judged_by_the_original():
    rows = [("a", 1, "line, healed", -6.92, -7.92, -5.92), ("a", 1, "original, healed", -20.70, -21.70, -19.70)]
    columns = ["model", "block", "layer", "delta", "delta_low", "delta_high"]
    healing = pd.DataFrame(rows, columns=columns)
    found = read("healed_original", results_of("06_compression", ["a", "encoder"], healing=healing))
    near(found["a"], -20.70, -21.70, -19.70, "block 1; healed line -6.9")
    assert found["encoder"] == "not measured in this run: its results hold no healing"


def trained(condition, numbers=(0, 1)):
    blocks = pd.DataFrame({"model": "a", "block": numbers, "condition": condition})
    blocks = blocks.assign(r2=[0.9, 0.6], r2_low=[0.88, 0.55], r2_high=[0.95, 0.63])
    reached = {"GD": [0.9, 0.3], "Adam": [0.7, 0.6]}
    ways = [("a", block, way, r2) for way, both in reached.items() for block, r2 in zip(numbers, both, strict=True)]
    ways = pd.DataFrame(ways, columns=["model", "block", "way", "reached"])
    return results_of("07_optimisers", ["a"], {"steps": 500}, blocks=blocks, ways=ways)


def test_the_shortfall_is_the_worst_of_ill_conditioned_blocks():
    found = read("shortfall", trained([1e5, 1e5]))["a"]
    wider = simultaneous(4)
    near(found, 0.3, 0.3 - 0.05 * wider, max(0.3 + 0.03 * wider, 0.2 + 0.05 * wider), "GD, block 1")
    assert read("shortfall", trained([1e5, 100]))["a"].note == "Adam, block 0"
    assert read("shortfall", trained([1e5, 1e5], (11, 28)))["a"].note == "GD, block 28"


def an_encoder_beside(**profiles):
    """Results of notebook 02, `a` that of a model whose swaps have no cost."""
    results = ceilings(a=np.linspace(0.1, 0.95, 12), **profiles)
    results["blocks"].loc[results["blocks"].model == "a", tables.with_ends("dppl")] = np.nan
    return results


@pytest.mark.parametrize(
    ("statistic", "results", "rule"),
    [
        ("gelu_distance", ceilings(gpt2=[0.9, 0.5], llama=[0.9, 0.5]), "two GELU models are compared, and there are 1"),
        ("gelu_distance", ceilings(gpt2=[0.9, 0.5], pythia=[0.9, 0.5, 0.4]), "2 blocks and 3 cannot be laid"),
        ("gelu_correlation", ceilings(gpt2=[0.9, 0.5], pythia=[0.9, 0.5, 0.4]), "2 blocks and 3 cannot be laid"),
        ("critical_overlap", an_encoder_beside(talks=np.linspace(0, 1, 12)), "a single model has no other"),
        ("critical_overlap", ceilings(a=[0.9, 0.5], b=[0.9, 0.5]), "no later blocks"),
        ("scale_probe", ceilings(a=[0.9, 0.5]), "no TinyLlama among the models"),
        ("text_beside_seeds", tables.Results("08_controls", {}), "hold no beside_seeds"),
    ],
)
def test_what_cannot_be_tested_says_by_which_rule(statistic, results, rule):
    with pytest.raises(UntestableError, match=rule):
        read(statistic, results)


def rows(*numbers):
    return pd.DataFrame(numbers, columns=["block", "x", "x_low", "x_high"])


def test_an_end_that_is_missing_is_never_passed_over():
    """`max` of Python may drop a NaN; these must not."""
    found = extreme(rows((0, 0.1, 0.0, 0.2), (1, 0.2, np.nan, 0.3)), "x", np.max).estimate
    assert np.isnan(found.low)
    assert found.value == 0.2


def test_each_end_of_an_extreme_is_picked_by_itself_and_the_note_goes_with_the_value():
    two = rows((7, 0.3, 0.1, 0.4), (9, 0.2, 0.15, 0.9))
    wider = simultaneous(2)
    near(extreme(two, "x", np.max), 0.3, 0.2 - 0.05 * wider, 0.2 + 0.7 * wider, "block 7")
    near(extreme(two, "x", np.min, "at {block}"), 0.2, 0.3 - 0.2 * wider, 0.3 + 0.1 * wider, "at 9")
    near(extreme(two[:1], "x", np.max), 0.3, 0.1, 0.4, "block 7")  # nothing was chosen


def sunk(block, massive_rows, r2, ordinary, rank_one=(False, False), at_first=1.0):
    """A block of notebook 12's results: every interval reaches 0.01 to either side."""
    found = {"block": block, "massive_rows": massive_rows, "fall": r2 - ordinary}
    found |= {"r2": r2, "r2_low": r2 - 0.01, "r2_high": r2 + 0.01}
    found |= {"r2_ordinary": ordinary, "r2_ordinary_low": ordinary - 0.01, "r2_ordinary_high": ordinary + 0.01}
    found |= dict(zip(("rank_one", "rank_one_ordinary"), rank_one, strict=True))
    return found, {"block": block, "at_first": at_first}


def sinks(*blocks, costs=()):
    """Results of notebook 12 for one model."""
    kinds = [kind for block, kind in blocks if block["massive_rows"]]
    rows = {"blocks": [block for block, _ in blocks], "massive": kinds, "costs": list(costs)}
    found = {name: pd.DataFrame([{"model": "a"} | row for row in of_table]) for name, of_table in rows.items()}
    found = {name: table if len(table) else pd.DataFrame(columns=["model"]) for name, table in found.items()}
    return results_of("12_sinks", ["a"], **found)


def swapped(block, kind, nats, massive_rows=9, mended=0.5):
    row = {"block": block, "kind": kind, "massive_rows": massive_rows}
    return (
        row | Estimate(nats, nats - 0.01, nats + 0.01).columns("nats") | Estimate(mended, 0.4, 0.99).columns("mended")
    )


def test_massive_rows_by_hand():
    results = sinks(
        sunk(0, 0, 0.6, 0.6),
        sunk(1, 9, 0.9, 0.4, rank_one=(True, False), at_first=0.3),
        sunk(2, 9, 0.8, 0.75, at_first=0.0),  # it does not rest on them
        sunk(3, 9, 0.9, 0.6, rank_one=(True, True)),
        costs=[
            *(swapped(0, "a", 5.0, massive_rows=0), swapped(1, "a", 0.5), swapped(3, "a", 2.0)),
            *(swapped(1, "d", 0.4), swapped(3, "d", 0.1, mended=0.95), swapped(3, "c", 0.2)),
        ],
    )
    half = 0.02 * simultaneous(3)
    near(read("fall_without_massive_rows", results)["a"], 0.5, 0.5 - half, 0.5 + half, "block 1")
    near(read("rank_one_of_tokens", results)["a"], 0.5, 0.0945312, 0.9054688, "of 2 blocks")
    near(read("least_at_first_position", results)["a"], 0.3, 0.3, 0.3, "block 1")
    near(read("dearest_mended", results)["a"], 0.95, 0.4, 0.99, "block 3")


UNMEASURED = "not measured in this run: its results hold no "
NO_COST = "an encoder predicts no next token, so a swap costs no perplexity"
NEAR_LINEAR = ("dearest_near_linear", "cheapest_near_linear")
FLAT = probed([0.1] * 6, range(6))
LAYERS = {
    "even": costs([2, 2, 2, 1, 2, 2], [0] * 6),
    "two": costs([2, 2], [0, 0]),
    "none": costs([np.nan] * 6, [np.nan] * 6),
}
SWAPPED = {name: probed([0.1] * 6, range(6), layers=layers) for name, layers in LAYERS.items()}
ALL_SWAPPED = ceilings(a=[0.9] * 8)
EVEN_BLOCKS = ALL_SWAPPED["blocks"].assign(dppl=lambda blocks: blocks["dppl"].where(blocks["block"] % 2 == 0))
PARTLY = results_of("02_ceilings", ["a"], blocks=EVEN_BLOCKS, models=ALL_SWAPPED["models"])
PAIRLESS = on_texts(["docs", "code"], agreement=pd.DataFrame(columns=["model", "corpus", "other"]))


@pytest.mark.parametrize(
    ("statistic", "results", "rule"),
    [
        ("spread", ceilings(a=[0.9]), "a model of one block has no profile"),
        ("cost_correlation", ceilings(a=[0.9, 0.5]), "2 and 2 blocks: a correlation needs 6 of each"),
        ("cost_correlation", PARTLY, "dppl is of blocks 0, 2, 4, 6 alone: all are needed"),
        ("dearest_near_linear", PARTLY, "dppl is of blocks 0, 2, 4, 6 alone: all are needed"),
        ("corpora_shift", on_texts(["docs"]), "a single corpus has no other"),
        ("corpora_correlation", PAIRLESS, "fewer than three blocks"),
        ("cheapest_near_linear", ceilings(a=[0.5, 0.6]), "no block reaches an R² of 0.9: the highest is 0.60"),
        ("lowest_rank", ranks((0.5, 0.2, 1), (0.6, 0.2, 1)), "no block reaches an R² of 0.9: the highest is 0.60"),
        ("shortfall", trained([20, 100]), "no condition number exceeds the 500 steps taken"),
        ("saved_early", SWAPPED["even"], "no early block costs 3 times what later ones do"),
        ("saved_later", SWAPPED["two"], "dppl is of blocks 0, 1 alone: all are needed"),
        ("saved_early", SWAPPED["none"], NO_COST),
        *((name, an_encoder_beside(), NO_COST) for name in ("cost_correlation", *NEAR_LINEAR)),
        ("fold_spread", ceilings(a=[0.5, 0.6]), UNMEASURED + "r2_sd"),
        ("largest_fold_spread", ceilings(a=[0.5, 0.6]), UNMEASURED + "r2_sd"),
        ("recipe_median_gain", FLAT, UNMEASURED + "recipe"),
        ("recipe_correlation", FLAT, UNMEASURED + "recipe"),
        ("products_at_depth", FLAT, UNMEASURED + "controls"),
        ("saved_early", FLAT, UNMEASURED + "layers"),
        ("fall_without_massive_rows", sinks(sunk(0, 0, 0.6, 0.6)), "no block has a massive row"),
        ("rank_one_of_tokens", sinks(sunk(0, 9, 0.9, 0.6)), "no block is nearly linear along one direction alone"),
        ("least_at_first_position", sinks(sunk(0, 9, 0.6, 0.55)), "without its massive rows no block's R²_lin moves"),
        ("dearest_mended", sinks(sunk(0, 9, 0.9, 0.6)), NO_COST),
        ("dearest_mended", sinks(costs=[swapped(0, "a", 1.0, massive_rows=0)]), "no block with a massive row was"),
        ("dearest_mended", sinks(costs=[swapped(0, "a", 0.005), swapped(0, "d", 0.1)]), "may cost nothing"),
    ],
)
def test_a_model_that_cannot_be_tested_says_by_which_rule(statistic, results, rule):
    assert rule in read(statistic, results)["a"]


def test_a_model_beside_the_run_profiles_own_is_no_test_of_a_claim():
    results = ceilings(a=[0.9, 0.5, 0.4, 0.7], grown=[0.9, 0.1, 0.9, 0.9])
    named = tables.Results(results.stem, results, {"settings": {"models": ["a", "grown"], "beside": ["grown"]}})
    assert read("spread", results).keys() == {"a", "grown"}
    assert read("spread", named).keys() == {"a"}
    with pytest.raises(UntestableError, match="a single model has no other"):
        read("critical_overlap", named)
