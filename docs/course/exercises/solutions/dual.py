"""Chapter 3b: dual numbers.

A Dual is value + tangent eps, where eps^2 = 0. The tangent says how the value moves. Write the
operators and functions. They must work with Duals, numbers and arrays on either side, and with arrays of any
shape as value and tangent:

    a + b    a - b    a * b    a / b    -a    a ** n (n a constant number)    a.exp()    a.log()    a.sin()    a.sum()

Use them to write `jvp`, which runs f once, and `gradient`, which runs f once for each element of x.
f uses NumPy functions. For an object that NumPy does not know, np.exp(a) calls a.exp(), and np.sin
and np.log work in the same way.

Hints: a constant does not move. Turn it into a Dual first, so that each operator needs only one case.
2 * a calls a.__rmul__(2), and 2 - a calls a.__rsub__(2). If a / b = q, then a = q b: apply the
product rule to that.
"""

import numpy as np


class Dual:
    """A value and its tangent, which says how the value moves: two numbers, or two arrays of one shape."""

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
    """Return a Dual unchanged, or turn a number or an array into a Dual that does not move."""
    return x if isinstance(x, Dual) else Dual(x, np.zeros(np.shape(x)))


def jvp(f, x, v):
    """Return f(x) and J v, from one run of f.

    f maps a Dual to a Dual. x and v are arrays of one shape, perhaps of integers.
    """
    y = f(Dual(np.asarray(x, float), np.asarray(v, float)))
    return y.value, y.tangent


def gradient(f, x):
    """Return the gradient of f at x, in the shape of x.

    f maps a Dual to a Dual of one number. x is an array of any shape, perhaps of integers.
    """
    found = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        v = np.zeros(x.shape)
        v[i] = 1
        found[i] = jvp(f, x, v)[1]
    return found
