from dataclasses import replace

import pytest
import torch

import howlinear as hl
from howlinear.errors import SourceError
from howlinear.instrument.capture import capture
from howlinear.instrument.store import load_capture, save_capture
from howlinear.text.reading import LeftOut, Reading
from howlinear.training import minis


@pytest.fixture(scope="module")
def captured():
    model = minis.new_model("mini-llama", blocks=2, width=32, vocabulary=64)
    ids = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(0))
    rows = hl.TokenRows.from_ids(ids)
    return capture(model, rows, sample=100), rows


def test_a_capture_comes_back_as_it_was(captured, tmp_path):
    blocks, rows = captured
    save_capture(tmp_path / "c.safetensors", blocks, rows, {"model": "m", "perplexity": 2.5})
    stored = load_capture(tmp_path / "c.safetensors")
    assert stored.about["perplexity"] == 2.5
    assert stored.rows.sha256 == rows.sha256
    assert stored.rows.corpus == rows.corpus
    assert list(stored.blocks) == [0, 1]
    for block, kept in blocks.items():
        back = stored.blocks[block]
        assert hl.ceiling(back.train, back.test).r2 == pytest.approx(hl.ceiling(kept.train, kept.test).r2, rel=1e-12)
        assert torch.equal(back.outputs.sxx, kept.outputs.sxx)
        for part in ("x", "y", "position", "token", "test", "fold"):
            assert torch.equal(getattr(back.sample, part), getattr(kept.sample, part))
        for side in ("train", "test"):
            assert [m.n for m in getattr(back, side)] == [m.n for m in getattr(kept, side)]


def test_what_rows_were_read_from_comes_back_with_them(captured, tmp_path):
    blocks, rows = captured
    reading = Reading("a source", "a hash", 7, (LeftOut(3, "documents", "equal to others"),))
    path = tmp_path / "c.safetensors"
    save_capture(path, blocks, replace(rows, reading=reading), {})
    stored = load_capture(path)
    assert stored.rows.reading == reading
    assert stored.about["text"]["sha256"] == "a hash"
    save_capture(path, blocks, rows, {})
    assert load_capture(path).rows.reading is None


def test_a_capture_without_a_sample_has_none(captured, tmp_path):
    blocks, rows = captured
    plain = {block: type(kept)(kept.train, kept.test, kept.outputs, None) for block, kept in blocks.items()}
    save_capture(tmp_path / "c.safetensors", plain, rows, {})
    assert load_capture(tmp_path / "c.safetensors").blocks[0].sample is None


def test_a_block_is_read_when_it_is_asked_for(captured, tmp_path):
    save_capture(tmp_path / "c.safetensors", *captured, {})
    blocks = load_capture(tmp_path / "c.safetensors").blocks
    assert len(blocks) == 2
    assert blocks[1] is not blocks[1]
    with pytest.raises(KeyError):
        blocks[2]


def test_a_missing_or_damaged_capture_says_what_to_do(captured, tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(SourceError, match="remove it and run again"):
        load_capture(path)
    save_capture(path, *captured, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match=f"cannot read capture {path}"):
        load_capture(path)
