"""What notebook 11 asks of each model: every protocol, the curve over rows, and the protocols that have names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd
from transformers import PreTrainedModel

from howlinear.ideas.protocol.choices import SPLITS, Protocol
from howlinear.ideas.protocol.groups import MEMORY, Groups, select, stream
from howlinear.ideas.protocol.layout import Layout, lay_out
from howlinear.ideas.protocol.multiverse import Scores, block_table, point, scores
from howlinear.models.ffn_sites import width_of
from howlinear.text.corpus import Corpus


@dataclass(frozen=True)
class Survey:
    """What was measured of a model.

    Attributes:
        blocks: a row a universe (`choices.COLUMNS`) and `block`, with `r2`.
        curves: a row a `split`, `block` and number of train rows, as of `curve_rows`.
        named: protocol → profile.
    """

    blocks: pd.DataFrame
    curves: pd.DataFrame
    named: dict[str, Scores]


def survey(
    model: PreTrainedModel,
    corpus: Corpus,
    factors: Sequence[int],
    compared: Sequence[int],
    seq_lens: Sequence[int],
    named: Mapping[str, Protocol],
    seed: int = 0,
    held: int = MEMORY,
) -> Survey:
    """Measure a model under every combination of choices.

    Args:
        model: the model.
        corpus: the text, in its own order (`layout.read`).
        factors: train rows over width, ascending.
        compared: those of them that are combined with all other choices, besides the last.
        seq_lens: tokens in a sequence; curves over rows are of the last.
        named: name → protocol that intervals are wanted of.
        seed: decides which documents are drawn.
        held: bytes of moments to hold at a time.

    Raises:
        InputError: too little text, or a protocol whose rows or sequences are not among these.
    """
    blocks: list[pd.DataFrame] = []
    curves: list[dict] = []
    profiles: dict[str, list[Scores]] = {name: [] for name in named}
    for split, seq_len in product(SPLITS, seq_lens):
        layout = lay_out(corpus, split, seq_len, width_of(model), factors, seed)
        here = {name: one for name, one in named.items() if (one.split, one.seq_len) == (split, seq_len)}
        for block, groups in stream(model, layout, held):
            table = block_table(groups, factors, compared)
            blocks.append(table.assign(split=split, seq_len=seq_len, block=block))
            if seq_len == seq_lens[-1]:
                curves += [{"split": split, "block": block, **row} for row in curve_rows(groups, layout)]
            for name, protocol in here.items():
                profiles[name].append(scores(groups, protocol, factors))
    found = {name: Scores.stack(profile) for name, profile in profiles.items()}
    return Survey(pd.concat(blocks, ignore_index=True), pd.DataFrame(curves), found)


def curve_rows(groups: Groups, layout: Layout) -> list[dict]:
    """R² of a block over growing train rows, each feature about its own mean.

    Returns:
        A row a step: `factor`, `rows`, `in_sample`, `held_out`, and told from these, `limit` with `low` and `high`.
    """
    rows = []
    for step, factor in enumerate(layout.factors):
        measured = point(select(groups, False, step), select(groups, True, step))
        limit = measured.limit.estimate()
        rows.append(
            {
                "factor": factor,
                "rows": layout.train_rows(step),
                "in_sample": float(measured.in_sample.value),
                "held_out": float(measured.held_out.value),
                "limit": limit.value,
                "low": limit.low,
                "high": limit.high,
            }
        )
    return rows


def agreement(curves: pd.DataFrame, few: int, many: int) -> pd.DataFrame:
    """Whether what few rows foretell comes true on many.

    Few rows tell the limit R²_∞ and, by their optimism g = 1 − √(u / u'), the way to it: with n' rows the share of
    held-out rows that is left is u_∞ / (1 − g n / n'). An interval is that of the limit, about the value foretold.

    Args:
        curves: of several models, with `model`, as of `curve_rows`.
        few: factor to foretell from.
        many: factor to compare with.

    Returns:
        A row a `split`: `blocks`; of how many `limit_agrees`, the limit told from many rows inside the interval of
        the one told from few, and `value_agrees`, held-out R² on many rows inside the interval about the value foretold
        for so many; `raw_error` and `limit_error`, by how much few rows miss the limit told from many, mean over
        blocks, held out and in the limit.
    """
    keys = ["model", "split", "block"]
    early = curves[curves.factor == few].set_index(keys)
    late = curves[curves.factor == many].set_index(keys).loc[early.index]
    # g = 1 − √(u / u'), and R²(n') = 1 − u_∞ / (1 − g n / n')
    optimism = 1 - ((1 - early.in_sample) / (1 - early.held_out)) ** 0.5
    foretold = 1 - (1 - early.limit) / (1 - optimism * early.rows / late.rows)
    shifted = foretold - early.limit
    found = pd.DataFrame(
        {
            "blocks": 1,
            "limit_agrees": (early.low <= late.limit) & (late.limit <= early.high),
            "value_agrees": (early.low + shifted <= late.held_out) & (late.held_out <= early.high + shifted),
            "raw_error": early.held_out - late.limit,
            "limit_error": early.limit - late.limit,
        }
    )
    by_split = found.groupby("split", sort=False)
    counts = by_split[["blocks", "limit_agrees", "value_agrees"]].sum().astype(int)
    return counts.join(by_split[["raw_error", "limit_error"]].mean()).reset_index()
