import json
import re

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel, GPTNeoXForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from conftest import FAMILIES, tiny
from howlinear.instrument.measure import measure
from howlinear.instrument.perplexity import perplexity
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model
from howlinear.notebook import settings
from howlinear.text.corpus import Corpus, load_corpus
from howlinear.training import minis
from howlinear.training.loop import Recipe
from howlinear.training.minis import (
    END_OF_TEXT,
    FACTORY,
    WIDE,
    new_model,
    new_tokenizer,
    opening_texts,
    ship,
    training_stream,
)
from tests.training.conftest import texts

RECIPE = Recipe(steps=2, batch=4, micro_batch=4, seq_len=16, warm_up=2, stream=3_000)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mini-gpt2", GPT2LMHeadModel), ("mini-pythia", GPTNeoXForCausalLM), ("mini-llama", LlamaForCausalLM)],
)
def test_three_families_one_shape(name, kind):
    model = new_model(name)
    assert type(model) is kind
    assert not model.training
    assert len(sites(model)) == 12
    assert model.get_input_embeddings().weight.shape == (4_096, 128)
    widths = {max(parameter.shape) for parameter in sites(model)[0].input.parameters() if parameter.ndim == 2}
    assert widths == {512}
    assert model.config.max_position_embeddings == 128
    assert model.config.eos_token_id == 0


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_model_has_the_papers_width_and_heads(name):
    config = new_model(name, blocks=1, vocabulary=64).config
    small = new_model(name.replace("wide", "mini"), blocks=1, vocabulary=64).config
    assert config.architectures == small.architectures
    assert (config.hidden_size, config.num_attention_heads) == (768, 12)
    assert (small.hidden_size, small.num_attention_heads) == (128, 4)
    assert any(source.endswith(f"build/wide/{name}") for source in settings.read("wide").models)


def test_every_family_is_tested():
    assert tuple(FACTORY) == FAMILIES


def test_families_differ_as_the_papers_models_do():
    gpt2, pythia, llama = (new_model(name, blocks=1, width=32, vocabulary=64) for name in FACTORY)
    assert gpt2.config.activation_function == "gelu_new"
    assert pythia.config.hidden_act == "gelu"
    assert pythia.config.use_parallel_residual
    assert llama.config.hidden_act == "silu"
    assert not any("bias" in name for name, _ in llama.named_parameters())


@pytest.mark.parametrize("name", FACTORY)
def test_nothing_is_dropped_in_training(name):
    model = tiny(name)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model.train()(ids).logits)


def test_the_seed_decides_the_weights():
    one, same, other = (new_model("mini-gpt2", seed, 1, 32, 64).lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_tokenizer_gives_back_any_text():
    tokenizer = new_tokenizer(iter(texts()), vocabulary=300)
    assert len(tokenizer) == 300
    assert tokenizer.eos_token == tokenizer.bos_token == END_OF_TEXT
    assert tokenizer.eos_token_id == 0
    for text in (*texts(3), " ümläut, 漢字,\t🙂\r\n\0", "  two  spaces "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(texts(1)[0])["input_ids"]) < len(texts(1)[0]) / 2


def test_rows_begin_with_the_bos_of_a_tokenizer_that_begins_texts_with_it(tmp_path):
    plain = new_tokenizer(iter(texts()), vocabulary=300)
    opening_texts(plain).save_pretrained(tmp_path)
    opens = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = texts(1)[0]
    assert opens(text)["input_ids"] == [0, *plain(text)["input_ids"]]
    documents = [f"{text} {number}" for number in range(200)]
    rows = Corpus("own", opens, documents).rows(1_024, 16, folds=2)
    assert (rows.ids[:, 0] == 0).all()
    assert (rows.ids[:, 1] != 0).any()
    assert (Corpus("own", plain, documents).rows(1_024, 16, folds=2).ids[:, 0] != 0).any()


def test_the_stream_is_made_once_from_the_models_documents(tmp_path, monkeypatch):
    asked = []

    def documents(name):
        asked.append(name)
        return iter(texts() if name == "docs" else texts()[::-1])

    monkeypatch.setattr(minis, "model_documents", documents)
    tokenizer, stream = training_stream(tmp_path, RECIPE)
    assert sorted(asked) == ["code", "docs"]
    assert {name: len(ids) for name, ids in stream.items()} == {"docs": 3_000, "code": 3_000}
    first = tokenizer.decode(stream["docs"]).split(END_OF_TEXT)
    assert first[:-1] == texts()[: len(first) - 1]
    again, kept = training_stream(tmp_path, RECIPE)
    assert sorted(asked) == ["code", "docs"]
    assert again.get_vocab() == tokenizer.get_vocab()
    assert all(torch.equal(kept[name], stream[name]) for name in stream)


def test_a_stream_smaller_than_asked_for_is_all_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(minis, "model_documents", lambda name: iter(texts(5)))
    tokenizer, stream = training_stream(tmp_path, Recipe())
    assert tokenizer.decode(stream["docs"]) == "".join(text + END_OF_TEXT for text in texts(5))


@pytest.mark.parametrize("name", FACTORY)
def test_a_shipped_mini_is_a_plain_folder_that_loads(workshop, name):
    folder = ship(name, RECIPE, compiled=False)
    assert folder == workshop / "models" / name
    model = load_model(folder)
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    checkpoint = torch.load(workshop / "build" / "minis" / f"{name}.pt", weights_only=True)["model"]
    assert all(torch.equal(value, checkpoint[key].half().float()) for key, value in model.state_dict().items())
    card = (folder / "README.md").read_text()
    trajectory = json.loads((folder / "trajectory.json").read_text())
    assert [found["step"] for found in trajectory["steps"]] == [0, 1, 2]
    assert trajectory["model"] == name
    docs = minis.load_corpus("docs", model).rows()
    assert trajectory["sha256"] == docs.sha256
    assert re.search(rf"^\| `docs` +\| +{perplexity(model, docs):.1f} \|$", card, re.MULTILINE)


def test_the_model_with_a_sink_begins_its_texts_and_owes_a_block_to_that_token():
    model = load_model("mini-sink")
    rows = load_corpus("docs", model).rows()
    assert (rows.ids[:, 0] == model.config.bos_token_id).all()
    block = measure(model, rows, blocks=[2]).solved[2]
    assert block.massive_rows == len(rows.ids)
    assert block.ceiling.r2_low > 0.7
    assert block.ordinary.r2_high < 0.3


def test_a_wide_model_stays_among_what_is_made(workshop):
    folder = ship("wide-gpt2", RECIPE, compiled=False)
    assert folder == workshop / "build" / "wide" / "wide-gpt2"
    assert load_model(folder).config.model_type == "gpt2"
    assert not (workshop / "models").exists()


def test_weights_drawn_in_float64_are_no_widened_float32_and_the_default_comes_back():
    model = new_model("mini-gpt2", blocks=1, width=32, vocabulary=80, dtype=torch.float64)
    weight = model.transformer.h[0].mlp.c_fc.weight
    assert weight.dtype == torch.float64
    assert not torch.equal(weight, weight.float().double())
    assert torch.get_default_dtype() == torch.float32
    assert new_model("mini-gpt2", blocks=1, width=32, vocabulary=80).dtype == torch.float32
