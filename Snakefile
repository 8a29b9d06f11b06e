# The only DAG: profile → captures → notebooks. `make figures` runs it; results/ and figures/ are its products.
# A notebook's executed copy lives under build/, so a fresh clone, which has none, really runs every notebook.
import sys

PROFILE = config["name"]
MODELS = {source.rstrip("/").split("/")[-1]: source for source in config["models"]}
MAIN, PYTHON = config["corpora"][0], sys.executable
BUILD = f"build/{PROFILE}"

# notebook → the corpora whose captures it reads, the modules it stands on besides its own and CORE, its figures
NOTEBOOKS = {
    "01_capture": ([MAIN], [], ["diagram", "inputs"]),
    "02_ceilings": ([MAIN], [], ["solvers", "profile"]),
    "03_bilinear": ([MAIN], ["gated", "planted"], ["gain", "rank", "gate"]),
    "04_rank": ([MAIN], ["carried"], ["median", "carried"]),
    "05_corpora": (config["corpora"], ["transfer", "bilinear"], ["profiles", "transfer"]),
    "06_compression": ([MAIN], ["reduced", "felt"], ["signal", "reduced_rank", "frontier"]),
    "07_optimisers": ([MAIN], ["descent", "problem"], ["paths", "shortfall"]),
    "10_degrees": ([MAIN], ["nested", "hermite", "kernels"], ["spectrum", "full", "rank"]),
}
READS = {"10_degrees": ["03_bilinear"]}  # notebook → others whose results it reads
CORE = [
    f"lib/howlinear/{name}.py"
    for name in ("moments", "ceilings", "models", "corpora", "texts", "capture", "store", "perplexity", "measure", "notebooks")
]


def weights(wildcards):
    """A local model's files; what lies on the Hub is no file of ours."""
    folder = Path(MODELS[wildcards.model])
    return sorted(str(path) for path in folder.glob("*.safetensors")) if folder.is_dir() else []


rule all:
    input:
        [f"{BUILD}/notebooks/{stem}.ipynb" for stem in NOTEBOOKS],
    message:
        f"done: results/{PROFILE}, figures/{PROFILE}, executed notebooks in {BUILD}/notebooks"


rule capture:
    input:
        weights,
        CORE,
        "constraints.txt",
    output:
        BUILD + "/captures/{model}/{corpus}.safetensors",
    log:
        BUILD + "/logs/{model}.{corpus}.log",
    threads: max(1, workflow.cores // len(MODELS))
    params:
        [config[key] for key in ("rows", "seq_len", "seed", "sample")],
    message:
        "capture {wildcards.model} on {wildcards.corpus}"
    shell:
        "OMP_NUM_THREADS={threads} {PYTHON} -m howlinear capture {PROFILE} {wildcards.model} {wildcards.corpus} > {log} 2>&1"
        " || {{ tail -n 3 {log} >&2; exit 1; }}"


for stem, (corpora, modules, drawn) in NOTEBOOKS.items():

    rule:
        name:
            stem
        input:
            f"notebooks/{stem}.py",
            [f"lib/howlinear/{name}.py" for name in [stem[3:], *modules]],
            CORE,
            "lib/howlinear/style.py",
            "lib/howlinear/record.py",
            [f"results/{PROFILE}/{other}.json" for other in READS.get(stem, [])],
            [f"{BUILD}/captures/{model}/{corpus}.safetensors" for model in MODELS for corpus in corpora],
        output:
            f"{BUILD}/notebooks/{stem}.ipynb",
            f"results/{PROFILE}/{stem}.json",
            [f"figures/{PROFILE}/{stem}_{name}.{kind}" for name in drawn for kind in ("svg", "png")],
        log:
            f"{BUILD}/logs/{stem}.log",
        threads: 1  # several notebooks side by side; and sums come out the same on every run
        params:
            stem=stem,
        message:
            f"notebook {stem}"
        shell:
            "OMP_NUM_THREADS={threads} {PYTHON} -m howlinear notebook {params.stem} -p profile {PROFILE} > {log} 2>&1"
            " || {{ tail -n 3 {log} >&2; exit 1; }}"
