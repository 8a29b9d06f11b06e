import numpy as np
import pandas as pd
import pytest

from helpers.drawn import legend, texts
from howlinear.plots.claims import COLOURS, board

COLUMNS = ["claim", "section", "asked", "model", "verdict", "margin", "margin_low", "margin_high"]
COLUMNS += ["hangs_on_ends", "hangs_on_massive_rows"]
VERDICTS = pd.DataFrame(
    [
        ("wide", "§5.1", "above 0.25", "a", "holds here", 0.1, 0.05, 0.2, True, False),
        ("wide", "§5.1", "above 0.25", "b", "mixed", 0.0, -0.1, 0.1, False, False),
        ("gone", "§5.2", "below 3 %", "together", "not testable here", np.nan, np.nan, np.nan, False, False),
    ],
    columns=COLUMNS,
)
PAPER = pd.DataFrame(
    [("wide", "§5.1", "above 0.25", "gpt2", "holds here", 0.4, 0.4, 0.4, False, False)], columns=COLUMNS
)


def drawn(marker_face):
    """Where marks stand that are hollow or filled, in the order in which they are drawn."""
    (axis,) = board(VERDICTS, PAPER).axes
    marks = [line for line in axis.get_lines() if line.get_marker() != "None" and len(line.get_xdata())]
    hollow = [line for line in marks if line.get_markerfacecolor() == "none"]
    chosen = hollow if marker_face == "hollow" else [line for line in marks if line not in hollow]
    return [(float(line.get_xdata()[0]), round(float(line.get_ydata()[0]))) for line in chosen]


def test_a_strip_is_scaled_to_what_is_furthest_from_its_threshold():
    assert drawn("hollow") == [(1.0, 0)]  # 0.4 of 0.4
    assert drawn("filled") == [(pytest.approx(0.25), 0), (0.0, 0)]


def test_intervals_are_drawn_and_coloured_by_their_verdict():
    (axis,) = board(VERDICTS, PAPER).axes
    bars = [line for line in axis.get_lines() if len(line.get_xdata()) == 2 and line.get_color() in COLOURS.values()]
    found = [(line.get_color(), *map(float, line.get_xdata())) for line in bars]
    assert found == [
        (COLOURS["holds here"], pytest.approx(0.125), pytest.approx(0.5)),
        (COLOURS["mixed"], pytest.approx(-0.25), pytest.approx(0.25)),
    ]


def test_rows_are_named_in_order_with_what_is_asked_and_what_cannot_be():
    (axis,) = board(VERDICTS, PAPER).axes
    assert texts(axis.get_yticklabels()) == ["wide", "gone"]
    assert axis.get_ylim() == (1.5, -0.5)  # the first row is topmost
    found = {(text.get_text(), text.get_position()[1]) for text in axis.texts}
    assert found >= {("above 0.25", 0), ("below 3 %", 1), ("§5.1", 0), ("§5.2", 1), ("not testable here", 1)}


@pytest.mark.parametrize("hanging", [(True, False), (False, True)])
def test_what_hangs_on_end_blocks_or_massive_rows_is_an_open_mark_and_the_legend_names_models(hanging):
    verdicts = VERDICTS.copy()
    verdicts.loc[0, ["hangs_on_ends", "hangs_on_massive_rows"]] = hanging
    figure = board(verdicts, PAPER)
    marks = [line for line in figure.axes[0].get_lines() if line.get_color() in COLOURS.values()]
    faces = [line.get_markerfacecolor() for line in marks if line.get_marker() != "None"]
    assert faces == ["white", COLOURS["mixed"]]
    labels = legend(figure)
    assert {"a", "b"} < set(labels)
    assert not any("power" in label for label in labels)
