"""A tiny LLaMA as a GGUF file, written by the `gguf` package, and a file's weights as read by that package alone."""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

BLOCKS, WIDTH, INNER, HEADS, KV_HEADS = 2, 64, 96, 4, 2
MERGES = ["t h", "th e", "i n"]
TOKENS = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "in"]
IN_BLOCK = {  # a tensor's name in the file: the parameter's name in transformers
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def model_of(seed=0):
    """A LLaMA with random weights and tied embeddings."""
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def row_order(rows, heads):
    """Row in the file → row in `transformers`, for a query or key matrix.

    llama.cpp rotates neighbours 2 j and 2 j + 1 of a head; `transformers` rotates j of the first half with j of the
    second.
    """
    per_head = rows // heads
    half = per_head // 2
    order = []
    for head in range(heads):
        for j in range(half):
            order.append(head * per_head + j)
            order.append(head * per_head + half + j)
    return order


def name_in_transformers(name):
    """Translate a name, such as blk.0.attn_q.weight → model.layers.0.self_attn.q_proj.weight."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{kind}"
    _, block, part = stem.split(".")
    return f"model.layers.{block}.{IN_BLOCK[part]}.{kind}"


def tensors_of(path, heads, kv_heads):
    """Parameter in `transformers` → its weights, dequantised by the `gguf` package, rows in the right order."""
    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for part, count in (("attn_q", heads), ("attn_k", kv_heads)):
            if part in tensor.name:
                ordered = np.empty_like(values)
                ordered[row_order(len(values), count)] = values
                values = ordered
        weights[name_in_transformers(tensor.name)] = torch.from_numpy(np.array(values))
    return weights


def kind_of(name):
    """The quantisation type of a tensor in the tiny file; types are mixed, as in real files."""
    if "norm" in name:
        return Kind.F32
    return {"token_embd.weight": Kind.Q8_0, "blk.0.ffn_down.weight": Kind.F16}.get(name, Kind.Q4_1)


def write(path, model, architecture="llama", leave_out=(), extra=(), parts=1, scaling=None):
    """Write a model and a tokenizer of single bytes and three merges to a GGUF file.

    `extra` are names of further tensors, of 8 numbers each; `parts` is the number of files that the header claims;
    `scaling` is that of RoPE.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    if parts > 1:
        writer.add_uint16("split.count", parts)
    writer.add_block_count(BLOCKS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10_000.0)
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)

    state = model.state_dict()
    names = ["token_embd.weight", "output_norm.weight"]
    names += [f"blk.{block}.{part}.weight" for block in range(BLOCKS) for part in IN_BLOCK]
    for name in names:
        if name in leave_out:
            continue
        values = state[name_in_transformers(name)].numpy()
        for part, count in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            if part in name:
                values = values[row_order(len(values), count)]
        kind = kind_of(name)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in extra:
        writer.add_tensor(name, np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
