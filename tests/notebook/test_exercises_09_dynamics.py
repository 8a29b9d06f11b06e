"""The exercises of notebook 09."""

from copy import deepcopy

import numpy as np
import torch

from helpers.exercises import TestExercises  # noqa: F401
from howlinear.training.minis import new_model


def beside(names, places):
    """The steps so many measured ones after the right ones."""
    curves = names["curves"].values()
    found = [list(curve.steps).index(step) + places for step, curve in zip(names["recognised"], curves, strict=True)]
    return [int(curve.steps[place]) for place, curve in zip(found, curves, strict=True)]


def first_alike(names, above=0.9):
    """The first steps alike, whether or not they stay so."""
    steps = []
    for curve in names["curves"].values():
        alike = np.array([np.corrcoef(r2, curve.r2[-1])[0, 1] for r2 in curve.r2]) > above
        steps.append(int(curve.steps[alike.argmax()]))
    return steps


def to_come(names, scale=np.log1p, middle=np.median):
    """What is to come of each fall, read on another scale or where another block settles."""
    parts = []
    for curve in names["curves"].values():
        settles = middle(names["settling"](curve.steps, curve.r2, names["share"]).step)
        loss = np.interp(scale(settles), scale(curve.steps), curve.loss)
        parts.append((loss - curve.loss[-1]) / (curve.loss[0] - curve.loss[-1]))
    return parts


def in_nats(names):
    falls = [curve.loss[0] - curve.loss[-1] for curve in names["curves"].values()]
    return [part * fall for part, fall in zip(names["still_to_come"], falls, strict=True)]


def fresh(names, seed=0):
    return new_model("mini-gpt2", names["run"].seed + seed, names["blocks"], names["width"])


@torch.no_grad()
def between(names, share, part=""):
    """The right model with so much of the way from its start gone; only of weights with this in their name."""
    model = deepcopy(names["frozen"])
    start = fresh(names).state_dict()
    for name, weight in model.named_parameters():
        if part in name:
            weight.copy_(start[name] + share * (weight - start[name]))
    return model


@torch.no_grad()
def one_ffn_learned(names):
    model = deepcopy(names["frozen"])
    model.transformer.h[0].mlp.c_proj.weight.mul_(1.01)
    return model


WRONG = {
    "recognised": {
        "a step too early": lambda names: beside(names, -1),
        "a step too late": lambda names: beside(names, 1),
        "not measured": lambda names: [step - 1 for step in names["recognised"]],
        "when it settles": lambda names: names["settled"],
        "alike by chance": lambda names: first_alike(names, 0.5),
        "one run": lambda names: names["recognised"][:1],
    },
    "still_to_come": {
        "what has fallen": lambda names: [1 - part for part in names["still_to_come"]],
        "on an even scale": lambda names: to_come(names, scale=np.array),
        "the mean block": lambda names: to_come(names, middle=np.mean),
        "in nats": in_nats,
        "when the loss settles": lambda names: [0.1] * len(names["curves"]),
        "one run": lambda names: names["still_to_come"][:1],
    },
    "frozen": {
        "not trained": lambda names: fresh(names),
        "not frozen": lambda names: names["free"],
        "one FFN not frozen": one_ffn_learned,
        "another seed": lambda names: fresh(names, seed=1),
        "attention frozen too": lambda names: between(names, 0, ".attn."),
        "too few steps": lambda names: between(names, 0.3),
    },
}
