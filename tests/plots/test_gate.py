import numpy as np
import pandas as pd
import pytest

from helpers.drawn import every, legend, texts, with_ends
from howlinear.plots import gate, style

KINDS = {"gate": 0.6, "oracle": 0.7, "random": 0.3}
DRAWN = ("gate", "gate, first line", "oracle", "random")  # as curves


def costs(*models, blocks=3):
    """Shares that fall with depth; intervals that reach further up than down; all tokens in a kind of their own."""
    shares = {**KINDS, "random, as many": 0.6, "all": 1.0}
    table = every(model=models, block=range(blocks), kind=shares)
    share = table["kind"].map(shares) - 0.1 * table["block"] * (table["kind"] != "all")
    return with_ends(table.assign(share=share), 0.02, 0.03, "share")


def curve(*models):
    table = every(model=models, block=[7], kind=DRAWN, share=(0.5, 1.0))
    rise = 0.05 * table["share"] * (table["kind"].map(DRAWN.index) + 1)
    return with_ends(table.assign(rise=rise), 0.01, 0.02, "rise")


def test_shares_have_a_panel_per_model_and_a_mark_per_kind():
    table = costs("mini-gpt2", "mini-llama")
    figure = gate.shares(table, (0.25, 0.56))
    for ax, model in zip(figure.axes, ("mini-gpt2", "mini-llama"), strict=True):
        assert len(ax.containers) == len(KINDS)  # neither all tokens nor as many at random
        for container, kind in zip(ax.containers, KINDS, strict=True):
            of_kind = table[(table["model"] == model) & (table["kind"] == kind)]
            np.testing.assert_allclose(container[0].get_ydata().astype(float), 100 * of_kind["share"])
            np.testing.assert_allclose(container[0].get_xdata().astype(float), of_kind["block"], atol=0.4)
        faces = [container.lines[0].get_markerfacecolor() for container in ax.containers]
        assert faces[0] == style.look(model)["color"]
        assert faces[1] == "white"
        first = [float(container.lines[0].get_xdata()[0]) for container in ax.containers]
        assert len(set(first)) == 3  # marks of a block do not lie on one another
        (band,) = ax.patches  # what was published
        assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((25, 56))
    assert legend(figure) == [*KINDS, "arXiv 2603.03459"]


def test_curves_are_of_one_block_a_model_with_the_limit():
    table = curve("mini-gpt2", "mini-pythia")
    figure = gate.curves(table, 0.01)
    assert figure.axes[1].get_title(loc="left") == "(b) mini-pythia, block 7"
    for ax in figure.axes:
        drawn = [container.lines[0].get_xydata() for container in ax.containers]
        expected = [
            100 * table[(table["model"] == "mini-gpt2") & (table["kind"] == kind)][["share", "rise"]].to_numpy()
            for kind in ("random", "gate, first line", "gate", "oracle")
        ]
        np.testing.assert_allclose(np.array(drawn)[..., 0], np.array(expected)[..., 0], atol=1.5)
        np.testing.assert_allclose(np.array(drawn)[..., 1], np.array(expected)[..., 1])
        assert len({curve[0, 0] for curve in drawn}) == 4  # their intervals do not lie on one another
        assert any(np.allclose(line.get_ydata(), 1.0) for line in ax.lines)
    assert legend(figure) == [*DRAWN, "limit"]


@pytest.mark.parametrize(
    "draw", [lambda empty: gate.shares(empty, (0.25, 0.56)), lambda empty: gate.curves(empty, 0.01)]
)
def test_encoders_alone_leave_a_sentence(draw):
    figure = draw(pd.DataFrame(columns=["model", "block", "kind"]))
    assert not figure.axes
    assert len(figure.texts) == 1


def test_of_many_blocks_some_are_named():
    for blocks, named in ((8, 8), (12, 6), (40, 14)):
        (ax,) = gate.shares(costs("m", blocks=blocks), (0.25, 0.56)).axes
        assert len(ax.get_xticks()) == named


def test_blocks_that_lie_apart_stand_side_by_side_under_their_own_numbers():
    table = costs("m")
    table["block"] = table["block"].map({0: 0, 1: 11, 2: 28})
    (ax,) = gate.shares(table, (0.25, 0.56)).axes
    assert texts(ax.get_xticklabels()) == ["0", "11", "28"]
    for place, tick in enumerate(ax.get_xticks()):
        nearest = [container.lines[0].get_xdata()[place] for container in ax.containers]
        np.testing.assert_allclose(nearest, tick, atol=0.4)
