"""Does a block's linear part survive a change of text? Maps carried over to another corpus, and compared.

The paper overlays the R²_lin profiles of three corpora (arXiv 2606.19379, figure 5). Equal R² need not mean equal
maps, so from the same moments we also score the map fitted on corpus A on corpus B, and compare two maps in the
directions that text visits. Intervals leave out document folds; the corpora are drawn independently of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations, product

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import AffineMap
from howlinear.core.fold_maps import FoldMaps, Scores, fit_folds, score_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture

Pair = tuple[str, str]
"""Two corpora: the one that a map is fitted on, and the one that it is scored on."""


@dataclass(frozen=True)
class Transfer:
    """One block over several corpora.

    A drop is what fitting elsewhere costs, R²_BB − R²_AB, with both scored on the same held-out documents. A likeness
    is expected to be that of two maps that differ by the draw of documents alone; for a corpus with itself, that to a
    map fitted on a second draw of it.
    """

    corpora: tuple[str, ...]
    maps: dict[str, AffineMap]  # corpus → the map fitted on it
    scores: dict[Pair, Scores]  # with all folds and without each
    r2: dict[Pair, Estimate]  # of the map fitted on the first on held-out rows of the second
    drop: dict[Pair, Estimate]
    likeness: dict[Pair, Estimate]  # cosine of the two maps on the corpora's inputs; 1 for a corpus with itself
    expected: dict[Pair, float]  # of the likeness


def transfers(captures: Mapping[str, Mapping[int, BlockCapture]]) -> dict[int, Transfer]:
    """Run `transfer` for every block of a model, by depth."""
    blocks = {corpus: sorted(captured) for corpus, captured in captures.items()}
    common = next(iter(blocks.values()), [])
    if any(numbers != common for numbers in blocks.values()):
        raise InputError(f"the corpora hold different blocks, {blocks}: capture the same blocks of one model")
    by_block = {}
    for block in common:
        try:
            by_block[block] = transfer({corpus: captured[block] for corpus, captured in captures.items()})
        except InputError as error:
            raise InputError(f"block {block}: {error}") from error
    return by_block


def transfer(captured: Mapping[str, BlockCapture]) -> Transfer:
    """Fit one block on each corpus, score every map on every corpus, and compare the maps."""
    corpora = tuple(captured)
    maps = {corpus: fit_folds(block.train) for corpus, block in captured.items()}
    held_out = {corpus: sum(block.test) for corpus, block in captured.items()}

    scores = {}
    for fitted, scored in product(corpora, repeat=2):
        scores[fitted, scored] = score_folds(maps[fitted], captured[scored].test)

    drops = {(corpus, corpus): Estimate.exact(0.0) for corpus in corpora}
    for fitted, scored in permutations(corpora, 2):
        drops[fitted, scored] = _drop(scores[scored, scored], scores[fitted, scored])

    likenesses = {}
    expected = {}
    for one, other in combinations(corpora, 2):
        # the interval of a likeness takes the metric as given: the pooled held-out inputs of the two corpora
        metric = held_out[one] + held_out[other]
        likenesses[one, other] = likenesses[other, one] = _likeness(maps[one], maps[other], metric)
        # √(s_A s_B): noise alone would bring the cosine down to this
        share = _reproducible(maps[one], metric) * _reproducible(maps[other], metric)
        expected[one, other] = expected[other, one] = share**0.5
    for corpus in corpora:
        likenesses[corpus, corpus] = Estimate.exact(1.0)
        expected[corpus, corpus] = _reproducible(maps[corpus], held_out[corpus])

    return Transfer(
        corpora=corpora,
        maps={corpus: fitted.whole for corpus, fitted in maps.items()},
        scores=scores,
        r2={pair: there.estimate for pair, there in scores.items()},
        drop=drops,
        likeness=likenesses,
        expected=expected,
    )


def _drop(home: Scores, there: Scores) -> Estimate:
    """R²_BB − R²_AB from the scores of B's own map and of A's, both on the held-out rows of B."""
    return Estimate.jackknife(
        home.whole - there.whole,
        home.refitted - there.whole,  # without train folds of B
        home.whole - there.refitted,  # without train folds of A
        home.rescored - there.rescored,  # without held-out folds of B, from both terms at once
    )


def likeness(one: AffineMap, other: AffineMap, moments: Moments) -> float:
    """Cosine of two maps, ⟨W, V⟩ / ‖W‖‖V‖ with ⟨W, V⟩ = tr(Wᵀ Sxx V): 1 for the same map, 0 for unrelated ones."""
    squared_norms = _inner(one.weight, one.weight, moments) * _inner(other.weight, other.weight, moments)
    # it is the correlation, pooled over features, of what the maps predict: neither directions that no row visits nor
    # biases count
    return _inner(one.weight, other.weight, moments) / squared_norms**0.5


def _inner(one: Float[Tensor, "d_in d_out"], other: Float[Tensor, "d_in d_out"], moments: Moments) -> float:
    """⟨W, V⟩ = tr(Wᵀ Sxx V)."""
    return float((one * (moments.sxx @ other)).sum())


def _likeness(one: FoldMaps, other: FoldMaps, metric: Moments) -> Estimate:
    """Likeness of two maps, with its interval by the refits of either."""
    return Estimate.jackknife(
        likeness(one.whole, other.whole, metric),
        [likeness(refit, other.whole, metric) for refit in one.refits],
        [likeness(one.whole, refit, metric) for refit in other.refits],
    )


def _reproducible(maps: FoldMaps, metric: Moments) -> float:
    """Share of ‖W‖² that is not noise, s = 1 − (n − 1)/n · Σ ‖W₍ᵢ₎ − W̄‖² / ‖W‖² over the n refits; at least 0."""
    refits = torch.stack([affine.weight for affine in maps.refits])
    n = len(refits)
    mean = refits.mean(0)
    # the jackknife's variance of W
    squares = sum(_inner(refit - mean, refit - mean, metric) for refit in refits)
    noise = (n - 1) / n * squares
    return max(1 - noise / _inner(maps.whole.weight, maps.whole.weight, metric), 0.0)
