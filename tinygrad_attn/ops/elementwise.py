"""Elementwise ops: arithmetic, exponentials, trigonometry, rounding, minima and maxima.

Each function is followed by its VJPs, where g is the gradient of the loss with respect to the
output y. A VJP does not read the value of a parameter whose name starts with an underscore.
Operands broadcast as in NumPy, and the engine sums each gradient back to its operand's shape.
"""

import math

import numpy as np

from ..engine import Symbolic, array_of, op, tracked
from . import error_function

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


# Divide first: g * y can overflow where g / b * y does not.
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
    """Return a**n, multiplying out n = 2 and 3: NumPy's own `x ** 3` is a hundred times slower."""
    if n == 2:
        return a * a
    if n == 3:
        return a * a * a
    return a**n


@op(broadcasts=True)
def power(a, b):
    """y = a ** b"""
    # Integer arrays are left to NumPy, where int8 ** 2.0 is float64.
    if type(b) in (int, float) and (type(a) in (int, float) or a.dtype.kind == "f"):
        return _int_power(a, b)
    return a**b


def _power_by_base(g, y, a, b):
    if type(b) in (int, float):
        if b == 0:
            return np.zeros(a.shape, g.dtype)  # 0 * a ** -1 is NaN at a = 0
        return g * b * (a if b == 2 else _int_power(a, b - 1))
    # Where b = 0, the slope b a^(b - 1) is 0, but at a = 0 the formula gives 0 * inf = NaN. So use
    # another exponent there: 0, or 1 if a is 0 and this slope is differentiated with respect to b.
    free = tracked(b)
    zero = (b == 0) & (abs(array_of(a)) < np.finfo(y.dtype).tiny if free else True)
    return g * b * a ** np.where(zero, int(free), b - 1)


def _power_by_exponent(g, y, a, b):
    """Return g y log a, or 0 where a is 0 and b >= 0, as in PyTorch."""
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


@op
def sigmoid(x):
    """y = 1 / (1 + e^-x)"""
    with np.errstate(over="ignore"):  # if e^-x overflows, 1 / inf = 0 is right
        return 1 / (1 + np.exp(0.0 - x))  # -x would wrap around in unsigned integers


sigmoid.vjp(lambda g, y, _x: g * y * (1 - y))


@op
def erf(x):
    """y = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    return x.erf() if isinstance(x, Symbolic) else error_function.erf(x)


erf.vjp(lambda g, _y, x: g * np.exp(-x * x) * (2 / math.sqrt(math.pi)))

logaddexp = op(
    np.logaddexp,
    lambda g, _y, a, b: g * sigmoid(a - b),
    lambda g, _y, a, b: g * sigmoid(b - a),
)
logaddexp2 = op(
    np.logaddexp2,
    lambda g, _y, a, b: g * sigmoid((a - b) * math.log(2)),
    lambda g, _y, a, b: g * sigmoid((b - a) * math.log(2)),
)

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
    """Return x / (a^2 + b^2), or 0 at the origin. The squares alone could over- or underflow."""
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
    """Return g times weights, with 0 wherever a weight is 0, even if g is infinite."""
    return np.where(weights == 0, 0, g * weights)


def _won(g, mine, other, loses):
    """Return an operand's contribution from maximum or minimum: g, 0, or half of g at a tie.

    Ties are split as in PyTorch. Comparisons with NaN are False, so neither operand loses to NaN.
    """
    return _weighed(g, np.where(mine == other, 0.5, ~loses).astype(g.dtype))


maximum = op(
    np.maximum, lambda g, _y, a, b: _won(g, a, b, a < b), lambda g, _y, a, b: _won(g, b, a, b < a)
)
minimum = op(
    np.minimum, lambda g, _y, a, b: _won(g, a, b, a > b), lambda g, _y, a, b: _won(g, b, a, b > a)
)


def _first_if(wins):
    """Return VJPs that pass g to the first operand if it wins or b is NaN, else to the second."""
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


# As in torch.clamp: where low > high the output is high; where low == high, low gets no gradient.
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


relu.vjp(lambda g, y, _x: np.where(y != 0, g, 0))  # y > 0 would drop NaN's gradient

# ---- step functions: the derivative is 0, by convention even at the jumps

floor = op(np.floor, _zero)
ceil = op(np.ceil, _zero)
trunc = op(np.trunc, _zero)
sign = op(np.sign, _zero)
copysign = op(np.copysign, lambda g, y, a, _b: g * (np.sign(y) * np.sign(a)), _zero)


@op
def round(x, *, decimals=0):
    """y = x rounded to `decimals` decimals; halves are rounded to the even neighbour."""
    return np.round(x, decimals)


round.vjp(_zero)
