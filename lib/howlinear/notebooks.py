"""Running notebooks: what a notebook's cells ask for, and papermill for running them unattended.

A notebook is a py:percent text under `notebooks/`. In Jupyter it runs as it is; unattended it is converted
into the build folder, given its parameters, and executed there. Captures are made once and kept.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import papermill
from matplotlib.figure import Figure
from papermill.exceptions import PapermillExecutionError
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from howlinear import paths, profiles, record, style
from howlinear.capture import capture
from howlinear.corpora import Corpus, load_corpus
from howlinear.errors import InputError, SourceError
from howlinear.models import load_model
from howlinear.parameters import checked
from howlinear.perplexity import perplexity
from howlinear.store import Stored, about_capture, load_capture, save_capture

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@dataclass(frozen=True)
class Run:
    """A notebook's view of a profile: its models and corpora by name, and where its results go.

    Attributes:
        stem: name of the notebook, as in `02_ceilings`.
        profile: name of the profile.
        models: short name → folder or Hub id.
        corpora: names of corpora; the first is the main one.
        rows: token rows per block, a quarter of them held out.
        seq_len: tokens in a sequence.
        seed: decides which documents and rows are drawn.
        sample: rows kept as they are per block.
    """

    stem: str
    profile: str
    models: dict[str, str]
    corpora: list[str]
    rows: int
    seq_len: int
    seed: int
    sample: int

    def model(self, name: str) -> PreTrainedModel:
        """Load one of the profile's models by its short name.

        Raises:
            InputError: the profile has no such model.
        """
        if name not in self.models:
            raise InputError(f"profile {self.profile} has no model {name!r}: {', '.join(self.models)}")
        return load_model(self.models[name])

    def corpus(self, name: str, model: PreTrainedModel) -> Corpus:
        """Load a corpus by name."""
        return load_corpus(name, model)

    def capture_path(self, name: str, corpus: str) -> Path:
        """Where the capture of a model on a corpus is kept."""
        folder = paths.inside(paths.build(self.profile) / "captures", name)
        return paths.inside(folder, f"{corpus}.safetensors")

    def capture(self, name: str, corpus: str | None = None) -> Stored:
        """The capture of a model on a corpus, the main one by default; made now if it is not there or out of date."""
        corpus = corpus or self.corpora[0]
        path = self.capture_path(name, corpus)
        if not self._fresh(path, name):
            model = self.model(name)
            rows = self.corpus(corpus, model).rows(self.rows, self.seq_len, self.seed)
            kept = capture(model, rows, sample=self.sample, seed=self.seed, progress=True)
            about = {"model": name, "perplexity": perplexity(model, rows), "sizes": self.sizes}
            save_capture(path, kept, rows, about)
        return load_capture(path)

    @property
    def sizes(self) -> dict[str, int]:
        """What a capture's content depends on besides model and corpus."""
        return {"rows": self.rows, "seq_len": self.seq_len, "seed": self.seed, "sample": self.sample}

    def _fresh(self, path: Path, name: str) -> bool:
        """Whether a capture is there, of these sizes, and newer than the model's weights if they are local."""
        if not path.exists() or about_capture(path).get("sizes") != self.sizes:
            return False
        weights = Path(self.models[name]).glob("*.safetensors")
        return all(file.stat().st_mtime <= path.stat().st_mtime for file in weights)

    def save(self, numbers: Mapping[str, Any], tolerance: Mapping[str, float] | None = None) -> None:
        """Write the notebook's numbers to `results/<profile>/<stem>.json`."""
        about = {"profile": self.profile, "rows": self.rows, "seq_len": self.seq_len, "seed": self.seed}
        record.save(paths.inside(paths.results(self.profile), f"{self.stem}.json"), about | dict(numbers), tolerance)

    def figure(self, figure: Figure, name: str) -> Path:
        """Write a figure to `figures/<profile>/<stem>_<name>.svg` and `.png`."""
        return style.save(figure, self.profile, f"{self.stem}_{name}")


def start(stem: str, profile: str = "minis") -> Run:
    """Set the figure style and read the profile, as a notebook's first cell does.

    Raises:
        SourceError: no such profile.
        InputError: a key is missing from it, or holds what cannot be used.
    """
    style.use()
    disable_progress_bar()
    found = profiles.settings(profile)
    models = {profiles.short(source): profiles.located(source) for source in found["models"]}
    sizes = {key: found[key] for key in ("rows", "seq_len", "seed", "sample")}
    return Run(stem, profile, models, list(found["corpora"]), **sizes)


def execute(stem: str, parameters: Mapping[str, Any] | None = None) -> Path:
    """Execute a notebook as text → notebook → executed notebook.

    Args:
        stem: as in `02_ceilings`.
        parameters: values for the names in its parameters cell; `profile` decides where everything goes.

    Returns:
        Path of the executed notebook, `build/<profile>/notebooks/<stem>.ipynb`.

    Raises:
        SourceError: no such notebook or profile.
        InputError: a parameter that the notebook does not have or of another type, or a cell that failed.
    """
    source = paths.inside(paths.NOTEBOOKS, f"{stem}.py")
    if not os.path.isfile(source):
        known = ", ".join(sorted(path.stem for path in paths.NOTEBOOKS.glob("[0-9]*.py")))
        raise SourceError(f"no notebook {stem!r}: {known}")
    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = KERNEL
    parameters = checked(stem, parameters or {}, notebook)
    profile = parameters.get("profile", "minis")
    profiles.settings(profile)  # a bad one is refused before anything runs
    folder = paths.build(profile) / "notebooks"
    text = folder / "source" / f"{stem}.ipynb"
    with paths.written_aside(text) as aside:
        jupytext.write(notebook, aside)
    target, failed = folder / f"{stem}.ipynb", folder / f"{stem}.failed.ipynb"
    failed.unlink(missing_ok=True)
    with paths.written_aside(target) as aside:
        try:
            papermill.execute_notebook(
                str(text), str(aside), parameters, cwd=str(paths.NOTEBOOKS), progress_bar=False, log_output=False
            )
        except PapermillExecutionError as error:
            aside.replace(failed)
            raise InputError(
                f"notebook {stem} failed in cell {error.cell_index}: {error.ename}: {error.evalue}; see {failed}"
            ) from error
    return target


logging.getLogger("papermill").setLevel(logging.WARNING)
