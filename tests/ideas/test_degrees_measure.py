"""Notebook 10's tables: what stands in which row, against the same asked of one block at a time."""

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import BLOCKS
from helpers.reference import normal
from howlinear.core.gaussian import predict_spectrum
from howlinear.files import tables
from howlinear.ideas.degrees import measure
from howlinear.ideas.degrees.products import learning_curve, polynomial, products
from howlinear.ideas.degrees.spectrum import degrees, loudest
from howlinear.instrument.capture import capture
from howlinear.models.units import take_apart
from howlinear.notebook import prose
from howlinear.text.rows import TokenRows
from tests.ideas.test_degrees import block_of, captured

ENDS = ["r2", "r2_low", "r2_high"]


def recorded(table, name):
    """The table as it will be on disk: its columns are in the data dictionary, and its keys tell rows apart."""
    return tables.as_recorded(table, "10_degrees", name)


@pytest.fixture(scope="module")
def long_rows():
    """Random token ids, enough for features in four folds of each side."""
    ids = torch.randint(80, (64, 32), generator=torch.Generator().manual_seed(2))
    return TokenRows.from_ids(ids, folds=4)


def test_a_survey_is_what_each_block_says_alone(gpt2, long_rows):
    survey = measure.survey_blocks(
        *("tiny", gpt2, long_rows, [0, 1, 2], [0, 1, 2]),
        degree=3,
        kernel_rows=[100, 200, 300],
        counts=[5, 10_000],
        directions=[0, 2, 4, 10_000],
    )
    assert set(survey) == {"spectra", "blocks", "neurons", "kernels", "directions"}
    for name, table in survey.items():
        assert recorded(table, name)["model"].unique().tolist() == ["tiny"]
    assert survey["spectra"]["block"].tolist() == [block for block in range(BLOCKS) for _ in range(3)]
    assert survey["neurons"]["block"].unique().tolist() == [0, 1, 2]
    block = capture(gpt2, long_rows, [1], sample=long_rows.count)[1]
    parts = take_apart(gpt2, 1)

    spectrum = survey["spectra"].query("block == 1")
    expected = [astuple(estimate) for estimate in degrees(block, parts, 3).estimates]
    np.testing.assert_allclose(spectrum[ENDS], expected, atol=1e-9)
    np.testing.assert_allclose(spectrum["hermite"], predict_spectrum(parts, sum(block.train), 3), atol=1e-9)

    _, deviation = parts.spread(sum(block.train))
    spread = survey["blocks"].query("block == 1").iloc[0]
    assert spread["spread"] == float(deviation.median())
    assert spread[["spread_lower", "spread_upper"]].tolist() == pytest.approx(np.quantile(deviation, [0.25, 0.75]))

    neurons = survey["neurons"].query("block == 1")
    assert neurons["neurons"].tolist() == [0, 5, parts.neurons]  # those that there are, none and all
    r2 = loudest(block, parts, [0, 5, parts.neurons]).r2
    np.testing.assert_allclose(neurons["r2"], r2, atol=1e-9)
    np.testing.assert_allclose(neurons["share"], [0, (r2[1] - r2[0]) / (r2[2] - r2[0]), 1], atol=1e-9)

    kernels = survey["kernels"].query("block == 1")
    assert kernels.groupby("kernel")["rows"].max().to_dict() == {"degree 2": 300, "degree 3": 200, "Gaussian": 200}
    curve = learning_curve(block, polynomial(3), [100, 200])
    cubic = kernels[kernels["kernel"] == "degree 3"]
    np.testing.assert_allclose(cubic[ENDS], [astuple(point.r2) for point in curve], atol=1e-9)
    assert survey["kernels"].query("block == 0")["kernel"].unique().tolist() == ["degree 2"]

    leading = survey["directions"]
    assert leading[["block", "directions"]].to_numpy().tolist() == [[1, 0], [1, 2], [1, 4]]
    np.testing.assert_allclose(leading["r2"], products(block, [0, 2, 4]).r2, atol=1e-9)


def test_a_model_of_two_blocks_has_a_middle_one(gpt2, long_rows):
    found = measure.survey_blocks("tiny", gpt2, long_rows, [0, 1], [0, 1], 2, [100, 200], [5], [0, 2])
    assert found["directions"]["block"].unique().tolist() == [1]
    assert found["neurons"]["block"].unique().tolist() == [0, 1]


@pytest.mark.parametrize(("held", "passes"), [(1, 3), (2 * 2_048 * 32, 2), (10**9, 1)])
def test_blocks_come_in_order_as_many_a_pass_as_fit(gpt2, long_rows, monkeypatch, held, passes):
    asked = []

    def counted(*args, **settings):
        asked.append(args[2])
        return capture(*args, **settings)

    monkeypatch.setattr(measure, "capture", counted)
    found = list(measure.captured_blocks(gpt2, long_rows, range(3), held))
    assert [block for block, _ in found] == [0, 1, 2]
    assert len(asked) == passes
    assert all(len(block.rows().x) == long_rows.count for _, block in found)


def test_teachers_stand_in_rows_of_their_own():
    x, parts = normal(1_000, 5), block_of(torch.relu)
    table = recorded(measure.teacher_table(captured(x, parts(x)), parts, 3), "teachers")
    found = table.pivot_table(index="teacher", columns="degree", values="r2")
    assert found.index.tolist() == found.columns.tolist() == [1, 2, 3]
    assert (np.diag(found) > 0.99).all()
    assert found.loc[3, 2] < 0.2


def test_streamed_products_of_a_model_are_a_curve(gpt2, long_rows):
    table = measure.with_keys(measure.streamed_table(gpt2, long_rows, 1, [400, 900]), "tiny", 1)
    assert recorded(table, "streamed")[["model", "block", "rows"]].to_numpy().tolist() == [
        ["tiny", 1, 400],
        ["tiny", 1, 900],
    ]


def test_a_probes_share_is_of_the_step_from_the_line_to_all_squares_by_hand():
    """The line explains 0.6, all squares 0.8: half of the 0.4 that the line leaves is all of the step."""
    neurons = pd.DataFrame({"model": "a", "block": 3, "neurons": [0, 16, 32], "r2": [0.6, 0.75, 0.8]})
    ranks = pd.DataFrame({"model": "a", "block": [3, 3, 4], "rank": [1, 4, 1], "recovered": [0.1, 0.5, 0.3]})
    table = recorded(measure.probe_table(neurons, ranks), "probes")
    assert table.to_dict("list") == {"model": ["a"] * 2, "block": [3, 3], "rank": [1, 4], "share": [0.2, 1.0]}
    elsewhere = recorded(measure.probe_table(neurons, ranks.assign(model="b")), "probes")
    assert elsewhere.empty


def test_training_is_read_at_the_middle_block_of_models_that_recorded_it():
    step = {"step": 8, "degrees": {"0": {"r2": [0.1, 0.2], "spread": 3.0}, "4": {"r2": [0.5, 0.7], "spread": 1.5}}}
    watched = {"family": "gpt2", "blocks": 8, "steps": [step, step | {"step": 16}]}
    unwatched = {"family": "pythia", "blocks": 8, "steps": [{"step": 8}]}
    found = measure.training_table([unwatched, watched])
    assert found["family"].unique().tolist() == ["gpt2"]
    assert found["step"].tolist() == [8, 8, 16, 16]
    assert found["r2"].tolist() == [0.5, 0.7] * 2
    assert found["spread"].tolist() == [1.5] * 4


def test_two_blocks_without_probes_have_an_answer():
    found = tables.results("public", "10_degrees")
    of_model = {
        name: table[table["model"] == "minilm-l6"] if "model" in table else table for name, table in found.items()
    }
    some = {name: table[table["block"].isin([0, 3])] if "block" in table else table for name, table in of_model.items()}
    some["probes"] = some["probes"].iloc[:0]
    said = prose.describe(tables.Results("10_degrees", some, {"settings": {**found.settings, "models": ["minilm-l6"]}}))
    assert (len(said.replies), len(said.questions)) == (3, 5)
    assert "nan" not in " ".join([*said.answer, *said.replies, *(answer for _, answer in said.questions)])
