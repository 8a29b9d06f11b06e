"""Tidy tables of what changes with the text, over models, blocks and pairs of corpora, and what it costs to swap.

Everywhere `found` is model → block → `Transfer`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Int64
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.intervals import Estimate
from howlinear.ideas.corpora.agreement import agreement
from howlinear.ideas.corpora.transfer import Transfer
from howlinear.instrument.perplexity import Change, change, held_out_folds
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.load import is_causal
from howlinear.text.rows import TokenRows

Found = Mapping[str, Mapping[int, Transfer]]

ENDS = ["value", "low", "high"]
COLUMNS = ["corpus", "block", "kind", "delta", "low", "high"]  # of costs
FEWEST_INNER = 5  # blocks; of fewer the first and the last are not left out


def pair_table(found: Found) -> pd.DataFrame:
    """One row for each block and each pair of corpora, a corpus with itself included.

    Returns:
        Columns model, block, fitted, scored (names of corpora); r2, drop and likeness, each followed by its ends as in
        r2_low, r2_high; expected (likeness that noise alone would leave).
    """
    rows = []
    for model, by_block in found.items():
        for block, carried in by_block.items():
            for fitted, scored in carried.scores:
                row = {"model": model, "block": block, "fitted": fitted, "scored": scored}
                for name in ("r2", "drop", "likeness"):
                    row |= _columns(name, getattr(carried, name)[fitted, scored])
                row["expected"] = carried.expected[fitted, scored]
                rows.append(row)
    return pd.DataFrame(rows)


def _columns(name: str, number: Estimate) -> dict[str, float]:
    return {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}


def at_home(pairs: pd.DataFrame) -> pd.DataFrame:
    """The rows where a map is scored on the corpus that it was fitted on: the profiles of R²_lin."""
    return pairs[pairs["fitted"] == pairs["scored"]]


def abroad(pairs: pd.DataFrame) -> pd.DataFrame:
    """The rows where a map is scored on another corpus."""
    return pairs[pairs["fitted"] != pairs["scored"]]


def unordered(pairs: pd.DataFrame) -> pd.DataFrame:
    """Each two corpora once, in the order in which they were given: for what is symmetric, as likeness is."""
    corpora = list(pairs["fitted"].unique())
    fitted = pairs["fitted"].map(corpora.index)
    scored = pairs["scored"].map(corpora.index)
    return pairs[fitted < scored]


def agreement_table(found: Found) -> pd.DataFrame:
    """How far the profiles of every two corpora agree.

    Returns:
        A row for each model and pair ("a ~ b"), the index. Columns: rho (rank correlation over the blocks); r
        (correlation) with r_low and r_high; inner (that of the blocks between the first and the last, of five blocks
        or more) with its ends; gap (the largest difference) with its ends, at (its block); differ (how many blocks
        differ by more than their interval).
    """
    rows = []
    for model, by_block in found.items():
        corpora = next(iter(by_block.values())).corpora
        for one, other in combinations(corpora, 2):
            whole = agreement(by_block, one, other)
            inner = agreement(_inner(by_block), one, other)
            on_one = [carried.r2[one, one].value for carried in by_block.values()]
            on_other = [carried.r2[other, other].value for carried in by_block.values()]
            farthest = max(whole.difference, key=lambda block: abs(whole.difference[block].value))
            row = {"model": model, "pair": f"{one} ~ {other}", "rho": float(spearmanr(on_one, on_other)[0])}
            row |= _columns("r", whole.correlation)
            row |= _columns("inner", inner.correlation)
            row |= _columns("gap", whole.difference[farthest])
            row |= {"at": farthest, "differ": len(whole.differ)}
            rows.append(row)
    return pd.DataFrame(rows).set_index(["model", "pair"])


def _inner(by_block: Mapping[int, Transfer]) -> dict[int, Transfer]:
    """Without the first and the last block, which can make any correlation high if they lie far from the rest."""
    blocks = sorted(by_block)
    if len(blocks) >= FEWEST_INNER:
        blocks = blocks[1:-1]
    return {block: by_block[block] for block in blocks}


def shares_by_block(pairs: pd.DataFrame) -> pd.Series:
    """Share of the variance of R²_lin over blocks and corpora that goes by block, whatever the corpus; by model."""
    shares = {}
    for model, of_model in at_home(pairs).groupby("model", sort=False):
        profiles = of_model.pivot_table(index="block", columns="scored", values="r2")
        shares[model] = float(np.var(profiles.mean(axis=1)) / np.var(profiles.to_numpy()))
    return pd.Series(shares, name="by block")


def mean_matrix(pairs: pd.DataFrame, model: str) -> pd.DataFrame:
    """Mean of R² over a model's blocks: fitted on the row's corpus, scored on the column's."""
    corpora = list(pairs["fitted"].unique())
    of_model = pairs[pairs["model"] == model]
    return of_model.pivot_table(index="fitted", columns="scored", values="r2").loc[corpora, corpora]


def transfer_table(pairs: pd.DataFrame) -> pd.DataFrame:
    """Does the line of one corpus serve another, and are two lines alike? A row per model.

    Returns:
        Columns: drop and largest (mean and largest drop of R²); surely (how many drops have an interval above 0) of
        drops; likeness and lowest (mean and smallest likeness), noise alone (mean of what noise would leave of 1);
        below (how many likenesses lie, interval and all, below that) of likenesses; with bend (correlation over blocks
        of the mean drop with 1 − R²_lin).
    """
    rows = {}
    for model, of_model in pairs.groupby("model", sort=False):
        foreign = abroad(of_model)
        alike = unordered(of_model)
        drop_by_block = foreign.groupby("block")["drop"].mean()
        bend_by_block = 1 - at_home(of_model).groupby("block")["r2"].mean()
        rows[model] = {
            "drop": foreign["drop"].mean(),
            "largest": foreign["drop"].max(),
            "surely": int((foreign["drop_low"] > 0).sum()),
            "drops": len(foreign),
            "likeness": alike["likeness"].mean(),
            "lowest": alike["likeness"].min(),
            "noise alone": alike["expected"].mean(),
            "below": int((alike["likeness_high"] < alike["expected"]).sum()),
            "likenesses": len(alike),
            "with bend": float(np.corrcoef(drop_by_block, bend_by_block)[0, 1]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")


def seen_table(pairs: pd.DataFrame, trained_on: Collection[str], known: Collection[str] | None = None) -> pd.DataFrame:
    """Mean drop by whether the corpora were seen in training: is one that the model never saw the odd one out?

    Args:
        pairs: as `pair_table` makes it.
        trained_on: names of corpora that the models saw.
        known: models of which this is known; all by default. Of others every corpus is "unknown".

    Returns:
        A row per model, columns such as "seen → unseen" (fitted → scored); NaN where a model has no such pair.
    """
    foreign = abroad(pairs)
    kind = {corpus: "seen" if corpus in trained_on else "unseen" for corpus in foreign["fitted"].unique()}
    kinds = foreign["fitted"].map(kind) + " → " + foreign["scored"].map(kind)
    if known is not None:
        kinds = kinds.where(foreign["model"].isin(known), "unknown → unknown")
    # first over the blocks of each pair of corpora, then over pairs
    by_pair = foreign.assign(kind=kinds).groupby(["model", "kind", "fitted", "scored"], sort=False)["drop"].mean()
    return by_pair.reset_index().pivot_table(index="model", columns="kind", values="drop", sort=False)


def swap_table(
    model: PreTrainedModel,
    by_block: Mapping[int, Transfer],
    texts: Mapping[str, TokenRows | Int64[Tensor, "n seq_len"]],
    blocks: Sequence[int],
    main: str,
) -> pd.DataFrame:
    """What it costs in perplexity, on each corpus, to put a map in a block's place, each block alone.

    Args:
        model: the model; left as it was.
        by_block: block → `Transfer`, with the maps.
        texts: corpus → rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.
        blocks: which blocks to replace.
        main: corpus whose map is used everywhere, as if compressed on one text and deployed on another.

    Returns:
        Columns corpus, block, kind, delta, low, high; kind is "own" for what the corpus' own map costs, and "extra" for
        what the main corpus' map costs on top. No row of a model that predicts no next token.
    """
    rows = []
    if not is_causal(model):
        return pd.DataFrame(columns=COLUMNS)
    for corpus, text in texts.items():
        ids, fold = held_out_folds(text)
        before, own = swap_losses(model, {block: by_block[block].maps[corpus] for block in blocks}, ids)
        foreign = own
        if corpus != main:
            _, foreign = swap_losses(model, {block: by_block[block].maps[main] for block in blocks}, ids)
        for block in blocks:
            row = {"corpus": corpus, "block": block}
            rows.append(row | {"kind": "own"} | _cost(change(before, own[block], fold)))
            rows.append(row | {"kind": "extra"} | _cost(change(own[block], foreign[block], fold)))
    return pd.DataFrame(rows, columns=COLUMNS)


def joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables of costs one below the other; one without rows adds nothing, nor does it change a column's type."""
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def without_loss(models: Iterable[str], costs: pd.DataFrame) -> str:
    """One sentence about the models that have no loss, being encoders; empty if there is none.

    Args:
        models: all models of a run.
        costs: columns model and kind ("own", "extra" or "bilinear").
    """
    with_loss = set(costs.loc[costs["kind"] == "own", "model"])
    missing = [model for model in models if model not in with_loss]
    if not missing:
        return ""
    return (
        f"Perplexity and costs do not apply to {', '.join(missing)}: no next token is predicted, so there is no loss."
    )


def _cost(cost: Change) -> dict[str, float]:
    return {"delta": cost.delta, "low": cost.low, "high": cost.high}


def verdict_table(
    pairs: pd.DataFrame, agreements: pd.DataFrame, carried: pd.DataFrame, costs: pd.DataFrame, main: str
) -> pd.DataFrame:
    """What this run says, in words, a column per model.

    Args:
        pairs: as `pair_table` makes it.
        agreements: as `agreement_table` makes it.
        carried: as `transfer_table` makes it.
        costs: columns model, corpus, block, kind ("own", "extra" or "bilinear"), delta and low.
        main: corpus whose map is used everywhere.
    """
    columns = {}
    for model, row in carried.iterrows():
        agree = agreements.loc[model]
        r2 = at_home(pairs[pairs["model"] == model])["r2"]
        blocks = pairs[pairs["model"] == model]["block"].nunique()
        of_model = costs[costs["model"] == model]
        foreign = of_model[(of_model["kind"] == "extra") & (of_model["corpus"] != main)]
        dearer = f"{(foreign['low'] > 0).sum()} of {len(foreign)}" if len(foreign) else "no loss"
        gains = of_model[of_model["kind"] == "bilinear"].groupby("block")["delta"]
        columns[model] = {
            "one profile on all texts": (
                f"r ≥ {agree['r'].min():.2f}, inner ≥ {agree['inner'].min():.2f}, ρ ≥ {agree['rho'].min():.2f}"
            ),
            "largest gap": f"{agree['gap'].abs().max():.2f} in a range of {r2.max() - r2.min():.2f}",
            "blocks that surely differ": f"{agree['differ'].sum()} of {len(agree) * blocks}",
            "one line on all texts": (
                f"drop {row['drop']:.2f}, likeness {row['likeness']:.2f} (noise alone: {row['noise alone']:.2f})"
            ),
            f"map of {main} surely dearer": dearer,
            "bilinear gains differ by up to": f"{(gains.max() - gains.min()).max():.2f}",
        }
    return pd.DataFrame(columns)


def record(
    pairs: pd.DataFrame,
    agreements: pd.DataFrame,
    carried: pd.DataFrame,
    seen: pd.DataFrame,
    costs: pd.DataFrame,
    model: str,
) -> dict[str, object]:
    """A model's numbers as the results keep them; arguments as of the tables above."""
    of_model = pairs[pairs["model"] == model]
    foreign = abroad(of_model)
    home = at_home(of_model)
    return {
        "blocks": [int(block) for block in of_model["block"].unique()],
        "profile": {corpus: _curve(rows, "r2") for corpus, rows in home.groupby("scored", sort=False)},
        "agreement": agreements.loc[model].to_dict("index"),
        "by_block": float(shares_by_block(of_model)[model]),
        "mean_r2": mean_matrix(pairs, model).to_numpy(),
        "drop": {f"{a} → {b}": _curve(rows, "drop") for (a, b), rows in foreign.groupby(["fitted", "scored"])},
        "likeness": {
            f"{a} ~ {b}": _curve(rows, "likeness") for (a, b), rows in unordered(of_model).groupby(["fitted", "scored"])
        },
        "carried": carried.loc[model].drop(["surely", "drops", "below", "likenesses"]).to_dict(),
        "mean_drop": seen.loc[model].dropna().to_dict(),
        "costs": _by_corpus(costs[costs["model"] == model].drop(columns="model"), list(home["scored"].unique())),
    }


def _by_corpus(costs: pd.DataFrame, corpora: list[str]) -> list[dict[str, object]]:
    """The rows of a table of costs, corpus by corpus and block by block."""
    rows = costs.to_dict("records")
    return sorted(rows, key=lambda row: (corpora.index(row["corpus"]), row["block"]))


def _curve(rows: pd.DataFrame, name: str) -> dict[str, list[float]]:
    """Values and ends of a column over the blocks."""
    columns = [name, f"{name}_low", f"{name}_high"]
    return {end: rows[column].to_list() for end, column in zip(ENDS, columns, strict=True)}
