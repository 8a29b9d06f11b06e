"""The exercises of notebook 06."""

import torch

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401


def share(names, swapped, ablated=None):
    """Loss recovered where each sequence has some loss with a map, and some with the block ablated."""
    losses = (names["base"], swapped, names["ablated"] if ablated is None else ablated)
    return names["share_recovered"](*(float(of_each.mean()) for of_each in losses))


def with_map(names, rank):
    return names["loss_with"](names["curve"].at(rank))


def switched_off(names):
    """The losses with 0 in the block's place, whatever the input."""
    full = names["curve"].map
    return names["loss_with"](hl.AffineMap(0 * full.weight, 0 * full.bias))


def affine(names, weight):
    train = names["train"]
    return hl.AffineMap(weight, train.mean_y - train.mean_x @ weight)


def plain(names, rank):
    """The rank's best map with all outputs weighed alike."""
    curve = names["curve"].at(rank)
    return affine(names, curve.down @ curve.up)


def turned_by(names, matrix, rank=None):
    """The map by the best directions of outputs that a matrix has turned."""
    turned = names["curve"].map.weight @ matrix
    vectors = torch.linalg.eigh(turned.T @ names["train"].sxx @ turned).eigenvectors
    leading = vectors[:, -(rank or names["d"] // 8) :]
    return turned @ leading @ leading.T


def undone(names, matrix, rank=None):
    inverse = torch.linalg.pinv(matrix, rtol=1e-9, hermitian=True)
    return affine(names, turned_by(names, matrix, rank) @ inverse)


WRONG = {
    "share_recovered": {
        "what is lost": lambda names: lambda loss, swapped, ablated: (swapped - loss) / (ablated - loss),
        "a ratio of losses": lambda names: lambda loss, swapped, ablated: 1 - swapped / ablated,
        "a sign slip": lambda names: lambda loss, swapped, ablated: 1 + (swapped - loss) / (ablated - loss),
        "cut off at 0": lambda names: lambda *three: max(0.0, names["share_recovered"](*three)),
    },
    "thin_share": {
        "the full map": lambda names: names["full"].value,
        "half the width": lambda names: share(names, with_map(names, names["d"] // 2)),
        "ablated by 0": lambda names: share(names, with_map(names, names["d"] // 4), switched_off(names)),
        "what is lost": lambda names: 1 - names["thin_share"],
    },
    "weighed": {
        "the plain map": lambda names: plain(names, names["d"] // 8),
        "the full map": lambda names: names["curve"].map,
        "not its root": lambda names: undone(names, names["metric"]),
        "not undone": lambda names: affine(names, turned_by(names, names["root"])),
        "a rank less": lambda names: undone(names, names["root"], names["d"] // 8 - 1),
        "the bias forgotten": lambda names: hl.AffineMap(names["weighed"].weight, 0 * names["weighed"].bias),
    },
}
