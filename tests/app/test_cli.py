"""The command line as a user meets it: exit codes, one clear line, files that are whole or not there."""

import dataclasses
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import typer
from rich.console import Console
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, XLMConfig, XLMWithLMHeadModel

import howlinear as hl
from conftest import byte_tokenizer
from helpers.made_up import ceiling_of, made_up_profile
from howlinear.app import cli
from howlinear.app.console import profile_notes, profile_table
from howlinear.app.measurement import Measurement
from howlinear.files import paths
from howlinear.instrument.baseline import Baseline, baseline
from howlinear.models.load import load_model, load_on_disk, tokenizer_of
from howlinear.models.replace import replaced, units_left
from howlinear.text.corpus import load_corpus
from howlinear.training.minis import new_model

WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "seven", "green", "quick"]


@pytest.fixture
def text(tmp_path):
    """A corpus file of 160 short documents."""
    path = tmp_path / "mine.txt"
    lines = [" ".join(WORDS[(i * j) % 10] + str(i + j) for j in range(30)) for i in range(160)]
    path.write_text("\n\n".join(lines))
    return path


@pytest.fixture
def done(howlinear):
    """Runs the command, which must succeed without a word on standard error; what it prints."""

    def run(*arguments):
        code, out, err = howlinear(*arguments)
        assert (code, err) == (0, "")
        return out

    return run


def files_below(folder):
    """Kind → a file, and the options that have a command write all of them."""
    options = {"json": "--json", "csv": "--csv", "html": "--html", "svg": "--plot"}
    files = {kind: folder / f"out.{kind}" for kind in options}
    return files, [word for kind, option in options.items() for word in (option, files[kind])]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="has a device that is full")
def test_output_that_finds_no_space_is_one_line():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "howlinear", "notebook", "--list"]
        found = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 2
    assert "no space is left" in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("a reader that is gone", 0),  # as after `| head`, which closes the pipe
        pytest.param("a full device", 2, marks=pytest.mark.skipif(sys.platform != "linux", reason="has one")),
    ],
)
def test_files_are_written_whatever_becomes_of_the_output(howlinear, monkeypatch, text, folder, tmp_path, output, code):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone, open("/dev/full" if code else os.devnull, "w") as full:
        monkeypatch.setattr(sys, "stdout", full if code else gone)
        options = ("--corpus", text, "--rows", 4096, "--blocks", 0, "--csv", tmp_path / "out.csv")
        found, _, err = howlinear("measure", folder, *options)
    assert (found, "no space is left" in err) == (code, code == 2)
    expected = hl.measure(load_model(folder), str(text), 4096, blocks=0)
    assert pd.read_csv(tmp_path / "out.csv")["r2"].tolist() == pytest.approx([expected[0].r2])


@pytest.mark.parametrize(("command", "models"), [("compare", 2), ("tokens", 1)])
def test_numbers_are_shown_before_a_file_that_cannot_be_written(howlinear, monkeypatch, text, folder, command, models):
    def fail(*_):
        raise hl.SourceError("no space is left")

    monkeypatch.setattr(cli, "write_files", fail)
    code, out, err = howlinear(command, *[folder] * models, "--corpus", text, "--rows", 4096, "--blocks", "0,2")
    assert (code, err) == (2, "howlinear: no space is left\n")
    assert "block" in out


def test_json_and_csv_hold_the_same_numbers(done, text, folder, tmp_path):
    """Those of Python, in all digits: what the dictionary of results rounds is a record, and this is none."""
    options = ("--corpus", text, "--rows", 4096, "--blocks", "0,2", "--swap", "--fresh")
    done("measure", folder, *options, "--json", tmp_path / "out.json", "--csv", tmp_path / "out.csv")
    written = json.loads((tmp_path / "out.json").read_text())
    assert written.keys() >= {"model", "corpus", "rows", "seq_len", "seed", "versions"}
    table = pd.read_csv(tmp_path / "out.csv")
    for row, block in zip(table.to_dict("records"), written["blocks"], strict=True):
        assert {name: row[name] for name in block} == block
    assert written["untrained"] == table["r2_untrained"].tolist()
    profile = hl.measure(load_model(folder), str(text), 4096, blocks=[0, 2], swap=True)
    loaded = hl.load_profile(tmp_path / "out.json")
    assert loaded.to_dict()["blocks"] == profile.to_dict()["blocks"]
    assert loaded.perplexity == profile.perplexity


@pytest.mark.parametrize(("kind", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_measure_draws_the_profile(done, text, folder, tmp_path, kind, begins):
    target = tmp_path / f"profile.{kind}"
    options = ("--corpus", text, "--rows", 4096, "--blocks", "0,2", "--plot", target)
    out = done("measure", folder, *options)
    assert "R²_lin" in out
    assert target.read_bytes().startswith(begins)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", target.name, "whole"]


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--html", "report.pdf", "give a file that ends in .html"),
        ("--csv", "blocks.json", "give a file that ends in .csv"),
        ("--plot", "profile.jpeg", "give a file that ends in .svg, .png, .pdf"),
        ("--plot", "profile", "give a file that ends in .svg, .png, .pdf"),
        ("--json", "mistyped/out.json", "mistyped; make it first, or name another"),
        ("--csv", f"{'long' * 63}.csv", "name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    refused, monkeypatch, tmp_path, option, name, message
):
    monkeypatch.setattr(cli, "hide_bars", None)  # what comes next
    refused(message, "measure", "mini-gpt2", option, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_measure_says_in_one_line_how_rows_were_made_of_a_text(done, monkeypatch, text, folder, tmp_path):
    """And a target without a folder lies in the one that we are in."""
    text.write_bytes(b"\xef\xbb\xbf" + text.read_bytes().replace(b"\n\n", b"\r\n \r\n"))
    monkeypatch.chdir(tmp_path)
    out = done("measure", folder, "--corpus", text, "--rows", 4096, "--blocks", 0, "--json", "out.json")
    (line,) = [line for line in out.splitlines() if line.startswith("text: ")]
    assert line == f"text: {json.loads((tmp_path / 'out.json').read_text())['text']}"
    assert f"documents of {text}" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "no/such model"], "no model folder no/such model; offline there are mini-gpt2"),
        (["measure", "mini-gpt2", "--blocks", "0,99"], "no block [99] in a model of 12 blocks"),
        (["measure", "mini-gpt2", "--blocks", "0,99", "--fresh"], "howlinear: no block [99] in a model of 12 blocks"),
        (["measure", "mini-gpt2", "--blocks", "a"], "--blocks 'a': give whole numbers"),
        (["measure", "mini-gpt2", "--rows", "100"], "100 rows of 128 tokens"),
        (["notebook", "99_nope"], "no notebook '99_nope': 00_by_hand, 01_capture"),
        (["notebook", "02_ceilings", "-p", "profile"], "-p 'profile': give a name and a value"),
        (["notebook", "02_ceilings", "-p", "profil=x"], "no parameter profil; it has profile"),
        (["minis", "mini-bert"], "unknown mini 'mini-bert': mini-gpt2"),
        (["minis", "wide-gpt2", "--device", "cuda:99"], "no device cuda:99, this machine has"),
        (["measure", "mini-gpt2", "--nope"], "No such option: --nope"),
        (["measure", "mini-gpt2", "--rows", "many"], "'--rows'"),
        (["measure"], "Missing argument 'MODEL...'; see howlinear measure --help"),
        (["mesure", "mini-gpt2"], "'mesure'"),
        (["measure", "mini-gpt2", "--corpus", "docs", "--corpus=code"], "--corpus is given 2 times"),
        (["tokens", "mini-gpt2", "--csv", "a.csv", "--csv=b.csv"], "--csv is given 2 times, and tokens takes one"),
        (["compress", "mini-gpt2", "--max-dppl", "1", "--out", "a.json", "--json", "a.json"], "is --out as well"),
        (["measure", "mini-gpt2", "--layerwise", "--whole"], "--layerwise/--whole is given 2 times"),
        (["minis", "mini-gpt2", "mini-bert"], "unknown mini 'mini-bert': mini-gpt2"),
        (["notebook", "--list", "-p", "gap=1"], "leave -p and --record out"),
        (["notebook", "02_ceilings", "--list", "--record"], "leave -p and --record out"),
        (["notebook", "04_rank", "-p", "gap=1", "-p", "gap=2"], "gap is given twice"),
        (["compress", "mini-gpt2", "--max-dppl", "1", "--units", "--out", "a", "--work", "a/b"], "lies in --out a"),
        (["compare", "a"], "give two models"),
        (["compare", "a", "b", "c"], "give two models"),
        (["compare", "a", "b", "--corpus", "docs", "--corpus", "code"], "give two models"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(refused, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr("howlinear.training.minis.ship", None)  # would fail if it came to that
    refused(message, *arguments)


def test_every_command_has_examples_in_its_help_and_they_can_be_typed(done):
    shown = [command.callback.__name__ for command in cli.app.registered_commands if not command.hidden]
    assert sorted(cli.EXAMPLES) == sorted(shown)
    first = " ".join(done("--help").split())
    for name, examples in cli.EXAMPLES.items():
        assert examples[0] in first
        out = done(name, "--help")
        for example in examples:
            assert " ".join(example.split()) in " ".join(out.split())
            program, command, *words = shlex.split(example)
            assert (program, command) == ("howlinear", name)
            typer.main.get_command(cli.app).commands[name].make_context(name, words)  # is parsed, and not run


def call_of(command, folder):
    """The least that a command asks for: its models, and where to write."""
    models = ["mini-gpt2", "mini-llama"] if command == "compare" else ["mini-gpt2"]
    more = {"compress": ["--out", folder / "small", "--max-dppl", 1], "figures": ["--out", folder / "x"]}
    return [command, *models, *more.get(command, [])]


@pytest.mark.parametrize("command", ["measure", "compare", "compress", "figures"])
def test_every_command_takes_ways_to_read_a_text(refused, monkeypatch, tmp_path, command):
    table = tmp_path / "mine.csv"
    pd.DataFrame({"body": ["a text", "another"], "title": ["one", "two"]}).to_csv(table)
    words = [*call_of(command, tmp_path), "--corpus", table]
    for wrong in (["--documents", "page"], ["--text-column", "text"]):
        refused(wrong[-1], *words, *wrong)
    if command == "figures":
        return

    def load_corpus(text, model, text_column, documents):
        raise hl.InputError(f"{text_column} by {documents} of {text}")

    monkeypatch.setattr("howlinear.load_corpus", load_corpus)
    refused(f"howlinear: body by line of {table}\n", *words, "--documents", "line", "--text-column", "body")
    if command == "compare":  # what is said of one's own text is not said of a built-in one beside it
        words = [command, "mini-gpt2", "--corpus", "docs", "--corpus", table]
        refused("howlinear: None by auto of docs\n", *words, "--documents", "line", "--text-column", "body")


@pytest.mark.parametrize("command", ["measure", "compare", "compress", "tokens"])
def test_a_data_set_of_the_hub_is_asked_for_before_the_model_is_loaded(refused, monkeypatch, tmp_path, command):
    def open_hub(_):
        return datasets.Dataset.from_dict({"body": ["a text"], "title": ["one"]}).to_iterable_dataset()

    monkeypatch.setattr("howlinear.text.streams.open_hub", open_hub)
    monkeypatch.setattr("howlinear.instrument.layerwise.open_model", None)  # would fail if it came to that
    words = [*call_of(command, tmp_path), "--corpus", "own/set", "--text-column", "text"]
    refused("own/set has no column 'text': give one of body, title", *words)
    assert list(tmp_path.iterdir()) == []


def test_names_are_printed_as_they_are_whatever_they_mean_to_rich(done, refused, monkeypatch, text, folder, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("[").mkdir()
    name = "[/b][i]:books:.txt"  # an end without a beginning, a style, a picture
    text.rename(name)
    assert f"{name}, 4,096 rows" in done("measure", folder, "--corpus", name, "--rows", 4096, "--blocks", 0)
    refused("unknown corpus '[i]:books:'", "measure", folder, "--corpus", "[i]:books:")


def test_swap_says_what_each_blocks_map_costs_and_the_page_holds_it_all(done, text, folder, tmp_path):
    page, target = tmp_path / "report.html", tmp_path / "out.json"
    options = ("--corpus", text, "--rows", 4100, "--swap", "--html", page, "--json", target)
    out = done("measure", folder, *options)
    assert "4,096 rows of the 4,100 asked for: whole sequences of 128 tokens" in out
    model = load_model(folder)
    profile = hl.measure(model, load_corpus(str(text), model), 4100)
    costs = hl.swap_costs(model, {block: found.map for block, found in profile.items()}, profile.rows)
    written = json.loads(target.read_text())["blocks"]
    assert [cost["block"] for cost in written] == [0, 1, 2]
    html = page.read_text()
    for cost in written:
        expected = costs[cost["block"]]
        assert cost["dppl"] == pytest.approx(expected.delta, abs=1e-3)
        assert f"{expected.delta:+.2f}" in out
        assert f"<td>{expected.low:+.2f} to {expected.high:+.2f}</td>" in html
    assert profile.outlook in html


def test_several_models_are_measured_as_each_alone_and_written_together(done, text, folder, tmp_path):
    other, third = (tmp_path / place / folder.name for place in ("elsewhere", "third"))  # of the same last name
    shutil.copytree(folder, other)
    shutil.copytree(folder, third)
    options = ("--corpus", text, "--rows", 4096, "--blocks", "0,2")
    files, targets = files_below(tmp_path)
    out = done("measure", folder, other, third, *options, *targets)
    models = [str(folder), str(other), str(third)]
    alone = [hl.measure(load_model(model), str(text), 4096, blocks=[0, 2]) for model in models]
    frames = pd.concat([profile.to_frame() for profile in alone], ignore_index=True)
    written = pd.read_csv(files["csv"])
    pd.testing.assert_frame_equal(written, frames, check_dtype=False, rtol=1e-6)
    assert written["model"].nunique() == 3
    assert [each["model"] for each in json.loads(files["json"].read_text())["measurements"]] == models
    page = files["html"].read_text()
    for profile, model in zip(alone, models, strict=True):
        assert f"{profile[2].r2:.3f}" in out
        assert f"<td>{profile[2].r2_low:.3f} – {profile[2].r2_high:.3f}</td>" in page
        assert page.count(f"<dd>{model}</dd>") == 1
    drawn = files["svg"].read_text()  # by as much of their names as tells them apart
    assert all(name in drawn for name in ("elsewhere/whole", f"{tmp_path.name}/whole", "third/whole"))
    assert str(folder) not in drawn


def test_several_models_are_refused_before_any_work(refused, monkeypatch, text, folder, tmp_path):
    monkeypatch.setattr("howlinear.measure", None)  # would fail if it came to that
    refused("no model folder no/such model", "measure", folder, "no/such model", "--corpus", text)
    refused("a model is named twice", "measure", folder, "mini-gpt2", f"{folder}/", "--corpus", text)
    refused("--work keeps one", "measure", folder, "mini-gpt2", "--corpus", text, "--work", tmp_path / "work")


def test_no_file_is_replaced_unasked(done, refused, monkeypatch, text, folder, tmp_path):
    """Whatever writes it, a file that is there is refused before any work, and replaced with --force."""
    options = ("measure", folder, "--corpus", text, "--rows", 4096, "--blocks", 0)
    files, targets = files_below(tmp_path)
    for target, kind in zip(files.values(), ("json", "csv", "html", "plot"), strict=True):
        target.write_text("mine")
        with monkeypatch.context() as patch:
            patch.setattr("howlinear.load_model", None)  # would fail if it came to that
            for command in (options, ("compare", folder, folder)):
                if kind != "html" or command is options:
                    there = f"cannot write {target}: it is there already; name another, or add --force"
                    refused(there, *command, f"--{kind}", target)
        assert target.read_text() == "mine"
    done(*options, *targets, "--force")
    assert all(target.read_text() != "mine" for target in files.values())
    refused("cannot write", *options, "--json", files["json"] / ".." / "y.json", "--force")
    (tmp_path / "folder.csv").mkdir()
    refused("it is a folder", *options, "--csv", tmp_path / "folder.csv", "--force")
    own = tmp_path / "own.csv"
    own.write_text("text\none\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    small = ("--max-dppl", 1, "--out", tmp_path / "small")
    for words in (
        ("measure", "--corpus", own),
        ("tokens", "--corpus", "~/own.csv"),
        ("compress", "--task", own, *small),
    ):
        refused("this command reads it", *words, folder, "--csv", tmp_path / "." / "own.csv", "--force")


def test_fresh_says_what_was_before_training_everywhere(done, text, folder, tmp_path):
    files, targets = files_below(tmp_path)
    options = ["--corpus", text, "--rows", 4096, "--blocks", "0,2", "--seed", 3]
    out = done("measure", folder, *options, "--fresh", *targets)
    model = load_model(folder)
    rows = load_corpus(str(text), model).rows(4 * 4096, seed=3)
    expected = baseline(model, rows, 3, first=4055)
    held_out, in_sample = expected.held_out[[0, 2]], expected.in_sample[[0, 2]]
    written = json.loads(files["json"].read_text())
    assert written["untrained"] == pytest.approx(held_out, abs=1e-3)
    assert written["untrained_in_sample"] == pytest.approx(in_sample, abs=1e-3)
    table = pd.read_csv(files["csv"])
    assert table["r2_untrained"].tolist() == pytest.approx(held_out, abs=1e-6)
    assert table["untrained_rows"].tolist() == [expected.rows] * 2 == [written["untrained_rows"]] * 2
    cells = [f"{middle:.3f}" for middle in (held_out + in_sample) / 2]
    assert expected.apart < 0.02  # so that one number stands for both
    html = files["html"].read_text()
    for cell in cells:
        assert re.search(rf"^ +[02] .* {cell} ", out, re.MULTILINE)
        assert f"<td>{cell}</td>" in html
    line = f"before training, the same architecture with fresh weights on {expected.rows:,} rows"
    assert sum(text.startswith(line) for text in out.splitlines()) == 1
    assert line in html
    done("measure", folder, *options, "--plot", tmp_path / "alone.svg")
    assert files["svg"].read_text().count("<path") > (tmp_path / "alone.svg").read_text().count("<path")


def test_fresh_goes_layer_by_layer_as_well(done, text, folder, tmp_path):
    options = ["--corpus", text, "--rows", 4096, "--blocks", "0,2", "--seed", 3, "--layerwise", "--fresh"]
    done("measure", folder, *options, "--csv", tmp_path / "out.csv")
    model = load_on_disk(folder)
    expected = baseline(model, load_corpus(str(text), model).rows(4 * 4096, seed=3), 3, first=4055)
    table = pd.read_csv(tmp_path / "out.csv")
    assert table["r2_untrained"].tolist() == pytest.approx(expected.held_out[[0, 2]], abs=1e-6)
    assert table["r2_untrained_in_sample"].tolist() == pytest.approx(expected.in_sample[[0, 2]], abs=1e-6)


def test_fresh_layers_that_cannot_be_called_one_by_one_are_refused(refused, text, tokenizer, tmp_path):
    config = XLMConfig(vocab_size=len(tokenizer), emb_dim=16, n_layers=2, n_heads=2)
    XLMWithLMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    refused("add --whole", "measure", tmp_path, "--corpus", text, "--rows", 4096, "--layerwise", "--fresh")


def test_a_bracket_that_does_not_close_is_named():
    fresh = Baseline(np.array([0.1, 0.6, 0.55]), np.array([0.4, 0.61, 0.56]), 4096, [0, 1, 2])
    profile = made_up_profile([ceiling_of(0.5)] * 3)
    *_, counted, apart = profile_notes(Measurement("mini-gpt2", profile, untrained=fresh))
    assert re.findall(r"0\.\d\d|\d of \d|\d above", counted) == ["0.10", "0.61", "2 of 3", "1 above"]
    assert "0.30 apart" in apart


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TypeError("needs a\nvision tower"), "GPT2LMHeadModel cannot be had with fresh weights (needs a vision tower)"),
        (hl.InputError("block 1: too few"), "--fresh: block 1: too few"),
    ],
)
def test_a_model_that_cannot_be_had_untrained_is_one_line_and_nothing_is_measured(
    refused, monkeypatch, text, folder, tmp_path, error, message
):
    def refuse(*_):
        raise error

    monkeypatch.setattr("howlinear.instrument.baseline.untrained", refuse)
    monkeypatch.setattr("howlinear.measure", None)  # would fail if it came to that
    options = ("--corpus", text, "--rows", 4096, "--fresh", "--json", tmp_path / "out.json")
    refused(message, "measure", folder, *options)
    assert not (tmp_path / "out.json").exists()


def test_a_model_that_predicts_nothing_has_no_costs_and_says_so(done, text, tmp_path, tokenizer):
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    options = ("--corpus", text, "--rows", 4096, "--swap", "--html", tmp_path / "report.html")
    out = done("measure", tmp_path / "bert", *options)
    assert [line for line in out.splitlines() if "--swap" in line] == [NO_COSTS]
    assert NO_COSTS in (tmp_path / "report.html").read_text()
    out = done("compare", tmp_path / "bert", tmp_path / "bert", *options, "--force")
    assert [line for line in out.splitlines() if "--swap" in line] == [f"A: {NO_COSTS}", f"B: {NO_COSTS}"]
    assert NO_COSTS in (tmp_path / "report.html").read_text()


def test_compare_lays_two_texts_on_each_other(done, text, folder, tmp_path):
    other, target = tmp_path / "other.txt", tmp_path / "out.json"
    other.write_text("\n\n".join(reversed(text.read_text().upper().split("\n\n"))))
    options = ("--corpus", text, "--corpus", other, "--rows", 4096, "--json", target)
    out = done("compare", folder, *options)
    assert "not paired: the rows differ" in out
    written = json.loads(target.read_text())
    blocks = zip(written["difference"], written["first"]["blocks"], written["second"]["blocks"], strict=True)
    for difference, first, second in blocks:
        assert difference["value"] == pytest.approx(first["r2"] - second["r2"], abs=2e-4)
        # variances add: √(h² + h'²), since both have the same degrees of freedom
        halves = [(block["r2_high"] - block["r2_low"]) / 2 for block in (first, second)]
        assert (difference["high"] - difference["low"]) / 2 == pytest.approx(math.hypot(*halves), abs=3e-4)


def test_what_is_measured_of_a_block_is_named_everywhere(done, refused, text, folder, tmp_path):
    options = ("--corpus", text, "--rows", 4096, "--site", "attention")
    targets = ("--json", tmp_path / "a.json", "--html", tmp_path / "a.html", "--csv", tmp_path / "a.csv")
    out = done("measure", f"{folder}/", *options, "--swap", *targets)
    assert "attention of" in out
    written = json.loads((tmp_path / "a.json").read_text())
    expected = hl.measure(load_model(str(folder)), str(text), rows=4096, site="attention", swap=True)
    assert written["site"] == "attention"
    table = pd.read_csv(tmp_path / "a.csv")
    assert set(table["site"]) == {"attention"}
    assert set(table["model"]) == {written["model"]} == {f"{folder}/"}  # as it was given
    assert table["r2"].tolist() == pytest.approx([found.r2 for found in expected.values()])
    assert table["dppl"].tolist() == pytest.approx([cost.delta for cost in expected.costs.values()])
    assert "of a block’s attention" in (tmp_path / "a.html").read_text()
    refused("howlinear: site 'head': give ffn, attention, layer", "measure", folder, *options[:-1], "head")

    out = done("compare", folder, folder, *options, "--csv", tmp_path / "both.csv")
    both = pd.read_csv(tmp_path / "both.csv")
    assert both["model"].tolist() == 2 * len(expected) * [str(folder)]  # and not a name in the legend
    assert both["r2"].tolist() == pytest.approx(2 * [found.r2 for found in expected.values()])


def test_tokens_writes_a_page_and_a_table_and_replaces_none_unasked(done, refused, text, folder, tmp_path):
    page, table = tmp_path / "t.html", tmp_path / "t.csv"
    options = ("--corpus", text, "--rows", 4096, "--tokens", 512, "--html", page, "--csv", table)
    out = done("tokens", f"{folder}/", *options)
    assert "512 held-out tokens" in out
    model = load_model(str(folder))
    expected = hl.token_errors(model, hl.measure(model, str(text), rows=4096), tokens=512)
    read = pd.read_csv(table, keep_default_na=False, na_values={"r2": [""]})
    assert read["text"].tolist() == expected["text"].tolist()
    assert set(read["model"]) == {f"{folder}/"}  # as it was given
    np.testing.assert_allclose(read["residual"], expected["residual"])
    assert page.read_text(encoding="utf-8").count("<span") == 512
    before = page.read_bytes(), table.read_bytes()
    refused("is there already", "tokens", folder, *options)
    assert (page.read_bytes(), table.read_bytes()) == before
    done("tokens", folder, *options, "--site", "layer", "--force")
    assert table.read_bytes() != before[1]
    too_many = ("--tokens", 10_000, "--html", tmp_path / "new.html")
    refused("at most 8,192", "tokens", folder, "--corpus", text, *too_many)


def test_compare_lays_two_models_on_each_other_and_draws_swaps(done, text, folder, tmp_path):
    files, targets = files_below(tmp_path)
    options = ["--corpus", text, "--rows", 4096, "--blocks", "0,2", "--batch-size", 5, "--swap"]
    out = done("compare", folder, folder, *options, *targets)
    assert "paired: both read the same rows" in out
    assert "differ beyond the interval in no block" in out
    expected = hl.measure(load_model(folder), str(text), 4096, blocks=[0, 2], swap=True)
    written = json.loads(files["json"].read_text())
    assert written["paired"] is True
    assert written["correlation"] is None  # over two blocks
    assert [block["value"] for block in written["difference"]] == [0.0, 0.0]
    assert written["distance"]["value"] == 0
    assert [block["block"] for block in written["first"]["blocks"]] == [0, 2]
    assert [block["r2"] for block in written["first"]["blocks"]] == [b["r2"] for b in written["second"]["blocks"]]
    table = pd.read_csv(files["csv"])
    assert table["dppl"].tolist() == pytest.approx(2 * [cost.delta for cost in expected.costs.values()], rel=1e-4)
    assert files["svg"].read_text().count('id="axes_') == 2
    page = files["html"].read_text()
    for block in (0, 2):
        assert f"<td>{expected.costs[block].delta:+.2f}</td>" in page
        assert f"{expected[block].r2:.3f}</td>" in page
    assert expected.rows.sha256 in page


SHARED = (
    *("--device", "--dtype", "--device-map", "--blocks", "--batch-size", "--rows", "--seq-len", "--seed", "--corpus"),
    *("--documents", "--text-column", "--sites", "--json", "--csv", "--plot", "--html", "--force"),
)


@pytest.mark.parametrize("command", ["measure", "compare", "compress"])
def test_every_command_takes_the_same_options(command):
    taken = typer.main.get_command(cli.app).commands[command].params
    assert {*SHARED} <= {option for parameter in taken for option in parameter.opts}


NO_COSTS = "--swap does not apply: this model has no perplexity, so a swap costs none"


@pytest.mark.parametrize("massive_rows", [0, 12_345])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize(("r2", "condition", "number"), [(0.94, 999_999.0, "999999"), (-0.5, 12_345_678.9, "1.2e+07")])
def test_a_number_is_whole_at_every_width_or_not_there_and_named(r2, condition, number, width, swapped, massive_rows):
    """The narrowest terminal has R²_lin and its interval, the widest everything."""
    costs = dict.fromkeys(range(12), hl.Change(356.12, -120.5, 400.3)) if swapped else None
    profile = made_up_profile([ceiling_of(r2, condition=condition)] * 12, dict.fromkeys(range(12), massive_rows))
    console = Console(width=width, file=io.StringIO())
    console.print(profile_table(Measurement("mini-gpt2", dataclasses.replace(profile, costs=costs)), width))
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    assert "…" not in printed
    interval = f"{r2 - 0.03:.3f} – {r2 + 0.03:.3f}"
    cells = {"R²_lin": f"{r2:.3f}", "95 % interval": interval, "median R²": f"{r2:.3f}", "eff. rank": "123.4"}
    cells |= {"cond. number": number, "in sample": f"{r2 + 0.02:.3f}", "more rows": f"{r2 + 0.01:.3f}"}
    cells |= {"ΔPPL of swap": "+356.12"} if swapped else {}
    cells |= {"massive rows": "12,345"} if massive_rows else {}
    _, _, left_out = " ".join(printed.split()).partition("with more room: ")
    always = ("R²_lin", "95 % interval")
    whole = [cell for name, cell in cells.items() if name in always or name not in left_out]
    blocks = [line.split() for line in printed.splitlines() if all(cell in line for cell in whole)]
    assert [int(block[0]) for block in blocks] == list(range(12))
    assert ("massive" in printed) == (massive_rows > 0)  # no column of what is nowhere
    if width == 160:
        assert left_out == ""
        assert printed.count("█") == 12 * round(10 * max(0, r2))


def test_parameters_of_a_notebook_are_name_and_value(howlinear, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen = {}

    def execute(stem, parameters, record, progress):
        seen[stem] = parameters, record
        return tmp_path / "scratch/smoke/notebooks" / f"{stem}.ipynb"

    monkeypatch.setattr("howlinear.notebook.execute.execute", execute)
    words = ("-p", "gap=0.5", "-p", "profile=smoke", "-p", "note=a=b", "-p", "ranks=[1, 4]")
    given = {"gap": 0.5, "profile": "smoke", "note": "a=b", "ranks": [1, 4]}
    code, out, _ = howlinear("notebook", "04_rank", *words)
    assert (code, seen) == (0, {"04_rank": (given, False)})
    assert out.splitlines()[0] == "04_rank done: scratch/smoke/notebooks/04_rank.ipynb"
    assert "scratch/smoke/results, scratch/smoke/figures" in out
    code, out, _ = howlinear("notebook", "04_rank", *words, "--record")
    assert (code, seen) == (0, {"04_rank": (given, True)})
    assert out == "04_rank done: scratch/smoke/notebooks/04_rank.ipynb\n"


def test_the_list_has_every_notebook_with_its_parameters(done):
    listed = done("notebook", "--list")
    for path in paths.NOTEBOOKS.glob("[0-9]*.py"):
        notebook = path.read_text()
        assert path.stem in listed
        assert re.search(r"^# # \d\d · (.*)$", notebook, re.MULTILINE).group(1) in listed
    assert "counts = [0, 1, 2, 4, 8, 16, 32]" in listed
    assert listed.count("profile = 'minis'") == len(list(paths.NOTEBOOKS.glob("[0-9]*.py")))


def test_one_notebook_may_be_listed_and_one_must_be_named(done, refused):
    listed = done("notebook", "04_rank", "--list")
    assert listed.count("profile =") == 1
    assert "gap = 0.25" in listed
    refused("which notebook? 00_by_hand, 01_capture, 02_ceilings", "notebook")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Three blocks of random weights and the tokenizer of bytes."""
    folder, tokenizer = tmp_path_factory.mktemp("models") / "whole", byte_tokenizer()
    model = new_model("mini-gpt2", blocks=3, width=32, vocabulary=len(tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A model folder, each test's own."""
    return shutil.copytree(saved, tmp_path / "whole")


def unpadded(text):
    """A card whose tables' cells are as long as what they hold."""
    return re.sub(" +", " ", text)


def check_costs(said, folder, out, text, seed=0):
    """What was printed, and the card, tell the perplexities of both models; the smaller model and the rows."""
    whole, small = load_model(folder), load_model(out)
    rows = load_corpus(str(text), small).rows(4096, seed=seed)
    before, after = hl.perplexity(whole, rows), hl.perplexity(small, rows)
    assert f"perplexity {before:.2f} → {after:.2f}, change {after - before:+.2f}" in said
    assert f"{whole.num_parameters():,} → {small.num_parameters():,} parameters, written to {out}" in said
    card = unpadded((out / "README.md").read_text())
    assert f"| perplexity on held-out `mine.txt` | {before:.2f} | {after:.2f} |" in card
    assert str(folder.parent) not in card
    assert rows.sha256 in card
    return whole, small, rows


def test_compress_writes_a_folder_that_costs_what_it_says(done, text, folder, tmp_path):
    out, options = tmp_path / "small [1]", ("--corpus", text, "--rows", 4096, "--seed", 3)
    said = done("compress", folder, "--max-dppl", 500, "--out", out, *options)
    _, small, _ = check_costs(said, folder, out, text, seed=3)
    assert sum(line.startswith("It stopped ") for line in said.splitlines()) == 1
    assert sorted(re.findall(r"^ +\d +(\d) +[+-]", said, re.MULTILINE)) == [str(b) for b in replaced(small.config)]


def test_compress_asks_both_models_the_questions_of_a_task(done, text, folder, tmp_path):
    task, written = tmp_path / "mine.jsonl", tmp_path / "out.json"
    alike = [word for word in WORDS if len(word) == 5]  # so that no choice is the likelier for being short
    pairs = itertools.islice(itertools.permutations(alike, 2), 40)
    rows = [{"question": f"alpha{i}", "choices": pair, "answer": i % 2} for i, pair in enumerate(pairs)]
    task.write_text("\n".join(map(json.dumps, rows)))
    options = ("--corpus", text, "--rows", 4096, "--max-dppl", 1e6, "--json", written)
    said = done("compress", folder, "--task", task, "--out", tmp_path / "small", *options)
    before, after = (hl.accuracy(load_model(path), task) for path in (folder, tmp_path / "small"))
    assert before.correct.tolist() != after.correct.tolist()
    change = after.change_from(before)
    interval = f"(95 % interval {change.low:+.2f} to {change.high:+.2f}"
    (line,) = (line for line in said.splitlines() if line.startswith("mine.jsonl, 40 questions"))
    for part in (f"{before.estimate} → {after.estimate}", f"{change.value:+.2f} {interval}", "0.50"):
        assert part in line
    card = unpadded((tmp_path / "small/README.md").read_text())
    both = [f"| {before.estimate} | {after.estimate} |"]
    both += [f"| {before.estimate_normalised} | {after.estimate_normalised} |"]
    for part in (*both, interval, "`mine.jsonl`"):
        assert part in card
    assert str(tmp_path) not in card
    numbers = json.loads(written.read_text())
    found = [numbers[name] for name in ("accuracy_before", "accuracy_after", "accuracy_change", "chance")]
    expected = [before.estimate.value, after.estimate.value, change.value, 0.5]
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_task_without_an_answer_is_refused_before_any_work(refused, monkeypatch, text, folder, tmp_path):
    monkeypatch.setattr("howlinear.instrument.layerwise.open_model", None)  # would fail if it came to that
    (tmp_path / "mine.csv").write_text('question,choices,answer\nalpha,"[""x"", ""y""]",C\n')
    options = ("--corpus", text, "--max-dppl", 1, "--out", tmp_path / "small")
    refused("row 0", "compress", folder, "--task", tmp_path / "mine.csv", *options)
    refused("cannot read", "compress", folder, "--task", tmp_path / "none.csv", *options)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("budget", [("--max-dppl", 500), ("--max-parameters", 0.9)])
def test_compress_changes_some_blocks_alone_and_writes_it_in_every_form(done, text, folder, tmp_path, budget):
    files, targets = files_below(tmp_path)
    options = ["--corpus", text, "--rows", 4096, "--blocks", "0,2", *budget, "--out", tmp_path / "small"]
    out = done("compress", folder, *options, *targets)
    whole, small = load_model(folder), load_model(tmp_path / "small")
    counts = [[sum(p.numel() for p in site.parameters()) for site in hl.sites(model)] for model in (whole, small)]
    assert counts[0][1] == counts[1][1]
    assert counts[0][0] > counts[1][0]
    written = json.loads(files["json"].read_text())
    assert [block["parameters_before"] for block in written["blocks"]] == counts[0]
    assert [block["parameters_after"] for block in written["blocks"]] == counts[1]
    assert written["parameters_after"] == small.num_parameters()
    printed = [float(number) for number in re.search(r"perplexity (\S+) → (\S+),", out).groups()]
    assert [written["perplexity_before"], written["perplexity_after"]] == pytest.approx(printed, rel=1e-3)
    assert written["dppl_low"] <= written["dppl"] <= written["dppl_high"]
    assert pd.read_csv(files["csv"])["kept"].tolist() == pytest.approx([n / m for m, n in zip(*counts, strict=True)])
    assert files["svg"].read_bytes().startswith(b"<?xml")
    assert f"<td>{counts[1][0]:,}</td>" in files["html"].read_text()


@pytest.mark.parametrize(
    "more", [(), *(pytest.param((one,), marks=pytest.mark.long) for one in ("--alike", "--layerwise"))]
)
def test_compress_to_a_share_of_the_parameters(done, text, folder, tmp_path, more):
    options = ("--corpus", text, "--rows", 4096, "--max-parameters", 0.8, *more)
    said = done("compress", folder, "--out", tmp_path / "small", *options)
    whole, small, rows = check_costs(said, folder, tmp_path / "small", text)
    assert small.num_parameters() <= 0.8 * whole.num_parameters()
    assert "Another hundredth of all parameters would cost" in said
    if more == ("--layerwise",):  # neither model is there to go on with a text
        assert len(list((tmp_path / "small").glob("*.safetensors"))) > 1
        return
    # the likeliest token, one by one, after a held-out beginning
    ids, tokens = rows.ids[rows.test][:1, :24], tokenizer_of(small)
    whole_card = (tmp_path / "small/README.md").read_text()
    assert f"~~~~text\n{tokens.decode(ids[0])}\n~~~~" in whole_card
    for model in (whole, small):
        longer = ids
        while longer.shape[1] < 64 and longer[0, -1] != model.generation_config.eos_token_id:
            with torch.no_grad():
                longer = torch.cat([longer, model(longer).logits[:, -1:].argmax(-1)], 1)
        assert f"~~~~text\n{tokens.decode(longer[0, 24:])}\n~~~~" in whole_card
    if not more:  # and once more over it
        done("compress", folder, "--out", tmp_path / "small", "--force", *options)


@pytest.fixture
def saved_llama(tokenizer, tmp_path):
    """Saves a LLaMA of three blocks with its tokenizer as `llama`, and returns it."""

    def save(units):
        shape = {"hidden_size": 32, "intermediate_size": units, "num_hidden_layers": 3, "num_attention_heads": 2}
        llama = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
        llama.save_pretrained(tmp_path / "llama")
        tokenizer.save_pretrained(tmp_path / "llama")
        return llama

    return save


@pytest.fixture
def as_decilm(text, tmp_path):
    """The options that write a small model as `small` in that form."""
    return ("--corpus", text, "--rows", 4096, "--decilm", "--out", tmp_path / "small")


@pytest.mark.parametrize("layerwise", [False, True])
def test_compress_in_the_form_of_decilm(done, refused, saved_llama, as_decilm, folder, tmp_path, layerwise):
    llama = saved_llama(units=128)
    options = (*as_decilm, "--max-dppl", 500)
    work = tmp_path / "work"
    said = done("compress", tmp_path / "llama", *options, *(("--work", work) if layerwise else ()))
    assert (work / "maps.safetensors").exists() == layerwise
    config = json.loads((tmp_path / "small/config.json").read_text())
    assert [block["ffn"]["ffn_mult"] for block in config["block_configs"]] == [1.5 * 256 / 32] * 3
    card = unpadded((tmp_path / "small/README.md").read_text())
    parameters = llama.num_parameters() + 3 * (256 - 128) * 96 + 3 * (2 * 256 + 32)
    assert f"write nothing ({parameters:,} parameters with them)" in card
    assert f"({parameters:,} once padded to multiples of 256), written to" in said
    refused("this is a 'gpt2' model", "compress", folder, *options, "--force")


@pytest.mark.parametrize("more", [(), pytest.param(("--layerwise",), marks=pytest.mark.long)])
def test_compress_to_widths_that_decilm_has(done, saved_llama, as_decilm, tmp_path, more):
    """Planted: blocks of 600 units, which the form would write as 768; kept are 512 or 256, and none is padded."""
    llama = saved_llama(units=600)
    said = done("compress", tmp_path / "llama", *as_decilm, "--max-parameters", 0.7, *more)
    config = json.loads((tmp_path / "small/config.json").read_text())
    widths = [block["ffn"]["ffn_mult"] * 32 / 1.5 for block in config["block_configs"]]
    assert set(widths) <= {256, 512}
    parameters = llama.num_parameters() - sum(3 * 32 * (600 - int(width)) for width in widths)
    assert parameters <= 0.7 * llama.num_parameters()
    assert f"→ {parameters:,} parameters, written to" in said


def test_compress_hidden_units_within_a_budget_of_perplexity(done, text, folder, tmp_path):
    options = ("--corpus", text, "--rows", 4096, "--max-dppl", 0.5, "--units")
    said = done("compress", folder, "--out", tmp_path / "small", *options)
    whole, small, rows = check_costs(said, folder, tmp_path / "small", text)
    assert small.num_parameters() < 0.95 * whole.num_parameters()
    assert units_left(small.config)
    assert hl.perplexity(small, rows) - hl.perplexity(whole, rows) <= 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give one budget"),
        (("--max-dppl", 1, "--max-parameters", 0.9), "give one budget"),
        (("--max-dppl", 1, "--alike"), "--alike is about hidden units: give --max-parameters with it, or --units"),
        (("--max-dppl", "nan", "--units"), "a budget of nan: give"),
        (("--max-dppl", -1, "--units"), "a budget of -1: give by how much perplexity may rise"),
        (("--max-dppl", -100), "no block can be replaced within -100 of perplexity"),
        (("--max-parameters", 1.2), "give one between 0 and 1"),
        (("--max-parameters", 0.9, "--rows", 256), "256 rows of 128 tokens in 2 × 8 folds: use at least 4096 rows"),
    ],
)
def test_a_share_that_cannot_be_is_one_clear_line_and_leaves_nothing(refused, text, folder, tmp_path, options, message):
    rows = () if "--rows" in options else ("--rows", 4096)
    refused(message, "compress", folder, "--corpus", text, "--out", tmp_path / "deep/small", *rows, *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "whole"]


def test_an_interrupted_compression_leaves_nothing(howlinear, monkeypatch, text, folder, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    options = ("--corpus", text, "--out", tmp_path / "small", "--rows", 4096, "--max-parameters", 0.9)
    for place in ("howlinear.ideas.compression.allocate.unit_grams", "howlinear.ideas.compression.folder.seal"):
        with monkeypatch.context() as patch:
            patch.setattr(place, interrupted)
            code, _, err = howlinear("compress", folder, *options)
            assert code == 2
            assert err == "howlinear: interrupted; a file or folder that was not finished is not there\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "whole"]


def test_a_folder_that_exists_is_refused_before_any_work(refused, monkeypatch, text, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    options = ("--max-dppl", 1, "--out", tmp_path / "mine")
    monkeypatch.setattr("howlinear.load_model", None)  # would fail if it came to that
    for force, message in (((), "exists: choose another folder"), (("--force",), "holds no compressed model")):
        refused(message, "compress", "mini-gpt2", *options, *force)
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["years of work"]


def test_the_home_folder_is_known_behind_an_equals_sign(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there.json").write_text("mine")
    refused(f"cannot write {tmp_path}/there.json: it is there already", "measure", "mini-gpt2", "--json=~/there.json")


@pytest.mark.parametrize(
    ("asked", "work", "device_map", "whole_only", "expected"),
    [
        (None, None, None, [], None),  # depends on what is free
        (None, None, None, ["--tokens"], False),
        (None, None, "auto", [], False),
        (None, Path("work"), None, [], True),
        (True, None, None, [], True),
        (False, None, None, [], False),
        (False, Path("work"), None, [], "refused"),
        (True, None, "auto", [], "refused"),
        (None, Path("work"), None, ["--tokens"], "refused"),
        (True, None, None, ["--tokens"], "refused"),
    ],
)
def test_weights_stay_on_disk_where_that_is_asked_for_and_possible(asked, work, device_map, whole_only, expected):
    with pytest.raises(hl.InputError) if expected == "refused" else nullcontext():
        assert cli.check_layerwise(asked, work, device_map, whole_only) is expected
