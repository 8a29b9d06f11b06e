"""A compressed model and its folder: FFNs are linear layers or have fewer units for good; a card says what that cost.

The folder is an ordinary Hugging Face one (config, safetensors, tokenizer, README.md). `config.json` says what stands
in which block, from which `load.load_model` builds the same modules again (`models.replace`). Which blocks to replace,
and by what, is the matter of `greedy` and `own_units`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd
from torch import get_num_threads
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.errors import SourceError
from howlinear.files.atomic import folder_aside, written_aside
from howlinear.ideas.compression.greedy import Plan
from howlinear.ideas.compression.own_units import Compressed
from howlinear.ideas.compression.reduced_rank import ffn_parameters
from howlinear.ideas.compression.vacant import OURS, vacant
from howlinear.models.ffn_sites import sites
from howlinear.models.load import bars, tokenizer_of
from howlinear.models.replace import lines_beside, replaced, units_left
from howlinear.models.seals import seal
from howlinear.models.units import unit_count
from howlinear.text.rows import TokenRows


def save(
    model: PreTrainedModel,
    folder: Path | str,
    card: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    force: bool = False,
) -> Path:
    """Write a model folder whole or not at all: aside first, then renamed.

    Args:
        model: what `replace` or `compress` made; float32 weights give the same logits, bit for bit, when they are
            loaded again.
        folder: where to.
        card: README.md, see `card_of` and `unit_card`; by default what the model itself tells (`plain_card`).
        tokenizer: to lie beside the weights; by default the model's own, if it has one.
        force: replace a compressed model that is there, see `vacant`.

    Returns:
        The folder.

    Raises:
        SourceError: something is there, or it cannot be written.
    """
    folder = vacant(folder, force)
    if card is None:
        card = plain_card(model)
    if tokenizer is None:
        with suppress(SourceError):  # a model of token ids alone
            tokenizer = tokenizer_of(model)
    with folder_aside(folder) as new, bars(False):
        model.save_pretrained(new)
        if tokenizer is not None:
            tokenizer.save_pretrained(new)
        with written_aside(new / "README.md") as aside:
            aside.write_text(card, encoding="utf-8")
        seal(new)
        for path in new.iterdir():  # safetensors writes for its owner alone
            path.chmod((new / "README.md").stat().st_mode)
    return folder


def plain_card(model: PreTrainedModel) -> str:
    """The card of a model of which nothing is known but itself: what stands in its feed-forward blocks.

    Args:
        model: what `replace` or `compress` made, or any other.
    """
    ranks, counts, lines = replaced(model.config), units_left(model.config), lines_beside(model.config)
    rows = []
    for site in sites(model):
        if site.block in ranks:
            holds = _layer(ranks[site.block])
        elif site.block in counts:
            holds = f"{counts[site.block]} hidden units"
        else:
            holds = "as the config says"
        if site.block in lines:
            holds += f", beside them {_layer(lines[site.block])}"
        rows.append({"block": site.block, "feed-forward": holds})
    alone = _alone(model)
    return _PLAIN_CARD.format(
        ours=OURS,
        library="transformers" if alone else "howlinear",
        kind=type(model).__name__,
        dtype=str(model.dtype).removeprefix("torch."),
        parameters=f"{model.num_parameters():,}",
        in_blocks=f"{ffn_parameters(model):,}",
        layers=_markdown(pd.DataFrame(rows)),
        load=_LOAD_ALONE if alone else _LOADOURS,
    )


def card_of(name: str, before: PreTrainedModel, after: PreTrainedModel, rows: TokenRows, plan: Plan) -> str:
    """The card of a compressed model: what was replaced, on which text, and what it cost.

    Args:
        name: what the model before is called: a Hub id, an embedded model or a folder.
        before: the model before.
        after: what `replace` made of it.
        rows: the text; the maps were fitted on one side, perplexity was measured on the other.
        plan: what was replaced and what it cost.
    """
    ranks = replaced(after.config)
    return _CARD.format(
        **_said_of_both(name, before, after, rows, plan),
        count=len(ranks),
        blocks=len(sites(before)),
        layers=_layers(ranks, plan),
    )


def unit_card(name: str, before: PreTrainedModel, compressed: Compressed, rows: TokenRows, asked: str) -> str:
    """The card of a model with fewer hidden units: what each block keeps, on which text, and what that cost.

    Args:
        name: what the model before is called: a Hub id, an embedded model or a folder.
        before: the model before.
        compressed: what `compress` made of it.
        rows: the text; units were chosen on one side, perplexity was measured on the other.
        asked: the budget that was asked for, see `AT_MOST` and `WITHIN`.
    """
    after = compressed.model
    alone = _alone(after)
    whole = {site.block: unit_count(before, site) for site in sites(before)}
    lines = lines_beside(after.config)
    kept = []
    for block, count in compressed.units.items():
        row = {"block": block, "hidden units": f"{count} of {whole[block]}"}
        if lines:
            row["beside them"] = _layer(lines[block]) if block in lines else ""
        kept.append(row)
    return _UNIT_CARD.format(
        ours=OURS,
        library="transformers" if alone else "howlinear",
        **_said_of_both(name, before, after, rows, compressed),
        lines=", in some of them a linear map of the input beside them" if lines else "",
        asked=asked,
        outlook=compressed.outlook,
        layers=_markdown(pd.DataFrame(kept)),
        load=_LOAD_ALONE if alone else _LOADOURS,
    )


def _alone(model: PreTrainedModel) -> bool:
    """Whether `transformers` alone builds a model as it is."""
    config = model.config
    return not (replaced(config) or units_left(config) or lines_beside(config))


def _said_of_both(
    name: str, before: PreTrainedModel, after: PreTrainedModel, rows: TokenRows, outcome: Plan | Compressed
) -> dict[str, object]:
    """What every card says: of which model it is, how large it is, what it cost, and on which text."""
    source = before.name_or_path
    on_the_hub = bool(source) and not Path(source).exists()
    delta = outcome.delta
    return {
        "front": f"base_model: {source}\n" if on_the_hub else "",
        "name": Path(name).name if Path(name).is_dir() else name,  # no path of this machine
        "kind": type(before).__name__,
        "dtype": str(after.dtype).removeprefix("torch."),
        "table": _sizes(before, after, Path(rows.corpus).name, outcome),
        "delta": f"{delta.delta:+.2f} (95 % interval {delta.low:+.2f} to {delta.high:+.2f}, paired over documents)",
        "test": int(rows.test.sum()),
        "train": int((~rows.test).sum()),
        "seq_len": rows.ids.shape[1],
        "sha256": rows.sha256,
    }


def _sizes(before: PreTrainedModel, after: PreTrainedModel, corpus: str, plan: Plan | Compressed) -> str:
    """The first table: parameters, perplexity and speed, before and after."""
    perplexity = f"perplexity on held-out `{corpus}`"
    columns = {}
    speed = f"tokens per second on it (threads: {get_num_threads()})"
    models = (before, after)
    values = (plan.base, plan.perplexity)
    for label, model, value, tokens in zip(("before", "after"), models, values, plan.speeds, strict=True):
        columns[label] = {
            "parameters": f"{model.num_parameters():,}",
            "of these in feed-forward blocks": f"{ffn_parameters(model):,}",
            perplexity: f"{value:.2f}",
            speed: f"{tokens:,.0f}",
        }
    return _markdown(pd.DataFrame(columns).rename_axis("").reset_index())


def _layers(ranks: Mapping[int, int | None], plan: Plan) -> str:
    """The second table: what stands in each replaced block, and since when."""
    rows = []
    for block, rank in sorted(ranks.items()):
        replaced_when = "now" if block in plan.maps else "before"
        rows.append({"block": block, "now holds": _layer(rank), "replaced": replaced_when})
    return _markdown(pd.DataFrame(rows))


def _layer(rank: int | None) -> str:
    """A line, as it stands in a block."""
    return "one linear layer" if rank is None else f"two linear layers, {rank} wide between"


def _markdown(table: pd.DataFrame) -> str:
    """A table as its cells say it: no number is read or rounded again."""
    return table.to_markdown(index=False, tablefmt="github", disable_numparse=True)


_CARD = """---
library_name: howlinear
{front}---
# {name}, compressed

{name} ({kind}, {dtype}) with {count} of its {blocks} feed-forward blocks replaced by affine maps, fitted in
closed form; nothing else changed, nothing was fine-tuned.

{table}

Perplexity changes by {delta},
on {test} held-out sequences of {seq_len} tokens, which also said when to stop; blocks were chosen and maps fitted on
{train} others. SHA-256 of the ids and their split: `{sha256}`.

{layers}

**Load** it with howlinear, which reads from `config.json` what was replaced; from then on it is an ordinary
`transformers` model.

```python
import howlinear as hl

model = hl.load_model("path/to/this/folder")
```

`AutoModelForCausalLM.from_pretrained` alone does not know of the replaced blocks: it builds them as they were and draws
their weights **at random**.

**Licence.** The one of {name}.
"""

AT_MOST = "it has at most {:g} of its parameters"
WITHIN = "its perplexity on the held-out text below rises by at most {:g}, which also said when to stop"
"""What a card says that was asked for."""

_UNIT_CARD = """{ours}library_name: {library}
{front}---
# {name}, compressed

{name} ({kind}, {dtype}) with fewer hidden units in its feed-forward blocks{lines}, those that stay read out anew in
closed form, so that {asked}; nothing else changed, nothing was trained.

{table}

Perplexity changes by {delta},
on {test} held-out sequences of {seq_len} tokens. Units were chosen and read out anew on {train} others: on text of
another kind it may cost more. {outlook} SHA-256 of the ids and their split: `{sha256}`.

{layers}

{load}

**Licence.** The one of {name}.
"""

_PLAIN_CARD = """{ours}library_name: {library}
---
# {kind}, saved by howlinear

{kind} ({dtype}) of {parameters} parameters, {in_blocks} of them in feed-forward blocks. What it costs beside the model
that it was made from is not known here: `howlinear compress` measures that and writes it into the card.

{layers}

{load}

**Licence.** The one of the model that it was made from.
"""

_LOAD_ALONE = """**Load** it with `transformers` alone: every block keeps as many units, and the config says how many.

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
```"""

_LOADOURS = """**Load** it with howlinear, which reads from `config.json` what stands in each block; from then
on it is an ordinary `transformers` model.

```python
import howlinear as hl

model = hl.load_model("path/to/this/folder")
```

`AutoModelForCausalLM.from_pretrained` alone does not know of blocks that differ, and refuses their weights."""
