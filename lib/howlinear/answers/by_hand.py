"""What notebook 00 found: how straight the blocks of one model are, measured in twenty-five lines."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from howlinear.answers import words


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    blocks = results["blocks"]
    straight, bent = _extremes(blocks)
    average = words.percent(mean(block["r2"] for block in blocks))
    return [
        f"Block {straight['block']} of {results['model']} is the straightest: a line does "
        f"{words.percent(straight['r2'])} of its work, on text that the line has not seen.",
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


def _extremes(blocks: list[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The straightest block and the least straight one."""
    straight = max(blocks, key=lambda block: block["r2"])
    bent = min(blocks, key=lambda block: block["r2"])
    return straight, bent
