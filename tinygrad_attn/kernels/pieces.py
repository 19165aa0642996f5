"""Matrix products cut into pieces that the matrix library takes as they lie.

Before it multiplies, OpenBLAS copies both matrices into an order of its own.  For processors with AVX-512 it has a second kernel,
for up to a million multiplications, that does without; in attention, with 32, 64 or 96 numbers a head, that one is 15 to 30 %
faster.  So such a product is cut into pieces of at most a million, all in one call of `numpy.matmul`, which goes through
stacks of matrices.  (For x y^T as it lies that kernel is not made: `turned` turns y beforehand.)  It reads the right matrix again
and again, which is why that should begin at a cache line and its rows lie close together: blocks of WIDE columns, one after another.

On other processors a product is one piece, and all this is `numpy.matmul`.
"""

from functools import cache, lru_cache

import numpy as np
from numpy import ndarray

from ..threads import blas_core
from .memory import empty_rows

MOST = 1_000_000                # multiplications in a piece: the limit of OpenBLAS
WIDE = 128                      # columns of a block
FEW = 16                        # rows of a piece, below which nothing is gained; twice as many where they lie as columns
CORES = ("SkylakeX", "Cooperlake", "SapphireRapids")        # as OpenBLAS calls the processors it has that kernel for


@cache
def _cuts() -> bool:
    return blas_core() in CORES


@lru_cache(maxsize=256)
def _rows(height: int, depth: int, columns: int, few: int) -> int:
    """How many of its rows a piece has, in a product of that depth and so many columns: cut evenly, if that can be."""
    narrow = min(depth, columns)                    # the numbers of a head, or one more
    most = MOST // (depth * columns) if _cuts() and narrow % 32 < 2 and 32 <= narrow < 98 else 0
    if most < few or height <= most:
        return height
    count = -(-height // most)
    return height // count if height % count == 0 else 1 << most.bit_length() - 1


def turned(x: ndarray) -> ndarray:
    """x^T of x (n, depth), as blocks of columns, (blocks, depth, width); what lies beyond n in the last one is left as it was."""
    n, depth = x.shape
    count = -(-n // WIDE) if _rows(MOST, depth, WIDE, FEW) < MOST else 1
    wide = n // count if n % count == 0 else WIDE
    blocks = empty_rows((count, depth, wide), x.dtype)
    full = n // wide
    blocks[:full] = x[:full * wide].reshape(full, wide, depth).swapaxes(1, 2)
    blocks[full:, :, :n - full * wide] = x[full * wide:].T
    return blocks


def multiply(a: ndarray, b: ndarray, out: ndarray) -> ndarray:
    """out <- a b for a (rows, depth) and b (depth, columns), or the first columns of b in blocks as `turned` makes them."""
    (height, depth), width, wide = a.shape, out.shape[1], b.shape[-1]
    high = _rows(height, depth, wide, FEW if a.strides[1] == a.itemsize else 2 * FEW)
    if high == height and width <= wide:
        return np.matmul(a, b if b.ndim == 2 else b[0, :, :width], out=out)
    blocks = b if b.ndim == 3 else b[None]
    m, n = height // high, width // wide
    rows, columns = m * high, n * wide
    if rows < height:
        multiply(a[rows:], b, out[rows:])
    if columns < width:
        multiply(a[:rows], blocks[n, :, :width - columns], out[:rows, columns:])
    np.matmul(a[:rows].reshape(m, 1, high, depth), blocks[:n], out=out[:rows, :columns].reshape(m, high, n, wide).swapaxes(1, 2))
    return out
