"""Toy documents, and which of them the rows hold."""

from itertools import product

from howlinear.text.corpus import Corpus

END = 0  # id of the end of text in the tests' tokenizer


def texts(n=300, length=60):
    """Documents that begin with their own number."""
    return [f"document {i:04d}: " + "words and " * (1 + (7 * i) % (length // 5)) for i in range(n)]


def corpus_of(documents, tokenizer, reserved=0.0):
    return Corpus("toy", tokenizer, documents, reserved)


def pieces(rows, tokenizer, side, fold):
    """The documents of a fold; the last may be cut."""
    ids = rows.ids[(rows.test == side) & (rows.fold == fold)].flatten().tolist()
    found, piece = [], []
    for token in [*ids, END]:
        if token == END:
            found += [tokenizer.decode(piece)] if piece else []
            piece = []
        else:
            piece.append(token)
    return found


def every_piece(rows, tokenizer):
    """Triples of side, fold and document, over all folds."""
    folds = product((False, True), range(int(rows.fold.max()) + 1))
    return [(side, fold, piece) for side, fold in folds for piece in pieces(rows, tokenizer, side, fold)]


def places(rows, tokenizer, characters):
    """The first characters of each document → the sides and folds that it is found in."""
    found = {}
    for side, fold, piece in every_piece(rows, tokenizer):
        if len(piece) >= 6:  # shorter pieces are cut before their number
            found.setdefault(piece[:characters], set()).add((side, fold))
    return found
