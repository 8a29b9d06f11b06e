"""What changes with the text, as tidy tables: profiles, a line's loss on another text, likeness of lines, costs.

Throughout, `found` is model → block → `Transfer`. The columns are explained in `files/columns.yaml`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Int64
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.files.tables import with_ends
from howlinear.ideas.corpora.agreement import agreement
from howlinear.ideas.corpora.transfer import Transfer
from howlinear.instrument.perplexity import change, held_out
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.load import is_causal
from howlinear.text.rows import TokenRows

Found = Mapping[str, Mapping[int, Transfer]]

FEWEST = 3  # fewest blocks that a correlation is taken over
FEWEST_INNER = 5  # with fewer blocks, the first and the last are not left out


def profiles(found: Found) -> pd.DataFrame:
    """R²_lin of every block on every text, by the text's own map."""
    rows = []
    for model, corpus, by_block in _by_corpus(found):
        for block, carried in by_block.items():
            row = {"model": model, "corpus": corpus, "block": block}
            rows.append(row | carried.r2[corpus, corpus].columns("r2"))
    return pd.DataFrame(rows)


def transfer(found: Found) -> pd.DataFrame:
    """Loss in R² of a map fitted on one text and scored on another."""
    rows = []
    for model, fitted, by_block in _by_corpus(found):
        for scored in _corpora(by_block):
            for block, carried in by_block.items():
                if scored != fitted:
                    row = {"model": model, "fitted": fitted, "scored": scored, "block": block}
                    rows.append(row | carried.drop[fitted, scored].columns("drop"))
    return pd.DataFrame(rows, columns=["model", "fitted", "scored", "block", *with_ends("drop")])


def likeness(found: Found) -> pd.DataFrame:
    """Cosine of two texts' maps, and the cosine that noise alone would leave."""
    rows = []
    for model, by_block in found.items():
        for corpus, other in combinations(_corpora(by_block), 2):
            for block, carried in by_block.items():
                row = {"model": model, "corpus": corpus, "other": other, "block": block}
                row |= carried.likeness[corpus, other].columns("likeness")
                rows.append(row | {"noise": carried.expected[corpus, other]})
    return pd.DataFrame(rows, columns=["model", "corpus", "other", "block", *with_ends("likeness"), "noise"])


def agreements(found: Found) -> pd.DataFrame:
    """How far the profiles of every two texts agree; no row for a model with fewer than three blocks."""
    rows = []
    for model, by_block in found.items():
        for corpus, other in combinations(_corpora(by_block), 2):
            if len(by_block) >= FEWEST:
                rows.append({"model": model, "corpus": corpus, "other": other} | _agreement(by_block, corpus, other))
    keys = ["model", "corpus", "other", "rho"]
    of_numbers = [*with_ends("r"), *with_ends("inner"), *with_ends("gap")]
    return pd.DataFrame(rows, columns=[*keys, *of_numbers, "gap_block", "differ"])


def _agreement(by_block: Mapping[int, Transfer], corpus: str, other: str) -> dict[str, float]:
    whole = agreement(by_block, corpus, other)
    inner = agreement(_inner(by_block), corpus, other)
    on_one = [carried.r2[corpus, corpus].value for carried in by_block.values()]
    on_other = [carried.r2[other, other].value for carried in by_block.values()]
    farthest = max(whole.difference, key=lambda block: abs(whole.difference[block].value))
    return {
        "rho": float(spearmanr(on_one, on_other)[0]),
        **whole.correlation.columns("r"),
        **inner.correlation.columns("inner"),
        **whole.difference[farthest].columns("gap"),
        "gap_block": farthest,
        "differ": len(whole.differ),
    }


def _inner(by_block: Mapping[int, Transfer]) -> dict[int, Transfer]:
    """Leave out the first and the last block, which can make any correlation high if they lie far from the rest."""
    blocks = sorted(by_block)
    if len(blocks) >= FEWEST_INNER:
        blocks = blocks[1:-1]
    return {block: by_block[block] for block in blocks}


def by_model(profiles: pd.DataFrame, transfer: pd.DataFrame, likeness: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, from the tables above; cells are empty for one text or fewer than three blocks."""
    rows = []
    for model, of_model in profiles.groupby("model", sort=False):
        curves = of_model.pivot_table(index="block", columns="corpus", values="r2")
        drops = transfer[transfer["model"] == model].groupby("block")["drop"].mean()
        spread = float(np.var(curves.to_numpy()))
        bend = np.corrcoef(drops, 1 - curves.mean(axis=1)) if len(drops) >= FEWEST else None
        rows.append(
            {
                "model": model,
                "by_block": float(np.var(curves.mean(axis=1))) / spread if spread else None,
                "bend": None if bend is None else float(bend[0, 1]),
                "noise": likeness[likeness["model"] == model]["noise"].mean(),
            }
        )
    return pd.DataFrame(rows)


def drops_by_training(transfer: pd.DataFrame, trained_on: Collection[str], known: Collection[str]) -> pd.DataFrame:
    """Mean drop, over blocks, then pairs, by whether the model saw a text in training: seen, unseen or unknown."""
    by_pair = transfer.groupby(["model", "fitted", "scored"], sort=False, as_index=False)["drop"].mean()
    for side in ("fitted", "scored"):
        kinds = by_pair[side].map(lambda corpus: "seen" if corpus in trained_on else "unseen")
        by_pair[side] = kinds.where(by_pair["model"].isin(known), "unknown")
    return by_pair.groupby(["model", "fitted", "scored"], sort=False, as_index=False)["drop"].mean()


def swap_costs(
    model: PreTrainedModel,
    by_block: Mapping[int, Transfer],
    texts: Mapping[str, TokenRows | Int64[Tensor, "n seq_len"]],
    blocks: Sequence[int],
    main: str,
) -> pd.DataFrame:
    """Measure the rise in perplexity with the text's own map in a block's place, and the `extra` with the main's."""
    rows = []
    for corpus, text in texts.items() if is_causal(model) else ():
        scored = held_out(text)
        swaps = {}
        for of in (corpus, main):
            for block in blocks:
                swaps[of, block] = (block, by_block[block].maps[of])
        before, after = swap_losses(model, swaps, scored)
        for block in blocks:
            own = change(before, after[corpus, block], scored.fold)
            extra = change(after[corpus, block], after[main, block], scored.fold)
            row = {"corpus": corpus, "block": block}
            rows.append(row | own.columns("own") | extra.columns("extra"))
    return pd.DataFrame(rows, columns=["corpus", "block", *with_ends("own"), *with_ends("extra")])


def _corpora(by_block: Mapping[int, Transfer]) -> tuple[str, ...]:
    return next(iter(by_block.values())).corpora


def _by_corpus(found: Found) -> Iterator[tuple[str, str, Mapping[int, Transfer]]]:
    """Yield (model, corpus, block → `Transfer`), in the given order."""
    for model, by_block in found.items():
        for corpus in _corpora(by_block):
            yield model, corpus, by_block
