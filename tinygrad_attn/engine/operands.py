"""What an op takes and what it returns, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..messages.errors import describe, listed, mask_lost, numbers_of, refuse_mask, several_results
from .graph import Variable

NUMBERS = (float, int, bool, type(None))


class Symbolic:
    """What stands for an array while a computation is written down (see transforms/programs).

    It has an array's shape and dtype and answers NumPy's functions, so that ops and rules run on
    it as they stand; but it has no memory that could be watched for changes.
    """

    __slots__ = ("lent",)
    lent: bool  # may the user have got hold of it as a Tensor's array?
    as_it_is: Any  # () -> the same values, whatever is done to this one later


def as_operands(op: Any, inputs: Sequence[Any]) -> list[Any]:
    """The plain values of an op's inputs, Python's numbers as they are."""
    return [
        x._data
        if isinstance(x, Variable)
        else x
        if x.__class__ in NUMBERS
        else as_operand(op.__name__, x, inputs)
        for x in inputs
    ]


def as_operand(op: str, x: Any, inputs: Sequence[Any]) -> Any:
    """An operand that is neither a Tensor nor a number, as an array.

    Beside a Tensor a NumPy scalar counts as a Python number, and so do the numbers in a list, so
    that `x / np.sqrt(8)` and `x * [1, 2]` keep the dtype of x.
    """
    if isinstance(x, Symbolic):
        return x.as_it_is()
    beside = any(isinstance(t, Variable) for t in inputs)
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "fiub" and beside:
            raise TypeError(
                f"{op} cannot take {describe(x)} beside a Tensor, which holds real numbers or "
                "booleans."
            )
        if isinstance(x, np.ma.MaskedArray):
            raise mask_lost(op)
        return np.asarray(x)  # the `*` of a np.matrix would be the matrix product
    if isinstance(x, np.generic):
        if x.dtype.kind in "mM":
            raise TypeError(
                f"{op} cannot take {describe(x)}, a time. Write x / np.timedelta64(1, 's') for a "
                "span in seconds."
            )
        return x.item() if beside else x
    if isinstance(x, (list, tuple)):
        return _sequence(op, x, inputs)
    if isinstance(x, (int, float)):  # A class of its own, such as that of t.size.
        return int(x) if isinstance(x, int) else float(x)
    if isinstance(x, str) or callable(x) and not isinstance(x, type):
        return x
    if isinstance(x, complex):
        raise TypeError(
            f"{op} cannot take {x}: a Tensor holds real numbers or booleans. Compute with x.real "
            "and x.imag apart."
        )
    hint = numbers_of(x)
    raise TypeError(
        f"{op} cannot take {describe(x)}. Operands are Tensors, NumPy arrays and numbers"
        + ("." + hint if hint else "; convert it first, for example with Tensor(np.asarray(x)).")
    )


def _sequence(op: str, x: Any, inputs: Sequence[Any]) -> np.ndarray:
    """A list of numbers, in the dtype of the tensor beside it."""
    if any(isinstance(item, Variable) for item in x):
        raise TypeError(
            f"{op} got a {type(x).__name__} of Tensors; join them first with np.stack or "
            "np.concatenate." + several_results(x)
        )
    refuse_mask(op, x)
    array = np.asarray(x)
    like = next((t._data.dtype for t in inputs if isinstance(t, Variable)), array.dtype)
    return array.astype(like) if array.dtype.kind in "iuf" and like.kind == "f" else array


def as_result(op: Any, y: Any, inputs: Sequence[Any]) -> Any:
    """What an op's function has returned, as an array of real numbers or booleans."""
    if not isinstance(y, (np.ndarray, np.generic)):
        if isinstance(y, tuple):
            raise TypeError(
                f"op {op.__name__!r} returned a tuple; an op returns one array. What its rule "
                "needs beside that is returned as (y, saved), with @op(saves=True)."
            )
        array = np.asarray(y) if y is not None and not isinstance(y, Variable) else None
        if array is None or array.dtype.kind not in "fiub":
            raise TypeError(
                f"op {op.__name__!r} returned {describe(y)}, but an op's function takes arrays and "
                "returns an array. Does it end with return, and compute with np.* on its "
                "arguments?"
            )
        return array
    if y.dtype.kind not in "fiub":
        raise TypeError(
            f"{op.__name__} of {listed(inputs)} gives {describe(y)}; a Tensor holds real numbers "
            "or booleans."
        )
    return y
