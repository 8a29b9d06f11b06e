"""The report types no result, fails without one, and is the committed PDF to the byte."""

import json
import re
import shutil

import pandas as pd
import pytest
import typst

from conftest import fingerprint
from howlinear.errors import SourceError
from howlinear.files import paths
from tools import report

PAPER = paths.ROOT / "paper"
PARTS = ("main.typ", "appendix.typ", "reproducibility.typ")
SOURCE = "".join((PAPER / name).read_text(encoding="utf-8") for name in PARTS)
TEMPLATE = (PAPER / "template.typ").read_text(encoding="utf-8")
READ = ("results", "figures", "models", "profiles")
RECORDED = {path.parent.name for path in (paths.ROOT / "results" / "public").glob("*/*.csv")}

# --- no result is typed -----------------------------------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.,])\d[\d.,]*(?<![.,])(?!\w)")
LENGTH = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?(?:pt|em|cm|mm|in|fr)|(?:scale|width): \d+%)")
FREE = [  # what may hold digits and is no result
    re.compile(r"(?m)(?<![:\w])//.*$"),  # a comment
    re.compile(r'\.at\("[^"]*"\)'),  # a key of the results
    re.compile(r'(?<=[(\[ ])"\d\d_\w+"'),  # the stem of a notebook
    re.compile(r'"(?:notebooks|lib|models|profiles|/[a-z]+)/[^"]*"'),  # a file
    re.compile(r"the paper’s figure \d"),
    re.compile(r"GPT-2|WikiText-2|C\+\+|float(?:32|64)"),
    re.compile(r"\bdigits: \d\b"),
    re.compile(r"(?:[<>]=?|==) 0(?![\d.])"),  # a sign
    LENGTH,
]
WORDS = re.compile(r"\b(?:three|four|five|six|seven|eight|nine|ten|eleven|twelve|half|third|quarter)\b", re.IGNORECASE)


def code_of(source):
    """The spans of `#let` at the start of a line, to where its brackets close."""
    for start in (match.start() for match in re.finditer(r"(?m)^#let ", source)):
        depth = 0
        for end in range(start, len(source)):
            depth += (source[end] in "([{") - (source[end] in ")]}")
            if source[end] == "\n" and not depth:
                break
        yield start, end


def typed(source):
    """Numbers that a source types where only read ones may stand."""
    for pattern in FREE:
        source = pattern.sub(lambda found: " " * len(found.group()), source)
    lets = list(code_of(source))
    maths = [match.span() for match in re.finditer(r"\$[^$]*\$", source)]
    found = []
    for match in NUMBER.finditer(source):
        decimal = "." in match.group() or "," in match.group() or len(match.group()) > 1
        inside = [span for span in lets + maths if span[0] <= match.start() < span[1]]
        bound = re.search(r"#let [\w-]+ = $", source[: match.start()]) and inside and inside[0] in lets
        index = source[match.end()] == ")" and source[match.start() - 1] in "( "  # an argument: .first(0), (name, 1)
        if decimal or bound or not (inside or index):
            found.append(match.group())
    prose = "".join(char for i, char in enumerate(source) if not any(a <= i < b for a, b in lets))
    return found + WORDS.findall(prose)


@pytest.mark.parametrize(
    ("line", "literals"),
    [
        ("in twelve blocks of 128 the share is 0.73", ["128", "0.73", "twelve"]),
        ("$R^2 = 0.9$ and $rho = 1$", ["0.9"]),
        ("#let depth = 9", ["9"]),
        ('#let places = f("0.71", key)', ["0.71"]),
        ("#text[block 7] of Pythia-160m, 1 model", ["7", "1"]),
        ("#h(0.25em) $R^2_1 = 1 - e / s$, float64, GPT-2, the paper’s figure 3", []),
        ('#fixed(it.at("0.001"), digits: 3) #percent(by-degree(name, 1)) // 0.7', []),
        ("#let rest(b, k) = (b.r2.at(k) - b.r2.first()) / (1 - b.r2.first())", []),
    ],
)
def test_the_scan_sees_what_is_typed_and_nothing_else(line, literals):
    assert typed(line + "\n") == literals


def test_the_report_types_no_result():
    assert typed(SOURCE) == []


# --- it is built from what is there -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built():
    return report.build()


def test_the_committed_report_is_a_fresh_one(built):
    """If this fails, a result, a figure or the text has moved: `make paper`, and read what changed."""
    assert fingerprint((PAPER / "main.pdf").read_bytes()) == fingerprint(built)


def test_the_report_names_no_machine_or_day(built):
    for trace in (b"Date", str(paths.ROOT).encode(), b"/tmp", b"/home"):
        assert trace not in built.replace(b"/Datetime", b"")


@pytest.fixture
def copy(tmp_path):
    """The project, as far as the report reads it: its own folder copied, the rest linked file by file."""
    shutil.copytree(PAPER, tmp_path / "paper")
    shutil.copy(paths.ROOT / "CITATION.cff", tmp_path)
    for folder in READ:
        (tmp_path / folder).symlink_to(paths.ROOT / folder)
    return tmp_path


def unlinked(root, folder, profile="public"):
    """The same with the files of one run profile linked one by one, so that one can be replaced."""
    (root / folder).unlink()
    (root / folder).mkdir()
    for other in (paths.ROOT / folder).iterdir():
        if other.name != profile:
            (root / folder / other.name).symlink_to(other)
    target = root / folder / profile
    target.mkdir()
    for path in (paths.ROOT / folder / profile).iterdir():
        (target / path.name).symlink_to(path)
    return target


def of_tables(root, profile, stem, change):
    """Change every table of a notebook's results in a copy of the project; the path of its settings."""
    folder = unlinked(root, "results", profile) / stem
    folder.unlink()
    shutil.copytree(paths.results(profile) / stem, folder)
    for path in folder.glob("*.csv"):
        change(pd.read_csv(path)).to_csv(path, index=False)
    return folder / "run.json"


def without_setting(root, profile, stem, key):
    """Take a setting out of a notebook's results, in a copy of the project."""
    run = of_tables(root, profile, stem, lambda table: table)
    about = json.loads(run.read_text(encoding="utf-8"))
    del about["settings"][key]
    run.write_text(json.dumps(about), encoding="utf-8")


def without_column(root, profile, stem, key):
    """Rename a column of a notebook's tables, in a copy of the project."""
    of_tables(root, profile, stem, lambda table: table.rename(columns={key: f"{key}_"}))


KEYS = {
    "02_ceilings": "rows_per_input",
    "03_bilinear": "planted",
    "05_corpora": "drop",
    "06_compression": "rho",
    "07_optimisers": "worst",
    "08_controls": "outside",
    "10_degrees": "r2",
    "11_protocol": "limit_agrees",
    "12_sinks": "carried_by",
    "13_claims": "verdict",
    "14_compress": "ratio",
}
"""Stem of a notebook whose public tables the report reads → a column of one."""

OF_THE_EMBEDDED = {"09_dynamics": "peak", "16_tokens": "r2_between"}
"""The same of those that embedded models alone have, or are read of where the public ones have none."""


def test_the_report_reads_every_result():
    read = set(re.findall(r'(?:recorded|place-of|optimisers)\("(\d\d_\w+)", ', SOURCE))
    assert read == set(KEYS) | set(OF_THE_EMBEDDED)


def test_a_moved_number_moves_the_report(copy, built):
    of_tables(copy, "public", "02_ceilings", lambda table: table.replace(0.3073, 0.1234))  # the most bent block
    assert report.build(copy) != built


@pytest.mark.long
def test_what_public_models_have_is_told_of_them_and_else_of_the_embedded(copy):
    """A table that is there is read; what it is about follows."""
    for folder in ("results", "figures"):
        target = unlinked(copy, folder)
        if folder == "results":
            (target / "16_tokens").unlink(missing_ok=True)
            shutil.copytree(paths.results("minis") / "16_tokens", target / "16_tokens")
        for figure in (paths.ROOT / "figures" / "minis").glob("16_tokens*.svg"):
            if folder == "figures" and not (target / figure.name).exists():
                (target / figure.name).symlink_to(figure)
    source = copy / "paper" / "asks.typ"
    source.write_text(
        '#import "template.typ": *\n#metadata(("16_tokens", "99_none").map(s => place-of(s, "blocks"))) <found>'
    )
    asked = report.compiler(copy, source.relative_to(copy)).query("<found>", field="value", one=True)
    assert json.loads(asked) == ["public", "minis"]
    report.build(copy)


@pytest.mark.long
def test_the_copy_builds_the_same_report(copy, built):
    assert fingerprint(report.build(copy)) == fingerprint(built)


def test_a_missing_figure_stops_the_build(copy):
    (unlinked(copy, "figures") / "12_sinks_without.svg").unlink()
    with pytest.raises(SourceError, match=r"(?s)12_sinks_without\.svg.*make figures"):
        report.build(copy)


SETTINGS = [("02_ceilings", "confidence"), ("02_ceilings", "null"), ("02_ceilings", "folds"), ("03_bilinear", "rank")]
SETTINGS += [("12_sinks", "multiple"), ("13_claims", "judged_by")]
GONE = [(without_column, "public", *each) for each in KEYS.items()]
GONE += [(without_column, "minis", *each) for each in OF_THE_EMBEDDED.items() if each[0] not in RECORDED]
GONE += [(without_setting, "public", *each) for each in SETTINGS]


@pytest.mark.parametrize(
    ("spoil", "profile", "stem", "key"),
    [GONE[0], GONE[-1], *(pytest.param(*each, marks=pytest.mark.long) for each in GONE[1:-1])],
)
def test_a_column_or_a_setting_that_is_gone_stops_the_build(copy, spoil, profile, stem, key):
    spoil(copy, profile, stem, key)
    with pytest.raises(SourceError, match=f'key "{key}"'):
        report.build(copy)


def test_a_font_that_is_not_there_stops_the_build(copy):
    template = copy / "paper" / "template.typ"
    template.write_text(TEMPLATE.replace("Libertinus Serif", "No Such Serif"))
    with pytest.raises(SourceError, match=r"Typst warns: .*no such serif"):
        report.build(copy)


def test_a_folder_without_a_report_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"no report at .*main.typ: give the project's root"):
        report.build(tmp_path)


# --- how numbers are written ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written():
    """Evaluate expressions with the template's functions, all in one go."""

    def evaluate(*expressions):
        source = '#import "/paper/template.typ": *\n#metadata((' + ", ".join(expressions) + ",)) <found>\n"
        return json.loads(typst.query(source.encode(), "<found>", field="value", one=True, root=str(paths.ROOT)))

    return evaluate


def test_numbers_are_written_as_everywhere_else(written):
    """Ledger, findings and answers are written by Python; 0.995 must not be 0.99 there and 1.00 here."""
    values = [0.0, 0.004, 0.005, 0.045, 0.125, 2.5, 0.0951, 0.995, 0.9951, 9.99, 14.18867, 3416.8]
    asked = [(sign * value, digits) for value in values for sign in (1, -1) for digits in (0, 1, 2, 3)]
    found = written(*(f"fixed({value}, digits: {digits})" for value, digits in asked))
    for (value, digits), text in zip(asked, found, strict=True):
        assert text == f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def test_helpers_by_hand(written):
    assert written(
        "signed(0.001)", "signed(-0.001)", "signed(-3.05)", "percent(0.345)", "count(2920192)", "count(12)",
        "interval(-0.5, 1)", "span((0.354, 0.351, 0.349))", "span((1, 3, 2))", "words(3)", "Words(12)", "words(36)",
        'of-all(3, 3, "models")', 'of-all(2, 3, "models")', 'of-all(0, 3, "models")', 'of-all(1, 1, "models")',
        'parameters("mini-gpt2")', 'trained("mini-gpt2").recipe.steps',
        "some(0)", "some(2)", "over-one(0.997)", "over-one(1.0)", "over-one(1.04)", "mean((1, 2, 6))",
    ) == [
        "+0.00", "+0.00", "−3.05", "34\u202f%", "2,920,192", "12",
        "[−0.50,\u00a0+1.00]", "0.35", "1.00\u00a0to\u00a03.00", "three", "Twelve", "36",
        "all three models", "two of the three models", "none of the three models", "one of the one models",
        2_920_192, 2_000,
        "none", "two", "0.997", "1.00", "1.04", 3,
    ]  # fmt: skip
