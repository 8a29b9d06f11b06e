"""How many hidden units every block keeps: a budget of parameters allocated among blocks at the least cost.

The order in which a block's units can go, and their prices, follow from `units`: one forward and one backward pass give
the cost of errors, one forward pass the moments of units, and one swap per block the error of the price. Every block
then has a table of sizes, each with its number of parameters and its price in nats. Choosing one size per block, at the
least total price within a budget, is the multiple-choice knapsack problem (Sinha & Zoltners 1979, "The multiple-choice
knapsack problem"), solved here by dynamic programming over the budget, block after block.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core.moments import add_gram
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.loss_gradients import loss_gradients
from howlinear.ideas.compression.signals import divergences
from howlinear.ideas.compression.units import (
    Elimination,
    ErrorCost,
    UnitMoments,
    choose_ridge,
    eliminate,
    position_weights,
    refit,
    root_of,
    unit_grams,
)
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.shards import read
from howlinear.models.units import readout, unit_count, unit_layers, with_units

SIZES = 192  # numbers of units that a block may keep, evenly spaced
COST_TOKENS = 8_192  # spread over the training side, on which the cost of errors is estimated
CALIBRATION_TOKENS = 2_048  # likewise, on which each block is swapped alone; of a short text, half of its tokens
NOTHING = 1e-6  # nats per token: anything below is rounding of float32 and calibrates no price

CELLS = 20_000
"""Number of steps, about, in which a larger saving is counted."""


# --- What it costs to take units away


@once
def costs_of(calibration: Calibration) -> Mapping[int, ErrorCost]:
    """Compute what errors at the output of each block cost, by one forward and one backward pass."""
    costs = calibration.of_blocks(ErrorCost, "costs")
    if set(costs) == set(calibration.blocks):
        return costs
    ids = spread(calibration.ids, COST_TOKENS)
    predicted = ids[:, 1:].numel()
    width = width_of(calibration.model)
    sums: dict[int, tuple[Tensor, Tensor]] = {}  # of unfinished blocks: Σ g gᵀ, and Σ ‖g‖² by position

    def add(block: int, _: Tensor, __: Tensor, g: Tensor) -> None:
        if block not in sums:
            shapes = (width, width), (ids.shape[1],)
            sums[block] = tuple(torch.zeros(shape, dtype=torch.float64, device="cpu") for shape in shapes)
        metric, squares = sums[block]
        add_gram(metric, g.flatten(0, 1).contiguous())
        squares += g.square().sum((0, 2))

    def finish(block: int) -> None:
        metric, squares = sums.pop(block)
        costs[block] = ErrorCost(metric / predicted, position_weights(squares))

    loss_gradients(calibration.model, ids, calibration.blocks, add, max(1, calibration.batch_size // 4), finish)
    return costs


@once
def eliminations_of(calibration: Calibration) -> tuple[Mapping[int, Elimination], Mapping[int, UnitMoments]]:
    """Compute for each block the order and prices in which its units can go, and the moments to read out the others."""
    model = calibration.model
    costs = costs_of(calibration)
    moments = calibration.of_blocks(UnitMoments, "moments")
    eliminations = calibration.of_blocks(Elimination, "eliminations")
    weights = {block: cost.weight for block, cost in costs.items() if block not in eliminations}
    batch_size = max(1, calibration.batch_size // 2)
    of_blocks = unit_grams(model, calibration.ids, weights, batch_size, calibration.work) if weights else ()
    for site, grams in tqdm(of_blocks, total=len(weights), disable=not calibration.progress, unit="block"):
        block = site.block
        own = readout(model, site)
        metric = costs[block].metric
        centred = has_constant(model, site)
        ridge = choose_ridge(grams, own, metric, centred)
        moments[block] = UnitMoments(sum(grams), ridge)
        # in nats per token: ½ tr(M E[w r rᵀ]) for the errors r that are left
        eliminations[block] = eliminate(moments[block].covariance(centred), own.weight @ root_of(metric))
    return calibrate_prices(calibration, eliminations, moments), moments


def calibrate_prices(
    calibration: Calibration, eliminations: Mapping[int, Elimination], moments: Mapping[int, UnitMoments]
) -> Mapping[int, Elimination]:
    """Scale each block's prices so that they are right if a quarter of its units is gone."""
    scaled = calibration.of_blocks(Elimination, "prices")
    if set(scaled) == set(eliminations):
        return scaled
    # A price assumes that, token by token, errors are independent of what they cost. In the last blocks they are not:
    # the tokens that are hard to reproduce are those that count, and the price is too low by a factor of two or three,
    # which one swap per block measures.
    counts = {block: len(found.order) - len(found.order) // 4 for block, found in eliminations.items()}
    smaller = Thinned(calibration.model, eliminations, moments, counts)
    some = spread(calibration.ids, min(CALIBRATION_TOKENS, calibration.ids.numel() // 2))
    measured = divergences(calibration.model, smaller, some, max(1, calibration.batch_size // 4))
    for block, found in eliminations.items():
        predicted = float(found.price[-1 - counts[block]])
        # a block that loses a quarter of its units at no cost has no factor
        informative = min(predicted, measured[block]) > NOTHING
        factor = measured[block] / predicted if informative else 1.0
        scaled[block] = replace(found, price=found.price * factor)
    return scaled


def spread(ids: Int64[Tensor, "n seq_len"], tokens: int) -> Int64[Tensor, "some seq_len"]:
    """Select sequences of about `tokens` tokens, evenly spread over all."""
    return ids[:: max(1, ids.numel() // tokens)]


# --- Blocks with fewer units


class Thinned(UserDict[int, nn.Module]):
    """Mapping from block to the block with fewer units, read out anew, which is built at each access."""

    def __init__(
        self,
        model: PreTrainedModel,
        eliminations: Mapping[int, Elimination],
        moments: Mapping[int, UnitMoments],
        counts: Mapping[int, int],
    ):
        """Store what blocks are built from; `counts` is block → how many units it keeps."""
        super().__init__(counts)
        self.site_of = {site.block: site for site in sites(model, list(counts))}
        self.model = model
        self.eliminations = eliminations
        self.moments = moments

    def __getitem__(self, block: int) -> nn.Module:
        """Build the smaller block."""
        model, site = self.model, self.site_of[block]
        kept = self.eliminations[block].kept(self.data[block])
        parts = {site.input_name: site.input, site.name: site.output}  # one module, or a pair of layers
        with read(model, [f"{path}.{name}" for path, part in parts.items() for name, _ in part.named_parameters()]):
            new = refit(self.moments[block], readout(model, site), kept, has_constant(model, site))
            return with_units(model, site, kept, new)


def has_constant(model: PreTrainedModel, site: Site) -> bool:
    """Whether a block's readout has a bias; the new readout has one only then, so that the architecture is kept."""
    return unit_layers(model, site)[-1].bias is not None


# --- Sizes and budgets


def size_options(
    model: PreTrainedModel, site: Site, price: Float[np.ndarray, " m_and_none"], multiple: int = 1
) -> pd.DataFrame:
    """Tabulate how many `units` a block may keep, the most first, and the `parameters` and `price` of each number."""
    count = unit_count(model, site)
    of_a_unit, fixed = unit_sizes(model, site)
    step = multiple * max(1, count // (multiple * SIZES))
    units = np.arange(count - count % multiple, 0, -step)
    return pd.DataFrame({"units": units, "parameters": units * of_a_unit + fixed, "price": price[count - units]})


def unit_sizes(model: PreTrainedModel, site: Site) -> tuple[int, int]:
    """Count the parameters that go with a hidden unit of a block, and those that stay, as its readout's bias does."""
    whole = sum(parameter.numel() for parameter in site.parameters())
    bias = unit_layers(model, site)[-1].bias
    count = unit_count(model, site)
    of_a_unit = (whole - (0 if bias is None else bias.numel())) // count
    return of_a_unit, whole - count * of_a_unit


def allocate_units(
    model: PreTrainedModel,
    eliminations: Mapping[int, Elimination],
    max_parameters: float,
    alike: bool = False,
    multiple: int = 1,
) -> dict[int, int]:
    """Choose how many hidden units each block keeps, at the least total price within a budget."""
    chosen = sites(model, list(eliminations))
    budget = budget_for(model, chosen, max_parameters, multiple)
    options = {
        site.block: size_options(model, site, eliminations[site.block].price.numpy(), multiple) for site in chosen
    }
    if not alike:
        places = allocate_budget(options, budget)
        return {block: int(options[block]["units"].iloc[place]) for block, place in places.items()}
    # the largest size of the narrowest block that is within the budget when all blocks have it
    narrowest = min(options.values(), key=lambda table: table["units"].max())
    of_a_unit, fixed = (sum(sizes) for sizes in zip(*(unit_sizes(model, site) for site in chosen), strict=True))
    for count in narrowest["units"]:
        if count * of_a_unit + fixed <= budget:
            return dict.fromkeys(options, int(count))
    raise InputError(f"{budget:,} parameters for {len(options)} blocks are too few for one hidden unit in each")


def allocate_budget(options: Mapping[int, pd.DataFrame], budget: int) -> dict[int, int]:
    """Choose a size for every block, of the least total price within a budget: block → its row in its table."""
    sizes = {block: table["parameters"].to_numpy() for block, table in options.items()}
    whole = sum(int(of_block.max()) for of_block in sizes.values())
    to_save = max(0, whole - budget)
    savings = {block: of_block.max() - of_block for block, of_block in sizes.items()}
    # The knapsack is filled in cells of the common divisor of all savings, which is exact, or of one part in `CELLS` of
    # what is to be saved if that is more; then every block may save up to a cell more than is counted for it.
    divisor = int(np.gcd.reduce(np.concatenate(list(savings.values()))))
    cell = max(1, divisor, to_save // CELLS)
    cells = -(-to_save // cell)

    # least[c]: the least price at which the blocks so far save c cells or more; chosen[block][c]: the last block's size
    least = np.full(cells + 1, np.inf)
    least[0] = 0
    chosen = {}
    saved = {}
    place = np.arange(cells + 1)
    for block, table in options.items():
        saved[block] = savings[block] // cell
        before = least
        least = np.full(cells + 1, np.inf)
        chosen[block] = np.zeros(cells + 1, dtype=int)
        for size, price in enumerate(table["price"]):
            with_this = before[np.maximum(place - saved[block][size], 0)] + price
            better = with_this < least
            least[better] = with_this[better]
            chosen[block][better] = size

    if not np.isfinite(least[-1]):  # the cells are too coarse to count the saving
        return {block: int(of_block.argmin()) for block, of_block in sizes.items()}

    # from the last block back to the first
    left = cells
    places = {}
    for block in reversed(list(options)):
        places[block] = int(chosen[block][left])
        left = max(0, left - int(saved[block][places[block]]))
    return {block: places[block] for block in options}


def budget_for(model: PreTrainedModel, chosen: list[Site], max_parameters: float, multiple: int = 1) -> int:
    """Count the parameters that the chosen blocks may have together."""
    if not 0 < max_parameters < 1:
        raise InputError(f"a share of {max_parameters:g} of all parameters: give one between 0 and 1, as 0.9")
    total = model.num_parameters()
    outside, least = _outside_and_least(model, chosen, multiple)
    budget = int(max_parameters * total) - outside
    if budget < least:
        raise InputError(
            f"{max_parameters:g} of all parameters cannot be met: {outside:,} of {total:,} lie outside the "
            f"feed-forward blocks, and these need {least:,}; give at least {(outside + least) / total + 5e-4:.3f}"
        )
    return budget


def least_share(model: PreTrainedModel, blocks: list[int] | None = None, multiple: int = 1) -> float:
    """Compute the share of all parameters left if all blocks, or some, have the smallest of their `size_options`."""
    return sum(_outside_and_least(model, sites(model, blocks), multiple)) / model.num_parameters()


def _outside_and_least(model: PreTrainedModel, chosen: list[Site], multiple: int) -> tuple[int, int]:
    """Count the parameters outside the chosen blocks, and those of these blocks at their smallest size."""
    inside = 0
    least = 0
    for site in chosen:
        inside += sum(parameter.numel() for parameter in site.parameters())
        unpriced = np.zeros(unit_count(model, site) + 1)
        least += int(size_options(model, site, unpriced, multiple)["parameters"].min())
    return model.num_parameters() - inside, least
