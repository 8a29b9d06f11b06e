import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import howlinear as hl
from conftest import FAMILIES as OURS
from conftest import VOCABULARY, WIDTH, tiny
from helpers.families import FAMILIES, reads, small
from helpers.reference import half_width
from howlinear.core.intervals import Estimate
from howlinear.instrument.perplexity import (
    HeldOutLosses,
    change,
    losses,
    mean_losses,
    mean_perplexity,
    perplexity,
    ratio_of,
    targets_of,
)
from howlinear.models.forward import logits
from howlinear.models.load import is_causal
from howlinear.text.rows import ModelInputs, TokenRows, batch_of, batches


@pytest.mark.parametrize(
    "returned", [lambda scores: scores, lambda scores: (scores, None), lambda scores: {"logits": scores}]
)
def test_a_head_of_somebodys_own_may_return_a_tensor_a_tuple_or_a_dict(ids, returned, monkeypatch):
    model = tiny("mini-gpt2")
    expected = losses(model, ids)
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, *args, **named: returned(forward(self, *args, **named).logits)
    )
    assert torch.equal(losses(model, ids), expected)


SCALED = {  # logits that are no product with the head alone
    "cohere": (transformers.CohereForCausalLM, transformers.CohereConfig, {"logit_scale": 0.3}),
    "granite": (transformers.GraniteForCausalLM, transformers.GraniteConfig, {"logits_scaling": 5.0}),
    "gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config, {"final_logit_softcapping": 0.5}),
}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}


@pytest.mark.parametrize("name", [*OURS, *SCALED])
def test_equals_transformers_own_loss(name, ids):
    if name in SCALED:
        kind, config, options = SCALED[name]
        model = kind(config(**SIZES, **options)).eval()
        model.get_output_embeddings().weight.data.mul_(20)  # logits that a cap bends
    else:
        model = tiny(name)
    with torch.no_grad():
        expected = [model(input_ids=row[None], labels=row[None]).loss for row in ids]
        pooled = model(input_ids=ids, labels=ids).loss
    np.testing.assert_allclose(losses(model, ids), torch.stack(expected), rtol=1e-5)
    assert perplexity(model, ids) == pytest.approx(pooled.exp().item(), rel=1e-5)


CPMANT = {"dim_head": 16, "dim_ff": 48, "prompt_types": 4, "prompt_length": 4, "segment_types": 4}
NO_NEXT_TOKEN = {
    "an encoder": lambda: small("bert"),
    "a body without a head": lambda: tiny("mini-gpt2").base_model,
    "a classifier": lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SIZES)),
    "sees both sides": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, is_causal=False)),
    "no decoder": lambda: transformers.BertGenerationDecoder(transformers.BertGenerationConfig(**SIZES)),
    "sees a prompt": lambda: transformers.CpmAntForCausalLM(transformers.CpmAntConfig(**SIZES, **CPMANT)),
    "predicts its own place": lambda: transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=2, d_inner=48)
    ),
}


@pytest.mark.parametrize("kind", NO_NEXT_TOKEN)
def test_what_predicts_no_next_token_is_measured_without_a_perplexity(kind, ids, tokenizer):
    model, ids = NO_NEXT_TOKEN[kind]().eval(), ids % 60
    if kind not in ("sees a prompt", "predicts its own place"):  # whose places are no rows of the text
        assert hl.measure(model, ids).to_dict()["perplexity"] is None
    for call in (
        lambda: hl.perplexity(model, ids),
        lambda: hl.losses(model, ids),
        lambda: hl.swap_costs(model, {0: torch.negative}, ids),
        lambda: hl.compress(model, ids, max_dppl=1.0),
        lambda: hl.accuracy(model, [{"question": "q", "choices": ["x", "y"], "answer": 0}], tokenizer),
    ):
        with pytest.raises(hl.InputError, match=r"predicts no next token|cannot be measured"):
            call()


def test_a_loss_that_is_not_finite_names_the_sequence(gpt2, ids):
    ids[ids == 7] = 8
    ids[17, 3] = 7
    with torch.no_grad():
        gpt2.transformer.wte.weight[7] = float("nan")
        gpt2.lm_head.weight = torch.nn.Parameter(gpt2.transformer.wte.weight.detach().clone())
        gpt2.lm_head.weight[7] = 0
    with pytest.raises(hl.InputError, match="the loss of sequence 17 is not finite"):
        losses(gpt2, ids)


@pytest.mark.parametrize(
    ("some", "message"),
    [(lambda ids: ids[:, :1], "two tokens"), (lambda ids: ids[:3], "held out")],
    ids=["one", "none"],
)
def test_a_single_token_and_no_held_out_part_predict_nothing(gpt2, ids, some, message):
    rows = TokenRows.from_ids(some(ids))
    with pytest.raises(hl.InputError, match=message):
        perplexity(gpt2, rows)
    assert run_through(gpt2, rows).perplexity() is None


# --- the losses of a capture's own pass


@torch.no_grad()
def run_through(model, rows):
    run = HeldOutLosses(model, rows)
    for batch in batches(rows, 5):
        if run.wants(batch):
            run.update(batch, logits(model, batch_of(model, rows, batch)))
    return run


@torch.no_grad()
def assert_losses_of_its_own(run, model, rows):
    """The very arithmetic of `losses`, batch by batch; and the same perplexity, from batches of another size."""
    assert sorted(torch.cat([sequences for sequences, _ in run.parts]).tolist()) == rows.test.nonzero()[:, 0].tolist()
    for sequences, found in run.parts:
        ids = rows.ids[sequences]
        expected = mean_losses(logits(model, ids), ids)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    assert run.perplexity() == pytest.approx(perplexity(model, rows), rel=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pass_gives_the_losses_of_a_pass_of_its_own(name):
    model, inputs = small(name), reads(name)
    rows = ModelInputs.of(inputs, folds=3)
    run = run_through(model, rows)
    if is_causal(model) and "input_ids" in inputs:
        assert_losses_of_its_own(run, model, rows)
    else:
        assert run.perplexity() is None


def test_a_pass_leaves_padding_out(gpt2, ids):
    mask = torch.ones_like(ids)
    mask[3, 5:] = 0  # held out, as is every fourth
    mask[7, 1:] = 0  # predicts nothing
    mask[8, 9:] = 0
    mask[11, 9:] = 0  # comes later in a pass, fold by fold, than 15 and 19 do
    rows = ModelInputs.of({"input_ids": ids, "attention_mask": mask}, folds=3)
    run = run_through(gpt2, rows)
    assert run.perplexity() == pytest.approx(perplexity(gpt2, rows), rel=1e-6)
    whole = run_through(gpt2, TokenRows.from_ids(ids, folds=3)).perplexity()
    assert run.perplexity() != pytest.approx(whole, rel=1e-3)


def test_a_pass_names_the_sequence_of_a_loss_that_is_not_finite(gpt2, ids):
    ids[ids == 7] = 8
    ids[11, 3] = 7  # the third that is held out
    rows = TokenRows.from_ids(ids, folds=3)
    with torch.no_grad():
        gpt2.lm_head.weight = torch.nn.Parameter(gpt2.lm_head.weight.detach().clone())
        gpt2.transformer.wte.weight[7] = float("nan")
    with pytest.raises(hl.InputError, match="the loss of sequence 2 is not finite"):
        run_through(gpt2, rows).perplexity()


# --- change


@given(seed=st.integers(0, 2**31), folds=st.integers(2, 30), alone=st.booleans())
@settings(deadline=None, max_examples=50)
def test_change_equals_a_loop_that_leaves_out_folds(seed, folds, alone):
    """Folds of unequal size, or by default every sequence a fold of its own."""
    generator = torch.Generator().manual_seed(seed)
    n = folds if alone else 4 * folds + 3
    fold = torch.arange(n) % folds
    before = 3 + torch.rand(n, generator=generator, dtype=torch.float64)
    after = before + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    found = change(before, after, None if alone else fold)
    left = []
    for number in range(folds):
        keep = fold != number
        left.append((after[keep].mean().exp() - before[keep].mean().exp()).item())
    half = half_width(left)
    assert found.delta == change(before, after).delta  # whatever the folds
    assert found.delta == pytest.approx((after.mean().exp() - before.mean().exp()).item(), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((found.delta - half, found.delta + half), abs=1e-10)


@pytest.mark.parametrize(
    ("base", "changed", "options", "message"),
    [
        ([1.0], [1.0], {}, "at least two sequences"),
        ([1.0] * 3, [1.0] * 4, {}, "same sequences"),
        ([1.0] * 3, [1.0] * 3, {"fold": [0, 0, 0]}, "leaves out document folds"),
        ([1.0] * 3, [1.0] * 3, {"fold": [0, 1]}, "fold and predicted are of the same"),
        ([1000.0, 1000.0], [1.0, 2.0], {}, "finite perplexity"),
        ([1.0, 2.0], [1000.0, 1.0], {}, "finite perplexity"),
        ([1.0, 2.0], [1.0, 2.0], {"predicted": [0, 0]}, "counts of 0 or more"),
        ([1.0, 2.0], [1.0, 2.0], {"predicted": [-1, 3]}, "counts of 0 or more"),
        ([1.0, 2.0], [1.0, 2.0], {"predicted": [0, 3]}, "counts of 0 or more"),
    ],
)
@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("unchecked")
def test_a_change_that_cannot_be_is_refused(base, changed, options, message):
    with pytest.raises(hl.InputError, match=message):
        change(base, changed, **options)


def test_an_exponential_is_taken_in_float64_and_refused_where_even_that_overflows():
    assert mean_perplexity(torch.full((2,), 100.0)) == pytest.approx(np.exp(100))
    high = torch.tensor([100.0, 100.0])
    for dtype in (torch.float32, torch.bfloat16):  # 100 and 101 are numbers of both
        assert change(high.to(dtype), high.to(dtype) + 1).delta == pytest.approx(np.exp(101) - np.exp(100))
    with pytest.raises(hl.InputError, match="no finite perplexity"):  # its interval, from squares
        change(high * 4, high * 4 + torch.tensor([0.0, 1.0]))
    for some, predicted in ((high * 8, None), (high, torch.zeros(2, dtype=torch.long))):
        with pytest.raises(hl.InputError, match="no finite perplexity"):
            mean_perplexity(some, predicted)


def test_a_sequence_of_one_token_is_left_out_and_padding_has_no_cost(gpt2, ids):
    """The same texts, one by one without padding, give the losses before and after; a mean weighs by tokens."""
    mask = torch.ones_like(ids)
    mask[3, 5:] = 0
    mask[7, 1:] = 0
    rows = ModelInputs.of({"input_ids": ids, "attention_mask": mask}, folds=3)
    maps = {1: hl.AffineMap(0.1 * torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())}
    found = hl.swap_costs(gpt2, maps, rows)[1]

    texts = [ids[i, : mask[i].sum()] for i in range(3, 24, 4) if i != 7]
    tokens = torch.tensor([len(text) - 1.0 for text in texts]).double()
    before = torch.stack([losses(gpt2, text[None])[0] for text in texts])
    with hl.swap(gpt2, maps):
        after = torch.stack([losses(gpt2, text[None])[0] for text in texts])
    mean_before, mean_after = (before @ tokens / tokens.sum(), after @ tokens / tokens.sum())
    assert found.delta == pytest.approx(float(mean_after.exp() - mean_before.exp()), rel=1e-4)
    assert found.low < found.delta < found.high
    assert len(losses(gpt2, rows)) == 5


# --- swap_costs


def test_the_costs_of_rows_leave_out_their_folds(gpt2, ids):
    rows = TokenRows(ids, torch.ones(len(ids), dtype=torch.bool), torch.arange(len(ids)) // 6)
    (found,) = hl.swap_costs(gpt2, {1: torch.negative}, rows).values()
    with hl.swap(gpt2, {1: torch.negative}):
        after = losses(gpt2, ids)
    assert found == change(losses(gpt2, ids), after, rows.fold)
    assert found != hl.swap_costs(gpt2, {1: torch.negative}, ids)[1]
    assert found.delta == hl.swap_costs(gpt2, {1: torch.negative}, ids)[1].delta


@pytest.mark.parametrize("padded", [False, True])
def test_whatever_a_model_reads_with_its_ids_counts_as_in_a_measurement(gpt2, ids, padded):
    """Positions that begin anew within a sequence, and types; batches are alike, so the numbers are the same."""
    inputs = {"input_ids": ids, "position_ids": torch.arange(ids.shape[1]).flip(0).expand_as(ids).contiguous()}
    inputs["token_type_ids"] = ids.flip(0)
    if padded:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][3, 5:] = 0
    profile = hl.measure(gpt2, inputs, swap=True)
    rows = profile.rows
    assert perplexity(gpt2, rows) == pytest.approx(profile.perplexity, rel=1e-6)
    held_out = {name: tensor[rows.test] for name, tensor in rows.inputs.items()}
    assert perplexity(gpt2, held_out) == perplexity(gpt2, rows)
    with torch.no_grad():
        found = gpt2(**held_out, use_cache=False).logits
    expected = mean_losses(found, targets_of(rows.subset(rows.test.nonzero()[:, 0])))
    torch.testing.assert_close(losses(gpt2, rows), expected, rtol=1e-6, atol=0)
    assert perplexity(gpt2, {"input_ids": held_out["input_ids"]}) != pytest.approx(profile.perplexity, rel=1e-3)

    maps = {1: profile[1].map}
    with hl.swap(gpt2, maps):
        after = perplexity(gpt2, rows)
    cost = hl.swap_costs(gpt2, maps, rows)[1].delta
    assert cost == pytest.approx(after - perplexity(gpt2, rows), rel=1e-9, abs=1e-9)
    assert cost == pytest.approx(profile.costs[1].delta, rel=1e-4, abs=1e-4)
    assert cost == pytest.approx(hl.swap_costs(gpt2, maps, rows, layerwise=True)[1].delta, rel=1e-4, abs=1e-4)


def test_rows_are_not_packed_twice(gpt2, rows):
    with pytest.raises(hl.InputError, match="seq_len given with rows or token ids: leave them out"):
        perplexity(gpt2, rows, seq_len=16)


def test_images_have_no_perplexity():
    with pytest.raises(hl.InputError, match="is of token ids, input_ids, and these are pixel_values"):
        perplexity(small("vit"), ModelInputs.of(reads("vit")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_are_taken_in_float32_and_summed_in_float64(gpt2, ids, dtype):
    gpt2 = gpt2.to(dtype)
    with torch.no_grad():
        found = gpt2(input_ids=ids[:8]).logits[:, :-1].float()
    nats = torch.stack([cross_entropy(*pair, reduction="none") for pair in zip(found, ids[:8, 1:], strict=True)])
    torch.testing.assert_close(losses(gpt2, ids[:8]), nats.double().mean(1), rtol=1e-10, atol=0)


def test_a_ratio_by_hand():
    base = torch.tensor([3.0, 3.0, 3.0, 3.0]).double()
    risen = base + torch.tensor([0.0, 0.2, 0.4, 0.6])
    found = ratio_of(base, risen, torch.tensor([0, 0, 1, 1]))
    rise = Estimate.jackknife(0.3, [0.5, 0.1])  # without the first two, and without the last
    expected = torch.tensor([rise.value, rise.low, rise.high]).exp().tolist()
    assert [found.value, found.low, found.high] == pytest.approx(expected)
