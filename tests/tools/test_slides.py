"""The slides type no result, fit their pages and the lecture, and stop at a result that is gone."""

import json
import re

import pytest

from conftest import fingerprint
from howlinear.errors import SourceError
from howlinear.files import paths
from tests.tools import test_report
from tests.tools.test_report import PAPER, copy  # noqa: F401
from tools import report

SOURCE = (PAPER / "slides.typ").read_text(encoding="utf-8")
MINUTES = 90


def typed(source):
    """Numbers typed where only read ones may stand; a slide's minutes and how much of a figure it shows are ours."""
    return test_report.typed(re.sub(r'\b(?:minutes|columns|upper): \d+%?|numbering: "1"', "", source))


@pytest.fixture(scope="module")
def slides():
    """What each slide says of itself: the page it is on, its minutes."""
    return json.loads(report.compiler(source=report.SLIDES).query("<slide>", field="value"))


def test_the_slides_type_no_result():
    assert typed(SOURCE) == []
    assert typed(SOURCE + "\nin block 7 it is 0.98\n") == ["7", "0.98"]


def test_every_slide_is_one_page_and_all_fit_the_lecture(slides):
    """A slide that is too full goes on on a second page, and the next is one too late."""
    assert [slide["page"] for slide in slides] == list(range(1, len(slides) + 1))
    assert sum(slide["minutes"] for slide in slides) == MINUTES
    pages = report.compiler(source=report.SLIDES).compile(format="svg")
    assert len(pages) == len(slides)


@pytest.mark.long
def test_slides_and_notes_are_written_and_name_no_machine_or_day(tmp_path):
    report.write_slides(tmp_path)
    for name in ("slides", "notes"):
        pdf = (tmp_path / f"{name}.pdf").read_bytes()
        assert fingerprint(pdf) == fingerprint(report.build(source=report.SLIDES, notes=name == "notes"))
        for trace in (b"Date", str(paths.ROOT).encode(), b"/home"):
            assert trace not in pdf.replace(b"/Datetime", b"")
    assert (tmp_path / "slides.pdf").read_bytes() != (tmp_path / "notes.pdf").read_bytes()


@pytest.mark.long
def test_the_slide_on_claims_counts_their_kinds(copy):  # noqa: F811
    before = report.build(copy, report.SLIDES)
    ours = copy / "paper" / "claims_ours.toml"
    *claims, _ = ours.read_text(encoding="utf-8").split("[[claim]]")
    ours.write_text("[[claim]]".join(claims), encoding="utf-8")
    assert report.build(copy, report.SLIDES) != before


@pytest.mark.parametrize(("stem", "key"), [("02_ceilings", "spearman"), ("08_controls", "ratio")])
def test_a_renamed_key_stops_the_build(copy, stem, key):  # noqa: F811
    test_report.without_column(copy, "minis", stem, key)
    with pytest.raises(SourceError, match=f'slides.typ(.|\n)*key "{key}"'):
        report.build(copy, report.SLIDES)
