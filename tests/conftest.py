"""What the tests share: tiny random models, token ids, and rows with known answers.

Whatever takes long to import is imported within functions: of several processes of pytest, the one that deals out the
tests reads this file too, and runs none of them.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test waits for a network

import gc
import hashlib
import random
import shutil
import sys

import jaxtyping
import numpy as np
import pytest

import shape_checks  # noqa: F401 before the package

sys.modules["rfc3987_syntax"] = None  # jsonschema works without, and would compile its grammar for a second

FAMILIES = ("mini-gpt2", "mini-pythia", "mini-llama")
BLOCKS, WIDTH, VOCABULARY = 3, 32, 80


def tiny(name, seed=0, vocabulary=VOCABULARY):
    """A model of random weights, norms included, so that nothing is symmetric by initialisation."""
    import torch

    from howlinear.training.minis import new_model

    model = new_model(name, seed, blocks=BLOCKS, width=WIDTH, vocabulary=vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            else:
                parameter *= 4
    return model


def logits(model, ids):
    """What a language model predicts, without a graph."""
    import torch

    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def pytest_collection():
    """One thread, unless OMP_NUM_THREADS asks for more: several pytest processes share the cores.

    No garbage is looked for while all is imported: there is hardly any, and every search goes through all there is.
    """
    import torch

    gc.disable()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def pytest_collection_finish():
    """From here on searches for garbage pass over what was imported, which stays to the end."""
    gc.freeze()
    gc.enable()


def fingerprint(data):
    """What to compare of large files: where CI is set, pytest would spell out how their bytes differ, for hours."""
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}"


@pytest.fixture(autouse=True)
def seeded():
    """A net below every test: what draws without a generator draws the same on every run, in any order of tests.

    A test whose truth depends on what is drawn passes a generator of its own all the same.
    """
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 what the libraries draw from, if nobody gives them a generator
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, worker_id):
    """A folder that lasts as long as the run, the same for all processes of pytest that share the tests."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(params=FAMILIES)
def model(request):
    """One tiny model per family."""
    return tiny(request.param)


@pytest.fixture
def gpt2():
    return tiny("mini-gpt2")


@pytest.fixture
def ids():
    """Random token ids, shape (24, 32)."""
    import torch

    return torch.randint(VOCABULARY, (24, 32), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def rows(ids):
    """The ids in two sides of three folds."""
    from howlinear.text.rows import TokenRows

    return TokenRows.from_ids(ids, folds=3)


def byte_tokenizer():
    """One token per byte, and the end of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from howlinear.training.minis import END_OF_TEXT

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([END_OF_TEXT, *alphabet])}
    bpe = Tokenizer(models.BPE(vocabulary, []))
    bpe.add_special_tokens([END_OF_TEXT])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def project(tmp_path, tokenizer):
    """A folder with a model that reads bytes and a text of 400 documents."""
    tiny("mini-gpt2", vocabulary=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "mine.txt").write_text("\n\n".join(f"document {i} says {i * i} and {i % 7} " * 3 for i in range(400)))
    return tmp_path


@pytest.fixture
def howlinear(monkeypatch, capsys):
    """Runs the command; its exit code, standard output and standard error."""
    from howlinear.app import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["howlinear", *map(str, arguments)])
        capsys.readouterr()  # what fixtures said while they saved their models is not the command's
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


@pytest.fixture
def refused(howlinear):
    """Runs the command, which must end with exit code 2 and one line on standard error, which holds a message."""

    def run(message, *arguments):
        code, out, err = howlinear(*arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.strip().splitlines()) == 1
        return err

    return run


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where what is converted or unpacked is kept, each test's own."""
    import pooch

    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium that no host answers; without one the test is skipped."""
    from helpers.browser import Browser, must_have_chromium

    must_have_chromium()
    folder = tmp_path_factory.mktemp("chromium")
    with Browser(folder) as browser:
        yield browser
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def unchecked():
    """Shapes unchecked, as for users: the package's own errors are to speak."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
