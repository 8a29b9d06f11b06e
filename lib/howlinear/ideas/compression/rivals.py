"""Signals that others choose blocks by, each as its own paper describes it, to stand beside the price.

Four of them, none of which is ours. Three look at the residual stream and at no loss; the fourth measures what it
predicts.

- *Block influence* of ShortGPT (Men et al. 2024, arXiv 2403.03853): 1 − mean cosine of a whole layer's input and
  output, attention and FFN together. It was made to drop layers, so it says nothing of a map.
- *Sub-layer cosine* of LLM-Drop (He et al. 2024, "What matters in transformers?", arXiv 2406.15786): the same around
  the FFN alone. The norm counts as a part of the sub-layer, so what is compared is the residual stream that the norm
  reads, s, with the stream once the FFN has written to it, s + y.
- *CCA bound* of NBL (Erdogan, Tonin & Cevher 2025, arXiv 2505.21077): the error of the best line from s to s + y,
  relative to the variance of s + y, is at most Σ (1 − ρᵢ²) over the canonical correlations ρᵢ of the two. The paper
  replaces attention by it; here it is the FFN's.
- *Replace one*: put each map in its block's place on a few sequences of the text to fit on, and measure the loss. The
  honest rival, and the dear one: a run of the model per block.

Moments of a capture know neither s nor the full second moments of outputs to fit on, so the first three come from a
forward pass of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from howlinear.core.ceilings import whitening
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import hooked
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.forward import trunk

WRITES = 1e-3
"""How far, relative to it, a layer's output may be from s + y before we say that the FFN does not add y to s."""


@dataclass(frozen=True)
class Rivals:
    """What three papers say of a block, the smaller the more dispensable; no unit.

    Attributes:
        influence: ShortGPT's, 1 − mean cosine of the layer's input and output; 0 to 2.
        cosine: LLM-Drop's, 1 − mean cosine of s and s + y, the residual stream around the FFN; 0 to 2.
        bound: NBL's, Σ (1 − ρᵢ²) over the canonical correlations of s and s + y; 0 to their width.
    """

    influence: float
    cosine: float
    bound: float


def rivals(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], blocks: list[int] | None = None, batch_size: int = 16
) -> dict[int, Rivals]:
    """What ShortGPT, LLM-Drop and NBL say of each block, from one forward pass without the head.

    Args:
        model: a model whose norms come before attention and FFN; left as it was.
        ids: token ids of the text to fit on, shape (n, seq_len). The bound is low by chance where there are not many
            more rows than twice the width.
        blocks: which blocks; all by default.
        batch_size: sequences in a pass.

    Returns:
        Block → `Rivals`.

    Raises:
        InputError: no rows, or it cannot be told where an FFN's norm reads the residual stream.
    """
    if not ids.numel():
        raise InputError(f"ids of shape {tuple(ids.shape)}: give at least one sequence to look at the stream of")
    watched = {site.block: _Stream(model, site) for site in sites(model, blocks)}

    def keep(site: Site, x: Tensor, y: Tensor) -> None:
        watched[site.block].note_ffn(x, y)

    hooks = [hook for stream in watched.values() for hook in stream.hooks()]
    try:
        with torch.no_grad(), hooked([stream.site for stream in watched.values()], keep):
            for batch in ids.split(batch_size):
                trunk(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {block: stream.finish() for block, stream in watched.items()}


def cosine_distance(before: Float[Tensor, "*batch d"], after: Float[Tensor, "*batch d"]) -> Float[Tensor, " rows"]:
    """1 − cosine of each row with the row at the same place, float64, shape (rows,)."""
    return 1 - cosine_similarity(before.flatten(0, -2).double(), after.flatten(0, -2).double(), dim=1)


def cca_bound(moments: Moments, outputs: Moments) -> float:
    """Σ (1 − ρᵢ²) over the canonical correlations ρᵢ: at least the share of variance that the best line misses.

    With whitened z = (x − x̄) A and v = (y − ȳ) B, the ρᵢ are the singular values of the correlations zᵀv / n. Null
    directions of either side are left out; each direction of y beyond the inputs' number counts as 1, as in the paper.

    Args:
        moments: of the rows (x, y).
        outputs: of the outputs of the same rows alone, as inputs: `outputs.sxx` is Syy.

    Raises:
        InputError: moments of different rows, or a side that does not vary.
    """
    if moments.n != outputs.n or moments.d_out != outputs.d_in:
        raise InputError(
            f"moments of {moments.n} rows with {moments.d_out} outputs, and of {outputs.n} rows with {outputs.d_in}: "
            "give those of the same rows"
        )
    of_x = whitening(moments)
    of_y = whitening(outputs)
    # Cxx^(−1/2) Cxy Cyy^(−1/2), whose singular values are the canonical correlations
    correlations = of_x.T @ (moments.sxy / moments.n) @ of_y
    rho = torch.linalg.svdvals(correlations).clamp(max=1)
    missing = of_y.shape[1] - len(rho)  # outputs beyond the inputs' number
    return float(missing + (1 - rho.square()).sum())


def replace_one(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 16,
) -> dict[int, float]:
    """What each map costs alone in its block's place on text to fit on, in nats per token.

    Args:
        model: a causal model; left as it was.
        maps: block → map.
        ids: token ids of the text to fit on, shape (n, seq_len).
        batch_size: sequences in a pass.

    Raises:
        InputError: a model that predicts no next token, or a loss that is not finite.
    """
    base, swapped = swap_losses(model, maps, ids, batch_size)
    return {block: float((after - base).mean()) for block, after in swapped.items()}


class _Stream:
    """The residual stream around one layer and around its FFN, batch by batch.

    s is the input of the module, the norm, that returned the FFN's own input. That holds where attention and FFN come
    one after the other and where both read the layer's input (GPT-NeoX): y is added to what the norm read.
    """

    def __init__(self, model: PreTrainedModel, site: Site):
        self.site = site
        found = re.match(r"(.*?\.\d+)\.", site.name)
        self.layer = model.get_submodule(found.group(1) if found else site.name)
        self.returned: list[tuple[Tensor, Tensor]] = []  # what the layer's modules got and returned
        self.rows = 0
        self.influence = 0.0  # Σ 1 − cos
        self.cosine = 0.0
        self.moments: Moments | None = None
        self.outputs: Moments | None = None

    def hooks(self) -> list:
        """Listen to the layer and to the modules in it."""
        listening = [
            self.layer.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.layer.register_forward_hook(self._end),
        ]
        for module in self.layer.children():
            listening.append(module.register_forward_hook(self._note_module))
        return listening

    def _begin(self, layer: nn.Module, args: tuple, named: dict) -> None:
        self.entered = args[0] if args else named["hidden_states"]
        self.returned.clear()

    def _note_module(self, module: nn.Module, args: tuple, output: Tensor | tuple) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            self.returned.append((args[0], output))

    def note_ffn(self, x: Tensor, y: Tensor) -> None:
        """Find what the norm read that x comes from."""
        self.before = next((got for got, gave in self.returned if gave is x), None)
        self.written = y.clone()  # Falcon adds attention to y in place

    def _end(self, layer: nn.Module, args: tuple, output: Tensor | tuple) -> None:
        left = output if isinstance(output, Tensor) else output[0]
        if self.before is None or not self._adds(left):
            raise InputError(
                f"block {self.site.block} ({self.site.name}) does not add its output to what a norm before it read: "
                "these signals are about models with the norm before the FFN"
            )
        before = self.before.flatten(0, -2).double()
        after = before + self.written.flatten(0, -2).double()
        self.rows += len(before)
        self.influence += float(cosine_distance(self.entered, left).sum())
        self.cosine += float(cosine_distance(before, after).sum())
        if self.moments is None:
            width = before.shape[1]
            self.moments = Moments(width, width, before.device)
            self.outputs = Moments(width, 0, before.device)
        self.moments.update(before, after)
        self.outputs.update(after)

    def _adds(self, left: Tensor) -> bool:
        """Whether the layer returned s + y, or reads its input in the FFN and in attention alike."""
        if self.before is self.entered:
            return True
        off = (left - self.before - self.written).norm()
        return bool(off <= WRITES * left.norm())

    def finish(self) -> Rivals:
        """The means, and the bound."""
        bound = cca_bound(self.moments.to("cpu"), self.outputs.to("cpu"))
        return Rivals(self.influence / self.rows, self.cosine / self.rows, bound)
