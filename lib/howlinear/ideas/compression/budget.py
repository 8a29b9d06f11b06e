"""Parameters shared out among blocks: which way each block goes, so that all together fit a budget and cost least.

Every block has a table of ways it can go (so many hidden units, or an affine map), each with its number of parameters
and its price in nats. To choose one way a block, of the least total price within a budget, is the multiple-choice
knapsack problem (Sinha & Zoltners 1979, "The multiple-choice knapsack problem"), solved here by dynamic programming
over the budget, block after block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from howlinear.errors import InputError

CELLS = 20_000
"""Steps that a larger saving is counted in."""


def share_out(ways: Mapping[int, pd.DataFrame], budget: int) -> dict[int, int]:
    """Choose a way for every block, of the least total price within a budget.

    Args:
        ways: block → a row per way it can go, with its number of `parameters` and its `price`.
        budget: how many parameters all blocks may have together.

    Returns:
        Block → the place of its way in its table. Exact where what the ways save is counted in at most `CELLS` steps of
        their common divisor; beyond that every block may save up to one part in `CELLS` more than it is counted for.

    Raises:
        InputError: even the smallest ways are too large together.
    """
    whole = sum(int(table["parameters"].max()) for table in ways.values())
    smallest = sum(int(table["parameters"].min()) for table in ways.values())
    if not ways or smallest > budget:
        raise InputError(
            f"{budget:,} parameters for {len(ways)} blocks: the smallest ways they can go have {smallest:,} together"
        )
    to_save = max(0, whole - budget)
    savings = {block: table["parameters"].max() - table["parameters"].to_numpy() for block, table in ways.items()}
    cell = max(1, int(np.gcd.reduce(np.concatenate(list(savings.values())))), to_save // CELLS)
    cells = -(-to_save // cell)

    # least[c]: the least price at which the blocks so far save c cells or more; went[block][c]: how the last one goes
    least = np.full(cells + 1, np.inf)
    least[0] = 0
    went = {}
    saved = {}
    place = np.arange(cells + 1)
    for block, table in ways.items():
        saved[block] = savings[block] // cell
        before = least
        least = np.full(cells + 1, np.inf)
        went[block] = np.zeros(cells + 1, dtype=int)
        for way, price in enumerate(table["price"]):
            with_this = before[np.maximum(place - saved[block][way], 0)] + price
            better = with_this < least
            least[better] = with_this[better]
            went[block][better] = way

    if not np.isfinite(least[-1]):  # what is saved was counted in cells that are too coarse
        return {block: int(table["parameters"].argmin()) for block, table in ways.items()}

    # from the last block back to the first
    left = cells
    chosen = {}
    for block in reversed(list(ways)):
        chosen[block] = int(went[block][left])
        left = max(0, left - int(saved[block][chosen[block]]))
    return {block: chosen[block] for block in ways}
