"""What a model is in when it comes, in training, hooked, tied, stays as it is, and no number follows from it unsaid."""

import pytest
import torch
from torch import nn
from transformers import (
    ConvNextConfig,
    ConvNextModel,
    FSMTConfig,
    FSMTModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaMLP

import howlinear as hl
from helpers.reference import r2_by_hooks
from howlinear.errors import InputError

SIZES = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
IDS = torch.randint(3, 100, (96, 16), generator=torch.Generator().manual_seed(0))


def llama(**more):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=4, bos_token_id=1, eos_token_id=2, **more)
    return LlamaForCausalLM(config).eval()


def by_units(model):
    found = hl.compress(model, IDS, max_parameters=0.98)
    return found.units, found.perplexity


def by_maps(model):
    return [float(m.weight.norm()) for m in hl.compress_to(model, IDS, max_dppl=30.0).maps.values()]


@pytest.mark.parametrize("made", [by_units, by_maps])
def test_compressing_draws_nothing_from_torchs_random_numbers_and_needs_no_mode_of_autograd(made):
    model = llama()
    before = torch.get_rng_state()
    expected = made(model)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.inference_mode():
        assert made(model) == expected
        made_there = llama()
    with pytest.raises(InputError, match="gives no gradients"):
        made(made_there)


def test_what_a_hook_hands_a_block_no_map_in_its_place_would_get():
    model = llama()
    handle = model.model.layers[0].mlp.register_forward_pre_hook(lambda _, args: (0.5 * args[0],))
    profile = hl.measure(model, IDS)
    with pytest.raises(InputError, match=r"block 0: a hook stands before model\.layers\.0\.mlp"):
        hl.swap_costs(model, profile, IDS)
    handle.remove()
    assert hl.swap_costs(model, profile, IDS)
    of_all = nn.modules.module.register_module_forward_pre_hook(lambda module, args: None)
    with pytest.raises(InputError, match="block 0: a hook stands before"):
        hl.swap_costs(model, profile, IDS)
    of_all.remove()


class Louder(LlamaForCausalLM):
    def forward(self, input_ids=None, **named):
        return super().forward(inputs_embeds=3 * self.get_input_embeddings()(input_ids) + 1, **named)


def by_class(model):
    model.__class__ = Louder


def by_instance(model):
    own = model.forward
    model.forward = lambda input_ids, **named: own(inputs_embeds=3 * model.model.embed_tokens(input_ids) + 1, **named)


def by_hook(model):
    def other_ids(_, args, named):
        return args, {**named, "input_ids": (named["input_ids"] + 7) % 100}

    model.register_forward_pre_hook(other_ids, with_kwargs=True)


@pytest.mark.parametrize("changed", [by_class, by_instance, by_hook])
def test_what_a_model_does_before_its_body_comes_to_the_rows_of_both_sides(changed):
    model = llama()
    changed(model)
    profile = hl.measure(model, IDS)
    for block, layer in enumerate(model.model.layers):
        expected, _ = r2_by_hooks(model, layer.mlp, layer.mlp, {"input_ids": IDS})
        assert profile[block].r2 == pytest.approx(expected, abs=1e-5)


def test_weights_of_two_blocks_are_not_made_smaller_in_one():
    model = llama()
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    with pytest.raises(InputError, match=r"block 1: .* it is block 0's as well"):
        hl.compress(model, IDS, max_parameters=0.8)


def test_rows_that_cannot_be_told_apart_and_blocks_without_one_width_are_refused():
    convolutions = ConvNextModel(ConvNextConfig(hidden_sizes=[16, 16], depths=[2, 2], num_stages=2))
    with pytest.raises(InputError, match="no one width"):
        hl.sites(convolutions)
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    vocabularies = {"src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"]}
    turned = FSMTModel(FSMTConfig(d_model=32, encoder_layers=2, decoder_layers=2, **heads, **vocabularies))
    for named in (None, "encoder.layers.*.fc1,encoder.layers.*.fc2"):
        with pytest.raises(InputError, match="positions of sequences"):
            hl.sites(hl.load_model(turned, sites=named))


class Turned(torch.nn.Module):
    """Gives a module positions of sequences, as torch's own layers read them by default."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


def test_sites_that_read_positions_of_sequences_are_refused():
    model = llama()
    for layer in model.model.layers:
        layer.mlp = Turned(layer.mlp)
    padded = {"input_ids": IDS, "attention_mask": (torch.arange(16) < 5 + torch.arange(96)[:, None] % 9).long()}
    maps = {0: hl.measure(hl.load_model(model, sites="model.layers.*.mlp"), padded)[0].map}
    as_many = {"input_ids": IDS.view(-1, 4), "attention_mask": (torch.arange(4) < 2 + torch.arange(384)[:, None] % 3)}
    hl.load_model(model, sites="model.layers.*.mlp.inner")
    for call in (
        lambda: hl.measure(model, padded),
        lambda: hl.token_errors(model, maps, padded),
        lambda: hl.measure(model, as_many, batch_size=4),  # sequences of a batch as many as their positions
    ):
        with pytest.raises(InputError, match="positions of sequences"):
            call()


def test_a_profile_is_equal_to_itself_alone():
    one, other = hl.measure(llama(), IDS), hl.measure(llama(), IDS)
    assert one == one
    assert one != other
    assert one in {one}


def test_what_transformers_does_not_save_is_one_line(tmp_path):
    model = llama()
    model.generation_config.temperature = 0.6
    with pytest.raises(InputError, match="temperature"):
        hl.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("path", ["", "model", "model.layers.0"])
def test_a_copy_of_a_model_does_not_run_the_parts_of_the_one_that_it_is_of(path):
    model = llama()
    maps = {block: found.map for block, found in hl.measure(model, IDS).items()}
    part = model.get_submodule(path)
    own = type(part).forward
    part.forward = lambda *args, **named: own(part, *args, **named)
    for call in (lambda: hl.replace(model, maps), lambda: hl.compress(model, IDS, max_parameters=0.95)):
        with pytest.raises(InputError):
            call()
    part.forward = own.__get__(part)  # a method bound to its module is copied with it
    with hl.swap(model, maps):
        swapped = hl.perplexity(model, IDS)
    assert hl.perplexity(hl.replace(model, maps), IDS) == pytest.approx(swapped, rel=1e-6)


class Sharper(LlamaForCausalLM):
    """A LLaMA whose predictions are surer."""

    def forward(self, *args, **named):
        output = super().forward(*args, **named)
        output.logits = 30 * output.logits
        return output


class Halved(LlamaMLP):
    """A feed-forward block that writes half."""

    def forward(self, x):
        return 0.5 * super().forward(x)


def test_a_class_that_the_config_does_not_name_is_not_saved_as_the_one_it_names(tmp_path):
    halved = llama()
    halved.model.layers[0].mlp = Halved(halved.config)
    for number, model in enumerate((Sharper(llama().config).eval(), halved)):
        with pytest.raises(InputError, match="would not compute the same"):
            hl.save(model, tmp_path / str(number))
        with pytest.raises(InputError, match="would not compute the same"):
            hl.to_decilm(model)


class IdsAlone(MixtralForCausalLM):
    def forward(self, input_ids):
        return super().forward(input_ids=input_ids)


def test_a_mixture_that_is_told_to_give_its_routers_scores_is_swapped_as_any():
    costs = []
    for kind, told in ((MixtralForCausalLM, False), (MixtralForCausalLM, True), (IdsAlone, True)):
        torch.manual_seed(0)
        experts = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4}
        model = kind(MixtralConfig(**SIZES, **experts, output_router_logits=told)).eval()
        costs.append([cost.delta for cost in hl.measure(model, IDS, swap=True).costs.values()])
    assert costs[0] == costs[1]
    assert costs[2] == pytest.approx(costs[0], abs=1e-4)  # it keeps a cache
