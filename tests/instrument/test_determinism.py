"""The same machine, the same bytes: of the numbers and of the captures, whatever the hash seed; threads agree."""

import json
import sys

import numpy as np
import pytest
import torch

from conftest import BLOCKS, fingerprint
from helpers.forked import exit_codes, start
from howlinear.app import cli
from howlinear.instrument.capture import capture
from howlinear.instrument.measure import measure
from howlinear.instrument.store import save_capture
from howlinear.text.rows import TokenRows
from howlinear.training.minis import new_model

pytestmark = pytest.mark.long


@pytest.fixture
def call(project):
    """Arguments of a small measurement."""
    sizes = ["--rows", "4096", "--seq-len", "64"]
    return ["measure", str(project / "model"), "--corpus", str(project / "mine.txt"), *sizes]


def measured(call, threads, seed):
    """Run the command, and write down how this process hashes."""
    torch.set_num_threads(threads)
    seed.write_text(str(hash("seed")))
    sys.argv = ["howlinear", *call]
    cli.main()


def test_two_runs_write_the_same_bytes(howlinear, call, tmp_path):
    """One in a process of its own with another hash seed, one in this process."""
    elsewhere = [*call, "--json", str(tmp_path / "1.json")]
    run = start(tmp_path / "said", measured, elsewhere, torch.get_num_threads(), tmp_path / "seed")
    assert exit_codes([run]) == [0], (tmp_path / "said").read_text()
    assert howlinear(*call, "--json", tmp_path / "2.json")[0] == 0
    assert int((tmp_path / "seed").read_text()) != hash("seed")  # else nothing was tried
    one, two = ((tmp_path / f"{i}.json").read_bytes() for i in (1, 2))
    assert one == two
    assert len(json.loads(one)["blocks"]) == BLOCKS


def test_two_captures_are_the_same_bytes(gpt2, rows, tmp_path):
    for name in ("one", "two"):
        save_capture(tmp_path / name, capture(gpt2, rows, sample=50), rows, {"model": "m"})
    one, two = (fingerprint((tmp_path / name).read_bytes()) for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(("width", "dtype"), [(128, torch.float32), (256, torch.float64)])
def test_one_and_two_threads_agree(width, dtype):
    """From width 256 on threads share a product, and a float32 forward pass is rounded in another order.

    There medians over features move by up to 6e-9; a model that computes in float64, as all statistics do, agrees.
    """
    model = new_model("mini-gpt2", blocks=1, width=width, vocabulary=80).to(dtype)
    ids = torch.randint(80, (64, 16), generator=torch.Generator().manual_seed(0))
    rows = TokenRows.from_ids(ids, folds=2)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(measure(model, rows))
    finally:
        torch.set_num_threads(before)
    one, two = (profile.to_frame().select_dtypes("number") for profile in found)
    np.testing.assert_allclose(one.to_numpy(), two.to_numpy(), rtol=1e-9)
    assert found[0].perplexity == pytest.approx(found[1].perplexity, rel=1e-9)
