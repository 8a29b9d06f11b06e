"""What a little training of the swapped layer mends, beside what it does for the block that was never swapped.

After a swap only the new layer is trained, on text that the fit may see: 200 steps of Adam at 1e-4 on four sequences
each, the rest of the model frozen (arXiv 2606.19379, section 5.6). A healed line may end below the model as it was;
that says little, since the original block gains from the same steps too. So it gets them: what counts is how far the
healed line stays behind the healed original. A model whose blocks were all made smaller is healed in all of them
(`heal_blocks`), and stands beside the original healed alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam
from transformers import PreTrainedModel

from howlinear.core.batches import shuffled_batches
from howlinear.core.ceilings import AffineMap
from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.instrument.perplexity import change, held_out_folds, losses, ratio_of
from howlinear.models.ffn_sites import sites, width_of
from howlinear.models.forward import logits
from howlinear.models.replace import copy_of, linear_layers
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows

SEQUENCES = 4  # a step


@dataclass(frozen=True)
class Healing:
    """Changes of perplexity on held-out text against the model as it is, paired.

    The intervals leave out held-out document folds and take the trained layers as given: that another order of the
    training text, or other training text, would train other layers is not in them. Another `seed` shows how far the
    order alone moves a change; notebook 06 prints it for one model.

    Attributes:
        swapped: with the line in the block's place.
        line: with the line after its training.
        original: with the block itself after the same training.
        behind: the healed line's perplexity less the healed original's.
    """

    swapped: Estimate
    line: Estimate
    original: Estimate
    behind: Estimate


def healing(
    model: PreTrainedModel,
    block: int,
    line: AffineMap,
    fitted: Int64[Tensor, "m seq_len"],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    steps: int = 200,
    rate: float = 1e-4,
    seed: int = 0,
) -> Healing:
    """Heal the line in a block's place, and the block itself.

    Args:
        model: the model; left as it was.
        block: which block.
        line: its map.
        fitted: token ids to train on, of text that the fit may see, shape (m, seq_len).
        text: rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.
        steps: of Adam, for each of the two.
        rate: its learning rate.
        seed: of the order of sequences, the same for both.

    Raises:
        InputError: as for `heal`.
    """
    (site,) = sites(model, [block])
    if site.ffn is None:
        raise InputError(f"block {block} is no single module, which healing trains a copy of: give another model")
    ids, fold = held_out_folds(text)
    base = losses(model, ids)

    def held_losses(module: nn.Module) -> Tensor:
        with swap(model, {block: module}):
            return losses(model, ids)

    straight = _linear(model, line)
    swapped = held_losses(straight)
    healed_line = held_losses(heal(model, block, straight, fitted, steps, rate, seed))
    healed_original = held_losses(heal(model, block, site.ffn, fitted, steps, rate, seed))
    return Healing(
        swapped=change(base, swapped, fold).estimate,
        line=change(base, healed_line, fold).estimate,
        original=change(base, healed_original, fold).estimate,
        behind=change(healed_original, healed_line, fold).estimate,
    )


def heal(
    model: PreTrainedModel,
    block: int,
    module: nn.Module,
    ids: Int64[Tensor, "m seq_len"],
    steps: int = 200,
    rate: float = 1e-4,
    seed: int = 0,
) -> nn.Module:
    """A copy of a module, trained in a block's place on the model's own loss while everything else stands still.

    Args:
        model: the model; left as it was.
        block: which block.
        module: what to train, rows to rows.
        ids: token ids, shape (m, seq_len).
        steps: of Adam; each takes `SEQUENCES` sequences, in a fresh order every pass.
        rate: learning rate.
        seed: of that order.

    Raises:
        InputError: no step to take, a rate that is none, or no sequences of two tokens.
    """
    trained = copy.deepcopy(module)
    with _frozen(model), swap(model, {block: trained}):
        _train(model, list(trained.parameters()), ids, steps, rate, seed)
    return trained.requires_grad_(False)


def heal_blocks(
    model: PreTrainedModel, ids: Int64[Tensor, "m seq_len"], steps: int = 200, rate: float = 1e-4, seed: int = 0
) -> PreTrainedModel:
    """A copy of a model whose feed-forward blocks are all trained on, while everything else stands still.

    Args:
        model: the model, compressed or not; left as it was.
        ids: token ids, shape (m, seq_len).
        steps: of Adam; each takes `SEQUENCES` sequences, in a fresh order every pass.
        rate: learning rate.
        seed: of that order.

    Raises:
        InputError: no step to take, a rate that is none, or no sequences of two tokens.
    """
    trained = copy_of(model)
    with _frozen(trained):
        parameters = [parameter for site in sites(trained) for parameter in site.parameters()]
        _train(trained, parameters, ids, steps, rate, seed)
    return trained


def healed_beside(
    copies: Mapping[str, PreTrainedModel],
    fitted: Int64[Tensor, "m seq_len"],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    steps: int = 200,
    rate: float = 1e-4,
    seed: int = 0,
) -> pd.DataFrame:
    """Models healed alike, each beside the first of them, which is to be the original.

    Args:
        copies: name → model, the original first; left as they were.
        fitted: token ids to train on, of text that the fit may see, shape (m, seq_len).
        text: rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.
        steps: of Adam, for each of them.
        rate: its learning rate.
        seed: of the order of sequences, the same for all.

    Returns:
        A row a model: `name`; `ratio`, its perplexity over the original's, both as they are; `healed`, over the
        original's as it is, and `behind`, over that of the original healed alike, each with the ends of its 95 %
        interval over document folds (`healed_low`, …); and `seconds`, the CPU time that healing took.

    Raises:
        InputError: as for `heal_blocks`.
    """
    ids, fold = held_out_folds(text)
    rows = []
    original: Tensor | None = None  # losses of the first, as it is and healed
    original_healed: Tensor | None = None
    for name, model in copies.items():
        before = losses(model, ids)
        began = process_time()
        trained = heal_blocks(model, fitted, steps, rate, seed)
        seconds = process_time() - began
        after = losses(trained, ids)
        del trained  # before the next copy is made
        original = before if original is None else original
        original_healed = after if original_healed is None else original_healed
        ratio, _, _ = ratio_of(original, before, fold)
        healed, healed_low, healed_high = ratio_of(original, after, fold)
        behind, behind_low, behind_high = ratio_of(original_healed, after, fold)
        row = {"name": name, "ratio": ratio}
        row |= {"healed": healed, "healed_low": healed_low, "healed_high": healed_high}
        row |= {"behind": behind, "behind_low": behind_low, "behind_high": behind_high}
        rows.append(row | {"seconds": seconds})
    return pd.DataFrame(rows)


def _train(
    model: PreTrainedModel,
    parameters: list[nn.Parameter],
    ids: Int64[Tensor, "m seq_len"],
    steps: int,
    rate: float,
    seed: int,
) -> None:
    """Train parameters of a model on its own loss.

    Raises:
        InputError: no step to take, a rate that is none, or no sequences of two tokens.
    """
    if steps < 1 or not rate > 0 or ids.shape[0] < 1 or ids.shape[1] < 2:
        raise InputError(
            f"healing needs a step or more, a positive rate and sequences of two tokens, got steps={steps}, "
            f"rate={rate} and ids of shape {tuple(ids.shape)}"
        )
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimiser = Adam(parameters, lr=rate)
    with torch.enable_grad():
        for batch in shuffled_batches(len(ids), SEQUENCES, steps, seed):
            tokens = ids[batch].to(model.device)
            predictions = logits(model, tokens)[:, :-1]
            loss = cross_entropy(predictions.flatten(0, 1).float(), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def healing_table(found: Mapping[str, Healing], block: int) -> pd.DataFrame:
    """Changes of perplexity, a row a model and a layer.

    Returns:
        Columns `model`, `block`, `layer` ("line", "line, healed", "original, healed"), `delta`, `low`, `high`.
    """
    rows = []
    for model, healed in found.items():
        layers = {"line": healed.swapped, "line, healed": healed.line, "original, healed": healed.original}
        for layer, delta in layers.items():
            row = {"model": model, "block": block, "layer": layer}
            rows.append(row | {"delta": delta.value, "low": delta.low, "high": delta.high})
    return pd.DataFrame(rows)


def _linear(model: PreTrainedModel, line: AffineMap) -> nn.Module:
    """A map as one linear layer of the model's width, precision and device."""
    layer = linear_layers(width_of(model), None)
    with torch.no_grad():
        layer.weight.copy_(line.weight.T)  # y = x W + b, and a Linear keeps Wᵀ
        layer.bias.copy_(line.bias)
    return layer.to(model.device, model.dtype)


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts no parameter of the model asks for a gradient; then each does as it did."""
    asked = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, wanted in asked.items():
            parameter.requires_grad_(wanted)
