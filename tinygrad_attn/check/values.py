"""Values that appear by mistake in the place of others: common factors, and special operands."""

from __future__ import annotations

from functools import partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

# Common factors of derivatives, as functions of an input, an output or an operand.
MAPS: dict[str, Any] = {
    "{}": np.positive, "{}^2": np.square, "(1 - {})": lambda v: 1 - v, "(1 + {})": lambda v: 1 + v,
    "({0} (1 - {0}))": lambda v: v - v * v, "(1 - {}^2)": lambda v: 1 - v * v,
    "(1 + {}^2)": lambda v: 1 + v * v, "exp({})": np.exp, "tanh({})": np.tanh,
    "sigmoid({})": lambda v: 1 / (1 + np.exp(-v)),
}  # fmt: skip


def rearrangements(shape: tuple[int, ...]):
    """Yield ways to put elements at other indices by mistake.

    Each is a kind of mistake, what was done, a function that does it, and a mask of the elements
    that do not come from the other end of an axis.
    """
    axes, everywhere = len(shape), np.ones(shape, bool)
    for order in list(permutations(range(axes)))[1:] if axes < 5 else ():
        moved = [k for k, axis in enumerate(order) if k != axis]
        how = f"with its axes in the order {order}"
        if len(moved) == 2:
            how = f"with axes {moved[0]} and {moved[1]} exchanged"
            how += " (.mT)" * (moved == [axes - 2, axes - 1])
        yield "transposed", how, partial(np.transpose, axes=order), everywhere
    for n in range(1, axes + 1):
        for some in combinations(range(axes), n):
            how = f"reversed along axis {' and '.join(map(str, some))}"
            yield "reversed", how, partial(np.flip, axis=some), everywhere
    for axis, by in product(range(axes), (1, -1)):
        how = f"moved by {by} along axis {axis}"
        border = 0 if by == 1 else shape[axis] - 1
        inside = np.indices(shape)[axis] != border
        yield "shifted by one", how, partial(np.roll, shift=by, axis=axis), inside


NORMAL = {  # what an operand has, a change, and what it means
    "mean 0": (
        lambda a, axis: a - a.mean(axis, keepdims=True),
        "a mean along this axis is left out, or subtracted where it should not be",
    ),
    "mean 0 and variance 1": (
        lambda a, axis: (a - a.mean(axis, keepdims=True)) / a.std(axis, keepdims=True),
        "it is used where its normalised value belongs, or a division by the standard deviation "
        "or the root mean square is left out or repeated",
    ),
}


def special_values(operands, own: int, elementwise: bool):
    """Yield what it means that a VJP is right only for special operands, and these operands.

    `operands` has a position and a value for each name, and the special ones are given by position.
    `own` is the position of the input with a wrong gradient.
    """
    others = [(name, k, a) for name, (k, a) in operands.items() if k != own and a.ndim]
    for name, k, a in others:
        yield (
            f"wrong value: the VJP is right if {name} is all zeros, and wrong for other values: it "
            f"leaves out a term with {name}, or uses the result y where the value before {name} is "
            "added belongs.",
            {k: np.zeros_like(a)},
        )
    for (scale, j, b), (name, k, a) in permutations(others, 2):
        yield (
            f"wrong value: the VJP is right if {scale} is all ones and {name} is all zeros, "
            "and wrong for other values: it uses the result y where the value before these "
            "two belongs, such as the normalised x.",
            {j: np.ones_like(b), k: np.zeros_like(a)},
        )
    for (name, (k, a)), (special, (change, why)) in product(operands.items(), NORMAL.items()):
        for axis in [axis for axis, n in enumerate(a.shape) if n > 2 and not elementwise]:
            yield (
                f"wrong value: the VJP is right if {name} has {special} along axis {axis}, and "
                f"wrong for other values: {why}.",
                {k: change(a, axis)},
            )
