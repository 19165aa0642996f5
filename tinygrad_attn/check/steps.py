"""Find the step of a function whose VJP a wrong gradient gets wrong.

If the function's steps are NumPy's functions, this package can differentiate it. Then the VJP of
each step makes one mistake after another, and the gradient that comes out is compared with the
wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..engine import Op
from ..errors import quoted
from .backend import Array, Call, array_of
from .kernel import Kernel
from .report import agree, greatest
from .subject import OpSubject
from .values import MAPS

MOST = 80  # of the steps, from the result on
Pull = Callable[[Array], Array]  # from g to the contribution to the gradient of one operand
Mistake = Callable[[Call, Pull, Array], Array]  # from the right one and g to a wrong contribution


def missing(call: Call, pull: Pull, g: Array) -> Array:
    """Return a contribution of zeros."""
    return np.zeros_like(pull(g))


class Mistaken(Op):
    """The op of a step that makes a mistake in its contribution to one operand."""

    def __init__(self, call: Call, i: int, mistake: Mistake) -> None:
        self.op = call.result._node.op
        vars(self).update(vars(self.op) | {"op": self.op})
        self.adds_in_place, self.trusted = None, False
        self.call, self.i, self.mistake = call, i, mistake

    def pull(self, y, g, *options):
        one = lambda g: dict(self.op.pull(y, g, *options))[self.i]
        pulled = self.op.pull(y, g, *options)
        return [(i, self.mistake(self.call, one, g) if i == self.i else c) for i, c in pulled]


@contextmanager
def mistaken(calls: list[Call], i: int, mistake: Mistake) -> Iterator[None]:
    """Let some calls of an op make a mistake inside the block."""
    nodes = [call.result._node for call in calls]
    try:
        for call, node in zip(calls, nodes):
            node.op = Mistaken(call, i, mistake)
        yield
    finally:
        for node in nodes:
            node.op = node.op.op


def other_mistakes(group: list[Call], i: int) -> Iterator[tuple[str, Mistake]]:
    """Yield mistakes of a step other than that its contribution is counted too often."""
    y = array_of(group[0].result)
    if y.ndim > 1 and y.shape[-1] == y.shape[-2]:
        text = "is that of g with its last axes exchanged"
        yield text, lambda call, pull, g: pull(np.swapaxes(g, -1, -2))
    for by, which in ((1, "one before"), (-1, "one after")) if len(group) > 1 else ():
        earlier = dict(zip(map(id, group), group[1:] if by == 1 else [None, *group]))

        def of_neighbour(call: Call, pull: Pull, g: Array, calls=earlier) -> Array:
            if (other := calls.get(id(call))) is None:
                return missing(call, pull, g)
            node = other.result._node
            return dict(getattr(node.op, "op", node.op).pull(other.result, g))[i]

        yield f"reads the values of the {which} in the loop", of_neighbour
    others = [j for j, v in enumerate(group[0].inputs) if j != i and array_of(v).dtype.kind == "f"]
    known: dict[str, Callable[[Call], Array]] = {
        "y": lambda call: array_of(call.result),
        "x": lambda call: array_of(call.inputs[i]),
    } | {f"operand {j}": lambda call, j=j: array_of(call.inputs[j]) for j in others}
    for (of, value), (text, change) in product(known.items(), MAPS.items()):
        name = text.format(of)
        factor = partial(known_factor, value, change)
        yield f"has a needless factor {name}", partial(multiplied, factor)
        yield f"lacks a factor {name}", partial(divided, factor)


def known_factor(value: Callable[[Call], Array], change: Callable[[Array], Array], call: Call):
    """Return a factor that is computed from a value of a step."""
    return change(value(call))


def multiplied(factor: Callable[[Call], Array], call: Call, pull: Pull, g: Array) -> Array:
    """Return a contribution with a factor too many."""
    return factor(call) * pull(g)


def divided(factor: Callable[[Call], Array], call: Call, pull: Pull, g: Array) -> Array:
    """Return a contribution without a factor."""
    return pull(g) / factor(call)


def in_steps(f: Any) -> Kernel | None:
    """Return the function as one that this package differentiates, if it can."""
    reference = f.reference
    if reference is not None and reference.library == "numpy" and reference.vjp is None:
        return reference
    with suppress(Exception):
        if isinstance(f, Kernel):
            function = f.f or (lambda *inputs: f.vjp[0](*inputs)[0])
        else:
            function = partial(f.op_call.op.forward, **f.op_call.settings)
        plain = Kernel(function, None, f.operands, "float64")
        rounding = max(1e-9, 64 * f.precision)
        if all(map(partial(agree, rtol=rounding, atol=rounding), plain.values, f.values)):
            return plain
    return None


def edges_of(calls: list[Call], single: bool = True) -> Iterator[tuple[list[Call], int]]:
    """Yield each step with the number of an operand, and the steps of a loop together.

    If not `single`, the steps of a loop are yielded only together.
    """
    loops: dict[Any, list[Call]] = {}
    for call in calls:
        shapes = tuple(getattr(x, "shape", ()) for x in call.inputs)
        loops.setdefault((call.name, call.place, shapes), []).append(call)
        if single:  # all means, which may have been divided by the same wrong number
            loops.setdefault(call.name, []).append(call)
    steps = [[call] for call in calls if single]
    for group in [*steps, *(g for g in loops.values() if len(g) > 1 or not single)]:
        for i, x in enumerate(group[0].inputs):
            if getattr(x, "_tracked", False):
                yield group, i


def wrong_step(
    f: OpSubject | Kernel, which: int, simple: bool = True, if_missing: str = "wrong term"
) -> str | None:
    """Find a step whose VJP explains the wrong gradient of an input.

    If `simple`, its contribution is missing or counted too often, else it has another mistake.
    `if_missing` is the kind of mistake if it is missing.
    """
    plain = in_steps(f)
    if plain is None or f.inputs[which].size < 3:
        return None
    position = plain.checked.index(f.checked[which])
    with plain.backend.watch() as calls:
        run = plain.run()
    calls = [call for call in calls if call.result._node][: -MOST - 1 : -1]  # the last first

    def gradient(group: list[Call], i: int, mistake: Mistake) -> Array:
        with mistaken(group, i, mistake):
            g = plain.pull(f.cotangents, run)[position]
        return np.zeros(f.inputs[which].shape) if g is None else g

    right = gradient([], 0, missing)
    limit, error = max(2e-3, 24 * f.precision), f.pull(f.cotangents)[which] - right
    found: list[tuple[bool, int, str]] = []
    with ExitStack() as ignored:
        for group, i in edges_of(calls):
            if greatest(gradient(group, i, missing) - right) <= 1e-9 * greatest(right):
                # It has no effect, as that of the maximum in a stable softmax.
                ignored.enter_context(mistaken(group, i, missing))
        edges = [*edges_of(calls, single=simple)]
        for group, i in edges if simple else edges[::-1]:
            for text, mistake in [("", missing)] if simple else other_mistakes(group, i):
                try:
                    term, share = gradient(group, i, mistake) - right, 1.0
                except ValueError:  # the shapes do not fit
                    continue
                if simple:
                    share = float(np.sum(term * error) / (np.sum(term**2) or np.inf))
                    text = how_often(1 - share)
                off = float(np.linalg.norm(error - share * term) / np.linalg.norm(error))
                explained = share * term
                if off < limit and everywhere(error, explained, limit / 20 * greatest(right)):
                    kind = if_missing if text == "is missing" else "wrong term"
                    finding = (
                        f"{kind}: the gradient that passes back through "
                        f"{name_of(group, i, calls if simple else [])}, "
                        f"{text}{WHERE * ('factor' in text)}; the rest is right."
                    )
                    if not simple:
                        return finding
                    found.append(("times" in text, int(10 * off / limit), finding))
    return min(found, key=lambda one: one[:2], default=(0, 0, None))[2]


def name_of(group: list[Call], i: int, calls: list[Call]) -> str:
    """Name an operand of a step by what computed it, if these calls use it once, or by the step."""
    step = group[0]
    if len({call.place for call in group}) > 1:
        return f"{step.name!r}, wherever it is called"
    uses = [c for c in calls for x in c.inputs if x is step.inputs[i]]
    makers = [c for c in calls if c.result is step.inputs[i]]
    if makers and len(uses) == 1:
        return f"{makers[0].name!r}, called at {quoted(*makers[0].place)}"
    several = f" to its operand {i}" * (len(step.inputs) > 1)
    return f"{step.name!r}{several}, called at {quoted(*step.place)}"


WHERE = ", where y is its result, x this operand, and the others have their numbers"


def everywhere(error: Array, term: Array, limit: float) -> bool:
    """Return whether a term explains the error of each element, not only of the largest ones."""
    return bool((np.abs(error - term) <= 0.05 * np.abs(error) + limit).all())


def how_often(times: float) -> str:
    """Say how often a term is counted that should be counted once."""
    words = {0: "is missing", 2: "is counted twice", -1: "is of the wrong sign"}
    if abs(times - round(times)) < 0.02 and round(times) in words:
        return words[round(times)]
    return f"is {times:.4g} times what it should be"
