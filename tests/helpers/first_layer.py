"""The residual stream around a model's first layer."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import sites


@torch.no_grad()
def around_first_layer(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """The residual stream before and after it, and its FFN's output, copied at once since Falcon writes into it."""
    seen = []
    with hooked(sites(model, [0]), lambda site, x, y: seen.append(y.clone())):
        states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    return [rows.flatten(0, -2).double() for rows in (*states[:2], *seen)]
