"""What tests of several ideas share."""

import pytest


@pytest.fixture
def more_rows():
    """As `rows`, but as many as it takes to choose among hidden units: token ids of shape (60, 32)."""
    from helpers.unit_rows import short_rows

    return short_rows()
