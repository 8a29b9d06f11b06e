from dataclasses import astuple
from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from conftest import BLOCKS, WIDTH, tiny
from helpers.families import VOCABULARY, small
from helpers.reference import least_squares
from helpers.unit_rows import seen
from howlinear.core.ceilings import AffineMap, fit
from howlinear.errors import InputError
from howlinear.ideas.compression.greedy import compress_to, fit_maps, frontier, greedy, hold_out, prefixes, together
from howlinear.ideas.compression.signals import price
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import Change, change, losses, perplexity
from howlinear.models.swap import swap
from howlinear.text.rows import ModelInputs, TokenRows
from howlinear.text.unpad import without_padding


def sure():
    """A tiny model that is sure of what it says, and whose blocks matter; block 1 is exactly affine."""
    model = linear_block(tiny("mini-gpt2"), 1)
    with torch.no_grad():
        model.transformer.ln_f.weight *= 4
        for block in model.transformer.h:
            block.mlp.c_fc.weight *= 2
            block.mlp.c_proj.weight *= 8
    return model


@pytest.fixture
def gpt2():
    return sure()


@pytest.fixture(scope="module")
def long():
    return text_of(sure())


def text_of(model):
    """Text as a model would have it, so that every change costs: token ids, shape (60, 32), in two sides."""
    torch.manual_seed(3)
    ids = torch.randint(80, (60, 1))
    while ids.shape[1] < 32:
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1].softmax(1).multinomial(1)], 1)
    return TokenRows.from_ids(ids)


def loss(model, maps, ids):
    with swap(model, maps):
        return float(losses(model, ids).mean())


def linear_block(model, block):
    """Make one block of a GPT-2 exactly affine."""
    model.transformer.h[block].mlp.act = nn.Identity()
    return model


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "falcon"])  # Falcon adds attention to y in place
def test_without_replaced_blocks_the_maps_are_those_of_a_capture(name):
    model = small(name)
    rows = TokenRows.from_ids(torch.randint(VOCABULARY, (64, 32), generator=torch.Generator().manual_seed(0)))
    maps = fit_maps(model, rows.ids[~rows.test], [1, 0], batch_size=5)
    assert list(maps) == [1, 0]
    for block, kept in capture(model, rows).items():
        expected, _ = fit(sum(kept.train))
        torch.testing.assert_close(maps[block].weight, expected.weight, rtol=0, atol=1e-5)


def test_behind_a_replaced_block_the_map_goes_from_shifted_inputs_to_the_whole_models_outputs(model, ids):
    maps = {0: AffineMap(torch.eye(WIDTH).double() / 2, torch.ones(WIDTH).double())}
    mine = fit_maps(model, ids, [2], maps, batch_size=7)[2]
    whole = seen(model, ids)[2]
    with swap(model, maps):
        x = seen(model, ids, [2])[2]["x"]
    assert not torch.allclose(x, whole["x"], atol=0.1)
    weight, bias, _ = least_squares(x, whole["y"])
    np.testing.assert_allclose(mine(x).numpy(), x.numpy() @ weight + bias, rtol=0, atol=1e-4)


def test_a_block_that_is_replaced_already_is_refitted_to_what_it_replaced(gpt2, ids):
    """Planted: a linear block, given a wrong map, gets its own map back; and the block behind is whole again."""
    right = fit_maps(gpt2, ids, [1])
    wrong = {1: AffineMap(3 * right[1].weight, right[1].bias)}
    again = fit_maps(gpt2, ids, [1], wrong)
    torch.testing.assert_close(again[1].weight, right[1].weight, rtol=0, atol=1e-4)
    assert abs(loss(gpt2, again, ids) - loss(gpt2, {}, ids)) < 1e-4 < abs(loss(gpt2, wrong, ids) - loss(gpt2, {}, ids))


def maps_with_one_off(model, ids, blocks=(0, 1)):
    """Planted: maps of linear blocks, that of block 1 off by a constant."""
    maps = fit_maps(model, ids, blocks)
    return maps | {1: AffineMap(maps[1].weight, maps[1].bias + 9 * torch.eye(WIDTH).double()[0])}


def test_maps_are_refitted_on_the_text_for_it_and_judged_on_the_other(gpt2):
    refit, others = hold_out(text_of(linear_block(gpt2, 0)).ids, 8)
    maps = maps_with_one_off(gpt2, others)
    last = list(greedy(gpt2, others, maps, [0, 1], trial_sequences=len(others), refit=refit))[-1]
    expected = fit_maps(gpt2, refit, [0, 1], maps)
    for block in (0, 1):
        assert torch.allclose(last.maps[block].weight, expected[block].weight)
    assert not torch.allclose(last.maps[1].weight, fit_maps(gpt2, others, [0, 1], maps)[1].weight)
    assert last.loss == pytest.approx(loss(gpt2, last.maps, others), abs=1e-9)


def test_sequences_are_held_out_evenly(ids):
    some, others = hold_out(ids, 4)
    assert torch.equal(some, ids[::6])
    assert len(some) + len(others) == len(ids)
    assert torch.equal(others[:5], ids[1:6])
    for count in (0, 13):
        with pytest.raises(InputError, match="to hold out"):
            hold_out(ids, count)


def test_the_cheapest_candidate_goes_first(gpt2, ids):
    """Against trying every block by hand; with one candidate the order decides."""
    maps = fit_maps(gpt2, ids, range(BLOCKS))
    costs = {block: loss(gpt2, {block: maps[block]}, ids) for block in maps}
    cheapest, dearest = min(costs, key=costs.get), max(costs, key=costs.get)
    order = sorted(costs, key=costs.get, reverse=True)
    assert next(greedy(gpt2, ids, maps, order, candidates=3, trial_sequences=len(ids))).block == cheapest
    assert next(greedy(gpt2, ids, maps, order, candidates=1, trial_sequences=len(ids))).block == dearest
    assert [step.block for step in greedy(gpt2, ids, maps, order, candidates=1)] == order


def test_losses_are_compared_on_sequences_spread_over_all(gpt2, ids):
    maps = fit_maps(gpt2, ids, [1])
    step = next(greedy(gpt2, ids, maps, [1], trial_sequences=5))
    assert step.base == pytest.approx(loss(gpt2, {}, ids[::5]), abs=1e-9)


def test_a_linear_block_is_replaced_for_nothing_and_the_budget_is_kept_on_held_out_text(gpt2, long):
    before = losses(gpt2, long.ids)
    plan = compress_to(gpt2, long, max_dppl=0.01, candidates=1)
    assert list(plan.maps) == [1]
    assert plan.base == pytest.approx(perplexity(gpt2, long), rel=1e-9)
    with swap(gpt2, plan.maps):
        assert plan.perplexity == pytest.approx(perplexity(gpt2, long), rel=1e-9)
    assert plan.delta.delta == pytest.approx(plan.perplexity - plan.base, abs=1e-9)
    assert abs(plan.delta.delta) < 1e-3
    assert plan.delta.low <= plan.delta.delta <= plan.delta.high
    assert [step["block"] for step in plan.steps] == [1]
    assert torch.equal(losses(gpt2, long.ids), before)
    # why there are no more: what the next step of the search costs
    maps, order = _given(gpt2, long)
    _, second, *_ = greedy(gpt2, long.ids[~long.test], maps, order, 1)
    assert plan.next_step == {"block": second.block, "dppl": pytest.approx(second.delta), "text": "to fit on"}
    assert plan.next_step["dppl"] > 0.01
    assert f"{second.delta:+.2f}" in plan.outlook


def test_a_wide_budget_takes_every_block(model, rows):
    rows = TokenRows(rows.ids, rows.test, torch.arange(24) // 4 % 3)
    plan = compress_to(model, rows, max_dppl=1e6, candidates=2)
    assert sorted(plan.maps) == list(range(BLOCKS))
    assert plan.next_step is None
    assert sorted(step["block"] for step in plan.steps) == list(range(BLOCKS))
    with swap(model, plan.maps):
        after = losses(model, rows)
    assert plan.perplexity == pytest.approx(float(after.mean().exp()), rel=1e-9)
    assert plan.delta == change(losses(model, rows), after, rows.fold[rows.test])


def test_steps_that_only_the_text_to_fit_on_allows_are_dropped(gpt2, long, monkeypatch):
    """Held out, every map beyond the first is made harmful; the plan must go back to one."""
    full = compress_to(gpt2, long, 1e6)
    limit = [step["dppl"] for step in full.steps]

    def spoiled(*arguments, **options):
        for count, step in enumerate(greedy(*arguments, **options)):
            if count:
                step.maps[step.block] = AffineMap(100 * step.maps[step.block].weight, step.maps[step.block].bias + 50)
            yield step

    first = next(greedy(gpt2, long.ids[~long.test], *_given(gpt2, long)))
    held_out = loss(gpt2, first.maps, long.ids[long.test])
    budget = max(np.exp(held_out) - np.exp(loss(gpt2, {}, long.ids[long.test])), *limit) + 1e-3
    monkeypatch.setattr("howlinear.ideas.compression.greedy.greedy", spoiled)
    plan = compress_to(gpt2, long, budget)
    assert list(plan.maps) == [first.block]
    assert [step["block"] for step in plan.steps] == [first.block]
    assert plan.delta.delta <= budget
    assert plan.next_step["block"] == full.steps[1]["block"]
    assert plan.next_step["dppl"] > budget
    assert plan.next_step["text"] == "held out"


def _given(model, rows):
    ids = rows.ids[~rows.test]
    maps = fit_maps(model, ids, range(BLOCKS))
    costs = {block: found.cost for block, found in price(model, maps, ids).items()}
    return maps, sorted(costs, key=costs.get)


def test_blocks_that_are_linear_already_are_passed_over(gpt2, long):
    gpt2.transformer.h[0].mlp = nn.Linear(WIDTH, WIDTH)
    gpt2.transformer.h[2].mlp = nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH))
    assert list(compress_to(gpt2, long, 1e6).maps) == [1]
    gpt2.transformer.h[1].mlp = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(InputError, match="for 0 blocks that are not replaced yet"):
        compress_to(gpt2, long, 1e6)


def set_prices(monkeypatch, costs):
    """Have blocks priced otherwise; the token ids by which they would have been priced are put into a list."""
    prices = {block: SimpleNamespace(cost=cost) for block, cost in costs.items()}
    priced = []
    monkeypatch.setattr("howlinear.ideas.compression.greedy.price", lambda *given: priced.append(given[2]) or prices)
    return priced


def test_a_shortlist_that_misses_the_only_block_within_the_budget_is_widened(gpt2, long, monkeypatch):
    set_prices(monkeypatch, {0: 0, 1: 2, 2: 1})
    assert list(compress_to(gpt2, long, 0.01, candidates=1).maps) == [1]


def test_an_impossible_budget_names_the_cheapest_block_and_its_cost(gpt2, long, monkeypatch):
    """After one search, if the first candidates are all blocks already."""
    maps, order = _given(gpt2, long)
    ids = long.ids[~long.test]
    cheapest = next(greedy(gpt2, ids, maps, order, BLOCKS))
    searches = []
    watched = "howlinear.ideas.compression.greedy.greedy"
    monkeypatch.setattr(watched, lambda *given, **options: searches.append(given[4]) or greedy(*given, **options))
    with pytest.raises(InputError, match=r"no block can be replaced within -5 of perplexity") as caught:
        compress_to(gpt2, long, -5.0, candidates=BLOCKS + 1)
    assert f"block {cheapest.block}, costs {cheapest.delta:+.3g} on the text to fit on" in str(caught.value)
    assert searches == [BLOCKS]


def test_a_budget_that_only_the_text_to_fit_on_allows_is_impossible(gpt2, long, monkeypatch):
    def flattering(*arguments, **options):
        for step in islice(greedy(*arguments, **options), 1):
            yield type(step)(step.block, step.maps, step.base, step.base - 10)

    monkeypatch.setattr("howlinear.ideas.compression.greedy.greedy", flattering)
    with pytest.raises(InputError, match=r"block \d, costs \+?-?[\d.e+-]+ on the text held out; allow more"):
        compress_to(gpt2, long, -5.0)


def test_padding_is_left_out_and_ids_that_the_model_has_not_are_refused(gpt2, ids):
    padded = {"input_ids": torch.cat([ids, torch.zeros_like(ids[:, :4])], 1)}
    padded["attention_mask"] = (torch.arange(36) < 32).long().expand(len(ids), -1)
    plan = compress_to(gpt2, ModelInputs.of(padded), 1e6)
    packed = without_padding(ModelInputs.of(padded))
    assert packed.ids.numel() <= ids.numel()
    assert plan.base == pytest.approx(perplexity(gpt2, packed), rel=1e-9)
    with pytest.raises(InputError, match="the model knows 0 to"):
        compress_to(gpt2, TokenRows.from_ids(ids + 100), 1e6)


def test_a_side_without_sequences_is_refused(gpt2, ids):
    for test in (torch.ones(24).bool(), torch.arange(24) < 1):
        with pytest.raises(InputError, match="sequences on both sides"):
            compress_to(gpt2, TokenRows(ids, test, torch.zeros(24).long()), 1.0)


def test_a_search_without_candidates_is_refused(gpt2, ids):
    maps = fit_maps(gpt2, ids, [1])
    for order, options in (([1], {"candidates": 0}), ([1], {"trial_sequences": 0}), ([], {})):
        with pytest.raises(InputError, match="give at least one of each"):
            next(greedy(gpt2, ids, maps, order, **options))
    with pytest.raises(InputError, match=r"20 train rows for 32 inputs"):
        fit_maps(gpt2, ids[:1, :20], [1])


# --- tables


def test_the_frontier_measures_every_step_of_every_way(gpt2, rows):
    """On the held-out side, by its document folds."""
    maps = fit_maps(gpt2, rows.ids, range(BLOCKS))
    ways = {"up": prefixes(maps, [0, 1, 2], 3), "down": prefixes(maps, [2, 1, 0], 2)}
    table = frontier(gpt2, ways, rows)
    assert table[["way", "count"]].to_numpy().tolist() == [["up", 1], ["up", 2], ["up", 3], ["down", 1], ["down", 2]]
    assert table["block"].tolist() == [0, 1, 2, 2, 1]
    whole, line = 8 * WIDTH**2 + 5 * WIDTH, WIDTH**2 + WIDTH
    left = {count: (line * count + whole * (3 - count)) / (3 * whole) for count in (1, 2, 3)}
    assert table.share.tolist() == pytest.approx([left[count] for count in table["count"]])
    taken = [plan for plans in ways.values() for plan in plans]
    base = losses(gpt2, rows)
    for row, plan in zip(table.itertuples(), taken, strict=True):
        with swap(gpt2, plan):
            after = losses(gpt2, rows)
        assert row.nats == pytest.approx(float((after - base).mean()), abs=1e-9)
        expected = change(base, after, rows.fold[rows.test])
        assert (row.delta, row.delta_low, row.delta_high) == pytest.approx(astuple(expected), rel=1e-9)


def test_a_set_together_beside_the_sum_of_its_blocks(gpt2, ids):
    maps = fit_maps(gpt2, ids, range(BLOCKS))
    costs = pd.Series({0: 1.0, 1: 10.0, 2: 100.0})
    found = together(gpt2, maps, [2, 0], costs, ids)
    both = loss(gpt2, {0: maps[0], 2: maps[2]}, ids)
    assert found == {"naive": pytest.approx(both - loss(gpt2, {}, ids), abs=1e-9), "summed": 101}


def test_with_one_candidate_blocks_go_in_the_order_of_their_price(gpt2, long, monkeypatch):
    """Planted: the linear block, which costs nothing, is priced the highest."""
    priced = set_prices(monkeypatch, {0: 2, 1: 3, 2: 1})
    plan = compress_to(gpt2, long, 1e9, candidates=1)
    assert [step["block"] for step in plan.steps] == [2, 0, 1]
    assert torch.equal(*priced, long.ids[~long.test])


@pytest.mark.parametrize("helps", [True, False], ids=["a refit helps", "a refit harms"])
def test_each_step_keeps_the_best_of_the_maps_in_place_those_alone_and_those_refitted(gpt2, ids, helps):
    if helps:
        model, order = linear_block(gpt2, 0), [0, 1, 2]
        ids = text_of(model).ids
        maps = maps_with_one_off(model, ids, range(BLOCKS))
    else:
        model, order = tiny("mini-llama", 1), [2, 0, 1]
        maps = fit_maps(model, ids, range(BLOCKS))
    steps = list(greedy(model, ids, maps, order, candidates=1, trial_sequences=len(ids)))
    for number, step in enumerate(steps):
        assert step.block == order[number]
        assert step.maps.keys() == set(order[: number + 1])
        assert step.base == pytest.approx(loss(model, {}, ids), abs=1e-9)
        assert step.loss == pytest.approx(loss(model, step.maps, ids), abs=1e-9)
        assert step.delta == pytest.approx(np.exp(step.loss) - np.exp(step.base))
    helped = []
    for before, step in pairwise(steps):
        in_place = before.maps | {step.block: maps[step.block]}
        alone = {block: maps[block] for block in in_place}
        refitted = fit_maps(model, ids, list(in_place), in_place)  # on what the maps in place send
        *others, of_refit = [loss(model, each, ids) for each in (in_place, alone, refitted)]
        assert step.loss == pytest.approx(min(*others, of_refit), abs=1e-9)
        helped.append(of_refit < min(others) - 1e-6)
    assert any(helped) == helps


def test_the_budget_is_of_the_value_and_speeds_are_before_and_after(gpt2, long, monkeypatch):
    speeds = iter([1.0, 2.0])
    wide = Change(0.005, -1.0, 1.0)
    monkeypatch.setattr("howlinear.ideas.compression.greedy.change", lambda *_: wide)
    monkeypatch.setattr(
        "howlinear.ideas.compression.greedy.timed_losses", lambda model, ids, _: (losses(model, ids), next(speeds))
    )
    plan = compress_to(gpt2, long, 0.01, candidates=1)
    assert list(plan.maps) == [1]
    assert plan.speeds == (1.0, 2.0)
