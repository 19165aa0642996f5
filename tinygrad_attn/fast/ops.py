"""Quicker ways of ops, for arrays on which NumPy's own function is slow, or on which a second
thread is worth its start.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from .. import ops
from ..engine import Op, sum_to
from ..engine.kernels import kernel
from . import tuning
from .engine import QuickOp, always, kernel_of
from .kernels import elementwise
from .kernels.products import product
from .kernels.rows import FAST, by_elements

# The integer as long as each floating dtype, and the zero of each: NumPy takes as long to look at a
# 0 of Python's as for the rest of a call.
BITS = {np.dtype(f"f{n}"): np.dtype(f"i{n}") for n in (2, 4, 8)}
ZERO = {dtype: np.zeros((), dtype) for dtype in BITS}
FLOATS = {dtype.type for dtype in BITS}


def quicker(
    plain: Op, fits: Any, forward: Any = None, *rules: Any, adds: Any = None, fresh: bool = False
) -> QuickOp:
    """Register a quick way of this op: for arrays that fit, another function, or other rules, or
    both.
    """
    op = QuickOp(plain, plain.forward if forward is None else forward, fits)
    op.broadcasts, op.vjps = plain.broadcasts, rules
    op.adds_in_place = adds or plain.adds_in_place
    kernel(plain)(kernel_of(plain, op))
    return op


# ---- un-broadcasting


@kernel(sum_to)
def quick_sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """A product with ones: up to twenty times as fast as NumPy's sum over rows."""
    if g.__class__ is not ndarray or g.dtype.char not in "fd":
        return NotImplemented
    lead = g.ndim - len(shape)
    if g.size <= tuning.SMALL_SUM:  # few numbers: NumPy's sum in their own dtype, and no cast
        axes = (
            *range(lead),
            *(i + lead for i, n in enumerate(shape) if n == 1 != g.shape[i + lead]),
        )
        if not axes or lead < 0:
            return g
        small = np.add.reduce(g, axes, keepdims=True)
        return small.reshape(small.shape[lead:])
    if g.size > tuning.LONG_SUM and g.size > tuning.LONG_SUM * math.prod(shape):
        return NotImplemented  # so many rows lose digits one after the other
    if not shape or lead < 0:
        return NotImplemented
    if lead and g.shape[lead:] == shape:
        many = math.prod(g.shape[:lead])
        return np.ones(many, g.dtype).dot(g.reshape(many, -1)).reshape(shape)
    return NotImplemented


# ---- choices
#
# NumPy's `where` looks at one element of the condition after the other, and where that is random,
# as in x > 0, the processor guesses wrong half the time: 3.5 ns a number. The bits of a number,
# read as an integer and multiplied by 1 or 0, are that number or 0 (the product of numbers
# themselves would be NaN for an infinite one), and what was chosen from two arrays can be joined
# bit by bit: 0.5 ns.


def chosen(g: ndarray, where: ndarray, out: ndarray | None = None) -> ndarray:
    """g where `where` (boolean) holds, else 0; g is float16, float32 or float64, and both
    broadcast.
    """
    if g.size <= tuning.WHERE_BY_CALL and out is None:
        return np.where(where, g, ZERO[g.dtype])
    bits = BITS[g.dtype]
    part = np.multiply(g.view(bits), where, out=None if out is None else out.view(bits))
    return part.view(g.dtype)


def _weighed(g: Any, weights: Any) -> Any:
    """g where the weight is not 0, times it: twenty times as fast as np.where, which it is where g
    is not finite.
    """
    part = g * weights
    return part if math.isfinite(np.vdot(part, part)) else np.where(weights == 0, 0, part)


def _share(g: Any, mine: Any, other: Any, loses: Any) -> Any:
    """The part of g that belongs to an operand of maximum or minimum: half at a tie."""
    return _weighed(g, np.where(mine == other, 0.5, ~loses).astype(g.dtype))


def is_fast(x: Any) -> bool:
    """Is this an array of float32 or float64?"""
    return x.__class__ is ndarray and x.dtype in FAST


def _two_fast(a: Any, b: Any) -> bool:
    return is_fast(a) and (b.__class__ in (int, float) or is_fast(b) and a.dtype == b.dtype)


quicker(
    ops.maximum,
    _two_fast,
    None,
    lambda g, y, a, b: _share(g, a, b, a < b),
    lambda g, y, a, b: _share(g, b, a, b < a),
)
quicker(
    ops.minimum,
    _two_fast,
    None,
    lambda g, y, a, b: _share(g, a, b, a > b),
    lambda g, y, a, b: _share(g, b, a, b > a),
)


def _clips(x: Any, low: Any, high: Any) -> bool:
    return is_fast(x) and low.__class__ in (int, float) and high.__class__ in (int, float)


quicker(
    ops.clip,
    _clips,
    None,
    lambda g, y, x, low, high: chosen(g, (x >= low) & (x <= high)),
    None,
    None,
)


def _chooses(condition: Any, a: Any, b: Any) -> bool:
    like = a if a.__class__ is ndarray else b
    if not (condition.__class__ is ndarray is like.__class__ and condition.dtype == bool):
        return False
    if max(like.size, condition.size) < tuning.WHERE_BY_BITS or like.dtype not in BITS:
        return False
    return like.ndim > 0 and all(
        x.__class__ in (int, float, bool) or x.__class__ is ndarray and x.dtype == like.dtype
        for x in (a, b)
    )


def where(condition: ndarray, a: Any, b: Any) -> ndarray:
    """np.where(condition, a, b), bit by bit."""
    dtype = a.dtype if a.__class__ is ndarray else b.dtype
    bits = BITS[dtype]
    found = [
        chosen(x, taken).view(bits)
        for x, taken in ((np.asarray(a, dtype), condition), (np.asarray(b, dtype), ~condition))
        if x.ndim or x.view(bits)  # a number 0 adds nothing
    ]
    return (found[0] if len(found) == 1 else np.bitwise_or(*found)).view(dtype)


quicker(
    ops.where,
    _chooses,
    where,
    None,
    lambda g, y, condition, a, b: where(condition, g, 0),
    lambda g, y, condition, a, b: where(condition, 0, g),
)


# ---- ReLU: one more choice on the way back


@lru_cache(maxsize=16)
def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> ndarray:
    """NumPy finds the maximum of two arrays five times as fast as that of an array and a number."""
    return np.zeros(shape, dtype)


def relu(x: Any) -> Any:
    """max(x, 0); NaN stays NaN."""
    if x.__class__ in FLOATS:  # single numbers: NumPy's maximum costs ten times the comparison
        return x.dtype.type(0) if x <= 0 else x
    if x.__class__ is not ndarray or x.dtype not in BITS or not x.ndim:
        return np.maximum(x, 0)
    if x.size <= tuning.WHERE_BY_CALL:
        return np.maximum(x, ZERO[x.dtype])
    if x.size <= tuning.CHOSEN_AT_ONCE:
        return np.maximum(x, _zeros(x.shape, x.dtype))
    zeros = _zeros((max(tuning.BLOCK, tuning.BLOCK_OF_THREADS),), x.dtype)
    return by_elements(lambda x, y: np.maximum(x, zeros[: x.size], out=y), x)[0]


def relu_rule(g: Any, y: Any, x: Any) -> Any:
    """g where y is not 0, else 0; where x is NaN it is g, as in PyTorch."""
    if y.__class__ in FLOATS:
        return g if y != 0 else g.dtype.type(0)
    if y.dtype not in BITS:
        return np.where(y != 0, g, 0)
    zero = ZERO[y.dtype]
    if y.size <= tuning.CHOSEN_AT_ONCE:
        return chosen(g, y != zero)
    return by_elements(lambda g, y, dx: chosen(g, y != zero, out=dx), g, y)[0]


quicker(ops.relu, always, relu, relu_rule)


quicker(ops.erf, lambda x: hasattr(x, "dtype") and x.ndim, lambda x: elementwise.erf(np.asarray(x)))


def _logaddexp(a: ndarray, b: ndarray) -> ndarray:
    """NumPy's does the same one number after the other, ten times as slow."""
    with np.errstate(invalid="ignore", under="ignore"):
        y = np.abs(a - b)
        y = elementwise.log1p(np.exp(np.negative(y, out=y), out=y))
        y = np.add(y, np.maximum(a, b), out=y)
    return np.logaddexp(a, b) if np.isnan(y).any() else y  # of inf - inf


quicker(
    ops.logaddexp,
    lambda a, b: (
        max(np.size(a), np.size(b)) >= tuning.LOGADDEXP and np.result_type(a, b).char in "fd"
    ),
    _logaddexp,
)


# ---- reductions


def _reduces(x: Any, **_: Any) -> bool:
    return is_fast(x) and x.ndim > 0


def total(x: ndarray, *, axis: Any, keepdims: bool) -> Any:
    """x.sum(axis, keepdims=keepdims), without the function of Python's that NumPy has around it."""
    return np.add.reduce(x, axis, keepdims=keepdims)  # type: ignore[call-overload]


def mean(x: ndarray, *, axis: Any, keepdims: bool) -> Any:
    """The sum and the quotient, as NumPy's mean, in a third of its time."""
    if not x.size:
        return x.mean(axis=axis, keepdims=keepdims)
    y = total(x, axis=axis, keepdims=keepdims)
    return y / (x.size // y.size)


def _repeated(g: Any, x: ndarray, axis: Any, n: int = 1) -> ndarray:
    """g / n for each element of x that went into it: a small copy takes NumPy a quarter of the time
    of a view.
    """
    if g.ndim and g.ndim < x.ndim:
        g = ops.reductions.kept(g, x, axis)
    if n != 1:
        g = g / n
    if x.size > tuning.COPIED:
        return ops.broadcast_to(g, shape=x.shape)
    part = np.empty(x.shape, g.dtype)
    part[...] = g
    return part


_count = ops.reductions.count

quicker(
    ops.sum,
    _reduces,
    total,
    lambda g, y, x, *, axis, keepdims: _repeated(g, x, axis),
)
quicker(
    ops.mean,
    _reduces,
    mean,
    lambda g, y, x, *, axis, keepdims: _repeated(g, x, axis, _count(x, axis) or 1),
)


# ---- products


def _by_left(g: Any, y: Any, a: Any, b: Any) -> Any:
    if a.ndim == 1 or b.ndim == 1:
        return ops.matmul.vjps[0](g, y, a, b)  # type: ignore[misc]
    return product(g, b.mT)


def _by_right(g: Any, y: Any, a: Any, b: Any) -> Any:
    if a.ndim == 1 or b.ndim == 1:
        return ops.matmul.vjps[1](g, y, a, b)  # type: ignore[misc]
    if b.ndim == 2:  # one matrix for all rows: fold them, and the product sums over them
        return product(ops.products._rows(a).mT, ops.products._rows(g))
    return product(a.mT, g)


quicker(ops.matmul, always, product, _by_left, _by_right, fresh=True)
