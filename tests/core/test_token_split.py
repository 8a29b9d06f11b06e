"""R² split by the token: by hand, beside every pair of rows, on planted rows, and where there is nothing to split."""

import itertools
import math

import numpy as np
import pytest
import torch

from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.moments import Moments
from howlinear.core.token_split import TokenSums, split, token_split
from howlinear.errors import InputError

FOLDS = 6


def sums_of(token, fold, x, y):
    """Sums of rows, added up chunk by chunk."""
    sums = TokenSums.empty(token, fold, x.shape[1], y.shape[1])
    for number in fold.unique().tolist():
        for part in (fold == number).nonzero()[:, 0].split(64):
            sums.update(number, token[part], x[part], y[part])
    return sums


def rows_of(n=400, types=30, d_in=3, d_out=2, seed=0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    fold = torch.randint(FOLDS, (n,), generator=generator)
    token = (types * torch.rand(n, generator=generator) ** 3).long()  # some are frequent, some occur once
    x = torch.randn(types, d_in, generator=generator)[token] + torch.randn(n, d_in, generator=generator)
    y = torch.randn(types, d_out, generator=generator)[token] + x[:, :d_out] ** 2 + offset
    return token, fold, x.double(), y.double()


def line(d_in=3, d_out=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(d_in, d_out, generator=generator, dtype=torch.float64)
    return AffineMap(weight, torch.randn(d_out, generator=generator, dtype=torch.float64))


def share_by_pairs(z, token, fold, centred=False):
    """The unbiased share, pair by pair: of the rows whose token occurs in another fold too.

    What centring took away shows in the pairs of all rows, whatever their token: their products would be 0 on average.
    """
    products, pairs, rows = {}, {}, {}
    for i, j in itertools.permutations(range(len(z)), 2):
        if token[i] == token[j] and fold[i] != fold[j]:
            key = int(token[i])
            products[key] = products.get(key, 0.0) + float(z[i] @ z[j])
            pairs[key] = pairs.get(key, 0) + 1
    squares = 0.0
    for i in range(len(z)):
        key = int(token[i])
        if key in pairs:
            rows[key] = rows.get(key, 0) + 1
            squares += float(z[i] @ z[i])
    between = sum(rows[key] * products[key] / pairs[key] for key in pairs)
    apart = (fold[:, None] != fold).double()
    taken = -float(((z @ z.T) * apart).sum() / apart.sum()) * sum(rows.values()) if centred else 0.0
    return (between + taken) / (squares + taken)


def share_by_means(z, token):
    """The share with each token's own mean counted."""
    between = 0.0
    for each in token.unique():
        mean = z[token == each].mean(0)
        between += int((token == each).sum()) * float(mean @ mean)
    return between / float(z.square().sum())


def test_by_hand():
    """Two tokens in two folds, y = 1, 3 | 1 for the first and −2 | −3 for the second; the line says 0 of all."""
    token = torch.tensor([5, 5, 5, 9, 9])
    fold = torch.tensor([0, 0, 1, 0, 1])
    y = torch.tensor([[1.0], [3.0], [1.0], [-2.0], [-3.0]], dtype=torch.float64)
    sums = sums_of(token, fold, torch.ones(5, 1, dtype=torch.float64), y)
    zero = AffineMap(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    found = split(zero, sums)
    # ȳ = 0 and Σ y² = 24. Pairs in different folds: (1 + 3)/2 = 2 for the first token, 6 for the second.
    assert found.r2 == 0.0
    assert found.error_share == pytest.approx((3 * 2 + 2 * 6) / 24)
    # The folds' sums are 2 and −2, and 2 · 3 · 2 pairs of rows lie in different folds: ȳ has the variance 8 / 12.
    assert found.token_share == pytest.approx((18 / 5 + 2 / 3) / (24 / 5 + 2 / 3))
    assert found.r2_between == pytest.approx(1 - found.error_share / found.token_share)
    assert found.r2_within == pytest.approx(1 - (1 - found.error_share) / (1 - found.token_share))
    # with own means counted: 3 (5/3)² + 2 (5/2)²
    assert split(zero, sums, counted=True).token_share == pytest.approx((3 * (5 / 3) ** 2 + 2 * 2.5**2) / 24)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_shares_equal_those_pair_by_pair(offset):
    token, fold, x, y = rows_of(150, offset=offset)
    affine = line()
    affine = AffineMap(affine.weight, affine.bias + offset)
    sums = sums_of(token, fold, x, y)
    found, counted = split(affine, sums), split(affine, sums, counted=True)
    centred, left = y - y.mean(0), y - affine(x)
    assert found.token_share == pytest.approx(share_by_pairs(centred, token, fold, centred=True), abs=1e-9)
    assert found.error_share == pytest.approx(share_by_pairs(left, token, fold), abs=1e-9)
    assert counted.token_share == pytest.approx(share_by_means(centred, token), abs=1e-9)
    assert counted.error_share == pytest.approx(share_by_means(left, token), abs=1e-9)


@pytest.mark.parametrize("counted", [False, True])
def test_the_parts_add_up(counted):
    token, fold, x, y = rows_of()
    affine = line()
    found = split(affine, sums_of(token, fold, x, y), counted)
    whole = r2(affine, Moments(3, 2).update(x, y))
    share = found.token_share
    assert share * found.r2_between + (1 - share) * found.r2_within == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("size", [0.0, 0.7])
def test_a_planted_share_is_found_where_documents_differ(size):
    """Outputs of token, document and noise: what documents share is not the token's, nor taken from it by centring."""
    shares, found = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        fold = torch.arange(1_000) % 8
        token = torch.randint(40, (1_000,), generator=generator)
        of_token = size * torch.randn(40, 6, generator=generator, dtype=torch.float64)[token]
        of_fold = 0.5 * torch.randn(8, 6, generator=generator, dtype=torch.float64)[fold]
        y = of_token + of_fold + torch.randn(1_000, 6, generator=generator, dtype=torch.float64)
        found.append(split(AffineMap.constant(Moments(1, 6).update(y[:, :1], y)), sums_of(token, fold, y[:, :1], y)))
        variance = float((of_token - of_token.mean(0)).square().sum(1).mean())
        shares.append(variance / (variance + 6 * (0.5**2 + 1)))
    assert np.mean([each.token_share for each in found]) == pytest.approx(np.mean(shares), abs=0.008)


def test_where_tokens_may_be_alike_nothing_is_said_of_their_means():
    token, fold, x, _ = rows_of()
    y = torch.randn(len(x), 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = token_split(line(), [line()] * 4, sums_of(token, fold, x, y))
    assert found.token_share.low < 0 < found.token_share.high
    assert math.isnan(found.r2_between.value)
    assert math.isfinite(found.r2_within.value)


def test_intervals_are_jackknifed_over_both_sides():
    token, fold, x, y = rows_of(600)
    sums = sums_of(token, fold, x, y)
    affine, others = line(), [line(seed=2), line(seed=3)]
    found = token_split(affine, others, sums)
    here = split(affine, sums)
    rescored = [split(affine, sums.without(number)) for number in range(FOLDS)]
    variance = (FOLDS - 1) * np.var([each.token_share for each in rescored])
    assert found.token_share.value == here.token_share
    assert found.token_share.half_width == pytest.approx(2.5706 * math.sqrt(variance), rel=1e-4)  # t of five degrees
    refits = [split(each, sums) for each in others]
    for name in ("r2_between", "r2_within"):
        variance = (FOLDS - 1) * np.var([getattr(each, name) for each in rescored])
        variance += np.var([getattr(each, name) for each in refits])
        expected = 12.7062 * math.sqrt(variance)  # t of one degree
        assert getattr(found, name).half_width == pytest.approx(expected, rel=1e-4), name


def test_a_fold_left_out_takes_its_rows_and_squares_along():
    token, fold, x, y = rows_of(300)
    sums = sums_of(token, fold, x, y)
    rest = fold != 2
    anew = sums_of(token[rest], fold[rest], x[rest], y[rest])
    left = sums.without(2)
    assert torch.equal(left.token, anew.token)
    torch.testing.assert_close(left.sum_y, anew.sum_y)
    # rows that had their only partner in the fold that is gone stay among the paired ones
    assert sum(each.n for each in left.paired.values()) >= sum(each.n for each in anew.paired.values())


def test_rare_and_frequent_tokens_join_to_all():
    token, fold, x, y = rows_of()
    rare = torch.bincount(token)[token] < 20
    parts = [sums_of(token[some], fold[some], x[some], y[some]) for some in (rare, ~rare)]
    joined, whole = TokenSums.joined(*parts), sums_of(token, fold, x, y)
    assert torch.equal(joined.token, whole.token)
    assert torch.equal(joined.fold, whole.fold)
    assert tuple(split(line(), joined)) == pytest.approx(tuple(split(line(), whole)), abs=1e-12)


def test_without_a_partner_there_is_no_share():
    token, fold = torch.arange(40), torch.arange(40) % FOLDS
    x = torch.randn(40, 2).double()
    sums = sums_of(token, fold, x, x**2)
    affine, _ = fit(Moments(2, 2).update(x, x**2))
    found = token_split(affine, [affine, affine], sums)
    assert all(math.isnan(number) for number in found.columns().values())


def test_where_the_token_decides_all_nothing_is_within():
    token, fold, _, _ = rows_of()
    y = torch.randn(30, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)[token]
    x = y**2
    sums = sums_of(token, fold, x, y)
    affine = line(d_in=2)
    found = split(affine, sums)
    assert found.token_share == pytest.approx(1, abs=1e-9)
    assert math.isnan(found.r2_within)
    assert found.r2_between == pytest.approx(found.r2, abs=1e-9)


def test_one_fold_has_no_interval():
    token, fold, x, y = rows_of()
    found = token_split(line(), [], sums_of(token, fold, x, y))
    assert math.isfinite(found.r2_within.value)
    assert math.isnan(found.r2_within.low)
    assert math.isfinite(found.token_share.low)


def test_rows_that_are_not_finite_are_refused():
    token, fold, x, y = rows_of(50)
    sums = TokenSums.empty(token, fold, 3, 2)
    with pytest.raises(InputError, match="NaN or infinity"):
        sums.update(0, token[fold == 0][:1], x[:1] * math.inf, y[:1])


def test_memory_is_a_sum_for_every_token_of_a_fold():
    token, fold, x, y = rows_of(5_000)
    sums = sums_of(token, fold, x, y)
    pairs = len({*zip(fold.tolist(), token.tolist(), strict=True)})
    assert (sums.sum_x.shape, sums.sum_y.shape) == ((pairs, 3), (pairs, 2))
