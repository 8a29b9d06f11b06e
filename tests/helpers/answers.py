"""What a notebook says about its results: the recorded ones, and copies with changes planted by a test."""

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
    """A change that sets columns to values in the rows that a query finds, or in all rows; None empties a cell."""

    def change(found):
        where = found[table].index if rows is None else found[table].query(rows).index
        assert len(where), f"no {rows} in {table}"
        for column, value in values.items():
            if found[table][column].dtype.kind in "iu" and (value is None or isinstance(value, float)):
                found[table][column] = found[table][column].astype(float)
            found[table].loc[where, column] = np.nan if value is None else value

    return change


def keep(table, rows):
    """A change that keeps only the rows that a query finds; none if `rows` is False."""
    return lambda found: found.update({table: found[table].query(rows) if rows else found[table].iloc[:0]})


def gone(*names):
    """A change that removes some tables."""
    return lambda found: [found.pop(name) for name in names]


def of_an_encoder(found):
    """A change that leaves the public results of one encoder, in two of its blocks."""
    for column, values in (("model", ["minilm-l6"]), ("block", [0, 3])):
        found.update({name: table[table[column].isin(values)] for name, table in found.items() if column in table})


def answers(found):
    """Place → text: A for the sentences of the answer, R for replies to predictions, Q for answers to questions."""
    said = prose.describe(found)
    lists = {"A": said.answer, "R": said.replies, "Q": [answer for _, answer in said.questions]}
    return {f"{part}{number}": text for part, texts in lists.items() for number, text in enumerate(texts)}


@cache
def recorded_answers(stem, profile="minis"):
    return answers(recorded(profile, stem))


def words(text):
    """A text without its numbers; if it differs, another branch of the template was taken."""
    return re.sub(r"[−+±]?\d[\d,.]*", "#", text)


def moved(before, after, read=words):
    """The places whose text differs, in order, including those that appear or disappear."""
    places = sorted(before.keys() | after.keys(), key=lambda place: ("ARQ".index(place[0]), int(place[1:])))
    return " ".join(place for place in places if read(before.get(place, "")) != read(after.get(place, "")))


SLIP = re.compile(r"\bnan\b|(?<=[a-z,=] )None\b| [,.](?!\d)|\(\)|\[\]|\{\{|  ")


def broken(said):
    """The texts that are not whole sentences, or in which something is missing."""
    return [text for text in said.values() if SLIP.search(text) or not text.endswith((".", ".*", "`"))]
