"""Ceilings and profiles of made-up numbers."""

import torch

from howlinear.core.ceilings import AffineMap, Ceiling
from howlinear.core.intervals import Estimate
from howlinear.instrument.profile import Profile, Solved
from howlinear.text.rows import TokenRows


def within(value, half):
    return Estimate(value, value - half, value + half)


def ceiling_of(r2, half=0.03, **changes):
    """A ceiling with this R²_lin and half-width of its interval; `changes` replace its other values."""
    made = {
        **dict.fromkeys(("r2", "r2_median"), r2),
        "r2_train": r2 + 0.02,
        "interval": within(r2, half),
        "limit": within(r2 + 0.01, half),
        "r2_per_feature": torch.full((2,), r2, dtype=torch.float64),
        "map": AffineMap(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)),
        "inputs": 2,
        "rank": 2,
        "condition": 1.0,
        "rows_train": 960,
        "rows_test": 320,
    }
    return Ceiling(**made | changes)


def made_up_profile(ceilings, massive=None, ordinary=None, perplexity=25.0):
    """A profile of blocks with these ceilings; `massive` and `ordinary`: block → massive rows, ceiling without."""
    rows = TokenRows.from_ids(torch.arange(160)[:, None].repeat(1, 128))
    massive, ordinary = massive or {}, ordinary or {}
    solved = {
        block: Solved(found, 123.4, massive.get(block, 0), ordinary.get(block, found), 123.4)
        for block, found in enumerate(ceilings)
    }
    return Profile("m", rows, solved, perplexity)
