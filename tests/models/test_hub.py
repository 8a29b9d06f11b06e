import socket

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


def flags():
    return constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE


@pytest.mark.usefixtures("network")
def test_a_hub_that_resolves_is_asked():
    assert sources.reachable()
    with sources.hub():
        assert flags() == (False, False)


def test_a_hub_that_does_not_resolve_is_not_asked_and_only_for_that_while(network):
    network.setattr(socket, "getaddrinfo", refuse)
    assert not sources.reachable()
    with sources.hub():
        assert flags() == (True, True)
    assert flags() == (False, False)


def test_the_settings_come_back_after_an_error(network):
    network.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(OSError, match="cut off"), sources.hub():
        raise OSError("cut off")
    assert flags() == (False, False)


def test_behind_a_proxy_names_need_not_resolve(network):
    network.setattr(socket, "getaddrinfo", refuse)
    network.setattr(sources, "getproxies", lambda: {"https": "http://proxy:8080"})
    assert sources.reachable()


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
