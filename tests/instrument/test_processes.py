"""Several processes: the result is that of one, and whoever is lost ends the run with one line and no file.

Most runs fork their processes from one server that has imported everything; two go through torchrun itself.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import HashStore, TCPStore
from torch.utils._python_dispatch import TorchDispatchMode

import howlinear
from conftest import BLOCKS, WIDTH, tiny
from helpers.forked import exit_codes, start
from howlinear.app import cli
from howlinear.core import moments
from howlinear.core.moments import Moments
from howlinear.errors import HowlinearError, InputError, ProcessError
from howlinear.files import results
from howlinear.instrument import massive, processes
from howlinear.instrument.capture import _Collector, capture, capture_batches
from howlinear.instrument.measure import measure
from howlinear.instrument.processes import Processes, capture_shared, joined, place
from howlinear.instrument.profile import Profile
from howlinear.text.rows import TokenRows, batches
from howlinear.training.minis import new_model

pytestmark = pytest.mark.long

SOON = 60  # seconds until a run must have ended, far above what it takes
BATCH = 2  # sequences: the 24 of `rows` make 12 batches


def child(work, index, size, port, folder, arguments):
    os.environ |= {"RANK": f"{index}", "WORLD_SIZE": f"{size}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # as under torchrun: none of them keeps the store
    torch.set_num_threads(1)
    work(folder, index, *arguments)


def together(folder, size, work, *arguments):
    """Run `work(folder, index, *arguments)` in every process; exit codes and what each has said."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = [folder / f"said.{index}" for index in range(size)]
    started = [start(said[i], child, work, i, size, store.port, folder, arguments) for i in range(size)]
    return exit_codes(started, SOON), [file.read_text() for file in said]


def some_rows():
    ids = torch.randint(80, (24, 32), generator=torch.Generator().manual_seed(1))
    return TokenRows.from_ids(ids, folds=3)


# --- the same as one process


def keep_all(folder, index, batch):
    with joined() as shared:
        model, rows = tiny("mini-gpt2"), some_rows()
        captured = capture_shared(shared, model, rows, list(batches(rows, batch)))
        kept = {block: [m.tensors() for m in [*one.train, *one.test, one.outputs]] for block, one in captured.items()}
        profile = processes.measure(shared, model, rows, batch_size=batch, progress=True)
        looked = processes.measure(shared, model, rows, batch_size=batch, tolerance=0.9)
        content = {
            "moments": kept,
            "profile": profile.to_dict(),
            "looked": looked.to_dict(),
            "maps": [found.map.weight for found in profile.values()],
        }
        torch.save(content, folder / f"{index}.pt")


@pytest.mark.parametrize(("size", "batch", "many"), [(2, 2, 12), (3, 2, 12), (13, 8, 6)])
def test_several_processes_measure_what_one_does(tmp_path, size, batch, many):
    """With 13, seven have no batch at all, the last among them, and most neither a held-out row nor a block."""
    model, rows = tiny("mini-gpt2"), some_rows()
    assert len(list(batches(rows, batch))) == many
    alone, one = capture(model, rows, batch_size=batch), measure(model, rows, batch_size=batch)
    codes, said = together(tmp_path, size, keep_all, batch)
    assert (codes, "".join(said[1:])) == ([0] * size, "")
    *_, last = lines = said[0].split("\n")[:-1]
    assert all(line.startswith("capture: ") for line in lines if line), lines  # one bar, of the first process
    assert last.startswith("capture: 100%")
    owners = {}
    for index in range(size):
        found = torch.load(tmp_path / f"{index}.pt")
        owners |= dict.fromkeys(found["moments"], index)
        for block, kept in found["moments"].items():
            expected = [*alone[block].train, *alone[block].test, alone[block].outputs]
            for mine, whole in zip(kept, expected, strict=True):
                for name, tensor in whole.tensors().items():
                    close = 1e-12 * float(tensor.abs().max()) if tensor.numel() else 0
                    assert torch.allclose(mine[name], tensor, rtol=0, atol=close), (block, name)
        profile = found["profile"]
        assert profile["perplexity"] == pytest.approx(one.perplexity, rel=1e-12)
        assert profile["sha256"] == rows.sha256
        for mine, whole in zip(profile["blocks"], one.to_dict()["blocks"], strict=True):
            assert mine == pytest.approx(whole, rel=1e-12)
        for mine, whole in zip(found["looked"]["blocks"], one.to_dict()["blocks"], strict=True):
            assert mine == pytest.approx(whole, rel=1e-12)  # a single look is a plain measurement
        assert found["looked"]["stop"]["looks"] == 1
        for weight, whole in zip(found["maps"], one.values(), strict=True):
            assert torch.allclose(weight, whole.map.weight, rtol=0, atol=1e-12 * float(whole.map.weight.abs().max()))
    assert owners == {block: block % size for block in range(BLOCKS)}


def test_one_process_under_torchrun_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined() as shared:
        assert shared == Processes(0, 1)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(1, 20))
def test_items_are_dealt_in_runs_of_like_length(lengths, size):
    dealt = Processes(0, size).deal([range(n) for n in lengths])
    assert dealt == sorted(dealt)
    assert dealt[0] == 0
    assert max(dealt) < size
    for index in set(dealt):
        mine = sum(n for n, to in zip(lengths, dealt, strict=True) if to == index)
        assert mine <= sum(lengths) / size + max(lengths)


def test_the_shares_are_everything_once():
    items = [range(n) for n in (3, 1, 4, 1, 5, 9, 2, 6)]
    assert [item for index in range(3) for item in Processes(index, 3).share(items)] == items


def test_batches_keep_their_make_up_when_they_are_run_apart(gpt2, rows):
    every = list(batches(rows, BATCH))
    whole = capture(gpt2, rows, batch_size=BATCH)
    apart = [capture_batches(gpt2, rows, every[:4]), capture_batches(gpt2, rows, every[4:])]
    assert [len(part[0].train) for part in apart] == [2, 2]  # the second fold lies in both
    both = apart[0][0].train[1] + apart[1][0].train[0]
    torch.testing.assert_close(apart[0][0].train[0].sxx, whole[0].train[0].sxx, rtol=1e-12, atol=1e-12)
    assert torch.allclose(both.sxx, whole[0].train[1].sxx, rtol=1e-13, atol=1e-13 * float(both.sxx.abs().max()))
    assert apart[0][0].outputs.n == 0


# --- a process is lost


def prepared(folder):
    """A model folder of three blocks, and a text."""
    model = new_model("mini-gpt2", blocks=3, width=WIDTH, vocabulary=257)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    model.save_pretrained(folder / "model")
    words = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "seven", "green", "quick"]
    lines = [" ".join(words[(i * j) % 10] + str(i + j) for j in range(30)) for i in range(200)]
    (folder / "mine.txt").write_text("\n\n".join(lines))
    return folder


@pytest.fixture
def project(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "model")
    return prepared(tmp_path)


def command(folder):
    sizes = ("--rows", "2048", "--seq-len", "32")
    return [
        "measure",
        str(folder / "model"),
        "--corpus",
        str(folder / "mine.txt"),
        *sizes,
        "--json",
        str(folder / "out.json"),
    ]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def overflow(_, x, *__):
    x[0, 0] = float("inf")


PLACES = {
    "capture": (Moments, "update"),
    "merge": (Processes, "merge"),
    "solve": (sys.modules["howlinear.instrument.profile"], "ceiling"),
    "perplexity": (sys.modules["howlinear.instrument.perplexity"], "cross_entropy"),
    "last": (Profile, "__init__"),
}


def fault(folder, index, where, victim, what):
    """The command, but `what` happens in one process when it comes to a place."""
    if index == victim:
        home, name = PLACES[where]
        usual = getattr(home, name)

        def faulty(*args, **kwargs):
            what(*args)
            return usual(*args, **kwargs)

        setattr(home, name, faulty)
    sys.argv = ["howlinear", *command(folder)]
    cli.main()


@pytest.mark.parametrize(
    ("where", "victim"),
    [("capture", 0), ("capture", 1), ("merge", 0), ("merge", 1), ("solve", 1), ("perplexity", 1), ("last", 1)],
)
def test_a_killed_process_ends_the_run_with_one_line_and_no_file(project, where, victim):
    codes, said = together(project, 2, fault, where, victim, die)
    assert codes == [-9, 2] if victim == 0 else [2, -9]
    (line,) = "".join(said).splitlines()
    assert line.startswith(f"howlinear: process {2 - victim} of 2: lost another of the 2 processes (")
    assert line.endswith("nothing is written; see what ended it, and start again")
    assert not list(project.glob("*.json")) + list(project.glob(".*"))


@pytest.mark.parametrize("victim", [0, 2])
def test_an_error_in_one_process_is_said_once_by_that_process(project, victim):
    codes, said = together(project, 3, fault, "capture", victim, overflow)
    assert codes == [2, 2, 2]
    assert [bool(words) for words in said] == [index == victim for index in range(3)]
    (line,) = said[victim].splitlines()
    assert line.startswith(f"howlinear: process {victim + 1} of 3: NaN or infinity among ")
    assert "rows at block 0 (transformer.h.0.mlp), in the batch of sequences [" in line
    assert not list(project.glob("*.json"))


def quiet(folder, index):
    processes.TIMEOUT = timedelta(seconds=3)
    if index:
        with joined():
            while not (folder / "said.0").read_text():
                time.sleep(0.1)
            os._exit(0)
    sys.argv = ["howlinear", *command(folder)]
    cli.main()


def test_a_process_that_lives_and_does_nothing_is_given_up(project):
    codes, said = together(project, 2, quiet)
    assert codes == [2, 0]
    assert said[0].startswith("howlinear: process 1 of 2: lost another of the 2 processes (")
    assert re.search("time[d]? ?out", said[0], re.IGNORECASE), said[0]


def other_text(folder, index):
    sys.argv = ["howlinear", *command(folder)]
    if index:
        other = folder / "other.txt"
        other.write_text((folder / "mine.txt").read_text().replace("river", "brook"))
        sys.argv[4] = str(other)
    cli.main()


def test_processes_with_different_texts_are_refused(project):
    codes, said = together(project, 2, other_text)
    assert codes == [2, 2]
    (line,) = "".join(said).splitlines()
    assert "the processes differ in the text that they read: give all machines the same files" in line


def wrong_option(folder, index):
    sys.argv = ["howlinear", "measure", "mini-gpt2", "--blocks", "a"]
    cli.main()


def test_an_error_of_all_processes_is_said_once(tmp_path):
    codes, said = together(tmp_path, 3, wrong_option)
    assert codes == [2, 2, 2]
    assert "".join(said).count("howlinear: process ") == "".join(said).count("--blocks 'a': give whole numbers") == 1


def smaller(folder, index):
    files = ("--corpus", folder / "mine.txt", "--out", folder / "small")
    sys.argv = ["howlinear", "compress", f"{folder / 'model'}", "--max-dppl", "500", "--rows", "2048", *map(str, files)]
    cli.main()


def test_several_processes_do_not_compress_one_model(project):
    codes, said = together(project, 2, smaller)
    assert codes == [2, 2]
    (line,) = "".join(said).splitlines()
    assert re.match(
        r"howlinear: process [12] of 2: howlinear compress is the work of one process: leave torchrun", line
    )
    assert not (project / "small").exists()


@pytest.mark.parametrize(
    "words", ["compress -", "notebook 01_capture", "minis mini-gpt2", "capture smoke a b", "--help"]
)
def test_only_measure_is_shared(monkeypatch, capsys, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    store = HashStore()
    monkeypatch.setattr(processes, "_met", lambda: (store, 1, 2))
    monkeypatch.setattr(cli, "app", None)  # would fail if it came to that
    monkeypatch.setattr(sys, "argv", ["howlinear", *words.split()])
    what = f"howlinear {words.split()[0]} is the work of one process: leave torchrun out, which is for measure"
    for line in (f"howlinear: process 2 of 2: {what}\n", ""):  # the second to come is silent
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        assert capsys.readouterr().err == line


@pytest.mark.parametrize("words", ["measure mini-gpt2", "minis mini-gpt2", "--help"])
@pytest.mark.parametrize("size", ["2", "two", ""])
def test_processes_without_torchrun_are_one_clear_line(monkeypatch, capsys, words, size):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setattr(sys, "argv", ["howlinear", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"howlinear: WORLD_SIZE is '{size}', but no other process is met (")
    assert line.endswith("environment variable RANK expected, but not set): use torchrun, or unset it")


def read_only(folder, index):
    results.save = full_disk
    sys.argv = ["howlinear", *command(folder)]
    cli.main()


def full_disk(*_):
    raise HowlinearError("cannot write out.json: is the disk full?")


def test_a_file_that_cannot_be_written_ends_all_processes(project):
    codes, said = together(project, 2, read_only)
    assert codes == [2, 2]
    assert said == ["howlinear: process 1 of 2: cannot write out.json: is the disk full?\n", ""]


# --- through torchrun


def torchrun(project, size, **options):
    module = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "-m", "howlinear"]
    paths = os.pathsep.join([str(Path(howlinear.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*module, *command(project)], env=env, cwd=project, **pipes, **options)


def test_torchrun_writes_what_one_process_writes(project, monkeypatch, capsys):
    with torchrun(project, 2) as run:
        out, err = run.communicate(timeout=SOON)
    assert run.returncode == 0, err
    assert err == ""
    two = (project / "out.json").read_bytes()
    monkeypatch.setattr(sys, "argv", ["howlinear", *command(project)])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert (project / "out.json").read_bytes() == two
    assert capsys.readouterr().out == out
    assert len(json.loads(two)["blocks"]) == 3


def test_torchrun_ends_when_a_process_is_killed(project):
    with torchrun(project, 2) as run:
        victim = None
        while victim is None and run.poll() is None:  # as soon as there are processes, even while they import
            children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            victim = int(children[-1]) if len(children) == 2 else None
        os.kill(victim, signal.SIGKILL)
        _, err = run.communicate(timeout=SOON)
    assert run.returncode == 1
    assert f"Signal 9 (SIGKILL) received by PID {victim}" in err
    assert not (project / "out.json").exists()


def test_told_to_end_is_one_line():
    with pytest.raises(
        ProcessError, match=r"told to end \(SIGTERM\): another process has failed, or the job was cancelled"
    ):
        processes._ended()


# --- devices


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("mps", "device mps has no float64"),
        ("mps:0", "device mps has no float64"),
        ("gpu", "no device 'gpu': use cpu, cuda, or one GPU as in cuda:1"),
        ("cuda:x", "no device 'cuda:x'"),
        ("cpu:0", "no device 'cpu:0'"),
        ("", "no device ''"),
        ("cuda:2", "no device cuda:2, this machine has 2"),
    ],
)
def test_devices_that_are_not_there_are_refused(monkeypatch, device, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=message):
        place(device)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [place(device) for device in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert place("cuda") == "cuda:1"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="no device cuda:2, this machine has 2: start one process for each"):
        place("cuda")


def test_a_model_on_mps_is_refused(gpt2, rows, monkeypatch):
    monkeypatch.setattr(type(gpt2), "device", torch.device("mps"))
    with pytest.raises(InputError, match="float64"):
        measure(gpt2, rows)


class Waits(TorchDispatchMode):
    """Counts operations for whose result Python must wait: a number that is read, a shape that depends on values."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in self.NAMES
        return func(*args, **(kwargs or {}))

    def counted(self, method):
        def read(*args):
            self.count += 1
            return method(*args)

        return read


def test_no_batch_is_waited_for_on_a_device(gpt2, rows, monkeypatch):
    """A block is when all is done, for its finiteness and its heavy rows.

    Besides, `transformers` asks once a batch if sequences are packed.
    """
    for module in (moments, massive):
        monkeypatch.setattr(module, "on_cpu", lambda rows: False)
    inside = {"keep": [], "finish": []}

    def watched(name):
        usual = getattr(_Collector, name)

        def run(*args):
            with Waits() as waits, monkeypatch.context() as patch:
                for read in ("cpu", "numpy", "tolist"):  # no operation tells these
                    patch.setattr(Tensor, read, waits.counted(getattr(Tensor, read)))
                found = usual(*args)
            inside[name].append(waits.count)
            return found

        monkeypatch.setattr(_Collector, name, run)

    watched("keep")
    watched("finish")
    capture(gpt2, rows, batch_size=BATCH)
    assert inside["keep"][BLOCKS:] == [0] * 11 * BLOCKS  # the first batch makes room
    waits_for_heavy_rows = 4 + 5 * 12  # medians, a cut; five tensors of each of the 12 batches
    assert inside["finish"] == [1 + waits_for_heavy_rows] * BLOCKS
    with Waits() as waits, torch.no_grad():
        gpt2.base_model(input_ids=rows.ids[:2], use_cache=False)
    assert waits.count <= 1


def test_on_a_cpu_a_batch_is_asked_for_once(gpt2, rows, monkeypatch):
    update, inside = Moments.update, []

    def watched(*args):
        with Waits() as waits:
            update(*args)
        inside.append(waits.count)

    monkeypatch.setattr(Moments, "update", watched)
    capture(gpt2, rows, batch_size=BATCH)
    assert inside == [1] * 12 * BLOCKS
