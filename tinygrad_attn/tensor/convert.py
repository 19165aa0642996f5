"""Conversions for Tensors: default dtype, data, sizes and indices."""

import operator
from typing import Any

import numpy as np

from ..engine import Symbolic, Variable, array_of
from ..engine.graph import is_masked
from ..errors import describe

_default_dtype = np.dtype(np.float32)


def set_default_dtype(dtype) -> None:
    """Set the default dtype, for Tensors made from Python numbers and lists of numbers.

    The initial value is float32. Raises TypeError for a dtype that is not floating-point.
    """
    global _default_dtype
    _default_dtype = floating_dtype(dtype, "the default", trainable=True)


def get_default_dtype() -> np.dtype:
    """Return the default dtype, for Tensors made from Python numbers and lists of numbers."""
    return _default_dtype


def is_trainable(dtype):
    """Return whether the dtype is floating-point, and not half precision."""
    return dtype.kind == "f" and dtype.itemsize > 2


def floating_dtype(dtype, what, *, trainable=False) -> np.dtype:
    """Return a floating-point dtype; raise TypeError for any other, including None."""
    found = np.dtype(object if dtype is None else dtype)
    if found.kind != "f" or trainable and not is_trainable(found):
        raise TypeError(
            f"the dtype of {what} must be a floating-point dtype, such as np.float32 or "
            f"np.float64, got {describe(dtype)}."
        )
    return found


def as_array(x, dtype=None):
    """Return the values of a Tensor, array, torch tensor, number or nested list as an array.

    Numbers and lists of numbers get `dtype`; anything that has a dtype keeps it. The array shares
    memory with x where possible. Raises TypeError for anything but real numbers and booleans.
    """
    x = array_of(_from_torch(x))
    if isinstance(x, Symbolic):
        return x
    if _contains("_node", x):
        raise TypeError(
            f"making a Tensor from a {type(x).__name__} of Tensors would lose their graph. Join "
            "the Tensors with np.stack or np.concatenate, or call .item() on each one. If a "
            "function returned several Tensors, unpack the result: y, weights = ..."
        )
    if is_masked(x):
        raise TypeError(
            "converting a masked array to a Tensor would lose the mask. Write x.filled(0)."
        )
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(
            "the rows of this list differ in length. Pad them to the same length (and hide the "
            f"padding with F.padding_mask), or make one Tensor for each row. NumPy says: {error}"
        ) from None
    if array.dtype.kind not in "fiub":
        hint = " Did a function forget to return its result?" if x is None else ""
        raise TypeError(
            f"a Tensor can hold only real numbers or booleans; got {describe(x)}.{hint}"
        )
    without_dtype = array.dtype.kind != "b" and not _contains("__array__", x)
    return array.astype(dtype) if dtype is not None and without_dtype else array


def new_array(x, dtype=None):
    """Return a copy of the values of x, by default with the default dtype for numbers and lists."""
    array = as_array(x, _default_dtype if dtype is None else None)
    if isinstance(array, Symbolic):
        return array.copy() if dtype is None else array.astype(dtype)  # type: ignore[attr-defined]
    return as_array(np.array(array, dtype))  # It raises for dtypes such as complex.


def _from_torch(x):
    """Convert a PyTorch tensor to an array, and return anything else unchanged."""
    if isinstance(x, Variable) or not (hasattr(x, "detach") and hasattr(x, "cpu")):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()  # NumPy has no bfloat16


def _contains(attribute, x):
    """Return whether x, or any item in a nested list or tuple, has the attribute."""
    if isinstance(x, (list, tuple)):
        return any(_contains(attribute, item) for item in x)
    return hasattr(x, attribute)


def as_index(index):
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
    # With some objects even np.array shares memory.
    array: Any = index if isinstance(index, Symbolic) else np.array(np.asarray(index))
    if array.dtype.kind not in "iub":
        raise IndexError(
            f"an index must contain integers or booleans, got {describe(index)}; write "
            "index.astype(int)."
        )
    if not isinstance(array, Symbolic):
        array.flags.writeable = False
    return array


def as_sizes(sizes):
    """Return sizes or axes as a tuple, whether passed separately or as one sequence."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    try:
        return tuple(map(operator.index, sizes))
    except TypeError:
        raise TypeError(
            f"sizes and axes must be integers, got {tuple(sizes)}; divide with // instead of /."
        ) from None
