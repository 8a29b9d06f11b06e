"""The data of notebook 00's figures: a cloud of rows with its line, and a toy neuron.

The method itself is in the notebook, in thirty lines of torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from howlinear.errors import InputError

SLICES = 10
POINTS = 99
QUANTILES = norm.ppf((np.arange(POINTS) + 0.5) / POINTS)
"""Quantiles of the standard normal distribution at evenly spaced probabilities: a sample without noise."""


def cloud(
    across: Float[Tensor, "n 1"], up: Float[Tensor, "n 1"], line: Float[Tensor, "n 1"], most: int = 1_000
) -> pd.DataFrame:
    """Tabulate rows as points of a scatter plot, with the means of `across` and `up` in each of ten equal slices."""
    if len(across) < SLICES:
        raise InputError(f"{len(across)} rows for {SLICES} slices: give more rows")
    columns = {"across": across, "up": up, "line": line}
    table = pd.DataFrame({name: column[:, 0].numpy() for name, column in columns.items()})
    order = table["across"].rank(method="first")
    slices = table.groupby(pd.qcut(order, SLICES, labels=False))
    table["middle"] = slices["across"].transform("mean")
    table["mean"] = slices["up"].transform("mean")
    kept = np.linspace(0, len(table) - 1, min(most, len(table))).astype(int)
    return table.iloc[kept].reset_index(drop=True)


@dataclass(frozen=True)
class Toy:
    """A neuron with one input, and the best line through its outputs."""

    points: pd.DataFrame  # a row per point: `x`, `y` and `line`
    r2: float  # share of the variance of y that the line explains, over these points


def toy_neuron(bend: float, width: float, centre: float = 0.0) -> Toy:
    """Evaluate the neuron y = x / (1 + exp(−bend · x)) on inputs from a normal distribution."""
    if bend < 0 or width <= 0:
        raise InputError(f"bend {bend}, width {width}: give a bend of 0 or more and a width above 0")
    # Swish (Ramachandran et al. 2017, "Searching for activation functions"): without bend it is the line x / 2, with
    # bend 1 the SiLU of llama, with 1.7 nearly GELU, and with ever more bend it tends to ReLU
    x = centre + width * QUANTILES
    y = x * expit(bend * x)
    slope, intercept = np.polyfit(x, y, 1)
    line = slope * x + intercept
    left = np.square(y - line).sum()
    r2 = 1 - left / np.square(y - y.mean()).sum()
    return Toy(pd.DataFrame({"x": x, "y": y, "line": line}), float(r2))
