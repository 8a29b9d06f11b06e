"""Which words of a notebook's page lead to the glossary."""

import pytest
from docutils import nodes
from sphinx import addnodes

from tools.book import glossary

ADDRESS = "../reading.html"


def entry(*words):
    anchor = words[0].replace(" ", "-")
    return glossary.Entry(words, anchor, (nodes.Text(f"what {words[0]} is"),))


ENTRIES = [entry("residual stream"), entry("residual"), entry("row"), entry("held out"), entry("gelu", "swiglu")]
ENTRIES += [entry("moments"), entry("rank")]


def page(*children):
    """A page with these parts, marked."""
    document = nodes.document(None, None)
    document += children
    glossary.Page(ENTRIES, ADDRESS).gloss(document)
    return document


def marked(*children):
    """The words that lead somewhere, as they stand."""
    return [link.astext() for link in page(*children).findall(glossary.Word)]


def said(*texts):
    """A paragraph of pieces of text."""
    return nodes.paragraph("", "", *[nodes.Text(text) for text in texts])


def test_only_the_first_is_marked():
    found = page(said("A row, and a row."), said("One more row."))
    (link,) = found.findall(glossary.Word)
    assert link["refuri"] == f"{ADDRESS}#row"
    (definition,) = found.findall(glossary.Definition)
    assert definition["ids"] == [link["described"]]
    assert definition.astext() == "what row is"
    assert "no-search" in definition["classes"]
    definition.parent.remove(definition)
    assert found.astext() == "A row, and a row.\n\nOne more row."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Rows are dealt", ["Rows"]),
        ("held-out text", ["held-out"]),
        ("Held out", ["Held out"]),
        ("a row's end", ["row"]),
        ("SwiGLU and GELU", ["SwiGLU", "GELU"]),
        ("residual streams, residuals", ["residual streams", "residuals"]),
        ("arrow, rowing, row-wise, rank-16", []),
        ("at the moment", []),
        ("the rank correlation, in a row, of rank 3", ["rank"]),
    ],
)
def test_variants_of_a_word(text, found):
    assert marked(said(text)) == found


def test_a_word_over_two_lines_is_one():
    """MyST has a piece of text for each line."""
    assert marked(said("the residual", "\n", "stream")) == ["residual\nstream"]


def test_emphasis_is_looked_into_and_code_headings_links_and_mathematics_are_not():
    link = nodes.reference("", "row", refuri="https://example.org")
    heading = nodes.section("", nodes.title("", "A row"), ids=["a"])
    left = nodes.paragraph("", "", nodes.literal("", "row"), nodes.math("", "row"), link)
    listing = nodes.literal_block("", "row")
    output = nodes.container("", said("a row"), classes=["cell_output"])
    table = nodes.table("", said("a row"))
    assert marked(heading, left, listing, output, table) == []
    assert marked(heading, left, listing, nodes.paragraph("", "", nodes.strong("", "row"))) == ["row"]


def test_what_lies_open_comes_before_what_is_folded():
    fold = [nodes.raw("", "<details>", format="html"), said("row, rank"), nodes.raw("", "</details>", format="html")]
    document = page(*fold, said("a row"))
    folded, open_ = document.findall(nodes.paragraph)
    assert [link.astext() for link in folded.findall(glossary.Word)] == ["rank"]
    assert [link.astext() for link in open_.findall(glossary.Word)] == ["row"]


def test_a_pages_own_link_to_the_glossary_stays_its_only_one():
    own = nodes.paragraph("", "", nodes.reference("", "lines of data", refuri=f"{ADDRESS}#row"))
    document = page(said("a row"), own)
    (link,) = document.findall(glossary.Word)
    assert link.astext() == "lines of data"
    assert not list(document.findall(nodes.reference))


@pytest.mark.parametrize("link", [nodes.reference(refuri="a.html"), addnodes.pending_xref(reftarget="using")])
def test_an_entry_is_read_without_its_links(link):
    """A tooltip is a link already; one to another page is a node that no page can show before it is resolved."""
    link += nodes.Text("which")
    words, section = nodes.section(ids=[glossary.SECTION]), nodes.section(ids=["row"])
    section += [nodes.title("", "Row"), nodes.paragraph("", "", nodes.Text("A token, "), link)]
    words += section
    document = nodes.document(None, None)
    document += words
    (found,) = glossary.entries(document)
    assert [type(node) for node in found.text] == [nodes.Text, nodes.Text]
    assert "".join(node.astext() for node in found.text) == "A token, which"
