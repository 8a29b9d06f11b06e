import socket
from contextlib import suppress

import datasets.config
import pytest
from huggingface_hub import constants
from transformers import GPT2Config

from howlinear.errors import SourceError
from howlinear.models import sources
from howlinear.models.load import load_model


def refuse(*args):
    raise socket.gaierror(-2, "Name or service not known")


@pytest.fixture
def network(monkeypatch):
    """No proxy, online by the settings; the host resolves unless a test says otherwise."""
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [host])
    return monkeypatch


@pytest.mark.parametrize(
    ("resolves", "proxies", "asked"),
    [(True, {}, True), (False, {}, False), (False, {"https": "http://proxy:8080"}, True)],
)
def test_a_hub_is_asked_that_resolves_or_may_behind_a_proxy_and_the_settings_come_back(
    network, resolves, proxies, asked
):
    def offline():
        return constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE

    if not resolves:
        network.setattr(socket, "getaddrinfo", refuse)
    network.setattr(sources, "getproxies", lambda: proxies)
    assert sources.reachable() == asked
    with suppress(OSError), sources.hub():
        assert offline() == (not asked, not asked)
        raise OSError("an error in between")
    assert offline() == (False, False)


def test_a_cache_that_holds_pickles_alone_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(sources, "reachable", lambda: False)
    with pytest.raises(SourceError, match="not in the local cache"):
        load_model("some/one")
    files = tmp_path / "models--some--one" / "snapshots" / "abc"
    files.mkdir(parents=True)
    (tmp_path / "models--some--one" / "refs").mkdir()
    (tmp_path / "models--some--one" / "refs" / "main").write_text("abc")
    GPT2Config().save_pretrained(files)
    (files / "pytorch_model.bin").touch()
    with pytest.raises(SourceError, match=r"the local cache holds only pytorch_model\.bin of it, which can run code"):
        load_model("some/one")
