"""Why an op's own rule is wrong, by experiment: with what in place of what is it right?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...engine import Variable, tracked
from ..judging import SMALL
from ..measuring import Problem
from ..questions import nonlinearity
from ..records import array_of, as_given, shares
from ..report import index_of_largest
from .pattern import Found, Pattern, same
from .places import causal_mask_forgotten, lost_contributions
from .suspects import Suspect, alone, call_rule
from .values import slips


def _operands(s: Suspect) -> list[Any]:
    return as_given(s.step.inputs)


def _float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def _with(operands: Sequence[Any], i: int, new: Any) -> list[Any]:
    return [*operands[:i], new, *operands[i + 1 :]]


# ---- the incoming gradient


def not_linear_in_g(p: Pattern) -> Found:
    """What the rule answers where the incoming gradient is a multiple of what it was."""
    s = p.suspect
    call = s.step.again()
    call.needs = [i == s.position for i in range(len(call.args))]
    return nonlinearity(call, s.problem.cotangents[0])


# ---- the forward text


def _uses(p: Pattern) -> list[tuple[str, np.ndarray]]:
    """(op, share) of every use of the input in the forward text."""
    uses = [] if p.text is None else p.text.uses[p.text.x]
    return uses if 2 <= len(uses) <= 10 else []


def one_use_missed(p: Pattern) -> Found:
    """The shares of some uses add up to what the rule gives."""
    uses = _uses(p)
    for size in range(1, len(uses)):
        for chosen in itertools.combinations(range(len(uses)), size):
            if p.fits(np.sum([uses[i][1] for i in chosen], axis=0)):
                left = {name for i, (name, _) in enumerate(uses) if i not in chosen}
                return {"uses": len(uses), "counted": size, "left": ", ".join(sorted(left))}
    return None


def no_pattern(p: Pattern) -> Found:
    """What can be said at the least: of which shares the worst element should consist."""
    small = (
        ""
        if p.jacobians
        else f", or check it at no more than {SMALL} elements, where more is tried"
    )
    uses, worst = _uses(p), index_of_largest(np.abs(p.a - p.n))
    if not uses:
        return {"small": small, "more": ""}
    shares = [f"{share[worst]:.4g} by the input's use in {name}" for name, share in uses]
    where = f" at {worst}" if worst else ""
    given = f" for g = {p.g[worst]:.4g}" if p.offers("like x") else ""
    sum_ = " + ".join(shares).replace("+ -", "- ")
    told = f"It gives {p.a[worst]:.4g}{where}{given}; the forward text gives {sum_}"
    return {"small": small, "more": f" {told} = {p.n[worst]:.4g}."}


def transposed_on_the_way(p: Pattern) -> Found:
    """As in attention's dk = ds @ q for ds.mT @ q: ds is the gradient of a value on the way."""
    for name, v in p.text.values():
        g = p.text.grads[v]
        turned = g.swapaxes(-1, -2) if g.ndim >= 2 else g
        if turned.shape == g.shape and not same(g, turned):
            if p.fits(p.text.pulled_back(v, turned)):
                return {"value": name}
    return None


def slip_on_the_way(p: Pattern) -> Found:
    """Inside the function is a well-known one, as attention's softmax, with a well-known slip."""
    results = [s.result for s in p.text.trace.steps if s.result in p.text.grads]
    for name, v in p.text.values():
        right = lambda derivative, name, v=v: same(derivative, p.text.grads[v])
        for y in (y for y in results if y is not v and y.shape == v.shape):
            for slip, wrong in slips(p.text.grads[y], v._data, y._data, right, within=True):
                if p.fits(p.text.pulled_back(v, wrong)):
                    return {"value": name, **slip}
    return None


def changed_on_the_way(p: Pattern) -> Found:
    """The rule gives what the forward text would, were one share in it another one."""
    text = p.text
    if len(text.trace.steps) > 40 or not np.ptp(p.x):
        return None  # at equal elements one share looks like another
    for name, v in text.values():
        ops, uses = zip(*text.uses[v])
        back: list[Any] = [text.pulled_back(v, share) for share in uses]
        parts = np.stack(back, axis=-1)
        more = np.linalg.lstsq(parts.reshape(p.a.size, -1), (p.a - p.n).ravel(), rcond=None)[0]
        simple = all(min(_from_whole(1 + c), _from_whole(1 / (1 + c))) < 1e-3 for c in more)
        if simple and p.a.size > len(ops) + 2 and p.fits(p.n + parts @ more):
            told = [
                f"the use of {name} in {op} were "
                + (f"counted {1 + c:.4g} times" if abs(1 + c) > 1e-3 else "missed")
                for op, c in zip(ops, more)
                if abs(c) > 1e-3
            ]
            return {"kind": "missed use", "how": ", and ".join(told)}
    return next((found for found in _exchanged_shares(p) if p.fits(p.n + found["error"])), None)


def _from_whole(c: float) -> float:
    return abs(c - round(c)) if np.isfinite(c) else np.inf


def _exchanged_shares(p: Pattern) -> Iterator[dict[str, Any]]:
    """What goes wrong where a rule on the way takes another value of the same shape."""
    s, text = p.suspect, p.text
    known = [(f"operand {i}", x) for i, x in enumerate(_operands(s)) if _float(x)]
    known += [(f"what {s.name} gives on the way", s.result._data) for s in text.trace.steps]
    for step in text.trace.steps:
        if (g := text.grads.get(step.result)) is None:
            continue
        operands, right = as_given(step.inputs), [*shares(step.result, g)]
        for j, operand in enumerate(operands):
            others = [(f"{what} stood for its operand {j}", v) for what, v in known]
            others += [(f"its operand {j} were transposed", v) for v in _turns(operand)]
            for how, v in others if _float(operand) else ():
                if v.shape == operand.shape and not np.array_equal(v, operand):
                    wrong = [*shares(step.result, g, _with(operands, j, v))]
                    for (x, a), (_, b) in zip(wrong, right):
                        error = None if same(a, b) else text.pulled_back(x, a - b)
                        if error is not None:
                            where = f"in the derivative of {step.name} {how}"
                            yield {"kind": "exchanged", "how": where, "error": error}


def value_on_the_way(p: Pattern) -> Found:
    """The rule of x tanh(x) says y and means tanh(x)."""
    return _right_once(p, ((s.name, {"y": s.result._data}) for s in p.text.trace.steps))


# ---- indices and masks


def repeated_use(p: Pattern) -> Found:
    """Of the uses of an element one is counted: it is picked more than once, or used again."""
    s, found = p.suspect, lost_contributions(p)
    given = [*s.step.settings.values(), *_operands(s)] if found and s else []
    for v in [v for value in given for v in (value if isinstance(value, tuple) else (value,))]:
        if isinstance(v, np.ndarray) and v.dtype.kind in "iu" and len(np.unique(v)) < v.size:
            picked, counts = np.unique(v, return_counts=True)
            where = ", ".join(map(str, picked[counts > 1][:6]))
            return found | {"kind": "repeated index", "where": f"index {where}"}  # type: ignore
    return found


def later_rows(p: Pattern) -> Found:
    """Of the queries' own gradient nothing shows, so all inputs of the op are looked at."""
    s = p.suspect
    for which, x in enumerate(s.problem.inputs):
        if x.size <= SMALL:
            h = s.problem.steady_step(which)
            matrices = s.problem.jacobian_by_rules(which), s.problem.jacobian(which, h)
            if causal_mask_forgotten(matrices, x.shape, p.y.shape):
                return {"name": s.problem.names[which]}
    return None


# ---- transposes


def _turns(v: Any) -> Iterator[np.ndarray]:
    """A matrix transposed, or a stack of them with its axes in any other order."""
    if isinstance(v, np.ndarray) and 2 <= v.ndim <= 4:
        last_two = (*range(v.ndim - 2), v.ndim - 1, v.ndim - 2)
        orders = [o for o in itertools.permutations(range(v.ndim)) if o != tuple(range(v.ndim))]
        for order in sorted(orders, key=lambda order: order != last_two):
            yield v.transpose(order)


def operand_transposed(p: Pattern) -> Found:
    """Of the matrices that the rule is given one should be transposed."""
    s, g, operands = p.suspect, p.g, _operands(p.suspect)
    trials: list[tuple[str, dict[str, Any]]] = [
        (f"operand {i}", {"args": _with(operands, i, turned)})
        for i, operand in enumerate(operands if s.step.op.joint_vjp is None else ())
        for turned in _turns(operand)
    ]
    if g.ndim >= 2:
        trials.append(("the incoming gradient", {"g": g.swapaxes(-1, -2), "y": None}))
    return _right_once(p, iter(trials))


def factors_in_the_wrong_order(p: Pattern) -> Found:
    """(g.T a.T).T = a g, where the rule says g a."""
    s, g, operands = p.suspect, p.g, _operands(p.suspect)
    turned = lambda v: v.swapaxes(-1, -2)
    for i, operand in enumerate(operands if g.ndim >= 2 and s.step.op.joint_vjp is None else ()):
        if i != s.position and getattr(operand, "ndim", 0) >= 2:
            args = _with(operands, i, turned(operand))
            answer = call_rule(s, g=turned(g), y=p.y, args=args)
            if np.ndim(answer) >= 2 and p.right(turned(answer)):
                return {"i": i}
    return None


# ---- one thing for another


def slope_of(problem: Problem, which: int) -> np.ndarray:
    """The slope by this input, measured with the step at which it is steadiest."""
    return problem.numeric(which, problem.steady_step(which))


def gradient_of_another(p: Pattern) -> Found:
    """This is the gradient of another input, which gets it as well, or what belongs here."""
    s = p.suspect
    for other, x in enumerate(s.problem.inputs):
        if other == s.which or x.shape != p.a.shape:
            continue
        mine, slope = s.problem.names[s.which], slope_of(s.problem, other)
        if p.fits(slope):
            given = s.problem.gradients()[other]
            copied = given is not None and same(given, slope)
            as_well = f" as well: the rule of {mine} is a copy of the other's"
            how = as_well if copied else ": the rules stand in the wrong order"
            return {"name": s.problem.names[other], "mine": mine, "how": how}
    return None


def _right_once(p: Pattern, trials: Iterator[tuple[str, dict[str, Any]]]) -> Found:
    """The first exchange of something that the rule is given with which its answer is right."""
    for how, change in trials:
        answer = call_rule(p.suspect, **{"y": p.y} | change)
        if answer is not None and answer.any() and p.right(answer):
            return {"how": how}
    return None


def one_for_another(p: Pattern) -> Found:
    """The operands for each other, the result for an operand, an operand for the result."""
    s, x, y = p.suspect, p.x, p.y
    operands = _operands(s)

    def trials() -> Iterator[tuple[str, dict[str, Any]]]:
        first, *rest = operands
        if rest and np.shape(first) == np.shape(rest[0]):
            how = "is right once its first two operands are exchanged: it takes one for the other"
            yield how, {"args": [rest[0], first, *rest[1:]]}
        if y.shape == x.shape:
            yield "uses the result y where the input x belongs", {"y": x}
            if s.step.op.joint_vjp is None:
                exchanged = {"args": _with(operands, s.position, y)}
                yield "uses the input x where the result y belongs", exchanged

    return _right_once(p, trials())


def _softmax(v: Any) -> Any:
    e = np.exp(v)
    return e / e.sum(-1, keepdims=True) if v.ndim else v


FUNCTIONS: list[tuple[Callable[[Any], Any], str]] = [
    (np.exp, "np.exp is applied to {}"),
    (np.log, "np.log is applied to {}"),
    (np.sqrt, "np.sqrt is applied to {}"),
    (np.square, "np.square is applied to {}"),
    (np.reciprocal, "np.reciprocal is applied to {}"),
    (np.negative, "{} has the other sign (a condition such as x > 0, the wrong way round?)"),
    (lambda v: 1 - v, "{0} is replaced by 1 - {0}"),
    (lambda v: 1 / (1 + np.exp(-v)), "sigmoid is applied to {}"),
    (_softmax, "softmax is applied to {}"),
    (np.logical_not, "{} is inverted"),
]


def taken_for_another(p: Pattern) -> Found:
    """A log-probability for a probability, a variance for a standard deviation, t for 1 - t."""
    s, operands = p.suspect, _operands(p.suspect)
    return _right_once(
        p,
        (
            (words.format(what), change)
            for f, words in FUNCTIONS
            for what, change in _exchanges(p.y, operands, s.step.settings, f)
        ),
    )


def _exchanges(
    y: Any, operands: list[Any], settings: dict[str, Any], f: Callable[[Any], Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what the rule is given f of, and how to call it then)"""
    takes = lambda v: isinstance(v, np.ndarray) and v.dtype.kind == "fb"[f is np.logical_not]
    if takes(y):
        yield "the result y", {"y": f(y)}
    for i, x in enumerate(operands):
        if takes(x):
            yield f"operand {i}", {"args": _with(operands, i, f(x))}
    for name, value in settings.items():
        if takes(value):
            yield f"the setting {name!r}", {"settings": settings | {name: f(value)}}


# ---- right for other operands or settings


def _right_for(s: Suspect, **change: Any) -> bool:
    """Would the op's rule be right for other operands or settings?"""
    try:
        it: Any = alone(s.step._replace(**change), np.random.default_rng(2))
        found = it.gradients()[s.which]
        slope = slope_of(it, s.which)
    except Exception:
        return False
    return found is not None and same(found, slope)


def right_for_a_weight_of_ones(p: Pattern) -> Found:
    """Is the rule right where another operand, of fewer axes, is all ones or twos?

    As that of a layer norm which is right for the initial weight only.
    """
    s = p.suspect
    for i, operand in enumerate(s.step.inputs):
        array: Any = array_of(operand) if isinstance(operand, (Variable, np.ndarray)) else None
        if i == s.position or not (_float(array) and array.ndim < p.x.ndim):
            continue
        right = []
        for value in (1.0, 2.0):
            new = Variable._kind._of(np.full(array.shape, value), tracked(operand))
            right.append(_right_for(s, inputs=tuple(_with(s.step.inputs, i, new))))
        if right[0]:
            how = (
                "all elements of operand {i} are equal and wrong elsewhere: operand {i} stands "
                "outside a sum it belongs into (in a normalisation, multiply the gradient by the "
                "weight first), or its elements are taken in the wrong order (reversed, "
                "transposed)"
                if right[1]
                else "operand {i} is all ones and wrong elsewhere: operand {i} is left out of the "
                "rule"
            )
            return {"how": how.format(i=i)}
    return None


def another_axis(p: Pattern) -> Found:
    """Is the rule right for another axis, or for this one if it is told another?"""
    s, ndim = p.suspect, p.x.ndim
    axis = s.step.settings.get("axis", ())
    others = (*range(-ndim, 0), *range(ndim)) if isinstance(axis, (int, type(None))) else ()
    others = tuple(k for k in others if axis is None or k % ndim != axis % ndim)
    hows = {
        "right for axis={axis} when it is told axis={other}: it counts the axis differently (a "
        "negative axis?)": lambda it: p.right(call_rule(s, y=p.y, settings=it)),
        "wrong for axis={axis} but right for axis={other}: it sums or broadcasts over a fixed "
        "axis, whatever axis it is given": lambda it: _right_for(s, settings=it),
    }
    for how, right in hows.items():
        for other in others:
            if right({**s.step.settings, "axis": other}):
                return {"how": how.format(axis=axis, other=other)}
    return None
