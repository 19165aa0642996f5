"""`gradcheck`: is the gradient that the rules give the slope of the function?

If not, its report says where and by how much, which op is wrong, and what mistake it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import enable_grad, tracked
from ..messages.signatures import check_flags, own_names
from .arguments import check_settings, collect
from .consistency import inconsistent, promotion
from .diagnose import accuse, answers_twice, explain, leaves_the_graph, raises, search
from .judging import SMALL, entries
from .measuring import How, Problem, values_put_back
from .questions import fault, memory
from .records import made_at
from .report import Diagnosis, Report, greatest
from .second_order import differentiable_gradient, two_answers
from .side_effects import modified, shared_state, unreached, unrepeatable
from .trace import Trace

EPS = 1e-6
"""The default step; where it does not suit the size of the values, another one is tried."""


class GradcheckError(AssertionError):
    """A gradient that is not the slope of its function; `.report` holds what was found."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@own_names
def gradcheck(
    f: Callable[..., Any],
    inputs: Any = (),
    *,
    eps: float = EPS,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    order: int = 1,
    fast_mode: bool = False,
    params: Any = None,
    seed: int = 0,
) -> Report:
    """Compare d(sum of v * f)/dx by the rules with (f(x + eps) - f(x - eps)) / (2 eps), v random.

    `f` is a function of Tensors or a Module that returns a Tensor or a tuple with some.  `inputs`
    is a Tensor or a sequence of Tensors, arrays and whatever else f takes: the Tensors that require
    a gradient and the float64 arrays are checked (all floating Tensors if none requires one).
    `params`, further tensors f depends on, are checked as well; for a Module its parameters are.
    `order=2` checks the gradient's own gradient too.  An element is wrong if |analytic - numeric| >
    atol + rtol |numeric|, with atol scaled down for gradients smaller than 1.  Inputs of more than
    512 elements are measured in 512 random projections, with `fast_mode` any input in two.  Where
    the default eps does not suit the size of the values, another step is found and noted.

    Also checked: f gives the same twice, leaves its inputs alone, keeps nothing between calls that
    its gradient needs, and its ops and rules return new arrays.  An error that f raises a step away
    counts as the edge of its domain.  Results that stay infinite when the inputs move, such as
    blocked scores, have no slope: they are left out, and noted, and no gradient may pass through
    them.  A gradient that agrees is asked for once more: for other incoming gradients, which it
    must follow, of each input alone, of results much smaller than the others alone, at values a
    little way off, and at the same values in another order in memory.  Noted are an op that makes
    float64 of float32 by itself, a Tensor that requires a gradient and is not checked, and a rule
    whose error is allowed and yet is none of measuring.

    Returns a Report, true or false; raises GradcheckError (an AssertionError) with the report as
    text if it is false and `raise_exception`.  Raises TypeError for float32, whose rounding hides
    errors below about 1 %, and ValueError for a negative tolerance, step or seed.  As
    torch.autograd.gradcheck.
    """
    check_flags("gradcheck", raise_exception=raise_exception, fast_mode=fast_mode)
    check_settings(eps, atol, rtol, order, seed)
    arguments, checked, names = collect(f, inputs, params)
    # The seed alone may well have made the inputs.
    groups = 2 if fast_mode else SMALL
    how = How(eps, atol, rtol, groups, np.random.default_rng([seed, 0x76]))
    # Whoever calls wants the slopes of f; a step may leave its domain, and a multiple overflow.
    with values_put_back(checked), enable_grad(), np.errstate(all="ignore"):
        for t in checked:  # arrays of our own, to move about
            t._data, t._tracked = t._data.copy(), True
        problem = Problem(lambda: f(*arguments), checked, names, how.rng)
        report = _check(problem, how)
        if order == 2 and report.ok:
            report = _check_gradient(problem, how, report)
    if raise_exception and not report:
        raise GradcheckError(report)
    return report


@own_names
def gradgradcheck(f: Callable[..., Any], inputs: Any = (), **options: Any) -> Report:
    """`gradcheck` with order=2: the gradient, and its own gradient.

    As torch.autograd.gradgradcheck.
    """
    return gradcheck(f, inputs, order=2, **options)


def _check(problem: Problem, how: How, order: int = 1) -> Report:
    """One order, on tensors whose values are ours to move."""
    report, (outputs, trace) = Report(order=order), problem.traced()
    report.diagnosis = (
        modified(problem, "f") or unrepeatable(problem, outputs, trace, report) or report.diagnosis
    )
    if report.diagnosis:
        return report
    try:
        gradients = problem.gradients(outputs)
    except Exception as failure:
        report.diagnosis = _backward_fails(failure)
        accuse(report, trace, how.rng, raises)
        return report
    report.diagnosis = (
        unreached(gradients, order)
        or fault(problem, report, [memory])
        or modified(problem, "the backward pass")
        or shared_state(problem, gradients, how.rng, report)
        or report.diagnosis
    )
    if report.diagnosis:
        if report.diagnosis.kind == "shared state":
            again = lambda it: bool(shared_state(it, it.gradients(), how.rng, Report()))
            accuse(report, trace, how.rng, again)
        return report
    noise = problem.noise(how.eps)
    report.entries = entries(problem, gradients, how, noise)
    _note(report, problem, noise, trace)
    if not report:
        explain(report, problem, trace, outputs, how)
        if report.better_steps and how.eps == EPS:
            return _with_another_step(problem, how, report)
    if report:
        found = inconsistent(problem, how, report)
        report.diagnosis = found or report.diagnosis
    if report and order == 1:
        report.notes += promotion(problem)
    return report


def _backward_fails(failure: Exception) -> Diagnosis:
    told = str(failure)
    if not isinstance(failure, (ValueError, TypeError)):
        told = f"{type(failure).__name__}: {failure}"
    if "gave a gradient of shape" in told:
        hint = " Is a sum over a broadcast axis missing, or one too many?"
        return Diagnosis("wrong shape", told + hint)
    if isinstance(failure, TypeError) and re.search(r"\w+>?\(\) (takes|got|missing) ", told):
        told += (
            ". A rule is called as rule(g, y, *inputs, **settings): write lambda g, y, x, axis: "
            "... for an op with the setting axis, and name all of the op's inputs."
        )
    return Diagnosis("backward fails", told)


def _note(report: Report, problem: Problem, noise: float, trace: Trace) -> None:
    """What makes an agreement say less than it seems."""
    notes, right = report.notes, [e for e in report.entries if e.ok]
    if problem.infinite:
        notes.append(
            "results that are infinite and stay so, such as the scores of a mask, have no slope "
            "and were left out."
        )
    if len(right) == len(report.entries) and not any(e.analytic.any() for e in right):
        notes.append(
            "every gradient is zero here, so this says little; choose inputs at which the "
            "function has a slope."
        )
    notes += [
        f"{e.name}: its gradient is smaller than what rounding may make of differences between "
        "results this large, so this says little; scale the function, or take its offset away."
        for e in right
        if 0 < greatest(e.analytic) <= noise
    ]
    known = set(problem.inputs)
    used = (x for step in trace.steps for x in step.inputs if tracked(x) and made_at(x) is None)
    others = {x: str(x.shape) for x in used if x not in known}
    if others:
        notes.append(
            "f uses further Tensors that require a gradient and were not checked, of shape "
            f"{', '.join(others.values())}: give them in params=[...]."
        )
    if any(
        np.nanmax(e.error, initial=0) > 1e-4 * np.nanmax(np.abs(e.numeric), initial=0)
        for e in right
    ):
        notes += [
            f"the rule of op {s.step.name!r} is {s.error:.0e} off, which is allowed here but is no "
            "error of measuring: is a number in it rounded, or an eps added?"
            for s in search(trace.steps, np.random.default_rng(9)).found
        ]
    what = "the results do" if report.order == 1 else "the gradient does"
    notes += [f"{e.name}: {what} not depend on it." for e in right if e.missing]


def _with_another_step(problem: Problem, how: How, first: Report) -> Report:
    """Take a step that suits these values, if all agrees there or an op is found to be wrong."""
    found = first
    for eps in first.better_steps:
        second = _check(problem.anew(how.rng), how._replace(eps=eps), first.order)
        if second or second.culprits and found is first:
            second.notes.append(
                f"measured with eps={eps:.0e}, which suits these values better than the default "
                f"{EPS:.0e}."
            )
            found = second
        if second:
            break
    return found


# ---- the second order


def _check_gradient(problem: Problem, how: How, first: Report) -> Report:
    """The gradient as a function of the inputs and of the cotangents, checked in its turn."""
    problem, report = problem.anew(how.rng), Report(first.entries, order=2)
    gradient, weights = differentiable_gradient(problem)
    blame = lambda question: accuse(report, problem.traced()[1], how.rng, question)
    try:
        name = two_answers(problem, gradient())
    except Exception as failure:
        told = f"the gradient cannot be differentiated: {failure}"
        report.diagnosis = Diagnosis("second order", told)
        blame(leaves_the_graph)
        return report
    if name is not None:
        report.diagnosis = Diagnosis(
            "two answers",
            f"{name}: the gradient under create_graph=True differs from the ordinary one: an op's "
            "twin, or a rule that treats arrays and Tensors differently, is wrong.",
        )
        blame(answers_twice)
        return report
    existing = lambda: [g for g in gradient() if g is not None]
    names = [*problem.names, *(f"cotangent of result {k}" for k in range(len(weights)))]
    second = Problem(existing, [*problem.inputs, *weights], names, how.rng)
    report = _check(second, how, order=2)
    of_the_check = report.diagnosis.kind in ("kink", "eps", "domain", "precision")
    if report.worst and not report.culprits and not of_the_check:
        blame(leaves_the_graph)
    report.notes += [note for note in first.notes if note not in report.notes]
    return report
