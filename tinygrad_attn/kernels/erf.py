"""The error function, which NumPy lacks: erf(x) = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x.

In float64 there are two branches, each applied to its own numbers only.  Up to 1 the power series of erf, 19 terms, is
exact to rounding.  Above, where erf is nearly 1, it is 1 - erfc, with W. J. Cody's quotient of polynomials times exp(-x^2)
for erfc ("Rational Chebyshev approximations for the error function", Math. Comp. 23, 1969).  float32 needs no such care:
erf is nearly a tanh, so erf(x) = tanh(x * p(x^2)) with a polynomial p of degree 6, fitted to make the largest error least
(6e-8, half a unit in the last place at 1), is one expression without branches.
"""

import math

import numpy as np
from numpy import ndarray

_SERIES = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(19))
_ABOVE = (1.23033935479799725e3, 2.05107837782607147e3, 1.71204761263407058e3, 8.81952221241769090e2, 2.98635138197400131e2,
          6.61191906371416295e1, 8.88314979438837594e0, 5.64188496988670089e-1, 2.15311535474403846e-8)
_BELOW = (1.23033935480374942e3, 3.43936767414372164e3, 4.36261909014324716e3, 3.29079923573345963e3, 1.62138957456669019e3,
          5.37181101862009858e2, 1.17693950891312499e2, 1.57449261107098347e1, 1.0)

# tanh(x * p(x^2)) = erf(x / sqrt(2)): the normal distribution's scale, which is what GELU asks for. Constant term first.
NORMAL = (0.7978849414900192, 0.0363330844080274, -3.2594743744206975e-05, -5.530631713425943e-05,
          3.96477322425023e-06, -1.3226628509424616e-07, 1.7562776300097705e-09)


_SINGLE = tuple(c * 2 ** (n + 0.5) for n, c in enumerate(NORMAL))       # the same without the division by sqrt(2)


def erf(x: ndarray) -> ndarray:
    """erf of a float array: within 2 ulp in float64, within 1.5e-7 in float32 (and for float16, computed in float32)."""
    if x.dtype == np.float64:
        return _double(x)
    z = x.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):                # far out p overflows to +inf, and tanh of that is 1
        return np.tanh(z * polynomial(_SINGLE, z * z)).astype(x.dtype, copy=False)


def polynomial(coefficients: tuple[float, ...], z: ndarray, out: ndarray | None = None) -> ndarray:
    """c0 + z (c1 + z (c2 + ...)), Horner's rule in one buffer."""
    *rest, last = (z.dtype.type(c) for c in coefficients)
    result = np.multiply(z, last, out=out)
    for c in rest[:0:-1]:
        result += c
        result *= z
    result += rest[0]
    return result


def _double(x: ndarray) -> ndarray:
    flat = x.reshape(-1)
    y = np.where(np.isnan(flat), flat, np.sign(flat))            # beyond 6 it is 1, to the last bit
    size = np.abs(flat)
    near = size <= 1
    z = flat[near]
    y[near] = z * polynomial(_SERIES, z * z)
    far = (size > 1) & (size < 6)
    z = size[far]
    # exp(-z^2) to full precision: z^2 = c^2 + (z - c)(z + c) with c so short that its square is exact
    c = np.trunc(z * 16) / 16
    complement = np.exp(-c * c) * np.exp(-(z - c) * (z + c)) * (polynomial(_ABOVE, z) / polynomial(_BELOW, z))
    y[far] = np.copysign(1 - complement, flat[far])
    return y.reshape(x.shape)
