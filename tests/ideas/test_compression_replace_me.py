"""A span of layers becomes one linear map: which span, which map, and where it is merged."""

import pytest
import torch

from conftest import BLOCKS
from helpers.families import VOCABULARY, small
from helpers.unit_rows import hush, seen, share_without
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import drop
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.models.layers import layers_of, parameters, parts_of
from howlinear.text.rows import TokenRows


def sub_layers(model, number):
    """Attention and FFN of a layer."""
    return [getattr(layers_of(model)[number], name) for name, _ in parts_of(model).values()]


def share_of_fewer(model, count):
    return share_without(model, count * parameters(layers_of(model)[0]))


def test_a_map_by_hand():
    """M = (1, 0), (0, 1), (1, 1) and L − Y = twice the first feature, swapped: T sends e₁ to 2 e₂ and e₂ to 0."""
    written = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    read = torch.tensor([[5.0, 5.0], [1.0, 2.0], [0.0, 3.0]])
    behind = read + torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 2.0]])
    found = drop.least_squares_map(written, read, behind)
    torch.testing.assert_close(found, torch.tensor([[0.0, 2.0], [0.0, 0.0]]).double(), atol=1e-6, rtol=0)


def test_what_a_block_wrote_is_not_what_its_layer_makes_of_it():
    model = small("falcon")  # adds attention to it in place
    rows = TokenRows.from_ids(torch.randint(VOCABULARY, (64, 32), generator=torch.Generator().manual_seed(0)))
    written, _, _ = drop.around(Calibration(model, rows), range(1, 2))
    expected = sum(capture(model, rows)[0].train).mean_y
    torch.testing.assert_close(written.double().mean(0), expected, rtol=0, atol=1e-6)


def test_a_planted_map_is_found():
    generator = torch.Generator().manual_seed(3)
    truth = torch.eye(4) + 0.1 * torch.randn(4, 4, generator=generator)
    written = torch.randn(600, 4, generator=generator)
    read = torch.randn(600, 4, generator=generator)
    found = drop.least_squares_map(written, read, read + written @ truth)
    assert float((found - truth).abs().max()) < 0.01


def test_the_span_of_the_least_distance_goes(model, rows):
    hush(*sub_layers(model, 1))
    calibration = Calibration(model, rows)
    assert drop.span(calibration, share_of_fewer(model, 1)) == range(1, 2)
    assert drop.span(calibration, share_of_fewer(model, 1) - 1e-3) == range(1, 3)
    assert not drop.span(calibration, 1.0)
    with pytest.raises(InputError, match="one must be left before them"):
        drop.span(calibration, share_of_fewer(model, BLOCKS))


def test_silent_layers_cost_nothing(model, rows):
    """Planted: T is the identity, and the span adds no parameter."""
    for number in (1, 2):
        hush(*sub_layers(model, number))
    calibration = Calibration(model, rows)
    smaller = drop.replace_me(calibration, share_of_fewer(model, 2))
    assert parameters(smaller) == parameters(model) - 2 * parameters(layers_of(model)[0])
    torch.testing.assert_close(losses(smaller, rows.ids), losses(model, rows.ids), atol=1e-3, rtol=0)


def test_the_map_is_merged_behind_the_ffn_before(gpt2, rows):
    """What the FFN before the span writes is what it wrote, through T."""
    calibration = Calibration(gpt2, rows)
    share = share_of_fewer(gpt2, 1)
    gone = drop.span(calibration, share)
    written, read, behind = drop.around(calibration, gone)
    transform = drop.least_squares_map(written, read, behind)
    smaller = drop.replace_me(calibration, share)
    before = gone.start - 1
    wrote = seen(smaller, calibration.ids, [before])[before]["y"]
    torch.testing.assert_close(wrote, written.double() @ transform, atol=1e-3, rtol=1e-3)
    before = 1 - (read + written - behind).square().sum() / (behind - behind.mean(0)).square().sum()
    after = 1 - (read + written.double() @ transform - behind).square().sum() / (behind - behind.mean(0)).square().sum()
    assert after > before
    assert torch.equal(losses(drop.replace_me(calibration, 1.0), rows.ids), losses(gpt2, rows.ids))
