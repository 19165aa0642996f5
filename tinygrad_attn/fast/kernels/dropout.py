"""Dropout, x keep / (1 - p), for a choice `keep` that was drawn before: two passes over blocks that
stay in the cache.

The choice stays boolean, a byte a number, and the same function is its own derivative's rule: dx =
g keep / (1 - p).
"""

import numpy as np
from numpy import ndarray

from .rows import by_rows


def dropout(x: ndarray, keep: ndarray, p: float) -> ndarray:
    """x / (1 - p) where kept, else 0 (NaN for an x that is not finite); one shape, and the result
    lies in memory as x does.
    """
    factor = x.dtype.type(1) / x.dtype.type(1 - p) if p < 1 else x.dtype.type(0)
    if not (x.flags.c_contiguous and keep.flags.c_contiguous):
        y = x * keep
        y *= factor
        return y
    y = np.empty(x.shape, x.dtype)
    flat, flat_keep, flat_y = x.reshape(-1), keep.reshape(-1), y.reshape(-1)

    def run(s: slice) -> None:
        part = np.multiply(flat[s], flat_keep[s], out=flat_y[s])
        part *= factor

    by_rows(run, x.size, 1)
    return y
