"""LLaMAs with blocks of unequal widths in DeciLM's form: the same outputs, and what other readers look for is there."""

import json
import subprocess
import sys

import gguf
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForSequenceClassification, dynamic_module_utils

import howlinear as hl
from conftest import BLOCKS, VOCABULARY, WIDTH, logits, tiny
from helpers.reference import random_map
from howlinear.models.decilm import width
from howlinear.models.load import load_on_disk
from howlinear.models.units import readout, unit_count, with_units


@pytest.fixture
def llama():
    return tiny("mini-llama")


@pytest.fixture
def uneven(llama):
    """Block 0 with 50 of its units, block 1 an affine map, block 2 a pair of layers of rank 4."""
    first = hl.sites(llama)[0]
    kept = torch.randperm(unit_count(llama, first))[:50].sort().values
    own = readout(llama, first)
    return hl.replace(
        llama,
        {
            0: with_units(llama, first, kept, hl.AffineMap(own.weight[kept], own.bias)),
            1: random_map(WIDTH),
            2: nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH)),
        },
    )


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Where transformers keeps the code of folders."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("ffn_mult", "hidden_size", "units"),
    [
        (5.25, 8192, 28672),  # the widest block of Llama-3_1-Nemotron-51B: LLaMA's own, 112 × 256
        (1.3125, 8192, 7168),
        (1.0, 8192, 5632),  # 5461, and 5632 = 22 × 256
        (0.5, 6, 256),
        (0.0, 4096, 0),
    ],
)
def test_the_width_of_a_block_by_hand(ffn_mult, hidden_size, units):
    assert width(ffn_mult, hidden_size) == units


@pytest.mark.parametrize("hidden_size", [32, 576, 768, 2048, 4096, 5120, 8192])
def test_what_is_written_is_read_as_the_width_that_is_meant(hidden_size):
    """Two thirds of one and a half may fall short of a whole number by a rounding: readers round up."""
    for multiples in range(1, 130):
        assert width(1.5 * 256 * multiples / hidden_size, hidden_size) == 256 * multiples


def test_units_and_maps_give_the_same_logits(uneven, ids):
    expected = logits(uneven, ids)
    found = hl.to_decilm(uneven)
    torch.testing.assert_close(logits(found, ids), expected, rtol=1e-5, atol=1e-5)
    assert [layer.mlp.up_proj.out_features for layer in found.model.layers] == [256] * BLOCKS
    assert not found.model.layers[0].mlp.down_proj.weight[:, 50:].any()
    assert torch.equal(logits(uneven, ids), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_in_half_precision_keeps_the_frequencies_of_rope_in_float32(llama, ids, tmp_path, dtype):
    """As `from_pretrained` does: rounded, they would turn late positions by another angle."""
    llama.save_pretrained(tmp_path)
    model = hl.load_model(tmp_path, dtype=dtype)
    for default in (torch.device("cpu"), torch.device("meta")):
        with default:
            found = hl.to_decilm(model)
        assert torch.equal(found.model.rotary_emb.inv_freq, llama.model.rotary_emb.inv_freq)
        assert torch.equal(logits(found, ids), logits(model, ids))


def test_a_folder_is_taken_by_its_name(uneven, ids, tmp_path):
    found = hl.to_decilm(hl.save(uneven, tmp_path / "small"))
    torch.testing.assert_close(logits(found, ids), logits(uneven, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("modules")
def test_of_weights_that_stay_on_disk_the_copys_do_too_and_are_the_same(uneven, ids, tmp_path, tokenizer):
    model = load_on_disk(hl.save(uneven, tmp_path / "small", tokenizer=tokenizer))
    found = hl.to_decilm(model)
    assert all(parameter.is_meta for parameter in (*model.parameters(), *found.parameters()))
    folder = hl.save(found, tmp_path / "deci")
    expected = hl.to_decilm(uneven).state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.state_dict().items())
    assert hl.load_corpus(["one two"], folder).tokenizer.get_vocab() == tokenizer.get_vocab()


def test_wide_blocks_are_padded_one_by_one(ids):
    wide = tiny("mini-llama")
    for site, units in zip(hl.sites(wide), (256, 300, 600), strict=True):
        module = site.output
        module.gate_proj, module.up_proj = (nn.Linear(WIDTH, units, bias=False) for _ in range(2))
        module.down_proj = nn.Linear(units, WIDTH, bias=False)
    found = hl.to_decilm(wide)
    assert [layer.mlp.up_proj.out_features for layer in found.model.layers] == [256, 512, 768]
    torch.testing.assert_close(logits(found, ids), logits(wide, ids), rtol=1e-5, atol=1e-5)


def test_heads_that_share_keys_are_told(ids):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 40, "num_hidden_layers": 2}
    grouped = LlamaForCausalLM(
        LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, attention_bias=True, mlp_bias=True)
    ).eval()
    for bias in (p for name, p in grouped.named_parameters() if name.endswith("bias")):
        nn.init.normal_(bias)
    found = hl.to_decilm(grouped)
    assert [block.attention.n_heads_in_group for block in found.config.block_configs] == [2, 2]
    torch.testing.assert_close(logits(found, ids), logits(grouped, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("modules")
def test_the_folder_loads_in_transformers_and_generates_the_same(uneven, ids, tmp_path, tokenizer):
    found = hl.to_decilm(uneven)
    folder = hl.save(found, tmp_path / "deci", tokenizer=tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert torch.equal(logits(loaded, ids), logits(found, ids))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(loaded.generate(ids[:2, :8], **options), uneven.generate(ids[:2, :8], **options))
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    assert torch.equal(logits(again, ids), logits(found, ids))


def test_a_folder_is_read_back_and_no_code_in_it_is_run(uneven, ids, tmp_path):
    folder = hl.save(hl.to_decilm(uneven), tmp_path / "deci")
    for module in folder.glob("*.py"):
        module.write_text("raise SystemExit('run')\n")
    found = hl.load_model(folder)
    torch.testing.assert_close(logits(found, ids), logits(uneven, ids), rtol=1e-5, atol=1e-5)
    assert hl.perplexity(found, ids) == pytest.approx(hl.perplexity(uneven, ids), rel=1e-5)


def test_the_folder_holds_what_llama_cpp_looks_for(uneven, tmp_path):
    folder = hl.save(hl.to_decilm(uneven), tmp_path / "deci")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DeciLMForCausalLM"]
    for block in config["block_configs"]:
        assert isinstance(block["ffn"]["ffn_mult"], float)
        assert config["num_attention_heads"] // block["attention"]["n_heads_in_group"] == config["num_key_value_heads"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DECI, BLOCKS)
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as weights:
        stored = {name: names.get_name(name, try_suffixes=(".weight", ".bias")) for name in weights.keys()}  # noqa: SIM118
    assert all(stored.values())
    assert stored["model.layers.1.mlp.gate_proj.bias"] == "blk.1.ffn_gate.bias"


@pytest.mark.long
def test_the_folder_needs_no_howlinear(uneven, ids, tmp_path):
    folder = hl.save(hl.to_decilm(uneven), tmp_path / "deci")
    torch.save(ids, tmp_path / "ids.pt")
    code = """
import sys, torch
sys.modules["howlinear"] = None
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/deci", trust_remote_code=True)
torch.save(model(torch.load(sys.argv[1] + "/ids.pt")).logits.detach(), sys.argv[1] + "/logits.pt")
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env={"HF_HOME": str(tmp_path / "cache")})
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), logits(uneven, ids), rtol=1e-5, atol=1e-5)
    assert folder.name == "deci"


def test_what_the_form_has_no_words_for_is_refused(gpt2, llama):
    with pytest.raises(hl.InputError, match="this is a 'gpt2' model"):
        hl.to_decilm(gpt2)
    llama.config.hidden_act = "gelu"
    with pytest.raises(hl.InputError, match="here are 'gelu' and 1 heads of 32 in 32"):
        hl.to_decilm(llama)


class Wrapped(nn.Module):
    """Passes what it is asked for on to a module inside, as those that count or shard do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["inner"], name)

    def forward(self, *args, **named):
        return self.inner(*args, **named)


@pytest.mark.parametrize("path", ["layers.0", "layers.0.mlp", "layers.0.mlp.up_proj", "every layer"])
def test_layers_that_are_wrapped_are_refused(llama, ids, path):
    for name in [f"layers.{block}" for block in range(BLOCKS)] if path == "every layer" else [path]:
        llama.model.set_submodule(name, Wrapped(llama.model.get_submodule(name)))
    with pytest.raises(hl.InputError):
        hl.to_decilm(llama)


def test_a_forward_that_was_written_over_is_not_made_smaller_by_its_weights(llama, ids):
    mlp = llama.model.layers[0].mlp
    mlp.forward = lambda x: 0.5 * mlp.down_proj(mlp.up_proj(x).relu())
    for call in (lambda: hl.compress(llama, ids, max_parameters=0.9), lambda: hl.to_decilm(llama)):
        with pytest.raises(hl.InputError, match=r"model\.layers\.0\.mlp has a forward of its own"):
            call()


def test_the_form_has_neither_hooks_nor_other_heads(llama, ids):
    before = logits(llama, ids)
    hook = llama.model.layers[0].register_forward_hook(lambda _, args, output: 0.5 * output)
    assert not torch.equal(logits(llama, ids), before)
    with pytest.raises(hl.InputError, match="has a hook"):
        hl.to_decilm(llama)
    hook.remove()
    torch.testing.assert_close(logits(hl.to_decilm(llama), ids), before, rtol=1e-5, atol=1e-5)
    with pytest.raises(hl.InputError, match=r"no place for score\.weight"):
        hl.to_decilm(LlamaForSequenceClassification(llama.config))
