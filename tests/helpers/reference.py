"""Slow, independent references: least squares by SVD on stored rows, R² row by row, the jackknife; seeded rows."""

import numpy as np
import torch
from scipy.stats import t as student_t

from howlinear.core.ceilings import AffineMap

RESOLUTION = 1e-6  # scaled inputs' singular values below it are null directions: √ of `ceilings.NULL`


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_map(width, seed=0, scale=1.0):
    return AffineMap(scale * normal(width, width, seed=seed), scale * normal(width, seed=seed + 1))


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


@torch.no_grad()
def r2_by_hooks(model, first, last, inputs, mask=None):
    """R²_lin between the input of one module and the output of another, on the tokens of a mask; and their number.

    Every fourth sequence is held out.
    """
    seen = {}
    hooks = [
        first.register_forward_pre_hook(lambda _, args: seen.update(x=args[0].clone())),
        last.register_forward_hook(lambda _, __, y: seen.update(y=y.clone())),
    ]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    tokens = torch.ones(seen["x"].shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    held_out = (torch.arange(len(tokens)) % 4 == 3)[:, None]
    sides = [[seen[name][tokens & side].double() for name in "xy"] for side in (~held_out, held_out)]
    return held_out_r2(*sides), int(tokens.sum())


def half_width(*groups):
    """Half-width of a 95 % jackknife interval, from values without each fold; a group per set of equally many folds."""
    count = len(groups[0])
    variance = sum((count - 1) * np.var(group, axis=0) for group in groups)
    return student_t.ppf(0.975, count - 1) * variance**0.5
