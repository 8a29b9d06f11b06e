"""Signals that predict which block can go: one number per block, the smaller the cheaper its replacement.

From the map's error r = y − (xW + b), known from the capture
    1 − R²_lin, the paper's criterion (arXiv 2606.19379); E‖r‖², and the same over the residual stream's variance.

From the loss (`price`). A swap adds −r at every token, so to second order, with g and the Fisher information as in
`loss_gradients` and errors taken as independent between tokens,

    Δ loss per token ≈ −E[g·r] + ½ E[(g·r)²] ≈ ½ tr(E[g gᵀ] E[r rᵀ]).

The sign of the first term is not reliable in a trained model; the last form needs second moments alone, so it prices
any other map too. Empirical Fisher: gradients at the text's own labels (its limits: Kunstner, Balles & Hennig 2019).

From the residual stream (`stream`, `cca_bounds`), with s what the FFN's norm reads and s + y the stream behind the FFN
    block influence, ShortGPT (Men et al. 2024, arXiv 2403.03853): 1 − mean cosine of a whole layer's input and output;
    sub-layer cosine, LLM-Drop (He et al. 2024, arXiv 2406.15786): 1 − mean cosine of s and s + y;
    CCA bound, NBL (Erdogan, Tonin & Cevher 2025, arXiv 2505.21077): Σ (1 − ρᵢ²) over the canonical correlations of s
    and s + y, which bounds the error of the best line between them. That paper replaces attention by such lines.

Measured by a run of the model for each block: mean ablation (`ranking.block_costs`), the swap itself on a few sequences
of the training side (`replace_one`), and how far it moves the predictions (`divergences`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from howlinear.core.ceilings import whitening
from howlinear.core.moments import Moments, add_gram
from howlinear.errors import InputError
from howlinear.ideas.compression.loss_gradients import loss_gradients
from howlinear.instrument.capture import hooked
from howlinear.instrument.perplexity import held_out
from howlinear.instrument.swap_costs import each_alone, predict_swapped, swap_losses
from howlinear.models.calls import stream_of
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.forward import trunk
from howlinear.models.layers import stack_of, streams_hooked

REPLACE_ONE = "replace one"
"""The measured signal: the cost of the swap on a few sequences of the training side."""

ADDS_WITHIN = 1e-3
"""Relative distance of a layer's output from s + y beyond which we say that the FFN does not add y to s."""

BATCH = 16  # sequences in a pass
STREAM_BATCH = 8  # sequences whose streams around all layers are held at once


# --- of the loss


@dataclass(frozen=True)
class Price:
    """The price of a block and its map, from one backward pass; g is the loss gradient at the output."""

    metric: Float[Tensor, "d_out d_out"]  # E[g gᵀ], nats² per squared unit of y
    error: Float[Tensor, "d_out d_out"]  # E[r rᵀ], the second moment of the map's error
    paired: float  # ½ E[(g·r)²], nats per token: as `cost`, with g and r of the same token
    slope: float  # −E[g·r], nats per token: the first-order term
    stream: float  # variance of the residual stream after the block, summed over features

    @property
    def cost(self) -> float:
        """½ tr(E[g gᵀ] E[r rᵀ]): the predicted cost of the swap, nats per token."""
        return float((self.metric * self.error).sum() / 2)

    @property
    def residual(self) -> float:
        """E‖r‖²: the same error, every direction weighed alike."""
        return float(self.error.trace())


def price(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 8,
) -> dict[int, Price]:
    """Predict what swapping each block for its map would cost, without swapping any."""
    width = width_of(model)
    metrics = {block: torch.zeros(width, width, dtype=torch.float64, device="cpu") for block in maps}  # Σ g gᵀ
    errors = {block: torch.zeros_like(metric) for block, metric in metrics.items()}  # Σ r rᵀ
    along: dict[int, list[Tensor]] = {block: [] for block in maps}  # g·r, token by token
    streams = {block: Moments(1, width) for block in maps}  # for the variance of its outputs alone

    def add_stream(site: Site, hidden: Tensor) -> None:
        rows = hidden.detach().flatten(0, -2).cpu()
        streams[site.block].update(rows[:, :1], rows)

    def add(block: int, x: Tensor, y: Tensor, g: Tensor) -> None:
        # r = y − (xW + b)
        r = (y.double() - maps[block](x.double())).flatten(0, -2).cpu()
        g = g.flatten(0, -2)
        add_gram(metrics[block], g)
        add_gram(errors[block], r)
        along[block].append((g * r).sum(1))

    with streams_hooked(model, sites(model, list(maps)), add_stream):
        loss_gradients(model, ids, list(maps), add, batch_size)
    # means: of terms with a gradient over the predicted tokens, of the others over all tokens
    predicted = ids[:, 1:].numel()
    prices = {}
    for block in maps:
        products = torch.cat(along[block])
        prices[block] = Price(
            metric=metrics[block] / predicted,
            error=errors[block] / len(products),
            paired=float(products.square().sum()) / predicted / 2,
            slope=-float(products.sum()) / predicted,
            stream=float(streams[block].syy.sum()) / streams[block].n,
        )
    return prices


# --- of the residual stream


class NoPreNormError(InputError):
    """Raised for a layer whose FFN does not add its output to the input of a norm before it."""


Keep = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
"""Takes a block and four tensors of its layer in a batch, each of shape (batch, seq_len, d).

These are the layer's input; s, the input of its FFN's norm, which is the layer's input with or without attention's
output added; y, the FFN's output; and the layer's output.
"""


@contextmanager
def layers_hooked(model: PreTrainedModel, keep: Keep) -> Iterator[None]:
    """In the context, call `keep(block, entered, read, written, left)` behind every layer with a feed-forward block."""
    layers = model.get_submodule(stack_of(model))
    with ExitStack() as hooks:
        for site in sites(model):
            tap = _Tap(site, keep)
            layer = layers[site.block]
            hooks.enter_context(hooked([site], tap.note_ffn))
            hooks.callback(layer.register_forward_pre_hook(tap.enter, with_kwargs=True).remove)
            for module in layer.children():
                hooks.callback(module.register_forward_hook(tap.note_module).remove)
            hooks.callback(layer.register_forward_hook(tap.leave).remove)
        yield


class _Tap:
    """Hooks on one layer, its modules and its FFN.

    s is the input of the module, the norm, that returned the FFN's own input. Whether attention and FFN come one after
    the other or both read the layer's input (GPT-NeoX), y is added to the input of that norm.
    """

    def __init__(self, site: Site, keep: Keep):
        self.site = site
        self.keep = keep
        self.returned: list[tuple[Tensor, Tensor]] = []  # what the layer's modules got and returned

    def enter(self, _: nn.Module, args: tuple, named: dict) -> None:
        self.entered = args[0] if args else named["hidden_states"]
        self.returned.clear()

    def note_module(self, _: nn.Module, args: tuple, output: Tensor | tuple) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            self.returned.append((args[0], output))

    def note_ffn(self, _: Site, x: Tensor, y: Tensor) -> None:
        self.read = next((got for got, gave in self.returned if torch.equal(gave, x)), None)
        self.written = y.clone()  # Falcon adds attention to y in place

    def leave(self, _: nn.Module, __: tuple, output: Tensor | tuple) -> None:
        left = stream_of(output)
        adds = self.read is self.entered  # FFN and attention both read the layer's input
        if not adds and self.read is not None:
            # OPT's FFN reads and writes the rows of all sequences as one
            self.read, self.written = self.read.reshape(left.shape), self.written.reshape(left.shape)
            adds = bool((left - self.read - self.written).norm() <= ADDS_WITHIN * left.norm())
        if not adds:
            raise NoPreNormError(
                f"block {self.site.block} ({self.site.name}) does not add its output to what a norm before it read: "
                "these signals are about models with the norm before the FFN"
            )
        self.keep(self.site.block, self.entered, self.read, self.written, left)


@dataclass(frozen=True)
class Stream:
    """How far the layers of a model turn its residual stream; means over all rows.

    A state is the stream before a layer; the last is that behind all layers, before the norm.
    """

    layers: Float[Tensor, "states states"]  # cosine of each state with each
    attention: Float[Tensor, " layers"]  # 1 − cosine of the stream before attention and behind it
    ffn: Float[Tensor, " layers"]  # the same for the FFN, which is LLM-Drop's sub-layer cosine

    @property
    def influence(self) -> Float[Tensor, " layers"]:
        """1 − cosine of a layer's input and output, ShortGPT's block influence, shape (layers,)."""
        return self.span_distances(1)

    def span_distances(self, count: int) -> Float[Tensor, " starts"]:
        """Compute 1 − cosine of the stream before and behind each span of `count` layers, by the span's first layer."""
        return 1 - self.layers.diagonal(count)


@torch.no_grad()
def stream(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"]) -> Stream:
    """Measure how far every layer and sub-layer turns the residual stream, in one pass."""
    listened = sites(model)
    count = len(listened)
    states: list[Tensor] = []  # of a batch, before each layer and behind the last; directions of length 1
    # Σ cos: of states, around each layer's attention, and around its FFN
    layers = torch.zeros(count + 1, count + 1, dtype=torch.float64, device="cpu")
    attention, ffn = torch.zeros(2, count, dtype=torch.float64, device="cpu")

    def keep(_: int, entered: Tensor, read: Tensor, written: Tensor, left: Tensor) -> None:
        layer = len(states)
        states.append(_directions(entered))
        attention[layer] += states[-1] @ _directions(left - written)
        ffn[layer] += _directions(read) @ _directions(read + written)
        if layer == count - 1:
            states.append(_directions(left))

    with layers_hooked(model, keep):
        for batch in ids.split(STREAM_BATCH):
            states.clear()
            trunk(model, batch, listened[-1])
            directions = torch.stack(states)
            layers += directions @ directions.T
    rows = ids.numel()
    return Stream(layers / rows, 1 - attention / rows, 1 - ffn / rows)


def _directions(rows: Float[Tensor, "batch seq_len d"]) -> Float[Tensor, " batch_seq_len_d"]:
    """All rows, each scaled to length 1, in one vector: a product of two such vectors is a sum of cosines."""
    return normalize(rows.double(), dim=-1).flatten().cpu()


@torch.no_grad()
def cca_bounds(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"]) -> dict[int, float]:
    """Compute NBL's bound of each block, `cca_bound` of s and s + y, by one forward pass without the head."""
    width, last = width_of(model), sites(model)[-1]
    pairs: dict[int, Moments] = {}
    outputs: dict[int, Moments] = {}

    def keep(block: int, _: Tensor, read: Tensor, written: Tensor, __: Tensor) -> None:
        before = read.flatten(0, -2).double()
        after = before + written.flatten(0, -2).double()
        if block not in pairs:
            pairs[block] = Moments(width, width, before.device)
            outputs[block] = Moments(width, 0, before.device)
        pairs[block].update(before, after)
        outputs[block].update(after)

    with layers_hooked(model, keep):
        for batch in ids.split(BATCH):
            trunk(model, batch, last)
    return {block: cca_bound(pairs[block].to("cpu"), outputs[block].to("cpu")) for block in pairs}


def cca_bound(moments: Moments, outputs: Moments) -> float:
    """Σ (1 − ρᵢ²) over the canonical correlations ρᵢ: at least the share of variance that the best line misses."""
    # null directions of either side are left out; a direction of y beyond the number of inputs counts as 1
    whiten_x = whitening(moments)
    whiten_y = whitening(outputs)
    # Cxx^(−1/2) Cxy Cyy^(−1/2), whose singular values are the canonical correlations
    covariance = moments.sxy / moments.n
    correlations = whiten_x.T @ covariance @ whiten_y
    rho = torch.linalg.svdvals(correlations).clamp(max=1)
    beyond = whiten_y.shape[1] - len(rho)
    return float(beyond + (1 - rho.square()).sum())


# --- measured


def replace_one(
    model: PreTrainedModel, maps: Mapping[int, Callable[[Tensor], Tensor]], ids: Int64[Tensor, "n seq_len"]
) -> dict[int, float]:
    """Measure what each map costs alone in its block's place, on sequences of the training side, in nats per token."""
    base, swapped = swap_losses(model, each_alone(maps), held_out(ids), BATCH)
    return {block: float((after - base).mean()) for block, after in swapped.items()}


@torch.no_grad()
def divergences(
    model: PreTrainedModel,
    replacements: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int,
) -> dict[int, float]:
    """Measure KL(p ‖ q) per predicted token, in nats: p of the model as it is, q with one of its blocks replaced."""
    # The second-order expansion is the Fisher price. Unlike a difference of losses it is never negative and has little
    # noise, so two thousand tokens are enough.
    found: dict[int, list[Tensor]] = {block: [] for block in replacements}
    log_p: list[Tensor] = []

    def swaps_of(block: int) -> dict[int, Callable[[Tensor], Tensor]]:
        return {block: replacements[block]} if block in replacements else {}

    def keep(_: Tensor, block: int | None, predictions: Tensor) -> None:
        # sequence by sequence: all at once would take several copies of the predictions
        log_q = [scores.float().log_softmax(-1) for scores in predictions[:, :-1]]
        if block is None:
            log_p[:] = log_q
            return
        # KL = Σ p (log p − log q) of each next token, averaged over a sequence
        pairs = zip(log_p, log_q, strict=True)
        means = [(p.exp() * (p - q)).sum(-1).double().mean() for p, q in pairs]
        found[block].append(torch.stack(means).cpu())

    predict_swapped(model, swaps_of, ids.split(batch_size), keep)
    means = {}
    for block, of_sequences in found.items():
        means[block] = float(torch.cat(of_sequences).mean())
        if not means[block] < float("inf"):
            raise InputError(f"predictions with block {block} replaced are not finite: the weights overflow")
    return means


# --- all of them


def measure(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    prices: Mapping[int, Price],
    ids: Int64[Tensor, "n seq_len"],
    few: Int64[Tensor, "m seq_len"],
) -> pd.DataFrame:
    """Measure the signals of each block before it is replaced, on the training side; part of table `blocks`."""
    of_maps = [prices[block] for block in maps]
    columns = {
        "residual": [found.residual for found in of_maps],
        "residual_over_stream": [found.residual / found.stream for found in of_maps],
        "price": [found.cost for found in of_maps],
        "price_paired": [found.paired for found in of_maps],
    }
    table = pd.DataFrame(columns, index=pd.Index(maps, name="block"))
    try:
        turned = stream(model, ids)
        blocks = [site.block for site in sites(model)]
        table["block_influence"] = pd.Series(turned.influence.tolist(), blocks)
        table["sublayer_cosine"] = pd.Series(turned.ffn.tolist(), blocks)
        table["cca_bound"] = pd.Series(cca_bounds(model, ids))
    except NoPreNormError:  # the FFN does not add to a stream that a norm before it reads
        table[["block_influence", "sublayer_cosine", "cca_bound"]] = float("nan")
    table["replace_one"] = pd.Series(replace_one(model, maps, few))
    return table


def signals(table: pd.DataFrame) -> pd.DataFrame:
    """Compute every signal that some block has, a column each, from the columns of `measure` and `block_costs`."""
    unexplained = 1 - table["r2"]
    columns = {
        "1 − R²": unexplained,
        "residual": table["residual"],
        "residual / stream": table["residual_over_stream"],
        "ablation": table["ablation"],
        "ablation × (1 − R²)": table["ablation"] * unexplained,
        "price": table["price"],
        "price, paired": table["price_paired"],
        "block influence": table["block_influence"],
        "sub-layer cosine": table["sublayer_cosine"],
        "CCA bound": table["cca_bound"],
        REPLACE_ONE: table["replace_one"],
    }
    return pd.DataFrame(columns).dropna(axis="columns", how="all")
