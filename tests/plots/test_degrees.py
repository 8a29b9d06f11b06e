import numpy as np
import pandas as pd
from matplotlib.colors import to_rgba

from helpers.drawn import every, legend, points, texts, with_ends
from howlinear.plots import degrees, style


def spectra(models=("mini-gpt2", "mini-llama"), blocks=5, highest=3):
    table = every(model=models, block=range(blocks), degree=range(1, highest + 1))
    r2 = 0.1 * table.degree + 0.05 * table.block + 0.01 * (table.model == models[-1])
    return with_ends(table.assign(r2=r2, hermite=r2 / 2), 0.02, 0.03, "r2")


def test_a_spectrum_has_a_panel_a_model_and_a_curve_a_degree():
    table = spectra()
    figure = degrees.spectrum(table)
    for axis, model in zip(figure.axes, table.model.unique(), strict=True):
        for degree in (1, 2, 3):
            mine = table[(table.model == model) & (table.degree == degree)]
            np.testing.assert_allclose(points(axis, f"degree {degree}"), mine[["block", "r2"]])
        line = table[(table.model == model) & (table.degree == 1)]
        np.testing.assert_allclose(points(axis, "Hermite, Gaussian inputs"), line[["block", "hermite"]])
    assert figure.axes[0].get_ylim()[0] <= -0.02


def test_a_spectrum_goes_below_zero_but_not_without_end():
    table = spectra(models=("mini-gpt2",))
    table.loc[0, ["r2", "r2_low", "r2_high"]] = [-40.0, -41.0, -39.0]
    assert degrees.spectrum(table).axes[0].get_ylim()[0] == -1


def predicted():
    """Three blocks of one model, the last with massive rows, and one of another."""
    models = ["mini-gpt2"] * 6 + ["mini-llama"]
    table = pd.DataFrame(
        {"model": models, "block": [0, 0, 1, 1, 2, 2, 0], "counted": ["all", "ordinary"] * 3 + ["all"]}
    )
    table["r2_limit"] = [0.5, 0.5, 0.6, 0.6, 0.95, 0.4, 0.7]
    table["r2_gaussian"] = [0.45, 0.45, 0.65, 0.65, 0.6, 0.35, 0.75]
    return with_ends(table.assign(massive_share=[0, 0, 0, 0, 0.8, 0, 0]), 0.02, 0.01, "r2_limit", "r2_gaussian")


def test_a_block_stands_where_its_prediction_and_its_limit_meet_and_again_without_massive_rows():
    gpt2, llama = degrees.predicted(predicted()).axes
    every, ordinary, *_ = gpt2.containers
    np.testing.assert_allclose(every.lines[0].get_xydata(), [[0.45, 0.5], [0.65, 0.6], [0.6, 0.95]])
    np.testing.assert_allclose(ordinary.lines[0].get_xydata(), [[0.35, 0.4]])
    np.testing.assert_allclose(llama.containers[0].lines[0].get_xydata(), [[0.75, 0.7]])
    assert any(
        np.array_equal(line.get_xydata(), [[0.6, 0.95], [0.35, 0.4]]) for line in gpt2.lines
    )  # that they are one
    across, up = (bars.get_segments() for bars in every.lines[2])
    np.testing.assert_allclose([end[:, 0] for end in across], [[0.43, 0.46], [0.63, 0.66], [0.58, 0.61]])
    np.testing.assert_allclose([end[:, 1] for end in up], [[0.48, 0.51], [0.58, 0.61], [0.93, 0.96]])


def test_blocks_without_a_limit_are_a_sentence():
    figure = degrees.predicted(predicted().assign(r2_limit=np.nan))
    assert not figure.axes
    assert "too few" in figure.texts[0].get_text()


def curves():
    kernels = [("degree 2", 100), ("degree 2", 200), ("degree 2", 400), ("degree 3", 100), ("Gaussian", 100)]
    table = pd.DataFrame(kernels, columns=["kernel", "rows"])
    tables = [table.assign(model=model, block=block) for model, block in (("mini-gpt2", 6), ("mini-pythia", 4))]
    table = pd.concat(tables, ignore_index=True)
    return with_ends(table.assign(r2=np.linspace(0.5, 0.9, len(table))), 0.01, 0.01, "r2")


POOLED = pd.DataFrame({"model": ["mini-gpt2", "mini-pythia"], "degree": 2, "r2": [0.6, 0.7]})
FREE = pd.DataFrame({"model": ["mini-gpt2", "mini-pythia"] * 2, "neurons": [9, 9, 0, 0], "r2": [0.65, 0.75, 0.1, 0.1]})


def test_kernel_curves_stand_beside_the_neurons_bounds_and_the_streamed_products():
    table = curves()
    streamed = pd.DataFrame({"model": ["mini-gpt2"] * 2, "block": 6, "rows": [800, 1_600], "r2": [0.8, 0.85]})
    figure = degrees.kernel_curves(table, POOLED, FREE, streamed)
    axes = figure.axes
    bounds = {"mini-gpt2": (0.6, 0.65), "mini-pythia": (0.7, 0.75)}
    for axis, (model, (pooled, free)) in zip(axes, bounds.items(), strict=True):
        mine = table[(table.model == model) & (table.kernel == "degree 2")]
        np.testing.assert_allclose(points(axis, "degree 2 kernel"), mine[["rows", "r2"]])
        assert set(points(axis, "neurons, degree 2")[:, 1]) == {pooled}
        assert set(points(axis, "neurons' squares, each free")[:, 1]) == {free}
        assert texts(axis.get_xticklabels()) == ["100", "400", "1,600"]
    np.testing.assert_allclose(points(axes[0], "degree 2, streamed"), streamed[["rows", "r2"]])
    assert "degree 2, streamed" not in axes[1].get_legend_handles_labels()[1]


def test_kernel_curves_need_no_streamed_products():
    nothing = pd.DataFrame(columns=["model", "block", "rows", "r2"])
    axes = degrees.kernel_curves(curves(), POOLED, FREE, nothing).axes
    assert texts(axes[0].get_xticklabels()) == ["100", "400"]


def test_products_needed_are_drawn_from_the_first_product_on():
    neurons = pd.DataFrame({"model": "mini-pythia", "neurons": [0, 16, 64], "share": [0, 0.5, 1.0]})
    probes = pd.DataFrame({"model": "mini-pythia", "rank": [1, 4], "share": [0.2, 0.4]})
    (axis,) = degrees.products_needed(neurons, probes).axes
    np.testing.assert_allclose(points(axis, "mini-pythia"), [[16, 0.5], [64, 1]])
    stars = [line for line in axis.lines if line.get_marker() == "*" and len(line.get_xdata())]
    np.testing.assert_allclose(stars[0].get_xydata(), [[1, 0.2], [4, 0.4]])
    assert stars[0].get_color() == style.look("mini-pythia")["color"]
    assert texts(axis.get_xticklabels()) == ["1", "4", "16", "64"]
    assert len(degrees.products_needed(neurons, probes.iloc[:0]).axes) == 1  # of blocks that were not probed


def test_training_shows_every_degree_of_every_family():
    table = every(family=("gpt2", "pythia"), step=(0, 10, 100), degree=(1, 2))
    table = table.assign(r2=0.1 * table.degree + table.step / 1_000, spread=1 + table.step / 100)
    figure = degrees.training(table)
    left, right = figure.axes
    for family in ("gpt2", "pythia"):
        for degree in (1, 2):
            mine = table[(table.family == family) & (table.degree == degree)]
            np.testing.assert_allclose(points(left, f"{family}, degree {degree}"), mine[["step", "r2"]])
        np.testing.assert_allclose(points(right, family), mine[["step", "spread"]])
    shades = {to_rgba(line.get_color()) for line in left.lines}
    assert len(shades) == 2  # a shade a degree; the line style tells families apart
    assert len({line.get_linestyle() for line in left.lines}) == 2
    assert legend(figure) == ["degree 1", "degree 2"]
