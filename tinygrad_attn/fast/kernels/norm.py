"""Layer normalisation and root-mean-square normalisation over the last axis, as row sums by
matrix-vector products.

    h = (x - mean) / sqrt(var + eps)        y = h * weight + bias     (Ba et al. 2016)
    h = x / sqrt(mean(x^2) + eps)           y = h * weight            (Zhang & Sennrich 2019)

Both are h = r * (x - m), with m = 0 in the second. Backward, for d = g * weight, the gradient by x
is what is left of d once its part along h, and in layer norm its mean, are taken out: dx = r * (d -
mean(d) - h * mean(d * h)). NumPy's mean and var make extra copies; x @ (1/n, ..., 1/n) is the same
sum at a third of the time. What that mean lost by rounding is taken out in a second pass where it
matters, as in Chan, Golub and LeVeque's corrected two-pass algorithm (1983).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from .memory import empty
from .rows import by_rows
from .scores import averaging, ones

LONG = 1 << 13  # numbers in a row, from where an error of a product with ones would show
PART = 1 << 10  # numbers that are added up by one product in such a row
FAR = 2  # standard deviations from 0, from where the mean of a row is corrected


class Norm(NamedTuple):
    """What backward needs; the normalised rows are computed again from x, which costs less than
    storing them.
    """

    mean: ndarray | None  # (rows,); None in the root-mean-square form
    reciprocal: ndarray  # (rows,), 1 / sqrt(var + eps)


@lru_cache(maxsize=32)
def _numbers(n: int, eps: float, dtype: np.dtype) -> tuple[ndarray, ndarray]:
    """sqrt(n) and n eps, as arrays: a number of Python's beside a few rows takes as long as another
    call.
    """
    return np.array(math.sqrt(n), dtype), np.array(n * eps, dtype)


def _squares(x: ndarray, out: ndarray) -> None:
    """The sum of squares of each long row of x (rows, n), in parts: one sum of all would lose
    digits.
    """
    rows, n = x.shape
    end = n - n % PART
    parts, rest = x[:, :end].reshape(rows, -1, PART), x[:, end:]
    np.add(np.vecdot(parts, parts).sum(1), np.vecdot(rest, rest), out=out)


def _lies_far(mean: ndarray, reciprocal: ndarray) -> bool:
    """Does a row lie far from 0, as measured by how much it spreads? Then what its mean lost by
    rounding shows.

    A row of one number is the extreme: all that is left of it is what rounding made, and eps alone
    would divide that.
    """
    place = mean * reciprocal
    if np.vdot(place, place) <= FAR * FAR:  # then no row does, which is known in half the time
        return False
    return np.count_nonzero(np.abs(place) > FAR) > 0


def norm(
    x: ndarray, weight: ndarray | None, bias: ndarray | None, *, eps: float, center: bool = True
) -> tuple[ndarray, Norm]:
    """Normalise the rows of x (rows, n); weight and bias (n,) or None; layer norm if `center`, else
    root mean square.
    """
    rows, n = x.shape
    dtype = x.dtype
    y = empty(x.shape, dtype)
    mean = np.empty(rows, dtype) if center else None
    reciprocal = np.empty(rows, dtype)
    average, (root, n_eps) = averaging(n, dtype), _numbers(n, eps, dtype)

    def reciprocals(centred: ndarray, r: ndarray) -> None:
        if n < LONG:
            np.vecdot(centred, centred, out=r)
        else:
            _squares(centred, out=r)
        r += n_eps  # sqrt(n) / sqrt(r + n eps), one call less than 1 / sqrt(r / n + eps)
        np.sqrt(r, out=r)
        np.divide(root, r, out=r)

    def run(s: slice) -> None:
        block, r, centred = y[s], reciprocal[s], x[s]
        if mean is not None:
            m = mean[s]
            if n < LONG:
                np.dot(centred, average, out=m)
            else:
                np.mean(centred, axis=1, out=m)
            centred = np.subtract(centred, m[:, None], out=block)
        reciprocals(centred, r)
        if mean is not None and _lies_far(m, r):
            m += centred.dot(ones(n, dtype)) / n  # what rounding had left of the mean
            np.subtract(x[s], m[:, None], out=block)
            reciprocals(block, r)
        np.multiply(centred, r[:, None], out=block)
        if weight is not None:
            block *= weight
        if bias is not None:
            block += bias

    by_rows(run, rows, n)
    return y, Norm(mean, reciprocal)


def norm_backward(
    g: ndarray,
    x: ndarray,
    weight: ndarray | None,
    saved: Norm,
    wants_weight: bool = False,
    wants_bias: bool = False,
) -> tuple[ndarray, ndarray | None, ndarray | None]:
    """(dx, dweight, dbias) for the cotangent g (rows, n); what is not wanted is None."""
    rows, n = x.shape
    dtype = x.dtype
    dx = empty(x.shape, dtype)
    parts: dict[
        int, tuple
    ] = {}  # sums over rows, by the block they came from: added in a fixed order
    average = averaging(n, dtype)
    weighted = average if weight is None else average * weight

    def run(s: slice) -> None:
        gs, r, d = g[s], saved.reciprocal[s], dx[s]
        centred = (
            x[s] if saved.mean is None else x[s] - saved.mean[s, None]
        )  # h, but for the factor r of each row,
        t = gs * centred  # which can wait until the rows are summed
        parts[s.start] = (
            r.dot(t) if wants_weight else None,
            ones(len(gs), dtype).dot(gs) if wants_bias else None,
        )
        share = t.dot(weighted)
        share *= r
        share *= r
        along = np.multiply(centred, share[:, None], out=t)
        if weight is None:
            np.subtract(gs, along, out=d)
        else:
            np.multiply(gs, weight, out=d)
            d -= along
        if saved.mean is not None:
            d -= gs.dot(weighted)[:, None]
        d *= r[:, None]

    by_rows(run, rows, n)
    dweight, dbias = parts.pop(0)
    for start in sorted(parts):
        for total, part in zip((dweight, dbias), parts[start], strict=True):
            if total is not None:
                total += part
    return dx, dweight, dbias
