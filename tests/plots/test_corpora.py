import numpy as np
import pandas as pd

from helpers.drawn import every, legend, texts, with_ends, xy
from howlinear.plots import corpora, style


def curves(models=("mini-gpt2", "mini-llama"), texts=("docs", "code", "cpp"), count=4):
    """R² of 0.9 everywhere; intervals reach 0.1 down and 0.2 up."""
    return with_ends(every(model=models, corpus=texts, block=range(count)).assign(r2=0.9), 0.1, 0.2, "r2")


def drops(models=("mini-gpt2", "mini-llama"), texts=("docs", "code", "cpp"), count=4):
    """R² elsewhere would be 0.2 · (place fitted + place scored), and 0.01 lower each block on."""
    table = every(model=models, fitted=texts, scored=texts, block=range(count))
    places = table["fitted"].map(texts.index) + table["scored"].map(texts.index)
    table["drop"] = 0.9 - 0.2 * places + 0.01 * table["block"]
    return with_ends(table[table["fitted"] != table["scored"]], 0.1, 0.2, "drop")


def test_each_flank_shows_its_rows_its_own_line_and_the_other_one():
    rows = {"left": pd.DataFrame({"x": [-3.0, -1.0], "y": [9.0, 1.0]})}
    rows["right"] = pd.DataFrame({"x": [1.0, 3.0], "y": [1.0, 9.0]})
    r2 = {("left", "left"): 0.891, ("left", "right"): -15.16, ("right", "left"): -17.58, ("right", "right"): 0.893}
    figure = corpora.flanks(rows, {"left": (-4.0, -3.0), "right": (4.0, -3.0)}, r2)
    for axis, own, slope in zip(figure.axes, ("left", "right"), (-4, 4), strict=True):
        points, *lines = axis.get_lines()
        np.testing.assert_array_equal(points.get_xydata(), rows[own])
        home, away = lines if own == "left" else reversed(lines)
        np.testing.assert_allclose(home.get_ydata(), slope * home.get_xdata() - 3)
        np.testing.assert_allclose(away.get_ydata(), -slope * away.get_xdata() - 3)
        assert (home.get_color(), home.get_linestyle()) == (style.ACCENT, "-")
        assert (away.get_color(), away.get_linestyle()) == (style.GREY, "--")
    assert legend(figure.axes[0]) == ["left line: $R^2$ = 0.89", "right line: $R^2$ = −17.6"]
    assert legend(figure.axes[1]) == ["left line: $R^2$ = −15.2", "right line: $R^2$ = 0.89"]


def test_profiles_have_a_panel_per_model_and_a_curve_per_corpus_with_its_interval():
    table = curves()
    table.loc[(table["model"] == "mini-llama") & (table["corpus"] == "code") & (table["block"] == 2), "r2"] = 0.97
    figure = corpora.profiles(table)
    code = figure.axes[1].containers[1]
    np.testing.assert_allclose(xy(code), [[0, 0.9], [1, 0.9], [2, 0.97], [3, 0.9]])  # the second stays in its place
    assert legend(figure) == ["docs", "code", "cpp"]
    assert len(legend(corpora.profiles(curves(texts=("_notes", "docs"))))) == 2


def test_curves_of_corpora_lie_side_by_side_and_look_different():
    figure = corpora.profiles(curves(texts=tuple("abcde")))
    lines = [container.lines[0] for container in figure.axes[0].containers]
    places = [xy(line)[0, 0] for line in lines]
    np.testing.assert_allclose(places, corpora.SIDE_BY_SIDE * np.arange(-1, 4))
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == 5


def test_the_papers_profiles_lie_behind_where_model_and_corpus_are_the_papers():
    papers = pd.DataFrame({"model": "gpt2", "block": range(4), "r2_lin": 0.1, "r2_lin_moby_dick": 0.2})
    papers["r2_lin_math_puzzles"] = [0.3, 0.4, 0.5, 0.6]
    table = curves(models=("gpt2", "mini-llama"), texts=("docs", "wikitext", "puzzles"))
    figure = corpora.profiles(table, papers)
    drawn = [{line.get_label(): line for line in axis.lines if "the paper" in line.get_label()} for axis in figure.axes]
    assert list(drawn[0]) == ["wikitext, the paper", "puzzles, the paper"]
    line = drawn[0]["puzzles, the paper"]
    np.testing.assert_allclose(line.get_ydata(), [0.3, 0.4, 0.5, 0.6])
    assert (line.get_color(), line.get_marker()) == (style.GREY, corpora.look(2)["marker"])
    assert all(len(line.get_xdata()) == 0 for line in drawn[1].values())  # mini-llama is no model of the paper


def test_a_profile_below_zero_is_not_cut_off():
    table = curves()
    table[["r2", "r2_low", "r2_high"]] -= 1.5
    figure = corpora.profiles(table)
    assert figure.axes[0].get_ylim()[0] < table["r2"].min()


def test_the_matrix_shows_means_over_blocks_fitted_down_and_scored_across():
    table = drops()
    table["drop"] -= 0.01 * table["block"]
    table.loc[(table["fitted"] == "docs") & (table["scored"] == "cpp") & (table["block"] == 0), "drop"] = 0.9
    table = table.assign(drop_low=table["drop"], drop_high=table["drop"])
    figure = corpora.transfer(curves(), table)
    above = figure.axes[0]
    expected = [[0.9, 0.2, 0.3], [0.2, 0.9, 0.6], [0.4, 0.6, 0.9]]
    np.testing.assert_allclose(above.images[0].get_array(), expected)
    written = {text.get_position(): text.get_text() for text in above.texts}
    assert written[2, 0] == "0.30"
    assert written[0, 2] == "0.40"


def test_below_it_lies_what_the_first_map_loses_on_every_other_corpus():
    figure = corpora.transfer(curves(texts=("code", "docs", "cpp")), drops())
    below = figure.axes[2]
    docs, cpp = below.containers
    np.testing.assert_allclose(xy(docs)[:, 1], 0.7 + 0.01 * np.arange(4))
    np.testing.assert_allclose(xy(cpp)[:, 1], 0.3 + 0.01 * np.arange(4))
    assert legend(figure) == ["scored on docs", "scored on cpp"]


def test_of_a_single_text_it_is_said_that_nothing_can_be_carried():
    figure = corpora.transfer(curves(texts=("docs",)), drops(texts=("docs",)))
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), [[0.9]])
    assert texts(figure.axes[2].texts) == ["a single text: no other to score on"]
