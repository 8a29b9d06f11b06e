"""The book's page of tokens, as written by `howlinear tokens`, for one model on every text of a run profile."""

from __future__ import annotations

import sys

import torch

from howlinear.app.measurement import Measurement
from howlinear.app.token_page import render_tokens
from howlinear.files import atomic, paths
from howlinear.instrument.measure import measure
from howlinear.instrument.token_errors import token_errors
from howlinear.notebook import run as notebooks

TOKENS = 512
"""Tokens per text, in whole sequences: enough to see what the line misses, and few enough to read them all."""


def page(run: notebooks.Run) -> str:
    """The page for the run profile's first model."""
    name = next(iter(run.models))
    model = run.model(name)
    texts = []
    for corpus in run.corpora:
        rows = run.corpus(corpus, model).rows(run.rows, run.seq_len, run.seed)
        profile = measure(model, rows)
        measurement = Measurement(name, profile, rows_asked=run.rows, seed=run.seed)
        texts.append((token_errors(model, profile, tokens=TOKENS), measurement))
    return render_tokens(texts)


def main(profile: str = "minis") -> None:
    """Write `build/<profile>/tokens.html`, as a step of the pipeline."""
    torch.set_num_threads(1)
    atomic.write_text(paths.build(profile) / "tokens.html", page(notebooks.start("tokens", profile)))


if __name__ == "__main__":
    main(*sys.argv[1:])
