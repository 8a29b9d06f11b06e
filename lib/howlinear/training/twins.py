"""Twins that differ in one thing only: family × training text × seed, twelve small models from the minis' loop.

The paper compares two models that differ in architecture, data and run all at once. Here every pair that differs in one
of the three is available. `python -m howlinear.training.twins` trains them, or resumes an interrupted training. The
measurements are kept in `models/twins`, the weights are not; see `training.loop` for the rows that were measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from transformers import PreTrainedModel

from howlinear.errors import SourceError
from howlinear.files import numbers, paths
from howlinear.ideas.degrees.spectrum import degrees
from howlinear.instrument.capture import capture
from howlinear.instrument.measure import measure
from howlinear.models.units import take_apart
from howlinear.text.corpus import load_corpus
from howlinear.text.rows import TokenRows
from howlinear.training.loop import Recipe, train
from howlinear.training.minis import new_model, training_stream

FAMILIES = ("gpt2", "pythia", "llama")
TEXTS = ("docs", "code")
SEEDS = (0, 1)

BLOCKS = 8
WIDTH = 64
RECIPE = Recipe(steps=2_400, batch=8, peak=4e-3, warm_up=120, bfloat16=False)
"""A few minutes per model on two cores: 2,400 steps of 1,024 tokens. Early on, steps matter more than tokens."""


@dataclass(frozen=True)
class Twin:
    """One of the twins: a `gpt2` or `pythia` (both GELU) or a `llama` (SwiGLU), trained on `docs` or on `code`.

    `seed` decides its initial weights and the order of its batches.
    """

    family: str
    text: str
    seed: int

    @property
    def name(self) -> str:
        """As in `gpt2-docs-0`."""
        return f"{self.family}-{self.text}-{self.seed}"


TWINS = [Twin(family, text, seed) for family, text, seed in product(FAMILIES, TEXTS, SEEDS)]


def train_twin(twin: Twin, recipe: Recipe = RECIPE, compiled: bool = True) -> Path:
    """Train one twin, measure it on both texts, and write `models/twins/<name>.json`.

    The trajectory is measured on `docs`, whatever the twin was trained on, so that all read the same rows. The first
    twin of each family also records the degree spectrum during training, for notebook 10.
    """
    recipe = replace(recipe, seed=twin.seed)
    tokenizer, stream = training_stream(paths.BUILD / "minis", recipe)
    rows = {text: load_corpus(text, tokenizer).rows() for text in TEXTS}
    model = new_model(f"mini-{twin.family}", twin.seed, BLOCKS, WIDTH)

    first_of_family = twin.text == TEXTS[0] and twin.seed == SEEDS[0]
    trajectory = train(
        model,
        {twin.text: stream[twin.text]},
        rows["docs"],
        recipe,
        checkpoint=paths.BUILD / "twins" / f"{twin.name}.pt",
        compiled=compiled,
        beside=partial(spectra, rows=rows["docs"]) if first_of_family else None,
    )

    profiles = {}
    for text in TEXTS:
        profile = measure(model, rows[text])
        profiles[text] = profile.curves | {"perplexity": profile.perplexity, "sha256": profile.rows.sha256}
    measurements = {
        **asdict(twin),
        "blocks": BLOCKS,
        "width": WIDTH,
        "parameters": model.num_parameters(),
        "recipe": asdict(recipe),
        "steps": trajectory,
        "profiles": profiles,
        "versions": numbers.versions(),
    }
    return numbers.save(_path(twin), measurements)


def spectra(model: PreTrainedModel, rows: TokenRows) -> dict:
    """Measure R²₁ … R²₄ of an early, a middle and a late block, and the median spread of their pre-activations."""
    depth = model.config.num_hidden_layers
    blocks = sorted({0, depth // 2, depth - 1})
    spectrum = {}
    for block, captured in capture(model, rows, blocks, sample=rows.ids.numel()).items():
        neurons = take_apart(model, block)
        _, spreads = neurons.spread(sum(captured.train))
        spectrum[str(block)] = {"r2": degrees(captured, neurons).r2.tolist(), "spread": float(spreads.median())}
    return {"degrees": spectrum}


def load_twins() -> dict[Twin, dict]:
    """Load the measurements of the twins; a family of which no twin was trained is left out.

    If some twins of a family are missing, or there are fewer than two families, the error says how to make them.
    """
    there = [twin for twin in TWINS if _path(twin).is_file()]
    families = {twin.family for twin in there}
    missing = [twin.name for twin in TWINS if twin not in there and (twin.family in families or len(families) < 2)]
    if missing:
        raise SourceError(f"no measurements of {', '.join(missing)} under {paths.MODELS / 'twins'}: run make twins")
    return {twin: numbers.load(_path(twin)) for twin in there}


def _path(twin: Twin) -> Path:
    return paths.MODELS / "twins" / f"{twin.name}.json"


def main() -> None:
    """Train the twins that are missing."""
    for twin in TWINS:
        if not _path(twin).is_file():
            print(f"twin {twin.name}", flush=True)
            train_twin(twin)


if __name__ == "__main__":
    main()
