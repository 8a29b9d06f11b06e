"""Fill the pages of findings and of the course from the results of public and embedded models.

`python -m tools.pages`, or `make readme`, fills the templates of `tools/templates` and puts each between its two marks;
the rest of a page is left as it was. The findings, README's summary of them and the questions to the author are prose
with every number from a table: reword them in the template. The ledger lists the claims, and the page of answers has
every notebook's answer with a figure. In the course, the syllabus lists the notebooks with their minutes, the
instructor's page the numbers to expect, and the page of plans a lesson for each notebook. A test fails if a page does
not show what the results imply.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from howlinear.errors import InputError, SourceError, ending_in_one_line
from howlinear.files import atomic, paths
from howlinear.files.tables import Results
from howlinear.notebook import execute, prose
from howlinear.notebook.prose import Prose
from tools import ledger, lessons, teaching
from tools.lessons import recorded, recorded_tables

TEMPLATES = paths.ROOT / "tools" / "templates"

FINDINGS = "<!-- findings -->"
ASKED = "<!-- questions -->"
CLAIMS = "<!-- claims -->"
ANSWERS = "<!-- answers -->"
NOTEBOOKS = "<!-- notebooks -->"
WEEKS = "<!-- weeks -->"
END = "<!-- end -->"

KINDS = {"public": "the public models", "minis": "the embedded models"}

README = "README.md"
LETTER = "paper/correspondence.md"
FINDINGS_PAGE = "results/README.md"
LEDGER_PAGE = "results/ledger.md"
ANSWERS_PAGE = "results/answers.md"
SYLLABUS = "book/course/syllabus.md"
INSTRUCTOR = "book/course/instructor.md"
PLANS = "book/course/plans.md"


def tables(results: Path) -> dict[str, dict[str, str]]:
    """All tables that follow from a folder of results: page → the mark before the table → Markdown."""
    stems = execute.stems()
    return {
        README: {FINDINGS: fill_prose("readme", results)},
        FINDINGS_PAGE: {FINDINGS: fill_prose("findings", results)},
        LETTER: {ASKED: fill_prose("letter", results)},
        LEDGER_PAGE: {CLAIMS: ledger.page(results)},
        ANSWERS_PAGE: {ANSWERS: answers(stems, results)},
        SYLLABUS: {NOTEBOOKS: teaching.notebooks_table(stems), WEEKS: teaching.weeks_table()},
        INSTRUCTOR: {
            f"<!-- expect: {stem} -->": teaching.expected(described(stem, results, "minis", "public")) for stem in stems
        },
        PLANS: {  # with the numbers of the embedded models, which a class runs
            f"<!-- plan: {stem} -->": lessons.page(stem, plan, recorded(results / "minis", stem))
            for stem, plan in lessons.plans().items()
        },
    }


def fill_prose(template: str, results: Path) -> str:
    """A prose template filled with numbers from tables, such as `public("02_ceilings")["blocks"]`."""
    public, minis = (partial(recorded_tables, results / name) for name in ("public", "minis"))

    def measured(stem: str, table: str) -> Results:
        """A notebook's results of the public models, or of the embedded ones if the public models lack the table."""
        return public(stem) if (results / "public" / stem / f"{table}.csv").is_file() else minis(stem)

    at_hand = {"public": public, "minis": minis, "measured": measured, "figure": figure}
    return _filled(template, Results("several notebooks", {}), **at_hand)


def figure(name: str) -> str:
    """A figure with its caption: of the public models, or of the embedded ones if there is none."""
    profile, caption = whose_figure(name), prose.captions()[name]
    return f'<img src="../figures/{profile}/{name}.png" width="560" alt="{caption}">\n\n*{caption}.*'


def whose_figure(name: str) -> str:
    """The run profile that draws a figure: `public`, or `minis` if the public models do not have it."""
    return "public" if (paths.figures("public") / f"{name}.png").is_file() else "minis"


def answers(stems: list[str], results: Path) -> str:
    """Every notebook's question and findings, public models first, each with its lesson's figure."""
    pages = []
    for stem in stems:
        _, _, drawn = lessons.plans()[stem]["figure"].partition("/")
        found = described(stem, results, "public", "minis")
        page = {"stem": stem, "question": teaching.question(stem), "answers": teaching.answered(found)}
        pages.append(page | {"figure": figure(drawn), "whose": KINDS[whose_figure(drawn)]})
    return _filled("answers", Results("answers", {}), pages=pages)


def described(stem: str, results: Path, *profiles: str) -> dict[str, Prose]:
    """Kind of models → what a notebook found for them; it may have no results of public models."""
    there = [profile for profile in profiles if profile == "minis" or (results / profile / stem).is_dir()]
    return {KINDS[profile]: recorded(results / profile, stem) for profile in there}


def _filled(name: str, found: Results, **more: Any) -> str:
    return prose.render(TEMPLATES / f"{name}.md", found, **more).strip()


def replace(text: str, mark: str, table: str) -> str:
    """The text with a table between the line `mark` and the next end mark, and all else as it was."""
    start = f"{mark}\n"
    if text.count(mark) != 1 or start not in text:
        raise InputError(f"found {text.count(mark)} lines {mark}; a table belongs between one such line and {END}")
    before, _, rest = text.partition(start)
    old, end, after = rest.partition(END)
    if not end or "<!--" in old:
        raise InputError(f"no line {END} closes {mark}; a table belongs between these two")
    return f"{before}{start}{table}\n{END}{after}"


def write(path: Path, of_page: Mapping[str, str]) -> bool:
    """Write tables into a file, each after its mark; return whether anything changed."""
    try:
        old = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}; the tables go into a text with marks") from error
    new = old
    for mark, table in of_page.items():
        new = replace(new, mark, table)
    if new == old:
        return False
    atomic.write_text(path, new)
    return True


@ending_in_one_line()
def main(folder: Path = paths.ROOT) -> None:
    """Write the pages of a project from its results and say which changed."""
    for name, of_page in tables(folder / "results").items():
        changed = write(folder / name, of_page)
        print(f"{name}: tables {'written' if changed else 'as the results imply; nothing to do'}")


if __name__ == "__main__":
    main()
