"""What `capture` would keep of rows that a test has made."""

from howlinear.core.moments import Moments
from howlinear.instrument.capture import BlockCapture


def moments_of(x, y):
    return Moments(x.shape[1], y.shape[1]).update(x, y)


def capture_of(sample):
    """A block of these rows alone, all of them in its sample."""
    train, test = (
        [moments_of(sample.x[rows], sample.y[rows]) for rows in sample.folds(test=side)] for side in (False, True)
    )
    outputs = Moments(sample.y.shape[1]).update(sample.y[sample.test])
    return BlockCapture(train, test, outputs, sample)
