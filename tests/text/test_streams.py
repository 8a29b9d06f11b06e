"""Data sets that are read only as far as they are needed, and those of the Hub by their ids."""

import datasets
import pytest
from datasets.exceptions import DatasetNotFoundError

import howlinear as hl
from howlinear.errors import InputError, SourceError
from howlinear.text import streams

WORDS = ["river", "stone", "cloud", "seven", "green", "quick", "alpha", "delta"]


def text_of(number):
    """A document of forty words, of which no other has the same."""
    return " ".join([str(number), *(WORDS[(number + 1) * place % 8] for place in range(40))])


class Counted:
    """Rows without an end that anybody would reach, and how many of them were drawn."""

    def __init__(self):
        self.drawn = 0

    def __call__(self):
        for number in range(10**7):
            self.drawn += 1
            yield {"title": f"no {number}", "body": text_of(number)}


@pytest.fixture
def source():
    return Counted()


@pytest.fixture
def stream(source):
    return datasets.IterableDataset.from_generator(source)


def test_a_stream_is_read_as_far_as_it_is_needed_and_the_seed_decides_what_is_drawn(source, stream, tokenizer):
    corpus = hl.load_corpus(stream, tokenizer, text_column="body")
    looked_at = source.drawn
    rows = corpus.rows(4_096, 64)
    assert len(rows.ids) == 64
    drawn = source.drawn - looked_at
    used = int(rows.spans.max()) + 1
    assert drawn < used + streams.AHEAD + 200  # documents of a fold that is full are passed over
    assert corpus.rows(4_096, 64).sha256 == rows.sha256 != corpus.rows(4_096, 64, seed=1).sha256


def test_a_stream_of_lines_is_cut_as_is_asked_for(tokenizer):
    rows = [{"text": f"{text_of(number)}\n{text_of(-number)}"} for number in range(1, 200)]
    stream = datasets.Dataset.from_list(rows).to_iterable_dataset()
    by_line = list(hl.load_corpus(stream, tokenizer, documents="line").in_order())
    assert sorted(document.text for document in by_line) == sorted(
        line for row in rows for line in row["text"].split("\n")
    )


def test_a_short_stream_is_read_whole_as_a_list_of_its_texts_is(tokenizer):
    texts = [text_of(number) for number in range(100)]
    short = datasets.Dataset.from_dict({"text": [*texts, None]}).to_iterable_dataset()
    gaps = datasets.IterableDataset.from_generator(lambda: [*({"text": text} for text in texts), {"title": "none"}])
    for given in (short, gaps, *(short.with_format(kind) for kind in ("numpy", "torch", "pandas", "arrow"))):
        assert list(hl.load_corpus(given, tokenizer).documents) == texts


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ([{"a": "x", "b": "y"}], None, "which column of a stream is text"),
        ([{"a": "x", "b": "y"}], "c", "has no column 'c': give one of a, b"),
        ([{"text": "x"}, {"text": None}, {"text": 3}], None, "holds int at place 2"),
    ],
)
def test_a_stream_without_such_a_column_of_texts_is_refused(tokenizer, rows, column, message):
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
    with pytest.raises(InputError, match=message):
        hl.load_corpus(stream, tokenizer, text_column=column)


def test_a_stream_that_breaks_off_is_one_line(tokenizer):
    def broken():
        yield from ({"text": text_of(number)} for number in range(20))
        raise ConnectionError("the server is gone\nand said much")

    with pytest.raises(SourceError, match="a stream broke off: the server is gone; try again"):
        hl.load_corpus(datasets.IterableDataset.from_generator(broken), tokenizer)


# --- by name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("own/set", True), ("own/set-v1.2:en", True), ("own/set:en:test", True), ("own/set::test", True)),
        *(("own/mine.txt", False), ("mine", False), ("a/b/c", False), ("own/notes.jsonl", False), ("/own/set", False)),
    ],
)
def test_ids_of_the_hub_are_told_from_paths(name, expected):
    assert streams.is_hub_id(name) is expected


@pytest.fixture
def hub(monkeypatch):
    """A Hub that answers what it is told to, and what it was asked."""
    streams.open_hub.cache_clear()
    asked = []

    def answers(answer):
        def load_dataset(*words, **options):
            asked.append((words, options))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    yield answers
    streams.open_hub.cache_clear()


def test_a_data_set_of_the_hub_is_streamed_by_its_id(hub, source, stream, tokenizer):
    asked = hub(stream)
    corpus = hl.load_corpus("own/set:en:test", tokenizer, text_column="body")
    assert asked == [(("own/set", "en"), {"split": "test", "streaming": True})]
    assert corpus.name == "own/set:en:test"
    assert len(corpus.rows(2_048, 32).ids) == 64
    assert source.drawn < 3_000
    hub(stream)
    hl.load_corpus("own/set", tokenizer, text_column="body")
    assert asked[1] == (("own/set", None), {"split": "train", "streaming": True})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DatasetNotFoundError("Dataset 'own/set' is a gated dataset on the Hub. Ask for access."), "gated dataset"),
        (ConnectionError("Couldn't reach 'own/set' on the Hub (OfflineModeIsEnabled)"), "Couldn't reach"),
        (ValueError("Config name is missing.\nPick one of: ['a', 'b']"), "Config name is missing"),
    ],
)
def test_a_data_set_that_cannot_be_had_is_one_line(hub, tokenizer, error, message):
    hub(error)
    with pytest.raises(SourceError, match=message):
        hl.load_corpus("own/set", tokenizer)
