"""What goes wrong outside: killed processes, full disks, flipped bits, locked folders, Ctrl-C.

Whatever happens, a file is whole or not there, finished work stays, and there is one clear line.
"""

import gc
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields

import matplotlib.pyplot as plt
import psutil
import pytest
import torch

import howlinear as hl
from conftest import tiny
from howlinear.app import cli
from howlinear.errors import SourceError
from howlinear.files import atomic, figures, numbers, paths
from howlinear.ideas.compression.folder import save
from howlinear.instrument.capture import capture
from howlinear.instrument.store import load_capture, save_capture
from howlinear.models.replace import replace
from howlinear.models.seals import seal
from howlinear.notebook import execute
from howlinear.text.rows import TokenRows
from howlinear.training.loop import Recipe, train

pytestmark = pytest.mark.long

ALONE = [sys.executable, str(paths.ROOT / "tools/alone.py")]
PATHS_ONLY = f"""
import os, signal, sys, types
package = types.ModuleType("howlinear")  # without what the package imports, which takes seconds
package.__path__ = [{str(paths.ROOT / "lib/howlinear")!r}]
sys.modules["howlinear"] = package
from pathlib import Path
from howlinear.errors import SourceError
from howlinear.files import atomic
"""


def run(code, folder):
    command = [sys.executable, "-c", PATHS_ONLY + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


# --- kill -9


@pytest.mark.parametrize(
    ("writer", "target"),
    [
        ("with atomic.written_aside('a/x.json') as aside: aside.write_text('ha'); os.kill(os.getpid(), 9)", "x.json"),
        ("with atomic.folder_aside(Path('a/m')) as new: (new / 'w').write_text('ha'); os.kill(os.getpid(), 9)", "m"),
    ],
)
def test_what_a_killed_writer_leaves_is_no_file_and_goes_with_the_next(tmp_path, writer, target):
    assert run(writer, tmp_path).returncode == -signal.SIGKILL
    (left,) = (tmp_path / "a").iterdir()
    assert left.name.startswith(f".{target.split('.')[0]}.aside-")
    assert run(writer.replace("os.kill(os.getpid(), 9)", "pass"), tmp_path).returncode == 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == [target]


def test_what_a_writer_at_work_holds_is_left_alone(tmp_path):
    with atomic.written_aside(tmp_path / "x.json") as first:
        assert run("with atomic.written_aside('x.json') as aside: aside.write_text('second')", tmp_path).returncode == 0
        assert (tmp_path / "x.json").read_text() == "second"
        first.write_text("first")
    assert (tmp_path / "x.json").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 1


def test_files_that_only_look_alike_stay(tmp_path):
    for name in (".x.settings.json", ".xx.aside-12345678.json", ".x.aside-12345678.txt"):
        (tmp_path / name).write_text("mine")
    with atomic.written_aside(tmp_path / "x.json") as aside:
        aside.write_text("{}")
    assert len(list(tmp_path.iterdir())) == 4


# --- two at once


def test_a_second_run_says_who_is_at_work_and_a_killed_one_locks_nothing(tmp_path):
    first = subprocess.Popen([*ALONE, sys.executable, "-c", "print('on', flush=True); input()"], cwd=tmp_path,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with first:
        assert first.stdout.readline() == b"on\n"
        second = subprocess.run([*ALONE, "/bin/true"], cwd=tmp_path, capture_output=True, text=True)
        assert second.returncode == 2
        assert second.stderr == (
            f"howlinear: process {first.pid} is making figures in this folder: wait for it to end\n"
        )
        first.kill()
        first.wait()
        assert subprocess.run([*ALONE, "/bin/true"], cwd=tmp_path).returncode == 0


def test_the_lock_passes_the_commands_own_code_on(tmp_path):
    assert subprocess.run([*ALONE, sys.executable, "-c", "exit(7)"], cwd=tmp_path).returncode == 7


# --- a full disk


@pytest.fixture(scope="module")
def captured():
    model = tiny("mini-llama")
    rows = TokenRows.from_ids(torch.randint(80, (64, 16), generator=torch.Generator().manual_seed(0)))
    return capture(model, rows, sample=100), rows


def figure():
    made, axes = plt.subplots()
    axes.scatter(*torch.randn(2, 5_000, generator=torch.Generator().manual_seed(0)))
    return made


WRITERS = {
    "results": lambda at, held: numbers.save(at / "x.json", {"x": list(range(30_000))}),
    "capture": lambda at, held: save_capture(at / "c.safetensors", *held, {}),
    "figure": lambda at, held: figures.save(figure(), paths.figures("smoke"), "01_x"),
    "model": lambda at, held: save(replace(tiny("mini-llama"), {1: torch.nn.Linear(32, 32)}), at / "m", "card"),
    "checkpoint": lambda at, held: train(
        tiny("mini-gpt2"), {"docs": torch.arange(80).repeat(4)}, held[1], Recipe(steps=0, seq_len=16), at / "c.pt"
    ),
}


@pytest.fixture
def full(tmp_path, monkeypatch):
    """Files longer than 30 kB cannot be written."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda limit=30_000: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(what, full, captured, tmp_path):
    def whole():
        return {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    if what != "model":  # a model folder that is there would be refused before
        WRITERS[what](tmp_path, captured)
        (tmp_path / "c.pt").unlink(missing_ok=True)  # else training would go on from it
    before = whole()
    full()
    with pytest.raises(SourceError, match=r"cannot write .*; is the disk full\?"):
        WRITERS[what](tmp_path, captured)
    full(resource.RLIM_INFINITY)
    assert whole() == before


# --- bits that flip, files that end early


def same(one, other):
    """Whether two captures hold the same, block for block."""
    for block in one.blocks:
        a, b = one.blocks[block], other.blocks[block]
        for left, right in zip([*a.train, *a.test, a.outputs], [*b.train, *b.test, b.outputs], strict=True):
            if not all(torch.equal(t, right.tensors()[name]) for name, t in left.tensors().items()):
                return False
        if not all(torch.equal(getattr(a.sample, f.name), getattr(b.sample, f.name)) for f in fields(a.sample)):
            return False
    return one.about == other.about and one.rows.sha256 == other.rows.sha256


@pytest.mark.usefixtures("unchecked")  # the check of types would read the blocks first
def test_a_flipped_bit_or_a_missing_end_of_a_capture_is_never_another_number(captured, tmp_path):
    path, draw = tmp_path / "c.safetensors", random.Random(0)
    save_capture(path, *captured, {"perplexity": 2.5})
    content, whole = path.read_bytes(), load_capture(path)
    header = 8 + int.from_bytes(content[:8], "little")
    places = [draw.randrange(header) for _ in range(60)] + [draw.randrange(header, len(content)) for _ in range(40)]
    refused = 0
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        (tmp_path / "d.safetensors").write_bytes(damaged)
        try:
            assert same(load_capture(tmp_path / "d.safetensors"), whole), place
        except SourceError as error:
            assert "remove it and run again" in str(error)  # noqa: PT017
            refused += 1
            continue
    assert refused >= 90
    for end in [0, 7, 8, header - 1, header, len(content) - 1]:
        (tmp_path / "d.safetensors").write_bytes(content[:end])
        with pytest.raises(SourceError, match="remove it and run again"):
            load_capture(tmp_path / "d.safetensors")


def test_a_capture_of_an_older_version_says_so(captured, tmp_path):
    from safetensors.torch import load_file, save_file

    save_capture(tmp_path / "c.safetensors", *captured, {})
    save_file(load_file(tmp_path / "c.safetensors"), tmp_path / "old.safetensors", {"about": '{"corpus": "docs"}'})
    with pytest.raises(SourceError, match="holds no checksums, so an older version made it; remove it and run again"):
        load_capture(tmp_path / "old.safetensors")


def test_a_flipped_bit_in_sealed_weights_is_noticed(tmp_path):
    folder, draw = tmp_path / "m", random.Random(0)
    tiny("mini-gpt2").save_pretrained(folder)
    seal(folder)
    content = (folder / "model.safetensors").read_bytes()
    for _ in range(20):
        damaged, place = bytearray(content), draw.randrange(len(content))
        damaged[place] ^= 1 << draw.randrange(8)
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(SourceError, match=r"model\.safetensors is damaged: .*or remove SHA256SUMS if you changed"):
            hl.load_model(folder)
    (folder / "model.safetensors").write_bytes(content)
    hl.load_model(folder)


# --- folders one may not write to


def test_a_folder_one_may_not_write_to_is_one_line(tmp_path):
    (tmp_path / "results").mkdir(mode=0o555)
    code = """
os.chdir("results")
if not os.getuid():
    os.setuid(65534)  # what root may not do is nothing
for write in (atomic.written_aside, lambda name: atomic.folder_aside(Path(name))):
    try:
        with write("x"): print("written")
    except SourceError as error:
        print(error)
"""
    said = run(code, tmp_path).stdout
    assert said == 2 * "cannot write x: Permission denied; choose a folder you may write to\n"
    assert not list((tmp_path / "results").iterdir())


# --- Ctrl-C


def interrupted(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["howlinear", *map(str, arguments)])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    return stop.value.code, capsys.readouterr().err


def test_ctrl_c_while_measuring_leaves_no_file(monkeypatch, capsys, tmp_path):
    def press(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setattr(sys.modules["howlinear.instrument.measure"], "capture_together", press)
    code, said = interrupted(monkeypatch, capsys, "measure", "mini-gpt2", "--json", tmp_path / "out.json")
    assert code == 2
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_a_notebook_runs_ends_its_kernel_and_leaves_no_notebook(monkeypatch, capsys, tmp_path):
    cell = f"import os, signal, time\nos.kill({os.getpid()}, signal.SIGINT)\ntime.sleep(60)"
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    (tmp_path / "00_tiny.py").write_text(f'# %% tags=["parameters"]\nprofile = "minis"\n\n# %%\n{cell}\n')
    code, said = interrupted(monkeypatch, capsys, "notebook", "00_tiny")
    assert code == 2
    assert "Traceback" not in said
    assert [path.name for path in (tmp_path / "build").rglob("*") if path.is_file()] == ["00_tiny.ipynb"]
    assert (tmp_path / "build/scratch/minis/notebooks/source/00_tiny.ipynb").is_file()  # what was to be run
    gc.collect()  # what asyncio has to say of the kernel's tasks, here and in no later test
    kernels = [one for one in psutil.Process().children(recursive=True) if "ipykernel" in " ".join(one.cmdline())]
    assert psutil.wait_procs(kernels, timeout=20)[1] == []


def test_a_notebook_that_is_there_survives_one_that_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    (tmp_path / "00_tiny.py").write_text('# %% tags=["parameters"]\nprofile = "smoke"\n\n# %%\n1 / 0\n')
    done = tmp_path / "build/smoke/notebooks/00_tiny.ipynb"
    done.parent.mkdir(parents=True)
    done.write_text("done before")
    with pytest.raises(hl.InputError, match="ZeroDivisionError"):
        execute.execute("00_tiny", {"profile": "smoke"}, record=True)
    assert done.read_text() == "done before"
    shutil.rmtree(tmp_path / "build")
