# The only DAG: profile → captures → notebooks → claims → paper, book. `make figures` runs it up to the paper.
# A notebook's executed copy lives under build/, so a fresh clone, which has none, really runs every notebook.
import os
import re
import sys
from pathlib import Path

from howlinear.notebook.settings import short

PROFILE = config["name"]
if not re.fullmatch(r"[\w-]+", PROFILE):
    raise WorkflowError(f"a profile's name is letters, digits, _ and -, not {PROFILE!r}")
MODELS = {short(source): source for source in config["models"]}
MAIN, PYTHON = config["corpora"][0], sys.executable
BUILD = f"build/{PROFILE}"

# notebook → the corpora whose captures it reads, its figures
# (of the embedded models notebook 09 reads what was recorded in training alone)
NOTEBOOKS = {
    "00_by_hand": ([], ["cloud", "parabola", "neuron"]),
    "01_capture": ([MAIN], ["diagram", "inputs"]),
    "02_ceilings": ([MAIN], ["solvers", "clouds", "profile"]),
    "03_bilinear": ([MAIN], ["gain", "rank", "gate", "recipe", "layers"]),
    "04_rank": ([MAIN], ["median", "axes", "carried", "reduced"]),
    "05_corpora": (config["corpora"], ["profiles", "transfer"]),
    "06_compression": ([MAIN], ["signal", "reduced_rank", "frontier", "healing"]),
    "07_optimisers": ([MAIN], ["valley", "paths", "shortfall", "baseline"]),
    "08_controls": ([MAIN], ["random", "transplant", "twins"]),
    "09_dynamics": ([MAIN] * (PROFILE != "minis"), ["profiles", "settling", "live"]),
    "10_degrees": ([MAIN], ["spectrum", "full", "rank", "training"]),
    "11_protocol": ([], ["rows", "multiverse", "profiles"]),
    "12_sinks": ([MAIN], ["massive", "without", "left_out", "costs"]),
    "13_claims": ([], ["board"]),
    "14_compress": ([], ["pareto"]),
    "15_gate": ([], ["shares", "curves"]),
}
for stem, alone in {"08_controls": "twins", "10_degrees": "training"}.items():  # figures of the embedded twins alone
    if not config.get("parameters", {}).get(stem, {}).get("with_twins", True):
        NOTEBOOKS[stem][1].remove(alone)
if config.get("notebooks"):
    NOTEBOOKS = {stem: NOTEBOOKS[stem] for stem in config["notebooks"]}
READS = {  # notebook → others whose results it reads
    "10_degrees": ["03_bilinear"],
    "13_claims": [
        *("02_ceilings", "03_bilinear", "04_rank", "05_corpora", "06_compression", "07_optimisers", "08_controls", "12_sinks"),
    ],
}
RECORDED = {  # notebook → measurements taken in training that it reads
    "08_controls": "models/twins/*.json",
    "09_dynamics": "models/*/*.json",
    "10_degrees": "models/twins/*.json",
}
PUBLISHED = ("02_ceilings", "03_bilinear", "04_rank", "05_corpora", "12_sinks", "13_claims")  # beside what the paper publishes
LONG = (  # 03 and 11 hold the most memory, so they do not begin together
    *("03_bilinear", "10_degrees", "11_protocol", "06_compression", "14_compress", "08_controls", "02_ceilings", "12_sinks"),
    *("15_gate", "09_dynamics", "07_optimisers", "05_corpora"),
