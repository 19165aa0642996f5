"""Products that sum over shared axes: the matrix product and Einstein summation.

The VJP of an einsum is another einsum. To get the gradient of an operand, replace the operand with
the gradient of the output, and swap their labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from ..engine import op, sum_to
from .shapes import broadcast_to, float16_in_float32, scatter

_LETTERS = ascii_uppercase + ascii_lowercase
"""The letters in the order in which NumPy numbers them, from 0 to 51."""

_OPTIMIZED = 1 << 12
"""The smallest operand size for which NumPy's search for a good contraction order pays off."""


@op(broadcasts=True)
def matmul(a, b):
    """y = a @ b: (..., M, K), (..., K, N) -> (..., M, N); 1-D operands as in NumPy."""
    return a @ b


def _rows(x):
    """Fold all leading axes into one: (..., N) -> (R, N)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _matmul_by_left(g, _y, a, b):
    if b.ndim == 1:
        return g.reshape(*g.shape, 1) * b
    if a.ndim == 1:
        left = g.reshape(*g.shape[:-1], 1, g.shape[-1]) @ b.mT
        return left.reshape(*left.shape[:-2], left.shape[-1])
    return g @ b.mT


def _matmul_by_right(g, _y, a, b):
    if a.ndim == 1:
        if b.ndim == 1:
            return g * a
        a, g = a.reshape(1, -1), g.reshape(*g.shape[:-1], 1, g.shape[-1])  # a row vector
    if b.ndim == 1:
        return (_rows(a).mT @ g.reshape(-1, 1)).reshape(b.shape)
    if b.ndim == 2:  # one matrix for all rows: the product of folded rows sums over them
        return _rows(a).mT @ _rows(g)
    return a.mT @ g


matmul.vjp(_matmul_by_left, _matmul_by_right)


@op(broadcasts=True)
@float16_in_float32
def einsum(*operands, labels, result):
    """y[result] = the product of the operands, summed over the labels that are not in `result`.

    `labels` has one string of letters for each operand, as in labels=("ij", "jk"), result="ik".
    """
    optimize = len(operands) > 1 and any(np.size(x) >= _OPTIMIZED for x in operands)
    dtype = np.result_type(*operands)
    return np.einsum(f"{','.join(labels)}->{result}", *operands, optimize=optimize, dtype=dtype)


@einsum.vjp_all
def _swap_labels(g, _y, *operands, labels, result, needs):
    return [
        _partial(g, i, operands, labels, result) if needed else None
        for i, needed in enumerate(needs)
    ]


def _partial(g, i, operands, labels, result):
    others = [*operands[:i], *operands[i + 1 :]]
    known = [*labels[:i], *labels[i + 1 :], result]
    mine, shape = labels[i], operands[i].shape
    distinct = "".join(dict.fromkeys(mine))
    reached = "".join(a for a in distinct if any(a in names for names in known))
    part = einsum(*others, g, labels=tuple(known), result=reached)
    sizes = dict(zip(reached, part.shape, strict=True))
    own = {a: shape[mine.index(a)] for a in distinct}
    if reached != distinct:  # labels found only in this operand were summed over
        part = part.reshape(tuple(sizes.get(a, 1) for a in distinct))
    full = tuple(own[a] if sizes.get(a, 1) == 1 else sizes[a] for a in distinct)
    # g is constant along an axis that was summed over or along which another operand was repeated.
    if part.shape != full:
        part = broadcast_to(part, shape=full)
    if distinct != mine:  # a label that occurs twice in one operand reads its diagonal
        part = sum_to(part, tuple(own.values()))  # a diagonal of one element may have been repeated
        grid = dict(zip(distinct, np.ogrid[tuple(map(slice, own.values()))], strict=True))
        part = scatter(part, index=tuple(grid[a] for a in mine), shape=shape)
    return part


def parse(arguments: Sequence[Any], ndim: Any) -> tuple[list[Any], tuple[str, ...], str]:
    """Split np.einsum's arguments into operands, their labels, and the labels of the result.

    Accepts `("ij,jk->ik", a, b)` and `(a, [0, 1], b, [1, 2], [0, 2])`. Replaces `...` with letters
    and fills in an omitted result. Raises ValueError for labels that do not fit the operands.
    """
    if isinstance(arguments[0], str):
        operands = list(arguments[1:])
        left, arrow, right = arguments[0].replace(" ", "").partition("->")
        names = left.split(",")
    else:
        operands = list(arguments[0 : len(arguments) // 2 * 2 : 2])
        names = [_letters(sublist) for sublist in arguments[1::2]]
        left, arrow, right = "".join(names), "", ""
        if len(arguments) % 2:
            arrow, right = "->", _letters(arguments[-1])
    if len(names) != len(operands):
        raise ValueError(
            f"einsum got {len(names)} groups of labels in {arguments[0]!r} for {len(operands)} "
            "operands; write one group for each operand, and separate the groups with commas."
        )
    spare = [a for a in _LETTERS if a not in left + right]
    hidden = []  # for each operand, the number of axes that its '...' stands for
    for x, group in zip(operands, names, strict=True):
        named = len(group.replace("...", ""))
        if named > ndim(x) or named < ndim(x) and "..." not in group:
            raise ValueError(
                f"einsum labels {group!r} name {named} axes, but the operand has {ndim(x)}."
            )
        hidden.append(ndim(x) - named)
    dots = "".join(spare[: max(hidden, default=0)])
    labels = tuple(
        group.replace("...", dots[len(dots) - n :]) for group, n in zip(names, hidden, strict=True)
    )
    if arrow:
        if dots and "..." not in right:
            raise ValueError(
                f"einsum: '...' stands for axes of the operands that the result {right!r} leaves "
                "out. Write '...' in the result too, or use a letter for each axis that is to be "
                "summed over."
            )
        return operands, labels, right.replace("...", dots)
    letters = "".join(names).replace("...", "")
    return (
        operands,
        labels,
        dots + "".join(sorted(a for a in set(letters) if letters.count(a) == 1)),
    )


def _letters(sublist: Sequence[Any]) -> str:
    return "".join("..." if item is Ellipsis else _LETTERS[item] for item in sublist)
