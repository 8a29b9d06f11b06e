"""Two profiles beside one another: what pairing cancels, what it must not, and that depths are not mixed."""

import numpy as np
import pytest
import torch

from conftest import tiny
from howlinear.app.console import comparison_columns, comparison_notes
from howlinear.core.fold_maps import Scores
from howlinear.ideas.corpora.agreement import compare
from howlinear.ideas.corpora.comparison import comparison, measured
from howlinear.instrument.measure import measure
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows
from howlinear.training.minis import new_model

NAMES = ("one", "other")
TRUE = np.array([0.9, 0.5, 0.6, 0.7])


def token_rows(seed=0, sequences=96):
    return TokenRows.from_ids(
        torch.randint(80, (sequences, 16), generator=torch.Generator().manual_seed(seed)), folds=4
    )


def folded(noise, own):
    """A profile whose folds err by `noise` and by `own`, shape (2, folds, blocks): train and held-out folds."""
    per_fold = TRUE + noise + own
    means = per_fold.mean(1)  # of each side, over folds
    without = (per_fold.sum(1, keepdims=True) - per_fold) / (per_fold.shape[1] - 1)
    whole, refitted, rescored = means.mean(0), (without[0] + means[1]) / 2, (means[0] + without[1]) / 2
    return {block: Scores(whole[block], refitted[:, block], rescored[:, block]) for block in range(len(TRUE))}


@pytest.mark.long
def test_what_two_profiles_share_cancels_where_they_are_paired_and_only_there():
    """The difference is 0; the folds' common noise is ten times what each has of its own."""
    rng = np.random.default_rng(0)
    held = {True: [], False: []}
    widths = {True: [], False: []}
    for _ in range(200):
        common = 0.1 * rng.normal(size=(2, 8, 4))
        pair = [folded(common, 0.01 * rng.normal(size=(2, 8, 4))) for _ in range(2)]
        for paired in (True, False):
            found = compare(*pair, NAMES, paired)
            held[paired].append([not each.excludes(0.0) for each in found.difference.values()])
            widths[paired].append([each.half_width for each in found.difference.values()])
    assert 0.93 <= np.mean(held[True]) <= 0.98
    assert np.mean(held[False]) == 1.0  # far too wide: pairing is what tells small differences
    assert np.mean(widths[False]) > 5 * np.mean(widths[True])


def test_two_models_on_the_same_rows_are_paired_and_on_others_not(gpt2):
    other = tiny("mini-llama", seed=1)
    rows = token_rows()
    first, second = measured(gpt2, rows), measured(other, rows)
    together = comparison(first, second, NAMES)
    assert together.paired
    for block, difference in together.agreement.difference.items():
        assert difference.value == pytest.approx(measure(gpt2, rows)[block].r2 - measure(other, rows)[block].r2)
    assert not comparison(first, measured(gpt2, token_rows(1)), NAMES).paired
    shuffled = TokenRows(rows.ids, rows.test, rows.fold.flip(0), rows.corpus)
    assert not comparison(first, measured(other, shuffled), NAMES).paired


def test_a_model_beside_itself_differs_nowhere_for_sure(gpt2):
    once = measured(gpt2, token_rows())
    found = comparison(once, once, NAMES).agreement
    assert {(each.value, each.low, each.high) for each in found.difference.values()} == {(0.0, 0.0, 0.0)}
    assert found.differ == ()


def test_models_of_other_depths_are_not_subtracted(gpt2):
    deeper = new_model("mini-gpt2", blocks=4, width=32, vocabulary=80).eval()
    found = comparison(measured(gpt2, token_rows()), measured(deeper, token_rows()), NAMES)
    assert found.agreement is None
    assert (len(found.first), len(found.second)) == (3, 4)


def test_a_block_that_is_constant_in_one_model_is_left_out_of_the_difference(gpt2):
    whole = measured(gpt2, token_rows())
    with swap(gpt2, {1: lambda x: torch.full_like(x, 0.1)}):
        hushed = measured(gpt2, token_rows())
    found = comparison(hushed, whole, NAMES)
    assert list(found.agreement.difference) == [0, 2]
    cells = {column.heading: column.cells for column in comparison_columns(found)}
    assert [cell == "–" for cell in cells["\nA − B"]] == [False, True, False]
    assert comparison_notes(found)


def test_two_blocks_have_their_differences_and_no_correlation(gpt2):
    pair = [measured(gpt2, token_rows(seed), blocks=[0, 2]) for seed in (0, 1)]
    whole = [measured(gpt2, token_rows(seed)) for seed in (0, 1)]
    few, all_of_them = comparison(*pair, NAMES).agreement, comparison(*whole, NAMES).agreement
    assert few.correlation is None
    assert few.difference == {block: all_of_them.difference[block] for block in (0, 2)}
