"""Time the three parts of a measurement over tokens, width and blocks: `python benchmarks/scale.py [OUT.json]`.

The parts are a bare forward pass without the head, the same batches with moments of every block, and the ceilings with
their intervals (8 + 8 folds), all on one thread unless OMP_NUM_THREADS says otherwise. The model has GPT-2's blocks,
random weights and random ids. Every run after the first, the base, differs from it along one axis; bare and captured
passes take turns. Takes about five minutes on an idle core. `--tiny` only checks that it runs.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from workload import interleaved, timed

from howlinear.core.ceilings import ceiling
from howlinear.files import numbers
from howlinear.instrument.capture import capture
from howlinear.text.rows import TokenRows, batches

OUT = Path(__file__).resolve().parents[1] / "book" / "scale.json"
BASE = {"width": 256, "blocks": 2, "tokens": 16_384}
SWEEP = [{}, {"tokens": 32_768}, {"tokens": 65_536}, {"blocks": 4}, {"blocks": 8}, {"width": 512}, {"width": 1_024}]
TINY = {"width": 16, "blocks": 1, "tokens": 4_096}
BATCH = 16


def run(width, blocks, tokens, rounds):
    torch.manual_seed(0)
    ends = {"vocab_size": 256, "n_positions": 128, "bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(n_embd=width, n_layer=blocks, n_head=max(1, width // 64), **ends)
    model = GPT2LMHeadModel(config).eval()
    rows = TokenRows.from_ids(torch.randint(256, (tokens // 128, 128)))

    @torch.inference_mode()
    def forward():
        for batch in batches(rows, BATCH):
            model.transformer(input_ids=rows.ids[batch], use_cache=False)

    forward()  # a warm-up
    works = {"forward": forward, "capture": lambda: capture(model, rows, batch_size=BATCH)}
    seconds, found = interleaved(works, rounds)
    solved = [timed(lambda kept=kept: ceiling(kept.train, kept.test))[0] for kept in found["capture"].values()]
    return {
        "width": width,
        "blocks": blocks,
        "tokens": tokens,
        "forward": median(seconds["forward"]),
        "moments": median(np.subtract(seconds["capture"], seconds["forward"])),
        "ceilings": blocks * median(solved),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    base = TINY if options.tiny else BASE
    factor = {axis: TINY[axis] / BASE[axis] if options.tiny else 1 for axis in BASE}
    runs = []
    for change in SWEEP:
        sizes = base | {axis: int(value * factor[axis]) for axis, value in change.items()}
        runs.append(run(**sizes, rounds=options.rounds))
        print(" ".join(f"{name} {value:.3g}" for name, value in runs[-1].items()), flush=True)
    threads = torch.get_num_threads()
    machine = f"{os.cpu_count()}-core machine, {threads} thread{'s' * (threads > 1)}"
    about = {"machine": machine, "rounds": options.rounds, "versions": numbers.versions()}
    numbers.save(options.out, about | {"runs": runs})


if __name__ == "__main__":
    main()
