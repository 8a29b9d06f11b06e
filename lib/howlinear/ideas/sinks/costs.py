"""What a map costs in a block with massive rows, and how much of that is due to the sinks: five kinds of replacement.

Least squares minimises squared errors, so a hundred massive rows bend the map of all others. Two remedies are tried,
separately and together: leave massive rows to the FFN, and fit the map to ordinary rows alone. Which rows are massive
is decided by the FFN's own output, so the FFN is computed for all rows: this oracle shows where the cost comes from,
but saves nothing. A usable replacement needs no FFN: the mean output at position 0, and the ordinary map elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, islice

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.intervals import Estimate, fold_means
from howlinear.files.tables import with_ends
from howlinear.ideas.sinks.measure import Look, Looks
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.perplexity import LOSS_BATCH, change, finite_losses, held_out, token_losses
from howlinear.instrument.swap_costs import by_block, predict_swapped
from howlinear.models.ffn_sites import sites
from howlinear.models.load import is_causal
from howlinear.models.pairs import ffn_module
from howlinear.text.rows import TokenRows

KINDS = {
    "a": "map of all rows",
    "b": "map of all rows, massive rows left to the FFN",
    "c": "map of ordinary rows",
    "d": "map of ordinary rows, massive rows left to the FFN",
    "e": "map of ordinary rows, a constant at position 0",
}
"""The five kinds of replacement. Without massive rows, b, c and d equal a."""

COLUMNS = [
    *("model", "block", "kind", "massive_rows"),
    *(*with_ends("nats"), *with_ends("mended"), "nats_first", "nats_later", "perplexity", *with_ends("delta")),
]


def keep_massive(
    ffn: Callable[[Tensor], Tensor], affine: AffineMap, cut: float, x: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch d"]:
    """Return the FFN's output where its norm is beyond the cut, the map's elsewhere."""
    y = ffn(x)
    massive = torch.linalg.vector_norm(y.float(), dim=-1, keepdim=True) > cut
    return torch.where(massive, y, affine(x))


def put_constant_first(
    affine: AffineMap, constant: Float[Tensor, " d"], seq_len: int, x: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch d"]:
    """Return the constant at position 0 and the map's output elsewhere; x holds whole sequences, one after another."""
    y = affine(x)
    first = y.view(-1, seq_len, y.shape[-1])[:, 0]
    first.copy_(constant.to(y).expand_as(first))
    return y


def swaps(
    model: PreTrainedModel, block: int, seen: Look, constant: Float[Tensor, " d"], seq_len: int
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Build the replacements of a block, by the letters of `KINDS`; only a and e if no row is massive."""
    of_all = seen.solved.ceiling.map
    of_ordinary = seen.solved.ordinary.map
    constant_first = partial(put_constant_first, of_ordinary, constant, seq_len)
    if not seen.solved.massive_rows:
        return {"a": of_all, "e": constant_first}
    (site,) = sites(model, [block])
    ffn = ffn_module(model, site)
    cut = MULTIPLE * seen.heavy.median
    return {
        "a": of_all,
        "b": partial(keep_massive, ffn, of_all, cut),
        "c": of_ordinary,
        "d": partial(keep_massive, ffn, of_ordinary, cut),
        "e": constant_first,
    }


def chosen_blocks(blocks: pd.DataFrame, most: int = 8, others: int = 2) -> dict[str, list[int]]:
    """Model → the blocks to swap: those with massive rows, and a few others for comparison."""
    chosen = {}
    for model, of_model in blocks.groupby("model", sort=False):
        with_massive = of_model[of_model["massive_rows"] > 0]
        by_fall = with_massive.loc[with_massive["fall"].abs().sort_values(ascending=False, kind="stable").index]
        without = of_model[of_model["massive_rows"] == 0].sort_values("r2", ascending=False, kind="stable")
        ranked = without["block"].tolist()
        # the most linear, the least linear, the next of either, and so on
        from_both_ends = dict.fromkeys(chain.from_iterable(zip(ranked, reversed(ranked), strict=True)))
        chosen[str(model)] = sorted([*by_fall["block"].head(most), *islice(from_both_ends, others)])
    return chosen


def cost_table(name: str, model: PreTrainedModel, looks: Looks, rows: TokenRows, blocks: Iterable[int]) -> pd.DataFrame:
    """Measure each replacement, its block alone swapped, on held-out text; table `costs`, empty for an encoder."""
    if not is_causal(model):
        return pd.DataFrame(columns=COLUMNS)
    seq_len = rows.ids.shape[1]
    modules = {}
    for block in blocks:
        first = looks[name, block].first
        constant = first.y[~first.test].double().mean(0)
        for kind, module in swaps(model, block, looks[name, block], constant, seq_len).items():
            modules[block, kind] = (block, module)
    scored = held_out(rows)
    parts: dict[tuple[int, str] | None, list[Tensor]] = {at: [] for at in (None, *modules)}

    def keep(batch: Tensor, at: tuple[int, str] | None, predictions: Tensor) -> None:
        parts[at].append(token_losses(predictions, batch))

    predict_swapped(model, by_block(modules), scored.ids.split(LOSS_BATCH), keep)
    before = _whole(parts.pop(None))
    after = {at: _whole(losses) for at, losses in parts.items()}
    table = []
    for (block, kind), losses in after.items():
        massive_rows = looks[name, block].solved.massive_rows
        row = {"model": name, "block": block, "kind": kind, "massive_rows": massive_rows}
        mended = _mended(after[block, "a"] - before, losses - before, scored.fold)
        table.append(row | _rises(before, losses, scored.fold) | mended.columns("mended"))
    return pd.DataFrame(table, columns=COLUMNS)


def _rises(
    before: Float[Tensor, "n predicted"], after: Float[Tensor, "n predicted"], fold: Int64[Tensor, " n"]
) -> dict[str, float]:
    """Compute the numbers of one swap from the losses of every token before and after."""
    rise = (after - before).mean(1).numpy()
    in_perplexity = change(before.mean(1), after.mean(1), fold)
    return {
        **Estimate.of_mean(rise, fold.numpy()).columns("nats"),
        "nats_first": float((after - before)[:, 0].mean()),
        "nats_later": float((after - before)[:, 1:].mean()),
        "perplexity": float(before.mean().exp()),
        **in_perplexity.columns("delta"),
    }


def _mended(
    cost: Float[Tensor, "n predicted"], left: Float[Tensor, "n predicted"], fold: Int64[Tensor, " n"]
) -> Estimate:
    """Estimate the share of a rise of the loss that another map saves, paired over folds; NaN if there is no rise."""
    if cost.mean() <= 0:
        return Estimate.exact(float("nan"))
    rises, rises_left = (rise.mean(1).numpy() for rise in (cost, left))
    without_fold = 1 - fold_means(rises_left, fold.numpy()) / fold_means(rises, fold.numpy())
    return Estimate.jackknife(float(1 - left.mean() / cost.mean()), without_fold)


def _whole(parts: list[Float[Tensor, "_ predicted"]]) -> Float[Tensor, "n predicted"]:
    """Join the losses of all batches; raise `InputError` if one is not finite."""
    losses = torch.cat(parts)
    finite_losses([losses.mean(1)])
    return losses


def worth_table(costs: pd.DataFrame) -> pd.DataFrame:
    """Put the costs of each block side by side, NaN where as a; `mended` is the share of a's cost that d saves."""
    index = ["model", "block", "massive_rows"]
    table = costs.pivot_table(index=index, columns="kind", values="nats", sort=False)
    table = table.reindex(columns=list(KINDS)).reset_index("massive_rows")
    table["mended"] = costs[costs["kind"] == "d"].set_index(["model", "block"])["mended"]
    return table.rename_axis(columns=None)
