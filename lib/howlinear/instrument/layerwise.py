"""R²_lin of a model that is larger than memory: layer after layer, and of each layer all rows before the next.

At any time there is one layer, one block's moments, and of every sequence the residual stream. A block is solved when
all rows have passed, and its answer goes to a file, from which its map is read when it is asked for. What passes a
layer is what passes it in an ordinary forward pass, in the same batches, so the numbers are the same.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoConfig, PreTrainedModel

from howlinear.core.moments import Folds, Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, Collector, hooked
from howlinear.instrument.distributed import current_group, gather, join_captures, own_share
from howlinear.instrument.perplexity import HeldOutLosses
from howlinear.instrument.profile import Profile, Solved, defined, solve
from howlinear.instrument.profile_files import load_profile, save_profile
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.checks import evaluating, name_of
from howlinear.models.ffn_sites import Site, device_of, pattern_of, sites, width_of
from howlinear.models.forward import Inputs, running
from howlinear.models.layerwise import InseparableError, Layerwise
from howlinear.models.load import QuantisedError, dtype_of, load_model, load_on_disk
from howlinear.models.shards import fills_memory, is_on_disk
from howlinear.models.sources import loading, unchecked
from howlinear.models.work import StreamFiles, open_work, reading_work
from howlinear.text.rows import FOLDS, Rows, batch_of, batches, check, folds_of

LOGITS = 2**27
"""Bytes of logits that the head may return at once, if one sequence has no more."""


TRAVELLING = 5
"""About how many times a block's moments are in memory on their way to the process that adds them up: what each process
has and packs of them, and there what is received, unpacked and added up."""


# --- Which models


def opened(
    name: str | Path,
    layerwise: bool | None = None,
    dtype: str | torch.dtype | None = None,
    sites: str | None = None,
    device: str = "cpu",
) -> PreTrainedModel:
    """A model by its name; its weights stay in their files if that is asked for, or where they do not fit.

    Args:
        name: as of `load_model`.
        layerwise: whether they are to stay there; by default where there is no room for them and for all moments,
            which of several processes each has its own of.
        dtype: as of `load_model`.
        sites: as of `load_model`.
        device: where the model runs.

    Raises:
        SourceError: as of `load_model`.
        InputError: as of `load_model`; there is no room, and no other way; or quantised weights are to stay there.
    """
    dtype_of(dtype)  # refused, if so, before it is taken for what is wrong with the weights
    excess = None if layerwise is False else _excess(name, dtype)
    if excess is None and not layerwise:
        return load_model(name, dtype=dtype, sites=sites).to(device)
    try:
        model = load_on_disk(name, dtype, sites, device)
        pattern_of(model)  # refused where one would have to try which module it is, for which weights are needed
    except QuantisedError as reason:
        if layerwise:
            raise
        # How much room these take cannot be told from their files.
        warnings.warn(f"not measured layer by layer: {reason}", stacklevel=3)
        return load_model(name, dtype=dtype, sites=sites).to(device)
    except InputError as reason:
        return _whole(name, reason, dtype, sites, device)
    if excess is not None:
        warnings.warn(f"{excess}: measured layer by layer", stacklevel=3)
    return model


def whole(model: PreTrainedModel, reason: InseparableError) -> PreTrainedModel:
    """The same model in memory, if it fits there: its layers cannot be called one by one.

    Raises:
        InputError: it does not fit.
    """
    if not is_on_disk(model):
        warnings.warn(f"not measured layer by layer: {reason}", stacklevel=3)
        return model
    noted = getattr(model.config, "howlinear_sites", None)
    return _whole(model.name_or_path, reason, model.dtype, noted, model.howlinear_shards.device)


def _whole(
    name: str | Path, reason: InputError, dtype: str | torch.dtype | None, sites: str | None, device: str
) -> PreTrainedModel:
    excess = _excess(name, dtype)
    if excess is not None:
        raise InputError(f"{excess}, and layer by layer it cannot be measured: {reason}") from reason
    warnings.warn(f"not measured layer by layer: {reason}", stacklevel=4)
    return load_model(name, dtype=dtype, sites=sites).to(device)


def _excess(name: str | Path, dtype: str | torch.dtype | None) -> str | None:
    """In words, how much more than is free a folder's weights take together with the moments of all blocks; or None.

    Several processes come to one answer: it is too much if it is for one of them. Those of a machine share its memory.
    """
    return next(filter(None, gather(_excess_here(name, dtype))), None)


def _excess_here(name: str | Path, dtype: str | torch.dtype | None) -> str | None:
    source = unchecked(str(name))
    if not Path(source).is_dir():
        return None
    in_files = sum(file.stat().st_size for file in Path(source).glob("*.safetensors") if file.is_file())
    with loading(source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        saved = getattr(config, "dtype", None) or torch.float32
        weights = in_files * dtype_of(dtype).itemsize / saved.itemsize
        body = config.get_text_config()
        depth, width = (getattr(body, name, None) for name in ("num_hidden_layers", "hidden_size"))
    known = isinstance(depth, int) and isinstance(width, int)
    moments = depth * moments_bytes(width) if known else 0
    needed = (weights + moments) * current_group().on_this_machine
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"{name} takes {needed / 1e9:.1f} GB with the moments of all blocks, and {free / 1e9:.1f} are free"


def moments_bytes(width: int) -> int:
    """Bytes of one block's moments: Sxx and Sxy of each fold and Σyyᵀ of the held-out outputs, d² numbers each.

    Vectors (means, Σy²) are left out: 3 / (2 d) of it.
    """
    matrices = 2 * (2 * FOLDS) + 1
    return 8 * width**2 * matrices


# --- The measurement


def measure_layers(
    model: PreTrainedModel,
    rows: Rows,
    blocks: list[int],
    batch_size: int,
    site: str,
    swap: bool,
    work: Path | str | None,
    progress: bool,
) -> Profile:
    """The profile of a model, one layer after the other; arguments as of `measure`.

    Raises:
        InseparableError: the layers of the model cannot be called one by one.
        InputError: as of `measure`; or `work` is the folder of another measurement.
        SourceError: a file cannot be read or written.
    """
    chosen = {each.block: each for each in sites(model, blocks, site)}
    check(model, rows)
    every = batches(rows, batch_size)
    indices = own_share(every)
    folds_here, folds = folds_of(rows, indices), folds_of(rows, every)
    losses = HeldOutLosses(model, rows)
    # then of the moments one fold's are there, the rest in files; on their way to another process there are copies
    copies = 1 if current_group().alone else TRAVELLING
    tight = any(gather(fills_memory(copies * moments_bytes(width_of(model)))))
    device = model.howlinear_shards.device if is_on_disk(model) else device_of(model)
    about = {"rows": rows.sha256, "blocks": sorted(chosen), "batch_size": batch_size, "site": site}
    with _opened_work(work, model, about, tight) as done, running(model), evaluating(model), torch.no_grad():
        # Rows → the streams before the first layer, or behind the last one that is done
        text = entered(model, (batch_of(model, rows, batch) for batch in indices), site)
        done.resume(text)
        layers = range(text.passed, len(text.layers))
        for number in tqdm(layers, initial=text.passed, total=len(text.layers), unit="layer", disable=not progress):
            # All streams through a layer → the moments of its block, in the process that solves for it
            captured = capture_layer(text, rows, indices, chosen, done.own if tight else None)
            captured = join_captures(captured, folds_here, folds, turn=number)
            # Moments → R²_lin and its interval, by now without the layer
            solved = solve({block: _fold_by_fold(capture.to(device)) for block, capture in captured.items()})
            del captured  # before the next layer's
            done.keep(text, Profile(name_of(model), rows, solved, None, site=site))

        # The streams behind the last layer → losses, where sequences are held out
        if losses.predicts:
            with text.head() as predict:
                for place, batch in enumerate(indices):
                    if losses.wants(batch):
                        for part in torch.arange(len(batch)).split(_at_once(model, rows)):
                            inputs = batch_of(model, rows, batch[part])
                            losses.update(batch[part], predict(inputs, text.streams[place][part]))
            text.streams.clear()
        losses.parts = [part for of_process in gather(losses.parts) for part in of_process]

        solved = done.solved()  # all are there, since all processes have come as far as their losses
        defined(solved)  # refused where no block has an R²_lin
        costs = None
        if swap:
            maps = {block: answer.ceiling.map for block, answer in solved.items()}
            size = max(1, min(batch_size // 2, _at_once(model, rows))) if losses.predicts else batch_size
            costs = swap_costs(model, maps, rows, size, progress, site, layerwise=True)
        gather(None)  # all have read the answers: the folder may go
        return Profile(name_of(model), rows, solved, losses.perplexity(), costs=costs, site=site)


def entered(model: PreTrainedModel, inputs: Iterable[Inputs], site: str) -> Layerwise:
    """The text before the first layer, in every process or in none: one without batches would see no reason.

    Raises:
        InseparableError: the layers of the model cannot be called one by one.
    """
    text, reason = None, None
    try:
        text = Layerwise(model, inputs, site)
    except InseparableError as error:
        reason = error
    for refused in gather(reason):
        if refused is not None:
            raise refused
    return text


def capture_layer(
    text: Layerwise, rows: Rows, indices: list[Tensor], chosen: Mapping[int, Site], folder: Path | None = None
) -> dict[int, BlockCapture]:
    """Move a text through its next layer, and keep what describes the block there.

    Args:
        text: the streams of all batches.
        rows: the sequences that these are of.
        indices: those of each batch.
        chosen: block → its site, of those that are wanted.
        folder: where moments of folds go that are not at work; they stay in memory by default.

    Returns:
        Block → its capture; nothing where the layer has no block that is wanted, or there are no batches.
    """
    here = [chosen[text.passed]] if text.passed in chosen else []
    collector = Collector(rows, indices, folder=folder)
    with hooked(here, collector.keep):
        text.advance(collector.start)
    return {each.block: collector.finish(each) for each in here if indices}


def _fold_by_fold(block: BlockCapture) -> BlockCapture:
    """The same; of its rows without the massive ones the moments are there for one fold at a time, and not for all."""

    def one_by_one(folds: Sequence[Moments]) -> Folds:
        return Folds([partial(folds.__getitem__, fold) for fold in range(len(folds))])

    return replace(block, train=one_by_one(block.train), test=one_by_one(block.test))


def _at_once(model: PreTrainedModel, rows: Rows) -> int:
    """How many sequences pass the head together."""
    vocabulary = model.config.get_text_config().vocab_size
    return max(1, LOGITS // (4 * vocabulary * rows.seq_len))


# --- What is done, on disk


class Work:
    """A folder of answers, one a layer, and of the streams behind the last of these.

    The streams are written last: a layer is done once they are there. Of several processes each has a folder within
    for its own streams and moments, and the answers of all lie side by side.
    """

    def __init__(self, folder: Path, keeps_streams: bool, tight: bool):
        """Use a folder that is there.

        Args:
            folder: all processes see it.
            keeps_streams: whether they are written at all.
            tight: whether moments are, which the process that solves reads from the folders of all.

        Raises:
            InputError: this process does not see the folder.
        """
        self.folder = folder
        self.keeps_streams = keeps_streams
        self.in_step = keeps_streams or tight
        self.own = folder if current_group().alone else folder / f"process-{current_group().rank + 1}"
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} here: name one that all machines share, as work")
        self.own.mkdir(exist_ok=True)
        self.streams = StreamFiles(self.own)

    def resume(self, text: Layerwise) -> None:
        """Put the streams behind the last layer that is done, in all processes."""
        passed = max(set.intersection(*gather(self.streams.passed())), default=None)
        if passed is None:
            return
        text.resume(passed, self.streams)

    def keep(self, text: Layerwise, answer: Profile) -> None:
        """Write the answer of the layer that the streams have just passed, if it has a block, and the streams."""
        for block in answer:
            save_profile(answer, self.folder / f"block-{block}.safetensors", force=True)
        if self.keeps_streams:
            self.streams.save(text.passed, text.streams)
        if self.in_step:
            gather(None)  # nobody needs what goes now
        for file in self.own.glob("moments-*.safetensors"):
            file.unlink(missing_ok=True)
        self.streams.remove_but(text.passed)

    def solved(self) -> dict[int, Solved]:
        """Block → its answer, whose maps are read when they are used."""
        solved: dict[int, Solved] = {}
        for file in self.folder.glob("block-*.safetensors"):
            with reading_work(file):
                solved |= load_profile(file).solved
        return dict(sorted(solved.items()))


@contextmanager
def _opened_work(
    folder: Path | str | None, model: PreTrainedModel, about: Mapping[str, Any], tight: bool
) -> Iterator[Work]:
    """A folder to work in, which the first process opens for all; unless it is named, it goes afterwards."""
    if not current_group().alone:
        about = {**about, "processes": current_group().size}
    opened = None
    with ExitStack() as stack:
        if current_group().first and folder is None:
            # Where a file that is still read cannot be removed, it stays until the system tidies up.
            temporary = tempfile.TemporaryDirectory(prefix="howlinear-", ignore_cleanup_errors=True)
            opened = Path(stack.enter_context(temporary))
        elif current_group().first:
            opened = open_work(folder, model, about)
        yield Work(gather(opened)[0], folder is not None, tight)
