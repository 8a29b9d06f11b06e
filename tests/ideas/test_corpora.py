from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.captures import moments_of
from helpers.reference import half_width, held_out_r2, normal
from howlinear.core.ceilings import AffineMap, ceiling, fit
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.corpora.agreement import agreement
from howlinear.ideas.corpora.transfer import likeness, transfer, transfers
from howlinear.instrument.capture import BlockCapture


def grid(pairs, end="value"):
    """A number per pair of corpora as an array, fitted on the row's and scored on the column's."""
    corpora = list(dict.fromkeys(fitted for fitted, _ in pairs))
    cells = [[pairs[fitted, scored] for scored in corpora] for fitted in corpora]
    return np.array([[getattr(cell, end) if isinstance(cell, Estimate) else cell for cell in row] for row in cells])


def ends(found):
    """Differences of an agreement, their lower and their upper ends, each over the blocks."""
    return [np.array([getattr(each, end) for each in found.difference.values()]) for end in ("value", "low", "high")]


def sides(x, y, folds=4):
    """Rows as ((x, y) per train fold, (x, y) per held-out fold): three quarters and one quarter."""
    cut = 3 * len(x) // 4
    rows = [(x[:cut], y[:cut]), (x[cut:], y[cut:])]
    return [list(zip(a.chunk(folds), b.chunk(folds), strict=True)) for a, b in rows]


def kept(x, y, folds=4):
    """What a capture keeps of these rows."""
    train, test = ([moments_of(*part) for part in side] for side in sides(x, y, folds))
    return BlockCapture(train, test, Moments(y.shape[1]).update(y[3 * len(y) // 4 :]), None)


def block_on(function, n=400, d=5, seed=0, mean=0.0, spread=1.0, folds=4):
    """A block seen through one corpus: Gaussian inputs of some mean and spread."""
    x = normal(n, d, seed=seed) * spread + mean
    return kept(x, function(x), folds)


def affine(weight):
    return AffineMap(torch.as_tensor(weight).double(), torch.zeros(len(weight[0]), dtype=torch.float64))


def linear(x):
    return x @ normal(x.shape[1], 3, seed=90) - 2


def bent(x):
    return torch.nn.functional.gelu(x @ normal(x.shape[1], 8, seed=91)) @ normal(8, 3, seed=92)


def test_by_hand():
    x = torch.tensor([[-1.0], [0.0], [1.0]] * 4)  # four train folds, or held-out ones, of three rows
    one, other = ([moments_of(part, slope * part) for part in x.chunk(4)] for slope in (2, 1))
    outputs = Moments(1)
    found = transfer({"a": BlockCapture(one, one, outputs, None), "b": BlockCapture(other, other, outputs, None)})
    assert found.corpora == ("a", "b")
    np.testing.assert_allclose(grid(found.r2), [[1, 0], [0.75, 1]], atol=1e-12)  # a on b: off by x; b on a: x of 2x
    np.testing.assert_allclose(grid(found.drop), [[0, 1], [0.25, 0]], atol=1e-12)
    np.testing.assert_allclose(grid(found.likeness), 1, atol=1e-12)
    np.testing.assert_allclose(grid(found.expected), 1, atol=1e-12)
    for table in (found.r2, found.drop):
        np.testing.assert_allclose(
            [grid(table, "low"), grid(table, "high")], [grid(table)] * 2, atol=1e-12
        )  # all folds are alike
    assert [each.weight.item() for each in found.maps.values()] == pytest.approx([2, 1])


def test_a_linear_block_transfers_perfectly_whatever_the_text():
    mix = normal(5, 5, seed=3)
    there = normal(400, 5, seed=1) @ mix + 3
    found = transfer({"a": block_on(linear), "b": kept(there, linear(there))})
    np.testing.assert_allclose(grid(found.r2), 1, atol=1e-12)
    np.testing.assert_allclose(grid(found.drop), 0, atol=1e-12)
    np.testing.assert_allclose(grid(found.likeness), 1, atol=1e-12)


def test_a_bent_block_does_not():
    """x² near −2 is a falling line, near 2 a rising one: each as straight as the other, and opposite."""
    found = transfer({"a": block_on(torch.square, mean=-2.0), "b": block_on(torch.square, mean=2.0, seed=1)})
    assert grid(found.r2).diagonal().min() > 0.8
    assert grid(found.r2, "high")[0, 1] < 0
    assert grid(found.r2, "high")[1, 0] < 0
    assert grid(found.drop, "low")[0, 1] > 1
    assert grid(found.likeness, "high")[0, 1] < -0.9
    assert found.expected["a", "b"] > 0.9


def test_every_pair_equals_refits_on_stored_rows():
    """Values and all three kinds of interval, by a loop over rows with an independent solver."""
    rows = {}
    for i, name in enumerate(("a", "b", "c")):
        x = normal(160, 4, seed=i) * (1 + i / 2) + i
        rows[name] = sides(x, bent(x) + 0.1 * normal(160, 3, seed=10 + i))
    captured = {
        name: BlockCapture(*([moments_of(*part) for part in side] for side in both), Moments(3), None)
        for name, both in rows.items()
    }
    found = transfer(captured)

    def score(a, b, train_out=None, test_out=None):
        train, test = rows[a][0], rows[b][1]
        return held_out_r2(
            *(
                [torch.cat(z) for z in zip(*(part for i, part in enumerate(side) if i != out), strict=True)]
                for side, out in ((train, train_out), (test, test_out))
            )
        )

    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            refits, rescored = ([score(a, b, **{out: k}) for k in range(4)] for out in ("train_out", "test_out"))
            assert grid(found.r2)[i, j] == pytest.approx(score(a, b), abs=1e-10)
            half = half_width(refits, rescored)
            assert grid(found.r2, "low")[i, j] == pytest.approx(score(a, b) - half, abs=1e-10)
            assert grid(found.r2, "high")[i, j] == pytest.approx(score(a, b) + half, abs=1e-10)
            own, paired = score(b, b), [score(b, b, test_out=k) - score(a, b, test_out=k) for k in range(4)]
            drop = own - score(a, b)
            assert grid(found.drop)[i, j] == pytest.approx(drop, abs=1e-10)
            half = half_width(refits, [score(b, b, train_out=k) for k in range(4)], paired) if a != b else 0
            assert grid(found.drop, "low")[i, j] == pytest.approx(drop - half, abs=1e-10)
            assert grid(found.drop, "high")[i, j] == pytest.approx(drop + half, abs=1e-10)


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")  # hundreds of small calls: to check shapes would take most of the time
def test_the_expected_likeness_is_that_of_two_draws_of_one_text():
    """A straight line under noise: what the two maps differ by is noise alone, and the jackknife must say how much."""
    alike, expected, yardsticks = [], [], []
    for seed in range(12):
        texts = [normal(800, 12, seed=4 * seed + i) for i in (0, 1)]
        noisy = [x @ normal(12, 24, seed=90) + 6 * normal(800, 24, seed=4 * seed + i + 2) for i, x in enumerate(texts)]
        found = transfer({name: kept(x, y, folds=8) for name, x, y in zip("ab", texts, noisy, strict=True)})
        alike.append(grid(found.likeness)[0, 1])
        expected.append(found.expected["a", "b"])
        yardsticks.append(grid(found.expected).diagonal().mean())
    noise = 1 - np.mean(alike)
    assert 0.03 < noise < 0.3
    assert 1 - np.mean(expected) == pytest.approx(noise, rel=0.08)
    assert 1 - np.mean(yardsticks) == pytest.approx(noise, rel=0.08)


@given(seed=st.integers(0, 2**31), factor=st.floats(1e-3, 1e3), shift=st.floats(-10, 10))
@settings(deadline=None, max_examples=25)
def test_likeness_is_the_correlation_of_predictions(seed, factor, shift):
    x = normal(50, 4, seed=seed) @ normal(4, 4, seed=seed + 1) + 5
    one, other = (affine(normal(4, 3, seed=seed + i).tolist()) for i in (2, 3))
    predicted = [(each(x) - each(x).mean(0)).flatten().numpy() for each in (one, other)]
    norms = np.linalg.norm(predicted[0]) * np.linalg.norm(predicted[1])
    moments = moments_of(x, x)
    found = likeness(one, other, moments)
    assert found == pytest.approx(predicted[0] @ predicted[1] / norms, abs=1e-10)
    scaled = AffineMap(factor * other.weight, other.bias + shift)
    assert likeness(one, scaled, moments) == pytest.approx(found, abs=1e-10)
    assert likeness(scaled, one, moments) == pytest.approx(found, abs=1e-10)
    assert likeness(one, replace(other, weight=-one.weight), moments) == pytest.approx(-1, abs=1e-12)


def test_the_likeness_in_a_transfer_is_that_of_its_maps_on_the_held_out_rows_of_both():
    blocks = {name: block_on(bent, mean=2 * i, seed=i) for i, name in enumerate("ab")}
    found = transfer(blocks)
    metric = sum(blocks["a"].test) + sum(blocks["b"].test)
    value = likeness(found.maps["a"], found.maps["b"], metric)
    assert grid(found.likeness)[0, 1] == pytest.approx(value, abs=1e-12)
    refits = {
        name: [fit(sum([*each.train[:i], *each.train[i + 1 :]]))[0] for i in range(4)] for name, each in blocks.items()
    }
    half = half_width(
        [likeness(refit, found.maps["b"], metric) for refit in refits["a"]],
        [likeness(found.maps["a"], refit, metric) for refit in refits["b"]],
    )
    assert grid(found.likeness, "low")[0, 1] == pytest.approx(value - half, abs=1e-10)
    assert grid(found.likeness, "high")[1, 0] == pytest.approx(value + half, abs=1e-10)


def profile(curves, offset=0.0, seed=0, n=400):
    """Blocks of growing curvature, seen through one corpus."""
    return {
        block: block_on(lambda x, c=c: linear(x) + c * bent(x + offset), seed=seed, n=n) for block, c in curves.items()
    }


CURVES = {0: 0.1, 1: 1.5, 3: 0.4, 7: 0.8}


def test_one_corpus_twice_agrees_with_itself():
    carried = transfers({"a": profile(CURVES), "b": profile(CURVES)})
    found = agreement(carried, "a", "b")
    assert tuple(found.difference) == (0, 1, 3, 7)
    assert (found.correlation.value, found.correlation.high) == pytest.approx((1, 1), abs=1e-9)
    difference, low, high = ends(found)
    np.testing.assert_array_equal(difference, 0)
    assert found.differ == ()
    assert (low < 0).all()
    assert (high > 0).all()
    with pytest.raises(InputError, match="profile of a or b is the same in every block"):
        agreement({block: carried[0] for block in range(3)}, "a", "b")


def test_agreement_equals_a_loop_over_folds():
    curves, n = CURVES, 160
    captures = {"a": profile(curves, n=n), "b": profile(curves, offset=1.0, seed=1, n=n)}
    found = agreement(transfers(captures), "a", "b")

    def r2s(name, side=None, out=None):
        scores = []
        for block in captures[name].values():
            train, test = (
                [part for i, part in enumerate(folds) if (label, i) != (side, out)]
                for label, folds in (("train", block.train), ("test", block.test))
            )
            scores.append(ceiling(train, test).r2)
        return np.array(scores)

    a, b = r2s("a"), r2s("b")
    groups = [[(r2s("a", side, k), b) for k in range(4)] for side in ("train", "test")]
    groups += [[(a, r2s("b", side, k)) for k in range(4)] for side in ("train", "test")]
    difference, low, high = ends(found)
    np.testing.assert_allclose(difference, a - b, atol=1e-12)
    half = half_width(*[[x - y for x, y in group] for group in groups])
    np.testing.assert_allclose(low, a - b - half, atol=1e-10)
    np.testing.assert_allclose(high, a - b + half, atol=1e-10)
    z = np.arctanh(np.corrcoef(a, b)[0, 1])
    spread = half_width(*[[np.arctanh(np.corrcoef(*two)[0, 1]) for two in group] for group in groups])
    expected = np.tanh([z, z - spread, z + spread])
    correlation = found.correlation
    assert (correlation.value, correlation.low, correlation.high) == pytest.approx(expected, abs=1e-8)
    inside = (low <= 0) & (high >= 0)
    assert found.differ == tuple(block for block, same in zip(curves, inside, strict=True) if not same)


def test_one_corpus_has_its_own_line_alone():
    block = block_on(bent)
    alone = transfer({"docs": block})
    assert alone.r2 == {("docs", "docs"): transfer({"docs": block, "code": block}).r2["docs", "docs"]}


WHOLE = block_on(linear)
FEW = block_on(linear, n=16, d=9)


@pytest.mark.parametrize(
    ("docs", "code", "message"),
    [
        ({0: WHOLE, 1: WHOLE}, {0: WHOLE}, r"different blocks.*'docs': \[0, 1\], 'code': \[0\].*same blocks"),
        ({4: FEW}, {4: FEW}, "block 4: .*train rows for 9 inputs"),
    ],
)
def test_captures_that_cannot_be_carried_over_are_refused(docs, code, message):
    with pytest.raises(InputError, match=message):
        transfers({"docs": docs, "code": code})
