"""NumPy's elementwise functions (ufuncs): which of our ops each one is, and their methods `reduce`
and `outer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...engine import Op, Variable, op
from ...messages.errors import describe
from ...ops.elementwise import share_of_sum
from .common import FUNCTIONS, cast, converted, plain, tensor
from .shapes import _moveaxis


def vecdot(a: Any, b: Any, axis: int = -1) -> Any:
    """The sum of the products along one axis of both, (..., N), (..., N) -> (...), or along that
    axis of each.
    """
    a, b = (x if axis == -1 else _moveaxis(x, axis, -1) for x in map(tensor, (a, b)))
    if not (a.ndim and b.ndim) or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"np.vecdot sums over one axis of both, of the same size; got {describe(a)} and "
            f"{describe(b)}."
        )
    return ops.sum(ops.multiply(a, b), axis=-1)


def _matvec(a: Any, b: Any) -> Any:
    b = tensor(b)
    return ops.matmul(a, b.reshape(*b.shape, 1))[..., 0]


def _vecmat(a: Any, b: Any) -> Any:
    a = tensor(a)
    return ops.matmul(a.reshape(*a.shape[:-1], 1, a.shape[-1]), b)[..., 0, :]


def _fraction(x: Any) -> Any:
    """x without its whole part; 0 where x is infinite."""
    x = ops.where(np.isinf(plain(x)), 0, x)
    return ops.subtract(x, ops.trunc(x))


def _heaviside(x: Any, h: Any) -> Any:
    """0, h or 1, as x is below, at or above 0; booleans are 0 and 1 already, and beside an integer
    0 would no longer be narrow.
    """
    at = np.asarray(plain(x))
    return ops.where(at == 0, h, x if at.dtype == bool else ops.sign(ops.maximum(x, 0)))


def _float_power(a: Any, b: Any) -> Any:
    """a^b in float64 at the least, as NumPy: this function is for what float32 cannot hold."""
    return ops.power(
        *(
            cast(x, np.result_type(x._data.dtype, np.float64)) if isinstance(x, Variable) else x
            for x in (a, b)
        )
    )


@op(broadcasts=True)
def logaddexp2(a, b):
    """y = log2(2^a + 2^b); logaddexp of a ln 2 and b ln 2 would round large a and b before their
    difference is taken.
    """
    return np.logaddexp2(a, b)


logaddexp2.vjp(
    lambda g, y, a, b: share_of_sum(g, y, a, b, np.exp2),
    lambda g, y, a, b: share_of_sum(g, y, b, a, np.exp2),
)


UFUNCS: dict[Any, Callable] = {
    np.add: ops.add,
    np.subtract: ops.subtract,
    np.multiply: ops.multiply,
    np.divide: ops.divide,
    np.negative: ops.negative,
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
    np.absolute: ops.absolute,
    np.reciprocal: ops.reciprocal,
    np.fabs: lambda x: ops.absolute(x),
    np.rint: lambda x: ops.round(x),  # no op itself, as NumPy makes floats of integers
    np.power: ops.power,
    np.float_power: _float_power,
    np.square: ops.square,
    np.sqrt: ops.sqrt,
    np.cbrt: ops.cbrt,
    np.exp: ops.exp,
    np.exp2: ops.exp2,
    np.expm1: ops.expm1,
    np.log: ops.log,
    np.log2: ops.log2,
    np.log10: ops.log10,
    np.log1p: ops.log1p,
    np.logaddexp: ops.logaddexp,
    np.logaddexp2: logaddexp2,
    np.sin: ops.sin,
    np.cos: ops.cos,
    np.tan: ops.tan,
    np.arcsin: ops.arcsin,
    np.arccos: ops.arccos,
    np.arctan: ops.arctan,
    np.arctan2: ops.arctan2,
    np.hypot: ops.hypot,
    np.sinh: ops.sinh,
    np.cosh: ops.cosh,
    np.tanh: ops.tanh,
    np.arcsinh: ops.arcsinh,
    np.arccosh: ops.arccosh,
    np.arctanh: ops.arctanh,
    np.degrees: lambda x: x * (180 / math.pi),
    np.rad2deg: lambda x: x * (180 / math.pi),
    np.radians: lambda x: x * (math.pi / 180),
    np.deg2rad: lambda x: x * (math.pi / 180),
    np.maximum: ops.maximum,
    np.minimum: ops.minimum,
    np.fmax: ops.fmax,
    np.fmin: ops.fmin,
    np.floor_divide: ops.floor_divide,
    np.remainder: ops.remainder,
    np.fmod: ops.fmod,
    np.divmod: lambda a, b: (ops.floor_divide(a, b), ops.remainder(a, b)),
    np.modf: lambda x: (_fraction(x), ops.trunc(x)),
    np.floor: ops.floor,
    np.ceil: ops.ceil,
    np.trunc: ops.trunc,
    np.sign: ops.sign,
    np.copysign: ops.copysign,
    np.heaviside: _heaviside,
    np.matmul: ops.matmul,
    np.vecdot: vecdot,
}
if hasattr(np, "matvec"):  # NumPy 2.2
    UFUNCS |= {np.matvec: _matvec, np.vecmat: _vecmat}

CALLS: dict[Any, Callable] = {ufunc: rule for ufunc, rule in UFUNCS.items() if isinstance(rule, Op)}
"""The ufuncs that are one op of ours, as what `a + b` or a call of the op runs: Tensor calls these
straight away, for speed.
"""

PLAIN_UFUNCS = {
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.equal,
    np.not_equal,
    np.isnan,
    np.isinf,
    np.isfinite,
    np.signbit,
    np.logical_and,
    np.logical_or,
    np.logical_not,
    np.logical_xor,
    np.bitwise_and,
    np.bitwise_or,
    np.bitwise_xor,
    np.invert,
    np.left_shift,
    np.right_shift,
    np.gcd,
    np.lcm,
}
"""Their results are booleans or integers, which have no derivative: plain arrays."""

REDUCTIONS: dict[Any, Any] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
}
"""The ufuncs whose method `reduce` is a function of its own, with axis=0 for a default."""


def reduce(
    ufunc: Any, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, **settings: Any
) -> Any:
    """np.add.reduce(t) and the like."""
    array = converted(f"{ufunc.__name__}.reduce", array, dtype)
    return FUNCTIONS[REDUCTIONS[ufunc]](array, axis=axis, **settings)


def outer(ufunc: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    """ufunc of every element of a with every element of b: shapes (*A), (*B) -> (*A, *B)."""
    a, b = tensor(a), tensor(b)
    return ufunc(a.reshape(a.shape + (1,) * b.ndim), b, **kwargs)
