"""Planted blocks in which it is known what the token decides: a table, a line, and both.

The input is x = e_t + c, an embedding of the token plus a context independent of it, and the output

    y = √table · h_t + √line · x / √2 + √noise · ε,    table + line + noise = 1,

with e, h, c and ε uncorrelated and of variance 1 in each feature. Half of the line's variance is due to the token, so
the token share is s = table + line / 2. The line fitted to x explains all of its own part and nothing else:
R²_between = line / 2 s, and R²_within = line / 2 (1 − s).
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import torch

from howlinear.core.fold_maps import fit_folds
from howlinear.core.token_split import TokenSums, token_split

FOLDS = 8  # of each side
ROWS, WIDTH = 8_000, 6  # of both sides; of inputs and of outputs


class Case(NamedTuple):
    """What a planted block is made of: shares of its output's variance; the rest is noise."""

    table: float
    line: float

    @property
    def truth(self) -> dict[str, float]:
        """The true values."""
        share = self.table + self.line / 2
        within = self.line / 2 / (1 - share)
        return {"token_share": share, "r2_between": self.line / 2 / share, "r2_within": within}


CASES = {"a table, no line": Case(0.9, 0.0), "a line, no table": Case(0.0, 0.8), "both": Case(0.4, 0.4)}


def plant(case: Case, seed: int = 0, types: int = 1_000) -> list[TokenSums]:
    """Draw rows of a planted block with equally likely tokens, summed by token: a train side and a held-out side."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    # e and h have mean 0 and variance 1 over the vocabulary, and all their features are uncorrelated
    columns = torch.cat([torch.ones(types, 1, dtype=torch.float64), normal(types, 2 * WIDTH)], 1)
    orthogonal = torch.linalg.qr(columns).Q * types**0.5
    _, embedding, of_token = orthogonal.split([1, WIDTH, WIDTH], 1)
    token = torch.randint(types, (ROWS,), generator=generator)
    fold = torch.randint(2 * FOLDS, (ROWS,), generator=generator)
    noise = (1 - case.table - case.line) ** 0.5 * normal(ROWS, WIDTH)
    x = embedding[token] + normal(ROWS, WIDTH)
    y = case.table**0.5 * of_token[token] + (case.line / 2) ** 0.5 * x + noise
    sides = []
    for side in (fold < FOLDS, fold >= FOLDS):
        sums = TokenSums.empty(token[side], fold[side], WIDTH, WIDTH)
        for number in fold[side].unique().tolist():
            inside = fold == number
            sums.update(number, token[inside], x[inside], y[inside])
        sides.append(sums)
    return sides


def planted_table(seed: int = 0) -> pd.DataFrame:
    """Compare planted with found values: a row per case and quantity."""
    rows = []
    for name, case in CASES.items():
        train, held_out = plant(case, seed)
        maps = fit_folds(list(train.rows.values()))
        found = token_split(maps.whole, maps.refits, held_out)
        for quantity, value in case.truth.items():
            row = {"case": name, "quantity": quantity, "planted": value}
            rows.append(row | getattr(found, quantity).columns("found"))
    return pd.DataFrame(rows)
