"""Rows of a block whose sinks are planted: the first token of every sequence, loud features, heavy tails, or none."""

from contextlib import contextmanager

import torch

from howlinear.core.moments import Moments
from howlinear.instrument.capture import BlockCapture, Sample
from howlinear.instrument.massive import HeavyRowsKeeper

D = 12
FOLDS = 4
SEQ_LEN = 32


def teacher(sequences=256, sink=800.0, heavy_tails=False, loud_feature=0.0, seed=0):
    """Rows of a bent block; the first token of each sequence goes to one direction, `sink` times the usual size.

    With `loud_feature`, feature 3 of the outputs is straight and that many times as loud as the others, on all tokens.

    Returns:
        x and y, shapes (sequences · 32, 12); held out?, fold, sequence and position of each row.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    n = sequences * SEQ_LEN
    x = normal(n, D)
    y = x @ normal(D, D) + (x @ normal(D, D)).square() @ normal(D, D) / D
    position = torch.arange(n) % SEQ_LEN
    if heavy_tails:
        # Student's t with three degrees of freedom scales whole rows: some are very heavy, and none is of another kind.
        scale = (normal(n, 3).square().sum(1) / 3).rsqrt()
        x = x * scale[:, None]
        y = y * scale[:, None]
    if loud_feature:
        y[:, 3] = loud_feature * y[:, 4].std() * x[:, 0]
    if sink:
        first = position == 0
        x[first, 0] += 60.0  # a token that stands apart in the inputs as well
        y[first] = sink * y.norm(dim=1).median() * torch.nn.functional.normalize(normal(1, D))
        y[first] *= 1 + 0.1 * normal(int(first.sum()), 1)
    sequence = torch.arange(n) // SEQ_LEN
    test = sequence % 4 == 3
    fold = (sequence // 4) % FOLDS
    return x, y, test, fold, sequence, position


def token_ids(sequences=256):
    """Token ids of the teacher's sequences, shape (sequences, 32): the first is 1, the others run from 2 to 8."""
    ids = 2 + torch.arange(sequences * SEQ_LEN).view(sequences, SEQ_LEN) % 7
    ids[:, 0] = 1
    return ids


def captured(x, y, test, fold, sequence, position, batch=512):
    """What `capture` keeps of these rows, all of them sampled."""
    sides = []
    keeper = HeavyRowsKeeper()
    outputs = Moments(D)
    for held_out in (False, True):
        side = []
        for number in range(FOLDS):
            rows = ((test == held_out) & (fold == number)).nonzero()[:, 0]
            moments = Moments(D, D)
            for part in rows.split(batch):
                moments.update(x[part], y[part])
                if held_out:
                    outputs.update(y[part])
                keeper.update(x[part], y[part], sequence[part], position[part], held_out, number)
            side.append(moments)
        sides.append(side)
    sample = Sample(x, y, position, torch.where(position == 0, 1, 2), test, fold)
    return BlockCapture(*sides, outputs, sample, keeper.finish())


@contextmanager
def sunk_model(block, seq_len=16):
    """A tiny model, one of whose blocks writes a huge constant at position 0, and 192 sequences of its own text."""
    from conftest import tiny
    from howlinear.ideas.sinks.planted import planted, sink
    from howlinear.text.rows import TokenRows

    model = tiny("mini-gpt2").eval()
    with torch.no_grad():
        model.transformer.ln_f.weight *= 5  # a model that is sure of its words, so that a change costs
        model.transformer.h[block].mlp.c_fc.weight *= 5
        model.transformer.h[block].mlp.c_proj.weight *= 2
        model.transformer.wpe.weight[0] = 0
        model.transformer.wpe.weight[0, 5] = 60.0  # position 0 stands apart in the inputs of every block
    vector = 2_000 * torch.nn.functional.normalize(torch.randn(32, generator=torch.Generator().manual_seed(3)), dim=0)
    with planted(model, block, sink(vector)):
        ids = torch.randint(80, (192, 1), generator=torch.Generator().manual_seed(4))
        torch.manual_seed(5)
        while ids.shape[1] < seq_len:
            with torch.no_grad():
                probabilities = model(input_ids=ids, use_cache=False).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probabilities, 1)], 1)
        yield model, TokenRows.from_ids(ids, folds=4)
