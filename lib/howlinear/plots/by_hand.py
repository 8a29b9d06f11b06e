"""The pictures of notebook 00: rows as a cloud with its line, a parabola read from two sides, a toy neuron.

`slider` is an interactive toy neuron: one piece of HTML with its own script, which needs no server and no network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from howlinear.plots import style

POINTS_COLOUR = style.look("gpt2")["color"]
LOOKS = {"left": (style.GREY, "--"), "right": (style.ACCENT, "-")}  # of the two texts' lines through the parabola


def cloud(clouds: Mapping[str, pd.DataFrame]) -> Figure:
    """Plot rows of blocks, seen from one neuron of each, with the fitted line; and one of these neurons by itself."""
    figure, panels = style.panel_grid(list(clouds), 2.0, most=None)
    for name, axis in panels.items():
        draw_cloud(axis, clouds[name])
        axis.set(xlabel="what goes into the neuron", ylabel="what the block puts out")
    axis.set_ylabel("what the neuron puts out")
    style.legend(axis, loc="outside lower center")
    return figure


def draw_cloud(axis: Axes, points: pd.DataFrame, colour: str = POINTS_COLOUR, line: str = "the fitted line") -> None:
    """Draw rows as faint points, their line, and the mean of each slice of the rows in black."""
    rows = {"color": colour, "markersize": 1.5, "markeredgewidth": 0, "alpha": 0.4}
    axis.plot(points["across"], points["up"], "o", **rows, label="a row")
    along = points.sort_values("across")
    axis.plot(along["across"], along["line"], color=style.ACCENT, label=line)
    slices = points[["middle", "mean"]].drop_duplicates()
    axis.plot(slices["middle"], slices["mean"], "o", color="black", label="mean of a tenth of the rows")


def parabola(rows: Mapping[str, pd.DataFrame], lines: Mapping[str, tuple[float, float]]) -> Figure:
    """Plot the parabola y = x², the rows of two texts on it, and the line fitted to each text."""
    figure, axis = plt.subplots(figsize=(style.COLUMN, 2.6))
    ends = 1.1 * max(points["x"].abs().max() for points in rows.values())
    x = np.linspace(-ends, ends, 200)
    axis.plot(x, x**2, color="black", linewidth=0.8, label="the block, $y = x^2$")
    for name, points in rows.items():
        colour, dashes = LOOKS[name]
        slope, intercept = lines[name]
        marker = "o" if name == "left" else "s"
        axis.plot(points["x"], points["y"], marker, color=colour, alpha=0.4, markersize=3, markeredgewidth=0)
        axis.plot(x, slope * x + intercept, dashes, color=colour, label=f"line of the {name} text")
    axis.set(xlabel="input $x$", ylabel="output $y$", ylim=(-8, 1.05 * ends**2))
    axis.legend(loc="upper center")
    return figure


def neurons(toys: Mapping[str, pd.DataFrame]) -> Figure:
    """Plot toy neurons side by side, each on its own axes with the best line through its points and the residuals."""
    figure, panels = style.panel_grid(list(toys), 1.6, "output $y$", most=None)
    for name, axis in panels.items():
        points = toys[name]
        axis.vlines(points["x"], points["line"], points["y"], color=style.GREY, linewidth=0.5)
        axis.plot(points["x"], points["line"], color=style.ACCENT)
        axis.plot(points["x"], points["y"], "o", color=POINTS_COLOUR, markersize=2)
        axis.set_xlabel("input $x$")
    return figure


def slider(quantiles: Float[np.ndarray, " n"]) -> str:
    """Return a toy neuron with three sliders and its R², as HTML; with scripts off it says where the same is drawn."""
    html = SLIDER.replace("%QUANTILES%", json.dumps([round(float(point), 5) for point in quantiles]))
    colours = {"POINTS": POINTS_COLOUR, "LINE": style.ACCENT, "LEFT": style.GREY}
    for name, colour in colours.items():
        html = html.replace(f"%{name}%", colour)
    return html


SLIDER = """\
<div class="toy-neuron" style="max-width: 30rem; background: white; color: black; padding: 0.5rem">
  <label style="display: block">how bent: <output>1.7</output>
    <input type="range" data-part="bend" min="0" max="8" step="0.1" value="1.7" style="width: 100%"></label>
  <label style="display: block">how wide the inputs lie: <output>1</output>
    <input type="range" data-part="width" min="0.05" max="2" step="0.05" value="1" style="width: 100%"></label>
  <label style="display: block">where their middle is: <output>0</output>
    <input type="range" data-part="centre" min="-2" max="2" step="0.1" value="0" style="width: 100%"></label>
  <svg viewBox="0 0 400 260" role="img" aria-label="A neuron's output against its input, and the best line"
    style="width: 100%; height: auto">
    <path d="M10 200H390M200 10V255" stroke="#ccc"></path>
    <path data-part="left" stroke="%LEFT%" stroke-width="0.7"></path>
    <path data-part="line" stroke="%LINE%" stroke-width="2" fill="none"></path>
    <path data-part="points" stroke="%POINTS%" stroke-width="5" stroke-linecap="round"></path>
  </svg>
  <p style="margin: 0" role="status">Here is a picture to play with. It needs JavaScript: in Jupyter run this
  cell. Where scripts are off, the figure below shows four of its states.</p>
</div>
<script>
for (const place of document.querySelectorAll(".toy-neuron:not([data-ready])")) {
  place.dataset.ready = "yes";
  const quantiles = %QUANTILES%;
  const part = (name) => place.querySelector(`[data-part=${name}]`);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const across = (x) => (200 + 25 * x).toFixed(1), up = (y) => (200 - 25 * y).toFixed(1);
  const draw = () => {
    const [bend, width, centre] = ["bend", "width", "centre"].map((name) => Number(part(name).value));
    for (const label of place.querySelectorAll("label"))
      label.querySelector("output").textContent = label.querySelector("input").value;
    const x = quantiles.map((point) => centre + width * point);
    const y = x.map((value) => value / (1 + Math.exp(-bend * value)));
    const [middle, height] = [mean(x), mean(y)];
    // least squares: slope Sxy / Sxx, through both means; and R², one less what is left over what there was
    const slope = mean(x.map((value, i) => (value - middle) * (y[i] - height))) / mean(x.map((v) => (v - middle) ** 2));
    const line = x.map((value) => height + slope * (value - middle));
    const r2 = 1 - mean(y.map((value, i) => (value - line[i]) ** 2)) / mean(y.map((value) => (value - height) ** 2));
    part("points").setAttribute("d", x.map((value, i) => `M${across(value)} ${up(y[i])}h0`).join(""));
    part("left").setAttribute("d", x.map((v, i) => `M${across(v)} ${up(y[i])}V${up(line[i])}`).join(""));
    const last = x.length - 1;
    part("line").setAttribute("d", `M${across(x[0])} ${up(line[0])}L${across(x[last])} ${up(line[last])}`);
    const said = `The best line explains ${r2.toFixed(3)} of the output's variance: that is R².`;
    place.querySelector("[role=status]").textContent = said;
  };
  place.addEventListener("input", draw);
  draw();
}
</script>
"""
