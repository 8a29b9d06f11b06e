"""The command line: `howlinear measure`, `howlinear notebook`, `howlinear minis`.

Wrong input ends with one clear line on standard error and exit code 2; files appear whole or not at all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import huggingface_hub
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from howlinear.errors import HowlinearError, InputError
from howlinear.measure import Profile

app = typer.Typer(
    help="How linear is a transformer's feed-forward block?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Model = Annotated[str, typer.Argument(help="folder, Hub id, or embedded model such as mini-gpt2")]


@app.command()
def measure(
    model: Model,
    corpus: Annotated[
        str, typer.Option(help="docs, code, cpp, wikitext, ag_news, codeparrot, or a .txt file")
    ] = "docs",
    rows: Annotated[int, typer.Option(min=1, help="token rows per block; a quarter is held out")] = 20_000,
    blocks: Annotated[str | None, typer.Option(help="which blocks, as in 0,3; all by default")] = None,
    seq_len: Annotated[int, typer.Option(min=2, help="tokens in a sequence")] = 128,
    seed: Annotated[int, typer.Option(help="decides which documents are drawn")] = 0,
    json: Annotated[Path | None, typer.Option(help="also write the numbers to this file")] = None,
) -> None:
    """Measure R²_lin of every block of MODEL: how much of its output an exact affine map explains, held out."""
    from howlinear import load_corpus, load_model, record
    from howlinear.measure import measure as run

    wanted = _blocks(blocks)
    loaded = load_model(model)
    profile = run(loaded, load_corpus(corpus, loaded), rows, seq_len, seed, wanted, progress=sys.stderr.isatty())
    if json is not None:
        record.save(json, profile.to_dict() | {"model": model, "seed": seed})
    Console().print(_table(profile, model))


@app.command()
def notebook(
    stem: Annotated[str, typer.Argument(help="as in 02_ceilings")],
    p: Annotated[list[str] | None, typer.Option("-p", help="a parameter: -p name value", metavar="NAME VALUE")] = None,
) -> None:
    """Execute a notebook with papermill; the result lies under build/."""
    from howlinear.notebooks import execute, parsed

    parameters = dict(pair.split(_GLUE, 1) for pair in p or [])
    Console().print(execute(stem, {name: parsed(value) for name, value in parameters.items()}).name, "done")


@app.command()
def minis(
    names: Annotated[list[str] | None, typer.Argument(help="which; all by default")] = None,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps of 4,096 tokens")] = 2_000,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    compiled: Annotated[bool, typer.Option(help="torch.compile the step; needs a C++ compiler on a CPU")] = True,
) -> None:
    """Train the embedded models, or go on from their checkpoints, and write them to models/."""
    from howlinear.minis import FACTORY, Recipe, ship

    for name in names or FACTORY:
        ship(name, Recipe(steps=steps), device=device, compiled=compiled)


@app.command(hidden=True)
def capture(profile: str, model: str, corpus: str) -> None:
    """Make one capture of a profile; the pipeline's own step."""
    from howlinear.notebooks import start

    start("capture", profile).capture(model, corpus)


_GLUE = "\0"


def _paired(arguments: list[str]) -> list[str]:
    """Join the two words after each -p, so that `-p name value` reads as papermill's does."""
    joined, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        joined.append(word)
        if word == "-p":
            if len(rest) < 2:
                raise InputError("-p takes a name and a value, as in -p rows 8192")
            joined.append(rest.pop(0) + _GLUE + rest.pop(0))
    return joined


def _blocks(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--blocks {text!r}: give whole numbers with commas between, as in 0,3") from error


def _table(profile: Profile, model: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{model} on {profile.rows.corpus}: perplexity {profile.perplexity:.2f}",
        caption="held-out documents; jackknife over document folds; median over features",
    )
    for heading in ("block", "R²_lin", "", "95 % interval", "median", "eff. rank", "condition"):
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for row in profile.to_frame().itertuples():
        table.add_row(
            str(row.block),
            f"{row.r2:.3f}",
            "█" * round(12 * max(0.0, row.r2)),
            f"{row.r2_low:.3f} – {row.r2_high:.3f}",
            f"{row.r2_median:.3f}",
            f"{row.effective_rank:.1f}",
            f"{row.condition:.0f}",
        )
    return table


def main() -> None:
    """Entry point."""
    logging.disable_progress_bar()
    huggingface_hub.utils.logging.set_verbosity_error()
    try:
        app(_paired(sys.argv[1:]))
    except HowlinearError as error:
        Console(stderr=True, soft_wrap=True).print(f"howlinear: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
