"""A notebook's view of its run: models, corpora and captures by name, and where results go.

A notebook is a py:percent text under `notebooks/`. In Jupyter it runs as it is; unattended, `execute` runs it. Captures
are made once and kept.

Trying something out does not change what the project has on record. A notebook writes to `results/` and `figures/` only
if `HOWLINEAR_RECORD=1` is set in the environment, as the pipeline and `howlinear notebook --record` do; otherwise, in
Jupyter or by `howlinear notebook`, its numbers and figures go to `build/scratch/<profile>`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown, display, update_display
from matplotlib.figure import Figure
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from howlinear.errors import ConstantError, InputError
from howlinear.files import figures, paths, tables
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import HeldOutLosses, if_finite
from howlinear.instrument.selection import selected
from howlinear.instrument.store import Stored, about_capture, load_capture, save_capture
from howlinear.models.load import load_model
from howlinear.notebook import prose, settings
from howlinear.plots import style
from howlinear.text.corpus import Corpus, load_corpus
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Run:
    """A notebook's view of a profile: its models and corpora by name, and where its results go.

    Attributes:
        stem: name of the notebook, as in `02_ceilings`.
        profile: name of the profile.
        models: short name → folder or Hub id.
        beside: names of the additional models, which this notebook measures and not every other does.
        corpora: short names of corpora; the first is the main one.
        rows: token rows per block, a quarter of them held out.
        seq_len: tokens in a sequence.
        seed: decides which documents and rows are drawn.
        sample: raw rows kept per block.
        blocks: which blocks `capture` gives, by a rule as in `selection.choose_blocks`; None: all of them.
        user_texts: short name → path, for the corpora that are the user's own texts.
        texts: folder with the paper's texts; None: as `load_corpus` finds them.
        recorded: whether results and figures go where the project keeps them, and not to scratch.
        tables: what this run has found so far: name → table, as it will be on disk.
        constant: model → corpus → the blocks that are left out, since their output is the same on every row, or in
            every document fold but one.
    """

    stem: str
    profile: str
    models: dict[str, str]
    corpora: list[str]
    rows: int
    seq_len: int
    seed: int
    sample: int
    blocks: str | None = None
    beside: list[str] = field(default_factory=list)
    user_texts: Mapping[str, str] = field(default_factory=dict)
    texts: Path | None = None
    recorded: bool = False
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    constant: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def model(self, name: str) -> PreTrainedModel:
        """Load one of the profile's models by its short name."""
        if name not in self.models:
            raise InputError(f"profile {self.profile} has no model {name!r}: {', '.join(self.models)}")
        return load_model(self.models[name])

    def corpus(self, name: str, model: PreTrainedModel) -> Corpus:
        """Load a corpus by its short name, or another built-in one."""
        return replace(load_corpus(self.user_texts.get(name, name), model, folder=self.texts), name=name)

    def capture_path(self, name: str, corpus: str) -> Path:
        """Return the path of the capture of a model on a corpus."""
        folder = paths.inside(paths.build(self.profile) / "captures", name)
        return paths.inside(folder, f"{corpus}.safetensors")

    def capture(self, name: str, corpus: str | None = None, every: bool = False) -> Stored:
        """Load the capture of a model on a corpus, the main one by default; make it first if missing or out of date.

        It holds the blocks that the run profile's rule chooses, or `every` one, of those whose outputs vary; `save`
        records which of these do not, and the answer says so.

        In the pipeline the capture always exists: the Snakefile has `make_capture` called first whenever weights, sizes
        or code changed. The check here is for notebooks that are run outside the pipeline.
        """
        corpus = corpus or self.corpora[0]
        path = self.capture_path(name, corpus)
        if not self._is_fresh(path, name, corpus):
            self.make_capture(name, corpus)
        stored = load_capture(path)
        if stored.about["constant"]:
            self.constant.setdefault(name, {})[corpus] = stored.about["constant"]
        if every or self.blocks is None:
            return stored
        return replace(stored, blocks=selected({name: stored.blocks}, self.blocks)[name])

    def make_capture(self, name: str, corpus: str) -> Path:
        """Capture a model on a corpus of the run profile, replacing any earlier capture; return the file's path."""
        if corpus not in self.corpora:
            raise InputError(f"profile {self.profile} has no text {corpus!r}: {', '.join(self.corpora)}")
        model = self.model(name)
        rows = self.corpus(corpus, model).rows(self.rows, self.seq_len, self.seed)
        losses = HeldOutLosses(model, rows)
        blocks = capture(model, rows, sample=self.sample, seed=self.seed, progress=True, losses=losses)
        varying = {number: block for number, block in blocks.items() if block.varies}
        if not varying:
            raise ConstantError(
                f"the output of every block of {name} is constant on {corpus}, in all document folds or all but one: "
                "none has an R²_lin"
            )
        about = {"model": name, "perplexity": if_finite("perplexity", losses.perplexity), "sizes": self.sizes}
        about["sources"] = self._sources(name, corpus)
        about["constant"] = [number for number in blocks if number not in varying]
        path = self.capture_path(name, corpus)
        save_capture(path, varying, rows, about)
        return path

    @property
    def sizes(self) -> dict[str, int]:
        """What a capture's content depends on besides model and corpus."""
        return {"rows": self.rows, "seq_len": self.seq_len, "seed": self.seed, "sample": self.sample}

    def _sources(self, name: str, corpus: str) -> list[str]:
        return [settings.from_root(source) for source in (self.models[name], self.user_texts.get(corpus, corpus))]

    def _is_fresh(self, path: Path, name: str, corpus: str) -> bool:
        """Return whether a capture exists, has these sizes and sources, and is newer than local weights and texts."""
        if not path.exists():
            return False
        about = about_capture(path)
        if (about.get("sizes"), about.get("sources")) != (self.sizes, self._sources(name, corpus)):
            return False
        if "constant" not in about:  # an earlier version made it
            return False
        made_at = path.stat().st_mtime
        files = list(Path(self.models[name]).glob("*.safetensors"))
        if corpus in self.user_texts:
            files += settings.files_of(self.user_texts[corpus])
        return all(file.stat().st_mtime <= made_at for file in files)

    @property
    def results(self) -> Path:
        """Folder to read other notebooks' results from: the record, or scratch if nothing is on record."""
        on_record = paths.results(self.profile)
        return on_record if self.recorded or on_record.is_dir() else paths.scratch(self.profile) / "results"

    def record(self, name: str, table: pd.DataFrame) -> pd.DataFrame:
        """Keep a tidy table for the results and return it as it will be read from disk, for figures to show.

        Its columns, keys and quantities, must be in the data dictionary `files/columns.yaml`; errors are those of
        `tables.as_recorded`.
        """
        self.tables[name] = tables.as_recorded(table, self.stem, name)
        return self.tables[name]

    def record_held_out(self, texts: Mapping[str, Mapping[str, TokenRows]]) -> pd.DataFrame:
        """Print and record on how much text costs are measured: the fewer documents, the wider the intervals.

        `texts` maps model → text → rows, whose held-out side counts.
        """
        found = [
            {"model": model, "corpus": corpus, "cost_rows": rows.held_out.count, "documents": rows.held_out.documents}
            for model, by_corpus in texts.items()
            for corpus, rows in by_corpus.items()
        ]
        table = self.record("held_out", pd.DataFrame(found, columns=["model", "corpus", "cost_rows", "documents"]))
        for row in table.itertuples():
            print(f"{row.model}: costs on {row.cost_rows:,} held-out tokens, {row.documents} documents of {row.corpus}")
        return table

    def save(self, settings: Mapping[str, Any] | None = None) -> None:
        """Write the recorded tables, and the settings: models, texts, sizes and the notebook's own."""
        about = {"profile": self.profile, "rows": self.rows, "seq_len": self.seq_len, "seed": self.seed}
        about |= {"models": list(self.models), "beside": self.beside, "corpora": self.corpora}
        about |= {"constant": self.constant} if self.constant else {}
        tables.write(self.results_path, self.tables, about | dict(settings or {}))
        if not self.recorded:
            scratch = paths.scratch(self.profile)
            if Path.cwd().is_relative_to(paths.ROOT):
                scratch = os.path.relpath(scratch, paths.ROOT)
            print(f"not recorded: numbers and figures of this run are in {scratch}")

    @property
    def results_path(self) -> Path:
        """Folder of the notebook's tables: in the record, or below scratch."""
        folder = paths.results(self.profile) if self.recorded else paths.scratch(self.profile) / "results"
        return paths.inside(folder, self.stem)

    def answer(self) -> None:
        """Show the answer of this run profile's recorded results, before this run has found anything."""
        later = "When this notebook has run to its end, the answer stands here and under *What we learned*."
        recorded = paths.inside(self.results, self.stem)
        if not recorded.is_dir():
            text = f"Of run profile `{self.profile}` nothing is recorded yet. {later}"
        else:
            try:
                text = _listed(prose.describe(tables.read(recorded)).answer)
            except (LookupError, TypeError, ValueError, OSError) as error:  # as an earlier version wrote them
                problem = f"{type(error).__name__}: {error}"
                text = f"What is recorded of run profile `{self.profile}` cannot be read ({problem}). {later}"
        display(Markdown(text), display_id=self._answer_id)

    def conclusion(self) -> None:
        """Show the answer of the results just saved, here and in the output of `answer`; reply to each prediction."""
        found = prose.describe(tables.read(self.results_path))
        answer = _listed(found.answer)
        numbered = [f"{number}. {reply}" for number, reply in enumerate(found.replies, 1)]
        update_display(Markdown(answer), display_id=self._answer_id)
        display(Markdown(f"{answer}\n\n**Your predictions.**\n\n" + "\n".join(numbered)))

    def questions(self) -> None:
        """Show questions for self-testing, each with the answer from this run's saved results folded below it."""
        asked = prose.describe(tables.read(self.results_path)).questions
        folded = [  # between blank lines, so that an answer is read as Markdown
            f"<details><summary>{number}. {escape(question)}</summary>\n\n{answer}\n\n</details>"
            for number, (question, answer) in enumerate(asked, 1)
        ]
        display(Markdown(_with_key("\n\n".join(folded))))

    def shown(self, table: pd.DataFrame, otherwise: str) -> pd.DataFrame | Markdown:
        """Return the table, or if it has no row the sentence `otherwise` that says why."""
        return table if len(table) else Markdown(otherwise)

    def folded(self, title: str, table: pd.DataFrame) -> None:
        """Show a long table in full, folded under its title."""
        display(HTML(f"<details><summary>{escape(title)}</summary>{table.to_html(max_rows=None)}</details>"))

    @property
    def _answer_id(self) -> str:
        """Display id of the output of `answer`, by which `conclusion` updates it."""
        return f"{self.stem}-answer"

    def figure(self, figure: Figure, name: str) -> Path:
        """Write a figure to `figures/<profile>/<stem>_<name>.svg` and `.png`, or below scratch."""
        folder = paths.figures(self.profile) if self.recorded else paths.scratch(self.profile) / "figures"
        return figures.save(figure, folder, f"{self.stem}_{name}")


def _listed(sentences: list[str]) -> str:
    """Format sentences as a Markdown list, with a note on what square brackets hold."""
    return _with_key("\n".join(f"- {sentence}" for sentence in sentences))


def _with_key(text: str) -> str:
    """Append to a Markdown text with square brackets a note on what they hold."""
    return f"{text}\n\nSquare brackets hold 95 % intervals." if "[" in text else text


def start(stem: str, profile: str = "minis", model: str | None = None, corpus: str | None = None) -> Run:
    """Set the figure style and read the profile, by `settings.with_own`, as a notebook's first cell does."""
    chosen = settings.with_own(profile, model, corpus)
    models, corpora = chosen.models_of(stem), chosen.corpora_by_name
    style.use(models)
    disable_progress_bar()
    return Run(
        stem=stem,
        profile=chosen.name,
        models=models,
        corpora=list(corpora),
        rows=chosen.rows,
        seq_len=chosen.seq_len,
        seed=chosen.seed,
        sample=chosen.sample,
        blocks=chosen.blocks,
        beside=[name for name in models if name not in chosen.models_by_name],
        user_texts={name: source for name, source in corpora.items() if name != source},
        texts=None if chosen.texts is None else Path(chosen.texts),
        recorded=os.environ.get(settings.RECORD) == "1",
    )
