"""A linear layer, y = x W^T + b, as products of two matrices.

    dx = g W        dW = g^T x        db = 1^T g

x is (rows, in), whatever its axes were: one large product is much faster than one for each item of a batch.  The matrix
library shares a product out over its own threads, which wait for work awake and so take it up sooner than ours could.
The sum over rows is a product with ones, faster than NumPy's sum.
"""

from numpy import ndarray

from ..threads import split
from .scores import ones

BIG = 1 << 20                   # numbers in y, from where a second thread is worth its start for one addition each


def linear(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    """x (rows, in), weight (out, in), bias (out,) or None -> (rows, out)."""
    y = x.dot(weight.T)
    if bias is None:
        return y

    def add(lo: int, hi: int) -> None:
        y[lo:hi] += bias

    split(add, len(y), y.size >= BIG)
    return y


def linear_backward(g: ndarray, x: ndarray, weight: ndarray, wants_x: bool = True, wants_weight: bool = True,
                    wants_bias: bool = True) -> tuple[ndarray | None, ndarray | None, ndarray | None]:
    """(dx, dweight, dbias) for the cotangent g (rows, out); what is not wanted is None."""
    dx = g.dot(weight) if wants_x else None
    dweight = g.T.dot(x) if wants_weight else None
    return dx, dweight, ones(len(x), x.dtype).dot(g) if wants_bias else None
