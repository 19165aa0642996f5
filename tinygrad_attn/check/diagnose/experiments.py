"""Why an op's own rule is wrong, by experiment: with what in place of what is it right?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...engine import Variable, tracked, watching
from ...engine.autograd import enable_grad
from ..judging import SMALL
from ..records import array_of, as_given
from ..second_sweep import second_opinion
from ..trace import Trace
from .pattern import Found, Pattern, same
from .places import axis_mixed, axis_not_mixed, causal_mask_forgotten, lost_contributions
from .suspects import Suspect, alone, call_rule, copies


def _operands(s: Suspect) -> list[Any]:
    return as_given(s.step.inputs)


def _float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def _with(operands: Sequence[Any], i: int, new: Any) -> list[Any]:
    return [*operands[:i], new, *operands[i + 1 :]]


# ---- the incoming gradient


def _answers(s: Suspect, *factors: float) -> list[np.ndarray] | None:
    """What the rule says where the incoming gradient is so many times as large."""
    g = s.problem.cotangents
    found = [s.problem.gradients(cotangents=[c * k for c in g])[s.which] for k in factors]
    return None if any(a is None for a in found) else found  # type: ignore[return-value]


def ignores_g(p: Pattern) -> Found:
    """The same answer for twice the incoming gradient, and for another one altogether."""
    answers = _answers(p.suspect, 1, 2)
    if answers is None or not answers[0].any() or not same(*answers):
        return None
    return {} if same(answers[0], _for_another_g(p.suspect)) else None


def scales_g(p: Pattern) -> Found:
    """The same answer for twice the incoming gradient, but not for another one."""
    answers = _answers(p.suspect, 1, 2)
    return {} if answers is not None and answers[0].any() and same(*answers) else None


def _for_another_g(s: Suspect) -> np.ndarray:
    rng = np.random.default_rng(8)
    other = [rng.standard_normal(c.shape) for c in s.problem.cotangents]
    found = s.problem.gradients(cotangents=other)[s.which]
    return np.zeros(s.problem.inputs[s.which].shape) if found is None else found


def not_linear_in_g(p: Pattern) -> Found:
    if (answers := _answers(p.suspect, 1, 2, 0, -1)) is None:
        return None
    once, twice, none, negative = answers
    if same(2 * once, twice) and same(-once, negative) and not np.any(none):
        return None
    if not np.isfinite(none).all():
        return {"how": "; where g is zero it gives NaN or Inf: it divides by g, or takes its log"}
    if same(4 * once, twice):
        return {"how": "; it uses g squared"}
    if np.any(none):
        return {"how": "; it adds something that does not depend on g"}
    return {"how": "; it uses the size of g without its sign" if same(once, negative) else ""}


# ---- the forward text: what the op's own function does when it is run on Tensors


class ForwardText:
    """The op's own function, run on Tensors: its ops, its result, the input in question."""

    def __init__(self, s: Suspect) -> None:
        inputs = copies(s.step.inputs)
        self.x, self.g = inputs[s.position], s.problem.cotangents[0]
        with enable_grad(), watching(Trace()) as self.trace, np.errstate(all="ignore"):
            out = s.step.op.forward(*inputs, **s.step.settings)
            self.out = out[0] if s.step.op.saves else out
            if not isinstance(self.out, Variable) or self.out._data.shape != self.g.shape:
                raise TypeError("the function leaves the graph")
            self.grads, self.uses = second_opinion([self.out], [self.g])

    def gradients_on_the_way(self) -> Iterator[tuple[str, Any, np.ndarray]]:
        """(op, its result, the gradient that reaches it) for each op on the way."""
        for s in self.trace.steps:
            if id(s.result) in self.grads and s.result is not self.out:
                yield s.name, s.result, self.grads[id(s.result)]

    def pulled_back(self, result: Any, g: np.ndarray) -> np.ndarray | None:
        """The gradient of the input, if this were the gradient of a value on the way."""
        return second_opinion([result], [g]).grads.get(id(self.x))


def forward_text(p: Pattern) -> ForwardText | None:
    """None where the function leaves the graph, as with math.erf or out=."""
    if "text" not in p.kept:
        p.kept["text"] = None
        with suppress(Exception):
            p.kept["text"] = ForwardText(p.suspect)
    return p.kept["text"]


def _uses(p: Pattern) -> list[tuple[str, np.ndarray]]:
    """(op, share) of every use of the input in the forward text, if together they are the slope."""
    if (text := forward_text(p)) is None:
        return []
    uses = text.uses.get(id(text.x), [])
    together = 2 <= len(uses) <= 10 and same(p.n, np.sum([share for _, share in uses], axis=0))
    return uses if together else []


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
    uses, worst = _uses(p), np.unravel_index(np.argmax(np.abs(p.a - p.n)), p.n.shape)
    if not uses:
        return {"small": small, "more": ""}
    shares = [f"{share[worst]:.4g} by the input's use in {name}" for name, share in uses]
    where = f" at {tuple(map(int, worst))}" if worst else ""
    given = f" for g = {p.g[worst]:.4g}" if p.g is not None and p.g.shape == p.n.shape else ""
    sum_ = " + ".join(shares).replace("+ -", "- ")
    told = f"It gives {p.a[worst]:.4g}{where}{given}; the forward text gives {sum_}"
    return {"small": small, "more": f" {told} = {p.n[worst]:.4g}."}


def transposed_on_the_way(p: Pattern) -> Found:
    """As in attention's dk = ds @ q for ds.mT @ q: ds is the gradient of a value on the way."""
    if (text := forward_text(p)) is None:
        return None
    for name, result, g in text.gradients_on_the_way():
        square = g.ndim >= 2 and g.shape[-1] == g.shape[-2]
        turned = g.swapaxes(-1, -2) if square else g
        if not same(g, turned) and p.fits(text.pulled_back(result, turned)):
            return {"op": name}
    return None


def value_on_the_way(p: Pattern) -> Found:
    """The rule of x tanh(x) says y and means tanh(x)."""
    text = forward_text(p)
    steps = text.trace.steps if text is not None else []
    return _right_once(p, ((s.name, {"y": s.result._data}) for s in steps))


# ---- indices


def repeated_index(p: Pattern) -> Found:
    s = p.suspect
    given = [*s.step.settings.values(), *_operands(s)]
    flat = [v for value in given for v in (value if isinstance(value, tuple) else (value,))]
    indices = [v for v in flat if isinstance(v, np.ndarray) and v.dtype.kind in "iu"]
    repeated = [v for v in indices if len(np.unique(v)) < v.size]
    if not repeated:
        return None
    picked = (p.jacobians[1] != 0).sum(axis=0).reshape(p.a.shape)  # type: ignore[index]
    if (p.off & (picked < 2)).any() or lost_contributions(p) is None:
        return None  # an average, or a loop that ends too early, is off at the same elements
    found, counts = np.unique(repeated[0], return_counts=True)
    return {"listed": ", ".join(map(str, found[counts > 1][:6]))}


def later_rows(p: Pattern) -> Found:
    """Of the queries' own gradient nothing shows, so all inputs of the op are looked at."""
    s = p.suspect
    for which, x in enumerate(s.problem.inputs):
        if x.size <= SMALL and p.y is not None:
            h = s.problem.steady_step(which)
            matrices = s.problem.jacobian_by_rules(which), s.problem.jacobian(which, h)
            if causal_mask_forgotten(matrices, x.shape, p.y.shape):
                return {"name": s.problem.names[which]}
    return None


# ---- transposes


def _turned(v: Any) -> Any:
    return v.swapaxes(-1, -2) if isinstance(v, np.ndarray) and v.ndim >= 2 else None


def _turns(v: Any) -> Iterator[np.ndarray]:
    """A matrix transposed, or a stack of them with its axes in any other order."""
    if isinstance(v, np.ndarray) and 2 <= v.ndim <= 4:
        last_two = (*range(v.ndim - 2), v.ndim - 1, v.ndim - 2)
        orders = [o for o in itertools.permutations(range(v.ndim)) if o != tuple(range(v.ndim))]
        for order in sorted(orders, key=lambda order: order != last_two):
            yield v.transpose(order)


def answer_transposed(p: Pattern) -> Found:
    return {} if p.right(_turned(p.a)) else None


def _with_a_transpose(p: Pattern) -> Iterator[tuple[str, np.ndarray | None]]:
    """(which of the matrices that the rule is given is transposed, what it answers then)"""
    s, operands = p.suspect, _operands(p.suspect)
    g = _turned(s.problem.cotangents[0])
    for i, operand in enumerate(operands if s.step.op.joint is None else ()):
        for turned in _turns(operand):
            yield f"operand {i}", call_rule(s, y=p.y, args=_with(operands, i, turned))
    if g is not None:
        yield "the incoming gradient", call_rule(s, g=g)


def factors_in_the_wrong_order(p: Pattern) -> Found:
    """(g.T a.T).T = a g, where the rule says g a."""
    s, operands = p.suspect, _operands(p.suspect)
    g = _turned(s.problem.cotangents[0])
    if g is None or s.step.op.joint is not None:
        return None
    for i, operand in enumerate(operands):
        if i != s.position and (turned := _turned(operand)) is not None:
            answer = call_rule(s, y=p.y, g=g, args=_with(operands, i, turned))
            if answer is not None and p.right(_turned(answer)):
                return {"i": i}
    return None


def operand_transposed(p: Pattern) -> Found:
    for what, answer in _with_a_transpose(p):
        if p.right(answer):
            return {"what": f"{what} is transposed"}
        # Turned on both sides, a rule does along one axis what it did along the other: a wrong
        # axis.
        one_axis = (
            what == "the incoming gradient" and p.jacobians and (axis_mixed(p) or axis_not_mixed(p))
        )
        if p.right(_turned(answer)) and not one_axis:
            return {"what": f"{what} is transposed, and so must the answer be"}
    return None


# ---- one thing for another


def copy_of_another_rule(p: Pattern) -> Found:
    return _gradient_of_another(p, both=True)


def rules_in_the_wrong_order(p: Pattern) -> Found:
    return _gradient_of_another(p, both=False)


def _gradient_of_another(p: Pattern, both: bool) -> Found:
    """This is the gradient of another input; `both`: which gets it as well."""
    s = p.suspect
    for other, x in enumerate(s.problem.inputs):
        if other == s.which or x.shape != p.a.shape:
            continue
        slope = s.problem.numeric(other, s.problem.steady_step(other))
        if p.fits(slope):
            given = s.problem.gradients()[other]
            if both == (given is not None and same(given, slope)):
                return {"name": s.problem.names[other], "mine": s.problem.names[s.which]}
    return None


def _right_once(p: Pattern, trials: Iterator[tuple[str, dict[str, Any]]]) -> Found:
    """The first exchange of something that the rule is given with which its answer is right."""
    for how, change in trials if p.y is not None else ():
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
        if rest and isinstance(first, np.ndarray) and first.shape == np.shape(rest[0]):
            how = "is right once its first two operands are exchanged: it takes one for the other"
            yield how, {"args": [rest[0], first, *rest[1:]]}
        if y is not None and y.shape == x.shape:
            yield "uses the result y where the input x belongs", {"y": x}
            if s.step.op.joint is None:
                exchanged = {"args": _with(operands, s.position, y)}
                yield "uses the input x where the result y belongs", exchanged

    return _right_once(p, trials())


FUNCTIONS: list[tuple[Callable[[Any], Any], str]] = [
    (np.exp, "np.exp is applied to {}"),
    (np.log, "np.log is applied to {}"),
    (np.sqrt, "np.sqrt is applied to {}"),
    (np.square, "np.square is applied to {}"),
    (np.reciprocal, "np.reciprocal is applied to {}"),
    (np.negative, "{} has the other sign (a condition such as x > 0, the wrong way round?)"),
    (lambda v: 1 - v, "{0} is replaced by 1 - {0}"),
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
        slope = it.numeric(s.which, it.steady_step(s.which))
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


def _other_axes(p: Pattern) -> Iterator[tuple[Any, int]]:
    """(the axis that was asked for, another one)"""
    settings = p.suspect.step.settings
    axis, ndim = settings.get("axis"), p.x.ndim
    if "axis" not in settings or not isinstance(axis, (int, type(None))) or not ndim:
        return
    for other in (*range(-ndim, 0), *range(ndim)):
        if axis is None or other % ndim != axis % ndim:
            yield axis, other


def axis_counted_differently(p: Pattern) -> Found:
    s = p.suspect
    for axis, other in _other_axes(p):
        if p.right(call_rule(s, y=p.y, settings={**s.step.settings, "axis": other})):
            return {"axis": axis, "other": other}
    return None


def axis_fixed(p: Pattern) -> Found:
    s = p.suspect
    for axis, other in _other_axes(p):
        if _right_for(s, settings={**s.step.settings, "axis": other}):
            return {"axis": axis, "other": other}
    return None
