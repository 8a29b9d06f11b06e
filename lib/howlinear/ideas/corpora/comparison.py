"""Comparison of two models on one text, or of one model on two texts: their profiles and how far they agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from howlinear.core.fold_maps import Scores, fit_folds, score_folds
from howlinear.ideas.corpora.agreement import Agreement, compare
from howlinear.instrument.measure import measure
from howlinear.instrument.profile import Profile
from howlinear.models.load import is_causal
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


def measured(model: PreTrainedModel, rows: TokenRows, swap: bool = False, **options: Any) -> Measured:
    """Measure a model for a comparison; `options` are those of `hl.measure`, and without a loss there are no costs."""
    profile = measure(model, rows, swap=swap and is_causal(model), moments=True, **options)
    kept = {block: profile.moments[block] for block in profile.defined}
    scores = {block: score_folds(fit_folds(moments.train), moments.test) for block, moments in kept.items()}
    return replace(profile, moments=None), scores


def comparison(first: Measured, second: Measured, names: tuple[str, str]) -> Comparison:
    """Compare two measured profiles, paired if their rows are the same."""
    one, scores_of_one = first
    other, scores_of_other = second
    paired = one.rows.sha256 == other.rows.sha256
    blocks = [block for block in scores_of_one if block in scores_of_other]
    agreement = None
    if blocks and list(one) == list(other):
        both = ({block: scores[block] for block in blocks} for scores in (scores_of_one, scores_of_other))
        agreement = compare(*both, names, paired)
    return Comparison(one, other, paired, agreement)
