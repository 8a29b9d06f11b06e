"""Attention and whole layers as sites: what modules of each family read and write, by sums of the residual stream."""

import pytest
import torch
import transformers as t
from torch import nn

import howlinear as hl
from conftest import tiny
from helpers.captures import seen_at_sites
from helpers.families import DEPTH, FAMILIES, INNER, TEXT, WIDTH, reads, small
from howlinear.models.ffn_sites import note, sites

NORM_BEFORE = {  # attention reads what this norm of its layer returns, and writes to the stream as it is
    **dict.fromkeys(("gpt2", "gptj", "gpt_neo"), "ln_1"),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon", "falcon, sequential", "llama", "mistral"), "input_layernorm"),
    **dict.fromkeys(("qwen2", "qwen3", "phi3", "stablelm", "mixtral"), "input_layernorm"),
    **dict.fromkeys(("opt", "xglm", "biogpt"), "self_attn_layer_norm"),
    "falcon, new": "ln_attn",
    "mpt": "norm_1",
}
NORM_BEHIND = {  # attention reads the stream itself; this norm gets the stream and what attention wrote, in sum
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "electra", "deberta", "deberta-v2"), "attention.output.LayerNorm"
    ),
    **dict.fromkeys(("opt, norm behind", "bart"), "self_attn_layer_norm"),
    "distilbert": "sa_layer_norm",
}
BOTH_NORMED = ("gemma2", "gemma3_text", "gemma3", "olmo2")  # a norm between attention and the stream


def passed(layers, path, inputs, model):
    """Per layer, what the module at a path below it was given and returned, and what entered the layer."""
    kept, handles = [], []
    for layer in layers:
        kept.append(its := {})
        part = layer.get_submodule(path)
        handles.append(layer.register_forward_pre_hook(lambda _, args, its=its: its.update(entered=args[0].clone())))
        hook = lambda _, args, out, its=its: its.update(given=args[0].clone(), returned=out.clone())  # noqa: E731
        handles.append(part.register_forward_hook(hook))
    with torch.no_grad():
        model.base_model(**inputs)
    for handle in handles:
        handle.remove()
    return [{name: value.flatten(0, -2) for name, value in its.items()} for its in kept]


def layers_of(name, model):
    return model.base_model.get_submodule(FAMILIES[name][2])


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", NORM_BEFORE)
def test_attention_and_ffn_write_what_the_layer_adds(name):
    model, inputs = small(name), reads(name)
    attention, ffn, layer = (seen_at_sites(model, inputs, kind) for kind in ("attention", "ffn", "layer"))
    by_hand = passed(layers_of(name, model), NORM_BEFORE[name], inputs, model)
    for block in range(DEPTH):
        close(attention[block][0], by_hand[block]["returned"])
        close(layer[block][0], by_hand[block]["entered"])
        close(layer[block][1], attention[block][1] + ffn[block][1])
        assert attention[block][1].abs().max() > 0


@pytest.mark.parametrize("name", NORM_BEHIND)
def test_where_the_norm_stands_behind_attention_writes_into_the_sum_that_it_gets(name):
    model, inputs = small(name), reads(name)
    attention, layer = (seen_at_sites(model, inputs, kind) for kind in ("attention", "layer"))
    by_hand = passed(layers_of(name, model), NORM_BEHIND[name], inputs, model)
    for block in range(DEPTH):
        x, y = attention[block]
        close(x, by_hand[block]["entered"])
        close(x + y, by_hand[block]["given"])
        if block + 1 < DEPTH:
            close(layer[block][0] + layer[block][1], layer[block + 1][0])


@pytest.mark.parametrize("name", BOTH_NORMED)
def test_where_what_is_written_is_normed_attention_ends_before_that(name):
    model, inputs = small(name), reads(name)
    attention, layer = (seen_at_sites(model, inputs, kind) for kind in ("attention", "layer"))
    by_hand = passed(layers_of(name, model), "post_attention_layernorm", inputs, model)
    behind = passed(layers_of(name, model), "post_feedforward_layernorm", inputs, model)
    for block in range(DEPTH):
        close(attention[block][1], by_hand[block]["given"])
        close(layer[block][1], by_hand[block]["returned"] + behind[block]["returned"])


def test_of_an_encoder_decoder_each_side_by_its_ffns():
    config = t.T5Config(
        vocab_size=60, d_model=WIDTH, d_kv=8, d_ff=INNER, num_layers=DEPTH, num_heads=2, decoder_start_token_id=0
    )
    model = t.T5ForConditionalGeneration(config).eval()
    ids = reads("gpt2")["input_ids"]
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(0)}
    with pytest.raises(hl.InputError, match=r"2 lists of layers, encoder\.block and decoder\.block"):
        sites(model, site="attention")
    for side, last in (("encoder", 1), ("decoder", 2)):
        note(model, f"{side}.block.*.layer.{last}.DenseReluDense")
        stack = model.get_submodule(f"{side}.block")
        attention, layer = (seen_at_sites(model, inputs, kind) for kind in ("attention", "layer"))
        by_hand = passed(stack, "layer.0.layer_norm", inputs, model)
        whole = passed(stack, "layer.0.SelfAttention.o", inputs, model)
        for block in range(DEPTH):
            close(attention[block][0], by_hand[block]["returned"])
            close(attention[block][1], whole[block]["returned"])
            close(layer[block][0], by_hand[block]["entered"])
    assert [site.name for site in sites(model.get_encoder(), site="attention")] == [
        f"block.{block}.layer.0.SelfAttention" for block in range(DEPTH)
    ]


class Straight(nn.Module):
    """A layer that adds to the residual stream an affine map of it."""

    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, hidden_states, *_, **__):
        return hidden_states + self.map(hidden_states)


def test_a_layer_that_is_a_line_is_measured_as_one_and_costs_nothing_to_swap(gpt2):
    gpt2.transformer.h[1] = Straight(gpt2.config.n_embd)
    rows = hl.TokenRows.from_ids(torch.randint(80, (96, 32)), folds=3)
    profile = hl.measure(gpt2, rows, site="layer", swap=True)
    assert profile[1].r2 == pytest.approx(1, abs=1e-8)
    assert profile[0].r2 < 0.99
    linear = gpt2.transformer.h[1].map
    torch.testing.assert_close(profile[1].map.weight, linear.weight.T.double(), atol=1e-4, rtol=0)
    assert abs(profile.costs[1].delta) < 1e-2
    errors = hl.token_errors(gpt2, profile, blocks=1)
    assert (errors["residual"] == 0).all()


@pytest.mark.parametrize("kind", ["attention", "layer"])
@pytest.mark.parametrize("name", ["mini-gpt2", "mini-pythia", "mini-llama"])
def test_a_swap_is_the_module_with_another_forward(name, kind, ids):
    model, block = tiny(name), 1
    (site,) = sites(model, block, kind)
    own = site.output.forward

    def forward(*args, **named):
        x = args[0] if args else named["hidden_states"]
        output = own(*args, **named)
        y = torch.sin(x) + (x if kind == "layer" else 0)
        return y if isinstance(output, torch.Tensor) else (y, *output[1:])

    before = hl.losses(model, ids)
    site.output.forward = forward
    expected = hl.losses(model, ids)
    del site.output.forward
    with hl.swap(model, {block: torch.sin}, kind):
        assert torch.equal(hl.losses(model, ids), expected)
    assert not torch.equal(expected, before)
    assert torch.equal(hl.losses(model, ids), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_what_is_not_there_is_refused(gpt2, rows):
    for call in (hl.measure, hl.capture, hl.token_errors):
        with pytest.raises(hl.InputError, match="site 'mlp': give ffn, attention, layer"):
            call(gpt2, rows, site="mlp")
    albert = t.AlbertModel(t.AlbertConfig(**TEXT, embedding_size=8, hidden_size=16, num_attention_heads=2))
    xlm, mamba = small("xlm"), t.MambaForCausalLM(t.MambaConfig(**TEXT, hidden_size=16, num_hidden_layers=2))
    for model, kind in ((albert, "layer"), (albert, "attention"), (xlm, "layer"), (xlm, "attention")):
        with pytest.raises(hl.InputError, match="cannot"):
            sites(model, site=kind)
    assert [site.name for site in sites(mamba, site="layer")] == ["backbone.layers.0", "backbone.layers.1"]


def test_a_profile_says_what_its_maps_stand_for(gpt2, rows, tmp_path):
    profile = hl.measure(gpt2, rows, site="attention")
    with pytest.raises(hl.InputError, match="'layer' with maps of 'attention'"), hl.swap(gpt2, profile, "layer"):
        pass
    with pytest.raises(hl.InputError, match="attention"):
        hl.replace(gpt2, profile)
    with hl.swap(gpt2, profile):
        expected = hl.losses(gpt2, rows.ids)
    profile.save(tmp_path / "p.safetensors")
    back = hl.load_profile(tmp_path / "p.safetensors")
    of_ffns = hl.measure(gpt2, rows)
    for maps in (dict(profile), {block: found.map for block, found in back.items()}):
        with hl.swap(gpt2, maps):
            assert torch.equal(hl.losses(gpt2, rows.ids), expected)
        with pytest.raises(hl.InputError, match="attention"):
            hl.replace(gpt2, maps)
        with pytest.raises(hl.InputError, match="attention and ffn together"):
            hl.swap_costs(gpt2, maps | {0: of_ffns[0]}, rows)
    assert back.site == "attention"
    assert set(back.to_frame()["site"]) == {"attention"}
    costs, again = hl.swap_costs(gpt2, profile, rows), hl.swap_costs(gpt2, back, rows)
    assert costs == again
