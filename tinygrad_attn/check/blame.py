"""Why one op's own rule is wrong, found by experiment: exchange what the rule is given and see when it comes out right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from ..engine import Variable
from ..engine import watching
from .diagnosis import (
    Pattern,
    alike,
    coupling,
    elements_off,
    lost_contributions,
    not_finite,
    numeric_zero,
    only_small_ones,
    opposite_axis,
    reshaped,
    same,
    sums_over_axes,
    zero,
)
from .factors import constant_factor
from .local import MOST, Suspect, call_rule, steady_step, step_size, suspicious
from .patterns import from_pattern
from .placement import mask_missing
from .problem import Problem, values_put_back
from .report import Diagnosis
from .trace import Trace, array_of, as_given

WHOLE = 512  # elements of an input whose Jacobian is looked into: a second at most, and only where a rule is wrong


def explain_rule(s: Suspect) -> Diagnosis:
    """What is wrong with this op's rule: the first explanation that fits."""
    if s.failure is not None:
        return s.failure
    p = pattern_of(s.problem, s.which, s.analytic, s.step)
    return (
        only_small_ones(p)
        or not_finite(p)
        or _ignores_cotangent(s)
        or zero(p)
        or numeric_zero(p)
        or constant_factor(p)
        or _repeated_index(s, p)
        or mask_missing(p)
        or opposite_axis(p)
        or sums_over_axes(p)
        or _one_use_missed(s, p)
        or _axis_ignored(s, p)
        or reshaped(p)
        or _operand_transposed(s, p)
        or _exchanged(s, p)
        or _right_for_ones(
            s, p.x.ndim
        )  # such as a layer norm whose rule is right for the initial weight only
        or from_pattern(p)
        or _taken_for_another(s, p)
        or _value_on_the_way(s, p)
        or _right_for_ones(s)
        or _no_pattern(s, p)
    )


def pattern_of(
    problem: Problem,
    which: int,
    analytic: np.ndarray,
    step: Any = None,
    numeric: np.ndarray | None = None,
) -> Pattern:
    """Everything the explanations may look at, for one input of a problem."""
    x = problem.inputs[which]
    values = problem.values()
    h = steady_step(problem, which)
    rng = np.random.default_rng(6)
    if numeric is None:
        numeric = problem.numeric(
            which, h, None if x.size <= 20 * MOST else suspicious(problem, which, analytic, h, rng)
        )
    if np.isnan(
        numeric
    ).any():  # a large input: to what is wrong comes a sample that tells what is right
        sample = rng.choice(x.size, min(x.size, 4 * MOST), replace=False)
        numeric = np.where(np.isnan(numeric), problem.numeric(which, h, sample), numeric)
    single = len(values) == 1
    others = {
        f"operand {i}": array_of(o)
        for i, o in enumerate(() if step is None else step.inputs)
        if getattr(o, "dtype", None) == np.float64 and np.shape(o) == x.shape and i != which
    }

    @cache
    def jacobians() -> tuple[np.ndarray, np.ndarray] | None:
        if x.size > WHOLE or sum(v.size for v in values) > 4 * WHOLE:
            return None
        return problem.jacobian_by_rules(which), problem.jacobian(which, h)

    def elsewhere() -> list[tuple[np.ndarray, np.ndarray]]:
        """Fresh values only for a few elements, where any two patterns may look proportional by accident."""
        found: list[tuple[np.ndarray, np.ndarray]] = []
        if x.size > 4 * MOST:
            return found
        rng, before = np.random.default_rng(1), x._data
        with suppress(Exception), values_put_back([x]):  # the function may mind its domain
            for _ in range(3 if x.size < 8 else 1):
                x._data = before * (1 + 0.05 * rng.uniform(-1, 1, x.shape))
                g = problem.gradients()[which]
                found.append((np.zeros(x.shape) if g is None else g, problem.numeric(which, h)))
        return found

    measured = ~np.isnan(numeric)
    if not measured.all():  # judge the measured elements as a list
        at = [tuple(int(i) for i in index) for index in np.argwhere(measured)]
        g, y = (
            (problem.cotangents[0][measured], values[0][measured])
            if single and values[0].shape == x.shape
            else (None, None)
        )
        return Pattern(
            analytic[measured],
            numeric[measured],
            g,
            y,
            x._data[measured],
            {},
            lambda: None,
            list,
            problem.noise(h),
            at,
        )
    g, y = (problem.cotangents[0], values[0]) if single else (None, None)
    return Pattern(analytic, numeric, g, y, x._data, others, jacobians, elsewhere, problem.noise(h))


def _right(answer: np.ndarray | None, p: Pattern) -> bool:
    """Is this answer of the rule's the slope?"""
    return answer is not None and alike(answer, p.n, p.tolerance)


def _replaced(operands: Sequence[Any], i: int, new: Any) -> list[Any]:
    return [*operands[:i], new, *operands[i + 1 :]]


def _ignores_cotangent(s: Suspect) -> Diagnosis | None:
    """A gradient is linear in the incoming one."""
    g = s.problem.cotangents
    once, twice, none, negative = (
        s.problem.gradients(cotangents=[c * k for c in g])[s.which] for k in (1, 2, 0, -1)
    )
    if once is None or twice is None or none is None or negative is None:
        return None
    if np.any(once) and same(once, twice):
        return Diagnosis(
            "incoming gradient ignored",
            "the rule's answer does not depend on the incoming gradient g: multiply the op's own "
            "derivative by g "
            "(the chain rule). An all-ones g would hide this.",
        )
    if not same(2 * once, twice) or not same(-once, negative) or np.any(none):
        power = (
            "; it uses g squared"
            if same(4 * once, twice)
            else "; it adds something that does not depend on g"
            if np.any(none)
            else "; it uses the size of g without its sign"
            if same(once, negative)
            else ""
        )
        return Diagnosis(
            "incoming gradient",
            f"the rule is not linear in the incoming gradient g{power}. Every term is multiplied by g "
            "exactly once.",
        )
    return None


def _repeated_index(s: Suspect, p: Pattern) -> Diagnosis | None:
    indices = [
        v
        for v in [*s.step.static.values(), *as_given(s.step.inputs)]
        for v in (v if isinstance(v, tuple) else (v,))
        if isinstance(v, np.ndarray) and v.dtype.kind in "iu"
    ]
    repeated = [v for v in indices if len(np.unique(v)) < v.size]
    if not repeated or (matrices := p.jacobians()) is None:
        return None
    picked = (matrices[1] != 0).sum(axis=0).reshape(p.a.shape)
    if (elements_off(p) & (picked < 2)).any() or lost_contributions(p) is None:
        return None  # an average, or a loop that ends too early, is off at the same elements
    found, counts = np.unique(repeated[0], return_counts=True)
    listed = ", ".join(map(str, found[counts > 1][:6]))
    return Diagnosis(
        "repeated index",
        f"only elements picked more than once are wrong (index {listed}): the rule overwrites where it must "
        "add, so only one use of a repeated index is counted. Use np.add.at, not out[index] = g or "
        "out[index] += g.",
    )


def _forward_text(s: Suspect) -> tuple[Trace, Any] | None:
    """What the op's own function does when it is run on Tensors, forward and backward, and the input in question there."""
    copies = {
        id(x): Variable._kind._of(x._data.copy(), True)
        for x in s.step.inputs
        if isinstance(x, Variable)
    }
    inputs = [copies.get(id(x), x) for x in s.step.inputs]
    problem = Problem.__new__(Problem)
    problem.inputs = [inputs[s.position]]
    try:
        with watching(Trace()) as trace:
            out = s.step.op.forward(*inputs, **s.step.static)
            out = out[0] if s.step.op.saves else out
            if not isinstance(out, Variable) or out._data.shape != s.problem.cotangents[0].shape:
                return None
            problem.gradients([out], s.problem.cotangents)
    except Exception:
        return None
    return trace, inputs[s.position]


def _uses(s: Suspect, p: Pattern) -> list[tuple[str, np.ndarray]]:
    """(op, contribution) of every use of the input in the forward text; none if together they are not the slope."""
    if (found := _forward_text(s)) is None:
        return []
    trace, x = found
    uses = [(node.op.__name__, part) for _, node, _, _, holder, part in trace.parts if holder is x]
    return (
        uses
        if 2 <= len(uses) <= 10 and same(p.n, np.sum([part for _, part in uses], axis=0))
        else []
    )


def _one_use_missed(s: Suspect, p: Pattern) -> Diagnosis | None:
    """The contributions of some uses add up to what the rule gives."""
    uses = _uses(s, p)
    for size in range(1, len(uses)):
        for chosen in itertools.combinations(range(len(uses)), size):
            if p.fits(np.sum([uses[i][1] for i in chosen], axis=0)):
                left = ", ".join(
                    sorted({name for i, (name, _) in enumerate(uses) if i not in chosen})
                )
                return Diagnosis(
                    "missed use",
                    f"the input is used {len(uses)} times in the forward text, but the rule counts only {size} "
                    f"of these uses; missed: the use in {left}. The gradient is the sum over all uses.",
                )
    return None


def _no_pattern(s: Suspect, p: Pattern) -> Diagnosis:
    """What can be said at the least: of which contributions the worst element should consist."""
    uses, worst = _uses(s, p), np.unravel_index(np.argmax(np.abs(p.a - p.n)), p.n.shape)
    shares = " + ".join(
        f"{part[worst]:.4g} by the input's use in {name}" for name, part in uses
    ).replace("+ -", "- ")
    where = f" at {tuple(map(int, worst))}" if worst else ""
    given = f" for g = {p.g[worst]:.4g}" if p.g is not None and p.g.shape == p.n.shape else ""
    more = (
        f" It gives {p.a[worst]:.4g}{where}{given}; the forward text gives {shares} = {p.n[worst]:.4g}."
        if uses
        else ""
    )
    smaller = (
        ""
        if p.jacobians()
        else f", or check it at no more than {WHOLE} elements, where more is tried"
    )
    return Diagnosis(
        "rule",
        f"this op's rule disagrees with central differences in no simple pattern; derive it again{smaller}.{more}",
    )


def _turns(v: Any) -> Iterator[np.ndarray]:
    """A matrix transposed, or a stack of them with its axes in any other order."""
    if isinstance(v, np.ndarray) and 2 <= v.ndim <= 4:
        orders = sorted(
            itertools.permutations(range(v.ndim)),
            key=lambda order: order != (*range(v.ndim - 2), v.ndim - 1, v.ndim - 2),
        )
        yield from (v.transpose(order) for order in orders if order != tuple(range(v.ndim)))


def _turned(v: Any) -> Any:
    return v.swapaxes(-1, -2) if isinstance(v, np.ndarray) and v.ndim >= 2 else None


def _answers_with_a_transpose(s: Suspect, p: Pattern) -> Iterator[tuple[str, np.ndarray | None]]:
    """(which of the matrices that the rule is given is transposed, what it answers then)"""
    operands = as_given(s.step.inputs) if s.step.op.joint is None else []
    for i, operand in enumerate(operands):
        for turned in _turns(operand):
            yield f"operand {i}", call_rule(s, y=p.y, operands=_replaced(operands, i, turned))
    if (turned := _turned(s.problem.cotangents[0])) is not None:
        yield "the incoming gradient", call_rule(s, g=turned)


def _operand_transposed(s: Suspect, p: Pattern) -> Diagnosis | None:
    """The rule comes out right if one of the matrices it is given, or its answer, is transposed."""
    if _right(_turned(p.a), p):
        return Diagnosis(
            "transposed",
            "the rule is right once its answer is transposed: a transpose (.mT) is missing or too many.",
        )
    for what, tried in _answers_with_a_transpose(s, p):
        for answer, also in ((tried, ""), (_turned(tried), ", and so must the answer be")):
            if _right(answer, p):
                if also and what == "the incoming gradient" and (axes := coupling(p)) is not None:
                    return axes  # turned on both sides, a rule does along one axis what it did along the other
                return Diagnosis(
                    "transposed",
                    f"the rule is right once {what} is transposed{also}: a transpose (.mT) is missing or too "
                    "many.",
                )
    return None


def _right_for_ones(s: Suspect, below: int = 100) -> Diagnosis | None:
    """Is the rule right where another operand, of fewer axes than `below`, is all ones?"""
    for i, operand in enumerate(s.step.inputs):
        array = getattr(operand, "_data", operand)
        if i == s.position or not (
            isinstance(array, np.ndarray) and array.dtype == np.float64 and array.ndim < below
        ):
            continue
        ones_and_twos = (
            Variable._kind._of(np.full(array.shape, value), getattr(operand, "_tracked", False))
            for value in (1.0, 2.0)
        )
        right = [
            _right_for(s.step._replace(inputs=tuple(_replaced(s.step.inputs, i, new))), s)
            for new in ones_and_twos
        ]
        if right == [True, False]:
            return Diagnosis(
                "operand misplaced",
                f"the rule is right where operand {i} is all ones and wrong elsewhere: operand {i} "
                "is left out of the rule.",
            )
        if all(right):
            return Diagnosis(
                "operand misplaced",
                f"the rule is right where all elements of operand {i} are equal and wrong elsewhere: "
                f"operand {i} stands outside a sum it belongs into (in a normalisation, multiply the "
                "gradient by the weight first), or its elements are taken in the wrong order (reversed, "
                "transposed).",
            )
    return None


def _exchanged(s: Suspect, p: Pattern) -> Diagnosis | None:
    """Rules in the wrong order, or x taken for y."""
    for other, x in enumerate(s.problem.inputs):
        if (
            other != s.which
            and x.shape == p.a.shape
            and p.fits(slope := s.problem.numeric(other, step_size(x._data)))
        ):
            given = s.problem.gradients()[other]
            if given is not None and same(given, slope):
                return Diagnosis(
                    "exchanged",
                    f"this is the gradient of {s.problem.names[other]}, given to {s.problem.names[s.which]} "
                    f"as well: the rule of {s.problem.names[s.which]} is a copy of the other's.",
                )
            return Diagnosis(
                "exchanged",
                f"this is the gradient of {s.problem.names[other]}, given to {s.problem.names[s.which]}: the "
                "rules stand in the wrong order.",
            )
    operands = as_given(s.step.inputs)
    if p.y is None:
        return None
    alike = (
        len(operands) > 1
        and isinstance(operands[0], np.ndarray)
        and np.shape(operands[0]) == np.shape(operands[1])
    )
    if alike and _right(call_rule(s, y=p.y, operands=[operands[1], operands[0], *operands[2:]]), p):
        return Diagnosis(
            "exchanged",
            "the rule is right once its first two operands are exchanged: it takes one for the other.",
        )
    if p.y.shape == p.x.shape:
        if _right(call_rule(s, y=p.x), p):
            return Diagnosis("exchanged", "the rule uses the result y where the input x belongs.")
        if s.step.op.joint is None and _right(
            call_rule(s, y=p.y, operands=_replaced(operands, s.position, p.y)), p
        ):
            return Diagnosis("exchanged", "the rule uses the input x where the result y belongs.")
    return None


def _value_on_the_way(s: Suspect, p: Pattern) -> Diagnosis | None:
    """The rule of x tanh(x) says y and means tanh(x)."""
    if p.y is None or (found := _forward_text(s)) is None:
        return None
    for step in found[0].steps:
        if _right(call_rule(s, y=step.result._data), p):
            return Diagnosis(
                "exchanged",
                f"the rule is right once y in it is what {step.op.__name__} gives on the way; but y is what the "
                "op returns. Compute that value again in the rule, or hand it on with saves=True.",
            )
    return None


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "negative": np.negative,
}


def _taken_for_another(s: Suspect, p: Pattern) -> Diagnosis | None:
    """A log-probability taken for a probability, a variance for a standard deviation."""
    if p.y is None:
        return None
    operands = as_given(s.step.inputs)
    for name, f in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            trials = [("the result y", call_rule(s, y=f(p.y)))]
            trials += [
                (f"operand {i}", call_rule(s, y=p.y, operands=_replaced(operands, i, f(x))))
                for i, x in enumerate(operands)
                if isinstance(x, np.ndarray) and x.dtype == np.float64
            ]
        for what, answer in trials:
            if answer is not None and answer.any() and _right(answer, p):
                return Diagnosis(
                    "exchanged",
                    f"the rule is right once np.{name} is applied to {what} in it: it takes one quantity for "
                    "another (a log-probability for a probability, a variance for a standard deviation).",
                )
    return None


def _axis_ignored(s: Suspect, p: Pattern) -> Diagnosis | None:
    """Right for another axis than the one asked for?"""
    axis = s.step.static.get("axis")
    if not isinstance(axis, (int, type(None))) or "axis" not in s.step.static or not p.x.ndim:
        return None
    for other in _axes(p.x.ndim, axis):
        if _right(call_rule(s, y=p.y, static={**s.step.static, "axis": other}), p):
            return Diagnosis(
                "wrong axis",
                f"the rule is right for axis={axis} when it is told axis={other}: it counts the axis "
                "differently (a negative axis?).",
            )
    for other in _axes(p.x.ndim, axis):
        if _right_for(s.step._replace(static={**s.step.static, "axis": other}), s):
            return Diagnosis(
                "wrong axis",
                f"the rule is wrong for axis={axis} but right for axis={other}: it sums or broadcasts over a "
                "fixed axis, whatever axis it is given.",
            )
    return None


def _axes(ndim: int, axis: int | None) -> Iterator[int]:
    used = None if axis is None else axis % ndim
    for other in (*range(-ndim, 0), *range(ndim)):
        if used is None or other % ndim != used:
            yield other


def _right_for(step: Any, s: Suspect) -> bool:
    kind = Variable._kind
    copies = {
        id(x): kind._of(x._data.copy(), x._tracked) for x in step.inputs if isinstance(x, Variable)
    }
    operands = [copies.get(id(x), x) for x in step.inputs]
    inputs = [x for x in copies.values() if x._tracked]
    try:
        problem = Problem(
            lambda: step.op(*operands, **step.static),
            inputs,
            ["x"] * len(inputs),
            np.random.default_rng(2),
        )
        found = problem.gradients()[s.which]
        return found is not None and same(
            found, problem.numeric(s.which, step_size(inputs[s.which]._data))
        )
    except Exception:
        return False
