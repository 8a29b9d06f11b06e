"""Comparison of two models on one text, or of one model on two texts: their profiles and how far they agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from transformers import PreTrainedModel

from howlinear.core.fold_maps import Scores, fit_folds, score_folds
from howlinear.ideas.corpora.agreement import Agreement, FoldProfiles, compare
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import HeldOutLosses, if_finite
from howlinear.instrument.profile import Profile, profile_of
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.checks import name_of
from howlinear.text.rows import TokenRows

Measured = tuple[Profile, dict[int, Scores]]
"""A profile as `measure` gives it, and R²_lin of each block that has one, with all folds and without each."""


@dataclass(frozen=True)
class Comparison:
    """Two profiles and how far they agree, over the blocks that have an R²_lin in both."""

    first: Profile
    second: Profile
    paired: bool  # whether both were measured on the same rows
    agreement: Agreement | None  # None if the profiles have different blocks, or none in common with an R²_lin


def measured(
    model: PreTrainedModel,
    rows: TokenRows,
    progress: bool = False,
    site: str = "ffn",
    blocks: int | Iterable[int] | None = None,
    batch_size: int = 16,
    swap: bool = False,
) -> Measured:
    """Measure a model for a comparison, without keeping moments. The arguments are those of `hl.measure`."""
    losses = HeldOutLosses(model, rows)
    captured = capture(model, rows, blocks, batch_size=batch_size, progress=progress, losses=losses, site=site)
    perplexity = if_finite("perplexity", losses.perplexity)
    profile = replace(profile_of(captured, name_of(model), rows, perplexity), site=site)
    if swap and perplexity is not None:
        swapped = partial(swap_costs, model, profile, rows, max(1, batch_size // 2), progress)
        profile = replace(profile, costs=if_finite("costs of swaps", swapped))
    scores = {block: score_folds(fit_folds(captured[block].train), captured[block].test) for block in profile.defined}
    return profile, scores


def comparison(first: Measured, second: Measured, names: tuple[str, str]) -> Comparison:
    """Compare two measured profiles, paired if their rows are the same."""
    one, scores_of_one = first
    other, scores_of_other = second
    paired = one.rows.sha256 == other.rows.sha256
    blocks = [block for block in scores_of_one if block in scores_of_other]
    agreement = None
    if blocks and list(one) == list(other):
        of_one = FoldProfiles.of(scores_of_one[block] for block in blocks)
        of_other = FoldProfiles.of(scores_of_other[block] for block in blocks)
        agreement = compare(of_one, of_other, blocks, names, paired)
    return Comparison(one, other, paired, agreement)
