"""A run's models measured by the paper's own protocol, for notebooks that compare with the paper's numbers.

Other models, and texts that are not the paper's, are not measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pandas as pd
from transformers import PreTrainedModel

from howlinear.files import published
from howlinear.instrument.paper_protocol import paper_blocks
from howlinear.notebook.run import Run
from howlinear.text.library import PAPERS
from howlinear.text.paper_rows import LAYOUTS, SURVEY, PaperRows, paper_rows

NONE = "None of this run's models and texts is the paper's own, so there is nothing to compare."


def lay_out(
    run: Run, corpus: str | None = None, most: int = SURVEY
) -> Iterator[tuple[str, PreTrainedModel, PaperRows]]:
    """Yield short name, model and rows of each of the run's models that is the paper's, on the main text or another."""
    corpus = corpus or run.corpora[0]
    if corpus in set(run.corpora) & set(PAPERS):
        for name in published.of_models(run.models)["model"].unique():
            model = run.model(name)
            yield name, model, paper_rows(run.corpus(corpus, model), most)


def measure(
    run: Run,
    corpus: str | None = None,
    layout: str = "survey",
    perplexities: bool = False,
    blocks: Collection[int] | None = None,
) -> pd.DataFrame:
    """Measure the paper's models of a run: one row per `model` and block, columns of `paper_protocol.paper_blocks`.

    By default on the main text, in one of `text.paper_rows.LAYOUTS`; perplexities are on WikiText-2's test part.
    """
    most, most_scored = LAYOUTS[layout]
    parts = [pd.DataFrame(columns=["model", "block"])]
    for name, model, rows in lay_out(run, corpus, most):
        scored = paper_rows(run.corpus("wikitext_test", model), most_scored).ids if perplexities else None
        parts.append(paper_blocks(model, rows, scored, blocks).assign(model=name))
    return pd.concat(parts[1:] or parts, ignore_index=True)
