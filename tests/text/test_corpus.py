import hashlib
import json
from collections import Counter
from dataclasses import asdict, replace
from itertools import islice

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import tiny
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.models.load import load_model
from howlinear.text import corpus as corpora
from howlinear.text.corpus import Corpus, load_corpus, model_documents
from howlinear.text.documents import OFFLINE, Document, offline_documents, seeded_hash
from howlinear.text.reading import LeftOut, Text
from howlinear.text.rows import TokenRows, pack

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


def long_texts(n, length=10_000):
    """Documents that say everywhere which one they are and how far it has come."""
    return ["".join(f"{i:03d}.{place:04d}|" for place in range(length // 9)) for i in range(n)]


def owners(rows, tokenizer):
    """Document → the (side, fold) pairs that its pieces lie in, and the beginning of it that rows hold."""
    places = {}
    for side in (False, True):
        for fold in range(int(rows.fold.max()) + 1):
            for piece in pieces(rows, tokenizer, side, fold):
                if len(piece) >= 4:
                    places.setdefault(piece[:3], []).append((side, fold, piece))
    return places


def test_a_document_fills_at_most_four_sequences_where_there_are_many(tokenizer):
    rows = corpus_of(long_texts(200, 1_000), tokenizer).rows(4_096, 16, folds=2)
    for side in (False, True):
        for fold in range(2):
            found = pieces(rows, tokenizer, side, fold)
            assert {len(piece) for piece in found[:-1]} <= {4 * 16 - 1}


@pytest.mark.parametrize(("wanted", "tokens"), [(1_024, 64), (4_000, 256), (12_000, 1_024), (100_000, 10_000)])
def test_few_long_documents_give_what_is_asked_for_as_evenly_as_they_can(tokenizer, wanted, tokens):
    """Twenty documents of 10,000 tokens: the most that one may fill doubles until the rows are there."""
    documents = long_texts(20)
    given = ((Document(document), ("train", "test")[number % 4 == 3]) for number, document in enumerate(documents))
    rows = pack(given, tokenizer, "toy", wanted, 16, 2)
    places = owners(rows, tokenizer)
    assert abs(rows.count - wanted) <= 16
    for held in places.values():
        ((_, _, piece),) = held  # one run of consecutive tokens, on one side and in one fold
        assert any(document.startswith(piece) for document in documents)
        assert len(piece) <= tokens
    assert len(places) >= 0.5 * min(len(documents), wanted / tokens)


def test_where_four_sequences_a_document_are_enough_the_rest_of_each_changes_nothing(tokenizer):
    short = [document[:63] for document in long_texts(60, 1_000)]
    hashes = set()
    for documents in (long_texts(60, 1_000), short):
        given = ((Document(document), ("train", "test")[number % 4 == 3]) for number, document in enumerate(documents))
        hashes.add(pack(given, tokenizer, "toy", 1_500, 16, 2).sha256)
    assert len(hashes) == 1


@given(
    lengths=st.lists(st.integers(1, 900), min_size=8, max_size=60),
    wanted=st.integers(64, 4_000),
    folds=st.integers(2, 4),
)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_number_of_rows_that_a_short_corpus_names_can_be_had(tokenizer, lengths, wanted, folds):
    documents = [(Document("x" * length), ("train", "test")[i % 4 == 3]) for i, length in enumerate(lengths)]
    wanted = max(wanted, 4 * folds * 4)

    def packed(rows, **options):
        return pack(iter(documents), tokenizer, "toy", rows, 4, folds, **options)

    try:
        assert abs(packed(wanted).count - wanted) <= 4
    except InputError as error:
        usable = int(str(error).split("it has ")[1].split()[0])
        assert usable <= wanted
        if usable:
            assert packed(usable).count == usable
            assert packed(wanted, at_most=True).count == usable


# --- what was left out


def text_corpus(documents, tokenizer, left_out=()):
    """A corpus of documents in their order, read whole."""
    text = Text(documents, "a source", "a hash", tuple(left_out))
    return Corpus("toy", tokenizer, lambda seed: documents, text=text)


def test_nothing_is_lost_without_being_counted(tokenizer):
    """Every token of every document is in a row, or counted among those left out."""
    documents = [*long_texts(30, 450), *long_texts(4, 450)]
    for wanted in (512, 1_600, 5_000):
        rows = text_corpus(documents, tokenizer).rows(wanted, 16, folds=2)
        left_out = {part.why: part.count for part in rows.reading.left_out}
        tokens = sum(part.count for part in rows.reading.left_out if part.unit == "tokens")
        unused = left_out.get("that these rows had no room for", 0)
        assert rows.reading.documents + unused + left_out.get("equal to others", 0) == len(documents)
        assert rows.count + tokens == 451 * rows.reading.documents
    assert left_out["equal to others"] == 4


def test_a_reading_says_its_source_its_hash_and_everything_left_out_in_one_line(tokenizer):
    corpus = text_corpus(long_texts(40, 1_000), tokenizer, [LeftOut(1, "lines", "of a licence")])
    reading = corpus.rows(1_024, 16, folds=2).reading
    assert (reading.source, reading.sha256) == ("a source", "a hash")
    assert str(reading).startswith(f"{reading.documents} documents of a source; left out: 1 line of a licence, ")
    assert "beyond the first 64 of a document" in str(reading)
    assert "\n" not in str(reading)
    assert reading.from_dict(asdict(reading)) == reading


def test_where_all_is_read_nothing_is_left_out(tokenizer):
    documents = [f"{i:02d}" + "x" * 61 for i in range(16)]
    given = ((Document(document), ("train", "test")[i % 4 == 3]) for i, document in enumerate(documents))
    reading = pack(given, tokenizer, "toy", 1_024, 16, 2).reading
    assert reading.left_out == ()
    assert str(reading) == "16 documents of toy; left out: nothing"


def test_documents_that_models_trained_on_are_counted(tokenizer):
    rows = corpus_of(texts(1_500), tokenizer, reserved=0.8).rows(1_000, 16, folds=2)
    counts = {part.why: part.count for part in rows.reading.left_out}
    assert counts["that embedded models may have trained on"] > 2 * rows.reading.documents
    assert rows.reading.sha256 is None


def test_the_built_in_corpora_give_the_rows_that_results_were_measured_on(tokenizer):
    """One document may fill four sequences and no more as long as that is enough, as for every recorded result."""
    recorded = json.loads((paths.results("minis") / "02_ceilings.json").read_text())["models"]["mini-gpt2"]["sha256"]
    assert load_corpus("docs", load_model("mini-gpt2")).rows().sha256 == recorded


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
    with pytest.raises(InputError, match=r"corpus toy is too short: it has \d+ rows of the 200000 asked for") as error:
        corpus.rows(200_000, 16, folds=2)
    usable = int(str(error.value).split("it has ")[1].split()[0])
    assert usable % 16 == 0
    assert corpus.rows(usable, 16, folds=2).ids.numel() == usable
    with pytest.raises(InputError, match="is too short"):
        corpus.rows(usable + usable // 10, 16, folds=2)


def test_a_corpus_without_documents_is_too_short(tokenizer):
    with pytest.raises(InputError, match="it has 0 rows of the 1000 asked for, in 0 documents to fit on and 0 held"):
        corpus_of([], tokenizer).rows(1_000, 16, folds=2)


def test_a_tokenizer_without_end_of_text_is_refused(tokenizer):
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="end-of-text"):
        corpus_of(texts(), tokenizer).rows(1_000, 16, folds=2)


# --- a text in its own order


def test_a_contiguous_text_keeps_its_order_and_holds_out_its_tail(tokenizer):
    texts = [f"document {i} of many" for i in range(100)]
    corpus = Corpus("toy", tokenizer, lambda seed: iter(texts))
    rows = corpus.contiguous(1_280, 16)
    whole = "".join(f"{text}{tokenizer.eos_token}" for text in texts)
    assert tokenizer.decode(rows.ids.flatten().tolist()) == whole[: len(tokenizer.decode(rows.ids.flatten().tolist()))]
    assert rows.ids.shape == (80, 16)
    assert rows.test.tolist() == [False] * 64 + [True] * 16
    assert rows.fold.tolist() == [i for i in range(8) for _ in range(8)] + [i for i in range(8) for _ in range(2)]


def test_a_file_is_taken_in_its_own_order_and_its_end_is_held_out(tokenizer, tmp_path):
    texts = [f"document {i} of many" for i in range(100)]
    (tmp_path / "t.txt").write_text("\n\n".join(texts))
    corpus = load_corpus(str(tmp_path / "t.txt"), tokenizer)
    assert list(corpus.documents(0)) != texts  # elsewhere documents are drawn
    rows = corpus.contiguous(1_280, 16)
    whole = "".join(f"{text}{tokenizer.eos_token}" for text in texts)
    read = tokenizer.decode(rows.ids.flatten().tolist())
    assert read == whole[: len(read)]
    assert rows.test.tolist() == [False] * 64 + [True] * 16


@pytest.mark.parametrize(
    ("rows", "tail", "message"), [(10_000, 0.2, "too short"), (640, 0.1, "each side needs 8"), (64, 0.5, "each side")]
)
def test_a_contiguous_text_without_enough_rows_is_refused(tokenizer, rows, tail, message):
    corpus = Corpus("toy", tokenizer, lambda seed: iter([f"document {i} of many" for i in range(100)]))
    with pytest.raises(InputError, match=message):
        corpus.contiguous(rows, 16, tail)


# --- what embedded models may train on


@pytest.mark.parametrize("name", ["docs", "code"])
def test_what_models_train_on_is_never_measured(tokenizer, monkeypatch, name):
    documents = [document for seed in range(2) for document in islice(offline_documents(name, seed), 400)]
    monkeypatch.setattr(corpora, "offline_documents", lambda name, seed=0: iter(documents))
    trained = list(model_documents(name))
    measured = [document.text for document, _ in load_corpus(name, tokenizer)._measured(0, Counter())]
    texts = {document.text for document in documents}
    assert len(set(trained)) == len(trained)
    assert len(set(measured)) == len(measured)
    assert not set(trained) & set(measured)
    assert set(trained) | set(measured) == texts
    assert 0.7 < len(trained) / len(texts) < 0.9


MODELS_READ = {
    "docs": "696c9757247820830837f1dddbac8f041af8b908f5b7acc78d530b81bf398469",
    "code": "f16e73f833390ab4ca59342b20253a8d11929e9623c223a3890ae7c38c7587ff",
}


@pytest.mark.parametrize("name", MODELS_READ)
def test_models_were_trained_on_the_documents_that_they_would_be_trained_on_now(name):
    """The first 500 of each, as hashed before documents knew their files: weights and measured text stay apart."""
    first = "\0".join(islice(model_documents(name), 500))
    assert hashlib.sha256(first.encode()).hexdigest() == MODELS_READ[name]


def test_reserved_documents_are_in_no_row(tokenizer):
    documents = texts(1_500)
    reserved = [text for text in documents if corpora._split(Document(text), 0.8)[1] == "model"]
    rows = corpus_of(documents, tokenizer, reserved=0.8).rows(1_000, 16, folds=2)
    found = [piece for side in (False, True) for fold in range(2) for piece in pieces(rows, tokenizer, side, fold)]
    assert 0.75 < len(reserved) / len(documents) < 0.85
    assert not set(reserved) & set(found)
    assert len(found) > 10


@pytest.mark.parametrize("file", [None, "package/folder{}/module.py"])
def test_what_is_not_reserved_is_split_three_to_one(file):
    documents = [Document(text, file and file.format(number)) for number, text in enumerate(texts(20_000))]
    sides = [corpora._split(document, 0.8)[1] for document in documents]
    share = {side: sides.count(side) / 20_000 for side in set(sides)}
    assert share == pytest.approx({"model": 0.8, "train": 0.15, "test": 0.05}, abs=0.01)


# --- files and their folders


def filed(n_folders=40, files=5, each=6):
    """Documents of many files in folders, one file after another; a document says which it is of."""
    documents = []
    for folder in range(n_folders):
        for file in range(files):
            name = f"package/folder{folder:02d}/file{file}.py"
            documents += [Document(f"{folder:02d}.{file}.{i} " + "words " * (2 + i), name) for i in range(each)]
    return documents


def places(rows, tokenizer, characters):
    """The first characters of each document → the sides and folds that it is found in."""
    found = {}
    for side in (False, True):
        for fold in range(int(rows.fold.max()) + 1):
            for piece in pieces(rows, tokenizer, side, fold):
                if len(piece) >= 6:  # shorter ones are cut before their number
                    found.setdefault(piece[:characters], set()).add((side, fold))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_no_file_and_no_folder_is_on_two_sides_or_in_two_folds(tokenizer, seed):
    corpus = Corpus("toy", tokenizer, lambda seed: filed())
    rows = corpus.rows(6_400, 16, seed, folds=4)
    folders = places(rows, tokenizer, 2)
    assert len(folders) > 30
    assert all(len(where) == 1 for where in folders.values())


def test_the_same_documents_without_their_files_are_parted(tokenizer):
    """What the test above would find if documents did not know their files."""
    corpus = Corpus("toy", tokenizer, lambda seed: [document.text for document in filed()])
    assert any(len(where) > 1 for where in places(corpus.rows(6_400, 16, folds=4), tokenizer, 2).values())


def test_a_folder_stays_on_its_side_whatever_the_seed(tokenizer):
    corpus = Corpus("toy", tokenizer, lambda seed: filed())
    sides = {}
    for seed in range(4):
        for folder, where in places(corpus.rows(3_200, 16, seed, folds=2), tokenizer, 2).items():
            sides.setdefault(folder, set()).update(side for side, _ in where)
    assert all(len(both) == 1 for both in sides.values())


def test_one_document_of_each_file_comes_before_a_second_of_any(tokenizer):
    given = [(document, "train") for document in filed(3, 2, 3)]
    drawn = [document for document, _ in corpora._over_files(iter(given), seed=0)]
    assert sorted(document.text for document in drawn) == sorted(document.text for document, _ in given)
    for turn in range(3):
        files = [document.file for document in drawn[6 * turn : 6 * turn + 6]]
        assert files == [given[start][0].file for start in range(0, 18, 3)]
    first = {
        tuple(document.text for document, _ in islice(corpora._over_files(iter(given), seed), 6)) for seed in range(9)
    }
    assert len(first) > 3  # not always what stands first in the file


def test_files_are_read_only_as_far_as_documents_are_asked_for():
    read = []

    def given():
        for document in filed():
            read.append(document.file)
            yield document, "train"

    drawn = list(islice(corpora._over_files(given(), seed=0), 3))
    assert len({document.file for document, _ in drawn}) == 3
    assert len(set(read)) == 4  # that a file has ended is seen by the next


def test_equal_documents_in_two_files_are_read_once_and_lie_on_one_side(tokenizer):
    files = {corpora._split(Document("", f"package/{i}/file.py"), 0.0)[1]: f"package/{i}/file.py" for i in range(20)}
    texts = [f"{i:04d} " + "the same " * 4 for i in range(99)]
    twice = [Document(text, files[side]) for side in ("train", "test") for text in texts]
    corpus = Corpus("toy", tokenizer, lambda seed: [*twice, *filed()])
    measured = [document.text for document, _ in corpus._measured(0, Counter())]
    assert len(measured) == len(set(measured)) == 99 + len(filed())
    found = places(corpus.rows(6_400, 16, folds=2), tokenizer, 4)
    assert any(text[:4] in found for text in texts)
    assert all(len(where) == 1 for where in found.values())


@pytest.mark.parametrize("name", OFFLINE)
def test_built_in_rows_are_of_as_many_files_as_documents_and_no_folder_is_parted(tokenizer, monkeypatch, name):
    given = []

    def noted(documents, *args, **keywords):
        return pack((given.append(item) or item for item in documents), *args, **keywords)

    monkeypatch.setattr(corpora, "pack", noted)
    rows = load_corpus(name, tokenizer).rows(20_000, 128)
    documents = [document for document, _ in given]
    assert len({document.file for document in documents}) == len(documents) >= rows.reading.documents > 40
    sides = {}
    for document, side in given:
        sides.setdefault(document.group, set()).add(side)
    assert all(len(both) == 1 for both in sides.values())

    beginnings = Counter(document.text[:511] for document in documents)  # as much as a document may fill
    group_of = {document.text[:511]: document.group for document in documents if beginnings[document.text[:511]] == 1}
    folds = {}
    for side in (False, True):
        for fold in range(8):
            for piece in pieces(rows, tokenizer, side, fold):
                if piece in group_of:
                    folds.setdefault(group_of[piece], set()).add((side, fold))
    assert len(folds) > 10
    assert all(len(where) == 1 for where in folds.values())


def test_a_group_whose_fold_is_full_is_left_out_and_counted(tokenizer):
    """Two folders to fit on and two held out: each has a fold, and what is more than its fold holds is in no other."""
    documents = []
    for folder, side in (("a", "train"), ("b", "train"), ("c", "test"), ("d", "test")):
        documents += [(Document(f"{folder}{i:02d}" + "x" * 28, f"p/{folder}/{i}.py"), side) for i in range(40)]
    interleaved = [documents[40 * folder + i] for i in range(40) for folder in range(4)]
    rows = pack(iter(interleaved), tokenizer, "toy", 1_024, 32, 2)
    assert all(len(where) == 1 for where in places(rows, tokenizer, 1).values())
    assert not any("full" in part.why for part in rows.reading.left_out)  # both folds of a side were full at once
    uneven = [item for item in interleaved if item[0].text[0] != "b"] + [
        item for item in documents if item[0].text[0] == "b"
    ]
    excluded = {part.why: part.count for part in pack(iter(uneven), tokenizer, "toy", 1_024, 32, 2).reading.left_out}
    assert excluded == {"whose group's fold was full": 28}  # of the 40 of `a` its fold holds 12


# --- load_corpus


def test_offline_corpora_are_three_different_domains(tokenizer):
    shares = {}
    for name in OFFLINE:
        rows = load_corpus(name, tokenizer).rows(20_480, 128, folds=4)
        text = "".join(tokenizer.batch_decode(rows.ids))
        shares[name] = {mark: text.count(mark) / len(text) * 1_000 for mark in ("//", "def ", "::", " the ", "self")}
        assert rows.sha256 == load_corpus(name, tokenizer).rows(20_480, 128, folds=4).sha256
        assert rows.corpus == name
    assert shares["cpp"]["//"] > 3 * max(shares["docs"]["//"], shares["code"]["//"])
    assert shares["cpp"]["::"] > 3 * max(shares["docs"]["::"], shares["code"]["::"])
    assert shares["code"]["self"] > 5 * max(shares["docs"]["self"], shares["cpp"]["self"])
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
    with pytest.raises(InputError, match=r"mine\.txt is too short: it has 0 rows of the 20000 asked for.*blank lines"):
        load_corpus(write(tmp_path / "mine.txt", "one line"), tokenizer).rows()


def test_binary_files_are_refused(tokenizer, tmp_path):
    with pytest.raises(SourceError, match=r"mine\.txt holds NUL bytes \(line 1\): it looks binary"):
        load_corpus(write(tmp_path / "mine.txt", b"GIF\x00\x01 text"), tokenizer)


def test_other_encodings_are_refused_with_the_place(tokenizer, tmp_path):
    with pytest.raises(SourceError, match=r"mine\.txt is not UTF-8 text: line 1 holds byte 0xe9.*convert it first"):
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
    with pytest.raises(SourceError, match=r"unknown corpus .*: use docs, code, cpp, wikitext, moby_dick, puzzles,"):
        load_corpus(name, tokenizer)


def test_a_public_data_set_is_packed_like_any_other(tokenizer, monkeypatch):
    documents = texts()
    monkeypatch.setattr(corpora, "read_public", lambda name, folder: Text(documents, "somewhere", "a hash"))
    rows = load_corpus("ag_news", tokenizer).rows(1_000, 16, folds=2)
    assert rows.corpus == "ag_news"
    assert rows.sha256 == corpus_of(documents, tokenizer).rows(1_000, 16, folds=2).sha256


def test_room_for_one_token_is_room(tokenizer):
    """Documents of seven tokens, their end with them, in folds of fifteen."""
    rows = Corpus("toy", tokenizer, lambda seed: iter([f"{i:06d}" for i in range(100)])).rows(40, 5, folds=2)
    assert rows.ids.shape == (8, 5)
