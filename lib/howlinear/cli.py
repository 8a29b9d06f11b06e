"""The command line: `howlinear measure`, `howlinear compress`, `howlinear notebook`, `howlinear minis`.

Wrong input ends with one clear line on standard error and exit code 2; files appear whole or not at all.

Each command imports what it needs itself, and looks first for the model and the corpus that it was given: torch and
transformers take seconds, which neither help nor a mistyped name should wait for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from howlinear import __version__
from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.instrument.torchrun import is_distributed
from howlinear.models.packaged import PACKAGED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from howlinear.instrument.baseline import Baseline
    from howlinear.instrument.perplexity import Change
    from howlinear.instrument.profile import Profile
    from howlinear.notebook.execute import Listed

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
FAILED = 2  # the exit code of what was refused, and of what Ctrl-C has ended
ABORTED = 130  # what typer makes of Ctrl-C
DRAWN = (".svg", ".png", ".pdf")  # what `--plot` can write
Rows = Annotated[int, typer.Option(min=1, help="token rows; a quarter is held out")]
Seed = Annotated[int, typer.Option(help="decides which documents are drawn")]
Sites = Annotated[str | None, typer.Option(help="each block's FFN, if it is not found: as in model.layers.*.mlp")]


def _print_version(wanted: bool) -> bool:
    if wanted:
        Console().print(f"howlinear {__version__}", highlight=False)
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """How linear is a transformer's feed-forward block?"""


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
    plot: Annotated[
        Path | None, typer.Option(help="also draw R²_lin over depth to this .svg, .png or .pdf file")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="also write a page with figure, table and notes to this .html file")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="also write a row per block to this .csv file, which must not be there yet")
    ] = None,
    swap: Annotated[
        bool, typer.Option("--swap", help="also say what each block's map costs in perplexity in the block's place")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="also measure the same architecture before training; that takes the time of the measurement once "
            "more, up to four times where blocks are far from straight, on the CPU, and memory for a second model",
        ),
    ] = False,
) -> None:
    """Measure R²_lin of every block of MODEL: how much of its output an exact affine map explains, held out.

    20,000 rows by default. Under torchrun --nproc-per-node N -m howlinear measure …, N processes share the work.
    Exit code 3: measured, but the text ended before every interval was as narrow as --tolerance.
    """
    if not is_distributed():  # of several processes one speaks for all, which takes torch
        _check_targets(json, plot, html, csv)
        _check_sources(model, corpus)

    from howlinear import load_corpus, load_model, swap_costs
    from howlinear import measure as measured
    from howlinear.cli_fresh import before_training, frame_of, fresh_notes, fresh_table
    from howlinear.console import notes, profile_table
    from howlinear.files import results
    from howlinear.instrument.distributed import gather, joined
    from howlinear.instrument.measure import ROWS
    from howlinear.instrument.stopping import check_tolerance

    _hide_bars()
    with joined(device) as group:
        if group.first:
            _check_targets(json, plot, html, csv)
        wanted = _blocks(blocks)
        if tolerance is not None:
            check_tolerance(tolerance)
        _check_device_map(device_map, device, group.size)
        if (swap or fresh) and group.size > 1:
            raise InputError(f"{'--swap' if swap else '--fresh'} is the work of one process: leave torchrun out")
        loaded = load_model(model, dtype=dtype, device_map=device_map, sites=sites)
        if device_map is None:
            loaded = loaded.to(group.device)
        source = load_corpus(corpus, loaded)
        options = {"rows": rows, "seq_len": seq_len, "seed": seed, "blocks": wanted, "tolerance": tolerance}
        options["progress"] = sys.stderr.isatty()
        untrained = None
        if fresh:  # first: where it cannot be, nobody waits for the rest
            untrained = before_training(loaded, source, ROWS if rows is None else rows, seq_len, seed, wanted)
        profile = measured(loaded, source, **options)
        gather(None)  # all have done their part: if one is lost, there is no file
        if group.first:
            said = notes(profile, ROWS if rows is None else rows)
            if model in PACKAGED and not Path(model).is_dir():
                said.append(f"{model}: {PACKAGED[model].about}")
            if untrained is not None:
                said += fresh_notes(profile, untrained)
            costs = None
            if swap and profile.perplexity is None:
                said.append(
                    "--swap does not apply: this model predicts no next token, so a swap has no cost in perplexity"
                )
            elif swap:
                maps = {block: found.map for block, found in profile.items()}
                costs = swap_costs(loaded, maps, profile.rows, progress=options["progress"])
            if json is not None:
                about = {"model": model, "seed": seed, "versions": results.versions()}
                if costs is not None:
                    about["swap"] = [{"block": block, **cost.to_dict()} for block, cost in costs.items()]
                if untrained is not None:
                    about["untrained"] = untrained.held_out
                    about["untrained_in_sample"] = untrained.in_sample
                    about["untrained_rows"] = untrained.rows
                results.save(json, profile.to_dict() | about)
            frame = frame_of(profile, costs, untrained)
            if csv is not None:
                _write_csv(frame, csv)
            if plot is not None:
                from howlinear.plots import ceilings as plots

                _draw(lambda: plots.profile(frame.assign(model=Path(profile.model).name)), plot)
            if html is not None:
                about = _measured_how(profile, model, seed, dtype, results.versions())
                _write_page(html, profile, model, said, about, costs, untrained)
            console = Console()
            if untrained is None:
                console.print(profile_table(profile, model, console.width, costs))
            else:
                console.print(fresh_table(profile, model, console.width, costs, untrained))
            for line in said:
                _say(line)
    if group.first and profile.stop is not None and not profile.stop.reached:
        _complain(f"{profile.stop}")
        sys.exit(3)


@app.command()
def compare(
    models: Annotated[
        list[str], typer.Argument(help="two models; or one, with --corpus twice", metavar="MODEL [MODEL]")
    ],
    corpus: Annotated[
        list[str] | None, typer.Option(help="a text as of measure, docs by default; twice for one model on two texts")
    ] = None,
    rows: Rows = 20_000,
    seq_len: Annotated[int, typer.Option(min=2, help="tokens in a sequence")] = 128,
    seed: Seed = 0,
    json: Annotated[
        Path | None, typer.Option(help="also write the numbers to this file, in a folder that exists")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="also draw both profiles to this .svg, .png or .pdf file")] = None,
) -> None:
    """Compare two models on one text, or one model on two texts: R²_lin block by block, and what surely differs.

    Two models that read the same rows, as those with one tokenizer do, are compared on them in pairs.
    """
    corpora = corpus or ["docs"]
    if sorted((len(models), len(corpora))) != [1, 2]:
        raise InputError(
            f"{len(models)} models and {len(corpora)} texts: give two models, as in howlinear compare mini-gpt2 "
            "mini-llama, or one model and two texts, as in howlinear compare mini-gpt2 --corpus docs --corpus code"
        )
    _check_targets(json, plot)
    pairs = [(model, text) for model in models for text in corpora]
    for model, text in pairs:
        _check_sources(model, text)

    from howlinear import load_corpus, load_model
    from howlinear.console import comparison_notes, comparison_table, mean_distance
    from howlinear.files import results
    from howlinear.ideas.corpora.comparison import comparison, measured

    _hide_bars()
    both = []
    for model, text in pairs:
        loaded = load_model(model)
        packed = load_corpus(text, loaded).rows(rows, seq_len, seed)
        both.append(measured(loaded, packed, progress=sys.stderr.isatty()))
    names = tuple(f"{Path(model).name} on {Path(text).name}" for model, text in pairs)
    compared = comparison(*both, names)
    if json is not None:
        content = {"first": compared.first.to_dict(), "second": compared.second.to_dict(), "paired": compared.paired}
        if compared.agreement is not None:
            content["difference"] = [{"block": b, **asdict(d)} for b, d in compared.agreement.difference.items()]
            content["correlation"] = asdict(compared.agreement.correlation)
            content["distance"] = asdict(mean_distance(compared.agreement))
        results.save(json, content | {"seed": seed, "versions": results.versions()})
    if plot is not None:
        import pandas as pd

        from howlinear.plots.ceilings import profile

        frames = [each.profile.to_frame().assign(model=name) for each, name in zip(both, names, strict=True)]
        _draw(lambda: profile(pd.concat(frames)), plot)
    console = Console()
    console.print(comparison_table(compared, names, console.width))
    for line in comparison_notes(compared):
        _say(line)


@app.command()
def compress(
    model: Model,
    out: Annotated[Path, typer.Option(help="the folder to write")],
    max_dppl: Annotated[
        float | None, typer.Option("--max-dppl", help="affine maps for whole blocks, until perplexity rises so far")
    ] = None,
    max_parameters: Annotated[
        float | None, typer.Option("--max-parameters", help="fewer hidden units: keep this share of all parameters")
    ] = None,
    units: Annotated[
        bool, typer.Option("--units", help="with --max-dppl: fewer hidden units, not maps for whole blocks")
    ] = False,
    alike: Annotated[
        bool, typer.Option("--alike", help="as many units in every block, so that transformers alone loads them")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="beside hidden units, a line of any rank where that is priced lower")
    ] = False,
    corpus: CorpusName = "docs",
    rows: Annotated[
        int | None, typer.Option(min=1, help="token rows, a quarter is held out; 20,000, or 40,000 for hidden units")
    ] = None,
    seed: Seed = 0,
    sites: Sites = None,
    force: Annotated[bool, typer.Option("--force", help="replace a compressed model that is there")] = False,
) -> None:
    """Write a smaller model to a folder; nothing is trained.

    With --max-parameters, every block keeps those of its hidden units that cost most, read out anew.
    With --max-dppl, as many blocks become affine maps as perplexity allows.
    With --max-dppl and --units, as many hidden units go as perplexity allows.
    """
    if (max_dppl is None) == (max_parameters is None):
        raise InputError("give one budget, --max-parameters 0.9 or --max-dppl 1, which are met in different ways")
    units = units or max_parameters is not None
    if alike and not units:
        raise InputError("--alike is about hidden units: give --max-parameters with it, or --units")
    if lines and not units:
        raise InputError("--lines stand beside hidden units: give --max-parameters with it, or --units")
    if lines and alike:
        raise InputError("--alike is for transformers alone, which knows no --lines: give one of both")
    if max_parameters is not None and not 0 < max_parameters < 1:
        raise InputError(f"a share of {max_parameters:g} of all parameters: give one between 0 and 1, as 0.9")
    if max_dppl is not None and not isfinite(max_dppl):
        raise InputError(f"a budget of {max_dppl}: give a finite rise of perplexity, as 1.0")
    from howlinear.ideas.compression.vacant import vacant

    vacant(out, force)
    _check_sources(model, corpus)

    from howlinear import compress as fewer_units
    from howlinear import compress_to, compress_within, load_corpus, load_model, replace
    from howlinear.console import plan_table, units_table
    from howlinear.ideas.compression.folder import AT_MOST, WITHIN, card_of, save, unit_card

    _hide_bars()
    loaded = load_model(model, sites=sites)
    source = load_corpus(corpus, loaded)
    text = source.rows(rows or (40_000 if units else 20_000), seed=seed)
    progress = sys.stderr.isatty()
    if not units:
        plan = compress_to(loaded, text, max_dppl, progress=progress)
        smaller = replace(loaded, plan.maps)
        card = card_of(model, loaded, smaller, text, plan)
        table = plan_table(plan)
    else:
        if max_parameters is not None:
            plan = fewer_units(loaded, text, max_parameters, alike, lines, progress)
            asked = AT_MOST.format(max_parameters)
        else:
            plan = compress_within(loaded, text, max_dppl, alike, lines, progress)
            asked = WITHIN.format(max_dppl)
        smaller = plan.model
        card = unit_card(model, loaded, plan, text, asked)
        table = units_table(plan)
    save(smaller, out, card, source.tokenizer, force)
    Console().print(table)
    for line in (
        f"{model} on held-out {corpus}: perplexity {plan.base:.2f} → {plan.perplexity:.2f}, "
        f"change {plan.delta.delta:+.2f} (95 % interval {plan.delta.low:+.2f} to {plan.delta.high:+.2f})",
        plan.outlook,
        f"{loaded.num_parameters():,} → {smaller.num_parameters():,} parameters, written to {out}",
    ):
        Console(soft_wrap=True).print(line, markup=False, highlight=False)


@app.command()
def notebook(
    stem: Annotated[str | None, typer.Argument(help="as in 02_ceilings")] = None,
    p: Annotated[
        list[str] | None, typer.Option("-p", help="a parameter, as in -p rows=8192", metavar="NAME=VALUE")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="replace the project's own results and figures of this notebook")
    ] = False,
    list_them: Annotated[
        bool, typer.Option("--list", help="show the notebooks there are, or the one named, with their parameters")
    ] = False,
) -> None:
    """Execute a notebook, to read it with its outputs or to try other parameters.

    All that it writes lies below build/scratch, and what the project has on record stays, unless --record is given.
    """
    from howlinear.notebook.execute import execute, listed, parsed, stems

    if list_them:
        for each in stems() if stem is None else [stem]:
            _print_listed(listed(each))
        return
    if stem is None:
        raise InputError(f"which notebook? {', '.join(stems())}; --list shows what they ask")
    parameters = {}
    for pair in p or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"-p {pair!r}: give a name and a value, as in -p rows=8192")
        parameters[name] = parsed(value)
    executed = execute(stem, parameters, record, progress=sys.stderr.isatty())
    _say(f"{stem} done: {_from_here(executed)}")
    if not record:
        folder = _from_here(executed.parents[1])
        _say(f"numbers and figures: {folder}/results, {folder}/figures; what is on record stays (or: --record)")


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
    from howlinear.instrument.distributed import place
    from howlinear.training.loop import Recipe
    from howlinear.training.minis import FACTORY, WIDE, WIDE_RECIPE, ship

    _hide_bars()
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


EXAMPLES = {
    "measure": (
        "howlinear measure mini-gpt2",
        "howlinear measure smollm2-135m --corpus mine.txt --swap --html report.html",
        "howlinear measure mini-llama --tolerance 0.01 --json out.json --plot profile.svg",
        "howlinear measure mini-gpt2 --fresh --csv blocks.csv",
    ),
    "compare": (
        "howlinear compare mini-gpt2 mini-llama",
        "howlinear compare mini-gpt2 --corpus docs --corpus code",
    ),
    "compress": (
        "howlinear compress mini-gpt2 --max-parameters 0.8 --out smaller",
        "howlinear compress mini-gpt2 --max-dppl 1.0 --out straighter",
        "howlinear compress mini-gpt2 --max-dppl 1.0 --units --out narrower",
    ),
    "notebook": (
        "howlinear notebook --list",
        "howlinear notebook 04_rank -p profile=lesson -p counts='[0, 1, 2]'",
    ),
    "minis": ("howlinear minis mini-gpt2 --steps 200",),
}
"""What stands below each command's help."""

for command in app.registered_commands:
    lines = EXAMPLES.get(command.callback.__name__, ())
    command.epilog = "\n\n".join(["For example:" if lines else "", *lines])
app.info.epilog = "\n\n".join(["For example:", *(examples[0] for examples in EXAMPLES.values())])


def _check_sources(model: str, corpus: str) -> None:
    """Refuse a model or a corpus that is not there.

    Raises:
        SourceError: there is none by that name.
    """
    from howlinear.models import sources
    from howlinear.text import library, plain

    sources.check_there(model)
    library.check_known(corpus)
    if corpus.endswith(".txt"):
        plain.read_bytes(Path(corpus))


def _hide_bars() -> None:
    """Leave the screen to what a command has to say: no bars or warnings of the libraries that load models."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()


def _check_targets(json: Path | None, plot: Path | None, html: Path | None = None, csv: Path | None = None) -> None:
    """Refuse a file that cannot be written, before any work: a mistyped path makes no new folders.

    Raises:
        SourceError: there is no such folder, or a table would take the place of a file.
        InputError: a figure of a kind that we do not draw.
    """
    if plot is not None and plot.suffix not in DRAWN:
        raise InputError(f"--plot {plot}: give a file that ends in {', '.join(DRAWN)}")
    if html is not None and html.suffix not in (".html", ".htm"):
        raise InputError(f"--html {html}: give a file that ends in .html")
    if csv is not None and csv.suffix != ".csv":
        raise InputError(f"--csv {csv}: give a file that ends in .csv")
    for path in (json, plot, html, csv):
        if path is not None and not path.parent.is_dir():
            raise SourceError(f"cannot write {path}: there is no folder {path.parent}; make it first, or name another")
    if csv is not None and os.path.lexists(csv):
        raise SourceError(f"cannot write {csv}: it is there already; name another, or remove it first")


def _draw(figure: Callable[[], Figure], path: Path) -> None:
    """Write a figure that is drawn in the project's style."""
    from howlinear.files import atomic
    from howlinear.plots import style

    style.use()
    with atomic.written_aside(path) as aside:
        figure().savefig(aside, bbox_inches="tight", pad_inches=0.03)


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table, whole or not at all."""
    from howlinear.files import atomic

    with atomic.written_aside(path) as aside:
        frame.to_csv(aside, index=False, encoding="utf-8")


def _measured_how(profile: Profile, model: str, seed: int, dtype: str, versions: dict[str, str]) -> dict[str, str]:
    """By which model, text, rows and programs a profile came about."""
    one = next(iter(profile.values()))
    about = {
        "model": model,
        "weights": dtype,
        "text": profile.rows.corpus,
        "rows": f"{one.rows_train:,} to fit on, {one.rows_test:,} held out",
        "sequences": f"{profile.rows.ids.shape[1]} tokens",
        "seed": str(seed),
        "SHA-256 of the rows": profile.rows.sha256,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    if profile.stop is not None:
        about["rows were doubled until"] = str(profile.stop)
    return about


def _write_page(
    path: Path,
    profile: Profile,
    model: str,
    said: list[str],
    about: dict[str, str],
    costs: dict[int, Change] | None,
    fresh: Baseline | None,
) -> None:
    """Write the page of a measurement."""
    from howlinear.files import atomic
    from howlinear.page import render

    with atomic.written_aside(path) as aside:
        aside.write_text(render(profile, model, said, about, costs, fresh), encoding="utf-8")


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


def _print_listed(notebook: Listed) -> None:
    """A notebook's stem and title, and its parameters: name, default, comment."""
    console = Console(highlight=False)
    number, _, question = notebook.title.partition(" · ")
    console.print(f"[bold]{notebook.stem}[/bold]", escape(question or number))
    table = Table.grid(padding=(0, 2))
    for name, parameter in notebook.parameters.items():
        table.add_row("", escape(f"{name} = {parameter.default!r}"), escape(parameter.comment))
    console.print(table)


def _from_here(path: Path) -> Path:
    """A path as it is typed where we are, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _say(line: str) -> None:
    """Print a line as it is, to be broken by the terminal alone: a path or a command may be copied from it."""
    Console(soft_wrap=True).print(line, markup=False, highlight=False)


def _complain(line: str) -> None:
    line = f"howlinear: {line}".encode(errors="backslashreplace").decode()  # names of files may be no text
    Console(stderr=True, soft_wrap=True).print(line, style="red", markup=False, highlight=False)


def main() -> None:
    """Entry point."""
    words = sys.argv[1:]
    try:
        if is_distributed() and words[:1] != ["measure"]:  # every other command is the work of one process
            from howlinear.instrument.distributed import check_one_process

            check_one_process(" ".join(["howlinear", *words[:1]]))
        app(words)
    except HowlinearError as error:
        _complain(str(error))
        sys.exit(FAILED)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as ended:
        if ended.code == ABORTED:
            _interrupted()
        raise


def _interrupted() -> NoReturn:
    _complain("interrupted; a file or folder that was not finished is not there")
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
