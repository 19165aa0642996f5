"""The logistic function s(x) = 1 / (1 + e^-x) and SiLU, x s(x) (Elfwing et al. 2017), a cache-sized
block at a time.

    ds/dx = s (1 - s)        d(x s)/dx = s (1 + x (1 - s))

Where e^-x overflows, 1 / inf = 0 is right.
"""

import numpy as np
from numpy import ndarray

from .rows import by_elements

MANY = 1 << 15  # numbers, from where SiLU by blocks is faster than the composite


def falling(x: ndarray) -> ndarray:
    """1 / (1 + e^x), in the memory of x."""
    np.exp(x, out=x)
    x += 1
    return np.divide(x.dtype.type(1), x, out=x)


def _logistic(x: ndarray, out: ndarray) -> ndarray:
    return falling(np.negative(x, out=out))


@np.errstate(over="ignore", under="ignore")
def sigmoid(x: ndarray) -> ndarray:
    """1 / (1 + e^-x); any shape, float32 or float64."""
    return by_elements(_logistic, x)[0]


@np.errstate(under="ignore")
def sigmoid_backward(g: ndarray, y: ndarray) -> ndarray:
    """g y (1 - y), of their shape."""

    def run(g: ndarray, y: ndarray, dx: ndarray) -> None:
        np.subtract(1, y, out=dx)
        dx *= y
        dx *= g

    return by_elements(run, g, y)[0]


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def silu(x: ndarray) -> tuple[ndarray, ndarray]:
    """(x s, s) with s = 1 / (1 + e^-x); any shape, float32 or float64."""
    y, logistic = by_elements(lambda x, y, s: np.multiply(x, _logistic(x, s), out=y), x, results=2)
    return y, logistic


@np.errstate(under="ignore", invalid="ignore")
def silu_backward(g: ndarray, x: ndarray, logistic: ndarray) -> ndarray:
    """g s (1 + x (1 - s)), of their shape, for s as `silu` gave it."""

    def run(g: ndarray, x: ndarray, s: ndarray, dx: ndarray) -> None:
        np.subtract(1, s, out=dx)
        dx *= x
        dx += 1
        dx *= s
        dx *= g

    return by_elements(run, g, x, logistic)[0]
