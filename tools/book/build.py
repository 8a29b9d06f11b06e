"""The book: the executed notebooks, their exercises with solutions folded, the interactive page, the API, the ledger.

`python -m tools.book.build [PROFILE]` gathers a source folder, `build/book/source`, and has Sphinx make
`build/book/html` of it: nothing is executed a second time, nothing comes from a network, and a warning is an error. The
frame (start page, settings, style) is `book/`. Needs the `dev` extra (Sphinx, MyST-NB and the theme).
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

import jupytext
import nbformat
import yaml
from nbformat import NotebookNode

from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.files import atomic, numbers, paths
from tools import ledger, lessons, report
from tools.book import costs, coverage, explorer, in_browser, printed
from tools.book import solutions as folding
from tools.book.tables import markdown

FRAME = paths.ROOT / "book"
REPORT = paths.ROOT / "paper" / "main.pdf"
MATHJAX = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"  # one file: no fonts, nothing asked for later
SPEECH = "https://cdn.jsdelivr.net/npm/"  # where its reader of formulas would look, which no page switches on

HOSTED = re.compile(r"<!-- hosted -->\n(.*?)<!-- end -->\n", re.DOTALL)
"""What a page says of notebooks elsewhere than in a copy of the project."""

# as one reads
FOLDERS = ("core", "models", "text", "instrument", "ideas", "training", "plots", "notebook", "files", "app")


def stems() -> list[str]:
    """The notebooks of the project, in their order."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.py"))


def address() -> str:
    """Where the project can be cloned from: what REPOSITORY says, as in the workflow; else nothing."""
    return os.environ.get("REPOSITORY", "")


def with_address(text: str, address: str) -> str:
    """A page with the project's address, or without the words between its marks where there is none.

    Args:
        text: the page, with `ADDRESS` for the address, between the marks alone.
        address: where the project can be cloned from; empty where it cannot.
    """
    return HOSTED.sub(lambda found: found.group(1).replace("ADDRESS", address) if address else "", text)


def prepare(profile: str, source: Path, which: Sequence[str]) -> None:
    """Gather everything Sphinx needs in one folder, which is made anew; readers' notebooks also in `build/notebooks`.

    Args:
        profile: whose executed notebooks, figures and captures.
        source: the folder.
        which: stems of the notebooks.

    Raises:
        SourceError: a notebook has not been executed, or a figure, the report or what the slides show is missing.
        InputError: exercises and solutions do not fit together, or a figure has no line in `book/gallery.yaml`.
    """
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(FRAME, source, ignore=shutil.ignore_patterns("explorer.html", "gallery.yaml"))
    shutil.copytree(readers_notebooks(profile, which), source / "notebooks")
    for path in (source / "notebooks").glob("*.ipynb"):  # the frame's pages lie one folder up here, not in `book`
        _write(path, path.read_text(encoding="utf-8").replace("](../book/", "](../"))

    # pages of the frame, and what they include
    reading = (source / "reading.md").read_text(encoding="utf-8")
    _write(source / "reading.md", with_address(reading, address()))
    for page in (source / "course").glob("*.md"):
        text = lessons.with_figures(page.read_text(encoding="utf-8"), page.parent)
        _write(page, linked(text, which))
    _write(source / "gallery.txt", gallery(profile, which, source / "figures"))
    _write(source / "ledger.txt", ledger_page(profile, which))
    _write(source / "benchmarks.txt", benchmarks(source / "figures"))
    _write(source / "ratios.txt", ratios())
    _write(source / "paper_code.txt", paper_code())
    _write(source / "coverage.txt", coverage_table())
    for name, table in costs.tables(numbers.load(FRAME / "scale.json")).items():
        _write(source / f"scale_{name}.txt", table)
    _write(source / "scale_gpu.txt", costs.on_a_gpu(numbers.load(paths.results("bench") / "gpu.json")))
    for name, page in api():
        _write(source / "api" / f"{name}.md", page)

    # the page with cells to run
    tried = numbers.load(_there(paths.build(profile) / "in_browser.json", "run make book"))
    words = (source / "try.md").read_text(encoding="utf-8")
    _write(source / "try.md", in_browser.filled(words, tried["numbers"]))
    _write(source / "_static" / "blocks.js", in_browser.script(tried["blocks"]))

    # the interactive page
    found = numbers.load(_there(paths.build(profile) / "explorer.json", "run make book"))
    _write(source / "explorer.txt", explorer.page(found, FRAME / "explorer.html"))

    # the page of tokens
    shutil.copyfile(_there(paths.build(profile) / "tokens.html", "run make book"), source / "_static" / "tokens.html")

    # the report, the slides, what is said of the book on paper, and what sets mathematics
    shutil.copyfile(_there(REPORT, "run make paper"), source / "_static" / "howlinear.pdf")
    report.write_slides(source / "_static")
    _write(source / "printed.txt", printed.sentence())
    script = _there(Path(distribution("sphinx-mathjax-offline").locate_file(MATHJAX)), "install the dev extra")
    offline = script.read_text(encoding="utf-8").replace(SPEECH, "")
    _write(source / "_static" / "mathjax.js", offline)


def readers_notebooks(profile: str, which: Sequence[str]) -> Path:
    """Executed notebooks with their solutions folded in, in `build/notebooks`, which is made anew.

    Raises:
        SourceError: a notebook has not been executed.
        InputError: exercises and solutions do not fit together.
    """
    folder = paths.BUILD / "notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for stem in which:
        try:
            notebook = folding.folded(executed(profile, stem), solutions(stem), address())
        except InputError as error:
            raise InputError(f"notebook {stem}: {error}; make figures executes it anew") from error
        nbformat.write(notebook, folder / f"{stem}.ipynb")
    return folder


def executed(profile: str, stem: str) -> NotebookNode:
    """An executed notebook as the pipeline left it.

    Raises:
        SourceError: it has not been executed.
    """
    path = paths.build(profile) / "notebooks" / f"{stem}.ipynb"
    return nbformat.read(_there(path, f"run make figures PROFILE={profile}"), as_version=4)


def solutions(stem: str) -> NotebookNode:
    """A notebook's solutions."""
    return jupytext.read(_there(paths.NOTEBOOKS / "solutions" / f"{stem}.py", "every notebook has solutions"))


def gallery(profile: str, which: Sequence[str], target: Path) -> str:
    """The figures as cards that lead to their notebooks; copies them to `target`.

    Raises:
        SourceError: a figure is missing.
        InputError: a figure without a line, or a line without a figure.
    """
    lines = yaml.safe_load((FRAME / "gallery.yaml").read_text(encoding="utf-8"))
    notebook_of = {name: stem for name in lines for stem in which if name.startswith(f"{stem}_")}
    drawn = {path.stem for stem in which for path in paths.figures(profile).glob(f"{stem}_*.png")}
    if drawn != notebook_of.keys():
        differing = ", ".join(sorted(drawn ^ notebook_of.keys()))
        raise InputError(f"book/gallery.yaml and the figures differ: {differing}")
    target.mkdir(parents=True)
    cards = []
    for name, stem in notebook_of.items():
        shutil.copyfile(paths.figures(profile) / f"{name}.png", target / f"{name}.png")
        cards.append(CARD.format(name=name, stem=stem, number=stem[:2], line=lines[name]))
    return "\n".join(["::::{grid} 1 1 2 2", ":gutter: 3", "", *cards, "::::", ""])


CARD = """:::{{grid-item-card}}
:link: notebooks/{stem}
:link-type: doc
:img-top: figures/{name}.png
:img-alt: {line}

**{number}** {line}
:::"""


def ledger_page(profile: str, which: Sequence[str]) -> str:
    """The paper's claims and what the results say of each, with links to the pages of `which`."""
    profiles = ("public", "minis") if profile == "minis" else (profile,)
    return linked(ledger.page(paths.results(profile).parent, profiles), which)


def linked(text: str, which: Sequence[str]) -> str:
    """A page whose links to notebooks' sources lead to their pages in the book, which lie one folder nearer.

    Args:
        text: the page, in Markdown.
        which: stems of the notebooks that have a page; of others the words are left.
    """

    def to_page(match: re.Match) -> str:
        words, up, stem = match.groups()
        return f"[{words}]({up}notebooks/{stem}.ipynb)" if stem in which else words

    return re.sub(r"\[([^\]]+)\]\((?:\.\./)?((?:\.\./)*)notebooks/(\w+)\.py\)", to_page, text)


def coverage_table() -> str:
    """What `make bench-coverage` simulated, as a table."""
    path = paths.results("bench") / "coverage.json"
    if not path.is_file():
        return "Nothing is simulated yet: `make bench-coverage` does it, in twenty minutes or so.\n"
    return coverage.table(numbers.load(path))


def benchmarks(target: Path) -> str:
    """What `make bench` measured, as tables and its figure, which is copied to `target`.

    Raises:
        SourceError: it was measured, and its figure is missing.
    """
    path = paths.results("bench") / "bench.json"
    if not path.is_file():
        return "Nothing is measured yet: `make bench` does it, in ten minutes or so.\n"
    measured = numbers.load(path)
    figure = _there(paths.figures("bench") / "side_by_side.png", "run make bench")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(figure, target / "bench_side_by_side.png")

    machine, tokens = measured["machine"], measured["tokens"]
    short, long = sorted(measured["memory"], key=int)
    ways = []
    for name, way in measured["ways"].items():
        at_short = measured["memory"][short][name]
        at_long = measured["memory"][long][name]
        ways.append(
            {
                "way": name,
                "seconds, all blocks": f"{way['seconds']:.1f}",
                "times ours": f"{way['times_ours']:.1f}",
                "MB": f"{at_short['megabytes']:,.0f}",
                "MB, times ours": f"{at_short['times_ours']:.1f}",
                f"MB at {int(long):,} tokens": f"{at_long['megabytes']:,.0f}",
                "there, times ours": f"{at_long['times_ours']:.1f}",
                "error in R²": f"{way['error']:.0e}",
            }
        )
    goals = []
    for what, goal in measured["goals"].items():
        verdict = "met" if goal["met"] else "not met"
        goals.append({"what": what, "measured": f"{goal['measured']:.2f}", "goal": f"{goal['goal']:g}", "": verdict})
    head = (
        f"Measured on: {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"{tokens['compared']:,} tokens, swaps judged on {tokens['judged']:,}; "
        f"torch {measured['versions']['torch']}. Memory is beyond the forward pass."
    )
    picture = "![Time and memory, times ours](figures/bench_side_by_side.png)"
    return "\n".join([head, "", markdown(ways), "", picture, "", markdown(goals), ""])


def paper_code() -> str:
    """The paper's public code beside ours on the same rows, as a table: largest differences over a model's blocks."""
    path = paths.results("bench") / "paper_code.json"
    if not path.is_file():
        return "Nothing is compared yet: `benchmarks/paper_code.py CHECKOUT` does it, in some minutes.\n"
    measured = numbers.load(path)
    rows = []
    for row in measured["rows"]:
        cells = {"model": row["model"], "quantity": row["quantity"], "block": str(row.get("block", ""))}
        cells |= {name: f"{row[name]:.6g}" for name in ("ours", "theirs")}
        largest = f"{row['difference']:.1e}"
        rows.append(cells | {"largest difference": largest, "blocks": str(row.get("blocks", ""))})
    return f"At commit {measured['commit'][:12]} of its repository.\n\n{markdown(rows)}\n"


SMOLLM2 = "smollm2-135m"
WORKS = {  # of `benchmarks/ratios.py`: what is measured → in words, and beside what
    "measure": ("`hl.measure`: capture, intervals, perplexity", "bare forward passes"),
    "measure, own": ("the same", "bare passes run its way"),
    "capture": ("of it, capture with moments", "bare forward passes"),
    "ceilings": ("of it, ceilings with intervals", "bare forward passes"),
    "all swaps": ("swap costs of all blocks", "plain evaluations"),
}
ERRORS = {"r2": "R²", "interval": "an end of its interval", "perplexity": "perplexity, as a share"}


def ratios() -> str:
    """What `make bench` measured of whole measurements, beside the model's own work, as tables."""
    path = paths.results("bench") / "ratios.json"
    if not path.is_file():
        return "Nothing is measured yet: `make bench` does it, in an hour or two.\n"
    measured = numbers.load(path)
    models = {name: measured[name] for name in costs.TIMED if name in measured}
    counted = {name: costs.counted(costs.TIMED[name], found["rows"]) for name, found in models.items()}
    times = []
    for work, (words, beside) in WORKS.items():
        in_multiples = {
            name: f"{found['ratios'][work]:.2f} ({counted[name][work]:.2f})" for name, found in models.items()
        }
        times.append({"CPU time of": words, **in_multiples, "in": beside})
    exact = []
    for what, words in ERRORS.items():
        differences = {name: f"{found['errors'][what]:.0e}" for name, found in models.items()}
        exact.append({"largest difference of": words, **differences})
    load = measured["machine"]["load"]
    busy = "" if load is None else f" of a machine with a load of {load:.1f} as it began"
    head = f"Measured on: {measured['machine']['processor']}, one thread{busy}; "
    head += ", ".join(f"{name} on {found['rows']:,} rows" for name, found in models.items())
    head += ". In brackets, what counting multiplications comes to."
    parts = [head, "", markdown(times), "", markdown(exact), ""]
    if "memory" in measured:
        peaks = [f"{peak / 1e9:.2f} GB for {int(rows):,} rows" for rows, peak in measured["memory"].items()]
        name = SMOLLM2 if SMOLLM2 in models else next(iter(models))  # the one that memory is measured on
        parts += [f"Peak memory of a whole measurement of {name}: " + ", ".join(peaks) + ".", ""]
    if "start" in measured:
        started = measured["start"]
        rows = [
            {"start of": what, "CPU seconds": f"{started['seconds'][what]:.2f}", "times Python's own": f"{times:.1f}"}
            for what, times in started["ratios"].items()
        ]
        parts += [markdown(rows), ""]
    return "\n".join(parts)


def api() -> Iterator[tuple[str, str]]:
    """The reference's pages, (name, text): an index by folder, and a page for each module.

    `sphinx.ext.autosummary` could list modules too; it knows neither where a name of the public face is documented nor
    the order in which one reads the folders.
    """
    everything = modules()
    yield "index", index(everything)
    for name in everything:
        yield name, f"# {name}\n\n```{{eval-rst}}\n.. automodule:: howlinear.{name}\n   :members:\n```\n"


def index(everything: Sequence[str]) -> str:
    """The reference's first page: the public face, then every folder of the package with its modules."""
    public = importlib.import_module("howlinear")
    lines = ["# Reference", "", "What `import howlinear as hl` brings:", ""]
    for name in public.__all__:
        defined = getattr(public, name)
        first_line = inspect.getdoc(defined).splitlines()[0]
        link = f"`{name}`" if inspect.ismodule(defined) else f"{{py:obj}}`~{defined.__module__}.{name}`"
        lines.append(f"- {link}: {first_line}")
    lines += ["", "The package, folder by folder; imports only go down, from notebooks to `core`.", ""]
    for folder in ("", *FOLDERS):
        lines += [f"## {folder or 'howlinear'}", ""]
        if folder:
            lines += [summary(folder), ""]
        inside = [name for name in everything if name.rpartition(".")[0].split(".")[0] == folder]
        lines += [f"- {{doc}}`{name}`: {summary(name)}" for name in inside]
        lines.append("")
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *everything, "```", ""])


def modules() -> list[str]:
    """Dotted names below `howlinear` of all its modules, without packages and what only starts them.

    Raises:
        InputError: a folder of the package is not among `FOLDERS`.
    """
    package = importlib.import_module("howlinear")
    walked = list(pkgutil.walk_packages(package.__path__, "howlinear."))
    folders = {module.name.split(".")[1] for module in walked if module.ispkg}
    differing = folders ^ set(FOLDERS)
    if differing:
        raise InputError(f"tools/book/build.py: FOLDERS and the package differ in {', '.join(sorted(differing))}")
    names = [module.name.removeprefix("howlinear.") for module in walked if not module.ispkg]
    others = ("public", "app.lm_eval")  # what the first page lists, and what EleutherAI's harness has to be there for
    return sorted(name for name in names if not name.startswith("__") and name not in others)


def summary(module: str) -> str:
    """The first sentence of a module's own words."""
    text = inspect.getdoc(importlib.import_module(f"howlinear.{module}"))
    return text.split("\n\n")[0].replace("\n", " ")


def build(source: Path, out: Path) -> None:
    """Have Sphinx make the pages; a warning is an error.

    Raises:
        InputError: Sphinx found a fault; it has said which.
    """
    shutil.rmtree(out, ignore_errors=True)
    flags = ["-W", "-q", "-E", "-d", str(out.parent / "doctrees")]  # a process of its own: Sphinx keeps global state
    command = [sys.executable, "-m", "sphinx", *flags, str(source), str(out)]
    if subprocess.run(command, cwd=paths.ROOT).returncode:  # noqa: S603
        raise InputError(f"the book in {source} has faults, listed above")


def _there(path: Path, remedy: str) -> Path:
    if not path.is_file():
        raise SourceError(f"the book needs {path}: {remedy}")
    return path


def _write(path: Path, text: str) -> None:
    with atomic.written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def main(profile: str = "minis", *which: str) -> int:
    """Gather and build; with stems, only these notebooks. 2 if something is missing or wrong."""
    source, out = paths.BUILD / "book" / "source", paths.BUILD / "book" / "html"
    try:
        prepare(profile, source, which or stems())
        build(source, out)
        printed.write(source, out / "_static" / "book.pdf")
    except HowlinearError as error:
        print(f"howlinear: {error}", file=sys.stderr)
        return 2
    print(f"{out.relative_to(paths.ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
