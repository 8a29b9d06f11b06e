# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import torch

import howlinear as hl
from howlinear.core.moments import Moments
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import width
from howlinear.ideas.compression.race import race, racers
from howlinear.ideas.compression.units import eliminate
from howlinear.models.layers import parameters
from howlinear.models.units import unit_count
from howlinear.notebook.run import start

run = start("14_compress", profile)
first = next(iter(run.models))
models = {first: run.model(first)}
first_model = models[first]
rows = run.corpus(run.corpora[0], first_model).rows(run.rows, run.seq_len, run.seed)
calibration = Calibration(first_model, rows.thinned(12_288), priced=24)
cost_rows = 1024

# %% [markdown]
# **1.** Each block loses its own parameters and gets $d^2 + d$: a matrix and a bias. The rest is embeddings, attention
# and norms, which no line replaces.

# %%
blocks = hl.sites(first_model)
d = first_model.config.get_text_config().hidden_size
own = sum(parameter.numel() for site in blocks for parameter in site.parameters())
whole = parameters(first_model)
least = (whole - own + len(blocks) * (d * d + d)) / whole
(everything,) = racers(calibration, ["lines by R²"]).values()
assert abs(parameters(everything(least)) / whole - least) < 1e-4
print(f"{least:.3f}")

# %% [markdown]
# **2.** Take random scores, the same number of units in every block, and GRAIL's readout. Refitting the readout of the
# others makes up for most of the loss, so a random draw is not hopeless; but which units go matters as well.


# %%
def drawn(share):
    generator = torch.Generator().manual_seed(0)
    scores = {site.block: torch.rand(unit_count(first_model, site), generator=generator) for site in blocks}
    return width.evenly(calibration, share, scores)


compressors = racers(calibration, ["magnitude", "GRAIL on Wanda"])
kept = drawn(0.8)
compressors["drawn"] = lambda _: width.compensated(calibration, lambda site, _: kept[site.block])
judged = {run.corpora[0]: rows.with_fewer_held_out(cost_rows)}
raced = race(first_model, compressors, [0.8], judged).set_index("method")["ratio"]
assert raced["drawn"] > raced["GRAIL on Wanda"]
print(raced.round(2).to_dict())

# %% [markdown]
# **3.** The third unit is half of the sum of the two others, with a little noise. The others reproduce it up to the
# noise, so it goes first. Then one of these two goes, and the other says nothing about it. Adding units one by one, the
# best first, would have begun with the third.

# %%
generator = torch.Generator().manual_seed(0)
one, other, noise = torch.randn(3, 1000, generator=generator, dtype=torch.float64)
mix = (one + other) / 2 + 0.05 * noise
misleading = torch.stack([one, other, mix], dim=1)
planted = Moments(3).update(misleading)
eliminated = eliminate(planted.sxx / planted.n, torch.ones(3, 1).double())
assert eliminated.order[0] == 2, "the mix goes first"
print("go in the order", eliminated.order.tolist(), "at a mean square error of", eliminated.price[1:].tolist())
