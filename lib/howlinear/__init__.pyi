from . import plots
from .app.figures import figures
from .core.ceilings import AffineMap, Ceiling, ceiling
from .core.moments import Moments, effective_rank
from .core.sklearn import AffineCeiling
from .errors import HowlinearError, InputError, SourceError
from .files.tables import Results, results
from .ideas.compression.compress import Compressed, compress
from .ideas.compression.folder import save
from .ideas.compression.greedy import Plan, compress_to
from .instrument.accuracy import Accuracy, accuracy
from .instrument.capture import capture
from .instrument.measure import measure
from .instrument.perplexity import Change, change, losses, perplexity
from .instrument.profile import Profile, compare
from .instrument.profile_files import load_profile
from .instrument.swap_costs import swap_costs
from .instrument.token_errors import token_errors
from .models.decilm_export import to_decilm
from .models.ffn_sites import Site, sites
from .models.load import load_model, untrained
from .models.replace import replace
from .models.swap import swap
from .text.corpus import Corpus, load_corpus
from .text.rows import ModelInputs, TokenRows
