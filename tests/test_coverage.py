"""Intervals hold what they claim to hold, and would not if rows were taken as independent: few replicates, seeded.

`make bench-coverage` does the same with many replicates, for every kind of interval and case.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import coverage as simulation
from howlinear.core.ceilings import ceiling
from howlinear.core.moments import Moments
from howlinear.files import numbers

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("unchecked"),  # thousands of small calls: checking shapes takes most of the time
]

REPLICATES = 30
FEWEST = 25  # of 30 that hold: fewer than 4 in 1,000 times, if each holds with 95 %


def held(estimates):
    """How many of the intervals hold the mean over replicates."""
    truth = np.mean([number.value for number in estimates])
    return sum(number.low <= truth <= number.high for number in estimates)


def intervals_of_r2(case, dealt):
    """R²_lin of many samples of documents; folds of whole documents, or of rows dealt in turn."""
    estimates = []
    for replicate in range(REPLICATES):
        generator = np.random.default_rng([5, replicate])
        sides = []
        for name in ("train", "test"):
            folds = simulation.side(case, generator, name)
            if dealt:
                x, y = (torch.cat(parts) for parts in zip(*folds, strict=True))
                folds = [(x[fold :: simulation.FOLDS], y[fold :: simulation.FOLDS]) for fold in range(simulation.FOLDS)]
            sides.append([Moments(x.shape[1], y.shape[1]).update(x, y) for x, y in folds])
        estimates.append(ceiling(*sides).interval)
    return estimates


@pytest.fixture
def close(monkeypatch):
    """Rows of a document go together even more."""
    monkeypatch.setattr(simulation, "TOGETHER", 0.8)


@pytest.mark.usefixtures("close")
@pytest.mark.parametrize("case", ["correlated", "massive"])
def test_r2_is_held_where_rows_of_a_document_go_together(case):
    assert held(intervals_of_r2(case, dealt=False)) >= FEWEST


@pytest.mark.usefixtures("close")
def test_r2_is_not_held_if_folds_cut_documents():
    """What the test above would find if the jackknife left out rows."""
    assert held(intervals_of_r2("correlated", dealt=True)) < FEWEST


def share_held(group, case, replicates):
    """Name → share of the intervals that hold the mean over replicates."""
    found = simulation.measurements(simulation.KINDS[group], case, replicates)
    return {name: held(estimates) / len(estimates) for name, estimates in found.items()}


def test_a_change_of_perplexity_is_held_only_if_documents_are_left_out_whole():
    for case in ("iid", "correlated"):
        found = share_held("losses", case, 200)
        assert 0.91 <= found["ΔPPL"] <= 0.99
        assert found["loss recovered"] >= 0.91
        naive = found["ΔPPL, leaving out single sequences"]
        assert naive >= 0.91 if case == "iid" else naive < 0.90


def test_profiles_agreement_is_held():
    found = share_held("profiles", "correlated", 15)
    assert min(found.values()) >= 12 / 15


def dealt_in_turn(kept):
    """The same capture with folds of rows dealt in turn, which cut documents."""
    sample = kept.sample
    fold = torch.empty_like(sample.fold)
    for side in (False, True):
        rows = (sample.test == side).nonzero()[:, 0]
        fold[rows] = torch.arange(len(rows)) % simulation.FOLDS
    return replace(kept, sample=replace(sample, fold=fold))


@pytest.mark.usefixtures("close")
def test_r2_of_features_and_of_kernels_is_held_if_folds_do_not_cut_documents(monkeypatch):
    whole = share_held("degrees", "correlated", REPLICATES)
    assert min(whole.values()) >= FEWEST / REPLICATES
    captured = simulation.captured
    monkeypatch.setattr(simulation, "captured", lambda *args, **block: dealt_in_turn(captured(*args, **block)))
    cut = share_held("degrees", "correlated", REPLICATES)
    assert max(cut.values()) < FEWEST / REPLICATES


@pytest.mark.parametrize("case", ["iid", "heavy"])
def test_a_shortfall_is_held(case):
    """Not where each document has one massive row, as its docstring says."""
    assert share_held("training", case, REPLICATES)["trained map: shortfall"] >= FEWEST / REPLICATES


def test_a_vote_is_held_only_if_runs_are_independent(monkeypatch):
    assert share_held("runs", "iid", 1_000)["vote of 15 runs: mean"] >= 0.93
    monkeypatch.setattr(simulation, "TOGETHER", 0.9)
    assert share_held("runs", "correlated", 1_000)["vote of 15 runs: mean"] < 0.89


def test_coverage_by_hand():
    intervals = [simulation.Estimate(0.0, low, low + 1) for low in (-2.0, -0.9, -0.5, 0.1)]
    found = simulation.coverage(intervals, 0.0)
    assert (found["coverage"], found["all above"], found["all below"]) == (0.5, 0.25, 0.25)
    assert found["half width"] == 0.5


@pytest.mark.parametrize("group", simulation.KINDS)
def test_every_kind_that_is_on_record_can_be_simulated_again(group):
    recorded = {row["interval"] for row in numbers.load(simulation.OUT)["rows"]}
    assert set(simulation.KINDS[group].measure("correlated", np.random.default_rng(1))) <= recorded
