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
# # 07 · Solutions

# %% tags=["parameters"]
profile = "minis"

# %%
import numpy as np

import howlinear as hl
from howlinear.core.ceilings import fit, r2
from howlinear.ideas.optimisers.baseline import planted
from howlinear.ideas.optimisers.gradient_descent import descent
from howlinear.ideas.optimisers.problem import Coordinates, Problem
from howlinear.ideas.optimisers.training import train
from howlinear.instrument.selection import choose_blocks
from howlinear.notebook.run import start

run = start("07_optimisers", profile)
first = next(iter(run.models))
captured = run.capture(first).blocks
(block,) = choose_blocks("depth 0.09", captured)
problem = Problem.of(captured[block])
theory = descent(problem.moments)
steps = 100


# %%
def moments_in(scaling):
    rows = Coordinates.of(problem.moments, scaling).rows(problem.x)
    return hl.Moments(rows.shape[1], problem.y.shape[1]).update(rows, problem.y)


# %% [markdown]
# **1.** The unlearned share is a sum of known powers, so we look for the step at which it falls below the threshold;
# `steps_to` finds it by bisection.

# %%
needed = theory.steps_to(1e-3)
print("steps:", needed)
assert theory.unlearned(needed) <= 1e-3 < theory.unlearned(needed - 1)

# %% [markdown]
# **2.** New coordinates are new inputs: new moments, new eigenvalues, a new $1/\lambda_1$. The variance of $y$ and the
# best map's predictions stay as they were.

# %%
unlearned = descent(moments_in("standardised")).unlearned(steps)
there = train(problem, "SGD", "standardised", 1.0, steps, batch=None, decay=False)
left_there = r2(fit(problem.moments)[0], problem.moments) - r2(there.map, problem.moments)
print(f"unlearned: {unlearned:.4f} on standardised inputs, {theory.unlearned(steps):.4f} on raw ones")
assert np.isclose(unlearned, left_there, atol=1e-4)

# %% [markdown]
# **3.** Every $\lambda_i$ is 1, so $\eta = 1$ leaves $(1 - 1)^1 = 0$ of every direction. A gradient step in whitened
# coordinates is a Newton step in the old ones: the gradient times the inverse of the second moments. For a quadratic
# loss, Newton's method arrives at once; it *is* the closed form.

# %%
whitened_rate = 1.0
one_step = descent(moments_in("whitened"), whitened_rate).unlearned(1)
assert one_step < 1e-12

# %% [markdown]
# **4.** A small step does not mean that the minimum is near: along a flat direction every step is small, from the first
# to the last, and a million of them would still make progress. A better test is the gradient in coordinates in which
# all directions count alike. A line needs no test at all: solve for it.


# %%
def repaired(rows, held_out):
    return hl.ceiling(rows, held_out).r2


problem_planted, truth = planted(seed=run.seed)
ceiling = repaired(problem_planted.moments, problem_planted.held_out)
print(f"truth {truth:.2f}, closed form {ceiling:.2f}")
assert abs(ceiling - truth) < 0.02
