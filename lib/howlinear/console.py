"""What the commands print: results as tables."""

from __future__ import annotations

from rich import box
from rich.table import Table

from howlinear.ideas.compression.greedy import Plan
from howlinear.ideas.compression.prune import Compressed
from howlinear.instrument.profile import Profile

BAR = 10  # characters that stand for R²_lin = 1


def profile_table(profile: Profile, model: str) -> Table:
    """The profile as a table that reads whole on 80 columns."""
    predicts = "predicts no next token" if profile.perplexity is None else f"perplexity {profile.perplexity:.2f}"
    caption = "held-out documents; jackknife over document folds; median over features"
    if profile.stop is not None:
        caption += f"\n{profile.stop}"
    frame = profile.to_frame()
    some_massive = bool(frame["massive_rows"].any())
    table = Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=some_massive,  # two more columns
        title=f"{model} on {profile.rows.corpus}, {profile.rows_used:,} rows: {predicts}",
        caption=caption,
    )
    table.add_column("block", justify="right", no_wrap=True)
    table.add_column("R²_lin", justify="right", no_wrap=True)
    if some_massive:  # the columns take the place of the bar
        table.add_column("massive\nrows", justify="right", no_wrap=True)
        table.add_column("R² of\nothers", justify="right", no_wrap=True)
    else:
        table.add_column("", justify="left", overflow="crop")  # the bar, which gives way if anything must
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("median\nR²", justify="right", no_wrap=True)
    table.add_column("eff.\nrank", justify="right", no_wrap=True)
    table.add_column("cond.\nnumber", justify="right", no_wrap=True)
    for row in frame.itertuples():
        beside = ["█" * round(BAR * max(0.0, row.r2))]
        if some_massive:
            beside = [f"{row.massive_rows:,}", f"{row.r2_ordinary:.3f}"] if row.massive_rows else ["", ""]
        table.add_row(
            str(row.block),
            f"{row.r2:.3f}",
            *beside,
            f"{row.r2_low:.3f} – {row.r2_high:.3f}",
            f"{row.r2_median:.3f}",
            f"{row.effective_rank:.1f}",
            f"{row.condition:.0f}" if row.condition < 1e6 else f"{row.condition:.1e}",
        )
    return table


def plan_table(plan: Plan) -> Table:
    """The steps of a compression, in their order."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("replaced", "block", "ΔPPL on text to fit on"):
        table.add_column(heading, justify="right", no_wrap=True)
    for count, step in enumerate(plan.steps, 1):
        table.add_row(str(count), str(step["block"]), f"{step['dppl']:+.2f}")
    return table


def units_table(compressed: Compressed) -> Table:
    """How many hidden units each block keeps."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("block", "hidden units"):
        table.add_column(heading, justify="right", no_wrap=True)
    for block, count in compressed.units.items():
        table.add_row(str(block), f"{count:,}")
    return table
