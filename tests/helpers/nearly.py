"""Comparisons of numbers computed twice: equal up to the order in which a processor adds them.

Bitwise equality is only for copies. Two models with the same weights lie at different places in memory, and two ways
to compute a sum add in different orders; some processors then round differently.
"""

import pytest
import torch


def assert_same_outputs(one, other):
    """Float32 outputs of two models with the same weights, or of one model reached in two ways."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def assert_same_profile(one, other, rel=1e-9):
    """Two profiles: floats to a relative tolerance, everything else exactly."""
    assert_same_tree(one.to_dict(), other.to_dict(), rel)


def assert_same_tree(one, other, rel=1e-9, at="it"):
    """Nested dicts and lists: floats to a relative tolerance, everything else exactly."""
    assert type(one) is type(other), at
    if isinstance(one, dict):
        assert one.keys() == other.keys(), at
        for key in one:
            assert_same_tree(one[key], other[key], rel, f"{at}[{key!r}]")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), at
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same_tree(left, right, rel, f"{at}[{i}]")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=rel, nan_ok=True), at
    else:
        assert one == other, at
