"""What Tensors are made from: the default dtype, an array from anything, and sizes and indices as
plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from ..engine import Variable
from ..messages.errors import describe, explain, numbers_of, refuse_mask, several_results

_default_dtype = np.dtype(np.float32)
_BASIC = {int, slice, type(None), type(Ellipsis)}


def set_default_dtype(dtype: Any) -> None:
    """Set the dtype that Python numbers and lists of them take when they become a Tensor: float32
    at the start, or float64.

    Raises TypeError for a dtype that is not floating.
    """
    global _default_dtype
    _default_dtype = floating_dtype(dtype, "the default")


def get_default_dtype() -> np.dtype:
    """The dtype that Python numbers and lists of them take when they become a Tensor."""
    return _default_dtype


def as_dtype(dtype: Any) -> np.dtype:
    """NumPy's dtype of this name."""
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Tensor: {dtype!r} is no NumPy dtype ({error}); write np.float32, np.float64, "
            "np.int64 or bool."
        ) from None


def floating_dtype(dtype: Any, what: str) -> np.dtype:
    """A dtype of real numbers for `what`; for None, which NumPy takes for float64, the caller has a
    default or there is none.
    """
    try:
        found = np.dtype(object if dtype is None else dtype)
    except (TypeError, ValueError):
        found = np.dtype(object)
    if found.kind != "f":
        raise TypeError(
            f"the dtype of {what} is a floating one of NumPy's, such as np.float32 or np.float64, "
            f"got {describe(dtype)}."
        )
    return found


def _from_torch(x: Any) -> Any:
    """The array of a tensor of PyTorch's, in float32 for bfloat16, which NumPy lacks; anything else
    as it is.
    """
    if not (hasattr(x, "detach") and hasattr(x, "cpu")):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def as_array(data: Any, dtype: Any) -> np.ndarray:
    """A fresh array from whatever the constructor was given."""
    found = None  # what NumPy makes of it when no dtype is asked for
    if isinstance(data, Variable):
        data = data._data
    elif isinstance(data, (list, tuple)):
        if holds("_record", data):
            raise TypeError(
                f"a {type(data).__name__} of Tensors does not make a Tensor that remembers them. "
                "Join them with np.stack or "
                f"np.concatenate, or take .item() of each for plain numbers.{several_results(data)}"
            )
        try:
            found = np.array(data)
        except ValueError as error:
            raise ValueError(
                "the rows of this list differ in length, so it is no array. Pad them to one length "
                "(and hide the "
                f"padding with F.padding_mask), or keep several Tensors. NumPy says: {error}"
            ) from None
        if dtype is None:
            dtype = (
                _default_dtype
                if found.dtype.kind in "fiu" and not holds("__array__", data)
                else found.dtype
            )
    elif (
        isinstance(data, (float, int))
        and not isinstance(data, (bool, np.generic))
        and dtype is None
    ):
        dtype = _default_dtype
    data = _from_torch(data)
    refuse_mask("Tensor", data)
    as_dtype(dtype)  # only asked: of a class such as np.dtypes.Float32DType it makes object
    try:
        found = np.asarray(data) if found is None else found
        source = found if hasattr(data, "__array__") else data  # which may be costly to ask twice
        array = (
            np.array(source, dtype=dtype) if _are_real(found) else found
        )  # a cast would drop an imaginary part, and read text
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, OverflowError):
            raise TypeError(
                f"a Tensor of {np.dtype(dtype)} cannot hold numbers as large as these: {error}."
            ) from None
        if (
            hasattr(data, "__array__")
            and not isinstance(data, type)
            or found is not None
            and found.dtype != object
        ):
            raise  # it knows best why it is no array, and NumPy that NaN is no integer
        array = np.array(None)
    if found is not None and found.dtype.kind in "fiub" and array.dtype.kind not in "fiub":
        raise TypeError(
            f"a Tensor holds real numbers or booleans; got dtype={dtype!r}. Write np.float32, "
            "np.float64, np.int64 or bool."
        )
    if data is None or array.dtype.kind not in "fiub":
        raise TypeError(
            f"a Tensor holds real numbers or booleans; got {describe(data)}"
            + (
                ". Did a function forget to return its result?"
                if data is None
                else "." + numbers_of(data)
            )
        )
    return array


def _are_real(array: np.ndarray) -> bool:
    """Real numbers or booleans, or objects that may be such: fractions, say, and integers of any
    length.
    """
    if array.dtype == object:
        return not any(x is None or isinstance(x, (str, bytes)) for x in array.flat)
    return array.dtype.kind in "fiub"


def as_flag(value: Any) -> bool:
    """requires_grad, second in Tensor(data, requires_grad, dtype), where NumPy takes a dtype and
    PyTorch one more size.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f"requires_grad is True or False, got {describe(value)}. Write Tensor(data, dtype=...) "
            "for a dtype, and "
            "Tensor(np.zeros((2, 3))) for a tensor of a shape."
        )
    return bool(value)


def as_data(value: Any, dtype: np.dtype, objects: bool = False) -> np.ndarray:
    """What is put into a tensor of this dtype, sharing memory: an array keeps its own, Python
    numbers and lists take the tensor's.

    With `objects`, so do fractions and their like.
    """
    if value.__class__ is float or value.__class__ is int:
        return np.asarray(value, dtype)  # or an OverflowError
    refuse_mask("a Tensor", value)
    array = np.asarray(value)
    if array.dtype.kind in "fiub":
        return array if hasattr(value, "__array__") else np.asarray(value, dtype)
    return (
        np.asarray(value, dtype) if objects and _are_real(array) else array
    )  # the caller refuses what is no number


def as_gradient(value: Any, dtype: np.dtype) -> np.ndarray:
    """What is assigned to .grad, in memory of its own and of the tensor's dtype."""
    with np.errstate(
        all="ignore"
    ):  # the default dtype may be too narrow for numbers that this one holds
        array = as_array(value, None)  # which says what is no number
    return np.array(array if hasattr(value, "__array__") else value, dtype)


def as_value(name: str, value: Any) -> np.ndarray:
    """A state dict's value as a plain array; TypeError where it is none."""
    if isinstance(value, Variable):
        return value._data
    refuse_mask(f"load_state_dict: {name!r}", value)
    try:
        array = np.asarray(_from_torch(value))
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"the value of {name!r} must be an array of numbers, a Tensor or a torch tensor, "
            f"got {describe(value)}."
        )
    return array


def holds(name: str, data: Any) -> bool:
    """Has this the attribute (Tensors have `_record`, arrays of any library `__array__`), or
    something in a list or tuple, however deep?
    """
    return (
        hasattr(data, name)
        or isinstance(data, (list, tuple))
        and any(map(holds, repeat(name), data))
    )


def as_index(index: Any) -> Any:
    """An index on arrays: Tensors, lists, a Series become arrays, which are copied so that a later
    change cannot reach the rule.
    """
    if index.__class__ in _BASIC:
        return index
    if isinstance(index, tuple):
        return tuple(map(as_index, index))
    if isinstance(index, Variable):
        index = index._data
    if isinstance(index, list):
        index = np.asarray([i._data if isinstance(i, Variable) else i for i in index])
        return index if index.size else index.astype(int)
    if isinstance(index, np.ndarray):
        if index.dtype.kind not in "iub":
            raise IndexError(
                f"an index must hold integers or booleans, got {describe(index)}; write "
                "index.astype(int)."
            )
        return index.copy()
    if isinstance(index, (int, np.generic)):
        return index
    array = np.asarray(index).copy()  # some lend their memory where np.array asks for a copy
    return (
        array if array.dtype.kind in "iub" else index
    )  # NumPy knows what else is an index, and says what is none


def put(t: Any, index: Any, array: np.ndarray) -> None:
    """t[index] = array"""
    try:
        t._array()[index] = array
    except (ValueError, IndexError) as error:
        raise explain("setitem", [t, array], error) from None


def as_sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or axes given one by one or as one tuple."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    try:
        return tuple(s.__index__() for s in sizes)
    except AttributeError:
        raise TypeError(
            f"sizes and axes are integers, got {tuple(sizes)}; divide with // instead of /."
        ) from None
