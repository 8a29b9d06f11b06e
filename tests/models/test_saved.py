"""A folder of a model with replaced blocks: loaded by howlinear it is that model, and nothing else draws weights."""

import os
from functools import partial

import pytest
import torch
import transformers
from torch import nn
from torch.nn.utils import parametrize, prune

import howlinear as hl
from conftest import VOCABULARY, WIDTH
from helpers.reference import random_map
from howlinear.errors import InputError, SourceError

SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
INNER = SIZES | {"intermediate_size": 48}
BART = {"decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 2, "d_model": WIDTH}
KINDS = {  # one module; one of two layers; experts; a mixture's router; a pair with its residual; an encoder
    "LlamaForCausalLM": transformers.LlamaConfig(**INNER),
    "LlamaForSequenceClassification": transformers.LlamaConfig(**INNER),
    "GPT2LMHeadModel": transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=2),
    "MixtralForCausalLM": transformers.MixtralConfig(**INNER, num_local_experts=4, num_key_value_heads=2),
    "Qwen3MoeForCausalLM": transformers.Qwen3MoeConfig(
        **INNER, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, num_key_value_heads=2
    ),
    "BloomForCausalLM": transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2, n_head=2),
    "BartForCausalLM": transformers.BartConfig(vocab_size=VOCABULARY, **BART),
    "BertForMaskedLM": transformers.BertConfig(**INNER),
}


def built(name):
    torch.manual_seed(0)
    return getattr(transformers, name)(KINDS[name]).eval()


@pytest.fixture
def ids():
    return torch.randint(0, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(1))


def outputs(model, ids):
    with torch.no_grad():
        return model.base_model(input_ids=ids)[0]


def affine():
    return random_map(WIDTH, scale=0.1)


def low_rank():
    return nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("map_", [affine, low_rank])
@pytest.mark.parametrize("name", KINDS)
def test_replaced_blocks_come_back_and_no_other_loader_draws_them(tmp_path, ids, name, map_):
    model = built(name)
    replaced = hl.replace(model, {1: map_()})
    folder = hl.save(replaced, tmp_path / "small")
    assert torch.equal(outputs(hl.load_model(folder), ids), outputs(replaced, ids))
    for loader in (type(model), transformers.AutoModel, type(model.base_model)):
        with pytest.raises(RuntimeError, match="mismatch"):
            loader.from_pretrained(folder)
    assert "refuses their weights" in (folder / "README.md").read_text("utf-8")
    # what was loaded is saved again, without what stood in the way of others
    again = hl.load_model(hl.save(hl.load_model(folder), tmp_path / "again"))
    assert torch.equal(outputs(again, ids), outputs(replaced, ids))


class Lora(nn.Module):
    """What an adapter puts around a layer."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.Linear(layer.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def with_adapter(mlp):
    mlp.up_proj = Lora(mlp.up_proj)


def quantised(mlp):
    mlp.down_proj = torch.ao.quantization.quantize_dynamic(nn.Sequential(mlp.down_proj), {nn.Linear})[0]


DAMAGES = {
    "an adapter": with_adapter,
    "pruning": lambda mlp: prune.l1_unstructured(mlp.up_proj, "weight", amount=0.3),
    "a parametrisation": lambda mlp: parametrize.register_parametrization(mlp.up_proj, "weight", Doubled()),
    "a quantised layer": quantised,
    "another width": lambda mlp: setattr(mlp, "up_proj", nn.Linear(WIDTH, 40, bias=False)),
}


CHANGES = {
    "a hook has a say": lambda mlp: mlp.register_forward_hook(lambda _, __, y: 2 * y),
    "a hook before": lambda mlp: mlp.up_proj.register_forward_pre_hook(partial(lambda *_: None)),
    "another activation": lambda mlp: setattr(mlp, "act_fn", nn.Identity()),
    "activations in a row": lambda mlp: setattr(mlp, "act_fn", nn.Sequential(nn.SiLU(), nn.Tanh())),
    "another forward": lambda mlp: setattr(mlp, "forward", lambda x: x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        *((damage, "load again") for damage in DAMAGES.values()),
        *((change, "compute the same") for change in CHANGES.values()),
    ],
    ids=[*DAMAGES, *CHANGES],
)
def test_what_would_not_come_back_is_refused_before_anything_is_written(tmp_path, change, why):
    model = built("LlamaForCausalLM")
    change(model.model.layers[0].mlp)
    with pytest.raises(InputError, match=rf"would not {why} from a folder.*model\.layers\.0\.mlp"):
        hl.save(model, tmp_path / "small")
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_half_a_model_is_refused_and_the_whole_comes_back_with_a_block_replaced(tmp_path, ids, half):
    """A folder of a `BartEncoder` would be loaded as a whole BART."""
    encoder = {"encoder_layers": 2, "encoder_ffn_dim": 48, "encoder_attention_heads": 2}
    whole = transformers.BartModel(transformers.BartConfig(vocab_size=VOCABULARY, **BART, **encoder)).eval()
    replaced = hl.replace(whole.get_submodule(half), {0: affine()})
    with pytest.raises(InputError, match=f"no folder as a Bart{half.title()}, a part of other models: replace blocks"):
        hl.save(replaced, tmp_path / "half")
    assert not (tmp_path / "half").exists()
    replaced = hl.replace(hl.load_model(whole, sites=f"{half}.layers.*.fc1,{half}.layers.*.fc2"), {0: affine()})
    hl.save(replaced, tmp_path / "whole")
    assert torch.equal(outputs(hl.load_model(tmp_path / "whole"), ids), outputs(replaced, ids))


@pytest.mark.filterwarnings("ignore")  # of torch.compile
def test_what_libraries_put_around_a_model_is_no_reason_to_refuse_it(tmp_path, ids):
    model = built("LlamaForCausalLM")
    expected = outputs(model, ids)
    model(ids, output_hidden_states=True)  # transformers leaves hooks behind
    assert any(part._forward_hooks for part in model.modules())
    model.forward = torch.compile(model.forward)  # as many people do
    model.model.layers[0].mlp.compile()
    model.note = nn.Identity()  # a part that no forward calls
    assert torch.equal(outputs(hl.load_model(hl.save(model, tmp_path / "model")), ids), expected)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", os.fsdecode(b"caf\xe9")])
def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_made(tmp_path, ids, name):
    model = built("GPT2LMHeadModel")
    with pytest.raises(SourceError, match="cannot write"):
        hl.save(model, tmp_path / name)
    if name.isascii():
        with pytest.raises(SourceError, match="cannot write"):
            hl.measure(model, ids.repeat(20, 1)).save(tmp_path / f"{name}.safetensors")
    assert not [*tmp_path.iterdir()]


def test_weights_that_a_person_tied_are_saved_untied(tmp_path, ids):
    model = built("GPT2LMHeadModel")
    model.transformer.h[1].mlp.c_fc.weight = model.transformer.h[0].mlp.c_fc.weight
    loaded = hl.load_model(hl.save(model, tmp_path / "model"))
    assert torch.equal(outputs(loaded, ids), outputs(model, ids))
    first, second = (layer.mlp.c_fc.weight for layer in loaded.transformer.h)
    assert torch.equal(first, second)
    assert first is not second


# --- classes of a person's own


class MineConfig(transformers.LlamaConfig):
    model_type = "mine"


class Mine(transformers.LlamaForCausalLM):
    config_class = MineConfig


class MineAlone(transformers.LlamaModel):
    config_class = MineConfig


@pytest.fixture
def mine(monkeypatch):
    """A model of a class of its own; what it is registered as is forgotten again."""
    for mapping in (transformers.CONFIG_MAPPING, transformers.MODEL_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING):
        monkeypatch.setattr(mapping, "_extra_content", {**mapping._extra_content})

    def built(kind):
        torch.manual_seed(0)
        return kind(MineConfig(**INNER)).eval()

    return built


@pytest.mark.parametrize(("kind", "auto"), [(Mine, "AutoModelForCausalLM"), (MineAlone, "AutoModel")])
@pytest.mark.parametrize("map_", [None, affine])
def test_a_class_of_ones_own_is_saved_once_it_is_registered(tmp_path, ids, mine, kind, auto, map_):
    model = mine(kind)
    if map_ is not None:
        model = hl.replace(model, {1: map_()})
    way_out = rf"AutoConfig\.register\('mine', MineConfig\) and {auto}\.register\(MineConfig, {kind.__name__}\)"
    with pytest.raises(InputError, match=way_out):
        hl.save(model, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    transformers.AutoConfig.register("mine", MineConfig)
    with pytest.raises(InputError, match=way_out):
        hl.save(model, tmp_path / "mine")
    getattr(transformers, auto).register(MineConfig, kind)
    loaded = hl.load_model(hl.save(model, tmp_path / "mine"))
    assert type(loaded) is kind
    assert torch.equal(outputs(loaded, ids), outputs(model, ids))


class Named(transformers.LlamaForCausalLM):
    """A known model under another name."""


class Bent(transformers.LlamaForCausalLM):
    """A known model with blocks of another kind, whose weights are called the same."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.__class__ = Twice


class Twice(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_class_made_of_a_known_one_is_saved_if_it_computes_the_same(tmp_path, ids):
    model = Named(KINDS["LlamaForCausalLM"]).eval()
    assert torch.equal(outputs(hl.load_model(hl.save(model, tmp_path / "named")), ids), outputs(model, ids))
    with pytest.raises(InputError, match=r"layers\.0\.mlp is a Twice in the place of a LlamaMLP"):
        hl.save(Bent(KINDS["LlamaForCausalLM"]), tmp_path / "bent")
    assert not (tmp_path / "bent").exists()


def test_a_model_that_transformers_has_saved_is_saved_and_drawn_again(tmp_path, ids):
    """Saving leaves the dtype in its config as a string, and an activation with weights asks for it."""
    config = transformers.ApertusConfig(**INNER)
    model = transformers.ApertusForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    replaced = hl.replace(model, {0: random_map(WIDTH)})
    hl.save(replaced, tmp_path / "mine")
    assert torch.equal(hl.load_model(tmp_path / "mine")(ids).logits, replaced(ids).logits)
    assert type(hl.untrained(model)) is type(model)
