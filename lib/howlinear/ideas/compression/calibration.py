"""What compressors ask of a model and of the text that it is compressed on, each computed when it is first asked for.

Many of them ask for the same: the second moments of hidden units, the cosines of the residual stream. In a race of
several compressors and budgets each of these is one pass, so that a `Calibration` is made once and given to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.line_beside import InputMoments, Joint, input_moments, ways_beside
from howlinear.ideas.compression.price import price
from howlinear.ideas.compression.prune import STAKED, eliminations_of, has_constant, spread
from howlinear.ideas.compression.rivals import cosine_distance
from howlinear.ideas.compression.units import Elimination, Stakes, UnitMoments, stakes
from howlinear.instrument.capture import hooked
from howlinear.instrument.massive import HeavyRowsKeeper
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.forward import trunk
from howlinear.models.layers import is_parallel, layers_of, parameters, stream_of
from howlinear.models.load import check_causal
from howlinear.models.units import units_hooked
from howlinear.text.rows import TokenRows


class Calibration:
    """A model, and the text that it may be compressed on.

    Attributes:
        model: the model; left as it was.
        ids: token ids of the rows to fit on, shape (n, seq_len).
        priced: how many sequences the prices of maps are taken on, see `price.price`.
        progress: show bars where hidden units are eliminated.
        anchored: share, whether all blocks keep as many units, and whether lines may stand beside them → block → the
            state of own units' readout, once found (`own_units`): it takes minutes, and is asked for again when
            exchanges and healing are measured.
        spans: span of layers → the linear maps in its place by "least squares" and by "cosine", once found
            (`replace_me`): both take the same pass.
    """

    def __init__(self, model: PreTrainedModel, rows: TokenRows, priced: int = 96, progress: bool = False):
        """Take the side of `rows` to fit on; the other is not looked at.

        Raises:
            InputError: a model that predicts no next token, or no sequence to fit on.
        """
        check_causal(model)
        self.model = model
        self.ids = rows.ids[~rows.test]
        self.priced = priced
        self.progress = progress
        self.anchored: dict[tuple[float, bool, bool], dict[int, dict[str, Tensor]]] = {}
        self.spans: dict[range, dict[str, Float[Tensor, "d d"]]] = {}
        if not len(self.ids):
            raise InputError("there is no sequence to fit on: all are held out")

    def allowed(self, share: float) -> int:
        """How many parameters a copy may hold that keeps a share of all.

        Raises:
            InputError: a share that is none.
        """
        if not 0 < share <= 1:
            raise InputError(f"a share of {share} of the parameters to keep: give more than 0, at most 1")
        return round(share * parameters(self.model))

    @cached_property
    def lines(self) -> dict[int, Lines]:
        """Block → its affine maps."""
        return lines(self.model, self.ids)

    @cached_property
    def line_prices(self) -> dict[int, float]:
        """Block → the price of its least-squares map, nats per token."""
        return self._prices({block: of_block.all_rows for block, of_block in self.lines.items()})

    @cached_property
    def mended_prices(self) -> dict[int, float]:
        """Block → the price of its mended map, nats per token; where there is none to mend, those of the others."""
        if not any(of_block.massive_rows for of_block in self.lines.values()):
            return self.line_prices
        return self._prices({block: of_block.mended for block, of_block in self.lines.items()})

    @cached_property
    def stream(self) -> Stream:
        """Cosines of the residual stream."""
        return stream(self.model, self.ids)

    @cached_property
    def units(self) -> dict[int, Moments]:
        """Block → moments of its hidden units, as inputs alone."""
        return unit_moments(self.model, self.ids)

    @cached_property
    def stakes(self) -> dict[int, Stakes]:
        """Block → what errors at its output cost."""
        return stakes(self.model, spread(self.ids, STAKED), [site.block for site in sites(self.model)])

    @cached_property
    def eliminations(self) -> tuple[dict[int, Elimination], dict[int, UnitMoments]]:
        """Block → the order in which its hidden units can go, and block → what the others are read out anew by."""
        return eliminations_of(self.model, self.ids, self.stakes, self.progress)

    @cached_property
    def inputs(self) -> dict[int, InputMoments]:
        """Block → moments of its inputs, and of its hidden units with them."""
        return input_moments(self.model, self.ids, {block: found.weight for block, found in self.stakes.items()})

    def joint(self, block: int) -> Joint:
        """What a block's hidden units and inputs vary like together."""
        _, moments = self.eliminations
        (site,) = sites(self.model, [block])
        return Joint.of(moments[block], self.inputs[block], has_constant(self.model, site))

    @cached_property
    def ways_beside(self) -> dict[int, pd.DataFrame]:
        """Block → the ways it can go: so many units, and a line of so many directions beside them."""
        eliminations, _ = self.eliminations
        return {
            site.block: ways_beside(
                self.model, site, eliminations[site.block], self.joint(site.block), self.stakes[site.block].metric
            )
            for site in sites(self.model)
        }

    def forget(self) -> None:
        """Let go of all moments, maps and prices, which is gigabytes; what is asked for later is computed again.

        Anchored readouts stay, and the maps of spans, which are small.
        """
        for name, attribute in vars(Calibration).items():
            if isinstance(attribute, cached_property):
                self.__dict__.pop(name, None)

    def _prices(self, maps: Mapping[int, AffineMap | Anchored]) -> dict[int, float]:
        spread = self.ids[:: -(-len(self.ids) // self.priced)]
        return {block: found.cost for block, found in price(self.model, maps, spread).items()}


class Anchored(nn.Module):
    """An affine map, and one constant output at position 0: for a block that writes massive outputs there.

    It takes a sequence to begin where its input begins, so a model with one must be run without a cache of keys and
    values.
    """

    def __init__(self, line: AffineMap, first: Float[Tensor, " d"]):
        """Hold the map of all later positions, and the output at position 0, shape (d,)."""
        super().__init__()
        self.weight = nn.Parameter(line.weight.clone(), requires_grad=False)
        self.bias = nn.Parameter(line.bias.clone(), requires_grad=False)
        self.first = nn.Parameter(first.clone(), requires_grad=False)

    def forward(self, x: Float[Tensor, "batch seq_len d"]) -> Float[Tensor, "batch seq_len d"]:
        """The constant at position 0, the map elsewhere."""
        y = x @ self.weight + self.bias
        first = self.first.expand(len(x), 1, -1)
        return torch.cat([first, y[:, 1:]], dim=1)


@dataclass(frozen=True)
class Lines:
    """The affine maps of a block.

    Attributes:
        all_rows: least squares on all rows.
        r2: its R² on the rows that it was fitted on; held-out rows are not for a compressor to see.
        massive_rows: how many rows are massive (`instrument.massive`).
        mended: least squares on ordinary rows, with the block's mean output at position 0 as it is there; where no row
            is massive, the map of all rows.
    """

    all_rows: AffineMap
    r2: float
    massive_rows: int
    mended: AffineMap | Anchored


@torch.no_grad()
def lines(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int = 16) -> dict[int, Lines]:
    """Fit the affine maps of every block, in one pass.

    Args:
        model: the model; left as it was.
        ids: token ids to fit on, shape (n, seq_len).
        batch_size: sequences in a forward pass.

    Raises:
        InputError: too few rows for the width.
    """
    width = model.config.get_text_config().hidden_size
    listened = sites(model)
    moments = {site.block: Moments(width, width) for site in listened}
    firsts = {site.block: Moments(width) for site in listened}  # of the outputs at position 0
    heavy = {site.block: HeavyRowsKeeper() for site in listened}

    def keep(site: Site, x: Tensor, y: Tensor) -> None:
        n, seq_len, _ = x.shape
        sequence = torch.arange(n).repeat_interleave(seq_len)
        position = torch.arange(seq_len).repeat(n)
        firsts[site.block].update(y[:, 0].cpu())
        x = x.flatten(0, -2).cpu()
        y = y.flatten(0, -2).cpu()
        moments[site.block].update(x, y)
        heavy[site.block].update(x, y, sequence, position, test=False, fold=0)

    with hooked(listened, keep):
        for batch in ids.split(batch_size):
            trunk(model, batch)

    found = {}
    for block, of_all in moments.items():
        line, _ = fit(of_all)
        massive = heavy[block].finish().beyond()
        mended: AffineMap | Anchored = line
        if len(massive):
            ordinary, _ = fit(of_all - massive.moments(test=False, fold=0))
            mended = Anchored(ordinary, firsts[block].mean_x)
        found[block] = Lines(line, r2(line, of_all), len(massive), mended)
    return found


@dataclass(frozen=True)
class Stream:
    """How far the layers of a model turn its residual stream; means over all rows.

    Attributes:
        layers: cosine of the stream before layer i with that before layer j, shape (layers + 1, layers + 1); the last
            is the stream behind all layers, before the norm.
        attention: 1 − cosine of the stream that attention's norm reads with the same once attention has written to it,
            shape (layers,).
        ffn: the same of the FFN, shape (layers,).
    """

    layers: Float[Tensor, "states states"]
    attention: Float[Tensor, " layers"]
    ffn: Float[Tensor, " layers"]

    def span_distances(self, count: int) -> Float[Tensor, " starts"]:
        """1 − cosine of the stream before `count` layers in a row with that behind them, by the first of them."""
        return 1 - self.layers.diagonal(count)


@torch.no_grad()
def stream(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int = 8) -> Stream:
    """Look at the residual stream before and behind every layer and sub-layer, in one pass.

    Args:
        model: a model whose norms come before attention and FFN; left as it was.
        ids: token ids, shape (n, seq_len).
        batch_size: sequences in a forward pass.
    """
    layers = layers_of(model)
    states: list[Tensor] = []  # of a batch, before each layer and behind the last
    written: dict[int, Tensor] = {}  # block → what its FFN wrote

    def note_state(_: nn.Module, args: tuple, named: dict) -> None:
        states.append(args[0] if args else named["hidden_states"])

    def note_last(_: nn.Module, __: tuple, output: Tensor | tuple) -> None:
        states.append(stream_of(output))

    def note_ffn(site: Site, _: Tensor, y: Tensor) -> None:
        written[site.block] = y.clone()

    cosines = torch.zeros(len(layers) + 1, len(layers) + 1, dtype=torch.float64)
    attention = torch.zeros(len(layers), dtype=torch.float64)
    ffn = torch.zeros(len(layers), dtype=torch.float64)
    with ExitStack() as hooks:
        hooks.enter_context(hooked(sites(model), note_ffn))
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(note_state, with_kwargs=True).remove)
        hooks.callback(layers[-1].register_forward_hook(note_last).remove)
        for batch in ids.split(batch_size):
            states.clear()
            trunk(model, batch)
            directions = torch.stack([normalize(state.double(), dim=-1).flatten() for state in states]).cpu()
            cosines += directions @ directions.T
            for number in range(len(layers)):
                before, behind, y = states[number], states[number + 1], written[number]
                between = behind - y  # the stream without what the FFN wrote
                attention[number] += cosine_distance(before, between).sum().cpu()
                read = before if is_parallel(model) else between
                ffn[number] += cosine_distance(read, read + y).sum().cpu()
    return Stream(cosines / ids.numel(), attention / ids.numel(), ffn / ids.numel())


@torch.no_grad()
def unit_moments(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int = 16) -> dict[int, Moments]:
    """Block → moments of its hidden units, as inputs alone, in one pass.

    Args:
        model: the model; left as it was.
        ids: token ids, shape (n, seq_len).
        batch_size: sequences in a forward pass.
    """
    moments: dict[int, Moments] = {}

    def keep(site: Site, hidden: Tensor) -> None:
        rows = hidden.flatten(0, -2).cpu()
        if site.block not in moments:
            moments[site.block] = Moments(rows.shape[1])
        moments[site.block].update(rows)

    with units_hooked(model, sites(model), keep):
        for batch in ids.split(batch_size):
            trunk(model, batch)
    return moments
