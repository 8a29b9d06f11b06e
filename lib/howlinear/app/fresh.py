"""What `howlinear measure --fresh` adds: R²_lin of the same architecture before training, beside each block.

A block with fresh weights can be far from straight, so it takes more rows than a trained one. Rows are doubled, up to
`MOST` times those of the measurement, until held-out and in-sample R² meet (`instrument.baseline`); where they do not,
both are shown, and the truth lies between.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from rich.table import Table
from transformers import PreTrainedModel

from howlinear.app.console import Column, fitting, profile_columns, profile_table
from howlinear.errors import HowlinearError, InputError
from howlinear.instrument.baseline import APART, Baseline, baseline
from howlinear.instrument.perplexity import Change
from howlinear.instrument.profile import Profile
from howlinear.models.ffn_sites import sites
from howlinear.text.corpus import Corpus

MOST = 4
"""Times the rows of a measurement that a model before training may take."""

NEARLY = 0.99
"""Of the rows asked for; whole sequences can come to a few less."""

WIDE = 10_000  # characters: room for every column
HEADING = "before\ntraining"


def before_training(
    model: PreTrainedModel,
    corpus: Corpus,
    rows: int,
    seq_len: int = 128,
    seed: int = 0,
    blocks: list[int] | None = None,
) -> Baseline:
    """R²_lin of the same architecture with fresh weights, on the same text.

    Args:
        model: only its configuration counts; the fresh one is computed on the CPU, in float32.
        corpus: the text.
        rows: of the measurement that this stands beside; up to `MOST` times as many are used.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn, and the weights.
        blocks: which blocks; all by default.

    Returns:
        The bracket of each of these blocks, in their order of depth.

    Raises:
        InputError: the model cannot be built anew, or does not run with fresh weights; a block that it does not have;
            or as `baseline`.
    """
    wanted = {site.block for site in sites(model, blocks)}
    try:
        text = corpus.rows(MOST * rows, seq_len, seed, at_most=True)
        found = baseline(model, text, seed, first=int(NEARLY * rows))
    except HowlinearError as error:
        raise InputError(f"--fresh: {error}") from error
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, ImportError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"--fresh does not apply: {type(model).__name__} cannot be had with fresh weights ({reason}); leave it out"
        ) from error
    places = [place for place, site in enumerate(sites(model)) if site.block in wanted]
    return Baseline(found.held_out[places], found.in_sample[places], found.rows)


def frame_of(
    profile: Profile, costs: Mapping[int, Change] | None = None, fresh: Baseline | None = None
) -> pd.DataFrame:
    """What was measured, a row a block.

    Args:
        profile: what was measured.
        costs: block → what its swap costs in perplexity, where that was measured.
        fresh: R²_lin before training, where that was measured.

    Returns:
        The columns of `Profile.to_frame`; with costs also `dppl`, `dppl_low` and `dppl_high`; with `fresh` also
        `r2_untrained`, held out, `r2_untrained_in_sample` and `untrained_rows`.
    """
    frame = profile.to_frame()
    if costs is not None:
        for name, of in (("dppl", "delta"), ("dppl_low", "low"), ("dppl_high", "high")):
            frame[name] = [getattr(costs[block], of) for block in frame["block"]]
    if fresh is not None:
        frame["r2_untrained"] = fresh.held_out
        frame["r2_untrained_in_sample"] = fresh.in_sample
        frame["untrained_rows"] = fresh.rows
    return frame


def columns_of(
    profile: Profile, costs: Mapping[int, Change] | None = None, fresh: Baseline | None = None
) -> list[Column]:
    """What there is to say of each block, column by column; before training right behind R²_lin and its bar.

    Args:
        profile: what was measured.
        costs: block → what its swap costs in perplexity, where that was measured.
        fresh: R²_lin before training, where that was measured.
    """
    columns = profile_columns(profile, costs)
    if fresh is None:
        return columns
    cells = []
    for low, high in zip(fresh.held_out, fresh.in_sample, strict=True):
        middle = (low + high) / 2
        cells.append(f"{middle:.3f}" if high - low <= APART else f"{low:.2f} – {high:.2f}")
    place = 1 + max(number for number, column in enumerate(columns) if column.heading in ("R²_lin", ""))
    return [*columns[:place], Column(HEADING, cells, worth=94), *columns[place:]]


def fresh_table(profile: Profile, model: str, width: int, costs: Mapping[int, Change] | None, fresh: Baseline) -> Table:
    """The profile as a table, with what was before training.

    Args:
        profile: what was measured.
        model: what to call the model.
        width: characters in a line.
        costs: block → what its swap costs in perplexity, where that was measured.
        fresh: R²_lin before training.
    """
    whole = profile_table(profile, model, WIDE, costs)
    return fitting(columns_of(profile, costs, fresh), width, str(whole.title), str(whole.caption))


def fresh_notes(profile: Profile, fresh: Baseline) -> list[str]:
    """What to think of it: sentences.

    Args:
        profile: what was measured.
        fresh: R²_lin before training.
    """
    trained = [block.r2 for block in profile.values()]
    brackets = list(zip(trained, fresh.held_out, fresh.in_sample, strict=True))
    lower = sum(r2 < held_out for r2, held_out, _ in brackets)
    higher = sum(r2 > in_sample for r2, _, in_sample in brackets)
    said = [
        f"before training, the same architecture with fresh weights on {fresh.rows:,} rows: R²_lin between "
        f"{fresh.held_out.min():.2f} and {fresh.in_sample.max():.2f}; trained, {lower} of {len(profile)} blocks lie "
        f"below what they were and {higher} above"
    ]
    if fresh.apart > APART:
        said.append(
            f"before training these rows are too few for one number a block: on held-out and on fitted rows R² lies up "
            f"to {fresh.apart:.2f} apart, and the truth between"
        )
    return said
