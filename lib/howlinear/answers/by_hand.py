"""What notebook 00 found: how straight the blocks of one model are, measured in twenty-five lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from howlinear.answers import words

BY_CHANCE = 0.1
"""An R² no further from 0 than this may be chance; our choice."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    blocks = results["blocks"]
    straight, bent = _extremes(blocks)
    average = words.percent(mean(block["r2"] for block in blocks))
    return [
        f"Block {straight['block']} of {results['model']} is the straightest: a line explains "
        f"{words.percent(straight['r2'])} of how its output varies (R²), on text that the line has not seen.",
        f"Block {bent['block']} is the least straight, with {words.percent(bent['r2'])}; the mean over all "
        f"{len(blocks)} blocks is {average}.",
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    blocks = results["blocks"]
    straight, bent = _extremes(blocks)
    optimism = mean(block["r2_in_sample"] - block["r2"] for block in blocks)
    hasty = results["hasty"]
    home, away = results["parabola"]["at_home"], results["parabola"]["away"]
    return [
        f"Block {straight['block']}, with {words.number(straight['r2'])}. The first block has "
        f"{words.number(blocks[0]['r2'])}, the last {words.number(blocks[-1]['r2'])}; the least straight is block "
        f"{bent['block']}, with {words.number(bent['r2'])}.",
        f"By {words.number(optimism, 3)} on average, as there are {words.number(results['rows_to_fit'], 0)} rows to "
        f"fit on. From {words.number(hasty['rows'], 0)} rows, two for each input, block {hasty['block']} seems to have "
        f"{words.number(hasty['r2_in_sample'])}; on held-out rows that line has {words.number(hasty['r2'])}.",
        f"Each finds its own flank straight: R² {words.number(home['left'])} and {words.number(home['right'])}. On the "
        f"other flank its line does harm: {words.number(away['left'], 1)} and {words.number(away['right'], 1)}.",
    ]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    _, bent = _extremes(results["blocks"])
    drawn = results["drawn"][f"block {bent['block']}"]
    return [
        ("Why is a line judged on rows that it was not fitted on?", _by_heart(results["hasty"])),
        (
            "Deal the outputs to the wrong tokens. What R² should the line have then, and what has it?",
            _wrong_tokens(results["nonsense"]),
        ),
        ("Does an R² below 0 say that a curve is far from straight?", _below_zero(results["parabola"])),
        (
            "A neuron's inputs have their middle at 0. Make its bend four times as sharp and the inputs a quarter as "
            "wide. What happens to R²?",
            _other_units(results["toys"]),
        ),
        (
            "The line drawn through the least straight block explains another share than the line measured there. Why?",
            f"The line drawn has one input and one output and explains {words.number(drawn)}; the line measured has "
            f"all of them and explains {words.number(bent['r2'])}. What looks like noise about the line drawn is what "
            "the block makes of its other inputs.",
        ),
    ]


def _extremes(blocks: list[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The straightest block and the least straight one."""
    straight = max(blocks, key=lambda block: block["r2"])
    bent = min(blocks, key=lambda block: block["r2"])
    return straight, bent


def _by_heart(hasty: Mapping[str, Any]) -> str:
    """What a line fitted on few rows is worth on these rows, and on others."""
    reason = "learns" if hasty["r2_in_sample"] > hasty["r2"] else "might learn"
    return (
        f"Because it {reason} some of its own rows by heart: fitted on {words.number(hasty['rows'], 0)} rows, the line "
        f"of block {hasty['block']} has an R² of {words.number(hasty['r2_in_sample'])} on these rows and of "
        f"{words.number(hasty['r2'])} on held-out ones."
    )


def _wrong_tokens(r2: words.Number) -> str:
    """What is left of R² where there is nothing to explain."""
    verdict = "as it should be, up to chance" if abs(r2) < BY_CHANCE else "so something is wrong with the measurement"
    return f"0, since the inputs then tell nothing of the outputs. It has {words.number(r2)}, {verdict}."


def _below_zero(parabola: Mapping[str, Mapping[str, words.Number]]) -> str:
    """What the two lines of one parabola are worth at home and away."""
    return (
        "No: it says that this line is worse than the mean on these rows. The two lines of the parabola have an R² of "
        f"{words.span(parabola['at_home'].values())} on their own flank and of "
        f"{words.span(parabola['away'].values(), 1)} on the other one, and it is one curve."
    )


def _other_units(toys: Sequence[Mapping[str, words.Number]]) -> str:
    """The first and the last of the drawn neurons, which are the same in other units."""
    before, after = (words.number(toy["r2"], 3) for toy in (toys[0], toys[-1]))
    if before == after:
        return (
            f"Nothing: it is {before} before and after. It is the same picture in other units, for what counts is how "
            "far the inputs reach beside how sharp the bend is."
        )
    return f"It goes from {before} to {after}, so the two pictures are not the same in other units."
