"""Weights that are drawn when they are read: the same each time, and of the distribution of a whole fresh model."""

import pytest
import torch

from helpers.families import FAMILIES, PADDING, VOCABULARY, small
from howlinear.errors import InputError
from howlinear.models.drawn import PART
from howlinear.models.load import load_on_disk, untrained
from howlinear.models.shards import read

RENAMED = ("gemma3", "mixtral", "vit")  # their files hold other names, so none of these stays on disk


def fresh(model, folder, seed=0):
    """A model before training whose weights are drawn when they are read."""
    model.save_pretrained(folder)
    return untrained(load_on_disk(folder), seed)


def weights(model):
    """All weights, each read by itself."""
    return {name: model.howlinear_shards.read(name, like) for name, like in model.state_dict(keep_vars=True).items()}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in RENAMED])
def test_every_weight_has_the_mean_and_the_spread_that_transformers_gives_it(name, tmp_path):
    drawn = fresh(small(name), tmp_path)
    whole = type(drawn)(drawn.config).state_dict()
    found = weights(drawn)
    assert list(found) == list(whole)
    for weight, expected in whole.items():
        tensor, expected = found[weight].double(), expected.double()
        assert tensor.shape == expected.shape
        spread = expected.std(correction=0)
        close = 6 / expected.numel() ** 0.5  # standard errors, for the difference of two draws
        torch.testing.assert_close(tensor.mean(), expected.mean(), rtol=0, atol=1.5 * float(spread) * close)
        torch.testing.assert_close(tensor.std(correction=0), spread, rtol=close, atol=0)


def test_a_weight_is_the_same_whenever_it_is_read_and_another_of_another_seed(tmp_path):
    model = small("llama")
    one, again, other = (weights(fresh(model, tmp_path, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]) == (tensor.std(correction=0) == 0)  # norms are ones in both
    drawn = [tensor for tensor in one.values() if tensor.std(correction=0) > 0]
    assert len({tensor.flatten()[0].item() for tensor in drawn}) == len(drawn)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_rows_of_an_embedding_and_of_a_head_are_those_of_the_whole(name, tmp_path):
    model = fresh(small(name), tmp_path)
    for end in (model.get_input_embeddings(), model.get_output_embeddings()):
        matrix = next(f"{path}.weight" for path, part in model.named_modules() if part is end)
        whole = model.howlinear_shards.read(matrix, end.weight)
        rows = [0, 3, PART - 1, PART, VOCABULARY - 1]
        assert torch.equal(model.howlinear_shards.read_rows(matrix, rows, end.weight), whole[rows])
        assert len(whole.unique(dim=0)) == len(whole)


def test_a_tied_head_is_the_embedding(tmp_path):
    found = weights(fresh(small("gpt2"), tmp_path))
    assert torch.equal(found["lm_head.weight"], found["transformer.wte.weight"])


@pytest.mark.parametrize("padding", [PADDING, PART + 5])
def test_the_row_of_padding_is_zero_as_in_a_whole_model_and_no_other(padding, tmp_path):
    model = small("llama")
    model.config.pad_token_id = padding
    embedding = weights(fresh(model, tmp_path))["model.embed_tokens.weight"]
    assert (embedding == 0).all(dim=1).nonzero().flatten().tolist() == [padding]


def test_there_is_nothing_but_what_is_read_and_no_random_number_is_taken_from_others(tmp_path):
    model = fresh(small("llama"), tmp_path)
    before = torch.get_rng_state()
    name = "model.layers.1.mlp.up_proj.weight"
    with read(model, [name]):
        there = [path for path, parameter in model.named_parameters() if not parameter.is_meta]
        assert there == [name]
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision_is_float32_rounded(tmp_path):
    small("llama").save_pretrained(tmp_path)
    half, single = (weights(untrained(load_on_disk(tmp_path, dtype))) for dtype in ("bfloat16", "float32"))
    assert all(torch.equal(tensor, single[name].bfloat16()) for name, tensor in half.items())


def test_a_weight_that_no_rule_draws_is_refused(tmp_path, monkeypatch):
    model = fresh(small("llama"), tmp_path)
    monkeypatch.setattr(type(model), "_init_weights", lambda *_: None)
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        model.howlinear_shards.read("lm_head.weight", model.lm_head.weight)
