"""How far predictions move when a block is replaced, against a sum over the whole vocabulary done by hand."""

import pytest
import torch
from torch import nn

from howlinear.errors import InputError
from howlinear.ideas.compression.divergence import divergences
from howlinear.models.ffn_sites import sites
from howlinear.models.swap import swap


class Nothing(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def by_hand(model, block, module, ids):
    with torch.no_grad():
        p = model(input_ids=ids).logits[:, :-1].double().softmax(-1)
        with swap(model, {block: module}):
            q = model(input_ids=ids).logits[:, :-1].double().softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())


def test_it_is_the_mean_divergence_of_all_predictions(model, ids):
    found = divergences(model, {0: Nothing(), 2: Nothing()}, ids, batch_size=5)
    assert list(found) == [0, 2]
    for block, divergence in found.items():
        assert divergence == pytest.approx(by_hand(model, block, Nothing(), ids), rel=1e-4)
        assert divergence > 1e-3


def test_a_block_in_its_own_place_moves_nothing(model, ids):
    assert divergences(model, {1: sites(model)[1].output}, ids)[1] == pytest.approx(0, abs=1e-7)


def test_nothing_to_predict_and_predictions_that_are_not_finite_are_refused(gpt2, ids):
    with pytest.raises(InputError, match="there is nothing to predict"):
        divergences(gpt2, {0: Nothing()}, ids[:, :1])

    class Overflow(nn.Module):
        def forward(self, x):
            return x * float("inf")

    with pytest.raises(InputError, match="predictions with block 1 replaced are not finite"):
        divergences(gpt2, {1: Overflow()}, ids)
