"""Rows along the outputs' first direction, against numpy on the same rows."""

import numpy as np
import pytest

from helpers.planted_sinks import massive_block
from helpers.reference import least_squares
from howlinear.ideas.rank import rows as points


def test_points_are_held_out_outputs_beside_the_lines_answers(monkeypatch):
    block, x, y, test, _ = massive_block(240, (0.6, -0.8, 0.0, 0.0), kept=400, loud=-40.0)
    weight, bias, _ = least_squares(x[~test], y[~test])
    x, y = np.asarray(x, float)[test], np.asarray(y, float)[test]
    variances, directions = np.linalg.eigh(np.cov(y.T, bias=True))
    first = directions[:, -1] * np.sign(directions[np.abs(directions[:, -1]).argmax(), -1])
    answer, output = ((rows - y.mean(0)) @ first / variances[-1] ** 0.5 for rows in (x @ weight + bias, y))
    medians = np.linalg.norm(y, axis=1) / block.heavy.median

    monkeypatch.setattr(points, "HEAVY", 40)  # fewer than there are: the heaviest of them stay
    found = points.points_along_first(block)

    ordinary = np.flatnonzero(medians <= 5)[: points.ORDINARY]
    heaviest = np.flatnonzero(medians > 5)[np.argsort(-medians[medians > 5])][:40]
    assert len(ordinary) == points.ORDINARY
    assert len(heaviest) == 40 < (medians > 5).sum()
    rows = np.concatenate([ordinary, heaviest])
    expected = np.stack([answer[rows], output[rows], medians[rows]], 1)
    assert found[["answer", "output", "medians"]].to_numpy() == pytest.approx(expected, abs=1e-4)
    assert found["point"].tolist() == list(range(len(rows)))
