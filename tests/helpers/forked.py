"""Processes of their own for the price of a fork: one server has imported what they need, which takes seconds.

The server is a fresh interpreter, so they hash with another seed than the process of pytest, and check no shapes.
"""

import gc
import multiprocessing
import os
import time

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "howlinear.app.cli",
        "howlinear.app.console",
        "howlinear.ideas.compression.folder",
        "howlinear.instrument.measure",
        "howlinear.training.minis",
        "hypothesis",
        "pydantic",
        "pytest",
    ]
)


def start(said, work, *arguments):
    """Start `work(*arguments)`; the file `said` is its standard output and error."""
    process = FORKS.Process(target=_run, args=(said, work, arguments), daemon=True)
    process.start()
    return process


def exit_codes(processes, seconds=60):
    """The exit codes of processes that end within so many seconds; else all are killed, and that is an error."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
    assert not late, "a process hangs"
    return [process.exitcode for process in processes]


def _run(said, work, arguments):
    gc.freeze()  # a search for garbage would write to, and so copy, all that came with the fork
    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
        os.dup2(file.fileno(), 1)
    work(*arguments)
