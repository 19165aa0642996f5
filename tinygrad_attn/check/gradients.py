"""`gradcheck`: is the gradient that the rules give the slope of the function?  If not: where, by how much, which op, what mistake."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine.autograd import enable_grad, grad
from ..messages.errors import describe
from ..messages.signatures import check_flags, own_names
from .consistency import (
    laid_otherwise,
    not_linear,
    one_at_a_time,
    promotion,
    small_results,
    wrong_elsewhere,
)
from .diagnose import (
    explain,
    first_difference,
    point_at_failing_rule,
    point_at_rule_that_leaves,
)
from .measuring import How, Problem, leaves, private_values, scaled, values_put_back
from .report import Diagnosis, Entry, Report
from .second_sweep import second_opinion
from .trace import Trace

EPS = 1e-6
"""The default step; where it does not suit the size of the values, another one is tried."""

SMALL = 512
"""Inputs up to this size are measured element by element; larger ones in this many groups, a random projection of each."""


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
    """Compare d(sum of v * f)/dx by the rules with (f(x + eps) - f(x - eps)) / (2 eps), for a random weight v of every result.

    `f` is a function of Tensors or a Module that returns a Tensor or a tuple with some.  `inputs` is a Tensor or a sequence of
    Tensors, arrays and whatever else f takes: the Tensors that require a gradient and the float64 arrays are checked (all floating
    Tensors if none requires one).  `params`, further tensors f depends on, are checked as well; for a Module its parameters are.
    `order=2` checks the gradient's own gradient too.  An element is wrong if |analytic - numeric| > atol + rtol |numeric|, with atol
    scaled down for gradients smaller than 1.  Inputs of more than 512 elements are measured in 512 random projections, with
    `fast_mode` any input in two.  Where the default eps does not suit the size of the values, another step is found and noted.

    Also checked: f gives the same twice, leaves its inputs alone, keeps nothing between calls that its gradient needs, and its ops and
    rules return new arrays.  An error that f raises a step away counts as the edge of its domain.  Results that stay infinite when the
    inputs move, such as blocked scores, have no slope: they are left out, and noted, and no gradient may pass through them.
    A gradient that agrees is asked for once more: for other incoming gradients, which it must follow, of each input alone, of results
    much smaller than the others alone, at values a little way off, and at the same values in another order in memory.  An op that
    makes float64 of float32 by itself is noted.
    Returns a Report, true or false; raises GradcheckError (an AssertionError) with the report as text if it is false and `raise_exception`.
    Raises TypeError for float32, whose rounding hides errors below about 1 %, and ValueError for a negative tolerance, step or seed.
    As torch.autograd.gradcheck.
    """
    check_flags("gradcheck", raise_exception=raise_exception, fast_mode=fast_mode)
    _check_settings(eps, atol, rtol, order, seed)
    arguments, checked, names = _collect(f, inputs, params)
    # The seed alone may well have made the inputs.
    how = How(eps, atol, rtol, fast_mode, np.random.default_rng([seed, 0x76]))
    call = lambda: f(*arguments)
    with private_values(checked):
        report = _check(call, checked, names, how)
        if order == 2 and report.ok:
            report = _check_gradient(call, checked, names, how, report)
    if raise_exception and not report:
        raise GradcheckError(report)
    return report


def gradgradcheck(f: Callable[..., Any], inputs: Any = (), **options: Any) -> Report:
    """`gradcheck` with order=2: the gradient, and the gradient of the gradient.  As torch.autograd.gradgradcheck."""
    return gradcheck(f, inputs, order=2, **options)


def _check_settings(eps: Any, atol: Any, rtol: Any, order: Any, seed: Any) -> None:
    finite = lambda value: (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )
    if not (finite(eps) and eps > 0):
        raise ValueError(
            f"eps is the step by which an element is moved, a positive number such as {EPS:g}; got {describe(eps)}."
        )
    for name, value, usual in (("atol", atol, "1e-5"), ("rtol", rtol, "1e-3")):
        if not (finite(value) and value >= 0):
            raise ValueError(
                f"{name} is the error that is allowed, a number that is 0 or more, such as {usual}; got {describe(value)}."
            )
    if order not in (1, 2):
        raise ValueError(
            f"order must be 1 (the gradient) or 2 (also the gradient of the gradient), got {order!r}."
        )
    if not (isinstance(seed, (int, np.integer)) and seed >= 0):
        raise ValueError(
            f"seed is a whole number, 0 or more, from which the random weights are drawn; got {describe(seed)}."
        )


def _collect(
    f: Callable[..., Any], inputs: Any, params: Any
) -> tuple[list[Any], list[Any], list[str]]:
    """The arguments for f, the tensors to check, and what to call them."""
    if isinstance(f, type):
        raise TypeError(
            f"gradcheck(f, inputs) takes a function or a Module first, got the class {f.__name__}: make an object of it first."
        )
    if not callable(f):
        raise TypeError(
            f"gradcheck(f, inputs) takes a function or a Module first, got {describe(f)}. Write gradcheck(lambda x: ..., [x]); "
            "the result itself does not tell how it was computed."
        )
    if not isinstance(inputs, (Variable, np.ndarray, Sequence)) or isinstance(inputs, str):
        raise TypeError(
            f"inputs is a Tensor, an array, or a list of what f takes, got {describe(inputs)}. Write gradcheck(f, [x, y])."
        )
    given = [inputs] if isinstance(inputs, (Variable, np.ndarray)) else list(inputs)
    arguments = [
        Variable._kind(a) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in given
    ]
    floating = [a for a in arguments if isinstance(a, Variable) and a._data.dtype.kind == "f"]
    wanting = {
        id(a)
        for a, b in zip(arguments, given)
        if isinstance(a, Variable) and (a._tracked or a is not b)
    }
    checked: list[Any] = []
    names: list[str] = []
    for i, a in enumerate(arguments):
        if (
            any(a is t for t in floating)
            and (not wanting or id(a) in wanting)
            and not any(a is t for t in checked)
        ):
            checked.append(a)
            names.append(
                f"input {i}" + (f" {name!r}" if (name := getattr(a, "name", None)) else "")
            )
        if isinstance(
            a, (dict, tuple, list)
        ):  # only those that say so, for what else is in there may be anything
            for k, t in enumerate(leaves(a)):
                if (
                    isinstance(t, Variable)
                    and t._tracked
                    and not any(t is known for known in checked)
                ):
                    checked.append(t)
                    names.append(f"input {i}, leaf {k}")
    for name, p in _parameters(f, params):
        if not any(p is t for t in checked):
            checked.append(p)
            names.append(name)
    if not checked:
        raise ValueError(
            "there is nothing to check: give gradcheck at least one floating-point Tensor or array in inputs, or tensors in "
            "params=."
        )
    for name, t in zip(names, checked):
        if not isinstance(t, Variable):
            raise TypeError(f"{name} must be a Tensor, got {describe(t)}.")
        if t._data.dtype.newbyteorder("=") != np.float64:
            cure = (
                "module.astype(np.float64)"
                if name.startswith("parameter")
                else "Tensor(data, dtype=np.float64) or x.astype(np.float64)"
            )
            why = (
                f"precision too low: {name} is {describe(t)}. Central differences need float64: in {t._data.dtype} rounding leaves only "
                "two or three digits, and a wrong gradient passes."
                if t._data.dtype.itemsize < 8
                else f"{name} is {describe(t)}. The steps and limits of gradcheck are set for float64."
            )
            raise TypeError(f"{why} Write {cure}.")
    return arguments, checked, names


def _parameters(f: Any, params: Any) -> list[tuple[str, Any]]:
    if params is None:
        return (
            [(f"parameter {name!r}", p) for name, p in f.named_parameters() if p._tracked]
            if hasattr(f, "named_parameters")
            else []
        )
    if isinstance(params, Variable):
        params = [params]
    if not hasattr(params, "__iter__"):
        raise TypeError(
            f"params is a list of Tensors, or a mapping from names to Tensors, got {describe(params)}."
        )
    pairs = params.items() if isinstance(params, dict) else enumerate(params)
    listed = [(key, p) if not isinstance(p, tuple) else p for key, p in pairs]
    return [(f"parameter {getattr(p, 'name', None) or name!r}", p) for name, p in listed]


def _check(
    call: Callable[[], Any], checked: Sequence[Any], names: Sequence[str], how: How, order: int = 1
) -> Report:
    """One order, on tensors whose values are ours to move."""
    before = [t._data.copy() for t in checked]
    problem = Problem(call, checked, names, how.rng)
    report = Report(order=order)
    outputs, trace = problem.traced()
    if (
        found := _modified(problem, before, "f") or _unrepeatable(problem, outputs, trace, report)
    ) is not None:
        report.diagnosis = found
        return report
    try:
        gradients = problem.gradients(outputs)
    except Exception as failure:
        shape = "gave a gradient of shape" in str(failure)
        hint = " Is a sum over a broadcast axis missing, or one too many?" if shape else ""
        if isinstance(failure, TypeError) and re.search(
            r"\w+>?\(\) (takes|got|missing) ", str(failure)
        ):
            hint = (
                ". A rule is called as rule(g, y, *inputs, **settings): write lambda g, y, x, axis: ... for an op with the setting "
                "axis, and name all of the op's inputs."
            )
        told = (
            failure
            if isinstance(failure, (ValueError, TypeError))
            else f"{type(failure).__name__}: {failure}"
        )
        report.diagnosis = Diagnosis("wrong shape" if shape else "backward fails", f"{told}{hint}")
        point_at_failing_rule(report, trace, how.rng)
        return report
    found = (
        _unreached(gradients, order)
        or _modified(problem, before, "the backward pass")
        or _spoiled(problem, gradients, report)
        or _shared_state(problem, gradients, how.rng, report)
    )
    if found is not None:
        report.diagnosis = found
        return report
    if problem.infinite:
        report.notes.append(
            "results that are infinite and stay so, such as the scores of a mask, have no slope and were left out."
        )
    noise, rounding = problem.noise(how.eps), problem.shaken(gradients)
    report.entries += [
        _measure(problem, which, gradient, how, max(noise, min(20 * rounding[which], 1e-8)))
        for which, gradient in enumerate(gradients)
    ]
    if all(e.ok and not e.analytic.any() for e in report.entries):
        report.notes.append(
            "every gradient is zero here, so this says little; choose inputs at which the function has a slope."
        )
    report.notes += [
        f"{e.name}: its gradient is smaller than what rounding may make of differences between results this large, so this "
        "says little; scale the function, or take its offset away."
        for e in report.entries
        if e.ok and 0 < np.abs(e.analytic).max(initial=0) <= noise
    ]
    what = "the results do" if order == 1 else "the gradient does"
    report.notes += [
        f"{e.name}: {what} not depend on it." for e in report.entries if e.ok and e.missing
    ]
    if any(not e.ok for e in report.entries):
        explain(report, problem, trace, outputs, how)
        if report.better_steps and how.eps == EPS:
            return _with_another_step(call, checked, names, how, report)
    if (
        report
        and (
            found := _through_infinity(problem)
            or not_linear(problem, gradients, outputs)
            or one_at_a_time(problem, gradients, outputs)
            or small_results(problem, how, report)
            or wrong_elsewhere(problem, how, report)
            or laid_otherwise(problem, gradients, rounding, how, report)
        )
        is not None
    ):
        report.diagnosis = found
    if report and order == 1 and (note := promotion(problem)) is not None:
        report.notes.append(note)
    return report


def _with_another_step(
    call: Callable[[], Any], checked: Sequence[Any], names: Sequence[str], how: How, first: Report
) -> Report:
    """The default step does not suit the size of these values; take one that does, if all agrees there or an op is found to be wrong."""
    found = first
    for eps in first.better_steps:
        second = _check(call, checked, names, how._replace(eps=eps), first.order)
        if second or second.culprits and found is first:
            second.notes.append(
                f"measured with eps={eps:.0e}, which suits these values better than the default {EPS:.0e}."
            )
            found = second
        if second:
            break
    return found


def _through_infinity(problem: Problem) -> Diagnosis | None:
    """What stays infinite does not depend on the inputs, so no gradient goes there from it."""
    if not problem.infinite:
        return None
    with enable_grad(), np.errstate(all="ignore"):
        outputs = problem.all_outputs()
    reached = problem.gradients(
        outputs, [at * c for at, c in zip(problem.infinite, problem.cotangents)]
    )
    names = [name for name, g in zip(problem.names, reached) if g is not None and g.any()]
    return (
        Diagnosis(
            "infinite result",
            f"results that are infinite, and stay so when the inputs move, pass a gradient on to "
            f"{' and '.join(names)}. A rule that fills in -inf gives zero there: g times the mask. Where -inf "
            "was added, or a number overflows, no slope can be measured: check what comes behind it, such as "
            "the softmax.",
        )
        if names
        else None
    )


def _check_gradient(
    call: Callable[[], Any], checked: Sequence[Any], names: Sequence[str], how: How, first: Report
) -> Report:
    """The gradient as a function of the inputs and of the cotangents, checked in its turn."""
    problem = Problem(call, checked, names, how.rng)
    tracked = [k for k, t in enumerate(problem.outputs()) if t._tracked]
    weights = [Variable._kind(problem.cotangents[k], requires_grad=True) for k in tracked]

    def gradient() -> list[Any]:
        with enable_grad():
            outputs = problem.outputs()
            found = grad(
                [outputs[k] for k in tracked],
                problem.inputs,
                weights,
                create_graph=True,
                allow_unused=True,
            )
            return [g for g in found if g is not None]

    try:
        recorded_ones = gradient()
    except Exception as failure:
        report = Report(
            first.entries,
            Diagnosis("second order", f"the gradient cannot be differentiated: {failure}"),
            order=2,
        )
        point_at_rule_that_leaves(report, problem.traced()[1], how.rng)
        return report
    ordinary_ones = [(name, g) for name, g in zip(names, problem.gradients()) if g is not None]
    for (name, ordinary), recorded in zip(ordinary_ones, recorded_ones):
        if not np.allclose(
            ordinary,
            recorded._data,
            rtol=1e-6,
            atol=1e-9 * max(1.0, float(np.abs(ordinary).max(initial=0))),
        ):
            return Report(
                first.entries,
                Diagnosis(
                    "two answers",
                    f"{name}: the gradient under create_graph=True differs from the ordinary "
                    "one: an op's twin, or a rule that treats arrays and Tensors "
                    "differently, is wrong.",
                ),
                order=2,
            )
    more = [f"cotangent of result {k}" for k in tracked]
    report = _check(gradient, [*checked, *weights], [*names, *more], how, order=2)
    if (
        report.worst
        and not report.culprits
        and report.diagnosis.kind not in ("kink", "eps", "domain", "precision")
    ):
        point_at_rule_that_leaves(report, problem.traced()[1], how.rng)
    report.notes += [note for note in first.notes if note not in report.notes]
    return report


# ---- faults that no slope shows


def _unrepeatable(
    problem: Problem, outputs: list[Any], trace: Trace, report: Report
) -> Diagnosis | None:
    again, second = problem.traced()
    if len(again) == len(outputs) and all(
        np.array_equal(a._data, b._data, equal_nan=True) for a, b in zip(again, outputs)
    ):
        return None
    step = first_difference(trace, second)
    if step is not None:
        report.point_at(step)
    return Diagnosis(
        "not deterministic",
        "f gives different results for the same inputs, so it has no slope. Switch dropout off "
        "(module.eval()), draw random numbers outside f, and keep no state between calls.",
    )


def _modified(problem: Problem, before: Sequence[np.ndarray], who: str) -> Diagnosis | None:
    for name, t, value in zip(problem.names, problem.inputs, before):
        if t._data.shape != value.shape or not np.array_equal(t._data, value, equal_nan=True):
            return Diagnosis(
                "input modified",
                f"{who} changes {name} in place, so its slope cannot be measured and saved values go wrong. "
                "Compute a new tensor (x = x + 1, not x.data += 1 or out=x), or copy first.",
            )
    return None


def _unreached(gradients: Sequence[np.ndarray | None], order: int) -> Diagnosis | None:
    if order == 2 or any(g is not None for g in gradients):
        return (
            None  # the gradient of a step function is constant: that it does not move is measured
        )
    return Diagnosis(
        "gradient missing",
        "no result is connected to any input: nothing was recorded from the inputs to the results. Look "
        "for detach(), .data, .numpy(), .item(), Tensor(...) of a result, no_grad(), or a gradient "
        "taken without create_graph=True inside f; or f does not use its inputs.",
    )


def _spoiled(
    problem: Problem, first: Sequence[np.ndarray | None], report: Report
) -> Diagnosis | None:
    """Rules compute new arrays: what they are given belongs to others as well."""
    outputs, trace = (
        problem.traced()
    )  # new values: what y *= 0 did to the old ones, it does not do twice
    tracked = [(t, c) for t, c in zip(outputs, problem.cotangents) if t._tracked]
    for t, fault in second_opinion([t for t, _ in tracked], [c for _, c in tracked]).faults[
        -1:
    ]:  # that of the op that ran first
        for step in trace.steps:
            if step.result is t:
                report.point_at(step)
        return fault
    for name, a, b in zip(problem.names, first, problem.gradients(outputs)):
        if (
            a is not None
            and b is not None
            and not np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
        ):
            return Diagnosis(
                "rule changes its operands",
                f"{name}: a second backward pass gives another gradient. Some rule keeps state "
                "between calls, or draws random numbers (draw them once, in the forward pass, "
                "and save them).",
            )
    return None


def _shared_state(
    problem: Problem, first: Sequence[np.ndarray | None], rng: np.random.Generator, report: Report
) -> Diagnosis | None:
    """Run f elsewhere between the forward and the backward pass: a rule that reads state kept outside the graph shows."""
    outputs, trace = problem.traced()
    results = [(step, step.result._data.copy()) for step in trace.steps if step.result._tracked]
    plain = [
        t for t, name in zip(problem.inputs, problem.names) if not name.startswith("parameter")
    ]
    for moved, least in itertools.product(
        (plain, problem.inputs), (0.8, -1.5)
    ):  # state may be kept by parameter
        with (
            suppress(Exception),
            values_put_back(moved),
        ):  # f may mind its domain; a little way off it may still be inside
            for t in moved:
                t._data = scaled(t._data, rng.uniform(least, 1.2, t.shape))
            problem.traced()
    for step, value in results:
        if not np.array_equal(step.result._data, value, equal_nan=True):
            report.point_at(step)
            return Diagnosis(
                "reused memory",
                f"the result of op {step.op.__name__!r} changes when f is called again: its function "
                "returns the same array at every call (out=, or an array kept outside), or a view of one. "
                "Return a new array each time.",
            )
    after = problem.gradients(outputs)
    for name, a, b in zip(problem.names, first, after):
        if (
            a is not None
            and b is not None
            and not np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
        ):
            return Diagnosis(
                "shared state",
                f"{name}: calling f once more before backward() changes the gradient of the first call. "
                "Something the rule needs is kept on the layer, "
                "or in a variable outside, instead of in the call; the second call overwrites it.",
            )
    return None


def _measure(
    problem: Problem, which: int, found: np.ndarray | None, how: How, noise: float
) -> Entry:
    """One input: element by element if it is small, else in groups; where a group is off, its elements."""
    x, eps, rng = problem.inputs[which], how.eps, how.rng
    analytic = np.zeros(x.shape) if found is None else found
    groups = 2 if how.fast else SMALL
    projections, largest = 0, 0.0
    if x.size <= groups:
        numeric = problem.numeric(which, eps)
    else:
        numeric, projections = np.full(x.shape, np.nan), groups
        member, signs = rng.permutation(np.arange(x.size) % groups), rng.choice([-1.0, 1.0], x.size)
        suspicious: list[int] = []
        culprits: set[int] = set()  # among many, chance alone might miss the one that is wrong
        for k in range(groups):
            flats = np.flatnonzero(member == k)
            n, a, error = problem.projected(which, flats, signs, analytic, eps)
            largest = max(largest, error)
            loose, strict = (
                float(_tolerance(np.array([n, a]), how.atol, r, noise)[0])
                for r in (how.rtol, min(how.rtol, 1e-6))
            )
            if error > min(
                loose, max(strict, noise)
            ):  # one small slope among large ones: its elements are judged by their own
                suspicious += flats.tolist()
                if len(culprits) < 8:
                    culprits.add(problem.culprit(which, flats, signs, analytic, eps))
        if suspicious:
            order = np.argsort(rng.random(len(suspicious)))
            chosen = (
                range(x.size)
                if x.size <= 4 * SMALL
                else sorted(culprits.union(suspicious[i] for i in order[: 2 * SMALL]))
            )
            numeric = problem.numeric(which, eps, chosen)
    tolerance = _tolerance(numeric, how.atol, how.rtol, noise, analytic)
    return Entry(
        problem.names[which], analytic, numeric, tolerance, found is None, projections, largest
    )


def _tolerance(
    numeric: np.ndarray, atol: float, rtol: float, noise: float, analytic: np.ndarray | None = None
) -> np.ndarray:
    """atol + rtol |n|, with atol relative to the largest slope where that is below 1, but never below what rounding makes.

    A function that is constant to the last bit has no noise, but its gradient's own rounding is still there.
    """
    sizes = (
        np.abs(np.nan_to_num(numeric)),
        np.abs(np.nan_to_num(numeric if analytic is None else analytic)),
    )
    scale = max(float(s.max(initial=0)) for s in sizes)
    return min(atol, max(atol * scale, noise, 1e-14)) + rtol * sizes[0]
