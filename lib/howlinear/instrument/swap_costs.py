"""What it costs in perplexity to put a map in a block's place, each block alone (paper, figure 2).

To change the FFN of block k changes nothing that was computed before it, so that is recorded once and recalled. A pass
through all of a batch keeps what every layer returned, and in the layers that will be changed what attention returned
before the FFN began; a later pass of the same batch has these modules return it at once. The model's own code runs
throughout, so embeddings, masks, residual stream, last norm and head are as ever, and the result is the same to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.instrument.distributed import gather, is_first, own_share
from howlinear.instrument.perplexity import (
    LOSS_BATCH,
    Change,
    batch_losses,
    change,
    finite_losses,
    layer_losses,
    scored_of,
    targets_of,
)
from howlinear.models.calls import FAILURES
from howlinear.models.checks import check_count, check_ids, evaluating, unwrapped
from howlinear.models.ffn_sites import device_of, sites
from howlinear.models.forward import Batches, Inputs, logits, running
from howlinear.models.layers import forwards_replaced, stack_of
from howlinear.models.layerwise import Layerwise
from howlinear.models.load import check_causal, model_of
from howlinear.models.shards import is_on_disk
from howlinear.models.swap import maps_and_site, swap
from howlinear.text.rows import Rows, batch_of

Name = TypeVar("Name", bound=Hashable)


def swap_costs(
    model: Any,
    maps: Any,
    text: Any,
    batch_size: int = LOSS_BATCH,
    progress: bool = False,
    site: str | None = None,
    layerwise: bool = False,
) -> dict[int, Change]:
    """What replacing each block alone by its map costs in perplexity, without fine-tuning (paper, figure 2).

    Within `distributed.joined`, all processes call this with the same arguments and share the sequences.

    Args:
        model: the model; left as it was.
        maps: block → map, as `swap` takes it; or a profile.
        text: as of `perplexity`.
        batch_size: sequences in a pass.
        progress: show a bar.
        site: what the maps stand for, as of `swap`.
        layerwise: move all sequences through the model layer by layer (`models.layerwise`), as is done in any case with
            a model whose weights stay on disk.

    Returns:
        Block → the change of perplexity, its interval paired over document folds, see `perplexity.change`.

    Raises:
        InputError: a loss is not finite, a block that the model does not have, or fewer than two document folds.
    """
    batch_size = check_count("batch_size", batch_size)
    progress = progress and is_first()
    model = model_of(model, on_disk=True)
    maps, site = maps_and_site(maps, site)
    if maps:
        sites(model, list(maps), site)  # refused, if so, before a text is read
    scored = swap_rows(text, model)
    if layerwise or is_on_disk(model):
        before, after = _layer_losses(model, maps, scored, batch_size, progress, site)
    else:
        before, after = swap_losses(model, maps, scored, batch_size, progress, site)
    return {block: change(before, means, scored.fold, scored.predicted) for block, means in after.items()}


def swap_rows(text: Any, model: PreTrainedModel) -> Rows:
    """The sequences that a cost is of, from whatever a person has at hand.

    Raises:
        InputError: a model that predicts no next token, nothing to predict, or all of one document fold.
    """
    check_causal(model)
    scored = scored_of(text, model)
    if len(scored.fold.unique()) < 2:
        raise InputError("what a swap costs has its interval from two held-out document folds or more: give more rows")
    return scored


def swap_losses(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    scored: Rows,
    batch_size: int = LOSS_BATCH,
    progress: bool = False,
    site: str = "ffn",
) -> tuple[Float[Tensor, " n"], dict[int, Float[Tensor, " n"]]]:
    """`losses` of the model as it is, and with each block alone replaced by its map.

    What comes before a swapped block is computed once for all swaps (`Recording`); the losses are the same to the bit.

    Args:
        model: the model; left as it was.
        maps: block → map, as `swap` takes it.
        scored: the sequences, of `perplexity.held_out`.
        batch_size: sequences in a pass.
        progress: show a bar.
        site: what the maps stand for, as of `swap`.

    Raises:
        InputError: a model that predicts no next token, a loss that is not finite, or a block that it does not have.
    """
    model = unwrapped(model)
    check_causal(model)
    check_ids(model, scored.ids)
    swaps = {block: (block, replacement) for block, replacement in maps.items()}
    targets = targets_of(scored)

    def score(places: Int64[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        return batch_losses(model, batch_of(model, scored, places), targets[places])

    first = batch_of(model, scored, torch.arange(1))
    batches = own_share(torch.arange(len(targets)).split(batch_size))
    base, swapped = _passes(model, swaps, batches, first, score, progress, site)
    return _of_all_processes(base), {block: _of_all_processes(parts) for block, parts in swapped.items()}


def _of_all_processes(parts: list[Float[Tensor, " _"]]) -> Float[Tensor, " n"]:
    """The losses of all batches, from those of the share that each process has run.

    Raises:
        InputError: one is not finite; names the sequence.
    """
    return finite_losses([part for of_process in gather(parts) for part in of_process])


@torch.no_grad()
def _layer_losses(
    model: PreTrainedModel, maps: Mapping[int, Callable], scored: Rows, batch_size: int, progress: bool, site: str
) -> tuple[Float[Tensor, " n"], dict[int, Float[Tensor, " n"]]]:
    """`swap_losses` with one layer's weights at a time."""
    check_causal(model)
    check_ids(model, scored.ids)
    targets = targets_of(scored)
    places = own_share(torch.arange(len(scored.ids)).split(batch_size))
    inputs = [batch_of(model, scored, some) for some in places]
    with running(model), evaluating(model):
        text, swapped = swapped_streams(model, maps, inputs, site, progress)
        expected = [targets[some] for some in places]
        before = _of_all_processes(layer_losses(text, text.streams, inputs, expected))
        after = {block: _of_all_processes(layer_losses(text, swapped[block], inputs, expected)) for block in maps}
    return before, after


@torch.no_grad()
def swapped_streams(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    inputs: Batches,
    site: str = "ffn",
    progress: bool = False,
) -> tuple[Layerwise, dict[int, list[Tensor]]]:
    """The streams behind the last layer of as many models as there are swaps, one layer's weights at a time.

    A swapped model's streams part from those of the whole one in the layer that holds the block, and only the layers
    behind it are computed for them.

    Args:
        model: the model; left as it was.
        maps: block → map, as `swap` takes it; asked for when the block's weights are there.
        inputs: of each batch, as of `forward.trunk`.
        site: what the maps stand for, as of `swap`.
        progress: show a bar.

    Returns:
        The text behind the model's last layer; and block → of each batch, the stream with that block alone replaced.
    """
    swapped: dict[int, list[Tensor]] = {}
    text = Layerwise(model, inputs, site)
    for number in tqdm(range(len(text.layers)), unit="layer", desc="swaps", disable=not progress):
        with text.layer() as run:
            for streams in swapped.values():
                streams[:] = [run(place, stream) for place, stream in enumerate(streams)]
            if number in maps:
                with swap(model, {number: maps[number]}, site):
                    swapped[number] = [run(place, stream.clone()) for place, stream in enumerate(text.streams)]
            text.advance()
    return text, swapped


@torch.inference_mode()
def swapped_passes(
    model: PreTrainedModel,
    swaps: Mapping[Name, tuple[int, Callable[[Tensor], Tensor]]],
    ids: Int64[Tensor, "n seq_len"],
    score: Callable[[Int64[Tensor, "batch seq_len"]], Tensor],
    batch_size: int,
) -> tuple[list[Tensor], dict[Name, list[Tensor]]]:
    """What `score` makes of every batch, of the model as it is and with each swap alone.

    Args:
        model: a causal model; left as it was.
        swaps: name → the block, and the map in its place, as `swap` takes it.
        ids: token ids, shape (n, seq_len).
        score: runs the model on a batch.
        batch_size: sequences in a pass.

    Returns:
        Scores of the batches in order: of the model, and name → of the model with that swap.

    Raises:
        InputError: a model that predicts no next token, or a block that it does not have.
    """
    model = unwrapped(model)
    check_causal(model)
    tokens = ids.clamp_min(0)  # `NO_TARGET` stands for padding
    check_ids(model, tokens)
    return _passes(model, swaps, ids.split(batch_size), tokens[:1].to(device_of(model)), score)


@torch.inference_mode()
def _passes(
    model: PreTrainedModel,
    swaps: Mapping[Name, tuple[int, Callable[[Tensor], Tensor]]],
    batches: Sequence[Tensor],
    first: Inputs,
    score: Callable[[Tensor], Tensor],
    progress: bool = False,
    site: str = "ffn",
) -> tuple[list[Tensor], dict[Name, list[Tensor]]]:
    """`swapped_passes` of batches of whatever `score` takes; on `first` it is tried whether layers can be recalled."""
    blocks = list(dict.fromkeys(block for block, _ in swaps.values()))
    base: list[Tensor] = []
    swapped: dict[Name, list[Tensor]] = {name: [] for name in swaps}
    with running(model), evaluating(model):
        recording = None
        if blocks and resumable(model, blocks, first, site):
            recording = Recording(model, blocks, site)
        for batch in tqdm(batches, unit="batch", desc="swaps", disable=not progress):
            # Once as it is; then with each swap alone, from the swapped block on.
            with recording.record() if recording else nullcontext():
                base.append(score(batch))
            for name, (block, replacement) in swaps.items():
                resumed = recording.resumed(block) if recording else nullcontext()
                with swap(model, {block: replacement}, site), resumed:
                    swapped[name].append(score(batch))
    return base, swapped


class Recording:
    """What the layers of a model returned for one batch.

    Memory: as many rows of the batch as there are layers and blocks to be changed together.
    """

    def __init__(self, model: PreTrainedModel, blocks: list[int], site: str = "ffn"):
        """Prepare to resume at these sites of `blocks`.

        Raises:
            InputError: a block that the model does not have.
        """
        self.sites = sites(model, blocks, site)
        self.layers = list(model.get_submodule(stack_of(model, site)))
        self.returned: dict[nn.Module, Any] = {}
        self.before: dict[int, list[nn.Module]] = {}  # block → modules of its layer that run before its FFN

    @contextmanager
    def record(self) -> Iterator[None]:
        """Keep what the next pass returns, in the place of what was kept before."""
        self.returned.clear()
        self.before = {site.block: [] for site in self.sites}
        begun: set[int] = set()  # blocks whose FFN has begun

        def keep(module: nn.Module, _: Any, output: Any) -> None:
            self.returned[module] = _copied(output)

        def begin(block: int, *_: Any) -> None:
            begun.add(block)

        def keep_before(block: int, module: nn.Module, _: Any, output: Any) -> None:
            if block not in begun:
                self.before[block].append(module)
                self.returned[module] = _copied(output)

        with ExitStack() as hooks:
            for layer in self.layers:
                hooks.callback(layer.register_forward_hook(keep).remove)
            for site in self.sites:
                hooks.callback(site.input.register_forward_pre_hook(partial(begin, site.block)).remove)
                for module in self.layers[site.block].children():
                    # what multiplies; a norm does not, and to compute it again is cheap
                    if any(parameter.ndim > 1 for parameter in module.parameters()):
                        hooks.callback(module.register_forward_hook(partial(keep_before, site.block)).remove)
            yield

    @contextmanager
    def resumed(self, block: int) -> Iterator[None]:
        """While it lasts, a pass of the recorded batch computes nothing that comes before the FFN of `block`."""
        recalled = [*self.layers[:block], *self.before[block]]
        with forwards_replaced({module: partial(_replay, self.returned[module]) for module in recalled}):
            yield


def _replay(returned: Any, /, *_: Any, **__: Any) -> Any:
    """A forward that returns what is recorded, a copy: a model may write into what it gets."""
    return _copied(returned)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple | list):
        return type(value)(_copied(item) for item in value)
    return value


@torch.inference_mode()
def resumable(model: PreTrainedModel, blocks: list[int], batch: Inputs, site: str = "ffn") -> bool:
    """Whether layers need no more of those before them than what they return.

    It is tried at each of `blocks` with a few tokens of `batch`, or with all of its keywords, nothing swapped. False
    for a model whose layers share keys and values, say.
    """
    few = batch[:1, :8] if isinstance(batch, Tensor) else batch
    recording = Recording(model, blocks, site)
    with recording.record():
        whole = logits(model, few)
    try:
        for block in blocks:
            with recording.resumed(block):
                if not torch.equal(logits(model, few), whole):
                    return False
    except FAILURES:
        return False  # a recalled layer leaves nothing behind besides its output
    return True
