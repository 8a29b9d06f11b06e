"""Accuracy by log-likelihood: against a plain loop, on planted answers, and the gates that every model passes."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

import howlinear as hl
from howlinear.errors import InputError, SourceError
from howlinear.instrument.accuracy import log_likelihoods
from howlinear.models.load import load_on_disk

WORDS = ["red", "blue", "a house by the sea", "42", "green leaves", "x"]


@pytest.fixture
def model(gpt2, tokenizer):
    gpt2.resize_token_embeddings(len(tokenizer))
    return gpt2


def questions(count=24, seed=0):
    """Questions of two to four choices, of any length, with answers by chance."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        choices = [str(word) for word in random.choice(WORDS, random.integers(2, 5), replace=False)]
        text = "what is it? " * random.integers(1, 4) + str(number) + random.choice(["", " ", "\n"])
        rows.append({"question": text, "choices": choices, "answer": int(random.integers(len(choices)))})
    return rows


@pytest.fixture
def seen(monkeypatch):
    """The log-likelihoods of each call."""
    each = []
    place = "howlinear.instrument.accuracy.log_likelihoods"
    monkeypatch.setattr(place, lambda *given: each.append(log_likelihoods(*given)) or each[-1])
    return each


def sums_by_hand(model, tokenizer, row, opening=()):
    """Σ log p of each choice's tokens, one token after another."""
    found = []
    for choice in row["choices"]:
        text = row["question"]
        blank = "" if text[-1].isspace() else " "
        before = [*opening, *tokenizer(text.rstrip(), add_special_tokens=False)["input_ids"]]
        ids = [*opening, *tokenizer(text + blank + choice, add_special_tokens=False)["input_ids"]]
        total = 0.0
        for place in range(len(before), len(ids)):
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1].double()
            total += float(scores.log_softmax(-1)[ids[place]])
        found.append(total)
    return np.array(found)


def test_by_a_plain_loop_whatever_the_size_of_batches(model, tokenizer, seen):
    rows = questions()
    for size in (1, 7, 200):
        found = hl.accuracy(model, rows, tokenizer, size)
    sums = [sums_by_hand(model, tokenizer, row) for row in rows]
    per_character = [nats / [len(choice) for choice in row["choices"]] for nats, row in zip(sums, rows, strict=True)]
    np.testing.assert_allclose(np.stack(seen), np.stack([np.concatenate(sums)] * 3), rtol=1e-4)
    for correct, scores in ((found.correct, sums), (found.correct_normalised, per_character)):
        chosen = [np.argmax(of_row) for of_row in scores]
        assert correct.tolist() == [choice == row["answer"] for choice, row in zip(chosen, rows, strict=True)]
    assert found.chance == pytest.approx(np.mean([1 / len(row["choices"]) for row in rows]))
    assert found.correct.tolist() != found.correct_normalised.tolist()


def test_weights_that_stay_on_disk_give_the_same(model, tokenizer, seen, tmp_path):
    model.save_pretrained(tmp_path)
    for each in (model, load_on_disk(tmp_path)):
        hl.accuracy(each, questions(8), tokenizer, 7)
    assert np.array_equal(*seen)


def test_a_sequence_begins_with_a_bos_where_the_tokenizer_says_so(model, tokenizer, seen):
    rows = questions(6)
    hl.accuracy(model, rows, tokenizer)
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    begins = tokenizer.backend_tokenizer
    begins.post_processor = processors.TemplateProcessing(f"{bos[0]} $A", special_tokens=[bos])
    begins = PreTrainedTokenizerFast(tokenizer_object=begins, bos_token=bos[0], eos_token=bos[0])
    hl.accuracy(model, rows, begins)
    opened = ([], [bos[1]])
    expected = [np.concatenate([sums_by_hand(model, begins, row, opening) for row in rows]) for opening in opened]
    np.testing.assert_allclose(np.stack(seen), np.stack(expected), rtol=1e-5)
    assert not np.allclose(*expected, rtol=1e-4)


def test_a_blank_stands_between_unless_white_space_does(model, tokenizer, seen):
    bare = [row | {"question": row["question"].rstrip()} for row in questions(6)]
    hl.accuracy(model, bare, tokenizer)
    hl.accuracy(model, [row | {"question": row["question"] + " "} for row in bare], tokenizer)
    hl.accuracy(model, [row | {"choices": [f" {choice}" for choice in row["choices"]]} for row in bare], tokenizer)
    np.testing.assert_allclose(np.stack(seen[1:]), np.stack([seen[0]] * 2), rtol=1e-6)


def test_planted_answers_are_all_found_or_none(model, tokenizer):
    """Of a model that finds one byte likeliest everywhere, and all others alike."""
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight = nn.Parameter(torch.zeros_like(model.lm_head.weight))
        model.lm_head.weight[tokenizer("y", add_special_tokens=False)["input_ids"][0]] = 1.0
    right = [{"question": f"{i}", "choices": ["yy", "nn", "mm"], "answer": "A"} for i in range(20)]
    found = hl.accuracy(model, right, tokenizer)
    assert (found.estimate.value, found.estimate_normalised.value, found.chance) == (1, 1, pytest.approx(1 / 3))
    wrong = hl.accuracy(model, [row | {"answer": "B"} for row in right], tokenizer)
    assert wrong.estimate.value == 0
    change = wrong.change_from(found)
    assert change.value == -1
    assert change.high < -0.7


def test_one_row_of_a_table(model, tokenizer, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('[{"question": "q", "choices": ["x", "y"], "answer": 0}]')
    found = hl.accuracy(model, path, tokenizer)
    (row,) = found.to_frame().to_dict("records")
    assert (row["task"], row["questions"], row["chance"]) == ("mine.json", 1, 0.5)
    assert row["accuracy"] == found.estimate.value
    assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]


def test_a_model_in_training_is_evaluated_and_goes_on(model, tokenizer, seen):
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
    hl.accuracy(model, questions(6), tokenizer)
    hl.accuracy(model.train(), questions(6), tokenizer)
    assert model.training
    np.testing.assert_array_equal(*seen)


def test_a_named_model_brings_its_tokenizer(seen):
    for model in ("mini-gpt2", hl.load_model("mini-gpt2")):
        hl.accuracy(model, questions(4))
    np.testing.assert_array_equal(*seen)


# --- refused


def test_a_question_that_the_model_cannot_read_is_named(model, tokenizer):
    rows = questions(3)
    longest = model.config.n_positions
    rows[2]["question"] = "a" * longest
    with pytest.raises(InputError, match=f"row 2: .* at most {longest}"):
        hl.accuracy(model, rows, tokenizer)


@pytest.mark.parametrize("row", [{"choices": ["x", "z"]}, {"question": "z"}])
def test_a_question_or_a_choice_without_a_token_is_named(model, row):
    few = Tokenizer(models.BPE({"q": 0, "x": 1}, []))  # leaves out all other letters, and blanks
    good = {"question": "q", "choices": ["x", "q"], "answer": 0}
    with pytest.raises(InputError, match=r"row 1: .*\btoken\b"):
        hl.accuracy(model, [good, good | row], PreTrainedTokenizerFast(tokenizer_object=few))


def test_a_log_likelihood_that_is_not_finite_names_the_row(model, tokenizer):
    model.transformer.wte.weight.data[tokenizer("Z")["input_ids"][0]] = float("nan")
    model.lm_head.weight = nn.Parameter(model.transformer.wte.weight.detach().nan_to_num())
    rows = questions(5)
    rows[3]["question"] += "Z"
    with pytest.raises(InputError, match="row 3"):
        hl.accuracy(model, rows, tokenizer)


def test_what_is_no_model_for_it_is_one_line(model, tokenizer):
    rows = questions(2)
    with pytest.raises(SourceError, match="no tokenizer"):
        hl.accuracy(model, rows)
    with pytest.raises(InputError, match="batch_size"):
        hl.accuracy(model, rows, tokenizer, 0)
    with pytest.raises(InputError, match="not paired"):
        hl.accuracy(model, rows, tokenizer).change_from(hl.accuracy(model, rows[:1], tokenizer))
