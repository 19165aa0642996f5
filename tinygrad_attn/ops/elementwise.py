"""Ops that act on each element by itself: arithmetic, powers, exponentials, minima and maxima.

Below each function stand its rules: `g` is the gradient of the loss by the result `y`. Operands
broadcast as NumPy's do; the engine sums a gradient back to its operand's shape.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine import Variable, array_of, op, tracked


@op(broadcasts=True)
def add(a, b):
    """y = a + b"""
    return a + b


add.vjp(lambda g, y, a, b: g, lambda g, y, a, b: g)


@op(broadcasts=True)
def subtract(a, b):
    """y = a - b"""
    return a - b


subtract.vjp(lambda g, y, a, b: g, lambda g, y, a, b: -g)


@op(broadcasts=True)
def multiply(a, b):
    """y = a b"""
    return a * b


multiply.vjp(lambda g, y, a, b: g * b, lambda g, y, a, b: g * a)


@op(broadcasts=True)
def divide(a, b):
    """y = a / b"""
    return a / b


# -g / b * y divides first: g * y could overflow where g / b * y does not, in float16 above all.
divide.vjp(lambda g, y, a, b: g / b, lambda g, y, a, b: -g / b * y)


def _int_power(a, n):
    """Small whole powers by multiplication: NumPy's own `x ** 3` is a hundred times slower."""
    if n == 2:
        return a * a
    if n == 3:
        return a * a * a
    return a**n


@op(broadcasts=True)
def power(a, b):
    """y = a ** b"""
    # An array of integers is left to NumPy, whose int8 ** 2.0 is float64.
    if type(b) in (int, float) and (type(a) in (int, float) or a.dtype.kind == "f"):
        return _int_power(a, b)
    return a**b


def _power_by_base(g, y, a, b):
    if type(b) in (int, float):
        if b == 0:
            return np.zeros(a.shape, g.dtype)  # also where a is 0, where 0 * a ** -1 would be NaN
        return g * b * (a if b == 2 else _int_power(a, b - 1))
    # Where b = 0 the slope b a^(b - 1) is 0, but computed so it is 0 inf = NaN at a = 0. So another
    # exponent is put there: 0, or 1 where this slope is differentiated by b and a is 0.
    free = tracked(b)
    zero = (b == 0) & (abs(array_of(a)) < np.finfo(y.dtype).tiny if free else True)
    exponent = np.where(zero, int(free), b - 1) if np.any(zero) else b - 1
    return g * b * a**exponent


def _power_by_exponent(g, y, a, b):
    """y log a, and 0 where a is 0 and b >= 0: there y stays 0 as b moves (for b > 0; at b = 0 that
    is PyTorch's choice too).
    """
    zero = (a == 0) & (b >= 0)
    return g * y * np.log(np.where(zero, 1, a)) if np.any(zero) else g * y * np.log(a)


power.vjp(_power_by_base, _power_by_exponent)


@op(broadcasts=True)
def floor_divide(a, b):
    """y = floor(a / b), whose derivative is zero wherever it exists."""
    return a // b


floor_divide.vjp(lambda g, y, a, b: np.zeros_like(y), lambda g, y, a, b: np.zeros_like(y))


@op(broadcasts=True)
def remainder(a, b):
    """y = a - b floor(a / b)"""
    return a % b


remainder.vjp(lambda g, y, a, b: g, lambda g, y, a, b: -g * (a // b))


@op(broadcasts=True)
def fmod(a, b):
    """y = a - b trunc(a / b)"""
    return np.fmod(a, b)


fmod.vjp(lambda g, y, a, b: g, lambda g, y, a, b: -g * np.trunc(a / b))


def _weighed(g, weights):
    """g times weights, and 0 where a weight is 0: g may be infinite there, as in sqrt(relu(x)) for
    x < 0.
    """
    return np.where(weights == 0, 0, g * weights)


def _share(g, mine, other, loses):
    """The part of g that belongs to an operand of maximum or minimum: half at a tie, else all where
    it does not lose, as PyTorch. A comparison with NaN is False, so to NaN neither operand loses.
    """
    return _weighed(g, np.where(mine == other, 0.5, ~loses).astype(g.dtype))


@op(broadcasts=True)
def maximum(a, b):
    """y = max(a, b), elementwise; a tie gives each half of the gradient."""
    return np.maximum(a, b)


maximum.vjp(lambda g, y, a, b: _share(g, a, b, a < b), lambda g, y, a, b: _share(g, b, a, b < a))


@op(broadcasts=True)
def minimum(a, b):
    """y = min(a, b), elementwise; a tie gives each half of the gradient."""
    return np.minimum(a, b)


minimum.vjp(lambda g, y, a, b: _share(g, a, b, a > b), lambda g, y, a, b: _share(g, b, a, b > a))


@op(broadcasts=True)
def fmax(a, b):
    """y = max(a, b), or the other one where one is NaN."""
    return np.fmax(a, b)


@op(broadcasts=True)
def fmin(a, b):
    """y = min(a, b), or the other one where one is NaN."""
    return np.fmin(a, b)


def _first_if(wins):
    """All of g to the first operand where `wins(a, b)` holds or b is NaN, else to the second; a tie
    is the first's, as PyTorch.
    """
    first = lambda a, b: wins(a, b) | np.isnan(b)
    return (
        lambda g, y, a, b: np.where(first(a, b), g, 0),
        lambda g, y, a, b: np.where(first(a, b), 0, g),
    )


fmax.vjp(*_first_if(lambda a, b: a >= b))
fmin.vjp(*_first_if(lambda a, b: a <= b))


@op(broadcasts=True)
def where(condition, a, b):
    """y = a where the condition holds, else b."""
    return np.where(condition, a, b)


where.vjp(
    None,
    lambda g, y, condition, a, b: np.where(condition, g, 0),
    lambda g, y, condition, a, b: np.where(condition, 0, g),
)


@op(broadcasts=True)
def clip(x, low, high):
    """y = min(max(x, low), high); the gradient passes where low <= x <= high."""
    if low is None and high is None:  # which NumPy 2.0 refuses
        return x.copy()
    return np.clip(x, low, high)


def _where_inside(g, y, x, low, high):
    if low is None and high is None:
        return g
    return _weighed(g, (True if low is None else x >= low) & (True if high is None else x <= high))


# As torch.clamp: where low > high the result is high, and where they are equal low gets nothing.
clip.vjp(
    _where_inside,
    lambda g, y, x, low, high: _weighed(g, (x < low) & (True if high is None else low < high)),
    lambda g, y, x, low, high: _weighed(g, (x > high) | (False if low is None else high < low)),
)


@op(broadcasts=True)
def logaddexp(a, b):
    """y = log(exp a + exp b), without overflow."""
    return np.logaddexp(a, b)


def share_of_sum(g, y, a, b, exponential=np.exp):
    """g e^a / (e^a + e^b), by the difference: y is rounded, so that e^(a - y) would lose as many
    digits as y has before the point.
    """
    # Where e^(b - a) overflows, 1 / inf = 0 is right; not so in float16, in which e^12 overflows.
    with np.errstate(over="ignore"):
        if not (isinstance(y, Variable) or y.dtype == np.float16):
            return g / (1 + exponential(b - a))
        # The slope of this, e / (1 + e)^2, neither overflows nor is lost as in 1 - share.
        e = exponential(np.where(a > b, b - a, a - b))
        return g * np.where(a > b, 1, e) / (1 + e)


logaddexp.vjp(share_of_sum, lambda g, y, a, b: share_of_sum(g, y, b, a))


@op
def negative(x):
    """y = -x"""
    return -x


negative.vjp(lambda g, y, x: -g)


@op
def absolute(x):
    """y = |x|, with slope 0 at 0 as PyTorch."""
    return np.abs(x)


absolute.vjp(lambda g, y, x: g * np.sign(x))


@op
def exp(x):
    """y = e^x"""
    return np.exp(x)


exp.vjp(lambda g, y, x: g * y)


@op
def exp2(x):
    """y = 2^x"""
    return np.exp2(x)


exp2.vjp(lambda g, y, x: g * y * math.log(2))


@op
def expm1(x):
    """y = e^x - 1"""
    return np.expm1(x)


expm1.vjp(lambda g, y, x: g * (y + 1))


@op
def log(x):
    """y = ln x"""
    return np.log(x)


log.vjp(lambda g, y, x: g / x)


@op
def log2(x):
    """y = log2 x"""
    return np.log2(x)


log2.vjp(lambda g, y, x: g / (x * math.log(2)))


@op
def log10(x):
    """y = log10 x"""
    return np.log10(x)


log10.vjp(lambda g, y, x: g / (x * math.log(10)))


@op
def log1p(x):
    """y = ln(1 + x)"""
    return np.log1p(x)


log1p.vjp(lambda g, y, x: g / (1 + x))


@op
def sqrt(x):
    """y = x^(1/2)"""
    return np.sqrt(x)


sqrt.vjp(lambda g, y, x: g / (2 * y))


@op
def cbrt(x):
    """y = x^(1/3)"""
    return np.cbrt(x)


cbrt.vjp(lambda g, y, x: g / (3 * y * y))


@op
def square(x):
    """y = x^2"""
    return np.square(x)  # of booleans x * x would be booleans


square.vjp(lambda g, y, x: 2 * g * x)


@op
def reciprocal(x):
    """y = 1 / x"""
    return np.reciprocal(x)


reciprocal.vjp(lambda g, y, x: -g * y * y)


@op
def relu(x):
    """y = max(x, 0), with slope 0 at 0."""
    return np.maximum(x, 0)


relu.vjp(lambda g, y, x: np.where(y != 0, g, 0))  # and not y > 0: a NaN keeps its gradient


@op
def sigmoid(x):
    """y = 1 / (1 + e^-x)"""
    if getattr(x, "dtype", None) == np.float16:  # in which e^12 is infinite, but 1 / e^12 is not 0
        return sigmoid.forward(x.astype(np.float32)).astype(x.dtype)
    with np.errstate(over="ignore"):  # where e^-x overflows, 1 / inf = 0 is right
        return 1 / (1 + np.exp(0.0 - x))  # in unsigned integers -x would wrap round


sigmoid.vjp(lambda g, y, x: g * y * (1 - y))


_erf = np.frompyfunc(math.erf, 1, 1)  # Python has it, NumPy has not


@op
def erf(x):
    """y = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    dtype = x.dtype if getattr(x, "dtype", np.dtype(int)).kind == "f" else np.dtype(np.float64)
    y = _erf(x)  # numbers of Python's: in an array, or of a single number one alone
    return y.astype(dtype) if isinstance(y, np.ndarray) else dtype.type(y)


erf.vjp(lambda g, y, x: g * np.exp(-x * x) * (2 / math.sqrt(math.pi)))
