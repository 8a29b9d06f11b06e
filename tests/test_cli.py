"""The command line as a user meets it: exit codes, one clear line, files that are whole or not there."""

import json
import math
import sys

import pytest

from howlinear import cli, paths

WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "seven", "green", "quick"]


def howlinear(monkeypatch, capsys, *arguments):
    """Run the command; its exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["howlinear", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    streams = capsys.readouterr()
    return code, streams.out, streams.err


@pytest.fixture
def text(tmp_path):
    """A corpus file of 400 short documents."""
    path = tmp_path / "mine.txt"
    lines = [" ".join(WORDS[(i * j) % 10] + str(i + j) for j in range(30)) for i in range(400)]
    path.write_text("\n\n".join(lines))
    return path


def test_measure_writes_the_documented_json_and_a_table(monkeypatch, capsys, text, tmp_path):
    target = tmp_path / "out.json"
    options = ("--corpus", text, "--rows", 4096, "--blocks", "0,3", "--json", target)
    code, out, _ = howlinear(monkeypatch, capsys, "measure", "mini-gpt2", *options)
    assert code == 0
    assert "R²_lin" in out
    written = json.loads(target.read_text())
    assert written.keys() >= {"model", "corpus", "rows", "seq_len", "seed", "perplexity", "versions", "blocks"}
    wanted = {"block", "r2", "r2_low", "r2_high", "r2_median", "effective_rank", "condition", "rank", "rows_train"}
    assert [block["block"] for block in written["blocks"]] == [0, 3]
    for block in written["blocks"]:
        assert block.keys() == wanted | {"rows_test"}
        assert all(math.isfinite(value) for value in block.values())
        assert block["r2_low"] < block["r2"] < block["r2_high"]
        assert block["rows_train"] == 3 * block["rows_test"] == 3072


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "no/such model"], "no model folder no/such model; offline there are mini-gpt2"),
        (["measure", "mini-gpt2", "--corpus", "nope"], "unknown corpus 'nope': use docs, code, cpp"),
        (["measure", "mini-gpt2", "--corpus", "nope.txt"], "cannot read corpus file nope.txt"),
        (["measure", "mini-gpt2", "--blocks", "0,99"], "no block [99] in a model of 12 blocks"),
        (["measure", "mini-gpt2", "--blocks", "a"], "--blocks 'a': give whole numbers"),
        (["measure", "mini-gpt2", "--rows", "100"], "100 rows of 128 tokens"),
        (["notebook", "99_nope"], "no notebook '99_nope': 01_capture, 02_ceilings"),
        (["notebook", "02_ceilings", "-p", "profile"], "-p takes a name and a value"),
        (["notebook", "02_ceilings", "-p", "profil", "x"], "no parameter profil; it has profile"),
        (["minis", "mini-bert"], "unknown mini 'mini-bert': mini-gpt2"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    code, out, err = howlinear(monkeypatch, capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\xff\xfe\x00", "is not UTF-8"), (b"a\x00b", "looks binary"), (b"too short", "is too short")],
)
def test_a_bad_corpus_file_is_refused_and_no_json_appears(monkeypatch, capsys, tmp_path, content, message):
    path, target = tmp_path / "bad.txt", tmp_path / "out.json"
    path.write_bytes(content)
    code, _, err = howlinear(monkeypatch, capsys, "measure", "mini-gpt2", "--corpus", path, "--json", target)
    assert code == 2
    assert message in err
    assert not target.exists()


def test_a_target_that_cannot_be_written_is_one_clear_line(monkeypatch, capsys, text):
    blocked = text / "out.json"  # a file in the place of the folder
    code, _, err = howlinear(
        monkeypatch, capsys, "measure", "mini-gpt2", "--corpus", text, "--rows", 4096, "--blocks", 0, "--json", blocked
    )
    assert code == 2
    assert f"cannot write {blocked}" in err


@pytest.mark.parametrize("arguments", [["--help"], ["measure", "--help"], ["notebook", "--help"], ["minis", "--help"]])
def test_help_is_help(monkeypatch, capsys, arguments):
    code, out, _ = howlinear(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "Usage" in out


def test_unknown_options_exit_with_2(monkeypatch, capsys):
    assert howlinear(monkeypatch, capsys, "measure", "mini-gpt2", "--nope")[0] == 2
