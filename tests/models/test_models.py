import json
import shutil
from itertools import permutations
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import prune
from transformers.modeling_utils import local_torch_dtype

from conftest import BLOCKS, WIDTH, logits, tiny
from helpers.families import reads, small
from helpers.nearly import assert_same_outputs
from helpers.reference import random_map
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.instrument.measure import measure
from howlinear.models import load as models
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model, load_on_disk, tokenizer_of, untrained
from howlinear.models.replace import copy_of
from howlinear.models.swap import swap


class OddMap(NamedTuple):
    """A map whose parts do not fit, which `AffineMap` under shape checks would not let through."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x):
        return x


@pytest.fixture
def folder(gpt2, tmp_path):
    """A model saved to a folder."""
    gpt2.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


# --- load_model


def test_what_was_saved_in_half_precision_loads_as_float32(tmp_path):
    model = tiny("mini-llama").half()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert type(loaded) is type(model)
    assert not loaded.training
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], weight.float(), rtol=0, atol=0)


def test_a_model_in_memory_is_taken_as_it_is(gpt2):
    assert load_model(gpt2.train()) is gpt2
    assert not gpt2.training


def test_embedded_models_go_by_name(folder, monkeypatch):
    monkeypatch.setattr(paths, "MODELS", folder.parent)
    assert load_model("saved").name_or_path == str(folder)


def truncated(keep):
    return lambda folder: rewritten(folder / "model.safetensors", lambda content: content[:keep])


def rewritten(file, change):
    file.write_bytes(change(file.read_bytes()))


def configured(**changes):
    """Another number or word in the config."""
    return lambda folder: rewritten(
        folder / "config.json", lambda content: json.dumps(json.loads(content) | changes).encode()
    )


def without_a_block(folder):
    """transformers fills gaps with random numbers: a measurement of those would look like one of the model."""
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "h.1.mlp" not in k}, folder / "model.safetensors", {"format": "pt"})


def index_without_metadata(folder):
    shard = (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = {"weight_map": dict.fromkeys(load_file(shard), shard.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json; offline there are"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights: save the model as safetensors"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "model.fp16.safetensors"), "rename the weights"),
        *((truncated(keep), r"cannot load folder .*saved") for keep in (0, 4, 100, 5_000)),
        (lambda folder: (folder / "config.json").write_text("{"), r"cannot load folder .*saved .*is it whole"),
        (index_without_metadata, r"cannot load folder .*saved \(no 'metadata'\); is it whole"),
        (configured(model_type="no_such_type"), "no_such_type"),
        (configured(n_embd=2 * WIDTH), "of another model"),
        (without_a_block, "mlp"),
    ],
)
def test_a_damaged_folder_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(SourceError, match=message):
        load_model(folder)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("load", [load_model, load_on_disk])
def test_weights_do_not_depend_on_the_defaults_of_torch(folder, ids, load, fresh):
    """On the meta device there would be none, and float64 numbers would be drawn otherwise."""

    def measured():
        return measure(untrained(load(folder)) if fresh else load(folder), ids)

    expected = measured()
    with torch.device("meta"), local_torch_dtype(torch.float64):
        found = measured()
    assert [found[block].r2 for block in found] == [expected[block].r2 for block in expected]


def test_a_model_with_a_graph_left_on_a_module_is_copied(gpt2, ids):
    """Pruned weights, and what a hook remembered, are no leaves: a plain copy refuses them."""
    prune.l1_unstructured(gpt2.transformer.h[1].mlp.c_fc, "weight", amount=0.3)
    gpt2.transformer.h[0].mlp.register_forward_hook(lambda module, _, y: setattr(module, "seen", y))
    gpt2(input_ids=ids)
    expected = measure(gpt2, ids)[1].r2
    assert measure(copy_of(gpt2), ids)[1].r2 == expected


@pytest.mark.parametrize("name", ["no such model", "a/b/c", "../../elsewhere", "", "somebody/nothing"])
def test_a_name_of_nothing_is_refused_with_the_embedded_models(folder, tmp_path, monkeypatch, name):
    monkeypatch.setattr(paths, "MODELS", folder.parent)
    with pytest.raises(SourceError, match=r"(no model folder|no config\.json|no such folder .*Hub).* saved, or any"):
        load_model(name)
    monkeypatch.setattr(paths, "MODELS", tmp_path / "none")
    with pytest.raises(SourceError, match="make minis"):
        load_model(name)


def test_a_file_of_a_folder_is_answered_with_the_folder(folder):
    with pytest.raises(SourceError, match=f"give its folder, {folder}$"):
        load_model(folder / "model.safetensors")


def test_a_network_that_fails_is_no_traceback(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("We couldn't connect\nto the Hub")

    monkeypatch.setattr(models.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(SourceError, match=r"cannot load gpt9: no such folder here.*\(We couldn't connect\)"):
        load_model("gpt9")


# --- untrained


def test_an_untrained_twin_has_the_shape_but_not_the_weights(model, ids):
    twin = untrained(model)
    assert type(twin) is type(model)
    assert not twin.training
    assert twin.config.to_dict() == model.config.to_dict()
    mine, theirs = (
        {name: parameter for name, parameter in m.named_parameters() if parameter.ndim > 1} for m in (model, twin)
    )
    assert list(mine) == list(theirs)
    assert not any(torch.equal(mine[name], theirs[name]) for name in mine)
    assert not torch.equal(logits(twin, ids), logits(model, ids))


def test_an_untrained_twin_depends_on_its_seed_alone(gpt2):
    state = torch.get_rng_state()
    one, same, other = (untrained(gpt2, seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


# --- tokenizer_of


def test_the_tokenizer_of_a_relative_folder_is_found_from_elsewhere(folder, tokenizer, tmp_path, monkeypatch):
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(folder.parent)
    model = load_model(folder.name)
    assert model.name_or_path == folder.name
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tokenizer_of(model)("def f(x)")["input_ids"] == tokenizer("def f(x)")["input_ids"]


def test_a_model_made_in_memory_has_no_tokenizer(gpt2):
    with pytest.raises(SourceError, match="pass token ids"):
        tokenizer_of(gpt2)


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_tokenizer_or_that_went_away_is_refused(folder, there):
    model = load_model(folder)
    if not there:
        shutil.rmtree(folder)
    with pytest.raises(SourceError, match=r"cannot load .*saved"):
        tokenizer_of(model)


# --- sites


def test_blocks_are_chosen_once_and_in_order(gpt2):
    assert [site.block for site in sites(gpt2, [2, 0, 2])] == [0, 2]


@pytest.mark.parametrize(("blocks", "named"), [([BLOCKS], "3"), ([-1], "-1"), ([0, 99], "99"), ([], "empty list")])
def test_a_block_that_is_not_there_is_refused(gpt2, blocks, named):
    with pytest.raises(InputError, match=rf"no block .{named}. in a model of {BLOCKS} blocks, 0 to {BLOCKS - 1}"):
        sites(gpt2, blocks)


# --- swap


def test_an_affine_map_is_a_linear_layer(model, ids):
    affine = random_map(WIDTH)
    with swap(model, {1: affine}):
        swapped = logits(model, ids)
    with swap(model, {1: affine.__call__}):
        assert torch.allclose(logits(model, ids), swapped, atol=1e-4)
    linear = torch.nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        linear.weight.copy_(affine.weight.T)
        linear.bias.copy_(affine.bias)
    with swap(model, {1: linear}):
        assert_same_outputs(logits(model, ids), swapped)
    assert not torch.allclose(swapped, logits(model, ids), atol=0.1)


def test_only_the_chosen_block_is_replaced_and_no_random_number_is_drawn(model):
    before, state = sites(model), torch.get_rng_state()
    with swap(model, {1: random_map(WIDTH)}) as swapped:
        assert swapped is model
        now = sites(model)
        assert isinstance(now[1].output, torch.nn.Linear)
        assert not any(parameter.requires_grad for parameter in now[1].output.parameters())
        assert [now[0].output, now[2].output] == [before[0].output, before[2].output]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({2: random_map(WIDTH, 1)}, "stopped"),
        ({1: OddMap(torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH + 1))}, "size|shape"),
        *(({block: random_map(WIDTH)}, "no block") for block in (-1, BLOCKS)),
    ],
)
def test_blocks_come_back_after_an_exception_or_when_a_later_map_cannot_be_put_in(model, ids, maps, message):
    before = logits(model, ids)
    with pytest.raises((RuntimeError, ValueError), match=message), swap(model, {0: random_map(WIDTH)} | maps):
        raise RuntimeError("stopped")
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("name", ["llama", "opt"])  # a block, and a pair of layers
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_swaps_of_one_block_may_end_in_any_order(name, order):
    """What stands in the block's place is the latest swap that lasts, and at last the block itself."""
    model, ids = small(name), reads(name)["input_ids"]
    before, alone = logits(model, ids), []
    swaps = [swap(model, {1: random_map(16, seed)}) for seed in range(3)]
    for seed in range(3):
        with swap(model, {1: random_map(16, seed)}):
            alone.append(logits(model, ids))
    for each in swaps:
        each.__enter__()
    lasting = {0, 1, 2}
    for ended in order:
        assert torch.equal(logits(model, ids), alone[max(lasting)])
        swaps[ended].__exit__(None, None, None)
        lasting.remove(ended)
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("training", [True, False])
def test_a_block_follows_the_mode_that_its_model_is_put_in_while_it_is_away(gpt2, training):
    gpt2.train(not training)
    with swap(gpt2, {1: random_map(WIDTH)}):
        gpt2.train(training)
    assert {part.training for part in gpt2.modules()} == {training}


def test_swapping_nothing_changes_nothing(gpt2, ids):
    before = logits(gpt2, ids)
    with swap(gpt2, {}):
        assert torch.equal(logits(gpt2, ids), before)
