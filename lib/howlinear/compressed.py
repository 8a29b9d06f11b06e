"""A compressed model and its folder: some FFNs are linear layers for good, and a card says what that cost.

The folder is an ordinary Hugging Face one (config, safetensors, tokenizer, README.md). `config.json` carries
`"howlinear": {"replaced": {block: rank}}`, from which `models.load_model` builds the same modules again; a rank of
null is one full layer. Which blocks to replace, and by what, is `compression`'s matter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from howlinear.corpora import TokenRows
from howlinear.errors import InputError, SourceError
from howlinear.models import Site, copy_of, linear_layers, replaced, sites, swap, width_of
from howlinear.paths import folder_aside, written_aside
from howlinear.perplexity import Change
from howlinear.sources import seal


@runtime_checkable
class Plan(Protocol):
    """What a card needs to know; `compression.Plan` is one.

    Attributes:
        maps: block → the map that replaced it.
        base: held-out perplexity before.
        perplexity: after.
        delta: the change with its interval.
    """

    maps: Mapping[int, Any]
    base: float
    perplexity: float
    delta: Change


def replace(model: PreTrainedModel, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> PreTrainedModel:
    """A copy of a model with maps in the place of FFN blocks, for good; `swap` is the same for a while.

    The copy is an ordinary `transformers` model: it generates, trains and saves, and shares no memory with the
    original. Blocks replaced before stay as they are unless they are given again.

    Args:
        model: the model; left as it was.
        maps: block → an `AffineMap`, a `Linear(d, d)`, a pair `Sequential(Linear(d, r, bias=False), Linear(r, d))`, or
            an object whose `module()` is one of these.

    Returns:
        The copy, its replaced blocks noted in `config.howlinear`.

    Raises:
        InputError: no maps, an unknown block, a map that is not linear or not of its width, or a model over devices.
    """
    blocks = [site.block for site in sites(model, list(maps))]  # before anything is copied
    given = {block: maps[block].module() if hasattr(maps[block], "module") else maps[block] for block in blocks}
    with swap(model, {block: copy.deepcopy(map_) for block, map_ in given.items()}):  # one for two blocks becomes two
        ranks = {site.block: _rank(site, width_of(model)) for site in sites(model, blocks)}
        copied = copy_of(model)  # without the FFNs that go
    for site in sites(copied, blocks):
        site.output.to(model.device, model.dtype).requires_grad_(True)
    noted = replaced(model.config) | ranks
    copied.config.howlinear = {"replaced": {str(block): noted[block] for block in sorted(noted)}}
    return copied


def _rank(site: Site, width: int) -> int | None:
    """The rank to note for a linear layer or a pair of them."""
    module = site.ffn
    rank = getattr(module[0], "out_features", None) if isinstance(module, nn.Sequential) and len(module) else None
    with torch.device("meta"):
        expected = linear_layers(width, rank)
    if _shape(module) != _shape(expected):
        raise InputError(
            f"block {site.block}: this {type(module).__name__} cannot be kept in a model folder; give an affine map, "
            f"Linear({width}, {width}) or Sequential(Linear({width}, r, bias=False), Linear(r, {width}))"
        )
    return rank


def _shape(module: nn.Module) -> tuple[list[type], dict[str, torch.Size]]:
    """What a module is made of."""
    return [type(part) for part in module.modules()], {name: p.shape for name, p in module.named_parameters()}


def vacant(folder: Path | str, force: bool = False) -> Path:
    """The folder to write to, if it may be written.

    With `force`, an empty folder or one that holds a compressed model may be replaced; anything else never is.

    Raises:
        SourceError: something is there, or nothing can be put there.
    """
    folder = Path(folder).resolve()
    if folder.is_dir():
        if not force:
            raise SourceError(f"{folder} exists: choose another folder, or add --force to replace it")
        if any(folder.iterdir()) and not _compressed(folder):
            raise SourceError(f"{folder} holds no compressed model, so --force leaves it alone: choose another folder")
        return folder
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise SourceError(f"cannot write {folder}: {there} is a file; choose another folder")
    return folder


def _compressed(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(replaced(AutoConfig.from_pretrained(folder, trust_remote_code=False)))
    return False


def save(
    model: PreTrainedModel,
    folder: Path | str,
    card: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    force: bool = False,
) -> Path:
    """Write a model folder whole or not at all: aside first, then renamed.

    Args:
        model: what `replace` returned; float32 weights give the same logits, bit for bit, when they are loaded again.
        folder: where to.
        card: README.md, see `card_of`.
        tokenizer: to lie beside the weights; None for a model of token ids alone.
        force: replace a compressed model that is there, see `vacant`.

    Returns:
        The folder.

    Raises:
        SourceError: something is there, or it cannot be written.
    """
    folder = vacant(folder, force)
    with folder_aside(folder) as new:
        model.save_pretrained(new)
        if tokenizer is not None:
            tokenizer.save_pretrained(new)
        with written_aside(new / "README.md") as aside:
            aside.write_text(card, encoding="utf-8")
        seal(new)
        for path in new.iterdir():  # safetensors writes for its owner alone
            path.chmod((new / "README.md").stat().st_mode)
    return folder


def card_of(name: str, before: PreTrainedModel, after: PreTrainedModel, rows: TokenRows, plan: Plan) -> str:
    """The card of a compressed model: what was replaced, on which text, and what it cost.

    Args:
        name: what the model before is called: a Hub id, an embedded model or a folder.
        before: the model before.
        after: what `replace` made of it.
        rows: the text; the maps were fitted on one side, perplexity was measured on the other.
        plan: what was replaced and what it cost.
    """
    source, models, ranks, change = before.name_or_path, (before, after), replaced(after.config), plan.delta
    inside = [sum(p.numel() for site in sites(model) for p in site.parameters()) for model in models]
    table = [
        ("parameters", *(f"{model.num_parameters():,}" for model in models)),
        ("of these in feed-forward blocks", *(f"{count:,}" for count in inside)),
        (f"perplexity on held-out `{Path(rows.corpus).name}`", f"{plan.base:.2f}", f"{plan.perplexity:.2f}"),
    ]
    layers = "\n".join(
        f"| {block} | {'one linear layer' if rank is None else f'two linear layers, {rank} wide between'} | "
        f"{'now' if block in plan.maps else 'before'} |"
        for block, rank in sorted(ranks.items())
    )
    return _CARD.format(
        front=f"base_model: {source}\n" if source and not Path(source).is_dir() else "",
        name=Path(name).name if Path(name).is_dir() else name,
        kind=type(before).__name__,
        dtype=str(after.dtype).removeprefix("torch."),
        count=len(ranks),
        blocks=len(sites(before)),
        table="\n".join(f"| {' | '.join(line)} |" for line in table),
        delta=f"{change.delta:+.2f} (95 % interval {change.low:+.2f} to {change.high:+.2f}, paired over sequences)",
        test=int(rows.test.sum()),
        train=int((~rows.test).sum()),
        seq_len=rows.ids.shape[1],
        sha256=rows.sha256,
        layers=layers,
    )


_CARD = """---
library_name: howlinear
{front}---
# {name}, compressed

{name} ({kind}, {dtype}) with {count} of its {blocks} feed-forward blocks replaced by affine maps, fitted in
closed form; nothing else changed, nothing was fine-tuned.

| | before | after |
|---|---|---|
{table}

Perplexity changes by {delta},
on {test} held-out sequences of {seq_len} tokens, which also said when to stop; blocks were chosen and maps fitted on
{train} others. SHA-256 of the ids and their split: `{sha256}`.

| block | now holds | replaced |
|---|---|---|
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
