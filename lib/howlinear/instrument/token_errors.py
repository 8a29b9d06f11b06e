"""Which tokens the map misses: each held-out token's share of what a block's affine map leaves unexplained.

R²_lin = 1 − Σₜ eₜ / Σₜ oₜ is one number for many tokens, where eₜ = ‖yₜ − ŷₜ‖² is what the map misses of token t and oₜ
= ‖yₜ − ȳ‖² what there was to explain. Here both are given token by token, as multiples of their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError, SourceError
from howlinear.instrument.as_rows import rows_of
from howlinear.instrument.capture import read_tokens
from howlinear.instrument.measure import ROWS, measure
from howlinear.instrument.profile import Profile
from howlinear.models.checks import check_count, check_flags, check_inputs, evaluating, name_of
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.load import model_of, tokenizer_of
from howlinear.models.swap import Mapped, check_mapped, maps_and_site
from howlinear.text.corpus import Corpus
from howlinear.text.rows import Rows, in_batches
from howlinear.text.token_texts import token_texts

TOKENS = 2_048
"""How many tokens are shown by default, in whole sequences: a page of them can be read, and stays small."""

TOP = 5
TYPES = 10
"""How many of the tokens with the largest residuals are counted together, and how many types of tokens are named."""

EXACT = 1e-10
"""Share of the outputs below which a residual is rounding of float32, and is not charged to any token."""


def token_errors(
    model: Any,
    profile: Any,
    text: Any = None,
    rows: int = ROWS,
    seq_len: int = 128,
    seed: int = 0,
    blocks: int | list[int] | None = None,
    site: str | None = None,
    tokens: int = TOKENS,
    batch_size: int = 16,
    progress: bool = False,
) -> pd.DataFrame:
    """Find the held-out tokens that each block's affine map, which was never fitted to them, misses.

    Args:
        model: a model, or its name as `load_model` takes it; an encoder too. Left as it was.
        profile: a profile, or block → map, as `swap` takes it; or, without `text`, what `measure` takes as a text, on
            which the maps are then fitted first.
        text: what to show held-out tokens of, as `measure` takes it; by default the profile's own rows. Rows that a
            map was fitted to are held out only if they are cut as they were then (the same `rows`, `seq_len`, `seed`).
        rows: tokens to cut of a text, a quarter of them held out.
        seq_len: tokens in a sequence of a text.
        seed: decides which documents are drawn.
        blocks: which blocks, or which one; by default all that have a map.
        site: what of each block to look at, `ffn`, `attention` or `layer`; by default the profile's, or else `ffn`.
        tokens: how many to show at most, in whole sequences, of every document fold in turn.
        batch_size: sequences in a forward pass.
        progress: show a bar.

    Returns:
        One row per token and block: `model`, `corpus`, `site`, `block`, `sequence` (among all rows), `position` in it,
        `fold` (of documents), `document` (how many ends of documents come before it in its sequence), `token` (its id),
        `text`; `residual`, e over the mean e of the tokens shown, so that 1 is an average token; `share`, e over the
        sum; `output`, o over the mean o; and `r2` = 1 − e / o, NaN if the token's output is the mean. `text` is empty
        for a token whose character is completed by a later one, and None if there is no tokenizer.

    Raises:
        InputError: a profile of another model or without maps, a block or a site that is not there, no held-out rows,
            inputs without token ids, or activations that are not finite.
        SourceError: no such model or text.
    """
    model = model_of(model)
    check_count("tokens", tokens)
    batch_size = check_count("batch_size", batch_size)
    check_flags(progress=progress)
    if text is None and not isinstance(profile, Profile):
        if isinstance(profile, Mapping) and all(hasattr(key, "__index__") for key in profile):
            raise InputError("maps alone say no tokens to look at: give a text too, token_errors(model, maps, text)")
        site = site or "ffn"
        blocks = [each.block for each in sites(model, blocks, site)]
        profile, text = None, profile
    else:
        maps, site = maps_and_site(model, profile, site)
        blocks = [each.block for each in sites(model, list(maps) if blocks is None else blocks, site)]
        unmapped = [block for block in blocks if block not in maps]
        if unmapped:
            raise InputError(f"no map of block {unmapped}: there are maps of {list(maps)}")
    packed = rows_of(profile.rows if text is None else text, model, rows, seq_len, seed)
    chosen = sites(model, blocks, site)
    indices = _held_out(packed, tokens, chosen)
    shown = packed.subset(indices)
    check_inputs(model, shown.inputs)
    if profile is None:
        profile = measure(model, packed, blocks=blocks, site=site, batch_size=batch_size, progress=progress)
        maps, _ = maps_and_site(model, profile)

    errors = _squared_errors(model, shown, chosen, maps, batch_size, progress)
    where = _describe_tokens(shown, indices, chosen, _tokenizer(text, model))
    about = {"model": name_of(model), "corpus": packed.corpus, "site": site}
    exact = max(EXACT, torch.finfo(model.dtype).eps ** 2)
    return pd.concat(
        [where.assign(**_shares(*errors[each.block], exact)).assign(block=each.block, **about) for each in chosen],
        ignore_index=True,
    )[[*about, "block", *where, "residual", "share", "output", "r2"]]


def summarise_blocks(errors: pd.DataFrame) -> pd.DataFrame:
    """Summarise which tokens carry each block's residual, from the table of `token_errors`, one row per block.

    Returns:
        `block`; `r2`, R²_lin of the tokens shown, about their own mean; `tokens`, their number; `top`, the share of the
        residual that the `TOP` tokens with the largest share carry; `half`, how few tokens carry half of it; `first`,
        what tokens at position 0 carry.
    """
    rows = []
    for block, table in errors.groupby("block", sort=True):
        share = table["share"].sort_values(ascending=False).to_numpy()
        exact = share.sum() == 0
        # Σe / Σo is the mean of (e / o) · o / mean(o)
        missed = ((1 - table["r2"]) * table["output"]).fillna(0).mean()
        rows.append(
            {
                "block": block,
                "r2": 1 - missed,
                "tokens": len(table),
                "top": share[:TOP].sum(),
                "half": 0 if exact else int(np.searchsorted(share.cumsum(), 0.5) + 1),
                "first": table.loc[table["position"] == 0, "share"].sum(),
            }
        )
    return pd.DataFrame(rows)


def missed_types(errors: pd.DataFrame) -> pd.DataFrame:
    """List the types of tokens that each block's map misses most: at most `TYPES` rows per block, in descending order.

    They are those whose share of the residual exceeds their share of the tokens most: neither the most frequent, which
    carry much in total, nor the rarest, of which a single one may be far off.

    Returns:
        `block`, `token`, `text`; `times`, how often it occurs; `share` of the residual that all its occurrences carry
        together; and `residual`, the mean residual of one over that of the mean token.
    """
    types = errors.groupby(["block", "token"], sort=True).agg(
        text=("text", "first"), times=("share", "size"), share=("share", "sum"), residual=("residual", "mean")
    )
    # share − times / n = times · (residual − 1) / n
    types["excess"] = types["times"] * (types["residual"] - 1)
    falling = types.reset_index().sort_values(["block", "excess"], ascending=[True, False], kind="stable")
    most = falling[falling["residual"] > 1].groupby("block").head(TYPES)
    return most.drop(columns="excess").reset_index(drop=True)


def _tokenizer(text: Any, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    if isinstance(text, Corpus):
        return text.tokenizer
    try:
        return tokenizer_of(model)
    except SourceError:
        return None


def _held_out(rows: Rows, tokens: int, chosen: list[Site]) -> Int64[Tensor, " some"]:
    """Choose the sequences to show: the first of every held-out document fold, then the second, up to `tokens`."""
    ids, _ = rows.read_by(chosen[0].name)
    if ids is None:
        raise InputError("these inputs have no token ids, so there are no tokens to tell apart")
    if not rows.test.any():
        raise InputError(f"no held-out rows among {len(rows.test)} sequences of {rows.corpus}: give more")
    in_turn = chain.from_iterable(zip_longest(*(fold.tolist() for fold in rows.folds(test=True))))
    ordered = [sequence for sequence in in_turn if sequence is not None]
    return torch.tensor(sorted(ordered[: max(1, tokens // ids.shape[1])]), device="cpu")


def _squared_errors(
    model: PreTrainedModel,
    rows: Rows,
    chosen: list[Site],
    maps: Mapping[int, Any],
    batch_size: int,
    progress: bool,
) -> dict[int, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]]:
    """Block → e = ‖y − ŷ‖² and o = ‖y − ȳ‖² of every token.

    The rows are run twice, first for ȳ: so no activation is kept, whatever the model's width and depth.
    """
    batches = in_batches(rows, torch.arange(len(rows.test), device="cpu"), batch_size)
    sums: dict[int, Tensor] = {each.block: torch.zeros((), dtype=torch.float64, device="cpu") for each in chosen}
    pieces: dict[int, list[tuple[Tensor, Tensor]]] = {each.block: [] for each in chosen}
    counts = dict.fromkeys(sums, 0)

    def add(site: Site, _: Tensor, y: Tensor, *__: Tensor) -> None:
        sums[site.block] = sums[site.block].to(y.device) + y.double().sum(0)
        counts[site.block] += len(y)

    def compare(site: Site, x: Tensor, y: Tensor, *_: Tensor) -> None:
        missed = y.double() - _apply(maps[site.block], x.double(), site, model)
        varied = y.double() - sums[site.block] / counts[site.block]
        pieces[site.block].append((missed.square().sum(1).cpu(), varied.square().sum(1).cpu()))

    read_tokens(model, rows, chosen, batches, add, "means", progress)
    read_tokens(model, rows, chosen, batches, compare, "tokens", progress)
    errors = {}
    for block, parts in pieces.items():
        missed, varied = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
        if not (np.isfinite(missed).all() and np.isfinite(varied).all()):
            raise InputError(
                f"NaN or infinity at block {block}: this model overflows on this text in {model.dtype}, or its weights "
                "hold NaN"
            )
        errors[block] = (missed, varied)
    return errors


def _apply(map_: Any, x: Tensor, site: Site, model: PreTrainedModel) -> Tensor:
    """Apply a map to rows in float64; a module or another function gets them in the model's precision."""
    if isinstance(map_, AffineMap):
        if map_.weight.shape[0] != x.shape[1]:
            raise InputError(
                f"a map of shape {tuple(map_.weight.shape)} for block {site.block} of width {x.shape[1]}: it is of "
                "another model"
            )
        return map_(x)
    function = map_.module().to(x.device, model.dtype) if hasattr(map_, "module") else map_
    mapped = Mapped(function)
    with evaluating(mapped):
        y = mapped(x.to(model.dtype))
    check_mapped(x, y)
    return y.double()


def _shares(
    missed: Float[np.ndarray, " n"], varied: Float[np.ndarray, " n"], exact: float
) -> dict[str, Float[np.ndarray, " n"]]:
    """Compute the columns of every token from e and o; a residual within rounding is carried by no token."""
    if missed.sum() <= exact * varied.sum():
        missed = np.zeros_like(missed)
    share = missed / missed.sum() if missed.any() else missed
    output = varied / varied.mean() if varied.any() else varied
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(varied > 0, 1 - missed / varied, np.nan)
    return {"residual": share * len(share), "share": share, "output": output, "r2": r2}


def _describe_tokens(
    rows: Rows, indices: Int64[Tensor, " some"], chosen: list[Site], tokenizer: PreTrainedTokenizerBase | None
) -> pd.DataFrame:
    """Tabulate every token's place and text, in the order in which the model reads them, without padding."""
    ids, mask = rows.read_by(chosen[0].name)  # all sites are of one stack, and a decoder has tokens of its own
    ends = {getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "sep_token_id", None)}
    tables = []
    for number, sequence in enumerate(indices.tolist()):
        tokens = (ids[number] if mask is None else ids[number][mask[number]]).tolist()
        is_end = np.isin(tokens, [end for end in ends if end is not None])
        tables.append(
            pd.DataFrame(
                {
                    "sequence": sequence,
                    "position": np.arange(len(tokens)),
                    "fold": int(rows.fold[number]),
                    "document": is_end.cumsum() - is_end,
                    "token": tokens,
                    "text": token_texts(tokenizer, tokens) if tokenizer is not None else None,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
