"""What Tensors are made from: the default dtype, an array from anything, sizes and indices."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from ..engine import Symbolic, Variable, array_of
from ..messages.errors import describe, explain, numbers_of, refuse_mask, several_results
from ..messages.signatures import own_names

_default_dtype = np.dtype(np.float32)
_BASIC = {int, slice, type(None), type(Ellipsis)}


@own_names
def set_default_dtype(dtype: Any) -> None:
    """Set the dtype that Python numbers and lists of them take when they become a Tensor.

    It is float32 unless set, and may be float64. Raises TypeError for a dtype that is not floating.
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
    """A dtype of real numbers for `what`; TypeError for any other, and for None.

    NumPy takes None for float64; who calls this has a default of its own, or wants none.
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
    """The array of a tensor of PyTorch's; anything else as it is.

    bfloat16, which NumPy lacks, becomes float32.
    """
    if not (hasattr(x, "detach") and hasattr(x, "cpu")):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def as_array(data: Any, dtype: Any) -> np.ndarray:
    """A fresh array from whatever the constructor was given."""
    found = None  # What NumPy makes of the data when no dtype is asked for.
    if isinstance(data, Variable):
        data = data._data
    if isinstance(data, Symbolic):
        return data.copy() if dtype is None else data.astype(dtype)  # type: ignore[attr-defined]
    if isinstance(data, (list, tuple)):
        found = _from_list(data)
        if dtype is None:
            numbers = found.dtype.kind in "fiu" and not holds("__array__", data)
            dtype = _default_dtype if numbers else found.dtype
    elif isinstance(data, (float, int)) and not isinstance(data, (bool, np.generic)):
        dtype = _default_dtype if dtype is None else dtype
    data = _from_torch(data)
    refuse_mask("Tensor", data)
    as_dtype(dtype)  # Only its errors are wanted: a class such as np.dtypes.Float32DType stays.
    try:
        found = np.asarray(data) if found is None else found
        source = found if hasattr(data, "__array__") else data  # To ask twice may be costly.
        # A cast would drop an imaginary part, and read numbers from text.
        array = np.array(source, dtype=dtype) if _are_real(found) else found
    except OverflowError as error:
        raise TypeError(
            f"a Tensor of {np.dtype(dtype)} cannot hold numbers as large as these: {error}."
        ) from None
    except (TypeError, ValueError):
        is_array = hasattr(data, "__array__") and not isinstance(data, type)
        if is_array or found is not None and found.dtype != object:
            raise  # The data know best why they are no array, and NumPy that NaN is no integer.
        array = np.array(None)
    if array.dtype.kind in "fiub" and data is not None:
        return array
    raise _no_numbers(data, dtype, found)


def _from_list(data: Any) -> np.ndarray:
    if holds("_node", data):
        raise TypeError(
            f"a {type(data).__name__} of Tensors does not make a Tensor that remembers them. "
            "Join them with np.stack or np.concatenate, or take .item() of each for plain "
            f"numbers.{several_results(data)}"
        )
    try:
        return np.array(data)
    except ValueError as error:
        raise ragged(error) from None


def ragged(error: ValueError) -> ValueError:
    """NumPy's complaint about a list that is no array."""
    return ValueError(
        "the rows of this list differ in length, so it is no array. Pad them to one length (and "
        f"hide the padding with F.padding_mask), or keep several Tensors. NumPy says: {error}"
    )


def _no_numbers(data: Any, dtype: Any, found: Any) -> TypeError:
    text = "a Tensor holds real numbers or booleans; got "
    if data is None:
        return TypeError(f"{text}None. Did a function forget to return its result?")
    if found is not None and found.dtype.kind in "fiub":
        return TypeError(f"{text}dtype={dtype!r}. Write np.float32, np.float64, np.int64 or bool.")
    return TypeError(f"{text}{describe(data)}.{numbers_of(data)}")


def _are_real(array: np.ndarray) -> bool:
    """Real numbers or booleans, or objects that may be such, as fractions and long integers."""
    if array.dtype == object:
        return not any(x is None or isinstance(x, (str, bytes)) for x in array.flat)
    return array.dtype.kind in "fiub"


def as_flag(value: Any) -> bool:
    """The requires_grad of Tensor(data, requires_grad), where others take a dtype or a size."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f"requires_grad is True or False, got {describe(value)}. Write Tensor(data, dtype=...) "
            "for a dtype, and Tensor(np.zeros((2, 3))) for a tensor of a shape."
        )
    return bool(value)


def as_data(value: Any, dtype: np.dtype, objects: bool = False) -> np.ndarray:
    """What is put into a tensor of this dtype, without a copy where possible.

    An array keeps its own dtype, Python numbers and lists take the tensor's, and with `objects` so
    do fractions and their like.
    """
    if value.__class__ is float or value.__class__ is int:
        return np.asarray(value, dtype)  # An OverflowError if it does not fit.
    refuse_mask("a Tensor", value)
    array = np.asarray(value)
    if array.dtype.kind in "fiub":
        return array if hasattr(value, "__array__") else np.asarray(value, dtype)
    # The caller refuses what is no number.
    return np.asarray(value, dtype) if objects and _are_real(array) else array


def as_gradient(value: Any, dtype: np.dtype) -> np.ndarray:
    """What is assigned to .grad, in memory of its own and in the tensor's dtype."""
    # The default dtype may be too narrow for numbers that this one holds.
    with np.errstate(all="ignore"):
        array = as_array(value, None)
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
            f"the value of {name!r} must be an array of numbers, a Tensor or a torch tensor, got "
            f"{describe(value)}."
        )
    return array


def holds(name: str, data: Any) -> bool:
    """Has this, or something inside of it if it is a list or tuple, an attribute of that name?

    Tensors have `_record`, and arrays of any library `__array__`.
    """
    return (
        hasattr(data, name)
        or isinstance(data, (list, tuple))
        and any(map(holds, repeat(name), data))
    )


def as_index(index: Any) -> Any:
    """An index of plain values: Tensors, lists and the like become arrays.

    Arrays are copied, so that a later change cannot reach the rule that uses them.
    """
    if index.__class__ in _BASIC:
        return index
    if isinstance(index, tuple):
        return tuple(map(as_index, index))
    if isinstance(index, Variable):
        index = index._data
    if isinstance(index, list):
        index = np.asarray([*map(array_of, index)])
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
    # Some lend their memory even where np.array asks for a copy. NumPy knows what else is an index.
    array = np.asarray(index).copy()
    return array if array.dtype.kind in "iub" else index


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
        return tuple(map(operator.index, sizes))
    except TypeError:
        hint = "; divide with // instead of /" if any(isinstance(s, float) for s in sizes) else ""
        if any(isinstance(s, (type, str, np.dtype)) for s in sizes):
            hint = "; write t.astype(dtype) for another dtype"
        raise TypeError(f"sizes and axes are integers, got {tuple(sizes)}{hint}.") from None
