"""What FINDINGS.md, LEDGER.md, ANSWERS.md and the course's pages take from the results of public and embedded models.

`python -m tools.pages`, or `make readme`, puts each table between its two marks and leaves all else as it was. The
findings have two of notebook 02's numbers and one of 14's; the ledger has that of the claims; the answers are those of
all notebooks, with a figure each. Of the course's pages the syllabus has the notebooks with their minutes, that for
instructors the numbers to expect, and that of the plans a lesson of each. A test holds that the pages show what the
results imply, so nothing else has to remember to run this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from howlinear.core.profile_statistics import few_rows_decide
from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.files import atomic, paths
from howlinear.files.tables import Results
from howlinear.files.tables import results as load_results
from howlinear.ideas.claims import ledger as claims
from howlinear.instrument.baseline import APART
from howlinear.notebook.prose import Prose, describe_recorded
from tools import lessons, teaching
from tools.book import build

PUBLIC = "<!-- numbers: results/public/02_ceilings -->"
NUMBERS = "<!-- numbers: results/minis/02_ceilings -->"
RACE = "<!-- numbers: results/public/14_compress -->"
CLAIMS = "<!-- claims -->"
ANSWERS = "<!-- answers -->"
NOTEBOOKS = "<!-- notebooks -->"
WEEKS = "<!-- weeks -->"
END = "<!-- end -->"

EMBEDDED = "the embedded models"

SYLLABUS = "book/course/syllabus.md"
INSTRUCTOR = "book/course/instructor.md"
PLANS = "book/course/plans.md"


def tables(results: Path) -> dict[str, dict[str, str]]:
    """All tables as a folder of results implies them: page → the mark that each follows → Markdown.

    Args:
        results: the folder that holds those of each run profile, `minis` and `public`.

    Raises:
        SourceError: results of notebook 02 are missing, or some lack what a table shows.
    """
    minis = results / "minis"
    public = results / "public"
    ledger = claims.to_markdown(claims.evaluate(minis), claims.evaluate(public))
    findings = {
        PUBLIC: _shown(public / "02_ceilings", public_table),
        RACE: _shown(public / "14_compress", race_table),
        NUMBERS: _shown(minis / "02_ceilings", ceilings_table),
    }
    stems = build.stems()
    syllabus = {NOTEBOOKS: teaching.notebooks_table(stems), WEEKS: teaching.weeks_table()}
    instructor = {expect(stem): expected(stem, results) for stem in stems}
    return {
        "FINDINGS.md": findings,
        "LEDGER.md": {CLAIMS: ledger},
        "ANSWERS.md": {ANSWERS: "\n\n".join(answer(stem, results) for stem in stems)},
        SYLLABUS: syllabus,
        INSTRUCTOR: instructor,
        PLANS: planned(results),
    }


def expect(stem: str) -> str:
    """The mark of the numbers to expect of a notebook."""
    return f"<!-- expect: {stem} -->"


def plan(stem: str) -> str:
    """The mark of the lesson plan of a notebook."""
    return f"<!-- plan: {stem} -->"


def planned(results: Path) -> dict[str, str]:
    """The lesson plans: mark → page, with the numbers of the embedded models, which a class runs.

    Args:
        results: the folder that holds those of each run profile.

    Raises:
        SourceError: the results are missing, or lack what an answer says.
        InputError: a plan and its notebook do not fit together.
    """
    pages = {}
    for stem, of_notebook in lessons.plans().items():
        pages[plan(stem)] = lessons.page(stem, of_notebook, describe_recorded(results / "minis", stem))
    return pages


def expected(stem: str, results: Path) -> str:
    """The numbers to expect of a notebook: of the embedded models, and of the public ones if there are results.

    Args:
        stem: of the notebook.
        results: the folder that holds those of each run profile.

    Raises:
        SourceError: the results are missing, or lack what the answer says.
    """
    return teaching.expected({EMBEDDED: describe_recorded(results / "minis", stem)} | _public(stem, results))


def answer(stem: str, results: Path) -> str:
    """What a notebook asks and what it found, of the public models first, with the figure that its lesson shows.

    Arguments and errors as of `expected`.
    """
    _, _, name = lessons.plans()[stem]["figure"].partition("/")
    profile = "public" if (paths.figures("public") / f"{name}.png").is_file() else "minis"
    figure = f'<img src="figures/{profile}/{name}.png" width="560" alt="{lessons.captions()[name]}">'
    answers = teaching.answered(_public(stem, results) | {EMBEDDED: describe_recorded(results / "minis", stem)})
    heading = f"## {stem[:2]} · {teaching.question(stem)}"
    whose = "the public models" if profile == "public" else "the embedded models"
    source = f"From [{stem}](notebooks/{stem}.py); the figure is of {whose}."
    return "\n\n".join([heading, answers, figure, source])


def _public(stem: str, results: Path) -> dict[str, Prose]:
    """What kind of models the public ones are → what a notebook found of them, if there are results."""
    folder = results / "public"
    there = (folder / f"{stem}.json").is_file() or (folder / stem).is_dir()
    return {"the public models": describe_recorded(folder, stem)} if there else {}


def _shown(path: Path, table: Callable[[Results], str]) -> str:
    """A table of the results of one notebook."""
    try:
        return table(load_results(path.parent, path.name))
    except HowlinearError:
        raise  # it says itself what is wrong
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"{path} does not hold what the table of it shows ({problem}): run notebook {path.stem[:2]} again"
        ) from error


def public_table(results: Mapping[str, pd.DataFrame]) -> str:
    """What notebook 02 found of public models, a row a model: also the blocks that a few massive rows decide."""
    rows = []
    for model in results["models"].itertuples():
        blocks = results["blocks"].query("model == @model.model")
        decided = [
            f"{block.block}: {block.r2:.2f} → {block.r2_ordinary:.2f} without {block.massive_rows / model.rows:.1%} of "
            "the rows"
            for block in blocks.itertuples()
            if few_rows_decide(block.r2, block.r2_ordinary)
        ]
        rows.append(
            {
                "model": model.model,
                "perplexity": "none, an encoder" if pd.isna(model.perplexity) else f"{model.perplexity:.1f}",
                "R²_lin, lowest – highest block": f"{blocks.r2.min():.2f} – {blocks.r2.max():.2f}",
                "of ordinary rows": f"{blocks.r2_ordinary.min():.2f} – {blocks.r2_ordinary.max():.2f}",
                "blocks that massive rows decide": "; ".join(decided) or "none",
            }
        )
    return pd.DataFrame(rows).to_markdown(index=False, tablefmt="github", stralign=None, disable_numparse=True)


def race_table(results: Results) -> str:
    """What notebook 14 found of the first public model on its main text, a row a compressor, the best at first."""
    race = results["race"].dropna(subset=["ratio"])
    race = race[(race["model"] == race["model"].iloc[0]) & (race["corpus"] == race["corpus"].iloc[0])]
    smallest = race[race["share"] == race["share"].min()].set_index("method")["ratio"]
    rows = []
    for method in sorted(race["method"].unique(), key=lambda name: smallest.get(name, float("inf"))):
        cells = {"way": method}
        for share, of_share in race.groupby("share", sort=False):
            found = of_share[of_share["method"] == method]
            cells[f"{share:.0%}"] = _times(found.iloc[0]) if len(found) else "–"
        rows.append(cells)
    return pd.DataFrame(rows).to_markdown(index=False, tablefmt="github", stralign=None, disable_numparse=True)


def _times(row: pd.Series) -> str:
    """A ratio of perplexities with its interval; beyond ten nothing but its size matters."""
    if row["ratio"] >= 10:
        return f"{row['ratio']:,.0f}"
    digits = 2 if row["ratio_high"] < 10 else 1
    return f"{row['ratio']:.{digits}f} [{row['ratio_low']:.{digits}f}, {row['ratio_high']:.{digits}f}]"


def ceilings_table(results: Mapping[str, pd.DataFrame]) -> str:
    """What notebook 02 found, a row a model, and below it how alike the profiles are."""
    rows = []
    for model in results["models"].itertuples():
        blocks = results["blocks"].query("model == @model.model")
        dearest = blocks.loc[blocks.dppl.idxmax()]
        rows.append(
            {
                "model": model.model,
                "perplexity": f"{model.perplexity:.1f}",
                "R²_lin, lowest – highest block": f"{blocks.r2.min():.2f} – {blocks.r2.max():.2f}",
                "before training": before_training(blocks),
                "dearest swap, ΔPPL": (
                    f"{dearest.dppl:+.2f} [{dearest.dppl_low:+.2f}, {dearest.dppl_high:+.2f}], block {dearest.block}"
                ),
                "ρ": f"{model.spearman:+.2f}",
            }
        )
    table = pd.DataFrame(rows).to_markdown(index=False, tablefmt="github", disable_numparse=True)
    alike = [f"{pair.model} ~ {pair.other}: r = {pair.pearson:.2f}" for pair in results["likeness"].itertuples()]
    legend = (
        "Before training, *within*: from the lowest held-out to the highest in-sample R², where the two still lie "
        "apart at the most rows that were tried; the truth lies between. "
        "ρ: Spearman correlation of R²_lin with the swap's cost; above 0, more linear is dearer."
    )
    return f"{table}\n\n{legend} Correlation of profiles: {', '.join(alike)}."


def before_training(blocks: pd.DataFrame) -> str:
    """The lowest and the highest block; or what holds them all, if held-out and in-sample R² do not meet."""
    held_out, in_sample = blocks.r2_untrained, blocks.r2_untrained_in_sample
    if (in_sample - held_out).max() > APART:
        return f"within [{held_out.min():.2f}, {in_sample.max():.2f}]"
    return f"{held_out.min():.2f} – {held_out.max():.2f}"


def replace(text: str, mark: str, table: str) -> str:
    """A text with a table between the one line `mark` and the next line that ends it, and all else as it was.

    Raises:
        InputError: a mark is missing, or there twice, or another stands where the end should.
    """
    start = f"{mark}\n"
    if text.count(mark) != 1 or start not in text:
        raise InputError(f"found {text.count(mark)} lines {mark}; a table belongs between one such line and {END}")
    before, _, rest = text.partition(start)
    old, end, after = rest.partition(END)
    if not end or "<!--" in old:
        raise InputError(f"no line {END} closes {mark}; a table belongs between these two")
    return f"{before}{start}{table}\n{END}{after}"


def write(path: Path, of_page: Mapping[str, str]) -> bool:
    """Write tables into a file that has their marks; whether anything changed.

    Args:
        path: the page.
        of_page: mark → table.

    Raises:
        InputError: as `replace`.
        SourceError: the file cannot be read or written.
    """
    try:
        old = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}; the tables go into a text with marks") from error
    new = old
    for mark, table in of_page.items():
        new = replace(new, mark, table)
    if new == old:
        return False
    with atomic.written_aside(path) as aside:
        aside.write_text(new, encoding="utf-8")
    return True


def main(folder: Path = paths.ROOT) -> int:
    """Write the pages of a project from its results and say which changed; 2 if something is missing or wrong."""
    try:
        for name, of_page in tables(folder / "results").items():
            changed = write(folder / name, of_page)
            print(f"{name}: tables {'written' if changed else 'as the results imply; nothing to do'}")
    except HowlinearError as error:
        print(f"howlinear: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
