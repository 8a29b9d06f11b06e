"""What a profile says under each protocol: a few statements, the verdicts on them, and which choices they hang on.

They are of the kind that the ledger (notebook 13) judges, each a number of the profile and a threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from howlinear.core.intervals import Estimate
from howlinear.core.profile_statistics import largest_step, lowest, smaller_turn, spread
from howlinear.ideas.protocol.choices import COLUMNS, Protocol, one_away, universe
from howlinear.ideas.protocol.multiverse import Scores

HOLDS, FAILS, OPEN = "✓", "✗", "~"


@dataclass(frozen=True)
class Statement:
    """A statement about a profile.

    Attributes:
        asks: what its number is, in words.
        threshold: what that number must clear.
        above: whether it must lie above the threshold, or below.
    """

    asks: str
    threshold: float
    above: bool = True

    def holds(self, number: float) -> bool:
        """Whether a number clears the threshold."""
        return bool(number > self.threshold if self.above else number < self.threshold)

    def verdict(self, estimate: Estimate) -> str:
        """`✓` if the whole interval clears the threshold, `✗` if none of it does, else `~`."""
        ends = {self.holds(estimate.low), self.holds(estimate.high)}
        if len(ends) > 1:
            return OPEN
        return HOLDS if ends.pop() else FAILS


STATISTICS = {"spread": spread, "both ways": smaller_turn, "neighbours": largest_step, "lowest": lowest}

STATEMENTS = {
    "spread": Statement("highest − lowest block", 0.25),
    "both ways": Statement("smaller of largest rise and fall", 0.05),
    "neighbours": Statement("largest step between neighbours", 0.25),
    "lowest": Statement("least linear block", 0.90, above=False),
}


def statement_table(blocks: pd.DataFrame) -> pd.DataFrame:
    """The statements' numbers in every universe.

    Args:
        blocks: a row a `model`, universe (the columns `COLUMNS`) and `block`, with `r2`.

    Returns:
        A row a `model` and universe: a column a statement, `mean` of the profile, and `lowest_block`.
    """
    rows = []
    for (model, *levels), profile in blocks.groupby(["model", *COLUMNS], sort=False):
        r2 = profile.sort_values("block").r2.to_numpy()
        numbers = {name: statistic(r2) for name, statistic in STATISTICS.items()}
        found = {"mean": float(r2.mean()), "lowest_block": int(r2.argmin())}
        rows.append({"model": model, **dict(zip(COLUMNS, levels, strict=True)), **numbers, **found})
    return pd.DataFrame(rows)


def flip_table(
    table: pd.DataFrame, reference: Protocol, statements: Mapping[str, Statement] = STATEMENTS
) -> pd.DataFrame:
    """Which verdicts flip, and which choice alone flips them.

    Args:
        table: as of `statement_table`.
        reference: the protocol that one choice is changed of.
        statements: name → statement.

    Returns:
        A row a `model` and `statement`: `low` and `high`, the ends of its number over all universes; `share` of the
        universes in which it holds; `flips`, whether it holds in some and not in others; `alone`, the choices that flip
        it from what it is under the reference, all others as there.
    """
    rows = []
    for model, mine in table.groupby("model", sort=False):
        for name, statement in statements.items():
            numbers = mine[name]
            holds = numbers.map(statement.holds)
            here = bool(statement.holds(universe(mine, reference)[name].iloc[0]))
            alone = [
                choice
                for choice in COLUMNS
                if (one_away(mine, reference, choice)[name].map(statement.holds) != here).any()
            ]
            rows.append(
                {
                    "model": model,
                    "statement": name,
                    "low": numbers.min(),
                    "high": numbers.max(),
                    "share": holds.mean(),
                    "flips": bool(holds.any() and not holds.all()),
                    "alone": ", ".join(alone),
                }
            )
    return pd.DataFrame(rows)


def effect_table(blocks: pd.DataFrame, reference: Protocol) -> pd.DataFrame:
    """How far each choice moves R²_lin of a block, all others as they are.

    Args:
        blocks: a row a `model`, universe and `block`, with `r2`.
        reference: what each level is compared with.

    Returns:
        A row a `choice` and `level` other than the reference's: `mean` change of R² over blocks and universes, and the
        `largest` in absolute value, with its sign.
    """
    rows = []
    keys = ["model", "block", *COLUMNS]
    for choice, level_here in asdict(reference).items():
        others = [key for key in keys if key != choice]
        wide = blocks.pivot_table(index=others, columns=choice, values="r2", sort=False)
        for level in wide.columns:
            if level != level_here:
                change = (wide[level] - wide[level_here]).dropna()
                largest = change.loc[change.abs().idxmax()]
                rows.append({"choice": choice, "level": str(level), "mean": change.mean(), "largest": largest})
    return pd.DataFrame(rows)


def orders(table: pd.DataFrame) -> pd.Series:
    """Share of the universes in which models come in each order, by the mean of their profiles, most linear first."""
    wide = table.pivot_table(index=COLUMNS, columns="model", values="mean", sort=False)
    by_mean = wide.apply(lambda means: " > ".join(means.sort_values(ascending=False).index), axis=1)
    return by_mean.value_counts(normalize=True)


def lowest_blocks(table: pd.DataFrame) -> pd.DataFrame:
    """How often each block is the least linear: a row a `model` and `block`, with the `share` of universes."""
    counted = table.groupby("model", sort=False).lowest_block.value_counts(normalize=True)
    return counted.rename("share").rename_axis(["model", "block"]).reset_index()


def side_by_side(
    named: Mapping[str, Mapping[str, Scores]], statements: Mapping[str, Statement] = STATEMENTS
) -> pd.DataFrame:
    """Every statement under each protocol that has a name.

    Args:
        named: model → protocol → its profile.
        statements: name → statement.

    Returns:
        A row a `model`, `statement` and `protocol`: `value`, `low`, `high`, `verdict`.
    """
    rows = []
    for model, profiles in named.items():
        for name, statement in statements.items():
            for protocol, profile in profiles.items():
                found = profile.estimate(STATISTICS[name])
                about = {"model": model, "statement": name, "protocol": protocol}
                rows.append({**about, **asdict(found), "verdict": statement.verdict(found)})
    return pd.DataFrame(rows)


def verdicts_wide(table: pd.DataFrame) -> pd.DataFrame:
    """`side_by_side` for reading: a row a model and statement, a column a protocol, as in `✓ 0.36 [0.34, 0.37]`."""
    shown = [f"{row.verdict} {Estimate(row.value, row.low, row.high)}" for row in table.itertuples()]
    wide = table.assign(shown=shown).pivot_table(
        index=["model", "statement"], columns="protocol", values="shown", aggfunc="first", sort=False
    )
    return wide[list(dict.fromkeys(table.protocol))].rename_axis(columns=None)


def profile_table(named: Mapping[str, Mapping[str, Scores]]) -> pd.DataFrame:
    """Profiles under each protocol that has a name: a row a `model`, `protocol` and `block`: `r2`, `low`, `high`."""
    rows = []
    for model, profiles in named.items():
        for protocol, profile in profiles.items():
            for block in range(len(profile.value)):
                found = profile.estimate(lambda r2, block=block: float(r2[block]))
                about = {"model": model, "protocol": protocol, "block": block}
                rows.append({**about, "r2": found.value, "low": found.low, "high": found.high})
    return pd.DataFrame(rows)


def universes(blocks: pd.DataFrame, models: Sequence[str]) -> int:
    """How many universes there are: combinations of choices that every model was measured under."""
    return len(blocks[blocks.model == models[0]][COLUMNS].drop_duplicates())
