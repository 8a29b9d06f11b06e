"""Hidden units dropped by their scores, by hand and on planted ones: each score sees what it is for and no more."""

import pytest
import torch

from conftest import BLOCKS, WIDTH, tiny
from helpers.families import small, tanh_gelu
from helpers.unit_rows import seen
from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import width
from howlinear.ideas.compression.units import ErrorCost
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import parameters
from howlinear.models.units import affine_of, readout, unit_count
from howlinear.text.rows import TokenRows

COMPRESSORS = [width.magnitude, width.wanda, width.flap, width.wanda_ridge, width.flap_ridge, width.surgeon]
HIDDEN = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0], [1.0, 2.0, 4.0], [3.0, 2.0, 4.0]])
HALF = 2 * WIDTH
READOUT = AffineMap(torch.tensor([[2.0], [1.0], [0.5]]).double(), torch.tensor([1.0]).double())


def moments(hidden):
    return Moments(hidden.shape[1]).update(hidden)


def rise(compress, calibration, share):
    """By how much the loss rises, nats per token."""
    ids = calibration.ids
    return float((losses(compress(calibration, share), ids) - losses(calibration.model, ids)).mean())


def share_without(model, count):
    """The share that is left without so many hidden units in every block."""
    size = sum(parameter.numel() for parameter in sites(model)[0].parameters())
    each = size // unit_count(model, sites(model)[0])
    return (parameters(model) - BLOCKS * count * each) / parameters(model)


# --- By hand


def test_means_by_hand():
    """Unit 2 goes; its mean is 2, so y = 2 h₀ + h₁ + 1 + 0.5 · 2."""
    found = width.with_means(READOUT, moments(HIDDEN), torch.tensor([0, 1]))
    assert found.weight.tolist() == [[2], [1]]
    assert found.bias.tolist() == [2]


def test_ridge_by_hand(monkeypatch):
    """Of h₀ = (1, 3, 1, 3) and the constant 2, the first alone: h₁ is read off as (Σ h₀h₁ / Σ h₀²) h₀ = 16/20 h₀."""
    monkeypatch.setattr(width, "RIDGE", 0.0)
    found = width.ridge(READOUT, moments(HIDDEN), torch.tensor([0]))
    # h₂ likewise: Σ h₀h₂ = 4 + 12 = 16
    assert float(found.weight) == pytest.approx(2 + 0.8 * 1 + 0.8 * 0.5)
    assert found.bias.tolist() == [1]
    monkeypatch.setattr(width, "RIDGE", 1.0)  # λ = Σ h₀² halves it all
    assert float(width.ridge(READOUT, moments(HIDDEN), torch.tensor([0])).weight) == pytest.approx(1.6)


def test_a_moved_readout_by_hand(monkeypatch):
    """Without damping it is the regression of all that was read out, on what stays and the constant."""
    monkeypatch.setattr(width, "DAMPING", 0.0)
    found = width.moved(READOUT, moments(HIDDEN), torch.tensor([0]))
    # y = 2 h₀ + h₁ + ½ h₂ + 1, h₁ is 2 throughout, and h₂ has the mean 2 whatever h₀ is
    assert float(found.weight) == pytest.approx(2)
    assert float(found.bias) == pytest.approx(1 + 2 + 1)
    plain = AffineMap(READOUT.weight, torch.zeros(1).double())
    # without a constant, by Σ h₀² = 20: h₁ is 16/20 h₀, h₂ too
    found = width.moved(plain, moments(HIDDEN), torch.tensor([0]))
    assert float(found.weight) == pytest.approx(2 + 0.8 + 0.4)
    assert not found.bias.any()


def test_what_the_loss_does_not_feel_goes_first(gpt2, rows, monkeypatch):
    """½ vᵀ G v / [A⁻¹]ⱼⱼ by hand: alike units with A = 1, read out where g² is 9, 1 and 0."""
    monkeypatch.setattr(width, "DAMPING", 0.0)
    calibration = Calibration(gpt2, rows)
    chosen = sites(gpt2)
    weight = torch.zeros(3, WIDTH)
    weight[torch.arange(3), torch.arange(3)] = 2.0
    for site in chosen:
        site.output.c_fc.weight = torch.nn.Parameter(torch.zeros(WIDTH, 3))
        site.output.c_proj.weight = torch.nn.Parameter(weight)
        site.output.c_proj.bias.data.zero_()
    unit = torch.eye(3).double().repeat(4, 1) * 3**0.5  # E h hᵀ = 1
    metric = torch.diag(torch.tensor([3.0, 1.0, *[0.0] * (WIDTH - 2)]).double() ** 2)
    calibration.memory["moments_of",] = {site.block: moments(unit) for site in chosen}
    calibration.memory["costs_of",] = {site.block: ErrorCost(metric, torch.ones(32)) for site in chosen}
    assert width.removal_costs(calibration)[0].tolist() == pytest.approx([0.5 * 4 * 9, 0.5 * 4 * 1, 0])


def test_scores_by_hand(gpt2, rows):
    """‖h‖ ‖V‖, and Var(h) ‖V‖²; of what a constant adds the second knows nothing."""
    calibration = Calibration(gpt2, rows)
    calibration.memory["moments_of",] = {site.block: moments(HIDDEN) for site in sites(gpt2)}
    weight = torch.zeros(3, WIDTH)
    weight[:, 7] = READOUT.weight[:, 0]
    for site in sites(gpt2):
        site.output.c_fc.weight = torch.nn.Parameter(torch.zeros(WIDTH, 3))
        site.output.c_proj.weight = torch.nn.Parameter(weight)
    assert width.loudness(calibration)[0].tolist() == pytest.approx([2 * 20**0.5, 16**0.5, 0.5 * 32**0.5])
    assert width.fluctuation(calibration)[0].tolist() == pytest.approx([4 * 4 / 3, 0, 0.25 * 16 / 3])


def test_magnitude_by_hand(gpt2, rows):
    """Units of weights in of norm 5 and 1 and out of norm 1 and 3: 5 · 1 stands before 1 · 3."""
    for site in sites(gpt2):
        into, out = torch.zeros(WIDTH, 2), torch.zeros(2, WIDTH)
        into[:2, 0] = torch.tensor([3.0, 4.0])
        into[5, 1] = 1
        out[0, 1] = -1
        out[1, 2:5] = torch.tensor([1.0, 2.0, 2.0])
        site.output.c_fc.weight, site.output.c_fc.bias = (torch.nn.Parameter(new) for new in (into, torch.zeros(2)))
        site.output.c_proj.weight = torch.nn.Parameter(out)
    assert width.weight_norms(gpt2, sites(gpt2)[0]).tolist() == [5, 3]
    whole = parameters(gpt2)
    kept = width.magnitude(Calibration(gpt2, rows), (whole - BLOCKS * (2 * WIDTH + 1)) / whole)
    assert readout(kept, sites(kept)[0]).weight.tolist() == [out[0].tolist()]


def test_magnitude_of_a_gated_unit_by_hand():
    """A gated unit has two rows of weights in, here of norm 2 and 3, and one out, of norm 0.5."""
    model = small("llama")
    site = sites(model)[0]
    with torch.no_grad():
        for name, weight in (("gate_proj", 2.0), ("up_proj", -3.0), ("down_proj", 0.5)):
            getattr(site.output, name).weight.zero_()[0, 0] = weight
    first, *others = width.weight_norms(model, site).tolist()
    assert (first, set(others)) == (3, {0})


def test_standing_out_by_hand(gpt2, rows):
    """Scores count within their block: 10 of (10, 20, 60) goes before 1 of (5, 500, 1), and each best one stays."""
    calibration = Calibration(gpt2, rows)
    scores = {0: torch.tensor([10.0, 20.0, 60.0]), 1: torch.tensor([1.0, 2.0, 3.0]), 2: torch.tensor([5.0, 500.0, 1.0])}
    # standardised: (−0.76, −0.38, 1.13), (−1, 0, 1), (−0.57, 1.15, −0.59)
    for count, left in ((2, [[1, 2], [1, 2], [0, 1, 2]]), (6, [[2], [2], [1]])):
        kept = width.standing_out(calibration, share_without(gpt2, count / BLOCKS), scores)
        assert [kept[block].tolist() for block in range(3)] == left
    with pytest.raises(InputError, match=r"with one hidden unit in each block .* are allowed"):
        width.standing_out(calibration, share_without(gpt2, 7 / BLOCKS), scores)


# --- Sizes


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_copies_are_as_small_as_asked_and_no_smaller(model, rows, compress):
    calibration = Calibration(model, rows)
    size = parameters(model)
    for share in (1.0, 0.6):
        smaller = compress(calibration, share)
        a_unit_each_and_biases = BLOCKS * (3 * WIDTH + 2 + WIDTH)
        assert calibration.allowed(share) - a_unit_each_and_biases < parameters(smaller) <= calibration.allowed(share)
    assert parameters(model) == size
    assert torch.isfinite(losses(smaller, rows.ids)).all()
    with pytest.raises(InputError, match=r"hidden units would have to go|with one hidden unit in each block"):
        compress(calibration, 0.05)


@pytest.mark.parametrize("compress", [*COMPRESSORS[:3], width.surgeon])
def test_everything_kept_is_the_model_itself(gpt2, rows, compress):
    assert abs(rise(compress, Calibration(gpt2, rows), 1.0)) < 1e-6


@torch.no_grad()
def test_constant_units_go_by_fluctuation_and_not_by_size(gpt2, rows):
    """Planted: half of every block's units are always 5, and read out loudly."""
    for site in sites(gpt2):
        site.output.c_fc.weight[:, :HALF] = 0
        site.output.c_fc.bias[:HALF] = 5
        site.output.c_proj.weight[:HALF] *= 10
    calibration = Calibration(gpt2, rows)
    share = share_without(gpt2, HALF)
    assert abs(rise(width.flap, calibration, share)) < 1e-4
    loudest = width.wanda(calibration, share)
    assert all((site.output.c_fc.bias == 5).all() for site in sites(loudest))


def test_surgeon_fits_the_readout_of_the_units_that_stay(gpt2, rows):
    calibration = Calibration(gpt2, rows)
    narrow = width.surgeon(calibration, 0.9)
    for site, thin in zip(sites(gpt2), sites(narrow), strict=True):
        columns, staying = site.output.c_fc.weight.T, thin.output.c_fc.weight.T
        kept = (staying[:, None] == columns).all(2).nonzero()[:, 1]
        assert len(kept) == len(staying) < len(columns)
        expected = width.moved(readout(gpt2, site), width.moments_of(calibration)[site.block], kept)
        torch.testing.assert_close(readout(narrow, thin).weight, expected.weight, rtol=1e-4, atol=1e-5)


# --- Block after block, on two of them


@pytest.fixture
def two_blocks():
    """A GPT-2 of two blocks with random weights, and rows for it, more than it has hidden units."""
    ids = torch.randint(60, (40, 16), generator=torch.Generator().manual_seed(1))
    return Calibration(small("gpt2"), TokenRows.from_ids(ids, folds=3), batch_size=8)


def readouts(model):
    return [readout(model, site) for site in sites(model)]


def compensated(calibration, kept):
    return width.compensated(calibration, lambda site, _: kept[site.block])


def units_behind(smaller, calibration):
    """The second block's hidden units, all of them, on what it reads in a smaller model: by hand from its weights."""
    whole = sites(calibration.model)[1].output
    inner = affine_of(whole.c_fc)
    return tanh_gelu(inner(seen(smaller, calibration.ids)[1]["x"]))


def kept_of(smaller, calibration):
    """The units that a smaller model keeps of its second block, found by their weights."""
    narrow, whole = (sites(model)[1].output.c_fc.weight for model in (smaller, calibration.model))
    return (narrow[:, :, None] == whole[:, None]).all(0).nonzero()[:, 1].tolist()


def test_a_block_is_read_out_on_what_the_narrow_one_before_it_gives(two_blocks, monkeypatch):
    """M is the ridge regression of all units on those that stay, in the smaller model and not in the whole one."""
    monkeypatch.setattr(width, "RIDGE", 0.1)
    kept = {0: torch.arange(5), 1: torch.arange(0, 40, 3)}
    smaller = compensated(two_blocks, kept)
    whole = {block: tensor.clone() for block, tensor in two_blocks.model.state_dict().items()}

    h = units_behind(smaller, two_blocks)
    stay = h[:, kept[1]]
    # ridge regression as least squares: √λ times a row for each unit, towards 0
    root = (0.1 * stay.square().sum(0).mean()).sqrt() * torch.eye(stay.shape[1]).double()
    design = torch.cat([stay, root])
    target = torch.cat([h, torch.zeros(len(root), h.shape[1]).double()])
    m = torch.linalg.lstsq(design, target).solution
    expected = m @ readouts(two_blocks.model)[1].weight
    torch.testing.assert_close(readouts(smaller)[1].weight, expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(readouts(smaller)[1].bias, readouts(two_blocks.model)[1].bias)

    opened = readouts(width.narrowed(two_blocks, kept, width.ridge))[1]
    assert float((opened.weight - expected).abs().max()) > 0.05
    assert all(torch.equal(tensor, whole[name]) for name, tensor in two_blocks.model.state_dict().items())


def test_loudness_counts_behind_the_narrow_blocks_and_fluctuation_in_the_whole_model(two_blocks):
    """In the whole model all units of the second block are equally loud: what the first one loses decides."""
    outer = sites(two_blocks.model)[1].output.c_proj.weight.data
    outer /= width.loudness(two_blocks)[1][:, None]
    share = 0.8
    weight = readouts(two_blocks.model)[1].weight.norm(dim=1)
    by_loudness = width.wanda_ridge(two_blocks, share)
    kept = kept_of(by_loudness, two_blocks)
    scores = units_behind(by_loudness, two_blocks).norm(dim=0) * weight
    assert kept == scores.topk(len(kept)).indices.sort().values.tolist()
    assert kept != kept_of(width.wanda(two_blocks, share), two_blocks)
    by_fluctuation = width.flap_ridge(two_blocks, share)
    assert kept_of(by_fluctuation, two_blocks) == kept_of(width.flap(two_blocks, share), two_blocks)


def test_the_text_passes_twice_however_many_blocks_there_are(gpt2, rows):
    """Each layer runs on every batch with its block whole and narrow; the first, once more on one of them."""
    calibration = Calibration(gpt2, rows, batch_size=8)
    batches = -(-len(calibration.ids) // 4)
    passed = []
    hooks = [
        layer.attn.register_forward_hook(lambda *_, number=number: passed.append(number))
        for number, layer in enumerate(gpt2.base_model.h)
    ]
    width.wanda_ridge(calibration, 0.9)
    for hook in hooks:
        hook.remove()
    assert [passed.count(number) for number in range(BLOCKS)] == [2 * batches + 1, *[2 * batches] * (BLOCKS - 1)]


def test_a_gated_block_gets_the_bias_that_it_lacks(rows):
    llama = tiny("mini-llama")
    smaller = width.flap(Calibration(llama, rows), 0.8)
    assert all(site.output.down_proj.bias is not None for site in sites(smaller))
    assert all(site.output.down_proj.bias is None for site in sites(llama))
