"""Signals of other papers, by hand, by a slow reference, and on blocks whose answer is known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BLOCKS, WIDTH, tiny
from helpers.families import reads, small
from helpers.first_layer import around_first_layer
from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.rivals import cca_bound, cosine_distance, replace_one, rivals
from howlinear.instrument.capture import capture, hooked
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.swap import swap

FACTORIAL = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
BENT = FACTORIAL.prod(1)  # as loud as either input, and correlated with none


def moments_of(x, y):
    return Moments(x.shape[1], y.shape[1]).update(x, y), Moments(y.shape[1]).update(y)


def silence(model, block):
    """Have a block's FFN write nothing."""
    (site,) = sites(model, [block])
    last = [module for module in site.output.modules() if hasattr(module, "weight")][-1]
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.zero_()


def test_a_cosine_by_hand():
    before = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    after = torch.tensor([[[1.0, 1.0], [0.0, -2.0]]])
    assert cosine_distance(before, after).tolist() == pytest.approx([1 - 0.5**0.5, 2])


def test_a_bound_by_hand():
    """The first output is an input; the second is one by 0.6, so that ρ² = 0.36, and a bend by 0.8."""
    y = torch.stack([FACTORIAL[:, 0], 0.6 * FACTORIAL[:, 1] + 0.8 * BENT], 1)
    assert cca_bound(*moments_of(FACTORIAL, y)) == pytest.approx(0.64)
    # loudness does not count, which the share of variance that a line misses does see
    assert cca_bound(*moments_of(FACTORIAL, y * torch.tensor([1.0, 100.0]))) == pytest.approx(0.64)


def test_what_is_straight_has_no_bound_and_what_is_bent_has_all_of_it():
    turned = FACTORIAL @ torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert cca_bound(*moments_of(FACTORIAL, turned)) == pytest.approx(0, abs=1e-9)
    assert cca_bound(*moments_of(FACTORIAL, BENT[:, None])) == pytest.approx(1)


def test_outputs_beyond_the_inputs_count_whole():
    y = torch.stack([FACTORIAL[:, 0], FACTORIAL[:, 1]], 1)
    assert cca_bound(*moments_of(FACTORIAL[:, :1], y)) == pytest.approx(1)


@given(seed=st.integers(0, 1000), bend=st.floats(0, 3))
@settings(max_examples=30, deadline=None)
def test_the_best_line_never_misses_more_than_the_bound(seed, bend):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 3, generator=generator)
    y = x @ torch.randn(3, 3, generator=generator) + bend * torch.randn(60, 3, generator=generator)
    moments, outputs = moments_of(x, y)
    affine, _ = fit(moments, fewest=4)
    assert 1 - r2(affine, moments) <= cca_bound(moments, outputs) + 1e-9


def test_moments_of_other_rows_are_refused():
    moments, outputs = moments_of(FACTORIAL, FACTORIAL)
    with pytest.raises(InputError, match="of the same rows"):
        cca_bound(moments, Moments(2).update(FACTORIAL[:3]))
    with pytest.raises(InputError, match="of the same rows"):
        cca_bound(moments, Moments(3).update(torch.randn(4, 3)))
    assert cca_bound(moments, outputs) == pytest.approx(0, abs=1e-9)


def test_equals_a_reference_from_the_hidden_states(model, ids):
    """transformers gives the stream between layers; the last it gives normalised, so that one is left out."""
    outputs = {}
    with torch.no_grad(), hooked(sites(model), lambda site, x, y: outputs.__setitem__(site.block, y.clone())):
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    found = rivals(model, ids, batch_size=5)
    parallel = getattr(model.config, "use_parallel_residual", False)
    for block in range(BLOCKS - 1):
        entered, left, y = (rows.flatten(0, -2).double() for rows in (*states[block : block + 2], outputs[block]))
        before = entered if parallel else left - y
        after = before + y
        cosine = (before * after).sum(1) / (before.norm(dim=1) * after.norm(dim=1))
        whole = (entered * left).sum(1) / (entered.norm(dim=1) * left.norm(dim=1))
        assert found[block].cosine == pytest.approx(float(1 - cosine.mean()), rel=1e-4)
        assert found[block].influence == pytest.approx(float(1 - whole.mean()), rel=1e-4)
        # the canonical correlations by QR: singular values of Qxᵀ Qy
        q_before, q_after = (torch.linalg.qr(rows - rows.mean(0)).Q for rows in (before, after))
        rho = torch.linalg.svdvals(q_before.T @ q_after)
        assert found[block].bound == pytest.approx(float((1 - rho.square()).sum()), rel=1e-3, abs=1e-4)


def test_a_silent_block_is_found_and_others_are_not(model, ids):
    """Planted: an FFN that writes nothing leaves the stream as it was, though its layer's attention does not."""
    before = rivals(model, ids)
    silence(model, 1)
    found = rivals(model, ids)
    assert found[1].cosine == pytest.approx(0, abs=1e-9)
    assert found[1].bound == pytest.approx(0, abs=1e-6)
    assert found[1].influence > 1e-3
    assert found[0].cosine == pytest.approx(before[0].cosine)
    assert min(before[1].cosine, found[0].cosine, found[2].cosine) > 1e-3
    assert min(before[1].bound, found[0].bound, found[2].bound) > 1e-3


def test_looking_changes_nothing(model, ids):
    before = losses(model, ids)
    alone = rivals(model, ids, [2])
    assert list(alone) == [2]
    assert alone[2].bound == pytest.approx(rivals(model, ids)[2].bound)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(losses(model, ids), before)


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_stream_is_refused(gpt2, ids):
    with pytest.raises(InputError, match="at least one sequence"):
        rivals(gpt2, ids[:0])
    gpt2.transformer.h[1].ln_2 = torch.nn.Sequential(torch.nn.Identity())
    before = rivals(gpt2, ids)[1]  # no norm, and yet something that reads the stream
    assert before.cosine > 0
    gpt2.transformer.h[1].register_forward_hook(lambda layer, args, output: 2 * output)  # not what was written
    with pytest.raises(InputError, match=r"block 1 .* does not add its output"):
        rivals(gpt2, ids)
    assert not any(module._forward_pre_hooks for module in gpt2.modules())


def test_replacing_one_costs_what_swapping_it_costs(gpt2, rows):
    fitted = rows.ids[~rows.test]  # more than a batch
    maps = {block: fit(sum(kept.train))[0] for block, kept in capture(gpt2, rows).items()}
    found = replace_one(gpt2, maps, fitted)
    base = losses(gpt2, fitted)
    for block, affine in maps.items():
        with swap(gpt2, {block: affine}):
            assert found[block] == pytest.approx(float((losses(gpt2, fitted) - base).mean()), rel=1e-6)


def test_an_exact_map_costs_nothing_and_another_does(rows):
    """Planted: with its activation gone the block is a line."""
    gpt2 = tiny("mini-gpt2")
    gpt2.transformer.h[1].mlp.act = torch.nn.Identity()
    exact, _ = fit(sum(capture(gpt2, rows)[1].train))
    off = AffineMap(exact.weight, exact.bias + 3 * torch.eye(WIDTH)[0])
    assert abs(replace_one(gpt2, {1: exact}, rows.ids)[1]) < 1e-4
    assert abs(replace_one(gpt2, {1: off}, rows.ids)[1]) > 1e-3


def test_falcons_cosine_is_of_what_the_ffn_wrote():
    model, ids = small("falcon"), reads("falcon", n=24)["input_ids"]
    entered, _, y = around_first_layer(model, ids)
    cosine = torch.cosine_similarity(entered, entered + y, dim=1)
    assert rivals(model, ids, [0])[0].cosine == pytest.approx(float(1 - cosine.mean()), rel=1e-4)
