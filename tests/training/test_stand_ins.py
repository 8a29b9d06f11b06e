import json
import runpy
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from howlinear import TokenRows, capture, load_corpus, load_model, sites
from howlinear.files import paths
from howlinear.training import stand_ins

NAMES = list(stand_ins.PUBLISHED)
TINY = {name: stand_ins.resized(name, blocks=3, width=16) for name in NAMES}

# of the models on the Hub
PARAMETERS = {"gpt2": 124_439_808, "pythia-160m": 162_322_944, "llama-160m": 162_417_408}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rehearsal") / "models"
    for name in NAMES:
        stand_ins.make(name, folder, TINY[name])
    return folder


def real_model(name):
    config = dict(stand_ins.PUBLISHED[name])
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))


@pytest.mark.parametrize("name", NAMES)
def test_real_shape_has_the_published_size_and_twelve_ffns(name):
    model = real_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (12, 768, 12)
    if name == "pythia-160m":
        assert config.rope_parameters["partial_rotary_factor"] == 0.25
    found = sites(model)
    assert [site.block for site in found] == list(range(12))
    assert {type(site.output).__name__ for site in found} == {
        {"gpt2": "GPT2MLP", "pythia-160m": "GPTNeoXMLP", "llama-160m": "LlamaMLP"}[name]
    }


@pytest.mark.parametrize("name", NAMES)
def test_folder_is_laid_out_as_on_the_hub(name, folder):
    files = {path.name for path in (folder / name).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= files
    written = json.loads((folder / name / "config.json").read_text())
    fitted = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 4_096}
    assert written == stand_ins.PUBLISHED[name] | fitted | TINY[name]


@pytest.mark.parametrize("name", NAMES)
def test_load_model_gets_every_weight(name, folder):
    def renamed(key):
        return f"transformer.{key}" if name == "gpt2" else key.replace("embed_out", "lm_head")

    saved = {renamed(key): value for key, value in load_file(folder / name / "model.safetensors").items()}
    state = load_model(folder / name).state_dict()
    masks = saved.keys() - state.keys()
    assert len(masks) == (0 if name == "llama-160m" else 3)  # one to a block, for the loader to pass over
    for key in saved.keys() & state.keys():
        assert state[key].dtype == torch.float32
        assert torch.equal(state[key], saved[key].float()), key
    assert state.keys() - saved.keys() == ({"lm_head.weight"} if name == "gpt2" else set())


def test_precision_of_the_files(folder):
    stored = {name: load_file(folder / name / "model.safetensors") for name in NAMES}
    assert stored["pythia-160m"]["embed_out.weight"].dtype == torch.float16
    assert stored["gpt2"]["wte.weight"].dtype == stored["llama-160m"]["lm_head.weight"].dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_stand_in_can_be_measured(name, folder):
    model = load_model(str(folder / name))
    tokenizer = load_corpus("docs", model).tokenizer
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id < len(tokenizer)
    ids = torch.tensor(tokenizer("linear maps and bilinear forms, once more")["input_ids"][:8])
    ids = torch.stack([ids.roll(places) for places in range(8)])
    captured = capture(model, TokenRows.from_ids(ids, folds=2))
    assert list(captured) == [0, 1, 2]
    assert captured[2].train[0].d_in == captured[2].train[0].d_out == 16


def test_weights_are_the_same_each_time(tmp_path, folder):
    again = stand_ins.make("gpt2", tmp_path, TINY["gpt2"])
    first, second = (load_file(path / "model.safetensors") for path in (folder / "gpt2", again))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_finished_folder_is_not_made_again(folder, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in (folder / "gpt2").iterdir()}
    monkeypatch.setattr(stand_ins, "_weights", lambda *_: pytest.fail("made again"))
    assert stand_ins.make("gpt2", folder, TINY["gpt2"]) == folder / "gpt2"
    assert {path: path.stat().st_mtime_ns for path in (folder / "gpt2").iterdir()} == before


def test_folder_of_another_shape_is_made_again(tmp_path):
    for depth in (3, 2):
        made = stand_ins.make("gpt2", tmp_path, TINY["gpt2"] | {"n_layer": depth})
        assert load_model(made).config.n_layer == depth


def test_interruption_leaves_no_folder(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "save_pretrained", interrupted)  # config and weights are written by then
        with pytest.raises(KeyboardInterrupt):
            stand_ins.make("gpt2", tmp_path, TINY["gpt2"])
    assert list(tmp_path.iterdir()) == []
    assert load_model(stand_ins.make("gpt2", tmp_path, TINY["gpt2"])).config.n_layer == 3


def test_as_a_command_those_of_few_blocks_are_made_under_the_papers_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stand_ins, "FOLDER", tmp_path)
    stand_ins.main(blocks=1)
    assert [line.rsplit("/", 1)[-1] for line in capsys.readouterr().out.split()] == NAMES
    for name in NAMES:
        config = load_model(tmp_path / name).config
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (1, 768, 12)


@pytest.mark.parametrize("name", NAMES)
def test_the_published_size_is_what_the_command_makes_by_default(name):
    published = stand_ins.PUBLISHED[name] | {"intermediate_size": 3072}
    assert stand_ins.resized(name).items() <= published.items()


def test_command_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr(paths, "MODELS", tmp_path / "models")
    monkeypatch.setattr(sys, "argv", ["rehearsal"])
    with pytest.raises(SystemExit, match="2"):
        # By its path: `run_module` keeps the bytecode that the tests' import hook made where later runs would find it
        runpy.run_path(stand_ins.__file__, run_name="__main__")
    assert "no tokenizer in" in capsys.readouterr().err
