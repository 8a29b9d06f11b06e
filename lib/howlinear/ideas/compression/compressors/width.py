"""Rival compressors that narrow every FFN: score hidden units, drop the lowest, and refit the readout or not.

All write a block as y = h V + b, with h the hidden units. They differ in a unit's score, in how many units go in which
block, and in what becomes of V and b. All leave attention as it is: in this race the budget is filled from the FFNs.

| compressor | score of unit j | how many go | readout |
|---|---|---|---|
| magnitude | product of the norms of its weights, in and out | as many everywhere | as it was |
| Wanda, structured | ‖hⱼ‖ · ‖Vⱼ‖ | as many everywhere | as it was |
| FLAP | Var(hⱼ) · ‖Vⱼ‖² | by scores standardised in each block | b takes up the mean of what goes |
| Wanda or FLAP, then ridge | as above | as above | ridge regression, block after block |
| LLM Surgeon | ½ vⱼᵀ G vⱼ / [A⁻¹]ⱼⱼ | by scores | moved as A says |

- Wanda (Sun et al. 2023, "A simple and effective pruning approach for large language models", arXiv 2306.11695) scores
  single weights; its structured form is that of An et al., who call it Wanda-sp.
- FLAP: An et al. 2023, "Fluctuation-based adaptive structured pruning for large language models", arXiv 2312.11983. It
  prunes attention heads as well; here only its FFN part is used.
- Ridge: GRAIL (Tang et al. 2026, "Post-hoc compensation by linear reconstruction for compressed networks", arXiv
  2602.23795). With G = Σ h hᵀ and P the units kept, h ≈ h_P M, M = (G_PP + λ I)⁻¹ G_P·, and V becomes M V. G is not
  centred, and b stays. As in its authors' code it is a closed loop, from the first block to the last: G, and Wanda's
  scores, are collected in the model whose earlier blocks are already narrow and read out anew. FLAP's scores, which
  compare units of all blocks, and without ridge also Wanda's are collected in the whole model.
- LLM Surgeon (van der Ouderaa et al. 2023, "The LLM Surgeon", arXiv 2312.17244), the only rival that weights errors by
  the loss. It approximates the Fisher information of a readout's weights by A ⊗ G, with A = E [h, 1] [h, 1]ᵀ,
  G = E g gᵀ and g the gradient of the loss at y. Its authors prune rows and columns of every layer in forty shots and
  compute the curvature anew for each; here hidden units are pruned in one shot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.allocate import costs_of, unit_sizes
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.units import gram, gram_with_constant
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.forward import trunk
from howlinear.models.layers import parameters
from howlinear.models.layerwise import Layerwise
from howlinear.models.replace import replace
from howlinear.models.swap import swap
from howlinear.models.units import (
    first_maps,
    named_unit_layers,
    readout,
    unit_count,
    unit_layers,
    units_hooked,
    with_units,
)

RIDGE = 1e-5
"""λ as a share of the mean diagonal of G_PP. The authors' code has 1e-3 by default and 0 in its examples; where a few
massive rows dominate that mean, as in SmolLM2-135M, 1e-3 is too much.
"""

DAMPING = 0.01
"""What LLM Surgeon's code adds to A and G, as a share of their mean diagonals."""

Readout = Callable[[AffineMap, Moments, Int64[Tensor, " k"]], AffineMap]


def magnitude(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units of the largest weights."""
    model = calibration.model
    scores = {site.block: weight_norms(model, site) for site in sites(model)}
    return narrowed(calibration, evenly(calibration, share, scores))


def wanda(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units that are loudest at the output."""
    return narrowed(calibration, evenly(calibration, share, loudness(calibration)))


def wanda_ridge(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units that are loudest behind the blocks narrowed so far, then refit by ridge regression (GRAIL)."""
    removed = removed_from_each(calibration, share)

    def choose(site: Site, moments: Moments) -> Int64[Tensor, " k"]:
        return highest(_loudness(readout(calibration.model, site), moments), removed)

    return compensated(calibration, choose)


def flap(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units that fluctuate most at the output, compared with the other units of their block."""
    return narrowed(calibration, standing_out(calibration, share, fluctuation(calibration)), with_means)


def flap_ridge(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units that `flap` keeps, then refit by ridge regression (GRAIL)."""
    kept = standing_out(calibration, share, fluctuation(calibration))
    return compensated(calibration, lambda site, _: kept[site.block])


def surgeon(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units whose removal costs most by the loss's curvature, and refit their readout to compensate."""
    return narrowed(calibration, dearest(calibration, share, removal_costs(calibration)), moved)


# --- Scores


def weight_norms(model: PreTrainedModel, site: Site) -> Float[Tensor, " m"]:
    """Multiply the norms of each unit's weights: those from x (one vector or two) and those to y."""
    norms = readout(model, site).weight.norm(dim=1)
    for each in first_maps(model, site):
        norms = norms * each.weight.norm(dim=0)
    return norms


def loudness(calibration: Calibration) -> dict[int, Float[Tensor, " m"]]:
    """Block → ‖hⱼ‖ · ‖Vⱼ‖ of each unit."""
    model, moments = calibration.model, moments_of(calibration)
    return {site.block: _loudness(readout(model, site), moments[site.block]) for site in sites(model)}


def _loudness(own: AffineMap, moments: Moments) -> Float[Tensor, " m"]:
    return gram(moments).diagonal().sqrt() * own.weight.norm(dim=1)


def fluctuation(calibration: Calibration) -> dict[int, Float[Tensor, " m"]]:
    """Block → Var(hⱼ) · ‖Vⱼ‖² of each unit."""
    scores = {}
    for site in sites(calibration.model):
        moments = moments_of(calibration)[site.block]
        variance = moments.sxx.diagonal() / (moments.n - 1)
        scores[site.block] = variance * readout(calibration.model, site).weight.square().sum(1)
    return scores


def removal_costs(calibration: Calibration) -> dict[int, Float[Tensor, " m"]]:
    """Block → the cost of removing each unit alone, by the loss's curvature, in nats per token."""
    costs = costs_of(calibration)
    scores = {}
    for site in sites(calibration.model):
        own = readout(calibration.model, site)
        metric = damped(costs[site.block].metric)
        inverse = torch.linalg.inv(curvature(own, moments_of(calibration)[site.block]))
        # ½ vⱼᵀ G vⱼ / [A⁻¹]ⱼⱼ
        squares = ((own.weight @ metric) * own.weight).sum(1)
        scores[site.block] = squares / 2 / inverse.diagonal()[: len(squares)]
    return scores


@once
@torch.no_grad()
def moments_of(calibration: Calibration) -> dict[int, Moments]:
    """Block → moments of its hidden units on the training side, all rows weighted alike."""
    model = calibration.model
    listened = sites(model)
    moments = {site.block: Moments(unit_count(model, site)) for site in listened}

    def keep(site: Site, h: Tensor) -> None:
        moments[site.block].update(h.flatten(0, -2).cpu())

    with units_hooked(model, listened, keep):
        for batch in calibration.ids.split(max(1, calibration.batch_size // 2)):
            trunk(model, batch, listened[-1])
    return moments


# --- How many go in which block


def evenly(
    calibration: Calibration, share: float, scores: Mapping[int, Float[Tensor, " m"]]
) -> dict[int, Int64[Tensor, " k"]]:
    """Keep the units of the highest scores in every block, removing equally many from each."""
    removed = removed_from_each(calibration, share)
    return {block: highest(score, removed) for block, score in scores.items()}


def removed_from_each(calibration: Calibration, share: float) -> int:
    """Count the units to remove from every block if equally many go from each."""
    model = calibration.model
    too_many = max(0, parameters(model) - calibration.allowed(share))
    removed = -(-too_many // sum(unit_sizes(model, site)[0] for site in sites(model)))
    narrowest = min(unit_count(model, site) for site in sites(model))
    if removed >= narrowest:
        raise InputError(
            f"{removed} of {narrowest} hidden units would have to go: keep a larger share of the parameters"
        )
    return removed


def highest(score: Float[Tensor, " m"], removed: int) -> Int64[Tensor, " k"]:
    """List the units that stay when the `removed` lowest scores go, in the block's own order."""
    return score.argsort(descending=True, stable=True)[: len(score) - removed].sort().values


def standing_out(
    calibration: Calibration, share: float, scores: Mapping[int, Float[Tensor, " m"]]
) -> dict[int, Int64[Tensor, " k"]]:
    """Keep the units of the highest scores of all blocks, once each block's scores are standardised."""
    model = calibration.model
    standard = {block: (score - score.mean()) / score.std() for block, score in scores.items()}
    without_bias = [site for site in sites(model) if unit_layers(model, site)[-1].bias is None]
    return dearest(calibration, share, standard, added=len(without_bias) * width_of(model))


def dearest(
    calibration: Calibration, share: float, scores: Mapping[int, Float[Tensor, " m"]], added: int = 0
) -> dict[int, Int64[Tensor, " k"]]:
    """Keep the units of the highest scores of all blocks, one in each at least, with room for `added` parameters."""
    candidates = []
    savings = {}
    for site in sites(calibration.model):
        score = scores[site.block]
        of_a_unit, _ = unit_sizes(calibration.model, site)
        for unit in score.argsort(stable=True)[:-1].tolist():
            candidates.append((float(score[unit]), site.block, unit))
            savings[site.block, unit] = of_a_unit
    lowest_first = [(block, unit) for _, block, unit in sorted(candidates)]
    gone = calibration.take_enough(share, lowest_first, savings, "one hidden unit in each block", added)
    kept = {block: torch.ones(len(score), dtype=torch.bool, device="cpu") for block, score in scores.items()}
    for block, unit in gone:
        kept[block][unit] = False
    return {block: stays.nonzero()[:, 0] for block, stays in kept.items()}


# --- What becomes of the readout


def with_means(own: AffineMap, moments: Moments, kept: Int64[Tensor, " k"]) -> AffineMap:
    """Keep the weights of the units that stay, and add the mean contribution of the others to the bias."""
    means = moments.mean_x.clone()
    means[kept] = 0
    return AffineMap(own.weight[kept], own.bias + means @ own.weight)


def ridge(own: AffineMap, moments: Moments, kept: Int64[Tensor, " k"]) -> AffineMap:
    """Refit the readout on all hidden units as reconstructed, by ridge regression, from those that stay."""
    full = gram(moments)[kept]
    of_kept = full[:, kept]
    penalty = RIDGE * of_kept.diagonal().mean() * torch.eye(len(kept), dtype=of_kept.dtype)
    # M V = (G_PP + λ I)⁻¹ G_P· V
    weight = torch.linalg.solve(of_kept + penalty, full @ own.weight)
    return AffineMap(weight, own.bias)


def moved(own: AffineMap, moments: Moments, kept: Int64[Tensor, " k"]) -> AffineMap:
    """Refit the readout to the weights that lose least by A if all others are 0."""
    full = curvature(own, moments)
    rows = torch.cat([own.weight, own.bias[None]])[: len(full)]
    # the constant is kept, like a unit
    stays = torch.cat([kept, torch.arange(len(own.weight), len(full))])
    # V_K + A_KK⁻¹ A_KD V_D = A_KK⁻¹ A_K· V
    new = torch.linalg.solve(full[stays][:, stays], full[stays] @ rows)
    bias = new[len(kept)] if len(new) > len(kept) else own.bias
    return AffineMap(new[: len(kept)], bias)


def curvature(own: AffineMap, moments: Moments) -> Float[Tensor, "a a"]:
    """A = E [h, 1] [h, 1]ᵀ, damped; without the 1 where the readout adds no constant."""
    total = gram_with_constant(moments) if own.bias.any() else gram(moments)
    return damped(total / moments.n)


def damped(matrix: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """Add a share of its mean diagonal to a second moment."""
    return matrix + DAMPING * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype)


def narrowed(
    calibration: Calibration, kept: Mapping[int, Int64[Tensor, " k"]], refit: Readout | None = None
) -> PreTrainedModel:
    """Copy the model with the `kept` units of every block, their readouts refitted or as they were."""
    model = calibration.model
    thin = {}
    for site in sites(model):
        units = kept[site.block]
        own = readout(model, site)
        if refit is None:
            new = AffineMap(own.weight[units], own.bias)
        else:
            new = refit(own, moments_of(calibration)[site.block], units)
        thin[site.block] = _with_bias(with_units(model, site, units, new), model, site, new)
    return replace(model, thin)


@torch.no_grad()
def compensated(calibration: Calibration, choose: Callable[[Site, Moments], Int64[Tensor, " k"]]) -> PreTrainedModel:
    """Copy the model, narrowed block after block, each refitted by `ridge` behind those before it (GRAIL)."""
    model = calibration.model
    site_of = {site.block: site for site in sites(model)}
    # The residual streams of all rows pass a layer before any enters the next. They pass it twice: with the whole
    # block, to collect the moments of its hidden units, and with the narrow one. So there are two passes over the text
    # however many blocks there are, and memory holds one stream of all rows and the moments of one block.
    text = Layerwise(model, calibration.ids.split(max(1, calibration.batch_size // 2)))
    thin: dict[int, nn.Module] = {}
    for number in tqdm(range(len(text.layers)), disable=not calibration.progress, unit="block"):
        narrow = {}
        if number in site_of:
            site = site_of[number]
            moments = next_moments(text, site)
            units = choose(site, moments)
            narrow[number] = with_units(model, site, units, ridge(readout(model, site), moments, units))
        with swap(model, narrow):
            text.advance()
        thin |= narrow
    return replace(model, thin)


def next_moments(text: Layerwise, site: Site) -> Moments:
    """Collect moments of the hidden units of the next layer's block; the text stays before that layer."""
    moments = Moments(unit_count(text.model, site))

    def keep(_: Site, h: Tensor) -> None:
        moments.update(h.flatten(0, -2).cpu())

    with units_hooked(text.model, [site], keep), text.layer() as run:
        for place, stream in enumerate(text.streams):
            run(place, stream.clone())
    return moments


def _with_bias(ffn: nn.Module, model: PreTrainedModel, site: Site, readout: AffineMap) -> nn.Module:
    """Give a block's readout a bias if it needs one and its family has none; return the block."""
    last = ffn.get_submodule(list(named_unit_layers(model, site))[-1])
    if last.bias is None and readout.bias.any():
        last.register_parameter("bias", nn.Parameter(readout.bias.to(last.weight), requires_grad=False))
    return ffn
