"""Tokens and their contexts: variance within and between tokens for every block and text, as tidy tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

import pandas as pd
import torch
from transformers import PreTrainedModel

from howlinear.core import limits
from howlinear.core.ceilings import AffineMap, ceiling, output_squares, r2
from howlinear.core.fold_maps import FoldMaps, fit_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.core.token_split import TokenSums, split, token_split
from howlinear.files.tables import with_ends
from howlinear.ideas.tokens.table import Table, of_inputs, table_alone, table_and_line
from howlinear.instrument.token_split import Grouping, token_sums
from howlinear.text.rows import TokenRows

RARE, FREQUENT = KINDS = ("rare", "frequent")
"""Held-out rows by how often their token occurs in the train rows: those below the median row, and the others."""

TRAINED = "trained"
"""Name of the weights for which table `tables` is made."""

TRANSFER = [
    *("model", "weights", "block", "corpus", "r2_own", "r2_transferred"),
    *with_ends("loss"),
    *with_ends("loss_between"),
]
"""Columns of what a line loses on another text."""

FIRST = -1
"""Stands for the token before the first of a sequence."""


class Sides:
    """Rows of a block on one text, added up by token."""

    def __init__(self, sums: Sequence[TokenSums]):
        """Take the sums of `groupings`, in their order; sums by the previous token are optional."""
        self.train, rare, frequent, *self.previous = sums
        self.by_kind = {RARE: rare, FREQUENT: frequent}
        self.held_out = TokenSums.joined(rare, frequent)
        self.maps = fit_folds(list(self.train.rows.values()))

    def r2_of(self, fitted: Callable[..., Table], previous: bool = False) -> Estimate:
        """Estimate held-out R² of the table that `fitted` makes; refits get the whole fit's penalty."""
        # sums by the token before, or by the own one
        train, held_out = self.previous if previous else (self.train, self.held_out)
        whole = fitted(train)
        refitted = [fitted(train.without(fold), whole.penalty).r2(held_out) for fold in train.rows]
        errors = whole.errors(held_out)
        rescored = []
        for fold in errors:
            rest = Moments.total([moments for other, moments in held_out.rows.items() if other != fold])
            rescored.append(1 - (sum(errors.values()) - errors[fold]) / float(output_squares(rest)))
        return Estimate.jackknife(whole.r2(held_out), refitted, rescored)


def groupings(text: TokenRows, previous: bool) -> list[Grouping]:
    """Group train rows, rare and frequent held-out rows by token; and both sides by the `previous` token if asked."""
    train, held_out = Grouping.by_token(text, held_out=False), Grouping.by_token(text, held_out=True)
    of_train = text.ids[~text.test].flatten()
    counts = torch.bincount(of_train, minlength=int(text.ids.max()) + 1)
    seen = counts[text.ids]
    rare = seen < seen[text.test].median()
    sides = held_out.included & rare, held_out.included & ~rare
    by_token = [train, *(Grouping(text.ids, side) for side in sides)]
    first = torch.full_like(text.ids[:, :1], FIRST)
    before = torch.cat([first, text.ids[:, :-1]], 1)
    return by_token + [Grouping(before, side.included) for side in (train, held_out) if previous]


def _sides(
    model: PreTrainedModel, text: TokenRows, blocks: Sequence[int], at_once: int, previous: bool
) -> Iterator[tuple[int, Sides]]:
    """Yield each block with its sums; `at_once` blocks are held in memory together, and share a pass."""
    added = groupings(text, previous)
    for start in range(0, len(blocks), at_once):
        group = blocks[start : start + at_once]
        sums = token_sums(model, text, added, group)
        for block in group:
            yield block, Sides(sums.pop(block))


def survey(
    model: str,
    weights: str,
    loaded: PreTrainedModel,
    texts: Mapping[str, TokenRows],
    blocks: Sequence[int],
    at_once: int = 12,
) -> dict[str, pd.DataFrame]:
    """Split the rows of every block by token, on every text; carry lines from the first text to the others."""
    main = next(iter(texts))
    maps: dict[int, FoldMaps] = {}  # fitted on the first text
    tables: dict[str, list[dict]] = {"blocks": [], "tables": [], "kinds": [], "transfer": []}
    for corpus, text in texts.items():
        for block, side in _sides(loaded, text, blocks, at_once, corpus == main and weights == TRAINED):
            key = {"model": model, "weights": weights, "block": block}
            tables["blocks"].append({**key, "corpus": corpus} | _block(side))
            if corpus != main:
                tables["transfer"].append({**key, "corpus": corpus} | _transfer(maps[block], side))
                continue
            maps[block] = side.maps
            tables["kinds"] += [{**key, "kind": kind} | row for kind, row in _kinds(side)]
            if weights == TRAINED:
                tables["tables"].append(key | _tables(side))
    columns = {"transfer": TRANSFER}  # empty with a single text
    by_block = {name: sorted(rows, key=itemgetter("block")) for name, rows in tables.items()}
    return {name: pd.DataFrame(rows, columns=columns.get(name)) for name, rows in by_block.items()}


def _block(side: Sides) -> dict[str, float]:
    """Compute the columns of table `blocks` for a block on a text."""
    train, held_out = side.train, side.held_out
    whole = ceiling(list(train.rows.values()), list(held_out.rows.values()))
    parts = token_split(side.maps.whole, side.maps.refits, held_out)
    counted = split(side.maps.whole, held_out, counted=True)
    inputs = of_inputs(held_out)
    no_line = AffineMap.constant(inputs.total())
    input_share = token_split(no_line, [no_line, no_line], inputs).token_share
    follows = limits.optimism(whole.r2_train, whole.r2)
    count = held_out.total().n
    effective_rows = whole.rank / follows if follows > 0 else float("nan")  # v / n = rank / n, see `core.limits`
    return {
        **whole.interval.columns("r2"),
        **parts.columns(),
        "token_share_counted": counted.token_share,
        "r2_between_counted": counted.r2_between,
        "r2_within_counted": counted.r2_within,
        **input_share.columns("input_share"),
        "paired": sum(moments.n for moments in held_out.paired.values()) / count,
        "seen": float(held_out.count[torch.isin(held_out.token, train.token)].sum()) / count,
        "types": len(train.types[0]),
        "rows_train": whole.rows_train,
        "effective_rows": effective_rows,
    }


def _tables(side: Sides) -> dict[str, float]:
    """Compute held-out R² of a table, of table and line together, and of the line with the previous token's table."""
    return {
        **side.r2_of(table_alone).columns("r2_table"),
        **side.r2_of(table_and_line).columns("r2_both"),
        **side.r2_of(table_and_line, previous=True).columns("r2_previous"),
    }


def _kinds(side: Sides) -> Iterator[tuple[str, dict[str, float]]]:
    """Split rare and frequent held-out rows separately: kind; rows, R² about their own mean, and its parts."""
    for kind, sums in side.by_kind.items():
        if not sums.rows:  # every token is as frequent as the others
            continue
        rows = sums.total()
        parts = token_split(side.maps.whole, side.maps.refits, sums)
        yield kind, {"rows": rows.n, "r2": r2(side.maps.whole, rows), **parts.columns()}


def _transfer(of_main: FoldMaps, side: Sides) -> dict[str, float]:
    """Compare how much of a text its own line and the line of another text explain, and where the difference lies."""

    def losses(own: AffineMap, other: AffineMap, held_out: TokenSums) -> tuple[float, float]:
        at_home, abroad = split(own, held_out), split(other, held_out)
        between = abroad.error_share * (1 - abroad.r2) - at_home.error_share * (1 - at_home.r2)
        return at_home.r2 - abroad.r2, between

    own, held_out = side.maps, side.held_out
    here = losses(own.whole, of_main.whole, held_out)
    groups = [
        [losses(refit, of_main.whole, held_out) for refit in own.refits],
        [losses(own.whole, refit, held_out) for refit in of_main.refits],
        [losses(own.whole, of_main.whole, held_out.without(fold)) for fold in held_out.rows],
    ]
    loss, between = (
        Estimate.jackknife(here[place], *([values[place] for values in group] for group in groups)) for place in (0, 1)
    )
    return {
        "r2_own": split(own.whole, held_out).r2,
        "r2_transferred": split(of_main.whole, held_out).r2,
        **loss.columns("loss"),
        **between.columns("loss_between"),
    }
