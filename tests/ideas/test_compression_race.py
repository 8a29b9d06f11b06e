"""A race: the columns, the budget, and what a compressor may not do."""

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.unit_rows import short_rows
from howlinear.errors import InputError
from howlinear.ideas.compression.allocate import least_share
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compress import compress
from howlinear.ideas.compression.own_units import layout, own_units
from howlinear.ideas.compression.race import (
    COMPRESSORS,
    WHAT,
    check_shares,
    choose_shares,
    fitted_on,
    limits,
    race,
    racers,
    ratios,
    whole_perplexities,
)
from howlinear.instrument.perplexity import change, losses, perplexity
from howlinear.models.layers import parameters
from howlinear.models.replace import copy_of

pytestmark = pytest.mark.long

OVER = ["over_first", "over_first_low", "over_first_high"]


def test_a_race_of_all_racers(model, rows):
    """Every one finishes, within its budget; what it says of a copy is the copy's perplexity."""
    calibration = Calibration(model, rows, priced=4)
    texts = {"one": rows, "other": rows.subset(torch.arange(len(rows.ids) - 1))}
    table = race(model, racers(calibration, list(COMPRESSORS)), [0.9, 0.7], texts)
    assert list(table["method"].unique()) == list(COMPRESSORS)
    assert len(table) == len(COMPRESSORS) * 2 * 2
    assert (table["kept"] <= table["share"] + 1e-4).all()
    assert (table["ratio_low"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["ratio_high"]).all()
    before = whole_perplexities(model, texts).set_index("corpus")["perplexity"]
    np.testing.assert_allclose(table["ratio"], table["perplexity_after"] / table["corpus"].map(before))
    flap = table[(table["method"] == "FLAP") & (table["share"] == 0.7)].set_index("corpus")
    smaller = COMPRESSORS["FLAP"](calibration, 0.7)
    for name, text in texts.items():
        assert flap["perplexity_after"][name] == pytest.approx(perplexity(smaller, text), rel=1e-6)
        assert before[name] == pytest.approx(perplexity(model, text), rel=1e-6)
        delta = change(losses(model, text), losses(smaller, text), text.fold[text.test])
        assert flap.loc[name, ["delta", "delta_low", "delta_high"]].tolist() == pytest.approx(
            [delta.delta, delta.low, delta.high], rel=1e-4
        )
    assert flap["kept"]["one"] == parameters(smaller) / parameters(model)


def test_every_copy_stands_beside_the_first_compressors(gpt2, rows):
    """The ratio of two ratios, and narrower than either where both move alike."""
    calibration = Calibration(gpt2, rows, priced=4)
    table = race(gpt2, racers(calibration, ["magnitude", "Wanda"]), [0.9, 0.7], {"text": rows})
    for share in (0.9, 0.7):
        first, second = (row for _, row in table[table["share"] == share].iterrows())
        assert [first[column] for column in OVER] == [1, 1, 1]
        assert second["over_first"] == pytest.approx(second["ratio"] / first["ratio"])
        assert second["over_first_low"] < second["over_first"] < second["over_first_high"]


def test_who_made_none_says_why_and_has_nobody_beside(gpt2, rows):
    magnitude = racers(Calibration(gpt2, rows), ["magnitude"])["magnitude"]

    def timid(share):
        if share < 0.8:
            raise InputError("too small for me")
        return magnitude(share)

    table = race(gpt2, {"timid": timid, "magnitude": magnitude}, [0.9, 0.7], {"text": rows})
    small = table[table["share"] == 0.7]
    assert small["why"].tolist() == ["too small for me", ""]
    assert small["ratio"].isna().tolist() == [True, False]
    assert small["kept"].isna().tolist() == [True, False]
    assert small[OVER].isna().all().all()
    assert (table[table["share"] == 0.9][OVER] == 1).all().all()


def test_who_keeps_too_much_is_named(gpt2, rows):
    with pytest.raises(InputError, match="cheat leaves"):
        race(gpt2, {"cheat": lambda _: copy_of(gpt2)}, [0.9], {"text": rows})


def test_unknown_racers(gpt2, rows):
    with pytest.raises(InputError, match="no compressor is called nobody"):
        racers(Calibration(gpt2, rows), ["nobody"])


def test_ratios_side_by_side():
    rows = [("m", "a", 0.9, 1.1), ("m", "a", 0.8, 1.2), ("m", "b", 0.9, 1.3), ("n", "a", 0.9, 1.4)]
    wide = ratios(pd.DataFrame(rows, columns=["model", "method", "share", "ratio"]))
    assert list(wide.index) == ["a", "b"]
    assert wide.loc["a"].to_dict() == {("m", 0.9): 1.1, ("m", 0.8): 1.2, ("n", 0.9): 1.4}
    assert np.isnan(wide.loc["b", ("m", 0.8)])


def test_shares_are_those_that_a_model_can_keep(gpt2):
    """Of the tiny model a little more than a fifth lies outside its blocks."""
    least = least_share(gpt2)
    assert choose_shares(gpt2, [0.9, least + 0.01, least - 0.01]) == [0.9, least + 0.01]
    (halfway,) = choose_shares(gpt2, [least / 2])
    assert halfway == pytest.approx((1 + least) / 2, abs=1e-3)
    compress(gpt2, short_rows(), halfway)
    for shares in ([], [1.0], [0.5, 0.0]):
        with pytest.raises(InputError, match="give at least one between 0 and 1"):
            check_shares(shares)


# --- why own units cost what they cost: each number on the text it is of


def test_the_side_fitted_on_is_judged_as_if_held_out(more_rows):
    seen = fitted_on(more_rows, 10**6)
    assert torch.equal(seen.ids, more_rows.ids[~more_rows.test])
    assert torch.equal(seen.fold, more_rows.fold[~more_rows.test])
    assert seen.test.all()
    few = fitted_on(more_rows, 200)
    assert few.fold.unique().tolist() == [0, 1, 2]
    assert few.ids.numel() <= 200


def test_each_number_is_of_its_own_copy_and_text(gpt2, more_rows):
    calibration = Calibration(gpt2, more_rows, priced=4)
    raced = race(gpt2, racers(calibration, ["own units"]), [0.9, 0.8], {"held out": more_rows})
    fewer = more_rows.thinned(more_rows.count // 2)
    found = limits(gpt2, more_rows, calibration, [0.9, 0.8], more_rows, raced, [fewer])
    half = Calibration(gpt2, fewer, 4)
    names = [*WHAT, f"held out, fitted on {half.ids.numel():,} rows"]
    assert found["what"].tolist() == [*names, *names]
    of_share = found[found["share"] == 0.8].set_index("what")
    price = layout(calibration, 0.8).price
    assert of_share["ratio"][WHAT[0]] == pytest.approx(np.exp(price))
    assert of_share.loc[WHAT[0], ["ratio_low", "ratio_high"]].isna().all()

    def ratio(calibrated, side):
        ids = more_rows.ids[side]
        return float((losses(own_units(calibrated, 0.8), ids) - losses(gpt2, ids)).mean().exp())

    assert len(half.ids) < 0.6 * len(calibration.ids)
    assert of_share["ratio"][WHAT[1]] == pytest.approx(ratio(calibration, ~more_rows.test), rel=1e-6)
    assert of_share["ratio"][WHAT[2]] == pytest.approx(ratio(calibration, more_rows.test), rel=1e-6)
    assert of_share["ratio"][names[3]] == pytest.approx(ratio(half, more_rows.test), rel=1e-6)
