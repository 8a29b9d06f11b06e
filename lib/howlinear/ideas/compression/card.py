"""The card of a compressed model's folder, README.md: what was replaced, on which text, what it cost, how to load it.

The text is in `card.md.jinja`; this module gathers the numbers that it shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.ideas.compression.compress import Compressed
from howlinear.ideas.compression.greedy import Plan
from howlinear.ideas.compression.output_folder import OURS
from howlinear.ideas.compression.reduced_rank import ffn_parameters
from howlinear.instrument.accuracy import Accuracy
from howlinear.models.decilm import DeciLMConfig
from howlinear.models.ffn_sites import sites
from howlinear.models.replace import replaced, units_left
from howlinear.models.shards import is_on_disk
from howlinear.models.units import unit_count
from howlinear.text.rows import TokenRows

BEGINNING = 24
"""Tokens of a held-out sequence that both models continue."""

CONTINUED = 40
"""Tokens that each model adds."""


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
