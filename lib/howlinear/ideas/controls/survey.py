"""What notebook 08 asks of several models, as tidy tables: controls, random models, inputs, transplants and twins.

Every table has a row a measurement. Profiles are named by what was changed: `own` is the block as it is; `normal`,
`turned` and `standardised` change its inputs (see `inputs`); `permuted`, `redrawn` and `fresh` its weights (`weights`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from howlinear.errors import InputError
from howlinear.ideas.controls.anova import anova, beside_seeds, effect_table, profile_array
from howlinear.ideas.controls.inputs import Colour, gaussian, recolour, standardise, transplants
from howlinear.ideas.controls.weights import (
    chance_floor,
    effective_support,
    permute,
    redraw,
    respond,
    sample_ceiling,
)
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import BlockCapture, Sample, describe

CONTROLS = ("own", "normal", "turned", "standardised", "permuted", "redrawn", "fresh")
Blocks = Mapping[int, BlockCapture]


def control_table(
    blocks: Blocks, ffns: Sequence[nn.Module], fresh: Sequence[nn.Module], intervals: bool = True
) -> pd.DataFrame:
    """Every block of a model on its own rows and weights, and under six controls.

    Args:
        blocks: the model's captured blocks, each with a sample.
        ffns: its FFNs, each a module that maps x to y (`ffn_sites.whole`).
        fresh: the FFNs of the same model with new weights.
        intervals: jackknife the controls too, not the block itself alone.

    Returns:
        A row a `block` and `control`: `r2`, `low`, `high` (NaN without intervals), `rank`, `rows_train`.
    """
    rows = []
    for block, captured in blocks.items():
        for control, (x, ffn) in _control_cases(captured, ffns[block], fresh[block]).items():
            y = respond(ffn, x)
            found = sample_ceiling(x, y, captured.rows(), intervals or control == "own")
            score = {"r2": found.r2, "low": found.r2_low, "high": found.r2_high}
            fit = {"rank": found.rank, "rows_train": found.rows_train}
            rows.append({"block": block, "control": control} | score | fit)
    return pd.DataFrame(rows).astype({"low": float, "high": float})


def _control_cases(captured: BlockCapture, ffn: nn.Module, fresh: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    """Control → the rows to feed, and the FFN to feed them to."""
    x = captured.rows().x
    moments = sum(captured.train)
    own = Colour.of(moments)
    return {
        "own": (x, ffn),
        "normal": (gaussian(own, len(x)), ffn),
        "turned": (recolour(x, own, own, turn=0), ffn),
        "standardised": (standardise(x, moments), ffn),
        "permuted": (x, permute(ffn)),
        "redrawn": (x, redraw(ffn)),
        "fresh": (x, fresh),
    }


def random_table(baselines: Mapping[str, Sequence[Baseline]]) -> pd.DataFrame:
    """Whole models at random initialisations, where random blocks also feed one another.

    Args:
        baselines: model → its `Baseline` at each seed.

    Returns:
        A row a `model`, `seed` and `block`: `r2`, held out, `in_sample`, and `rows`. The R² of infinitely many rows
        lies between the two.
    """
    tables = []
    for model, seeds in baselines.items():
        for seed, found in enumerate(seeds):
            table = pd.DataFrame({"r2": found.held_out, "in_sample": found.in_sample}).rename_axis("block")
            tables.append(table.reset_index().assign(model=model, seed=seed, rows=found.rows))
    return pd.concat(tables, ignore_index=True)[["model", "seed", "block", "r2", "in_sample", "rows"]]


def bracket_table(random: pd.DataFrame) -> pd.DataFrame:
    """How well random models are known: a row a model.

    Args:
        random: as of `random_table`.

    Returns:
        `rows` of a block; `held out` and `in sample`, the mean R² over seeds and blocks; and `widest`, the largest
        distance of the two in any block.
    """
    by_model = random.assign(widest=random.in_sample - random.r2).groupby("model", sort=False)
    return pd.DataFrame(
        {
            "rows": by_model["rows"].max(),
            "held out": by_model["r2"].mean(),
            "in sample": by_model["in_sample"].mean(),
            "widest": by_model["widest"].max(),
        }
    )


def closed_form_table(controls: pd.DataFrame, closed: Mapping[tuple[str, int], float]) -> pd.DataFrame:
    """Normal rows beside the closed form, which knows no rows, and beside the closed form less the price of a fit.

    A fit on n rows of rank r pays for its weights with a held-out residual about 1 + r / (n − r − 2) times too large.

    Args:
        controls: `control_table` of several models, with a column `model`.
        closed: (model, block) → R²_lin on normal inputs by `degrees.hermite.predict_spectrum`.

    Returns:
        A row a `model` and `block`: `fitted`, `closed`, `priced`.
    """
    normal = controls[controls.control == "normal"]
    table = normal[["model", "block"]].assign(fitted=normal.r2)
    table["closed"] = [closed[model, block] for model, block in zip(normal.model, normal.block, strict=True)]
    price = 1 + normal["rank"] / (normal.rows_train - normal["rank"] - 2)
    table["priced"] = 1 - (1 - table.closed) * price
    return table.reset_index(drop=True)


def floor_table(sample: Sample, factors: Sequence[int] = (2, 4, 16, 64)) -> pd.DataFrame:
    """The chance floor at several numbers of train rows, these factors times the width, at most all there are.

    Returns:
        A row a number of `rows`, with the attributes of `weights.Floor`.
    """
    width = sample.x.shape[1]
    all_train = int((~sample.test).sum())
    sizes = sorted({min(factor * width, all_train) for factor in factors})
    return pd.DataFrame([chance_floor(sample, rows) for rows in sizes])


def input_table(blocks: Blocks) -> pd.DataFrame:
    """What goes into each block, as a referee asked: a row a `block`.

    Returns:
        `rank`, `condition`, `effective_rank`, `dynamic_range`, `first_position_in`, `first_position_out` of
        `capture.InputStatistics`, and `support_in`, `support_out`, the shares of rows that carry the variance.
    """
    rows = []
    for block, captured in blocks.items():
        statistics = vars(describe(captured))
        sample = captured.rows()
        support = {"support_in": effective_support(sample.x), "support_out": effective_support(sample.y)}
        rows.append({"block": block} | statistics | support)
    return pd.DataFrame(rows).drop(columns=["null", "second"])


def transplant_table(
    captures: Mapping[str, Blocks], ffns: Mapping[str, Sequence[nn.Module]], three_way_every: int = 1
) -> pd.DataFrame:
    """Rows of one model, in the mean and covariance of another, through the weights of a third, block by block.

    Args:
        captures: model → its captured blocks; all of the same depth.
        ffns: model → its FFNs.
        three_way_every: all three are free in every so manieth block; in the others, colour and weights are of one
            model, which is what the referee asked for.

    Returns:
        A row a `block` and the models that `rows`, `colour` and `weights` are of, with `r2`.
    """
    names = list(captures)
    depth = len(captures[names[0]])
    rows = []
    for block in range(depth):
        captured = [captures[name][block] for name in names]
        three_way = block % three_way_every == 0
        r2 = transplants(captured, [ffns[name][block] for name in names], three_way)
        for i, j, k in np.argwhere(np.isfinite(r2)):
            labels = {"block": block, "rows": names[i], "colour": names[j], "weights": names[k]}
            rows.append(labels | {"r2": r2[i, j, k]})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Transplanted:
    """What transplants say of several models.

    Attributes:
        models: those that rows were transplanted between; none if no two are of one width and depth.
        pairs: as of `two_way`; of `own_pairs` where nothing was transplanted.
        effects: the analysis of variance of both experiments, as of `anova.effect_table`, the views `two_way` and
            `three_way`; empty where nothing was transplanted.
        nearness: as of the function of that name; empty where nothing was transplanted.
    """

    models: list[str]
    pairs: pd.DataFrame
    effects: pd.DataFrame
    nearness: dict[str, float]


def transplant(
    captures: Mapping[str, Blocks],
    ffns: Mapping[str, Sequence[nn.Module]],
    controls: pd.DataFrame,
    three_way_every: int = 1,
) -> Transplanted:
    """Transplant rows between all models of one width and depth, and share out what moves the profiles.

    Args:
        captures: model → its captured blocks.
        ffns: model → its FFNs.
        controls: `control_table` of the same models, with a column `model`.
        three_way_every: as of `transplant_table`.
    """
    models = alike(captures)
    if not models:
        return Transplanted([], own_pairs(controls), effect_table({"two_way": {}, "three_way": {}}), {})
    table = transplant_table({name: captures[name] for name in models}, ffns, three_way_every)
    pairs = two_way(table)
    free = three_way(table)
    pair_factors = ["inputs", "weights"]
    free_factors = ["shape", "colour", "weights"]
    effects = {
        "two_way": anova(profile_array(pairs, pair_factors), pair_factors),
        "three_way": anova(profile_array(free, free_factors), free_factors),
    }
    return Transplanted(models, pairs, effect_table(effects), nearness(pairs, controls))


def alike(captures: Mapping[str, Blocks]) -> list[str]:
    """The models between which rows can be transplanted: all of the first one's width and depth, if there are two.

    Returns:
        Their names; none if the first model is alone in this.
    """

    def shape(blocks: Blocks) -> tuple[int, int]:
        return len(blocks), blocks[0].train[0].d_in

    shapes = {name: shape(blocks) for name, blocks in captures.items()}
    first = next(iter(shapes.values()))
    names = [name for name, found in shapes.items() if found == first]
    return names if len(names) > 1 else []


def own_pairs(controls: pd.DataFrame) -> pd.DataFrame:
    """What `two_way` gives where no rows can be transplanted: every model's weights on its own rows alone."""
    own = controls[controls.control == "own"]
    table = own[["block", "r2"]].assign(inputs=own.model, weights=own.model)
    return table[["block", "inputs", "weights", "r2"]].reset_index(drop=True)


def price(controls: pd.DataFrame) -> dict[str, float]:
    """Model → by what share a fit on these rows makes the residual too large, r / (n − r − 2); of the worst block."""
    own = controls[controls.control == "own"]
    share = own["rank"] / (own.rows_train - own["rank"] - 2)
    return share.groupby(own.model, sort=False).max().to_dict()


def two_way(transplanted: pd.DataFrame) -> pd.DataFrame:
    """The referee's experiment: of transplants, those whose colour and weights are of one model."""
    table = transplanted[transplanted.colour == transplanted.weights].drop(columns="colour")
    return table.rename(columns={"rows": "inputs"}).reset_index(drop=True)


def three_way(transplanted: pd.DataFrame) -> pd.DataFrame:
    """Of transplants, the blocks in which rows, colour and weights were all set free."""
    counts = transplanted.groupby("block").r2.transform("size")
    table = transplanted[counts == transplanted.rows.nunique() ** 3]
    return table.rename(columns={"rows": "shape"}).reset_index(drop=True)


def nearness(transplanted: pd.DataFrame, controls: pd.DataFrame) -> dict[str, float]:
    """How far the curves of transplants between two models lie from four curves that they could follow.

    Args:
        transplanted: as `two_way` gives it.
        controls: `control_table` of the same models, with a column `model`.

    Returns:
        Curve → mean |difference| over ordered pairs of different models, and blocks: `weights' owner` and
        `inputs' owner`, each on its own rows; `normal` and `turned`, the weights' owner on these.
    """
    pairs = transplanted.pivot_table(index="block", columns=["inputs", "weights"], values="r2")
    profiles = controls.pivot_table(index="block", columns=["control", "model"], values="r2")
    names = transplanted.weights.unique()
    gaps: dict[str, list[float]] = {"weights' owner": [], "inputs' owner": [], "normal": [], "turned": []}
    for giver, owner in permutations(names, 2):
        curve = pairs[giver, owner]
        gaps["weights' owner"].append((curve - profiles["own", owner]).abs().mean())
        gaps["inputs' owner"].append((curve - profiles["own", giver]).abs().mean())
        gaps["normal"].append((curve - profiles["normal", owner]).abs().mean())
        gaps["turned"].append((curve - profiles["turned", owner]).abs().mean())
    return {name: float(np.mean(found)) for name, found in gaps.items()}


def outside_random(controls: pd.DataFrame, random: pd.DataFrame) -> dict[str, int]:
    """Model → how many of its trained blocks have intervals wholly above, or wholly below, all random models.

    Args:
        controls: `control_table` of several models, with a column `model`.
        random: as of `random_table`; a random model may lie anywhere between its held-out and its in-sample R².
    """
    own = controls[controls.control == "own"].set_index(["model", "block"])
    chance = random.groupby(["model", "block"]).agg(lowest=("r2", "min"), highest=("in_sample", "max"))
    chance = chance.reindex(own.index)
    outside = (own.low > chance.highest) | (own.high < chance.lowest)
    return {model: int(count) for model, count in outside.groupby("model", sort=False).sum().items()}


def twin_table(measurements: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Profiles of twins, as `training.twins` measured them.

    Returns:
        A row a twin (`family`, `text`, `seed`), text that it is `measured_on`, and `block`, with `r2`.

    Raises:
        InputError: no twin is given.
    """
    tables = []
    for twin in measurements:
        labels = {key: twin[key] for key in ("family", "text", "seed")}
        for text, profile in twin["profiles"].items():
            r2 = pd.DataFrame({"block": range(len(profile["r2"])), "r2": profile["r2"]})
            tables.append(r2.assign(**labels, measured_on=text))
    if not tables:
        raise InputError("no twins to compare: run make twins")
    return pd.concat(tables, ignore_index=True)[["family", "text", "seed", "measured_on", "block", "r2"]]


def twin_gaps(twins: pd.DataFrame, factors: Sequence[str] = ("family", "text", "seed")) -> dict[str, float]:
    """Factor → mean |difference| in R²_lin of two twins that differ in nothing else; of twins on one text."""
    gaps = {}
    for factor in factors:
        alike = [other for other in factors if other != factor]
        groups = twins.groupby(["block", *alike]).r2
        gaps[factor] = float(groups.agg(lambda r2: np.mean([abs(a - b) for a, b in combinations(r2, 2)])).mean())
    return gaps


TWIN_EFFECTS = {"family": ["family"], "text": ["text", "family × text"]}
"""What is asked of the twins → the effects that answer: the architecture; and the training text within a family."""


def beside_seeds_table(twins: pd.DataFrame) -> pd.DataFrame:
    """How much architecture and training text move the twins' profiles beside what another seed does.

    Args:
        twins: as from `twin_table`.

    Returns:
        A row a `view` and `effect` of `TWIN_EFFECTS`. Views: `as measured` takes a twin's profiles on all texts one
        after the other, as one long profile; then there is one view a text that they are measured on, and one for its
        shape only (each profile less its mean over blocks). Columns: `f`, `freedom`, `error_freedom`, `blocks`;
        `share` with `low` and `high`; `ratio` with `ratio_low` and `ratio_high`, as of `anova.BesideSeeds`.
    """
    factors = ["family", "text", "seed"]
    by_text = {text: profile_array(rows, factors) for text, rows in twins.groupby("measured_on", sort=False)}
    views = {"as measured": np.concatenate(list(by_text.values()))}
    for text, profiles in by_text.items():
        views[f"{text}, as measured"] = profiles
        views[f"{text}, shape only"] = profiles - profiles.mean(0)
    rows = []
    for view, profiles in views.items():
        for name, effects in TWIN_EFFECTS.items():
            found = beside_seeds(profiles, factors, effects)
            row = {"view": view, "effect": name, "f": found.f, "blocks": found.blocks}
            row |= {"freedom": found.freedom, "error_freedom": found.error_freedom}
            row |= {"share": found.share.value, "low": found.share.low, "high": found.share.high}
            row |= {"ratio": found.ratio.value, "ratio_low": found.ratio.low, "ratio_high": found.ratio.high}
            rows.append(row)
    return pd.DataFrame(rows)


def beside_seeds_record(twins: pd.DataFrame, effects: pd.DataFrame) -> dict[str, Any]:
    """What notebook 08 keeps of it: which `families` and `texts` there are, and each effect on all texts together."""
    record: dict[str, Any] = {
        "families": twins.family.unique().tolist(),
        "texts": twins.measured_on.unique().tolist(),
        "by_view": {
            view: rows.drop(columns="view").set_index("effect").to_dict("index")
            for view, rows in effects.groupby("view")
        },
    }
    for row in effects[effects["view"] == "as measured"].itertuples():
        record[row.effect] = {
            "f": row.f,
            "share": {"value": row.share, "low": row.low, "high": row.high},
            "ratio": {"value": row.ratio, "low": row.ratio_low, "high": row.ratio_high},
        }
    return record


def ranked(effects: pd.DataFrame, view: str) -> str:
    """The effects of one view in words, the largest first; of none, that there are no two models to compare."""
    of_view = effects[effects["view"] == view]
    if of_view.empty:
        return "no two models of one width and depth"
    largest_first = of_view.sort_values("share", ascending=False)
    return "; ".join(f"{effect.effect} {effect.share:.0%}" for effect in largest_first.itertuples())


def beside(moving: pd.DataFrame, effect: str) -> str:
    """One effect among twins in words: how many times a seed's distance, with its interval.

    Args:
        moving: as of `beside_seeds_table`.
        effect: `family` or `text`.
    """
    asked = (moving["view"] == "as measured") & (moving["effect"] == effect)
    (found,) = moving[asked].itertuples()
    return f"apart by {found.ratio:.1f} times a seed's distance [{found.ratio_low:.1f}, {found.ratio_high:.1f}]"


def control_record(controls: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """What notebook 08 keeps of `control_table`: control → model → profile, and the interval's ends of `own`."""
    record = {control: by_model(table, "r2") for control, table in controls.groupby("control")}
    own = controls[controls.control == "own"]
    record["own_low"] = by_model(own, "low")
    record["own_high"] = by_model(own, "high")
    return record


def random_record(random: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """What notebook 08 keeps of `random_table`, by model: profiles seed by seed, on both sides, and the most rows."""
    record: dict[str, dict[str, Any]] = {"fresh": {}, "fresh_in_sample": {}, "fresh_rows": {}}
    for model, table in random.groupby("model", sort=False):
        by_seed = table.pivot_table(index="seed", columns="block", values=["r2", "in_sample"])
        record["fresh"][model] = by_seed["r2"].to_numpy()
        record["fresh_in_sample"][model] = by_seed["in_sample"].to_numpy()
        record["fresh_rows"][model] = int(table["rows"].max())
    return record


def effect_record(effects: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """What notebook 08 keeps of `anova.effect_table`: view → effect → its numbers."""
    return {
        view: table.drop(columns="view").set_index("effect").to_dict("index") for view, table in effects.groupby("view")
    }


def by_model(table: pd.DataFrame, column: str) -> dict[str, list[float]]:
    """Model → the values of a column, block by block, as results files keep profiles."""
    return {model: rows.sort_values("block")[column].tolist() for model, rows in table.groupby("model", sort=False)}


def stack_models(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables of several models one below another, with `model` as the first column."""
    return pd.concat(tables, names=["model"]).reset_index(level=0).reset_index(drop=True)
