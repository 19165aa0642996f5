"""A gradient is wrong: is it the check, the program, one op's rule or the engine?

The report is told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..judging import SMALL, Trial
from ..measuring import How, Problem
from ..questions import OF_THE_ANSWER, fault
from ..report import Diagnosis, Report
from ..trace import Trace
from .measurement import Program, drowned, lower_precision
from .pattern import Pattern
from .suspects import Suspect, cut_short, search
from .table import explanation


def explain(report: Report, problem: Problem, trace: Trace, outputs: list[Any], how: How) -> None:
    """Fill in the report's diagnosis, op, place and curve."""
    program = Program(report, problem, trace, outputs, how)
    settled = lower_precision(program) or program.better_steps
    if not settled and drowned(report, problem, how):
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
    why = _accused(report, worst)
    operand = f" (its rule for operand {worst.position})" if len(worst.step.inputs) > 1 else ""
    return Diagnosis(why.kind, f"in op {report.op!r}{operand}: {why.text}")


def _accused(report: Report, s: Suspect) -> Diagnosis:
    """Point at the op, and say what is wrong with its rule."""
    report.point_at(s.step)
    return _explained(s)


def _explained(s: Suspect) -> Diagnosis:
    told: Any = explanation(pattern_of(s, s.how.eps))
    if told[0].kind != "rule" or not s.entry.projections or (small := cut_short(s)) is None:
        return told[0]
    part = _explained(small)
    where = "where its operands are cut to the first few elements along each axis"
    return told[0] if part.kind == "rule" else Diagnosis(part.kind, f"{where}, {part.text}")


def _between_the_ops(program: Program) -> Diagnosis:
    """No op is to blame: look at what joins them, and at the pattern of the whole gradient."""
    if (told := explanation(program, "program")) is not None:
        program.report.point_at(told[1].get("step"))
        return told[0]
    pattern = pattern_of(program, program.problem.steady_step(program.which))
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


def pattern_of(trial: Trial, h: float) -> Pattern:
    """Everything the explanations may look at, for one input of a problem."""
    problem, x, a, n = trial.problem, trial.x._data, trial.entry.analytic, trial.entry.numeric
    values = problem.values()
    if np.isnan(n).any():  # to what is wrong comes a sample that tells what is right
        some = np.random.default_rng(6).choice(x.size, min(x.size, SMALL), replace=False)
        n = np.where(np.isnan(n), problem.numeric(trial.which, h, some), n)
    g, y = (problem.cotangents[0], values[0]) if len(values) == 1 else (None, None)
    measured, at = ~np.isnan(n), None
    if not measured.all():  # then the elements that are known are judged as a list
        at = list(map(tuple, np.argwhere(measured).tolist()))
        like_x = g is not None and g.shape == x.shape
        g, y = (g[measured], y[measured]) if like_x else (None, None)  # type: ignore[index]
        a, n, x = a[measured], n[measured], x[measured]
    return Pattern(a, n, x, g, y, problem.noise(h), at, trial, h)


# ---- where the gradient agrees, but not in every respect


def explain_elsewhere(report: Report, problem: Problem, name: str, how: How) -> Diagnosis:
    """The gradient is right at the given values and wrong at those that the problem has now."""
    kind, reason = (
        "stale state",
        "Either these values are special (a weight of ones, zeros, equal elements) and hide a "
        "wrong rule, which random ones will show; or the rule uses something that an earlier call "
        "left behind (kept on the layer or in a variable outside, and not renewed) instead of "
        "what this call computed.",
    )
    if (why := _of_the_ops(report, problem, how)) and why.kind == "operand misplaced":
        kind, reason = why.kind, why.text
    text = "the gradient is right at the values given here and wrong a little way off"
    return Diagnosis(kind, f"{name}: {text}: {reason}")


def explain_hidden(report: Report, problem: Problem, name: str, number: int, how: How) -> Diagnosis:
    """The gradient of one result is wrong, but too small to show beside the others."""
    why = _of_the_ops(report, problem, how)
    return Diagnosis(
        why.kind if why else "small result",
        f"{name}: the gradient of result {number} is wrong, which does not show beside the other "
        "results, for it is much smaller than they are. "
        + (f"In op {report.op!r}: {why.text}" if why else "Check it by itself."),
    )


def _of_the_ops(report: Report, problem: Problem, how: How) -> Diagnosis | None:
    found = search(problem.traced()[1].steps, how.rng).found
    return _accused(report, found[0]) if found else None
