"""R²_lin of a model that is larger than memory, measured layer by layer: all rows pass one layer before the next.

At any time memory holds one layer, one block's moments, and the residual stream of every sequence. A block is solved
when all rows have passed, and its result goes to a file, from which its map is read on demand. Each layer gets what it
gets in an ordinary forward pass, in the same batches, so the numbers are the same.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
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

from howlinear.core.moments import Folds
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, Collector, hooked
from howlinear.instrument.distributed import current_group, gather, join_captures, own_share
from howlinear.instrument.perplexity import HeldOutLosses, if_finite
from howlinear.instrument.profile import Profile, Solved, defined, solve
from howlinear.instrument.profile_files import load_profile, save_profile
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.checks import evaluating, name_of
from howlinear.models.ffn_sites import Site, device_of, pattern_of, sites, width_of
from howlinear.models.forward import Inputs, running
from howlinear.models.layerwise import InseparableError, Layerwise
from howlinear.models.load import QuantisedError, dtype_of, load_model, load_on_disk, model_of
from howlinear.models.shards import fills_memory, is_on_disk
from howlinear.models.sources import loading, unchecked
from howlinear.models.work import StreamFiles, open_work, reading_work
from howlinear.text.rows import FOLDS, Rows, batch_of, batches, check

LOGITS = 2**27
"""Bytes of logits that the head may return at once, unless a single sequence has more."""


TRAVELLING = 5
"""About how many copies of a block's moments are in memory while they are sent to the process that adds them up: each
process has its own and a packed copy, and the receiver has those received, unpacked and added up."""


# --- Which models


def open_model(
    name: str | Path,
    layerwise: bool | None = None,
    dtype: str | torch.dtype | None = None,
    sites: str | None = None,
    device: str = "cpu",
) -> PreTrainedModel:
    """Open a model given by name, as `load_model` does, or with weights that stay in their files if `layerwise`.

    By default these stay there if there is no room for them and the moments of all blocks, of which each of several
    processes has its own.

    Raises:
        SourceError: see `load_model`.
        InputError: see `load_model`; or it neither fits nor can be read by layer; or quantised weights with
            `layerwise`.
    """
    dtype_of(dtype)  # refuse an unknown dtype here: below it would be taken for a fault of the weights
    excess = None if layerwise is False else _excess(name, dtype)
    if excess is None and not layerwise:
        return load_model(name, dtype=dtype, sites=sites).to(device)
    try:
        model = load_on_disk(name, dtype, sites, device)
        pattern_of(model)  # refused if its FFNs cannot be found
    except QuantisedError as reason:
        if layerwise:
            raise
        # How much memory these take cannot be told from their files.
        warnings.warn(f"not measured layer by layer: {reason}", stacklevel=3)
        return load_model(name, dtype=dtype, sites=sites).to(device)
    except InputError as reason:
        return _load_if_room(name, reason, dtype, sites, device)
    if excess is not None:
        warnings.warn(f"{excess}: measured layer by layer", stacklevel=3)
    return model


def open_given(model: Any, layerwise: bool | None = None, work: Path | str | None = None) -> PreTrainedModel:
    """Open a model given by name, as `open_model` does, or take one that is there.

    A folder of `work` is about models layer by layer, so it asks for one.

    Raises:
        InputError: see `open_model`; or `layerwise` with a model in memory.
    """
    if isinstance(model, str | Path):
        model = open_model(model, True if layerwise is None and work is not None else layerwise)
    model = model_of(model, on_disk=True)
    if layerwise and not is_on_disk(model):
        raise InputError("layerwise is for models by name, as in hl.compress('gpt2', …, layerwise=True): leave it out")
    return model


def load_whole(model: PreTrainedModel, reason: InseparableError) -> PreTrainedModel:
    """Load the whole model into memory, if it fits, since its layers cannot be called one by one.

    Raises:
        InputError: it does not fit.
    """
    if not is_on_disk(model):
        warnings.warn(f"not measured layer by layer: {reason}", stacklevel=3)
        return model
    noted = getattr(model.config, "howlinear_sites", None)
    return _load_if_room(model.name_or_path, reason, model.dtype, noted, model.howlinear_shards.device)


def _load_if_room(
    name: str | Path, reason: InputError, dtype: str | torch.dtype | None, sites: str | None, device: str
) -> PreTrainedModel:
    excess = _excess(name, dtype)
    if excess is not None:
        raise InputError(f"{excess}, and layer by layer it cannot be measured: {reason}") from reason
    warnings.warn(f"not measured layer by layer: {reason}", stacklevel=4)
    return load_model(name, dtype=dtype, sites=sites).to(device)


def _excess(name: str | Path, dtype: str | torch.dtype | None) -> str | None:
    """Say how much memory a folder's weights and the moments of all blocks take, if that is more than is free.

    All processes get the same answer: it is too much if it is for one of them. Those of a machine share its memory.
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
    group = current_group()
    on_this_machine = 1 if group.alone else int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
    needed = (weights + moments) * on_this_machine
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"{name} takes {needed / 1e9:.1f} GB with the moments of all blocks, and {free / 1e9:.1f} are free"


def moments_bytes(width: int) -> int:
    """Compute the bytes of one block's moments: Sxx and Sxy of each fold and Σyyᵀ of held-out outputs, d² numbers each.

    Vectors (means, Σy²) are left out: 3 / (2 d) of the whole.
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
    """Measure a model's profile layer by layer; the arguments are those of `measure`.

    Raises:
        InseparableError: the layers of the model cannot be called one by one.
        InputError: see `measure`; or `work` is the folder of another measurement.
        SourceError: a file cannot be read or written.
    """
    chosen = {each.block: each for each in sites(model, blocks, site)}
    check(model, rows)
    every = batches(rows, batch_size)
    indices = own_share(every)
    losses = HeldOutLosses(model, rows)
    # then one fold's moments are in memory, the rest in files; sending them to another process makes copies
    copies = 1 if current_group().alone else TRAVELLING
    tight = any(gather(fills_memory(copies * moments_bytes(width_of(model)))))
    device = model.howlinear_shards.device if is_on_disk(model) else device_of(model)
    about = {"rows": rows.sha256, "blocks": sorted(chosen), "batch_size": batch_size, "site": site}
    with _opened_work(work, model, about, tight) as done, running(model), evaluating(model), torch.no_grad():
        # Rows → the streams before the first layer, or after the last completed one
        text = entered(model, (batch_of(model, rows, batch) for batch in indices), site)
        done.resume(text)
        layers = range(text.passed, len(text.layers))
        for _ in tqdm(layers, initial=text.passed, total=len(text.layers), unit="layer", disable=not progress):
            # All streams through a layer → the moments of its block, in the process that solves for it
            captured = capture_layer(text, rows, every, chosen, done.own if tight else None)
            # Moments → R²_lin and its interval; the layer's weights are released by now
            solved = solve({block: _fold_by_fold(capture.to(device)) for block, capture in captured.items()})
            del captured  # before the next layer's
            done.keep(text, Profile(name_of(model), rows, solved, None, site=site))

        # The streams after the last layer → losses, of held-out sequences
        if losses.predicts:
            with text.head() as predict:
                for place, batch in enumerate(indices):
                    if losses.wants(batch):
                        for part in torch.arange(len(batch), device="cpu").split(_at_once(model, rows)):
                            inputs = batch_of(model, rows, batch[part])
                            losses.update(batch[part], predict(inputs, text.streams[place][part]))
            text.streams.clear()
        losses.parts = [part for of_process in gather(losses.parts) for part in of_process]

        solved = done.solved()  # complete, since all processes have got as far as their losses
        defined(solved)  # raises if no block has an R²_lin
        perplexity = if_finite("perplexity", losses.perplexity)
        costs = None
        if swap and perplexity is not None:
            maps = {block: answer.ceiling.map for block, answer in solved.items()}
            size = max(1, min(batch_size // 2, _at_once(model, rows)))
            swapped = partial(swap_costs, model, maps, rows, size, progress, site, layerwise=True)
            costs = if_finite("costs of swaps", swapped)
        gather(None)  # all processes have read the results: the folder may be removed
        return Profile(name_of(model), rows, solved, perplexity, costs=costs, site=site)


def entered(model: PreTrainedModel, inputs: Iterable[Inputs], site: str) -> Layerwise:
    """Bring a text up to the first layer, in every process or in none: a process without batches would see no error.

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
    text: Layerwise, rows: Rows, batches: list[Tensor], chosen: Mapping[int, Site], folder: Path | None = None
) -> dict[int, BlockCapture]:
    """Move this process's share of the batches through their next layer; return its block, if chosen, in one process.

    The moments of finished folds are written to the folder, if any.
    """
    number, share = text.passed, own_share(batches)
    here = [chosen[number]] if number in chosen else []
    collector = Collector(rows, share, folder=folder)
    with hooked(here, collector.keep):
        text.advance(collector.start)
    return join_captures({each.block: collector.finish(each) for each in here if share}, rows, batches, turn=number)


def _fold_by_fold(block: BlockCapture) -> BlockCapture:
    """Have the moments without massive rows computed for one fold at a time, instead of held for all folds."""
    train, test = (
        Folds([partial(folds.__getitem__, fold) for fold in range(len(folds))]) for folds in (block.train, block.test)
    )
    return replace(block, train=train, test=test)


def _at_once(model: PreTrainedModel, rows: Rows) -> int:
    """Return how many sequences pass the head together."""
    vocabulary = model.config.get_text_config().vocab_size
    return max(1, LOGITS // (4 * vocabulary * rows.seq_len))


# --- What is done, on disk


class Work:
    """A folder of results, one file per block, and of the streams after the last completed layer.

    The streams are written last: a layer is completed once they are there. Each of several processes has a subfolder
    for its own streams and moments, and the results of all lie side by side.
    """

    def __init__(self, folder: Path, keeps_streams: bool, tight: bool):
        """Use an existing folder, which all processes see; if memory is `tight`, moments are written there as well."""
        self.folder = folder
        self.keeps_streams = keeps_streams
        self.in_step = keeps_streams or tight
        self.own = folder if current_group().alone else folder / f"process-{current_group().rank + 1}"
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} here: name one that all machines share, as work")
        self.own.mkdir(exist_ok=True)
        self.streams = StreamFiles(self.own)

    def resume(self, text: Layerwise) -> None:
        """Load the streams after the last layer that all processes have completed."""
        passed = max(set.intersection(*gather(self.streams.passed())), default=None)
        if passed is None:
            return
        text.resume(passed, self.streams)

    def keep(self, text: Layerwise, answer: Profile) -> None:
        """Write the result of the layer that the streams have just passed, if it has a block, and the streams."""
        for block in answer:
            save_profile(answer, self.folder / f"block-{block}.safetensors", force=True)
        if self.keeps_streams:
            self.streams.save(text.passed, text.streams)
        if self.in_step:
            gather(None)  # no process still needs what is removed now
        for file in self.own.glob("moments-*.safetensors"):
            file.unlink(missing_ok=True)
        self.streams.remove_but(text.passed)

    def solved(self) -> dict[int, Solved]:
        """Read block → its result, whose map is read when it is used."""
        solved: dict[int, Solved] = {}
        for file in self.folder.glob("block-*.safetensors"):
            with reading_work(file):
                solved |= load_profile(file).solved
        return dict(sorted(solved.items()))


@contextmanager
def _opened_work(
    folder: Path | str | None, model: PreTrainedModel, about: Mapping[str, Any], tight: bool
) -> Iterator[Work]:
    """Open a work folder, in the first process for all; if none is named, a temporary one, removed afterwards."""
    if not current_group().alone:
        about = {**about, "processes": current_group().size}
    opened = None
    with ExitStack() as stack:
        if current_group().first and folder is None:
            # A file that is still in use may not be removable: it stays until the system tidies up.
            temporary = tempfile.TemporaryDirectory(prefix="howlinear-", ignore_cleanup_errors=True)
            opened = Path(stack.enter_context(temporary))
        elif current_group().first:
            opened = open_work(folder, model, about)
        yield Work(gather(opened)[0], folder is not None, tight)
