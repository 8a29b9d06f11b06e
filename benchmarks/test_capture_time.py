"""What moments of all twelve blocks add to the forward pass that they are taken from.

At GPT-2's shape a round is about 20 s on two cores: 8,192 tokens, without the LM head, bare and then with moments.
"""

import statistics
import time

import pytest
import torch
from workload import new_rows

from howlinear.instrument.capture import capture

GOAL = 1.25  # times the bare forward pass


@pytest.mark.parametrize("folds", [1, 8], ids=["1 fold", "8 folds"])
def test_capture(folds, model, shape, benchmark, result):
    """One fold: the very batches of the bare pass. Eight, the default: batches end where folds do, so are smaller."""
    rows = new_rows(shape, shape.tokens, folds)
    bare, captured = [], []

    @torch.inference_mode()
    def forward(ids=rows.ids):
        for batch in ids.split(shape.batch_size):
            model.transformer(input_ids=batch, use_cache=False)

    def timed_forward():
        start = time.perf_counter()
        forward()
        bare.append(time.perf_counter() - start)

    def timed_capture():
        start = time.perf_counter()
        capture(model, rows, batch_size=shape.batch_size)
        captured.append(time.perf_counter() - start)

    forward(rows.ids[: shape.batch_size])  # a warm-up
    benchmark.pedantic(timed_capture, setup=timed_forward, rounds=shape.rounds)  # a bare pass before every capture

    forward_s, capture_s = statistics.median(bare), statistics.median(captured)
    benchmark.extra_info |= {"tokens": shape.tokens, "bare_s": bare, "capture_s": captured}
    name = f"{folds} fold{'s' * (folds > 1)}"
    result(f"forward without LM head, {shape.tokens:,} tokens ({name})", forward_s)
    result(f"the same with moments of every block ({name})", capture_s)
    result(f"ratio ({name})", capture_s / forward_s, "{:.2f}", GOAL)
