"""Rows along the outputs' first direction, against numpy on the same rows."""

import dataclasses

import numpy as np
import pytest
import torch

from helpers.captures import capture_of
from helpers.reference import least_squares
from howlinear.ideas.rank import rows as points
from howlinear.instrument.capture import Sample
from howlinear.instrument.massive import HeavyRows


def block_with_massive_rows(count=1200, massive=240, loud=-40.0):
    """A bent block whose every fifth row is massive, along one direction; its rows x, y, and which are held out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=generator)
    y = x @ torch.randn(5, 4, generator=generator) + 0.5 * x[:, :4].square()
    place = torch.arange(count)
    far = place % (count // massive) == 0
    y[far] += loud * (1 + torch.rand(int(far.sum()), 1, generator=generator)) * torch.tensor([0.6, -0.8, 0, 0])
    test, fold = place % 4 == 3, place * 4 // count
    norm = y.norm(dim=1)
    order = norm.argsort(descending=True)[:400]
    rows = (x[order], y[order], norm[order], place[order], place[order] % 8, test[order], fold[order])
    heavy = HeavyRows(*rows, float(norm.median()))
    captured = capture_of(Sample(x, y, place % 8, place, test, fold))
    return dataclasses.replace(captured, heavy=heavy), x, y, test


def test_points_are_held_out_outputs_beside_the_lines_answers(monkeypatch):
    block, x, y, test = block_with_massive_rows()
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
