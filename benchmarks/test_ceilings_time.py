"""What a ceiling costs once the moments are there: map, R² and its interval over 8 + 8 document folds."""

import statistics

from workload import new_rows

from howlinear.core.ceilings import ceiling
from howlinear.instrument.capture import capture

FOLDS = 8


def test_ceilings(model, shape, benchmark, result):
    captured = capture(model, new_rows(shape, shape.tokens, FOLDS), batch_size=shape.batch_size)
    waiting = iter(captured.values())

    def next_block():
        kept = next(waiting)
        return (kept.train, kept.test), {}

    benchmark.pedantic(ceiling, setup=next_block, rounds=len(captured))  # a round is a block

    times = benchmark.stats.stats.data
    benchmark.extra_info["block_s"] = list(times)
    result(f"a ceiling with its interval, {FOLDS} + {FOLDS} folds (median block)", statistics.median(times))
    result(f"all {len(times)} blocks", sum(times))
