"""What a little training of the swapped layer gains, compared with the same training of the original block.

After a swap only the new layer is trained, on the training side: 200 steps of Adam at 1e-4 on four sequences each, the
rest of the model frozen (arXiv 2606.19379, section 5.6). The perplexity with a healed line may end below that of the
model as it was; this says little, since the original block gains from the same steps too. So the original is healed as
well: what counts is how far the healed line stays behind it. A model whose blocks were all made smaller is healed in
all of them (`heal_blocks`), and compared with the original healed in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam
from transformers import PreTrainedModel

from howlinear.core.batches import shuffled_batches
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.instrument.perplexity import change, held_out, losses, ratio_of
from howlinear.models.ffn_sites import sites
from howlinear.models.forward import logits
from howlinear.models.pairs import ffn_module
from howlinear.models.replace import copy_of
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows

SEQUENCES = 4  # per step
RATE = 1e-4  # of Adam

LAYERS = ("line", "line, healed", "original, healed")
"""What stands in the block's place."""

BEHIND = "line less original, both healed"
"""How far the healed line's perplexity lies above the healed original's."""


def healing(
    model: PreTrainedModel,
    block: int,
    line: AffineMap,
    fitted: Int64[Tensor, "m seq_len"],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    steps: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Heal the line in a block's place, and the block itself: paired changes of perplexity on held-out text.

    The table has a row for each of `LAYERS` against the model as it is, and one for `BEHIND`; intervals take the
    trained layers as given.
    """
    (site,) = sites(model, [block])
    ffn = ffn_module(model, site)
    scored = held_out(text)

    def losses_with(module: nn.Module) -> Tensor:
        with swap(model, {block: module}):
            return losses(model, scored)

    with swap(model, {block: line}):
        linear = sites(model, [block])[0].ffn
    after = {
        "line": losses_with(linear),
        "line, healed": losses_with(heal(model, block, linear, fitted, steps, seed)),
        "original, healed": losses_with(heal(model, block, ffn, fitted, steps, seed)),
    }
    base = losses(model, scored)
    changes = {layer: change(base, after[layer], scored.fold) for layer in LAYERS}
    changes[BEHIND] = change(after["original, healed"], after["line, healed"], scored.fold)
    rows = []
    for layer, delta in changes.items():
        rows.append({"block": block, "layer": layer} | delta.columns("delta"))
    return pd.DataFrame(rows)


def heal(
    model: PreTrainedModel, block: int, module: nn.Module, ids: Int64[Tensor, "m seq_len"], steps: int, seed: int = 0
) -> nn.Module:
    """Train a copy of a module in a block's place on the model's own loss, with everything else frozen."""
    trained = copy.deepcopy(module)
    with swap(model, {block: trained}):
        _train(model, list(trained.parameters()), ids, steps, seed)
    return trained.requires_grad_(False)


def heal_blocks(model: PreTrainedModel, ids: Int64[Tensor, "m seq_len"], steps: int, seed: int = 0) -> PreTrainedModel:
    """Copy a model and train all its feed-forward blocks further, with everything else frozen."""
    trained = copy_of(model)
    parameters = [parameter for site in sites(trained) for parameter in site.parameters()]
    _train(trained, parameters, ids, steps, seed)
    return trained


def healed_beside(
    copies: Mapping[str, PreTrainedModel],
    fitted: Int64[Tensor, "m seq_len"],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    steps: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Heal several models alike (name → model), and compare each with the first, which must be the original."""
    scored = held_out(text)
    original: tuple[Tensor, Tensor] | None = None  # losses of the first model as it is, and healed
    rows = []
    for name, model in copies.items():
        before = losses(model, scored)
        trained = heal_blocks(model, fitted, steps, seed)
        after = losses(trained, scored)
        del trained  # before the next copy is made
        original = original or (before, after)
        ratio = ratio_of(original[0], before, scored.fold).value
        healed = ratio_of(original[0], after, scored.fold)
        behind = ratio_of(original[1], after, scored.fold)
        rows.append({"name": name, "ratio": ratio} | healed.columns("healed") | behind.columns("behind"))
    return pd.DataFrame(rows)


def _train(
    model: PreTrainedModel, parameters: list[nn.Parameter], ids: Int64[Tensor, "m seq_len"], steps: int, seed: int
) -> None:
    """Train parameters of a model on its own loss, all others frozen: steps of Adam on `SEQUENCES` sequences each."""
    if steps < 1:
        raise InputError(f"healing takes a step or more, got {steps}")
    optimiser = Adam(parameters, lr=RATE)
    with _frozen(model), torch.enable_grad():
        for parameter in parameters:
            parameter.requires_grad_(True)
        for batch in shuffled_batches(len(ids), SEQUENCES, steps, seed):
            tokens = ids[batch].to(model.device)
            predictions = logits(model, tokens)[:, :-1]
            loss = cross_entropy(predictions.flatten(0, 1).float(), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Freeze all parameters of the model in the context; afterwards each requires a gradient as before."""
    asked = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, wanted in asked.items():
            parameter.requires_grad_(wanted)
