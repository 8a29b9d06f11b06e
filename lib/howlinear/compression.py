"""Replacing several blocks together, within a budget of perplexity.

The paper (arXiv 2606.19379) replaces one block at a time by a d × d map, 8 times smaller than a GELU block. Here blocks
are chosen greedily by measured loss, with the maps refitted on the inputs that the blocks already replaced now send
them. Candidates come in the order of `felt`. Everything is chosen on the text to fit on, and confirmed on held-out
text. What one map alone keeps is in `reduced`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite

import torch
from jaxtyping import Int64
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.capture import hooked
from howlinear.ceilings import AffineMap, fit
from howlinear.corpora import TokenRows
from howlinear.errors import InputError
from howlinear.felt import feel
from howlinear.models import Site, check_causal, sites, swap
from howlinear.moments import Moments
from howlinear.perplexity import Change, change, losses

JUDGES = 24
"""Sequences, spread over all to fit on, by which candidates are compared and a budget is checked."""


def fit_maps(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    blocks: Sequence[int],
    maps: Mapping[int, AffineMap] | None = None,
    batch_size: int = 16,
) -> dict[int, AffineMap]:
    """The least-squares map of each block, in a model where `maps` stand in for blocks already.

    A block behind a replaced one gets shifted inputs x̃. Its map is fitted from them to the outputs y that the *whole*
    model gives at the same token, so that it also makes good what the maps before it got wrong.

    Args:
        model: the model; left as it was.
        ids: token ids to fit on, shape (n, seq_len).
        blocks: which blocks to fit.
        maps: block → map, in place while the inputs are seen; none by default.
        batch_size: sequences in a forward pass.

    Raises:
        InputError: too few rows for the width.
    """
    maps, moments, outputs, inputs = maps or {}, {}, {}, {}
    for batch in ids.split(batch_size):
        batch = batch.to(model.device)
        for seen, standing in ((outputs, {}), (inputs, maps)):
            if seen is inputs and not maps:
                continue

            def keep(site: Site, x: Tensor, y: Tensor, seen=seen) -> None:
                seen[site.block] = (x.flatten(0, -2), y.flatten(0, -2))

            with torch.no_grad(), swap(model, standing), hooked(sites(model, list(blocks)), keep):
                model.base_model(input_ids=batch, use_cache=False)
        for block, (x, y) in outputs.items():
            x = inputs[block][0] if maps else x
            moments.setdefault(block, Moments(x.shape[1], y.shape[1], x.device)).update(x, y)
    return {block: fit(found.to("cpu"))[0] for block, found in moments.items()}


@dataclass(frozen=True)
class Step:
    """One more block replaced.

    Attributes:
        block: the block that this step replaced.
        maps: every block replaced so far → its map now.
        base: loss of the whole model on the judging sequences, nats per token.
        loss: loss with `maps`.
        naive: loss with the same blocks and the maps that each has alone; never below `loss`.
    """

    block: int
    maps: dict[int, AffineMap]
    base: float
    loss: float
    naive: float

    @property
    def delta(self) -> float:
        """Change of perplexity on the judging sequences."""
        return exp(self.loss) - exp(self.base)


def greedy(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    maps: Mapping[int, AffineMap],
    order: Sequence[int],
    candidates: int = 4,
    judges: int = JUDGES,
) -> Iterator[Step]:
    """Replace blocks one after another, each time the one of the next `candidates` that costs least in loss.

    After each choice all maps are refitted on the inputs they get now (`fit_maps`). Of the refitted maps, the maps as
    they were and the maps that each block has alone, those with the lowest loss stay: refitting never does harm on
    the sequences that judge.

    Args:
        model: the model; as it was after every step.
        ids: token ids to fit on, shape (n, seq_len).
        maps: block → the map it has alone.
        order: the blocks, most promising first.
        candidates: how many of those left to try at each step.
        judges: sequences to compare losses on, spread over `ids`.

    Yields:
        A `Step` per block, until none is left.

    Raises:
        InputError: fewer than one candidate or judge, or no block.
    """
    if candidates < 1 or judges < 1 or not order:
        raise InputError(
            f"{candidates} candidates of {len(order)} blocks, compared on {judges} sequences: give at least one of each"
        )
    judging = ids[:: -(-len(ids) // judges)]

    def loss(replaced: Mapping[int, AffineMap]) -> float:
        with swap(model, replaced):
            return float(losses(model, judging).mean())

    base, left, chosen = loss({}), list(order), {}
    while left:
        tried = {block: loss(chosen | {block: maps[block]}) for block in left[:candidates]}
        block = min(tried, key=tried.__getitem__)
        left.remove(block)
        alone = {other: maps[other] for other in [*chosen, block]}
        naive = loss(alone) if chosen else tried[block]
        options = [(tried[block], chosen | {block: maps[block]}), (naive, alone)]
        if chosen:
            refitted = fit_maps(model, ids, list(alone), options[0][1])
            options.append((loss(refitted), refitted))
        best, chosen = min(options, key=lambda option: option[0])
        yield Step(block, chosen, base, best, naive)


@dataclass(frozen=True)
class Plan:
    """Which blocks to replace, by what, and what it costs on held-out text.

    Attributes:
        maps: block → its map.
        base: perplexity before.
        perplexity: perplexity after.
        delta: after minus before, with its interval.
        steps: per step in order, the `block` and the change of perplexity `dppl` where candidates were judged.
    """

    maps: dict[int, AffineMap]
    base: float
    perplexity: float
    delta: Change
    steps: list[dict[str, int | float]]


def compress_to(
    model: PreTrainedModel, rows: TokenRows, max_dppl: float, candidates: int = 4, progress: bool = False
) -> Plan:
    """Replace as many blocks by maps as a budget of perplexity allows.

    Chosen and refitted on the rows to fit on (`greedy`, in the order of `felt`), then confirmed on the held-out rows:
    last steps that do not keep the budget there are dropped.

    Args:
        model: the model; left as it was. Blocks that are linear layers already are passed over.
        rows: packed sequences with their split.
        max_dppl: the most that perplexity may rise.
        candidates: blocks to try at each step.
        progress: show a bar.

    Raises:
        InputError: a budget that is not finite, or that not even the cheapest block keeps (says which, and its cost);
            nothing left to replace; or an empty side.
    """
    check_causal(model)
    free = [site.block for site in sites(model) if not site.linear]
    train, test = rows.ids[~rows.test], rows.ids[rows.test]
    if not isfinite(max_dppl) or not free or not len(train) or len(test) < 2:
        raise InputError(
            f"a budget of {max_dppl} for {len(free)} blocks that are not replaced yet, {len(train)} sequences to fit "
            f"on and {len(test)} held out: it takes a finite budget, a block, and sequences on both sides"
        )
    maps = fit_maps(model, train, free)
    costs = {block: felt.cost for block, felt in feel(model, maps, train).items()}
    order = sorted(free, key=costs.__getitem__)
    steps = _affordable(model, train, maps, order, max_dppl, candidates, progress)
    base = losses(model, test)
    for kept in range(len(steps), 0, -1):
        with swap(model, steps[kept - 1].maps):
            after = losses(model, test)
        delta = change(base, after)
        if delta.delta <= max_dppl:
            told = [{"block": step.block, "dppl": step.delta} for step in steps[:kept]]
            return Plan(steps[kept - 1].maps, exp(base.mean()), exp(after.mean()), delta, told)
    raise _impossible(max_dppl, steps[0].block, delta.delta, "held out")


def _affordable(model, ids, maps, order, max_dppl, candidates, progress) -> list[Step]:
    """The greedy steps within the budget; all blocks are tried if none of the first candidates is."""
    for tries in sorted({candidates, len(order)}):
        steps = []
        for step in tqdm(greedy(model, ids, maps, order, tries), total=len(order), disable=not progress, unit="block"):
            if step.delta > max_dppl:
                break
            steps.append(step)
        if steps:
            return steps
    raise _impossible(max_dppl, step.block, step.delta, "to fit on")


def _impossible(max_dppl: float, block: int, cost: float, text: str) -> InputError:
    return InputError(
        f"no block can be replaced within {max_dppl:+.3g} of perplexity: the cheapest, block {block}, costs "
        f"{cost:+.3g} on the text {text}; allow more"
    )
