"""A gate in closed form: on rows whose straight half is known, on a tiny model, and by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from helpers.unit_rows import seen
from howlinear.core.ceilings import AffineMap, fit
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.gate import fit as fitting
from howlinear.ideas.gate import measure, planted
from howlinear.ideas.gate.fit import GATE, ORACLE, RANDOM, BlockRows, Gated, block_rows, fit_gate, split_in_three
from howlinear.instrument.perplexity import change, losses
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model
from howlinear.models.swap import swap
from howlinear.text.corpus import load_corpus
from howlinear.text.rows import TokenRows

D = 8
FOLDS = 4


class Bent(nn.Module):
    """A line on the rows that `straight` names, and an error of one size and any direction on the others."""

    def __init__(self, straight, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.line = AffineMap(torch.randn(D, D, generator=generator).double(), torch.ones(D).double())
        self.turn = torch.randn(D, D, generator=generator)
        self.straight = straight

    def forward(self, x):
        # the directions of errors are even in x, so that no line explains them
        error = nn.functional.normalize((x @ self.turn).cos(), dim=-1)
        return self.line(x) + torch.where(self.straight(x)[..., None], 0.0, 3.0) * error


def beyond_the_plane(x):
    return x[..., 0] + x[..., 1] > 0


def near_the_plane(x):
    return (x[..., 0] + x[..., 1]).abs() < 0.9539  # the median of |N(0, 2)|


def rows_of(block, n=4_000, seed=1):
    x = torch.randn(n, D, generator=torch.Generator().manual_seed(seed))
    return BlockRows(x, block(x), torch.arange(n) % FOLDS)


def fitted(straight):
    block = Bent(straight)
    return fit_gate(block, rows_of(block), rows_of(block, seed=2))


@pytest.fixture(scope="module")
def known():
    return fitted(beyond_the_plane)


# --- what a gate finds where the truth is planted


def test_the_gate_finds_the_straight_half_and_its_line(known):
    x = rows_of(known.ffn, seed=3).x
    half = known.gated(GATE, 0.5)
    takes = half.takes(x)
    assert float(takes.float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(beyond_the_plane(x)[takes].float().mean()) > 0.97
    # on all rows the first line errs, on the straight ones the second does not
    error = (half.line(x[takes]) - known.ffn(x)[takes]).norm(dim=1)
    assert float(error.median()) < 0.1 * float((known.line(x[takes]) - known.ffn(x)[takes]).norm(dim=1).median())
    assert known.error_score_fit.r2 > 0.4
    assert known.error_score_fit.r2_low < known.error_score_fit.r2 < known.error_score_fit.r2_high


def test_a_gate_is_no_better_than_a_random_rank_where_no_affine_function_tells():
    blind = fitted(near_the_plane)
    x = rows_of(blind.ffn, seed=3).x
    assert blind.error_score_fit.r2 < 0.02
    straight = near_the_plane(x)
    assert float(straight.float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(straight[blind.gated(GATE, 0.5).takes(x)].float().mean()) == pytest.approx(0.5, abs=0.05)
    assert float(straight[blind.gated(ORACLE, 0.45).takes(x)].float().mean()) > 0.97


def test_the_score_is_the_least_squares_line_of_the_log_error(known):
    x, y = known.rows.x.double().numpy(), known.rows.y.double().numpy()
    design = np.c_[x, np.ones(len(x))]
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    target = np.log(np.square(residual).sum(1))
    expected = design @ np.linalg.lstsq(design, target, rcond=None)[0]
    np.testing.assert_allclose(known.ranks[GATE](known.rows.x), expected, atol=1e-3)


def test_massive_rows_are_fitted_by_no_line_and_told_by_the_score():
    def with_massive(rows):
        """Every fiftieth row stands apart in x and writes two hundred times as much."""
        x, y = rows.x.clone(), rows.y.clone()
        x[::50, 3] += 30
        y[::50] *= 200
        return BlockRows(x, y, rows.fold)

    block = Bent(beyond_the_plane)
    plain = rows_of(block)
    gate = fit_gate(block, with_massive(plain), with_massive(rows_of(block, seed=2)))
    massive = torch.arange(len(plain.x)) % 50 == 0
    assert torch.equal(~gate.ordinary, massive)
    expected, _ = fit(Moments(D, D).update(plain.x[~massive], plain.y[~massive]))
    torch.testing.assert_close(gate.line.weight, expected.weight)
    assert not gate.gated(GATE, 0.95).takes(gate.rows.x)[massive].any()
    refitted = gate.refitted(RANDOM, 1.0)
    torch.testing.assert_close(refitted.weight, expected.weight)


# --- by hand


def test_rows_of_low_rank_take_the_line_and_the_block_computes_no_other():
    class Counted(nn.Module):
        seen = 0

        def forward(self, x):
            self.seen += x.shape[:-1].numel()
            return 2 * x

    affine = AffineMap(torch.zeros(2, 2).double(), torch.tensor([7.0, 8.0]).double())
    ffn = Counted()
    gate = Gated(ffn, affine, lambda x: x[:, 0], threshold=1.0)
    x = torch.tensor([[[1.0, 0.0], [100.0, 0.0]], [[-3.0, 4.0], [2.0, 5.0]]])
    expected = torch.tensor([[[7.0, 8.0], [200.0, 0.0]], [[7.0, 8.0], [4.0, 10.0]]])
    assert torch.equal(gate(x), expected)
    assert torch.equal(gate(x.view(4, 2)), expected.view(4, 2))
    assert ffn.seen == 4
    nobody = Gated(ffn, affine, lambda x: x[:, 0], float("-inf"))
    assert torch.equal(nobody(x), 2 * x)
    everybody = Gated(ffn, affine, lambda x: x[:, 0], float("inf"))
    assert torch.equal(everybody(x), torch.tensor([7.0, 8.0]).expand(2, 2, 2))


def test_a_threshold_lets_a_share_of_the_rows_through(known):
    for kind in (GATE, ORACLE, RANDOM):
        for share in (0.1, 0.5, 0.7531):
            takes = known.ranked[kind] <= known.threshold(kind, share)
            assert int(takes.sum()) == round(share * len(takes))
            assert int(known.gated(kind, share).takes(known.rows.x).sum()) == pytest.approx(int(takes.sum()), abs=3)
    assert known.threshold(GATE, 1.0) == math.inf
    assert known.threshold(GATE, 0.0) == -math.inf
    assert known.gated(RANDOM, 1.0).takes(known.rows.x).all()
    assert not known.gated(ORACLE, 0.0).takes(known.rows.x).any()


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_a_share_that_is_none_is_refused(known, share):
    with pytest.raises(InputError, match="tokens on the line: give a number from 0 to 1"):
        known.gated(GATE, share)


def test_the_line_is_refitted_to_the_rows_that_take_it_where_these_are_no_too_few(known):
    threshold = known.threshold(GATE, 0.6)
    takes = known.ranked[GATE] <= threshold
    expected, _ = fit(Moments(D, D).update(known.rows.x[takes], known.rows.y[takes]))
    torch.testing.assert_close(known.gated(GATE, 0.6).line.weight, expected.weight)
    first = known.gated(GATE, 0.6, anew=False)
    assert first.line is known.line
    assert first.threshold == threshold
    few = fitting.FEWEST * (D + 2)
    for count in (few - 1, few):
        anew = known.refitted(GATE, known.threshold(GATE, (count + 0.4) / len(known.rows.x)))
        assert (anew is known.line) == (count < few)


def test_the_log_error_has_a_floor():
    y = torch.tensor([[3.0, 4.0], [1.0, 1.0]])
    line = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert fitting.log_error(y, line, floor=1e-3).tolist() == pytest.approx([math.log(25), math.log(1e-3)])


def test_random_ranks_are_even_and_know_nothing_and_a_row_draws_its_own_again():
    x = torch.randn(8_000, D, generator=torch.Generator().manual_seed(4))
    rank = fitting.RandomRank.of(x)
    drawn = rank(x)
    shares = torch.histc(drawn, 10, 0, 1) / len(x)
    assert float((shares - 0.1).abs().max()) < 0.015
    assert float(torch.corrcoef(torch.cat([x.T, drawn[None]]))[-1, :-1].abs().max()) < 0.05
    again = rank(x[100:103])
    torch.testing.assert_close(again, drawn[100:103], atol=1e-6, rtol=0)
    assert not torch.allclose(fitting.RandomRank.of(x, seed=1)(x), drawn, atol=0.1)
    # what another processor rounds in the inputs moves next to none
    rounded = x * (1 + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5)))
    elsewhere = fitting.RandomRank.of(rounded)(rounded)
    assert int(((drawn < 0.5) != (elsewhere < 0.5)).sum()) <= 4  # of 8,000


def test_what_is_saved_by_hand():
    block = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))  # 128 multiplications, and biases
    # the line takes 16 of the 128, and the score 4
    assert measure.saved(0.5, block, 4) == pytest.approx(0.5 * (1 - 16 / 128) - 4 / 128)
    assert measure.saved(0.0, block, 4) < 0


# --- the parts of a text


def test_three_parts_of_a_text_have_no_document_in_common(rows):
    text = TokenRows.from_ids(torch.arange(64 * 4).view(64, 4), folds=8)
    three = split_in_three(text)
    seen = [set(part.ids.flatten().tolist()) for part in (three.fitting, three.choosing, three.judging)]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 64 * 4
    assert set(three.choosing.fold.tolist()) == {6, 7}
    assert set(three.fitting.fold.tolist()) == set(range(6))
    assert (len(three.choosing.ids), len(three.judging.ids)) == (12, 16)
    assert set(split_in_three(rows).choosing.fold.tolist()) == {2}  # of three folds one
    fewer = split_in_three(text, choose_rows=16, cost_rows=32)  # from every fold all the same
    assert fewer.choosing.fold.tolist() == [6, 7, 6, 7]
    assert fewer.judging.fold.tolist() == list(range(8))
    with pytest.raises(InputError, match="2 document folds to fit on: a gate needs three"):
        split_in_three(TokenRows.from_ids(torch.arange(64).view(16, 4), folds=2))


def test_rows_are_those_that_the_block_sees(gpt2, ids):
    part = TokenRows.from_ids(ids, folds=3)
    found = block_rows(gpt2, part, [0, 2])
    assert list(found) == [0, 2]
    for block, of_block in found.items():
        expected = seen(gpt2, ids)[block]
        torch.testing.assert_close(of_block.x.double(), expected["x"], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(of_block.y.double(), expected["y"], rtol=1e-4, atol=1e-4)
        assert of_block.fold.tolist() == part.fold.repeat_interleave(ids.shape[1]).tolist()


# --- the largest share that costs no more than allowed


@pytest.mark.parametrize(
    ("power", "dear", "share"), [(1, 0.04, 0.25), (2, 0.04, 0.5), (4, 2.56, 0.25), (3, 0.009, 1.0)]
)
def test_the_share_at_the_limit_is_bracketed(power, dear, share):
    bracket = fitting.Bracket(dear, limit=0.01)
    for _ in range(fitting.HALVINGS):
        if not bracket.closed:
            bracket.halve(dear * bracket.middle**power)
    assert bracket.share == pytest.approx(share, abs=0.02)
    assert dear * bracket.share**power <= 0.01 + 1e-9  # a curve that bends up lies below what is interpolated


def test_where_nothing_may_be_spent_nothing_takes_the_line():
    bracket = fitting.Bracket(1e6, limit=0.01)
    for _ in range(fitting.HALVINGS):
        bracket.halve(1e6)
    assert 0 <= bracket.share < 1e-8


# --- on a model


SEQ_LEN = 128
DEAR = [0, 11]  # blocks of mini-gpt2 where a line on all tokens costs several per cent


@pytest.fixture(scope="module")
def case():
    """A trained model, a text in three parts, and gates, held-out rows, modules and costs of its dear blocks.

    Of a random model no line costs anything worth measuring.
    """
    model = load_model("mini-gpt2")
    three = split_in_three(load_corpus("docs", model).rows(4096, SEQ_LEN, 0))
    gates, held_out = measure.fit_gates(model, three, DEAR)
    modules = measure.gated_modules(model, gates, three.choosing)
    costs = measure.cost_table(model, modules, three.judging, held_out)
    return SimpleNamespace(model=model, three=three, gates=gates, held_out=held_out, modules=modules, costs=costs)


def test_every_kind_has_its_share_and_its_cost(case):
    assert sorted(zip(case.costs["block"], case.costs["kind"], strict=True)) == sorted(case.modules)
    assert set(case.costs["kind"]) == set(measure.KINDS)
    by_kind = case.costs.set_index(["block", "kind"])
    for block in DEAR:
        of_block = by_kind.loc[block]
        assert of_block.loc["all", "share"] == 1
        assert of_block.loc["all", "rise"] > 0.02  # else there would be nothing to choose
        assert of_block.loc["oracle", "share"] > of_block.loc["random", "share"]
        assert of_block.loc["random, as many", "chosen"] == of_block.loc["gate", "chosen"]
        for kind in ("gate", "oracle", "random"):
            assert 0 < of_block.loc[kind, "chosen"] < 1
            assert 0 < of_block.loc[kind, "rise"] < of_block.loc["all", "rise"]
    assert (case.costs["share_low"] <= case.costs["share"]).all()
    assert (case.costs["rise_low"] < case.costs["rise"]).all()


def test_the_limit_is_kept_on_the_text_that_chooses(case):
    swaps = {name: (name[0], module) for name, module in case.modules.items() if name[1] in (GATE, ORACLE, RANDOM)}
    before, after = swap_losses(case.model, swaps, case.three.choosing)
    for name, changed in after.items():
        # interpolated in a bracket of a sixteenth, where the curve bends up; of a few dozen random tokens, it wavers
        least, most = (0.1, 1.5) if name[1] == RANDOM else (0.3, 1.2)
        assert least * measure.LIMIT < fitting.rise(before, changed) < most * measure.LIMIT, name


def test_costs_and_shares_are_those_of_a_model_that_has_the_module(case):
    row = case.costs.query("block == 11 and kind == 'gate'").iloc[0]
    module = case.modules[11, GATE]
    takes = []
    original = module.takes
    before = losses(case.model, case.three.judging.ids)
    with swap(case.model, {11: module}):
        module.takes = lambda x: takes.append(original(x)) or takes[-1]
        after = losses(case.model, case.three.judging.ids)
    del module.takes
    expected = change(before, after, case.three.judging.fold)
    perplexity = float(before.mean().exp())
    assert row["rise"] == pytest.approx(expected.delta / perplexity, rel=1e-4)
    assert row["share"] == pytest.approx(float(torch.cat(takes).float().mean()), abs=1e-6)
    assert row["saved"] == pytest.approx(measure.saved(row["share"], case.gates[11].ffn, 128))
    assert case.held_out[11].x.shape == (case.three.judging.ids.numel(), 128)


def test_shares_have_the_jackknife_interval_of_their_documents(case):
    row = case.costs.query("block == 0 and kind == 'gate'").iloc[0]
    of_sequences = case.modules[0, GATE].takes(case.held_out[0].x).view(-1, SEQ_LEN).double().mean(1).numpy()
    folds = case.three.judging.fold.numpy()
    without = [of_sequences[folds != fold].mean() for fold in np.unique(folds)]
    spread = math.sqrt((len(without) - 1) * np.var(without))
    assert row["share"] - row["share_low"] == pytest.approx(2.3646 * spread, rel=1e-3)  # Student's t of 7 degrees


def test_one_gate_alone_is_all_gates_at_once(case):
    alone = measure.together_table(case.model, {0: case.modules[0, GATE]}, case.three.judging).iloc[0]
    row = case.costs.query("block == 0 and kind == 'gate'").iloc[0]
    assert alone.tolist() == pytest.approx(row[alone.index].tolist(), rel=1e-4, abs=1e-6)
    both = measure.together_table(case.model, {block: case.modules[block, GATE] for block in DEAR}, case.three.judging)
    assert both["rise"].item() > alone["rise"]
    assert sites(case.model)[0].ffn is case.modules[0, GATE].ffn  # the model is as it was


def test_means_are_over_blocks_and_differences_are_paired(case):
    means = measure.mean_table(case.modules, case.three.judging, case.held_out).set_index(["blocks", "kind"])
    for kind, of_kind in case.costs.groupby("kind"):
        assert means.share["all", kind] == pytest.approx(of_kind["share"].mean())
        assert means.share["dear", kind] == means.share["all", kind]  # both blocks are dear
    of_all = means.loc["all"]
    assert of_all.share[measure.AHEAD] == pytest.approx(of_all.share["gate"] - of_all.share["random"])
    assert of_all.share[measure.BEHIND] == pytest.approx(of_all.share["oracle"] - of_all.share["gate"])
    # gate and oracle go together from document to document, so their difference is surer than either
    length = of_all.share_high - of_all.share_low
    assert 0 < length[measure.BEHIND] < length["gate"]


def test_dear_blocks_are_those_where_not_all_tokens_may_take_the_line(case):
    cheap = case.modules | {(0, GATE): case.gates[0].gated(GATE, 1.0)}
    means = measure.mean_table(cheap, case.three.judging, case.held_out).set_index(["blocks", "kind"])
    of_block = case.costs.query("block == 11 and kind == 'gate'").iloc[0]
    columns = ["share", "share_low", "share_high"]
    assert means.loc[("dear", "gate"), columns].tolist() == pytest.approx(of_block[columns].tolist())
    nowhere = cheap | {(11, GATE): case.gates[11].gated(GATE, 1.0)}
    assert set(measure.mean_table(nowhere, case.three.judging, case.held_out)["blocks"]) == {"all"}


def test_what_the_score_explains_is_tabled_with_massive_rows(case):
    table = measure.block_table(case.gates, case.modules, case.held_out).set_index("block")
    assert table.loc[11, "score_r2"] == case.gates[11].error_score_fit.r2
    assert (table["massive_kept"] <= table["massive_rows"]).all()
    row = case.held_out[0]
    loud = BlockRows(row.x, torch.where(torch.arange(len(row.y))[:, None] < 5, 1e4 * row.y, row.y), row.fold)
    nobody = {(0, GATE): Gated(case.gates[0].ffn, case.gates[0].line, case.gates[0].ranks[GATE], -math.inf)}
    table = measure.block_table({0: case.gates[0]}, nobody, {0: loud})
    assert table.loc[0, ["massive_rows", "massive_kept"]].tolist() == [5, 5]


def test_curves_end_where_all_tokens_take_the_line(case):
    table = measure.curve_table(case.model, 0, case.gates[0], [0.5, 1.0], case.three.judging).set_index(
        ["kind", "share"]
    )
    of_all = case.costs.query("block == 0 and kind == 'all'").iloc[0]
    for kind in (GATE, ORACLE, RANDOM):
        assert table.loc[(kind, 1.0), "rise"] == pytest.approx(of_all["rise"], rel=1e-4)
        assert table.loc[(kind, 0.5), "rise"] < table.loc[(kind, 1.0), "rise"]
    assert table.loc[(GATE, 0.5), "rise"] < table.loc[(measure.FIRST, 0.5), "rise"]  # what the second fit is for


@pytest.mark.long
def test_a_survey_holds_all_tables_of_a_model(case):
    found = measure.survey(case.model, case.three, DEAR)
    assert set(found) == set(measure.COLUMNS)
    assert found["costs"]["rise"].tolist() == pytest.approx(case.costs["rise"].tolist())
    dearest = case.costs.query("kind == 'all'").set_index("block")["rise"].idxmax()
    assert set(found["curves"]["block"]) == {dearest}
    both = measure.stack("costs", {"a": found, "b": found})
    assert list(both.columns) == ["model", *measure.COLUMNS["costs"].split()]
    side = measure.side_by_side(both)
    assert side.loc[("b", 0), ("rise", "all")] == pytest.approx(100 * case.costs.query("kind == 'all'")["rise"].iloc[0])


@pytest.mark.parametrize("name", measure.COLUMNS)
def test_no_model_with_a_loss_leaves_empty_tables(name):
    table = measure.stack(name, {})
    assert table.empty
    assert list(table.columns) == ["model", *measure.COLUMNS[name].split()]
    assert measure.side_by_side(table).empty


@pytest.mark.long
def test_planted_blocks_come_with_the_truth(case):
    model = case.model
    # six sequences to choose on, as other tests have, are too few for a limit as low as this one
    three = split_in_three(load_corpus("docs", model).rows(8192, SEQ_LEN, 0), 2048)
    table = planted.planted_table(model, 10, three).set_index(["case", "kind"])
    assert set(table.index) == {(case, kind) for case in ("plane", "random") for kind in (GATE, ORACLE, RANDOM)}
    assert table.loc[("plane", GATE), "right"] > 0.85
    assert table.loc[("random", GATE), "right"] == pytest.approx(0.5, abs=0.06)  # of 1,000 tokens, within four errors
    for case in ("plane", "random"):
        assert table.loc[(case, ORACLE), "right"] > 0.85
        assert table.loc[(case, RANDOM), "right"] == pytest.approx(0.5, abs=0.06)
    assert table.loc[("plane", GATE), "score_r2"] > 0.3 > table.loc[("random", GATE), "score_r2"]
    assert sites(model)[10].ffn is model.transformer.h[10].mlp


def test_where_a_line_costs_nothing_all_tokens_may_take_it(gpt2, rows, monkeypatch):
    monkeypatch.setattr(planted, "rise", lambda before, after: -0.1)
    monkeypatch.setattr(fitting, "rise", lambda before, after: -0.1)
    table = planted.planted_table(gpt2, 1, split_in_three(rows))
    assert (table["chosen"] == 1).all()
    assert (table["limit"] == planted.LEAST).all()


def test_planted_rows_are_straight_or_off_by_one_size(gpt2):
    (site,) = sites(gpt2, [1])
    line = AffineMap(0.1 * torch.eye(32).double(), torch.zeros(32).double())
    half = planted.HalfStraight(site.ffn, line, 2.0, beyond_the_plane)
    x = torch.randn(3, 50, 32, generator=torch.Generator().manual_seed(6))
    off = (half(x) - 0.1 * x).norm(dim=-1)
    expected = torch.where(beyond_the_plane(x), 0.0, 2.0)
    torch.testing.assert_close(off.detach(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("limit", [0.0, -0.01, math.nan])
def test_a_limit_that_allows_nothing_is_refused(gpt2, rows, limit):
    with pytest.raises(InputError, match="every change costs something, give more than 0"):
        fitting.choose_shares(gpt2, {}, rows, limit)
