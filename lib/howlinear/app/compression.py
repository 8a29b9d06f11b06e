"""Results of one run of `howlinear compress`, for the terminal, the page, the figure, the CSV and the JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from howlinear.app.console import Column
from howlinear.app.page import Section, render_page
from howlinear.files import numbers
from howlinear.ideas.compression.compress import Compressed
from howlinear.ideas.compression.greedy import Plan
from howlinear.instrument.accuracy import Accuracy
from howlinear.models.ffn_sites import sites
from howlinear.plots.compress import kept
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Compression:
    """A smaller model and the model it was made from; it was made and measured on `rows`.

    `model` is the name that the user gave, `outcome` what was removed and its cost, `accuracies` the accuracy on the
    same questions before and after. `seed` decided which documents were drawn.
    """

    model: str
    before: PreTrainedModel
    after: PreTrainedModel
    rows: TokenRows
    outcome: Compressed | Plan
    seed: int
    dtype: str
    accuracies: tuple[Accuracy, Accuracy] | None = None

    @property
    def notes(self) -> list[str]:
        """Sentences on what compression costs, where it stopped, and how much smaller the model is."""
        outcome = self.outcome
        in_accuracy = []
        if self.accuracies is not None:
            before, after = self.accuracies
            change = after.change_from(before)
            in_accuracy = [
                f"{after.task}, {after.questions} questions: accuracy {before.estimate} → {after.estimate}, change "
                f"{change.value:+.2f} (95 % interval {change.low:+.2f} to {change.high:+.2f}); chance is "
                f"{after.chance:.2f}"
            ]
        return [
            f"{self.model} on held-out {self.rows.corpus}: {outcome.cost}",
            outcome.outlook,
            *in_accuracy,
            f"{self.before.num_parameters():,} → {self.after.num_parameters():,} parameters",
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per block: its FFN's parameters before and after, and the share that it keeps."""
        had, has = (
            [sum(parameter.numel() for parameter in site.parameters()) for site in sites(model)]
            for model in (self.before, self.after)
        )
        frame = pd.DataFrame({"block": [site.block for site in sites(self.before)], "parameters_before": had})
        return frame.assign(parameters_after=has, kept=frame["parameters_before"].rdiv(has))

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` writes."""
        outcome = self.outcome
        in_accuracy = {}
        if self.accuracies is not None:
            before, after = self.accuracies
            in_accuracy = {
                "task": after.task,
                "questions": after.questions,
                "chance": after.chance,
                **before.estimate.columns("accuracy_before"),
                **after.estimate.columns("accuracy_after"),
                **after.change_from(before).columns("accuracy_change"),
            }
        return {
            "model": self.model,
            "corpus": self.rows.corpus,
            "sha256": self.rows.sha256,
            "rows": self.rows.count,
            "seq_len": self.rows.seq_len,
            "seed": self.seed,
            "perplexity_before": outcome.base,
            "perplexity_after": outcome.perplexity,
            **outcome.delta.columns("dppl"),
            "parameters_before": self.before.num_parameters(),
            "parameters_after": self.after.num_parameters(),
            **in_accuracy,
            "blocks": self.to_frame().to_dict("records"),
            "versions": numbers.versions(),
        }

    def draw(self) -> Figure:
        """Draw the figure of `--plot`."""
        return kept(self.to_frame())

    def render(self) -> str:
        """Render the page of `--html`."""
        table = self.to_frame()
        columns = [
            Column("block", [str(block) for block in table["block"]], worth=0),
            Column("kept", [f"{share:.3f}" for share in table["kept"]], worth=0),
            Column("parameters before", [f"{count:,}" for count in table["parameters_before"]], worth=0),
            Column("parameters after", [f"{count:,}" for count in table["parameters_after"]], worth=0),
        ]
        settings = {
            "model": self.model,
            "weights": self.dtype,
            "text": f"{self.rows.corpus}, {self.rows.count:,} rows, a quarter held out",
            "sequences": f"{self.rows.seq_len} tokens",
            "seed": str(self.seed),
            "SHA-256 of the rows": self.rows.sha256,
            "versions": ", ".join(f"{name} {version}" for name, version in numbers.versions().items()),
        }
        section = Section(f"{self.model}, smaller", self.notes, columns, settings)
        return render_page("compressed.html.jinja", self.draw, section)
