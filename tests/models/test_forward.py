"""What is said of a forward pass that fails: whose fault it is."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import howlinear as hl
from conftest import VOCABULARY, WIDTH, tiny
from howlinear.errors import InputError, SourceError
from howlinear.models.forward import one_pass, running


class Failing(nn.Module):
    """Raises what it holds."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, _):
        raise self.error


ERRORS = [AttributeError("no such part"), AssertionError(), RuntimeError("shapes")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_map_that_fails_is_one_line_and_gone_afterwards(gpt2, ids, error):
    gpt2.name_or_path = "somewhere"
    maps = {0: Failing(error)}
    with pytest.raises(InputError, match="fails at these rows"):
        hl.swap_costs(gpt2, maps, ids)
    with hl.swap(gpt2, maps), pytest.raises(SourceError, match=r"every map or hook that was put"):
        hl.perplexity(gpt2, ids)
    assert hl.perplexity(gpt2, ids) > 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_model_that_fails_alone_was_not_loaded_as_it_should_be(gpt2, error):
    gpt2.transformer.h[0].mlp = Failing(error)
    gpt2.name_or_path = "somewhere"
    with pytest.raises(SourceError, match="does not run"), running(gpt2):
        gpt2(torch.zeros(1, 1, dtype=torch.long))


@pytest.mark.parametrize(
    "compress",
    [
        lambda model, ids: hl.compress(model, ids, max_parameters=0.99),
        lambda model, ids: hl.compress_to(model, ids, max_dppl=1e6),
    ],
)
def test_a_compression_that_fails_halfway_is_one_line(gpt2, compress):
    """Memory may be too little for gradients alone, and a layer in another precision fails at once."""
    ids = torch.randint(VOCABULARY, (80, 16), generator=torch.Generator().manual_seed(1))

    def fail(*_):
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("out of memory")

    with gpt2.transformer.h[1].register_forward_hook(fail), pytest.raises(InputError, match="rows: out of memory"):
        compress(gpt2, ids)
    gpt2.transformer.h[1].mlp.double()
    with pytest.raises(InputError, match="fails at these rows: "):
        compress(gpt2, ids)


class Terse(LlamaForCausalLM):
    """A model of somebody's own, whose forward takes token ids and nothing else."""

    def forward(self, input_ids):
        return super().forward(input_ids)

    @property
    def base_model(self):
        return self


def test_a_forward_that_knows_no_cache_is_called_without(ids):
    sizes = {"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    own = Terse(LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, **sizes)).eval()
    usual = LlamaForCausalLM(own.config).eval()
    usual.load_state_dict(own.state_dict())
    assert hl.measure(own, ids).to_frame()["r2"].equals(hl.measure(usual, ids).to_frame()["r2"])
    assert hl.perplexity(own, ids) == hl.perplexity(usual, ids)


def test_passes_that_overlap_in_two_threads_leave_the_state_of_torch_as_it_was(gpt2):
    llama = tiny("mini-llama").eval()
    before, begun, ended = torch.get_rng_state(), Event(), Event()

    def run_beside():
        with one_pass(llama):
            begun.set()
            ended.wait()

    with ThreadPoolExecutor(1) as other:
        with one_pass(gpt2.eval()):
            beside = other.submit(run_beside)
            begun.wait()
        ended.set()
        beside.result()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.backends.mha.get_fastpath_enabled()
