"""What the rules for NumPy's functions share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ... import ops
from ...engine import Variable
from ...messages.errors import describe, refuse_mask

UNSET: Any = np._NoValue
"""NumPy's own mark for an argument that was not given."""

SEQUENCES = list, tuple, deque
"""What NumPy takes for an array of arrays; a deque keeps the last frames of a game."""

FUNCTIONS: dict[Any, Callable] = {}
"""NumPy's function -> our rule, which has NumPy's signature.  Each module of this package enters its own."""

ADVICE = {
    "out": "A tensor's memory is not written over, since a derivative may still need the old values: "
    "write y = np.{0}(...) for a new one",
    "where": "Compute everywhere and choose afterwards with np.where(mask, a, b), or put neutral "
    "elements in before a reduction: "
    "np.where(mask, t, 0)",
    "initial": "Combine it with the result afterwards: + for a sum, np.maximum for a maximum",
    "order": "Elements are kept in C order: transpose first for another one",
    "mean": "Leave it out; the mean is computed again",
    "copy": "A Tensor is not changed in place: write t = np.{0}(t)",
    "retstep": "Leave it out; the step is (stop - start) / (num - 1), with endpoint=False / num",
}


def rule(*numpy_functions: Any) -> Callable:
    """Enters the function below into the table under NumPy's names for it."""

    def enter(f: Callable) -> Callable:
        FUNCTIONS.update(dict.fromkeys(numpy_functions, f))
        return f

    return enter


def _each(f: Callable, x: Any) -> Any:
    """f of each in a list or tuple, also a named one, or a deque; anything else as it is."""
    return (tuple if isinstance(x, tuple) else list)(map(f, x)) if isinstance(x, SEQUENCES) else x


def plain(x: Any) -> Any:
    """Tensors replaced by their arrays, also inside lists and tuples."""
    return x._data if isinstance(x, Variable) else _each(plain, x)


def handed(x: Any) -> Any:
    """As `plain`, for a function that may keep the arrays or write into them: those of Tensors are watched from here on."""
    return x.numpy() if isinstance(x, Variable) else _each(handed, x)  # type: ignore[attr-defined]


def floating(x: Any) -> bool:
    """Is x, or anything in a list or tuple x, a floating Tensor, which may need a gradient?"""
    if isinstance(x, Variable):
        return x._data.dtype.kind == "f"
    return isinstance(x, SEQUENCES) and any(map(floating, x))


def wrapped(y: Any) -> Any:
    """What NumPy made of integer or boolean Tensors, as Tensors again; a tuple with named fields keeps them."""
    if type(y) is list or isinstance(y, tuple):
        return type(y)(*map(wrapped, y)) if hasattr(y, "_fields") else type(y)(map(wrapped, y))
    real(np.asarray(y).dtype)
    return Variable._kind._of(y)


def refuse(function: str, **given: Any) -> None:
    """TypeError, with what to write instead, for arguments of NumPy's that have no meaning on tensors."""
    for name, value in given.items():
        usual = (
            value is True
            and name in ("where", "subok")
            or name == "order"
            and value in ("C", "K", "A")
        )
        if value is not None and value is not UNSET and not usual:
            advice = ADVICE.get(
                name, "Leave it out, or leave the graph on purpose with t.numpy()"
            ).format(function)
            raise TypeError(
                f"np.{function} of a Tensor does not take {name}={describe(value)}. {advice}."
            )


def real(dtype: Any) -> np.dtype:
    """A dtype that a Tensor can have, or TypeError."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub":
        raise TypeError(
            f"a Tensor holds real numbers or booleans, not {dtype}. Leave the graph on purpose "
            "with t.numpy() first."
        )
    return dtype


def refuse_whole(function: str, dtype: Any, *operands: Any) -> None:
    """TypeError for a dtype of integers or booleans beside floating Tensors, whose gradient would go with the fractions."""
    if dtype is not None and np.dtype(dtype).kind in "iub" and floating(operands):
        raise TypeError(
            f"np.{function} of floating Tensors does not take dtype={np.dtype(dtype)}, which would "
            "drop the fractions and with "
            f"them the gradient. If that is meant, write .astype({np.dtype(dtype)}) after the "
            "result."
        )


def refuse_among_whole(function: str, whole: Any, *values: Any) -> None:
    """TypeError for floating Tensors that would be put among the integers or booleans of an array, which keeps its dtype."""
    if whole.dtype.kind in "iub" and floating(values):
        raise TypeError(
            f"np.{function} keeps the dtype {whole.dtype}, in which the fractions of a floating "
            "Tensor are lost and with them "
            "the gradient. Write .astype(float) after the array of that dtype."
        )


def cast(x: Any, dtype: Any) -> Any:
    """The Tensor, or array, in another dtype; as it is for dtype None."""
    return (
        x
        if dtype is None
        else ops.astype(x if isinstance(x, Variable) else np.asarray(x), dtype=real(dtype))
    )


def axes_of(x: Any, axis: Any = None) -> tuple[int, ...]:
    """The axes that are meant, each counted from the front; all for None.  NumPy's AxisError for one that x does not have."""
    return normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)


def together(items: Any) -> list[Any]:
    """The parts of a join.  Python numbers and lists take the floating tensors' dtype, so that np.stack([1.0, t]) stays
    float32 with t.
    """
    items = list(items)
    others = [i for i, x in enumerate(items) if not isinstance(x, (Variable, np.ndarray))]
    if others:
        dtype = next(
            (x._data.dtype for x in items if isinstance(x, Variable) and floating(x)), None
        )
        for i in others:
            array = np.asarray(items[i])
            has_its_own = hasattr(items[i], "__array__") or array.dtype.kind not in "if"
            items[i] = array if has_its_own else np.asarray(items[i], dtype)
    return items


def tensor(x: Any) -> Any:
    """An operand with a shape: a Tensor or an array as it is, numbers and lists as an array."""
    if isinstance(x, Variable):
        return x
    refuse_mask("a function of Tensors", x)
    return np.asarray(x)
