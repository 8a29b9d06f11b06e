"""A tiny random model of every family, and its FFN computed from weights found by name, not by the library."""

import torch
import transformers as t
from torch.nn.functional import gelu, relu, silu

DEPTH, WIDTH, INNER, VOCABULARY, PADDING = 2, 16, 40, 60, 1
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": PADDING, "bos_token_id": 0, "eos_token_id": 2}
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 2, "max_position_embeddings": 64}
USUAL = TEXT | SHAPE | {"intermediate_size": INNER}
GROUPED = USUAL | {"num_key_value_heads": 1}
OLD = TEXT | {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": 2, "n_positions": 64, "n_inner": INNER}
GEMMA = GROUPED | {"head_dim": 8}
OPT = TEXT | SHAPE | {"ffn_dim": INNER, "word_embed_proj_dim": WIDTH}
FALCON = TEXT | SHAPE | {"ffn_hidden_size": INNER, "multi_query": True}
VISION = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 8, "patch_size": 4}


def tanh_gelu(z):
    return gelu(z, approximate="tanh")


def two(first, last, act, transposed=False):
    """act(x A + a) B + b, from the layers called `first` and `last`."""

    def ffn(w, x):
        a, b = (w[f"{name}.weight"] if transposed else w[f"{name}.weight"].T for name in (first, last))
        return act(x @ a + w.get(f"{first}.bias", 0)) @ b + w.get(f"{last}.bias", 0)

    return ffn


def glu(act, gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj"):
    return lambda w, x: (act(x @ w[f"{gate}.weight"].T) * (x @ w[f"{up}.weight"].T)) @ w[f"{down}.weight"].T


def packed_glu(w, x):
    """Phi-3: gate and up in one matrix, in this order."""
    both = x @ w["mlp.gate_up_proj.weight"].T
    return (silu(both[..., :INNER]) * both[..., INNER:]) @ w["mlp.down_proj.weight"].T


def mixture(w, x):
    """Mixtral: the two likeliest experts of a token, weighted by their shares of the router's softmax."""
    share = (x @ w["mlp.gate.weight"].T).softmax(-1)
    top, chosen = share.topk(2, -1)
    weight = torch.zeros_like(share).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
    both = torch.einsum("...d,ehd->...eh", x, w["mlp.experts.gate_up_proj"])
    hidden = silu(both[..., :INNER]) * both[..., INNER:]
    return torch.einsum("...eh,edh,...e->...d", hidden, w["mlp.experts.down_proj"], weight)


def after(norm):
    """Take as x what this module of the block returns."""
    return lambda seen: seen[norm]


def olmo2(seen):
    """Take as x the residual stream itself: the norms come after attention and after the FFN."""
    return seen["entered"] + seen["post_attention_layernorm"]


DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
NEOX = {"use_parallel_residual": True, "hidden_act": "gelu"}
MLP = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
BERT = two("intermediate.dense", "output.dense", gelu)
POST = after("post_attention_layernorm")
FAMILIES = {  # name: (model, its config, path of the blocks below the base model, x, y of weights and x)
    "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(**OLD), "h", after("ln_2"),
             two("mlp.c_fc", "mlp.c_proj", tanh_gelu, transposed=True)),
    "gpt_neox": (t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**USUAL, **NEOX), "layers", POST, two(*MLP, gelu)),
    "gptj": (t.GPTJForCausalLM, t.GPTJConfig(**OLD, rotary_dim=4), "h", after("ln_1"),
             two("mlp.fc_in", "mlp.fc_out", tanh_gelu)),
    "gpt_neo": (t.GPTNeoForCausalLM,
                t.GPTNeoConfig(**TEXT, hidden_size=WIDTH, num_layers=DEPTH, num_heads=2, intermediate_size=INNER,
                               max_position_embeddings=64, attention_types=[[["global", "local"], 1]]),
                "h", after("ln_2"), two("mlp.c_fc", "mlp.c_proj", tanh_gelu)),
    "opt": (t.OPTForCausalLM, t.OPTConfig(**OPT), "decoder.layers", after("final_layer_norm"), two("fc1", "fc2", relu)),
    "opt, norm behind": (t.OPTForCausalLM, t.OPTConfig(**OPT, do_layer_norm_before=False), "decoder.layers",
                         after("self_attn_layer_norm"), two("fc1", "fc2", relu)),
    "bloom": (t.BloomForCausalLM, t.BloomConfig(**TEXT, hidden_size=WIDTH, n_layer=DEPTH, n_head=2), "h", POST,
              two(*MLP, tanh_gelu)),
    "falcon": (t.FalconForCausalLM, t.FalconConfig(**FALCON, parallel_attn=True), "h", after("input_layernorm"),
               two(*MLP, gelu)),
    "falcon, new": (t.FalconForCausalLM, t.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=1), "h",
                    after("ln_mlp"), two(*MLP, gelu)),
    "falcon, sequential": (t.FalconForCausalLM, t.FalconConfig(**FALCON, parallel_attn=False, alibi=True, bias=True),
                           "h", POST, two(*MLP, gelu)),
    "llama": (t.LlamaForCausalLM, t.LlamaConfig(**GROUPED), "layers", POST, glu(silu)),
    "mistral": (t.MistralForCausalLM, t.MistralConfig(**GROUPED), "layers", POST, glu(silu)),
    "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**GROUPED), "layers", POST, glu(silu)),
    "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**GEMMA), "layers", POST, glu(silu)),
    "gemma2": (t.Gemma2ForCausalLM, t.Gemma2Config(**GEMMA), "layers", after("pre_feedforward_layernorm"),
               glu(tanh_gelu)),
    "gemma3_text": (t.Gemma3ForCausalLM, t.Gemma3TextConfig(**GEMMA), "layers", after("pre_feedforward_layernorm"),
                    glu(tanh_gelu)),
    "gemma3": (t.Gemma3ForConditionalGeneration,
               t.Gemma3Config(text_config=GEMMA, vision_config=VISION, mm_tokens_per_image=4, image_token_index=59),
               "language_model.layers", after("pre_feedforward_layernorm"), glu(tanh_gelu)),
    "phi3": (t.Phi3ForCausalLM, t.Phi3Config(**GROUPED), "layers", POST, packed_glu),
    "olmo2": (t.Olmo2ForCausalLM, t.Olmo2Config(**GROUPED), "layers", olmo2, glu(silu)),
    "stablelm": (t.StableLmForCausalLM, t.StableLmConfig(**GROUPED), "layers", POST, glu(silu)),
    "mixtral": (t.MixtralForCausalLM, t.MixtralConfig(**GROUPED, num_local_experts=4), "layers", POST, mixture),
    "bert": (t.BertForMaskedLM, t.BertConfig(**USUAL), "encoder.layer", after("attention.output"), BERT),
    "roberta": (t.RobertaForMaskedLM, t.RobertaConfig(**USUAL), "encoder.layer", after("attention.output"), BERT),
    "xlm-roberta": (t.XLMRobertaForMaskedLM, t.XLMRobertaConfig(**USUAL), "encoder.layer", after("attention.output"),
                    BERT),
    "electra": (t.ElectraForMaskedLM, t.ElectraConfig(**USUAL, embedding_size=8), "encoder.layer",
                after("attention.output"), BERT),
    "deberta": (t.DebertaForMaskedLM, t.DebertaConfig(**USUAL, **DEBERTA), "encoder.layer", after("attention.output"),
                BERT),
    "deberta-v2": (t.DebertaV2ForMaskedLM, t.DebertaV2Config(**USUAL, **DEBERTA), "encoder.layer",
                   after("attention.output"), BERT),
    "xglm": (t.XGLMForCausalLM,
             t.XGLMConfig(**TEXT, d_model=WIDTH, num_layers=DEPTH, attention_heads=2, ffn_dim=INNER,
                          max_position_embeddings=64),
             "layers", after("final_layer_norm"), two("fc1", "fc2", gelu)),
    "biogpt": (t.BioGptForCausalLM, t.BioGptConfig(**USUAL), "layers", after("final_layer_norm"),
               two("fc1", "fc2", gelu)),
    "bart": (t.BartForCausalLM,
             t.BartConfig(**TEXT, d_model=WIDTH, decoder_layers=DEPTH, decoder_attention_heads=2,
                          decoder_ffn_dim=INNER, max_position_embeddings=64),
             "decoder.layers", after("self_attn_layer_norm"), two("fc1", "fc2", gelu)),
    "mpt": (t.MptForCausalLM,
            t.MptConfig(**TEXT, d_model=WIDTH, n_layers=DEPTH, n_heads=2, max_seq_len=64, expansion_ratio=3),
            "blocks", after("norm_2"), two("ffn.up_proj", "ffn.down_proj", gelu)),
    "xlm": (t.XLMWithLMHeadModel,
            t.XLMConfig(vocab_size=VOCABULARY, emb_dim=WIDTH, n_layers=DEPTH, n_heads=2, max_position_embeddings=64,
                        pad_index=PADDING, pad_token_id=PADDING, bos_index=0, eos_index=2),
            "ffns", lambda seen: seen["entered"], two("lin1", "lin2", gelu)),
    "distilbert": (t.DistilBertForMaskedLM,
                   t.DistilBertConfig(**TEXT, dim=WIDTH, n_layers=DEPTH, n_heads=2, hidden_dim=INNER,
                                      max_position_embeddings=64),
                   "transformer.layer", after("sa_layer_norm"), two("ffn.lin1", "ffn.lin2", gelu)),
    "vit": (t.ViTForImageClassification,
            t.ViTConfig(**SHAPE, intermediate_size=INNER, image_size=8, patch_size=4),
            "layers", after("layernorm_after"), two("mlp.fc1", "mlp.fc2", gelu)),
}  # fmt: skip
ENCODERS = ("bert", "roberta", "xlm-roberta", "electra", "deberta", "deberta-v2", "xlm", "distilbert", "vit")
CAUSAL = [name for name in FAMILIES if name not in ENCODERS]
UNITS = (  # causal models with blocks of plain linear layers, whose hidden units can be reached
    *("gpt2", "gpt_neox", "gptj", "gpt_neo", "falcon", "falcon, new", "falcon, sequential", "llama", "mistral"),
    *("qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "stablelm"),
)
PAIRS = ("opt", "bloom", "xglm", "biogpt", "bart", "mpt", *ENCODERS[:7])


def small(name, seed=0):
    """A model of random weights, norms and biases included, so that nothing is symmetric by initialisation."""
    kind, config, *_ = FAMILIES[name]
    torch.manual_seed(seed)
    model = kind(config.__class__.from_dict(config.to_dict())).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter) / max(1, parameter.ndim)
    return model


def reads(name, n=24, length=12, seed=1):
    """A model's inputs, by keyword."""
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        return {"pixel_values": torch.randn(n, 3, 8, 8, generator=generator)}
    return {"input_ids": torch.randint(3, VOCABULARY - 1, (n, length), generator=generator)}


def weights(name, model):
    """The parameters of each block, by name."""
    blocks = model.base_model.get_submodule(FAMILIES[name][2])
    return [{path: parameter.detach().clone() for path, parameter in block.named_parameters()} for block in blocks]


def worked(name, model, inputs):
    """x as the model's own modules return it, and y by our formula: per block (x, y), shapes (rows, width)."""
    _, _, stack, source, ffn = FAMILIES[name]
    seen, handles = [], []
    for block in model.base_model.get_submodule(stack):
        seen.append(its := {})
        handles.append(block.register_forward_pre_hook(lambda _, args, its=its: its.update(entered=args[0].clone())))
        for path, part in block.named_modules():
            handles.append(part.register_forward_hook(lambda _, __, y, path=path, its=its: its.update({path: y})))
    with torch.no_grad():
        model.base_model(**inputs)
    for handle in handles:
        handle.remove()
    xs = [source(its).flatten(0, -2) for its in seen]
    return [(x, ffn(its, x)) for x, its in zip(xs, weights(name, model), strict=True)]
