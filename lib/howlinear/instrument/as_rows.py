"""Turn whatever a user gives, any text or any token ids, into the rows that the instrument reads.

`measure`, `capture`, `perplexity`, `losses`, `swap_costs`, `compress` and `compress_to` all begin here, so that each
accepts the same inputs and refuses the same mistakes in the same words.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from howlinear.errors import HowlinearError, InputError, SourceError
from howlinear.models.calls import FAILURES
from howlinear.models.checks import (
    check_count,
    check_inputs,
    check_length,
    evaluating,
    is_encoder_decoder,
    main_input,
)
from howlinear.models.forward import hidden_states
from howlinear.models.load import is_causal, tokenizer_of
from howlinear.models.shards import is_on_disk
from howlinear.text.corpus import Corpus, load_corpus
from howlinear.text.gathered import are_strings, gathered, is_table, is_tokenised
from howlinear.text.rows import FOLDS, ModelInputs, Rows, RowsOnRecord, TokenRows, batch_of


def is_text(given: Any) -> bool:
    """Whether something is text, to be cut into rows by a tokenizer: a name, a path, a corpus, strings, a data set."""
    if isinstance(given, str | Path | Corpus):
        return True
    return (is_table(given) and not is_tokenised(given)) or are_strings(given)


def rows_of(
    given: Any,
    model: PreTrainedModel,
    rows: int = 20_000,
    seq_len: int = 128,
    seed: int = 0,
    folds: int = FOLDS,
) -> Rows:
    """Turn a text, token ids or other inputs into the rows that a model reads.

    Args:
        given: a text by name or path, strings, a data set (`load_corpus`) or a corpus, which are packed into rows;
            rows, also those of a profile, which are taken as they are; or token ids as a tensor, an array or lists
            (padded if their lengths differ), what a tokenizer or image processor returns, a tokenised data set, or a
            `DataLoader` or any iterable of batches, where each sequence is a document of its own.
        model: the model that reads it, and whose tokenizer cuts a text.
        rows: tokens in all to take from a text, or all that it has.
        seq_len: tokens in a sequence of a text.
        seed: decides which documents of a text are drawn.
        folds: document folds of a text on each side.

    Raises:
        SourceError: nothing is there by that name.
        InputError: too little text, a corpus that was cut by another model's tokenizer, tensors that do not belong
            together, or an object of another kind.
    """
    check_count("rows", rows)
    check_count("seq_len", seq_len)
    given = gathered(given)
    if isinstance(given, Corpus):
        _check_tokenizer(given, model)
    if is_text(given):
        corpus = given if isinstance(given, Corpus) else load_corpus(given, model)
        check_length(model, seq_len)
        return corpus.rows(rows, seq_len, seed, folds)
    if isinstance(given, Rows):
        return _by_length_if_needed(given, model)
    if isinstance(given, RowsOnRecord):
        raise InputError("these rows are of a profile that was read from a file, which does not keep them: give a text")
    is_perceived = "float" in str(getattr(given, "dtype", "")) or getattr(given, "ndim", 0) > 2  # images or sound
    if main_input(model) != "input_ids" and is_perceived:
        given = {main_input(model): given}
    found = ModelInputs.of(given) if isinstance(given, Mapping) else TokenRows.from_ids(given)
    _warn_of_padding(found, model)
    return _by_length_if_needed(found, model)


def _warn_of_padding(rows: Rows, model: PreTrainedModel) -> None:
    """Warn if sequences without a mask seem to be padded: a tenth or more end in two or more of the padding token.

    That token is the model's own or, as many models have none, one that ends a text.
    """
    config = model.config.get_text_config()
    named = [getattr(config, name, None) for name in ("pad_token_id", "eos_token_id")]
    tokens = {token for some in named for token in (some if isinstance(some, list) else [some])} - {None}
    for prefix in ("", "decoder_"):
        ids, mask = f"{prefix}input_ids", f"{prefix}attention_mask"
        if ids not in rows.inputs or mask in rows.inputs or rows.inputs[ids].shape[1] < 2:
            continue
        for token in tokens:
            is_token = rows.inputs[ids] == token
            padded = is_token[:, -2:].all(1) & ~is_token.all(1)
            if padded.sum() >= max(2, len(padded) / 10):
                warnings.warn(
                    f"{int(padded.sum())} of {len(padded)} {ids} end in token {token} twice or more, and there is no "
                    f"{mask}: if that is padding, it counts as text; give the mask, as {{'{ids}': …, '{mask}': mask}}, "
                    "or lists of their own lengths",
                    stacklevel=4,
                )


@torch.no_grad()
def _by_length_if_needed(rows: Rows, model: PreTrainedModel) -> Rows:
    """Have sequences of each length run without padding if the model does not mask it, as FNet and ConvBERT do not.

    This is tried on the sequence with the most padding: masked, it changes nothing but rounding. A next token is
    predicted before padding, on the right, is read. BigBird masks it, and a short sequence would switch it to full
    attention for good.
    """
    is_padded = isinstance(rows, ModelInputs) and rows.ids is not None and rows.mask is not None and not rows.mask.all()
    masks = is_causal(model) or getattr(model.config, "attention_type", None) == "block_sparse"
    if not is_padded or rows.by_length or masks or is_encoder_decoder(model) or is_on_disk(model):
        return rows
    check_inputs(model, rows.inputs)
    shortest = rows.mask.sum(1).argmin()[None]
    by_length = replace(rows, by_length=True)
    length = int(rows.mask[shortest].sum())
    try:
        with evaluating(model):
            padded, alone = (hidden_states(model, batch_of(model, each, shortest)) for each in (rows, by_length))
        padded = padded[:, :length].double()
        if padded.shape != alone.shape:  # images beside the text, or parts of it merged
            return rows
    except (*FAILURES, HowlinearError):  # the measurement itself says what fails
        return rows
    rounding = torch.finfo(alone.dtype).eps ** 0.5 * alone.abs().max()
    return rows if (padded - alone).abs().max() <= rounding else by_length


PROBE = "The quick brown fox, 3.14 <= été: 北京\n\tdef f(x): return x"
"""A text of several scripts and kinds of words, which two tokenizers are unlikely to cut alike."""


def _check_tokenizer(corpus: Corpus, model: PreTrainedModel) -> None:
    """Refuse a corpus that was cut by another tokenizer than the model's, where its ids stand for other words."""
    if corpus.tokenizer.name_or_path == model.name_or_path:
        return
    try:
        own = tokenizer_of(model)
    except SourceError:  # a model made in memory has none to compare with
        return
    cuts = [tokenizer(PROBE, add_special_tokens=False)["input_ids"] for tokenizer in (corpus.tokenizer, own)]
    if cuts[0] != cuts[1]:
        raise InputError(
            f"corpus {corpus.name} is cut by the tokenizer of {corpus.tokenizer.name_or_path or 'another model'}, and "
            f"{model.name_or_path} has its own: load it for this model, load_corpus(text, model)"
        )
