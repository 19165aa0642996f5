"""Quicker ways of ops, for arrays on which NumPy's own function is slow, or on which a second
thread is worth its start.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from .. import ops
from ..engine import Op, sum_to
from ..engine.quick import quick_way
from .calls import QuickOp, make_shortcuts
from .kernels import choice, erf, exponentials
from .kernels import linear as products
from .kernels import sigmoid as logistic
from .kernels.choice import BITS
from .kernels.rows import FAST, column_max, column_sums, reduced, row_max, row_sums, runs
from .sweep import OfOne, OfTwo

MANY = 512  # elements, from where several NumPy calls that are fast beat a single slow one
LARGE = 1 << 18  # elements, from where a second thread is worth its start
FLOATS = {np.float16, np.float32, np.float64}
SMALL = 4096  # elements, up to which a copy is made sooner than a view


def quicker(
    plain: Op, fits: Any, forward: Any = None, *rules: Any, adds: Any = None, fresh: bool = False
) -> QuickOp:
    """Register a quick way of this op: for arrays that fit, another function, or other rules, or
    both.
    """
    op = QuickOp(plain, plain.forward if forward is None else forward, fits)
    op.broadcasts, op.rules = plain.broadcasts, type(plain.rules)(rules) if rules else ()
    op.adds, op.fresh = adds, fresh or adds is not None
    quick_way(plain)(op)
    return op


def is_fast(x: Any) -> bool:
    """Is this an array of float32 or float64?"""
    return x.__class__ is ndarray and x.dtype in FAST


for module in ops.elementwise, ops.trigonometric:
    for op in vars(module).values():
        if isinstance(op, Op) and op.rules and None not in op.rules:
            kinds: dict[int, Any] = {1: OfOne, 2: OfTwo}
            settings = len(op.parameters.signature.parameters) - len(op.rules)
            op.rules = op.rules if settings else kinds.get(len(op.rules), tuple)(op.rules)


# ---- un-broadcasting


@quick_way(sum_to)
def quick_sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """A product with ones: up to twenty times as fast as NumPy's sum over rows."""
    if g.__class__ is not ndarray or g.dtype.char not in "fd":
        return NotImplemented
    lead = g.ndim - len(shape)
    if g.size <= 2048:  # few numbers: NumPy's sum in their own dtype, and no cast
        axes = (
            *range(lead),
            *(i + lead for i, n in enumerate(shape) if n == 1 != g.shape[i + lead]),
        )
        if not axes or lead < 0:
            return g
        small = np.add.reduce(g, axes, keepdims=True)
        return small.reshape(small.shape[lead:])
    if g.size > 1 << 14 and g.size > math.prod(shape) << 14:
        return NotImplemented  # so many rows lose digits one after the other
    if not shape or lead < 0:
        return NotImplemented
    if lead and g.shape[lead:] == shape:
        many = math.prod(g.shape[:lead])
        return np.ones(many, g.dtype).dot(g.reshape(many, -1)).reshape(shape)
    last = (*g.shape[lead:-1], 1)
    if not lead and shape == last and g.shape[-1] <= 128:
        return g.reshape(-1, g.shape[-1]).dot(np.ones(g.shape[-1], g.dtype)).reshape(shape)
    return NotImplemented


quicker(
    ops.broadcast_to,
    lambda x, *, shape: not getattr(x, "ndim", 1) and isinstance(shape, tuple),
    lambda x, *, shape: _repeated_number(x, shape),
)


def _repeated_number(x: Any, shape: tuple[int, ...]) -> ndarray:
    """One number, from the end of a loss, as an array of no steps: a fifth of the time of
    np.broadcast_to.
    """
    y = np.ndarray(shape, x.dtype, np.asarray(x), 0, (0,) * len(shape))
    y.flags.writeable = False
    return y


# ---- choices


def _weighed(g: Any, weights: Any) -> Any:
    """g where the weight is not 0, times it: twenty times as fast as np.where, which it is where g
    is not finite.
    """
    if weights.dtype == bool:
        return choice.chosen(g, weights)
    part = g * weights
    return part if math.isfinite(np.vdot(part, part)) else np.where(weights == 0, 0, part)


def _share(g: Any, mine: Any, other: Any, loses: Any) -> Any:
    """The part of g that belongs to an operand of maximum or minimum: half at a tie."""
    return _weighed(g, np.where(mine == other, 0.5, ~loses).astype(g.dtype))


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
    lambda g, y, x, low, high: choice.chosen(g, (x >= low) & (x <= high)),
    None,
    None,
)


def _chooses(condition: Any, a: Any, b: Any) -> bool:
    like = a if a.__class__ is ndarray else b
    return (
        condition.__class__ is ndarray is like.__class__
        and max(like.size, condition.size) >= choice.MANY
    )


quicker(
    ops.where,
    _chooses,
    choice.where,
    None,
    lambda g, y, condition, a, b: choice.where(condition, g, 0),
    lambda g, y, condition, a, b: choice.where(condition, 0, g),
)


def _is_float(x: Any) -> bool:
    return x.__class__ in FLOATS or x.__class__ is ndarray and x.dtype in BITS


def _relu(x: Any) -> Any:
    if x.__class__ is ndarray and x.ndim:
        return choice.relu(x)
    if x <= 0:  # single numbers: NumPy's maximum costs ten times the comparison
        return x.dtype.type(0)
    return x if x.__class__ in FLOATS else x[()]  # [()] copies the number out of its memory


def _relu_rule(g: Any, y: Any, x: Any) -> Any:
    if y.__class__ in FLOATS:
        return g if y != 0 else g.dtype.type(0)
    return choice.relu_backward(g, y) if g.__class__ is ndarray else choice.chosen(g, y != 0)


quicker(ops.relu, _is_float, _relu, _relu_rule)


# ---- functions of large arrays


def _large(x: Any) -> bool:
    return x.__class__ is ndarray and x.size >= LARGE and x.dtype.char in "fd"


quicker(
    ops.sigmoid,
    lambda x: is_fast(x) and x.ndim > 0,
    lambda x: logistic.sigmoid(x) if x.size >= LARGE else _sigmoid(x),
    lambda g, y, x: logistic.sigmoid_backward(g, y) if y.size >= LARGE else g * y * (1 - y),
)


def _sigmoid(x: ndarray) -> ndarray:
    with np.errstate(over="ignore"):
        return logistic.falling(0.0 - x)


quicker(ops.erf, lambda x: hasattr(x, "dtype") and x.ndim, lambda x: erf.erf(np.asarray(x)))


def _logaddexp(a: ndarray, b: ndarray) -> ndarray:
    """NumPy's does the same one number after the other, ten times as slow."""
    with np.errstate(invalid="ignore", under="ignore"):
        y = np.abs(a - b)
        y = exponentials.log1p(np.exp(np.negative(y, out=y), out=y))
        y = np.add(y, np.maximum(a, b), out=y)
    return np.logaddexp(a, b) if np.isnan(y).any() else y  # of inf - inf


quicker(
    ops.logaddexp,
    lambda a, b: max(np.size(a), np.size(b)) >= MANY and np.result_type(a, b).char in "fd",
    _logaddexp,
)


# ---- reductions


def _reduces(x: Any, **_: Any) -> bool:
    return x.__class__ is ndarray and x.ndim > 0 and x.dtype in FAST


def total(x: ndarray, axis: Any, keepdims: bool) -> Any:
    """x.sum(axis, keepdims=keepdims), by products with ones where that is quicker."""
    axes = runs(x, axis)
    if axes:
        return reduced(x, axes, keepdims, row_sums, column_sums)
    return x.sum(axis=axis, keepdims=keepdims)


def mean(x: ndarray, axis: Any, keepdims: bool) -> Any:
    """The sum and the quotient, as NumPy's mean, in a third of its time."""
    if not x.size:
        return x.mean(axis=axis, keepdims=keepdims)
    y = total(x, axis, keepdims)
    return y / (x.size // y.size)


def _repeated(g: Any, x: ndarray) -> ndarray:
    """g repeated to the shape of x: a small copy takes NumPy a quarter of the time of a view."""
    if x.size > SMALL:
        return ops.broadcast_to(g, shape=x.shape)
    part = np.empty(x.shape, g.dtype)
    part[...] = g
    return part


_kept, _count = ops.reductions.kept, ops.reductions.count

quicker(
    ops.sum,
    _reduces,
    lambda x, *, axis, keepdims: total(x, axis, keepdims),
    lambda g, y, x, *, axis, keepdims: _repeated(_kept(g, x, axis), x),
)
quicker(
    ops.mean,
    _reduces,
    lambda x, *, axis, keepdims: mean(x, axis, keepdims),
    lambda g, y, x, *, axis, keepdims: _repeated(_kept(g, x, axis) / (_count(x, axis) or 1), x),
)


def _runs(x: Any, *, axis: Any, keepdims: bool, ddof: float = 0) -> bool:
    return _reduces(x) and bool(runs(x, axis)) and ddof < _count(x, axis)


def _variance(x: ndarray, *, axis: Any, ddof: float, keepdims: bool) -> Any:
    d = x - mean(x, axis, True)
    d -= mean(d, axis, True)  # what rounding left of the mean
    return total(np.multiply(d, d, out=d), axis, keepdims) / (_count(x, axis) - ddof)


def _by_variance(g: Any, y: Any, x: ndarray, *, axis: Any, ddof: float, keepdims: bool) -> Any:
    return _kept(g, x, axis) * ((x - mean(x, axis, True)) * (2 / (_count(x, axis) - ddof)))


quicker(ops.var, _runs, _variance, _by_variance)
quicker(
    ops.std,
    _runs,
    lambda x, **settings: np.sqrt(_variance(x, **settings)),
)
quicker(
    ops.l2_norm,
    _runs,
    lambda x, *, axis, keepdims: np.sqrt(total(x * x, axis, keepdims)),
)
quicker(
    ops.max,
    _runs,
    lambda x, *, axis, keepdims: reduced(x, runs(x, axis), keepdims, row_max, column_max),
)
quicker(
    ops.min,
    _runs,
    lambda x, *, axis, keepdims: -reduced(-x, runs(x, axis), keepdims, row_max, column_max),
)


# ---- products


def _multiplies(a: Any, b: Any) -> bool:
    return a.__class__ is ndarray is b.__class__ and a.ndim > 1 < b.ndim


def _by_right(g: Any, y: Any, a: ndarray, b: ndarray) -> ndarray:
    if b.ndim == 2:  # one matrix for all rows: fold them, and the product sums over them
        return products.product(_rows(a).mT, _rows(g))
    return products.product(a.mT, g)


def _rows(x: ndarray) -> ndarray:
    """All leading axes folded into one: (..., N) -> (R, N)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


quicker(
    ops.matmul,
    _multiplies,
    products.product,
    lambda g, y, a, b: products.product(g, b.mT),
    _by_right,
    fresh=True,
)


make_shortcuts()  # now that each op has its quick way
