"""How NumPy's own functions reach Tensors: `np.exp(t)`, `np.sum(t, axis=-1)`, `np.stack([...])`.

NumPy passes calls on Tensors to the Tensor class (`__array_ufunc__`, `__array_function__`; NEP 13
and 18). The tables `UFUNCS` and `FUNCTIONS` in numpy_functions.py have the implementations. All
other functions get plain arrays. If such a function of floating-point Tensors returns anything but
booleans, integers or text, a TypeError is raised, so no output silently loses its graph.
"""

import inspect

import numpy as np

from .. import ops
from ..engine import Symbolic, Variable, read_only, tensor_of
from ..errors import describe, written_here
from ..tree import tree_leaves, tree_map

# ---- operands


def differentiable(x):
    """Return whether x is a floating-point Tensor, or a nested value that contains one."""
    leaves = (leaf for leaf in tree_leaves(x) if isinstance(leaf, Variable))
    return any(leaf._data.dtype.kind == "f" for leaf in leaves)


def as_constant(x):
    """Return the array of a Tensor, which a NumPy function cannot change in place, or x itself."""
    return read_only(x._data) if isinstance(x, Variable) else x


def operands(xs):
    """Return xs as a list; numbers and lists become arrays of the Tensors' dtype."""
    xs = list(xs)
    dtypes = (x._data.dtype for x in xs if isinstance(x, Variable))
    dtype = next((dtype for dtype in dtypes if dtype.kind == "f"), None)
    return [
        x
        if isinstance(x, (Variable, Symbolic, np.ndarray))
        else np.asarray(x, None if hasattr(x, "__array__") and np.ndim(x) else dtype)
        for x in xs
    ]


def cast(x, dtype):
    """Convert x to another floating-point dtype; return it unchanged if `dtype` is None."""
    if dtype is None:
        return x
    if differentiable(x) and np.dtype(dtype).kind != "f":
        raise TypeError(
            f"dtype={np.dtype(dtype)} would drop the fractional parts of {describe(x)} and with "
            f"them the gradient. If you want this dtype, write .astype({np.dtype(dtype)}) after "
            "the call."
        )
    array = lambda x: x if hasattr(x, "dtype") else np.asarray(x)
    return tree_map(lambda x: ops.astype(array(x), dtype=np.dtype(dtype)), x)


# ---- arguments


def with_arguments_of(function, implementation):
    """Return an implementation that can be called like the NumPy function.

    Its first parameter is the operand. Its other parameters have NumPy's names; those that do not
    apply to Tensors may be omitted. A `dtype` argument is applied to the operand. Arguments for
    omitted parameters must equal NumPy's defaults.
    """
    accepted = inspect.signature(implementation).parameters
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # Functions written in C have no signature in older versions of NumPy.
        return implementation
    variadic = any(p.kind is p.VAR_POSITIONAL for p in accepted.values())
    first, *order = parameters

    def call(*args, **kwargs):
        x, *rest = args or (kwargs.pop(first),)
        if variadic:
            return implementation(x, *rest, **kwargs)
        settings = dict(zip(order, rest)) | kwargs
        for name in settings.keys() - accepted.keys():
            value = settings.pop(name)
            if name == "dtype":
                x = cast(x, value)
            elif value is not getattr(parameters.get(name), "default", None) and value is not None:
                raise refused(f"np.{function.__name__}", name, value)
        return implementation(x, **settings)

    return call


def refused(function, name, value):
    """Return the error for an argument that does not apply to Tensors."""
    advice = {
        "out": "NumPy functions cannot write to a Tensor; write y = f(...) to get a new one",
        "where": "Select elements afterwards with np.where(mask, a, b)",
    }.get(name, "Omit this argument, or leave the graph on purpose with t.numpy()")
    return TypeError(f"{function} of a Tensor does not accept {name}={describe(value)}. {advice}.")


# ---- calls


def call_ufunc(implementation, ufunc, method, inputs, settings):
    """Handle calls to Tensor.__array_ufunc__ that are not simply `implementation(*inputs)`."""
    name = f"{ufunc.__name__}.{method}".removesuffix(".__call__")
    if settings.get("out") is not None or method == "at" and differentiable(inputs):
        raise TypeError(
            f"np.{name} would write a Tensor's values into a plain array and lose their gradient. "
            "Write a = a + t instead of a += t, a = a + ta.ops.scatter(t, index=rows, "
            "shape=a.shape) instead of a[rows] += t, or a += t.data if no gradient is needed."
        )
    if implementation is None or method != "__call__" or not differentiable(inputs):
        # The ufunc may be SciPy's or the user's own.
        known = f"np.{name}" if getattr(np, ufunc.__name__, None) is ufunc else name
        y = _of_arrays(getattr(ufunc, method), known, inputs, settings)
        return y if implementation is None else tree_map(_wrapped, y)
    dtype = settings.pop("dtype", None)
    if ufunc is np.vecdot:
        return implementation(*inputs, **settings)
    for key, value in settings.items():
        if value is not None and value is not True:
            raise refused(f"np.{name}", key, value)
    return implementation(*(cast(x, dtype) for x in inputs))


def call_function(implementation, function, args, settings):
    """Handle Tensor.__array_function__."""
    if implementation and differentiable((args, settings)):
        return implementation(*args, **settings)
    name = f"{function.__module__}.{function.__name__}".replace("numpy", "np")
    y = _of_arrays(function, name, args, settings)
    indices = function is np.where and len(args) == 1
    return y if implementation is None or indices else tree_map(_wrapped, y)


CONSTANTS = (np.zeros_like, np.ones_like, np.empty_like)
"""Functions that read only the shape and dtype of a Tensor."""
WRITING = (np.copyto, np.place, np.put, np.putmask, np.put_along_axis, np.fill_diagonal)
"""Functions that write to their first argument."""


def _of_arrays(function, name, args, settings):
    """Call a function with arrays in place of Tensors; raise TypeError if a gradient is lost."""
    for source in (*args[1:], *settings.values()) if function in WRITING else ():
        np.asarray(source)  # raises for a Tensor with a gradient
    constants, named = tree_map(as_constant, (args, settings))
    y = function(*constants, **named)
    lost = any(map(_has_slope, tree_leaves(y))) and differentiable((args, settings))
    if function in CONSTANTS or not lost:
        return y
    hint = written_here(name.rpartition(".")[2])
    raise TypeError(
        f"{name} has no derivative for Tensors.{hint if 'np.' not in hint else ''} Leave the graph "
        "on purpose with t.numpy(), build the function from differentiable ones, or define it as "
        "an op: decorate it with @ta.op and register its derivatives with .vjp."
    )


def _has_slope(y):
    """Return whether a result consists of numbers other than booleans and integers."""
    numbers = isinstance(y, (np.ndarray, np.generic, float, complex))
    return numbers and getattr(y, "dtype", np.dtype(object)).kind not in "biuSU"


def _wrapped(y):
    """Wrap a result of NumPy for integer or boolean Tensors in a Tensor."""
    if not isinstance(y, (np.ndarray, np.generic)) or y.dtype.kind not in "fiub":
        return y
    return tensor_of(y if y.flags.writeable else y.copy())
