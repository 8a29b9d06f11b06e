"""Models as people have them: wrapped, shared, quantised, halves of one, folders of other makers; measured or one line.

What is measured is compared with hooks and numpy's least squares in float64 (`helpers.reference`).
"""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import howlinear as hl
from conftest import VOCABULARY, WIDTH, tiny
from helpers.reference import held_out_r2, r2_by_hooks
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.models.load import load_on_disk, tokenizer_of

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("ignore:.*quantiz")]
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 64}
N, LENGTH, SHORTER = 64, 16, 9


def padded(length, seed):
    """Token ids and their mask, of sequences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (N, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (N, 1), generator=generator)
    return ids, (torch.arange(length) < lengths).long()


# --- shared, run twice, not at all


def test_one_module_in_two_places_is_refused(ids):
    model = tiny("mini-llama")
    model.model.layers[2].mlp = model.model.layers[0].mlp
    with pytest.raises(InputError, match=r"blocks 0 and 2 share one feed-forward block"):
        hl.measure(model, ids)


def test_a_layer_that_does_not_run_in_a_pass_is_refused(ids):
    model = tiny("mini-llama")
    layers = model.model.layers
    model.model.layers = nn.ModuleList([layers[0], layers[1]])
    model.model.layers[1].forward = lambda x, **keywords: layers[0](x, **keywords)
    model.config.num_hidden_layers = 2
    with pytest.raises(InputError, match=r"nothing passes block 1 "):
        hl.measure(model, ids, blocks=[1])


class Wrapped(nn.Module):
    """A layer in a module of somebody's own."""

    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def forward(self, *args, **keywords):
        return self.inner(*args, **keywords)


@pytest.mark.parametrize("known", [True, False])
def test_wrapped_layers_are_found_or_refused_and_never_left_out(ids, known):
    model = tiny("mini-llama")
    model.config.model_type = "llama" if known else "unknown"
    expected = hl.measure(model, ids).to_frame()["r2"].tolist()
    layers = model.model.layers
    layers[1] = Wrapped(layers[1])
    with pytest.raises(InputError, match=r"block 1 is wrapped.*model\.layers\.1\.inner\.mlp"):
        hl.sites(model)
    for block in (0, *range(2, len(layers))):
        layers[block] = Wrapped(layers[block])
    assert [site.name for site in hl.sites(model)] == [
        f"model.layers.{block}.inner.mlp" for block in range(len(layers))
    ]
    assert hl.measure(model, ids).to_frame()["r2"].tolist() == pytest.approx(expected, abs=1e-9)


# --- quantised


def test_dynamically_quantised_layers_are_measured_as_they_compute():
    ids, _ = padded(LENGTH, 0)
    model = torch.ao.quantization.quantize_dynamic(tiny("mini-llama"), {nn.Linear}, dtype=torch.qint8)
    mlp = model.model.layers[1].mlp
    # scales depend on what is in a batch, so all of a side's fold is one: here the whole text has one fold a side
    rows = hl.TokenRows.from_ids(ids, folds=1)
    found = hl.measure(model, rows, blocks=[1], batch_size=N)[1].r2
    one_side = []
    for held in (False, True):
        seen = {}
        hook = mlp.register_forward_hook(lambda _, args, y, seen=seen: seen.update(x=args[0], y=y))
        with torch.no_grad():
            model(input_ids=ids[(np.arange(N) % 4 == 3) == held])
        hook.remove()
        one_side.append([seen[name].flatten(0, 1).double().numpy() for name in "xy"])
    assert found == pytest.approx(held_out_r2(*one_side), abs=1e-5)
    with pytest.raises(InputError, match="without quantised layers"):
        hl.compress(model, rows, 0.9)


class WeightOnly(nn.Module):
    """A layer as GPTQ, AWQ and torchao have it: whole numbers and scales in buffers, no parameter."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scales", scale)
        self.register_buffer("qweight", (layer.weight.detach() / scale).round().to(torch.int8))

    def forward(self, x):
        return x @ (self.qweight * self.scales).T.to(x.dtype)


@pytest.mark.parametrize("noted", [None, "model.layers.*.mlp"])
def test_layers_of_whole_numbers_are_measured_and_swapped_as_they_compute(noted):
    ids, _ = padded(LENGTH, 0)
    model, rounded = tiny("mini-llama"), tiny("mini-llama")
    for plain, layer in zip(model.model.layers, rounded.model.layers, strict=True):
        for name in ("gate_proj", "up_proj", "down_proj"):
            packed = WeightOnly(getattr(layer.mlp, name))
            setattr(layer.mlp, name, packed)
            getattr(plain.mlp, name).weight.data = packed.qweight * packed.scales  # a plain layer of the same weights
    if noted:
        rounded.config.howlinear_sites = noted
    expected, found = (hl.measure(each, ids, swap=True).to_frame() for each in (model, rounded))
    for column in ("r2", "dppl"):
        assert found[column].tolist() == pytest.approx(expected[column].tolist(), abs=1e-5)
    with pytest.raises(InputError, match="without quantised layers"):
        hl.compress(rounded, ids, 0.9)


def test_whole_numbers_in_a_family_that_no_table_knows_are_refused_before_anything_runs(monkeypatch):
    model = tiny("mini-llama")
    model.config.model_type = "unheard-of"
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, name, WeightOnly(getattr(layer.mlp, name)))
    monkeypatch.setattr(type(model), "forward", None)
    with pytest.raises(InputError, match=r"cannot tell where .* keeps its FFNs"):
        hl.measure(model, padded(LENGTH, 0)[0])


# --- encoder-decoders by both sides


T5 = transformers.T5Config(vocab_size=VOCABULARY, d_model=WIDTH, d_ff=48, num_layers=2, num_heads=2, d_kv=16)
BART = transformers.BartConfig(
    vocab_size=VOCABULARY, d_model=WIDTH, max_position_embeddings=64, pad_token_id=1,
    **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
       (("layers", 2), ("ffn_dim", 48), ("attention_heads", 2))},
)  # fmt: skip
SIDES = {
    "t5 encoder": (T5, "encoder.block.*.layer.1.DenseReluDense", "input_ids"),
    "t5 decoder": (T5, "decoder.block.*.layer.2.DenseReluDense", "decoder_input_ids"),
    "bart encoder": (BART, "encoder.layers.*.fc1,encoder.layers.*.fc2", "input_ids"),
    "bart decoder": (BART, "decoder.layers.*.fc1,decoder.layers.*.fc2", "decoder_input_ids"),
}


@pytest.mark.parametrize("side", SIDES)
def test_each_side_of_an_encoder_decoder_has_its_own_mask(side):
    config, pattern, reads = SIDES[side]
    kind = transformers.T5ForConditionalGeneration if config is T5 else transformers.BartForConditionalGeneration
    model = kind(config).eval()
    ids, mask = padded(LENGTH, 0)
    decoder_ids, decoder_mask = padded(SHORTER, 1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs |= {"decoder_input_ids": decoder_ids, "decoder_attention_mask": decoder_mask}
    try:
        found = hl.measure(hl.load_model(model, sites=pattern), inputs, blocks=[1])[1]
        site = hl.sites(model, [1])[0]
        own_mask = mask if reads == "input_ids" else decoder_mask
        expected, count = r2_by_hooks(model, site.input, site.output, inputs, own_mask)
    finally:
        del config.howlinear_sites
    assert found.r2 == pytest.approx(expected, abs=1e-5)
    assert found.rows_train + found.rows_test == count


@pytest.mark.parametrize("config", [T5, BART])
def test_the_encoder_alone_is_measured_as_the_advice_says(config):
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    ids, mask = padded(LENGTH, 0)
    with pytest.raises(InputError, match=r"encoder\.(block|layers).* and decoder\.(block|layers).* all fit"):
        hl.measure(model, ids)
    encoder, inputs = model.get_encoder(), {"input_ids": ids, "attention_mask": mask}
    profile = hl.measure(encoder, inputs)
    assert len(profile) == 2
    assert profile.perplexity is None
    if config is BART:  # T5 is known by no table
        layer = encoder.layers[1]
        expected, _ = r2_by_hooks(encoder, layer.fc1, layer.fc2, inputs, mask)
        assert profile[1].r2 == pytest.approx(expected, abs=1e-5)


# --- folders


@pytest.fixture
def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_is_never_passed_over(llama, tmp_path, alone):
    """Whether peft is installed must not decide what is measured."""
    if not alone:
        llama.save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(SourceError, match=r"holds an adapter .*merge_and_unload"):
        hl.load_model(tmp_path)


@pytest.mark.parametrize("below", ["", "0_Transformer"])
def test_a_sentence_transformers_folder_is_its_transformer(tmp_path, below):
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    model.save_pretrained(tmp_path / below)
    parts = [{"idx": 0, "name": "0", "path": below, "type": "sentence_transformers.models.Transformer"}]
    parts += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(parts))
    ids, mask = padded(LENGTH, 0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    found = hl.measure(hl.load_model(tmp_path), inputs, blocks=[0])[0]
    layer = model.encoder.layer[0]
    expected, _ = r2_by_hooks(model, layer.intermediate.dense, layer.output.dense, inputs, mask)
    assert found.r2 == pytest.approx(expected, abs=1e-5)


def test_parts_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(SourceError, match=r"cannot read .*modules\.json"):
        hl.load_model(tmp_path)


@pytest.mark.parametrize("kind", ["LlamaForSequenceClassification", "GPT2ForTokenClassification"])
def test_a_head_that_scores_is_no_head_that_predicts(tmp_path, kind):
    """GPT-2's embedding would serve as a head that was never there."""
    small = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
    config = transformers.LlamaConfig(**SIZES, pad_token_id=0) if "Llama" in kind else transformers.GPT2Config(**small)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(tmp_path)
    ids, _ = padded(LENGTH, 0)
    loaded = hl.load_model(tmp_path)
    found, expected = hl.measure(loaded, ids), hl.measure(model, ids)
    assert found.perplexity is None
    assert [block.r2 for block in found.values()] == [block.r2 for block in expected.values()]


def test_biases_that_have_no_place_are_told_and_shapes_of_another_model_refused(tmp_path):
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, mlp_bias=True)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(saved | {"mlp_bias": False}))
    for load in (hl.load_model, load_on_disk):
        with pytest.warns(UserWarning, match=r"holds 6 weights .* has no place \(model\.layers\.0\.mlp\..*bias"):
            load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(saved | {"vocab_size": 90}))
    with pytest.raises(SourceError, match=r"of shape .*, and its config says \(90, "):
        hl.load_model(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(SourceError, match="pointer of Git LFS"):
        hl.load_model(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path):
    shutil.copytree(paths.MODELS / "mini-gpt2", tmp_path / "mine")
    (tmp_path / "mine" / "SHA256SUMS").unlink()  # which would say that a file has changed
    (tmp_path / "mine" / "tokenizer.json").write_text("{")
    with pytest.raises(SourceError, match=r"cannot read the tokenizer's .*tokenizer\.json: .*copy it again"):
        hl.measure(hl.load_model(tmp_path / "mine"), "docs")


def test_a_masked_head_that_was_never_saved_leaves_the_body(tmp_path):
    """As all-mpnet-base-v2 comes: its config names a head that its weights lack."""
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).eval()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    body = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
    save_file(body, tmp_path / "model.safetensors", {"format": "pt"})
    ids, _ = padded(LENGTH, 0)
    with pytest.warns(UserWarning, match="has no perplexity"):
        loaded = hl.load_model(tmp_path)
    expected = hl.measure(model, ids)
    assert [block.r2 for block in hl.measure(loaded, ids).values()] == [block.r2 for block in expected.values()]


def test_a_tokenizer_without_a_vocabulary_is_read(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    read = tokenizer_of(hl.load_model(tmp_path))("ab", add_special_tokens=False)["input_ids"]
    assert read == [97 + 3, 98 + 3]  # bytes, behind three control tokens
