"""A run of the paper's models and texts, made up and small, by the paper's protocol."""

import pytest

from howlinear.errors import SourceError
from howlinear.notebook import paper
from howlinear.notebook import run as notebooks
from howlinear.training import stand_ins


def test_the_papers_models_are_measured_by_its_protocol_on_its_texts_and_others_are_not(tmp_path, unchecked):
    shape = stand_ins.resized("llama-160m", blocks=2, width=16)
    model = stand_ins.make("llama-160m", tmp_path, shape)
    for name in ("wikitext", "wikitext_test"):
        lines = [f" Line {number} of {name} is {number**2} . " for number in range(400)]
        (tmp_path / f"{name}.txt").write_text(" \n = One = \n" + "\n".join(lines) + "\n")
    names = f"models: [{model}, models/mini-gpt2]\ncorpora: [wikitext, docs]\ntexts: {tmp_path}\n"
    (tmp_path / "odd.yaml").write_text(names + "rows: 4096\nseq_len: 64\nseed: 0\nsample: 0\n")
    run = notebooks.start("02_ceilings", str(tmp_path / "odd.yaml"))
    blocks = paper.measure(run, perplexities=True)
    assert blocks[["model", "block"]].to_numpy().tolist() == [["llama-160m", 0], ["llama-160m", 1]]
    assert blocks[["r2_scalar", "perplexity", "dppl"]].notna().all(axis=None)
    [(name, _, rows)] = paper.lay_out(run)
    assert (name, rows.ids.shape[1]) == ("llama-160m", 128)
    assert paper.measure(run, "docs").empty
    assert paper.measure(run, "moby_dick").empty
    assert "dppl" not in paper.measure(run, layout="tables", blocks=[1, 10])
    (tmp_path / "wikitext_test.txt").unlink()
    with pytest.raises(
        SourceError, match=r"cannot read wikitext_test: .*wikitext_test\.txt is not there; put it there"
    ):
        paper.measure(run, perplexities=True)
