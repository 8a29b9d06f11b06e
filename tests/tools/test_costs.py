"""The formulas of the page on costs are what is allocated; the page has what it promises."""

import os
import re
import runpy
import subprocess
import sys

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from conftest import WIDTH
from howlinear.files import numbers, paths
from howlinear.instrument.capture import capture
from howlinear.instrument.layerwise import moments_bytes
from howlinear.models.layers import layers_of
from howlinear.notebook import execute
from howlinear.text.rows import TokenRows
from tools.book import costs
from tools.book.costs import rates, tables, work

pytestmark = pytest.mark.long


def test_a_blocks_moments_are_as_many_bytes_as_are_allocated(gpt2, ids):
    rows = TokenRows.from_ids(torch.cat([ids.roll(places, 1) for places in range(4)]))
    for kept in capture(gpt2, rows).values():
        moments = [*kept.train, *kept.test, kept.outputs]
        assert sum(8 * (each.sxx.numel() + each.sxy.numel()) for each in moments) == moments_bytes(WIDTH)
    assert moments_bytes(4_096) == 8 * 4_096**2 * 33


def test_work_by_hand():
    assert work({"width": 2, "blocks": 3, "tokens": 8}) == {"forward": 96, "moments": 96, "ceilings": 24}


def test_what_counting_comes_to_by_hand():
    # Of a row: a block takes 2 · 10, the trunk 60 and the head 2 · 5 · 2 = 20. In float64, which counts twice:
    # moments 3 · 2 · 3.25 · 4 = 78; a fit 2 · 10/3 · 8 = 160/3, and 27 of them over 144 rows 10.
    found = costs.counted(costs.Weights(width=2, blocks=3, in_block=10, vocabulary=5), rows=144)
    assert found["capture"] == pytest.approx(1 + 78 / 60)
    assert found["ceilings"] == pytest.approx(10 / 60)
    assert found["measure"] == pytest.approx(1 + (78 + 10 + 20 / 4) / 60)
    assert found["all swaps"] == pytest.approx(1 + 3 * (20 + 20) / 80)  # one block behind a swapped one, on average


SMOLLM2 = LlamaConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49_152,
)


@pytest.mark.parametrize(("name", "config"), [("gpt2", GPT2Config()), ("smollm2-135m", SMOLLM2)])
def test_models_are_counted_with_the_weights_that_they_have(name, config):
    counted = costs.TIMED[name]
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    block = layers_of(made)[0]
    products = [weight for weight in block.parameters() if weight.ndim == 2]
    assert sum(weight.numel() for weight in products) == counted.in_block
    assert made.get_output_embeddings().weight.shape == (counted.vocabulary, counted.width)
    assert len(layers_of(made)) == counted.blocks


RUN = {"width": 4, "blocks": 2, "tokens": 10, "forward": 3.2, "moments": 0.64, "ceilings": 1.28}


def test_rates_are_those_of_the_widest_run_and_give_its_times_back():
    other = RUN | {"width": 2, "forward": 99.0}
    each = rates({"runs": [other, RUN]})
    assert each == pytest.approx({"forward": 0.01, "moments": 0.002, "ceilings": 0.01})
    assert each["forward"] * work(RUN)["forward"] == pytest.approx(3.2)


def cells(table):
    """The cells of a table in Markdown, row by row."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_reads_a_run_and_shows_the_arithmetic():
    wide = RUN | {"width": 8, "forward": 6.4, "ceilings": 5.12}
    made = tables({"machine": "a machine", "rounds": 3, "runs": [RUN, wide]})
    assert ["4", "2", "10", "3.20 s", "0.64 s", "20%", "0.64 s"] in cells(made["timed"])
    assert "width 4 → 8: forward × 2.0 (4), moments × 1.0 (4), ceilings × 4.0 (8)" in made["timed"]
    assert ["7B", "8 · 4,096² · 33 = 4.4 GB", "· 32 = 141.7 GB"] in cells(made["bytes"])
    assert ["70B", "8 · 8,192² · 33 = 17.7 GB", "· 80 = 1.42 TB"] in cells(made["bytes"])
    rate, count = 6.4 / (10 * 2 * 64), 65_536 * 32 * 4_096**2
    _, _, forward, *_ = cells(made["extrapolated"])
    assert forward[2:4] == [f"{rate:.2e}", f"· {count:.2e} = {rate * count / 3600:,.1f} h"]


def test_the_page_says_what_layer_by_layer_was_measured_to_hold():
    small, whole = {"bytes": 2_500_000_000, "seconds": 90.0}, {"bytes": 5_000_000_000, "seconds": 100.0}
    run = {"layers": 28, "rows": 5_120, "goal": 3e9, "layer by layer": small}
    run["machine"] = {"processor": "x", "load": 1.0}
    both = run | {"whole": whole, "times": 0.9, "apart": 2e-12}
    *_, alone, beside = cells(costs.layer_by_layer({"a": run, "b": both}))
    assert alone == ["a, 28 layers", "5,120", "2.50 GB", "3.0 GB", "1.5 min", "does not fit", "–", "–", "1.0"]
    assert beside[5:] == ["5.00 GB", "0.90", "2e-12", "1.0"]


def test_the_page_says_what_a_gpu_was_measured_to_do():
    found = numbers.load(paths.results("bench") / "gpu.json")
    said = costs.on_a_gpu(found)
    speed, fresh = (found["steps"][name] for name in ("speed", "fresh"))
    assert len(cells(said)) == sum(isinstance(each, dict | list) for each in (*speed.values(), *fresh.values())) + 4
    assert f"{max(run['ratio'] for run in speed.values() if isinstance(run, dict)):.2f}" in said


def test_what_a_gpu_is_asked_runs_on_a_cpu_too(tmp_path):
    steps = ["encoder", "streams", "fresh", "speed"]
    script = str(paths.ROOT / "benchmarks" / "gpu.py")
    out = tmp_path / "gpu.json"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(paths.ROOT / "lib"), str(paths.ROOT / "benchmarks")])
    }
    command = [sys.executable, script, "--tiny", "--device", "cpu", "--out", str(out), "--steps", *steps]
    subprocess.run(command, check=True, env=environment)
    found = numbers.load(out)["steps"]
    assert list(found) == sorted(steps)
    assert not any("error" in step for step in found.values())
    assert found["streams"]["r2_apart"] < 1e-9


def test_the_benchmark_runs_and_the_page_can_read_it(tmp_path, monkeypatch):
    script = str(paths.ROOT / "benchmarks" / "scale.py")
    monkeypatch.syspath_prepend(paths.ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "out.json"), "--tiny", "--rounds", "1"])
    runpy.run_path(script, run_name="__main__")  # in this process: a new one would import for seconds
    assert tables(numbers.load(tmp_path / "out.json"))


# --- the cluster


def test_the_slurm_profile_names_rules_that_there_are_and_snakemake_reads_it():
    profile = yaml.safe_load((paths.PROFILES / "slurm" / "config.yaml").read_text(encoding="utf-8"))
    rules = set(execute.stems()) | {"capture"}
    assert profile["executor"] == "slurm"
    assert profile["set-threads"].keys() | profile["set-resources"].keys() <= rules
    options = ["--profile", "profiles/slurm", "--executor", "local", "--config", "profile=smoke", "--dry-run"]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.SNAKEFILE)]
    command += [*options, "--forceall", "--nolock"]
    run = subprocess.run(command, cwd=paths.ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert all(re.search(rf"\b{name}\b", run.stdout) for name in rules)
