"""Readouts fitted once more where they stand: against ridge regression on rows, and on planted losses."""

import pytest
import torch

from helpers.captures import streams_behind
from helpers.families import reads, small
from helpers.unit_rows import seen, weighted_rows
from howlinear.core.moments import Moments
from howlinear.ideas.compression.allocate import costs_of, has_constant
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.own_units import ANCHOR_RIDGES, anchor, before_anchor, fit_correction
from howlinear.ideas.compression.units import ErrorCost, root_of
from howlinear.ideas.compression.units import weighted_rows as rows_with_weights
from howlinear.models.ffn_sites import sites
from howlinear.models.replace import copy_of
from howlinear.models.units import affine_of, unit_layers
from howlinear.text.rows import TokenRows

pytestmark = pytest.mark.long


def readout_of(model, block):
    return affine_of(unit_layers(model, sites(model)[block])[-1])


def blocks_of(model):
    return {site.block: site.output for site in sites(model)}


def alike(model, rows):
    """A calibration by which every error counts alike."""
    calibration = Calibration(model, rows)
    width = model.config.hidden_size
    calibration.memory["costs_of",] = {
        site.block: ErrorCost(torch.eye(width, dtype=torch.float64), torch.ones(32, dtype=torch.float64))
        for site in sites(model)
    }
    return calibration


def on_rows(h, r, weight, ridge, centred):
    """Weights and constant of the weighted ridge regression of r on h."""
    share = (weight / weight.sum())[:, None]
    mean_h, mean_r = (share * h).sum(0), (share * r).sum(0)
    if not centred:
        mean_h, mean_r = torch.zeros_like(mean_h), torch.zeros_like(mean_r)
    gram = (h - mean_h).T @ (share * (h - mean_h))
    change = torch.linalg.solve(gram + ridge * gram.diagonal().diag(), (h - mean_h).T @ (share * (r - mean_r)))
    return change, mean_r - mean_h @ change


def chosen_on_rows(h, r, weight, metric, centred):
    """The change that a fit to each half, judged on the other, tells; None where none is better."""
    first, second = slice(0, len(h) // 2), slice(len(h) // 2, None)
    costs = []
    for ridge in ANCHOR_RIDGES:
        cost = 0.0
        for fitted, judged in ((first, second), (second, first)):
            change, constant = on_rows(h[fitted], r[fitted], weight[fitted], ridge, centred)
            share = (weight[judged] / weight[judged].sum())[:, None]
            left = (r[judged] - h[judged] @ change - constant) @ root_of(metric)
            cost += float((share * (left**2 - (r[judged] @ root_of(metric)) ** 2)).sum())
        costs.append(cost)
    best = costs.index(min(costs))
    if costs[best] >= 0:
        return None
    return on_rows(h, r, weight, ANCHOR_RIDGES[best] / 2, centred)


def test_every_change_is_a_ridge_regression_on_what_the_finished_copy_gives(model, more_rows):
    """Of every block by rows: the units that it was fitted on are those that the finished copy has."""
    calibration = Calibration(model, more_rows, priced=4)
    before = before_anchor(calibration, 0.7)
    with torch.no_grad():
        for site in sites(before):
            unit_layers(before, site)[-1].weight.mul_(0.5)  # so that there is something to give back
    copy = copy_of(before)
    anchor(calibration, blocks_of(copy))
    inside = seen(copy, calibration.ids)
    is_now, was = (streams_behind(each, calibration.ids) for each in (copy, model))
    changed = 0
    for site in sites(copy):
        block = site.block
        start, now = readout_of(before, block), readout_of(copy, block)
        h = inside[block]["h"]
        centred = has_constant(model, sites(model)[block])
        without_change = start(h) - now(h)  # what the change gave is taken back
        intended, reached = (streams[block].flatten(0, -2).double() for streams in (was, is_now))
        r = intended - reached - without_change
        metric = costs_of(calibration)[block].metric
        chosen = chosen_on_rows(h, r, weighted_rows(calibration, block), metric, centred)
        if chosen is None:
            assert torch.equal(now.weight, start.weight)
            continue
        changed += 1
        scale = float(chosen[0].abs().max())
        torch.testing.assert_close(now.weight - start.weight, chosen[0], rtol=1e-2, atol=1e-3 * scale + 1e-6)
        if centred:
            torch.testing.assert_close(now.bias - start.bias, chosen[1], rtol=1e-2, atol=1e-5)
    assert changed


def test_what_the_other_half_contradicts_is_not_learned():
    """Planted: r follows h in one half of the text, and −h in the other; with the same sign in both it is learned."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(200, 3, generator=generator)
    r = h.double() @ torch.ones(3, 2, dtype=torch.float64)
    weight = torch.ones(200, dtype=torch.float64)
    metric = torch.eye(2, dtype=torch.float64)
    found = {}
    for sign in (1, -1):
        halves = [Moments(4, 2).update(rows_with_weights(h, weight), each * r) for each in (1, sign)]
        found[sign] = fit_correction(halves, metric, centred=False)
    assert found[-1] is None
    torch.testing.assert_close(found[1][:-1], torch.ones(3, 2, dtype=torch.float64), rtol=0.05, atol=0)
    assert not found[1][-1].any()


def test_a_constant_is_no_reason_for_a_slope():
    """Planted: a constant is missing, and a slope that the halves contradict. A weak ridge would follow the slope."""
    spread = torch.linspace(-1, 1, 100)
    h = (5 + spread)[:, None]
    rows = rows_with_weights(h, torch.ones(100))
    halves = [Moments(2, 1).update(rows, r[:, None].double()) for r in (1 + 0.3 * spread, 1 - 0.1 * spread)]
    slope, constant = fit_correction(halves, torch.eye(1, dtype=torch.float64), centred=True).flatten().tolist()
    assert slope == pytest.approx(0.1 / (1 + max(ANCHOR_RIDGES) / 2), rel=1e-3)
    assert constant == pytest.approx(1 - 5 * slope, rel=1e-6)


def test_a_single_sequence_cannot_be_judged_by_another_and_changes_nothing(gpt2, more_rows):
    copy = copy_of(gpt2)
    with torch.no_grad():
        unit_layers(copy, sites(copy)[1])[-1].weight.mul_(0.5)
    before = copy_of(copy)
    one = more_rows.subset((~more_rows.test).nonzero()[:1, 0])
    anchor(alike(gpt2, one), blocks_of(copy))
    for (name, new), old in zip(copy.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(new, old), name


@pytest.mark.parametrize(("name", "changes"), [("gemma2", False), ("olmo2", False), ("qwen2", True)])
def test_a_family_that_norms_what_its_blocks_write_stays_as_it_is(name, changes):
    model, ids = small(name), reads(name, length=32)["input_ids"]
    copy = copy_of(model)
    layer = unit_layers(copy, sites(copy)[0])[-1]
    with torch.no_grad():
        layer.weight.mul_(0.5)
    before = layer.weight.clone()
    anchor(alike(model, TokenRows.from_ids(ids)), blocks_of(copy))
    assert torch.equal(layer.weight, before) != changes
