"""Ops that act on each element: arithmetic, exponentials, trigonometry, rounding, minima, maxima.

Under each function stand its VJPs: g is the gradient of the loss with respect to the output y. A
parameter named `_y` or `_x` is a value that the VJP does not read. Operands broadcast as NumPy's
do; the engine sums a gradient back to its operand's shape.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine import Variable, array_of, op, tracked

# ---- arithmetic


@op(broadcasts=True)
def add(a, b):
    """y = a + b"""
    return a + b


add.vjp(lambda g, _y, _a, _b: g, lambda g, _y, _a, _b: g)


@op(broadcasts=True)
def subtract(a, b):
    """y = a - b"""
    return a - b


subtract.vjp(lambda g, _y, _a, _b: g, lambda g, _y, _a, _b: -g)


@op(broadcasts=True)
def multiply(a, b):
    """y = a b"""
    return a * b


multiply.vjp(lambda g, _y, _a, b: g * b, lambda g, _y, a, _b: g * a)


@op(broadcasts=True)
def divide(a, b):
    """y = a / b"""
    return a / b


# -g / b * y divides first: g * y could overflow where g / b * y does not, in float16 above all.
divide.vjp(
    lambda g, _y, _a, b: g / b,
    lambda g, y, _a, b: -g / b * y,
)


@op
def negative(x):
    """y = -x"""
    return -x


negative.vjp(lambda g, *_: -g)


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
    # Where b = 0 the slope b a^(b - 1) is 0, but 0 inf = NaN at a = 0. So another exponent is put
    # there: 0, or 1 where this slope is differentiated by b and a is 0.
    free = tracked(b)
    zero = (b == 0) & (abs(array_of(a)) < np.finfo(y.dtype).tiny if free else True)
    return g * b * a ** np.where(zero, int(free), b - 1)


def _power_by_exponent(g, y, a, b):
    """y log a, and 0 where a is 0 and b >= 0, as in PyTorch."""
    zero = (a == 0) & (b >= 0)
    return g * y * np.log(np.where(zero, 1, a) if np.any(zero) else a)


power.vjp(_power_by_base, _power_by_exponent)


def _zero(g, *_, **_settings):
    return np.zeros_like(g)


floor_divide = op(np.floor_divide, _zero, _zero)
remainder = op(np.remainder, lambda g, *_: g, lambda g, _y, a, b: -g * (a // b))
fmod = op(np.fmod, lambda g, *_: g, lambda g, _y, a, b: -g * np.trunc(a / b))
square = op(np.square, lambda g, _y, x: 2 * g * x)
reciprocal = op(np.reciprocal, lambda g, y, _x: -g * y * y)
absolute = op(np.absolute, lambda g, _y, x: g * np.sign(x))  # 0 at 0, as in PyTorch

# ---- exponentials and roots

exp = op(np.exp, lambda g, y, _x: g * y)
exp2 = op(np.exp2, lambda g, y, _x: g * y * math.log(2))
expm1 = op(np.expm1, lambda g, y, _x: g * (y + 1))
log = op(np.log, lambda g, _y, x: g / x)
log2 = op(np.log2, lambda g, _y, x: g / (x * math.log(2)))
log10 = op(np.log10, lambda g, _y, x: g / (x * math.log(10)))
log1p = op(np.log1p, lambda g, _y, x: g / (1 + x))
sqrt = op(np.sqrt, lambda g, y, _x: g / (2 * y))
cbrt = op(np.cbrt, lambda g, y, _x: g / (3 * y * y))


def _part_of_sum(g, y, a, b, exponential=np.exp):
    """g e^a / (e^a + e^b) from b - a: y is rounded, and e^(a - y) would lose its digits."""
    # Where e^(b - a) overflows, 1 / inf = 0 is right; not so in float16, in which e^12 overflows.
    with np.errstate(over="ignore"):
        if not (isinstance(y, Variable) or y.dtype == np.float16):
            return g / (1 + exponential(b - a))
        # The slope of this, e / (1 + e)^2, neither overflows nor cancels.
        e = exponential(np.where(a > b, b - a, a - b))
        return g * np.where(a > b, 1, e) / (1 + e)


logaddexp = op(
    np.logaddexp,
    lambda g, y, a, b: _part_of_sum(g, y, a, b),
    lambda g, y, a, b: _part_of_sum(g, y, b, a),
)
logaddexp2 = op(
    np.logaddexp2,
    lambda g, y, a, b: _part_of_sum(g, y, a, b, np.exp2),
    lambda g, y, a, b: _part_of_sum(g, y, b, a, np.exp2),
)


@op
def sigmoid(x):
    """y = 1 / (1 + e^-x)"""
    if getattr(x, "dtype", None) == np.float16:  # in which e^12 is infinite, but 1 / e^12 is not 0
        return sigmoid.forward(x.astype(np.float32)).astype(x.dtype)
    with np.errstate(over="ignore"):  # where e^-x overflows, 1 / inf = 0 is right
        return 1 / (1 + np.exp(0.0 - x))  # in unsigned integers -x would wrap round


sigmoid.vjp(lambda g, y, _x: g * y * (1 - y))

_erf = np.frompyfunc(math.erf, 1, 1)  # Python has it, NumPy has not


@op
def erf(x):
    """y = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    dtype = x.dtype if getattr(x, "dtype", np.dtype(int)).kind == "f" else np.dtype(np.float64)
    y = _erf(x)
    return y.astype(dtype) if isinstance(y, np.ndarray) else dtype.type(y)


erf.vjp(lambda g, _y, x: g * np.exp(-x * x) * (2 / math.sqrt(math.pi)))

# ---- trigonometric and hyperbolic functions

sin = op(np.sin, lambda g, _y, x: g * np.cos(x))
cos = op(np.cos, lambda g, _y, x: -g * np.sin(x))
tan = op(np.tan, lambda g, y, _x: g * (1 + y * y))
arcsin = op(np.arcsin, lambda g, _y, x: g / np.sqrt(1 - x * x))
arccos = op(np.arccos, lambda g, _y, x: -g / np.sqrt(1 - x * x))
arctan = op(np.arctan, lambda g, _y, x: g / (1 + x * x))
sinh = op(np.sinh, lambda g, _y, x: g * np.cosh(x))
cosh = op(np.cosh, lambda g, _y, x: g * np.sinh(x))
tanh = op(np.tanh, lambda g, y, _x: g - g * y * y)
arcsinh = op(np.arcsinh, lambda g, _y, x: g / np.sqrt(x * x + 1))
arccosh = op(np.arccosh, lambda g, _y, x: g / np.sqrt(x * x - 1))
arctanh = op(np.arctanh, lambda g, _y, x: g / (1 - x * x))
hypot = op(np.hypot, lambda g, y, a, _b: g * (a / y), lambda g, y, _a, b: g * (b / y))


def _over_square(x, a, b):
    """x / (a^2 + b^2), by the root where the squares leave the range of their dtype; 0 at 0."""
    with np.errstate(over="ignore"):
        squares = a * a + b * b
    size = array_of(squares)
    if size.size and np.finfo(size.dtype).tiny < size.min() and size.max() < np.inf:
        return x / squares
    origin = (a == 0) & (b == 0)
    r = np.where(origin, np.inf, np.hypot(a, np.where(origin, 1, b)))
    return x / r / r


arctan2 = op(
    np.arctan2,
    lambda g, _y, a, b: g * _over_square(b, a, b),
    lambda g, _y, a, b: -g * _over_square(a, a, b),
)

# ---- minima, maxima, choices


def _weighed(g, weights):
    """g times weights, and 0 where a weight is 0, also for an infinite g."""
    return np.where(weights == 0, 0, g * weights)


def _won(g, mine, other, loses):
    """The part of g that belongs to an operand of maximum or minimum: half of it at a tie.

    As in PyTorch. A comparison with NaN is False, so neither operand loses to NaN.
    """
    return _weighed(g, np.where(mine == other, 0.5, ~loses).astype(g.dtype))


maximum = op(
    np.maximum, lambda g, _y, a, b: _won(g, a, b, a < b), lambda g, _y, a, b: _won(g, b, a, b < a)
)
minimum = op(
    np.minimum, lambda g, _y, a, b: _won(g, a, b, a > b), lambda g, _y, a, b: _won(g, b, a, b > a)
)


def _first_if(wins):
    """All of g to the first operand where `wins(a, b)` holds or b is NaN, else to the second."""
    first = lambda a, b: wins(a, b) | np.isnan(b)
    return (
        lambda g, _y, a, b: np.where(first(a, b), g, 0),
        lambda g, _y, a, b: np.where(first(a, b), 0, g),
    )


fmax = op(np.fmax, *_first_if(lambda a, b: a >= b))
fmin = op(np.fmin, *_first_if(lambda a, b: a <= b))


@op(broadcasts=True)
def where(condition, a, b):
    """y = a where the condition holds, else b."""
    return np.where(condition, a, b)


where.vjp(
    None,
    lambda g, _y, condition, _a, _b: np.where(condition, g, 0),
    lambda g, _y, condition, _a, _b: np.where(condition, 0, g),
)


@op(broadcasts=True)
def clip(x, low, high):
    """y = min(max(x, low), high); the gradient passes where low <= x <= high."""
    return np.clip(x, low, high)


# As torch.clamp: where low > high the output is high, and where they are equal low gets nothing.
clip.vjp(
    lambda g, _y, x, low, high: _weighed(
        g, (True if low is None else x >= low) & (True if high is None else x <= high)
    ),
    lambda g, _y, x, low, high: _weighed(g, (x < low) & (True if high is None else low < high)),
    lambda g, _y, x, low, high: _weighed(g, (x > high) | (False if low is None else high < low)),
)


@op
def relu(x):
    """y = max(x, 0), with slope 0 at 0."""
    return np.maximum(x, 0)


relu.vjp(lambda g, y, _x: np.where(y != 0, g, 0))  # and not y > 0: a NaN keeps its gradient

# ---- steps: the derivative is 0 wherever it exists, and 0 at the jumps too

floor = op(np.floor, _zero)
ceil = op(np.ceil, _zero)
trunc = op(np.trunc, _zero)
sign = op(np.sign, _zero)
copysign = op(np.copysign, lambda g, y, a, _b: g * (np.sign(y) * np.sign(a)), _zero)


@op
def round(x, *, decimals=0):
    """y = x to so many decimals; halves go to the even neighbour."""
    return np.round(x, decimals)


round.vjp(_zero)
