import dataclasses

import pandas as pd
import pytest
import torch

from helpers.captures import capture_of
from helpers.planted_ranks import (
    broad,
    held_out,
    loud_but_straight,
    one_loud_direction,
    one_loud_feature,
    sample_of,
    sides,
)
from helpers.reference import held_out_r2, least_squares, normal, pooled_r2
from howlinear.core.ceilings import ceiling
from howlinear.errors import InputError
from howlinear.ideas.rank import measure

COUNTS = [0, 1, 3]


def seen(sample, **options):
    return measure.measure_block(capture_of(sample), sample.token[~sample.test], COUNTS, **options)


def uneven(n=1_280):
    """Bent at position 0, on one token and far out: tokens 0 … 6 turn with the rows, positions 0 … 15."""
    sample = broad(n)
    y = sample.y.clone()
    y[sample.position == 0] *= 4 * sample.x[sample.position == 0, :1]
    y[sample.token == 6] *= sample.x[sample.token == 6, 1:2]
    return dataclasses.replace(sample, y=y)


def test_every_side_equals_its_sum_over_rows():
    sample = uneven()
    found, expected = seen(sample, heavy=0.05), ceiling(*sides(sample))
    train, test = (pick_rows(sample, sample.test == side) for side in (False, True))
    weight, bias, _ = least_squares(*train)
    rows = held_out(sample)

    def r2_of(mask):
        return pooled_r2(rows.x[mask], rows.y[mask], weight, bias)

    whole = r2_of(rows.fold >= 0)
    assert (found.r2.value, found.r2.low) == pytest.approx((expected.r2, expected.r2_low), abs=1e-10)
    assert found.features[0].value == found.r2.value
    assert found.directions[0].value == pytest.approx(found.r2.value, abs=1e-10)

    later = rows.position > 0
    assert found.columns["rise_without_first"] == pytest.approx(r2_of(later) - whole, abs=1e-9)
    later_train = pick_rows(sample, ~sample.test & (sample.position > 0))
    later_test = (test[0][later], test[1][later])
    difference = held_out_r2(later_train, later_test) - held_out_r2(train, later_test)
    assert found.columns["rise_refitted_without_first"] == pytest.approx(difference, abs=1e-9)
    assert difference > 0
    assert found.columns["rise_without_first"] > 0.05

    design = torch.cat([train[0].double(), torch.ones(len(train[0]), 1).double()], 1)
    reach = torch.cat([rows.x.double(), torch.ones(len(rows.x), 1).double()], 1)
    leverage = (reach @ torch.linalg.inv(design.T @ design) * reach).sum(1)
    top = torch.zeros(len(leverage), dtype=torch.bool)
    top[leverage.topk(round(0.05 * len(leverage))).indices] = True
    y, error = rows.y.double(), rows.y.double() - rows.x.double() @ torch.tensor(weight) - torch.tensor(bias)
    spread = (y - y.mean(0)).square().sum(1)
    assert found.columns["rise_without_heaviest"] == pytest.approx(r2_of(~top) - whole, abs=1e-9)
    assert found.columns["heavy_variance"] == pytest.approx((spread[top].sum() / spread.sum()).item(), abs=1e-9)
    share_of_error = (error[top].square().sum() / error.square().sum()).item()
    assert found.columns["heavy_error"] == pytest.approx(share_of_error, abs=1e-9)
    assert share_of_error > 0.06


def pick_rows(sample, mask):
    return sample.x[mask], sample.y[mask]


def test_the_bent_token_shows_in_its_own_band():
    x = normal(3_200, 12)
    token = torch.where(torch.arange(3_200) % 3 == 0, 1, 0)  # token 0 has two thirds of the rows, token 1 one
    y = x @ normal(12, 12, seed=1)
    y[token == 1] += 9 * x[token == 1, :1].square()
    sample = dataclasses.replace(sample_of(x, y), token=token)
    frequent, rare = seen(sample, bands=2).bands
    assert frequent.low > rare.high
    weight, bias, _ = least_squares(*pick_rows(sample, ~sample.test))
    for value, which in ((frequent, 0), (rare, 1)):
        mask = sample.test & (sample.token == which)
        assert value.value == pytest.approx(pooled_r2(*pick_rows(sample, mask), weight, bias), abs=1e-9)


@pytest.mark.parametrize(
    ("plant", "word", "carried_by"),
    [
        (broad, "broad", []),
        (one_loud_feature, "concentrated", ["features", "directions"]),
        (one_loud_direction, "mixed", ["directions"]),
        (loud_but_straight, "mixed", []),
    ],
)
def test_planted_blocks_get_their_word_and_lose_what_is_loud(plant, word, carried_by):
    found = seen(plant())
    assert found.r2.low > 0.9
    assert found.regime() == word
    assert found.regime(high=1.0) == "below"
    is_broad = word == "broad"
    columns = found.columns
    assert (found.rank.high < 1.1) == (columns["first_share"] > 0.9) == (columns["rank_90"] == 1) == (not is_broad)
    assert (found.median.value > 0.9) == (word != "concentrated")
    for axis in ("features", "directions"):
        _, without_loudest, _ = getattr(found, axis)
        assert (without_loudest.value < 0.03) == (axis in carried_by)
        assert (without_loudest.value > 0.9) == (axis not in carried_by)
    assert columns["predicted_rank"] <= found.rank.value + 0.05
    assert columns["rank_90"] <= columns["rank_95"]


@pytest.mark.parametrize(("plant", "loud_axis"), [(one_loud_feature, "features"), (one_loud_direction, "directions")])
def test_single_outputs_show_the_loud_one_where_it_is_one(plant, loud_axis):
    sample = plant()
    outputs = measure.single_outputs(capture_of(sample))
    assert outputs.groupby("axis", sort=False).size().to_dict() == {"features": 12, "directions": 12}
    along = outputs[outputs["axis"] == loud_axis]
    loudest = along.loc[along["share"].idxmax()]
    assert loudest["share"] > 0.99
    assert loudest["r2"] > 0.99
    assert along["r2"].median() < 0.1

    # a loud direction hides in mixed features
    others = outputs[outputs["axis"] != loud_axis]
    assert (others["r2"].median() > 0.9) == (loud_axis == "directions")

    # every axis splits the same variance and the same error
    pooled = seen(sample).r2.value
    for _, mine in outputs.groupby("axis"):
        assert mine["share"].sum() == pytest.approx(1)
        assert 1 - ((1 - mine["r2"]) * mine["share"]).sum() == pytest.approx(pooled, abs=1e-6)


def test_an_output_that_does_not_vary_is_no_single_output():
    sample = broad()
    y = sample.y.clone()
    y[:, 3] = 2.0
    outputs = measure.single_outputs(capture_of(dataclasses.replace(sample, y=y)))
    assert (outputs["axis"] == "features").sum() == 11
    assert outputs["r2"].notna().all()


def test_more_bands_than_the_rows_can_fill_are_refused():
    sample = dataclasses.replace(broad(640), token=torch.zeros(640).long())
    with pytest.raises(InputError, match="sampled rows is of the kind that is asked for"):
        seen(sample)


@pytest.mark.parametrize("heavy", [0.0, 1.0])
def test_a_share_that_is_none_is_refused(heavy):
    with pytest.raises(InputError, match=f"between 0 and 1, got {heavy}"):
        seen(broad(640), heavy=heavy)


def test_tables_hold_every_number_once():
    views = {("one", 0): seen(broad(640)), ("one", 3): seen(one_loud_feature(640)), ("two", 0): seen(broad(1_280))}
    blocks = measure.block_table(views)
    assert list(blocks["model"]) == ["one", "one", "two"]
    assert list(blocks["block"]) == [0, 3, 0]
    assert list(blocks["regime"]) == ["broad", "concentrated", "broad"]
    loud = views["one", 3]
    row = blocks.iloc[1]
    assert tuple(row[["median_r2", "median_r2_low", "median_r2_high"]]) == (
        loud.median.value,
        loud.median.low,
        loud.median.high,
    )
    assert {name: row[name] for name in loud.columns} == loud.columns

    rest = measure.loudest_table(views, COUNTS)
    assert len(rest) == 3 * 2 * len(COUNTS)
    (found,) = rest.query("model == 'one' and block == 3 and axis == 'directions' and left_out == 1")["r2"]
    assert found == loud.directions[1].value

    bands = measure.band_table(views)
    assert len(bands) == 3 * 4
    (frequent,) = bands.query("model == 'two' and band == 1")["r2_low"]
    assert frequent == views["two", 0].bands[0].low


def test_ranks_of_maps_are_summed_up_by_model_and_a_map_that_explains_nothing_has_none():
    numbers = {"r2": [0.9, 0.5, -0.1], "rank_90": [1, 7, None], "rank_95": [2, 9, None]}
    ranks = {"predicted_rank": [1.0, 2.0, 9.0], "effective_rank": [4.0, 5.0, 60.0]}  # medians, not means
    found = measure.reduced_table(pd.DataFrame({"model": "tiny"} | ranks | numbers)).loc["tiny"]
    assert found.tolist() == pytest.approx([4.0, 5.5, 2.0, 5.0, 1.0, 7.0, -1.0])
    found = seen(broad(640))
    nothing = dataclasses.replace(found, columns=found.columns | {"rank_90": None, "rank_95": None})
    assert measure.block_table({("m", 0): nothing})["rank_90"].isna().all()


@pytest.mark.parametrize(
    ("r2", "shape"),
    [
        ([0.8, 0.6, 0.5], "falls"),
        ([0.4, 0.5, 0.6], "rises"),
        ([0.9, 0.6, 0.2, 0.8], "falls, then rises"),
        ([0.3, 0.6, 0.2], "rises, then falls"),
        ([0.3, 0.6, 0.2, 0.4], "goes up and down"),
    ],
)
def test_bands_may_fall_rise_turn_or_do_neither(r2, shape):
    assert measure.band_shape(r2) == shape


def banded(*models):
    """Three bands of each block of each model."""
    rows = [
        {"model": model, "block": block, "band": band, "r2": r2, "r2_low": r2 - 0.1, "r2_high": r2 + 0.1}
        for model, blocks in zip("ab", models, strict=False)
        for block, bands in enumerate(blocks)
        for band, r2 in enumerate(bands, start=1)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("regimes", "verdict"),
    [
        (["below", "below", "below"], "no near-linear block"),
        (["below", "broad", "broad"], "only broad"),
        (["concentrated", "below", "below"], "only concentrated"),
        (["broad", "below", "concentrated"], "both regimes"),
        (["broad", "mixed", "below"], "signs disagree"),
    ],
)
def test_a_models_verdict_follows_from_its_near_linear_blocks(regimes, verdict):
    blocks = pd.DataFrame({"model": "a", "block": range(3), "regime": regimes, "effective_rank": [3.0, 2.0, 9.0]})
    blocks = blocks.assign(r2=0.9, median_r2=[0.7, 0.6, 0.8])
    bands = banded([(0.9, 0.5, 0.6), (0.9, 0.8, 0.4), (0.9, 0.8, 0.7)])
    (found,) = measure.verdict_table(blocks, bands).to_dict("records")
    assert (found["verdict"], found["band_shape"]) == (verdict, "falls")
    assert found["rho"] == pytest.approx(-1)
    assert list(measure.with_band_shapes(blocks, bands)["band_shape"]) == ["falls, then rises", "falls", "falls"]


def test_carriers_are_means_over_blocks_and_certainties_are_counts():
    plain, loud = seen(broad(640)), seen(one_loud_feature(640))
    views = {("both", 0): plain, ("both", 1): loud, ("alone", 0): loud}
    blocks, rest, bands = measure.block_table(views), measure.loudest_table(views, COUNTS), measure.band_table(views)
    means = measure.carrier_table(blocks, rest, bands)
    assert list(means.index) == ["both", "alone"]
    both = (plain.features[-1].value + loud.features[-1].value) / 2
    assert means.loc["both", "R² without 3 features"] == pytest.approx(both)
    assert means.loc["alone", "R² on rare tokens"] == pytest.approx(loud.bands[-1].value)
    assert means.loc["alone", "rise without position 0"] == pytest.approx(loud.columns["rise_without_first"])


def test_a_difference_is_sure_where_its_intervals_are_apart():
    blocks = pd.DataFrame({"model": "a", "block": range(3), "predicted_rank_high": [3.0, 3.0, 9.0]})
    blocks = blocks.assign(effective_rank_low=8.0)
    counts = measure.certainty_table(blocks, banded([(0.9, 0.7, 0.5), (0.8, 0.7, 0.65), (0.4, 0.5, 0.7)]))
    assert counts.loc["a"].to_dict() == {"frequent above rare": 1, "rare above frequent": 1, "predictions narrower": 2}
