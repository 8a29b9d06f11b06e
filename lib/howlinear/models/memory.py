"""Large blocks of memory, kept for the next batch.

By default glibc, the C library of most Linux systems, gives a large block back to the system when it is freed. A
model's pass asks for the same blocks at every batch, and filling them with zeros anew is a tenth of its time.
"""

from __future__ import annotations

import ctypes
import os
import platform

_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**28  # bytes; the logits of eight sequences of 128 tokens and 49,152 words are 0.2 GB
_KEPT = 2**29  # bytes that may lie free
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")  # of the environment


def keep_large_blocks() -> None:
    """Have this process keep freed blocks of up to 256 MB, and 512 MB of them; for processes of our own alone.

    Where the C library is another, or the environment says what is to be kept, nothing is changed.
    """
    library, _ = platform.libc_ver()
    if library != "glibc" or any(name in os.environ for name in _OWN_SETTINGS):
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
