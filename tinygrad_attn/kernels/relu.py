"""ReLU, max(x, 0), and g where it is not 0: large arrays cut into blocks for the cache and for several threads.

NumPy finds the maximum of two arrays five times as fast as that of an array and one number, so x is compared with zeros.
The product g * (y != 0) would be NaN where an infinite g meets a 0, and `np.where` takes seven times as long.  So the choice
multiplies the bits of g, read as an integer, by 1 or 0.
"""

from functools import lru_cache

import numpy as np
from numpy import ndarray

from .memory import empty
from .rows import SHARED, by_rows

SMALL = 1 << 14                 # elements, up to which one call for all of them is soonest done
BITS = {np.dtype(f"f{n}"): np.dtype(f"i{n}") for n in (2, 4, 8)}      # the integer as long as each floating dtype


def chosen(g: ndarray, where: ndarray, out: ndarray | None = None) -> ndarray:
    """g where `where` (boolean) holds, else 0; g is float16, float32 or float64, and both broadcast."""
    bits = BITS[g.dtype]
    return np.multiply(g.view(bits), where, out=None if out is None else out.view(bits)).view(g.dtype)


@lru_cache(maxsize=16)
def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> ndarray:
    return np.zeros(shape, dtype)


def relu(x: ndarray) -> ndarray:
    """max(x, 0); NaN stays NaN."""
    if x.size <= SMALL:
        return np.maximum(x, _zeros(x.shape, x.dtype))
    y, zeros = empty(x.shape, x.dtype), _zeros((SHARED,), x.dtype)
    flat, flat_y = np.ascontiguousarray(x).reshape(-1), y.reshape(-1)
    by_rows(lambda s: np.maximum(flat[s], zeros[:s.stop - s.start], out=flat_y[s]), x.size, 1)
    return y


def relu_backward(g: ndarray, y: ndarray) -> ndarray:
    """g where y = relu(x) is not 0, else 0; where x is NaN it is g, as in PyTorch."""
    if y.size <= SMALL:
        return chosen(g, y != 0)
    dx = empty(y.shape, y.dtype)
    flat_g, flat_y, flat_dx = (np.ascontiguousarray(a).reshape(-1) for a in (g, y, dx))
    by_rows(lambda s: chosen(flat_g[s], flat_y[s] != 0, out=flat_dx[s]), y.size, 1)
    return dx
