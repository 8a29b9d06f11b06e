"""Train several small models at once on one GPU, and record how massive activations grow in them.

What brings an attention sink forth (Gu et al. 2024, "When attention sink emerges in language models") is tried in a few
recipes beside one another: thousands of steps, high rates, weight decay, a fixed first token, longer sequences. Each
runs in a process of its own, so that they fill the GPU together. The step that follows is planned from the time that a
step takes, so that all end in time; what they have is collected again and again, so that no end comes too early.

    python tools/grow_sink.py DATA OUT --minutes 8

DATA holds `stream.safetensors` (corpus → training tokens) and `rows.safetensors` (held-out rows: ids, test, fold). OUT
gets `sinks.json`, a trajectory a recipe, and `weights-0.safetensors` and so on: the last weights of each recipe and
some on the way of the recipe with the clearest sink, named `recipe/step/parameter`, in float16.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.models.ffn_sites import sites
from howlinear.text.rows import TokenRows
from howlinear.training import loop
from howlinear.training.loop import Recipe, adamw, log_spaced, loss_of, take_step, train
from howlinear.training.minis import new_model

LONG = Recipe(batch=64, micro_batch=64, seq_len=256, warm_up=200, first_token=0)
CANDIDATES = {
    "llama-3e-3": ("mini-llama", replace(LONG, peak=3e-3)),
    "llama-8e-3": ("mini-llama", replace(LONG, peak=8e-3)),
    "llama-decay": ("mini-llama", replace(LONG, peak=3e-3, weight_decay=0.5)),
    "llama-128": ("mini-llama", replace(LONG, peak=3e-3, seq_len=128, batch=128, micro_batch=128)),
    "gpt2-3e-3": ("mini-gpt2", replace(LONG, peak=3e-3)),
}
WATCHED = 64  # held-out sequences that the record of massive activations is made of
FILE = 15 * 2**20  # bytes of a file at most
FEWEST = 60  # steps, however little time is left


# --- What is recorded of a model beside its trajectory


@torch.no_grad()
def massive(model: PreTrainedModel, ids: Tensor) -> dict[str, list[float]]:
    """How massive a few activations are, and how much attention rests on position 0; a number a block.

    Returns:
        written: the largest norm that an FFN writes, in median norms, and written_first, the norm at position 0;
        residual: the largest entry of the residual stream before each block, in median entries (Sun et al. 2024);
        attention: the weight on position 0, mean over heads and queries, and attention_most, that of the highest head.
    """
    watched = deepcopy(model).eval()
    norms: list[Tensor] = []

    def listen(_module, _inputs, output):
        norms.append(torch.linalg.vector_norm(output.float(), dim=-1))

    hooks = [site.output.register_forward_hook(listen) for site in sites(watched)]
    watched(input_ids=ids.to(model.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    record = {
        "written": [float(norm.max() / norm.median()) for norm in norms],
        "written_first": [float(norm[:, 0].median() / norm.median()) for norm in norms],
    }
    try:
        watched.set_attn_implementation("eager")  # the one that gives its weights back
        seen = watched(
            input_ids=ids.to(model.device), use_cache=False, output_hidden_states=True, output_attentions=True
        )
        residual = [state.float().abs() for state in seen.hidden_states[: len(norms)]]
        on_first = [weights.float()[..., 1:, 0].mean((0, 2)) for weights in seen.attentions]
        record |= {
            "residual": [float(entries.max() / entries.median()) for entries in residual],
            "attention": [float(heads.mean()) for heads in on_first],
            "attention_most": [float(heads.max()) for heads in on_first],
        }
    except Exception:  # the training is worth more than this
        traceback.print_exc()
    return record


# --- One recipe, in a process of its own


def grow(name: str, options: argparse.Namespace) -> None:
    """Train one candidate until the time is over; its checkpoint and its snapshots lie in the work folder."""
    torch.set_num_threads(options.threads)
    family, recipe = CANDIDATES[name]
    if options.tiny:
        recipe = replace(recipe, batch=4, micro_batch=4, warm_up=10)
    stream = {corpus: ids.long() for corpus, ids in load_file(options.data / "stream.safetensors").items()}
    rows = held_out_rows(options.data)
    size = {"blocks": 2, "width": 32} if options.tiny else {}
    model = new_model(family, recipe.seed, context=recipe.seq_len, **size).to(options.device)
    watched_ids = rows.ids[rows.test][:WATCHED]
    work = options.work / name
    work.mkdir(parents=True, exist_ok=True)

    say(name, "measuring")
    started = time.time()
    measurable(model, rows)
    a_look = time.time() - started
    started = time.time()
    loop.measure(model, rows)  # the first is slow
    massive(model, watched_ids)
    a_look = time.time() - started
    a_step = seconds_a_step(model, stream, recipe, compiled=False)
    say(name, f"{a_look:.2f} s a look, {a_step * 1e3:.1f} ms a step as written")
    compiled = False
    if not options.eager:
        fused = compiled_seconds(name, model, stream, recipe, options)
        compiled = fused is not None and fused < a_step
        a_step = fused if compiled else a_step

    together(options, name)  # the step's time hangs on how many run beside it
    a_step = max(a_step, seconds_a_step(model, stream, recipe, compiled, count=100 if not options.tiny else 5))
    left = options.until - time.time()
    steps = max(FEWEST, int((left - 30 * a_look) / (1.08 * a_step)))
    recipe = replace(recipe, steps=steps, warm_up=min(recipe.warm_up, steps // 10))
    say(name, f"{a_step * 1e3:.1f} ms a step, compiled {compiled}, {left:.0f} s left: {steps} steps")
    numbers = {"family": family, "recipe": asdict(recipe), "seconds_a_step": a_step, "compiled": compiled}
    (work / "plan.json").write_text(json.dumps(numbers))
    checkpoint = work / "checkpoint.pt"

    def go_on(compiled: bool) -> None:
        """Train from the checkpoint, or from the start."""
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True) if checkpoint.exists() else None
        last = saved["trajectory"][-1]["step"] if saved else -1
        coming = iter([step for step in log_spaced(recipe.steps) if step > last])

        def beside(model: PreTrainedModel) -> dict:
            step = next(coming)
            if step >= FEWEST:
                weights = halved(model.state_dict())
                write_aside(work / f"{step}.safetensors", lambda path: save_file(weights, path))
            seen = massive(model, watched_ids)
            say(name, f"step {step}: " + ", ".join(f"{what} {max(values):.2f}" for what, values in seen.items()))
            return seen

        train(model, stream, rows, recipe, checkpoint, compiled, beside)

    try:
        go_on(compiled)
    except Exception:  # of the compiler, that is: as it is written, the step has run
        if not compiled:
            raise
        traceback.print_exc()
        torch._dynamo.reset()
        go_on(compiled=False)
    say(name, "done")


def held_out_rows(data: Path) -> TokenRows:
    """The rows that the trajectory is measured on."""
    tensors = load_file(data / "rows.safetensors")
    return TokenRows(tensors["ids"].long(), tensors["test"], tensors["fold"].long(), "docs")


def measurable(model: PreTrainedModel, rows: TokenRows) -> None:
    """Measure once; where the device cannot, the loop measures a copy on the CPU from now on, on fewer rows."""
    try:
        loop.measure(model, rows)
    except Exception:  # whatever it is, the training goes on
        traceback.print_exc()
        on_device = loop.measure
        loop.measure = lambda model, rows: on_device(deepcopy(model).cpu(), rows.thinned(12_288))
        loop.measure(model, rows)


def seconds_a_step(model: PreTrainedModel, stream: dict, recipe: Recipe, compiled: bool, count: int = 20) -> float:
    """The median time of a step; the model's weights are what they were."""
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimiser = adamw(model, recipe)
    step_loss = loss_of(model, recipe, compiled)
    times = []
    try:
        for step in range(count + 3):
            started = time.perf_counter()
            take_step(model, optimiser, step_loss, stream, step, recipe)
            times.append(time.perf_counter() - started)
    finally:
        model.load_state_dict(weights)
        model.zero_grad(set_to_none=True)
    return median(times[3:])


def compiled_seconds(name: str, model, stream, recipe: Recipe, options: argparse.Namespace) -> float | None:
    """The time of a compiled step; None where it cannot be compiled, or not in time."""

    def too_long(*_):
        raise TimeoutError("compiling takes too long")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(options.compile_seconds)
    started = time.time()
    try:
        seconds = seconds_a_step(model, stream, recipe, compiled=True)
        say(name, f"compiled in {time.time() - started:.0f} s, {seconds * 1e3:.1f} ms a step")
        return seconds
    except Exception as error:  # whatever it is, the step runs as it is written
        say(name, f"not compiled: {type(error).__name__} {str(error)[:300]}")
        torch._dynamo.reset()
        return None
    finally:
        signal.alarm(0)


def together(options: argparse.Namespace, name: str) -> None:
    """Wait until all candidates are as far, or until it is clear that one is not coming."""
    (options.work / f"{name}.ready").touch()
    latest = time.time() + 30
    while time.time() < latest and len(list(options.work.glob("*.ready"))) < options.candidates:
        time.sleep(0.2)


def halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float16 on the CPU, without the head that is the embedding."""
    return {
        name: tensor.detach().half().cpu().contiguous().clone()
        for name, tensor in state.items()
        if name != "lm_head.weight"
    }


def say(name: str, what: str) -> None:
    """A line in the candidate's log."""
    print(f"{time.strftime('%H:%M:%S')} {name}: {what}", flush=True)


# --- All of them, and what comes of them


def collect(options: argparse.Namespace, names: list[str]) -> None:
    """Write what there is so far."""
    found = {}
    states = {}
    for name in names:
        work = options.work / name
        log = options.work / f"{name}.log"
        found[name] = {"log": log.read_text(errors="replace")[-3_000:] if log.exists() else ""}
        if (work / "plan.json").exists():
            found[name] |= json.loads((work / "plan.json").read_text())
        if not (work / "checkpoint.pt").exists():
            continue
        saved = torch.load(work / "checkpoint.pt", map_location="cpu", weights_only=True)
        found[name] |= {"step": saved["step"], "loss": saved["loss"], "trajectory": saved["trajectory"]}
        states[name] = halved(saved["model"])
    order = sorted(states, key=lambda name: -clearness(found[name]))
    write_aside(options.out / "sinks.json", lambda path: path.write_text(json.dumps({"order": order} | found)))

    # the last weights of all, then those on the way of the first
    packed: list[dict[str, Tensor]] = [{}]
    parts = [(f"{name}/{found[name]['step']}", states[name]) for name in order]
    if order:
        best = options.work / order[0]
        for step in near_birth(found[order[0]]["trajectory"]):
            if (best / f"{step}.safetensors").exists():
                parts.append((f"{order[0]}/{step}", load_file(best / f"{step}.safetensors")))
    for prefix, state in parts:
        part = {f"{prefix}/{name}": tensor for name, tensor in state.items()}
        if size_of(packed[-1]) + size_of(part) > FILE:
            if len(packed) == options.files:
                break
            packed.append({})
        packed[-1] |= part
    for number, tensors in enumerate(packed):
        if tensors:
            write_aside(options.out / f"weights-{number}.safetensors", lambda path, t=tensors: save_file(t, path))


def clearness(candidate: dict) -> float:
    """How far the heaviest output of any block lies above the median one, at the end."""
    return max(candidate["trajectory"][-1]["written"], default=0.0) if candidate["trajectory"] else 0.0


def near_birth(trajectory: list[dict]) -> list[int]:
    """The measured steps, those first that are nearest to where half of the final (log) ratio was first reached."""
    if not trajectory:
        return []
    heights = [math.log(max(look["written"])) for look in trajectory]
    middle = (heights[0] + heights[-1]) / 2
    birth = next((look for look, height in enumerate(heights) if height >= middle), 0)
    order = sorted(range(len(trajectory)), key=lambda i: abs(i - birth))
    return [trajectory[i]["step"] for i in order if trajectory[i]["step"] >= FEWEST]


def size_of(tensors: dict[str, Tensor]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def write_aside(path: Path, write) -> None:
    """Replace a file in one step."""
    aside = path.with_name(path.name + ".part")
    write(aside)
    os.replace(aside, path)


def main() -> None:
    """Start a process a candidate, collect what they have, and end them when the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--files", type=int, default=4, help="of weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile-seconds", type=int, default=130)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--grow", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.candidates = len(options.only)
    if options.grow:
        grow(options.grow, options)
        return

    until = time.time() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    options.work = options.work or Path(tempfile.mkdtemp(prefix="sinks"))
    options.work.mkdir(parents=True, exist_ok=True)
    processes = {}
    for name in options.only:
        log = (options.work / f"{name}.log").open("w")
        arguments = [*sys.argv[1:], "--grow", name, "--work", str(options.work), "--until", str(until - 12)]
        processes[name] = subprocess.Popen([sys.executable, __file__, *arguments], stdout=log, stderr=log)  # noqa: S603
    try:
        while any(process.poll() is None for process in processes.values()) and time.time() < until:
            time.sleep(min(20.0, max(0.5, until - time.time())))
            try:
                collect(options, options.only)
            except Exception:  # the next time, or in the end
                traceback.print_exc()
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
        collect(options, options.only)
    for name in options.only:
        print((options.work / f"{name}.log").read_text(errors="replace")[-1_500:])
    print({name: process.poll() for name, process in processes.items()})


if __name__ == "__main__":
    main()
