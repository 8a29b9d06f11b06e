"""A sweep: how R²_lin depends on rows, text and seed, as one figure. papermill runs notebook 02 for each combination.

    make sweep

Every run has its own run profile in `build/profiles`, which extends `lesson`. Its executed notebook and results lie in
`build/scratch/sweep-…`, as for any run that is not recorded, and an existing run is not repeated. To sweep another
number, change `GRID` and `found`; to sweep another notebook, change `NOTEBOOK`.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import yaml
from matplotlib.figure import Figure
from rich.progress import track

from howlinear.files import atomic, figures, paths, tables
from howlinear.notebook.execute import execute
from howlinear.plots import style

NOTEBOOK = "02_ceilings"
GRID = {"rows": [4_096, 8_192, 16_384], "text": ["docs", "code"], "seed": [0, 1]}


def run(rows: int, text: str, seed: int) -> str:
    """Run the notebook on this many rows of a text, drawn with a seed, unless that run exists.

    Returns:
        The name of the run's profile.
    """
    name = f"sweep-{rows}-{text}-{seed}"
    profile = {"extends": "lesson", "rows": rows, "corpora": [text], "seed": seed}
    atomic.write_text(paths.OWN_PROFILES / f"{name}.yaml", yaml.safe_dump(profile))
    if not saved(name).is_dir():
        execute(NOTEBOOK, {"profile": name})
    return name


def saved(name: str) -> Path:
    """The folder where the run on a profile leaves its tables."""
    return paths.scratch(name) / "results" / NOTEBOOK


def found(name: str) -> pd.DataFrame:
    """The number that is swept: R²_lin of every block of a run. A row per block: `model`, `block`, `r2`."""
    return tables.read(saved(name))["blocks"][["model", "block", "r2"]]


def drawn(table: pd.DataFrame) -> Figure:
    """Mean R²_lin over the blocks against rows: a line per text, a point per seed."""
    means = table.groupby(["rows", "text", "seed"], sort=False, as_index=False)["r2"].mean()
    figure, axis = plt.subplots(figsize=(style.COLUMN, 2.4))
    palette = sns.color_palette("colorblind", means["text"].nunique())
    shared = {"data": means, "x": "rows", "y": "r2", "hue": "text", "style": "text", "palette": palette, "ax": axis}
    sns.lineplot(**shared, errorbar=None)
    sns.scatterplot(**shared, legend=False)
    counts = sorted(means["rows"].unique())
    axis.set(xscale="log", xlabel="token rows", ylabel="mean $R^2_{\\mathrm{lin}}$, held out")
    axis.set_xticks(counts, [f"{count:,}" for count in counts])
    axis.minorticks_off()
    return figure


def main() -> None:
    """Run the whole grid, and draw it."""
    style.use()
    combinations = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    parts = [found(run(**chosen)).assign(**chosen) for chosen in track(combinations, NOTEBOOK)]
    folder = paths.scratch("sweep")
    figures.save(drawn(pd.concat(parts)), folder, "sweep")
    print(f"figure: {folder / 'sweep.png'}")


if __name__ == "__main__":
    main()
