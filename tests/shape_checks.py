"""Which functions check the shapes of their arguments while tests run, see `--jaxtyping-packages` in pyproject.toml.

Imported before any of the package is. jaxtyping would wrap every function and match every call's arguments with their
names, whatever is checked of them: a third of the time that tests take. A function within a function it would wrap anew
whenever that is made.
"""

import inspect
from contextlib import suppress

import jaxtyping

jaxtyped = jaxtyping.jaxtyped


def says_shapes(function) -> bool:
    """Whether a function, but for one within a function, has a tensor or an array in its signature."""
    kinds = list(getattr(function, "__annotations__", {}).values())
    for place, kind in enumerate(kinds):
        if isinstance(kind, str):
            with suppress(NameError, TypeError):  # a name that is not there yet
                kinds[place] = eval(kind, function.__globals__)
    has_arrays = any("Tensor" in str(kind) or "ndarray" in str(kind) for kind in kinds)
    return has_arrays and "<locals>" not in function.__qualname__


def jaxtyped_where_shapes_are_said(*, typechecker):
    """`jaxtyping.jaxtyped` of functions and data classes whose signature says shapes; the others as they are."""

    def decorated(it):
        says = says_shapes(it.__init__ if inspect.isclass(it) else it)
        return jaxtyped(it, typechecker=typechecker) if says else it

    return decorated


jaxtyping.jaxtyped = jaxtyped_where_shapes_are_said
