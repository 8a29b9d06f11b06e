"""Several processes: the result is that of one, and where one is lost all end, a line each and no file.

Most runs fork their processes from one server that has imported everything; one goes through torchrun itself.
"""

import json
import os
import signal
import subprocess
import sys
import warnings

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from conftest import tiny
from helpers.families import reads, small
from helpers.forked import exit_codes, start
from howlinear.app import cli
from howlinear.core.moments import Moments
from howlinear.errors import InputError, ProcessError
from howlinear.files import numbers
from howlinear.files.paths import PACKAGE
from howlinear.instrument import distributed, layerwise
from howlinear.instrument.distributed import Group, joined, own_share, place
from howlinear.instrument.layerwise import Work
from howlinear.instrument.measure import measure
from howlinear.models.layerwise import Layerwise
from howlinear.text.rows import TokenRows

pytestmark = pytest.mark.long

SOON = 60  # seconds until a run must have ended, far above what it takes


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


def all_well(folder, size, work, *arguments):
    """The same, where none of them has anything to say."""
    codes, said = together(folder, size, work, *arguments)
    assert (codes, "".join(said)) == ([0] * size, "")


def keep(folder, index, profile, **more):
    """Write down what a process has measured, for `assert_found`."""
    maps = [found.map.weight for found in profile.values()]
    torch.save({"profile": profile.to_dict(), "maps": maps, **more}, folder / f"{index}.pt")


def assert_found(folder, processes, one, **more):
    """Each of the processes has measured what one does alone, and kept `more` beside it."""
    for index in processes:
        found = torch.load(folder / f"{index}.pt")
        assert {name: found[name] for name in more} == more
        assert found["profile"]["perplexity"] == (one.perplexity and pytest.approx(one.perplexity, rel=1e-9))
        assert_same_blocks(found["profile"], one.to_dict())
        for weight, whole in zip(found["maps"], one.values(), strict=True):
            assert torch.allclose(weight, whole.map.weight, rtol=0, atol=1e-9 * float(whole.map.weight.abs().max()))


def assert_same_blocks(found, one):
    for mine, whole in zip(found["blocks"], one["blocks"], strict=True):
        assert mine == pytest.approx(whole, rel=1e-9)


def some_rows():
    ids = torch.randint(80, (24, 32), generator=torch.Generator().manual_seed(1))
    return TokenRows.from_ids(ids, folds=3)


# --- the same as one process


def keep_profile(folder, index, batch):
    with joined():
        model, rows = tiny("mini-gpt2"), some_rows()
        looked = measure(model, rows, batch_size=batch, tolerance=0.9)
        with pytest.raises(InputError, match="several processes"):
            measure(model, rows, moments=True)
        keep(folder, index, measure(model, rows, batch_size=batch), looked=looked.to_dict())


@pytest.mark.parametrize(("size", "batch"), [(2, 2), (7, 8)])
def test_several_processes_measure_what_one_does(tmp_path, size, batch):
    """Of seven with six batches, one has none, and some see no held-out row."""
    one = measure(tiny("mini-gpt2"), some_rows(), batch_size=batch)
    all_well(tmp_path, size, keep_profile, batch)
    assert_found(tmp_path, range(size), one)
    for index in range(size):
        looked = torch.load(tmp_path / f"{index}.pt")["looked"]
        assert looked["stop"]["looks"] == 1
        assert_same_blocks(looked, one.to_dict())  # a single look is a plain measurement


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(1, 20))
def test_shares_are_everything_once_in_runs_of_like_length(lengths, size):
    items = [range(n) for n in lengths]
    shares = []
    for rank in range(size):
        token = distributed._GROUP.set(Group(rank, size))
        shares.append(own_share(items))
        distributed._GROUP.reset(token)
    assert [item for share in shares for item in share] == items
    assert shares[0]
    assert all(sum(map(len, share)) <= sum(lengths) / size + max(lengths) for share in shares)


def test_one_process_under_torchrun_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined() as group:
        assert group == Group(0, 1)
        assert own_share([range(3)]) == [range(3)]


# --- layer by layer


def on_disk(folder):
    tiny("mini-gpt2").save_pretrained(folder / "model")
    return str(folder / "model")


def keep_layers(folder, index, options, tight=None):
    """A measurement layer by layer, in which one process may have little memory; and the layers that it begins."""
    if index == tight:
        layerwise.fills_memory = lambda _: True
    begun = noted_layers()
    with joined():
        profile = measure(str(folder / "model"), some_rows(), swap=True, layerwise=True, **options)
        keep(folder, index, profile, begun=begun)


def keep_where_one_is_full(folder, index, full):
    """A measurement by whatever way there is room for, where one process may see no memory free."""
    if index == full:
        memory = psutil.virtual_memory()._replace(available=1_000)
        psutil.virtual_memory = lambda: memory
    begun = noted_layers()
    with joined(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keep(folder, index, measure(str(folder / "model"), some_rows()), begun=begun)


@pytest.mark.parametrize(("full", "begun"), [(None, []), (1, [0, 1, 2])])
def test_all_processes_go_layer_by_layer_where_one_has_no_room(tmp_path, full, begun):
    one = measure(on_disk(tmp_path), some_rows())
    all_well(tmp_path, 2, keep_where_one_is_full, full)
    assert_found(tmp_path, range(2), one, begun=begun)


def noted_layers():
    begun = []
    advance = Layerwise.advance

    def noting(self, *args):
        if sys._getframe(1).f_code.co_name == "capture_layer":  # and not in a swap's pass
            begun.append(self.passed)
        advance(self, *args)

    Layerwise.advance = noting
    return begun


@pytest.mark.parametrize(("size", "batch", "tight"), [(2, 2, None), (7, 8, None), (3, 2, 1)])
def test_several_processes_measure_layer_by_layer_what_one_does(tmp_path, size, batch, tight):
    """Of seven with six batches, one has none; where one has little memory, moments are added up from files."""
    one = measure(on_disk(tmp_path), some_rows(), batch_size=batch, swap=True, layerwise=True)
    assert len(one.costs) == 3
    all_well(tmp_path, size, keep_layers, {"batch_size": batch}, tight)
    assert_found(tmp_path, range(size), one, begun=[0, 1, 2])


def lost_before_it_writes(folder, index, options):
    keep = Work.keep

    def ending(self, text, answer):
        if index == 1 and text.passed == 2:
            die()
        keep(self, text, answer)

    Work.keep = ending
    keep_layers(folder, index, options)


def test_an_ended_run_of_several_processes_goes_on_where_all_of_them_were(tmp_path):
    """The first has written its streams behind the second layer, and the other has not."""
    one = measure(on_disk(tmp_path), some_rows(), swap=True, layerwise=True)
    options = {"work": tmp_path / "work"}
    codes, _ = together(tmp_path, 2, lost_before_it_writes, options)
    assert codes[1] == -9
    kept = [sorted(file.name for file in (tmp_path / "work" / name).iterdir()) for name in ("process-1", "process-2")]
    assert [len(files) for files in kept] == [2, 1]
    all_well(tmp_path, 2, keep_layers, options)
    assert_found(tmp_path, range(2), one, begun=[1, 2])


def keep_reason(folder, index, options):
    try:
        with joined():
            measure(str(folder / "model"), some_rows(), **options)
    except InputError as error:
        (folder / "reason").write_text(str(error))
    except ProcessError:
        pass


def test_work_of_two_processes_goes_on_with_two(tmp_path):
    on_disk(tmp_path)
    options = {"work": tmp_path / "work"}
    assert together(tmp_path, 2, keep_reason, options)[0] == [0, 0]
    assert not (tmp_path / "reason").exists()
    for size in (3, 1):
        together(tmp_path, size, keep_reason, options)
        assert "(processes)" in (tmp_path / "reason").read_text()
        (tmp_path / "reason").unlink()
    with pytest.raises(InputError, match=r"\(processes\)"):
        measure(str(tmp_path / "model"), some_rows(), **options)


def few_batches():
    return TokenRows.from_ids(reads("xlm", n=96)["input_ids"], folds=2)


def keep_whole(folder, index):
    with joined(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        keep(folder, index, measure(str(folder / "model"), few_batches(), layerwise=True))


def test_layers_that_cannot_be_called_one_by_one_are_measured_as_a_whole_by_all_processes(tmp_path):
    """Of nine processes with eight batches the last has none, and cannot tell by itself."""
    small("xlm").save_pretrained(tmp_path / "model")
    one = measure(str(tmp_path / "model"), few_batches(), layerwise=False)
    codes, said = together(tmp_path, 9, keep_whole)
    assert codes == [0] * 9, said
    assert_found(tmp_path, [8], one)


# --- a process is lost


def command(folder, text="mine.txt"):
    sizes = ("--rows", "2048", "--seq-len", "32")
    files = ("--corpus", folder / text, "--json", folder / "out.json")
    return ["measure", str(folder / "model"), *map(str, files), *sizes]


def by_command(folder, index, options=(), text="mine.txt"):
    sys.argv = ["howlinear", *command(folder, text), *options]
    cli.main()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def overflow(_, x, *__):
    x[0, 0] = float("inf")


PLACES = {
    "capture": (Moments, "update"),
    "join": (Moments, "total"),
    "solve": (sys.modules["howlinear.instrument.profile"], "ceiling_or_nan"),
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
    by_command(folder, index)


@pytest.mark.parametrize(("where", "victim"), [("capture", 0), ("join", 1), ("solve", 1)])
def test_a_killed_process_ends_the_run_with_one_line_and_no_file(project, where, victim):
    codes, said = together(project, 2, fault, where, victim, die)
    assert codes == [-9, 2] if victim == 0 else [2, -9]
    (line,) = "".join(said).splitlines()
    assert line.startswith(f"howlinear: process {2 - victim} of 2: lost another of the 2 processes (")
    assert not list(project.glob("*.json")) + list(project.glob(".*"))


def test_an_error_in_one_process_is_reported_by_that_process(project):
    codes, said = together(project, 3, fault, "capture", 2, overflow)
    assert codes == [2, 2, 2]
    lines = "".join(said).splitlines()
    assert len(lines) == 3
    assert all("lost another of the 3 processes" in line for line in lines[:2])
    assert lines[2].startswith("howlinear: process 3 of 3: NaN or infinity among ")
    assert not list(project.glob("*.json"))


def other_text(folder, index):
    other = folder / "other.txt"
    if index:
        other.write_text((folder / "mine.txt").read_text().replace("says", "holds"))
    by_command(folder, index, text="other.txt" if index else "mine.txt")


def full_disk(*_, **__):
    raise InputError("is the disk full?")


def read_only(folder, index):
    numbers.save = full_disk
    by_command(folder, index)


def smaller(folder, index):
    sys.argv = ["howlinear", "compress", str(folder / "model"), "--max-dppl", "500", "--out", str(folder / "small")]
    cli.main()


@pytest.mark.parametrize(
    ("work", "lines"),
    [
        (other_text, ["differ in the text"] * 2),
        (read_only, ["process 1 of 2: is the disk full?", "lost another"]),
        (smaller, ["is the work of one process"] * 2),
    ],
)
def test_what_one_process_cannot_do_ends_both(project, work, lines):
    codes, said = together(project, 2, work)
    assert codes == [2, 2]
    assert all(line in words.splitlines()[-1] for line, words in zip(lines, said, strict=True))
    assert not list(project.glob("*.json"))
    assert not (project / "small").exists()


@pytest.mark.parametrize("size", ["2", "two", ""])
def test_processes_without_torchrun_are_one_clear_line(refused, monkeypatch, size):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", size)
    refused(f"howlinear: WORLD_SIZE is '{size}'", "measure", "mini-gpt2")


def test_torchrun_writes_what_one_process_writes(howlinear, project):
    module = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "howlinear"]
    paths = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    run = subprocess.run([*module, *command(project)], env=env, capture_output=True, text=True, timeout=2 * SOON)
    assert run.returncode == 0, run.stderr
    two = json.loads((project / "out.json").read_text())
    (project / "out.json").unlink()
    code, out, _ = howlinear(*command(project))
    assert (code, out) == (0, run.stdout)
    one = json.loads((project / "out.json").read_text())
    assert len(two["blocks"]) == 3
    assert two["perplexity"] == pytest.approx(one["perplexity"], rel=1e-9)
    assert_same_blocks(two, one)


@pytest.mark.parametrize("layerwise", [(), ("--layerwise",)])
def test_the_command_tries_swaps_and_the_model_before_training_in_several_processes(project, layerwise):
    found = {}
    for size in (1, 2, 3):
        codes, said = together(project, size, by_command, ["--swap", "--fresh", *layerwise])
        assert codes == [0] * size, said
        found[size] = json.loads((project / "out.json").read_text())
        (project / "out.json").unlink()
    for size in (2, 3):
        for end in ("untrained", "untrained_in_sample"):
            assert found[size][end] == pytest.approx(found[1][end], abs=1e-9)
        assert_same_blocks(found[size], found[1])
    assert all("dppl" in block for block in found[1]["blocks"])


# --- devices


@pytest.mark.parametrize("device", ["mps", "gpu", "cuda:x", "cpu:0", "", "cuda:2"])
def test_devices_that_are_not_there_are_refused(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="device"):
        place(device)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [place(device) for device in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert place("cuda") == "cuda:1"
