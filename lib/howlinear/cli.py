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

from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.ideas.compression.greedy import Plan
from howlinear.instrument.processes import alone, place
from howlinear.instrument.profile import Profile
from howlinear.models.packaged import PACKAGED

app = typer.Typer(
    help="How linear is a transformer's feed-forward block?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Model = Annotated[
    str,
    typer.Argument(
        help="folder, .gguf file, Hub id, embedded model such as mini-gpt2, "
        f"or one from a package: {', '.join(PACKAGED)}"
    ),
]
CorpusName = Annotated[
    str, typer.Option(help="docs, code, cpp, wikitext, moby_dick, puzzles, ag_news, codeparrot, or a .txt file")
]
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
    json: Annotated[
        Path | None, typer.Option(help="also write the numbers to this file, in a folder that exists")
    ] = None,
) -> None:
    """Measure R²_lin of every block of MODEL: how much of its output an exact affine map explains, held out.

    20,000 rows by default. Under torchrun --nproc-per-node N -m howlinear measure …, N processes share the work.
    Exit code 3: measured, but the text ended before every interval was as narrow as --tolerance.
    """
    from howlinear import load_corpus, load_model
    from howlinear import measure as measure_alone
    from howlinear.files import results
    from howlinear.instrument import processes
    from howlinear.instrument.stopping import check_tolerance

    with processes.joined(device) as shared:
        if json is not None and shared.first:
            _check_folder(json)
        wanted = _blocks(blocks)
        if tolerance is not None:
            check_tolerance(tolerance)
        _check_device_map(device_map, device, shared.count)
        loaded = load_model(model, dtype=dtype, device_map=device_map, sites=sites)
        if device_map is None:
            loaded = loaded.to(shared.device)
        source = load_corpus(corpus, loaded)
        options = {"rows": rows, "seq_len": seq_len, "seed": seed, "blocks": wanted, "tolerance": tolerance}
        options["progress"] = sys.stderr.isatty()
        if shared.count == 1:
            profile = measure_alone(loaded, source, **options)
        else:
            profile = processes.measure(shared, loaded, source, **options)
            shared.gather(None)  # all have done their part: if one is lost, there is no file
        if shared.first:
            if json is not None:
                about = {"model": model, "seed": seed, "versions": results.versions()}
                results.save(json, profile.to_dict() | about)
            Console().print(_table(profile, model))
            if model in PACKAGED and not Path(model).is_dir():
                Console(soft_wrap=True).print(f"{model}: {PACKAGED[model].about}", markup=False, highlight=False)
            Console().print(profile.outlook, markup=False, highlight=False)
            if profile.reading is not None:
                Console(soft_wrap=True).print(f"text: {profile.reading}", markup=False, highlight=False)
    if shared.first and profile.stop is not None and not profile.stop.reached:
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
    from howlinear.ideas.compression.folder import card_of, save, vacant
    from howlinear.ideas.compression.greedy import compress_to
    from howlinear.models.replace import replace

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
    p: Annotated[
        list[str] | None, typer.Option("-p", help="a parameter, as in -p rows=8192", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Execute a notebook with papermill; the result lies under build/."""
    from howlinear.notebook.execute import execute, parsed

    parameters = {}
    for pair in p or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"-p {pair!r}: give a name and a value, as in -p rows=8192")
        parameters[name] = parsed(value)
    Console().print(execute(stem, parameters).name, "done")


@app.command()
def minis(
    names: Annotated[list[str] | None, typer.Argument(help="which; the three embedded ones by default")] = None,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps of 4,096 tokens, of a wide one 16,384")] = 2_000,
    device: Annotated[str, typer.Option(help="cpu, cuda, or one GPU as in cuda:1")] = "cpu",
    compiled: Annotated[bool, typer.Option(help="torch.compile the step; needs a C++ compiler on a CPU")] = True,
) -> None:
    """Train the embedded models, or go on from their checkpoints, and write them to models/.

    wide-gpt2, wide-pythia and wide-llama are the same at the paper's width of 768, for a GPU; they go to build/wide.
    """
    from howlinear.training.loop import Recipe
    from howlinear.training.minis import FACTORY, WIDE, WIDE_RECIPE, ship

    device = place(device)
    for name in names or FACTORY:
        recipe = replace(WIDE_RECIPE if name in WIDE else Recipe(), steps=steps)
        ship(name, recipe, device=device, compiled=compiled)


@app.command(hidden=True)
def capture(profile: str, corpus: str, models: list[str]) -> None:
    """Make captures of a profile's models on one of its corpora; the pipeline's own step."""
    from howlinear.notebook.run import start

    run = start("capture", profile)
    for model in models:
        run.make_capture(model, corpus)


def _check_folder(json: Path) -> None:
    """Refuse a file in a folder that is not there, before any work: a mistyped path makes no new folders.

    Raises:
        SourceError: there is no such folder.
    """
    if not json.parent.is_dir():
        raise SourceError(f"cannot write {json}: there is no folder {json.parent}; make it first, or name another")


def _blocks(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--blocks {text!r}: give whole numbers with commas between, as in 0,3") from error


def _check_device_map(device_map: str | None, device: str, processes: int) -> None:
    """Refuse two ways at once to say where a model computes.

    Raises:
        InputError: a device map beside a device or several processes.
    """
    if device_map and (device != "cpu" or processes > 1):
        raise InputError(
            "--device-map spreads a model over the devices of one process: leave --device and torchrun out"
        )


BAR = 10  # characters that stand for R²_lin = 1


def _table(profile: Profile, model: str) -> Table:
    """The profile as a table that reads whole on 80 columns."""
    predicts = "predicts no next token" if profile.perplexity is None else f"perplexity {profile.perplexity:.2f}"
    caption = "held-out documents; jackknife over document folds; median over features"
    if profile.stop is not None:
        caption += f"\n{profile.stop}"
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{model} on {profile.rows.corpus}, {profile.rows_used:,} rows: {predicts}",
        caption=caption,
    )
    table.add_column("block", justify="right", no_wrap=True)
    table.add_column("R²_lin", justify="right", no_wrap=True)
    table.add_column("", justify="left", overflow="crop")  # the bar, which gives way if anything must
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("median\nR²", justify="right", no_wrap=True)
    table.add_column("eff.\nrank", justify="right", no_wrap=True)
    table.add_column("cond.\nnumber", justify="right", no_wrap=True)
    for row in profile.to_frame().itertuples():
        table.add_row(
            str(row.block),
            f"{row.r2:.3f}",
            "█" * round(BAR * max(0.0, row.r2)),
            f"{row.r2_low:.3f} – {row.r2_high:.3f}",
            f"{row.r2_median:.3f}",
            f"{row.effective_rank:.1f}",
            f"{row.condition:.0f}" if row.condition < 1e6 else f"{row.condition:.1e}",
        )
    return table


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
        app(words)
    except HowlinearError as error:
        _complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
