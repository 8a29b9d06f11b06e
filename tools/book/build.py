"""The book: the executed notebooks, their exercises with solutions folded, the interactive page, the API, the ledger.

`python -m tools.book.build [PROFILE]` gathers a source folder, `build/book/source`, from which Sphinx builds
`build/book/html`: nothing is executed a second time, nothing comes from a network, and a warning is an error. The
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
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from howlinear.errors import InputError, SourceError, ending_in_one_line
from howlinear.files import atomic, numbers, paths
from howlinear.notebook import execute
from howlinear.notebook.prose import captions
from tools import ledger, lessons, report
from tools.book import costs, data, explorer, in_browser, measured, printed
from tools.book import solutions as folding

FRAME = paths.ROOT / "book"
REPORT = paths.ROOT / "paper" / "main.pdf"
MATHJAX = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"  # one file: no fonts, nothing loaded later
SPEECH = "https://cdn.jsdelivr.net/npm/"  # where its speech feature, which no page switches on, would look

HOSTED = re.compile(r"<!-- hosted -->\n(.*?)<!-- end -->\n", re.DOTALL)
"""The part of a page about notebooks outside a copy of the project."""

# in reading order
FOLDERS = ("core", "models", "text", "instrument", "ideas", "training", "plots", "notebook", "files", "app")


def address() -> str:
    """Where the project can be cloned from: the variable REPOSITORY, as set in the workflow, or an empty string."""
    return os.environ.get("REPOSITORY", "")


def with_address(text: str, address: str) -> str:
    """A page with the project's address for `ADDRESS`; without an address, the text between its marks is removed."""
    return HOSTED.sub(lambda found: found.group(1).replace("ADDRESS", address) if address else "", text)


def prepare(profile: str, source: Path, which: Sequence[str]) -> None:
    """Gather all that Sphinx needs in one new folder, and the readers' notebooks in `build/notebooks` as well."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(FRAME, source, ignore=shutil.ignore_patterns("explorer.html"))
    shutil.copytree(readers_notebooks(profile, which), source / "notebooks")
    for path in (source / "notebooks").glob("*.ipynb"):  # the frame's pages lie one folder up here, not in `book`
        atomic.write_text(path, path.read_text(encoding="utf-8").replace("](../book/", "](../"))

    # pages of the frame, and what they include
    reading = (source / "reading.md").read_text(encoding="utf-8")
    atomic.write_text(source / "reading.md", with_address(reading, address()))
    for page in (source / "course").glob("*.md"):
        text = lessons.with_figures(page.read_text(encoding="utf-8"), page.parent)
        atomic.write_text(page, linked(text, which))
    atomic.write_text(source / "gallery.txt", gallery(profile, which, source / "figures"))
    profiles = ("public", "minis") if profile == "minis" else (profile,)
    atomic.write_text(source / "ledger.txt", linked(ledger.page(paths.ROOT / "results", profiles), which))
    atomic.write_text(source / "data.txt", data.page())
    for name, text in tabulate_benchmarks().items():
        atomic.write_text(source / f"{name}.txt", text)
    compared = _there(paths.figures("bench") / "side_by_side.png", "run make bench")
    shutil.copyfile(compared, source / "figures" / "bench_side_by_side.png")
    for name, page in api():
        atomic.write_text(source / "api" / f"{name}.md", page)

    # the page with cells to run
    tried = numbers.load(_there(paths.build(profile) / "in_browser.json", "run make book"))
    words = (source / "try.md").read_text(encoding="utf-8")
    atomic.write_text(source / "try.md", in_browser.filled(words, tried["numbers"]))
    atomic.write_text(source / "_static" / "blocks.js", in_browser.script(tried["blocks"]))

    # the interactive page
    found = numbers.load(_there(paths.build(profile) / "explorer.json", "run make book"))
    atomic.write_text(source / "explorer.txt", explorer.page(found, FRAME / "explorer.html"))

    # the page of tokens
    shutil.copyfile(_there(paths.build(profile) / "tokens.html", "run make book"), source / "_static" / "tokens.html")

    # the report, the slides, the sentence about the printed book, and the script that typesets mathematics
    shutil.copyfile(_there(REPORT, "run make paper"), source / "_static" / "howlinear.pdf")
    report.write_slides(source / "_static")
    atomic.write_text(source / "printed.txt", printed.sentence())
    script = _there(Path(distribution("sphinx-mathjax-offline").locate_file(MATHJAX)), "install the dev extra")
    offline = script.read_text(encoding="utf-8").replace(SPEECH, "")
    atomic.write_text(source / "_static" / "mathjax.js", offline)


def readers_notebooks(profile: str, which: Sequence[str]) -> Path:
    """Write executed notebooks with their solutions folded in to `build/notebooks`, replacing that folder."""
    folder = paths.BUILD / "notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for stem in which:
        path = paths.build(profile) / "notebooks" / f"{stem}.ipynb"
        executed = nbformat.read(_there(path, f"run make figures PROFILE={profile}"), as_version=4)
        try:
            notebook = folding.folded(executed, solutions(stem), address())
        except InputError as error:
            raise InputError(f"notebook {stem}: {error}; make figures executes it anew") from error
        nbformat.write(notebook, folder / f"{stem}.ipynb")
    return folder


def solutions(stem: str) -> NotebookNode:
    """A notebook's solutions."""
    return jupytext.read(_there(paths.NOTEBOOKS / "solutions" / f"{stem}.py", "every notebook has solutions"))


def gallery(profile: str, which: Sequence[str], target: Path) -> str:
    """The figures as cards that link to their notebooks, each with its caption; copies the figures to `target`."""
    lines = captions()
    drawn = {path.stem: path for stem in which for path in paths.figures(profile).glob(f"{stem}_*.png")}
    if nameless := sorted(drawn.keys() - lines.keys()):
        raise InputError(f"notebooks/captions.yaml has no line for {', '.join(nameless)}")
    notebook_of = {name: stem for name in lines for stem in which if name in drawn and name.startswith(f"{stem}_")}
    target.mkdir(parents=True)
    for path in drawn.values():
        shutil.copy(path, target)
    cards = [CARD.format(name=name, stem=stem, line=lines[name]) for name, stem in notebook_of.items()]
    return "\n".join(["::::{grid} 1 1 2 2", ":gutter: 3", "", *cards, "::::", ""])


CARD = """:::{{grid-item-card}}
:link: notebooks/{stem}
:link-type: doc
:img-top: figures/{name}.png
:img-alt: {line}

**{stem:.2}** {line}
:::"""


def linked(text: str, which: Sequence[str]) -> str:
    """A page whose links to notebooks' sources lead to their pages in the book; without such a page, only text."""

    def to_page(match: re.Match) -> str:
        words, up, stem = match.groups()
        return f"[{words}]({up}notebooks/{stem}.ipynb)" if stem in which else words

    return re.sub(r"\[([^\]]+)\]\((?:\.\./)?((?:\.\./)*)notebooks/(\w+)\.py\)", to_page, text)


def tabulate_benchmarks() -> dict[str, str]:
    """The tables of recorded benchmarks: name of the included file → Markdown."""

    def record(name: str, command: str) -> dict[str, Any]:
        return numbers.load(_there(paths.results("bench") / f"{name}.json", f"run {command}"))

    made = {
        "benchmarks": measured.benchmarks(record("bench", "make bench")),
        "ratios": measured.ratios(record("ratios", "make bench")),
        "paper_code": measured.paper_code(record("paper_code", "benchmarks/paper_code.py CHECKOUT")),
        "llama_cpp": measured.llama_cpp(record("llama_cpp", "benchmarks/in_llama_cpp.py CHECKOUT --keep")),
        "coverage": measured.coverage(record("coverage", "make bench-coverage")),
        "scale_layerwise": costs.layer_by_layer(record("layerwise", "benchmarks/layerwise.py FOLDER --keep")),
        "scale_gpu": costs.on_a_gpu(record("gpu", "benchmarks/gpu.sh")),
    }
    scale = costs.tables(numbers.load(FRAME / "scale.json"))
    return made | {f"scale_{name}": table for name, table in scale.items()}


def api() -> Iterator[tuple[str, str]]:
    """The reference's pages, (name, text): an index by folder, and a page for each module.

    `sphinx.ext.autosummary` could list modules too, but it knows neither where a name of the public interface is
    documented nor the reading order of the folders.
    """
    everything = modules()
    yield "index", index(everything)
    for name in everything:
        yield name, f"# {name}\n\n```{{eval-rst}}\n.. automodule:: howlinear.{name}\n   :members:\n```\n"


def index(everything: Sequence[str]) -> str:
    """The reference's first page: the public interface, then every folder of the package with its modules."""
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
    """Dotted names below `howlinear` of all its modules, except packages and modules that only start them."""
    package = importlib.import_module("howlinear")
    walked = pkgutil.walk_packages(package.__path__, "howlinear.")
    names = [module.name.removeprefix("howlinear.") for module in walked if not module.ispkg]
    others = ("public", "app.lm_eval")  # listed on the first page already; needs EleutherAI's harness installed
    return sorted(name for name in names if not name.startswith("__") and name not in others)


def summary(module: str) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = inspect.getdoc(importlib.import_module(f"howlinear.{module}"))
    return text.split("\n\n")[0].replace("\n", " ")


def build(source: Path, out: Path) -> None:
    """Build the pages with Sphinx; a warning is an error."""
    shutil.rmtree(out, ignore_errors=True)
    flags = ["-W", "-q", "-E", "-d", str(out.parent / "doctrees")]  # a process of its own: Sphinx keeps global state
    command = [sys.executable, "-m", "sphinx", *flags, str(source), str(out)]
    if subprocess.run(command, cwd=paths.ROOT).returncode:  # noqa: S603
        raise InputError(f"the book in {source} has faults, listed above")


def _there(path: Path, remedy: str) -> Path:
    if not path.is_file():
        raise SourceError(f"the book needs {path}: {remedy}")
    return path


@ending_in_one_line()
def main(profile: str = "minis", *which: str) -> None:
    """Gather and build the book, with only these notebooks if stems are given."""
    source, out = paths.BUILD / "book" / "source", paths.BUILD / "book" / "html"
    prepare(profile, source, which or execute.stems())
    build(source, out)
    printed.write(source, out / "_static" / "book.pdf")
    print(f"{out.relative_to(paths.ROOT)}/index.html")


if __name__ == "__main__":
    main(*sys.argv[1:])
