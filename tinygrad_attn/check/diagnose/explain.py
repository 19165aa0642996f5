"""A gradient is wrong: is it the check, the program, one op's rule or the engine?

The report is told.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ..measuring import GROUPS, How, Problem, values_put_back
from ..questions import OF_THE_ANSWER, fault
from ..records import array_of
from ..report import Diagnosis, Report
from ..trace import Step, Trace
from .experiments import SMALL
from .measurement import Program, drowned, lower_precision
from .pattern import Pattern
from .suspects import Suspect, cannot_be_differentiated, search, two_answers
from .table import explanation


def explain(report: Report, problem: Problem, trace: Trace, outputs: list[Any], how: How) -> None:
    """Fill in the report's diagnosis, op, place and curve."""
    program = Program(report, problem, trace, outputs, how)
    if lower_precision(program) is None and not program.better_steps and drowned(program):
        return
    report.curve = program.curve
    if (told := explanation(program, "measurement")) is not None:
        report.diagnosis = told[0]
        report.better_steps = program.better_steps if told[0].kind == "eps" else ()
        report.point_at(told[1].get("step"))
        return
    _remark(program)
    report.culprits = [s.step.name for s in program.search.found]
    report.diagnosis = (
        _of_an_op(report, program)
        or fault(problem, report, OF_THE_ANSWER)
        or _between_the_ops(program)
    )


def _remark(program: Program) -> None:
    """What makes the diagnosis less certain."""
    report, x = program.report, program.x._data
    if program.kinks == "some":
        report.notes.append(
            "some of the elements that are off lie at a kink; the diagnosis is about the others."
        )
    if x.size > 1 and (x == x.flat[0]).all():
        report.notes.append(
            f"all elements of {program.entry.name} are equal, where one mistake looks like "
            "another; random ones tell more."
        )


def _of_an_op(report: Report, program: Program) -> Diagnosis | None:
    """What is wrong with the op that is off the most."""
    if not program.search.found:
        return None
    worst = program.search.found[0]
    report.point_at(worst.step)
    why = explain_rule(worst)
    operand = f" (its rule for operand {worst.position})" if len(worst.step.inputs) > 1 else ""
    return Diagnosis(why.kind, f"in op {report.op!r}{operand}: {why.text}")


def explain_rule(s: Suspect) -> Diagnosis:
    """What is wrong with this op's rule."""
    if s.failure is not None:
        return s.failure
    told = explanation(pattern_of(s.problem, s.which, s.analytic, s))
    return told[0]  # type: ignore


def _between_the_ops(program: Program) -> Diagnosis:
    """No op is to blame: look at what joins them, and at the pattern of the whole gradient."""
    if (told := explanation(program, "program")) is not None:
        program.report.point_at(told[1].get("step"))
        return told[0]
    entry = program.entry
    pattern = pattern_of(program.problem, program.which, entry.analytic, None, entry.numeric)
    told, hint = explanation(pattern), _where_to_look(program)
    if told is None:
        return Diagnosis("unknown", hint)
    if told[0].kind == "domain":
        return told[0]
    if told[0].kind == "nan":
        hint = "ta.detect_anomaly() names the op that makes it."
    return Diagnosis(told[0].kind, f"{told[0].text} Note: {hint}")


def _where_to_look(program: Program) -> str:
    if program.checkpointed:
        return (
            "the ops inside checkpoint() cannot be looked at one by one: check the function "
            "without it."
        )
    if not program.search.complete:
        return (
            "no op's own rule was found to be wrong, but not all could be asked alone: look at "
            "what joins them (a value computed outside the graph, a use that is not counted), and "
            "check the ops by themselves."
        )
    return (
        "every op's own rule is right, so look at what joins them: a value computed outside the "
        "graph, or a use that is not counted."
    )


def pattern_of(
    problem: Problem,
    which: int,
    analytic: np.ndarray,
    suspect: Suspect | None = None,
    numeric: np.ndarray | None = None,
) -> Pattern:
    """Everything the explanations may look at, for one input of a problem."""
    x, values, h = problem.inputs[which], problem.values(), problem.steady_step(which)
    rng = np.random.default_rng(6)
    if numeric is None:
        small = x.size <= 20 * GROUPS
        flats = None if small else problem.suspicious(which, analytic, h, rng)
        numeric = problem.numeric(which, h, flats)
    if np.isnan(numeric).any():  # to what is wrong comes a sample that tells what is right
        sample = rng.choice(x.size, min(x.size, 4 * GROUPS), replace=False)
        numeric = np.where(np.isnan(numeric), problem.numeric(which, h, sample), numeric)
    single = len(values) == 1
    found = Pattern(
        analytic,
        numeric,
        x._data,
        problem.cotangents[0] if single else None,
        values[0] if single else None,
        problem.noise(h),
        suspect=suspect,
    )
    measured = ~np.isnan(numeric)
    if not measured.all():
        return _listed(found, measured)
    if suspect is not None:
        found.others = {
            f"operand {i}": array_of(o)
            for i, o in enumerate(suspect.step.inputs)
            if getattr(o, "dtype", None) == np.float64 and np.shape(o) == x.shape and i != which
        }
    if x.size <= SMALL and sum(v.size for v in values) <= 4 * SMALL:
        found.ask_jacobians = lambda: (problem.jacobian_by_rules(which), problem.jacobian(which, h))
    found.ask_elsewhere = _at_other_values(problem, which, h)
    return found


def _listed(p: Pattern, measured: np.ndarray) -> Pattern:
    """The measured elements of a large input, judged as a list."""
    at = [tuple(int(i) for i in index) for index in np.argwhere(measured)]
    like_x = p.g is not None and p.g.shape == p.a.shape
    g, y = (p.g[measured], p.y[measured]) if like_x else (None, None)  # type: ignore[index]
    return Pattern(
        p.a[measured], p.n[measured], p.x[measured], g, y, p.tolerance, at, suspect=p.suspect
    )


def _at_other_values(
    problem: Problem, which: int, h: float
) -> Callable[[], list[tuple[np.ndarray, np.ndarray]]]:
    """(a, n) at fresh values, since few elements may look proportional by accident."""
    x = problem.inputs[which]

    def elsewhere() -> list[tuple[np.ndarray, np.ndarray]]:
        found: list[tuple[np.ndarray, np.ndarray]] = []
        if x.size > 4 * GROUPS:
            return found
        rng, before = np.random.default_rng(1), x._data
        with suppress(Exception), values_put_back([x]):  # the function may mind its domain
            for _ in range(3 if x.size < 8 else 1):
                x._data = before * (1 + 0.05 * rng.uniform(-1, 1, x.shape))
                g = problem.gradients()[which]
                found.append((np.zeros(x.shape) if g is None else g, problem.numeric(which, h)))
        return found

    return elsewhere


# ---- where the gradient agrees, but not in every respect


def explain_elsewhere(report: Report, problem: Problem, name: str, how: How) -> Diagnosis:
    """The gradient is right at the given values and wrong at those that the problem has now."""
    found = search(problem.traced()[1].steps, how.rng).found
    kind, reason = (
        "stale state",
        "Either these values are special (a weight of ones, zeros, equal elements) and hide a "
        "wrong rule, which random ones will show; or the rule uses something that an earlier call "
        "left behind (kept on the layer or in a variable outside, and not renewed) instead of "
        "what this call computed.",
    )
    if found:
        report.point_at(found[0].step)
        why = explain_rule(found[0])
        if why.kind == "operand misplaced":
            kind, reason = why.kind, why.text
    text = (
        f"{name}: the gradient is right at the values given here and wrong a little way off: "
        f"{reason}"
    )
    return Diagnosis(kind, text)


def explain_hidden(report: Report, problem: Problem, name: str, number: int, how: How) -> Diagnosis:
    """The gradient of one result is wrong, but too small to show beside the others."""
    kind, reason = "small result", "Check it by itself."
    if found := search(problem.traced()[1].steps, how.rng).found:
        report.point_at(found[0].step)
        why = explain_rule(found[0])
        kind, reason = why.kind, f"In op {report.op!r}: {why.text}"
    return Diagnosis(
        kind,
        f"{name}: the gradient of result {number} is wrong, which does not show beside the other "
        f"results, for it is much smaller than they are. {reason}",
    )


# ---- where there is no number to judge by


def point_at_failing_rule(report: Report, trace: Trace, rng: np.random.Generator) -> None:
    """Name the op whose rule raises, or writes into what it is given."""
    found = (s for s in search(trace.steps, rng).found if s.failure is not None)
    _accuse(report, next(found, None))


def point_at_rule_that_leaves(report: Report, trace: Trace, rng: np.random.Generator) -> None:
    """Name the op whose rule cannot be differentiated again."""
    found = (cannot_be_differentiated(step, rng) for step in trace.steps)
    suspect = next((s for s in found if s is not None), None)
    _accuse(report, suspect)
    if suspect is not None:
        report.diagnosis = suspect.failure or report.diagnosis


def point_at_two_answers(report: Report, trace: Trace, rng: np.random.Generator) -> None:
    """Name the op whose rule gives Tensors another answer than arrays."""
    _accuse(report, next((s for step in trace.steps if (s := two_answers(step, rng))), None))


def _accuse(report: Report, suspect: Suspect | None) -> None:
    if suspect is not None:
        report.point_at(suspect.step)
        report.culprits = [suspect.step.name]


def first_difference(first: Trace, second: Trace) -> Step | None:
    """The first op whose result is not the same in two runs."""
    equal = lambda a, b: np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    pairs = zip(first.steps, second.steps)
    return next((a for a, b in pairs if not equal(a.result._data, b.result._data)), None)
