"""Which hidden units can go: planted units are found, and the elimination is that of a slow loop."""

import pytest
import torch
from torch.nn.utils import parametrize, prune
from transformers.pytorch_utils import Conv1D

import howlinear as hl
from conftest import WIDTH
from helpers.every_family import tiny_of
from helpers.families import UNITS as UNITS_REACHED
from helpers.families import small
from helpers.reference import normal
from helpers.unit_rows import OUT, UNITS, correlated, least_squares_loss, own_readout, seen
from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression import units
from howlinear.ideas.compression.allocate import costs_of
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors.width import moments_of as moments_of_units
from howlinear.ideas.compression.loss_gradients import loss_gradients
from howlinear.ideas.compression.units import (
    RIDGES,
    UnitMoments,
    choose_ridge,
    eliminate,
    gram,
    gram_with_constant,
    position_weights,
    refit,
    root_of,
    unit_grams,
    weighted_rows,
)
from howlinear.models import pairs
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_on_disk
from howlinear.models.pairs import activation_between, ffn_module
from howlinear.models.swap import swap
from howlinear.models.units import check_plain, readout, unit_count, unit_layers, with_units


def gram_of(h, weight=None):
    """Σ w [h, 1] [h, 1]ᵀ, in chunks."""
    moments = Moments(h.shape[1] + 1)
    weight = torch.ones(len(h)) if weight is None else weight
    for part in range(0, len(h), 150):
        moments.update(weighted_rows(h[part : part + 150], weight[part : part + 150]))
    return gram(moments)


def moments_of(h, weight=None, ridge=RIDGES[0]):
    return UnitMoments(gram_of(h, weight), ridge)


# --- elimination


@pytest.mark.parametrize("panel", [1, 7, 64])
def test_elimination_is_that_of_refitting_every_candidate_on_rows(panel, monkeypatch):
    monkeypatch.setattr(units, "PANEL", panel)
    h, own = correlated(), own_readout()
    y = own(h)
    weight = torch.rand(len(h), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    found = eliminate(moments_of(h, weight).covariance(centred=True), own.weight)
    left = list(range(UNITS))
    for step in range(UNITS - 1):
        losses = {unit: least_squares_loss(h, y, [u for u in left if u != unit], weight) for unit in left}
        cheapest = min(losses, key=losses.get)
        assert int(found.order[step]) == cheapest
        left.remove(cheapest)
        # the ridge of a millionth is all that stands between the two; these units are strongly correlated
        assert float(found.price[step + 1]) == pytest.approx(losses[cheapest], rel=5e-3)
    assert found.price[0] == 0
    assert sorted(found.order.tolist()) == list(range(UNITS))


def test_planted_units_are_all_that_stays():
    """Of 24 units six are read, and the others are noise that nobody reads or sums of the six."""
    h = correlated(units=12)
    mixed = h[:, :6] @ torch.randn(6, 12, dtype=torch.float64)  # sums of the six, with a little of their own
    h = torch.cat([h, mixed + 0.01 * torch.randn(mixed.shape, dtype=torch.float64)], 1)
    weight = torch.zeros(UNITS, OUT, dtype=torch.float64)
    weight[:6] = own_readout(6).weight
    shuffled = torch.randperm(UNITS)
    found = eliminate(moments_of(h[:, shuffled]).covariance(centred=True), weight[shuffled])
    assert float(found.price[UNITS - 6]) < 1e-3 * float(found.price[UNITS - 5])
    kept = found.kept(6)
    lost = least_squares_loss(h[:, shuffled], h @ weight, kept.tolist(), torch.ones(len(h)))
    assert lost < 1e-3 * float((h @ weight).var(0).sum())


def test_a_metric_says_which_direction_counts():
    """Two units, each with an output of its own: the one whose output costs nothing goes first, though it is larger."""
    h = torch.randn(5000, 2, dtype=torch.float64) * torch.tensor([10.0, 1.0])
    own = AffineMap(torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    plain = torch.eye(2, dtype=torch.float64)
    blind = torch.diag(torch.tensor([1e-6, 1.0], dtype=torch.float64))
    covariance = moments_of(h).covariance(centred=True)
    assert eliminate(covariance, own.weight @ root_of(plain)).order.tolist() == [1, 0]
    first = eliminate(covariance, own.weight @ root_of(blind))
    assert first.order.tolist() == [0, 1]
    # ½ M Var(h)
    assert float(first.price[1]) == pytest.approx(0.5 * 1e-6 * float(h[:, 0].var()), rel=1e-2)


def test_a_unit_that_never_fires_goes_first_for_nothing():
    h = correlated()
    h[:, 5] = 0
    found = eliminate(moments_of(h).covariance(centred=True), own_readout().weight)
    assert int(found.order[0]) == 5
    assert float(found.price[1]) < 1e-9 * float(found.price[-1])


# --- ridge


def halves_of(h, split=None):
    """Σ w [h, 1] [h, 1]ᵀ of the rows before a place, and of those behind it."""
    split = len(h) // 2 if split is None else split
    return gram_of(h[:split]), gram_of(h[split:])


@pytest.mark.parametrize(
    ("rows", "more", "shift", "large"),
    [(60, 0.0, 0, True), (40, 0.3, 0, True), (20_000, 1.0, 0, False), (20_000, 1.0, 3, True)],
)
def test_the_chosen_ridge_costs_least_where_it_is_not_fitted(rows, more, shift, large):
    """By rows: few rows take a large ridge and many the least, unless the means of the two halves differ."""
    mixing = torch.eye(UNITS).double() + more * normal(UNITS, UNITS, seed=1) / UNITS**0.5
    h = normal(rows, UNITS) @ mixing + 1
    own = own_readout()
    first, second = h.tensor_split(2)
    second += shift * normal(UNITS, seed=2)
    metric = torch.arange(1, OUT + 1).double().diag()
    root = metric.sqrt() / 2**0.5
    loudness = h.var(0) * (own.weight @ root).square().sum(1)
    kept = loudness.argsort(descending=True)[: round(2 / 3 * UNITS)]

    def lost(fitted, other, ridge):
        new = refit(moments_of(fitted, ridge=ridge), own, kept, centred=True)
        return float(((own(other) - new(other[:, kept])) @ root).square().sum(1).mean())

    costs = [lost(first, second, ridge) + lost(second, first, ridge) for ridge in RIDGES]
    best = RIDGES[costs.index(min(costs))]
    assert (best >= RIDGES[-3]) == large
    assert (best == RIDGES[0]) != large
    found = choose_ridge(halves_of(h), own, metric, centred=True)
    assert found == (best / 2 if large else best)


def test_a_ridge_draws_the_readout_towards_the_blocks_own():
    h, own, kept = correlated(), own_readout(), torch.arange(10)
    moments = moments_of(h, ridge=1e9)
    torch.testing.assert_close(refit(moments, own, kept, centred=True).weight, own.weight[kept], atol=1e-6, rtol=0)


def test_a_half_without_rows_tells_no_ridge():
    h, own = correlated(), own_readout()
    assert choose_ridge(halves_of(h, split=len(h)), own, torch.eye(OUT, dtype=torch.float64), centred=True) == RIDGES[0]


# --- readout


@pytest.mark.parametrize("centred", [True, False])
def test_the_new_readout_is_weighted_least_squares(centred):
    h, own = correlated(), own_readout(bias=centred)
    weight = torch.rand(len(h), dtype=torch.float64) + 0.1
    kept = torch.tensor([0, 3, 4, 11, 20])
    new = refit(moments_of(h, weight), own, kept, centred)
    lost = float(((own(h) - new(h[:, kept])).square().sum(1) * weight).sum() / weight.sum())
    assert lost == pytest.approx(least_squares_loss(h, own(h), kept.tolist(), weight, centred), rel=1e-6)
    if not centred:
        assert torch.equal(new.bias, own.bias)


# --- what errors cost


def test_the_weight_of_a_position_is_what_positions_of_its_octave_have_in_common():
    squares = torch.tensor([8.0, 4.0, 1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    weight = position_weights(squares.double())
    # the last predicts nothing: it counts like the one before it
    torch.testing.assert_close(weight, torch.tensor([8.0, 4, 2, 2, 2, 2, 2, 2]).double() / 3)
    assert torch.equal(position_weights(torch.zeros(4).double()), torch.ones(4).double())


def test_what_an_error_costs_is_the_second_moment_of_the_losss_gradient(model, rows):
    calibration, gradients = Calibration(model, rows, blocks=1), []
    ids, found = calibration.ids, costs_of(calibration)[1]
    loss_gradients(model, ids, [1], lambda _, __, ___, g: gradients.append(g), batch_size=9)
    g = torch.cat(gradients)
    expected = torch.einsum("nti,ntj->ij", g, g) / ids[:, 1:].numel()  # per predicted token, as losses are told
    torch.testing.assert_close(found.metric, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    torch.testing.assert_close(found.weight, position_weights(g.square().sum((0, 2))), rtol=1e-3, atol=1e-5)
    assert float(found.weight.mean()) == pytest.approx(1)


# --- units of models


def test_moments_are_those_of_the_units(model, rows):
    """Weighted by position on both halves of a text; and on all of it, every row alike."""
    calibration = Calibration(model, rows)
    ids = calibration.ids
    weight = torch.rand(ids.shape[1], dtype=torch.float64)
    [(_, halves)] = unit_grams(model, ids, {2: weight}, batch_size=5, work=None)
    plain = moments_of_units(calibration)
    h = seen(model, ids)[2]["h"]
    with_one = torch.cat([h, torch.ones(len(h), 1)], 1)
    weighted = with_one * weight.repeat(len(ids))[:, None]
    expected = [side.T @ part for side, part in zip(weighted.tensor_split(2), with_one.tensor_split(2), strict=True)]
    for found, second in zip([*halves, gram_with_constant(plain[2])], [*expected, with_one.T @ with_one], strict=True):
        torch.testing.assert_close(found, second, rtol=1e-4, atol=1e-6 * float(second.abs().max()))
    assert len(plain) == len(sites(model))


BY_STRUCTURE = (
    "apertus",
    "arcee",
    "cohere",
    "exaone4",
    "gemma",
    "glm",
    "granite",
    "nemotron",
    "olmo",
    "phi",
    "smollm3",
)
"""Families that stand in no table: their units are found by the shapes of layers."""


@pytest.mark.parametrize("name", [*UNITS_REACHED, *BY_STRUCTURE])
def test_a_block_with_some_of_its_units_reads_out_just_these(name):
    model = small(name) if name in UNITS_REACHED else tiny_of(name)
    check_plain(model, sites(model))
    site = sites(model)[-1]
    count = unit_count(model, site)
    own = readout(model, site)
    assert own.weight.shape[0] == count == unit_layers(model, site)[-1].weight.numel() // own.weight.shape[1]
    kept = torch.tensor([0, 3, 7, count - 1])
    thin = with_units(model, site, kept, AffineMap(own.weight[kept], own.bias))
    h, x, y = map(seen(model, torch.arange(12).view(2, 6))[site.block].get, "hxy")
    torch.testing.assert_close(own(h), y, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        narrow = thin(x.float()[None])[0].double()
    torch.testing.assert_close(narrow, h[:, kept] @ own.weight[kept] + own.bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["opt", "bloom", "mpt", "xglm", "bert"])
def test_a_pair_of_layers_keeps_units_in_its_places(name):
    model = small(name)
    check_plain(model, sites(model))
    site = sites(model)[-1]
    own, kept = readout(model, site), torch.tensor([0, 3, 7, unit_count(model, site) - 1])
    thin = with_units(model, site, kept, AffineMap(own.weight[kept], own.bias))
    whole = seen(model, torch.arange(12).view(2, 6))[site.block]
    with swap(model, {site.block: thin}):
        less = seen(model, torch.arange(12).view(2, 6))[site.block]
    torch.testing.assert_close(own(whole["h"]), whole["y"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(less["h"], whole["h"][:, kept])
    torch.testing.assert_close(less["y"], own.bias + whole["h"][:, kept] @ own.weight[kept], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_lies_between_a_pair_of_layers_is_found_or_refused(on_disk, tmp_path, monkeypatch):
    model = small("opt")
    model.save_pretrained(tmp_path)
    asked = load_on_disk(tmp_path) if on_disk else model
    for site in sites(asked):
        monkeypatch.setattr(pairs, "_NAME_OF", {})
        assert isinstance(activation_between(asked, site), torch.nn.ReLU)
    layer = model.model.decoder.layers[0]
    x = torch.randn(3, layer.fc1.in_features)
    with torch.no_grad():
        assert torch.equal(ffn_module(model, sites(model)[0])(x), layer.fc2(torch.relu(layer.fc1(x))))
    layer.activation_fn = torch.nn.Softmax(-1)
    with pytest.raises(InputError, match="does more than read them out one by one"):
        check_plain(model, sites(model))
    esm = tiny_of("esm")  # its GELU is written into a forward
    with pytest.raises(InputError, match="cannot tell what lies between"):
        check_plain(esm, sites(esm))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mixtral", r"mlp\.gate, a MixtralTopKRouter, is no plain linear layer: .*blocks=\[1, 2\]"),
    ],
)
def test_a_family_whose_units_cannot_be_reached_is_refused_with_the_reason(name, why):
    model = small(name)
    with pytest.raises(InputError, match=rf"hidden units .*cannot be reached.*{why}"):
        check_plain(model, sites(model))


@pytest.mark.parametrize("mixes", [torch.nn.Softmax(-1), torch.nn.LayerNorm(4, elementwise_affine=False)])
@pytest.mark.parametrize("place", ["act", "dropout"])
def test_units_that_are_not_read_out_one_by_one_are_refused(gpt2, mixes, place):
    """Softmax over units; a norm of y; and, where it takes any width, a norm over units as well."""
    setattr(sites(gpt2)[1].output, place, mixes)
    with pytest.raises(InputError, match=r"block 1: its hidden units cannot be taken out, since .*, a GPT2MLP, does"):
        check_plain(gpt2, sites(gpt2))


def test_a_block_that_is_linear_already_has_no_units(gpt2):
    line = AffineMap(torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())
    with (
        swap(gpt2, {1: line}),
        pytest.raises(InputError, match=r"block 1 has no hidden units: .*, a Linear, is linear"),
    ):
        unit_count(gpt2, sites(gpt2)[1])


# --- layers that are not what their weights say


SPOILT = {
    "masked": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "parametrised": lambda layer: parametrize.register_parametrization(layer, "weight", torch.nn.Identity()),
    "hooked before": lambda layer: layer.register_forward_pre_hook(lambda _, args: args),
    "hooked behind": lambda layer: layer.register_forward_hook(lambda *_: None),
    "another forward": lambda layer: setattr(layer, "forward", lambda x: x),
    "quantised": lambda layer: setattr(
        layer, "weight", torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    ),
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("last", [False, True])
def test_layers_that_compute_something_else_are_refused_before_anything_runs(gpt2, rows, monkeypatch, spoilt, last):
    check_plain(gpt2, sites(gpt2))
    ffn = sites(gpt2)[1].output
    SPOILT[spoilt](ffn.c_proj if last else ffn.c_fc)
    monkeypatch.setattr(type(gpt2.base_model), "forward", None)  # nothing may run
    with pytest.raises(InputError, match=r"block 1: "):
        hl.compress(gpt2, rows, 0.9)


class Adapted(Conv1D):
    """Adds to a layer without another module, as loralib's layers do."""

    def forward(self, x):
        return super().forward(x) + x.mean(-1, keepdim=True)


@pytest.mark.parametrize("kind", [torch.nn.Module, lambda: Adapted(1, 1)])
def test_a_wrapped_or_an_adapted_layer_is_no_conv1d(gpt2, kind):
    ffn = sites(gpt2)[1].output
    adapted = kind()
    adapted.base_layer, adapted.weight, adapted.bias = ffn.c_proj, ffn.c_proj.weight, ffn.c_proj.bias
    ffn.c_proj = adapted
    with pytest.raises(InputError, match="is no plain linear layer: merge adapters"):
        unit_count(gpt2, sites(gpt2)[1])
