"""Benchmarks report; they never assert a time. `make bench`, or `pytest benchmarks --shape tiny` to try them."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here

import jaxtyping
import pytest
from rich.console import Console
from rich.table import Table
from workload import SHAPES, new_model

RESULTS = pytest.StashKey[list]()


def pytest_addoption(parser):
    parser.addoption("--shape", choices=SHAPES, default="gpt2", help="model to time: GPT-2's shape, or a tiny one")


def pytest_configure(config):
    config.stash[RESULTS] = []
    jaxtyping.config.update("jaxtyping_disable", True)  # time what users run: shapes unchecked


@pytest.fixture(scope="session")
def shape_name(request):
    return request.config.getoption("--shape")


@pytest.fixture(scope="session")
def shape(shape_name):
    return SHAPES[shape_name]


@pytest.fixture(scope="session")
def model(shape):
    return new_model(shape)


@pytest.fixture
def result(request, benchmark):
    """Call `result(what, measured, form, goal)`: a line of the table, and numbers in the benchmark's extra_info."""

    def add(what, measured, form="{:.3g} s", goal=None):
        aim = "" if goal is None else "≤ " + form.format(goal)
        request.config.stash[RESULTS].append((what, form.format(measured), aim))
        benchmark.extra_info[what] = {"measured": measured, "goal": goal}

    return add


def pytest_terminal_summary(terminalreporter, config):
    if not config.stash[RESULTS]:
        return
    table = Table("what", "measured", "goal", title=f"{config.getoption('--shape')} shape", title_justify="left")
    for line in config.stash[RESULTS]:
        table.add_row(*line)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    terminalreporter.write("\n" + captured.get())
