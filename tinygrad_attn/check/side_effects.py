"""Faults that no slope shows: what a function or a rule does besides giving its answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .measuring import Problem, scaled, values_put_back
from .report import Diagnosis, Report
from .trace import Trace

Answers = Sequence[np.ndarray | None]


def unrepeatable(
    problem: Problem, outputs: list[Any], trace: Trace, report: Report
) -> Diagnosis | None:
    """f gives other results when it is called again."""
    again, second = problem.traced()
    equal = lambda a, b: np.array_equal(a._data, b._data, equal_nan=True)
    if len(again) == len(outputs) and all(map(equal, again, outputs)):
        return None
    steps = zip(trace.steps, second.steps)
    different = (a for a, b in steps if not equal(a.result, b.result))
    report.point_at(next(different, None))
    return Diagnosis(
        "not deterministic",
        "f gives different results for the same inputs, so it has no slope. Switch dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls.",
    )


def modified(problem: Problem, who: str) -> Diagnosis | None:
    """An input is no longer what it was before."""
    for name, t, value in zip(problem.names, problem.inputs, problem.given):
        if not np.array_equal(t._data, value, equal_nan=True):
            return Diagnosis(
                "input modified",
                f"{who} changes {name} in place, so its slope cannot be measured and saved values "
                "go wrong. Compute a new tensor (x = x + 1, not x.data += 1 or out=x), or copy "
                "first.",
            )
    return None


def unreached(gradients: Answers, order: int) -> Diagnosis | None:
    # The gradient of a step function is constant: that it does not move is measured.
    """No result depends on any input."""
    if order == 2 or any(g is not None for g in gradients):
        return None
    return Diagnosis(
        "gradient missing",
        "no result is connected to any input: nothing was recorded from the inputs to the "
        "results. Look for detach(), .data, .numpy(), .item(), Tensor(...) of a result, "
        "no_grad(), or a gradient taken without create_graph=True inside f; or f does not use its "
        "inputs.",
    )


def shared_state(
    problem: Problem, first: Answers, rng: np.random.Generator, report: Report
) -> Diagnosis | None:
    """Run f at other values between the two passes: a rule that reads state kept outside shows."""
    outputs, trace = problem.traced()
    if name := problem.differing(first, problem.gradients(outputs)):
        return Diagnosis(
            "rule changes its operands",
            f"{name}: a second backward pass gives another gradient. Some rule keeps state between "
            "calls, or draws random numbers (draw them once, in the forward pass, and save them).",
        )
    results = [(step, step.result._data.copy()) for step in trace.steps if step.recorded]
    named = zip(problem.inputs, problem.names)
    plain = [t for t, name in named if not name.startswith("parameter")]
    # Parameters stay as they are first, since state may be kept by parameter; and a function may
    # mind its domain, so the values move a little before they move far.
    for moved, least in itertools.product((plain, problem.inputs), (0.8, -1.5)):
        with suppress(Exception), values_put_back(moved):
            for t in moved:
                t._data = scaled(t._data, rng.uniform(least, 1.2, t.shape))
            problem.traced()
    for step, value in results:
        if not np.array_equal(step.result._data, value, equal_nan=True):
            report.point_at(step)
            return Diagnosis(
                "reused memory",
                f"the result of op {step.name!r} changes when f is called again: its function "
                "returns the same array at every call (out=, or an array kept outside), or a view "
                "of one. Return a new array each time.",
            )
    name = problem.differing(first, problem.gradients(outputs))
    if name is None:
        return None
    return Diagnosis(
        "shared state",
        f"{name}: calling f once more before backward() changes the gradient of the first call. "
        "Something the rule needs is kept on the layer, or in a variable outside, instead of in "
        "the call; the second call overwrites it.",
    )
