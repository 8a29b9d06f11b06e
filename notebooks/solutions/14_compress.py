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
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import width
from howlinear.ideas.compression.race import race, racers
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
# **1.** Each block gives its own parameters and gets $d^2 + d$: a matrix and a bias. What is left is embeddings,
# attention and norms, which no line replaces.

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
# **2.** Random scores, the same number of units in every block, and GRAIL's readout. Reading the others out anew makes
# good most of what is lost, so a random draw is not hopeless; but which units go matters as well.


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
