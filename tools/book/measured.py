"""The book's tables of benchmark results: each function makes Markdown from the record of one benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tools.book import costs
from tools.book.tables import markdown

SMOLLM2 = "smollm2-135m"
WORKS = {  # of `benchmarks/ratios.py`: what is measured → in words, and what it is compared with
    "measure": ("`hl.measure`: capture, intervals, perplexity", "bare forward passes"),
    "measure, own": ("the same", "bare passes run its way"),
    "capture": ("of it, capture with moments", "bare forward passes"),
    "ceilings": ("of it, ceilings with intervals", "bare forward passes"),
    "all swaps": ("swap costs of all blocks", "plain evaluations"),
}
ERRORS = {"r2": "R²", "interval": "an end of its interval", "perplexity": "perplexity, as a share"}
FEWEST = 0.92
"""Coverage below which a 95 % interval is marked as holding the truth too seldom."""


def benchmarks(measured: Mapping[str, Any]) -> str:
    """Time and memory compared with other methods, and a figure in `figures`; data of `benchmarks/side_by_side.py`."""
    machine, tokens = measured["machine"], measured["tokens"]
    ways = pd.DataFrame(measured["ways"]).T
    short, long = sorted(measured["memory"], key=int)
    at_short, at_long = (pd.DataFrame(measured["memory"][length]).T for length in (short, long))
    table = {
        "way": ways.index,
        "seconds, all blocks": ways["seconds"].map("{:.1f}".format),
        "times ours": ways["times_ours"].map("{:.1f}".format),
        "MB": at_short["megabytes"].map("{:,.0f}".format),
        "MB, times ours": at_short["times_ours"].map("{:.1f}".format),
        f"MB at {int(long):,} tokens": at_long["megabytes"].map("{:,.0f}".format),
        "there, times ours": at_long["times_ours"].map("{:.1f}".format),
        "error in R²": ways["error"].map("{:.0e}".format),
    }
    goals = pd.DataFrame(measured["goals"]).T
    verdicts = {
        "what": goals.index,
        "measured": goals["measured"].map("{:.2f}".format),
        "goal": goals["goal"].map("{:g}".format),
        "": goals["met"].map({True: "met", False: "not met"}),
    }
    head = (
        f"Measured on: {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"{tokens['compared']:,} tokens, swaps judged on {tokens['judged']:,}; "
        f"torch {measured['versions']['torch']}. Memory is beyond the forward pass."
    )
    picture = "![Time and memory, times ours](figures/bench_side_by_side.png)"
    return "\n".join([head, "", markdown(table), "", picture, "", markdown(verdicts), ""])


def paper_code(measured: Mapping[str, Any]) -> str:
    """The paper's public code against ours on the same rows: largest differences over a model's blocks."""
    rows = []
    for row in measured["rows"]:
        cells = {"model": row["model"], "quantity": row["quantity"], "block": str(row.get("block", ""))}
        cells |= {name: f"{row[name]:.6g}" for name in ("ours", "theirs")}
        largest = f"{row['difference']:.1e}"
        rows.append(cells | {"largest difference": largest, "blocks": str(row.get("blocks", ""))})
    return f"At commit {measured['commit'][:12]} of its repository.\n\n{markdown(rows)}\n"


def llama_cpp(measured: Mapping[str, Any]) -> str:
    """Logits and perplexities of compressed models in llama.cpp, compared with those of transformers."""
    rows, rounded = [], []
    for row in measured["rows"]:
        about = {"model": row["model"], "form": row["form"]}
        if "refused" in row:
            rows.append(about | {"largest difference of logits": f"not converted: {row['refused']}"})
            continue
        apart = {"largest difference of logits": f"{row['difference']:.1e}"}
        if "rounded" in row:
            perplexities = {"perplexity before": f"{row['before']:.2f}", "after": f"{row['after']:.2f}"}
            rounded.append(about | {"rounded to": row["rounded"]} | perplexities | apart)
            continue
        apart["standard deviation of logits"] = f"{row['spread']:.2f}"
        apart["text split alike"] = "yes" if row["same_tokens"] else "no"
        back = row["read_back"]
        apart["logits of `hl.load_model`"] = back if back == "refused" else f"{back:.0e} apart" if back else "equal"
        rows.append(about | apart)
    head = (
        f"llama.cpp at commit {measured['commit'][:9]}, in llama-cpp-python {measured['llama_cpp_python']}; "
        f"{measured['tokens']} tokens of the text `docs`, on: {measured['machine']['processor']}."
    )
    table = pd.DataFrame(rows).fillna("")
    return "\n".join([head, "", markdown(table), "", markdown(rounded), ""])


def ratios(measured: Mapping[str, Any]) -> str:
    """The cost of measurements relative to the model's own work, and start-up times: from `benchmarks/ratios.py`."""
    models = {name: measured[name] for name in costs.TIMED}
    times = []
    for work, (words, beside) in WORKS.items():
        row = {"CPU time of": words}
        for name, found in models.items():
            counted = costs.counted(costs.TIMED[name], found["rows"])[work]
            row[name] = f"{found['ratios'][work]:.2f} ({counted:.2f})"
        times.append(row | {"in": beside})
    exact = []
    for what, words in ERRORS.items():
        differences = {name: f"{found['errors'][what]:.0e}" for name, found in models.items()}
        exact.append({"largest difference of": words} | differences)
    started = measured["start"]
    starts = [
        {"start of": what, "CPU seconds": f"{started['seconds'][what]:.2f}", "times Python's own": f"{times_own:.1f}"}
        for what, times_own in started["ratios"].items()
    ]
    machine = measured["machine"]
    on_rows = ", ".join(f"{name} on {found['rows']:,} rows" for name, found in models.items())
    head = (
        f"Measured on: {machine['processor']}, one thread of a machine with a load of {machine['load']:.1f} as it "
        f"began; {on_rows}. In brackets, what counting multiplications comes to."
    )
    peaks = ", ".join(f"{peak / 1e9:.2f} GB for {int(rows):,} rows" for rows, peak in measured["memory"].items())
    memory = f"Peak memory of a whole measurement of {SMOLLM2}: {peaks}."
    return "\n".join([head, "", markdown(times), "", markdown(exact), "", memory, "", markdown(starts), ""])


def coverage(measured: Mapping[str, Any]) -> str:
    """How often intervals hold the truth: a row per kind and truth, a column per case; bold if too seldom."""
    simulated = pd.DataFrame(measured["rows"])
    shares = simulated["coverage"].map("{:.2f}".format) + " ± " + simulated["error"].map("{:.2f}".format)
    simulated["cell"] = shares.where(simulated["coverage"] >= FEWEST, "**" + shares + "**")
    keys, cases = ["interval", "of"], simulated["case"].unique()
    replicates = simulated.groupby(keys, sort=False)["replicates"].max().astype(str)
    by_case = simulated.pivot_table(index=keys, columns="case", values="cell", aggfunc="first")
    table = by_case.loc[replicates.index, cases].fillna("–").assign(replicates=replicates)
    return markdown(table.reset_index())
