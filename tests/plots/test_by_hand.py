import re

import numpy as np
import pandas as pd
import pytest

from howlinear.ideas.by_hand import QUANTILES, toy_neuron
from howlinear.plots import by_hand


def points(slope):
    across = np.arange(20.0)[::-1]  # not in order
    table = pd.DataFrame({"across": across, "up": across**2, "line": slope * across})
    return table.assign(middle=across // 10, mean=10 * (across // 10))


def test_a_cloud_has_its_rows_its_line_and_its_slices():
    figure = by_hand.cloud({"block 0": points(1), "block 7": points(2), "neuron 5": points(3)})
    for slope, axis in enumerate(figure.axes, 1):
        rows, line, slices = axis.get_lines()
        np.testing.assert_array_equal(rows.get_ydata(), points(slope)["up"])
        np.testing.assert_array_equal(line.get_xdata(), np.arange(20.0))  # from left to right
        np.testing.assert_array_equal(line.get_ydata(), slope * np.arange(20.0))
        assert sorted(slices.get_xydata().tolist()) == [[0, 0], [1, 10]]  # each once
        assert line.get_color() != rows.get_color() != slices.get_color()


def test_the_parabola_has_two_texts_with_a_line_each():
    rows = {"left": pd.DataFrame({"x": [-2.0, -1.0], "y": [4.0, 1.0]})}
    rows["right"] = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 4.0]})
    (axis,) = by_hand.parabola(rows, {"left": (-3.0, -2.0), "right": (3.0, -2.0)}).axes
    curve, left, left_line, right, right_line = axis.get_lines()
    np.testing.assert_allclose(curve.get_ydata(), curve.get_xdata() ** 2)
    assert curve.get_xdata()[[0, -1]] == pytest.approx([-2.2, 2.2])
    np.testing.assert_array_equal(left.get_xydata(), rows["left"])
    np.testing.assert_array_equal(right.get_xydata(), rows["right"])
    np.testing.assert_allclose(left_line.get_ydata(), -3 * left_line.get_xdata() - 2)
    np.testing.assert_allclose(right_line.get_ydata(), 3 * right_line.get_xdata() - 2)
    assert left_line.get_linestyle() != right_line.get_linestyle()
    assert left.get_marker() != right.get_marker()


def test_neurons_have_their_points_their_line_and_what_it_leaves():
    toys = {"one": toy_neuron(1.0, 1.0).points, "two": toy_neuron(2.0, 1.0).points}
    figure = by_hand.neurons(toys)
    for axis, table in zip(figure.axes, toys.values(), strict=True):
        line, neuron = axis.get_lines()
        np.testing.assert_array_equal(line.get_ydata(), table["line"])
        np.testing.assert_array_equal(neuron.get_ydata(), table["y"])
        left = np.array([segment[:, 1] for segment in axis.collections[0].get_segments()])
        np.testing.assert_array_equal(left, table[["line", "y"]])


# --- the sliders


SAID = "document.querySelector('[role=status]').textContent"


def said(browser):
    return float(re.search(r"explains (-?\d\.\d{3}) of", browser.value(SAID)).group(1))


PAGE = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>a toy</title>'


def move(browser, **places):
    for name, place in places.items():
        slider = f"document.querySelector('input[data-part={name}]')"
        browser.value(f"{slider}.value = {place}; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}))")


@pytest.mark.long
def test_the_sliders_say_what_the_library_computes(browser):
    browser.show(PAGE + by_hand.slider(QUANTILES), 390, 844)
    assert said(browser) == round(toy_neuron(1.7, 1.0).r2, 3)
    for bend, width, centre in [(0, 1, 0), (8, 2, 0), (8, 0.05, 0), (1.7, 1, 2), (6.8, 0.25, 0), (3, 2, -2)]:
        move(browser, bend=bend, width=width, centre=centre)
        assert said(browser) == pytest.approx(toy_neuron(float(bend), float(width), float(centre)).r2, abs=6e-4)
        shown = browser.value("[...document.querySelectorAll('label output')].map((one) => Number(one.value))")
        assert shown == [bend, width, centre]
        assert browser.value("document.querySelectorAll('path')[3].getAttribute('d').split('M').length") == 100
        inside = "[...document.querySelectorAll('path')].every((one) => one.getBBox().x >= 0 && one.getBBox().y >= 0)"
        assert browser.value(inside)
    assert browser.complaints() == []
    assert browser.value("document.documentElement.scrollWidth") <= 390


@pytest.mark.long
def test_the_sliders_move_by_the_keys(browser):
    browser.show(PAGE + by_hand.slider(QUANTILES))
    browser.value("document.querySelector('input[data-part=bend]').focus()")
    before = said(browser)
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    browser.until("document.querySelector('input[data-part=bend]').value === '1.8'")
    assert said(browser) < before


@pytest.mark.long
def test_two_of_them_on_a_page_do_not_disturb_each_other(browser):
    one = by_hand.slider(QUANTILES)
    straight = one.replace('value="1.7"', 'value="0"')
    browser.show(PAGE + one + straight)
    texts = browser.value("[...document.querySelectorAll('[role=status]')].map((one) => one.textContent)")
    assert [re.search(r"\d\.\d{3}", text).group() for text in texts] == [f"{toy_neuron(1.7, 1.0).r2:.3f}", "1.000"]
