"""NumPy's elementwise functions (ufuncs): the op that each one is, and `reduce` and `outer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...engine import Op, Variable, op
from ...messages.errors import describe
from ...ops.elementwise import _part_of_sum as share_of_sum
from .common import FUNCTIONS, as_array, cast, converted, plain, tensor
from .shapes import _moveaxis


def vecdot(a: Any, b: Any, axis: int = -1) -> Any:
    """The sum of the products along one axis of both: (..., N), (..., N) -> (...)"""
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
    """0, h or 1, as x is below, at or above 0.

    Booleans are 0 and 1 already; to compare them with the integer 0 would widen their dtype.
    """
    at = as_array(plain(x))
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
    """y = log2(2^a + 2^b)

    The logaddexp of a ln 2 and b ln 2 would round large a and b before their difference is taken.
    """
    return np.logaddexp2(a, b)


logaddexp2.vjp(
    lambda g, y, a, b: share_of_sum(g, y, a, b, np.exp2),
    lambda g, y, a, b: share_of_sum(g, y, b, a, np.exp2),
)


SAME_NAME = """
    add subtract multiply divide floor_divide remainder fmod power negative absolute reciprocal
    square sqrt cbrt hypot exp exp2 expm1 log log2 log10 log1p logaddexp
    sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh arctanh
    maximum minimum fmax fmin floor ceil trunc sign copysign matmul
"""
"""The ufuncs that are one op of ours, of NumPy's name."""

UFUNCS: dict[Any, Callable] = {
    **{getattr(np, name): getattr(ops, name) for name in SAME_NAME.split()},
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
    np.fabs: lambda x: ops.absolute(x),
    np.rint: lambda x: ops.round(x),  # It is no op itself, since NumPy makes floats of integers.
    np.float_power: _float_power,
    np.logaddexp2: logaddexp2,
    np.degrees: lambda x: x * (180 / math.pi),
    np.rad2deg: lambda x: x * (180 / math.pi),
    np.radians: lambda x: x * (math.pi / 180),
    np.deg2rad: lambda x: x * (math.pi / 180),
    np.divmod: lambda a, b: (ops.floor_divide(a, b), ops.remainder(a, b)),
    np.modf: lambda x: (_fraction(x), ops.trunc(x)),
    np.heaviside: _heaviside,
    np.vecdot: vecdot,
}
if hasattr(np, "matvec"):  # NumPy 2.2
    UFUNCS |= {np.matvec: _matvec, np.vecmat: _vecmat}

CALLS: dict[Any, Callable] = {ufunc: rule for ufunc, rule in UFUNCS.items() if isinstance(rule, Op)}
"""The ufuncs that are one op of ours, which Tensor calls straight away."""

PLAIN_NAMES = """
    greater greater_equal less less_equal equal not_equal isnan isinf isfinite signbit
    logical_and logical_or logical_not logical_xor
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift gcd lcm
"""
PLAIN_UFUNCS = {getattr(np, name) for name in PLAIN_NAMES.split()}
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
