"""A model measured layer by layer has the numbers of the whole model, and goes on where it was ended."""

import json
import warnings
from weakref import WeakSet

import psutil
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import howlinear as hl
from helpers.every_family import tiny_of
from helpers.families import reads, small
from howlinear.core.moments import Moments
from howlinear.errors import InputError, SourceError
from howlinear.instrument import layerwise
from howlinear.models import shards
from howlinear.models.layerwise import Layerwise
from howlinear.models.load import load_on_disk

ROWS = 96
KNOWN = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "opt", "bert")


def saved(name, folder, **options):
    """A tiny model of a family in a folder, in one file or, with a size, in several."""
    small(name).save_pretrained(folder, **options)
    return str(folder)


def inputs(name):
    return reads(name, n=ROWS)


def assert_same(layerwise, plain, tolerance=1e-9):
    assert list(layerwise) == list(plain)
    for block, expected in plain.items():
        found = layerwise[block]
        assert found.r2 == pytest.approx(expected.r2, abs=tolerance)
        assert found.r2_low == pytest.approx(expected.r2_low, abs=tolerance)
        torch.testing.assert_close(found.map.weight, expected.map.weight, rtol=tolerance, atol=tolerance)
        ordinary, expected = layerwise.solved[block].ordinary, plain.solved[block].ordinary
        assert ordinary.r2 == pytest.approx(expected.r2, abs=tolerance)
    assert layerwise.perplexity == (plain.perplexity and pytest.approx(plain.perplexity, rel=tolerance))


@pytest.mark.parametrize("name", KNOWN)
def test_the_numbers_are_those_of_the_whole_model(name, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CHUNK", 512)  # so that weights are read in several parts
    folder = saved(name, tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    given = inputs(name)
    assert_same(hl.measure(folder, given, layerwise=True), hl.measure(folder, given, layerwise=False))


def test_padding_attention_and_chosen_blocks_are_as_in_the_whole_model(tmp_path):
    folder = saved("llama", tmp_path / "model")
    ids = inputs("llama")["input_ids"]
    lengths = torch.randint(3, ids.shape[1] + 1, (ROWS, 1), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(ids.shape[1]) < lengths).long()
    given = {"input_ids": ids, "attention_mask": mask}
    options = {"blocks": [1], "site": "attention", "batch_size": 5}
    assert_same(hl.measure(folder, given, **options, layerwise=True), hl.measure(folder, given, **options))


def test_half_precision_weights_are_widened_as_they_are_read(tmp_path):
    small("llama").bfloat16().save_pretrained(tmp_path)
    given = inputs("llama")
    assert_same(hl.measure(tmp_path, given, layerwise=True), hl.measure(tmp_path, given, layerwise=False))


def test_only_what_runs_is_in_memory(tmp_path):
    model = load_on_disk(saved("llama", tmp_path))
    text = Layerwise(model, [inputs("llama")])
    seen = []
    text.advance(lambda _: seen.append([parameter.is_meta for parameter in text.layers.parameters()]))
    per_layer = len(list(text.layers[0].parameters()))
    assert seen == [[False] * per_layer + [True] * per_layer]
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_of_the_embedding_and_of_a_head_that_takes_much_there_are_a_few_rows_at_a_time(name, tmp_path, monkeypatch):
    folder, given = saved(name, tmp_path), inputs(name)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pad_token_id"] = config["vocab_size"] - 1  # a row that no text may need
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = hl.measure(folder, given, layerwise=False)
    memory = psutil.virtual_memory()._replace(available=1_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(shards, "CHUNK", 2_048)
    whole = []
    read = shards.Shards.read
    monkeypatch.setattr(shards.Shards, "read", lambda self, *args: whole.append(args[0]) or read(self, *args))
    model = load_on_disk(folder)
    found = hl.measure(model, given, layerwise=True)
    assert_same(found, expected)
    large = [f"{name}.weight" for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)]
    words = next(name for name in large if "position" not in name and "wpe" not in name)
    assert whole
    assert not {words, "lm_head.weight", "embed_out.weight"} & set(whole)
    assert all(parameter.is_meta for parameter in model.parameters())


def end_at(layer, monkeypatch):
    """Let every measurement end as it comes to a layer; returns the layers that are begun."""
    begun = []
    advance = Layerwise.advance

    def interrupted(self, *args):
        begun.append(self.passed)
        if self.passed == layer:
            raise KeyboardInterrupt
        advance(self, *args)

    monkeypatch.setattr(Layerwise, "advance", interrupted)
    return begun


def test_an_ended_run_goes_on_at_its_layer_and_gives_the_same_bytes(tmp_path, monkeypatch):
    folder, given = saved("gpt2", tmp_path / "model"), inputs("gpt2")
    hl.measure(folder, given, layerwise=True).save(tmp_path / "straight.safetensors")
    with monkeypatch.context() as ended:
        begun = end_at(1, ended)
        with pytest.raises(KeyboardInterrupt):
            hl.measure(folder, given, work=tmp_path / "work")
        assert begun == [0, 1]
    begun = end_at(None, monkeypatch)
    hl.measure(folder, given, work=tmp_path / "work").save(tmp_path / "ended.safetensors")
    assert begun == [1]
    assert (tmp_path / "ended.safetensors").read_bytes() == (tmp_path / "straight.safetensors").read_bytes()


def test_work_on_something_else_is_left_alone(tmp_path):
    folder, given = saved("gpt2", tmp_path / "model"), inputs("gpt2")
    work = tmp_path / "work"
    hl.measure(folder, given, work=work)
    before = {file.name: file.read_bytes() for file in work.iterdir()}
    with pytest.raises(InputError, match="work"):
        hl.measure(saved("opt", tmp_path / "other"), inputs("opt"), work=work)
    with pytest.raises(InputError, match="batch_size"):
        hl.measure(folder, given, work=work, batch_size=5)
    with pytest.raises(InputError, match="holds no work"):
        hl.measure(folder, given, work=tmp_path / "model")
    assert {file.name: file.read_bytes() for file in work.iterdir()} == before


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_shard_is_told_before_anything_is_done(damage, tmp_path):
    folder = saved("gpt2", tmp_path / "model", max_shard_size="20KB")
    last = sorted((tmp_path / "model").glob("*.safetensors"))[-1]
    if damage == "missing":
        last.unlink()
    else:
        last.write_bytes(last.read_bytes()[:-8])
    with pytest.raises(SourceError):
        hl.measure(folder, inputs("gpt2"), work=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_weight_of_another_shape_is_told(tmp_path):
    folder = saved("gpt2", tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    name = "transformer.h.1.mlp.c_fc.bias"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SourceError, match="shape"):
        hl.measure(folder, inputs("gpt2"), layerwise=True)


def test_layers_that_cannot_be_called_one_by_one_are_measured_with_the_whole_model(tmp_path):
    folder, given = saved("xlm", tmp_path), inputs("xlm")  # its layers are no modules of their own
    with pytest.warns(UserWarning, match="not measured layer by layer"):
        found = hl.measure(folder, given, layerwise=True)
    assert_same(found, hl.measure(folder, given, layerwise=False))


def test_what_does_not_fit_is_measured_layer_by_layer_or_refused(tmp_path, monkeypatch):
    llama = saved("llama", tmp_path / "llama")
    xlm = saved("xlm", tmp_path / "xlm")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        expected = hl.measure(llama, inputs("llama"))
    memory = psutil.virtual_memory()._replace(available=10_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.warns(UserWarning, match="measured layer by layer"):
        assert_same(hl.measure(llama, inputs("llama")), expected)
    with pytest.warns(UserWarning, match="layer by layer"), pytest.raises(InputError, match="cannot be measured"):
        hl.measure(xlm, inputs("xlm"))


@pytest.mark.parametrize("site", ["ffn", "layer"])
def test_swaps_cost_what_they_cost_the_whole_model(site, tmp_path):
    folder = saved("llama", tmp_path)
    found = hl.measure(folder, inputs("llama"), swap=True, site=site, layerwise=True)
    expected = hl.measure(folder, inputs("llama"), swap=True, site=site, layerwise=False)
    assert list(found.costs) == [0, 1]
    for block, cost in expected.costs.items():
        assert found.costs[block].delta == pytest.approx(cost.delta, rel=1e-5)
        assert found.costs[block].low == pytest.approx(cost.low, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"tolerance": 0.01}, "layer by layer"),
        ({"tokens": True}, "layer by layer"),
        ({"moments": True}, "layer by layer"),
        ({"work": "work"}, "by name"),
    ],
)
def test_what_takes_all_blocks_together_and_work_on_a_model_without_a_name_are_refused(option, message):
    with pytest.raises(InputError, match=message):
        hl.measure(small("gpt2"), inputs("gpt2"), layerwise=True, **option)


def test_a_damaged_file_of_the_work_is_told(tmp_path):
    folder = saved("gpt2", tmp_path / "model")
    hl.measure(folder, inputs("gpt2"), work=tmp_path / "work")
    about = tmp_path / "work" / "work.json"
    whole = json.loads(about.read_text())
    about.write_text("{")
    with pytest.raises(SourceError, match=r"work\.json"):
        hl.measure(folder, inputs("gpt2"), work=tmp_path / "work")
    about.write_text(json.dumps(whole))
    (streams,) = (tmp_path / "work").glob("streams-*.safetensors")
    streams.write_bytes(streams.read_bytes()[:-8])
    with pytest.raises(SourceError, match="streams"):
        hl.measure(folder, inputs("gpt2"), work=tmp_path / "work")


def test_where_the_moments_of_a_block_do_not_fit_those_of_a_fold_do(monkeypatch):
    model, given = small("gpt2"), inputs("gpt2")
    expected = hl.measure(model, given)
    memory = psutil.virtual_memory()._replace(available=10_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    alive, most = WeakSet(), []
    update = Moments.update

    def counted(self, *rows):
        alive.add(self)
        most.append(len(alive))
        return update(self, *rows)

    monkeypatch.setattr(Moments, "update", counted)
    assert_same(hl.measure(model, given, layerwise=True), expected)
    assert max(most) < 8  # there are 16 folds on both sides, and outputs


def test_a_model_whose_buffers_are_computed_of_its_weights_is_read_whole(tmp_path):
    tiny_of("ibert").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="computed from weights"):
        load_on_disk(tmp_path)


def test_a_model_that_looks_for_its_embeddings_weights_is_read_whole(tmp_path):
    tiny_of("llama4_text").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="not measured layer by layer: it moves token ids"):
        found = hl.measure(tmp_path, inputs("llama"), layerwise=True)
    assert_same(found, hl.measure(tmp_path, inputs("llama"), layerwise=False))


def test_a_family_found_by_structure_goes_layer_by_layer(tmp_path):
    tiny_of("apertus").save_pretrained(tmp_path)
    assert_same(*(hl.measure(tmp_path, inputs("llama"), layerwise=way) for way in (True, False)))


@pytest.mark.parametrize("place", [(), ("text_config",)])
def test_quantised_weights_do_not_stay_in_their_files(place, tmp_path, monkeypatch):
    """Asked for it is refused; where there is no room, transformers loads them, which knows their scales."""
    folder = saved("llama" if not place else "gemma3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    inner = config
    for name in place:
        inner = inner[name]
    inner["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="quantization_config"):
        hl.measure(folder, inputs("llama"), layerwise=True)
    memory = psutil.virtual_memory()._replace(available=10_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    plain = small("llama")
    monkeypatch.setattr(layerwise, "load_model", lambda *_, **__: plain)
    with pytest.warns(UserWarning, match="not measured layer by layer"):
        assert layerwise.open_model(folder) is plain
