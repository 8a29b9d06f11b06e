"""One forward pass, every FFN (or attention, or layer): moments per document fold, heaviest rows, a bounded sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Module
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core import intervals
from howlinear.core.ceilings import decompose, outputs_vary
from howlinear.core.moments import Folds, Moments, participation_ratio
from howlinear.errors import InputError
from howlinear.instrument.as_rows import rows_of
from howlinear.instrument.massive import HeavyRows, HeavyRowsKeeper
from howlinear.instrument.perplexity import HeldOutLosses
from howlinear.models.calls import input_of, stream_of
from howlinear.models.checks import check_count, check_flags, evaluating
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.forward import check_passed_once, logits, running, trunk
from howlinear.models.load import model_of
from howlinear.text.rows import Rows, batch_of, batches, check, draw, fold_indices, fold_of, tokens_of

NO_FLOAT64 = "device mps has no float64, which moments are kept in: use cpu"


@dataclass(frozen=True, eq=False)
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

    @classmethod
    def at(
        cls,
        rows: Rows,
        places: Int64[Tensor, " rows"],
        x: Float[Tensor, "rows d_in"],
        y: Float[Tensor, "rows d_out"],
    ) -> Sample:
        """Build the sample of a block's inputs and outputs at `places`, which are counted through the sequences."""
        seq_len = rows.ids.shape[1]
        sequence, position = places // seq_len, places % seq_len
        return cls(x, y, position, rows.ids[sequence, position], rows.test[sequence], rows.fold[sequence])

    def folds(self, test: bool) -> list[Int64[Tensor, " some"]]:
        """Indices of the rows of each document fold of one side, folds in order."""
        return fold_indices(self.test, self.fold, test)

    def select(self, mask: Bool[Tensor, " rows"]) -> Sample:
        """The rows where `mask` holds."""
        if not mask.any():
            raise InputError(
                f"none of the {len(mask)} sampled rows is of the kind that is asked for: capture with a larger sample"
            )
        return Sample(**{name: values[mask] for name, values in vars(self).items()})

    def moments(self, test: bool) -> list[Moments]:
        """Moments per document fold of one side's rows, folds in order."""
        widths = self.x.shape[1], self.y.shape[1]
        return [Moments(*widths).update(self.x[rows], self.y[rows]) for rows in self.folds(test)]


@dataclass(frozen=True, eq=False)
class BlockCapture:
    """The moments and rows that are kept of one block.

    Attributes:
        train: moments per document fold of the train rows.
        test: moments per document fold of the held-out rows.
        outputs: moments of the held-out outputs alone: y as the inputs, so Σ(y − ȳ)(y − ȳ)ᵀ is `outputs.sxx`.
        sample: the bounded sample of rows; None if none was asked for.
        heavy: the rows with the heaviest outputs, massive ones among them; None if only moments were kept.
    """

    train: Sequence[Moments]
    test: Sequence[Moments]
    outputs: Moments
    sample: Sample | None
    heavy: HeavyRows | None = None

    def __repr__(self) -> str:
        fit_on, held_out = (sum(moments.n for moments in side) for side in (self.train, self.test))
        return f"<BlockCapture of {fit_on:,} train and {held_out:,} held-out rows>"

    @property
    def varies(self) -> bool:
        """Whether the outputs vary on both sides, also with any one document fold left out.

        A block with constant outputs has no R²_lin, and one whose outputs vary in a single fold has no interval of it.
        """
        for side in (self.train, self.test):
            if not all(map(outputs_vary, chain([Moments.total(side)], intervals.left_out(side)))):
                return False
        return True

    def rows(self) -> Sample:
        """The sampled rows, for what needs single rows."""
        if self.sample is None:
            raise InputError("single rows are needed and none were sampled: capture with sample=4096 or more")
        return self.sample

    def rows_in_folds(self) -> Sample:
        """The sampled rows, of two document folds or more on each side, so that folds can be left out.

        Raises:
            InputError: none were sampled, or those of a side are of a single fold.
        """
        sample = self.rows()
        for test, side in ((True, "held-out"), (False, "train")):
            if len(sample.folds(test)) < 2:
                raise InputError(f"the sample's {side} rows need two document folds: sample more rows")
        return sample

    def heavy_rows(self) -> HeavyRows:
        """The rows with the heaviest outputs."""
        if self.heavy is None:
            raise InputError("the heaviest rows are needed and only moments were kept: capture the block again")
        return self.heavy

    def massive(self) -> HeavyRows:
        """The rows of massive outputs (`instrument.massive`)."""
        return self.heavy_rows().beyond()

    def ordinary(self) -> BlockCapture:
        """The block without its massive rows."""
        return self.without(self.massive())

    def without(self, left_out: HeavyRows) -> BlockCapture:
        """The block without some of its heavy rows: moments of all others, and neither sample nor heavy rows.

        Raises:
            InputError: a document fold would be left without rows.
        """
        left_out = left_out.to(self.outputs.mean_x.device)
        outputs = self.outputs - left_out.outputs()
        return BlockCapture(self._others(left_out, test=False), self._others(left_out, test=True), outputs, None)

    def to(self, device: torch.device | str | int) -> BlockCapture:
        """The block with its moments on a device; itself if they are there already, or in files."""
        device = torch.device(device)
        if self.outputs.mean_x.device == device or isinstance(self.train, Folds):
            return self
        train, test = ([moments.to(device) for moments in side] for side in (self.train, self.test))
        return replace(self, train=train, test=test, outputs=self.outputs.to(device))

    def _others(self, left_out: HeavyRows, test: bool) -> Sequence[Moments]:
        """Moments per fold of the rows of a side that are not left out, computed when asked for if the side's are."""
        folds = self.test if test else self.train

        def others(fold: int) -> Moments:
            return folds[fold] - left_out.moments(test, fold)

        if isinstance(folds, Folds):
            return Folds([partial(others, fold) for fold in range(len(folds))])
        return [others(fold) for fold in range(len(folds))]


class LazyBlocks(Mapping[int, BlockCapture]):
    """Blocks, in order of depth, that are read or made whenever they are asked for: none are kept in memory."""

    def __init__(self, makers: Mapping[int, Callable[[], BlockCapture]]):
        self.makers = dict(sorted(makers.items()))

    def __getitem__(self, block: int) -> BlockCapture:
        return self.makers[block]()

    def __iter__(self) -> Iterator[int]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)


def capture(
    model: Any,
    rows: Any,
    blocks: int | Iterable[int] | None = None,
    sample: int = 0,
    seed: int = 0,
    batch_size: int = 16,
    progress: bool = False,
    losses: HeldOutLosses | None = None,
    site: str = "ffn",
) -> dict[int, BlockCapture]:
    """Run the model once over `rows` and keep what describes each block.

    Args:
        model: the model; left exactly as it was.
        rows: sequences with their split and folds; padding is left out throughout. Or anything that makes such rows: a
            text, token ids, what a tokenizer returns (`as_rows.rows_of`).
        blocks: which blocks, or which one; all by default.
        sample: how many rows to keep as they are, drawn without replacement.
        seed: seed of that draw.
        batch_size: sequences in a forward pass.
        progress: show a bar.
        losses: gets those of the held-out sequences, for which the model runs with its head; by default without.
        site: what to capture of each block: `ffn`, `attention`, or the whole `layer` and what it adds to the residual
            stream (`ffn_sites.KINDS`).

    Returns:
        Block → `BlockCapture`.

    Raises:
        InputError: an empty side, inputs that the model cannot read, a sample of inputs without token ids, activations
            that are not finite (the message names block and batch), or a device without float64.
    """
    batch_size = check_count("batch_size", batch_size)
    check_count("sample", sample, least=0)
    check_count("seed", seed, least=0)
    check_flags(progress=progress)
    model = model_of(model)
    rows = rows_of(rows, model)
    return capture_batches(model, rows, batches(rows, batch_size), blocks, sample, seed, progress, losses, site)


def capture_batches(
    model: PreTrainedModel,
    rows: Rows,
    indices: list[Tensor],
    blocks: int | Iterable[int] | None = None,
    sample: int = 0,
    seed: int = 0,
    progress: bool = False,
    losses: HeldOutLosses | None = None,
    site: str = "ffn",
) -> dict[int, BlockCapture]:
    """Capture some batches of `rows`, with the folds that these touch, for callers that take the rows step by step.

    `indices` are the sequences of each batch, all from one document fold (`rows.batches`).
    """
    if model.device.type == "mps":
        raise InputError(NO_FLOAT64)
    check(model, rows)
    chosen = sites(model, blocks, site)
    collector = Collector(rows, indices, sample, seed)
    sequences = sum(len(batch) for batch in indices)
    bar = tqdm(total=sequences, unit="seq", desc="capture", disable=not progress)
    with bar, running(model), evaluating(model), hooked(chosen, collector.keep), torch.no_grad():
        for number, batch in enumerate(indices):
            collector.start(number)
            inputs = batch_of(model, rows, batch)
            # The hooks collect what passes the sites; the head runs for losses alone.
            if losses is not None and losses.wants(batch):
                losses.update(batch, logits(model, inputs))
            else:
                trunk(model, inputs, chosen[-1])
            bar.update(len(batch))
    return {each.block: collector.finish(each).to("cpu") for each in chosen}


@contextmanager
def hooked(listened: list[Site], keep: Callable[[Site, Tensor, Tensor], None]) -> Iterator[None]:
    """While the context lasts, call `keep(site, x, y)` at every pass through a site.

    Both are of shape (batch, seq_len, d) or (batch · seq_len, d). Copy what must outlive the call: the model may
    overwrite it, as Falcon adds attention to y in place.

    Raises:
        InputError: a pass runs through a site more than once, or a site returns no tensor.
    """
    inputs: dict[int, Tensor] = {}

    def note_input(site: Site, module: Module, args: tuple, named: dict) -> None:
        check_passed_once(id(inputs), site)
        x = input_of(module, args, named)
        inputs[site.block] = x.clone()  # what runs next may overwrite it, as an activation in place does

    def pass_on(site: Site, _: Module, __: tuple, output: Any) -> None:
        if site.block not in inputs:
            raise InputError(f"{site.name} runs before {site.input_name}: give sites the module that takes x first")
        x, y = inputs.pop(site.block), stream_of(output)
        if not isinstance(y, Tensor):
            raise InputError(
                f"{site.name} returns a {type(output).__name__}, no tensor: give the modules inside it "
                "that take x and return y, as in load_model(…, sites=…)"
            )
        if site.kind == "layer":
            wide = torch.promote_types(y.dtype, torch.float32)
            y = y.to(wide) - x.to(y.device, wide)
        keep(site, x, y)

    with ExitStack() as stack:
        for site in listened:
            stack.enter_context(site.input.register_forward_pre_hook(partial(note_input, site), with_kwargs=True))
            stack.enter_context(site.output.register_forward_hook(partial(pass_on, site)))
        yield


@torch.no_grad()
def read_tokens(
    model: PreTrainedModel,
    rows: Rows,
    listened: list[Site],
    batches: Iterable[Tensor],
    keep: Callable[[Site, Tensor, Tensor, Tensor, Tensor], None],
    task: str = "tokens",
    progress: bool = False,
    predicted: Callable[[Tensor, Tensor], None] | None = None,
) -> None:
    """Run batches of sequences, and call `keep(site, x, y, sequence, position)` with the rows of each that a site sees.

    `x` and `y`, shapes (n, d), are without padding; `sequence` and `position`, shape (n,), say where each row is. With
    `predicted`, the model's head runs too, and it is called with each batch and its logits.
    """
    batch = torch.empty(0, dtype=torch.long, device="cpu")

    def keep_tokens(site: Site, x: Tensor, y: Tensor) -> None:
        keep(site, *tokens_of(rows, batch, site.name, x, y))

    with running(model), evaluating(model), hooked(listened, keep_tokens):
        for batch in tqdm(batches, unit="batch", desc=task, disable=not progress):
            inputs = batch_of(model, rows, batch)
            if predicted is None:
                trunk(model, inputs, listened[-1])
            else:
                predicted(batch, logits(model, inputs))


class _Block:
    """What a collector keeps of one block while batches run."""

    def __init__(self, x: Tensor, y: Tensor, sampled: int):
        d_in, d_out = x.shape[1], y.shape[1]
        self.moments: dict[tuple[bool, int], Moments] = {}  # (held out?, fold) → moments
        self.files: dict[tuple[bool, int], Path] = {}  # (held out?, fold) → file, if written to one
        self.outputs = Moments(d_out, 0, y.device)
        self.dtype = x.dtype
        self.finite: list[Bool[Tensor, ""]] = []  # batch by batch
        self.sampled = [torch.empty(sampled, width, dtype=torch.float32, device="cpu") for width in (d_in, d_out)]
        self.heavy = HeavyRowsKeeper()


class Collector:
    """A collector of what the hooks see of the batches, one after the other.

    With a folder, the moments of a fold are written there as soon as the next fold begins, so that only one fold's are
    in memory; `rows.batches` come fold by fold.
    """

    def __init__(self, rows: Rows, indices: list[Tensor], sample: int = 0, seed: int = 0, folder: Path | None = None):
        self.rows = rows
        self.indices = indices
        self.folds = [fold_of(rows, batch) for batch in indices]
        self.drawn, self.slot = draw(rows, sample, seed)
        self.blocks: dict[int, _Block] = {}
        self.folder = folder
        self.number = 0

    def start(self, number: int) -> None:
        """Begin a batch: the rows that come next are of its sequences."""
        if self.folds[number] != self.folds[self.number]:
            self._put_away(self.folds[self.number])
        self.number = number

    def keep(self, site: Site, x: Tensor, y: Tensor) -> None:
        """Add what a site has read and written to the moments of the batch's fold, and to the sample."""
        x, y, sequence, position = tokens_of(self.rows, self.indices[self.number], site.name, x, y)
        if site.block not in self.blocks:
            self.blocks[site.block] = _Block(x, y, len(self.drawn))
        block = self.blocks[site.block]

        held_out, fold = self.folds[self.number]
        if (held_out, fold) not in block.moments:
            block.moments[held_out, fold] = Moments(x.shape[1], y.shape[1], x.device)
        moments = block.moments[held_out, fold]
        try:
            moments.update(x, y)
            if held_out:
                block.outputs.update(y)
        except InputError as error:
            raise InputError(f"{error}{self._place(site, self.number)}") from error
        block.finite.append(moments.finite)  # read by `finish`: here it would wait for a device
        block.heavy.update(x, y, sequence, position, held_out, fold)
        if len(self.drawn):
            if self.rows.read_by(site.name)[0] is None:
                raise InputError(f"a sample is of tokens of the text, which {site.name} does not read: ask for none")
            slot = self.slot[sequence, position]
            drawn = slot >= 0
            for sampled, seen in zip(block.sampled, (x, y), strict=True):
                sampled[slot[drawn]] = seen[drawn.to(seen.device)].float().cpu()

    def finish(self, site: Site) -> BlockCapture:
        """Return what was kept of a site's block; its moments are on the device that summed them, or in files.

        Raises:
            InputError: a row was not finite (the message names the first such batch), or a batch did not pass the site.
        """
        block = self.blocks.get(site.block)
        if block is None or len(block.finite) < len(self.indices):
            passes = "nothing passes" if block is None else f"{len(block.finite)} of {len(self.indices)} batches pass"
            leave = "leave it out, by blocks=" if self.blocks else "name modules that it runs, by sites="
            raise InputError(f"{passes} block {site.block} ({site.name}) in this model: {leave}")
        finite = torch.stack(block.finite).tolist()
        if not all(finite):
            raise InputError(f"NaN or infinity among the rows{self._place(site, finite.index(False))}")
        self._put_away(self.folds[-1])
        sides = []
        for test in (False, True):
            folds = [fold for fold in sorted({*self.folds}) if fold[0] == test]
            if self.folder is None:
                sides.append([block.moments[fold] for fold in folds])
            else:
                sides.append(Folds([partial(_read_moments, block.files[fold]) for fold in folds]))
        outputs = block.outputs if self.folder is None else block.outputs.cpu()
        sample = Sample.at(self.rows, self.drawn, *block.sampled) if len(self.drawn) else None
        return BlockCapture(*sides, outputs, sample, block.heavy.finish())

    def _put_away(self, fold: tuple[bool, int]) -> None:
        """Move the moments of a fold to the folder, if there is one."""
        if self.folder is None:
            return
        for number, block in self.blocks.items():
            if fold in block.moments:
                block.files[fold] = self.folder / f"moments-{number}-{fold[0]:d}-{fold[1]}.safetensors"
                save_file(block.moments.pop(fold).cpu().tensors(), block.files[fold])

    def _place(self, site: Site, number: int) -> str:
        """Say where a row was not finite, as the end of a sentence."""
        sequences = self.indices[number].tolist()
        return (
            f" at block {site.block} ({site.name}), in the batch of sequences {sequences}: "
            f"this model overflows on this text in {self.blocks[site.block].dtype}, or its weights hold NaN"
        )


def _read_moments(file: Path) -> Moments:
    return Moments.from_tensors(load_file(file))


def describe(captured: BlockCapture) -> dict[str, float]:
    """Describe a block's inputs, as a referee asked the paper: on train rows, with the sample for position 0.

    The data dictionary (`files/columns.yaml`, `01_capture`) says what each number is.

    Raises:
        InputError: nothing was sampled, or no row at position 0.
    """
    sample = captured.rows()
    first = sample.position == 0
    if not first.any():
        raise InputError("no sampled row is at position 0: capture with sample=4096 or more")
    norm_x = sample.x.norm(dim=1)
    norm_y = sample.y.norm(dim=1)

    moments = sum(captured.train)
    inputs = decompose(moments)
    # All eigenvalues of the correlation matrix, the null ones too, ascending
    values = torch.linalg.eigvalsh(inputs.scale[:, None] * moments.sxx * inputs.scale).clamp_min(0)
    deviation = moments.sxx.diagonal().sqrt()
    return {
        "rank": inputs.rank,
        "null": float(values[0] / values[-1]),
        "second": float(values[1] / values[-1]),
        "condition": inputs.condition,
        "effective_rank": participation_ratio(moments.sxx),
        "dynamic_range": float(deviation.max() / deviation.median()),
        "first_position_in": float(norm_x[first].mean() / norm_x[~first].mean()),
        "first_position_out": float(norm_y[first].mean() / norm_y[~first].mean()),
    }
