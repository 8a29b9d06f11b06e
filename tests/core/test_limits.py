"""What R² tends to with ever more rows: planted limits must be found from few rows, and none said of too few."""

import math

import pytest
import torch

from howlinear.core import limits
from howlinear.core.ceilings import ceiling
from howlinear.core.moments import Moments

WIDTH, OUTPUTS = 10, 6
LIMIT = 0.5  # signal and noise have the same variance in every case below


@pytest.mark.parametrize(
    ("in_sample", "held_out", "limit", "optimism", "enough"),
    [
        # u = 0.2 of its own rows and u' = 0.45 of others: √0.09 = 0.3 is left in the limit, v / n = 1 − √(0.2 / 0.45)
        (0.8, 0.55, 0.7, 1 / 3, True),
        (0.4, 0.4, 0.4, 0, True),  # sides that agree are the limit
        (1.0, 1.0, 1, 0, True),  # what is exactly linear is so in the limit, whatever the rounding
        (1 + 1e-15, 1 - 1e-14, 1, 0, True),
        (1 - 1e-15, 1.0, 1, 0, True),
        (1 - 1e-9, 1 - 2.25e-9, 1, 1 / 3, True),  # and what is left of a nearly linear block is no rounding
        (1.0, 0.5, 1, 1, False),  # a fit that misses nothing of its own rows follows them wholly
        (0.75, 0.0, 0.5, 0.5, True),  # rows are enough up to a half: √(0.25 / 1)
        (0.75, -0.01, 1 - 0.2525**0.5, 1 - (0.25 / 1.01) ** 0.5, False),
    ],
)
def test_cases_by_hand(in_sample, held_out, limit, optimism, enough):
    assert limits.limit(in_sample, held_out) == pytest.approx(limit)
    assert limits.optimism(in_sample, held_out) == pytest.approx(optimism, rel=1e-6, abs=0)
    assert limits.enough(in_sample, held_out) == enough


def planted(generator, kind, documents, length, weight):
    """Rows of some documents, whose R² in the limit is `LIMIT` whatever the kind."""

    def draw(width):
        own = torch.randn(documents, length, width, generator=generator, dtype=torch.float64)
        if kind == "independent":
            return own
        if kind == "correlated":  # half of the variance is the document's
            shared = torch.randn(documents, 1, width, generator=generator, dtype=torch.float64)
            return (shared + own) / math.sqrt(2)
        return own * scale

    # heavy tails: a few rows are many times as large as others, in what goes in and in the noise
    scale = (torch.randn(documents, length, 1, generator=generator, dtype=torch.float64) / 2).exp()
    x, noise = draw(WIDTH).flatten(0, 1), draw(OUTPUTS).flatten(0, 1)
    return x, x @ weight + noise


def sides(generator, kind, documents, held_out, length):
    """Moments of eight folds of documents on each side."""
    random = torch.randn(WIDTH, OUTPUTS, generator=generator, dtype=torch.float64)
    weight = torch.linalg.qr(random).Q  # each output has variance 1 without its noise
    return [
        [Moments(WIDTH, OUTPUTS).update(*planted(generator, kind, count, length, weight)) for _ in range(8)]
        for count in (documents, held_out)
    ]


KINDS = ["independent", "correlated", "heavy"]


@pytest.mark.usefixtures("unchecked")  # hundreds of small calls: to check shapes would take most of the time
@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_limit_is_recovered_from_few_rows(kind):
    """25 draws of 16 rows an input, in documents of four: the interval covers the limit in about 95 of 100."""
    generator = torch.Generator().manual_seed(1)
    covered = 0
    raw, told = [], []
    for _ in range(25):
        train, test = sides(generator, kind, 5, 5, 4)
        measured = ceiling(train, test)
        covered += not measured.limit.excludes(LIMIT)
        raw.append(measured.r2 - LIMIT)
        told.append(measured.limit.value - LIMIT)
    assert covered >= 22
    # held out alone R² falls short of its limit; the two sides together do not
    assert sum(raw) / 25 < -0.03
    assert abs(sum(told) / 25) < 0.35 * abs(sum(raw) / 25)


def test_pure_noise_tends_to_nothing_and_not_to_what_it_shows():
    """The one that must not be found: outputs that have nothing to do with the inputs, fitted on ten rows an input."""
    generator = torch.Generator().manual_seed(3)
    folds = []
    for _ in range(16):
        x, y = (torch.randn(14, width, generator=generator, dtype=torch.float64) for width in (WIDTH, OUTPUTS))
        folds.append(Moments(WIDTH, OUTPUTS).update(x, y))
    measured = ceiling(folds[:8], folds[8:])
    assert measured.r2_train > 0.04  # the fit follows its rows
    assert measured.r2 < -0.04  # and misleads on others
    assert not measured.limit.excludes(0.0)


def test_without_enough_rows_a_ceiling_has_no_limit():
    train, test = sides(torch.Generator().manual_seed(4), "independent", 2, 50, 1)
    measured = ceiling(train, test)
    assert measured.limit is None
    assert measured.interval is not None


@pytest.mark.parametrize("confidence", [0.5, 0.99])
def test_the_limits_interval_is_of_the_confidence_asked_for(confidence):
    train, test = sides(torch.Generator().manual_seed(6), "independent", 20, 20, 1)
    usual, asked = ceiling(train, test).limit, ceiling(train, test, confidence=confidence).limit
    assert asked.value == usual.value
    assert (asked.half_width > usual.half_width) == (confidence > 0.95)
