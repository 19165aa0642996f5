"""ReLU of large arrays: max(x, 0) and g * (y > 0), cut into blocks for the cache and for several threads."""

import math

import numpy as np
from numpy import ndarray

from .rows import by_rows


def relu(x: ndarray) -> ndarray:
    """max(x, 0); NaN stays NaN."""
    y = np.empty(x.shape, x.dtype)
    flat, flat_y = np.ascontiguousarray(x).reshape(-1), y.reshape(-1)
    by_rows(lambda s: np.maximum(flat[s], 0, out=flat_y[s]), x.size, 1)
    return y


def relu_backward(g: ndarray, y: ndarray) -> ndarray:
    """g where y > 0, else 0."""
    dx = np.empty(y.shape, y.dtype)
    flat_g, flat_y, flat_dx = (np.ascontiguousarray(a).reshape(-1) for a in (g, y, dx))

    def run(s: slice) -> None:
        d = np.multiply(flat_g[s], flat_y[s] > 0, out=flat_dx[s])
        if not math.isfinite(np.vdot(d, d)):            # 0 times an infinite g
            np.copyto(d, 0, where=flat_y[s] <= 0)

    by_rows(run, y.size, 1)
    return dx
