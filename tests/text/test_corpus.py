import sys
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import tiny
from howlinear.errors import InputError, SourceError
from howlinear.text import corpus as corpora
from howlinear.text.corpus import Corpus, load_corpus, model_documents
from howlinear.text.documents import OFFLINE, offline_documents, seeded_hash
from howlinear.text.rows import TokenRows

END = 0  # id of the end of text in the tests' tokenizer


def texts(n=300, length=60):
    """Documents that say which one they are."""
    return [f"document {i:04d}: " + "words and " * (1 + (7 * i) % (length // 5)) for i in range(n)]


def corpus_of(documents, tokenizer, reserved=0.0):
    return Corpus("toy", tokenizer, lambda seed: sorted(documents, key=lambda text: seeded_hash(seed, text)), reserved)


def pieces(rows, tokenizer, side, fold):
    """The documents of a fold, the last perhaps cut."""
    ids = rows.ids[(rows.test == side) & (rows.fold == fold)].flatten().tolist()
    found, piece = [], []
    for token in [*ids, END]:
        if token == END:
            found += [tokenizer.decode(piece)] if piece else []
            piece = []
        else:
            piece.append(token)
    return found


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# --- TokenRows


def test_sequences_given_as_ids_are_dealt_by_hand():
    rows = TokenRows.from_ids(torch.arange(20).view(10, 2), folds=2)
    assert rows.test.tolist() == [False, False, False, True] * 2 + [False, False]
    assert rows.fold.tolist() == [0, 1, 0, 0, 1, 0, 1, 1, 0, 1]
    assert rows.corpus == "token ids"


@given(n=st.integers(1, 200), folds=st.integers(2, 9))
@settings(deadline=None, max_examples=30)
def test_folds_of_ids_are_even(n, folds):
    rows = TokenRows.from_ids(torch.zeros(n, 3, dtype=torch.long), folds)
    assert rows.test.sum() == n // 4
    for side in (False, True):
        counts = torch.bincount(rows.fold[rows.test == side], minlength=folds)
        assert counts.max() - counts.min() <= 1


def test_the_hash_is_of_the_content(rows):
    ids, test, fold = rows.ids.clone(), rows.test.clone(), rows.fold.clone()
    assert replace(rows, corpus="another").sha256 == TokenRows(ids, test, fold).sha256 == rows.sha256
    ids[5, 5] += 1
    test[0] = True
    fold[0] = 2
    assert len({rows.sha256, *(replace(rows, **c).sha256 for c in ({"ids": ids}, {"test": test}, {"fold": fold}))}) == 4


# --- packing


def test_packing_by_hand(tokenizer):
    """Eight sequences of four: six to fit on in two folds, two held out; a document ends with the end of text."""
    documents = [f"{i:03d}" for i in range(200)]
    rows = corpus_of(documents, tokenizer).rows(rows=32, seq_len=4, folds=2)
    assert rows.ids.shape == (8, 4)
    assert rows.test.tolist() == [False] * 6 + [True] * 2
    assert rows.fold.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert (rows.ids[:, 3] == END).all()
    read = tokenizer.batch_decode(rows.ids[:, :3])
    assert len(set(read)) == 8
    assert set(read) <= set(documents)
    assert rows.corpus == "toy"


@pytest.mark.parametrize(("seq_len", "folds", "wanted"), [(16, 4, 2_000), (10, 2, 333), (32, 3, 1_024)])
def test_a_quarter_of_about_the_rows_asked_for_is_held_out_in_even_folds(tokenizer, seq_len, folds, wanted):
    rows = corpus_of(texts(), tokenizer).rows(wanted, seq_len, folds=folds)
    assert abs(rows.ids.numel() - wanted) <= seq_len
    assert abs(rows.test.sum() * seq_len - wanted / 4) <= seq_len
    for side in (False, True):
        counts = torch.bincount(rows.fold[rows.test == side], minlength=folds)
        assert counts.max() - counts.min() <= 1
        assert counts.min() >= 1


def test_no_document_is_in_two_sides_or_two_folds(tokenizer):
    documents = texts()
    rows = corpus_of(documents, tokenizer).rows(4_000, 16, folds=4)
    owner = {}
    for side in (False, True):
        for fold in range(4):
            for piece in pieces(rows, tokenizer, side, fold):
                if len(piece) >= 14:  # shorter ones are cut before the number
                    assert any(text.startswith(piece) for text in documents)
                    assert owner.setdefault(piece[:14], (side, fold)) == (side, fold)
    assert len(owner) > 50


def test_a_document_stays_on_its_side_whatever_the_seed(tokenizer):
    sides = {}
    for seed in range(4):
        rows = corpus_of(texts(), tokenizer).rows(1_000, 16, seed=seed, folds=2)
        for side in (False, True):
            for fold in range(2):
                for piece in pieces(rows, tokenizer, side, fold)[:-1]:
                    assert sides.setdefault(piece, side) == side


def test_equal_documents_are_read_once(tokenizer):
    once, thrice = (corpus_of(texts() * times, tokenizer).rows(2_000, 16, folds=4) for times in (1, 3))
    assert once.sha256 == thrice.sha256


def test_the_same_seed_gives_the_same_rows_and_another_others(tokenizer):
    corpus = corpus_of(texts(), tokenizer)
    hashes = [corpus.rows(1_000, 16, seed=seed, folds=2).sha256 for seed in (0, 0, 1, 2)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_a_document_fills_at_most_four_sequences(tokenizer):
    documents = [f"document {i:04d}" + "x" * 10_000 for i in range(200)]
    rows = corpus_of(documents, tokenizer).rows(4_096, 16, folds=2)
    for side in (False, True):
        for fold in range(2):
            found = pieces(rows, tokenizer, side, fold)
            assert {len(piece) for piece in found[:-1]} <= {4 * 16 - 1}


def test_rows_have_only_ids_that_the_tokenizer_has(tokenizer):
    rows = corpus_of([*texts(), "ümläut, 漢字, 🙂 " * 20], tokenizer).rows(2_000, 16, folds=2)
    assert rows.ids.min() >= 0
    assert rows.ids.max() < len(tokenizer)


@pytest.mark.parametrize(("wanted", "seq_len", "folds"), [(100, 16, 4), (1_000, 1, 4), (1_000, 16, 1), (0, 16, 2)])
def test_too_few_rows_for_the_folds_are_refused(tokenizer, wanted, seq_len, folds):
    with pytest.raises(InputError, match=rf"{wanted} rows of {seq_len} tokens in 2 × {folds} folds: use at least"):
        corpus_of(texts(), tokenizer).rows(wanted, seq_len, folds=folds)


def test_the_least_number_of_rows_named_is_enough(tokenizer):
    assert corpus_of(texts(), tokenizer).rows(4 * 4 * 16, 16, folds=4).ids.shape == (16, 16)
    with pytest.raises(InputError, match="use at least 256 rows"):
        corpus_of(texts(), tokenizer).rows(255, 16, folds=4)


@pytest.mark.parametrize("n", [40, 80, 160])
def test_a_corpus_that_is_too_short_says_how_many_rows_would_do(tokenizer, n):
    corpus = corpus_of(texts(n), tokenizer)
    with pytest.raises(InputError, match=r"corpus toy is too short: about \d+ rows of the 200000 asked for") as error:
        corpus.rows(200_000, 16, folds=2)
    usable = int(str(error.value).split("about ")[1].split()[0])
    assert usable % 16 == 0
    assert corpus.rows(usable, 16, folds=2).ids.numel() == usable


def test_a_corpus_without_documents_is_too_short(tokenizer):
    with pytest.raises(InputError, match="too short: about 0 rows"):
        corpus_of([], tokenizer).rows(1_000, 16, folds=2)


def test_a_tokenizer_without_end_of_text_is_refused(tokenizer):
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="end-of-text"):
        corpus_of(texts(), tokenizer).rows(1_000, 16, folds=2)


# --- what embedded models may train on


@pytest.mark.parametrize("name", ["docs", "code"])
def test_what_models_train_on_is_never_measured(tokenizer, monkeypatch, name):
    documents = [text for seed in range(2) for text in islice(offline_documents(name, seed), 400)]
    monkeypatch.setattr(corpora, "offline_documents", lambda name, seed=0: iter(documents))
    trained = list(model_documents(name))
    measured = [text for text, _ in load_corpus(name, tokenizer)._measured(0)]
    assert len(set(trained)) == len(trained)
    assert len(set(measured)) == len(measured)
    assert not set(trained) & set(measured)
    assert set(trained) | set(measured) == set(documents)
    assert 0.7 < len(trained) / len(set(documents)) < 0.9


def test_reserved_documents_are_in_no_row(tokenizer):
    documents = texts(1_500)
    reserved = [text for text in documents if corpora._split(text, 0.8)[1] == "model"]
    rows = corpus_of(documents, tokenizer, reserved=0.8).rows(1_000, 16, folds=2)
    found = [piece for side in (False, True) for fold in range(2) for piece in pieces(rows, tokenizer, side, fold)]
    assert 0.75 < len(reserved) / len(documents) < 0.85
    assert not set(reserved) & set(found)
    assert len(found) > 10


def test_what_is_not_reserved_is_split_three_to_one():
    sides = [corpora._split(text, 0.8)[1] for text in texts(20_000)]
    share = {side: sides.count(side) / 20_000 for side in set(sides)}
    assert share == pytest.approx({"model": 0.8, "train": 0.15, "test": 0.05}, abs=0.01)


# --- load_corpus


def test_offline_corpora_are_three_different_domains(tokenizer):
    shares = {}
    for name in OFFLINE:
        rows = load_corpus(name, tokenizer).rows(8_192, 128, folds=4)
        text = "".join(tokenizer.batch_decode(rows.ids))
        shares[name] = {mark: text.count(mark) / len(text) * 1_000 for mark in ("//", "def ", "::", " the ", "self")}
        assert rows.sha256 == load_corpus(name, tokenizer).rows(8_192, 128, folds=4).sha256
        assert rows.corpus == name
    assert shares["cpp"]["//"] > 3 * max(shares["docs"]["//"], shares["code"]["//"])
    assert shares["cpp"]["::"] > 3 * max(shares["docs"]["::"], shares["code"]["::"])
    assert shares["code"]["def "] > 5 * max(shares["docs"]["def "], shares["cpp"]["def "])
    assert shares["docs"][" the "] > 3 * shares["code"][" the "]


def test_a_model_brings_its_tokenizer(tokenizer, tmp_path):
    model = tiny("mini-gpt2")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    file = write(tmp_path / "mine.txt", "\n\n".join(texts()))
    model.name_or_path = str(tmp_path)
    rows = load_corpus(file, model).rows(1_000, 16, folds=2)
    assert rows.sha256 == load_corpus(file, tokenizer).rows(1_000, 16, folds=2).sha256


def test_a_file_of_ones_own_is_split_at_blank_lines(tokenizer, tmp_path):
    documents = texts(200)
    rows = load_corpus(write(tmp_path / "mine.txt", "\n\n".join(documents)), tokenizer).rows(2_000, 16, folds=2)
    assert rows.corpus.endswith("mine.txt")
    found = [piece for fold in range(2) for piece in pieces(rows, tokenizer, False, fold)[:-1]]
    assert set(found) <= {text.strip()[: 4 * 16 - 1] for text in documents}
    assert len(found) > 10


def test_line_ends_of_windows_make_no_difference(tokenizer, tmp_path):
    text = "\n\n".join(document.replace(" and ", " and\n") for document in texts(200))
    unix = load_corpus(write(tmp_path / "unix.txt", text), tokenizer)
    windows = load_corpus(write(tmp_path / "windows.txt", text.replace("\n", "\r\n")), tokenizer)
    assert windows.rows(2_000, 16, folds=2).sha256 == unix.rows(2_000, 16, folds=2).sha256


@pytest.mark.parametrize("content", ["", " \n\n\t\n", "\ufeff"])
def test_an_empty_file_is_refused(tokenizer, tmp_path, content):
    with pytest.raises(InputError, match=r"mine\.txt is empty"):
        load_corpus(write(tmp_path / "mine.txt", content), tokenizer)


def test_a_short_file_is_refused_with_what_it_holds(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"mine\.txt is too short: about 0 rows of the 20000 asked for.*blank lines"):
        load_corpus(write(tmp_path / "mine.txt", "one line"), tokenizer).rows()


def test_binary_files_are_refused(tokenizer, tmp_path):
    with pytest.raises(SourceError, match=r"mine\.txt holds NUL bytes: it looks binary"):
        load_corpus(write(tmp_path / "mine.txt", b"GIF\x00\x01 text"), tokenizer)


def test_other_encodings_are_refused_with_the_place(tokenizer, tmp_path):
    with pytest.raises(SourceError, match=r"mine\.txt is not UTF-8 text \(byte 3\); convert it first"):
        load_corpus(write(tmp_path / "mine.txt", "caf\xe9".encode("latin-1")), tokenizer)


def test_a_missing_file_is_refused(tokenizer, tmp_path):
    with pytest.raises(SourceError, match=r"cannot read corpus file .*none\.txt: No such file"):
        load_corpus(str(tmp_path / "none.txt"), tokenizer)


def test_a_folder_is_no_file(tokenizer, tmp_path):
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(SourceError, match=r"cannot read corpus file .*folder\.txt"):
        load_corpus(str(tmp_path / "folder.txt"), tokenizer)


@pytest.mark.parametrize("name", ["nonsense", "", "mine.csv", "DOCS"])
def test_an_unknown_name_is_refused(tokenizer, name):
    with pytest.raises(SourceError, match=r"unknown corpus .*: use docs, code, cpp, wikitext, ag_news, codeparrot, or"):
        load_corpus(name, tokenizer)


def test_a_public_data_set_is_packed_like_any_other(tokenizer, monkeypatch):
    documents = texts()
    fake = SimpleNamespace(load_dataset=lambda *args, **kwargs: {"text": documents})
    monkeypatch.setitem(sys.modules, "datasets", fake)
    rows = load_corpus("ag_news", tokenizer).rows(1_000, 16, folds=2)
    assert rows.corpus == "ag_news"
    assert rows.sha256 == corpus_of(documents, tokenizer).rows(1_000, 16, folds=2).sha256


def test_a_contiguous_text_keeps_its_order_and_holds_out_its_tail(tokenizer):
    texts = [f"document {i} of many" for i in range(100)]
    corpus = Corpus("toy", tokenizer, lambda seed: iter(texts))
    rows = corpus.contiguous(1_280, 16)
    whole = "".join(f"{text}{tokenizer.eos_token}" for text in texts)
    packed = tokenizer.decode(rows.ids.flatten().tolist())
    assert len(packed) > 1_000
    assert whole.startswith(packed)
    assert rows.ids.shape == (80, 16)
    assert rows.test.tolist() == [False] * 64 + [True] * 16
    assert rows.fold.tolist() == [i for i in range(8) for _ in range(8)] + [i for i in range(8) for _ in range(2)]


@pytest.mark.parametrize(
    ("rows", "tail", "message"), [(10_000, 0.2, "too short"), (640, 0.1, "each side needs 8"), (64, 0.5, "each side")]
)
def test_a_contiguous_text_without_enough_rows_is_refused(tokenizer, rows, tail, message):
    corpus = Corpus("toy", tokenizer, lambda seed: iter([f"document {i} of many" for i in range(100)]))
    with pytest.raises(InputError, match=message):
        corpus.contiguous(rows, 16, tail)
