"""Link the first use of each glossary word in the book's notebooks to its entry, which also shows as a tooltip.

A Sphinx extension. The glossary is the section "The words" of `book/reading.md`, with a heading for each entry; the
notebooks themselves do not change. Words are looked for only in paragraphs, so code, outputs, headings, tables, links
and mathematics are not touched. `book/_static/book.css` shows the tooltip on hover and on keyboard focus, without a
script; a `title` would show on hover only, and without mathematics. `aria-describedby` lets screen readers read it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from docutils import nodes
from sphinx.application import Sphinx
from sphinx_design.dropdown import dropdown_main

from howlinear.errors import InputError

GLOSSARY = "reading"
SECTION = "the-words"
PLAIN = (nodes.emphasis, nodes.strong, nodes.inline)
"""Markup that may surround a word within a paragraph."""
OTHERWISE = (
    r"rank correlations?",
    r"(?:in )?a row of",
    r"in a row",
    r"put a gate",
    r"below the fold",
    r"the line (?:above|is the threshold)",
    r"variance is signal",
)
"""Phrases in which a notebook uses a word of the glossary in another sense."""


class Word(nodes.inline):
    """A word that links to its entry by `refuri`; `described` is the id of its definition."""


class Definition(nodes.inline):
    """The glossary's text on the word before it; the page's search skips it."""


@dataclass(frozen=True)
class Entry:
    """An entry of the glossary: its words in lower case, its id on the page, and its text."""

    words: tuple[str, ...]
    anchor: str
    text: tuple[nodes.Node, ...]


def entries(glossary: nodes.document) -> list[Entry]:
    """The entries of the glossary's page, without links within them."""
    for section in glossary.findall(nodes.section):
        if SECTION in section["ids"]:
            return [_entry(part) for part in section.children if isinstance(part, nodes.section)]
    raise InputError(f"{GLOSSARY}.md has no section {SECTION}: the glossary of the book is read from it")


def _entry(section: nodes.section) -> Entry:
    title, paragraph = section.next_node(nodes.title), section.next_node(nodes.paragraph)
    text = paragraph.deepcopy()
    for link in list(text.findall(_is_link)):
        link.parent.replace(link, link.children)
    return Entry(tuple(title.astext().lower().split(", ")), section["ids"][0], tuple(text.children))


def _is_link(node: nodes.Node) -> bool:
    """Whether a node is a link, also one to another page, which Sphinx has yet to resolve."""
    return isinstance(node, nodes.Inline) and ("refuri" in node or "reftarget" in node)


def pattern(words: Mapping[str, Entry]) -> re.Pattern:
    """A pattern for words as they are, hyphenated, or in the plural; the longest word wins.

    A match with the group `word` is a word of the glossary; without it, the word has another sense.
    """
    forms = [_forms(word) for word in sorted(words, key=len, reverse=True)]
    others = "|".join(phrase.replace(" ", r"\s+") for phrase in OTHERWISE)
    return re.compile(rf"(?<![\w-])(?:{others}|(?P<word>{'|'.join(forms)}))(?![\w-])", re.IGNORECASE)


def _forms(word: str) -> str:
    if word.endswith("y"):
        ending = re.escape(word[:-1]) + "(?:y|ies)"
    elif word.endswith("s"):
        ending = re.escape(word)
    else:
        ending = re.escape(word) + "s?"
    return ending.replace(r"\ ", r"(?:\s+|-)")


class Page:
    """A notebook's page, with the words that it has not linked yet."""

    def __init__(self, glossary: list[Entry], address: str):
        self.address = address
        self.left = {word: entry for entry in glossary for word in entry.words}
        self.pattern = pattern(self.left)

    def gloss(self, document: nodes.document) -> None:
        """Mark the first visible use of each word, or its first use in folded text if there is no visible one.

        A word that the page itself links to the glossary keeps that link as its only one.
        """
        for link in list(document.findall(nodes.reference)):
            self._own(link)
        seen, folded = [], []
        for paragraph, hidden in paragraphs(document):
            (folded if hidden else seen).append(paragraph)
        for paragraph in seen + folded:
            self._within(paragraph)

    def _own(self, link: nodes.reference) -> None:
        """Give a definition to the first of the page's own links to an entry."""
        entry = next((one for one in self.left.values() if link.get("refuri") == f"{self.address}#{one.anchor}"), None)
        if entry is not None:
            self.left = {word: one for word, one in self.left.items() if one is not entry}
            link.parent.replace(link, self._glossed(entry, entry.anchor, link.children))

    def _within(self, parent: nodes.Element) -> None:
        children: list[nodes.Node] = []
        for is_text, run in groupby(parent.children, lambda child: isinstance(child, nodes.Text)):
            if is_text:
                children += self._marked("".join(run))  # MyST has a piece for each line
                continue
            for child in run:
                if isinstance(child, PLAIN) and "glossed" not in child["classes"]:
                    self._within(child)
                children.append(child)
        parent[:] = children

    def _marked(self, text: str) -> Iterator[nodes.Node]:
        end = 0
        for match in self.pattern.finditer(text):
            found = match["word"]
            word = found and self._singular(found)
            if not word:
                continue
            entry = self.left.pop(word)
            if match.start() > end:
                yield nodes.Text(text[end : match.start()])
            yield self._glossed(entry, word, [nodes.Text(found)])
            end = match.end()
        if end < len(text):
            yield nodes.Text(text[end:])

    def _singular(self, found: str) -> str | None:
        """The glossary's form of the matched word, or None if the page has linked it already."""
        for word in self.left:
            if re.fullmatch(_forms(word), found, re.IGNORECASE):
                return word
        return None

    def _glossed(self, entry: Entry, name: str, shown: list[nodes.Node]) -> nodes.inline:
        described = "definition-of-" + name.replace(" ", "-")
        link = Word("", "", *shown, refuri=f"{self.address}#{entry.anchor}", described=described)
        text = [node.deepcopy() for node in entry.text]
        definition = Definition("", "", *text, ids=[described], classes=["definition", "no-search"])
        return nodes.inline("", "", link, definition, classes=["glossed"])


def paragraphs(document: nodes.document) -> Iterator[tuple[nodes.paragraph, bool]]:
    """The paragraphs of a page's own text, in order, each with whether it is folded away."""
    open_details = 0
    for node in document.findall():
        if isinstance(node, nodes.raw):
            open_details += node.astext().count("<details") - node.astext().count("</details")
        elif isinstance(node, nodes.paragraph):
            around = list(_ancestors(node))
            if not any(isinstance(one, nodes.table) or "cell_output" in one["classes"] for one in around):
                yield node, open_details > 0 or any(isinstance(one, dropdown_main) for one in around)


def _ancestors(node: nodes.Node) -> Iterator[nodes.Element]:
    while node.parent is not None:
        node = node.parent
        yield node


def gloss(app: Sphinx, document: nodes.document, name: str) -> None:
    """Mark the words of a notebook's page; the single page for printing has no marked words."""
    if not name.startswith("notebooks/"):
        return
    glossary = entries(app.env.get_doctree(GLOSSARY))
    Page(glossary, app.builder.get_relative_uri(name, GLOSSARY)).gloss(document)
    if any(True for _ in document.findall(nodes.math)):
        app.env.get_domain("math").data["has_equations"][name] = True  # of a definition, if not of the page itself


def setup(app: Sphinx) -> dict[str, bool]:
    """Set up the extension; called by Sphinx."""

    def open_word(page, node: Word) -> None:
        named = {"href": node["refuri"], "aria-describedby": node["described"]}
        page.body.append(page.starttag(node, "a", "", CLASS="reference internal", **named))

    def open_definition(page, node: Definition) -> None:
        page.body.append(page.starttag(node, "span", "", role="tooltip"))

    app.add_node(Word, html=(open_word, lambda page, _: page.body.append("</a>")))
    app.add_node(Definition, html=(open_definition, lambda page, _: page.body.append("</span>")))
    app.connect("doctree-resolved", gloss)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
