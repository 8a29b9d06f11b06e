"""The public face: every name that `import howlinear as hl` offers, and where it lives."""

from howlinear.core.ceilings import AffineMap, Ceiling, ceiling
from howlinear.core.moments import Moments, effective_rank
from howlinear.core.sklearn import AffineCeiling
from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.files.tables import Results
from howlinear.files.tables import load_results as results
from howlinear.ideas.compression.compress import Compressed, compress
from howlinear.ideas.compression.folder import save
from howlinear.ideas.compression.greedy import Plan, compress_to
from howlinear.instrument.capture import capture
from howlinear.instrument.measure import Profile, measure
from howlinear.instrument.perplexity import Change, change, losses, perplexity
from howlinear.instrument.swap_costs import swap_costs
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.load import load_model, untrained
from howlinear.models.replace import replace
from howlinear.models.swap import swap
from howlinear.text.corpus import Corpus, load_corpus
from howlinear.text.rows import ModelInputs, TokenRows

__all__ = [
    "AffineCeiling",
    "AffineMap",
    "Ceiling",
    "Change",
    "Compressed",
    "Corpus",
    "HowlinearError",
    "InputError",
    "ModelInputs",
    "Moments",
    "Plan",
    "Profile",
    "Results",
    "Site",
    "SourceError",
    "TokenRows",
    "capture",
    "ceiling",
    "change",
    "compress",
    "compress_to",
    "effective_rank",
    "load_corpus",
    "load_model",
    "losses",
    "measure",
    "perplexity",
    "replace",
    "results",
    "save",
    "sites",
    "swap",
    "swap_costs",
    "untrained",
]
