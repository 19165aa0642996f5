"""Values that appear by mistake in the place of others: common factors, and special operands."""

from __future__ import annotations

from functools import partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from .report import Array

# Common factors of derivatives, as functions of an input, an output or an operand.
MAPS: dict[str, Any] = {
    "{}": np.positive, "{}^2": np.square, "(1 - {})": lambda v: 1 - v, "(1 + {})": lambda v: 1 + v,
    "({0} (1 - {0}))": lambda v: v - v * v, "(1 - {}^2)": lambda v: 1 - v * v,
    "(1 + {}^2)": lambda v: 1 + v * v, "exp({})": np.exp, "tanh({})": np.tanh,
    "sigmoid({})": lambda v: 1 / (1 + np.exp(-v)),
}  # fmt: skip


def names_of(operands, word: str) -> list[str]:
    """Return names for the operands of a function: x, if there is only one."""
    return [f"{word} {k}" for k in range(len(operands))] if len(operands) > 1 else ["x"]


def rearrangements(a: Array):
    """Yield ways to put elements of an array at other indices by mistake.

    Each is a kind of mistake, what was done, a function that does it, and a mask of the elements
    that do not come from the other end of an axis. Integers, as indices, may also be off by one.
    """
    everywhere = np.ones(a.shape, bool)
    for order in list(permutations(range(a.ndim)))[1:] if a.ndim < 5 else ():
        moved = [k for k, axis in enumerate(order) if k != axis]
        how = f"with its axes in the order {order}"
        if len(moved) == 2:
            how = f"with axes {moved[0]} and {moved[1]} exchanged"
            how += " (.mT)" * (moved == [a.ndim - 2, a.ndim - 1])
        yield "transposed", how, partial(np.transpose, axes=order), everywhere
    for n in range(1, a.ndim + 1):
        for some in combinations(range(a.ndim), n):
            how = f"reversed along axis {' and '.join(map(str, some))}"
            yield "reversed", how, partial(np.flip, axis=some), everywhere
    for axis, by in product(range(a.ndim), (1, -1)):
        how = f"moved by {by} along axis {axis}"
        inside = np.indices(a.shape)[axis] != (0 if by == 1 else a.shape[axis] - 1)
        yield "shifted by one", how, partial(np.roll, shift=by, axis=axis), inside
    for by in (1, -1) if a.dtype.kind == "i" else ():
        yield "shifted by one", f"plus {by}", partial(np.add, by), everywhere


LEFT_OUT = (
    "it leaves out a term with this operand, or uses the result y where the value before the "
    "operand is added belongs"
)
BEFORE_BOTH = (
    "it uses the result y where the value before these two belongs, such as the normalised x"
)
MISPLACED = (
    "the operand is a factor in the wrong place, such as outside a sum, or the result y is used "
    "where the value before this factor belongs"
)
NORMAL = {  # what an operand has, and what it means that the VJP is right then
    "mean 0": "a mean along this axis is left out, or subtracted where it should not be",
    "mean 0 and variance 1": "it is used where its normalised value belongs, or a division by the "
    "standard deviation or the root mean square is left out or repeated",
}


def special_values(operands, own: int, elementwise: bool):
    """Yield a kind, special operands by position, and what it means that a VJP is right for them.

    `operands` has a position and a value for each name. `own` is the position of the input with a
    wrong gradient.
    """
    others = [(name, k, a) for name, (k, a) in operands.items() if k != own and a.ndim]
    for name, k, a in others:
        if a.ndim < dict(operands.values())[own].ndim:
            yield "operand misplaced", {k: np.ones_like(a)}, f"{name} is all ones", MISPLACED
    for name, k, a in others:
        yield "wrong value", {k: np.zeros_like(a)}, f"{name} is all zeros", LEFT_OUT
    for (scale, j, b), (shift, k, a) in permutations(others, 2):
        values = {j: np.ones_like(b), k: np.zeros_like(a)}
        yield "wrong value", values, f"{scale} is all ones and {shift} is all zeros", BEFORE_BOTH
    for (name, (k, a)), (what, why) in product(operands.items(), NORMAL.items()):
        for axis in [axis for axis, n in enumerate(a.shape) if n > 2 and not elementwise]:
            normal = a - a.mean(axis, keepdims=True)
            if "variance" in what:
                normal /= a.std(axis, keepdims=True)
            yield "wrong value", {k: normal}, f"{name} has {what} along axis {axis}", why
