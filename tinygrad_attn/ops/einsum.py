"""Einstein's summation: a product of tensors, summed over the labels that the result does not
carry.

The derivative of an einsum is an einsum again: to find the gradient of one operand, put the
gradient of the result in its place and exchange their labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from ..engine import op, sum_to
from .indexing import scatter
from .shapes import broadcast_to

_LETTERS = ascii_uppercase + ascii_lowercase
"""In the order in which NumPy numbers them, 0 to 51."""

_BIG = 1 << 12
"""From this many elements on, NumPy's search for a good order of contraction (and BLAS) is worth
its 30 microseconds.
"""
_BETWEEN = 1 << 26
"""Three operands and more are contracted two at a time, where what is in between has at most so
many elements (256 MB in float32), or no more than the largest operand or result, which is NumPy's
own bound; "bi,bj,ijk->bk" would be one loop over four labels then, ten times as slow.
"""


def _size(result, labels, operands):
    lengths = {
        label: n
        for names, x in zip(labels, operands)
        for label, n in zip(names, np.shape(x))
        if n != 1
    }
    return math.prod(lengths.get(label, 1) for label in result)


def _is_product(operands, labels, result):
    """Whether two operands share the labels that are summed, and no others: that is one product of
    two matrices.
    """
    if len(operands) != 2 or set(labels[0]) ^ set(labels[1]) != set(result):
        return False
    a, b = (
        dict(zip(names, np.shape(x), strict=True))
        for names, x in zip(labels, operands, strict=True)
    )
    shared = a.keys() & b.keys()
    twice = len(a) + len(b) < len(labels[0] + labels[1])
    return bool(shared) and not twice and all(a[k] == b[k] for k in shared)


def _product(operands, labels, result):
    """(kept labels, summed labels) @ (summed labels, kept labels).

    What does not lie in memory like that is copied, as are the windows of a convolution, and a copy
    is fast if its last axis is long and steps from one number to its neighbour: the width of a
    picture, not that of a window. The side on which the larger operand stands decides which of its
    axes is the last.
    """
    (small, s), (large, l) = sorted(
        zip(operands, labels, strict=True), key=lambda pair: np.size(pair[0])
    )
    _, _, last = min(
        (abs(step), -n, k) for k, n, step in zip(l, large.shape, large.strides, strict=True)
    )
    (a, p), (b, q) = ((large, l), (small, s)) if last in s else ((small, s), (large, l))
    summed = [k for k in l if k in s]
    y = np.tensordot(a, b, ([p.index(k) for k in summed], [q.index(k) for k in summed]))
    kept = [k for k in p + q if k not in summed]
    return y.transpose([kept.index(k) for k in result])


@op(broadcasts=True)
def einsum(*operands, labels, result):
    """y[result] = sum of the product of the operands: `labels` has one string of letters for each
    operand, such as ("ij", "jk"), "ik".
    """
    big = len(operands) > 1 and any(np.size(x) >= _BIG for x in operands)
    # NumPy would add float16 up in float16, in which 2,048 + 1 is 2,048.
    half = np.result_type(*operands) == np.float16
    if big and not half and _is_product(operands, labels, result):
        return _product(operands, labels, result)
    order = (
        ("greedy", max(_BETWEEN, _size(result, labels, operands), *map(np.size, operands)))
        if big
        else False
    )
    y = np.einsum(
        f"{','.join(labels)}->{result}",
        *operands,
        optimize=order,
        **({"dtype": np.float32} if half else {}),
    )
    return y.astype(np.float16) if half else y


@einsum.vjp_all
def _swap_labels(g, y, *operands, labels, result, needs):
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
    if reached != distinct:  # a label that only this operand has was summed
        part = part.reshape(tuple(sizes.get(a, 1) for a in distinct))
    full = tuple(own[a] if sizes.get(a, 1) == 1 else sizes[a] for a in distinct)
    # Along a label that was summed, or along which another operand was repeated, g is the same.
    if part.shape != full:
        part = broadcast_to(part, shape=full)
    if distinct != mine:  # a label twice in one operand reads its diagonal
        part = sum_to(part, tuple(own.values()))  # a diagonal of one element may have been repeated
        grid = dict(zip(distinct, np.ogrid[tuple(map(slice, own.values()))], strict=True))
        part = scatter(part, index=tuple(grid[a] for a in mine), shape=shape)
    return part


def parse(arguments: Sequence[Any], ndim: Any) -> tuple[list[Any], tuple[str, ...], str]:
    """np.einsum's arguments, `("ij,jk->ik", a, b)` or `(a, [0, 1], b, [1, 2], [0, 2])`, as
    operands, their labels, and the result's.

    `...` and a result that is left out are spelled out. Raises ValueError for labels that do not
    fit the operands.
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
            f"einsum has {len(names)} groups of labels in {arguments[0]!r} for {len(operands)} "
            "operands; separate the groups with commas, one for each operand."
        )
    spare = [a for a in _LETTERS if a not in left + right]
    hidden = []  # of each operand: how many axes its '...' stands for
    for x, group in zip(operands, names, strict=True):
        named = len(group.replace("...", ""))
        if named > ndim(x) or named < ndim(x) and "..." not in group:
            raise ValueError(
                f"einsum labels {group!r} name {named} axes of an operand that has {ndim(x)}."
            )
        hidden.append(ndim(x) - named)
    dots = "".join(spare[: max(hidden, default=0)])
    labels = tuple(
        group.replace("...", dots[len(dots) - n :]) for group, n in zip(names, hidden, strict=True)
    )
    if arrow:
        if dots and "..." not in right:
            raise ValueError(
                f"einsum: '...' stands for axes of the Tensors that the result {right!r} leaves "
                "out. Write '...' there too, or a letter for each axis that is to be summed over."
            )
        return operands, labels, right.replace("...", dots)
    letters = "".join(names).replace("...", "")
    return (
        operands,
        labels,
        dots + "".join(sorted(a for a in set(letters) if letters.count(a) == 1)),
    )


def _letters(sublist: Sequence[Any]) -> str:
    return "".join("..." if item is Ellipsis else _letter(item) for item in sublist)


def _letter(number: Any) -> str:
    try:
        # NumPy takes np.array(3) for 3, and True for no label.
        place = -1 if isinstance(number, bool) else index(number)
    except TypeError:
        place = -1
    if not 0 <= place < len(_LETTERS):
        raise ValueError(
            f"einsum labels in a list are whole numbers from 0 to {len(_LETTERS) - 1}, or ...; got "
            f"{number!r}."
        )
    return _LETTERS[place]
