from dataclasses import replace

import pytest
import torch

import howlinear as hl
from howlinear.errors import SourceError
from howlinear.instrument import store
from howlinear.instrument.capture import capture
from howlinear.instrument.store import load_capture, save_capture
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
    assert (stored.rows.corpus, stored.rows.note) == (rows.corpus, "")
    assert list(stored.blocks) == [0, 1]
    for block, kept in blocks.items():
        back = stored.blocks[block]
        assert hl.ceiling(back.train, back.test).r2 == pytest.approx(hl.ceiling(kept.train, kept.test).r2, rel=1e-12)
        assert torch.equal(back.outputs.sxx, kept.outputs.sxx)
        assert torch.equal(back.heavy.y, kept.heavy.y)
        assert back.heavy.median == kept.heavy.median
        for part in ("x", "y", "position", "token", "test", "fold"):
            assert torch.equal(getattr(back.sample, part), getattr(kept.sample, part))
        for side in ("train", "test"):
            assert [m.n for m in getattr(back, side)] == [m.n for m in getattr(kept, side)]


def test_how_rows_were_made_comes_back_with_them_and_no_sample_where_there_is_none(captured, tmp_path):
    blocks, rows = captured
    path = tmp_path / "c.safetensors"
    plain = {block: replace(kept, sample=None, heavy=None) for block, kept in blocks.items()}
    save_capture(path, plain, replace(rows, note="7 documents of a text"), {})
    stored = load_capture(path)
    assert stored.rows.note == "7 documents of a text"
    assert (stored.blocks[0].sample, stored.blocks[0].heavy) == (None, None)


def test_a_block_is_read_when_it_is_asked_for(captured, tmp_path):
    save_capture(tmp_path / "c.safetensors", *captured, {})
    blocks = load_capture(tmp_path / "c.safetensors").blocks
    assert len(blocks) == 2
    assert blocks[1] is not blocks[1]
    with pytest.raises(KeyError):
        blocks[2]


def test_a_missing_capture_says_what_to_do(tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(SourceError, match=f"cannot read capture {path}.*; remove it and run again"):
        load_capture(path)


def test_moments_are_written_as_they_lie_and_what_overlaps_is_copied(captured, tmp_path, monkeypatch):
    blocks, rows = captured
    shared = dict.fromkeys(blocks, blocks[0])  # every block the same one, tensor for tensor
    written = {}
    monkeypatch.setattr(store, "save_file", lambda tensors, path, **_: (written.update(tensors), path.touch()))
    save_capture(tmp_path / "capture.safetensors", shared, rows, {})
    own = blocks[0].train[0].sxx
    assert written["0.train.0.sxx"].data_ptr() == own.data_ptr()
    with_memory = [tensor.data_ptr() for tensor in written.values() if tensor.numel()]
    assert len(set(with_memory)) == len(with_memory)
    for block in blocks:
        assert torch.equal(written[f"{block}.train.0.sxx"], own)
