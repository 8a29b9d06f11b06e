"""A race: the columns, the budget, and what a compressor may not do."""

from functools import partial

import numpy as np
import pytest
import torch

from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.race import CLOCKS, RIVALS, cost, race, rivals
from howlinear.instrument.perplexity import change, perplexity
from howlinear.models.layers import parameters
from howlinear.models.replace import copy_of


def test_a_cost_by_hand():
    """Losses of 1 and 3 nats that rise by 0.5: the perplexity is exp(0.5) times as large, in each fold alike."""
    before = torch.tensor([1.0, 3.0, 2.0]).double()
    found = cost(before, before + 0.5, torch.tensor([0, 1, 2]))
    assert found["before"] == pytest.approx(np.exp(2))
    assert found["perplexity"] == pytest.approx(np.exp(2.5))
    assert [found[name] for name in ("ratio", "low", "high")] == pytest.approx([np.exp(0.5)] * 3)
    assert found["delta"] == pytest.approx(np.exp(2.5) - np.exp(2))
    assert found["delta_low"] < found["delta"] < found["delta_high"]


def test_an_interval_is_wide_where_documents_differ():
    before = torch.tensor([1.0, 3.0, 2.0, 2.0]).double()
    after = before + torch.tensor([0.0, 0.4, 0.1, 0.3]).double()
    found = cost(before, after, torch.arange(4))
    assert found["low"] < found["ratio"] == pytest.approx(np.exp(0.2)) < found["high"]
    assert found["delta"] == change(before, after).delta


def test_a_race_of_all_rivals(model, rows):
    """Every one finishes, within its budget; what it says of a copy is the copy's perplexity."""
    calibration = Calibration(model, rows, priced=4)
    texts = {"one": rows, "other": rows.subset(torch.arange(len(rows.ids) - 1))}
    table = race(model, rivals(calibration), [0.9, 0.7], texts)
    assert list(table["method"].unique()) == list(RIVALS)
    assert len(table) == len(RIVALS) * 2 * 2
    assert (table["kept"] <= table["share"] + 1e-4).all()
    assert (table["low"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["high"]).all()
    assert (table[CLOCKS] > 0).all().all()
    np.testing.assert_allclose(table["ratio"], table["perplexity"] / table["before"])
    flap = table[(table["method"] == "FLAP") & (table["share"] == 0.7)].set_index("text")
    smaller = RIVALS["FLAP"](calibration, 0.7)
    for name, text in texts.items():
        assert flap["perplexity"][name] == pytest.approx(perplexity(smaller, text), rel=1e-6)
        assert flap["before"][name] == pytest.approx(perplexity(model, text), rel=1e-6)
    assert flap["kept"]["one"] == parameters(smaller) / parameters(model)


def test_what_cannot_get_so_small_has_no_row(gpt2, rows):
    calibration = Calibration(gpt2, rows)
    table = race(gpt2, rivals(calibration, ["ShortGPT", "magnitude"]), [0.1, 0.8], {"text": rows})
    assert table.groupby("method")["share"].apply(list).to_dict() == {"ShortGPT": [0.8], "magnitude": [0.8]}


def test_who_keeps_too_much_is_named(gpt2, rows):
    with pytest.raises(InputError, match="cheat leaves"):
        race(gpt2, {"cheat": lambda _: copy_of(gpt2)}, [0.9], {"text": rows})


def test_unknown_rivals(gpt2, rows):
    with pytest.raises(InputError, match="no rival is called nobody"):
        rivals(Calibration(gpt2, rows), ["nobody"])
    (only,) = rivals(Calibration(gpt2, rows), ["FLAP"]).values()
    assert isinstance(only, partial)
