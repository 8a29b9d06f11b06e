"""Every notebook on the user's own model and texts, and one page that reads like a short paper on that model.

The pipeline does the work: a run profile is written for the model and its texts, Snakemake runs the notebooks in
parallel, and tables, figures and executed notebooks are copied into one folder with a self-contained page. An
interrupted run resumes when it is called again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic, paths, tables
from howlinear.models import sources
from howlinear.models.checks import check_count
from howlinear.notebook import execute, prose, settings
from howlinear.text import library, plain
from howlinear.text.corpus import load_corpus
from howlinear.text.streams import is_hub_id

PAGE = "index.html"
MEMORY = 12_000
"""MB that notebooks running in parallel may take together, as in the Makefile."""

Progress = Callable[[int, int], None]
"""Called with the number of finished notebooks and the number of all, whenever one has finished."""


PARTS = (
    ("How linear is each block?", "02_ceilings", ("beside", "profile")),
    ("What do a few rows of massive outputs decide?", "12_sinks", ("without", "costs")),
    ("Which features, directions and tokens carry R²_lin?", "04_rank", ("carried", "reduced")),
    ("Does it hold on another text?", "05_corpora", ("profiles",)),
    ("Is it a line through tokens, or through what context makes of them?", "16_tokens", ("split",)),
    ("How much of the rest is a product of two lines?", "03_bilinear", ("gain",)),
    ("Of which degree is the rest?", "10_degrees", ("spectrum",)),
    ("How far does a trained line fall short?", "07_optimisers", ("shortfall",)),
    ("Is it learned, or is any such model so?", "08_controls", ("random",)),
    ("What does the way of measuring decide?", "11_protocol", ("profiles",)),
    (
        "What tells the cost of replacing a block, and which blocks could go?",
        "06_compression",
        ("signal", "frontier"),
    ),
    ("Which tokens can go through a line?", "15_gate", ("shares",)),
    ("What could be cut?", "14_compress", ("pareto",)),
    ("Which of the paper's claims hold here?", "13_claims", ("board",)),
)
"""Parts of the page: a question, the notebook that answers it, and which of its figures to show."""


def figures(
    model: Any,
    corpus: Any = "docs",
    folder: Path | str | None = None,
    short: bool = False,
    cores: int | None = None,
    progress: Progress | None = None,
    force: bool = False,
    documents: str = "auto",
    text_column: str | None = None,
) -> Path:
    """Run every notebook that applies on a model and texts, and write a page about that model.

    The page is there as soon as the first notebook has finished, and grows with every other.

    Args:
        model: a model's name, as in `load_model`: a folder, a Hub id, an embedded or a packaged model.
        corpus: name or path of a text, as in `load_corpus`, or several; the first is the main one.
        folder: output folder; by default `howlinear-<model>` in the working directory. If an earlier call with the same
            model and texts has begun it, that run is resumed.
        short: few rows and few steps, minutes instead of hours; for a first look.
        cores: notebooks that run in parallel; by default as many as there are cores.
        progress: called with the number of finished notebooks and the number of all.
        force: replace figures of another model or text in the folder; a folder of anything else is refused.
        documents: how to cut these texts into documents, as in `load_corpus`.
        text_column: text column of tables.

    Returns:
        The page, `index.html` in the folder.

    Raises:
        InputError: a model or text not given by name or path, an invalid number of cores, a text that is blank or too
            short, or a folder that holds something else.
        SourceError: no such model or text, or no notebook could be run.
    """
    model = _name_of("model", model)
    corpora = [corpus] if isinstance(corpus, str | Path) or not isinstance(corpus, Sequence) else corpus
    corpora = [_name_of("corpus", text) for text in corpora]
    if cores is not None:
        check_count("cores", cores)
    plain.check_way(documents)
    sources.check_there(model)
    texts = _read(corpora, text_column)
    base = paths.PROFILES / f"{'own-short' if short else 'own'}.yaml"
    sizes = settings.read(base)
    for text in texts:  # one that is too short for this model is refused before any notebook runs
        load_corpus(text, model, text_column, documents).rows(sizes.rows, sizes.seq_len, sizes.seed)
    out = Path(os.path.expanduser(folder or f"howlinear-{Path(model).name}")).absolute()
    cut = {} if documents == "auto" and text_column is None else _cut(texts, out, documents)
    del texts  # they may be large, and the notebooks take long
    named = {text: str(path) for text, (path, _) in cut.items()}
    read = [named.get(text) or (text if text in library.BUILT_IN else settings.full_path(text)) for text in corpora]
    content = {"extends": str(base), "models": [settings.full_path(model)], "corpora": read}
    written = _write_run_profile(out, content, force)
    for path, table in cut.values():
        if not path.is_file():  # an existing file keeps its time, so it is not read again
            path.write_text(table, encoding="utf-8")
    profile = settings.read(written)  # after the texts that it names are written
    report = progress or (lambda *_: None)

    def show(finished: int, of: int) -> None:
        report(finished, of)
        if finished:
            _write_page(profile, out, short, running=True)

    _run_pipeline(profile, cores or os.cpu_count() or 1, show)
    captured = any((paths.build(profile.name) / "captures").glob("*/*.safetensors"))
    if not captured or not _finished(profile):
        (out / PAGE).unlink(missing_ok=True)
        raise SourceError(f"no notebook could be run on {model}: {_reason(profile, '02_ceilings')}")
    _write_page(profile, out, short)
    return out / PAGE


def _name_of(argument: str, given: Any) -> str:
    """Return a model's or text's name or path; objects are refused, since notebooks are processes that read files."""
    if not isinstance(given, str | Path):
        raise InputError(
            f"{argument} is a {type(given).__name__}: give a name or a path; hl.save writes a model to a folder, and a "
            "data set's to_json a text to a file"
        )
    return str(given)


def not_run(page: Path) -> list[str]:
    """List the notebooks that could not be run, of the run that made this page."""
    profile = settings.read(_profile_of(page.parent))
    return [stem for stem in profile.notebooks or () if not (page.parent / "notebooks" / f"{stem}.ipynb").is_file()]


def _read(corpora: Sequence[str], column: str | None) -> dict[str, list[str]]:
    """Read the files among the corpora; blank files, data sets on the Hub and missing texts are refused."""
    texts = {}
    for text in corpora:
        library.check_known(text)
        path = Path(os.path.expanduser(text))
        if path.exists():
            texts[text], _ = plain.read_path(path, column)
            plain.check_not_blank(texts[text], text)
        elif is_hub_id(text):
            raise InputError(
                f"notebooks read files: save {text} as a table, dataset.to_json('mine.jsonl'), and give that"
            )
    return texts


def _cut(texts: Mapping[str, list[str]], out: Path, documents: str) -> dict[str, tuple[Path, str]]:
    """Cut the user's texts as requested: text → path to write, and a table with a row per document."""
    if not texts:
        raise InputError("built-in texts have their own documents: leave documents and text_column out, or give a path")
    cut = {}
    for number, (text, cells) in enumerate(texts.items(), 1):
        if documents != "auto":
            cells = [document for each in cells for document in plain.WAYS[documents](each)]
        rows = [json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in cells]
        cut[text] = out / f"{number}-{Path(text).stem}.jsonl", "".join(rows)
    return cut


# --- the pipeline


def _profile_of(out: Path) -> Path:
    """Return the path of a folder's run profile; its name is unique to the folder, since results are named after it."""
    digest = hashlib.sha256(str(out).encode()).hexdigest()[:6]
    return out / f"{out.name}-{digest}.yaml"


def _write_run_profile(out: Path, content: dict[str, Any], force: bool = False) -> Path:
    """Write the run profile into a folder that is new, empty or of an earlier call with the same model and texts.

    With `force`, the output of an earlier call with others is deleted first; any other folder is refused.
    """
    path, text = _profile_of(out), yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    if path.is_file():
        if not force:
            raise InputError(
                f"{out} holds figures of another model or text: name another folder, or add --force (force=True) to "
                "replace them"
            )
        for made in (paths.build(path.stem), paths.scratch(path.stem)):
            shutil.rmtree(made, ignore_errors=True)
        (out / PAGE).unlink(missing_ok=True)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already and holds something else: name another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, text)
    except OSError as error:
        raise SourceError(f"cannot write to {out}: {error.strerror}; name another folder") from error
    return path


def _run_pipeline(profile: settings.RunProfile, cores: int, show: Progress) -> None:
    """Have Snakemake run all notebooks; one that fails does not keep others from running."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.SNAKEFILE)]
    command += ["--nolock", "--rerun-incomplete", "--keep-going", "--quiet", "all"]
    command += ["--cores", str(cores), "--resources", f"mem_mb={MEMORY}", "--config", f"profile={profile.path}"]
    log = paths.build(profile.name) / "logs" / "snakemake.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    shown = None
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(command, cwd=paths.ROOT, stdout=said, stderr=said)  # noqa: S603 (all of it is ours)
        try:
            while process.poll() is None:
                if (finished := len(_finished(profile))) != shown:
                    show(finished, len(profile.notebooks or ()))
                    shown = finished
                time.sleep(0.5)
        finally:
            if process.poll() is None:  # Ctrl-C reaches Snakemake too, which ends its notebooks
                process.terminate()
                process.wait()


def _finished(profile: settings.RunProfile) -> list[str]:
    """List the notebooks that have run to their end."""
    return [stem for stem in profile.notebooks or () if _executed(profile, stem).is_file()]


def _executed(profile: settings.RunProfile, stem: str) -> Path:
    """Return where the pipeline writes an executed notebook."""
    return paths.scratch(profile.name) / "notebooks" / f"{stem}.ipynb"


def _reason(profile: settings.RunProfile, stem: str) -> str:
    """Return the last log line of a failed notebook; of one that was not begun, say what failed before it."""
    logs = paths.build(profile.name) / "logs"

    def last_line(name: str) -> str | None:
        log = logs / f"{name}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
        return next((line.removeprefix("howlinear: ") for line in reversed(lines) if line.strip()), None)

    if said := last_line(stem):
        return said
    failed = [
        other for other in profile.notebooks or () if last_line(other) and not _executed(profile, other).is_file()
    ]
    if failed:
        return f"it reads what other notebooks have found, and {', '.join(failed)} failed"
    return next(filter(None, map(last_line, (*profile.corpora_by_name, "snakemake"))), "it was not begun")


# --- the page


def _write_page(profile: settings.RunProfile, out: Path, short: bool, running: bool = False) -> None:
    """Copy what the finished notebooks have made, in the place of what an earlier call did, and write the page."""
    made = paths.scratch(profile.name)
    for name in ("results", "figures", "notebooks"):
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir()
    for stem in _finished(profile):
        shutil.copytree(made / "results" / stem, out / "results" / stem)
        shutil.copy(_executed(profile, stem), out / "notebooks")
        for figure in (made / "figures").glob(f"{stem}_*.svg"):
            shutil.copy(figure, out / "figures")
    atomic.write_text(out / PAGE, _render(profile, out, short, running))


def _render(profile: settings.RunProfile, out: Path, short: bool, running: bool) -> str:
    """Render the page: each notebook's question, answer and figures, or why it failed, or that it is still to come."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters["markdown"] = MarkdownIt().renderInline
    parts = [_filled(*part, profile, out) for part in PARTS if part[1] in (profile.notebooks or ())]
    return environment.get_template("figures.html.jinja").render(
        model=next(iter(profile.models_by_name)),
        corpora=[Path(source).name for source in profile.corpora],
        rows=profile.rows,
        seq_len=profile.seq_len,
        parts=parts,
        short=short,
        running=running,
    )


def _filled(question: str, stem: str, names: Sequence[str], profile: settings.RunProfile, out: Path) -> dict[str, Any]:
    """Fill a part with results for the template."""
    filled = {"question": question, "stem": stem, "title": execute.listed(stem).title}
    if not (out / "notebooks" / f"{stem}.ipynb").is_file():
        return filled | {"failed": _reason(profile, stem)}
    drawn = {}
    for name in names:
        figure = out / "figures" / f"{stem}_{name}.svg"
        if figure.is_file():
            drawn[prose.captions()[figure.stem]] = base64.b64encode(figure.read_bytes()).decode()
    return filled | {"answer": prose.describe(tables.read(out / "results" / stem)).answer, "figures": drawn}
