"""GGUF files: the weights are those of the format to the bit, and every bad file is one line and leaves nothing."""

import json
import logging
import os
import re
import resource
import signal

import pooch
import pytest
import torch
from gguf import RopeScalingType
from transformers import PreTrainedTokenizerFast

from helpers.forked import exit_codes, start
from helpers.gguf_file import HEADS, KV_HEADS, MERGES, TOKENS, model_of, tensors_of, write
from helpers.nearly import assert_same_outputs
from howlinear.errors import InputError, SourceError
from howlinear.models import gguf
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model, tokenizer_of


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "tiny.gguf", model_of())


def files_in(folder):
    """Every file below a folder, but for the locks."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "lock")


# --- what is read


@pytest.mark.usefixtures("cache")
def test_weights_are_the_formats_own_to_the_bit(file):
    expected = tensors_of(file, HEADS, KV_HEADS)
    state = load_model(file).state_dict()
    assert torch.equal(state.pop("lm_head.weight"), expected["model.embed_tokens.weight"])  # tied
    assert state.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(state[name], weights), name


@pytest.mark.usefixtures("cache")
def test_the_model_computes_what_the_one_in_memory_does_with_these_weights(file):
    model, ids = model_of(), torch.randint(1, 200, (4, 24), generator=torch.Generator().manual_seed(0))
    loaded = load_model(file)
    with torch.no_grad():
        exact = model(ids).logits
        model.load_state_dict(tensors_of(file, HEADS, KV_HEADS), strict=False)
        rounded = model(ids).logits
        assert_same_outputs(loaded(ids).logits, rounded)
        assert not torch.allclose(exact, rounded, rtol=1e-3, atol=1e-3)  # four bits are not nothing
    assert [site.name for site in sites(loaded)] == ["model.layers.0.mlp", "model.layers.1.mlp"]


@pytest.mark.usefixtures("cache")
def test_the_tokenizer_comes_out_of_the_same_file(file):
    tokenizer = tokenizer_of(load_model(file))
    text = "the thin één\n\t漢字 42"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["the", "Ġ", "th", "in"]
    assert len(tokenizer) == len(TOKENS)
    assert len(MERGES) == 3
    assert tokenizer.eos_token == "<|endoftext|>"


@pytest.mark.usefixtures("cache")
def test_what_lies_beside_the_file_is_not_read(file, monkeypatch):
    """A folder of downloads holds other models' files; transformers would read a tokenizer's settings from them."""
    (file.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "the"}))
    (file.parent / "adapter_config.json").write_text("{")
    (file.parent / "elsewhere").mkdir()
    (file.parent / "elsewhere" / file.name).write_bytes(b"GGUF and nothing else")
    monkeypatch.chdir(file.parent / "elsewhere")  # where transformers looks for the name alone first
    assert tokenizer_of(load_model(file)).eos_token == "<|endoftext|>"


# --- once, and checked on every load


def test_a_file_is_converted_once_and_another_content_again(file, cache, monkeypatch):
    first = load_model(file)
    conversions = []
    convert = gguf._convert
    monkeypatch.setattr(gguf, "_convert", lambda *args: conversions.append(args) or convert(*args))
    assert load_model(str(file)).name_or_path == first.name_or_path
    assert conversions == []
    write(file, model_of(seed=1))
    second = load_model(file)
    assert len(conversions) == 1
    assert second.name_or_path != first.name_or_path
    assert not torch.equal(second.lm_head.weight, first.lm_head.weight)
    assert str(second.name_or_path).startswith(str(cache / "gguf"))


def test_another_reader_converts_again(file, cache, monkeypatch):
    load_model(file)
    monkeypatch.setattr(gguf.transformers, "__version__", "999.0")
    load_model(file)
    assert sorted(path.name for path in (cache / "gguf").iterdir())[-1] == "999.0"
    assert files_in(cache).count("model.safetensors") == 2


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_flipped_bit_in_the_cache_is_noticed_and_the_remedy_works(name, file, cache):
    load_model(file)
    (damaged,) = cache.rglob(name)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    folder = damaged.parent
    with pytest.raises(SourceError, match=rf"{name} is damaged: .*remove the folder {folder}, and the file will"):
        load_model(file)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    load_model(file)


def convert(file, cache):
    """Load a file in a process of its own, and say so if that converts it."""
    pooch.os_cache = lambda project: cache
    usual = gguf._convert

    def counted(*args):
        print("converts", flush=True)
        usual(*args)

    gguf._convert = counted
    print(load_model(file).num_parameters())


@pytest.mark.long
def test_of_two_at_once_one_converts_and_both_load(file, cache, tmp_path):
    said = [tmp_path / "said.0", tmp_path / "said.1"]
    codes = exit_codes([start(one, convert, file, cache) for one in said])
    replies = [one.read_text() for one in said]
    assert codes == [0, 0], replies
    assert [reply.split()[-1] for reply in replies] == [str(model_of().num_parameters())] * 2
    assert sum(reply.count("converts") for reply in replies) == 1


def convert_and_die(file, cache):
    PreTrainedTokenizerFast.save_pretrained = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    convert(file, cache)


@pytest.mark.long
def test_a_killed_conversion_locks_nothing_and_leaves_no_folder(file, cache, tmp_path):
    assert exit_codes([start(tmp_path / "said", convert_and_die, file, cache)]) == [-signal.SIGKILL]
    assert any(name.startswith("model") for name in files_in(cache))  # what it left aside
    load_model(file)
    assert files_in(cache).count("model.safetensors") == 1


# --- bad files: one line, nothing left


def cut(content):
    return content[: len(content) // 2]


BAD = {
    "empty": (lambda content: b"", "is no GGUF file: it begins with b''"),
    "safetensors": (lambda content: b"\x10\0\0\0\0\0\0\0{}", "is no GGUF file: it begins with"),
    "a header cut in two": (lambda content: content[:30], "is cut off, damaged or newer"),
    "tokens cut off": (lambda content: content[:2_000], "is cut off, damaged or newer"),
    "weights cut in two": (cut, "is cut off, damaged or newer"),
    "the last byte": (lambda content: content[:-40], "is cut off, damaged or newer"),
    "a version to come": (lambda content: b"GGUF\xff" + content[5:], "is cut off, damaged or newer"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_file_is_one_line_and_leaves_nothing(what, file, cache, refused):
    damage, message = BAD[what]
    file.write_bytes(damage(file.read_bytes()))
    refused(message, "measure", file)
    assert files_in(cache) == []


def test_an_unknown_architecture_is_named_in_one_line(file, cache, refused):
    write(file, model_of(), architecture="perceiver")
    said = refused("perceiver", "measure", file)
    assert re.search(r"cannot load file .*tiny\.gguf \(.*perceiver.* not supported", said)
    assert files_in(cache) == []


def test_a_part_of_a_split_file_says_so(file, cache, refused):
    """To download it again does not help."""
    write(file, model_of(), parts=2)
    assert "--merge" in refused("is one of 2 parts of a model", "measure", file)
    assert files_in(cache) == []


@pytest.mark.usefixtures("cache")
def test_positions_that_transformers_would_not_scale_are_refused(file):
    write(file, model_of(), scaling=RopeScalingType.LINEAR)
    with pytest.raises(SourceError, match=r"scales its positions \(RoPE\) by 'linear'"):
        load_model(file)
    write(file, model_of(), scaling=RopeScalingType.NONE)
    assert load_model(file).config.num_hidden_layers == 2


def test_a_weight_that_is_missing_or_left_out_is_refused(file, cache, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    write(file, model_of(), leave_out=["blk.1.ffn_up.weight"])
    with pytest.raises(SourceError, match=r"lacks 1 of the model's weights \(model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(file)
    assert not caplog.records  # transformers' own table of what it lacks
    whole = model_of().num_parameters()
    write(file, model_of(), extra=["rope_freqs.weight"])  # Llama 3's; transformers passes over it in silence
    with pytest.raises(SourceError, match=rf"holds {whole + 8:,} weights, but transformers .* of {whole:,} of it"):
        load_model(file)
    assert files_in(cache) == []


def test_a_file_that_is_not_there_and_a_folder_that_holds_one(file, tmp_path):
    with pytest.raises(SourceError, match=r"cannot read .*nothing\.gguf: No such file or directory"):
        load_model(tmp_path / "nothing.gguf")
    with pytest.raises(SourceError, match=rf"is no model folder: give the path of the GGUF file in it, {file}"):
        load_model(tmp_path)


@pytest.mark.usefixtures("cache")
def test_a_revision_and_gguf_do_not_go_together(file):
    with pytest.raises(InputError, match="has no revision 'main'"):
        load_model(file, revision="main")


def test_a_missing_reader_says_what_to_install(file, monkeypatch):
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="GGUF files need gguf and accelerate: pip install gguf accelerate"):
        load_model(file)


def test_a_full_disk_is_one_line_and_the_next_try_works(file, cache, capfd):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(SourceError, match=r"cannot write .*tiny: .*; is the disk full\?"):
            load_model(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files_in(cache) == []
    assert capfd.readouterr().err == ""  # no bar before the line
    load_model(file)


def test_a_cache_one_may_not_write_to_is_one_line(file, cache):
    cache.write_text("a file in the folder's place")
    with pytest.raises(SourceError, match="make it writable"):
        load_model(file)
