"""The Hub, or its cache at once where there is no network."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlparse
from urllib.request import getproxies

from huggingface_hub import constants


def reachable() -> bool:
    """Whether the Hub's name resolves, or a proxy would resolve it."""
    try:
        return bool(getproxies() or socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, None))
    except OSError:
        return False


@contextmanager
def hub() -> Iterator[None]:
    """While it lasts, an unreachable Hub is not asked again and again: what is not in the cache fails at once."""
    readers = [constants]
    if "datasets.config" in sys.modules:  # it keeps a flag of its own, and is slow to import for nothing
        readers.append(sys.modules["datasets.config"])
    before = [reader.HF_HUB_OFFLINE for reader in readers]
    try:
        for reader in readers:
            reader.HF_HUB_OFFLINE = reader.HF_HUB_OFFLINE or not reachable()
        yield
    finally:
        for reader, flag in zip(readers, before, strict=True):
            reader.HF_HUB_OFFLINE = flag
