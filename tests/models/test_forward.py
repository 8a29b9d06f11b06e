import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

import howlinear as hl
from howlinear.models import forward

ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")


@pytest.fixture
def products(monkeypatch):
    """The shapes of the weights that oneDNN got, on a processor where it helps."""
    monkeypatch.setattr(forward, "_HELPS", torch.backends.mkldnn.is_available())
    shapes = []
    product = forward._product

    def noted(x, weight, bias=None):
        shapes.append(tuple(weight.shape))
        return product(x, weight, bias)

    monkeypatch.setattr(forward, "_product", noted)
    return shapes


def rows(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@ONEDNN
@pytest.mark.parametrize("layer", [nn.Linear(6, 5), nn.Linear(6, 5, bias=False), Conv1D(5, 6)])
def test_a_layer_by_hand(layer, products):
    x = rows(2, 3, 6)
    weight = layer.weight if isinstance(layer, Conv1D) else layer.weight.T
    bias = 0 if layer.bias is None else layer.bias.double()
    with torch.no_grad(), forward.linear_layers():
        found = layer(x)
    assert products == [(5, 6)]
    assert torch.allclose(found.double(), x.double() @ weight.double() + bias, atol=1e-6)


@ONEDNN
@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_are_those_of_float64(frozen, products):
    layer = nn.Linear(6, 5).requires_grad_(not frozen)
    x = rows(2, 3, 6).requires_grad_()
    exact = nn.Linear(6, 5, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    wanted = [x.double().detach().requires_grad_(), *([] if frozen else exact.parameters())]
    expected = torch.autograd.grad(exact(wanted[0]).pow(3).sum(), wanted)
    with forward.linear_layers():
        y = layer(x)
    found = torch.autograd.grad(y.pow(3).sum(), [x, *([] if frozen else layer.parameters())])
    assert len(products) == (2 if frozen else 3)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours.double(), theirs, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_stay_with_torch(dtype, products):
    x, weight = rows(4, 6, dtype=dtype), rows(5, 6, dtype=dtype)
    with forward.linear_layers():
        assert torch.equal(linear(x, weight), x @ weight.T)
    assert products == []


def test_autocast_is_torchs_own(products):
    layer = nn.Linear(6, 5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), forward.linear_layers():
        assert layer(rows(4, 6)).dtype == torch.bfloat16
    assert products == []


def test_no_rows_are_no_error(products):
    with torch.no_grad(), forward.linear_layers():
        assert nn.Linear(6, 5)(torch.empty(0, 6)).shape == (0, 5)


@ONEDNN
@pytest.mark.parametrize("name", ["mini-gpt2", "mini-llama"])
def test_a_whole_model(name, products):
    model = hl.load_model(name)
    ids = torch.arange(24).view(2, 12)
    with torch.no_grad():
        expected = model.double()(input_ids=ids).logits
        found = forward.logits(model.float(), ids)
    layers = [part for part in model.modules() if isinstance(part, nn.Linear | Conv1D)]
    assert len(products) == len(layers)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    # outside, the model runs as ever
    products.clear()
    with torch.no_grad():
        model(input_ids=ids)
    assert products == []


@pytest.mark.parametrize(
    ("capability", "processor", "helps"),
    [
        ("AVX512", "vendor_id : AuthenticAMD", True),
        ("AVX512", "vendor_id : GenuineIntel", False),
        ("AVX2", "vendor_id : AuthenticAMD", False),
    ],
)
def test_it_helps_where_mkl_holds_instructions_back(capability, processor, helps):
    assert forward.helps(capability, processor) == helps


def test_where_it_does_not_help_nothing_changes(monkeypatch, products):
    monkeypatch.setattr(forward, "_HELPS", False)
    layer, x = nn.Linear(6, 5), rows(4, 6)
    with torch.no_grad():
        with forward.linear_layers():
            found = layer(x)
        assert torch.equal(found, layer(x))
    assert products == []
