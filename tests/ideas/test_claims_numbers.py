import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howlinear.core.estimates import Estimate
from howlinear.ideas.claims.numbers import (
    STATISTICS,
    TOGETHER,
    Estimates,
    Reading,
    UntestableError,
    distance,
    extreme,
    steps,
)


def ceilings(halves=0.02, **profiles):
    """Results of notebook 02 for some profiles of R²; every block costs a hundredth of its number plus one."""
    models = {}
    for name, r2 in profiles.items():
        ends = zip(range(len(r2)), r2, np.subtract(r2, halves), np.add(r2, halves), strict=True)
        blocks = [dict(zip(("block", "r2", "r2_low", "r2_high"), map(float, each), strict=True)) for each in ends]
        blocks = [block | {"block": int(block["block"])} for block in blocks]
        swap = [{"block": b, "delta": b + 1.0, "low": b + 0.5, "high": b + 2.0} for b in reversed(range(len(r2)))]
        models[name] = {"blocks": blocks, "swap": swap, "perplexity": 50.0}
    return {"models": models}


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
    near(read("lowest", results)["a"], 0.4, 0.38, 0.42)


def test_a_middle_block_counts_with_the_later_half():
    assert read("later", ceilings(a=[0.2, 0.6, 0.8]))["a"].estimate.value == pytest.approx(0.7 - 0.2)


@pytest.mark.parametrize("profile", [[0.9, 0.7, 0.5], [0.1, 0.2, 0.8]])
def test_a_monotone_profile_has_no_turn(profile):
    found = read("turn", ceilings(halves=0.01, a=profile))["a"].estimate
    assert found.value < 0
    assert found.high < 0


def loops(value, low, high):
    """The same five contrasts, by loops over pairs of blocks."""
    n = len(value)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    ends = {"value": (value, value), "low": (low, high), "high": (high, low)}
    found = {}
    for end, (plus, minus) in ends.items():
        step = {(i, j): plus[j] - minus[i] for i, j in pairs}
        rise, fall = (max(step[i, j] for i, j in pairs if (j > i) is up) for up in (True, False))
        later = [plus[j] for j in range(n // 2, n)], [minus[i] for i in range(n // 2)]
        found[end] = {
            "spread": max(step.values()),
            "adjacent": max(step[i, j] for i, j in pairs if abs(i - j) == 1),
            "turn": min(rise, fall),
            "later": np.mean(later[0]) - np.mean(later[1]),
            "lowest": min(plus),
        }
    return found


profiles = st.lists(st.tuples(st.floats(-1, 1), st.floats(0.001, 0.3)), min_size=2, max_size=7)


@given(blocks=profiles)
@settings(deadline=None, max_examples=60)
def test_contrasts_equal_loops_over_pairs_and_bracket_their_value(blocks):
    value, half = map(np.array, zip(*blocks, strict=True))
    results = ceilings(halves=half, a=value)
    expected = loops(value, value - half, value + half)
    for name in ("spread", "adjacent", "turn", "later", "lowest"):
        found = read(name, results)["a"].estimate
        assert found.low <= found.value <= found.high
        for end in ("value", "low", "high"):
            assert getattr(found, end) == pytest.approx(expected[end][name], abs=1e-12)


def test_the_intervals_hold_the_truth_at_least_as_often_as_they_say():
    """Blocks that err together, or each by itself: the worst of both ends covers either."""
    generator, truth = np.random.default_rng(0), np.array([0.9, 0.6, 0.55, 0.5, 0.6, 0.7])
    other = truth - np.array([0.02, 0.1, 0.2, 0.15, 0.1, 0.05])
    covered = dict.fromkeys(("spread", "adjacent", "turn", "later", "lowest", "distance"), 0)
    aims = loops(truth, truth, truth)["value"] | {"distance": np.abs(truth - other).mean()}
    for draw in range(200):
        errors = generator.normal(scale=0.02, size=(2, 1 if draw % 2 else 6))
        results = ceilings(halves=1.96 * 0.02, a=truth + errors[0], b=other + errors[1])
        found = {name: read(name, results)["a"].estimate for name in covered if name != "distance"}
        found["distance"] = read("nearest_models", results)[TOGETHER].estimate
        for name, aim in aims.items():
            covered[name] += found[name].low <= aim <= found[name].high
    assert min(covered.values()) >= 184, covered  # of 200: 95 % less two standard errors


def test_distance_by_hand():
    first = Estimates.of(value=[0.9, 0.5], low=[0.87, 0.47], high=[0.93, 0.53])
    second = Estimates.of(value=[0.8, 0.5], low=[0.76, 0.46], high=[0.84, 0.54])
    # halves of √(0.03² + 0.04²) = 0.05 in both blocks; no distance is below 0
    close(distance(first, second), 0.05, (0.1 - 0.05) / 2, 0.1)


def test_the_same_profile_is_at_no_distance_and_a_shifted_one_at_its_shift():
    value, half = np.array([0.9, 0.5, 0.7]), 0.01
    curve = Estimates(value, value - half, value + half)
    shifted = Estimates(value - 0.3, value - 0.3 - half, value - 0.3 + half)
    assert distance(curve, curve).value == 0
    assert distance(curve, curve).low == 0
    assert distance(curve, shifted).value == pytest.approx(0.3)
    assert distance(shifted, curve) == distance(curve, shifted)


def test_models_are_compared_by_family_and_by_nearness():
    results = ceilings(gpt2=[0.9, 0.5], llama=[0.8, 0.5], pythia=[0.4, 0.4])
    assert read("gelu_distance", results)[TOGETHER].estimate.value == pytest.approx(0.3)
    assert read("gelu_distance", results)[TOGETHER].note == "gpt2 ~ pythia"
    assert read("nearest_models", results)[TOGETHER].estimate.value == pytest.approx(0.05)
    assert read("nearest_models", results)[TOGETHER].note == "gpt2 ~ llama"


def test_corpora_are_compared_two_by_two_and_the_worst_pair_counts():
    def on(*r2):
        return {"value": list(r2), "low": [v - 0.03 for v in r2], "high": [v + 0.04 for v in r2]}

    profile = {"docs": on(0.9, 0.5), "code": on(0.8, 0.5), "cpp": on(0.9, 0.3)}
    found = read("corpora_distance", {"corpora": ["docs", "code", "cpp"], "models": {"a": {"profile": profile}}})["a"]
    half = 0.035 * 2**0.5
    near(found, 0.15, (0.1 - half + 0.2 - half) / 2, 0.15 + half, "code ~ cpp")


def controls(own, fresh, half=0.05):
    ends = {"own": own, "own_low": [v - half for v in own], "own_high": [v + half for v in own]}
    return {key: {"a": value} for key, value in (ends | {"fresh": fresh}).items()}


def test_training_is_measured_from_the_nearest_and_the_farthest_random_model():
    found = read("moved", controls([0.6, 0.95], [[0.9, 0.9], [1.0, 0.8]]))["a"]
    # block 0: 0.35 from the mean; 0.9 − 0.65 at the least, 1 − 0.55 at the most. Block 1: 0.1; within 0.9 at the least
    near(found, (0.35 + 0.1) / 2, (0.25 + 0) / 2, (0.45 + 0.2) / 2)


def test_training_counts_upwards_as_downwards():
    down = read("moved", controls([0.6, 0.6], [[0.9, 0.9]]))["a"]
    up = read("moved", controls([-0.6, -0.6], [[-0.9, -0.9]]))["a"]
    near(up, down.estimate.value, down.estimate.low, down.estimate.high)


def test_random_weights_left_as_they_are_have_not_moved():
    found = read("moved", controls([0.9, 0.9], [[0.9, 0.9], [0.91, 0.89]]))["a"].estimate
    assert found.low == 0
    assert found.high < 0.1


def test_architectures_share_is_the_larger_over_texts_with_notebook_08s_intervals():
    def effects(share):
        return {"family": {"share": share, "low": share - 0.1, "high": share + 0.1}, "seed": {"share": 1 - share}}

    results = {"twin_gaps": {"docs": {}, "code": {}}} | {
        f"{text}, {view}": effects(share)
        for text, view, share in (
            ("docs", "as measured", 0.2),
            ("code", "as measured", 0.3),
            ("code", "shape only", 0.9),
        )
    }
    near(read("architecture_share", results)[TOGETHER], 0.3, 0.2, 0.4, "read on code")


def test_nearest_twins_differ_in_training_text_and_say_where_they_were_read():
    """Two seeds on one text may be as alike as they like."""

    def profile(level):
        return {"r2": [level] * 2, "r2_low": [level - 0.01] * 2, "r2_high": [level + 0.01] * 2}

    levels = {
        "gpt2-docs-0": (0.5, 0.5),
        "gpt2-docs-1": (0.5, 0.5),
        "pythia-code-0": (0.7, 0.6),
        "gpt2-code-0": (0.8, 0.9),
    }
    twins = {name: dict(zip(("docs", "code"), map(profile, both), strict=True)) for name, both in levels.items()}
    found = read("nearest_twins", {"twin_gaps": {"docs": {}, "code": {}}, "twins": twins})[TOGETHER]
    near(found, 0.1, 0.1 - 0.01 * 2**0.5, 0.1 + 0.01 * 2**0.5, "gpt2-docs-0 ~ pythia-code-0, read on code")


def test_the_largest_gain_and_its_correlation_are_notebook_03s():
    blocks = [{"block": b, "gain": g, "low": g - 0.01, "high": g + e} for b, g, e in ((0, 0.2, 0.01), (1, 0.1, 0.2))]
    whole = {"r": 0.5, "low": 0.2, "high": 0.7}
    results = {"models": {"a": {"blocks": blocks}}, "correlation": {"gain": {"all": whole, "a": {}}}}
    near(read("largest_gain", results)["a"], 0.2, 0.19, 0.3, "block 0")  # the other may be larger still
    near(read("gain_correlation", results)[TOGETHER], 0.5, 0.2, 0.7)


def ranks(*blocks):
    found = [
        {"block": b, "r2": {"value": r2}, "rank": {"value": rank, "low": rank - 0.2, "high": rank + 0.3}}
        for b, (r2, rank) in enumerate(blocks)
    ]
    return {"models": {"a": {"blocks": found[:2]}, "b": {"blocks": found[2:]}}, "settings": {"high": 0.9}}


def test_ranks_are_of_near_linear_blocks_alone():
    results = ranks((0.95, 8.0), (0.2, 1.1), (0.9, 1.5), (0.89, 40.0))
    near(read("lowest_rank", results)[TOGETHER], 1.5, 1.3, 1.8, "b, block 2")
    near(read("highest_rank", results)[TOGETHER], 8, 7.8, 8.3, "a, block 0")


def test_swaps_are_of_the_most_and_the_least_linear_block_relative_to_perplexity():
    results = ceilings(a=[0.5, 0.9, 0.4])
    near(read("swap_most_linear", results)["a"], 2 / 50, 1.5 / 50, 3 / 50, "block 1")
    near(read("swap_least_linear", results)["a"], 3 / 50, 2.5 / 50, 4 / 50, "block 2")


def test_the_shortfall_is_the_worst_over_blocks_and_ways():
    model = {"exact": [0.9, 0.6], "low": [0.88, 0.55], "high": [0.95, 0.63], "GD": [0.9, 0.3], "Adam": [0.7, 0.6]}
    results = {"models": {"a": model}, "verdicts": {"a": {"GD": {}, "Adam": {}}}}
    near(read("shortfall", results)["a"], 0.3, 0.25, 0.33, "GD, block 1")


@pytest.mark.parametrize(
    ("statistic", "results", "rule"),
    [
        ("gelu_distance", ceilings(gpt2=[0.9, 0.5], llama=[0.9, 0.5]), "two GELU models are compared, and there are 1"),
        ("gelu_distance", ceilings(gpt2=[0.9, 0.5], pythia=[0.9, 0.5, 0.4]), "2 blocks and 3 cannot be laid"),
        ("nearest_models", ceilings(a=[0.9, 0.5]), "a single model has no other"),
        ("spread", ceilings(a=[0.9]), "one block has no profile"),
        ("corpora_distance", {"corpora": ["docs"], "models": {}}, "a single corpus has no other"),
        ("lowest_rank", ranks((0.5, 8.0), (0.2, 1.1), (0.6, 1.5)), r"no block reaches an R² of 0\.9"),
    ],
)
def test_what_cannot_be_tested_says_by_which_rule(statistic, results, rule):
    with pytest.raises(UntestableError, match=rule):
        read(statistic, results)


def test_an_end_that_is_missing_is_never_passed_over():
    """`max` of Python may drop a NaN; these must not."""
    first, second = Estimate(0.1, 0.0, 0.2), Estimate(0.2, float("nan"), 0.3)
    found = extreme([Reading(first), Reading(second)], np.max).estimate
    assert np.isnan(found.low)
    assert found.value == 0.2


def test_each_end_of_an_extreme_is_picked_by_itself_and_the_note_goes_with_the_value():
    readings = [Reading(Estimate(0.3, 0.1, 0.4), "first"), Reading(Estimate(0.2, 0.15, 0.9), "second")]
    near(extreme(readings, np.max), 0.3, 0.15, 0.9, "first")
    near(extreme(readings, np.min), 0.2, 0.1, 0.4, "second")


def test_steps_run_from_row_to_column():
    found = steps(Estimates.of(value=[0.9, 0.5], low=[0.8, 0.4], high=[1.0, 0.6]))
    close(found[[0], [1]].reduce(np.max), -0.4, -0.6, -0.2)
    close(found[[1], [0]].reduce(np.max), 0.4, 0.2, 0.6)
