"""What products of inputs add to the line, measured on the blocks of several models: models → tidy tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int64
from scipy.stats import PermutationMethod, pearsonr
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.correlation import correlation
from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.files.tables import with_ends
from howlinear.ideas.bilinear.layers import CONTROLS, LineAndProducts, conjunction, control, cosine, rmse
from howlinear.ideas.bilinear.probe import Probe, hidden_teacher, power, probe
from howlinear.ideas.bilinear.recipe import end_to_end, papers_gain, recipe
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.perplexity import change, mean_perplexity
from howlinear.instrument.resample import rows_of_blocks
from howlinear.instrument.selection import Blocks, each_block, spaced
from howlinear.instrument.swap_costs import swap_losses, swap_rows
from howlinear.models.load import is_causal
from howlinear.text.paper_rows import PaperRows
from howlinear.text.rows import Rows, TokenRows

RESAMPLES = 9_999
STEADY = 3  # decimal places of a trained gain that are the same on other processors
CHANGES = ("selection", "rows", "optimiser")  # from the paper's recipe to our probe, one after the other
KEYS = ["model", "block"]

Models = Mapping[str, Blocks]  # model → block → its capture, with a sample
Probes = Mapping[str, Mapping[int, Probe]]  # model → block → its probe
Layers = Mapping[str, Mapping[int, LineAndProducts]]  # model → block → the line with products on top


# --- our probe


def probe_blocks(models: Models, rank: int, seeds: int, steps: int) -> Probes:
    """Fit the probe to every block, with `seeds` fits per block and at most `steps` iterations per fit."""
    probes = {model: {} for model in models}
    for model, block, kept in each_block(models):
        probes[model][block] = probe(kept, rank, seeds, steps)
    return probes


def block_table(probes: Probes) -> pd.DataFrame:
    """Table `blocks`: what the line explains of a block, what products gain, and which share of the rest that is."""
    rows = []
    for model, of_model in probes.items():
        for block, found in of_model.items():
            row = {"model": model, "block": block, "r2": found.r2_lin, "r2_poly": found.r2_poly}
            rows.append(row | found.gain.columns("gain") | {"recovered": found.recovered})
    return pd.DataFrame(rows, columns=[*KEYS, "r2", "r2_poly", *with_ends("gain"), "recovered"])


def massive_table(models: Models) -> pd.DataFrame:
    """Count the massive rows of blocks that have any: in all rows, in the sample and held out; with their variance."""
    rows = []
    for model, block, kept in each_block(models):
        massive_rows = len(kept.massive())
        if not massive_rows:
            continue
        sample = kept.rows()
        is_massive = ~_is_ordinary(kept)
        held_out = sample.y[sample.test].double()
        squares = (held_out - held_out.mean(0)).square().sum(1)
        rows.append(
            {
                "model": model,
                "block": block,
                "massive_rows": massive_rows,
                "sampled": int(is_massive.sum()),
                "held_out": int(is_massive[sample.test].sum()),
                "share": float(squares[is_massive[sample.test]].sum() / squares.sum()),
            }
        )
    return pd.DataFrame(rows, columns=[*KEYS, "massive_rows", "sampled", "held_out", "share"])


def ordinary_table(models: Models, massive: pd.DataFrame, rank: int, seeds: int, steps: int) -> pd.DataFrame:
    """Return `block_table` of the blocks in `massive`, with massive rows left out of the line, fit and score."""
    ordinary = {model: {} for model in massive["model"]}
    for row in massive.itertuples():
        kept = models[row.model][row.block]
        sample = kept.rows().select(_is_ordinary(kept))
        ordinary[row.model][row.block] = replace(kept.ordinary(), sample=sample)
    return block_table(probe_blocks(ordinary, rank, seeds, steps))


def replace_massive_blocks(blocks: pd.DataFrame, ordinary: pd.DataFrame) -> pd.DataFrame:
    """Replace blocks that have massive rows in `blocks` by the same blocks of `ordinary_table`."""
    both = pd.concat([blocks, ordinary]).drop_duplicates(KEYS, keep="last")
    return blocks[KEYS].merge(both, on=KEYS)


def _is_ordinary(kept: BlockCapture) -> Tensor:
    """Mark the sampled rows that are not massive: within `MULTIPLE` times the median output norm of all rows."""
    return kept.rows().y.norm(dim=1) <= MULTIPLE * kept.heavy_rows().median


def correlation_table(views: Mapping[str, pd.DataFrame], seed: int) -> pd.DataFrame:
    """Table `correlations`: what the line leaves with the column of a view, over the blocks of each model."""
    rows = []
    for view, table in views.items():
        column, *_ = view.split()
        for model, blocks in table.groupby("model", sort=False):
            left, gained = 1 - blocks["r2"].to_numpy(), blocks[column].to_numpy()
            row = {"model": model, "of": view}
            try:
                found = correlation(left, gained)
            except InputError:
                rows.append(row)
                continue
            # p is how often a shuffled pairing correlates as strongly
            shuffles = PermutationMethod(n_resamples=RESAMPLES, rng=np.random.default_rng(seed))
            row |= found.r.columns("r") | {"p": pearsonr(left, gained, method=shuffles).pvalue}
            rows.append(row | {"inner": found.inner, "lowest": found.lowest, "highest": found.highest})
    return pd.DataFrame(rows, columns=["model", "of", *with_ends("r"), "p", "inner", "lowest", "highest"])


# --- what the probe can see


def power_table(models: Models, count: int, rank: int, seeds: int, steps: int) -> pd.DataFrame:
    """Table `power`: shares that the probe recovers of known teachers, on `count` blocks of each model."""
    rows = []
    for model, block, kept in each_block(models, count):
        rows.append({"model": model, "block": block, **power(kept, rank, seeds, steps)})
    return pd.DataFrame(rows)


def rank_table(models: Models, ranks: Sequence[int], count: int, steps: int) -> pd.DataFrame:
    """Table `ranks`: the share recovered by one fit of each rank, and of a teacher `hidden` in the middle block."""
    rows = []
    for model, blocks in models.items():
        swept = spaced(blocks, count)
        for block in swept:
            for rank in ranks:
                recovered = probe(blocks[block], rank, seeds=1, steps=steps).recovered
                is_middle = block == swept[len(swept) // 2]
                hidden = hidden_teacher(blocks[block], rank, steps) if is_middle else np.nan
                row = {"model": model, "block": block, "rank": rank}
                rows.append(row | {"recovered": recovered, "hidden": hidden})
    return pd.DataFrame(rows)


# --- the paper's gate, recipe and controls


def gate_table(models: Models, rates: Sequence[float], rank: int, steps: int) -> pd.DataFrame:
    """Table `gates`: every block's branch trained end to end, at each learning rate."""
    rows = []
    for rate in rates:
        for model, block, kept in each_block(models):
            rows.append({"model": model, "block": block, "rate": rate, **end_to_end(kept, rank, rate, steps)})
    return pd.DataFrame(rows)


def rate_table(gates: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Table `rates`: at each rate the median gate over all blocks, and their summed gain over that of our probe."""
    both = gates.merge(blocks[[*KEYS, "gain"]], on=KEYS, suffixes=("", "_of_probe"))
    rows = []
    for rate, at_rate in both.groupby("rate"):
        share = at_rate["gain"].sum() / max(at_rate["gain_of_probe"].sum(), 1e-9)
        rows.append({"rate": rate, "gate": at_rate["gate"].median(), "gain_over_probe": share})
    return pd.DataFrame(rows)


def recipe_table(models: Models, blocks: pd.DataFrame, rank: int, steps: int, seed: int) -> pd.DataFrame:
    """Table `recipe`: gain by the paper's recipe, `ours`, and what each of `CHANGES` from one to the other is worth."""
    # gains are rounded before they are compared, so that gain + selection + rows + optimiser is ours, to the digit
    tables = {}
    for model, of_model in models.items():
        trained = recipe(of_model, rank, steps, seed).round(STEADY)
        probed = blocks[blocks["model"] == model].set_index("block")
        ours = probed["gain"].loc[list(of_model)].round(STEADY)
        gains = {
            "gain": trained["published"],
            "gain_all": trained["scored_all"],
            "ours": ours,
            "selection": trained["apart"] - trained["published"],
            "rows": trained["apart_all"] - trained["apart"],
            "optimiser": ours - trained["apart_all"],
        }
        tables[model] = pd.DataFrame(gains).join(trained[["rows_few", "rows_all"]])
    return pd.concat(tables, names=KEYS).reset_index()


def papers_recipe_table(
    models: Iterable[tuple[str, PreTrainedModel, PaperRows]], rank: int, steps: int, seed: int
) -> pd.DataFrame:
    """Measure the `gain` of every block by the paper's recipe, rows and R²: a row per `model` and `block`."""
    rows = []
    for name, model, laid_out in models:
        for block, (x, y) in rows_of_blocks(model, TokenRows.from_ids(laid_out.ids)).items():
            gain = papers_gain(x, y, laid_out.cut, rank, steps, seed)
            rows.append({"model": name, "block": block, "gain": gain})
    return pd.DataFrame(rows, columns=[*KEYS, "gain"])


def control_table(models: Models, count: int, rank: int, steps: int) -> pd.DataFrame:
    """Table `controls`: the paper's controls for depth on `count` blocks of each model."""
    tables = {}
    for model, blocks in models.items():
        few = {block: blocks[block] for block in spaced(blocks, count)}
        for kind in CONTROLS:
            tables[model, kind] = control(few, kind, rank, steps)
    table = pd.concat(tables, names=["model", "control", "block"]).reset_index()
    return table[[*KEYS, *table.columns.drop(KEYS)]]


# --- the line with products, as a layer


def build_layers(models: Models, probes: Probes) -> Layers:
    """Combine every block's line with the products of the probe's first fit."""
    layers = {model: {} for model in models}
    for model, block, kept in each_block(models):
        layers[model][block] = LineAndProducts.of(kept, probes[model][block].branch)
    return layers


def measure_table(models: Models, layers: Layers, count: int) -> pd.DataFrame:
    """Cosine, RMSE and, on the blocks of `control_table`, conjunction index of the line, alone and with products."""
    rows = []
    for model, block, kept in each_block(models):
        sample = kept.rows()
        x, y = sample.x[sample.test].double(), sample.y[sample.test]
        both = layers[model][block]
        row = {"model": model, "block": block}
        for suffix, layer in (("", both.line), ("_poly", both)):
            predicted = layer(x)
            index = conjunction(layer, x) if block in spaced(models[model], count) else np.nan
            row |= {f"cosine{suffix}": cosine(y, predicted), f"rmse{suffix}": rmse(y, predicted)}
            row |= {f"conjunction{suffix}": index}
        rows.append(row)
    return pd.DataFrame(rows)


def swap_table(
    language_models: Mapping[str, PreTrainedModel],
    layers: Layers,
    texts: Mapping[str, TokenRows | Int64[Tensor, "n seq_len"]],
) -> pd.DataFrame:
    """Measure the rise in perplexity with each block's line in its place, with products, and the share these save."""
    rows = []
    for name, of_blocks in layers.items():
        model = language_models[name]
        if not is_causal(model):
            continue
        swaps = {}
        for block, both in of_blocks.items():
            swaps |= {("line", block): (block, both.line), ("both", block): (block, both)}
        scored = swap_rows(texts[name], model)
        base, after = swap_losses(model, swaps, scored)
        for block in of_blocks:
            by_line, by_both = after["line", block], after["both", block]
            cost = change(base, by_line, scored.fold, scored.predicted)
            left = change(base, by_both, scored.fold, scored.predicted)
            # nothing is saved where the line may cost nothing
            saved = _share_saved(base, by_line, by_both, scored) if cost.low > 0 else Estimate.exact(np.nan)
            columns = cost.columns("dppl") | left.columns("dppl_poly") | saved.columns("saved")
            rows.append({"model": name, "block": block} | columns)
    costs = [*with_ends("dppl"), *with_ends("dppl_poly"), *with_ends("saved")]
    return pd.DataFrame(rows, columns=[*KEYS, *costs])


def _share_saved(
    base: Float[Tensor, " n"], by_line: Float[Tensor, " n"], by_both: Float[Tensor, " n"], scored: Rows
) -> Estimate:
    """Compute 1 − ΔPPL_both / ΔPPL_line from the losses of the same sequences, with a jackknife over document folds."""

    def share(used: Bool[Tensor, " n"]) -> float:
        predicted = None if scored.predicted is None else scored.predicted[used]
        whole, line, both = (mean_perplexity(losses[used], predicted) for losses in (base, by_line, by_both))
        return 1 - (both - whole) / (line - whole)

    without_fold = [share(scored.fold != fold) for fold in scored.fold.unique()]
    return Estimate.jackknife(share(scored.fold >= 0), without_fold)
