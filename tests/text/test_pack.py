"""Documents become rows: by hand, and on every kind of text that is too short, too long or uneven."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from helpers.packed import END, corpus_of, every_piece, places, texts
from howlinear.errors import InputError
from howlinear.files import tables
from howlinear.models.load import load_model
from howlinear.text.corpus import Corpus, load_corpus
from howlinear.text.documents import Document
from howlinear.text.pack import pack


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


def test_the_same_seed_gives_the_same_rows_and_another_others(tokenizer):
    corpus = corpus_of(texts(), tokenizer)
    hashes = [corpus.rows(1_000, 16, seed=seed, folds=2).sha256 for seed in (0, 0, 1, 2)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def sided(documents):
    """Documents with their sides, every fourth held out."""
    return [(Document(text), ("train", "test")[number % 4 == 3]) for number, text in enumerate(documents)]


def long_texts(n, length=10_000):
    """Documents that say everywhere which one they are and how far it has come."""
    return ["".join(f"{i:03d}.{place:04d}|" for place in range(length // 9)) for i in range(n)]


@pytest.mark.parametrize(("wanted", "tokens"), [(1_024, 64), (4_000, 256), (12_000, 1_024), (100_000, 10_000)])
def test_few_long_documents_give_what_is_asked_for_as_evenly_as_they_can(tokenizer, wanted, tokens):
    """Twenty documents of 10,000 tokens: the most that one may fill doubles until the rows are there."""
    documents = long_texts(20)
    rows = pack(iter(sided(documents)), tokenizer, "toy", wanted, 16, 2)
    held = [piece for _, _, piece in every_piece(rows, tokenizer) if len(piece) >= 4]
    assert abs(rows.count - wanted) <= 16
    assert len({piece[:3] for piece in held}) == len(held)  # one run of tokens of each, on one side and in one fold
    assert all(any(document.startswith(piece) for document in documents) for piece in held)
    assert max(map(len, held)) <= tokens
    assert len(held) >= 0.5 * min(len(documents), wanted / tokens)


@given(
    lengths=st.lists(st.integers(1, 900), min_size=8, max_size=60, unique=True),  # equal documents share a fold
    wanted=st.integers(64, 4_000),
    folds=st.integers(2, 4),
)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_text_gives_what_is_asked_for_or_even_folds_of_what_it_has(tokenizer, lengths, wanted, folds):
    there = {side: [length + 1 for i, length in enumerate(lengths) if (i % 4 == 3) == side] for side in (False, True)}
    wanted = max(wanted, 4 * folds * 4)
    try:
        rows = pack(iter(sided("x" * length for length in lengths)), tokenizer, "toy", wanted, 4, folds)
    except InputError:
        assert min(len(of_side) for of_side in there.values()) < folds or min(map(min, there.values())) < 4
        return
    assert rows.count <= wanted + 3
    for side, asked in ((True, round(wanted / 16)), (False, round(wanted / 4) - round(wanted / 16))):
        counts = torch.bincount(rows.fold[rows.test == side])
        assert len(counts) == folds
        if counts.sum() == asked:
            assert counts.max() - counts.min() <= 1
        else:  # dealt to the emptiest fold, folds differ by no more than a document
            assert counts.max() == counts.min()
            most = max(there[side])
            assert counts.min() + 1 > min(asked // folds, ((sum(there[side]) - most * (folds - 1)) / folds) / 4 - 1)


def test_a_text_that_is_too_short_for_what_is_asked_gives_what_it_has_and_says_so(tokenizer):
    """To fit on 24 documents of 16 tokens, held out 8, in two folds each: all of it, and that is said."""
    documents = [f"{i:02d}" + "x" * 13 for i in range(32)]
    given = sided(documents)
    rows = pack(iter(given), tokenizer, "toy", 100_000, 8, 2)
    assert rows.count == 32 * 16
    assert [int((rows.test == side).sum()) for side in (False, True)] == [48, 16]
    assert sorted(piece for _, _, piece in every_piece(rows, tokenizer)) == documents
    assert "512 rows of the 100,000 asked for" in rows.note
    of_all, shorter, _ = rows.note.split("; ")
    assert of_all.startswith("32 documents of toy")
    assert shorter.startswith("512 rows of the 100,000 asked for")
    assert "asked for" not in pack(iter(given), tokenizer, "toy", 512, 8, 2).note


def test_one_side_may_be_short_and_the_other_not(tokenizer):
    documents = [(Document(f"{i:03d}" + "x" * 12), "train") for i in range(100)]
    documents += [(Document(f"{i:03d}" + "y" * 12), "test") for i in range(4)]
    rows = pack(iter(documents), tokenizer, "toy", 1_024, 16, 2)
    assert [int((rows.test == side).sum()) for side in (False, True)] == [48, 4]


def test_the_note_says_how_many_documents_and_how_much_of_each(tokenizer):
    rows = corpus_of(long_texts(40, 1_000), tokenizer).rows(1_024, 16, folds=2)
    used = len(every_piece(rows, tokenizer))
    assert rows.note == f"{used} documents of toy, at most 64 tokens of each"
    # each sequence's documents, read off its own text
    for span, ids in zip(rows.spans.tolist(), rows.ids, strict=True):
        assert span[1] - span[0] == int((ids[:-1] == tokenizer.eos_token_id).sum())


# --- special tokens


def test_held_out_sequences_that_stand_among_the_others_are_counted(tokenizer):
    """A page that all documents carry below their own title: it is no document that could be left out as a copy."""
    page = "".join(f"{place:03d}|" for place in range(12))
    documents = [f"{number:07d}|{page}" for number in range(64)]  # sequences of 8: the title, and then the page
    rows = pack(iter(sided(documents)), tokenizer, "toy", 1_024, 8, 2)
    to_fit_on, held_out = ({*map(tuple, rows.ids[rows.test == side].tolist())} for side in (False, True))
    shared = sum(tuple(sequence) in to_fit_on for sequence in rows.ids[rows.test].tolist())
    assert 0 < shared < rows.test.sum()
    assert held_out - to_fit_on
    assert f"{shared} of {rows.test.sum()} held-out sequences also stand among those to fit on" in rows.note
    apart = pack(iter(sided(long_texts(20))), tokenizer, "toy", 1_024, 16, 2)
    assert "held-out sequences" not in apart.note


def test_a_special_token_that_a_text_spells_is_read_as_text(tokenizer):
    documents = [f"document {i:03d} says {tokenizer.eos_token} twice {tokenizer.eos_token} here" for i in range(200)]
    rows = corpus_of(documents, tokenizer).rows(4_096, 16, folds=2)
    assert int((rows.ids == END).sum()) <= 200  # each ends once
    whole = tokenizer.decode(rows.ids[0].tolist() + rows.ids[1].tolist() + rows.ids[2].tolist())
    assert " says <" in whole
    assert tokenizer(f"a{tokenizer.eos_token}")["input_ids"][-1] == END  # elsewhere the tokenizer is as it was


@pytest.fixture
def with_bos(tokenizer):
    """A tokenizer that begins a text with a BOS, as those of Llama and Gemma do."""
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    bos = tokenizer.bos_token_id
    template = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


@pytest.mark.parametrize("contiguous", [False, True])
def test_every_sequence_begins_with_the_bos_that_a_tokenizer_begins_a_text_with(with_bos, contiguous):
    corpus = corpus_of(texts(), with_bos)
    rows = corpus.contiguous(4_096, 16) if contiguous else corpus.rows(4_096, 16, folds=2)
    assert rows.ids.shape == (256, 16)
    assert (rows.ids[:, 0] == with_bos.bos_token_id).all()
    assert (rows.ids[:, 1:] != with_bos.bos_token_id).all()
    if not contiguous:
        assert "<bos>" in rows.note
        read = with_bos.decode(rows.ids[:2, 1:].flatten().tolist())  # what stands behind goes on where it was cut
        assert any(text.startswith(read.split(with_bos.eos_token)[0]) for text in texts())


def test_a_bos_that_the_tokenizer_does_not_put_before_a_text_is_in_no_row(tokenizer):
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    rows = corpus_of(texts(), tokenizer).rows(4_096, 16, folds=2)
    assert (rows.ids != tokenizer.bos_token_id).all()
    assert "<bos>" not in rows.note


# --- what is on record, and what is refused


def test_the_built_in_corpora_give_the_rows_that_results_were_measured_on(tokenizer):
    """One document may fill four sequences and no more as long as that is enough, as for every recorded result."""
    recorded = tables.results("minis", "02_ceilings")["models"].set_index("model").rows_sha256["mini-gpt2"]
    assert load_corpus("docs", load_model("mini-gpt2")).rows().sha256 == recorded


@pytest.mark.parametrize(
    ("wanted", "seq_len", "folds", "least"),
    [(100, 16, 4, 256), (255, 16, 4, 256), (1_000, 1, 4, 16), (1_000, 16, 1, 64), (16, 16, 2, 128)],
)
def test_too_few_rows_for_the_folds_are_refused_and_the_least_number_named_is_enough(
    tokenizer, wanted, seq_len, folds, least
):
    message = f"{wanted} rows of {seq_len} tokens in 2 × {folds} folds: use at least {least} rows"
    with pytest.raises(InputError, match=message):
        corpus_of(texts(), tokenizer).rows(wanted, seq_len, folds=folds)
    if min(seq_len, folds) > 1:
        assert corpus_of(texts(), tokenizer).rows(least, seq_len, folds=folds).count == least


def test_without_documents_or_an_end_of_text_there_are_no_rows(tokenizer):
    with pytest.raises(InputError, match="of 0 documents to fit on and 0 held out"):
        corpus_of([], tokenizer).rows(1_000, 16, folds=2)
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="end-of-text"):
        corpus_of(texts(), tokenizer).rows(1_000, 16, folds=2)


@pytest.mark.parametrize("known", ["a", "unseen"])
def test_a_tokenizer_that_fails_at_what_it_does_not_know_is_one_line(known):
    words = Tokenizer(models.WordLevel({known: 0, "</s>": 1}))  # without a token for all others
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    with pytest.raises(InputError, match="tokenizer fails"):
        corpus_of(texts(), tokenizer).rows(1_000, 16, folds=2)


# --- a text in its own order


def test_a_contiguous_text_keeps_its_order_and_holds_out_its_tail(tokenizer):
    texts = [f"document {i} of many" for i in range(100)]
    corpus = Corpus("toy", tokenizer, texts)
    rows = corpus.contiguous(1_280, 16)
    whole = "".join(f"{text}{tokenizer.eos_token}" for text in texts)
    assert tokenizer.decode(rows.ids.flatten().tolist()) == whole[: len(tokenizer.decode(rows.ids.flatten().tolist()))]
    assert rows.ids.shape == (80, 16)
    assert rows.test.tolist() == [False] * 64 + [True] * 16
    assert rows.fold.tolist() == [i for i in range(8) for _ in range(8)] + [i for i in range(8) for _ in range(2)]


@pytest.mark.parametrize(
    ("rows", "tail", "message"),
    [
        (10_000, 0.2, "too short"),
        (640, 0.1, "each side needs 8"),
        (64, 0.5, "each side"),
        ("640", 0.2, "rows='640': give a whole number"),
        (640, "0.2", "tail='0.2': give a finite number"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_contiguous_text_without_enough_rows_is_refused(tokenizer, rows, tail, message):
    corpus = Corpus("toy", tokenizer, [f"document {i} of many" for i in range(100)])
    with pytest.raises(InputError, match=message):
        corpus.contiguous(rows, 16, tail)


def test_a_group_whose_fold_is_full_is_left_out(tokenizer):
    """Two folders to fit on and two held out: each has a fold, and what is more than its fold holds is in no other."""
    documents = []
    for folder, side in (("a", "train"), ("b", "train"), ("c", "test"), ("d", "test")):
        documents += [(Document(f"{folder}{i:02d}" + "x" * 28, f"p/{folder}/{i}.py"), side) for i in range(40)]
    interleaved = [documents[40 * folder + i] for i in range(40) for folder in range(4)]
    b_last = sorted(interleaved, key=lambda item: item[0].text[0] == "b")
    for documents in (interleaved, b_last):
        rows = pack(iter(documents), tokenizer, "toy", 1_024, 32, 2)
        assert rows.count == 1_024
        assert all(len(where) == 1 for where in places(rows, tokenizer, 1).values())
