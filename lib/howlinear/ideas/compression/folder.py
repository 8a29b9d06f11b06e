"""Save a compressed model to a folder: its FFNs are linear layers or have fewer units; a card says what that cost.

The folder is an ordinary Hugging Face one (config, safetensors, tokenizer, README.md). `config.json` says what each
block consists of, from which `load.load_model` builds the same modules again (`models.replace`). `greedy` and
`own_units` decide which blocks to replace and by what.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from howlinear.errors import InputError, SourceError, in_one_line
from howlinear.files.atomic import folder_aside, write_text
from howlinear.ideas.compression.card import plain_card
from howlinear.ideas.compression.output_folder import check_output_folder
from howlinear.models.checks import check_flags
from howlinear.models.load import bars, model_of, tokenizer_of, weights_to_save
from howlinear.models.seals import seal
from howlinear.models.shards import check_all_in_files, is_on_disk, save_config


def save(
    model: Any,
    folder: Path | str,
    card: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    force: bool = False,
) -> Path:
    """Write a model folder whole or not at all: aside first, then renamed.

    Args:
        model: a model made by `replace` or `compress`; float32 weights give the same logits, bit for bit, when they are
            loaded again. If its weights stay on disk, their files are copied.
        folder: where to write.
        card: README.md, see `card.compressed_card`; by default that of `card.plain_card`.
        tokenizer: saved next to the weights; by default the model's own, if it has one.
        force: replace a compressed model that exists there, see `check_output_folder`.

    Returns:
        The folder.

    Raises:
        SourceError: the folder exists, or cannot be written.
        InputError: `model` is no model, or would not load again (`load.weights_to_save`).
    """
    check_flags(force=force)
    model = model_of(model, on_disk=True)
    folder = check_output_folder(folder, force)
    weights = None if is_on_disk(model) else weights_to_save(model)
    if weights is None:
        check_all_in_files(model)
    if card is not None and not isinstance(card, str):
        raise InputError(f"card={card!r}: give the text of README.md")
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise InputError(f"tokenizer={tokenizer!r}: give a tokenizer of transformers")
    if card is None:
        card = plain_card(model)
    if tokenizer is None:
        with suppress(SourceError):  # a model of token ids alone
            tokenizer = tokenizer_of(model)
    with folder_aside(folder) as new, bars(False):
        try:
            if weights is None:
                model.howlinear_shards.copy(new)
                save_config(model, new)
            else:
                model.save_pretrained(new, state_dict=weights)
        except ValueError as error:  # e.g. contradictory generation settings
            raise InputError(f"transformers does not save this model: {in_one_line(error)}") from error
        if tokenizer is not None:
            tokenizer.save_pretrained(new)
        write_text(new / "README.md", card)
        seal(new)
        for path in new.iterdir():  # safetensors writes for its owner alone
            path.chmod((new / "README.md").stat().st_mode)
    return folder
