"""What a profile says under each protocol: a few statements, the verdicts on them, and which choices decide them.

Each compares a number of the profile with a threshold. Where the ledger (notebook 13) makes the same statement, the
threshold is the ledger's, see `paper/claims.toml`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from howlinear.core.intervals import Estimate
from howlinear.core.profile_statistics import largest_step, lowest, smaller_turn, spread
from howlinear.ideas.protocol.choices import CHOICES, Protocol, one_away
from howlinear.ideas.protocol.measure import jackknife

HOLDS, FAILS, OPEN = "holds", "fails", "open"


@dataclass(frozen=True)
class Statement:
    """A statement about a profile."""

    asks: str  # what its number is, in words
    statistic: Callable[[np.ndarray], float]  # profile → that number
    threshold: float  # that the number must clear
    above: bool = True  # whether the number must lie above the threshold, or below

    def holds(self, number: float) -> bool:
        """Whether a number clears the threshold."""
        return bool(number > self.threshold if self.above else number < self.threshold)

    def verdict(self, estimate: Estimate) -> str:
        """`holds` if the whole interval clears the threshold, `fails` if none of it does, else `open`."""
        ends = {self.holds(estimate.low), self.holds(estimate.high)}
        if len(ends) > 1:
            return OPEN
        return HOLDS if ends.pop() else FAILS


STATEMENTS = {
    "spread": Statement("highest − lowest block", spread, 0.27),
    "both ways": Statement("smaller of largest rise and fall", smaller_turn, 0.05),
    "neighbours": Statement("largest step between neighbours", largest_step, 0.2),
    "lowest": Statement("least linear block", lowest, 0.90, above=False),
}


def statement_table() -> pd.DataFrame:
    """The statements; table `statements`."""
    table = pd.DataFrame([vars(statement) for statement in STATEMENTS.values()]).drop(columns="statistic")
    table.insert(0, "statement", list(STATEMENTS))
    return table


def number_table(universes: pd.DataFrame) -> pd.DataFrame:
    """Compute the statements' numbers in every universe where all blocks have an R²: a row per model and universe."""
    rows = []
    for (model, *levels), profile in universes.groupby(["model", *CHOICES], sort=False):
        if profile["r2"].isna().any():
            continue
        in_order = profile.sort_values("block")
        r2 = in_order["r2"].to_numpy()
        row = {"model": model} | dict(zip(CHOICES, levels, strict=True))
        row |= {name: statement.statistic(r2) for name, statement in STATEMENTS.items()}
        row |= {"mean": r2.mean(), "lowest_block": int(in_order["block"].iloc[r2.argmin()])}
        rows.append(row)
    return pd.DataFrame(rows)


def flip_table(numbers: pd.DataFrame, reference: Protocol) -> pd.DataFrame:
    """Find the verdicts that flip over all universes, and which choice alone flips them from the reference's."""
    rows = []
    for model, mine in numbers.groupby("model", sort=False):
        for name, statement in STATEMENTS.items():
            if mine[name].isna().all():  # it needs two blocks, and the model has one
                continue
            holds = mine[name].map(statement.holds)
            holds_here = holds[one_away(mine, reference).index[0]]
            alone = []
            for choice in CHOICES:
                varied = one_away(mine, reference, choice)
                if (holds[varied.index] != holds_here).any():
                    alone.append(choice)
            rows.append(
                {
                    "model": model,
                    "statement": name,
                    "smallest": mine[name].min(),
                    "largest": mine[name].max(),
                    "share": holds.mean(),
                    "flips": bool(holds.any() and not holds.all()),
                    "alone": ", ".join(alone),
                }
            )
    return pd.DataFrame(rows)


def effect_table(universes: pd.DataFrame, reference: Protocol) -> pd.DataFrame:
    """Measure how far each choice moves R²_lin from the reference's level, all others unchanged; table `effects`."""
    rows = []
    keys = ["model", "block", *CHOICES]
    for choice, level_here in asdict(reference).items():
        all_else = [key for key in keys if key != choice]
        by_level = universes.pivot_table(index=all_else, columns=choice, values="r2", sort=False)
        for level in by_level.columns.drop(level_here):
            change = (by_level[level] - by_level[level_here]).dropna()
            largest = change.loc[change.abs().idxmax()]
            rows.append({"choice": choice, "level": str(level), "mean": change.mean(), "largest": largest})
    return pd.DataFrame(rows)


def order_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Count how often each order of the models by the mean of their profiles occurs; table `orders`."""
    means = numbers.pivot_table(index=CHOICES, columns="model", values="mean", sort=False).dropna()
    orders = means.apply(lambda row: " > ".join(row.sort_values(ascending=False).index), axis=1)
    return orders.value_counts(normalize=True).rename("share").rename_axis("order").reset_index()


def lowest_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Count how often each block is the least linear of its model; table `lowest_blocks`."""
    counted = numbers.groupby("model", sort=False)["lowest_block"].value_counts(normalize=True)
    return counted.rename("share").rename_axis(["model", "block"]).reset_index()


def verdict_table(folds: pd.DataFrame) -> pd.DataFrame:
    """Judge every statement about every model, as in `flip_table`, under each named protocol; table `verdicts`."""
    rows = []
    for (model, protocol), mine in folds.groupby(["model", "protocol"], sort=False):
        # a profile for all folds, then one for each fold that is left out
        profiles = mine.pivot_table(index=["side", "fold"], columns="block", values="r2", sort=False).to_numpy()
        for name, statement in STATEMENTS.items():
            found = [statement.statistic(profile) for profile in profiles]
            if np.isnan(found).all():
                continue
            # the intervals hold where the extreme blocks are clearly apart, and are too narrow where many are about
            # equally extreme
            estimate = jackknife(found)
            about = {"model": model, "statement": name, "protocol": protocol}
            rows.append(about | estimate.columns("value") | {"verdict": statement.verdict(estimate)})
    return pd.DataFrame(rows)


def verdicts_side_by_side(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Verdicts for reading: a row a model and statement, a column a protocol, as in `holds 0.36 [0.34, 0.37]`."""
    estimates = map(Estimate, verdicts["value"], verdicts["value_low"], verdicts["value_high"])
    cells = [f"{verdict} {estimate}" for verdict, estimate in zip(verdicts["verdict"], estimates, strict=True)]
    wide = verdicts.assign(cell=cells).pivot_table(
        index=["model", "statement"], columns="protocol", values="cell", aggfunc="first", sort=False
    )
    return wide[verdicts["protocol"].unique()].rename_axis(columns=None)
