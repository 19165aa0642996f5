"""Matrix products cut into pieces that the matrix library takes as they lie.

Before it multiplies, OpenBLAS copies both matrices into an order of its own. For processors with
AVX-512 it has a second kernel, for up to a million multiplications, that does without; in
attention, with 32, 64 or 96 numbers a head, that one is 15 to 30 % faster, and with 4 to 16
numbers, or in a linear layer of so few rows, up to twice as fast. So such a product is cut into
pieces of at most a million, all in one call of `numpy.matmul`, which goes through stacks of
matrices. (For x y^T as it lies that kernel is not made: `turn` turns y beforehand.) It reads the
right matrix again and again, which is why that should begin at a cache line and its rows lie close
together: blocks of WIDE columns, one after another.

On other processors a product is one piece, and all this is `numpy.matmul`.
"""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from numpy import ndarray

from ..threads import blas_core
from .memory import empty_rows

MOST = 1_000_000  # multiplications in a piece: the limit of OpenBLAS
WIDE = 128  # columns of a block
THIN = range(
    4, 18
)  # rows of x, or numbers of a head and one more, with which large products gain most
FEW = 16  # rows of a piece, below which nothing is gained; twice as many where they lie as columns
CORES = (
    "SkylakeX",
    "Cooperlake",
    "SapphireRapids",
)  # as OpenBLAS calls the processors it has that kernel for


@cache
def _cuts() -> bool:
    return blas_core() in CORES


@lru_cache(maxsize=256)
def _rows(height: int, depth: int, columns: int, few: int) -> int:
    """How many of its rows a piece has, in a product of that depth and so many columns: cut evenly,
    if that can be.
    """
    narrow = min(depth, columns)  # the numbers of a head, or one more; or the rows of a thin x
    worth = narrow in THIN or 32 <= narrow < 98 and narrow % 32 < 2
    most = MOST // (depth * columns) if worth and _cuts() else 0
    if most < few or height <= most:
        return height
    count = -(-height // most)
    return height // count if height % count == 0 else 1 << most.bit_length() - 1


def thin(rows: int, size: int) -> bool:
    """Are products of so few rows with a matrix of that size worth being cut?"""
    return rows in THIN and rows * size > MOST and _cuts()


def room(n: int, depth: int, dtype: np.dtype, *lead: int) -> ndarray:
    """Memory for `turn`: n columns as blocks, (..., blocks, depth, width)."""
    count = -(-n // WIDE) if _rows(MOST, depth, WIDE, FEW) < MOST else 1
    return empty_rows((*lead, count, depth, n // count if n % count == 0 else WIDE), dtype)


def turn(x: ndarray, blocks: ndarray) -> ndarray:
    """blocks <- x^T of x (..., n, depth); what lies beyond n in the last one is left as it was."""
    *lead, n, depth = x.shape
    wide = blocks.shape[-1]
    full = n // wide
    blocks[..., :full, :, :] = (
        x[..., : full * wide, :].reshape(*lead, full, wide, depth).swapaxes(-1, -2)
    )
    if full * wide < n:
        blocks[..., full, :, : n - full * wide] = x[..., full * wide :, :].swapaxes(-1, -2)
    return blocks


class Product:
    """out <- a b for a (..., rows, depth) and b (..., depth, columns), or the first columns of b in
    blocks as `turn` makes them.

    It is cut up once, and each call multiplies what the matrices then hold: between short calls two
    threads wait for Python.
    """

    __slots__ = ("calls",)

    def __init__(self, a: ndarray, b: ndarray, out: ndarray):
        (*lead, height, depth), width, wide = a.shape, out.shape[-1], b.shape[-1]
        high = _rows(height, depth, wide, FEW if a.strides[-1] == a.itemsize else 2 * FEW)
        blocks = b if b.ndim > a.ndim else b[..., None, :, :]
        self.calls: list[Callable[[], Any]] = []
        if high == height and width <= wide:
            self.calls = [partial(np.matmul, a, blocks[..., 0, :, :width], out)]
            return
        m, n = height // high, width // wide
        rows, columns = m * high, n * wide
        if rows < height:
            self.calls += Product(a[..., rows:, :], b, out[..., rows:, :]).calls
        if columns < width:
            self.calls += Product(
                a[..., :rows, :], blocks[..., n, :, : width - columns], out[..., :rows, columns:]
            ).calls
        cut = out[..., :rows, :columns].reshape(*lead, m, high, n, wide).swapaxes(-2, -3)
        self.calls.append(
            partial(
                np.matmul,
                a[..., :rows, :].reshape(*lead, m, 1, high, depth),
                blocks[..., None, :n, :, :],
                cut,
            )
        )

    def __call__(self) -> None:
        for call in self.calls:
            call()
