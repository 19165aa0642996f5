"""Convert arrays of any library to float64 in NumPy and back, in any precision and layout."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .backend import Array, array_of


def is_array(x) -> bool:
    """Return whether x is an array of any library."""
    return hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, np.generic)


def library_of(x) -> str:
    """Return the name of the library of an array; this package's are NumPy arrays."""
    name = type(x).__module__.partition(".")[0]
    return {"jaxlib": "jax", __name__.partition(".")[0]: "numpy"}.get(name, name)


def dtype_name(x) -> str:
    """Return the name of an array's dtype, such as "bfloat16"."""
    return str(x.dtype).rpartition(".")[2]


def numbers_of(x) -> Array:
    """Return the numbers of an array of any library as a new array: float64, or integers."""
    if library_of(x) == "torch":
        x = x.detach().cpu().resolve_conj()
        x = (x.double() if x.is_floating_point() else x).numpy()
    x = x.get() if hasattr(x, "get") else x  # CuPy's arrays are on a GPU
    if hasattr(x, "__dlpack__"):
        with suppress(Exception):  # NumPy may not know the dtype
            x = np.from_dlpack(x)
    a = array_of(x)
    if a.dtype.kind == "c":
        raise TypeError(
            f"complex numbers are not checked here, but there is a complex array {a.shape}: pass "
            "and return the real and the imaginary part, or use torch tensors without vjp=."
        )
    return np.array(a, a.dtype if a.dtype.kind in "iub" else np.float64)  # also of bfloat16


def array_like(x: Array, like, dtype: str):
    """Return an array of the library of `like` with these numbers, in this dtype.

    Its layout in memory is that of x (not in JAX, which decides itself).
    """
    library = library_of(like)
    if x.dtype.kind != "f":
        dtype = str(x.dtype)
    if library == "numpy":
        try:
            return laid_out(x.astype(dtype), x)
        except TypeError:
            text = f"NumPy has no {dtype}: pass torch tensors or JAX arrays, or import ml_dtypes."
            raise TypeError(text) from None
    if library == "torch":
        torch = sys.modules["torch"]
        t = torch.tensor(np.ascontiguousarray(x)).reshape(x.shape).to(getattr(torch, dtype))
        bits = t.view(torch.uint8 if dtype == "bool" else getattr(torch, f"int{8 * t.itemsize}"))
        return torch_tensor(laid_out(bits.numpy(), x)).view(t.dtype).to(like.device)
    module: Any = sys.modules["jax.numpy" if library == "jax" else library]
    with warnings.catch_warnings():  # JAX has float64 only on request
        warnings.simplefilter("ignore")
        return module.asarray(x, dtype=dtype)


def torch_tensor(x: Array):
    """Return a torch tensor in the memory of an array, or of a copy if it has negative strides."""
    with warnings.catch_warnings():  # an array may be read-only
        warnings.simplefilter("ignore")
        x = x.copy() if min(x.strides, default=0) < 0 else x  # torch has no negative strides
        return sys.modules["torch"].as_tensor(x)


def laid_out(values: Array, like: Array) -> Array:
    """Return a copy of an array that lies in memory as another array does."""
    if not values.size or not like.itemsize:
        return values
    steps = [s // like.itemsize for s in like.strides]
    plain = np.array(values, order="C")
    if steps == [s // plain.itemsize for s in plain.strides]:
        plain.flags.writeable = like.flags.writeable
        return plain
    ends = [s * (n - 1) for s, n in zip(steps, like.shape)]
    first = -sum(end for end in ends if end < 0)
    buffer = np.full(first + sum(end for end in ends if end > 0) + 1, 7, values.dtype)
    strides = [s * buffer.itemsize for s in steps]
    as_strided(buffer[first:], like.shape, strides)[...] = values
    return as_strided(buffer[first:], like.shape, strides, writeable=like.flags.writeable)
