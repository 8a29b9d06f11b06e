"""What torchrun says to a process before it has met the others; imports nothing, unlike `instrument.distributed`."""

import os


def is_distributed() -> bool:
    """Whether torchrun started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"
