"""Softmax, log-softmax and cross-entropy over the last axis, a cache-sized block of rows at a time.

    softmax(x) = exp(x) / sum(exp(x))          logsumexp(x) = max + log(sum(exp(x - max)))
    log_softmax(x) = x - logsumexp(x)          cross_entropy(x, t) = logsumexp(x) - x[t]

Softmax takes the exponentials as they come and subtracts the maximum only where a sum has left the
range in which that does no harm: it is a quarter faster without, or more, and what is not
subtracted is not rounded. The logarithms need the maximum, because a loss near 0 is the difference
of two numbers that may be large.

Cross-entropy over a vocabulary of 50,000 never stores probabilities: forward keeps two numbers a
row, and backward makes the gradient, softmax(x) - onehot(t), straight from the logits. Row sums are
products with a vector of ones, three times faster than NumPy's sum over the last axis; by `dot`,
since `@` keeps Python's lock for a result of 500 numbers or fewer.
"""

import numpy as np
from numpy import ndarray

from .. import tuning
from .rows import by_rows, ones


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def softmax(x: ndarray) -> ndarray:
    """Softmax of the rows of x (rows, n); a row of -inf gives NaN."""
    y = np.empty(x.shape, x.dtype)
    if not x.size:
        return y
    n = x.shape[1]
    one, low, high = ones(n, x.dtype), tuning.SOFTMAX_SUM, tuning.LARGEST_SUM

    def run(s: slice) -> None:
        block = np.exp(x[s], out=y[s])
        total = block.dot(one) if n < tuning.SUMMED_BY_PRODUCT else block.sum(1)
        if not (total.item(total.argmin()) > low and total.item(total.argmax()) < high):
            total = _exponentials(x[s], block)[1]
        block /= total[:, None]  # and not times 1 / total, so that a row of one number gives 1

    by_rows(run, *x.shape)
    return y


@np.errstate(under="ignore")
def softmax_backward(g: ndarray, y: ndarray) -> ndarray:
    """y * (g - rowsum(g * y))."""
    dx = np.empty(y.shape, y.dtype)

    def run(s: slice) -> None:
        np.subtract(g[s], np.vecdot(g[s], y[s])[:, None], out=dx[s])
        dx[s] *= y[s]

    by_rows(run, *y.shape)
    return dx


def _exponentials(x: ndarray, out: ndarray) -> tuple[ndarray, ndarray]:
    """out <- exp(x - row maximum); returns (the row maxima, the row sums of out).

    The two are never joined to max + log(sum): where the maximum is large, the logarithm would be
    rounded away.
    """
    top = x.max(-1, keepdims=True)
    np.subtract(x, top, out=out)
    np.exp(out, out=out)
    return top[:, 0], out.dot(ones(x.shape[1], x.dtype))


@np.errstate(under="ignore", invalid="ignore", divide="ignore")
def log_softmax(x: ndarray) -> ndarray:
    """x - logsumexp(x) for the rows of x (rows, n)."""
    y = np.empty(x.shape, x.dtype)

    def run(s: slice) -> None:
        top, total = _exponentials(x[s], y[s])
        np.subtract(x[s], top[:, None], out=y[s])
        y[s] -= np.log(total)[:, None]

    by_rows(run, *x.shape)
    return y


@np.errstate(under="ignore")
def log_softmax_backward(g: ndarray, y: ndarray) -> ndarray:
    """g - softmax * rowsum(g), from y = log(softmax)."""
    dx = np.empty(y.shape, y.dtype)
    one = ones(y.shape[1], y.dtype)

    def run(s: slice) -> None:
        block = dx[s]
        np.exp(y[s], out=block)
        block *= -g[s].dot(one)[:, None]
        block += g[s]

    by_rows(run, *y.shape)
    return dx


def usable(target: ndarray, ignore_index: int) -> tuple[ndarray, ndarray | None]:
    """(the targets, with 0 in place of those to be ignored; booleans, True for the others, or None
    where all count).
    """
    seen = target != ignore_index
    return (
        (target, None) if np.count_nonzero(seen) == seen.size else (np.where(seen, target, 0), seen)
    )


def _places(target: ndarray, classes: int) -> ndarray:
    """Where each row's target lies in all rows one after the other: with one index NumPy takes a
    quarter of the time of two.
    """
    return target.astype(np.intp, copy=False) + np.arange(0, len(target) * classes, classes)


@np.errstate(under="ignore", invalid="ignore", divide="ignore")
def cross_entropy(
    x: ndarray,
    target: ndarray,
    weight: ndarray | None = None,
    *,
    seen: ndarray | None = None,
    smoothing: float = 0.0,
) -> tuple[ndarray, ndarray]:
    """(loss of each row, sums) for logits x (rows, classes) and class indices target (rows,).

    sums (2, rows) is what backward needs: the maximum of each row, and its sum of exp(x - maximum).

    loss = (1 - smoothing) w[t] (lse - x[t]) + smoothing / classes * sum over c of w[c] (lse -
    x[c]); 0 where `seen` (rows,) is False. Every target must lie in range; the caller checks.
    """
    rows, classes = x.shape
    loss, sums = np.empty(rows, x.dtype), np.empty((2, rows), x.dtype)

    def run(s: slice) -> None:
        block = x[s]
        top, total = _exponentials(block, np.empty_like(block))
        sums[0, s], sums[1, s] = top, total
        t = target[s]
        lse = np.log(total)  # of the row minus its maximum
        part = lse - (block.reshape(-1).take(_places(t, classes)) - top)
        if weight is not None:
            part *= weight[t]
        if smoothing:
            part *= 1 - smoothing
            w = ones(classes, x.dtype) if weight is None else weight
            part += (lse * w.sum() - (block - top[:, None]).dot(w)) * x.dtype.type(
                smoothing / classes
            )
        loss[s] = part if seen is None else np.where(seen[s], part, 0)

    by_rows(run, rows, classes)
    return loss, sums


@np.errstate(under="ignore", invalid="ignore")
def cross_entropy_backward(
    g: ndarray,
    x: ndarray,
    target: ndarray,
    sums: ndarray,
    weight: ndarray | None = None,
    *,
    seen: ndarray | None = None,
    smoothing: float = 0.0,
) -> ndarray:
    """The gradient by the logits for cotangents g (rows,) of the row losses."""
    rows, classes = x.shape
    dtype = x.dtype
    dx = np.empty(x.shape, dtype)
    if seen is not None:
        g = np.where(seen, g, 0).astype(dtype, copy=False)
    hit = g if weight is None else g * weight[target]
    total = hit
    if smoothing:
        hit = hit * dtype.type(1 - smoothing)
        spread = (ones(classes, dtype) if weight is None else weight) * dtype.type(
            smoothing / classes
        )
        total = hit + g * spread.sum()

    def run(s: slice) -> None:
        block, t = dx[s], target[s]
        np.subtract(x[s], sums[0, s, None], out=block)
        np.exp(block, out=block)
        block *= (total[s] / sums[1, s])[:, None]
        if smoothing:
            block -= g[s, None] * spread
        block.reshape(-1)[_places(t, classes)] -= hit[s]
        if seen is not None:
            block[~seen[s]] = 0  # also where an ignored row's logits are not finite

    by_rows(run, rows, classes)
    return dx
