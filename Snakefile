# The only DAG: run profile → captures → notebooks → claims → paper, book. `make figures` runs it up to the paper, and
# `--config profile=` says which run profile, by name or by the path of a YAML file anywhere.
# A notebook's executed copy lives under build/, so a fresh clone, which has none, really runs every notebook.
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [f"{workflow.basedir}/lib", workflow.basedir]
from howlinear.errors import HowlinearError
from howlinear.notebook import settings
from tools.reach import reached

if config.keys() - {"profile"}:
    raise WorkflowError("name the run profile by --config profile=NAME, or by its path")
try:
    profile = settings.read(str(config.get("profile", "minis")))
except HowlinearError as error:
    raise WorkflowError(str(error))


def from_here(path):
    """A path in this folder as relative, so that a checkout may move; others as they are."""
    return str(path.relative_to(Path.cwd())) if (path := Path(path)).is_relative_to(Path.cwd()) else str(path)


# What a run profile of the user's own makes is never recorded: all of it lies below build/
PROFILE, GIVEN = profile.name, str(profile.path) if profile.own else profile.name
BUILD = f"build/{PROFILE}"
EXECUTED = f"build/scratch/{PROFILE}" if profile.own else BUILD
RESULTS = f"build/scratch/{PROFILE}/results" if profile.own else f"results/{PROFILE}"
FIGURES = f"build/scratch/{PROFILE}/figures" if profile.own else f"figures/{PROFILE}"
MODELS, CORPORA = profile.models_by_name, profile.corpora_by_name
MAIN, PYTHON = next(iter(CORPORA)), sys.executable

# notebook → the corpora whose captures it reads, its figures
# (of the embedded models notebook 09 reads what was recorded in training alone)
NOTEBOOKS = {
    "00_by_hand": ([], ["cloud", "parabola", "neuron"]),
    "01_capture": ([MAIN], ["diagram", "inputs"]),
    "02_ceilings": ([MAIN], ["solvers", "clouds", "profile"]),
    "03_bilinear": ([MAIN], ["gain", "rank", "gate", "recipe", "layers"]),
    "04_rank": ([MAIN], ["median", "axes", "carried", "reduced"]),
    "05_corpora": ([*CORPORA], ["parabola", "profiles", "transfer"]),
    "06_compression": ([MAIN], ["signal", "reduced_rank", "frontier", "healing"]),
    "07_optimisers": ([MAIN], ["valley", "paths", "shortfall", "baseline"]),
    "08_controls": ([MAIN], ["random", "transplant", "twins"]),
    "09_dynamics": ([MAIN] * (PROFILE != "minis"), ["profiles", "settling", "live"]),
    "10_degrees": ([MAIN], ["spectrum", "gaussian", "full", "rank", "training"]),
    "11_protocol": ([], ["rows", "multiverse", "profiles"]),
    "12_sinks": ([MAIN], ["massive", "without", "cuts", "left_out", "interventions", "costs"]),
    "13_claims": ([], ["board"]),
    "14_compress": ([], ["pareto"]),
    "15_gate": ([], ["shares", "curves"]),
    "16_tokens": ([], ["split", "tables", "vocabulary"]),
}
for stem, alone in {"08_controls": "twins", "10_degrees": "training"}.items():  # figures of the embedded twins alone
    if not profile.parameters.get(stem, {}).get("with_twins", True):
        NOTEBOOKS[stem][1].remove(alone)
if profile.notebooks:
    NOTEBOOKS = {stem: NOTEBOOKS[stem] for stem in profile.notebooks}
READS = {  # notebook → others whose results it reads
    "10_degrees": ["03_bilinear"],
    "13_claims": [
        *("02_ceilings", "03_bilinear", "04_rank", "05_corpora", "06_compression", "07_optimisers", "08_controls", "12_sinks"),
    ],
}
RECORDED = {  # notebook → files on record that it reads: measurements taken in training, or on another run profile
    "08_controls": "models/twins/*.json",
    "09_dynamics": "models/*/*.json",
    "10_degrees": "models/twins/*.json",
    "13_claims": "results/prose/05_corpora/run.json",
}
PUBLISHED = ("02_ceilings", "03_bilinear", "04_rank", "05_corpora", "12_sinks", "13_claims")  # beside what the paper publishes
ORDER = (  # 14 takes longest and no captures; 03 and 11 hold the most memory, so they do not begin together (10 waits for 03)
    *("14_compress", "capture", "03_bilinear", "10_degrees", "11_protocol", "06_compression", "08_controls", "02_ceilings"),
    *("16_tokens", "12_sinks", "15_gate", "09_dynamics", "07_optimisers", "05_corpora"),
)
FIRST = {name: i for i, name in enumerate(reversed(ORDER), 1)}  # so that cores end together
# what captures are made from, and what a notebook reads that takes no capture
WEIGHTS = [from_here(path) for source in MODELS.values() for path in sorted(Path(source).glob("*.safetensors"))]  # if local
FOLDER = profile.texts or os.environ.get("HOWLINEAR_TEXTS")  # of texts that are fetched the hash is pinned
MEMORY = profile.memory  # MB that a step's process takes, where several together are too much for a laptop
SIZES = [profile.rows, profile.seq_len, profile.seed, profile.sample]
SOURCES = {name: settings.from_root(source) for name, source in (MODELS | CORPORA).items()}
CAPTURING = Path("lib/howlinear/notebook/run.py")  # whose `Run.capture` makes them


def took(stem):
    """Seconds that a notebook took when it was last recorded; None if it never was."""
    run = Path(found(stem))
    return json.loads(run.read_text(encoding="utf-8")).get("seconds") if run.is_file() else None


def minutes_left(stem):
    """How long a notebook will take, and all that begin after it, by what they took when they were last recorded."""
    order = sorted(NOTEBOOKS, key=lambda name: -FIRST.get(name, 0))
    later = [took(name) for name in order[order.index(stem) :]]
    if None in later:
        return ""
    alone, together = later[0] / 60, sum(later) / 60 / workflow.cores
    return f": about {alone:.0f} min, and {together:.0f} until all are done, as last recorded"


def found(stem):
    """What stands for a notebook's results: `run.json` beside its tables."""
    return f"{RESULTS}/{stem}/run.json"


def modules(source):
    """A file and every module of the package that its imports reach: if one changes, what it makes is made anew."""
    return [str(source), *(str(path.relative_to(Path.cwd())) for path in reached(Path(source).resolve()))]


def texts(corpora):
    """The files that these corpora are read from: the user's own, and the paper's of the folder of texts if there is one."""
    files = [file for name in corpora for file in settings.files_of(CORPORA[name])]
    if FOLDER:
        files += [Path(FOLDER) / f"{name}.txt" for name in corpora if name in ("wikitext", "moby_dick", "puzzles")]
    return [from_here(file) for file in files if file.is_file()]


rule all:
    input:
        [f"{EXECUTED}/notebooks/{stem}.ipynb" for stem in NOTEBOOKS],
        ["paper/main.pdf"] if PROFILE == "minis" else [],
    message:
        f"done: {RESULTS}, {FIGURES}, executed notebooks in {EXECUTED}/notebooks"


rule capture:
    input:
        WEIGHTS,
        modules(CAPTURING),
        lambda wildcards: texts([wildcards.corpus]),
        "constraints.txt",
    output:
        [f"{BUILD}/captures/{model}/{{corpus}}.safetensors" for model in MODELS],
    log:
        BUILD + "/logs/{corpus}.log",
    priority: FIRST["capture"]
    threads: max(1, workflow.cores // len(CORPORA))
    resources:
        mem_mb=MEMORY.get("capture", 0),
    params:
        sizes=SIZES,
        models=list(MODELS),
        sources=lambda wildcards: [SOURCES[name] for name in (*MODELS, wildcards.corpus)],
    message:
        "captures on {wildcards.corpus}"
    shell:
        "OMP_NUM_THREADS={threads} {PYTHON:q} -m howlinear capture {GIVEN:q} {wildcards.corpus:q} {params.models:q} > {log:q} 2>&1"
        " || {{ tail -n 3 {log:q} >&2; exit 1; }}"


for stem, (corpora, drawn) in NOTEBOOKS.items():

    rule:
        name:
            stem
        input:
            modules(f"notebooks/{stem}.py"),
            [str(path) for path in [Path(f"notebooks/answers/{stem}.md")] if path.is_file()],
            [found(other) for other in READS.get(stem, []) if other in NOTEBOOKS],
            sorted(str(path) for path in Path().glob(RECORDED[stem])) if stem in RECORDED else [],
            ["paper/claims.toml", "paper/claims_ours.toml"] if stem == "13_claims" else [],
            ["paper/published.csv"] if stem in PUBLISHED else [],
            [f"{BUILD}/captures/{model}/{corpus}.safetensors" for model in MODELS for corpus in corpora],
            [] if corpora else [*WEIGHTS, *texts([MAIN])],
        output:
            f"{EXECUTED}/notebooks/{stem}.ipynb",
            found(stem),
            [f"{FIGURES}/{stem}_{name}.{kind}" for name in drawn for kind in ("svg", "png")],
        log:
            f"{BUILD}/logs/{stem}.log",
        priority: FIRST.get(stem, 0)
        params:
            sizes=[] if corpora else SIZES,
            sources=[] if corpora else list(SOURCES.values()),
        threads: 1  # several notebooks side by side; and sums come out the same on every run
        resources:
            mem_mb=MEMORY.get(stem, 0),
        message:
            f"notebook {stem}{minutes_left(stem)}"
        shell:
            "OMP_NUM_THREADS={threads} {PYTHON:q} -m howlinear.notebook.execute {rule:q} {GIVEN:q} > {log:q} 2>&1"
            " || {{ tail -n 3 {log:q} >&2; exit 1; }}"


# the report and the book are about the embedded models

if PROFILE == "minis":

    rule paper:
        input:
            [f"paper/{name}" for name in ("main.typ", "template.typ", "reproducibility.typ", "refs.bib", "claims.toml", "claims_ours.toml")],
            "tools/report.py",
            [f"{from_here(source)}/{name}" for source in MODELS.values() for name in ("config.json", "trajectory.json")],
            WEIGHTS,
            "CITATION.cff",
            "profiles/paper.yaml",
            [found(stem) for stem in NOTEBOOKS],
            [f"figures/minis/{stem}_{name}.svg" for stem, (_, drawn) in NOTEBOOKS.items() for name in drawn],
            "results/prose/05_corpora/run.json",
            "results/public/02_ceilings/run.json",
            "results/public/12_sinks/run.json",
            "results/public/14_compress/run.json",
            "figures/public/02_ceilings_profile.svg",
            "figures/public/14_compress_pareto.svg",
        output:
            "paper/main.pdf",
        message:
            "paper"
        shell:
            "{PYTHON:q} -m tools.report"

    rule explorer:
        input:
            [f"{BUILD}/captures/{model}/{corpus}.safetensors" for model in MODELS for corpus in CORPORA],
            "results/minis/02_ceilings/run.json",
            modules("tools/book/explorer.py"),
        output:
            f"{BUILD}/explorer.json",
        threads: 1
        message:
            "the interactive page's numbers"
        shell:
            "OMP_NUM_THREADS={threads} {PYTHON:q} -m tools.book.explorer {PROFILE:q}"

    rule in_browser:
        input:
            f"{BUILD}/captures/{next(iter(MODELS))}/{MAIN}.safetensors",
            "results/minis/02_ceilings/run.json",
            modules("tools/book/in_browser.py"),
        output:
            f"{BUILD}/in_browser.json",
        threads: 1
        message:
            "the moments of the page to try things on"
        shell:
            "OMP_NUM_THREADS={threads} {PYTHON:q} -m tools.book.in_browser {PROFILE:q}"

    rule book:
        input:
            sorted(str(path) for folder in ("book", "notebooks/solutions") for path in Path(folder).rglob("*.*")),
            sorted(str(path) for folder in ("lib/howlinear", "tools") for path in Path(folder).rglob("*.py")),
            [f"{BUILD}/notebooks/{stem}.ipynb" for stem in NOTEBOOKS],
            f"{BUILD}/explorer.json",
            f"{BUILD}/in_browser.json",
            "paper/main.pdf",
            "paper/slides.typ",
        output:
            "build/book/html/index.html",
        message:
            "book"
        shell:
            "{PYTHON:q} -m tools.book.build {PROFILE:q}"
