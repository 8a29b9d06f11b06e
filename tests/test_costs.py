"""The formulas of the page on costs are what is allocated, dealt and sent; the page has what it promises."""

import re
import subprocess
import sys

import pytest
import torch
import yaml
from conftest import WIDTH

from howlinear import book, costs, paths, record
from howlinear.capture import batches, capture
from howlinear.corpora import TokenRows
from howlinear.costs import LARGE, Shape, moments_bytes, operations, rank_bytes, rates, sent_bytes, tables
from howlinear.distributed import Ranks
from howlinear.pooled import OUTPUTS, _holders

TOKENS = 2**15  # 256 sequences of 128


@pytest.fixture
def text():
    """Packed as a corpus packs them: fold after fold, the rows to fit on first."""
    order = torch.arange(TOKENS // 128)
    test = order >= len(order) * 3 // 4
    fold = torch.where(test, (order - len(order) * 3 // 4) // 8, order // 24)
    return TokenRows(torch.zeros(len(order), 128, dtype=torch.long), test, fold)


def allocated(kept):
    tensors = [t for m in [*kept.train, *kept.test, kept.outputs] for t in (m.sxx, m.sxy)]
    return sum(tensor.numel() * 8 for tensor in tensors)


def test_a_blocks_moments_are_as_many_bytes_as_are_allocated(gpt2, ids):
    rows = TokenRows.from_ids(ids.repeat(4, 1))
    for kept in capture(gpt2, rows).values():
        assert allocated(kept) == moments_bytes(WIDTH)
    assert moments_bytes(4_096) == 8 * 4_096**2 * 33


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_what_ranks_hold_and_send_is_what_they_are_dealt(text, ranks):
    shape = Shape("", WIDTH, 2 * ranks, TOKENS)  # two blocks for each owner
    every = list(batches(text, 1))
    holders = _holders(text, every, Ranks(0, ranks))
    matrix = 8 * WIDTH**2
    of = {key: 1 if key == OUTPUTS else 2 for key in holders}
    held = [sum(of[key] for key, found in holders.items() if rank in found) for rank in range(ranks)]
    assert rank_bytes(shape, ranks) == max(held) * matrix * shape.blocks
    owners = [block % ranks for block in range(shape.blocks)]
    sent = sum(of[key] * matrix * (rank != to) for to in owners for key in holders for rank in holders[key])
    assert sent_bytes(shape, ranks) == pytest.approx(sent)
    assert sent_bytes(shape, 1) == 0


def test_one_rank_holds_everything():
    for shape in LARGE:
        assert rank_bytes(shape, 1) == shape.blocks * moments_bytes(shape.width)
    assert [round(rank_bytes(shape, 1) / 1e9) for shape in LARGE] == [142, 1417]


def test_operations_by_hand():
    found = operations(Shape("", 2, 3, 8))
    assert found["forward"] == 2 * 12 * 2**2 * 3 * 8
    assert found["moments"] == pytest.approx((2 * 10 / 16 + 2 + 2 * 10 / 16 / 4) * 2**2 * 3 * 8)


RUN = {"width": 4, "blocks": 2, "tokens": 10, "forward": 3.2, "moments": 0.64, "ceilings": 1.28}


def test_rates_are_those_of_the_widest_run_and_give_its_times_back():
    other = RUN | {"width": 2, "forward": 99.0}
    each = rates({"runs": [other, RUN]})
    assert each == pytest.approx({"forward": 0.01, "moments": 0.002, "ceilings": 0.01})
    assert each["forward"] * Shape("", 4, 2, 10).unit["forward"] == pytest.approx(3.2)


def test_the_page_reads_a_run_and_shows_the_arithmetic():
    wide = RUN | {"width": 8, "forward": 6.4, "ceilings": 5.12}
    made = tables({"machine": "a machine", "rounds": 3, "runs": [RUN, wide]})
    assert "| 4 | 2 | 10 | 3.20 s | 0.64 s | 20% | 0.64 s |" in made["timed"]
    assert "width 4 → 8: forward × 2.0 (4), moments × 1.0 (4), ceilings × 4.0 (8)" in made["timed"]
    assert "8 · 4,096² · 33 = 4.4 GB | · 32 = 141.7 GB" in made["bytes"]
    assert "8 · 8,192² · 33 = 17.7 GB | · 80 = 1.42 TB" in made["bytes"]
    rate, work = 6.4 / (10 * 2 * 64), 65_536 * 32 * 4_096**2
    assert f"{rate:.2e} | · {work:.2e} = {rate * work / 3600:,.1f} h" in made["extrapolated"]
    for table in made.values():
        widths = {line.count("|") for line in table.split("\n\n")[-1].splitlines() if line.startswith("|")}
        assert len(widths) <= 1


def test_the_shipped_run_sweeps_every_axis_and_the_page_includes_every_table():
    measured = record.load(book.FRAME / "scale.json")
    for axis in ("tokens", "blocks", "width"):
        assert len({run[axis] for run in measured["runs"]}) >= 3
    assert all(run[part] > 0 for run in measured["runs"] for part in costs.PARTS)
    included = re.findall(r"\{include\} scale_(\w+).txt", (book.FRAME / "scale.md").read_text(encoding="utf-8"))
    assert included == list(tables(measured))


def test_the_benchmark_runs_and_the_page_can_read_it(tmp_path):
    script = paths.ROOT / "benchmarks" / "scale.py"
    command = [sys.executable, str(script), str(tmp_path / "out.json"), "--tiny", "--rounds", "1"]
    subprocess.run(command, check=True, capture_output=True)
    assert tables(record.load(tmp_path / "out.json"))


# --- the cluster


def test_the_slurm_profile_names_rules_that_there_are_and_snakemake_reads_it():
    profile = yaml.safe_load((paths.PROFILES / "slurm" / "config.yaml").read_text(encoding="utf-8"))
    rules = set(book.stems()) | {"capture"}
    assert profile["executor"] == "slurm"
    assert profile["set-threads"].keys() | profile["set-resources"].keys() <= rules
    options = ["--profile", "profiles/slurm", "--executor", "local", "--configfile", "profiles/smoke.yaml", "--dry-run"]
    command = [sys.executable, "-m", "snakemake", *options, "--forceall", "--nolock"]
    run = subprocess.run(command, cwd=paths.ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert all(re.search(rf"\b{name}\b", run.stdout) for name in rules)
