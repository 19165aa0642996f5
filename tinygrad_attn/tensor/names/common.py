"""What the rules for NumPy's functions share: the table, how a rule is called, and its operands."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ... import ops
from ...engine import Symbolic, Variable
from ...messages.errors import describe, refuse_mask

UNSET: Any = np._NoValue
"""NumPy's own mark for an argument that was not given."""

SEQUENCES = list, tuple, deque
"""What NumPy takes for an array of arrays; a deque keeps the last frames of a game."""

FUNCTIONS: dict[Any, Callable] = {}
"""NumPy's function -> our rule, called in the same way. Each module of this room enters its own."""

ADVICE = {
    "out": "A tensor's memory is not written over, since a derivative may still need the old "
    "values: write y = np.{0}(...) for a new one",
    "where": "Compute everywhere and choose afterwards with np.where(mask, a, b)",
    "order": "Elements are kept in C order: transpose first for another one",
    "mean": "Leave it out; the mean is computed again",
    "copy": "A Tensor is not changed in place: write t = np.{0}(t)",
    "retstep": "Leave it out; the step is (stop - start) / (num - 1), with endpoint=False / num",
}
"""What to do without an argument of NumPy's that has no meaning on tensors."""

NO_EFFECT = {"subok", "overwrite_input", "optimize", "device", "kind", "stable", "hermitian"}
"""Arguments of NumPy's that change how a result is computed, and never the result."""


# ---- the table


def rule(*numpy_functions: Any) -> Callable:
    """Enters the function below into the table under NumPy's names for it.

    It is called with the arguments of NumPy's function that it names itself, by their names. With a
    `dtype` that it does not name, its first operand is cast to it; any other argument that it does
    not name is refused, unless it is what NumPy has for a default.
    """

    def enter(f: Callable) -> Callable:
        FUNCTIONS.update((function, _called_as(function, f)) for function in numpy_functions)
        return f

    return enter


def _called_as(function: Any, f: Callable) -> Callable:
    parameters = inspect.signature(f).parameters
    try:
        signature = inspect.signature(function)
    except ValueError:  # Functions that are written in C have no signature in older NumPys.
        return f
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        return f  # It reads its arguments itself.
    names, name, takes = tuple(signature.parameters), full_name(function), parameters.keys()
    first = names[0]

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args))
        given.update(kwargs)
        if not given.keys() <= takes:
            rest = {k: given.pop(k) for k in given.keys() - takes}
            given[first] = converted(name, given[first], rest.pop("dtype", None))
            for k, value in rest.items():
                default = signature.parameters[k].default
                if value is not default and not (np.ndim(value) == 0 and value == default):
                    refuse(name, **{k: value})
        return f(**given)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def full_name(function: Any) -> str:
    """`linalg.norm`: what stands after `np.`"""
    name = function.__name__
    for place in ("linalg", "fft", "emath", "lib.stride_tricks"):
        here = getattr(attrgetter(place)(np), name, None) is function
        if here and getattr(np, name, None) is not function:
            return f"{place}.{name}"
    return name


def refuse(function: str, **given: Any) -> None:
    """TypeError, with what to write instead, for arguments that have no meaning on tensors."""
    for name, value in given.items():
        usual = (name, value) == ("casting", "same_kind") or (
            name == "where" and value is True or name == "order" and value in ("C", "K", "A")
        )
        if value is None or value is UNSET or usual or name in NO_EFFECT:
            continue
        advice = ADVICE.get(name, "Leave it out, or leave the graph on purpose with t.numpy()")
        raise TypeError(
            f"np.{function} of a Tensor does not take {name}={describe(value)}. "
            f"{advice.format(function)}."
        )


# ---- tensors and arrays


def _each(f: Callable, x: Any) -> Any:
    """f of each in a list or tuple, also a named one, or a deque; anything else as it is."""
    return (tuple if isinstance(x, tuple) else list)(map(f, x)) if isinstance(x, SEQUENCES) else x


def plain(x: Any) -> Any:
    """Tensors replaced by their arrays, also inside lists and tuples."""
    return x._data if isinstance(x, Variable) else _each(plain, x)


def handed(x: Any) -> Any:
    """As `plain`, for a function that may keep the arrays or write into them.

    From here on the engine watches the memory of these Tensors for changes.
    """
    return x.numpy() if isinstance(x, Variable) else _each(handed, x)  # type: ignore[attr-defined]


def floating(x: Any) -> bool:
    """Is x, or anything in a list or tuple x, a floating Tensor, which may need a gradient?"""
    if isinstance(x, Variable):
        return x._data.dtype.kind == "f"
    return isinstance(x, SEQUENCES) and any(map(floating, x))


def wrapped(y: Any) -> Any:
    """What NumPy made of integer or boolean Tensors, as Tensors again; named fields stay named."""
    if type(y) is list or isinstance(y, tuple):
        return type(y)(*map(wrapped, y)) if hasattr(y, "_fields") else type(y)(map(wrapped, y))
    real(np.asarray(y).dtype)
    return Variable._kind._of(y)


def tensor(x: Any) -> Any:
    """An operand with a shape: a Tensor or an array as it is, numbers and lists as an array."""
    if isinstance(x, Variable):
        return x
    refuse_mask("a function of Tensors", x)
    return as_array(x)


def as_array(x: Any) -> Any:
    """As np.asarray; what stands for an array stays what it is."""
    return x if isinstance(x, Symbolic) else np.asarray(x)


def together(items: Any) -> list[Any]:
    """The parts of a join, each with a shape.

    Python numbers and lists take the floating tensors' dtype, so that np.stack([1.0, t]) stays
    float32 with t.
    """
    items = list(items)
    dtype = next((x._data.dtype for x in items if isinstance(x, Variable) and floating(x)), None)
    for i, x in enumerate(items):
        if not isinstance(x, (Variable, np.ndarray)):
            array = np.asarray(x)
            has_its_own = hasattr(x, "__array__") or array.dtype.kind not in "if"
            items[i] = array if has_its_own else np.asarray(x, dtype)
    return items


def axes_of(x: Any, axis: Any = None) -> tuple[int, ...]:
    """The axes that are meant, each counted from the front; all of them for None.

    Raises NumPy's AxisError for one that x does not have.
    """
    return normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)


# ---- dtypes


def real(dtype: Any) -> np.dtype:
    """A dtype that a Tensor can have, or TypeError."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub":
        raise TypeError(
            f"a Tensor holds real numbers or booleans, not {dtype}. Leave the graph on purpose "
            "with t.numpy() first."
        )
    return dtype


def cast(x: Any, dtype: Any) -> Any:
    """The Tensor, or array, in another dtype; as it is for dtype None."""
    if dtype is None:
        return x
    return ops.astype(x if isinstance(x, Variable) else as_array(x), dtype=real(dtype))


def converted(function: str, x: Any, dtype: Any) -> Any:
    """The operand in the dtype that the function was given as dtype=."""
    if dtype is None:
        return x
    refuse_whole(function, dtype, x)
    return cast(x, dtype)


def is_whole(dtype: Any) -> bool:
    """Is a dtype of integers or booleans asked for?"""
    return dtype is not None and np.dtype(dtype).kind in "iub"


def refuse_whole(function: str, dtype: Any, *operands: Any) -> None:
    """TypeError for dtype=int, say, on floating Tensors: with the fractions the gradient goes."""
    if is_whole(dtype) and floating(operands):
        raise TypeError(
            f"np.{function} of floating Tensors does not take dtype={np.dtype(dtype)}, which would "
            "drop the fractions and with them the gradient. If that is meant, write "
            f".astype({np.dtype(dtype)}) after the result."
        )


def refuse_among_whole(function: str, whole: Any, *values: Any) -> None:
    """TypeError for floating Tensors that would be put into an array of integers or booleans."""
    if whole.dtype.kind in "iub" and floating(values):
        raise TypeError(
            f"np.{function} keeps the dtype {whole.dtype}, in which the fractions of a floating "
            "Tensor are lost and with them the gradient. Write .astype(float) after the array of "
            "that dtype."
        )
