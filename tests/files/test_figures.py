import matplotlib.pyplot as plt
import pytest

from howlinear.files import figures, paths
from howlinear.plots import style


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    style.use()
    yield
    plt.close("all")


def drawn():
    figure, ax = plt.subplots(figsize=(style.COLUMN, 2))
    ax.errorbar([0, 1], [0, 1], [0.1, 0.1], **style.look("mini-gpt2"))
    ax.legend()
    return figure


def test_a_figure_is_byte_identical_when_drawn_again():
    once = {path.suffix: path.read_bytes() for path in _saved()}
    again = {path.suffix: path.read_bytes() for path in _saved()}
    assert once == again
    assert once.keys() == {".svg", ".png"}


def _saved():
    path = figures.save(drawn(), paths.figures("smoke"), "02_ceilings_profile")
    assert path == paths.figures("smoke") / "02_ceilings_profile.svg"
    return path, path.with_suffix(".png")
