"""Arrays that begin at a cache line.

A processor moves memory in lines of 64 bytes, and its widest store is just as long.  What NumPy allocates begins 16 bytes
into a line, so each such store touches two: a product of two arrays in the cache then takes twice the time, an exponential
a fifth more, a narrow matrix product 5 %.  Loads mind much less, so it is what a kernel writes to again and again that counts:
the results of softmax, norms and GELU, and the tiles of attention; and what `pieces` reads again and again.  Elsewhere it gained
nothing.
"""

import math

import numpy as np
from numpy import ndarray

LINE = 64
SMALL = 1 << 14                 # elements, below which the two microseconds are not worth it


def empty(shape: int | tuple[int, ...], dtype: np.dtype) -> ndarray:
    """`numpy.empty` at the start of a cache line, for any dtype; a small array begins where NumPy puts it."""
    size = shape if isinstance(shape, int) else math.prod(shape)
    return np.empty(shape, dtype) if size < SMALL else _at_line(size, dtype).reshape(shape)


def empty_rows(shape: tuple[int, ...], dtype: np.dtype) -> ndarray:
    """`numpy.empty` of which every row, and be it a short one, begins at a cache line; what is left of a line lies between them."""
    *lead, length = shape
    room = -(-length * dtype.itemsize // LINE) * LINE // dtype.itemsize
    return _at_line(math.prod(lead) * room, dtype).reshape(*lead, room)[..., :length]


def aligned(x: ndarray) -> ndarray:
    """A copy of x with every row at the start of a cache line."""
    copy = empty_rows(x.shape, x.dtype)
    copy[...] = x
    return copy


def _at_line(size: int, dtype: np.dtype) -> ndarray:
    spare = np.empty(size + LINE // dtype.itemsize, dtype)
    start = -spare.__array_interface__["data"][0] % LINE // dtype.itemsize
    return spare[start:start + size]
