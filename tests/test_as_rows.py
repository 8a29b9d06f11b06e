"""Whatever a person brings, each public function takes it, or says in one line what came and what to give.

Tables: every kind of text and of token ids, good and bad, × the two functions that read them, and every function
that runs a model × some of the kinds, and all kinds of models.
"""

import copy
import dataclasses
import io
import os
import re
import sys
from collections import deque
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from transformers import BatchEncoding

import howlinear as hl
from conftest import byte_tokenizer, tiny
from howlinear.errors import HowlinearError, InputError
from howlinear.instrument.as_rows import rows_of
from howlinear.instrument.perplexity import scored_of
from howlinear.text.gathered import gathered
from howlinear.training.minis import new_model

LENGTH, VOCABULARY = 16, 257
READING = (rows_of, scored_of)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model that names a folder with its tokenizer, one token per byte."""
    folder = str(tmp_path_factory.mktemp("model"))
    byte_tokenizer().save_pretrained(folder)
    made = new_model("mini-gpt2", 0, blocks=2, width=32, vocabulary=VOCABULARY)
    made.config.name_or_path = made.name_or_path = folder
    for part in made.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
    return made.eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def maps(model, ids):
    return {0: hl.measure(model, ids)[0].map}


class Unending(IterableDataset):
    """A data set of torch that is read from its beginning, and has no length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Endless(Dataset):
    """A data set of torch that has items, and no length."""

    def __init__(self, items):
        self.items = items

    def __getitem__(self, place):
        return self.items[place % len(self.items)]


def unpadded(ids, mask):
    """The sequences as lists of different lengths."""
    return [row[places].tolist() for row, places in zip(ids, mask.bool(), strict=True)]


def lines(count=130):
    """Documents of eight words each."""
    random = np.random.default_rng(0)
    words = ["stone", "river", "table", "green", "seven", "light", "where", "under", "about", "glass"]
    return [" ".join(random.choice(words, 8)) + f" {number}." for number in range(count)]


FUNCTIONS = {
    "measure": lambda model, text, maps: hl.measure(model, text, rows=8192, seq_len=LENGTH),
    "capture": lambda model, text, maps: hl.capture(model, text),
    "perplexity": lambda model, text, maps: hl.perplexity(model, text),
    "losses": lambda model, text, maps: hl.losses(model, text),
    "swap_costs": lambda model, text, maps: hl.swap_costs(model, maps, text),
    "token_errors": lambda model, text, maps: hl.token_errors(model, maps, text),
    "compress": lambda model, text, maps: hl.compress(model, text, max_parameters=0.999),
    "compress_to": lambda model, text, maps: hl.compress_to(model, text, max_dppl=1e6, candidates=1),
}

IDS = {  # all of the same token ids
    "int64": lambda ids: ids,
    "int32": lambda ids: ids.int(),
    "numpy": lambda ids: ids.numpy(),
    "numpy uint16": lambda ids: ids.numpy().astype(np.uint16),
    "lists": lambda ids: ids.tolist(),
    "no mask": lambda ids: {"input_ids": ids, "attention_mask": None},
    "sparse": lambda ids: ids.to_sparse(),
    "unsigned": lambda ids: ids.numpy().astype(np.uint64),
    "batch": lambda ids: {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
    "batch of lists": lambda ids: {"input_ids": ids.tolist()},
    "loader of ids": lambda ids: DataLoader(ids, batch_size=16),
    "loader of batches": lambda ids: DataLoader([{"input_ids": row} for row in ids], batch_size=16),
    "loader of lists": lambda ids: DataLoader(ids.tolist(), batch_size=7),
    "loader of lists by keyword": lambda ids: DataLoader([{"input_ids": row} for row in ids.tolist()], batch_size=7),
    "loader of lists and labels": lambda ids: DataLoader([(row, 1) for row in ids.tolist()], batch_size=7),
    "loader of a data set": lambda ids: DataLoader(datasets.Dataset.from_dict({"input_ids": ids.tolist()}), 10),
    "loader of one at a time": lambda ids: DataLoader([{"input_ids": row} for row in ids.tolist()]),
    "loader of unbatched lists": lambda ids: DataLoader(ids.tolist(), batch_size=None),
    "stream of torch": lambda ids: Unending(ids),
    "loader of a stream": lambda ids: DataLoader(Unending(ids), batch_size=16),
    "column of pandas": lambda ids: pd.Series(ids.tolist()),
    "table of pandas": lambda ids: pd.DataFrame(ids.numpy()),
    "column of Arrow": lambda ids: pa.array(ids.tolist()),
    "table of Arrow": lambda ids: pa.table({"input_ids": ids.tolist()}),
    "column of ids": lambda ids: datasets.Dataset.from_dict({"ids": ids.tolist()})["ids"],
    "deque of batches": lambda ids: deque({"input_ids": few} for few in ids.split(16)),
    "big-endian": lambda ids: ids.numpy().astype(">u2"),
    "big-endian by keyword": lambda ids: {"input_ids": ids.numpy().astype(">i8")},
    "a view backwards": lambda ids: ids.flip(0).numpy()[::-1],
    "columns backwards": lambda ids: ids.flip(1).numpy()[:, ::-1],
    "stream of known columns": lambda ids: datasets.Dataset.from_dict(
        {"input_ids": ids.tolist()}
    ).to_iterable_dataset(),
    "unknown columns": lambda ids: datasets.IterableDataset.from_generator(
        lambda: ({"input_ids": row} for row in ids.tolist())
    ),
}

MASKED = {  # all of the same padded sequences
    "batch": lambda ids, mask: {"input_ids": ids, "attention_mask": mask},
    "batch with labels": lambda ids, mask: {"input_ids": ids, "attention_mask": mask, "labels": ids},
    "small integers": lambda ids, mask: {"input_ids": ids.short(), "attention_mask": mask.to(torch.int8)},
    "boolean mask": lambda ids, mask: {"input_ids": ids.numpy(), "attention_mask": mask.bool().tolist()},
    "float mask": lambda ids, mask: {"input_ids": ids, "attention_mask": mask.float()},
    "tokenised frame": lambda ids, mask: pd.DataFrame({"input_ids": unpadded(ids, mask), "label": 0}),
    "generator": lambda ids, mask: (
        {"input_ids": few, "attention_mask": places} for few, places in zip(ids.split(10), mask.split(10), strict=True)
    ),
    "examples": lambda ids, mask: [{"input_ids": row} for row in unpadded(ids, mask)],
    "lists of different lengths": lambda ids, mask: unpadded(ids, mask),
    "column of different lengths": lambda ids, mask: pd.Series(unpadded(ids, mask)),
    "Arrow column of different lengths": lambda ids, mask: pa.array(unpadded(ids, mask)),
    "loader of lists of different lengths": lambda ids, mask: DataLoader(unpadded(ids, mask), batch_size=10),
    "lists of different lengths, no mask": lambda ids, mask: {"input_ids": unpadded(ids, mask), "attention_mask": None},
    "tensors of different lengths": lambda ids, mask: [*map(torch.tensor, unpadded(ids, mask))],
    "arrays of different lengths": lambda ids, mask: tuple(map(np.array, unpadded(ids, mask))),
    "what a tokenizer returns": lambda ids, mask: BatchEncoding(
        {"input_ids": unpadded(ids, mask), "attention_mask": unpadded(mask, mask)}
    ),
    "batches of a tokenised data set": lambda ids, mask: datasets.Dataset.from_dict(
        {"input_ids": unpadded(ids, mask), "attention_mask": unpadded(mask, mask)}
    ).iter(10),
    "tokenised data set": lambda ids, mask: datasets.Dataset.from_dict({"input_ids": unpadded(ids, mask)}),
    "pairs": lambda ids, mask: DataLoader(TensorDataset(ids, mask), batch_size=10),
    "torch data set": lambda ids, mask: TensorDataset(ids, mask),
    "pairs of lists": lambda ids, mask: DataLoader(list(zip(ids.tolist(), mask.tolist(), strict=True)), batch_size=10),
    "lists by keyword": lambda ids, mask: DataLoader(
        [{"input_ids": row, "attention_mask": places} for row, places in zip(ids.tolist(), mask.tolist(), strict=True)],
        batch_size=10,
    ),
    "pair": lambda ids, mask: (ids, mask),
    "list of ids, mask and labels": lambda ids, mask: [ids.numpy(), mask.numpy(), ids.numpy()],
    "generator of pairs": lambda ids, mask: zip(ids, mask, strict=True),
    "list of pairs": lambda ids, mask: list(TensorDataset(ids, mask)),
    "list of a loader's pairs": lambda ids, mask: list(DataLoader(TensorDataset(ids, mask), batch_size=10)),
}

TEXTS = {
    "strings": lambda folder: lines(),
    "generator of strings": lambda folder: (line for line in lines()),
    "data frame": lambda folder: pd.DataFrame({"text": lines()}),
    "path as text": lambda folder: str(written(folder / "mine.md")),
    "path": lambda folder: written(folder / "mine.txt"),
    "data set": lambda folder: datasets.Dataset.from_dict({"text": lines()}),
    "tuple of strings": lambda folder: tuple(lines()),
    "array of strings": lambda folder: np.array(lines()),
    "column": lambda folder: pd.Series(lines()),
    "rows of a data set": lambda folder: datasets.Dataset.from_dict({"text": lines()})[:],
    "frame with gaps": lambda folder: pd.DataFrame({"text": pd.array([None, *lines()], dtype="string")}),
    "column with gaps": lambda folder: pd.Series([None, *lines(), float("nan")], dtype=object),
    "column of a data set": lambda folder: datasets.Dataset.from_dict({"text": lines()})["text"],
    "rows": lambda folder: [{"text": line, "label": 0} for line in lines()],
    "table of Arrow": lambda folder: pa.table({"text": [None, *lines()], "n": range(131)}),
    "batch of Arrow": lambda folder: pa.RecordBatch.from_pydict({"text": lines()}),
    "column of Arrow": lambda folder: pa.chunked_array([lines()]),
    "rows with gaps": lambda folder: datasets.Dataset.from_dict({"text": [None, *lines()]})[:],
    "array by keyword": lambda folder: {"text": np.array(lines())},
    "column by keyword": lambda folder: {"text": pd.Series(lines())},
    "array with gaps": lambda folder: np.array([None, *lines()], dtype=object),
    "set": lambda folder: set(lines()),
    "deque": lambda folder: deque(lines()),
    "values": lambda folder: dict(enumerate(lines())).values(),
    "loader of strings": lambda folder: DataLoader(lines(), batch_size=16),
    "loader of rows": lambda folder: DataLoader(datasets.Dataset.from_dict({"text": lines()}), batch_size=16),
    "stream of strings": lambda folder: Unending(lines()),
}

BAD = {
    "nothing": lambda ids: None,
    "a number": lambda ids: 3,
    "no such text": lambda ids: "no/such/text.txt",
    "an unknown name": lambda ids: "wikitext-2-raw",
    "one sequence": lambda ids: ids[0],
    "no sequences": lambda ids: ids[:0],
    "floats": lambda ids: ids.float(),
    "ragged lists of more axes": lambda ids: [[[1, 2]], [[3]]],
    "a sequence of no tokens": lambda ids: [[1, 2], []],
    "ragged lists of words": lambda ids: [["one", "two"], ["three"]],
    "ragged lists and fewer masks": lambda ids: {"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1]]},
    "ragged lists and a switch": lambda ids: {"input_ids": [[1, 2], [3]], "use_cache": False},
    "padding on the left": lambda ids: {"input_ids": ids, "attention_mask": (torch.arange(LENGTH) > 3).expand_as(ids)},
    "a mask of another shape": lambda ids: {"input_ids": ids, "attention_mask": torch.ones(3, 4)},
    "a mask with NaN": lambda ids: {"input_ids": ids, "attention_mask": torch.full(ids.shape, torch.nan)},
    "a mask of twos": lambda ids: {"input_ids": ids, "attention_mask": torch.full_like(ids, 2)},
    "nothing but padding": lambda ids: {"input_ids": ids, "attention_mask": torch.zeros_like(ids)},
    "nested": lambda ids: torch.nested.nested_tensor([ids[0], ids[1][:4]]),
    "quantised": lambda ids: torch.quantize_per_tensor(ids.float(), 1.0, 0, torch.quint8),
    "masked in places": lambda ids: np.ma.masked_array(ids, ids == 7),
    "no numbers yet": lambda ids: ids.to("meta"),
    "a number by keyword": lambda ids: {"input_ids": 3},
    "strings by keyword": lambda ids: {"text": ["a", "b"]},
    "an empty batch": lambda ids: {},
    "booleans": lambda ids: ids > 50,
    "three axes": lambda ids: ids[None],
    "strings among numbers": lambda ids: ["a", 3],
    "bytes": lambda ids: b"text",
    "bytes in a list": lambda ids: [b"text"],
    "paths as strings": lambda ids: [__file__, pytest.__file__],
    "paths": lambda ids: [Path(__file__)],
    "a gap among strings": lambda ids: ["a", None],
    "a text itself": lambda ids: "a text\n" * 99,
    "an empty generator": lambda ids: iter([]),
    "batches of two kinds": lambda ids: [{"input_ids": ids}, {"ids": ids}],
    "an empty data set": lambda ids: datasets.Dataset.from_dict({"input_ids": []}),
    "an empty frame": lambda ids: pd.DataFrame({"input_ids": []}),
    "no texts by keyword": lambda ids: {"text": []},
    "half a character": lambda ids: [*lines(), "half \ud83d of it"],
    "a set": lambda ids: {1, 2},
    "a model": lambda ids: nn.Linear(2, 2),
    "a tuple of ids and something": lambda ids: (ids, ids),
    "labels that are no mask": lambda ids: TensorDataset(ids, ids % 2),
    "labels of one span": lambda ids: TensorDataset(ids, (torch.arange(LENGTH) // 4 == 1).long().expand_as(ids)),
    "numbers before ids": lambda ids: TensorDataset(torch.arange(len(ids)), ids),
    "masks longer than their sequences": lambda ids: [
        {"input_ids": row[: 5 + place % 3], "attention_mask": torch.ones(LENGTH)} for place, row in enumerate(ids)
    ],
    "one longer mask for all": lambda ids: {"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1], [1, 1]]},
    "a folder that is called as a corpus and is not there": lambda ids: Path("docs"),
    "a data set without a length": lambda ids: Endless(ids),
    "a loader of that": lambda ids: DataLoader(Endless(ids)),
    "lists of a tensor a place": lambda ids: iter([{"input_ids": list(few.T)} for few in ids.split(8)]),
    "lists of a tensor a sequence": lambda ids: DataLoader(ids, batch_size=8, collate_fn=list),
    "an open file": lambda ids: io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")),
    "text in memory": lambda ids: io.StringIO("\n".join(lines())),
    "bytes in memory": lambda ids: io.BytesIO(b"text"),
    "texts by name": lambda ids: dict(zip(map(str, range(400)), lines(400), strict=True)),
}


BAD_FOR_THE_MODEL = {  # which can be read
    "a negative id": lambda ids: ids - 400,
    "an id beyond the vocabulary": lambda ids: ids + 10**6,
    "sequences too long": lambda ids: ids.repeat(1, 200)[:8],
    "another keyword": lambda ids: {"pixels": ids},
}

WITH_LABELS = {
    "data set of torch": lambda: [(line, 0) for line in lines()],
    "lists of their own": lambda: [[line] for line in lines()],
    "generator": lambda: ((0, line) for line in lines()),
    "loader": lambda: DataLoader([(line, 0) for line in lines()], batch_size=16),
    "loader of its own batches": lambda: DataLoader(
        [(line, 0) for line in lines()], batch_size=16, collate_fn=lambda few: ([line for line, _ in few], None)
    ),
}

EMPTY = {
    "list": list,
    "tuple": tuple,
    "array of strings": lambda: np.array([], dtype=str),
    "column": lambda: pd.Series([], dtype=object),
    "frame": pd.DataFrame,
    "blank strings": lambda: [" ", ""],
    "data set": lambda: datasets.Dataset.from_dict({}),
    "stream": lambda: datasets.IterableDataset.from_generator(lambda: iter([])),
    "stream of torch": lambda: Unending([]),
    "loader": lambda: DataLoader([]),
}

MODELS = {
    "nothing": lambda model: None,
    "a number": lambda model: 7,
    "no such name": lambda model: "no/such/model",
    "a script": lambda model: torch.jit.script(nn.Linear(4, 4)),
    "weights": lambda model: model.state_dict(),
}


def written(path):
    path.write_text("\n".join(lines()))
    return path


def numbers_of(found):
    """What to compare of two results: numbers of any public function."""
    if isinstance(found, hl.Profile):
        return found.to_frame()["r2"].tolist()
    if isinstance(found, pd.DataFrame):
        return found["residual"].tolist()
    if isinstance(found, dict):
        return [getattr(value, "delta", None) or value.train[0].n for value in found.values()]
    if isinstance(found, float):
        return [found]
    if isinstance(found, torch.Tensor):
        return found.tolist()
    return [found.base, found.perplexity]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_that_come_once_give_the_same_without_dropout_and_the_model_is_left_as_it_was(model, ids, maps, name):
    expected = numbers_of(FUNCTIONS[name](model, ids, maps))
    model.train()
    model.transformer.h[1].eval()
    modes = [part.training for part in model.modules()]
    found = numbers_of(FUNCTIONS[name](model, iter(IDS["loader of batches"](ids)), maps))
    assert [part.training for part in model.modules()] == modes
    model.eval()
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", IDS)
def test_token_ids_of_every_kind_are_read_as_the_same(model, ids, kind):
    for read in READING:
        assert torch.equal(read(IDS[kind](ids), model).ids, ids)


@pytest.mark.parametrize("kind", MASKED)
def test_padded_sequences_of_every_kind_are_read_as_the_same(model, padded, kind):
    for read in READING:
        found = read(MASKED[kind](*padded), model)
        assert torch.equal(found.ids, padded[0])
        assert torch.equal(found.mask, padded[1].bool())


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_every_kind_are_read_as_the_same(model, tmp_path, kind):
    expected = rows_of(lines(), model, 8192, LENGTH)
    assert rows_of(TEXTS[kind](tmp_path), model, 8192, LENGTH).sha256 == expected.sha256
    assert hl.load_corpus(TEXTS[kind](tmp_path), model).rows(8192, LENGTH).sha256 == expected.sha256


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 there")
def test_a_file_whose_name_is_no_utf_8_is_measured_and_its_name_spelt(model, tmp_path):
    path = written(tmp_path / os.fsdecode(b"caf\xe9.txt"))
    profile = hl.measure(model, path, rows=8192, seq_len=LENGTH)
    assert profile.rows.sha256 == rows_of(lines(), model, 8192, LENGTH).sha256
    profile.save(tmp_path / "p.json")
    for named in (profile, hl.load_profile(tmp_path / "p.json")):
        assert set(named.to_frame()["corpus"]) == {f"{tmp_path}/caf\\xe9.txt"}


def test_a_column_may_be_named(model, tmp_path):
    rows = [{"title": "a", "body": line} for line in lines()] + [{"title": "b", "body": None}, {"title": "c"}]
    columns = {"title": ["a"] * len(lines()), "body": lines()}
    frame, file = pd.DataFrame(columns), tmp_path / "mine.csv"
    frame.to_csv(file, index=False)
    expected = rows_of(lines(), model, 8192, LENGTH)
    for given in (rows, columns, DataLoader(rows[:-2]), frame, datasets.Dataset.from_dict(columns), file):
        assert hl.load_corpus(given, model, text_column="body").rows(8192, LENGTH).sha256 == expected.sha256
        for call in (hl.load_corpus, lambda given, model: hl.measure(model, given)):
            with pytest.raises(InputError, match=r"which column of .* is text"):
                call(given, model)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_text_is_one_line(model, ids, kind):
    for read in READING:
        one_line(lambda read=read: read(BAD[kind](ids), model))


@pytest.mark.parametrize("kind", WITH_LABELS)
def test_strings_beside_labels_are_named_as_what_they_are(model, kind):
    assert "strings" in one_line(lambda: rows_of(WITH_LABELS[kind](), model))


def test_places_of_a_tokenised_data_set_are_read_as_those_of_a_batch(model, ids):
    columns = {"input_ids": ids.tolist(), "position_ids": (ids % 7).tolist()}
    for given in (pd.DataFrame(columns), datasets.Dataset.from_dict(columns), columns):
        assert torch.equal(rows_of(given, model).inputs["position_ids"], ids % 7)


@pytest.mark.parametrize("kind", EMPTY)
def test_what_is_empty_is_one_line_that_says_so(model, kind):
    message = one_line(lambda: rows_of(EMPTY[kind](), model))
    assert any(words in message for words in ("empty", "no batch", "neither of them 0"))


def test_splits_are_named_and_none_is_taken(model, ids):
    of_text, of_ids = ({"text": lines()}, {"input_ids": ids.tolist()})
    for columns in (of_text, of_ids):
        split = datasets.Dataset.from_dict(columns)
        for given in ({"a": split, "b": split}, datasets.DatasetDict(a=split, b=split)):
            assert "a, b" in one_line(lambda given=given: rows_of(given, model))


@pytest.mark.parametrize(("shape", "reason"), [((640, 1), "at least two tokens"), ((7, LENGTH), "document folds")])
@pytest.mark.parametrize("layerwise", [False, True])
def test_swaps_without_a_cost_are_refused_before_the_model_runs(model, monkeypatch, shape, reason, layerwise):
    def run(_, input_ids):
        raise AssertionError(f"ran on {input_ids}")

    ids = torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(type(model), "forward", run)
    with pytest.raises(InputError, match=reason):
        hl.measure(model, ids, swap=True, layerwise=layerwise)
    with pytest.raises(InputError, match="predicts no next token"):
        hl.measure(model.base_model, ids, swap=True, layerwise=layerwise)


def test_sequences_of_one_token_are_measured_without_a_perplexity(model):
    ids = torch.randint(0, VOCABULARY, (640, 1), generator=torch.Generator().manual_seed(3))
    alone = hl.measure(model, ids)
    assert alone.perplexity is None
    padded = {"input_ids": torch.cat([ids, ids], 1), "attention_mask": torch.tensor([[1, 0]]).repeat(640, 1)}
    assert hl.measure(model, padded)[0].r2 == pytest.approx(alone[0].r2, abs=1e-6)
    for scored in (hl.perplexity, hl.losses):
        assert "two tokens" in one_line(lambda scored=scored: scored(model, ids))
    assert "two tokens" in one_line(lambda: hl.swap_costs(model, alone, ids))


@pytest.mark.parametrize(
    ("name", "shape"), [("pixel_values", (1, 4, 4)), ("input_features", (3, 5)), ("input_values", (6,))]
)
def test_images_and_sounds_of_a_loader_are_stacked_as_torch_does(name, shape):
    given = torch.arange(5 * torch.Size(shape).numel()).reshape(5, *shape).float()
    examples = [{name: part, "labels": 0} for part in given]
    for held in (examples, [{**example, name: example[name].numpy()} for example in examples]):
        found = gathered(DataLoader(held, batch_size=2))
        assert torch.equal(found[name], given)


def test_what_lists_of_lists_hold_keeps_its_axes():
    boxes = torch.arange(24).reshape(4, 3, 2)  # of each of 4 sequences, 3 places, 2 numbers
    examples = [{"input_ids": [1, 2, 3], "bbox": box.tolist()} for box in boxes]
    found = gathered(DataLoader(examples, batch_size=2))
    assert torch.equal(found["bbox"], boxes)
    assert found["input_ids"].tolist() == [[1, 2, 3]] * 4


@pytest.fixture(scope="module")
def padded(ids):
    """Token ids and which of them are tokens, the padding 0."""
    lengths = torch.randint(6, LENGTH + 1, (len(ids), 1), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(LENGTH) < lengths).long()
    return ids * mask, mask


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strings_give_what_the_rows_of_their_text_give(model, maps, name):
    rows = hl.load_corpus(lines(), model).rows(*((8192, LENGTH) if name == "measure" else ()))
    found, expected = (numbers_of(FUNCTIONS[name](model, text, maps)) for text in (lines(), rows))
    assert found == pytest.approx(expected, rel=1e-5)


def everything_else(model, ids, maps):
    """Numbers of what `FUNCTIONS` leave out: all that a profile may hold, files, copies, samples, arrays, questions."""
    profile = hl.measure(model, ids, tolerance=0.5, swap=True, tokens=True, moments=True)
    with TemporaryDirectory() as folder:
        profile.save(Path(folder, "profile.safetensors"))
        read = hl.load_profile(Path(folder, "profile.safetensors"))
        moments = read.moments[0].train[0].sxy.flatten().tolist()
    with hl.swap(model, maps):
        swapped = hl.perplexity(model, ids)
    x = np.arange(60.0).reshape(20, 3) ** 0.5
    ceiling, fitted = hl.ceiling(x, x**3, x[:9], x[:9] ** 3), hl.AffineCeiling().fit(x, x**3)
    questions = [{"question": "q", "choices": ["x", "y", "z"], "answer": answer} for answer in (0, 1, 2)]
    return [
        *profile.to_frame().select_dtypes("number").to_numpy().flatten(),
        *(*hl.compare(profile, read)["difference"], *moments),
        *(swapped, hl.perplexity(hl.replace(model, maps), ids)),
        *(ceiling.r2, fitted.score(x, x**3), *fitted.predict(x).flatten()),
        *hl.capture(model, ids, sample=50)[1].sample.y.flatten().tolist(),
        *hl.accuracy(model, questions).correct.tolist(),
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [*FUNCTIONS, "everything else"])
def test_a_default_device_of_torch_changes_no_number(model, ids, maps, name):
    """As `torch.set_default_device("cuda")` in a notebook does, with a model that stays on the CPU."""

    def found():
        if name not in FUNCTIONS:
            return everything_else(model, ids, maps)
        return [
            number for given in (ids, padded, lines()) for number in numbers_of(FUNCTIONS[name](model, given, maps))
        ]

    padded = {"input_ids": ids, "attention_mask": torch.arange(LENGTH) < torch.arange(len(ids))[:, None] % 9 + 8}
    expected = found()
    with torch.device("meta"):
        assert found() == pytest.approx(expected, rel=1e-9, nan_ok=True)


def one_line(call):
    """What a call refuses with: one line, no traceback of another kind."""
    with pytest.raises(HowlinearError) as error:
        call()
    message = str(error.value)
    assert message
    assert len(message) < 600
    assert "config.json" not in message
    return message


@pytest.mark.parametrize("bring", [BAD["a number"], BAD["no such text"], *BAD_FOR_THE_MODEL.values()])
def test_what_no_function_can_use_is_one_line(model, ids, maps, bring):
    for call in FUNCTIONS.values():  # the one that is at fault stands in the traceback
        one_line(lambda call=call: call(model, bring(ids), maps))


TAKING_A_MODEL = FUNCTIONS | {
    "accuracy": lambda model, text, maps: hl.accuracy(model, [{"question": "q", "choices": ["x", "y"], "answer": 0}]),
    "swap": lambda model, text, maps: hl.swap(model, maps).__enter__(),
    "replace": lambda model, text, maps: hl.replace(model, maps),
    "sites": lambda model, text, maps: hl.sites(model),
    "untrained": lambda model, text, maps: hl.untrained(model),
    "save": lambda model, text, maps: hl.save(model, "folder"),
    "to_decilm": lambda model, text, maps: hl.to_decilm(model),
    "load_corpus": lambda model, text, maps: hl.load_corpus(lines(), model),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("kind", MODELS)
def test_what_is_no_model_is_one_line(model, ids, maps, kind):
    for call in TAKING_A_MODEL.values():
        one_line(lambda call=call: call(MODELS[kind](model), ids, maps))


def test_strings_beside_token_ids_are_named(model, ids):
    for strings in (["a"] * len(ids), "a"):
        assert "name holds strings" in one_line(
            lambda given=strings: hl.measure(model, {"input_ids": ids, "name": given})
        )


def test_a_model_may_be_named(ids):
    loaded = hl.load_model("mini-gpt2")
    assert hl.perplexity("mini-gpt2", ids[:8]) == hl.perplexity(loaded, ids[:8])
    named, given = (hl.measure(model, ids[:80], blocks=[0]) for model in ("mini-gpt2", loaded))
    assert named[0].r2 == given[0].r2


@pytest.mark.parametrize("given", [None, 3, [1], {0: None}, {0: 3.0}, {7: lambda x: x}, {0: nn.Linear(3, 3)}])
def test_what_are_no_maps_is_one_line(model, ids, given):
    one_line(lambda: hl.swap_costs(model, given, ids))
    one_line(lambda: hl.token_errors(model, given, ids))
    one_line(lambda: hl.swap(model, given).__enter__())
    one_line(lambda: hl.replace(model, given))


def test_a_profile_is_taken_for_its_maps(model, ids):
    profile = hl.measure(model, ids)
    by_profile = hl.swap_costs(model, profile, ids)
    by_maps = hl.swap_costs(model, {block: profile[block].map for block in profile}, ids)
    assert by_profile == by_maps
    with hl.swap(model, profile):
        swapped = hl.perplexity(model, ids)
    assert swapped == pytest.approx(hl.perplexity(hl.replace(model, profile), ids), rel=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("blocks", [9, [9], [], [0, 9], True, [True], 1.0, [0.0], np.array([[0, 1]]), "0"])
def test_what_are_no_blocks_is_one_line(model, ids, blocks):
    one_line(lambda: hl.measure(model, ids, blocks=blocks))
    one_line(lambda: hl.capture(model, ids, blocks=blocks))


ARGUMENTS = {  # each names itself
    "batch_size": [
        lambda model, ids, maps: hl.measure(model, ids, batch_size=0),
        lambda model, ids, maps: hl.capture(model, ids, batch_size=2.5),
        lambda model, ids, maps: hl.losses(model, ids, batch_size=0),
        lambda model, ids, maps: hl.losses(model, ids, batch_size=np.ones((3, 3))),
        lambda model, ids, maps: hl.swap_costs(model, maps, ids, batch_size="8"),
        lambda model, ids, maps: hl.token_errors(model, maps, ids, batch_size=0),
        lambda model, ids, maps: hl.compress_to(model, ids, max_dppl=1, batch_size=0),
        lambda model, ids, maps: hl.compress(model, ids, 0.9, batch_size=0),
    ],
    "sample": [lambda model, ids, maps: hl.capture(model, ids, sample=-1)],
    "tokens": [lambda model, ids, maps: hl.token_errors(model, maps, ids, tokens=None)],
    "rows": [
        lambda model, ids, maps: hl.measure(model, lines(), rows=-1),
        lambda model, ids, maps: hl.perplexity(model, lines(), rows="all"),
    ],
    "seq_len": [lambda model, ids, maps: hl.measure(model, lines(), seq_len=1.5)],
    "documents": [lambda model, ids, maps: hl.load_corpus(lines(), model, documents="page")],
    "tolerance": [lambda model, ids, maps: hl.measure(model, ids, tolerance="low")],
    "max_parameters": [lambda model, ids, maps: hl.compress(model, ids, max_parameters="most")],
    "max_dppl": [
        lambda model, ids, maps: hl.compress(model, ids, max_dppl=float("nan")),
        lambda model, ids, maps: hl.compress_to(model, ids, max_dppl=None),
    ],
    "candidates": [lambda model, ids, maps: hl.compress_to(model, ids, max_dppl=1, candidates=0)],
    "seed": [
        lambda model, ids, maps: hl.untrained(model, seed="one"),
        lambda model, ids, maps: hl.measure(model, lines(), seed=1.5),
        lambda model, ids, maps: hl.capture(model, ids, sample=4, seed="x"),
    ],
    "swap": [lambda model, ids, maps: hl.measure(model, ids, swap="yes")],
    "layerwise": [
        lambda model, ids, maps: hl.measure(model, ids, layerwise=3),
        lambda model, ids, maps: hl.compress(model, ids, 0.9, layerwise="no"),
    ],
    "progress": [
        lambda model, ids, maps: hl.capture(model, ids, progress="bar"),
        lambda model, ids, maps: hl.swap_costs(model, maps, ids, progress=2),
        lambda model, ids, maps: hl.token_errors(model, maps, ids, progress="bar"),
        lambda model, ids, maps: hl.compress_to(model, ids, 1.0, progress="bar"),
    ],
    "force": [
        lambda model, ids, maps: hl.save(model, "folder", force="yes"),
        lambda model, ids, maps: hl.measure(model, ids).save("p.json", force=1),
    ],
    "alike": [lambda model, ids, maps: hl.compress(model, ids, 0.9, alike=1)],
    "work": [
        lambda model, ids, maps: hl.measure(model, ids, work="folder"),
        lambda model, ids, maps: hl.measure("mini-gpt2", ids, work="folder", layerwise=False),
        lambda model, ids, maps: hl.compress(model, ids, 0.9, work=3),
    ],
    "card": [lambda model, ids, maps: hl.save(model, "folder", card=3)],
    "tokenizer": [lambda model, ids, maps: hl.save(model, "folder", tokenizer=3)],
    "folder": [
        lambda model, ids, maps: hl.save(model, None),
        lambda model, ids, maps: hl.save(model, 3),
        lambda model, ids, maps: hl.save(model, ""),
        lambda model, ids, maps: hl.measure(model, ids).save_skips(3),
    ],
    "path": [
        lambda model, ids, maps: hl.measure(model, ids).save(None),
        lambda model, ids, maps: hl.load_profile(3),
        lambda model, ids, maps: hl.load_profile(pd.DataFrame({"block": range(99)})),
        lambda model, ids, maps: hl.load_profile(None),
    ],
    "ax": [lambda model, ids, maps: hl.measure(model, ids).plot(ax=3)],
    "other parts": [
        lambda model, ids, maps: hl.compare(hl.measure(model, ids), hl.measure(model, ids, site="attention"))
    ],
    "results": [lambda model, ids, maps: hl.results(None, "02_ceilings"), lambda model, ids, maps: hl.results("x", 2)],
    "base": [lambda model, ids, maps: hl.change("losses", [1.0])],
    "changed": [lambda model, ids, maps: hl.change([1.0, 2.0], [[1.0], [2.0]])],
    "fold": [
        lambda model, ids, maps: hl.change([1.0, 2.0], [1.0, 2.0], [0]),
        lambda model, ids, maps: hl.TokenRows(ids, ids[:, 0] > 9, [0.5] * len(ids)),
        lambda model, ids, maps: hl.ModelInputs({"input_ids": ids}, ids[:, 0] > 9, [0, 1]),
    ],
    "folds": [
        lambda model, ids, maps: hl.TokenRows.from_ids(ids, folds=0),
        lambda model, ids, maps: hl.ModelInputs.of({"input_ids": ids}, folds="8"),
    ],
    "test": [lambda model, ids, maps: hl.TokenRows(ids, [True, False], [0] * len(ids))],
    "inputs": [lambda model, ids, maps: hl.ModelInputs(ids, ids[:, 0] > 9, [0] * len(ids))],
    "confidence": [lambda model, ids, maps: hl.ceiling(*[np.eye(4)] * 4, confidence=95)],
    "covariance": [lambda model, ids, maps: hl.effective_rank(1j * np.eye(3))],
    "x": [
        lambda model, ids, maps: hl.Moments(2).update("rows"),
        lambda model, ids, maps: hl.Moments(2).update(1j * np.eye(2)),
        lambda model, ids, maps: hl.AffineMap(torch.eye(2), torch.zeros(2))("rows"),
    ],
    "y": [lambda model, ids, maps: hl.Moments(2, 2).update(np.eye(2), [[1.0], []])],
    "no text": [
        lambda model, ids, maps: hl.load_corpus(3, model),
        lambda model, ids, maps: hl.load_corpus(ids, model),
        lambda model, ids, maps: hl.load_corpus({"input_ids": [[1]]}, model),
    ],
    "text_column": [lambda model, ids, maps: hl.load_corpus(lines(), model, text_column="text")],
    "dtype": [
        lambda model, ids, maps: hl.load_model("mini-gpt2", dtype="float64"),
        lambda model, ids, maps: hl.load_model("mini-gpt2", dtype=np.ones((2, 2))),
    ],
    "bits": [lambda model, ids, maps: hl.load_model("mini-gpt2", bits=np.ones((2, 2)))],
    "sites": [
        lambda model, ids, maps: hl.load_model("mini-gpt2", sites="h.*"),
        lambda model, ids, maps: hl.load_model("mini-gpt2", sites="transformer.h.*.attn"),
    ],
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_wrong_argument_names_itself(model, ids, maps, argument):
    for call in ARGUMENTS[argument]:
        assert re.search(rf"\b{argument}\b", one_line(lambda call=call: call(model, ids, maps)))


def test_a_message_is_one_line_of_bounded_length():
    """What was given may be a table, and stand in the message."""
    message = str(InputError(f"rows={pd.DataFrame(np.eye(60)).to_string()}: give a count"))
    assert "\n" not in message
    assert len(message) < 1300
    assert message.startswith("rows=")
    assert message.endswith(": give a count")


def test_losses_are_numbers_of_any_kind():
    found = hl.change([1.0, 2.0], np.array([1.0, 2.5]), [0, 1])
    assert found.delta == pytest.approx(np.exp(1.75) - np.exp(1.5))  # of the means


@pytest.mark.usefixtures("unchecked")
def test_masked_numbers_are_not_taken_for_numbers():
    masked = np.ma.masked_greater(np.arange(8.0).reshape(4, 2), 5)
    estimator, whole = hl.AffineCeiling(), np.arange(4.0)
    for call in (
        lambda: hl.Moments(2).update(masked),
        lambda: hl.effective_rank(masked[2:]),
        lambda: estimator.fit(masked, whole),
        lambda: estimator.fit(masked.data, np.ma.masked_greater(whole, 2)),
        lambda: estimator.fit(whole[:, None], whole).score(whole[:, None], np.ma.masked_greater(whole, 2)),
    ):
        assert "masked" in one_line(call)


@pytest.mark.usefixtures("unchecked")
def test_rows_are_made_of_lists_and_arrays(ids):
    made = hl.TokenRows.from_ids(ids)
    for kind in (torch.Tensor.tolist, torch.Tensor.numpy):
        again = hl.TokenRows(*map(kind, (ids, made.test, made.fold)))
        assert again.sha256 == made.sha256


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("site", ["ffn", "attention"])
def test_a_map_that_gives_other_rows_is_refused(model, ids, site):
    """A row that fits by broadcasting would be swapped in for all of them, and one number for all features."""
    for wrong in (lambda x: x[:1, :1], lambda x: x.mean(0, keepdim=True), lambda x: 3, nn.Sequential(nn.Linear(32, 1))):
        maps = {0: wrong}
        assert "a map gives" in one_line(lambda maps=maps: hl.swap_costs(model, maps, ids, site=site))
        assert "a map gives" in one_line(lambda maps=maps: hl.token_errors(model, maps, ids, site=site))


@pytest.mark.parametrize("site", ["ffn", "attention", "layer"])
def test_a_map_with_dropout_is_evaluated_without_it(model, ids, site):
    half = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.9))
    expected = hl.swap_costs(model, {0: half[0]}, ids, site=site)[0].delta
    assert hl.swap_costs(model, {0: half}, ids, site=site)[0].delta == pytest.approx(expected, rel=1e-6)
    residual = [hl.token_errors(model, {0: map_}, ids, site=site)["residual"] for map_ in half[:1].append(half)]
    assert residual[1].tolist() == pytest.approx(residual[0].tolist(), rel=1e-5)
    assert half.training
    assert half[1].training


CHAT = [{"role": "user", "content": "hello"}]
ASKED_FOR = {
    "a chat": (lambda folder: CHAT * 40, "apply_chat_template"),
    "chats": (lambda folder: [CHAT] * 40, "apply_chat_template"),
    "generator of chats": (lambda folder: iter([CHAT] * 40), "apply_chat_template"),
    "images": (lambda folder: torch.zeros(4, 3, 8, 8), "pixel_values"),
    "list of images": (lambda folder: [torch.zeros(3, 8, 8)] * 4, "pixel_values"),
    "images and their classes": (lambda folder: [(torch.zeros(3, 8, 8), 1)] * 4, "pixel_values"),
    "a table of numbers": (lambda folder: pd.DataFrame({"first": [1, 2], "second": [3, 4]}), "table.to_numpy()"),
    "a file of bytes": (lambda folder: (folder / "ids.bin").write_bytes(b"\0\1" * 40) and folder / "ids.bin", "NUL"),
}


@pytest.mark.parametrize("kind", ASKED_FOR)
def test_what_is_no_text_is_refused_with_what_to_give(model, tmp_path, kind):
    """Before the length of sequences is looked at."""
    make, asked_for = ASKED_FOR[kind]
    given = make(tmp_path)
    assert asked_for in one_line(lambda: hl.measure(model, given, seq_len=10**6))


def test_a_corpus_cut_by_another_tokenizer_is_refused(model):
    corpus = hl.load_corpus("docs", "mini-gpt2")
    other = copy.deepcopy(corpus.tokenizer)
    other.add_tokens(["quick brown"])
    other.name_or_path = "elsewhere"
    named = hl.load_model("mini-gpt2")
    hl.perplexity(named, dataclasses.replace(corpus, tokenizer=copy.deepcopy(corpus.tokenizer)), rows=4096)
    assert "elsewhere" in one_line(lambda: hl.perplexity(named, dataclasses.replace(corpus, tokenizer=other)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "given",
    [1, np.int64(1), np.array(1), torch.tensor(1), np.array([1]), [torch.tensor(1)], iter([1])],
    ids=lambda given: type(given).__name__,
)
def test_a_block_may_be_given_by_its_number(model, ids, given):
    assert list(hl.measure(model, ids, blocks=given, swap=True)) == [1]


@pytest.mark.usefixtures("unchecked")
def test_a_number_may_be_one_of_numpy(model, ids):
    for call in (lambda size: hl.measure(model, ids, batch_size=size)[0].r2, partial(hl.perplexity, model, ids)):
        assert call(np.int64(8)) == call(8)


def test_a_ceiling_is_of_arrays_or_of_moments():
    generator = np.random.default_rng(0)
    x, noise = generator.standard_normal((400, 3)), generator.standard_normal((400, 2))
    y = x @ generator.standard_normal((3, 2)) + 0.5 * noise
    found = hl.ceiling(x[:300], y[:300], x[300:], y[300:])
    # W by lstsq of centred rows; R² about the held-out rows' own mean
    weight = np.linalg.lstsq(x[:300] - x[:300].mean(0), y[:300] - y[:300].mean(0), rcond=None)[0]
    residual = y[300:] - y[:300].mean(0) - (x[300:] - x[:300].mean(0)) @ weight
    expected = 1 - (residual**2).sum() / ((y[300:] - y[300:].mean(0)) ** 2).sum()
    assert found.r2 == pytest.approx(expected, abs=1e-12)
    train = hl.Moments(3, 2).update(torch.tensor(x[:300]), torch.tensor(y[:300]))
    test = hl.Moments(3, 2).update(torch.tensor(x[300:]), torch.tensor(y[300:]))
    assert hl.ceiling(train, test).r2 == pytest.approx(found.r2, abs=1e-12)
    parts = (x[:300], y[:300], x[300:], y[300:])
    kinds = [lambda part: part[::-1], lambda part: torch.tensor(part).to_sparse(), pd.DataFrame, csr_array]
    kinds += [lambda part, kept=kept: part.astype(kept) for kept in (object, np.longdouble, ">f8")]
    kinds += [lambda part: pd.DataFrame(part).convert_dtypes(), lambda part: np.ma.masked_array(part, mask=False)]
    for kind in kinds:
        assert hl.ceiling(*map(kind, parts)).r2 == pytest.approx(expected, abs=1e-12)
    of_reversed = hl.AffineCeiling().fit(x[:300][::-1], y[:300][::-1]).score(x[300:][::-1], y[300:][::-1])
    assert of_reversed == pytest.approx(expected, abs=1e-12)  # other sums: rows come in another order
    masked = np.ma.masked_greater(x[:300], 2)
    assert "masked" in one_line(lambda: hl.ceiling(masked, *parts[1:]))
    for bad in [(), (x,), (x, y), (train, x), (x, y, x), ("a", "b", "c", "d"), (x[:5], y, x, y), (x, y, x, None)]:
        one_line(lambda bad=bad: hl.ceiling(*bad))
    assert "meta" in one_line(lambda: hl.ceiling(torch.empty(400, 3, device="meta"), y, x, y))
    assert "gaps" in one_line(lambda: hl.ceiling(pd.DataFrame(x).convert_dtypes().replace(x[0, 0], pd.NA), y, x, y))


def test_profiles_are_compared_block_by_block(model, ids):
    first, second = hl.measure(model, ids), hl.measure(tiny("mini-gpt2"), ids % 80)
    with pytest.raises(InputError, match="2 and 3 blocks, and block 2 is in one"):
        hl.compare(first, second)
    with pytest.raises(InputError, match="two profiles"):
        hl.compare(first, "second")
    table = hl.compare(first, first)
    assert table["difference"].tolist() == [0, 0]
    assert not table["differs"].any()
    # half² = half₁² + half₂²
    assert table["difference_high"][0] == pytest.approx(2**0.5 * first[0].interval.half_width)


@pytest.mark.parametrize(("name", "token"), [("pad_token_id", 7), ("eos_token_id", 7), ("eos_token_id", [3, 7])])
@pytest.mark.parametrize("run", [hl.measure, hl.perplexity, hl.losses])
def test_padding_without_a_mask_is_warned_of(model, ids, run, name, token, monkeypatch):
    """Models without a token for padding are mostly padded with the one that ends a text."""
    monkeypatch.setattr(model.config, name, token)
    mask = (torch.arange(LENGTH) < 8 + torch.arange(len(ids))[:, None] % 8).long()
    padded = torch.where(mask.bool(), ids, 7)
    with pytest.warns(UserWarning, match="56 of 64 input_ids end in token 7 twice or more, and there is no"):
        run(model, padded)
    run(model, {"input_ids": padded, "attention_mask": mask})
    run(model, torch.cat([ids[:, :-1], padded[:, -1:]], 1))  # each ends its text


def test_padding_that_a_decoder_reads_without_a_mask_is_warned_of(model, ids, monkeypatch):
    monkeypatch.setattr(model.config, "pad_token_id", 7)
    both = {"input_ids": ids, "decoder_input_ids": torch.cat([ids[:, :-2], torch.full((len(ids), 2), 7)], 1)}
    with pytest.warns(UserWarning, match="64 of 64 decoder_input_ids end in token 7 twice or more"):
        rows_of(both, model)
    rows_of(both | {"decoder_attention_mask": torch.ones_like(ids)}, model)
