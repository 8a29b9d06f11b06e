"""The book's interactive page: R²_lin of every model, text and block, under each cut and protocol that was measured.

`collect` makes one tidy table of the numbers that the notebooks have on record, also for public models, and of those
that follow from the stored moments of the embedded models. It adds the points that notebook 04 has on record: a block's
outputs and its map's predictions. `page` writes both into the frame `book/explorer.html`, the numbers as an HTML table
that can be read without a script; `book/_static/explorer.js` draws them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import torch
from markupsafe import Markup

from howlinear.core.ceilings import fit, r2, r2_about_scalar
from howlinear.core.moments import Moments
from howlinear.files import numbers, paths, tables
from howlinear.instrument.capture import BlockCapture
from howlinear.notebook import run as notebooks
from howlinear.notebook import settings

PROTOCOLS = {
    "ours": "ours: each feature about its own mean, split by documents, all rows",
    "scalar": "one scalar mean in the denominator",
    "fold": "fitted on one document fold of eight",
    "few": "fitted on few rows, as notebook 11 draws them",
    "tail": "the text's last fifth held out, in the place of whole documents",
    "paper": "the paper's: its own rows, and one scalar mean",
}
MULTIPLES = (5, 10, 20, 50)
CUTS = {
    "all": "all rows",
    **{str(multiple): f"within {multiple} × the median norm" for multiple in MULTIPLES},
    "first": "without position 0",
}

RECORDED = (  # notebook, table, query for its rows; then protocol, cut (None: in the table) and the column of R²
    ("02_ceilings", "blocks", "", "ours", "all", "r2"),
    ("02_ceilings", "blocks", "", "scalar", "all", "r2_scalar"),
    ("05_corpora", "profiles", "", "ours", "all", "r2"),
    ("11_protocol", "curves", "split == 'documents' and factor == factor.min()", "few", "all", "r2"),
    ("11_protocol", "curves", "split == 'tail' and factor == factor.max()", "tail", "all", "r2"),
    ("11_protocol", "paper_rows", "", "paper", "all", "r2_scalar"),
    ("12_sinks", "blocks", "", "ours", "10", "r2_ordinary"),
    ("12_sinks", "blocks", "", "ours", "first", "r2_without_first"),
    ("12_sinks", "cuts", "", "ours", None, "r2"),
)
START = {"cut": "10"}
"""What the page shows at first: a cut, so that the two lines differ where massive rows decide."""

KEYS = ["model", "corpus", "block", "protocol", "cut"]
VALUES = ["r2", "r2_low", "r2_high"]
POINT = ["answer", "output", "medians"]


def collect(run: notebooks.Run) -> dict[str, Any]:
    """The numbers and points that the page shows, from a run profile and from the recorded public models.

    Returns:
        `values`, rows of `KEYS` and `VALUES`, and `clouds`, model → text → block → its `points`, rows of `POINT`, and
        `share`, how much of the outputs' variance lies along their direction.
    """
    computed = []
    for name in run.models:
        for corpus in run.corpora:
            for block, kept in run.capture(name, corpus).blocks.items():
                where = {"model": name, "corpus": corpus, "block": block}
                computed += [where | value for value in from_moments(kept)]
    every = pd.concat([recorded("public"), recorded(run.profile), pd.DataFrame(computed)])
    # recorded numbers come first, since they have intervals
    every = every.dropna(subset="r2").drop_duplicates(KEYS).round(4)
    values = json.loads(every[KEYS + VALUES].to_json(orient="records"))
    return {"values": values, "clouds": recorded_clouds("public") | recorded_clouds(run.profile)}


def recorded_clouds(profile: str) -> dict[str, Any]:
    """Points along the outputs' first direction, as recorded by notebook 04: model → main text → block."""
    main = next(iter(settings.read(profile).corpora_by_name))
    results = tables.results(profile, "04_rank")
    shares = results["blocks"].set_index(["model", "block"])["first_share"]
    clouds: dict[str, Any] = {}
    for (model, block), points in results["points"].groupby(["model", "block"]):
        drawn = {"points": points[POINT].to_numpy().tolist(), "share": shares[model, block]}
        clouds.setdefault(model, {main: {}})[main][str(block)] = drawn
    return clouds


def recorded(profile: str) -> pd.DataFrame:
    """The numbers on record for a run profile: columns `KEYS` and `VALUES`, with NaN where there is no interval."""
    main = next(iter(settings.read(profile).corpora_by_name))
    found = []
    for stem, name, chosen, protocol, cut, column in RECORDED:
        results = tables.results(profile, stem)
        if name not in results:  # not every profile has every table
            continue
        table = results[name].query(chosen) if chosen else results[name]
        table = table.assign(cut=table["cut"].map("{:g}".format) if cut is None else cut, protocol=protocol)
        table = table[table["cut"].isin(CUTS)]
        ends = {f"{column}{end}": f"r2{end}" for end in ("", "_low", "_high")}
        table = table.drop(columns=set(VALUES) - ends.keys(), errors="ignore").rename(columns=ends)
        found.append(pd.DataFrame({"corpus": main, **table}).reindex(columns=KEYS + VALUES))
    return pd.concat(found)


def from_moments(kept: BlockCapture) -> Iterator[dict[str, Any]]:
    """R² of a block per protocol and cut, its map refitted to the rows within; moments do not separate position 0."""
    heavy = kept.heavy_rows()

    @cache  # several cuts may leave out the same rows, and often none
    def without(left_out: int) -> dict[str, float]:
        others = kept.without(heavy.heaviest(left_out))
        test = Moments.total(others.test)
        line, _ = fit(Moments.total(others.train))
        of_one_fold, _ = fit(others.train[0])
        return {"ours": r2(line, test), "scalar": r2_about_scalar(line, test), "fold": r2(of_one_fold, test)}

    for cut in ("all", *map(str, MULTIPLES)):
        left_out = 0 if cut == "all" else len(heavy.beyond(float(cut)))
        for protocol, value in without(left_out).items():
            yield {"protocol": protocol, "cut": cut, "r2": value}


def page(found: Mapping[str, Any], frame: Path) -> str:
    """The page's HTML fragment, from the Jinja template `frame`: controls, table and points of what `collect` found."""
    values = pd.DataFrame(found["values"], columns=KEYS + VALUES).astype(object)
    values = values.where(values.notna(), None)
    keys = [key for key in KEYS if key != "cut"]
    lines = [
        (dict(zip(keys, line, strict=True)), {row["cut"]: row for row in of_line.to_dict("records")})
        for line, of_line in values.groupby(keys, sort=False)
    ]
    choices = {key: {value: value for value in values[key].unique()} for key in ("model", "corpus")}
    blocks = {block: block for block in sorted(values["block"].unique())}
    choices |= {"protocol": PROTOCOLS, "cut": CUTS, "block": blocks}
    clouds = json.dumps(found["clouds"], separators=(",", ":")).replace("</", "<\\/")
    shown = {"lines": lines, "choices": choices, "cuts": CUTS, "start": START, "clouds": Markup(clouds)}  # noqa: S704
    whole = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Template(frame.read_text(encoding="utf-8"), **whole).render(shown)


def main(profile: str = "minis") -> None:
    """Write the result of `collect` to `build/<profile>/explorer.json`, as a step of the pipeline."""
    torch.set_num_threads(1)
    captured = settings.read(profile).models_of(settings.CAPTURE)  # including models that only some notebooks use
    run = replace(notebooks.start("explorer", profile), models=captured)
    numbers.save(paths.build(profile) / "explorer.json", collect(run))


if __name__ == "__main__":
    main(*sys.argv[1:])
