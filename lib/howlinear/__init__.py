"""How linear is a transformer's feed-forward block? A literate reproduction of arXiv 2606.19379.

`__init__.pyi` lists the names to use and where they live. Each is imported when it is first asked for: torch,
transformers and scikit-learn take seconds, which a command that needs none of them should not wait for.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
