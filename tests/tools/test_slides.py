"""The slides type no result, say what is so, fit their pages, and can be read from the last row."""

import json
import re

import pytest

from conftest import fingerprint
from howlinear.errors import SourceError
from howlinear.files import paths, tables
from howlinear.ideas.claims.claim import Verdict
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


def test_no_semicolon_is_swallowed():
    assert re.findall(r"#[\w.-]+;|.*[)\]];", SOURCE) == []


def test_every_slide_is_one_page_and_all_fit_the_lecture(slides):
    """A slide that is too full goes on on a second page, and the next is one too late."""
    assert [slide["page"] for slide in slides] == list(range(1, len(slides) + 1))
    assert 20 <= len(slides) <= 30
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


# --- what the titles and notes say without a number -------------------------------------------------------------------


def test_the_loss_foretells_the_cost_and_r2_does_not():
    agreements = tables.results("minis", "06_compression")["agreements"]
    one = agreements[agreements["costs"] == "one block"].set_index("signal")
    assert one["rho_high"]["1 − R²"] < 0 < 0.5 < one["rho_low"]["price"]
    public = tables.results("public", "06_compression")["agreements"].query("costs == 'one block'").set_index("signal")
    assert not public.rho_low["1 − R²"] > 0
    assert public.rho_low[["price", "ablation"]].min() > 0


def test_the_most_linear_block_is_the_dearest_in_every_model_that_predicts_tokens():
    for name in ("public", "minis"):
        for _, blocks in tables.results(name, "02_ceilings")["blocks"].dropna(subset="dppl").groupby("model"):
            assert blocks.r2.idxmax() == blocks.dppl.idxmax()


def test_training_bends_gelu_models_and_all_go_up_first():
    for name, blocks in tables.results("minis", "02_ceilings")["blocks"].groupby("model"):
        if name != "mini-llama":
            assert blocks.r2.sum() < blocks.r2_untrained.sum()
        else:
            assert blocks.r2.sum() > blocks.r2_untrained_in_sample.sum()
    runs = tables.results("minis", "09_dynamics")["runs"]
    assert (runs.peak > runs[["start", "end"]].max(axis=1)).all()


@pytest.mark.parametrize("of", ["public", "minis"])
def test_what_is_left_is_quadratic_and_of_many_products(of):
    degrees = tables.results(of, "10_degrees")
    r2 = degrees["spectra"].set_index(["model", "block", "degree"]).r2.unstack()
    assert ((r2[2] - r2[1]) / (1 - r2[1])).min() > 0.5
    assert (degrees["probes"].query("rank == 16").share < 0.6).all()


def test_a_shortfall_in_a_public_model_is_not_largest_at_the_largest_condition_number():
    found = tables.results("public", "07_optimisers")
    beside = found["ways"].merge(found["blocks"], on=["model", "block"])
    worst = beside.loc[(beside.r2 - beside.reached).idxmax()]
    assert worst.condition < beside.condition.max()


@pytest.mark.parametrize("of", ["public", "minis"])
def test_no_protocol_changes_the_order_of_the_models(of):
    assert len(tables.results(of, "11_protocol")["orders"]) == 1


def test_where_random_bands_are_narrow_most_blocks_of_public_models_lie_outside():
    controls = tables.results("public", "08_controls")
    widest = controls["random"].assign(width=lambda table: table.r2_in_sample - table.r2).groupby("model").width.max()
    blocks = tables.results("public", "02_ceilings")["blocks"].groupby("model").size()
    outside = controls["by_model"].set_index("model").outside / blocks
    assert (outside[widest.index[widest < 0.1]] > 0.5).all()
    assert (outside[widest.index[widest > 0.5]] < 0.5).all()


def test_twins_of_two_architectures_or_texts_differ_by_more_than_seeds():
    assert tables.results("minis", "08_controls")["beside_seeds"].query("measured_on == 'all'").ratio_low.min() > 1


@pytest.mark.parametrize(("of", "lost"), [("public", 0.04), ("minis", 0.1)])
def test_profiles_travel_and_lines_do_not(of, lost):
    corpora = tables.results(of, "05_corpora")
    assert corpora["agreement"].r.min() > 0.9
    assert corpora["transfer"].groupby("model")["drop"].mean().min() > lost


def test_of_the_papers_texts_the_ledger_has_no_tick_and_between_the_end_blocks_r_falls():
    on_prose = tables.results("minis", "13_claims")["other_texts"]
    assert set(on_prose.claim) == {"text-same-shape", "text-small-shift"}
    assert not (on_prose.verdict == Verdict.HOLDS).any()
    agreement = tables.results("prose", "05_corpora")["agreement"]
    beside_docs = agreement[(agreement.corpus == "docs") | (agreement.other == "docs")]
    assert beside_docs.groupby("model").inner.min().max() < 0.9
