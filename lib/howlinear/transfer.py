"""Does a block's linear part survive a change of text? Profiles compared, maps carried over, maps likened.

The paper overlays the R²_lin profiles of three corpora (arXiv 2606.19379, figure 5). Equal R² need not mean equal
maps, so we go on, from the same moments: the map fitted on corpus A and scored on corpus B, and the likeness of two
maps where text goes. Intervals leave out document folds; the corpora are drawn independently of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.capture import BlockCapture
from howlinear.ceilings import AffineMap, fit, jackknife, left_out, r2
from howlinear.errors import InputError
from howlinear.moments import Moments

Estimate = tuple[float, float, float]
_LARGEST_R = 1 - 1e-12  # Fisher's z of a correlation of 1 is infinite


@dataclass(frozen=True)
class Table:
    """A number per pair of corpora, fitted on the row's and scored on the column's, and its 95 % interval."""

    value: Float[np.ndarray, "fitted scored"]
    low: Float[np.ndarray, "fitted scored"]
    high: Float[np.ndarray, "fitted scored"]


@dataclass(frozen=True)
class Transfer:
    """One block over several corpora.

    Attributes:
        corpora: their names, in the order of all rows and columns.
        r2: R² on the held-out rows of the column's corpus of the map fitted on the row's; the diagonal is R²_lin.
        drop: what fitting elsewhere costs, R²_BB − R²_AB, paired: both are scored on the same held-out documents.
        likeness: cosine of the two maps where the two corpora go, see `likeness`; 1 on the diagonal.
        expected: what `likeness` would come to if the two maps differed by the draw of documents alone; on the
            diagonal, the likeness to a map fitted on a second draw of the same corpus.
        maps: the map fitted on each corpus.
        refitted: per corpus, its own R²_lin with each of its train folds left out.
        rescored: per corpus, the same with each of its held-out folds left out.
    """

    corpora: tuple[str, ...]
    r2: Table
    drop: Table
    likeness: Table
    expected: Float[np.ndarray, "fitted scored"]
    maps: tuple[AffineMap, ...]
    refitted: tuple[Float[np.ndarray, " train_folds"], ...]
    rescored: tuple[Float[np.ndarray, " test_folds"], ...]


def transfers(captures: Mapping[str, Mapping[int, BlockCapture]]) -> dict[int, Transfer]:
    """`transfer` for every block of a model, by depth; `captures` is corpus → captured blocks, read one at a time.

    Raises:
        InputError: the corpora have different blocks, or a block cannot be compared; names it.
    """
    blocks = {name: sorted(kept) for name, kept in captures.items()}
    first = next(iter(blocks.values()), [])
    if any(found != first for found in blocks.values()):
        raise InputError(f"the corpora hold different blocks, {blocks}: capture the same blocks of one model")
    found = {}
    for block in first:
        try:
            found[block] = transfer({name: kept[block] for name, kept in captures.items()})
        except InputError as error:
            raise InputError(f"block {block}: {error}") from error
    return found


def transfer(kept: Mapping[str, BlockCapture]) -> Transfer:
    """Fit one block on each corpus, score every map on every corpus, and liken the maps.

    The interval of R²_AB leaves out train folds of A, then held-out folds of B. That of a drop leaves out train folds
    of A, of B, then held-out folds of B from both terms at once. That of a likeness leaves out train folds of either,
    and takes the metric as given: the pooled held-out inputs of the two corpora.

    Args:
        kept: corpus → what was captured of the same block of the same model.

    Raises:
        InputError: fewer than two corpora, different widths, fewer than two folds on a side, or no fit.
    """
    _check(kept)
    fits, tests = {}, {}
    for name, block in kept.items():
        fits[name] = [fit(moments)[0] for moments in (sum(block.train), *left_out(block.train))]
        tests[name] = [sum(block.test), *left_out(block.test)]
    by_fit = {(a, b): np.array([r2(affine, tests[b][0]) for affine in fits[a]]) for a in kept for b in kept}
    by_test = {(a, b): np.array([r2(fits[a][0], test) for test in tests[b]]) for a in kept for b in kept}

    def scored(a: str, b: str) -> Estimate:
        value = float(by_fit[a, b][0])
        return value, *jackknife(value, by_fit[a, b][1:], by_test[a, b][1:])

    def dropped(a: str, b: str) -> Estimate:
        if a == b:
            return 0.0, 0.0, 0.0
        own, other = by_fit[b, b], by_fit[a, b]
        paired = (by_test[b, b] - by_test[a, b])[1:]
        return float(own[0] - other[0]), *jackknife(own[0] - other[0], own[1:] - other[0], own[0] - other[1:], paired)

    likened = {}
    for a, b in combinations_with_replacement(kept, 2):
        likened[a, b] = likened[b, a] = _likened(fits[a], fits[b], tests[a][0] + tests[b][0])
    return Transfer(
        corpora=tuple(kept),
        r2=_table(kept, scored),
        drop=_table(kept, dropped),
        likeness=_table(kept, lambda a, b: likened[a, b][0] if a != b else (1.0, 1.0, 1.0)),
        expected=np.array([[likened[a, b][1] for b in kept] for a in kept]),
        maps=tuple(found[0] for found in fits.values()),
        refitted=tuple(by_fit[name, name][1:] for name in kept),
        rescored=tuple(by_test[name, name][1:] for name in kept),
    )


def likeness(one: AffineMap, other: AffineMap, moments: Moments) -> float:
    """Cosine of two maps, ⟨W, V⟩ / ‖W‖‖V‖ with ⟨W, V⟩ = tr(Wᵀ Sxx V): 1 for the same map, 0 for unrelated ones.

    It is the correlation, pooled over features, of what the two maps predict on the rows in `moments`: directions that
    those rows do not visit do not count, the biases neither. Best take the rows of both corpora.

    Raises:
        InputError: different shapes, or a map that is constant on these rows.
    """
    shapes = [tuple(affine.weight.shape) for affine in (one, other)]
    if shapes[0] != shapes[1] or shapes[0][0] != moments.d_in:
        raise InputError(f"maps of shape {shapes[0]} and {shapes[1]} on {moments.d_in} inputs cannot be likened")
    return _cosine(_products([one, other], moments), 0, 1)


@dataclass(frozen=True)
class Agreement:
    """How far two corpora give one profile.

    Attributes:
        blocks: the blocks, by depth.
        pearson: correlation of R²_lin over the blocks; `pearson_low` and `pearson_high` are its 95 % interval's ends,
            by the jackknife over the document folds on Fisher's z.
        difference: R²_lin on the one minus on the other, shape (blocks,); `low` and `high` are its intervals' ends.
    """

    blocks: tuple[int, ...]
    pearson: float
    pearson_low: float
    pearson_high: float
    difference: Float[np.ndarray, " blocks"]
    low: Float[np.ndarray, " blocks"]
    high: Float[np.ndarray, " blocks"]

    @property
    def differ(self) -> tuple[int, ...]:
        """Blocks whose difference is larger than its interval; one in twenty is by chance."""
        return tuple(block for block, low, high in zip(self.blocks, self.low, self.high, strict=True) if low * high > 0)


def agreement(found: Mapping[int, Transfer], one: str, other: str) -> Agreement:
    """Compare the profiles of two corpora, both among those in `found` (block → `Transfer`).

    The intervals say what other documents of the same corpora would change; the blocks are all that the model has,
    no sample of anything, so they are not resampled.

    Raises:
        InputError: unknown corpus, fewer than three blocks, or a profile that is flat.
    """
    corpora = next(iter(found.values())).corpora if found else ()
    if len(found) < 3 or not {one, other} <= set(corpora):
        given = f"{len(found)} blocks of {', '.join(corpora) or 'no corpus'}"
        raise InputError(f"cannot compare {one} and {other} over {given}: take two of them and at least three blocks")

    def over_blocks(values: Callable[[Transfer], np.ndarray]) -> Float[np.ndarray, "... blocks"]:
        return np.stack([values(each) for each in found.values()], axis=-1)

    i, j = corpora.index(one), corpora.index(other)
    a, b = (over_blocks(lambda each, k=k: each.r2.value[k, k]) for k in (i, j))
    if min(np.ptp(a), np.ptp(b)) == 0:
        raise InputError(f"the profile of {one} or {other} is the same in every block: correlations are undefined")
    sets = [(over_blocks(lambda each: each.refitted[i]), b), (over_blocks(lambda each: each.rescored[i]), b)]
    sets += [(a, over_blocks(lambda each: each.refitted[j])), (a, over_blocks(lambda each: each.rescored[j]))]
    left_out = [np.broadcast_arrays(*profiles) for profiles in sets]  # each (folds, blocks)
    ends = jackknife(_z(a, b), *[[_z(*two) for two in zip(*profiles, strict=True)] for profiles in left_out])
    bars = [jackknife(a[k] - b[k], *[x[:, k] - y[:, k] for x, y in left_out]) for k in range(len(found))]
    pearson = [float(np.tanh(z)) for z in (_z(a, b), *ends)]
    return Agreement(tuple(found), *pearson, a - b, *np.array(bars).T)


def _z(one: Float[np.ndarray, " blocks"], other: Float[np.ndarray, " blocks"]) -> float:
    """Fisher's z of the correlation of two profiles."""
    return float(np.arctanh(np.clip(np.corrcoef(one, other)[0, 1], -_LARGEST_R, _LARGEST_R)))


def _check(kept: Mapping[str, BlockCapture]) -> None:
    if len(kept) < 2:
        raise InputError(f"transfer needs at least two corpora, got {', '.join(kept) or 'none'}: capture another text")
    for name, block in kept.items():
        if min(len(block.train), len(block.test)) < 2:
            raise InputError(f"{name} has fewer than two document folds on a side: an interval needs two on each")
    shapes = {name: (block.train[0].d_in, block.train[0].d_out) for name, block in kept.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"the corpora hold blocks of different widths, {shapes}: capture them with one model")


def _table(corpora: Mapping[str, BlockCapture], cell: Callable[[str, str], Estimate]) -> Table:
    return Table(*np.moveaxis(np.array([[cell(a, b) for b in corpora] for a in corpora]), -1, 0))


def _products(maps: Sequence[AffineMap], moments: Moments) -> Float[Tensor, "maps maps"]:
    """⟨W, V⟩ of all pairs."""
    weights = torch.stack([affine.weight for affine in maps])
    return weights.flatten(1) @ (moments.sxx @ weights).flatten(1).T


def _cosine(products: Float[Tensor, "maps maps"], i: int, j: int) -> float:
    if not products[i, i] * products[j, j] > 0:
        raise InputError("a map is constant on these rows, so it is like no other: was it fitted on varying outputs?")
    return float(products[i, j] / (products[i, i] * products[j, j]).sqrt())


def _likened(ones: list[AffineMap], others: list[AffineMap], moments: Moments) -> tuple[Estimate, float]:
    """Likeness of the first maps of two lists, with its interval by the rest; and what noise alone would leave of 1."""
    k, products = len(ones), _products(ones + others, moments)
    value, n = _cosine(products, 0, k), len(products)
    refits = [_cosine(products, i, k) for i in range(1, k)], [_cosine(products, 0, j) for j in range(k + 1, n)]
    expected = (_reproducible(products[:k, :k]) * _reproducible(products[k:, k:])) ** 0.5
    return (value, *jackknife(value, *refits)), expected


def _reproducible(products: Float[Tensor, "maps maps"]) -> float:
    """Share of ‖W‖² that is no noise: less the jackknife's (n − 1)/n · Σ ‖W₍ᵢ₎ − W̄‖² over the n refits; at least 0."""
    refits, n = products[1:, 1:], len(products) - 1
    noise = (refits.trace() - refits.sum() / n) * (n - 1) / n
    return max(float(1 - noise / products[0, 0]), 0.0)
