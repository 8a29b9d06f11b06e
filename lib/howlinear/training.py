"""One training loop: AdamW with warm-up and cosine, checkpoints, resume, and R²_lin on the way.

The recipe of small GPTs (cf. nanoGPT). What a step sees depends on seed and step alone, so a run that was
stopped ends with the weights of one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear import paths
from howlinear.corpora import TokenRows
from howlinear.errors import InputError, SourceError
from howlinear.measure import measure


@dataclass(frozen=True)
class Recipe:
    """How a mini is trained; 2,000 steps of 4,096 tokens are 8.2 million tokens."""

    steps: int = 2_000
    batch: int = 32
    micro_batch: int = 16
    seq_len: int = 128
    peak: float = 2e-3
    warm_up: int = 100
    weight_decay: float = 0.1
    seed: int = 0
    stream: int = 5_000_000  # training tokens at most per corpus
    bfloat16: bool = True  # autocast; on processors without matrix units for it, float32 is faster


def batch_at(stream: dict[str, Tensor], step: int, recipe: Recipe) -> Int64[Tensor, "batch seq_len"]:
    """The sequences of a step: a function of seed and step alone, so that a resumed run sees the same."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    share = recipe.batch // len(stream)
    rows = []
    for name, ids in stream.items():
        if len(ids) <= recipe.seq_len:
            raise InputError(f"training text {name} holds {len(ids)} tokens, too few for sequences of {recipe.seq_len}")
        starts = torch.randint(len(ids) - recipe.seq_len, (share,), generator=generator)
        rows.append(ids[starts[:, None] + torch.arange(recipe.seq_len)])
    return torch.cat(rows)


def rate_at(step: int, recipe: Recipe) -> float:
    """Learning rate: linear warm-up, then a cosine to a tenth of the peak."""
    if step < recipe.warm_up:
        return recipe.peak * (step + 1) / recipe.warm_up
    done = (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up)
    return recipe.peak * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def log_spaced(steps: int) -> list[int]:
    """Steps 0, 1, 2, 3, 4, 6, 8, 11, …, `steps`: two to a doubling."""
    halves = range(2 * max(1, steps).bit_length())
    return sorted({0, steps, *(step for half in halves if (step := round(2 ** (half / 2))) < steps)})


def train(
    model: PreTrainedModel,
    stream: dict[str, Int64[Tensor, " n"]],
    rows: TokenRows,
    recipe: Recipe,
    checkpoint: Path | None = None,
    compiled: bool = False,
    beside: Callable[[PreTrainedModel], dict] | None = None,
) -> list[dict]:
    """Train a model in place, or go on from `checkpoint`, and measure it at log-spaced steps.

    Args:
        model: on the device to train on.
        stream: corpus → one long row of token ids; every corpus gives the same share of a batch.
        rows: held-out rows to measure on.
        recipe: how.
        checkpoint: where to keep the state every hundred steps; none by default.
        compiled: let `torch.compile` fuse the step; on a CPU it needs a C++ compiler.
        beside: what else to record of the model whenever it is measured.

    Returns:
        The trajectory: per measured step its training loss (smoothed), held-out perplexity and R²_lin.

    Raises:
        InputError: the checkpoint was made with another recipe, or a training text is too short.
        SourceError: the checkpoint is damaged, or cannot be written.
    """
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.peak, betas=(0.9, 0.95), fused=True)
    start, trajectory, smooth = 0, [], None
    if checkpoint is not None and checkpoint.exists():
        saved = _read(checkpoint, model.device)
        if saved["recipe"] != asdict(recipe):
            raise InputError(f"{checkpoint} was made with another recipe: remove it to start anew, or use that recipe")
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        start, trajectory, smooth = saved["step"], saved["trajectory"], saved["loss"]

    def loss_of(ids: Tensor) -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=recipe.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    step_loss = torch.compile(loss_of) if compiled else loss_of
    measured = set(log_spaced(recipe.steps))
    bar = tqdm(range(start, recipe.steps + 1), initial=start, total=recipe.steps, unit="step", mininterval=1)
    for step in bar:
        if step in measured and (not trajectory or trajectory[-1]["step"] < step):
            seen = _snapshot(model.eval(), rows, step, smooth)
            trajectory.append(seen | (beside(model) if beside else {}))
        if checkpoint is not None and (step % 100 == 0 or step == recipe.steps):
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "recipe": asdict(recipe)}
            _write(checkpoint, state | {"step": step, "trajectory": trajectory, "loss": smooth})
        if step == recipe.steps:
            break
        model.train()
        ids, total = batch_at(stream, step, recipe).to(model.device), 0.0
        for part in ids.split(recipe.micro_batch):
            loss = step_loss(part) * (len(part) / len(ids))
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, recipe)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        smooth = total if smooth is None else 0.95 * smooth + 0.05 * total
        bar.set_postfix(loss=f"{smooth:.3f}", refresh=False)  # a notebook's reader may be slower than the steps
    model.eval()
    return trajectory


def _write(checkpoint: Path, state: dict) -> None:
    with paths.written_aside(checkpoint) as aside:
        try:
            torch.save(state, aside)
        except RuntimeError as error:  # how torch reports a full disk
            raise paths.unwritten(checkpoint, error) from error


def _read(checkpoint: Path, device: torch.device) -> dict:
    try:
        return torch.load(checkpoint, map_location=device, weights_only=True)
    except (OSError, RuntimeError, KeyError, EOFError, UnpicklingError) as error:
        raise SourceError(f"cannot read checkpoint {checkpoint}: it is damaged; remove it to start anew") from error


def _snapshot(model: PreTrainedModel, rows: TokenRows, step: int, loss: float | None) -> dict:
    profile = measure(model, rows)
    return {"step": step, "loss": loss, "perplexity": profile.perplexity} | profile.curves
