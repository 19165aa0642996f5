"""Conversions for Tensors: default dtype, data, sizes and indices."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine import Symbolic, Variable, array_of
from ..errors import describe

_default_dtype = np.dtype(np.float32)


def set_default_dtype(dtype: Any) -> None:
    """Set the default dtype, for Tensors made from Python numbers and lists of numbers.

    The initial value is float32. Raises TypeError for a dtype that is not floating-point.
    """
    global _default_dtype
    _default_dtype = floating_dtype(dtype, "the default")


def get_default_dtype() -> np.dtype:
    """Return the default dtype, for Tensors made from Python numbers and lists of numbers."""
    return _default_dtype


def floating_dtype(dtype: Any, what: str) -> np.dtype:
    """Return a floating-point dtype; raise TypeError for any other, including None."""
    try:
        found = np.dtype(object if dtype is None else dtype)
    except (TypeError, ValueError):
        found = np.dtype(object)
    if found.kind != "f":
        raise TypeError(
            f"the dtype of {what} must be a floating-point dtype, such as np.float32 or "
            f"np.float64, got {describe(dtype)}."
        )
    return found


def as_array(data: Any, dtype: Any) -> np.ndarray:
    """Convert the data passed to Tensor's constructor to a new array."""
    data = array_of(_from_torch(data))
    if isinstance(data, Symbolic):
        return data.copy() if dtype is None else data.astype(dtype)  # type: ignore[attr-defined]
    if dtype is None and isinstance(data, (float, int)) and not isinstance(data, bool | np.generic):
        dtype = _default_dtype
    elif isinstance(data, (list, tuple)):
        if holds("_node", data):
            raise TypeError(
                f"making a Tensor from a {type(data).__name__} of Tensors would lose their graph. "
                "Join the Tensors with np.stack or np.concatenate, or call .item() on each one. "
                "If a function returned several Tensors, unpack the result: y, weights = ..."
            )
        try:
            found = np.array(data)
        except ValueError as error:
            raise ragged(error) from None
        if dtype is None and found.dtype.kind in "fiu" and not holds("__array__", data):
            dtype = _default_dtype
    array = np.array(check_numbers(data), dtype=dtype)
    return check_numbers(array, dtype)


def check_numbers(data: Any, dtype: Any = None) -> np.ndarray:
    """Return an array of real numbers or booleans; raise TypeError for anything else."""
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise TypeError(
            "converting a masked array to a Tensor would lose the mask. Write x.filled(0)."
        )
    array = np.asarray(data)
    if array.dtype.kind in "fiub":
        return array
    given = describe(data) if dtype is None else f"dtype={dtype!r}"
    hint = " Did a function forget to return its result?" if data is None else ""
    raise TypeError(f"a Tensor can hold only real numbers or booleans; got {given}.{hint}")


def ragged(error: ValueError) -> ValueError:
    """Return the error for a list whose rows differ in length."""
    return ValueError(
        "the rows of this list differ in length. Pad them to the same length (and hide the "
        f"padding with F.padding_mask), or make one Tensor for each row. NumPy says: {error}"
    )


def as_data(value: Any, dtype: np.dtype) -> np.ndarray:
    """Convert a value that will be written into a tensor, without a copy where possible.

    Arrays keep their own dtype; Python numbers and lists get the tensor's dtype.
    """
    if isinstance(value, Variable):
        return np.asarray(value._data)
    array = check_numbers(_from_torch(value))
    return array if hasattr(value, "__array__") else np.asarray(value, dtype)


def as_value(name: str, value: Any) -> np.ndarray:
    """Return a state dict's value as a plain array; raise TypeError if it is not numeric."""
    try:
        return check_numbers(array_of(_from_torch(value)))
    except (TypeError, ValueError):
        raise TypeError(
            f"the value of {name!r} must be an array of numbers, a Tensor or a torch tensor, got "
            f"{describe(value)}."
        ) from None


def _from_torch(x: Any) -> Any:
    """Convert a PyTorch tensor to an array, and return anything else unchanged."""
    if isinstance(x, Variable) or not (hasattr(x, "detach") and hasattr(x, "cpu")):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()  # NumPy has no bfloat16


def holds(name: str, data: Any) -> bool:
    """Return whether data, or any item in a nested list or tuple, has the named attribute."""
    if isinstance(data, (list, tuple)):
        return any(holds(name, x) for x in data)
    return hasattr(data, name)


def copied(array: Any) -> Any:
    """Return a copy of the array, unaffected by later changes to the original."""
    if isinstance(array, Symbolic):
        return array
    return np.array(np.asarray(array))  # With some objects even np.array shares memory.


def as_index(index: Any) -> Any:
    """Return the index with Tensors replaced by plain values.

    Arrays are copied, so that later changes to them do not affect the VJP.
    """
    if index.__class__ in (int, slice, type(None), type(Ellipsis)):
        return index
    if isinstance(index, tuple):
        return tuple(map(as_index, index))
    if isinstance(index, list):
        index = np.asarray([*map(array_of, index)])
        return index if index.size else index.astype(int)
    index = array_of(index)
    if isinstance(index, (int, np.generic)):
        return index
    array = copied(index)
    if array.dtype.kind not in "iub":
        raise IndexError(
            f"an index must contain integers or booleans, got {describe(index)}; write "
            "index.astype(int)."
        )
    return array


def as_sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return sizes or axes as a tuple, whether passed separately or as one sequence."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    try:
        return tuple(map(operator.index, sizes))
    except TypeError:
        raise TypeError(
            f"sizes and axes must be integers, got {tuple(sizes)}; divide with // instead of /."
        ) from None


def as_gradient(value: Any, dtype: np.dtype) -> np.ndarray:
    """Return a copy, in the tensor's dtype, of a value assigned to .grad."""
    return np.array(check_numbers(array_of(_from_torch(value))), dtype)
