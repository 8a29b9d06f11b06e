"""Massive rows as a cause: what becomes of later blocks and of the loss if a forward pass lacks or moves them.

A block writes massive outputs. Later blocks that are nearly linear may be so because of them or independently of them.
So the writer's massive outputs are changed while the model runs: silenced, replaced, scaled, moved to another position.
A BOS before each sequence and sequences of other lengths change which token is first. Each intervention is measured by
the loss and by R²_lin of every block from the writer on, of all rows and of ordinary ones, on the same rows and folds.

Silencing a sink damages the model, and damage alone may change R²_lin. The control is as much damage done elsewhere:
noise on the writer's ordinary outputs, of a size found by bisection at which the loss rises by as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.fold_maps import Scores, fit_folds, score_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.files.tables import stack, with_ends
from howlinear.ideas.sinks.measure import BATCH_TOKENS
from howlinear.ideas.sinks.planted import planted
from howlinear.instrument.capture import read_tokens
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.perplexity import token_losses
from howlinear.models.checks import longest_sequence
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.load import is_causal, tokenizer_of
from howlinear.text.rows import TokenRows, batches, fold_of

NONE, ZERO, NOISE, BOS = "none", "set to zero", "noise, equal loss", "BOS in front"

NEAR = 0.02  # tolerance of the search for noise, as a share of the target rise of the loss
LOUDEST = 2.0**12  # median norms: noise that does not cost enough at this size never will

Which = Callable[[Tensor], Tensor]
"""Outputs of a block, shape (batch, seq_len, d) → which rows an intervention changes, shape (batch, seq_len)."""

Change = Callable[[Tensor], Tensor]
"""Outputs of a block → the outputs that replace them, both of shape (batch, seq_len, d)."""

EFFECTS = [
    *("model", "intervention", "block", "massive_rows"),
    *(*with_ends("r2"), *with_ends("r2_ordinary"), *with_ends("change"), *with_ends("change_ordinary")),
]
SUMMARY = [
    *("model", "intervention", "writer", "noise", "loss", *with_ends("rise"), "later_blocks"),
    *(*with_ends("change_ordinary"), "straighter", "more_bent"),
]

# --- What a model reads: the same tokens behind a BOS, or in sequences of another length


@dataclass(frozen=True)
class Layout:
    """Sequences, and the place of each of their tokens in the rows that all interventions share."""

    rows: TokenRows  # what the model reads
    place: Int64[Tensor, "n seq_len"]  # index into the shared rows, −1 for a token that is not in them
    places: int  # how many places the shared rows have

    @classmethod
    def of(cls, rows: TokenRows) -> Layout:
        """Lay out the shared rows as they are."""
        places = rows.ids.numel()
        return cls(rows, torch.arange(places).view(rows.ids.shape), places)

    def behind(self, token: int) -> Layout:
        """Put one token in front of each sequence, and drop its last token to make room."""
        ids = _in_front(token, self.rows.ids[:, :-1])
        place = _in_front(-1, self.place[:, :-1])
        return replace(self, rows=replace(self.rows, ids=ids), place=place)

    def cut_anew(self, length: int, opening: int) -> Layout:
        """Cut sequences `length` / seq_len times as long; a longer one joins neighbours of the same document fold."""
        n, seq_len = self.rows.ids.shape
        new = n * seq_len // length
        pieces = max(1, seq_len // length)
        # An opening, one token (a BOS) or none, is put once in front of each new sequence. If the rest does not divide
        # into equal pieces, its last few tokens are dropped.
        end = opening + (seq_len - opening) // pieces * pieces
        ids = self.rows.ids[:, opening:end].reshape(new, -1)
        place = self.place[:, opening:end].reshape(new, -1)
        if opening:
            ids = _in_front(int(self.rows.ids[0, 0]), ids)
            place = _in_front(-1, place)
        old = torch.arange(new) * length // seq_len  # the old sequence in which each new one begins
        rows = replace(self.rows, ids=ids, test=self.rows.test[old], fold=self.rows.fold[old])
        return replace(self, rows=rows, place=place)

    def batches(self) -> list[Int64[Tensor, " some"]]:
        """Batch sequences of one document fold, about `BATCH_TOKENS` tokens in each batch."""
        return batches(self.rows, max(1, BATCH_TOKENS // self.rows.ids.shape[1]))


def _in_front(token: int, values: Int64[Tensor, "n rest"]) -> Int64[Tensor, "n length"]:
    return torch.cat([torch.full((len(values), 1), token), values], 1)


def opening_of(rows: TokenRows, bos: int | None) -> int:
    """Count the BOS tokens that every sequence begins with already: 0 or 1."""
    return int(bos is not None and bool((rows.ids[:, 0] == bos).all()))


def bos_of(model: PreTrainedModel) -> int | None:
    """Return the tokenizer's BOS token or, as for an encoder, its class token; None if it has neither."""
    tokenizer = tokenizer_of(model)
    return tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def possible_lengths(model: PreTrainedModel, rows: TokenRows, lengths: Iterable[int]) -> list[int]:
    """Select the other sequence lengths that the model can read and that every document fold fills, ascending."""
    seq_len = rows.ids.shape[1]
    fewest = min(len(members) for test in (False, True) for members in rows.folds(test))
    longest = min(longest_sequence(model) or float("inf"), fewest * seq_len)
    possible = []
    for length in lengths:
        whole_times = length % seq_len == 0 or seq_len % length == 0
        if length != seq_len and whole_times and 1 < length <= longest:
            possible.append(length)
    return sorted(possible)


def even_folds(rows: TokenRows, lengths: Sequence[int]) -> TokenRows:
    """Cut each document fold to a whole number of sequences of the longest of these lengths, and sort rows by fold."""
    multiple = max([1, *(length // rows.ids.shape[1] for length in lengths)])
    members = [fold for test in (False, True) for fold in rows.folds(test)]
    return rows.subset(torch.cat([fold[: len(fold) // multiple * multiple] for fold in members]))


# --- What is done to the writer's outputs


def changed(
    model: PreTrainedModel, block: int, change: Change, seq_len: int
) -> AbstractContextManager[PreTrainedModel]:
    """Change a block's output in the context, whatever its inputs."""

    def write(_: Tensor, y: Tensor) -> Tensor:
        return change(y.reshape(-1, seq_len, y.shape[-1])).reshape(y.shape)  # some models lay all rows in one line

    return planted(model, block, write)


def beyond(cut: float) -> Which:
    """Choose the rows whose output norm is beyond a cut."""
    return lambda y: torch.linalg.vector_norm(y.float(), dim=-1) > cut


def at_first(y: Float[Tensor, "batch seq_len d"]) -> Bool[Tensor, "batch seq_len"]:
    """Choose the rows at position 0, whatever their norm."""
    first = torch.zeros(y.shape[:-1], dtype=torch.bool, device=y.device)
    first[:, 0] = True
    return first


def partners(values: Tensor) -> Tensor:
    """Swap the values of the two halves of each sequence; an odd position at the end keeps its own value."""
    half = values.shape[1] // 2
    return torch.cat([values[:, half : 2 * half], values[:, :half], values[:, 2 * half :]], 1)


def changes(which: Which, ordinary_mean: Float[Tensor, " d"]) -> dict[str, Change]:
    """Make the interventions on a writer's outputs at some rows, by name; `ordinary_mean` is the mean of other rows."""

    def write(value: Change, y: Tensor) -> Tensor:
        return torch.where(which(y)[..., None], value(y), y)

    def move(y: Tensor) -> Tensor:
        chosen = which(y)
        return torch.where((chosen | partners(chosen))[..., None], partners(y), y)

    return {
        ZERO: partial(write, torch.zeros_like),
        "set to the mean": partial(write, lambda y: ordinary_mean.to(y).expand_as(y)),
        "halved": partial(write, lambda y: y / 2),
        "doubled": partial(write, lambda y: 2 * y),
        "moved": move,
    }


def add_noise(which: Which, norm: float, seed: int) -> Change:
    """Make a change that adds Gaussian noise to other rows; two of one seed add the same to the same rows."""
    generator = torch.Generator().manual_seed(seed)

    def change(y: Float[Tensor, "batch seq_len d"]) -> Float[Tensor, "batch seq_len d"]:
        noise = torch.randn(y.shape, generator=generator).to(y)
        louder = y + noise * (norm / y.shape[-1] ** 0.5)
        return torch.where(which(y)[..., None], y, louder)

    return change


def match(rise: Callable[[float], float], target: float) -> float | None:
    """Find by bisection the size at which a loss that grows with it rises by `target`; None if there is none."""
    low, high = 0.0, 1.0
    while rise(high) < target:
        low, high = high, 2 * high
        if high > LOUDEST:
            return None
    while True:
        size = (low + high) / 2
        found = rise(size)
        if abs(found - target) <= NEAR * target or high - low < 1e-6 * high:
            return size
        low, high = (size, high) if found < target else (low, size)


# --- What is seen of a pass


@dataclass(frozen=True)
class Seen:
    """A block in one forward pass."""

    every: Scores  # R²_lin of all rows
    ordinary: Scores  # of the rows that all passes call ordinary
    massive_rows: int  # beyond `MULTIPLE` times the median norm in this very pass
    mean: Float[Tensor, " d"]  # output of the ordinary training rows


def output_norms(model: PreTrainedModel, layout: Layout, blocks: Sequence[int]) -> dict[int, Float[Tensor, " places"]]:
    """Block → the norm of its output at every place of the shared rows; NaN at places that a layout leaves out."""
    norms = {block: torch.full((layout.places,), torch.nan) for block in blocks}

    def keep(site: Site, _: Tensor, y: Tensor, sequence: Tensor, position: Tensor) -> None:
        place = layout.place[sequence, position]
        shared = place >= 0
        norm = torch.linalg.vector_norm(y.float(), dim=1).cpu()
        norms[site.block][place[shared]] = norm[shared]

    read_tokens(model, layout.rows, sites(model, list(blocks)), layout.batches(), keep)
    return norms


class _Block:
    """A block's data collected over batches: moments of ordinary rows by fold, and the few other rows as they are."""

    def __init__(self) -> None:
        self.ordinary: dict[tuple[bool, int], Moments] = {}
        self.others: dict[tuple[bool, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self.norms: list[Tensor] = []

    def update(self, fold: tuple[bool, int], x: Tensor, y: Tensor, ordinary: Tensor) -> None:
        if fold not in self.ordinary:
            self.ordinary[fold] = Moments(x.shape[1], y.shape[1], x.device)
        self.ordinary[fold].update(x[ordinary], y[ordinary])
        self.others[fold].append((x[~ordinary].float(), y[~ordinary].float()))
        self.norms.append(torch.linalg.vector_norm(y.float(), dim=1))

    def finish(self) -> Seen:
        mean = Moments.total([moments for (test, _), moments in self.ordinary.items() if not test]).mean_y
        ordinary = self._scores()
        for fold, rows in self.others.items():
            for x, y in rows:
                self.ordinary[fold].update(x, y)
        norms = torch.cat(self.norms)
        massive_rows = int((norms > MULTIPLE * norms.median()).sum())
        return Seen(self._scores(), ordinary, massive_rows, mean.cpu())

    def _scores(self) -> Scores:
        train = [moments.cpu() for (held_out, _), moments in self.ordinary.items() if not held_out]
        test = [moments.cpu() for (held_out, _), moments in self.ordinary.items() if held_out]
        return score_folds(fit_folds(train), test)


@dataclass(frozen=True)
class Pass:
    """What a forward pass over all rows shows."""

    seen: dict[int, Seen]  # of each block
    losses: Float[Tensor, " places"] | None  # of every held-out token of the shared rows; None of an encoder
    size: float | None = None  # of noise, in median norms of the writer's outputs; None where none is added


def observe(model: PreTrainedModel, layout: Layout, blocks: Sequence[int], ordinary: Bool[Tensor, " places"]) -> Pass:
    """Measure R²_lin of some blocks, given the places that are `ordinary`, and the loss, in a pass over all rows."""
    kept = {block: _Block() for block in blocks}

    def keep(site: Site, x: Tensor, y: Tensor, sequence: Tensor, position: Tensor) -> None:
        place = layout.place[sequence, position]
        chosen = (ordinary[place] & (place >= 0)).to(x.device)
        kept[site.block].update(fold_of(layout.rows, sequence), x, y, chosen)

    listened = sites(model, list(blocks))
    batches = layout.batches()
    losses = None
    if is_causal(model):
        losses = place_losses(model, layout, listened, keep)
        batches = [batch for batch in batches if not layout.rows.test[batch[0]]]
    read_tokens(model, layout.rows, listened, batches, keep)
    return Pass({block: kept.pop(block).finish() for block in blocks}, losses)


def place_losses(
    model: PreTrainedModel, layout: Layout, listened: Sequence[Site] = (), keep: Callable[..., None] = lambda *_: None
) -> Float[Tensor, " places"]:
    """Compute the loss of every held-out token of the shared rows, in nats; NaN if it is not predicted.

    `keep` is called with their rows at the sites `listened`, as in `read_tokens`.
    """
    losses = torch.full((layout.places,), torch.nan, dtype=torch.float64)

    def keep_losses(batch: Tensor, predictions: Tensor) -> None:
        losses[layout.place[batch][:, 1:]] = token_losses(predictions, layout.rows.ids[batch])

    held_out = [batch for batch in layout.batches() if layout.rows.test[batch[0]]]
    read_tokens(model, layout.rows, list(listened), held_out, keep, predicted=keep_losses)
    return losses


# --- All interventions on a model


def intervene(
    name: str,
    model: PreTrainedModel,
    rows: TokenRows,
    writer: int,
    blocks: Iterable[int] | None = None,
    lengths: Iterable[int] = (),
    bos: int | None = None,
    which: Which | None = None,
    only: Collection[str] | None = None,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run every intervention that the model and the text allow.

    Rows are ordinary if no block writes a massive output for them, at any sequence length and with or without a BOS,
    and no intervention puts one there: massive outputs are not moved to them, and they begin no sequence of any length.
    Tokens that some layout leaves out, and the last token of a sequence, are excluded too.

    By default the massive rows are changed, and the control is run as well. `which` chooses other rows, without the
    control, and `only` some of the changes; the control then runs if both the zeros and the noise are named. Impossible
    lengths are left out, and so is a `bos` that sequences begin with already.

    Returns:
        `effect_table` and `summary_table` of all passes, for the writer and `blocks`, by default all behind it.
    """
    behind = [site.block for site in sites(model) if site.block > writer] if blocks is None else blocks
    numbers = sorted({writer, *behind})
    lengths = possible_lengths(model, rows, lengths)
    rows = even_folds(rows, lengths)
    shared = Layout.of(rows)
    opening = opening_of(rows, bos)

    norms = output_norms(model, shared, numbers)
    median = float(norms[writer].median())
    controlled = which is None and (only is None or {ZERO, NOISE} <= set(only)) and is_causal(model)
    which = which or beyond(MULTIPLE * median)
    layouts = {f"length {length}": shared.cut_anew(length, opening) for length in lengths}
    if bos is not None and not opening:
        layouts = {BOS: shared.behind(bos)} | layouts
    massive = massive_places(norms)
    for layout in layouts.values():
        massive |= massive_places(output_norms(model, layout, numbers))
    ordinary = ordinary_places(massive.view(rows.ids.shape), lengths)
    for layout in layouts.values():
        ordinary &= torch.isin(shared.place.flatten(), layout.place)

    def run(layout: Layout, change: Change | None = None) -> Pass:
        with nullcontext() if change is None else changed(model, writer, change, layout.rows.ids.shape[1]):
            return observe(model, layout, numbers, ordinary)

    passes = {NONE: run(shared)}
    for intervention, change in changes(which, passes[NONE].seen[writer].mean).items():
        if only is None or intervention in only:
            passes[intervention] = run(shared, change)
    passes |= {intervention: run(layout) for intervention, layout in layouts.items()}

    # The control: noise that costs as much as silencing the massive rows
    if controlled:

        def rise(size: float) -> float:
            with changed(model, writer, add_noise(which, size * median, seed), rows.ids.shape[1]):
                noisy = Pass({}, place_losses(model, shared))
                return _rise(passes[NONE], noisy, rows).value

        target = _rise(passes[NONE], passes[ZERO], rows)
        size = match(rise, target.value) if target.low > 0 else None  # there may be no damage to match
        if size is not None:
            passes[NOISE] = replace(run(shared, add_noise(which, size * median, seed)), size=size)
    return effect_table(name, passes), summary_table(name, passes, writer, rows)


def massive_places(norms: Mapping[int, Float[Tensor, " places"]]) -> Bool[Tensor, " places"]:
    """Find the places for which some block writes a massive output."""
    return torch.stack([norm > MULTIPLE * norm.nanmedian() for norm in norms.values()]).any(0)


def ordinary_places(massive: Bool[Tensor, "n seq_len"], lengths: Sequence[int]) -> Bool[Tensor, " places"]:
    """Find the places of rows that are ordinary under every intervention, see `intervene`."""
    seq_len = massive.shape[1]
    position = torch.arange(seq_len)
    begins = position % min([seq_len, *lengths]) == 0
    ends = position == seq_len - 1
    return ~(massive | partners(massive) | begins | ends).flatten()


def effect_table(name: str, passes: Mapping[str, Pass]) -> pd.DataFrame:
    """Tabulate the effect of each intervention on each block; table `effects`, a row per intervention and block."""
    before = passes[NONE].seen
    table = []
    for intervention, each in passes.items():
        for block, seen in each.seen.items():
            row = {"model": name, "intervention": intervention, "block": block, "massive_rows": seen.massive_rows}
            row |= seen.every.estimate.columns("r2") | seen.ordinary.estimate.columns("r2_ordinary")
            row |= (seen.every - before[block].every).estimate.columns("change")
            row |= (seen.ordinary - before[block].ordinary).estimate.columns("change_ordinary")
            table.append(row)
    return pd.DataFrame(table)


def summary_table(name: str, passes: Mapping[str, Pass], writer: int, rows: TokenRows) -> pd.DataFrame:
    """Tabulate what each intervention costs and does to the blocks behind the writer; table `interventions`."""
    before = passes[NONE]
    table = []
    for intervention, each in passes.items():
        row = {"model": name, "intervention": intervention, "writer": writer, "noise": each.size}
        if each.losses is not None:
            row["loss"] = float(each.losses[each.losses.isfinite() & before.losses.isfinite()].mean())
            row |= _rise(before, each, rows).columns("rise")
        later = [block for block in each.seen if block > writer]
        changes = [each.seen[block].ordinary - before.seen[block].ordinary for block in later]
        row["later_blocks"] = len(changes)
        if changes:
            row |= Scores.mean(changes).estimate.columns("change_ordinary")
        row["straighter"] = sum(change.estimate.low > 0 for change in changes)
        row["more_bent"] = sum(change.estimate.high < 0 for change in changes)
        table.append(row)
    return pd.DataFrame(table, columns=SUMMARY).astype({"noise": "float64"})


def tables(found: Iterable[tuple[pd.DataFrame, pd.DataFrame]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Stack effects and summaries of several models, each in one table; without rows if there are none."""
    found = list(found)
    effects = stack((of_model for of_model, _ in found), EFFECTS)
    summary = stack((of_model for _, of_model in found), SUMMARY)
    return effects, summary


def _rise(before: Pass, after: Pass, rows: TokenRows) -> Estimate:
    """Estimate the rise of the loss over the held-out tokens that both passes predict, paired over folds."""
    rises = (after.losses - before.losses).view(rows.ids.shape)[rows.test].nanmean(1).numpy()
    return Estimate.of_mean(rises, rows.fold[rows.test].numpy())
