"""The cost in perplexity of putting a map in a block's place, each block alone (paper, figure 2).

Changing the FFN of block k changes nothing that was computed before it. So a text moves through the model layer by
layer (`models.layerwise`), a batch at a time or all of it together, and the streams of a swapped model branch off from
those of the original in the layer that holds the block. The model's own code runs throughout, so embeddings, masks,
residual stream, last norm and head are the same as ever, and the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.instrument.distributed import current_group, gather, own_share
from howlinear.instrument.perplexity import (
    LOSS_BATCH,
    Change,
    change,
    finite_losses,
    mean_losses,
    scored_of,
    targets_of,
)
from howlinear.models.calls import FAILURES
from howlinear.models.checks import check_count, check_flags, check_ids, evaluating, unwrapped
from howlinear.models.ffn_sites import sites
from howlinear.models.forward import Inputs, logits, running
from howlinear.models.layerwise import Layerwise
from howlinear.models.load import check_causal, model_of
from howlinear.models.shards import is_on_disk
from howlinear.models.swap import maps_and_site, swap
from howlinear.text.rows import Rows, batch_of

Map = Callable[[Tensor], Tensor]
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
    """Measure what replacing each block alone by its map costs in perplexity, without fine-tuning (paper, figure 2).

    Within `distributed.joined`, all processes call this with the same arguments and share the sequences.

    Args:
        model: the model; left as it was.
        maps: block → map, as `swap` takes it; or a profile.
        text: as in `perplexity`.
        batch_size: sequences in a pass.
        progress: show a bar.
        site: what the maps replace, as in `swap`.
        layerwise: move all sequences through the model layer by layer (`models.layerwise`); always done for a model
            whose weights stay on disk.

    Returns:
        Block → the change of perplexity, its interval paired over document folds, see `perplexity.change`.

    Raises:
        InputError: a loss is not finite, a block that the model does not have, the profile of another model, or
            fewer than two document folds.
    """
    batch_size = check_count("batch_size", batch_size)
    check_flags(progress=progress, layerwise=layerwise)
    progress = progress and current_group().first
    model = model_of(model, on_disk=True)
    maps, site = maps_and_site(model, maps, site)
    if maps:
        sites(model, list(maps), site)  # refuses unknown blocks before a text is read
    scored = swap_rows(text, model)
    before, after = swap_losses(model, each_alone(maps), scored, batch_size, progress, site, layerwise)
    return {block: change(before, means, scored.fold, scored.predicted) for block, means in after.items()}


def swap_rows(text: Any, model: PreTrainedModel) -> Rows:
    """Return the sequences on which a cost is measured, from a text, rows or token ids.

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
    swaps: Mapping[Name, tuple[int, Map]],
    scored: Rows,
    batch_size: int = LOSS_BATCH,
    progress: bool = False,
    site: str = "ffn",
    layerwise: bool = False,
) -> tuple[Float[Tensor, " n"], dict[Name, Float[Tensor, " n"]]]:
    """Compute the `losses` of the model as it is, and with each swap alone, the same to the bit.

    `swaps` maps a name to a block and its map; a block may have several, see `each_alone`. `scored` are sequences from
    `perplexity.held_out`, and all else is as in `swap_costs`.

    Raises:
        InputError: a model that predicts no next token, a loss that is not finite, or a block that it does not have.
    """
    model = unwrapped(model)
    check_causal(model)
    check_ids(model, scored.ids)
    if swaps:
        sites(model, [block for block, _ in swaps.values()], site)  # refuses blocks that it does not have
    targets = targets_of(scored)
    parts: dict[Name | None, list[Tensor]] = {None: [], **{name: [] for name in swaps}}

    def inputs_of(places: Int64[Tensor, " batch"]) -> Inputs:
        return batch_of(model, scored, places)

    def keep(places: Int64[Tensor, " batch"], name: Name | None, predictions: Tensor) -> None:
        parts[name].append(mean_losses(predictions, targets[places]))

    batches = own_share(torch.arange(len(targets), device="cpu").split(batch_size))
    predict_swapped(model, by_block(swaps), batches, keep, inputs_of, site, progress, layerwise)
    losses = {name: finite_losses([*chain.from_iterable(gather(of_name))]) for name, of_name in parts.items()}
    return losses.pop(None), losses


def each_alone(maps: Mapping[int, Map]) -> dict[int, tuple[int, Map]]:
    """Make one swap per block, named by the block."""
    return {block: (block, replacement) for block, replacement in maps.items()}


def by_block(swaps: Mapping[Name, tuple[int, Map]]) -> Callable[[int], dict[Name, Map]]:
    """Return the function by which `predict_swapped` asks for the swaps of a block."""
    return lambda block: {name: replacement for name, (at, replacement) in swaps.items() if at == block}


@torch.no_grad()
def predict_swapped(
    model: PreTrainedModel,
    swaps_of: Callable[[int], Mapping[Name, Map]],
    batches: Sequence[Tensor],
    keep: Callable[[Tensor, Name | None, Tensor], None],
    inputs_of: Callable[[Tensor], Inputs] = lambda ids: ids,
    site: str = "ffn",
    progress: bool = False,
    layerwise: bool = False,
) -> None:
    """Predict every next token with the model as it is, and with each swap alone.

    `swaps_of` maps a block to its swaps, name → map, and is called when the block's weights are in memory. `keep` is
    called with a batch, the name of a swap and the predictions, batch by batch; the name None, which comes first, is of
    the model as it is. `inputs_of` turns a batch into what the model reads. With `layerwise`, as always for a model
    whose weights stay on disk, all batches move together; otherwise one by one, and if layers cannot be called one by
    one, every swap takes a forward pass of its own.

    Raises:
        InseparableError: `layerwise`, and the layers of the model cannot be called one by one.
    """
    together = layerwise or is_on_disk(model)
    moved = [batches] if together else [[batch] for batch in batches]
    with running(model), evaluating(model):
        separable = together or _is_separable(model, batches, inputs_of, site)
        for some in tqdm(moved, unit="batch", desc="swaps", disable=together or not progress):
            inputs = [inputs_of(batch) for batch in some]
            if not separable:  # a pass through the whole model for every swap
                keep(some[0], None, logits(model, inputs[0]))
                for block in (each.block for each in sites(model, site=site)):
                    for name, replacement in swaps_of(block).items():
                        with swap(model, {block: replacement}, site):
                            keep(some[0], name, logits(model, inputs[0]))
                continue
            text, swapped = _swapped_streams(model, swaps_of, inputs, site, together and progress)
            with text.head() as predict:
                for place, batch in enumerate(some):
                    keep(batch, None, predict(inputs[place], text.streams[place]))
                    for name, streams in swapped.items():
                        keep(batch, name, predict(inputs[place], streams[place]))


def _swapped_streams(
    model: PreTrainedModel,
    swaps_of: Callable[[int], Mapping[Name, Map]],
    inputs: Sequence[Tensor | Mapping[str, Any]],
    site: str,
    progress: bool,
) -> tuple[Layerwise, dict[Name, list[Tensor]]]:
    """Return the text after the model's last layer, and name → the stream of each batch with that swap alone."""
    swapped: dict[Name, list[Tensor]] = {}
    text = Layerwise(model, inputs, site)
    for block in tqdm(range(len(text.layers)), unit="layer", desc="swaps", disable=not progress):
        with text.layer() as run:
            for streams in swapped.values():
                streams[:] = [run(place, stream) for place, stream in enumerate(streams)]
            for name, replacement in swaps_of(block).items():
                with swap(model, {block: replacement}, site):
                    swapped[name] = [run(place, stream.clone()) for place, stream in enumerate(text.streams)]
            text.advance()
    return text, swapped


def _is_separable(
    model: PreTrainedModel, batches: Sequence[Tensor], inputs_of: Callable[[Tensor], Inputs], site: str
) -> bool:
    """Whether layers called one by one give the same as a pass, to the bit; tried with two sequences, each alone.

    Layers that pass something to later ones outside the stream would then find what the other sequence left.
    """
    inputs = [inputs_of(sequence) for sequence in batches[0][:2].split(1)] if batches else []
    try:
        text, _ = _swapped_streams(model, lambda _: {}, inputs, site, progress=False)
        with text.head() as predict:
            streams = zip(inputs, text.streams, strict=True)
            return all(torch.equal(predict(read, stream), logits(model, read)) for read, stream in streams)
    except FAILURES:
        return False
