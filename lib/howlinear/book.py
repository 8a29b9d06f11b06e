"""The book: the executed notebooks, their exercises with solutions folded, the interactive page, the API, the ledger.

`python -m howlinear.book [PROFILE]` gathers a source folder, `build/book/source`, and has Sphinx make `build/book/html`
of it: nothing is executed a second time, nothing comes from a network, and a warning is an error. The frame (start
page, settings, style) is `book/`. Needs the `dev` extra (Sphinx, MyST-NB and the theme).
"""

from __future__ import annotations

import importlib
import inspect
import os
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

from howlinear import charts, claims, costs, folding, paths, record
from howlinear.errors import HowlinearError, InputError, SourceError

FRAME = paths.ROOT / "book"
REPORT = paths.ROOT / "paper" / "main.pdf"
MATHJAX = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"  # one file: no fonts, nothing asked for later
SPEECH = "https://cdn.jsdelivr.net/npm/"  # where its reader of formulas would look, which no page switches on

PAGES = ("explorer", "charts", "folding", "costs", "book")
FLOORS = {  # an import only points down; what is named nowhere here backs an idea, or makes models and pages
    "Ground": ("errors", "paths", "style", "record"),
    "Moments": ("moments", "distributed"),
    "Ceilings, models, text": (
        *("ceilings", "estimator", "structure", "sites", "swapping", "models", "hub", "corpora", "texts", "sources"),
        *("inputs", "resume", "perplexity"),
    ),
    "Capture": ("capture", "pooled", "sequential", "store", "measure"),
    "Ideas": (),
    "Workshop": ("notebooks", "cli", "minis", "nanos", "training", "rehearsal", *PAGES),
}


def stems() -> list[str]:
    """The notebooks of the project, in their order."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.py"))


def address() -> str:
    """Where the project can be cloned from: what REPOSITORY says, as in the workflow; else a word to be replaced."""
    return os.environ.get("REPOSITORY") or "ADDRESS"


def prepare(profile: str, source: Path, which: Sequence[str]) -> None:
    """Gather everything Sphinx needs in one folder, which is made anew; readers' notebooks also in `build/notebooks`.

    Args:
        profile: whose executed notebooks, figures and captures.
        source: the folder.
        which: stems of the notebooks.

    Raises:
        SourceError: a notebook has not been executed, or a figure or the report is missing.
        InputError: exercises and solutions do not fit together, or a figure has no line in `book/gallery.yaml`.
    """
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(FRAME, source, ignore=shutil.ignore_patterns("explorer.html", "gallery.yaml"))
    readers = paths.BUILD / "notebooks"
    shutil.rmtree(readers, ignore_errors=True)
    readers.mkdir(parents=True)
    for stem in which:
        try:
            notebook = folding.folded(executed(profile, stem), solutions(stem), address())
        except InputError as error:
            raise InputError(f"notebook {stem}: {error}; make figures executes it anew") from error
        nbformat.write(notebook, readers / f"{stem}.ipynb")
    shutil.copytree(readers, source / "notebooks")
    reading = (source / "reading.md").read_text(encoding="utf-8")
    _write(source / "reading.md", reading.replace("ADDRESS", address()))
    _write(source / "gallery.txt", gallery(profile, which, source / "figures"))
    for name, text in api():
        _write(source / "api" / f"{name}.md", text)
    _write(source / "ledger.txt", ledger(profile, which))
    _write(source / "benchmarks.txt", benchmarks(source / "figures"))
    for name, text in costs.tables(record.load(FRAME / "scale.json")).items():
        _write(source / f"scale_{name}.txt", text)
    drawings = record.load(_there(paths.build(profile) / "explorer.json", "run make book"))
    frame = (FRAME / "explorer.html").read_text(encoding="utf-8")
    _write(source / "explorer.txt", charts.fragment(drawings["blocks"], frame))
    shutil.copyfile(_there(REPORT, "run make paper"), source / "_static" / "howlinear.pdf")
    script = _there(Path(distribution("sphinx-mathjax-offline").locate_file(MATHJAX)), "install the dev extra")
    text = script.read_text(encoding="utf-8").replace(SPEECH, "")
    _write(source / "_static" / "mathjax.js", text)


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
    homes = {name: stem for name in lines for stem in which if name.startswith(f"{stem}_")}
    drawn = {path.stem for stem in which for path in paths.figures(profile).glob(f"{stem}_*.png")}
    if drawn != homes.keys():
        raise InputError(f"book/gallery.yaml and the figures differ: {', '.join(sorted(drawn ^ homes.keys()))}")
    target.mkdir(parents=True)
    cards = ["::::{grid} 1 1 2 2", ":gutter: 3", ""]
    for name, stem in homes.items():
        shutil.copyfile(paths.figures(profile) / f"{name}.png", target / f"{name}.png")
        cards += [":::{grid-item-card}", f":link: notebooks/{stem}", ":link-type: doc"]
        cards += [
            f":img-top: figures/{name}.png",
            f":img-alt: {lines[name]}",
            "",
            f"**{stem[:2]}** {lines[name]}",
            ":::",
        ]
    return "\n".join([*cards, "::::", ""])


def ledger(profile: str, which: Sequence[str]) -> str:
    """The paper's claims and what the results say of each, with links to the pages of `which`."""
    table = claims.to_markdown(claims.evaluate(paths.results(profile)))

    def linked(match: re.Match) -> str:
        text, stem = match.groups()
        return f"[{text}](notebooks/{stem}.ipynb)" if stem in which else text

    return re.sub(r"\[([^\]]+)\]\(notebooks/(\w+)\.py\)", linked, table)


def benchmarks(target: Path) -> str:
    """What `make bench` measured, as tables and its figure, which is copied to `target`."""
    path = paths.results("bench") / "bench.json"
    if not path.is_file():
        return "Nothing is measured yet: `make bench` does it, in ten minutes or so.\n"
    found = record.load(path)
    picture = _there(paths.figures("bench") / "side_by_side.png", "run make bench")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(picture, target / "bench_side_by_side.png")
    at, tokens, (short, long) = found["machine"], found["tokens"], sorted(found["memory"], key=int)
    lines = [
        f"Measured on: {at['processor']}, {at['cores']} cores, {at['threads']} threads; {tokens['compared']:,} tokens, "
        f"swaps judged on {tokens['judged']:,}; torch {found['versions']['torch']}. Memory is beyond the forward pass.",
        "",
        f"| way | seconds, all blocks | times ours | MB | times ours | MB at {int(long):,} tokens | times ours "
        "| error in R² |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, of in found["ways"].items():
        held = [found["memory"][length][way] for length in (short, long)]
        memory = " | ".join(f"{one['megabytes']:,.0f} | {one['times_ours']:.1f}" for one in held)
        lines.append(f"| {way} | {of['seconds']:.1f} | {of['times_ours']:.1f} | {memory} | {of['error']:.0e} |")
    lines += ["", "![Time and memory, times ours](figures/bench_side_by_side.png)", ""]
    lines += ["| what | measured | goal | |", "|---|---|---|---|"]
    for what, of in found["goals"].items():
        lines.append(f"| {what} | {of['measured']:.2f} | {of['goal']:g} | {'met' if of['met'] else 'not met'} |")
    return "\n".join([*lines, ""])


def api() -> Iterator[tuple[str, str]]:
    """The reference's pages, (name, text): the public face, then every module on its floor."""
    modules = {path.stem: None for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}
    placed = {name for floor in FLOORS.values() for name in floor}
    floors = FLOORS | {"Ideas": tuple(name for name in modules if name not in placed)}
    public = importlib.import_module("howlinear")
    lines = ["# Reference", "", "What `import howlinear as hl` brings:", ""]
    for name in public.__all__:
        found = getattr(public, name)
        lines.append(f"- {{py:obj}}`~{found.__module__}.{name}`: {inspect.getdoc(found).splitlines()[0]}")
    lines += ["", "The modules, floor by floor; an import only points to the same floor or one above in this list.", ""]
    for floor, names in floors.items():
        lines += [f"## {floor}", "", *(f"- {{doc}}`{name}`: {summary(name)}" for name in names), ""]
    lines += ["```{toctree}", ":hidden:", "", *(name for names in floors.values() for name in names), "```", ""]
    yield "index", "\n".join(lines)
    for name in modules:
        yield name, f"# {name}\n\n```{{eval-rst}}\n.. automodule:: howlinear.{name}\n   :members:\n```\n"


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
    if subprocess.run([sys.executable, "-m", "sphinx", *flags, str(source), str(out)]).returncode:  # noqa: S603
        raise InputError(f"the book in {source} has faults, listed above")


def _there(path: Path, remedy: str) -> Path:
    if not path.is_file():
        raise SourceError(f"the book needs {path}: {remedy}")
    return path


def _write(path: Path, text: str) -> None:
    with paths.written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def main(profile: str = "minis", *which: str) -> int:
    """Gather and build; with stems, only these notebooks. 2 if something is missing or wrong."""
    source, out = paths.BUILD / "book" / "source", paths.BUILD / "book" / "html"
    try:
        prepare(profile, source, which or stems())
        build(source, out)
    except HowlinearError as error:
        print(f"howlinear: {error}", file=sys.stderr)
        return 2
    print(f"{out.relative_to(paths.ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
