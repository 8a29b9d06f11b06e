"""Results of one run of `howlinear measure`: the profile, and what else was asked for.

The table on the terminal, the page, the figure, the CSV and the JSON all show a `Measurement`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from howlinear.errors import HowlinearError, InputError, in_one_line
from howlinear.files import numbers
from howlinear.instrument.baseline import Baseline, baseline
from howlinear.instrument.profile import Profile
from howlinear.models.ffn_sites import KINDS, sites
from howlinear.models.layerwise import InseparableError
from howlinear.text.corpus import Corpus

UNTRAINED_FACTOR = 4
"""How many times the rows of a measurement an untrained model may take."""

WHOLE_SEQUENCES = 0.99
"""Share of the rows asked for to begin with, since whole sequences can come to slightly fewer rows."""


@dataclass(frozen=True)
class Measurement:
    """Everything measured for one model on one text; `model` is the name that the user gave.

    `untrained` is R²_lin before training. `swap` says whether costs of swaps were asked for; a model that predicts no
    next token has none. `seed` decided which documents were drawn.
    """

    model: str
    profile: Profile
    swap: bool = False
    untrained: Baseline | None = None
    rows_asked: int | None = None
    seed: int = 0
    dtype: str = "float32"

    def to_frame(self) -> pd.DataFrame:
        """Return a row per block, with the columns of `Profile.to_frame` and those of the untrained model.

        `r2_untrained` is held out, `r2_untrained_in_sample` on the rows of the fit; the truth lies between.
        """
        frame = self.profile.to_frame().assign(model=self.model)
        if self.untrained is not None:
            frame["r2_untrained"] = self.untrained.held_out
            frame["r2_untrained_in_sample"] = self.untrained.in_sample
            frame["untrained_rows"] = self.untrained.rows
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` writes: `Profile.to_dict`, the untrained model, seed and versions."""
        content = self.profile.to_dict() | {"model": self.model, "seed": self.seed, "versions": numbers.versions()}
        if self.untrained is not None:
            content["untrained"] = self.untrained.held_out
            content["untrained_in_sample"] = self.untrained.in_sample
            content["untrained_rows"] = self.untrained.rows
        return content

    def settings(self) -> dict[str, str]:
        """Return the model, text, rows and versions behind the results, for people to read."""
        first = next(iter(self.profile.values()))
        rows = self.profile.rows
        settings = {
            "model": self.model,
            "measured": KINDS[self.profile.site],
            "weights": self.dtype,
            "text": rows.corpus,
            "rows": f"{first.rows_train:,} to fit on, {first.rows_test:,} held out",
            "sequences": f"{rows.ids.shape[1]} tokens",
            "seed": str(self.seed),
            "SHA-256 of the rows": rows.sha256,
            "versions": ", ".join(f"{name} {version}" for name, version in numbers.versions().items()),
        }
        if self.profile.stop is not None:
            settings["rows were doubled until"] = str(self.profile.stop)
        return settings


def to_frame(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Return a row per block of each measurement, as `--csv` writes it."""
    return pd.concat([measurement.to_frame() for measurement in measurements], ignore_index=True)


def to_plot(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Return the table for `plots.profile`, with models' paths cut to as many last parts as tell them apart."""
    frame = to_frame(measurements)
    paths = frame["model"].map(Path)
    shortened = (paths.map(lambda path, parts=parts: "/".join(path.parts[-parts:])) for parts in count(1))
    return frame.assign(model=next(names for names in shortened if names.nunique() == paths.nunique()))


def measure_untrained(
    model: PreTrainedModel,
    corpus: Corpus,
    rows: int,
    seq_len: int,
    seed: int,
    blocks: list[int] | None,
    site: str,
) -> Baseline:
    """Measure R²_lin of the same architecture with fresh weights on the same text, as a bracket for each block.

    A block with fresh weights can be far from linear, so it takes more rows than a trained one: they are doubled, up
    to `UNTRAINED_FACTOR` times those of the measurement, until held-out and in-sample R² meet (`instrument.baseline`).
    A model that cannot be built anew, or does not run with fresh weights, is refused.
    """
    chosen = [each.block for each in sites(model, blocks, site)]
    try:
        packed = corpus.rows(UNTRAINED_FACTOR * rows, seq_len, seed)
        return baseline(model, packed, seed, first=int(WHOLE_SEQUENCES * rows), site=site, blocks=chosen)
    except InseparableError as error:
        raise InputError(f"--fresh: layer by layer this model cannot be measured ({error}): add --whole") from error
    except HowlinearError as error:
        raise InputError(f"--fresh: {error}") from error
    # whatever a model's own code raises if its configuration alone does not make a model that runs
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, ImportError) as error:
        raise InputError(
            f"--fresh does not apply: {type(model).__name__} cannot be had with fresh weights ({in_one_line(error)}); "
            "leave it out"
        ) from error
