"""Signals by hand, by slow references, and on blocks whose answer is known."""

import math

import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

from conftest import BLOCKS, WIDTH
from helpers.families import CAUSAL, reads, small
from howlinear.core.ceilings import AffineMap, fit
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.signals import (
    REPLACE_ONE,
    cca_bound,
    cca_bounds,
    divergences,
    measure,
    price,
    replace_one,
    signals,
    stream,
)
from howlinear.instrument.capture import capture, hooked
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.swap import swap

FACTORIAL = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
BENT = FACTORIAL.prod(1)  # as loud as either input, and correlated with none
SAME = AffineMap(torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())


def lines_of(model, rows):
    return {block: fit(sum(kept.train))[0] for block, kept in capture(model, rows).items()}


@torch.no_grad()
def around_first_layer(model, ids):
    """The residual stream before and after the first layer, and its FFN's output, copied: Falcon writes into it."""
    seen = []
    with hooked(sites(model, [0]), lambda site, x, y: seen.append(y.clone())):
        states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    return [rows.flatten(0, -2).double() for rows in (*states[:2], *seen)]


# --- the price in the loss


@pytest.fixture
def maps(model, rows):
    return lines_of(model, rows)


def test_equals_gradients_taken_by_a_nudge_at_each_block(model, maps, ids):
    """Reference: the block's output plus a zero whose gradient is asked for, one sequence and one block at a time."""
    ids = ids[:3]
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    found = price(model, maps, ids, batch_size=2)
    predicted, tokens = 3 * 31, 3 * 32
    for site in sites(model):
        gs, rs = [], []
        for row in ids:
            nudge, seen = torch.zeros(1, 32, WIDTH, requires_grad=True), {}

            def nudged(x, site=site, nudge=nudge, seen=seen):
                seen["x"], seen["y"] = x, site.output(x)
                return seen["y"] + nudge

            with swap(model, {site.block: nudged}):
                logits = model(input_ids=row[None]).logits[0, :-1]
                cross_entropy(logits, row[1:], reduction="sum").backward()
            gs.append(nudge.grad[0].double())
            rs.append((seen["y"] - maps[site.block](seen["x"].double()))[0].detach().double())
        g, r, mine = torch.cat(gs), torch.cat(rs), found[site.block]
        torch.testing.assert_close(mine.metric, g.T @ g / predicted, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(mine.error, r.T @ r / tokens, rtol=1e-4, atol=1e-7)
        assert mine.cost == pytest.approx(float(torch.trace(g.T @ g @ r.T @ r)) / predicted / tokens / 2, rel=1e-4)
        assert mine.paired == pytest.approx(float((g * r).sum(1).square().sum()) / predicted / 2, rel=1e-4)
        assert mine.slope == pytest.approx(-float((g * r).sum()) / predicted, rel=1e-3, abs=1e-6)
        assert mine.residual == pytest.approx(float(r.square().sum()) / tokens, rel=1e-4)
        if site.block + 1 < BLOCKS:  # transformers normalises what the last one leaves
            left = states[site.block + 1].flatten(0, 1).double()
            assert mine.stream == pytest.approx(float(left.var(0, correction=0).sum()), rel=1e-5)


def test_pricing_changes_nothing_and_works_on_frozen_models(model, maps, rows):
    before, found = losses(model, rows.ids), price(model, maps, rows.ids)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    with torch.no_grad():
        frozen = price(model.requires_grad_(False), maps, rows.ids, batch_size=5)
    for block in maps:
        assert frozen[block].cost == pytest.approx(found[block].cost, rel=1e-4)
    assert torch.equal(losses(model, rows.ids), before)


def test_gradients_that_are_not_finite_name_the_block(gpt2, ids):
    with torch.no_grad():
        gpt2.transformer.ln_f.weight.fill_(float("inf"))
    with pytest.raises(InputError, match="gradient at block 2 is not finite"):
        price(gpt2, {2: SAME}, ids)
    assert not any(module._forward_hooks for module in gpt2.modules())


@pytest.mark.parametrize("name", CAUSAL)
def test_of_every_family_a_map_that_writes_nothing_misses_all(name):
    model, ids = small(name), reads(name, n=5)["input_ids"]
    _, left, y = around_first_layer(model, ids)
    found = price(model, {0: torch.zeros_like}, ids)[0]
    torch.testing.assert_close(found.error, y.T @ y / len(y), rtol=1e-4, atol=1e-6)
    assert found.stream == pytest.approx(float(left.var(0, correction=0).sum()), rel=1e-4)


# --- the residual stream


def moments_of(x, y):
    return Moments(x.shape[1], y.shape[1]).update(x, y), Moments(y.shape[1]).update(y)


PARTLY_BENT = torch.stack([FACTORIAL[:, 0], 0.6 * FACTORIAL[:, 1] + 0.8 * BENT], 1)  # of the second, ρ² = 0.36


@pytest.mark.parametrize(
    ("x", "y", "bound"),
    [
        (FACTORIAL, PARTLY_BENT, 0.64),
        # loudness does not count, which the share of variance that a line misses does see
        (FACTORIAL, PARTLY_BENT * torch.tensor([1.0, 100.0]), 0.64),
        (FACTORIAL, FACTORIAL @ torch.tensor([[1.0, 2.0], [3.0, -1.0]]), 0),
        (FACTORIAL, BENT[:, None], 1),
        (FACTORIAL[:, :1], FACTORIAL, 1),  # an output beyond the inputs' number counts whole
    ],
)
def test_a_bound_by_hand(x, y, bound):
    assert cca_bound(*moments_of(x, y)) == pytest.approx(bound, rel=1e-6, abs=1e-9)


def test_equals_a_reference_from_the_hidden_states(model, ids):
    """transformers gives the stream between layers; the last it gives normalised, so that one is left out."""
    outputs = {}
    with torch.no_grad(), hooked(sites(model), lambda site, x, y: outputs.__setitem__(site.block, y.clone())):
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    turned, bounds = stream(model, ids), cca_bounds(model, ids)
    parallel = getattr(model.config, "use_parallel_residual", False)
    for block in range(BLOCKS - 1):
        entered, left, y = (rows.flatten(0, -2).double() for rows in (*states[block : block + 2], outputs[block]))
        before = entered if parallel else left - y
        after = before + y
        cosine = (before * after).sum(1) / (before.norm(dim=1) * after.norm(dim=1))
        whole = (entered * left).sum(1) / (entered.norm(dim=1) * left.norm(dim=1))
        assert float(turned.ffn[block]) == pytest.approx(float(1 - cosine.mean()), rel=1e-4)
        assert float(turned.influence[block]) == pytest.approx(float(1 - whole.mean()), rel=1e-4)
        attention = torch.cosine_similarity(entered, left - y, dim=1)
        assert float(turned.attention[block]) == pytest.approx(float(1 - attention.mean()), rel=1e-4)
        # the canonical correlations by QR: singular values of Qxᵀ Qy
        q_before, q_after = (torch.linalg.qr(rows - rows.mean(0)).Q for rows in (before, after))
        rho = torch.linalg.svdvals(q_before.T @ q_after)
        assert bounds[block] == pytest.approx(float((1 - rho.square()).sum()), rel=1e-3, abs=1e-4)
    span = turned.span_distances(2).tolist()
    assert len(span) == BLOCKS - 1
    assert span[0] == pytest.approx(float(1 - torch.cosine_similarity(states[0], states[2], dim=-1).double().mean()))


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_stream_is_refused(gpt2, ids):
    gpt2.transformer.h[1].ln_2 = torch.nn.Sequential(torch.nn.Identity())
    assert float(stream(gpt2, ids).ffn[1]) > 0  # no norm, and yet something that reads the stream
    gpt2.transformer.h[1].register_forward_hook(lambda layer, args, output: 2 * output)  # not what was written
    for look in (stream, cca_bounds):
        with pytest.raises(InputError, match=r"block 1 .* does not add its output"):
            look(gpt2, ids)
    assert not any(module._forward_pre_hooks for module in gpt2.modules())


def test_replacing_one_costs_what_swapping_it_costs(gpt2, rows):
    fitted = rows.ids[~rows.test]  # more than a batch
    maps = lines_of(gpt2, rows)
    found = replace_one(gpt2, maps, fitted)
    base = losses(gpt2, fitted)
    for block in maps:
        with swap(gpt2, {block: maps[block]}):
            assert found[block] == pytest.approx(float((losses(gpt2, fitted) - base).mean()), rel=1e-6)


def test_falcons_cosine_is_of_what_the_ffn_wrote():
    model, ids = small("falcon"), reads("falcon", n=24)["input_ids"]
    entered, _, y = around_first_layer(model, ids)
    cosine = torch.cosine_similarity(entered, entered + y, dim=1)
    assert float(stream(model, ids).ffn[0]) == pytest.approx(float(1 - cosine.mean()), rel=1e-4)


def test_rows_of_all_sequences_as_one_are_laid_out_as_the_stream_is():
    """OPT's feed-forward blocks read and write them so."""
    model, ids = small("opt"), reads("opt", n=24)["input_ids"]
    written = []
    with torch.no_grad(), hooked(sites(model), lambda _, __, y: written.append(y.clone())):
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert written[0].ndim == 2
    left = states[1].flatten(0, -2)
    cosine = torch.cosine_similarity(left - written[0], left, dim=1)
    assert float(stream(model, ids).ffn[0]) == pytest.approx(float(1 - cosine.mean()), rel=1e-4)


# --- how far predictions move, against a sum over the whole vocabulary done by hand


def divergence_by_hand(model, block, module, ids):
    with torch.no_grad():
        p = model(input_ids=ids).logits[:, :-1].double().softmax(-1)
        with swap(model, {block: module}):
            q = model(input_ids=ids).logits[:, :-1].double().softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())


def test_the_divergence_is_the_mean_of_all_predictions(model, ids):
    found = divergences(model, {0: torch.zeros_like, 2: torch.zeros_like}, ids, batch_size=5)
    assert list(found) == [0, 2]
    for block, divergence in found.items():
        assert divergence == pytest.approx(divergence_by_hand(model, block, torch.zeros_like, ids), rel=1e-4)
        assert divergence > 1e-3


def test_predictions_that_are_not_finite_are_refused(gpt2, ids):
    with pytest.raises(InputError, match="predictions with block 1 replaced are not finite"):
        divergences(gpt2, {1: lambda x: x * math.inf}, ids, 4)


# --- all of them


def test_every_signal_by_hand(gpt2, rows):
    """From a table of powers of ten that says which column a signal is made of."""
    columns = ["residual", "residual_over_stream", "ablation", "price", "price_paired", "block_influence"]
    columns += ["sublayer_cosine", "cca_bound", "replace_one"]
    table = pd.DataFrame([{name: 10.0**place for place, name in enumerate(columns)} | {"r2": 0.75}])
    (row,) = signals(table).to_dict("records")
    assert row == {
        "1 − R²": 0.25,
        "residual": 1,
        "residual / stream": 10,
        "ablation": 100,
        "ablation × (1 − R²)": 25,
        "price": 1e3,
        "price, paired": 1e4,
        "block influence": 1e5,
        "sub-layer cosine": 1e6,
        "CCA bound": 1e7,
        REPLACE_ONE: 1e8,
    }
    assert "CCA bound" not in signals(table.assign(cca_bound=math.nan))


def test_all_blocks_are_measured_as_the_functions_measure_them(gpt2, rows, ids):
    maps = lines_of(gpt2, rows)
    prices = price(gpt2, maps, ids)
    table = measure(gpt2, maps, prices, ids[:9], ids[:4])
    assert table.index.tolist() == list(range(BLOCKS))
    for block, row in table.iterrows():
        assert (row.price, row.price_paired) == (prices[block].cost, prices[block].paired)
        assert row.residual == pytest.approx(float(prices[block].error.trace()))
        assert row.residual_over_stream == pytest.approx(row.residual / prices[block].stream)
    assert table["block_influence"].tolist() == stream(gpt2, ids[:9]).influence.tolist()
    assert table["sublayer_cosine"].tolist() == stream(gpt2, ids[:9]).ffn.tolist()
    assert table["cca_bound"].to_dict() == cca_bounds(gpt2, ids[:9])
    assert table["replace_one"].to_dict() == replace_one(gpt2, maps, ids[:4])
    some = measure(gpt2, {block: maps[block] for block in (2, 1)}, prices, ids[:9], ids[:4])
    pd.testing.assert_frame_equal(some, table.loc[[2, 1]])
    # no norm reads what the FFN adds to: the stream's signals are left out, the others stand
    gpt2.transformer.h[1].register_forward_hook(lambda layer, args, output: 2 * output)
    table = measure(gpt2, maps, price(gpt2, maps, ids[:4]), ids[:4], ids[:4])
    assert table[["block_influence", "sublayer_cosine", "cca_bound"]].isna().all(axis=None)
    assert table["price"].notna().all()
