"""The command line: `howlinear measure`, `compare`, `tokens`, `compress`, `figures`, `notebook`, `minis`.

Every command takes the same steps: check its arguments, read inputs, measure, write files, show results. Wrong input
ends with one clear line on standard error and exit code 2. Files are written whole or not at all, and existing files
are replaced only with `--force`.

Each command first checks that its model and corpus exist, and only then imports what it needs: torch and transformers
take seconds, and neither help nor a mistyped name should wait for them. The names of `hl` are imported on first use.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

import howlinear as hl
from howlinear.app.encoding import LOST, plain_console, write_ascii_for_the_rest
from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.instrument.torchrun import is_distributed
from howlinear.models.packaged import PACKAGED

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

    from howlinear.app.measurement import Measurement
    from howlinear.ideas.corpora.comparison import Comparison
    from howlinear.notebook.execute import Listed
    from howlinear.text.corpus import Corpus

app = typer.Typer(help="How linear is a transformer's feed-forward block?", add_completion=False)
FAILED = 2  # exit code for refused input and for Ctrl-C
TOLERANCE_NOT_REACHED = 3
ABORTED = 130  # typer's exit code for Ctrl-C

# --- Options that several commands share

MODEL = f"folder, .gguf file, Hub id, embedded model such as mini-gpt2, or one from a package: {', '.join(PACKAGED)}"
Model = Annotated[str, typer.Argument(help=MODEL)]
CorpusName = Annotated[
    str,
    typer.Option(
        help="docs, code, cpp, wikitext, wikitext_test, moby_dick, puzzles; the path of a text "
        "file, a folder of them, or a table (.jsonl, .json, .csv, .tsv, .parquet); or a data set of the Hub as "
        "owner/name:configuration:split, where configuration and split are optional"
    ),
]
Documents = Annotated[
    str, typer.Option(help="how to cut your own text into documents: file, blank (lines between), line, or auto")
]
TextColumn = Annotated[str | None, typer.Option(help="text column of a table or data set; by default text or content")]
Layerwise = Annotated[
    bool | None,
    typer.Option(
        "--layerwise/--whole",
        help="hold one layer and one block's moments in memory at a time, and leave all other weights in their files; "
        "the default if a folder's model does not fit otherwise",
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(help="with --layerwise: a folder that keeps finished parts, so that an interrupted run can resume"),
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="sequences per forward pass; affects memory and time, not the results")
]
SequenceLength = Annotated[int, typer.Option("--seq-len", min=2, help="tokens in a sequence")]
Seed = Annotated[int, typer.Option(help="decides which documents are drawn")]
Blocks = Annotated[str | None, typer.Option(help="which blocks, as in 0,3; all by default")]
Sites = Annotated[str | None, typer.Option(help="where FFNs are, if they are not found: as in model.layers.*.mlp")]
Site = Annotated[
    str,
    typer.Option(help="part of each block: ffn, attention, or layer (all that it adds to the residual stream)"),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or one GPU as in cuda:1")]
Dtype = Annotated[str, typer.Option(help="dtype of the weights: float32, bfloat16 or float16")]
In4Bit = Annotated[bool, typer.Option("--load-in-4bit", help="round linear layers to 4 bits, with bitsandbytes")]
In8Bit = Annotated[bool, typer.Option("--load-in-8bit", help="round linear layers to 8 bits, with bitsandbytes")]
DeviceMap = Annotated[str | None, typer.Option(help="auto spreads the model over devices, with accelerate")]
Json = Annotated[Path | None, typer.Option(help="also write the numbers to this .json file")]
Csv = Annotated[Path | None, typer.Option(help="also write a row per block to this .csv file")]
Plot = Annotated[Path | None, typer.Option(help="also draw it over depth to this .svg, .png or .pdf file")]
Html = Annotated[Path | None, typer.Option(help="also write a page with figure, table and notes to this .html file")]
Swap = Annotated[
    bool, typer.Option("--swap", help="also measure by how much perplexity rises with each block's map in its place")
]
Force = Annotated[bool, typer.Option("--force", help="replace existing files, which are refused otherwise")]

SUFFIXES = {
    "--json": (".json",),
    "--csv": (".csv",),
    "--plot": (".svg", ".png", ".pdf"),
    "--html": (".html", ".htm"),
}
"""Option → suffixes that its file may have."""


@dataclass(frozen=True)
class Reading:
    """Options that say how a command reads its models and texts."""

    documents: str = "auto"
    text_column: str | None = None
    sites: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    device_map: str | None = None
    in_4bit: bool = False
    in_8bit: bool = False

    @property
    def bits(self) -> int | None:
        """Number of bits that the weights are rounded to; None if they are not rounded."""
        return 4 if self.in_4bit else (8 if self.in_8bit else None)

    def of(self, corpus: str, corpora: Sequence[str]) -> Reading:
        """The options for one of several texts: `documents` and `text_column` are for the user's own, if any is."""
        from howlinear.text.library import BUILT_IN

        if corpus in BUILT_IN and not set(corpora) <= set(BUILT_IN):
            return replace(self, documents="auto", text_column=None)
        return self


def _print_version(wanted: bool) -> bool:
    if wanted:
        plain_console().print(f"howlinear {hl.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """How linear is a transformer's feed-forward block?"""


# --- howlinear measure


@app.command()
def measure(
    models: Annotated[
        list[str], typer.Argument(help=f"{MODEL}; several are measured one after the other", metavar="MODEL...")
    ],
    corpus: CorpusName = "docs",
    documents: Documents = "auto",
    text_column: TextColumn = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="token rows; a quarter is held out; with --tolerance, the most to use")
    ] = None,
    blocks: Blocks = None,
    seq_len: SequenceLength = 128,
    seed: Seed = 0,
    tolerance: Annotated[
        float | None, typer.Option(help="double the rows until every interval is at most ± this wide, as in 0.005")
    ] = None,
    device: Device = "cpu",
    sites: Sites = None,
    site: Site = "ffn",
    dtype: Dtype = "float32",
    device_map: DeviceMap = None,
    load_in_4bit: In4Bit = False,
    load_in_8bit: In8Bit = False,
    batch_size: BatchSize = 16,
    json: Json = None,
    plot: Plot = None,
    html: Html = None,
    csv: Csv = None,
    force: Force = False,
    layerwise: Layerwise = None,
    work: Work = None,
    swap: Swap = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="also split R²_lin by token: between token means, and within tokens")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="also measure the same architecture before training; this takes as long as the measurement itself (up "
            "to four times as long on the CPU, if blocks are far from linear) and memory for a second model; with "
            "--layerwise up to seven times as long, and one layer is drawn at a time",
        ),
    ] = False,
) -> None:
    """Measure R²_lin of every block of MODEL: how much of its output an exact affine map explains, held out.

    20,000 rows by default. Under torchrun --nproc-per-node N -m howlinear measure …, N processes share the work.
    Exit code 3: measured, but the text ended before every interval was as narrow as --tolerance.
    """
    targets = {"--json": json, "--plot": plot, "--html": html, "--csv": csv}
    reading = Reading(documents, text_column, sites, device, dtype, device_map, load_in_4bit, load_in_8bit)
    if not is_distributed():  # with several processes, only one reports errors, which needs torch
        check_targets(targets, force, [*models, corpus])
        check_sources(models, [corpus], reading)

    from howlinear.instrument.distributed import joined
    from howlinear.instrument.stopping import check_tolerance
    from howlinear.models.ffn_sites import check_kind

    with joined(device) as group:
        if group.first:
            check_targets(targets, force, [*models, corpus])
        chosen = parse_blocks(blocks)
        check_kind(site)
        if tolerance is not None:
            check_tolerance(tolerance)
        check_placement(reading, group.size)
        if len({os.path.abspath(model) for model in models}) < len(models):
            raise InputError(f"a model is named twice in {' '.join(models)}: name each once")
        if work is not None and len(models) > 1:
            raise InputError("--work keeps one measurement: name one model, or leave it out")
        in_memory = {
            "--tolerance": tolerance is not None,
            "--tokens": tokens,
            f"--load-in-{reading.bits}bit": reading.bits,
        }
        asked = [option for option, given in in_memory.items() if given]
        layerwise = check_layerwise(layerwise, work, device_map, asked)
        options = {"rows": rows, "seq_len": seq_len, "seed": seed, "blocks": chosen, "tolerance": tolerance}
        options |= {"site": site, "tokens": tokens, "work": work, "batch_size": batch_size}
        measurements: list[Measurement] = []
        for model in models:
            # a variable for the loaded model would keep it in memory while the next one is loaded
            inputs = partial(read_inputs, model, corpus, replace(reading, device=group.device), layerwise)
            measurement = replace(measure_all(*inputs(), options, swap, fresh), model=model, dtype=dtype)
            measurements.append(measurement)
            if group.first:  # at once: the next model may take hours, or the disk may be full
                from howlinear.app.console import profile_notes, profile_table

                show(profile_table(measurement, plain_console().width), profile_notes(measurement))
        if group.first:
            from howlinear.app.measurement import to_frame, to_plot
            from howlinear.app.page import render

            one, *others = written = [measurement.to_dict() for measurement in measurements]
            makers = {"--json": lambda: {"measurements": written} if others else one}
            makers |= {"--csv": lambda: to_frame(measurements), "--html": lambda: render(*measurements)}
            makers |= {"--plot": lambda: hl.plots.profile(to_plot(measurements))}
            write_files(targets, makers)
    stops = [(measurement.model, measurement.profile.stop) for measurement in measurements]
    missed = [f"{model}: {stop}" for model, stop in stops if stop is not None and not stop.reached]
    if group.first and missed:
        for line in missed:
            _complain(line)
        sys.exit(TOLERANCE_NOT_REACHED)


def measure_all(
    loaded: PreTrainedModel, text: Corpus, options: Mapping[str, Any], swap: bool, fresh: bool
) -> Measurement:
    """Measure the profile and what else was asked for; `options` are those of `hl.measure`."""
    from howlinear.app.measurement import Measurement, measure_untrained
    from howlinear.instrument.distributed import gather
    from howlinear.instrument.measure import ROWS
    from howlinear.models.load import is_causal

    progress = sys.stderr.isatty()
    rows = ROWS if options["rows"] is None else options["rows"]
    # the untrained model first: if it is impossible, nobody waits for the rest
    untrained = None
    if fresh:
        untrained = measure_untrained(
            loaded, text, rows, options["seq_len"], options["seed"], options["blocks"], options["site"]
        )

    with complaining():
        profile = hl.measure(loaded, text, **options, swap=swap and is_causal(loaded), progress=progress)
    gather(None)  # wait for all processes: if one is lost, no file is written
    return Measurement(profile.model, profile, swap, untrained, rows, options["seed"])


# --- howlinear compare


@app.command()
def compare(
    models: Annotated[
        list[str], typer.Argument(help="two models; or one, with --corpus twice", metavar="MODEL [MODEL]")
    ],
    corpus: Annotated[
        list[str] | None, typer.Option(help="a text as in measure, docs by default; twice for one model on two texts")
    ] = None,
    documents: Documents = "auto",
    text_column: TextColumn = None,
    rows: Annotated[int, typer.Option(min=1, help="token rows; a quarter is held out")] = 20_000,
    blocks: Blocks = None,
    seq_len: SequenceLength = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    sites: Sites = None,
    site: Site = "ffn",
    dtype: Dtype = "float32",
    device_map: DeviceMap = None,
    load_in_4bit: In4Bit = False,
    load_in_8bit: In8Bit = False,
    batch_size: BatchSize = 16,
    json: Json = None,
    plot: Plot = None,
    html: Html = None,
    csv: Csv = None,
    force: Force = False,
    swap: Swap = False,
) -> None:
    """Compare two models on one text, or one model on two texts: R²_lin block by block, and where it clearly differs.

    Two models that read the same rows, as models with the same tokenizer do, are compared in pairs.
    """
    corpora = corpus or ["docs"]
    if sorted((len(models), len(corpora))) != [1, 2]:
        raise InputError(
            f"{len(models)} models and {len(corpora)} texts: give two models, as in howlinear compare mini-gpt2 "
            "mini-llama, or one model and two texts, as in howlinear compare mini-gpt2 --corpus docs --corpus code"
        )
    targets = {"--json": json, "--plot": plot, "--html": html, "--csv": csv}
    check_targets(targets, force, [*models, *corpora])
    reading = Reading(documents, text_column, sites, device, dtype, device_map, load_in_4bit, load_in_8bit)
    check_sources(models, corpora, reading)
    chosen = parse_blocks(blocks)
    pairs = [(model, text) for model in models for text in corpora]

    import pandas as pd

    from howlinear.app.console import comparison_notes, comparison_table
    from howlinear.ideas.corpora.comparison import comparison, measured
    from howlinear.models.ffn_sites import check_kind

    check_kind(site)
    of_site = "" if site == "ffn" else f"{site} of "
    options = {"blocks": chosen, "batch_size": batch_size, "progress": sys.stderr.isatty(), "site": site}
    both = []
    for model, text in pairs:
        loaded, read = read_inputs(model, text, reading.of(text, corpora))
        profile, scores = measured(loaded, read.rows(rows, seq_len, seed), swap, **options)
        both.append((replace(profile, model=model), scores))
    first, second = (f"{of_site}{Path(model).name} on {Path(text).name}" for model, text in pairs)
    names = (first, second if second != first else f"{second} (2)")  # such as checkpoint-500 of two trainings
    compared = comparison(*both, names)
    notes = comparison_notes(compared, swap)

    frames = [profile.to_frame() for profile, _ in both]
    drawn = pd.concat([frame.assign(model=name) for frame, name in zip(frames, names, strict=True)])
    makers = {"--json": lambda: comparison_numbers(compared) | {"seed": seed}, "--csv": lambda: pd.concat(frames)}
    page = partial(comparison_page, compared, names, drawn, seed, notes)
    makers |= {"--plot": lambda: hl.plots.profile(drawn), "--html": page}
    show(comparison_table(compared, names, plain_console().width), notes)
    write_files(targets, makers)


def comparison_numbers(compared: Comparison) -> dict[str, Any]:
    """Return what `--json` writes about a comparison."""
    from howlinear.app.console import mean_distance
    from howlinear.files import numbers

    content = {
        "first": compared.first.to_dict(),
        "second": compared.second.to_dict(),
        "paired": compared.paired,
        "versions": numbers.versions(),
    }
    if compared.agreement is not None:
        content["difference"] = [{"block": b, **asdict(d)} for b, d in compared.agreement.difference.items()]
        r = compared.agreement.correlation
        content["correlation"] = None if r is None else asdict(r)
        content["distance"] = asdict(mean_distance(compared.agreement))
    return content


def comparison_page(
    compared: Comparison, names: tuple[str, str], frame: pd.DataFrame, seed: int, notes: list[str]
) -> str:
    """Render the `--html` page of a comparison; `frame` has a row per block of each, whose name is its `model`."""
    from howlinear.app.console import comparison_columns
    from howlinear.app.page import Section, render_page
    from howlinear.files import numbers

    profiles = (compared.first, compared.second)
    settings = {"A": names[0], "B": names[1], "seed": str(seed)}
    settings |= {
        f"SHA-256 of the rows of {name}": profile.rows.sha256 for name, profile in zip("AB", profiles, strict=True)
    }
    settings["versions"] = ", ".join(f"{name} {version}" for name, version in numbers.versions().items())
    costs = compared.first.costs or compared.second.costs
    figure = partial(hl.plots.profile, frame)
    section = Section(" beside ".join(names), notes, comparison_columns(compared), settings)
    return render_page("comparison.html.jinja", figure, section, costs=costs)


# --- howlinear tokens


@app.command()
def tokens(
    model: Model,
    corpus: CorpusName = "docs",
    documents: Documents = "auto",
    text_column: TextColumn = None,
    rows: Annotated[int, typer.Option(min=1, help="token rows; a quarter is held out and partly shown")] = 20_000,
    tokens: Annotated[int, typer.Option(min=1, help="held-out tokens to show, in whole sequences")] = 2_048,
    blocks: Blocks = None,
    seq_len: SequenceLength = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    sites: Sites = None,
    site: Site = "ffn",
    dtype: Dtype = "float32",
    device_map: DeviceMap = None,
    load_in_4bit: In4Bit = False,
    load_in_8bit: In8Bit = False,
    batch_size: BatchSize = 16,
    html: Annotated[Path | None, typer.Option(help="write the text, coloured by residual, to this .html file")] = None,
    csv: Annotated[Path | None, typer.Option(help="also write a row per token and block to this .csv file")] = None,
    force: Force = False,
) -> None:
    """Show which tokens each block's affine map misses: their shares of its residual on held-out text."""
    targets = {"--html": html, "--csv": csv}
    check_targets(targets, force, [model, corpus])
    reading = Reading(documents, text_column, sites, device, dtype, device_map, load_in_4bit, load_in_8bit)
    check_sources([model], [corpus], reading)
    chosen = parse_blocks(blocks)

    from howlinear.app.console import fit_table, headline
    from howlinear.app.measurement import Measurement
    from howlinear.app.token_page import check_page, render_tokens, token_columns
    from howlinear.models.ffn_sites import check_kind

    check_kind(site)
    if html is not None:
        check_page(tokens)
    loaded, text = read_inputs(model, corpus, reading)
    packed = text.rows(rows, seq_len, seed)
    progress = sys.stderr.isatty()
    profile = hl.measure(loaded, packed, blocks=chosen, batch_size=batch_size, progress=progress, site=site)
    errors = hl.token_errors(loaded, profile, tokens=tokens, batch_size=batch_size, progress=progress)
    errors = errors.assign(model=model)
    measurement = Measurement(model, profile, rows_asked=rows, seed=seed, dtype=dtype)
    caption = "shares of the residual ‖y − ŷ‖² over the tokens shown"
    count = errors["block"].eq(errors["block"].iloc[0]).sum()
    show(
        fit_table(token_columns(errors), plain_console().width, headline(measurement), caption),
        [f"{count:,} held-out tokens are shown; --html shows their text"],
    )
    write_files(targets, {"--csv": lambda: errors, "--html": lambda: render_tokens([(errors, measurement)])})


# --- howlinear compress


@app.command()
def compress(
    model: Model,
    out: Annotated[Path, typer.Option(help="the folder to write")],
    max_dppl: Annotated[
        float | None, typer.Option("--max-dppl", help="replace whole blocks by affine maps, up to this perplexity rise")
    ] = None,
    max_parameters: Annotated[
        float | None, typer.Option("--max-parameters", help="remove hidden units, down to this share of all parameters")
    ] = None,
    units: Annotated[
        bool, typer.Option("--units", help="with --max-dppl: remove hidden units instead of replacing whole blocks")
    ] = False,
    alike: Annotated[
        bool, typer.Option("--alike", help="keep equally many units per block, so that transformers alone loads them")
    ] = False,
    decilm: Annotated[
        bool, typer.Option("--decilm", help="write a LLaMA in the format of DeciLM, which vLLM and llama.cpp read")
    ] = False,
    task: Annotated[
        Path | None,
        typer.Option(help="multiple-choice questions (.jsonl, .json, .csv, .parquet), whose accuracy goes on the card"),
    ] = None,
    corpus: CorpusName = "docs",
    documents: Documents = "auto",
    text_column: TextColumn = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="token rows; a quarter is held out; 20,000, or 40,000 for hidden units")
    ] = None,
    blocks: Annotated[str | None, typer.Option(help="blocks that may change, as in 0,3; all by default")] = None,
    seq_len: SequenceLength = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    sites: Sites = None,
    dtype: Dtype = "float32",
    device_map: DeviceMap = None,
    batch_size: BatchSize = 16,
    json: Json = None,
    plot: Plot = None,
    html: Html = None,
    csv: Csv = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace an existing compressed model and existing files")
    ] = False,
    layerwise: Layerwise = None,
    work: Work = None,
) -> None:
    """Write a smaller model to a folder; nothing is trained.

    With --max-parameters, every block keeps the hidden units that are most costly to remove, with a refitted readout.
    With --max-dppl, as many blocks are replaced by affine maps as perplexity allows.
    With --max-dppl and --units, as many hidden units are removed as perplexity allows.
    """
    units = units or max_parameters is not None
    check_budget(max_dppl, max_parameters, units, alike)
    if alike and blocks is not None:
        raise InputError("--alike is about all blocks, so that one number in the config says it: leave --blocks out")
    targets = {"--json": json, "--plot": plot, "--html": html, "--csv": csv}
    check_targets(targets, force, [model, corpus, str(task or corpus)])
    from howlinear.ideas.compression.output_folder import check_output_folder

    check_output_folder(out, force)
    for option, path in targets.items():
        if path is not None and path.absolute() == out.absolute():
            raise InputError(f"{option} {path} is --out as well: name a file for one and a folder for the other")
    reading = Reading(documents, text_column, sites, device, dtype, device_map)
    check_sources([model], [corpus], reading)
    chosen = parse_blocks(blocks)
    if work is not None and out.resolve() in (work.resolve(), *work.resolve().parents):
        raise InputError(f"--work {work} lies in --out {out}, which is written whole at the end: name another folder")
    layerwise = check_layerwise(layerwise, work, device_map, [])
    if task is not None:
        from howlinear.text.questions import read_questions

        read_questions(task)

    from howlinear.app.compression import Compression
    from howlinear.app.console import outcome_table
    from howlinear.ideas.compression.folder import compressed_card
    from howlinear.models.decilm import MULTIPLE
    from howlinear.models.decilm_export import check_llama

    loaded, text = read_inputs(model, corpus, reading, layerwise)
    if decilm:
        check_llama(loaded)
    packed = text.rows(rows or (40_000 if units else 20_000), seq_len, seed)
    before = None if task is None else hl.accuracy(loaded, task, text.tokenizer, batch_size)
    progress = sys.stderr.isatty()
    if units:
        multiple = MULTIPLE if decilm else 1
        budget = (max_parameters, max_dppl, alike)
        outcome = hl.compress(loaded, packed, *budget, progress, chosen, batch_size, multiple, work=work)
    else:
        options = {"progress": progress, "blocks": chosen, "batch_size": batch_size, "work": work}
        outcome = hl.compress_to(loaded, packed, max_dppl, **options)
    smaller = outcome.model if units else hl.replace(loaded, outcome.maps)
    written = hl.to_decilm(smaller) if decilm else smaller
    accuracies = None if task is None else (before, hl.accuracy(smaller, task, text.tokenizer, batch_size))
    tokenizer, budget = text.tokenizer, (max_dppl, max_parameters)
    card = compressed_card(model, loaded, smaller, packed, outcome, *budget, written, tokenizer, accuracies)
    hl.save(written, out, card, tokenizer, force)
    compression = Compression(model, loaded, smaller, packed, outcome, seed, dtype, accuracies)
    makers = {"--json": compression.to_dict, "--csv": compression.to_frame}
    *lines, sizes = compression.notes
    padded = written.num_parameters()
    if padded != smaller.num_parameters():
        sizes += f" ({padded:,} once padded to multiples of {MULTIPLE})"
    show(outcome_table(outcome), [*lines, f"{sizes}, written to {out}"])
    write_files(targets, makers | {"--plot": compression.draw, "--html": compression.render})


def check_budget(max_dppl: float | None, max_parameters: float | None, units: bool, alike: bool) -> None:
    """Refuse, before any work, a missing, second or unattainable budget, and an option that does not fit it."""
    if (max_dppl is None) == (max_parameters is None):
        raise InputError("give one budget, --max-parameters 0.9 or --max-dppl 1, which are met in different ways")
    if alike and not units:
        raise InputError("--alike is about hidden units: give --max-parameters with it, or --units")
    if max_parameters is not None and not 0 < max_parameters < 1:
        raise InputError(f"a share of {max_parameters:g} of all parameters: give one between 0 and 1, as 0.9")
    if max_dppl is not None and not isfinite(max_dppl):
        raise InputError(f"a budget of {max_dppl}: give a finite rise of perplexity, as 1.0")


# --- howlinear figures


@app.command()
def figures(
    model: Model,
    corpus: Annotated[
        list[str] | None, typer.Option(help="a text by name or path; may be repeated, the first is the main text")
    ] = None,
    documents: Documents = "auto",
    text_column: TextColumn = None,
    out: Annotated[Path | None, typer.Option(help="a new folder; by default howlinear-MODEL here")] = None,
    short: Annotated[bool, typer.Option("--short", help="few rows and few steps: a first look in minutes")] = False,
    cores: Annotated[
        int | None, typer.Option(min=1, help="notebooks that run in parallel; by default all cores")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace existing figures of another model or text")] = False,
) -> None:
    """Run every notebook that applies on your model and texts: tables, figures, and a page that shows them all.

    The page is there once the first notebook has finished, and grows. An interrupted run resumes when it is called
    again.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from howlinear.app.figures import not_run

    columns = (TextColumn("notebooks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=plain_console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task("notebooks", total=None)

        def progress(done: int, of: int) -> None:
            bars.update(bar, completed=done, total=of)

        page = hl.figures(model, corpus or "docs", out, short, cores, progress, force, documents, text_column)
    missing = not_run(page)
    _say(f"the page on {model}: {_from_here(page)}")
    if missing:
        _say(f"notebooks that could not be run, and why, stand there too: {', '.join(missing)}")
        raise typer.Exit(FAILED)


# --- howlinear notebook, howlinear minis


@app.command()
def notebook(
    stem: Annotated[str | None, typer.Argument(help="which notebook, as in 02_ceilings")] = None,
    p: Annotated[
        list[str] | None, typer.Option("-p", help="a parameter, as in -p profile=lesson", metavar="NAME=VALUE")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="replace the project's own results and figures of this notebook")
    ] = False,
    list_them: Annotated[
        bool, typer.Option("--list", help="list all notebooks, or the one named, with their parameters")
    ] = False,
) -> None:
    """Execute a notebook, to read it with its outputs or to try other parameters.

    All output goes below build/scratch, and the project's recorded results stay as they are, unless --record is given.
    """
    from howlinear.notebook.execute import execute, listed, parsed, stems

    if list_them:
        if p or record:
            raise InputError("--list shows notebooks and runs none: leave -p and --record out")
        for each in stems() if stem is None else [stem]:
            _print_listed(listed(each))
        return
    if stem is None:
        raise InputError(f"which notebook? {', '.join(stems())}; --list shows what they ask")
    parameters = {}
    for pair in p or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"-p {pair!r}: give a name and a value, as in -p profile=lesson")
        if name in parameters:
            raise InputError(f"-p {pair!r}: {name} is given twice, and has one value")
        parameters[name] = parsed(value)
    executed = execute(stem, parameters, record, progress=sys.stderr.isatty())
    _say(f"{stem} done: {_from_here(executed)}")
    if not record:
        folder = _from_here(executed.parents[1])
        _say(f"numbers and figures: {folder}/results, {folder}/figures; what is on record stays (or: --record)")


@app.command()
def minis(
    names: Annotated[list[str] | None, typer.Argument(help="models; by default all that need no GPU")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="optimiser steps, of 4,096 or 16,384 tokens; by default as in the recipe"),
    ] = None,
    device: Device = "cpu",
    compiled: Annotated[bool, typer.Option(help="torch.compile the step; needs a C++ compiler on a CPU")] = True,
) -> None:
    """Train the embedded models, or resume from their checkpoints, and write them to models/.

    Meant for a GPU are mini-sink, in which a massive activation grows, and wide-gpt2, wide-pythia and wide-llama, which
    have the paper's width of 768 and go to build/wide.
    """
    from howlinear.instrument.distributed import place
    from howlinear.training.minis import FACTORY, recipe_of, ship

    hide_bars()
    device = place(device)
    recipes = {name: recipe_of(name) for name in names or FACTORY}
    for name, recipe in recipes.items():
        ship(name, replace(recipe, steps=steps or recipe.steps), device=device, compiled=compiled)


@app.command(hidden=True)
def capture(profile: str, corpus: str, models: list[str]) -> None:
    """Capture a run profile's models on one of its corpora; a step of the pipeline."""
    from howlinear.notebook.run import start
    from howlinear.notebook.settings import CAPTURE

    run = start(CAPTURE, profile)
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
    "tokens": ("howlinear tokens mini-gpt2 --corpus mine.txt --html tokens.html",),
    "compress": (
        "howlinear compress mini-gpt2 --max-parameters 0.8 --out smaller",
        "howlinear compress mini-gpt2 --max-dppl 1.0 --out straighter",
        "howlinear compress mini-gpt2 --max-dppl 1.0 --units --out narrower",
        "howlinear compress smollm2-135m --max-parameters 0.9 --task questions.jsonl --out smaller",
    ),
    "figures": ("howlinear figures my-model --corpus my.txt --short",),
    "notebook": (
        "howlinear notebook --list",
        "howlinear notebook 04_rank -p profile=lesson -p counts='[0, 1, 2]'",
    ),
    "minis": ("howlinear minis mini-gpt2 --steps 200",),
}
"""Command → examples below its help."""

for command in app.registered_commands:
    lines = EXAMPLES.get(command.callback.__name__, ())
    command.epilog = "\n\n".join(["For example:" if lines else "", *lines])
app.info.epilog = "\n\n".join(["For example:", *(examples[0] for examples in EXAMPLES.values())])


# --- Checks, before any work


def check_sources(models: list[str], corpora: list[str], reading: Reading) -> None:
    """Refuse a model or corpus that does not exist, or an invalid way to read it.

    Invalid are an unknown way to cut a text into documents, a missing column, and mutually exclusive options.
    """
    from howlinear.models import sources
    from howlinear.text import library, plain, streams

    check_placement(reading)
    for model in models:
        sources.check_there(model)
    plain.check_way(reading.documents)
    for corpus in corpora:
        library.check_known(corpus)
        path = Path(os.path.expanduser(corpus))
        column = reading.of(corpus, corpora).text_column
        if streams.is_hub_id(corpus) and not path.exists():
            next(streams.texts_of(streams.open_hub(corpus), column, corpus), None)
        elif column is not None or plain.is_table(path):
            plain.read_path(path, column)
        elif path.is_file():
            plain.read_bytes(path, most=1)


def check_targets(targets: Mapping[str, Path | None], force: bool, sources: Iterable[str]) -> None:
    """Refuse a file that cannot be written: folders are not created, and files are replaced only with `force`.

    `targets` has the file of each option, or None; a suffix that the option does not write is refused as well, and so
    is one of the models, texts and questions, `sources`, that the command reads.
    """
    from howlinear.files import atomic

    read = [source for source in map(os.path.expanduser, sources) if os.path.exists(source)]
    for option, path in targets.items():
        if path is None:
            continue
        if path.suffix.lower() not in SUFFIXES[option]:
            raise InputError(f"{option} {path}: give a file that ends in {', '.join(SUFFIXES[option])}")
        if not os.path.isdir(path.parent):
            raise SourceError(f"cannot write {path}: there is no folder {path.parent}; make it first, or name another")
        if os.path.isdir(path):
            raise SourceError(f"cannot write {path}: it is a folder; name a file")
        if os.path.exists(path) and any(os.path.samefile(source, path) for source in read):
            raise SourceError(f"cannot write {path}: this command reads it; name another file")
        if os.path.lexists(path) and not force:
            raise SourceError(f"cannot write {path}: it is there already; name another, or add --force to replace it")
        atomic.check_writable(path)


def check_placement(reading: Reading, processes: int = 1) -> None:
    """Refuse contradictory options for where a model runs or how many bits it is rounded to.

    These are a device map together with a device or several processes, and 4 bits together with 8; bits are also
    refused if the packages that round weights are missing.
    """
    from howlinear.models.sources import check_bits

    if reading.device_map and (reading.device != "cpu" or processes > 1):
        raise InputError(
            "--device-map spreads a model over the devices of one process: leave --device and torchrun out"
        )
    if reading.in_4bit and reading.in_8bit:
        raise InputError("weights are rounded to 4 bits or to 8: give --load-in-4bit or --load-in-8bit")
    check_bits(reading.bits)


def check_layerwise(
    layerwise: bool | None, work: Path | None, device_map: str | None, whole_only: Sequence[str]
) -> bool | None:
    """Decide whether a model's weights stay in their files; None if that depends on the free memory.

    `whole_only` are the given options that need all weights at once. Mutually exclusive options are refused.
    """
    if layerwise is False and work is not None:
        raise InputError("--work is of what goes layer by layer: leave --whole out")
    asked = layerwise or work is not None
    if asked and device_map is not None:
        raise InputError("--device-map spreads a whole model over devices: leave --layerwise and --work out")
    if asked and whole_only:
        raise InputError(f"layer by layer there is no {', '.join(whole_only)}: leave it out, or --layerwise and --work")
    if asked or whole_only or device_map is not None:
        return asked
    return layerwise


def parse_blocks(text: str | None) -> list[int] | None:
    """Parse `--blocks`, None for all blocks; anything but comma-separated numbers is refused."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--blocks {text!r}: give whole numbers with commas between, as in 0,3") from error


# --- Reading and writing


def read_inputs(
    model: str, corpus: str, reading: Reading, layerwise: bool | None = False
) -> tuple[PreTrainedModel, Corpus]:
    """Load the model onto its device, and the text with the model's tokenizer."""
    from howlinear.instrument.distributed import place
    from howlinear.instrument.layerwise import open_model

    hide_bars()
    device = place(reading.device)
    with complaining():
        if reading.device_map is not None or reading.bits is not None:
            where = reading.device_map or {"": device}
            loaded = hl.load_model(model, dtype=reading.dtype, device_map=where, sites=reading.sites, bits=reading.bits)
        else:
            loaded = open_model(model, layerwise, reading.dtype, reading.sites, device)
    return loaded, hl.load_corpus(corpus, loaded, reading.text_column, reading.documents)


@contextmanager
def complaining() -> Iterator[None]:
    """Print this package's warnings within the context as lines on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for warning in caught:
                if "howlinear" in Path(warning.filename).parts:  # not the warnings of other libraries
                    _complain(str(warning.message))


def hide_bars() -> None:
    """Hide the progress bars of transformers and huggingface_hub, and the warnings of the latter."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()


def write_files(targets: Mapping[str, Path | None], makers: Mapping[str, Callable[[], Any]]) -> None:
    """Write the requested files, each whole or not at all; `makers` make the content of each option's file."""
    from howlinear.files import atomic, numbers

    for option, path in targets.items():
        if path is None:
            continue
        if option == "--plot":
            from howlinear.plots import style

            style.use()
        made = makers[option]()
        if option == "--json":
            numbers.save(path, made, exact=True)
            continue
        with atomic.written_aside(path) as aside:
            if option == "--csv":
                made.to_csv(aside, index=False, encoding="utf-8")
            elif option == "--plot":
                made.savefig(aside, bbox_inches="tight", pad_inches=0.03)
            else:
                aside.write_text(made, encoding="utf-8")


# --- Showing


def show(table: Table, lines: Iterable[str]) -> None:
    """Print a command's table, and below it the notes on it, one per line."""
    plain_console().print(table)
    for line in lines:
        _say(line)


def _print_listed(notebook: Listed) -> None:
    """Print a notebook's stem and title, and its parameters: name, default, comment."""
    console = plain_console()
    number, _, question = notebook.title.partition(" · ")
    console.print(Text(notebook.stem, style="bold"), question or number)
    table = Table.grid(padding=(0, 2))
    for name, parameter in notebook.parameters.items():
        table.add_row("", f"{name} = {parameter.default!r}", parameter.comment)
    console.print(table)


def _from_here(path: Path) -> Path:
    """Return a path relative to the working directory if it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _say(line: str) -> None:
    """Print a line unbroken, leaving wrapping to the terminal: a path or a command may be copied from it."""
    plain_console(soft_wrap=True).print(line)


def _complain(line: str) -> None:
    plain_console(stderr=True, soft_wrap=True).print(f"howlinear: {line}", style="red")


def main() -> None:
    """Run the command line."""
    write_ascii_for_the_rest()
    home = os.path.expanduser("~")  # a shell expands ~ only at the start of a word
    words = [re.sub("(?<==)~(?=/)", lambda _: home, word, count=1) for word in sys.argv[1:]]
    command = typer.main.get_command(app)
    try:
        check_given_once(command, words)
        if is_distributed() and words[:1] != ["measure"]:  # all other commands run in one process
            from howlinear.instrument.distributed import check_one_process

            check_one_process(" ".join(["howlinear", *words[:1]]))
        code = command(words or ["--help"], standalone_mode=False)
        if code == ABORTED:
            _interrupted()
        if LOST:
            raise LOST.pop()
        sys.exit(code or (0 if words else FAILED))
    except HowlinearError as error:
        _complain(str(error))
        sys.exit(FAILED)
    except typer.TyperException as error:  # a wrong option or a wrong value
        name = error.ctx.info_name if getattr(error, "ctx", None) else None
        called = f"howlinear {name}" if name in words else "howlinear"
        _complain(f"{' '.join(error.format_message().split()).rstrip('.')}; see {called} --help")
        sys.exit(FAILED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
        _complain("no space is left where the output or a temporary file goes: make room and run it again")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        _interrupted()


def check_given_once(howlinear: typer.core.TyperGroup, words: Sequence[str]) -> None:
    """Refuse several values of an option that takes one, or both of a pair: typer would silently take the last."""
    command = howlinear.commands.get("".join(words[:1]))
    for option in command.params if command else ():
        names = [*option.opts, *option.secondary_opts]  # secondary are those that deny a flag
        given = sum(word.partition("=")[0] in names for word in words)
        several = option.param_type_name == "argument" or option.multiple or (option.is_flag and len(names) == 1)
        if given > 1 and not several:
            raise InputError(f"{'/'.join(names)} is given {given} times, and {words[0]} takes one")


def _interrupted() -> NoReturn:
    _complain("interrupted; a file or folder that was not finished is not there")
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
