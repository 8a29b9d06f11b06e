"""The sweep: every combination is run once, on a run profile of its own, and drawn."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml

from howlinear.files import paths, tables
from howlinear.notebook import settings
from tools import sweep


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The profiles of the runs that the sweep asks for; each leaves an R² that says what it was run on."""
    made = []

    def execute(stem, parameters):
        name = parameters["profile"]
        made.append(name)
        profile = settings.read(name)
        blocks = [{"block": block, "r2": profile.rows / 1e5 + profile.seed / 10 + block / 100} for block in (0, 1)]
        table = pd.DataFrame({"model": "mini-gpt2"} | block for block in blocks)
        tables.write(paths.scratch(name) / "results" / stem, {"blocks": table}, {})

    monkeypatch.setattr(paths, "BUILD", tmp_path)
    monkeypatch.setattr(paths, "OWN_PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(sweep, "execute", execute)
    monkeypatch.setattr(sweep, "GRID", {"rows": [4096, 8192], "text": ["docs", "code"], "seed": [0, 1]})
    return made


def test_every_combination_is_run_once_and_drawn(runs, tmp_path):
    sweep.main()
    sweep.main()
    assert len(runs) == len(set(runs)) == 8
    for kind in ("png", "svg"):
        assert (tmp_path / "scratch" / "sweep" / f"sweep.{kind}").stat().st_size > 1000
    stated = yaml.safe_load((tmp_path / "profiles" / "sweep-8192-code-1.yaml").read_text())
    assert stated == {"extends": "lesson", "rows": 8192, "corpora": ["code"], "seed": 1}


def test_what_is_found_is_that_runs_own(runs):
    table = sweep.found(sweep.run(8192, "docs", 1))
    assert table.columns.tolist() == ["model", "block", "r2"]
    np.testing.assert_allclose(table["r2"], [0.18192, 0.19192])


def test_a_line_is_the_mean_over_seeds_and_a_point_a_seed():
    rows = [(4096, "docs", 0, 0.2), (4096, "docs", 0, 0.4), (4096, "docs", 1, 0.5), (8192, "docs", 0, 0.6)]
    (axis,) = sweep.drawn(pd.DataFrame(rows, columns=["rows", "text", "seed", "r2"])).axes
    np.testing.assert_allclose(axis.get_lines()[0].get_xydata(), [[4096, 0.4], [8192, 0.6]])
    (points,) = axis.collections
    np.testing.assert_allclose(points.get_offsets(), [[4096, 0.3], [4096, 0.5], [8192, 0.6]])
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["4,096", "8,192"]
    plt.close("all")
