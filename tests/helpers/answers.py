"""What a notebook says of its results: the recorded ones, and others that differ in what a test plants."""

import re
from functools import cache

import numpy as np

from howlinear.files import tables
from howlinear.notebook import prose

recorded = cache(tables.results)


def changed(stem, *changes, profile="minis", **settings):
    """Recorded results of a notebook after some changes, each a function of its tables."""
    kept = recorded(profile, stem)
    found = {name: table.copy() for name, table in kept.items()}
    for change in changes:
        change(found)
    return tables.Results(stem, found, {"settings": {**kept.settings, **settings}})


def put(table, rows=None, **values):
    """Other values in these columns of the rows that a query finds, or of all; None where there is nothing to say."""

    def change(found):
        where = found[table].index if rows is None else found[table].query(rows).index
        assert len(where), f"no {rows} in {table}"
        for column, value in values.items():
            if found[table][column].dtype.kind in "iu" and (value is None or isinstance(value, float)):
                found[table][column] = found[table][column].astype(float)
            found[table].loc[where, column] = np.nan if value is None else value

    return change


def keep(table, rows):
    """Only the rows that a query finds; none by `False`."""
    return lambda found: found.update({table: found[table].query(rows) if rows else found[table].iloc[:0]})


def gone(*names):
    """Without some tables."""
    return lambda found: [found.pop(name) for name in names]


def of_an_encoder(found):
    """Public results of an encoder alone, and of two of its blocks."""
    for column, values in (("model", ["minilm-l6"]), ("block", [0, 3])):
        found.update({name: table[table[column].isin(values)] for name, table in found.items() if column in table})


def answers(found):
    """Every answer by its place: A the answer's sentences, R the replies to predictions, Q the questions."""
    said = prose.describe(found)
    lists = {"A": said.answer, "R": said.replies, "Q": [answer for _, answer in said.questions]}
    return {f"{part}{number}": text for part, texts in lists.items() for number, text in enumerate(texts)}


@cache
def recorded_answers(stem, profile="minis"):
    return answers(recorded(profile, stem))


def words(text):
    """A text without its numbers: where it is another one, another branch of the template was taken."""
    return re.sub(r"[−+±]?\d[\d,.]*", "#", text)


def moved(before, after, read=words):
    """The places where something else is said than before, in order, with one that came or went."""
    places = sorted(before.keys() | after.keys(), key=lambda place: ("ARQ".index(place[0]), int(place[1:])))
    return " ".join(place for place in places if read(before.get(place, "")) != read(after.get(place, "")))


SLIP = re.compile(r"\bnan\b|(?<=[a-z,=] )None\b| [,.](?!\d)|\(\)|\[\]|\{\{|  ")


def broken(said):
    """Texts that are not whole sentences, or in which something is missing."""
    return [text for text in said.values() if SLIP.search(text) or not text.endswith((".", ".*", "`"))]
