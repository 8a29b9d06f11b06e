"""What is said of results that the recorded ones are not like: every other branch of the sentences."""

from inspect import signature

import pytest

from howlinear.answers import (
    bilinear,
    capture,
    ceilings,
    claims,
    compression,
    controls,
    degrees,
    dynamics,
    gate,
    optimisers,
    protocol,
    rank,
    sinks,
)
from howlinear.ideas.bilinear.power import power as planted_power

# --- 01 capture


def inputs(model, block, first_out, rank=8):
    numbers = {"condition": 2.0 + block, "effective_rank": 4.0, "rank": rank, "width": 8}
    return {"model": model, "block": block, "first_position_in": 1.0, "first_position_out": first_out} | numbers


def test_position_0_is_like_the_others_everywhere_nowhere_or_here_and_there():
    alike = [inputs("a", 0, 1.1), inputs("b", 0, 0.9)]
    assert capture.replies({"inputs": alike})[1].startswith("Yes, nearly.")
    apart = [inputs("a", 0, 1.1), inputs("a", 1, 0.1), inputs("b", 0, 3.0)]
    (_, reply, _) = capture.replies({"inputs": apart})
    assert reply.startswith("No.")
    assert "0.10 times as long in block 1 of a and 3.0 times as long in block 0 of b" in reply
    assert capture.replies({"inputs": [*alike, inputs("c", 0, 9.0)]})[1].startswith("Not in all models.")


def test_directions_that_cannot_vary_are_counted_by_block():
    rows = [inputs("a", 0, 1.0, rank=7), inputs("a", 1, 1.0, rank=8), inputs("b", 0, 1.0)]
    assert capture.replies({"inputs": rows})[2] == "7 to 8 of 8 directions in a and all 8 directions in b."


# --- 02 ceilings


def ceiling(r2, *, costs=(), rho=None, ordinary=None, turns=False):
    """A model of blocks with these R², half an interval of 0.01, and swaps as (ΔPPL, half an interval)."""
    blocks = []
    for block, value in enumerate(r2):
        without = value if ordinary is None else ordinary[block]
        numbers = {"r2": value, "r2_low": value - 0.01, "r2_high": value + 0.01, "r2_ordinary": without}
        blocks.append({"block": block, "massive_rows": 10} | numbers)
    swaps = [
        {"block": block, "delta": cost, "low": cost - half, "high": cost + half}
        for block, (cost, half) in enumerate(costs)
    ]
    return {
        "blocks": blocks,
        "swap": swaps,
        "spearman_r2_delta": rho,
        "perplexity": 40.0 if swaps else None,
        "rises_and_falls": turns,
        "rows": 1000,
        "untrained": [0.5] * len(r2),
        "untrained_in_sample": [0.5] * len(r2),
    }


def test_the_dearest_block_is_sure_only_where_no_other_interval_reaches_it():
    sure = ceiling([0.9, 0.8], costs=[(3.0, 0.5), (1.0, 0.5)], rho=1.0)
    said = ceilings.sentences({"models": {"a": sure}})[1]
    assert said.endswith("; no other block of the same model has an interval that overlaps with its.")
    unsure = ceiling([0.9, 0.8], costs=[(3.0, 0.5), (1.0, 2.0)], rho=1.0)
    said = ceilings.sentences({"models": {"a": sure, "b": unsure}})[1]
    assert "no other" not in said
    assert said.endswith("That is not sure: its interval overlaps with that of block 1 in b.")
    many = ceiling([0.9] * 5, costs=[(3.0, 2.0)] + [(2.0, 2.0)] * 4, rho=1.0)
    assert "its interval overlaps with that of 4 other blocks in a" in ceilings.sentences({"models": {"a": many}})[1]


def test_the_order_may_be_either_way_or_chance():
    costs = [(float(block), 0.1) for block in range(12)]
    r2 = [0.5] * 12
    models = {name: ceiling(r2, costs=costs, rho=rho) for name, rho in (("a", 0.9), ("b", -0.9), ("c", 0.2))}
    said = ceilings.sentences({"models": models})[2]
    assert "ρ = +0.90 in a, ρ = −0.90 in b and ρ = +0.20 in c" in said
    assert (
        "are the dearer ones in a, the more linear blocks are the cheaper ones in b and this may be chance in c" in said
    )


def test_an_encoder_has_no_costs():
    said = ceilings.sentences({"models": {"a": ceiling([0.9, 0.8])}})
    assert said[1:] == ["a predicts no next token, so no swap of a block has a cost in perplexity."]
    assert ceilings.replies({"models": {"a": ceiling([0.9, 0.8])}})[2] == said[1]


def test_a_block_that_rests_on_massive_rows_is_named():
    said = ceilings.sentences({"models": {"a": ceiling([0.9, 0.8], ordinary=[0.3, 0.8])}})
    assert said[1] == (
        "In block 0 of a a few massive rows, with outputs far larger than the others', decide that number: "
        "without 1.0 % of the rows that is 0.30, not 0.90."
    )
    said = ceilings.sentences({"models": {"a": ceiling([0.9, 0.8], ordinary=[0.3, 0.1])}})
    assert said[1].endswith("without 1.0 % of the rows that of block 1 is 0.10, not 0.80.")


def test_profiles_that_turn_and_those_that_need_not():
    models = {"a": ceiling([0.9, 0.8]), "b": ceiling([0.9, 0.8], turns=True)}
    reply = ceilings.replies({"models": models})[1]
    assert reply.endswith("intervals, in b. The intervals do not show that it both falls and rises in a.")


def test_blocks_are_more_or_less_linear_before_training_beyond_their_interval():
    more = ceiling([0.4, 0.48, 0.505])
    less = ceiling([0.6, 0.6, 0.6])
    either = ceiling([0.4, 0.4, 0.505, 0.6])
    reply = ceilings.replies({"models": {"a": more, "b": less, "c": more, "d": either}})[0]
    assert reply == (
        "Before training blocks are more linear in a (R²_lin 0.50; surely in 2 of 3 blocks) and c (R²_lin 0.50; "
        "surely in 2 of 3 blocks); less linear in b (R²_lin 0.50; surely in 3 of 3 blocks); and not surely more or "
        "less linear in d (R²_lin 0.50; more in 2 and less in 1 of 4 blocks). Small random weights make hidden values "
        "small, where GELU is nearly straight; SwiGLU multiplies two of them, and a product has a straight part only "
        "as far as its inputs are skewed."
    )


# --- 03 bilinear


def test_a_search_that_finds_nothing_says_so():
    power = {"a": [{"block": 0, "planted": 0.1}, {"block": 3, "planted": 0.0}]}
    (said,) = bilinear._power(power)
    assert said == "The search misses the one planted in blocks 0 and 3 of a, so a small gain there says little."


def test_a_slope_may_rise_fall_or_be_open():
    rising = {"r": 0.8, "low": 0.2, "high": 0.9, "inner": 0.3}
    falling = {"r": -0.8, "low": -0.9, "high": -0.2, "inner": -0.1}
    open_ = {"r": 0.1, "low": -0.5, "high": 0.6, "inner": 0.0}
    assert bilinear._slopes({"a": rising, "b": falling, "c": open_}) == (
        "The gain grows with what the line leaves in a (r = +0.80 [0.20, 0.90]; +0.30 without the first and the last "
        "block). The gain falls with what the line leaves in b (r = −0.80 [−0.90, −0.20]; −0.10 without the first and "
        "the last block). The run cannot tell whether it follows what the line leaves in c (r = +0.10 [−0.50, 0.60]; "
        "+0.00 without the first and the last block)."
    )


def test_more_products_are_told_beside_a_teacher_of_as_many():
    ranks = {
        "hidden": {"a": {"16": 0.9, "64": 0.1}},
        "a": {"0": {"16": 0.1, "64": 0.2}, "1": {"16": 0.3, "64": 0.5}, "2": {"16": 0.2, "64": 0.9}},
    }
    assert bilinear._ranks(ranks, 16) == [
        "With 64 products the share recovered is, in the median of the blocks looked at, 0.50 instead of 0.20 in a; of "
        "a teacher of that rank, hidden in noise, the search finds 0.10."
    ]
    assert bilinear._ranks(ranks, 64) == []  # no higher rank was tried
    assert bilinear._ranks(ranks, 32) == []  # the probe's own was not


def test_of_a_planted_branch_it_is_told_what_noise_leaves():
    (said,) = bilinear._power({"a": [{"block": 0, "planted": 0.9, "hidden": 0.5}]})
    assert "recovers 0.90 of it, and 0.50 of it where we add noise of three times its variance." in said
    planted = signature(planted_power).parameters["planted"].default  # the teacher's share of the variance
    assert (1 - planted) / planted == 3


def test_a_gate_may_stay_open_or_close_with_or_without_its_branch():
    def order(gate, gain):
        return {
            "0.001": {"median gate": 1.0, "gain ÷ probe's": 0.5},
            "0.01": {"median gate": gate, "gain ÷ probe's": gain},
        }

    assert bilinear._gate(order(0.4, 0.6)).startswith("No: where the gate closes the branch gains no less.")
    assert bilinear._gate(order(0.4, 0.3)).startswith("Perhaps: where the gate closes the branch gains less.")
    assert bilinear._gate(order(0.9, 0.6)).startswith("The gate does not close in this run.")


# --- 04 rank


def seen(block, r2, median, rank, regime, bands=(0.4, 0.5)):
    values = {"r2": {"value": r2}, "median": {"value": median}, "rank": {"value": rank}}
    without = {"features": [r2, r2 - 0.1], "directions": [r2, r2 - 0.2]}
    return {"block": block, "regime": regime, "bands": list(bands)} | values | without


def test_the_regimes_of_near_linear_blocks():
    blocks = [
        seen(0, 0.97, 0.2, 1.1, "concentrated"),
        seen(1, 0.95, 0.1, 1.3, "concentrated"),
        seen(2, 0.92, 0.9, 9.0, "broad"),
        seen(3, 0.91, 0.9, 1.0, "mixed"),
        seen(4, 0.50, 0.4, 9.0, "below"),
    ]
    results = {"models": {"a": {"blocks": blocks}}, "settings": {"high": 0.9, "counts": [0, 4], "bands": 2}}
    said = rank.sentences(results)[0]
    assert "block 2 is near-linear (R²_lin 0.92) throughout" in said
    assert "blocks 0 and 1 are near-linear (R²_lin 0.95 to 0.97) in hardly more than one loud direction" in said
    assert "the R² of the median feature is 0.10 to 0.20, the effective rank of the outputs 1.1 to 1.3" in said
    assert (
        "block 3 is near-linear (R²_lin 0.91) though the two signs of one loud direction, a low effective rank" in said
    )
    replies = rank.replies(results)
    assert replies[0].endswith("So it is in blocks 0 and 1 of a.")
    assert replies[2] == "The most frequent band lies above the rarest in 0 of 5 blocks of a."
    below = {"models": {"a": {"blocks": blocks[4:]}}, "settings": results["settings"]}
    assert rank.sentences(below)[0] == "No block of a reaches 0.90; the highest R²_lin is 0.50 (block 4)."


def banded(*bands):
    """Results of a model whose blocks have these R² in each band."""
    blocks = [seen(block, 0.5, 0.5, 9.0, "below", of_block) for block, of_block in enumerate(bands)]
    settings = {"high": 0.9, "counts": [0, 4], "bands": len(bands[0])}
    return {"models": {"a": {"blocks": blocks}}, "settings": settings}


@pytest.mark.parametrize(
    ("bands", "shape"),
    [
        (
            [(0.9, 0.6, 0.5, 0.4), (0.7, 0.6, 0.5, 0.6)],
            "falls from 0.80 to 0.50 (… 1 of 2 blocks)",
        ),
        ([(0.4, 0.5, 0.6)], "rises from 0.40 to 0.60 (… 1 of 1 blocks)"),
        (
            [(0.9, 0.6, 0.2, 0.8)] * 2,
            "falls from 0.90 to 0.20 in band 3 and rises to 0.80 (… 2 of 2 blocks)",
        ),
        (
            [(0.3, 0.6, 0.2)],
            "rises from 0.30 to 0.60 in band 2 and falls to 0.20 (… 1 of 1 blocks)",
        ),
        (
            [(0.3, 0.6, 0.2, 0.4)],
            "goes up and down from 0.30 to 0.40, between 0.20 and 0.60 (… 1 of 1 blocks)",
        ),
    ],
)
def test_bands_may_fall_rise_turn_or_do_neither(bands, shape):
    said = rank.sentences(banded(*bands))
    shape = shape.replace("…", "from band to band the same way in")
    assert said[2] == (
        f"From the most frequent tokens to the rarest, in {len(bands[0])} bands, the mean R² over blocks {shape} in a."
    )


def test_over_depth_the_ends_of_a_band_may_lie_above_its_middle():
    first, inner, last = (0.9, 0.9, 0.9), (0.4, 0.5, 0.5), (0.6, 0.9, 0.4)
    said = rank.sentences(banded(first, inner, inner, last))
    assert said[3] == (
        "Over depth the first and the last block both lie above the mean of those between in 2 of 3 bands (by 0.20 or "
        "more) of a."
    )
    assert rank.sentences(banded(inner, first, inner))[3].endswith("in 0 of 3 bands of a.")
    assert len(rank.sentences(banded(first, last))) == 3  # nothing lies between two blocks


# --- 06 compression


def signal(rho, half):
    return {"rho": rho, "low": rho - half, "high": rho + half}


def costed(model=("a",)):
    blocks = [
        {"block": block, "r2": r2, "delta": delta, "low": delta - 1, "high": delta + 1, "ablation": 0.1 * (block + 1)}
        for block, (r2, delta) in enumerate([(0.5, 2.0), (0.9, 3.0), (0.7, 5.0)])
    ]
    rows = [{"block": 0, "rank": rank, "r2": r2} for rank, r2 in ((2, 0.3), (4, 0.4), (8, 0.5))]
    return {name: {"blocks": blocks, "reduced_rank": rows} for name in model}


def compressed(**signals):
    together = {"sum of single costs": {"a": 0.1}, "together, refitted": {"a": 0.3}}
    signals = {"1 − R²": signal(0.0, 0.5), "replace one": signal(0.99, 0.0)} | signals
    return {"models": costed(), "agreements": {"one block": signals}, "together": together}


def test_the_best_signal_stands_alone_or_beside_others():
    best = {"price": signal(0.9, 0.05)}
    alone = compression.sentences(compressed(**best))[0]
    assert alone == (
        "What it costs to put a line in a block's place is told best by the price in the loss: Spearman's ρ with the "
        "cost is 0.90 [0.85, 0.95]; no other interval reaches its own."
    )
    beside = compression.sentences(compressed(residual=signal(0.8, 0.1), **best))[0]
    assert beside.endswith(
        "0.90 [0.85, 0.95]. The interval of the size of the line's error (0.80 [0.70, 0.90]) overlaps with its own."
    )


def test_of_many_signals_as_good_as_the_best_two_are_named_and_the_rest_is_counted():
    rivals = {
        "ablation": signal(0.7, 0.3),
        "residual": signal(0.8, 0.2),
        "CCA bound": signal(0.75, 0.2),
        "block influence": signal(0.5, 0.1),
        "1 − R²": signal(-0.8, 0.1),
    }
    three = compression.sentences(compressed(price=signal(0.9, 0.05), **rivals))[0]
    assert three.endswith(
        "The intervals of the size of the line's error (0.80 [0.60, 1.00]), NBL's bound (0.75 [0.55, 0.95]) and one "
        "more signal overlap with its own."
    )
    del rivals["ablation"]
    two = compression.sentences(compressed(price=signal(0.9, 0.05), **rivals))[0]
    assert two.endswith(
        "The intervals of the size of the line's error (0.80 [0.60, 1.00]) and NBL's bound (0.75 [0.55, 0.95]) overlap "
        "with its own."
    )


def blocks_worth(*worth):
    """A model whose blocks grow more linear one by one, and what their means cost."""
    return {
        "blocks": [
            {"block": block, "r2": 0.1 * block, "ablation": cost, "delta": 1.0, "low": 0.0, "high": 2.0}
            for block, cost in enumerate(worth)
        ],
        "reduced_rank": [],
    }


def test_the_more_linear_blocks_may_be_worth_more_or_less_or_this_may_be_chance():
    more = blocks_worth(0.1, 0.2, 0.3, 0.5, 0.4, 0.6, 0.7)
    less = blocks_worth(0.7, 0.6, 0.4, 0.5, 0.3, 0.2, 0.1)
    chance = blocks_worth(0.1, 0.7, 0.2, 0.6, 0.3, 0.5, 0.4)
    few = blocks_worth(0.1, 0.2, 0.3)
    results = compressed(price=signal(0.9, 0.05)) | {"models": {"a": more, "b": less, "c": chance, "d": more, "e": few}}
    answer = compression.sentences(results)
    what = "R²_lin ranks what a block's mean output costs in its place (mean ablation) at ρ ="
    inner = "without the first and the last block)"
    worth_more = f"+0.96 [0.67, 1.00] (+0.90 {inner} in a and d."
    assert answer[2] == f"The more linear blocks are worth more to the model: {what} {worth_more}"
    worth_less = "−0.96 [−1.00, −0.67] (−0.90"
    assert answer[3].startswith(f"The more linear blocks are worth less to the model: {what} {worth_less}")
    assert answer[4].startswith("This run cannot tell whether the more linear blocks are worth more to the model: ")
    assert answer[4].endswith(f"{inner} in c.")
    assert answer[5] == (
        "In nats per token mean ablation costs 0.70 for block 6 and 0.100 to 0.600 for the others of each of a and d; "
        "0.70 for block 0 and 0.100 to 0.600 for the others of b; 0.70 for block 1 and 0.100 to 0.600 for the others "
        "of c; and 0.30 for block 2 and 0.100 to 0.200 for the others of e."
    )
    assert len(answer) == 6  # of three blocks there is no correlation


def test_r2_may_guide_mislead_or_tell_nothing():
    for rho, half, meaning in (
        (0.8, 0.1, "so the more linear blocks are the cheaper ones."),
        (-0.8, 0.1, "so the more linear blocks are the dearer ones."),
        (0.1, 0.5, "which this run cannot tell from drawing lots."),
    ):
        results = compressed(**{"1 − R²": signal(rho, half), "price": signal(0.9, 0.05)})
        assert compression.sentences(results)[1].endswith(meaning)


def test_the_replies_name_block_rank_and_sum():
    replies = compression.replies(compressed(price=signal(0.9, 0.05)))
    assert (
        replies[0] == "In perplexity that one costs +3.00 [2.00, 4.00] (block 1; one block of 3 would cost more) in a."
    )
    assert replies[1] == "Of R²_lin it loses at most 0.100 of 0.500 (block 0) in a."
    assert replies[2].endswith("costs 0.30 where the single costs add up to 0.10 in a.")


def test_an_encoder_and_a_model_of_one_curve_are_said_of():
    results = compressed(price=signal(0.9, 0.05))
    results["models"]["b"] = {"without": "a loss: it predicts no next token"}
    assert compression.sentences(results)[-1].startswith("b predicts no next token")
    results["models"]["a"]["reduced_rank"] = [{"block": 0, "rank": 8, "r2": 0.5}]
    assert "not measured" in compression.replies(results)[1]


# --- 07 optimisers


def test_the_largest_shortfall_is_over_all_models():
    def trained(*shortfalls):
        ways = {way: [0.5 - shortfall for shortfall in shortfalls] for way in optimisers.WAYS}
        return {"block": [3, 7], "exact": [0.5, 0.5], "condition": [9.0, 2.0]} | ways

    results = {
        "models": {"a": trained(0.1, 0.0), "b": trained(0.0, 0.2)},
        "verdicts": {name: {way: {"outside": 1.0} for way in optimisers.WAYS} for name in "ab"},
        "spearman_condition": dict.fromkeys(optimisers.WAYS, -0.5),
        "compared": 4,
        "steps": 10,
        "studied": {"block": 3, "model": "a", "exact": 0.5},
        "race": {"X, raw": 0.4, "X, standardised": 0.45, "X, whitened": 0.5, "Y, raw": 0.3}
        | {"Y, standardised": 0.4, "Y, whitened": 0.49},
    }
    said = optimisers.sentences(results)
    assert "0.200 by plain gradient descent at the rate 1/λ₁, as its formula foretells (block 7 of b)" in said[0]
    assert "2 by plain gradient descent" in said[1]
    assert "ρ = −0.50 for plain gradient descent" in said[2]
    replies = optimisers.replies(results)
    assert "X comes first with 0.400 on raw inputs and Y last with 0.300" in replies[0]
    assert "0.400 on standardised inputs and 0.490 on whitened inputs" in replies[1]
    assert replies[2].endswith("in 1 of 2 models.")


# --- 08 controls


def test_a_run_without_transplants_and_twins_says_what_it_has():
    results = {
        "outside_fresh": {"a": 1},
        "own": {"a": [0.5, 0.7]},
        "permuted": {"a": [0.8, 0.8]},
        "normal": {"a": [0.1, 0.3]},
    }
    assert len(controls.sentences(results)) == 1
    replies = controls.replies(results)
    assert replies[0].endswith("from 0.60 to 0.80 in a.")
    assert replies[2] == "This run profile leaves the twins out."


def twins(family, text):
    return {
        effect: {"ratio": {"value": value, "low": value - half, "high": value + half}}
        for effect, (value, half) in (("family", family), ("text", text))
    }


def test_twins_may_differ_by_no_more_than_their_seeds():
    assert "which may be the seed alone" not in controls._twins(twins((3.0, 0.5), (1.5, 0.2)))
    assert "two training texts 1.2 [0.8, 1.6] times, which may be the seed alone" in controls._twins(
        twins((3.0, 0.5), (1.2, 0.4))
    )


def test_the_order_of_the_changes_is_sure_where_intervals_are_apart():
    apart = controls._order(twins((1.5, 0.2), (3.0, 0.5)))
    assert apart == (
        "From most to least, with the seed as the unit: another text (3.0), another architecture (1.5), another seed "
        "(1.0)."
    )
    assert controls._order(twins((2.5, 0.5), (3.0, 0.5))).endswith("The intervals of the first two overlap.")


# --- 09 dynamics


def trainings(peak, lags):
    votes = {cut: {"0.9": {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}} for cut, mean in lags.items()}
    return {
        "summary": {"a": {"start": 0.5, "peak": peak, "end": 0.4, "peak_loss": 7.0}},
        "unigram": 6.7,
        "live": {"r2": [[0.5, 0.7], [0.9, 0.9]], "rank": [0.5, 0.1]},
        "votes": votes,
        "settings": {"share": 0.9},
        "leaves": {"a": [5.0, 3.0]},
        "alike": {"leaves, recorded": [0.5, 0.1], "settles, recorded": [0.1, 0.2]},
    }


def test_trainings_without_a_detour_say_so():
    results = trainings(0.505, {"whole run": 1.0})
    assert dynamics.sentences(results)[0].startswith("In none of 1 trainings do the blocks get straighter first")
    assert (
        dynamics.replies(results)[0]
        == "0 of 1 trainings make blocks straighter first, and 1 end below where they began."
    )
    assert dynamics.sentences(trainings(0.9, {"whole run": 1.0}))[0].startswith("In 1 of 1 trainings the blocks first")


def test_r2_may_settle_later_earlier_or_either():
    cases = {
        (1.0, 0.5): "R²_lin settles after the loss, however one counts",
        (-1.0, -0.5): "R²_lin settles before the loss, however one counts",
        (1.0, 0.0): "R²_lin settles after the loss by some ways",
        (-1.0, 0.0): "R²_lin settles before the loss by some ways",
        (1.0, -1.0): "Whether R²_lin settles before or after the loss, the run cannot tell",
        (0.0, 0.0): "Whether R²_lin settles before or after the loss, the run cannot tell",
    }
    for (whole, peak), beginning in cases.items():
        results = trainings(0.9, {"whole run": whole, "from the peak": peak})
        assert dynamics.sentences(results)[2].startswith(beginning)


def test_the_order_of_leaving_is_counted():
    assert dynamics.replies(trainings(0.9, {"whole run": 1.0}))[1] == (
        "The one next to the loss leaves before the one next to the text in 1 of 1 trainings, after it in 0. The "
        "orders of two trainings correlate, on the mean, at +0.50 (recorded)."
    )
    never = trainings(0.9, {"whole run": 1.0}) | {"leaves": {"a": [5.0, None], "b": [None, None], "c": [None, 2.0]}}
    assert "in 1 of 3 trainings, after it in 1." in dynamics.replies(never)[1]


# --- 10 degrees


def test_blocks_that_were_not_probed_are_left_out():
    blocks = [{"block": 0, "r2": [0.5, 0.6, 0.99], "hermite": [0.6]}]
    results = {
        "models": {"a": {"blocks": blocks, "checks": {"0": {"probe": {}, "reach": None}}}},
        "settings": {"share_reached": 0.9},
    }
    said = degrees.sentences(results)
    assert len(said) == 2
    assert "20 % in a; with degree 3 as well, 98 % in a." in said[0]
    assert said[1] == "No number of neurons that was tried reaches 90 % of it."
    loudest = {"loudest": {"sizes": [8, 9, 12]}, "probe": {}}
    results["models"]["a"]["checks"] = {"0": loudest | {"reach": 4}}
    assert degrees.sentences(results)[1].endswith("by the loudest 4, which are all of them, in a.")
    results["models"]["a"]["checks"] = {"0": loudest | {"reach": 1}, "1": loudest | {"reach": 4}}
    assert degrees.sentences(results)[1].endswith("by the loudest 1 to 4 of 4 in a.")
    results["models"]["a"]["checks"] = {"0": {"probe": {}, "reach": None}}
    replies = degrees.replies(results)
    assert replies[0] == "By degree 2 in 0 of 1 blocks of a; by degree 3 in 1 of 1 blocks of a."
    assert replies[1] == "No probe of sixteen products was fitted."
    assert replies[2].endswith("in 0 of 1 blocks of a; its R²_lin differs on the mean by −0.10 in a.")


# --- 11 protocol


def test_one_model_has_no_order_and_a_run_may_leave_choices_out():
    row = {"model": "a", "statement": "spread", "flips": False, "share": 1.0, "alone": ""}
    results = {
        "universes": 8,
        "flips": [row],
        "orders": {"a": 1.0},
        "effects": [
            {"choice": "seq_len", "level": "32", "mean": 0.1, "largest": 0.2},
            {"choice": "loud", "level": "rows out", "mean": -0.2, "largest": -0.3},
        ],
        "settings": {"factors": [8, 16]},
        "statements": {"spread": {"asks": "highest − lowest block", "above": True, "threshold": 0.25}},
    }
    assert protocol.sentences(results) == [
        "The same under all 8 protocols: highest − lowest block above 0.25 (in a).",
        "With one model there is no order of models.",
        "R²_lin itself moves with the protocol, on the mean over blocks most by −0.20 with loud rows out and +0.10 "
        "with sequences of 32 tokens.",
    ]
    row["share"] = 0.0  # the same everywhere, and the other way round
    assert "highest − lowest block not above 0.25 (in a)" in protocol.sentences(results)[0]
    replies = protocol.replies(results)
    assert replies[0] == "This run has not compared the two denominators."
    assert replies[1] == "This run has not compared so few rows with more."
    assert replies[2] == "None of them, in any model of this run."
    results["flips"] = [row | {"flips": True, "share": 0.25, "alone": "rows, split"}]
    said = protocol.sentences(results)[0]
    assert said == (
        "The protocol decides on how far the blocks spread, in a (highest − lowest block above 0.25 under 25 % of them"
        "; the number of rows or the split is enough to turn it)."
    )


def test_an_order_that_holds_under_some_protocols_has_its_share():
    said = protocol._orders({"a > b": 0.75, "b > a": 0.25}, "8")
    assert said == "By mean R²_lin the order of the models is a, then b under 75 % of the 8."


# --- 12 sinks


def swapped(kind, nats, block=2, massive=5):
    return {
        "kind": kind,
        "block": block,
        "massive_rows": massive,
        "nats": nats,
        "nats_low": nats - 0.1,
        "nats_high": nats + 0.1,
    }


def sunk(costs, compared=()):
    return {
        "models": {"a": {"answer": "One block of a has massive rows.", "costs": costs, "blocks": []}},
        "settings": {"counts": [0, 8, 64]},
        "predictions": [{"falls": True}, {"falls": False}],
        "compared": list(compared),
        "planted": [{"massive_rows": 0, "r2": 0.6, "of_all": 0.6}, {"massive_rows": 9, "r2": 0.9, "of_all": -3.0}],
        "planted_costs": [swapped("a", 2.0), swapped("b", 0.05), swapped("d", 0.01)],
    }


def test_the_dearest_mended_block_is_named_where_there_is_one():
    costs = [swapped("a", 1.0), swapped("e", 0.2), swapped("a", 3.0, block=4), swapped("e", 0.3, block=4)]
    assert sinks.sentences(sunk(costs))[1].endswith("first position 0.30 [0.20, 0.40] (block 4) in a.")
    assert len(sinks.sentences(sunk([]))) == 2
    assert len(sinks.sentences(sunk([swapped("a", 1.0, massive=0), swapped("e", 0.2, massive=0)]))) == 2


def test_blocks_with_more_massive_rows_than_the_figure_leaves_out_are_named():
    def block(number, massive, ordinary=0.5):
        return {"block": number, "massive_rows": massive, "r2": 0.9, "r2_ordinary": ordinary}

    results = sunk([])
    results["models"]["a"]["blocks"] = [block(0, 64), block(1, 65), block(2, 1_234, ordinary=0.3)]
    results["models"]["b"] = results["models"]["a"] | {"blocks": [block(3, 200)]}
    assert sinks.sentences(results)[2] == (
        "The figure in which heaviest rows are left out ends at 64 rows, before all massive rows are gone, in blocks "
        "1 and 2 (65 to 1,234 massive rows) of a; and block 3 (200 massive rows) of b. The block with the most, block "
        "2 of a, has an R²_lin of 0.90, and of 0.30 once all are gone."
    )
    results["settings"]["counts"].append(2_000)
    assert not any("figure" in sentence for sentence in sinks.sentences(results))


def test_predictions_that_were_run_are_counted():
    assert sinks.sentences(sunk([]))[-1].endswith("in 1; none of them has been run yet.")
    assert sinks.sentences(sunk([], compared=[{}, {}]))[-1].endswith("in 1; 2 of them have been run.")


def test_whether_leaving_the_rows_to_the_block_mends_the_model():
    assert sinks.replies(sunk([]))[2].startswith("As far as this text can tell, yes: ")
    broken = sunk([]) | {"planted_costs": [swapped("a", 2.0), swapped("b", 2.0), swapped("d", 0.01)]}
    assert sinks.replies(broken)[2].startswith("No: ")


# --- 13 claims


def test_claims_are_counted_in_singular_and_plural():
    def claim(verdict):
        return {"verdict": verdict, "cells": {"a": {"verdict": verdict}, "together": {"verdict": verdict}}}

    verdicts = ["holds here", "does not hold here", "mixed", "mixed"]
    results = {
        "claims": {f"c{i}": claim(verdict) for i, verdict in enumerate(verdicts)},
        "marks": {"holds here": "✓", "does not hold here": "✗", "mixed": "~"},
        "thresholds_moved": {
            "c0": {
                "0.75": {"a": "holds here", "b": "not testable here"},
                "1.0": {"a": "holds here", "b": "not testable here"},
                "1.5": {"a": "mixed", "b": "not testable here"},
            },
            "c1": {},
        },
    }
    assert claims.sentences(results) == [
        "Of 4 claims 1 holds here, 1 does not hold here and 2 are mixed.",
        "*c1* does not hold here; LEDGER.md says what each of these claims is.",
        "At 0.75 times the threshold 0 of 1 verdicts change and at 1.5 times the threshold 1 of 1 verdicts change.",
    ]
    assert claims.replies(results) == ["The board has 2 `~`, 1 `✓`, 1 `✗` for a and all models together."]
    held = {"c0": claim("holds here")}
    assert len(claims.sentences(results | {"claims": held})) == 2
    falsified = {"falsifier-c1": claim("does not hold here")}
    moved = results | {"claims": falsified, "thresholds_moved": {"falsifier-c1": {}}}
    assert claims.sentences(moved)[1].endswith("A falsifier that does not hold speaks for the paper.")


def test_a_claim_that_fails_is_told_by_one_whose_numbers_lie_apart():
    def failed(here, paper):
        cells = {"a": {"value": here[0]}, "b": {"value": here[1]}}
        return {"verdict": "does not hold here", "cells": cells, "paper": {"gpt2": paper}, "threshold": 0.5}

    among, above = failed((0.1, 0.3), 0.2), failed((0.6, 0.7), 0.2)
    assert "*c1*" in claims._elsewhere({"c0": among, "c1": above})
    assert "*c0*" in claims._elsewhere({"c0": among, "c2": among})  # none does: the first
    assert "None of the 1 claims fails here" in claims._elsewhere({"falsifier-c0": above})


def test_claims_are_told_by_kind_and_with_what_a_tick_does_not_say():
    cell = {"cells": {"a": {"verdict": "holds here"}}, "verdict": "holds here"}
    once = {"holds here": 1, "does not hold here": 0, "mixed": 0, "not testable here": 3}
    results = {
        "claims": {"c0": cell, "c1": cell},
        "kinds": ["1 finding of the paper", "1 falsifier"],
        "findings": {"a": once, "b": once | {"holds here": 0}, "together": once | {"mixed": 2}},
        "remarks": ["One tick is not kept without the first and the last block: *c0*.", "*c1* was tried on docs."],
        "marks": {"holds here": "✓", "does not hold here": "✗", "mixed": "~", "not testable here": "–"},
        "thresholds_moved": {},
    }
    first, _, *remarks = claims.sentences(results)
    assert first == "Of 2 claims (1 finding of the paper and 1 falsifier) 2 hold here."
    assert remarks == results["remarks"]
    assert claims.replies(results) == [
        "The board has 2 `✓` for a. The paper's findings alone, which LEDGER.md counts, have 1 `✓` for a; and 2 `~`, "
        "1 `✓` for all models together."
    ]
    assert claims.replies(results | {"findings": {}}) == ["The board has 2 `✓` for a."]


# --- 15 gate


def gated(chosen, rise=0.02):
    """Two blocks, of which the first is the dearer, with the share that was chosen for gate and oracle."""
    costs = []
    for block in (0, 1):
        for kind, share in {
            "gate": chosen,
            "oracle": chosen,
            "lots": chosen / 2,
            "lots, as many": chosen,
            "all": 1,
        }.items():
            row = {
                "block": block,
                "kind": kind,
                "chosen": share,
                "share": share,
                "rise": rise / (1 + block),
                "saved": 0.4,
            }
            ends = {
                "share_low": share - 0.1,
                "share_high": share + 0.1,
                "rise_low": rise - 0.015,
                "rise_high": rise + 0.01,
            }
            costs.append(row | ends)
    share = {"share": chosen, "share_low": chosen - 0.1, "share_high": chosen + 0.1}
    apart = {"share": 0.3, "share_low": 0.25, "share_high": 0.35}
    of_kinds = {"gate": share, "oracle": share, "lots": apart, "gate − lots": apart, "oracle − gate": apart}
    together = share | {"rise": 0.05, "rise_low": 0.04, "rise_high": 0.06, "saved": 0.4}
    model = {
        "costs": costs,
        "mean": of_kinds,
        "dear": of_kinds if chosen < 1 else {},
        "together": together,
        "blocks": [{"told": 0.25}, {"told": 0.5}],
    }
    model["curves"] = [
        {"block": 0, "kind": kind, "share": share, "rise": rise, "rise_low": rise - 0.01, "rise_high": rise + 0.01}
        for kind, factor in (("gate", 1), ("gate, first line", 3))
        for share, rise in ((1.0, 0.1), (0.45, factor * 0.01), (0.1, 0.2))
    ]
    planted = [
        {"case": case, "kind": kind, "share": 0.3, "right": right}
        for case, kind, right in (
            ("told", "gate", 0.95),
            ("told", "lots", 0.52),
            ("untold", "gate", 0.49),
            ("untold", "lots", 0.51),
        )
    ]
    settings = {"limit": 0.01, "published_low": 0.25, "published_high": 0.56}
    return {"models": {"a": model}, "planted": planted, "settings": settings}


def test_gates_are_said_beside_oracle_and_lots():
    said = gate.sentences(gated(0.6))
    assert "a mean over blocks, 60.0 [50.0, 70.0] % of the held-out tokens (least in block 0, 60.0 %) in a" in said[0]
    assert said[0].endswith("arXiv 2603.03459 reports 25 to 56 % for blocks of GPT-2, by a trained gate.")
    apart = "60.0 [50.0, 70.0] %, 30.0 [25.0, 35.0] points above lots and 30.0 [25.0, 35.0] below an oracle"
    assert f"{apart} (2 of 2 blocks) in a. An oracle knows" in said[1]
    assert said[2].endswith(
        "40 % of the multiplications of the two blocks with gates go and perplexity rises by 5.0 [4.0, 6.0] % in a."
    )
    replies = gate.replies(gated(0.6))
    assert replies[0] == (
        "The gate sends to the line 60.0 [50.0, 70.0] % of the tokens (block 0; all of them would cost 2.0 [0.5, 3.0] "
        "%) in a."
    )
    assert replies[2].endswith("0.25 to 0.50 in a.")


def test_where_all_tokens_may_take_the_line_nothing_is_left_to_a_gate():
    assert gate.sentences(gated(1.0))[1] == (
        "All tokens on the line cost no more than 1 % in any block, so nothing is left to a gate."
    )
    asked = dict(gate.questions(gated(1.0)))
    assert "100.0 [90.0, 110.0] %, 100.0 [90.0, 110.0] % and 30.0 [25.0, 35.0] % in a" in "".join(asked.values())


def test_a_model_without_a_next_token_is_named_beside_the_others():
    results = gated(0.6)
    results["models"]["b"] = {"without": "a loss: it predicts no next token"}
    assert gate.sentences(results)[-1].startswith("b predicts no next token")
    assert len(gate.replies(results)) == 3
    alone = {**results, "models": {"b": results["models"]["b"]}}
    assert gate.replies(alone) == [gate.sentences(alone)[0]] * 3


def test_the_gates_cost_at_once_is_held_against_the_sum_of_their_own():
    asked = [answer for _, answer in gate.questions(gated(0.6))]
    assert asked[2] == ("More than their sum: perplexity rises by 5.0 [4.0, 6.0] % where they add up to 3.0 % in a.")
    assert asked[1] == (
        "No: with 45 % of the tokens on it, by the same score, perplexity rises with the line of all ordinary tokens, "
        "against the one fitted anew, by 3.0 [2.0, 4.0] % against 1.0 [0.0, 2.0] % (block 0) in a."
    )
    assert asked[4].endswith(
        "against a half by lots, 95 % against 52 % are straight ones. Where none tells, 49 % against 51 % are."
    )
    assert asked[0].startswith("As far as this text can tell: ")
    assert "It is above 1 % in 1 of 2 blocks (most in block 0, 2.0 [0.5, 3.0] %) in a" in asked[0]
