"""The gradient agrees with the slope; and if it is asked for in another way?

One incoming gradient, all inputs together, the given values, rows that lie one after another: these
hide rules that are wrong for any other.  Most of these tests are asked of the whole function first
and then of each op alone, which names the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine.autograd import enable_grad
from .diagnose import explain_elsewhere, explain_hidden
from .diagnose.suspects import alone
from .measuring import How, Problem, scaled, values_put_back
from .records import array_of
from .report import Diagnosis, Report
from .trace import Step

Answers = Sequence[np.ndarray | None]


def inconsistent(
    problem: Problem, gradients: Answers, rounding: Sequence[float], how: How, report: Report
) -> Diagnosis | None:
    """The first way to ask in which the gradient is another one, or fails."""
    steps = problem.traced()[1].steps
    if (found := through_infinity(problem)) is not None:
        return found
    for test in (not_linear, needs_others):
        if (found := test(problem)) is not None:
            _name_the_op(report, steps, how, test)
            return found
    return (
        small_results(problem, how, report)
        or wrong_elsewhere(problem, how, report)
        or laid_otherwise(problem, gradients, rounding, how, report)
    )


def _name_the_op(
    report: Report, steps: Sequence[Step], how: How, wrong: Callable[[Problem], Any]
) -> None:
    """The first op of which the same is true."""
    for step in (step for step in steps if step.differentiable):
        with suppress(Exception):  # what an op raises was told where it ran as part of the whole
            it = alone(step, how.rng)
            if it is not None and wrong(it.problem):
                report.point_at(step)
                report.culprits = [step.name]
                return


def through_infinity(problem: Problem) -> Diagnosis | None:
    """What stays infinite does not depend on the inputs, so no gradient goes there from it."""
    if not problem.infinite:
        return None
    with enable_grad(), np.errstate(all="ignore"):
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


def not_linear(problem: Problem) -> Diagnosis | None:
    """A gradient is linear in the incoming one: none of it gives none, a thousandfold a
    thousandfold.

    By powers of two, which scale without rounding.
    """
    outputs = problem.traced()[0]
    gradients = problem.gradients(outputs)
    for k in (0.0, -(2.0**10), -(2.0**-10)):
        try:
            answers = problem.gradients(outputs, [k * c for c in problem.cotangents])
        except Exception as failure:
            return Diagnosis(
                "incoming gradient",
                f"a rule fails where the incoming gradient g is {k:g} times as large: "
                f"{_told(failure)}",
            )
        for name, a, b in zip(problem.names, gradients, answers):
            if a is not None and b is not None and (how := _not_multiplied(a, b, k)):
                return Diagnosis(
                    "incoming gradient",
                    f"{name}: the gradient is not linear in the incoming gradient g: where g is "
                    f"{k:g} times as large, the gradient is {how}. Every term of a rule is "
                    "multiplied by g, exactly once: a rule does not clip, normalise, compare or "
                    "divide by g.",
                )
    return None


def _not_multiplied(a: np.ndarray, b: np.ndarray, k: float) -> str:
    """Is b not k times a?  What overflows says nothing about the rule."""
    with np.errstate(all="ignore"):
        there = np.isfinite(k * a) & ~np.isinf(b)
        limit = 1e-9 * abs(k) * np.abs(a[there]).max(initial=0) + np.finfo(np.float64).tiny
        if (np.abs(k * a[there] - b[there]) <= limit).all():
            return ""
    return "NaN" if np.isnan(b[there]).any() else "not"


def needs_others(problem: Problem) -> Diagnosis | None:
    """The gradient of one input is the same whether or not those of the others are asked for."""
    outputs = problem.traced()[0]
    gradients = problem.gradients(outputs)
    if len(problem.inputs) < 2 or all(a is None for a in gradients):
        return None
    for which, (name, a) in enumerate(zip(problem.names, gradients)):
        hint = "Look at what a rule {} where not all of `needs` are true."
        try:
            b = problem.gradients(outputs, only=which)[which]
        except Exception as failure:
            return Diagnosis(
                "needs",
                f"the backward pass fails where the gradient of {name} alone is asked for: "
                f"{_told(failure)}. {hint.format('does')}",
            )
        if a is not None and (b is None or not np.allclose(a, b, 1e-9, 1e-12, equal_nan=True)):
            return Diagnosis(
                "needs",
                f"{name}: the gradient is another one where it alone is asked for. "
                f"{hint.format('returns')}",
            )
    return None


def _told(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"


def small_results(problem: Problem, how: How, report: Report) -> Diagnosis | None:
    """Each result that is small beside another, alone: in the sum its error looks like rounding."""
    given = problem.cotangents
    sizes = [float(np.abs(c * y).max(initial=0)) for c, y in zip(given, problem.values())]
    for k, size in enumerate(sizes):
        if 0 < size < 1e-3 * max(sizes):
            try:
                problem.cotangents = [c * (i == k) for i, c in enumerate(given)]
                name = _wrong_here(problem, how)
            finally:
                problem.cotangents = given
            if name is not None:
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
        noise = 10 * (how.atol + problem.noise(how.eps)) * float(np.abs(direction).max(initial=0))
        steady = abs(slope - nearer) <= 1e-3 * max(abs(slope), abs(nearer))
        if steady and abs(a - slope) > 5e-3 * max(abs(a), abs(slope)) + noise:
            return problem.names[which]
    return None


def laid_otherwise(
    problem: Problem, gradients: Answers, rounding: Sequence[float], how: How, report: Report
) -> Diagnosis | None:
    """The same numbers in another order in memory, as x.T or x[:, ::2] has them."""
    if (what := _minds_layout(problem, gradients, rounding)) is None:
        return None
    exact = lambda p: _minds_layout(p, p.gradients(), [0.0] * len(p.inputs))
    _name_the_op(report, problem.traced()[1].steps, how, exact)
    return Diagnosis(
        "memory layout",
        f"{what}, where the same numbers lie in another order in memory, as those of x.T or x[:, "
        "::2] do. Of such an array reshape(-1) and ravel() are copies, so what is written into "
        "them is lost; np.zeros_like(x) lies as x does, np.zeros(x.shape) row by row. Look, too, "
        "for strides, view() and memory that is read as it lies.",
    )


def _minds_layout(problem: Problem, gradients: Answers, rounding: Sequence[float]) -> str | None:
    with values_put_back(problem.inputs):
        for x in problem.inputs:
            x._data = _turned(x._data)
        try:
            outputs = problem.traced()[0]
        except Exception:  # f wants them row by row, and says so to who gives them otherwise
            return None
        for layout in (_turned, lambda c: np.array(c, order="F")):
            try:
                answers = problem.gradients(outputs, [layout(c) for c in problem.cotangents])
            except Exception as failure:
                return f"the backward pass fails, {_told(failure)}"
            compared = zip(problem.names, gradients, answers, rounding)
            if off := [name for name, a, b, r in compared if _apart(a, b, r)]:
                return f"{' and '.join(off)}: the gradient is another one"
    return None


def _turned(x: np.ndarray) -> np.ndarray:
    """An equal array that lies column by column, with gaps."""
    spacious = np.zeros((*x.shape[::-1], 2))[..., 0].T
    spacious[...] = x
    return spacious


def _apart(a: np.ndarray | None, b: np.ndarray | None, rounding: float) -> bool:
    """Do two answers differ by more than rounding makes?"""
    if a is None or b is None:
        return a is not b
    with np.errstate(all="ignore"):
        return bool((np.abs(a - b) > 1e-4 * np.abs(a).max(initial=0) + 1e3 * rounding).any())


def promotion(problem: Problem) -> Iterator[str]:
    """A note on the first op that makes float64 of float32; a check in float64 does not see it."""
    # A function may insist on float64.
    with values_put_back(problem.inputs), suppress(Exception), np.errstate(all="ignore"):
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
