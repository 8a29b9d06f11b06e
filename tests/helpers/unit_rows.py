"""A short text of random tokens, the values in a small model's blocks on its rows, and planted units with a readout."""

import numpy as np
import torch

from howlinear.core.ceilings import AffineMap
from howlinear.ideas.compression.allocate import costs_of
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import parameters
from howlinear.models.units import units_hooked
from howlinear.text.rows import TokenRows

UNITS, OUT = 24, 5


def short_rows():
    """Random token ids, shape (60, 32), split into two sides of three folds."""
    ids = torch.randint(80, (60, 32), generator=torch.Generator().manual_seed(1))
    return TokenRows.from_ids(ids, folds=3)


@torch.no_grad()
def seen(model, ids, blocks=None):
    """Block → its hidden units `h`, inputs `x` and outputs `y`, in row order."""
    listened = sites(model, blocks)
    kept = {site.block: {} for site in listened}

    def keep_units(site, h):
        kept[site.block]["h"] = h.flatten(0, -2).double()

    def keep(site, x, y):
        kept[site.block] |= {"x": x.flatten(0, -2).double(), "y": y.flatten(0, -2).double()}

    with units_hooked(model, listened, keep_units), hooked(listened, keep):
        model.base_model(input_ids=ids, use_cache=False)
    return kept


def share_without(model, *sizes):
    """The share of a model's parameters that is left without so many."""
    return 1 - sum(sizes) / parameters(model)


def hush(*modules, bias=0.0):
    """Make sub-layers write a constant `bias`: the last layer of each gets weights of 0 and this bias."""
    for module in modules:
        last = [part for part in module.modules() if hasattr(part, "weight")][-1]
        for parameter in last.parameters():
            parameter.data.fill_(bias if parameter.ndim == 1 else 0.0)


def weighted_rows(calibration, block):
    """The weight of every row of a block."""
    return costs_of(calibration)[block].weight.repeat(len(calibration.ids))


def correlated(seed=0, rows=400, units=UNITS):
    """Rows of correlated units that are not centred, shape (rows, units)."""
    generator = np.random.default_rng(seed)
    return torch.tensor(generator.normal(size=(rows, units)) @ generator.normal(size=(units, units)) + 3)


def own_readout(units=UNITS, seed=1, bias=True):
    generator = np.random.default_rng(seed)
    drawn = torch.tensor(generator.normal(size=units * OUT).reshape(units, OUT))
    return AffineMap(drawn, torch.tensor(generator.normal(size=OUT)) * bias)


def least_squares_loss(h, y, kept, weight, constant=True):
    """Σ w ‖y − R h_K − c‖² / Σ w of the best readout, by `lstsq` on rows."""
    columns = h[:, kept].numpy()
    if constant:
        columns = np.concatenate([columns, np.ones((len(h), 1))], 1)
    root = np.sqrt(weight.numpy())[:, None]
    solution = np.linalg.lstsq(columns * root, y.numpy() * root, rcond=None)[0]
    return float(np.square((y.numpy() - columns @ solution) * root).sum() / weight.sum())
