"""Memory and time of a measurement layer by layer: `python benchmarks/layerwise.py FOLDER [--shape llama-3.2-3b]`.

A model of the shape with random bfloat16 weights, one shard per layer, is written to the folder unless it is there; or
the model is SmolLM2-135M from its package. It is measured on random ids in a separate process, layer by layer and, if
it fits, as a whole: peak memory of the process, CPU seconds, and the differences between the numbers. `--layers` takes
fewer layers of a shape, which have the same peak, as only one layer is resident. With `--compress` the model is
compressed to nine tenths of its parameters instead. `--keep` writes the results to results/bench/layerwise.json.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jaxtyping
import psutil
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from workload import machine, peak_memory

import howlinear as hl
from howlinear.files import numbers, paths
from howlinear.instrument.layerwise import moments_bytes, open_model
from howlinear.models.load import load_on_disk

SHAPES = {
    "small": {"hidden_size": 1_024, "intermediate_size": 2_816, "num_hidden_layers": 2, "num_attention_heads": 16}
    | {"num_key_value_heads": 4, "vocab_size": 32_000},
    "tiny": {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 3, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 1_000},
    "llama-3.1-8b": {"hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": False},
    "llama-3.2-3b": {"hidden_size": 3_072, "intermediate_size": 8_192, "num_hidden_layers": 28}
    | {"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256},
}
SMOLLM2 = "smollm2-135m"
GOALS = {"llama-3.2-3b": 2.5e9, SMOLLM2: 1.2e9}  # peak bytes allowed
MOST_TIMES = 1.15  # times the CPU time of the whole model
SEQ_LEN = 128


def write(folder, shape, layers, device="cpu"):
    """Write a model with random weights drawn on a device; never more than one layer is in memory."""
    sizes = {"tie_word_embeddings": True} | SHAPES[shape] | ({"num_hidden_layers": layers} if layers else {})
    config = LlamaConfig(**sizes, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.tie_weights()
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    generator = torch.Generator(device).manual_seed(0)
    files, weight_map = {}, {}
    for name, parameter in model.named_parameters():  # without the tied head
        number = name.split(".")[2] if ".layers." in name else "beside"
        files.setdefault(f"model-{number}.safetensors", {})[name] = parameter.shape
    for file, named in files.items():
        tensors = {name: new_weight(size, generator) for name, size in named.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(named, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def new_weight(size, generator):
    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)  # weights of a norm
    return torch.randn(size, generator=generator, device=generator.device).mul_(0.02).bfloat16().cpu()


def measured(source, rows, layerwise, free, device="cpu", blocks=None, compress=False):
    """Measure in this process: peak bytes, CPU seconds, wall seconds, and the numbers."""
    jaxtyping.config.update("jaxtyping_disable", True)
    if free:
        memory = psutil.virtual_memory()._replace(available=int(free))
        psutil.virtual_memory = lambda: memory
    vocabulary = load_on_disk(source).config.vocab_size
    ids = torch.randint(vocabulary, (rows // SEQ_LEN, SEQ_LEN), generator=torch.Generator().manual_seed(0))
    start, cpu = time.perf_counter(), time.process_time()
    if compress:
        smaller = hl.compress(source, ids, 0.9, layerwise=layerwise)
        found = {"bytes": peak_memory(), "seconds": time.process_time() - cpu}
        return found | {"blocks": smaller.units, "perplexity": smaller.perplexity}
    model = open_model(source, layerwise, device=device)
    loaded = time.perf_counter()
    profile = hl.measure(model, ids, blocks=blocks)
    found = {"bytes": peak_memory(), "seconds": time.process_time() - cpu, "loading": loaded - start}
    found |= {"wall": time.perf_counter() - start, "layers": model.config.num_hidden_layers}
    if device != "cpu":
        found["device_bytes"] = torch.cuda.max_memory_allocated()
    return found | {"blocks": {number: block.r2 for number, block in profile.items()}, "perplexity": profile.perplexity}


def in_a_process(source, rows, way, free=0, timeout=None, **others):
    options = {"--rows": rows, "--free": free, "--run": way} | {f"--{name}": value for name, value in others.items()}
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, __file__, str(source), *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout).stdout)


def compared(source, shape, rows, free, compress):
    """Measure layer by layer, as if no more than the goal were free, and as a whole if that fits."""
    others = {"compress": "yes"} if compress else {}
    model = load_on_disk(source)
    config = model.config
    small = in_a_process(source, rows, "layerwise", free or GOALS.get(shape, 0), **others)
    print(f"{shape}, layer by layer: {small['bytes'] / 1e9:.2f} GB, {small['seconds']:.0f} s of CPU", flush=True)
    found = {"layers": config.num_hidden_layers, "rows": rows, "layer by layer": cost_of(small)}
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    needed = weights + config.num_hidden_layers * moments_bytes(config.hidden_size)
    if needed < psutil.virtual_memory().available:
        large = in_a_process(source, rows, "whole", **others)
        found["whole"] = cost_of(large)
        found["times"] = small["seconds"] / large["seconds"]
        found["apart"] = apart(small, large)
        print(
            f"{shape}, whole: {large['bytes'] / 1e9:.2f} GB, {large['seconds']:.0f} s of CPU: layer by layer takes "
            f"{found['times']:.2f} times as long (goal {MOST_TIMES}); numbers are {found['apart']:.1g} apart",
            flush=True,
        )
    if shape in GOALS and not compress:
        found["goal"] = GOALS[shape]
        print(f"goal: {GOALS[shape] / 1e9:.1f} GB", flush=True)
    return found


def apart(one, other):
    """Largest difference between two runs: in the second's blocks (R²_lin or hidden units), or in their perplexity."""
    blocks = [abs(one["blocks"][block] - value) for block, value in other["blocks"].items()]
    return max(*blocks, abs(one["perplexity"] / other["perplexity"] - 1))


def cost_of(run):
    return {"bytes": run["bytes"], "seconds": run["seconds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help=f"folder of the model, which is written if missing; or {SMOLLM2}")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--layers", type=int, help="number of layers, if fewer than the shape has")
    parser.add_argument("--rows", type=int, default=5_120, help="token rows; fewer cannot fit a map of 3,072 inputs")
    parser.add_argument("--free", type=float, default=0, help="bytes taken as free; by default the goal, if any")
    parser.add_argument("--keep", action="store_true", help="write to results/bench/layerwise.json")
    parser.add_argument("--device", default="cpu", help="where the model runs and its weights are drawn")
    parser.add_argument("--blocks", type=json.loads, help="blocks to measure, as in [0,8]; all by default")
    parser.add_argument("--compress", nargs="?", const="yes", help="compress to nine tenths of its parameters")
    parser.add_argument("--run", choices=("layerwise", "whole"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    if options.run:
        layerwise = options.run == "layerwise"
        more = options.device, options.blocks, options.compress
        found = measured(options.folder, options.rows, layerwise, options.free, *more)
        print(json.dumps(found))
        return
    shape = SMOLLM2 if options.folder == SMOLLM2 else options.shape
    if shape != SMOLLM2 and not (Path(options.folder) / "config.json").is_file():
        write(Path(options.folder), shape, options.layers, options.device)
    found = compared(options.folder, shape, options.rows, options.free, options.compress)
    in_full = found["layers"] == SHAPES.get(shape, {}).get("num_hidden_layers")
    name = f"{shape}{' in full' * in_full}{', made smaller' * bool(options.compress)}"
    if options.keep:
        path = paths.results("bench") / "layerwise.json"
        before = numbers.load(path) if path.is_file() else {}
        found |= {"machine": machine(torch.get_num_threads())}
        numbers.save(path, before | {name: found}, digits={"apart": 1})


if __name__ == "__main__":
    main()
