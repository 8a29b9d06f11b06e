import numpy as np
import pandas as pd
import pytest

from helpers.drawn import bars, every, legend, points, texts, titles, with_ends
from howlinear.plots import controls, style

MODELS = ["mini-gpt2", "mini-pythia"]
KINDS = ["own", "normal", "turned", "permuted", "redrawn", "fresh"]


@pytest.fixture
def profiles():
    table = every(model=MODELS, block=range(4), control=KINDS)
    return with_ends(table.assign(r2=np.linspace(0.1, 0.9, len(table))), 0.02, 0.01, "r2")


def profile(table, model, kind):
    return table[(table.model == model) & (table.control == kind)][["block", "r2"]]


def effects(names=("shape", "weights")):
    return pd.DataFrame({"effect": names, "share": [0.3, 0.6], "share_low": [0.2, 0.61], "share_high": [0.4, 0.7]})


def test_trained_profiles_lie_on_a_band_of_random_ones(profiles):
    random = every(model=MODELS, seed=(0, 1), block=range(4))
    random["r2"] = 0.9 + 0.02 * random.seed + 0.01 * random.block
    random["r2_in_sample"] = random.r2 + 0.03
    figure = controls.trained_and_random(profiles, random)
    for axis, model in zip(figure.axes, MODELS, strict=True):
        np.testing.assert_allclose(points(axis, "trained"), profile(profiles, model, "own"))
        for kind in ("permuted", "redrawn", "fresh"):
            np.testing.assert_allclose(points(axis, kind), profile(profiles, model, kind))
        band = axis.collections[0].get_paths()[0].vertices
        ends = set(np.round(band[band[:, 0] == 2][:, 1], 6))
        assert ends == {0.92, 0.97}  # the lowest held out, the highest in sample


@pytest.mark.parametrize("count", [2, 3])
def test_transplants_have_a_panel_an_owner_and_one_of_shares(profiles, count):
    models = [*MODELS, "mini-llama"][:count]
    llama = profiles[profiles.model == MODELS[0]].assign(model="mini-llama")
    profiles = pd.concat([profiles, llama])
    profiles = profiles[profiles.model.isin(models)]
    pairs = every(block=range(4), inputs=models, weights=models)
    pairs["r2"] = np.linspace(0, 1, len(pairs))
    closed = profiles[profiles.control == "normal"].assign(closed=0.5)
    figure = controls.transplants(pairs, profiles, closed, effects())
    axes = figure.axes
    owners = [f"({letter}) weights of {model}" for letter, model in zip("abc", models, strict=False)]
    assert titles(figure) == [*owners, f"({'abcd'[count]}) sources"]
    for axis, owner in zip(axes, models, strict=False):
        for giver in models:
            curve = pairs[(pairs.weights == owner) & (pairs.inputs == giver)]
            np.testing.assert_allclose(points(axis, f"rows of {giver}"), curve[["block", "r2"]])
        np.testing.assert_allclose(points(axis, "normal rows"), profile(profiles, owner, "normal"))
        np.testing.assert_allclose(points(axis, "own rows, turned"), profile(profiles, owner, "turned"))
        assert set(points(axis, "closed form")[:, 1]) == {0.5}
    assert len({axis.get_ylim() for axis in axes[:count]}) == 1  # their heights are compared
    shares = axes[count]
    assert not shares.get_shared_y_axes().joined(shares, axes[0])
    np.testing.assert_allclose(shares.containers[0].lines[0].get_xydata()[:, 0], [0.3, 0.6])
    ticks = dict(zip(shares.get_yticks(), texts(shares.get_yticklabels()), strict=True))
    assert ticks == {1: "shape", 0: "weights"}  # the first on top
    # a bootstrap interval need not hold the share: no bar below 0
    assert bars(shares.containers[0], across=True)[1] == pytest.approx([0.6, 0.7])


def test_twins_differ_by_colour_line_and_view():
    both = ("docs", "code")
    profiles = every(family=("gpt2", "pythia"), text=both, seed=(0, 1), measured_on=both, block=range(3))
    profiles["r2"] = np.linspace(0, 1, len(profiles))
    views = [(text, kind) for text in ("docs", "code") for kind in ("as measured", "shape only")]
    shares = pd.concat([effects(("family", "text")).assign(measured_on=text, view=view) for text, view in views])
    left, right = controls.twins(profiles, shares, "docs").axes
    assert len(left.lines) == 8
    mine = profiles[(profiles.measured_on == "docs") & (profiles.family == "gpt2") & (profiles.text == "code")]
    np.testing.assert_allclose(points(left, "gpt2, trained on code"), mine[mine.seed == 0][["block", "r2"]])
    dotted = [line for line in left.lines if line.get_linestyle() == ":"]
    assert len(dotted) == 4
    assert {line.get_color() for line in left.lines} == {style.look(name)["color"] for name in ("gpt2", "pythia")}
    assert [container.get_label() for container in right.containers] == [f"{text}, {view}" for text, view in views]
    heights = [container.lines[0].get_ydata()[0] for container in right.containers]
    assert heights == sorted(heights, reverse=True)
    assert len(set(np.round(heights, 6))) == 4
    faces = [container.lines[0].get_markerfacecolor() for container in right.containers]
    assert [face == "white" for face in faces] == [False, True, False, True]


def test_without_transplants_every_model_has_its_own_rows_and_no_shares(profiles):
    closed = profiles[profiles.control == "normal"].assign(closed=0.5)
    none = pd.DataFrame(columns=["block", "inputs", "weights", "r2"])
    figure = controls.transplants(none, profiles, closed, effects().iloc[:0])
    assert len(figure.axes) == len(MODELS)
    for axis, owner in zip(figure.axes, MODELS, strict=True):
        np.testing.assert_allclose(points(axis, f"rows of {owner}"), profile(profiles, owner, "own"))
    assert len({axis.get_ylim() for axis in figure.axes}) == 1
    assert {f"rows of {owner}" for owner in MODELS} <= set(legend(figure))


def test_random_models_far_below_0_do_not_set_the_scale(profiles):
    random = every(model=MODELS, seed=[0], block=range(4))
    deep = controls.trained_and_random(profiles, random.assign(r2=-3.0, r2_in_sample=0.9))
    assert deep.axes[0].get_ylim() == (-0.5, 1.05)
    shallow = controls.trained_and_random(profiles, random.assign(r2=0.2, r2_in_sample=0.9))
    assert 0 < shallow.axes[0].get_ylim()[0] + 0.2 < 0.4
