"""Arrays that begin at a cache line, and matrices turned a few cache lines at a time.

A processor moves memory in lines of 64 bytes, and its widest store is just as long. What NumPy
allocates begins 16 bytes into a line, so each such store touches two: a product of two arrays in
the cache then takes twice the time, an exponential a fifth more, a narrow matrix product 5 %. Loads
mind much less, so it is what a kernel writes to again and again that counts: the results of
softmax, norms and element-wise functions, and the tiles of attention; and what `pieces` reads again
and again. Elsewhere it gained nothing.

NumPy copies a transposed matrix along its long way, so that of each line only one number is used
before the line is needed again; and where rows lie 1,024 bytes apart, or a multiple of that, few of
them fit in the cache side by side. There it takes a fifth to a half of the time in strips of 32
columns, and elsewhere about the same.
"""

import math
import threading

import numpy as np
from numpy import ndarray

LINE = 64
SMALL = 1 << 14  # elements, below which the two microseconds are not worth it
STRIP = 32  # columns turned at a time
LARGE = 1 << 15  # elements of a matrix, from where it is worth being turned so


def empty(shape: int | tuple[int, ...], dtype: np.dtype) -> ndarray:
    """`numpy.empty` at the start of a cache line, for any dtype; a small array begins where NumPy
    puts it.
    """
    size = shape if isinstance(shape, int) else math.prod(shape)
    return np.empty(shape, dtype) if size < SMALL else _at_line(size, dtype).reshape(shape)


def empty_rows(shape: tuple[int, ...], dtype: np.dtype) -> ndarray:
    """`numpy.empty` of which every row, and be it a short one, begins at a cache line; what is left
    of a line lies between them.
    """
    *lead, length = shape
    room = -(-length * dtype.itemsize // LINE) * LINE // dtype.itemsize
    return _at_line(math.prod(lead) * room, dtype).reshape(*lead, room)[..., :length]


def aligned(x: ndarray) -> ndarray:
    """A copy of x with every row at the start of a cache line."""
    copy = empty_rows(x.shape, x.dtype)
    copy[...] = x
    return copy


def contiguous(x: ndarray) -> ndarray:
    """x if it lies row by row, or else a copy that does."""
    if x.flags.c_contiguous:
        return x
    if (
        x.ndim < 2
        or x.size < LARGE
        or min(x.shape[-2:]) < 2 * STRIP
        or abs(x.strides[-2]) >= abs(x.strides[-1])
    ):
        return np.ascontiguousarray(x)
    y = np.empty(x.shape, x.dtype)
    for i in range(0, x.shape[-1], STRIP):
        y[..., i : i + STRIP] = x[..., i : i + STRIP]
    return y


class Scratch(threading.local):
    """Two blocks of working memory for each thread, kept, since fresh memory costs as much as a
    pass over it.
    """

    def __init__(self, length: int) -> None:
        self.length, self.blocks = length, dict[np.dtype, ndarray]()

    def of(self, dtype: np.dtype) -> ndarray:
        return (
            self.blocks[dtype]
            if dtype in self.blocks
            else self.blocks.setdefault(dtype, np.empty((2, self.length), dtype))
        )


def _at_line(size: int, dtype: np.dtype) -> ndarray:
    spare = np.empty(size + LINE // dtype.itemsize, dtype)
    start = -spare.__array_interface__["data"][0] % LINE // dtype.itemsize
    return spare[start : start + size]
