"""How linear is a transformer's feed-forward block? A literate reproduction of arXiv 2606.19379.

`__init__.pyi` lists the public names and where they live. Each is imported on first use: importing torch, transformers
and scikit-learn takes seconds, and a command that needs none of them should not wait.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
