"""Encoders, half precision, models over several devices, and sites of one's own, through `load_model` and the shell."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import accelerate
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

import howlinear as hl
from conftest import tiny
from helpers.families import FAMILIES, reads, small
from helpers.nearly import assert_same_outputs, assert_same_profile, assert_same_tree
from howlinear.app import cli
from howlinear.models import load as own
from howlinear.models.ffn_sites import FAMILIES as TABLE
from howlinear.models.load import load_model, load_on_disk, tokenizer_of, untrained
from howlinear.models.structure import find

WORDS = ["river", "stone", "cloud", "seven", "green", "quick", "alpha", "delta"]


@pytest.fixture
def encoders():
    """A word tokenizer as an encoder has it: a separator, no end of text."""
    words = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["[UNK]", "[PAD]", "[SEP]", *WORDS])}, "[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", sep_token="[SEP]")


# --- encoders


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "vit"])
def test_an_encoder_loads_as_what_it_was_saved_as(name, tmp_path):
    for model in (small(name), small(name).base_model):
        model.save_pretrained(tmp_path)
        loaded = load_model(tmp_path)
        assert type(loaded) is type(model)
        state = loaded.state_dict()
        assert all(torch.equal(state[path], value) for path, value in model.state_dict().items())


def test_a_bert_that_was_made_a_decoder_is_a_language_model(tmp_path):
    config = FAMILIES["bert"][1].to_dict() | {"is_decoder": True}
    transformers.BertLMHeadModel(transformers.BertConfig(**config)).save_pretrained(tmp_path)
    assert own.is_causal(load_model(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_decoder": False, "architectures": ["BertModel"]}))
    with pytest.warns(UserWarning, match="no place"):
        bare = load_model(tmp_path)
    assert not own.is_causal(bare)  # attends to both sides
    whole = transformers.BertLMHeadModel(transformers.BertConfig(**config | {"is_decoder": False}))
    assert whole.can_generate()
    assert not own.is_causal(whole)  # a head alone does not make it causal


@pytest.mark.parametrize("named", [None, ["NoSuchModel"], ["LlamaModel"], ["logging"]])
def test_a_config_that_names_no_class_of_its_own_is_read_as_the_bare_model(named, tmp_path):
    small("bert").base_model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": named}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(load_model(tmp_path)) is transformers.BertModel


def test_an_encoders_text_is_parted_by_its_separator(encoders):
    corpus = hl.Corpus("toy", encoders, lambda seed: [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS])
    rows = corpus.rows(512, 8, folds=2)
    assert (rows.ids == encoders.sep_token_id).float().mean() == pytest.approx(1 / 4, abs=0.02)


def test_what_reads_images_has_no_tokenizer(tmp_path):
    small("vit").save_pretrained(tmp_path)
    with pytest.raises(hl.SourceError, match=r"reads pixel_values, no text: measure it from Python"):
        tokenizer_of(load_model(tmp_path))


# --- half precision


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", torch.bfloat16])
def test_half_precision_models_have_float64_statistics_of_their_own_rows(dtype, tmp_path):
    tiny("mini-llama").save_pretrained(tmp_path)
    model, rows = load_model(tmp_path, dtype=dtype), hl.TokenRows.from_ids(reads("gpt2", n=40)["input_ids"], folds=2)
    assert str(model.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    found = hl.capture(model, rows, sample=10_000)[1]
    x, y = (kept[~found.sample.test].double() for kept in (found.sample.x, found.sample.y))
    assert torch.equal(x.float().to(model.dtype).double(), x)
    moments = sum(found.train)
    assert torch.allclose(moments.sxy, (x - x.mean(0)).T @ (y - y.mean(0)), rtol=1e-9, atol=1e-9)
    whole = hl.measure(load_model(tmp_path), rows)
    half = hl.measure(model, rows)
    assert half[1].r2 == pytest.approx(whole[1].r2, abs=0.05)
    with hl.swap(model, {1: half[1].map}):
        assert hl.losses(model, rows.ids).isfinite().all()


def test_other_precisions_are_refused(tmp_path):
    small("gpt2").save_pretrained(tmp_path)
    assert load_model(tmp_path, dtype="").dtype is torch.float32
    for load, dtype in product((load_model, load_on_disk), ("float8", "int8", torch.float64)):
        with pytest.raises(hl.InputError, match=r"dtype='\w+': .*float32, bfloat16, float16"):
            load(tmp_path, dtype=dtype)


@pytest.mark.parametrize("option", [{"dtype": "bfloat16"}, {"device_map": "auto"}])
def test_a_model_in_memory_keeps_its_dtype_and_devices(option):
    with pytest.raises(hl.InputError, match="a model in memory stays as it is"):
        load_model(small("gpt2"), **option)


# --- several devices


@pytest.fixture(params=["gpt2", "opt", "mixtral"])
def spread(request, tmp_path):
    """A model, and the same with block 1 on disk and the rest in memory, by accelerate's hooks."""
    model, other = small(request.param), small(request.param)
    holders = {name.rpartition(".")[0] for name in other.state_dict()}
    parts = {name: "disk" if ".1." in name else "cpu" for name in holders}
    return model, accelerate.dispatch_model(other, parts, "cpu", offload_dir=tmp_path / "disk", force_hooks=True)


def test_a_spread_model_is_measured_swapped_and_felt_as_a_whole_one_is(spread):
    model, parted = spread
    assert any(parameter.is_meta for parameter in parted.parameters())
    rows = hl.TokenRows.from_ids(reads("gpt2", n=40)["input_ids"], folds=2)
    whole, found = hl.measure(model, rows), hl.measure(parted, rows)
    assert_same_profile(found, whole, 1e-5)  # float32 weights in another place
    maps = {block: ceiling.map for block, ceiling in whole.items()}
    costs, expected = (hl.swap_costs(one, maps, rows.ids) for one in (parted, model))
    assert_same_tree({b: vars(c) for b, c in costs.items()}, {b: vars(c) for b, c in expected.items()}, 1e-4)
    assert_same_profile(hl.measure(parted, rows), whole, 1e-5)  # blocks on disk come back as they were


def test_structure_is_seen_through_the_hooks_of_a_spread_model(spread):
    model, parted = spread
    assert find(parted.base_model, 16) == TABLE[model.config.model_type]


def test_a_spread_model_keeps_its_blocks_for_good(spread):
    parted = spread[1]
    parted.hf_device_map = {"": 0, "h.1": "disk"}
    with pytest.raises(hl.InputError, match="lies on 2 devices: load it without device_map"):
        hl.replace(parted, {0: torch.nn.Linear(16, 16)})


@pytest.mark.parametrize("offload", [accelerate.cpu_offload, accelerate.disk_offload])
def test_a_model_that_is_offloaded_as_a_whole_is_measured_and_neither_copied_nor_saved(offload, tmp_path):
    whole, ids = small("llama"), reads("llama", n=40)["input_ids"]
    found = hl.measure(whole, ids)
    place = (tmp_path / "weights",) if offload is accelerate.disk_offload else ()
    parted = offload(small("llama"), *place, execution_device="cpu")
    assert_same_profile(hl.measure(parted, ids), found)
    for call in (
        lambda: hl.replace(parted, {0: found[0].map}),
        lambda: hl.compress(parted, ids, 0.9),
        lambda: hl.save(parted, tmp_path / "saved"),
    ):
        with pytest.raises(hl.InputError, match="offloaded: load it without device_map"):
            call()
    assert not (tmp_path / "saved").exists()


def test_a_device_map_is_passed_on(tmp_path):
    small("gpt2").save_pretrained(tmp_path)
    parts = dict.fromkeys(("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"), "cpu")
    parts |= {"transformer.h.0": "cpu", "transformer.h.1": "disk"}
    whole, ids = load_model(tmp_path), reads("gpt2")["input_ids"]
    for device_map in ("auto", parts):
        model = load_model(tmp_path, device_map=device_map)
        assert any(parameter.is_meta for parameter in model.parameters()) == (device_map is parts)
        assert_same_outputs(hl.losses(model, ids), hl.losses(whole, ids))
    with pytest.raises(hl.SourceError, match="cannot load folder"):
        load_model(tmp_path, device_map="no such plan")
    with pytest.raises(hl.SourceError, match="cannot load"):
        load_model(tmp_path, device_map="cuda:97")


def test_without_accelerate_a_device_map_says_what_to_install(tmp_path, monkeypatch):
    small("gpt2").save_pretrained(tmp_path)
    monkeypatch.setattr(own, "find_spec", lambda name: None)
    with pytest.raises(hl.InputError, match=r"a device map needs accelerate: pip install"):
        load_model(tmp_path, device_map="auto")


# --- sites of one's own


def test_the_shell_takes_sites_and_says_what_to_pass(howlinear, refused, project):
    corpus = ("--corpus", project / "mine.txt", "--rows", 2048, "--seq-len", 32)
    common = ("measure", project / "model", *corpus, "--force")
    one, two = project / "one.json", project / "two.json"
    pair = "transformer.h.*.mlp.c_fc,transformer.h.*.mlp.c_proj"
    assert howlinear(*common, "--json", one)[0] == 0
    assert howlinear(*common, "--json", two, "--sites", pair)[0] == 0
    assert one.read_text() == two.read_text()
    said = refused("fits sites='transformer.h.*.ffn'", *common, "--sites", "transformer.h.*.ffn")
    assert '--sites "model.layers.*.mlp"' in said
    refused("float8", *common, "--dtype", "float8")
    assert howlinear(*common, "--dtype", "bfloat16", "--json", two)[0] == 0
    assert one.read_text() != two.read_text()


@pytest.mark.parametrize(("device", "processes"), [("cuda", 1), ("cpu", 2)])
def test_a_device_map_goes_with_one_process_and_no_device(device, processes):
    with pytest.raises(hl.InputError, match="leave --device and torchrun out"):
        cli.check_placement(cli.Reading(device=device, device_map="auto"), processes)
    cli.check_placement(cli.Reading(device_map="auto"))
    cli.check_placement(cli.Reading(device=device), processes)


def test_rounded_weights_say_what_is_missing_before_any_work(refused, monkeypatch):
    monkeypatch.setattr("howlinear.models.sources.find_spec", lambda name: None if name == "bitsandbytes" else name)
    for options, message in (
        (["--load-in-4bit"], "weights of 4 bits need bitsandbytes: pip install bitsandbytes"),
        (["--load-in-8bit"], "weights of 8 bits need bitsandbytes"),
        (["--load-in-8bit", "--load-in-4bit"], "to 4 bits or to 8"),
    ):
        for command in (["measure", "mini-gpt2"], ["compare", "mini-gpt2", "mini-llama"], ["tokens", "mini-gpt2"]):
            refused(message, *command, *options)
    with pytest.raises(hl.InputError, match="rounded to 4 or 8"):
        load_model("mini-gpt2", bits=2)


def test_rounding_is_asked_of_transformers_where_it_can_be_had(monkeypatch):
    asked = {}

    def from_pretrained(_, **options):
        asked.update(options)
        raise OSError("no weights are read here")

    monkeypatch.setattr("howlinear.models.sources.find_spec", lambda name: name)
    monkeypatch.setattr("howlinear.models.load.BitsAndBytesConfig", dict)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(hl.SourceError):
        load_model("mini-gpt2", bits=8, device_map="cpu")
    assert asked["quantization_config"] == {"load_in_8bit": True}


def test_loading_says_nothing_and_leaves_the_bars_as_they_were(capfd):
    logging.enable_progress_bar()
    load_model("mini-gpt2")
    load_model("mini-gpt2", progress=True)  # no terminal here
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    load_model("mini-gpt2")
    assert not logging.is_progress_bar_enabled()
    logging.enable_progress_bar()


# --- threads


def test_four_threads_load_and_draw_what_one_does(tmp_path):
    model = tiny("mini-gpt2")
    model.save_pretrained(tmp_path)

    @torch.no_grad()
    def made(_):
        kept, loaded, drawn = load_on_disk(tmp_path), load_model(tmp_path), untrained(model)
        tied = loaded.lm_head.weight is loaded.transformer.wte.weight
        return kept.lm_head.weight.is_meta, tied, float(loaded.lm_head.weight.sum()), float(drawn.lm_head.weight.sum())

    expected = made(0)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(made, range(8))) == [expected] * 8
