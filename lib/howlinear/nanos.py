"""Twins that differ in one thing only: family × training text × seed, eight small models from the minis' loop.

The paper compares two models that differ in architecture, data and run all at once. Here every pair that differs
in one of the three is at hand. `python -m howlinear.nanos` trains them, or goes on where it stopped; what is
measured is kept in `models/nanos`, the weights are not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from transformers import PreTrainedModel

from howlinear import paths, record
from howlinear.capture import capture
from howlinear.corpora import TokenRows, load_corpus
from howlinear.degrees import degrees
from howlinear.errors import SourceError
from howlinear.hidden import hidden
from howlinear.measure import measure
from howlinear.minis import new_model, training_stream
from howlinear.training import Recipe, train

FAMILIES, TEXTS, SEEDS = ("gpt2", "pythia"), ("docs", "code"), (0, 1)
BLOCKS, WIDTH = 8, 64
RECIPE = Recipe(steps=2_400, batch=8, peak=4e-3, warm_up=120, bfloat16=False)
"""A few minutes a model on two cores: 2,400 steps of 1,024 tokens. Early on, steps count for more than tokens."""


@dataclass(frozen=True)
class Twin:
    """One of the eight.

    Attributes:
        family: `gpt2` or `pythia`, the architecture.
        text: `docs` or `code`, what it is trained on.
        seed: of its initial weights and of the order of its batches.
    """

    family: str
    text: str
    seed: int

    @property
    def name(self) -> str:
        """As in `gpt2-docs-0`."""
        return f"{self.family}-{self.text}-{self.seed}"


TWINS = [Twin(*levels) for levels in product(FAMILIES, TEXTS, SEEDS)]


def train_twin(twin: Twin, recipe: Recipe = RECIPE, device: str = "cpu", compiled: bool = True) -> Path:
    """Train one twin, measure it on both texts, and write `models/nanos/<name>.json`.

    The trajectory is measured on `docs`, whatever the twin was trained on: all eight read the same rows. The first of
    each family also records the degree spectrum on the way, for notebook 10.

    Returns:
        Path of the measurements.
    """
    work, recipe = paths.BUILD / "nanos", replace(recipe, seed=twin.seed)
    tokenizer, stream = training_stream(paths.BUILD / "minis", recipe)
    rows = {text: load_corpus(text, tokenizer).rows() for text in TEXTS}
    model = new_model(f"mini-{twin.family}", twin.seed, BLOCKS, WIDTH).to(device)
    beside = partial(spectra, rows=rows["docs"]) if (twin.text, twin.seed) == (TEXTS[0], SEEDS[0]) else None
    text, checkpoint = {twin.text: stream[twin.text]}, work / f"{twin.name}.pt"
    trajectory = train(model, text, rows["docs"], recipe, checkpoint, compiled, beside)
    found = {text: measure(model, rows[text]) for text in TEXTS}
    profiles = {
        text: profile.curves | {"perplexity": profile.perplexity, "sha256": profile.rows.sha256}
        for text, profile in found.items()
    }
    shape = {"blocks": BLOCKS, "width": WIDTH, "parameters": model.num_parameters()}
    about = {**asdict(twin), **shape, "recipe": asdict(recipe)}
    return record.save(_path(twin), about | {"steps": trajectory, "profiles": profiles})


def spectra(model: PreTrainedModel, rows: TokenRows) -> dict:
    """R²₁ … R²₄ of an early, a middle and a late block, and the median spread of their pre-activations."""
    depth = model.config.num_hidden_layers
    chosen, found = sorted({0, depth // 2, depth - 1}), {}
    for block, kept in capture(model, rows, chosen, sample=rows.ids.numel()).items():
        inside = hidden(model, block)
        spread = float(inside.spread(sum(kept.train))[1].median())
        found[str(block)] = {"r2": degrees(kept, inside).r2.tolist(), "spread": spread}
    return {"degrees": found}


def load_twins() -> dict[Twin, dict]:
    """What was measured of every twin.

    Raises:
        SourceError: a twin is missing; says how to make it.
    """
    missing = [twin.name for twin in TWINS if not _path(twin).is_file()]
    if missing:
        raise SourceError(f"no measurements of {', '.join(missing)} under {paths.MODELS / 'nanos'}: run make nanos")
    return {twin: record.load(_path(twin)) for twin in TWINS}


def _path(twin: Twin) -> Path:
    return paths.MODELS / "nanos" / f"{twin.name}.json"


def main() -> None:
    """Train what is not there yet."""
    for twin in TWINS:
        if not _path(twin).is_file():
            print(f"twin {twin.name}", flush=True)
            train_twin(twin)


if __name__ == "__main__":
    main()
