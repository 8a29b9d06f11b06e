"""What torchrun tells a process before it has joined the others; cheap to import, unlike `instrument.distributed`."""

import os


def is_distributed() -> bool:
    """Whether torchrun started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"
