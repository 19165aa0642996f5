"""NumPy's own functions on Tensors: `np.exp(t)`, `np.sum(t, axis=-1)`, `np.concatenate([...])`.

NumPy passes calls on Tensors to the Tensor class (`__array_ufunc__`, `__array_function__`; NEP 13
and 18), which looks up the function in two tables: `UFUNCS`, and `FUNCTIONS`, which
numpy_functions.py fills. Functions that return booleans, integers or constants (`PLAIN`) get plain
arrays. Any other function of floating-point Tensors raises a TypeError, so no output silently loses
its graph.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..engine import Symbolic, Variable, array_of, inplace, tensor_of
from ..errors import describe, written_here

# ---- the tables

UFUNCS: dict[Any, Callable] = ops.UFUNCS | {
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
    np.fabs: lambda x: ops.absolute(x),
    np.rint: lambda x: ops.round(x),
    np.degrees: lambda x: x * (180 / math.pi),
    np.rad2deg: lambda x: x * (180 / math.pi),
    np.radians: lambda x: x * (math.pi / 180),
    np.deg2rad: lambda x: x * (math.pi / 180),
    np.divmod: lambda a, b: (ops.floor_divide(a, b), ops.remainder(a, b)),
}

FUNCTIONS: dict[Any, Callable] = {}
"""Maps each NumPy function to one that takes the same arguments and handles Tensors."""

PLAIN_NAMES = """
    greater greater_equal less less_equal equal not_equal isnan isinf isfinite signbit logical_and
    logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor invert shape ndim size
    argmax argmin nanargmax nanargmin argsort argpartition argwhere nonzero flatnonzero
    count_nonzero searchsorted digitize lexsort isin zeros_like ones_like empty_like array_equal
    array_equiv allclose isclose any all iscomplex iscomplexobj isreal isrealobj isneginf isposinf
    array2string array_repr array_str result_type can_cast min_scalar_type common_type shares_memory
    may_share_memory save savez savez_compressed savetxt
"""
PLAIN = {getattr(np, name) for name in PLAIN_NAMES.split()}


def implements(*numpy_functions: Any) -> Callable:
    """Register the decorated function as the implementation of these NumPy functions.

    The first parameter is the operand. The other parameters have NumPy's names; parameters that do
    not apply to Tensors may be omitted. A `dtype` argument is applied to the operand. Arguments for
    omitted parameters must equal NumPy's defaults.
    """

    def enter(f: Callable) -> Callable:
        FUNCTIONS.update((function, _called_as(function, f)) for function in numpy_functions)
        return f

    return enter


def _called_as(function: Any, f: Callable) -> Callable:
    """Wrap f so that it can be called like the NumPy function."""
    own = inspect.signature(f).parameters
    try:
        numpys = inspect.signature(function).parameters
    except ValueError:  # Functions written in C have no signature in older versions of NumPy.
        return f
    first, *order = numpys
    if any(p.kind is p.VAR_POSITIONAL for p in own.values()):
        return f

    def call(*args: Any, **kwargs: Any) -> Any:
        x, *rest = args or (kwargs.pop(first),)
        given = dict(zip(order, rest)) | kwargs
        for name in given.keys() - own.keys():
            value = given.pop(name)
            if name == "dtype":
                x = cast(x, value)
            elif value is not getattr(numpys.get(name), "default", None) and value is not None:
                refuse(f"np.{function.__name__}", name, value)
        return f(x, **given)

    return call


def refuse(function: str, name: str, value: Any) -> None:
    """Raise TypeError for an argument that does not apply to Tensors."""
    advice = {
        "out": "NumPy functions cannot write to a Tensor; write y = f(...) to get a new one",
        "where": "Select elements afterwards with np.where(mask, a, b)",
    }.get(name, "Omit this argument, or leave the graph on purpose with t.numpy()")
    raise TypeError(f"{function} of a Tensor does not accept {name}={describe(value)}. {advice}.")


# ---- operands

SEQUENCES = (list, tuple, deque)


def plain(x: Any) -> Any:
    """Return x with Tensors replaced by their arrays, including those in sequences."""
    if isinstance(x, Variable):
        return x._data
    return tuple(map(plain, x)) if isinstance(x, SEQUENCES) else x


def floating(x: Any) -> bool:
    """Return whether x is a floating-point Tensor or a sequence that contains one."""
    if isinstance(x, Variable):
        return x._data.dtype.kind == "f"
    return isinstance(x, SEQUENCES) and any(map(floating, x))


def together(parts: Any) -> list[Any]:
    """Return the parts as a list; numbers and lists become arrays of the Tensors' dtype."""
    parts = list(parts)
    dtype = next((x._data.dtype for x in parts if isinstance(x, Variable) and floating(x)), None)
    return [
        x
        if isinstance(x, (Variable, Symbolic, np.ndarray))
        else np.asarray(x, None if hasattr(x, "__array__") and np.ndim(x) else dtype)
        for x in parts
    ]


def cast(x: Any, dtype: Any) -> Any:
    """Convert x to another floating-point dtype; return it unchanged if `dtype` is None."""
    if dtype is None:
        return x
    if floating(x) and np.dtype(dtype).kind != "f":
        raise TypeError(
            f"dtype={np.dtype(dtype)} would drop the fractional parts of {describe(x)} and with "
            f"them the gradient. If you want this dtype, write .astype({np.dtype(dtype)}) after "
            "the call."
        )
    if isinstance(x, SEQUENCES):
        return [cast(part, dtype) for part in x]
    return ops.astype(x if hasattr(x, "dtype") else np.asarray(x), dtype=np.dtype(dtype))


# ---- the hooks


def read_only(x: Any) -> Any:
    """Return x with Tensors replaced by arrays that a NumPy function cannot change in place."""
    if isinstance(x, SEQUENCES):
        return tuple(map(read_only, x))
    if not (isinstance(x, Variable) and inplace.has_memory(x._data)):
        return array_of(x)
    array = x._data.view()
    array.flags.writeable = False
    return array


def array_ufunc(ufunc: Any, method: str, inputs: tuple, kwargs: dict[str, Any]) -> Any:
    """Handle calls to Tensor.__array_ufunc__ that are not simply `UFUNCS[ufunc](*inputs)`."""
    name = f"{ufunc.__name__}.{method}".removesuffix(".__call__")
    if kwargs.get("out") is not None or method == "at" and floating(inputs):
        raise TypeError(
            f"np.{name} would write a Tensor's values into a plain array and lose their gradient. "
            "Write a = a + t instead of a += t, a = a + ta.ops.scatter(t, index=rows, "
            "shape=a.shape) instead of a[rows] += t, or a += t.data if no gradient is needed."
        )
    if ufunc in PLAIN or not floating(inputs):
        settings = {name: read_only(value) for name, value in kwargs.items()}
        y = getattr(ufunc, method)(*read_only(inputs), **settings)
        return _wrapped(y) if ufunc in UFUNCS else y
    f = UFUNCS.get(ufunc)
    if f is None or method != "__call__":
        # The ufunc may be SciPy's or the user's own.
        raise no_rule(f"np.{name}" if getattr(np, ufunc.__name__, None) is ufunc else name)
    dtype = kwargs.pop("dtype", None)
    if f is vecdot:
        return f(*inputs, **kwargs)
    for key, value in kwargs.items():
        if value is not None and value is not True:
            refuse(f"np.{name}", key, value)
    return f(*(cast(x, dtype) for x in inputs))


def array_function(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Handle Tensor.__array_function__."""
    f = FUNCTIONS.get(function)
    if floating(args) or any(map(floating, kwargs.values())):
        if f is not None:
            return f(*args, **kwargs)
        if function not in PLAIN:
            raise no_rule(f"{function.__module__}.{function.__name__}".replace("numpy", "np"))
    # Without a gradient, NumPy computes the result.
    y = function(*read_only(args), **{name: read_only(value) for name, value in kwargs.items()})
    return y if f is None or function is np.where and len(args) == 1 else _wrapped(y)


def _wrapped(y: Any) -> Any:
    """Wrap NumPy's results for integer or boolean Tensors in Tensors."""
    if isinstance(y, (list, tuple)):
        return type(y)(*map(_wrapped, y)) if hasattr(y, "_fields") else type(y)(map(_wrapped, y))
    if not isinstance(y, (np.ndarray, np.generic)) or y.dtype.kind not in "fiub":
        return y
    return tensor_of(y if y.flags.writeable else y.copy())


def no_rule(name: str) -> TypeError:
    """Return the error for a function that is not in the tables."""
    hint = written_here(name.rpartition(".")[2])
    return TypeError(
        f"{name} has no derivative for Tensors.{hint if 'np.' not in hint else ''} Leave the graph "
        "on purpose with t.numpy(), build the function from differentiable ones, or define it as "
        "an op: decorate it with @ta.op and register its derivatives with .vjp."
    )


def vecdot(a: Any, b: Any, axis: int = -1) -> Any:
    """Return the sum of the elementwise products along one axis."""
    a, b = np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)
    return ops.matmul(a[..., None, :], b[..., :, None])[..., 0, 0]


UFUNCS[np.vecdot] = vecdot
