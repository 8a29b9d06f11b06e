"""Save a compressed model to a folder: its FFNs are linear layers or have fewer units; a card says what that cost.

The folder is an ordinary Hugging Face one (config, safetensors, tokenizer, README.md). `config.json` says what each
block consists of, from which `load.load_model` builds the same modules again (`models.replace`). `greedy` and
`own_units` decide which blocks to replace and by what. The card's text is in `card.md.jinja`; the numbers that it shows
are gathered here.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.errors import InputError, SourceError, in_one_line
from howlinear.files.atomic import folder_aside, write_text
from howlinear.ideas.compression.compress import Compressed
from howlinear.ideas.compression.greedy import Plan
from howlinear.ideas.compression.output_folder import OURS, check_output_folder
from howlinear.ideas.compression.reduced_rank import ffn_parameters
from howlinear.instrument.accuracy import Accuracy
from howlinear.models.checks import check_flags
from howlinear.models.decilm import DeciLMConfig
from howlinear.models.ffn_sites import sites
from howlinear.models.load import bars, model_of, tokenizer_of, weights_to_save
from howlinear.models.replace import replaced, units_left
from howlinear.models.seals import seal
from howlinear.models.shards import check_all_in_files, is_on_disk, save_config
from howlinear.models.units import unit_count
from howlinear.text.rows import TokenRows

BEGINNING = 24
"""Tokens of a held-out sequence that both models continue."""

CONTINUED = 40
"""Tokens that each model adds."""


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
        card: README.md, see `compressed_card`; by default `plain_card`.
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


# --- README.md: what was replaced, on which text, what it cost, how to load it


def plain_card(model: PreTrainedModel) -> str:
    """Write the card of a model about which nothing else is known: what its feed-forward blocks are now."""
    counts = units_left(model.config)
    kept = {block: f"{count} hidden units" for block, count in counts.items()}
    return _render(
        model,
        outcome=None,
        name="the model that it was made from",
        kind=type(model).__name__,
        parameters=[model.num_parameters()],
        in_blocks=[ffn_parameters(model)],
        layers=_layers(model, kept, already=set()),
        written=model,
    )


def compressed_card(
    name: str,
    before: PreTrainedModel,
    after: PreTrainedModel,
    rows: TokenRows,
    outcome: Plan | Compressed,
    max_dppl: float | None = None,
    max_parameters: float | None = None,
    written: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    accuracies: tuple[Accuracy, Accuracy] | None = None,
) -> str:
    """Write the card of a compressed model.

    `written` is the model in the folder, if saved in another form; with a `tokenizer`, the card shows how both models
    continue a text; `accuracies` are those of both on the same questions, before and after.
    """
    kept = {}
    if isinstance(outcome, Compressed):
        whole = {site.block: unit_count(before, site) for site in sites(before)}
        kept = {block: f"{count} of {whole[block]} hidden units" for block, count in outcome.units.items()}
    source = before.name_or_path
    return _render(
        after,
        outcome=outcome,
        name=Path(name).name if Path(name).is_dir() else name,  # no path of this machine
        kind=type(before).__name__,
        base_model=source if source and not Path(source).exists() else None,
        affine=isinstance(outcome, Plan),
        blocks=len(sites(before)),
        max_dppl=max_dppl,
        max_parameters=max_parameters,
        rows=rows,
        held_out=int(rows.test.sum()),
        fitted_on=int((~rows.test).sum()),
        parameters=[model.num_parameters() for model in (before, after)],
        in_blocks=[ffn_parameters(model) for model in (before, after)],
        corpus=Path(rows.corpus).name,
        threads=torch.get_num_threads(),
        layers=_layers(after, kept, already=set(replaced(before.config))),
        written=written or after,
        sample=None if tokenizer is None or is_on_disk(before) else _sample(before, after, rows, tokenizer),
        continued=CONTINUED,
        accuracies=accuracies,
    )


def _render(model: PreTrainedModel, written: PreTrainedModel, **shown: Any) -> str:
    """The template, with what every card says of the model in the folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 Markdown
    )
    config = model.config
    in_folder = written.num_parameters()
    return environment.get_template("card.md.jinja").render(
        ours=OURS,
        dtype=str(model.dtype).removeprefix("torch."),
        maps=replaced(config),
        alone=not (replaced(config) or units_left(config)),
        decilm=written.config.model_type == DeciLMConfig.model_type,
        in_folder=f"{in_folder:,}",
        padded=in_folder > model.num_parameters(),
        **shown,
    )


def _sample(
    before: PreTrainedModel, after: PreTrainedModel, rows: TokenRows, tokenizer: PreTrainedTokenizerBase
) -> dict[str, str]:
    """Continue the beginning of the first held-out sequence with each model, by greedy decoding."""
    beginning = rows.ids[rows.test][:1, :BEGINNING]
    texts = {"The beginning": tokenizer.decode(beginning[0])}
    for label, model in (("The whole model", before), ("The smaller one", after)):
        ids = beginning.to(model.device)
        mask = torch.ones_like(ids)
        gone_on = model.generate(ids, attention_mask=mask, max_new_tokens=CONTINUED, do_sample=False, pad_token_id=0)
        texts[label] = tokenizer.decode(gone_on[0, ids.shape[1] :])
    return texts


def _layers(model: PreTrainedModel, kept: dict[int, str], already: set[int]) -> dict[int, str]:
    """Block → what it consists of."""
    ranks = replaced(model.config)
    layers = {}
    for site in sites(model):
        block = site.block
        if block in ranks:
            rank = ranks[block]
            layers[block] = "one linear layer" if rank is None else f"two linear layers, {rank} wide between"
            if block in already:
                layers[block] += ", replaced before"
        else:
            layers[block] = kept.get(block, "as the config says")
    return layers
