"""Chapter 3b: dual numbers.

A Dual is value + tangent * eps, with eps^2 = 0: a value, and how it moves. Write its operators and functions. They must work with
Duals, numbers and arrays on either side, and with arrays of any shape as value and tangent:

    a + b    a - b    a * b    a / b    -a    a ** n (n a constant number)    a.exp()    a.log()    a.sin()    a.sum()

With them, write `jvp`, which runs f once, and `gradient`, which runs f once for each element of x. f is written with NumPy:
np.exp(a) calls a.exp() for an object that NumPy does not know, and np.sin and np.log work likewise.

Hints: a constant does not move. Turn it into a Dual first, and each operator needs only one case. 2 * a calls a.__rmul__(2), and
2 - a calls a.__rsub__(2). If a / b = q, then a = q b: apply the product rule.
"""

import numpy as np


class Dual:
    """A value and its tangent: two arrays of one shape, or two numbers."""

    __array_priority__ = 1  # array * Dual: NumPy leaves it to Dual's __rmul__

    def __init__(self, value, tangent):
        self.value, self.tangent = value, tangent

    def __add__(self, other):
        return None

    def __neg__(self):
        return None

    def __sub__(self, other):
        return None

    def __mul__(self, other):
        return None

    def __truediv__(self, other):
        return None

    def __radd__(self, other):
        return None

    def __rsub__(self, other):
        return None

    def __rmul__(self, other):
        return None

    def __rtruediv__(self, other):
        return None

    def __pow__(self, n):
        """n: a number, not a Dual."""
        return None

    def exp(self):
        return None

    def log(self):
        return None

    def sin(self):
        return None

    def sum(self):
        """The sum of all elements."""
        return None


def constant(x):
    """Return a Dual unchanged, and a number or an array as a Dual that does not move."""
    return None


def jvp(f, x, v):
    """f(x) and J v, from one run of f. f: from a Dual to a Dual; x, v: arrays of one shape, perhaps of integers."""
    return None


def gradient(f, x):
    """The gradient of f at x, of x's shape. f: from a Dual to a Dual of one number; x: an array of any shape, perhaps of integers."""
    return None
