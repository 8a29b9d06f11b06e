import pytest
import torch
from torch.nn.functional import cross_entropy

from conftest import BLOCKS, WIDTH
from helpers.families import CAUSAL, reads, small
from helpers.first_layer import around_first_layer
from howlinear.core.ceilings import AffineMap, fit
from howlinear.errors import InputError
from howlinear.ideas.compression.price import price
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.swap import swap


@pytest.fixture
def maps(model, rows):
    return {block: fit(sum(kept.train))[0] for block, kept in capture(model, rows).items()}


def test_equals_gradients_taken_by_a_nudge_at_each_block(model, maps, ids):
    """Reference: the block's output plus a zero whose gradient is asked for, one sequence and one block at a time."""
    ids = ids[:3]
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


def test_the_slope_is_the_losss_own(gpt2, rows):
    """Going a small part of the way from the block to its map changes the loss by that part of the slope."""
    affine = AffineMap.constant(sum(capture(gpt2, rows)[1].train))
    gpt2, (site,) = gpt2.double(), sites(gpt2, [1])
    part, changed = 1e-3, []
    for sign in (1, -1):
        with swap(gpt2, {1: lambda x, s=sign: site.output(x) + s * part * (affine(x) - site.output(x))}):
            logits = gpt2(input_ids=rows.ids).logits[:, :-1].detach()
            changed.append(float(cross_entropy(logits.flatten(0, 1), rows.ids[:, 1:].flatten())))
    slope = price(gpt2, {1: affine}, rows.ids)[1].slope
    assert slope == pytest.approx((changed[0] - changed[1]) / (2 * part), rel=1e-3)
    assert abs(slope) > 1e-5


def test_the_residual_stream_is_what_the_next_block_gets(model, maps, ids):
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    found = price(model, maps, ids, batch_size=5)
    for block in range(BLOCKS - 1):  # transformers normalises the last one
        expected = states[block + 1].flatten(0, 1).double().var(0, correction=0).sum()
        assert found[block].stream == pytest.approx(float(expected), rel=1e-5)
    assert found[BLOCKS - 1].stream > 0


def test_an_error_that_the_loss_does_not_see_costs_nothing(gpt2, rows):
    """Planted: every reader of GPT-2's stream first subtracts the mean over features, so an equal error on all of
    them is invisible; the same error on one feature is not."""
    (site,) = sites(gpt2, [1])
    maps = {"all": torch.ones(WIDTH), "one": torch.eye(WIDTH)[3] * WIDTH**0.5}
    found, measured, base = {}, {}, losses(gpt2, rows.ids)
    for name, offset in maps.items():
        exact = lambda x, offset=offset: site.output(x.float()).to(x) + offset.to(x)  # noqa: E731
        found[name] = price(gpt2, {1: exact}, rows.ids)[1]
        with swap(gpt2, {1: lambda x, offset=offset: site.output(x) + offset}):
            measured[name] = float((losses(gpt2, rows.ids) - base).mean())
    assert found["all"].residual == pytest.approx(found["one"].residual, rel=1e-4) == pytest.approx(WIDTH, rel=1e-4)
    assert abs(measured["all"]) < 1e-5 < 1e-3 < abs(measured["one"])
    assert found["all"].cost < 1e-8 * found["one"].cost


def test_an_exact_map_costs_nothing(gpt2, rows):
    """Planted: with its activation gone the block is a line, and its map has no error to price."""
    gpt2.transformer.h[1].mlp.act = torch.nn.Identity()
    affine = fit(sum(capture(gpt2, rows)[1].train))[0]
    other = AffineMap(affine.weight, affine.bias + 0.1 * torch.eye(WIDTH)[0])
    exact, off = (price(gpt2, {1: found}, rows.ids)[1] for found in (affine, other))
    assert exact.cost < 1e-6 * off.cost
    assert off.cost > 0


def test_pricing_changes_nothing_and_works_on_frozen_models(model, maps, rows):
    before, found = losses(model, rows.ids), price(model, maps, rows.ids)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    with torch.no_grad():
        frozen = price(model.requires_grad_(False), maps, rows.ids, batch_size=5)
    for block in maps:
        assert frozen[block].cost == pytest.approx(found[block].cost, rel=1e-4)
    assert torch.equal(losses(model, rows.ids), before)


def test_some_blocks_alone_have_the_price_they_have_among_all(gpt2, rows, ids):
    maps = {block: fit(sum(kept.train))[0] for block, kept in capture(gpt2, rows).items()}
    alone, among = price(gpt2, {2: maps[2], 0: maps[0]}, ids), price(gpt2, maps, ids)
    for block in (0, 2):
        assert alone[block].cost == pytest.approx(among[block].cost, rel=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_nothing_to_price_is_refused(gpt2, ids):
    line = {0: AffineMap(torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())}
    with pytest.raises(InputError, match="no map to price"):
        price(gpt2, {}, ids)
    for given_ids in (ids[:0], ids[:, :1]):
        with pytest.raises(InputError, match="there is nothing to predict"):
            price(gpt2, line, given_ids)


def test_gradients_that_are_not_finite_name_the_block(gpt2, ids):
    line = {2: AffineMap(torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())}
    with torch.no_grad():
        gpt2.transformer.ln_f.weight.fill_(float("inf"))
    with pytest.raises(InputError, match="gradient at block 2 is not finite"):
        price(gpt2, line, ids)
    assert not any(module._forward_hooks for module in gpt2.modules())


@pytest.mark.parametrize("name", CAUSAL)
def test_of_every_family_a_map_that_writes_nothing_misses_all(name):
    model, ids = small(name), reads(name, n=5)["input_ids"]
    _, left, y = around_first_layer(model, ids)
    found = price(model, {0: torch.zeros_like}, ids)[0]
    torch.testing.assert_close(found.error, y.T @ y / len(y), rtol=1e-4, atol=1e-6)
    assert found.stream == pytest.approx(float(left.var(0, correction=0).sum()), rel=1e-4)


def test_a_model_that_predicts_no_next_token_has_no_price(gpt2, ids):
    line = {0: AffineMap(torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())}
    with pytest.raises(InputError, match="predicts no next token"):
        price(gpt2.transformer, line, ids)
