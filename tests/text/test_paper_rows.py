"""The paper's layout, by hand on made-up texts and a tokenizer of bytes."""

import pytest
from tokenizers import processors

from helpers.packed import END, corpus_of
from howlinear.errors import InputError
from howlinear.text.corpus import load_corpus
from howlinear.text.documents import Document
from howlinear.text.library import read_as_the_paper, read_whole
from howlinear.text.paper_rows import LAYOUTS, paper_rows

WIKITEXT = " \n = One = \n \n Text . \n More . \n"


def test_by_hand(tokenizer):
    """Documents joined by a newline, no end between them; of twelve rows the last two are held out, inside a window."""
    rows = paper_rows(corpus_of(["abcde", "fg", "hijklmnop"], tokenizer), most=14, seq_len=4)
    assert tokenizer.batch_decode(rows.ids) == ["abcd", "e\nfg", "\nhij"]
    assert rows.cut == 10
    assert END not in rows.ids


def test_what_a_tokenizer_begins_a_text_with_stands_once(tokenizer):
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, END)]
    )
    rows = paper_rows(corpus_of(["abcdefg"], tokenizer), most=8, seq_len=4)
    assert (rows.ids == END).int().tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert tokenizer.batch_decode(rows.ids, skip_special_tokens=True) == ["abc", "defg"]


@pytest.mark.parametrize(
    ("layout", "windows", "cut", "scored"), [("survey", 117, 11_981, 117), ("tables", 234, 23_962, 200)]
)
def test_the_papers_sizes(tokenizer, layout, windows, cut, scored):
    corpus = corpus_of(["word " * 10_000], tokenizer)
    of_blocks, of_perplexity = LAYOUTS[layout]
    rows = paper_rows(corpus, of_blocks)
    assert (rows.ids.shape, rows.cut) == ((windows, 128), cut)
    assert len(paper_rows(corpus, of_perplexity).ids) == scored


def test_a_short_text_gives_what_it_has_and_one_of_a_single_window_is_refused(tokenizer):
    assert paper_rows(corpus_of(["abcdefghij"], tokenizer), most=100, seq_len=4).ids.shape == (2, 4)
    with pytest.raises(InputError, match="corpus toy has 7 tokens: bring two windows of 4"):
        paper_rows(corpus_of(["abcdefg"], tokenizer), most=100, seq_len=4)


def test_no_more_of_a_text_is_read_than_is_needed(tokenizer):
    def documents(_):
        yield from (Document("x" * 200) for _ in range(1))
        raise AssertionError("read on")

    assert paper_rows(corpus_of(documents, tokenizer), most=8, seq_len=4).ids.shape == (2, 4)


def test_documents_that_embedded_models_trained_on_are_left_out(tokenizer):
    documents = [f"{i:03d}" for i in range(400)]
    read = tokenizer.decode(paper_rows(corpus_of(documents, tokenizer, reserved=0.8), most=80, seq_len=4).ids.flatten())
    measured = [document for document in documents if document in read.split("\n")]
    assert 10 < len(measured) <= 21
    assert int(measured[-1]) > 40  # a fifth of the first twenty would be four


# --- the paper's own texts


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wikitext.txt").write_text(WIKITEXT)
    chapters = "CHAPTER 1. A\n\nText.\n\n\nCHAPTER 2. B\n\nMore.\n"
    (tmp_path / "moby_dick.txt").write_text(chapters)
    return tmp_path


def test_wikitext_is_its_rows_with_a_newline_between_by_hand(folder):
    """A row of the data set is a line with its own end; of a blank line it is empty."""
    rows = ["", " = One = \n", "", " Text . \n", " More . \n"]
    assert read_as_the_paper("wikitext", folder) == "\n".join(rows)
    assert read_whole("wikitext", folder) == WIKITEXT


def test_a_book_is_read_as_it_is_and_not_by_chapters(folder, tokenizer):
    book = (folder / "moby_dick.txt").read_text()
    rows = paper_rows(load_corpus("moby_dick", tokenizer, folder=folder), most=40, seq_len=4)
    assert tokenizer.decode(rows.ids.flatten()) == book[:40]
