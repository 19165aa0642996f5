"""Find the step of a function whose VJP a wrong gradient gets wrong.

If the function's steps are NumPy's functions, this package can differentiate it. Then the VJP of
each step makes one mistake after another, and the gradient that comes out is compared with the
wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from ..engine import Op
from ..errors import quoted
from .backend import Array, Call, array_of
from .kernel import Kernel
from .report import agree, greatest
from .subject import OpSubject
from .values import factors_of

MOST = 80  # of the steps, from the result on
Pull = Callable[[Array], Array]  # from g to the contribution to the gradient of one operand
Mistake = Callable[[Pull, Array], Array]  # from the right one and g to a wrong contribution


def missing(pull: Pull, g: Array) -> Array:
    """Return a contribution of zeros."""
    return np.zeros_like(pull(g))


class Mistaken(Op):
    """The op of a step that makes a mistake in its contribution to one operand."""

    def __init__(self, op: Op, i: int, mistake: Mistake) -> None:
        vars(self).update(vars(op))
        self.adds_in_place, self.trusted = None, False
        self.op, self.i, self.mistake = op, i, mistake

    def pull(self, y, g, *options):
        one = lambda g: dict(self.op.pull(y, g, *options))[self.i]
        pulled = self.op.pull(y, g, *options)
        return [(i, self.mistake(one, g) if i == self.i else c) for i, c in pulled]


@contextmanager
def mistaken(calls: list[Call], i: int, mistake: Mistake) -> Iterator[None]:
    """Let some calls of an op make a mistake inside the block."""
    nodes = [call.result._node for call in calls]
    try:
        for node in nodes:
            node.op = Mistaken(node.op, i, mistake)
        yield
    finally:
        for node in nodes:
            node.op = node.op.op


def other_mistakes(call: Call, i: int) -> Iterator[tuple[str, Mistake]]:
    """Yield mistakes of a step other than that its contribution is counted too often."""
    y, x = array_of(call.result), array_of(call.inputs[i])
    if y.ndim > 1 and y.shape[-1] == y.shape[-2]:
        text = "is that of g with its last axes exchanged"
        yield text, lambda pull, g: pull(np.swapaxes(g, -1, -2))
    for name, v in factors_of([("y", y), ("x", x)]):
        if v.shape == x.shape:
            text = f"has a needless factor {name}, where y is its result and x this operand"
            yield text, lambda pull, g: v * pull(g)  # noqa: B023
            text = f"lacks a factor {name}, where y is its result and x this operand"
            yield text, lambda pull, g: pull(g) / v  # noqa: B023


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


def edges_of(calls: list[Call]) -> Iterator[tuple[list[Call], int]]:
    """Yield each step with the number of an operand, and the steps of a loop together."""
    places: dict[Any, list[Call]] = {}
    for call in calls:
        places.setdefault((call.name, call.place), []).append(call)
    for group in [*([call] for call in calls), *(g for g in places.values() if len(g) > 1)]:
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
        for group, i in edges_of(calls) if simple else reversed([*edges_of(calls)]):
            others = () if simple or len(group) > 1 else other_mistakes(group[0], i)
            for text, mistake in [("", missing)] if simple else others:
                term, share = gradient(group, i, mistake) - right, 1.0
                if simple:
                    share = float(np.sum(term * error) / (np.sum(term**2) or np.inf))
                    text = how_often(1 - share)
                off = float(np.linalg.norm(error - share * term) / np.linalg.norm(error))
                explained = share * term
                if off < limit and everywhere(error, explained, limit / 20 * greatest(right)):
                    kind = if_missing if text == "is missing" else "wrong term"
                    step, several = group[0], len(group[0].inputs) > 1
                    uses = [c for c in calls for x in c.inputs if x is step.inputs[i]]
                    makers = [c for c in calls if c.result is step.inputs[i]]
                    if simple and makers and len(uses) == 1:  # it is known by what computed it
                        step, several = makers[0], False
                    finding = (
                        f"{kind}: the gradient that passes back through {step.name!r}"
                        f"{f' to its operand {i}' * several}, called at {quoted(*step.place)}, "
                        f"{text}; the rest is right."
                    )
                    found.append(("times" in text, int(10 * off / limit), finding))
    return min(found, key=lambda one: one[:2], default=(0, 0, None))[2]


def everywhere(error: Array, term: Array, limit: float) -> bool:
    """Return whether a term explains the error of each element, not only of the largest ones."""
    return bool((np.abs(error - term) <= 0.05 * np.abs(error) + limit).all())


def how_often(times: float) -> str:
    """Say how often a term is counted that should be counted once."""
    words = {0: "is missing", 2: "is counted twice", -1: "is of the wrong sign"}
    if abs(times - round(times)) < 0.02 and round(times) in words:
        return words[round(times)]
    return f"is {times:.4g} times what it should be"
