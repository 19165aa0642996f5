"""GELU, x * Phi(x) with the normal distribution's Phi, exactly or by the older tanh formula
(Hendrycks & Gimpel 2016).

Both forms are x * (1 + tanh(w)) / 2 for some odd w(x): exactly, Phi(x) = (1 + erf(x / sqrt(2))) / 2
and erf is a tanh of x * p(x^2) to float32's precision (see erf.py); and the tanh formula has p(z) =
sqrt(2/pi) (1 + 0.044715 z) itself. (1 + tanh(w)) / 2 is also 1 / (1 + e^(-2w)): with AVX2 the
forward pass takes 0.7 of the time that way. float64 takes its Phi from the full-precision erf. All
passes run over blocks that stay in the cache.
"""

import math

import numpy as np
from numpy import ndarray

from .erf import erf, quotient
from .exponentials import EXP, UNIT
from .rows import by_elements
from .sigmoid import falling

TANH = (math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715)
BY_EXP = EXP is np.exp  # and -2 is multiplied into what w is made of


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def gelu(x: ndarray, *, tanh: bool = False) -> tuple[ndarray, ndarray]:
    """(y, Phi) with y = x * Phi(x); `tanh` takes the approximation by tanh. Any shape, float32 or
    float64.
    """
    number, factor = x.dtype.type, -2.0 if BY_EXP else 1.0

    def run(x: ndarray, y: ndarray, p: ndarray) -> None:
        if x.dtype == np.float64 and not tanh:
            np.multiply(erf(x * math.sqrt(0.5)), 0.5, out=p)
            p += 0.5
        else:
            z = np.square(x, out=y)
            if tanh:
                np.multiply(z, number(factor * TANH[1]), out=p)
                p += number(factor * TANH[0])
            else:
                quotient(z, factor, out=p)
            p *= x
            if BY_EXP:
                falling(p)
            else:
                np.tanh(p, out=p)
                p *= 0.5
                p += 0.5
        np.multiply(x, p, out=y)

    y, phi = by_elements(run, x, results=2)
    return y, phi


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def gelu_backward(g: ndarray, x: ndarray, phi: ndarray, *, tanh: bool = False) -> ndarray:
    """g * (Phi + x Phi'), where Phi'(x) = exp(-x^2 / 2) / sqrt(2 pi), or Phi (1 - Phi) du/dx in the
    tanh formula.
    """
    number = x.dtype.type
    half, log_norm = number(-0.5 * UNIT), number(-0.5 * math.log(2 * math.pi) * UNIT)

    def run(g: ndarray, x: ndarray, p: ndarray, d: ndarray) -> None:
        np.square(x, out=d)
        if tanh:
            d *= number(6 * TANH[1])
            d += number(2 * TANH[0])
            d *= p
            d *= 1 - p  # far out it is 0, and had x^3 overflowed before, now NaN
            d *= x
        else:
            d *= half
            d += log_norm
            EXP(d, out=d)
            d *= x
        d += p
        d *= g

    return by_elements(run, g, x, phi)[0]
