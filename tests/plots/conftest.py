"""Figures are drawn in the project's style, and closed after each test."""

import matplotlib.pyplot as plt
import pytest

from howlinear.plots import style


@pytest.fixture(autouse=True)
def styled():
    style.use()
    yield
    plt.close("all")
