"""A model whose weights stay in their files is compressed layer by layer: the same copy, bit for bit."""

import gc
import pkgutil

import pytest
import torch

import howlinear as hl
from helpers.families import VOCABULARY, small
from howlinear.errors import InputError, SourceError
from howlinear.ideas.compression import greedy
from howlinear.models import disk_copy
from howlinear.models.layerwise import Layerwise
from howlinear.models.load import load_on_disk, untrained
from howlinear.models.replace import units_left

TEXT = torch.randint(VOCABULARY, (96, 32), generator=torch.Generator().manual_seed(0))


def saved(name, folder, **options):
    small(name).save_pretrained(folder, **options)
    return str(folder)


def assert_same(found, expected, folder):
    """Two compressions, and the folders of both once they are saved."""
    assert found.units == expected.units
    for name in ("base", "perplexity", "delta", "price", "next_price"):
        assert getattr(found, name) == getattr(expected, name), name
    hl.save(found.model, folder / "found")
    hl.save(expected.model, folder / "expected")
    for file in ("config.json", "generation_config.json"):
        assert (folder / "found" / file).read_text() == (folder / "expected" / file).read_text()
    again, plain = (hl.load_model(folder / name).state_dict() for name in ("found", "expected"))
    assert again.keys() == plain.keys()
    assert all(torch.equal(again[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                "opt",
                "gpt_neo",
                "falcon",
                "gpt_neox",
                "gptj",
                "gemma2",
                "gemma3_text",
                "olmo2",
                "qwen3",
                "stablelm",
            )
        ),
    ],
)
def test_the_copy_is_that_of_the_whole_model(name, tmp_path):
    folder = saved(name, tmp_path, max_shard_size="20KB")
    found, expected = (hl.compress(folder, TEXT, 0.9, layerwise=layerwise) for layerwise in (True, False))
    assert len(set(found.units.values())) > 1
    assert_same(found, expected, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"max_parameters": 0.9, "alike": True},
        {"max_parameters": 0.95, "blocks": [1]},
        {"max_dppl": 0.3, "batch_size": 5},
        {"max_parameters": 0.9, "multiple": 8},
    ],
)
def test_every_way_to_ask_is_answered_alike(options, tmp_path):
    folder = saved("llama", tmp_path)
    assert_same(*(hl.compress(folder, TEXT, **options, layerwise=way) for way in (True, False)), tmp_path)


@pytest.mark.long
def test_a_smaller_copy_is_compressed_and_measured_on(tmp_path):
    folder = saved("gpt2", tmp_path)
    first = hl.compress(folder, TEXT, 0.9, layerwise=True)
    hl.save(first.model, tmp_path / "first")
    again, plain = (hl.compress(tmp_path / "first", TEXT, 0.8, layerwise=way) for way in (True, False))
    assert_same(again, plain, tmp_path)
    assert units_left(again.model.config) == again.units
    assert hl.perplexity(again.model, TEXT) == hl.perplexity(hl.load_model(tmp_path / "found"), TEXT)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "falcon", "opt"])
def test_blocks_are_replaced_by_maps_as_in_the_whole_model(name, tmp_path):
    source = saved(name, tmp_path / "model")
    found = hl.compress_to(source, TEXT, 1e3, layerwise=True, candidates=2)
    expected = hl.compress_to(source, TEXT, 1e3, candidates=2)
    assert found.steps == expected.steps
    assert len(found.steps) > 1  # so that maps were refitted
    assert (found.base, found.perplexity) == (expected.base, expected.perplexity)
    smaller = {
        "found": hl.replace(load_on_disk(source), found.maps),
        "expected": hl.replace(hl.load_model(source), expected.maps),
    }
    assert all(parameter.is_meta for parameter in smaller["found"].parameters())
    for kind, model in smaller.items():
        hl.save(model, tmp_path / kind)
    again, plain = (hl.load_model(tmp_path / kind) for kind in smaller)
    assert again.config.howlinear == plain.config.howlinear
    assert all(torch.equal(weight, plain.state_dict()[name]) for name, weight in again.state_dict().items())
    assert hl.perplexity(again, TEXT) == pytest.approx(hl.perplexity(smaller["found"], TEXT), rel=1e-6)


def test_there_is_one_layer_of_weights_at_a_time(tmp_path, monkeypatch):
    model = load_on_disk(saved("llama", tmp_path))
    most = []
    run = Layerwise.layer

    def watched(self):
        there = [name for name, weight in self.model.named_parameters() if not weight.is_meta]
        most.append(there)
        return run(self)

    monkeypatch.setattr(Layerwise, "layer", watched)
    found = hl.compress(model, TEXT, 0.9)
    assert most
    # advance() asks for a layer within which all is done: it is the same one
    assert all(len({name.split(".")[2] for name in there if ".layers." in name}) <= 1 for there in most)
    assert all(parameter.is_meta for parameter in (*model.parameters(), *found.model.parameters()))


def test_the_files_of_a_copy_go_with_it(tmp_path, monkeypatch):
    folders = []
    opened = disk_copy.load_on_disk
    monkeypatch.setattr(disk_copy, "load_on_disk", lambda name, *_, **__: folders.append(name) or opened(name))
    found = hl.compress(saved("gpt2", tmp_path), TEXT, 0.9, layerwise=True)
    (folder,) = (type(tmp_path)(name) for name in folders)
    assert any(folder.glob("*.safetensors"))
    del found
    gc.collect()
    assert not folder.exists()


COMPRESSION = "howlinear.ideas.compression"
STEPS = {  # of a compression, in their order → what is called once a layer, or once
    "costs": f"{COMPRESSION}.allocate.position_weights",
    "eliminations": f"{COMPRESSION}.allocate.eliminate",
    "prices": f"{COMPRESSION}.allocate.divergences",
    "anchor": f"{COMPRESSION}.own_units.fit_correction",
}


def counted(step, monkeypatch, end_at=None):
    """Count how often a step is made; one of them may be where the run ends."""
    begun = []
    make = pkgutil.resolve_name(STEPS[step])

    def interrupted(*args, **named):
        begun.append(step)
        if len(begun) == end_at:
            raise KeyboardInterrupt
        return make(*args, **named)

    monkeypatch.setattr(STEPS[step], interrupted)
    return begun


@pytest.mark.parametrize(
    ("step", "end_at", "left", "layers"),
    [  # the losses of the whole model pass both layers, and then the step goes on
        pytest.param("costs", 2, 2, [0, 1, 0], marks=pytest.mark.long),
        pytest.param("eliminations", 2, 1, [0, 1, 1], marks=pytest.mark.long),
        pytest.param("prices", 1, 1, [0, 1, 0], marks=pytest.mark.long),
        ("anchor", 2, 1, [0, 1, 1]),
    ],
)
def test_an_ended_run_goes_on_where_it_was_and_gives_the_same_copy(step, end_at, left, layers, tmp_path, monkeypatch):
    folder = saved("llama", tmp_path / "model")
    expected = hl.compress(folder, TEXT, 0.9, layerwise=False)
    with monkeypatch.context() as ended:
        counted(step, ended, end_at)
        with pytest.raises(KeyboardInterrupt):
            hl.compress(folder, TEXT, 0.9, work=tmp_path / "work")
    made = {each: counted(each, monkeypatch) for each in STEPS}
    begun = []
    layer = Layerwise.layer
    monkeypatch.setattr(Layerwise, "layer", lambda text: begun.append(text.passed) or layer(text))
    found = hl.compress(folder, TEXT, 0.9, work=tmp_path / "work")
    assert len(made[step]) == left
    assert not any(made[each] for each in list(STEPS)[: list(STEPS).index(step)])
    assert begun[:3] == layers
    assert_same(found, expected, tmp_path)


def test_another_budget_begins_with_the_prices_that_are_there_and_other_work_is_refused(tmp_path, monkeypatch):
    folder, work = saved("llama", tmp_path / "model"), tmp_path / "work"
    hl.compress(folder, TEXT, 0.9, work=work)
    expected = hl.compress(folder, TEXT, 0.8, layerwise=False)
    made = counted("eliminations", monkeypatch)
    assert_same(hl.compress(folder, TEXT, 0.8, work=work), expected, tmp_path)
    assert not made
    for other in ({"batch_size": 5}, {"blocks": [0]}, {"multiple": 8}):
        with pytest.raises(InputError, match="something else"):
            hl.compress(folder, TEXT, 0.9, work=work, **other)
    with pytest.raises(InputError, match="something else"):
        hl.measure(folder, TEXT, work=work)


@pytest.mark.parametrize("end_at", [4, 6])
def test_an_ended_search_for_maps_goes_on_where_it_was_and_another_budget_takes_what_is_there(
    end_at, tmp_path, monkeypatch
):
    folder, work = saved("llama", tmp_path / "model"), tmp_path / "work"
    expected = hl.compress_to(folder, TEXT, 1e3, candidates=2)
    passed, ended = [], []
    losses = greedy.losses

    def counted(*args):
        passed.append(args)
        if len(passed) == end_at and not ended:
            raise KeyboardInterrupt
        return losses(*args)

    monkeypatch.setattr(greedy, "losses", counted)
    with pytest.raises(KeyboardInterrupt):
        hl.compress_to(folder, TEXT, 1e3, candidates=2, work=work)
    ended.append(True)
    found = hl.compress_to(folder, TEXT, 1e3, candidates=2, work=work)
    # none replaced, either of two, the other as well, both with their maps alone and refitted; and the one that ended
    assert len(passed) == 1 + 2 + 1 + 2 + 1
    assert found.steps == expected.steps
    assert found.maps == expected.maps
    assert found.delta == expected.delta
    with pytest.raises(InputError, match="no block can be replaced"):
        hl.compress_to(folder, TEXT, -1e3, candidates=2, work=work)
    assert len(passed) == 7
    for other in ({"candidates": 1}, {"batch_size": 5}, {"blocks": [0]}):
        with pytest.raises(InputError, match="something else"):
            hl.compress_to(folder, TEXT, 1e3, work=work, **{"candidates": 2} | other)
    with pytest.raises(InputError, match="something else"):
        hl.compress(folder, TEXT, 0.9, work=work)


def test_what_cannot_be_had_layer_by_layer_is_refused(tmp_path):
    saved("gpt2", tmp_path)
    for given in ({"layerwise": True}, {"work": tmp_path / "work"}):
        with pytest.raises(InputError, match="by name"):
            hl.compress(small("gpt2"), TEXT, 0.9, **given)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SourceError, match="cannot load"):
        hl.compress(tmp_path, TEXT, 0.9, layerwise=True)


def test_a_disk_that_fills_is_one_line(tmp_path, monkeypatch):
    folder = saved("gpt2", tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for place in ("models.work", "ideas.compression.calibration", "models.shards"):
        with monkeypatch.context() as patch:
            patch.setattr(f"howlinear.{place}.save_file", full)
            with pytest.raises(SourceError, match="No space left"):
                hl.compress(folder, TEXT, 0.9, layerwise=True)


@pytest.mark.parametrize(
    "ask", [lambda model, ids: hl.capture(model, ids), lambda model, ids: hl.token_errors(model, ids)]
)
def test_what_takes_all_weights_at_once_refuses_a_model_that_has_them_in_files(ask, tmp_path):
    model = load_on_disk(saved("llama", tmp_path))
    with pytest.raises(InputError, match="load it whole"):
        ask(model, TEXT)


def test_a_model_on_disk_is_saved_as_it_lies_there_and_never_once_it_is_changed(tmp_path):
    model = load_on_disk(saved("gpt2", tmp_path / "model"))
    hl.save(model, tmp_path / "copy")
    before, after = (hl.load_model(tmp_path / name).state_dict() for name in ("model", "copy"))
    assert all(torch.equal(after[name], before[name]) for name in before)
    fresh = untrained(model)
    model.transformer.ln_f = torch.nn.LayerNorm(16)
    for other in (model, fresh):  # weights that no file holds
        with pytest.raises(InputError, match="load it whole"):
            hl.save(other, tmp_path / "changed")
        assert not (tmp_path / "changed").exists()
