"""How many hidden units every block of a model keeps, and the model that keeps them, read out anew in closed form.

In which order a block's units can go, and at which price, is told by `units`: one forward and one backward pass say
what errors cost, one forward pass how units vary, and one swap a block how far the price is off. How many each block
keeps is one question for all blocks together (`budget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Int64
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.ideas.compression.budget import share_out
from howlinear.ideas.compression.divergence import divergences
from howlinear.ideas.compression.units import (
    Elimination,
    Stakes,
    UnitMoments,
    chosen_ridge,
    priced,
    refit,
    unit_moments,
)
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.replace import replace as replaced_for_good
from howlinear.models.units import readout, unit_count, unit_layers, with_units
from howlinear.text.rows import TokenRows

WAYS = 192  # numbers of units that a block may keep, evenly spaced
STAKED = 8_192  # tokens, spread over all to fit on, that say what errors cost
TRIED = 2_048  # tokens, likewise, on which each block is tried alone
NOTHING = 1e-6  # nats per token: what is below is the rounding of float32, by which no price can be told
ROWS_A_UNIT = 4  # fewer rows than this, and the units are not told apart


def eliminations_of(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], costs: Mapping[int, Stakes], progress: bool = False
) -> tuple[dict[int, Elimination], dict[int, UnitMoments]]:
    """In which order the hidden units of blocks can go at which price, and the moments to read the others out by.

    Args:
        model: the model; left as it was.
        ids: token ids to fit on, shape (n, seq_len).
        costs: block → what errors cost there.
        progress: show a bar.
    """
    moments = unit_moments(model, ids, {block: of_block.weight for block, of_block in costs.items()})
    eliminations = {}
    for site in tqdm(sites(model, list(costs)), disable=not progress, unit="block"):
        own = readout(model, site)
        centred = has_constant(model, site)
        moments[site.block].ridge = chosen_ridge(moments[site.block], own, costs[site.block].metric, centred)
        moments[site.block].join()
        eliminations[site.block] = priced(moments[site.block], own, costs[site.block].metric, centred)
    return measured(model, spread(ids, TRIED), eliminations, moments), moments


def measured(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    eliminations: Mapping[int, Elimination],
    moments: Mapping[int, UnitMoments],
) -> dict[int, Elimination]:
    """Prices multiplied, block by block, so that they are right where a quarter of the units is gone.

    The price takes errors as independent of what they cost, token by token. In the last blocks they are not: the tokens
    that are hard to give back are those that count, and the price is too low by a factor of two or three. One swap a
    block tells (`divergence`).

    Args:
        model: the model; left as it was.
        ids: token ids to try on, shape (n, seq_len).
        eliminations: block → the order in which its units go at which price.
        moments: block → the moments of all its units.
    """
    modules = {}
    expected = {}
    for site in sites(model, list(eliminations)):
        order = eliminations[site.block]
        count = len(order.order) - len(order.order) // 4
        modules[site.block] = thinned(model, site, order.kept(count), moments[site.block])
        expected[site.block] = float(order.price[-1 - count])
    found = divergences(model, modules, ids)
    scaled = {}
    for block, order in eliminations.items():
        told = min(expected[block], found[block]) > NOTHING  # a block that gives a quarter for nothing tells no factor
        factor = found[block] / expected[block] if told else 1.0
        scaled[block] = replace(order, price=order.price * factor)
    return scaled


def spread(ids: Int64[Tensor, "n seq_len"], tokens: int) -> Int64[Tensor, "some seq_len"]:
    """Sequences of about so many tokens, evenly spread over all."""
    return ids[:: max(1, ids.numel() // tokens)]


def units_for(
    model: PreTrainedModel, eliminations: Mapping[int, Elimination], max_parameters: float, alike: bool = False
) -> dict[int, int]:
    """How many hidden units each block keeps, so that the model meets a budget and is priced least.

    Args:
        model: the model.
        eliminations: block → the prices of its units.
        max_parameters: the share of all parameters that a copy may have at most.
        alike: every block keeps as many.

    Raises:
        InputError: a share that is none or that cannot be met.
    """
    chosen = sites(model, list(eliminations))
    budget = budget_for(model, chosen, max_parameters)
    ways = {site.block: ways_of(model, site, eliminations[site.block].price.numpy()) for site in chosen}
    return _alike(ways, budget) if alike else _shared_out(ways, budget)


def total_price(eliminations: Mapping[int, Elimination], counts: Mapping[int, int]) -> float:
    """The price of all blocks together, nats per token.

    Args:
        eliminations: block → the prices of its units.
        counts: block → how many it keeps.
    """
    return sum(float(eliminations[block].price[-1 - count]) for block, count in counts.items())


def fewer_units(
    model: PreTrainedModel,
    eliminations: Mapping[int, Elimination],
    moments: Mapping[int, UnitMoments],
    counts: Mapping[int, int],
) -> PreTrainedModel:
    """A copy of a model whose blocks keep so many units each, read out anew.

    Args:
        model: the model; left as it was.
        eliminations: block → the order in which its units go.
        moments: block → the moments of all its units.
        counts: block → how many it keeps.
    """
    modules = {}
    for site in sites(model, list(counts)):
        kept = eliminations[site.block].kept(counts[site.block])
        modules[site.block] = thinned(model, site, kept, moments[site.block])
    return replaced_for_good(model, modules)


def thinned(model: PreTrainedModel, site: Site, kept: Int64[Tensor, " k"], moments: UnitMoments) -> nn.Module:
    """A block with some of its units, read out anew."""
    new = refit(moments, readout(model, site), kept, has_constant(model, site))
    return with_units(model, site, kept, new)


def ways_of(model: PreTrainedModel, site: Site, price: np.ndarray) -> pd.DataFrame:
    """The numbers of hidden units that a block may keep.

    Args:
        model: the model.
        site: of the block.
        price: what it costs that so many units are gone, from none to all, shape (m + 1,).

    Returns:
        A row a number, all units first: `units`, the block's `parameters` with so many, and their `price`.
    """
    count = unit_count(model, site)
    layers = unit_layers(model, site)
    constant = 0 if layers[-1].bias is None else layers[-1].bias.numel()
    of_a_unit = (sum(parameter.numel() for layer in layers for parameter in layer.parameters()) - constant) // count
    # the readout's constant stays, and a line that stands beside the units already
    fixed = sum(parameter.numel() for parameter in site.parameters()) - count * of_a_unit
    units = np.arange(count, 0, -max(1, count // WAYS))
    return pd.DataFrame({"units": units, "parameters": units * of_a_unit + fixed, "price": price[count - units]})


def has_constant(model: PreTrainedModel, site: Site) -> bool:
    """Whether a block's readout has a bias: the new one has one if the own had, so that the family stays what it is."""
    return unit_layers(model, site)[-1].bias is not None


def _shared_out(ways: Mapping[int, pd.DataFrame], budget: int) -> dict[int, int]:
    places = share_out(ways, budget)
    return {block: int(ways[block]["units"].iloc[place]) for block, place in places.items()}


def _alike(ways: Mapping[int, pd.DataFrame], budget: int) -> dict[int, int]:
    """The most units that all blocks may keep alike."""
    for count in next(iter(ways.values()))["units"]:
        if sum(int(table.set_index("units")["parameters"][count]) for table in ways.values()) <= budget:
            return dict.fromkeys(ways, int(count))
    raise InputError(f"{budget:,} parameters for {len(ways)} blocks are too few for one hidden unit in each")


def budget_for(model: PreTrainedModel, chosen: list[Site], max_parameters: float) -> int:
    """How many parameters the blocks may have together.

    Args:
        model: the model.
        chosen: its blocks that give parameters up.
        max_parameters: the share of all parameters that a copy may have at most.

    Raises:
        InputError: a share that is none, or that not even one hidden unit a block would meet.
    """
    if not 0 < max_parameters < 1:
        raise InputError(f"a share of {max_parameters:g} of all parameters: give one between 0 and 1, as 0.9")
    total = model.num_parameters()
    outside, least = _outside_and_least(model, chosen)
    budget = int(max_parameters * total) - outside
    if budget < least:
        raise InputError(
            f"{max_parameters:g} of all parameters cannot be met: {outside:,} of {total:,} lie outside the "
            f"feed-forward blocks, and these need {least:,}; give at least {(outside + least) / total + 5e-4:.3f}"
        )
    return budget


def least_share(model: PreTrainedModel) -> float:
    """The share of all parameters that a model has left with a single hidden unit in every block.

    Raises:
        InputError: a family whose hidden units cannot be reached.
    """
    return sum(_outside_and_least(model, sites(model))) / model.num_parameters()


def _outside_and_least(model: PreTrainedModel, chosen: list[Site]) -> tuple[int, int]:
    """How many parameters lie outside some blocks, and how many these have with a single hidden unit each."""
    inside = sum(parameter.numel() for site in chosen for parameter in site.parameters())
    nothing = {site.block: np.zeros(unit_count(model, site) + 1) for site in chosen}
    least = sum(int(ways_of(model, site, nothing[site.block])["parameters"].min()) for site in chosen)
    return model.num_parameters() - inside, least


def check_rows(model: PreTrainedModel, chosen: list[Site], rows: TokenRows) -> None:
    """Refuse a text by which units cannot be told apart.

    Raises:
        InputError: too few rows to fit on, or too few sequences held out.
    """
    widest = max(unit_count(model, site) for site in chosen)
    train = rows.ids[~rows.test].numel()
    held_out = int(rows.test.sum())
    if train < ROWS_A_UNIT * widest or held_out < 2 or rows.ids.shape[1] < 2:
        raise InputError(
            f"{train:,} rows to fit on and {held_out} sequences held out are too few to choose among {widest:,} hidden "
            f"units by: give {ROWS_A_UNIT * widest:,} rows to fit on or more, and two sequences of two tokens held out"
        )
