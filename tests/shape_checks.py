"""What checks the shapes of arguments while tests run, see `--jaxtyping-packages` in pyproject.toml."""

from beartype import beartype


def checked(function):
    """`beartype`, of functions that say shapes; of a function within a function not, for that is made at every call.

    To check everything else as well takes more than twice the time that these checks take.
    """
    says_shapes = any("Tensor" in str(kind) or "ndarray" in str(kind) for kind in function.__annotations__.values())
    return beartype(function) if says_shapes and "<locals>" not in function.__qualname__ else function
