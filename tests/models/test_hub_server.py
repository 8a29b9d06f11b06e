"""The way to the Hub, walked by its own clients against a server on the loopback address."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from conftest import tiny
from helpers.hub_server import commit_of, serving
from howlinear.models.load import load_model
from howlinear.text.library import SPLITS, WIKITEXT

pytestmark = pytest.mark.long

# One process for all tests: the addresses are read from the environment when the client is imported.
CLIENT = """
import json, sys, time
from huggingface_hub import file_download
file_download.time.sleep = lambda seconds: None  # between a cut-off and its retry
import howlinear as hl
from howlinear.text.library import read_public
from howlinear.text.streams import open_hub, texts_of

def load(name, revision=None):
    model = hl.load_model(name, revision=revision)
    return float(model.transformer.ln_f.bias[0].detach())

def documents(name):
    return read_public(name)

def streamed(name, column):
    return list(texts_of(open_hub(name), column, name))

def tokenizer(name, revision=None):
    return hl.load_corpus("docs", hl.load_model(name, revision=revision)).tokenizer.eos_token

for line in sys.stdin:
    call, arguments = json.loads(line)
    try:
        reply = globals()[call](*arguments)
    except Exception as error:
        reply = {"raised": type(error).__name__, "says": str(error)}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("hub")) as (hub, address):
        hub.address = address
        yield hub


@pytest.fixture(scope="module")
def ask(hub, tmp_path_factory):
    """Ask the client process to do something; its reply."""
    home = tmp_path_factory.mktemp("home")
    ours = ("HF_", "HOWLINEAR_")
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith(ours)}
    environment = clean | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": (home / "errors").open("w"), "text": True}
    client = subprocess.Popen([sys.executable, "-c", CLIENT], env=environment, **pipes)

    def ask(call, *arguments):
        client.stdin.write(json.dumps([call, arguments]) + "\n")
        client.stdin.flush()
        reply = client.stdout.readline()
        return json.loads(reply) if reply else pytest.fail((home / "errors").read_text())

    yield ask
    client.communicate()
    pipes["stderr"].close()


@pytest.fixture
def publish(hub, tokenizer):
    """Put a tiny random model on the Hub; its folder there."""

    def publish(name, revision="main", seed=0):
        folder = hub.folder / "models" / name / revision
        tiny("mini-gpt2", seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return publish


def bias(folder):
    return float(load_model(folder).transformer.ln_f.bias[0].detach())


def fetched(hub, name, since=0):
    return [span for method, path, span in hub.asked[since:] if method == "GET" and path.endswith(name)]


def test_a_model_is_downloaded_once_with_its_tokenizer(hub, ask, publish):
    folder = publish("ann/good")
    assert ask("load", "ann/good") == bias(folder)
    assert ask("tokenizer", "ann/good") == "<|endoftext|>"
    assert fetched(hub, f"/ann/good/resolve/{commit_of('main')}/model.safetensors") == [None]


def test_a_revision_is_the_one_asked_for_and_the_tokenizer_is_of_it(ask, publish):
    old, new = publish("ann/revised", "step1000", seed=1), publish("ann/revised", seed=2)
    (old / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "old"}')
    assert bias(old) != bias(new)
    assert ask("load", "ann/revised", "step1000") == bias(old)
    assert ask("load", "ann/revised", commit_of("step1000")) == bias(old)
    assert ask("load", f"ann/revised@{commit_of('step1000')}") == bias(old)
    assert ask("load", "ann/revised") == bias(new)
    assert ask("tokenizer", "ann/revised", "step1000") == ask("tokenizer", "ann/revised@step1000") == "old"
    assert ask("tokenizer", "ann/revised") == "<|endoftext|>"


def test_what_is_not_there_says_what_there_is(ask, publish):
    publish("ann/present")
    for arguments, message in (
        (["ann/absent"], "ann/absent: no such folder here, and the Hub has nothing to load by that name"),
        (["ann/present", "step7"], "on the Hub it has no revision 'step7'"),
        (["ann/present@step7"], "on the Hub it has no revision 'step7'"),
    ):
        reply = ask("load", *arguments)
        assert reply["raised"] == "SourceError"
        assert message in reply["says"]
        assert "offline there are mini-gpt2" in reply["says"]


def test_a_gated_model_says_where_to_ask(hub, ask, publish):
    publish("ann/gated")
    hub.gated.add("ann/gated")
    reply = ask("load", "ann/gated")
    assert reply["raised"] == "SourceError"
    assert "ann/gated is gated" in reply["says"]
    assert "hf auth login" in reply["says"]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_transfer_that_never_ends_is_an_error_and_the_next_try_goes_through(hub, ask, publish, file):
    name = f"ann/never-{file[0]}"
    folder = publish(name)
    hub.broken[file] = 1_000
    reply = ask("load", name)
    hub.broken.clear()
    assert reply["raised"] == "SourceError"
    assert "the transfer from the Hub broke off: try again" in reply["says"]
    assert ask("load", name) == bias(folder)


def test_pickled_weights_are_not_even_downloaded(hub, ask, publish):
    folder = publish("ann/pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    reply = ask("load", "ann/pickled")
    assert reply["raised"] == "SourceError"
    assert "safetensors" in reply["says"]
    assert "convert" in reply["says"]
    assert "pytorch_model.bin" in reply["says"]
    assert not fetched(hub, "pytorch_model.bin")


def test_remote_code_is_not_run(hub, ask, publish, tmp_path):
    folder = publish("ann/code")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    reply = ask("load", "ann/code")
    assert reply["raised"] == "SourceError"
    assert not (tmp_path / "ran").exists()
    assert not fetched(hub, "own.py")


LINES = ["", " = First = \n", "", " One line . \n", " = = Section = = \n", " More . \n", " = Second = \n", " Two . \n"]
PARTS = {"wikitext": LINES, "wikitext_test": [" = Third = \n", " Three . \n"]}
FOUND = {
    "wikitext": ["= First = \n \n One line . \n = = Section = = \n More .", "= Second = \n Two ."],
    "wikitext_test": ["= Third = \n Three ."],
}
CARD = """---
configs:
- config_name: wikitext-2-raw-v1
  data_files:
  - split: train
    path: wikitext-2-raw-v1/train-*
  - split: test
    path: wikitext-2-raw-v1/test-*
---
"""


def test_wikitext_that_cannot_be_had_says_what_can(ask):
    reply = ask("documents", "wikitext")
    assert reply["raised"] == "SourceError"
    assert "cannot load wikitext (Salesforce/wikitext) from the Hub or its cache" in reply["says"]
    assert "without a network use docs, code, cpp, a .txt file" in reply["says"]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_wikitext_is_read_from_parquet(hub, ask, name):
    folder = hub.folder / "datasets" / WIKITEXT["path"] / WIKITEXT["revision"]
    for part, lines in PARTS.items():
        file = folder / WIKITEXT["name"] / f"{SPLITS[part]}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame({"text": lines}).to_parquet(file)
    (folder / "README.md").write_text(CARD)
    assert ask("documents", name) == FOUND[name]


def test_a_data_set_of_the_hub_is_streamed_by_its_id(hub, ask):
    folder = hub.folder / "datasets" / "ann" / "code" / "main"
    (folder / "data").mkdir(parents=True)
    columns = {"path": ["a.py", "b.py"], "content": ["import os\n", None], "copies": ["1", "2"]}
    pd.DataFrame(columns).to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    (folder / "README.md").write_text("")
    assert ask("streamed", "ann/code", "content") == ["import os\n"]
    assert ask("streamed", "ann/code", None) == ["import os\n"]
    assert ask("streamed", "ann/code", "text")["raised"] == "InputError"
    assert ask("streamed", "ann/code::test", "content")["raised"] == "SourceError"
    assert ask("streamed", "ann/none", None)["raised"] == "SourceError"
