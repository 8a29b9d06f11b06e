"""One training loop: AdamW with warm-up and cosine, checkpoints, resume, and R²_lin on the way.

The recipe of small GPTs (cf. nanoGPT, `train.py`). The batch of a step depends on seed and step alone, so a resumed run
ends with the weights of an uninterrupted one.

The trajectories that come with the project (`models/*/trajectory.json`, `models/twins`) were measured on documents that
were drawn file by file and split one by one; a new training is measured on rows as they are drawn and split now, by
folder (`text.documents`). The weights do not depend on this.
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

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic
from howlinear.instrument.measure import measure
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Recipe:
    """Settings for training a mini; 2,000 steps of 4,096 tokens are 8.2 million tokens."""

    steps: int = 2_000
    batch: int = 32
    micro_batch: int = 16
    seq_len: int = 128
    peak: float = 2e-3
    warm_up: int = 100
    weight_decay: float = 0.1
    seed: int = 0
    stream: int = 5_000_000  # most training tokens per corpus
    bfloat16: bool = True  # autocast; on processors without matrix units for it, float32 is faster
    dtype: str = "float32"  # of weights, gradients and loss; in float64, runs on two processors agree step by step
    first_token: int | None = None  # begins every sequence, so that attention has a place to rest


def train(
    model: PreTrainedModel,
    stream: dict[str, Int64[Tensor, " n"]],
    rows: TokenRows,
    recipe: Recipe,
    checkpoint: Path | None = None,
    compiled: bool = False,
    beside: Callable[[PreTrainedModel], dict] | None = None,
) -> list[dict]:
    """Train a model in place, on its device, or resume from `checkpoint`, and measure it at log-spaced steps.

    Every corpus of the stream, one long row of token ids, gives the same share of a batch. The state is written to the
    checkpoint every hundred steps. `compiled` lets `torch.compile` fuse the step, which on a CPU needs a C++ compiler;
    `beside` returns what else to record of the model whenever it is measured. The returned trajectory holds, per
    measured step, the training loss (smoothed), held-out perplexity and R²_lin.
    """
    model.to(getattr(torch, recipe.dtype))
    optimiser = adamw(model, recipe)
    start = 0
    trajectory: list[dict] = []
    smooth_loss = None
    if checkpoint is not None and checkpoint.exists():
        saved = _read(checkpoint, model.device)
        if Recipe(**saved["recipe"]) != recipe:
            raise InputError(f"{checkpoint} was made with another recipe: remove it to start anew, or use that recipe")
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        start, trajectory, smooth_loss = saved["step"], saved["trajectory"], saved["loss"]

    step_loss = loss_of(model, recipe, compiled)
    measured_steps = set(log_spaced(recipe.steps))
    # the front end of a notebook may be slower than the steps, so the bar is not drawn at each step
    bar = tqdm(range(start, recipe.steps + 1), initial=start, total=recipe.steps, unit="step", mininterval=1)
    for step in bar:
        recorded = bool(trajectory) and trajectory[-1]["step"] >= step
        if step in measured_steps and not recorded:
            snapshot = _snapshot(model.eval(), rows, step, smooth_loss)
            if beside is not None:
                snapshot |= beside(model)
            trajectory.append(snapshot)
        if checkpoint is not None and (step % 100 == 0 or step == recipe.steps):
            state = {
                "model": model.state_dict(),
                "optimiser": optimiser.state_dict(),
                "recipe": asdict(recipe),
                "step": step,
                "trajectory": trajectory,
                "loss": smooth_loss,
            }
            _write(checkpoint, state)
        if step == recipe.steps:
            break

        batch_loss = take_step(model, optimiser, step_loss, stream, step, recipe)
        smooth_loss = batch_loss if smooth_loss is None else 0.95 * smooth_loss + 0.05 * batch_loss
        bar.set_postfix(loss=f"{smooth_loss:.3f}", refresh=False)
    model.eval()
    return trajectory


def loss_of(model: PreTrainedModel, recipe: Recipe, compiled: bool = False) -> Callable[[Tensor], Tensor]:
    """Build the loss: token ids, shape (batch, seq_len) → mean next-token cross-entropy, in the recipe's precision."""
    dtype = getattr(torch, recipe.dtype)
    bfloat16 = recipe.bfloat16

    def loss(ids: Tensor) -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bfloat16):
            # not through `models.forward`, which runs compiled code uncompiled
            predictions = model(input_ids=ids, use_cache=False).logits[:, :-1]
        predictions = predictions.to(dtype)  # autocast leaves them in bfloat16
        return cross_entropy(predictions.flatten(0, 1), ids[:, 1:].flatten())

    return torch.compile(loss) if compiled else loss


def take_step(
    model: PreTrainedModel,
    optimiser: torch.optim.AdamW,
    step_loss: Callable[[Tensor], Tensor],
    stream: dict[str, Tensor],
    step: int,
    recipe: Recipe,
) -> float:
    """Take one step of AdamW at this step's learning rate; return the loss of its batch."""
    # gradient of the batch, one micro batch at a time
    model.train()
    ids = batch_at(stream, step, recipe).to(model.device)
    losses = []
    for micro_batch in ids.split(recipe.micro_batch):
        share = len(micro_batch) / len(ids)
        loss = step_loss(micro_batch) * share
        loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    for group in optimiser.param_groups:
        group["lr"] = rate_at(step, recipe)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return sum(float(loss) for loss in losses)  # waits for a GPU once, after the whole step was queued


def batch_at(stream: dict[str, Tensor], step: int, recipe: Recipe) -> Int64[Tensor, "batch seq_len"]:
    """Draw the sequences of a step, a function of seed and step alone, so that a resumed run sees the same."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    sequences_each = recipe.batch // len(stream)
    opening = [] if recipe.first_token is None else [recipe.first_token]
    length = recipe.seq_len - len(opening)
    batch = []
    for name, ids in stream.items():
        if len(ids) <= recipe.seq_len:
            raise InputError(f"training text {name} holds {len(ids)} tokens, too few for sequences of {recipe.seq_len}")
        starts = torch.randint(len(ids) - recipe.seq_len, (sequences_each,), generator=generator)
        batch.append(ids[starts[:, None] + torch.arange(length)])
    ids = torch.cat(batch)
    return torch.cat([torch.tensor(opening, dtype=ids.dtype).expand(len(ids), -1), ids], 1)


def rate_at(step: int, recipe: Recipe) -> float:
    """Compute the learning rate: linear warm-up, then a cosine to a tenth of the peak."""
    if step < recipe.warm_up:
        return recipe.peak * (step + 1) / recipe.warm_up
    progress = (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up)
    return recipe.peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def log_spaced(steps: int) -> list[int]:
    """List the steps 0, 1, 2, 3, 4, 6, 8, 11, …, `steps`: two per doubling."""
    spaced = {round(2 ** (half_doubling / 2)) for half_doubling in range(2 * max(1, steps).bit_length())}
    return sorted({0, steps} | {step for step in spaced if step < steps})


def adamw(model: PreTrainedModel, recipe: Recipe) -> torch.optim.AdamW:
    """Build an AdamW with weight decay on matrices, but not on biases and the weights of norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.peak, betas=(0.9, 0.95), fused=True)


def _write(checkpoint: Path, state: dict) -> None:
    with atomic.written_aside(checkpoint) as aside:
        try:
            torch.save(state, aside)
        except RuntimeError as error:  # how torch reports a full disk
            raise atomic.unwritten(checkpoint, error) from error


def _read(checkpoint: Path, device: torch.device) -> dict:
    try:
        return torch.load(checkpoint, map_location=device, weights_only=True)
    except (OSError, RuntimeError, KeyError, EOFError, UnpicklingError) as error:
        raise SourceError(f"cannot read checkpoint {checkpoint}: it is damaged; remove it to start anew") from error


def _snapshot(model: PreTrainedModel, rows: TokenRows, step: int, loss: float | None) -> dict:
    """Measure a step for the trajectory, with the number of massive rows and R²_lin of all other rows."""
    profile = measure(model, rows)
    return {
        "step": step,
        "loss": loss,
        "perplexity": profile.perplexity,
        **profile.curves,
        "massive_rows": [answer.massive_rows for answer in profile.solved.values()],
        "r2_ordinary": [answer.ordinary.r2 for answer in profile.solved.values()],
    }
