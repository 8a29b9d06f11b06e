"""Replacing several blocks together, within a budget of perplexity.

The paper (arXiv 2606.19379) replaces one block at a time by a d × d map, 8 times smaller than a GELU block. Here blocks
are chosen greedily by measured loss, with the maps refitted on the inputs that the blocks already replaced now send
them. Candidates are tried in the order of their `price`. Blocks and maps are chosen on the training side; held-out text
says where to stop within a budget, and what the chosen blocks cost. For maps of lower rank see `reduced_rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.costs import Outcome, swap_cost, timed_losses
from howlinear.ideas.compression.reduced_rank import ffn_parameters
from howlinear.ideas.compression.signals import price
from howlinear.instrument.as_rows import rows_of
from howlinear.instrument.capture import hooked
from howlinear.instrument.layerwise import open_given
from howlinear.instrument.perplexity import change, held_out, losses
from howlinear.models.checks import check_count, check_flags, check_number, undisturbed
from howlinear.models.ffn_sites import Site, device_of, sites
from howlinear.models.forward import running, trunk
from howlinear.models.layerwise import Layerwise
from howlinear.models.load import check_causal
from howlinear.models.shards import is_on_disk
from howlinear.models.swap import swap
from howlinear.models.work import StepFiles, open_work
from howlinear.text.rows import TokenRows, check
from howlinear.text.unpad import without_padding

TRIAL_SEQUENCES = 24
"""Number of trial sequences, spread over the training side, on which candidates are compared and budgets checked."""


def fit_maps(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    blocks: Sequence[int],
    maps: Mapping[int, AffineMap] | None = None,
    batch_size: int = 16,
) -> dict[int, AffineMap]:
    """Fit the least-squares map of each block, in a model in which `maps` already replace some blocks.

    A block behind a replaced one gets shifted inputs x̃. Its map is fitted from them to the outputs y that the *whole*
    model gives at the same token, so that it also corrects the errors of the maps before it.
    """
    maps = maps or {}
    batches = [batch.to(device_of(model)) for batch in ids.split(batch_size)]
    moments: dict[int, Moments] = {}

    def add(some: Sequence[int], run_whole: Callable[[], None], run_shifted: Callable[[], None]) -> None:
        of_whole = _rows_of(model, some, {}, run_whole)
        of_shifted = _rows_of(model, some, maps, run_shifted) if maps else of_whole
        for block in some:
            for (x, _), (_, y) in zip(of_shifted[block], of_whole[block], strict=True):
                if block not in moments:
                    moments[block] = Moments(x.shape[1], y.shape[1], x.device)
                moments[block].update(x, y)

    if not is_on_disk(model):
        last = sites(model, list(blocks))[-1]
        for batch in batches:
            run = partial(trunk, model, batch, last)
            add(blocks, run, run)
        return {block: fit(moments[block].cpu())[0] for block in blocks}

    # with the weights of one layer and the moments of one block in memory at a time
    fitted: dict[int, AffineMap] = {}
    whole = Layerwise(model, batches)
    shifted = Layerwise(model, batches) if maps else whole
    for number in range(max(blocks) + 1):
        some = [number] if number in blocks else []
        add(some, whole.advance, shifted.advance)
        for block in some:
            fitted[block], _ = fit(moments.pop(block).cpu())
    return {block: fitted[block] for block in blocks}


@torch.no_grad()
def _rows_of(
    model: PreTrainedModel, blocks: Sequence[int], maps: Mapping[int, AffineMap], run: Callable[[], None]
) -> dict[int, list[tuple[Tensor, Tensor]]]:
    """Block → its input and output rows, batch by batch, in a run of the model while `maps` are in place."""
    rows: dict[int, list[tuple[Tensor, Tensor]]] = {block: [] for block in blocks}

    def keep(site: Site, x: Tensor, y: Tensor) -> None:
        rows[site.block].append((x.flatten(0, -2), y.flatten(0, -2).clone()))  # Falcon adds attention to y in place

    with swap(model, maps), hooked(sites(model, list(blocks)) if blocks else [], keep):
        run()
    return rows


@dataclass(frozen=True)
class Step:
    """One more block replaced."""

    block: int  # the one that this step replaced
    maps: dict[int, AffineMap]  # every block replaced so far → its map now
    base: float  # loss of the whole model on the trial sequences, nats per token
    loss: float  # with `maps`

    @property
    def delta(self) -> float:
        """Change of perplexity on the trial sequences."""
        return exp(self.loss) - exp(self.base)


def greedy(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    maps: Mapping[int, AffineMap],
    order: Sequence[int],
    candidates: int = 4,
    trial_sequences: int = TRIAL_SEQUENCES,
    refit: Int64[Tensor, "m seq_len"] | None = None,
    batch_size: int = 16,
    kept: StepFiles | None = None,
) -> Iterator[Step]:
    """Replace blocks one after another, each time the one of the next `candidates` that costs least in loss.

    After each choice all maps are refitted on the inputs they get now (`fit_maps`). Whichever maps have the lowest loss
    are kept: the refitted ones, the previous ones, or those fitted to each block alone. So refitting never raises the
    loss on the trial sequences. Losses and refitted maps that `kept` has are not computed again.

    Yields:
        A `Step` per block, until none is left.
    """
    if candidates < 1 or trial_sequences < 1 or not order:
        raise InputError(
            f"{candidates} candidates of {len(order)} blocks, compared on {trial_sequences} sequences: give at least "
            "one of each"
        )
    trial = ids[:: -(-len(ids) // trial_sequences)]
    fitted_on = ids if refit is None else refit
    kept = kept or StepFiles(None)

    def loss(replaced: Mapping[int, AffineMap], step: str) -> float:
        def compute() -> dict[str, Tensor]:
            with swap(model, replaced):
                return {"losses": losses(model, trial, max(1, batch_size // 2))}

        return float(kept.read_or(step, compute)["losses"].mean())

    base = loss({}, f"{candidates}-none")
    left = list(order)
    chosen: dict[int, AffineMap] = {}
    while left:
        # one more block, with the map it has alone: the cheapest of the next few
        step = f"{candidates}-{len(chosen)}"
        tried = {block: loss(chosen | {block: maps[block]}, f"{step}-{block}") for block in left[:candidates]}
        block = min(tried, key=tried.__getitem__)
        left.remove(block)
        as_before = chosen | {block: maps[block]}
        options = [(tried[block], as_before)]
        if chosen:
            alone = {replaced: maps[replaced] for replaced in as_before}
            refit_all = partial(fit_maps, model, fitted_on, list(as_before), as_before, batch_size)
            refitted = _maps_kept(kept, f"{step}-refitted", refit_all)
            options += [(loss(alone, f"{step}-alone"), alone), (loss(refitted, f"{step}-with-refitted"), refitted)]
        # whichever maps have the lowest loss stay; of equals, the first
        best, chosen = min(options, key=lambda option: option[0])
        yield Step(block, chosen, base, best)


def _maps_kept(kept: StepFiles, step: str, fit_all: Callable[[], Mapping[int, AffineMap]]) -> dict[int, AffineMap]:
    """Read the maps of a step, or fit and keep them."""

    def compute() -> dict[str, Tensor]:
        maps = fit_all()
        weights = {f"{block}.weight": fitted.weight for block, fitted in maps.items()}
        return weights | {f"{block}.bias": fitted.bias for block, fitted in maps.items()}

    tensors = kept.read_or(step, compute)
    blocks = [int(name.removesuffix(".weight")) for name in tensors if name.endswith(".weight")]
    return {block: AffineMap(tensors[f"{block}.weight"], tensors[f"{block}.bias"]) for block in sorted(blocks)}


def hold_out(
    ids: Int64[Tensor, "n seq_len"], count: int
) -> tuple[Int64[Tensor, "some seq_len"], Int64[Tensor, "others seq_len"]]:
    """Split off about `count` sequences, evenly spread; return these and all others."""
    if not 1 <= count <= len(ids) // 2:
        raise InputError(f"{count} of {len(ids)} sequences to hold out: take from 1 to half of them")
    picked = torch.zeros(len(ids), dtype=torch.bool, device="cpu")
    picked[:: len(ids) // count] = True
    return ids[picked], ids[~picked]


@dataclass(frozen=True)
class Plan(Outcome):
    """Which blocks to replace, by what, and what it costs on held-out text, see `Outcome`.

    Attributes:
        maps: block → its map.
        steps: per step in order, the `block` and the change of perplexity `dppl` on the trial sequences.
        next_step: why the search stopped: the `block` tried next, the change `dppl` with it, above the budget, and the
            `text` on which it was measured; None if no block is left.
    """

    maps: dict[int, AffineMap]
    steps: list[dict[str, int | float]]
    next_step: dict[str, int | float | str] | None = None

    def __repr__(self) -> str:
        return f"<Plan: blocks {', '.join(map(str, sorted(self.maps)))} become affine maps; {self.cost}>"

    @property
    def outlook(self) -> str:
        """One sentence: why no more blocks are replaced."""
        if self.next_step is None:
            return "It stopped with the last block that may change: all of these are affine maps now."
        return (
            f"It stopped here: block {self.next_step['block']}, the next one tried, would bring the change to "
            f"{self.next_step['dppl']:+.2f} on the text {self.next_step['text']}, above the budget."
        )


def compress_to(
    model: Any,
    rows: Any,
    max_dppl: float,
    candidates: int = 4,
    progress: bool = False,
    blocks: int | Iterable[int] | None = None,
    batch_size: int = 16,
    layerwise: bool | None = None,
    work: Path | str | None = None,
) -> Plan:
    """Replace as many blocks by maps as a budget of perplexity allows.

    Blocks are chosen and maps refitted on the training side (`greedy`, in the order of `price`), then confirmed on the
    held-out side: the last steps are dropped until the budget is kept there.

    Args:
        model: the model, or its name; not changed. Blocks that are linear layers already are skipped.
        rows: a text, or sequences with their split; padding is left out.
        max_dppl: the most that perplexity may rise.
        candidates: blocks to try at each step.
        progress: show a bar.
        blocks: the block or blocks that may be replaced; all by default.
        batch_size: sequences in a forward pass; half as many in passes that compute logits.
        layerwise: as in `compress`. Every trial reads all layers, so this takes long.
        work: a folder that keeps maps and losses: an interrupted run is resumed, and a run with another budget reuses
            them.

    Raises:
        InputError: the budget is not finite, or even the cheapest block exceeds it (the message names the block and its
            cost); no block is left to replace; a side is empty; or the model cannot read the rows.
    """
    check_number("max_dppl", max_dppl, "1.0")
    check_count("candidates", candidates)
    check_flags(progress=progress, layerwise=layerwise)
    batch_size = check_count("batch_size", batch_size)
    half = max(1, batch_size // 2)
    model = open_given(model, layerwise, work)
    check_causal(model)
    rows = without_padding(rows_of(rows, model))
    free = [site.block for site in sites(model, blocks) if not site.linear]
    held_out = int(rows.test.sum())
    to_fit_on = len(rows.test) - held_out
    if not free or not to_fit_on or held_out < 2:
        raise InputError(
            f"a budget of {max_dppl} for {len(free)} blocks that are not replaced yet, {to_fit_on} sequences to fit "
            f"on and {held_out} held out: it takes a block, and sequences on both sides"
        )
    check(model, rows)
    with running(model), undisturbed(model):
        train = rows.ids[~rows.test]
        test = rows.ids[rows.test]
        fold = rows.fold[rows.test]
        about = {"rows": rows.sha256, "maps of": free, "candidates": candidates, "batch_size": batch_size}
        kept = StepFiles(None if work is None else open_work(work, model, about))
        maps = _maps_kept(kept, "maps", partial(fit_maps, model, train, free, batch_size=batch_size))
        prices = kept.read_or("prices", partial(_prices, model, maps, train, half))["nats"]
        order = [list(maps)[place] for place in prices.argsort(stable=True).tolist()]
        # all blocks are tried if none of the first candidates is affordable
        for tries in sorted({min(candidates, len(order)), len(order)}):
            steps: list[Step] = []
            beyond = None
            search = greedy(model, train, maps, order, tries, batch_size=batch_size, kept=kept)
            for step in tqdm(search, total=len(order), disable=not progress, unit="block"):
                if step.delta > max_dppl:
                    beyond = {"block": step.block, "dppl": step.delta, "text": "to fit on"}
                    break
                steps.append(step)
            if steps:
                break
        base, speed_before = timed_losses(model, test, half)
        # from the last step backwards: the most blocks that keep the budget on held-out text too
        for count in range(len(steps), 0, -1):
            maps = steps[count - 1].maps
            with swap(model, maps):
                after, speed_after = timed_losses(model, test, half)
            delta = change(base, after, fold)
            if delta.delta <= max_dppl:
                history = [{"block": step.block, "dppl": step.delta} for step in steps[:count]]
                return Plan(
                    maps,
                    history,
                    beyond,
                    base=exp(base.mean()),
                    perplexity=exp(after.mean()),
                    delta=delta,
                    speeds=(speed_before, speed_after),
                )
            beyond = {"block": steps[count - 1].block, "dppl": delta.delta, "text": "held out"}
    raise InputError(
        f"no block can be replaced within {max_dppl:+.3g} of perplexity: the cheapest, block {beyond['block']}, costs "
        f"{beyond['dppl']:+.3g} on the text {beyond['text']}; allow more"
    )


def _prices(
    model: PreTrainedModel, maps: Mapping[int, AffineMap], ids: Int64[Tensor, "n seq_len"], batch_size: int
) -> dict[str, Float[Tensor, " blocks"]]:
    prices = price(model, maps, ids, batch_size)
    return {"nats": torch.tensor([prices[block].cost for block in maps], dtype=torch.float64, device="cpu")}


def prefixes(maps: Mapping[int, AffineMap], order: Sequence[int], count: int) -> list[dict[int, AffineMap]]:
    """List the maps of the first block of an order, of the first two, and so on up to `count` blocks."""
    return [{block: maps[block] for block in order[:taken]} for taken in range(1, count + 1)]


def frontier(
    model: PreTrainedModel,
    ways: Mapping[str, Sequence[Mapping[int, AffineMap]]],
    text: TokenRows | Int64[Tensor, "n seq_len"],
) -> pd.DataFrame:
    """Measure `costs.cost` of several `ways` to pick blocks, way → the maps in place, one block more each time.

    `share` is the part of the FFN parameters that is left.
    """
    base = losses(model, held_out(text))
    whole = ffn_parameters(model)
    rows = []
    for way, plans in ways.items():
        before: Mapping[int, AffineMap] = {}
        for maps in plans:
            (new,) = maps.keys() - before.keys()
            before = maps
            row = {"way": way, "count": len(maps), "block": new, "share": ffn_parameters(model, maps) / whole}
            rows.append(row | swap_cost(model, maps, text, base))
    return pd.DataFrame(rows)


def together(
    model: PreTrainedModel,
    alone: Mapping[int, AffineMap],
    blocks: Iterable[int],
    costs: pd.Series,
    ids: Int64[Tensor, "n seq_len"],
) -> dict[str, float]:
    """Compare the cost of a set of blocks, each with its map `alone`, with the sum of their costs, nats per token."""
    base = losses(model, ids)
    naive = {block: alone[block] for block in blocks}
    return {"naive": swap_cost(model, naive, ids, base)["nats"], "summed": float(costs[list(naive)].sum())}
