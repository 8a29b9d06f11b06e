from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from conftest import VOCABULARY
from howlinear.errors import InputError, SourceError
from howlinear.instrument.measure import measure
from howlinear.text.rows import TokenRows
from howlinear.training import loop as training
from howlinear.training.loop import Recipe, batch_at, log_spaced, loss_of, rate_at, train
from howlinear.training.minis import FACTORY, new_model

pytestmark = pytest.mark.long

RECIPE = Recipe(steps=6, batch=4, micro_batch=2, seq_len=16, warm_up=2)


def small(name="mini-gpt2"):
    return new_model(name, blocks=1, width=32, vocabulary=VOCABULARY)


@pytest.fixture
def stream():
    """Two corpora in which the next token follows from the last."""
    return {"a": torch.arange(500) % 40, "b": 40 + torch.arange(700) % 40}


@pytest.fixture
def held_out():
    starts = torch.randint(80, (16, 1), generator=torch.Generator().manual_seed(0))
    return TokenRows.from_ids((starts + torch.arange(16)) % VOCABULARY, folds=2)


def same_weights(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


class StoppedError(Exception):
    """Stands in for whatever stops a run."""


def stop_at(monkeypatch, step):
    def batch(stream, now, recipe):
        if now == step:
            raise StoppedError
        return batch_at(stream, now, recipe)

    monkeypatch.setattr(training, "batch_at", batch)


# --- the schedule


def test_measured_steps_by_hand():
    assert log_spaced(2_000)[:8] == [0, 1, 2, 3, 4, 6, 8, 11]
    assert log_spaced(2_000)[-3:] == [1024, 1448, 2000]
    assert log_spaced(6) == [0, 1, 2, 3, 4, 6]
    assert log_spaced(5) == [0, 1, 2, 3, 4, 5]
    assert log_spaced(1) == [0, 1]
    assert log_spaced(0) == [0]


def test_the_rate_rises_linearly_and_falls_to_a_tenth():
    recipe = Recipe(steps=110, warm_up=10, peak=1.0)
    assert [rate_at(step, recipe) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1, 1])
    assert rate_at(60, recipe) == pytest.approx(0.55)
    assert rate_at(110, recipe) == pytest.approx(0.1)
    falling = [rate_at(step, recipe) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)
    assert rate_at(5, Recipe(steps=5, warm_up=5, peak=1.0)) == pytest.approx(1)


def test_a_batch_depends_on_seed_and_step_alone(stream):
    batches = [batch_at(stream, step, RECIPE) for step in range(5)]
    torch.manual_seed(99)
    assert all(torch.equal(batch_at(stream, step, RECIPE), batch) for step, batch in enumerate(batches))
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 5
    assert not torch.equal(batch_at(stream, 0, replace(RECIPE, seed=1)), batches[0])


def test_a_batch_takes_runs_of_the_stream_half_from_each_corpus(stream):
    batch = batch_at(stream, 3, RECIPE)
    assert batch.shape == (4, 16)
    assert (batch[:2] < 40).all()
    assert (batch[2:] >= 40).all()
    assert ((batch[:2, 1:] - batch[:2, :-1]) % 40 == 1).all()


def test_every_sequence_begins_with_the_first_token_where_there_is_one(stream):
    batch = batch_at(stream, 3, replace(RECIPE, first_token=7))
    assert batch.shape == (4, 16)
    assert (batch[:, 0] == 7).all()
    assert torch.equal(batch[:, 1:], batch_at(stream, 3, RECIPE)[:, :-1])


def test_a_stream_shorter_than_a_sequence_is_refused(stream):
    stream["b"] = stream["b"][:10]
    with pytest.raises(InputError, match=r"b.*10 tokens"):
        batch_at(stream, 0, RECIPE)


# --- the loop


@pytest.mark.parametrize("name", FACTORY)
def test_training_lowers_the_loss_and_measures_on_the_way(name, stream, held_out):
    model = small(name)
    trajectory = train(model, stream, held_out, replace(RECIPE, steps=20, peak=1e-2))
    assert [found["step"] for found in trajectory] == log_spaced(20)
    assert trajectory[0]["loss"] is None
    assert trajectory[-1]["loss"] < trajectory[1]["loss"]
    assert trajectory[-1]["perplexity"] < trajectory[0]["perplexity"]
    assert not model.training
    last = measure(model, held_out)
    assert trajectory[-1]["r2"] == pytest.approx([last[0].r2], rel=1e-12)
    interval = (trajectory[-1]["r2_low"][0], trajectory[-1]["r2_high"][0])
    assert interval == pytest.approx((last[0].r2_low, last[0].r2_high), rel=1e-12)
    assert trajectory[-1]["massive_rows"] == [last.solved[0].massive_rows]
    assert trajectory[-1]["r2_ordinary"] == pytest.approx([last.solved[0].ordinary.r2], abs=1e-9)


def test_one_step_is_adamw_by_hand(stream, held_out):
    """The first step of AdamW moves a weight by the rate against the gradient's sign, after decay."""
    recipe = replace(RECIPE, steps=1, warm_up=10, peak=1e-2, micro_batch=4)
    model, before = small(), small()
    train(model, stream, held_out, recipe)
    ids = batch_at(stream, 0, recipe)
    with torch.autocast("cpu", torch.bfloat16):
        loss = before(input_ids=ids, labels=ids).loss
    loss.backward()
    for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True):
        rate, clear = 1e-3, old.grad.abs() > 1e-4
        expected = old * (1 - rate * (0.1 if old.ndim >= 2 else 0)) - rate * old.grad.sign()
        assert clear.any(), name
        assert (new - expected)[clear].abs().max() < 0.05 * rate, name


def test_micro_batches_add_up_to_the_batch(stream, held_out):
    whole, parts = small(), small()
    train(whole, stream, held_out, replace(RECIPE, steps=1, micro_batch=4))
    train(parts, stream, held_out, replace(RECIPE, steps=1, micro_batch=1))
    whole, parts, start = (weights_of(model) for model in (whole, parts, small()))
    assert (whole - parts).norm() < 0.2 * (whole - start).norm()


def test_a_run_that_was_stopped_ends_with_the_same_weights(stream, held_out, tmp_path, monkeypatch):
    recipe, checkpoint = replace(RECIPE, steps=104), tmp_path / "run.pt"
    straight, stopped, resumed = small(), small(), small()
    expected = train(straight, stream, held_out, recipe)
    stop_at(monkeypatch, 102)
    with pytest.raises(StoppedError):
        train(stopped, stream, held_out, recipe, checkpoint)
    stop_at(monkeypatch, 50)  # gone by: what is before the checkpoint is not repeated
    assert train(resumed, stream, held_out, recipe, checkpoint) == expected
    assert same_weights(resumed, straight)
    assert not same_weights(straight, small())
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, bfloat16=False, dtype="float64")])
def test_a_finished_run_is_read_back_without_a_step(recipe, stream, held_out, tmp_path, monkeypatch):
    model, again = small(), small()
    expected = train(model, stream, held_out, recipe, tmp_path / "run.pt")
    stop_at(monkeypatch, 0)
    assert train(again, stream, held_out, recipe, tmp_path / "run.pt") == expected
    assert same_weights(again, model)


def test_a_checkpoint_of_another_recipe_is_refused(stream, held_out, tmp_path):
    train(small(), stream, held_out, RECIPE, tmp_path / "run.pt")
    with pytest.raises(InputError, match=r"run\.pt was made with another recipe: remove it to start anew"):
        train(small(), stream, held_out, replace(RECIPE, seed=1), tmp_path / "run.pt")


def test_a_damaged_checkpoint_is_refused(stream, held_out, tmp_path):
    (tmp_path / "run.pt").write_bytes(b"half a file")
    with pytest.raises(SourceError, match=r"run\.pt"):
        train(small(), stream, held_out, RECIPE, tmp_path / "run.pt")


def test_a_loss_that_is_not_finite_stops_the_run(stream, held_out):
    model = small()
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="block 0"):
        train(model, stream, held_out, RECIPE)


def weights_of(model):
    return parameters_to_vector(model.parameters()).detach()


@pytest.fixture
def threads():
    """Restore the number of threads afterwards."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained_with(count, stream, held_out, steps=40, **changes):
    torch.set_num_threads(count)
    model = new_model("mini-gpt2", blocks=2, width=32, vocabulary=VOCABULARY)
    trajectory = train(model, stream, held_out, replace(RECIPE, steps=steps, peak=1e-2, bfloat16=False, **changes))
    return model, trajectory


def test_in_float64_two_numbers_of_threads_train_the_same_model(stream, held_out, threads):
    """In float32 the weights are 4e-4 apart after 40 steps, since sums come in another order."""
    one, first = trained_with(1, stream, held_out, 12, dtype="float64")
    two, second = trained_with(2, stream, held_out, 12, dtype="float64")
    assert weights_of(one).dtype == torch.float64
    torch.testing.assert_close(weights_of(one), weights_of(two), rtol=0, atol=1e-8)
    for before, after in zip(first, second, strict=True):
        assert after["r2"] == pytest.approx(before["r2"], abs=1e-8)
        assert after["loss"] == (None if before["loss"] is None else pytest.approx(before["loss"], abs=1e-8))
        assert after["perplexity"] == pytest.approx(before["perplexity"], rel=1e-5)  # its logits are read in float32


def test_float64_takes_the_steps_of_float32(stream, held_out, threads):
    single, _ = trained_with(1, stream, held_out)
    double, _ = trained_with(1, stream, held_out, dtype="float64")
    assert weights_of(single).dtype == torch.float32
    start = weights_of(new_model("mini-gpt2", blocks=2, width=32, vocabulary=VOCABULARY))
    apart = (weights_of(double) - weights_of(single)).norm()
    assert apart < 0.05 * (weights_of(single) - start).norm()


@pytest.mark.parametrize("name", FACTORY)
def test_a_step_can_be_compiled_whole(name, stream, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    model = small(name)
    ids = batch_at(stream, 0, RECIPE)
    compiled, written = (loss_of(model, RECIPE, compiled)(ids).detach() for compiled in (True, False))
    assert float(compiled) == pytest.approx(float(written), rel=1e-3)
