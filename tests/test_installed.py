"""What a wheel brings: installed far from any checkout, all that needs no other file of the project works."""

import os
import subprocess
import sys

import pytest

from howlinear.files import paths

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run Python in an empty folder, where the package of a wheel comes before the checkout's."""
    made = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", made, paths.ROOT], check=True)
    (wheel,) = made.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", made / "site", wheel], check=True)
    (made / "empty").mkdir()
    environment = os.environ | {"PYTHONPATH": str(made / "site"), "XDG_CACHE_HOME": str(made / "cache")}

    def python(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=made / "empty",
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert python("-c", "import howlinear; print(howlinear.__file__)").startswith(str(made))
    yield python
    assert list((made / "empty").iterdir()) == []


def test_an_embedded_model_is_measured(run):
    assert "perplexity" in run("-m", "howlinear", "measure", "mini-gpt2", "--rows", "4096", "--blocks", "3")


def test_results_on_record_come_with_it(run):
    said = run("-c", "import howlinear as hl; print(len(hl.results('public', '02_ceilings')['blocks']))")
    assert int(said) == len((paths.results("public") / "02_ceilings" / "blocks.csv").read_text().splitlines()) - 1


def test_notebooks_are_listed_and_run(run):
    listed = run("-m", "howlinear", "notebook", "--list")
    assert all(path.stem in listed for path in paths.NOTEBOOKS.glob("[0-9]*.py"))
    assert "01_capture done" in run("-m", "howlinear", "notebook", "01_capture", "-p", "profile=smoke")
