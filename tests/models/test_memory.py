import os
import platform
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from howlinear import cli
from howlinear.models import memory
from howlinear.notebook import run as notebooks

FAULTS = """
import resource
import sys

import torch

from howlinear.models.memory import keep_large_blocks

if sys.argv[1] == "kept":
    keep_large_blocks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.zeros(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself what it keeps")
def test_a_freed_block_is_found_again():
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    faults = {}
    for way in ("kept", "given back"):
        command = [sys.executable, "-c", FAULTS, way]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
        faults[way] = int(done.stdout)
    # twenty blocks come anew, or the first two or three again and again; how large a page is differs
    assert 4 * faults["kept"] < faults["given back"]


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("no library is to be looked up"))
    memory.keep_large_blocks()


def test_commands_and_notebooks_keep_them(monkeypatch):
    asked = []
    monkeypatch.setattr(cli, "keep_large_blocks", lambda: asked.append("command"))
    monkeypatch.setattr(notebooks, "keep_large_blocks", lambda: asked.append("notebook"))
    CliRunner().invoke(cli.app, ["notebook", "--list"])
    notebooks.start("02_ceilings", "minis")
    assert asked == ["command", "notebook"]
