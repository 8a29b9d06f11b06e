"""Accuracy on multiple-choice questions by log-likelihood, as EleutherAI's lm-evaluation-harness defines it.

A model chooses the likeliest continuation of the question: argmax over choices of Σ log p(token | all before), summed
over the choice's tokens (the harness's `acc`), or of that sum divided by the choice's characters (`acc_norm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.instrument.perplexity import LOSS_BATCH, NO_TARGET, mean_losses
from howlinear.models.checks import check_count, check_ids, evaluating, longest_sequence
from howlinear.models.ffn_sites import device_of
from howlinear.models.forward import running
from howlinear.models.layerwise import predictions
from howlinear.models.load import check_causal, model_of, tokenizer_of
from howlinear.text.pack import encode, opening_of
from howlinear.text.questions import Question, read_questions


@dataclass(frozen=True, eq=False)
class Accuracy:
    """A model's answers to n questions.

    Attributes:
        task: name of the questions, that of their file.
        correct: whether each is answered correctly by the sum of log-probabilities, shape (n,).
        correct_normalised: whether each is answered correctly by that sum per character, shape (n,).
        chance: the share that a blind guess answers, the mean of 1 / choices.
    """

    task: str
    correct: Bool[np.ndarray, " n"]
    correct_normalised: Bool[np.ndarray, " n"]
    chance: float

    @property
    def questions(self) -> int:
        """How many there are."""
        return len(self.correct)

    @property
    def estimate(self) -> Estimate:
        """The share answered correctly by the sum, with Wilson's interval."""
        return Estimate.of_share(self.correct)

    @property
    def estimate_normalised(self) -> Estimate:
        """The share answered correctly by the sum per character, with Wilson's interval."""
        return Estimate.of_share(self.correct_normalised)

    def change_from(self, before: Accuracy) -> Estimate:
        """Return this accuracy minus another model's on the same questions, with a paired interval.

        Raises:
            InputError: the numbers of questions differ.
        """
        if self.questions != before.questions:
            raise InputError(
                f"accuracies on {before.questions} and {self.questions} questions are not paired: ask both the same"
            )
        return Estimate.of_paired_shares(before.correct, self.correct)

    def to_frame(self) -> pd.DataFrame:
        """One row: the task, its questions, both accuracies with their intervals, and chance."""
        estimates = self.estimate.columns("accuracy") | self.estimate_normalised.columns("accuracy_normalised")
        return pd.DataFrame([{"task": self.task, "questions": self.questions, **estimates, "chance": self.chance}])


def accuracy(
    model: Any,
    questions: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    batch_size: int = LOSS_BATCH,
) -> Accuracy:
    """Measure a model's accuracy on multiple-choice questions, without examples before them.

    A question is read as it stands: a prompt template, such as `Question: …` and `Answer:` of the harness's ARC, must
    be part of it. One space is put between question and choice, unless there is white space already.

    Args:
        model: a causal language model, or its name.
        questions: a table with a question, its choices and the answer in each row (`text.questions.read_questions`).
        tokenizer: tokenizer of the texts; by default the model's own.
        batch_size: sequences in a forward pass.

    Raises:
        InputError: a model that predicts no next token, a row that is no question or that the model cannot read, or a
            log-likelihood that is not finite.
        SourceError: no such model, tokenizer or file.

    Source:
        Gao et al., lm-evaluation-harness, output type `multiple_choice`, target delimiter `" "`.
    """
    model = model_of(model, on_disk=True)
    check_causal(model)
    batch_size = check_count("batch_size", batch_size)
    asked = read_questions(questions)
    tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
    longest = longest_sequence(model)
    continuations = [
        each for row, question in enumerate(asked) for each in _continuations(row, question, tokenizer, longest)
    ]
    nats = log_likelihoods(model, continuations, batch_size)
    counts = [len(question.choices) for question in asked]
    chosen = []
    for row, (question, of_row) in enumerate(zip(asked, np.split(nats, np.cumsum(counts[:-1])), strict=True)):
        if not np.isfinite(of_row).all():
            raise InputError(
                f"row {row}: a log-likelihood is not finite: the weights or a swapped map overflow, or hold NaN"
            )
        characters = [len(choice) for choice in question.choices]
        chosen.append((of_row.argmax(), (of_row / characters).argmax()))
    correct = np.array(chosen) == np.array([[question.answer] for question in asked])
    task = Path(questions).name if isinstance(questions, str | Path) else "questions"
    return Accuracy(task, correct[:, 0], correct[:, 1], float(np.mean(1 / np.array(counts))))


def _continuations(
    row: int, question: Question, tokenizer: PreTrainedTokenizerBase, longest: int | None
) -> list[tuple[Int64[Tensor, " _"], int]]:
    """Encode a question with each choice, and find where the choice, with the white space before it, begins."""
    opening = opening_of(tokenizer)
    text = question.text
    wholes = [
        text + choice if text[-1].isspace() or choice[0].isspace() else f"{text} {choice}"
        for choice in question.choices
    ]
    context, *encoded = ([*opening, *ids] for ids in encode([text.rstrip(), *wholes], tokenizer))
    for ids in encoded:
        if not 0 < len(context) < len(ids):
            raise InputError(f"row {row}: the tokenizer makes no token of the question or of a choice: give other text")
        if longest is not None and len(ids) > longest:
            raise InputError(f"row {row}: {len(ids)} tokens, but the model reads at most {longest}: shorten it")
    return [(torch.tensor(ids, device="cpu"), len(context)) for ids in encoded]


@torch.inference_mode()
def log_likelihoods(
    model: PreTrainedModel, continuations: list[tuple[Int64[Tensor, " _"], int]], batch_size: int
) -> Float[np.ndarray, " n"]:
    """Compute log p(choice | question) of each continuation, in nats, shape (n,), finite or not.

    A continuation is the token ids of question and choice, shape (seq_len,), and the position where the choice begins.
    """
    found = np.empty(len(continuations))
    order = np.argsort([len(ids) for ids, _ in continuations], kind="stable")  # of like lengths, for little padding
    batches = np.split(order, range(batch_size, len(order), batch_size))
    device = device_of(model)
    inputs = []
    targets = []
    for places in batches:
        texts, starts = zip(*(continuations[place] for place in places), strict=True)
        ids = pad_sequence(texts, batch_first=True)
        check_ids(model, ids)
        position = torch.arange(ids.shape[1], device="cpu")
        within = position < torch.tensor([[len(text)] for text in texts], device="cpu")
        scored = within & (position >= torch.tensor([[start] for start in starts], device="cpu"))
        inputs.append({"input_ids": ids.to(device), "attention_mask": within.long().to(device), "use_cache": False})
        targets.append(ids.masked_fill(~scored, NO_TARGET))
    with evaluating(model), running(model):
        for places, predicted, wanted in zip(batches, predictions(model, inputs), targets, strict=True):
            found[places] = -(mean_losses(predicted, wanted) * (wanted != NO_TARGET).sum(1)).numpy()
    return found
