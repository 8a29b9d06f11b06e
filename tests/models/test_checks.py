"""What one public function refuses, all refuse; what one takes, all take; and the model is left as it was."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import howlinear as hl
from conftest import VOCABULARY, WIDTH, tiny
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.models.checks import evaluating, unwrapped

MAP = AffineMap(torch.eye(WIDTH).double(), torch.zeros(WIDTH).double())
CALLS = {
    "measure": lambda model, ids: hl.measure(model, ids, blocks=[0])[0].r2,
    "capture": lambda model, ids: hl.capture(model, ids, blocks=[0])[0].outputs.syy.sum().item(),
    "perplexity": hl.perplexity,
    "losses": lambda model, ids: hl.losses(model, ids).sum().item(),
    "swap_costs": lambda model, ids: hl.swap_costs(model, {0: MAP}, ids)[0].delta,
}
every_call = pytest.mark.parametrize("name", CALLS)
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(8, 600, dtype=torch.long), r"600 tokens, .* at most (.*): .* seq_len=\1 "),
        (torch.full((8, 32), VOCABULARY), f"the model knows 0 to {VOCABULARY - 1}"),
        (torch.full((8, 32), -1), f"the model knows 0 to {VOCABULARY - 1}"),
        (torch.zeros(0, 32, dtype=torch.long), r"token ids of shape \(0, 32\)"),
    ],
)
def test_what_a_model_cannot_read_is_told(gpt2, given, message):
    """That every function refuses it, `test_as_rows` tries."""
    with pytest.raises(InputError, match=message):
        hl.losses(gpt2, given)


@pytest.mark.parametrize("name", [None, "", Path("mine")])
def test_a_model_whose_name_is_no_string_is_measured(ids, name):
    model = tiny("mini-gpt2")
    model.name_or_path = name
    assert hl.measure(model, ids, blocks=[0]).model == str(name or type(model).__name__)


@every_call
def test_a_model_without_weights_is_refused(gpt2, ids, name):
    with pytest.raises(InputError, match="meta device"):
        CALLS[name](gpt2.to("meta"), ids)


@every_call
def test_a_wrapped_model_is_what_it_wraps(gpt2, ids, name):
    expected = CALLS[name](gpt2, ids)
    for wrapped in (
        nn.DataParallel(nn.DataParallel(gpt2)),
        torch.compile(nn.DataParallel(gpt2), backend="eager"),
        nn.DataParallel(torch.compile(gpt2, backend="eager")),
    ):
        assert CALLS[name](wrapped, ids) == expected


def test_a_swap_reaches_into_a_wrapped_model(gpt2, ids):
    wrapped = torch.compile(gpt2, backend="eager")
    with hl.swap(gpt2, {0: MAP}):
        expected = hl.perplexity(gpt2, ids)
    with hl.swap(wrapped, {0: MAP}):
        assert hl.perplexity(wrapped, ids) == expected


def test_hooks_and_swaps_reach_a_model_that_was_compiled_before(gpt2, ids):
    expected = [hl.measure(gpt2, ids)[0].r2, hl.swap_costs(gpt2, {0: MAP}, ids)[0].delta]
    gpt2.compile(backend="eager")
    for layer in gpt2.transformer.h:
        layer.compile(backend="eager")
    with torch.no_grad():
        gpt2(input_ids=ids[:8], use_cache=False)
    assert [hl.measure(gpt2, ids)[0].r2, hl.swap_costs(gpt2, {0: MAP}, ids)[0].delta] == pytest.approx(expected)


class Adapter(nn.Module):
    def merge_and_unload(self):
        """As a model of peft has it."""


class Holder(nn.Module):
    """As Lightning, sentence-transformers or a value head hold a model."""

    def __init__(self, model):
        super().__init__()
        self.backbone = model


@pytest.mark.parametrize(
    ("bring", "message"),
    [
        (lambda model: Adapter(), r"model = model\.merge_and_unload\(\)"),
        (lambda model: nn.Linear(3, 3), "a Linear is no"),
        (Holder, r"a Holder .* a GPT2LMHeadModel: .*get_submodule\('backbone'\)"),
        (lambda model: SimpleNamespace(model=model), r"holds one, a GPT2LMHeadModel: give its \.model"),  # a pipeline
    ],
)
def test_what_is_no_model_is_refused_by_its_type(gpt2, ids, bring, message):
    given = bring(gpt2)
    for call in (unwrapped, hl.load_model, *(lambda model, call=call: call(model, ids) for call in CALLS.values())):
        with pytest.raises(InputError, match=message):
            call(given)


# --- threads


@every_call
def test_a_model_that_another_thread_has_swapped_is_refused_until_it_is_back(gpt2, ids, name):
    expected = CALLS[name](gpt2, ids)
    with ThreadPoolExecutor(1) as other:
        with hl.swap(gpt2, {1: MAP}), pytest.raises(InputError, match="another thread is using this GPT2LMHeadModel"):
            other.submit(CALLS[name], gpt2, ids).result()
        assert other.submit(CALLS[name], gpt2, ids).result() == expected


def test_a_model_that_another_thread_runs_is_not_swapped_with_its_head_or_without(gpt2):
    with ThreadPoolExecutor(1) as other, evaluating(gpt2):
        for model in (gpt2, gpt2.base_model):
            with pytest.raises(InputError, match="another thread is using"):
                other.submit(hl.swap(model, {1: MAP}).__enter__).result()
