"""Functions of each element, a cache-sized block at a time.

**e^x and log(1 + x).** With AVX-512 NumPy takes 2^x of many float32 at once, in half the time of
e^x, and log(1 + x) likewise. With AVX2 it takes e^x and log x at once, but these two one number
after the other: 2^x in twice the time of e^x, log(1 + x) in seven times that of log x. NumPy itself
says which loop it has chosen; where it has none for any of them, it is 2^x and NumPy's own
log(1 + x).

**The error function**, which NumPy lacks: erf(x) = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x.
In float64 there are two branches, each applied to its own numbers only. Up to 1 the power series of
erf, 19 terms, is exact to rounding. Above, where erf is nearly 1, it is 1 - erfc, with W. J. Cody's
quotient of polynomials times exp(-x^2) for erfc ("Rational Chebyshev approximations for the error
function", Math. Comp. 23, 1969). float32 needs no such care: erf is nearly a tanh, so erf(x) =
tanh(x * p(x^2)) is one expression without branches. The function p grows like a square root and
bends near zero; a quotient of polynomials with five numbers follows it as well as a polynomial with
seven, and takes a quarter less time in the forward pass of GELU. They were fitted to make the
largest relative error of erf least: 1.5e-7.

**GELU**, x * Phi(x) with the normal distribution's Phi, exactly or by the older tanh formula
(Hendrycks & Gimpel 2016). Both are x * (1 + tanh(w)) / 2 for some odd w(x): exactly, Phi(x) =
(1 + erf(x / sqrt(2))) / 2 and erf is a tanh of x * p(x^2) to float32's precision; and the tanh
formula has p(z) = sqrt(2/pi) (1 + 0.044715 z) itself. (1 + tanh(w)) / 2 is also 1 / (1 + e^(-2w)):
with AVX2 the forward pass takes 0.7 of the time that way. float64 takes its Phi from the
full-precision erf.

**Dropout**, x keep / (1 - p), for a choice `keep` that was drawn before. The choice stays boolean,
a byte a number, and the function is its own rule: dx = g keep / (1 - p).
"""

import math

import numpy as np
from numpy import ndarray
from numpy.lib import introspect

from .rows import by_elements, by_rows

# ---- e^x and log(1 + x)

LOG2E = 1.4426950408889634


def _at_once(name: str) -> bool:
    """Does NumPy take this function of many float32 at once on this processor?"""
    found = introspect.opt_func_info(func_name=f"^{name}$", signature="float32").get(name, {})
    return any(not loop["current"].startswith("baseline") for loop in found.values())


# The faster exponential of float32, and the unit of its argument.
EXP: np.ufunc = np.exp if _at_once("exp") and not _at_once("exp2") else np.exp2
UNIT: float = LOG2E if EXP is np.exp2 else 1.0
LOG1P = _at_once("log1p") or not _at_once("log")  # is NumPy's the faster one?


def log1p(x: ndarray) -> ndarray:
    """log(1 + x), for x in [0, 1] and in its memory."""
    if LOG1P:
        return np.log1p(x, out=x)
    u = x + 1  # rounded: what is lost by that, x - (u - 1), is known exactly
    x -= u - 1
    x /= u
    x += np.log(u, out=u)
    return x


def falling(x: ndarray) -> ndarray:
    """1 / (1 + e^x), in the memory of x."""
    np.exp(x, out=x)
    x += 1
    return np.divide(x.dtype.type(1), x, out=x)


# ---- erf

_SERIES = tuple(
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(19)
)
_ABOVE = (
    1.23033935479799725e3,
    2.05107837782607147e3,
    1.71204761263407058e3,
    8.81952221241769090e2,
    2.98635138197400131e2,
    6.61191906371416295e1,
    8.88314979438837594e0,
    5.64188496988670089e-1,
    2.15311535474403846e-8,
)
_BELOW = (
    1.23033935480374942e3,
    3.43936767414372164e3,
    4.36261909014324716e3,
    3.29079923573345963e3,
    1.62138957456669019e3,
    5.37181101862009858e2,
    1.17693950891312499e2,
    1.57449261107098347e1,
    1.0,
)

# p(z) = (z + A) (B + C / ((z + D)^2 + E)), such that tanh(x * p(x^2)) = erf(x / sqrt(2)): in the
# normal distribution's scale, because GELU asks for it.
_A, _B, _C, _D, _E = (
    61.89722289963932,
    0.01861516985655638,
    -1.7816067420920956,
    10.295182129301626,
    205.2234904158317,
)


def erf(x: ndarray) -> ndarray:
    """erf of an array: within 2 ulp in float64, within 2.1e-7 in float32. float16 is computed in
    float32, all else in float64.
    """
    if x.dtype == np.float64:
        return _double(x)
    if x.dtype.kind != "f" or x.dtype.itemsize > 4:
        return _double(x.astype(np.float64)).astype(np.result_type(x, np.float64), copy=False)
    flat = np.asarray(x, np.float32).reshape(-1)
    y = np.empty(flat.shape, flat.dtype)

    def run(s: slice) -> None:
        # What tanh is taken of, in float64: its rounding would add half to the error.
        z = np.square(flat[s], dtype=np.float64)
        z *= 2
        np.tanh((flat[s] * quotient(z, math.sqrt(2))).astype(np.float32), out=y[s])

    with np.errstate(over="ignore"):  # far out it overflows to inf, and tanh of that is 1
        by_rows(run, y.size, 1)
    return y.reshape(x.shape).astype(x.dtype, copy=False)


def quotient(z: ndarray, scale: float = 1.0, out: ndarray | None = None) -> ndarray:
    """scale * p(z), in seven passes; z is overwritten."""
    number = z.dtype.type
    p = np.add(z, number(_D), out=out)
    np.square(p, out=p)  # reads one operand: half the time of p *= p
    p += number(_E)
    np.divide(number(scale * _C), p, out=p)
    p += number(scale * _B)
    z += number(_A)
    p *= z
    return p


def _polynomial(coefficients: tuple[float, ...], z: ndarray) -> ndarray:
    """c0 + z (c1 + z (c2 + ...)): Horner's rule, in one buffer."""
    *rest, last = coefficients
    result = np.full_like(z, last)
    for c in reversed(rest):
        result *= z
        result += c
    return result


def _double(x: ndarray) -> ndarray:
    flat = x.reshape(-1)
    y = np.sign(flat)  # beyond 6 it is 1, to the last bit; and NaN stays NaN
    size = np.abs(flat)
    near = size <= 1
    z = flat[near]
    y[near] = z * _polynomial(_SERIES, z * z)
    far = (size > 1) & (size < 6)
    z = size[far]
    # exp(-z^2) to full precision: z^2 = c^2 + (z - c)(z + c) with c so short that its square is
    # exact
    c = np.trunc(z * 16) / 16
    complement = (
        np.exp(-c * c)
        * np.exp(-(z - c) * (z + c))
        * (_polynomial(_ABOVE, z) / _polynomial(_BELOW, z))
    )
    y[far] = np.copysign(1 - complement, flat[far])
    return y.reshape(x.shape)


# ---- GELU

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


# ---- dropout


def dropout(x: ndarray, keep: ndarray, p: float) -> ndarray:
    """x / (1 - p) where kept, else 0 (NaN for an x that is not finite); one shape, and the result
    lies in memory as x does.
    """
    factor = x.dtype.type(1) / x.dtype.type(1 - p) if p < 1 else x.dtype.type(0)
    if not (x.flags.c_contiguous and keep.flags.c_contiguous):
        y = x * keep
        y *= factor
        return y
    y = np.empty(x.shape, x.dtype)
    flat, flat_keep, flat_y = x.reshape(-1), keep.reshape(-1), y.reshape(-1)

    def run(s: slice) -> None:
        part = np.multiply(flat[s], flat_keep[s], out=flat_y[s])
        part *= factor

    by_rows(run, x.size, 1)
    return y
