"""What notebook 11 found: which numbers and verdicts hang on the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howlinear.answers import words

STATEMENTS = {
    "spread": "how far the blocks spread",
    "both ways": "whether the profile goes both ways",
    "neighbours": "how much neighbouring blocks differ",
    "lowest": "how low the least linear block is",
}
"""Statements as the results call them → what they are about."""

CHOICES = {
    ("denominator", "scalar"): "one mean of all outputs in the denominator",
    ("split", "tail"): "a contiguous tail held out",
    ("position_0", "out"): "position 0 left out",
}
"""Choices as the results call them → in words; others are built from their name and level."""

ALONE = {
    "denominator": "the denominator",
    "split": "the split",
    "rows": "the number of rows",
    "seq_len": "the length of sequences",
    "position_0": "leaving out position 0",
    "loud": "leaving out the loudest rows or features",
    "null": "the threshold for null directions",
}
"""Kinds of choice as the results call them → in words."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    universes = f"{results['universes']:,}"
    effects = sorted(results["effects"], key=lambda effect: -abs(effect["mean"]))
    moved = [f"{words.number(effect['mean'], signed=True)} with {_choice(effect)}" for effect in effects[:4]]
    return [
        _verdicts(results),
        _orders(results["orders"], universes),
        f"R²_lin itself moves with the protocol, on the mean over blocks most by {words.joined(moved)}.",
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    effects = {(effect["choice"], effect["level"]): effect for effect in results["effects"]}
    scalar = effects.get(("denominator", "scalar"))
    few = effects.get(("rows", str(min(results["settings"]["factors"]))))
    denominator = "This run has not compared the two denominators."
    if scalar:
        denominator = (
            f"One mean of all outputs: it raises R²_lin by {words.number(scalar['mean'])} on the mean and by "
            f"{words.number(scalar['largest'])} at most."
        )
    rows = "This run has not compared so few rows with more."
    if few:
        rows = (
            f"With {few['level']} rows for each input R²_lin is lower, than with all, by {words.number(-few['mean'])} "
            f"on the mean and by {words.number(-few['largest'])} at most."
        )
    _, turning = _flips(results)
    parts = [f"{name}, in {words.joined(cases)}" for name, cases in turning.items()]
    flips = f"Only {words.joined(parts)}." if parts else "None of them, in any model of this run."
    return [denominator, rows, flips]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    return [
        ("Which choice can move R²_lin of a single block most, and which hardly at all?", _most_and_least(results)),
        (
            "A map of few rows has one R² on them and another on held-out rows. Where does the truth lie?",
            _between(results),
        ),
        ("A verdict is ~. Does that mean no?", _straddling(results["side_by_side"])),
        ("Does it hang on the protocol which block is the least linear?", _least_linear(results["lowest_blocks"])),
        ("How can one check what R²_lin would be with endlessly many rows?", _foretold(results)),
    ]


def _flips(results: Mapping[str, Any]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Statement, as it holds, → the models of which that is so under all protocols; and those of which it is not."""
    statements = results["statements"]
    steady, turning = {}, {}
    for row in results["flips"]:
        name = STATEMENTS.get(row["statement"], row["statement"])
        asked = statements[row["statement"]]
        side = "above" if asked["above"] else "below"
        is_so = f"{asked['asks']} {side} {words.number(asked['threshold'])}"
        if row["flips"]:
            kinds = [ALONE[kind] for kind in row["alone"].split(", ") if kind]
            alone = f"; {' or '.join(kinds)} is enough to turn it" if kinds else ""
            held = f"{row['model']} ({is_so} under {words.percent(row['share'])} of them{alone})"
            turning.setdefault(name, []).append(held)
        else:
            always = is_so if row["share"] else is_so.replace(f" {side} ", f" not {side} ")
            steady.setdefault(always, []).append(row["model"])
    return steady, turning


def _verdicts(results: Mapping[str, Any]) -> str:
    """Which verdicts are the same whatever one chooses, and which flip."""
    steady, turning = _flips(results)
    said = []
    if steady:
        alike = words.together({name: words.joined(models) for name, models in steady.items()})
        parts = [f"{words.joined(found)} (in {models})" for models, found in alike.items()]
        said.append(f"The same under all {results['universes']:,} protocols: {words.joined(parts)}.")
    if turning:
        parts = [f"{name}, in {words.joined(cases)}" for name, cases in turning.items()]
        said.append(f"The protocol decides on {words.joined(parts)}.")
    return " ".join(said)


def _orders(orders: Mapping[str, Any], universes: str) -> str:
    """Which model is the most linear."""
    best = max(orders, key=orders.get)
    if " > " not in best:
        return "With one model there is no order of models."
    share = words.percent(orders[best])
    whose = "all" if orders[best] == 1 else share
    return (
        f"By mean R²_lin the order of the models is {best.replace(' > ', ', then ')} under {whose} of the {universes}."
    )


def _choice(effect: Mapping[str, Any]) -> str:
    """A choice of a protocol, in words."""
    if effect["choice"] == "rows":
        level = effect["level"]
        return "the limit of many rows" if level == "limit" else f"{level} rows for each input"
    if effect["choice"] == "seq_len":
        return f"sequences of {effect['level']} tokens"
    if effect["choice"] == "null":
        return f"the threshold for null directions at {effect['level']}"
    return CHOICES.get((effect["choice"], effect["level"]), f"{effect['choice']} {effect['level']}".replace("_", " "))


def _most_and_least(results: Mapping[str, Any]) -> str:
    """The choices of largest and of smallest effect on any block."""
    effects = sorted(results["effects"], key=lambda effect: abs(effect["largest"]))
    least, most = (
        f"{_choice(effect)} ({words.number(effect['largest'], signed=True)} at most)"
        for effect in (effects[0], effects[-1])
    )
    return f"It moves most with {most} and least with {least}: each against ours in that choice, all others equal."


def _between(results: Mapping[str, Any]) -> str:
    """The block with the widest gap between its own rows and others, with few rows; and what many say."""
    settings = results["settings"]
    curves = [row for row in results["curves"] if row["split"] == "documents"]
    few = max(
        (row for row in curves if row["factor"] == settings["few"]), key=lambda row: row["in_sample"] - row["held_out"]
    )
    place = (few["model"], few["block"], settings["many"])
    (many,) = [row for row in curves if (row["model"], row["block"], row["factor"]) == place]
    return (
        f"Between them. In block {few['block']} of {few['model']}, {words.number(few['rows'], 0)} rows give "
        f"{words.number(few['in_sample'])} and {words.number(few['held_out'])}, and so a limit of "
        f"{words.number(few['limit'])}; {words.number(many['rows'], 0)} rows give "
        f"{words.number(many['in_sample'])} and {words.number(many['held_out'])}."
    )


def _straddling(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """How many verdicts under each protocol are open."""
    clauses = {}
    for protocol in dict.fromkeys(row["protocol"] for row in verdicts):
        marks = [row["verdict"] for row in verdicts if row["protocol"] == protocol]
        clauses["ours" if protocol == "ours" else f"the {protocol}'s"] = f"{marks.count('~')} of {len(marks)} verdicts"
    return (
        "No: the interval straddles the threshold, so that the data cannot tell. Of that kind are "
        f"{words.per_model(clauses, 'under')}."
    )


def _least_linear(lowest: Sequence[Mapping[str, Any]]) -> str:
    """Per model the block that is most often the least linear, and how often it is."""
    often: dict[str, Mapping[str, Any]] = {}
    for row in lowest:
        if row["model"] not in often or row["share"] > often[row["model"]]["share"]:
            often[row["model"]] = row
    answer = "It does" if any(row["share"] < 1 for row in often.values()) else "It does not"
    clauses = {name: f"block {row['block']} under {words.percent(row['share'])}" for name, row in often.items()}
    return f"{answer}: the one that is the least linear most often is, of the protocols, {words.per_model(clauses)}."


def _foretold(results: Mapping[str, Any]) -> str:
    """Whether the limit told from few rows is that told from many."""
    (found,) = [row for row in results["agreement"] if row["split"] == "documents"]
    settings = results["settings"]
    nearer = "nearer to it than" if abs(found["limit_error"]) < abs(found["raw_error"]) else "no nearer to it than"
    return (
        f"One tells it from {settings['few']} rows for each input and again from {settings['many']}: split by "
        f"documents, the first holds the second in {found['limit_agrees']} of {found['blocks']} blocks. It is off by "
        f"{words.number(found['limit_error'], 3, signed=True)} on the mean, {nearer} R² held out with the few rows "
        f"({words.number(found['raw_error'], 3, signed=True)})."
    )
