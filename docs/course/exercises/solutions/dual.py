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
        other = constant(other)
        return Dual(self.value + other.value, self.tangent + other.tangent)

    def __neg__(self):
        return Dual(-self.value, -self.tangent)

    def __sub__(self, other):
        return self + -constant(other)

    def __mul__(self, other):
        other = constant(other)
        return Dual(
            self.value * other.value, self.tangent * other.value + self.value * other.tangent
        )

    def __truediv__(self, other):
        other = constant(other)
        return Dual(
            self.value / other.value,
            (self.tangent * other.value - self.value * other.tangent) / other.value**2,
        )

    def __radd__(self, other):
        return constant(other) + self

    def __rsub__(self, other):
        return constant(other) - self

    def __rmul__(self, other):
        return constant(other) * self

    def __rtruediv__(self, other):
        return constant(other) / self

    def __pow__(self, n):
        """n: a number, not a Dual."""
        return Dual(self.value**n, n * self.value ** (n - 1) * self.tangent)

    def exp(self):
        y = np.exp(self.value)
        return Dual(y, y * self.tangent)

    def log(self):
        return Dual(np.log(self.value), self.tangent / self.value)

    def sin(self):
        return Dual(np.sin(self.value), np.cos(self.value) * self.tangent)

    def sum(self):
        """The sum of all elements."""
        return Dual(self.value.sum(), self.tangent.sum())


def constant(x):
    """A Dual as it is, and a number or an array as a Dual that does not move."""
    return x if isinstance(x, Dual) else Dual(x, np.zeros(np.shape(x)))


def jvp(f, x, v):
    """f(x) and J v, from one run of f. f: from a Dual to a Dual; x, v: arrays of one shape, perhaps of integers."""
    y = f(Dual(np.asarray(x, float), np.asarray(v, float)))
    return y.value, y.tangent


def gradient(f, x):
    """The gradient of f at x, of x's shape. f: from a Dual to a Dual of one number; x: an array of any shape, perhaps of integers."""
    found = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        v = np.zeros(x.shape)
        v[i] = 1
        found[i] = jvp(f, x, v)[1]
    return found
