"""The gradient agrees with the slope; and if it is asked for in another way?  What one cotangent for all inputs does not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine.autograd import enable_grad, grad
from .diagnose import explain_elsewhere, explain_hidden
from .measuring import How, Problem, scaled, values_put_back
from .records import array_of
from .report import Diagnosis, Report
from .trace import Step


def not_linear(
    problem: Problem, gradients: Sequence[np.ndarray | None], outputs: list[Any]
) -> Diagnosis | None:
    """A gradient is linear in the incoming one: the same for none, and for a much larger and a much smaller one of the other sign.

    By powers of two, for these scale without rounding.
    """
    for k in (0.0, -(2.0**10), -(2.0**-10)):
        try:
            answers = problem.gradients(outputs, [k * c for c in problem.cotangents])
        except Exception as failure:
            return Diagnosis(
                "incoming gradient",
                f"a rule fails where the incoming gradient g is {k:g} times as large: "
                f"{type(failure).__name__}: {failure}",
            )
        for name, a, b in zip(problem.names, gradients, answers):
            if a is None or b is None:
                continue
            with np.errstate(all="ignore"):
                there = np.isfinite(k * a) & ~np.isinf(
                    b
                )  # what overflows says nothing about the rule
                limit = 1e-9 * abs(k) * np.abs(a[there]).max(initial=0) + np.finfo(np.float64).tiny
            if not (np.abs(k * a[there] - b[there]) <= limit).all():
                return Diagnosis(
                    "incoming gradient",
                    f"{name}: the gradient is not linear in the incoming gradient g: where g is {k:g} "
                    f"times as large, the gradient is not. Every term of a rule is multiplied by g, "
                    "exactly once: a rule does not clip, normalise, compare or divide by g.",
                )
    return None


def one_at_a_time(
    problem: Problem, gradients: Sequence[np.ndarray | None], outputs: list[Any]
) -> Diagnosis | None:
    """The gradient of one input is the same whether or not those of the others are asked for."""
    pairs = [(t, c) for t, c in zip(outputs, problem.cotangents) if t._tracked]
    if len(problem.inputs) < 2 or not pairs:
        return None
    for name, x, a in zip(problem.names, problem.inputs, gradients):
        try:
            with enable_grad(), np.errstate(all="ignore"):
                (b,) = grad(
                    [t for t, _ in pairs],
                    [x],
                    [c.copy() for _, c in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
        except Exception as failure:
            return Diagnosis(
                "needs",
                f"the backward pass fails where the gradient of {name} alone is asked for: "
                f"{type(failure).__name__}: {failure}. Look at what a rule does where not all of `needs` are true.",
            )
        if a is not None and (
            b is None or not np.allclose(a, b._data, rtol=1e-9, atol=1e-12, equal_nan=True)
        ):
            return Diagnosis(
                "needs",
                f"{name}: the gradient is another one where it alone is asked for. Look at what a rule returns where "
                "not all of `needs` are true.",
            )
    return None


def small_results(problem: Problem, how: How, report: Report) -> Diagnosis | None:
    """Each result that is small beside another, alone: in the sum of all, what is wrong with it is taken for rounding."""
    given = problem.cotangents
    sizes = [float(np.abs(c * y).max(initial=0)) for c, y in zip(given, problem.values())]
    for k, size in enumerate(sizes):
        if not 0 < size < 1e-3 * max(sizes):
            continue
        try:
            problem.cotangents = [c if i == k else np.zeros_like(c) for i, c in enumerate(given)]
            name = _wrong_here(problem, how)
        finally:
            problem.cotangents = given
        if name is not None:
            return explain_hidden(report, problem, name, k, how)
    return None


def wrong_elsewhere(problem: Problem, how: How, report: Report) -> Diagnosis | None:
    """Right at the given values; and a little way off?  There shows a rule that is right for a weight of ones only, or reads what an
    earlier call has left.
    """
    for _ in range(3):  # once might miss it by chance
        with values_put_back(problem.inputs):
            for x in problem.inputs:
                x._data = scaled(x._data, 1 + 0.1 * how.rng.uniform(-1, 1, x.shape))
            if (name := _wrong_here(problem, how)) is not None:
                return explain_elsewhere(report, problem, name, how)
    return None


def laid_otherwise(
    problem: Problem,
    gradients: Sequence[np.ndarray | None],
    rounding: Sequence[float],
    how: How,
    report: Report,
) -> Diagnosis | None:
    """The same numbers in another order in memory, as x.T or x[:, ::2] has them: an answer that depends on that is wrong."""
    with values_put_back(problem.inputs):
        for x in problem.inputs:
            x._data = _turned(x._data)
        try:
            outputs, trace = problem.traced()
        except Exception:  # f wants them row by row, and says so to who gives them otherwise
            return None
        try:
            answers, failure = (
                problem.gradients(outputs, [_turned(c) for c in problem.cotangents]),
                "",
            )
        except Exception as error:
            answers, failure = [], f", {type(error).__name__}: {error}"
        off = [
            name
            for name, a, b, r in zip(problem.names, gradients, answers, rounding)
            if _apart(a, b, r)
        ]
        if not (off or failure):
            return None
        step = next(
            (step for step in trace.steps if step.result._tracked and _minds_memory(step, how)),
            None,
        )
    if step is not None:
        report.point_at(step)
    what = (
        f"the backward pass fails{failure}"
        if failure
        else f"{' and '.join(off)}: the gradient is another one"
    )
    return Diagnosis(
        "memory layout",
        f"{what}, where the same numbers lie in another order in memory, as those of x.T or x[:, ::2] do. Of "
        "such an array reshape(-1) and ravel() are copies, so what is written into them is lost; "
        "np.zeros_like(x) lies as x does, np.zeros(x.shape) row by row. Look, too, for strides, view() and "
        "memory that is read as it lies.",
    )


def promotion(problem: Problem) -> str | None:
    """A note on the first op that makes float64 of float32 by itself, which a check in float64 does not see."""
    with (
        values_put_back(problem.inputs),
        suppress(Exception),
        np.errstate(all="ignore"),
    ):  # f may insist on float64
        for x in problem.inputs:
            x._data = x._data.astype(np.float32)
        for step in problem.traced()[1].steps:
            wide = [
                array_of(x).dtype == np.float64
                for x in step.inputs
                if isinstance(x, (Variable, np.ndarray))
            ]
            if (
                step.result._data.dtype == np.float64
                and wide
                and not any(wide)
                and step.name != "astype"
            ):
                return (
                    f"given float32, op {step.name!r} ({step.place}) gives float64, and so does all that follows: a number of "
                    "NumPy's such as np.sqrt(d) is float64 and wins over float32 arrays, float(...) of it does not; and so do "
                    "np.zeros(shape) and np.arange without a dtype."
                )
    return None


def _turned(x: np.ndarray) -> np.ndarray:
    """An equal array that lies column by column, with gaps."""
    spacious = np.zeros((*x.shape[::-1], 2))[..., 0].T
    spacious[...] = x
    return spacious


def _apart(a: np.ndarray | None, b: np.ndarray | None, rounding: float = 0.0) -> bool:
    """Do two answers differ by more than rounding makes?"""
    if a is None or b is None:
        return a is not b
    with np.errstate(all="ignore"):
        return bool((np.abs(a - b) > 1e-4 * np.abs(a).max(initial=0) + 1e3 * rounding).any())


def _minds_memory(step: Step, how: How) -> bool:
    """Does this op's gradient depend on how its operands lie?"""
    g = how.rng.standard_normal(step.result.shape)

    def answer(lie: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
        operands = [
            Variable._kind._of(lie(x._data), x._tracked) if isinstance(x, Variable) else x
            for x in step.inputs
        ]
        with enable_grad(), np.errstate(all="ignore"):
            found = grad(
                [step.op(*operands, **step.settings)],
                [x for x in operands if isinstance(x, Variable) and x._tracked],
                [lie(g)],
            )
        return [part._data for part in found]

    try:
        rows = answer(np.ascontiguousarray)
    except Exception:
        return False
    try:
        return any(_apart(a, b) for a, b in zip(rows, answer(_turned)))
    except Exception:
        return True


def _wrong_here(problem: Problem, how: How) -> str | None:
    """The name of an input whose gradient is off along a random direction, where the slope can be trusted."""
    try:
        gradients = problem.gradients()
    except Exception:  # f does not accept these values; nothing to learn then
        return None
    for which, (x, g) in enumerate(zip(problem.inputs, gradients)):
        direction = how.rng.choice([-1.0, 1.0], x.shape) * np.maximum(np.abs(x._data), 1e-3)
        a = 0.0 if g is None else float(np.sum(g * direction))
        slope, nearer = (problem.slope(which, direction, h) for h in (how.eps, how.eps / 8))
        noise = 10 * (how.atol + problem.noise(how.eps)) * float(np.abs(direction).max(initial=0))
        if (
            abs(slope - nearer) <= 1e-3 * max(abs(slope), abs(nearer))
            and abs(a - slope) > 5e-3 * max(abs(a), abs(slope)) + noise
        ):
            return problem.names[which]
    return None
