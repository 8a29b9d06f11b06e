"""Why own units cost what they cost: each number on the text it is of."""

import numpy as np
import pytest
import torch

from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.own_units import layout, own_units
from howlinear.ideas.compression.race import WHAT, after, fitted_on, limits, race, racers
from howlinear.instrument.perplexity import losses

pytestmark = pytest.mark.long

OURS = "own units"


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
    raced = race(gpt2, racers(calibration, [OURS]), [0.9, 0.8], {"held out": more_rows})
    fewer = more_rows.thinned(more_rows.count // 2)
    found = limits(gpt2, more_rows, calibration, [0.9, 0.8], more_rows, raced, [fewer])
    half = Calibration(gpt2, fewer, 4)
    names = [*WHAT, after(half.ids.numel())]
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
