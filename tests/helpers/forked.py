"""Separate processes at the cost of a fork: one server has already imported what they need, which takes seconds.

The server is a fresh interpreter, so they use another hash seed than pytest's process, and check no shapes.
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
    """Start `work(*arguments)`, with its standard output and error in the file `said`."""
    process = FORKS.Process(target=_run, args=(said, work, arguments), daemon=True)
    process.start()
    return process


def exit_codes(processes, seconds=60):
    """The exit codes of processes that must end within this time; any that do not are killed, which is an error."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
    assert not late, "a process hangs"
    return [process.exitcode for process in processes]


def _run(said, work, arguments):
    gc.freeze()  # garbage collection would write to, and so copy, all memory shared with the fork
    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
        os.dup2(file.fileno(), 1)
    work(*arguments)
