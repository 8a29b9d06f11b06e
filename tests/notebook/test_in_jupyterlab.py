"""The sliders of notebook 00 where notebooks are edited: JupyterLab puts outputs, and their scripts, into its page."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers.browser import Browser, must_have_chromium

pytestmark = pytest.mark.long

SLIDERS = """\
from IPython.display import HTML

from howlinear.ideas.by_hand import QUANTILES
from howlinear.plots import by_hand

HTML(by_hand.slider(QUANTILES))
"""
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
SECONDS = 90


@contextmanager
def jupyterlab(folder):
    """A server of its own, which has this folder alone; its address."""
    own = {
        name: str(folder / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR")
    }
    options = [
        "--no-browser",
        "--expose-app-in-browser",
        "--allow-root",
        "--ServerApp.port=0",
        "--IdentityProvider.token=",
    ]
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | own, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield address(server, folder)
    finally:
        server.terminate()
        server.wait(timeout=20)


def address(server, folder):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, (folder / "log").read_text()
        for told in (folder / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"):
            text = told.read_text()
            if text.endswith("}"):  # the server may not have written it to its end
                return f"http://127.0.0.1:{json.loads(text)['port']}"
        time.sleep(0.1)
    raise AssertionError(f"no server after {SECONDS} seconds: {(folder / 'log').read_text()}")


@pytest.fixture
def lab(tmp_path_factory):
    """A tab in which a notebook of the sliders alone has been run."""
    must_have_chromium()
    folder = tmp_path_factory.mktemp("lab")
    nbformat.write(new_notebook(cells=[new_code_cell(SLIDERS)], metadata=KERNEL), folder / "toy.ipynb")
    with jupyterlab(folder) as server, Browser(tmp_path_factory.mktemp("chromium"), served=True) as browser:
        browser.open(f"{server}/lab/tree/toy.ipynb", 1280, 1200)
        browser.until("!!window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel", SECONDS)
        browser.value("window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)")
        browser.until("!!document.querySelector('.toy-neuron[data-ready]')", SECONDS)
        yield browser
    shutil.rmtree(folder, ignore_errors=True)


def r2(browser):
    said = browser.value("document.querySelector('.toy-neuron [role=status]').textContent")
    return float(re.search(r"explains (-?\d\.\d{3}) of", said).group(1))


def test_a_click_on_a_slider_changes_the_picture_and_what_is_said(lab):
    drawn = "document.querySelector('.toy-neuron [data-part=points]').getAttribute('d')"
    before = lab.value(drawn)
    assert r2(lab) == 0.734
    box = lab.value(
        "(({x, y, width, height}) => [x, y, width, height])"
        "(document.querySelector('.toy-neuron [data-part=bend]').getBoundingClientRect())"
    )
    x, y, width, height = box
    lab.click(x + 0.02 * width, y + height / 2)  # nearly no bend
    lab.until(f"{drawn} !== {json.dumps(before)}")
    assert r2(lab) > 0.95
