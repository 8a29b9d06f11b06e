import copy

import pandas as pd
import pytest
import torch

from helpers.planted_products import OUT, D, kept_of, line, products
from helpers.reference import least_squares, normal
from howlinear.errors import InputError
from howlinear.ideas.bilinear import recipe as module
from howlinear.ideas.bilinear.recipe import Products, follow, papers_gain, recipe

STEPS = 400


def even(n):
    return normal(n, D)


@pytest.fixture(scope="module")
def found():
    """A block whose residual is two products, and one whose residual is noise, side by side, at ten times the rate."""
    x = even(1_600)
    noise = normal(1_600, OUT, seed=3)
    blocks = {2: kept_of(x, line(x) + 0.2 * products(x) + 0.02 * noise), 5: kept_of(x, line(x) + 3 * noise)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RATE", 10 * module.RATE)
        return blocks, recipe(blocks, rank=4, steps=STEPS)


def test_it_finds_planted_products_and_none_in_noise(found):
    blocks, gains = found
    truth = 0.2 * products(even(1_600))[1_200:]
    y = blocks[2].sample.y[1_200:].double()
    share = float((truth - truth.mean(0)).square().sum() / (y - y.mean(0)).square().sum())
    assert share > 0.05
    assert gains.apart_all[2] == pytest.approx(share, abs=0.1 * share)
    assert abs(gains.apart_all[5]) < 0.005


def test_chosen_on_the_scored_rows_it_is_never_below_0_nor_below_an_honest_choice(found):
    _, gains = found
    assert (gains.published >= 0).all()
    assert (gains.published >= gains.apart - module.BETTER).all()
    assert (gains.scored_all >= gains.apart_all - module.BETTER).all()


def test_few_rows_gain_less_and_are_as_many_per_input_as_the_papers(found):
    _, gains = found
    assert (gains.rows_few == round(15.625 * D)).all()
    assert (gains.rows_all == 900).all()  # three of four train folds of 300
    assert gains.published[2] < gains.scored_all[2]


def test_blocks_trained_together_are_trained_as_if_alone():
    x = even(400)
    blocks = {0: kept_of(x, line(x)), 3: kept_of(x, line(x) + products(x))}
    together, alone = recipe(blocks, rank=2, steps=200), recipe({3: blocks[3]}, rank=2, steps=200)
    assert alone.scored_all[3] > 0.001
    pd.testing.assert_frame_equal(alone, together.loc[[3]], atol=1e-5)


def test_where_the_sample_holds_no_more_few_is_all():
    x = even(200)
    gains = recipe({0: kept_of(x, line(x) + products(x))}, rank=2, steps=200)
    assert gains.rows_few.equals(gains.rows_all)
    assert gains.apart.equals(gains.apart_all)


@pytest.mark.parametrize(
    ("scores", "kept", "is_over"),
    [
        ([], None, False),
        ([-0.1, -0.2], None, False),
        ([0.00005], None, False),  # not better by 1e-4
        ([0.1, 0.10005, 0.0], 0, False),
        ([0.1, 0.0, 0.0, 0.0, 0.5], 0, True),  # three without a better one end it
        ([0.1, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.9], 3, True),
    ],
)
def test_which_evaluation_is_kept_by_hand(scores, kept, is_over, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 3)
    assert follow(scores) == (kept, is_over)


def test_the_start_is_the_papers():
    model = module.Products(3, 64, 8, 4, torch.Generator().manual_seed(0)).requires_grad_(False)
    assert float(model.left.abs().max()) <= 64**-0.5
    assert float(model.readout.abs().max()) <= 4**-0.5
    assert torch.equal(model.left[0], model.left[2])
    assert float(model.gate.exp().mean()) == pytest.approx(0.1353, abs=1e-4)
    x = normal(3, 5, 64).float()
    expected = model.gate[1].exp() * (((x[1] @ model.left[1]) * (x[1] @ model.right[1])) @ model.readout[1])
    torch.testing.assert_close(model(x)[1], expected)


@pytest.mark.parametrize(("rank", "steps"), [(0, 400), (D + 1, 400), (2, 199)])
def test_a_rank_or_a_number_of_steps_that_cannot_be_is_refused(rank, steps):
    x = even(200)
    with pytest.raises(InputError, match=f"rank={rank}, steps={steps}"):
        recipe({0: kept_of(x, line(x))}, rank, steps)


@pytest.mark.long
def test_a_run_that_has_ended_for_every_block_is_not_trained_on_and_says_the_same(monkeypatch):
    x = even(400)
    blocks = {0: kept_of(x, line(x) + 3 * normal(400, OUT, seed=3))}  # nothing to be found
    asked = []
    monkeypatch.setattr(module, "_gains", lambda *_: asked.append(1) or torch.zeros(1, dtype=torch.float64))
    assert recipe(blocks, rank=2, steps=4_000).scored_all[0] == 0
    # two judges of few and of all rows, each with the evaluations of the patience and no more
    assert len(asked) in (2 * module.PATIENCE, 4 * module.PATIENCE)


def slow_gain(x, y, cut, start, steps):
    """The paper's recipe written out for one block: its R² of the line and of line and products, about one scalar."""
    weight, bias, _ = least_squares(x[:cut], y[:cut])
    line = (torch.from_numpy(x.double().numpy() @ weight + bias)).float()
    left, right, readout = (p.detach()[0].clone().requires_grad_() for p in (start.left, start.right, start.readout))
    gate = start.gate.detach()[0, 0].clone().requires_grad_()

    def predicted(rows):
        return line[rows] + gate.exp() * (((x[rows] @ left) * (x[rows] @ right)) @ readout)

    def r2(said):
        scored = y[cut:].double()
        return float(1 - (scored - said.double()).square().sum() / (scored - scored.mean()).square().sum())

    optimiser = torch.optim.Adam([left, right, readout, gate], lr=module.RATE)
    generator = torch.Generator().manual_seed(0)
    of_line = best = r2(line[cut:])
    waited = 0
    for step in range(1, steps + 1):
        batch = torch.randint(cut, (256,), generator=generator)
        optimiser.zero_grad()
        (predicted(batch) - y[batch]).square().mean().backward()
        optimiser.step()
        if step % 200 == 0:
            with torch.no_grad():
                score = r2(predicted(slice(cut, None)))
            best, waited = (score, 0) if score > best + 1e-4 else (best, waited + 1)
            if waited == 8:
                break
    return best - of_line


def test_on_the_papers_rows_it_is_the_recipe_written_out(monkeypatch):
    """All rows before the cut in order, those behind it scored about one scalar mean; the features' means differ."""
    monkeypatch.setattr(module, "RATE", 10 * module.RATE)
    x = even(600).float()
    offsets = 3 * torch.arange(OUT)
    y = (line(x.double()) + products(x.double()) + 0.1 * normal(600, OUT, seed=3) + offsets).float()
    start = Products(1, D, OUT, 2, torch.Generator().manual_seed(4))
    expected = slow_gain(x, y, 477, copy.deepcopy(start), 400)
    assert expected > 0.001
    assert papers_gain(x, y, 477, rank=2, steps=400, start=start) == pytest.approx(expected, abs=1e-5)
