"""How linear is a transformer's feed-forward block? A literate reproduction of arXiv 2606.19379.

`howlinear.public` lists the names to use. They are imported when the first of them is asked for: torch, transformers
and scikit-learn take seconds, which a command that needs none of them should not wait for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from howlinear.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A public name, or the list of them; `plots` is what draws them."""
    if name.startswith("__") and name != "__all__":  # Python asks every module for some of these
        raise AttributeError(f"module 'howlinear' has no attribute {name!r}")
    if name == "plots":
        return import_module("howlinear.plots")
    public = import_module("howlinear.public")
    if name == "__all__":
        return public.__all__
    if name in public.__all__:
        return getattr(public, name)
    if name in globals():  # a folder, which is there once something in it was imported
        return globals()[name]
    raise AttributeError(f"module 'howlinear' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names too."""
    return sorted({*globals(), *__getattr__("__all__"), "plots"})
