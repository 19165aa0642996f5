"""Rows: what all kernels share, and the kernels that are sums over rows, the norms.

A kernel of ten NumPy calls on a large array would read and write memory ten times. Cut into blocks
of rows that stay in the cache it does so once, and the blocks are shared out over threads.

To compute with a column, as in x * r[:, None], NumPy goes through several rows at once, in pieces
of 8,192 elements, and for that it first writes each r as often as its row is long into a buffer. A
buffer no longer than a row leaves nothing to write, and the product takes half the time, or a
third; below 160 numbers a row NumPy's way is faster.
"""

import math
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from .. import tuning
from ..threads import get_num_threads, split

# The dtypes that kernels take: in the byte order of the machine, which products need.
FAST = (np.dtype(np.float32), np.dtype(np.float64))
# No warnings where exponentials leave their range: the sums show it.
QUIET: dict[str, Any] = dict.fromkeys(("over", "under", "invalid", "divide"), "ignore")
ALL = slice(None)


# ---- memory


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


# ---- blocks


def by_rows(f: Callable[[slice], Any], rows: int, width: int) -> None:
    """Call f(slice of rows) until all rows, each of `width` elements, are done."""
    short = width in tuning.SHORT_BUFFER_WIDTHS and rows * width >= tuning.SHORT_BUFFER
    before = np.setbufsize(width // 16 * 16) if short else None  # of this thread and its workers
    try:
        if rows * width <= tuning.BLOCK:
            f(slice(0, rows))
            return
        big = rows * width >= tuning.SECOND_THREAD
        step = max(
            1,
            (tuning.BLOCK_OF_THREADS if big and get_num_threads() > 1 else tuning.BLOCK)
            // max(1, width),
        )

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
    new = [np.empty(like.shape, like.dtype) for _ in range(results)]
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays] + [a.reshape(-1) for a in new]
    by_rows(lambda s: f(*[a[s] for a in flat]), like.size, 1)
    return new


# ---- sums, and the largest number of each row


@lru_cache(maxsize=32)
def _filled(n: int, value: float, dtype: np.dtype) -> ndarray:
    return np.full(n, value, dtype)


def ones(n: int, dtype: np.dtype) -> ndarray:
    """A vector of ones: x @ ones(n) is the fastest sum over the last axis, ones(n) @ x over the
    first.
    """
    return _filled(n, 1, dtype) if n <= tuning.KEPT_VECTOR else np.ones(n, dtype)


def averaging(n: int, dtype: np.dtype) -> ndarray:
    """A vector of 1/n: x @ averaging(n) is the fastest mean over the last axis."""
    return _filled(n, 1 / n, dtype) if n <= tuning.KEPT_VECTOR else np.full(n, 1 / n, dtype)


# ---- what both kernels of attention need


def in_range(total: ndarray, unmasked: ndarray) -> bool:
    """May sums of unshifted exponentials be trusted? NaN answers no. The sum before masking bounds
    every single weight. By way of its place NumPy finds the least number in a third of the time.
    """
    least, most = total.item(total.argmin()), unmasked.item(unmasked.argmax())
    return least > tuning.SMALLEST_SUM and most < tuning.LARGEST_SUM


def row_maximum(scores: ndarray) -> ndarray:
    """The largest score of each row; 0 for a row of -inf, whose exponentials then are 0 and not
    NaN.
    """
    top = scores.max(-1, keepdims=True)
    top[top == -np.inf] = 0
    return top


def scaled(x: ndarray, factor: float) -> ndarray:
    """A fresh contiguous x * factor of the same dtype."""
    return np.multiply(x, x.dtype.type(factor), order="C")


def accumulate(
    total: ndarray, part: ndarray, at: tuple, rows: slice = ALL, columns: slice = ALL
) -> None:
    """Add the gradient of one block of scores to the gradient of a mask that was broadcast."""
    index = tuple(
        s if n > 1 else ALL for s, n in zip((*at, rows, columns), total.shape, strict=True)
    )
    target = total[index]
    axes = tuple(i for i, n in enumerate(target.shape) if n == 1)
    target += part.sum(axis=axes, keepdims=True) if axes else part


# ---- norms
#
#     h = (x - mean) / sqrt(var + eps)        y = h * weight + bias     (Ba et al. 2016)
#     h = x / sqrt(mean(x^2) + eps)           y = h * weight            (Zhang & Sennrich 2019)
#
# Both are h = r * (x - m), with m = 0 in the second. Backward, for d = g * weight, the gradient by
# x is what is left of d once its part along h, and in layer norm its mean, are taken out:
# dx = r * (d - mean(d) - h * mean(d * h)). NumPy's mean and var make extra copies;
# x @ (1/n, ..., 1/n) is the same sum at a third of the time. What that mean lost by rounding is
# taken out in a second pass where it matters, as in Chan, Golub and LeVeque's corrected two-pass
# algorithm (1983).


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
    end = n - n % tuning.LONG_ROW_PART
    parts, rest = x[:, :end].reshape(rows, -1, tuning.LONG_ROW_PART), x[:, end:]
    np.add(np.vecdot(parts, parts).sum(1), np.vecdot(rest, rest), out=out)


def _lies_far(mean: ndarray, reciprocal: ndarray) -> bool:
    """Does a row lie far from 0, as measured by how much it spreads? Then what its mean lost by
    rounding shows.

    A row of one number is the extreme: all that is left of it is what rounding made, and eps alone
    would divide that.
    """
    place, far = mean * reciprocal, tuning.FAR_FROM_ZERO
    if np.vdot(place, place) <= far * far:  # then no row does, which is known in half the time
        return False
    return bool(np.count_nonzero(np.abs(place) > far))


def norm(
    x: ndarray, weight: ndarray | None, bias: ndarray | None, *, eps: float, center: bool = True
) -> tuple[ndarray, Norm]:
    """Normalise the rows of x (rows, n); weight and bias (n,) or None; layer norm if `center`, else
    root mean square.
    """
    rows, n = x.shape
    dtype = x.dtype
    y = np.empty(x.shape, dtype)
    mean = np.empty(rows, dtype) if center else None
    reciprocal = np.empty(rows, dtype)
    average, (root, n_eps) = averaging(n, dtype), _numbers(n, eps, dtype)

    def reciprocals(centred: ndarray, r: ndarray) -> None:
        if n < tuning.LONG_ROW:
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
            if n < tuning.LONG_ROW:
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
    dx = np.empty(x.shape, dtype)
    # Sums over rows, by the block they came from: they are added in a fixed order.
    parts: dict[int, tuple] = {}
    average = averaging(n, dtype)
    weighted = average if weight is None else average * weight

    def run(s: slice) -> None:
        gs, r, d = g[s], saved.reciprocal[s], dx[s]
        # This is h but for the factor r of each row, which can wait until the rows are summed.
        centred = x[s] if saved.mean is None else x[s] - saved.mean[s, None]
        t = gs * centred
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
