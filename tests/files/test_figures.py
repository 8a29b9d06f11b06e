import matplotlib.pyplot as plt

from howlinear.files import figures
from howlinear.plots import style


def test_a_figure_is_byte_identical_when_drawn_again(tmp_path):
    style.use()
    drawn = []
    for folder in (tmp_path / "once", tmp_path / "again"):
        figure, axis = plt.subplots(figsize=(style.COLUMN, 2))
        axis.errorbar([0, 1], [0, 1], [0.1, 0.1], **style.look("mini-gpt2"))
        axis.legend()
        assert figures.save(figure, folder, "02_ceilings_profile") == folder / "02_ceilings_profile.svg"
        drawn.append({path.name: path.read_bytes() for path in folder.iterdir()})
    plt.close("all")
    assert drawn[0] == drawn[1]
    assert drawn[0].keys() == {"02_ceilings_profile.svg", "02_ceilings_profile.png"}
