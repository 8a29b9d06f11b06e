"""R²_lin of every block under every protocol, its curve over train rows, and the named protocols, as tables.

Everything follows from moments: a map from the train rows' moments, and its residual per output feature from the
held-out ones. The denominator is then about the features' own means or about one scalar, and a loud feature may be
dropped. The columns of recorded tables are described in `files/columns.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, Ceiling, about_scalar, ceiling, fit, residual
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.limits import limit_or_nan
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol import choices
from howlinear.ideas.protocol.groups import MEMORY, Groups, select, stream_groups
from howlinear.ideas.protocol.layout import Layout, lay_out
from howlinear.models.ffn_sites import width_of
from howlinear.text.corpus import Corpus
from howlinear.text.rows import FOLDS


def survey(
    model: PreTrainedModel,
    corpus: Corpus,
    factors: Sequence[int],
    compared: Sequence[int],
    seq_lens: Sequence[int],
    named: Mapping[str, choices.Protocol],
    seed: int = 0,
    memory: int = MEMORY,
    blocks: Iterable[int] | None = None,
) -> dict[str, pd.DataFrame]:
    """Make the tables of some blocks of a model, all by default, under every combination of choices."""
    # Curves and splits are of the last of `seq_lens`; the number of rows takes the compared factors and the largest.
    universes, curves, folds, splits = [], [], [], []
    for split, seq_len in product(choices.SPLITS, seq_lens):
        layout = lay_out(corpus, split, seq_len, width_of(model), factors, seed)
        for block, groups in stream_groups(model, layout, memory, blocks):
            for row in universe_rows(groups, factors, compared):
                universes.append({"block": block, "split": split, "seq_len": seq_len} | row)
            if seq_len == seq_lens[-1]:
                by_step = ceilings(groups, layout)
                for row in curve_rows(by_step, layout):
                    curves.append({"split": split, "block": block} | row)
                splits.append({"split": split, "block": block} | by_step[-1].interval.columns("r2"))
            for name, protocol in named.items():
                if (protocol.split, protocol.seq_len) == (split, seq_len):
                    for row in fold_rows(groups, protocol, factors):
                        folds.append({"protocol": name, "block": block} | row)
    layout = lay_out(corpus, choices.RUNS, seq_lens[-1], width_of(model), factors, seed)
    for block, groups in stream_groups(model, layout, memory, blocks):
        (of_all,) = ceilings(groups, layout)
        splits.append({"split": choices.RUNS, "block": block} | of_all.interval.columns("r2"))
    # in the order of their names
    of_protocols = pd.DataFrame(folds).set_index("protocol").loc[list(named)].reset_index()
    return {
        "universes": pd.DataFrame(universes)[["block", *choices.CHOICES, "r2"]],
        "curves": pd.DataFrame(curves),
        "folds": of_protocols,
        "splits": pd.DataFrame(splits),
    }


# --- One number


def r2(
    affine: AffineMap, moments: Moments, denominator: str = "feature", features: Bool[Tensor, " d_out"] | None = None
) -> float:
    """Compute R² of a map on rows, under a denominator, over some output features, all by default."""
    counted = slice(None) if features is None else features
    squares = moments.syy[counted]
    if denominator == "scalar":
        squares = about_scalar(squares, moments.mean_y[counted], moments.n)
    total = squares.sum()
    if total <= 0:
        raise InputError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return float(1 - residual(affine, moments)[counted].sum() / total)


def without_loudest(moments: Moments) -> Bool[Tensor, " d_out"]:
    """Select all outputs but the one of largest variance, shape (d_out,)."""
    features = torch.ones(moments.d_out, dtype=torch.bool)
    features[moments.syy.argmax()] = False
    return features


# --- Under every protocol


def universe_rows(groups: Groups, factors: Sequence[int], compared: Sequence[int] | None = None) -> Iterator[dict]:
    """Compute R²_lin of a block under every combination of choices within one split and sequence length."""
    last = len(factors) - 1
    steps = [step for step, factor in enumerate(factors) if compared is None or factor in compared or step == last]
    for step, position_0, loud_rows in product(steps, choices.POSITIONS, (True, False)):
        train = Moments.total(select(groups, False, step, position_0 == "in", loud_rows))
        test = Moments.total(select(groups, True, step, position_0 == "in", loud_rows))
        # level of `loud` → output features that count, None for all
        everything, quiet_features, quiet_rows = choices.LOUD
        counted = {quiet_rows: None}
        if loud_rows:
            counted = {everything: None, quiet_features: without_loudest(train)}
        for null in choices.NULLS:
            affine, _ = fit(train, float(null))
            for (loud, features), denominator in product(counted.items(), choices.DENOMINATORS):
                about = {"position_0": position_0, "loud": loud, "null": null, "denominator": denominator}
                held_out = r2(affine, test, denominator, features)
                if step < last:
                    yield about | {"rows": str(factors[step]), "r2": held_out}
                    continue
                in_sample = r2(affine, train, denominator, features)
                yield about | {"rows": choices.MOST, "r2": held_out}
                yield about | {"rows": choices.LIMIT, "r2": limit_or_nan(in_sample, held_out)}


# --- Over train rows


def ceilings(groups: Groups, layout: Layout) -> list[Ceiling]:
    """Fit and score the line of a block at every step of its train rows, each feature about its own mean."""
    steps = range(len(layout.factors))
    return [ceiling(select(groups, False, step), select(groups, True, step)) for step in steps]


def curve_rows(by_step: Iterable[Ceiling], layout: Layout) -> Iterator[dict]:
    """Yield R² of a block over growing train rows, and the limit estimated at each step."""
    for measured, factor in zip(by_step, layout.factors, strict=True):
        limit = measured.limit or Estimate.exact(float("nan"))
        rows = {"factor": factor, "rows": measured.rows_train, "r2_train": measured.r2_train, "r2": measured.r2}
        yield rows | limit.columns("r2_limit")


def limit_agreement(curves: pd.DataFrame, few: int, many: int) -> pd.DataFrame:
    """Check predictions from few rows against many rows, both of them factors of `curves`; table `agreement`."""
    keys = ["model", "split", "block"]
    with_limit = curves.dropna(subset="r2_limit")
    early = with_limit[with_limit["factor"] == few].set_index(keys)
    late = with_limit[with_limit["factor"] == many].set_index(keys)
    early = early[early.index.isin(late.index)]
    late = late.loc[early.index]

    # g = 1 − √(u / u'), and R²(n') = 1 − u_∞ / (1 − g n / n')
    # from few rows follow the limit R²_∞ and, by their optimism g, the approach to it; its interval is the limit's,
    # shifted
    optimism = 1 - ((1 - early["r2_train"]) / (1 - early["r2"])) ** 0.5
    foretold = 1 - (1 - early["r2_limit"]) / (1 - optimism * early["rows"] / late["rows"])
    shift = foretold - early["r2_limit"]

    compared = pd.DataFrame(
        {
            "blocks": 1,
            "limit_agrees": late["r2_limit"].between(early["r2_limit_low"], early["r2_limit_high"]),
            "value_agrees": late["r2"].between(early["r2_limit_low"] + shift, early["r2_limit_high"] + shift),
            "raw_error": early["r2"] - late["r2_limit"],
            "limit_error": early["r2_limit"] - late["r2_limit"],
        }
    )
    by_split = compared.groupby("split", sort=False)
    counts = by_split[["blocks", "limit_agrees", "value_agrees"]].sum().astype(int)
    return counts.join(by_split[["raw_error", "limit_error"]].mean()).reset_index()


# --- With intervals


def fold_rows(groups: Groups, protocol: choices.Protocol, factors: Sequence[int]) -> Iterator[dict]:
    """Compute R²_lin of a block under one protocol, with all folds and with each left out of a `side`, to jackknife."""
    step = len(factors) - 1
    if protocol.rows not in (choices.MOST, choices.LIMIT):
        step = list(factors).index(int(protocol.rows))
    rows = {"position_0": protocol.position_0 == "in", "loud": protocol.loud != "rows out"}
    train_folds = select(groups, False, step, **rows)
    test_folds = select(groups, True, step, **rows)
    train, test = Moments.total(train_folds), Moments.total(test_folds)
    features = without_loudest(train) if protocol.loud == "feature out" else None

    def score(affine: AffineMap, fitted: Moments, others: Moments) -> float:
        held_out = r2(affine, others, protocol.denominator, features)
        if protocol.rows != choices.LIMIT:
            return held_out
        return limit_or_nan(r2(affine, fitted, protocol.denominator, features), held_out)

    null = float(protocol.null)
    affine, _ = fit(train, null)
    yield {"side": "none", "fold": 0, "r2": score(affine, train, test)}
    for fold, fitted in enumerate(left_out(train_folds)):
        refit, _ = fit(fitted, null)
        yield {"side": "fit", "fold": fold, "r2": score(refit, fitted, test)}
    for fold, others in enumerate(left_out(test_folds)):
        yield {"side": "score", "fold": fold, "r2": score(affine, train, others)}


def jackknife(values: Iterable[float]) -> Estimate:
    """Estimate a number with its interval from its values in the order of `fold_rows`."""
    value, *without_a_fold = values
    return Estimate.jackknife(value, without_a_fold[:FOLDS], without_a_fold[FOLDS:])


def profile_table(folds: pd.DataFrame) -> pd.DataFrame:
    """Tabulate profiles under named protocols: a row per `model`, `protocol` and `block`, `r2` with its interval."""
    rows = []
    for (model, protocol, block), values in folds.groupby(["model", "protocol", "block"], sort=False)["r2"]:
        about = {"model": model, "protocol": protocol, "block": block}
        rows.append(about | jackknife(values).columns("r2"))
    return pd.DataFrame(rows)
