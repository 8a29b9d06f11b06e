"""R²_lin of a block as rows or features are left out: the heaviest outputs, position 0, rows far out, loud features.

arXiv 2606.19379 finds blocks of high R²_lin and rank 1, and leaves open whether they belong to tokens or to features.
The curves decide: where a few tokens carry R²_lin, it changes as soon as they are gone, and leaving features out of all
other tokens changes nothing; where a few features carry it, it is the other way round. The cut between massive rows and
others is a choice, so R²_lin is given for several cuts, and the effective share of rows needs none.

The columns of recorded tables, of this module and its neighbours, are described in `files/columns.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit, leverage, r2, residual
from howlinear.core.moments import Moments
from howlinear.core.profile_statistics import FEW_ROWS_DECIDE, few_rows_decide, largest_step, spread
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, read_tokens
from howlinear.instrument.massive import HeavyRows
from howlinear.instrument.profile import Solved, solve
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.load import is_causal
from howlinear.text.rows import TokenRows

BATCH_TOKENS = 1024
"""Tokens in a forward pass, whatever the length of a sequence."""

CUTS = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 50.0)
"""Cuts, in median norms, beyond which rows are left out. `instrument.massive` keeps all rows from 5 on, and calls them
massive from 10 on."""

LOUD = 0.01
"""Share of the output features that counts as the loudest: the paper's outlier is one of 768, ours may be a few."""

RANK_ONE = 2.0
"""Outputs of a lower effective rank are in the rank-1 regime if the median feature is also far below pooled R²."""

FAR_BELOW = 0.25
"""How far below, as in notebook 04, which calls such blocks concentrated."""


@dataclass(frozen=True)
class Rest:
    """A block without its heaviest rows, in both the fit and the score."""

    left_out: int  # rows of both sides
    r2: float  # R²_lin of the remaining rows, with a map of their own, held out
    of_all: float  # R² of the map of all rows on them; far below 0 if that map follows the rows left out


@dataclass(frozen=True)
class Quieter:
    """A block without its loudest output features."""

    r2: float  # R²_lin of the others, all rows
    ordinary: float  # of ordinary rows, with their own map and their own order of loudness


@dataclass(frozen=True)
class Look:
    """What carries the R²_lin of a block: tokens or features."""

    rows: int  # of both sides
    heavy: HeavyRows  # the heaviest of them
    solved: Solved  # R²_lin of all rows and of ordinary ones, with intervals
    ordinary: Rest  # all rows but the massive ones
    cuts: dict[float, Rest]  # without the rows beyond each of `CUTS`
    first: HeavyRows | None  # the rows at position 0, as they are; None if none were given
    r2_without_first: float  # R²_lin without them; NaN likewise
    carrying_share: float  # of the rows, see `carrying_share`
    loud: Quieter  # without the loudest `LOUD` of the output features
    curves: list[dict[str, Any]]  # R²_lin as more and more of a `kind` is left out: rows of `left_out_table`

    @property
    def carried_by(self) -> str:
        """What carries R²_lin: "tokens", "features", "both" or "neither".

        Tokens if it changes by `FEW_ROWS_DECIDE` or more without the massive rows. Features if R²_lin of *ordinary*
        rows falls by as much without the loudest features: a sink may lie in one feature, but belongs to tokens.
        """
        tokens = self.solved.rests_on_massive_rows
        features = self.ordinary.r2 - self.loud.ordinary >= FEW_ROWS_DECIDE
        if tokens and features:
            return "both"
        if tokens:
            return "tokens"
        return "features" if features else "neither"


Looks = Mapping[tuple[str, int], Look]
"""(model, block) → what was seen of the block."""


def look(
    block: BlockCapture, counts: Sequence[int], feature_counts: Sequence[int], first: HeavyRows | None = None
) -> Look:
    """Leave out `counts` of the heaviest rows and of those far out, and `feature_counts` of the loudest features."""
    heavy = block.heavy_rows()
    solved = solve({0: block})[0]
    ordinary_block = block.ordinary()
    of_all, of_ordinary = solved.ceiling.map, solved.ordinary.map
    width = len(of_all.bias)

    @cache  # several cuts may leave out the same rows, and often none
    def without(left_out: int) -> Rest:
        return rest(block, left_out, of_all)

    def quieter(count: int) -> Quieter:
        return Quieter(
            r2=r2_without_loudest(of_all, block, count),
            ordinary=r2_without_loudest(of_ordinary, ordinary_block, count),
        )

    curves = [{"kind": "heaviest rows", "left_out": count, "r2": without(count).r2} for count in counts]
    for count, of_sample in _far_out_curve(block, counts).items():
        curves.append({"kind": "rows far out", "left_out": count, "r2": of_sample})
    for count in feature_counts:
        if count < width:
            left = quieter(count)
            curves.append({"kind": "loudest features", "left_out": count, "r2": left.r2})
            curves.append({"kind": "loudest features, ordinary rows", "left_out": count, "r2": left.ordinary})

    r2_without_first = float("nan")
    if first is not None:
        first = _as_kept(first, heavy)
        later = block.without(first)
        r2_without_first = _own_r2(sum(later.train), sum(later.test))
    return Look(
        rows=sum(moments.n for moments in [*block.train, *block.test]),
        heavy=heavy,
        solved=solved,
        ordinary=without(solved.massive_rows),
        cuts={cut: without(len(heavy.beyond(cut))) for cut in CUTS},
        first=first,
        r2_without_first=r2_without_first,
        carrying_share=carrying_share(block),
        loud=quieter(max(1, round(LOUD * width))),
        curves=curves,
    )


def heavy_counts(heavy: HeavyRows) -> list[int]:
    """Choose how many of the heaviest rows to leave out: powers of two, all massive ones, and all that were kept."""
    doubled = [2**power for power in range(len(heavy).bit_length())]
    return sorted({0, *doubled, len(heavy.beyond()), len(heavy)})


def rest(block: BlockCapture, left_out: int, of_all: AffineMap) -> Rest:
    """Fit and score a block without its heaviest rows."""
    others = block.without(block.heavy_rows().heaviest(left_out))
    test = sum(others.test)
    return Rest(left_out, r2=_own_r2(sum(others.train), test), of_all=r2(of_all, test))


def _own_r2(train: Moments, test: Moments) -> float:
    own, _ = fit(train)
    return r2(own, test)


def carrying_share(block: BlockCapture) -> float:
    """Compute the effective share of rows that R²_lin is about: (Σe)² / (n Σe²) with e = ‖y − ȳ‖², from 1 / n to 1."""
    # Heavy rows are counted one by one, all others are estimated from the sample.
    everything = sum([*block.train, *block.test])
    heavy, sample = block.heavy_rows(), block.rows()
    of_heavy = (heavy.y.double() - everything.mean_y).square().sum(1)
    of_sample = (sample.y.double() - everything.mean_y).square().sum(1)
    light = of_sample[torch.linalg.vector_norm(sample.y, dim=1) <= heavy.norm[-1]]
    # Σe is exact, and Σe² of the light rows their number times the sample's mean
    squares = of_heavy.square().sum()
    if len(light):
        squares += (everything.n - len(heavy)) * light.square().mean()
    return float(everything.syy.sum().square() / (everything.n * squares))


def first_rows(model: PreTrainedModel, rows: TokenRows) -> dict[int, HeavyRows]:
    """Collect the rows of each block at position 0 of every sequence."""
    read = replace(rows, ids=rows.ids[:, :1]) if is_causal(model) else rows  # a causal model sees no later token there
    listened = sites(model)
    found: dict[int, list[tuple[Tensor, Tensor]]] = {site.block: [] for site in listened}

    def keep(site: Site, x: Tensor, y: Tensor, *_: Tensor) -> None:
        first = slice(None, None, read.seq_len)
        found[site.block].append((x[first].float().cpu().clone(), y[first].float().cpu().clone()))

    sequence = torch.arange(len(rows.ids))
    read_tokens(model, read, listened, sequence.split(max(1, BATCH_TOKENS // read.seq_len)), keep)
    first = {}
    for block, parts in found.items():
        x, y = (torch.cat(values) for values in zip(*parts, strict=True))
        norm = torch.linalg.vector_norm(y, dim=1)
        position = torch.zeros_like(sequence)
        first[block] = HeavyRows(x, y, norm, sequence, position, rows.test, rows.fold, median=float("nan"))
    return first


def _as_kept(first: HeavyRows, heavy: HeavyRows) -> HeavyRows:
    """Replace those rows at position 0 that the capture kept by its own copies, which match its moments exactly."""
    # Subtracting from the moments a row of a thousand medians as another pass rounds it would leave an error larger
    # than ordinary rows.
    kept = heavy.position == 0
    x, y = first.x.clone(), first.y.clone()
    place = heavy.sequence[kept]
    x[place] = heavy.x[kept]
    y[place] = heavy.y[kept]
    return replace(first, x=x, y=y, norm=torch.linalg.vector_norm(y, dim=1), median=heavy.median)


def _far_out_curve(block: BlockCapture, counts: Sequence[int]) -> dict[int, float]:
    """Compute R²_lin of sampled rows without those of highest leverage, the same share of them as `counts` of all."""
    sample = block.rows()
    train = sum(block.train)
    rows = train.n + sum(moments.n for moments in block.test)
    farthest = leverage(train, sample.x).argsort(descending=True, stable=True)
    curve = {}
    for count in counts:
        kept = torch.ones(len(farthest), dtype=torch.bool)
        kept[farthest[: round(count / rows * len(farthest))]] = False
        others = sample.select(kept)
        curve[count] = _own_r2(sum(others.moments(test=False)), sum(others.moments(test=True)))
    return curve


def r2_without_loudest(affine: AffineMap, block: BlockCapture, count: int) -> float:
    """Compute R² of a map without the output features that are loudest on the train rows (not on held-out rows)."""
    loudness = sum(block.train).syy
    if not 0 <= count < len(loudness):
        raise InputError(f"cannot leave out {count} of {len(loudness)} output features: use 0 to {len(loudness) - 1}")
    kept = loudness.argsort(descending=True, stable=True)[count:]
    test = sum(block.test)
    # R² = 1 − Σ residual / Σ (y − ȳ)², over the features that are kept
    return float(1 - residual(affine, test)[kept].sum() / test.syy[kept].sum())


def block_table(looks: Looks) -> pd.DataFrame:
    """R²_lin of all rows and of ordinary ones; table `blocks`, a row a block."""
    rows = []
    for (model, block), seen in looks.items():
        whole = seen.solved.ceiling
        ordinary = seen.solved.ordinary
        rows.append(
            {
                "model": model,
                "block": block,
                "rows": seen.rows,
                "massive_rows": seen.solved.massive_rows,
                "heaviest": float(seen.heavy.norm[0]) / seen.heavy.median,
                **whole.interval.columns("r2"),
                **ordinary.interval.columns("r2_ordinary"),
                "of_all": seen.ordinary.of_all,
                "fall": whole.r2 - ordinary.r2,
                "median_r2": whole.r2_median,
                "median_r2_ordinary": ordinary.r2_median,
                "effective_rank": seen.solved.effective_rank,
                "effective_rank_ordinary": seen.solved.ordinary_effective_rank,
                "rank_one": _rank_one(whole.r2, whole.r2_median, seen.solved.effective_rank),
                "rank_one_ordinary": _rank_one(ordinary.r2, ordinary.r2_median, seen.solved.ordinary_effective_rank),
                "carrying_share": seen.carrying_share,
                "r2_without_first": seen.r2_without_first,
                "cuts_deciding": sum(few_rows_decide(whole.r2, others.r2) for others in seen.cuts.values()),
                "r2_without_loudest": seen.loud.r2,
                "r2_ordinary_without_loudest": seen.loud.ordinary,
                "carried_by": seen.carried_by,
            }
        )
    return pd.DataFrame(rows)


def _rank_one(pooled: float, median: float, rank: float) -> bool:
    return rank < RANK_ONE and pooled - median >= FAR_BELOW


def left_out_table(looks: Looks) -> pd.DataFrame:
    """Tabulate R²_lin as more and more is left out: a row per block, kind of what is left out, and number."""
    tables = {at: pd.DataFrame(seen.curves) for at, seen in looks.items()}
    return pd.concat(tables, names=["model", "block", "point"]).reset_index(["model", "block"])


def cut_table(looks: Looks) -> pd.DataFrame:
    """R²_lin of all rows that are not beyond a cut, with a map of their own; table `cuts`, a row a block and cut."""
    rows = []
    for (model, block), seen in looks.items():
        for cut, others in seen.cuts.items():
            at_first = float((seen.heavy.beyond(cut).position == 0).float().mean())
            row = {"model": model, "block": block, "cut": cut, "left_out": others.left_out, "at_first": at_first}
            rows.append(row | {"r2": others.r2})
    return pd.DataFrame(rows)


def depth_table(blocks: pd.DataFrame) -> pd.DataFrame:
    """Tabulate a profile's shape for all and for ordinary rows, and how many blocks have and rest on massive rows."""
    rows = {}
    for model, of_model in blocks.groupby("model", sort=False):
        in_order = of_model.sort_values("block")
        row = {}
        for suffix in ("", "_ordinary"):
            profile = in_order[f"r2{suffix}"].to_numpy()
            row[f"spread{suffix}"] = spread(profile)
            row[f"step{suffix}"] = largest_step(profile)
            row[f"rank_one{suffix}"] = int(in_order[f"rank_one{suffix}"].sum())
        row["massive"] = int((in_order["massive_rows"] > 0).sum())
        row["resting"] = int(few_rows_decide(in_order["r2"].to_numpy(), in_order["r2_ordinary"].to_numpy()).sum())
        rows[model] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
