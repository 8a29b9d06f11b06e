import numpy as np
import pandas as pd
import pytest

from helpers.drawn import points
from howlinear.plots import controls, style

MODELS = ["mini-gpt2", "mini-pythia"]
KINDS = ["own", "normal", "turned", "permuted", "redrawn", "fresh"]


@pytest.fixture
def profiles():
    rows = [(model, block, kind) for model in MODELS for block in range(4) for kind in KINDS]
    table = pd.DataFrame(rows, columns=["model", "block", "control"])
    r2 = np.linspace(0.1, 0.9, len(table))
    return table.assign(r2=r2, r2_low=r2 - 0.02, r2_high=r2 + 0.01)


def profile(table, model, kind):
    return table[(table.model == model) & (table.control == kind)][["block", "r2"]]


def effects(names=("shape", "weights")):
    return pd.DataFrame({"effect": names, "share": [0.3, 0.6], "share_low": [0.2, 0.61], "share_high": [0.4, 0.7]})


def test_trained_profiles_lie_on_a_band_of_random_ones(profiles):
    seeds = [(model, seed, block) for model in MODELS for seed in (0, 1) for block in range(4)]
    random = pd.DataFrame(seeds, columns=["model", "seed", "block"])
    random["r2"] = 0.9 + 0.02 * random.seed + 0.01 * random.block
    random["r2_in_sample"] = random.r2 + 0.03
    axes = controls.trained_and_random(profiles, random).axes
    assert [axis.get_title(loc="left") for axis in axes] == ["(a) mini-gpt2", "(b) mini-pythia"]
    for axis, model in zip(axes, MODELS, strict=True):
        np.testing.assert_allclose(points(axis, "trained"), profile(profiles, model, "own"))
        for kind in ("permuted", "redrawn", "fresh"):
            np.testing.assert_allclose(points(axis, kind), profile(profiles, model, kind))
        band = axis.collections[0].get_paths()[0].vertices
        assert set(np.round(band[band[:, 0] == 2][:, 1], 6)) == {
            0.92,
            0.97,
        }  # the lowest held out, the highest in sample
        bars = axis.containers[0].lines[2][0].get_segments()
        own = profiles[(profiles.model == model) & (profiles.control == "own")]
        np.testing.assert_allclose([bar[:, 1] for bar in bars], own[["r2_low", "r2_high"]])


@pytest.mark.parametrize("count", [2, 3])
def test_transplants_have_a_panel_an_owner_and_one_of_shares(profiles, count):
    models = [*MODELS, "mini-llama"][:count]
    llama = profiles[profiles.model == MODELS[0]].assign(model="mini-llama")
    profiles = pd.concat([profiles, llama])
    profiles = profiles[profiles.model.isin(models)]
    rows = [(block, giver, owner) for block in range(4) for giver in models for owner in models]
    pairs = pd.DataFrame(rows, columns=["block", "inputs", "weights"])
    pairs["r2"] = np.linspace(0, 1, len(pairs))
    closed = profiles[profiles.control == "normal"].assign(closed=0.5)
    axes = controls.transplants(pairs, profiles, closed, effects()).axes
    letters = [axis.get_title(loc="left") for axis in axes][: count + 1]
    owners = [f"({letter}) weights of {model}" for letter, model in zip("abc", models, strict=False)]
    assert letters == [*owners, f"({'abcd'[count]}) sources"]
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
    ticks = dict(zip(shares.get_yticks(), [label.get_text() for label in shares.get_yticklabels()], strict=True))
    assert ticks == {1: "shape", 0: "weights"}  # the first on top
    low, high = shares.containers[0].lines[2][0].get_segments()[1][:, 0]
    assert (low, high) == pytest.approx((0.6, 0.7))  # a bootstrap interval need not hold the share: no bar below 0


def test_twins_differ_by_colour_line_and_view():
    rows = [(f, t, s, on, b) for f in ("gpt2", "pythia") for t in ("docs", "code") for s in (0, 1)
            for on in ("docs", "code") for b in range(3)]  # fmt: skip
    profiles = pd.DataFrame(rows, columns=["family", "text", "seed", "measured_on", "block"])
    profiles["r2"] = np.linspace(0, 1, len(profiles))
    views = [(text, kind) for text in ("docs", "code") for kind in ("as measured", "shape only")]
    shares = pd.concat([effects(("family", "text")).assign(measured_on=text, view=view) for text, view in views])
    left, right = controls.twins(profiles, shares, "docs").axes
    assert left.get_title(loc="left") == "(a) twins, measured on docs"
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
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {f"rows of {owner}" for owner in MODELS} <= set(labels)
    assert len(labels) == len(set(labels))


def test_random_models_far_below_0_do_not_set_the_scale(profiles):
    rows = [(model, 0, block) for model in MODELS for block in range(4)]
    random = pd.DataFrame(rows, columns=["model", "seed", "block"])
    deep = controls.trained_and_random(profiles, random.assign(r2=-3.0, r2_in_sample=0.9))
    assert deep.axes[0].get_ylim() == (-0.5, 1.05)
    shallow = controls.trained_and_random(profiles, random.assign(r2=0.2, r2_in_sample=0.9))
    assert 0 < shallow.axes[0].get_ylim()[0] + 0.2 < 0.4
