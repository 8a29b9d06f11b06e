import os
import platform
import subprocess
import sys

import pytest

from howlinear.models import memory

ASKED = """
import ctypes
import sys

from howlinear.models.memory import keep_large_blocks


class Use(ctypes.Structure):  # as glibc's mallinfo gives it
    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


libc = ctypes.CDLL(None)
libc.mallinfo.restype = Use
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "kept":
    keep_large_blocks()
alone = libc.mallinfo().hblks  # blocks that were asked of the system one by one
block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(40_000_000)))
of_its_own = libc.mallinfo().hblks - alone
heap = libc.mallinfo().arena
libc.free(block)
print(of_its_own, heap - libc.mallinfo().arena)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself what it keeps")
@pytest.mark.parametrize(("way", "of_its_own"), [("kept", 0), ("given back", 1)])
def test_a_large_block_comes_from_the_heap_and_stays_there(way, of_its_own):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", ASKED, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    asked, trimmed = (int(number) for number in done.stdout.split())
    assert asked == of_its_own
    assert trimmed == 0


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("no library is to be looked up"))
    memory.keep_large_blocks()


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_counts(monkeypatch, name):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("nothing is to be changed"))
    monkeypatch.setenv(name, "1")
    memory.keep_large_blocks()
