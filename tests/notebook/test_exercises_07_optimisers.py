"""The exercises of notebook 07."""

import torch

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.ceilings import r2
from howlinear.ideas.optimisers.gradient_descent import descent


def unlearned_in(names, scaling, steps):
    return descent(names["moments_in"](scaling)).unlearned(steps)


def at_the_old_rate(names):
    """On standardised inputs, at the rate that suits the raw ones, or the largest that does not diverge."""
    moments = names["moments_in"]("standardised")
    largest = 1.9 / float(descent(moments).values[-1])
    return descent(moments, min(names["theory"].rate, largest)).unlearned(names["steps"])


def descended(steps, patience=0.0, standardised=False):
    """A function as exercise 4 asks for, whose line walks so many steps, or until one gains too little."""

    def ceiling(rows, held_out):
        scale = rows.sxx.diagonal().rsqrt() if standardised else torch.ones_like(rows.mean_x)
        sxx, sxy = scale[:, None] * rows.sxx * scale, scale[:, None] * rows.sxy
        rate = 1 / torch.linalg.eigvalsh(sxx)[-1]
        weight, before = torch.zeros_like(sxy), float(rows.syy.sum())
        for _ in range(steps):
            weight = weight + rate * (sxy - sxx @ weight)
            loss = float(rows.syy.sum() + (weight * (sxx @ weight - 2 * sxy)).sum())
            if before - loss <= patience * before:
                break
            before = loss
        weight = scale[:, None] * weight
        return r2(hl.AffineMap(weight, rows.mean_y - rows.mean_x @ weight), held_out)

    return ceiling


WRONG = {
    "needed": {
        "a step too few": lambda names: names["needed"] - 1,
        "a step too many": lambda names: names["needed"] + 1,
        "a hundredth": lambda names: names["theory"].steps_to(1e-2),
        "not squared": lambda names: 2 * names["needed"],
    },
    "unlearned": {
        "on raw inputs": lambda names: names["theory"].unlearned(names["steps"]),
        "on whitened inputs": lambda names: unlearned_in(names, "whitened", names["steps"]),
        "half the steps": lambda names: unlearned_in(names, "standardised", names["steps"] // 2),
        "at the old rate": at_the_old_rate,
        "what is learned": lambda names: 1 - names["unlearned"],
    },
    "whitened_rate": {
        "half of it": lambda names: 0.5,
        "as on raw inputs": lambda names: names["theory"].rate,
        "the least that diverges": lambda names: 2.0,
        "over the number of rows": lambda names: 1 / len(names["problem"].x),
    },
    "repaired": {
        "the bug itself": lambda names: descended(10_000, patience=1e-3),
        "ten times as patient": lambda names: descended(10_000, patience=1e-4),
        "so many steps": lambda names: descended(500),
        "standardised": lambda names: descended(10_000, patience=1e-3, standardised=True),
        "in sample": lambda names: lambda rows, held_out: hl.ceiling(rows, rows).r2,
    },
}
