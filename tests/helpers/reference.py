"""Slow, independent references: least squares by SVD on stored rows, R² row by row; seeded rows and their moments."""

import numpy as np
import torch

from howlinear.core.moments import Moments

RESOLUTION = 1e-6  # singular values of the scaled inputs below it are null directions: √ of `ceilings.NULL`


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def least_squares(x, y):
    """Minimum-norm affine map by SVD of centred, column-scaled float64 rows: (weight, bias, rank)."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    varies = np.ptp(x, axis=0) > 0
    centre, scale = x.mean(0), np.where(varies, x.std(0), 1)
    columns = np.where(varies, (x - centre) / scale, 0)
    solution, _, rank, _ = np.linalg.lstsq(columns, y - y.mean(0), rcond=RESOLUTION)
    weight = solution / scale[:, None]
    return weight, y.mean(0) - centre @ weight, rank


def pooled_r2(x, y, weight, bias):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return 1 - np.square(y - x @ weight - bias).sum() / np.square(y - y.mean(0)).sum()


def r2_by_feature(x, y, weight, bias):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return 1 - np.square(y - x @ weight - bias).sum(0) / np.square(y - y.mean(0)).sum(0)


def held_out_r2(train, test):
    """R²_lin of (x, y) rows: fitted on `train`, scored on `test`."""
    weight, bias, _ = least_squares(*train)
    return pooled_r2(*test, weight, bias)


def moments_by_fold(x, y, test, fold):
    """Moments of every fold, of the rows to fit on and of those held out."""
    sides = []
    for side in (False, True):
        parts = [(test == side) & (fold == number) for number in range(int(fold.max()) + 1)]
        sides.append([Moments(x.shape[1], y.shape[1]).update(x[rows], y[rows]) for rows in parts])
    return sides
