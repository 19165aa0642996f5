"""Row by row, a cache-sized block at a time: the loop that the element-wise kernels share.

A kernel of ten NumPy calls on a large array would read and write memory ten times. Cut into blocks
of rows that stay in the cache it does so once; and the blocks are shared out over threads. With
several threads the blocks must be larger, because each NumPy call then ends with a queue for
Python's lock.

To compute with a column, as in x * r[:, None], NumPy goes through several rows at once, in pieces
of 8,192 elements, and for that it first writes each r as often as its row is long into a buffer. A
buffer no longer than a row leaves nothing to write, and the product takes half the time, or a
third; below 160 numbers a row NumPy's way is faster.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from ..threads import get_num_threads, split
from .memory import contiguous, empty
from .scores import ones

FAST = (
    np.dtype(np.float32),
    np.dtype(np.float64),
)  # in the byte order of the machine, which products need
BIG = 1 << 18  # elements, from where a second thread is worth its start
ALONE, SHARED = 1 << 16, 1 << 18  # elements in a block, with one thread and with several
BUFFERED = range(160, 4097)  # the widths for which NumPy's buffer is made as short as a row
WORTH = 1 << 13  # and the elements from where that is worth two calls
LONG = 1024  # numbers in a row, from where `max` is quicker than `argmax` and a look-up
SHORT = 128  # up to which its sum as a product is as exact as NumPy's own
NARROW = 16  # up to which it is better turned to find its maximum
WIDE = 64  # numbers in a row, up to which some matrices' few rows are compared one after the other
FEW = 1 << 11  # elements in all rows, below which that gains nothing


def by_rows(f: Callable[[slice], Any], rows: int, width: int) -> None:
    """Call f(slice of rows) until all rows, each of `width` elements, are done."""
    short = width in BUFFERED and rows * width >= WORTH
    before = np.setbufsize(width // 16 * 16) if short else None  # of this thread and its workers
    try:
        if rows * width <= ALONE:
            f(slice(0, rows))
            return
        big = rows * width >= BIG
        step = max(1, (SHARED if big and get_num_threads() > 1 else ALONE) // max(1, width))

        def run(lo: int, hi: int) -> None:
            for i in range(lo, hi, step):
                f(slice(i, min(i + step, hi)))

        split(run, rows, big)
    finally:
        if before is not None:
            np.setbufsize(before)


def by_elements(f: Callable[..., Any], *arrays: ndarray, results: int = 1) -> list[ndarray]:
    """New arrays like the given ones, which are of one shape and dtype, filled by f(*blocks,
    *blocks of the results).
    """
    like = arrays[0]
    new = [empty(like.shape, like.dtype) for _ in range(results)]
    flat = [contiguous(a).reshape(-1) for a in arrays] + [a.reshape(-1) for a in new]
    by_rows(lambda s: f(*[a[s] for a in flat]), like.size, 1)
    return new


def row_dots(a: ndarray, b: ndarray) -> ndarray:
    """rowsum(a * b). Few long rows by einsum: vecdot keeps Python's lock if it makes 500 numbers or
    fewer, and others wait.
    """
    return np.einsum("ij,ij->i", a, b) if len(a) <= 500 < a.shape[1] else np.vecdot(a, b)


def row_max(x: ndarray) -> ndarray:
    """The largest number of each row of x (rows, n), as (rows, 1).

    `max` begins anew for each row. Short rows are turned first; others go by `argmax` and a
    look-up: for rows of 2 to 500 numbers in a twentieth to a half of the time.
    """
    rows, n = x.shape
    if n >= LONG:
        return x.max(-1, keepdims=True)
    if n <= NARROW:
        return np.maximum.reduce(np.ascontiguousarray(x.T))[:, None]
    return x.reshape(-1).take(x.argmax(1) + np.arange(0, rows * n, n))[:, None]


def row_sums(x: ndarray) -> ndarray:
    """The sum of each row of x (rows, n): of up to SHORT numbers as a product with ones, since
    `sum` begins anew for each row.
    """
    rows, n = x.shape
    if n > SHORT:
        return x.sum(-1)
    if x.size <= ALONE:
        return x.dot(ones(n, x.dtype))
    total, one = np.empty(rows, x.dtype), ones(n, x.dtype)
    by_rows(lambda s: np.dot(x[s], one, out=total[s]), rows, n)
    return total


def column_sums(x: ndarray) -> ndarray:
    """The sum of each column of the matrices x (many, n, width), as (many, width): a product with
    ones, since `sum` adds row to row.
    """
    return np.matmul(ones(x.shape[1], x.dtype), x)


def column_max(x: ndarray) -> ndarray:
    """The largest number of each column of the matrices x (many, n, width), as (many, width).

    `max` goes from row to row, and that is slow where these are short. A few rows are compared with
    each other, all matrices at once; very narrow matrices are turned.
    """
    many, n, width = x.shape
    if n <= NARROW and width <= WIDE:
        return functools.reduce(np.maximum, x.swapaxes(0, 1))
    return (
        x.max(1)
        if width > NARROW // 2
        else row_max(np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, n)).reshape(many, width)
    )


def runs(x: ndarray, axis: Any) -> list[tuple[int, int]]:
    """Runs of adjacent axes, (first, stop), to reduce x over with `reduced`, the last first.

    There are none where NumPy does it as soon, or has to say what is wrong with the axes.
    """
    ndim = x.ndim
    if x.size < FEW or x.dtype not in FAST or not x.flags.c_contiguous or ndim < 2:
        return []
    if axis.__class__ is int:
        return [(axis % ndim, axis % ndim + 1)] if -ndim <= axis < ndim else []
    if axis.__class__ is not tuple or not all(
        a.__class__ is int and -ndim <= a < ndim for a in axis
    ):
        return []
    found: list[tuple[int, int]] = []
    for a in sorted({a % ndim for a in axis}, reverse=True):
        found[-1:] = (
            [(a, found[-1][1])] if found and found[-1][0] == a + 1 else [*found[-1:], (a, a + 1)]
        )
    return found if sum(stop - first for first, stop in found) == len(axis) < ndim else []


def reduced(
    x: ndarray,
    axes: list[tuple[int, int]],
    keepdims: bool,
    rows: Callable[[ndarray], ndarray],
    columns: Callable[[ndarray], ndarray],
) -> ndarray:
    """x reduced over these runs of axes: by `rows` what lies in rows (many, n), by `columns`
    matrices (many, n, width).
    """
    shape = x.shape
    for first, stop in axes:  # what is behind it is not touched by those that follow
        n, width = math.prod(shape[first:stop]), math.prod(shape[stop:])
        x = rows(x.reshape(-1, n)) if width == 1 else columns(x.reshape(-1, n, width))
        shape = (*shape[:first], *((1,) * (stop - first) if keepdims else ()), *shape[stop:])
    return x.reshape(shape)
