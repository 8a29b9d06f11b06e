"""The command line: `howlinear measure`, `howlinear compress`, `howlinear notebook`, `howlinear minis`.

Wrong input ends with one clear line on standard error and exit code 2; files appear whole or not at all.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import huggingface_hub
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from howlinear.compression import Plan
from howlinear.distributed import alone, place
from howlinear.errors import HowlinearError, InputError
from howlinear.measure import Profile

app = typer.Typer(
    help="How linear is a transformer's feed-forward block?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Model = Annotated[str, typer.Argument(help="folder, Hub id, or embedded model such as mini-gpt2")]
CorpusName = Annotated[str, typer.Option(help="docs, code, cpp, wikitext, ag_news, codeparrot, or a .txt file")]
Rows = Annotated[int, typer.Option(min=1, help="token rows; a quarter is held out")]
Seed = Annotated[int, typer.Option(help="decides which documents are drawn")]
Sites = Annotated[str | None, typer.Option(help="each block's FFN, if it is not found: as in model.layers.*.mlp")]


@app.command()
def measure(
    model: Model,
    corpus: CorpusName = "docs",
    rows: Annotated[
        int | None, typer.Option(min=1, help="token rows, a quarter is held out; with --tolerance the most to use")
    ] = None,
    blocks: Annotated[str | None, typer.Option(help="which blocks, as in 0,3; all by default")] = None,
    seq_len: Annotated[int, typer.Option(min=2, help="tokens in a sequence")] = 128,
    seed: Seed = 0,
    tolerance: Annotated[
        float | None, typer.Option(help="double the rows until every interval is this narrow to either side, as 0.005")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or one GPU as in cuda:1")] = "cpu",
    sites: Sites = None,
    dtype: Annotated[str, typer.Option(help="of the weights: float32, bfloat16 or float16")] = "float32",
    device_map: Annotated[str | None, typer.Option(help="auto spreads the model over devices, by accelerate")] = None,
    json: Annotated[Path | None, typer.Option(help="also write the numbers to this file")] = None,
) -> None:
    """Measure R²_lin of every block of MODEL: how much of its output an exact affine map explains, held out.

    20,000 rows by default. Under torchrun --nproc-per-node N -m howlinear measure …, N processes share the work.
    Exit code 3: measured, but the text ended before every interval was as narrow as --tolerance.
    """
    from howlinear import distributed, load_corpus, load_model, record
    from howlinear.measure import measure as run
    from howlinear.sequential import checked

    with distributed.joined(device) as ranks:
        wanted = _blocks(blocks)
        checked(tolerance)
        loaded = load_model(model, dtype=dtype, device_map=_spread(device_map, device, ranks.size), sites=sites)
        loaded = loaded if device_map else loaded.to(ranks.device)
        source, bar = load_corpus(corpus, loaded), sys.stderr.isatty()
        profile = run(loaded, source, rows, seq_len, seed, wanted, progress=bar, tolerance=tolerance, ranks=ranks)
        ranks.gather(None)  # all have done their part: a rank that is lost leaves no file
        if ranks.first:
            if json is not None:
                record.save(json, profile.to_dict() | {"model": model, "seed": seed})
            Console().print(_table(profile, model))
    if ranks.first and profile.stop is not None and not profile.stop.reached:
        _complain(f"{profile.stop}")
        sys.exit(3)


@app.command()
def compress(
    model: Model,
    max_dppl: Annotated[float, typer.Option("--max-dppl", help="how far perplexity on held-out text may rise")],
    out: Annotated[Path, typer.Option(help="the folder to write")],
    corpus: CorpusName = "docs",
    rows: Rows = 20_000,
    seed: Seed = 0,
    sites: Sites = None,
    force: Annotated[bool, typer.Option("--force", help="replace a compressed model that is there")] = False,
) -> None:
    """Replace as many blocks of MODEL by affine maps as perplexity allows, and write the smaller model to a folder."""
    from howlinear import load_corpus, load_model
    from howlinear.compressed import card_of, replace, save, vacant
    from howlinear.compression import compress_to

    vacant(out, force)
    loaded = load_model(model, sites=sites)
    source = load_corpus(corpus, loaded)
    text = source.rows(rows, seed=seed)
    plan = compress_to(loaded, text, max_dppl, progress=sys.stderr.isatty())
    smaller = replace(loaded, plan.maps)
    save(smaller, out, card_of(model, loaded, smaller, text, plan), source.tokenizer, force)
    Console().print(_steps(plan))
    for line in (
        f"{model} on held-out {corpus}: perplexity {plan.base:.2f} → {plan.perplexity:.2f}, "
        f"change {plan.delta.delta:+.2f} (95 % interval {plan.delta.low:+.2f} to {plan.delta.high:+.2f})",
        f"{loaded.num_parameters():,} → {smaller.num_parameters():,} parameters, written to {out}",
    ):
        Console(soft_wrap=True).print(line, markup=False, highlight=False)


@app.command()
def notebook(
    stem: Annotated[str, typer.Argument(help="as in 02_ceilings")],
    p: Annotated[list[str] | None, typer.Option("-p", help="a parameter: -p name value", metavar="NAME VALUE")] = None,
) -> None:
    """Execute a notebook with papermill; the result lies under build/."""
    from howlinear.notebooks import execute
    from howlinear.parameters import parsed

    parameters = dict(pair.split(_GLUE, 1) for pair in p or [])
    Console().print(execute(stem, {name: parsed(value) for name, value in parameters.items()}).name, "done")


@app.command()
def minis(
    names: Annotated[list[str] | None, typer.Argument(help="which; the three embedded ones by default")] = None,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps of 4,096 tokens, of a twin 16,384")] = 2_000,
    device: Annotated[str, typer.Option(help="cpu, cuda, or one GPU as in cuda:1")] = "cpu",
    compiled: Annotated[bool, typer.Option(help="torch.compile the step; needs a C++ compiler on a CPU")] = True,
) -> None:
    """Train the embedded models, or go on from their checkpoints, and write them to models/.

    twin-gpt2, twin-pythia and twin-llama are the same at the paper's width of 768, for a GPU; they go to build/twins.
    """
    from howlinear.minis import FACTORY, TWIN_RECIPE, TWINS, Recipe, ship

    device = place(device)
    for name in names or FACTORY:
        recipe = replace(TWIN_RECIPE if name in TWINS else Recipe(), steps=steps)
        ship(name, recipe, device=device, compiled=compiled)


@app.command(hidden=True)
def capture(profile: str, corpus: str, models: list[str]) -> None:
    """Make captures of a profile's models on one of its corpora; the pipeline's own step."""
    from howlinear.notebooks import start

    run = start("capture", profile)
    for model in models:
        run.capture(model, corpus)


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


def _spread(device_map: str | None, device: str, ranks: int) -> str | None:
    if device_map and (device != "cpu" or ranks > 1):
        raise InputError(
            "--device-map spreads a model over the devices of one process: leave --device and torchrun out"
        )
    return device_map


def _table(profile: Profile, model: str) -> Table:
    said = "predicts no next token" if profile.perplexity is None else f"perplexity {profile.perplexity:.2f}"
    first = next(iter(profile.values()))
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{model} on {profile.rows.corpus}, {first.rows_train + first.rows_test:,} rows: {said}",
        caption=f"held-out documents; jackknife over document folds; median over features{_stopped(profile)}",
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


def _stopped(profile: Profile) -> str:
    return "" if profile.stop is None else f"\n{profile.stop}"


def _steps(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("replaced", "block", "ΔPPL on text to fit on"):
        table.add_column(heading, justify="right", no_wrap=True)
    for count, step in enumerate(plan.steps, 1):
        table.add_row(str(count), str(step["block"]), f"{step['dppl']:+.2f}")
    return table


def _complain(line: str) -> None:
    line = f"howlinear: {line}".encode(errors="backslashreplace").decode()  # names of files may be no text
    Console(stderr=True, soft_wrap=True).print(line, style="red", markup=False, highlight=False)


def main() -> None:
    """Entry point."""
    logging.disable_progress_bar()
    huggingface_hub.utils.logging.set_verbosity_error()
    words = sys.argv[1:]
    try:
        if words[:1] != ["measure"]:  # every other command is the work of one process
            alone(" ".join(["howlinear", *words[:1]]))
        app(_paired(words))
    except HowlinearError as error:
        _complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
