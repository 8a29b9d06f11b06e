"""Which tokens the line misses: by least squares in float64, and where the answer is planted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import howlinear as hl
from helpers.captures import seen_at_sites
from helpers.families import reads, small
from helpers.reference import least_squares
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.instrument.token_errors import missed_types, summarise_blocks, token_errors
from howlinear.text.rows import ModelInputs, TokenRows

LENGTH, RARE, PLACE = 16, 7, 3


@pytest.fixture
def rows():
    """Token ids in four folds on each side."""
    ids = torch.randint(80, (160, LENGTH), generator=torch.Generator().manual_seed(2))
    return TokenRows.from_ids(ids, folds=4)


@pytest.mark.parametrize("kind", ["ffn", "attention", "layer"])
def test_every_number_by_hand(gpt2, rows, kind):
    errors = token_errors(gpt2, hl.measure(gpt2, rows, site=kind), tokens=10**6)
    assert set(errors["site"]) == {kind}
    held_out = rows.test.repeat_interleave(LENGTH)
    for block, (x, y) in seen_at_sites(gpt2, {"input_ids": rows.ids}, kind).items():
        train, test = (torch.stack([x[side], y[side]]).double() for side in (~held_out, held_out))
        weight, bias, _ = least_squares(*train)
        shown, outputs = (part.numpy() for part in test)
        missed = np.square(outputs - shown @ weight - bias).sum(1)
        varied = np.square(outputs - outputs.mean(0)).sum(1)
        found = errors[errors["block"] == block]
        assert found["token"].tolist() == rows.ids[rows.test].flatten().tolist()
        assert found["position"].tolist() == list(range(LENGTH)) * int(rows.test.sum())
        assert found["sequence"].tolist() == rows.test.nonzero()[:, 0].repeat_interleave(LENGTH).tolist()
        np.testing.assert_allclose(found["residual"], missed / missed.mean(), rtol=1e-3)
        np.testing.assert_allclose(found["share"], missed / missed.sum(), rtol=1e-3)
        np.testing.assert_allclose(found["output"], varied / varied.mean(), rtol=1e-4)
        np.testing.assert_allclose(found["r2"], 1 - missed / varied, rtol=1e-3, atol=1e-3)


def test_all_held_out_tokens_together_give_r2(gpt2, rows):
    profile = hl.measure(gpt2, rows)
    summary = summarise_blocks(token_errors(gpt2, profile, tokens=10**6))
    np.testing.assert_allclose(summary["r2"], [profile[block].r2 for block in summary["block"]], atol=1e-6)


def test_measuring_itself_or_with_a_profile_or_maps_it_says_the_same(gpt2, rows):
    profile = hl.measure(gpt2, rows)
    expected = token_errors(gpt2, profile)
    maps = {block: found.map for block, found in profile.items()}
    for again in (token_errors(gpt2, rows), token_errors(gpt2, profile, rows), token_errors(gpt2, maps, rows)):
        np.testing.assert_allclose(again["residual"], expected["residual"], rtol=1e-9)
    with torch.no_grad():
        modules = {1: nn.Linear(32, 32)}
        modules[1].weight.copy_(maps[1].weight.T)
        modules[1].bias.copy_(maps[1].bias)
    of_module = token_errors(gpt2, modules, rows)
    np.testing.assert_allclose(of_module["residual"], expected.loc[expected["block"] == 1, "residual"], rtol=1e-2)


class Planted(nn.Module):
    """A block that is a line but for what it adds where `misses` says so, with a sign that no line can know."""

    def __init__(self, model, misses):
        super().__init__()
        self.line, self.misses, self.ids = nn.Linear(32, 32), misses, None
        model.transformer.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, _, args, named):
        self.ids = args[0] if args else named["input_ids"]

    def forward(self, x):
        places = self.misses(self.ids)
        sign = 1 - 2 * (self.ids.sum(1, keepdim=True) % 2)
        return self.line(x) + 20 * (places * sign)[..., None]


def of_type(ids):
    return (ids == RARE).long()


def at_place(ids):
    return (torch.arange(ids.shape[1]) == PLACE).long().expand_as(ids)


@pytest.mark.parametrize(("misses", "column", "value"), [(of_type, "token", RARE), (at_place, "position", PLACE)])
def test_the_one_type_or_place_that_is_missed_is_named(gpt2, rows, misses, column, value):
    gpt2.transformer.h[1].mlp = planted = Planted(gpt2, misses)
    line = AffineMap(planted.line.weight.T.detach().double(), planted.line.bias.detach().double())
    errors = token_errors(gpt2, {1: line}, rows, tokens=10**6)
    there = errors[column] == value
    np.testing.assert_allclose(errors.loc[there, "residual"], len(errors) / there.sum(), rtol=1e-4)
    assert (errors.loc[~there, "residual"] < 1e-9).all()

    measured = token_errors(gpt2, rows, blocks=1, tokens=10**6)
    assert measured.loc[there, "share"].sum() > 0.9
    (summary,) = summarise_blocks(measured).to_dict("records")
    assert summary["half"] <= there.sum()
    if column == "token":
        first = missed_types(measured).iloc[0]
        assert (first["token"], first["times"]) == (RARE, there.sum())
        assert first["share"] == pytest.approx(measured.loc[there, "share"].sum())
        assert first["residual"] == pytest.approx(measured.loc[there, "residual"].mean())


def test_a_block_that_is_a_line_has_no_residual(gpt2, rows):
    gpt2.transformer.h[1].mlp = nn.Linear(32, 32)
    errors = token_errors(gpt2, rows)
    assert (errors.loc[errors["block"] == 1, ["residual", "share"]] == 0).all(axis=None)
    assert (errors.loc[errors["block"] == 1, "r2"] == 1).all()
    summary = summarise_blocks(errors).set_index("block")
    assert summary.loc[1, ["r2", "half", "top", "first"]].tolist() == [1, 0, 0, 0]
    assert summary.loc[0, "half"] > 0
    assert 1 not in set(missed_types(errors)["block"])


def test_summaries_by_hand(gpt2, rows):
    errors = token_errors(gpt2, rows, blocks=0, tokens=2 * LENGTH).assign(share=0.0)
    errors.loc[[0, 3, LENGTH, 5, 6, 7], "share"] = [0.5, 0.1, 0.3, 0.04, 0.03, 0.03]
    (summary,) = summarise_blocks(errors).to_dict("records")
    assert (summary["tokens"], summary["half"]) == (2 * LENGTH, 1)
    assert summary["top"] == pytest.approx(0.97)  # five of the six
    assert summary["first"] == pytest.approx(0.8)  # both sequences begin with one of them


def test_few_tokens_are_of_every_fold_in_turn(gpt2, rows):
    shown = token_errors(gpt2, rows, blocks=0, tokens=6 * LENGTH)
    held_out = rows.folds(test=True)
    expected = [*(int(fold[0]) for fold in held_out), int(held_out[0][1]), int(held_out[1][1])]
    assert shown["sequence"].unique().tolist() == sorted(expected)
    assert len(token_errors(gpt2, rows, blocks=0, tokens=1)) == LENGTH  # a sequence is whole


def test_an_encoder_with_padding():
    model, ids = small("bert"), reads("bert", n=64)["input_ids"]
    mask = torch.ones_like(ids)
    mask[3::8, -4:] = 0  # of every second sequence that is held out
    inputs = ModelInputs.of({"input_ids": ids, "attention_mask": mask})
    errors = token_errors(model, inputs, tokens=10**6)
    assert len(errors) == 2 * int(mask[inputs.test].sum())
    assert errors["position"].max() == ids.shape[1] - 1
    assert errors["share"].groupby(errors["block"]).sum().tolist() == pytest.approx([1, 1])


def decoding():
    """A model of which the decoder is measured, and inputs of which it reads longer sequences with padding."""
    torch.manual_seed(0)
    sizes = {f"{half}_{size}": n for half in ("encoder", "decoder") for size, n in SIZES.items()}
    config = transformers.BartConfig(vocab_size=100, d_model=16, **sizes)
    model = transformers.BartForConditionalGeneration(config).eval()
    model.config.howlinear_sites = "decoder.layers.*.fc1,decoder.layers.*.fc2"
    mask = torch.ones(320, 16, dtype=torch.long)
    mask[3::8, -4:] = 0
    read = {"input_ids": torch.randint(4, 50, (320, 12)), "decoder_input_ids": torch.randint(50, 100, (320, 16))}
    return model, ModelInputs.of(read | {"decoder_attention_mask": mask})


SIZES = {"layers": 2, "ffn_dim": 32, "attention_heads": 2}


def test_of_a_decoder_the_tokens_are_those_that_it_reads():
    model, inputs = decoding()
    errors = token_errors(model, hl.measure(model, inputs), inputs, tokens=10**6, blocks=1)
    ids, mask = inputs.read_by("decoder.layers.1.fc2")
    held_out = mask[inputs.test]
    assert errors["token"].tolist() == ids[inputs.test][held_out].tolist()
    assert errors["position"].tolist() == held_out.nonzero()[:, 1].tolist()
    few = token_errors(model, hl.measure(model, inputs), inputs, tokens=32, blocks=1)
    assert few["sequence"].nunique() == 2  # of 16 tokens, and not of the encoder's 12


def test_a_decoder_is_split_by_the_tokens_that_it_reads():
    """These decide much of what its first block writes; the encoder's, drawn apart from them, nothing."""
    model, inputs = decoding()
    alike = {name: tensor for name, tensor in inputs.inputs.items() if name != "decoder_attention_mask"}
    alike["input_ids"] = torch.randint(4, 50, (320, 16))
    split = hl.measure(model, ModelInputs.of(alike), tokens=True, blocks=0).tokens[0]
    assert split.token_share.value > 0.2


def test_of_a_decoder_that_reads_no_ids_there_are_no_tokens_to_tell():
    inputs = ModelInputs.of({"input_ids": torch.ones(8, 4).long(), "decoder_inputs_embeds": torch.ones(8, 4, 3)})
    assert inputs.read_by("decoder.layers.0.fc2") == (None, None)
    assert inputs.read_by("encoder.layers.0.fc2")[0] is inputs.ids


def test_texts_and_documents_where_there_is_a_tokenizer(tokenizer):
    from conftest import tiny

    model = tiny("mini-gpt2")
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    words = ["näher", "stone", "日本", "a b", "line\nbreak"]
    texts = [" ".join(words[(i * j) % 5] + str(i + j) for j in range(12)) for i in range(200)]
    errors = token_errors(model, hl.Corpus("mine", tokenizer, texts), rows=4096, seq_len=32, blocks=0)
    for _, sequence in errors.groupby("sequence"):
        decoded = tokenizer.decode(sequence["token"].tolist())
        assert "".join(sequence["text"]) == decoded.rstrip("�").lstrip("�")
        assert "�" not in "".join(sequence["text"])
        ends = (sequence["token"] == tokenizer.eos_token_id).to_numpy()
        assert sequence["document"].tolist() == (ends.cumsum() - ends).tolist()
    assert errors["document"].max() > 0


def test_wrong_arguments_are_one_line_each(gpt2, rows, tmp_path):
    profile = hl.measure(gpt2, rows)
    maps = {0: profile[0].map}
    profile.save(tmp_path / "p.json")
    profile.save(tmp_path / "p.safetensors")
    numbers, read = (hl.load_profile(tmp_path / f"p.{kind}") for kind in ("json", "safetensors"))
    all_to_fit_on = replace(rows, test=torch.zeros_like(rows.test))
    narrow = {0: AffineMap(torch.zeros(16, 16, dtype=torch.float64), torch.zeros(16, dtype=torch.float64))}
    calls = {
        "a profile of elsewhere": lambda: token_errors(gpt2, replace(profile, model="elsewhere")),
        "no block": lambda: token_errors(gpt2, {5: profile[0].map}, rows),
        "no map of block": lambda: token_errors(gpt2, maps, rows, blocks=[0, 1]),
        "give a text too": lambda: token_errors(gpt2, maps),
        "say no tokens to look at": lambda: token_errors(gpt2, {np.int64(0): maps[0]}),
        "has no map": lambda: token_errors(gpt2, numbers, rows),
        "rows are of a profile that was read from a file": lambda: token_errors(gpt2, read),
        "no held-out rows": lambda: token_errors(gpt2, profile, all_to_fit_on),
        "of another model": lambda: token_errors(gpt2, narrow, rows),
        "with maps of 'ffn'": lambda: token_errors(gpt2, profile, site="layer"),
        "tokens=0": lambda: token_errors(gpt2, profile, tokens=0),
        "no token ids": lambda: token_errors(small("vit"), reads("vit", n=32)),
    }
    for message, call in calls.items():
        with pytest.raises(InputError, match=message):
            call()
    np.testing.assert_allclose(token_errors(gpt2, read, rows)["share"], token_errors(gpt2, profile)["share"])


def test_a_model_that_overflows_is_refused(gpt2, rows):
    profile = hl.measure(gpt2, rows)
    with torch.no_grad():
        gpt2.transformer.h[1].mlp.c_proj.weight.fill_(float("inf"))
    with pytest.raises(InputError, match="NaN or infinity at block 1"):
        token_errors(gpt2, profile)
