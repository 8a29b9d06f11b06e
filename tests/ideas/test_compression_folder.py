"""Folders of compressed models: what is replaced stays replaced, to the bit, and nothing is lost on the way."""

import json
from functools import partial

import pytest
import torch
from torch import nn

from conftest import BLOCKS, WIDTH, logits, tiny
from helpers import reference
from helpers.nearly import assert_same_outputs
from howlinear.core.reduced_rank import Reduced
from howlinear.errors import InputError, SourceError
from howlinear.ideas.compression import folder as compressed
from howlinear.ideas.compression.folder import compressed_card, save
from howlinear.ideas.compression.greedy import Plan
from howlinear.ideas.compression.output_folder import check_output_folder
from howlinear.instrument.perplexity import Change
from howlinear.models import load as models
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model, tokenizer_of, untrained
from howlinear.models.replace import replace, replaced
from howlinear.models.swap import swap
from howlinear.training.minis import FACTORY

RANK = 4


random_map = partial(reference.random_map, WIDTH, scale=0.2)


def pair(rank=RANK, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, WIDTH))


def smaller(model):
    """Block 1 as one layer, block 2 as two."""
    return replace(model, {1: random_map(), 2: pair()})


def same_bits(one, other):
    """Whether two models hold the same parameters under the same names."""
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def plan_of(delta, base, perplexity, speeds=(100.0, 110.0)):
    """What it costs to replace block 1."""
    return Plan({1: random_map()}, base=base, perplexity=perplexity, delta=Change(*delta), steps=[], speeds=speeds)


def test_a_plan_shows_itself_in_a_line():
    shown = repr(plan_of((1.5, 1.25, 1.75), base=40.0, perplexity=41.5))
    assert "40.00 → 41.50" in shown
    assert len(shown.splitlines()) == 1


@pytest.fixture
def folder(gpt2, tmp_path, tokenizer):
    """A compressed GPT-2, saved."""
    return save(smaller(gpt2), tmp_path / "small", "a card", tokenizer)


def edit_config(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


# --- replace


def test_replacing_computes_what_swapping_does(model, ids):
    thin = pair(seed=1)
    reduced = Reduced(thin[0].weight.T.double(), thin[1].weight.T.double(), thin[1].bias.double())
    maps = {0: reduced, 1: random_map(), 2: pair()}
    before = logits(model, ids)
    copied = replace(model, maps)
    with swap(model, maps):
        assert_same_outputs(logits(model, ids), logits(copied, ids))
    assert not torch.allclose(logits(copied, ids), before, atol=0.1)
    assert torch.equal(logits(model, ids), before)
    assert replaced(copied.config) == {0: RANK, 1: None, 2: RANK}


def test_the_copy_is_an_ordinary_model_that_shares_nothing(model):
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    copied = smaller(model)
    assert type(copied) is type(model)
    assert not copied.training
    assert all(parameter.requires_grad for parameter in copied.parameters())
    assert not {p.data_ptr() for p in copied.parameters()} & {p.data_ptr() for p in model.parameters()}
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert {name: torch.equal(p, before[name]) for name, p in model.named_parameters()} == dict.fromkeys(before, True)
    assert replaced(model.config) == {}
    assert replaced(copied.config) == {1: None, 2: RANK}


def test_maps_take_the_models_dtype(gpt2):
    copied = replace(gpt2.half(), {1: random_map(), 2: pair()})
    assert {parameter.dtype for parameter in copied.parameters()} == {torch.float16}


def test_a_frozen_map_can_be_trained_once_it_is_in_place(gpt2):
    frozen = pair().requires_grad_(False)
    assert all(p.requires_grad for p in sites(replace(gpt2, {0: frozen}))[0].output.parameters())
    assert not any(p.requires_grad for p in frozen.parameters())


def test_blocks_replaced_before_stay_and_may_be_replaced_again(gpt2, ids):
    once = smaller(gpt2)
    twice = replace(once, {0: random_map(1)})
    assert replaced(twice.config) == {0: None, 1: None, 2: RANK}
    at_once = replace(gpt2, {0: random_map(1), 1: random_map(), 2: pair()})
    assert same_bits(twice, at_once)
    assert_same_outputs(logits(twice, ids), logits(at_once, ids))
    again = replace(once, {2: random_map(2)})
    assert replaced(again.config) == {1: None, 2: None}
    assert replaced(once.config) == {1: None, 2: RANK}


def test_one_layer_given_for_two_blocks_becomes_two(gpt2, tmp_path, ids):
    layer = nn.Linear(WIDTH, WIDTH)
    copied = replace(gpt2, {0: layer, 1: layer})
    found = [site.output for site in sites(copied)]
    assert found[0] is not found[1]
    loaded = load_model(save(copied, tmp_path / "small", ""))
    assert same_bits(loaded, copied)
    assert_same_outputs(logits(loaded, ids), logits(copied, ids))


@pytest.mark.parametrize(
    "odd",
    [
        lambda x: x,
        nn.Identity(),
        nn.Linear(WIDTH, WIDTH, bias=False),
        nn.Linear(WIDTH, WIDTH + 1),
        nn.Sequential(),
        nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH), nn.ReLU()),
        nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)),
        nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)),
        nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Linear(5, WIDTH)),
    ],
    ids=lambda odd: getattr(odd, "__name__", str(odd)).replace("\n", "")[:40],
)
def test_what_is_no_linear_layer_is_refused_and_changes_nothing(gpt2, ids, odd):
    before = logits(gpt2, ids)
    with pytest.raises(
        InputError,
        match=r"block 1: this \w+ cannot be kept in a model folder; give an affine map|shape \(33, 32\) for blocks of",
    ):
        replace(gpt2, {1: odd})
    assert torch.equal(logits(gpt2, ids), before)


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({}, "empty list"),
        ({BLOCKS: random_map()}, rf"no block \[{BLOCKS}\]"),
        ({0: reference.random_map(WIDTH + 1)}, "for blocks of width 32: fit it on this model"),
    ],
)
def test_maps_of_nothing_of_no_such_block_and_of_another_width_are_refused(gpt2, maps, message):
    with pytest.raises(InputError, match=message):
        replace(gpt2, maps)


# --- save, load


@pytest.mark.parametrize("name", FACTORY)
def test_saved_and_loaded_it_is_the_same_to_the_bit(name, tmp_path, ids, tokenizer):
    copied = smaller(tiny(name))
    copied.generation_config.max_new_tokens = 7
    loaded = load_model(save(copied, tmp_path / "deep/small", "a card", tokenizer))
    assert type(loaded) is type(copied)
    assert not loaded.training
    assert same_bits(loaded, copied)
    assert_same_outputs(logits(loaded, ids), logits(copied, ids))
    one, other = (model(input_ids=ids, output_hidden_states=True).hidden_states for model in (loaded, copied))
    assert len(one) == BLOCKS + 1
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert replaced(loaded.config) == {1: None, 2: RANK}
    assert loaded.generation_config.max_new_tokens == 7
    assert {site.block: site.name for site in sites(loaded)} == {site.block: site.name for site in sites(copied)}
    assert tokenizer_of(loaded)("def f")["input_ids"] == tokenizer("def f")["input_ids"]
    tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert tied == (copied.get_output_embeddings().weight is copied.get_input_embeddings().weight)


def test_save_pretrained_carries_it_on_in_shards_too(model, tmp_path, ids):
    loaded = load_model(save(smaller(model), tmp_path / "small", ""))
    loaded.save_pretrained(tmp_path / "again", max_shard_size="30KB")
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 2
    again = load_model(tmp_path / "again")
    assert same_bits(again, loaded)
    assert_same_outputs(logits(again, ids), logits(loaded, ids))


def test_the_folder_holds_what_a_model_folder_holds(folder):
    assert set(contents(folder)) >= {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}
    assert (folder / "README.md").read_text() == "a card"
    noted = json.loads((folder / "config.json").read_text())
    assert noted["howlinear"] == {"replaced": {"1": None, "2": RANK}}
    assert noted["architectures"] == ["GPT2LMHeadModel"]
    assert [path.name for path in folder.parent.iterdir()] == ["small"]
    (folder.parent / "ordinary").mkdir()
    (folder.parent / "file").touch()
    assert folder.stat().st_mode == (folder.parent / "ordinary").stat().st_mode
    assert {path.stat().st_mode for path in folder.iterdir()} == {(folder.parent / "file").stat().st_mode}


def test_an_untrained_twin_of_a_compressed_model_is_compressed_too(model):
    copied = smaller(model)
    one, same, other = (untrained(copied, seed) for seed in (1, 1, 2))
    assert {name: p.shape for name, p in one.named_parameters()} == {n: p.shape for n, p in copied.named_parameters()}
    assert same_bits(one, same)
    assert type(one) is type(copied)
    layer = sites(one)[1].output
    assert not torch.equal(layer.weight, sites(other)[1].output.weight)
    assert layer.weight.std().item() == pytest.approx(copied.config.initializer_range, rel=0.15)
    assert not layer.bias.any()


# --- what does not load


def test_a_folder_without_its_entry_is_refused(folder):
    """The replaced blocks would be drawn at random."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name != "howlinear"}))
    with pytest.raises(SourceError, match="of another model"):
        load_model(folder)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"replaced": {"1": None, "2": 4, "40": None}}, rf"no block \[40\] in a model of {BLOCKS} blocks"),
        ({"replaced": {"1": None, "2": 5}}, "of another model"),
        ({"replaced": {"0": None, "1": None, "2": 4}}, r"lacks 2 of the model's weights \(transformer\.h\.0\.mlp"),
        ({"replaced": {"1": None, "2": 0}}, "gives ranks {2: 0}"),
        ({"replaced": {"1": True, "2": 4}}, "gives ranks {1: True}"),
        ({"replaced": {"1": None, "2": "four"}}, "gives ranks {2: 'four'}"),
        ({"replaced": {"one": None}}, r"names replaced blocks and their ranks, as in .* but holds"),
        ({"replaced": [1, 2]}, "but holds"),
        ({"replaced": {}, "units": {"1": 0}}, "gives numbers of hidden units {1: 0}"),
        ({"replaced": {}, "units": {"1": None}}, "gives numbers of hidden units {1: None}"),
        ({}, "but holds {}"),
        (3, "but holds 3"),
        (None, "but holds None"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, entry, message):
    edit_config(folder, howlinear=entry)
    with pytest.raises(SourceError, match=message):
        load_model(folder)


def test_a_family_that_cannot_be_compressed_is_refused(folder, monkeypatch):
    monkeypatch.setattr(models, "MODEL_FOR_CAUSAL_LM_MAPPING", {})  # as for a config that is no language model's
    assert type(load_model(folder)).__name__ in json.loads((folder / "config.json").read_text())["architectures"]
    expected = load_model(folder).base_model.state_dict()
    edit_config(folder, architectures=None)
    body = load_model(folder).state_dict()  # its maps and smaller blocks in their places
    assert body.keys() == expected.keys()
    assert all(torch.equal(body[name], weight) for name, weight in expected.items())
    monkeypatch.undo()
    edit_config(folder, model_type="mamba")
    with pytest.raises(SourceError, match="MambaForCausalLM, a 'mamba' model, cannot be measured"):
        load_model(folder)


# --- where it is written


def test_a_folder_that_exists_is_never_overwritten(folder, gpt2, tmp_path):
    before = contents(folder)
    with pytest.raises(SourceError, match=r"small exists: choose another folder, or add --force"):
        save(smaller(gpt2), folder, "another card")
    assert contents(folder) == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty exists"):
        check_output_folder(tmp_path / "empty")


def test_force_replaces_a_compressed_model_wholly(folder, gpt2, tmp_path, ids):
    (folder / "left over").write_text("")
    other = replace(gpt2, {0: random_map(5)})
    save(other, folder, "another card", force=True)
    expected = {"config.json", "generation_config.json", "model.safetensors", "README.md", "SHA256SUMS"}
    assert set(contents(folder)) == expected
    assert same_bits(load_model(folder), other)
    assert_same_outputs(logits(load_model(folder), ids), logits(other, ids))
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_force_replaces_an_empty_folder_and_follows_a_link(gpt2, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    save(smaller(gpt2), tmp_path / "link", "a card", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty/README.md").read_text() == "a card"


def test_force_leaves_alone_what_is_no_compressed_model(gpt2, tmp_path):
    gpt2.save_pretrained(tmp_path / "whole")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/config.json").write_text('{"model_type": "gpt2", "howlinear": 3}')
    for name in ("whole", "mine", "damaged"):
        before = contents(tmp_path / name)
        with pytest.raises(SourceError, match=f"{name} holds no compressed model, so --force leaves it alone"):
            save(smaller(gpt2), tmp_path / name, "", force=True)
        assert contents(tmp_path / name) == before


@pytest.mark.parametrize("name", ["a file", "a file/small"])
def test_a_file_in_the_way_is_refused(gpt2, tmp_path, name):
    (tmp_path / "a file").write_text("mine")
    with pytest.raises(SourceError, match=r"cannot write .*a file is a file; choose another folder"):
        save(smaller(gpt2), tmp_path / name, "", force=True)
    assert (tmp_path / "a file").read_text() == "mine"


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("force", [False, True])
def test_a_write_that_fails_leaves_what_was_there(gpt2, tmp_path, monkeypatch, tokenizer, stop, force):
    target = tmp_path / "small"
    if force:
        save(smaller(gpt2), target, "the first")
    before = contents(target) if force else None

    def fail(folder):
        raise stop

    monkeypatch.setattr(tokenizer, "save_pretrained", fail)
    with pytest.raises((SourceError, KeyboardInterrupt), match=r"No space left on device|^$"):
        save(smaller(gpt2), target, "the second", tokenizer, force)
    assert (contents(target) if target.exists() else None) == before
    assert [path.name for path in tmp_path.iterdir()] == (["small"] if force else [])


def test_a_rename_that_fails_puts_the_old_folder_back(folder, gpt2, monkeypatch):
    before, rename = contents(folder), compressed.Path.rename

    def fail(path, target):
        if path.name == "new":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(compressed.Path, "rename", fail)
    with pytest.raises(SourceError, match=r"cannot write .*small: Input/output error; is the disk full\?"):
        save(smaller(gpt2), folder, "another", force=True)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


# --- the card


def test_the_card_says_what_was_replaced_and_what_it_cost(gpt2, rows):
    first = replace(gpt2, {2: pair()})
    second = replace(first, {1: random_map()})
    plan = plan_of((0.727, 0.5, 0.954), 39.874, 40.601, (1834.2, 2210.7))
    card = " ".join(compressed_card("mini-gpt2", first, second, rows, plan).split())  # padded and wrapped
    ffn = sum(parameter.numel() for parameter in sites(gpt2)[0].output.parameters())
    one, two = WIDTH * WIDTH + WIDTH, 2 * WIDTH * RANK + WIDTH
    for line in (
        f"| parameters | {first.num_parameters():,} | {second.num_parameters():,} |",
        f"| of these in feed-forward blocks | {2 * ffn + two:,} | {ffn + two + one:,} |",
        "| perplexity on held-out `token ids` | 39.87 | 40.60 |",
        f"| tokens per second on it (threads: {torch.get_num_threads()}) | 1,834 | 2,211 |",
        "+0.73 (95 % interval +0.50 to +0.95",
        rows.sha256,
        "| 1 | one linear layer |",
        f"| 2 | two linear layers, {RANK} wide between, replaced before |",
    ):
        assert line in card


@pytest.mark.parametrize(
    ("source", "front"), [("openai-community/gpt2", "base_model: openai-community/gpt2\n---"), ("", "howlinear\n---")]
)
def test_only_a_hub_id_is_named_as_base_and_no_path_is_told(gpt2, rows, tmp_path, source, front):
    gpt2.name_or_path = source or str(tmp_path)
    card = compressed_card(source or str(tmp_path), gpt2, smaller(gpt2), rows, plan_of((1.0, 0.5, 1.5), 2.0, 3.0))
    assert card.startswith("---\ntags: [howlinear]\nlibrary_name: howlinear\n" + (front if source else "---"))
    assert str(tmp_path) not in card
    assert f"# {source or tmp_path.name}, compressed" in card


def test_a_model_saved_from_python_has_a_card_and_its_tokenizer(folder, tmp_path, capfd):
    again = save(load_model(folder), tmp_path / "again")
    card = (again / "README.md").read_text(encoding="utf-8")
    assert "| 1 | one linear layer |" in " ".join(card.split())
    ids = tokenizer_of(load_model(folder))("a b")["input_ids"]
    assert tokenizer_of(load_model(again))("a b")["input_ids"] == ids
    assert capfd.readouterr().err == ""  # no bar


def test_a_model_of_token_ids_alone_is_saved_without_a_tokenizer(gpt2, tmp_path):
    saved = save(smaller(gpt2), tmp_path / "small")
    assert not [path for path in saved.iterdir() if path.name.startswith("tokenizer")]
    assert (saved / "README.md").read_text(encoding="utf-8").startswith("---\ntags: [howlinear]\n")
