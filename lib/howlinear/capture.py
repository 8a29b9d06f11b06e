"""One forward pass without the head, every FFN: moments per document fold, and a bounded sample of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.ceilings import condition, spectrum
from howlinear.distributed import here
from howlinear.errors import InputError
from howlinear.inputs import Rows, batch_of, check, draw, tokens_of
from howlinear.moments import Moments, effective_rank
from howlinear.sites import Site, sites


@dataclass(frozen=True)
class Sample:
    """Rows kept as they were, the same tokens for every block.

    Attributes:
        x: FFN inputs, shape (rows, d_in), float32.
        y: FFN outputs, shape (rows, d_out), float32.
        position: place in the sequence, shape (rows,).
        token: token id, shape (rows,).
        test: which rows are held out, shape (rows,).
        fold: the document fold of each row, shape (rows,).
    """

    x: Float[Tensor, "rows d_in"]
    y: Float[Tensor, "rows d_out"]
    position: Int64[Tensor, " rows"]
    token: Int64[Tensor, " rows"]
    test: Bool[Tensor, " rows"]
    fold: Int64[Tensor, " rows"]


@dataclass(frozen=True)
class BlockCapture:
    """What is kept of one block.

    Attributes:
        train: moments per document fold of the rows to fit on.
        test: moments per document fold of the held-out rows.
        outputs: moments of the held-out outputs alone: y as the inputs, so Σ(y − ȳ)(y − ȳ)ᵀ is `outputs.sxx`.
        sample: the bounded sample of rows; None if none was asked for.
    """

    train: list[Moments]
    test: list[Moments]
    outputs: Moments
    sample: Sample | None


def capture(
    model: PreTrainedModel,
    rows: Rows,
    blocks: list[int] | None = None,
    sample: int = 0,
    seed: int = 0,
    batch_size: int = 16,
    progress: bool = False,
    only: list[Tensor] | None = None,
) -> dict[int, BlockCapture]:
    """Run the model once over `rows` and keep what describes each block.

    Args:
        model: the model; left exactly as it was.
        rows: sequences with their split and folds; padding is left out of everything.
        blocks: which blocks; all by default.
        sample: how many rows to keep as they are, drawn without replacement.
        seed: of that draw.
        batch_size: sequences in a forward pass.
        progress: show a bar.
        only: run these of the `batches` of `rows`; all by default. What comes back has the folds that they touch.

    Returns:
        Block → `BlockCapture`.

    Raises:
        InputError: an empty side, inputs that the model cannot read, a sample of what has no token ids, or
            activations that are not finite (names block and batch).
    """
    check(model, rows)
    only = list(batches(rows, batch_size)) if only is None else only
    found, collector = sites(model, blocks), _Collector(rows, sample, seed, only)
    bar = tqdm(total=sum(map(len, only)), unit="seq", desc="capture", disable=not progress)
    with bar, hooked(found, collector.keep), torch.no_grad():
        for collector.turn, indices in enumerate(only):
            model.base_model(**batch_of(model, rows, indices))
            bar.update(len(indices))
    return {site.block: collector.finish(site) for site in found}


@contextmanager
def hooked(found: list[Site], keep: Callable[[Site, Tensor, Tensor], None]) -> Iterator[None]:
    """While the context lasts, call `keep(site, x, y)` at every pass through a site.

    Args:
        found: the sites to listen at.
        keep: gets the site, its input and its output, shapes (batch, seq_len, d) or (batch · seq_len, d); copy what
            outlives the call, the model may write over it (Falcon adds attention to y in place).
    """
    inputs: dict[int, Tensor] = {}

    def listen(site: Site, stack: ExitStack) -> None:
        def before(_, args, named):
            inputs[site.block] = args[0] if args else next(iter(named.values()))

        def after(_, __, output):
            if not isinstance(output, Tensor):
                raise InputError(
                    f"{site.name} returns a {type(output).__name__}, no tensor: give the modules inside it "
                    "that take x and return y, as in load_model(…, sites=…)"
                )
            keep(site, inputs.pop(site.block), output)

        stack.callback(site.input.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(site.output.register_forward_hook(after).remove)

    with ExitStack() as stack:
        for site in found:
            listen(site, stack)
        yield


def batches(rows: Rows, size: int) -> Iterator[Tensor]:
    """Indices of sequences, every batch from one fold; the rows to fit on first."""
    for side, fold in sorted(set(zip(rows.test.tolist(), rows.fold.tolist(), strict=True))):
        yield from ((rows.test == side) & (rows.fold == fold)).nonzero()[:, 0].split(size)


def fold_of(rows: Rows, batch: Tensor) -> tuple[bool, int]:
    """The (held out?, fold) of a batch."""
    return bool(rows.test[batch[0]]), int(rows.fold[batch[0]])


class _Collector:
    """Where the hooks put what they see; `turn` counts the batches."""

    def __init__(self, rows: Rows, sample: int, seed: int, only: list[Tensor]):
        self.rows, self.only, self.turn = rows, only, 0
        self.folds = [fold_of(rows, batch) for batch in only]
        self.moments: dict[int, dict[tuple[bool, int], Moments]] = {}
        self.outputs: dict[int, Moments] = {}
        self.dtype: dict[int, torch.dtype] = {}
        self.finite: dict[int, Tensor] = {}  # batch by batch, shape (batches,)
        self.drawn, self.slot = draw(rows, sample, seed)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, site: Site, x: Tensor, y: Tensor) -> None:
        x, y = x.flatten(0, -2), y.flatten(0, -2).to(x.device)
        fold = self.folds[self.turn]
        kept, x, y = (x, y), *tokens_of(self.rows, self.only[self.turn], site.name, x, y)
        if site.block not in self.moments:
            folds = sorted(set(self.folds))
            empty = Moments.several(len(folds), x.shape[1], y.shape[1], x.device)
            self.moments[site.block] = dict(zip(folds, empty, strict=True))
            self.outputs[site.block] = Moments(y.shape[1], 0, y.device)
            self.dtype[site.block], self.finite[site.block] = x.dtype, x.new_ones(len(self.only), dtype=torch.bool)
        moments = self.moments[site.block][fold]
        try:
            moments.update(x, y, self.outputs[site.block] if fold[0] else None)
        except InputError as error:
            raise InputError(f"{error}{self._place(site, self.turn)}") from error
        self.finite[site.block][self.turn] = moments.finite  # read by `finish`: a device would be waited for
        if len(self.drawn):
            self._sample(site.block, *kept)

    def _sample(self, block: int, x: Tensor, y: Tensor) -> None:
        if block not in self.kept:
            self.kept[block] = tuple(torch.empty(len(self.drawn), r.shape[1], dtype=torch.float32) for r in (x, y))
        slot = self.slot[self.only[self.turn]].flatten()
        mine = (slot >= 0).nonzero()[:, 0]
        for kept, rows in zip(self.kept[block], (x, y), strict=True):
            kept[slot[mine]] = rows[mine.to(rows.device)].float().cpu()

    def _place(self, site: Site, turn: int) -> str:
        where = f"block {site.block} ({site.name}), in the batch of sequences {self.only[turn].tolist()}"
        return f" at {where}: this model overflows on this text in {self.dtype[site.block]}"

    def finish(self, site: Site) -> BlockCapture:
        block, finite = site.block, self.finite[site.block].tolist()
        if not all(finite):
            raise InputError(f"NaN or infinity among the rows{self._place(site, finite.index(False))}")
        sides: dict[bool, list[Moments]] = {False: [], True: []}
        for (held_out, _), moments in self.moments[block].items():
            sides[held_out].append(here(moments))
        sample = None
        if len(self.drawn):
            sequence, position = self.drawn // self.rows.ids.shape[1], self.drawn % self.rows.ids.shape[1]
            token, test, fold = self.rows.ids[sequence, position], self.rows.test[sequence], self.rows.fold[sequence]
            sample = Sample(*self.kept[block], position, token, test, fold)
        return BlockCapture(sides[False], sides[True], here(self.outputs[block]), sample)


@dataclass(frozen=True)
class InputStatistics:
    """What the rows that go into a block are like (what a referee asked the paper for).

    Attributes:
        rank: directions that are not null.
        null: smallest over largest eigenvalue of the inputs' correlation matrix (0 if rounding left it negative).
        second: second smallest over largest.
        condition: largest over smallest singular value of the centred inputs, on the `rank` leading directions.
        effective_rank: participation ratio of the input covariance.
        dynamic_range: standard deviation of the loudest input feature over that of the median one.
        first_position_in: mean norm of x at position 0 over its mean norm elsewhere.
        first_position_out: the same of y.
    """

    rank: int
    null: float
    second: float
    condition: float
    effective_rank: float
    dynamic_range: float
    first_position_in: float
    first_position_out: float


def describe(kept: BlockCapture) -> InputStatistics:
    """Statistics of a block's inputs: train moments, and the sample for position 0.

    Raises:
        InputError: nothing was sampled, or no row at position 0.
    """
    if kept.sample is None or not (kept.sample.position == 0).any():
        raise InputError("position 0 needs sampled rows: capture with sample=4096 or more")
    moments = sum(kept.train)
    scale, kept_values, _ = spectrum(moments)
    values = torch.linalg.eigvalsh(scale[:, None] * moments.sxx * scale).clamp_min(0)
    spread, first = moments.sxx.diagonal().sqrt(), kept.sample.position == 0
    x, y = kept.sample.x.norm(dim=1), kept.sample.y.norm(dim=1)
    return InputStatistics(
        rank=len(kept_values),
        null=float(values[0] / values[-1]),
        second=float(values[1] / values[-1]),
        condition=condition(moments),
        effective_rank=effective_rank(moments.sxx),
        dynamic_range=float(spread.max() / spread.median()),
        first_position_in=float(x[first].mean() / x[~first].mean()),
        first_position_out=float(y[first].mean() / y[~first].mean()),
    )
