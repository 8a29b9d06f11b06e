"""A thousand wrong calls, texts and model folders: exit code 2 and words, never a traceback, never success."""

import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import typer
from safetensors.torch import load_file, save_file

import howlinear
from howlinear.app import cli
from howlinear.files import paths
from howlinear.models import load as models
from howlinear.text import corpus

pytestmark = pytest.mark.long

CALLS, TEXTS, FOLDERS = 500, 250, 250
ODD = ["-1", "0", "1e9", "NaN", "1.5", "0x10", "ten", "--", "½", "1;ls", "$(ls)", "`ls`"]
ODD += ["", " ", "\udcff", "9" * 400, "é" * 300]


COMMAND = typer.main.get_command(cli.app)  # built once: typer builds it anew at every call


def howlinear_says(capsys, *arguments):
    """Run the command in this process; its exit code, or what it raised, and standard error."""
    sys.argv = ["howlinear", *map(str, arguments)]
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except Exception as error:
        code = repr(error)
    return code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def own_places(monkeypatch, tmp_path):
    """Nothing is written to the project, and what is loaded again and again is loaded once."""
    kept, load, read = {}, models.load_model, corpus.tokenizer_of
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")

    def loaded(name, **options):
        return kept.get(name) or kept.setdefault(name, load(name)) if name == "mini-gpt2" else load(name, **options)

    def tokenizer_of(model):
        if model not in kept.values():
            return read(model)
        return kept.get("tokenizer") or kept.setdefault("tokenizer", read(model))

    monkeypatch.setattr(howlinear, "load_model", loaded)
    monkeypatch.setattr(corpus, "tokenizer_of", tokenizer_of)
    monkeypatch.setattr(typer.main, "get_command", lambda app: COMMAND)
    monkeypatch.chdir(tmp_path)


def odd_call(draw, tmp_path):
    """Arguments that cannot be right."""
    odd, word = draw.choice(ODD), "".join(draw.choices("abz./-_~ ü", k=draw.randrange(1, 12)))
    no_model = draw.choice(
        [word + "//", f"../{word}/..", "/", "", ".", f"{tmp_path}", f"a/b/c{odd}", "https://x/y", "~", odd + "/"]
    )
    no_number = draw.choice([one for one in ODD if one not in ("0", "9" * 400)])
    path = draw.choice(["../x", "/etc/passwd", "..", ".", "a/../../..", f"{tmp_path}/x"])
    return draw.choice(
        [
            [f"{word}{odd}"],
            ["measure"],
            ["measure", no_model],
            ["measure", no_model, "--corpus", odd],
            ["measure", "mini-gpt2", f"--{word}"],
            ["measure", "mini-gpt2", odd or "x", "y"],
            ["measure", "mini-gpt2", "--rows", draw.choice(ODD)],
            ["measure", "mini-gpt2", "--seq-len", draw.choice(ODD)],
            ["measure", "mini-gpt2", "--seed", draw.choice([one for one in ODD if not one.strip("-").isdecimal()])],
            ["measure", "mini-gpt2", "--blocks", draw.choice([odd if odd != "0" else ",", "0,", "0,,1", "0-3"])],
            ["measure", "mini-gpt2", "--corpus", draw.choice([odd, word, f"{word}.txt", f"{odd}/.txt", str(tmp_path)])],
            ["compress", "mini-gpt2", "--max-dppl", odd],
            ["compress", "mini-gpt2", "--out", word],
            ["compress", "mini-gpt2", "--max-dppl", draw.choice(["x", "", "1,5"]), "--out", "there"],
            ["compress", "mini-gpt2", "--max-dppl", "1", "--out", str(tmp_path)],
            ["compress", no_model, "--max-dppl", "1", "--out", "there"],
            ["notebook"],
            ["notebook", draw.choice([path, odd, word, f"01_capture{odd or '.'}"])],
            ["notebook", "01_capture", "-p", word],
            ["notebook", "01_capture", "-p", f"{word}{odd}=1"],
            ["notebook", "01_capture", "-p", "block=" + draw.choice([odd + "x", "1.5", "[1]", "2.0", "True", "'4'"])],
            ["notebook", "03_bilinear", "-p", "ranks=" + draw.choice(["4", "['4']", "[1, [2]]", "{1: 2}", "(1, 'x')"])],
            ["notebook", "01_capture", "-p", "profile=" + draw.choice([path, odd or "x", f"{word}x", "a/..", "'; ls"])],
            ["minis", word],
            ["minis", "mini-gpt2", "--steps", no_number],
            ["capture", path, "docs", "mini-gpt2"],
            ["capture", "smoke", path, "mini-gpt2"],
            ["capture", "smoke", "docs", path],
        ]
    )  # fmt: skip


def test_wrong_calls(capsys, tmp_path):
    wrong = []
    for seed in range(CALLS):
        arguments = odd_call(random.Random(seed), tmp_path)
        code, said = howlinear_says(capsys, *arguments)
        wrong += [(seed, arguments, code, said)] * (code != 2 or not said.strip() or "Traceback" in said)
    assert not wrong


def odd_text(draw, path):
    """A file that is no text, or too little."""
    words = " ".join(draw.choices(["alpha", "naïve", "x", "\t", "日本"], k=draw.randrange(1, 60))).encode()
    where = draw.randrange(len(words) + 1)
    torn = words[:where] + draw.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf8"]) + words[where:] * 99
    encoded = (words.decode() * 99).encode(draw.choice(["utf-16", "utf-32", "utf-16-le"]))
    make = draw.choice(
        [
            path.mkdir,
            lambda: path.symlink_to(path),
            lambda: os.mkfifo(path),
            lambda: path.write_bytes(draw.choice([b"", b"\xef\xbb\xbf", b" \n\t\r\n\n", "\u2028\n".encode()])),
            lambda: path.write_bytes(torn),
            lambda: path.write_bytes(words[:where] + b"\0" + words[where:] * 99),
            lambda: path.write_bytes(encoded),
            lambda: path.write_bytes(draw.randbytes(draw.randrange(64, 5000))),
            lambda: path.write_bytes(words),  # too short
        ]
    )
    make()


def test_wrong_texts(capsys, tmp_path):
    wrong = []
    for seed in range(TEXTS):
        path = tmp_path / f"{seed}.txt"
        odd_text(random.Random(seed), path)
        code, said = howlinear_says(capsys, "measure", "mini-gpt2", "--corpus", path, "--json", tmp_path / "out.json")
        wrong += [(seed, code, said)] * (code != 2 or said.count("\n") != 1)
    assert not wrong
    assert not (tmp_path / "out.json").exists()


def odd_config(draw, config):
    """A configuration that fits no model, or not these weights."""
    fits = {"n_embd": [0, -32, 33, 10**9, "32", None, 1.5], "n_layer": [-1, 200, "3", None, 2.5]}
    fits |= {"n_head": [0, -1, 7, "two"], "vocab_size": [10**13, -5, 0, "80", None, [80], 81], "n_inner": [-1, 7, "x"]}
    fits |= {"model_type": ["unknown", None, 3, [], "llama"], "activation_function": ["nope", 3, None]}
    fits |= {"n_positions": [-1, 0, 7, "x", 10**12], "layer_norm_epsilon": ["x", None, []]}
    key = draw.choice(list(fits))
    config = dict(config, **{key: draw.choice(fits[key])})
    if draw.random() < 0.2:
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    return json.dumps(config).encode()


def odd_folder(draw, folder):
    """Damage a model folder so that nothing can be measured."""
    config, weights = (folder / name for name in ("config.json", "model.safetensors"))
    configured, weighed = config.read_bytes(), weights.read_bytes()
    tokenizer, sums = folder / "tokenizer.json", folder / "SHA256SUMS"

    def another_header():
        flipped = bytearray(weighed)
        flipped[draw.randrange(8)] ^= 1 << draw.randrange(8)  # the header's length
        weights.write_bytes(flipped)

    def another_weight():
        tensors = load_file(weights)
        name = draw.choice([one for one in tensors if ".mlp." in one])
        tensors[name] = draw.choice([tensors[name] * float("nan"), tensors[name] / 0, tensors[name][:-1].clone()])
        save_file(tensors, weights, {"format": "pt"})

    def no_file():
        target = draw.choice([config, weights])
        target.unlink()
        draw.choice([target.mkdir, lambda: target.symlink_to(target), lambda: None])()

    no_config = [b"[]", b"3", b'"gpt2"', b"null", b"{}", b"\xff\xfe{}", b"\0", b'{"model_type": []}']
    half = tokenizer.read_bytes()[: tokenizer.stat().st_size // 2]
    no_tokenizer = [b"", b"[]", b"{}", b"\xff", half, b'{"model": 3}']
    damage = draw.choice(
        [
            lambda: config.write_bytes(configured[: draw.randrange(len(configured) - 2)]),
            lambda: config.write_bytes(draw.choice(no_config)),
            *3 * [lambda: config.write_bytes(odd_config(draw, json.loads(configured)))],
            lambda: weights.write_bytes(weighed[: draw.randrange(len(weighed))]),
            lambda: weights.rename(folder / draw.choice(["pytorch_model.bin", "model.pt", "model.ckpt"])),
            lambda: tokenizer.write_bytes(draw.choice(no_tokenizer)),
            lambda: sums.write_text(draw.choice(["00  model.safetensors\n", "x", "a  b\n", "\n\n", "ü"])),
            *(another_header, another_weight, no_file),
        ]
    )
    damage()


def test_wrong_model_folders(capsys, tmp_path, project):
    folder = project / "model"
    options = ("--corpus", project / "mine.txt", "--rows", 256, "--seq-len", 4)
    capsys.readouterr()  # of the folder's making
    assert howlinear_says(capsys, "measure", folder, *options) == (0, "")  # undamaged, it can be measured
    wrong = []
    for seed in range(FOLDERS):
        damaged = shutil.copytree(folder, tmp_path / f"m{seed}")
        odd_folder(random.Random(seed), damaged)
        code, said = howlinear_says(capsys, "measure", damaged, *options)
        lines = f"\n{said}".count("\nhowlinear: ")  # the error, and before it what loading had to say
        wrong += [(seed, code, said)] * (code != 2 or lines not in (1, 2))
        shutil.rmtree(damaged)
    assert not wrong


def test_a_wrong_call_of_the_program_itself():
    """A process of its own: what it says of bytes that are no text must get through a real standard error."""
    ran = subprocess.run([sys.executable, "-m", "howlinear", "measure", b"\xff\xfe"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.strip()
    assert "Traceback" not in ran.stderr
