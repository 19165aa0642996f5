"""Chapter 3b: dual numbers.

A Dual is value + tangent eps, with eps^2 = 0: a value, and how it moves. Write its operators and functions, so that they work with
Duals, numbers and arrays on either side, and with arrays of any shape as value and tangent:

    a + b    a - b    a * b    a / b    -a    a ** n (n a constant number)    a.exp()    a.log()    a.sin()    a.sum()

and with them `jvp`, one run of f, and `gradient`, a run for each element of x. f is written with NumPy: np.exp(a) calls a.exp() for
an object that NumPy does not know, and np.sin and np.log do the same.

Hints: a constant does not move. Make a Dual of it first, and the operators need one case each. 2 * a asks a for __rmul__(2), 2 - a for
__rsub__(2). Of a / b = q comes a = q b: what does the product rule say about it?
"""

import numpy as np


class Dual:
    """Arrays of one shape, or numbers: how `value` moves is `tangent`."""

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
    """A Dual as it is, and a number or an array as a Dual that does not move."""
    return None


def jvp(f, x, v):
    """f(x) and J v, from one run of f. f: from a Dual to a Dual; x, v: arrays of one shape, perhaps of integers."""
    return None


def gradient(f, x):
    """The gradient of f at x, of x's shape. f: from a Dual to a Dual of one number; x: an array of any shape, perhaps of integers."""
    return None
