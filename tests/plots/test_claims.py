import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from howlinear.ideas.claims.claim import Verdict
from howlinear.plots.claims import COLOURS, board


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


CELLS = pd.DataFrame(
    [
        ("wide", "§5.1", "above 0.25", "a", "holds here", "✓", "0.36"),
        ("wide", "§5.1", "above 0.25", "b", "mixed", "~", "0.28"),
        ("wide", "§5.1", "above 0.25", "all", "mixed", "~", ""),
        ("gone", "§5.2", "below 3 %", "all", "not testable here", "–", ""),
    ],
    columns=["claim", "section", "asked", "column", "verdict", "symbol", "number"],
)


def test_every_cell_stands_in_its_place_with_its_verdict():
    (axis,) = board(CELLS, ["b", "a", "all"]).axes
    cells = {}
    for patch in axis.patches:
        x, y = patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2
        cells[round(x), round(y)] = to_hex(patch.get_facecolor())
    assert cells == {
        (1, 0): COLOURS["holds here"],
        (0, 0): COLOURS["mixed"],
        (2, 0): COLOURS["mixed"],
        (2, 1): COLOURS["not testable here"],
    }
    texts = {text.get_position(): text.get_text() for text in axis.texts}
    assert texts[1, 0] == "✓ 0.36"
    assert texts[2, 1] == "–"
    assert {y: text for (x, y), text in texts.items() if 2 < x < 3} == {0: "above 0.25", 1: "below 3 %"}
    assert {y: text for (x, y), text in texts.items() if x > 3} == {0: "§5.1", 1: "§5.2"}
    assert [line.get_ydata()[0] for line in axis.get_lines()] == [0.5]  # between the sections


def test_rows_and_columns_are_named_in_order():
    (axis,) = board(CELLS, ["b", "a", "together", "all"]).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["b", "a", "together", "all", "asked"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["wide", "gone"]
    assert axis.get_ylim() == (1.5, -0.5)  # the first row is topmost


def test_a_cell_without_a_column_is_refused():
    with pytest.raises(ValueError, match="no column for b: the board has a, all"):
        board(CELLS, ["a", "all"])


def test_every_verdict_has_a_colour_of_its_own():
    assert COLOURS.keys() == {verdict.value for verdict in Verdict}
    assert len(set(COLOURS.values())) == len(COLOURS)
