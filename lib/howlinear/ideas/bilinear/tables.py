"""Notebook 03's tables: the probe on every block, its power, its rank, the gate, the paper's recipe and controls."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int64
from scipy.stats import ConstantInputWarning, PermutationMethod, pearsonr, spearmanr
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.correlation import Correlation, correlation
from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.files.results import rounded
from howlinear.ideas.bilinear.gate import end_to_end
from howlinear.ideas.bilinear.layers import CONTROLS, LineAndProducts, conjunction, control, cosine, rmse
from howlinear.ideas.bilinear.power import hidden_teacher, power
from howlinear.ideas.bilinear.probe import Probe, probe
from howlinear.ideas.bilinear.recipe import recipe
from howlinear.instrument.capture import BlockCapture, Sample
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.selection import spaced
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.load import is_causal
from howlinear.text.rows import TokenRows

RESAMPLES = 9_999

Blocks = Mapping[int, BlockCapture]  # block → what was captured of it
Probes = Mapping[str, Mapping[int, Probe]]  # model → block → what the probe found


def probes(models: Mapping[str, Blocks], rank: int = 16, seeds: int = 3, steps: int = 100) -> Probes:
    """The probe of every block.

    Args:
        models: model → its captured blocks, with samples.
        rank: as `probe` takes it, and so are the others.
        seeds: fits per block.
        steps: most iterations per fit.
    """
    return {
        model: {block: probe(kept, rank, seeds, steps) for block, kept in blocks.items()}
        for model, blocks in models.items()
    }


def gains(probes: Probes) -> pd.DataFrame:
    """What the branch gains on every block.

    Args:
        probes: as of `probes`.

    Returns:
        A row a block: `model`, `block`, `r2_lin`, `r2_poly`; `gain` with its interval `low`, `high`; what the line
        leaves, `left` = 1 − R²_lin, and the share of that which the branch recovers, `recovered`.
    """
    table = []
    for model, of_model in probes.items():
        for block, found in of_model.items():
            row = {"model": model, "block": block, "r2_lin": found.r2_lin, "r2_poly": found.r2_poly}
            row |= {"gain": found.gain.value, "low": found.gain.low, "high": found.gain.high}
            table.append(row | {"left": 1 - found.r2_lin, "recovered": found.recovered})
    return pd.DataFrame(table)


def massive(models: Mapping[str, Blocks]) -> pd.DataFrame:
    """Massive rows (`instrument.massive`) of every block that has any, of all its rows and of its sample.

    Args:
        models: as of `gains`.

    Returns:
        A row a block with massive rows: `model`, `block`; `rows`, how many of all `of` rows are massive; `sampled` of
        `of_sampled` in the sample, and `held_out` of these on its held-out side; `share` of the sample's held-out
        variance that lies in them.
    """
    table = []
    for model, block, kept in _each_block(models):
        massive_rows = kept.massive()
        if not len(massive_rows):
            continue
        sample = kept.rows()
        is_massive = _massive_of_sample(kept)
        y = sample.y[sample.test].double()
        squares = (y - y.mean(0)).square().sum(1)
        table.append(
            {
                "model": model,
                "block": block,
                "rows": len(massive_rows),
                "of": sum(moments.n for moments in [*kept.train, *kept.test]),
                "sampled": int(is_massive.sum()),
                "of_sampled": len(is_massive),
                "held_out": int(is_massive[sample.test].sum()),
                "share": float(squares[is_massive[sample.test]].sum() / squares.sum()),
            }
        )
    columns = ["model", "block", "rows", "of", "sampled", "of_sampled", "held_out", "share"]
    return pd.DataFrame(table, columns=columns)


def ordinary_gains(
    models: Mapping[str, Blocks], massive: pd.DataFrame, rank: int = 16, seeds: int = 3, steps: int = 100
) -> pd.DataFrame:
    """`gains` of the blocks with massive rows without these: in the line, in the sample and in the score.

    Args:
        models: as of `probes`.
        massive: as of `massive`; of its blocks alone.
        rank: as of `probes`, and so are the others.
        seeds: fits per block.
        steps: most iterations per fit.
    """
    without = {
        name: {block: _without_massive(models[name][block]) for block in of_model.block}
        for name, of_model in massive.groupby("model", sort=False)
    }
    found = gains(probes(without, rank, seeds, steps))
    columns = ["model", "block", "r2_lin", "r2_poly", "gain", "low", "high", "left", "recovered"]
    return found if len(found) else pd.DataFrame(columns=columns)


def with_ordinary(gains: pd.DataFrame, ordinary: pd.DataFrame) -> pd.DataFrame:
    """`gains` with the blocks of `ordinary_gains` in the place of the same blocks with massive rows."""
    keys = ["model", "block"]
    replaced = gains.set_index(keys)
    if len(ordinary):
        columns = ["r2_lin", "r2_poly", "gain", "low", "high", "left", "recovered"]
        others = ordinary.set_index(keys)
        replaced.loc[others.index, columns] = others[columns]
    return replaced.reset_index()


def massive_sentence(model: str, massive: pd.DataFrame) -> str:
    """Which blocks of a model have massive rows, how many of its sample, and what lies in them.

    Args:
        model: its name.
        massive: as of `massive`.
    """
    blocks = [
        f"{row.block} ({row.sampled} of {row.of_sampled:,} sampled rows, {row.held_out} of them held out, "
        f"{row.share:.0%} of the variance there)"
        for row in massive[massive["model"] == model].itertuples()
    ]
    if not blocks:
        return f"{model}: no block has massive rows"
    return f"{model}: massive rows in block{'s' * (len(blocks) > 1)} {', '.join(blocks)}"


def beside_ordinary(gains: pd.DataFrame, ordinary: pd.DataFrame) -> pd.DataFrame:
    """Blocks with massive rows: what `gains` says of all rows, beside what `ordinary_gains` says without them.

    Returns:
        A row a block: `model`, `block`; `r2_lin`, `gain`, `recovered` of all rows, and the same of the others under
        `r2_lin, ordinary` and so on.
    """
    columns = ["model", "block", "r2_lin", "gain", "recovered"]
    return ordinary[columns].merge(gains[columns], on=["model", "block"], suffixes=(", ordinary", ""))


def massive_record(massive: pd.DataFrame, ordinary: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Model → what `massive` and `ordinary_gains` say of its blocks with massive rows, a record a block."""
    both = massive.merge(ordinary.drop(columns="left"), on=["model", "block"])
    return {name: rows.drop(columns="model").to_dict("records") for name, rows in both.groupby("model", sort=False)}


def same_blocks(gains: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Those rows of `gains` whose blocks another table speaks of too."""
    return gains.merge(others[["model", "block"]].drop_duplicates(), on=["model", "block"])


def _massive_of_sample(kept: BlockCapture) -> Bool[Tensor, " rows"]:
    """Which sampled rows are massive: those beyond `MULTIPLE` times the median output norm of all rows."""
    return kept.rows().y.norm(dim=1) > MULTIPLE * kept.heavy_rows().median


def _without_massive(kept: BlockCapture) -> BlockCapture:
    """The block's ordinary rows, of the sample as well."""
    sample = kept.rows()
    stay = ~_massive_of_sample(kept)
    fewer = {field.name: getattr(sample, field.name)[stay] for field in fields(sample)}
    return replace(kept.ordinary(), sample=Sample(**fewer))


def powers(models: Mapping[str, Blocks], count: int, rank: int = 16, seeds: int = 3, steps: int = 100) -> pd.DataFrame:
    """What the probe recovers of teachers that are known, on `count` blocks of each model.

    Returns:
        A row a block: `model`, `block`, and the shares recovered of the teachers of `Power`: `planted`, `hidden` (in
        noise), `cubic`, `shuffled`.
    """
    table = []
    for model, block, kept in _each_block(models, count):
        found = power(kept, rank, seeds, steps=steps)
        row = {"model": model, "block": block, "planted": found.planted, "hidden": found.in_noise}
        table.append(row | {"cubic": found.cubic, "shuffled": found.shuffled})
    return pd.DataFrame(table)


def rank_sweep(models: Mapping[str, Blocks], ranks: Sequence[int], count: int, steps: int = 100) -> pd.DataFrame:
    """The share recovered as the branch's rank grows, one fit each, on `count` blocks of each model.

    Returns:
        A row a rank of a block: `model`, `block`, `rank`, `recovered`; and `hidden`, what is recovered of a hidden
        teacher of that rank, in the middle one of the blocks, NaN in the others.
    """
    middle = {model: spaced(blocks, count)[count // 2] for model, blocks in models.items()}
    table = []
    for model, block, kept in _each_block(models, count):
        for rank in ranks:
            recovered = probe(kept, rank, seeds=1, steps=steps).recovered
            hidden = hidden_teacher(kept, rank, steps=steps) if block == middle[model] else np.nan
            table.append({"model": model, "block": block, "rank": rank, "recovered": recovered, "hidden": hidden})
    return pd.DataFrame(table)


def gates(models: Mapping[str, Blocks], rates: Sequence[float], rank: int = 16, steps: int = 600) -> pd.DataFrame:
    """Every block's branch trained end to end, at each learning rate.

    Returns:
        A row a block at a rate: `rate`, `model`, `block`, and what `EndToEnd` holds: `gain`, `gate`, `share`, `r2_lin`;
        `left` = 1 − R²_lin.
    """
    table = []
    for rate in rates:
        for model, block, kept in _each_block(models):
            found = vars(end_to_end(kept, rank, rate, steps))
            table.append({"rate": rate, "model": model, "block": block} | found | {"left": 1 - found["r2_lin"]})
    return pd.DataFrame(table)


def gate_order(gates: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Where the gate ends, and how the gain behind it compares with the probe's.

    Args:
        gates: as from `gates`.
        gains: as from `gains`, of the same blocks.

    Returns:
        A row a rate: `rate`, `median gate` over all blocks, `gain ÷ probe's` (of the gains, summed over all blocks).
    """
    table = []
    for rate, group in gates.groupby("rate"):
        share = group.gain.sum() / max(gains.gain.sum(), 1e-9)
        table.append({"rate": rate, "median gate": group.gate.median(), "gain ÷ probe's": share})
    return pd.DataFrame(table)


def gate_correlations(gates: pd.DataFrame) -> pd.DataFrame:
    """Whether the gate, and what passes it, go by what the line leaves: Spearman's ρ over the blocks of each model.

    Args:
        gates: as from `gates`.

    Returns:
        A row a model at a rate: `model`, `rate`, `ρ of gate`, `ρ of share`, each 0 where it is undefined.
    """
    table = []
    for (model, rate), group in gates.groupby(["model", "rate"], sort=False):
        row = {"model": model, "rate": rate}
        for column in ("gate", "share"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConstantInputWarning)
                rho = spearmanr(group.left, group[column]).statistic
            row[f"ρ of {column}"] = float(np.nan_to_num(rho))
        table.append(row)
    return pd.DataFrame(table)


CHANGES = ("selection", "rows", "optimiser")  # from the paper's recipe to our probe, one after the other
STEADY = 0.001  # what other processors find too of a gain that was trained for


def recipes(
    models: Mapping[str, Blocks], gains: pd.DataFrame, rank: int = 16, steps: int = 4_000, seed: int = 0
) -> pd.DataFrame:
    """The paper's recipe beside our probe on every block, and what each change from one to the other is worth.

    Gains are rounded to `STEADY` before they are compared, so that the changes add up to `gap` exactly.

    Args:
        models: model → its captured blocks, with samples.
        gains: as from `gains`, not rounded.
        rank: number of products.
        steps: of the recipe.
        seed: of the recipe.

    Returns:
        A row a block: `model`, `block`; `gain`, the recipe's, on 15.6 rows per input and chosen by the rows that it is
        scored on; `same rows`, its gain on all sampled rows, chosen likewise; `ours`; `gap` = ours − gain, and its
        parts: `selection` (chosen by a train fold kept apart), `rows` (all sampled rows), `optimiser` (variable
        projection, mean of its seeds); and `few` and `all`, how many rows these are.
    """
    table = []
    for model, blocks in models.items():
        trained = rounded(vars(recipe(blocks, rank, steps, seed)), STEADY)
        ours = gains[gains.model == model].set_index("block").gain
        for i, block in enumerate(blocks):
            published, apart = float(trained["published"][i]), float(trained["apart"][i])
            apart_all, scored_all = float(trained["apart_all"][i]), float(trained["scored_all"][i])
            probed = rounded(float(ours[block]), STEADY)
            row = {"model": model, "block": block, "gain": published, "same rows": scored_all, "ours": probed}
            row["gap"] = probed - published
            row["selection"] = apart - published
            row["rows"] = apart_all - apart
            row["optimiser"] = probed - apart_all
            table.append(row | {"few": trained["few"], "all": trained["all"]})
    return pd.DataFrame(table)


def changes(recipes: pd.DataFrame) -> pd.DataFrame:
    """What each change is worth on the mean over blocks, as points of R² and as shares of the gap.

    Args:
        recipes: as from `recipes`.

    Returns:
        A row a model: `gain`, `ours`, `gap`, `selection`, `rows`, `optimiser` (means over blocks), and `share of …` of
        each change in the gap; NaN where there is no gap. Means have nine decimals, so that what lies halfway between
        two thousandths is shown alike everywhere.
    """
    means = recipes.groupby("model", sort=False)[["gain", "ours", "gap", *CHANGES]].mean().round(9)
    for change in CHANGES:
        means[f"share of {change}"] = means[change] / means["gap"].where(means["gap"] != 0)
    return means


def controls(models: Mapping[str, Blocks], count: int, rank: int = 16, steps: int = 2_000) -> pd.DataFrame:
    """The paper's controls for depth on `count` blocks of each model.

    Returns:
        A row a control of a block: `model`, `block`, `control`, `r2` with its interval `low`, `high`, `conjunction`,
        and the `step` that was kept.
    """
    table = []
    for model, blocks in models.items():
        few = {block: blocks[block] for block in spaced(blocks, count)}
        for kind in CONTROLS:
            for block, found in control(few, kind, rank, steps).items():
                row = {"model": model, "block": block, "control": kind, "r2": found.r2.value, "low": found.r2.low}
                table.append(row | {"high": found.r2.high, "conjunction": found.conjunction, "step": found.step})
    return pd.DataFrame(table)


Layers = Mapping[str, Mapping[int, LineAndProducts]]  # model → block → the line with products on top


def layers(models: Mapping[str, Blocks], probes: Probes) -> Layers:
    """The line with products on top of every block: those that the probe's first start found.

    Args:
        models: model → captured blocks.
        probes: as of `probes`, of these blocks at least.
    """
    return {
        model: {block: LineAndProducts.of(kept, probes[model][block].branch) for block, kept in blocks.items()}
        for model, blocks in models.items()
    }


def layer_measures(models: Mapping[str, Blocks], layers: Layers) -> pd.DataFrame:
    """Cosine, root mean squared error and conjunction index of every block's line, alone and with products.

    Args:
        models: model → its captured blocks, with samples.
        layers: as from `layers`.

    Returns:
        A row a block, on the sample's held-out rows: `model`, `block`, `cosine`, `rmse`, `conjunction` of the line, and
        `cosine_poly`, `rmse_poly`, `conjunction_poly` with products.
    """
    table = []
    for model, block, kept in _each_block(models):
        sample = kept.rows()
        x, y = sample.x[sample.test].double(), sample.y[sample.test]
        row = {"model": model, "block": block}
        both = layers[model][block]
        for suffix, map_ in (("", both.line), ("_poly", both)):
            predicted = map_(x)
            row |= {f"cosine{suffix}": cosine(y, predicted), f"rmse{suffix}": rmse(y, predicted)}
            row[f"conjunction{suffix}"] = conjunction(map_, x)
        table.append(row)
    return pd.DataFrame(table)


def swaps(
    language_models: Mapping[str, PreTrainedModel],
    layers: Layers,
    texts: Mapping[str, TokenRows | Int64[Tensor, "n seq_len"]],
) -> pd.DataFrame:
    """What it costs to put each block's line in its place, and the line with products.

    Args:
        language_models: model → the model; one that predicts no next token, as an encoder, is passed over.
        layers: as from `layers`.
        texts: model → rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.

    Returns:
        A row a block: `model`, `block`; `linear` and `poly`, the changes of perplexity, each with the ends of its
        interval, as in `linear_low`, `linear_high`.
    """
    table = []
    for model, of_blocks in layers.items():
        if not is_causal(language_models[model]):
            continue
        lines = {block: both.line for block, both in of_blocks.items()}
        by_line = swap_costs(language_models[model], lines, texts[model])
        by_both = swap_costs(language_models[model], of_blocks, texts[model])
        for block in of_blocks:
            row = {"model": model, "block": block}
            for name, change in (("linear", by_line[block]), ("poly", by_both[block])):
                row |= {name: change.delta, f"{name}_low": change.low, f"{name}_high": change.high}
            table.append(row)
    columns = ["model", "block"]
    for name in ("linear", "poly"):
        columns += [name, f"{name}_low", f"{name}_high"]
    return pd.DataFrame(table, columns=columns)


def fits(gains: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """R² of the line, of the line with products, and of the controls, on the controls' blocks.

    Returns:
        A row a layer of a block: `model`, `block`, `layer`, `r2`.
    """
    table = []
    for (model, block), of_block in controls.groupby(["model", "block"], sort=False):
        (probed,) = gains[(gains.model == model) & (gains.block == block)].itertuples()
        r2 = {"line": probed.r2_lin, "+ products": probed.r2_poly}
        for row in of_block.itertuples():
            r2[row.control.replace("2x", " 2×")] = row.r2
        table += [{"model": model, "block": block, "layer": layer, "r2": value} for layer, value in r2.items()]
    return pd.DataFrame(table)


def record(
    gains: pd.DataFrame, measures: pd.DataFrame, recipes: pd.DataFrame, controls: pd.DataFrame, swaps: pd.DataFrame
) -> dict[str, dict[str, Any]]:
    """What notebook 03 keeps of every model, from its tables.

    Returns:
        Model → `blocks`, a record of `gains` each, and of `measures` where they were taken; `recipe`: its `block`s,
        and `gain`, `ours`, `same_rows` and `CHANGES`, a list over these each, and the rows `few` and `all`; `dense2x`
        and `poly2x`: `blocks`, `r2`, `low`, `high`, `step`; `conjunction`: `linear`, `poly` and each control's, over
        the controls' `blocks`; `dppl`: `block`, `linear`, `poly`, and the ends of their intervals, lists that are empty
        where nothing was swapped.
    """
    kept = {}
    for model in gains.model.unique():

        def of(table: pd.DataFrame, model: str = model) -> pd.DataFrame:
            return table[table.model == model].drop(columns="model")

        on_rows = of(measures).drop(columns=["conjunction", "conjunction_poly"])
        both = of(gains).merge(on_rows, on="block", how="left")
        blocks = [{key: value for key, value in row.items() if not pd.isna(value)} for row in both.to_dict("records")]
        compared = of(recipes).rename(columns={"same rows": "same_rows"})
        columns = ["gain", "same_rows", "ours", *CHANGES]
        rows = {"few": int(compared["few"].iloc[0]), "all": int(compared["all"].iloc[0])}
        recipe_of_blocks = compared[["block", *columns]].to_dict("list")
        kept[model] = {"blocks": blocks, "recipe": recipe_of_blocks | rows}
        of_controls = of(controls)
        tried = of_controls.block.unique().tolist()
        indices = of(measures).set_index("block").loc[tried]
        kept[model]["conjunction"] = {
            "blocks": tried,
            "linear": indices["conjunction"].tolist(),
            "poly": indices["conjunction_poly"].tolist(),
        }
        for kind, of_kind in of_controls.groupby("control", sort=False):
            kept[model][kind] = {"blocks": tried} | of_kind[["r2", "low", "high", "step"]].to_dict("list")
            kept[model]["conjunction"][kind] = of_kind["conjunction"].tolist()
        kept[model]["dppl"] = of(swaps).to_dict("list")
    return kept


def correlations(gains: pd.DataFrame, column: str, seed: int = 0) -> pd.DataFrame:
    """Correlation of what the line leaves with a column of `gains`, over the blocks of each model by itself.

    Models differ in level, and twelve blocks of one are no twelve of another: blocks are not thrown together.

    Args:
        gains: as from `gains`.
        column: of `gains`, as `gain`.
        seed: of the shuffles.

    Returns:
        A row a model: `model`; `r` with Fisher's interval `low`, `high`; `p`, how often a shuffled pairing correlates
        as strongly; `inner`, r without the first and the last block; `lowest` and `highest`, of all that leave out one
        block. Where r is undefined, as nothing varies or blocks are too few, all are 0, from −1 to 1, with p = 1.
    """
    table = []
    for model, group in gains.groupby("model", sort=False):
        left, gained = group["left"].to_numpy(), group[column].to_numpy()
        try:
            found = correlation(left, gained)
        except InputError:
            found = Correlation(Estimate(0.0, -1.0, 1.0), inner=0.0, lowest=-1.0, highest=1.0)
            p = 1.0
        else:
            shuffles = PermutationMethod(n_resamples=RESAMPLES, rng=np.random.default_rng(seed))
            p = float(pearsonr(left, gained, method=shuffles).pvalue)
        row = {"model": model, "r": found.r.value, "low": found.r.low, "high": found.r.high, "p": p}
        table.append(row | {"inner": found.inner, "lowest": found.lowest, "highest": found.highest})
    return pd.DataFrame(table)


def _each_block(models: Mapping[str, Blocks], count: int | None = None) -> Iterator[tuple[str, int, BlockCapture]]:
    """Model, block and capture of every block, or of `count` blocks of each model."""
    for model, blocks in models.items():
        for block in blocks if count is None else spaced(blocks, count):
            yield model, block, blocks[block]
