"""How linear is a transformer's feed-forward block? A literate reproduction of arXiv 2606.19379."""

from howlinear.capture import capture
from howlinear.ceilings import AffineMap, Ceiling, ceiling
from howlinear.compressed import replace
from howlinear.compression import Plan, compress_to
from howlinear.corpora import Corpus, TokenRows, load_corpus
from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.estimator import AffineCeiling
from howlinear.inputs import ModelInputs
from howlinear.measure import Profile, measure
from howlinear.models import load_model, untrained
from howlinear.moments import Moments, effective_rank
from howlinear.perplexity import Change, change, losses, perplexity, swap_costs
from howlinear.sites import Site, sites
from howlinear.swapping import swap

__version__ = "0.1.0"

__all__ = [
    "AffineCeiling",
    "AffineMap",
    "Ceiling",
    "Change",
    "Corpus",
    "HowlinearError",
    "InputError",
    "ModelInputs",
    "Moments",
    "Plan",
    "Profile",
    "Site",
    "SourceError",
    "TokenRows",
    "capture",
    "ceiling",
    "change",
    "compress_to",
    "effective_rank",
    "load_corpus",
    "load_model",
    "losses",
    "measure",
    "perplexity",
    "replace",
    "sites",
    "swap",
    "swap_costs",
    "untrained",
]
