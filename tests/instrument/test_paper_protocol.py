"""The paper's protocol against rows kept whole and numpy, convention by convention."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from conftest import BLOCKS, WIDTH
from helpers.captures import seen_at_sites
from helpers.reference import least_squares
from helpers.unit_rows import hush
from howlinear.instrument.paper_protocol import COLUMNS, paper_blocks
from howlinear.models.ffn_sites import sites
from howlinear.text.paper_rows import PaperRows

CUT = 613  # of 768 rows, inside a window of 32


@pytest.fixture
def laid_out(ids):
    return PaperRows(ids, CUT)


def rows_of_blocks(model, ids):
    """All rows of all blocks: [(x, y), …], float64."""
    seen = seen_at_sites(model, {"input_ids": ids})
    return [(x.double().numpy(), y.double().numpy()) for x, y in seen.values()]


@pytest.fixture
def kept(model, ids):
    return rows_of_blocks(model, ids)


def by_rows(x, y):
    """The paper's numbers of a block from stored rows: scalar R², R², lower median, and ranks about the train mean."""
    weight, bias, _ = least_squares(x[:CUT], y[:CUT])
    x_test, y_test = x[CUT:], y[CUT:]
    squares = np.square(y_test - x_test @ weight - bias)
    per_feature = 1 - squares.sum(0) / np.square(y_test - y_test.mean(0)).sum(0)
    # the outputs that are fitted, projected on their own leading directions; all about the train means
    right = np.linalg.svd((x[:CUT] - x[:CUT].mean(0)) @ weight, full_matrices=False)[2]
    about_train = y_test - y[:CUT].mean(0)
    said = (x_test - x[:CUT].mean(0)) @ weight
    by_rank = [
        1 - np.square(about_train - said @ right[:k].T @ right[:k]).sum() / np.square(about_train).sum()
        for k in range(1, len(right) + 1)
    ]
    ranks = [np.nan, np.nan]  # of a line that explains nothing
    if by_rank[-1] > 0:
        ranks = [1 + next(k for k, r2 in enumerate(by_rank) if r2 >= share * by_rank[-1]) for share in (0.90, 0.95)]
    return {
        "r2_scalar": 1 - squares.sum() / np.square(y_test - y_test.mean()).sum(),
        "r2": 1 - squares.sum() / np.square(y_test - y_test.mean(0)).sum(),
        "median_r2_lower": sorted(per_feature)[(len(per_feature) - 1) // 2],
        "rank_90_train_mean": ranks[0],
        "rank_95_train_mean": ranks[1],
    }


def test_every_convention_equals_stored_rows(model, laid_out, kept):
    measured = paper_blocks(model, laid_out)
    expected = pd.DataFrame([by_rows(*rows) for rows in kept])
    assert measured["block"].tolist() == list(range(BLOCKS))
    assert WIDTH % 2 == 0  # else there is one middle value, and no lower one
    np.testing.assert_allclose(measured[list(COLUMNS)].astype("float64"), expected, atol=1e-5)
    assert (measured["r2_scalar"] > measured["r2"]).all()


def test_some_blocks_are_those_that_the_model_has(gpt2, laid_out):
    assert paper_blocks(gpt2, laid_out, blocks=[1, 10])["block"].tolist() == [1]
    none = paper_blocks(gpt2, laid_out, blocks=[10])
    assert none.empty
    assert list(none.columns) == ["block", *COLUMNS]


def test_a_block_that_writes_the_same_on_every_row_has_none_of_it(model, laid_out, ids):
    hush(sites(model)[1].ffn)
    measured = paper_blocks(model, laid_out, ids[:7])
    assert measured["block"].tolist() == [0, 2]
    assert measured[["r2_scalar", "dppl"]].notna().all(axis=None)


def test_perplexities_are_of_the_scored_windows_by_the_models_own_loss(gpt2, laid_out, ids):
    """One mean over all predicted tokens, and the line as a module in the block's place."""
    gpt2.lm_head.weight = nn.Parameter(5 * gpt2.lm_head.weight.detach())  # else a block hardly matters
    scored = ids.flip(0)[:7]
    measured = paper_blocks(gpt2, laid_out, scored).set_index("block")

    def perplexity():
        with torch.no_grad():
            logits = gpt2(scored).logits[:, :-1].double()
        return float(cross_entropy(logits.flatten(0, 1), scored[:, 1:].flatten()).exp())

    assert measured["perplexity"].tolist() == pytest.approx([perplexity()] * BLOCKS, rel=1e-5)
    x, y = rows_of_blocks(gpt2, ids)[1]
    weight, bias, _ = least_squares(x[:CUT], y[:CUT])
    line = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        line.weight.copy_(torch.from_numpy(weight.T))
        line.bias.copy_(torch.from_numpy(bias))
    before = perplexity()
    gpt2.transformer.h[1].mlp = line
    rise = perplexity() - before
    assert abs(rise) > 1e-4 * before
    assert measured["dppl"][1] == pytest.approx(rise, rel=1e-2)
