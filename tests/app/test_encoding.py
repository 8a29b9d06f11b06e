"""What a terminal cannot show is written as people type it; nothing fails, and names can be turned back."""

import io
import sys

import pytest

from howlinear.app import cli
from howlinear.app.encoding import to_ascii


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("R²_lin 0.95 – 0.97", "R2_lin 0.95 - 0.97"),
        ("ΔPPL −3 ± 1 → +0…", "dPPL -3 +/- 1 -> +0..."),
        ("‖xᵀW‖₂ ≤ ½", "|xTW|2 <= 1/2"),
        ("größe/\udcff.txt", "gr\\xf6\\xdfe/\\udcff.txt"),
    ],
)
def test_marks_are_typed_and_letters_escaped(text, plain):
    assert to_ascii(text) == plain


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("words", [["measure", "--help"], ["notebook", "04_rank", "--list"], ["measure", "./öß\udcff"]])
def test_every_stream_is_written_to_in_its_encoding(monkeypatch, encoding, words):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding, write_through=True)
    monkeypatch.setattr(sys, "argv", ["howlinear", *words])
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == (0 if words[-1].startswith("--") else 2)
    shown = written.getvalue().decode(encoding)
    if words[-1] == "--help":
        superscript = "²" if encoding != "ascii" else "2"
        assert f"R{superscript}_lin" in shown
    if words[0] == "measure":  # the notebooks' titles are questions
        assert "?" not in shown
