"""Methods that measure how linear a block is from its stored rows: ours, and three in common use.

Each takes float32 rows x and y of shape (n, d), the first `train` of which are for training, and returns an R².
"""

import numpy as np
import torch
from scipy.linalg import lstsq
from sklearn.linear_model import LinearRegression

from howlinear.core.ceilings import fit, r2
from howlinear.core.moments import Moments

CHUNK = 2_048  # rows in a forward pass
NULL = 1e-6  # share of the largest singular value; float32 rows cannot resolve smaller ones


def moments_of(x, y):
    moments = Moments(x.shape[1], y.shape[1])
    for rows in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        moments.update(*rows)
    return moments


def ours(x, y, train):
    affine, _ = fit(moments_of(x[:train], y[:train]))
    return r2(affine, moments_of(x[train:], y[train:]))


def ours_in_sample(x, y, train):
    moments = moments_of(x, y)
    return r2(fit(moments)[0], moments)


def least_squares(x, y, train):
    """scipy's lstsq (LAPACK gelsd) in float64 on centred, scaled columns: the reference."""
    x, y = x.double().numpy(), y.double().numpy()
    mean_x, mean_y = x[:train].mean(0), y[:train].mean(0)
    x -= mean_x
    scale = np.sqrt(np.square(x[:train]).mean(0))
    x /= np.where(scale > 0, scale, 1)
    weight = lstsq(x[:train], y[:train] - mean_y, cond=NULL, overwrite_b=True, check_finite=False)[0]
    return pooled(x[train:] @ weight + mean_y, y[train:])


def scikit(x, y, train):
    """scikit-learn's LinearRegression in float64, with its defaults."""
    x, y = x.double().numpy(), y.double().numpy()
    return pooled(LinearRegression().fit(x[:train], y[:train]).predict(x[train:]), y[train:])


def pooled(predicted, y):
    return 1 - np.square(y - predicted).sum() / np.square(y - y.mean(0)).sum()


def svd_score(x, y, train):
    """The linearity score of arXiv 2405.12250, in sample, float32.

    It is 1 − min over A of ‖X̃A − Ỹ‖²_F, with X̃ and Ỹ centred and of norm 1; A comes from the SVD of X̃.
    """
    x, y = x - x.mean(0), y - y.mean(0)
    x, y = (part / torch.linalg.vector_norm(part, dtype=torch.float64).float() for part in (x, y))
    left, singular, right = torch.linalg.svd(x, full_matrices=False)
    kept = singular > NULL * singular[0]
    weight = right[kept].T @ ((left[:, kept].T @ y) / singular[kept, None])
    return 1 - float((x @ weight - y).square().sum(dtype=torch.float64))  # float32 sums of millions lose digits


HELD_OUT = {"howlinear": ours, "scipy lstsq": least_squares, "scikit-learn": scikit}
IN_SAMPLE = {"howlinear, in sample": ours_in_sample, "SVD score": svd_score}
METHODS = HELD_OUT | IN_SAMPLE
