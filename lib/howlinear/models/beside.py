"""A line beside a block's hidden units: a linear map of the block's input whose output is added to theirs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.models.ffn_sites import device_of, sites, width_of


class BesideLine(nn.Module):
    """A block of hidden units, and a linear map of its input beside them."""

    def __init__(self, units: nn.Module, line: nn.Module):
        """Hold both.

        Args:
            units: the block without the line.
            line: one layer of full rank, or a pair through fewer dimensions; see `line_layers`.
        """
        super().__init__()
        self.units = units
        self.line = line

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        """Their sum."""
        return self.units(x) + self.line(x)


def line_layers(width: int, rank: int | None) -> nn.Module:
    """A line of a rank, its weights undrawn; its constant is in the units' readout, if anywhere.

    Args:
        width: features that come in, and go out.
        rank: dimensions between; None is one layer of full rank.
    """
    if rank is None:
        return nn.Linear(width, width, bias=False)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))


def without_line(block: nn.Module) -> nn.Module:
    """The part of a block that has hidden units: the block itself, or what a line stands beside."""
    return block.units if isinstance(block, BesideLine) else block


def add_lines(model: PreTrainedModel, ranks: Mapping[int, int | None]) -> None:
    """Put lines beside the blocks of a model, their weights undrawn: for whoever loads them next.

    Args:
        model: the model, which changes.
        ranks: block → rank of its line; None is full rank.
    """
    for site in sites(model, list(ranks)) if ranks else []:
        with torch.device(device_of(site.output)):
            line = line_layers(width_of(model), ranks[site.block]).to(model.dtype)
        model.set_submodule(site.name, BesideLine(site.output, line))
