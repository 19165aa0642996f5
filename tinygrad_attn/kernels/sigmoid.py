"""The logistic function s(x) = 1 / (1 + e^-x) and SiLU, x s(x) (Elfwing et al. 2017), a cache-sized block at a time.

    ds/dx = s (1 - s)        d(x s)/dx = s (1 + x (1 - s))

Where e^-x overflows, 1 / inf = 0 is right.
"""

import numpy as np
from numpy import ndarray

from .memory import empty
from .rows import by_rows

MANY = 1 << 15                  # numbers, from where SiLU by blocks is faster than the composite


def _logistic(x: ndarray, out: ndarray) -> ndarray:
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    return np.reciprocal(out, out=out)


def sigmoid(x: ndarray) -> ndarray:
    """1 / (1 + e^-x); any shape, float32 or float64."""
    y = empty(x.shape, x.dtype)
    flat, flat_y = np.ascontiguousarray(x).reshape(-1), y.reshape(-1)
    with np.errstate(over="ignore", under="ignore"):
        by_rows(lambda s: _logistic(flat[s], flat_y[s]), x.size, 1)
    return y


def sigmoid_backward(g: ndarray, y: ndarray) -> ndarray:
    """g y (1 - y)"""
    dx = empty(y.shape, y.dtype)
    flat_g, flat_y, flat_dx = (np.ascontiguousarray(a).reshape(-1) for a in (g, y, dx))

    def run(s: slice) -> None:
        d = np.subtract(1, flat_y[s], out=flat_dx[s])
        d *= flat_y[s]
        d *= flat_g[s]

    with np.errstate(under="ignore"):
        by_rows(run, y.size, 1)
    return dx


def silu(x: ndarray) -> tuple[ndarray, ndarray]:
    """(x s, s) with s = 1 / (1 + e^-x)."""
    y, logistic = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    flat, flat_y, flat_s = np.ascontiguousarray(x).reshape(-1), y.reshape(-1), logistic.reshape(-1)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        by_rows(lambda s: np.multiply(flat[s], _logistic(flat[s], flat_s[s]), out=flat_y[s]), x.size, 1)
    return y, logistic


def silu_backward(g: ndarray, x: ndarray, logistic: ndarray) -> ndarray:
    """g s (1 + x (1 - s)) for s as `silu` gave it."""
    dx = empty(x.shape, x.dtype)
    flat, flat_g, flat_s, flat_dx = (np.ascontiguousarray(a).reshape(-1) for a in (x, g, logistic, dx))

    def run(s: slice) -> None:
        d = np.subtract(1, flat_s[s], out=flat_dx[s])
        d *= flat[s]
        d += 1
        d *= flat_s[s]
        d *= flat_g[s]

    with np.errstate(under="ignore", invalid="ignore"):
        by_rows(run, x.size, 1)
    return dx
