"""The lesson plans: their minutes add up, and their figures go with them."""

import re

import pytest

from conftest import fingerprint
from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.notebook import execute
from tools import lessons

STEM = "02_ceilings"
PARTS = {"predict", "show", "run", "exercise", "back"}


def test_every_notebook_has_a_plan_that_fills_the_lesson():
    plans = lessons.plans()
    assert list(plans) == execute.stems()
    for stem, of_notebook in plans.items():
        assert of_notebook["minutes"].keys() == PARTS, stem
        assert sum(of_notebook["minutes"].values()) == lessons.MINUTES, stem
        assert of_notebook["in_class"] != of_notebook["at_home"], stem


def test_a_page_of_its_own_has_its_figures_beside_it(tmp_path):
    page = lessons.page(STEM, lessons.plans()[STEM], lessons.recorded(paths.results("minis"), STEM))
    text = lessons.with_figures(page, tmp_path)
    (shown,) = re.findall(r"\]\((.+\.png)\)", text)
    assert shown == "figures/minis/02_ceilings_profile.png"
    drawn = paths.figures("minis") / "02_ceilings_profile.png"
    assert fingerprint((tmp_path / shown).read_bytes()) == fingerprint(drawn.read_bytes())
    with pytest.raises(InputError, match=r"none\.png, which is not there: make figures PROFILE=minis"):
        lessons.with_figures("![](../../figures/minis/none.png)", tmp_path)
