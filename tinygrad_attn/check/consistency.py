"""The gradient agrees with the slope; and if it is asked for in another way?

One incoming gradient, all results together, the given values: these hide rules that are wrong for
any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy

import numpy as np

from ..engine import Variable
from .diagnose import explain_elsewhere, explain_hidden
from .measuring import How, Problem, rounding, scaled, values_put_back
from .questions import OF_THE_ANSWER, fault
from .records import array_of
from .report import Diagnosis, Report, greatest


def inconsistent(problem: Problem, how: How, report: Report) -> Diagnosis | None:
    """The first way to ask in which the gradient is another one, or fails."""
    return (
        through_infinity(problem)
        or fault(problem, report, OF_THE_ANSWER)
        or small_results(problem, how, report)
        or wrong_elsewhere(problem, how, report)
    )


def through_infinity(problem: Problem) -> Diagnosis | None:
    """What stays infinite does not depend on the inputs, so no gradient goes there from it."""
    if not problem.infinite:
        return None
    outputs = problem.all_outputs()
    only_there = [at * c for at, c in zip(problem.infinite, problem.cotangents)]
    reached = zip(problem.names, problem.gradients(outputs, only_there))
    names = " and ".join(name for name, g in reached if g is not None and g.any())
    text = (
        "results that are infinite, and stay so when the inputs move, pass a gradient on to "
        f"{names}. A rule that fills in -inf gives zero there: g times the mask. Where -inf was "
        "added, or a number overflows, no slope can be measured: check what comes behind it, such "
        "as the softmax."
    )
    return Diagnosis("infinite result", text) if names else None


def small_results(problem: Problem, how: How, report: Report) -> Diagnosis | None:
    """Each result that is small beside another, alone: in the sum its error looks like rounding."""
    sizes = [greatest(c * y) for c, y in zip(problem.cotangents, problem.values())]
    for k, size in enumerate(sizes):
        if 0 < size < 1e-3 * max(sizes):
            one = copy(problem)
            one.cotangents = [c * (i == k) for i, c in enumerate(problem.cotangents)]
            if (name := _wrong_here(one, how)) is not None:
                return explain_hidden(report, problem, name, k, how)
    return None


def wrong_elsewhere(problem: Problem, how: How, report: Report) -> Diagnosis | None:
    """Right at the given values; and a little way off?

    There shows a rule that is right for a weight of ones only, or reads what an earlier call has
    left.
    """
    for _ in range(3):  # once might miss it by chance
        with values_put_back(problem.inputs):
            for x in problem.inputs:
                x._data = scaled(x._data, 1 + 0.1 * how.rng.uniform(-1, 1, x.shape))
            if (name := _wrong_here(problem, how)) is not None:
                return explain_elsewhere(report, problem, name, how)
    return None


def _wrong_here(problem: Problem, how: How) -> str | None:
    """An input whose gradient is off along a random direction, where the slope can be trusted."""
    try:
        gradients = problem.gradients()
    except Exception:  # f does not accept these values; nothing to learn then
        return None
    for which, (x, g) in enumerate(zip(problem.inputs, gradients)):
        direction = how.rng.choice([-1.0, 1.0], x.shape) * np.maximum(np.abs(x._data), 1e-3)
        a = 0.0 if g is None else float(np.sum(g * direction))
        slope, nearer = (problem.slope(which, direction, h) for h in (how.eps, how.eps / 8))
        largest = 0.0 if g is None else greatest(g)
        hidden = rounding(map(np.abs, problem.cotangents), how.eps)  # as if results were about 1
        noise = how.atol * min(1, largest) + max(problem.noise(how.eps), hidden)
        noise *= 10 * greatest(direction)
        steady = abs(slope - nearer) <= 1e-3 * max(abs(slope), abs(nearer))
        if steady and abs(a - slope) > 5e-3 * max(abs(a), abs(slope)) + noise:
            return problem.names[which]
    return None


def promotion(problem: Problem) -> Iterator[str]:
    """A note on the first op that makes float64 of float32; a check in float64 does not see it."""
    # A function may insist on float64.
    with values_put_back(problem.inputs), suppress(Exception):
        for x in problem.inputs:
            x._data = x._data.astype(np.float32)
        for step in problem.traced()[1].steps:
            given = [array_of(x) for x in step.inputs if isinstance(x, (Variable, np.ndarray))]
            widened = given and all(x.dtype != np.float64 for x in given)
            if widened and step.result._data.dtype == np.float64 and step.name != "astype":
                yield (
                    f"given float32, op {step.name!r} ({step.place}) gives float64, and so does "
                    "all that follows: a number of NumPy's such as np.sqrt(d) is float64 and wins "
                    "over float32 arrays, float(...) of it does not; and so do np.zeros(shape) "
                    "and np.arange without a dtype."
                )
                return
