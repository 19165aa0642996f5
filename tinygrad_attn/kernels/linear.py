"""A linear layer, y = x W^T + b, as products of two matrices.

    dx = g W        dW = g^T x        db = 1^T g

x is (rows, in), whatever its axes were: one large product is much faster than one for each item of a batch.  The sum over
rows is a product with ones, faster than NumPy's sum.  Where the products are large, the rows (for dW: the rows of W) are
shared out over our threads, each with a product of its own: the bias is then added on all cores as well, and the matrix
library's own threads stay asleep, which otherwise spin on after each product and keep the cores from the other kernels.
"""

import numpy as np
from numpy import ndarray

from ..threads import split
from .scores import ones

BIG = 1 << 23                   # multiplications, from where a second thread is worth its start
ROWS = 256                      # fewer rows than this are left to the matrix library, which starts its own threads sooner than we do


def linear(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    """x (rows, in), weight (out, in), bias (out,) or None -> (rows, out)."""
    if len(x) < ROWS or len(x) * weight.size < BIG:
        y = x.dot(weight.T)
        if bias is not None:
            y += bias
        return y
    y = np.empty((len(x), len(weight)), x.dtype)

    def run(lo: int, hi: int) -> None:
        part = y[lo:hi]
        np.matmul(x[lo:hi], weight.T, out=part)
        if bias is not None:
            part += bias

    split(run, len(x))
    return y


def linear_backward(g: ndarray, x: ndarray, weight: ndarray, wants_x: bool = True, wants_weight: bool = True,
                    wants_bias: bool = True) -> tuple[ndarray | None, ndarray | None, ndarray | None]:
    """(dx, dweight, dbias) for the cotangent g (rows, out); what is not wanted is None."""
    one = ones(len(x), x.dtype)
    if len(x) < ROWS or len(x) * weight.size < BIG:
        return g.dot(weight) if wants_x else None, g.T.dot(x) if wants_weight else None, one.dot(g) if wants_bias else None
    dx = np.empty(x.shape, x.dtype) if wants_x else None
    dweight = np.empty(weight.shape, weight.dtype) if wants_weight else None
    dbias = np.empty(len(weight), weight.dtype) if wants_bias else None

    rows, outputs = g.shape

    def run(lo: int, hi: int) -> None:                          # one call to the other thread for all three
        if dx is not None:
            np.matmul(g[lo:hi], weight, out=dx[lo:hi])
        cut = slice(lo * outputs // rows, hi * outputs // rows)
        if dweight is not None:
            np.matmul(g[:, cut].T, x, out=dweight[cut])
        if dbias is not None:
            np.matmul(one, g[:, cut], out=dbias[cut])

    split(run, rows)
    return dx, dweight, dbias
