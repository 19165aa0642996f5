"""GELU, x * Phi(x) with the normal distribution's Phi, exactly or by the older tanh formula (Hendrycks & Gimpel 2016).

Both forms are x * (1 + tanh(w)) / 2 for some odd w(x): exactly, Phi(x) = (1 + erf(x / sqrt(2))) / 2 and erf is a tanh of
x * p(x^2) to float32's precision (see erf.py); and the tanh formula has p(z) = sqrt(2/pi) (1 + 0.044715 z) itself.
float64 takes its Phi from the full-precision erf.  All passes run over blocks that stay in the cache.
"""

import math

import numpy as np
from numpy import ndarray

from .erf import erf, quotient
from .memory import empty
from .rows import by_rows
from .scores import LOG2E

TANH = (math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715)


def gelu(x: ndarray, *, tanh: bool = False) -> tuple[ndarray, ndarray]:
    """(y, Phi) with y = x * Phi(x); `tanh` takes the approximation by tanh. Any shape, float32 or float64."""
    y, phi = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    flat, flat_y, flat_phi = np.ascontiguousarray(x).reshape(-1), y.reshape(-1), phi.reshape(-1)
    number = x.dtype.type

    def run(s: slice) -> None:
        block, p, result = flat[s], flat_phi[s], flat_y[s]
        if x.dtype == np.float64 and not tanh:
            np.multiply(erf(block * math.sqrt(0.5)), 0.5, out=p)
            p += 0.5
        else:
            z = np.square(block, out=result)
            if tanh:
                np.multiply(z, number(TANH[1]), out=p)
                p += number(TANH[0])
            else:
                quotient(z, out=p)
            p *= block
            np.tanh(p, out=p)
            p *= 0.5
            p += 0.5
        np.multiply(block, p, out=result)

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        by_rows(run, x.size, 1)
    return y, phi


def gelu_backward(g: ndarray, x: ndarray, phi: ndarray, *, tanh: bool = False) -> ndarray:
    """g * (Phi + x Phi'), where Phi'(x) = exp(-x^2 / 2) / sqrt(2 pi), or Phi (1 - Phi) du/dx in the tanh formula."""
    dx = empty(x.shape, x.dtype)
    flat, flat_g, flat_phi, flat_dx = (np.ascontiguousarray(a).reshape(-1) for a in (x, g, phi, dx))
    half, log_norm = x.dtype.type(-0.5 * LOG2E), x.dtype.type(-0.5 * math.log2(2 * math.pi))

    def run(s: slice) -> None:
        block, p, d = flat[s], flat_phi[s], flat_dx[s]
        np.square(block, out=d)
        if tanh:
            d *= x.dtype.type(6 * TANH[1])
            d += x.dtype.type(2 * TANH[0])
            d *= block
            d *= p
            d *= 1 - p
        else:
            d *= half
            d += log_norm
            np.exp2(d, out=d)
            d *= block
        d += p
        d *= flat_g[s]

    with np.errstate(under="ignore"):
        by_rows(run, x.size, 1)
    return dx
