"""What `capture` would keep of rows made by a test, and what its hooks would see."""

import torch

from howlinear.core.moments import Moments
from howlinear.instrument.capture import BlockCapture, hooked
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import streams_hooked


def moments_of(x, y=None):
    return Moments(x.shape[1], 0 if y is None else y.shape[1]).update(x, y)


def capture_of(sample):
    """The capture of a block with these rows only, all of them in its sample."""
    train, test = (
        [moments_of(sample.x[rows], sample.y[rows]) for rows in sample.folds(test=side)] for side in (False, True)
    )
    outputs = Moments(sample.y.shape[1]).update(sample.y[sample.test])
    return BlockCapture(train, test, outputs, sample)


@torch.no_grad()
def seen_at_sites(model, inputs, kind="ffn"):
    """Block → x and y of a forward pass as hooks see them, shapes (rows, width)."""
    seen = {}

    def keep(site, x, y):
        seen[site.block] = (x.flatten(0, -2).clone(), y.flatten(0, -2).clone())

    with hooked(sites(model, site=kind), keep):
        model(**inputs)
    return dict(sorted(seen.items()))


@torch.no_grad()
def streams_behind(model, ids, blocks=None):
    """The residual stream behind each layer, in an ordinary pass of all sequences together."""
    kept = []
    with streams_hooked(model, sites(model, blocks), lambda _, stream: kept.append(stream.clone())):
        model(input_ids=ids, use_cache=False)
    return kept
