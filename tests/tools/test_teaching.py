"""The weeks of the course."""

from howlinear.notebook import execute
from tools import teaching


def test_every_notebook_has_its_week_after_what_it_needs():
    taught = [stem for stems in teaching.WEEKS.values() for stem in stems]
    assert sorted(taught) == execute.stems()
    assert taught[:3] == ["00_by_hand", "01_capture", "02_ceilings"]
    needs = {"10_degrees": "03_bilinear", "12_sinks": "04_rank", "14_compress": "06_compression", "15_gate": "12_sinks"}
    assert all(taught.index(before) < taught.index(stem) for stem, before in needs.items())
    assert taught[-1] == "13_claims"
