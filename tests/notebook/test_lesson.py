"""Run profile `lesson`: what makes every notebook's run fit a lesson."""

import pytest

from howlinear.instrument.selection import choose_blocks
from howlinear.notebook import settings

LESSON = settings.read("lesson")

AT_MOST = {  # what a notebook's time grows with, and the most of it that a class waits for
    "14_compress": {"fit_rows": 4096, "cost_rows": 1024, "methods": 4, "shares": 1, "heal_steps": 10},
    "15_gate": {"blocks": 4, "choose_rows": 1024, "cost_rows": 1024, "planted_rows": 4096},
}


def size(value):
    if isinstance(value, str):
        value = choose_blocks(value, range(12))
    return len(value) if isinstance(value, list) else value


@pytest.mark.parametrize("stem", AT_MOST)
def test_the_long_notebooks_are_cut_short_for_a_class(stem):
    given = LESSON.parameters[stem]
    for name, most in AT_MOST[stem].items():
        assert size(given[name]) <= most, name


def test_a_class_still_races_what_its_predictions_ask_about():
    """The lesson asks for the first prediction, layers or own units; the third is about the readout."""
    methods = LESSON.parameters["14_compress"]["methods"]
    assert methods[0] == "own units"
    assert {"own units", "ShortGPT", "Wanda", "GRAIL on Wanda"} <= {*methods}
