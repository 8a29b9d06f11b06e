"""What is said of a forward pass that fails: whose fault it is."""

import pytest
import torch
from torch import nn

import howlinear as hl
from howlinear.errors import InputError, SourceError
from howlinear.models.forward import running


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
    with hl.swap(gpt2, maps), pytest.raises(SourceError, match=r"every map that was put into it"):
        hl.perplexity(gpt2, ids)
    assert hl.perplexity(gpt2, ids) > 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_model_that_fails_alone_was_not_loaded_as_it_should_be(gpt2, error):
    gpt2.transformer.h[0].mlp = Failing(error)
    gpt2.name_or_path = "somewhere"
    with pytest.raises(SourceError, match="does not run"), running(gpt2):
        gpt2(torch.zeros(1, 1, dtype=torch.long))
