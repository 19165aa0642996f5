"""A gradient is wrong: find out whether the check, the program, one op's rule or the engine is to blame, and say so in the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine import Variable
from .blame import explain_rule, pattern_of
from .byhand import second_opinion
from .local import at_kink, examine_again, suspects
from .patterns import from_pattern
from .problem import Problem, values_put_back
from .report import Diagnosis, Entry, Report
from .trace import Step, Trace, array_of, as_given, scope_name

EPSILONS = tuple(10.0 ** -(k / 2) for k in range(2, 25))
"""The steps that are tried; for values that are very small, in units of their size."""


def explain(
    report: Report,
    problem: Problem,
    trace: Trace,
    outputs: list[Any],
    eps: float,
    rng: np.random.Generator,
) -> None:
    """Fill in the report's diagnosis, op, place and curve."""
    entry = report.worst
    assert entry is not None
    which = report.entries.index(entry)
    report.curve = error_curve(problem, which, entry)
    if (found := lower_precision(trace)) is not None:
        report.diagnosis, step = found
        name_op(report, step)
        return
    other_steps = badly_chosen_eps(problem, which, entry, report.curve, eps)
    if (other_steps is None or not other_steps[1]) and drowned(report, problem, eps):
        return
    if other_steps is not None:
        report.diagnosis, report.better_steps = other_steps
        return
    unsteady = unsteady_slopes(problem, which, entry, eps)
    kind = "none" if unsteady is not None else kinks(problem, which, entry, eps)
    if kind == "all":
        report.diagnosis = Diagnosis(
            "kink",
            f"the slopes to the left and to the right differ at index {entry.index} (and at every other "
            "element that is off), or grow without end as the step shrinks: a kink or a jump, such as "
            "relu or sign at 0 or a tie in max. There the function has no single slope; move the input "
            "away from it. The rule need not be wrong.",
        )
        return
    if kind == "some":
        report.notes.append(
            "some of the elements that are off lie at a kink; the diagnosis is about the others."
        )
    x = problem.inputs[which]._data
    if x.size > 1 and (x == x.flat[0]).all():
        report.notes.append(
            f"all elements of {entry.name} are equal, where one mistake looks like another; random ones tell more."
        )
    found_ops = suspects(trace.steps, rng)
    report.culprits = [s.step.op.__name__ for s in found_ops]
    if found_ops:
        worst = found_ops[0]
        name_op(report, worst.step)
        why = explain_rule(worst)
        operand = f" (its rule for operand {worst.position})" if len(worst.step.inputs) > 1 else ""
        report.diagnosis = Diagnosis(why.kind, f"in op {report.op!r}{operand}: {why.text}")
        return
    report.diagnosis = (
        overwritten(trace, report)
        or outside_the_graph(problem, trace, entry, report)
        or unsteady
        or lost_in_the_sweep(problem, outputs, entry)
        or _whole(problem, trace, which, entry)
    )


def explain_elsewhere(
    report: Report, problem: Problem, name: str, rng: np.random.Generator
) -> Diagnosis:
    """The gradient is right at the given values and wrong at those that the problem has now."""
    found = suspects(problem.traced()[1].steps, rng)
    kind, reason = (
        "stale state",
        (
            "Either these values are special (a weight of ones, zeros, equal elements) and hide a wrong rule, which "
            "random ones will show; or the rule uses something that an earlier call left behind (kept on the layer "
            "or in a variable outside, and not renewed) instead of what this call computed."
        ),
    )
    if found:
        name_op(report, found[0].step)
        why = explain_rule(found[0])
        if why.kind == "operand misplaced":
            kind, reason = why.kind, why.text
    return Diagnosis(
        kind,
        f"{name}: the gradient is right at the values given here and wrong a little way off: {reason}",
    )


def explain_hidden(
    report: Report, problem: Problem, name: str, number: int, rng: np.random.Generator
) -> Diagnosis:
    """The gradient of one result is wrong, but too small to show beside the others."""
    kind, reason = "small result", "Check it by itself."
    if found := suspects(problem.traced()[1].steps, rng):
        name_op(report, found[0].step)
        why = explain_rule(found[0])
        kind, reason = why.kind, f"In op {report.op!r}: {why.text}"
    return Diagnosis(
        kind,
        f"{name}: the gradient of result {number} is wrong, which does not show beside the other results, for it is "
        f"much smaller than they are. {reason}",
    )


def _whole(problem: Problem, trace: Trace, which: int, entry: Entry) -> Diagnosis:
    """No op is to blame: judge the pattern of the whole function's gradient."""
    found = from_pattern(pattern_of(problem, which, entry.analytic, None, entry.numeric))
    hint = "every op's own rule is right, so look at what joins them: a value computed outside the graph, or a use that is not counted."
    if has_checkpoint(trace):
        hint = "the ops inside checkpoint() cannot be looked at one by one: check the function without it."
    if found is None:
        return Diagnosis("unknown", hint)
    if found.kind == "domain":
        return found
    if found.kind == "nan":
        hint = "ta.detect_anomaly() names the op that makes it."
    return Diagnosis(found.kind, f"{found.text} Note: {hint}")


def has_checkpoint(trace: Trace) -> bool:
    """Does the function call checkpoint()?"""
    return any(step.op.__name__ == "checkpoint" for step in trace.steps)


def name_op(report: Report, step: Step) -> None:
    """Put the op into the report: its name, the module call around it, the user's line."""
    report.op, report.place, report.scope = step.op.__name__, step.place, scope_name(step.scope)


def blame_a_failing_rule(report: Report, trace: Trace, rng: np.random.Generator) -> None:
    """Name the op whose rule raises, or writes into what it is given."""
    found = next((s for s in suspects(trace.steps, rng) if s.failure is not None), None)
    if found is not None:
        name_op(report, found.step)
        report.culprits = [found.step.op.__name__]


def blame_a_rule_that_leaves(report: Report, trace: Trace, rng: np.random.Generator) -> None:
    """Name the op whose rule cannot be differentiated again."""
    found = next((s for step in trace.steps if (s := examine_again(step, rng)) is not None), None)
    if found is not None:
        name_op(report, found.step)
        report.culprits = [found.step.op.__name__]
        report.diagnosis = found.failure or report.diagnosis


def first_difference(first: Trace, second: Trace) -> Step | None:
    """The first op whose result is not the same in two runs."""
    return next(
        (
            a
            for a, b in zip(first.steps, second.steps)
            if not np.array_equal(
                a.result._data, b.result._data, equal_nan=a.result._data.dtype.kind == "f"
            )
        ),
        None,
    )


# ---- is it the check itself?


def error_curve(problem: Problem, which: int, entry: Entry) -> list[tuple[float, float]]:
    """The error of the worst element for eps from large to small: a V for a right gradient, flat for a wrong one."""
    flat = int(np.ravel_multi_index(entry.index, entry.analytic.shape)) if entry.index else 0
    steps = _steps(problem, which, flat)[::2]
    errors = [abs(problem.element(which, flat, h) - entry.analytic.flat[flat]) for h in steps]
    return [
        (h, np.inf if np.isnan(error) else float(error)) for h, error in zip(steps, errors)
    ]  # NaN: outside the domain


def _steps(problem: Problem, which: int, flat: int) -> list[float]:
    size = abs(float(problem.inputs[which]._data.flat[flat]))
    return [h * size if 0 < size < 1e-8 else h for h in EPSILONS]


def _wrong_elements(entry: Entry, most: int = 24) -> list[int]:
    flats = np.flatnonzero(entry.wrong)
    return [
        int(i)
        for i in flats[np.argsort(-np.nan_to_num(entry.error.flat[flats], nan=np.inf))][:most]
    ]


def kinks(problem: Problem, which: int, entry: Entry, eps: float) -> str:
    """Do "all", "some" or "none" of the wrong elements lie at a kink?"""
    if not (
        np.isfinite(entry.numeric[entry.wrong]).all()
        and np.isfinite(entry.analytic[entry.wrong]).all()
    ):
        return "none"
    scale = max(
        float(np.nanmax(np.abs(entry.numeric), initial=0)), float(np.abs(entry.analytic).max())
    )
    hits = [at_kink(problem, which, i, eps, scale) for i in _wrong_elements(entry)]
    return "all" if all(hits) else "some" if any(hits) else "none"


def unsteady_slopes(problem: Problem, which: int, entry: Entry, eps: float) -> Diagnosis | None:
    """Do the slopes of most of the elements that are off jump about with a slightly different step, by as much as they are off?"""
    flats = _wrong_elements(entry)
    steps = [factor * eps for factor in (0.6, 0.8, 1.0, 1.3, 1.7)]
    slopes = np.array([[problem.element(which, i, h) for i in flats] for h in steps])
    change = slopes * np.reshape(steps, (-1, 1))  # which is steady at a jump
    if not np.isfinite(slopes).all():
        return None
    erratic = (np.ptp(slopes, axis=0) > 0.1 * entry.error.flat[flats]) & (
        np.ptp(change, axis=0) > 0.1 * np.abs(change).max(axis=0)
    )
    if erratic.mean() < 0.5:
        return None
    worst = int(np.argmax(erratic))
    values = ", ".join(f"{slope:.3g} with eps={h:.1e}" for slope, h in zip(slopes[:, worst], steps))
    index = tuple(int(i) for i in np.unravel_index(flats[worst], entry.analytic.shape))
    return Diagnosis(
        "precision",
        f"the slope cannot be measured: at index {index} it comes out as {values}. Either large numbers cancel "
        "within the function and rounding drowns the difference, or the function bends within one step. No "
        "op's own rule was found to be wrong. Check at inputs of moderate size, or try another eps.",
    )


def badly_chosen_eps(
    problem: Problem, which: int, entry: Entry, curve: list[tuple[float, float]], eps: float
) -> tuple[Diagnosis, list[float]] | None:
    """Two neighbouring steps at which every element that was off agrees, or an eps too small to move one: then eps was at fault; and
    the steps to try instead.
    """
    flats = _wrong_elements(entry, 12)
    if not all(np.isfinite(entry.analytic.flat[i]) for i in flats):
        return None
    fine, steps = [], _steps(problem, which, flats[0])
    for h in steps:
        pairs = [(problem.element(which, i, h), entry.analytic.flat[i]) for i in flats]
        if any(a for _, a in pairs):
            larger = [max(abs(n), abs(a)) for n, a in pairs]
            fine.append(
                all(
                    abs(n - a) <= 1e-3 * own + 1e-5 * max(larger)
                    for (n, a), own in zip(pairs, larger)
                )
            )
        else:  # slopes must vanish as h does, and not only because nothing moves any more
            numeric = max(abs(entry.numeric.flat[i]) for i in flats)
            fine.append(
                all(
                    abs(n) <= 1e-5 * numeric
                    and problem.noise_of(which, i, eps) * eps / h <= 1e-3 * numeric
                    for (n, _), i in zip(pairs, flats)
                )
            )
    runs = [h for h, here, after in zip(steps, fine, fine[1:]) if here and after]
    if not runs:
        largest = float(np.abs(problem.inputs[which]._data.flat[flats]).max())
        if not (1e14 * eps <= largest < np.inf and np.isfinite(entry.numeric.flat[flats]).all()):
            return None
        return Diagnosis(
            "eps",
            f"eps={eps:g} is too small: values as large as {largest:.0e} hardly move by it, or not at all. Check at "
            f"smaller ones, or write eps={1e-6 * largest:.0e}.",
        ), [1e-6 * largest]
    best = min(
        ((error, h) for h, error in curve if runs[-1] <= h <= runs[0]), default=(0, runs[0])
    )[1]
    scale_of_x = max(1.0, float(np.abs(problem.inputs[which]._data).mean()))
    size = (
        "too large: the function bends within one step"
        if eps > best
        else "too small: rounding drowns the difference"
    )
    if best >= 1e-3 * scale_of_x and eps < best:
        return Diagnosis(
            "precision",
            f"precision too low: the gradient agrees only with steps as large as eps={best:.0e}; with smaller "
            "ones rounding drowns the difference. Some part is computed in float32 (a cast inside an op?), or "
            "large numbers cancel.",
        ), []
    return Diagnosis(
        "eps",
        f"the gradient is right, but eps={eps:g} is {size}. It agrees from eps={runs[0]:.0e} to {runs[-1]:.0e}; write "
        f"eps={best:.0e}. "
        f"The curve of the error against eps shows the V.",
    ), [best, runs[0]]


def drowned(report: Report, problem: Problem, eps: float) -> bool:
    """Are all slopes that are off so small that rounding within the function hides them, and right by larger steps?  Then they pass.

    So it is far out on a sigmoid or GELU, where 1 - y is a few units of rounding, but the result itself is too small to tell.
    """
    most = (
        2e-8 * (1e-6 / eps) * float(sum(np.abs(c).sum() for c in problem.cotangents))
    )  # what rounding makes of numbers about 1
    for which, entry in enumerate(report.entries):
        for i in _wrong_elements(entry):
            a, off, tolerance = (
                float(v.flat[i]) for v in (entry.analytic, entry.error, entry.tolerance)
            )
            enough = max(tolerance, 0.2 * min(abs(a), off))
            if not off <= most or all(
                not abs(problem.element(which, i, eps * 10.0**k) - a) <= enough for k in range(1, 6)
            ):
                return False
    for entry in (entry for entry in report.entries if not entry.ok):
        report.notes.append(
            f"{entry.name}: at {int(entry.wrong.sum())} elements the slope is so small that with eps={eps:.0e} rounding "
            "hides it; with larger steps it agrees with the gradient to a fifth."
        )
        entry.tolerance = np.maximum(entry.tolerance, entry.error)
    report.curve = []
    return True


def lower_precision(trace: Trace) -> tuple[Diagnosis, Step] | None:
    """The first step that turns float64 into something shorter."""
    for step in trace.steps:
        low = step.result._data.dtype
        if (
            low.kind == "f"
            and low.itemsize < 8
            and any(
                array_of(x).dtype == np.float64 and isinstance(x, Variable) for x in step.inputs
            )
        ):
            return Diagnosis(
                "precision",
                f"precision too low: op {step.op.__name__!r} turns float64 into {low}, whose rounding is larger "
                "than the differences measured here. Keep float64 throughout while checking.",
            ), step
    return None


# ---- is it between the ops?


def overwritten(trace: Trace, report: Report) -> Diagnosis | None:
    """A result that no longer is what its op makes of its operands: somebody wrote into it."""
    for step in trace.steps:
        try:
            with np.errstate(all="ignore"):
                again = step.op.forward(*as_given(step.inputs), **step.static)
            again = np.asarray(again[0] if step.op.saves else again)
        except Exception:
            continue
        value = array_of(step.result)
        if (
            again.shape != value.shape
            or again.dtype != value.dtype
            or np.allclose(again, value, rtol=1e-6, atol=0, equal_nan=True)
        ):
            continue
        name_op(report, step)
        return Diagnosis(
            "result modified",
            f"the result of op {step.op.__name__!r} (or an operand of it) was changed in place after it "
            "was computed, which the graph does not see, so its gradient is that of the unchanged value. "
            "Compute a new tensor: np.where(mask, value, y), not y.data[...] = value.",
        )
    return None


def outside_the_graph(
    problem: Problem, trace: Trace, entry: Entry, report: Report
) -> Diagnosis | None:
    """Constants that move when the input moves: a value that left the graph on its way."""
    if has_checkpoint(trace):  # what runs inside is seen here unrecorded, and recorded only later
        return None
    which = problem.names.index(entry.name)
    x = problem.inputs[which]
    try:
        with values_put_back([x]):
            x._data = x._data + 1e-5 * np.random.default_rng(3).standard_normal(x.shape)
            moved = problem.traced()[1]
    except Exception:  # the function minds its domain
        return None
    if [s.op for s in moved.steps] != [s.op for s in trace.steps]:
        return None
    inside = {id(t) for t in problem.inputs}
    for now, then in zip(trace.steps, moved.steps):
        for i, (p, q) in enumerate(zip(now.inputs, then.inputs)):
            if isinstance(p, Variable) and (p._tracked or id(p) in inside):
                continue
            if _differs(p, q):
                return _leak(report, now, f"operand {i} of", entry)
        for name in now.static:
            if _differs(now.static[name], then.static.get(name)):
                return _leak(report, now, f"the setting {name!r} of", entry)
        unrecorded = not now.result._tracked and any(
            isinstance(p, Variable) and p._tracked for p in now.inputs
        )
        if unrecorded and _differs(now.result, then.result):
            return _leak(report, now, "the result of", entry, " (computed under no_grad())")
    return None


def _differs(p: Any, q: Any) -> bool:
    try:
        p, q = array_of(p), array_of(q)
    except (ValueError, TypeError):
        return False
    return p.dtype.kind == "f" and p.shape == q.shape and not np.array_equal(p, q, equal_nan=True)


def _leak(report: Report, step: Step, what: str, entry: Entry, how: str = "") -> Diagnosis:
    name_op(report, step)
    kind = "gradient missing" if not entry.analytic.any() else "missed use"
    return Diagnosis(
        kind,
        f"{what} op {step.op.__name__!r} depends on {entry.name}, but is a constant to the graph{how}, so this use is "
        "missed. Every use of a tensor counts: look for detach(), "
        ".data, .numpy(), .item(), Tensor(...) or no_grad() on the way there.",
    )


def lost_in_the_sweep(problem: Problem, outputs: list[Any], entry: Entry) -> Diagnosis | None:
    """The rules are right and nothing leaves the graph: does a second sweep, done by hand, agree with the slopes?"""
    which = problem.names.index(entry.name)
    try:
        grads, uses, _ = second_opinion(outputs, problem.cotangents)
    except Exception:
        return None
    x = problem.inputs[which]
    measured = ~np.isnan(entry.numeric)
    if not np.isfinite(entry.numeric[measured]).all():
        return None
    if (
        id(x) not in grads
        or not (np.abs(grads[id(x)] - entry.numeric)[measured] <= entry.tolerance[measured]).all()
    ):
        return None
    most, listed = max(map(len, uses.values())), " and ".join(uses[id(x)])
    return Diagnosis(
        "missed use",
        "adding up what the ops' own rules say gives the right gradient, so the sweep through them is wrong: it "
        "missed a use, counted one twice, or went on before all were in. It must add, not overwrite, into "
        "memory of its own, and visit a tensor only when all its uses are done. "
        f"({entry.name} is used by {listed}; the tensor that is used most is used {most} "
        f"time{'s' * (most != 1)}.)",
    )
