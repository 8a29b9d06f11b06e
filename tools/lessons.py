"""A lesson plan for each notebook: a page from `lessons.yaml`, the notebook's own words and the recorded results.

`tools.pages` writes all plans into one page of the book, `make course` a page for each. `lessons.yaml` holds what only
a teacher can say: the goal, the figure to show, the minutes of each part, which prediction to ask first, what
students get wrong, and which exercise belongs in class and which at home. The questions are read from the notebook, and
every number from the recorded results, in the sentences in which the notebook gives it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from howlinear.errors import InputError
from howlinear.files import paths, tables
from howlinear.notebook.prose import Prose, captions, describe
from tools.book.solutions import difficulties, notebook

MINUTES = 40
"""Length of a lesson. Two meetings of ninety minutes hold four lessons and leave time for a claim of the ledger."""

FIGURE = re.compile(r"\]\((?:\.\./)*figures/(\w+)/(\w+)\.png\)")
"""A figure in a page: its run profile and its name."""


recorded_tables = cache(tables.results)


@cache
def recorded(folder: Path, stem: str) -> Prose:
    """A notebook's findings in sentences, from the results in a folder; cached, since several pages use them."""
    return describe(recorded_tables(folder, stem))


@cache
def plans() -> dict[str, dict[str, Any]]:
    """Stem of a notebook → its plan as `lessons.yaml` has it."""
    return yaml.safe_load(Path(__file__).with_name("lessons.yaml").read_text(encoding="utf-8"))


def page(stem: str, plan: Mapping[str, Any], found: Prose) -> str:
    """A plan as Markdown, without a heading, with the results of the models that the class runs.

    Args:
        stem: stem of the notebook.
        plan: `goal`; `figure`, as in `minis/02_ceilings_profile`; `minutes` of the parts `predict`, `show`, `run`,
            `exercise` and `back`; `predict`, the number of the prediction to ask first; `misconceptions`, each with
            what is `heard`, the `answer` to it and, optionally, the `number` to ask next, as in `reply 3` or
            `question 2`; `in_class` and `at_home`, numbers of exercises; `discuss`, an open question.
        found: the recorded results, in sentences.
    """
    minutes, hard = plan["minutes"], difficulties(stem)
    caption = captions()[plan["figure"].partition("/")[2]]
    prediction, reply = _asked(stem, found, f"reply {plan['predict']}")
    parts = [
        (minutes["predict"], f'Everyone writes down a guess: "{prediction}"'),
        (minutes["show"], "Show the figure below. Have them say what they see before you say how to read it."),
        (minutes["run"], "Run the notebook as `make course` hands it out, and read *The answer* together."),
        (minutes["exercise"], f"In pairs, exercise {plan['in_class']} ({hard[plan['in_class']]})."),
        (minutes["back"], f"Back to the prediction. {reply}"),
    ]
    rows = [f"| {number} | {what.replace('|', '&#124;')} |" for number, what in parts]
    heard = []
    for misconception in plan["misconceptions"]:
        text = f'*"{misconception["heard"]}"* {misconception["answer"]}'
        if "number" in misconception:
            question, answer = _asked(stem, found, misconception["number"])
            text = f'{text} Then ask: "{question}" {answer}'
        heard.append(text)
    return "\n\n".join(
        [
            f"**Goal.** {plan['goal']}",
            "\n".join(["| minutes | what |", "|---:|---|", *rows]),
            f"![{caption}](../../figures/{plan['figure']}.png)",
            "**Expect to hear**",
            *heard,
            f"**Discuss.** {plan['discuss']}",
            f"**At home.** Exercise {plan['at_home']} ({hard[plan['at_home']]}).",
        ]
    )


def with_figures(text: str, folder: Path) -> str:
    """The page with its figures next to it: copies them to `folder/figures` and changes the links to the copies."""
    for profile, name in FIGURE.findall(text):
        drawn = paths.figures(profile) / f"{name}.png"
        if not drawn.is_file():
            raise InputError(f"a lesson plan shows {drawn}, which is not there: make figures PROFILE={profile}")
        copy = folder / "figures" / profile / drawn.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drawn, copy)
    return FIGURE.sub(r"](figures/\1/\2.png)", text)


def _predictions(stem: str) -> list[str]:
    """The predictions that a notebook asks for; a single text if they are not numbered."""
    text = next(cell.source for cell in notebook(stem).cells if "## Predict first" in cell.source)
    asked = re.findall(r"^\d\. (.+?)(?=^\d\. |\Z)", text, re.MULTILINE | re.DOTALL)
    return [" ".join(question.split()) for question in asked or [text.partition("\n")[2]]]


def _asked(stem: str, found: Prose, which: str) -> tuple[str, str]:
    """A question of a notebook and its answer: `reply 3` to the third prediction, or `question 2` to test oneself."""
    kind, number = which.split()
    replies = zip(_predictions(stem), found.replies, strict=True)
    return (list(replies) if kind == "reply" else found.questions)[int(number) - 1]
