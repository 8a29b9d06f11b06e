"""How many sequences pass together moves time and memory, and no result."""

import numpy as np
import pandas as pd
import pytest
import torch

import howlinear as hl
from conftest import VOCABULARY, tiny
from howlinear.ideas.corpora.comparison import measured


@pytest.fixture(scope="module")
def model():
    """A model in float64, so that what another order of sums does is far below what is looked for."""
    return tiny("mini-llama").double()


@pytest.fixture(scope="module")
def rows():
    ids = torch.randint(VOCABULARY, (24, 32), generator=torch.Generator().manual_seed(0))
    return hl.TokenRows.from_ids(ids, folds=4)


def numbers(frame):
    return frame.select_dtypes("number").to_numpy(dtype=float)


RUNS = {
    "measure": lambda *given, **size: hl.measure(*given, swap=True, **size).to_frame(),
    "layerwise": lambda *given, **size: hl.measure(*given, swap=True, layerwise=True, **size).to_frame(),
    "compare": lambda *given, **size: measured(*given, swap=True, **size)[0].to_frame(),
    "tokens": lambda *given, **size: hl.token_errors(*given, **size),
    "perplexity": lambda *given, **size: pd.DataFrame({"perplexity": [hl.perplexity(*given, **size)]}),
    "maps": lambda *given, **size: outcome(hl.compress_to(*given, max_dppl=1e6, blocks=[0, 2], **size)),
    "units": lambda *given, **size: outcome(hl.compress(*given, max_parameters=0.8, blocks=[0, 2], **size)),
}


def outcome(found):
    return pd.DataFrame({"base": [found.base], "perplexity": found.perplexity, "low": found.delta.low})


@pytest.mark.parametrize("run", RUNS)
def test_one_sequence_at_a_time_gives_what_sixteen_give(model, rows, run):
    one, many = (numbers(RUNS[run](model, rows, batch_size=size)) for size in (1, 16))
    np.testing.assert_allclose(one, many, rtol=1e-9, atol=1e-9)


# --- which blocks may be changed


@pytest.mark.parametrize("run", ["maps", "units"])
def test_blocks_that_may_not_be_changed_stay_as_they_are(model, rows, run, monkeypatch):
    if run == "maps":
        small = hl.replace(model, hl.compress_to(model, rows, 1e6, blocks=[0, 2]).maps)
    else:
        found = hl.compress(model, rows, 0.8, blocks=[0, 2])
        assert list(found.units) == [0, 2]
        small = found.model
        assert small.num_parameters() <= 0.8 * model.num_parameters()
    before, after = model.state_dict(), small.state_dict()
    for name, weight in before.items():
        changed = name.startswith(("model.layers.0.mlp", "model.layers.2.mlp"))
        assert changed or torch.equal(weight, after[name]), name
    with pytest.raises(hl.InputError, match=r"no block \[7\]"):
        hl.compress(model, rows, 0.8, blocks=7)
    with pytest.raises(hl.InputError, match="alike is about all blocks"):
        hl.compress(model, rows, 0.8, alike=True, blocks=[0])
