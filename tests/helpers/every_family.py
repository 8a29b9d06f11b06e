"""A tiny model of every family of language models in `transformers`, and a check that a site is a real FFN.

Unlike `helpers.families`, this module has no formula per family. The output of a feed-forward block is rebuilt from its
own weight matrices: one or more units of the form act(x A + a) B + b or act(x G + g) ⊙ (x U + u) B + b. A dense block
must be one of them; in a mixture, every token's y must be a weighted sum of the experts' outputs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import permutations

import torch
import transformers
from torch.nn.functional import gelu, relu, silu
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto
from transformers.pytorch_utils import Conv1D

from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import sites
from howlinear.models.forward import trunk
from howlinear.text.rows import TokenRows, batch_of

WIDTH, TOKENS = 32, 8
WITHOUT_HEAD = ("splinter", "visual_bert")
CLASSES = {  # family → its class or classes; for a family with several kinds of heads, the last of these
    **{name: modeling_auto.MODEL_MAPPING_NAMES[name] for name in WITHOUT_HEAD},
    **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    **modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
}
NAMES = sorted(CLASSES)
LARGEST = 30_000_000  # parameters of the largest model that still counts as tiny
ACTIVATIONS = {
    "silu": silu,
    "gelu": gelu,
    "tanh gelu": lambda z: gelu(z, approximate="tanh"),
    "relu": relu,
    "relu²": lambda z: relu(z) ** 2,
    "sigmoid gelu": lambda z: z * torch.sigmoid(1.702 * z),
}
SIZES = {  # values for a config, as far as it has these names
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "emb_dim", "dim", "embedding_size", "word_embed_proj_dim"), WIDTH
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 88),
    **dict.fromkeys(("hidden_dim", "ffn_hidden_size", "dff", "dim_ff"), 88),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "max_seq_len"), 64),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "decoder_start_token_id": 1,
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    **dict.fromkeys(("head_dim", "d_head", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("rotary_dim", "linear_num_value_heads"), 4),
    **dict.fromkeys(("attention_window", "block_size"), 8),
    # mixtures, latent attention, state spaces
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "linear_num_key_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 40),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("mamba_d_state", "mamba_n_heads", "mamba_d_head", "state_size"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
}


class NotTiny(Exception):  # noqa: N818
    """No tiny model of a family can be made in this simple way."""


def tiny_of(name):
    """A tiny model of random weights.

    Raises:
        NotTiny: its config has other sizes (as a composite of several models does), or the model stays large.
    """
    kind = CONFIG_MAPPING[name]
    try:
        default = kind()
        config = kind(**{size: value for size, value in SIZES.items() if hasattr(default, size)})
        named = CLASSES[name]
        build = getattr(transformers, named if isinstance(named, str) else named[0])
        torch.manual_seed(0)
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in build(config).parameters())
        if count > LARGEST:
            raise NotTiny(f"{count:,} parameters")
        model = build(config).eval()
    except NotTiny:
        raise
    except Exception as error:  # configs of 250 families raise all kinds of errors for sizes that do not fit together
        raise NotTiny(f"{type(error).__name__}: {' '.join(str(error).split())[:100]}") from error
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter) / max(1, parameter.ndim)
    return model


def seen(model, blocks=None):
    """Site, x and y of every pass through a site, for one sequence, shapes (rows, width); all blocks by default."""
    passes = []

    def keep(site, x, y):
        passes.append((site, x.flatten(0, -2).clone(), y.flatten(0, -2).clone()))

    rows = TokenRows.from_ids(torch.randint(3, 60, (8, TOKENS), generator=torch.Generator().manual_seed(0)), folds=1)
    listened = sites(model, blocks)
    with torch.no_grad(), hooked(listened, keep):
        trunk(model, batch_of(model, rows, torch.tensor([0])), listened[-1])
    return passes


# --- what a block computes, from its weights


@dataclass
class Layer:
    """A matrix that maps rows to rows, shape (in, out), and its bias."""

    weight: torch.Tensor
    bias: torch.Tensor | float

    def __call__(self, x):
        return x @ self.weight + self.bias


class Group:
    """Layers that belong together: those that take x, and those that return y."""

    def __init__(self):
        self.into: list[Layer] = []
        self.out_of: list[Layer] = []

    def add(self, matrix, bias):
        """Add a matrix of shape (in, out) to those that take x or those that return y."""
        if len(matrix) == WIDTH:
            self.into.append(Layer(matrix, bias))
        elif matrix.shape[1] == WIDTH:
            self.out_of.append(Layer(matrix, bias))

    def units(self, act, x):
        """Possible outputs of these layers: of a gated block, one with both halves in a matrix, or a plain one."""
        for last in self.out_of:
            inner = len(last.weight)
            fitting = [first for first in self.into if first.weight.shape[1] == inner]
            for both in self.into:
                if both.weight.shape[1] == 2 * inner:
                    packed = both(x)
                    for left, right in (packed.split(inner, -1), (packed[..., ::2], packed[..., 1::2])):
                        yield last(act(left) * right)
                        yield last(act(right) * left)
                        if isinstance(both.bias, torch.Tensor):
                            yield last(act(left) * (right + 1))  # gpt-oss
            for gate, up in permutations(fitting, 2):
                yield last(act(gate(x)) * up(x))
            if len(fitting) == 1:
                yield last(act(fitting[0](x)))


def _parameters(site):
    if site.ffn is not None:
        return {f"ffn.{name}": value for name, value in site.ffn.named_parameters()}
    first = {f"ffn.first.{name}": value for name, value in site.input.named_parameters()}
    last = {f"ffn.last.{name}": value for name, value in site.output.named_parameters()}
    return first | last


def _groups(site):
    """The site's layers, grouped by the module or expert that holds them; the last group has all 2-D matrices."""
    parameters = _parameters(site)
    kept_as_they_act = any(isinstance(part, Conv1D) for part in [*site.input.modules(), *site.output.modules()])
    groups, together = defaultdict(Group), Group()
    for name, value in parameters.items():
        owner, _, last = name.rpartition(".")
        if last == "weight":
            path, bias = owner, parameters.get(f"{owner}.bias")
        else:  # experts may hold their matrices themselves
            path, bias = name, parameters.get(f"{name}_bias")
        folder = path.rpartition(".")[0]
        if value.ndim == 2:
            matrix = value if kept_as_they_act else value.T
            for group in (groups[folder], together):
                group.add(matrix, 0.0 if bias is None else bias)
        elif value.ndim == 3:
            for number, matrix in enumerate(value):
                one_bias = 0.0 if bias is None else bias[number]
                for either_way in (matrix.T, matrix):  # families store them either way
                    if bias is None or len(one_bias) == either_way.shape[1]:
                        groups[f"{folder} {number}"].add(either_way, one_bias)
    return [*groups.values(), together]


def _activations(site):
    """The usual activations, and the block's own, such as xIELU with its learned parameters."""
    own = {}
    for name, part in site.output.named_children():
        if "act" in name and all(parameter.ndim < 2 for parameter in part.parameters()):
            own[type(part).__name__] = part
    return ACTIVATIONS | own


@torch.no_grad()
def formula(site, x, y, tolerance=1e-4):
    """The formula in the site's own weights that gives y from x, in words; None if there is none."""
    *groups, together = _groups(site)
    biases = [value.expand_as(y) for value in _parameters(site).values() if value.shape == (WIDTH,)]
    scale = float(y.abs().max())
    for name, act in _activations(site).items():
        for unit in together.units(act, x):
            if float((unit - y).abs().max()) <= tolerance * scale:
                return f"dense, {name}"
        units = [unit for group in groups for unit in group.units(act, x)]
        if 1 < len(units) < WIDTH - len(biases) and _spans([*units, *biases], y, tolerance * scale):
            return f"mixture, {name}"
    return None


def _spans(units, y, tolerance):
    """Whether every token's y is a weighted sum of the units, each of shape (rows, width)."""
    columns = torch.stack(units, -1).double()
    target = y.double()[..., None]
    weights = torch.linalg.lstsq(columns, target, driver="gelsd").solution
    return float((columns @ weights - target).abs().max()) <= tolerance
