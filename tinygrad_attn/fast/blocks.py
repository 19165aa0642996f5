"""Blocks of rows that stay in the cache and are divided among threads, and sums of rows.

A kernel with ten NumPy calls on a large array would read and write memory ten times. A kernel that
works on blocks of rows does so only once.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from ..engine import Variable
from . import tuning
from .threads import dot, split, workers

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

# No warnings are needed if exponentials leave their range, because the sums show it.
QUIET: dict[str, Any] = dict.fromkeys(("over", "under", "invalid", "divide"), "ignore")


def ordinary(*operands):
    """Return the arrays of these operands; all but the first may be None.

    Returns None if one is empty or not an array, or if they are not all float32 or all float64.
    """
    dtype, arrays = getattr(operands[0], "dtype", None), []
    for x in operands:
        a = x._data if isinstance(x, Variable) else x
        if a is not None and (type(a) is not ndarray or a.dtype != dtype or not a.size * a.ndim):
            return None
        arrays.append(a)
    return arrays if dtype in FLOATS else None


def matrix(x):
    """Return x as a contiguous matrix, with the same last axis."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def by_rows(f, rows, width):
    """Call f on consecutive slices of the rows, each `width` elements wide, until all are done."""
    if rows * width <= tuning.BLOCK:
        f(slice(0, rows))
        return
    big = rows * width >= tuning.SECOND_THREAD
    block = tuning.BLOCK_OF_THREADS if workers(big) > 1 else tuning.BLOCK
    step = max(1, block // width)

    def run(start, stop):
        for i in range(start, stop, step):
            f(slice(i, min(i + step, stop)))

    split(run, rows, big)


def by_elements(f, *arrays, results=1):
    """Return new arrays, filled by calling f(*blocks of the arrays, *blocks of the results)."""
    like = arrays[0]
    new = [np.empty(like.shape, like.dtype) for _ in range(results)]
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays] + [a.reshape(-1) for a in new]
    by_rows(lambda s: f(*[a[s] for a in flat]), like.size, 1)
    return new


@lru_cache(maxsize=32)
def ones(n: int, dtype: np.dtype):
    """Return n ones: `x @ ones(n)` is the fastest way to sum rows, `ones(n) @ x` to sum columns."""
    return np.ones(n, dtype)


def row_sums(x):
    """Return the sums over the last axis."""
    n = x.shape[-1]
    if n > tuning.SUMMED_BY_PRODUCT:
        return x.sum(-1)
    return dot(x.reshape(-1, n), ones(n, x.dtype)).reshape(x.shape[:-1])


def in_range(total, low, high):
    """Return whether low < total < high everywhere; return False if there is a NaN."""
    # argmin() takes a third of the time that min() takes.
    return bool(total.item(total.argmin()) > low and total.item(total.argmax()) < high)


def sum_of_rows(g):
    """Return ones @ g, computed in halves because very long float32 sums lose digits."""
    half = len(g) // 2
    if half < tuning.HALVED_ROWS:
        return dot(ones(len(g), g.dtype), g)
    return sum_of_rows(g[:half]) + sum_of_rows(g[half:])
