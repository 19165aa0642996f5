"""Rows: what all kernels share, and the kernels that are sums over rows, the norms.

A kernel of ten NumPy calls on a large array would read and write memory ten times. Cut into blocks
of rows that stay in the cache it does so once, and the blocks are shared out over threads.

To compute with a column, as in x * r[:, None], NumPy goes through several rows at once, in pieces
of 8,192 elements, and for that it first writes each r as often as its row is long into a buffer. A
buffer no longer than a row leaves nothing to write, and the product takes half the time, or a
third; below 160 numbers a row NumPy's way is faster.

A processor moves memory in lines of 64 bytes, and its widest store is just as long. What NumPy
allocates begins 16 bytes into a line, so each such store touches two: a product of two arrays in
the cache then takes twice the time, an exponential a fifth more. Loads mind much less, so it is
what a kernel writes to again and again that begins at a line here.

NumPy copies a transposed matrix along its long way, so that of each line only one number is used
before the line is needed again. In strips of 32 columns the copy takes a fifth to a half of the
time where rows lie a multiple of 1,024 bytes apart, and elsewhere about the same.
"""

import math
import threading
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from .. import tuning
from ..threads import get_num_threads, split

# The dtypes that kernels take: in the byte order of the machine, which products need.
FAST = (np.dtype(np.float32), np.dtype(np.float64))
LINE = 64  # bytes of a cache line
# No warnings where exponentials leave their range: the sums show it.
QUIET: dict[str, Any] = dict.fromkeys(("over", "under", "invalid", "divide"), "ignore")
ALL = slice(None)


# ---- memory


def empty(shape: int | tuple[int, ...], dtype: np.dtype) -> ndarray:
    """`numpy.empty` at the start of a cache line, for any dtype; a small array begins where NumPy
    puts it.
    """
    size = shape if isinstance(shape, int) else math.prod(shape)
    return np.empty(shape, dtype) if size < tuning.ALIGNED else _at_line(size, dtype).reshape(shape)


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
        or x.size < tuning.TURNED
        or min(x.shape[-2:]) < 2 * tuning.TURNED_STRIP
        or abs(x.strides[-2]) >= abs(x.strides[-1])
    ):
        return np.ascontiguousarray(x)
    y = np.empty(x.shape, x.dtype)
    for i in range(0, x.shape[-1], tuning.TURNED_STRIP):
        y[..., i : i + tuning.TURNED_STRIP] = x[..., i : i + tuning.TURNED_STRIP]
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
    new = [empty(like.shape, like.dtype) for _ in range(results)]
    flat = [contiguous(a).reshape(-1) for a in arrays] + [a.reshape(-1) for a in new]
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


def row_dots(a: ndarray, b: ndarray) -> ndarray:
    """rowsum(a * b). Few long rows by einsum: vecdot keeps Python's lock if it makes 500 numbers or
    fewer, and others wait.
    """
    return np.einsum("ij,ij->i", a, b) if len(a) <= 500 < a.shape[1] else np.vecdot(a, b)


def row_max(x: ndarray) -> ndarray:
    """The largest number of each row of x (rows, n), as (rows, 1).

    `max` begins anew for each row. Short rows are turned first; others go by `argmax` and a
    look-up: for rows of 2 to 500 numbers in a twentieth to a half of the time.
    """
    rows, n = x.shape
    if n >= tuning.LONG_MAXIMUM:
        return x.max(-1, keepdims=True)
    if n <= tuning.NARROW_MAXIMUM:
        return np.maximum.reduce(np.ascontiguousarray(x.T))[:, None]
    return x.reshape(-1).take(x.argmax(1) + np.arange(0, rows * n, n))[:, None]


def row_sums(x: ndarray) -> ndarray:
    """The sum of each row of x (rows, n): of short ones as a product with ones, since `sum` begins
    anew for each row.
    """
    rows, n = x.shape
    if n > tuning.EXACT_SUM:
        return x.sum(-1)
    if x.size <= tuning.BLOCK:
        return x.dot(ones(n, x.dtype))
    total, one = np.empty(rows, x.dtype), ones(n, x.dtype)
    by_rows(lambda s: np.dot(x[s], one, out=total[s]), rows, n)
    return total


def column_sums(x: ndarray) -> ndarray:
    """The sum of each column of the matrices x (many, n, width), as (many, width): a product with
    ones, since `sum` adds row to row.
    """
    return np.matmul(ones(x.shape[1], x.dtype), x)


def column_max(x: ndarray) -> ndarray:
    """The largest number of each column of the matrices x (many, n, width), as (many, width).

    `max` goes from row to row, and that is slow where these are short. A few rows are compared with
    each other, all matrices at once; very narrow matrices are turned.
    """
    many, n, width = x.shape
    if n <= tuning.NARROW_MAXIMUM and width <= tuning.COMPARED_WIDTH:
        return reduce(np.maximum, x.swapaxes(0, 1))
    return (
        x.max(1)
        if width > tuning.NARROW_MAXIMUM // 2
        else row_max(np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, n)).reshape(many, width)
    )


def runs(x: ndarray, axis: Any) -> list[tuple[int, int]]:
    """Runs of adjacent axes, (first, stop), to reduce x over with `reduced`, the last first.

    There are none where NumPy does it as soon, or has to say what is wrong with the axes.
    """
    ndim = x.ndim
    if x.size < tuning.REDUCED or x.dtype not in FAST or not x.flags.c_contiguous or ndim < 2:
        return []
    if axis.__class__ is int:
        return [(axis % ndim, axis % ndim + 1)] if -ndim <= axis < ndim else []
    if axis.__class__ is not tuple or not all(
        a.__class__ is int and -ndim <= a < ndim for a in axis
    ):
        return []
    found: list[tuple[int, int]] = []
    for a in sorted({a % ndim for a in axis}, reverse=True):
        found[-1:] = (
            [(a, found[-1][1])] if found and found[-1][0] == a + 1 else [*found[-1:], (a, a + 1)]
        )
    return found if sum(stop - first for first, stop in found) == len(axis) < ndim else []


def reduced(
    x: ndarray,
    axes: list[tuple[int, int]],
    keepdims: bool,
    rows: Callable[[ndarray], ndarray],
    columns: Callable[[ndarray], ndarray],
) -> ndarray:
    """x reduced over these runs of axes: by `rows` what lies in rows (many, n), by `columns`
    matrices (many, n, width).
    """
    shape = x.shape
    for first, stop in axes:  # what is behind it is not touched by those that follow
        n, width = math.prod(shape[first:stop]), math.prod(shape[stop:])
        x = rows(x.reshape(-1, n)) if width == 1 else columns(x.reshape(-1, n, width))
        shape = (*shape[:first], *((1,) * (stop - first) if keepdims else ()), *shape[stop:])
    return x.reshape(shape)


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


def transposed(x: ndarray) -> ndarray:
    """x^T copied to lie contiguous, which makes a product with it from the right faster."""
    return np.ascontiguousarray(x.swapaxes(-1, -2))


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
    y = empty(x.shape, dtype)
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
    dx = empty(x.shape, dtype)
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
