"""Products of two matrices or of two stacks of them, and with them a linear layer, y = x W^T + b.

    dx = g W        dW = g^T x        db = 1^T g

x is (rows, in), whatever its axes were: one large product is much faster than one for each item of
a batch. The sum over rows is a product with ones, faster than NumPy's sum.

**Shared out.** Where the products are large, the rows (for dW: the rows of W) are shared out over
our threads, each with a product of its own: the bias is then added on all cores as well, and the
matrix library's own threads stay asleep. Those go on spinning for 0.1 s after each product and keep
the cores from our workers, so the two are not mixed: a model of few rows is left to the library's
threads, of many rows to ours, and a small product beside the shared ones stays in one thread; and
so does attention beside the library's. An MLP of 256 x 512 with two threads took twice the time
when they were mixed.

**In pieces.** Before it multiplies, OpenBLAS copies both matrices into an order of its own. For
processors with AVX-512 it has a second kernel, for up to a million multiplications, that does
without; in attention, with 32, 64 or 96 numbers a head, that one is 15 to 30 % faster. So such a
product is cut into pieces of at most a million, all in one call of `numpy.matmul`, which goes
through stacks of matrices. For x y^T as it lies that kernel is not made: `turn` turns y beforehand.
The right matrix is read again and again, which is why its rows should lie close together: in blocks
of columns, one after another. On other processors a product is one piece, and all this is
`numpy.matmul`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from numpy import ndarray

from .. import tuning
from ..threads import blas_core, get_num_threads, one_blas_thread, split
from .rows import ones

# The processors that OpenBLAS has the kernel without copies for, by its names for them.
CORES = ("SkylakeX", "Cooperlake", "SapphireRapids")
_AS_IT_IS = nullcontext()


# ---- in pieces


@cache
def _cuts() -> bool:
    return blas_core() in CORES


@lru_cache(maxsize=256)
def _rows(height: int, depth: int, columns: int, few: int) -> int:
    """How many of its rows a piece has, in a product of that depth and so many columns: cut evenly,
    if that can be.
    """
    narrow = min(depth, columns)  # the numbers of a head, or one more
    worth = 32 <= narrow < 98 and narrow % 32 < 2
    most = tuning.PIECE // (depth * columns) if worth and _cuts() else 0
    if most < few or height <= most:
        return height
    count = -(-height // most)
    return height // count if height % count == 0 else 1 << most.bit_length() - 1


def weighted_sums(weights: ndarray, values: ndarray, out: ndarray) -> None:
    """out <- weights values. OpenBLAS's kernel without copies adds one number after the other and
    rounds nearly equal ones to one side, so there a long sum is made of short ones.
    """
    *_, rows, length = weights.shape
    small = rows * length * values.shape[-1] <= tuning.PIECE
    if rows == 1 or length <= 2 * tuning.SUMMED_AT_ONCE or not (small and _cuts()):
        np.matmul(weights, values, out=out)
        return
    np.matmul(weights[..., : tuning.SUMMED_AT_ONCE], values[..., : tuning.SUMMED_AT_ONCE, :], out)
    for start in range(tuning.SUMMED_AT_ONCE, length, tuning.SUMMED_AT_ONCE):
        part = slice(start, start + tuning.SUMMED_AT_ONCE)
        out += weights[..., part] @ values[..., part, :]


def room(n: int, depth: int, dtype: np.dtype, *lead: int) -> ndarray:
    """Memory for `turn`: n columns as blocks, (..., blocks, depth, width)."""
    count = (
        -(-n // tuning.PIECE_COLUMNS)
        if _rows(tuning.PIECE, depth, tuning.PIECE_COLUMNS, tuning.PIECE_ROWS) < tuning.PIECE
        else 1
    )
    return np.empty(
        (*lead, count, depth, n // count if n % count == 0 else tuning.PIECE_COLUMNS), dtype
    )


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
        high = _rows(
            height,
            depth,
            wide,
            tuning.PIECE_ROWS if a.strides[-1] == a.itemsize else 2 * tuning.PIECE_ROWS,
        )
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


# ---- on several threads


def _shared(rows: int, size: int) -> bool:
    return rows >= tuning.SHARED_PRODUCT_ROWS and rows * size >= tuning.SHARED_PRODUCT


def left_to_library(rows: int, size: int) -> bool:
    """Do the matrix library's threads multiply so many rows by a matrix of that size?"""
    return rows < tuning.SHARED_PRODUCT_ROWS and rows * size >= tuning.LIBRARY_THREADS


def _alone(rows: int, size: int) -> Any:
    """One thread for a product that is not shared out, unless the matrix library's threads may have
    it.
    """
    ours = rows * size >= tuning.TINY_PRODUCT and not left_to_library(rows, size)
    return one_blas_thread() if ours and get_num_threads() > 1 else _AS_IT_IS


def product(a: ndarray, b: ndarray) -> ndarray:
    """a @ b for whatever NumPy multiplies, with NumPy's errors; what is large and of one float
    dtype is shared out.

    Of (..., rows, k) @ (k, n) the rows, of two stacks of matrices the stacks.
    """
    if not (isinstance(a, ndarray) and isinstance(b, ndarray)) or a.ndim < 2 or b.ndim < 2:
        return a @ b
    if a.shape[-1] == b.shape[-2] == 1:  # columns by rows: `@` takes four to eight times as long
        return _dot(a, b) if a.ndim == b.ndim == 2 else a * b
    if (
        a.size < tuning.SHORT_PRODUCT
        or a.dtype != b.dtype
        or a.dtype.kind != "f"
        or a.shape[-1] != b.shape[-2]
    ):
        return a @ b
    if b.ndim > 2:
        return _stacks(a, b)
    x = a if a.ndim == 2 else a.reshape(-1, len(b))
    rows, size = len(x), b.size
    if x.strides[0] < x.strides[1]:
        # x^T g, a gradient by weights: the model's rows lie along the other axis.
        rows, size = len(b), len(x) * b.shape[1]
    if not _shared(rows, size):
        with _alone(rows, size):
            y = x @ b
    else:
        y = np.empty((len(x), b.shape[1]), a.dtype)
        split(lambda lo, hi: np.matmul(x[lo:hi], b, out=y[lo:hi]), len(x))
    return y if a.ndim == 2 else y.reshape(*a.shape[:-1], b.shape[1])


def _dot(a: ndarray, b: ndarray) -> ndarray:
    """a @ b of two matrices, but 0 NaN is NaN: `dot` with a single number that is 0 gives zeros
    whatever the others are.
    """
    return a * b if a.size == 1 or b.size == 1 else a.dot(b)


def _stacks(a: ndarray, b: ndarray) -> ndarray:
    """a @ b for (..., m, k) and (..., k, n)."""
    threads = get_num_threads()
    if threads == 1 or max(a.size * b.shape[-1], b.size * a.shape[-2]) < tuning.SHARED_STACKS:
        return a @ b
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    axis = next((i for i, n in enumerate(lead) if n >= threads), None)
    if axis is None:
        return a @ b
    a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    y = np.empty((*lead, a.shape[-2], b.shape[-1]), a.dtype)

    def run(lo: int, hi: int) -> None:
        part = (slice(None),) * axis + (slice(lo, hi),)
        np.matmul(a[part], b[part], out=y[part])

    split(run, lead[axis])
    return y


def linear(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    """x (rows, in), weight (out, in), bias (out,) or None -> (rows, out)."""
    rows, size = len(x), weight.size
    if rows * size < tuning.TINY_PRODUCT:  # small layers, which feel every question asked
        y = x.dot(weight.T) if x.size != 1 != size else x * weight.T
    elif _shared(rows, size):
        return _linear_shared(x, weight, bias)
    else:
        with _alone(rows, size):
            y = _dot(x, weight.T)
    if bias is not None:
        y += bias
    return y


def _linear_shared(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    y = np.empty((len(x), len(weight)), x.dtype)

    def run(lo: int, hi: int) -> None:
        part = y[lo:hi]
        np.matmul(x[lo:hi], weight.T, out=part)
        if bias is not None:
            part += bias

    split(run, len(x))
    return y


def linear_backward(
    g: ndarray,
    x: ndarray,
    weight: ndarray,
    wants_x: bool = True,
    wants_weight: bool = False,
    wants_bias: bool = False,
) -> tuple[ndarray | None, ndarray | None, ndarray | None]:
    """(dx, dweight, dbias) for the cotangent g (rows, out); what is not wanted is None."""
    rows, size = len(x), weight.size
    if rows * size < tuning.TINY_PRODUCT and rows < tuning.HALVED_ROWS and rows > 1 != size:
        return (  # small layers, which feel every question asked
            g.dot(weight) if wants_x else None,
            g.T.dot(x) if wants_weight else None,
            ones(rows, g.dtype).dot(g) if wants_bias else None,
        )
    if _shared(rows, size):
        return _backward_shared(g, x, weight, wants_x, wants_weight, wants_bias)
    with _alone(rows, size):
        dx = _dot(g, weight) if wants_x else None
        dweight = _dot(g.T, x) if wants_weight else None
        return dx, dweight, _sum_of_rows(g) if wants_bias else None


def _sum_of_rows(g: ndarray) -> ndarray:
    """1^T g; of very many rows half by half, since one after another they would lose three digits
    of float32's seven.
    """
    half = len(g) // 2
    return (
        ones(len(g), g.dtype).dot(g)
        if half < tuning.HALVED_ROWS
        else _sum_of_rows(g[:half]) + _sum_of_rows(g[half:])
    )


def _backward_shared(
    g: ndarray, x: ndarray, weight: ndarray, wants_x: bool, wants_weight: bool, wants_bias: bool
) -> tuple[ndarray | None, ndarray | None, ndarray | None]:
    dx = np.empty(x.shape, x.dtype) if wants_x else None
    dweight = np.empty(weight.shape, weight.dtype) if wants_weight else None
    dbias = np.empty(len(weight), weight.dtype) if wants_bias else None
    rows, outputs = g.shape

    def by_input(lo: int, hi: int) -> None:
        np.matmul(g[lo:hi], weight, out=dx[lo:hi])  # type: ignore[index]

    def by_weight(lo: int, hi: int) -> None:
        cut = slice(lo * outputs // rows, hi * outputs // rows)
        if dweight is not None:
            np.matmul(g[:, cut].T, x, out=dweight[cut])
        if dbias is not None:
            dbias[cut] = _sum_of_rows(g[:, cut])

    # The two are the same work. Laid end to end, two threads do one each, which takes 4 to 12 %
    # less than half of both would.
    products = [by_input] * wants_x + [by_weight] * (wants_weight or wants_bias)

    def run(lo: int, hi: int) -> None:
        for product in products:
            if lo < rows and hi > 0:
                product(max(lo, 0), min(hi, rows))
            lo, hi = lo - rows, hi - rows

    split(run, rows * len(products))
    return dx, dweight, dbias
