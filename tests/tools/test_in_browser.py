"""The book's page to try things on: its own JavaScript against `howlinear`, in node and in a browser."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from howlinear.core.ceilings import AffineMap, ceiling, fit, r2
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.files import paths, tables
from howlinear.instrument.capture import BlockCapture
from howlinear.notebook import run as notebooks
from tools.book import in_browser

NAMES = ("mostLinear", "middle", "leastLinear")
FOLDS = 4
METHOD = (paths.ROOT / "book/_static/moments.js").read_text(encoding="utf-8")
WORDS = (paths.ROOT / "book/try.md").read_text(encoding="utf-8")


def kept(bend, seed, d_in=6, d_out=4, rows=640):
    """A block of known bend: inputs with a direction that is null to float32, outputs linear but for squares.

    Every fold has a mean of its own, and so have the held-out rows: else what the distance of means adds is not seen.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d_in, generator=generator, dtype=torch.float64) + 3
    x += torch.arange(8).repeat_interleave(rows // 8)[:, None] / 4
    follows = torch.randn(d_in - 1, generator=generator, dtype=torch.float64)
    x[:, -1] = x[:, :-1] @ follows + 1e-8 * x[:, -1]  # along another direction in every block
    mixed = x @ torch.randn(d_in, d_out, generator=generator, dtype=torch.float64)
    y = mixed + bend * (x[:, :d_out] - 4).square() + 1
    parts = [Moments(d_in, d_out).update(*part) for part in zip(x.chunk(8), y.chunk(8), strict=True)]
    return BlockCapture(parts[:FOLDS], parts[FOLDS:], Moments(d_out), None)


@pytest.fixture(scope="module")
def blocks():
    return made_up_blocks()


def made_up_blocks():
    return {name: kept(bend, seed) for seed, (name, bend) in enumerate(zip(NAMES, (0.1, 0.4, 0.8), strict=True))}


def recorded(blocks):
    """What notebook 02 would have recorded of them."""
    found = {name: ceiling(block.train, block.test) for name, block in blocks.items()}
    return {name: {"block": i, "r2": one.r2, "r2_train": one.r2_train} for i, (name, one) in enumerate(found.items())}


def made_up():
    """`build/<profile>/in_browser.json` of the blocks above."""
    blocks = made_up_blocks()
    rows = recorded(blocks)
    about = {"model": "mini-gpt2", "corpus": "docs", "count": "3"}
    packed = in_browser.pack(blocks, {name: row["block"] for name, row in rows.items()})
    return {"blocks": packed, "numbers": about | in_browser.numbers(blocks, rows)}


def in_node(script, stored):
    """What a script prints as JSON, with the page's functions and `blocks` as its cells have them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here; the page is tried in a browser as well")
    unpacked = (
        f"const stored = {json.dumps(stored)};"
        "const read = (text) => unpack(text, stored.d_in, stored.d_out);"
        "const blocks = Object.fromEntries(Object.entries(stored.parts).map(([name, { train, test }]) =>"
        "[name, { train: train.map(read), test: read(test) }]));"
    )
    answer = subprocess.run([node], input=METHOD + unpacked + script, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def test_moments_come_through_to_single_precision(blocks):
    stored = in_browser.pack(blocks, dict.fromkeys(NAMES, 0))
    read = in_node("console.log(JSON.stringify(blocks.middle.train[1]))", stored)
    fold = blocks["middle"].train[1]
    assert read["n"] == fold.n
    expected = {"meanX": fold.mean_x, "meanY": fold.mean_y, "sxx": fold.sxx, "sxy": fold.sxy, "syy": fold.syy}
    for name, value in expected.items():
        torch.testing.assert_close(torch.tensor(read[name]).double(), value, rtol=1e-6, atol=1e-12)


SCORES = """
const scores = {};
for (const [name, { train, test }] of Object.entries(blocks)) {
  const rows = sum(train);
  const line = fit(rows);
  const ridge = fit(rows, { ridge: 0.3 });
  const some = fit(rows, { inputs: [4, 1] });
  const mean = constant(rows);
  scores[name] = {
    n: rows.n, rank: line.rank, someRank: some.rank, inSample: r2(line, rows), heldOut: r2(line, test),
    oneFold: r2(fit(train[0]), test), ridge: r2(ridge, test), some: r2(some, test),
    weight: line.weight.map((row) => [...row]),
    mean: r2(mean, test), meanInSample: r2(mean, rows), other: r2(line, blocks.mostLinear.test),
  };
}
console.log(JSON.stringify(scores));
"""


def test_the_page_computes_what_the_library_does(blocks):
    """Each of its functions, with the null direction among the inputs."""
    scores = in_node(SCORES, in_browser.pack(blocks, dict.fromkeys(NAMES, 0)))
    for name, block in blocks.items():
        train, test = Moments.total(block.train), Moments.total(block.test)
        line, inputs = fit(train)
        widened = train.copy()
        widened.sxx.diagonal().mul_(1.3)
        some = Moments(2, train.d_out)
        places = torch.tensor([4, 1])
        some.n, some.mean_x, some.mean_y, some.syy = train.n, train.mean_x[places], train.mean_y, train.syy
        some.sxx, some.sxy = train.sxx[places][:, places], train.sxy[places]
        weight = torch.zeros_like(line.weight)
        weight[places] = fit(some)[0].weight
        mean = AffineMap.constant(train)
        expected = {
            "n": train.n,
            "rank": inputs.rank,
            "someRank": 2,
            "inSample": r2(line, train),
            "heldOut": r2(line, test),
            "oneFold": r2(fit(block.train[0])[0], test),
            "ridge": r2(fit(widened)[0], test),
            "some": r2(AffineMap(weight, train.mean_y - train.mean_x @ weight), test),
            "mean": r2(mean, test),
            "meanInSample": 0,
            "other": r2(line, Moments.total(blocks["mostLinear"].test)),
        }
        assert inputs.rank == train.d_in - 1
        slopes = torch.tensor(scores[name].pop("weight")).double()
        torch.testing.assert_close(slopes, line.weight, rtol=1e-4, atol=1e-4)
        assert scores[name] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_too_few_rows_are_refused(blocks):
    script = """let said = "";
    try { fit({ ...blocks.middle.test, n: 7 }) } catch (error) { said = error.message }
    console.log(JSON.stringify(said));"""
    said = in_node(script, in_browser.pack(blocks, dict.fromkeys(NAMES, 0)))
    assert said == "7 rows for 6 inputs: a line would fit them exactly"


def test_the_three_blocks_are_chosen_by_what_is_recorded():
    rows = [{"block": i, "r2": value} for i, value in enumerate([0.7, 0.9, 0.5, 0.6])]
    chosen = in_browser.choose(rows)
    assert {name: row["block"] for name, row in chosen.items()} == {"mostLinear": 1, "middle": 0, "leastLinear": 2}


def test_the_pages_numbers_are_those_of_the_library(blocks):
    found = in_browser.numbers(blocks, recorded(blocks))
    middle = blocks["middle"]
    for train, held_out, in_sample in (
        (middle.train, "r2_middle", "r2_train_middle"),
        (middle.train[0], "one_fold_held_out", "one_fold_in_sample"),
    ):
        exact = ceiling(train, middle.test)
        assert found[held_out] == in_browser.shown(exact.r2)
        assert found[in_sample] == in_browser.shown(exact.r2_train)
    assert found["mean_in_sample"] == "0.000"
    assert found["mean_held_out"].startswith("−")
    assert (found["rank"], found["d_in"], found["folds"], found["rows_train"]) == ("5", "6", "4", "320")


def test_a_record_of_another_capture_is_refused(blocks):
    rows = recorded(blocks)
    rows["leastLinear"] = rows["leastLinear"] | {"r2": rows["leastLinear"]["r2"] + 0.001}
    with pytest.raises(InputError, match=r"block 2: R²_lin is -?0\.\d{4} by the capture .* run make figures"):
        in_browser.numbers(blocks, rows)


@pytest.mark.parametrize("words", ["%rank% and %nothing%", "nothing"])
def test_marks_and_numbers_that_do_not_fit_are_refused(words):
    with pytest.raises(InputError, match=r"book/try\.md and its numbers differ: "):
        in_browser.filled(words, {"rank": "5"})


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("BUILD", "ROOT"):
        monkeypatch.setattr(paths, name, tmp_path)
    return notebooks.Run("in_browser", "tiny", {"one": "nowhere"}, ["docs"], 1024, 32, 0, 16)


def test_main_writes_what_the_page_is_made_of(run, blocks, monkeypatch):
    rows = recorded(blocks)
    found = pd.DataFrame(rows.values()).assign(model="one")
    tables.write(paths.results("tiny") / "02_ceilings", {"blocks": found}, {})

    captured = SimpleNamespace(blocks={row["block"]: blocks[name] for name, row in rows.items()})
    monkeypatch.setattr(notebooks.Run, "capture", lambda *_: captured)
    monkeypatch.setattr(notebooks, "start", lambda *_: run)
    in_browser.main("tiny")
    written = json.loads((paths.build("tiny") / "in_browser.json").read_text(encoding="utf-8"))
    assert written == in_browser.collect(run)
    assert written["blocks"] == in_browser.pack(blocks, {name: row["block"] for name, row in rows.items()})
    assert written["numbers"].items() >= {"model": "one", "corpus": "docs", "count": "3", "least": "2"}.items()
    in_browser.filled(WORDS, written["numbers"])
