"""Find the step of a function whose VJP a wrong gradient gets wrong.

If the function's steps are NumPy's functions, this package can differentiate it. Then the VJP of
each step makes one mistake after another, and the gradient that comes out is compared with the
wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from ..engine import Op, tensor_of
from ..errors import quoted
from .backend import Array, Call, array_of
from .kernel import Kernel
from .report import agree, greatest
from .subject import OpSubject
from .values import MAPS, names_of, rearrangements

MOST = 80  # of the steps, from the result on
# From a step, the number of an operand, its right contribution and g to a wrong contribution.
Mistake = Callable[[Call, int, Array, Array], Array]
UPSIDE_DOWN = "mask or index"
WHERE = ", where y is its result"


class Mistaken(Op):
    """The op of a step that makes a mistake in its contribution to operand i, or to all."""

    def __init__(self, call: Call, i: int | None, mistake: Mistake) -> None:
        op = call.result._node.op
        vars(self).update(vars(op))
        self.adds_in_place, self.trusted = None, False
        self.op, self.call, self.i, self.mistake = op, call, i, mistake

    def pull(self, y, g, *options):
        wrong = lambda i, c: self.mistake(self.call, i, c, g) if self.i in (i, None) else c
        return [(i, wrong(i, c)) for i, c in self.op.pull(y, g, *options)]


missing: Mistake = lambda call, i, contribution, g: np.zeros_like(contribution)


# ---- mistakes of a step other than that its contribution is counted too often


def other_mistakes(group: list[Call], i: int) -> Iterator[tuple[str, str, Mistake]]:
    """Yield the kinds and texts of mistakes in the contribution to one operand."""
    values = values_of(group[0])
    for kind, how, change, _ in rearrangements(values["y"]):
        yield kind, f"is that of g {how}", partial(of_other_g, change)
    for kind, how, change, inside in rearrangements(array_of(group[0].inputs[i])):
        if kind == "shifted by one":
            yield kind, f"is {how}", partial(shifted, change, inside)
    orders = ("one before", group), ("one after", group[::-1])
    for which, calls in orders if len(group) > 2 else ():
        mistake = partial(of_neighbour, {id(a): b for a, b in pairwise(calls)})
        yield "wrong value", f"reads the values of the {which} in the loop", mistake
    for (of, v), (form, change) in product(values.items(), MAPS.items()):
        if v.dtype.kind == "f":
            name = form.format(of) + WHERE
            yield (
                "wrong factor",
                f"has a needless factor {name}",
                partial(with_factor, of, change, 1),
            )
            yield "wrong factor", f"lacks a factor {name}", partial(with_factor, of, change, -1)
    for wrong, right in product(values, values):
        a, b = values[wrong], values[right]
        mistake = partial(computed_with, wrong, right)
        if wrong == right and b.dtype == bool:
            yield UPSIDE_DOWN, f"reads {right} upside down{WHERE}", mistake
        elif wrong != right and a.shape == b.shape and a.dtype == b.dtype:
            yield "wrong value", f"has {wrong} where {right} belongs{WHERE}", mistake


def of_other_g(change, call, i, c, g):
    """Return the contribution of another g."""
    return pulled(call, i, change(g))


def of_neighbour(others, call, i, c, g):
    """Return the contribution of another step of the loop."""
    return pulled(others[id(call)], i, g) if id(call) in others else np.zeros_like(c)


def shifted(change, inside, call, i, c, g):
    """Return the contribution moved along an axis, with zeros at the border."""
    return inside * change(c)


def with_factor(of, change, power, call, i, c, g):
    """Return the contribution with a factor too many or too few."""
    return c * change(values_of(call)[of]) ** power


def pulled(call: Call, i: int, g: Array, y=None) -> Array:
    """Return the right contribution of a step to the gradient of operand i."""
    op = call.result._node.op
    return dict(getattr(op, "op", op).pull(call.result if y is None else y, g))[i]


def values_of(call: Call) -> dict[str, Array]:
    """Return the operands and the result of a step, by name."""
    names = [*names_of(call.inputs, "operand"), "y"]
    return dict(zip(names, map(array_of, [*call.inputs, call.result])))


def computed_with(wrong, belongs, call, i, c, g):
    """Return a contribution that is computed with another value of an operand or of the result."""
    values, node = values_of(call), copy(call.result._node)
    values[belongs] = ~values[wrong] if wrong == belongs else values[wrong]
    *node.inputs, y = map(tensor_of, values.values())
    return pulled(call, i, g, tensor_of(y._data, node))


# ---- a function and its steps


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


def edges_of(calls: list[Call], single: bool = True) -> list[tuple[list[Call], int]]:
    """Return each step with the number of an operand, and the steps of a loop together.

    If not `single`, the steps of a loop are returned only together.
    """
    loops: dict[Any, list[Call]] = {}
    for call in calls:
        shapes = tuple(getattr(x, "shape", ()) for x in call.inputs)
        loops.setdefault((call.name, call.place, shapes), []).append(call)
        if single:  # all means, which may have been divided by the same wrong number
            loops.setdefault(call.name, []).append(call)
    groups = [[call] for call in calls if single]
    groups += [group for group in loops.values() if len(group) > 1 or not single]
    return [
        (group, i)
        for group in groups
        for i, x in enumerate(group[0].inputs)
        if getattr(x, "_tracked", False)
    ]


class Steps:
    """The steps of a function, and the wrong gradient of one of its inputs."""

    def __init__(self, plain: Kernel, f: OpSubject | Kernel, which: int) -> None:
        self.plain, self.cotangents = plain, f.cotangents
        self.which = plain.checked.index(f.checked[which])
        self.run, calls = plain.run_in_steps(plain.without_effect)
        self.calls = [c for c in calls if c.result._node][: -MOST - 1 : -1]  # the last first
        self.limit, self.right = max(2e-3, 24 * f.precision), np.array(0)
        self.right = self.effect([], 0, missing)
        self.error = np.ravel(f.pull(f.cotangents)[which]) - self.right

    def effect(self, group: list[Call], i: int | None, mistake: Mistake) -> Array:
        """Return what a mistake in some steps adds to the flattened gradient."""
        nodes = [call.result._node for call in group]
        try:
            for call, node in zip(group, nodes):
                node.op = Mistaken(call, i, mistake)
            g = self.plain.pull(self.cotangents, self.run)[self.which]
        finally:
            for node in nodes:
                node.op = node.op.op
        return np.ravel(0 * self.plain.inputs[self.which] if g is None else g) - self.right

    def off(self, explained: Array) -> float:
        """Return how much of the error is left, as a part of what may be, or else infinity."""
        floor = self.limit / 20 * greatest(self.right)
        off = np.linalg.norm(self.error - explained) / np.linalg.norm(self.error) / self.limit
        return float(off) if off < 1 and everywhere(self.error, explained, floor) else np.inf


def steps_of(f: OpSubject | Kernel, which: int) -> Steps | None:
    """Return the steps of a function, if this package can differentiate it."""
    plain = in_steps(f) if f.inputs[which].size > 2 else None
    return Steps(plain, f, which) if plain else None


def wrong_number(steps: Steps, if_missing: str = "wrong term", weights: int = 1) -> str | None:
    """Find a step whose contribution is counted too often or not at all, or two that are added.

    `if_missing` is the kind of mistake if it is missing. `weights` are the most numbers that may be
    neither 0, 1, 2 nor -1, as two fit many gradients.
    """
    found: list[tuple[tuple, str]] = []
    edges = edges_of(steps.calls)
    terms = [steps.effect(group, i, missing) for group, i in edges]
    pairs = [(k, k + 1) for k, (a, b) in enumerate(pairwise(edges)) if a[0] is b[0]]
    for numbers in [*zip(range(len(edges))), *pairs]:
        columns = np.stack([terms[k] for k in numbers], axis=-1)
        shares = np.linalg.lstsq(columns, steps.error)[0]
        off = steps.off(columns @ shares)
        texts = [how_often(1 - share) for share in shares]
        several = sum("times" in text for text in texts)
        if off < 1 and several <= weights:
            names = [name_of(*edges[k], steps.calls * (len(numbers) == 1)) for k in numbers]
            text = texts[0]
            if len(names) > 1:
                text += f", and the gradient that passes back through {names[1]}, {texts[1]}"
            kind = if_missing if texts == ["is missing"] else "wrong term"
            found.append(((len(names), several, int(10 * off)), sentence(kind, names[0], text)))
    return min(found, key=lambda one: one[0], default=(0, None))[1]


def wrong_value(steps: Steps) -> str | None:
    """Find a step whose contribution has another mistake."""
    for group, i in edges_of(steps.calls, single=False)[::-1]:
        for kind, text, mistake in other_mistakes(group, i):
            which = None if kind == UPSIDE_DOWN else i  # all operands share a mask
            with suppress(Exception):  # the shapes do not fit
                if steps.off(steps.effect(group, which, mistake)) < 1:
                    return sentence(kind, name_of(group, i, []), text)
    return None


def sentence(kind: str, name: str, text: str) -> str:
    """Say what is wrong with a step."""
    return f"{kind}: the gradient that passes back through {name}, {text}; the rest is right."


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


def everywhere(error: Array, term: Array, limit: float) -> bool:
    """Return whether a term explains the error of each element, not only of the largest ones."""
    return bool((np.abs(error - term) <= 0.05 * np.abs(error) + limit).all())


def how_often(times: float) -> str:
    """Say how often a term is counted that should be counted once."""
    words = {0: "is missing", 2: "is counted twice", -1: "is of the wrong sign"}
    if abs(times - round(times)) < 0.02 and round(times) in words:
        return words[round(times)]
    return f"is {times:.4g} times what it should be"
