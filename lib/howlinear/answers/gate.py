"""What notebook 15 found: how many tokens can take the line, and what decides which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howlinear.answers import words

GATE, ORACLE, LOTS, SAME, ALL, FIRST = "gate", "oracle", "lots", "lots, as many", "all", "gate, first line"
"""Kinds, as `ideas.gate.tables` has them."""

AHEAD, BEHIND = "gate − lots", "oracle − gate"
"""Differences of mean shares, as `ideas.gate.tables` has them."""

Row = Mapping[str, Any]


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    gated, without = _gated(results)
    settings = results["settings"]
    limit = words.percent(settings["limit"])
    said = []
    if gated:
        shares = {name: _least(model) for name, model in gated.items()}
        low, high = (words.number(100 * settings[end], 0) for end in ("published_low", "published_high"))
        said.append(
            f"With one block changed at a time, where perplexity may rise by {limit}, a gate of d + 1 numbers in "
            f"closed form sends to the line, as a mean over blocks, {words.per_model(shares)}; arXiv 2603.03459 "
            f"reports {low} to {high} % for blocks of GPT-2, by a trained gate."
        )
        said.append(_in_dear_blocks(gated, limit))
        together = {}
        for name, model in gated.items():
            row = model["together"]
            blocks = words.counted(len(_by_block(model)), "block")
            together[name] = (
                f"{words.percent(row['saved'])} of the multiplications of the {blocks} with gates go and perplexity "
                f"rises by {_percent(row, 'rise')}"
            )
        said.append(f"No parameter is saved, only arithmetic: with all gates at once {words.per_model(together)}.")
    if without:
        said.append(words.no_loss(without))
    return said


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    gated, without = _gated(results)
    if not gated:
        return [words.no_loss(without)] * 3
    halves, lots, told = {}, {}, {}
    for name, model in gated.items():
        block, rows = _dearest(model)
        halves[name] = (
            f"{_percent(rows[GATE], 'share')} of the tokens (block {block}; all of them would cost "
            f"{_percent(rows[ALL], 'rise')})"
        )
        lots[name] = f"{_percent(rows[SAME], 'rise')} against {_percent(rows[GATE], 'rise')} (block {block})"
        told[name] = words.span(row["told"] for row in model["blocks"])
    return [
        f"The gate sends to the line {words.per_model(halves)}.",
        f"Perplexity rises with lots, against the gate, by {words.per_model(lots)}.",
        f"Of the logarithm of the error the score tells, in held-out R² from block to block, {words.per_model(told)}.",
    ]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    gated, without = _gated(results)
    limit = results["settings"]["limit"]
    asked = {
        "The threshold was chosen for a limit on other text. Does the held-out cost keep to it?": lambda: _kept(
            gated, limit
        ),
        "Is the least-squares line of all tokens good enough for those that take it?": lambda: _anew(gated),
        "Each gate alone costs little. What do all of them cost at once?": lambda: _at_once(gated),
        "How far is an affine score from knowing each token's error?": lambda: _behind(gated),
        "Half of the tokens of a block are exactly on a line. Does a gate find them?": lambda: _planted(
            results["planted"]
        ),
    }
    if not gated:
        return [(question, words.no_loss(without)) for question in asked]
    return [(question, answer()) for question, answer in asked.items()]


def _gated(results: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """The models that have a perplexity, and the names of those that have none."""
    gated = {name: model for name, model in results["models"].items() if "costs" in model}
    return gated, [name for name in results["models"] if name not in gated]


def _by_block(model: Mapping[str, Any]) -> dict[int, dict[str, Row]]:
    """Block → kind → its row."""
    found: dict[int, dict[str, Row]] = {}
    for row in model["costs"]:
        found.setdefault(row["block"], {})[row["kind"]] = row
    return found


def _dearest(model: Mapping[str, Any]) -> tuple[int, dict[str, Row]]:
    """The block where all tokens on the line cost most."""
    by_block = _by_block(model)
    block = max(by_block, key=lambda block: by_block[block][ALL]["rise"])
    return block, by_block[block]


def _percent(row: Row, key: str) -> str:
    """A share with its interval, in per cent."""
    ends = [100 * row[name] for name in (key, f"{key}_low", f"{key}_high")]
    return f"{words.estimate(*ends, digits=1)} %"


def _least(model: Mapping[str, Any]) -> str:
    """The mean share over blocks, and the least."""
    by_block = _by_block(model)
    least = min(by_block, key=lambda block: by_block[block][GATE]["share"])
    share = words.number(100 * by_block[least][GATE]["share"], 1)
    return f"{_percent(model['mean'][GATE], 'share')} of the held-out tokens (least in block {least}, {share} %)"


def _in_dear_blocks(gated: Mapping[str, Mapping[str, Any]], limit: str) -> str:
    """What the gate comes to where not all tokens may take the line, beside lots and the oracle."""
    clauses = {}
    for name, model in gated.items():
        if model["dear"]:
            share, ahead, behind = (_percent(model["dear"][kind], "share") for kind in (GATE, AHEAD, BEHIND))
            points = [step.removesuffix(" %") for step in (ahead, behind)]
            clauses[name] = (
                f"{share}, {points[0]} points above lots and {points[1]} below an oracle ({_counted(model)})"
            )
    if not clauses:
        return f"All tokens on the line cost no more than {limit} in any block, so nothing is left to a gate."
    return (
        f"Where all tokens on the line would cost more than {limit}, the gate reaches, as a mean over these blocks, "
        f"{words.per_model(clauses)}. An oracle knows each token's true error."
    )


def _counted(model: Mapping[str, Any]) -> str:
    """How many blocks are dear, of how many."""
    chosen = [rows[GATE]["chosen"] for rows in _by_block(model).values()]
    return f"{sum(share < 1 for share in chosen)} of {len(chosen)} blocks"


def _kept(gated: Mapping[str, Mapping[str, Any]], limit: float) -> str:
    """In how many blocks the held-out rise is above the limit, and whether it surely is."""
    clauses, surely = {}, 0
    for name, model in gated.items():
        rows = {block: kinds[GATE] for block, kinds in _by_block(model).items()}
        above = sum(row["rise"] > limit for row in rows.values())
        surely += sum(row["rise_low"] > limit for row in rows.values())
        most = max(rows, key=lambda block: rows[block]["rise"])
        clauses[name] = f"{above} of {len(rows)} blocks (most in block {most}, {_percent(rows[most], 'rise')})"
    answer = "Not surely" if surely else "As far as this text can tell"
    intervals = f"{words.counted(surely, 'interval')} {'lies' if surely < 2 else 'lie'} wholly above it"
    return (
        f"{answer}: a threshold is fitted as well, so that held out the rise lies on either side. It is above "
        f"{words.percent(limit)} in {words.per_model(clauses)}, and {intervals}."
    )


def _anew(gated: Mapping[str, Mapping[str, Any]]) -> str:
    """The first line beside the one that is fitted anew, for as many tokens of the dearest block."""
    clauses, better = {}, []
    shares = [row["share"] for model in gated.values() for row in model["curves"]]
    share = min(shares, key=lambda share: abs(share - 0.5))
    for name, model in gated.items():
        rows = {row["kind"]: row for row in model["curves"] if row["share"] == share}
        better.append(rows[GATE]["rise"] < rows[FIRST]["rise"])
        clauses[name] = (
            f"{_percent(rows[FIRST], 'rise')} against {_percent(rows[GATE], 'rise')} (block {rows[GATE]['block']})"
        )
    answer = "No" if all(better) else "Not in every model" if any(better) else "It is here"
    return (
        f"{answer}: with {words.percent(share)} of the tokens on it, by the same score, perplexity rises with the line "
        f"of all ordinary tokens, against the one fitted anew, by {words.per_model(clauses)}."
    )


def _at_once(gated: Mapping[str, Mapping[str, Any]]) -> str:
    """The cost of all gates at once beside the sum of their own."""
    clauses, more = {}, []
    for name, model in gated.items():
        alone = sum(rows[GATE]["rise"] for rows in _by_block(model).values())
        more.append(model["together"]["rise_low"] > alone)
        clauses[name] = f"{_percent(model['together'], 'rise')} where they add up to {words.number(100 * alone, 1)} %"
    if all(more):
        answer = "More than their sum"
    elif any(more):
        answer = "Not always more than their sum"
    else:
        answer = "Not surely more than their sum"
    return f"{answer}: perplexity rises by {words.per_model(clauses)}."


def _behind(gated: Mapping[str, Mapping[str, Any]]) -> str:
    """The shares of oracle, gate and lots side by side."""
    clauses = {}
    for name, model in gated.items():
        blocks = model["dear"] or model["mean"]
        clauses[name] = words.joined(_percent(blocks[kind], "share") for kind in (ORACLE, GATE, LOTS))
    return (
        "In tokens on the line, as means over the blocks where not all may take it, oracle, gate and lots have "
        f"{words.per_model(clauses)}."
    )


def _planted(planted: Sequence[Row]) -> str:
    """Whose tokens are straight ones where an affine function of x tells which those are, and where none does."""
    right = {}
    for case in ("told", "untold"):
        rows = {row["kind"]: row for row in planted if row["case"] == case}
        right[case] = " against ".join(words.percent(rows[kind]["right"]) for kind in (GATE, LOTS))
    return (
        "Only where an affine function of x tells which they are: of the half of the tokens that the planted block's "
        f"gate sends to the line first, against a half by lots, {right['told']} are straight ones. Where none tells, "
        f"{right['untold']} are."
    )
