"""The result of a measurement: R²_lin over depth. It follows from a capture alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from howlinear.core.ceilings import Ceiling, ceiling_or_nan
from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.core.moments import participation_ratio
from howlinear.core.profile_statistics import few_rows_decide, smaller_turn
from howlinear.core.token_split import TokenSplit
from howlinear.errors import ConstantError, InputError
from howlinear.files.paths import check_path
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.perplexity import Change
from howlinear.models.checks import check_flags
from howlinear.models.ffn_sites import KINDS
from howlinear.text.rows import Rows, RowsOnRecord

if TYPE_CHECKING:  # not every measurement is drawn, and importing these takes a second
    import matplotlib.axes
    import matplotlib.figure

SHOWN = 0.005
"""The least difference of R² that two decimals show."""


@dataclass(frozen=True)
class Stop:
    """Why a measurement of growing size ended (`instrument.stopping`).

    Attributes:
        tolerance: the requested half-width.
        reached: whether every block's interval is that narrow; if not, the rows ended first.
        half_width: half-width of the widest interval.
        block: the block with the widest interval.
        look: number of looks taken.
        looks: largest possible number of looks.
        confidence: confidence of each look's interval; together they hold with 95 %.
    """

    tolerance: float
    reached: bool
    half_width: float
    block: int
    look: int
    looks: int
    confidence: float

    def __str__(self) -> str:
        widest = f"the widest interval, of block {self.block}, is ± {self.half_width:.2g}"
        looks = f"look {self.look} of at most {self.looks}, intervals of {self.confidence:.2%} for 95 % over all looks"
        if self.reached:
            return f"stopped within the tolerance of {self.tolerance:g}: {widest} ({looks})"
        return f"no more rows, and the tolerance of {self.tolerance:g} is not reached: {widest} ({looks})"


@dataclass(frozen=True)
class Solved:
    """The results that follow from the moments of one block.

    Attributes:
        ceiling: the ceiling of all rows.
        effective_rank: participation ratio of the held-out outputs' covariance.
        massive_rows: number of rows with massive outputs (`instrument.massive`).
        ordinary: the ceiling of all other rows, with a map fitted to these; the same as `ceiling` if no row is massive.
        ordinary_effective_rank: `effective_rank` of all other rows.
    """

    ceiling: Ceiling
    effective_rank: float
    massive_rows: int
    ordinary: Ceiling
    ordinary_effective_rank: float

    @property
    def rests_on_massive_rows(self) -> bool:
        """Whether R²_lin would differ by `FEW_ROWS_DECIDE` or more without the massive rows."""
        return few_rows_decide(self.ceiling.r2, self.ordinary.r2)

    def at(self, site: str) -> Solved:
        """Return the same results with maps of `site`."""
        whole, ordinary = (
            found if found.map is None else replace(found, map=replace(found.map, site=site))
            for found in (self.ceiling, self.ordinary)
        )
        return replace(self, ceiling=whole, ordinary=ordinary)


@dataclass(frozen=True, eq=False)
class Profile(Mapping):
    """The ceilings of a model's blocks on one corpus; `profile[3]` is block 3's `Ceiling`.

    Attributes:
        model: where the model came from.
        rows: the rows it was measured on; for a profile read from a file, what the file says of them.
        solved: block → its results, also without massive rows.
        perplexity: perplexity of the model on the held-out rows; None if it predicts no next token, or is not finite.
        stop: why no more rows were used; None if no tolerance was given.
        costs: block → what its map costs in perplexity in the block's place; None if not measured, or not finite.
        site: what was measured of each block: `ffn`, `attention` or `layer` (`ffn_sites.KINDS`).
        tokens: block → R²_lin split by the token; None if that was not measured.
        moments: block → the moments that its numbers follow from (`BlockCapture`); None if they were not kept.
    """

    model: str
    rows: Rows | RowsOnRecord
    solved: dict[int, Solved]
    perplexity: float | None
    stop: Stop | None = None
    costs: Mapping[int, Change] | None = None
    site: str = "ffn"
    tokens: Mapping[int, TokenSplit] | None = None
    moments: Mapping[int, BlockCapture] | None = None

    def __post_init__(self) -> None:
        """Write into every map what it was measured on, so that it cannot stand in for something else."""
        solved = {block: answer.at(self.site) for block, answer in self.solved.items()}
        object.__setattr__(self, "solved", solved)

    __eq__ = object.__eq__  # `Mapping` would compare all tensors
    __hash__ = object.__hash__

    def __getitem__(self, block: int) -> Ceiling:
        return self.solved[block].ceiling

    def __iter__(self) -> Iterator[int]:
        return iter(self.solved)

    def __len__(self) -> int:
        return len(self.solved)

    def __repr__(self) -> str:
        predicts = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        r2 = {block: found.r2 for block, found in self.defined.items()}
        least, most = min(r2, key=r2.__getitem__), max(r2, key=r2.__getitem__)
        return (
            f"<Profile of {self.title} on {self.rows.corpus}: {self.rows_used:,} rows{predicts}; R²_lin of {len(r2)} "
            f"blocks from {r2[least]:.3f} (block {least}) to {r2[most]:.3f} (block {most})>"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table with one row per block, and remarks on it."""
        columns = ["block", "r2", "r2_low", "r2_high", "r2_median", "effective_rank", "condition"]
        table = self.to_frame()[columns].to_html(index=False, border=0, float_format="{:.4g}".format, na_rep="–")
        about = repr(self).strip("<>").partition(";")[0]
        said = [line for line in (self.outlook, self.warning) if line is not None]
        return f"<p>{escape(about)}</p>{table}" + "".join(f"<p>{escape(line)}</p>" for line in said)

    @property
    def title(self) -> str:
        """The model, and which part of it was measured if not its FFNs."""
        return self.model if self.site == "ffn" else f"{KINDS[self.site]} of {self.model}"

    @property
    def defined(self) -> dict[int, Ceiling]:
        """The blocks that have an R²_lin: all whose outputs vary."""
        return defined(self.solved)

    @property
    def effective_ranks(self) -> dict[int, float]:
        """Block → participation ratio of the held-out outputs' covariance."""
        return {block: answer.effective_rank for block, answer in self.solved.items()}

    @property
    def resting_on_massive_rows(self) -> list[int]:
        """The blocks whose R²_lin a few massive rows decide."""
        return [block for block, answer in self.solved.items() if answer.rests_on_massive_rows]

    @property
    def warning(self) -> str | None:
        """One sentence about the blocks whose R²_lin a few massive rows decide; None if there are no such blocks."""
        blocks = self.resting_on_massive_rows
        if not blocks:
            return None
        most = max(self.solved[block].massive_rows for block in blocks)
        changes = ", ".join(
            f"block {block} {self[block].r2:.2f} → {self.solved[block].ordinary.r2:.2f}" for block in blocks
        )
        return (
            f"R²_lin rests on at most {most:,} of {self.rows_used:,} rows, whose outputs are beyond {MULTIPLE:g} times "
            f"the median norm; without them: {changes}"
        )

    @property
    def rows_used(self) -> int:
        """Number of rows of each block that were fitted on or scored, without padding."""
        first = next(iter(self.values()))
        return first.rows_train + first.rows_test

    @property
    def rows_per_input(self) -> float:
        """Train rows over the width of a block's input, n / d, for the block with the fewest."""
        return min(block.rows_train / block.inputs for block in self.values())

    @property
    def outlook(self) -> str:
        """One sentence: how many train rows there are for each input, and how far R²_lin would rise with ever more.

        Rows are too few to trust the interval of a block if it ends below that limit, which is farther off than two
        decimals show (`SHOWN`): the interval is about which documents were drawn, not about how many. Blocks without
        an R²_lin are named first.
        """
        have = f"{self.rows_per_input:,.0f} train rows for each input"
        constant = [block for block in self if block not in self.defined]
        if constant:
            have = (
                f"the output of {numbered(constant)} is constant, in all document folds or all but one, so R²_lin is "
                f"undefined there; {have}"
            )
        if any(block.interval is None for block in self.defined.values()):
            return f"{have}; without document folds there is no telling what more would do"
        untold = [number for number, block in self.defined.items() if block.limit is None]
        told = {number: block for number, block in self.defined.items() if block.limit is not None}
        if not told:
            return f"{have}: too few to say what R²_lin tends to with more rows, in any block"
        rises = {number: block.limit.value - block.r2 for number, block in told.items()}
        most = max(rises, key=rises.__getitem__)
        limit = told[most].limit
        short = [number for number, block in told.items() if rises[number] > max(block.interval.half_width, SHOWN)]
        tends = (
            f"with ever more R²_lin tends to {limit.value:.3f} [{limit.low:.3f}, {limit.high:.3f}] in block {most}, "
            f"the farthest from it ({rises[most]:+.3f})"
        )
        if untold:
            return f"{have}: too few to say what R²_lin tends to in {numbered(untold)}; elsewhere {tends}"
        if short:
            return f"{have}: too few to trust the interval of {numbered(short)}; {tends}"
        return f"{have}; {tends}"

    @property
    def curves(self) -> dict[str, list[float]]:
        """R²_lin over depth and its interval's ends, `r2`, `r2_low` and `r2_high`, as trajectories keep them."""
        return {name: [getattr(block, name) for block in self.values()] for name in ("r2", "r2_low", "r2_high")}

    @property
    def rises_and_falls(self) -> bool:
        """Whether some later block surely lies above an earlier one, and some other below (by disjoint intervals)."""
        low, high = (
            np.array([getattr(block, end) for block in self.defined.values()], float) for end in ("r2_low", "r2_high")
        )
        return smaller_turn(low, above=high) > 0

    def to_frame(self) -> pd.DataFrame:
        """Return one row per block: its model, text and site, and then the columns of `howlinear measure --json`.

        `r2_train` is R² of the train rows, `r2_limit` what it and `r2` tend to with ever more rows, missing if there
        are too few to say. `inputs` is the number of a block's inputs, `condition` and `rank` describe the inputs of
        the train rows, and `effective_rank` describes the held-out outputs. `massive_rows` counts the rows with massive
        outputs, and columns that end in `_ordinary` are of all other rows. `dppl`, `dppl_low` and `dppl_high`, if
        measured, say what the map costs in the block's place. `token_share`, `r2_between` and `r2_within`, if measured,
        split `r2` by the token (`core.token_split`).
        """
        frame = pd.DataFrame(
            {
                "model": self.model,
                "corpus": self.rows.corpus,
                "site": self.site,
                "block": block,
                "r2": answer.ceiling.r2,
                "r2_low": answer.ceiling.r2_low,
                "r2_high": answer.ceiling.r2_high,
                "r2_train": answer.ceiling.r2_train,
                "r2_limit": None if answer.ceiling.limit is None else answer.ceiling.limit.value,
                "r2_limit_low": None if answer.ceiling.limit is None else answer.ceiling.limit.low,
                "r2_limit_high": None if answer.ceiling.limit is None else answer.ceiling.limit.high,
                "r2_median": answer.ceiling.r2_median,
                "effective_rank": answer.effective_rank,
                "condition": answer.ceiling.condition,
                "inputs": answer.ceiling.inputs,
                "rank": answer.ceiling.rank,
                "rows_train": answer.ceiling.rows_train,
                "rows_test": answer.ceiling.rows_test,
                "massive_rows": answer.massive_rows,
                "r2_ordinary": answer.ordinary.r2,
                "r2_ordinary_low": answer.ordinary.r2_low,
                "r2_ordinary_high": answer.ordinary.r2_high,
                "effective_rank_ordinary": answer.ordinary_effective_rank,
            }
            for block, answer in self.solved.items()
        )
        frame = frame.astype({name: "float64" for name in frame if name.startswith("r2")})  # NaN in the place of None
        if self.costs is not None:  # empty for an encoder
            costs = {block: change.columns("dppl") for block, change in self.costs.items()}
            columns = pd.DataFrame.from_dict(costs, orient="index", columns=["dppl", "dppl_low", "dppl_high"])
            frame = frame.join(columns.astype("float64"), on="block")
        if self.tokens is not None:
            splits = {block: of_block.columns() for block, of_block in self.tokens.items()}
            frame = frame.join(pd.DataFrame.from_dict(splits, orient="index"), on="block")
        return frame

    def to_dict(self) -> dict:
        """Return the profile as `howlinear measure --json` writes it; `rows` leaves padding out."""
        content = {
            "model": self.model,
            "corpus": self.rows.corpus,
            "site": self.site,
            "sha256": self.rows.sha256,
            "rows": self.rows_used,
            "seq_len": self.rows.seq_len,
            "perplexity": self.perplexity,
            "rows_per_input": self.rows_per_input,
            "blocks": [
                {key: None if value != value else value for key, value in block.items()}  # NaN where there is no limit
                for block in self.to_frame().drop(columns=["model", "corpus", "site"]).to_dict("records")
            ],
        }
        if self.rows.note:
            content["text"] = self.rows.note
        if self.stop is not None:
            content["stop"] = asdict(self.stop)
        return content

    @classmethod
    def from_dict(cls, content: Any) -> Profile:
        """Rebuild a profile from its `to_dict`: numbers without maps, as from a `.json` file.

        Raises:
            InputError: the content is no profile.
        """
        from howlinear.instrument.profile_files import profile_from_dict

        try:
            return profile_from_dict(content)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"no profile as Profile.to_dict gives it ({type(error).__name__}: {error})") from error

    def to_markdown(self) -> str:
        """Return the columns that a reader looks at first, as a Markdown table."""
        columns = ["block", "r2", "r2_low", "r2_high", "r2_median", "effective_rank", "massive_rows"]
        frame = self.to_frame()
        columns += [name for name in frame if name.startswith("dppl")]
        columns += [name for name in ("token_share", "r2_between", "r2_within") if name in frame]
        there = frame[columns].astype(object).where(frame[columns].notna(), None)
        return there.to_markdown(index=False, floatfmt=".3f", missingval="–")

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the profile to a file that `load_profile` reads (`instrument.profile_files`).

        Args:
            path: `.safetensors` keeps the maps too, and moments if there are any; `.json` the numbers alone.
            force: replace an existing file.

        Raises:
            InputError: another kind of file.
            SourceError: it exists already, or cannot be written.
        """
        from howlinear.instrument.profile_files import save_profile

        save_profile(self, check_path("path", path), force)

    @staticmethod
    def load(path: Path | str) -> Profile:
        """Read what `save` wrote: `load_profile` under another name."""
        from howlinear.instrument.profile_files import load_profile

        return load_profile(path)

    def save_skips(self, folder: Path | str, hookpoint: str = "layers.*.mlp") -> None:
        """Write the maps as transcoders that sparsify loads, `SparseCoder.load_many(folder, local=True)`.

        Args:
            folder: a new folder, with a subfolder for each block, named after the module that the map replaces.
            hookpoint: that module's name below the model's body, a star for the block's number: `h.*.mlp` for GPT-2.

        Raises:
            InputError: maps of attention or layers, a profile without maps, or no star.
            SourceError: it exists already, or cannot be written.
        """
        from howlinear.instrument.profile_files import save_skips

        save_skips(self, check_path("folder", folder), hookpoint)

    def plot(
        self, ax: matplotlib.axes.Axes | None = None, swap: bool | None = None
    ) -> matplotlib.figure.Figure | matplotlib.axes.Axes:
        """Draw R²_lin over depth with its intervals, and below it the costs of swaps.

        Args:
            ax: where to draw R²_lin alone; a figure of its own by default.
            swap: whether to draw the costs; by default if they were measured and no axes are given.

        Returns:
            The figure; the axes if they are given.

        Raises:
            InputError: costs that were not measured, or that two panels are to be drawn on one pair of axes.
        """
        from howlinear.plots.ceilings import profile

        check_flags(swap=swap)
        if swap and self.costs is None:
            raise InputError("costs of swaps were not measured: measure with swap=True, or leave swap out")
        if ax is not None and not hasattr(ax, "plot"):
            raise InputError(f"ax is a {type(ax).__name__}: give one pair of matplotlib's axes, or leave ax out")
        if swap and ax is not None:
            raise InputError("costs of swaps take a panel of their own: leave ax or swap out")
        frame = self.to_frame().assign(model=Path(self.model).name)
        costs = [name for name in frame if name.startswith("dppl")]
        return profile(frame.drop(columns=costs) if swap is False else frame, ax)


def compare(first: Any, second: Any) -> pd.DataFrame:
    """Compare two profiles block by block: R²_lin of either, and how far the first lies above the second.

    The interval of a difference takes the two as measured on independent documents: half² = half₁² + half₂². Measured
    on the same rows, the two are correlated, and the true interval is narrower (`howlinear compare` measures that one).

    Args:
        first: one `Profile`.
        second: another profile of the same blocks, of another model or on another text.

    Returns:
        One row per block: `block`, `r2_first`, `r2_second`, `difference` with its 95 % interval, and `differs`, whether
        the interval excludes 0; it is missing, `pd.NA`, if there is no interval.

    Raises:
        InputError: anything but profiles, or profiles that differ in blocks or in site.
    """
    for given in (first, second):
        if not isinstance(given, Profile):
            raise InputError(f"compare takes two profiles, as of measure, and not a {type(given).__name__}")
    apart = sorted({*first} ^ {*second})
    if apart:
        raise InputError(
            f"profiles of {len(first)} and {len(second)} blocks, and block {apart[0]} is in one alone: measure both "
            "with the same blocks="
        )
    if first.site != second.site:
        raise InputError(f"profiles of {first.site} and of {second.site} are of other parts: nothing to compare")
    rows = []
    for block, one in first.items():
        other = second[block]
        told = one.interval is not None and other.interval is not None
        half = float(np.hypot(one.interval.half_width, other.interval.half_width)) if told else math.nan
        difference = Estimate(one.r2 - other.r2, one.r2 - other.r2 - half, one.r2 - other.r2 + half)
        row = {"block": block, "r2_first": one.r2, "r2_second": other.r2, **difference.columns("difference")}
        rows.append(row | {"differs": difference.excludes(0.0) if told else pd.NA})
    return pd.DataFrame(rows).astype({"differs": "boolean"})


def profile_of(captured: Mapping[int, BlockCapture], model: str, rows: Rows, perplexity: float | None) -> Profile:
    """Compute the profile that follows from a capture."""
    solved = solve(captured)
    defined(solved)  # raises if no block has an R²_lin
    return Profile(model, rows, solved, perplexity)


def defined(solved: Mapping[int, Solved]) -> dict[int, Ceiling]:
    """The ceilings of the blocks that have an R²_lin: all whose outputs vary.

    Raises:
        ConstantError: no block has one.
    """
    ceilings = {block: answer.ceiling for block, answer in solved.items() if not math.isnan(answer.ceiling.r2)}
    if not ceilings:
        rows = next(iter(solved.values())).ceiling.rows_test
        raise ConstantError(
            f"{numbered(list(solved))}: the outputs are constant over {rows} rows, or without one document fold: "
            "R² is undefined; use more or other text"
        )
    return ceilings


def solve(
    captured: Mapping[int, BlockCapture],
    confidence: float = CONFIDENCE,
    progress: bool = False,
    device: torch.device | str | int | None = None,
) -> dict[int, Solved]:
    """Solve each block from its moments, with and without massive rows; on `device`, or where the moments are."""
    solved = {}
    for number, block in tqdm(captured.items(), unit="block", desc="solve", disable=not progress):
        try:
            solved[number] = _solved(block if device is None else block.to(device), confidence)
        except InputError as error:
            raise InputError(f"block {number}: {error}") from error
    return solved


def _solved(block: BlockCapture, confidence: float) -> Solved:
    """Solve one block; if no row is massive, the ordinary rows are all rows."""
    whole = ceiling_or_nan(block.train, block.test, confidence).cpu()
    rank = participation_ratio(block.outputs.sxx)
    massive_rows = len(block.massive())
    if massive_rows == 0:
        return Solved(whole, rank, 0, whole, rank)
    others = block.ordinary()
    ordinary = ceiling_or_nan(others.train, others.test, confidence).cpu()
    return Solved(whole, rank, massive_rows, ordinary, participation_ratio(others.outputs.sxx))


def numbered(numbers: list[int]) -> str:
    """Blocks by number, as in `block 3` or `blocks 1, 2, 5`."""
    return f"block{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
