import hashlib
from collections import Counter
from itertools import islice

import pytest

from helpers.packed import corpus_of, every_piece, places, texts
from howlinear.errors import InputError, SourceError
from howlinear.text import corpus as corpora
from howlinear.text.corpus import Corpus, load_corpus, model_documents
from howlinear.text.documents import OFFLINE, Document, offline_documents
from howlinear.text.pack import pack


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# --- what embedded models may train on


@pytest.mark.parametrize("name", ["docs", "code"])
def test_what_models_train_on_is_never_measured(tokenizer, monkeypatch, name):
    documents = [document for seed in range(2) for document in islice(offline_documents(name, seed), 150)]
    monkeypatch.setattr(corpora, "offline_documents", lambda name, seed=0: iter(documents))
    trained = list(model_documents(name))
    measured = [document.text for document, _ in load_corpus(name, tokenizer)._measured(documents)]
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


@pytest.mark.parametrize("file", [None, "package/folder{}/module.py"])
def test_what_is_not_reserved_is_split_three_to_one(file):
    documents = [Document(text, file and file.format(number)) for number, text in enumerate(texts(8_000))]
    sides = [corpora._split(document, 0.8)[1] for document in documents]
    share = {side: sides.count(side) / 8_000 for side in set(sides)}
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


@pytest.mark.parametrize("seed", range(4))
def test_no_file_and_no_folder_is_on_two_sides_or_in_two_folds(tokenizer, seed):
    corpus = Corpus("toy", tokenizer, lambda seed: filed())
    rows = corpus.rows(6_400, 16, seed, folds=4)
    folders = places(rows, tokenizer, 2)
    assert len(folders) > 30
    assert all(len(where) == 1 for where in folders.values())


@pytest.mark.parametrize(("documents", "characters"), [(filed(), 2), (texts(), len("document 0000"))])
def test_a_folder_or_a_document_of_no_file_stays_on_its_side_whatever_the_seed(tokenizer, documents, characters):
    corpus = Corpus("toy", tokenizer, lambda seed: documents)
    sides = {}
    for seed in range(4):
        for name, where in places(corpus.rows(3_200, 16, seed, folds=2), tokenizer, characters).items():
            if len(name) == characters:  # else a document is cut before its name ends
                sides.setdefault(name, set()).update(side for side, _ in where)
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
    measured = [document.text for document, _ in corpus._measured(corpus.in_order())]
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
    assert len({document.file for document in documents}) == len(documents) > 40
    sides = {}
    for document, side in given:
        sides.setdefault(document.group, set()).add(side)
    assert all(len(both) == 1 for both in sides.values())

    beginnings = Counter(document.text[:511] for document in documents)  # as much as a document may fill
    group_of = {document.text[:511]: document.group for document in documents if beginnings[document.text[:511]] == 1}
    folds = {}
    for side, fold, piece in every_piece(rows, tokenizer):
        if piece in group_of:
            folds.setdefault(group_of[piece], set()).add((side, fold))
    assert len(folds) > 10
    assert all(len(where) == 1 for where in folds.values())


# --- load_corpus


@pytest.mark.parametrize("name", ["mine.txt", "mine.TXT", "mine.md", "mine.py", "mine"])
def test_a_text_file_has_any_name_and_is_split_at_blank_lines(tokenizer, tmp_path, name):
    rows = load_corpus(tmp_path / write(tmp_path / name, "\n\n".join(texts())), tokenizer).rows(2_000, 16, folds=2)
    assert rows.corpus.endswith(name)
    assert rows.sha256 == corpus_of([text.strip() for text in texts()], tokenizer).rows(2_000, 16, folds=2).sha256


def test_in_a_folder_a_file_is_a_document_if_there_are_enough(tokenizer, tmp_path):
    (tmp_path / "deep").mkdir()
    for i, text in enumerate(texts()):
        (tmp_path / ("deep" if i % 2 else ".") / f"{i:03d}.md").write_text(text + "\n\nanother paragraph")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / ".hidden").write_text("not for you")
    corpus = load_corpus(tmp_path, tokenizer)
    found = {document.text for document in corpus.in_order()}
    assert found == {text + "\n\nanother paragraph" for text in texts()}
    assert corpus.note.endswith(": 2")
    by_paragraph = {document.text for document in load_corpus(tmp_path, tokenizer, documents="blank").in_order()}
    assert by_paragraph == {*(text.strip() for text in texts()), "another paragraph"}


def test_in_a_folder_of_few_files_blank_lines_separate_documents(tokenizer, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("\n\n".join(texts()[i::3]))
    found = [document.text for document in load_corpus(tmp_path, tokenizer).in_order()]
    assert sorted(found) == sorted(text.strip() for text in texts())


def test_lines_are_documents_where_blank_lines_give_too_few(tokenizer, tmp_path):
    documents = [text.strip() for text in texts()]
    file = write(tmp_path / "mine.txt", "Title\n\n" + "\n".join(documents))
    corpus = load_corpus(file, tokenizer)
    assert [document.text for document in corpus.in_order()] == ["Title", *documents]
    assert "line" in corpus.note
    assert corpus.note in corpus.rows(2_000, 16).note
    asked_for = load_corpus(file, tokenizer, documents="line")
    assert list(asked_for.in_order()) == list(corpus.in_order())
    assert asked_for.note == ""


@pytest.mark.parametrize("way", ["auto", "file", "blank", "line"])
@pytest.mark.parametrize("space", [" ", ""])
def test_one_giant_document_is_cut_into_pieces_that_serve_as_documents(tokenizer, tmp_path, way, space):
    words = [f"word{i:05d}" for i in range(16_000)]
    corpus = load_corpus(write(tmp_path / "giant.txt", space.join(words)), tokenizer, documents=way)
    cut = [document.text for document in corpus.in_order()]
    assert space.join(cut).replace(" ", "") == "".join(words)  # nothing is lost
    assert max(map(len, cut)) <= 2_000
    if space:
        assert {word for piece in cut for word in piece.split()} == set(words)  # no word is cut
    assert f"{len(cut):,} pieces" in corpus.note
    rows = corpus.rows(20_000)
    assert rows.count == 156 * 128
    assert [len(rows.folds(side)) for side in (False, True)] == [8, 8]


FRONT = "\n\n".join(f"title {i}" for i in range(60))


def test_lines_are_documents_where_enough_blank_lines_leave_nearly_all_in_one(tokenizer):
    text = FRONT + "\n\n" + "\n".join(text.strip() for text in texts(500))
    corpus = load_corpus([text], tokenizer)
    assert sum(1 for _ in corpus.in_order()) == 61  # a title each, and the rest
    rows = corpus.rows(4_096, 64)
    assert rows == load_corpus([text], tokenizer, documents="line").rows(4_096, 64)
    assert "each line is a document: blank lines give 61" in rows.note
    assert "line" not in corpus.rows(64, 2, folds=2).note  # which the titles fill


@pytest.mark.parametrize("way", ["auto", "blank", "line"])
def test_pieces_are_documents_where_neither_blank_lines_nor_lines_fill_the_folds(tokenizer, way):
    text = FRONT + "\n\n" + " ".join(f"word{i:05d}" for i in range(16_000))
    corpus = load_corpus([text], tokenizer, documents=way)
    rows = corpus.rows(20_000)
    assert rows.count == 156 * 128
    assert "pieces" in rows.note


def test_documents_are_enough_where_every_fold_can_have_one(tokenizer):
    """Sides are dealt by hash: of the first documents that give eight to each side none may be missing."""
    given = [f"document {i}, as long as need be" for i in range(200)]
    sides = [corpora._split(Document(text), 0.0)[1] for text in given]
    enough = next(n for n in range(200) if min(sides[:n].count("train"), sides[:n].count("test")) >= 8)
    assert [document.text for document in load_corpus(given[:enough], tokenizer).in_order()] == given[:enough]
    assert "pieces" in load_corpus(given[: enough - 1], tokenizer).note
    assert "pieces" in load_corpus(given[: enough - 1] * 3, tokenizer).note  # equal documents are one


@pytest.mark.parametrize("content", ["", " \n\n\t\n", "\ufeff"])
def test_an_empty_file_is_refused(tokenizer, tmp_path, content):
    with pytest.raises(InputError, match=r"mine\.txt is empty"):
        load_corpus(write(tmp_path / "mine.txt", content), tokenizer)


def test_a_text_without_a_sequence_for_every_fold_is_refused_with_what_it_holds(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"mine\.txt is too short: .* has \d+ tokens, fewer than a sequence of 128"):
        load_corpus(write(tmp_path / "mine.txt", "one line"), tokenizer).rows()
    with pytest.raises(InputError, match=r"of 2 documents to fit on .*; 198 others repeat these"):
        load_corpus(["one and the same"] * 100, tokenizer, documents="file").rows()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((f"/nowhere/{name}", "cannot read corpus file .*none.*: No such file") for name in ("none.txt", "none")),
        *((name, "unknown corpus .*: use docs, code, cpp, wikitext, wikitext_test,") for name in ("none", "", "DOCS")),
        *((text, r"give it in a list, \[text\]") for text in ("a line\nand one more", "a long line " * 30)),
    ],
)
def test_a_name_of_nothing_is_refused_and_a_text_in_its_place_is_not_said_whole(tokenizer, name, message):
    with pytest.raises(SourceError, match=message) as refused:
        load_corpus(name, tokenizer)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("given", [["half \ud83d of it", *texts()], [3, *texts()]])
def test_documents_of_a_corpus_that_are_no_text_are_refused(tokenizer, given):
    for read in (Corpus.rows, Corpus.contiguous, lambda corpus: corpus.beginning(10**6)):
        with pytest.raises(InputError, match=r"corpus toy holds .* at place 0"):
            read(Corpus("toy", tokenizer, given))


def test_room_for_one_token_is_room(tokenizer):
    """Documents of seven tokens, their end with them, in folds of fifteen."""
    rows = Corpus("toy", tokenizer, [f"{i:06d}" for i in range(100)]).rows(40, 5, folds=2)
    assert rows.ids.shape == (8, 5)
