"""Notebook 00: its numbers beside the package's, and what its pictures show."""

import jupytext
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from helpers.reference import normal
from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.ideas.by_hand import POINTS, QUANTILES, SLICES, cloud, toy_neuron

pytestmark = pytest.mark.long

STEM = "00_by_hand"


# --- the notebook


@pytest.fixture(scope="module")
def cells():
    return [cell for cell in jupytext.read(paths.NOTEBOOKS / f"{STEM}.py").cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def ran(cells, tmp_path_factory):
    """What the names of the notebook hold after all its cells, run on profile smoke."""
    folder = tmp_path_factory.mktemp("by_hand")
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "results", lambda profile: folder / profile)
        patch.setattr(paths, "figures", lambda profile: folder / profile)
        for cell in cells:
            exec(cell.source.replace('profile = "minis"', 'profile = "smoke"'), names)
    plt.close("all")
    return names


def test_by_hand_and_the_package_agree_to_three_digits_block_by_block(ran):
    by_hand, measured = ran["r2"], ran["measured"]
    assert list(by_hand) == list(measured) == list(range(12))
    for block, ceiling in measured.items():
        assert by_hand[block] == pytest.approx(ceiling.r2, abs=5e-4)
        assert ran["in_sample"][block] == pytest.approx(ceiling.r2_train, abs=5e-4)
    assert len(set(np.round(list(by_hand.values()), 3))) > 6  # the blocks differ, so that agreeing says something


def test_what_is_planted_is_found_and_what_is_shuffled_is_not(ran):
    assert ran["planted"] == pytest.approx(1, abs=1e-6)
    assert -0.5 < ran["nonsense"] < 0.01


# --- the cloud


def column(values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_slices_of_a_cloud_by_hand():
    """Twenty points of y = x², dealt in any order: the first slice holds 0 and 1, the last 18 and 19."""
    across = column([float(place) for place in torch.randperm(20)])
    table = cloud(across, across.square(), 2 * across)
    assert len(table) == 20
    slices = table[["middle", "mean"]].drop_duplicates().sort_values("middle")
    assert len(slices) == SLICES
    assert slices.iloc[0].tolist() == [0.5, 0.5]
    assert slices.iloc[-1].tolist() == [18.5, (18**2 + 19**2) / 2]
    pd.testing.assert_series_equal(table["line"], 2 * table["across"], check_names=False)


def test_a_cloud_keeps_so_many_points_and_its_slices_are_of_all_rows():
    x = normal(5_000, 1)
    few, many = (cloud(x, x.square(), x, most=most) for most in (100, 5_000))
    assert len(few) == 100
    assert set(few["mean"]) <= set(many["mean"])


def test_equal_places_are_dealt_to_slices_all_the_same():
    table = cloud(torch.zeros(20, 1).double(), column([0.0, 1.0] * 10), torch.zeros(20, 1).double())
    assert set(table["across"]) == {0.0}


def test_a_cloud_of_too_few_rows_is_refused():
    with pytest.raises(InputError, match="9 rows for 10 slices"):
        cloud(torch.zeros(9, 1), torch.zeros(9, 1), torch.zeros(9, 1))


# --- the toy neuron


def test_the_points_lie_as_a_normal_distribution_does():
    assert len(QUANTILES) == POINTS
    assert QUANTILES.mean() == pytest.approx(0, abs=1e-12)
    assert QUANTILES.std() == pytest.approx(1, abs=0.02)


def test_a_neuron_without_bend_is_a_line_of_half_the_slope():
    toy = toy_neuron(0.0, 2.0, 1.0)
    assert toy.r2 == pytest.approx(1, abs=1e-12)
    assert toy.points["line"].tolist() == pytest.approx((toy.points["x"] / 2).tolist(), abs=1e-12)


def test_a_sharp_bend_is_relu_whose_r2_is_known():
    """Of max(x, 0) for a normal x: covariance 1/2, variance 1/2 − 1/2π, so R² is (1/4) / (1/2 − 1/2π)."""
    exact = 0.25 / (0.5 - 0.5 / np.pi)
    assert toy_neuron(1_000.0, 1.0).r2 == pytest.approx(exact, abs=0.02)


def test_only_the_product_of_bend_and_width_counts_in_the_middle():
    assert toy_neuron(6.8, 0.25).r2 == pytest.approx(toy_neuron(1.7, 1.0).r2, abs=1e-12)
    assert toy_neuron(1.7, 0.25).r2 > toy_neuron(1.7, 1.0).r2 + 0.1


def test_a_bend_that_no_input_reaches_does_not_count():
    assert toy_neuron(8.0, 0.5, 3.0).r2 > 0.9999
    assert toy_neuron(8.0, 0.5).r2 < 0.8


@pytest.mark.parametrize(("bend", "width"), [(-0.1, 1.0), (1.0, 0.0), (1.0, -1.0)])
def test_no_neuron_bends_backwards_or_sees_nothing(bend, width):
    with pytest.raises(InputError, match="give a bend of 0 or more and a width above 0"):
        toy_neuron(bend, width)
