"""A workshop in which a model is trained, on next to nothing."""

import pytest
import torch
from safetensors.torch import save_file

from howlinear.files import paths
from howlinear.text.corpus import Corpus
from howlinear.training import minis, twins


def texts(n=400):
    return [f"def function_{i}(x):\n    return x + {i} * function_{i // 2}(x)\n" * 3 for i in range(n)]


@pytest.fixture
def workshop(tmp_path, monkeypatch, tokenizer):
    """A stream, a tokenizer and corpora so small that a model of two blocks is trained in a second."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr(paths, "MODELS", tmp_path / "models")
    (tmp_path / "build" / "minis").mkdir(parents=True)
    tokenizer.save_pretrained(tmp_path / "build" / "minis" / "tokenizer")
    ids = torch.randint(len(tokenizer), (2, 1_000), generator=torch.Generator().manual_seed(0))
    save_file({"docs": ids[0], "code": ids[1]}, tmp_path / "build" / "minis" / "stream.safetensors")

    rows, new_model = Corpus.rows, minis.new_model

    def load_corpus(name, _):
        return Corpus(name, tokenizer, lambda seed: [name + text for text in texts()])

    def small_model(name, seed, *_):
        return new_model(name, seed, blocks=2, width=32, vocabulary=len(tokenizer))

    monkeypatch.setattr(Corpus, "rows", lambda self: rows(self, 1_024, 32, folds=2))
    for module in (minis, twins):
        monkeypatch.setattr(module, "load_corpus", load_corpus)
        monkeypatch.setattr(module, "new_model", small_model)
    return tmp_path
