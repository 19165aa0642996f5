"""NumPy's own names for our ops: `np.exp(t)`, `np.sum(t, axis=-1)`, `np.concatenate([...])` work on tensors and are differentiated.

NumPy asks the operands of its functions whether one of them wants to take over (`__array_ufunc__`, `__array_function__`, NEP 13 and 18);
Tensor says yes and looks the function up in the two tables below.  A function that is not in them is a TypeError that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import ops
from .engine import Variable

UFUNCS: dict[Any, Callable] = {
    np.add: ops.add, np.subtract: ops.subtract, np.multiply: ops.multiply, np.divide: ops.divide, np.power: ops.power,
    np.floor_divide: ops.floor_divide, np.remainder: ops.remainder, np.fmod: ops.fmod, np.negative: ops.negative,
    np.maximum: ops.maximum, np.minimum: ops.minimum, np.absolute: ops.absolute, np.exp: ops.exp, np.exp2: ops.exp2, np.expm1: ops.expm1,
    np.log: ops.log, np.log2: ops.log2, np.log10: ops.log10, np.log1p: ops.log1p, np.sqrt: ops.sqrt, np.cbrt: ops.cbrt, np.square: ops.square,
    np.reciprocal: ops.reciprocal, np.sin: ops.sin, np.cos: ops.cos, np.tan: ops.tan, np.arcsin: ops.arcsin, np.arccos: ops.arccos,
    np.arctan: ops.arctan, np.arctan2: ops.arctan2, np.sinh: ops.sinh, np.cosh: ops.cosh, np.tanh: ops.tanh, np.arcsinh: ops.arcsinh,
    np.arccosh: ops.arccosh, np.arctanh: ops.arctanh, np.logaddexp: ops.logaddexp, np.hypot: ops.hypot, np.matmul: ops.matmul,
}

PLAIN_UFUNCS = {np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal, np.isnan, np.isinf, np.isfinite, np.sign,
                np.signbit, np.logical_and, np.logical_or, np.logical_not, np.logical_xor, np.floor, np.ceil, np.rint, np.trunc}
"""Piecewise constant: their derivative is zero, and their result a plain array."""


def plain(x: Any) -> Any:
    """Tensors replaced by their arrays, also inside lists and tuples."""
    if isinstance(x, Variable):
        return x._data
    return type(x)(map(plain, x)) if type(x) in (list, tuple) else x


def array_ufunc(ufunc: Any, method: str, inputs: tuple, kwargs: dict[str, Any]) -> Any:
    """What Tensor.__array_ufunc__ answers."""
    if method == "__call__" and not kwargs:
        op = UFUNCS.get(ufunc)
        if op is not None:
            return op(*inputs)
        if ufunc in PLAIN_UFUNCS:
            return ufunc(*map(plain, inputs))
    raise TypeError(f"np.{ufunc.__name__} has no derivative rule here.")


def _sum(a, axis=None, keepdims=False): return ops.sum(a, axis=axis, keepdims=keepdims)
def _mean(a, axis=None, keepdims=False): return ops.mean(a, axis=axis, keepdims=keepdims)
def _max(a, axis=None, keepdims=False): return ops.max(a, axis=axis, keepdims=keepdims)
def _min(a, axis=None, keepdims=False): return ops.min(a, axis=axis, keepdims=keepdims)
def _prod(a, axis=None, keepdims=False): return ops.prod(a, axis=axis, keepdims=keepdims)
def _var(a, axis=None, ddof=0, keepdims=False): return ops.var(a, axis=axis, ddof=ddof, keepdims=keepdims)
def _std(a, axis=None, ddof=0, keepdims=False): return ops.std(a, axis=axis, ddof=ddof, keepdims=keepdims)


FUNCTIONS: dict[Any, Callable] = {
    np.sum: _sum, np.mean: _mean, np.max: _max, np.min: _min, np.prod: _prod, np.var: _var, np.std: _std,
    np.where: lambda condition, x, y: ops.where(plain(condition), x, y),
    np.clip: lambda a, a_min=None, a_max=None: ops.clip(a, a_min, a_max),
    np.concatenate: lambda arrays, axis=0: ops.concatenate(*arrays, axis=axis),
    np.stack: lambda arrays, axis=0: ops.stack(*arrays, axis=axis),
    np.broadcast_to: lambda array, shape: ops.broadcast_to(array, shape=shape),
    np.flip: lambda m, axis=None: ops.flip(m, axis=axis),
    np.cumsum: lambda a, axis=None: ops.cumsum(a, axis=axis),
    np.swapaxes: lambda a, axis1, axis2: ops.swapaxes(a, a=axis1, b=axis2),
}

PLAIN_FUNCTIONS = {np.shape, np.ndim, np.size, np.argmax, np.argmin, np.argsort, np.zeros_like, np.ones_like, np.empty_like, np.full_like,
                   np.array_equal, np.allclose, np.isclose, np.any, np.all, np.array2string, np.array_repr, np.array_str, np.result_type}


def array_function(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What Tensor.__array_function__ answers."""
    ours = FUNCTIONS.get(function)
    if ours is not None:
        return ours(*args, **kwargs)
    if function in PLAIN_FUNCTIONS:
        return function(*plain(args), **{k: plain(v) for k, v in kwargs.items()})
    raise TypeError(f"np.{function.__name__} has no derivative rule here.")
