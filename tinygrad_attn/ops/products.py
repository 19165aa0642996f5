"""Products that sum over shared axes: the matrix product and Einstein summation.

The VJP of an einsum is another einsum. To get the gradient of an operand, replace the operand with
the gradient of the output, and swap their labels.
"""

import math
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from ..engine import op, sum_to
from .shapes import broadcast_to, scatter

_LETTERS = ascii_uppercase + ascii_lowercase  # in the order in which NumPy numbers them
_OPTIMIZED = 1 << 12  # size of an operand from which NumPy's search for a good order pays off


@op(broadcasts=True)
def matmul(a, b):
    """y = a @ b: (..., M, K), (..., K, N) -> (..., M, N); 1-D operands as in NumPy."""
    return a @ b


def _rows(x):
    """Fold all leading axes into one: (..., N) -> (R, N)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _matmul_by_left(g, _y, _a, b):
    if b.ndim == 1:
        return g.reshape(*g.shape, 1) * b
    if _a.ndim == 1:
        left = g.reshape(*g.shape[:-1], 1, g.shape[-1]) @ b.mT
        return left.reshape(*left.shape[:-2], left.shape[-1])
    return g @ b.mT


def _matmul_by_right(g, _y, a, _b):
    if a.ndim == 1:
        if _b.ndim == 1:
            return g * a
        a, g = a.reshape(1, -1), g.reshape(*g.shape[:-1], 1, g.shape[-1])  # a row vector
    if _b.ndim == 1:
        return (_rows(a).mT @ g.reshape(-1, 1)).reshape(_b.shape)
    if _b.ndim == 2:  # one matrix for all rows: the product of folded rows sums over them
        return _rows(a).mT @ _rows(g)
    return a.mT @ g


matmul.vjp(_matmul_by_left, _matmul_by_right)


@op(broadcasts=True)
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


def parse(arguments, ndim):
    """Split np.einsum's arguments into operands, their labels, and the labels of the result.

    Accepts `("ij,jk->ik", a, b)` and `(a, [0, 1], b, [1, 2], [0, 2])`. Replaces `...` with letters
    and fills in an omitted result. Raises ValueError if the number of groups is wrong, or if the
    result lacks the operands' `...`. `np.einsum` checks the rest.
    """
    if not isinstance(arguments[0], str):
        text = ",".join(map(_letters, arguments[1::2]))
        if len(arguments) % 2:
            text += "->" + _letters(arguments[-1])
        arguments = [text, *arguments[: len(arguments) // 2 * 2 : 2]]
    text, *operands = arguments
    left, arrow, right = text.replace(" ", "").partition("->")
    groups = left.split(",")
    if len(groups) != len(operands):
        raise ValueError(f"einsum got {len(groups)} groups of labels for {len(operands)} operands.")
    letters = left.replace("...", "").replace(",", "")
    hidden = [  # for each operand, the number of axes that its '...' stands for
        ndim(x) - len(group.replace("...", "")) if "..." in group else 0
        for x, group in zip(operands, groups)
    ]
    spare = [a for a in _LETTERS if a not in left + right]
    dots = "".join(spare[: max([0, *hidden])])
    labels = tuple(g.replace("...", dots[len(dots) - n :]) for g, n in zip(groups, hidden))
    if dots and arrow and "..." not in right:
        raise ValueError("einsum needs '...' in the result, because the operands have axes for it.")
    once = "".join(sorted(a for a in set(letters) if letters.count(a) == 1))
    return operands, labels, right.replace("...", dots) if arrow else dots + once


def _letters(sublist):
    return "".join("..." if item is Ellipsis else _LETTERS[item] for item in sublist)
