"""Products of two matrices or of two stacks of them, and with them a linear layer, y = x W^T + b.

    dx = g W        dW = g^T x        db = 1^T g

x is (rows, in), whatever its axes were: one large product is much faster than one for each item of
a batch. The sum over rows is a product with ones, faster than NumPy's sum. Where the products are
large, the rows (for dW: the rows of W) are shared out over our threads, each with a product of its
own: the bias is then added on all cores as well, and the matrix library's own threads stay asleep.
Those go on spinning for 0.1 s after each product and keep the cores from our workers, so the two
are not mixed: a model of few rows is left to the library's threads, of many rows to ours, and a
small product beside the shared ones stays in one thread; and so does attention beside the library's
(see `whole`). (An MLP of 256 x 512 with two threads took twice the time when they were mixed.) With
4 to 17 rows y and dW are made in pieces (see `pieces`): y^T = W x^T, since x is the one to be
turned at little cost.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy import ndarray

from ..threads import get_num_threads, one_blas_thread, split
from .memory import aligned
from .pieces import Product, thin
from .scores import ones

BIG = 1 << 23  # multiplications, from where a second thread of ours is worth its start
# fewer rows than this are left to the matrix library, which starts its own threads sooner than we
# do
ROWS = 384
SMALL = 1 << 21  # multiplications, below which its threads gain less than their spinning costs
TINY = 1 << 19  # and below which they hardly take part, and keeping them out would cost more
SHORT = 1 << 14  # elements of the left matrix, below which `product` does not look further
# multiplications of two stacks of matrices, from where a second thread of ours is worth its start
STACKS = 1 << 24
MANY = 1 << 13  # rows, from twice which they are added up in two halves
_AS_IT_IS = nullcontext()


def _shared(rows: int, size: int) -> bool:
    return rows >= ROWS and rows * size >= BIG


def left_to_library(rows: int, size: int) -> bool:
    """Do the matrix library's threads multiply so many rows by a matrix of that size?"""
    return rows < ROWS and rows * size >= SMALL


def _alone(rows: int, size: int) -> Any:
    """One thread for a product that is not shared out, unless the matrix library's threads may have
    it.
    """
    return (
        one_blas_thread()
        if rows * size >= TINY and not left_to_library(rows, size) and get_num_threads() > 1
        else _AS_IT_IS
    )


def product(a: ndarray, b: ndarray) -> ndarray:
    """a @ b for whatever NumPy multiplies, with NumPy's errors; what is large and of one float
    dtype is shared out.

    Of (..., rows, k) @ (k, n) the rows, of two stacks of matrices the stacks.
    """
    if not (isinstance(a, ndarray) and isinstance(b, ndarray)) or a.ndim < 2 or b.ndim < 2:
        return a @ b
    if (
        a.shape[-1] == b.shape[-2] == 1
    ):  # columns by rows: `@` takes four to eight times as long here
        return _dot(a, b) if a.ndim == b.ndim == 2 else a * b
    if a.size < SHORT or a.dtype != b.dtype or a.dtype.kind != "f" or a.shape[-1] != b.shape[-2]:
        return a @ b
    if b.ndim > 2:
        return _stacks(a, b)
    x = a if a.ndim == 2 else a.reshape(-1, len(b))
    rows, size = len(x), b.size
    if (
        x.strides[0] < x.strides[1]
    ):  # x^T g, a gradient by weights: the model's rows lie along the other axis
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
    if threads == 1 or max(a.size * b.shape[-1], b.size * a.shape[-2]) < STACKS:
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
    if rows * size < TINY:  # small layers, which feel every question asked
        y = x.dot(weight.T) if x.size != 1 != size else x * weight.T
    elif _shared(rows, size):
        return _linear_shared(x, weight, bias)
    elif thin(rows, size):
        y = _linear_thin(x, weight)
    else:
        with _alone(rows, size):
            y = _dot(x, weight.T)
    if bias is not None:
        y += bias
    return y


def _linear_thin(x: ndarray, weight: ndarray) -> ndarray:
    turned = np.empty((len(weight), len(x)), x.dtype)
    Product(weight, aligned(x.T), turned)()
    return turned.T.copy()


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
    if _shared(rows, size):
        return _backward_shared(g, x, weight, wants_x, wants_weight, wants_bias)
    with _alone(rows, size):
        dx = _dot(g, weight) if wants_x else None
        dweight = (
            None
            if not wants_weight
            else _by_weight_thin(g, x)
            if thin(rows, size)
            else _dot(g.T, x)
        )
        return dx, dweight, _sum_of_rows(g) if wants_bias else None


def _sum_of_rows(g: ndarray) -> ndarray:
    """1^T g; of very many rows half by half, since one after another they would lose three digits
    of float32's seven.
    """
    half = len(g) // 2
    return (
        ones(len(g), g.dtype).dot(g)
        if half < MANY
        else _sum_of_rows(g[:half]) + _sum_of_rows(g[half:])
    )


def _by_weight_thin(g: ndarray, x: ndarray) -> ndarray:
    dweight = np.empty((g.shape[1], x.shape[1]), x.dtype)
    Product(g.T, x, dweight)()
    return dweight


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
